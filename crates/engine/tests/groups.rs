//! Groups chosen by metadata: one FLOW pipe and one HASH pipe for all services.

mod support;

use support::{Bench, SECRET, start, udp};
use weir_engine::batch::Engine;
use weir_oracle::Interpreter;
use weir_packet::{DropReason, Field, KeySource};
use weir_program::Verdict;
use weir_program::buckets::GroupTables;
use weir_program::change::{Change, ChangeError, EntryKey};
use weir_program::check::{FindingKind, check};
use weir_program::snapshot::{FlowDecision, Unflowed};
use weir_program::{
    Entry, EntryMatch, Fill, Group, GroupChoice, GroupId, HashInput, Learn, Operation, Pipe, PipeId, PortId,
    Program, Target, Value,
};

/// The ports, which targets of these names lead to.
const PORTS: [&str; 5] = ["in", "w1", "w2", "d1", "missed"];
const CHOSEN: GroupChoice = GroupChoice::ByMeta(0);

fn member(group: u16, target: u16) -> EntryMatch {
    EntryMatch::Member { group: GroupId(group), target }
}

fn port(name: &str) -> PortId {
    PortId(PORTS.iter().position(|one| *one == name).unwrap() as u16)
}

/// Groups with these numbers and targets; each target of a pipe has an entry that leads to the port with its
/// name. Packets to port 80 and 53 are for group `web` (7) and `dns` (9), those to 99 for number 99, which no
/// group has.
fn services(groups: &[(&str, u16, &[&str])], last: impl FnOnce(Vec<Entry>) -> Pipe) -> Program {
    let set = [Operation::Set(Field::Meta0, Value::PerEntry)];
    let vips = [(80_u32, 7_u32), (53, 9), (99, 99)];
    let vips = vips.map(|(dport, number)| Entry::on(dport).value(number));
    let vips = Pipe::basic("vips").per_entry(Field::L4Dport).act(set).entries(vips).forward(PipeId(1));
    let rows = (0..).zip(groups).flat_map(|(at, (_, _, targets))| {
        (0..).zip(*targets).map(move |(target, name)| Entry::on(member(at, target)).to(port(name)))
    });
    let last = last(rows.collect()).forward(weir_program::Forward::PerEntry).miss(port("missed"));
    let mut program = start(&PORTS, [vips.capacity(16), last.capacity(64)]);
    for (name, number, targets) in groups {
        let targets = targets.iter().map(|name| Target::new(*name, PortId(0)));
        program.group(Group::new(*name, Fill::Wants, 64).number(*number).targets(targets));
    }
    program.build()
}

fn hashing(rows: Vec<Entry>) -> Pipe {
    Pipe::hash("spread", HashInput::Select(KeySource::Outer), CHOSEN).entries(rows)
}

fn pinning(rows: Vec<Entry>) -> Pipe {
    Pipe::flow("pins", Learn::Pin(CHOSEN)).entries(rows)
}

fn following(rows: Vec<Entry>) -> Pipe {
    Pipe::flow("pins", Learn::Follow(CHOSEN)).entries(rows)
}

const BOTH: &[(&str, u16, &[&str])] = &[("web", 7, &["w1", "w2"]), ("dns", 9, &["d1"])];

/// Both executors' verdict on a frame.
struct Both(Bench, Interpreter);

impl Both {
    fn new(program: &Program) -> Both {
        let found: Vec<FindingKind> = check(program).into_iter().map(|finding| finding.kind).collect();
        assert_eq!(found, []);
        let bench = Bench::new(program);
        let twin = Interpreter::new(program, bench.engine.buckets());
        Both(bench, twin)
    }

    fn frame(&mut self, sport: u16, dport: u16) -> Verdict {
        let bytes = udp(sport, dport);
        let wanted = self.1.walk(PortId(0), &bytes, 128, self.0.now_ns).verdict;
        assert_eq!(self.0.frame(PortId(0), &bytes), wanted, "the twin disagrees");
        wanted
    }

    fn apply(&mut self, change: Change) -> Result<(), ChangeError> {
        let result = self.0.apply(change.clone());
        assert_eq!(self.1.apply(&change).is_ok(), result.is_ok());
        for (at, slots) in self.0.engine.buckets().into_iter().enumerate() {
            self.1.set_buckets(GroupId(at as u16), slots);
        }
        result
    }

    /// The ports that frames of many flows leave by.
    fn ports(&mut self, dport: u16) -> Vec<PortId> {
        let mut ports: Vec<PortId> = (0..64)
            .map(|sport| match self.frame(sport, dport) {
                Verdict::Transmit(port) => port,
                other => panic!("{other:?}"),
            })
            .collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    }
}

#[test]
fn m21_metadata_chooses_the_group_by_its_number() {
    for last in [hashing, pinning, following] {
        let mut both = Both::new(&services(BOTH, last));
        assert_eq!(both.ports(80), [port("w1"), port("w2")]);
        assert_eq!(both.ports(53), [port("d1")]);
    }
}

