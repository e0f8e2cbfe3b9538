//! The `weir` binary from the outside: what it prints, what it writes, its exit codes.

mod address_names;
mod announce;
mod apps;
mod bad_recordings;
mod bond;
mod browser;
mod check;
mod compile;
mod control_plane;
mod daemon;
mod dns;
mod doctor;
mod drain;
mod entries;
mod explain;
#[path = "../folder/mod.rs"]
mod folder;
mod generate;
mod generated;
mod http;
mod import;
mod inputs;
mod interfaces;
mod ipfix;
mod kubernetes;
mod lb;
mod lb_api;
mod lb_choice;
mod lb_control;
mod lb_in_place;
mod lb_reject;
mod measure;
mod measured;
mod measured_nodes;
mod monitoring;
mod names;
mod nat;
mod originals;
mod output;
mod outputs;
mod overlay;
mod pair;
mod path;
mod peers;
mod ports;
#[path = "../prometheus/mod.rs"]
mod prometheus;
mod replay;
mod ring;
mod routes;
mod running;
mod site;
mod soak;
mod solutions;
mod sources;
#[path = "../../../openflow/tests/equality/switch.rs"]
mod switch;
mod systemd;
mod takeover;
mod top;
mod tutorials;
mod upgrade;
mod watch;
mod web;
mod web_faults;
mod web_wired;
mod wire;
mod workers;

use std::fs::File;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use weir_packet::craft::Recipe;
use weir_port::pcap::{Reader, Writer};

/// The output and exit code of a run of `weir`.
struct CommandOutput {
    out: String,
    err: String,
    code: Option<i32>,
}

impl CommandOutput {
    fn of(output: Output) -> CommandOutput {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output is UTF-8");
        CommandOutput { out: text(output.stdout), err: text(output.stderr), code: output.status.code() }
    }

    /// Asserts success.
    #[track_caller]
    fn good(self) -> CommandOutput {
        assert_eq!((self.code, self.err.as_str()), (Some(0), ""), "{}", self.out);
        self
    }

    /// Asserts that it failed with this exit code and a one-line message containing all of `parts`.
    #[track_caller]
    fn refused(self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{}{}", self.out, self.err);
        assert_eq!(self.err.lines().count(), 1, "one sentence: {}", self.err);
        for part in parts {
            assert!(self.err.contains(part), "no `{part}` in: {}", self.err);
        }
    }

    /// The JSON object on the last line.
    #[track_caller]
    fn json(&self) -> serde_json::Value {
        let last = self.out.lines().last().unwrap_or_default();
        serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {last}; {}", self.err))
    }
}

/// Runs `weir` in a folder.
fn weir(folder: &Path, arguments: &[&str]) -> CommandOutput {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(arguments).current_dir(folder).env_remove("WEIR_SOCKET").stdin(Stdio::null());
    CommandOutput::of(command.output().expect("weir runs"))
}

/// Writes a recording of recipes, one per millisecond.
fn record(path: &Path, recipes: &[&str]) {
    let mut writer = Writer::new(File::create(path).unwrap()).unwrap();
    for (at, recipe) in recipes.iter().enumerate() {
        let bytes = recipe.parse::<Recipe>().unwrap_or_else(|error| panic!("{error}")).build();
        writer.write(at as u64 * 1_000_000, bytes.len() as u32, &bytes).unwrap();
    }
    writer.flush().unwrap();
}

/// The frames of a recording, as recipes.
fn recorded(path: &Path) -> Vec<String> {
    let records = Reader::open(File::open(path).unwrap()).unwrap();
    records.map(|record| weir_packet::craft::describe(&record.unwrap().bytes)).collect()
}

/// Two back ends selected by the last bit of the client's address, with a counter for each.
const TWO: &str = "\
ports:
  p0: { pcap: {}, root: balance }
  p1: { pcap: {} }
pipes:
  balance:
    type: basic
    match: { ipv4.dst: 10.0.0.53, ipv4.src: per_entry/0.0.0.1 }
    monitor: { counter: per_entry }
    action: [{ set: { eth.dst: per_entry } }]
    forward: p1
    miss: drop
    entries:
      - { match: { ipv4.src: 0.0.0.0 }, set: { eth.dst: 02:00:00:00:00:10 }, counter: even }
      - { match: { ipv4.src: 0.0.0.1 }, set: { eth.dst: 02:00:00:00:00:11 }, counter: odd }
";
