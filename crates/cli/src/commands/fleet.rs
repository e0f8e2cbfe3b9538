//! `weir plan FILE --fleet`: how many connections a change of a fleet would break.
//!
//! Nodes share nothing. A connection whose packets reach another node continues if that node chooses the same
//! back end and needs nothing else: this is so with a ring and without translation. Which connections reach
//! another node depends on the router. With plain ECMP, Linux divides the hash space among next hops
//! (`net/ipv4/nexthop.c`, hash threshold), and a change moves the limits of all. With a resilient group, only
//! the buckets of a next hop that leaves get other next hops, and a next hop that joins gets idle buckets.

use super::doctor::{token, urls};
use super::{BadInput, bad_input};
use crate::config::Plan;
use crate::doctor::peers::{self, Asking};
use crate::{import, output};
use anyhow::Result;
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weir_app::rings::{RingOwner, Rings};
use weir_program::buckets::BucketTable;
use weir_program::{Group, NewFlows};

/// The options of a fleet.
#[derive(clap::Args)]
pub struct FleetArguments {
    /// Report how many connections a change of the fleet that runs FILE would break.
    #[arg(long, conflicts_with_all = ["from", "max_move"], requires = "change")]
    pub fleet: bool,
    /// The number of nodes before the change; by default the number of peers.
    #[arg(long, value_name = "N", requires = "fleet", value_parser = clap::value_parser!(u16).range(1..=256))]
    nodes: Option<u16>,
    /// The number of nodes that leave: they are drained, or die.
    #[arg(long, value_name = "K", group = "change", value_parser = clap::value_parser!(u16).range(1..=256))]
    remove: Option<u16>,
    /// The number of nodes that join.
    #[arg(long, value_name = "K", group = "change", value_parser = clap::value_parser!(u16).range(1..=256))]
    add: Option<u16>,
    /// Their positions in the router's list of next hops, from 1: before the change for nodes that leave,
    /// after it for those that join. By default the mean of all positions is reported.
    #[arg(long, value_name = "POSITIONS", value_delimiter = ',', requires = "fleet")]
    at: Vec<u16>,
    /// The router has a resilient group of next hops, instead of dividing the hash space again.
    #[arg(long, requires = "fleet")]
    resilient: bool,
    /// With `nat`, back ends answer through the node that sent the last packet of a connection.
    #[arg(long, requires = "fleet")]
    answers_follow: bool,
    /// Live flows of the fleet: a number for each service, or SERVICE=NUMBER; with a number for each node in
    /// the order of the router's next hops, SERVICE=NUMBER/NUMBER/...
    #[arg(long, value_name = "FLOWS", value_delimiter = ',', requires = "fleet", value_parser = flows,
        conflicts_with = "peers")]
    flows: Vec<(Option<String>, Vec<u64>)>,
    /// Ask the nodes for their live flows: URLs in the order of the router's next hops, or @FILE.
    #[arg(long, value_name = "URL", value_delimiter = ',', requires = "fleet")]
    peers: Vec<String>,
    /// The file with the token for peers; by default that of `control` in the configuration.
    #[arg(long, requires = "peers")]
    token: Option<PathBuf>,
    /// The file with the certificates (PEM) that sign those of peers with https.
    #[arg(long, value_name = "FILE", requires = "peers")]
    authorities: Option<PathBuf>,
}

fn flows(text: &str) -> Result<(Option<String>, Vec<u64>), String> {
    let (service, numbers) = match text.rsplit_once('=') {
        Some((service, numbers)) => (Some(service.to_string()), numbers),
        None => (None, text),
    };
    let number = |text: &str| text.parse().map_err(|_| format!("`{text}` is not a number of flows"));
    Ok((service, numbers.split('/').map(number).collect::<Result<_, _>>()?))
}

/// The size of the hash with which the kernel selects a next hop: 31 bits.
const HASHES: u64 = 1 << 31;

/// The largest number of sets of nodes that are tried.
const SETS_MAX: usize = 20_000;

/// Returns the first hash above each next hop's part of the hash space, as the kernel computes this hash for
/// next hops of weight 1: `DIV_ROUND_CLOSEST(weights so far << 31, all weights)`.
fn limits(hops: usize) -> Vec<u64> {
    let hops = hops as u64;
    (1..=hops).map(|until| ((until << 31) + hops / 2) / hops).collect()
}

