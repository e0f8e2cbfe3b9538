//! Reads `check`, `address` and `fail` of a service and its back ends. The sections are those of the service,
//! whose other keys `lb/yaml.rs` reads.

use super::monitor::Times;
use super::weights::{Fail, RAMP};
use super::{Guarded, Health, Passive, Routed, Watch};
use crate::announce::{Announce, Routing};
use crate::pipes::COUNTED_MAX;
use crate::service::{Address, Mode, Sources};
use crate::yaml::sources;
use crate::{BackEnd, By, Service};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use std::sync::Arc;
use weir_app::check::{Ask, Check, Close, Request, Via};
use weir_app::route::Prefix;
use weir_config::raw::{Kind, Node};
use weir_config::section::{Section, list, parsed, text, words};
use weir_config::sets::WEIGHT_MAX;
use weir_config::{Key, Report, Shape, Span};
use weir_packet::PROTOCOL_TCP;

const NS_PER_MS: u64 = 1_000_000;
/// The shortest and the longest interval; below, the same for timeouts.
const INTERVAL_NS: [u64; 2] = [10 * NS_PER_MS, 3_600_000 * NS_PER_MS];
const TIMEOUT_NS: [u64; 2] = [NS_PER_MS, 60_000 * NS_PER_MS];
const SLOW_START_NS: u64 = 24 * 3_600_000 * NS_PER_MS;
/// The largest number of checks per second of all services.
const RATE_MAX: u64 = 20_000;
/// The longest payload, in bytes.
const PAYLOAD_MAX: usize = 1024;
/// The longest domain name and label, in bytes (RFC 1035 section 2.3.4), without the root.
const NAME_MAX: usize = 253;
const LABEL_MAX: usize = 63;

/// The keys of `check`. `type` says which of them it may have ([`OF_TYPE`]).
pub(crate) const CHECK: &[Key] = weir_config::keys! {
    needed "type": Shape::Words(|| words(&OF_TYPE)), "the type of the check";
    "port": Shape::Number(1, 65_535), "its port, by default the one to which the back end's packets are sent";
    "via": Shape::Words(|| words(&VIA)),
        "its route: the host's route to `address`, or that of the service's packets to its VIPs" or "address";
    "from": Shape::Either(&[Shape::Ip, Shape::List(&Shape::Ip)]),
        "with `via: service`, weir's own address that answers are sent to; at most one per IP version";
    "path": Shape::Text, "the path of an HTTP request" or "/";
    "host": Shape::Text, "the host of an HTTP request, and the name of a TLS handshake";
    "status": Shape::Text, "the HTTP status that counts as success, or a range" or "200-399";
    "body": Shape::Text, "what the body must contain";
    "name": Shape::Text, "the name of a DNS query";
    "rcode": Shape::Words(|| words(&RCODES)), "the expected DNS response code" or "noerror";
    "payload": Shape::Text, "the datagram that is sent: text, or 0x and hexadecimal digits";
    "expect": Shape::Text, "what the answer must contain, in the same notation; by default anything";
    "close": Shape::Words(|| words(&CLOSE)), "how its TCP connection ends: with a FIN or a reset" or "fin";
    "interval": Shape::Time, "the time from one check to the next" or "1s";
    "timeout": Shape::Time, "how long a check may take" or "500ms";
    "rise": Shape::Number(1, 100), "how many successful checks in a row bring it up" or "2";
    "fall": Shape::Number(1, 100), "how many failed checks in a row take it down" or "3";
    "jitter": Shape::Share, "how much intervals vary at random" or "10%";
    "fail": Shape::Words(|| words(&DRAINS)),
        "what happens to a server that fails it: `down` ends its flows, `drain` keeps them" or "down";
    "slow_start": Shape::Time, "how long its weight ramps up when it comes back" or "never";
};
/// The keys of `passive`.
pub(crate) const PASSIVE: &[Key] = weir_config::keys! {
    "unanswered": Shape::Number(2, 1_000_000),
        "how many new flows without an answer make a back end suspect" or "5";
    "share": Shape::Share, "their minimum share of its new flows" or "50%";
    "within": Shape::Time, "the time within which they are counted" or "2s";
    "for": Shape::Time, "how long a suspect back end gets no new flows" or "10s";
};
/// The minimum and maximum of `within`, and of `for`.
const WITHIN_NS: [u64; 2] = [100 * NS_PER_MS, 60_000 * NS_PER_MS];
const FOR_NS: [u64; 2] = [1000 * NS_PER_MS, 3_600_000 * NS_PER_MS];
/// The choices of `via`: whether a check takes the service's own path.
const VIA: [(&str, bool); 2] = [("address", false), ("service", true)];
/// The choices of `close`.
const CLOSE: [(&str, Close); 2] = [("fin", Close::Fin), ("reset", Close::Reset)];
/// The choices of `fail`.
pub(crate) const FAIL: [(&str, Fail); 4] =
    [("drop", Fail::Drop), ("all", Fail::All), ("last", Fail::Last), ("reject", Fail::Reject)];
