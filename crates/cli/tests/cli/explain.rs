//! `weir explain` with the program of a file: hits, near misses, frames of a recording, JSON.

use super::folder::Folder;
use super::{TWO, record, weir};
use std::fs::File;
use weir_packet::craft::frame;
use weir_packet::{DropReason, FRAME_BYTES_MAX};
use weir_port::pcap::Writer;

fn prepared() -> Folder {
    let folder = Folder::new();
    folder.write("weir.yaml", TWO);
    folder
}

#[test]
fn a_hit_says_which_entry_what_it_changed_and_where_it_goes() {
    let folder = prepared();
    let packet = "src=192.0.2.3 dst=10.0.0.53 proto=udp sport=5000 dport=53";
    let said = weir(folder.path(), &["explain", "weir.yaml", "--packet", packet]).good();
    for part in [
        "pipe balance (basic)",
        "ipv4.src         192.0.2.3",
        "under mask 0x1",
        "hit     { match: { ipv4.src: 0.0.0.1 } }  at weir.yaml:14",
        "count   odd, 42 bytes",
        "eth.dst 02:00:00:00:00:02 -> 02:00:00:00:00:11",
        "verdict transmit on p1",
    ] {
        assert!(said.out.contains(part), "no `{part}` in\n{}", said.out);
    }
}

#[test]
fn a_near_miss_says_which_field_differs() {
    let folder = prepared();
    let said =
        weir(folder.path(), &["explain", "weir.yaml", "--packet", "src=192.0.2.3 dst=10.0.0.54"]).good();
    for part in [
        "miss",
        "nearest { match: { ipv4.src: 0.0.0.1 } }  at weir.yaml:14",
        "differs in ipv4.dst: expected 10.0.0.53, found 10.0.0.54",
        "verdict drop (miss)",
    ] {
        assert!(said.out.contains(part), "no `{part}` in\n{}", said.out);
    }
    // The packet does not have the field.
    let said = weir(folder.path(), &["explain", "weir.yaml", "--packet", "arp=request"]).good();
    assert!(said.out.contains("the packet does not have this field"), "{}", said.out);
}

#[test]
fn json_says_the_same() {
    let folder = prepared();
    let packet = "src=192.0.2.3 dst=10.0.0.53 dport=53";
    let json = weir(folder.path(), &["explain", "weir.yaml", "--json", "--packet", packet]).good().json();
    assert_eq!(
        (&json["verdict"]["transmit"], &json["agrees"], &json["input"]),
        (&"p1".into(), &true.into(), &"p0".into())
    );
    assert_eq!(json["pipes"][0]["lookup"]["hit"], "{ match: { ipv4.src: 0.0.0.1 } }");
    assert_eq!(json["pipes"][0]["counter"], "odd");
    let bytes = json["bytes"].as_str().unwrap();
    assert!(bytes.starts_with("020000000011020000000001"), "{bytes}");
    let json =
        weir(folder.path(), &["explain", "weir.yaml", "--json", "--packet", "dst=10.0.0.54"]).good().json();
    assert_eq!(json["verdict"]["drop"], "miss");
    assert_eq!(json["pipes"][0]["lookup"]["miss"][0]["field"], "ipv4.dst");
}

#[test]
fn wrong_checksums_are_shown_with_the_right_ones() {
    let folder = prepared();
    let mut bytes = frame("src=192.0.2.3 dst=10.0.0.53 dport=53");
    let right = u16::from_be_bytes([bytes[40], bytes[41]]);
    bytes[40..42].copy_from_slice(&0x1234_u16.to_be_bytes());
    let mut writer = Writer::new(File::create(folder.file("in.pcap")).unwrap()).unwrap();
    writer.write(0, bytes.len() as u32, &bytes).unwrap();
    writer.flush().unwrap();
    let explain = |more: &[&str]| {
        weir(folder.path(), &[&["explain", "weir.yaml", "--pcap", "in.pcap"][..], more].concat()).good()
    };
    let sentence = format!("udp checksum 0x1234 is wrong, expected {right:#06x}");
    assert!(explain(&[]).out.contains(&sentence), "{}", explain(&[]).out);
    let wrong = &explain(&["--json"]).json()["wrong_checksums"];
    assert_eq!(*wrong, serde_json::json!([{ "header": "udp", "found": 0x1234, "expected": right }]));
}

