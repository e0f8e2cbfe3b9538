//! One bad program for each kind of finding, and none for a good one.

use super::*;
use crate::program::*;
use packet::{Field, KeySource};

fn pipe(name: &str, matches: Vec<Match>, entries: Vec<Entry>) -> Pipe {
    Pipe {
        name: name.to_string(),
        kind: PipeKind::Basic,
        matches,
        monitor: Monitor::default(),
        templates: vec![Template::default()],
        forward: Forward::Port(PortId(1)),
        miss: Forward::Drop,
        rehash: false,
        capacity: 16,
        entries,
        origin: Origin(1),
    }
}

fn one(field: Field, criterion: Criterion) -> Match {
    Match { field, criterion, origin: Origin(2) }
}

fn per_entry(field: Field) -> Match {
    one(field, Criterion::PerEntry { mask: field.max() })
}

fn constant(field: Field, value: u128) -> Match {
    one(field, Criterion::Const { value, mask: field.max() })
}

fn entry(given: EntryMatch) -> Entry {
    Entry { matches: vec![given], origin: Origin(3), ..Entry::default() }
}

fn group(fill: Fill, size: u32, weights: &[u32]) -> Group {
    let target = |(at, weight): (usize, &u32)| Target {
        name: format!("t{at}"),
        weight: *weight,
        forward: Forward::Port(PortId(1)),
        origin: Origin(5),
    };
    Group {
        name: "g".into(),
        fill,
        size,
        seed: None,
        targets: weights.iter().enumerate().map(target).collect(),
        origin: Origin(4),
    }
}

fn meter(name: &str, cir: u64, second: MeterSecond) -> MeterDeclaration {
    let config = MeterConfig { unit: MeterUnit::Bytes, cir, cbs: 1, second, colour_aware: false };
    MeterDeclaration { name: name.into(), config, origin: Origin(6) }
}

/// Two ports, the second of which has no kernel path; both send what they receive to the first pipe.
fn program(pipes: Vec<Pipe>) -> Program {
    let port = |name: &str, kernel_path| PortDeclaration {
        name: name.to_string(),
        root: Some(PipeId(0)),
        kernel_path,
        origin: Origin(7),
    };
    Program { ports: vec![port("p0", true), port("p1", false)], pipes, ..Program::default() }
}

fn good() -> Pipe {
    pipe("a", vec![per_entry(Field::Ipv4Src)], vec![entry(EntryMatch::Value(1)), entry(EntryMatch::Value(2))])
}

/// A program of the good pipe after a change.
fn changed(change: impl FnOnce(&mut Pipe)) -> Program {
    let mut pipe = good();
    change(&mut pipe);
    program(vec![pipe])
}

fn acts(operations: Vec<Operation>) -> Program {
    changed(|pipe| pipe.templates[0].operations = operations)
}

fn matching(kind: PipeKind, matches: Vec<Match>, entries: Vec<Entry>) -> Program {
    program(vec![Pipe { kind, ..pipe("a", matches, entries) }])
}

fn with_group(group: Group) -> Program {
    Program { groups: vec![group], ..changed(|pipe| pipe.forward = Forward::Group(GroupId(0))) }
}

fn kinds(program: &Program) -> Vec<FindingKind> {
    check(program).into_iter().map(|finding| finding.kind).collect()
}

macro_rules! finds {
    ($name:ident: $program:expr => $pattern:pat $(if $guard:expr)?) => {
        #[test]
        fn $name() {
            let found = check(&$program);
            assert!(found.iter().any(|one| matches!(&one.kind, $pattern $(if $guard)?)), "{found:?}");
            for one in found {
                assert!(!one.kind.to_string().is_empty());
            }
        }
    };
}

#[test]
fn a_good_program_has_no_findings() {
    assert_eq!(check(&program(vec![good()])), []);
    let group = group(Fill::Wants, 256, &[1, 2]);
    assert_eq!(check(&with_group(group)), []);
    // An active-backup bond: fewer buckets than targets, and weights say nothing.
    assert_eq!(check(&with_group(self::group(Fill::Given, 1, &[0, 0]))), []);
}

finds!(too_many_pipes: program((0..257).map(|at| pipe(&at.to_string(), vec![], vec![])).collect())
    => FindingKind::TooMany { what: "pipes", count: 257, .. });
finds!(too_many_matches: changed(|pipe| pipe.matches = vec![constant(Field::Ipv4Src, 1); 17])
    => FindingKind::TooMany { what: "matches", .. });
