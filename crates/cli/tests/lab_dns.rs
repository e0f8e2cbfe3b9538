//! `weir lab dns` for real: it loses nothing, balances evenly, accounts for every frame, and leaves nothing
//! behind.
//!
//! Needs root. Without it the tests are skipped, except in CI, where they fail: a skipped test proves
//! nothing.

mod lab;

use lab::{Lab, may_run};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The result of a lab that succeeded.
fn result(arguments: &[&str]) -> Value {
    let (result, stderr_text, status) = lab::run(&[&["dns"], arguments].concat());
    assert!(status.success() && result["ok"] == true, "{status}: {}; {stderr_text}", result["reasons"]);
    result
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a count"))
}

fn sum(frames: &Value, names: &[&str]) -> u64 {
    names.iter().map(|name| count(&frames[name])).sum()
}

/// Asserts what the lab itself asserts, from its stable output alone.
fn assert_all_is_well(result: &Value, sent_at_least: u64) {
    for direct in ["direct", "direct_again"] {
        assert_eq!(result[direct]["queries_sent"], result[direct]["queries_answered"]);
        assert!(count(&result[direct]["latency_us"]["p99"]) > 0);
    }
    assert_eq!((&result["executor"], &result["engine"]["executor"]), (&"kernel".into(), &"engine".into()));
    for node in [result, &result["engine"]] {
        assert_all_is_counted(node, sent_at_least);
    }
    assert!(count(&result["kernel"]["decided"]) > 0, "{}", result["kernel"]);
    assert_eq!(result["engine"]["kernel"], json!({ "decided": 0, "given_up": {} }));
}

/// Asserts that each query through a node was answered, and its frame counted.
fn assert_all_is_counted(result: &Value, sent_at_least: u64) {
    let sent = count(&result["queries_sent"]);
    assert!(sent >= sent_at_least, "{sent} queries sent");
    assert_eq!(sent, count(&result["queries_answered"]));
    assert!(count(&result["latency_us"]["p50"]) > 0);

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
    let result = result(&["--seconds", "3", "--rate", "2000"]);
    assert_all_is_well(&result, 5000);
    for node in [&result, &result["engine"]] {
        let sent = count(&node["queries_sent"]) as f64;
        // Every query is a separate flow, so each back end's third is binomially distributed.
        let sigma = (sent * 2.0 / 9.0).sqrt();
        for back_end in node["backends"].as_array().expect("back ends") {
            let packets = count(&back_end["packets"]) as f64;
            assert!((packets - sent / 3.0).abs() < 5.0 * sigma, "{back_end}: of {sent}");
        }
    }
    // Without changes, the kernel decides every query.
    assert_eq!(result["kernel"], json!({ "decided": result["queries_sent"], "given_up": {} }));
    assert_eq!(result["busy"], 0);
}

#[test]
fn rounds_are_added_up_while_other_processes_keep_the_processors_busy() {
    let Some(_alone) = may_run() else { return };
    let result = result(&["--seconds", "1", "--rate", "1000", "--rounds", "2", "--busy", "2"]);
    assert_all_is_well(&result, 1600);
    assert_eq!(result["busy"], 2);
    for load in [&result, &result["engine"], &result["direct"]] {
        let rounds = load["latency_us"]["p99_of_rounds"].as_array().expect("a list");
        assert!(rounds.len() == 2 && rounds.contains(&load["latency_us"]["p99"]), "{load}");
    }
}

#[test]
fn two_queues_have_two_workers() {
    let Some(_alone) = may_run() else { return };
    let result = result(&["--seconds", "2", "--rate", "2000", "--workers", "2"]);
    assert_all_is_well(&result, 3500);
    let received: Vec<u64> =
        result["engine"]["received_by_worker"].as_array().expect("a list").iter().map(count).collect();
    assert_eq!(received.len(), 2);
    // The kernel spreads flows over the queues, so each gets about half.
    assert!(received.iter().all(|&frames| frames > 1000), "{received:?}");
}

#[test]
fn nothing_is_lost_while_configurations_alternate() {
    let Some(_alone) = may_run() else { return };
    // All of them have to fit into the time of the load, also on a busy machine.
    let result = result(&["--seconds", "4", "--rate", "2000", "--reloads", "5"]);
    assert_eq!(result["reloads"], 5);
    assert_all_is_well(&result, 6000);
}

/// A lab that is already under load.
fn lab_at_work() -> Lab {
    Lab::start(&["dns", "--seconds", "20"])
}

/// Returns the packets of all back ends, as a web page gets them.
fn packets_on(url: &str) -> u64 {
    let (address, token) = url.strip_prefix("http://").and_then(|url| url.split_once("/#token=")).unwrap();
    let mut stream = TcpStream::connect(address).expect("the page is reachable from the host");
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let head = format!("Host: weir\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\r\n");
    write!(stream, "GET /v1/show?what=backends HTTP/1.1\r\n{head}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let body = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer}")).1;
    let shown: Value = serde_json::from_str(body).unwrap_or_else(|why| panic!("{why}: {answer}"));
    let rows = shown["backends"].as_array().unwrap_or_else(|| panic!("{answer}"));
    rows.iter().map(|row| count(&row["packets"])).sum()
}

#[test]
fn a_kept_lab_has_web_pages_with_traffic_until_it_is_interrupted() {
    let Some(_alone) = may_run() else { return };
    let arguments = ["dns", "--seconds", "1", "--rate", "1000", "--keep"];
    let (mut lab, said) = Lab::start_kept(&arguments, "permits changes");
    let urls: Vec<&str> = said.split_whitespace().filter(|word| word.contains("/#token=")).collect();
    assert_eq!(urls.len(), 2, "{said}");
    for url in urls {
        let before = packets_on(url);
        let deadline = Instant::now() + Duration::from_secs(30);
        while packets_on(url) == before {
            assert!(Instant::now() < deadline, "no query arrives at {url}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    let status = lab.end(Signal::INT);
    assert_eq!(status.code(), Some(0), "that is how it is meant to end");
    lab.assert_nothing_is_left();
}

#[test]
fn an_interrupted_lab_leaves_nothing_behind() {
    let Some(_alone) = may_run() else { return };
    for signal in [Signal::INT, Signal::TERM] {
        let mut lab = lab_at_work();
        assert_eq!(lab.end(signal).code(), Some(130));
        lab.assert_nothing_is_left();
    }
}

#[test]
fn what_a_killed_lab_leaves_is_removed_by_the_next() {
    let Some(_alone) = may_run() else { return };
    let mut killed = lab_at_work();
    killed.end(Signal::KILL);
    assert!(killed.has_folder(), "a lab killed by SIGKILL cannot clean up");
    let mut next = lab_at_work();
    killed.assert_nothing_is_left();
    next.end(Signal::INT);
    next.assert_nothing_is_left();
}
