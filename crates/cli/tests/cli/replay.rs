//! `weir replay` is repeatable byte for byte, and reports recordings that end early.

use super::folder::Folder;
use super::{CommandOutput, TWO, record, recorded, weir};
use std::path::Path;

const PACKETS: [&str; 4] = [
    "src=192.0.2.2 dst=10.0.0.53 dport=53 payload=00",
    "src=192.0.2.3 dst=10.0.0.53 dport=53 payload=0001",
    "src=192.0.2.3 dst=10.0.0.54 dport=53",
    "src=192.0.2.5 dst=10.0.0.53 proto=tcp",
];

fn prepared() -> Folder {
    let folder = Folder::new();
    folder.write("weir.yaml", TWO);
    record(&folder.file("in.pcap"), &PACKETS);
    folder
}

#[test]
fn equal_inputs_give_equal_bytes() {
    let folder = prepared();
    let run =
        |out: &str| weir(folder.path(), &["replay", "weir.yaml", "in.pcap", "-o", out, "--json"]).good();
    let (one, other) = (run("one.pcap"), run("other.pcap"));
    assert_eq!(one.out, other.out);
    let bytes = |name: &str| std::fs::read(folder.file(name)).unwrap();
    assert_eq!(bytes("one.pcap"), bytes("other.pcap"));
    assert_eq!(
        recorded(&folder.file("one.pcap")),
        [
            "eth.dst=02:00:00:00:00:10 src=192.0.2.2 dst=10.0.0.53 proto=udp sport=1000 dport=53 payload=00",
            "eth.dst=02:00:00:00:00:11 src=192.0.2.3 dst=10.0.0.53 proto=udp sport=1000 dport=53 \
                payload=0001",
            "eth.dst=02:00:00:00:00:11 src=192.0.2.5 dst=10.0.0.53 proto=tcp sport=1000 dport=2000 flags=S",
        ]
    );
    let json = one.json();
    assert_eq!((&json["frames"]["received"], &json["frames"]["transmitted"]), (&4.into(), &3.into()));
    assert_eq!((&json["frames"]["dropped"]["miss"], &json["balances"]), (&1.into(), &true.into()));
    assert_eq!((&json["counters"][1]["name"], &json["counters"][1]["packets"]), (&"odd".into(), &2.into()));
    assert_eq!((&json["pipes"][0]["hits"], &json["pipes"][0]["misses"]), (&3.into(), &1.into()));
}

#[test]
fn ports_are_named_or_first_and_last() {
    let folder = prepared();
    let said = weir(
        folder.path(),
        &["replay", "weir.yaml", "p0=in.pcap", "-o", "p1=out.pcap", "-o", "p0=none.pcap"],
    );
    let said = said.good();
    assert!(
        said.out.starts_with("4 received, 3 transmitted, 0 to the kernel, 0 to apps, 1 dropped\n"),
        "{}",
        said.out
    );
    assert!(said.out.contains("miss: No entry of a pipe matched"), "{}", said.out);
    assert_eq!((recorded(&folder.file("out.pcap")).len(), recorded(&folder.file("none.pcap")).len()), (3, 0));
}

#[test]
fn what_is_for_the_kernel_can_be_recorded() {
    let folder = prepared();
    folder.write("kernel.yaml", TWO.replace("miss: drop", "miss: kernel"));
    // Frames to the kernel are counted even where nothing records them.
    let json = weir(folder.path(), &["replay", "kernel.yaml", "in.pcap", "--json"]).good().json();
    assert_eq!(json["frames"]["to_kernel"], 1);
    weir(folder.path(), &["replay", "kernel.yaml", "in.pcap", "-k", "host.pcap"]).good();
    assert_eq!(recorded(&folder.file("host.pcap")).len(), 1);
}

