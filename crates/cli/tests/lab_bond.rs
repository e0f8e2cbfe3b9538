//! The bond, for real: `weir lab bond` against an Open vSwitch that speaks LACP, and nothing of it is left behind.
//!
//! Needs root and Open vSwitch. Without root the tests do nothing, except in CI, where they fail: a skipped test proves
//! nothing.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Labs measure: one at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Every phase, in order.
const PHASES: [&str; 17] = [
    "steady over two links",
    "TCP over two links",
    "two links become four",
    "steady over four links",
    "TCP over four links",
    "a link is cut",
    "the link is mended",
    "a member is removed",
    "the member is added again",
    "LACP falls silent on a link",
    "LACP speaks again",
    "a link has another key",
    "a link leads to another system",
    "the partner is passive and slow",
    "weir is passive and slow",
    "the partner restarts",
    "weir restarts",
];

fn may_run() -> Option<MutexGuard<'static, ()>> {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("CI").is_none(), "labs need root, and CI does not skip them");
        eprintln!("skipped: labs need root");
        return None;
    }
    Some(ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner))
}

fn lab(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["lab", "bond"]).args(arguments).stdin(Stdio::null());
    command
}

#[test]
fn links_come_and_go_and_both_ends_restart() {
    let Some(_alone) = may_run() else { return };
    let output = lab(&["--seconds", "2", "--cuts", "5", "--json"]).output().expect("the lab runs");
    let (text, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let last = text.lines().last().unwrap_or_else(|| panic!("{}: nothing printed; {told}", output.status));
    let result: Value = serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {last}; {told}"));
    let phases = result["phases"].as_array().expect("phases");
    let names: Vec<&str> = phases.iter().map(|phase| phase["name"].as_str().expect("a name")).collect();
    assert_eq!(names, PHASES, "{told}");
    // How long things take, and what a busy machine loses on the way, is for the lab to say and for people to judge: here
    // every phase came to its end, and packets went on after it.
    for phase in phases {
        // TCP counts what it carried, not packets.
        match (phase["sent"].as_u64(), phase["lost"].as_u64()) {
            (Some(sent), Some(lost)) => assert!(sent > lost, "{phase}; {told}"),
            _ => assert!(phase["mbps"].as_f64() > Some(0.0), "{phase}; {told}"),
        }
    }
}

/// A lab in its first phase, and the processes it has started.
fn lab_at_work() -> (Child, Vec<u32>) {
    let mut command = lab(&["--seconds", "60"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the lab runs");
    let deadline = Instant::now() + Duration::from_secs(30);
    while Instant::now() < deadline {
        // The lab itself, then database, switch, weir, receiver, sender.
        if let [_, started @ ..] = recorded(child.id()).as_slice()
            && started.len() >= 5
        {
            return (child, started.to_vec());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    send(&child, Signal::TERM);
    panic!("the lab did not start its stream: {:?}", child.wait());
}

fn folder(id: u32) -> String {
    format!("/run/weir/lab/{id}")
}

fn recorded(id: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("{}/processes", folder(id))).unwrap_or_default();
    text.lines().filter_map(|line| line.split(' ').next()?.parse().ok()).collect()
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).expect("the lab is there");
}

#[test]
fn an_interrupted_lab_leaves_nothing_behind() {
    let Some(_alone) = may_run() else { return };
    let (mut child, processes) = lab_at_work();
    send(&child, Signal::INT);
    let status = child.wait().expect("the lab ends");
    assert_eq!(status.code(), Some(130));
    let prefix = format!("weir-{}-", child.id());
    let namespaces = fs::read_dir("/run/netns").into_iter().flatten().flatten().map(|entry| entry.file_name());
    let left: Vec<_> = namespaces.filter(|name| name.to_string_lossy().starts_with(&prefix)).collect();
    assert!(left.is_empty(), "namespaces are left: {left:?}");
    assert!(!Path::new(&folder(child.id())).exists(), "its folder is left");
    for pid in processes {
        // Whoever adopted an ended process may not have waited for it yet: state Z.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        assert!(stat.is_empty() || stat.contains(") Z "), "a process is left: {stat}");
    }
}
