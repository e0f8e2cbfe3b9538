//! Whole configurations: good ones become the program they say, bad ones say everything at once.

use super::*;
use ::apps::bond::lacp::{Policy, Rate};
use ::apps::bond::links::{Need, Reselect};
use ::apps::bond::rebalance::Rule;
use ::apps::bond::{Bond, Bonds, Inward, Mode};
use ::apps::lb::xenoflow;
use ::config::Frames;
use engine::change::EntryKey;
use engine::program::{
    AppId, Criterion, EntryMatch, Fill, Forward, HashInput, Operation, PipeId, PipeKind, PortId, Value,
};
use packet::{Field, KeySource, LevelId, TunnelKind, TunnelPorts};
use proptest::prelude::*;

/// The examples that users start from.
const EXAMPLES: [&str; 11] = [
    "acl",
    "bond",
    "bond-slb",
    "flow-table",
    "lb-dns",
    "lb-over-bond",
    "lpm-router",
    "meter",
    "nat",
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

/// The bonds of a plan.
fn bonds(plan: &Plan) -> Vec<Bond> {
    plan.apps.of::<Bonds>().unwrap().0.clone()
}

/// The port of a take rule.
fn dport(frames: Frames) -> Option<u16> {
    let Frames::Ip(rule) = frames else { panic!("{frames:?}") };
    rule.dport
}

/// `line:column: severity: message` of everything wrong with a text.
fn wrong(text: &str) -> Vec<String> {
    let report = read("t", text).report.to_string();
    report.lines().filter_map(|line| line.strip_prefix("t:")).map(str::to_string).collect()
}

/// One pipe in an otherwise good file, of which it is line 3.
fn with_pipe(pipe: &str) -> String {
    format!("ports: {{ p0: {{ mem: }} }}\nroot: a\npipes: {{ a: {{ {pipe} }} }}\n")
}

#[test]
fn examples_are_good() {
    for name in EXAMPLES {
        let loaded = read(name, &example(name));
        assert_eq!(loaded.report.to_string(), "");
        assert!(loaded.plan.is_some());
    }
    let files = std::fs::read_dir(format!("{}/../../configs", env!("CARGO_MANIFEST_DIR"))).unwrap();
    for file in files.map(|file| file.unwrap().path()).filter(|file| file.extension().is_some_and(|end| end == "yaml"))
    {
        let text = std::fs::read_to_string(&file).unwrap();
        let loaded = read(&file.display().to_string(), &text);
        assert!(loaded.plan.is_some(), "{}", loaded.report);
    }
}

#[test]
fn an_empty_file_says_what_is_needed() {
    assert!(wrong("")[0].contains("a mapping") || wrong("")[0].contains("there is no port"), "{:?}", wrong(""));
    assert_eq!(wrong("workers: 1\n"), ["1:1: error: there is no port: write `ports: { p0: { xdp: eth0 } }`"]);
}

#[test]
fn everything_becomes_what_it_says() {
    let plan = plan(
        "workers: [0, 2]\nhash_seed: 0x1234\nsocket: /tmp/s\nmetrics: 127.0.0.1:9105\nbusy: true\nroot: a\n\
         ports:\n  p0: { xdp: eth9, queues: [0, 1], mode: copy, take: [{ dst: 10.0.0.0/8, protocol: udp, dport: 53 }] }\n  \
         p1: { pcap: { out: o.pcap }, fault: { seed: 7, loss: 1%, delay: 5ms }, trace: t.pcap, mac: 02:00:00:00:00:01 }\n\
         groups: { g: { fill: wants, size: 8, targets: { x: p1, y: { weight: 0, forward: in_port } } } }\n\
         pipes:\n  a: { type: hash, hash: [ipv4.src/24, ipv6.src], group: g, forward: per_entry, miss: drop, rehash: true,\n       \
         entries: [{ match: { target: x }, forward: { pipe: b } }, { match: { target: y }, forward: drop }] }\n  \
         b: { type: flow, key: inner, learn: { follow: g }, monitor: { idle_timeout: 30s }, forward: g, miss: b2,\n       \
         entries: [{ match: { target: x } }, { match: { target: y } }, { match: { flow: \"tcp 1.2.3.4:5 > 5.6.7.8:9 vni 3\" } }] }\n  \
         b2: { type: basic, match: { port: p1 }, forward: in_port, miss: drop, entries: [{}] }\n",
    );
    assert_eq!((plan.workers.clone(), plan.busy, plan.program.select_seed), (Workers::Cores(vec![0, 2]), true, 0x1234));
    assert_eq!((plan.socket.to_str(), plan.metrics.map(|at| at.port())), (Some("/tmp/s"), Some(9105)));
    let PortKind::Xdp(xdp) = &plan.ports[0].kind else { panic!() };
    assert_eq!((xdp.queues.clone(), xdp.mode), (Some(vec![0, 1]), XdpMode::Copy));
    assert_eq!(dport(plan.take(PortId(0)).unwrap()[0]), Some(53));
    assert_eq!(plan.take(PortId(1)), None);
    let fault = plan.ports[1].fault.unwrap();
    assert_eq!((fault.seed, fault.loss, fault.delay_ns), (7, 0.01, 5_000_000));
    assert_eq!(plan.ports[1].mac, Some([2, 0, 0, 0, 0, 1]));
    let [a, b, b2] = plan.program.pipes.as_slice() else { panic!() };
    let fields = vec![(Field::Ipv4Src, 0xffff_ff00), (Field::Ipv6Src, u128::MAX)];
    assert!(matches!(&a.kind, PipeKind::Hash { input: HashInput::Fields(given), .. } if *given == fields));
    assert_eq!((a.rehash, a.forward, a.entries[0].forward), (true, Forward::PerEntry, Some(Forward::Pipe(PipeId(1)))));
    assert!(matches!(b.kind, PipeKind::Flow { key: KeySource::Inner, idle_timeout_ns: 30_000_000_000, .. }));
    assert!(matches!(b.entries[2].matches[..], [EntryMatch::Flow(key)] if key.vni() == 3));
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
        ("{ gue: { port: 0 } }", "4:25: error: `port` is a whole number from 1 to 65535, not `0`"),
        ("{ gue: { port: 4789 } }", "4:25: error: port 4789 means `vxlan` too"),
    ] {
        assert_eq!(wrong(&format!("{file}tunnels: {tunnels}\n"))[0].split("; ").next(), Some(expected));
    }
}