#[test]
fn a_recording_cut_short_names_the_byte_and_keeps_what_came_before() {
    let folder = prepared();
    let whole = std::fs::read(folder.file("in.pcap")).unwrap();
    // Within the third record's data: it follows the header and two records of 43 and 44 bytes.
    let third = 24 + 16 + 43 + 16 + 44;
    folder.write("cut.pcap", &whole[..third + 16 + 5]);
    let said = weir(folder.path(), &["replay", "weir.yaml", "cut.pcap", "-o", "out.pcap"]);
    assert_eq!(said.code, Some(1));
    assert_eq!(said.err.lines().count(), 1, "{}", said.err);
    let place = format!("byte {}", third + 16);
    assert!(said.err.contains(&place) && said.err.contains("ends within a record's data"), "{}", said.err);
    assert!(said.out.starts_with("2 received, 2 transmitted"), "{}", said.out);
    assert_eq!(recorded(&folder.file("out.pcap")).len(), 2);
    let json = weir(folder.path(), &["replay", "weir.yaml", "cut.pcap", "--json"]).json();
    assert!(json["error"].as_str().is_some_and(|error| error.contains(&place)), "{json}");
    assert_eq!((&json["frames"]["received"], &json["balances"]), (&2.into(), &true.into()));
}

#[test]
fn a_garbled_length_names_the_byte_too() {
    let folder = prepared();
    let mut bytes = std::fs::read(folder.file("in.pcap")).unwrap();
    let second = 24 + 16 + 43;
    bytes[second + 8..second + 12].copy_from_slice(&0x7fff_ffff_u32.to_le_bytes());
    folder.write("garbled.pcap", &bytes);
    let said = weir(folder.path(), &["replay", "weir.yaml", "garbled.pcap", "-o", "out.pcap"]);
    assert_eq!(said.code, Some(1));
    assert!(
        said.err.contains(&format!("byte {second}")) && said.err.contains("the file is corrupt here"),
        "{}",
        said.err
    );
    assert_eq!(recorded(&folder.file("out.pcap")).len(), 1);
}

#[test]
fn what_is_no_recording_is_refused_by_name() {
    let folder = prepared();
    folder.write("empty.pcap", b"");
    folder.write("text.pcap", b"hello, world");
    weir(folder.path(), &["replay", "weir.yaml", "empty.pcap"]).refused(1, &["empty.pcap", "empty"]);
    weir(folder.path(), &["replay", "weir.yaml", "text.pcap"]).refused(1, &["text.pcap", "not a recording"]);
    weir(folder.path(), &["replay", "weir.yaml", "none.pcap"]).refused(1, &["none.pcap", "No such file"]);
    weir(folder.path(), &["replay", "weir.yaml", "in.pcap", "-o", "no/such/folder.pcap"])
        .refused(1, &["no/such/folder.pcap", "cannot be written"]);
}

#[test]
fn a_misspelt_port_is_not_taken_for_a_file() {
    let folder = prepared();
    let replay = |arguments: &[&str]| {
        let all = [&["replay", "weir.yaml"], arguments].concat();
        weir(folder.path(), &all)
    };
    replay(&["zz=in.pcap"]).refused(2, &["zz=in.pcap", "no port `zz`", "p0, p1", "./zz=in.pcap"]);
    replay(&["in.pcap", "-o", "zz=out.pcap"]).refused(2, &["-o zz=out.pcap", "no port `zz`", "p0, p1"]);
    replay(&["in.pcap", "-k", "P0=out.pcap"]).refused(2, &["-k P0=out.pcap", "no port `P0`"]);
    assert!(!folder.file("zz=out.pcap").exists());
    // A file with such a name is specified with its folder.
    std::fs::copy(folder.file("in.pcap"), folder.file("zz=in.pcap")).unwrap();
    let said = replay(&["./zz=in.pcap", "-o", "p1=./a=b.pcap"]).good();
    assert!(said.out.starts_with("4 received, 3 transmitted"), "{}", said.out);
    assert_eq!(recorded(&folder.file("a=b.pcap")).len(), 3);
}

#[test]
fn a_port_has_one_file() {
    let folder = prepared();
    let replay = |arguments: &[&str]| {
        let all = [&["replay", "weir.yaml"], arguments].concat();
        weir(folder.path(), &all)
    };
    replay(&["in.pcap", "-o", "p1=a.pcap", "-o", "p1=b.pcap"])
        .refused(2, &["p1=b.pcap", "`p1` already has a.pcap"]);
    replay(&["in.pcap", "-o", "a.pcap", "-o", "p1=b.pcap"])
        .refused(2, &["p1=b.pcap", "`p1` already has a.pcap"]);
    replay(&["in.pcap", "-o", "a.pcap", "-o", "b.pcap"]).refused(2, &["b.pcap", "PORT=b.pcap", "p0, p1"]);
    replay(&["p0=in.pcap", "p0=other.pcap"]).refused(2, &["p0=other.pcap", "`p0` already has in.pcap"]);
    replay(&["in.pcap", "in.pcap", "in.pcap"]).refused(2, &["say which port", "p0, p1"]);
    assert!(!folder.file("a.pcap").exists() && !folder.file("b.pcap").exists());
}

