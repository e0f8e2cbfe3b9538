//! One invalid program for each kind of finding, and no finding for a valid one.

use weir_engine::batch::Engine;
use weir_oracle::Interpreter;
use weir_packet::{Field, KeySource, TableHash};
use weir_program::builder::ProgramBuilder;
use weir_program::change::{Change, ChangeError, EntryKey};
use weir_program::check::*;
use weir_program::owner::{Owner, Owning};
use weir_program::*;

/// A blank pipe whose hits leave through the second port.
fn pipe(name: &str) -> Pipe {
    Pipe::basic(name).forward(PortId(1))
}

fn group(fill: Fill, size: u32, weights: &[u32]) -> Group {
    let target = |(at, weight): (usize, &u32)| Target::new(format!("t{at}"), PortId(1)).weight(*weight);
    Group::new("g", fill, size).targets(weights.iter().enumerate().map(target))
}

fn meter(name: &str, cir: u64, second: MeterSecond) -> MeterDeclaration {
    MeterDeclaration::new(
        name,
        MeterConfig { unit: MeterUnit::Bytes, cir, cbs: 1, second, colour_aware: false },
    )
}

/// Two ports, the second without a kernel path; the first pipe is the root of both.
fn program(pipes: Vec<Pipe>) -> Program {
    let mut program = ProgramBuilder::new();
    program.port(PortDeclaration::new("p0").kernel_path(true));
    program.port("p1");
    program.root_of_all(PipeId(0));
    // Pipes are set bypassing the builder, which would refuse what is tested here.
    Program { pipes, ..program.build() }
}

fn good() -> Pipe {
    pipe("a").per_entry(Field::Ipv4Src).entries([1, 2]).capacity(16)
}

/// A valid program after a change to its pipe.
fn changed(change: impl FnOnce(&mut Pipe)) -> Program {
    let mut pipe = good();
    change(&mut pipe);
    program(vec![pipe])
}

fn each_entry(pipe: &mut Pipe, change: impl FnMut(&mut Entry)) {
    pipe.entries.edit(|all| all.iter_mut().for_each(change));
}

fn entry_changed(change: impl FnOnce(&mut Entry)) -> Program {
    changed(|pipe| pipe.entries.edit(|all| change(&mut all[0])))
}

fn acts(operations: Vec<Operation>) -> Program {
    changed(|pipe| pipe.templates[0].operations = operations)
}

/// A program that consists of the pipe under test.
fn only(pipe: Pipe) -> Program {
    program(vec![pipe.forward(PortId(1))])
}

/// A HASH pipe whose group metadata chooses.
fn chosen() -> Pipe {
    Pipe::hash("a", HashInput::Select(KeySource::Outer), GroupChoice::ByMeta(0))
}

/// A FLOW pipe that learns from the group that metadata chooses.
fn learning_by_metadata() -> Pipe {
    Pipe::flow("a", Learn::Pin(GroupChoice::ByMeta(0)))
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
    // An active-backup bond has fewer buckets than targets, and weights have no effect on it.
    assert_eq!(check(&with_group(self::group(Fill::Given, 1, &[0, 0]))), []);
}

finds!(too_many_pipes: program((0..257).map(|at| pipe(&at.to_string())).collect())
    => FindingKind::TooMany { what: "pipes", count: 257, .. });
finds!(too_many_matches: only((0..17).fold(pipe("a"), |pipe, _| pipe.constant(Field::Ipv4Src, 1)))
    => FindingKind::TooMany { what: "matches", .. });
finds!(names_twice: program(vec![good(), good()]) => FindingKind::NameTwice { what: "pipe", .. });
finds!(a_forward_into_nothing: changed(|pipe| pipe.forward = Forward::Pipe(PipeId(9)))
    => FindingKind::Dangling { what: "pipe", index: 9 });
finds!(a_root_that_does_not_exist: { let mut all = program(vec![good()]); all.ports[0].root =
    Some(PipeId(3)); all }
    => FindingKind::Dangling { what: "pipe", index: 3 });
finds!(a_template_that_does_not_exist: entry_changed(|entry| entry.template = 1)
    => FindingKind::Dangling { what: "action", .. });
finds!(a_loop_over_three_pipes: {
    let lead = |name: &str, to| pipe(name).miss(PipeId(to));
    program(vec![lead("start", 1), lead("a", 2), lead("b", 3), lead("c", 1)])
} => FindingKind::Loop { path } if path == &["a", "b", "c", "a"]);
finds!(a_loop_through_an_entry: changed(|pipe| {
    pipe.forward = Forward::PerEntry;
    each_entry(pipe, |entry| entry.forward = Some(Forward::Pipe(PipeId(0))));
}) => FindingKind::Loop { path } if path.len() == 2);
finds!(a_loop_through_a_group: {
    let mut group = group(Fill::Wants, 8, &[1]);
    group.target_mut(0).forward = Forward::Pipe(PipeId(0));
    with_group(group)
} => FindingKind::Loop { .. });
finds!(a_pipe_nobody_leads_to: program(vec![good(), pipe("b")])
    => FindingKind::Unreachable { pipe } if pipe == "b");
