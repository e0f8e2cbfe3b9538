//! ElasticSketch: heavy flows exactly, chosen by votes, and light flows in small counters.
//!
//! Yang, Jiang, Liu, Huang, Gong, Zhou, Miao, Li and Uhlig: Elastic sketch: adaptive and fast network-wide
//! measurements, SIGCOMM 2018 (the software version). A bucket of the heavy part holds seven flows; packets
//! of other flows vote against the lightest of them, which moves to the light part once it has eight times as
//! many votes against it as packets. The light part is one row of counters of eight bits.
//!
//! A size is never below the truth, unless its counter in the light part is full, which the bound reflects;
//! and with L counted in the light part it exceeds the truth by more than e·L/w with probability 1/e. Votes
//! depend on the order of packets, so aggregated and single packets lead to different states.

use weir_sketch::estimate::{Estimate, MergeError, SizeError};
use weir_sketch::hash::{Item, Lanes, Purpose, Seed, below};
use weir_sketch::memory::table;
use weir_sketch::ranked::{Top, sorted};

/// Flows in a bucket.
const FLOWS: usize = 7;

/// Packets against a flow per packet of its own above which the flow is evicted: λ of the paper.
const AGAINST: u32 = 8;

/// The heavy part's share of the memory: a quarter, as in the paper.
const HEAVY_SHARE: usize = 4;

/// A line of the heavy part; the flows' keys are stored separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
struct Bucket {
    /// A part of each flow's hash; 0 is an empty place.
    tags: [u32; FLOWS],
    against: u32,
    counts: [u32; FLOWS],
    /// Bit i: a part of flow i may be in the light part.
    elsewhere: u32,
}

impl Bucket {
    const EMPTY: Bucket = Bucket { tags: [0; FLOWS], against: 0, counts: [0; FLOWS], elsewhere: 0 };

    fn lightest(&self) -> usize {
        (0..FLOWS).min_by_key(|place| self.counts[*place]).unwrap_or(0)
    }
}

/// A heavy and a light part.
#[derive(Clone, Debug)]
pub struct Elastic<const W: usize> {
    buckets: Vec<Bucket>,
    items: Vec<Item<W>>,
    light: Vec<u8>,
    lanes: Lanes,
}

/// A flow that is leaving the heavy part.
#[derive(Clone, Copy)]
struct EvictedFlow<const W: usize> {
    item: Item<W>,
    count: u32,
    elsewhere: bool,
}

impl<const W: usize> Elastic<W> {
    const BUCKET_BYTES: usize = size_of::<Bucket>() + FLOWS * size_of::<Item<W>>();

    /// Creates an empty sketch of at most `bytes` bytes.
    ///
    /// # Errors
    /// The memory is too little for four buckets, or too much.
    pub fn with_bytes(bytes: usize, seed: &Seed) -> Result<Self, SizeError> {
        let bytes = SizeError::check(bytes, HEAVY_SHARE * Self::BUCKET_BYTES)?;
        let buckets = bytes / HEAVY_SHARE / Self::BUCKET_BYTES;
        Ok(Elastic {
            buckets: table(Bucket::EMPTY, buckets),
            items: table(Item::default(), buckets * FLOWS),
            light: table(0, bytes - buckets * Self::BUCKET_BYTES),
            lanes: Lanes::new(seed, Purpose::Elastic, 0),
        })
    }

