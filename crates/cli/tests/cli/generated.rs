//! `weir test`: a packet for every path, where it goes, and what another configuration changes about that.

use super::folder::Folder;
use super::{CommandOutput, TWO, recorded, weir};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// An ACL whose second entry is hit by no packet, although neither of the other two takes all of its packets.
const DEAD: &str = "\
ports: { p0: { pcap: {}, root: filter }, p1: { pcap: {} } }
pipes:
  filter:
    type: acl
    match: { ipv4.src: masked, l4.dport: range }
    forward: per_entry
    miss: drop
    entries:
      - { priority: 10, match: { l4.dport: 0-999 }, forward: drop }
      - { priority: 10, match: { l4.dport: 1000-65535 }, forward: p1 }
      - { priority: 30, match: { ipv4.src: 192.0.2.0/24, l4.dport: 80-2000 }, forward: p1 }
";

fn test(folder: &Folder, arguments: &[&str]) -> CommandOutput {
    weir(folder.path(), &[&["test"], arguments].concat())
}

fn with(config: &str) -> Folder {
    let folder = Folder::new();
    folder.write("weir.yaml", config);
    folder
}

#[test]
fn coverage_is_printed() {
    let folder = with(TWO);
    let said = test(&folder, &["weir.yaml", "--json"]).good();
    let json = said.json();
    let keys: Vec<&String> = json.as_object().unwrap().keys().collect();
    assert_eq!(keys[..6], ["ok", "paths", "covered", "unreachable", "differences", "seconds"]);
    let paths = json["paths"].as_u64().unwrap();
    assert!(paths >= 3 && json["covered"] == paths, "{json}");
    assert_eq!((&json["ok"], &json["entries"], &json["entries_hit"]), (&true.into(), &2.into(), &2.into()));
    let head = format!(
        "{paths} of {paths} paths reached by {} packets, 2 of 2 entries hit, 0 differences\n",
        json["packets"]
    );
    assert!(said.out.starts_with(&head), "{}", said.out);
}

/// The entry is named with its line, together with those that take its packets; with `--strict`, it is an
/// error.
#[test]
fn an_entry_that_no_packet_can_hit_is_named() {
    let folder = with(DEAD);
    let said = test(&folder, &["weir.yaml", "--json"]).good();
    let line = "unreachable: filter entry 3 (weir.yaml:11): every packet that meets its conditions hits \
                entry 1 (weir.yaml:9) or entry 2 (weir.yaml:10)\n";
    assert!(said.out.contains(line), "{}", said.out);
    let dead = &said.json()["unreachable"];
    assert_eq!(dead.as_array().map(Vec::len), Some(1), "{dead}");
    assert_eq!((&dead[0]["pipe"], &dead[0]["entry"]), (&"filter".into(), &3.into()));
    assert_eq!(
        (&dead[0]["place"], &dead[0]["shadowed_by"]),
        (&"weir.yaml:11".into(), &[1, 2].as_slice().into())
    );
    assert_eq!(test(&folder, &["weir.yaml", "--strict"]).code, Some(1));
    folder.write("weir.yaml", TWO);
    test(&folder, &["weir.yaml", "--strict"]).good();
}

