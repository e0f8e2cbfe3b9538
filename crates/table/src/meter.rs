//! Meters: the colour of a packet by the rate of what went before.
//!
//! Two algorithms, colour-blind and colour-aware: the single rate three colour marker (RFC 2697) fills a
//! committed bucket that overflows into an excess bucket; the two rate three colour marker (RFC 2698) fills
//! each of two buckets at a rate of its own.
//!
//! Time is in nanoseconds and rates are in tokens per second, so buckets count billionths of a token: one
//! nanosecond adds exactly `rate` of them. Nothing is divided, so nothing is rounded and nothing drifts; a
//! packet costs a multiplication, a few compares and one cache line. The price is a limit on bursts,
//! [`BURST_MAX`].
//!
//! Promises: buckets start full; a clock that stands still or goes back adds nothing; a gap of any length is
//! handled.

use std::fmt;

/// Fractions per token: the nanoseconds in a second.
const NANO: u64 = 1_000_000_000;

/// The largest burst: 18.4 GB, because a bucket counts billionths in 64 bits.
pub const BURST_MAX: u64 = u64::MAX / NANO;

/// The colour of a packet, from best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Color {
    /// Within the committed rate.
    Green,
    /// Above the committed rate, within the excess burst or the peak rate.
    Yellow,
    /// Above both.
    Red,
}

/// What one token stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// A packet costs its size.
    Bytes,
    /// A packet costs one.
    Packets,
}

/// Whether the incoming colour of a packet counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Awareness {
    /// It does not: every packet is treated as green.
    Blind,
    /// It does: no packet leaves with a better colour than it came with.
    Aware,
}

/// Rates in tokens per second, bursts in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rates {
    /// RFC 2697: CIR, CBS, EBS.
    Single {
        /// CIR: fills the committed bucket, then the excess bucket.
        committed: u64,
        /// CBS: size of the committed bucket.
        committed_burst: u64,
        /// EBS: size of the excess bucket.
        excess_burst: u64,
    },
    /// RFC 2698: CIR, CBS, PIR, PBS.
    Two {
        /// CIR: fills the committed bucket.
        committed: u64,
        /// CBS: size of the committed bucket.
        committed_burst: u64,
        /// PIR: fills the peak bucket; not below CIR.
        peak: u64,
        /// PBS: size of the peak bucket.
        peak_burst: u64,
    },
}

/// Parameters of a meter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MeterConfig {
    /// The algorithm and its numbers.
    pub rates: Rates,
    /// Whether incoming colours count.
    pub awareness: Awareness,
    /// Bytes or packets.
    pub unit: Unit,
}

/// Why a meter could not be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeterError {
    /// A burst is above [`BURST_MAX`].
    BurstTooLarge,
    /// No packet could pass: both bursts of a single rate meter are 0 (RFC 2697 section 2), or one of the two
    /// bursts of a two rate meter is (RFC 2698 section 2).
    NoBurst,
    /// The peak rate is below the committed rate (RFC 2698 section 2).
    PeakBelowCommitted,
}

impl fmt::Display for MeterError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MeterError::BurstTooLarge => write!(formatter, "a burst is above {BURST_MAX}"),
            MeterError::NoBurst => formatter.write_str("a burst of 0 lets no packet pass"),
            MeterError::PeakBelowCommitted => {
                formatter.write_str("the peak rate is below the committed rate")
            }
        }
    }
}

impl std::error::Error for MeterError {}

/// Levels of both buckets, in billionths of a token. The second is the excess or the peak bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Buckets {
    committed: u64,
    second: u64,
}

/// A meter. Occupies a little more than one cache line.
#[derive(Clone, Debug)]
pub struct Meter {
    config: MeterConfig,
    full: Buckets,
    now: Buckets,
    last_ns: u64,
}