#[test]
fn actions_and_their_places() {
    let text = with_pipe(
        "type: basic, forward: p0, miss: drop, match: { meta.0: ignore, udp.dport: { const: 53 } }, actions: { \
         one: [pop_vlan, { set: { eth.dst: per_entry, ipv4.ttl: 9 } }, { copy: { from: eth.src, to: meta.1 } }], \
         two: [{ add: { l4.dport: 1 } }, decrement_ttl, { push_vlan: { vid: per_entry } }, { push_vlan: { vid: 5, pcp: per_entry, \
         tpid: 0x88a8 } }, { encap_vxlan: { eth.dst: 02:00:00:00:00:01, eth.src: 02:00:00:00:00:02, src: \"::1\", dst: per_entry, \
         vni: 5 } }] }, entries: [{ action: two, push_vlan: [{ vid: 6 }, { pcp: 1 }], encap_vxlan: { dst: \"::2\" } }]",
    );
    let plan = plan(&text);
    let pipe = &plan.program.pipes[0];
    assert_eq!(pipe.templates[0].operations[1], Operation::Set(Field::EthDst, Value::PerEntry));
    assert!(matches!(pipe.templates[1].operations[4], Operation::Encap(encap) if encap.ipv6 && encap.sport.is_none()));
    assert_eq!((pipe.entries[0].template, pipe.entries[0].values.clone()), (1, vec![6, 1, 2]));
    let written = write_entry(&plan.program, pipe, &pipe.entries[0]);
    assert_eq!(
        written,
        "{ match: {}, action: two, push_vlan: [{ vid: 6 }, { pcp: 1 }], encap_vxlan: { dst: \"::2\" } }"
    );
}

#[test]
fn a_port_of_an_app_has_the_apps_root() {
    let plan = plan(&example("lb-dns"));
    assert_eq!(plan.program.ports[0].root, plan.program.pipe_named("lb"));
    assert_eq!(plan.take(PortId(0)).unwrap().len(), 4, "two services, fragments of two protocols");
    assert_eq!(plan.program.counters[0], "lb/dns/b1");
}

#[test]
fn an_external_app_is_a_name_to_forward_to() {
    let text = with_pipe("type: basic, forward: slow, miss: { app: slow }")
        + "apps: [external: { name: slow, socket: s.sock }]\n";
    let plan = plan(&text);
    assert_eq!(
        (plan.program.apps.clone(), plan.program.pipes[0].forward),
        (vec!["slow".into()], Forward::App(AppId(0)))
    );
    assert_eq!(write_forward(plan.program.pipes[0].miss, &plan.program), "slow");
    let app = &plan.apps.running()[0];
    assert_eq!((app.name(), app.socket().and_then(|path| path.to_str())), ("slow", Some("s.sock")));
}

/// An app, the words under the caret, and what is said about them.
#[test]
fn each_error_of_an_app_has_its_place() {
    let long = format!("/{}", "a".repeat(107));
    for (app, culprit, expected) in [
        ("external: { name: slow }", "{ name", "`socket` is missing: the unix socket where its clients connect"),
        ("external: { socket: s }", "{ socket", "`name` is missing"),
        ("external: { name: p0, socket: s }", "p0", "`p0` is the name of a port already"),
        ("external: { name: a, socket: s }", "a, socket", "`a` is the name of a pipe already"),
        ("external: { name: g, socket: s }", "g, socket", "`g` is the name of a group already"),
        ("external: { name: lb, socket: s }", "lb, socket", "`lb` is the name of the load balancer's pipe already"),
        ("external: { name: drop, socket: s }", "drop", "`drop` is a word of the language, not a name"),
        (
            "external: { name: x, socket: s }, external: { name: y, socket: t }",
            "external: { name: y",
            "`external` is here twice",
        ),
        (
            "external: { name: x, socket: s } }, { external: { name: x, socket: t }",
            "x, socket: t",
            "`x` is the name of another app already",
        ),
        (
            "external: { name: x, socket: s } }, { external: { name: y, socket: s }",
            "s } }]",
            "this is the socket of app `x` already",
        ),
        ("external: { name: x, socket: /run/weir/weir.sock }", "/run/weir", "this is the socket of the daemon already"),
        ("external: { name: x, socket: \"\" }", "\"\"", "the path names no file"),
        ("external: { name: x, socket: /run/ }", "/run/", "the path names no file"),
        (
            &format!("external: {{ name: x, socket: {long} }}"),
            "/aaa",
            "the path has 108 bytes and a socket's path 107 at most",
        ),
        ("external: { name: x, socket: s, clients: 9 }", "clients", "there is no key `clients` here"),
        ("extrenal: { name: x, socket: s }", "extrenal", "there is no app `extrenal`"),
    ] {
        let group = "groups: { g: { targets: { t: p0 } } }\n";
        let text = with_pipe("type: basic, forward: g, miss: p0") + group + &format!("apps: [{{ {app} }}]\n");
        let report = read("t", &text).report;
        let at = report.diagnostics().into_iter().find(|one| one.message.starts_with(expected));
        let span = at.unwrap_or_else(|| panic!("{app}\n{report}")).span;
        let line = text.lines().nth(span.line as usize - 1).unwrap();
        assert!(line[span.column as usize - 1..].starts_with(culprit), "{app}\n{report}");
    }
    let text =
        with_pipe("type: basic, forward: slwo, miss: drop") + "apps: [external: { name: slow, socket: s.sock }]\n";
    let report = read("t", &text).report.to_string();
    assert!(report.contains("t:3:37: error: there is no port, pipe, group or app `slwo`"), "{report}");
    assert!(report.contains("did you mean `slow`?"), "{report}");
}

