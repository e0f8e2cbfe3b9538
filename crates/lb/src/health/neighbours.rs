//! Back ends whose MAC addresses are resolved: the app tracks these addresses. A back end whose MAC address
//! is unknown is down, because nothing can be sent to it. If its address changes, its entries change and its
//! flows stay. While there is doubt (`doubt.rs`), a lost neighbour keeps its last address and its flows.

use super::app::{LbApp, Row};
use super::doubt::TOGETHER_NS;
use crate::neighbours::{Neighbours, is_vacant};
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use weir_app::neighbour::{Found, Hop, Mac};
use weir_app::{Action, Level};
use weir_config::value::write_mac;
use weir_program::builder::Number;
use weir_program::change::Change;

/// The state of a neighbour.
pub(crate) struct Neighbour {
    hop: Hop,
    found: Found,
    /// Nothing has been heard of it yet.
    is_new: bool,
    /// The MAC address in the entries of its back ends, whether or not these are currently in the program.
    written: Option<Mac>,
    /// The back ends: service and place in it.
    users: Vec<(usize, usize)>,
    lines: LoggedLines,
}

/// The maximum number of log lines per minute about one neighbour, because an address that two stations claim
/// changes all the time.
const LINES: u32 = 4;
const MINUTE_NS: u64 = 60_000_000_000;

/// How much has been logged about a neighbour.
#[derive(Default)]
struct LoggedLines {
    said: u32,
    kept_back: u32,
    until_ns: u64,
}

impl LoggedLines {
    /// Returns what to append to a line, or `None` if the line must be suppressed.
    fn add(&mut self, now_ns: u64) -> Option<String> {
        if now_ns >= self.until_ns {
            (self.said, self.until_ns) = (0, now_ns + MINUTE_NS);
        }
        if self.said == LINES {
            self.kept_back += 1;
            return None;
        }
        self.said += 1;
        Some(match std::mem::take(&mut self.kept_back) {
            0 => String::new(),
            count => format!(" ({count} earlier changes)"),
        })
    }
}

impl Neighbour {
    /// Returns its MAC address, if known.
    pub fn mac(&self) -> Option<Mac> {
        self.found.as_ref().ok().copied()
    }

    /// Explains why it has no MAC address.
    pub fn reason(&self) -> String {
        self.found.as_ref().err().map_or_else(String::new, |why| format!("no neighbour: {why}"))
    }

    /// Returns the state that a successor must know.
    pub fn leave(self) -> (Hop, Found) {
        (self.hop, self.found)
    }
}

impl LbApp {
    /// Returns a back end's neighbour, if its MAC address is resolved.
    pub(super) fn neighbour(&self, row: &Row) -> Option<&Neighbour> {
        self.neighbours.get(row.hop?)
    }

    /// Returns which neighbours are known.
    #[cfg(test)]
    pub fn app_known(&self) -> Vec<bool> {
        self.neighbours.iter().map(|one| one.mac().is_some()).collect()
    }

    /// Records which addresses the program was written with, corrects those that have changed since, and
    /// requests resolution of all neighbours.
    pub(super) fn begin_neighbours(&mut self, actions: &mut Vec<Action>) {
        let all = self.health.neighbours.clone();
        if all.hops.is_empty() {
            return;
        }
        let mut former = std::mem::take(&mut self.former);
        let neighbour = |(at, hop): (usize, &Hop)| {
            let written = all.mac(at);
            let unknown = || Err(format!("{} is being resolved", hop.address));
            // The predecessor may have newer information.
            let found = former.remove(hop).filter(|found| found.is_ok() || written.is_none());
            let found = found.unwrap_or_else(|| written.map_or_else(unknown, Ok));
            Neighbour {
                hop: hop.clone(),
                found,
                is_new: true,
                written: None,
                users: Vec::new(),
                lines: LoggedLines::default(),
            }
        };
        self.neighbours = all.hops.iter().enumerate().map(neighbour).collect();
        for (at, ways) in all.ways.iter().enumerate() {
            for (place, way) in ways.iter().enumerate() {
                let Some(way) = way else { continue };
                let row = &mut self.services[at].rows[place];
                row.hop = Some(way.hop);
                row.kept &= !all.is_settled() || all.mac(way.hop).is_some();
                self.neighbours[way.hop].users.push((at, place));
            }
        }
        for at in 0..self.neighbours.len() {
            // The program already has these addresses, so only differences from them are changes.
            if let Some(mac) = all.mac(at) {
                self.write(at, mac, &mut Vec::new());
            }
            if let Some(mac) = self.neighbours[at].mac() {
                self.write(at, mac, actions);
            }
        }
        actions.push(Action::Resolve(all.hops));
    }

