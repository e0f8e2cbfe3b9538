//! The checksums of rings in `weir show rings` and in metrics.

use super::observer::Snapshot;
use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use weir_app::rings::{BackEndStanding, Checksum, RingOwner, RingSums, VERSION, scheduler};
use weir_control::answer::{FleetNode, Ring, RingBackEnd, Rings, ServiceFlows};
use weir_program::Group;

impl Snapshot {
    /// Returns the checksums of all rings.
    pub(super) fn ring_sums(&self) -> RingSums {
        let plan: Arc<dyn Any + Send + Sync> = self.plan.clone();
        let mut cache = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        cache.sums(&plan, (&self.plan.program, &self.plan.apps), &self.tables)
    }

    /// Returns all rings with their checksums and the data that the checksums cover.
    pub(super) fn rings(&self) -> Rings {
        let sums = self.ring_sums();
        let scales = self.plan.apps.scales();
        let scale = |owner: &RingOwner| scales.get(&owner.service.group).copied().unwrap_or(1).max(1);
        let ring = |((owner, configured), effective): ((&RingOwner, &Checksum), &Checksum)| {
            let group = owner.group.map(|id| &self.plan.program.groups[id.index()]);
            let shares = owner.group.map(|id| self.tables.table(id));
            let back_ends = self.back_ends(owner, group, scale(owner), |at| {
                shares.map_or(0, |table| u64::from(table.share(at)))
            });
            let prefixes = |group: &Group| {
                let affinity = group.affinity?;
                let remembers = if group.remembers() { ", remembered" } else { "" };
                Some(format!("{}, {}{remembers}", affinity.ipv4, affinity.ipv6))
            };
            let bits = owner.service.bits.as_ref().map(|bits| bits.targets.len() as u64);
            Ring {
                name: owner.service.name.clone(),
                configured: configured.to_string(),
                effective: Some(effective.to_string()),
                scheduler: group.map_or("bits", scheduler).to_string(),
                size: group.map_or(bits.unwrap_or(0), |group| group.size.into()),
                by: owner.service.by.clone(),
                keeps: owner.service.keeps,
                affinity: group.and_then(prefixes),
                secrets: group.map(|group| sums.rings.secrets(group).to_string()).unwrap_or_default(),
                destinations: owner.service.destinations_in_words(),
                nat_pool: owner.service.nat_pool.clone(),
                back_ends,
            }
        };
        let owners = sums.rings.owners();
        let services = owners.iter().zip(&sums.configured).zip(&sums.effective).map(ring).collect();
        Rings {
            version: VERSION.to_string(),
            seed: sums.rings.seed().to_string(),
            configured: sums.rings.total(&sums.configured).to_string(),
            effective: Some(sums.rings.total(&sums.effective).to_string()),
            services,
        }
    }

    /// Returns what other nodes of a fleet compare.
    pub(super) fn fleet_node(&self) -> FleetNode {
        let rings = self.rings();
        let by_target = self.flows_of_targets();
        let mut by_group: HashMap<&str, u64> = HashMap::new();
        for ((group, _), flows) in &by_target {
            *by_group.entry(group).or_default() += flows.active;
        }
        let sums = self.ring_sums();
        let flows = |owner: &RingOwner| {
            let flows = by_group.get(owner.service.group.as_str()).copied().unwrap_or(0);
            ServiceFlows { service: owner.service.name.clone(), flows }
        };
        FleetNode {
            version: env!("CARGO_PKG_VERSION").to_string(),
            configuration: sums.rings.text(&self.plan.source.text).to_string(),
            flows: sums.rings.owners().iter().map(flows).collect(),
            nat_pools: self.nat_pools(),
            rings,
        }
    }

    /// Returns the back ends of a ring. `slots` says how many slots a target of the group has.
    fn back_ends(
        &self,
        owner: &RingOwner,
        group: Option<&Group>,
        scale: u32,
        slots: impl Fn(usize) -> u64,
    ) -> Vec<RingBackEnd> {
        let standings = self.plan.apps.standings(&owner.service.name);
        let standings: HashMap<&str, &BackEndStanding> =
            standings.iter().map(|one| (one.name.as_str(), one)).collect();
        let targets = group.map(|group| &*group.targets).unwrap_or_default();
        let places: HashMap<&str, usize> =
            targets.iter().enumerate().map(|(at, target)| (target.name.as_str(), at)).collect();
        let of = |name: &str, address: Option<String>, mode: &str| {
            let (standing, at) = (standings.get(name), places.get(name).copied());
            let weight = standing.and_then(|one| one.weight).or(at.map(|at| targets[at].weight));
            let bits = owner.service.bits.as_ref();
            let values = bits.map(|bits| bits.targets.iter().filter(|one| *one == name).count() as u64);
            RingBackEnd {
                name: name.to_string(),
                address,
                mode: mode.to_string(),
                weight: u64::from(weight.unwrap_or(1) / scale),
                slots: at.map_or(values.unwrap_or(0), &slots),
                health: standing.map_or("", |one| one.health).to_string(),
                reason: standing.map(|one| one.reason.clone()).unwrap_or_default(),
            }
        };
        if owner.service.back_ends.is_empty() {
            let target = |one: &weir_program::Target| {
                of(&one.name, one.address.map(|address| address.to_string()), "")
            };
            return targets.iter().filter(|one| !one.is_vacant()).map(target).collect();
        }
        let back_end = |one: &weir_app::rings::BalancedBackEnd| {
            let address = one.address.map(|address| match one.port {
                Some(port) => std::net::SocketAddr::new(address, port).to_string(),
                None => address.to_string(),
            });
            of(&one.name, address, one.mode)
        };
        owner.service.back_ends.iter().map(back_end).collect()
    }
}
