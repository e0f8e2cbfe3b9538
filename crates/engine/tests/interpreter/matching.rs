//! M1-M14.

use crate::setup::*;
use weir_oracle::trace::{Known, Lookup, Rss};
use weir_oracle::{Arrival, Interpreter};
use weir_packet::{DropReason, Field, FlowKey, KeySource, select_hash};
use weir_program::Verdict;
use weir_program::change::{Change, ChangeError, EntryKey};
use weir_program::snapshot::FlowDecision;
use weir_program::{
    AppId, Criterion, Entry, EntryMatch, Fill, GroupId, HashInput, Learn, Operation, Pipe, PipeId, PipeKind,
    PortId, Program, Value,
};

const TCP: &str = "src=10.0.0.1 dst=10.0.0.2 proto=tcp sport=7 dport=80";
const UDP: &str = "src=10.0.0.1 dst=10.0.0.2 proto=udp sport=7 dport=80";
const ARP: &str = "arp=request sender_ip=10.0.0.1 target_ip=10.0.0.2";

fn ipv4(last: u8) -> u128 {
    0x0a00_0000 + u128::from(last)
}

fn tcp_key() -> FlowKey {
    FlowKey::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 6, (7, 80), None)
}

fn acl(field: Field, criterion: Criterion, rows: Vec<(EntryMatch, u32)>) -> Pipe {
    let rows = rows.into_iter().map(|(wanted, priority)| Entry::on(wanted).priority(priority));
    pipe(PipeKind::Acl).matching(field, criterion).entries(rows)
}

fn hit_entry(program: &Program, bytes: &[u8]) -> Option<EntryKey> {
    match &walk(program, bytes).trace[0].lookup {
        Lookup::Hit(hit) => Some(hit.entry.clone()),
        Lookup::Miss(_) | Lookup::NoTarget => None,
    }
}

#[test]
fn m1_a_packet_without_the_layer_misses() {
    assert_eq!(meets(exact(Field::TcpDport, &[80]), &frame(TCP)), HIT);
    assert_eq!(meets(exact(Field::TcpDport, &[80]), &frame(UDP)), MISS);
    let no_bits = pipe(PipeKind::Basic).per_entry_bits(Field::TcpDport, 0).entry(0);
    assert_eq!(meets(no_bits, &frame(UDP)), MISS, "a mask without bits does not make it present");
}

#[test]
fn m1_only_any_matches_an_absent_field() {
    let any = acl(Field::TcpDport, Criterion::Range, vec![(EntryMatch::Any, 0)]);
    assert_eq!(meets(any, &frame(UDP)), HIT);
    let masked = acl(Field::TcpDport, Criterion::Masked, vec![(EntryMatch::Masked { value: 0, mask: 0 }, 0)]);
    assert_eq!(meets(masked, &frame(UDP)), MISS);
    let range =
        acl(Field::TcpDport, Criterion::Range, vec![(EntryMatch::Range { first: 0, last: 65535 }, 0)]);
    assert_eq!(meets(range.clone(), &frame(UDP)), MISS);
    assert_eq!(meets(range, &frame(TCP)), HIT);
}

#[test]
fn m2_a_constant_is_compared_under_its_mask_and_a_failed_one_misses() {
    assert_eq!(meets(only(Field::L4Dport, 80, 0xffff), &frame(TCP)), HIT);
    assert_eq!(meets(only(Field::L4Dport, 0x0050, 0x00f0 | 0x000f), &frame(TCP)), HIT);
    assert_eq!(meets(only(Field::L4Dport, 81, 0xffff), &frame(TCP)), MISS);
    let mut interpreter = start(&program(vec![flow(Learn::Default, 4).constant(Field::L4Dport, 81)]));
    assert_eq!(interpreter.walk(PortId(0), &frame(TCP), 128, 0).verdict, MISS);
    assert_eq!(interpreter.snapshot().pipes[0].flows, [], "constants come before learning");
}

#[test]
fn m3_entries_are_compared_under_the_pipes_mask_and_equal_keys_are_refused() {
    let subnet = pipe(PipeKind::Basic).per_entry_bits(Field::Ipv4Dst, 0xffff_ff00).entry(ipv4(0));
    assert_eq!(meets(subnet.clone(), &frame(TCP)), HIT);
    let mut interpreter = start(&program(vec![subnet]));
    let add = |value| Change::Add { pipe: PipeId(0), entry: Entry::on(value) };
    assert_eq!(interpreter.apply(&add(ipv4(0))), Err(ChangeError::Exists { pipe: "pipe".to_string() }));
    assert!(
        matches!(interpreter.apply(&add(ipv4(1))), Err(ChangeError::Unfit { .. })),
        "a bit outside the mask"
    );
    assert_eq!(interpreter.apply(&add(ipv4(0) + 0x100)), Ok(()));
}

