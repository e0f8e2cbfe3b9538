//! The fuzzers, as functions of arbitrary bytes. A fuzzer that panics has found a bug.
//!
//! libFuzzer calls them (`fuzz_targets/`), and so does `cargo test` with the inputs in `corpus/`
//! (`crates/cli/tests/corpora.rs`). This way, every bug found stays covered by a regression test that needs
//! no nightly toolchain.

pub mod network;

use cli::{config, import};
use std::collections::VecDeque;
use std::path::Path;
use weir_app::foreign::SettingValues;
use weir_engine::lockstep::{Act, Arriving, Lockstep};
use weir_engine::ring::{CARRIER_BYTES, carriers};
use weir_oracle::arbitrary::{Choices, Coverage};
use weir_packet::craft::{FRAME_MAX, Recipe, describe};
use weir_packet::quic_lb::{QuicLb, QuicLbConfig};
use weir_packet::{Depth, FlowKey, HEADROOM, KeySource, parse as parse_headers};
use weir_port::pcap::{Reader, Record, Writer};
use weir_program::quic::ServerId;
use weir_program::{AppId, PortId, Program};

/// Parses the bytes as a frame at every depth. A deeper parse must find everything that a shallower one
/// finds, and the printed recipe must build the same frame.
pub fn parse(frame: &[u8]) {
    let mut before = None;
    for depth in [Depth::L2, Depth::L3, Depth::L4, Depth::Inner] {
        let Ok(headers) = parse_headers(frame, depth) else { break };
        if let Some(before) = before {
            assert_eq!(headers.outer().layers.0 & before, before, "a deeper parse loses layers");
        }
        before = Some(headers.outer().layers.0);
        for source in [KeySource::Outer, KeySource::Inner] {
            if let Some(key) = FlowKey::of(frame, &headers, source) {
                assert!(key.to_string().contains(" > "));
            }
        }
    }
    assert_eq!(Recipe::of(frame).build(), frame);
    if frame.len() <= FRAME_MAX {
        let text = describe(frame);
        let again: Recipe = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(again.build(), frame, "{text}");
    }
}

/// Reads the bytes as a recipe. Errors must have a location. A frame that a recipe builds is printed as a
/// recipe, which must build the same frame.
pub fn recipe(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    match text.parse::<Recipe>() {
        Ok(recipe) => parse(&recipe.build()),
        Err(error) => assert!(error.at <= text.len() && !error.to_string().is_empty()),
    }
}

/// Reads the bytes as a recording, up to its end or an error inside it, and writes and reads the records
/// again.
pub fn pcap(file: &[u8]) {
    let Ok(reader) = Reader::open(file) else { return };
    let mut records: Vec<Record> = Vec::new();
    for record in reader {
        match record {
            Ok(record) => records.push(record),
            Err(error) => assert!(error.offset <= file.len() as u64, "{error}"),
        }
    }
    written_again(&records);
}

/// Checks that the reader returns what the writer was given.
fn written_again(records: &[Record]) {
    let mut file = Vec::new();
    let mut writer = Writer::new(&mut file).expect("writing to memory cannot fail");
    for record in records {
        assert!(record.bytes.len() as u64 <= u64::from(record.length));
        writer.write(record.time_ns, record.length, &record.bytes).expect("writing to memory cannot fail");
    }
    writer.flush().expect("writing to memory cannot fail");
    drop(writer);
    let reader = Reader::open(&file[..]).expect("our own");
    let again: Vec<Record> = reader.map(|record| record.expect("our own")).collect();
    assert_eq!(again.len(), records.len());
    for (again, record) in again.iter().zip(records) {
        assert_eq!((again.length, &again.bytes), (record.length, &record.bytes));
        // The format's timestamps overflow in the year 2106.
        let late = record.time_ns / 1_000_000_000 > u64::from(u32::MAX);
        assert!(late || again.time_ns == record.time_ns);
    }
}

