//! The old daemon's side: it transfers its state to its successor while frames are still forwarded, and hands
//! over its interfaces when the successor is ready.

use super::super::fleet::Workers;
use super::super::inherited::Inherited;
use super::super::{Daemon, Doorbell};
use super::sockets::{Offering, QueuesOf, SOCKETS, left_json, read_adopted};
use super::wire::Wire;
use super::{PROTOCOL, ROWS, ROWS_AT_REST, dropped_by};
use crate::config::{PortConfig, PortKind};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};
use tracing::{info, warn};
use weir_engine::batch::{DecidedFor, FlowPage, FlowStock};
use weir_engine::worker::Command;
use weir_packet::DropReason;
use weir_port::XdpInterface;
use weir_port::xdp::Handover;
use weir_program::{GroupId, PipeId, PortId};

/// How long workers may take to drain the rings between them; they need a few breaths.
const SILENCE: Duration = Duration::from_secs(1);

/// How long the successor may take after `go`, while neither weir forwards frames.
const FINISH: Duration = Duration::from_secs(10);

/// A successor that is receiving our state.
pub struct PendingHandover(Receiver<Result<ReadyHandover>>);

/// A successor that is ready for the rest.
pub struct ReadyHandover {
    wire: Wire,
    stocks: Vec<(PipeId, FlowStock)>,
    /// When the first page was written, in milliseconds of the workers' clock.
    since_ms: u32,
    /// The queues whose sockets the successor adopts.
    adopted: QueuesOf,
}

impl PendingHandover {
    /// Refuses a client's change, because the successor would not know about it.
    pub fn refuse(&self) -> Result<()> {
        bail!("another weir is taking over: try again")
    }
}

impl Daemon {
    /// Begins to hand over to the daemon that listens on `path`, which asks for sockets in version `sockets`
    /// of the protocol.
    pub(crate) fn prepare_handover(&mut self, path: &str, sockets: Option<u64>) -> Result<()> {
        if self.handover.is_some() {
            bail!("another weir is already taking over");
        }
        if self.plan.ports.iter().any(|port| matches!(port.kind, PortKind::Dpdk { .. })) {
            bail!("`dpdk` ports cannot be taken over: stop this weir, then start the other");
        }
        if let Some(port) = self.plan.ports.iter().find(|port| !matches!(port.kind, PortKind::Xdp(_))) {
            bail!("only `xdp` ports can be taken over, and `{}` is not one", port.name);
        }
        let offering = (sockets == Some(SOCKETS)).then(|| Offering::of(&self.interfaces));
        let hello = json!({
            "say": "hello", "protocol": PROTOCOL, "version": env!("CARGO_PKG_VERSION"),
            "sockets": offering.as_ref().map(|_| SOCKETS),
            "clock_ns": self.clock.origin_ns(), "started_ns": self.clock.started_ns(),
            "interfaces": self.interface_names(),
            "indices": self.interfaces.all().map(XdpInterface::index).collect::<Vec<_>>(),
            "weights": self.weights_by_name(), "edits": self.plan.edits.json(),
            "cgroup": self.systemd.unit_cgroup(),
        });
        let (workers, path) = (self.fleet.questioner(), PathBuf::from(path));
        let since_ms = (self.clock.now_ns() / 1_000_000) as u32;
        let (sender, ready) = channel();
        let doorbell: Doorbell = self.doorbell.clone();
        let transfer = move || {
            let outcome = transfer(&path, (&hello, offering), &workers, since_ms);
            let _ = sender.send(outcome);
            doorbell.ring();
        };
        std::thread::Builder::new().name("weir-takeover".into()).spawn(transfer)?;
        self.handover = Some(PendingHandover(ready));
        info!("another weir is taking over");
        Ok(())
    }

    /// Returns the successor once it is ready. If it has given up, nothing changes.
    pub(crate) fn ready_handover(&mut self) -> Option<ReadyHandover> {
        let ready = match self.handover.as_ref()?.0.try_recv() {
            Ok(ready) => ready,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => Err(anyhow::anyhow!("its thread has ended")),
        };
        self.handover = None;
        ready.inspect_err(|error| warn!("the other weir did not take over: {error:#}")).ok()
    }

    /// Returns the names of the ports' interfaces.
    fn interface_names(&self) -> Value {
        let name = |port: &PortConfig| match &port.kind {
            PortKind::Xdp(xdp) => Some(Value::from(xdp.interface.clone())),
            _ => None,
        };
        self.plan.ports.iter().filter_map(name).collect()
    }

    /// Returns weights that were set at run time: group, target, weight.
    fn weights_by_name(&self) -> Value {
        let groups = &self.plan.program.groups;
        let name = |((group, target), weight): (&(GroupId, u16), &u32)| {
            let group = groups.get(group.index())?;
            Some(json!([group.name, group.targets.get(usize::from(*target))?.name, weight]))
        };
        self.weights.iter().filter_map(name).collect()
    }