/// Three ports, a pipe `a`, and bonds of this.
fn with_bonds(bonds: &str) -> String {
    "ports: { p0: { mem: }, p1: { mem: }, p2: { mem: } }\n\
     pipes: { a: { type: basic, forward: p0, miss: drop } }\n"
        .to_string()
        + &format!("apps: [{bonds}]\n")
}

/// What every bond is told, what is not told of it, and what it is then.
#[test]
fn a_bond_is_what_it_says() {
    let plain = plan(&with_bonds(
        "{ bond: { name: bond0, mode: balance_tcp, members: [p1, p2], inside: p0, lacp: { mode: active, rate: fast } } }",
    ));
    let bond = &bonds(&plain)[0];
    assert_eq!((bond.name.as_str(), bond.mode, bond.buckets), ("bond0", Mode::BalanceTcp, 256));
    assert_eq!((bond.inward, bond.ports()), (Inward::Port(PortId(0)), vec![PortId(1), PortId(2)]));
    assert_eq!((bond.rebalance_ms, bond.idle_gap_ns, bond.idle_gap_max_ns), (10_000, 1_000_000, 1_000_000_000));
    assert_eq!((bond.elephants, plain.program.pipe_named("bond0/hash")), (0, None));
    let lacp = bond.lacp.as_ref().unwrap();
    assert!(lacp.active && !lacp.fallback && lacp.rate == Rate::Fast);
    assert_eq!((lacp.system.priority, lacp.key, lacp.min_links), (0x8000, 1, 0));
    assert_eq!(plain.program.ports[0].root, plain.program.pipe_named("bond0"));
    let roots: Vec<_> = plain.program.ports[1..].iter().map(|port| port.root).collect();
    assert_eq!(roots, [plain.program.pipe_named("bond0/slow"); 2]);
    let told = plan(&with_bonds(
        "{ bond: { name: b, mode: balance_tcp, members: [{ port: p1, weight: 3, lacp_priority: 7, lacp_key: 9 }, p2], \
         root: a, buckets: 1024, hash: { basis: 5, headers: inner }, primary: p2, reselect: failure, updelay: 2s, \
         downdelay: 10ms, probe: { targets: [192.0.2.1, \"2001:db8::1\"], source: 192.0.2.9, interval: 100ms, missed_max: 3, \
         need: all }, rebalance: { interval: 1s, by_capacity: true, moves_on: true, budget: 8, elephants: 4 }, idle_gap: 2ms, \
         idle_gap_max: 3s, learnt_max: 77, announce: [192.0.2.9], lacp: { mode: passive, rate: slow, system_priority: 3, \
         system_id: 02:00:00:00:00:77, key: 4, min_links: 2, select: count, fallback: true } } }",
    ));
    let bond = &bonds(&told)[0];
    let first = &bond.members[0];
    assert_eq!((first.weight, first.priority, first.key, bond.members[1].weight), (Some(3), 7, Some(9), None));
    assert_eq!((bond.inward, bond.buckets, bond.basis), (Inward::Pipe(PipeId(0)), 1024, 5));
    assert_eq!((bond.key, bond.primary.as_deref(), bond.reselect), (KeySource::Inner, Some("p2"), Reselect::Failure));
    assert_eq!((bond.updelay_ms, bond.downdelay_ms, bond.learnt_max), (2000, 10, 77));
    assert_eq!((bond.idle_gap_ns, bond.idle_gap_max_ns), (2_000_000, 3_000_000_000));
    let probe = bond.probe.as_ref().unwrap();
    assert_eq!((probe.targets.len(), probe.interval_ms, probe.missed_max, probe.need), (2, 100, 3, Need::All));
    assert_eq!((bond.rebalance_ms, bond.rule), (1000, Rule { by_capacity: true, moves_on: true, budget: Some(8) }));
    let lacp = bond.lacp.as_ref().unwrap();
    assert_eq!((lacp.system.priority, lacp.system.mac[5], lacp.key, lacp.min_links), (3, 0x77, 4, 2));
    assert!(!lacp.active && lacp.fallback && lacp.rate == Rate::Slow && lacp.policy == Policy::Count);
    assert_eq!((bond.elephants, told.program.pipe_named("b/hash").is_some()), (4, true));
    assert!(!bonds(&plain)[0].rss && !bond.rss);
    for (hash, basis) in [("rss", 0), ("{ headers: rss, basis: 5 }", 5)] {
        let rss =
            plan(&with_bonds(&format!("{{ bond: {{ name: b, mode: static, members: [p1, p2], hash: {hash} }} }}")));
        let bond = &bonds(&rss)[0];
        assert_eq!((bond.rss, bond.basis, bond.key), (true, basis, KeySource::Outer));
        let pipe = &rss.program.pipes[rss.program.pipe_named("b").unwrap().index()];
        assert!(matches!(pipe.kind, PipeKind::Hash { input: HashInput::Rss, .. }));
    }
    let never = with_bonds("{ bond: { name: b, mode: static, members: [p1], rebalance: never } }");
    assert_eq!(bonds(&plan(&never))[0].rebalance_ms, 0);
}

