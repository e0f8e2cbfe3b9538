//! `weir lab path` for real: weir at both ends of a tunnel over four links. It must leave nothing behind.
//!
//! Needs root. Without root the tests are skipped, except in CI, where they fail: a skipped test proves
//! nothing.

mod lab;

use lab::{Lab, may_run};
use rustix::process::Signal;
use serde_json::Value;

/// Schemes and txrehash of rows in the order in which they are printed: without the elephant, then with it.
const ARMS: [(&str, u64); 5] = [("ecmp", 0), ("ecmp", 1), ("doca_ar", 0), ("adaptive", 1), ("one_sided", 1)];

#[test]
fn every_scheme_carries_every_message() {
    let Some(_alone) = may_run() else { return };
    let (result, stderr_text, _) = lab::run(&["path", "--one-sided", "--runs", "1", "--entries", "50000"]);
    let rows = result["rows"].as_array().expect("rows");
    let arm =
        |row: &'_ Value| (row["scheme"].as_str().expect("a scheme").to_owned(), row["txrehash"].clone());
    let arms: Vec<_> = rows.iter().map(arm).collect();
    let expected =
        [ARMS, ARMS].concat().into_iter().map(|(scheme, rehash)| (scheme.to_owned(), rehash.into()));
    assert_eq!(arms, expected.collect::<Vec<_>>(), "{stderr_text}");
    // Times depend on the machine, so a human has to judge them. This only asserts that every flow finished
    // where nothing blocks it, and that with the adaptive scheme weir found the paths, which the lab waits
    // for.
    for row in rows {
        assert_eq!(row["runs"], 1, "{row}; {stderr_text}");
        // A flow that times out counts as 20 s, which is allowed only while the elephant is present.
        let max = row["maxfct_ms"]["max"].as_f64().unwrap_or_default();
        assert!(max > 0.0 && (max < 20_000.0 || row["elephant_starts"] != "never"), "{row}; {stderr_text}");
    }
    // The lab itself fails if the reload has restarted the app, or if a flow of `one_sided` has left, without
    // a pause, a path that worked. How many flows moved otherwise depends on the machine.
    assert_eq!(result["reload"]["entries"], 50_000, "{stderr_text}");
}

#[test]
fn an_interrupted_lab_leaves_nothing_behind() {
    let Some(_alone) = may_run() else { return };
    let mut lab = Lab::start(&["path", "--runs", "100"]);
    assert_eq!(lab.end(Signal::INT).code(), Some(130));
    lab.assert_nothing_is_left();
}
