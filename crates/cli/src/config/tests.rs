//! Whole configurations: valid ones become the intended program, invalid ones report everything at once.

mod affinity;
mod apps;
mod bond;
mod lines;
mod neighbours;
mod path;
mod plain;

use super::*;
use proptest::prelude::*;
use weir_config::Frames;
use weir_packet::{Field, KeySource, LevelId, TunnelKind, TunnelPorts};
use weir_program::change::EntryKey;
use weir_program::{
    AppId, Criterion, EntryMatch, Fill, FlowState, Forward, GroupChoice, GroupId, HashInput, Operation,
    PipeId, PipeKind, PortId, Timeouts, Value,
};

#[test]
fn timeouts_by_state_have_the_defaults_of_connection_tracking() {
    let program = |monitor: &str| {
        let text = format!(
            "ports: {{ p0: {{ mem: }} }}\nroot: f\npipes:\n  f: {{ type: flow, learn: default, \
             monitor: {monitor}, forward: p0, miss: drop, entries: [{{ match: default }}] }}\n"
        );
        plan(&text).program.pipes.remove(0).kind
    };
    let timeouts = |monitor: &str| match program(monitor) {
        PipeKind::Flow { timeouts, .. } => timeouts,
        other => panic!("{other:?}"),
    };
    assert_eq!(timeouts("{ timeouts: {} }"), Timeouts::CONNTRACK);
    let given = Timeouts::CONNTRACK.with(FlowState::TcpEstablished, 900_000_000_000);
    assert_eq!(timeouts("{ timeouts: { tcp_established: 15m } }"), given);
    assert_eq!(timeouts("{ idle_timeout: 15m }"), Timeouts::all(900_000_000_000));
}

/// The examples that users start from.
const EXAMPLES: [&str; 15] = [
    "acl",
    "bond",
    "bond-slb",
    "flow-table",
    "lb-dns",
    "lb-edge",
    "lb-modes",
    "lb-over-bond",
    "lpm-router",
    "meter",
    "nat",
    "services",
    "tunnels",
    "vxlan-gateway",
    "xenoflow",
];

