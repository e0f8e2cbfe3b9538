//! Meters: RFC 2697 §3 and RFC 2698 §3 in billionths of a token, so that a nanosecond at a rate of `r`
//! tokens per second adds exactly `r` of them and nothing is rounded.

use super::trace::Color;
use weir_program::{MeterConfig, MeterSecond, MeterUnit};

const BILLION: u128 = 1_000_000_000;

/// Levels of a meter's two buckets, in billionths of a token, and their time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeterState {
    /// Tc of both RFCs.
    pub committed: u128,
    /// Te of RFC 2697, Tp of RFC 2698.
    pub second: u128,
    /// Time of the levels.
    pub at_ns: u64,
}

impl MeterState {
    /// Returns full buckets.
    pub(super) fn new(config: &MeterConfig) -> MeterState {
        let (committed, second) = bursts(config);
        MeterState { committed, second, at_ns: 0 }
    }

    /// Returns the buckets at a later time; a clock that goes back adds nothing.
    fn filled(self, config: &MeterConfig, now_ns: u64) -> MeterState {
        let elapsed = u128::from(now_ns.saturating_sub(self.at_ns));
        let (cbs, second_burst) = bursts(config);
        let committed = self.committed + elapsed * u128::from(config.cir);
        let second = match config.second {
            // Overflow of the committed bucket.
            MeterSecond::Excess { .. } => self.second + committed.saturating_sub(cbs),
            MeterSecond::Peak { pir, .. } => self.second + elapsed * u128::from(pir),
        };
        MeterState {
            committed: committed.min(cbs),
            second: second.min(second_burst),
            at_ns: now_ns.max(self.at_ns),
        }
    }

    /// Returns the colour of a frame that arrived with the colour `incoming`, and the remaining tokens.
    pub(super) fn color(
        self,
        config: &MeterConfig,
        now_ns: u64,
        bytes: usize,
        incoming: Color,
    ) -> (Color, MeterState) {
        let mut state = self.filled(config, now_ns);
        let incoming = if config.colour_aware { incoming } else { Color::Green };
        let size = match config.unit {
            MeterUnit::Bytes => bytes as u128 * BILLION,
            MeterUnit::Packets => BILLION,
        };
        let color = match config.second {
            MeterSecond::Excess { .. } => {
                if incoming == Color::Green && state.committed >= size {
                    state.committed -= size;
                    Color::Green
                } else if incoming != Color::Red && state.second >= size {
                    state.second -= size;
                    Color::Yellow
                } else {
                    Color::Red
                }
            }
            MeterSecond::Peak { .. } => {
                if incoming == Color::Red || state.second < size {
                    Color::Red
                } else if incoming == Color::Yellow || state.committed < size {
                    state.second -= size;
                    Color::Yellow
                } else {
                    state.second -= size;
                    state.committed -= size;
                    Color::Green
                }
            }
        };
        (color, state)
    }
}

/// Returns both bursts, in billionths of a token.
fn bursts(config: &MeterConfig) -> (u128, u128) {
    let second = match config.second {
        MeterSecond::Excess { ebs } => ebs,
        MeterSecond::Peak { pbs, .. } => pbs,
    };
    (u128::from(config.cbs) * BILLION, u128::from(second) * BILLION)
}