impl Meter {
    /// Creates a meter with full buckets.
    ///
    /// # Errors
    /// The numbers contradict the RFC or exceed a limit.
    pub fn new(config: MeterConfig) -> Result<Meter, MeterError> {
        let (committed, second) = match config.rates {
            Rates::Single { committed_burst: 0, excess_burst: 0, .. } => return Err(MeterError::NoBurst),
            Rates::Single { committed_burst, excess_burst, .. } => (committed_burst, excess_burst),
            Rates::Two { committed_burst: 0, .. } | Rates::Two { peak_burst: 0, .. } => {
                return Err(MeterError::NoBurst);
            }
            Rates::Two { committed, peak, .. } if peak < committed => {
                return Err(MeterError::PeakBelowCommitted);
            }
            Rates::Two { committed_burst, peak_burst, .. } => (committed_burst, peak_burst),
        };
        let scale = |burst: u64| burst.checked_mul(NANO).ok_or(MeterError::BurstTooLarge);
        let full = Buckets { committed: scale(committed)?, second: scale(second)? };
        Ok(Meter { config, full, now: full, last_ns: 0 })
    }

    /// Returns the parameters of the meter.
    #[must_use]
    pub fn config(&self) -> &MeterConfig {
        &self.config
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
    fn decide(&self, now_ns: u64, size: u32, incoming: Color) -> (Color, Buckets) {
        let buckets = self.filled(now_ns);
        let incoming = match self.config.awareness {
            Awareness::Blind => Color::Green,
            Awareness::Aware => incoming,
        };
        let cost = match self.config.unit {
            Unit::Bytes => u64::from(size) * NANO,
            Unit::Packets => NANO,
        };
        match self.config.rates {
            Rates::Single { .. } => buckets.spend_single(cost, incoming),
            Rates::Two { .. } => buckets.spend_two(cost, incoming),
        }
    }

    /// The buckets at time `now_ns`, before a packet.
    #[inline]
    fn filled(&self, now_ns: u64) -> Buckets {
        let elapsed = u128::from(now_ns.saturating_sub(self.last_ns));
        let Buckets { committed, second } = self.now;
        match self.config.rates {
            Rates::Single { committed: rate, .. } => {
                let (committed, over) = fill(committed, self.full.committed, elapsed * u128::from(rate));
                Buckets { committed, second: fill(second, self.full.second, over).0 }
            }
            Rates::Two { committed: rate, peak, .. } => Buckets {
                committed: fill(committed, self.full.committed, elapsed * u128::from(rate)).0,
                second: fill(second, self.full.second, elapsed * u128::from(peak)).0,
            },
        }
    }
}

impl Buckets {
    /// RFC 2697 section 3.
    #[inline]
    fn spend_single(self, cost: u64, incoming: Color) -> (Color, Buckets) {
        if incoming == Color::Green && cost <= self.committed {
            (Color::Green, Buckets { committed: self.committed - cost, ..self })
        } else if incoming <= Color::Yellow && cost <= self.second {
            (Color::Yellow, Buckets { second: self.second - cost, ..self })
        } else {
            (Color::Red, self)
        }
    }