/// The values of `fail` in a check: whether a server that fails it keeps its flows.
const DRAINS: [(&str, bool); 2] = [("down", false), ("drain", true)];
/// Keys that only some types have.
const OF_TYPE: [(&str, &[&str]); 8] = [
    ("none", &[]),
    ("tcp", &["close"]),
    ("http", &["path", "host", "status", "body", "close"]),
    ("https", &["path", "host", "status", "body", "close"]),
    ("tls", &["host", "close"]),
    ("dns", &["name", "rcode"]),
    ("udp", &["payload", "expect"]),
    ("icmp", &[]),
];
const RCODES: [(&str, Option<u8>); 7] = [
    ("noerror", Some(0)),
    ("formerr", Some(1)),
    ("servfail", Some(2)),
    ("nxdomain", Some(3)),
    ("notimp", Some(4)),
    ("refused", Some(5)),
    ("any", None),
];

/// Reads the health of services from their sections. `pools` are the mappings of back ends that services
/// share. If there are too many back ends to count each of them, only services with checks or without `mac`
/// are included.
pub(crate) fn read(services: &[(&Node, Service)], pools: &[&Node], report: &mut Report) -> Health {
    let few = services.iter().map(|(_, service)| service.back_ends.len()).sum::<usize>() <= COUNTED_MAX;
    for node in services.iter().filter(|_| !few).filter_map(|(node, _)| value(node, "passive")) {
        let message = format!(
            "`passive` needs per-back-end flow counts, which are kept for at most {COUNTED_MAX} \
                back ends"
        );
        report.error_help(node.span, message, "omit `passive`");
    }
    let resolved = |service: &Service| service.back_ends.iter().any(|one| one.resolve.is_some());
    let guarded = services.iter().map(|(node, one)| (resolved(one), guarded(node, one, pools, report)));
    let rejects = |one: &Guarded| one.fail == Fail::Reject;
    let routed = |one: &Guarded| one.routed.is_some();
    let checked = |one: &Guarded| {
        few || routed(one) || rejects(one) || one.back_ends.iter().any(|(.., watch)| watch.is_some())
    };
    let guarded = guarded.filter(|(resolved, one)| *resolved || checked(one));
    let guarded: Vec<Arc<Guarded>> = guarded.map(|(_, one)| Arc::new(one)).collect();
    let rate = rate(&guarded);
    if let Some((node, _)) = services.first().filter(|_| rate > RATE_MAX) {
        let message = format!(
            "all services together have {rate} checks per second, but the limit is \
            {RATE_MAX}"
        );
        report.error_help(node.span, message, "write longer intervals");
    }
    Health { services: guarded, ..Health::default() }
}

/// Returns how many checks per second all services have together.
fn rate(guarded: &[Arc<Guarded>]) -> u64 {
    let watches =
        guarded.iter().flat_map(|service| service.back_ends.iter().filter_map(|one| one.2.as_ref()));
    let different: std::collections::HashSet<&Watch> = watches.collect();
    different.iter().map(|watch| 1_000_000_000 / watch.times.interval_ns).sum()
}

/// Whether all checks of services together stay within the limit.
pub(crate) fn is_rate_possible(guarded: &[Arc<Guarded>]) -> bool {
    rate(guarded) <= RATE_MAX
}