/// Returns which share of the hashes of each next hop in `before` get another next hop, by position. `None`
/// in `after` is a next hop that joins.
fn moved(before: &[u16], after: &[Option<u16>]) -> Vec<f64> {
    let [old, new] = [before.len(), after.len()].map(limits);
    let mut lost = vec![0_u64; before.len()];
    let (mut at, mut from, mut to) = (0, 0, 0);
    while at < HASHES && from < old.len() {
        let end = old[from].min(new.get(to).copied().unwrap_or(HASHES));
        if after.get(to).copied().flatten() != Some(before[from]) {
            lost[from] += end - at;
        }
        at = end;
        from += usize::from(old[from] == end);
        to += usize::from(new.get(to) == Some(&end));
    }
    let sizes = old.iter().scan(0, |last, until| Some(until - std::mem::replace(last, *until)));
    lost.iter().zip(sizes).map(|(lost, size)| *lost as f64 / size.max(1) as f64).collect()
}

/// A change of a fleet.
#[derive(Clone, Copy, Debug)]
struct FleetChange {
    nodes: usize,
    remove: usize,
    add: usize,
    resilient: bool,
}

impl FleetChange {
    /// Returns which share of the flows of each node another node gets, if the nodes at these positions leave
    /// or join.
    fn moved(self, positions: &BTreeSet<usize>) -> Vec<f64> {
        let before: Vec<u16> = (0..self.nodes as u16).collect();
        let leaves = |at: usize| self.remove > 0 && positions.contains(&at);
        if self.resilient {
            return (0..self.nodes).map(|at| f64::from(u8::from(leaves(at)))).collect();
        }
        let after: Vec<Option<u16>> = if self.remove > 0 {
            before.iter().filter(|at| !leaves(usize::from(**at))).map(|at| Some(*at)).collect()
        } else {
            let mut old = before.iter().copied();
            let hop = |at: usize| if positions.contains(&at) { None } else { old.next() };
            (0..self.nodes + self.add).map(hop).collect()
        };
        moved(&before, &after)
    }

    /// Returns all sets of positions, or none if there are too many.
    fn sets(self) -> Vec<BTreeSet<usize>> {
        let (of, count) =
            if self.remove > 0 { (self.nodes, self.remove) } else { (self.nodes + self.add, self.add) };
        let mut sets = vec![BTreeSet::new()];
        for _ in 0..count {
            let longer = |set: &BTreeSet<usize>| {
                let first = set.last().map_or(0, |last| last + 1);
                let set = set.clone();
                (first..of).map(move |next| set.iter().copied().chain([next]).collect()).collect::<Vec<_>>()
            };
            sets = sets.iter().flat_map(longer).collect();
            if sets.len() > SETS_MAX {
                return Vec::new();
            }
        }
        sets
    }
}

/// A service, and how likely a connection is to break when its node changes.
#[derive(Debug, PartialEq)]
struct Fragile {
    name: String,
    mode: String,
    breaks: f64,
    why: String,
}

/// Finds the services of a configuration.
fn fragile(plan: &Plan, answers_follow: bool) -> Vec<Fragile> {
    let rings = Rings::of(&plan.program, &plan.apps);
    let groups = rings.configured_groups(&plan.program, &plan.apps);
    let one = |owner: &RingOwner| service(owner, owner.group.map(|id| &groups[id.index()]), answers_follow);
    rings.owners().iter().map(one).collect()
}

