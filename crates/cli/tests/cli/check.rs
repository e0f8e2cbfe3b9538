//! `weir check` reports every error at once, each with its line and a caret.

use super::folder::Folder;
use super::{TWO, weir};

#[test]
fn a_good_file_is_good() {
    let folder = Folder::new();
    folder.write("weir.yaml", TWO);
    let said = weir(folder.path(), &["check", "weir.yaml"]).good();
    assert_eq!(said.out, "weir.yaml: valid (2 ports, 1 pipe, 2 entries, 0 groups)\n");
    let json = weir(folder.path(), &["check", "weir.yaml", "--json"]).good().json();
    assert_eq!(
        (&json["ok"], &json["errors"], json["diagnostics"].as_array().map(Vec::len)),
        (&true.into(), &0.into(), Some(0))
    );
}

#[test]
fn all_errors_are_told_at_once_with_line_and_caret() {
    let folder = Folder::new();
    let broken = TWO
        .replace("type: basic", "type: basik")
        .replace("ipv4.src: per_entry/", "ipv4.scr: per_entry/")
        .replace("forward: p1", "forward: p9")
        .replace("02:00:00:00:00:11", "02:00:00:00:00")
        + "wrokers: 2\n";
    folder.write("broken.yaml", broken);
    let said = weir(folder.path(), &["check", "broken.yaml"]);
    assert_eq!(said.code, Some(2), "{}", said.err);
    let found: Vec<&str> = said.err.lines().collect();
    for (line, what) in [(6, "basik"), (7, "ipv4.scr"), (10, "p9"), (14, "02:00:00:00:00"), (15, "wrokers")] {
        let place = format!("broken.yaml:{line}:");
        let at = found
            .iter()
            .position(|one| one.starts_with(&place))
            .unwrap_or_else(|| panic!("{place} {}", said.err));
        assert!(found[at].contains("error: ") && found[at].contains(what), "{}", found[at]);
        let (text, caret) = (found[at + 1], found[at + 2]);
        let under = text.find(what).expect("the line is shown");
        assert_eq!(caret.find('^'), Some(under), "{text}\n{caret}");
    }
    assert!(said.err.contains("did you mean `ipv4.src`?"), "{}", said.err);
    assert_eq!(said.out, "broken.yaml: 5 errors, 0 warnings\n");
    let json = weir(folder.path(), &["check", "broken.yaml", "--json"]).json();
    assert_eq!((&json["ok"], &json["errors"]), (&false.into(), &5.into()));
    assert_eq!(json["diagnostics"][0]["line"], 6);
}

#[test]
fn what_the_program_check_finds_has_its_place_too() {
    let folder = Folder::new();
    let text = "\
ports: { p0: { mem: ~, root: a } }
pipes:
  a: { type: basic, match: { meta.0: 1 }, forward: b, miss: drop, entries: [{}] }
  b: { type: basic, forward: a, miss: drop, entries: [{}] }
  c: { type: basic, forward: drop, miss: drop }
";
    folder.write("loop.yaml", text);
    let said = weir(folder.path(), &["check", "loop.yaml"]);
    assert_eq!(said.code, Some(2));
    for part in ["loop.yaml:3:", "loop", "meta.0", "loop.yaml:5:", "`c`"] {
        assert!(said.err.contains(part), "no `{part}` in {}", said.err);
    }
}

#[test]
fn bad_yaml_and_missing_files_are_one_sentence() {
    let folder = Folder::new();
    folder.write("bad.yaml", "ports: { p0\n");
    let said = weir(folder.path(), &["check", "bad.yaml"]);
    assert_eq!(said.code, Some(2));
    assert!(said.err.contains("bad.yaml:") && said.err.contains("not YAML"), "{}", said.err);
    for command in ["check", "replay", "explain", "run"] {
        let mut arguments = vec![command, "none.yaml"];
        if command == "explain" {
            arguments.extend(["--packet", "dport=1"]);
        }
        weir(folder.path(), &arguments).refused(1, &["none.yaml", "No such file"]);
    }
    folder.write("empty.yaml", "");
    assert_eq!(weir(folder.path(), &["check", "empty.yaml"]).code, Some(2));
    // Every command that reads a configuration refuses an invalid one in the same way.
    for arguments in [
        &["replay", "empty.yaml"][..],
        &["run", "empty.yaml"],
        &["explain", "empty.yaml", "--packet", "dport=1"],
    ] {
        let said = weir(folder.path(), arguments);
        assert_eq!(said.code, Some(2), "{arguments:?}: {}", said.err);
    }
}

