//! The flow deltas that reach the collector contain exactly what per-packet counting would have seen: with
//! one worker and with four, across reloads, ageing, a stalling collector, and shutdown. Linear sketches fed
//! with the deltas equal, bit for bit, those fed with the packets.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use weir_engine::batch::Engine;
use weir_engine::delta::FlowDelta;
use weir_engine::ring;
use weir_engine::worker::{Command, HandOver, Rewire, Rewiring, Worker};
use weir_packet::random::Random;
use weir_packet::{FlowKey, Pools, Port, TableHash};
use weir_papers::{CountMin, CountSketch, LinearCounting};
use weir_port::{MemPort, MemWire};
use weir_program::builder::ProgramBuilder;
use weir_program::{
    Entry, EntryMatch, Fill, Group, GroupId, Learn, Measured, Pipe, PipeId, PortId, Program, Target,
};
use weir_sketch::{KeyHash, Mrac, Seed};

const MS: u64 = 1_000_000;
const SECRET: TableHash = TableHash::new([1, 2]);
/// Capacity of a ring in deltas: few, so that it is full whenever the collector stalls.
const RING: usize = 32;
/// Flows of the traffic; the tables have room for all of them.
const FLOWS: u64 = 300;

/// A program that pins flows to one of two targets; the name of its pipe and the periods differ.
fn program(numbers: &mut Random) -> Program {
    let measured = Measured {
        period_ms: [5, 20, 100][numbers.below(3) as usize],
        packets: [1, 7, u32::MAX][numbers.below(3) as usize],
        ..Measured::every(1)
    };
    let name = ["f", "f", "g"][numbers.below(3) as usize];
    let pipe = Pipe::flow(name, Learn::Pin(GroupId(0).into()))
        .entries((0..2).map(|at| Entry::on(EntryMatch::Target(at))))
        .capacity(1_000)
        .forward(PortId(0))
        .idle_timeout_ns([3, 50][numbers.below(2) as usize] * MS)
        .measured(measured);
    let mut program = ProgramBuilder::new();
    program.port("a");
    program.pipe(pipe);
    program.root_of_all(PipeId(0));
    let targets = ["x", "y"].map(|name| Target::new(name, PortId(0)));
    program.group(Group::new("g", Fill::Wants, 12).targets(targets));
    program.build()
}

/// All linear sketches.
#[derive(Debug, PartialEq)]
struct Sketches {
    count_min: CountMin<u64, 3>,
    count_sketch: CountSketch<i64, 3>,
    linear_counting: LinearCounting,
    mrac: Mrac<u64>,
}

impl Sketches {
    fn new(seed: &Seed) -> Sketches {
        Sketches {
            count_min: CountMin::with_bytes(20_000, seed).unwrap(),
            count_sketch: CountSketch::with_bytes(20_000, seed).unwrap(),
            linear_counting: LinearCounting::with_bytes(200, seed).unwrap(),
            mrac: Mrac::with_bytes(2_000, seed).unwrap(),
        }
    }

    fn add(&mut self, hash: u64, packets: u64) {
        self.count_min.update(hash, packets);
        self.count_sketch.update(hash, packets);
        self.linear_counting.update(hash);
        self.mrac.update(hash, packets);
    }
}

/// A worker, the other end of its port, and the sender of its commands.
type One = (Worker, MemWire, SyncSender<Command>);

/// Workers that hand frames over to each other, and the collector's ends of their rings.
struct MeasuredWorkers {
    workers: Vec<One>,
    rings: Vec<Receiver<FlowDelta>>,
    now_ns: u64,
}

impl MeasuredWorkers {
    fn new(program: &Program, count: usize) -> MeasuredWorkers {
        let (mut workers, mut rings) = (Vec::new(), Vec::new());
        for (at, hand_over) in HandOver::of_capacity(count, 16).into_iter().enumerate() {
            let mut pools = Pools::region(512);
            let (port, wire) = MemPort::new("a", pools.first().id());
            let ports: Vec<Box<dyn Port>> = vec![Box::new(port)];
            let (commands, receiver) = sync_channel(4);
            let (deltas, ring) = ring::deltas(at as u8, RING);
            let worker = Worker::new(Engine::new(program, SECRET).unwrap(), ports, pools);
            let worker = worker.with_commands(receiver).with_hand_over(hand_over).with_deltas(deltas);
            workers.push((worker, wire, commands));
            rings.push(ring);
        }
        MeasuredWorkers { workers, rings, now_ns: 0 }
    }

