//! Per-flow sums of what passes a pipe that keeps no flows, for a measurement: the aggregator of crate
//! `sketch` as a monitor.
//!
//! Packets of a period are summed up in one pair of aggregators: one for usual packets (IPv4 with ports,
//! outside a tunnel), whose keys have two words, and one for all others. When a period ends, an empty pair
//! takes their place, and the previous pair emits its sums in slices, so no delta has packets of two periods.
//! The exception: if, for lack of room for deltas, the previous pair has not emitted all its sums by the end
//! of a period, the current pair continues into the next one.
//!
//! Costs: a cache line for each key in each of two pairs; per packet a hash, a line of tags and a line of
//! counts, fetched side by side for a batch; per eviction, a delta.

use crate::batch::packets::Packets;
use crate::pipes::flow::first_targets;
use crate::ring::DELTAS_MAX;
use crate::unflowed::UnflowedReport;
use std::collections::VecDeque;
use weir_packet::{Batch, FlowKey, KeySource, NO_TARGET_OBSERVED, Observed};
use weir_program::snapshot::FlowAccount;
use weir_program::{EntryMatch, GroupChoice, GroupId, Measured, Pipe, PipeKind, Program};
use weir_sketch::{Gate, Policy, Seed, SizeError, Update, Vectors};
use weir_table::delta::{BYTES_MAX, PACKETS_MAX};
use weir_table::{Belonging, DeltaReason, FlowDelta, NO_DELTA_TARGET};

/// The share of rows that is reserved for packets other than usual ones, as a divisor.
const OTHERS_SHARE: usize = 8;

/// The number of evictions per packet above which packets are passed on individually: a delta costs about
/// three times as much as a look-up.
const GATE: f64 = 0.7;

/// The time within which the sums of the previous period are emitted, in milliseconds: at most a quarter of
/// the period. The same as for the flows of FLOW pipes.
const SWEEP_MS: u64 = 250;

/// Deltas that a batch may add: one for each packet.
const BATCH: usize = weir_packet::BATCH;

const NS_PER_MS: u64 = 1_000_000;

/// The key of a usual packet: the addresses, and the key's last word.
type Usual = [u64; 2];

type Aggregator<const W: usize> = weir_sketch::Aggregator<W, Vectors, Observed>;
type Evicted<const W: usize> = weir_sketch::Evicted<W, Observed>;

/// The sums of a period.
struct Sums {
    usual: Aggregator<2>,
    others: Aggregator<5>,
    /// When the first and the last packet were counted, in milliseconds; `None` before the first.
    times: Option<(u32, u32)>,
    /// Whether the sums of usual packets have been swept, so that those of other packets are next.
    usual_is_swept: bool,
}

/// Which target each row of a HASH pipe is for; target numbers cover all groups of the program.
#[derive(Debug, Default)]
pub struct RowTargets {
    /// The group that `EntryMatch::Target` names a target of.
    group: Option<GroupId>,
    /// The number of the first target of each group.
    first: Vec<u32>,
    /// The number of each row's target.
    rows: Vec<u32>,
}

impl RowTargets {
    /// The targets of a pipe without entries; empty if the pipe is not for targets.
    #[must_use]
    pub fn new(program: &Program, pipe: &Pipe) -> RowTargets {
        let PipeKind::Hash { group, .. } = &pipe.kind else { return RowTargets::default() };
        let group = match group {
            GroupChoice::One(group) => Some(*group),
            GroupChoice::ByMeta(_) => None,
        };
        RowTargets { group, first: first_targets(program), rows: Vec::new() }
    }

    /// Notes the target that the entry in a row is for.
    pub fn set(&mut self, row: u32, matches: &[EntryMatch]) {
        if self.first.is_empty() {
            return;
        }
        let named = match matches.first() {
            Some(EntryMatch::Member { group, target }) => Some((*group, *target)),
            Some(EntryMatch::Target(target)) => self.group.map(|group| (group, *target)),
            Some(_) | None => None,
        };
        let number =
            named.and_then(|(group, target)| Some(self.first.get(group.index())? + u32::from(target)));
        let row = row as usize;
        self.rows.resize(self.rows.len().max(row + 1), NO_TARGET_OBSERVED);
        self.rows[row] = number.unwrap_or(NO_TARGET_OBSERVED);
    }

