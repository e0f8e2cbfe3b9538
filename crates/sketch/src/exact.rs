//! Exact counts: every key with its counts, in a map. They are the oracle of tests and of accuracy tables;
//! unlike sketches, they grow with the number of keys.

use crate::hash::Update;
use std::collections::HashMap;

/// The exact number of packets and bytes of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Count {
    /// Number of packets.
    pub packets: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// The counts of all keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exact<const W: usize> {
    keys: HashMap<[u64; W], Count>,
    total: Count,
}

impl<const W: usize> Exact<W> {
    /// Adds the packets and bytes of an update to its key and to the total.
    pub fn add(&mut self, update: &Update<W>) {
        let count = self.keys.entry(update.key).or_default();
        for count in [count, &mut self.total] {
            count.packets += update.packets;
            count.bytes += update.bytes;
        }
    }

    /// Returns the counts of a key; zeros if it never occurred.
    #[must_use]
    pub fn get(&self, key: &[u64; W]) -> Count {
        self.keys.get(key).copied().unwrap_or_default()
    }

    /// The total counts of all keys.
    #[must_use]
    pub fn total(&self) -> Count {
        self.total
    }

    /// Returns the number of distinct keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns true if nothing was counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// All keys, in unspecified order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u64; W], Count)> {
        self.keys.iter().map(|(key, count)| (key, *count))
    }

    /// The keys with at least `packets` packets, the heaviest first; ties are ordered by key.
    #[must_use]
    pub fn heavier(&self, packets: u64) -> Vec<([u64; W], u64)> {
        let heavy = self.keys.iter().filter(|(_, count)| count.packets >= packets);
        let mut heavy: Vec<_> = heavy.map(|(key, count)| (*key, count.packets)).collect();
        heavy.sort_unstable_by(|one, other| other.1.cmp(&one.1).then(one.0.cmp(&other.0)));
        heavy
    }

    /// The keys whose packets differ by at least `packets` between two intervals.
    #[must_use]
    pub fn changed(&self, before: &Exact<W>, packets: u64) -> Vec<[u64; W]> {
        let mut changed: Vec<_> = self.keys.keys().chain(before.keys.keys()).copied().collect();
        changed.sort_unstable();
        changed.dedup();
        changed.retain(|key| self.get(key).packets.abs_diff(before.get(key).packets) >= packets);
        changed
    }

    /// The number of flows for each number of packets, ordered by packets.
    #[must_use]
    pub fn distribution(&self) -> Vec<(u64, f64)> {
        let mut sizes: HashMap<u64, u64> = HashMap::new();
        for count in self.keys.values() {
            *sizes.entry(count.packets).or_default() += 1;
        }
        let mut sizes: Vec<_> = sizes.into_iter().map(|(size, flows)| (size, flows as f64)).collect();
        sizes.sort_unstable_by_key(|(size, _)| *size);
        sizes
    }

    /// Entropy of the packets' keys, in bits.
    #[must_use]
    pub fn entropy(&self) -> f64 {
        crate::accuracy::entropy(&self.distribution())
    }
}
