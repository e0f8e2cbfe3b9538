//! Back ends that are named by their IP address alone: which addresses are resolved, through which port, and
//! how the answers affect entries. The program's executor writes the known addresses into the program before
//! it starts ([`Neighbours::settle`]); the running app follows changes (`health/neighbours.rs`).

use super::NAME;
use super::actions;
use super::health::Guarded;
use super::probes::{self, Probe};
use super::service::{BackEnd, Mode, Service};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_app::neighbour::{Hop, Mac};
use weir_config::ports::PortConfig;
use weir_program::{Entry, EntryMatch, Forward, GroupChoice, GroupId, Program};

/// How a back end with a resolved MAC address is reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Way {
    /// The index of its hop.
    pub hop: usize,
    mode: Mode,
    to: Forward,
}

/// How a back end is reached, and the MAC address that is known for it.
#[derive(Clone, Copy)]
pub(super) struct Reached {
    /// `None` if its MAC address is configured.
    way: Option<Way>,
    mac: Option<Mac>,
}

impl Reached {
    /// Whether nothing can be sent to it, because its MAC address is not known.
    pub fn is_unknown(&self) -> bool {
        self.way.is_some() && self.mac.is_none()
    }

    /// Writes the MAC address, if it is resolved and known, into an entry of the back end.
    pub fn lead(&self, entry: &mut Entry) {
        if let (Some(way), Some(mac)) = (self.way, self.mac) {
            way.lead(entry, mac);
        }
    }
}

impl Way {
    /// Returns whether an entry of the back end has a MAC address, so that packets can be sent to it.
    pub fn leads(&self, entry: &Entry) -> bool {
        entry.forward == Some(self.to)
    }

    /// Writes a MAC address into an entry of the back end, so that packets can be sent to it.
    pub fn lead(&self, entry: &mut Entry, mac: Mac) {
        actions::set_station(self.mode, entry, mac);
        entry.forward = Some(self.to);
    }
}

/// The MAC addresses in the program's entries when it starts, and those found later.
#[derive(Debug, Default)]
struct Written {
    macs: HashMap<Hop, Mac>,
    /// Whether entries of back ends without a MAC address were left out.
    settled: bool,
}

/// The back ends whose MAC addresses are resolved.
#[derive(Clone, Debug, Default)]
pub struct Neighbours {
    /// The addresses to resolve, without duplicates. Some places may be vacant ([`is_vacant`]).
    pub hops: Arc<[Hop]>,
    /// For each service and each of its back ends, in the order of `Health`: how the back end is reached, if
    /// its MAC address is resolved.
    pub ways: Arc<[Arc<[Option<Way>]>]>,
    written: Arc<Mutex<Written>>,
}

impl PartialEq for Neighbours {
    fn eq(&self, other: &Neighbours) -> bool {
        (&self.hops, &self.ways) == (&other.hops, &other.ways)
    }
}

/// Whether no back end has this hop any more. Its place can then be used for another one.
pub fn is_vacant(hop: &Hop) -> bool {
    hop.port.is_empty()
}

/// Returns how a back end of a service is reached, if its MAC address is resolved.
fn hop_of(service: &Service, back_end: &BackEnd, ports: &[PortConfig]) -> Option<Hop> {
    let port = ports.get(service.lead(back_end).index()).map_or("", |port| &port.name);
    Some(Hop { port: port.into(), address: back_end.resolve? })
}

impl Neighbours {
    /// Returns the neighbours after a service, at this position in the health, was replaced; and the hops
    /// that are new.
    pub(super) fn with(
        &self,
        at: usize,
        service: &Service,
        ports: &[PortConfig],
    ) -> Option<(Neighbours, Vec<Hop>)> {
        let old = self.ways.get(at)?;
        if service.back_ends.iter().all(|one| one.resolve.is_none()) && old.iter().all(Option::is_none) {
            let mut ways = self.ways.to_vec();
            ways[at] = service.back_ends.iter().map(|_| None).collect();
            return Some((Neighbours { ways: ways.into(), ..self.clone() }, Vec::new()));
        }
        let (mut hops, mut new) = (self.hops.to_vec(), Vec::new());
        let mut way = |back_end: &BackEnd| {
            let hop = hop_of(service, back_end, ports)?;
            let before = old.iter().flatten().map(|way| way.hop).find(|at| hops[*at] == hop);
            let known = before.or_else(|| hops.iter().position(|one| *one == hop));
            let at = known.unwrap_or_else(|| {
                new.push(hop.clone());
                let vacant = hops.iter().position(is_vacant).unwrap_or(hops.len());
                if vacant == hops.len() {
                    hops.push(hop)
                } else {
                    hops[vacant] = hop
                }
                vacant
            });
            Some(Way { hop: at, mode: back_end.mode, to: service.way_out(back_end) })
        };
        let own: Arc<[Option<Way>]> = service.back_ends.iter().map(&mut way).collect();
        let mut ways = self.ways.to_vec();
        ways[at] = own;
        let mut is_used = vec![false; hops.len()];
        ways.iter().flat_map(|ways| ways.iter().flatten()).for_each(|way| is_used[way.hop] = true);
        let gone = hops.iter_mut().zip(is_used).filter(|(_, is_used)| !is_used);
        gone.for_each(|(hop, _)| hop.port = "".into());
        let hops = if *hops == *self.hops { self.hops.clone() } else { hops.into() };
        Some((Neighbours { hops, ways: ways.into(), written: self.written.clone() }, new))
    }

