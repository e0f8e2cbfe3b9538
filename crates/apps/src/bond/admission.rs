//! By which members frames come in: the entries of the pipes `in` and `group/active`.
//!
//! What was entered is known by what lies in the pipe, a port's number: after a reload that may be another port's.

use super::entries::{add, remove};
use super::pipes::Names;
use crate::app::Action;
use engine::program::{PipeId, PortId, Program};
use std::collections::{BTreeMap, BTreeSet};

/// The members that are listened to.
#[derive(Default)]
pub(super) struct Admitted {
    inward: Option<PipeId>,
    group_active: Option<PipeId>,
    /// Entries of `in`, by member.
    ports: BTreeMap<u16, PortId>,
    /// The entry of `group/active`.
    broadcast: Option<PortId>,
    /// Members that are listened to until then, because their partner does not know yet that they were left.
    lingering: BTreeMap<u16, u64>,
    /// Entries of `in` that are to be taken out.
    leftover: BTreeSet<PortId>,
}

impl Admitted {
    /// Looks up the pipes.
    pub fn bind(&mut self, names: &Names<'_>, program: &Program) {
        self.inward = program.pipe_named(&names.inward());
        self.group_active = program.pipe_named(&names.group_active());
    }

    /// Another kind of bond had these: its entries are to be taken out.
    pub fn replace(&mut self, old: Admitted) {
        self.leftover = old.ports.into_values().collect();
    }

    /// Entries under a port that is not their member's any more are to be taken out.
    pub fn leave_old_ports(&mut self, port_now: impl Fn(u16) -> Option<PortId>) {
        let old = self.ports.extract_if(.., |id, port| port_now(*id) != Some(*port));
        self.leftover = old.map(|(_, port)| port).collect();
    }

    /// A member is left: what it still sends is taken in until `until_ns`.
    pub fn linger(&mut self, id: u16, until_ns: u64) {
        self.lingering.insert(id, until_ns);
    }

    /// A member is there no longer.
    pub fn forget(&mut self, id: u16) {
        self.lingering.remove(&id);
    }

    /// Whether a member is listened to although it was left.
    #[cfg(test)]
    pub fn lingers(&self, id: u16) -> bool {
        self.lingering.contains_key(&id)
    }

    /// When the next member has lingered long enough.
    pub fn wake_ns(&self) -> Option<u64> {
        self.lingering.values().min().copied()
    }

    /// Listens to these members, and to those that linger; broadcast comes in by `active`.
    pub fn update(
        &mut self,
        now_ns: u64,
        wanted: &BTreeMap<u16, PortId>,
        active: Option<PortId>,
        actions: &mut Vec<Action>,
    ) {
        let Some(inward) = self.inward else { return };
        self.lingering.retain(|id, until| !wanted.contains_key(id) && *until > now_ns);
        let mut gone = std::mem::take(&mut self.leftover);
        let stays = |id: &u16| wanted.contains_key(id) || self.lingering.contains_key(id);
        gone.extend(self.ports.extract_if(.., |id, _| !stays(id)).map(|(_, port)| port));
        actions.extend(gone.into_iter().map(|port| remove(inward, port)));
        for (id, port) in wanted {
            if self.ports.insert(*id, *port).is_none() {
                actions.push(add(inward, *port));
            }
        }
        let Some(pipe) = self.group_active else { return };
        let was = std::mem::replace(&mut self.broadcast, active);
        if was != active {
            actions.extend(was.map(|port| remove(pipe, port)));
            actions.extend(active.map(|port| add(pipe, port)));
        }
    }
}
