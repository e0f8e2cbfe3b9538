//! Sentences of the specification about flows (docs/reference/pipes.md) where the kernel follows the flows.

use crate::may_load;
use crate::protocol::{PIPE, PORT, activate_new, entry, tcp, udp};
use std::collections::BTreeSet;
use std::net::IpAddr;
use weir_kernel::{Executor, FlowEntry, FlowTable, FrameOutcome, Why};
use weir_packet::{Field, FlowKey, craft};
use weir_program::change::EntryKey;
use weir_program::operation::{Operation, Value};
use weir_program::replica::{FlowCounts, FlowLines, FlowSlot};
use weir_program::{
    Affinity, Entry, EntryMatch, Fill, Forward, Group, GroupChoice, GroupId, Learn, Pipe, PipeId,
    PortDeclaration, PortId, Program, Target, Timeouts, Verdict,
};

const OTHER: PortId = PortId(1);
const GROUP: GroupId = GroupId(0);
const CHOICE: GroupChoice = GroupChoice::One(GROUP);
const BUCKETS: usize = 64;

/// The kernel's clock is coarse: it advances with the timer interrupt.
const TICK_NS: u64 = 20_000_000;

/// The time of this clock, which on a busy machine may stand still for longer than a tick.
fn coarse_now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the address is that of a local variable, which the call fills.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A program in the kernel, with its flows.
struct FlowRig {
    executor: Executor,
    flows: FlowTable,
}

/// A pipe whose two targets send back and to the other port, as does its default entry.
fn pipe(name: &str, learn: Learn) -> Pipe {
    let targets = match learn {
        Learn::Default => vec![Entry { forward: Some(Forward::InputPort), ..Entry::on(EntryMatch::Default) }],
        Learn::Nothing | Learn::Pin(_) | Learn::Follow(_) => {
            vec![entry(0, Forward::InputPort), entry(1, Forward::Port(OTHER))]
        }
    };
    let pipe = Pipe::flow(name, learn).forward(Forward::PerEntry).entries(targets).capacity(256);
    pipe.timeouts(Timeouts::CONNTRACK)
}

impl FlowRig {
    /// Loads pipes, each at a port of its own, or the only one at both, and a group with these buckets.
    fn new(pipes: Vec<Pipe>, affinity: Option<Affinity>, bucket: impl Fn(usize) -> u16) -> FlowRig {
        let root = |at: usize| Some(PipeId(at.min(pipes.len() - 1) as u16));
        let port = |at: usize| PortDeclaration {
            root: root(at),
            ..PortDeclaration::new(["a", "b"][at].to_string())
        };
        let targets = ["a", "b"].map(|name| Target::new(name, Forward::Drop));
        let group = Group::new("back", Fill::Maglev, BUCKETS as u32);
        let groups = vec![Group { targets: targets.into(), affinity, ..group }];
        let program = Program { ports: vec![port(0), port(1)], pipes, groups, ..Program::default() };
        let buckets = vec![(0..BUCKETS).map(bucket).collect()];
        let mut executor = Executor::load(&program, &buckets).unwrap_or_else(|error| panic!("{error}"));
        assert!(executor.coverage().pipes.iter().all(Option::is_none));
        let flows = executor.take_flows().expect("FLOW pipes compile");
        FlowRig { executor, flows }
    }

    /// Follows a flow of the first pipe, decided for the entry with this match, or that follows its group.
    fn follow(&mut self, key: &FlowKey, decided: Option<EntryMatch>) -> FlowSlot {
        let named = |one| self.executor.flow_entry(PIPE, &[one]).expect("there is such an entry");
        let entry = decided.map_or(FlowEntry::FOLLOWS, named);
        let slot = self.flows.insert(PIPE, key, entry, &[]).expect("room");
        activate_new(&self.flows, slot);
        slot
    }

    fn run(&self, port: PortId, frame: &[u8]) -> FrameOutcome {
        self.executor.run(port, frame).expect("a test run").0
    }
}

fn sent(port: PortId) -> FrameOutcome {
    FrameOutcome::Decided(Verdict::Transmit(port))
}

/// The flow of the segments that `tcp` makes.
fn connection() -> FlowKey {
    FlowKey::new(IpAddr::from([10, 0, 0, 1]), IpAddr::from([192, 0, 2, 1]), 6, (1000, 80), None)
}

