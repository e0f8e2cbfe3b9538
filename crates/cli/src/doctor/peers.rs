//! Peers: whether the other nodes of a fleet choose the same back ends as the daemon of this one, agree with
//! the daemon about the back ends' health, and use other addresses of NAT pools. Peers' answers are not
//! trusted.

use super::{Finding, Level};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::IpAddr;
use std::path::Path;
use weir_control::answer::{FleetNode, NatPool, Ring, Rings};
use weir_daemon::peer::{self, PeerUrl};
use weir_program::NatPrefix;

/// How to ask peers.
pub struct Asking<'a> {
    /// The peers' addresses.
    pub urls: &'a [PeerUrl],
    /// The token.
    pub token: &'a str,
    /// The file with the certificates that sign those of the peers.
    pub authorities: Option<&'a Path>,
}

/// How many peers are asked at a time.
const AT_ONCE: usize = 16;

/// How many differences of a kind are listed for a peer.
const LISTED_MAX: usize = 10;

/// How many characters of a peer's name for something are shown.
const SHOWN_MAX: usize = 64;

/// Asks all peers, and returns their answers in the same order.
pub fn answers(asking: &Asking<'_>) -> Vec<Result<FleetNode, String>> {
    let ask = |url: &PeerUrl| peer::ask(url, asking.token, asking.authorities);
    let ask_some = |some: &[PeerUrl]| -> Vec<Result<FleetNode, String>> {
        std::thread::scope(|scope| {
            let running: Vec<_> = some.iter().map(|url| scope.spawn(|| ask(url))).collect();
            let failed = |_| Err("could not be asked: a thread failed".to_string());
            running.into_iter().map(|one| one.join().unwrap_or_else(failed)).collect()
        })
    };
    asking.urls.chunks(AT_ONCE).flat_map(ask_some).collect()
}

/// Compares this node with its peers.
pub fn findings(own: &FleetNode, asking: &Asking<'_>) -> Vec<Finding> {
    let all = asking.urls.iter().zip(answers(asking));
    all.flat_map(|(url, answer)| match answer {
        Ok(peer) => compare(own, &peer, &url.to_string()),
        Err(why) => vec![Finding::new("peer", url.to_string(), Level::Fault, format!("it {why}"))],
    })
    .collect()
}

/// Returns a peer's text in a form that a terminal can show.
fn safe(text: &str) -> String {
    let short: String = text.chars().take(SHOWN_MAX).collect();
    let more = if text.chars().nth(SHOWN_MAX).is_some() { ".." } else { "" };
    format!("{}{more}", short.escape_debug())
}

/// Compares this node with a peer.
fn compare(own: &FleetNode, peer: &FleetNode, url: &str) -> Vec<Finding> {
    let mut found = vec![version(own, peer, url)];
    let (ours, theirs) = (&own.rings, &peer.rings);
    if ours.version != theirs.version {
        let says = format!(
            "its checksums have the version `{}`, those of this node `{}`, so rings cannot be compared: run \
             the same weir on all nodes",
            safe(&theirs.version),
            ours.version
        );
        found.push(Finding::new("peer_ring", url, Level::Warning, says));
    } else {
        found.extend(rings(ours, theirs, url));
    }
    found.extend(health(ours, theirs, url));
    found.extend(pools(&own.nat_pools, &peer.nat_pools, url));
    found
}

fn version(own: &FleetNode, peer: &FleetNode, url: &str) -> Finding {
    if own.version == peer.version {
        let files = if own.configuration == peer.configuration { "and" } else { "but not" };
        let says = format!("it answers, with the version of this node {files} the same configuration file");
        return Finding::new("peer", url, Level::Ok, says);
    }
    let says = format!(
        "it runs weir {}, this node {}: upgrade the nodes one after the other",
        safe(&peer.version),
        own.version
    );
    Finding::new("peer", url, Level::Warning, says)
}

/// Lists differences, up to a number.
fn listed(differences: Vec<String>) -> String {
    let more = differences.len().saturating_sub(LISTED_MAX);
    let mut text = differences.into_iter().take(LISTED_MAX).collect::<Vec<_>>().join("; ");
    if more > 0 {
        text += &format!("; and {more} more");
    }
    text
}

