//! `weir lab bond` for real: against an Open vSwitch that speaks LACP. It must leave nothing behind.
//!
//! Needs root and Open vSwitch. Without root the tests are skipped, except in CI, where they fail: a skipped
//! test proves nothing.

mod lab;

use lab::{Lab, may_run};
use rustix::process::Signal;

/// The phases, in order.
const PHASES: [&str; 23] = [
    "steady over two links",
    "TCP over two links",
    "two links become four",
    "steady over four links",
    "TCP over four links",
    "a link is cut",
    "the link is mended",
    "a member is removed",
    "the member is added again",
    "LACP falls silent on a link",
    "LACP speaks again",
    "a link has a different key",
    "a link leads to another system",
    "the partner is passive and slow",
    "weir is passive and slow",
    "the partner restarts",
    "the partner has a different key",
    "weir restarts",
    "another weir is taking over",
    "a probed partner falls silent",
    "the probed partner answers again",
    "a probed partner falls silent in a VLAN",
    "the probed partner answers again in a VLAN",
];

#[test]
fn links_come_and_go_and_both_ends_restart() {
    let Some(_alone) = may_run() else { return };
    let (result, stderr_text, _) = lab::run(&["bond", "--seconds", "1", "--cuts", "2"]);
    let phases = result["phases"].as_array().expect("phases");
    let names: Vec<&str> = phases.iter().map(|phase| phase["name"].as_str().expect("a name")).collect();
    assert_eq!(names, PHASES, "{stderr_text}");
    // Durations and losses depend on the machine, so a human has to judge them. This only asserts that every
    // phase finished and that every flow of packets continued after it.
    for phase in phases {
        let reasons = phase["reasons"].as_array().expect("reasons");
        assert!(!reasons.iter().any(|reason| reason == "a flow did not resume"), "{phase}; {stderr_text}");
        // TCP phases count bytes, not packets.
        match (phase["sent"].as_u64(), phase["lost"].as_u64()) {
            (Some(sent), Some(lost)) => assert!(sent > lost, "{phase}; {stderr_text}"),
            _ => assert!(phase["mbps"].as_f64() > Some(0.0), "{phase}; {stderr_text}"),
        }
    }
}

#[test]
fn an_interrupted_lab_leaves_nothing_behind() {
    let Some(_alone) = may_run() else { return };
    let mut lab = Lab::start(&["bond", "--seconds", "60"]);
    assert_eq!(lab.end(Signal::INT).code(), Some(130));
    lab.assert_nothing_is_left();
}
