//! The messages of `weir measure` about odd or damaged recordings, about incompatible sketch files, and when
//! there is no room for results: the rest is kept.

use super::folder::Folder;
use super::{CommandOutput, record, weir};
use std::path::Path;
use std::process::Command;
use weir_measure::{Seed, Settings, Summary};

/// The name of a recording, its bytes, the output, and the complaints.
type Case = (&'static str, Vec<u8>, &'static [&'static str], &'static [&'static str]);

/// The header of a classic pcap of a link type.
fn header(link: u32) -> Vec<u8> {
    [0xa1b2_3c4d, 4 << 16 | 2, 0, 0, 65_535, link].iter().flat_map(|word: &u32| word.to_le_bytes()).collect()
}

/// A record: second, length on the wire, and its recorded part.
fn packet(second: u32, length: u32, bytes: &[u8]) -> Vec<u8> {
    let head = [second, 0, bytes.len() as u32, length];
    [head.iter().flat_map(|word| word.to_le_bytes()).collect(), bytes.to_vec()].concat()
}

fn frame() -> Vec<u8> {
    "src=10.0.0.1 dst=10.0.0.9 proto=udp sport=5 dport=53"
        .parse::<weir_packet::craft::Recipe>()
        .unwrap()
        .build()
}

fn measured(folder: &Path, file: &str) -> CommandOutput {
    weir(folder, &["measure", file])
}

#[test]
fn odd_recordings_are_measured_as_far_as_they_go_and_it_is_said() {
    let (folder, frame) = (Folder::new(), frame());
    let whole = packet(10, frame.len() as u32, &frame);
    let cut = [header(1), whole.clone(), whole[..30].to_vec()].concat();
    let cut_head = [header(1), whole.clone(), whole[..7].to_vec()].concat();
    let long = [header(1), whole.clone(), packet(0, 1, &[]), vec![0xff; 40]].concat();
    let back = [header(1), whole.clone(), packet(4, 42, &frame), packet(11, 42, &frame)].concat();
    let empty = [header(1), packet(1, 0, &[]), packet(1, 60, &[]), packet(1, 60, &frame[..20])].concat();
    let cases: [Case; 7] = [
        ("cut", cut, &["1 packets"], &["byte 98: the file ends within a record's data", "1 packets before"]),
        ("cut-head", cut_head, &["1 packets"], &["byte 82: the file ends within a record's header"]),
        ("long", long, &["2 packets"], &["byte 98: ", "the 2 packets before that are counted"]),
        ("back", back, &["3 packets", "time went backwards at 1 packets"], &[]),
        ("empty", empty, &["3 packets", "empty", "cut_before_ports"], &[]),
        ("none", header(1), &["0 packets"], &[]),
        ("link", header(147), &[], &["byte 20: link type 147: weir reads Ethernet, IP (RAW)"]),
    ];
    for (name, file, out, err) in cases {
        folder.write(name, file);
        let said = measured(folder.path(), name);
        let code = if err.is_empty() { 0 } else { 1 + i32::from(out.is_empty()) };
        assert_eq!(said.code, Some(code), "{name}: {}{}", said.out, said.err);
        for words in out {
            assert!(said.out.contains(words), "{name}: no `{words}` in {}", said.out);
        }
        for words in err {
            assert!(said.err.contains(words), "{name}: no `{words}` in {}", said.err);
        }
        assert_eq!(said.err.lines().count(), usize::from(!err.is_empty()), "{name}: {}", said.err);
    }
}

#[test]
fn sketch_files_that_do_not_fit_are_refused_with_the_reason() {
    let folder = Folder::new();
    record(&folder.file("in.pcap"), &["src=10.0.0.1 dst=10.0.0.9 proto=udp sport=5 dport=53"]);
    weir(folder.path(), &["measure", "in.pcap", "--save", "a.sk", "--seed", "7"]).good();
    let mut newer = std::fs::read(folder.file("a.sk")).unwrap();
    newer[8] += 1;
    folder.write("newer.sk", newer);
    let settings = Settings { keys: 1024, ..Settings::default() };
    let mut bytes = Vec::new();
    Summary::new(&settings, Seed::new([0, 7])).write(&mut bytes).unwrap();
    folder.write("small.sk", bytes);
    weir(folder.path(), &["measure", "in.pcap", "--save", "seed.sk", "--seed", "8"]).good();
    let cases: [(&str, &[&str]); 3] = [
        ("newer.sk", &["newer.sk: sketch file version 2 is not supported, only 1"]),
        ("seed.sk", &["a.sk and seed.sk cannot be merged: they have different seeds", "--seed"]),
        ("small.sk", &["a.sk and small.sk", "different sizes, 16384 and 1024 keys"]),
    ];
    for (name, words) in cases {
        weir(folder.path(), &["measure", "merge", "a.sk", name]).refused(2, words);
    }
}

/// In a file system of 64 KiB, and in a separate mount namespace, so that nothing is left mounted.
#[test]
fn a_full_disk_does_not_take_the_result_away() {
    if !weir_bed::is_root() {
        return;
    }
    let folder = Folder::new();
    record(&folder.file("in.pcap"), &["src=10.0.0.1 dst=10.0.0.9 proto=udp sport=5 dport=53"]);
    std::fs::create_dir(folder.file("full")).unwrap();
    let script = "mount -t tmpfs -o size=64k tmpfs full && head -c 65536 /dev/zero > full/rest; exec \"$@\"";
    let mut cases = vec!["--save", "--html", "--apache"];
    if cfg!(feature = "parquet") {
        cases.push("--parquet");
    }
    for option in cases {
        let path = format!("full/{}", &option[2..]);
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_weir"), "measure", "in.pcap"]);
        let said =
            CommandOutput::of(command.args([option, &path]).current_dir(folder.path()).output().unwrap());
        assert!(
            said.out.contains("1 packets") && said.out.contains("udp 10.0.0.1:5"),
            "{option}: {}",
            said.out
        );
        said.refused(1, &[&path, "cannot be written", "No space left on device"]);
    }
}
