//! Elephants: one heavy flow leaves the bucket that it shares with others, and has one of its own.
//!
//! A rebalance moves whole buckets, so it is helpless where one flow is most of what a bucket carries. Such a flow gets
//! an entry of its own in the pipe that has the bond's name; the entry leads it to a bucket of a second group, `heavy`,
//! which counts and moves like any other: the next run of the rule sees one bucket more. The flow starts on the member
//! that it is on, and every later move waits until it is idle, so none of this reorders it.
//!
//! Which flow it is, is found by looking, not by keeping flows: when a run names an elephant, its bucket is given to its
//! member's *twin* for a moment. Frames leave by the same port, and the app gets copies of them. Of these, the flow with
//! the most bytes is pinned. One bucket is looked at at a time; whatever else is to become of it ends the look first.
//!
//! Buckets of `heavy` without a flow are with the members that the bond's own buckets of these numbers are with. No frame
//! meets them but in the moment when a reload has changed what an entry's number hashes to, and then it must leave by
//! some member.
//!
//! Costs: a look at 64 frames or 100 ms each interval at most, and an entry for each pinned flow.

use super::app::{BondApp, State, no_buckets};
use super::assignment::When;
use super::config::ELEPHANTS_MAX;
use super::moves::Moved;
use super::pipes::HEAVY_SEED;
use super::rebalance::{OVERLOAD_BYTES, Plan};
use crate::app::Action;
use engine::change::{Change, EntryKey};
use engine::program::{Entry, EntryMatch};
use engine::worker::BucketReport;
use packet::{Depth, FlowKey, KeySource, select_hash};
use std::borrow::Cow;
use std::collections::BTreeMap;
use table::{NO_TARGET, seeded};

/// Frames of a bucket that are looked at.
const FRAMES_MAX: u32 = 64;

/// A look takes so long at most: a flow worth it has sent several frames by then.
const LOOK_NS: u64 = 100_000_000;

/// A flow is pinned if it is at least this part of the bytes looked at. Two equal ones are both pinned, one after the
/// other, though mice beside them keep each below a half.
const HEAVY_PART: u64 = 3;

/// A bucket that was looked at in vain is left alone for so many intervals.
const REST_INTERVALS: u64 = 3;

/// Intervals are not shorter (`rebalance::Rebalance`).
const INTERVAL_MIN_MS: u32 = 1000;

const NS_PER_MS: u64 = 1_000_000;

/// The flows with a bucket of their own, and the look at the next.
pub(super) struct Elephants {
    /// By their buckets of the group `heavy`.
    pub pins: BTreeMap<u32, Pin>,
    pub look: Option<Look>,
    /// The buckets of `heavy` when they were read last.
    pub report: BucketReport,
    /// Buckets that were looked at in vain, and until when they are left alone.
    fruitless: BTreeMap<u32, u64>,
    /// The member that each bucket of `heavy` was given.
    told: Vec<u16>,
    /// What entries were made for: if it changes they mean nothing.
    made_for: Option<MadeFor>,
    /// Flows whose entries another kind of bond left.
    pub leftover: Vec<FlowKey>,
    /// Moves to twins and back that the engine has counted.
    unseen: u64,
    /// The next report shows what the engine counts for a move to a twin.
    measures: bool,
    /// Moves of pinned flows that were ordered.
    moved: u64,
}

type MadeFor = (u32, KeySource, u64, u64, u32);

/// A flow with a bucket of its own.
pub(super) struct Pin {
    pub flow: FlowKey,
    /// The bucket that it hashes to.
    pub bucket: u32,
    pub member: u16,
    /// Where it may still be, although it was told to leave when idle.
    leaving: Vec<u16>,
    pub since_ns: u64,
    /// When it was seen last what it carries, its bytes then, and how many had come since the time before.
    judged_ns: u64,
    seen: u64,
    pub load: u64,
    pub why: String,
}

/// A bucket of which copies come.
pub(super) struct Look {
    pub bucket: u32,
    pub member: u16,
    since_ns: u64,
    pub until_ns: u64,
    frames: u32,
    bytes: u64,
    flows: BTreeMap<FlowKey, u64>,
    /// What the engine counts for a move to the twin: one in each worker.
    counted: u64,
}