#[test]
fn frames_of_a_recording_are_numbered_from_one() {
    let folder = prepared();
    record(&folder.file("in.pcap"), &["dst=10.0.0.54", "src=192.0.2.2 dst=10.0.0.53"]);
    let explain = |more: &[&str]| {
        weir(folder.path(), &[&["explain", "weir.yaml", "--pcap", "in.pcap"][..], more].concat())
    };
    assert!(explain(&[]).good().out.contains("verdict drop (miss)"));
    assert!(explain(&["--frame", "2"]).good().out.contains("verdict transmit on p1"));
    assert!(explain(&["--frame", "2", "--port", "p1"]).good().out.contains("verdict drop (policy)"));
    explain(&["--frame", "3"]).refused(1, &["in.pcap", "2 frames", "no frame 3"]);
    explain(&["--frame", "0"]).refused(1, &["frame 0"]);
    explain(&["--port", "p7"]).refused(1, &["`p7`"]);
}

#[test]
fn bad_packets_are_one_sentence() {
    let folder = prepared();
    let explain = |packet: &str| weir(folder.path(), &["explain", "weir.yaml", "--packet", packet]);
    explain("src=192.0.2.300").refused(2, &["--packet", "`src=192.0.2.300`", "column 1"]);
    explain("proto=udp sprot=1").refused(2, &["`sprot=1`", "column 11", "no such key"]);
    explain("src=10.0.0.1 dst=fd00::1").refused(2, &["both be IPv4 or both be IPv6"]);
    explain("hex=abc").refused(2, &["even number of hex digits"]);
}

#[test]
fn f10_what_replay_drops_as_oversize_explain_does_too() {
    let folder = prepared();
    let lengths = [FRAME_BYTES_MAX, FRAME_BYTES_MAX + 1, 60_000];
    let packets = lengths.map(|length| format!("len={length} src=192.0.2.2 dst=10.0.0.53"));
    record(&folder.file("in.pcap"), &packets.each_ref().map(String::as_str));
    let json = weir(folder.path(), &["replay", "weir.yaml", "in.pcap", "--json"]).good().json();
    assert_eq!(
        (&json["frames"]["transmitted"], &json["frames"]["dropped"]["oversize"]),
        (&1.into(), &2.into())
    );
    for (number, verdict) in [("1", "transmit on p1"), ("2", "drop (oversize)"), ("3", "drop (oversize)")] {
        let explain = ["explain", "weir.yaml", "--pcap", "in.pcap", "--frame", number];
        let said = weir(folder.path(), &explain).good();
        assert!(said.out.contains(&format!("verdict {verdict}")), "{}", said.out);
    }
    let explanation = DropReason::Oversize.explanation();
    assert!(explanation.contains(&FRAME_BYTES_MAX.to_string()), "the limit is named: {explanation}");
}

#[test]
fn f10_with_an_mtu_of_9000_longer_frames_fit() {
    let folder = prepared();
    let text = std::fs::read_to_string(folder.file("weir.yaml")).unwrap();
    folder.write("weir.yaml", format!("mtu: 9000\n{text}"));
    // A buffer of 16 KiB minus 128 in front.
    let packets = [9014, 16256, 16257].map(|length| format!("len={length} src=192.0.2.2 dst=10.0.0.53"));
    record(&folder.file("in.pcap"), &packets.each_ref().map(String::as_str));
    let json = weir(folder.path(), &["replay", "weir.yaml", "in.pcap", "--json"]).good().json();
    let frames = &json["frames"];
    assert_eq!((&frames["transmitted"], &frames["dropped"]["oversize"]), (&2.into(), &1.into()), "{frames}");
    for (number, verdict) in [("1", "transmit on p1"), ("3", "drop (oversize)")] {
        let explain = ["explain", "weir.yaml", "--pcap", "in.pcap", "--frame", number];
        let said = weir(folder.path(), &explain).good();
        assert!(said.out.contains(&format!("verdict {verdict}")), "{}", said.out);
    }
}