    /// Bytes of memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.buckets.len() * Self::BUCKET_BYTES + self.light.len()
    }

    /// The bucket and the tag of a hash.
    #[inline(always)]
    fn place(&self, hash: u64) -> (usize, u32) {
        let bits = self.lanes.bits(hash, 0);
        (below((bits >> 32) as u32, self.buckets.len()), (bits as u32).max(1))
    }

    #[inline(always)]
    fn light_place(&self, hash: u64) -> usize {
        below((self.lanes.bits(hash, 1) >> 32) as u32, self.light.len())
    }

    /// Fetches the bucket and the counter of a hash.
    #[inline(always)]
    pub fn prefetch(&self, hash: u64) {
        weir_packet::prefetch(&self.buckets[self.place(hash).0]);
        weir_packet::prefetch(&self.light[self.light_place(hash)]);
    }

    #[inline(always)]
    fn find(&self, bucket: usize, tag: u32, key: &[u64; W]) -> Option<usize> {
        let tags = &self.buckets[bucket].tags;
        (0..FLOWS).find(|place| tags[*place] == tag && self.items[bucket * FLOWS + place].key == *key)
    }

    /// Counts a key.
    #[inline]
    pub fn update(&mut self, item: &Item<W>, count: u64) {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let (number, tag) = self.place(item.hash);
        if let Some(place) = self.find(number, tag, &item.key) {
            let counted = &mut self.buckets[number].counts[place];
            *counted = counted.saturating_add(count);
            return;
        }
        let bucket = &mut self.buckets[number];
        if let Some(place) = bucket.tags.iter().position(|tag| *tag == 0) {
            self.put(number, place, tag, EvictedFlow { item: *item, count, elsewhere: false });
            return;
        }
        bucket.against = bucket.against.saturating_add(count);
        let place = bucket.lightest();
        if bucket.against < AGAINST.saturating_mul(bucket.counts[place]) {
            self.add_light(item.hash, count);
            return;
        }
        let (old, old_count) = (self.items[number * FLOWS + place], bucket.counts[place]);
        bucket.against = 0;
        self.add_light(old.hash, old_count);
        self.put(number, place, tag, EvictedFlow { item: *item, count, elsewhere: true });
    }

    fn put(&mut self, number: usize, place: usize, tag: u32, flow: EvictedFlow<W>) {
        let bucket = &mut self.buckets[number];
        (bucket.tags[place], bucket.counts[place]) = (tag, flow.count);
        bucket.elsewhere = bucket.elsewhere & !(1 << place) | u32::from(flow.elsewhere) << place;
        self.items[number * FLOWS + place] = flow.item;
    }

    fn add_light(&mut self, hash: u64, count: u32) {
        let place = self.light_place(hash);
        self.light[place] = self.light[place].saturating_add(u8::try_from(count).unwrap_or(u8::MAX));
    }

    /// The size of a key, and its bounds.
    #[must_use]
    pub fn estimate(&self, item: &Item<W>) -> Estimate {
        let (number, tag) = self.place(item.hash);
        let heavy = self.find(number, tag, &item.key);
        let bucket = &self.buckets[number];
        let own = heavy.map_or(0.0, |place| f64::from(bucket.counts[place]));
        if heavy.is_some_and(|place| bucket.elsewhere >> place & 1 == 0) {
            return Estimate::exact(own);
        }
        let light = self.light[self.light_place(item.hash)];
        let counted: u64 = self.light.iter().map(|counter| u64::from(*counter)).sum();
        let error = std::f64::consts::E * counted as f64 / self.light.len() as f64;
        let value = own + f64::from(light);
        let high = if light == u8::MAX { f64::INFINITY } else { value };
        Estimate { value, low: (value - error).max(own), high, confidence: 1.0 - (-1.0_f64).exp() }
    }

    /// The keys of the heavy part with a size of `least` or more, the heaviest first.
    #[must_use]
    pub fn heavier(&self, least: u64) -> Vec<Top<W>> {
        let taken = |at: &usize| self.buckets[at / FLOWS].tags[at % FLOWS] != 0;
        let heavy =
            |at: &usize| u64::from(self.buckets[at / FLOWS].counts[at % FLOWS]) + u64::from(u8::MAX) >= least;
        let candidates = (0..self.items.len()).filter(taken).filter(heavy);
        let sizes =
            candidates.map(|at| Top { key: self.items[at].key, size: self.estimate(&self.items[at]) });
        sorted(sizes.filter(|top| top.size.value >= least as f64).collect())
    }

    /// Adds the counts of another sketch: the heaviest flows of two buckets stay, the others go to the light
    /// part. A flow that is missing from one sketch's heavy part may be in its light part.
    ///
    /// # Errors
    /// Seeds or sizes differ.
    pub fn merge(&mut self, other: &Self) -> Result<(), MergeError> {
        let alike = self.buckets.len() == other.buckets.len() && self.light.len() == other.light.len();
        MergeError::unless(alike && self.lanes == other.lanes)?;
        for (counter, other) in self.light.iter_mut().zip(&other.light) {
            *counter = counter.saturating_add(*other);
        }
        for number in 0..self.buckets.len() {
            let mut flows = self.flows(number);
            for flow in other.flows(number) {
                match flows.iter_mut().find(|own| own.item.key == flow.item.key) {
                    Some(own) => {
                        own.count = own.count.saturating_add(flow.count);
                        own.elsewhere |= flow.elsewhere;
                    }
                    None => flows.push(flow),
                }
            }
            let is_in = |sketch: &Self, flow: &EvictedFlow<W>| {
                sketch.find(number, sketch.place(flow.item.hash).1, &flow.item.key).is_some()
            };
            for flow in &mut flows {
                flow.elsewhere |= !(is_in(self, flow) && is_in(other, flow));
            }
            flows.sort_by_key(|flow| std::cmp::Reverse(flow.count));
            let against = self.buckets[number].against.saturating_add(other.buckets[number].against);
            self.buckets[number] = Bucket { against, ..Bucket::EMPTY };
            for (place, flow) in flows.into_iter().enumerate() {
                if place < FLOWS {
                    self.put(number, place, self.place(flow.item.hash).1, flow);
                } else {
                    self.add_light(flow.item.hash, flow.count);
                }
            }
        }
        Ok(())
    }

    fn flows(&self, number: usize) -> Vec<EvictedFlow<W>> {
        let bucket = &self.buckets[number];
        let taken = (0..FLOWS).filter(|place| bucket.tags[*place] != 0);
        let flow = |place: usize| EvictedFlow {
            item: self.items[number * FLOWS + place],
            count: bucket.counts[place],
            elsewhere: bucket.elsewhere >> place & 1 == 1,
        };
        taken.map(flow).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_sketch::traffic::{Zipf, five_tuple};
    use weir_sketch::{Exact, KeyHash, Update};

    #[test]
    fn sizes_are_not_too_small_and_heavy_flows_are_found() {
        for number in 0..20 {
            let seed = Seed::new([number, 3]);
            let hash = KeyHash::new(&seed);
            let mut truth = Exact::<2>::default();
            let mut halves = [0, 1].map(|_| Elastic::<2>::with_bytes(60_000, &seed).unwrap());
            let mut whole = halves[0].clone();
            for (at, flow) in Zipf::new(5000, 1.1, number).take(50_000).enumerate() {
                let item = hash.item(five_tuple(flow));
                halves[at % 2].update(&item, 1);
                whole.update(&item, 1);
                truth.add(&Update::packet(item.key, 0));
            }
            let [mut merged, other] = halves;
            merged.merge(&other).unwrap();
            for sketch in [whole, merged] {
                let mut held = 0;
                for (key, count) in truth.iter() {
                    let estimate = sketch.estimate(&hash.item(*key));
                    assert!(estimate.high >= count.packets as f64, "{estimate:?} {count:?}");
                    held += usize::from(estimate.holds(count.packets as f64));
                }
                assert!(held as f64 > 0.7 * truth.len() as f64);
                let found = sketch.heavier(100);
                let heavy = truth.heavier(100);
                let are_found = heavy.iter().filter(|(key, _)| found.iter().any(|top| top.key == *key));
                assert!(are_found.count() as f64 >= 0.97 * heavy.len() as f64);
            }
        }
    }
}
