//! Through which member frames leave: the buckets, the pinned flows, and the loads that move both. This file
//! keeps the three consistent.

use super::assignment::Move;
use super::balance::Balance;
use super::buckets::{Buckets, joined, no_buckets};
use super::config::Bond;
use super::elephants::{Elephants, Lanes, With};
use super::links::{Links, Reason};
use super::members::Members;
use super::rebalance::{Carrier, Plan};
use super::show;
use std::collections::BTreeSet;
use weir_app::{Action, Level};
use weir_program::snapshot::BucketReport;
use weir_program::{GroupId, Program};

/// The buckets of a bond, its elephants, and its rebalancing.
pub(super) struct Traffic {
    pub buckets: Buckets,
    pub balance: Balance,
    pub elephants: Elephants,
}

/// The parts of the bond that these depend on.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub now_ns: u64,
    pub bond: &'a Bond,
    pub members: &'a Members,
}

impl Traffic {
    /// State in which nothing is sent.
    pub fn new(bond: &Bond, members: &Members) -> Traffic {
        Traffic {
            buckets: Buckets::new(bond, members),
            balance: Balance::new(bond),
            elephants: Elephants::new(),
        }
    }

    /// Looks up groups and pipes in the program.
    pub fn bind(&mut self, bond: &Bond, group: GroupId, program: &Program) {
        self.buckets.bind(bond, group);
        self.elephants.bind(bond, program);
    }

