//! Bulk entries: loaded as one change, and listed in a form that can be loaded again.

use super::running::Daemon;
use serde_json::{Value, json};
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
    // The entries that it lists can be removed and loaded again.
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
    for (text, expected) in [
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
        assert!(said.code == Some(1) && said.err.contains(expected), "no `{expected}` in: {}", said.err);
        assert_eq!(listed(&daemon), [""; 0], "{expected}");
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

#[test]
fn a_text_of_changes_beyond_a_limit_is_refused_with_what_to_do() {
    let daemon = Daemon::start(PROGRAM);
    let ask = |length: usize, body: &str| {
        let mut stream = UnixStream::connect(daemon.folder.file("weir.sock")).unwrap();
        // It may be refused before it has arrived.
        let _ = write!(stream, "POST /changes HTTP/1.1\r\nContent-Length: {length}\r\n\r\n{body}");
        let mut buffer = [0; 4096];
        let count = stream.read(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..count]).into_owned()
    };
    let answer = ask((256 << 20) + 1, "");
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert!(answer.contains("more than 256 MiB, the limit: send it in several parts"), "{answer}");
    let answer = ask((1 << 20) + 1, &"#".repeat((1 << 20) + 1));
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert!(
        answer.contains("line 1: it has more than 1 MiB, the limit: write one change per line"),
        "{answer}"
    );
    assert_eq!(listed(&daemon), [""; 0]);
}

fn many(count: u32) -> String {
    let mut many = String::new();
    for number in 0..count {
        let [_, a, b, c] = number.to_be_bytes();
        writeln!(
            many,
            "add fast {{ match: {{ ipv4.dst: 11.{a}.{b}.{c}, udp.dport: 53 }}, set: {{ eth.dst: \
             02:00:00:00:00:09 }}, forward: p1 }}"
        )
        .unwrap();
    }
    many
}

/// Requests a page of entries.
fn page(daemon: &Daemon, from: &Value) -> Value {
    daemon.ask(&json!({ "command": "show", "what": "entries", "from": from }))
}

#[test]
fn a_list_in_pages_has_each_entry_once_whatever_comes_and_goes_meanwhile() {
    const COUNT: u32 = 5000;
    let daemon = Daemon::start(&PROGRAM.replace("capacity: 3000", "capacity: 6000"));
    daemon.folder.write("many", many(COUNT));
    daemon.weir(&["entry", "load", "many"]).good();
    let shown = daemon.weir(&["show", "entries", "--json"]).good().json();
    assert_eq!(shown["entries"].as_array().map(Vec::len), Some(COUNT as usize + 1));
    let text = daemon.weir(&["show", "entries", "--pipe", "fast"]).good().out;
    assert_eq!(text.lines().count(), COUNT as usize + 3, "a title, columns and rows");
    assert!(daemon.weir(&["show", "entries", "--pipe", "rules"]).good().out.ends_with("none\n"));

    // Odd ones at the end are removed between two pages, and others are added.
    let mut texts = Vec::new();
    let (mut from, mut turn) = (Value::Null, 0);
    loop {
        let one = page(&daemon, &from);
        assert!(one["entries"].as_array().unwrap().len() <= 2048, "a page is bounded");
        texts.extend(one["entries"].as_array().unwrap().iter().map(|one| one["entry"].to_string()));
        from = one["next"].clone();
        if from.is_null() {
            break;
        }
        let last = many(COUNT).lines().nth(COUNT as usize - 1 - turn).unwrap().replacen("add", "remove", 1);
        let last = last.split(", set:").next().unwrap().to_string() + " }";
        daemon.folder.write("change", format!("{last}\nadd {}", fast(turn)));
        daemon.weir(&["entry", "load", "change"]).good();
        turn += 1;
    }
    assert!(turn > 1, "there were pages");
    let key = |text: &str| text.split("match: { ").nth(1).unwrap().split(" }").next().unwrap().to_string();
    let listed: Vec<String> = texts.iter().map(|text| key(text)).collect();
    let once: std::collections::BTreeSet<&String> = listed.iter().collect();
    assert_eq!(once.len(), listed.len(), "one is listed twice");
    for line in many(COUNT).lines().take(COUNT as usize - turn) {
        assert!(once.contains(&key(line)), "{line} is missing");
    }

    let next = page(&daemon, &Value::Null)["next"].clone();
    daemon.weir(&["reload"]).good();
    assert!(page(&daemon, &next)["error"].as_str().unwrap().contains("replaced"));
    assert!(page(&daemon, &json!("x"))["error"].as_str().unwrap().contains("`from`"));
}

