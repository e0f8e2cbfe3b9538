//! Compares runs with results computed by hand.

use super::*;
use crate::fabric::{Fault, Shape};
use crate::loads::Load;
use crate::tcp::Behaviour;

fn scenario(contender: &str) -> Scenario {
    Scenario {
        shape: Shape {
            leaves: 3,
            spines: 4,
            hosts: 4,
            host_rate: 10.0,
            rate: 10.0,
            delay_ns: 2000,
            buffer: 300_000,
            mark: 100_000,
        },
        faults: Vec::new(),
        load: Load::WebSearch,
        percent: 50.0,
        contender: contender.parse().expect("a scheme"),
        seed: 1,
        flows: 200,
        tcp: Behaviour { dctcp: true, timeout_min: 2_000_000 },
        probe_ns: 1_000_000,
        flowlet_ns: None,
    }
}

fn ran(scenario: &Scenario) -> Run {
    let mut run = Run::new(scenario).expect("a scenario");
    while run.advance(1_000_000) {}
    run
}

fn contenders() -> impl Iterator<Item = String> {
    Scheme::ALL
        .into_iter()
        .map(|scheme| scheme.to_string())
        .chain(["adaptive_cells", "conga_like"].map(str::to_string))
}

#[test]
fn equal_seeds_give_equal_bytes_and_others_do_not() {
    for contender in contenders() {
        let result = |seed| {
            let outcome = ran(&Scenario { seed, flows: 60, ..scenario(&contender) }).outcome();
            serde_json::to_string(&outcome).expect("JSON")
        };
        assert_eq!(result(1), result(1), "{contender}");
        assert_ne!(result(1), result(2), "{contender}");
    }
}

#[test]
fn every_scheme_runs_under_every_fault_and_forgets_no_packet() {
    for fault in ["slow:0-1:10", "cut:0-1", "dead:0-1:1", "loss:2:1", "blackhole:3:4"] {
        let fault: Fault = fault.parse().expect("a fault");
        for contender in contenders() {
            let outcome =
                ran(&Scenario { faults: vec![fault.clone()], flows: 100, ..scenario(&contender) }).outcome();
            assert!(outcome.ledger.balances(), "{contender} {fault}: {:?}", outcome.ledger);
            assert!(outcome.unended < outcome.flows / 2, "{contender} {fault}: {} left", outcome.unended);
        }
    }
}

#[test]
fn what_is_in_flight_is_counted_at_any_moment() {
    let mut run = Run::new(&scenario("adaptive")).expect("a scenario");
    while run.advance(997) {
        assert!(run.outcome().ledger.balances());
    }
}

#[test]
fn a_lone_flow_takes_what_the_formula_says() {
    for (host_rate, rate) in [(10.0, 10.0), (10.0, 40.0), (40.0, 10.0)] {
        for packets in [1_u32, 10, 11, 30, 100, 1000, 20_000] {
            let mut scenario = scenario("ecmp");
            (scenario.shape.host_rate, scenario.shape.rate) = (host_rate, rate);
            let mut run = Run::new(&Scenario { flows: 1, ..scenario }).expect("a scenario");
            run.calendar = Calendar::new();
            run.start(0, 4, u64::from(packets) * u64::from(DATA_BYTES));
            while run.advance(1_000_000) {}
            let time = run.transfers[0].ended_at.expect("it ends") - run.transfers[0].arrived_at;
            let ratio = time as f64 / run.unloaded_ns(packets) as f64;
            assert!((0.97..1.03).contains(&ratio), "{packets} packets at {host_rate}/{rate}: {ratio}");
        }
    }
}

/// On one link, long flows share capacity as in M/G/1 with processor sharing: they take 1 / (1 - load) times
/// as long as alone, regardless of the size distribution (Kleinrock, Queueing Systems II, 4.4).
#[test]
fn long_flows_on_one_link_share_it_as_processor_sharing_does() {
    for (percent, expected) in [(30.0, 1.43), (50.0, 2.0)] {
        let mut scenario = scenario("ecmp");
        scenario.shape = Shape { leaves: 2, spines: 1, hosts: 32, host_rate: 40.0, ..scenario.shape };
        (scenario.percent, scenario.flows) = (percent, 3000);
        let outcome = ran(&scenario).outcome();
        let mean = outcome.slowdowns.large.mean().expect("large flows");
        assert!((mean / expected - 1.0).abs() < 0.15, "{percent} %: {mean}, {expected} expected");
    }
}

#[test]
fn bad_scenarios_say_which_option_is_wrong() {
    let says = |change: fn(&mut Scenario), text: &str| {
        let mut scenario = scenario("ecmp");
        change(&mut scenario);
        let error = format!("{:#}", Run::new(&scenario).err().expect("an error"));
        assert!(error.contains(text), "{error}");
    };
    says(|scenario| scenario.percent = 0.0, "--load");
    says(|scenario| scenario.flows = 0, "--flows");
    says(|scenario| scenario.shape.spines = 0, "--spines");
    says(|scenario| scenario.shape.rate = f64::NAN, "--rate");
    says(|scenario| scenario.shape.leaves = 1, "--leaves");
    says(|scenario| scenario.faults = vec![Fault::Cut(0, 9)], "--fault cut:0-9: there is no spine 9");
    says(
        |scenario| scenario.faults = (0..4).map(|spine| Fault::Cut(1, spine)).collect(),
        "no path is left between leaf 0 and leaf 1",
    );
}