finds!(no_root: { let mut all = program(vec![good()]); all.ports.iter_mut().for_each(|port| port.root =
    None); all }
    => FindingKind::NoRoot);
finds!(a_kernel_that_a_port_does_not_have: changed(|pipe| pipe.miss = Forward::Kernel)
    => FindingKind::KernelUnavailable { place, port } if place == "a" && port == "p1");
finds!(a_miss_per_entry: changed(|pipe| pipe.miss = Forward::PerEntry) => FindingKind::MissPerEntry);
finds!(metadata_that_one_way_has_not_written: {
    let set = Operation::Set(Field::Meta1, Value::Const(1));
    let writes = good().act([set]).forward(PipeId(1)).miss(PipeId(1));
    program(vec![writes, pipe("b").constant(Field::Meta1, 1)])
} => FindingKind::MetadataUnwritten { field: Field::Meta1, path } if path == &["a", "b"]);
finds!(metadata_added_to_before_it_is_set: acts(vec![
    Operation::Add(Field::Meta0, Value::Const(1)),
    Operation::Set(Field::Meta0, Value::Const(1)),
]) => FindingKind::MetadataUnwritten { field: Field::Meta0, .. });
finds!(a_colour_without_a_meter: only(good().constant(Field::MeterColor, 2))
    => FindingKind::ColorUnmetered { .. });
finds!(a_prefix_in_a_basic_pipe: only(pipe("a").matching(Field::Ipv4Src, Criterion::Prefix))
    => FindingKind::CriterionNotAllowed { kind: "basic", criterion: "prefix", .. });
finds!(two_prefixes: only(Pipe::lpm("a", Field::Ipv4Src).matching(Field::Ipv4Src, Criterion::Prefix))
    => FindingKind::PrefixCount { count: 2 });
finds!(a_range_of_addresses: only(Pipe::acl("a").matching(Field::Ipv4Src, Criterion::Range))
    => FindingKind::RangeTooWide { bits: 32, .. });
finds!(udp_and_tcp: only(good().constant(Field::TcpDport, 1).constant(Field::UdpDport, 1))
    => FindingKind::NeverHits { .. });
finds!(ipv6_protocol_in_ipv4: only(good().constant(Field::IpProtocol, 58))
    => FindingKind::NeverHits { .. });
finds!(an_acl_entry_that_contradicts_itself: {
    let odd = EntryMatch::Masked { value: 1, mask: 1 };
    let both = Pipe::acl("a").matching(Field::Ipv4Src, Criterion::Masked).matching(Field::Ipv6Src,
        Criterion::Masked);
    only(both.entry(Entry::on(odd).and(odd)))
} => FindingKind::NeverHits { .. });
finds!(a_forward_no_packet_reaches: program(vec![Pipe::basic("a").forward(PortId(1)).miss(Forward::Drop)])
    => FindingKind::DropsAll { unused: "`forward`" });
finds!(an_action_no_packet_reaches: {
    let set = Operation::Set(Field::EthSrc, Value::Const(1));
    program(vec![Pipe::basic("a").act([set]).forward(Forward::Drop).miss(Forward::Drop)])
} => FindingKind::DropsAll { unused: "action" });
finds!(nothing_hashed: Program {
    groups: vec![group(Fill::Wants, 8, &[1])],
    ..only(Pipe::hash("a", HashInput::Fields(vec![]), GroupId(0)))
} => FindingKind::NothingHashed);
finds!(a_read_only_field_written: acts(vec![Operation::Set(Field::IpProtocol, Value::Const(6))])
    => FindingKind::ReadOnly { field: Field::IpProtocol });
finds!(no_template: changed(|pipe| pipe.templates.clear()) => FindingKind::NoTemplate);
finds!(operations_out_of_order: acts(vec![Operation::DecrementTtl, Operation::PopVlan])
    => FindingKind::ActionOrder { earlier: "decrement_ttl", later: "pop_vlan" });
finds!(a_constant_that_is_too_large: acts(vec![Operation::Set(Field::Ipv4Ttl, Value::Const(256))])
    => FindingKind::OutOfRange { max: 255, .. });
finds!(an_entry_value_that_is_too_large: changed(|pipe| {
    pipe.templates[0].operations = vec![Operation::PushVlan { tpid: 0x8100, vid: Value::PerEntry,
        pcp: Value::Const(0) }];
    each_entry(pipe, |entry| entry.values = vec![4096]);
}) => FindingKind::OutOfRange { name, value: 4096, .. } if name == "vid");
finds!(a_match_value_that_is_too_large: entry_changed(|entry| entry.matches =
    vec![EntryMatch::Value(1 << 32)])
    => FindingKind::OutOfRange { .. });
