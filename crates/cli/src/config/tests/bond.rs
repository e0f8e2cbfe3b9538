//! Bonds in a configuration, and services and entries attached to one.

use super::*;
use weir_bond::lacp::{Policy, Rate};
use weir_bond::links::{Need, Reselect};
use weir_bond::rebalance::Rule;
use weir_bond::{Bond, Bonds, Inward, Mode};

/// The bonds of a plan.
fn bonds(plan: &Plan) -> Vec<Bond> {
    plan.apps.of::<Bonds>().unwrap().0.clone()
}

/// A configuration with three ports, a pipe `a`, and these bonds.
fn with_bonds(bonds: &str) -> String {
    "ports: { p0: { mem: }, p1: { mem: }, p2: { mem: } }\n\
     pipes: { a: { type: basic, forward: p0, miss: drop } }\n"
        .to_string()
        + &format!("apps: [{bonds}]\n")
}

/// A bond with few keys: the others have their defaults.
#[test]
fn a_bond_has_defaults() {
    let plain = plan(&with_bonds(
        "{ bond: { name: bond0, mode: balance_tcp, members: [p1, p2], inside: p0, lacp: { mode: active, \
            rate: fast } } }",
    ));
    let bond = &bonds(&plain)[0];
    assert_eq!((bond.name.as_str(), bond.mode, bond.buckets), ("bond0", Mode::BalanceTcp, 256));
    assert_eq!((bond.inward, bond.ports()), (Inward::Port(PortId(0)), vec![PortId(1), PortId(2)]));
    assert_eq!(
        (bond.rebalance_ms, bond.idle_gap_ns, bond.idle_gap_max_ns),
        (10_000, 1_000_000, 1_000_000_000)
    );
    assert_eq!((bond.elephants, plain.program.pipe_named("bond0/hash")), (0, None));
    let lacp = bond.lacp.as_ref().unwrap();
    assert!(lacp.active && !lacp.fallback && lacp.rate == Rate::Fast);
    assert_eq!((lacp.system.priority, lacp.key, lacp.min_links), (0x8000, 1, 0));
    assert_eq!(plain.program.ports[0].root, plain.program.pipe_named("bond0/reserved/out"));
    let roots: Vec<_> = plain.program.ports[1..].iter().map(|port| port.root).collect();
    assert_eq!(roots, [plain.program.pipe_named("bond0/slow"); 2]);
    assert!(!bond.rss);
}

/// Every key of a bond, and its result.
#[test]
fn a_bond_is_what_it_says() {
    let outcome = plan(&with_bonds(
        "{ bond: { name: b, mode: balance_tcp, members: [{ port: p1, weight: 3, lacp_priority: 7, lacp_key: \
            9 }, p2], \
         root: a, buckets: 1024, hash: { basis: 5, headers: inner }, primary: p2, reselect: failure, \
         updelay: 2s, \
         downdelay: 10ms, probe: { targets: [192.0.2.1, \"2001:db8::1\"], source: 192.0.2.9, interval: \
         100ms, missed_max: 3, \
         need: all }, rebalance: { interval: 1s, by_capacity: true, moves_on: true, budget: 8, elephants: 4 \
         }, idle_gap: 2ms, \
         idle_gap_max: 3s, learnt_max: 77, announce: [192.0.2.9], lacp: { mode: passive, rate: slow, \
         system_priority: 3, \
         system_id: 02:00:00:00:00:77, key: 4, min_links: 2, select: count, fallback: true } } }",
    ));
    let bond = &bonds(&outcome)[0];
    let first = &bond.members[0];
    assert_eq!(
        (first.weight, first.priority, first.key, bond.members[1].weight),
        (Some(3), 7, Some(9), None)
    );
    assert_eq!((bond.inward, bond.buckets, bond.basis), (Inward::Pipe(PipeId(0)), 1024, 5));
    assert_eq!(
        (bond.key, bond.primary.as_deref(), bond.reselect),
        (KeySource::Inner, Some("p2"), Reselect::Failure)
    );
    assert_eq!((bond.updelay_ms, bond.downdelay_ms, bond.learnt_max), (2000, 10, 77));
    assert_eq!((bond.idle_gap_ns, bond.idle_gap_max_ns), (2_000_000, 3_000_000_000));
    let probe = bond.probe.as_ref().unwrap();
    assert_eq!(
        (probe.targets.len(), probe.interval_ms, probe.missed_max, probe.need),
        (2, 100, 3, Need::All)
    );
    assert_eq!(
        (bond.rebalance_ms, bond.rule),
        (1000, Rule { by_capacity: true, moves_on: true, budget: Some(8) })
    );
    let lacp = bond.lacp.as_ref().unwrap();
    assert_eq!((lacp.system.priority, lacp.system.mac[5], lacp.key, lacp.min_links), (3, 0x77, 4, 2));
    assert!(!lacp.active && lacp.fallback && lacp.rate == Rate::Slow && lacp.policy == Policy::Count);
    assert_eq!((bond.elephants, outcome.program.pipe_named("b/hash").is_some()), (4, true));
    assert!(!bond.rss);
}