/// This holds whether the same file is named by another path, a hard link, a symbolic link or a dangling one.
#[test]
fn no_file_is_both_read_and_written_or_written_twice() {
    let folder = prepared();
    let before = std::fs::read(folder.file("in.pcap")).unwrap();
    let yaml = std::fs::read(folder.file("weir.yaml")).unwrap();
    std::fs::hard_link(folder.file("in.pcap"), folder.file("hard.pcap")).unwrap();
    std::os::unix::fs::symlink("in.pcap", folder.file("soft.pcap")).unwrap();
    std::os::unix::fs::symlink("new.pcap", folder.file("dangling.pcap")).unwrap();
    let absolute = folder.file("in.pcap").display().to_string();
    for output in ["in.pcap", "./in.pcap", "hard.pcap", "soft.pcap", &absolute] {
        let parts = [output, "the output of port `p1`", "the same file as in.pcap", "the input of port `p0`"];
        weir(folder.path(), &["replay", "weir.yaml", "in.pcap", "-o", output]).refused(1, &parts);
        weir(folder.path(), &["replay", "weir.yaml", "in.pcap", "-k", output]).refused(1, &parts[2..]);
    }
    for (one, other) in [("new.pcap", "./new.pcap"), ("new.pcap", "dangling.pcap")] {
        let (one, other) = (format!("p0={one}"), format!("p1={other}"));
        let said = weir(folder.path(), &["replay", "weir.yaml", "in.pcap", "-o", &one, "-o", &other]);
        said.refused(1, &["the output of port `p1`", "the output of port `p0`", "its own file"]);
    }
    weir(folder.path(), &["replay", "weir.yaml", "in.pcap", "-o", "weir.yaml"])
        .refused(1, &["the same file as weir.yaml", "the configuration"]);
    assert!(!folder.file("new.pcap").exists());
    assert_eq!(std::fs::read(folder.file("in.pcap")).unwrap(), before);
    assert_eq!(std::fs::read(folder.file("weir.yaml")).unwrap(), yaml);
    // A device may be shared freely.
    let null = ["replay", "weir.yaml", "in.pcap", "-o", "p0=/dev/null", "-o", "p1=/dev/null"];
    weir(folder.path(), &null).good();
}

/// Checks whether a port's frames are all accounted for: transmitted, or lost with the disk.
fn full(said: &CommandOutput, reason: &str, files: &[&str]) {
    assert_eq!(said.code, Some(1), "{}{}", said.out, said.err);
    for part in files {
        assert!(said.err.contains(part), "no `{part}` in: {}", said.err);
    }
    assert!(said.err.contains(reason), "{}", said.err);
}

#[test]
fn a_full_disk_is_an_error_that_names_the_file_and_no_frame_counts_as_transmitted() {
    let folder = prepared();
    let said = weir(folder.path(), &["replay", "weir.yaml", "in.pcap", "-o", "/dev/full", "--json"]);
    full(&said, "No space left on device", &["/dev/full"]);
    assert_eq!(said.err.lines().count(), 1, "{}", said.err);
    let json = said.json();
    let frames = &json["frames"];
    assert_eq!((&frames["transmitted"], &frames["dropped"]["not_written"]), (&0.into(), &3.into()), "{json}");
    assert_eq!(
        (&frames["dropped"]["transmit_full"], &json["balances"]),
        (&serde_json::Value::Null, &true.into())
    );
    assert!(json["error"].as_str().is_some_and(|error| error.contains("/dev/full")), "{json}");
    folder.write("kernel.yaml", TWO.replace("miss: drop", "miss: kernel"));
    let said = weir(folder.path(), &["replay", "kernel.yaml", "in.pcap", "-k", "/dev/full", "--json"]);
    full(&said, "No space left on device", &["/dev/full"]);
    assert_eq!(said.json()["frames"]["dropped"]["not_written"], 1);
    folder.write("trace.yaml", TWO.replace("{ pcap: {}, root", "{ pcap: {}, trace: no/t.pcap, root"));
    std::fs::create_dir(folder.file("no")).unwrap();
    std::os::unix::fs::symlink("/dev/full", folder.file("no/t.in.pcap")).unwrap();
    full(&weir(folder.path(), &["replay", "trace.yaml", "in.pcap"]), "No space left", &["p0", "its trace"]);
}