    #[inline(always)]
    fn of(&self, row: u32) -> u32 {
        self.rows.get(row as usize).copied().unwrap_or(NO_TARGET_OBSERVED)
    }
}

/// The sums of a pipe.
pub struct Aggregate {
    /// The targets that packets are sent to.
    pub targets: RowTargets,
    source: KeySource,
    measured: Measured,
    present: Sums,
    former: Sums,
    /// When the current period began, in milliseconds: a multiple of its length.
    start_ms: u32,
    /// Whether `start_ms` was computed from a clock that does not wrap.
    aligned: bool,
    /// Whether it was reported that all sums of previous periods have been emitted.
    swept: bool,
    of: Belonging,
    /// Where packets were counted.
    pub account: FlowAccount,
    /// What is reported about packets in no flow.
    unflowed: UnflowedReport,
    deltas: VecDeque<FlowDelta>,
    usual: Vec<Evicted<2>>,
    others: Vec<Evicted<5>>,
}

impl std::fmt::Debug for Aggregate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Aggregate").field("account", &self.account).finish_non_exhaustive()
    }
}

impl Sums {
    /// Creates room for `keys` keys of usual packets, and an eighth of that for others; both have at least
    /// one row.
    fn new(keys: u32, seed: &Seed) -> Result<Sums, SizeError> {
        let rows = (keys as usize).div_ceil(Aggregator::<2>::KEYS_PER_ROW).max(1);
        let bytes = rows * Aggregator::<2>::BYTES_PER_ROW;
        let other_bytes = rows.div_ceil(OTHERS_SHARE) * Aggregator::<5>::BYTES_PER_ROW;
        let gate = Gate::new(GATE);
        Ok(Sums {
            usual: Aggregator::with_bytes(bytes, Policy::MinCount, gate, seed)?,
            others: Aggregator::with_bytes(other_bytes, Policy::MinCount, gate, seed)?,
            times: None,
            usual_is_swept: false,
        })
    }

    fn note(&mut self, now_ms: u32) {
        let (first, _) = self.times.unwrap_or((now_ms, now_ms));
        self.times = Some((first, now_ms));
    }

    /// Rows of both.
    fn rows(&self) -> usize {
        self.usual.rows() + self.others.rows()
    }
}

impl Aggregate {
    /// Creates sums without packets. `secret` is that of the process.
    ///
    /// # Errors
    /// There are too many keys.
    pub fn new(measured: Measured, pipe: u16, secret: [u64; 2]) -> Result<Aggregate, SizeError> {
        let (seed, rest) = (Seed::new(secret), 2 * BATCH);
        Ok(Aggregate {
            targets: RowTargets::default(),
            source: measured.key,
            measured: Measured { period_ms: measured.period_ms.max(1), ..measured },
            present: Sums::new(measured.keys, &seed)?,
            former: Sums::new(measured.keys, &seed)?,
            start_ms: 0,
            aligned: false,
            swept: false,
            of: Belonging { generation: 1, pipe, target: NO_DELTA_TARGET },
            account: FlowAccount::default(),
            unflowed: UnflowedReport::default(),
            deltas: VecDeque::with_capacity(DELTAS_MAX + rest),
            usual: Vec::with_capacity(rest),
            others: Vec::with_capacity(rest),
        })
    }

    /// Creates the same for a pipe that sends packets to targets.
    #[must_use]
    pub fn sending_to(self, targets: RowTargets) -> Aggregate {
        Aggregate { targets, ..self }
    }

