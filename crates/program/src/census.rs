//! Per target of a FLOW pipe, over all workers: how many flows are live, how many have begun, how many the
//! target has not answered, and how many SYNs were retransmitted. Per group: how many packets of new flows
//! were refused.
//!
//! Workers write here when a flow is learnt or ends, and read when a new flow goes to the target with the
//! fewest ([`crate::NewFlows::LeastFlows`]). Packets of known flows touch nothing of this. The numbers are
//! relaxed atomics, so another worker's most recent flows may be missing; sums are exact once all workers are
//! idle.
//!
//! Each program has its own census, which starts empty. A worker that takes over counts its flows in slices
//! (`pipes/flow/decided.rs`), so a failure on the way cannot leave a wrong count behind. All other counts
//! carry over by the names of groups and targets.

use crate::pipes::targets;
use crate::sources::Sources;
use crate::{Learn, NewFlows, Pipe, PipeKind, Program};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// The number of targets above which a program counts the targets' flows only if it chooses targets by these
/// counts: the cost is 64 bytes for each target and FLOW pipe.
pub const COUNTED_MAX: usize = 32_768;

/// Flows by target number; the targets of all groups are numbered in program order.
#[derive(Debug, Default)]
pub struct Census {
    active: Box<[AtomicU32]>,
    begun: Sums,
    repeated: Sums,
    unanswered: Sums,
    /// By the position of the group.
    refused: Sums,
    /// Where sources went, if a group remembers them.
    sources: Option<Sources>,
}

/// Counts that carry over from program to program, by numbers of targets or groups.
#[derive(Debug, Default)]
struct Sums {
    own: Arc<[AtomicU64]>,
    /// The counts from before the previous program, modulo 2^64. They may be less than 0, because forgotten
    /// counts are subtracted here.
    before: Box<[AtomicU64]>,
    /// The counts of the previous program, which workers may still run, and the number that each item has in
    /// that program.
    former: Option<Former>,
}

/// The counts of a previous program, and the number that each current item has in that program.
type Former = (Arc<[AtomicU64]>, Box<[u32]>);

impl Sums {
    fn new(count: usize) -> Sums {
        let own = (0..count).map(|_| AtomicU64::new(0)).collect();
        Sums { own, before: (0..count).map(|_| AtomicU64::new(0)).collect(), former: None }
    }

    /// Continues the counts of the previous program. `was` maps each number to the number in the previous
    /// program.
    fn succeed(&mut self, old: &Sums, was: &[Option<u32>]) {
        let was = |number: usize| was.get(number).copied().flatten();
        for (number, sum) in self.before.iter_mut().enumerate() {
            *sum.get_mut() = was(number).map_or(0, |was| old.sum(was).wrapping_sub(old.own(was)));
        }
        let was = (0..self.before.len()).map(|number| was(number).unwrap_or(u32::MAX)).collect();
        self.former = Some((Arc::clone(&old.own), was));
    }

    #[inline]
    fn add(&self, number: u32) {
        if let Some(own) = self.own.get(number as usize) {
            own.fetch_add(1, Relaxed);
        }
    }

    fn own(&self, number: u32) -> u64 {
        self.own.get(number as usize).map_or(0, |own| own.load(Relaxed))
    }

    fn sum(&self, number: u32) -> u64 {
        let at = number as usize;
        let former = self.former.as_ref().and_then(|(own, was)| own.get(*was.get(at)? as usize));
        let former = former.map_or(0, |own| own.load(Relaxed));
        let before = self.before.get(at).map_or(0, |before| before.load(Relaxed));
        before.wrapping_add(former).wrapping_add(self.own(number))
    }

    /// Starts counting from 0 again.
    fn forget(&self, number: u32) {
        let sum = self.sum(number);
        if let Some(before) = self.before.get(number as usize) {
            before.fetch_sub(sum, Relaxed);
        }
    }
}

/// The flows of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flows {
    /// Live flows.
    pub active: u64,
    /// Flows learnt since the daemon started, or since the target was added.
    pub begun: u64,
    /// SYNs since then of flows that had already sent a SYN and are not established.
    pub repeated: u64,
    /// Flows since then whose SYN was retransmitted or answered with a reset, each counted once.
    pub unanswered: u64,
}