    /// RFC 2698 section 3.
    #[inline]
    fn spend_two(self, cost: u64, incoming: Color) -> (Color, Buckets) {
        if incoming == Color::Red || cost > self.second {
            (Color::Red, self)
        } else if incoming == Color::Yellow || cost > self.committed {
            (Color::Yellow, Buckets { second: self.second - cost, ..self })
        } else {
            (Color::Green, Buckets { committed: self.committed - cost, second: self.second - cost })
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

    /// The RFCs, word by word: a clock that ticks every nanosecond and adds billionths of a token to the
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
            let nano = u128::from(NANO);
            match self.config.rates {
                Rates::Single { committed_burst, excess_burst, .. } => {
                    (u128::from(committed_burst) * nano, u128::from(excess_burst) * nano)
                }
                Rates::Two { committed_burst, peak_burst, .. } => {
                    (u128::from(committed_burst) * nano, u128::from(peak_burst) * nano)
                }
            }
        }

        fn tick(&mut self) {
            let (cbs, second) = self.bursts();
            match self.config.rates {
                Rates::Single { committed, .. } => {
                    let sum = self.committed + u128::from(committed);
                    self.committed = sum.min(cbs);
                    self.second = (self.second + sum - self.committed).min(second);
                }
                Rates::Two { committed, peak, .. } => {
                    self.committed = (self.committed + u128::from(committed)).min(cbs);
                    self.second = (self.second + u128::from(peak)).min(second);
                }
            }
        }

        fn color(&mut self, now: u64, size: u32, incoming: Color) -> Color {
            while self.ticks < now {
                self.tick();
                self.ticks += 1;
            }
            let tokens = if self.config.unit == Unit::Packets { 1 } else { u128::from(size) };
            let b = tokens * u128::from(NANO);
            let incoming = if self.config.awareness == Awareness::Blind { Color::Green } else { incoming };
            match (self.config.rates, incoming) {
                (Rates::Single { .. }, Color::Green) if self.committed >= b => {
                    self.committed -= b;
                    Color::Green
                }
                (Rates::Single { .. }, Color::Green | Color::Yellow) if self.second >= b => {
                    self.second -= b;
                    Color::Yellow
                }
                (Rates::Single { .. }, _) => Color::Red,
                (Rates::Two { .. }, Color::Red) => Color::Red,
                (Rates::Two { .. }, _) if self.second < b => Color::Red,
                (Rates::Two { .. }, Color::Green) if self.committed >= b => {
                    self.committed -= b;
                    self.second -= b;
                    Color::Green
                }
                (Rates::Two { .. }, _) => {
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
        let single =
            (rate(), 1_u64..5000, 0_u64..5000).prop_map(|(committed, committed_burst, excess_burst)| {
                Rates::Single { committed, committed_burst, excess_burst }
            });
        let two = (rate(), 1_u64..5000, rate(), 1_u64..5000).prop_map(
            |(committed, committed_burst, more, peak_burst)| Rates::Two {
                committed,
                committed_burst,
                peak: committed + more,
                peak_burst,
            },
        );
        let awareness = prop_oneof![Just(Awareness::Blind), Just(Awareness::Aware)];
        let unit = prop_oneof![3 => Just(Unit::Bytes), 1 => Just(Unit::Packets)];
        (prop_oneof![single, two], awareness, unit).prop_map(|(rates, awareness, unit)| MeterConfig {
            rates,
            awareness,
            unit,
        })
    }

    fn incoming() -> impl Strategy<Value = Color> {
        prop_oneof![3 => Just(Color::Green), 1 => Just(Color::Yellow), 1 => Just(Color::Red)]
    }

    const SINGLE: MeterConfig = MeterConfig {
        rates: Rates::Single { committed: 1000, committed_burst: 100, excess_burst: 50 },
        awareness: Awareness::Blind,
        unit: Unit::Bytes,
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
        let with = |rates| Meter::new(MeterConfig { rates, ..SINGLE }).map(drop);
        let single = |committed_burst, excess_burst| {
            with(Rates::Single { committed: 1, committed_burst, excess_burst })
        };
        let two = |committed, peak, peak_burst| {
            with(Rates::Two { committed, committed_burst: 1, peak, peak_burst })
        };
        assert_eq!(single(0, 0), Err(MeterError::NoBurst));
        assert_eq!(single(0, 1), Ok(()));
        assert_eq!(single(BURST_MAX, BURST_MAX), Ok(()));
        assert_eq!(single(1, BURST_MAX + 1), Err(MeterError::BurstTooLarge));
        assert_eq!(two(2, 1, 1), Err(MeterError::PeakBelowCommitted));
        assert_eq!(two(1, 1, 0), Err(MeterError::NoBurst));
    }

    #[test]
    fn no_gap_is_too_long_and_the_clock_may_go_back() {
        let rates =
            Rates::Single { committed: u64::MAX, committed_burst: BURST_MAX, excess_burst: BURST_MAX };
        let mut meter = Meter::new(MeterConfig { rates, ..SINGLE }).unwrap();
        assert_eq!(meter.color(u64::MAX, u32::MAX, Color::Green), Color::Green);
        assert_eq!(meter.color(0, u32::MAX, Color::Green), Color::Green);
        let spent = meter.now;
        assert_eq!(meter.peek(0, 0, Color::Green), Color::Green);
        assert_eq!(meter.filled(0), spent);
    }

    /// Seven tenths of a token and a fraction every 7 ns, three million times, without losing a token.
    #[test]
    fn nothing_drifts() {
        let rates = Rates::Single { committed: 100_000_001, committed_burst: 2, excess_burst: 0 };
        let mut meter = Meter::new(MeterConfig { rates, ..SINGLE }).unwrap();
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
                prop_assert!(config.awareness == Awareness::Blind || peeked >= incoming);
            }
        }
    }
}