#[test]
fn a_file_that_is_not_utf_8_is_told_like_any_other_error() {
    let folder = Folder::new();
    folder.write("latin.yaml", b"ports: { p0: { mem: ~ } }\nsocket: d\xe9mon.sock\n");
    for arguments in [
        &["check", "latin.yaml"][..],
        &["run", "latin.yaml"],
        &["replay", "latin.yaml"],
        &["explain", "latin.yaml", "--packet", "dport=1"],
    ] {
        let said = weir(folder.path(), arguments);
        assert_eq!(said.code, Some(2), "{arguments:?}: {}", said.err);
        let first = said.err.lines().next().unwrap_or_default();
        assert!(first.starts_with("latin.yaml:2:10: error: this is not UTF-8: byte 0xe9"), "{first}");
    }
    assert_eq!(weir(folder.path(), &["check", "latin.yaml"]).out, "latin.yaml: 1 error, 0 warnings\n");
    folder.write("binary.yaml", b"\xff\xfe\x00");
    assert_eq!(weir(folder.path(), &["check", "binary.yaml"]).code, Some(2));
}

/// Checks a configuration and returns the exit code and the output.
fn check(text: &str) -> (Option<i32>, String) {
    let folder = Folder::new();
    folder.write("weir.yaml", text);
    let said = weir(folder.path(), &["check", "weir.yaml"]);
    (said.code, said.err)
}

#[test]
fn an_interface_that_is_absent_is_a_warning() {
    let (code, said) = check(
        "ports: { p0: { xdp: weirabsent0, take: [{ dst: 10.0.0.1 }], root: a } }
pipes: { a: { type: basic, forward: p0, miss: drop, entries: [{}] } }
",
    );
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("weir.yaml:1:10: warning: there is currently no interface `weirabsent0` on this host"),
        "{said}"
    );
    let (_, said) = check(
        "ports: { p0: { xdp: lo, take: [{ dst: 10.0.0.1 }], root: a } }
pipes: { a: { type: basic, forward: p0, miss: drop, entries: [{}] } }
",
    );
    assert_eq!(said, "");
}

#[test]
fn what_two_ports_cannot_share_is_an_error() {
    for (ports, why) in [
        ("{ p0: { xdp: lo }, p1: { xdp: lo } }", "interface `lo` is already port `p0`"),
        (
            "{ p0: { pcap: { out: x.pcap } }, p1: { pcap: { out: ./x.pcap } } }",
            "writes ./x.pcap, and so does `out` of port `p0`",
        ),
        (
            "{ p0: { pcap: { out: x.pcap, kernel: x.pcap } } }",
            "`kernel` of port `p0` writes x.pcap, and so does `out`",
        ),
        (
            "{ p0: { pcap: { in: x.pcap } }, p1: { mem: ~, trace: x.pcap } }",
            "which `trace` of port `p1` writes",
        ),
    ] {
        let (code, said) = check(&format!("ports: {ports}\n"));
        assert_eq!(code, Some(2), "{ports}: {said}");
        assert!(said.contains(why) && said.contains("weir.yaml:1:"), "{ports}: {said}");
    }
    let (code, said) =
        check("ports: { p0: { pcap: { out: /dev/null } }, p1: { pcap: { out: /dev/null } } }\n");
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn a_socket_path_that_is_too_long_is_an_error() {
    let long = "s".repeat(108);
    let (code, said) = check(&format!("socket: {long}\nports: {{ p0: {{ mem: ~ }} }}\n"));
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("weir.yaml:1:9: error: the path has 108 bytes, but a socket path has at most 107"),
        "{said}"
    );
    let folder = Folder::new();
    folder.write("weir.yaml", "ports: { p0: { mem: ~ } }\n");
    let said = weir(folder.path(), &["run", "weir.yaml", "--socket", &long]);
    assert_eq!(said.code, Some(2), "{}", said.err);
    assert!(said.err.contains("the control socket's path has 108 bytes"), "{}", said.err);
}