/// Compares configured rings.
fn rings(own: &Rings, peer: &Rings, url: &str) -> Vec<Finding> {
    if own.configured == peer.configured {
        let says = format!("it chooses the same back ends: the configured checksum is {}", own.configured);
        return vec![Finding::new("peer_ring", url, Level::Ok, says)];
    }
    if own.seed != peer.seed {
        let says =
            "it has another `hash_seed`, so flows get other back ends there: write the same one on both";
        return vec![Finding::new("peer_ring", url, Level::Fault, says)];
    }
    let by_name = |rings: &Rings| -> BTreeMap<String, Ring> {
        rings.services.iter().map(|ring| (ring.name.clone(), ring.clone())).collect()
    };
    let (ours, theirs) = (by_name(own), by_name(peer));
    let mut differences = Vec::new();
    for name in ours.keys().chain(theirs.keys()).collect::<BTreeSet<_>>() {
        match (ours.get(name), theirs.get(name)) {
            (Some(_), None) => differences.push(format!("{} is missing there", safe(name))),
            (None, Some(_)) => differences.push(format!("{} is missing here", safe(name))),
            (Some(one), Some(other)) if one.configured != other.configured => {
                differences.push(format!("{}: {}", safe(name), difference(one, other)));
            }
            _ => {}
        }
    }
    if differences.is_empty() {
        differences.push("the sum of all rings differs, but that of no service: its answer is wrong".into());
    }
    let says = format!("it chooses other back ends: {}", listed(differences));
    vec![Finding::new("peer_ring", url, Level::Fault, says)]
}

/// Describes why two rings of the same name differ.
fn difference(own: &Ring, peer: &Ring) -> String {
    let mut all = Vec::new();
    let mut differs = |what: &str, own: &dyn Display, peer: &dyn Display| {
        let (own, peer) = (own.to_string(), peer.to_string());
        if own != peer {
            all.push(format!("`{what}` is {own} here and {} there", safe(&peer)));
        }
    };
    let none = || "none".to_string();
    differs("scheduler", &own.scheduler, &peer.scheduler);
    differs("size", &own.size, &peer.size);
    differs("by", &own.by, &peer.by);
    differs(
        "affinity",
        &own.affinity.clone().unwrap_or_else(none),
        &peer.affinity.clone().unwrap_or_else(none),
    );
    differs("stateless", &!own.keeps, &!peer.keeps);
    differs("service", &own.destinations.join(", "), &peer.destinations.join(", "));
    if own.secrets != peer.secrets {
        all.push("a seed, a key or a server ID differs".to_string());
    }
    let by_name = |ring: &Ring| -> BTreeMap<String, (u64, Option<String>)> {
        let one =
            |one: &weir_control::answer::RingBackEnd| (one.name.clone(), (one.weight, one.address.clone()));
        ring.back_ends.iter().map(one).collect()
    };
    let (ours, theirs) = (by_name(own), by_name(peer));
    for name in ours.keys().chain(theirs.keys()).collect::<BTreeSet<_>>() {
        let shown = safe(name);
        match (ours.get(name), theirs.get(name)) {
            (Some(_), None) => all.push(format!("back end {shown} is missing there")),
            (None, Some(_)) => all.push(format!("back end {shown} is missing here")),
            (Some((weight, address)), Some((other, at))) => {
                if weight != other {
                    all.push(format!("{shown} has weight {weight} here and {other} there"));
                }
                if address != at {
                    let text = |address: &Option<String>| safe(address.as_deref().unwrap_or("none"));
                    all.push(format!(
                        "{shown} has the address {} here and {} there",
                        text(address),
                        text(at)
                    ));
                }
            }
            (None, None) => {}
        }
    }
    if all.is_empty() {
        all.push("the slots differ".to_string());
    }
    listed(all)
}