finds!(names_twice: program(vec![good(), good()]) => FindingKind::NameTwice { what: "pipe", .. });
finds!(a_forward_into_nothing: changed(|pipe| pipe.forward = Forward::Pipe(PipeId(9)))
    => FindingKind::Dangling { what: "pipe", index: 9 });
finds!(a_root_that_does_not_exist: { let mut all = program(vec![good()]); all.ports[0].root = Some(PipeId(3)); all }
    => FindingKind::Dangling { what: "pipe", index: 3 });
finds!(a_template_that_does_not_exist: changed(|pipe| pipe.entries[0].template = 1)
    => FindingKind::Dangling { what: "action", .. });
finds!(a_loop_over_three_pipes: {
    let lead = |name: &str, to| Pipe { miss: Forward::Pipe(PipeId(to)), ..pipe(name, vec![], vec![]) };
    program(vec![lead("start", 1), lead("a", 2), lead("b", 3), lead("c", 1)])
} => FindingKind::Loop { path } if path == &["a", "b", "c", "a"]);
finds!(a_loop_through_an_entry: changed(|pipe| {
    pipe.forward = Forward::PerEntry;
    pipe.entries.iter_mut().for_each(|entry| entry.forward = Some(Forward::Pipe(PipeId(0))));
}) => FindingKind::Loop { path } if path.len() == 2);
finds!(a_loop_through_a_group: {
    let mut group = group(Fill::Wants, 8, &[1]);
    group.targets[0].forward = Forward::Pipe(PipeId(0));
    with_group(group)
} => FindingKind::Loop { .. });
finds!(a_pipe_nobody_leads_to: program(vec![good(), pipe("b", vec![], vec![])])
    => FindingKind::Unreachable { pipe } if pipe == "b");
finds!(no_root: { let mut all = program(vec![good()]); all.ports.iter_mut().for_each(|port| port.root = None); all }
    => FindingKind::NoRoot);
finds!(a_kernel_that_a_port_does_not_have: changed(|pipe| pipe.miss = Forward::Kernel)
    => FindingKind::KernelUnavailable { place, port } if place == "a" && port == "p1");
finds!(a_miss_per_entry: changed(|pipe| pipe.miss = Forward::PerEntry) => FindingKind::MissPerEntry);
finds!(metadata_that_one_way_has_not_written: {
    let set = Operation::Set(Field::Meta1, Value::Const(1));
    let writes = Pipe { forward: Forward::Pipe(PipeId(1)), miss: Forward::Pipe(PipeId(1)), ..good() };
    let templates = vec![Template { name: String::new(), operations: vec![set] }];
    program(vec![Pipe { templates, ..writes }, pipe("b", vec![constant(Field::Meta1, 1)], vec![])])
} => FindingKind::MetadataUnwritten { field: Field::Meta1, path } if path == &["a", "b"]);
finds!(metadata_added_to_before_it_is_set: acts(vec![
    Operation::Add(Field::Meta0, Value::Const(1)),
    Operation::Set(Field::Meta0, Value::Const(1)),
]) => FindingKind::MetadataUnwritten { field: Field::Meta0, .. });
finds!(a_colour_without_a_meter: changed(|pipe| pipe.matches.push(constant(Field::MeterColor, 2)))
    => FindingKind::ColorUnmetered { .. });
finds!(a_prefix_in_a_basic_pipe: matching(PipeKind::Basic, vec![one(Field::Ipv4Src, Criterion::Prefix)], vec![])
    => FindingKind::CriterionNotAllowed { pipe_kind: "BASIC", criterion: "prefix", .. });
finds!(two_prefixes: matching(PipeKind::Lpm, vec![one(Field::Ipv4Src, Criterion::Prefix); 2], vec![])
    => FindingKind::PrefixCount { count: 2 });
finds!(a_range_of_addresses: matching(PipeKind::Acl, vec![one(Field::Ipv4Src, Criterion::Range)], vec![])
    => FindingKind::RangeTooWide { bits: 32, .. });
finds!(udp_and_tcp: changed(|pipe| pipe.matches.extend([constant(Field::TcpDport, 1), constant(Field::UdpDport, 1)]))
    => FindingKind::NeverHits { .. });
finds!(ipv6_protocol_in_ipv4: changed(|pipe| pipe.matches.push(constant(Field::IpProtocol, 58)))
    => FindingKind::NeverHits { .. });