    fn breathe(&mut self) {
        let now_ns = self.now_ns;
        let one = |(worker, ..): &mut One| worker.breathe(now_ns) + usize::from(worker.is_waiting());
        while self.workers.iter_mut().map(one).sum::<usize>() > 0 {}
        self.workers.iter().for_each(|(_, wire, _)| while wire.pop().is_some() {});
    }

    fn swap(&mut self, program: &Program, generation: u64) {
        for (worker, _, commands) in &mut self.workers {
            let engine = Box::new(Engine::new(program, SECRET).unwrap());
            let (answer, answers) = sync_channel(1);
            let rewiring = Rewiring { generation, ports: vec![Rewire::Keep(0)], ..Rewiring::default() };
            commands.try_send(Command::Swap(engine, rewiring, answer)).unwrap();
            while answers.try_recv().is_err() {
                worker.breathe(self.now_ns);
            }
        }
    }

    fn read(&mut self, deltas: &mut Vec<FlowDelta>) {
        self.rings.iter().for_each(|ring| deltas.extend(ring.try_iter()));
    }

    /// Stops all workers while the rest is read. Returns the number of packets that were counted in no flow.
    fn end(self, deltas: &mut Vec<FlowDelta>) -> u64 {
        let readers: Vec<_> = self
            .rings
            .into_iter()
            .map(|ring| std::thread::spawn(move || ring.iter().collect::<Vec<FlowDelta>>()))
            .collect();
        let mut unflowed = 0;
        for (mut worker, ..) in self.workers {
            worker.stop();
            let account = worker.report().flows;
            assert!(account.balances() && account.live == 0, "{account:?}");
            unflowed += account.unflowed.sum();
        }
        readers.into_iter().for_each(|reader| deltas.extend(reader.join().unwrap()));
        unflowed
    }
}

/// A random run that feeds both sketches. Returns the number of packets, of deltas with packets, and of
/// reloads.
fn run(seed: u64, workers: usize) -> [usize; 3] {
    let mut numbers = Random::new(seed);
    let sketch_seed = Seed::new([seed, 7]);
    let hash = KeyHash::new(&sketch_seed);
    let (mut by_packet, mut by_delta) = (Sketches::new(&sketch_seed), Sketches::new(&sketch_seed));
    let mut crew = MeasuredWorkers::new(&program(&mut numbers), workers);
    let (mut deltas, mut stalled, mut packets, mut reloads) = (Vec::new(), false, 0, 0);
    for _ in 0..150 {
        crew.now_ns += numbers.below(8) * MS;
        match numbers.below(12) {
            0 => {
                reloads += 1;
                crew.swap(&program(&mut numbers), 1 + reloads as u64);
            }
            1 | 2 => stalled = !stalled,
            _ => {
                for _ in 0..numbers.below(60) {
                    let flow = numbers.below(FLOWS).min(numbers.below(FLOWS)) as u16;
                    let (src, dst) = ([10, 0, (flow >> 8) as u8, flow as u8], [10, 1, 0, 1]);
                    let text =
                        format!("src=10.0.{}.{} dst=10.1.0.1 proto=udp sport=7 dport=53", src[2], src[3]);
                    let at = numbers.below(workers as u64) as usize;
                    crew.workers[at].1.push(&weir_packet::craft::frame(&text));
                    let key = FlowKey::new(src.into(), dst.into(), 17, (7, 53), None);
                    by_packet.add(hash.hash(&key.0), 1);
                    packets += 1;
                }
            }
        }
        crew.breathe();
        if !stalled {
            crew.read(&mut deltas);
        }
    }
    assert_eq!(crew.end(&mut deltas), 0, "seed {seed}: the tables have room for all flows");
    deltas.retain(|delta| delta.packets() != 0);
    let counted: u64 = deltas.iter().map(FlowDelta::packets).sum();
    assert_eq!(counted, packets as u64, "seed {seed}, {workers} workers");
    deltas.iter().for_each(|delta| by_delta.add(hash.hash(&delta.key.0), delta.packets()));
    assert_eq!(by_delta, by_packet, "seed {seed}, {workers} workers");
    [packets, deltas.len(), reloads]
}

#[test]
fn linear_sketches_of_deltas_are_those_of_packets_bit_for_bit() {
    let mut sums = [0; 3];
    for seed in 0..12 {
        for workers in [1, 4] {
            let one = run(seed, workers);
            sums.iter_mut().zip(one).for_each(|(sum, one)| *sum += one);
        }
    }
    let [packets, deltas, reloads] = sums;
    assert!(packets > 50_000 && deltas < packets && reloads > 150, "{sums:?}");
}
