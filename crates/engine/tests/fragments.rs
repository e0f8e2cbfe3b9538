//! Fragments that follow the first one of their datagram: pipes.md F11 to F14, changes.md O6. Whole datagrams
//! are cut anywhere, arrive in any order at any worker, and must go where the whole datagram goes.

mod support;

use std::collections::BTreeMap;
use support::{SECRET, start};
use weir_engine::batch::Engine;
use weir_engine::fragments::WAITING_MAX;
use weir_engine::worker::{HandOver, Worker};
use weir_oracle as interpreter;
use weir_oracle::arbitrary::Choices;
use weir_oracle::{Arrival, Datagrams, Interpreter};
use weir_packet::craft::frame;
use weir_packet::{DropReason, Field, HEADROOM, KeySource, Ledger, Pools, Port, Sum, TunnelKind, checksum};
use weir_port::{MemPort, MemWire};
use weir_program::Verdict;
use weir_program::fragments::{KNOWN_NS, WAIT_NS};
use weir_program::{
    Entry, EntryMatch, Fill, Forward, Group, GroupId, HashInput, Learn, Operation, Pipe, PipeId, PortId,
    Program, Target, Value,
};

const ETHERNET: usize = 14;
const PORTS: [&str; 4] = ["a", "b", "c", "d"];

/// The length of a frame's IP header, and whether it is IPv4.
fn ip_header(whole: &[u8]) -> (usize, bool) {
    if whole[12] == 0x08 { (20, true) } else { (40, false) }
}

/// Cuts the datagram in a frame after these numbers of payload bytes, multiples of 8, as a router or a sender
/// does (RFC 791 §3.2, RFC 8200 §4.5).
fn cut(whole: &[u8], id: u32, cuts: &[usize]) -> Vec<Vec<u8>> {
    let (header, is_ipv4) = ip_header(whole);
    let payload = &whole[ETHERNET + header..];
    let ends: Vec<usize> = cuts.iter().copied().chain([payload.len()]).collect();
    let starts = [0].into_iter().chain(cuts.iter().copied());
    let piece = |(start, end): (usize, usize)| {
        let (more, length) = (u16::from(end < payload.len()), (end - start) as u16);
        let mut bytes = whole[..ETHERNET + header].to_vec();
        if is_ipv4 {
            bytes[16..18].copy_from_slice(&(length + 20).to_be_bytes());
            bytes[18..20].copy_from_slice(&(id as u16).to_be_bytes());
            bytes[20..22].copy_from_slice(&(more << 13 | (start / 8) as u16).to_be_bytes());
            bytes[24..26].fill(0);
            let sum = checksum(Sum::default().bytes(&bytes[14..34]));
            bytes[24..26].copy_from_slice(&sum.to_be_bytes());
        } else {
            bytes[18..20].copy_from_slice(&(length + 8).to_be_bytes());
            let next = std::mem::replace(&mut bytes[20], 44);
            bytes.extend([next, 0]);
            bytes.extend((start as u16 | more).to_be_bytes());
            bytes.extend(id.to_be_bytes());
        }
        bytes.extend(&payload[start..end]);
        bytes
    };
    starts.zip(ends).map(piece).collect()
}

/// The offset in its datagram of a fragment made by [`cut`], and its payload.
fn part(fragment: &[u8]) -> (usize, &[u8]) {
    let (header, is_ipv4) = ip_header(fragment);
    let number = |at: usize| usize::from(u16::from_be_bytes([fragment[at], fragment[at + 1]]));
    match is_ipv4 {
        true => ((number(20) & 0x1fff) * 8, &fragment[ETHERNET + header..]),
        false => (number(56) & 0xfff8, &fragment[ETHERNET + header + 8..]),
    }
}

/// Reassembles fragments: returns the payload of the datagram, and its addresses.
fn together(mut fragments: Vec<Vec<u8>>) -> (Vec<u8>, Vec<u8>) {
    fragments.sort_by_key(|one| part(one).0);
    let payload = fragments.iter().flat_map(|one| part(one).1).copied().collect();
    (payload, addresses(&fragments[0]))
}

fn addresses(frame: &[u8]) -> Vec<u8> {
    if ip_header(frame).1 { frame[26..34].to_vec() } else { frame[22..54].to_vec() }
}

