//! Golden walks: `tests/golden/*.walk`, one readable file each: a configuration, input frames, and everything
//! that happens to them.
//!
//! ```text
//! # What the walk shows.
//! -- config --        YAML, or a backends.json
//! -- in PORT --       `@SECONDS recipe`, a line each; `A..B` in the recipe makes a frame of every number
//! -- explain N --     the output of `weir explain` for the Nth frame
//! -- out PORT --      what the port transmitted
//! -- kernel PORT --   what was passed to the host's stack
//! -- app NAME --      what was forwarded to the app
//! -- counters --, -- pipes --, -- apps --, -- ledger --
//! ```
//!
//! Everything from the first `explain` on is weir's output, through the code of `weir replay` and
//! `weir explain`; `BLESS=1` rewrites it. Many frames of a port are written as their number and a hash of
//! their bytes.

mod folder;
#[path = "golden/kernel.rs"]
mod in_kernel;

use cli::config::{Plan, Report, write_key};
use cli::explain::{Explanation, RenderNames};
use cli::import;
use cli::replay::{Recordings, Replayed, replay};
use folder::Folder;
use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use weir_engine::batch::Engine;
use weir_oracle::arbitrary::Coverage;
use weir_oracle::{Arrival, Datagrams, Interpreter};
use weir_packet::craft::{Recipe, describe};
use weir_packet::{DropReason, HEADROOM, TableHash};
use weir_port::pcap::{Reader, Record, Writer};
use weir_program::Verdict;
use weir_program::change::EntryKey;
use weir_program::snapshot::{EntrySnapshot, FlowDecision, FlowSnapshot, PipeSnapshot, Snapshot};
use weir_program::{GroupChoice, Learn, Pipe, PipeKind, PortId, Program};

/// More frames than a reader would read are replaced by their number and a hash.
const SHOWN: usize = 40;

/// A frame and when it arrives or leaves, in nanoseconds.
type Timed = (u64, Vec<u8>);

/// A walk file.
struct Walk {
    path: PathBuf,
    text: String,
    /// Everything before the expectations, as written.
    given: String,
    config: String,
    input: Vec<(String, Vec<Timed>)>,
    /// Numbers of the frames to explain.
    explained: Vec<usize>,
}

/// The results of a walk.
struct Walked {
    plan: Plan,
    replayed: Replayed,
    /// Frames transmitted and passed to the host's stack, by port.
    output: Vec<Vec<Timed>>,
    kernel: Vec<Vec<Timed>>,
    /// Frames forwarded to apps, by app.
    apps: Vec<Vec<Timed>>,
    /// The whole file as it should be.
    text: String,
}

fn walks() -> Vec<Walk> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("tests/golden").map(|one| one.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "walk"));
    paths.sort();
    paths.into_iter().map(Walk::read).collect()
}

impl Walk {
    fn read(path: PathBuf) -> Walk {
        let text = std::fs::read_to_string(&path).expect("a walk");
        let mut walk = Walk {
            path,
            given: String::new(),
            config: String::new(),
            input: Vec::new(),
            explained: Vec::new(),
            text: text.clone(),
        };
        let mut section = Vec::new();
        for (number, line) in text.lines().enumerate() {
            if let Some(header) = line.strip_prefix("-- ").and_then(|rest| rest.strip_suffix(" --")) {
                section = header.split(' ').collect();
            }
            let mismatch = |what: String| panic!("{}:{}: {what}", walk.path.display(), number + 1);
            match section[..] {
                [] => {}
                ["config"] if line.starts_with("-- ") => {}
                ["config"] => walk.config += &format!("{line}\n"),
                ["in", port] if line.starts_with("-- ") => walk.input.push((port.to_string(), Vec::new())),
                ["in", _] => walk.input.last_mut().unwrap().1.extend(frames(line).unwrap_or_else(mismatch)),
                ["explain", frame] if line.starts_with("-- ") => {
                    walk.explained.push(frame.parse().expect("a number"))
                }
                _ => continue,
            }
            if section.first() != Some(&"explain") {
                walk.given += &format!("{line}\n");
            }
        }
        walk
    }

    fn name(&self) -> String {
        self.path.file_stem().unwrap().to_string_lossy().into_owned()
    }

