//! Fuzzers for input from a network, the kernel or another process: control protocols, replies, sketch files,
//! takeover messages, changes at run time.

use cli::config::{self, Nics, Plan};
use cli::kinds::KINDS;
use cli::{fuzzed, import};
use std::cell::RefCell;
use std::net::IpAddr;
use std::path::Path;
use std::sync::OnceLock;
use weir_app::external::Datagram;
use weir_app::foreign::SettingValues;
use weir_app::{Action, Event, RequestId, RunningApps};
use weir_bond::lacp::{self, Pdu};
use weir_engine::batch::{DecidedFor, Engine, FlowPage, Share};
use weir_measure::{FileError, Summary};
use weir_netlink::messages;
use weir_packet::TableHash;
use weir_path::tunnel::PathTunnel;
use weir_path::wire::{DATAGRAM, Packet, PacketRefusal, ProbeId, Secret};
use weir_path::{icmp, wire};
use weir_program::PortId;
use weir_program::buckets::GroupTables;

/// Parses the bytes as an LACPDU or a marker. A PDU that parses must survive being written and parsed again.
pub fn lacpdu(frame: &[u8]) {
    const SOURCE: [u8; 6] = [2, 0, 0, 0, 0, 9];
    let Ok(pdu) = lacp::parse(frame) else { return };
    let again = match &pdu {
        Pdu::Lacp(lacpdu) => lacpdu.frame(SOURCE),
        Pdu::Marker(marker) => marker.question(SOURCE),
        Pdu::MarkerResponse(marker) => marker.answer(SOURCE),
    };
    assert_eq!(lacp::parse(&again), Ok(pdu));
}

/// Reads the bytes as a path probe, and as the part of a probe that a router quotes. A probe must be rejected
/// unless it was signed with our secret. A signed probe must be accepted unless a byte covered by the cookie
/// was changed.
pub fn probe(bytes: &[u8]) {
    const SECRET: Secret = Secret([0x5ec1, 0x5ec2]);
    const VXLAN: PathTunnel = PathTunnel::VXLAN;
    for found in [Packet::read(bytes, VXLAN, SECRET).is_ok(), Packet::read6(bytes, VXLAN, SECRET).is_ok()] {
        assert!(!found, "a cookie was guessed");
    }
    let _ =
        (icmp::expired(bytes), icmp::expired6(bytes, IpAddr::from([192, 0, 2, 1])), wire::quoted_id(bytes));
    let Some((&[at, value, path, hops, ..], rest)) = bytes.split_first_chunk::<4>() else { return };
    let outer = wire::Outer {
        macs: [[2; 6], [4; 6]],
        source: [10, 0, 0, 1].into(),
        destination: [10, 0, 0, 2].into(),
        port: 50_000,
        tunnel: VXLAN,
        dscp: path & 63,
        marked: hops & 1 == 1,
        id: 7,
        ttl: 64,
    };
    let number = rest.first_chunk().map_or(1, |four| u32::from_be_bytes(*four));
    let probe = Packet { path, ..Packet::request(outer, ProbeId { session: 1, number }, hops, 5) };
    let mut frame = probe.frame(SECRET);
    assert_eq!(Packet::read(&frame, VXLAN, SECRET), Ok(probe));
    let at = usize::from(at) % frame.len();
    let changed = frame[at] != value;
    frame[at] = value;
    let body = frame.len() - 48;
    if let Ok(read) = Packet::read(&frame, VXLAN, SECRET) {
        // `sent` of a request is stamped after the cookie was computed, so the cookie does not cover it.
        let covered = at >= body && !(body + 24..body + 32).contains(&at) && at != body + 19;
        assert!(!changed || !covered, "{read:?} at {at}");
    }
    assert!(matches!(Packet::read(&frame[..DATAGRAM / 2], VXLAN, SECRET), Err(PacketRefusal::Malformed)));
}

/// Parses the bytes as a sketch file with the right checksum. A file that parses must survive being written
/// and parsed again, with the same length.
pub fn sketch_file(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    if let Err(FileError::Checksum { found, .. }) = Summary::read(&bytes[..]) {
        // After the magic number and the version.
        bytes[12..16].copy_from_slice(&found.to_le_bytes());
    }
    let Ok(mut summary) = Summary::read(&bytes[..]) else { return };
    let mut first = Vec::new();
    summary.write(&mut first).expect("writing to memory cannot fail");
    let _ = summary.apache();
    let mut again = Summary::read(&first[..]).expect("our own");
    let mut second = Vec::new();
    again.write(&mut second).expect("writing to memory cannot fail");
    assert_eq!(first.len(), second.len());
    summary.merge(again).expect("both have the same settings");
}