/// A file system that fills up in the middle of a file, simulated by a limit on the file size.
#[test]
fn of_a_disk_that_fills_up_what_is_whole_in_the_file_counts_as_transmitted() {
    let folder = Folder::new();
    folder.write("weir.yaml", TWO);
    let recipes: Vec<String> =
        (0..1000).map(|n| format!("src=192.0.2.{} dst=10.0.0.53 payload={:0>800}", n % 250, "0")).collect();
    record(&folder.file("in.pcap"), &recipes.iter().map(String::as_str).collect::<Vec<_>>());
    // In blocks of 512 bytes in dash, of 1024 in bash. The signal would kill weir before it could report the
    // error.
    let script = format!(
        "trap '' XFSZ; ulimit -f 200; exec '{}' replay weir.yaml in.pcap -o out.pcap --json >said 2>errors",
        env!("CARGO_BIN_EXE_weir")
    );
    let status = std::process::Command::new("sh").args(["-c", &script]).current_dir(folder.path()).status();
    assert_eq!(status.unwrap().code(), Some(1));
    let read = |name: &str| std::fs::read_to_string(folder.file(name)).unwrap();
    let said = CommandOutput { out: read("said"), err: read("errors"), code: Some(1) };
    full(&said, "File too large", &["p1", "out.pcap"]);
    let json = said.json();
    let whole = weir_port::pcap::Reader::open(std::fs::File::open(folder.file("out.pcap")).unwrap()).unwrap();
    let whole = whole.filter(|record| record.is_ok()).count() as u64;
    assert!(whole > 100 && whole < 900, "{whole}");
    assert_eq!(json["frames"]["transmitted"], whole, "{json}");
    assert_eq!(json["frames"]["dropped"]["not_written"], 1000 - whole, "{json}");
    assert_eq!(json["balances"], true);
}

/// Writes a recording of two flows in turn, at these times in nanoseconds.
fn record_at(path: &Path, times: &[u64]) {
    let packet = |recipe: &str| recipe.parse::<weir_packet::craft::Recipe>().unwrap().build();
    let both = [packet(PACKETS[0]), packet(PACKETS[1])];
    let mut writer = weir_port::pcap::Writer::new(std::fs::File::create(path).unwrap()).unwrap();
    for (time_ns, bytes) in times.iter().zip(both.iter().cycle()) {
        writer.write(*time_ns, bytes.len() as u32, bytes).unwrap();
    }
    writer.flush().unwrap();
}

const S: u64 = 1_000_000_000;
const YEAR: u64 = 365 * 86_400 * S;

/// A second flow finds no room while the first exists.
const FLOWS: &str = "\
ports:
  p0: { pcap: {}, root: flows }
  p1: { pcap: {} }
pipes:
  flows:
    type: flow
    learn: default
    capacity: 1
    monitor: { idle_timeout: 30s }
    forward: p1
    miss: drop
    entries:
      - { match: default }
";

/// The times of a recording.
fn times(path: &Path) -> Vec<u64> {
    let records = weir_port::pcap::Reader::open(std::fs::File::open(path).unwrap()).unwrap();
    records.map(|record| record.unwrap().time_ns).collect()
}

#[test]
fn time_jumps_over_silences_and_flows_go_in_them() {
    let folder = Folder::new();
    folder.write("weir.yaml", FLOWS);
    // Half a day of silence after each of a hundred thousand frames.
    let all: Vec<u64> = (0..100_000).map(|n| S + n * (YEAR / 1000)).collect();
    record_at(&folder.file("in.pcap"), &all);
    let said = weir(folder.path(), &["replay", "weir.yaml", "in.pcap", "-o", "out.pcap", "--json"]).good();
    assert_eq!(times(&folder.file("out.pcap")), all);
    assert_eq!(said.json()["pipes"][0]["unflowed_full"], 0, "{}", said.out);
    for (gap, unflowed) in [(29, 1), (32, 0), (54 * 365 * 86_400, 0)] {
        record_at(&folder.file("two.pcap"), &[S, S + gap * S]);
        let json = weir(folder.path(), &["replay", "weir.yaml", "two.pcap", "--json"]).good().json();
        assert_eq!(json["pipes"][0]["unflowed_full"], unflowed, "{gap} s: {json}");
    }
}

