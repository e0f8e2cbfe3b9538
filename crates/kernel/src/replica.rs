//! A program that runs in XDP on the ports' interfaces, with tables that a worker keeps equal to its own.

use crate::compile::{Exit, Sockets};
use crate::coverage::{Coverage, Why};
use crate::followed::FollowedFlows;
use crate::sys::{self, Loaded, Map, MapKind, PacketWait};
use crate::tables::Tables;
use crate::{LoadError, layout};
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use weir_program::change::EntryKey;
use weir_program::replica::{FlowReplica, Leads, ReplicaReport, Swept, TableReplica};
use weir_program::{Entry, GroupId, PipeId, PortId, Program, Verdict};

/// The parts of a port's interface, and of the program that selects frames there (`weir_bpf::XdpTake`), that
/// the program needs.
#[derive(Debug)]
pub struct PortLink {
    /// The interface's index.
    pub interface: u32,
    /// The longest frame that the interface sends, in bytes.
    pub frame_max: usize,
    /// The array of programs, whose program gets the selected frames.
    pub programs: OwnedFd,
    /// AF_XDP sockets by receive queue.
    pub sockets: OwnedFd,
    /// Counters by receive queue.
    pub counters: OwnedFd,
    /// The verdict for a frame whose queue has no socket.
    pub without_socket: OwnedFd,
}

/// Where the kernel's failures to send are counted.
pub trait UnsentFrames: fmt::Debug + Send + Sync {
    /// Returns how many frames that arrived at the interface `from` the interface `to` should have sent but
    /// dropped since the last call.
    fn take_unsent(&self, from: u32, to: u32) -> u64;

    /// Returns how many frames that arrived at the interface `from` were dropped since the last call because
    /// the interface of the port with this number refused to send them.
    fn take_unredirected(&self, from: u32, port: u32) -> u64;
}

/// A program in the kernel.
#[derive(Debug)]
pub struct Replica {
    pub(crate) tables: Tables,
    unsent: Option<Arc<dyn UnsentFrames>>,
    /// The programs of ports that have a link.
    ports: Vec<Option<PortProgram>>,
    /// The map of interfaces, to which programs refer as long as they run.
    _devices: Option<Map>,
    report: ReplicaReport,
    wait: Option<PacketWait>,
    /// Frames sent through each port: those to be sent, less those that could not be.
    sent: Vec<u64>,
    /// Why packets no longer use the tables.
    failed: bool,
}

#[derive(Debug)]
struct PortProgram {
    name: String,
    link: PortLink,
    loaded: Loaded,
    /// The program that leaves all frames to the engine, in place of the port's program.
    pause: Loaded,
}

impl Replica {
    /// Compiles a program, which `workers` workers run, for the ports that have a link, and loads it. Its
    /// entries have these leads; the tables are empty, and packets do not use them before
    /// [`TableReplica::start`].
    ///
    /// # Errors
    /// The kernel has no memory for the tables, or refuses a program.
    pub fn load(
        (program, workers): (Program, usize),
        leads: &[Leads],
        links: Vec<Option<PortLink>>,
        unsent: Option<Arc<dyn UnsentFrames>>,
    ) -> Result<Replica, LoadError> {
        let reaches: Vec<bool> = links.iter().map(Option::is_some).collect();
        let coverage = Coverage::of(&program, leads, &reaches);
        let frame_max = links.iter().flatten().map(|link| link.frame_max).min().unwrap_or(0);
        let length_max = frame_max.saturating_sub(layout::growth(&program));
        let tables = Tables::new((program, workers), coverage)?;
        let devices = devices(&links)?;
        let maps = tables.maps(Some(&devices));
        let mut ports = Vec::new();
        for (at, link) in links.into_iter().enumerate() {
            let Some(link) = link else {
                ports.push(None);
                continue;
            };
            let sockets = Sockets {
                sockets: link.sockets.as_raw_fd(),
                counters: link.counters.as_raw_fd(),
                without_socket: link.without_socket.as_raw_fd(),
            };
            let exit = Exit { sockets: Some(sockets), length_max };
            let code = tables.compile(&maps, PortId(at as u16), &exit);
            let name = tables.program().ports[at].name.clone();
            let loaded = Loaded::xdp("weir_program", &code.instructions)?;
            let pause = tables.compile_pause(&maps, PortId(at as u16), &exit);
            let pause = Loaded::xdp("weir_pause", &pause.instructions)?;
            ports.push(Some(PortProgram { name, link, loaded, pause }));
        }
        let wait = PacketWait::new();
        let wait = wait.map_err(|error| LoadError::Map { what: "pauses".into(), bytes: 8, error })?;
        let mut replica = Replica::without_links(tables);
        (replica.unsent, replica.ports, replica._devices) = (unsent, ports, Some(devices));
        replica.wait = Some(wait);
        Ok(replica)
    }

