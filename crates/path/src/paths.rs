//! The paths to one remote node: what is known about each, its state and the reason for it, and which one is
//! best.
//!
//! The caller reports its actions and observations ([`Paths::probe_sent`], [`Paths::probe_answered`],
//! [`Paths::sent`], [`Paths::echoed`], [`Paths::rehashed`]) and calls [`Paths::tick`] every few milliseconds;
//! it asks with [`Paths::choose`] and [`Paths::shares`]. Delay and loss are relative: the part that all paths
//! have in common (a drifting clock, the node's own queue) cannot be avoided by choosing another path, and is
//! subtracted. Lost packets add to the cost of a path the time that flows then wait. Otherwise a path that
//! drops packets would seem to cost no more than its full buffer, and could look better than an idle path on
//! which a burst has just left.

mod large;
mod offer;
mod seen;
mod unavoidable;

pub use large::{Fit, LARGE_MISSES_MAX};
pub use offer::Offer;
pub use seen::Observed;

use self::large::Large;
use self::seen::SeenByTcp;
use self::unavoidable::Unavoidable;
use crate::delay::{Delay, FALL};
use crate::loss::{Loss, ProbeCounts};
use crate::settings::Settings;
use std::fmt;
use weir_packet::random::Random;

/// The maximum number of paths to a node: a fabric rarely has more spines, and 64 buckets still give each
/// path 4.
pub const PATHS_MAX: usize = 16;

/// Consecutive misses after which a path is failed: BFD's usual multiplier (RFC 5880, section 6.8.4).
pub const MISSES_MAX: u32 = 3;

/// Consecutive answers after which a failed path returns: a flapping link answers a few.
pub const ANSWERS_TO_RETURN: u32 = 10;

/// The number of retransmission timeouts on a path, without an answer to a probe in between, after which the
/// path counts as failed. One may be the receiver's fault, and two, of two flows, may still be a coincidence.
pub const REHASHES_MAX: u32 = 3;

/// The weight of a path without faults.
pub const FULL: u32 = 1024;

/// The minimum weight of a path in use, so that flows still measure it.
pub const WEIGHT_MIN: u32 = FULL / 16;

/// Congestion multiplies the weight by 0.67 (CLOVE, CoNEXT'17).
const SHRINK: (u32, u32) = (67, 100);

/// The weight that a path without congestion gains per [`STEP_NS`]. A returning path thus ramps up slowly,
/// and has its full weight after 1.6 s.
const GROWTH: u32 = FULL / 16;

/// How long a grey path is in doubt, ns: at 10 ms per probe, the probes over which loss is computed take at
/// most 4 s. Otherwise a permanently grey path would be probed as much as one in use.
const GREY_DOUBT_NS: u64 = 10_000_000_000;

/// Time between two steps of a weight, ns: a tenth of what an operator notices, or ten probes.
pub const STEP_NS: u64 = 100_000_000;

/// A path is congested if more than this share of its packets is marked (Hermes: 10 to 30 %), in 1/1024.
const MARKED_MAX: u32 = 1024 / 4;

/// A path is congested if more than this share of its recent probes was lost, in 1/1024: one of the last six.
const LOST_MAX: u32 = 1024 / 16;

/// The time that a lost packet costs a flow that has nothing more to send, ns: the minimum retransmission
/// timeout of Linux (`TCP_RTO_MIN`).
const TIMEOUT_NS: u64 = 200_000_000;

/// The weight of a new observation in the average of marks: 1/16, as in DCTCP.
const MARKED_SHARE: u32 = 16;

/// Two scores count as equal if they differ by less than the congested delay divided by this: clock noise.
pub const NOISE: u64 = 8;

/// The UDP source ports that lead along one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// The port in use.
    pub main: u16,
    /// Another port, in case the fabric maps the first one to a different path; `None` if discovery found
    /// only one.
    pub spare: Option<u16>,
}

/// The state of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// No probe has been answered yet; used as ECMP would.
    New,
    /// The path has no faults.
    Good,
    /// The path's queue is long, or its packets are ECN-marked or lost: used less.
    Congested,
    /// The path loses more than 1 % of its probes beyond the loss common to all paths, or loses large frames:
    /// used only if no path without faults is alive.
    Grey,
    /// The path does not answer: used only if no other path is alive.
    Failed,
    /// The path answers again, and regains weight step by step.
    Returning,
}

