//! `weir bench rate` over interfaces: it finds a rate between two veth pairs, and leaves nothing behind.
//!
//! Needs root. Without root the test is skipped, except in CI, where it fails: a skipped test proves nothing.

mod folder;

use folder::Folder;
use serde_json::Value;
use std::process::{Output, Stdio};
use weir_bed::{Namespace, Run, cable, namespace};

/// Forwards every frame from one interface to the other.
const CONFIGURATION: &str = "
ports:
  in: { xdp: w0, take: all, promisc: true, root: through }
  out: { xdp: w1 }
pipes:
  through: { type: basic, forward: out, miss: out }
";

/// The message of `bench rate` if a machine is too busy for any rate.
const BUSY: &str = "frames are lost at every rate";

/// Creates a network namespace with two veth pairs, f0-w0 and f1-w1, in which the kernel sends nothing by
/// itself.
fn pairs(run: &Run) -> Namespace {
    let namespace = run.namespace("rate").unwrap();
    for (far, near) in [("f0", "w0"), ("f1", "w1")] {
        cable(None, &namespace.end(far), &namespace.end(near)).unwrap();
    }
    namespace
}

/// Asserts that no process is in a namespace, and no program on an interface.
fn assert_is_clean(namespace: &Namespace) {
    assert_eq!(namespace::output("ip", &["netns", "pids", namespace.name()]).unwrap(), "");
    let links = namespace::output("ip", &["-n", namespace.name(), "link"]).unwrap();
    assert!(links.contains("w1") && !links.contains("xdp"), "{links}");
}

#[test]
fn a_rate_is_found_between_veth_pairs_and_nothing_is_left() {
    let Some(bed) = Run::of_test("rate") else { return };
    let (folder, namespace) = (Folder::new(), pairs(&bed));
    let file = folder.write("through.yaml", CONFIGURATION);
    let mut command = namespace.command(env!("CARGO_BIN_EXE_weir"));
    command
        .current_dir(folder.path())
        .args(["bench", "rate"])
        .arg(file)
        .args(["--from", "f0", "--to", "f1", "--flows", "1000", "--quick", "--json"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // `ip netns exec` becomes the program, so that the run's folder has this number.
    let run = format!("/run/weir/lab/{}", child.id());
    let Output { stdout, stderr, status } = child.wait_with_output().expect("it ends");
    let (out, stderr_text) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert_is_clean(&namespace);
    assert!(!std::path::Path::new(&run).exists(), "{run} is left");
    if stderr_text.contains(BUSY) {
        eprintln!("the machine is too busy for a rate: {stderr_text}");
        return;
    }
    assert!(status.success(), "{status}: {stderr_text}");
    let found: Value = serde_json::from_str(out.lines().last().expect("a line")).expect("a JSON object");
    let number = |key: &str| found[key].as_f64().unwrap_or_else(|| panic!("no `{key}`: {found}"));
    // The traffic was sent at this rate, or at less where other programs had the processor.
    assert!(number("rate_without_loss") > 0.0 && number("packets") > 0.0, "{found}");
    assert!(number("measured_at") < 1.1 * number("rate_without_loss"), "{found}");
    assert!(number("packet_ns") > 0.0 && number("breaths") > 0.0, "{found}");
}
