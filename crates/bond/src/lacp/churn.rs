//! Churn detection (802.1AX 6.4.17): an end that has been out of sync for a minute will most likely never be
//! in sync.

/// How long an end may be out of sync, in nanoseconds.
const CHURN_NS: u64 = 60_000_000_000;

/// Churn detection for one end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Churn {
    /// The link is down, so nothing is expected.
    #[default]
    Idle,
    /// Out of sync; churn begins at this time.
    Watching(u64),
    /// In sync.
    None,
    /// Out of sync for too long.
    Churning,
}

impl Churn {
    /// Updates the state. Returns true if churn begins now.
    pub(super) fn look(&mut self, now_ns: u64, link_up: bool, sync: bool) -> bool {
        let before = *self;
        *self = match before {
            _ if !link_up => Churn::Idle,
            _ if sync => Churn::None,
            Churn::Idle | Churn::None => Churn::Watching(now_ns.saturating_add(CHURN_NS)),
            Churn::Watching(until) if now_ns >= until => Churn::Churning,
            Churn::Watching(_) | Churn::Churning => before,
        };
        *self == Churn::Churning && before != Churn::Churning
    }

    /// Returns when the state must be updated next.
    pub(super) fn wake_ns(&self) -> Option<u64> {
        if let Churn::Watching(until) = self { Some(*until) } else { None }
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Churn::Idle => "idle",
            Churn::Watching(_) => "watching",
            Churn::None => "none",
            Churn::Churning => "churning",
        }
    }
}