impl Elephants {
    pub fn new() -> Elephants {
        Elephants {
            pins: BTreeMap::new(),
            look: None,
            report: no_buckets(ELEPHANTS_MAX as usize),
            fruitless: BTreeMap::new(),
            told: Vec::new(),
            made_for: None,
            leftover: Vec::new(),
            unseen: 0,
            measures: false,
            moved: 0,
        }
    }
}

/// Loads and members: those of the bond's buckets, and behind them those of the group `heavy`.
pub(super) struct Lanes<'a> {
    pub totals: Cow<'a, [u64]>,
    pub slots: Cow<'a, [u16]>,
}

impl State {
    /// What a run looks at.
    pub(super) fn lanes(&self, elephants: u32) -> Lanes<'_> {
        let (totals, slots) = (&self.buckets.bytes, self.assignment.slots());
        if elephants == 0 {
            return Lanes { totals: Cow::Borrowed(totals), slots: Cow::Borrowed(slots) };
        }
        let pins = &self.elephants.pins;
        let members = (0..ELEPHANTS_MAX).map(|slot| pins.get(&slot).map_or(NO_TARGET, |pin| pin.member));
        Lanes {
            totals: totals.iter().chain(&self.elephants.report.bytes).copied().collect(),
            slots: slots.iter().copied().chain(members).collect(),
        }
    }

    /// Moves that the engine has carried out, and those of them that found a bucket in use. A look is none.
    pub(super) fn moved(&self) -> (u64, u64) {
        let own = self.buckets.moved.saturating_sub(self.elephants.unseen);
        (own + self.elephants.moved, self.buckets.moved_busy + self.elephants.report.moved_busy)
    }
}

impl BondApp {
    /// Has all buckets read, the bond's own last.
    pub(super) fn read_buckets(&self, actions: &mut Vec<Action>) {
        actions.extend(self.numbers.heavy.map(Action::ReadBuckets));
        actions.push(Action::ReadBuckets(self.numbers.group));
    }

    pub(super) fn count_heavy(&mut self, report: &BucketReport) {
        let elephants = &mut self.state.elephants;
        elephants.report.clone_from(report);
        if report.pending == 0 {
            elephants.pins.values_mut().for_each(|pin| pin.leaving.clear());
        }
    }

    /// The bond's buckets were read: so much more has moved since the time before.
    pub(super) fn count_looks(&mut self, moved: u64) {
        let elephants = &mut self.state.elephants;
        if std::mem::take(&mut elephants.measures)
            && let Some(look) = &mut elephants.look
        {
            look.counted = moved;
            elephants.unseen += moved;
        }
    }

    /// What is to be taken over from before a reload, as far as it still means the same.
    pub(super) fn adapt_elephants(&mut self, actions: &mut Vec<Action>) {
        self.end_look(actions);
        let made_for = self.made_for();
        let stays = self.state.elephants.made_for.replace(made_for) == Some(made_for);
        let goes = |pin: &Pin| !stays || self.state.gone.contains_key(&pin.member);
        let gone: Vec<u32> = self.state.elephants.pins.iter().filter(|one| goes(one.1)).map(|one| *one.0).collect();
        for slot in gone {
            self.unpin(slot, "the configuration has changed", actions);
        }
        self.state.elephants.told.clear();
        self.state.elephants.fruitless.clear();
        if self.bond.elephants == 0 {
            self.state.elephants.report = no_buckets(ELEPHANTS_MAX as usize);
        }
    }

    /// The first of its kind: what another has left in the pipe is taken out.
    pub(super) fn begin_elephants(&mut self, actions: &mut Vec<Action>) {
        self.state.elephants.made_for = Some(self.made_for());
        for flow in std::mem::take(&mut self.state.elephants.leftover) {
            self.remove_entry(flow, actions);
        }
    }

    fn made_for(&self) -> MadeFor {
        (self.bond.elephants, self.bond.key, self.bond.basis, self.numbers.select_seed, self.bond.buckets)
    }