finds!(a_value_outside_its_mask: only(pipe("a").per_entry_bits(Field::Ipv4Src, 1).entry(2))
    => FindingKind::OutsideMask { value: 2, mask: 1, .. });
finds!(bits_behind_a_prefix: only(Pipe::lpm("a", Field::Ipv4Src).entry(EntryMatch::Prefix { value: 1,
    length: 8 }))
    => FindingKind::OutsideMask { .. });
finds!(a_prefix_that_is_too_long: only(Pipe::lpm("a", Field::Ipv4Src).entry(EntryMatch::Prefix { value: 1,
    length: 33 }))
    => FindingKind::PrefixTooLong { length: 33, bits: 32, .. });
finds!(an_empty_range: only(
    Pipe::acl("a").matching(Field::UdpDport, Criterion::Range).entry(EntryMatch::Range { first: 2, last: 1 })
) => FindingKind::RangeEmpty { .. });
finds!(a_wrong_tpid: acts(vec![Operation::PushVlan { tpid: 1, vid: Value::Const(1), pcp: Value::Const(0) }])
    => FindingKind::NotOneOf { what: "the TPID of a VLAN tag", value: 1, .. });
finds!(too_few_matches: entry_changed(|entry| entry.matches.clear())
    => FindingKind::MatchCount { wanted: 1, found: 0, .. });
finds!(a_range_where_a_value_belongs: entry_changed(|entry| entry.matches = vec![EntryMatch::Any])
    => FindingKind::MatchKind { .. });
finds!(a_target_in_a_basic_pipe: entry_changed(|entry| entry.matches = vec![EntryMatch::Target(0)])
    => FindingKind::MatchKind { found: "a target", .. });
finds!(too_many_values: entry_changed(|entry| entry.values = vec![1])
    => FindingKind::ValueCount { wanted: 0, found: 1 });
finds!(a_forward_missing: changed(|pipe| pipe.forward = Forward::PerEntry)
    => FindingKind::PerEntryMissing { what: "forward" });
finds!(a_counter_missing: changed(|pipe| pipe.monitor.counter = Some(SharedUse::PerEntry))
    => FindingKind::PerEntryMissing { what: "counter" });
finds!(a_forward_too_many: entry_changed(|entry| entry.forward = Some(Forward::Drop))
    => FindingKind::PerEntryUnexpected { what: "forward" });
finds!(a_priority_in_a_basic_pipe: entry_changed(|entry| entry.priority =
    1) => FindingKind::PriorityUnexpected);
finds!(an_entry_twice: changed(|pipe| pipe.entries.edit(|all| all[1] = all[0].clone()))
    => FindingKind::EntryTwice { .. });
finds!(a_shadowed_entry: {
    let rows = [(EntryMatch::Any, 10, 20), (EntryMatch::Masked { value: 1, mask: 3 }, 12, 20)]
        .map(|(src, first, last)| Entry::on(src).and(EntryMatch::Range { first, last }));
    let acl = Pipe::acl("a").matching(Field::Ipv4Src, Criterion::Masked).matching(Field::UdpDport,
        Criterion::Range);
    only(acl.entries(rows))
} => FindingKind::Shadowed { by: 1, .. });
finds!(too_small_a_capacity: changed(|pipe| pipe.capacity = 1)
    => FindingKind::CapacityTooSmall { capacity: 1, entries: 2, .. });
finds!(no_capacity: changed(|pipe| pipe.capacity = 0) => FindingKind::Capacity { .. });
finds!(a_target_without_an_entry: Program {
    groups: vec![group(Fill::Wants, 8, &[1, 1])],
    ..only(Pipe::hash("a", HashInput::Select(KeySource::Outer), GroupId(0)).entry(EntryMatch::Target(0)))
} => FindingKind::TargetWithoutEntry { target, .. } if target == "t1");
finds!(no_default_entry: only(Pipe::flow("a", Learn::Default)) => FindingKind::NoDefaultEntry);
finds!(an_empty_group: with_group(group(Fill::Wants, 8, &[])) => FindingKind::GroupEmpty { .. });
finds!(a_dead_group: with_group(group(Fill::Wants, 8, &[0, 0])) => FindingKind::GroupDead { .. });
finds!(a_maglev_size_that_is_no_prime: with_group(group(Fill::Maglev, 65_536, &[1]))
    => FindingKind::MaglevSize { hint: Some(65_537), .. });
finds!(a_wants_size_that_is_no_power_of_two: with_group(group(Fill::Wants, 100, &[1]))
    => FindingKind::WantsSize { size: 100, .. });