/// A bond, the words under the caret, and what is said about them.
#[test]
fn each_error_of_a_bond_has_its_place() {
    let good = "name: b, mode: static, members: [p1, p2]";
    for (bond, culprit, expected) in [
        ("mode: static, members: [p1]", "{ mode", "`name` is missing"),
        ("name: b, members: [p1]", "{ name", "`mode` is missing"),
        ("name: b, mode: static", "{ name", "`members` is missing"),
        ("name: a, mode: static, members: [p1]", "a, mode", "`a` is the name of a pipe already"),
        ("name: p1, mode: static, members: [p1]", "p1, mode", "`p1` is the name of a port already"),
        ("name: drop, mode: static, members: [p1]", "drop", "`drop` is a word of the language"),
        ("GOOD } }, { bond: { GOOD", "b, mode: static, members: [p1, p2] } }]", "two bonds are called so"),
        (
            "GOOD } }, { bond: { name: c, mode: static, members: [p0, p2]",
            "p2] } }]",
            "port `p2` is a member of bond `b`",
        ),
        ("name: b, mode: static, members: [p1, p1]", "p1] }", "port `p1` is a member of bond `b` already"),
        ("name: b, mode: static, members: [p1, p9]", "p9", "there is no port `p9`"),
        ("name: b, mode: static, members: [{ port: p1, wieght: 1 }]", "wieght", "there is no key `wieght` here"),
        ("name: b, mode: static, members: []", "b, mode", "bond `b` has no members"),
        ("name: b, mode: static, members: p1", "p1 }", "a list of ports is wanted here"),
        ("name: b, mode: ballance_slb, members: [p1]", "ballance_slb", "`mode` cannot be `ballance_slb`"),
        (
            "name: b, mode: static, members: [{ port: p1, weight: 0 }, { port: p2, weight: 0 }]",
            "b, mode",
            "all members of bond `b` have weight 0",
        ),
        (
            "name: b, mode: static, members: [{ port: p1, weight: 65536 }]",
            "65536",
            "`weight` is a whole number from 0 to 65535",
        ),
        ("name: b, mode: balance_tcp, members: [p1]", "b, mode", "bond `b` needs `lacp`"),
        ("GOOD, lacp: {}", "b, mode", "`mode: static` is without LACP"),
        ("GOOD, inside: p0, root: a", "a } }]", "frames from the members go to `inside` or to a `root`"),
        ("GOOD, inside: p1", "p1, p2", "port `p1` is a member, and cannot be the inside too"),
        ("GOOD, inside: p7", "p7", "there is no port `p7`"),
        ("GOOD, root: c", "c }", "there is no pipe `c`"),
        ("GOOD, buckets: 100", "b, mode", "100 buckets for 2 members: write a power of two"),
        ("GOOD, buckets: 1", "b, mode", "1 buckets for 2 members"),
        ("GOOD, buckets: 131072", "131072", "`buckets` is a whole number from 1 to 65536"),
        ("GOOD, primary: p0", "b, mode", "`primary: p0` is no member"),
        ("GOOD, reselect: alwys", "alwys", "`reselect` cannot be `alwys`"),
        ("GOOD, hash: { basis: x }", "x }", "`basis` is a whole number from 0"),
        ("GOOD, hash: { headers: both }", "both", "`headers` cannot be `both`"),
        ("GOOD, hash: rrs", "rrs", "`hash` (`rss`, or a mapping of `basis` and `headers`) cannot be `rrs`"),
        (
            "name: b, mode: balance_slb, members: [p1], hash: rss",
            "b, mode",
            "`hash: rss` has no part in `mode: balance_slb`",
        ),
        ("GOOD, updelay: 2h", "2h", "an hour at most"),
        ("GOOD, downdelay: 5", "5 }", "`downdelay` cannot be `5`"),
        ("GOOD, rebalance: { every: 1s }", "every", "there is no key `every` here"),
        ("GOOD, rebalance: { budget: 0 }", "0 }", "`budget` is a whole number from 1 to 65536"),
        ("GOOD, rebalance: { elephants: 65 }", "65 }", "`elephants` is a whole number from 0 to 64"),
        ("GOOD, rebalance: { elephants: some }", "some", "`elephants` is a whole number from 0 to 64"),
        (
            "GOOD, rebalance: { elephants: 1, interval: never }",
            "b, mode",
            "bond `b` looks for elephants when it rebalances",
        ),
        ("GOOD, hash: rss, rebalance: { elephants: 1 }", "b, mode", "bond `b` cannot find elephants with `hash: rss`"),
        (
            "name: b, mode: balance_slb, members: [p1], rebalance: { elephants: 1 }",
            "b, mode",
            "`mode: balance_slb` pins no elephants: only `balance_tcp` and `static`",
        ),
        (
            "name: b, mode: active_backup, members: [p1], rebalance: { elephants: 1 }",
            "b, mode",
            "`mode: active_backup` pins no elephants",
        ),
        (
            "name: b, mode: round_robin, members: [p1], rebalance: { elephants: 1 }",
            "b, mode",
            "`mode: round_robin` pins no elephants",
        ),
        (
            "name: b, mode: broadcast, members: [p1], rebalance: { elephants: 1 }",
            "b, mode",
            "`mode: broadcast` pins no elephants",
        ),
        ("GOOD, probe: {}", "{} }", "`targets` is missing"),
        ("GOOD, probe: { targets: [] }", "[] }", "1 to 16 addresses can be asked"),
        ("GOOD, probe: { targets: [eth0] }", "eth0", "`eth0` is not an IP address"),
        ("GOOD, probe: { targets: [192.0.2.1], source: \"::1\" }", "\"::1\"", "`::1` is not an IPv4 address"),
        ("GOOD, learnt_max: 0", "0 }", "`learnt_max` is a whole number from 1 to 65536"),
        ("GOOD, announce: [x]", "x]", "`x` is not an IP address"),
        ("GOOD, primry: p1", "primry", "there is no key `primry` here"),
        ("TCP, lacp: { mode: on }", "on }", "`mode` cannot be `on`"),
        ("TCP, lacp: { rate: quick }", "quick", "`rate` cannot be `quick`"),
        ("TCP, lacp: { system_id: 02:00:00 }", "02:00:00", "`02:00:00` is not a MAC address"),
        (
            "TCP, lacp: { system_id: 01:00:00:00:00:01 }",
            "01:00:00:00:00:01",
            "`01:00:00:00:00:01` is not the address of a station",
        ),
        (
            "TCP, lacp: { system_id: 00:00:00:00:00:00 }",
            "00:00:00:00:00:00",
            "`00:00:00:00:00:00` is not the address of a station",
        ),
        ("TCP, lacp: { key: 65536 }", "65536", "`key` is a whole number from 0 to 65535"),
        ("TCP, lacp: { min_link: 1 }", "min_link", "there is no key `min_link` here"),
    ] {
        let bond = bond.replace("GOOD", good).replace("TCP", "name: b, mode: balance_tcp, members: [p1, p2]");
        let text = with_bonds(&format!("{{ bond: {{ {bond} }} }}"));
        let report = read("t", &text).report;
        let found = report.diagnostics().into_iter().find(|one| one.message.starts_with(expected)).cloned();
        let span = found.unwrap_or_else(|| panic!("{bond}\n{report}")).span;
        let line = text.lines().nth(span.line as usize - 1).unwrap();
        assert!(line[span.column as usize - 1..].starts_with(culprit), "{bond}\n{report}");
        assert_eq!(report.errors(), 1, "one mistake, one error: {bond}\n{report}");
    }
}

