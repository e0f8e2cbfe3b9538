//! Whether large frames fit a path.
//!
//! A link whose MTU is too small drops large frames but passes small probes, so a path over it would seem
//! good while connections on it stall. Therefore, requests are occasionally padded to the maximum size of the
//! tunnel's outer packets. A path that loses several of these in a row, while small probes return, is grey.
//!
//! A node that runs an older weir does not answer padded requests, and a fabric may be narrower than the
//! tunnel on all paths. In neither case is a single path to blame, so no path is judged before one path has
//! answered.

use super::{Path, Paths, State};
use std::fmt;
use weir_packet::random::Random;

/// Time between two large probes of a path, ns.
const EVERY_NS: u64 = 10_000_000_000;

/// How long to wait for the answer to a large probe before it counts as lost, ns: a long queue is not a loss.
/// The next large probe then follows at once, until it is clear whether the path drops them.
const LOST_AFTER_NS: u64 = 1_000_000_000;

/// Consecutive lost large probes after which a path is considered to drop large frames.
pub const LARGE_MISSES_MAX: u32 = 3;

/// What is known about large frames on a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fit {
    /// Too few large probes were sent.
    #[default]
    Unknown,
    /// The latest large probes were answered.
    Pass,
    /// The path drops large probes, and another path does not, or did not.
    Lost,
    /// No path has ever answered a large probe.
    Unanswered,
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fit::Unknown => "unknown",
            Fit::Pass => "pass",
            Fit::Lost => "lost",
            Fit::Unanswered => "unanswered",
        })
    }
}

/// The large probes of one path.
#[derive(Clone, Debug, Default)]
pub(super) struct Large {
    due_ns: u64,
    /// The number of the probe in flight, and when it left.
    pending: Option<(u32, u64)>,
    next: u32,
    /// The number of large probes lost since the last answer.
    misses: u32,
    /// Whether a large probe has been answered.
    has_passed: bool,
}

impl Large {
    /// Gives up a late probe. It counts as lost only if small probes of the path are answered.
    fn give_up(&mut self, before: u64, small_return: bool) {
        if self.pending.is_some_and(|(_, sent)| sent <= before) {
            self.pending = None;
            if small_return {
                self.misses = self.misses.saturating_add(1);
                self.due_ns = if self.misses < LARGE_MISSES_MAX { 0 } else { self.due_ns };
            }
        }
    }
}

impl Path {
    pub(super) fn give_up_large(&mut self, now: u64, lost_after_ns: u64) {
        let before = now.saturating_sub(LOST_AFTER_NS.max(lost_after_ns));
        let small_return = self.returns_small();
        self.large.give_up(before, small_return);
    }

    /// Returns true if its latest small probes were answered.
    fn returns_small(&self) -> bool {
        let fails = matches!(self.state(), State::New | State::Failed);
        !fails && self.loss.misses() == 0 && self.loss.answers() > 0
    }

    /// Returns true if it drops large frames; `others` says that some path has answered one.
    pub(super) fn is_narrow(&self, others: bool) -> bool {
        others && self.large.misses >= LARGE_MISSES_MAX
    }
}

impl Paths {
    /// Sets the length of large probes, including the IP header. If it changes, results about large frames
    /// are discarded.
    pub fn set_large(&mut self, bytes: u16) {
        if self.large_bytes != bytes {
            self.large_bytes = bytes;
            self.paths.iter_mut().for_each(|path| path.large = Large::default());
        }
    }

    /// The length of large probes; 0 if none are sent.
    #[must_use]
    pub fn large_bytes(&self) -> u16 {
        self.large_bytes
    }

    /// The path whose large probe has been overdue the longest, if there is one. Paths that do not even
    /// return small probes are excluded.
    #[must_use]
    pub fn large_due(&self, now: u64) -> Option<usize> {
        let is_due = |path: &Path| path.returns_small() && path.large.pending.is_none();
        let due = |at: &usize| is_due(&self.paths[*at]) && self.paths[*at].large.due_ns <= now;
        let all = (0..self.paths.len()).filter(|_| self.large_bytes > 0).filter(due);
        all.min_by_key(|at| self.paths[*at].large.due_ns)
    }

    /// Counts a large probe that leaves along a path now; returns its sequence number.
    pub fn large_sent(&mut self, now: u64, path: usize, random: &mut Random) -> u32 {
        let Some(path) = self.paths.get_mut(path) else { return 0 };
        let large = &mut path.large;
        large.next = large.next.wrapping_add(1);
        large.pending = Some((large.next, now));
        large.due_ns = now + random.jittered(EVERY_NS);
        large.next
    }

    /// Processes the answer to a large probe. Returns false if no such probe is in flight.
    pub fn large_answered(&mut self, path: usize, sequence: u32) -> bool {
        let Some(path) = self.paths.get_mut(path) else { return false };
        let large = &mut path.large;
        let is_ours = large.pending.is_some_and(|(number, _)| number == sequence);
        if is_ours {
            (large.pending, large.misses, large.has_passed) = (None, 0, true);
        }
        is_ours
    }

    /// Whether some path to the node has answered a large probe.
    pub(super) fn large_have_passed(&self) -> bool {
        self.paths.iter().any(|path| path.large.has_passed)
    }

    /// What is known about large frames on a path.
    #[must_use]
    pub fn fit(&self, path: usize) -> Fit {
        let others = self.large_have_passed();
        match self.paths.get(path) {
            Some(path) if path.is_narrow(others) => Fit::Lost,
            Some(path) if path.large.misses >= LARGE_MISSES_MAX => Fit::Unanswered,
            Some(path) if path.large.has_passed => Fit::Pass,
            _ => Fit::Unknown,
        }
    }
}
