//! `weir bench lb`: what the load balancer costs, compared with the programs of `weir bench engine` that do
//! the bare minimum of the same work: a hash without services, a million flows without back ends, learning
//! flows and nothing else.
//!
//! Both programs of a row run on memory ports and take turns in the same process. Each turn of one is divided
//! by the adjacent turn of the other, because the speed of a shared machine varies from minute to minute. The
//! programs of the load balancer are those that its app generates for a configuration with two ports whose
//! MAC addresses are known.

mod change;

use crate::engine::{Bench, PACKETS};
use crate::scenarios::{MILLION, Scenario, flow1m, hash256, learn, shuffled};
use crate::selection::Selection;
use anyhow::{Result, ensure};
use serde_json::{Value, json};
use std::fmt::Display;
use std::net::Ipv4Addr;
use std::sync::Arc;
use weir_config::attachment::{Attachment, Attachments};
use weir_config::ports::{PortConfig, PortKind};
use weir_lab::spread::ResultSpread;
use weir_lb::{Address, BackEnd, Lb, Mode, Service};
use weir_packet::PROTOCOL_UDP;
use weir_port::UdpFlow;
use weir_program::builder::ProgramBuilder;
use weir_program::{Origin, PortId, Program};

pub use change::{FarEndOptions, probe};

/// Back ends per service.
const BACK_ENDS: u16 = 100;

/// Services of the largest program.
const SERVICES: u32 = 10_000;

/// Flows of the traffic in rows that do not vary the number of flows, as in `hash256`.
const FLOWS: u32 = 65_536;

/// Packets per round with `--quick`: enough to hit each of a million flows.
const PACKETS_QUICK: u64 = MILLION as u64;

/// Address of the first service; the others follow.
const VIP: u32 = 0xac10_0000;

/// Source address of tunnels.
const TUNNEL_SOURCE: Ipv4Addr = Ipv4Addr::new(10, 9, 255, 254);

/// UDP port of every service.
const PORT: u16 = 53;

/// The name of the measurement of how soon packets follow a back-end change.
const CHANGE: &str = "change";

/// Back-end changes per phase of `change`.
const CHANGES: u32 = 200;

/// What to measure, and how thoroughly.
#[derive(clap::Args)]
pub struct LbOptions {
    /// Only these rows: stateless, `pinned1m`, learn, `ipip_ns_more`, services10k, `services10k_stateless`;
    /// or change: how soon packets follow a back-end change, on AF_XDP.
    only: Vec<String>,
    /// Rounds, whose medians are reported.
    #[arg(long, default_value = "5", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Use a quarter of the packets per round.
    #[arg(long)]
    quick: bool,
    /// End with one JSON object: `results` with `mpps`, `reference` (the Mpps of the reference program) and
    /// `ratio`, `mpps` divided by `reference`. For `ipip_ns_more`, `ratio` is not a ratio of rates, but how
    /// many nanoseconds more a packet costs with `ipip` (`mpps`) than with `l2` (`reference`).
    #[arg(long)]
    pub json: bool,
}

/// How two programs are compared.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Goal {
    /// The rate must be at least this share of the other's.
    Share(f64),
    /// The maximum number of nanoseconds that a packet may cost more.
    NanosecondsMore(f64),
}

/// Two programs that take turns.
struct ProgramPair {
    name: &'static str,
    /// What the row compares.
    what: &'static str,
    goal: Goal,
    /// The load balancer's program, and the reference program.
    programs: fn() -> [Scenario; 2],
}

