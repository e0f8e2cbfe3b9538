//! Meters: the colour of a packet, given the rate of the packets before it.
//!
//! Two algorithms, each of which can be colour-blind or colour-aware: the single rate three colour marker
//! (RFC 2697) fills a committed bucket that overflows into an excess bucket; the two rate three colour marker
//! (RFC 2698) fills each of two buckets at a rate of its own.
//!
//! Time is in nanoseconds and rates are in tokens per second, so buckets count billionths of a token: one
//! nanosecond adds exactly `rate` of them. Nothing is divided, so nothing is rounded and nothing drifts; a
//! packet costs a multiplication, a few compares and one cache line. The price is a limit on bursts,
//! [`BURST_MAX`].
//!
//! Promises: buckets start full; a clock that stands still or goes back adds nothing; a gap of any length is
//! handled.

use std::fmt;
use thiserror::Error;

/// Fractions per token: the nanoseconds in a second.
const NANO: u64 = 1_000_000_000;

/// The largest burst: 18.4 GB, because a bucket counts billionths in 64 bits.
pub const BURST_MAX: u64 = u64::MAX / NANO;

/// The colour of a packet, from best to worst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Color {
    /// Within the committed rate.
    #[default]
    Green,
    /// Above the committed rate, within the excess burst or the peak rate.
    Yellow,
    /// Above both.
    Red,
}

impl fmt::Display for Color {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Color::Green => "green",
            Color::Yellow => "yellow",
            Color::Red => "red",
        })
    }
}

/// The rates and bursts of a meter with two token buckets (RFC 2697, RFC 2698).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeterConfig {
    /// What one token is: a byte of a frame, or a frame. Rates and bursts are in this unit.
    pub unit: MeterUnit,
    /// Committed information rate, in units per second: packets within it are green.
    pub cir: u64,
    /// Committed burst size, in units: the size of the first bucket.
    pub cbs: u64,
    /// The second bucket, which separates yellow from red packets.
    pub second: MeterSecond,
    /// Whether to take the packet's colour into account (RFC 2697 §2, RFC 2698 §2).
    pub colour_aware: bool,
}

/// What a meter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeterUnit {
    /// Bytes of the frame, without FCS.
    Bytes,
    /// Frames.
    Packets,
}

/// The second token bucket of a meter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeterSecond {
    /// RFC 2697: an excess burst, filled by the overflow of the committed one.
    Excess {
        /// Excess burst, in units.
        ebs: u64,
    },
    /// RFC 2698: a separate peak rate.
    Peak {
        /// Peak rate, in units per second.
        pir: u64,
        /// Peak burst, in units.
        pbs: u64,
    },
}

/// Why a meter could not be created.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum MeterError {
    /// A burst is above [`BURST_MAX`].
    #[error("a burst is above {BURST_MAX}")]
    BurstTooLarge,
    /// No packet could pass: both bursts of a single rate meter are 0 (RFC 2697 section 2), or one of the two
    /// bursts of a two rate meter is (RFC 2698 section 2).
    #[error("a burst of 0 passes no packet")]
    NoBurst,
    /// The peak rate is below the committed rate (RFC 2698 section 2).
    #[error("the peak rate is below the committed rate")]
    PeakBelowCommitted,
}

/// Levels of both buckets, in billionths of a token. The second is the excess or the peak bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TokenBuckets {
    committed: u64,
    second: u64,
}

/// A meter. Occupies a little more than one cache line.
#[derive(Clone, Debug)]
pub struct Meter {
    config: MeterConfig,
    full: TokenBuckets,
    now: TokenBuckets,
    last_ns: u64,
}