#[test]
fn m9_in_the_kernel_a_flow_has_one_direction_and_one_pipe() {
    if !may_load() {
        return;
    }
    let mut rig = FlowRig::new(["one", "two"].map(|name| pipe(name, Learn::Pin(CHOICE))).into(), None, |_| 0);
    let (key, frame) = udp(1);
    rig.follow(&key, Some(EntryMatch::Target(0)));
    assert_eq!(rig.run(PORT, &frame), sent(PORT));
    assert_eq!(rig.run(OTHER, &frame), FrameOutcome::Left(Why::NewFlow), "the other pipe has no such flow");
    let answer = craft::frame("src=192.0.2.1 dst=10.0.0.1 proto=udp sport=53 dport=1000");
    assert_eq!(rig.run(PORT, &answer), FrameOutcome::Left(Why::NewFlow));
    let without_ip = craft::frame("type=0x88b5");
    assert_eq!(rig.run(PORT, &without_ip), FrameOutcome::Left(Why::NewFlow), "it misses in the engine");
}

#[test]
fn m10_in_the_kernel_flows_of_the_default_entry_are_hits_of_it_until_it_is_removed() {
    if !may_load() {
        return;
    }
    let mut rig = FlowRig::new(vec![pipe("flows", Learn::Default)], None, |_| 0);
    let (key, frame) = udp(1);
    rig.follow(&key, Some(EntryMatch::Default));
    assert_eq!(rig.run(PORT, &frame), sent(PORT));
    let default = EntryKey::of(&Entry::on(EntryMatch::Default));
    assert_eq!(rig.executor.hits(PIPE, &default).packets, 1);
    rig.executor.replica().remove(PIPE, &default);
    assert_eq!(rig.run(PORT, &frame), FrameOutcome::Left(Why::NewFlow));
}

#[test]
fn m11_in_the_kernel_pinned_flows_stay_and_those_that_follow_go_with_the_buckets() {
    if !may_load() {
        return;
    }
    let (key, frame) = udp(1);
    for (learn, decided) in [(Learn::Pin(CHOICE), Some(EntryMatch::Target(0))), (Learn::Follow(CHOICE), None)]
    {
        let mut rig = FlowRig::new(vec![pipe("flows", learn)], None, |_| 0);
        rig.follow(&key, decided);
        assert_eq!(rig.run(PORT, &frame), sent(PORT));
        let follows = |outcome| if decided.is_none() { outcome } else { sent(PORT) };
        rig.executor.replica().publish(GROUP, &[1; BUCKETS]);
        assert_eq!(rig.run(PORT, &frame), follows(sent(OTHER)), "{learn:?}");
        rig.executor.replica().publish(GROUP, &[u16::MAX; BUCKETS]);
        assert_eq!(rig.run(PORT, &frame), follows(FrameOutcome::Left(Why::Targetless)), "{learn:?}");
    }
}

/// A pipe that writes a packet's TTL into its metadata, and a FLOW pipe whose groups are 1 and 2: flows of
/// the first are sent back, and those of the second to the other port.
fn chosen_by_ttl(learn: Learn) -> Program {
    let set = [Operation::Set(Field::Meta0, Value::PerEntry)];
    let numbers = [1_u32, 2, 3].map(|ttl| Entry::on(ttl).value(ttl));
    let first = Pipe::basic("numbers").per_entry(Field::Ipv4Ttl).act(set).entries(numbers);
    let members = [Forward::InputPort, Forward::Port(OTHER)].into_iter().zip(0..).map(|(forward, group)| {
        let member = EntryMatch::Member { group: GroupId(group), target: 0 };
        Entry { forward: Some(forward), ..Entry::on(member) }
    });
    let flows = Pipe::flow("flows", learn).forward(Forward::PerEntry).entries(members).capacity(64);
    let group = |number: u16| {
        let targets = [Target::new("only", Forward::Drop)];
        Group::new(format!("group {number}"), Fill::Wants, 1).number(number).targets(targets)
    };
    let port = |name: &str| PortDeclaration { root: Some(PIPE), ..PortDeclaration::new(name.to_string()) };
    Program {
        ports: vec![port("a"), port("b")],
        pipes: vec![first.forward(PipeId(1)), flows],
        groups: vec![group(1), group(2)],
        ..Program::default()
    }
}

#[test]
fn m22_in_the_kernel_a_pinned_flow_keeps_its_group_and_one_that_follows_does_not() {
    if !may_load() {
        return;
    }
    let choice = GroupChoice::ByMeta(0);
    let pinned = EntryMatch::Member { group: GroupId(1), target: 0 };
    for (learn, decided) in [(Learn::Pin(choice), Some(pinned)), (Learn::Follow(choice), None)] {
        let loaded = Executor::load(&chosen_by_ttl(learn), &[vec![0], vec![0]]);
        let mut executor = loaded.unwrap_or_else(|error| panic!("{error}"));
        let mut flows = executor.take_flows().expect("the FLOW pipe compiles");
        let (key, _) = udp(1);
        let named = |one| executor.flow_entry(PipeId(1), &[one]).expect("there is such an entry");
        let entry = decided.map_or(FlowEntry::FOLLOWS, named);
        let slot = flows.insert(PipeId(1), &key, entry, &[]).expect("room");
        activate_new(&flows, slot);
        let outcomes = [1, 2, 3].map(|ttl| {
            let rest = "proto=udp sport=1000 dport=53";
            let frame = craft::frame(&format!("src=10.0.0.1 dst=192.0.2.1 ttl={ttl} {rest}"));
            executor.run(PORT, &frame).expect("a test run").0
        });
        let expected = match decided {
            Some(_) => [sent(OTHER); 3],
            None => [sent(PORT), sent(OTHER), FrameOutcome::Left(Why::NewFlow)],
        };
        assert_eq!(outcomes, expected, "{learn:?}");
    }
}