/// Why a path last changed its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The path was found.
    Found,
    /// A probe was answered for the first time.
    Answered,
    /// Its queueing delay exceeds that of the best path by more than the limit.
    Delay,
    /// Too many of its packets were marked.
    Marks,
    /// Probes were lost recently.
    Drops,
    /// Its delay, marks and losses are below half of their limits.
    Relief,
    /// Several consecutive probes were lost.
    Misses,
    /// More than 1 % of its probes were lost.
    Loss,
    /// Its loss has fallen to less than half of the limit.
    Clean,
    /// Consecutive large probes were lost, while small ones return.
    LargeLost,
    /// A large probe was answered again.
    LargePass,
    /// The probes had arrived; only their answers were lost.
    Arrived,
    /// Flows on it ran into retransmission timeouts.
    Timeouts,
    /// Segments of TCP connections had to be sent again.
    Again,
    /// New data of TCP connections was acknowledged.
    Acknowledged,
    /// Several consecutive probes were answered.
    Answers,
    /// Its weight is back to full again.
    Ramp,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::New => "new",
            State::Good => "good",
            State::Congested => "congested",
            State::Grey => "grey",
            State::Failed => "failed",
            State::Returning => "returning",
        })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Found => "found",
            Reason::Answered => "first probe answered",
            Reason::Delay => "longer queue than the best path",
            Reason::Marks => "packets are ECN-marked",
            Reason::Drops => "probes were lost recently",
            Reason::Relief => "no more queueing, marks or losses",
            Reason::Misses => "consecutive probes lost",
            Reason::Loss => "more than 1 % of the probes lost",
            Reason::Clean => "no more loss",
            Reason::LargeLost => "large frames are lost",
            Reason::LargePass => "large frames get through again",
            Reason::Arrived => "its probes arrived, only the answers were lost",
            Reason::Timeouts => "flows hit retransmission timeouts",
            Reason::Again => "TCP connections had to send again",
            Reason::Acknowledged => "TCP connections got acknowledgements",
            Reason::Answers => "consecutive probes answered",
            Reason::Ramp => "weight is back to full",
        })
    }
}

/// One path to a remote node: its source ports, and what probes and TCP connections reveal about it.
#[derive(Clone, Debug)]
pub struct Path {
    ports: Ports,
    state: State,
    reason: Reason,
    changed_at: u64,
    weight: u32,
    stepped_at: u64,
    delay: Delay,
    loss: Loss,
    seen: SeenByTcp,
    large: Large,
    marked: u32,
    rehashes: u32,
    load: u64,
    load_at: u64,
}

impl Path {
    fn new(now: u64, ports: Ports, settings: &Settings) -> Path {
        Path {
            ports,
            state: State::New,
            reason: Reason::Found,
            changed_at: now,
            weight: FULL,
            stepped_at: now,
            delay: Delay::lasting(settings.stale_ns, if settings.is_one_sided { 1 } else { FALL }),
            loss: Loss::default(),
            seen: SeenByTcp::default(),
            large: Large::default(),
            marked: 0,
            rehashes: 0,
            load: 0,
            load_at: now,
        }
    }

    /// The source ports that lead along the path.
    #[must_use]
    pub fn ports(&self) -> Ports {
        self.ports
    }

    /// The state of the path, which determines whether flows may take it.
    #[inline]
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// Why the path is in its state, and since when, ns.
    #[must_use]
    pub fn last_change(&self) -> (Reason, u64) {
        (self.reason, self.changed_at)
    }

    /// Its weight, 0 (grey, failed) to [`FULL`].
    #[must_use]
    pub fn weight(&self) -> u32 {
        if self.has_fault() { 0 } else { self.weight }
    }

    /// Its queueing delay, ns, including the part that is common to all paths.
    #[must_use]
    pub fn queue_ns(&self) -> u64 {
        self.delay.queue_ns().max(self.seen.delay.queue_ns())
    }

    /// Probes and losses of the last few hundred probes.
    #[must_use]
    pub fn judged(&self) -> ProbeCounts {
        self.loss.judged()
    }

