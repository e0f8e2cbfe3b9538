//! Compares the two implementations of placement: crate path, which the simulator uses, and the program in
//! the kernel. Both get the same flows, gaps, path states and random numbers, and must treat every frame
//! alike.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use weir_packet::random::Random;
use weir_path::bpf::{PathFlow, PathOut, PathPeer, PathSettings, Steer, TcPath};
use weir_path::flow::{Flow, Route};
use weir_path::paths::{Observed, Offer, Paths, Ports, ProbeReply};
use weir_path::scheme::Scheme;
use weir_path::settings::Settings;
use weir_path::tunnel::PathTunnel;
use weir_path::wire::VNI;

const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 1);
const FLOWS: u64 = 24;
const FRAMES: u32 = 4000;
const MS: u64 = 1_000_000;

/// Settings whose times are whole in the units of the program.
fn settings() -> Settings {
    Settings {
        // So that 1024 bytes take 1 us.
        rate: 8_192_000_000,
        congested_ns: 80_000,
        flowlet_ns: 40_000,
        reroute_bytes: 20_000,
        gain_ns: 80_000,
        hold_ns: 320_000,
        load_half_life_ns: 320_000,
        ..Settings::of_rate(8_192_000_000)
    }
}

fn rules(settings: &Settings) -> PathSettings {
    PathSettings {
        steer: Steer::Adaptive,
        tunnel: PathTunnel::VXLAN,
        sources: [49_152, 65_535],
        answers: 1,
        answers_burst: 1,
        pinned_ms: 1,
        gap_us: (settings.flowlet_ns / 1000) as u32,
        noise_ns: (settings.congested_ns / weir_path::paths::NOISE) as u32,
        reroute_bytes: settings.reroute_bytes as u32,
        gain_ns: settings.gain_ns as u32,
        hold_us: (settings.hold_ns / 1000) as u32,
        drain_ns: settings.drain_ns(1024) as u32,
        half_life_us: (settings.load_half_life_ns / 1000) as u32,
        echo_port: 0,
        uplinks: [0; 4],
        peers: 1,
        probe_vni: VNI,
        secret: [0; 2],
    }
}

fn peer(paths: &Paths) -> PathPeer {
    let out = |Offer { port, weight, is_congested, cost_ns }| PathOut {
        port,
        weight,
        congested: is_congested,
        cost_ns: u32::try_from(cost_ns).unwrap_or(u32::MAX),
    };
    PathPeer { index: 0, paths: paths.offers().into_iter().map(out).collect() }
}

/// A VXLAN frame of a flow, `length` bytes long.
fn frame(flow: u64, kernel_port: u16, length: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0];
    frame.extend((length as u16 - 14).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 1, 1]);
    frame.extend(PEER.octets());
    frame.extend(kernel_port.to_be_bytes());
    frame.extend(4789_u16.to_be_bytes());
    frame.extend((length as u16 - 34).to_be_bytes());
    frame.extend([0, 0, 8, 0, 0, 0, 0, 0, 42, 0]);
    frame.extend([2, 0, 0, 0, 1, 2, 2, 0, 0, 0, 1, 1, 8, 0]);
    frame.extend([0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0, 192, 168, 0, 1, 192, 168, 0, 2]);
    frame.extend((flow as u16).to_be_bytes());
    frame.extend([0x13, 0x89]);
    frame.resize(length, 0);
    frame
}

/// Both, and the time.
struct LockstepPair {
    now: u64,
    paths: Paths,
    flows: BTreeMap<u64, (Flow, u16)>,
    random: Random,
    programs: TcPath,
    arrived: Vec<u32>,
}

impl LockstepPair {
    /// `None` without root.
    fn new(count: u16, seed: u64) -> Option<LockstepPair> {
        if !weir_bed::is_root() {
            return None;
        }
        let settings = settings();
        let ports: Vec<Ports> = (0..count).map(|at| Ports { main: 50_000 + at, spare: None }).collect();
        let mut programs = TcPath::load_scripted(1, 1024).unwrap();
        programs.set(&rules(&settings)).unwrap();
        programs.set_script(0, Some(seed)).unwrap();
        Some(LockstepPair {
            now: 1000 * MS,
            paths: Paths::new(0, settings, &ports),
            flows: BTreeMap::new(),
            random: Random::new(seed),
            programs,
            arrived: vec![0; usize::from(count)],
        })
    }

    /// Something happens to the paths: probes are answered late, marked or not at all, or flows time out.
    fn change(&mut self, story: &mut Random) {
        for path in 0..self.arrived.len() {
            let sequence = self.paths.probe_sent(self.now, path);
            let fate = story.below(10);
            if fate < 2 {
                continue;
            }
            self.arrived[path] += 1;
            let delay_ns = 5000 + if fate < 5 { story.below(600_000) as i64 } else { 0 };
            let answer = ProbeReply { delay_ns, marked: fate == 9, arrived: self.arrived[path] };
            assert!(self.paths.probe_answered(self.now, path, sequence, answer));
        }
        self.now += story.below(12 * MS);
        self.paths.tick(self.now);
    }