finds!(a_given_size_that_is_no_power_of_two: with_group(group(Fill::Given, 3, &[1]))
    => FindingKind::GivenSize { size: 3, .. });
finds!(what_changes_the_choice_of_new_flows_is_refused_elsewhere: with_group(
    group(Fill::Given, 8, &[1]).new_flows(NewFlows::LeastFlows)
) => FindingKind::NewFlowsOfFill { group } if group == "g");
finds!(flows_learnt_from_given_buckets: Program {
    groups: vec![group(Fill::Given, 8, &[1])],
    ..only(Pipe::flow("a", Learn::Follow(GroupId(0).into())).entry(EntryMatch::Target(0)))
} => FindingKind::LearnGiven { group } if group == "g");
finds!(metadata_that_chooses_among_no_groups: Program {
    groups: vec![group(Fill::Wants, 8, &[1])],
    ..only(chosen())
} => FindingKind::NoNumberedGroup);
finds!(an_entry_for_a_group_without_a_number: Program {
    groups: vec![
        group(Fill::Wants, 8, &[1]),
        Group { name: "h".into(), ..group(Fill::Wants, 8, &[1]).number(1) },
    ],
    ..only(chosen().entry(EntryMatch::Member { group: GroupId(0), target: 0 }))
} => FindingKind::Unnumbered { group } if group == "g");
finds!(an_entry_without_its_group: Program {
    groups: vec![group(Fill::Wants, 8, &[1]).number(1)],
    ..only(chosen().entry(EntryMatch::Target(0)))
} => FindingKind::MatchKind { found: "a target", .. });
finds!(the_number_0: with_group(group(Fill::Wants, 8, &[1]).number(0))
    => FindingKind::GroupNumber { number: 0 });
finds!(a_number_twice: Program {
    groups: vec![
        group(Fill::Wants, 8, &[1]).number(3),
        Group { name: "h".into(), ..group(Fill::Wants, 8, &[1]).number(3) },
    ],
    ..changed(|pipe| pipe.forward = Forward::Group(GroupId(0)))
} => FindingKind::GroupNumberTwice { number: 3, first, group } if first == "g" && group == "h");
finds!(turns_of_several_groups: Program {
    groups: vec![group(Fill::Wants, 8, &[1]).number(1)],
    ..only(Pipe::hash("a", HashInput::RoundRobin, GroupChoice::ByMeta(1)))
} => FindingKind::TurnsOfSeveral);
finds!(a_flow_pipe_that_may_learn_from_given_buckets: Program {
    groups: vec![group(Fill::Given, 8, &[1]).number(1)],
    ..only(learning_by_metadata().entry(EntryMatch::Member { group: GroupId(0), target: 0 }))
} => FindingKind::LearnGiven { group } if group == "g");
finds!(a_target_without_an_entry_of_a_group_that_has_one: Program {
    groups: vec![group(Fill::Wants, 8, &[1, 1]).number(1)],
    ..only(chosen().entry(EntryMatch::Member { group: GroupId(0), target: 1 }))
} => FindingKind::TargetWithoutEntry { target, .. } if target == "t0");
finds!(a_group_with_a_number_and_without_entries: Program {
    groups: vec![
        group(Fill::Wants, 8, &[1]).number(1),
        Group { name: "h".into(), ..group(Fill::Wants, 8, &[1]).number(2) },
    ],
    ..only(chosen().entry(EntryMatch::Member { group: GroupId(0), target: 0 }))
} => FindingKind::NumberWithoutEntries { group } if group == "h");
finds!(more_buckets_than_memory: Program {
    groups: {
        let large = |at| Group { name: format!("g{at}"), ..group(Fill::Wants, 65_536, &[1]) };
        (0..2100).map(large).collect()
    },
    ..changed(|pipe| pipe.forward = Forward::Group(GroupId(0)))
} => FindingKind::TooManyBuckets { count: 137_625_600, .. });
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
        each_entry(pipe, |entry| entry.forward = Some(tee));
    })
} => FindingKind::EntryCopies);
finds!(a_flood_of_a_group_that_does_not_exist: changed(|pipe| pipe.miss = Forward::Flood(GroupId(3)))
    => FindingKind::Dangling { what: "group", index: 3 });
finds!(a_flood_that_comes_to_no_port: {
    let mut all = with_group(group(Fill::Wants, 8, &[1]));
    all.pipes[0].miss = Forward::Flood(GroupId(0));
    all.groups[0].target_mut(0).forward = Forward::InputPort;
    all
} => FindingKind::FloodNowhere { group } if group == "g");
finds!(a_target_that_floods: {
    let mut group = group(Fill::Wants, 8, &[1]);
    group.target_mut(0).forward = Forward::Flood(GroupId(0));
    with_group(group)
} => FindingKind::TargetForward { found: "a flood" });
finds!(a_group_in_a_group: {
    let mut group = group(Fill::Wants, 8, &[1]);
    group.target_mut(0).forward = Forward::Group(GroupId(0));
    with_group(group)
} => FindingKind::TargetForward { found: "a group" });
finds!(a_meter_without_a_rate: Program { meters: vec![meter("m", 0, MeterSecond::Excess { ebs: 0 })],
    ..program(vec![good()]) }
    => FindingKind::MeterZero { what: "cir" });
