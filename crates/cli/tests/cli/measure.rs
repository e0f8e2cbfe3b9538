//! `weir measure`: totals are those of the recording, regardless of compression; errors are reported, and the
//! rest is kept; sketch files merge.

use super::folder::Folder;
use super::{CommandOutput, record, weir};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use weir_packet::random::Random;

/// Ten frames in five flows, and one without IP.
const PACKETS: [&str; 11] = [
    "src=10.0.0.1 dst=10.0.0.9 proto=tcp sport=1000 dport=443 payload=000102",
    "src=10.0.0.1 dst=10.0.0.9 proto=tcp sport=1000 dport=443",
    "src=10.0.0.1 dst=10.0.0.9 proto=tcp sport=1000 dport=443",
    "src=10.0.0.1 dst=10.0.0.9 proto=tcp sport=1000 dport=443",
    "src=10.0.0.2 dst=10.0.0.9 proto=udp sport=5 dport=53",
    "src=10.0.0.2 dst=10.0.0.9 proto=udp sport=5 dport=53",
    "arp=request sender_ip=10.0.0.1 target_ip=10.0.0.2",
    "src=2001:db8::1 dst=2001:db8::2 proto=udp sport=5 dport=53",
    "src=2001:db8::1 dst=2001:db8::2 proto=udp sport=5 dport=53",
    "src=10.0.0.2 dst=10.0.0.9 proto=udp sport=6 dport=53",
    "src=1.1.1.1 dst=2.2.2.2 tunnel=vxlan vni=77 inner(src=10.0.0.1 dst=10.0.0.9 proto=tcp sport=1 dport=2)",
];

fn prepared() -> Folder {
    let folder = Folder::new();
    record(&folder.file("in.pcap"), &PACKETS);
    folder
}

fn measure(folder: &Folder, arguments: &[&str]) -> CommandOutput {
    weir(folder.path(), &[&["measure"], arguments].concat())
}

/// Returns the numbers of capinfos: packets and bytes.
fn capinfos(path: &Path) -> [Value; 2] {
    let output = Command::new("capinfos").args(["-TmrQcd"]).arg(path).output().expect("capinfos is there");
    let text = String::from_utf8(output.stdout).unwrap();
    let numbers: Vec<u64> =
        text.trim().split(',').rev().take(2).map(|word| word.trim_matches('"').parse().unwrap()).collect();
    [numbers[1].into(), numbers[0].into()]
}

#[test]
fn totals_and_flows_are_those_of_the_recording() {
    let folder = prepared();
    let json = measure(&folder, &["in.pcap", "--json", "--exact", "--interval", "4ms"]).good().json();
    assert_eq!([json["packets"].clone(), json["bytes"].clone()], capinfos(&folder.file("in.pcap")));
    assert_eq!((&json["flows"]["exact"], &json["unflowed"][0]["reason"]), (&5.0.into(), &"arp".into()));
    assert_eq!(json["flows"]["estimate"].as_f64().unwrap().round(), 5.0);
    let top = &json["top"][0];
    assert_eq!(top["key"], "tcp 10.0.0.1:1000 > 10.0.0.9:443");
    assert_eq!((&top["packets"], &top["exact_packets"], &top["bound"]), (&4.into(), &4.into(), &0.into()));
    assert_eq!(top["bytes"], top["exact_bytes"]);
    let keys: Vec<&str> =
        json["top"].as_array().unwrap().iter().map(|row| row["key"].as_str().unwrap()).collect();
    assert!(keys.contains(&"tcp 10.0.0.1:1 > 10.0.0.9:2 vni 77"), "{keys:?}");
    let intervals = json["intervals"].as_array().unwrap();
    let packets: Vec<u64> = intervals.iter().map(|one| one["packets"].as_u64().unwrap()).collect();
    assert_eq!(packets, [4, 4, 3]);
    assert_eq!(intervals[1]["changes"][0]["change"]["estimate"], -4.0);
    let text = measure(&folder, &["in.pcap"]).good().out;
    assert!(text.contains("11 packets") && text.contains("udp 10.0.0.2:5 > 10.0.0.9:53"), "{text}");
}

#[test]
fn the_same_packed_in_pieces_and_from_a_pipe() {
    let folder = prepared();
    let plain = std::fs::read(folder.file("in.pcap")).unwrap();
    folder.write(
        "in.zst",
        ruzstd::encoding::compress_to_vec(&plain[..], ruzstd::encoding::CompressionLevel::Fastest),
    );
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gzip, &plain).unwrap();
    folder.write("in.gz", gzip.finish().unwrap());
    let of = |json: Value| (json["packets"].clone(), json["bytes"].clone(), json["top"].clone());
    let expected = of(measure(&folder, &["in.pcap", "--json"]).good().json());
    for name in ["in.zst", "in.gz"] {
        assert_eq!(of(measure(&folder, &[name, "--json"]).good().json()), expected, "{name}");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["measure", "-", "--json"]).stdin(std::fs::File::open(folder.file("in.pcap")).unwrap());
    assert_eq!(
        of(CommandOutput::of(command.stdout(Stdio::piped()).output().unwrap()).good().json()),
        expected
    );
    let twice = measure(&folder, &["in.pcap", "in.gz", "--json"]).good().json();
    assert_eq!((&twice["packets"], &twice["backwards"]), (&22.into(), &1.into()));
}