    /// A frame leaves; both must place it equally. Returns whether its flow moved.
    fn send(&mut self, story: &mut Random) -> bool {
        let (number, length) = (story.below(FLOWS), 90 + story.below(1400) as usize);
        let pause = [0, 1000, 20_000, 100_000, 2 * MS][story.below(5) as usize];
        self.now += story.below(pause + 1);
        let is_new = !self.flows.contains_key(&number);
        let (flow, kernel_port) =
            self.flows.entry(number).or_insert_with(|| (Flow::new(Scheme::Adaptive, number), 50_500));
        if !is_new && story.below(50) == 0 {
            // Does what the kernel does after a timeout.
            *kernel_port += 1;
            flow.timed_out(self.now, &mut self.paths, &mut self.random);
        }
        let moves = flow.moves();
        self.programs.set_peer(PEER, &peer(&self.paths)).unwrap();
        self.programs.set_script(self.now, None).unwrap();
        let (_, sent) = self.programs.test_egress(&frame(number, *kernel_port, length)).unwrap();
        let route = flow.place(self.now, length as u64, &mut self.paths, &mut self.random);
        let Route::Path(path) = route else { panic!("{route:?}") };
        let port = u16::from_be_bytes([sent[34], sent[35]]);
        assert_eq!(port, self.paths.all()[path].ports().main, "flow {number} at {}", self.now);

        let (kernel_port, moved) = (*kernel_port, flow.moves() - moves);
        let moves = flow.moves();
        let all = self.programs.flows().unwrap().page(0, 1024).unwrap().0;
        let (_, held) = all.iter().find(|(key, _)| u64::from(key.ports()[0]) == number).expect("it is kept");
        let PathFlow { last_ns, path: kept, kernel_port: seen, moves: counted, .. } = *held;
        assert_eq!((last_ns, kept as usize, seen, counted), (self.now, path, kernel_port, moves));
        let (at, bytes) = self.programs.activity(0).loads[path];
        assert_eq!((at, bytes), (self.now, self.paths.all()[path].load(self.now, self.paths.settings())));
        moved > 0
    }
}

#[test]
fn flowlets_and_frames_get_the_same_random_ports_in_both() {
    for (scheme, steer) in [(Scheme::LetFlow, Steer::LetFlow), (Scheme::Spray, Steer::Spray)] {
        let Some(mut pair) = LockstepPair::new(1, 9) else { return };
        pair.programs.set(&PathSettings { steer, ..rules(&settings()) }).unwrap();
        pair.programs.set_peer(PEER, &peer(&pair.paths)).unwrap();
        let (mut story, mut moves) = (Random::new(7), 0);
        for _ in 0..FRAMES {
            let (number, length) = (story.below(FLOWS), 90 + story.below(1400) as usize);
            pair.now += story.below(4000);
            let (flow, _) = pair.flows.entry(number).or_insert_with(|| (Flow::new(scheme, number), 0));
            let before = flow.moves();
            let route = flow.place(pair.now, length as u64, &mut pair.paths, &mut pair.random);
            pair.programs.set_script(pair.now, None).unwrap();
            let (_, sent) = pair.programs.test_egress(&frame(number, 50_500, length)).unwrap();
            let port = u16::from_be_bytes([sent[34], sent[35]]);
            assert_eq!(Route::Port(port), route, "{scheme}: flow {number} at {}", pair.now);
            moves += flow.moves() - before;
        }
        let counted: u32 =
            pair.programs.flows().unwrap().page(0, 1024).unwrap().0.iter().map(|flow| flow.1.moves).sum();
        match scheme {
            Scheme::LetFlow => {
                assert!(counted == moves && (100..FRAMES).contains(&moves), "{counted} {moves}")
            }
            _ => assert_eq!(counted, 0, "no state is kept for a flow"),
        }
        assert_eq!(pair.programs.counters().steered, u64::from(FRAMES));
    }
}

#[test]
fn every_frame_takes_the_same_path_in_both() {
    let mut kinds = [0; 4];
    for (count, seed) in [(1, 1), (2, 2), (4, 3), (7, 4), (16, 5)] {
        let Some(mut pair) = LockstepPair::new(count, seed) else { return };
        let (mut story, mut moved) = (Random::new(seed ^ 0x5eed), 0);
        for frame in 0..FRAMES {
            if frame % 40 == 0 {
                pair.change(&mut story);
            }
            moved += u64::from(pair.send(&mut story));
        }
        let before: u64 = kinds.iter().sum();
        for path in pair.programs.traffic(0, usize::from(count)) {
            let of_path = [path.after_gap, path.after_failure, path.after_rehash, path.without_gap];
            kinds.iter_mut().zip(of_path).for_each(|(sum, one)| *sum += one);
        }
        assert_eq!(kinds.iter().sum::<u64>() - before, moved, "{count} paths");
    }
    // The run must contain every kind of move; otherwise the test would prove less than it claims.
    assert!(kinds.iter().all(|kind| *kind > 10), "{kinds:?}");
}

