//! How many answers there may be: a token bucket on the app's clock. Whoever asks more often gets no answer,
//! so that nobody can have weir send as much as they like, or keep its main thread busy.

/// Nanoseconds in a second.
const SECOND_NS: u64 = 1_000_000_000;

/// So many a second, and some more at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    /// Nanoseconds for one.
    each_ns: u64,
    /// How many at once, in nanoseconds.
    burst_ns: u64,
    /// Until when what was allowed takes, on the clock of those who ask.
    until_ns: u64,
    refused: u64,
}

impl Limit {
    /// Creates a limit of `rate` a second, and `burst` at once. Neither may be 0.
    pub const fn new(rate: u64, burst: u64) -> Limit {
        let each_ns = SECOND_NS / rate;
        Limit { each_ns, burst_ns: burst * each_ns, until_ns: 0, refused: 0 }
    }

    /// Returns whether there may be one more now.
    pub fn allows(&mut self, now_ns: u64) -> bool {
        let until_ns = self.until_ns.max(now_ns) + self.each_ns;
        let allowed = until_ns <= now_ns + self.burst_ns;
        if allowed {
            self.until_ns = until_ns;
        } else {
            self.refused += 1;
        }
        allowed
    }

    /// Returns how many were refused.
    pub fn refused(&self) -> u64 {
        self.refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_allowed_and_then_the_rate() {
        let mut limit = Limit::new(1000, 10);
        let mut allowed = |now_ns: u64, asked: usize| (0..asked).filter(|_| limit.allows(now_ns)).count();
        assert_eq!(allowed(0, 50), 10);
        assert_eq!(allowed(500_000, 50), 0);
        assert_eq!(allowed(3_000_000, 50), 3);
        assert_eq!(allowed(SECOND_NS, 50), 10, "no more than the burst is saved up");
        assert_eq!(limit.refused(), 200 - 23);
    }
}