fn guarded(node: &Node, service: &Service, pools: &[&Node], report: &mut Report) -> Guarded {
    let common = value(node, "check");
    let fine = common.is_none_or(|node| is_fine(node, report));
    let fail = value(node, "fail");
    let fail =
        fail.and_then(|node| weir_config::section::choice(node, "`fail`", &FAIL, report)).unwrap_or_default();
    let nodes = value(node, "back_ends").and_then(|node| match &node.kind {
        Kind::Scalar(name) => pools.iter().find_map(|pools| value(pools, name)),
        _ => Some(node),
    });
    let nodes = nodes.map(|node| list(node, "back ends", &mut Report::default()));
    let mut back_ends = Vec::new();
    for (node, back_end) in nodes.unwrap_or_default().iter().zip(service.back_ends.iter()) {
        let address = value(node, "address").or(value(node, "ip")).and_then(|node| address(node, report));
        let own = value(node, "check");
        let watch = match merged(common.filter(|_| fine), own) {
            Some(check) => watch(&check, address, (node.span, service, back_end), report),
            None => None,
        };
        back_ends.push((back_end.name.clone(), back_end.effective_weight(), watch));
    }
    let passive = value(node, "passive").and_then(|node| passive(node, service, report));
    let routed = routed(service);
    let is_announced = service.announces() || routed.is_some();
    let guarded = Guarded { name: service.name.clone(), fail, passive, is_announced, routed, back_ends };
    fits(&guarded, (node.span, service), common, report);
    guarded
}

/// Returns when the addresses of a service are announced to routers, if they ever are.
fn routed(service: &Service) -> Option<Arc<Routed>> {
    let Announce::Route(Routing { min_up, degraded_below }) = service.announce else { return None };
    let mut prefixes: Vec<Prefix> = service.addresses.iter().map(Address::prefix).collect();
    prefixes.sort_unstable();
    prefixes.dedup();
    let (prefixes, ports) = (prefixes.into(), service.ports.clone());
    Some(Arc::new(Routed { prefixes, ports, min_up, degraded_below }))
}

/// Reports settings of the service that cannot be combined with checks.
fn fits(guarded: &Guarded, (span, service): (Span, &Service), common: Option<&Node>, report: &mut Report) {
    let at = common.map_or(span, |node| node.span);
    let checked = guarded.back_ends.iter().any(|(.., watch)| watch.is_some());
    if checked && matches!(service.by, By::SourceBits(_)) {
        let message = "a service with `by: src/MASK` has no weights that checks could change";
        report.error_help(at, message, "write `by: source`");
    }
    if guarded.fail == Fail::Reject && matches!(service.by, By::SourceBits(_)) {
        let message = "a service with `by: src/MASK` always has a back end for a client: nothing is rejected";
        report.error_help(span, message, "write `by: source`, or omit `fail`");
    }
    let most = WEIGHT_MAX as u32 / super::scale(guarded);
    for (back_end, _) in service.back_ends.iter().zip(&guarded.back_ends).filter(|(one, _)| one.weight > most)
    {
        let message = format!(
            "with `slow_start`, weights are at most {most}, because they rise in {RAMP} \
            steps"
        );
        report.error(report.span_of(back_end.origin), message);
    }
}

/// Returns the value of a key, if the node is a mapping that has it.
pub(crate) fn value<'a>(node: &'a Node, key: &str) -> Option<&'a Node> {
    let Kind::Map(pairs) = &node.kind else { return None };
    pairs.iter().find(|(word, _)| word.is(key)).map(|(_, value)| value)
}

/// Validates a service's own `check`, once for all its back ends.
fn is_fine(node: &Node, report: &mut Report) -> bool {
    let before = report.errors();
    let section = Section::read(node, CHECK, report);
    let _ = (times(&section, report), ask(&section, report), from(&section, report));
    let _ = section.choice("fail", &DRAINS, report);
    report.errors() == before
}

/// The keys of a back end's `check`, plus those of its service's that it does not override. If its type
/// differs, only the service's keys that are valid for that type count.
fn merged(common: Option<&Node>, own: Option<&Node>) -> Option<Node> {
    let (Some(common), Some(own)) = (common, own) else { return common.or(own).cloned() };
    let (Kind::Map(base), Kind::Map(over)) = (&common.kind, &own.kind) else { return Some(own.clone()) };
    let kind = value(own, "type").or(value(common, "type"));
    let fits = |word: &Node| {
        OF_TYPE.iter().all(|(_, keys)| !keys.iter().any(|key| word.is(key))) || {
            let has = |(of, keys): &(&str, &[&str])| {
                kind.is_some_and(|kind| kind.is(of)) && keys.iter().any(|key| word.is(key))
            };
            OF_TYPE.iter().any(has)
        }
    };
    let is_new = |word: &Node| !over.iter().any(|(other, _)| other.kind == word.kind);
    let kept = base.iter().filter(|(word, _)| is_new(word) && fits(word));
    Some(Node { span: own.span, kind: Kind::Map(over.iter().chain(kept).cloned().collect()) })
}