#[test]
fn m4_zero_and_all_ones_are_values_like_others() {
    assert_eq!(meets(exact(Field::Ipv4Dst, &[0xffff_ffff]), &frame(TCP)), MISS);
    assert_eq!(meets(exact(Field::Ipv4Dst, &[0]), &frame(TCP)), MISS);
    let ones = frame("src=10.0.0.1 dst=255.255.255.255");
    assert_eq!(meets(exact(Field::Ipv4Dst, &[0xffff_ffff]), &ones), HIT);
    let discover = frame("src=0.0.0.0 dst=255.255.255.255");
    assert_eq!(meets(exact(Field::Ipv4Src, &[0]), &discover), HIT);
}

#[test]
fn m5_the_longest_prefix_wins_and_length_0_matches_all() {
    let prefix = |value, length| EntryMatch::Prefix { value, length };
    let rows =
        [prefix(0, 0), prefix(ipv4(0), 8), prefix(ipv4(2), 32), prefix(ipv4(0), 24), prefix(ipv4(3), 32)];
    let program = program(vec![Pipe::lpm("pipe", Field::Ipv4Dst).entries(rows).forward(PortId(1))]);
    let longest = |text: &str| hit_entry(&program, &frame(text)).map(|key| key.matches[0]);
    assert_eq!(longest(TCP), Some(prefix(ipv4(2), 32)));
    assert_eq!(longest("src=10.0.0.1 dst=10.0.0.9"), Some(prefix(ipv4(0), 24)));
    assert_eq!(longest("src=10.0.0.1 dst=10.9.0.9"), Some(prefix(ipv4(0), 8)));
    assert_eq!(longest("src=10.0.0.1 dst=11.0.0.0"), Some(prefix(0, 0)));
    assert_eq!(longest(ARP), None, "without an address there is no prefix");
}

#[test]
fn m6_the_lowest_priority_wins_and_of_equals_the_one_written_first() {
    let range = |first, last| EntryMatch::Range { first, last };
    let rows = vec![(EntryMatch::Any, 9), (range(0, 100), 5), (range(80, 80), 5), (range(70, 90), 3)];
    let program = program(vec![acl(Field::L4Dport, Criterion::Range, rows)]);
    let mut interpreter = start(&program);
    let best = |interpreter: &Interpreter| match &interpreter.explain(PortId(0), &frame(TCP), 0, 0).trace[0]
        .lookup
    {
        Lookup::Hit(hit) => hit.entry.matches[0],
        _ => unreachable!("`any` matches"),
    };
    assert_eq!(best(&interpreter), range(70, 90));
    let remove = |wanted, priority| Change::Remove {
        pipe: PipeId(0),
        key: EntryKey { matches: vec![wanted], priority },
    };
    interpreter.apply(&remove(range(70, 90), 3)).expect("it is there");
    assert_eq!(best(&interpreter), range(0, 100));
    interpreter.apply(&remove(range(0, 100), 5)).expect("it is there");
    let again = Entry::on(range(0, 100)).priority(5);
    interpreter.apply(&Change::Add { pipe: PipeId(0), entry: again }).expect("there is room");
    assert_eq!(best(&interpreter), range(80, 80), "an entry that is added again comes last");
}

#[test]
fn m7_the_upper_half_of_the_hash_picks_the_bucket_whose_target_names_the_entry() {
    let hashed = HashInput::Select(KeySource::Outer);
    let program = with_group(program(vec![hash(hashed)]), 2);
    let mut interpreter = start(&program);
    let wanted = (select_hash(7, &tcp_key().0) >> 62) as usize; // Four buckets: two bits.
    let mut slots = vec![0; 4];
    slots[wanted] = 1;
    interpreter.set_buckets(GroupId(0), slots);
    let walk = interpreter.walk(PortId(0), &frame(TCP), 128, 0);
    assert_eq!(walk.verdict, Verdict::Transmit(PortId(1)));
    assert_eq!(walk.trace[0].pick.as_ref().map(|pick| pick.bucket), Some(wanted));
    assert_eq!(hits(&interpreter, 0, 1).packets, 1);
}