#[test]
fn members_of_a_bond_carry_the_same_frames() {
    let mut bond = bonds(&plan(&with_bonds("{ bond: { name: b, mode: static, members: [p1, p2] } }"))).remove(0);
    (bond.members[0].mtu, bond.members[1].mtu) = (Some(1500), Some(1400));
    let origin = bond.members[1].origin;
    let problems = ::apps::bond::problems(&[bond]);
    assert_eq!(problems.len(), 1);
    assert_eq!(problems[0].0, origin);
    assert!(problems[0].1.to_string().starts_with("the MTU of `p1` is 1500 and that of `p2` 1400"), "{problems:?}");
}

#[test]
fn a_bond_has_64_members_at_most() {
    let ports: Vec<String> = (0..64).map(|at| format!("m{at}")).collect();
    let members =
        |more: &str| format!("{{ bond: {{ name: b, mode: static, members: [{}{more}] }} }}", ports.join(", "));
    let declared: String = ports.iter().map(|port| format!("{port}: {{ mem: }}, ")).collect();
    let text = |bonds: &str| format!("ports: {{ {declared} }}\napps: [{bonds}]\n");
    assert!(read("t", &text(&members(""))).plan.is_some());
    assert!(wrong(&text(&members(", m0")))[0].contains("a bond has 64 members at most"));
}

/// The load balancer over a bond, and what leads elsewhere.
#[test]
fn a_service_stands_on_a_bond_that_leads_nowhere_else() {
    let lb = ", { lb: { name: s, port: b, service: { vip: 192.0.2.1, protocol: udp, port: 53 }, by: 5-tuple, \
              back_ends: [{ name: x, mac: 02:00:00:00:00:01 }] } }";
    let bond = |more: &str| format!("{{ bond: {{ name: b, mode: static, members: [p1, p2]{more} }} }}");
    let good = plan(&with_bonds(&(bond("") + lb)));
    let inward = &good.program.pipes[good.program.pipe_named("b/in").unwrap().index()];
    assert_eq!(inward.forward, Forward::Pipe(good.program.pipe_named("lb").unwrap()));
    assert_eq!(good.program.ports[1].root, good.program.pipe_named("b/slow"));
    for more in [", inside: p0", ", root: a"] {
        let told = wrong(&with_bonds(&(bond(more) + lb)));
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with("3:24: error: bond `b` sends what comes in to its `inside` or `root`"), "{told:?}");
    }
}