finds!(an_acl_entry_that_contradicts_itself: matching(
    PipeKind::Acl,
    vec![one(Field::Ipv4Src, Criterion::Masked), one(Field::Ipv6Src, Criterion::Masked)],
    vec![Entry { matches: vec![EntryMatch::Masked { value: 1, mask: 1 }; 2], ..Entry::default() }],
) => FindingKind::NeverHits { .. });
finds!(nothing_hashed: Program {
    groups: vec![group(Fill::Wants, 8, &[1])],
    ..matching(PipeKind::Hash { input: HashInput::Fields(vec![]), group: GroupId(0) }, vec![], vec![])
} => FindingKind::NothingHashed);
finds!(a_read_only_field_written: acts(vec![Operation::Set(Field::IpProtocol, Value::Const(6))])
    => FindingKind::ReadOnly { field: Field::IpProtocol });
finds!(no_template: changed(|pipe| pipe.templates.clear()) => FindingKind::NoTemplate);
finds!(operations_out_of_order: acts(vec![Operation::DecrementTtl, Operation::PopVlan])
    => FindingKind::ActionOrder { earlier: "decrement_ttl", later: "pop_vlan" });
finds!(a_constant_that_is_too_large: acts(vec![Operation::Set(Field::Ipv4Ttl, Value::Const(256))])
    => FindingKind::OutOfRange { max: 255, .. });
finds!(an_entry_value_that_is_too_large: changed(|pipe| {
    pipe.templates[0].operations = vec![Operation::PushVlan { tpid: 0x8100, vid: Value::PerEntry, pcp: Value::Const(0) }];
    pipe.entries.iter_mut().for_each(|entry| entry.values = vec![4096]);
}) => FindingKind::OutOfRange { name, value: 4096, .. } if name == "vid");
finds!(a_match_value_that_is_too_large: changed(|pipe| pipe.entries[0].matches = vec![EntryMatch::Value(1 << 32)])
    => FindingKind::OutOfRange { .. });
finds!(a_value_outside_its_mask: matching(
    PipeKind::Basic,
    vec![one(Field::Ipv4Src, Criterion::PerEntry { mask: 1 })],
    vec![entry(EntryMatch::Value(2))],
) => FindingKind::OutsideMask { value: 2, mask: 1, .. });
finds!(bits_behind_a_prefix: matching(
    PipeKind::Lpm,
    vec![one(Field::Ipv4Src, Criterion::Prefix)],
    vec![entry(EntryMatch::Prefix { value: 1, length: 8 })],
) => FindingKind::OutsideMask { .. });
finds!(a_prefix_that_is_too_long: matching(
    PipeKind::Lpm,
    vec![one(Field::Ipv4Src, Criterion::Prefix)],
    vec![entry(EntryMatch::Prefix { value: 1, length: 33 })],
) => FindingKind::PrefixTooLong { length: 33, bits: 32, .. });
finds!(an_empty_range: matching(
    PipeKind::Acl,
    vec![one(Field::UdpDport, Criterion::Range)],
    vec![entry(EntryMatch::Range { first: 2, last: 1 })],
) => FindingKind::RangeEmpty { .. });
finds!(a_wrong_tpid: acts(vec![Operation::PushVlan { tpid: 1, vid: Value::Const(1), pcp: Value::Const(0) }])
    => FindingKind::Tpid { tpid: 1 });
finds!(too_few_matches: changed(|pipe| pipe.entries[0].matches.clear())
    => FindingKind::MatchCount { wanted: 1, found: 0, .. });
finds!(a_range_where_a_value_belongs: changed(|pipe| pipe.entries[0].matches = vec![EntryMatch::Any])
    => FindingKind::MatchKind { .. });
finds!(a_target_in_a_basic_pipe: changed(|pipe| pipe.entries[0].matches = vec![EntryMatch::Target(0)])
    => FindingKind::MatchKind { found: "a target", .. });
finds!(too_many_values: changed(|pipe| pipe.entries[0].values = vec![1])
    => FindingKind::ValueCount { wanted: 0, found: 1 });
finds!(a_forward_missing: changed(|pipe| pipe.forward = Forward::PerEntry)
    => FindingKind::PerEntryMissing { what: "forward" });
finds!(a_counter_missing: changed(|pipe| pipe.monitor.counter = Some(SharedUse::PerEntry))
    => FindingKind::PerEntryMissing { what: "counter" });
finds!(a_forward_too_many: changed(|pipe| pipe.entries[0].forward = Some(Forward::Drop))
    => FindingKind::PerEntryUnexpected { what: "forward" });