    /// The share of marked packets, in 1/1024.
    #[must_use]
    pub fn marked(&self) -> u32 {
        self.marked
    }

    /// Returns true if a probe is overdue, or was lost with no answer since.
    #[must_use]
    pub fn is_suspect(&self, now: u64, settings: &Settings) -> bool {
        self.loss.misses() > 0
            || self.rehashes > 0
            || self.loss.waits_since(now.saturating_sub(settings.lost_after_ns / 2))
    }

    /// Returns true if it should be probed soon even if nothing is sent: a probe is missing, or its state may
    /// end with the next answers.
    #[must_use]
    pub fn is_doubtful(&self, now: u64, settings: &Settings) -> bool {
        match self.state {
            State::Failed => self.loss.answers() > 0,
            State::Congested => true,
            State::Grey if now.saturating_sub(self.changed_at) < GREY_DOUBT_NS => true,
            _ => self.is_suspect(now, settings),
        }
    }

    /// Local bytes that were sent along it, exponentially decayed by the half-life.
    #[inline]
    #[must_use]
    pub fn load(&self, now: u64, settings: &Settings) -> u64 {
        halved(self.load, now.saturating_sub(self.load_at), settings.load_half_life_ns)
    }

    /// Its weight, regardless of its state.
    pub(crate) fn raw_weight(&self) -> u32 {
        self.weight
    }

    fn has_fault(&self) -> bool {
        matches!(self.state, State::Grey | State::Failed)
    }

    fn turn(&mut self, now: u64, state: State, reason: Reason) {
        self.state = state;
        self.reason = reason;
        self.changed_at = now;
        if state == State::Returning {
            self.weight = WEIGHT_MIN;
            self.stepped_at = now;
            // Losses from before its fault no longer apply.
            self.loss.forget();
            self.seen.loss.forget();
        }
    }
}

/// Halves `amount` every `half_life`, with linear interpolation, in integer arithmetic, so that the result is
/// the same everywhere.
#[inline]
fn halved(amount: u64, time: u64, half_life: u64) -> u64 {
    if amount == 0 {
        return 0;
    }
    let half_life = half_life.max(1);
    let halvings = time / half_life;
    if halvings >= 64 {
        return 0;
    }
    let left = amount >> halvings;
    left - (u128::from(left) * u128::from(time % half_life) / (2 * u128::from(half_life))) as u64
}

/// The paths to one remote node.
#[derive(Clone, Debug)]
pub struct Paths {
    settings: Settings,
    paths: Vec<Path>,
    /// The part of the queueing delay that the paths have in common.
    unavoidable: Unavoidable,
    weighed_at: u64,
    large_bytes: u16,
    pub(crate) last_sent: u64,
}

impl Paths {
    /// The paths to a node, in the given order, at most [`PATHS_MAX`]; further ones are left out.
    #[must_use]
    pub fn new(now: u64, settings: Settings, ports: &[Ports]) -> Paths {
        let paths = ports.iter().take(PATHS_MAX).map(|ports| Path::new(now, *ports, &settings)).collect();
        Paths {
            settings,
            paths,
            unavoidable: Unavoidable::default(),
            weighed_at: now,
            large_bytes: 0,
            last_sent: 0,
        }
    }

    /// The settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// All paths; a path's number is its index.
    #[inline]
    #[must_use]
    pub fn all(&self) -> &[Path] {
        &self.paths
    }

    /// Discovery found other ports for a path. If `elsewhere`, the path itself has become a different one
    /// (its hops changed), and its state is reset.
    pub fn set_ports(&mut self, now: u64, path: usize, ports: Ports, elsewhere: bool) {
        let Some(path) = self.paths.get_mut(path) else { return };
        if elsewhere {
            *path = Path::new(now, ports, &self.settings);
        }
        path.ports = ports;
    }

    /// Adds a path found by discovery, with the next number. Returns false if there already are
    /// [`PATHS_MAX`].
    pub fn add(&mut self, now: u64, ports: Ports) -> bool {
        let has_room = self.paths.len() < PATHS_MAX;
        if has_room {
            self.paths.push(Path::new(now, ports, &self.settings));
        }
        has_room
    }