/// A datagram with a payload of `length` bytes, as a frame.
fn datagram(random: &mut Choices, sport: u16, length: usize) -> Vec<u8> {
    let [src, dst] = if random.percent(50) {
        [format!("10.0.0.{}", random.between(1, 9)), "192.0.2.1".to_string()]
    } else {
        [format!("2001:db8::{}", random.between(1, 9)), "2001:db8:1::1".to_string()]
    };
    let protocol = random.pick(&["udp", "tcp"]);
    let payload: String = (0..length).map(|_| format!("{:02x}", random.below(256))).collect();
    frame(&format!("src={src} dst={dst} proto={protocol} sport={sport} dport=53 payload={payload}"))
}

/// Some cuts of a datagram, none inside a TCP header, which would be malformed.
fn cuts(random: &mut Choices, whole: &[u8]) -> Vec<usize> {
    let length = whole.len() - ETHERNET - ip_header(whole).0;
    let mut cuts: Vec<usize> =
        (0..random.between(1, 6)).map(|_| random.between(3, length / 8 - 1) * 8).collect();
    cuts.sort_unstable();
    cuts.dedup();
    cuts
}

fn shuffle<T>(random: &mut Choices, all: &mut [T]) {
    (1..all.len()).for_each(|at| all.swap(at, random.below(at + 1)));
}

/// A program that follows fragments, from the first port to all four by a group.
fn spread(pipe: Pipe, before: Option<Pipe>) -> Program {
    let rows = (0..4).map(|at| Entry::on(EntryMatch::Target(at)).to(PortId(at)));
    let pipe = pipe.entries(rows).forward(Forward::PerEntry).capacity(4096);
    let mut program = start(&PORTS, before.into_iter().chain([pipe]));
    let target = |at: u16| Target::new(PORTS[usize::from(at)], PortId(at));
    program.group(Group::new("g", Fill::Maglev, 1009).targets((0..4).map(target)));
    program.follow_fragments();
    program.build()
}

fn by_hash() -> Program {
    spread(Pipe::hash("h", HashInput::Select(KeySource::Outer), GroupId(0)), None)
}

fn by_flow() -> Program {
    // Only packets with this port get there.
    let port = Pipe::basic("dns").constant(Field::L4Dport, 53).entry(Entry::default()).forward(PipeId(1));
    spread(Pipe::flow("f", Learn::Pin(GroupId(0).into())), Some(port))
}

/// Workers with the first port's far ends, and those of all ports.
struct FragmentWorkers {
    workers: Vec<(Worker, Vec<MemWire>)>,
    now_ns: u64,
}

impl FragmentWorkers {
    fn new(program: &Program, count: usize) -> FragmentWorkers {
        let one = |rings: HandOver| {
            let mut pools = Pools::region(512);
            let id = pools.first().id();
            let port = |name: &str| -> (Box<dyn Port>, MemWire) {
                let (port, wire) = MemPort::new(name, id);
                (Box::new(port), wire)
            };
            let (ports, wires) = program.ports.iter().map(|one| port(&one.name)).unzip();
            let engine = Engine::new(program, SECRET).expect("a program that compiles");
            (Worker::new(engine, ports, pools).with_hand_over(rings), wires)
        };
        FragmentWorkers {
            workers: HandOver::of_capacity(count, 64).into_iter().map(one).collect(),
            now_ns: 1,
        }
    }

    /// Lets a frame arrive at a worker's first port, and all workers breathe until nothing is left to do.
    fn arrive(&mut self, worker: usize, frame: &[u8]) {
        self.workers[worker].1[0].push(frame);
        self.breathe();
    }

    fn breathe(&mut self) {
        let now_ns = self.now_ns;
        let one = |(worker, _): &mut (Worker, _)| worker.breathe(now_ns) + usize::from(worker.is_waiting());
        while self.workers.iter_mut().map(one).sum::<usize>() > 0 {}
    }

    /// Frames that have left, by port.
    fn left(&self) -> Vec<(usize, Vec<u8>)> {
        let mut all = Vec::new();
        for (_, wires) in &self.workers {
            for (at, wire) in wires.iter().enumerate() {
                all.extend(std::iter::from_fn(|| wire.pop()).map(|frame| (at, frame)));
            }
        }
        all
    }

