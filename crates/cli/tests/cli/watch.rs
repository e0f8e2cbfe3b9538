//! `weir show --watch`: rates beside totals, block by block, and an end without noise.

use super::TWO;
use super::running::Daemon;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

const EVEN: &str = "src=192.0.2.2 dst=10.0.0.53";

/// Starts `weir show WHAT --watch 0.1` against a daemon, with its output in pipes.
fn watch(daemon: &Daemon, arguments: &[&str]) -> Child {
    // A test suite in the background of a shell ignores SIGINT, which its children inherit.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", env!("CARGO_BIN_EXE_weir"), "show"]).args(arguments).args([
        "--watch",
        "0.1",
        "--socket",
        "weir.sock",
    ]);
    command.current_dir(daemon.folder.path()).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("weir runs")
}

fn noise(child: &mut Child) -> String {
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    said
}

#[test]
fn rates_are_beside_totals_and_sigint_ends_it_quietly() {
    let daemon = Daemon::start(TWO);
    let mut child = watch(&daemon, &["counters"]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let first: Vec<String> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
    assert!(first[0] == "counters" && first.iter().all(|line| !line.contains("/s")), "{first:?}");
    daemon.receive(&[EVEN; 3]);
    let even = lines.find(|line| line.contains("even") && line.contains("/s"));
    let words: Vec<String> = even.unwrap().split_whitespace().map(str::to_string).collect();
    assert!(words[1].parse::<u64>().is_ok() && words[2].starts_with('+'), "{words:?}");
    // Nothing arrives any more: only totals.
    let all = |line: &String| line.split_whitespace().take(2).eq(["even", "3"]);
    lines.find(|line| all(line) && !line.contains("/s")).unwrap();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!((child.wait().unwrap().signal(), noise(&mut child).as_str()), (Some(2), ""));
}

#[test]
fn it_ends_quietly_when_its_reader_goes() {
    let daemon = Daemon::start(TWO);
    let mut child = watch(&daemon, &[]);
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    reader.read_line(&mut String::new()).unwrap();
    drop(reader);
    assert_eq!((child.wait().unwrap().signal(), noise(&mut child).as_str()), (Some(13), ""));
}

#[test]
fn json_is_one_answer_a_line() {
    let daemon = Daemon::start(TWO);
    let mut child = watch(&daemon, &["ledger", "--json"]);
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().take(3);
    for line in lines {
        let answer: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
        assert!(answer["ledger"]["received"].is_u64(), "{answer}");
    }
    child.wait().unwrap();
}

#[test]
fn it_ends_with_the_daemon_and_refuses_nonsense() {
    let mut daemon = Daemon::start(TWO);
    let mut child = watch(&daemon, &["ledger"]);
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
    daemon.signal(Signal::TERM);
    daemon.end();
    let mut rest = String::new();
    child.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
    let noise = noise(&mut child);
    assert!(child.wait().unwrap().code() == Some(1) && noise.starts_with("weir: "), "{noise}");
    for wrong in ["0", "ports"] {
        let said = daemon.weir(&["show", "--watch", wrong]);
        assert!(said.code == Some(2) && said.err.contains("0.1 to 86400 seconds"), "{}", said.err);
    }
}