/// Compares what both nodes know about back ends.
fn health(own: &Rings, peer: &Rings, url: &str) -> Option<Finding> {
    let words = |rings: &Rings| -> BTreeMap<(String, String), (String, String)> {
        let of = |ring: &Ring| {
            let one = |one: &weir_control::answer::RingBackEnd| {
                ((ring.name.clone(), one.name.clone()), (one.health.clone(), one.reason.clone()))
            };
            ring.back_ends.iter().map(one).collect::<Vec<_>>()
        };
        rings.services.iter().flat_map(of).collect()
    };
    let is_up = |word: &str| matches!(word, "up" | "unchecked" | "unknown" | "");
    let (ours, theirs) = (words(own), words(peer));
    let mut differences = Vec::new();
    for (of, (word, reason)) in &ours {
        let Some((other, why)) = theirs.get(of) else { continue };
        if is_up(word) != is_up(other) || (!is_up(word) && word != other) {
            let say = |word: &str, reason: &str| match reason {
                "" => safe(word),
                reason => format!("{} ({})", safe(word), safe(reason)),
            };
            let (name, service) = (&of.1, &of.0);
            let (here, there) = (say(word, reason), say(other, why));
            differences.push(format!("{name} of {service} is {here} here and {there} there"));
        }
    }
    if differences.is_empty() {
        return (own.effective == peer.effective && own.effective.is_some()).then(|| {
            let says = "it agrees about the health of back ends";
            Finding::new("peer_health", url, Level::Ok, says)
        });
    }
    Some(Finding::new("peer_health", url, Level::Warning, listed(differences)))
}

/// Finds addresses and ports that are in pools of both nodes: a packet to one of them reaches only one of the
/// nodes.
fn pools(own: &[NatPool], peer: &[NatPool], url: &str) -> Option<Finding> {
    let mut differences = Vec::new();
    for one in own {
        for other in peer.iter().filter(|other| {
            ports(&one.ports).is_none_or(|(first, last)| {
                ports(&other.ports).is_none_or(|(from, to)| first <= to && from <= last)
            })
        }) {
            let theirs: Vec<NatPrefix> = prefixes(&other.addresses);
            let shared = |prefix: &NatPrefix| theirs.iter().find(|other| prefix.overlaps(**other)).copied();
            let shared = prefixes(&one.addresses).iter().find_map(|prefix| Some((*prefix, shared(prefix)?)));
            if let Some((here, there)) = shared {
                let smaller = if here.length >= there.length { here } else { there };
                differences.push(format!(
                    "{smaller} is in `{}` here and in `{}` there",
                    one.name,
                    safe(&other.name)
                ));
            }
        }
    }
    if own.is_empty() && peer.is_empty() {
        return None;
    }
    if differences.is_empty() {
        let says = "its NAT pools have other addresses than those of this node";
        return Some(Finding::new("peer_nat_pool", url, Level::Ok, says));
    }
    let says = format!(
        "NAT pools overlap, and answers reach only the node that their addresses are routed to: {}; give \
         each node addresses of its own",
        listed(differences)
    );
    Some(Finding::new("peer_nat_pool", url, Level::Fault, says))
}

fn ports(text: &str) -> Option<(u16, u16)> {
    let (first, last) = text.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?))
}