finds!(a_peak_below_the_committed_rate: Program {
    meters: vec![meter("m", 9, MeterSecond::Peak { pir: 8, pbs: 1 })],
    ..program(vec![good()])
} => FindingKind::PeakBelowCommitted { pir: 8, cir: 9 });
finds!(a_meter_in_two_pipes: {
    let pipes = vec![pipe("a").meter(MeterId(0)).miss(PipeId(1)), pipe("b").meter(MeterId(0))];
    Program { meters: vec![meter("m", 1, MeterSecond::Excess { ebs: 0 })], ..program(pipes) }
} => FindingKind::MeterTwice { first, .. } if first == "a");
finds!(an_unused_counter: Program { counters: vec!["c".into()], ..program(vec![good()]) }
    => FindingKind::Unused { what: "counter", .. });
finds!(an_unused_group: Program { groups: vec![group(Fill::Wants, 8, &[1])], ..program(vec![good()]) }
    => FindingKind::Unused { what: "group", .. });
finds!(an_unused_meter: Program { meters: vec![meter("m", 1, MeterSecond::Excess { ebs: 0 })],
    ..program(vec![good()]) }
    => FindingKind::Unused { what: "meter", .. });

#[test]
fn protocol_and_fragment_do_not_contradict() {
    let fragments =
        pipe("a").constant(Field::IpProtocol, 17).constant(Field::IpFragment, 1).constant(Field::Ipv4Dst, 1);
    assert_eq!(kinds(&only(fragments.entry(Entry::default()))), []);
}

#[test]
fn a_group_with_given_buckets_may_be_for_another_pipe() {
    let given = Group { name: "h".into(), ..group(Fill::Given, 8, &[1]).number(2) };
    let program = Program {
        groups: vec![group(Fill::Wants, 8, &[1]).number(1), given],
        ..only(learning_by_metadata().entry(EntryMatch::Member { group: GroupId(0), target: 0 }))
    };
    let refuses = |kind: &FindingKind| matches!(kind, FindingKind::LearnGiven { .. });
    assert!(!kinds(&program).iter().any(refuses));
}

#[test]
fn pipes_that_everything_misses_or_hits_on_purpose_are_good() {
    let basic = |forward: Forward, miss: Forward| Pipe::basic("a").forward(forward).miss(miss);
    let (port, drop) = (Forward::Port(PortId(1)), Forward::Drop);
    for pipe in [
        basic(drop, drop),
        basic(port, port),
        basic(drop, port),
        basic(port, Forward::Port(PortId(0))),
        basic(port, drop).entry(Entry::default()),
        basic(port, drop).per_entry(Field::Ipv4Dst),
    ] {
        assert_eq!(kinds(&program(vec![pipe])), []);
    }
}

#[test]
fn metadata_written_on_every_way_may_be_read() {
    let operation = Operation::Set(Field::Meta0, Value::Const(1));
    let set = |name: &str| pipe(name).act([operation]).entry(Entry::default()).forward(PipeId(2));
    let reads = pipe("c").per_entry(Field::Meta0);
    assert_eq!(kinds(&program(vec![set("a").miss(PipeId(1)), set("b"), reads])), []);
}

/// Both executors running a program, to which entries are added.
struct Running {
    engine: Engine,
    interpreter: Interpreter,
}

impl Running {
    fn new(program: &Program) -> Running {
        let engine = Engine::new(program, TableHash::new([1, 2])).expect("it compiles");
        let interpreter = Interpreter::new(program, engine.buckets());
        Running { engine, interpreter }
    }

    /// Applies a change. Returns why it was refused, by both in the same words.
    fn apply(&mut self, change: &Change) -> Result<(), String> {
        let refused = |result: Result<(), ChangeError>| result.map_err(|error| error.to_string());
        let (said, by_twin) = (self.engine.apply(change, 0), self.interpreter.apply(change));
        assert_eq!(refused(by_twin), refused(said.clone()));
        refused(said)
    }

    fn add(&mut self, pipe: u16, entry: Entry) -> Result<(), String> {
        self.apply(&Change::Add { pipe: PipeId(pipe), entry: entry.run_time() })
    }

    #[track_caller]
    fn refuses(&mut self, pipe: u16, entry: Entry, why: &str) {
        let said = self.add(pipe, entry).expect_err(why);
        assert!(said.contains(why), "{said}");
    }
}

