//! The members whose frames are accepted: the entries of the pipes `in` and `group/active`.
//!
//! An entry matches a port. On a reload, the engine keeps the entry by the port's name, and so does this
//! list.

use super::entries::{add, remove};
use super::pipes::Names;
use std::collections::{BTreeMap, BTreeSet};
use weir_app::Action;
use weir_program::{PipeId, PortId, Program};

/// The members whose frames are accepted.
#[derive(Default)]
pub(super) struct Admitted {
    inward: Option<PipeId>,
    group_active: Option<PipeId>,
    /// The names of the program's ports, by number.
    names: Vec<String>,
    /// The port in the entry of `in`, by member.
    ports: BTreeMap<u16, PortId>,
    /// The port in the entry of `group/active`.
    broadcast: Option<PortId>,
    /// Members still accepted until the given time, because their partner may not know yet that they were
    /// taken out.
    lingering: BTreeMap<u16, u64>,
    /// Entries of `in` still to be removed.
    leftover: BTreeSet<PortId>,
}

impl Admitted {
    /// Looks up the pipes in the program, and the ports, whose numbers may have changed. The entry of a
    /// removed port was removed with it.
    pub fn bind(&mut self, names: &Names<'_>, program: &Program) {
        let now = |old: &PortId| program.port_named(self.names.get(old.index())?);
        self.ports = self.ports.iter().filter_map(|(id, port)| Some((*id, now(port)?))).collect();
        self.broadcast = self.broadcast.as_ref().and_then(now);
        self.leftover = self.leftover.iter().filter_map(now).collect();
        self.names = program.ports.iter().map(|port| port.name.clone()).collect();
        self.inward = program.pipe_named(&names.inward());
        self.group_active = program.pipe_named(&names.group_active());
    }

    /// Schedules the removal of the entries of a bond of another kind.
    pub fn replace(&mut self, old: Admitted) {
        self.names = old.names;
        self.leftover = old.ports.into_values().collect();
    }

    /// Schedules the removal of entries whose port is no longer their member's.
    pub fn leave_old_ports(&mut self, port_now: impl Fn(u16) -> Option<PortId>) {
        let old = self.ports.extract_if(.., |id, port| port_now(*id) != Some(*port));
        self.leftover = old.map(|(_, port)| port).collect();
    }

    /// Keeps accepting frames from a member until `until_ns`, although it was taken out.
    pub fn linger(&mut self, id: u16, until_ns: u64) {
        self.lingering.insert(id, until_ns);
    }

    /// Forgets a member that was removed.
    pub fn forget(&mut self, id: u16) {
        self.lingering.remove(&id);
    }

    /// Whether a member is still accepted although it was taken out.
    #[cfg(test)]
    pub fn lingers(&self, id: u16) -> bool {
        self.lingering.contains_key(&id)
    }

    /// When the next lingering member stops being accepted.
    pub fn wake_ns(&self) -> Option<u64> {
        self.lingering.values().min().copied()
    }

    /// Accepts frames from these members and the lingering ones, and broadcasts from `active` only.
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
