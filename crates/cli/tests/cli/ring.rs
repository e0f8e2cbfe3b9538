//! `weir ring`, and the vectors that docs/maglev.md gives to other implementations: tests/vectors/rings.py,
//! which shares no code with weir, has made them.

use super::{Said, weir};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use weir_packet::{FlowKey, select_hash};
use weir_program::buckets::name_hash;
use weir_program::{GlbHash, KatranHash};

fn vectors() -> (PathBuf, Value) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors");
    let text = std::fs::read_to_string(folder.join("rings.json")).unwrap();
    (folder, serde_json::from_str(&text).unwrap())
}

/// A file for one run of `weir ring`, removed afterwards.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> File {
        let path = std::env::temp_dir().join(format!("weir-ring-{name}-{}.yaml", std::process::id()));
        std::fs::write(&path, text).unwrap();
        File(path)
    }

    fn ring(&self, arguments: &[&str]) -> Said {
        let file = self.0.to_str().unwrap();
        weir(&std::env::temp_dir(), &[&["ring", file], arguments].concat())
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// CRC-32 of the positions of back ends, 16 bits each in little-endian order, 65535 for none.
fn crc(slots: &Value, names: &[&str]) -> String {
    let mut crc = flate2::Crc::new();
    for slot in slots.as_array().unwrap() {
        let at = slot.as_str().map_or(0xffff, |slot| names.iter().position(|name| *name == slot).unwrap());
        crc.update(&(at as u16).to_le_bytes());
    }
    format!("{:08x}", crc.sum())
}

#[test]
fn rings_are_those_of_the_vectors() {
    for case in vectors().1["rings"].as_array().unwrap() {
        let scheduler = case["scheduler"].as_str().unwrap();
        let mut document = json!({ "back_ends": case["back_ends"] });
        if let Some(glb) = case.get("glb") {
            document["glb"] = glb.clone();
        }
        let size = case["size"].to_string();
        let size: &[&str] = if scheduler == "maglev" { &["--size", &size] } else { &[] };
        let file = File::new("vector", &document.to_string());
        let said = file.ring(&[&["--scheduler", scheduler, "--json"], size].concat()).good();
        let ring: Value = serde_json::from_str(&said.out).unwrap();
        assert_eq!((&ring["scheduler"], &ring["size"]), (&case["scheduler"], &case["size"]));
        let back_ends = case["back_ends"].as_array().unwrap();
        let names: Vec<&str> = back_ends.iter().map(|one| one["name"].as_str().unwrap()).collect();
        let first: Vec<Value> = ring["slots"].as_array().unwrap().iter().take(16).cloned().collect();
        assert_eq!(Value::from(first[..first.len().min(16)].to_vec()), case["first_slots"], "{scheduler}");
        assert_eq!(crc(&ring["slots"], &names), case["crc32"], "{scheduler} {size:?}");
        if scheduler == "glb" {
            assert_eq!(crc(&ring["second"], &names), case["second_crc32"]);
        }
    }
}

#[test]
fn hashes_are_those_of_the_vectors() {
    let (_, vectors) = vectors();
    for (name, hash) in vectors["names"].as_object().unwrap() {
        assert_eq!(format!("{:016x}", name_hash(name)), *hash, "{name}");
    }
    for flow in vectors["flows"].as_array().unwrap() {
        let number = |key: &str| flow[key].as_u64().unwrap();
        let ip = |key: &str| flow[key].as_str().unwrap().parse().unwrap();
        let ports = (number("sport") as u16, number("dport") as u16);
        let key = FlowKey::new(ip("source"), ip("destination"), number("protocol") as u8, ports, None);
        let hash = select_hash(number("hash_seed"), &key.0);
        assert_eq!(format!("{hash:016x}"), flow["select_hash"]);
        assert_eq!(((hash >> 32) * 65_537) >> 32, number("maglev_65537"));
        assert_eq!(KatranHash::default().slot(&key) as u64, number("katran"));
        let fields = GlbHash::SOURCE | GlbHash::SOURCE_PORT;
        let hash_key = 0x1234_5678_9012_3456_1234_5678_9012_3456_u128.to_be_bytes();
        assert_eq!(GlbHash { key: hash_key, fields }.row(&key) as u64, number("glb_of_source_and_port"));
    }
}

/// The vectors are what the other implementation computes, where Python is there to run it.
#[test]
fn the_vectors_are_what_the_document_says_in_another_language() {
    let (folder, _) = vectors();
    let Ok(output) =
        Command::new("python3").arg(folder.join("rings.py")).arg(folder.join("rings.json")).output()
    else {
        assert!(std::env::var_os("CI").is_none(), "CI has Python");
        return;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn slots_are_printed_with_their_back_ends() {
    let file = File::new("text", "- { name: a }\n- { name: b, weight: 2 }\n");
    let said = file.ring(&["--scheduler", "maglev", "--size", "7"]).good();
    let lines: Vec<&str> = said.out.lines().collect();
    assert_eq!(lines.len(), 7);
    assert!(lines[0].starts_with("0 ") && lines.iter().filter(|line| line.ends_with(" b")).count() == 5);
    let file = File::new(
        "rows",
        "glb: { seed: 34567890123456783456789012345678 }\nback_ends: [{ address: 1.2.3.4 }]",
    );
    assert!(file.ring(&["--scheduler", "glb"]).good().out.ends_with("\n65535 1.2.3.4 -\n"));
}

const CONFIGURATION: &str = "ports: { p0: { xdp: eth0, root: a, take: [{ dst: 192.0.2.1 }] } }\n\
    groups: { web: { fill: katran, targets: { r1: { address: 10.0.0.1 }, r2: { address: 10.0.0.2 } } } }\n\
    pipes: { a: { type: hash, hash: 5-tuple, group: web, forward: drop, miss: drop,\n  \
    entries: [{ match: { target: r1 } }, { match: { target: r2 } }] } }\n";

#[test]
fn the_ring_of_a_service_is_that_of_its_configuration() {
    let file = File::new("configuration", CONFIGURATION);
    let said = file.ring(&["--service", "web"]).good();
    let list = File::new("list", "- { name: r1, address: 10.0.0.1 }\n- { name: r2, address: 10.0.0.2 }\n");
    assert_eq!(said.out, list.ring(&["--scheduler", "katran"]).good().out);
    file.ring(&[]).refused(2, &["--service", "(web)"]);
    file.ring(&["--service", "wib"]).refused(2, &["no service or group called `wib` (web)"]);
    file.ring(&["--service", "web", "--scheduler", "glb"]).refused(2, &["filled by katran, not glb"]);
}

/// Both assign new flows without a ring; Maglev's is for what they do not assign (docs/pipes.md M26).
#[test]
fn round_robin_and_least_connections_have_no_ring() {
    let list = File::new("turns", "- { name: a }\n");
    for (scheduler, how) in [("round_robin", "in turn"), ("least_connections", "fewest connections")] {
        let said = ["has no ring", how, "--scheduler maglev"];
        let asked = list.ring(&["--scheduler", scheduler]);
        assert_eq!(asked.code, Some(2));
        said.iter().for_each(|part| assert!(asked.err.contains(part), "no `{part}` in {}", asked.err));
        let service = format!(
            "ports: {{ p0: {{ pcap: {{}} }} }}\napps:\n  - lb:\n      name: web\n      port: p0\n      \
             scheduler: {scheduler}\n      service: {{ vip: 192.0.2.1, protocol: udp, port: 80 }}\n      \
             back_ends:\n        - {{ name: a, mac: 02:00:00:00:00:01 }}\n        \
             - {{ name: b, mac: 02:00:00:00:00:02 }}\n"
        );
        let file = File::new(scheduler, &service);
        file.ring(&["--service", "web"]).refused(2, &said);
        let ring = file.ring(&["--service", "web", "--scheduler", "maglev"]).good().out;
        assert_eq!(
            ring,
            File::new("both", "- { name: a }\n- { name: b }\n")
                .ring(&["--scheduler", "maglev", "--size", "251"])
                .good()
                .out
        );
    }
    let asked = list.ring(&["--scheduler", "rendezvous"]);
    assert!(asked.code == Some(2) && asked.err.contains("maglev, katran, katran_v2, glb"), "{}", asked.err);
}

#[test]
fn a_bad_list_is_refused_with_line_and_caret() {
    for (scheduler, text, place, message) in [
        ("maglev", "- { name: a }\n- { name: a }\n", ":2:3:", "`a`"),
        ("maglev", "- { name: a, wait: 2 }\n", ":1:14:", "there is no key `wait` here"),
        ("maglev", "- { name: a, weight: 0 }\n", ":1:1:", "weight above 0"),
        ("maglev", "- { name: a, weight: 70000 }\n", ":1:22:", "65535"),
        ("maglev", "hello\n", ":1:1:", "back ends"),
        ("maglev", "- {}\n", ":1:3:", "needs a name, or an address"),
        ("katran", "- { name: a, address: 10.0.0 }\n", ":1:23:", "an IP address"),
        ("katran", "- { name: a }\n", ":1:3:", "needs an `address`"),
        ("katran", "- { name: a, address: ::1 }\n- { name: b, address: ::1 }\n", ":2:3:", "the same address"),
        ("glb", "- { address: 10.0.0.1 }\n", ":1:1:", "seed"),
        ("glb", "back_ends: [{ address: 10.0.0.1 }]\nglb: { seed: 12 }\n", ":2:14:", "32 hexadecimal digits"),
    ] {
        let said = File::new("bad", text).ring(&["--scheduler", scheduler]);
        assert_eq!(said.code, Some(2), "{text}{}", said.err);
        assert!(said.err.contains(place) && said.err.contains(message), "{text}{}", said.err);
        assert!(said.err.contains('^'), "{}", said.err);
    }
    let list = File::new("sizes", "- { name: a, address: 10.0.0.1 }\n");
    let sized = |scheduler: &str, size: &str| list.ring(&["--scheduler", scheduler, "--size", size]);
    assert!(sized("maglev", "100").err.contains("101 is one"));
    assert!(sized("katran", "251").err.contains("65537 buckets, not 251"));
    assert!(list.ring(&[]).err.contains("--scheduler"));
}