#[test]
fn odd_times_are_told_and_cost_nothing() {
    let folder = Folder::new();
    folder.write("weir.yaml", FLOWS);
    let start = 50 * YEAR;
    record_at(&folder.file("in.pcap"), &[start, start + S, 88 * YEAR, start + 2 * S, start + 3 * S]);
    let said = weir(folder.path(), &["replay", "weir.yaml", "in.pcap", "-o", "out.pcap"]).good();
    assert_eq!(times(&folder.file("out.pcap")), [0, 1, 1, 2, 3].map(|at| start + at * S));
    assert!(said.out.contains("  port p0: frames with implausible timestamps"), "{}", said.out);
    record_at(&folder.file("in.pcap"), &[start, 104 * YEAR, 104 * YEAR + S, start, start + S]);
    let said = weir(folder.path(), &["replay", "weir.yaml", "in.pcap"]).good();
    for part in ["p0: gaps of more than a day: 1", "p0: times that its clock went backwards"] {
        assert!(said.out.contains(part), "{}", said.out);
    }
}

/// LACP wants to be woken every second, and 54 years have many.
#[test]
fn apps_sleep_through_what_no_recording_lasts() {
    let folder = Folder::new();
    let file = format!("{}/../../configs/lb-over-bond.yaml", env!("CARGO_MANIFEST_DIR"));
    record_at(&folder.file("in.pcap"), &[S, 54 * YEAR, 54 * YEAR + 5 * S]);
    let said = weir(folder.path(), &["replay", &file, "p1=in.pcap"]).good();
    assert!(said.out.contains("apps waited for 1") && said.out.contains("gaps of more"), "{}", said.out);
}

/// A pcapng of Ethernet and LINUX_SLL, with alternating packets.
fn mixed(foreign_only: bool) -> Vec<u8> {
    let block = |kind: u32, body: &[u8]| {
        let length = (body.len() as u32 + 12).to_le_bytes();
        [&kind.to_le_bytes(), &length, body, &length].concat()
    };
    let section = [&0x1a2b_3c4d_u32.to_le_bytes()[..], &[1, 0, 0, 0], &[0xff; 8]].concat();
    let interface = |link: u8| block(1, &[link, 0, 0, 0, 0, 0, 0, 0]);
    let mut all = [block(0x0a0d_0d0a, &section), interface(1), interface(113)].concat();
    for recipe in PACKETS {
        let mut bytes = recipe.parse::<weir_packet::craft::Recipe>().unwrap().build();
        let length = (bytes.len() as u32).to_le_bytes();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        let interfaces = if foreign_only { &[1_u8][..] } else { &[1, 0] };
        for interface in interfaces {
            let head = [&[*interface, 0, 0, 0], &[0; 8][..], &length, &length].concat();
            all.extend(block(6, &[head, bytes.clone()].concat()));
        }
    }
    all
}

#[test]
fn packets_of_other_link_types_are_skipped_and_named() {
    let folder = prepared();
    folder.write("mixed.pcapng", mixed(false));
    let said = weir(folder.path(), &["replay", "weir.yaml", "mixed.pcapng", "-o", "out.pcap"]).good();
    assert!(said.out.starts_with("4 received, 3 transmitted"), "{}", said.out);
    let line = "  port p0: packets skipped, of link type 113 (LINUX_SLL, a recording of `any`): 4\n";
    assert!(said.out.contains(line) && !said.out.contains("truncated"), "{}", said.out);
    let json = weir(folder.path(), &["replay", "weir.yaml", "mixed.pcapng", "--json"]).good().json();
    assert_eq!((&json["remarks"][0]["port"], &json["remarks"][0]["error"]), (&"p0".into(), &false.into()));
    // Frames are numbered as in Wireshark.
    let explain = |number: &str| {
        weir(folder.path(), &["explain", "weir.yaml", "--pcap", "mixed.pcapng", "--frame", number])
    };
    assert!(explain("2").good().out.contains("192.0.2.2"));
    explain("3").refused(1, &["frame 3 of mixed.pcapng", "not Ethernet"]);
    explain("9").refused(1, &["has 8 frames"]);
    folder.write("foreign.pcapng", mixed(true));
    let said = weir(folder.path(), &["replay", "weir.yaml", "foreign.pcapng"]);
    said.refused(1, &["p0: nothing to read", "link type 113 (LINUX_SLL", "only Ethernet (1)"]);
}
