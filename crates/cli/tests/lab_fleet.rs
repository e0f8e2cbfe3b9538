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
const KEYS: [&str; 11] = [
    "name",
    "mode",
    "ok",
    "requests",
    "failures",
    "broken",
    "detour_ms",
    "predicted",
    "moved",
    "unasked",
    "unasked_broken",
];

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
        let predicted = phase["predicted"].as_u64();
        if leaves && phase["unasked"] == serde_json::json!([]) {
            assert_eq!(predicted > Some(0), breaks, "{phase}; {stderr_text}");
        }
        assert!(!leaves || phase["detour_ms"].as_f64() > Some(0.0), "{phase}; {stderr_text}");
        if phase["mode"] == "ipip" {
            assert_eq!(phase["failures"], 0, "{phase}; {stderr_text}");
        }
    }
    assert!(status.success(), "{stderr_text}");
}

/// A route change that the lab did not ask for moves connections, which survive, here with IPv6.
#[test]
fn a_route_change_that_was_not_asked_for_is_reported_and_breaks_nothing() {
    let Some(_alone) = may_run() else { return };
    let options = ["--mode", "ipip", "--family", "6", "--phases", "steady", "--connections", "60"];
    let (result, stderr_text, status) = lab::run(
        &[&["fleet", "--rate", "60", "--seconds", "1", "--inject", "route_change"], &options[..]].concat(),
    );
    let [phase] = result["phases"].as_array().expect("phases").as_slice() else { panic!("{result}") };
    let changes: Vec<_> =
        phase["unasked"].as_array().expect("changes").iter().filter_map(|one| one.as_str()).collect();
    assert!(
        changes.iter().any(|one| one.starts_with("n4 left (BFD session down)")),
        "{phase}; {stderr_text}"
    );
    assert!(changes.iter().any(|one| one.starts_with("n4 joined")), "{phase}; {stderr_text}");
    assert!(phase["moved"].as_u64() > Some(0), "{phase}; {stderr_text}");
    assert_eq!((&phase["broken"], &phase["failures"]), (&0.into(), &0.into()), "{phase}; {stderr_text}");
    assert!(status.success(), "{stderr_text}");
}

#[test]
fn requests_at_a_back_end_that_all_nodes_say_is_down_are_a_fault() {
    let Some(_alone) = may_run() else { return };
    let options = ["--phases", "back_end_dies", "--connections", "60", "--inject", "late_requests"];
    let (result, stderr_text, status) =
        lab::run(&[&["fleet", "--mode", "l2", "--rate", "60", "--seconds", "1"], &options[..]].concat());
    assert_eq!(result["phases"][0]["ok"], false, "{result}; {stderr_text}");
    assert!(
        stderr_text.contains(" requests reached b2 after all nodes said that it was down"),
        "{stderr_text}"
    );
    assert_eq!(status.code(), Some(1), "{stderr_text}");
}

#[test]
fn an_interrupted_lab_leaves_nothing_behind() {
    let Some(_alone) = may_run() else { return };
    let mut lab = Lab::start(&["fleet", "--mode", "l2"]);
    assert_eq!(lab.end(Signal::INT).code(), Some(130));
    lab.assert_nothing_is_left();
}
