//! W1-W7.

use crate::setup::*;
use weir_oracle::FlowSource;
use weir_oracle::trace::{FieldValue, Known, Lookup};
use weir_packet::{DropReason, Field, FlowKey, KeySource, TunnelKind, select_hash};
use weir_program::Verdict;
use weir_program::change::{Change, ChangeError};
use weir_program::check::{FindingKind, check};
use weir_program::nat::Binding;
use weir_program::snapshot::{Count, FlowDecision, FlowSnapshot, KeptOperations};
use weir_program::{
    AppId, Entry, Forward, GroupId, HashInput, Learn, Operation, Pipe, PipeId, PortId, Program, Value,
};

const TCP: &str = "src=10.0.0.1 dst=10.0.0.2 proto=tcp sport=7 dport=80";
const ARP: &str = "arp=request sender_ip=10.0.0.1 target_ip=10.0.0.2";

fn says(forward: Forward) -> Pipe {
    all().forward(forward)
}

#[test]
fn w1_pipes_lead_onward_only() {
    let program = program(vec![all().forward(PipeId(1)), all().forward(PipeId(0))]);
    assert!(check(&program).iter().any(|one| matches!(one.kind, FindingKind::Loop { .. })));
}

#[test]
fn w1_an_entry_that_leads_back_is_refused_at_run_time() {
    let per_entry = exact(Field::L4Dport, &[]).forward(Forward::PerEntry);
    let first = exact(Field::L4Dport, &[]).miss(PipeId(1));
    let mut interpreter = start(&program(vec![first, per_entry, all()]));
    let mut add =
        |forward| interpreter.apply(&Change::Add { pipe: PipeId(1), entry: Entry::on(80).to(forward) });
    assert!(matches!(add(Forward::Pipe(PipeId(0))), Err(ChangeError::Unfit { .. })));
    assert!(matches!(add(Forward::Pipe(PipeId(1))), Err(ChangeError::Unfit { .. })));
    assert_eq!(add(Forward::Pipe(PipeId(2))), Ok(()));
}

#[test]
fn w2_a_group_is_picked_from_by_the_select_hash_of_the_outer_key() {
    let mut interpreter = start(&with_group(program(vec![says(Forward::Group(GroupId(0)))]), 2));
    let key = FlowKey::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 6, (7, 80), None);
    let mut slots = vec![0; 4];
    slots[(select_hash(7, &key.0) >> 62) as usize] = 1;
    interpreter.set_buckets(GroupId(0), slots);
    assert_eq!(interpreter.walk(PortId(0), &frame(TCP), 128, 0).verdict, Verdict::Transmit(PortId(1)));
    interpreter.set_buckets(GroupId(0), vec![u16::MAX; 4]);
    assert_eq!(interpreter.walk(PortId(0), &frame(TCP), 128, 0).verdict, dropped(DropReason::NoTarget));
    interpreter.set_buckets(GroupId(0), vec![1; 4]);
    assert_eq!(
        interpreter.walk(PortId(0), &frame(ARP), 128, 0).verdict,
        HIT,
        "a frame without IP is hashed by its Ethernet header"
    );
}

#[test]
fn w3_in_port_sends_back() {
    assert_eq!(meets(says(Forward::InputPort), &frame(TCP)), Verdict::Transmit(PortId(0)));
    assert_eq!(meets(says(Forward::App(AppId(0))), &frame(TCP)), Verdict::App(AppId(0)));
    assert_eq!(meets(says(Forward::Kernel), &frame(TCP)), Verdict::Kernel(PortId(0)));
}

#[test]
fn w4_kernel_needs_a_kernel_path_at_every_port_that_leads_there() {
    let mut program = program(vec![says(Forward::Kernel)]);
    let refused = |program: &Program| {
        check(program).iter().any(|one| matches!(one.kind, FindingKind::KernelUnavailable { .. }))
    };
    assert!(!refused(&program));
    program.ports[0].kernel_path = false;
    assert!(refused(&program));
}