/// Entries added at run time, in a program where pipe `a` has forwards per entry, `b` reads metadata, and `c`
/// forwards to the kernel.
#[test]
fn entries_at_run_time_break_nothing_that_was_proven() {
    let mark = Template::new("mark", [Operation::Set(Field::Meta0, Value::Const(1))]);
    let lead = |to, template| Entry::on(9).to(PipeId(to)).template(template);
    let a = pipe("a").per_entry(Field::Ipv4Src).actions([Template::default(), mark]);
    let a = a.entry(Entry::on(1).to(PipeId(1)).template(1)).capacity(16).forward(Forward::PerEntry);
    let program = program(vec![a, pipe("b").per_entry(Field::Meta0), pipe("c").miss(Forward::Kernel)]);
    assert!(check(&program).iter().all(|finding| finding.severity == Severity::Warning), "c is unreachable");
    let mut running = Running::new(&program);
    running.refuses(0, lead(1, 0), "`meta.0` is read here, but nothing writes it on the path a -> b");
    running.refuses(0, lead(2, 0), "in `c` is reached from port `p1`, which cannot give a frame");
    running.refuses(0, lead(0, 0), "a -> a");
    running.refuses(0, lead(1, 7), "action 7 does not exist");
    running.refuses(7, lead(1, 0), "no such pipe");
    assert_eq!(running.add(0, lead(1, 1)), Ok(()));
}

/// Pipes with forwards per entry; only the first one is reached.
fn loose(names: &[&str]) -> Vec<Pipe> {
    let mark = Template::new("mark", [Operation::Set(Field::Meta0, Value::Const(1))]);
    let one = |name: &&str| {
        let pipe = Pipe::basic(*name).per_entry(Field::L4Dport).capacity(8).forward(Forward::PerEntry);
        pipe.actions([Template::default(), mark.clone()])
    };
    names.iter().map(one).collect()
}

#[test]
fn w4_a_way_to_the_kernel_is_found_through_entries_of_run_time() {
    let mut running = Running::new(&program(loose(&["a", "b", "c"])));
    // Nothing reaches `c` yet.
    assert_eq!(running.add(2, Entry::on(1).to(Forward::Kernel)), Ok(()));
    assert_eq!(running.add(1, Entry::on(1).to(PipeId(2))), Ok(()));
    running.refuses(0, Entry::on(1).to(PipeId(1)), "in `c` is reached from port `p1`");
    running.refuses(0, Entry::on(1).to(Forward::Kernel), "in `a` is reached from port `p1`");
    // When the entry is gone, so is the path.
    let key = EntryKey::of(&Entry::on(1));
    assert_eq!(running.apply(&Change::Remove { pipe: PipeId(2), key }), Ok(()));
    assert_eq!(running.add(0, Entry::on(1).to(PipeId(1))), Ok(()));
    running.refuses(2, Entry::on(1).to(Forward::Kernel), "in `c` is reached from port `p1`");
}

#[test]
fn w4_a_port_whose_frames_do_not_get_there_refuses_nothing() {
    let mut program = program(loose(&["a", "b"]));
    program.ports[1].root = Some(PipeId(1));
    let mut running = Running::new(&program);
    assert_eq!(running.add(0, Entry::on(1).to(Forward::Kernel)), Ok(()), "p0 has a kernel path");
    running.refuses(1, Entry::on(1).to(Forward::Kernel), "port `p1`");
}

#[test]
fn a11_is_the_same_for_entries_of_run_time() {
    let mut pipes = loose(&["a", "b", "c", "d"]);
    pipes[3] = pipe("d").per_entry(Field::Meta0).capacity(8);
    pipes[0].entries = vec![Entry::on(1).to(PipeId(1)).template(1)].into();
    let mut running = Running::new(&program(pipes));
    let lead = |number: u16, to, template| Entry::on(number).to(PipeId(to)).template(template);
    // Metadata that is written on every other path to `b` is not read there.
    assert_eq!(running.add(0, lead(2, 1, 0)), Ok(()));
    running.refuses(1, lead(1, 3, 0), "on the path a -> b -> d");
    // Nothing reaches `c` yet, and `d` is only reached through it.
    assert_eq!(running.add(2, lead(1, 3, 0)), Ok(()));
    running.refuses(0, lead(3, 2, 0), "on the path a -> c -> d");
    assert_eq!(running.add(0, lead(3, 2, 1)), Ok(()), "it writes");
    assert_eq!(running.add(1, lead(1, 3, 1)), Ok(()));
}