    /// Reads its configuration from a file in a folder.
    fn load(&self, folder: &Folder) -> (Plan, Report) {
        let path = folder.write("config", &self.config);
        let loaded =
            import::load(&path, &import::NodeOption::default(), &import::ImportOptions::default()).unwrap();
        let Some(plan) = loaded.plan else { panic!("{}: {}", self.name(), loaded.report) };
        (plan, loaded.report)
    }

    /// Its configuration.
    fn plan(&self) -> Plan {
        self.load(&Folder::new()).0
    }

    /// The input frames in the order in which they arrive.
    fn frames(&self, program: &Program) -> Vec<(u64, PortId, &[u8])> {
        let mut frames: Vec<(u64, PortId, &[u8])> = Vec::new();
        for (port, timed) in &self.input {
            let port = program.port_named(port).unwrap();
            frames.extend(timed.iter().map(|(time_ns, bytes)| (*time_ns, port, &bytes[..])));
        }
        frames.sort_by_key(|(time_ns, port, _)| (*time_ns, port.0));
        frames
    }

    /// Runs it, asserting that the ledger balances and no recording was cut short.
    fn run(&self) -> Walked {
        let folder = Folder::new();
        let (plan, report) = self.load(&folder);
        let files = |kind: &str, ports: Vec<&String>| -> Vec<(String, PathBuf)> {
            ports
                .into_iter()
                .map(|port| (port.clone(), folder.file(&format!("{}.{kind}.pcap", port.replace('/', "-")))))
                .collect()
        };
        let all = || plan.ports.iter().map(|port| &port.name).collect();
        let recordings = Recordings {
            input: files("in", self.input.iter().map(|(port, _)| port).collect()),
            output: files("out", all()),
            kernel: files("kernel", all()),
            apps: files("app", plan.program.apps.iter().collect()),
            ..Recordings::default()
        };
        for ((_, frames), (port, path)) in self.input.iter().zip(&recordings.input) {
            assert!(plan.program.port_named(port).is_some(), "{}: there is no port {port}", self.name());
            record(path, frames);
        }
        let replayed = replay(&plan, &recordings).unwrap();
        assert_eq!(replayed.errors(), [""; 0], "{}", self.name());
        assert!(replayed.report.ledger.balances(), "{}: {:?}", self.name(), replayed.report.ledger);
        let frames = |files: &[(String, PathBuf)]| files.iter().map(|(_, path)| recorded(path)).collect();
        let (output, kernel, apps) =
            (frames(&recordings.output), frames(&recordings.kernel), frames(&recordings.apps));
        let mut walked = Walked { plan, replayed, output, kernel, apps, text: String::new() };
        let explained = self.explain(&walked.plan, &report);
        let place = format!("{}/", folder.path().display());
        walked.text = format!("{}{}{}", self.given, explained.replace(&place, ""), walked.expectations());
        walked
    }

    fn explain(&self, plan: &Plan, report: &Report) -> String {
        let mut text = String::new();
        let names = RenderNames { program: &plan.program, report: Some(report) };
        let frames: Vec<(&String, &Vec<u8>)> = self
            .input
            .iter()
            .flat_map(|(port, frames)| frames.iter().map(move |(_, bytes)| (port, bytes)))
            .collect();
        for &number in &self.explained {
            let (port, frame) = frames[number - 1];
            let input = plan.program.port_named(port).expect("asserted before");
            let explanation = Explanation::offline(plan, input, frame).unwrap();
            assert!(explanation.agrees(), "{}", explanation.text(&names, input, frame));
            // Which executor runs the packet depends on this host's interfaces.
            let explained = explanation.text(&names, input, frame);
            let walk = explained.lines().filter(|line| !line.starts_with("runs "));
            let walk: String = walk.flat_map(|line| [line, "\n"]).collect();
            let _ = write!(text, "-- explain {number} --\n{walk}");
        }
        text
    }
}

/// Parses the frames of a line: `@0.5 recipe`; none for an empty line or a comment.
fn frames(line: &str) -> Result<Vec<Timed>, String> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(Vec::new());
    }
    let timed = line.strip_prefix('@').and_then(|line| line.split_once(' '));
    let (time, recipe) = timed.ok_or("a line is `@SECONDS recipe`")?;
    let time_ns = nanoseconds(time).ok_or("seconds are digits, with nine behind a point at most")?;
    let build = |recipe: String| -> Result<Timed, String> {
        let recipe: Recipe = recipe.parse().map_err(|error| format!("{error}"))?;
        Ok((time_ns, recipe.build()))
    };
    expanded(recipe).into_iter().map(build).collect()
}

