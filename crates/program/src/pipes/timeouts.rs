//! How long a flow may be idle before it expires: one timeout for all states, or one for each.

use weir_table::FlowState;

/// The timeouts of a FLOW pipe. A timeout of 0 means never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    ns: [u64; FlowState::ALL.len()],
    by_state: bool,
}

const SECOND: u64 = 1_000_000_000;

/// The defaults by state are those of Linux's connection tracking (`nf_conntrack_*_timeout*`): UDP 30 s and
/// 120 s as a stream, SYN 120 s, established five days, FINs of both sides (`fin_wait`, `time_wait`) 120 s,
/// RST (`close`) 10 s; except that a half-closed connection (`close_wait`, 60 s) stays for an hour, as
/// Kubernetes sets it. Protocols other than TCP and UDP are treated as UDP.
const CONNTRACK: [u64; FlowState::ALL.len()] =
    [30 * SECOND, 120 * SECOND, 120 * SECOND, 432_000 * SECOND, 120 * SECOND, 10 * SECOND, 3_600 * SECOND];

impl Timeouts {
    /// Never.
    pub const NEVER: Timeouts = Timeouts::all(0);

    /// The defaults by state.
    pub const CONNTRACK: Timeouts = Timeouts { ns: CONNTRACK, by_state: true };

    /// Returns the same timeout in all states.
    #[must_use]
    pub const fn all(ns: u64) -> Timeouts {
        Timeouts { ns: [ns; FlowState::ALL.len()], by_state: false }
    }

    /// Returns the same timeouts, except for this state.
    #[must_use]
    pub fn with(mut self, state: FlowState, ns: u64) -> Timeouts {
        self.ns[state as usize] = ns;
        self.by_state = true;
        self
    }

    /// Whether the timeouts differ by state, in which case states must be tracked.
    #[must_use]
    pub fn are_by_state(&self) -> bool {
        self.by_state
    }

    /// Returns the timeout in a state, in nanoseconds.
    #[must_use]
    pub fn ns(&self, state: FlowState) -> u64 {
        self.ns[state as usize]
    }

    /// Returns all timeouts, in the order of [`FlowState::ALL`].
    #[must_use]
    pub fn each_ns(&self) -> [u64; FlowState::ALL.len()] {
        self.ns
    }
}
