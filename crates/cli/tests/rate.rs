//! `weir bench rate` over interfaces: it finds a rate between two veth pairs, and leaves nothing behind.
//!
//! Needs root. Without root the test is skipped, except in CI, where it fails: a skipped test proves nothing.

mod folder;

use folder::Folder;
use serde_json::Value;
use std::process::{Command, Output, Stdio};

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

/// A network namespace with two veth pairs, f0-w0 and f1-w1, in which the kernel sends nothing by itself.
struct Namespace(String);

impl Namespace {
    fn new() -> Namespace {
        let namespace = Namespace(format!("weir-rate-{}", std::process::id()));
        ip(&["netns", "add", &namespace.0]);
        let quiet = "net.ipv6.conf.default.disable_ipv6=1";
        ip(&["netns", "exec", &namespace.0, "sysctl", "-qw", quiet]);
        for (far, near) in [("f0", "w0"), ("f1", "w1")] {
            ip(&["-n", &namespace.0, "link", "add", far, "type", "veth", "peer", "name", near]);
            ip(&["-n", &namespace.0, "link", "set", far, "up"]);
            ip(&["-n", &namespace.0, "link", "set", near, "up"]);
        }
        namespace
    }

    /// Asserts that no process is in it, and no program on an interface.
    fn assert_is_clean(&self) {
        assert_eq!(ip(&["netns", "pids", &self.0]), "");
        let links = ip(&["-n", &self.0, "link"]);
        assert!(links.contains("w1") && !links.contains("xdp"), "{links}");
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).output();
    }
}

fn ip(arguments: &[&str]) -> String {
    let output = Command::new("ip").args(arguments).output().expect("iproute2 is installed");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_rate_is_found_between_veth_pairs_and_nothing_is_left() {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("CI").is_none(), "namespaces need root, and CI does not skip them");
        eprintln!("skipped: namespaces need root");
        return;
    }
    let (folder, namespace) = (Folder::new(), Namespace::new());
    let file = folder.write("through.yaml", CONFIGURATION);
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &namespace.0, env!("CARGO_BIN_EXE_weir"), "bench", "rate"]);
    command
        .current_dir(folder.path())
        .arg(file)
        .args(["--from", "f0", "--to", "f1", "--flows", "1000", "--quick", "--json"]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // `ip netns exec` becomes the program, so that the run's folder has this number.
    let run = format!("/run/weir/lab/{}", child.id());
    let Output { stdout, stderr, status } = child.wait_with_output().expect("it ends");
    let (out, stderr_text) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    namespace.assert_is_clean();
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
