//! A flood of SYNs, or of forged connections, large enough to fill the table of flows, on a virtual clock:
//! established connections stay where they are, and real new ones are pinned.

use super::*;
use weir_engine::batch::Engine;
use weir_packet::{FlowKey, TableHash, craft};
use weir_program::{FlowState, PipeId, Verdict};

const FLOWS: u32 = 16_384;
const ESTABLISHED: u32 = 6_000;
const TICK_NS: u64 = 10_000_000;
const TICKS_PER_SECOND: u64 = 100;
/// How long the flood lasts, and real clients keep starting.
const FLOOD_S: u64 = 60;
/// How soon a real client's flow must be pinned.
const PINNED_S: u64 = 35;

const SYN: u8 = 2;
const ACK: u8 = 16;

/// The engine with its one service, and the clock.
struct Scene {
    engine: Engine,
    pipe: PipeId,
    frame: Vec<u8>,
    now_ns: u64,
}

/// A client's address and port.
type ClientAddress = (Ipv4Addr, u16);

impl Scene {
    fn new(program: &Program) -> Scene {
        let engine = Engine::new(program, TableHash::new([1, 2])).expect("it compiles");
        let text = format!("eth.dst=02:00:00:00:00:fe src=192.0.2.1 dst={VIP} proto=tcp sport=1 dport=53");
        let pipe = program.pipe_named("lb/flows").expect("flows are kept");
        let frame = craft::frame(&text);
        Scene { engine, pipe, frame, now_ns: 0 }
    }

    /// Returns the back end that a packet with these TCP flags is sent to.
    fn send(&mut self, (src, sport): ClientAddress, flags: u8) -> Option<u8> {
        self.frame[26..30].copy_from_slice(&src.octets());
        self.frame[34..36].copy_from_slice(&sport.to_be_bytes());
        self.frame[47] = flags;
        let done = self.engine.process_one(PortId(0), &self.frame, self.now_ns);
        matches!(done.verdict, Verdict::Transmit(_)).then(|| done.bytes[5])
    }

    fn tick(&mut self) {
        self.now_ns += TICK_NS;
        self.engine.tick(self.now_ns);
        self.engine.take_deltas(|_| true);
    }

    fn state(&self, (src, sport): ClientAddress) -> Option<FlowState> {
        let key = FlowKey::new(src.into(), VIP.into(), 6, (sport, 53), None);
        self.engine.flow(self.pipe, &key)?.state
    }
}

/// The flags of the segment that a real client sends `tick` ticks after it started. It sends a SYN, then the
/// ACK, and then data every second. Every fourth client sends two more SYNs, because the answers to the first
/// ones were lost.
fn sends(number: u64, tick: u64) -> Option<u8> {
    let connected = if number.is_multiple_of(4) { 300 } else { 0 };
    match tick {
        0 => Some(SYN),
        100 | 300 if tick <= connected => Some(SYN),
        _ if tick == connected + 5 => Some(ACK),
        _ if tick > connected && tick.is_multiple_of(TICKS_PER_SECOND) => Some(ACK),
        _ => None,
    }
}

/// Floods a table with flows for 30 s: `percent` is their number as a percentage of the table's room. Each
/// flow begins with `segments`. Returns how many real clients there were, and how many of them were pinned in
/// time.
fn flood(percent: u64, segments: &[u8]) -> (usize, usize) {
    let mut service = service("web", By::FiveTuple);
    service.addresses = vec![Address { protocol: 6, ..address(VIP.into(), 53) }];
    let program = program_of(Lb { services: vec![service], flows: FLOWS, ..Lb::default() }, true);
    let places = Place::find(&program, "web");
    let mut scene = Scene::new(&program);
    let old = |at: u32| (Ipv4Addr::from_bits(0x0a01_0000 + at), 4000_u16);
    let new = |at: u64| (Ipv4Addr::from_bits(0x0a02_0000 + at as u32), 5000_u16);
    let mut homes: Vec<Option<u8>> = Vec::new();
    for at in 0..ESTABLISHED {
        homes.push(scene.send(old(at), SYN));
        (0..3).for_each(|_| assert_eq!(scene.send(old(at), ACK), homes[at as usize]));
    }
    let syns_per_second = u64::from(FLOWS) * percent / 100 / 30;
    let (mut forged, mut due, mut pinned, mut clients) = (0_u32, 0, 0, 0);
    for tick in 0..(FLOOD_S + PINNED_S + 1) * TICKS_PER_SECOND {
        scene.tick();
        let is_flood = tick < FLOOD_S * TICKS_PER_SECOND;
        due += if is_flood { syns_per_second } else { 0 };
        while due >= TICKS_PER_SECOND {
            due -= TICKS_PER_SECOND;
            for flags in segments {
                scene.send((Ipv4Addr::from_bits(0x0b00_0000 + forged), 6000), *flags);
            }
            forged += 1;
        }
        // Each established connection sends every ten seconds, regardless of the buckets in the meantime.
        if tick == 20 * TICKS_PER_SECOND {
            for change in places[0].changes((State::Up, State::Draining), 1) {
                scene.engine.apply(&change, scene.now_ns).expect("it is possible");
            }
        }
        for at in (0..ESTABLISHED).filter(|at| u64::from(*at) % 1000 == tick % 1000) {
            assert_eq!(scene.send(old(at), ACK), homes[at as usize], "flow {at} moved");
        }
        // A real client starts every 50 ms.
        for number in 0..=(tick / 5).min(FLOOD_S * TICKS_PER_SECOND / 5 - 1) {
            let since = tick - number * 5;
            if since > PINNED_S * TICKS_PER_SECOND {
                continue;
            }
            if let Some(flags) = sends(number, since) {
                assert!(scene.send(new(number), flags).is_some());
            }
            if since == PINNED_S * TICKS_PER_SECOND {
                clients += 1;
                pinned += usize::from(scene.state(new(number)) == Some(FlowState::TcpEstablished));
            }
        }
    }
    assert!(scene.engine.flow_account().balances());
    (clients, pinned)
}

#[test]
fn a_flood_of_syns_moves_no_established_flow_and_real_ones_are_pinned() {
    for percent in [110, 500] {
        let (clients, pinned) = flood(percent, &[SYN]);
        assert_eq!(clients, 1200);
        assert!(pinned * 100 >= clients * 99, "{pinned} of {clients} at {percent} %");
    }
}

#[test]
fn a_flood_of_forged_connections_leaves_room_for_new_ones() {
    for segments in [&[SYN, ACK], &[ACK, ACK]] {
        let (clients, pinned) = flood(500, segments);
        assert_eq!(clients, 1200);
        assert!(pinned * 100 >= clients * 99, "{pinned} of {clients} with {segments:?}");
    }
}