#[test]
fn c4_is_the_same_for_entries_of_run_time() {
    let mut pipes = loose(&["a", "b"]);
    pipes.iter_mut().for_each(|pipe| pipe.monitor.meter = Some(SharedUse::PerEntry));
    let excess = MeterSecond::Excess { ebs: 0 };
    let program = Program { meters: vec![meter("m", 1, excess), meter("n", 1, excess)], ..program(pipes) };
    let mut running = Running::new(&program);
    let metered = |meter| Entry { meter: Some(MeterId(meter)), ..Entry::on(1).to(PortId(1)) };
    assert_eq!(running.add(0, metered(0)), Ok(()));
    running.refuses(1, metered(0), "meter `m` is already used by pipe `a`");
    assert_eq!(running.add(1, metered(1)), Ok(()));
}

#[test]
fn a_weight_of_run_time_has_the_limit_of_the_file() {
    let heavy = with_group(group(Fill::Wants, 256, &[1, 99_999]));
    assert!(kinds(&heavy).iter().any(|kind| kind.to_string().contains("at most 0xffff")), "the file");
    let mut running = Running::new(&with_group(group(Fill::Wants, 256, &[1, 2])));
    let weigh = |weight| Change::SetWeight { group: GroupId(0), target: 1, weight };
    let refused = "a weight of group `g` is a number from 0 to 65535, not 99999".to_string();
    assert_eq!(running.apply(&weigh(99_999)), Err(refused));
    assert_eq!(running.apply(&weigh(WEIGHT_MAX)), Ok(()));
}

#[test]
fn m13_a_port_is_a_name_and_no_number() {
    let range = Entry::on(EntryMatch::Range { first: 0, last: 1 });
    let hash = HashInput::Fields(vec![(Field::InputPort, 0xffff)]);
    let copy = Operation::Copy { from: Field::InputPort, to: Field::Meta0 };
    for program in [
        only(Pipe::basic("a").per_entry_bits(Field::InputPort, 1).entry(1)),
        only(Pipe::basic("a").constant_bits(Field::InputPort, 1, 1)),
        only(Pipe::acl("a").matching(Field::InputPort, Criterion::Range).entry(range)),
        only(Pipe::lpm("a", Field::InputPort)),
        acts(vec![copy]),
        Program { groups: vec![group(Fill::Wants, 256, &[1])], ..only(Pipe::hash("a", hash, GroupId(0))) },
    ] {
        let found = kinds(&program);
        assert!(found.iter().any(|kind| matches!(kind, FindingKind::PortNumber { .. })), "{found:?}");
    }
    let found = kinds(&only(Pipe::basic("a").per_entry(Field::InputPort).entry(2)));
    assert!(found.contains(&FindingKind::Dangling { what: "port", index: 2 }), "{found:?}");
    let masked = Entry::on(EntryMatch::Masked { value: 1, mask: 0xffff });
    let acl = Pipe::acl("a").matching(Field::InputPort, Criterion::Masked).entry(masked);
    assert_eq!(kinds(&only(acl)), []);
}

/// A FLOW pipe that learns and sends everything to the second port.
fn learning(name: &str, key: KeySource, by: OwnedBy) -> Pipe {
    Pipe::flow(name, Learn::Default).key(key).entry(EntryMatch::Default).owner(by).forward(PortId(1))
}

/// A BASIC pipe without entries or matches, so that everything hits; it performs this operation, rehashes and
/// forwards.
fn does(operation: Operation, next: u16) -> Pipe {
    Pipe::basic("does").act([operation]).rehash(true).forward(PipeId(next))
}

/// How the worker of a frame at the first port is found, and what makes that impossible.
fn owner(pipes: Vec<Pipe>) -> (Option<Owning>, Vec<String>) {
    let (mut owners, findings) = owners(&program(pipes));
    (owners.swap_remove(0), findings.iter().map(|finding| finding.kind.to_string()).collect())
}

fn by(source: KeySource, by: OwnedBy) -> Option<Owning> {
    Some(Owning::Same(Owner { source, by, nat: None }))
}

#[test]
fn o3_behind_decap_and_rehash_the_inner_headers_tell_the_worker() {
    let decap = Operation::Decap(weir_packet::TunnelKind::Vxlan);
    let flow = |key| learning("flows", key, OwnedBy::Both);
    let outer = by(KeySource::Outer, OwnedBy::Both);
    let inner = by(KeySource::Inner, OwnedBy::Both);
    assert_eq!(owner(vec![flow(KeySource::Outer)]), (outer.clone(), vec![]));
    assert_eq!(owner(vec![flow(KeySource::Inner)]), (inner.clone(), vec![]));
    assert_eq!(owner(vec![does(decap, 1), flow(KeySource::Outer)]), (inner, vec![]));
    // Without a rehash, the key is as received.
    let as_received = does(decap, 1).rehash(false);
    assert_eq!(owner(vec![as_received, flow(KeySource::Outer)]), (outer, vec![]));
    assert_eq!(owner(vec![pipe("a")]), (None, vec![]));
}