#[test]
fn a_bond_can_use_the_hash_of_the_nic() {
    for (hash, basis) in [("rss", 0), ("{ headers: rss, basis: 5 }", 5)] {
        let rss = plan(&with_bonds(&format!(
            "{{ bond: {{ name: b, mode: static, members: [p1, p2], hash: {hash} }} }}"
        )));
        let bond = &bonds(&rss)[0];
        assert_eq!((bond.rss, bond.basis, bond.key), (true, basis, KeySource::Outer));
        let pipe = &rss.program.pipes[rss.program.pipe_named("b").unwrap().index()];
        assert!(matches!(pipe.kind, PipeKind::Hash { input: HashInput::Rss, .. }));
    }
}

#[test]
fn a_bond_need_not_rebalance() {
    let never = with_bonds("{ bond: { name: b, mode: static, members: [p1], rebalance: never } }");
    assert_eq!(bonds(&plan(&never))[0].rebalance_ms, 0);
}

/// Each case: a bond, the text that is underlined, and the message.
const ERRORS: &[(&str, &str, &str)] = &[
    ("mode: static, members: [p1]", "{ mode", "`name` is missing"),
    ("name: b, members: [p1]", "{ name", "`mode` is missing"),
    ("name: b, mode: static", "{ name", "`members` is missing"),
    ("name: a, mode: static, members: [p1]", "a, mode", "`a` is already the name of a pipe"),
    ("name: p1, mode: static, members: [p1]", "p1, mode", "`p1` is already the name of a port"),
    ("name: drop, mode: static, members: [p1]", "drop", "`drop` is a reserved word"),
    ("GOOD } }, { bond: { GOOD", "b, mode: static, members: [p1, p2] } }]", "two bonds have this name"),
    (
        "GOOD } }, { bond: { name: c, mode: static, members: [p0, p2]",
        "p2] } }]",
        "port `p2` is already a member of bond `b`",
    ),
    ("name: b, mode: static, members: [p1, p1]", "p1] }", "port `p1` is already a member of bond `b`"),
    ("name: b, mode: static, members: [p1, p9]", "p9", "there is no port `p9`"),
    ("name: b, mode: static, members: [{ port: p1, wieght: 1 }]", "wieght", "there is no key `wieght` here"),
    ("name: b, mode: static, members: []", "b, mode", "bond `b` has no members"),
    ("name: b, mode: static, members: p1", "p1 }", "expected a list of ports"),
    ("name: b, mode: ballance_slb, members: [p1]", "ballance_slb", "`mode` cannot be `ballance_slb`"),
    (
        "name: b, mode: static, members: [{ port: p1, weight: 0 }, { port: p2, weight: 0 }]",
        "b, mode",
        "all members of bond `b` have weight 0",
    ),
    (
        "name: b, mode: static, members: [{ port: p1, weight: 65536 }]",
        "65536",
        "`weight` must be a whole number from 0 to 65535",
    ),
    ("name: b, mode: balance_tcp, members: [p1]", "b, mode", "bond `b` needs `lacp`"),
    ("GOOD, lacp: {}", "b, mode", "`mode: static` does not use LACP"),
    ("GOOD, inside: p0, root: a", "a } }]", "frames from the members go to `inside` or to a `root`"),
    ("GOOD, inside: p1", "p1, p2", "port `p1` is a member, so it cannot also be `inside`"),
    ("GOOD, inside: p7", "p7", "there is no port `p7`"),
    ("GOOD, root: c", "c }", "there is no pipe `c`"),
    ("GOOD, buckets: 100", "b, mode", "100 buckets for 2 members: write a power of two"),
    ("GOOD, buckets: 1", "b, mode", "1 buckets for 2 members"),
    ("GOOD, buckets: 131072", "131072", "`buckets` must be a whole number from 1 to 65536"),
    ("GOOD, primary: p0", "b, mode", "`primary: p0` is not a member"),
    ("GOOD, reselect: alwys", "alwys", "`reselect` cannot be `alwys`"),
    ("GOOD, hash: { basis: x }", "x }", "`basis` must be a whole number from 0"),
    ("GOOD, hash: { headers: both }", "both", "`headers` cannot be `both`"),
    ("GOOD, hash: rrs", "rrs", "`hash` (`rss`, or a mapping of `basis` and `headers`) cannot be `rrs`"),
    (
        "name: b, mode: balance_slb, members: [p1], hash: rss",
        "b, mode",
        "`hash: rss` has no effect in `mode: balance_slb`",
    ),
    ("GOOD, updelay: 2h", "2h", "an hour at most"),
    ("GOOD, downdelay: 5", "5 }", "`downdelay` cannot be `5`"),
    ("GOOD, rebalance: { every: 1s }", "every", "there is no key `every` here"),
    ("GOOD, rebalance: { budget: 0 }", "0 }", "`budget` must be a whole number from 1 to 65536"),
    ("GOOD, rebalance: { elephants: 65 }", "65 }", "`elephants` must be a whole number from 0 to 64"),
    ("GOOD, rebalance: { elephants: some }", "some", "`elephants` must be a whole number from 0 to 64"),
    (
        "GOOD, rebalance: { elephants: 1, interval: never }",
        "b, mode",
        "bond `b` looks for elephants when it rebalances",
    ),
    (
        "GOOD, hash: rss, rebalance: { elephants: 1 }",
        "b, mode",
        "bond `b` cannot find elephants with `hash: rss`",
    ),
    (
        "name: b, mode: balance_slb, members: [p1], rebalance: { elephants: 1 }",
        "b, mode",
        "`mode: balance_slb` cannot pin elephants: only `balance_tcp` and `static`",
    ),
    (
        "name: b, mode: active_backup, members: [p1], rebalance: { elephants: 1 }",
        "b, mode",
        "`mode: active_backup` cannot pin elephants",
    ),
    (
        "name: b, mode: round_robin, members: [p1], rebalance: { elephants: 1 }",
        "b, mode",
        "`mode: round_robin` cannot pin elephants",
    ),
    (
        "name: b, mode: broadcast, members: [p1], rebalance: { elephants: 1 }",
        "b, mode",
        "`mode: broadcast` cannot pin elephants",
    ),
    ("GOOD, probe: {}", "{} }", "`targets` is missing"),
    ("GOOD, probe: { targets: [] }", "[] }", "write 1 to 16 addresses"),
    ("GOOD, probe: { targets: [eth0] }", "eth0", "`eth0` is not an IP address"),
    ("GOOD, probe: { targets: [192.0.2.1], source: \"::1\" }", "\"::1\"", "`::1` is not an IPv4 address"),
    ("GOOD, learnt_max: 0", "0 }", "`learnt_max` must be a whole number from 1 to 65536"),
    ("GOOD, announce: [x]", "x]", "`x` is not an IP address"),
    ("GOOD, primry: p1", "primry", "there is no key `primry` here"),
    ("TCP, lacp: { mode: on }", "on }", "`mode` cannot be `on`"),
    ("TCP, lacp: { rate: quick }", "quick", "`rate` cannot be `quick`"),
    ("TCP, lacp: { system_id: 02:00:00 }", "02:00:00", "`02:00:00` is not a MAC address"),
    (
        "TCP, lacp: { system_id: 01:00:00:00:00:01 }",
        "01:00:00:00:00:01",
        "`01:00:00:00:00:01` is not a unicast address",
    ),
    (
        "TCP, lacp: { system_id: 00:00:00:00:00:00 }",
        "00:00:00:00:00:00",
        "`00:00:00:00:00:00` is not a unicast address",
    ),
    ("TCP, lacp: { key: 65536 }", "65536", "`key` must be a whole number from 0 to 65535"),
    ("TCP, lacp: { min_link: 1 }", "min_link", "there is no key `min_link` here"),
];