fn service(owner: &RingOwner, group: Option<&Group>, answers_follow: bool) -> Fragile {
    let service = &owner.service;
    let modes: BTreeSet<&str> = service.back_ends.iter().map(|one| one.mode).collect();
    let mode =
        if modes.is_empty() { "group".to_string() } else { modes.into_iter().collect::<Vec<_>>().join("+") };
    let fragile =
        |breaks: f64, why: String| Fragile { name: service.name.clone(), mode: mode.clone(), breaks, why };
    let Some(group) = group.filter(|_| service.keeps) else {
        return fragile(0.0, "packets are assigned one by one, equally on all nodes".to_string());
    };
    let table = BucketTable::fill(group, None);
    let all: u32 = (0..group.targets.len()).map(|at| table.share(at)).sum();
    let shares: Vec<f64> =
        (0..group.targets.len()).map(|at| f64::from(table.share(at)) / f64::from(all.max(1))).collect();
    // Another node chooses by its own turns or counts, and the same back end only by chance.
    let another = match group.new_flows {
        NewFlows::Hash => 0.0,
        NewFlows::RoundRobin | NewFlows::LeastFlows => {
            1.0 - shares.iter().map(|share| share * share).sum::<f64>()
        }
    };
    let by_name: HashMap<&str, &str> =
        service.back_ends.iter().map(|one| (one.name.as_str(), one.mode)).collect();
    let breaks = |mode: &str| match mode {
        "full_nat" => 1.0,
        "nat" if !answers_follow => 1.0,
        _ => another,
    };
    let of = |(target, share): (&weir_program::Target, &f64)| {
        share * breaks(by_name.get(target.name.as_str()).copied().unwrap_or_default())
    };
    let breaks = group.targets.iter().zip(&shares).map(of).sum::<f64>();
    let why = if mode.contains("full_nat") {
        "the address and port of a connection are known to its node alone".to_string()
    } else if mode.split('+').any(|one| one == "nat") && !answers_follow {
        "answers must return through the node of their connection".to_string()
    } else if another > 0.0 {
        "the scheduler has no ring, so that another node chooses the same back end only by chance".to_string()
    } else if group.remembers() {
        "the ring is the same on all nodes; clients remembered by `affinity` may have another back end"
            .to_string()
    } else {
        "the ring is the same on all nodes".to_string()
    };
    fragile(breaks, why)
}

/// The flows of a service on each node.
type FlowsByNode = Vec<f64>;

/// Runs the command.
pub fn run(
    (file, node): (&Path, &import::NodeOption),
    arguments: &FleetArguments,
    as_json: bool,
) -> Result<ExitCode> {
    let loaded = import::load(file, node, &import::ImportOptions::default())?;
    output::complain(&loaded.report);
    let Some(plan) = loaded.plan else { return Ok(bad_input()) };
    let services = fragile(&plan, arguments.answers_follow);
    let peers = if arguments.peers.is_empty() { Vec::new() } else { urls(&arguments.peers)? };
    let nodes = match (arguments.nodes.map(usize::from), peers.len()) {
        (Some(nodes), 0) => nodes,
        (None, peers) if peers > 0 => peers,
        (Some(nodes), peers) if nodes == peers => nodes,
        (Some(nodes), peers) => return bad(format!("there are {peers} peers, but --nodes says {nodes}")),
        (None, _) => return bad("say how many nodes there are: --nodes N, or --peers URL,...".to_string()),
    };
    let [remove, add] = [arguments.remove, arguments.add].map(|count| usize::from(count.unwrap_or(0)));
    if remove >= nodes && add == 0 {
        return bad(format!("of {nodes} nodes, at most {} can leave", nodes - 1));
    }
    let change = FleetChange { nodes, remove, add, resilient: arguments.resilient };
    let sets = positions(change, &arguments.at).map_err(BadInput)?;
    let mut flows = given(&arguments.flows, nodes, &services).map_err(BadInput)?;
    let mut failed = false;
    if !peers.is_empty() {
        let of_plan = plan.control.as_ref().map(|control| control.token.clone());
        let Some(path) = arguments.token.clone().or(of_plan) else {
            return bad("peers need a token: --token FILE".to_string());
        };
        let asking =
            Asking { urls: &peers, token: &token(&path)?, authorities: arguments.authorities.as_deref() };
        for (at, (url, answer)) in peers.iter().zip(peers::answers(&asking)).enumerate() {
            match answer {
                Ok(node) => {
                    for one in
                        node.flows.iter().filter(|one| services.iter().any(|own| own.name == one.service))
                    {
                        flows.entry(one.service.clone()).or_insert_with(|| vec![0.0; nodes])[at] =
                            one.flows as f64;
                    }
                }
                Err(why) => {
                    failed = true;
                    output::complain(format!("{url}: it {why}: its flows are missing\n"));
                }
            }
        }
    }
    let rows = predict(change, &sets, &services, &flows);
    print(&rows, as_json)?;
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Returns the flows that the command line gives to services, divided evenly among the nodes.
fn given(
    flows: &[(Option<String>, Vec<u64>)],
    nodes: usize,
    services: &[Fragile],
) -> Result<HashMap<String, FlowsByNode>, String> {
    let mut all: HashMap<String, FlowsByNode> = HashMap::new();
    for (service, count) in flows {
        let each = match count.as_slice() {
            [all] => vec![*all as f64 / nodes as f64; nodes],
            each if each.len() == nodes => each.iter().map(|flows| *flows as f64).collect(),
            each => {
                return Err(format!("--flows has numbers for {} nodes, but there are {nodes}", each.len()));
            }
        };
        match service {
            Some(name) if !services.iter().any(|one| one.name == *name) => {
                return Err(format!("--flows: there is no service `{name}`"));
            }
            Some(name) => drop(all.insert(name.clone(), each)),
            None => services.iter().for_each(|one| _ = all.entry(one.name.clone()).or_insert(each.clone())),
        }
    }
    Ok(all)
}

fn bad(why: String) -> Result<ExitCode> {
    Err(BadInput(why).into())
}

/// Returns the sets of positions at which nodes leave or join: the set that was given, or all sets.
fn positions(change: FleetChange, at: &[u16]) -> Result<Vec<BTreeSet<usize>>, String> {
    let (of, count) = match change.remove {
        0 => (change.nodes + change.add, change.add),
        remove => (change.nodes, remove),
    };
    if at.is_empty() {
        let sets = change.sets();
        let why = "there are too many sets of nodes: say which with --at";
        return if sets.is_empty() { Err(why.to_string()) } else { Ok(sets) };
    }
    let set: BTreeSet<usize> = at.iter().filter_map(|at| usize::from(*at).checked_sub(1)).collect();
    if set.len() != count || at.len() != count || set.last().is_some_and(|last| *last >= of) {
        return Err(format!("--at needs {count} different positions from 1 to {of}"));
    }
    Ok(vec![set])
}

/// What a change does to the connections of a service.
struct BrokenFlows<'a> {
    of: &'a Fragile,
    flows: Option<f64>,
    broken: Option<f64>,
    /// The share of connections that break: the mean, and the limits over all positions.
    share: f64,
    limits: (f64, f64),
}