    fn ledger(&self) -> Ledger {
        let mut sum = Ledger::default();
        self.workers.iter().for_each(|(worker, _)| sum.add(&worker.report().ledger));
        assert!(sum.balances(), "{sum:?}");
        sum
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.ledger().dropped[reason as usize]
    }
}

/// Random datagrams: whole ones, and the list of fragments of each.
fn random_datagrams(random: &mut Choices, count: u16) -> Vec<(Vec<u8>, Vec<Vec<u8>>)> {
    let one = |number: u16| {
        let length = random.between(60, 1700);
        let whole = datagram(random, 1024 + number, length);
        let cuts = cuts(random, &whole);
        let fragments = cut(&whole, u32::from(number) + 7, &cuts);
        (whole, fragments)
    };
    (0..count).map(one).collect()
}

#[test]
fn f13_fragments_in_any_order_go_where_the_whole_datagram_goes() {
    for (seed, program) in (0..20).flat_map(|seed| [(seed, by_hash()), (seed, by_flow())]) {
        let mut random = Choices::from_seed(seed);
        let mut crew = FragmentWorkers::new(&program, 1);
        let datagrams = random_datagrams(&mut random, 30);
        let mut wanted = BTreeMap::new();
        for (whole, _) in &datagrams {
            crew.arrive(0, whole);
            let left = crew.left();
            assert_eq!(left.len(), 1, "{:?}", crew.ledger());
            wanted.insert(whole.clone(), left[0].0);
        }
        let mut all: Vec<(usize, Vec<u8>)> = datagrams
            .iter()
            .enumerate()
            .flat_map(|(at, (_, fragments))| fragments.iter().map(move |one| (at, one.clone())))
            .collect();
        shuffle(&mut random, &mut all);
        // Some arrive in one batch, some alone.
        for some in all.chunks(random.pick(&[1, 5, 200])) {
            some.iter().for_each(|(_, fragment)| crew.workers[0].1[0].push(fragment));
            crew.now_ns += 1_000_000;
            crew.breathe();
        }
        let mut of_datagram: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
        for (at, fragment) in &all {
            of_datagram.insert(fragment.clone(), *at);
        }
        let left = crew.left();
        assert_eq!(left.len(), all.len(), "{:?}", crew.ledger());
        for (port, fragment) in left {
            let (whole, _) = &datagrams[of_datagram[&fragment]];
            assert_eq!(port, wanted[whole], "{}", weir_packet::craft::describe(&fragment));
        }
        assert_eq!((crew.ledger().held, crew.ledger().dropped_sum()), (0, 0));
    }
}

/// The interpreter and its own table of datagrams, against a worker.
#[test]
fn both_forms_of_following_do_the_same() {
    let mut met = [0; 3];
    for seed in 0..60 {
        let mut random = Choices::from_seed(seed);
        let program = if seed % 2 == 0 { by_hash() } else { by_flow() };
        let mut crew = FragmentWorkers::new(&program, 1);
        let mut interpreter =
            Interpreter::new(&program, Engine::new(&program, SECRET).expect("compiles").buckets());
        let mut datagrams = Datagrams::default();
        let mut frames: Vec<Vec<u8>> = Vec::new();
        for (whole, fragments) in random_datagrams(&mut random, 12) {
            frames.extend(random.percent(30).then_some(whole));
            frames.extend(fragments.into_iter().filter(|_| random.percent(80)));
        }
        shuffle(&mut random, &mut frames);
        // Identifications are reused, with other ports.
        frames.extend(frames.clone().into_iter().take(4));
        for frame in frames {
            crew.now_ns += random.pick(&[0, 1_000_000, WAIT_NS / 4, WAIT_NS, KNOWN_NS, KNOWN_NS + 1]);
            crew.breathe();
            let expired = datagrams.expire(crew.now_ns) as u64;
            met[0] += expired;
            let mut wanted = Vec::new();
            for (bytes, ports) in datagrams.receive(&frame, crew.now_ns) {
                let headroom = usize::from(HEADROOM);
                let arrival = Arrival { input: PortId(0), bytes: &bytes, headroom, hash: 0, ports };
                let walk: interpreter::Walk = interpreter.walk_arrival(&arrival, crew.now_ns);
                if let Verdict::Transmit(port) = walk.verdict {
                    wanted.push((port.index(), walk.bytes));
                }
            }
            crew.arrive(0, &frame);
            let mut left = crew.left();
            met[1] += left.len().saturating_sub(1) as u64;
            left.sort();
            wanted.sort();
            assert_eq!(left, wanted, "seed {seed}");
            assert_eq!(crew.ledger().held, datagrams.held() as u64, "seed {seed}");
        }
        met[2] += crew.dropped(DropReason::FirstFragmentMissing);
    }
    assert!(met.iter().all(|count| *count > 20), "expired, released, dropped: {met:?}");
    assert_eq!(met[0], met[2]);
}