/// Who names a bond that has an error makes no mistake by that.
#[test]
fn an_error_of_a_bond_is_told_once() {
    let lb = ", { lb: { name: s, port: b, service: { vip: 192.0.2.1, protocol: udp, port: 53 }, by: 5-tuple, \
              back_ends: [{ name: x, mac: 02:00:00:00:00:01 }] } }";
    for bond in ["name: b, mode: static, members: [p9]", "name: b, mode: balance_tcp, members: [p1, p2]"] {
        let text = with_bonds(&format!("{{ bond: {{ {bond} }} }}{lb}")).replace(
            "forward: p0, miss: drop",
            "match: { port: per_entry }, forward: b, miss: drop, entries: [{ match: { port: b } }]",
        );
        for text in [&text, &text.replace("port: b, service", "port: p0, out: b, service")] {
            assert_eq!(wrong(text).len(), 1, "{:?}", wrong(text));
        }
    }
}

/// Where a pipe matches the port per entry, a bond stands for its members.
#[test]
fn an_entry_of_a_bond_is_one_of_each_member() {
    let bond = "{ bond: { name: b, mode: static, members: [p1, p2] } }";
    let with = |pipe: &str| with_bonds(bond).replace("type: basic, forward: p0, miss: drop", pipe);
    let basic = "type: basic, match: { udp.dport: per_entry, port: per_entry }, monitor: { counter: per_entry }, forward: p0, \
                 miss: drop, entries: [{ match: { port: b, udp.dport: 53 }, counter: c }, { match: { port: p0, udp.dport: 53 }, \
                 counter: d }]";
    let expanded = plan(&with(basic));
    let matches = |plan: &Plan| plan.program.pipes.iter().find(|pipe| pipe.name == "a").unwrap().entries.clone();
    let keys: Vec<Vec<EntryMatch>> = matches(&expanded).into_iter().map(|entry| entry.matches).collect();
    let key = |port: u128| vec![EntryMatch::Value(53), EntryMatch::Value(port)];
    assert_eq!(keys, [key(1), key(2), key(0)]);
    let acl = "type: acl, match: { port: masked, l4.dport: range }, forward: p0, miss: drop, \
               entries: [{ match: { port: b, l4.dport: 1-9 }, priority: 5 }]";
    let rules = matches(&plan(&with(acl)));
    let port = |rule: &engine::program::Entry| (rule.matches[0], rule.priority);
    let whole = |value| EntryMatch::Masked { value, mask: 0xffff };
    assert_eq!(rules.iter().map(port).collect::<Vec<_>>(), [(whole(1), 5), (whole(2), 5)]);
    // The same port twice is told, where it was written.
    let twice = wrong(&with(&basic.replace("port: p0", "port: p2")));
    assert!(twice.iter().any(|one| one.contains("error: pipe `a` has this entry twice")), "{twice:?}");
    // A whole pipe has one port; a change at run time is one entry.
    let constant = wrong(&with("type: basic, match: { port: b }, forward: p0, miss: drop"));
    assert!(constant[0].contains("`b` is a bond of several ports (p1, p2)"), "{constant:?}");
    assert!(constant[0].contains("match `port` per entry"), "{constant:?}");
    for text in ["{ match: { port: b, udp.dport: 53 }, counter: c }", "{ match: { port: b, udp.dport: 53 } }"] {
        let told = match text.contains("counter") {
            true => entry(&expanded.program, &expanded.attachments, "a", text).unwrap_err().to_string(),
            false => entry_key(&expanded.program, &expanded.attachments, "a", text).unwrap_err().to_string(),
        };
        assert!(told.starts_with("entry:1:18: error: `b` is a bond: at run time"), "{told}");
        assert!(told.contains("names one of its members, p1, p2"), "{told}");
    }
}

#[test]
fn all_errors_are_told_at_once() {
    let text = "workers: 0\nhash_sead: 1\nports:\n  p0: { mem: , root: b }\n  drop: { mem: }\npipes:\n  a:\n    type: basic\n    \
                match: { ipv4.scr: per_entry }\n    forward: p9\n";
    assert_eq!(
        wrong(text),
        [
            "1:10: error: the number of workers is a whole number from 1 to 256, not `0`",
            "2:1: error: there is no key `hash_sead` here",
            "4:22: error: there is no pipe `b`",
            "5:3: error: `drop` is a word of the language, not a name",
            "7:3: error: `miss` is missing: where packets go that match nothing: a pipe, a port, `kernel`, `drop`",
            "9:14: error: there is no field `ipv4.scr`",
            "10:14: error: there is no port, pipe, group or app `p9`",
        ]
    );
    let report = read("t", text).report.to_string();
    assert!(report.contains("did you mean `hash_seed`?") && report.contains("did you mean `ipv4.src`?"), "{report}");
}