fn example(name: &str) -> String {
    let file = format!("{}/../../configs/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn plan(text: &str) -> Plan {
    let loaded = read("t", text);
    loaded.plan.unwrap_or_else(|| panic!("{}", loaded.report))
}

/// The port of a take rule.
fn dport(frames: Frames) -> Option<(u16, u16)> {
    let Frames::Ip(rule) = frames else { panic!("{frames:?}") };
    rule.dport
}

/// `line:column: severity: message` of everything wrong with a text.
fn wrong(text: &str) -> Vec<String> {
    let report = read("t", text).report.to_string();
    report.lines().filter_map(|line| line.strip_prefix("t:")).map(str::to_string).collect()
}

/// One pipe in an otherwise valid file, as line 3.
fn with_pipe(pipe: &str) -> String {
    format!("ports: {{ p0: {{ mem: }} }}\nroot: a\npipes: {{ a: {{ {pipe} }} }}\n")
}

#[test]
fn examples_are_good() {
    // A host that has the interfaces.
    let nic = |(name, last): (&str, u8)| Nic {
        name: name.to_string(),
        mac: [2, 0, 0, 0, 0, last],
        mtu: 1500,
        rx_queues: 1,
        ..Nic::default()
    };
    let nics: Nics = [("eth0", 1), ("eth1", 2)].map(nic).into_iter().collect();
    for name in EXAMPLES {
        let loaded = read_knowing(name, &example(name), &nics);
        assert_eq!(loaded.report.to_string(), "");
        assert!(loaded.plan.is_some());
    }
    let files = std::fs::read_dir(format!("{}/../../configs", env!("CARGO_MANIFEST_DIR"))).unwrap();
    for file in files
        .map(|file| file.unwrap().path())
        .filter(|file| file.extension().is_some_and(|end| end == "yaml"))
    {
        let text = std::fs::read_to_string(&file).unwrap();
        let loaded = read(&file.display().to_string(), &text);
        assert!(loaded.plan.is_some(), "{}", loaded.report);
    }
}

#[test]
fn an_empty_file_says_what_is_needed() {
    assert!(
        wrong("")[0].contains("a mapping") || wrong("")[0].contains("there is no port"),
        "{:?}",
        wrong("")
    );
    assert_eq!(wrong("workers: 1\n"), ["1:1: error: there is no port: write `ports: { p0: { xdp: eth0 } }`"]);
}

#[test]
fn everything_becomes_what_it_says() {
    let plan = plan(
        "workers: [0, 2]\nhash_seed: 0x1234\nsocket: /tmp/s\nmetrics: 127.0.0.1:9105\nbusy: true\nroot: a\n\
         ports:\n  p0: { xdp: eth9, queues: [0, 1], mode: copy, take: [{ dst: 10.0.0.0/8, protocol: udp, \
         dport: 53 }] }\n  \
         p1: { pcap: { out: o.pcap }, fault: { seed: 7, loss: 1%, delay: 5ms }, trace: t.pcap, mac: \
         02:00:00:00:00:01 }\n\
         groups: { g: { fill: wants, size: 8, targets: { x: p1, y: { weight: 0, forward: in_port } } } }\n\
         pipes:\n  a: { type: hash, hash: [ipv4.src/24, ipv6.src], group: g, forward: per_entry, miss: \
         drop, rehash: true,\n       \
         entries: [{ match: { target: x }, forward: { pipe: b } }, { match: { target: y }, forward: drop }] \
         }\n  \
         b: { type: flow, key: inner, learn: { follow: g }, monitor: { idle_timeout: 30s }, forward: g, \
         miss: b2,\n       \
         entries: [{ match: { target: x } }, { match: { target: y } }, { match: { flow: \"tcp 1.2.3.4:5 > \
         5.6.7.8:9 vni 3\" } }] }\n  \
         b2: { type: basic, match: { port: p1 }, forward: in_port, miss: drop, entries: [{}] }\n",
    );
    assert_eq!(
        (plan.workers.clone(), plan.busy, plan.program.select_seed),
        (Workers::Cores(vec![0, 2]), true, 0x1234)
    );
    assert_eq!((plan.socket.to_str(), plan.metrics.map(|at| at.port())), (Some("/tmp/s"), Some(9105)));
    let PortKind::Xdp(xdp) = &plan.ports[0].kind else { panic!() };
    assert_eq!((xdp.queues.clone(), xdp.mode), (Some(vec![0, 1]), XdpMode::Copy));
    assert_eq!(dport(plan.take(PortId(0)).unwrap()[0]), Some((53, 53)));
    assert_eq!(plan.take(PortId(1)), None);
    let fault = plan.ports[1].fault.unwrap();
    assert_eq!((fault.seed, fault.loss, fault.delay_ns), (7, 0.01, 5_000_000));
    assert_eq!(plan.ports[1].mac, Some([2, 0, 0, 0, 0, 1]));
    let [a, b, b2] = plan.program.pipes.as_slice() else { panic!() };
    let fields = vec![(Field::Ipv4Src, 0xffff_ff00), (Field::Ipv6Src, u128::MAX)];
    assert!(matches!(&a.kind, PipeKind::Hash { input: HashInput::Fields(given), .. } if *given == fields));
    let first = a.entries.iter().next().unwrap();
    assert_eq!(
        (a.rehash, a.forward, first.forward),
        (true, Forward::PerEntry, Some(Forward::Pipe(PipeId(1))))
    );
    let wanted = Timeouts::all(30_000_000_000);
    let inner = KeySource::Inner;
    assert!(matches!(b.kind, PipeKind::Flow { key, timeouts, .. } if key == inner && timeouts == wanted));
    let third = b.entries.iter().nth(2).unwrap();
    assert!(matches!(third.matches[..], [EntryMatch::Flow(key)] if key.vni() == Some(3)));
    assert_eq!(b2.matches[0].criterion, Criterion::Const { value: 1, mask: 0xffff });
}

#[test]
fn tunnels_have_ports() {
    let file = "ports: { p0: { mem: } }\nroot: a\npipes: { a: { type: basic, forward: p0, miss: drop } }\n";
    let ports = |tunnels: &str| plan(&format!("{file}tunnels: {tunnels}\n")).program.tunnels;
    let swapped = ports("{ vxlan: { port: 6081 }, geneve: { port: 4789 } }");
    assert_eq!((swapped.of(TunnelKind::Vxlan), swapped.of(TunnelKind::Geneve)), (6081, 4789));
    assert_eq!(ports("{}"), TunnelPorts::default());
    for (tunnels, expected) in [
        ("{ gre: { port: 5 } }", "4:12: error: there is no UDP tunnel `gre`"),
        ("{ gue: {} }", "4:17: error: `port` is missing: the UDP destination port"),
        ("{ gue: { port: 0 } }", "4:25: error: `port` must be a whole number from 1 to 65535, not `0`"),
        ("{ gue: { port: 4789 } }", "4:25: error: port 4789 is also the port of `vxlan`"),
    ] {
        assert_eq!(wrong(&format!("{file}tunnels: {tunnels}\n"))[0].split("; ").next(), Some(expected));
    }
}

#[test]
fn actions_and_their_places() {
    let text = with_pipe(
        "type: basic, forward: p0, miss: drop, match: { meta.0: ignore, udp.dport: { const: 53 } }, \
            actions: { \
         one: [pop_vlan, { set: { eth.dst: per_entry, ipv4.ttl: 9 } }, { copy: { from: eth.src, to: meta.1 \
         } }], \
         two: [{ add: { l4.dport: 1 } }, decrement_ttl, { push_vlan: { vid: per_entry } }, { push_vlan: { \
         vid: 5, pcp: per_entry, \
         tpid: 0x88a8 } }, { encap_vxlan: { eth.dst: 02:00:00:00:00:01, eth.src: 02:00:00:00:00:02, src: \
         \"fd00:1::/64\", dst: per_entry, \
         vni: 5 } }] }, entries: [{ action: two, push_vlan: [{ vid: 6 }, { pcp: 1 }], encap_vxlan: { dst: \
         \"::2\" } }]",
    );
    let plan = plan(&text);
    let pipe = &plan.program.pipes[0];
    assert_eq!(pipe.templates[0].operations[1], Operation::Set(Field::EthDst, Value::PerEntry));
    let Operation::Encap(encap) = pipe.templates[1].operations[4] else { panic!("an encapsulation is last") };
    assert!(encap.ipv6 && encap.sport.is_none());
    assert_eq!((encap.src, encap.src_bits), (Value::Const(0xfd00_0001 << 96), Some(Value::Const(64))));
    let entry = pipe.entries.iter().next().unwrap();
    assert_eq!((entry.template, entry.values.clone()), (1, vec![6, 1, 2]));
    let written = write_entry(&plan.program, pipe, &entry);
    assert_eq!(
        written,
        "{ match: {}, action: two, push_vlan: [{ vid: 6 }, { pcp: 1 }], encap_vxlan: { dst: \"::2\" } }"
    );
}

#[test]
fn all_errors_are_told_at_once() {
    let text = "workers: 0\nhash_sead: 1\nports:\n  p0: { mem: , root: b }\n  drop: { mem: }\npipes:\n  \
        a:\n    type: basic\n    \
                match: { ipv4.scr: per_entry }\n    forward: p9\n";
    assert_eq!(
        wrong(text),
        [
            "1:10: error: the number of workers must be a whole number from 1 to 256, not `0`",
            "2:1: error: there is no key `hash_sead` here",
            "4:22: error: there is no pipe `b`",
            "5:3: error: `drop` is a reserved word, not a name",
            "7:3: error: `miss` is missing: where packets that match nothing go: a pipe, a port, `kernel`, \
             `drop`",
            "9:14: error: there is no field `ipv4.scr`",
            "10:14: error: there is no port, pipe, group or app `p9`",
        ]
    );
    let report = read("t", text).report.to_string();
    assert!(
        report.contains("did you mean `hash_seed`?") && report.contains("did you mean `ipv4.src`?"),
        "{report}"
    );
}

/// A pipe, the words under the caret, and the message about them.
#[test]
fn each_error_has_its_place() {
    let good = "type: basic, forward: p0, miss: drop";
    for (pipe, culprit, expected) in [
        ("type: basik, forward: p0, miss: drop", "basik", "`type` cannot be `basik`"),
        ("GOOD, learn: default", "default", "only flow pipes have `learn`"),
        ("GOOD, miss: p0", "miss: p0", "`miss` appears twice"),
        ("GOOD, match: { eth.dst: 1.2.3.4 }", "1.2.3.4", "`1.2.3.4` is not a value of `eth.dst`: "),
        ("GOOD, match: { vlan.vid: 4096 }", "4096", "`vlan.vid` has 12 bits: at most 0xfff, not `4096`"),
        ("GOOD, match: { ipv4.src: 10.0.0.1/8 }", "10.0.0.1/8", "`10.0.0.1` has bits outside the mask /8"),
        ("GOOD, match: { ipv4.src: per_entry }, entries: [{}]", "{}", "`ipv4.src` is missing"),
        ("GOOD, entries: [{ match: { ipv4.src: 1 } }]", "ipv4.src", "pipe `a` does not match `ipv4.src`"),
        ("GOOD, entries: [{ priority: 1 }]", "1 }", "only entries of acl pipes have a priority"),
        ("GOOD, entries: [{ forward: in_port }]", "in_port", "an entry gives its own `forward` only if"),
        ("GOOD, entries: [{ counter: x }]", "x }", "an entry gives its own `counter` only if"),
        ("GOOD, entries: [{ set: { eth.dst: 1 } }]", "eth.dst", "the action takes no `eth.dst` per entry"),
        ("GOOD, action: [{ set: { ip.protocol: 1 } }]", "ip.protocol", "`ip.protocol` is read-only"),
        ("GOOD, action: [decrement_ttl, pop_vlan]", "pop_vlan", "`pop_vlan` cannot follow `decrement_ttl`"),
        ("GOOD, action: [dorp]", "dorp", "there is no operation `dorp`"),
        ("GOOD, monitor: { meter: m }", "m }", "there is no meter `m`"),
        ("GOOD, monitor: { red: pass }", "pass", "`red` says what happens"),
        ("GOOD, capacity: 0", "0 }", "`capacity` must be a whole number from 1 to "),
        ("type: basic, forward: p0, miss: per_entry", "per_entry", "`miss` cannot be `per_entry`"),
        ("type: basic, forward: a, miss: drop", "a: {", "pipes must not form a loop: a -> a"),
        ("type: hash, hash: 5-tuple, group: g, forward: p0, miss: drop", "g,", "there is no group `g`"),
        ("GOOD, match: { ipv4.src: prefix }", "ipv4.src", "a BASIC pipe cannot match `ipv4.src` by prefix"),
        (
            "GOOD, match: { ipv4.src: per_entry }, entries: [{ match: { ipv4.src: 1 } }, { match: { \
                ipv4.src: 0.0.0.1 } }]",
            "{ ipv4.src: 0.0.0.1",
            "pipe `a` has this entry twice",
        ),
    ] {
        let text = with_pipe(&pipe.replace("GOOD", good));
        let report = read("t", &text).report;
        let at = report.diagnostics().into_iter().find(|one| one.message.starts_with(expected));
        let span = at.unwrap_or_else(|| panic!("{pipe}\n{report}")).span;
        let line = text.lines().nth(span.line as usize - 1).unwrap();
        assert!(line[span.column as usize - 1..].starts_with(culprit), "{pipe}\n{report}");
    }
}

/// The source of a tunnel, the words under the caret, and the message about them.
#[test]
fn sources_that_flows_cannot_share_are_refused() {
    for (refusal, culprit, expected) in [
        ("src: 10.255.0.1/16", "10.255.0.1/16", "`10.255.0.1` has bits outside the mask /16"),
        (
            "src: 0.0.0.0/0",
            "0.0.0.0/0",
            "flows cannot share the addresses of a /0: write a prefix from /8 to",
        ),
        ("src: 10.0.0.2/31", "10.0.0.2/31", "flows cannot share the addresses of a /31: write a prefix from"),
        ("src: 224.0.0.0/8", "224.0.0.0/8", "`224.0.0.0/8` contains no host addresses"),
        (
            "src: \"fd00::/48\"",
            "\"fd00::/48",
            "flows cannot share the addresses of a /48: write a prefix from /64",
        ),
        ("src: \"fd00::/64\"", "10.0.0.9", "`10.0.0.9` is not a value of `ipv6.dst`"),
        ("src: 10.1.0.0/16, src_bits: 8", "8 } }", "`src` is already a prefix"),
        ("src: per_entry, src_bits: 25", "25 } }", "`src_bits` cannot be 25"),
        ("src: 10.1.0.0, src_bits: 1", "1 } }", "`src_bits` cannot be 1"),
    ] {
        let text = with_pipe(&format!(
            "type: basic, forward: p0, miss: drop, action: [{{ encap_ipip: {{ eth.dst: 02:00:00:00:00:01, \
             eth.src: 02:00:00:00:00:02, dst: 10.0.0.9, {refusal} }} }}]"
        ));
        let report = read("t", &text).report;
        let at = report.diagnostics().into_iter().find(|one| one.message.starts_with(expected));
        let span = at.unwrap_or_else(|| panic!("{refusal}\n{report}")).span;
        let line = text.lines().nth(span.line as usize - 1).unwrap();
        assert!(line[span.column as usize - 1..].starts_with(culprit), "{refusal}\n{report}");
    }
}

#[test]
fn findings_of_the_check_have_their_places() {
    let text = "ports: { p0: { xdp: none0, take: [{ dst: 10.0.0.1 }] } }\nroot: a\ncounters: [c]\n\
                pipes: { a: { type: basic, forward: drop, miss: kernel } }\n";
    let expected = "4:10: error: `forward: kernel` in `a` is reached from port `p0`, which cannot give a \
        frame to the kernel";
    assert_eq!(wrong(text), ["3:12: warning: counter `c` is never used", expected]);
}

#[test]
fn a_port_that_takes_nothing_is_warned_about() {
    let text = "root: a\nports: { p0: { xdp: none0 }, p1: { xdp: none1 } }\npipes: { a: { type: basic, \
        forward: p1, miss: drop, entries: [{}] } }\n";
    assert_eq!(wrong(text).len(), 2);
    assert_eq!(wrong(&text.replace("none0 }", "none0, take: [{ dst: 10.0.0.1 }] }")), Vec::<String>::new());
    assert_eq!(wrong(&text.replace("none0 }", "none0, take: all }")).len(), 1, "all is warned about");
    assert_eq!(wrong(&text.replace("none1 }", "none1, root: a }"))[1].split_once(' ').unwrap().0, "2:30:");
}

/// docs/reference/fields.md names every field.
#[test]
fn the_documentation_knows_every_field() {
    let file = format!("{}/../../docs/reference/fields.md", env!("CARGO_MANIFEST_DIR"));
    let Ok(text) = std::fs::read_to_string(&file) else { panic!("{file}") };
    for field in Field::ALL.iter().filter(|field| field.level == LevelId::Outer) {
        let access = if field.spec().access == weir_packet::Access::Writable { "yes" } else { "no" };
        let start = format!("| `{field}` | {} | ", field.spec().bits);
        assert!(
            text.lines().any(|line| line.starts_with(&start) && line.ends_with(&format!("| {access} |"))),
            "{field}"
        );
    }
}

#[test]
fn entries_at_run_time() {
    let plan = plan(&example("xenoflow"));
    let (pipe, read) = entry(
        &plan.program,
        &plan.attachments,
        "balance",
        "{ match: { ipv4.src: 0.0.0.1 }, set: { eth.dst: 02:00:00:00:00:09 }, counter: fips3 }",
    )
    .unwrap();
    assert_eq!((pipe, read.run_time, read.values.clone()), (PipeId(0), true, vec![0x0200_0000_0009]));
    let (_, key) =
        entry_key(&plan.program, &plan.attachments, "balance", "{ match: { ipv4.src: 0.0.0.1 } }").unwrap();
    assert_eq!(key, EntryKey::of(&read));
    assert_eq!(write_key(&plan.program, &plan.program.pipes[0], &key), "{ match: { ipv4.src: 0.0.0.1 } }");
    let refusal = |text| entry(&plan.program, &plan.attachments, "balance", text).unwrap_err().to_string();
    let report = refusal("{ match: { ipv4.src: 0.0.0.2 }, set: { eth.dst: x }, counter: fips9 }");
    assert_eq!(report.matches("error").count(), 3, "{report}");
    assert!(report.contains("entry:1:22: error: `0.0.0.2` has bits outside the mask 0.0.0.1"), "{report}");
    let report = entry(&plan.program, &plan.attachments, "balanse", "{}").unwrap_err().to_string();
    assert_eq!(report, "entry: error: there is no pipe `balanse`; did you mean `balance`?\n");
}

/// Every entry of every example is written and read back.
#[test]
fn written_entries_are_read_again() {
    for name in EXAMPLES {
        let plan = plan(&example(name));
        for pipe in &plan.program.pipes {
            for one in &pipe.entries {
                let written = write_entry(&plan.program, pipe, &one);
                let (_, read) = entry(&plan.program, &plan.attachments, &pipe.name, &written)
                    .unwrap_or_else(|report| panic!("{written}\n{report}"));
                assert_eq!(
                    read,
                    weir_program::Entry { run_time: true, origin: Default::default(), ..one },
                    "{written}"
                );
            }
        }
    }
}

fn acl() -> Plan {
    plan(
        "ports: { p0: { mem: }, p1: { mem: } }\nroot: a\ncounters: [x, y]\npipes: { a: { type: acl, match: \
            { ipv6.src: masked, \
         eth.dst: masked, ip.protocol: masked, l4.dport: range, port: masked }, monitor: { counter: \
         per_entry }, forward: per_entry, miss: drop, \
         action: [{ set: { ipv6.dst: per_entry } }, { push_vlan: { vid: per_entry, pcp: per_entry } }] } }\n",
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn random_entries_are_read_again(
        values in prop::array::uniform3((any::<u128>(), any::<u128>(), any::<bool>())),
        range in prop::option::of((any::<u16>(), any::<u16>())),
        (dst, vid, pcp) in (any::<u128>(), 0_u128..4096, 0_u128..8),
        (priority, counter, port) in (any::<u32>(), 0_u16..2, 0_u16..2),
    ) {
        let plan = acl();
        let pipe = &plan.program.pipes[0];
        let masked = |field: Field, (value, mask, any): (u128, u128, bool)| {
            let mask = mask & field.max();
            if any { EntryMatch::Any } else { EntryMatch::Masked { value: value & mask, mask } }
        };
        let range = range.map_or(EntryMatch::Any, |(a, b)| EntryMatch::Range { first: a.min(b),
            last: a.max(b) });
        let [src, mac, protocol] = [Field::Ipv6Src, Field::EthDst, Field::IpProtocol];
        let mine = weir_program::Entry {
            matches: vec![masked(src, values[0]), masked(mac, values[1]), masked(protocol, values[2]), range,
                EntryMatch::Masked { value: u128::from(port), mask: 0xffff }],
            priority,
            values: vec![dst, vid, pcp],
            counter: Some(weir_program::CounterId(counter)),
            forward: Some(Forward::Port(PortId(port))),
            run_time: true,
            ..Default::default()
        };
        let written = write_entry(&plan.program, pipe, &mine);
        let read = entry(&plan.program, &plan.attachments, "a", &written).map_err(|report|
            TestCaseError::fail(format!("{written}\n{report}")))?;
        prop_assert_eq!(read.1, mine);
    }

    /// Any input yields a report.
    #[test]
    fn no_text_makes_it_panic(text in "\\PC{0,80}") {
        let _ = read("t", &text).report.to_string();
        let plan = acl();
        let _ = entry(&plan.program, &plan.attachments, "a", &text).map_err(|report| report.to_string());
        for (_, foreign) in crate::import::foreign() {
            let settings = weir_app::foreign::SettingValues::defaults(foreign.settings);
            let _ = (foreign.convert)(std::path::Path::new("t"), &text, &settings);
        }
    }

    /// An example after a few accidents: something removed, something inserted elsewhere.
    #[test]
    fn no_damaged_example_makes_it_panic(at in 0..EXAMPLES.len(),
        cuts in prop::collection::vec((any::<u16>(), 0_usize..12, any::<u16>()), 1..4)) {
        let mut text: Vec<char> = example(EXAMPLES[at]).chars().collect();
        for (from, length, to) in cuts {
            let from = usize::from(from) % text.len();
            let cut: Vec<char> = text.drain(from..(from + length).min(text.len())).collect();
            let to = usize::from(to) % (text.len() + 1);
            text.splice(to..to, cut);
        }
        let text: String = text.into_iter().collect();
        let loaded = read("t", &text);
        prop_assert_eq!(loaded.plan.is_none(), loaded.report.errors() > 0);
        let _ = loaded.report.to_string();
    }
}

#[test]
fn floods_and_turns_are_read_and_written() {
    let text = with_group("fill: wants").replace("forward: g", "forward: { flood: g }");
    let flood = plan(&text).program;
    assert_eq!(flood.pipes[0].forward, Forward::Flood(weir_program::GroupId(0)));
    assert_eq!(write_forward(flood.pipes[0].forward, &flood), "{ flood: g }");
    assert!(wrong(&text.replace("flood: g", "flood: h"))[0].contains("there is no group `h`"));
    assert!(wrong(&text.replace("flood: g", "flod: g"))[0].contains("a forward has no `flod`"));
    let turns = text.replace(
        "type: basic, forward: { flood: g }",
        "type: hash, hash: round_robin, group: g, forward: p0",
    );
    assert!(matches!(
        plan(&turns).program.pipes[0].kind,
        PipeKind::Hash { input: HashInput::RoundRobin, .. }
    ));
    let rss = turns.replace("round_robin", "rss");
    assert!(matches!(plan(&rss).program.pipes[0].kind, PipeKind::Hash { input: HashInput::Rss, .. }));
    assert!(wrong(&turns.replace("round_robin", "rsss"))[0].contains("`hash` cannot be `rsss`"));
}

#[test]
fn a_copy_has_an_app_and_a_pipe() {
    let text = with_pipe("type: basic, forward: p0, miss: { copy: learner, then: b }");
    assert!(wrong(&text)[0].contains("there is no app `learner`"), "{:?}", wrong(&text));
    let alone = wrong(&text.replace(", then: b", ""));
    assert!(alone.iter().any(|one| one.contains("`then`")), "{alone:?}");
    let mut program = plan(&with_pipe("type: basic, forward: p0, miss: drop")).program;
    program.apps = vec!["learner".into()];
    let tee = Forward::Tee { app: AppId(0), next: PipeId(0) };
    assert_eq!(write_forward(tee, &program), "{ copy: learner, then: a }");
}

/// A group with this special feature, and a pipe that forwards to it.
fn with_group(group: &str) -> String {
    let targets = "targets: { x: p0, y: { weight: 2 } }";
    format!(
        "ports: {{ p0: {{ mem: }} }}\nroot: a\ngroups: {{ g: {{ {group}, {targets} }} }}\n\
         pipes: {{ a: {{ type: basic, forward: g, miss: drop }} }}\n"
    )
}

#[test]
fn buckets_are_filled_by_weights_or_given() {
    let given = with_group("fill: given, size: 4, seed: 0xffffffffffffffff").replace("{ weight: 2 }", "p0");
    let group = plan(&given).program.groups.remove(0);
    assert_eq!((group.fill, group.size, group.seed), (Fill::Given, 4, Some(u64::MAX)));
    assert_eq!(plan(&given.replace(", size: 4", "")).program.groups[0].size, 256);
    assert_eq!(plan(&with_group("fill: wants")).program.groups[0].seed, None);
    let weighed = wrong(&with_group("fill: given"));
    assert!(
        weighed[0].contains("a group whose buckets are given one by one does not use weights"),
        "{weighed:?}"
    );
    let odd = wrong(&given.replace("size: 4", "size: 3"));
    assert!(odd[0].contains("a power of two up to 65536, not 3"), "{odd:?}");
}

#[test]
fn groups_chosen_by_metadata_are_written_by_name() {
    let text = "ports: { p0: { mem: } }\nroot: vips\n\
         groups:\n  web: { number: 7, targets: { b1: p0, b2: p0 } }\n  \
         dns: { number: 9, fill: wants, targets: { b1: p0 } }\n\
         pipes:\n  vips: { type: basic, match: { l4.dport: per_entry }, forward: flows, miss: drop, \
         action: [{ set: { meta.0: per_entry } }], \
         entries: [{ match: { l4.dport: 80 }, set: { meta.0: group(web) } }, \
         { match: { l4.dport: 53 }, set: { meta.0: 9 } }] }\n  \
         flows: { type: flow, learn: { pin: { by: meta.0 } }, forward: spread, miss: drop, \
         entries: [ALL] }\n  \
         spread: { type: hash, hash: 5-tuple, group: { by: meta.0 }, forward: p0, miss: drop, \
         entries: [ALL] }\n";
    let all = "{ match: { group: web, target: b1 } }, { match: { group: web, target: b2 } }, \
         { match: { group: dns, target: b1 } }";
    let text = text.replace("ALL", all);
    assert_eq!(wrong(&text), Vec::<String>::new());
    let program = plan(&text).program;
    let [vips, flows, spread] = &program.pipes[..] else { panic!("{:?}", program.pipes) };
    let choice = GroupChoice::ByMeta(0);
    assert_eq!((flows.kind.group(), spread.kind.group()), (Some(choice), Some(choice)));
    assert_eq!(vips.entries.iter().next().unwrap().values, [7]);
    let written: Vec<String> = vips.entries.iter().map(|entry| write_entry(&program, vips, &entry)).collect();
    assert!(written[0].ends_with("set: { meta.0: group(web) } }"), "{written:?}");
    assert!(written[1].ends_with("set: { meta.0: group(dns) } }"), "{written:?}");
    let third = spread.entries.iter().nth(2).unwrap();
    assert_eq!(third.matches, [EntryMatch::Member { group: GroupId(1), target: 0 }]);
    for entry in &spread.entries {
        let line = write_entry(&program, spread, &entry);
        let read = weir_config::entry(&program, &Default::default(), "spread", &line).unwrap().1;
        assert_eq!(read.matches, entry.matches, "{line}");
    }
    let sizes: Vec<u32> = program.groups.iter().map(|group| group.size).collect();
    assert_eq!(sizes, [251, 256], "they follow the number of targets");
    for (right, mistake, message) in [
        ("group(web)", "group(wep)", "there is no group `wep`"),
        ("number: 7, ", "", "group `web` has no number, so metadata cannot select it: add `number: 1`"),
        ("number: 7", "number: 9", "have the same number, 9"),
        ("{ group: web, target: b1 }", "{ target: b1 }", "`{ group: name, target: name }`"),
        ("{ group: web, target: b1 }", "{ group: wob, target: b1 }", "there is no group `wob`"),
        ("{ group: web, target: b1 }", "{ group: web, target: b9 }", "group `web` has no target `b9`"),
        ("hash: 5-tuple", "hash: round_robin", "metadata cannot select it"),
        ("{ by: meta.0 }, forward: p0", "{ by: meta.4 }, forward: p0", "meta.4"),
        ("{ by: meta.0 }, forward: p0", "{ by: meta.1 }, forward: p0", "nothing writes it"),
    ] {
        let all = wrong(&text.replacen(right, mistake, 1));
        assert!(all.iter().any(|one| one.contains(message)), "no `{message}` in {all:?}");
    }
}

#[test]
fn a_default_size_follows_the_targets_of_a_group_with_a_number() {
    let size = |fill: &str, targets: usize| {
        let targets: Vec<String> = (0..targets).map(|at| format!("t{at}: p0")).collect();
        let text = with_group(&format!("fill: {fill}, number: 1"))
            .replace("x: p0, y: { weight: 2 }", &targets.join(", "));
        plan(&text).program.groups[0].size
    };
    assert_eq!(
        [2, 3, 10, 11, 40, 41, 100, 101].map(|targets| size("maglev", targets)),
        [251, 1021, 1021, 4093, 4093, 10_007, 10_007, 16_381]
    );
    assert_eq!([1, 8, 9, 128, 129].map(|targets| size("wants", targets)), [256, 256, 1024, 4096, 16_384]);
}

#[test]
fn what_stays_with_the_kernel_and_whose_frames_are_taken() {
    let port = |keys: &str| {
        format!(
            "ports: {{ p0: {{ xdp: e0, {keys} }} }}\nroot: a\n\
             pipes: {{ a: {{ type: basic, forward: p0, miss: drop, entries: [{{}}] }} }}\n"
        )
    };
    let loaded = read(
        "t",
        &port("take: all, promisc: true, leave: [{ protocol: tcp, dport: 22 }, { ethertype: arp }]"),
    );
    assert_eq!(loaded.report.to_string(), "", "no warning: it is written what the host keeps");
    let PortKind::Xdp(xdp) = &loaded.plan.unwrap().ports[0].kind else { panic!("an xdp port") };
    assert!(xdp.promisc);
    let left: Vec<_> = xdp.leave.iter().map(|rule| (rule.ethertype, rule.protocol, rule.dport)).collect();
    assert_eq!(left, [(None, Some(6), Some((22, 22))), (Some(0x0806), None, None)]);
    for (keys, message) in [
        ("take: all, leave: [{}]", "this leaves everything with the kernel"),
        ("take: all, leave: [{ dport: 22 }]", "`dport` needs `protocol: tcp`"),
        ("take: all, leave: [{ ethertype: arp, dst: 10.0.0.1 }]", "`dst` already implies the EtherType"),
        ("take: [{ dst: 10.0.0.1, protocol: udp, dport: 0 }]", "a port is a number from 1 to 65535"),
        ("take: [{ dst: 10.0.0.1, protocol: udp, dport: 9-8 }]", "the range `9-8` is empty"),
        ("take: [{ dst: 10.0.0.1, protocol: udp, dport: 70000 }]", "70000"),
        ("take: all, leave: [{ ethertype: lldp }]", "lldp"),
    ] {
        let all = wrong(&port(keys));
        assert!(all.iter().any(|one| one.contains(message)), "no `{message}` in {all:?}");
    }
}

#[test]
fn a_port_takes_ten_thousand_services_and_says_what_is_too_much() {
    let port = |rules: &str| {
        format!(
            "ports: {{ p0: {{ xdp: nowhere0, take: [{rules}] }} }}\n\
             root: a\npipes: {{ a: {{ type: basic, forward: p0, miss: drop }} }}\n"
        )
    };
    let rule = |n: u32| {
        let vip = std::net::Ipv4Addr::from_bits(0x0a00_0000 + n / 4);
        format!("{{ dst: {vip}, protocol: tcp, dport: {} }}", 1000 + n % 4)
    };
    let services: Vec<String> = (0..10_000).map(rule).collect();
    let plan = read("t", &port(&services.join(", "))).plan.unwrap();
    assert_eq!(plan.frames(PortId(0)).rules.len(), 10_000);
    let ranged = "{ dst: 10.0.0.0/8, protocol: udp, dport: 1000-2000 }";
    let plan = read("t", &port(ranged)).plan.unwrap();
    assert_eq!(dport(plan.take(PortId(0)).unwrap()[0]), Some((1000, 2000)));
    let prefixes = (0..=128).map(|length| format!("{{ dst: \"fd00::/{length}\", protocol: udp }}"));
    let all = wrong(&port(&prefixes.collect::<Vec<_>>().join(", ")));
    assert!(all.iter().any(|one| one.contains("use fewer prefix lengths")), "{all:?}");
}
