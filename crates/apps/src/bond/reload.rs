//! What a bond takes over from the one before a reload.

use super::app::{BondApp, no_buckets, policy};
use super::config::{Bond, Mode};
use super::{lacp, links};
use crate::app::Action;
use engine::program::{PortId, Program};

/// A member that the configuration has no longer.
#[derive(Clone, Debug)]
pub(super) struct Gone {
    pub name: String,
    /// Its port, if there still is one.
    pub port: Option<PortId>,
}

impl BondApp {
    /// Takes over what another of the same name had, member by member. What that takes to do is done when it begins.
    pub(super) fn take_over(&mut self, old: BondApp) {
        let BondApp { bond: before, state: mut had, .. } = old;
        self.take_over_addresses(&before, &mut had.learnt);
        if before.mode != self.bond.mode || before.lacp.is_some() != self.bond.lacp.is_some() {
            // Another kind of bond: only what lies in the pipes is known still.
            self.state.leftover = had.admitted.into_values().collect();
            self.state.learnt = had.learnt;
            let pins = had.elephants.pins.into_values();
            self.state.elephants.leftover = pins.map(|pin| pin.flow).collect();
            return;
        }
        let fresh = std::mem::replace(&mut self.state, had);
        self.state.unlearnt.extend(fresh.unlearnt);
        let mut old_ids = std::mem::take(&mut self.state.ids);
        for name in fresh.ids.into_keys() {
            let id = old_ids.remove(&name).unwrap_or_else(|| {
                self.state.next_id += 1;
                self.state.next_id - 1
            });
            self.state.ids.insert(name, id);
        }
        self.state.gone = old_ids.into_iter().map(|(name, id)| (id, Gone { name, port: None })).collect();
    }

    /// The addresses that are known stay so if the pipes do in which they lie.
    fn take_over_addresses(&mut self, before: &Bond, learnt: &mut super::learnt::Learnt) {
        let pipes = |bond: &Bond| (bond.learns(), bond.learns() && bond.mode == Mode::BalanceSlb);
        let shrinks = self.bond.learnt_max < before.learnt_max;
        if pipes(before) == pipes(&self.bond) && !shrinks {
            learnt.set_capacity(self.bond.learnt_max);
        } else {
            // Some entries of a pipe that shrinks may be lost.
            self.state.unlearnt = learnt.iter().map(|(mac, _)| mac).filter(|_| self.bond.learns()).collect();
            *learnt = super::learnt::Learnt::new(self.bond.learnt_max);
        }
    }

    /// Where the ports of members that have gone are now.
    pub(super) fn find_gone(&mut self, program: &Program) {
        for gone in self.state.gone.values_mut() {
            gone.port = program.port_named(&gone.name);
        }
    }

    /// Brings what was taken over in line with the configuration.
    pub(super) fn adapt(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        self.adapt_elephants(actions);
        let totals = self.lanes().totals.into_owned();
        self.state.rebalance.set_rule(self.bond.rule);
        self.state.rebalance.set_interval(self.bond.rebalance_ms, now_ns, &totals);
        self.leave_old_ports();
        self.resize(now_ns, actions);
        for id in self.state.gone.keys().copied().collect::<Vec<_>>() {
            self.remove(now_ns, id, actions);
        }
        self.state.gone.clear();
        if let Some(config) = self.bond.lacp.clone() {
            self.tell_lacp(now_ns, lacp::Event::Reconfigure(&config), actions);
        }
        let policy = policy(&self.bond, &self.state.ids);
        self.tell_links(now_ns, links::Event::Policy(policy), actions);
        for (id, member) in self.members() {
            let weight = self.weight(id, &member);
            let mut moves = self.state.assignment.add(id, weight, false);
            moves.extend(self.state.assignment.set_weight(id, weight));
            self.order(now_ns, &moves, "another weight, or a new member", actions);
        }
        self.start_or_stop_sending(actions);
        self.settle_pins(now_ns, "another weight", actions);
        self.follow_buckets(actions);
    }

    /// First of all, so that no other move names a bucket that is not there.
    fn resize(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        let size = self.bond.size();
        if self.state.assignment.slots().len() != size as usize {
            let moves = self.state.assignment.resize(size);
            self.order(now_ns, &moves, "another number of buckets", actions);
            self.state.buckets = no_buckets(size as usize);
        }
    }

    /// Entries of `in` under a number that is not their member's any more are to be taken out.
    fn leave_old_ports(&mut self) {
        let members = self.members();
        let is_now = |id: u16| members.iter().find(|one| one.0 == id).map(|one| one.1.port);
        let old = self.state.admitted.extract_if(.., |id, port| is_now(*id) != Some(*port));
        self.state.leftover = old.map(|(_, port)| port).collect();
    }

    /// Lets go of a member that the configuration has no longer.
    fn remove(&mut self, now_ns: u64, id: u16, actions: &mut Vec<Action>) {
        let moves = self.state.assignment.remove(id);
        self.order(now_ns, &moves, "a member was removed", actions);
        self.tell_links(now_ns, links::Event::Remove(id), actions);
        self.tell_lacp(now_ns, lacp::Event::Remove { member: id }, actions);
        let state = &mut self.state;
        state.speeds.remove(&id);
        state.disabled.remove(&id);
        state.lingering.remove(&id);
        state.holding.remove(&id);
    }
}