    /// A replica whose packets arrive at no interface.
    pub(crate) fn without_links(tables: Tables) -> Replica {
        let (decided, sent) = (vec![0; tables.program().ports.len()], vec![0; tables.program().ports.len()]);
        let report = ReplicaReport { decided, ..ReplicaReport::default() };
        Replica {
            tables,
            unsent: None,
            ports: Vec::new(),
            _devices: None,
            report,
            wait: None,
            sent,
            failed: false,
        }
    }

    /// Returns the parts of the program that compile.
    #[must_use]
    pub fn coverage(&self) -> &Coverage {
        self.tables.coverage()
    }

    /// Leaves packets to the engine while a table is written as a whole. Returns true if packets used the
    /// tables before.
    fn pause_for(&mut self, pipe: PipeId) -> bool {
        let pauses = self.report.active && self.tables.has_rules(pipe);
        if pauses {
            self.pause();
            self.wait_for_packets();
        }
        pauses
    }

    /// Returns how many frames were counted as sent through each port without being sent.
    fn take_unsent(&self) -> Vec<(PortId, u64)> {
        let Some(unsent) = &self.unsent else { return Vec::new() };
        let mut all = Vec::new();
        let interface = |port: &Option<PortProgram>| port.as_ref().map(|port| port.link.interface);
        for (at, to) in (0..).zip(&self.ports) {
            let Some(to) = interface(to) else { continue };
            let lost = |from| unsent.take_unsent(from, to) + unsent.take_unredirected(from, u32::from(at));
            let frames: u64 = self.ports.iter().filter_map(interface).map(lost).sum();
            if frames > 0 {
                all.push((PortId(at), frames));
            }
        }
        all
    }

    /// Leaves all packets to the engine from now on.
    fn fail(&mut self, error: &dyn std::fmt::Display, stale: bool) {
        self.pause();
        self.failed = true;
        self.report.stale |= stale;
        self.report.obstacle.get_or_insert_with(|| error.to_string());
    }
}

/// The size of a map of interfaces, which must be at least 1.
fn devices(links: &[Option<PortLink>]) -> Result<Map, LoadError> {
    let error = |error| LoadError::Map { what: "ports".into(), bytes: 4 * links.len(), error };
    let map = Map::create(MapKind::Devices, 4, 4, links.len().max(1) as u32).map_err(error)?;
    for (at, link) in (0_u32..).zip(links) {
        let Some(link) = link else { continue };
        map.update(&at.to_ne_bytes(), &link.interface.to_ne_bytes()).map_err(error)?;
    }
    Ok(map)
}

impl TableReplica for Replica {
    fn put(&mut self, pipe: PipeId, entry: &Entry) {
        let paused = self.pause_for(pipe);
        match self.tables.put(pipe, entry) {
            Ok(is_known) => self.report.stale |= !is_known,
            Err(error) => {
                let stale = matches!(error, crate::tables::TableError::NewLead { .. });
                self.fail(&error, stale);
            }
        }
        if paused {
            self.start();
        }
    }