impl Meter {
    /// Creates a meter with full buckets.
    ///
    /// # Errors
    /// The numbers contradict the RFC or exceed a limit.
    pub fn new(config: MeterConfig) -> Result<Meter, MeterError> {
        let second = match config.second {
            MeterSecond::Excess { ebs: 0 } if config.cbs == 0 => return Err(MeterError::NoBurst),
            MeterSecond::Excess { ebs } => ebs,
            MeterSecond::Peak { pbs, .. } if config.cbs == 0 || pbs == 0 => return Err(MeterError::NoBurst),
            MeterSecond::Peak { pir, .. } if pir < config.cir => return Err(MeterError::PeakBelowCommitted),
            MeterSecond::Peak { pbs, .. } => pbs,
        };
        let scale = |burst: u64| burst.checked_mul(NANO).ok_or(MeterError::BurstTooLarge);
        let full = TokenBuckets { committed: scale(config.cbs)?, second: scale(second)? };
        Ok(Meter { config, full, now: full, last_ns: 0 })
    }

    /// Returns the colour of a packet of `size` bytes and spends its tokens. A blind meter ignores
    /// `incoming`.
    #[inline]
    pub fn color(&mut self, now_ns: u64, size: u32, incoming: Color) -> Color {
        let (color, buckets) = self.decide(now_ns, size, incoming);
        self.now = buckets;
        self.last_ns = self.last_ns.max(now_ns);
        color
    }

    /// Returns what [`Meter::color`] would return, without spending anything.
    #[inline]
    #[must_use]
    pub fn peek(&self, now_ns: u64, size: u32, incoming: Color) -> Color {
        self.decide(now_ns, size, incoming).0
    }

    #[inline]
    fn decide(&self, now_ns: u64, size: u32, incoming: Color) -> (Color, TokenBuckets) {
        let buckets = self.filled(now_ns);
        let incoming = if self.config.colour_aware { incoming } else { Color::Green };
        let cost = match self.config.unit {
            MeterUnit::Bytes => u64::from(size) * NANO,
            MeterUnit::Packets => NANO,
        };
        match self.config.second {
            MeterSecond::Excess { .. } => buckets.spend_single(cost, incoming),
            MeterSecond::Peak { .. } => buckets.spend_two(cost, incoming),
        }
    }

    /// The buckets at time `now_ns`, before a packet.
    #[inline]
    fn filled(&self, now_ns: u64) -> TokenBuckets {
        let elapsed = u128::from(now_ns.saturating_sub(self.last_ns));
        let TokenBuckets { committed, second } = self.now;
        let (committed, over) = fill(committed, self.full.committed, elapsed * u128::from(self.config.cir));
        let gain = match self.config.second {
            MeterSecond::Excess { .. } => over,
            MeterSecond::Peak { pir, .. } => elapsed * u128::from(pir),
        };
        TokenBuckets { committed, second: fill(second, self.full.second, gain).0 }
    }
}

impl TokenBuckets {
    /// RFC 2697 section 3.
    #[inline]
    fn spend_single(self, cost: u64, incoming: Color) -> (Color, TokenBuckets) {
        if incoming == Color::Green && cost <= self.committed {
            (Color::Green, TokenBuckets { committed: self.committed - cost, ..self })
        } else if incoming <= Color::Yellow && cost <= self.second {
            (Color::Yellow, TokenBuckets { second: self.second - cost, ..self })
        } else {
            (Color::Red, self)
        }
    }

    /// RFC 2698 section 3.
    #[inline]
    fn spend_two(self, cost: u64, incoming: Color) -> (Color, TokenBuckets) {
        if incoming == Color::Red || cost > self.second {
            (Color::Red, self)
        } else if incoming == Color::Yellow || cost > self.committed {
            (Color::Yellow, TokenBuckets { second: self.second - cost, ..self })
        } else {
            (Color::Green, TokenBuckets { committed: self.committed - cost, second: self.second - cost })
        }
    }
}