/// `weir check` warns of it as well. It warns only once of an entry that is shadowed by a single other one.
#[test]
fn the_check_warns_of_entries_that_others_take_together() {
    let folder = with(DEAD);
    let said = weir(folder.path(), &["check", "weir.yaml", "--json"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let json = said.json();
    assert_eq!(json["diagnostics"].as_array().map(Vec::len), Some(1), "{json}");
    let warning = &json["diagnostics"][0];
    assert_eq!((&warning["severity"], &warning["line"]), (&"warning".into(), &11.into()));
    let message = warning["message"].as_str().unwrap();
    assert!(message.ends_with("hits entry 1 (weir.yaml:9) or entry 2 (weir.yaml:10)"), "{message}");
    folder.write("weir.yaml", DEAD.replace("80-2000", "80-90"));
    let json = weir(folder.path(), &["check", "weir.yaml", "--json"]).json();
    assert_eq!(json["diagnostics"].as_array().map(Vec::len), Some(1), "{json}");
    let message = json["diagnostics"][0]["message"].as_str().unwrap();
    assert!(!message.contains("or entry"), "{message}");
}

/// An entry whose conditions no packet meets, and one that none reaches.
const UNMET: &str = "\
ports: { p0: { pcap: {}, root: sources }, p1: { pcap: {} } }
pipes:
  sources:
    type: basic
    match: { ipv4.src: per_entry }
    forward: hosts
    miss: drop
    entries:
      - { match: { ipv4.src: 224.0.0.1 } }
      - { match: { ipv4.src: 192.0.2.1 } }
  hosts:
    type: basic
    match: { ipv4.src: per_entry }
    forward: p1
    miss: drop
    entries:
      - { match: { ipv4.src: 192.0.2.1 } }
      - { match: { ipv4.src: 192.0.2.2 } }
";

#[test]
fn entries_are_called_unreachable_only_with_a_proof() {
    let folder = with(UNMET);
    let said = test(&folder, &["weir.yaml", "--json"]).good();
    for line in [
        "unreachable: sources entry 1 (weir.yaml:9): no packet meets its conditions\n",
        "unreachable: hosts entry 2 (weir.yaml:18): no packet that arrives at its pipe hits it\n",
    ] {
        assert!(said.out.contains(line), "{}", said.out);
    }
    assert_eq!(said.json()["unreachable"].as_array().map(Vec::len), Some(2));
    let json = weir(folder.path(), &["check", "weir.yaml", "--json"]).json();
    let warnings = json["diagnostics"].as_array().unwrap();
    assert_eq!(warnings.len(), 1, "{json}");
    assert_eq!(warnings[0]["line"], 9);
    assert_eq!(warnings[0]["message"], "no packet hits this entry: no packet meets its conditions");
    // Behind a choice by hash, the search alone proves nothing.
    let groups = "groups: { back: { size: 251, targets: { b1: p1, b2: p1 } } }\n";
    folder.write("weir.yaml", UNMET.replace("pipes:\n", &format!("{groups}pipes:\n")));
    let said = test(&folder, &["weir.yaml"]).good();
    assert!(said.out.contains("no packet found: hosts entry 2 (weir.yaml:19)\n"), "{}", said.out);
    assert!(!said.out.contains("unreachable: hosts"), "{}", said.out);
}

/// weir reads the file itself, and tshark shows the comments.
#[test]
fn packets_are_written_with_verdict_and_purpose() {
    let folder = with(TWO);
    let packets =
        test(&folder, &["weir.yaml", "--json", "--pcap", "out.pcapng"]).good().json()["packets"].clone();
    let frames = recorded(&folder.file("out.pcapng"));
    assert_eq!(packets, frames.len());
    let file = std::fs::read(folder.file("out.pcapng")).unwrap();
    let text = String::from_utf8_lossy(&file);
    assert!(text.contains("transmit on p1: eth.dst=02:00:00:00:00:10 "), "the verdict and the bytes");
    assert!(text.contains("; p0 > balance: entry 2"), "the purpose");
    test(&folder, &["weir.yaml", "--pcap", "none/out.pcapng"])
        .refused(1, &["none/out.pcapng cannot be written"]);
    if Command::new("tshark").arg("--version").output().is_err() {
        assert!(std::env::var_os("CI").is_none(), "CI has tshark");
        eprintln!("skipped: there is no tshark");
        return;
    }
    let mut tshark = Command::new("tshark");
    tshark.arg("-n").arg("-r").arg(folder.file("out.pcapng")).args(["-T", "fields"]);
    let shown = tshark.args(["-e", "frame.interface_name", "-e", "frame.comment"]).output().unwrap();
    assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert_eq!(packets, shown.lines().count());
    for line in shown.lines() {
        assert!(line.starts_with("p0\t") && line.contains("p0 > balance: "), "{line}");
    }
}

#[test]
fn a_later_run_compares_where_packets_go() {
    let folder = with(TWO);
    let arguments = ["weir.yaml", "--expect", "expected"];
    let said = test(&folder, &arguments).good();
    assert!(
        said.out.contains("expected/verdicts.txt: ") && said.out.contains("packets written"),
        "{}",
        said.out
    );
    let written = std::fs::read_to_string(folder.file("expected/verdicts.txt")).unwrap();
    assert!(written.contains("\npath p0 > balance: hit\ngoes transmit on p1: "), "{written}");
    let said = test(&folder, &arguments).good();
    assert!(said.out.contains("expected/verdicts.txt: 0 of "), "{}", said.out);
    folder.write("weir.yaml", TWO.replace("02:00:00:00:00:11", "02:00:00:00:00:99"));
    let said = test(&folder, &[&arguments[..], &["--json"]].concat());
    assert_eq!(said.code, Some(1), "{}{}", said.out, said.err);
    assert!(said.out.contains("run the command again with `--accept`"), "{}", said.out);
    let json = said.json();
    assert_eq!(json["ok"], false);
    let changed = json["changed"].as_array().unwrap();
    assert!(!changed.is_empty());
    for one in changed {
        let (old, new) = (one["old"].as_str().unwrap(), one["new"].as_str().unwrap());
        assert_eq!(old.replace("eth.dst=02:00:00:00:00:11", "eth.dst=02:00:00:00:00:99"), new);
        assert_ne!(old, new);
    }
    test(&folder, &[&arguments[..], &["--accept"]].concat()).good();
    test(&folder, &arguments).good();
}

#[test]
fn a_damaged_file_of_verdicts_is_refused() {
    let folder = with(TWO);
    folder.write("verdicts.txt", "# a comment\n\npacket p0 scr=1.2.3.4\n");
    test(&folder, &["weir.yaml", "--expect", "."]).refused(2, &["verdicts.txt:3: ", "scr", "--accept"]);
    folder.write("verdicts.txt", "goes drop (miss)\n");
    test(&folder, &["weir.yaml", "--expect", "."]).refused(2, &["verdicts.txt:1: there is no packet"]);
    folder.write("verdicts.txt", "went elsewhere\n");
    test(&folder, &["weir.yaml", "--expect", "."]).refused(2, &["verdicts.txt:1: a line begins with"]);
}

/// Packets of the one entry that changed are listed, and no others.
#[test]
fn packets_that_another_configuration_sends_elsewhere_are_listed() {
    let folder = with(TWO);
    folder.write("new.yaml", TWO.replace("02:00:00:00:00:11", "02:00:00:00:00:99"));
    let said = test(&folder, &["--against", "weir.yaml", "weir.yaml", "--json"]).good();
    assert!(said.out.starts_with("0 of ") && said.json()["ok"] == true, "{}", said.out);
    let said = test(&folder, &["--against", "weir.yaml", "new.yaml", "--json"]);
    assert_eq!(said.code, Some(1), "{}{}", said.out, said.err);
    let json = said.json();
    let moved = json["differences"].as_array().unwrap();
    assert!(!moved.is_empty() && (moved.len() as u64) < json["packets"].as_u64().unwrap(), "{json}");
    for one in moved {
        let (old, new) = (one["old"].as_str().unwrap(), one["new"].as_str().unwrap());
        assert!(old.starts_with("transmit on p1: ") && old.contains("eth.dst=02:00:00:00:00:11"), "{one}");
        assert_eq!(old.replace("eth.dst=02:00:00:00:00:11", "eth.dst=02:00:00:00:00:99"), new);
    }
    let group = format!("p0 > balance: hit: {}\n", moved.len());
    assert!(said.out.contains(&group), "{}", said.out);
    // Ports are compared by their names, not by their numbers.
    let swapped = TWO
        .replace("  p0: { pcap: {}, root: balance }\n", "")
        .replace("  p1: { pcap: {} }\n", "  p1: { pcap: {} }\n  p0: { pcap: {}, root: balance }\n");
    folder.write("swapped.yaml", swapped);
    test(&folder, &["--against", "weir.yaml", "swapped.yaml"]).good();
    folder.write("renamed.yaml", TWO.replace("p0:", "p9:"));
    let said = test(&folder, &["--against", "weir.yaml", "renamed.yaml"]);
    assert!(said.out.contains("now     there is no such port\n"), "{}", said.out);
    assert!(
        said.out.contains("before  there is no such port\n") || said.out.contains("  and "),
        "{}",
        said.out
    );
}

#[test]
fn bad_input_is_refused() {
    let folder = with(&TWO.replace("type: basic", "type: basik"));
    for arguments in [&["weir.yaml"][..], &["--against", "weir.yaml", "weir.yaml"]] {
        let said = test(&folder, arguments);
        assert_eq!(said.code, Some(2), "{}", said.out);
        assert!(said.err.starts_with("weir.yaml:6:"), "{}", said.err);
    }
    test(&folder, &["none.yaml"]).refused(2, &["none.yaml"]);
    for arguments in [&["weir.yaml", "--packets", "0"][..], &["weir.yaml", "--accept"]] {
        assert_eq!(test(&folder, arguments).code, Some(2), "{arguments:?}");
    }
}

/// A limit that is reached is named.
#[test]
fn limits_are_named() {
    let folder = with(TWO);
    let said = test(&folder, &["weir.yaml", "--packets", "1"]);
    assert!(said.out.contains("not explored: more than 1 packets (--packets)\n"), "{}", said.out);
}

/// The configurations in `configs/`, and those of the golden walks, by name.
fn programs() -> BTreeMap<String, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut programs = BTreeMap::new();
    for folder in ["configs", "tests/golden"] {
        for file in std::fs::read_dir(root.join(folder)).unwrap() {
            let path = file.unwrap().path();
            let name = format!("{folder}/{}", path.file_name().unwrap().to_string_lossy());
            let text = std::fs::read_to_string(&path).unwrap();
            match path.extension().and_then(|end| end.to_str()) {
                Some("yaml" | "json") => drop(programs.insert(name, text)),
                Some("walk") => {
                    let config = text.split_once("-- config --\n").expect("a configuration").1;
                    let config = config.split("\n-- ").next().unwrap_or_default();
                    programs.insert(name, format!("{config}\n"));
                }
                _ => {}
            }
        }
    }
    programs
}

/// Programs with paths that the search finds but does not reach yet, and the most of these paths. A number
/// may only fall.
const NOT_REACHED: &[(&str, u64)] = &[("tests/golden/rehash-after-decap.walk", 1)];

/// Every path that is found is reached, all executors agree, and no entry is said to be unreachable: people
/// wrote all of these for a purpose.
#[test]
fn every_program_is_covered_by_its_own_packets() {
    let folder = Folder::new();
    let programs = programs();
    assert!(programs.len() > 80, "{} programs", programs.len());
    let mut all = 0;
    for (name, config) in &programs {
        folder.write("config", config);
        let said = test(&folder, &["config", "--json"]);
        let json = said.json();
        let (paths, covered) = (json["paths"].as_u64().unwrap(), json["covered"].as_u64().unwrap());
        println!("{name}: {covered} of {paths} paths reached by {} packets", json["packets"]);
        let most = NOT_REACHED.iter().find(|(other, _)| other == name).map_or(0, |(_, most)| *most);
        assert_eq!(said.code, Some(0), "{name}: {}", said.out);
        assert!(covered > 0 && paths - covered <= most, "{name}: {}", said.out);
        assert_eq!(json["differences"], serde_json::json!([]), "{name}: {}", said.out);
        assert_eq!(json["unexplored"], serde_json::json!([]), "{name}: {}", said.out);
        assert_eq!(json["unreachable"], serde_json::json!([]), "{name}: {}", said.out);
        all += covered;
    }
    println!("{all} paths of {} programs", programs.len());
}