/// All rows.
const PAIRS: [ProgramPair; 6] = [
    ProgramPair {
        name: "stateless",
        what: "one service without flows, compared with hash256",
        goal: Goal::Share(0.6),
        programs: || [scenario(&Setting { stateless: true, ..Setting::ONE }), hash256()],
    },
    ProgramPair {
        name: "pinned1m",
        what: "1 Mi persistent flows, compared with flow1m",
        goal: Goal::Share(0.75),
        programs: || [scenario(&Setting { flows: MILLION, ..Setting::ONE }), flow1m()],
    },
    ProgramPair {
        name: "learn",
        what: "every packet starts a new flow, compared with learn",
        goal: Goal::Share(0.6),
        programs: || [scenario(&Setting { flows: MILLION, learns: true, ..Setting::ONE }), learn()],
    },
    ProgramPair {
        name: "ipip_ns_more",
        what: "mode ipip compared with l2, without flows; the ratio is ns per packet",
        goal: Goal::NanosecondsMore(20.0),
        programs: || {
            let l2 = Setting { stateless: true, ..Setting::ONE };
            [scenario(&Setting { ipip: true, ..l2 }), scenario(&l2)]
        },
    },
    ProgramPair {
        name: "services10k",
        what: "10 000 services compared with one, with persistent flows",
        goal: Goal::Share(0.85),
        programs: || [scenario(&Setting { services: SERVICES, ..Setting::ONE }), scenario(&Setting::ONE)],
    },
    ProgramPair {
        name: "services10k_stateless",
        what: "10 000 services compared with one, without flows",
        goal: Goal::Share(0.85),
        programs: || {
            let one = Setting { stateless: true, ..Setting::ONE };
            [scenario(&Setting { services: SERVICES, ..one }), scenario(&one)]
        },
    },
];

/// The setting for which a program of the load balancer is generated.
#[derive(Clone, Copy, Debug)]
struct Setting {
    services: u32,
    stateless: bool,
    /// Whether packets go to back ends through IP-in-IP.
    ipip: bool,
    flows: u32,
    /// Whether every packet belongs to a new flow.
    learns: bool,
}

impl Setting {
    /// One service with a default configuration.
    const ONE: Setting = Setting { services: 1, stateless: false, ipip: false, flows: FLOWS, learns: false };
}

/// Measures, and reports each row.
pub fn run(options: &LbOptions, say: impl Fn(&dyn Display) -> Result<()>) -> Result<Value> {
    let names = PAIRS.iter().map(|pair| pair.name).chain([CHANGE]);
    let only = Selection::new(&options.only, names)?;
    let packets = if options.quick { PACKETS_QUICK } else { PACKETS };
    let mut rows = Vec::new();
    for pair in PAIRS {
        if only.has(pair.name) {
            let row = measure(&pair, options.rounds, packets)?;
            say(&line(&row, pair.what))?;
            rows.push(row);
        }
    }
    let mut changed = Value::Null;
    if only.has(CHANGE) {
        changed = change::measure(CHANGES)?;
        say(&change_line(&changed))?;
    }
    Ok(json!({ "results": rows, "change": changed, "back_ends": BACK_ENDS, "rounds": options.rounds }))
}

fn measure(pair: &ProgramPair, rounds: u16, packets: u64) -> Result<Value> {
    let scenarios = (pair.programs)();
    let mut benches = scenarios.each_ref().map(Bench::new);
    let mut rates = [const { Vec::new() }; 2];
    let mut ratios = Vec::new();
    for round in 0..=rounds {
        let mut ns = [0.0; 2];
        for ((ns, bench), scenario) in ns.iter_mut().zip(&mut benches).zip(&scenarios) {
            *ns = bench.round(scenario, packets).0;
        }
        // The first round fills tables and caches.
        if round > 0 {
            rates.iter_mut().zip(ns).for_each(|(rates, ns)| rates.push(1e3 / ns));
            ratios.push(ratio(pair.goal, ns));
        }
    }
    for (bench, scenario) in benches.iter().zip(&scenarios) {
        let (unsent, all) = bench.unsent();
        ensure!(unsent == 0, "{}: {unsent} of {all} packets were not sent by `{}`", pair.name, scenario.name);
    }
    let flows = benches[0].flows(&scenarios[0].program);
    let ([rate, reference], ratio) = (rates.map(ResultSpread::of), ResultSpread::of(ratios));
    Ok(json!({
        "name": pair.name, "mpps": rate.median, "reference": reference.median, "ratio": ratio.median,
        "mpps_min": rate.min, "mpps_max": rate.max, "ratio_min": ratio.min, "ratio_max": ratio.max,
        "goal": pair.goal.limit(), "met": pair.goal.is_met(ratio.median), "flows": flows,
    }))
}

