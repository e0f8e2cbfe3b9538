//! Whether a server is up, as a pure function of the outcomes of checks and of time.

use super::weights::RAMP;
use weir_app::check::Outcome;
use weir_packet::random::Random;

/// How long to wait for an outcome after a check's timeout. The executor reports an outcome for every check,
/// so if there is none by then, the check could not be carried out.
const PATIENCE_NS: u64 = 5_000_000_000;

/// The first check of a server starts within this time, so that the checks of many servers do not all start
/// at once.
const FIRST_NS: u64 = 1_000_000_000;

/// When a server is checked, and how many outcomes change its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Times {
    /// From the start of one check to the start of the next, in nanoseconds.
    pub interval_ns: u64,
    /// How far intervals randomly deviate from `interval_ns`, in both directions: at most 1000 thousandths.
    pub jitter: u32,
    /// Good outcomes in a row that make a server up.
    pub rise: u32,
    /// Bad outcomes in a row that make it down.
    pub fall: u32,
    /// How long its weight rises after it was down, in nanoseconds; 0 restores the full weight at once.
    pub slow_start_ns: u64,
}

/// Whether a server is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerState {
    /// No check has ended yet; the first outcome determines the state. Until then it counts as up, because
    /// restarting weir must not take down a working service.
    Unknown,
    /// The server works.
    Up,
    /// The server does not work.
    Down,
}

/// The next step, which the caller carries out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Wait,
    /// A check must be started: [`Monitor::asked`] follows.
    Ask,
    /// The check in flight has no outcome: [`Monitor::handle`] follows, with an error.
    Unanswered,
}

/// The state of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Monitor {
    times: Times,
    state: ServerState,
    since_ns: u64,
    /// Whether it was down before it came up, so that its weight rises slowly.
    rises: bool,
    /// Consecutive outcomes that contradict the state.
    against: u32,
    /// Why the last check failed; empty if it did not.
    why: String,
    next_ns: u64,
    /// When to stop waiting for the outcome of the check in flight.
    until_ns: Option<u64>,
    last: Option<LastCheck>,
    counts: CheckCounts,
}

/// A server's last completed check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastCheck {
    /// When its outcome became known, in nanoseconds.
    pub ended_ns: u64,
    /// Whether the outcome was good.
    pub passed: bool,
}

/// Counts of a server, which never decrease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckCounts {
    /// Checks with a good outcome.
    pub passed: u64,
    /// Checks with a bad outcome.
    pub failed: u64,
    /// The number of times that the server has gone up or down.
    pub changes: u64,
}

impl Monitor {
    /// A server about which nothing is known.
    #[must_use]
    pub fn new(times: Times, now_ns: u64, random: &mut Random) -> Monitor {
        Monitor {
            times,
            state: ServerState::Unknown,
            since_ns: now_ns,
            rises: false,
            against: 0,
            why: String::new(),
            next_ns: now_ns + random.below(times.interval_ns.min(FIRST_NS)),
            until_ns: None,
            last: None,
            counts: CheckCounts::default(),
        }
    }

    /// Returns when [`Monitor::step`] must be called.
    #[must_use]
    pub fn due_ns(&self) -> u64 {
        self.until_ns.unwrap_or(self.next_ns)
    }

    /// Returns what must be done now.
    #[must_use]
    pub fn step(&self, now_ns: u64) -> Step {
        match self.until_ns {
            _ if now_ns < self.due_ns() => Step::Wait,
            Some(_) => Step::Unanswered,
            None => Step::Ask,
        }
    }

    /// Records the start of a check that ends within its timeout.
    pub fn asked(&mut self, now_ns: u64, timeout_ns: u64, random: &mut Random) {
        self.until_ns = Some(now_ns.saturating_add(timeout_ns).saturating_add(PATIENCE_NS));
        let Times { interval_ns, jitter, .. } = self.times;
        let most = (u128::from(interval_ns) * u128::from(jitter.min(1000)) / 1000) as u64;
        let offset = random.below(2 * most + 1);
        self.next_ns = now_ns.saturating_add(interval_ns - most + offset);
    }

    /// Records the outcome of the check in flight. Returns true if the server went up or down.
    pub fn handle(&mut self, now_ns: u64, outcome: &Outcome) -> bool {
        self.until_ns = None;
        let good = outcome.is_ok();
        let count = if good { &mut self.counts.passed } else { &mut self.counts.failed };
        *count += 1;
        self.last = Some(LastCheck { ended_ns: now_ns, passed: good });
        self.why = outcome.as_ref().err().cloned().unwrap_or_default();
        let (to, needed) =
            if good { (ServerState::Up, self.times.rise) } else { (ServerState::Down, self.times.fall) };
        if self.state == to {
            self.against = 0;
            return false;
        }
        self.against += 1;
        if self.state != ServerState::Unknown && self.against < needed {
            return false;
        }
        self.rises = self.state == ServerState::Down;
        self.set(to, now_ns);
        true
    }

    /// Restarts after a period without checks. The earlier outcomes may be out of date, so the server counts
    /// as down until one check passes.
    pub fn restart(&mut self, now_ns: u64) {
        self.set(ServerState::Down, now_ns);
        self.against = self.times.rise.saturating_sub(1);
        (self.next_ns, self.until_ns) = (now_ns, None);
        self.why = "it has not been checked since maintenance".to_string();
    }

    fn set(&mut self, state: ServerState, now_ns: u64) {
        if self.state != state {
            self.counts.changes += u64::from(self.state != ServerState::Unknown);
            (self.state, self.since_ns) = (state, now_ns);
        }
        self.against = 0;
    }

    /// Returns the state.
    #[must_use]
    pub fn state(&self) -> ServerState {
        self.state
    }

    /// Returns when it entered that state.
    #[must_use]
    pub fn since_ns(&self) -> u64 {
        self.since_ns
    }

    /// Returns the last completed check; `None` if there is none yet.
    #[must_use]
    pub fn last(&self) -> Option<LastCheck> {
        self.last
    }

    /// Returns the counts.
    #[must_use]
    pub fn counts(&self) -> CheckCounts {
        self.counts
    }

    /// Returns how many tenths ([`RAMP`]) of its weight the server has if it is up.
    #[must_use]
    pub fn share(&self, now_ns: u64) -> u32 {
        let slow = self.times.slow_start_ns;
        if !self.rises || slow == 0 {
            return RAMP;
        }
        let steps = u128::from(now_ns.saturating_sub(self.since_ns)) * u128::from(RAMP) / u128::from(slow);
        (steps as u32).saturating_add(1).min(RAMP)
    }

    /// Returns when that share grows next; `None` if it is already the full weight, or the server is not up.
    #[must_use]
    pub fn grows_ns(&self, now_ns: u64) -> Option<u64> {
        let share = self.share(now_ns);
        let elapsed = (u128::from(self.times.slow_start_ns) * u128::from(share)).div_ceil(u128::from(RAMP));
        (self.state == ServerState::Up && share < RAMP).then(|| self.since_ns.saturating_add(elapsed as u64))
    }

    /// Explains its state, or lists the outcomes that contradict it; empty if there is nothing to explain.
    #[must_use]
    pub fn reason(&self) -> String {
        let Times { rise, fall, .. } = self.times;
        match self.state {
            ServerState::Unknown => "no check has finished yet".to_string(),
            ServerState::Down if self.why.is_empty() => format!("{} of {rise} good checks", self.against),
            ServerState::Up if self.against > 0 => {
                format!("{} of {fall} bad checks: {}", self.against, self.why)
            }
            ServerState::Up | ServerState::Down => self.why.clone(),
        }
    }
}
