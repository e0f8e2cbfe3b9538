//! The members of a bond: their numbers, and what is known of each besides its link.
//!
//! A member's number stays its own while the bond lives, whatever a reload does to the list. The targets of the bond's
//! group are positions in that list.

use super::assignment::weight_of_speed;
use super::config::{Bond, Member, Mode};
use engine::program::{PortId, Program};
use std::collections::{BTreeMap, BTreeSet};
use table::NO_TARGET;

/// The weight of a link whose speed is not known: as 1 Gbit/s.
pub(super) const UNKNOWN_WEIGHT: u32 = 1000;

/// The members of a bond.
pub(super) struct Members {
    list: Vec<Member>,
    mode: Mode,
    ids: BTreeMap<String, u16>,
    next_id: u16,
    /// Speeds of the links that are known.
    speeds: BTreeMap<u16, u64>,
    /// Members that the operator took out.
    pub disabled: BTreeSet<u16>,
    /// Members that the configuration has no longer.
    gone: BTreeMap<u16, Gone>,
}

/// A member that the configuration has no longer.
struct Gone {
    name: String,
    /// Its port, if there still is one.
    port: Option<PortId>,
}

impl Members {
    /// The members of a configuration, numbered by their positions.
    pub fn new(bond: &Bond) -> Members {
        let ids: BTreeMap<String, u16> = bond.members.iter().map(|member| member.name.clone()).zip(0..).collect();
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

    /// Keeps the numbers and what is known of members that were there before a reload.
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

    /// Finds the ports of members that the configuration has no longer.
    pub fn find_gone(&mut self, program: &Program) {
        self.gone.values_mut().for_each(|gone| gone.port = program.port_named(&gone.name));
    }

    /// The numbers of members that the configuration has no longer.
    pub fn gone(&self) -> Vec<u16> {
        self.gone.keys().copied().collect()
    }

    /// Forgets the members that the configuration has no longer.
    pub fn forget_gone(&mut self) {
        for id in std::mem::take(&mut self.gone).into_keys() {
            self.speeds.remove(&id);
            self.disabled.remove(&id);
        }
    }

    /// A member's number.
    pub fn id(&self, name: &str) -> Option<u16> {
        self.ids.get(name).copied()
    }

    /// All names and numbers.
    pub fn ids(&self) -> &BTreeMap<String, u16> {
        &self.ids
    }

    /// The member that has a port.
    pub fn at(&self, port: PortId) -> Option<u16> {
        self.id(&self.list.iter().find(|member| member.port == port)?.name)
    }

    /// What is configured of a member.
    pub fn get(&self, id: u16) -> Option<&Member> {
        self.list.iter().find(|member| self.id(&member.name) == Some(id))
    }

    /// A member's name; also of one that has just gone.
    pub fn name(&self, id: u16) -> &str {
        let gone = || self.gone.get(&id).map_or("none", |gone| &gone.name);
        self.get(id).map_or_else(gone, |member| &member.name)
    }

    /// A member's port; also of one that has just gone.
    pub fn port(&self, id: u16) -> Option<PortId> {
        self.get(id).map(|member| member.port).or_else(|| self.gone.get(&id)?.port)
    }

    /// A member's place among the group's targets.
    pub fn target(&self, id: u16) -> u16 {
        let place = self.list.iter().position(|member| self.id(&member.name) == Some(id));
        place.map_or(NO_TARGET, |place| place as u16)
    }

    /// All members with their numbers, in the order of the configuration.
    pub fn each(&self) -> Vec<(u16, Member)> {
        self.list.iter().filter_map(|member| Some((self.id(&member.name)?, member.clone()))).collect()
    }

    /// Notes the speed of a member's link.
    pub fn set_speed(&mut self, id: u16, speed_bps: u64) {
        self.speeds.insert(id, speed_bps);
    }

    /// A member's share of the buckets: as written, or by its speed; that of any other where all are to have a bucket, or
    /// the active one all.
    pub fn weight(&self, id: u16) -> u32 {
        let Some(member) = self.get(id) else { return UNKNOWN_WEIGHT };
        match self.mode {
            Mode::ActiveBackup => 1,
            Mode::Broadcast => member.weight.map_or(1, |weight| weight.min(1)),
            _ => member.weight.or(self.speeds.get(&id).copied().map(weight_of_speed)).unwrap_or(UNKNOWN_WEIGHT),
        }
    }
}