const GOOD: &str = "name: b, mode: static, members: [p1, p2]";
const TCP: &str = "name: b, mode: balance_tcp, members: [p1, p2]";

#[test]
fn each_error_of_a_bond_has_its_place() {
    for (bond, culprit, expected) in ERRORS {
        let bond = bond.replace("GOOD", GOOD).replace("TCP", TCP);
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
    let mut bond =
        bonds(&plan(&with_bonds("{ bond: { name: b, mode: static, members: [p1, p2] } }"))).remove(0);
    (bond.members[0].mtu, bond.members[1].mtu) = (Some(1500), Some(1400));
    let origin = bond.members[1].origin;
    let problems = weir_bond::problems(&[bond]);
    assert_eq!(problems.len(), 1);
    assert_eq!(problems[0].0, origin);
    assert!(problems[0].1.to_string().starts_with("`p1` has MTU 1500 but `p2` has 1400"), "{problems:?}");
}

#[test]
fn a_bond_has_64_members_at_most() {
    let ports: Vec<String> = (0..64).map(|at| format!("m{at}")).collect();
    let members = |more: &str| {
        format!("{{ bond: {{ name: b, mode: static, members: [{}{more}] }} }}", ports.join(", "))
    };
    let declared: String = ports.iter().map(|port| format!("{port}: {{ mem: }}, ")).collect();
    let text = |bonds: &str| format!("ports: {{ {declared} }}\napps: [{bonds}]\n");
    assert!(read("t", &text(&members(""))).plan.is_some());
    assert!(wrong(&text(&members(", m0")))[0].contains("a bond has at most 64 members"));
}

/// A load balancer over a bond, and forwards to other places.
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
        let outcome = wrong(&with_bonds(&(bond(more) + lb)));
        assert_eq!(outcome.len(), 1, "{outcome:?}");
        assert!(
            outcome[0].starts_with("3:24: error: bond `b` sends incoming frames to its `inside` or `root`"),
            "{outcome:?}"
        );
    }
}