#[test]
fn w5_a_drop_is_a_miss_or_policy() {
    assert_eq!(meets(says(Forward::Drop), &frame(TCP)), dropped(DropReason::Policy));
    assert_eq!(meets(exact(Field::L4Dport, &[81]), &frame(TCP)), MISS);
    let mut through_group = with_group(program(vec![exact(Field::L4Dport, &[81]).miss(GroupId(0))]), 1);
    through_group.groups[0].target_mut(0).forward = Forward::Drop;
    assert_eq!(walk(&through_group, &frame(TCP)).verdict, MISS, "through a group too");
}

#[test]
fn w5_a_port_without_a_root_drops_whatever_comes() {
    let interpreter = start(&program(vec![only(Field::L4Dport, 80, 0xffff)]));
    for bytes in [frame(TCP), vec![0; 3]] {
        let walk = interpreter.explain(PortId(1), &bytes, 128, 0);
        assert_eq!(walk.verdict, dropped(DropReason::Policy), "not parsed, so not malformed");
    }
}

fn rewritten(rehash: bool) -> BesideKernel {
    let rewrite =
        act(vec![Operation::Set(Field::L4Dport, Value::Const(443))]).forward(PipeId(1)).rehash(rehash);
    start(&with_group(program(vec![rewrite, hash(HashInput::Select(KeySource::Outer))]), 2))
}

#[test]
fn w7_rehash_takes_the_bytes_after_the_actions() {
    for (rehash, dport) in [(false, 80), (true, 443)] {
        let walk = rewritten(rehash).explain(PortId(0), &frame(TCP), 128, 0);
        let key = FlowKey::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 6, (7, dport), None);
        let pick = walk.trace[1].pick.clone().expect("a HASH pipe picks");
        assert_eq!(pick.hash, select_hash(7, &key.0));
    }
}

#[test]
fn w7_rehash_finds_headers_that_an_action_moved() {
    let decap = |rehash| act(vec![Operation::Decap(TunnelKind::Vxlan)]).rehash(rehash);
    let tunnel = "src=10.0.0.1 dst=10.0.0.2 vni=5";
    let good = frame(&format!("{tunnel} inner({TCP})"));
    let pipes = vec![decap(true).forward(PipeId(1)).rehash(true), flow(Learn::Default, 4)];
    let key = walk(&program(pipes), &good).trace[1].flow.and_then(|flow| flow.key).expect("IP");
    assert_eq!(key, FlowKey::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 6, (7, 80), None));
    let bad = frame(&format!("{tunnel} inner(src=10.1.0.1 dst=10.1.0.2 proto=udp dport=4789 payload=00)"));
    assert_eq!(meets(decap(true), &bad), dropped(DropReason::MalformedVxlan));
    assert_eq!(meets(decap(false), &bad), HIT);
}

#[test]
fn w7_a_miss_does_not_rehash() {
    let missing = exact(Field::L4Dport, &[81]).rehash(true).miss(PipeId(1));
    let walk = walk(&program(vec![missing, all()]), &frame(TCP));
    assert_eq!((walk.verdict, walk.trace[0].rehash), (HIT, None));
}

#[test]
fn w8_a_copy_for_an_app_leaves_the_packet_as_it_is_then() {
    let tee = Forward::Tee { app: AppId(0), next: PipeId(1) };
    let ttl = |value| act(vec![Operation::Set(Field::Ipv4Ttl, Value::Const(value))]);
    let walk = walk(&program(vec![ttl(9).forward(tee), ttl(8)]), &frame(TCP));
    let [copy] = &walk.copies[..] else { panic!("one copy: {:?}", walk.copies) };
    assert_eq!((walk.verdict, walk.bytes[22]), (HIT, 8));
    assert_eq!((copy.to, copy.bytes[22]), (Verdict::App(AppId(0)), 9));
    let back = program(vec![all().miss(Forward::Tee { app: AppId(0), next: PipeId(0) })]);
    assert!(check(&back).iter().any(|one| matches!(one.kind, FindingKind::Loop { .. })));
}

