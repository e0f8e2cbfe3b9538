//! Elephants: a heavy flow is taken out of the bucket it shares with others and given a bucket of its own.
//!
//! Rebalancing moves whole buckets, so it cannot help where one flow is most of a bucket's load. Such a flow
//! is *pinned*: it gets an entry in the pipe that has the bond's name, which leads it to a bucket of a second
//! group, `heavy`. That bucket is counted and moved like any other, so the next rebalance simply has one more
//! bucket. The flow starts on its present member, and every later move waits until the flow is idle, so the
//! flow is not reordered.
//!
//! The flow is found by sampling, not by keeping per-flow state: when a rebalance names a bucket with an
//! elephant, the bucket is moved to its member's *twin* for a moment. Frames leave through the same port, and
//! the app gets copies. The flow with the most bytes among them is pinned. Such a *look* concerns one bucket
//! at a time, and any other change to the bucket ends it first.
//!
//! Buckets of `heavy` without a flow follow the bond's own buckets of the same numbers. Frames reach them
//! only in the moment when a reload has changed how entries hash, and they must leave through some member
//! even then.
//!
//! The cost: a look at up to 64 frames or 100 ms per interval, and one entry per pinned flow.

use super::assignment::{Move, When};
use super::buckets::{Buckets, Moved, no_buckets};
use super::config::{Bond, ELEPHANTS_MAX};
use super::members::Members;
use super::pipes::{HEAVY_SEED, Names};
use super::rebalance::{OVERLOAD_BYTES, Plan, Rebalance};
use std::borrow::Cow;
use std::collections::BTreeMap;
use weir_app::{Action, Level};
use weir_engine::worker::BucketReport;
use weir_packet::{Depth, FlowKey, KeySource, select_hash};
use weir_program::change::{Change, EntryKey};
use weir_program::{Entry, EntryMatch, GroupId, PipeId, Program};
use weir_table::{NO_TARGET, seeded};

/// The maximum number of frames examined in a look.
const FRAMES_MAX: u32 = 64;

/// Longest duration of a look; a flow worth pinning sends several frames in that time.
const LOOK_NS: u64 = 100_000_000;

/// A flow is pinned if it carries at least the bytes examined divided by this number. Two flows of equal
/// weight are thus both pinned, one after the other, even if small flows keep each below one half.
const HEAVY_PART: u64 = 3;

/// How many intervals a bucket is left alone after a look that found nothing.
const REST_INTERVALS: u64 = 3;

/// Shortest interval that can be configured (`rebalance::Rebalance`).
const INTERVAL_MIN_MS: u32 = 1000;

const NS_PER_MS: u64 = 1_000_000;

/// The pinned flows, and the look in progress.
pub(super) struct Elephants {
    /// The pipe with the entries of pinned flows.
    flows: Option<PipeId>,
    pub heavy: Option<GroupId>,
    select_seed: u64,
    /// Pinned flows by their bucket of `heavy`.
    pub pins: BTreeMap<u32, Pin>,
    look: Option<Look>,
    /// The counters of `heavy` when they were last read.
    pub report: BucketReport,
    /// The buckets in which a look found nothing, and the time until which they are left alone.
    fruitless: BTreeMap<u32, u64>,
    /// The member that each bucket of `heavy` was last assigned to.
    announced: Vec<u16>,
    /// The settings on which the entries depend. If these change, the entries are no longer valid.
    made_for: Option<MadeFor>,
    /// Flows whose entries were left by a bond of another kind.
    leftover: Vec<FlowKey>,
    /// Moves to and from twins that are included in the engine's counter.
    unseen: u64,
    /// Whether the next report will show how much the engine counts for a move to a twin.
    measures: bool,
    /// Number of moves of pinned flows that were ordered.
    moved: u64,
}

/// The other parts of the bond that this one needs.
pub(super) struct With<'a> {
    pub bond: &'a Bond,
    pub members: &'a Members,
    pub buckets: &'a mut Buckets,
    pub rebalance: &'a mut Rebalance,
}

type MadeFor = (u32, KeySource, u64, u64, u32);

/// A pinned flow.
pub(super) struct Pin {
    pub flow: FlowKey,
    /// The bucket of the bond that it hashes to.
    pub bucket: u32,
    pub member: u16,
    /// Members that the flow was ordered to leave when idle, and on which it may still be.
    leaving: Vec<u16>,
    pub since_ns: u64,
    /// When its load was last evaluated.
    judged_ns: u64,
    /// The flow's bytes at that time.
    seen: u64,
    /// The bytes it carried in the interval before that.
    pub load: u64,
    pub why: String,
}

/// A look in progress: a bucket whose frames are copied to the app.
pub(super) struct Look {
    pub bucket: u32,
    pub member: u16,
    since_ns: u64,
    pub until_ns: u64,
    frames: u32,
    bytes: u64,
    flows: BTreeMap<FlowKey, u64>,
    /// How many moves the engine counts for the move to the twin: one per worker.
    counted: u64,
}

