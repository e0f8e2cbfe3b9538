//! `weir lab lb` for real: connections and flows stay with their back ends while these come, go and die, and
//! while another weir takes over. It must leave nothing behind.
//!
//! Needs root. Without root the tests are skipped, except in CI, where they fail: a skipped test proves
//! nothing.

mod lab;

use lab::{Lab, may_run};
use rustix::process::Signal;

const PHASES: [&str; 9] = [
    "steady",
    "add_back_end",
    "drain",
    "kill_back_end",
    "back_end_returns",
    "mac_moves",
    "weights",
    "reloads",
    "takeover",
];

/// Asserts what is promised, from the stable output alone.
fn assert_no_flow_breaks(arguments: &[&str]) {
    let (result, told, status) = lab::run(&[&["lb", "--seconds", "1"], arguments].concat());
    let phases = result["phases"].as_array().expect("phases");
    let names: Vec<&str> = phases.iter().filter_map(|phase| phase["name"].as_str()).collect();
    assert_eq!(names, PHASES, "{told}");
    for phase in phases {
        assert_eq!((&phase["ok"], &phase["broken"]), (&true.into(), &0.into()), "{phase}; {told}");
        assert!(phase["requests"].as_u64() > Some(0), "{phase}; {told}");
        let dies = phase["name"] == "kill_back_end";
        assert_eq!(phase["detect_ms"].as_f64().is_some_and(|ms| ms > 0.0), dies, "{phase}; {told}");
        assert_eq!(phase["moved_share"].as_f64().is_some_and(|share| share > 0.0), dies, "{phase}; {told}");
    }
    assert!(status.success(), "{told}");
}

#[test]
fn no_flow_breaks_whatever_happens_to_other_back_ends() {
    let Some(_alone) = may_run() else { return };
    assert_no_flow_breaks(&[]);
}

#[test]
fn no_flow_breaks_behind_a_tunnel() {
    let Some(_alone) = may_run() else { return };
    assert_no_flow_breaks(&["--mode", "ipip"]);
}

#[test]
fn an_interrupted_lab_leaves_nothing_behind() {
    let Some(_alone) = may_run() else { return };
    let mut lab = Lab::start(&["lb"]);
    assert_eq!(lab.end(Signal::INT).code(), Some(130));
    lab.assert_nothing_is_left();
}