#[test]
fn f11_fragments_have_the_ports_of_their_datagram() {
    let whole = frame(&format!(
        "src=10.0.0.1 dst=10.0.0.2 proto=tcp sport=7 dport=53 flags=S payload={}",
        "5a".repeat(100)
    ));
    // One pipe for each field, which leads out of its port on a hit.
    let field = |at: u16, field: Field, value: u128| {
        let pipe = Pipe::basic(format!("p{at}")).constant(field, value).entry(Entry::default());
        pipe.forward(PortId(at)).miss(PipeId(at + 1))
    };
    let pipes = [
        field(0, Field::TcpDport, 53),
        field(1, Field::TcpFlags, 2),
        field(2, Field::L4Dport, 54),
        field(3, Field::L4Sport, 7).miss(Forward::Drop),
    ];
    let mut program = start(&PORTS, pipes);
    program.follow_fragments();
    let mut crew = FragmentWorkers::new(&program.build(), 1);
    let fragments = cut(&whole, 9, &[24, 80]);
    for at in [0, 2, 1] {
        crew.arrive(0, &fragments[at]);
        assert_eq!(crew.left(), [(3, fragments[at].clone())], "nothing of L4 but the ports");
    }
    // Other protocols are unchanged, and nothing waits for them.
    let sctp = frame("src=10.0.0.1 dst=10.0.0.2 proto=132 frag=24 payload=00070035");
    crew.arrive(0, &sctp);
    assert_eq!((crew.dropped(DropReason::Miss), crew.ledger().held), (1, 0));
    // Without `follow`, and where nothing reads L4, fragments are forwarded as they arrive.
    let pipe = Pipe::basic("p").constant(Field::IpProtocol, 6).entry(Entry::default()).forward(PortId(1));
    let mut program = start(&PORTS, [pipe]);
    program.follow_fragments();
    let mut crew = FragmentWorkers::new(&program.build(), 1);
    crew.arrive(0, &fragments[2]);
    assert_eq!(crew.left(), [(1, fragments[2].clone())]);
}