    /// Stops receiving, and sends the successor the changes since then, the interfaces, and the sockets that
    /// other processes opened for this daemon (`inherited`), whose clients wait in their backlogs. The
    /// program in the kernel handles frames until that of the successor replaces it.
    pub(crate) fn hand_over_to(mut self, ready: ReadyHandover, inherited: Inherited) -> Result<()> {
        let ReadyHandover { mut wire, stocks, since_ms, adopted } = ready;
        let mut systemd = std::mem::take(&mut self.systemd);
        let ports = (0..self.plan.ports.len()).map(|at| PortId(at as u16));
        let handed: Vec<Handover> = ports.filter_map(|port| self.interfaces.of(port)?.hand_over()).collect();
        let interfaces = std::mem::take(&mut self.interfaces);
        for (index, queues) in &adopted {
            interfaces.all().filter(|one| one.index() == *index).for_each(|one| one.leave_open(queues));
        }
        let workers = self.fleet.questioner();
        quiesce(&workers)?;
        for (pipe, stock) in &stocks {
            let since = (!stock.has_pool).then_some(since_ms);
            send_flows(&mut wire, &workers, (*pipe, stock), (since, ROWS_AT_REST))?;
        }
        let apps = self.host.running.states();
        self.stop_but_workers()?;
        let list: Vec<Value> =
            handed.iter().map(|one| json!([one.index, one.native, one.zero_copy])).collect();
        let links = handed.iter().flat_map(|one| [one.link.as_fd(), one.sockets.as_fd()]);
        let (names, sockets): (Vec<_>, Vec<_>) = inherited.all().unzip();
        // A successor that does not know routes ignores the last descriptor.
        let (routes, device) = self.routes.hand_over();
        let descriptors: Vec<_> = links.chain(sockets).chain(device).collect();
        let routes = json!({ "device": device.is_some(), "state": routes.json() });
        let left: Vec<_> =
            interfaces.all().flat_map(|one| one.left().into_iter().map(|left| (one.index(), left))).collect();
        let (left, bytes) = left_json(&left);
        let end = json!({
            "say": "end", "interfaces": list, "left": left, "apps": apps, "listeners": names,
            "routes": routes,
        });
        let sent = wire.set_patience(FINISH).and_then(|()| wire.send(&end, &bytes, &descriptors));
        let done = sent.and_then(|()| wire.receive()).context("the other weir has not taken over");
        match &done {
            // The successor may hold all interfaces, which no other process can use while it lives.
            Err(_) => wire.kill_peer(),
            Ok(_) => wire.peer().into_iter().for_each(|peer| systemd.succeeded_by(peer)),
        }
        // Until now, the program in the kernel has decided frames.
        let (ledger, balanced, flows) = self.stop()?;
        let stopped = dropped_by(&ledger, &[DropReason::Stopped]);
        flows.into_iter().for_each(|words| info!("{words}"));
        info!("{}", super::super::farewell(&ledger, balanced));
        let done = done?;
        if !done.is("done") {
            bail!("the other weir has not taken over");
        }
        let dropped = interfaces.held_back() + stopped + done.head["dropped"].as_u64().unwrap_or_default();
        info!("another weir has taken over; {dropped} frames were dropped in the meantime");
        Ok(())
    }
}

/// Stops the workers from receiving, and waits until each has taken the frames that other workers have handed
/// to it, because frames still between two workers when they stop are dropped.
fn quiesce(workers: &Workers) -> Result<()> {
    workers.ask_all(|_, answer| Command::Quiesce(answer))?;
    let until = Instant::now() + SILENCE;
    while Instant::now() < until {
        let reports = workers.ask_all(|_, answer| Command::Report(answer))?;
        if reports.iter().all(|report| report.between == 0) {
            break;
        }
    }
    Ok(())
}

/// Sends our state to the successor, and waits until the successor is ready for the rest.
fn transfer(
    path: &std::path::Path,
    (hello, offering): (&Value, Option<Offering>),
    workers: &Workers,
    since_ms: u32,
) -> Result<ReadyHandover> {
    let stream = UnixStream::connect(path).context("it is not listening")?;
    let mut wire = Wire::new(stream)?;
    wire.send(hello, &[], &[])?;
    offering.map_or(Ok(()), |offering| offering.send(&mut wire))?;
    let stocks = workers.ask_all(|_, answer| Command::FlowStocks(answer))?;
    let stocks = stocks.into_iter().next().unwrap_or_default();
    for (pipe, stock) in stocks.iter().filter(|(_, stock)| !stock.has_pool) {
        send_flows(&mut wire, workers, (*pipe, stock), (None, ROWS))?;
    }
    wire.send(&json!({ "say": "ready" }), &[], &[])?;
    let answer = wire.receive()?;
    if !answer.is("go") {
        bail!("{}", answer.head["say"].as_str().unwrap_or("this weir does not understand its message"));
    }
    Ok(ReadyHandover { wire, stocks, since_ms, adopted: read_adopted(&answer.head["sockets"]) })
}

/// Sends a pipe's flows, page by page.
fn send_flows(
    wire: &mut Wire,
    workers: &Workers,
    (pipe, stock): (PipeId, &FlowStock),
    (since_ms, rows): (Option<u32>, u32),
) -> Result<()> {
    let mut from = Some(0);
    while let Some(row) = from {
        let pages = workers.ask_all(|_, answer| Command::FlowRecords(pipe, (row, rows), since_ms, answer))?;
        from = pages.iter().filter_map(|page| page.next).min();
        for page in pages.iter().filter(|page| !page.records.is_empty()) {
            wire.send(&head(stock, page), &page.records, &[])?;
        }
    }
    Ok(())
}

fn head(stock: &FlowStock, page: &FlowPage) -> Value {
    let entry = |decided: &DecidedFor| match decided {
        DecidedFor::Default => Value::Null,
        DecidedFor::Target { group, target } => json!([group, target]),
    };
    json!({
        "say": "flows", "pipe": stock.pipe, "keeps": stock.keeps, "length": page.length,
        "entries": page.entries.iter().map(entry).collect::<Vec<_>>(),
    })
}