#[test]
fn m7_no_live_target_or_no_entry_for_it_drops_with_no_target() {
    let program = with_group(program(vec![hash(HashInput::Select(KeySource::Outer))]), 3);
    let mut interpreter = start(&program);
    for slots in [vec![u16::MAX; 4], vec![2; 4], Vec::new()] {
        interpreter.set_buckets(GroupId(0), slots);
        let walk = interpreter.walk(PortId(0), &frame(TCP), 128, 0);
        assert_eq!(walk.verdict, dropped(DropReason::NoTarget));
    }
    assert_eq!(interpreter.snapshot().pipes[0].misses.packets, 0, "neither hit nor miss");
}

#[test]
fn m7_an_app_gets_what_its_group_has_no_target_for() {
    let mut program = with_group(program(vec![hash(HashInput::Select(KeySource::Outer))]), 3);
    program.apps.push("watcher".to_string());
    program.groups[0].no_target = Some(AppId(0));
    let mut interpreter = start(&program);
    for slots in [vec![u16::MAX; 4], vec![2; 4]] {
        interpreter.set_buckets(GroupId(0), slots);
        let walk = interpreter.walk(PortId(0), &frame(TCP), 128, 0);
        assert_eq!(walk.verdict, Verdict::App(AppId(0)));
    }
    assert_eq!(interpreter.snapshot().pipes[0].misses.packets, 0, "neither hit nor miss");
}

#[test]
fn m7_a_seed_of_the_group_is_mixed_into_the_hash() {
    let mut program = with_group(program(vec![hash(HashInput::Select(KeySource::Outer))]), 2);
    program.groups[0].seed = Some(0x1234);
    let pick = walk(&program, &frame(TCP)).trace[0].pick.clone().expect("a HASH pipe picks");
    assert_eq!(pick.hash, weir_table::seeded(select_hash(7, &tcp_key().0), 0x1234));
    // The first number of splitmix64 from state 0, as published by its authors.
    assert_eq!(weir_table::seeded(0x1234, 0x1234), 0xe220_a839_7b1d_cdaf);
    assert_eq!(pick.bucket as u64, pick.hash >> 62);
}

/// A HASH pipe over given buckets, none of them assigned yet.
fn given() -> Interpreter {
    let mut program = with_group(program(vec![hash(HashInput::Select(KeySource::Outer))]), 2);
    program.groups[0].fill = Fill::Given;
    Interpreter::new(&program, vec![vec![u16::MAX; 4]])
}

/// Moves all four buckets to a target.
fn all_to(target: u16, idle_gap_ns: u64, wait_max_ns: u64) -> Change {
    let moves = (0..4).map(|bucket| (bucket, target)).collect();
    Change::MoveBuckets { group: GroupId(0), moves, idle_gap_ns, wait_max_ns }
}

#[test]
fn m15_given_buckets_have_no_target_until_they_are_given_one() {
    let mut interpreter = given();
    assert_eq!(interpreter.walk(PortId(0), &frame(TCP), 128, 0).verdict, dropped(DropReason::NoTarget));
    interpreter.apply(&all_to(1, MS, MS)).unwrap();
    assert_eq!(interpreter.walk(PortId(0), &frame(TCP), 128, 0).verdict, Verdict::Transmit(PortId(1)));
    let refused = |change| given().apply(&change).unwrap_err();
    let weight = Change::SetWeight { group: GroupId(0), target: 0, weight: 2 };
    assert!(matches!(refused(weight), ChangeError::Filled { group, .. } if group == "group"));
    assert!(matches!(refused(all_to(2, 0, 0)), ChangeError::Unknown { .. }), "there are two targets");
}

#[test]
fn m16_a_bucket_in_use_moves_when_it_has_rested_or_waited_long_enough() {
    let mut interpreter = given();
    interpreter.apply(&all_to(0, 0, 0)).unwrap();
    let mut port = |change: Option<Change>, now_ns| {
        let before = interpreter.snapshot();
        let probed = interpreter.explain(PortId(0), &frame(TCP), 128, now_ns).verdict;
        assert_eq!(interpreter.snapshot(), before);
        let Verdict::Transmit(PortId(port)) = interpreter.walk(PortId(0), &frame(TCP), 128, now_ns).verdict
        else {
            panic!("every bucket has a target")
        };
        assert_eq!(probed, Verdict::Transmit(PortId(port)));
        change.into_iter().for_each(|change| interpreter.apply(&change).unwrap());
        let report = interpreter.snapshot().buckets.remove(0);
        (port, report.moved, report.moved_busy, report.pending)
    };
    assert_eq!(port(Some(all_to(1, 2 * MS, 5 * MS)), 0), (0, 7, 0, 1), "three buckets were never used");
    assert_eq!(port(None, 2 * MS - 1), (0, 7, 0, 1));
    assert_eq!(
        port(Some(all_to(0, 2 * MS, 5 * MS)), 4 * MS - 1),
        (1, 11, 0, 1),
        "the packet already goes there"
    );
    for now_ns in (5 * MS..9 * MS - 1).step_by(MS as usize) {
        assert_eq!(port(None, now_ns), (1, 11, 0, 1), "in use");
    }
    assert_eq!(port(None, 9 * MS - 1), (0, 12, 1, 0), "waited long enough");
    port(Some(all_to(1, 1, u64::MAX)), 10 * MS);
    assert_eq!(
        port(Some(all_to(0, 1, u64::MAX)), 10 * MS),
        (0, 18, 1, 0),
        "a later move replaces a waiting one"
    );
}