#[test]
fn o4_two_pipes_that_one_frame_meets_want_the_same_worker() {
    let first = |key, by| learning("first", key, by).forward(PipeId(1));
    let second = learning("second", KeySource::Outer, OwnedBy::Src);
    let together = owner(vec![first(KeySource::Outer, OwnedBy::Src), second.clone()]);
    assert_eq!(together, (by(KeySource::Outer, OwnedBy::Src), vec![]));
    for other in [first(KeySource::Outer, OwnedBy::Both), first(KeySource::Inner, OwnedBy::Src)] {
        let findings = owner(vec![other, second.clone()]).1;
        assert!(findings.len() == 1 && findings[0].contains("cannot be on two workers"), "{findings:?}");
    }
    // Different ports lead to different pipes.
    let mut apart = program(vec![learning("first", KeySource::Outer, OwnedBy::Dst), second]);
    apart.ports[1].root = Some(PipeId(1));
    let (all, findings) = owners(&apart);
    assert_eq!(all, [by(KeySource::Outer, OwnedBy::Dst), by(KeySource::Outer, OwnedBy::Src)]);
    assert_eq!(findings, []);
}

#[test]
fn o4_what_a_rehash_changes_tells_no_worker() {
    let set = |field| Operation::Set(field, Value::Const(1));
    let flow = |by| learning("flows", KeySource::Outer, by);
    let wrong = |operation, by| owner(vec![does(operation, 1), flow(by)]).1;
    assert_eq!(wrong(set(Field::EthDst), OwnedBy::Both), Vec::<String>::new());
    assert_eq!(wrong(set(Field::Ipv4Dst), OwnedBy::Src), Vec::<String>::new());
    assert_eq!(wrong(set(Field::L4Sport), OwnedBy::Addresses), Vec::<String>::new());
    let advice = |operation, by| wrong(operation, by).into_iter().next().expect("a finding");
    assert!(advice(set(Field::Ipv4Dst), OwnedBy::Both).contains("write `owner: src`"));
    assert!(advice(set(Field::L4Dport), OwnedBy::Both).contains("write `owner:"));
    assert!(advice(set(Field::Ipv6Src), OwnedBy::Src).contains("write `owner: dst`"));
    assert!(advice(Operation::PopVlan, OwnedBy::Src).ends_with("use one worker"));
    // On one of two paths.
    let ways = does(set(Field::Ipv4Src), 1).constant(Field::IpProtocol, 17).miss(PipeId(1));
    assert_eq!(owner(vec![ways, flow(OwnedBy::Src)]).1.len(), 1);
}

/// Writes metadata based on the protocol, and leads TCP to the second pipe and UDP to the third.
fn finds() -> Pipe {
    let entry = |protocol: u8, to| Entry::on(protocol).value(1_u16).to(PipeId(to));
    let pipe = Pipe::basic("finds").per_entry(Field::IpProtocol);
    let pipe = pipe.act([Operation::Set(Field::Meta0, Value::PerEntry)]).forward(Forward::PerEntry);
    pipe.entries([entry(6, 1), entry(17, 2)])
}

#[test]
fn o4_pipes_that_match_and_write_metadata_are_looked_through() {
    let flow = |name, by| learning(name, KeySource::Outer, by);
    let two = || [flow("first", OwnedBy::Src), flow("second", OwnedBy::Dst)];
    let with = |front: Pipe| owner([front].into_iter().chain(two()).collect());
    let of = |by| Some(Owner { source: KeySource::Outer, by, nat: None });
    let ahead = [(PipeId(0), None), (PipeId(1), of(OwnedBy::Src)), (PipeId(2), of(OwnedBy::Dst))];
    assert_eq!(with(finds()), (Some(Owning::Ahead(ahead.into())), vec![]));
    // FLOW pipes with the same requirement need no look-ahead.
    let same = owner(vec![finds(), flow("first", OwnedBy::Src), flow("second", OwnedBy::Src)]);
    assert_eq!(same, (by(KeySource::Outer, OwnedBy::Src), vec![]));
    let refused = |front: Pipe| with(front).1.iter().any(|one| one.contains("cannot be on two workers"));
    assert!(refused(finds().rehash(true)));
    assert!(refused(finds().act([Operation::DecrementTtl, Operation::Set(Field::Meta0, Value::PerEntry)])));
    let mut metered = finds();
    metered.monitor.meter = Some(SharedUse::PerEntry);
    assert!(refused(metered));
    // If one frame meets two, the second one could not determine the worker.
    let chain = flow("first", OwnedBy::Src).forward(PipeId(2));
    let findings = owner(vec![finds(), chain, flow("second", OwnedBy::Dst)]).1;
    assert!(findings.iter().any(|one| one.contains("cannot be on two workers")), "{findings:?}");
}
