//! Churn detection (802.1AX 6.4.17): an end that has not come into sync within a minute most likely never will.

/// How long an end may be out of sync.
const CHURN_NS: u64 = 60_000_000_000;

/// One end's detector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Churn {
    /// No link: nothing is expected.
    #[default]
    Idle,
    /// Out of sync; churn from then on.
    Watching(u64),
    /// In sync.
    None,
    /// Out of sync for too long.
    Churning,
}

impl Churn {
    /// Looks at the end again. True if churn begins now.
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

    /// When it must be looked at again.
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