/// Reads the bytes as a configuration, which yields either a plan or a report of errors. A plan must compile,
/// its entries must survive printing and parsing, and the engine and the interpreter must agree on some
/// packets.
pub fn config(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    let loaded = config::read("fuzz", text);
    assert!(loaded.plan.is_some() == (loaded.report.errors() == 0), "{}", loaded.report);
    let _ = (loaded.report.to_string(), loaded.report.json().to_string());
    let Some(mut plan) = loaded.plan else {
        let (_, xenoflow) = import::foreign().find(|(_, one)| one.name == "xenoflow").expect("a system");
        let _ = (xenoflow.convert)(Path::new("fuzz"), text, &SettingValues::defaults(xenoflow.settings));
        return;
    };
    entries_read_back(&plan);
    if !made_small(&mut plan.program) {
        return;
    }
    let mut lockstep = Lockstep::new(&plan.program, 1).expect("a plan compiles");
    let frame = |recipe: &str| {
        let bytes = recipe.parse::<Recipe>().expect("ours").build();
        Arriving { bytes, headroom: usize::from(HEADROOM), hash: 0, ports: None }
    };
    let frames: Vec<_> = PACKETS.map(frame).into();
    for input in 0..plan.program.ports.len() as u16 {
        let act = Act::Frames { input: PortId(input), frames: frames.clone() };
        lockstep.act(&act, &mut Coverage::new()).unwrap_or_else(|what| panic!("{what}\n{text}"));
    }
}

/// Packets of various kinds.
const PACKETS: [&str; 5] = [
    "dport=53",
    "vlan=10 src=10.0.0.1 dst=10.0.0.53 proto=tcp dport=80",
    "src=2001:db8::1 dst=2001:db8::53 proto=icmpv6",
    "src=192.0.2.1 dst=192.0.2.2 vni=7 inner(src=10.0.0.1 dst=10.0.0.2)",
    "eth.dst=ff:ff:ff:ff:ff:ff arp=request",
];

/// Shrinks the tables, because the requested size would only waste memory. Returns false if the program is
/// still too large for a fuzzer.
fn made_small(program: &mut Program) -> bool {
    const SMALL: u32 = 64;
    for pipe in &mut program.pipes {
        pipe.capacity = pipe.capacity.min(SMALL.max(pipe.entries.len() as u32));
    }
    let buckets: u64 = program.groups.iter().map(|group| u64::from(group.size)).sum();
    buckets <= 1 << 10 && program.pipes.len() <= 32 && program.ports.len() <= 4
}

fn entries_read_back(plan: &config::Plan) {
    let program = &plan.program;
    for pipe in &program.pipes {
        for entry in &pipe.entries {
            let text = config::write_entry(program, pipe, &entry);
            let read = config::entry(program, &plan.attachments, &pipe.name, &text);
            let (_, again) = read.unwrap_or_else(|why| panic!("{text}: {why}"));
            let parts = |entry: &weir_program::Entry| {
                (entry.matches.clone(), entry.priority, entry.template, entry.values.clone(), entry.forward)
            };
            assert_eq!(parts(&again), parts(&entry), "{text}");
            assert_eq!((again.counter, again.meter), (entry.counter, entry.meter), "{text}");
        }
    }
}

/// The largest number of actions on one program: enough to fill and age its tables.
const ACTS: usize = 200;

/// Derives a program, packets and changes from the bytes. The engine, with batches split in three ways, must
/// do what the interpreter does.
pub fn program(choices: &[u8]) {
    let mut random = Choices::from_bytes(choices);
    let program = weir_oracle::arbitrary::program(&mut random);
    let mut lockstep = Lockstep::new(&program, 1).expect("generated programs compile");
    let mut coverage = Coverage::new();
    for _ in 0..ACTS {
        if !random.has_bytes() {
            return;
        }
        let act = lockstep.choose(&mut random);
        lockstep.act(&act, &mut coverage).unwrap_or_else(|what| panic!("{act:?}: {what}\n{program:#?}"));
    }
}

/// Reads the bytes as the lengths and key of a QUIC connection ID configuration, followed by packets.
/// Decoding must return either a server ID of the configured length or a reason, and the engine and the
/// interpreter must send each packet to the same back end.
pub fn quic(data: &[u8]) {
    let Some(([lengths, key @ ..], packets)) = data.split_first_chunk::<17>() else { return };
    let server = lengths & 15;
    let nonce = 4 + (lengths >> 4);
    let key = key.iter().any(|byte| *byte != 0).then_some(*key);
    let Ok(config) = QuicLbConfig::new(server.into(), nonce.into(), key) else { return };
    let mut fleet = QuicLb::default();
    (0..3).for_each(|id| assert!(fleet.set(id, Some(config.clone()))));
    // Each packet starts with its length.
    let mut rest = packets;
    let mut found = Vec::new();
    let mut frames = Vec::new();
    while let Some((length, behind)) = rest.split_first().filter(|_| frames.len() < 16) {
        let (packet, behind) = behind.split_at(usize::from(*length).min(behind.len()));
        rest = behind;
        if let Ok(id) = fleet.route(packet) {
            assert_eq!(id.as_bytes().len(), usize::from(server));
            let longer = [packet, &[0xaa; 30]].concat();
            assert_eq!(fleet.route(&longer), Ok(id), "trailing content is ignored");
            found.push(id);
        }
        let octets: String = packet.iter().map(|octet| format!("{octet:02x}")).collect();
        let payload = if octets.is_empty() { octets } else { format!(" payload={octets}") };
        let frame = format!("src=192.0.2.1 dst=10.0.0.80 proto=udp sport=4000 dport=443{payload}");
        let bytes = frame.parse::<Recipe>().expect("ours").build();
        frames.push(Arriving { bytes, headroom: usize::from(HEADROOM), hash: 0, ports: None });
    }
    agree_on_quic(&quic_program((server, nonce), key, &found), frames);
}

