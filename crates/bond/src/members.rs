//! The members of a bond: their numbers, and the information about each besides the state of its link.
//!
//! A member keeps its number as long as the bond exists, regardless of how a reload changes the list of
//! members. The targets of the bond's group, in contrast, are positions in that list.

use super::assignment::weight_of_speed;
use super::config::{Bond, Member, Mode};
use std::collections::{BTreeMap, BTreeSet};
use weir_program::{PortId, Program};
use weir_table::NO_TARGET;

/// Weight of a link of unknown speed: that of 1 Gbit/s.
pub(super) const UNKNOWN_WEIGHT: u32 = 1000;

/// The members of a bond.
pub(super) struct Members {
    list: Vec<Member>,
    mode: Mode,
    ids: BTreeMap<String, u16>,
    next_id: u16,
    /// Link speeds, where known.
    speeds: BTreeMap<u16, u64>,
    /// Members that the operator has disabled.
    pub disabled: BTreeSet<u16>,
    /// Members that a reload removed from the configuration.
    gone: BTreeMap<u16, Gone>,
}

/// A member that a reload removed from the configuration.
struct Gone {
    name: String,
    /// Its port, if that still exists.
    port: Option<PortId>,
}

impl Members {
    /// The members of a configuration, numbered by position.
    pub fn new(bond: &Bond) -> Members {
        let ids: BTreeMap<String, u16> =
            bond.members.iter().map(|member| member.name.clone()).zip(0..).collect();
        Members {
            list: bond.members.clone(),
            mode: bond.mode,
            next_id: ids.len() as u16,
            ids,
            speeds: BTreeMap::new(),
            disabled: BTreeSet::new(),
            gone: BTreeMap::new(),
        }
    }

    /// Keeps the numbers and the state of members that existed before a reload.
    pub fn take_over(&mut self, mut old: Members) {
        self.next_id = old.next_id;
        for (name, id) in &mut self.ids {
            *id = old.ids.remove(name).unwrap_or_else(|| {
                self.next_id += 1;
                self.next_id - 1
            });
        }
        self.gone = old.ids.into_iter().map(|(name, id)| (id, Gone { name, port: None })).collect();
        (self.speeds, self.disabled) = (old.speeds, old.disabled);
    }

    /// Looks up the ports of removed members.
    pub fn find_gone(&mut self, program: &Program) {
        self.gone.values_mut().for_each(|gone| gone.port = program.port_named(&gone.name));
    }

    /// The numbers of removed members.
    pub fn gone(&self) -> Vec<u16> {
        self.gone.keys().copied().collect()
    }

    /// Forgets removed members.
    pub fn forget_gone(&mut self) {
        for id in std::mem::take(&mut self.gone).into_keys() {
            self.speeds.remove(&id);
            self.disabled.remove(&id);
        }
    }

    /// The number of a member.
    pub fn id(&self, name: &str) -> Option<u16> {
        self.ids.get(name).copied()
    }

    /// All names and numbers.
    pub fn ids(&self) -> &BTreeMap<String, u16> {
        &self.ids
    }

    /// The member with this port.
    pub fn at(&self, port: PortId) -> Option<u16> {
        self.id(&self.list.iter().find(|member| member.port == port)?.name)
    }

    /// The configuration of a member.
    pub fn get(&self, id: u16) -> Option<&Member> {
        self.list.iter().find(|member| self.id(&member.name) == Some(id))
    }

    /// A member's name, including one that was just removed.
    pub fn name(&self, id: u16) -> &str {
        let gone = || self.gone.get(&id).map_or("none", |gone| &gone.name);
        self.get(id).map_or_else(gone, |member| &member.name)
    }

    /// A member's port, including one that was just removed.
    pub fn port(&self, id: u16) -> Option<PortId> {
        self.get(id).map(|member| member.port).or_else(|| self.gone.get(&id)?.port)
    }

    /// The index of a member among the group's targets.
    pub fn target(&self, id: u16) -> u16 {
        let place = self.list.iter().position(|member| self.id(&member.name) == Some(id));
        place.map_or(NO_TARGET, |place| place as u16)
    }

    /// All members with their numbers, in the order of the configuration.
    pub fn each(&self) -> Vec<(u16, Member)> {
        self.list.iter().filter_map(|member| Some((self.id(&member.name)?, member.clone()))).collect()
    }

    /// Records the speed of a member's link.
    pub fn set_speed(&mut self, id: u16, speed_bps: u64) {
        self.speeds.insert(id, speed_bps);
    }

    /// A member's weight: as configured, or otherwise by its speed. All weights are equal if every member
    /// must have a bucket, or if the active member has all buckets.
    pub fn weight(&self, id: u16) -> u32 {
        let Some(member) = self.get(id) else { return UNKNOWN_WEIGHT };
        match self.mode {
            Mode::ActiveBackup => 1,
            Mode::Broadcast => member.weight.map_or(1, |weight| weight.min(1)),
            _ => {
                member.weight.or(self.speeds.get(&id).copied().map(weight_of_speed)).unwrap_or(UNKNOWN_WEIGHT)
            }
        }
    }
}