/// Reads the bytes as a datagram from a client of an `external` app.
pub fn external(bytes: &[u8]) {
    match Datagram::of_client(bytes) {
        Ok(datagram) => assert_eq!(datagram.bytes(), bytes),
        Err(problem) => assert!(!problem.to_string().is_empty()),
    }
}

/// Reads the text as the services of another system, which the first byte selects. An import that succeeds
/// must yield services, and one that fails must report an error.
pub fn imports(bytes: &[u8]) {
    let Some((&which, text)) = bytes.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let systems: Vec<_> = import::foreign().map(|(_, one)| one).filter(|one| one.is_partial).collect();
    let system = systems[usize::from(which) % systems.len()];
    match (system.convert)(Path::new("fuzz"), text, &SettingValues::defaults(system.settings)) {
        Ok((yaml, _)) => assert!(yaml.contains("apps:")),
        Err(report) => assert!(report.errors() > 0 && !report.to_string().is_empty()),
    }
}

/// Reads the bytes as netlink messages from the kernel, and as the bodies of such messages.
pub fn netlink(bytes: &[u8]) {
    fuzzed::netlink(bytes);
    let is_body = messages(bytes).next().is_none();
    let body = bytes.split_first_chunk().filter(|_| is_body);
    let body = body.map(|(kind, body)| (u16::from_ne_bytes(*kind), body));
    weir_overlay::read_messages(messages(bytes).chain(body));
}

/// Reads the bytes as a message from the other daemon in a takeover: a JSON object followed by bytes.
pub fn takeover(bytes: &[u8]) {
    let Some((length, rest)) = bytes.split_first_chunk::<2>() else { return };
    let (head, bytes) = rest.split_at(usize::from(u16::from_be_bytes(*length)).min(rest.len()));
    fuzzed::takeover_message(KINDS, head, bytes);
    flow_records(bytes);
}

/// A program with flows of every kind: pinned, with replies, with a NAT pool, and with stored values.
const FLOWS: &str = "
nat_pools: { world: { addresses: 192.0.2.8/29 } }
ports: { p0: { mem: ~, root: nat }, p1: { mem: ~, root: flows } }
groups: { routers: { targets: { r1: p1, r2: p1 } } }
pipes:
  nat:
    type: flow
    learn: { pin: routers, reverse: true, nat_pool: world }
    monitor: { timeouts: {} }
    actions:
      to: [{ set: { ipv4.src: { per_flow: nat_pool }, l4.sport: { per_flow: nat_pool } } }]
      back: [{ set: { ipv4.dst: { per_flow: ipv4.src }, l4.dport: { per_flow: l4.sport } } }]
    forward: per_entry
    miss: drop
    capacity: 64
    entries:
      - { match: { target: r1 }, action: to, forward: p1 }
      - { match: { target: r2 }, action: to, forward: p1 }
      - { match: default, action: back, forward: p0 }
  flows:
    type: flow
    learn: { pin: routers }
    monitor: { idle_timeout: 1m }
    forward: p1
    miss: drop
    capacity: 64
    entries: [{ match: { target: r1 } }, { match: { target: r2 } }]
";

/// Flows of another process, as records of either pipe. Each continues, ends, or is unreadable.
fn flow_records(records: &[u8]) {
    static PLAN: OnceLock<Plan> = OnceLock::new();
    let plan = PLAN.get_or_init(|| {
        let loaded = config::read("fuzz", FLOWS);
        loaded.plan.unwrap_or_else(|| panic!("{}", loaded.report))
    });
    ENGINE.with_borrow_mut(|engine| {
        let engine = engine.get_or_insert_with(|| {
            let tables = GroupTables::new(&plan.program);
            Engine::with_tables(&plan.program, TableHash::new([1, 2]), &tables).expect("a plan compiles")
        });
        resume(engine, records);
    });
}

thread_local! {
    /// Shared by all inputs, since creating an engine takes longer than reading records.
    static ENGINE: RefCell<Option<Engine>> = const { RefCell::new(None) };
}