#[test]
fn m17_given_buckets_count_the_packets_that_meet_them() {
    let mut interpreter = given();
    let bytes = frame(TCP).len() as u64;
    interpreter.walk(PortId(0), &frame(TCP), 128, 0);
    interpreter.apply(&all_to(1, 0, 0)).unwrap();
    interpreter.walk(PortId(0), &frame(TCP), 128, MS);
    let report = interpreter.snapshot().buckets.remove(0);
    let bucket = (select_hash(7, &tcp_key().0) >> 62) as usize;
    assert_eq!((report.packets[bucket], report.bytes[bucket]), (2, 2 * bytes), "also without a target");
    assert_eq!(report.packets.iter().sum::<u64>(), 2);
}

#[test]
fn m18_round_robin_deals_the_packets_of_the_pipe_out_in_turn() {
    let dealing = hash(HashInput::RoundRobin).constant(Field::IpProtocol, 6);
    let mut interpreter = start(&with_group(program(vec![dealing]), 2));
    interpreter.set_buckets(GroupId(0), vec![0, 1, 1, u16::MAX]);
    let wanted = [HIT, HIT, dropped(DropReason::NoTarget), Verdict::Transmit(PortId(0))];
    for verdict in [Verdict::Transmit(PortId(0))].into_iter().chain(wanted) {
        assert_eq!(
            interpreter.explain(PortId(0), &frame(TCP), 128, 0).verdict,
            verdict,
            "a query does not take a turn"
        );
        assert_eq!(
            interpreter.walk(PortId(0), &frame(UDP), 128, 0).verdict,
            MISS,
            "nor does a failed constant"
        );
        assert_eq!(interpreter.walk(PortId(0), &frame(TCP), 128, 0).verdict, verdict);
    }
}

#[test]
fn m19_the_nics_hash_picks_the_bucket_and_without_one_the_select_hash() {
    let rewrite = act(vec![Operation::Set(Field::Ipv4Src, Value::Const(ipv4(9)))]);
    let rewriting = rewrite.forward(PipeId(1)).rehash(true);
    let mut program = with_group(program(vec![rewriting, hash(HashInput::Rss)]), 2);
    let picked = |program: &Program, hash| {
        let arrival = Arrival { input: PortId(0), bytes: &frame(TCP), headroom: 128, hash, ports: None };
        start(program)
            .walk_arrival(&arrival, 0)
            .trace
            .pop()
            .and_then(|step| step.pick)
            .expect("a HASH pipe picks")
    };
    // Four buckets: the upper two of the 32 bits.
    let pick = picked(&program, 0x8000_0001);
    assert_eq!(
        (pick.hash, pick.bucket, pick.rss),
        (0x8000_0001_8000_0001, 2, Rss::Taken(0x8000_0001)),
        "rewritten"
    );
    assert_eq!(pick.hash, weir_table::spread(0x8000_0001));
    let rewritten = FlowKey::new([10, 0, 0, 9].into(), [10, 0, 0, 2].into(), 6, (7, 80), None);
    let pick = picked(&program, 0);
    assert_eq!((pick.hash, pick.rss), (select_hash(7, &rewritten.0), Rss::Absent));
    program.groups[0].seed = Some(0x1234);
    assert_eq!(picked(&program, 0x8000_0001).hash, weir_table::seeded(0x8000_0001_8000_0001, 0x1234));
    assert_eq!(picked(&program, 0).hash, weir_table::seeded(select_hash(7, &rewritten.0), 0x1234));
}