/// A back end's check; `None` if there is none, or an error, which is reported.
fn watch(
    node: &Node,
    address: Option<IpAddr>,
    (span, service, back_end): (Span, &Service, &BackEnd),
    report: &mut Report,
) -> Option<Watch> {
    if back_end.mode == Mode::Reject {
        return None;
    }
    let before = report.errors();
    let section = Section::read(node, CHECK, report);
    if section.get("type").is_some_and(|node| node.is("none")) {
        return None;
    }
    let times = times(&section, report);
    let timeout_ns = section.time("timeout", report);
    let drains = section.choice("fail", &DRAINS, report);
    let ask = ask(&section, report);
    let port = section.number("port", report);
    let via = via(&section, (service, back_end), report);
    let close = section.choice("close", &CLOSE, report).unwrap_or_default();
    let first = via.as_ref().map(|via| via.ways[0].1);
    let Some(address) = first.or(address) else {
        let message = "a back end that is checked needs an `address`";
        report.error_help(span, message, "write `address: IP`, or `check: { type: none }`");
        return None;
    };
    // By default the port to which packets are translated, or else the service's, of which there may be
    // several.
    let of_service = || service.addresses.iter().map(|one| one.ports.0).find(|port| *port != 0);
    let known = || back_end.mode.port().or_else(of_service);
    let Some(port) = port.map(|port| port as u16).or_else(known) else {
        report.error_help(
            span,
            "this service has all ports: say which one is checked",
            "write `port:` in `check`",
        );
        return None;
    };
    let check = Arc::new(Check { address, port, ask: ask?, timeout_ns, via, close });
    (report.errors() == before).then_some(Watch { check, times, drains: drains? })
}

/// The source addresses of checks, for IPv4 and IPv6, if they take the service's own path.
fn from(section: &Section<'_>, report: &mut Report) -> Option<Sources> {
    let is_used = section.choice("via", &VIA, report)?;
    let Some(node) = section.get("from") else {
        if is_used {
            let at = section.get("via").or(section.get("type"))?;
            let help = "write `from: ADDRESS`: an unused address, which weir will announce";
            report.error_help(at.span, "`via: service` needs an address that answers are sent to", help);
        }
        return None;
    };
    let before = report.errors();
    let (v4, v6) = sources(node, report);
    let is_station = |one: IpAddr| !(one.is_unspecified() || one.is_multicast() || one.is_loopback());
    let v4_all = v4.map(|(address, bits)| (IpAddr::from(address), bits));
    let all = v4_all.into_iter().chain(v6.map(|(address, bits)| (address.into(), bits)));
    let is_one = |one: IpAddr, bits| bits == 0 && is_station(one) && one != IpAddr::V4(Ipv4Addr::BROADCAST);
    for (wrong, _) in all.filter(|(one, bits)| !is_one(*one, *bits)) {
        report.error(node.span, format!("{wrong} is not a host address"));
    }
    if section.get("via").is_none() {
        report.error_help(
            node.span,
            "`from` is for checks that take the service's own path",
            "write `via: service`",
        );
    }
    (report.errors() == before && is_used).then_some((v4, v6))
}

/// The path of a check that takes the service's own path: to the first VIP of each IP version that has a
/// source address. Translated packets have the back end's own address, so the two paths are the same there.
fn via(section: &Section<'_>, (service, back_end): (&Service, &BackEnd), report: &mut Report) -> Option<Via> {
    let (v4, v6) = from(section, report)?;
    if back_end.mode.is_nat() {
        return None;
    }
    let vip = |ipv6: bool| service.addresses.iter().map(|one| one.vip).find(|vip| vip.is_ipv6() == ipv6);
    let v4 = v4.and_then(|(from, _)| Some((from.into(), vip(false)?)));
    let v6 = v6.and_then(|(from, _)| Some((from.into(), vip(true)?)));
    let ways: Vec<(IpAddr, IpAddr)> = v4.into_iter().chain(v6).collect();
    if ways.is_empty() {
        let at = section.get("from")?;
        report.error(
            at.span,
            format!("service `{}` has no VIP of the same IP version as `from`", service.name),
        );
        return None;
    }
    Some(Via { service: service.name.clone(), back_end: back_end.name.clone(), ways })
}

