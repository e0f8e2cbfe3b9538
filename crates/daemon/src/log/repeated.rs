//! Limits on repeated lines: on identical lines, and on lines that differ only in words with a digit, such as
//! addresses and counts. The latter limit is far above what a single cause produces, for example the loss of
//! a link with hundreds of back ends behind it.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

/// The burst size, and the interval after which one more line is allowed.
struct Limit {
    burst: u32,
    refill: Duration,
}

const SAME: Limit = Limit { burst: 16, refill: Duration::from_secs(30) };
const ALIKE: Limit = Limit { burst: 1024, refill: Duration::from_secs(1) };

/// The maximum number of kinds of lines to remember.
const KINDS: usize = 4096;

/// The allowance of one kind: a token bucket, stored as the time at which it is full again.
#[derive(Clone, Copy)]
struct Allowance {
    full: Instant,
    kept_back: u64,
}

impl Allowance {
    fn has_room(&self, limit: &Limit, now: Instant) -> bool {
        self.full.max(now) + limit.refill <= now + limit.refill * limit.burst
    }

    fn take(&mut self, limit: &Limit, now: Instant) -> u64 {
        self.full = self.full.max(now) + limit.refill;
        std::mem::take(&mut self.kept_back)
    }
}

/// The lines so far.
#[derive(Default)]
pub struct Repeated {
    kinds: HashMap<u64, Allowance>,
    /// Keyed, because parts of a line may come from the network.
    hash: RandomState,
}

impl Repeated {
    /// Returns whether a line may be written now: how many similar ones were suppressed before it, or `None`.
    pub fn take(&mut self, line: &str, now: Instant) -> Option<u64> {
        let is_number = |word: &&str| word.contains(|letter: char| letter.is_ascii_digit());
        let alike = line.split(' ').map(|word| if is_number(&word) { "#" } else { word });
        let alike: Vec<&str> = alike.collect();
        let (same, alike) = (self.hash.hash_one(line), self.hash.hash_one(alike));
        self.make_room(now);
        let mut of = |kind| *self.kinds.entry(kind).or_insert(Allowance { full: now, kept_back: 0 });
        let (mut one, mut all) = (of(same), of(alike));
        let kept_back = if !one.has_room(&SAME, now) {
            one.kept_back += 1;
            None
        } else if !all.has_room(&ALIKE, now) {
            all.kept_back += 1;
            None
        } else {
            Some(one.take(&SAME, now) + all.take(&ALIKE, now))
        };
        self.kinds.extend([(same, one), (alike, all)]);
        kept_back
    }

    /// Forgets kinds that have not been logged for long, or all kinds if that is not enough.
    fn make_room(&mut self, now: Instant) {
        if self.kinds.len() + 2 > KINDS {
            self.kinds.retain(|_, one| one.full > now || one.kept_back > 0);
        }
        if self.kinds.len() + 2 > KINDS {
            self.kinds.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_repeats_is_kept_back_and_counted() {
        let (mut repeated, start) = (Repeated::default(), Instant::now());
        let said = (0..100).filter(|_| repeated.take("p0 is down", start).is_some()).count();
        assert_eq!(said, 16);
        assert_eq!(repeated.take("p1 is down", start), Some(0), "a different line is not suppressed");
        assert_eq!(repeated.take("p0 is down", start + Duration::from_secs(30)), Some(84));
        assert_eq!(repeated.take("p0 is down", start + Duration::from_secs(31)), None);
    }

    #[test]
    fn addresses_and_counts_make_no_difference_to_a_flood() {
        let (mut repeated, start) = (Repeated::default(), Instant::now());
        let said =
            (0..10_000).filter(|n| repeated.take(&format!("10.0.0.1 is 02:00:{n:04x}"), start).is_some());
        assert_eq!(said.count(), 1024, "hundreds of back ends may go down at once");
        assert!(repeated.kinds.len() <= KINDS);
        assert!(repeated.take("10.0.0.1 is 02:00:ffff9", start + Duration::from_secs(1)) > Some(1000));
    }
}
