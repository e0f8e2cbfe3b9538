//! Output that cannot be written: a reader that is gone, a full disk. A command reports it or ends like any
//! other, and the daemon continues.

use super::folder::Folder;
use super::running::Daemon;
use super::{CommandOutput, TWO, record, weir};
use rustix::process::Signal;
use serde_json::json;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

/// Commands that need no daemon, each of which prints something.
const SHORT: [&[&str]; 8] = [
    &["check", "weir.yaml"],
    &["check", "weir.yaml", "--json"],
    &["schema"],
    &["ports"],
    &["explain", "weir.yaml", "--packet", "src=192.0.2.2 dst=10.0.0.53"],
    &["explain", "weir.yaml", "--packet", "src=192.0.2.2 dst=10.0.0.53", "--json"],
    &["replay", "weir.yaml", "in.pcap"],
    &["replay", "weir.yaml", "in.pcap", "--json"],
];

fn folder() -> Folder {
    let folder = Folder::new();
    folder.write("weir.yaml", TWO);
    record(&folder.file("in.pcap"), &["src=192.0.2.2 dst=10.0.0.53"]);
    folder
}

/// Runs `weir` with this standard output; returns its output on standard error, and how it ended.
fn weir_to(folder: &Path, arguments: &[&str], out: impl Into<Stdio>) -> (String, ExitStatus) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(arguments).current_dir(folder).env_remove("WEIR_SOCKET").stdin(Stdio::null());
    let output = command.stdout(out).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    (String::from_utf8(output.stderr).unwrap(), output.status)
}

/// The end of a pipe without a reader.
fn unread() -> std::io::PipeWriter {
    std::io::pipe().unwrap().1
}

fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

#[test]
fn a_command_whose_reader_has_gone_ends_quietly() {
    let folder = folder();
    for command in SHORT {
        let (err, status) = weir_to(folder.path(), command, unread());
        assert_eq!((err.as_str(), status.signal()), ("", Some(13)), "{command:?}: {status}: {err}");
    }
    let daemon = Daemon::start(TWO);
    for what in ["all", "ports", "entries"] {
        let show = ["show", what, "--socket", "weir.sock"];
        let (err, status) = weir_to(daemon.folder.path(), &show, unread());
        assert_eq!((err.as_str(), status.signal()), ("", Some(13)), "show {what}: {status}: {err}");
    }
}

#[test]
fn a_full_disk_is_an_error() {
    let folder = folder();
    for command in SHORT {
        let (err, status) = weir_to(folder.path(), command, full());
        let said = CommandOutput { out: String::new(), err, code: status.code() };
        said.refused(1, &["standard output", "No space left"]);
    }
    // An error on standard error cannot be reported, but the exit code is right.
    folder.write("broken.yaml", "ports: [");
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["check", "broken.yaml"]).current_dir(folder.path()).stderr(full()).stdout(Stdio::null());
    assert_eq!(command.status().unwrap().code(), Some(2));
}

fn writing_to(out: impl Into<Stdio>, err: impl Into<Stdio>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.stdout(out).stderr(err);
    command
}

/// Makes a daemon log something, and checks that it still answers and forwards.
fn speaks_and_goes_on(mut daemon: Daemon) {
    for generation in 2..6u64 {
        daemon.folder.write("weir.yaml", TWO);
        daemon.signal(Signal::HUP);
        daemon.wait_for("a reload", |daemon| {
            daemon.weir(&["show", "all", "--json"]).good().json()["generation"] == generation
        });
        daemon.folder.write("weir.yaml", "ports: [");
        assert_eq!(daemon.weir(&["reload"]).code, Some(1));
    }
    daemon.receive(&["src=192.0.2.2 dst=10.0.0.53", "src=192.0.2.3 dst=10.0.0.53"]);
    assert_eq!(daemon.show("ledger")["transmitted"], json!(2));
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end().code(), Some(0));
}

#[test]
fn the_daemon_goes_on_when_its_readers_have_gone() {
    speaks_and_goes_on(Daemon::start_as(writing_to(unread(), unread()), TWO));
}

#[test]
fn the_daemon_goes_on_when_the_disk_of_its_output_is_full() {
    speaks_and_goes_on(Daemon::start_as(writing_to(full(), full()), TWO));
}

/// The reader of both exists but does not read.
#[test]
fn the_daemon_goes_on_when_its_reader_is_stuck() {
    let (reader, writer) = std::io::pipe().unwrap();
    rustix::fs::fcntl_setfl(&writer, rustix::fs::OFlags::NONBLOCK).unwrap();
    while rustix::io::write(&writer, &[b'x'; 4096]).is_ok() {}
    rustix::fs::fcntl_setfl(&writer, rustix::fs::OFlags::empty()).unwrap();
    let other = writer.try_clone().unwrap();
    speaks_and_goes_on(Daemon::start_as(writing_to(writer, other), TWO));
    drop(reader);
}

#[test]
fn events_that_repeat_do_not_fill_the_log() {
    let daemon = Daemon::start(TWO);
    daemon.folder.write("weir.yaml", "ports: [");
    for _ in 0..40 {
        assert_eq!(daemon.weir(&["reload"]).code, Some(1));
    }
    assert_eq!(daemon.log().matches("not reloaded").count(), 16, "{}", daemon.log());
}

#[test]
fn the_log_has_times_and_levels_and_the_journal_priorities() {
    use std::os::linux::fs::MetadataExt;
    let daemon = Daemon::start(TWO);
    daemon.folder.write("weir.yaml", "ports: [");
    daemon.signal(Signal::HUP);
    daemon.wait_for_log("Z ERROR not reloaded");
    let log = daemon.log();
    assert!(log.lines().next().unwrap().contains("Z  INFO weir runs weir.yaml"), "{log}");
    let folder = Folder::new();
    let file = File::create(folder.file("journal")).unwrap();
    let stream = file.metadata().map(|file| format!("{}:{}", file.st_dev(), file.st_ino())).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.env("JOURNAL_STREAM", stream).stderr(file);
    let mut daemon = Daemon::start_as(command, TWO);
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end().code(), Some(0));
    let journal = std::fs::read_to_string(folder.file("journal")).unwrap();
    assert!(journal.starts_with("<6>weir runs weir.yaml"), "{journal}");
}

/// An error message of `weir` that is unrelated to standard output is not hidden by its being closed.
#[test]
fn an_error_of_the_daemon_is_not_taken_for_a_closed_pipe() {
    let folder = folder();
    let (err, status) = weir_to(folder.path(), &["show", "--socket", "none.sock"], unread());
    assert!(status.code() == Some(1) && err.contains("none.sock"), "{status}: {err}");
    assert_eq!(weir(folder.path(), &["--help"]).good().code, Some(0));
}