    /// A run has named elephants: the heaviest that can be looked at is.
    pub(super) fn look_for(&mut self, now_ns: u64, plan: &Plan, actions: &mut Vec<Action>) {
        let state = &self.state;
        let full = state.elephants.pins.len() >= self.bond.elephants as usize;
        // A move that waits would be lost, and how often a look is counted could not be told.
        if full || state.elephants.look.is_some() || state.buckets.pending > 0 || !state.sending {
            return;
        }
        let rests = |bucket: u32| state.elephants.fruitless.get(&bucket).is_some_and(|until| *until > now_ns);
        let moves = |bucket: u32| plan.moves.iter().any(|shift| shift.bucket == bucket);
        let heavy = plan.elephants.iter().filter(|one| !rests(one.bucket) && !moves(one.bucket));
        let Some(bucket) = heavy.max_by_key(|one| one.load).map(|one| one.bucket) else { return };
        let Some(&member) = state.assignment.slots().get(bucket as usize) else { return };
        let target = self.target(member);
        if target == NO_TARGET || state.buckets.slots.get(bucket as usize) != Some(&target) {
            return;
        }
        let twin = target + self.bond.members.len() as u16;
        actions.push(self.move_buckets(vec![(bucket, twin)], When::Now));
        actions.push(Action::ReadBuckets(self.numbers.group));
        self.state.elephants.measures = true;
        self.state.elephants.look = Some(Look {
            bucket,
            member,
            since_ns: now_ns,
            until_ns: now_ns + LOOK_NS,
            frames: 0,
            bytes: 0,
            flows: BTreeMap::new(),
            counted: 0,
        });
    }

    /// A copy of a frame has come.
    pub(super) fn looked_at(&mut self, now_ns: u64, bytes: &[u8], actions: &mut Vec<Action>) {
        let key = key_of(bytes, self.bond.key);
        let bucket = key.map(|key| self.bucket_of(&key));
        let Some(look) = &mut self.state.elephants.look else { return };
        // One that was on its way when the look before ended; or an action has changed the frame since its bucket was
        // picked, and what its entry would have to say is not known.
        if bucket.is_some_and(|bucket| bucket != look.bucket) {
            return;
        }
        look.frames += 1;
        look.bytes += bytes.len() as u64;
        if let Some(key) = key {
            *look.flows.entry(key).or_default() += bytes.len() as u64;
        }
        if look.frames >= FRAMES_MAX {
            self.conclude(now_ns, actions);
        }
    }

    /// Enough was seen, or the time is over.
    pub(super) fn conclude(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        let Some(look) = self.end_look(actions) else { return };
        let heaviest = look.flows.iter().max_by_key(|one| *one.1).map(|(flow, bytes)| (*flow, *bytes));
        let is_pinned = |flow: FlowKey| self.state.elephants.pins.values().any(|pin| pin.flow == flow);
        match heaviest.filter(|(flow, bytes)| bytes * HEAVY_PART >= look.bytes && !is_pinned(*flow)) {
            Some((flow, bytes)) => self.pin(now_ns, &look, flow, bytes, actions),
            None => self.let_rest(look.since_ns, look.bucket),
        }
    }

    /// Gives the bucket that is looked at back, if one is.
    pub(super) fn end_look(&mut self, actions: &mut Vec<Action>) -> Option<Look> {
        let look = self.state.elephants.look.take()?;
        self.state.elephants.measures = false;
        let target = self.target(look.member);
        let is_there = self.state.assignment.slots().len() == self.bond.size() as usize;
        if target != NO_TARGET && is_there && self.state.sending {
            actions.push(self.move_buckets(vec![(look.bucket, target)], When::Now));
            self.state.elephants.unseen += look.counted;
        }
        Some(look)
    }

    /// A bucket will be moved: it is looked at no longer.
    pub(super) fn leave_alone(&mut self, mut bucket: impl Iterator<Item = u32>, actions: &mut Vec<Action>) {
        if let Some(look) = &self.state.elephants.look
            && bucket.any(|bucket| bucket == look.bucket)
        {
            self.end_look(actions);
        }
    }

    fn let_rest(&mut self, since_ns: u64, bucket: u32) {
        let until_ns = since_ns + REST_INTERVALS * self.interval_ns();
        self.state.elephants.fruitless.retain(|_, until| *until > since_ns);
        self.state.elephants.fruitless.insert(bucket, until_ns);
    }

    fn interval_ns(&self) -> u64 {
        u64::from(self.bond.rebalance_ms.max(INTERVAL_MIN_MS)) * NS_PER_MS
    }