/// Loads and members of the bond's buckets, followed by those of the group `heavy`.
pub(super) struct Lanes<'a> {
    pub totals: Cow<'a, [u64]>,
    pub slots: Cow<'a, [u16]>,
}

impl Elephants {
    /// State without any pinned flow.
    pub fn new() -> Elephants {
        Elephants {
            flows: None,
            heavy: None,
            select_seed: 0,
            pins: BTreeMap::new(),
            look: None,
            report: no_buckets(ELEPHANTS_MAX as usize),
            fruitless: BTreeMap::new(),
            announced: Vec::new(),
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

    /// Schedules the removal of the entries of a bond of another kind.
    pub fn replace(&mut self, old: Elephants) {
        self.leftover = old.pins.into_values().map(|pin| pin.flow).collect();
    }

    /// When the look in progress ends.
    pub fn wake_ns(&self) -> Option<u64> {
        self.look.as_ref().map(|look| look.until_ns)
    }

    /// The bucket being looked at.
    #[cfg(test)]
    pub fn looked_at_bucket(&self) -> Option<u32> {
        self.look.as_ref().map(|look| look.bucket)
    }

    /// The input of a rebalance.
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

    /// Moves that the engine has carried out. Looks are not counted.
    pub fn moved(&self, own: &BucketReport) -> u64 {
        own.moved.saturating_sub(self.unseen) + self.moved
    }

    /// How many of the moves found the bucket in use.
    pub fn moved_busy(&self, own: &BucketReport) -> u64 {
        own.moved_busy + self.report.moved_busy
    }

    /// Processes the counters of `heavy`.
    pub fn count(&mut self, report: &BucketReport) {
        self.report.clone_from(report);
        if report.pending == 0 {
            self.pins.values_mut().for_each(|pin| pin.leaving.clear());
        }
    }

    /// Processes the number of moves of the bond's buckets since the last report.
    pub fn count_looks(&mut self, moved: u64) {
        if std::mem::take(&mut self.measures)
            && let Some(look) = &mut self.look
        {
            look.counted = moved;
            self.unseen += moved;
        }
    }

    /// Keeps the state from before a reload as far as it is still valid.
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
        self.announced.clear();
        self.fruitless.clear();
        if with.bond.elephants == 0 {
            self.report = no_buckets(ELEPHANTS_MAX as usize);
        }
    }

    /// Starts without a predecessor of the same kind: removes the entries that a different one has left in
    /// the pipe.
    pub fn begin(&mut self, bond: &Bond, actions: &mut Vec<Action>) {
        self.made_for = Some(self.made_for(bond));
        for flow in std::mem::take(&mut self.leftover) {
            self.remove_entry(flow, actions);
        }
    }

    fn made_for(&self, bond: &Bond) -> MadeFor {
        (bond.elephants, bond.key, bond.basis, self.select_seed, bond.buckets)
    }

    /// Starts a look at the heaviest of the elephants that a rebalance has named.
    pub fn look_for(&mut self, now_ns: u64, plan: &Plan, with: &mut With<'_>, actions: &mut Vec<Action>) {
        let full = self.pins.len() >= with.bond.elephants as usize;
        let report = &with.buckets.report;
        // A pending move would be lost, and the moves counted for the look could not be distinguished from
        // others.
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

    /// Processes a copy of a frame.
    pub fn looked_at(&mut self, now_ns: u64, frame: &[u8], with: &mut With<'_>, actions: &mut Vec<Action>) {
        let key = key_of(frame, with.bond.key);
        let bucket = key.map(|key| self.bucket_of(&key, with.bond));
        let Some(look) = &mut self.look else { return };
        // The frame was in flight when the previous look ended; or an action has changed the frame since its
        // bucket was selected, so that the entry it needs is unknown.
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

    /// Ends a look that has seen enough frames or whose time is up.
    pub fn conclude(&mut self, now_ns: u64, with: &mut With<'_>, actions: &mut Vec<Action>) {
        let Some(look) = self.end_look(with, actions) else { return };
        let heaviest = look.flows.iter().max_by_key(|one| *one.1).map(|(flow, bytes)| (*flow, *bytes));
        let is_pinned = |flow: FlowKey| self.pins.values().any(|pin| pin.flow == flow);
        match heaviest.filter(|(flow, bytes)| bytes * HEAVY_PART >= look.bytes && !is_pinned(*flow)) {
            Some((flow, bytes)) => self.pin(now_ns, &look, (flow, bytes), with, actions),
            None => self.let_rest(look.since_ns, look.bucket, with.bond),
        }
    }

    /// Ends the look in progress, if any, and gives the bucket back.
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

    /// Ends a look at any of the buckets about to be moved.
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
        let why =
            format!("{} % of the observed load of bucket {}", bytes * 100 / look.bytes.max(1), look.bucket);
        actions.push(Action::Say(
            Level::Info,
            format!("pinned {flow} to {}: {why}", with.members.name(look.member)),
        ));
        with.rebalance.hand_over(look.bucket, with.bond.size() + slot, (bytes, look.bytes));
        if let Some(announced) = self.announced.get_mut(slot as usize) {
            *announced = look.member;
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
        actions.push(Action::Say(Level::Info, format!("unpinned: {}: {why}", pin.flow)));
    }

    /// Unpins every flow, so that each returns to its bucket.
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

    /// Examines the load of pinned flows and unpins those that carry little.
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
        // No frame matches the entry, perhaps because frames are changed before they reach it.
        untouched.into_iter().for_each(|bucket| self.let_rest(now_ns, bucket, with.bond));
        for slot in idle {
            self.unpin(slot, "it carries little", with, actions);
        }
        self.follow_buckets(with, actions);
    }

    /// A member has failed: its pinned flows follow their buckets, and flows that were to leave it when idle
    /// leave now.
    pub fn lose(&mut self, id: u16, with: &mut With<'_>, actions: &mut Vec<Action>) {
        let pinned = |pin: &Pin| pin.member == id;
        let gone: Vec<u32> = self.pins.iter().filter(|one| pinned(one.1)).map(|one| *one.0).collect();
        for slot in gone {
            self.unpin(slot, "its member is lost", with, actions);
        }
        self.hasten(id, with, actions);
        self.follow_buckets(with, actions);
    }

    /// Makes flows that were to leave a member when idle leave it now.
    pub fn hasten(&self, id: u16, with: &With<'_>, actions: &mut Vec<Action>) {
        let late = self.pins.iter().filter(|one| one.1.leaving.contains(&id));
        let late: Vec<(u32, u16)> =
            late.map(|(slot, pin)| (*slot, with.members.target(pin.member))).collect();
        if !late.is_empty() {
            actions.extend(self.move_heavy(late, When::Now, with));
        }
    }

    /// Moves pinned flows off members that work but must no longer be used, when idle, to the members of
    /// their buckets.
    pub fn settle(&mut self, now_ns: u64, why: &str, with: &mut With<'_>, actions: &mut Vec<Action>) {
        let assignment = &with.buckets.assignment;
        let to = |pin: &Pin| {
            assignment.slots().get(pin.bucket as usize).copied().filter(|to| assignment.lives(*to))
        };
        let pins = self.pins.iter().filter(|one| !assignment.lives(one.1.member));
        let list: Vec<(u32, u16)> = pins.filter_map(|(slot, pin)| Some((*slot, to(pin)?))).collect();
        for (slot, to) in list {
            self.shift(now_ns, (slot, to), why, with, actions);
        }
    }

    /// Moves a pinned flow to another member when it is idle.
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
        if let Some(announced) = self.announced.get_mut(slot as usize) {
            *announced = to;
        }
        self.moved += 1;
        actions.extend(self.move_heavy(vec![(slot, target)], When::Idle, with));
        with.buckets.ordered += 1;
        let why = why.to_string();
        with.buckets.remember(Moved { at_ns: now_ns, buckets: Vec::new(), flow: Some(flow), to, why });
    }

    /// Assigns buckets of `heavy` without a flow to the members of the bond's buckets of the same numbers.
    pub fn follow_buckets(&mut self, with: &With<'_>, actions: &mut Vec<Action>) {
        if self.heavy.is_none() || !with.buckets.is_sending() {
            return;
        }
        self.announced.resize(ELEPHANTS_MAX as usize, NO_TARGET);
        let own = with.buckets.assignment.slots();
        let mut list = Vec::new();
        for (slot, announced) in (0..).zip(&mut self.announced) {
            let wanted = own.get(slot as usize % own.len().max(1)).copied().unwrap_or(NO_TARGET);
            if !self.pins.contains_key(&slot) && std::mem::replace(announced, wanted) != wanted {
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

    /// A number that hashes to this bucket of `heavy`. One of the first few hundred numbers does so.
    fn value_of(&self, slot: u32) -> u32 {
        let hash = |value: u32| seeded(select_hash(self.select_seed, &[u64::from(value)]), HEAVY_SEED);
        (0..=u32::MAX).find(|value| bucket(hash(*value), ELEPHANTS_MAX) == slot).unwrap_or_default()
    }
}

fn interval_ns(bond: &Bond) -> u64 {
    u64::from(bond.rebalance_ms.max(INTERVAL_MIN_MS)) * NS_PER_MS
}

/// The bucket that a hash selects out of `size` (pipes.md M7).
fn bucket(hash: u64, size: u32) -> u32 {
    (((hash >> 32) * u64::from(size)) >> 32) as u32
}

fn key_of(bytes: &[u8], source: KeySource) -> Option<FlowKey> {
    let depth = match source {
        KeySource::Outer => Depth::L4,
        KeySource::Inner => Depth::Inner,
    };
    FlowKey::of(bytes, &weir_packet::parse(bytes, depth).ok()?, source)
}