#[test]
fn m8_hashed_fields_are_masked_and_taken_in_order() {
    let fields =
        vec![(Field::L4Dport, 0x00f0), (Field::Ipv6Dst, u128::MAX), (Field::EthDst, 0xffff_ffff_ffff)];
    let program = with_group(program(vec![hash(HashInput::Fields(fields))]), 2);
    let bytes = frame("eth.dst=02:00:00:00:00:09 src=2001:db8::1 dst=2001:db8::2 proto=udp sport=7 dport=80");
    let pick = walk(&program, &bytes).trace[0].pick.clone().expect("a HASH pipe picks");
    assert_eq!(pick.hash, select_hash(7, &[0x50, 0x2001_0db8_0000_0000, 2, 0x0200_0000_0009]));
    assert_eq!(walk(&program, &frame(UDP)).verdict, MISS, "it misses if a field is absent");
}

#[test]
fn m8_without_ip_the_select_hash_is_of_the_ethernet_header() {
    let program = with_group(program(vec![hash(HashInput::Select(KeySource::Outer))]), 2);
    let bytes = frame(&format!("eth.src=02:00:00:00:00:01 eth.dst=ff:ff:ff:ff:ff:ff {ARP}"));
    let pick = walk(&program, &bytes).trace[0].pick.clone().expect("it does not miss");
    assert_eq!(pick.hash, select_hash(7, &[0xffff_ffff_ffff, 0x0200_0000_0001, 0x0806]));
}

#[test]
fn m9_the_key_is_as_received_or_since_the_last_rehash() {
    let rewrite = |rehash| {
        act(vec![Operation::Set(Field::L4Dport, Value::Const(443))]).forward(PipeId(1)).rehash(rehash)
    };
    for (rehash, dport) in [(false, 80), (true, 443)] {
        let walk = walk(&program(vec![rewrite(rehash), flow(Learn::Default, 4)]), &frame(TCP));
        assert_eq!(walk.trace[1].flow.and_then(|flow| flow.key).map(|key| key.dport()), Some(dport));
    }
    assert_eq!(meets(flow(Learn::Default, 4), &frame(ARP)), MISS, "without IP there is no key");
}

#[test]
fn m9_the_inner_key_has_the_vni_and_is_the_outer_one_without_a_tunnel() {
    let program = program(vec![flow(Learn::Default, 4).key(KeySource::Inner)]);
    let key = |text: &str| walk(&program, &frame(text)).trace[0].flow.and_then(|flow| flow.key).expect("IP");
    let inner =
        key("src=10.0.0.1 dst=10.0.0.2 vni=5 inner(src=10.1.0.1 dst=10.1.0.2 proto=tcp sport=1 dport=2)");
    assert_eq!(inner, FlowKey::new([10, 1, 0, 1].into(), [10, 1, 0, 2].into(), 6, (1, 2), Some(5)));
    assert_eq!(key(TCP), tcp_key());
    let no_ip = key(
        "src=10.0.0.1 dst=10.0.0.2 sport=9 vni=5 inner(arp=request sender_ip=10.1.0.1 target_ip=10.1.0.2)",
    );
    assert_eq!(no_ip, FlowKey::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, (9, 4789), None));
}

#[test]
fn m9_an_id_of_0_inside_a_tunnel_differs_from_no_tunnel() {
    let program = program(vec![flow(Learn::Default, 4).key(KeySource::Inner)]);
    let key = |text: &str| walk(&program, &frame(text)).trace[0].flow.and_then(|flow| flow.key).expect("IP");
    for flow in ["src=10.1.0.1 dst=10.1.0.2", "src=2001:db8::1 dst=2001:db8::2"] {
        let outside = key(&format!("{flow} proto=tcp sport=1 dport=2"));
        let inside = key(&format!("vni=0 inner({flow} proto=tcp sport=1 dport=2)"));
        assert_eq!([outside.vni(), inside.vni()], [None, Some(0)]);
        assert_ne!(outside, inside);
        assert_eq!(inside.to_string(), format!("{outside} vni 0"));
        // A tunnel without an id is treated as one with id 0.
        assert_eq!(key(&format!("tunnel=ipip inner({flow} proto=tcp sport=1 dport=2)")), inside);
    }
}

#[test]
fn m9_an_id_of_more_than_24_bits_makes_no_inner_key() {
    let program = program(vec![flow(Learn::Default, 4).key(KeySource::Inner)]);
    let verdict = |key: u32| walk(&program, &frame(&format!("tunnel=gre key={key} inner()"))).verdict;
    assert_eq!([verdict(0xff_ffff), verdict(0x100_0000)], [HIT, MISS]);
}