    /// Counts the packets of a list; `hits` contains the packets that hit, and their rows.
    #[inline(never)]
    pub(crate) fn count(
        &mut self,
        (batch, packets): (&Batch, &Packets),
        list: u64,
        now_ms: u32,
        hits: Option<(u64, &[u32; 64])>,
    ) {
        let keys = packets.keys(self.source);
        let able = list & keys.known;
        self.reach(now_ms);
        self.account.met += u64::from(list.count_ones());
        self.account.unflowed.no_key += u64::from((list & !able).count_ones());
        if able == 0 {
            return;
        }
        if self.deltas.len() + BATCH > DELTAS_MAX {
            self.account.unflowed.delta += u64::from(able.count_ones());
            return;
        }
        self.account.live += u64::from(able.count_ones());
        self.present.note(now_ms);
        let (usual, others) = (able & keys.usual, able & !keys.usual);
        let (source, generation, targets) = (self.source, self.of.generation, &self.targets);
        let bytes = |slot| batch.frame(slot).len() as u64;
        let target = |slot: usize| match hits {
            Some((hits, rows)) if hits >> slot & 1 == 1 => targets.of(rows[slot % BATCH]),
            Some(_) | None => NO_TARGET_OBSERVED,
        };
        let note = |slot| {
            let one = packets.observed(batch, slot, source);
            Observed { generation, target: target(slot), ..one }
        };
        if usual != 0 {
            let update =
                |slot| Update { key: keys.words(slot), packets: 1, bytes: bytes(slot), note: note(slot) };
            self.present.usual.add_list(usual, update, &mut self.usual);
        }
        if others != 0 {
            let key = |slot: usize| keys.key[slot % BATCH].0;
            let update = |slot| Update { key: key(slot), packets: 1, bytes: bytes(slot), note: note(slot) };
            self.present.others.add_list(others, update, &mut self.others);
        }
        if !(self.usual.is_empty() && self.others.is_empty()) {
            self.give(self.present.times, DeltaReason::Evicted);
        }
    }

    /// Whether packets are sent to targets.
    #[must_use]
    pub fn has_targets(&self) -> bool {
        !self.targets.rows.is_empty()
    }

    /// Turns what the aggregators have handed out into deltas.
    fn give(&mut self, times: Option<(u32, u32)>, reason: DeltaReason) {
        let Aggregate { usual, others, deltas, account, of, .. } = self;
        let (times, of) = (times.unwrap_or_default(), *of);
        let mut give = |key: FlowKey, packets: u64, bytes: u64, note: Observed| {
            account.live -= packets;
            account.given += packets;
            if packets <= PACKETS_MAX && bytes <= BYTES_MAX {
                deltas.push_back(FlowDelta::new(key, (packets, bytes), times, of, reason).observing(note));
            } else {
                split([packets, bytes, note.octets], |[packets, bytes, octets]| {
                    let delta = FlowDelta::new(key, (packets, bytes), times, of, reason);
                    deltas.push_back(delta.observing(Observed { octets, ..note }));
                });
            }
        };
        for Evicted { item, packets, bytes, note } in usual.drain(..) {
            give(usual_key(item.key), packets, bytes, note);
        }
        for Evicted { item, packets, bytes, note } in others.drain(..) {
            give(FlowKey(item.key), packets, bytes, note);
        }
    }

    /// Advances to the period of `now_ms`, if the sums of the previous one have been emitted.
    #[inline]
    fn reach(&mut self, now_ms: u32) {
        let since_ms = now_ms.wrapping_sub(self.start_ms);
        if since_ms >= self.measured.period_ms && self.former.times.is_none() {
            self.start_ms = self.start_ms.wrapping_add(since_ms - since_ms % self.measured.period_ms);
            self.swept = false;
            self.unflowed.end(&self.account.unflowed);
            std::mem::swap(&mut self.present, &mut self.former);
        }
    }

    /// Emits sums of previous periods in proportion to the time since the last call, and reports when all are
    /// done.
    pub fn tick(&mut self, elapsed_ms: u32, now_ns: u64) {
        if !self.aligned {
            let period_ms = u64::from(self.measured.period_ms);
            self.start_ms = (now_ns / NS_PER_MS / period_ms * period_ms) as u32;
            self.aligned = true;
        }
        self.reach((now_ns / NS_PER_MS) as u32);
        let within_ms = (u64::from(self.measured.period_ms) / 4).clamp(1, SWEEP_MS);
        let rows = (self.former.rows() as u64 * u64::from(elapsed_ms)).div_ceil(within_ms);
        self.sweep_former(rows as usize, DeltaReason::Interval);
        if self.former.times.is_none() && !self.swept && self.deltas.len() < DELTAS_MAX {
            let swept = FlowDelta::swept(self.start_ms, self.of);
            self.deltas.push_back(swept.with_unflowed(self.unflowed.take()));
            self.swept = true;
        }
    }

