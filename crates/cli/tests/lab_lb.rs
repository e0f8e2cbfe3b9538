//! `weir lab lb` for real: connections and flows stay with their back ends while others are added, removed
//! and die, and while weir is upgraded, restarted and killed; every mode responds. It must leave nothing
//! behind.
//!
//! Needs root. Without root the tests are skipped, except in CI, where they fail: a skipped test proves
//! nothing.

mod lab;

use lab::{Lab, may_run};
use rustix::process::Signal;

const PHASES: [&str; 11] = [
    "steady",
    "add_back_end",
    "drain",
    "kill_back_end",
    "back_end_returns",
    "mac_moves",
    "weights",
    "reloads",
    "restart",
    "takeover",
    "kill_weir",
];
const MODES: [&str; 8] = ["l2", "ipip", "gue", "gre", "vxlan", "nat", "full_nat", "mixed"];

/// Asserts the promises, using only the stable output.
#[test]
fn no_flow_breaks_whatever_happens_to_other_back_ends_and_every_mode_answers() {
    let Some(_alone) = may_run() else { return };
    let (result, stderr_text, status) =
        lab::run(&["lb", "--seconds", "0.5", "--flows", "4", "--reloads", "12"]);
    let phases = result["phases"].as_array().expect("phases");
    let names: Vec<&str> = phases.iter().filter_map(|phase| phase["name"].as_str()).collect();
    let modes = MODES.iter().flat_map(|mode| ["v4", "v6"].map(|family| format!("{mode}_{family}")));
    let expected: Vec<String> = PHASES.iter().map(ToString::to_string).chain(modes).collect();
    assert_eq!(names, expected, "{stderr_text}");
    for phase in phases {
        assert_eq!((&phase["ok"], &phase["broken"]), (&true.into(), &0.into()), "{phase}; {stderr_text}");
        assert!(phase["requests"].as_u64() > Some(0), "{phase}; {stderr_text}");
        let dies = phase["name"] == "kill_back_end";
        assert_eq!(phase["detect_ms"].as_f64().is_some_and(|ms| ms > 0.0), dies, "{phase}; {stderr_text}");
        assert_eq!(
            phase["moved_share"].as_f64().is_some_and(|share| share > 0.0),
            dies,
            "{phase}; {stderr_text}"
        );
    }
    assert!(status.success(), "{stderr_text}");
}

#[test]
fn an_interrupted_lab_leaves_nothing_behind() {
    let Some(_alone) = may_run() else { return };
    let mut lab = Lab::start(&["lb"]);
    assert_eq!(lab.end(Signal::INT).code(), Some(130));
    lab.assert_nothing_is_left();
}