impl Flows {
    /// Adds the flows of another pipe.
    #[must_use]
    pub fn plus(self, other: Flows) -> Flows {
        Flows {
            active: self.active + other.active,
            begun: self.begun + other.begun,
            repeated: self.repeated + other.repeated,
            unanswered: self.unanswered + other.unanswered,
        }
    }
}

impl Census {
    /// Creates the census of a pipe. The census counts nothing if the pipe pins no flows or the counts have
    /// no reader.
    #[must_use]
    pub fn new(program: &Program, pipe: &Pipe) -> Census {
        let PipeKind::Flow { learn: Learn::Pin(choice), .. } = pipe.kind else { return Census::default() };
        let count: usize = program.groups.iter().map(|group| group.targets.len()).sum();
        let fewest = |id: crate::GroupId| program.groups[id.index()].new_flows == NewFlows::LeastFlows;
        let sources = Sources::new(program, choice);
        if count > COUNTED_MAX && !targets::groups(program, choice).any(fewest) {
            return Census { sources, ..Census::default() };
        }
        Census {
            active: (0..count).map(|_| AtomicU32::new(0)).collect(),
            begun: Sums::new(count),
            repeated: Sums::new(count),
            unanswered: Sums::new(count),
            refused: Sums::new(program.groups.len()),
            sources,
        }
    }

    /// Creates the census of a pipe that continues under the same name. `places` maps each target and each
    /// group to its previous position.
    #[must_use]
    pub fn succeed(&self, program: &Program, pipe: &Pipe, places: &PreviousPositions) -> Census {
        let mut new = Census::new(program, pipe);
        new.begun.succeed(&self.begun, &places.targets);
        new.repeated.succeed(&self.repeated, &places.targets);
        new.unanswered.succeed(&self.unanswered, &places.targets);
        new.refused.succeed(&self.refused, &places.groups);
        if let (Some(sources), Some(old)) = (&mut new.sources, &self.sources) {
            *sources = old.succeed(program, &places.targets);
        }
        new
    }

    /// Returns the number of targets whose flows the census counts.
    #[must_use]
    pub fn len(&self) -> usize {
        self.active.len()
    }

    /// Whether the census counts nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.active.is_empty()
    }

    /// Returns how many live flows a target has; 0 if the target's flows are not counted.
    #[inline]
    #[must_use]
    pub fn active(&self, number: u32) -> u32 {
        self.active.get(number as usize).map_or(0, |flows| flows.load(Relaxed))
    }

    /// Returns the flows of a target.
    #[must_use]
    pub fn flows(&self, number: u32) -> Flows {
        Flows {
            active: self.active(number).into(),
            begun: self.begun.sum(number),
            repeated: self.repeated.sum(number),
            unanswered: self.unanswered.sum(number),
        }
    }

    /// Returns how many packets that would have begun a flow a group has refused because there was no target,
    /// or no port of a NAT pool, for them.
    #[must_use]
    pub fn refused(&self, group: usize) -> u64 {
        self.refused.sum(group as u32)
    }

    /// Returns where sources went, if a group remembers them.
    #[inline]
    #[must_use]
    pub fn sources(&self) -> Option<&Sources> {
        self.sources.as_ref()
    }

    /// Counts flows that start to belong to a target.
    #[inline]
    pub fn come(&self, number: u32, flows: u32) {
        if let Some(active) = self.active.get(number as usize) {
            active.fetch_add(flows, Relaxed);
        }
    }

    /// Counts flows that no longer belong to a target.
    #[inline]
    pub fn go(&self, number: u32, flows: u32) {
        if let Some(active) = self.active.get(number as usize) {
            active.fetch_sub(flows, Relaxed);
        }
    }

    /// Counts a flow that begins.
    #[inline]
    pub fn begin(&self, number: u32) {
        self.begun.add(number);
    }

    /// Counts a retransmitted SYN.
    pub fn repeat(&self, number: u32) {
        self.repeated.add(number);
    }

    /// Counts a flow whose target has not answered its SYN, or has answered it with a reset.
    pub fn leave_unanswered(&self, number: u32) {
        self.unanswered.add(number);
    }

    /// Forgets the flows of a target whose place another target takes. Those that are still live count for
    /// the place until they have ended.
    pub fn forget(&self, number: u32) {
        [&self.begun, &self.repeated, &self.unanswered].into_iter().for_each(|sums| sums.forget(number));
    }

    /// Counts a packet that a group has refused.
    pub fn refuse(&self, group: u16) {
        self.refused.add(group.into());
    }
}