    /// Emits the sums in some of the next rows of the previous period, as long as there is room for deltas.
    fn sweep_former(&mut self, rows: usize, reason: DeltaReason) {
        for _ in 0..rows {
            if self.former.times.is_none() || self.deltas.len() + Aggregator::<2>::KEYS_PER_ROW > DELTAS_MAX {
                return;
            }
            let times = self.former.times;
            if !self.former.usual_is_swept {
                self.former.usual_is_swept = self.former.usual.sweep(1, &mut self.usual);
            } else if self.former.others.sweep(1, &mut self.others) {
                (self.former.usual_is_swept, self.former.times) = (false, None);
            }
            self.give(times, reason);
        }
    }

    /// Emits everything in the next `rows` rows, as long as there is room for deltas. Returns true once all
    /// is emitted.
    pub fn end(&mut self, rows: usize, reason: DeltaReason) -> bool {
        for _ in 0..2 {
            self.sweep_former(rows, reason);
            if self.former.times.is_some() {
                return false;
            }
            std::mem::swap(&mut self.present, &mut self.former);
        }
        self.present.times.is_none() && self.former.times.is_none()
    }

    /// Sets the generation of the program that these sums are part of.
    pub fn set_generation(&mut self, generation: u8) {
        self.of.generation = generation;
    }

    /// Continues the sums of the pipe's predecessor, if they are of the same headers and size. Whatever is
    /// left in the predecessor must be drained.
    pub fn inherit(&mut self, old: &mut Aggregate) {
        if (self.source, self.measured.keys) != (old.source, old.measured.keys) {
            return;
        }
        for (ours, theirs) in [(&mut self.present, &mut old.present), (&mut self.former, &mut old.former)] {
            std::mem::swap(ours, theirs);
        }
        std::mem::swap(&mut self.deltas, &mut old.deltas);
        std::mem::swap(&mut self.account, &mut old.account);
        std::mem::swap(&mut self.unflowed, &mut old.unflowed);
        if self.measured.period_ms == old.measured.period_ms {
            (self.start_ms, self.aligned, self.swept) = (old.start_ms, old.aligned, old.swept);
        }
    }

    /// Returns true if no counts and no deltas are left.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.account.live == 0 && self.deltas.is_empty()
    }

    /// Returns true while deltas wait.
    #[must_use]
    pub fn has_deltas(&self) -> bool {
        !self.deltas.is_empty()
    }

    /// Returns the packets in the deltas that wait.
    #[must_use]
    pub fn packets_in_deltas(&self) -> u64 {
        self.deltas.iter().map(FlowDelta::packets).sum()
    }

    /// Returns the packets in all sums by adding them up; for tests.
    #[must_use]
    pub fn packets(&self) -> u64 {
        let sums = [&self.present, &self.former];
        sums.iter().map(|sums| sums.usual.packets() + sums.others.packets()).sum()
    }

    /// Passes the waiting deltas to `sink`, as long as it accepts them.
    pub fn take_deltas(&mut self, mut sink: impl FnMut(FlowDelta) -> bool) {
        while self.deltas.front().is_some_and(|delta| sink(*delta)) {
            self.deltas.pop_front();
        }
    }
}

fn usual_key([addresses, last]: Usual) -> FlowKey {
    let mut key = FlowKey::default();
    key.set_ipv4(addresses, last);
    key
}

/// Splits counts into parts that fit into a delta.
#[cold]
fn split(mut counts: [u64; 3], mut part: impl FnMut([u64; 3])) {
    const MOST: [u64; 3] = [PACKETS_MAX, BYTES_MAX, BYTES_MAX];
    while counts != [0; 3] {
        let one = std::array::from_fn(|at| counts[at].min(MOST[at]));
        part(one);
        counts = std::array::from_fn(|at| counts[at] - one[at]);
    }
}
