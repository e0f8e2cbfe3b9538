//! What TCP connections reveal about a path to an unmodified remote node: the time until their segments are
//! acknowledged, and how many they had to send again.
//!
//! It is kept apart from what probes reveal: a probe ends at a router, so its round trip is shorter, and
//! paths without connections are known by probes alone. What either of them shows about a path counts.

use super::{Path, Paths, Reason, State};
use crate::delay::Delay;
use crate::loss::{Loss, ProbeCounts};
use crate::settings::Settings;

/// How long after an acknowledgement a path counts as alive, whatever routers answer, ns.
const ALIVE_NS: u64 = 3_000_000_000;

/// After this time without a segment, half of the recent losses is forgotten, ns.
const FADES_NS: u64 = 1_000_000_000;

/// After this time without a segment, everything about losses is forgotten, ns: a path that lost segments
/// gets no more of them, so only time can show that it is repaired.
const FORGOTTEN_NS: u64 = 60_000_000_000;

/// How long a path that connections found to have failed stays unused if routers do not answer, ns.
const UNUSED_NS: u64 = 60_000_000_000;

/// The loss that is assumed for a path, in 1/1024, if its queue is long or an echo request was lost, while no
/// connection gets acknowledgements on it. The queue is then due to other senders, who may send
/// more than the path carries, and an echo request a second does not show how much of it is lost.
const ASSUMED: u32 = 1024 / 4;

/// Retransmissions without an acknowledgement in between after which a path has failed.
const AGAIN_MAX: u32 = 3;

/// What was observed on a path since the last time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// The shortest time from a segment to its acknowledgement, ns.
    pub round_trip_ns: Option<u64>,
    /// Segments that were sent.
    pub segments: u32,
    /// Of these, segments that were sent again.
    pub again: u32,
    /// Whether new data was acknowledged.
    pub is_heard: bool,
}

/// What connections have revealed about a path.
#[derive(Clone, Debug, Default)]
pub(super) struct SeenByTcp {
    pub delay: Delay,
    pub loss: Loss,
    heard_ns: u64,
    sent_ns: u64,
    fades_ns: u64,
}

impl SeenByTcp {
    /// Returns true if data was acknowledged lately.
    pub fn is_alive(&self, now: u64) -> bool {
        self.heard_ns > 0 && now.saturating_sub(self.heard_ns) < ALIVE_NS
    }

    /// Returns true if data was acknowledged within the time between two echo requests.
    fn is_recent(&self, now: u64, settings: &Settings) -> bool {
        self.heard_ns > 0 && now.saturating_sub(self.heard_ns) < settings.probe_ns
    }

    /// Forgets what is out of date.
    pub fn tick(&mut self, now: u64) {
        self.delay.tick(now);
        if now.saturating_sub(self.sent_ns) >= FORGOTTEN_NS {
            self.loss.forget();
        } else if now >= self.fades_ns {
            self.loss.fade();
            self.fades_ns = now.saturating_add(FADES_NS);
        }
    }
}

impl Path {
    /// Segments sent on it by TCP connections lately, and how many of them again.
    #[must_use]
    pub fn segments(&self) -> ProbeCounts {
        self.seen.loss.judged()
    }

    /// The share of packets that are lost, in 1/1024, as far as probes and connections show.
    pub(super) fn risk(&self, now: u64, settings: &Settings) -> u32 {
        let known = self.loss.risk().max(self.seen.loss.risk());
        let is_bad = self.state == State::Congested || self.loss.misses() > 0;
        if settings.is_one_sided && is_bad && self.loss.was_answered() && !self.seen.is_recent(now, settings)
        {
            return known.max(ASSUMED);
        }
        known
    }

    /// Whether three lost probes in a row mean that it has failed. A router may also stop answering, or never
    /// have answered, while connections are fine.
    pub(super) fn needs_answers(&self, now: u64, settings: &Settings) -> bool {
        !settings.is_one_sided || self.loss.was_answered() && !self.seen.is_alive(now)
    }

    /// Returns true if connections found that it had failed, so long ago that they should try it again: no
    /// router answers, so nothing else can show that it is repaired.
    pub(super) fn is_to_be_tried(&self, now: u64) -> bool {
        self.state == State::Failed
            && self.reason == Reason::Timeouts
            && !self.loss.was_answered()
            && now.saturating_sub(self.changed_at) >= UNUSED_NS
    }
}

impl Paths {
    /// Processes what was observed of TCP connections on a path.
    pub fn observed(&mut self, now: u64, path: usize, observed: Observed) {
        let limit = self.settings.congested_ns;
        let Some(path) = self.paths.get_mut(path) else { return };
        if let Some(round_trip_ns) = observed.round_trip_ns {
            let round_trip_ns = i64::try_from(round_trip_ns).unwrap_or(i64::MAX);
            path.seen.delay.sample(now, round_trip_ns, path.state == State::Congested);
        }
        if observed.segments > 0 {
            path.seen.sent_ns = now;
            path.seen.fades_ns = now.saturating_add(FADES_NS);
            let counts = ProbeCounts { probes: observed.segments, lost: observed.again };
            let is_short = path.seen.delay.queue_ns() * 2 <= limit;
            path.seen.loss.observed(counts, observed.is_heard, is_short);
        }
        if observed.is_heard {
            path.seen.heard_ns = now;
            path.rehashes = 0;
            if path.state == State::New {
                path.turn(now, State::Good, Reason::Acknowledged);
            }
        }
        if path.seen.loss.misses() >= AGAIN_MAX && !path.has_fault() {
            path.turn(now, State::Failed, Reason::Timeouts);
        }
        self.weigh(now);
    }
}