#[test]
fn w9_a_flood_goes_to_the_ports_of_targets_with_a_bucket() {
    let mut program = with_group(program(vec![says(Forward::Flood(GroupId(0)))]), 4);
    program.ports.extend([program.ports[0].clone(), program.ports[0].clone()]);
    program.groups[0].target_mut(2).forward = Forward::Drop;
    let mut interpreter = start(&program);
    let mut flood = |slots: Vec<u16>| {
        interpreter.set_buckets(GroupId(0), slots);
        let walk = interpreter.walk(PortId(0), &frame(TCP), 128, 0);
        assert!(walk.copies.iter().all(|copy| copy.bytes == walk.bytes));
        (walk.copies.into_iter().map(|copy| copy.to).collect::<Vec<_>>(), walk.verdict)
    };
    let port = |at| Verdict::Transmit(PortId(at));
    assert_eq!(flood(vec![3, 0, 1, 1]), (vec![port(0), port(1)], port(3)));
    assert_eq!(flood(vec![1; 4]), (vec![], port(1)));
    assert_eq!(flood(vec![2; 4]), (vec![], dropped(DropReason::NoTarget)), "it leads to no port");
    assert_eq!(flood(vec![u16::MAX; 4]), (vec![], dropped(DropReason::NoTarget)));
}

/// A worker that knows one flow.
struct Worker(FlowSnapshot);

impl FlowSource for Worker {
    fn next_binding(&self, _pipe: PipeId, _key: &FlowKey, _freed: Option<Binding>) -> Option<Binding> {
        None
    }

    fn flow(&self, _pipe: PipeId, key: &FlowKey) -> Option<FlowSnapshot> {
        (*key == self.0.key).then_some(self.0)
    }

    fn kept(&self, _pipe: PipeId, _key: &FlowKey) -> Option<KeptOperations> {
        None
    }
}

#[test]
fn explaining_changes_nothing_and_may_ask_another_for_flows() {
    let mut interpreter = start(&with_group(program(vec![flow(Learn::Pin(GroupId(0).into()), 4)]), 2));
    let before = interpreter.snapshot();
    let learnt = interpreter.explain(PortId(0), &frame(TCP), 128, 0);
    assert_eq!(known(&learnt), Known::Learnt(FlowDecision::Pinned(0)));
    let key = FlowKey::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 6, (7, 80), None);
    let decision = FlowDecision::Pinned(1);
    let live = FlowSnapshot {
        given: Count::default(),
        key,
        decision,
        hits: Count::default(),
        first_ms: 0,
        last_ms: 0,
        state: None,
        binding: None,
        pair: None,
        in_kernel: false,
    };
    let walk = interpreter.explain_with(PortId(0), &frame(TCP), 128, 0, &Worker(live));
    assert_eq!((walk.verdict, known(&walk)), (Verdict::Transmit(PortId(1)), Known::Found(decision)));
    assert_eq!(interpreter.snapshot(), before);
}

#[test]
fn values_are_shown_as_people_write_them() {
    let shown = |field, value| FieldValue { field, value }.to_string();
    assert_eq!(shown(Field::EthDst, 0x0200_0000_00ab), "02:00:00:00:00:ab");
    assert_eq!(shown(Field::Ipv4Dst.inner(), 0x0a00_0001), "10.0.0.1");
    assert_eq!(shown(Field::Ipv6Src, 0x2001_0db8 << 96 | 1), "2001:db8::1");
    assert_eq!(shown(Field::EthType, 0x0800), "0x800");
    assert_eq!(shown(Field::L4Dport, 443), "443");
    assert_eq!(shown(Field::MeterColor, 2), "red");
    let walk = walk(&program(vec![exact(Field::TcpDport, &[80])]), &frame(ARP));
    let Lookup::Miss(miss) = &walk.trace[0].lookup else { panic!("it misses") };
    assert_eq!(miss.nearest.as_ref().map(|nearest| nearest.differences[0].actual.clone()), Some(None));
}
