//! The buckets of a group, from which packets pick.
//!
//! Buckets filled by weights are just an array that all workers share: a pick is a multiplication and a load.
//! Given buckets also count the packets that meet them and carry out pending moves; each worker has its own.

use crate::batch::outcome::BatchOutcome;
use crate::batch::packets::Keys;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use weir_packet::{DropReason, FlowKey, select_hash};
use weir_program::buckets::{BucketTable, Choice};
use weir_program::quic::QuicServers;
use weir_program::snapshot::BucketReport;
use weir_program::{Affinity, AppId, Fill, Forward, Group, GroupChoice, GroupId, Pipe, Program, Target};
use weir_table::{Buckets, GivenBuckets, NO_TARGET, Patience, seeded};

/// The groups by their numbers, for pipes where metadata chooses the group.
#[derive(Debug)]
pub struct GroupNumbers {
    /// The group of each number, by its position, or [`NO_GROUP`].
    groups: Vec<u16>,
}

/// A group position that no group has: there are fewer groups.
const NO_GROUP: u16 = u16::MAX;

impl GroupNumbers {
    /// Creates the list for the groups of a program; empty if none of its pipes needs it.
    pub fn new(program: &Program) -> GroupNumbers {
        let chosen = |pipe: &Pipe| matches!(pipe.kind.group(), Some(GroupChoice::ByMeta(_)));
        let mut groups = Vec::new();
        if program.pipes.iter().any(chosen) {
            for (at, group) in (0..).zip(&program.groups) {
                let Some(number) = group.number.map(usize::from) else { continue };
                groups.resize(groups.len().max(number + 1), NO_GROUP);
                groups[number] = at;
            }
        }
        GroupNumbers { groups }
    }

    /// Returns the group with this number.
    #[inline(always)]
    pub fn group(&self, number: u32) -> Option<GroupId> {
        let group = *self.groups.get(number as usize)?;
        (group != NO_GROUP).then_some(GroupId(group))
    }
}

/// The buckets of a group.
#[derive(Debug)]
pub struct GroupTable {
    seed: Option<u64>,
    /// How packets with a flow key pick, if not by their select hash.
    by_key: Option<ByKey>,
    /// The targets by their server IDs.
    quic: Option<Arc<QuicServers>>,
    /// The app that gets packets for which there is no target.
    no_target: Option<AppId>,
    pub held: BucketFilling,
}

/// The buckets of a group, depending on how they are filled.
#[derive(Debug)]
pub enum BucketFilling {
    /// Filled by weights, by the control plane.
    Filled(Arc<BucketTable>),
    /// Assigned by an app or at run time.
    Given(Box<GivenBuckets>),
}

/// The number, other than the select hash, that picks the bucket of a packet with a flow key.
#[derive(Clone, Copy, Debug)]
enum ByKey {
    /// The hash of the system that the group is filled for.
    Fill(Fill),
    /// The prefix of its source address, hashed with this seed.
    Source(Affinity, u64),
}

impl ByKey {
    fn of(group: &Group, select_seed: u64) -> Option<ByKey> {
        let foreign = Some(group.fill).filter(|fill| fill.fixed_size().is_some());
        let source = group.affinity.map(|affinity| ByKey::Source(affinity, select_seed));
        foreign.map(ByKey::Fill).or(source)
    }
}

/// Returns the select hash of the prefix of a flow's source address.
fn hash_of_prefix(affinity: Affinity, flow: &FlowKey, seed: u64) -> u64 {
    let bits = match affinity.first(flow.src()) {
        IpAddr::V4(src) => u128::from(src.to_bits()),
        IpAddr::V6(src) => src.to_bits(),
    };
    select_hash(seed, &[(bits >> 64) as u64, bits as u64])
}

/// A packet that meets a bucket: its bytes, the time, and whether it counts.
#[derive(Clone, Copy, Debug)]
pub struct Meeting {
    pub bytes: usize,
    pub now_ns: u64,
    pub live: bool,
}

impl GroupTable {
    /// Creates the buckets of a group: `table`, or given ones. The seed is that of select hashes.
    pub fn new(group: &Group, table: &Arc<BucketTable>, select_seed: u64) -> GroupTable {
        let (size, targets) = (group.size as usize, group.targets.len());
        let held = match group.fill {
            Fill::Given => BucketFilling::Given(Box::new(GivenBuckets::new(size, targets))),
            Fill::Maglev | Fill::Wants | Fill::Katran(..) | Fill::Glb(..) => {
                BucketFilling::Filled(Arc::clone(table))
            }
        };
        let by_key = ByKey::of(group, select_seed);
        let no_target = group.no_target;
        GroupTable { seed: group.seed, by_key, quic: table.quic().cloned(), no_target, held }
    }

