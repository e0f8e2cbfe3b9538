//! The cost of a packet, in bursts of 32. Arms take turns, round by round, so that a busy machine affects all
//! of them equally.
//!
//! A round is one interval: a new sketch and a new aggregator, whose memory is allocated before the clock
//! starts; all packets; the flush of the aggregator into the sketch. The average is of processor time, to
//! exclude other load on the machine, and includes the flush. The 99th percentile is that of bursts, by the
//! timestamp counter.

use crate::engine::cycles;
use crate::scaling::busy;
use serde_json::{Value, json};
use std::hint::black_box;
use std::time::Instant;
use weir_lab::spread::ResultSpread;
use weir_sketch::{Aggregator, AggregatorCounts, BATCH, Evicted, KeyHash, Seed, Update};

/// Packets per burst, as in the paper.
pub const BURST: usize = 32;

/// The seed of all measurements.
pub const SEED: Seed = Seed::new([11, 22]);

/// A sketch that counts keys.
pub type Sketch<const W: usize> = Box<dyn FnMut(&[Evicted<W>])>;

/// A way to count packets.
pub trait CountingMethod<const W: usize> {
    /// Counts a burst.
    fn burst(&mut self, packets: &[Update<W>]);

    /// Ends the interval.
    fn end(&mut self) {}

    /// Returns the counts of its aggregator.
    fn counts(&self) -> AggregatorCounts {
        AggregatorCounts::default()
    }
}

/// No sketch: the cost of reading the packets.
pub struct Nothing;

impl<const W: usize> CountingMethod<W> for Nothing {
    fn burst(&mut self, packets: &[Update<W>]) {
        black_box(packets.iter().fold(0, |sum, packet| sum ^ packet.key[0] ^ packet.key[W - 1]));
    }
}

/// Every packet is counted in the sketch.
pub struct Pure<const W: usize> {
    hash: KeyHash,
    items: Vec<Evicted<W>>,
    sketch: Sketch<W>,
}

impl<const W: usize> Pure<W> {
    /// Creates an arm around an empty sketch.
    pub fn new(sketch: Sketch<W>) -> Pure<W> {
        Pure { hash: KeyHash::new(&SEED), items: Vec::with_capacity(BURST), sketch }
    }
}

impl<const W: usize> CountingMethod<W> for Pure<W> {
    fn burst(&mut self, packets: &[Update<W>]) {
        self.items.clear();
        self.items.extend(packets.iter().map(|packet| {
            let item = self.hash.item(packet.key);
            Evicted { item, packets: packet.packets, bytes: packet.bytes, note: () }
        }));
        (self.sketch)(&self.items);
    }
}

/// Packets are added up in an aggregator; evicted keys are counted in the sketch, 64 at a time.
pub struct Aggregated<const W: usize, M> {
    aggregator: Aggregator<W, M>,
    out: Vec<Evicted<W>>,
    sketch: Sketch<W>,
}

impl<const W: usize, M> Aggregated<W, M> {
    /// Creates an arm around an empty aggregator and an empty sketch.
    pub fn new(aggregator: Aggregator<W, M>, sketch: Sketch<W>) -> Self {
        Aggregated { aggregator, out: Vec::with_capacity(2 * BATCH), sketch }
    }
}

impl<const W: usize, M: weir_sketch::Compare> CountingMethod<W> for Aggregated<W, M> {
    fn burst(&mut self, packets: &[Update<W>]) {
        self.aggregator.add(packets, &mut self.out);
        if self.out.len() >= BATCH {
            (self.sketch)(&self.out);
            self.out.clear();
        }
    }

    fn end(&mut self) {
        while !self.aggregator.sweep(4, &mut self.out) {
            (self.sketch)(&self.out);
            self.out.clear();
        }
        (self.sketch)(&self.out);
    }

    fn counts(&self) -> AggregatorCounts {
        self.aggregator.counts()
    }
}

/// Creates an arm for a round.
pub type Make<'a, const W: usize> = Box<dyn Fn() -> Box<dyn CountingMethod<W>> + 'a>;