/// A program that maps each of some server IDs to a back end.
fn quic_program((server, nonce): (u8, u8), key: Option<[u8; 16]>, ids: &[ServerId]) -> String {
    let hex = |octets: &[u8]| octets.iter().map(|octet| format!("{octet:02x}")).collect::<String>();
    let key = key.map(|key| format!(", key: \"{}\"", hex(&key))).unwrap_or_default();
    let config = |id: u8| format!("{{ id: {id}, server_id_length: {server}, nonce_length: {nonce}{key} }}");
    let mut ids: Vec<String> = ids.iter().map(|id| hex(id.as_bytes())).collect();
    ids.push("ff".repeat(server.into()));
    ids.sort();
    ids.dedup();
    let lines =
        |line: &dyn Fn((usize, &String)) -> String| ids.iter().enumerate().map(line).collect::<String>();
    let targets = lines(&|(at, id)| format!("      t{at}: {{ forward: p0, server_id: \"{id}\" }}\n"));
    let entries = lines(&|(at, _)| format!("      - {{ match: {{ target: t{at} }} }}\n"));
    let [zero, one, two] = [0, 1, 2].map(config);
    format!(
        "ports: {{ p0: {{ mem: ~, root: q }} }}\ngroups:\n  q:\n    fill: maglev\n    size: 251\n    \
         quic: {{ configs: [{zero}, {one}, {two}] }}\n    targets:\n{targets}pipes:\n  q:\n    \
         type: hash\n    hash: quic\n    group: q\n    forward: in_port\n    miss: drop\n    \
         entries:\n{entries}"
    )
}

fn agree_on_quic(text: &str, frames: Vec<Arriving>) {
    let loaded = config::read("fuzz", text);
    let plan = loaded.plan.unwrap_or_else(|| panic!("{}\n{text}", loaded.report));
    let mut lockstep = Lockstep::new(&plan.program, 1).expect("a plan compiles");
    let act = Act::Frames { input: PortId(0), frames };
    lockstep.act(&act, &mut Coverage::new()).unwrap_or_else(|what| panic!("{what}\n{text}"));
}

/// Uses a ring of carriers, one action per byte. It must behave as a bounded queue whatever its two ends do.
pub fn ring(doings: &[u8]) {
    let Some((&size, doings)) = doings.split_first() else { return };
    let capacity = usize::from(size % 8) + 1;
    let (mut sender, mut receiver) = carriers(capacity);
    let mut lying: VecDeque<(Vec<u8>, PortId)> = VecDeque::new();
    let mut taken = Vec::new();
    for (at, &doing) in doings.iter().enumerate() {
        match doing % 4 {
            0 | 1 => {
                let (frame, port) = (vec![doing; usize::from(doing)], PortId(at as u16));
                let sent = sender.send(&frame, port, AppId(0));
                assert_eq!(sent, lying.len() + taken.len() < capacity);
                if sent {
                    lying.push_back((frame, port));
                }
            }
            2 => {
                let carrier = receiver.receive();
                let found = carrier.as_ref().map(|carrier| (carrier.bytes().to_vec(), carrier.input));
                assert_eq!(found, lying.pop_front());
                taken.extend(carrier);
            }
            _ => taken.pop().into_iter().for_each(|carrier| receiver.done(carrier)),
        }
        assert_eq!(sender.held() as usize, lying.len() + taken.len());
    }
    assert!(!sender.send(&[0; CARRIER_BYTES + 1], PortId(0), AppId(0)));
}