/// `1.5` is 1 500 000 000.
fn nanoseconds(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let whole: u64 = whole.parse().ok()?;
    let part: u64 = format!("{part:0<9}").parse().ok().filter(|_| part.len() <= 9)?;
    Some(whole * 1_000_000_000 + part)
}

fn seconds(time_ns: u64) -> String {
    let text = format!("{}.{:09}", time_ns / 1_000_000_000, time_ns % 1_000_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

/// `sport=1..3` becomes three recipes.
fn expanded(recipe: &str) -> Vec<String> {
    let Some((before, behind)) = recipe.split_once("..") else { return vec![recipe.to_string()] };
    let head = before.trim_end_matches(|one: char| one.is_ascii_digit());
    let tail = behind.trim_start_matches(|one: char| one.is_ascii_digit());
    let (first, last) = (&before[head.len()..], &behind[..behind.len() - tail.len()]);
    let range = first.parse::<u32>().unwrap()..=last.parse().unwrap();
    range.map(|number| format!("{head}{number}{tail}")).collect()
}

fn record(path: &Path, frames: &[Timed]) {
    let mut writer = Writer::new(File::create(path).unwrap()).unwrap();
    for (time_ns, bytes) in frames {
        writer.write(*time_ns, bytes.len() as u32, bytes).unwrap();
    }
    writer.flush().unwrap();
}

fn recorded(path: &Path) -> Vec<Timed> {
    let record = |record: Record| (record.time_ns, record.bytes);
    Reader::open(File::open(path).unwrap()).unwrap().map(|one| record(one.unwrap())).collect()
}

impl Walked {
    fn expectations(&self) -> String {
        let mut text = String::new();
        for (what, all) in [("out", &self.output), ("kernel", &self.kernel)] {
            for (port, frames) in self.plan.ports.iter().zip(all).filter(|(_, frames)| !frames.is_empty()) {
                let _ = writeln!(text, "-- {what} {} --\n{}", port.name, listed(frames));
            }
        }
        let program = &self.plan.program;
        for (name, frames) in program.apps.iter().zip(&self.apps).filter(|(_, frames)| !frames.is_empty()) {
            let _ = writeln!(text, "-- app {name} --\n{}", listed(frames));
        }
        if !program.counters.is_empty() {
            text += "-- counters --\n";
        }
        for (name, count) in program.counters.iter().zip(&self.replayed.report.counters) {
            let _ = writeln!(text, "{name}: {} packets, {} bytes", count.packets, count.bytes);
        }
        if !program.pipes.is_empty() {
            text += "-- pipes --\n";
        }
        for (pipe, counts) in program.pipes.iter().zip(&self.replayed.snapshot.pipes) {
            text += &self.pipe(pipe, counts);
        }
        if !self.replayed.apps.is_empty() {
            text += "-- apps --\n";
        }
        for app in &self.replayed.apps {
            let account = app.account;
            let all =
                [("punted", account.punted), ("injected", account.injected), ("refused", account.refused)];
            let some = all.iter().chain(&app.counts).filter(|(_, count)| *count > 0);
            let some: Vec<String> = some.map(|(name, count)| format!("{count} {name}")).collect();
            let _ = writeln!(text, "{}: {}", app.name, some.join(", "));
        }
        for (time_ns, said) in &self.replayed.said {
            let _ = writeln!(text, "@{} {said}", seconds(*time_ns));
        }
        text + "-- ledger --\n" + &self.ledger()
    }

    fn pipe(&self, pipe: &Pipe, counts: &PipeSnapshot) -> String {
        let program = &self.plan.program;
        let mut text = format!("{}: {} misses\n", pipe.name, counts.misses.packets);
        let written = |key: &EntryKey| pipe.entries.iter().position(|entry| EntryKey::of(&entry) == *key);
        let mut entries: Vec<&EntrySnapshot> =
            counts.entries.iter().filter(|entry| entry.hits.packets > 0).collect();
        entries.sort_by_key(|entry| written(&entry.key));
        for entry in entries {
            let key = write_key(program, pipe, &entry.key);
            let _ = writeln!(text, "  {key}: {} packets, {} bytes", entry.hits.packets, entry.hits.bytes);
        }
        let mut flows: Vec<&FlowSnapshot> = counts.flows.iter().collect();
        flows.sort_by_key(|flow| flow.key);
        for flow in flows.iter().take(SHOWN) {
            let hits = flow.hits;
            let decision = self.decision(pipe, flow.decision);
            let _ = writeln!(
                text,
                "  flow {}: {decision}, {} packets, {} bytes",
                flow.key, hits.packets, hits.bytes
            );
        }
        if counts.account.unflowed.full > 0 {
            let _ = writeln!(text, "  unflowed (full): {} packets", counts.account.unflowed.full);
        }
        text
    }

    fn decision(&self, pipe: &Pipe, decision: FlowDecision) -> String {
        match (decision, &pipe.kind) {
            (
                FlowDecision::Pinned(target),
                PipeKind::Flow { learn: Learn::Pin(GroupChoice::One(group)), .. },
            ) => {
                let group = &self.plan.program.groups[group.index()];
                format!("pinned to {}", group.targets[usize::from(target)].name)
            }
            (FlowDecision::Pinned(target), _) => format!("pinned to {target}"),
            (FlowDecision::Follow(group), _) => {
                format!("follows {}", self.plan.program.groups[group.index()].name)
            }
            (FlowDecision::PinnedIn(group, target), _) => {
                let group = &self.plan.program.groups[group.index()];
                format!("pinned to {} of {}", group.targets[usize::from(target)].name, group.name)
            }
            (FlowDecision::FollowChosen, _) => "follows the group chosen".to_string(),
            (FlowDecision::Default, _) => "default".to_string(),
            (FlowDecision::Own, _) => "its own entry".to_string(),
        }
    }

    fn ledger(&self) -> String {
        let ledger = &self.replayed.report.ledger;
        let counts = [
            ("received", ledger.received),
            ("originated", ledger.originated),
            ("copied", ledger.copied),
            ("transmitted", ledger.transmitted),
            ("to_kernel", ledger.to_kernel),
            ("to_app", ledger.to_app),
            ("held", ledger.held),
        ];
        let mut text = String::new();
        for (name, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
            let _ = writeln!(text, "{name} {count}");
        }
        for (reason, count) in ledger.drops() {
            let _ = writeln!(text, "dropped {reason} {count}");
        }
        match self.replayed.report.deltas {
            0 => text,
            deltas => text + &format!("flow deltas {deltas}\n"),
        }
    }
}

fn listed(frames: &[Timed]) -> String {
    if frames.len() > SHOWN {
        let bytes = frames.iter().flat_map(|(_, bytes)| bytes);
        // FNV-1a: enough to detect that something changed.
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        return format!("({} frames, hash {hash:#018x})", frames.len());
    }
    let line = |(time_ns, bytes): &Timed| format!("@{} {}", seconds(*time_ns), describe(bytes));
    frames.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Returns the first line that differs, with what was expected there.
fn difference(expected: &str, found: &str) -> String {
    let (mut expected, mut found, mut number) = (expected.lines(), found.lines(), 0);
    loop {
        number += 1;
        match (expected.next(), found.next()) {
            (None, None) => return "only line ends differ".to_string(),
            (one, other) if one == other => {}
            (one, other) => {
                let text = |line: Option<&str>| line.unwrap_or("(the end)").to_string();
                return format!("line {number}:\n    expected {}\n    found    {}", text(one), text(other));
            }
        }
    }
}

#[test]
fn walks_end_as_written() {
    let bless = std::env::var_os("BLESS").is_some_and(|value| value == "1");
    let mut wrong = Vec::new();
    let all = walks();
    assert!(all.len() >= 25, "{} walks", all.len());
    for walk in all {
        let walked = walk.run();
        if bless && walked.text != walk.text {
            std::fs::write(&walk.path, &walked.text).unwrap();
        } else if walked.text != walk.text {
            wrong.push(format!("{}, {}", walk.name(), difference(&walk.text, &walked.text)));
        }
    }
    assert!(wrong.is_empty(), "BLESS=1 accepts what is found:\n{}", wrong.join("\n"));
}

#[test]
fn a_walk_goes_the_same_way_twice() {
    for walk in walks() {
        let (one, other) = (walk.run(), walk.run());
        assert_eq!((one.text, one.output), (other.text, other.output), "{}", walk.name());
        assert_eq!((one.kernel, one.apps), (other.kernel, other.apps), "{}", walk.name());
    }
}

/// The reference interpreter's results of a walk.
struct Witness {
    output: Vec<Vec<Vec<u8>>>,
    kernel: Vec<Vec<Vec<u8>>>,
    apps: Vec<Vec<Vec<u8>>>,
    snapshot: Snapshot,
}

/// Runs the same frames at the same times through the interpreter, which shares no code with the engine.
fn witness(walk: &Walk, plan: &Plan, coverage: &mut Coverage) -> Witness {
    let program = &plan.program;
    let engine = Engine::new(program, TableHash::new([1, 2])).unwrap();
    let mut interpreter = Interpreter::new(program, engine.buckets());
    let frames = walk.frames(program);
    let first_ns = frames.first().map_or(0, |frame| frame.0);
    let none = || vec![Vec::new(); program.ports.len()];
    let (mut output, mut kernel, mut apps) = (none(), none(), vec![Vec::new(); program.apps.len()]);
    // Frames of a program that follows fragments may wait, and return with ports.
    let mut datagrams = Datagrams::default();
    let arrive = |(time_ns, input, bytes): &(u64, PortId, &[u8])| {
        let now_ns = time_ns - first_ns;
        datagrams.expire(now_ns);
        let all = match program.follows() {
            true => datagrams.receive(bytes, now_ns),
            false => vec![(bytes.to_vec(), None)],
        };
        all.into_iter().map(|(bytes, ports)| (now_ns, *input, bytes, ports)).collect::<Vec<_>>()
    };
    for (now_ns, input, bytes, ports) in frames.iter().flat_map(arrive) {
        let flows = interpreter.age(now_ns).len();
        coverage.aged(flows, 0);
        let arrival = Arrival { input, bytes: &bytes, headroom: usize::from(HEADROOM), hash: 0, ports };
        let walk = interpreter.walk_arrival(&arrival, now_ns);
        coverage.walk(program, &walk);
        let copies = walk.copies.into_iter().map(|copy| (copy.to, copy.bytes));
        for (to, bytes) in copies.chain([(walk.verdict, walk.bytes)]) {
            match to {
                Verdict::Transmit(port) => output[port.index()].push(bytes),
                Verdict::Kernel(port) => kernel[port.index()].push(bytes),
                Verdict::App(app) => apps[app.index()].push(bytes),
                Verdict::Drop(_) => {}
            }
        }
    }
    // Replay continues for a second, and checks ages then too.
    let last_ns = frames.last().map_or(0, |frame| frame.0 - first_ns);
    coverage.aged(interpreter.age(last_ns + 1_000_000_000).len(), 0);
    Witness { output, kernel, apps, snapshot: interpreter.snapshot() }
}

fn in_order(mut snapshot: Snapshot) -> Snapshot {
    for pipe in &mut snapshot.pipes {
        pipe.entries.sort_by_cached_key(|entry| format!("{:?}", entry.key));
        pipe.flows.sort_by_key(|flow| flow.key);
    }
    snapshot
}

#[test]
fn the_interpreter_agrees_and_everything_is_met() {
    let mut coverage = Coverage::new();
    for walk in walks() {
        let walked = walk.run();
        let oversize = walked.replayed.report.ledger.dropped[DropReason::Oversize as usize];
        if oversize > 0 || walked.plan.ports.iter().any(|port| port.fault.is_some()) {
            // Not every frame, or not on time, reaches the program.
            continue;
        }
        if walked.plan.program.groups.iter().any(|group| group.idle.is_some()) {
            // Flows expire between frames, and what the app then injects passes through the program. The
            // tests `c16_*` of the engine compare that.
            continue;
        }
        let witness = witness(&walk, &walked.plan, &mut coverage);
        let bytes = |all: &[Vec<Timed>]| -> Vec<Vec<Vec<u8>>> {
            all.iter().map(|frames| frames.iter().map(|(_, bytes)| bytes.clone()).collect()).collect()
        };
        // The interpreter has no apps that answer.
        let answers = walked.replayed.report.ledger.originated > 0;
        assert!(answers || bytes(&walked.output) == witness.output, "{}: other frames sent", walk.name());
        assert!(bytes(&walked.kernel) == witness.kernel, "{}: other frames for the kernel", walk.name());
        assert!(bytes(&walked.apps) == witness.apps, "{}: other frames for apps", walk.name());
        let (engine, interpreter) = (in_order(walked.replayed.snapshot), in_order(witness.snapshot));
        assert_eq!(engine, interpreter, "{}", walk.name());
    }
    let elsewhere = |name: &String| {
        // Changes, and so assigned buckets, cannot occur in a configuration, nor a NIC's hash in a recording;
        // and every field is matched and written by the engine's own tests.
        let kinds = ["change:", "aged:entry", "aged:bucket", "field:", "write:", "hash:rss:"];
        let given = name.starts_with("given:") && !name.ends_with(":nobody");
        // Such fragments wait, and do not reach the interpreter.
        let given = given || name == "drop:first_fragment_missing";
        kinds.iter().any(|kind| name.starts_with(kind)) || given
    };
    let missing: Vec<String> = coverage.missing().into_iter().filter(|name| !elsewhere(name)).collect();
    assert_eq!(missing, Vec::<String>::new(), "no walk meets them");
}

/// Wireshark is independent of weir: it verifies the checksums of what we send.
#[test]
fn tshark_finds_no_bad_checksum() {
    if Command::new("tshark").arg("--version").output().is_err() {
        assert!(std::env::var_os("CI").is_none(), "CI has tshark");
        eprintln!("skipped: there is no tshark");
        return;
    }
    let folder = Folder::new();
    let (mut sent, mut names) = (Vec::new(), Vec::new());
    for walk in walks().into_iter().filter(|walk| !walk.given.contains("csum=bad")) {
        let walked = walk.run();
        for (_, bytes) in walked.output.into_iter().flatten() {
            sent.push((0, bytes));
            names.push(walk.name());
        }
    }
    assert!(sent.len() > 50, "{} frames", sent.len());
    let path = folder.file("sent.pcap");
    record(&path, &sent);
    let mut tshark = Command::new("tshark");
    for protocol in ["ip", "udp", "tcp"] {
        tshark.args(["-o", &format!("{protocol}.check_checksum:TRUE")]);
    }
    let bad: Vec<String> = ["ip", "udp", "tcp", "icmp", "icmpv6"]
        .map(|protocol| format!("{protocol}.checksum.status == Bad"))
        .into();
    let output = tshark.arg("-n").arg("-r").arg(&path).args(["-Y", &bad.join(" || "), "-T", "fields"]);
    let output = output.args(["-e", "frame.number"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let numbers = String::from_utf8_lossy(&output.stdout);
    let mismatch = |number: &str| -> String {
        let at = number.parse::<usize>().unwrap() - 1;
        format!("{}: {}", names[at], describe(&sent[at].1))
    };
    assert_eq!(numbers.lines().map(mismatch).collect::<Vec<_>>(), Vec::<String>::new());
}

/// Wireshark's names for the headers of a tunnel; it does not know GUE.
const TUNNELS: [(&str, &[&str]); 4] = [
    ("vxlan", &["udp:vxlan"]),
    ("geneve", &["udp:geneve"]),
    ("gre", &["gre"]),
    ("ipip", &["ip:ip", "ipv6:ip", "ip:ipv6"]),
];

/// Wireshark, too, recognises every frame that an encap walk sends as a tunnel.
#[test]
fn tshark_recognises_the_tunnels() {
    if Command::new("tshark").arg("--version").output().is_err() {
        assert!(std::env::var_os("CI").is_none(), "CI has tshark");
        eprintln!("skipped: there is no tshark");
        return;
    }
    let folder = Folder::new();
    for (tunnel, names) in TUNNELS {
        let walks = walks().into_iter().filter(|walk| walk.name().starts_with(&format!("{tunnel}-encap")));
        let sent: Vec<Timed> = walks.flat_map(|walk| walk.run().output.into_iter().flatten()).collect();
        assert!(sent.len() > 4, "{tunnel}");
        let path = folder.file(&format!("{tunnel}.pcap"));
        record(&path, &sent);
        let mut tshark = Command::new("tshark");
        let output = tshark.arg("-n").arg("-r").arg(&path).args(["-T", "fields", "-e", "frame.protocols"]);
        let output = output.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let protocols = String::from_utf8_lossy(&output.stdout).into_owned();
        for (line, (_, bytes)) in protocols.lines().zip(&sent) {
            assert!(names.iter().any(|name| line.contains(name)), "{line}: {}", describe(bytes));
        }
        assert_eq!(protocols.lines().count(), sent.len(), "{tunnel}");
    }
}