    /// Ends the walk of a packet for which there is no target.
    pub fn without_target(&self, slot: usize, outcome: &mut BatchOutcome) {
        match self.no_target {
            Some(app) => outcome.apps[app.index()] |= 1 << slot,
            None => outcome.drop(slot, DropReason::NoTarget),
        }
    }

    /// Replaces the buckets with a table of the same group. Does nothing if the group has given buckets.
    pub fn publish(&mut self, table: &Arc<BucketTable>) {
        // Changing weights does not change server IDs.
        if let BucketFilling::Filled(held) = &mut self.held {
            *held = Arc::clone(table);
        }
    }

    /// Returns how the targets of new flows are chosen.
    #[inline]
    pub fn choice(&self) -> &Choice {
        match &self.held {
            BucketFilling::Filled(table) => table.choice(),
            BucketFilling::Given(_) => &Choice::Hash,
        }
    }

    /// Returns the targets by their server IDs, if there are any.
    #[inline]
    pub fn quic(&self) -> Option<&QuicServers> {
        self.quic.as_deref()
    }

    /// Returns the hash that picks a packet's bucket, where no other system's hash does.
    #[inline]
    pub fn hash(&self, hash: u64) -> u64 {
        self.seed.map_or(hash, |seed| seeded(hash, seed))
    }

    /// Returns the targets of all buckets.
    pub fn slots(&self) -> &[u16] {
        self.held.buckets().slots()
    }

    /// Returns the buckets if picking from them has no side effect and uses the unmodified select hash.
    #[inline]
    pub fn plain(&self) -> Option<&Buckets> {
        match &self.held {
            BucketFilling::Filled(table) if self.seed.is_none() && self.by_key.is_none() => {
                Some(table.buckets())
            }
            BucketFilling::Filled(_) | BucketFilling::Given(_) => None,
        }
    }

    /// Returns the given buckets, and the seed for picking one.
    #[inline]
    pub fn given(&mut self) -> Option<(&mut GivenBuckets, u64)> {
        match (&mut self.held, self.seed) {
            (BucketFilling::Given(given), Some(seed)) => Some((given, seed)),
            _ => None,
        }
    }

    /// Prefetches the bucket that a packet with this hash picks, where no other system chooses it.
    #[inline(always)]
    pub fn prefetch(&self, hash: u64) {
        let buckets = self.held.buckets();
        let bucket = buckets.bucket(self.seed.map_or(hash, |seed| seeded(hash, seed)));
        buckets.slots().get(bucket).into_iter().for_each(weir_packet::prefetch);
    }

    /// Returns the target of a packet with this hash without counting; used only where the check excludes
    /// given buckets.
    #[inline(always)]
    pub fn pick(&self, hash: u64, (keys, slot): (&Keys, usize)) -> u16 {
        let bucket = self.bucket(hash, keys, slot);
        self.held.buckets().slots().get(bucket).copied().unwrap_or(NO_TARGET)
    }

    /// Returns the target of a packet with this hash; another system's hash is computed from its key in
    /// `keys`.
    #[inline]
    pub fn meet(&mut self, hash: u64, (keys, slot): (&Keys, usize), meeting: Meeting) -> u16 {
        self.held.meet(self.bucket(hash, keys, slot), meeting)
    }

    #[inline(always)]
    fn bucket(&self, hash: u64, keys: &Keys, slot: usize) -> usize {
        if let Some(by_key) = self.by_key {
            return self.bucket_by_key(by_key, hash, keys, slot);
        }
        self.held.buckets().bucket(self.seed.map_or(hash, |seed| seeded(hash, seed)))
    }

    /// Returns the addresses of both back ends of a packet's row, if the group is filled like the GLB
    /// director's: 0 for a missing one.
    pub fn hops(&self, (keys, slot): (&Keys, usize)) -> [u32; 2] {
        let (Some(ByKey::Fill(fill)), BucketFilling::Filled(table)) = (self.by_key, &self.held) else {
            return [0; 2];
        };
        let hash = keys.flow(slot).and_then(|flow| fill.hash(&flow));
        hash.map_or([0; 2], |hash| table.hops((hash % table.buckets().slots().len().max(1) as u64) as usize))
    }

