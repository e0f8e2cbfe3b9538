//! The state that a bond takes over from its predecessor in a reload.

use super::app::BondApp;
use super::traffic::Context;
use super::{lacp, links};
use weir_app::Action;

impl BondApp {
    /// Takes over the state of a bond with the same name, member by member. The resulting actions follow when
    /// it starts.
    pub(super) fn take_over(&mut self, mut old: BondApp) {
        old.stations.adapt(&old.bond, &self.bond);
        if old.bond.mode != self.bond.mode || old.bond.lacp.is_some() != self.bond.lacp.is_some() {
            // The old bond is of another kind, so only the entries that it has left in the pipes matter.
            self.stations = old.stations;
            self.admitted.replace(old.admitted);
            self.traffic.elephants.replace(old.traffic.elephants);
            return;
        }
        std::mem::swap(self, &mut old);
        let BondApp { bond, mut members, .. } = old;
        members.take_over(std::mem::replace(&mut self.members, super::members::Members::new(&bond)));
        (self.bond, self.members) = (bond, members);
    }

    /// Adapts the state taken over to the configuration.
    pub(super) fn adapt(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        let BondApp { bond, members, traffic, admitted, .. } = self;
        traffic.adapt(Context { now_ns, bond, members }, actions);
        admitted.leave_old_ports(|id| members.get(id).map(|member| member.port));
        for id in self.members.gone() {
            self.remove(now_ns, id, actions);
        }
        self.members.forget_gone();
        if let Some(config) = self.bond.lacp.clone() {
            self.notify_lacp(now_ns, lacp::Event::Reconfigure(&config), actions);
        }
        let policy = self.bond.link_policy(&self.members);
        self.notify_links(now_ns, links::LinkEvent::Policy(policy), actions);
        let BondApp { bond, members, traffic, .. } = self;
        traffic.share_out(Context { now_ns, bond, members }, actions);
    }

    /// Removes a member that is no longer in the configuration.
    fn remove(&mut self, now_ns: u64, id: u16, actions: &mut Vec<Action>) {
        let BondApp { bond, members, traffic, .. } = self;
        traffic.remove(Context { now_ns, bond, members }, id, actions);
        self.notify_links(now_ns, links::LinkEvent::Remove(id), actions);
        self.notify_lacp(now_ns, lacp::Event::Remove { member: id }, actions);
        self.admitted.forget(id);
        self.aggregation.release(id);
    }
}