/// Where the targets and groups of a program were in the previous one.
pub struct PreviousPositions {
    targets: Vec<Option<u32>>,
    groups: Vec<Option<u32>>,
}

/// Returns where each target and each group of `new` was in `old`, by the names of group and target.
#[must_use]
pub fn places(old: &[crate::Group], new: &[crate::Group]) -> PreviousPositions {
    let mut next = 0;
    let mut groups = HashMap::new();
    for (at, group) in (0..).zip(old) {
        groups.insert(group.name.as_str(), (group, next, at));
        next += group.targets.len() as u32;
    }
    let place = |group: &crate::Group| Some(groups.get(group.name.as_str())?.2);
    let of_groups = new.iter().map(place).collect();
    let mut places = Vec::new();
    for group in new {
        let Some(&(was, first, _)) = groups.get(group.name.as_str()) else {
            places.resize(places.len() + group.targets.len(), None);
            continue;
        };
        let same = |at: usize, name: &str| was.targets.get(at).is_some_and(|target| target.name == name);
        let mut names: Option<HashMap<&str, u32>> = None;
        for (at, target) in group.targets.iter().enumerate() {
            let by_name = || was.targets.iter().map(|one| one.name.as_str()).zip(0..).collect();
            places.push(match same(at, &target.name) {
                true => Some(first + at as u32),
                false => names.get_or_insert_with(by_name).get(target.name.as_str()).map(|at| first + at),
            });
        }
    }
    PreviousPositions { targets: places, groups: of_groups }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fill, Forward, Group, GroupChoice, GroupId, Target};

    fn program(names: &[&str]) -> Program {
        let targets = names.iter().map(|name| Target::new(*name, Forward::Drop));
        let learn = Learn::Pin(GroupChoice::One(GroupId(1)));
        Program {
            groups: vec![
                Group::new("other", Fill::Wants, 4).target(Target::new("x", Forward::Drop)),
                Group::new("g", Fill::Wants, 64).targets(targets),
            ],
            pipes: vec![Pipe::flow("flows", learn)],
            ..Program::default()
        }
    }

    #[test]
    fn what_has_begun_goes_on_by_names_and_what_is_alive_begins_anew() {
        let old = program(&["a", "b", "c"]);
        let census = Census::new(&old, &old.pipes[0]);
        (1..4).for_each(|number| (0..number).for_each(|_| census.begin(number)));
        census.come(1, 5);
        census.go(1, 2);
        census.repeat(2);
        census.leave_unanswered(2);
        (0..3).for_each(|_| census.refuse(1));
        assert_eq!(census.flows(1), Flows { active: 3, begun: 1, ..Flows::default() });
        assert_eq!((census.flows(2).repeated, census.refused(1), census.refused(0)), (1, 3, 0));
        assert_eq!(census.flows(2).unanswered, 1);
        let new = program(&["c", "d", "b"]);
        let next = census.succeed(&new, &new.pipes[0], &places(&old.groups, &new.groups));
        // A worker that still runs the previous program.
        census.begin(3);
        let flows = |census: &Census| (1..4).map(|number| census.flows(number)).collect::<Vec<_>>();
        let begun = |all: [u64; 3], repeated: [u64; 3]| {
            let all = all.iter().zip(repeated);
            // One flow was left unanswered, where the SYN was repeated.
            all.map(|(&begun, repeated)| Flows { active: 0, begun, repeated, unanswered: repeated })
                .collect::<Vec<_>>()
        };
        assert_eq!(flows(&next), begun([4, 0, 2], [0, 0, 1]));
        census.refuse(1);
        next.refuse(1);
        assert_eq!((next.refused(1), next.refused(0)), (5, 0), "and so do groups");
        (0..2).for_each(|_| next.begin(2));
        let last = next.succeed(&old, &old.pipes[0], &places(&new.groups, &old.groups));
        assert_eq!(flows(&last), begun([0, 2, 4], [0, 1, 0]));
        assert_eq!(last.refused(1), 5);
        let other = Pipe::flow("flows", Learn::Default);
        assert!(Census::new(&old, &other).is_empty());
        assert_eq!(Census::default().flows(7), Flows::default());
    }
}
