//! MRAC: the distribution of flow sizes in packets.
//!
//! Kumar, Sung, Xu and Wang: Data streaming algorithms for efficient and accurate estimation of flow size
//! distribution, SIGMETRICS 2004. Packets are counted in one array at their flow's hash, and expectation
//! maximisation separates the sums of colliding flows.
//!
//! The paper enumerates the ways in which a counter's value can be a sum of flows, and has to ignore most of
//! them. Here the number of flows of each size in a counter is Poisson, as the paper assumes, so that a
//! counter is compound Poisson: Panjer's recursion gives the probability of every value, and the expected
//! number of flows of size i in a counter of value v is λ(i)·P(v - i)/P(v), without enumeration. The step is
//! exact up to 1024 packets; a larger counter is treated as one large flow plus the mean of small ones.
//!
//! The paper proves no bound for the number of flows of one size; the bound for all flows is that of linear
//! counting.

use crate::aggregator::Evicted;
use crate::counter::{Counter, merge, signed};
use crate::estimate::{Estimate, MergeError, Sigmas, SizeError};
use crate::hash::{Lanes, Purpose, Seed, below};
use crate::memory::{in_chunks, table};
use std::collections::BTreeMap;

/// The largest counter that is decomposed exactly: the work grows with its square.
const SMALL_MAX: usize = 1024;

/// Steps of expectation maximisation; after ten, the remaining change is below the noise.
const STEPS_MAX: usize = 30;

/// Iteration ends when the number of flows changes by less than this share.
const CONVERGED: f64 = 1e-4;

/// An array of counters, from which the distribution of flow sizes is estimated by expectation maximisation.
/// Each flow counts its packets in one counter, which it may share with others.
#[derive(Clone, Debug, PartialEq)]
pub struct Mrac<C = u32> {
    counters: Vec<C>,
    lanes: Lanes,
}

/// A distribution of flow sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// Sizes in packets, and how many flows have each size, ordered by size. The numbers are not integers.
    pub sizes: Vec<(u64, f64)>,
    /// The estimate of the number of flows, with bounds.
    pub flows: Estimate,
}

impl Distribution {
    /// Entropy of the packets' flows, in bits.
    #[must_use]
    pub fn entropy(&self) -> f64 {
        crate::accuracy::entropy(&self.sizes)
    }
}

impl<C: Counter> Mrac<C> {
    /// Creates an empty array of at most `bytes` bytes.
    ///
    /// # Errors
    /// The memory is less than one counter, or too much.
    pub fn with_bytes(bytes: usize, seed: &Seed) -> Result<Self, SizeError> {
        let counters = SizeError::check(bytes, size_of::<C>())? / size_of::<C>();
        Ok(Mrac { counters: table(C::default(), counters), lanes: Lanes::new(seed, Purpose::Mrac, 0) })
    }

    /// Returns the number of bytes of the counters, at most those given at creation.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.counters.len() * size_of::<C>()
    }

    /// The array's counters, for a file.
    #[must_use]
    pub fn counters(&self) -> &[C] {
        &self.counters
    }

    /// The array's counters, to be filled from a file.
    pub fn counters_mut(&mut self) -> &mut [C] {
        &mut self.counters
    }

    #[inline(always)]
    fn place(&self, hash: u64) -> usize {
        below((self.lanes.bits(hash, 0) >> 32) as u32, self.counters.len())
    }

    /// Counts packets of a flow.
    #[inline(always)]
    pub fn update(&mut self, hash: u64, packets: u64) {
        let place = self.place(hash);
        self.counters[place].add(signed(packets));
    }

    /// Counts the packets of many flows.
    #[inline]
    pub fn add<const W: usize>(&mut self, updates: &[Evicted<W>]) {
        let find = |sketch: &Self, one: &Evicted<W>| {
            let place = sketch.place(one.item.hash);
            weir_packet::prefetch(&sketch.counters[place]);
            place as u32
        };
        in_chunks(self, updates, find, |sketch, one, place| {
            sketch.counters[place as usize].add(signed(one.packets));
        });
    }

    /// Number of flows, from the number of empty counters.
    #[must_use]
    pub fn flows(&self) -> Estimate {
        let counters = self.counters.len() as f64;
        let empty = self.counters.iter().filter(|counter| counter.get() == 0).count() as f64;
        let value = linear_count(counters, empty.max(1.0));
        Estimate::normal(value, linear_error(counters, value), Sigmas::Three)
    }

    /// Estimates the distribution of flow sizes.
    #[must_use]
    pub fn distribution(&self) -> Distribution {
        let mut values: BTreeMap<u64, f64> = BTreeMap::new();
        for counter in self.counters.iter().filter(|counter| counter.get() != 0) {
            *values.entry(counter.get().cast_unsigned()).or_default() += 1.0;
        }
        let flows = self.flows();
        let observed: Vec<(u64, f64)> = values.into_iter().collect();
        let (small, large) =
            observed.split_at(observed.partition_point(|(value, _)| *value <= SMALL_MAX as u64));
        let rates = take_apart(small, large, self.counters.len() as f64, flows.value);
        let mut sizes: BTreeMap<u64, f64> = BTreeMap::new();
        let mean_beside: f64 = rates.iter().enumerate().map(|(size, rate)| size as f64 * rate).sum();
        for (size, rate) in rates.iter().enumerate().filter(|(_, rate)| **rate > 0.0) {
            sizes.insert(size as u64, rate * self.counters.len() as f64);
        }
        for (value, counters) in large {
            *sizes.entry(value.saturating_sub(mean_beside.round() as u64)).or_default() += counters;
        }
        Distribution { sizes: sizes.into_iter().collect(), flows }
    }

    /// Adds the counts of another array.
    ///
    /// # Errors
    /// Seeds or sizes differ.
    pub fn merge(&mut self, other: &Self) -> Result<(), MergeError> {
        MergeError::unless(self.counters.len() == other.counters.len() && self.lanes == other.lanes)?;
        merge(&mut self.counters, &other.counters);
        Ok(())
    }

    /// Sets all counters to 0.
    pub fn clear(&mut self) {
        self.counters.fill(C::default());
    }
}