/// Fills a bucket. Returns its new level and the overflow.
#[inline]
fn fill(level: u64, full: u64, gain: u128) -> (u64, u128) {
    let room = u128::from(full - level);
    if gain <= room { (level + gain as u64, 0) } else { (full, gain - room) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The RFCs, word for word: a clock that ticks every nanosecond and adds billionths of a token to the
    /// buckets one at a time (as many as the rate says), counted from time zero.
    struct Twin {
        config: MeterConfig,
        committed: u128,
        second: u128,
        ticks: u64,
    }

    impl Twin {
        fn new(config: MeterConfig) -> Twin {
            let mut twin = Twin { config, committed: 0, second: 0, ticks: 0 };
            (twin.committed, twin.second) = twin.bursts();
            twin
        }

        fn bursts(&self) -> (u128, u128) {
            let (MeterSecond::Excess { ebs: second } | MeterSecond::Peak { pbs: second, .. }) =
                self.config.second;
            (u128::from(self.config.cbs) * u128::from(NANO), u128::from(second) * u128::from(NANO))
        }

        fn tick(&mut self) {
            let (cbs, second) = self.bursts();
            let sum = self.committed + u128::from(self.config.cir);
            self.committed = sum.min(cbs);
            self.second += match self.config.second {
                MeterSecond::Excess { .. } => sum - self.committed,
                MeterSecond::Peak { pir, .. } => u128::from(pir),
            };
            self.second = self.second.min(second);
        }

        fn color(&mut self, now: u64, size: u32, incoming: Color) -> Color {
            while self.ticks < now {
                self.tick();
                self.ticks += 1;
            }
            let tokens = if self.config.unit == MeterUnit::Packets { 1 } else { u128::from(size) };
            let b = tokens * u128::from(NANO);
            let incoming = if self.config.colour_aware { incoming } else { Color::Green };
            match (self.config.second, incoming) {
                (MeterSecond::Excess { .. }, Color::Green) if self.committed >= b => {
                    self.committed -= b;
                    Color::Green
                }
                (MeterSecond::Excess { .. }, Color::Green | Color::Yellow) if self.second >= b => {
                    self.second -= b;
                    Color::Yellow
                }
                (MeterSecond::Excess { .. }, _) => Color::Red,
                (MeterSecond::Peak { .. }, Color::Red) => Color::Red,
                (MeterSecond::Peak { .. }, _) if self.second < b => Color::Red,
                (MeterSecond::Peak { .. }, Color::Green) if self.committed >= b => {
                    self.committed -= b;
                    self.second -= b;
                    Color::Green
                }
                (MeterSecond::Peak { .. }, _) => {
                    self.second -= b;
                    Color::Yellow
                }
            }
        }
    }

    fn rate() -> impl Strategy<Value = u64> {
        prop_oneof![0_u64..10, 1_u64..100_000_000_000, Just(12_500_000_000)]
    }

    fn config() -> impl Strategy<Value = MeterConfig> {
        let excess = (0_u64..5000).prop_map(|ebs| (0, MeterSecond::Excess { ebs }));
        let peak = (rate(), 1_u64..5000).prop_map(|(more, pbs)| (more, MeterSecond::Peak { pir: 0, pbs }));
        let unit = prop_oneof![3 => Just(MeterUnit::Bytes), 1 => Just(MeterUnit::Packets)];
        (rate(), 1_u64..5000, prop_oneof![excess, peak], any::<bool>(), unit).prop_map(
            |(cir, cbs, (more, second), colour_aware, unit)| {
                let second = match second {
                    MeterSecond::Peak { pbs, .. } => MeterSecond::Peak { pir: cir + more, pbs },
                    excess => excess,
                };
                MeterConfig { unit, cir, cbs, second, colour_aware }
            },
        )
    }

    fn incoming() -> impl Strategy<Value = Color> {
        prop_oneof![3 => Just(Color::Green), 1 => Just(Color::Yellow), 1 => Just(Color::Red)]
    }

    const SINGLE: MeterConfig = MeterConfig {
        unit: MeterUnit::Bytes,
        cir: 1000,
        cbs: 100,
        second: MeterSecond::Excess { ebs: 50 },
        colour_aware: false,
    };

    #[test]
    fn a_single_rate_spends_committed_then_excess_tokens() {
        let mut meter = Meter::new(SINGLE).unwrap();
        let colors: Vec<_> = (0..4).map(|_| meter.color(0, 50, Color::Red)).collect();
        assert_eq!(colors, [Color::Green, Color::Green, Color::Yellow, Color::Red]);
        assert_eq!(meter.color(50_000_000, 50, Color::Green), Color::Green, "50 ms at 1000 B/s are 50 bytes");
        assert_eq!(meter.color(99_999_999, 50, Color::Green), Color::Red, "a nanosecond too early");
        assert_eq!(meter.color(100_000_000, 50, Color::Green), Color::Green);
    }

    #[test]
    fn what_contradicts_the_rfc_is_refused() {
        let with = |cir, cbs, second| Meter::new(MeterConfig { cir, cbs, second, ..SINGLE }).map(drop);
        let single = |cbs, ebs| with(1, cbs, MeterSecond::Excess { ebs });
        let two = |cir, pir, pbs| with(cir, 1, MeterSecond::Peak { pir, pbs });
        assert_eq!(single(0, 0), Err(MeterError::NoBurst));
        assert_eq!(single(0, 1), Ok(()));
        assert_eq!(single(BURST_MAX, BURST_MAX), Ok(()));
        assert_eq!(single(1, BURST_MAX + 1), Err(MeterError::BurstTooLarge));
        assert_eq!(two(2, 1, 1), Err(MeterError::PeakBelowCommitted));
        assert_eq!(two(1, 1, 0), Err(MeterError::NoBurst));
    }

    #[test]
    fn no_gap_is_too_long_and_the_clock_may_go_back() {
        let second = MeterSecond::Excess { ebs: BURST_MAX };
        let config = MeterConfig { cir: u64::MAX, cbs: BURST_MAX, second, ..SINGLE };
        let mut meter = Meter::new(config).unwrap();
        assert_eq!(meter.color(u64::MAX, u32::MAX, Color::Green), Color::Green);
        assert_eq!(meter.color(0, u32::MAX, Color::Green), Color::Green);
        let spent = meter.now;
        assert_eq!(meter.peek(0, 0, Color::Green), Color::Green);
        assert_eq!(meter.filled(0), spent);
    }

    /// Adds seven tenths of a token and a fraction every 7 ns, three million times, without losing a token.
    #[test]
    fn nothing_drifts() {
        let second = MeterSecond::Excess { ebs: 0 };
        let mut meter = Meter::new(MeterConfig { cir: 100_000_001, cbs: 2, second, ..SINGLE }).unwrap();
        let green = |n: &u64| meter.color(n * 7, 1, Color::Green) == Color::Green;
        let passed = (0..3_000_000_u64).filter(green).count() as u64;
        assert_eq!(passed, 2 + 2_999_999 * 7 * 100_000_001 / NANO);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn it_does_what_the_rfcs_say(
            config in config(),
            packets in prop::collection::vec((0_u64..400, 0_u32..3000, incoming()), 1..100),
        ) {
            let (mut meter, mut twin, mut now) = (Meter::new(config).unwrap(), Twin::new(config), 0);
            for (gap, size, incoming) in packets {
                now += gap;
                let expected = twin.color(now, size, incoming);
                prop_assert_eq!(meter.peek(now, size, incoming), expected);
                prop_assert_eq!(meter.color(now, size, incoming), expected);
                prop_assert_eq!((u128::from(meter.now.committed), u128::from(meter.now.second)),
                    (twin.committed, twin.second));
            }
        }

        #[test]
        fn nothing_overflows(config in config(), packets in prop::collection::vec((any::<u64>(),
            any::<u32>(), incoming()), 1..50)) {
            let mut meter = Meter::new(config).unwrap();
            for (now, size, incoming) in packets {
                let peeked = meter.peek(now, size, incoming);
                prop_assert_eq!(meter.color(now, size, incoming), peeked);
                prop_assert!(!config.colour_aware || peeked >= incoming);
            }
        }
    }
}
