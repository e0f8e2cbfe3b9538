//! Finds the highest rate without loss, by trials: the interval in which it lies is bisected, and the result
//! must be confirmed.
//!
//! One trial without loss says little: the rate that a worker can carry changes from one tenth of a second to
//! the next, because other programs use the same memory and the same core. A rate is therefore returned only
//! after [`CONFIRMATIONS`] trials in a row have carried it; a loss lowers the rate, and the confirmation
//! begins again.
//!
//! A loss in a trial in which the sender was late, or the worker did not have its core, proves nothing about
//! the worker. Such a trial is repeated, and counts as a loss only if every repetition is disturbed too.

/// The precision of the rate, as a share of the rate at which the search began.
const EXACT: f64 = 0.01;

/// The factor with which a rate that was not confirmed is multiplied.
const LOWERED: f64 = 0.97;

/// Number of consecutive trials that must carry a rate.
pub const CONFIRMATIONS: u32 = 12;

/// Number of trials at one rate that may be disturbed before they count.
const REPETITIONS: u32 = 8;

/// The result of a trial at a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trial {
    /// Every frame was carried.
    Carried,
    /// Frames were lost.
    Lost,
    /// Frames were lost, but the sender was late or the worker did not have its core.
    Disturbed,
}

/// A search whose trials are run by the caller, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// The highest rate that was carried, and the lowest rate that was not.
    carried: f64,
    lost: f64,
    exact: f64,
    rate: f64,
    confirmed: u32,
    disturbed: u32,
}

impl Search {
    /// Begins a search below `ceiling` frames per second, a rate at which frames are lost, or nearly so.
    #[must_use]
    pub fn below(ceiling: f64) -> Search {
        let exact = ceiling * EXACT;
        Search { carried: 0.0, lost: ceiling, exact, rate: ceiling / 2.0, confirmed: 0, disturbed: 0 }
    }

    /// Returns the rate to try next, in frames per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// Takes the outcome of a trial at [`rate`](Search::rate). Returns the highest rate without loss once it
    /// is found; 0 if there is none.
    pub fn judge(&mut self, trial: Trial) -> Option<f64> {
        if trial == Trial::Disturbed && self.disturbed < REPETITIONS {
            self.disturbed += 1;
            return None;
        }
        self.disturbed = 0;
        let halving = self.lost - self.carried > self.exact;
        match trial {
            Trial::Carried if halving => self.carried = self.rate,
            Trial::Carried => {
                self.confirmed += 1;
                return (self.confirmed == CONFIRMATIONS).then_some(self.rate);
            }
            _ if halving => self.lost = self.rate,
            _ => {
                self.confirmed = 0;
                self.carried *= LOWERED;
                self.lost = self.carried;
            }
        }
        self.rate = if self.lost - self.carried > self.exact {
            f64::midpoint(self.carried, self.lost)
        } else {
            self.carried
        };
        (self.rate < self.exact).then_some(0.0)
    }
}

/// Returns the highest rate without loss, in frames per second, below `ceiling`; 0 if there is none. `trial`
/// sends at the given rate and counts the lost frames. It must send for long enough that a receive ring would
/// overflow several times if the rate were 1 % too high: for a ring of 4096 frames at a million frames per
/// second, a quarter of a second. Any program and any ports will do.
///
/// # Errors
/// Returns the error of a trial that could not be run.
pub fn rate_without_loss<E>(ceiling: f64, mut trial: impl FnMut(f64) -> Result<Trial, E>) -> Result<f64, E> {
    let mut search = Search::below(ceiling);
    loop {
        if let Some(found) = search.judge(trial(search.rate())?) {
            return Ok(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn found(trial: impl FnMut(f64) -> Trial) -> f64 {
        let mut trial = trial;
        rate_without_loss(1000.0, |rate| Ok::<_, Infallible>(trial(rate))).expect("trials do not fail")
    }

    fn carried_below(limit: f64, rate: f64) -> Trial {
        if rate <= limit { Trial::Carried } else { Trial::Lost }
    }

    #[test]
    fn the_rate_is_that_of_the_worker() {
        for limit in [1000.0, 999.0, 730.0, 500.0, 42.0] {
            let rate = found(|rate| carried_below(limit, rate));
            assert!(rate <= limit && rate > limit - 10.0, "{rate} of {limit}");
        }
        assert_eq!(found(|_| Trial::Lost), 0.0);
    }

    #[test]
    fn a_worker_that_is_slow_now_and_then_is_taken_at_its_slowest() {
        let mut trials = 0;
        let rate = found(|rate| {
            trials += 1;
            carried_below(if trials % 10 == 0 { 600.0 } else { 800.0 }, rate)
        });
        assert!((580.0..=600.0).contains(&rate), "{rate}");
    }

    #[test]
    fn a_disturbed_trial_is_repeated_and_says_nothing() {
        let mut trials = 0;
        let rate = found(|rate| {
            trials += 1;
            if trials % 3 > 0 { Trial::Disturbed } else { carried_below(700.0, rate) }
        });
        assert!((690.0..=700.0).contains(&rate), "{rate}");
        // If every trial is disturbed, the disturbance is part of the machine.
        let rate = found(|rate| if rate > 300.0 { Trial::Disturbed } else { Trial::Carried });
        assert!((290.0..=300.0).contains(&rate), "{rate}");
    }
}