    /// Returns how each back end of a service, at this position in the health, is reached.
    pub(super) fn reached(&self, at: usize) -> Vec<Reached> {
        let known = self.look();
        let mac = |way: &Way| known.macs.get(self.hops.get(way.hop)?).copied();
        let reached = |way: &Option<Way>| Reached { way: *way, mac: way.as_ref().and_then(mac) };
        self.ways.get(at).map(|ways| ways.iter().map(reached).collect()).unwrap_or_default()
    }

    /// Adds MAC addresses that are known.
    pub(super) fn add(&self, known: HashMap<Hop, Mac>) {
        self.look().macs.extend(known);
    }

    /// Forgets the MAC addresses of hops that no back end has any more.
    pub(super) fn forget<'a>(&self, hops: impl Iterator<Item = &'a Hop>) {
        let mut known = self.look();
        hops.for_each(|hop| _ = known.macs.remove(hop));
    }

    /// Returns the neighbours of services, indexed like the services of their health.
    pub(super) fn of(services: &[Service], guarded: &[Arc<Guarded>], ports: &[PortConfig]) -> Neighbours {
        let by_name: HashMap<&str, &Service> = services.iter().map(|one| (one.name.as_str(), one)).collect();
        let mut hops: Vec<Hop> = Vec::new();
        let mut places: HashMap<Hop, usize> = HashMap::new();
        let mut ways = Vec::new();
        for one in guarded {
            let Some(service) = by_name.get(one.name.as_str()) else { continue };
            let way = |back_end: &BackEnd| {
                let hop = hop_of(service, back_end, ports)?;
                let at = *places.entry(hop.clone()).or_insert(hops.len());
                if at == hops.len() {
                    hops.push(hop);
                }
                Some(Way { hop: at, mode: back_end.mode, to: service.way_out(back_end) })
            };
            ways.push(service.back_ends.iter().map(way).collect());
        }
        Neighbours { hops: hops.into(), ways: ways.into(), written: Arc::default() }
    }

    fn look(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the known MAC addresses.
    #[must_use]
    pub fn known(&self) -> HashMap<Hop, Mac> {
        self.look().macs.clone()
    }

    /// Returns the MAC address that the program has for a hop when it starts, and the one known later.
    #[must_use]
    pub fn mac(&self, hop: usize) -> Option<Mac> {
        self.look().macs.get(self.hops.get(hop)?).copied()
    }

    /// Returns whether the known addresses were written into the program, and entries of other back ends left
    /// out.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.look().settled
    }

    /// Records the current MAC address of a hop, if it is known, for the next program.
    pub fn note(&self, hop: usize, mac: Option<Mac>) {
        let (mut known, hop) = (self.look(), &self.hops[hop]);
        match mac {
            Some(mac) => _ = known.macs.insert(hop.clone(), mac),
            None => _ = known.macs.remove(hop),
        }
    }

    /// Writes the known addresses into the program. A back end with an unknown address gets no entry and no
    /// weight; packets of its check are dropped.
    pub(super) fn settle(
        &self,
        guarded: &[Arc<Guarded>],
        checked: &[Probe],
        known: &HashMap<Hop, Mac>,
        program: &mut Program,
    ) {
        if self.hops.is_empty() {
            return;
        }
        let macs: Vec<Option<Mac>> = self.hops.iter().map(|hop| known.get(hop).copied()).collect();
        let groups: HashMap<String, usize> =
            guarded.iter().zip(0..).map(|(one, at)| (format!("{NAME}/{}", one.name), at)).collect();
        let mut services: HashMap<GroupId, usize> = HashMap::new();
        for (group, id) in program.groups.iter_mut().zip(0..) {
            let Some(&at) = groups.get(&group.name).filter(|at| self.ways[**at].iter().any(Option::is_some))
            else {
                continue;
            };
            services.insert(GroupId(id), at);
            for (target, way) in Arc::make_mut(&mut group.targets).iter_mut().zip(self.ways[at].iter()) {
                if way.is_some_and(|way| macs[way.hop].is_none()) {
                    target.weight = 0;
                }
            }
        }
        let stays = |entry: &mut Entry| {
            let [EntryMatch::Member { group, target }] = entry.matches[..] else { return true };
            let way = services.get(&group).and_then(|at| *self.ways[*at].get(usize::from(target))?);
            let Some(way) = way else { return true };
            macs[way.hop].map(|mac| way.lead(entry, mac)).is_some()
        };
        let lead = |entry: &mut Entry| {
            let probe = probes::number(entry).and_then(|at| checked.get(at));
            let way = probe.and_then(|probe| *self.ways.get(probe.at.0)?.get(probe.at.1)?);
            if let Some((way, mac)) = way.and_then(|way| Some((way, macs[way.hop]?))) {
                way.lead(entry, mac);
            }
        };
        for pipe in program.pipes.iter_mut().filter(|pipe| probes::is_checks(pipe)) {
            pipe.entries.edit(|entries| entries.iter_mut().for_each(lead));
        }
        for pipe in &mut program.pipes {
            if matches!(pipe.kind.group(), Some(GroupChoice::ByMeta(_))) {
                pipe.entries.retain(stays);
            }
        }
        let wanted: HashSet<&Hop> = self.hops.iter().collect();
        let macs = known.iter().filter(|(hop, _)| wanted.contains(hop));
        *self.look() = Written { macs: macs.map(|(hop, mac)| (hop.clone(), *mac)).collect(), settled: true };
    }
}