finds!(a_priority_in_a_basic_pipe: changed(|pipe| pipe.entries[0].priority = 1) => FindingKind::PriorityUnexpected);
finds!(an_entry_twice: changed(|pipe| pipe.entries[1] = pipe.entries[0].clone()) => FindingKind::EntryTwice { .. });
finds!(a_shadowed_entry: matching(
    PipeKind::Acl,
    vec![one(Field::Ipv4Src, Criterion::Masked), one(Field::UdpDport, Criterion::Range)],
    [(EntryMatch::Any, 10, 20), (EntryMatch::Masked { value: 1, mask: 3 }, 12, 20)]
        .map(|(src, first, last)| Entry { matches: vec![src, EntryMatch::Range { first, last }], ..Entry::default() })
        .to_vec(),
) => FindingKind::Shadowed { by: 1, .. });
finds!(too_small_a_capacity: changed(|pipe| pipe.capacity = 1)
    => FindingKind::CapacityTooSmall { capacity: 1, entries: 2, .. });
finds!(no_capacity: changed(|pipe| pipe.capacity = 0) => FindingKind::Capacity { .. });
finds!(a_target_without_an_entry: Program {
    groups: vec![group(Fill::Wants, 8, &[1, 1])],
    ..matching(
        PipeKind::Hash { input: HashInput::Select(KeySource::Outer), group: GroupId(0) },
        vec![],
        vec![entry(EntryMatch::Target(0))],
    )
} => FindingKind::TargetWithoutEntry { target, .. } if target == "t1");
finds!(no_default_entry: matching(
    PipeKind::Flow { key: KeySource::Outer, learn: Learn::Default, idle_timeout_ns: 0 },
    vec![],
    vec![],
) => FindingKind::NoDefaultEntry);
finds!(an_empty_group: with_group(group(Fill::Wants, 8, &[])) => FindingKind::GroupEmpty { .. });
finds!(a_dead_group: with_group(group(Fill::Wants, 8, &[0, 0])) => FindingKind::GroupDead { .. });
finds!(a_maglev_size_that_is_no_prime: with_group(group(Fill::Maglev, 65_536, &[1]))
    => FindingKind::MaglevSize { hint: Some(65_537), .. });
finds!(a_wants_size_that_is_no_power_of_two: with_group(group(Fill::Wants, 100, &[1]))
    => FindingKind::WantsSize { size: 100, .. });
finds!(a_given_size_that_is_no_power_of_two: with_group(group(Fill::Given, 3, &[1]))
    => FindingKind::GivenSize { size: 3, .. });
finds!(flows_learnt_from_given_buckets: Program {
    groups: vec![group(Fill::Given, 8, &[1])],
    ..matching(
        PipeKind::Flow { key: KeySource::Outer, learn: Learn::Follow(GroupId(0)), idle_timeout_ns: 0 },
        vec![],
        vec![entry(EntryMatch::Target(0))],
    )
} => FindingKind::LearnGiven { group } if group == "g");
finds!(a_copy_for_an_app_that_does_not_exist:
    changed(|pipe| pipe.miss = Forward::Tee { app: AppId(0), next: PipeId(0) })
    => FindingKind::Dangling { what: "app", .. });
finds!(a_loop_through_a_copy: Program {
    apps: vec!["app".into()],
    ..changed(|pipe| pipe.miss = Forward::Tee { app: AppId(0), next: PipeId(0) })
} => FindingKind::Loop { .. });
finds!(an_entry_that_copies: Program {
    apps: vec!["app".into()],
    ..changed(|pipe| {
        let tee = Forward::Tee { app: AppId(0), next: PipeId(0) };
        pipe.forward = Forward::PerEntry;
        pipe.entries.iter_mut().for_each(|entry| entry.forward = Some(tee));
    })
} => FindingKind::EntryCopies);
finds!(a_flood_of_a_group_that_does_not_exist: changed(|pipe| pipe.miss = Forward::Flood(GroupId(3)))
    => FindingKind::Dangling { what: "group", index: 3 });
finds!(a_flood_that_comes_to_no_port: {
    let mut all = with_group(group(Fill::Wants, 8, &[1]));
    all.pipes[0].miss = Forward::Flood(GroupId(0));
    all.groups[0].targets[0].forward = Forward::InputPort;
    all
} => FindingKind::FloodNowhere { group } if group == "g");
finds!(a_target_that_floods: {
    let mut group = group(Fill::Wants, 8, &[1]);
    group.targets[0].forward = Forward::Flood(GroupId(0));
    with_group(group)
} => FindingKind::TargetForward { found: "a flood" });
finds!(a_group_in_a_group: {
    let mut group = group(Fill::Wants, 8, &[1]);
    group.targets[0].forward = Forward::Group(GroupId(0));
    with_group(group)
} => FindingKind::TargetForward { found: "a group" });
finds!(a_meter_without_a_rate: Program { meters: vec![meter("m", 0, MeterSecond::Excess { ebs: 0 })], ..program(vec![good()]) }
    => FindingKind::MeterZero { what: "cir" });