/// When back ends of a service are suspect; `None` if there is an error, which is reported.
fn passive(node: &Node, service: &Service, report: &mut Report) -> Option<Passive> {
    let before = report.errors();
    if !service.is_sticky() {
        let message = "a service that keeps no flows cannot know which SYNs stay unanswered";
        let help = "omit `passive`, or write neither `stateless: true` nor another `by` than `5-tuple`";
        report.error_help(node.span, message, help);
        return None;
    }
    if !service.addresses.iter().any(|one| one.protocol == PROTOCOL_TCP) {
        let message = "`passive` counts TCP SYNs, but this service has no TCP";
        report.error_help(node.span, message, "omit `passive`");
        return None;
    }
    let section = Section::read(node, PASSIVE, report);
    let unanswered = section.number("unanswered", report);
    let share = section.get("share").map_or(Some(500), |node| share(node, "share", 1..=100, report));
    let within_ns = time(&section, "within", (WITHIN_NS, "100ms to 60s"), report);
    let for_ns = time(&section, "for", (FOR_NS, "1s to 1h"), report);
    let passive = Passive { unanswered: unanswered?, share: share?, within_ns, for_ns };
    (report.errors() == before).then_some(passive)
}

/// A time within a range, which is described in words.
fn time(
    section: &Section<'_>,
    key: &str,
    ([least, most], said): ([u64; 2], &str),
    report: &mut Report,
) -> u64 {
    let time = section.time(key, report);
    if let Some(node) = section.get(key)
        && !(least..=most).contains(&time)
    {
        report.error(node.span, format!("`{key}` is from {said}"));
    }
    time.clamp(least, most)
}

fn times(section: &Section<'_>, report: &mut Report) -> Times {
    let mut within = |key: &str, range: [u64; 2], said: &str| time(section, key, (range, said), report);
    let interval_ns = within("interval", INTERVAL_NS, "10ms to 1h");
    within("timeout", TIMEOUT_NS, "1ms to 60s");
    let slow_start_ns = within("slow_start", [0, SLOW_START_NS], "0 (`never`) to 24h");
    let rise = section.number("rise", report).unwrap_or(1) as u32;
    let fall = section.number("fall", report).unwrap_or(1) as u32;
    let jitter = section
        .get("jitter")
        .map_or(Some(100), |node| share(node, "jitter", 0..=50, report))
        .unwrap_or_default();
    Times { interval_ns, jitter, rise, fall, slow_start_ns }
}

/// A share in a range of percentages, in thousandths.
fn share(node: &Node, key: &str, range: RangeInclusive<u8>, report: &mut Report) -> Option<u32> {
    let words = text(node, "a share", report)?;
    let share = match words.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().ok().map(|percent| percent / 100.0),
        None => words.parse::<f64>().ok(),
    };
    let (least, most) = (f64::from(*range.start()) / 100.0, f64::from(*range.end()) / 100.0);
    let share = share.filter(|share| (least..=most).contains(share));
    if share.is_none() {
        let least = if least > 0.0 { format!("{}%", range.start()) } else { "0".to_string() };
        report.error(node.span, format!("`{key}` is between {least} and {}%", range.end()));
    }
    share.map(|share| (share * 1000.0).round() as u32)
}

/// The request of a check; `None` if there is an error, which is reported.
fn ask(section: &Section<'_>, report: &mut Report) -> Option<Ask> {
    let before = report.errors();
    let node = section.needed("type", report)?;
    let kinds: Vec<(&str, usize)> = OF_TYPE.iter().zip(0..).map(|((word, _), at)| (*word, at)).collect();
    let (kind, own) = OF_TYPE[weir_config::section::choice(node, "`type`", &kinds, report)?];
    for key in OF_TYPE.iter().flat_map(|(_, keys)| *keys).filter(|key| !own.contains(key)) {
        if let Some(node) = section.get(key) {
            let of: Vec<&str> =
                OF_TYPE.iter().filter(|(_, keys)| keys.contains(key)).map(|(word, _)| *word).collect();
            report
                .error(node.span, format!("`{key}` is for checks of type {}, not {kind}", of.join(" and ")));
            return None;
        }
    }
    let ask = match kind {
        "http" | "https" => Ask::Http(request(section, kind == "https", report)?),
        "tls" => Ask::Tls(host(section, report)),
        "dns" => {
            let name = section.needed("name", report).and_then(|node| domain(node, report))?;
            Ask::Dns(name, section.choice("rcode", &RCODES, report)?)
        }
        "udp" => {
            let payload = section.needed("payload", report).and_then(|node| bytes(node, report))?;
            let expect = section.get("expect").map_or(Some(Vec::new()), |node| bytes(node, report))?;
            Ask::Udp(payload, expect)
        }
        "icmp" => Ask::Icmp,
        "tcp" => Ask::Tcp,
        other => unreachable!("a check of type `{other}` takes no other keys"),
    };
    if cfg!(not(feature = "tls")) && matches!(kind, "https" | "tls") {
        let help = "build it with `--features tls`";
        report.error_help(node.span, format!("this weir was built without `{kind}`"), help);
    }
    (report.errors() == before).then_some(ask)
}

