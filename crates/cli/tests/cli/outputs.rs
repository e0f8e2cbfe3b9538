//! Every output of every command is written to what its path refers to: a symbolic link, a FIFO or a device
//! stays what it is.

use super::folder::Folder;
use super::running::Daemon;
use super::{TWO, record, recorded, weir};
use rustix::fs::{CWD, FileType, mkfifoat, mknodat};
use rustix::process::Signal;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::Path;

/// The object that already exists where a file will be written.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ExistingOutput {
    Link,
    Fifo,
    Device,
}

impl ExistingOutput {
    /// Creates it. Returns a thread that reads what is written, if that is needed.
    fn make(self, path: &Path) -> Option<std::thread::JoinHandle<Vec<u8>>> {
        match self {
            ExistingOutput::Link => symlink(path.with_extension("target"), path).unwrap(),
            ExistingOutput::Device => {
                let null = rustix::fs::makedev(1, 3);
                mknodat(CWD, path, FileType::CharacterDevice, 0o600.into(), null).unwrap();
            }
            ExistingOutput::Fifo => {
                mkfifoat(CWD, path, 0o600.into()).unwrap();
                let path = path.to_path_buf();
                return Some(std::thread::spawn(move || std::fs::read(path).unwrap()));
            }
        }
        None
    }

    fn assert_is_still_there(self, path: &Path) {
        let kind = path.symlink_metadata().unwrap().file_type();
        let same = match self {
            ExistingOutput::Link => kind.is_symlink(),
            ExistingOutput::Fifo => kind.is_fifo(),
            ExistingOutput::Device => kind.is_char_device(),
        };
        assert!(same, "{self:?} at {} was replaced: {kind:?}", path.display());
    }
}

/// A user's app that gets every packet.
const APP: &str = "\
ports: { p0: { pcap: { out: p0.pcap }, root: all } }
pipes: { all: { type: basic, match: { udp.dport: 1 }, forward: drop, miss: watch, entries: [{}] } }
apps: [{ external: { name: watch, socket: watch.sock } }]
";

/// Commands with the output that each writes: a relative path.
fn commands() -> Vec<(Vec<&'static str>, &'static str)> {
    let mut all = vec![
        (vec!["measure", "in.pcap", "--html", "out"], "out"),
        (vec!["measure", "in.pcap", "--save", "out"], "out"),
        (vec!["measure", "in.pcap", "--apache", "folder"], "folder/flows.hll"),
        (vec!["measure", "merge", "sketch", "--html", "out"], "out"),
        (vec!["measure", "merge", "sketch", "--save", "out"], "out"),
        (vec!["replay", "weir.yaml", "in.pcap", "--output", "out"], "out"),
        (vec!["replay", "weir.yaml", "in.pcap", "--kernel", "out"], "out"),
        (vec!["replay", "traced.yaml", "in.pcap"], "trace.in.pcap"),
        (vec!["replay", "traced.yaml", "in.pcap"], "trace.out.pcap"),
        (vec!["replay", "app.yaml", "in.pcap", "--app", "watch=out"], "out"),
        (vec!["man", "folder"], "folder/weir.1"),
        (vec!["test", "weir.yaml", "--no-kernel", "--pcap", "out"], "out"),
        (vec!["test", "weir.yaml", "--expect", "folder", "--accept"], "folder/verdicts.txt"),
    ];
    if cfg!(feature = "parquet") {
        all.push((vec!["measure", "in.pcap", "--parquet", "out"], "out"));
    }
    if cfg!(feature = "sim") {
        let sim = ["sim", "path", "--seeds", "1", "--flows", "100", "--load", "30", "ecmp"];
        all.push(([&sim[..], &["--out", "out"]].concat(), "out"));
        all.push(([&sim[..], &["--trace", "out"]].concat(), "out"));
        all.push(([&sim[..], &["--svg", "folder"]].concat(), "folder/slowdown-mean.svg"));
    }
    all
}