    /// Takes over hops after a change in place: some are new, and some are gone.
    pub(super) fn replace_neighbours(&mut self, old: &Neighbours) {
        let all = self.health.neighbours.clone();
        if Arc::ptr_eq(&all.hops, &old.hops) {
            return;
        }
        let (mut gone, mut new) = (Vec::new(), Vec::new());
        for (at, hop) in all.hops.iter().enumerate() {
            match self.neighbours.get(at).map(|one| &one.hop) {
                Some(before) if before == hop => continue,
                Some(before) if !is_vacant(before) => gone.push(before.clone()),
                Some(_) | None => {}
            }
            let written = all.mac(at);
            let unknown = || Err(format!("{} is being resolved", hop.address));
            let neighbour = Neighbour {
                hop: hop.clone(),
                found: written.map_or_else(unknown, Ok),
                is_new: true,
                written,
                users: Vec::new(),
                lines: LoggedLines::default(),
            };
            match self.neighbours.get_mut(at) {
                Some(one) => *one = neighbour,
                None => self.neighbours.push(neighbour),
            }
            new.extend((!is_vacant(hop)).then(|| hop.clone()));
        }
        // A hop may have moved to another place.
        gone.retain(|hop| !new.contains(hop));
        all.forget(gone.iter());
        self.outdated.push(Action::ResolveOthers { more: new.into(), less: gone.into() });
    }

    /// Finds the neighbours of a service's back ends after these were replaced. `is_new` says which of them
    /// were not there before. A new one without a MAC address has no entries yet.
    pub(super) fn follow_neighbours(&mut self, at: usize, old: &[Row], is_new: &[bool]) {
        for hop in old.iter().filter_map(|row| row.hop) {
            if let Some(one) = self.neighbours.get_mut(hop) {
                one.users.retain(|(service, _)| *service != at);
            }
        }
        let ways = self.health.neighbours.ways.get(at).cloned();
        let rows = self.services[at].rows.iter_mut().zip(is_new);
        for (place, ((row, is_new), way)) in rows.zip(ways.iter().flat_map(|ways| ways.iter())).enumerate() {
            let Some(way) = way else { continue };
            row.hop = Some(way.hop);
            let Some(one) = self.neighbours.get_mut(way.hop) else { continue };
            one.users.push((at, place));
            let mut entries: Vec<_> = row.place.iter_mut().flat_map(|place| &mut place.entries).collect();
            let is_led = entries.iter().all(|(_, entry)| way.leads(entry));
            row.kept &= !is_new || is_led;
            for (pipe, entry) in &mut entries {
                let before = entry.clone();
                one.written.iter().for_each(|mac| way.lead(entry, *mac));
                if row.kept && is_led && *entry != before {
                    let entry = entry.clone();
                    self.outdated.push(Action::Change(Change::Update { pipe: *pipe, entry }));
                }
            }
        }
    }

    /// Requests confirmation of the neighbours of these back ends: their addresses may have moved to other
    /// MAC addresses. Once a server is down, the kernel's own timers suffice.
    pub(super) fn confirm(&self, users: &[(usize, usize)], actions: &mut Vec<Action>) {
        let hops = users.iter().filter_map(|(service, place)| self.services[*service].rows[*place].hop);
        let hops: BTreeSet<usize> = hops.filter(|hop| self.neighbours[*hop].mac().is_some()).collect();
        actions.extend(hops.into_iter().map(|hop| Action::Confirm(self.neighbours[hop].hop.clone())));
    }

    /// Records the outcome of a neighbour's resolution.
    pub(super) fn met(&mut self, hop: &Hop, found: &Found, now_ns: u64, actions: &mut Vec<Action>) {
        let Some(at) = self.neighbours.iter().position(|one| one.hop == *hop) else { return };
        let before = std::mem::replace(&mut self.neighbours[at].found, found.clone());
        let is_new = std::mem::take(&mut self.neighbours[at].is_new);
        if before == *found {
            return;
        }
        self.say(at, (&before, is_new), now_ns, actions);
        if let Ok(mac) = found {
            self.write(at, *mac, actions);
        }
        let users = self.neighbours[at].users.clone();
        if before.is_ok() == found.is_ok() {
            users.into_iter().for_each(|(service, place)| self.publish(service, place, now_ns));
        } else {
            users.into_iter().for_each(|(service, _)| self.evaluate_at(service, now_ns + TOGETHER_NS));
        }
    }

