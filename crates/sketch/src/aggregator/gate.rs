//! Decides when to bypass aggregation.
//!
//! A look-up is worthwhile only if it saves sketch updates. Under uniform traffic, or a flood of flows of one
//! packet, nearly every packet evicts, and the aggregator is pure overhead. The gate counts evictions per
//! packet; from the threshold on it admits only one batch in 256, to notice when traffic changes, and passes
//! the others straight to the sketches. Counts stay exact: a key's packets may lie in the aggregator and in
//! the sketches at the same time, and add up.
//!
//! If a sketch update costs no more than a look-up, no traffic makes aggregation pay, and no batch is
//! admitted.

/// Admitted packets between two decisions while the gate is open.
const WINDOW: u32 = 8192;

/// Admitted packets between two decisions while it is closed: decisions are as frequent as with one batch in
/// thirty-two and [`WINDOW`].
const CLOSED_WINDOW: u32 = 1024;

/// Number of batches per admitted batch while the gate is closed. Look-ups that miss cost twice as much as
/// look-ups that hit, so a closed gate costs less than a hundredth of an open gate.
const CLOSED_PERIOD: u32 = 256;

/// How much more look-ups and updates cost together than each alone, because they compete for the caches:
/// with the four cheapest sketches of Agg-Evict's paper, 10 to 13 % were measured.
const IN_FRONT: f64 = 1.15;

/// A closed gate opens below this share of the threshold. This keeps it from oscillating.
const REOPEN: f64 = 0.85;

/// Counts evictions, and decides which batches are admitted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gate {
    threshold: f64,
    is_open: bool,
    packets: u32,
    evictions: u32,
    batch: u32,
}

impl Gate {
    /// Evictions per packet above which the look-up costs more than it saves, for a sketch update that costs
    /// twice as much as a look-up.
    pub const THRESHOLD: f64 = 0.45;

    /// A gate that closes from `threshold` evictions per packet on; expensive sketches need a higher
    /// threshold. At a threshold of 0 or less, the gate is never open.
    #[must_use]
    pub const fn new(threshold: f64) -> Gate {
        Gate { threshold, is_open: threshold > 0.0, packets: 0, evictions: 0, batch: 0 }
    }

    /// A gate that closes when a look-up costs more than it saves. It is computed from the nanoseconds for a
    /// look-up without sketches and for updating all sketches with one key: the gate closes from
    /// 1 - 1.15 * look-up / update evictions per packet on.
    #[must_use]
    pub fn for_costs(look_up_ns: f64, update_ns: f64) -> Gate {
        Gate::new(1.0 - IN_FRONT * look_up_ns / update_ns)
    }

    /// A gate that never closes.
    #[must_use]
    pub const fn always_open() -> Gate {
        Gate::new(f64::INFINITY)
    }

    /// Returns true while every batch is admitted.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.is_open
    }

    /// Decides whether the next batch is admitted.
    #[inline(always)]
    pub(super) fn lets_in(&mut self) -> bool {
        if self.is_open {
            return true;
        }
        self.batch = (self.batch + 1) % CLOSED_PERIOD;
        self.batch == 0 && self.threshold > 0.0
    }

    /// Records the packets and the evictions of an admitted batch.
    #[inline(always)]
    pub(super) fn saw(&mut self, packets: u32, evictions: u32) {
        self.packets += packets;
        self.evictions += evictions;
        if self.packets >= if self.is_open { WINDOW } else { CLOSED_WINDOW } {
            self.decide();
        }
    }

    #[cold]
    fn decide(&mut self) {
        let share = f64::from(self.evictions) / f64::from(self.packets);
        self.is_open = share < self.threshold * if self.is_open { 1.0 } else { REOPEN };
        (self.packets, self.evictions) = (0, 0);
    }
}

impl Default for Gate {
    fn default() -> Gate {
        Gate::new(Gate::THRESHOLD)
    }
}
