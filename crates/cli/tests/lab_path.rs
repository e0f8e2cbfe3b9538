//! `weir lab path` for real: weir at both ends of a tunnel over four links. It must leave nothing behind.
//!
//! Needs root. Without root the tests are skipped, except in CI, where they fail: a skipped test proves
//! nothing.

mod lab;

use lab::{Lab, may_run};
use rustix::process::Signal;

/// Rows in the order in which they are printed: without the elephant, then with it.
const SCHEMES: [&str; 4] = ["ecmp", "ecmp_rehash", "doca_ar", "adaptive"];

#[test]
fn every_scheme_carries_every_message() {
    let Some(_alone) = may_run() else { return };
    let (result, told, _) = lab::run(&["path", "--runs", "1"]);
    let rows = result["rows"].as_array().expect("rows");
    let schemes: Vec<&str> = rows.iter().map(|row| row["scheme"].as_str().expect("a scheme")).collect();
    assert_eq!(schemes, [SCHEMES, SCHEMES].concat(), "{told}");
    // Times depend on the machine and are for people to judge. Asserted here is that every flow ended, and
    // that with the adaptive scheme weir found the paths, which the lab waits for.
    for row in rows {
        assert_eq!(row["runs"], 1, "{row}; {told}");
        assert!(row["maxfct_ms"]["max"].as_f64() > Some(0.0), "{row}; {told}");
    }
}

#[test]
fn an_interrupted_lab_leaves_nothing_behind() {
    let Some(_alone) = may_run() else { return };
    let mut lab = Lab::start(&["path", "--runs", "100"]);
    assert_eq!(lab.end(Signal::INT).code(), Some(130));
    lab.assert_nothing_is_left();
}