/// Returns the mean number of flows of each size up to [`SMALL_MAX`] in a counter, given how many of the
/// `counters` counters have each value.
fn take_apart(small: &[(u64, f64)], large: &[(u64, f64)], counters: f64, flows: f64) -> Vec<f64> {
    let largest = small.last().map_or(0, |(value, _)| *value as usize);
    let seen: f64 = small.iter().map(|(_, number)| number).sum();
    let beyond: f64 = large.iter().map(|(_, number)| number).sum();
    let mut rates = vec![0.0; largest + 1];
    for (value, number) in small {
        rates[*value as usize] = number / seen * (flows - beyond).max(seen) / counters;
    }
    for _ in 0..STEPS_MAX {
        let before: f64 = rates.iter().sum();
        rates = step(&rates, small, counters, beyond);
        let after: f64 = rates.iter().sum();
        if (after - before).abs() <= CONVERGED * before {
            break;
        }
    }
    rates
}

/// One step of expectation maximisation. A counter with a large flow contains the mean number of small ones.
fn step(rates: &[f64], small: &[(u64, f64)], counters: f64, beyond: f64) -> Vec<f64> {
    let sizes: Vec<(usize, f64)> =
        rates.iter().copied().enumerate().filter(|(_, rate)| *rate > 0.0).collect();
    let probabilities = panjer(&sizes, rates.len());
    let mut next: Vec<f64> = rates.iter().map(|rate| rate * beyond / counters).collect();
    for (value, number) in small {
        let value = *value as usize;
        let weight = number / counters / probabilities[value];
        for (size, rate) in sizes.iter().take_while(|(size, _)| *size <= value) {
            next[*size] += weight * rate * probabilities[value - size];
        }
    }
    next
}

/// The probability of each value of a counter, given the mean numbers of flows by size (Panjer, ASTIN
/// Bulletin 12, 1981): v·P(v) = Σ i·λ(i)·P(v - i). All are scaled by e^λ, which cancels.
fn panjer(sizes: &[(usize, f64)], values: usize) -> Vec<f64> {
    let mut probabilities = vec![0.0; values];
    probabilities[0] = 1.0;
    for value in 1..values {
        let sum: f64 = sizes
            .iter()
            .take_while(|(size, _)| *size <= value)
            .map(|(size, rate)| *size as f64 * rate * probabilities[value - size])
            .sum();
        probabilities[value] = sum / value as f64;
    }
    probabilities
}

/// Returns the number of keys, given the number of places and how many of them stayed empty: linear counting
/// (Whang, Vander-Zanden and Taylor, ACM TODS 15(2), 1990).
#[must_use]
pub fn linear_count(places: f64, empty: f64) -> f64 {
    (places * (places / empty).ln()).abs()
}

/// The relative standard error of [`linear_count`]. It allows for one more key, because the true value is an
/// integer.
#[must_use]
pub fn linear_error(places: f64, keys: f64) -> f64 {
    if keys == 0.0 {
        return 0.0;
    }
    let load = keys / places;
    ((places * (load.exp() - load - 1.0)).max(0.0).sqrt() + 0.5) / keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_of_one_packet_have_poisson_counters() {
        let rate: f64 = 0.7;
        let probabilities = panjer(&[(1, rate)], 6);
        let mut expected = 1.0;
        for (value, probability) in probabilities.iter().enumerate() {
            assert!((probability - expected).abs() < 1e-12);
            expected *= rate / (value + 1) as f64;
        }
    }

    /// If the counters are exactly as the rates predict, a step does not change the rates.
    #[test]
    fn the_truth_is_a_fixed_point() {
        let rates = [0.0, 0.5, 0.2, 0.0, 0.1];
        let sizes: Vec<(usize, f64)> = rates.iter().copied().enumerate().filter(|(_, r)| *r > 0.0).collect();
        let scale = 1e6 * (-0.8_f64).exp();
        let probabilities = panjer(&sizes, 60);
        let observed: Vec<(u64, f64)> =
            (1..60).map(|value| (value as u64, scale * probabilities[value as usize])).collect();
        let mut wide = rates.to_vec();
        wide.resize(60, 0.0);
        let next = step(&wide, &observed, 1e6, 0.0);
        for (rate, next) in wide.iter().zip(next) {
            assert!((rate - next).abs() < 1e-6, "{rate} {next}");
        }
    }
}
