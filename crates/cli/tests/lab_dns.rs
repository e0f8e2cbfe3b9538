//! The main job, for real: `weir lab dns` loses nothing, balances, shares evenly, and leaves nothing behind.
//!
//! Needs root. Without it the tests do nothing, except in CI, where they fail: a skipped test proves nothing.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Labs measure: one at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

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
    command.args(["lab", "dns"]).args(arguments).stdin(Stdio::null());
    command
}

/// The JSON object on the last line; the whole output if anything is wrong.
fn result(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    let told = String::from_utf8_lossy(&output.stderr);
    let last = text.lines().last().unwrap_or_else(|| panic!("{}: nothing printed; {told}", output.status));
    let result: Value = serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {last}; {told}"));
    assert!(output.status.success() && result["ok"] == true, "{}: {}; {told}", output.status, result["reasons"]);
    result
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a count"))
}

fn sum(frames: &Value, names: &[&str]) -> u64 {
    names.iter().map(|name| count(&frames[name])).sum()
}

/// Asserts what the lab itself asserts too, from its stable output alone.
fn assert_all_is_well(result: &Value, sent_at_least: u64) {
    let sent = count(&result["queries_sent"]);
    assert!(sent >= sent_at_least, "{sent} queries sent");
    assert_eq!(sent, count(&result["queries_answered"]));
    assert_eq!(result["direct"]["queries_sent"], result["direct"]["queries_answered"]);
    assert!(count(&result["latency_us"]["p50"]) > 0 && count(&result["direct"]["latency_us"]["p99"]) > 0);

    let frames = &result["frames"];
    let dropped: u64 = frames["dropped"].as_object().expect("dropped is by reason").values().map(count).sum();
    let went = sum(frames, &["transmitted", "to_kernel", "to_app", "held"]) + dropped;
    assert_eq!(sum(frames, &["received", "originated", "copied"]), went);
    assert_eq!(dropped, 0);
    assert_eq!(frames["received"], result["witness"]["xdp_taken"]);
    let packets = result["backends"].as_array().expect("back ends").iter().map(|at| count(&at["packets"]));
    assert_eq!(packets.sum::<u64>(), sent);
}

#[test]
fn every_query_is_answered_and_every_frame_accounted_for() {
    let Some(_alone) = may_run() else { return };
    let output = lab(&["--seconds", "3", "--rate", "2000", "--json"]).output().expect("the lab runs");
    let result = result(&output);
    assert_all_is_well(&result, 5000);
    let sent = count(&result["queries_sent"]) as f64;
    // Every query is a flow of its own: each third is binomial.
    let sigma = (sent * 2.0 / 9.0).sqrt();
    for back_end in result["backends"].as_array().expect("back ends") {
        let packets = count(&back_end["packets"]) as f64;
        assert!((packets - sent / 3.0).abs() < 5.0 * sigma, "{back_end}: of {sent}");
    }
}

#[test]
fn two_queues_have_two_workers() {
    let Some(_alone) = may_run() else { return };
    let output = lab(&["--seconds", "2", "--rate", "2000", "--workers", "2", "--json"]).output().expect("the lab runs");
    let result = result(&output);
    assert_all_is_well(&result, 3500);
    let received: Vec<u64> = result["received_by_worker"].as_array().expect("a list").iter().map(count).collect();
    assert_eq!(received.len(), 2);
    // The kernel spreads flows over the queues: each gets about half.
    assert!(received.iter().all(|&frames| frames > 1000), "{received:?}");
}

#[test]
fn nothing_is_lost_while_configurations_alternate() {
    let Some(_alone) = may_run() else { return };
    let arguments = ["--seconds", "4", "--rate", "2000", "--reloads", "20", "--json"];
    let result = result(&lab(&arguments).output().expect("the lab runs"));
    assert_eq!(result["reloads"], 20);
    assert_all_is_well(&result, 6000);
}

/// A lab in the middle of its load, and the processes it has started.
fn lab_at_work() -> (Child, Vec<u32>) {
    let mut command = lab(&["--seconds", "20"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the lab runs");
    let deadline = Instant::now() + Duration::from_secs(20);
    while Instant::now() < deadline {
        // The lab itself first, then three name servers, the clients, dnsperf.
        let processes = recorded(child.id());
        if let [_, started @ ..] = processes.as_slice()
            && started.len() >= 5
        {
            return (child, started.to_vec());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    send(&child, Signal::TERM);
    panic!("the lab did not start its load: {:?}", child.wait());
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

fn assert_nothing_is_left(id: u32, processes: &[u32]) {
    let prefix = format!("weir-{id}-");
    let namespaces = fs::read_dir("/run/netns").into_iter().flatten().flatten().map(|entry| entry.file_name());
    let left: Vec<_> = namespaces.filter(|name| name.to_string_lossy().starts_with(&prefix)).collect();
    assert!(left.is_empty(), "namespaces are left: {left:?}");
    assert!(!Path::new(&folder(id)).exists(), "{} is left", folder(id));
    for pid in processes {
        // Whoever adopted an ended process may not have waited for it yet: state Z.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        assert!(stat.is_empty() || stat.contains(") Z "), "a process is left: {stat}");
    }
}

#[test]
fn an_interrupted_lab_leaves_nothing_behind() {
    let Some(_alone) = may_run() else { return };
    for signal in [Signal::INT, Signal::TERM] {
        let (mut child, processes) = lab_at_work();
        send(&child, signal);
        let status = child.wait().expect("the lab ends");
        assert_eq!(status.code(), Some(130));
        assert_nothing_is_left(child.id(), &processes);
    }
}

#[test]
fn what_a_killed_lab_leaves_is_removed_by_the_next() {
    let Some(_alone) = may_run() else { return };
    let (mut child, processes) = lab_at_work();
    send(&child, Signal::KILL);
    child.wait().expect("the lab ends");
    assert!(Path::new(&folder(child.id())).exists(), "a lab killed by SIGKILL cannot clean up");
    let (mut next, its) = lab_at_work();
    assert_nothing_is_left(child.id(), &processes);
    send(&next, Signal::INT);
    next.wait().expect("the lab ends");
    assert_nothing_is_left(next.id(), &its);
}