#[test]
fn f11_ports_are_written_in_all_fragments_alike() {
    let set = |field, value| Operation::Set(field, Value::Const(value));
    for seed in 0..40 {
        let mut random = Choices::from_seed(seed);
        let length = random.between(60, 1500);
        let whole = datagram(&mut random, 4000, length);
        let (_, is_ipv4) = ip_header(&whole);
        let dst = if is_ipv4 { set(Field::Ipv4Dst, 0x0a09_0807) } else { set(Field::Ipv6Dst, 1 << 120 | 7) };
        let translate = vec![
            dst,
            set(Field::L4Dport, 5353),
            Operation::Add(Field::L4Sport, Value::Const(1)),
            Operation::PushVlan { tpid: 0x8100, vid: Value::Const(5), pcp: Value::Const(0) },
        ];
        let first = Pipe::basic("nat").entry(Entry::default()).act(translate).forward(PipeId(1)).rehash(true);
        // The following pipes see the new ports, by the key and by fields, also after a tag.
        let sees = Pipe::basic("sees").constant(Field::L4Dport, 5353).constant(Field::L4Sport, 4001);
        let sees = sees.entry(Entry::default()).act([Operation::PopVlan]).forward(PipeId(2));
        let rows = (0..4).map(|at| Entry::on(EntryMatch::Target(at)).to(PortId(at)));
        let hash = Pipe::hash("h", HashInput::Select(KeySource::Outer), GroupId(0));
        let hash = hash.entries(rows).forward(Forward::PerEntry).capacity(8);
        let mut program = start(&PORTS, [first, sees, hash]);
        let target = |at: u16| Target::new(PORTS[usize::from(at)], PortId(at));
        program.group(Group::new("g", Fill::Maglev, 1009).targets((0..4).map(target)));
        program.follow_fragments();
        let mut crew = FragmentWorkers::new(&program.build(), 1);
        crew.arrive(0, &whole);
        let [(port, translated)] = &crew.left()[..] else { panic!("{:?}", crew.ledger()) };
        let mut fragments = cut(&whole, 3, &cuts(&mut random, &whole));
        shuffle(&mut random, &mut fragments);
        fragments.iter().for_each(|fragment| crew.arrive(0, fragment));
        let left = crew.left();
        assert_eq!(left.len(), fragments.len(), "{:?}", crew.ledger());
        assert!(left.iter().all(|(one, _)| one == port), "all fragments go where the whole packet goes");
        let (payload, ends) = together(left.into_iter().map(|(_, frame)| frame).collect());
        let (header, _) = ip_header(translated);
        assert_eq!(
            payload,
            translated[ETHERNET + header..],
            "ports and checksum are those of the whole \
            packet"
        );
        assert_eq!(ends, addresses(translated));
    }
}

#[test]
fn f11_fragments_inside_tunnels_have_no_ports() {
    let decap = Pipe::basic("decap").entry(Entry::default()).act([Operation::Decap(TunnelKind::Ipip)]);
    let port = Pipe::basic("port").constant(Field::L4Dport, 53).entry(Entry::default()).forward(PortId(1));
    let mut program = start(&PORTS, [decap.forward(PipeId(1)), port.miss(PortId(2))]);
    program.follow_fragments();
    let mut crew = FragmentWorkers::new(&program.build(), 1);
    for inside in ["frag=0+ proto=udp sport=7 dport=53", "frag=24 proto=udp payload=00"] {
        let text = format!("src=1.1.1.1 dst=2.2.2.2 tunnel=ipip inner(src=10.0.0.1 dst=10.0.0.2 {inside})");
        crew.arrive(0, &frame(&text));
        assert_eq!(crew.left().iter().map(|(port, _)| *port).collect::<Vec<_>>(), [2], "{inside}");
    }
}

#[test]
fn f12_tiny_and_overlapping_fragments_are_malformed() {
    let mut crew = FragmentWorkers::new(&by_hash(), 1);
    let tcp = frame(&format!("src=10.0.0.1 dst=192.0.2.1 proto=tcp dport=53 payload={}", "5a".repeat(100)));
    let tiny = cut(&tcp, 1, &[8, 16, 40]);
    for fragment in &tiny[..3] {
        crew.arrive(0, fragment);
    }
    assert_eq!(crew.dropped(DropReason::MalformedTcp), 3, "the header is in none of them");
    crew.arrive(0, &tiny[3]);
    assert_eq!(crew.ledger().held, 1, "the other fragments wait in vain");
    crew.now_ns += WAIT_NS + 1;
    crew.breathe();
    assert_eq!((crew.dropped(DropReason::FirstFragmentMissing), crew.left().len()), (1, 0));
    let mut udp = cut(&frame("src=10.0.0.1 dst=192.0.2.1 proto=udp payload=0001020304050607"), 2, &[8]);
    udp[0][38..40].copy_from_slice(&[0, 7]);
    crew.arrive(0, &udp[0]);
    assert_eq!(crew.dropped(DropReason::MalformedUdp), 1, "no UDP datagram has 7 bytes");
}