#[test]
fn the_words_of_the_parser_are_not_shown() {
    let mut text = "a0: &a0 [x, x]\n".to_string();
    (1..40).for_each(|at| text += &format!("a{at}: &a{at} [*a{0}, *a{0}]\n", at - 1));
    let (code, said) = check(&text);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("expand to too much here"), "{said}");
    assert!(!said.contains("budget") && !said.contains("RecordedAnchor"), "{said}");
}

#[test]
fn a_back_end_is_behind_a_port_that_exists() {
    let folder = Folder::new();
    let lb = |out: &str| {
        format!(
            "ports: {{ p0: {{ mem: ~ }}, p1: {{ mem: ~ }} }}
apps:
  - lb:
      name: web
      port: p0
      service: {{ vip: 10.0.0.80, protocol: udp, port: 53 }}
      announce: none
      back_ends: [{{ name: one, mac: 02:00:00:00:00:11, out: {out} }}]
"
        )
    };
    folder.write("right.yaml", lb("p1"));
    drop(weir(folder.path(), &["check", "right.yaml"]).good());
    folder.write("wrong.yaml", lb("p2"));
    let said = weir(folder.path(), &["check", "wrong.yaml"]);
    assert_eq!(said.code, Some(2));
    assert!(said.err.contains("wrong.yaml:8:") && said.err.contains("there is no port `p2`"), "{}", said.err);
}

/// A port that uses the kernel, one that cannot, and a pipe that is not compiled.
const KERNEL: &str = "\
ports:
  p0: { xdp: absent0, take: [{ dst: 10.0.0.53 }], kernel: require, root: choose }
  p1: { mem: ~ }
pipes:
  choose:
    type: basic
    match: { ipv4.src: per_entry }
    forward: per_entry
    miss: drop
    entries:
      - { match: { ipv4.src: 10.0.0.1 }, forward: in_port }
      - { match: { ipv4.src: 10.0.0.2 }, forward: in_port }
      - { match: { ipv4.src: 10.0.0.3 }, forward: p1 }
      - { match: { ipv4.src: 10.0.0.4 }, forward: rules }
  rules: { type: acl, match: { l4.dport: range }, rehash: true, forward: in_port, miss: drop }
";

