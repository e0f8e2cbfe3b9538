//! The part of the conformance suite of the Gateway API that needs no running pods.

use std::process::Command;

/// Runs the suite, which prints what it does not run, and why.
pub fn holds() {
    let mut suite = Command::new(std::env::var("KUBE_CONFORMANCE").unwrap());
    // Tests of routes count as tests of `Gateway`, which weir-kube does not claim.
    let features = "Gateway,ReferenceGrant,TCPRoute,UDPRoute";
    suite.args(["-test.v", "-gateway-class", "weir", "-supported-features", features]);
    let output = suite.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let all = text.lines().map(str::trim_start);
    let lines = all.filter(|line| line.starts_with("--- ") || line.contains("not run: "));
    lines.for_each(|line| println!("conformance: {line}"));
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{words}");
}
