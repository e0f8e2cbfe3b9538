//! Many entries at a time: loaded as one change, listed as they can be loaded again.

use super::running::Daemon;
use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::os::unix::net::UnixStream;

const PROGRAM: &str = "\
workers: 2
ports: { p0: { mem: , root: fast }, p1: { mem: } }
pipes:
  fast: { type: basic, match: { ipv4.dst: per_entry, udp.dport: per_entry }, capacity: 3000,
      action: [{ set: { eth.dst: per_entry } }], forward: per_entry, miss: near,
      entries: [{ match: { ipv4.dst: 10.0.0.1, udp.dport: 53 }, set: { eth.dst: 02:00:00:00:00:01 },
          forward: p1 }] }
  near: { type: lpm, match: { ipv6.dst: prefix }, forward: p1, miss: rules, capacity: 100 }
  rules: { type: acl, match: { ipv4.src: masked, tcp.dport: range }, forward: per_entry, miss: drop,
      capacity: 9 }
";

fn fast(number: usize) -> String {
    let (upper, lower) = (number / 256, number % 256);
    format!(
        "fast {{ match: {{ ipv4.dst: 10.1.{upper}.{lower}, udp.dport: 53 }}, set: {{ eth.dst: \
         02:00:00:00:00:09 }}, forward: p1 }}"
    )
}

fn listed(daemon: &Daemon) -> Vec<String> {
    let list = |pipe| daemon.weir(&["entry", "list", pipe]).good().out;
    let mut lines: Vec<String> =
        ["fast", "near", "rules"].map(list).concat().lines().map(String::from).collect();
    lines.sort();
    lines
}

#[test]
fn what_is_listed_is_what_can_be_loaded() {
    let daemon = Daemon::start(PROGRAM);
    let mut lines = vec![
        "add near { match: { ipv6.dst: \"2001:db8::/32\" } }".to_string(),
        "add rules { match: { ipv4.src: 10.0.0.0/8, tcp.dport: 1-9 }, priority: 7, forward: drop }"
            .to_string(),
    ];
    lines.extend((0..1000).map(|number| format!("add {}", fast(number))));
    lines.sort();
    daemon.folder.write("all", format!("# Everything.\n\n{}", lines.join("\n")));
    let said = daemon.weir(&["entry", "load", "all"]).good();
    assert!(said.out.starts_with("1002 changes done in "), "{}", said.out);
    assert_eq!(listed(&daemon), lines);
    assert_eq!(daemon.weir(&["entry", "list", "fast", "--all"]).good().out.lines().count(), 1001);
    // What it lists can be taken away again, and loaded again.
    daemon.folder.write("gone", lines.join("\n").replace("add ", "remove "));
    daemon.weir(&["entry", "load", "gone"]).good();
    assert_eq!(listed(&daemon), [""; 0]);
    daemon.weir(&["entry", "load", "all"]).good();
    assert_eq!(listed(&daemon), lines);
}

#[test]
fn a_file_is_loaded_as_a_whole_or_not_at_all_and_its_line_is_named() {
    let daemon = Daemon::start(PROGRAM);
    let mut many = String::new();
    (0..1000).for_each(|number| writeln!(many, "add {}", fast(number)).unwrap());
    let there = "add fast { match: { ipv4.dst: 10.0.0.1, udp.dport: 53 }, \
                 set: { eth.dst: 02:00:00:00:00:01 }, forward: p1 }";
    for (text, told) in [
        (format!("{many}\n# The next one exists.\n{there}\n"), "line 1003: pipe `fast` already has an entry"),
        (format!("{many}add {}", fast(7)), "line 1001: an earlier change of the batch"),
        (format!("{many}remove {}\n", fast(5000)), "line 1001: pipe `fast` has no entry"),
        (
            format!("{many}add fsat {{}}\n"),
            "line 1001: entry: error: there is no pipe `fsat`; did you mean `fast`?",
        ),
        (format!("{many}ad fast {{}}\n"), "write `add PIPE ENTRY`"),
        (format!("{many}add {}", fast(5000).replace("udp.dport", "udp.dprt")), "did you mean `udp.dport`?"),
        (
            (0..3000).map(|number| format!("add {}\n", fast(number))).collect(),
            "line 3000: pipe `fast` is full",
        ),
    ] {
        daemon.folder.write("changes", &text);
        let said = daemon.weir(&["entry", "load", "changes"]);
        assert!(said.code == Some(1) && said.err.contains(told), "no `{told}` in: {}", said.err);
        assert_eq!(listed(&daemon), [""; 0], "{told}");
    }
    daemon.weir(&["entry", "load", "absent"]).refused(2, &["absent"]);
}

#[test]
fn a_connection_carries_many_requests_if_the_client_asks_for_it() {
    let daemon = Daemon::start(PROGRAM);
    let mut stream = UnixStream::connect(daemon.folder.file("weir.sock")).unwrap();
    let mut buffer = [0; 4096];
    for number in 0..20 {
        let body = format!("add {}", fast(number));
        let length = body.len();
        let keep = "Connection: keep-alive\r\n";
        write!(stream, "POST /changes HTTP/1.1\r\n{keep}Content-Length: {length}\r\n\r\n{body}").unwrap();
        let count = stream.read(&mut buffer).unwrap();
        let answer = String::from_utf8_lossy(&buffer[..count]);
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("{\"done\":1}"), "{answer}");
    }
    assert_eq!(listed(&daemon).len(), 20);
}

/// Prints how fast entries are loaded; `cargo test -- --ignored --nocapture`, with a release build.
#[test]
#[ignore = "a measurement"]
fn the_rate_of_a_load() {
    let daemon = Daemon::start(&PROGRAM.replace("capacity: 3000", "capacity: 1000001"));
    let mut many = String::new();
    for number in 0..1_000_000 {
        let [_, a, b, c] = (number as u32).to_be_bytes();
        writeln!(
            many,
            "add fast {{ match: {{ ipv4.dst: 11.{a}.{b}.{c}, udp.dport: 53 }}, set: {{ eth.dst: \
             02:00:00:00:00:09 }}, forward: p1 }}"
        )
        .unwrap();
    }
    daemon.folder.write("million", &many);
    println!("{}", daemon.weir(&["entry", "load", "million"]).good().out);
    println!("{}", daemon.show("workers"));
}