    fn pin(&mut self, now_ns: u64, look: &Look, flow: FlowKey, bytes: u64, actions: &mut Vec<Action>) {
        let (Some(pipe), Some(slot)) = (self.numbers.flows, self.free_slot()) else { return };
        actions.extend(self.move_heavy(vec![(slot, self.target(look.member))], When::Now));
        let entry = Entry::on(EntryMatch::Flow(flow)).value(self.value_of(slot)).run_time();
        actions.push(Action::Change(Change::Add { pipe, entry }));
        let why = format!("{} % of what bucket {} was seen to carry", bytes * 100 / look.bytes.max(1), look.bucket);
        actions.push(Action::Say(format!("pinned: {flow} on {}, {why}", self.name(look.member))));
        let (own, size) = (self.bond.size() + slot, look.bytes);
        self.state.rebalance.hand_over(look.bucket, own, (bytes, size));
        let elephants = &mut self.state.elephants;
        if let Some(told) = elephants.told.get_mut(slot as usize) {
            *told = look.member;
        }
        let pin = Pin {
            flow,
            bucket: look.bucket,
            member: look.member,
            leaving: Vec::new(),
            since_ns: now_ns,
            judged_ns: look.since_ns,
            seen: elephants.report.bytes.get(slot as usize).copied().unwrap_or_default(),
            load: 0,
            why,
        };
        elephants.pins.insert(slot, pin);
    }

    fn free_slot(&self) -> Option<u32> {
        (0..ELEPHANTS_MAX).find(|slot| !self.state.elephants.pins.contains_key(slot))
    }

    fn unpin(&mut self, slot: u32, why: &str, actions: &mut Vec<Action>) {
        let Some(pin) = self.state.elephants.pins.remove(&slot) else { return };
        self.remove_entry(pin.flow, actions);
        self.state.rebalance.hand_over(self.state.assignment.slots().len() as u32 + slot, pin.bucket, (1, 1));
        actions.push(Action::Say(format!("unpinned: {}: {why}", pin.flow)));
    }

    /// Every flow is with its bucket again.
    pub(super) fn unpin_all(&mut self, why: &str, actions: &mut Vec<Action>) {
        self.end_look(actions);
        for slot in self.state.elephants.pins.keys().copied().collect::<Vec<_>>() {
            self.unpin(slot, why, actions);
        }
        self.follow_buckets(actions);
    }

    fn remove_entry(&self, flow: FlowKey, actions: &mut Vec<Action>) {
        let key = EntryKey { matches: vec![EntryMatch::Flow(flow)], priority: 0 };
        actions.extend(self.numbers.flows.map(|pipe| Action::Change(Change::Remove { pipe, key })));
    }

    /// Looks what pinned flows have carried; one that carries little any more needs no bucket of its own.
    pub(super) fn judge(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        let interval_ns = self.interval_ns();
        let Elephants { pins, report, .. } = &mut self.state.elephants;
        let (mut idle, mut untouched) = (Vec::new(), Vec::new());
        for (&slot, pin) in pins.iter_mut().filter(|one| now_ns - one.1.judged_ns >= interval_ns) {
            let bytes = report.bytes.get(slot as usize).copied().unwrap_or_default();
            pin.load = bytes.saturating_sub(pin.seen);
            (pin.seen, pin.judged_ns) = (bytes, now_ns);
            if pin.load < OVERLOAD_BYTES {
                idle.push(slot);
                untouched.extend((pin.load == 0).then_some(pin.bucket));
            }
        }
        // An entry that nothing meets may be of frames that are changed on their way here.
        untouched.into_iter().for_each(|bucket| self.let_rest(now_ns, bucket));
        for slot in idle {
            self.unpin(slot, "it carries little", actions);
        }
        self.follow_buckets(actions);
    }

    /// A member is of no use any more: its pinned flows go where their buckets have gone, and what was to leave it when
    /// idle leaves it now.
    pub(super) fn lose(&mut self, id: u16, actions: &mut Vec<Action>) {
        let with = |pin: &Pin| pin.member == id;
        let gone: Vec<u32> = self.state.elephants.pins.iter().filter(|one| with(one.1)).map(|one| *one.0).collect();
        for slot in gone {
            self.unpin(slot, "its member is lost", actions);
        }
        self.hasten_pins(id, actions);
        self.follow_buckets(actions);
    }

