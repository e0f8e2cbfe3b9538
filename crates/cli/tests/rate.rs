//! `weir bench rate` over interfaces: it finds a rate between two veth pairs, and leaves nothing behind.
//!
//! Needs root. Without root the test is skipped, except in CI, where it fails: a skipped test proves nothing.

mod folder;

use folder::Folder;
use serde_json::Value;
use std::io::{BufRead, BufReader};
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

/// A sender in a namespace of its own searches the rate of a daemon in another one, over a control
/// connection, and then sends at given rates.
#[test]
fn a_sender_in_another_namespace_finds_a_rate() {
    let Some(bed) = Run::of_test("rate") else { return };
    let (folder, far) = (Folder::new(), bed.namespace("sender").unwrap());
    let near = bed.namespace("receiver").unwrap();
    for (one, other) in [(far.end("f0"), near.end("w0")), (near.end("f1"), near.end("w1"))] {
        cable(None, &one, &other).unwrap();
    }
    cable(None, &far.end("c0"), &near.end("c1")).unwrap();
    for (namespace, address, interface) in [(&far, "10.77.0.2/24", "c0"), (&near, "10.77.0.1/24", "c1")] {
        let line = ["-n", namespace.name(), "addr", "add", address, "dev", interface];
        namespace::output("ip", &line).unwrap();
    }
    let file = folder.write("through.yaml", CONFIGURATION);
    let mut receiver = near.command(env!("CARGO_BIN_EXE_weir"));
    receiver.args(["bench", "rate"]).arg(file);
    receiver.args(["--listen", "10.77.0.1:0", "--to", "f1", "--json"]).stdout(Stdio::piped());
    let mut receiver = receiver.spawn().unwrap();
    let mut lines = BufReader::new(receiver.stdout.take().unwrap()).lines();
    let line = lines.next().expect("it listens").unwrap();
    let address = line.strip_prefix("listening on ").unwrap_or_else(|| panic!("{line}")).to_owned();
    let send = |arguments: &[&str]| {
        let mut command = far.command(env!("CARGO_BIN_EXE_weir"));
        command.current_dir(folder.path()).args(["bench", "rate", "--receiver", &address, "--from", "f0"]);
        command.args(["--flows", "1000", "--quick", "--json"]).args(arguments);
        let Output { stdout, stderr, status } = command.output().unwrap();
        let err = String::from_utf8_lossy(&stderr).into_owned();
        (status, String::from_utf8_lossy(&stdout).into_owned(), err)
    };
    let (status, out, err) = send(&["--speeds", "1000,2000", "--repeats", "4", "--output", "trials.json"]);
    assert!(status.success(), "{status}: {out}{err}");
    let written = std::fs::read_to_string(folder.file("trials.json")).unwrap();
    let rows: Vec<Value> = written.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let rates: Vec<f64> = rows.iter().map(|row| row["rate"].as_f64().unwrap()).collect();
    assert_eq!(rates, [[1000.0; 4], [2000.0; 4]].concat(), "{written}");
    for row in &rows {
        assert!(row["sent"].as_u64().is_some_and(|sent| sent > 0), "{row}");
        assert!(row["packet_ns"].is_f64() && row["packet_ns_p99"].is_f64(), "{row}");
        assert!(row["lost"].as_u64() <= row["sent"].as_u64(), "{row}");
    }
    // At a thousand frames a second, nothing is lost unless the machine is very busy: once is enough.
    assert!(rows.iter().any(|row| row["lost"] == 0), "{written}");
    assert!(out.contains("lost; ") || out.contains(" lost"), "{out}");
    let (status, out, err) = send(&["--tolerate", "1024"]);
    if err.contains(BUSY) {
        eprintln!("the machine is too busy for a rate: {err}");
    } else {
        assert!(status.success(), "{status}: {out}{err}");
        let found: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
        assert!(found["rate_without_loss"].as_f64().is_some_and(|rate| rate > 0.0), "{found}");
        assert!(found["trials"].as_array().is_some_and(|trials| trials.len() > 1), "{found}");
    }
    // The receiver ends by a signal, and takes its daemon with it.
    namespace::output("kill", &["-TERM", &receiver.id().to_string()]).unwrap();
    lines.for_each(drop);
    receiver.wait().unwrap();
    for namespace in [&near, &far] {
        assert_eq!(namespace::output("ip", &["netns", "pids", namespace.name()]).unwrap(), "");
    }
}