#[test]
fn m9_an_icmp_error_belongs_to_the_flow_that_it_is_about() {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let sent = |text: &str, bytes: usize| hex(&frame(text)[14..][..bytes]);
    let icmp = |kind: u8, inside: &str| {
        frame(&format!("src=192.0.2.1 dst=10.1.0.1 proto=icmp icmp_type={kind} payload={inside}"))
    };
    let icmpv6 = |kind: u8, inside: &str| {
        frame(&format!("src=2001:db8:9::1 dst=2001:db8::1 proto=icmpv6 icmp_type={kind} payload={inside}"))
    };
    let program = program(vec![flow(Learn::Default, 4)]);
    let key = |frame: &[u8]| walk(&program, frame).trace[0].flow.and_then(|flow| flow.key).expect("IP");
    let tcp = sent("src=10.1.0.1 dst=10.1.0.2 proto=tcp sport=7 dport=80", 28);
    let answer = key(&frame("src=10.1.0.2 dst=10.1.0.1 proto=tcp sport=80 dport=7"));
    for kind in [3, 4, 5, 11, 12] {
        assert_eq!(key(&icmp(kind, &tcp)), answer, "type {kind}");
    }
    let udp = sent("src=2001:db8::1 dst=2001:db8::2 proto=udp sport=7 dport=53", 48);
    let answer = key(&frame("src=2001:db8::2 dst=2001:db8::1 proto=udp sport=53 dport=7"));
    for kind in 1..=4 {
        assert_eq!(key(&icmpv6(kind, &udp)), answer, "type {kind}");
    }
    // Fragments and protocols without ports.
    let fragment = sent("src=10.1.0.1 dst=10.1.0.2 frag=24 proto=udp payload=0011223344556677", 28);
    let answer = key(&frame("src=10.1.0.2 dst=10.1.0.1 frag=24 proto=udp payload=00"));
    assert_eq!(key(&icmp(11, &fragment)), answer);
    let echo = sent("src=10.1.0.1 dst=10.1.0.2 proto=icmp icmp_type=8", 28);
    assert_eq!(key(&icmp(11, &echo)), key(&frame("src=10.1.0.2 dst=10.1.0.1 proto=icmp icmp_type=0")));
    // Not an error, or too little inside.
    let own = key(&icmp(8, ""));
    let cut = &tcp[..tcp.len() - 10];
    let multicast = sent("src=2001:db8::1 dst=ff02::1 proto=udp sport=7 dport=53", 48);
    let extended = sent("src=2001:db8::1 dst=2001:db8::2 ext=dst proto=udp sport=7 dport=53", 56);
    for (kind, inside) in
        [(8, &*tcp), (3, cut), (3, ""), (3, &tcp[..20]), (3, &udp), (5, &tcp.replace("45", "44"))]
    {
        assert_eq!(key(&icmp(kind, inside)), own, "type {kind} with {inside}");
    }
    let own = key(&icmpv6(128, ""));
    for (kind, inside) in
        [(128, &*udp), (0, &udp), (5, &udp), (3, &multicast), (3, &extended), (3, &udp[..80])]
    {
        assert_eq!(key(&icmpv6(kind, inside)), own, "type {kind} with {inside}");
    }
}

#[test]
fn m10_an_unknown_flow_is_learnt_and_is_then_a_hit() {
    let mut interpreter = start(&program(vec![flow(Learn::Default, 1)]));
    let first = interpreter.walk(PortId(0), &frame(TCP), 128, 3 * MS);
    assert_eq!((first.verdict, known(&first)), (HIT, Known::Learnt(FlowDecision::Default)));
    let pipe = &interpreter.snapshot().pipes[0];
    assert_eq!((pipe.flows[0].key, pipe.flows[0].hits.packets, pipe.flows[0].first_ms), (tcp_key(), 1, 3));
    assert_eq!((pipe.entries[0].hits.packets, pipe.misses.packets), (1, 0));
}

#[test]
fn m10_a_full_table_treats_the_packet_as_it_would_have() {
    let mut interpreter = start(&program(vec![flow(Learn::Default, 1)]));
    interpreter.walk(PortId(0), &frame(TCP), 128, 0);
    let second = interpreter.walk(PortId(0), &frame(UDP), 128, 0);
    assert_eq!((second.verdict, known(&second)), (HIT, Known::Full(FlowDecision::Default)));
    let pipe = &interpreter.snapshot().pipes[0];
    assert_eq!((pipe.account.unflowed.full, pipe.flows.len(), pipe.entries[0].hits.packets), (1, 1, 2));
    let own = Change::Add { pipe: PipeId(0), entry: Entry::on(EntryMatch::Flow(FlowKey::default())) };
    assert!(matches!(interpreter.apply(&own), Err(ChangeError::Full { .. })), "own entries count too");
}