/// Compares the nanoseconds per packet with those of the reference program.
fn ratio(goal: Goal, [ns, reference]: [f64; 2]) -> f64 {
    match goal {
        Goal::Share(_) => reference / ns,
        Goal::NanosecondsMore(_) => ns - reference,
    }
}

impl Goal {
    fn limit(self) -> f64 {
        let (Goal::Share(limit) | Goal::NanosecondsMore(limit)) = self;
        limit
    }

    fn is_met(self, ratio: f64) -> bool {
        match self {
            Goal::Share(least) => ratio >= least,
            Goal::NanosecondsMore(most) => ratio <= most,
        }
    }
}

fn change_line(change: &Value) -> String {
    if let Some(why) = change["why"].as_str() {
        return format!("change: not measured: {why}");
    }
    let number = |key: &str| change[key].as_f64().unwrap_or(f64::NAN);
    format!(
        "change                {:>6.0} us median, {:.0} us p99 of the slowest phase, {} frames lost at \
         {:.0} % of {:.3} Mpps",
        number("median_us"),
        number("p99_us"),
        change["lost"],
        number("load") * 100.0,
        number("rate_without_loss") / 1e6,
    )
}

fn line(row: &Value, what: &str) -> String {
    let number = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
    format!(
        "{:<21} {:>6.2} Mpps ({:.2} - {:.2})  reference {:>6.2}  ratio {:>5.2} ({:.2} - {:.2})  \
         goal {:>5.2} {}  {what}",
        row["name"].as_str().unwrap_or_default(),
        number("mpps"),
        number("mpps_min"),
        number("mpps_max"),
        number("reference"),
        number("ratio"),
        number("ratio_min"),
        number("ratio_max"),
        number("goal"),
        if row["met"] == true { "met" } else { "missed" },
    )
}

/// One service over tunnels, with `flows` persistent flows, or without flow state.
pub fn through_tunnels(flows: Option<u32>) -> Scenario {
    let (stateless, flows) = (flows.is_none(), flows.unwrap_or(FLOWS));
    scenario(&Setting { ipip: true, stateless, flows, ..Setting::ONE })
}

/// MAC addresses, destination first, and IP addresses, source first.
pub type TunnelAddresses = ([u8; 6], [u8; 6], Ipv4Addr, Ipv4Addr);

/// The outer addresses of the packets to each back end.
pub fn tunnel_addresses() -> impl Iterator<Item = TunnelAddresses> {
    (0..BACK_ENDS).map(|at| (back_end_mac(at), port_mac(PortId(1)), TUNNEL_SOURCE, back_end_address(at)))
}

/// The program for a setting, with traffic spread over its services.
fn scenario(setting: &Setting) -> Scenario {
    let to_service = |(at, (source, _, sport, _)): (u32, UdpFlow)| {
        (source, Ipv4Addr::from_bits(VIP + at % setting.services), sport, PORT)
    };
    let flows = (0..).zip(shuffled(setting.flows)).map(to_service).collect();
    let what = "services over back ends, as the app `lb` writes them";
    Scenario { name: "lb", what, program: program(setting), flows, learns: setting.learns }
}

fn program(setting: &Setting) -> Program {
    let ports = ["in", "out"];
    let mut attachments = Attachments::default();
    (0..).zip(ports).for_each(|(at, name)| attachments.add(attachment(PortId(at), name)));
    let back_ends: Arc<[BackEnd]> = (0..BACK_ENDS).map(|at| back_end(at, setting.ipip)).collect();
    let service = |at| service(at, setting, attachments.named("out"), &back_ends);
    let services = (0..setting.services).map(service).collect();
    let lb = Lb { services, flows: setting.flows, ..Lb::default() };
    let mut program = ProgramBuilder::new();
    program.ports(ports);
    program.select_seed(7);
    lb.write(&mut program, &attachments);
    program.build()
}