/// Referring to a bond that has an error is not another error.
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

/// Where a pipe matches the port per entry, a bond expands to each of its members.
#[test]
fn an_entry_of_a_bond_is_one_of_each_member() {
    let bond = "{ bond: { name: b, mode: static, members: [p1, p2] } }";
    let with = |pipe: &str| with_bonds(bond).replace("type: basic, forward: p0, miss: drop", pipe);
    let basic = "type: basic, match: { udp.dport: per_entry, port: per_entry }, monitor: { counter: \
        per_entry }, forward: p0, \
                 miss: drop, entries: [{ match: { port: b, udp.dport: 53 }, counter: c }, { match: { port: \
                 p0, udp.dport: 53 }, \
                 counter: d }]";
    let expanded = plan(&with(basic));
    let matches =
        |plan: &Plan| plan.program.pipes.iter().find(|pipe| pipe.name == "a").unwrap().entries.clone();
    let keys: Vec<Vec<EntryMatch>> = matches(&expanded).into_iter().map(|entry| entry.matches).collect();
    let key = |port: u128| vec![EntryMatch::Value(53), EntryMatch::Value(port)];
    assert_eq!(keys, [key(1), key(2), key(0)]);
    let acl = "type: acl, match: { port: masked, l4.dport: range }, forward: p0, miss: drop, \
               entries: [{ match: { port: b, l4.dport: 1-9 }, priority: 5 }]";
    let rules = matches(&plan(&with(acl)));
    let port = |rule: weir_program::Entry| (rule.matches[0], rule.priority);
    let whole = |value| EntryMatch::Masked { value, mask: 0xffff };
    assert_eq!(rules.iter().map(port).collect::<Vec<_>>(), [(whole(1), 5), (whole(2), 5)]);
    // The same port twice is reported where it was written.
    let twice = wrong(&with(&basic.replace("port: p0", "port: p2")));
    assert!(twice.iter().any(|one| one.contains("error: pipe `a` has this entry twice")), "{twice:?}");
    // As a constant of a pipe, or in a change at run time, a bond cannot expand to several ports.
    let constant = wrong(&with("type: basic, match: { port: b }, forward: p0, miss: drop"));
    assert!(constant[0].contains("`b` is a bond of several ports (p1, p2)"), "{constant:?}");
    assert!(constant[0].contains("match `port` per entry"), "{constant:?}");
    for text in ["{ match: { port: b, udp.dport: 53 }, counter: c }", "{ match: { port: b, udp.dport: 53 } }"]
    {
        let outcome = match text.contains("counter") {
            true => entry(&expanded.program, &expanded.attachments, "a", text).unwrap_err().to_string(),
            false => entry_key(&expanded.program, &expanded.attachments, "a", text).unwrap_err().to_string(),
        };
        assert!(outcome.starts_with("entry:1:18: error: `b` is a bond: at run time"), "{outcome}");
        assert!(outcome.contains("names one of its members, p1, p2"), "{outcome}");
    }
}