#[test]
fn m10_an_entry_of_a_live_flow_takes_it_over() {
    let mut interpreter = start(&program(vec![flow(Learn::Default, 1)]));
    interpreter.walk(PortId(0), &frame(TCP), 128, 0);
    let own = || Entry::on(EntryMatch::Flow(tcp_key()));
    assert_eq!(
        interpreter.apply(&Change::Add { pipe: PipeId(0), entry: own() }),
        Ok(()),
        "no additional row is needed"
    );
    let walk = interpreter.walk(PortId(0), &frame(TCP), 128, 0);
    assert_eq!(known(&walk), Known::Found(FlowDecision::Own));
    let pipe = &interpreter.snapshot().pipes[0];
    assert_eq!(
        (pipe.flows[0].hits.packets, pipe.entries[1].hits.packets),
        (2, 1),
        "the flow keeps its \
        counts"
    );
    interpreter.apply(&Change::Remove { pipe: PipeId(0), key: EntryKey::of(&own()) }).expect("it is there");
    assert_eq!(interpreter.snapshot().pipes[0].flows, [], "removing the entry removes its flow");
}

#[test]
fn m11_pin_decides_once_and_follow_for_each_packet() {
    for (learn, after) in [(Learn::Pin(GroupId(0).into()), 0), (Learn::Follow(GroupId(0).into()), 1)] {
        let mut interpreter = start(&with_group(program(vec![flow(learn, 4)]), 2));
        let verdict =
            |interpreter: &mut BesideKernel| interpreter.walk(PortId(0), &frame(TCP), 128, 0).verdict;
        assert_eq!(verdict(&mut interpreter), Verdict::Transmit(PortId(0)));
        interpreter.set_buckets(GroupId(0), vec![1; 4]);
        assert_eq!(verdict(&mut interpreter), Verdict::Transmit(PortId(after)));
    }
}

#[test]
fn m11_without_a_live_target_nothing_is_learnt_or_counted() {
    for learn in [Learn::Pin(GroupId(0).into()), Learn::Follow(GroupId(0).into())] {
        let mut interpreter = start(&with_group(program(vec![flow(learn, 4)]), 2));
        interpreter.set_buckets(GroupId(0), vec![u16::MAX; 4]);
        let walk = interpreter.walk(PortId(0), &frame(TCP), 128, 0);
        assert_eq!(walk.verdict, dropped(DropReason::NoTarget));
        assert_eq!(interpreter.snapshot().pipes[0].flows, []);
        interpreter.set_buckets(GroupId(0), vec![0; 4]);
        interpreter.walk(PortId(0), &frame(TCP), 128, 0);
        interpreter.set_buckets(GroupId(0), vec![u16::MAX; 4]);
        let walk = interpreter.walk(PortId(0), &frame(TCP), 128, 0);
        let live = matches!(learn, Learn::Pin(_));
        assert_eq!(
            walk.verdict == Verdict::Transmit(PortId(0)),
            live,
            "a pinned flow stays, a following one drops"
        );
        assert_eq!(interpreter.snapshot().pipes[0].flows[0].hits.packets, 1 + u64::from(live));
    }
}

#[test]
fn m11_with_a_row_go_the_flows_it_was_decided_for() {
    let mut interpreter = start(&with_group(program(vec![flow(Learn::Pin(GroupId(0).into()), 4)]), 2));
    interpreter.walk(PortId(0), &frame(TCP), 128, 0);
    interpreter.set_buckets(GroupId(0), vec![1; 4]);
    interpreter.walk(PortId(0), &frame(UDP), 128, 0);
    let key = EntryKey { matches: vec![EntryMatch::Target(0)], priority: 0 };
    interpreter.apply(&Change::Remove { pipe: PipeId(0), key }).expect("it is there");
    let flows = &interpreter.snapshot().pipes[0].flows;
    assert_eq!(flows.iter().map(|flow| flow.decision).collect::<Vec<_>>(), [FlowDecision::Pinned(1)]);
    assert_eq!(interpreter.walk(PortId(0), &frame(TCP), 128, 0).verdict, Verdict::Transmit(PortId(1)));
}

#[test]
fn m12_an_entry_learnt_by_one_frame_is_seen_by_the_next() {
    let mut interpreter = start(&program(vec![flow(Learn::Default, 4)]));
    let learnt: Vec<Known> =
        (0..3).map(|_| known(&interpreter.walk(PortId(0), &frame(TCP), 128, 0))).collect();
    let found = Known::Found(FlowDecision::Default);
    assert_eq!(learnt, [Known::Learnt(FlowDecision::Default), found, found]);
}

