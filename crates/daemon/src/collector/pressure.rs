//! Whether the collector keeps up.
//!
//! The collector keeps up if it empties the workers' rings. An occasional full ring does no harm: the counts
//! wait in the flows. If rings stay full for long, readers give up parts of their work, one at a time
//! ([`DeltaReader::shed`](weir_app::agent::DeltaReader::shed)).

/// Consecutive iterations with a full ring after which a part is given up: an iteration reads up to 16,384
/// deltas of each worker, so this number of iterations takes about 100 ms.
const TURNS_MAX: u32 = 32;

/// Counts iterations in which a ring was full.
#[derive(Debug, Default)]
pub struct Pressure {
    turns: u32,
}

impl Pressure {
    /// Records an iteration. Returns true if a reader must give up a part of its work.
    pub fn is_too_high(&mut self, full: bool) -> bool {
        self.turns = if full { self.turns + 1 } else { 0 };
        let is_too_high = self.turns == TURNS_MAX;
        if is_too_high {
            self.turns = 0;
        }
        is_too_high
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rings_that_stay_full_make_it_too_high() {
        let mut pressure = Pressure::default();
        for _ in 0..10 {
            assert!((1..TURNS_MAX).all(|_| !pressure.is_too_high(true)));
            assert!(!pressure.is_too_high(false));
        }
        let alarms: Vec<u32> = (1..=3 * TURNS_MAX).filter(|_| pressure.is_too_high(true)).collect();
        assert_eq!(alarms, [TURNS_MAX, 2 * TURNS_MAX, 3 * TURNS_MAX]);
    }
}