/// Returns the daemon's peak memory, in KiB.
fn most_kib(daemon: &Daemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid().as_raw_nonzero())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn no_question_makes_the_daemon_grow_by_the_length_of_a_list() {
    const COUNT: u32 = 1_000_000;
    let program = PROGRAM.replace("capacity: 3000", "capacity: 1000001");
    let daemon = Daemon::start(&program.replace("pipes:\n", &(groups(500) + "pipes:\n")));
    daemon.folder.write("many", many(COUNT));
    daemon.weir(&["entry", "load", "many"]).good();
    for question in [&["show", "entries", "--json"][..], &["entry", "list", "fast"]] {
        grows_little(&daemon, &format!("{question:?}"), || {
            let said = daemon.weir(question).good();
            assert!(said.out.matches("udp.dport: 53").count() >= COUNT as usize, "{question:?}");
        });
    }
    // One hits the last of the entries, the other misses all of them.
    for (address, verdict) in [("11.15.66.63", "transmit on p1"), ("11.15.66.64", "drop")] {
        grows_little(&daemon, &format!("explain --live {address}"), || {
            let packet = format!("dst={address} dport=53");
            let said = daemon.weir(&["explain", "--live", "--packet", &packet]).good().out;
            assert!(said.contains(&format!("verdict {verdict}")), "{said}");
        });
    }
    for request in requests(&daemon) {
        grows_little(&daemon, &request.to_string(), || drop(daemon.ask(&request)));
    }
    grows_little(&daemon, "metrics", || drop(daemon.metrics()));
}

/// Asserts that a request takes less than 64 MiB.
fn grows_little(daemon: &Daemon, name: &str, ask: impl FnOnce()) {
    // Resets the peak to the current memory.
    std::fs::write(format!("/proc/{}/clear_refs", daemon.pid().as_raw_nonzero()), "5").unwrap();
    let before = most_kib(daemon);
    ask();
    let grown = most_kib(daemon).saturating_sub(before) / 1024;
    println!("{name}: {grown} MiB more than {} MiB", before / 1024);
    assert!(grown < 64, "{name}: {grown} MiB more");
}

/// Returns the words that the daemon suggests in place of an unknown one.
fn offered(daemon: &Daemon, request: &Value) -> Vec<String> {
    let said = daemon.ask(request)["error"].as_str().unwrap().to_string();
    let (_, words) = said.split_once(": ").unwrap();
    words.replace(" or ", ", ").split(", ").map(String::from).collect()
}

/// Returns a request for each command and each section, as listed by the daemon.
fn requests(daemon: &Daemon) -> Vec<Value> {
    let mut all = Vec::new();
    for command in offered(daemon, &json!({ "command": "?" })) {
        match command.as_str() {
            "show" => {
                let parts = offered(daemon, &json!({ "command": "show", "what": "?" }));
                all.extend(parts.iter().map(|part| json!({ "command": "show", "what": part })));
            }
            "entries" => all.push(json!({ "command": "entries", "pipe": "fast" })),
            "explain" => all.push(json!({ "command": "explain", "packet": "dst=11.15.66.63 dport=53" })),
            "process" | "drain" | "undrain" => all.push(json!({ "command": command })),
            "inject" => all.push(json!({ "command": "inject", "packet": "dport=53", "input": "p0" })),
            "app" => all.push(json!({ "command": "app", "app": "none", "request": "show" })),
            "entry" => {
                let entry = "{ match: { ipv6.dst: \"2001:db8::/32\" } }";
                all.push(json!({ "command": "entry", "do": "add", "pipe": "near", "entry": entry }));
            }
            "weight" => {
                all.push(json!({ "command": "weight", "group": "g7", "target": "t3", "weight": 2 }));
            }
            // Another program allocates its own memory.
            "reload" | "stop" | "hand_over" => {}
            other => panic!("the new command `{other}` needs a request here"),
        }
    }
    all
}

/// Groups with many targets.
fn groups(count: u32) -> String {
    let mut text = String::from("groups:\n");
    for group in 0..count {
        let target = |at: u32| format!("t{at}: {{ weight: {}, forward: p1 }}", at + 1);
        let targets: Vec<String> = (0..64).map(target).collect();
        writeln!(text, "  g{group}: {{ fill: maglev, size: 1021, targets: {{ {} }} }}", targets.join(", "))
            .unwrap();
    }
    text
}

/// Prints how fast entries are loaded; `cargo test -- --ignored --nocapture`, with a release build.
#[test]
#[ignore = "a measurement"]
fn the_rate_of_a_load() {
    let daemon = Daemon::start(&PROGRAM.replace("capacity: 3000", "capacity: 1000001"));
    daemon.folder.write("million", many(1_000_000));
    println!("{}", daemon.weir(&["entry", "load", "million"]).good().out);
    println!("{}", daemon.show("workers"));
}