    /// Returns the bucket that the flow key picks; a packet without one picks as it does from other groups.
    #[inline(never)]
    fn bucket_by_key(&self, by_key: ByKey, hash: u64, keys: &Keys, slot: usize) -> usize {
        let buckets = self.held.buckets();
        let seeded = |hash| self.seed.map_or(hash, |seed| seeded(hash, seed));
        match (by_key, keys.flow(slot)) {
            (ByKey::Fill(fill), Some(flow)) => match fill.hash(&flow) {
                Some(hash) => (hash % buckets.slots().len().max(1) as u64) as usize,
                None => buckets.bucket(hash),
            },
            (ByKey::Source(affinity, seed), Some(flow)) => {
                buckets.bucket(seeded(hash_of_prefix(affinity, &flow, seed)))
            }
            (_, None) => buckets.bucket(seeded(hash)),
        }
    }

    /// Whether a target gets new flows.
    #[inline]
    pub fn is_live(&self, target: u16) -> bool {
        matches!(&self.held, BucketFilling::Filled(table) if table.share(target.into()) > 0)
    }

    /// Returns the ports, as a mask of their numbers, to which targets with a bucket lead.
    pub fn flood(&mut self, targets: &[Target], now_ns: u64, live: bool) -> u64 {
        let ports = |has: &dyn Fn(usize) -> bool| {
            let leads =
                targets.iter().enumerate().filter(|(at, _)| has(*at)).map(|(_, target)| target.forward);
            leads.fold(
                0,
                |all, forward| if let Forward::Port(port) = forward { all | 1 << port.0 } else { all },
            )
        };
        match &mut self.held {
            BucketFilling::Filled(table) => ports(&|target| table.share(target) > 0),
            BucketFilling::Given(given) if live => {
                // Moves that are due now are also due for later packets of the same batch.
                given.settle_some(usize::MAX, now_ns);
                ports(&|target| given.has_any(target))
            }
            BucketFilling::Given(given) => {
                let slots = 0..given.buckets().slots().len();
                ports(&|target| slots.clone().any(|bucket| usize::from(given.peek(bucket, now_ns)) == target))
            }
        }
    }

    /// Assigns buckets to targets. Does nothing unless the group has given buckets.
    pub fn give(&mut self, moves: &[(u32, u16)], patience: Patience, now_ns: u64) {
        let BucketFilling::Given(given) = &mut self.held else { return };
        moves.iter().for_each(|&(bucket, target)| given.give(bucket, target, patience, now_ns));
    }

    /// Looks at up to `limit` pending moves, and carries out those that are due.
    pub fn settle(&mut self, limit: usize, now_ns: u64) {
        if let BucketFilling::Given(given) = &mut self.held {
            given.settle_some(limit, now_ns);
        }
    }

    /// Returns the existing buckets of a range, with their counts.
    pub fn report(&self, range: Range<usize>) -> BucketReport {
        let all = self.slots();
        let range = range.start.min(all.len())..range.end.min(all.len());
        let slots = all[range.clone()].to_vec();
        let BucketFilling::Given(given) = &self.held else {
            return BucketReport { slots, ..BucketReport::default() };
        };
        let (packets, bytes) = given.counts(range).unzip();
        BucketReport {
            slots,
            packets,
            bytes,
            moved: given.moved(),
            moved_busy: given.moved_busy(),
            pending: given.pending(),
        }
    }
}

impl BucketFilling {
    #[inline(always)]
    pub fn buckets(&self) -> &Buckets {
        match self {
            BucketFilling::Filled(table) => table.buckets(),
            BucketFilling::Given(given) => given.buckets(),
        }
    }

    /// Returns the target of a bucket for a packet.
    #[inline]
    pub fn meet(&mut self, bucket: usize, meeting: Meeting) -> u16 {
        match self {
            BucketFilling::Filled(table) => table.buckets().slots().get(bucket).copied().unwrap_or(NO_TARGET),
            BucketFilling::Given(given) if meeting.live => given.meet(bucket, meeting.bytes, meeting.now_ns),
            BucketFilling::Given(given) => given.peek(bucket, meeting.now_ns),
        }
    }
}