#[test]
fn f13_fragments_without_their_first_one_are_dropped_with_a_reason() {
    let mut crew = FragmentWorkers::new(&by_flow(), 1);
    let mut random = Choices::from_seed(3);
    let whole = datagram(&mut random, 5000, 1500);
    crew.arrive(0, &whole);
    let home = crew.left()[0].0;
    // A flood of incomplete fragments, each of a different datagram: first ones, and later ones.
    for id in 0..20_000 {
        let other = cut(&whole, 1000 + id, &[800]);
        crew.workers[0].1[0].push(&other[usize::from(id % 3 != 0)]);
        crew.now_ns += 1000;
        if id % 50 == 0 {
            crew.breathe();
            // In between, a legitimate datagram, last fragment first.
            crew.left();
            let fragments = cut(&whole, 30_000 + id, &[800]);
            crew.arrive(0, &fragments[1]);
            crew.arrive(0, &fragments[0]);
            let of_both: Vec<usize> = crew.left().into_iter().map(|(port, _)| port).collect();
            assert_eq!(of_both.len(), 2, "{:?}", crew.ledger());
            assert!(of_both.iter().all(|port| *port == home));
        }
    }
    crew.breathe();
    assert!(crew.ledger().held <= WAITING_MAX as u64);
    assert!(crew.dropped(DropReason::FragmentsFull) > 10_000);
    let flows = crew.workers[0].0.engine().flows(PipeId(1), usize::MAX).0;
    assert_eq!(flows.len(), 1, "they all belong to the same flow");
    crew.now_ns += WAIT_NS + 1;
    crew.breathe();
    assert_eq!(crew.ledger().held, 0);
    let reasons = [DropReason::FragmentsFull, DropReason::FirstFragmentMissing];
    let dropped: u64 = reasons.iter().map(|reason| crew.dropped(*reason)).sum();
    assert_eq!(dropped, crew.ledger().dropped_sum());
}

#[test]
fn what_waits_when_a_worker_stops_is_counted() {
    let mut crew = FragmentWorkers::new(&by_hash(), 1);
    let whole = datagram(&mut Choices::from_seed(1), 5000, 100);
    crew.arrive(0, &cut(&whole, 1, &[40])[1]);
    assert_eq!(crew.ledger().held, 1);
    crew.workers[0].0.stop();
    assert_eq!((crew.dropped(DropReason::Stopped), crew.ledger().held), (1, 0));
}

#[test]
fn o6_fragments_that_arrive_at_any_worker_reach_the_worker_of_their_flow() {
    for (count, program) in [2, 4].into_iter().flat_map(|count| [(count, by_hash()), (count, by_flow())]) {
        let mut random = Choices::from_seed(count as u64);
        let mut crew = FragmentWorkers::new(&program, count);
        let datagrams = random_datagrams(&mut random, 100);
        let mut wanted = BTreeMap::new();
        for (at, (whole, _)) in datagrams.iter().enumerate() {
            crew.arrive(random.below(count), whole);
            wanted.insert(at, crew.left()[0].0);
        }
        let pipe = PipeId(program.pipes.len() as u16 - 1);
        let flows = |crew: &FragmentWorkers| {
            let mut all: Vec<_> = Vec::new();
            for (worker, _) in &crew.workers {
                all.push(
                    worker.engine().flows(pipe, usize::MAX).0.iter().map(|one| one.key).collect::<Vec<_>>(),
                );
                all.iter_mut().for_each(|keys| keys.sort());
            }
            all
        };
        let before = flows(&crew);
        let mut all: Vec<(usize, Vec<u8>)> = datagrams
            .iter()
            .enumerate()
            .flat_map(|(at, (_, fragments))| fragments.iter().map(move |one| (at, one.clone())))
            .collect();
        shuffle(&mut random, &mut all);
        let of: BTreeMap<Vec<u8>, usize> = all.iter().map(|(at, fragment)| (fragment.clone(), *at)).collect();
        for some in all.chunks(10) {
            for (_, fragment) in some {
                crew.workers[random.below(count)].1[0].push(fragment);
            }
            crew.breathe();
        }
        let left = crew.left();
        assert_eq!(left.len(), all.len(), "{:?}", crew.ledger());
        assert!(left.iter().all(|(port, fragment)| *port == wanted[&of[fragment]]));
        assert_eq!(flows(&crew), before, "fragments begin no flow on another worker");
        assert_eq!((crew.ledger().held, crew.ledger().dropped_sum()), (0, 0));
        let given: u64 = crew.workers.iter().map(|(worker, _)| worker.handed().given).sum();
        assert!(given > 100, "many were handed over: {given}");
    }
}