#[test]
fn what_is_wrong_is_said_and_the_rest_kept() {
    let folder = prepared();
    let plain = std::fs::read(folder.file("in.pcap")).unwrap();
    folder.write("cut.pcap", &plain[..plain.len() - 3]);
    let said = measure(&folder, &["cut.pcap", "in.pcap", "--json"]);
    assert_eq!(said.json()["packets"], 21);
    assert!(said.json()["files"][0]["error"].as_str().unwrap().contains("the file ends within"));
    said.refused(1, &["cut.pcap: byte", "the 10 packets before that are counted"]);
    folder.write("empty.pcap", "");
    measure(&folder, &["empty.pcap"]).refused(2, &["the file is empty"]);
    folder.write("text", "this is no recording");
    measure(&folder, &["text"]).refused(2, &["not a recording"]);
    measure(&folder, &["absent"]).refused(2, &["absent", "cannot be opened"]);
    let mut other = plain.clone();
    other[20] = 105;
    folder.write("wlan.pcap", other);
    measure(&folder, &["wlan.pcap"]).refused(2, &["link type 105 (802.11): weir reads Ethernet, IP"]);
    let full = measure(&folder, &["in.pcap", "--json", "--save", "/dev/full"]);
    assert_eq!(full.json()["packets"], 11);
    full.refused(1, &["/dev/full", "No space left"]);
    measure(&folder, &["in.pcap", "--save", "in.pcap"]).refused(2, &["is the same file"]);
}

/// Packets of each conversation, by protocol and both ends in order, according to Wireshark.
fn conversations(path: &Path, protocol: &str) -> BTreeMap<[String; 3], u64> {
    let mut tshark = Command::new("tshark");
    tshark.args(["-n", "-q", "-z", &format!("conv,{protocol}"), "-r"]).arg(path);
    let output = tshark.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let conversation = |line: &str| {
        let (one, rest) = line.split_once(" <-> ")?;
        let mut words = rest.split_whitespace();
        let other = words.next()?;
        // Packets and bytes (a number and a unit) in one direction, in the other, and in both.
        Some((ends(protocol, one.trim(), other), words.nth(6)?.parse().ok()?))
    };
    text.lines().filter_map(conversation).collect()
}

/// Returns a conversation: both its ends, the smaller first.
fn ends(protocol: &str, one: &str, other: &str) -> [String; 3] {
    let mut ends = [one, other];
    ends.sort_unstable();
    [protocol, ends[0], ends[1]].map(str::to_string)
}

#[test]
fn conversations_are_those_of_wireshark() {
    if Command::new("tshark").arg("--version").output().is_err() {
        assert!(std::env::var_os("CI").is_none(), "CI has tshark");
        eprintln!("skipped: there is no tshark");
        return;
    }
    let folder = Folder::new();
    let mut random = Random::new(1);
    let mut below = |end| random.below(end);
    let recipes: Vec<String> = (0..3000)
        .map(|_| {
            let [src, dst] =
                if below(3) == 0 { ["2001:db8::", "2001:db8::1:"] } else { ["10.0.0.", "10.1.0."] };
            let (a, b) = (format!("{src}{}", 1 + below(9)), format!("{dst}{}", 1 + below(4)));
            let (protocol, port) = (["tcp", "udp"][below(2) as usize], 1000 + below(20));
            match below(3) {
                0 => format!("src={b} dst={a} proto={protocol} sport=443 dport={port}"),
                _ => format!("src={a} dst={b} proto={protocol} sport={port} dport=443"),
            }
        })
        .collect();
    let path = folder.file("in.pcap");
    record(&path, &recipes.iter().map(String::as_str).collect::<Vec<_>>());
    let json = measure(&folder, &["in.pcap", "--json", "--exact", "--top", "10000"]).good().json();
    let mut measured = BTreeMap::new();
    for row in json["top"].as_array().unwrap() {
        let words: Vec<&str> = row["key"].as_str().unwrap().split(' ').collect();
        let end = |end: &str| end.replace(['[', ']'], "");
        let of = ends(words[0], &end(words[1]), &end(words[3]));
        *measured.entry(of).or_insert(0) += row["exact_packets"].as_u64().unwrap();
    }
    let mut expected = conversations(&path, "tcp");
    expected.extend(conversations(&path, "udp"));
    assert!(expected.len() > 500, "{}", expected.len());
    assert_eq!(measured, expected);
}