fn request(section: &Section<'_>, tls: bool, report: &mut Report) -> Option<Request> {
    let path = section.get("path").map_or(Some("/"), |node| text(node, "a path", report))?;
    let visible = |byte: u8| byte.is_ascii_graphic();
    if let Some(node) = section.get("path")
        && (!path.starts_with('/') || !path.bytes().all(visible))
    {
        report.error(node.span, "a path begins with `/` and has no spaces");
    }
    let status = section.get("status").map_or(Some([200, 399]), |node| status(node, report))?;
    let body = match section.get("body") {
        Some(node) => Some(text(node, "text", report)?.to_string()),
        None => None,
    };
    Some(Request { tls, path: path.to_string(), host: host(section, report), status, body })
}

fn host(section: &Section<'_>, report: &mut Report) -> Option<String> {
    let node = section.get("host")?;
    let host = text(node, "a host", report)?;
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
    if host.is_empty() || host.len() > NAME_MAX || !host.bytes().all(good) {
        report.error(node.span, "a host is a name or an address, and perhaps a port behind `:`");
    }
    Some(host.to_string())
}

fn status(node: &Node, report: &mut Report) -> Option<[u16; 2]> {
    let words = text(node, "a status", report)?;
    let (first, last) = words.split_once('-').unwrap_or((words, words));
    let number = |word: &str| word.trim().parse::<u16>().ok().filter(|status| (100..=599).contains(status));
    let range = number(first).zip(number(last)).filter(|(first, last)| first <= last);
    if range.is_none() {
        report.error(
            node.span,
            format!("a status is from 100 to 599, or a range such as 200-299, not `{words}`"),
        );
    }
    range.map(|(first, last)| [first, last])
}

fn domain(node: &Node, report: &mut Report) -> Option<String> {
    let words = text(node, "a domain name", report)?;
    let name = words.strip_suffix('.').unwrap_or(words);
    let good = |label: &str| {
        (1..=LABEL_MAX).contains(&label.len()) && label.bytes().all(|byte| byte.is_ascii_graphic())
    };
    if !words.is_empty() && (name.is_empty() || name.len() <= NAME_MAX && name.split('.').all(good)) {
        return Some(name.to_string());
    }
    report.error(node.span, format!("`{words}` is not a domain name: labels of 1 to {LABEL_MAX} bytes"));
    None
}

/// Text, or `0x` followed by hexadecimal digits.
fn bytes(node: &Node, report: &mut Report) -> Option<Vec<u8>> {
    let words = text(node, "text, or 0x and hexadecimal digits", report)?;
    let bytes = match words.strip_prefix("0x") {
        None => Some(words.as_bytes().to_vec()),
        Some(digits) if digits.is_ascii() && digits.len() % 2 == 0 => {
            (0..digits.len() / 2).map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).ok()).collect()
        }
        Some(_) => None,
    };
    let bytes = bytes.filter(|bytes| bytes.len() <= PAYLOAD_MAX);
    if bytes.is_none() {
        let message = "pairs of hexadecimal digits follow 0x";
        report.error(node.span, format!("{message}, and a payload has at most {PAYLOAD_MAX} bytes"));
    }
    bytes
}

fn address(node: &Node, report: &mut Report) -> Option<IpAddr> {
    let address = parsed::<IpAddr>(node, "an IP address", report)?;
    if address.is_unspecified() || address.is_multicast() {
        report.error(node.span, format!("{address} is not a server address"));
        return None;
    }
    Some(address)
}
