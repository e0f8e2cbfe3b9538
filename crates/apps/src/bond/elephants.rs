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

use super::assignment::{Move, When};
use super::buckets::{Buckets, Moved, no_buckets};
use super::config::{Bond, ELEPHANTS_MAX};
use super::members::Members;
use super::pipes::{HEAVY_SEED, Names};
use super::rebalance::{OVERLOAD_BYTES, Plan, Rebalance};
use crate::app::Action;
use engine::change::{Change, EntryKey};
use engine::program::{Entry, EntryMatch, GroupId, PipeId, Program};
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
    /// The pipe that knows pinned flows, and the group of their buckets.
    flows: Option<PipeId>,
    pub heavy: Option<GroupId>,
    select_seed: u64,
    /// By their buckets of the group `heavy`.
    pub pins: BTreeMap<u32, Pin>,
    look: Option<Look>,
    /// The buckets of `heavy` when they were read last.
    pub report: BucketReport,
    /// Buckets that were looked at in vain, and until when they are left alone.
    fruitless: BTreeMap<u32, u64>,
    /// The member that each bucket of `heavy` was given.
    told: Vec<u16>,
    /// What entries were made for: if it changes they mean nothing.
    made_for: Option<MadeFor>,
    /// Flows whose entries another kind of bond left.
    leftover: Vec<FlowKey>,
    /// Moves to twins and back that the engine has counted.
    unseen: u64,
    /// The next report shows what the engine counts for a move to a twin.
    measures: bool,
    /// Moves of pinned flows that were ordered.
    moved: u64,
}

/// What elephants are found and moved with: the other parts of the bond.
pub(super) struct With<'a> {
    pub bond: &'a Bond,
    pub members: &'a Members,
    pub buckets: &'a mut Buckets,
    pub rebalance: &'a mut Rebalance,
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

/// Loads and members: those of the bond's buckets, and behind them those of the group `heavy`.
pub(super) struct Lanes<'a> {
    pub totals: Cow<'a, [u64]>,
    pub slots: Cow<'a, [u16]>,
}