    /// What was to leave a member when idle leaves it now.
    pub(super) fn hasten_pins(&mut self, id: u16, actions: &mut Vec<Action>) {
        let pins = self.state.elephants.pins.iter();
        let late = pins.filter(|one| one.1.leaving.contains(&id)).map(|(slot, pin)| (*slot, self.target(pin.member)));
        let late: Vec<(u32, u16)> = late.collect();
        if !late.is_empty() {
            actions.extend(self.move_heavy(late, When::Now));
        }
    }

    /// Pinned flows whose member works, and shall not be used any more, go when idle to the members of their buckets.
    pub(super) fn settle_pins(&mut self, now_ns: u64, why: &str, actions: &mut Vec<Action>) {
        let assignment = &self.state.assignment;
        let to = |pin: &Pin| assignment.slots().get(pin.bucket as usize).copied().filter(|to| assignment.lives(*to));
        let pins = self.state.elephants.pins.iter().filter(|one| !assignment.lives(one.1.member));
        let list: Vec<(u32, u16)> = pins.filter_map(|(slot, pin)| Some((*slot, to(pin)?))).collect();
        for (slot, to) in list {
            self.move_pin(now_ns, slot, to, why, actions);
        }
    }

    /// A rebalance moves a pinned flow.
    pub(super) fn move_pin(&mut self, now_ns: u64, slot: u32, to: u16, why: &str, actions: &mut Vec<Action>) {
        let target = self.target(to);
        let lives = self.state.assignment.lives(to) && target != NO_TARGET;
        let Some(pin) = self.state.elephants.pins.get_mut(&slot).filter(|pin| lives && pin.member != to) else {
            return;
        };
        pin.leaving.push(std::mem::replace(&mut pin.member, to));
        let flow = pin.flow;
        if let Some(told) = self.state.elephants.told.get_mut(slot as usize) {
            *told = to;
        }
        self.state.elephants.moved += 1;
        actions.extend(self.move_heavy(vec![(slot, target)], When::Idle));
        self.state.moves_total += 1;
        self.remember(Moved { at_ns: now_ns, buckets: Vec::new(), flow: Some(flow), to, why: why.to_string() });
    }

    /// Buckets of `heavy` without a flow go after those of the bond.
    pub(super) fn follow_buckets(&mut self, actions: &mut Vec<Action>) {
        if self.numbers.heavy.is_none() || !self.state.sending {
            return;
        }
        let State { elephants, assignment, .. } = &mut self.state;
        elephants.told.resize(ELEPHANTS_MAX as usize, NO_TARGET);
        let own = assignment.slots();
        let mut list = Vec::new();
        for (slot, told) in (0..).zip(&mut elephants.told) {
            let wanted = own.get(slot as usize % own.len().max(1)).copied().unwrap_or(NO_TARGET);
            if !elephants.pins.contains_key(&slot) && std::mem::replace(told, wanted) != wanted {
                list.push((slot, wanted));
            }
        }
        let list: Vec<(u32, u16)> = list.into_iter().map(|(slot, member)| (slot, self.target(member))).collect();
        if !list.is_empty() {
            actions.extend(self.move_heavy(list, When::Now));
        }
    }

    fn move_heavy(&self, list: Vec<(u32, u16)>, when: When) -> Option<Action> {
        self.numbers.heavy.map(|group| self.move_of(group, list, when))
    }

    /// The bucket of the bond that a flow hashes to.
    fn bucket_of(&self, flow: &FlowKey) -> u32 {
        let hash = select_hash(self.numbers.select_seed, &flow.0);
        bucket(seeded(hash, self.bond.seed()), self.bond.size())
    }

    /// A number that hashes to this bucket of `heavy`; of so many buckets it is one of the first few hundred.
    fn value_of(&self, slot: u32) -> u32 {
        let hash = |value: u32| seeded(select_hash(self.numbers.select_seed, &[u64::from(value)]), HEAVY_SEED);
        (0..=u32::MAX).find(|value| bucket(hash(*value), ELEPHANTS_MAX) == slot).unwrap_or_default()
    }
}

/// Which bucket of so many a hash picks (docs/pipes.md M7).
fn bucket(hash: u64, size: u32) -> u32 {
    (((hash >> 32) * u64::from(size)) >> 32) as u32
}

fn key_of(bytes: &[u8], source: KeySource) -> Option<FlowKey> {
    let depth = match source {
        KeySource::Outer => Depth::L4,
        KeySource::Inner => Depth::Inner,
    };
    FlowKey::of(bytes, &packet::parse(bytes, depth).ok()?, source)
}