    pub(crate) fn change_raw_weight(&mut self, path: usize, by: i64) {
        let weight = &mut self.paths[path].weight;
        *weight = (i64::from(*weight) + by).max(0) as u32;
    }

    /// Counts a probe that leaves along a path now; returns its sequence number.
    pub fn probe_sent(&mut self, now: u64, path: usize) -> u32 {
        let Some(path) = self.paths.get_mut(path) else { return 0 };
        path.loss.sent(now).0
    }

    /// Processes the answer to a probe. Returns false if no such probe is in flight.
    pub fn probe_answered(&mut self, now: u64, path: usize, sequence: u32, answer: ProbeReply) -> bool {
        let Some(found) = self.paths.get_mut(path) else { return false };
        if !found.loss.answered(sequence, answer.arrived) {
            return false;
        }
        found.rehashes = 0;
        // A round trip is measured with one clock.
        if !self.settings.is_one_sided && found.delay.shows_jump(answer.delay_ns) {
            self.paths.iter_mut().for_each(|path| path.delay.forget());
        }
        let found = &mut self.paths[path];
        found.delay.sample(now, answer.delay_ns, found.state == State::Congested);
        found.mark(1, u32::from(answer.marked));
        match found.state {
            State::New => found.turn(now, State::Good, Reason::Answered),
            State::Failed if found.reason == Reason::Misses && found.loss.whole() > MISSES_MAX => {
                found.turn(now, State::Good, Reason::Arrived);
            }
            State::Failed if found.loss.answers() >= ANSWERS_TO_RETURN => {
                found.turn(now, State::Returning, Reason::Answers);
            }
            _ => (),
        }
        self.weigh(now);
        true
    }

    /// Counts bytes of data that leave along a path now.
    #[inline]
    pub fn sent(&mut self, now: u64, path: usize, bytes: u64) {
        self.last_sent = now;
        let settings = &self.settings;
        if let Some(path) = self.paths.get_mut(path) {
            path.load = path.load(now, settings).saturating_add(bytes);
            path.load_at = now;
        }
    }

    /// Takes over the counts of another data plane: bytes of data on a path, exponentially decayed by the
    /// half-life up to the time when the last ones left.
    pub fn loaded(&mut self, path: usize, at: u64, bytes: u64) {
        self.last_sent = self.last_sent.max(at);
        if let Some(path) = self.paths.get_mut(path) {
            (path.load, path.load_at) = (bytes, at);
        }
    }

    /// Processes an echo from the node: the number of data packets that arrived along a path, and how many of
    /// them were marked.
    pub fn echoed(&mut self, now: u64, path: usize, packets: u32, marked: u32) {
        if let Some(path) = self.paths.get_mut(path).filter(|_| packets > 0) {
            path.mark(packets, marked.min(packets));
            self.weigh(now);
        }
    }

    /// A flow on the path ran into a retransmission timeout (the kernel changed its hash).
    pub fn rehashed(&mut self, now: u64, path: usize) {
        let Some(path) = self.paths.get_mut(path) else { return };
        path.rehashes += 1;
        if path.rehashes >= REHASHES_MAX && !path.has_fault() {
            path.turn(now, State::Failed, Reason::Timeouts);
        }
    }

    /// Gives up late probes, and updates weights and states. Call it every 1 to 10 ms while probes are in
    /// flight.
    pub fn tick(&mut self, now: u64) {
        let before = now.saturating_sub(self.settings.lost_after_ns);
        let lives = |path: &&Path| path.state != State::Failed;
        let common = self.paths.iter().filter(lives).filter_map(|path| path.loss.share()).min().unwrap_or(0);
        let large_pass = self.large_have_passed();
        let again =
            self.paths.iter().filter(lives).filter_map(|path| path.seen.loss.share()).min().unwrap_or(0);
        let settings = self.settings;
        for path in &mut self.paths {
            path.delay.tick(now);
            path.seen.tick(now);
            path.give_up_large(now, self.settings.lost_after_ns);
            let is_narrow = path.is_narrow(large_pass);
            let is_missed = path.loss.give_up(before) > 0 && path.loss.misses() >= MISSES_MAX;
            if is_missed && path.state != State::Failed && path.needs_answers(now, &settings) {
                path.turn(now, State::Failed, Reason::Misses);
            } else if path.loss.is_grey(common) && !path.has_fault() {
                path.turn(now, State::Grey, Reason::Loss);
            } else if settings.is_one_sided && path.is_to_be_tried(now) {
                path.turn(now, State::Returning, Reason::Clean);
            } else if path.seen.loss.is_grey(again) && !path.has_fault() {
                path.turn(now, State::Grey, Reason::Again);
            } else if is_narrow && !path.has_fault() {
                path.turn(now, State::Grey, Reason::LargeLost);
            } else if path.state == State::Grey && path.reason == Reason::LargeLost {
                if !is_narrow {
                    path.turn(now, State::Returning, Reason::LargePass);
                }
            } else if path.state == State::Grey && path.reason == Reason::Again {
                if path.seen.loss.share().is_none() {
                    path.turn(now, State::Returning, Reason::Clean);
                }
            } else if path.state == State::Grey && path.loss.is_clean(common) {
                path.turn(now, State::Returning, Reason::Clean);
            }
        }
        self.weigh(now);
    }