/// How long packets take over four links without a queue, and in the queue of a link that is full, ns.
const ONE_WAY_NS: [u64; 4] = [50_000, 100_000, 500_000, 3 * MS];
const QUEUE_NS: u64 = 4 * MS;

/// What is wrong with a link.
#[derive(Clone, Copy, PartialEq)]
enum LinkFault {
    /// Its queue is full.
    Queue(usize),
    /// It loses every other segment.
    Loss(usize),
}

/// The faults, one after another. There is none at first: only large flows move without a pause.
const FAULTS: [Option<LinkFault>; 6] = [
    None,
    Some(LinkFault::Queue(0)),
    Some(LinkFault::Loss(3)),
    Some(LinkFault::Queue(1)),
    None,
    Some(LinkFault::Queue(2)),
];

/// Sends frames of flows that pause only between faults. Returns how many frames overtake an earlier one of
/// their flow, and the moves of flows: after a pause, after a failure, after a timeout, and without any.
/// `None` without root.
fn overtaken(settings: Settings) -> Option<(u32, [u64; 4])> {
    if !weir_bed::is_root() {
        return None;
    }
    let mut programs = TcPath::load_scripted(1, 1024).unwrap();
    // Twice the longest round trip.
    let gap_ns = 2 * (2 * ONE_WAY_NS[3] + QUEUE_NS);
    programs.set(&PathSettings { gap_us: (gap_ns / 1000) as u32, ..rules(&settings) }).unwrap();
    programs.set_script(0, Some(5)).unwrap();
    let ports: Vec<Ports> = (0..4).map(|at| Ports { main: 50_000 + at, spare: None }).collect();
    let mut paths = Paths::new(0, settings, &ports);
    let (mut story, mut now, mut overtaken) = (Random::new(11), 1000 * MS, 0);
    let mut latest = BTreeMap::new();
    for fault in FAULTS {
        now += gap_ns;
        let mut queues = [0; 4];
        for at in 0..FRAMES / 4 {
            // After the pause, each flow has chosen a path before there is a fault.
            let fault = fault.filter(|_| at >= FRAMES / 16);
            let pause = story.below(30_000);
            now += pause;
            queues.iter_mut().for_each(|queue: &mut u64| *queue = queue.saturating_sub(pause));
            if let Some(LinkFault::Queue(path)) = fault {
                queues[path] = QUEUE_NS;
            }
            if at % 50 == 0 {
                for (path, (one_way_ns, queue)) in ONE_WAY_NS.into_iter().zip(queues).enumerate() {
                    let again = if fault == Some(LinkFault::Loss(path)) { 10 } else { 0 };
                    let round_trip_ns = Some(2 * one_way_ns + queue);
                    let seen = Observed { round_trip_ns, segments: 20, again, is_heard: true };
                    paths.observed(now, path, seen);
                }
                paths.tick(now);
                programs.set_peer(PEER, &peer(&paths)).unwrap();
            }
            programs.set_script(now, None).unwrap();
            let number = story.below(FLOWS);
            let (_, sent) = programs.test_egress(&frame(number, 50_500, 1000)).unwrap();
            let path = usize::from(u16::from_be_bytes([sent[34], sent[35]]) - 50_000);
            let arrives = now + ONE_WAY_NS[path] + queues[path];
            let before = latest.entry(number).or_insert(arrives);
            overtaken += u32::from(arrives < *before);
            *before = arrives.max(*before);
        }
    }
    let mut moves = [0; 4];
    for path in programs.traffic(0, 4) {
        let of_path = [path.after_gap, path.after_failure, path.after_rehash, path.without_gap];
        moves.iter_mut().zip(of_path).for_each(|(sum, one)| *sum += one);
    }
    Some((overtaken, moves))
}

#[test]
fn with_one_sided_no_frame_overtakes_another_of_its_flow() {
    let one_sided = settings().one_sided(1000 * MS);
    let Some((count, moves)) = overtaken(one_sided) else { return };
    assert!(moves[0] > 0, "flows leave bad links, or this shows nothing: {moves:?}");
    assert_eq!((count, &moves[1..]), (0, &[0; 3][..]));
    // `adaptive` leaves these links at once, both the full ones and the one that loses segments.
    let (count, moves) = overtaken(Settings { is_one_sided: false, ..one_sided }).expect("root");
    assert!(count > 0 && moves[1] > 0 && moves[3] > 0, "{count} {moves:?}");
}