/// As written by `tcpdump -i any`, and with plain IP: flows are those of Ethernet, totals those of the file.
#[test]
fn a_recording_without_ethernet_has_the_same_flows() {
    let folder = prepared();
    let keys =
        |json: &Value| json["top"].as_array().unwrap().iter().map(|row| row["key"].to_string()).collect();
    let expected: Vec<String> = keys(&measure(&folder, &["in.pcap", "--json"]).good().json());
    let plain = std::fs::read(folder.file("in.pcap")).unwrap();
    for (link, front) in [(101, 0), (113, 14), (276_u16, 20)] {
        let mut file = [&plain[..20], &u32::from(link).to_le_bytes()].concat();
        let mut at = 24;
        while at < plain.len() {
            let captured = u32::from_le_bytes(plain[at + 8..at + 12].try_into().unwrap()) as usize;
            let (head, frame) = (&plain[at..at + 8], &plain[at + 16..at + 16 + captured]);
            let front = match front {
                14 => [&[0; 14], &frame[12..14]].concat(),
                20 => [&frame[12..14], &[0; 18]].concat(),
                _ => Vec::new(),
            };
            let packet = [&front, &frame[14..]].concat();
            let length = (packet.len() as u32).to_le_bytes();
            file.extend([head, &length, &length, &packet].concat());
            at += 16 + captured;
        }
        folder.write("other.pcap", file);
        let json = measure(&folder, &["other.pcap", "--json"]).good().json();
        assert_eq!([json["packets"].clone(), json["bytes"].clone()], capinfos(&folder.file("other.pcap")));
        assert_eq!(keys(&json), expected, "{link}");
    }
}

/// Prints the contents of a Parquet file, using independent readers; exits with 7 if Python has neither.
const READER: &str = r#"
import sys
columns = ["sourceIPAddress", "destinationIPAddress", "sourceTransportPort", "destinationTransportPort",
    "protocolIdentifier", "layer2SegmentId", "packetDeltaCount", "layer2OctetDeltaCount"]
try:
    import duckdb
    rows = duckdb.sql(f"select {', '.join(columns)} from '{sys.argv[1]}'").fetchall()
except ImportError:
    try:
        import pyarrow.parquet
    except ImportError:
        sys.exit(7)
    table = pyarrow.parquet.read_table(sys.argv[1]).to_pylist()
    rows = [[row[column] for column in columns] for row in table]
for row in rows:
    print(*row)
"#;

#[test]
fn other_programs_read_the_flows_of_a_recording() {
    let folder = prepared();
    if cfg!(not(feature = "parquet")) {
        measure(&folder, &["in.pcap", "--parquet", "out"]).refused(2, &["`--features parquet`"]);
        return;
    }
    drop(measure(&folder, &["in.pcap", "--parquet", "out.parquet"]).good());
    measure(&folder, &["in.pcap", "--parquet", "absent/out"]).refused(1, &["absent/out cannot be written"]);
    let python = Command::new("python3").args(["-c", READER]).arg(folder.file("out.parquet")).output();
    let Some(output) = python.ok().filter(|output| output.status.code() != Some(7)) else {
        eprintln!("skipped: Python has neither duckdb nor pyarrow (`pip install duckdb`)");
        return;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let expected = [
        "10.0.0.1 10.0.0.9 1000 443 6 None 4 219",
        "10.0.0.2 10.0.0.9 5 53 17 None 2 84",
        "2001:db8::1 2001:db8::2 5 53 17 None 2 124",
        "10.0.0.2 10.0.0.9 6 53 17 None 1 42",
        "10.0.0.1 10.0.0.9 1 2 6 77 1 104",
    ];
    assert_eq!(text.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn sketch_files_merge_and_others_are_refused() {
    let folder = prepared();
    measure(&folder, &["in.pcap", "--save", "a.sk", "--html", "a.html", "--apache", "apache"]).good();
    measure(&folder, &["in.pcap", "in.pcap", "--save", "b.sk"]).good();
    let merged = measure(&folder, &["merge", "a.sk", "b.sk", "--json", "--save", "c.sk"]).good().json();
    assert_eq!((&merged["packets"], &merged["top"][0]["packets"]), (&33.into(), &12.into()));
    let again = measure(&folder, &["merge", "c.sk", "--json"]).good().json();
    assert_eq!((&again["top"], &again["packets"]), (&merged["top"], &merged["packets"]));
    let page = std::fs::read_to_string(folder.file("a.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("tcp 10.0.0.1:1000"));
    assert!(folder.file("apache").join("top-flows.frequent").exists());
    measure(&folder, &["in.pcap", "--seed", "5", "--save", "d.sk"]).good();
    measure(&folder, &["merge", "a.sk", "d.sk"]).refused(2, &["a.sk and d.sk", "different seeds", "--seed"]);
    measure(&folder, &["in.pcap", "--flow", "pair", "--save", "e.sk"]).good();
    measure(&folder, &["merge", "a.sk", "e.sk"]).refused(2, &["different flow keys"]);
    let bytes = std::fs::read(folder.file("a.sk")).unwrap();
    folder.write("cut.sk", &bytes[..bytes.len() - 9]);
    measure(&folder, &["merge", "a.sk", "cut.sk"]).refused(2, &["cut.sk", "damaged"]);
    measure(&folder, &["merge", "in.pcap"]).refused(2, &["not a sketch file"]);
}