#[test]
fn m21_a_number_that_no_group_has_is_a_miss_of_new_flows_and_of_those_that_follow() {
    for last in [hashing, pinning, following] {
        let mut both = Both::new(&services(BOTH, last));
        assert_eq!(both.frame(1, 99), Verdict::Transmit(port("missed")));
        assert_eq!(both.0.engine.snapshot().pipes[1].misses.packets, 1);
        assert!(both.0.live().is_empty(), "nothing is learnt");
    }
    let mut both = Both::new(&services(BOTH, following));
    both.frame(1, 53);
    both.apply(nowhere()).unwrap();
    assert_eq!(both.frame(1, 53), Verdict::Transmit(port("missed")));
    assert_eq!(both.0.live().len(), 1);
    let unflowed = both.0.engine.snapshot().pipes[1].account.unflowed;
    assert_eq!(unflowed, Unflowed { no_group: 1, ..Unflowed::default() });
}

/// Packets to port 53 get a number that no group has.
fn nowhere() -> Change {
    Change::Update { pipe: PipeId(0), entry: Entry::on(53_u32).value(4_000_000_000_u32) }
}

#[test]
fn m21_a_target_without_an_entry_drops_with_no_target() {
    for last in [hashing, pinning, following] {
        let mut both = Both::new(&services(BOTH, last));
        let key = EntryKey::one(member(1, 0));
        both.apply(Change::Remove { pipe: PipeId(1), key: key.clone() }).unwrap();
        assert_eq!(both.frame(1, 53), Verdict::Drop(DropReason::NoTarget));
        both.apply(Change::Add { pipe: PipeId(1), entry: Entry::on(member(1, 0)).to(port("w2")).run_time() })
            .unwrap();
        assert_eq!(both.frame(1, 53), Verdict::Transmit(port("w2")));
        let twice = Change::Add { pipe: PipeId(1), entry: Entry::on(member(1, 0)).to(port("w1")) };
        assert!(matches!(both.apply(twice), Err(ChangeError::Exists { .. })));
        for unfit in [EntryMatch::Target(0), member(1, 1), member(2, 0)] {
            let entry = Entry::on(unfit).to(port("w1"));
            assert!(both.apply(Change::Add { pipe: PipeId(1), entry }).is_err(), "{unfit:?}");
        }
    }
}

#[test]
fn m22_a_pinned_flow_keeps_its_group_and_one_that_follows_does_not() {
    let dns_to_web = || Change::Update { pipe: PipeId(0), entry: Entry::on(53_u32).value(7_u32) };
    let mut both = Both::new(&services(BOTH, pinning));
    assert_eq!(both.frame(1, 53), Verdict::Transmit(port("d1")));
    both.apply(dns_to_web()).unwrap();
    assert_eq!(both.frame(1, 53), Verdict::Transmit(port("d1")), "pinned");
    assert_ne!(both.frame(2, 53), Verdict::Transmit(port("d1")), "a new flow");
    both.apply(nowhere()).unwrap();
    assert_eq!(both.frame(1, 53), Verdict::Transmit(port("d1")), "pinned, regardless of metadata");
    assert_eq!(both.frame(3, 53), Verdict::Transmit(port("missed")), "a new flow");
    let flows = both.0.engine.flows(PipeId(1), 9).0;
    assert!(flows.iter().any(|flow| flow.decision == FlowDecision::PinnedIn(GroupId(1), 0)), "{flows:?}");
    let mut both = Both::new(&services(BOTH, following));
    assert_eq!(both.frame(1, 53), Verdict::Transmit(port("d1")));
    both.apply(dns_to_web()).unwrap();
    assert_ne!(both.frame(1, 53), Verdict::Transmit(port("d1")));
    assert_eq!(both.0.engine.flows(PipeId(1), 9).0[0].decision, FlowDecision::FollowChosen);
}

#[test]
fn s8_entries_and_pins_go_on_by_the_names_of_group_and_target() {
    for last in [pinning, hashing] {
        let mut both = Both::new(&services(BOTH, last));
        let before: Vec<Verdict> =
            (0..40).map(|sport| both.frame(sport, [80, 53][usize::from(sport) % 2])).collect();
        // The groups change positions, numbers and the order of targets; `w0` is new and first.
        let now: &[(&str, u16, &[&str])] = &[("dns", 7, &["d1"]), ("web", 9, &["missed", "w2", "w1"])];
        let mut program = services(now, last);
        program.pipes[0].entries.edit(|all| {
            all[0].values = vec![9];
            all[1].values = vec![7];
        });
        let bench = &mut both.0;
        let hits =
            |bench: &Bench| -> u64 { bench.engine.entries(PipeId(1)).iter().map(|one| one.1.packets).sum() };
        let (counted, flows) = (hits(bench), bench.live());
        let report = bench.swap(&program);
        assert_eq!(report.removed, []);
        assert_eq!((hits(bench), bench.live()), (counted, flows.clone()));
        if !flows.is_empty() {
            let again =
                (0..40).map(|sport| bench.frame(PortId(0), &udp(sport, [80, 53][usize::from(sport) % 2])));
            assert_eq!(again.collect::<Vec<_>>(), before, "pinned flows stay with their targets");
        }
        // A group that is removed takes its entries and flows with it.
        let report = bench.swap(&services(&[("dns", 9, &["d1"])], last));
        assert_eq!(report.removed.len(), 1);
        assert_eq!(report.removed[0].1, 3, "the targets of web");
    }
}