#[test]
fn m13_facts_are_0_without_ip_and_the_inner_ones_need_a_tunnel() {
    for (field, value) in [(Field::IpVersion, 0), (Field::IpProtocol, 0), (Field::IpFragment, 0)] {
        assert_eq!(meets(only(field, value, field.max()), &frame(ARP)), HIT, "{field}");
    }
    assert_eq!(meets(only(Field::IpVersion, 4, 15), &frame(TCP)), HIT);
    assert_eq!(meets(only(Field::InputPort, 0, 0xffff), &frame(TCP)), HIT);
    assert_eq!(meets(only(Field::IpVersion.inner(), 0, 15), &frame(TCP)), MISS);
    let tunnel = frame("src=10.0.0.1 dst=10.0.0.2 vni=5 inner(src=2001:db8::1 dst=2001:db8::2 proto=tcp)");
    assert_eq!(meets(only(Field::IpVersion.inner(), 6, 15), &tunnel), HIT);
    assert_eq!(meets(only(Field::IpProtocol.inner(), 6, 255), &tunnel), HIT);
    assert_eq!(meets(only(Field::EthType.inner(), 0x86dd, 0xffff), &tunnel), HIT);
    let without_ethernet = frame("tunnel=ipip inner(src=2001:db8::1 dst=2001:db8::2 proto=tcp)");
    assert_eq!(meets(only(Field::IpVersion.inner(), 6, 15), &without_ethernet), HIT);
    assert_eq!(meets(only(Field::EthType.inner(), 0x86dd, 0xffff), &without_ethernet), MISS);
}

#[test]
fn m13_the_id_of_a_tunnel_is_that_of_its_kind() {
    let ids = [Field::TunnelId, Field::VxlanVni, Field::GeneveVni, Field::GreKey];
    for (text, expected) in [
        ("vni=5 inner()", [HIT, HIT, MISS, MISS]),
        ("tunnel=geneve vni=5 inner()", [HIT, MISS, HIT, MISS]),
        ("tunnel=gre key=5 inner()", [HIT, MISS, MISS, HIT]),
        ("tunnel=gre inner()", [MISS, MISS, MISS, MISS]),
        ("proto=tcp", [MISS, MISS, MISS, MISS]),
    ] {
        assert_eq!(ids.map(|id| meets(only(id, 5, id.max()), &frame(text))), expected, "{text}");
    }
    for text in ["tunnel=gre inner()", "tunnel=ipip inner()", "tunnel=gue inner()"] {
        assert_eq!(meets(only(Field::TunnelId, 0, 0xffff_ffff), &frame(text)), HIT, "{text}");
    }
    // A VNI that was written is the id from then on.
    let set = act(vec![Operation::Set(Field::VxlanVni, Value::Const(9))]).forward(PipeId(1));
    let walk = walk(&program(vec![set, only(Field::TunnelId, 9, 0xffff_ffff)]), &frame("vni=5 inner()"));
    assert_eq!(walk.verdict, HIT);
}

#[test]
fn m14_after_an_action_pipes_match_the_new_bytes() {
    let set = act(vec![Operation::Set(Field::L4Dport, Value::Const(443))]).forward(PipeId(1));
    assert_eq!(walk(&program(vec![set, only(Field::L4Dport, 443, 0xffff)]), &frame(TCP)).verdict, HIT);
}

#[test]
fn explain_names_the_nearest_entry_and_what_differs() {
    let rows =
        [(ipv4(9), 443), (ipv4(2), 443), (ipv4(2), 81)].map(|(address, port)| Entry::on(address).and(port));
    let near = pipe(PipeKind::Basic).per_entry(Field::Ipv4Dst).per_entry(Field::L4Dport).entries(rows);
    let walk = walk(&program(vec![near]), &frame(TCP));
    let Lookup::Miss(miss) = &walk.trace[0].lookup else { panic!("it misses") };
    let nearest = miss.nearest.as_ref().expect("there are entries");
    assert_eq!(nearest.entry.matches[1], EntryMatch::Value(81), "one field, one bit");
    let listed: Vec<_> =
        nearest.differences.iter().map(|one| (one.name.as_str(), one.wanted.as_str())).collect();
    assert_eq!(listed, [("l4.dport", "81")]);
    assert_eq!(nearest.differences[0].actual.as_deref(), Some("80"));
}