#[test]
fn what_the_kernel_runs_is_said_per_port_pipe_and_kind_of_entry() {
    let folder = Folder::new();
    folder.write("weir.yaml", KERNEL);
    let said = weir(folder.path(), &["check", "weir.yaml", "--kernel", "--json"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    for line in [
        "kernel: port p0: usable",
        "kernel: port p1: not usable: it is not an AF_XDP port",
        "kernel: pipe choose (basic): compiled",
        "kernel: pipe rules (acl): left to the engine: the pipe recomputes the flow key",
        "kernel:   miss drop: compiled",
    ] {
        assert!(said.out.lines().any(|one| one == line), "no `{line}` in\n{}", said.out);
    }
    for (entries, forward) in [
        ("2 entries", "in_port: compiled"),
        ("1 entry", "p1: left to the engine: XDP cannot send to the port"),
        ("1 entry", "rules: compiled"),
    ] {
        let is_it = |line: &str| line.contains(entries) && line.ends_with(&format!("forward {forward}"));
        assert!(said.out.lines().any(is_it), "no {entries} {forward} in\n{}", said.out);
    }
    let kernel = &said.json()["kernel"];
    assert_eq!(kernel["ports"][0]["usable"], true);
    assert_eq!(kernel["pipes"][1]["why"], "the pipe recomputes the flow key");
    // Without privileges, the kernel is not asked.
    let loaded = &kernel["loaded"];
    let is_loaded = loaded["ok"] == true && loaded["instructions"]["p0"].as_u64() > Some(0);
    assert!(is_loaded || loaded["why"] == "this needs the privileges of root", "{loaded}");
}

#[test]
fn a_port_that_requires_the_kernel_and_cannot_have_it_is_an_error() {
    let folder = Folder::new();
    for (from, to, why) in [
        ("root: choose }", "root: choose, trace: out.pcap }", "its frames are recorded"),
        ("root: choose }", "root: choose, fault: { loss: 0.1 } }", "its frames have faults"),
        (
            "root: choose }",
            "root: rules }",
            "its pipe `rules` is not compiled: the pipe recomputes the flow key",
        ),
    ] {
        folder.write("weir.yaml", KERNEL.replace(from, to));
        let said = weir(folder.path(), &["check", "weir.yaml"]);
        assert_eq!(said.code, Some(2), "{}", said.err);
        let error = "error: port `p0` has `kernel: require`, but the kernel cannot run it: ";
        assert!(said.err.starts_with("weir.yaml:2:"), "{}", said.err);
        assert!(said.err.contains(&format!("{error}{why}")), "{}", said.err);
    }
}

/// A FLOW pipe with an entry whose packets go to a port that the kernel cannot send to.
const FLOWS: &str = "\
workers: 2
ports:
  p0: { xdp: absent0, take: [{ dst: 10.0.0.53 }], root: flows }
  p1: { mem: ~ }
groups: { back: { targets: { b1: p0, b2: p0, b3: p0 } } }
pipes:
  flows:
    type: flow
    learn: { pin: back }
    monitor: { timeouts: {} }
    action: [{ set: { eth.dst: per_entry } }]
    forward: per_entry
    miss: drop
    entries:
      - { match: { target: b1 }, set: { eth.dst: 02:00:00:00:00:11 }, forward: in_port }
      - { match: { target: b2 }, set: { eth.dst: 02:00:00:00:00:12 }, forward: in_port }
      - { match: { target: b3 }, set: { eth.dst: 02:00:00:00:00:13 }, forward: p1 }
";

#[test]
fn flow_pipes_run_in_the_kernel_and_their_new_flows_do_not() {
    let folder = Folder::new();
    let check = |text: &str| {
        folder.write("weir.yaml", text);
        let said = weir(folder.path(), &["check", "weir.yaml", "--kernel", "--json"]);
        assert_eq!(said.code, Some(0), "{}", said.err);
        said.json()["kernel"]["pipes"][0].clone()
    };
    let pipe = check(FLOWS);
    assert_eq!((&pipe["type"], &pipe["compiled"]), (&"flow".into(), &true.into()), "{pipe}");
    let entries = pipe["entries"].as_array().unwrap();
    let entry =
        |forward: &str| entries.iter().find(|one| one["forward"] == forward).expect("a kind of entry");
    assert_eq!((&entry("in_port")["entries"], &entry("in_port")["compiled"]), (&2.into(), &true.into()));
    assert_eq!(entry("p1")["why"], "XDP cannot send to the port");
    let packet = ["explain", "weir.yaml", "--json", "--packet", "dst=10.0.0.53 proto=udp dport=53"];
    let runs = weir(folder.path(), &packet).json()["runs"].clone();
    assert_eq!(runs["why"], "pipe `flows`: the flow is new, or is not followed in the kernel", "{runs}");

    let pipe = check(&FLOWS.replace("type: flow", "type: flow\n    key: inner"));
    let why = "the pipe's flows are those inside tunnels";
    assert_eq!((&pipe["compiled"], &pipe["why"]), (&false.into(), &why.into()), "{pipe}");
}

#[test]
fn values_of_the_node_come_from_a_file_beside_the_configuration() {
    let folder = Folder::new();
    let check = |more: &[&str], code: i32| {
        let said = weir(folder.path(), &[&["check", "weir.yaml"], more].concat());
        assert_eq!(said.code, Some(code), "{}{}", said.out, said.err);
        said
    };
    folder.write("weir.yaml", TWO.replace("02:00:00:00:00:11", "${NODE.mac}"));
    let said = check(&[], 2).err;
    assert!(said.contains("there is no file node.yaml") && said.contains("--node"), "{said}");
    folder.write("node.yaml", "mac: 02:00:00:00:00:11\nunused: 1\n");
    let said = check(&[], 0);
    assert!(said.out.ends_with("node: mac=02:00:00:00:00:11 (node.yaml)\n"), "{}", said.out);
    assert!(said.err.contains("node.yaml:2:9: warning: nothing refers to `unused`"), "{}", said.err);
    assert_eq!(check(&["--json"], 0).json()["node"], serde_json::json!({ "mac": "02:00:00:00:00:11" }));
    assert_eq!(check(&["--resolved"], 0).out, TWO);
    folder.write("other.yaml", "mac: 02:00:00:00:00:1\n");
    let said = check(&["--node", "other.yaml"], 2).err;
    let place = "(`${NODE.mac}` is `02:00:00:00:00:1`: other.yaml:1)";
    assert!(said.starts_with("weir.yaml:14:") && said.contains(place), "{said}");
    let caret = said.lines().nth(2).and_then(|line| line.find('^'));
    assert_eq!(caret, said.lines().nth(1).and_then(|line| line.find("${NODE.mac}")), "{said}");
    weir(folder.path(), &["check", "weir.yaml", "--node", "none.yaml"]).refused(1, &["none.yaml"]);
}

#[test]
fn nodes_that_do_not_work_together_are_found() {
    let folder = Folder::new();
    let config = "hash_seed: \"${NODE.seed}\"
ports: { p0: { pcap: {} } }
nat_pools:
  out: { addresses: \"${NODE.pool}\", ports: \"${NODE.ports}\" }
apps:
  - lb: { flows: 4096 }
  - lb:
      name: far
      port: p0
      service: { vip: 10.0.0.81, protocol: tcp, port: 80 }
      nat_pool: out
      back_ends: [{ name: c1, mode: full_nat, ip: 10.0.1.1, mac: 02:00:00:00:00:21 }]
";
    folder.write("weir.yaml", config);
    for (name, pool, ports, seed) in [
        ("a", "10.9.0.0/30", "1024-65535", 7),
        ("b", "10.9.0.4/30", "1024-65535", 7),
        ("c", "10.9.0.6/32", "1024-65535", 7),
        ("d", "10.9.0.0/30", "100-1023", 7),
        ("e", "10.9.0.8/30", "1024-65535", 8),
        ("f", "10.9.0.300/30", "1024-65535", 7),
    ] {
        folder.write(name, format!("pool: {pool}\nports: {ports}\nseed: {seed}\n"));
    }
    let check = |nodes: &[&str], more: &[&str]| {
        let nodes: Vec<&str> = nodes.iter().flat_map(|node| ["--node", node]).collect();
        weir(folder.path(), &[&["check", "weir.yaml"], &nodes[..], more].concat())
    };
    let said = check(&["a", "b", "d"], &[]).good().out;
    assert!(said.starts_with("a: weir.yaml: valid (") && said.lines().count() == 3, "{said}");
    let said = check(&["a", "b", "c"], &["--json"]);
    let why = "10.9.0.6/32 is in NAT pool `out` of b and in `out` of c, but answers reach only the node";
    assert!(said.code == Some(2) && said.err.contains(why), "{}", said.err);
    assert!(said.err.starts_with("weir.yaml:4:") && said.err.lines().count() == 3, "{}", said.err);
    let json = said.json();
    assert_eq!(
        (&json["ok"], &json["errors"], &json["nodes"][2]["node"]["pool"]),
        (&serde_json::json!(false), &serde_json::json!(1), &serde_json::json!("10.9.0.6/32"))
    );
    let said = check(&["a", "e"], &[]);
    assert!(
        said.code == Some(2) && said.err.contains("e chooses other back ends than a (far)"),
        "{}",
        said.err
    );
    // What is wrong with one of them alone.
    let said = check(&["a", "f"], &[]);
    assert!(said.code == Some(2) && said.err.contains("10.9.0.300"), "{}", said.err);
    check(&["a", "b"], &["--kernel"]).refused(2, &["about one node"]);
    check(&["a", "a"], &[]).refused(2, &["appears twice"]);
}