    /// Updates states and weights from delays, marks and losses.
    fn weigh(&mut self, now: u64) {
        self.weighed_at = now;
        let fit = |path: &&Path| !path.has_fault() && path.state != State::New;
        let unavoidable = Unavoidable::of(self.paths.iter().filter(fit));
        self.unavoidable = unavoidable;
        let limit = self.settings.congested_ns;
        for path in &mut self.paths {
            let queue = unavoidable.beyond(path);
            let (marked, lost, again) = (path.marked, path.loss.recent(), path.seen.loss.recent());
            let fault = [(queue > limit, Reason::Delay), (lost > LOST_MAX, Reason::Drops)]
                .into_iter()
                .chain([(again > LOST_MAX, Reason::Again), (marked > MARKED_MAX, Reason::Marks)])
                .find_map(|(is_over, reason)| is_over.then_some(reason));
            let relieved = queue * 2 <= limit && marked * 2 <= MARKED_MAX && lost.max(again) * 2 <= LOST_MAX;
            match (path.state, fault) {
                (State::Good | State::Returning, Some(reason)) => {
                    path.turn(now, State::Congested, reason);
                    path.shrink(now);
                }
                (State::Congested, _) if relieved => path.turn(now, State::Good, Reason::Relief),
                (State::Congested, _) if now.saturating_sub(path.stepped_at) >= STEP_NS => path.shrink(now),
                (State::Good | State::Returning, None) => path.grow(now),
                _ => (),
            }
        }
    }

    /// How long a packet would wait on a path according to probes, ns: its queueing delay beyond the common
    /// part, plus the average cost of its losses.
    #[inline]
    #[must_use]
    pub fn cost_ns(&self, path: usize) -> u64 {
        let Some(path) = self.paths.get(path) else { return u64::MAX };
        let queue = self.unavoidable.beyond(path);
        queue.saturating_add(u64::from(path.risk(self.weighed_at, &self.settings)) * TIMEOUT_NS / 1024)
    }

    /// How long a packet would wait on a path according to probes, plus the time to send its local bytes, ns.
    #[inline]
    #[must_use]
    pub fn score(&self, now: u64, path: usize) -> u64 {
        let load = self.paths.get(path).map_or(0, |path| path.load(now, &self.settings));
        self.cost_ns(path).saturating_add(self.settings.drain_ns(load))
    }

    /// Chooses a path for a new flow: the better of two drawn by weight, excluding `avoid` if another one is
    /// usable. Returns 0 if there are no paths.
    #[must_use]
    pub fn choose(&self, now: u64, avoid: Option<usize>, random: &mut Random) -> usize {
        let Some(first) = self.draw(avoid, None, random) else { return avoid.unwrap_or(0) };
        match self.draw(avoid, Some(first), random) {
            Some(second) if self.is_better(now, second, first) => second,
            _ => first,
        }
    }

    /// Chooses a path for a flowlet of a flow: the flow's current path, unless another one drawn by weight is
    /// better.
    #[must_use]
    pub fn choose_again(&self, now: u64, path: usize, random: &mut Random) -> usize {
        if !self.is_usable(path) {
            return self.choose(now, Some(path), random);
        }
        match self.draw(Some(path), None, random) {
            Some(other) if self.is_better(now, other, path) => other,
            _ => path,
        }
    }

