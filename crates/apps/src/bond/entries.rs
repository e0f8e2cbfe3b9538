//! The entries of a bond's pipes: from whom frames are taken in, and who is inside.
//!
//! What was entered is known by what lies in the pipe, a port's number: after a reload that may be another port's.

use super::app::BondApp;
use super::config::Inward;
use super::lacp::Negotiation;
use super::learnt::Mac;
use crate::app::Action;
use engine::builder::Number;
use engine::change::{Change, EntryKey};
use engine::program::{Entry, PipeId};
use std::collections::BTreeSet;

impl BondApp {
    /// A frame from inside whose source was not known.
    pub(super) fn learn(&mut self, now_ns: u64, bytes: &[u8], actions: &mut Vec<Action>) {
        let Some((mac, gone)) = self.state.learnt.learn(now_ns, bytes) else { return };
        gone.into_iter().for_each(|gone| self.forget(gone, actions));
        actions.extend(self.knows().map(|pipe| Action::Change(add(pipe, mac))));
    }

    /// A frame whose source is inside came in by this member. What all members are sent counts where it is taken in.
    pub(super) fn reflected(&mut self, now_ns: u64, id: u16, bytes: &[u8], actions: &mut Vec<Action>) {
        let to_all = bytes.first().is_some_and(|first| first & 1 == 1);
        if to_all && self.state.links.active() != Some(id) {
            return;
        }
        let Some(mac) = self.state.learnt.has_moved(now_ns, bytes) else { return };
        self.forget(mac, actions);
        if let Inward::Port(output) = self.bond.inward {
            actions.push(Action::Inject { bytes: bytes.to_vec(), output });
        }
    }

    /// Addresses that were learnt long ago have to be seen again.
    pub(super) fn age(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        while let Some(mac) = self.state.learnt.age(now_ns) {
            self.forget(mac, actions);
        }
    }

    /// Takes an address out of the pipes.
    pub(super) fn forget(&self, mac: Mac, actions: &mut Vec<Action>) {
        actions.extend(self.knows().map(|pipe| Action::Change(remove(pipe, mac))));
    }

    /// The pipes that know who is inside.
    fn knows(&self) -> impl Iterator<Item = PipeId> + use<> {
        [self.numbers.learn, self.numbers.reflected].into_iter().flatten()
    }

    /// Brings the entries of `in` and `group/active` in line with the links.
    pub(super) fn admit(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        let Some(inward) = self.numbers.inward else { return };
        let wanted: BTreeSet<u16> = self.state.ids.values().copied().filter(|id| self.listens(*id)).collect();
        self.state.lingering.retain(|id, until| !wanted.contains(id) && *until > now_ns);
        let mut gone = std::mem::take(&mut self.state.leftover);
        let stays = |id: &u16| wanted.contains(id) || self.state.lingering.contains_key(id);
        gone.extend(self.state.admitted.extract_if(.., |id, _| !stays(id)).map(|(_, port)| port));
        actions.extend(gone.into_iter().map(|port| Action::Change(remove(inward, u128::from(port.0)))));
        for id in wanted {
            let Some(port) = self.member(id).map(|member| member.port) else { continue };
            if self.state.admitted.insert(id, port).is_none() {
                actions.push(Action::Change(add(inward, u128::from(port.0))));
            }
        }
        self.admit_broadcast(actions);
    }

    fn admit_broadcast(&mut self, actions: &mut Vec<Action>) {
        let Some(pipe) = self.numbers.group_active else { return };
        let active = self.state.links.active().and_then(|id| Some(self.member(id)?.port));
        let was = std::mem::replace(&mut self.state.broadcast, active);
        if was != active {
            actions.extend(was.map(|port| Action::Change(remove(pipe, port))));
            actions.extend(active.map(|port| Action::Change(add(pipe, port))));
        }
    }

    /// Are frames from this member taken in?
    fn listens(&self, id: u16) -> bool {
        let Some(state) = self.state.links.state(id) else { return false };
        if self.state.lacp.is_some() && self.state.negotiation != Negotiation::Fallback {
            // The partner spreads what it sends over all that collect, whichever member is the active one here.
            state.collecting
        } else if self.is_single() {
            self.state.links.active() == Some(id)
        } else {
            state.enabled
        }
    }
}

fn add(pipe: PipeId, value: impl Number) -> Change {
    Change::Add { pipe, entry: Entry::on(value).run_time() }
}

fn remove(pipe: PipeId, value: impl Number) -> Change {
    Change::Remove { pipe, key: EntryKey::of(&Entry::on(value)) }
}
