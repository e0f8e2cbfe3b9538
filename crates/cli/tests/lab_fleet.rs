//! `weir lab fleet` for real: connections through three nodes behind a router survive when a node is killed,
//! added, drained and upgraded, if nodes need no state for them; otherwise only those break whose node has
//! changed. It must leave nothing behind.
//!
//! Needs root. Without root the tests are skipped, except in CI, where they fail: a skipped test proves
//! nothing.

mod lab;

use lab::{Lab, may_run};
use rustix::process::Signal;

const PHASES: [&str; 4] = ["node_killed", "node_added", "node_drained", "node_upgraded"];
const KEYS: [&str; 7] = ["name", "mode", "ok", "requests", "failures", "broken", "detour_ms"];

/// Asserts the promises, using only the stable output.
#[test]
fn connections_survive_changes_of_the_fleet_if_nodes_have_no_state_of_them() {
    let Some(_alone) = may_run() else { return };
    let (result, stderr_text, status) =
        lab::run(&["fleet", "--short", "--connections", "60", "--rate", "60"]);
    let phases = result["phases"].as_array().expect("phases");
    let names: Vec<_> =
        phases.iter().filter_map(|phase| Some((phase["mode"].as_str()?, phase["name"].as_str()?))).collect();
    let expected: Vec<_> =
        ["ipip", "full_nat"].into_iter().flat_map(|mode| PHASES.map(|name| (mode, name))).collect();
    assert_eq!(names, expected, "{stderr_text}");
    for phase in phases {
        let keys: Vec<_> = phase.as_object().expect("an object").keys().collect();
        assert_eq!(keys, KEYS, "{phase}");
        assert_eq!(phase["ok"], true, "{phase}; {stderr_text}");
        assert!(phase["requests"].as_u64() > Some(0), "{phase}; {stderr_text}");
        let leaves = phase["name"] == "node_killed" || phase["name"] == "node_drained";
        let breaks = phase["broken"].as_u64() > Some(0);
        assert_eq!(breaks, leaves && phase["mode"] == "full_nat", "{phase}; {stderr_text}");
        assert!(!leaves || phase["detour_ms"].as_f64() > Some(0.0), "{phase}; {stderr_text}");
        if phase["mode"] == "ipip" {
            assert_eq!(phase["failures"], 0, "{phase}; {stderr_text}");
        }
    }
    assert!(status.success(), "{stderr_text}");
}

#[test]
fn an_interrupted_lab_leaves_nothing_behind() {
    let Some(_alone) = may_run() else { return };
    let mut lab = Lab::start(&["fleet", "--mode", "l2"]);
    assert_eq!(lab.end(Signal::INT).code(), Some(130));
    lab.assert_nothing_is_left();
}