finds!(a_peak_below_the_committed_rate: Program {
    meters: vec![meter("m", 9, MeterSecond::Peak { pir: 8, pbs: 1 })],
    ..program(vec![good()])
} => FindingKind::PeakBelowCommitted { pir: 8, cir: 9 });
finds!(a_meter_in_two_pipes: {
    let metered = |name: &str| {
        let monitor = Monitor { meter: Some(SharedUse::Pipe(MeterId(0))), ..Monitor::default() };
        Pipe { monitor, miss: Forward::Pipe(PipeId(1)), ..pipe(name, vec![], vec![]) }
    };
    let last = Pipe { miss: Forward::Drop, ..metered("b") };
    Program { meters: vec![meter("m", 1, MeterSecond::Excess { ebs: 0 })], ..program(vec![metered("a"), last]) }
} => FindingKind::MeterTwice { first, .. } if first == "a");
finds!(an_unused_counter: Program { counters: vec!["c".into()], ..program(vec![good()]) }
    => FindingKind::Unused { what: "counter", .. });
finds!(an_unused_group: Program { groups: vec![group(Fill::Wants, 8, &[1])], ..program(vec![good()]) }
    => FindingKind::Unused { what: "group", .. });
finds!(an_unused_meter: Program { meters: vec![meter("m", 1, MeterSecond::Excess { ebs: 0 })], ..program(vec![good()]) }
    => FindingKind::Unused { what: "meter", .. });

#[test]
fn protocol_and_fragment_do_not_contradict() {
    let matches = vec![constant(Field::IpProtocol, 17), constant(Field::IpFragment, 1), constant(Field::Ipv4Dst, 1)];
    assert_eq!(kinds(&matching(PipeKind::Basic, matches, vec![Entry::default()])), []);
}

#[test]
fn metadata_written_on_every_way_may_be_read() {
    let set = |name: &str| {
        let operations = vec![Operation::Set(Field::Meta0, Value::Const(1))];
        let templates = vec![Template { name: String::new(), operations }];
        Pipe { templates, forward: Forward::Pipe(PipeId(2)), ..pipe(name, vec![], vec![Entry::default()]) }
    };
    let first = Pipe { miss: Forward::Pipe(PipeId(1)), ..set("a") };
    let reads = pipe("c", vec![per_entry(Field::Meta0)], vec![]);
    assert_eq!(kinds(&program(vec![first, set("b"), reads])), []);
}

/// An entry that comes at run time, in a program where pipe `a` leads per entry, `b` reads metadata, `c` asks the kernel.
#[test]
fn entries_at_run_time_break_nothing_that_was_proven() {
    let templates = vec![
        Template::default(),
        Template { name: "mark".into(), operations: vec![Operation::Set(Field::Meta0, Value::Const(1))] },
    ];
    let lead =
        |to, template| Entry { forward: Some(Forward::Pipe(PipeId(to))), template, ..entry(EntryMatch::Value(9)) };
    let a = Pipe {
        forward: Forward::PerEntry,
        templates,
        entries: vec![Entry { matches: vec![EntryMatch::Value(1)], ..lead(1, 1) }],
        ..good()
    };
    let b = pipe("b", vec![per_entry(Field::Meta0)], vec![]);
    let c = Pipe { miss: Forward::Kernel, ..pipe("c", vec![], vec![]) };
    let program = program(vec![a, b, c]);
    assert!(check(&program).iter().all(|finding| finding.severity == Severity::Warning), "c is unreachable");
    let shape = Shape::of(&program);
    assert_eq!(shape.order.len(), 3);
    assert_eq!(shape.admits(&program, PipeId(0), &lead(1, 1)), Ok(()));
    let refused = |entry: &Entry| shape.admits(&program, PipeId(0), entry).unwrap_err();
    assert!(matches!(refused(&lead(1, 0)), FindingKind::MetadataUnwritten { field: Field::Meta0, .. }));
    assert!(matches!(refused(&lead(2, 0)), FindingKind::KernelUnavailable { .. }));
    assert!(matches!(refused(&lead(0, 0)), FindingKind::Loop { .. }));
    assert_eq!(check_entry(&program, PipeId(0), &lead(1, 1)), []);
    assert!(matches!(
        check_entry(&program, PipeId(0), &lead(1, 7))[..],
        [FindingKind::Dangling { what: "action", .. }]
    ));
    assert!(matches!(check_entry(&program, PipeId(7), &lead(1, 0))[..], [FindingKind::Dangling { what: "pipe", .. }]));
}
