//! `weir lab overlay` for real: a cache on each of three nodes, while what it depends on changes. It must
//! deliver nothing to the wrong pod, and leave nothing behind.
//!
//! Needs root. Without root the tests are skipped, except in CI, where they fail: a skipped test proves
//! nothing.

mod lab;

use lab::{Lab, may_run};
use rustix::process::Signal;

#[test]
fn nothing_is_delivered_to_the_wrong_pod_whatever_changes() {
    let Some(_alone) = may_run() else { return };
    let (result, stderr_text, status) = lab::run(&["overlay"]);
    let phases = result["phases"].as_array().expect("phases");
    assert_eq!(phases.len(), 27, "{stderr_text}");
    for phase in phases {
        assert_eq!(
            (&phase["ok"], &phase["misdelivered"]),
            (&true.into(), &0.into()),
            "{phase}; {stderr_text}"
        );
        assert!(phase["sent"].as_u64() > Some(0), "{phase}; {stderr_text}");
    }
    assert!(status.success(), "{stderr_text}");
}

#[test]
fn an_interrupted_lab_leaves_nothing_behind() {
    let Some(_alone) = may_run() else { return };
    let mut lab = Lab::start(&["overlay"]);
    assert_eq!(lab.end(Signal::INT).code(), Some(130));
    lab.assert_nothing_is_left();
}