    /// The elephants, and the parts they need.
    fn elephants<'a>(&'a mut self, context: Context<'a>) -> (&'a mut Elephants, With<'a>) {
        let Traffic { buckets, balance, elephants } = self;
        let Context { bond, members, .. } = context;
        (elephants, With { bond, members, buckets, rebalance: &mut balance.rebalance })
    }

    /// Starts without a predecessor of the same kind.
    pub fn begin(&mut self, context: Context<'_>, actions: &mut Vec<Action>) {
        self.elephants.begin(context.bond, actions);
        // A bond of another kind may have left targets.
        self.buckets.stop(context.bond.size(), actions);
    }

    /// Adapts the state taken over in a reload to the configuration.
    pub fn adapt(&mut self, context: Context<'_>, actions: &mut Vec<Action>) {
        let (elephants, mut with) = self.elephants(context);
        elephants.adapt(&mut with, actions);
        let totals = self.lanes(context.bond).totals.into_owned();
        self.balance.adapt(context.now_ns, context.bond, &totals);
        // This comes first, so that no other move names a bucket that does not exist.
        let size = context.bond.size();
        if self.buckets.assignment.slots().len() != size as usize {
            let moves = self.buckets.assignment.resize(size);
            self.order(context, &moves, "the number of buckets changed", actions);
            self.buckets.report = no_buckets(size as usize);
        }
    }

    /// Distributes the buckets over the members after a reload.
    pub fn share_out(&mut self, context: Context<'_>, actions: &mut Vec<Action>) {
        for (id, _) in context.members.each() {
            let weight = context.members.weight(id);
            let mut moves = self.buckets.assignment.add(id, weight, false);
            moves.extend(self.buckets.assignment.set_weight(id, weight));
            self.order(context, &moves, "a weight changed, or a member was added", actions);
        }
        self.start_or_stop(context, actions);
        let (elephants, mut with) = self.elephants(context);
        elephants.settle(context.now_ns, "another weight", &mut with, actions);
        elephants.follow_buckets(&with, actions);
    }

    /// Removes a member.
    pub fn remove(&mut self, context: Context<'_>, id: u16, actions: &mut Vec<Action>) {
        let moves = self.buckets.assignment.remove(id);
        self.order(context, &moves, "a member was removed", actions);
    }

    /// Updates a member's weight to the speed of its link.
    pub fn set_speed(&mut self, context: Context<'_>, id: u16, actions: &mut Vec<Action>) {
        let moves = self.buckets.assignment.set_weight(id, context.members.weight(id));
        self.order(context, &moves, "a member's speed", actions);
        let (elephants, mut with) = self.elephants(context);
        elephants.settle(context.now_ns, "a member's speed", &mut with, actions);
    }

    /// Starts or stops using a member; `against` is the reason for stopping.
    pub fn set_up(
        &mut self,
        context: Context<'_>,
        id: u16,
        against: Option<Reason>,
        actions: &mut Vec<Action>,
    ) {
        let assignment = &mut self.buckets.assignment;
        let (moves, why) = match against {
            None => (assignment.set_up(id, true), "a member is available"),
            // The link works, so buckets can leave it gradually.
            Some(Reason::Operator) => (assignment.leave(id), show::reason(Reason::Operator)),
            Some(reason) => (assignment.set_up(id, false), show::reason(reason)),
        };
        self.order(context, &moves, why, actions);
        let (elephants, mut with) = self.elephants(context);
        match against {
            None => {}
            Some(Reason::Operator) => elephants.settle(context.now_ns, why, &mut with, actions),
            Some(_) => elephants.lose(id, &mut with, actions),
        }
        self.start_or_stop(context, actions);
    }

    /// Handles the failure of a member that is being drained: buckets that were to leave it when idle leave
    /// it now.
    pub fn hasten(&mut self, context: Context<'_>, id: u16, why: &str, actions: &mut Vec<Action>) {
        let moves = self.buckets.assignment.set_up(id, false);
        self.order(context, &moves, why, actions);
        let (elephants, with) = self.elephants(context);
        elephants.hasten(id, &with, actions);
    }

    /// Reassigns every bucket: to the active member if the bond is `single`, otherwise to all enabled
    /// members.
    pub fn reassign(
        &mut self,
        context: Context<'_>,
        links: &Links,
        single: bool,
        why: &str,
        actions: &mut Vec<Action>,
    ) {
        let assignment = &mut self.buckets.assignment;
        let moves: Vec<Move> = if single {
            assignment.set_only(links.active())
        } else {
            let enabled: BTreeSet<u16> = links.enabled().collect();
            let ids = context.members.ids().values();
            ids.flat_map(|id| assignment.set_up(*id, enabled.contains(id))).collect()
        };
        self.order(context, &moves, why, actions);
        let (elephants, mut with) = self.elephants(context);
        elephants.unpin_all(why, &mut with, actions);
        self.start_or_stop(context, actions);
    }

    /// Orders moves of buckets. A later move of a bucket replaces an earlier one.
    pub fn order(&mut self, context: Context<'_>, moves: &[Move], why: &str, actions: &mut Vec<Action>) {
        let moves = joined(moves);
        let (elephants, with) = self.elephants(context);
        elephants.leave_alone(&moves, &with, actions);
        self.buckets.order(context.now_ns, &moves, why, context.members, actions);
        let (elephants, with) = self.elephants(context);
        elephants.follow_buckets(&with, actions);
    }

    /// Stops sending when no member may be used, and restarts, with every bucket in its place, when one may.
    fn start_or_stop(&mut self, context: Context<'_>, actions: &mut Vec<Action>) {
        if !self.buckets.update_sending() {
            return;
        }
        if self.buckets.is_sending() {
            self.buckets.start(context.members, actions);
            let (elephants, with) = self.elephants(context);
            elephants.follow_buckets(&with, actions);
        } else {
            let (elephants, mut with) = self.elephants(context);
            elephants.unpin_all("no member is left", &mut with, actions);
            self.buckets.stop(context.bond.size(), actions);
        }
    }

    /// Requests the counters of all buckets, the bond's own last.
    pub fn read(&self, actions: &mut Vec<Action>) {
        actions.extend(self.elephants.heavy.map(Action::ReadBuckets));
        actions.push(Action::ReadBuckets(self.buckets.group));
    }

    /// Processes counters. Returns `None` for `heavy`, and for the bond's own buckets whether a rebalance was
    /// waiting.
    pub fn count(&mut self, context: Context<'_>, group: GroupId, report: &BucketReport) -> Option<bool> {
        if self.elephants.heavy == Some(group) {
            self.elephants.count(report);
            return None;
        }
        self.elephants.count_looks(report.moved.saturating_sub(self.buckets.report.moved));
        self.buckets.report.clone_from(report);
        let totals = self.lanes(context.bond).totals.into_owned();
        let waited = self.balance.count(context.now_ns, context.bond, &totals);
        if self.buckets.report.pending == 0 {
            self.buckets.assignment.settle(|_| false);
        }
        Some(waited)
    }

    /// Processes a copy of a frame from the bucket being looked at.
    pub fn looked_at(&mut self, context: Context<'_>, frame: &[u8], actions: &mut Vec<Action>) {
        let (elephants, mut with) = self.elephants(context);
        elephants.looked_at(context.now_ns, frame, &mut with, actions);
    }

    /// Ends the look in progress if its time is up.
    pub fn tick(&mut self, context: Context<'_>, actions: &mut Vec<Action>) {
        if self.elephants.wake_ns().is_some_and(|until_ns| until_ns <= context.now_ns) {
            let (elephants, mut with) = self.elephants(context);
            elephants.conclude(context.now_ns, &mut with, actions);
        }
    }

    fn lanes(&self, bond: &Bond) -> Lanes<'_> {
        self.elephants.lanes(bond.elephants, &self.buckets)
    }

    /// The moves a rebalance would make.
    pub fn plan(&self, bond: &Bond, carriers: &[Carrier]) -> Plan {
        of_buckets(self.balance.plan(&self.lanes(bond), carriers), bond)
    }

    /// Rebalances if it is time or if the operator asked.
    pub fn rebalance(
        &mut self,
        context: Context<'_>,
        carriers: &[Carrier],
        asked: bool,
        actions: &mut Vec<Action>,
    ) -> Option<Plan> {
        let Context { now_ns, bond, .. } = context;
        let (elephants, mut with) = self.elephants(context);
        elephants.judge(now_ns, &mut with, actions);
        let Lanes { totals, slots } = self.lanes(bond);
        let lanes = Lanes { totals: totals.into_owned().into(), slots: slots.into_owned().into() };
        let plan = of_buckets(self.balance.run(now_ns, asked, &lanes, carriers)?, bond);
        let (elephants, mut with) = self.elephants(context);
        elephants.look_for(now_ns, &plan, &mut with, actions);
        for shift in &plan.moves {
            let why = shift.reason.to_string();
            if let Some(slot) = shift.bucket.checked_sub(bond.size()) {
                let (elephants, mut with) = self.elephants(context);
                elephants.shift(now_ns, (slot, shift.to), &why, &mut with, actions);
                continue;
            }
            let moves = self.buckets.assignment.rebalance([(shift.bucket, shift.to)]);
            self.order(context, &moves, &why, actions);
        }
        if !plan.moves.is_empty() {
            actions.push(Action::Say(Level::Info, format!("rebalanced: {} buckets move", plan.moves.len())));
        }
        Some(plan)
    }

    /// Moves the engine has carried out.
    pub fn moved(&self) -> u64 {
        self.elephants.moved(&self.buckets.report)
    }

    /// How many of them found the bucket in use.
    pub fn moved_busy(&self) -> u64 {
        self.elephants.moved_busy(&self.buckets.report)
    }
}

/// Removes elephants that are already pinned from the plan.
fn of_buckets(mut plan: Plan, bond: &Bond) -> Plan {
    plan.elephants.retain(|one| one.bucket < bond.size());
    plan
}