impl Elephants {
    /// No flow is pinned.
    pub fn new() -> Elephants {
        Elephants {
            flows: None,
            heavy: None,
            select_seed: 0,
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

    /// Looks up the pipe and the group.
    pub fn bind(&mut self, bond: &Bond, program: &Program) {
        self.flows = (bond.elephants > 0).then(|| program.pipe_named(&bond.name)).flatten();
        self.heavy = (bond.elephants > 0).then(|| program.group_named(&Names(&bond.name).heavy())).flatten();
        self.select_seed = program.select_seed;
    }

    /// Another kind of bond had these: the entries of its flows are to be removed.
    pub fn replace(&mut self, old: Elephants) {
        self.leftover = old.pins.into_values().map(|pin| pin.flow).collect();
    }

    /// When a look is over.
    pub fn wake_ns(&self) -> Option<u64> {
        self.look.as_ref().map(|look| look.until_ns)
    }

    /// The bucket that is looked at.
    #[cfg(test)]
    pub fn looked_at_bucket(&self) -> Option<u32> {
        self.look.as_ref().map(|look| look.bucket)
    }

    /// What a rebalance looks at.
    pub fn lanes<'a>(&'a self, elephants: u32, buckets: &'a Buckets) -> Lanes<'a> {
        let (totals, slots) = (&buckets.report.bytes, buckets.assignment.slots());
        if elephants == 0 {
            return Lanes { totals: Cow::Borrowed(totals), slots: Cow::Borrowed(slots) };
        }
        let members = (0..ELEPHANTS_MAX).map(|slot| self.pins.get(&slot).map_or(NO_TARGET, |pin| pin.member));
        Lanes {
            totals: totals.iter().chain(&self.report.bytes).copied().collect(),
            slots: slots.iter().copied().chain(members).collect(),
        }
    }

    /// Moves that the engine has carried out, and those of them that found a bucket in use. A look is none.
    pub fn moves(&self, own: &BucketReport) -> (u64, u64) {
        (own.moved.saturating_sub(self.unseen) + self.moved, own.moved_busy + self.report.moved_busy)
    }

    /// The buckets of `heavy` were read.
    pub fn count(&mut self, report: &BucketReport) {
        self.report.clone_from(report);
        if report.pending == 0 {
            self.pins.values_mut().for_each(|pin| pin.leaving.clear());
        }
    }

    /// The bond's buckets were read: so many more have moved since the time before.
    pub fn count_looks(&mut self, moved: u64) {
        if std::mem::take(&mut self.measures)
            && let Some(look) = &mut self.look
        {
            look.counted = moved;
            self.unseen += moved;
        }
    }

    /// Keeps what was taken over from before a reload, as far as it still means the same.
    pub fn adapt(&mut self, with: &mut With<'_>, actions: &mut Vec<Action>) {
        self.end_look(with, actions);
        let made_for = self.made_for(with.bond);
        let stays = self.made_for.replace(made_for) == Some(made_for);
        let gone_members = with.members.gone();
        let goes = |pin: &Pin| !stays || gone_members.contains(&pin.member);
        let gone: Vec<u32> = self.pins.iter().filter(|one| goes(one.1)).map(|one| *one.0).collect();
        for slot in gone {
            self.unpin(slot, "the configuration has changed", with, actions);
        }
        self.told.clear();
        self.fruitless.clear();
        if with.bond.elephants == 0 {
            self.report = no_buckets(ELEPHANTS_MAX as usize);
        }
    }

    /// The first of its kind: what another has left in the pipe is removed.
    pub fn begin(&mut self, bond: &Bond, actions: &mut Vec<Action>) {
        self.made_for = Some(self.made_for(bond));
        for flow in std::mem::take(&mut self.leftover) {
            self.remove_entry(flow, actions);
        }
    }

    fn made_for(&self, bond: &Bond) -> MadeFor {
        (bond.elephants, bond.key, bond.basis, self.select_seed, bond.buckets)
    }

    /// A run has named elephants: the heaviest that can be looked at is.
    pub fn look_for(&mut self, now_ns: u64, plan: &Plan, with: &mut With<'_>, actions: &mut Vec<Action>) {
        let full = self.pins.len() >= with.bond.elephants as usize;
        let report = &with.buckets.report;
        // A move that waits would be lost, and how often a look is counted could not be told.
        if full || self.look.is_some() || report.pending > 0 || !with.buckets.is_sending() {
            return;
        }
        let rests = |bucket: u32| self.fruitless.get(&bucket).is_some_and(|until| *until > now_ns);
        let moves = |bucket: u32| plan.moves.iter().any(|shift| shift.bucket == bucket);
        let heavy = plan.elephants.iter().filter(|one| !rests(one.bucket) && !moves(one.bucket));
        let Some(bucket) = heavy.max_by_key(|one| one.load).map(|one| one.bucket) else { return };
        let Some(&member) = with.buckets.assignment.slots().get(bucket as usize) else { return };
        let target = with.members.target(member);
        if target == NO_TARGET || report.slots.get(bucket as usize) != Some(&target) {
            return;
        }
        let twin = target + with.bond.members.len() as u16;
        actions.push(with.buckets.change(vec![(bucket, twin)], When::Now));
        actions.push(Action::ReadBuckets(with.buckets.group));
        self.measures = true;
        self.look = Some(Look {
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
    pub fn looked_at(&mut self, now_ns: u64, frame: &[u8], with: &mut With<'_>, actions: &mut Vec<Action>) {
        let key = key_of(frame, with.bond.key);
        let bucket = key.map(|key| self.bucket_of(&key, with.bond));
        let Some(look) = &mut self.look else { return };
        // One that was on its way when the look before ended; or an action has changed the frame since its bucket was
        // picked, and what its entry would have to say is not known.
        if bucket.is_some_and(|bucket| bucket != look.bucket) {
            return;
        }
        look.frames += 1;
        look.bytes += frame.len() as u64;
        if let Some(key) = key {
            *look.flows.entry(key).or_default() += frame.len() as u64;
        }
        if look.frames >= FRAMES_MAX {
            self.conclude(now_ns, with, actions);
        }
    }

    /// Enough was seen, or the time is over.
    pub fn conclude(&mut self, now_ns: u64, with: &mut With<'_>, actions: &mut Vec<Action>) {
        let Some(look) = self.end_look(with, actions) else { return };
        let heaviest = look.flows.iter().max_by_key(|one| *one.1).map(|(flow, bytes)| (*flow, *bytes));
        let is_pinned = |flow: FlowKey| self.pins.values().any(|pin| pin.flow == flow);
        match heaviest.filter(|(flow, bytes)| bytes * HEAVY_PART >= look.bytes && !is_pinned(*flow)) {
            Some((flow, bytes)) => self.pin(now_ns, &look, (flow, bytes), with, actions),
            None => self.let_rest(look.since_ns, look.bucket, with.bond),
        }
    }

    /// Gives the bucket that is looked at back, if one is.
    fn end_look(&mut self, with: &With<'_>, actions: &mut Vec<Action>) -> Option<Look> {
        let look = self.look.take()?;
        self.measures = false;
        let target = with.members.target(look.member);
        let is_there = with.buckets.assignment.slots().len() == with.bond.size() as usize;
        if target != NO_TARGET && is_there && with.buckets.is_sending() {
            actions.push(with.buckets.change(vec![(look.bucket, target)], When::Now));
            self.unseen += look.counted;
        }
        Some(look)
    }

    /// Buckets will be moved: they are looked at no longer.
    pub fn leave_alone(&mut self, moves: &[Move], with: &With<'_>, actions: &mut Vec<Action>) {
        if let Some(look) = &self.look
            && moves.iter().any(|one| one.bucket == look.bucket)
        {
            self.end_look(with, actions);
        }
    }

    fn let_rest(&mut self, since_ns: u64, bucket: u32, bond: &Bond) {
        let until_ns = since_ns + REST_INTERVALS * interval_ns(bond);
        self.fruitless.retain(|_, until| *until > since_ns);
        self.fruitless.insert(bucket, until_ns);
    }

    fn pin(
        &mut self,
        now_ns: u64,
        look: &Look,
        (flow, bytes): (FlowKey, u64),
        with: &mut With<'_>,
        actions: &mut Vec<Action>,
    ) {
        let (Some(pipe), Some(slot)) = (self.flows, self.free_slot()) else { return };
        actions.extend(self.move_heavy(vec![(slot, with.members.target(look.member))], When::Now, with));
        let entry = Entry::on(EntryMatch::Flow(flow)).value(self.value_of(slot)).run_time();
        actions.push(Action::Change(Change::Add { pipe, entry }));
        let why = format!("{} % of what bucket {} was seen to carry", bytes * 100 / look.bytes.max(1), look.bucket);
        actions.push(Action::Say(format!("pinned: {flow} on {}, {why}", with.members.name(look.member))));
        with.rebalance.hand_over(look.bucket, with.bond.size() + slot, (bytes, look.bytes));
        if let Some(told) = self.told.get_mut(slot as usize) {
            *told = look.member;
        }
        let pin = Pin {
            flow,
            bucket: look.bucket,
            member: look.member,
            leaving: Vec::new(),
            since_ns: now_ns,
            judged_ns: look.since_ns,
            seen: self.report.bytes.get(slot as usize).copied().unwrap_or_default(),
            load: 0,
            why,
        };
        self.pins.insert(slot, pin);
    }

    fn free_slot(&self) -> Option<u32> {
        (0..ELEPHANTS_MAX).find(|slot| !self.pins.contains_key(slot))
    }

    fn unpin(&mut self, slot: u32, why: &str, with: &mut With<'_>, actions: &mut Vec<Action>) {
        let Some(pin) = self.pins.remove(&slot) else { return };
        self.remove_entry(pin.flow, actions);
        let own = with.buckets.assignment.slots().len() as u32 + slot;
        with.rebalance.hand_over(own, pin.bucket, (1, 1));
        actions.push(Action::Say(format!("unpinned: {}: {why}", pin.flow)));
    }

    /// Every flow is with its bucket again.
    pub fn unpin_all(&mut self, why: &str, with: &mut With<'_>, actions: &mut Vec<Action>) {
        self.end_look(with, actions);
        for slot in self.pins.keys().copied().collect::<Vec<_>>() {
            self.unpin(slot, why, with, actions);
        }
        self.follow_buckets(with, actions);
    }

    fn remove_entry(&self, flow: FlowKey, actions: &mut Vec<Action>) {
        let key = EntryKey::of(&Entry::on(EntryMatch::Flow(flow)));
        actions.extend(self.flows.map(|pipe| Action::Change(Change::Remove { pipe, key })));
    }

    /// Looks what pinned flows have carried; one that carries little any more needs no bucket of its own.
    pub fn judge(&mut self, now_ns: u64, with: &mut With<'_>, actions: &mut Vec<Action>) {
        let interval_ns = interval_ns(with.bond);
        let (mut idle, mut untouched) = (Vec::new(), Vec::new());
        for (&slot, pin) in self.pins.iter_mut().filter(|one| now_ns - one.1.judged_ns >= interval_ns) {
            let bytes = self.report.bytes.get(slot as usize).copied().unwrap_or_default();
            pin.load = bytes.saturating_sub(pin.seen);
            (pin.seen, pin.judged_ns) = (bytes, now_ns);
            if pin.load < OVERLOAD_BYTES {
                idle.push(slot);
                untouched.extend((pin.load == 0).then_some(pin.bucket));
            }
        }
        // An entry that nothing meets may be of frames that are changed on their way here.
        untouched.into_iter().for_each(|bucket| self.let_rest(now_ns, bucket, with.bond));
        for slot in idle {
            self.unpin(slot, "it carries little", with, actions);
        }
        self.follow_buckets(with, actions);
    }

    /// A member is of no use any more: its pinned flows go where their buckets have gone, and what was to leave it when
    /// idle leaves it now.
    pub fn lose(&mut self, id: u16, with: &mut With<'_>, actions: &mut Vec<Action>) {
        let pinned = |pin: &Pin| pin.member == id;
        let gone: Vec<u32> = self.pins.iter().filter(|one| pinned(one.1)).map(|one| *one.0).collect();
        for slot in gone {
            self.unpin(slot, "its member is lost", with, actions);
        }
        self.hasten(id, with, actions);
        self.follow_buckets(with, actions);
    }

    /// What was to leave a member when idle leaves it now.
    pub fn hasten(&self, id: u16, with: &With<'_>, actions: &mut Vec<Action>) {
        let late = self.pins.iter().filter(|one| one.1.leaving.contains(&id));
        let late: Vec<(u32, u16)> = late.map(|(slot, pin)| (*slot, with.members.target(pin.member))).collect();
        if !late.is_empty() {
            actions.extend(self.move_heavy(late, When::Now, with));
        }
    }

    /// Pinned flows whose member works, and shall not be used any more, go when idle to the members of their buckets.
    pub fn settle(&mut self, now_ns: u64, why: &str, with: &mut With<'_>, actions: &mut Vec<Action>) {
        let assignment = &with.buckets.assignment;
        let to = |pin: &Pin| assignment.slots().get(pin.bucket as usize).copied().filter(|to| assignment.lives(*to));
        let pins = self.pins.iter().filter(|one| !assignment.lives(one.1.member));
        let list: Vec<(u32, u16)> = pins.filter_map(|(slot, pin)| Some((*slot, to(pin)?))).collect();
        for (slot, to) in list {
            self.shift(now_ns, (slot, to), why, with, actions);
        }
    }

    /// Moves a pinned flow to another member, when it is idle.
    pub fn shift(
        &mut self,
        now_ns: u64,
        (slot, to): (u32, u16),
        why: &str,
        with: &mut With<'_>,
        actions: &mut Vec<Action>,
    ) {
        let target = with.members.target(to);
        let lives = with.buckets.assignment.lives(to) && target != NO_TARGET;
        let Some(pin) = self.pins.get_mut(&slot).filter(|pin| lives && pin.member != to) else { return };
        pin.leaving.push(std::mem::replace(&mut pin.member, to));
        let flow = pin.flow;
        if let Some(told) = self.told.get_mut(slot as usize) {
            *told = to;
        }
        self.moved += 1;
        actions.extend(self.move_heavy(vec![(slot, target)], When::Idle, with));
        with.buckets.ordered += 1;
        let why = why.to_string();
        with.buckets.remember(Moved { at_ns: now_ns, buckets: Vec::new(), flow: Some(flow), to, why });
    }

    /// Buckets of `heavy` without a flow go after those of the bond.
    pub fn follow_buckets(&mut self, with: &With<'_>, actions: &mut Vec<Action>) {
        if self.heavy.is_none() || !with.buckets.is_sending() {
            return;
        }
        self.told.resize(ELEPHANTS_MAX as usize, NO_TARGET);
        let own = with.buckets.assignment.slots();
        let mut list = Vec::new();
        for (slot, told) in (0..).zip(&mut self.told) {
            let wanted = own.get(slot as usize % own.len().max(1)).copied().unwrap_or(NO_TARGET);
            if !self.pins.contains_key(&slot) && std::mem::replace(told, wanted) != wanted {
                list.push((slot, with.members.target(wanted)));
            }
        }
        if !list.is_empty() {
            actions.extend(self.move_heavy(list, When::Now, with));
        }
    }

    fn move_heavy(&self, list: Vec<(u32, u16)>, when: When, with: &With<'_>) -> Option<Action> {
        self.heavy.map(|group| with.buckets.change_of(group, list, when))
    }

    /// The bucket of the bond that a flow hashes to.
    fn bucket_of(&self, flow: &FlowKey, bond: &Bond) -> u32 {
        let hash = select_hash(self.select_seed, &flow.0);
        bucket(seeded(hash, bond.seed()), bond.size())
    }

    /// A number that hashes to this bucket of `heavy`; of so many buckets it is one of the first few hundred.
    fn value_of(&self, slot: u32) -> u32 {
        let hash = |value: u32| seeded(select_hash(self.select_seed, &[u64::from(value)]), HEAVY_SEED);
        (0..=u32::MAX).find(|value| bucket(hash(*value), ELEPHANTS_MAX) == slot).unwrap_or_default()
    }
}

fn interval_ns(bond: &Bond) -> u64 {
    u64::from(bond.rebalance_ms.max(INTERVAL_MIN_MS)) * NS_PER_MS
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