#[test]
fn f10_frames_that_are_recorded_in_part_are_named() {
    let folder = prepared();
    let whole = frame("src=192.0.2.2 dst=10.0.0.53");
    let mut writer = Writer::new(File::create(folder.file("in.pcap")).unwrap()).unwrap();
    writer.write(0, 1514, &whole[..30]).unwrap();
    writer.write(1, whole.len() as u32, &whole).unwrap();
    writer.flush().unwrap();
    let replay = ["replay", "weir.yaml", "in.pcap"];
    let said = weir(folder.path(), &replay).good();
    let remark = "frames recorded only partly: 1; record with a larger snaplen (`tcpdump -s 0`)";
    assert!(said.out.contains(&format!("port p0: {remark}")), "{}", said.out);
    let json = weir(folder.path(), &[&replay[..], &["--json"]].concat()).good().json();
    assert_eq!(
        (&json["remarks"][0]["text"], &json["frames"]["dropped"]["malformed_ipv4"]),
        (&remark.into(), &1.into())
    );
    let explain = |number, more: &[&str]| {
        let words = ["explain", "weir.yaml", "--pcap", "in.pcap", "--frame", number];
        weir(folder.path(), &[&words[..], more].concat()).good()
    };
    let note = "note    the recording has 30 of the frame's 1514 bytes: record with a larger snaplen";
    assert!(explain("1", &[]).out.starts_with(note), "{}", explain("1", &[]).out);
    assert!(!explain("2", &[]).out.contains("note"), "{}", explain("2", &[]).out);
    assert_eq!(explain("1", &["--json"]).json()["recorded_of"], 1514);
    assert!(explain("2", &["--json"]).json()["recorded_of"].is_null());
}

#[test]
fn tags_options_and_extension_headers_are_named() {
    let folder = prepared();
    let frames = [
        "vlan=5@0x8100 second_vlan=7.3.dei src=10.0.0.1 dst=10.0.0.2 proto=udp sport=1 dport=2",
        "vlan=5@0x88a8 src=10.0.0.1 dst=10.0.0.2 proto=udp sport=1 dport=2",
        "src=10.0.0.1 dst=10.0.0.2 ip_options=94040000 proto=udp sport=1 dport=2",
        "src=fd00::1 dst=fd00::2 ext=hbh:050200000100 proto=udp sport=1 dport=2",
    ];
    record(&folder.file("in.pcap"), &frames);
    for (at, frame) in frames.into_iter().enumerate() {
        let number = (at + 1).to_string();
        let said =
            weir(folder.path(), &["explain", "weir.yaml", "--pcap", "in.pcap", "--frame", &number]).good();
        assert!(said.out.lines().next().is_some_and(|line| line.ends_with(frame)), "{}", said.out);
    }
}

/// Without a daemon, no app has assigned the buckets of a bond or admitted its members: that does not count
/// as a drop.
#[test]
fn what_an_app_decides_while_it_runs_is_not_called_a_drop() {
    let folder = Folder::new();
    let config = "ports: { p0: { mem: ~ }, p1: { mem: ~, mac: 02:00:00:00:00:01 }, p2: { mem: ~ } }\n\
        apps: [{ bond: { name: bond0, mode: static, members: [p1, p2], inside: p0 } }]\n";
    folder.write("bond.yaml", config);
    for (port, part) in [("p0", "bond0/members"), ("p1", "bond0/in")] {
        let arguments = ["explain", "bond.yaml", "--port", port, "--packet", "src=192.0.2.3 dst=10.0.0.53"];
        let said = weir(folder.path(), &arguments).good();
        let verdict = format!("verdict undecided: an app fills `{part}` while it runs");
        assert!(said.out.contains(&verdict), "{}", said.out);
        let json = weir(folder.path(), &[&arguments[..], &["--json"]].concat()).good().json();
        assert_eq!(json["verdict"]["undecided"], part);
    }
    let said =
        weir(folder.path(), &["explain", "bond.yaml", "--packet", "eth.dst=01:80:c2:00:00:0e type=0x88cc"]);
    assert!(said.out.contains("verdict drop (policy)"), "{}", said.out);
}

#[test]
fn a_program_that_uses_the_kernel_is_explained_with_who_decides() {
    let folder = Folder::new();
    folder.write(
        "kernel.yaml",
        "\
ports: { p0: { xdp: absent0, take: [{ dst: 10.0.0.53 }], kernel: require, root: choose } }
pipes:
  choose:
    type: basic
    match: { ipv4.src: per_entry }
    forward: per_entry
    miss: drop
    entries:
      - { match: { ipv4.src: 10.0.0.1 }, forward: in_port }
      - { match: { ipv4.src: 10.0.0.2 }, forward: rules }
  rules: { type: acl, match: { l4.dport: range }, rehash: true, forward: in_port, miss: drop }
",
    );
    for (packet, runs) in [
        ("src=10.0.0.1 dport=53", "in the kernel"),
        ("src=10.0.0.9 dport=53", "in the kernel"),
        ("src=10.0.0.2 dport=53", "in the engine: pipe `rules`: the pipe recomputes the flow key"),
    ] {
        let said = weir(folder.path(), &["explain", "kernel.yaml", "--packet", packet]).good();
        assert_eq!(said.out.lines().next(), Some(&*format!("runs    {runs}")), "{}", said.out);
    }
}