    /// Returns true if the first path's score is lower than the second's by more than noise.
    #[must_use]
    pub fn is_better(&self, now: u64, first: usize, second: usize) -> bool {
        let noise = self.settings.congested_ns / NOISE;
        self.score(now, first).saturating_add(noise) < self.score(now, second)
    }

    /// The path with the lowest score in the best state class; among equal ones, the lowest number.
    #[must_use]
    pub fn best(&self, now: u64) -> Option<usize> {
        let rank = self.best_rank();
        (0..self.paths.len())
            .filter(|path| self.rank(*path) == rank)
            .min_by_key(|path| self.score(now, *path))
    }

    /// Draws one of the usable paths by weight, excluding two.
    fn draw(&self, avoid: Option<usize>, first: Option<usize>, random: &mut Random) -> Option<usize> {
        let rank = self.best_rank();
        let share = |path: usize| {
            if Some(path) == avoid || Some(path) == first { 0 } else { self.share(path, rank) }
        };
        let total: u32 = (0..self.paths.len()).map(share).sum();
        if total == 0 {
            return None;
        }
        let mut drawn = random.drawn(total);
        (0..self.paths.len()).find(|path| {
            let share = share(*path);
            let found = drawn < share;
            drawn = drawn.wrapping_sub(share);
            found
        })
    }

    /// Returns true if no path is in a better class: without faults, grey, failed.
    #[inline]
    #[must_use]
    pub fn is_usable(&self, path: usize) -> bool {
        path < self.paths.len() && self.rank(path) == self.best_rank()
    }

    /// 0: without faults, 1: grey, 2: failed.
    fn rank(&self, path: usize) -> u8 {
        match self.paths.get(path).map(Path::state) {
            Some(State::Failed) | None => 2,
            Some(State::Grey) => 1,
            Some(_) => 0,
        }
    }

    fn best_rank(&self) -> u8 {
        (0..self.paths.len()).map(|path| self.rank(path)).min().unwrap_or(2)
    }

    /// The weight of a path if its rank is the best one, `rank`; otherwise 0. Paths with the same fault have
    /// equal weights.
    #[inline]
    fn share(&self, path: usize, rank: u8) -> u32 {
        match self.rank(path) {
            0 if rank == 0 => self.paths[path].weight,
            this if this == rank => 1,
            _ => 0,
        }
    }

    /// The weights with which flows are distributed. Paths of a worse rank than the best have weight 0, so a
    /// failed path has a weight only if all paths have failed, and then all have the same weight.
    #[must_use]
    pub fn shares(&self) -> Vec<u32> {
        let rank = self.best_rank();
        (0..self.paths.len()).map(|path| self.share(path, rank)).collect()
    }
}

/// The content of an answer to a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeReply {
    /// The receiver's clock at arrival minus the sender's at departure, ns; the clocks may have any offset.
    pub delay_ns: i64,
    /// Whether the probe arrived with the CE mark.
    pub marked: bool,
    /// How many probes of the path had arrived by then, by the receiver's count, which may restart.
    pub arrived: u32,
}

impl Path {
    fn mark(&mut self, packets: u32, marked: u32) {
        let share = (u64::from(marked) * 1024 / u64::from(packets.max(1))) as u32;
        self.marked = self.marked - self.marked.div_ceil(MARKED_SHARE) + share / MARKED_SHARE;
    }

    fn shrink(&mut self, now: u64) {
        self.weight = (self.weight * SHRINK.0 / SHRINK.1).max(WEIGHT_MIN);
        self.stepped_at = now;
    }

    /// Restores weight for the time since the last step; a returning path becomes good at full weight.
    fn grow(&mut self, now: u64) {
        let steps = now.saturating_sub(self.stepped_at) / STEP_NS;
        if steps > 0 {
            let growth = u32::try_from(steps).unwrap_or(FULL).min(FULL).saturating_mul(GROWTH);
            self.weight = self.weight.saturating_add(growth).min(FULL);
            self.stepped_at = now;
        }
        if self.state == State::Returning && self.weight == FULL {
            self.turn(now, State::Good, Reason::Ramp);
        }
    }
}

#[cfg(test)]
mod tests;