/// The cost of an arm.
#[derive(Clone, Copy, Debug)]
pub struct ArmCost {
    /// Nanoseconds per packet, on average.
    pub ns: ResultSpread,
    /// The 99th percentile of bursts, in nanoseconds per packet; `None` without a timestamp counter.
    pub p99_ns: Option<f64>,
    /// Updates of the sketch per packet, excluding the flush: keys that were evicted, and packets that
    /// bypassed the aggregator.
    pub evictions: f64,
    /// Share of the packets that bypassed the aggregator because it did not pay.
    pub bypassed: f64,
}

impl ArmCost {
    /// Returns million packets per second.
    pub fn mpps(&self) -> f64 {
        1e3 / self.ns.median
    }

    /// Adds the keys `NAME_ns`, `NAME_ns_min`, `NAME_ns_max`, `NAME_p99_ns` and `NAME_mpps`.
    pub fn put(&self, name: &str, row: &mut Value) {
        row[format!("{name}_ns")] = json!(self.ns.median);
        row[format!("{name}_ns_min")] = json!(self.ns.min);
        row[format!("{name}_ns_max")] = json!(self.ns.max);
        row[format!("{name}_p99_ns")] = json!(self.p99_ns);
        row[format!("{name}_mpps")] = json!(self.mpps());
    }
}

/// What a round of an arm took: nanoseconds per packet on average and in the slowest 1 % of bursts, and
/// [`ArmCost::evictions`] and [`ArmCost::bypassed`].
struct RoundCost {
    ns: f64,
    p99_ns: Option<f64>,
    evictions: f64,
    bypassed: f64,
}

/// Runs one round of one arm, in bursts of `batch` packets.
fn round<const W: usize>(packets: &[Update<W>], batch: usize, arm: &mut dyn CountingMethod<W>) -> RoundCost {
    let mut bursts: Vec<u64> = Vec::with_capacity(packets.len().div_ceil(batch));
    let (start, start_processor, start_cycles) = (Instant::now(), busy(), cycles());
    let mut before = start_cycles;
    for burst in packets.chunks(batch) {
        arm.burst(burst);
        let now = cycles();
        bursts.push(now - before);
        before = now;
    }
    let counts = arm.counts();
    arm.end();
    let (wall_ns, all_cycles) = (start.elapsed().as_nanos() as f64, cycles() - start_cycles);
    let taken = (busy() - start_processor).as_nanos() as f64;
    let at = (bursts.len() * 99 / 100).min(bursts.len() - 1);
    let p99 = *bursts.select_nth_unstable(at).1 as f64;
    let length = packets.len() as f64;
    RoundCost {
        ns: taken / length,
        p99_ns: (all_cycles > 0).then(|| p99 * wall_ns / all_cycles as f64 / batch as f64),
        evictions: (counts.evictions + counts.bypassed) as f64 / length,
        bypassed: counts.bypassed as f64 / length,
    }
}

/// Measures arms on the same packets in bursts of [`BURST`], in turns, after one warm-up round each.
pub fn measure<const W: usize>(packets: &[Update<W>], rounds: usize, arms: &[Make<'_, W>]) -> Vec<ArmCost> {
    measure_in(BURST, packets, rounds, arms)
}

/// Like [`measure`], in bursts of `batch` packets.
pub fn measure_in<const W: usize>(
    batch: usize,
    packets: &[Update<W>],
    rounds: usize,
    arms: &[Make<'_, W>],
) -> Vec<ArmCost> {
    let mut taken: Vec<Vec<RoundCost>> = arms.iter().map(|_| Vec::new()).collect();
    for number in 0..=rounds {
        for (arm, taken) in arms.iter().zip(&mut taken) {
            let cost = round(packets, batch, &mut *arm());
            if number > 0 {
                taken.push(cost);
            }
        }
    }
    taken.iter().map(|rounds| reading(rounds)).collect()
}

fn reading(rounds: &[RoundCost]) -> ArmCost {
    let p99: Option<Vec<f64>> = rounds.iter().map(|round| round.p99_ns).collect();
    ArmCost {
        ns: ResultSpread::of(rounds.iter().map(|round| round.ns).collect()),
        p99_ns: p99.map(|p99| ResultSpread::of(p99).median),
        evictions: rounds[0].evictions,
        bypassed: rounds[0].bypassed,
    }
}