#[test]
fn s6_a_slice_leads_no_more_decisions_of_flows_than_it_may() {
    let names: Vec<String> = (0..40).map(|at| format!("g{at}")).collect();
    let more = names.iter().zip(100..).map(|(name, number)| (name.as_str(), number, BOTH[0].2));
    let groups: Vec<_> = BOTH.iter().copied().chain(more).collect();
    let (before, entries) = (services(&groups, pinning), 2 * 41 + 1);
    let mut bench = Bench::new(&before);
    let verdicts = [80, 53].map(|dport| bench.frame(PortId(0), &udp(1, dport)));
    let after = services(&groups.iter().rev().copied().collect::<Vec<_>>(), pinning);
    let mut heir = Box::new(Engine::new(&after, SECRET).unwrap());
    let mut slices = 0;
    while !heir.stage(&mut bench.engine, 4, bench.now_ns) {
        slices += 1;
    }
    assert!(slices >= entries / 4, "{slices} slices of at most 4 decisions for {entries}");
    std::mem::swap(&mut bench.engine, &mut *heir);
    bench.engine.take_over(heir, bench.now_ns);
    assert_eq!([80, 53].map(|dport| bench.frame(PortId(0), &udp(1, dport))), verdicts);
    while bench.engine.settle(100).is_none() {}
    assert_eq!(bench.live().len(), 2);
}

#[test]
fn s8_a_number_is_a_value_that_an_entry_of_run_time_keeps() {
    let mut both = Both::new(&services(BOTH, hashing));
    let entry = Entry::on(8080_u32).value(9_u32).run_time();
    both.apply(Change::Add { pipe: PipeId(0), entry }).unwrap();
    assert_eq!(both.ports(8080), [port("d1")]);
    let now: &[(&str, u16, &[&str])] = &[("web", 9, &["w1", "w2"]), ("dns", 7, &["d1"])];
    both.0.swap(&services(now, hashing));
    let verdict = both.0.frame(PortId(0), &udp(1, 8080));
    assert!([port("w1"), port("w2")].map(Verdict::Transmit).contains(&verdict), "{verdict:?}");
}

#[test]
fn a11_a_pipe_whose_group_metadata_chooses_reads_it() {
    let mut program = services(BOTH, hashing);
    program.pipes[0].templates[0].operations.clear();
    program.pipes[0].entries.edit(|all| all.iter_mut().for_each(|entry| entry.values.clear()));
    let unwritten = |finding: &weir_program::check::Finding| {
        matches!(finding.kind, FindingKind::MetadataUnwritten { field: Field::Meta0, .. })
    };
    assert!(check(&program).iter().any(unwritten), "{:?}", check(&program));
}

#[test]
fn a_million_targets_in_ten_thousand_groups_are_looked_up_by_place() {
    // A tenth of each, so that the test is fast: the cost of a look-up does not depend on it.
    let (groups, targets) = (1_000, 100);
    let names: Vec<String> = (0..targets).map(|at| format!("b{at}")).collect();
    let set = [Operation::Set(Field::Meta0, Value::PerEntry)];
    let vips = (0..groups).map(|at| Entry::on(u32::from(at)).value(u32::from(at) + 1));
    let vips = Pipe::basic("vips").per_entry(Field::L4Dport).act(set).entries(vips).capacity(2_000);
    let rows = (0..groups).flat_map(|group| (0..targets).map(move |target| Entry::on(member(group, target))));
    let rows = hashing(rows.collect()).forward(PortId(0)).capacity(groups as u32 * u32::from(targets));
    let mut program = start(&["in"], [vips.forward(PipeId(1)), rows]);
    for at in 0..groups {
        let targets = names.iter().map(|name| Target::new(name.as_str(), PortId(0)));
        program.group(Group::new(format!("g{at}"), Fill::Wants, 4096).number(at + 1).targets(targets));
    }
    let program = program.build();
    assert_eq!(check(&program), []);
    let tables = GroupTables::new(&program);
    let mut engines = [0, 1].map(|_| Engine::with_tables(&program, SECRET, &tables).unwrap());
    // Two workers share names and buckets.
    for (at, group) in program.groups.iter().enumerate() {
        let shared = engines.iter().map(|engine| engine.program().groups[at].targets.as_ptr());
        assert!(shared.into_iter().all(|targets| targets == group.targets.as_ptr()));
    }
    let mut heir = Engine::with_tables(&program, SECRET, &tables.succeed(&program)).unwrap();
    let report = heir.inherit(&mut engines[0], 0);
    assert_eq!((report.entries_kept, report.removed.len()), (101_000, 0));
}