    /// Logs what happened to a neighbour, unless it was just found for the first time. A neighbour that keeps
    /// changing gets a few lines per minute.
    fn say(&mut self, at: usize, (before, is_new): (&Found, bool), now_ns: u64, actions: &mut Vec<Action>) {
        let one = &self.neighbours[at];
        let (address, port) = (one.hop.address, &one.hop.port);
        let mac = |mac: &Mac| write_mac(mac.number());
        let text = match (before, &one.found) {
            (Ok(from), Ok(to)) => format!("{address} at {port} has moved from {} to {}", mac(from), mac(to)),
            (Err(_), Ok(_)) if is_new => return,
            (Err(_), Ok(to)) => format!("{address} at {port} is {}", mac(to)),
            (Ok(_), Err(why)) => format!("{address} at {port} is no longer a neighbour: {why}"),
            (Err(_), Err(why)) if is_new => format!("{address} at {port} is not a neighbour: {why}"),
            (Err(_), Err(_)) => return,
        };
        let level = if one.found.is_ok() { Level::Info } else { Level::Warning };
        let more = self.neighbours[at].lines.add(now_ns);
        actions.extend(more.map(|more| Action::Say(level, format!("{text}{more}"))));
    }

    /// Writes a MAC address into the entries of its back ends; those in the program are updated.
    fn write(&mut self, at: usize, mac: Mac, actions: &mut Vec<Action>) {
        self.health.neighbours.note(at, Some(mac));
        let one = &mut self.neighbours[at];
        if one.written.replace(mac) == Some(mac) {
            return;
        }
        for &(service, place) in &one.users {
            let Some(way) = self.health.neighbours.ways[service][place] else { continue };
            let row = &mut self.services[service].rows[place];
            let kept = row.kept;
            for (pipe, entry) in row.place.iter_mut().flat_map(|place| &mut place.entries) {
                way.lead(entry, mac);
                if kept {
                    actions.push(Action::Change(Change::Update { pipe: *pipe, entry: entry.clone() }));
                }
            }
            // The entries of checks always exist.
            let probe = row.probe.and_then(|at| self.probes.get_mut(at));
            for (pipe, entry) in probe.into_iter().flat_map(|probe| &mut probe.entries) {
                way.lead(entry, mac);
                actions.push(Action::Change(Change::Update { pipe: *pipe, entry: entry.clone() }));
            }
        }
    }

    /// Records the MAC addresses for the next program: a lost neighbour keeps its last address as long as a
    /// back end has entries with it.
    pub(super) fn remember(&self, service: usize) {
        for hop in self.services[service].rows.iter().filter_map(|row| row.hop) {
            if self.neighbours[hop].found.is_err() {
                self.health.neighbours.note(hop, self.last(&self.neighbours[hop]));
            }
        }
    }

    /// Returns the MAC address of a neighbour, or the last one if a back end still has entries with it.
    fn last(&self, one: &Neighbour) -> Option<Mac> {
        let is_kept = |(service, place): &(usize, usize)| self.services[*service].rows[*place].kept;
        one.mac().or_else(|| one.written.filter(|_| one.users.iter().any(is_kept)))
    }

    /// Returns what another process must know about neighbours.
    pub(super) fn saved_neighbours(&self) -> impl Iterator<Item = Value> + '_ {
        let saved = |one: &Neighbour| {
            let mac = self.last(one)?;
            Some(json!({ "port": *one.hop.port, "neighbour": one.hop.address.to_string(), "mac": mac }))
        };
        self.neighbours.iter().filter_map(saved)
    }

    /// Takes over what another process has recorded about a neighbour.
    pub(super) fn resume_neighbour(&mut self, saved: &Value) {
        let read = || -> Option<(Hop, Mac)> {
            let address: IpAddr = saved["neighbour"].as_str()?.parse().ok()?;
            let mac: Mac = serde_json::from_value(saved["mac"].clone()).ok()?;
            Some((Hop { port: saved["port"].as_str()?.into(), address }, mac))
        };
        let known: HashMap<Hop, Found> = read().map(|(hop, mac)| (hop, Ok(mac))).into_iter().collect();
        self.former.extend(known);
    }
}