#[test]
fn m28_in_the_kernel_an_error_about_a_flow_goes_to_the_engine_and_counts_in_no_flow() {
    if !may_load() {
        return;
    }
    let mut rig = FlowRig::new(vec![pipe("flows", Learn::Pin(CHOICE))], None, |_| 0);
    let (key, frame) = udp(1);
    let slot = rig.follow(&key, Some(EntryMatch::Target(0)));
    let about = craft::frame("src=192.0.2.1 dst=10.0.0.1 proto=udp sport=53 dport=1000");
    let inside: String = about[14..][..28].iter().map(|byte| format!("{byte:02x}")).collect();
    let error = craft::frame(&format!("src=10.0.0.1 dst=192.0.2.1 proto=icmp icmp_type=3 payload={inside}"));
    assert_eq!(rig.run(PORT, &error), FrameOutcome::Left(Why::IcmpError));
    assert_eq!(rig.flows.sweep(slot), FlowCounts::default());
    assert_eq!(rig.run(PORT, &frame), sent(PORT), "the kernel still follows it");
}

#[test]
fn m30_in_the_kernel_flows_from_a_prefix_follow_one_target() {
    if !may_load() {
        return;
    }
    let affinity = Affinity { ipv4: 24, ipv6: 64, timeout_ns: 0 };
    let learn = Learn::Follow(CHOICE);
    let mut rig = FlowRig::new(vec![pipe("flows", learn)], Some(affinity), |bucket| bucket as u16 % 2);
    let mut verdicts = BTreeSet::new();
    for net in 0..32 {
        let flows = [1, 2, 3].map(|host| udp((net << 8) + host));
        let outcomes = flows.map(|(key, frame)| {
            rig.follow(&key, None);
            rig.run(PORT, &frame)
        });
        assert_eq!(outcomes, [outcomes[0]; 3], "10.0.{net}.0/24");
        verdicts.insert(format!("{:?}", outcomes[0]));
    }
    assert_eq!(verdicts, [PORT, OTHER].map(|port| format!("{:?}", sent(port))).into());
}

#[test]
fn c6_in_the_kernel_a_flow_is_as_old_as_its_last_packet() {
    if !may_load() {
        return;
    }
    let mut rig = FlowRig::new(vec![pipe("flows", Learn::Pin(CHOICE))], None, |_| 0);
    let (key, frame) = udp(1);
    let slot = rig.follow(&key, Some(EntryMatch::Target(0)));
    for _ in 0..2 {
        let before = coarse_now_ns();
        assert_eq!(rig.run(PORT, &frame), sent(PORT));
        let counts = rig.flows.sweep(slot);
        assert_eq!((counts.packets, counts.bytes), (1, frame.len() as u64));
        let during = before..=rig.flows.now_ns();
        assert!(during.contains(&counts.last_ns), "{} is not in {during:?}", counts.last_ns);
        std::thread::sleep(std::time::Duration::from_nanos(2 * TICK_NS));
    }
}

#[test]
fn c9_in_the_kernel_flags_matter_only_where_timeouts_depend_on_states() {
    if !may_load() {
        return;
    }
    for (timeouts, changes) in [(Timeouts::CONNTRACK, true), (Timeouts::all(1_000_000_000), false)] {
        let pipe = pipe("flows", Learn::Pin(CHOICE)).timeouts(timeouts);
        for flags in ["S", "SA", "FA", "R", "RA"] {
            let mut rig = FlowRig::new(vec![pipe.clone()], None, |_| 0);
            let slot = rig.follow(&connection(), Some(EntryMatch::Target(0)));
            for plain in ["A", "PA"] {
                assert_eq!(rig.run(PORT, &tcp(plain)), sent(PORT));
            }
            let outcome = rig.run(PORT, &tcp(flags));
            let expected = if changes { FrameOutcome::Left(Why::TcpFlags) } else { sent(PORT) };
            assert_eq!(outcome, expected, "{flags}, {timeouts:?}");
            // The engine decides when the kernel follows the flow again.
            let outcome = rig.run(PORT, &tcp("A"));
            let expected = if changes { FrameOutcome::Left(Why::Pending) } else { sent(PORT) };
            assert_eq!((outcome, rig.flows.is_active(slot)), (expected, !changes), "{flags}");
        }
    }
}