fn port_mac(id: PortId) -> [u8; 6] {
    [2, 0, 0, 0, 0, 2 + id.0 as u8]
}

/// A memory port. Frames of the bench are addressed to the first one.
fn attachment(id: PortId, name: &str) -> Attachment {
    let port =
        PortConfig { mac: Some(port_mac(id)), mac_configured: true, ..PortConfig::new(name, PortKind::Mem) };
    Attachment::port(id, &port, Origin::default())
}

fn back_end(at: u16, ipip: bool) -> BackEnd {
    let mode = if ipip { Mode::Ipip(back_end_address(at).into()) } else { Mode::L2 };
    BackEnd { mode, ..BackEnd::new(format!("b{at}"), back_end_mac(at)) }
}

fn back_end_address(at: u16) -> Ipv4Addr {
    let [high, low] = at.to_be_bytes();
    Ipv4Addr::new(10, 9, high, low)
}

fn back_end_mac(at: u16) -> [u8; 6] {
    let [high, low] = at.to_be_bytes();
    [2, 0, 0, 1, high, low]
}

fn service(at: u32, setting: &Setting, out: Option<&Attachment>, back_ends: &Arc<[BackEnd]>) -> Service {
    let vip = Ipv4Addr::from_bits(VIP + at).into();
    let address = Address { vip, prefix: 32, protocol: PROTOCOL_UDP, ports: (PORT, PORT) };
    Service {
        ports: vec![PortId(0)],
        out: out.cloned(),
        stateless: setting.stateless,
        source: (Some((TUNNEL_SOURCE, 0)), None),
        ..Service::new(format!("s{at}"), address, Arc::clone(back_ends))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_met_on_their_side_of_the_limit() {
        let share = Goal::Share(0.6);
        assert_eq!(ratio(share, [40.0, 20.0]), 0.5);
        assert!(!share.is_met(0.5) && share.is_met(0.6));
        let more = Goal::NanosecondsMore(20.0);
        assert_eq!(ratio(more, [40.0, 25.0]), 15.0);
        assert!(more.is_met(15.0) && !more.is_met(20.5));
    }

    /// Dropping packets would look fast.
    #[test]
    fn every_program_sends_its_frames_and_keeps_the_flows_that_stay() {
        let few = Setting { flows: 512, ..Setting::ONE };
        for (stateless, ipip, services) in
            [(false, false, 1), (true, false, 1), (true, true, 1), (false, false, 20), (true, false, 20)]
        {
            let setting = Setting { stateless, ipip, services, ..few };
            let scenario = scenario(&setting);
            let mut bench = Bench::new(&scenario);
            bench.round(&scenario, 2048);
            assert_eq!(bench.unsent(), (0, 2048), "{setting:?}");
            assert_eq!(bench.flows(&scenario.program), if stateless { 0 } else { 512 }, "{setting:?}");
        }
    }

    /// Without the flows of the previous round, each round learns all of them.
    #[test]
    fn new_flows_are_new_in_every_round() {
        let scenario = scenario(&Setting { flows: 512, learns: true, ..Setting::ONE });
        let mut bench = Bench::new(&scenario);
        for _ in 0..3 {
            bench.round(&scenario, 512);
            assert_eq!(bench.flows(&scenario.program), 512);
        }
        bench.age();
        assert_eq!(bench.flows(&scenario.program), 0);
    }

    #[test]
    fn the_rows_have_the_names_that_others_read() {
        let names = PAIRS.map(|pair| pair.name);
        assert_eq!(names[..5], ["stateless", "pinned1m", "learn", "ipip_ns_more", "services10k"]);
    }
}
