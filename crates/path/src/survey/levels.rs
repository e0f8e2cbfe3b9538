//! A survey of an unmodified remote node: it asks one TTL after the other, from all ports, which router is
//! there, until no router answers any more.
//!
//! Routers keep their rate limits: Linux's send a host six messages at once and then one a second
//! (`net.ipv4.icmp_ratelimit`, and `XRLIM_BURST_FACTOR` in the kernel's source). So a few ports are asked at
//! a time. Once answers are missing, one port is asked per second. Where eight ports all meet the same
//! router, the others are assumed to meet it as well: if there were two, this would happen once in 128 times,
//! and a further survey tries other ports.

use super::{ROUTERS_MAX, Survey, Surveyed};
use std::net::IpAddr;

/// How many ports are tried: they cover four paths with a probability of 96 %. Further surveys try others.
const PORTS: usize = 16;

/// How many messages a router sends at once.
const BURST: usize = 6;

/// How many ports must meet the same router for it to be the only one.
const SAME: usize = 8;

/// How long to wait for answers, ns.
pub(super) const PATIENCE_NS: u64 = 100_000_000;

/// The time between two probes to a router that limits its messages, ns.
const LIMITED_NS: u64 = 1_000_000_000;

/// How many probes are sent from a port to find the same router.
const ASKED_MAX: u8 = 3;

/// The number of TTLs in a row without any router after which there are no more: one router may be silent.
const SILENT_MAX: u8 = 2;

/// How the survey continues.
#[derive(Debug)]
pub(super) struct Levels {
    ttl: u8,
    /// How many probes with this TTL were sent from each source port.
    asked: Vec<u8>,
    /// The ports that were asked last.
    batch: Vec<usize>,
    is_limited: bool,
    /// How many TTLs before this one had no router.
    silent: u8,
}

impl Survey {
    /// Makes this the survey of an unmodified node.
    #[must_use]
    pub fn one_sided(mut self) -> Survey {
        self.ports.truncate(PORTS);
        self.further.clear();
        self.routers.truncate(PORTS);
        self.hops.truncate(PORTS);
        self.begin_level(1, 0);
        self
    }

    fn begin_level(&mut self, ttl: u8, silent: u8) {
        self.hops.iter_mut().for_each(|hops| hops.resize(usize::from(ttl), None));
        let asked = vec![0; self.ports.len()];
        let levels = Levels { ttl, asked, batch: Vec::new(), is_limited: false, silent };
        self.ask((0..self.ports.len().min(BURST)).collect(), levels);
    }

    fn ask(&mut self, batch: Vec<usize>, mut levels: Levels) {
        batch.iter().for_each(|at| levels.asked[*at] += 1);
        self.todo = batch.iter().map(|at| (*at, levels.ttl)).collect();
        self.levels = Some(Levels { batch, ..levels });
    }

    /// Continues once a batch of ports has been probed. Returns the result when the survey is complete.
    pub(super) fn next_level(&mut self, now_ns: u64, mut levels: Levels) -> Option<Surveyed> {
        let hop = |at: usize| self.hops[at][usize::from(levels.ttl) - 1];
        levels.is_limited |= levels.batch.iter().any(|at| hop(*at).is_none());
        let found: Vec<IpAddr> = (0..self.ports.len()).filter_map(hop).collect();
        let mut open: Vec<usize> = (0..self.ports.len()).filter(|at| hop(*at).is_none()).collect();
        open.retain(|at| levels.asked[*at] < ASKED_MAX);
        open.sort_by_key(|at| levels.asked[*at]);
        let asked: usize = levels.asked.iter().copied().map(usize::from).sum();
        let is_same = found.len() >= SAME && found.iter().all(|router| *router == found[0]);
        if is_same {
            let all = self.hops.iter_mut().filter_map(|hops| hops.last_mut());
            all.for_each(|hop| *hop = Some(found[0]));
        } else if !open.is_empty() && (!found.is_empty() || asked <= BURST) {
            if levels.is_limited {
                self.next_ns = now_ns + LIMITED_NS;
            }
            open.truncate(if levels.is_limited { 1 } else { BURST });
            self.ask(open, levels);
            return None;
        }
        let silent = if found.is_empty() { levels.silent + 1 } else { 0 };
        if silent < SILENT_MAX && levels.ttl < ROUTERS_MAX {
            self.begin_level(levels.ttl + 1, silent);
            return None;
        }
        let routers = levels.ttl - silent;
        self.routers.fill(Some(routers));
        self.hops.iter_mut().for_each(|hops| hops.truncate(usize::from(routers)));
        // Nothing is known about the time, and nothing needs it.
        self.round_trip_ns = Some(0);
        let alone = if routers == 0 { vec![Vec::new(); self.ports.len()] } else { Vec::new() };
        Some(Surveyed { delays: alone, ..self.result() })
    }
}