fn predict<'a>(
    change: FleetChange,
    sets: &[BTreeSet<usize>],
    services: &'a [Fragile],
    flows: &HashMap<String, FlowsByNode>,
) -> Vec<BrokenFlows<'a>> {
    let moved: Vec<Vec<f64>> = sets.iter().map(|set| change.moved(set)).collect();
    let row = |of: &'a Fragile| {
        let flows = flows.get(&of.name);
        let total = flows.map(|flows| flows.iter().sum::<f64>());
        let even = vec![1.0 / change.nodes as f64; change.nodes];
        let weights = flows.filter(|_| total > Some(0.0)).unwrap_or(&even);
        let whole: f64 = weights.iter().sum();
        let share = |moved: &Vec<f64>| {
            of.breaks * weights.iter().zip(moved).map(|(weight, moved)| weight * moved).sum::<f64>() / whole
        };
        let shares: Vec<f64> = moved.iter().map(share).collect();
        let mean = shares.iter().sum::<f64>() / shares.len() as f64;
        let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
        let most = shares.iter().copied().fold(0.0, f64::max);
        let broken = total.map(|total| total * mean);
        BrokenFlows { of, flows: total, broken, share: mean, limits: (least, most) }
    };
    services.iter().map(row).collect()
}

fn print(rows: &[BrokenFlows<'_>], as_json: bool) -> Result<()> {
    let whole = |number: Option<f64>| number.map(|number| number.round() as u64);
    let all: Option<f64> =
        rows.iter().map(|row| row.broken).collect::<Option<Vec<f64>>>().map(|all| all.iter().sum());
    if as_json {
        let row = |row: &BrokenFlows<'_>| {
            json!({ "name": row.of.name, "mode": row.of.mode, "flows": whole(row.flows),
                "broken": whole(row.broken), "share": row.share, "least": row.limits.0, "most": row.limits.1,
                "why": row.of.why })
        };
        let services: Vec<Value> = rows.iter().map(row).collect();
        return output::line(json!({ "services": services, "broken": whole(all) }));
    }
    let width = rows.iter().map(|row| row.of.name.len()).max().unwrap_or_default();
    for row in rows {
        let (least, most) = row.limits;
        let range = if most - least > 0.00005 {
            format!(" ({:.2} to {:.2})", least * 100.0, most * 100.0)
        } else {
            String::new()
        };
        let count = match (whole(row.broken), whole(row.flows)) {
            (Some(broken), Some(flows)) => format!(", {broken} of {flows},"),
            _ => String::new(),
        };
        output::line(format!(
            "{:width$}  {}: {:.2} %{range} of connections{count} would break: {}",
            row.of.name,
            row.of.mode,
            row.share * 100.0,
            row.of.why
        ))?;
    }
    if let Some(all) = whole(all) {
        output::line(format!("{all} connections would break"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(nodes: usize, remove: usize, add: usize) -> FleetChange {
        FleetChange { nodes, remove, add, resilient: false }
    }

    /// The kernel's `nh_hthr_group_rebalance` and `nexthop_select_path_hthr`: upper bounds are inclusive.
    fn kernel_picks(hops: usize, hash: u32) -> usize {
        let bound = |at: u64| {
            let (sum, all) = ((at + 1) << 31, hops as u64);
            (sum + all / 2) / all - 1
        };
        (0..hops).find(|at| u64::from(hash) <= bound(*at as u64)).unwrap()
    }

    #[test]
    fn the_share_that_moves_is_that_of_the_kernels_algorithm() {
        for (nodes, leaving) in [(2, vec![0]), (4, vec![3]), (4, vec![1]), (8, vec![2, 5]), (7, vec![0, 6])] {
            let set: BTreeSet<usize> = leaving.iter().copied().collect();
            let left: Vec<usize> = (0..nodes).filter(|at| !set.contains(at)).collect();
            let (mut flows, mut lost) = (vec![0_u32; nodes], vec![0_u32; nodes]);
            // Hashes are taken at equal distances.
            for hash in (0..1_u32 << 31).step_by(9973) {
                let before = kernel_picks(nodes, hash);
                flows[before] += 1;
                lost[before] += u32::from(left[kernel_picks(left.len(), hash)] != before);
            }
            for (at, share) in change(nodes, leaving.len(), 0).moved(&set).iter().enumerate() {
                let counted = f64::from(lost[at]) / f64::from(flows[at]);
                assert!((share - counted).abs() < 0.001, "{nodes} {leaving:?} {at}: {share} {counted}");
            }
        }
    }

    #[test]
    fn the_last_of_four_leaves_and_comes_back() {
        let mean = |moved: Vec<f64>| moved.iter().sum::<f64>() / moved.len() as f64;
        let last = BTreeSet::from([3]);
        let moved = change(4, 1, 0).moved(&last);
        let expected = [0.0, 1.0 / 3.0, 2.0 / 3.0, 1.0];
        assert!(moved.iter().zip(expected).all(|(one, other)| (one - other).abs() < 1e-6), "{moved:?}");
        assert!((mean(change(4, 1, 0).moved(&last)) - 0.5).abs() < 1e-6);
        // The same shares of the hash space, of fewer nodes.
        assert!((mean(change(3, 0, 1).moved(&last)) - 0.5).abs() < 1e-6);
        let resilient = FleetChange { resilient: true, ..change(4, 1, 0) };
        assert_eq!(resilient.moved(&last), [0.0, 0.0, 0.0, 1.0]);
        assert_eq!(FleetChange { resilient: true, ..change(3, 0, 1) }.moved(&last), [0.0; 3]);
    }

    #[test]
    fn positions_are_checked() {
        assert_eq!(positions(change(4, 1, 0), &[]).unwrap().len(), 4);
        assert_eq!(positions(change(4, 2, 0), &[]).unwrap().len(), 6);
        assert_eq!(positions(change(4, 0, 1), &[]).unwrap().len(), 5);
        assert_eq!(positions(change(4, 1, 0), &[4]).unwrap(), [BTreeSet::from([3])]);
        for (change, at) in [
            (change(4, 1, 0), &[5][..]),
            (change(4, 1, 0), &[0]),
            (change(4, 2, 0), &[1, 1]),
            (change(4, 2, 0), &[1]),
        ] {
            assert!(positions(change, at).is_err(), "{at:?}");
        }
        assert!(positions(change(64, 32, 0), &[]).unwrap_err().contains("--at"));
    }

    const FILE: &str = "ports: { p0: { pcap: {} } }
nat_pools: { out: { addresses: 10.9.0.0/24 } }
apps:
";

    fn of(service: &str, back_ends: [&str; 2], answers_follow: bool) -> Fragile {
        let back_end = |(at, keys): (usize, &&str)| {
            format!("      - {{ name: b{at}, mac: 02:00:00:00:00:1{at}, ip: 10.0.0.1{at}, {keys} }}\n")
        };
        let text = format!(
            "{FILE}  - lb:\n      name: web\n      port: p0\n      announce: none\n      \
             service: {{ vip: 192.0.2.1, protocol: tcp, port: 80 }}\n      {service}\n      back_ends:\n{}",
            back_ends.iter().enumerate().map(back_end).collect::<String>()
        );
        let loaded = crate::config::read("weir.yaml", &text);
        let plan = loaded.plan.unwrap_or_else(|| panic!("{}", loaded.report));
        fragile(&plan, answers_follow).remove(0)
    }

    #[test]
    fn what_breaks_when_a_connection_has_another_node() {
        let plain = ["mode: l2", "mode: l2"];
        let nat = ["mode: nat", "mode: nat"];
        let full = ["mode: full_nat", "mode: full_nat"];
        for (service, back_ends, follow, mode, breaks) in [
            ("fail: all", plain, false, "l2", 0.0),
            ("stateless: true", plain, false, "l2", 0.0),
            ("by: src/0.0.0.1", plain, false, "l2", 0.0),
            ("affinity: { timeout: 1h }", plain, false, "l2", 0.0),
            ("scheduler: round_robin", plain, false, "l2", 0.5),
            ("scheduler: least_connections", plain, false, "l2", 0.5),
            ("fail: all", nat, false, "nat", 1.0),
            ("fail: all", nat, true, "nat", 0.0),
            ("scheduler: round_robin", nat, true, "nat", 0.5),
            ("nat_pool: out", full, false, "full_nat", 1.0),
            ("nat_pool: out", full, true, "full_nat", 1.0),
        ] {
            let one = of(service, back_ends, follow);
            assert_eq!(one.mode, mode, "{service}");
            assert!((one.breaks - breaks).abs() < 0.01, "{service}, {mode}, {follow}: {one:?}");
        }
    }

    #[test]
    fn flows_are_given_for_the_fleet_or_for_each_node() {
        let service = Fragile { name: "web".into(), mode: "nat".into(), breaks: 1.0, why: String::new() };
        let of = |text: &str| {
            Ok::<_, String>(given(&[flows(text)?], 4, std::slice::from_ref(&service))?["web"].clone())
        };
        assert_eq!(of("100"), Ok(vec![25.0; 4]));
        assert_eq!(of("web=1/2/3/4"), Ok(vec![1.0, 2.0, 3.0, 4.0]));
        for (text, why) in [("web=1/2", "numbers for 2 nodes"), ("web=1//3/4", "``"), ("dns=1", "no service")]
        {
            assert!(of(text).unwrap_err().contains(why), "{text}");
        }
    }

    #[test]
    fn live_flows_of_nodes_count() {
        let one =
            |breaks| Fragile { name: "web".into(), mode: "full_nat".into(), breaks, why: String::new() };
        let services = [one(1.0)];
        let flows = HashMap::from([("web".to_string(), vec![100.0, 0.0, 60.0, 40.0])]);
        let sets = [BTreeSet::from([3])];
        let rows = predict(change(4, 1, 0), &sets, &services, &flows);
        assert!((rows[0].broken.unwrap() - (60.0 * 2.0 / 3.0 + 40.0)).abs() < 1e-3);
        let resilient = FleetChange { resilient: true, ..change(4, 1, 0) };
        assert_eq!(predict(resilient, &sets, &services, &flows)[0].broken, Some(40.0));
        let rows = predict(change(4, 1, 0), &sets, &services, &HashMap::new());
        assert!((rows[0].share - 0.5).abs() < 1e-6 && rows[0].broken.is_none());
    }
}