    fn remove(&mut self, pipe: PipeId, key: &EntryKey) {
        let paused = self.pause_for(pipe);
        if let Err(error) = self.tables.remove(pipe, key) {
            self.fail(&error, false);
        }
        if paused {
            self.start();
        }
    }

    fn publish(&mut self, group: GroupId, buckets: &[u16]) {
        if !self.tables.publish(group, buckets) {
            self.fail(&"the number of a group's buckets has changed", true);
        }
    }

    fn start(&mut self) {
        if self.failed || self.report.active {
            return;
        }
        if let Err(error) = self.tables.write_rules() {
            return self.fail(&error, true);
        }
        self.tables.flows().into_iter().for_each(|flows| flows.begin_epoch());
        for port in self.ports.iter().flatten() {
            if let Err(error) = sys::set_program(port.link.programs.as_fd(), &port.loaded) {
                let error = LoadError::Port { port: port.name.clone(), error };
                return self.fail(&error, false);
            }
        }
        self.report.active = true;
    }

    fn pause(&mut self) {
        for port in self.ports.iter().flatten() {
            if let Err(error) = sys::replace_program(port.link.programs.as_fd(), &port.loaded, &port.pause) {
                let error = LoadError::Port { port: port.name.clone(), error };
                self.report.obstacle = Some(error.to_string());
            }
        }
        self.report.active = false;
    }

    fn wait_for_packets(&mut self) {
        if let Some(Err(error)) = self.wait.as_ref().map(PacketWait::wait) {
            self.report.obstacle = Some(format!("cannot wait for packets: {error}"));
            self.failed = true;
        }
    }

    fn sweep(&mut self, all: bool, found: &mut dyn FnMut(Swept<'_>)) {
        // This comes before the counts, which already include frames that were not sent.
        let unsent = self.take_unsent();
        let ports = self.tables.program().ports.len();
        let (report, sent) = (&mut self.report, &mut self.sent);
        let mut decided = vec![0; ports];
        let mut keep = |swept: Swept<'_>| {
            if let Swept::Decided(port, verdict, count) = swept {
                // Where tests plant a fault, the program may count anything.
                let add = |sum: &mut u64| *sum = sum.wrapping_add(count.packets);
                add(&mut decided[port.index()]);
                if let Verdict::Transmit(port) = verdict {
                    add(&mut sent[port.index()]);
                }
            }
            found(swept);
        };
        self.tables.sweep(all, &mut keep, |port, why, packets| add_left(report, (why, port), packets, ports));
        report.decided.iter_mut().zip(decided).for_each(|(sum, more)| *sum = sum.wrapping_add(more));
        for (port, frames) in unsent {
            // The kernel does not say which program's frames it has not sent. Frames of another daemon, which
            // this one is about to succeed, are not among those that this program has sent.
            let frames = frames.min(self.sent[port.index()]);
            self.sent[port.index()] -= frames;
            found(Swept::Unsent(port, frames));
        }
    }

    fn report(&self) -> ReplicaReport {
        self.report.clone()
    }

    fn flows(&self) -> Option<Box<dyn FlowReplica>> {
        let table = self.tables.flows()?.share();
        Some(Box::new(FollowedFlows::new(table, Arc::clone(self.tables.followed_entries()))))
    }
}

/// Adds packets that were left to the engine.
fn add_left(report: &mut ReplicaReport, (why, port): (Why, PortId), packets: u64, ports: usize) {
    let name = why.explanation();
    let row = match report.left.iter().position(|one| one.0 == name) {
        Some(row) => row,
        None => {
            report.left.push((name, vec![0; ports]));
            report.left.len() - 1
        }
    };
    report.left[row].1[port.index()] += packets;
}

impl Drop for Replica {
    /// Stops the program: it must not run when nothing sweeps its counts.
    fn drop(&mut self) {
        self.pause();
        for port in self.ports.iter().flatten() {
            // If this fails, the program that is left sends frames to the sockets, as if there were none.
            let _ = sys::clear_program(port.link.programs.as_fd(), &port.pause);
        }
    }
}