fn prefixes(text: &str) -> Vec<NatPrefix> {
    let prefix = |word: &str| {
        let (first, length) = word.split_once('/')?;
        let (first, length): (IpAddr, u8) = (first.parse().ok()?, length.parse().ok()?);
        (length <= if first.is_ipv4() { 32 } else { 128 }).then_some(NatPrefix { first, length })
    };
    text.split_ascii_whitespace().filter_map(prefix).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_control::answer::RingBackEnd;

    fn node() -> FleetNode {
        let back_end = |name: &str| RingBackEnd {
            name: name.into(),
            address: Some("10.0.0.1".into()),
            weight: 1,
            health: "up".into(),
            ..RingBackEnd::default()
        };
        let ring = Ring {
            name: "web".into(),
            configured: "1".into(),
            scheduler: "maglev".into(),
            size: 251,
            back_ends: vec![back_end("a"), back_end("b")],
            ..Ring::default()
        };
        let rings = Rings {
            version: "ring-1".into(),
            seed: "5".into(),
            configured: "7".into(),
            effective: Some("7".into()),
            services: vec![ring],
        };
        let pool = NatPool {
            name: "out".into(),
            addresses: "10.9.0.0/30".into(),
            ports: "1024-65535".into(),
            ..NatPool::default()
        };
        let nat_pools = vec![pool];
        FleetNode { version: "1".into(), configuration: "c".into(), rings, nat_pools, flows: Vec::new() }
    }

    /// Returns the findings that are not as they should be, about a peer that differs in something.
    fn about(change: impl FnOnce(&mut FleetNode)) -> Vec<Finding> {
        let mut peer = node();
        peer.nat_pools[0].addresses = "10.9.0.4/30".into();
        change(&mut peer);
        compare(&node(), &peer, "http://n2:1").into_iter().filter(|one| one.level != Level::Ok).collect()
    }

    #[test]
    fn an_equal_peer_has_no_fault() {
        assert_eq!(about(|_| {}), []);
    }

    /// A change of a ring changes checksums, too.
    fn ring(change: impl FnOnce(&mut Ring)) -> String {
        let found = about(|peer| {
            peer.rings.configured = "8".into();
            peer.rings.services[0].configured = "2".into();
            change(&mut peer.rings.services[0]);
        });
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].level == Level::Fault && found[0].check == "peer_ring", "{found:?}");
        found[0].says.clone()
    }

    #[test]
    fn what_differs_is_named() {
        for (says, words) in [
            (ring(|ring| ring.size = 509), "web: `size` is 251 here and 509 there"),
            (ring(|ring| ring.scheduler = "glb".into()), "`scheduler` is maglev here and glb there"),
            (ring(|ring| ring.secrets = "x".into()), "a seed, a key or a server ID differs"),
            (ring(|ring| ring.back_ends[1].weight = 3), "b has weight 1 here and 3 there"),
            (ring(|ring| ring.back_ends[0].address = None), "a has the address 10.0.0.1 here and none there"),
            (ring(|ring| drop(ring.back_ends.remove(0))), "back end a is missing there"),
            (
                ring(|ring| ring.name = "\u{1b}[2Jx".into()),
                "\\u{1b}[2Jx is missing here; web is missing there",
            ),
            (ring(|ring| ring.keeps = true), "`stateless` is true here and false there"),
            (ring(|_| {}), "web: the slots differ"),
        ] {
            assert!(says.contains(words), "{says}, not {words}");
        }
        let found = about(|peer| (peer.rings.seed, peer.rings.configured) = ("6".into(), "8".into()));
        assert!(found[0].says.contains("another `hash_seed`"), "{found:?}");
        let found = about(|peer| peer.rings.version = "ring-2".into());
        assert!(found[0].says.contains("cannot be compared"), "{found:?}");
        let found = about(|peer| peer.version = "2".into());
        assert!(found[0].level == Level::Warning && found[0].says.contains("runs weir 2"), "{found:?}");
    }

    #[test]
    fn health_and_pools_are_compared() {
        let found = about(|peer| {
            let one = &mut peer.rings.services[0].back_ends[1];
            (one.health, one.reason) = ("down".into(), "no route".into());
        });
        assert_eq!((found.len(), found[0].level), (1, Level::Warning));
        assert_eq!(found[0].says, "b of web is up here and down (no route) there");
        let found = about(|peer| peer.nat_pools[0].addresses = "192.0.2.1/32 10.9.0.2/32".into());
        assert!(
            found[0].level == Level::Fault && found[0].says.contains("10.9.0.2/32 is in `out` here"),
            "{found:?}"
        );
        let other_ports = |peer: &mut FleetNode| {
            (peer.nat_pools[0].addresses, peer.nat_pools[0].ports) = ("10.9.0.0/30".into(), "1-1023".into());
        };
        assert_eq!(about(other_ports), [], "the ports differ");
    }

    #[test]
    fn long_lists_are_cut() {
        let says = ring(|ring| {
            let many = (0..1000).map(|at| RingBackEnd { name: format!("x{at}"), ..RingBackEnd::default() });
            ring.back_ends.extend(many);
        });
        assert!(says.len() < 1000 && says.ends_with("and 990 more"), "{says}");
    }
}
