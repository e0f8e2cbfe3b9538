//! Several workers behave like one, with services of every kind side by side, regardless of the queue a
//! packet arrives in: packets of clients and answers, ICMP errors and fragments.

use super::*;
use std::collections::HashMap;
use weir_engine::batch::{Engine, Share};
use weir_packet::random::Random;
use weir_packet::{Batch, Pools, TableHash, craft};
use weir_program::check::owners;
use weir_program::{NatPool, NatPoolId, NatPrefix};

/// One service of each kind.
const SERVICES: [&str; 5] = ["nat", "mapped", "full", "kept", "hashed"];
const CLIENT: [&str; 2] = ["192.0.2.7", "2001:db8:1::7"];
const POOL: [&str; 2] = ["203.0.113.8", "2001:db8:3::8"];

/// The address of a service, and that of its back end with this number.
fn vip(family: usize, service: usize) -> String {
    ["10.0.0.", "2001:db8::5"][family].to_string() + &(service + 1).to_string()
}

fn back_end(family: usize, service: usize, at: usize) -> String {
    ["10.0.1.", "2001:db8:2::"][family].to_string() + &(10 * service + at + 1).to_string()
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn mixed(family: usize) -> Lb {
    let of = |at: usize| {
        let mut one = Service {
            addresses: [6, 17]
                .map(|protocol| Address { protocol, ..address(ip(&vip(family, at)), 53) })
                .into(),
            out: Some(port(1, THEIRS)),
            stateless: SERVICES[at] == "hashed",
            nat_pool: (SERVICES[at] == "full").then_some(NatPoolId(0)),
            ..service(SERVICES[at], By::FiveTuple)
        };
        change(&mut one, |all| {
            for (number, one) in all.iter_mut().enumerate() {
                let ip = ip(&back_end(family, at, number));
                one.mode = match SERVICES[at] {
                    "nat" => Mode::Nat { ip, port: None },
                    "mapped" => Mode::Nat { ip, port: Some(5353) },
                    "full" => Mode::FullNat { ip, port: Some(5353) },
                    _ => Mode::L2,
                };
            }
        });
        one
    };
    let prefixes = vec![NatPrefix { first: ip(POOL[family]), length: [32, 128][family] }];
    let pool =
        NatPool { name: "pool".into(), prefixes, first: 1024, last: 65_535, origin: Origin::default() };
    let services = (0..SERVICES.len()).map(of).collect();
    Lb { services, flows: 16_384, nat_pools: vec![pool], ..Lb::default() }
}

/// Engines that pass frames to each other.
struct PassingEngines {
    engines: Vec<Engine>,
    pools: Pools,
    batch: Batch,
    now_ns: u64,
    handed_over: usize,
}

impl PassingEngines {
    fn new(program: &Program, workers: usize) -> PassingEngines {
        let engine = |_| Engine::new(program, TableHash::new([1, 2])).expect("it compiles");
        let engines = (0..workers).map(engine).collect();
        PassingEngines { engines, pools: Pools::region(1), batch: Batch::new(), now_ns: 0, handed_over: 0 }
    }

    /// Returns where a frame goes, and its new content. Its queue is independent of its worker.
    fn send(&mut self, input: PortId, frame: &[u8]) -> (Verdict, Vec<u8>) {
        let mut chunk = self.pools.first().take().expect("one frame at a time");
        chunk.fill(frame).expect("a frame that fits a chunk");
        self.batch.push(chunk).expect("one frame at a time");
        self.now_ns += 1_000;
        let workers = self.engines.len();
        let queue = frame.iter().fold(7_usize, |sum, byte| sum * 31 % 65_537 + usize::from(*byte)) % workers;
        let mut worker = queue;
        let share = Share { own: queue, workers };
        self.engines[queue].of_others(&mut self.batch, 1, input, share, |_, other| worker = other);
        self.handed_over += usize::from(worker != queue);
        let outcome = self.engines[worker].process(&mut self.batch, 1, input, self.now_ns);
        let (verdict, bytes) = (outcome.verdict(0, input), self.batch.frame(0).bytes().to_vec());
        self.pools.give(self.batch.take(0));
        self.batch.clear();
        (verdict, bytes)
    }
}

/// A frame for one of weir's ports.
fn to(mac: [u8; 6], text: &str) -> Vec<u8> {
    let mut frame = craft::frame(text);
    frame[..6].copy_from_slice(&mac);
    frame
}

/// Source and destination of a frame with ports, for the recipe of a frame in the opposite direction.
fn turned_round(frame: &[u8], family: usize) -> (String, [String; 2]) {
    let (addresses, size) = [(26, 4), (22, 16)][family];
    let ip = |at: usize| match <[u8; 4]>::try_from(&frame[at..at + size]) {
        Ok(octets) => IpAddr::from(octets).to_string(),
        Err(_) => IpAddr::from(<[u8; 16]>::try_from(&frame[at..at + size]).expect("an address")).to_string(),
    };
    let port = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let ports = addresses + 2 * size;
    let (src, dst) = (ip(addresses), ip(addresses + size));
    (format!("src={dst} dst={src} sport={} dport={}", port(ports + 2), port(ports)), [src, dst])
}

/// An ICMP error about a packet, sent by its receiver.
fn error(frame: &[u8], family: usize) -> Vec<u8> {
    let (_, [src, dst]) = turned_round(frame, family);
    let inside: String = frame[14..].iter().take(80).map(|byte| format!("{byte:02x}")).collect();
    let kind = ["proto=icmp icmp_type=3 icmp_code=3", "proto=icmpv6 icmp_type=1 icmp_code=4"][family];
    to(THEIRS, &format!("src={dst} dst={src} {kind} payload={inside}"))
}

#[test]
fn several_workers_do_what_one_does_with_answers_errors_and_fragments_of_all_services() {
    for family in [0, 1] {
        let program = program_of(mixed(family), true);
        assert_eq!(owners(&program).1, []);
        for workers in [2, 4] {
            let (mut one, mut all) =
                (PassingEngines::new(&program, 1), PassingEngines::new(&program, workers));
            let (mut sent, mut translated) = (0, 0);
            let mut both = |input: PortId, frame: &[u8]| {
                let (wanted, found) = (one.send(input, frame), all.send(input, frame));
                assert_eq!(found, wanted, "{workers} workers, {}", craft::describe(frame));
                sent += usize::from(matches!(wanted.0, Verdict::Transmit(_)));
                wanted
            };
            for (service, kind) in SERVICES.iter().enumerate() {
                for (flow, protocol) in (4000..4060).flat_map(|sport| ["tcp", "udp"].map(|one| (sport, one)))
                {
                    let (src, dst) = (CLIENT[family], vip(family, service));
                    let ends = format!("src={src} dst={dst} proto={protocol}");
                    let request = to(OURS, &format!("{ends} sport={flow} dport=53 payload=c0ffee"));
                    let (verdict, out) = both(PortId(0), &request);
                    assert_eq!(verdict, Verdict::Transmit(PortId(1)), "{kind}");
                    if service < 3 {
                        let (back, _) = turned_round(&out, family);
                        let answer = to(THEIRS, &format!("{back} proto={protocol} payload=c0ffee"));
                        let (verdict, answered) = both(PortId(1), &answer);
                        assert_eq!(verdict, Verdict::Transmit(PortId(0)), "{kind}");
                        // The return path restores the packet.
                        let (restored, _) = turned_round(&answered, family);
                        assert_eq!(restored, format!("src={src} dst={dst} sport={flow} dport=53"));
                        let (verdict, reported) = both(PortId(1), &error(&out, family));
                        assert_eq!(verdict, Verdict::Transmit(PortId(0)), "{kind}");
                        let inside = &reported[[42, 62][family]..];
                        let addresses = [12..20, 8..40][family].clone();
                        assert_eq!(inside[addresses.clone()], request[14..][addresses], "{kind}");
                        translated += 1;
                    }
                    for fragment in ["frag=0+", "frag=1480"] {
                        both(PortId(0), &to(OURS, &format!("{ends} {fragment} payload=c0ffeec0ffeec0ff")));
                    }
                }
            }
            assert!(all.handed_over > 100 && translated == 360 && sent > 1000, "{sent}, {}", all.handed_over);
        }
    }
}

#[test]
fn a_back_end_may_be_a_client_of_another_that_is_translated() {
    let program = program_of(mixed(0), true);
    let mut all = PassingEngines::new(&program, 4);
    for sport in 4000..4100 {
        let src = back_end(0, 0, 0);
        let request = to(OURS, &format!("src={src} dst={} proto=udp sport={sport} dport=53", vip(0, 1)));
        let (_, out) = all.send(PortId(0), &request);
        let (back, _) = turned_round(&out, 0);
        let (verdict, answered) = all.send(PortId(1), &to(THEIRS, &format!("{back} proto=udp")));
        assert_eq!(verdict, Verdict::Transmit(PortId(0)));
        let (restored, _) = turned_round(&answered, 0);
        assert_eq!(restored, format!("src={src} dst={} sport={sport} dport=53", vip(0, 1)));
    }
}

/// Two services with the same back end, and one whose clients get addresses of a pool.
fn sharing() -> Lb {
    let mut lb = mixed(0);
    let shared = lb.services[1].back_ends.clone();
    lb.services.truncate(3);
    (lb.services[0].back_ends, lb.services[1].back_ends) = (shared[..1].into(), shared[..1].into());
    lb
}

#[test]
fn no_two_flows_become_the_same_and_the_way_back_restores_the_packet() {
    let program = program_of(sharing(), true);
    for workers in [1, 2, 4] {
        let mut all = PassingEngines::new(&program, workers);
        let mut taken: HashMap<(u8, Vec<u8>), String> = HashMap::new();
        let (mut dropped, mut random) = (0, Random::new(workers as u64));
        let mut below = |limit| random.below(limit);
        for _ in 0..3000 {
            let protocol = ["tcp", "udp"][below(2) as usize];
            let (service, client) = (below(3) as usize, format!("192.0.2.{}", 1 + below(4)));
            let (vip, sport) = (vip(0, service), 4000 + below(60));
            let flow = format!("src={client} dst={vip} sport={sport} dport=53");
            let (verdict, out) =
                all.send(PortId(0), &to(OURS, &format!("{flow} proto={protocol} payload=c0ffee")));
            // Protocol, addresses and ports, as the back end sees them.
            let tuple = (out[23], out[26..38].to_vec());
            if verdict == Verdict::Drop(weir_packet::DropReason::AnswersTaken) {
                assert!(service < 2, "the pool gives each flow a port of its own");
                dropped += 1;
                continue;
            }
            assert_eq!(verdict, Verdict::Transmit(PortId(1)));
            assert_eq!(taken.entry(tuple).or_insert_with(|| flow.clone()), &flow);
            let (back, _) = turned_round(&out, 0);
            let (verdict, answer) =
                all.send(PortId(1), &to(THEIRS, &format!("{back} proto={protocol} payload=c0ffee")));
            assert_eq!(verdict, Verdict::Transmit(PortId(0)));
            assert_eq!(turned_round(&answer, 0).0, flow);
        }
        assert!(taken.len() > 500 && dropped > 100, "{} flows, {dropped}", taken.len());
    }
}