/// XDP leaves to the kernel what no rule takes, and a member whose probes are not answered is not used.
#[test]
fn a_bond_below_another_app_takes_the_answers_to_its_probes() {
    let taken = |probe: &str| {
        let plan = plan(&with_bonds(&format!(
            "{{ bond: {{ name: bond0, mode: static, members: [p1, p2], {probe} }} }}, {{ lb: {{ name: dns, \
             port: bond0, service: {{ vip: 10.0.0.53, protocol: udp, port: 53 }}, by: 5-tuple, \
             back_ends: [{{ name: b1, mac: 02:00:00:00:00:11 }}] }} }}"
        )));
        let mac = bonds(&plan)[0].mac();
        let [p1, p2] = [1, 2].map(|port| plan.apps.take(PortId(port)));
        assert_eq!(p1, p2, "mem ports have no address, so both have the bond's");
        (p1, mac)
    };
    let is_arp = |frames: &Frames| *frames == Frames::Own(0x0806);
    let advertised = |frames: &Frames| match frames {
        Frames::Ip(rule) if rule.dst.is_ipv6() => Some(*rule),
        _ => None,
    };
    let (frames, _) = taken("");
    assert!(!frames.iter().any(is_arp) && frames.iter().find_map(advertised).is_none(), "{frames:?}");
    let (frames, _) = taken("probe: { targets: [10.0.0.1] }");
    assert!(frames.iter().any(is_arp) && frames.iter().find_map(advertised).is_none(), "{frames:?}");
    let (frames, [a, b, c, d, e, f]) = taken("probe: { targets: [\"2001:db8::1\"] }");
    let rule = frames.iter().find_map(advertised).expect("neighbour advertisements");
    let own = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f];
    assert_eq!((rule.dst, rule.prefix), (own.into(), 128));
    assert_eq!((rule.protocol, rule.dport), (Some(58), Some((136 << 8, 136 << 8))));
    assert!(!frames.iter().any(is_arp), "{frames:?}");
}