/// A pipe, the words under the caret, and what is said about them.
#[test]
fn each_error_has_its_place() {
    let good = "type: basic, forward: p0, miss: drop";
    for (pipe, culprit, expected) in [
        ("type: basik, forward: p0, miss: drop", "basik", "`type` cannot be `basik`"),
        ("GOOD, learn: default", "default", "only flow pipes have `learn`"),
        ("GOOD, miss: p0", "miss: p0", "`miss` is here twice"),
        ("GOOD, match: { eth.dst: 1.2.3.4 }", "1.2.3.4", "`1.2.3.4` is not a value of `eth.dst`: "),
        ("GOOD, match: { vlan.vid: 4096 }", "4096", "`vlan.vid` has 12 bits: at most 0xfff, not `4096`"),
        ("GOOD, match: { ipv4.src: 10.0.0.1/8 }", "10.0.0.1/8", "`10.0.0.1` has bits outside the mask /8"),
        ("GOOD, match: { ipv4.src: per_entry }, entries: [{}]", "{}", "`ipv4.src` is missing"),
        ("GOOD, entries: [{ match: { ipv4.src: 1 } }]", "ipv4.src", "pipe `a` does not match `ipv4.src`"),
        ("GOOD, entries: [{ priority: 1 }]", "1 }", "only entries of acl pipes have a priority"),
        ("GOOD, entries: [{ forward: in_port }]", "in_port", "an entry gives its `forward` only where"),
        ("GOOD, entries: [{ counter: x }]", "x }", "an entry gives its `counter` only where"),
        ("GOOD, entries: [{ set: { eth.dst: 1 } }]", "eth.dst", "the action takes no `eth.dst` per entry"),
        ("GOOD, action: [{ set: { ip.protocol: 1 } }]", "ip.protocol", "`ip.protocol` is read-only"),
        ("GOOD, action: [decrement_ttl, pop_vlan]", "pop_vlan", "`pop_vlan` cannot stand behind `decrement_ttl`"),
        ("GOOD, action: [dorp]", "dorp", "there is no operation `dorp`"),
        ("GOOD, monitor: { meter: m }", "m }", "there is no meter `m`"),
        ("GOOD, monitor: { red: pass }", "pass", "`red` says what becomes"),
        ("GOOD, capacity: 0", "0 }", "`capacity` is a whole number from 1 to "),
        ("type: basic, forward: p0, miss: per_entry", "per_entry", "a miss cannot be `per_entry`"),
        ("type: basic, forward: a, miss: drop", "a: {", "pipes must not lead back to where they came from: a -> a"),
        ("type: hash, hash: 5-tuple, group: g, forward: p0, miss: drop", "g,", "there is no group `g`"),
        ("GOOD, match: { ipv4.src: prefix }", "ipv4.src", "a BASIC pipe cannot match `ipv4.src` by prefix"),
        (
            "GOOD, match: { ipv4.src: per_entry }, entries: [{ match: { ipv4.src: 1 } }, { match: { ipv4.src: 0.0.0.1 } }]",
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

#[test]
fn findings_of_the_check_have_their_places() {
    let text = "ports: { p0: { xdp: none0, take: [{ dst: 10.0.0.1 }] } }\nroot: a\ncounters: [c]\n\
                pipes: { a: { type: basic, forward: drop, miss: kernel } }\n";
    let expected =
        "4:10: error: `forward: kernel` in `a` is reached from port `p0`, which cannot give a frame to the kernel";
    assert_eq!(wrong(text), ["3:12: warning: counter `c` is never used", expected]);
}

#[test]
fn a_port_that_takes_nothing_is_warned_about() {
    let text = "root: a\nports: { p0: { xdp: none0 }, p1: { xdp: none1 } }\npipes: { a: { type: basic, forward: p1, miss: drop } }\n";
    assert_eq!(wrong(text).len(), 2);
    assert_eq!(wrong(&text.replace("none0 }", "none0, take: [{ dst: 10.0.0.1 }] }")), Vec::<String>::new());
    assert_eq!(wrong(&text.replace("none0 }", "none0, take: all }")).len(), 1, "all is warned about");
    assert_eq!(wrong(&text.replace("none1 }", "none1, root: a }"))[1].split_once(' ').unwrap().0, "2:30:");
}

/// docs/configuration.md names every field.
#[test]
fn the_documentation_knows_every_field() {
    let file = format!("{}/../../docs/configuration.md", env!("CARGO_MANIFEST_DIR"));
    let Ok(text) = std::fs::read_to_string(&file) else { panic!("{file}") };
    for field in Field::ALL.iter().filter(|field| field.level == LevelId::Outer) {
        let access = if field.spec().access == packet::Access::Writable { "yes" } else { "no" };
        let start = format!("| `{field}` | {} | ", field.spec().bits);
        assert!(
            text.lines().any(|line| line.starts_with(&start) && line.ends_with(&format!("| {access} |"))),
            "{field}"
        );
    }
}

#[test]
fn json_is_yaml() {
    let mut report = Report::new("b.json", "");
    let text = r#"{"backends":[{"name":"fips2","mac_address":"A0:88:C2:B5:F4:5A"}]}"#;
    let back_ends = xenoflow(text, &mut report);
    assert_eq!((back_ends[0].name.as_str(), back_ends[0].mac), ("fips2", [0xa0, 0x88, 0xc2, 0xb5, 0xf4, 0x5a]));
    for (text, expected) in [
        (
            r#"{"backends":[{"name":"a","mac_address":"A0:88:C2"}]}"#,
            "b.json:1:40: error: `A0:88:C2` is not a MAC address",
        ),
        (r#"{"backends":[]}"#, "b.json:1:13: error: there are no back ends"),
        (r#"{"backend":[]}"#, "b.json:1:2: error: there is no key `backend` here"),
        (
            r#"{"backends":[{"name":"a","mac_address":"02:00:00:00:00:01"},{"name":"a","mac_address":"02:00:00:00:00:01"}]}"#,
            "b.json:1:69: error: two back ends are called `a`",
        ),
    ] {
        let mut report = Report::new("b.json", text);
        let _ = xenoflow(text, &mut report);
        assert!(report.to_string().contains(expected), "{report}");
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
    let (_, key) = entry_key(&plan.program, &plan.attachments, "balance", "{ match: { ipv4.src: 0.0.0.1 } }").unwrap();
    assert_eq!(key, EntryKey::of(&read));
    assert_eq!(write_key(&plan.program, &plan.program.pipes[0], &key), "{ match: { ipv4.src: 0.0.0.1 } }");
    let told = |text| entry(&plan.program, &plan.attachments, "balance", text).unwrap_err().to_string();
    let report = told("{ match: { ipv4.src: 0.0.0.2 }, set: { eth.dst: x }, counter: fips9 }");
    assert_eq!(report.matches("error").count(), 3, "{report}");
    assert!(report.contains("entry:1:22: error: `0.0.0.2` has bits outside the mask 0.0.0.1"), "{report}");
    let report = entry(&plan.program, &plan.attachments, "balanse", "{}").unwrap_err().to_string();
    assert_eq!(report, "entry: error: there is no pipe `balanse`; did you mean `balance`?\n");
}

/// Every entry of every example is written and read again.
#[test]
fn written_entries_are_read_again() {
    for name in EXAMPLES {
        let plan = plan(&example(name));
        for pipe in &plan.program.pipes {
            for one in &pipe.entries {
                let written = write_entry(&plan.program, pipe, one);
                let (_, read) = entry(&plan.program, &plan.attachments, &pipe.name, &written)
                    .unwrap_or_else(|report| panic!("{written}\n{report}"));
                assert_eq!(
                    read,
                    engine::program::Entry { run_time: true, origin: Default::default(), ..one.clone() },
                    "{written}"
                );
            }
        }
    }
}

fn acl() -> Plan {
    plan(
        "ports: { p0: { mem: }, p1: { mem: } }\nroot: a\ncounters: [x, y]\npipes: { a: { type: acl, match: { ipv6.src: masked, \
         eth.dst: masked, ip.protocol: masked, l4.dport: range, port: masked }, monitor: { counter: per_entry }, forward: per_entry, miss: drop, \
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
        let range = range.map_or(EntryMatch::Any, |(a, b)| EntryMatch::Range { first: a.min(b), last: a.max(b) });
        let [src, mac, protocol] = [Field::Ipv6Src, Field::EthDst, Field::IpProtocol];
        let mine = engine::program::Entry {
            matches: vec![masked(src, values[0]), masked(mac, values[1]), masked(protocol, values[2]), range,
                EntryMatch::Masked { value: u128::from(port), mask: 0xffff }],
            priority,
            values: vec![dst, vid, pcp],
            counter: Some(engine::program::CounterId(counter)),
            forward: Some(Forward::Port(PortId(port))),
            run_time: true,
            ..Default::default()
        };
        let written = write_entry(&plan.program, pipe, &mine);
        let read = entry(&plan.program, &plan.attachments, "a", &written).map_err(|report| TestCaseError::fail(format!("{written}\n{report}")))?;
        prop_assert_eq!(read.1, mine);
    }

    /// Whatever is typed, the answer is a report.
    #[test]
    fn no_text_makes_it_panic(text in "\\PC{0,80}") {
        let _ = read("t", &text).report.to_string();
        let plan = acl();
        let _ = entry(&plan.program, &plan.attachments, "a", &text).map_err(|report| report.to_string());
        let _ = xenoflow(&text, &mut Report::new("t", &text));
    }

    /// An example after a few accidents: something cut out, something put elsewhere.
    #[test]
    fn no_damaged_example_makes_it_panic(at in 0..EXAMPLES.len(), cuts in prop::collection::vec((any::<u16>(), 0_usize..12, any::<u16>()), 1..4)) {
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
    assert_eq!(flood.pipes[0].forward, Forward::Flood(engine::program::GroupId(0)));
    assert_eq!(write_forward(flood.pipes[0].forward, &flood), "{ flood: g }");
    assert!(wrong(&text.replace("flood: g", "flood: h"))[0].contains("there is no group `h`"));
    assert!(wrong(&text.replace("flood: g", "flod: g"))[0].contains("a forward has no `flod`"));
    let turns =
        text.replace("type: basic, forward: { flood: g }", "type: hash, hash: round_robin, group: g, forward: p0");
    assert!(matches!(plan(&turns).program.pipes[0].kind, PipeKind::Hash { input: HashInput::RoundRobin, .. }));
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

/// A group of which only this is special, and a pipe that goes there.
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
    assert!(weighed[0].contains("a weight has no part in a group whose buckets are given"), "{weighed:?}");
    let odd = wrong(&given.replace("size: 4", "size: 3"));
    assert!(odd[0].contains("a power of two up to 65536, not 3"), "{odd:?}");
}