fn resume(engine: &mut Engine, records: &[u8]) {
    let target = |target: &str| DecidedFor::Target { group: "routers".into(), target: target.into() };
    let entries = vec![target("r1"), DecidedFor::Default, target("r3")];
    for (pipe, _) in engine.flow_stocks() {
        let length = engine.flow_records(pipe, (0, 0), None).length;
        let page = FlowPage { entries: entries.clone(), records: records.into(), length, next: None };
        let done = engine.resume_flows(pipe, &page, Share::ALONE);
        assert_eq!(done.flows + done.ended + done.unreadable, records.len().div_ceil(length));
    }
    engine.end_takeover();
}

/// The program that receives the frames and requests.
const APPS: &str = "
ports: { p0: { mem: ~, mac: 02:00:00:00:00:01 }, p1: { mem: ~, mac: 02:00:00:00:00:02 },
         p2: { mem: ~, mac: 02:00:00:00:00:02 } }
apps:
  - bond:
      name: bond0
      mode: balance_tcp
      members: [p1, p2]
      inside: p0
      lacp: { mode: active, rate: fast, fallback: true }
      probe: { targets: [192.0.2.1, \"2001:db8::1\"] }
  - lb:
      name: web
      port: p0
      service: { vip: [192.0.2.80, \"2001:db8::80\"], protocol: tcp, port: [80, 443] }
      announce: arp
      source: [198.51.100.254, \"2001:db8:2::fe\"]
      mtu: 1500
      back_ends:
        - { name: w1, mac: 02:00:00:00:00:fe, mode: ipip, ip: 198.51.100.11 }
        - { name: w2, mac: 02:00:00:00:00:fe, mode: gue, ip: \"2001:db8:2::12\" }
";

fn plan() -> &'static Plan {
    static PLAN: OnceLock<Plan> = OnceLock::new();
    PLAN.get_or_init(|| {
        let loaded = config::read("fuzz", APPS);
        loaded.plan.unwrap_or_else(|| panic!("{}", loaded.report))
    })
}

/// Steps apps with frames, requests, link events and time, one event after another. They must only send
/// complete frames to ports that exist.
pub fn apps(bytes: &[u8]) {
    let plan = plan();
    let mut running = RunningApps::new(plan.apps.running(), RunningApps::default(), &plan.program);
    let names: Vec<(usize, String)> = (0..running.len())
        .flat_map(|at| running.app(at).punts().into_iter().map(move |name| (at, name)))
        .collect();
    let mut now_ns = 1_000_000_000;
    for at in 0..running.len() {
        sane(&running.step(at, now_ns, Event::Start));
    }
    let mut rest = bytes;
    while let Some((&[kind, which, length], behind)) = rest.split_first_chunk::<3>() {
        let (some, behind) = behind.split_at(usize::from(length).min(behind.len()));
        rest = behind;
        let port = PortId(u16::from(which) % 3);
        let (at, name) = &names[usize::from(which) % names.len()];
        let request;
        let event = match kind % 5 {
            0 => Event::Frame { app: name, input: PortId(u16::from(kind / 5) % 3), bytes: some },
            1 => Event::TooLong { app: name, input: port, bytes: some, limit: 1280 + u16::from(kind) },
            2 => Event::Link { port, up: length % 2 == 0, speed_bps: None },
            3 => {
                let words = || serde_json::Value::from(String::from_utf8_lossy(some));
                request = serde_json::from_slice(some).unwrap_or_else(|_| words());
                Event::Request { id: RequestId(which.into()), request: &request }
            }
            _ => {
                now_ns += u64::from(length) << (which % 32);
                Event::Tick
            }
        };
        sane(&running.step(*at, now_ns, event));
    }
    let states = running.states();
    RunningApps::new(plan.apps.running(), RunningApps::default(), &plan.program).resume(&states);
    if let Ok(states) = serde_json::from_slice(bytes) {
        running.resume(&states);
    }
}

fn sane(actions: &[Action]) {
    for action in actions {
        if let Action::Inject { bytes, output } = action {
            assert!(bytes.len() >= 14 && output.index() < 3, "{bytes:02x?} to {output:?}");
        }
    }
}

/// Reads the text as a change at run time: a request that edits the configuration (JSON), or an entry of a
/// pipe (YAML). A resulting plan must be complete, and an error must have a message.
pub fn change(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(orders) = serde_json::from_str(text)
        && let Err(why) = config::edit(plan(), &Nics::default(), &orders)
    {
        assert!(!why.is_empty());
    }
    let plan = plan();
    for pipe in &plan.program.pipes {
        if let Err(why) = config::entry(&plan.program, &plan.attachments, &pipe.name, text) {
            assert!(!why.to_string().is_empty());
        }
    }
}