#[test]
fn no_output_replaces_a_link_a_fifo_or_a_device() {
    let is_root = weir_bed::is_root();
    for (arguments, output) in commands() {
        for kind in [ExistingOutput::Link, ExistingOutput::Fifo, ExistingOutput::Device] {
            if kind == ExistingOutput::Device && !is_root {
                continue;
            }
            let folder = Folder::new();
            folder.write("weir.yaml", TWO);
            folder.write("traced.yaml", TWO.replace("root: balance", "root: balance, trace: trace.pcap"));
            folder.write("app.yaml", APP);
            record(&folder.file("in.pcap"), &["src=192.0.2.2 dst=10.0.0.53"]);
            std::fs::create_dir(folder.file("folder")).unwrap();
            if arguments.contains(&"merge") {
                drop(weir(folder.path(), &["measure", "in.pcap", "--save", "sketch"]).good());
            }
            let path = folder.file(output);
            let reader = kind.make(&path);
            drop(weir(folder.path(), &arguments).good());
            kind.assert_is_still_there(&path);
            let written = match (kind, reader) {
                (ExistingOutput::Link, _) => std::fs::read(path.with_extension("target")).unwrap(),
                (_, Some(reader)) => reader.join().unwrap(),
                (ExistingOutput::Device | ExistingOutput::Fifo, None) => continue,
            };
            assert!(!written.is_empty(), "{arguments:?} wrote nothing to {kind:?}");
        }
    }
}

/// Records what arrives for ports 1, 2 and 3.
const RECORDED: &str = "\
root: all
ports:
  p0: { mem: ~ }
  p1: { mem: ~, trace: p1.pcap }
  p2: { pcap: { out: p2.pcap } }
  p3: { pcap: { out: /dev/full } }
pipes:
  all:
    type: basic
    match: { udp.dport: per_entry }
    forward: per_entry
    miss: drop
    entries:
      - { match: { udp.dport: 1 }, forward: p1 }
      - { match: { udp.dport: 2 }, forward: p2 }
      - { match: { udp.dport: 3 }, forward: p3 }
";

#[test]
fn recordings_can_be_read_while_they_are_written_and_a_full_disk_is_counted() {
    let mut daemon = Daemon::start(RECORDED);
    daemon.receive(&["dport=1", "dport=2", "dport=3"]);
    for name in ["p1.out.pcap", "p2.pcap"] {
        // More than the header of the file.
        let is_there =
            |daemon: &mut Daemon| daemon.folder.file(name).metadata().is_ok_and(|file| file.len() > 24);
        daemon.wait_for("a packet in the file", is_there);
        assert_eq!(recorded(&daemon.folder.file(name)).len(), 1, "{name}");
    }
    let is_counted = |daemon: &mut Daemon| daemon.show("ledger")["dropped"]["not_written"] == 1;
    daemon.wait_for("the full disk", is_counted);
    assert_eq!(daemon.show("ledger")["transmitted"], 2, "what is not in a file was not transmitted");
    // What was written survives a crash.
    daemon.signal(Signal::KILL);
    daemon.end();
    assert_eq!(recorded(&daemon.folder.file("p1.out.pcap")).len(), 1);
}

/// The disk is a file system of 16 KiB, in a separate mount namespace of the daemon.
#[test]
fn a_full_disk_is_logged_with_the_file_and_what_is_missing() {
    if !weir_bed::is_root() {
        return;
    }
    let folder = Folder::new();
    std::fs::create_dir(folder.file("small")).unwrap();
    let config = RECORDED.replace("p2.pcap", "small/p2.pcap").replace("p1.pcap", "small/p1.pcap");
    folder.write("weir.yaml", config);
    let mut command = std::process::Command::new("unshare");
    let script = "mount -t tmpfs -o size=16k tmpfs small; exec \"$@\"";
    command.args(["-m", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_weir")]);
    let mut daemon = Daemon::start_by(folder, command);
    let long = |port: u32| format!("dport={port} payload={}", "00".repeat(1400));
    for _ in 0..20 {
        daemon.receive(&[&long(1), &long(2)]);
    }
    let logged = |daemon: &Daemon, parts: [&str; 3]| {
        daemon.log().lines().any(|line| parts.iter().all(|part| line.contains(part)))
    };
    let no_room = "cannot be written: No space left on device";
    let recording = ["ERROR port p2: ", "small/p2.pcap", no_room];
    daemon.wait_for("the recording's error", |daemon| logged(daemon, recording));
    daemon.wait_for("the trace's error", |daemon| {
        logged(daemon, ["ERROR port p1: ", "cannot write its trace", "No space left on device"])
    });
    let missing = daemon.show("ledger")["dropped"]["not_written"].as_u64().unwrap();
    assert!(missing > 0, "{missing}");
    daemon.receive(&[&long(2)]);
    daemon.signal(Signal::TERM);
    daemon.end();
    let last = format!("{} frames are missing from it", missing + 1);
    assert!(logged(&daemon, ["ERROR port p2: ", no_room, &last]), "{}", daemon.log());
    assert!(daemon.log().matches(no_room).count() <= 4, "it is not said of each frame: {}", daemon.log());
}
