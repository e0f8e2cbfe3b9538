//! The successor's side.

use super::super::fleet::Workers;
use super::super::inherited::Inherited;
use super::super::interfaces::Interfaces;
use super::super::routes::Handed;
use super::super::systemd::own_cgroup;
use super::super::{Daemon, Weights};
use super::sockets::{Offered, Offering, SOCKETS, adopted_json, of_interface, read_left};
use super::wire::{Message, PATIENCE, Wire};
use super::{PROTOCOL, ROWS, dropped_by};
use crate::config::{Plan, PortConfig, PortKind};
use anyhow::{Context, Result, anyhow, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{info, warn};
use weir_app::clock::Clock;
use weir_app::edits::{self, Edits};
use weir_app::kind::Kind;
use weir_control::answer::Lines;
use weir_control::{Entries, HandOver, Request};
use weir_engine::batch::{DecidedFor, FlowPage, FlowStock, TakenOver};
use weir_engine::worker::Command;
use weir_packet::DropReason;
use weir_port::xdp::{Handover, XdpInterface};
use weir_program::change::Changes;
use weir_program::{Pipe, PipeId};

/// Drops that are expected of a worker that receives before all workers have their sockets and memory.
const OF_A_START: [DropReason; 3] =
    [DropReason::InterfaceGone, DropReason::PoolEmpty, DropReason::PortRemoved];

/// A running daemon that is about to be replaced.
pub struct Takeover {
    wire: Wire,
    socket: PathBuf,
    hello: Value,
    offering: Offering,
    offered: Offered,
    flows: HashMap<String, TakenOver>,
}

impl Takeover {
    /// Asks the daemon that listens on `socket` to hand over to this process.
    ///
    /// # Errors
    /// Fails if there is no such daemon, or if it refuses.
    pub fn begin(socket: &Path) -> Result<Takeover> {
        let path = socket.with_extension(format!("{}.successor", std::process::id()));
        let listener = UnixListener::bind(&path)
            .with_context(|| format!("cannot listen on {} for the handover", path.display()))?;
        let removed = Removed(&path);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        let text = path.to_str().context("the control socket's path is not UTF-8")?.to_string();
        let request = Request::HandOver(HandOver { socket: text, sockets: Some(SOCKETS) });
        let asked: Result<Value> = weir_control::ask(socket, &request);
        asked.context("the running weir refuses to hand over")?;
        let mut comes = [PollFd::new(&listener, PollFlags::IN)];
        let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        if poll(&mut comes, Some(&patience))? == 0 {
            bail!("the running weir has not called back on {}", path.display());
        }
        let (stream, _) = listener.accept()?;
        drop(removed);
        let mut wire = Wire::new(stream)?;
        let hello = wire.receive()?;
        if !hello.is("hello") || hello.head["protocol"] != PROTOCOL {
            bail!(
                "the running weir has version {}, whose handover is incompatible: stop it, then start this \
                 one",
                hello.head["version"].as_str().unwrap_or("unknown")
            );
        }
        if let Some(why) = outside(hello.head["cgroup"].as_str(), own_cgroup().as_deref()) {
            bail!("{why}");
        }
        let has_sockets = hello.head["sockets"] == SOCKETS;
        let offering = if has_sockets { Offering::receive(&mut wire)? } else { Offering::default() };
        let (offered, flows) = (Offered::default(), HashMap::new());
        Ok(Takeover { wire, socket: socket.into(), hello: hello.head, offering, offered, flows })
    }

    /// Assigns the sockets that the old daemon offers to prepared interfaces, and returns what must be known
    /// about them.
    pub fn offer(&mut self, interfaces: &Interfaces) -> &mut Offered {
        self.offered = Offered::give(std::mem::take(&mut self.offering), interfaces);
        &mut self.offered
    }

    /// Returns the old daemon's clock, so that times of flows keep their meaning.
    pub fn clock(&self) -> Clock {
        let origin_ns = self.hello["clock_ns"].as_i64().unwrap_or_default();
        // The clocks of older daemons begin at their start.
        Clock::since(origin_ns, self.hello["started_ns"].as_u64().unwrap_or_default())
    }

    /// Returns true if the old daemon has the interface of this port.
    pub fn has(&self, port: &PortConfig) -> bool {
        let PortKind::Xdp(xdp) = &port.kind else { return false };
        let has = |key: &str, what: Value| self.hello[key].as_array().map(|all| all.contains(&what));
        // Older daemons send only the names.
        let by_index = port.nic.as_ref().and_then(|nic| has("indices", nic.index.into()));
        by_index.or_else(|| has("interfaces", xdp.interface.as_str().into())).unwrap_or_default()
    }

    /// Returns the changes that were made to the old daemon's configuration at run time, if any.
    pub fn edits(&self, kinds: &[Kind]) -> Option<Arc<dyn Edits>> {
        edits::read(kinds, &self.hello["edits"]).filter(|edits| edits.count() > 0)
    }

    /// Applies the weights that were set at run time, for targets that still exist, and returns them.
    pub fn set_weights(&self, plan: &mut Plan) -> Weights {
        let mut weights = Weights::default();
        for one in self.hello["weights"].as_array().into_iter().flatten() {
            let (Some(group), Some(target), Some(weight)) =
                (one[0].as_str(), one[1].as_str(), one[2].as_u64())
            else {
                continue;
            };
            let Some(id) = plan.program.group_named(group) else { continue };
            let targets = &mut plan.program.groups[id.index()].targets;
            let Some(at) = targets.iter().position(|one| one.name == target) else { continue };
            Arc::make_mut(targets)[at].weight = weight as u32;
            weights.insert((id, at as u16), weight as u32);
        }
        weights
    }

    /// Adds the entries that were added at run time, as far as the new program accepts them.
    pub fn add_entries(&self, daemon: &mut Daemon) -> Result<()> {
        let plan = daemon.plan.clone();
        let mut reader = crate::config::RunTime::new(&plan.program, &plan.attachments);
        let (mut changes, mut refused) = (Vec::new(), Vec::new());
        // Apps add their own entries again.
        let apps: Vec<String> = plan.apps.running().iter().map(|app| format!("{}/", app.name())).collect();
        let of_nobody = |pipe: &&Pipe| !apps.iter().any(|app| pipe.name.starts_with(app.as_str()));
        for pipe in plan.program.pipes.iter().filter(of_nobody) {
            let mut from = Some(0);
            while let Some(place) = from {
                let request = Entries { pipe: pipe.name.clone(), from: place, all: false };
                // The old program may not have the pipe.
                let page: Result<Lines> = weir_control::ask(&self.socket, &Request::Entries(request));
                let Ok(page) = page else { break };
                for line in &page.entries {
                    match reader.line(line) {
                        Some(Ok(change)) => changes.push(change),
                        Some(Err(report)) => refused.push(report.to_string()),
                        None => {}
                    }
                }
                from = page.next;
            }
        }
        let count = changes.len();
        if count > 0 {
            let changes = Changes::new(changes).map_err(|why| anyhow!("{why}"))?;
            let made = daemon.fleet.change_all(changes, daemon.clock);
            made?.context("entries of the run time")?;
            info!("took over {count} entries that were added at run time");
        }
        if let Some(first) = refused.first() {
            warn!("{} run-time entries do not fit this program, for example: {first}", refused.len());
        }
        Ok(())
    }

    /// Takes over the existing flows, until the old daemon is ready to stop.
    pub fn take_flows(&mut self, workers: &Workers) -> Result<()> {
        self.take_until("ready", workers).map(drop)
    }

    /// Lets the old daemon stop, and continues with what it leaves. Returns the states of its apps, and the
    /// sockets that it inherited.
    pub fn switch_over(&mut self, daemon: &mut Daemon) -> Result<(Value, Inherited)> {
        let sockets = adopted_json(&daemon.interfaces);
        self.wire.send(&json!({ "say": "go", "sockets": sockets }), &[], &[])?;
        let workers = daemon.fleet.questioner();
        let end = self.take_until("end", &workers)?;
        workers.ask_all(|_, answer| Command::ResumeFlows(None, answer))?;
        let Message { head, descriptors, bytes } = end;
        let left = read_left(&head["left"], &bytes).context("cannot parse the old weir's sockets")?;
        self.offered.return_chunks(&left, &daemon.interfaces)?;
        let mut all = Vec::new();
        let mut descriptors = descriptors.into_iter();
        for one in head["interfaces"].as_array().into_iter().flatten() {
            let (Some(index), Some(native), Some(link), Some(sockets)) =
                (one[0].as_u64(), one[1].as_bool(), descriptors.next(), descriptors.next())
            else {
                bail!("cannot parse the old weir's interfaces");
            };
            let (index, zero_copy) = (index as u32, one[2].as_bool());
            let left = of_interface(&left, index);
            all.push(Handover { index, native, zero_copy, link, sockets, left });
        }
        let names = head["listeners"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let listeners = Inherited::from(names.map(str::to_string).zip(descriptors.by_ref()));
        let device = descriptors.next().filter(|_| head["routes"]["device"] == true);
        if let Err(error) = daemon.routes.adopt(Handed::read(&head["routes"]["state"]), device) {
            warn!("the routes to services are withdrawn for a moment: their device cannot be used: {error}");
        }
        let taken = daemon.interfaces.take_over(all)?;
        begin_to_receive(&workers, &daemon.interfaces)?;
        for (pipe, flows) in &self.flows {
            let TakenOver { flows, ended, unreadable } = flows;
            info!("pipe {pipe}: {flows} flows continue, {ended} ended, {unreadable} could not be read");
        }
        info!("took over {taken} interfaces with {} open sockets", left.len());
        Ok((head["apps"].clone(), listeners))
    }

    /// Replaces the old daemon's XDP programs, and lets it end. This takes tens of milliseconds, during which
    /// apps already run.
    pub fn finish(mut self, daemon: &mut Daemon) -> Result<()> {
        daemon.interfaces.replace()?;
        let reports = daemon.fleet.ask_all(|_, answer| Command::Report(answer))?;
        let dropped = reports.iter().map(|report| dropped_by(&report.ledger, &OF_A_START)).sum::<u64>();
        self.wire.send(&json!({ "say": "done", "dropped": dropped }), &[], &[])
    }

    /// Takes over flows until the message with this word.
    fn take_until(&mut self, word: &str, workers: &Workers) -> Result<Message> {
        let stocks = workers.ask_all(|_, answer| Command::FlowStocks(answer))?;
        let stocks = stocks.into_iter().next().unwrap_or_default();
        loop {
            let message = self.wire.receive()?;
            if message.is(word) {
                return Ok(message);
            }
            if !message.is("flows") {
                bail!("unexpected message from the old weir: `{}`", message.head["say"]);
            }
            self.take_page(message, &stocks, workers)?;
        }
    }

    fn take_page(
        &mut self,
        message: Message,
        stocks: &[(PipeId, FlowStock)],
        workers: &Workers,
    ) -> Result<()> {
        let Message { head, bytes, .. } = message;
        let (name, keeps) = (head["pipe"].as_str().unwrap_or_default(), head["keeps"].as_str());
        let like = |(_, stock): &&(PipeId, FlowStock)| stock.pipe == name && Some(&*stock.keeps) == keeps;
        let sums = self.flows.entry(name.to_string()).or_default();
        let length = head["length"].as_u64().unwrap_or_default().max(1) as usize;
        let Some((pipe, _)) = stocks.iter().find(like) else {
            sums.ended += bytes.len() / length;
            return Ok(());
        };
        let entries = head["entries"].as_array().into_iter().flatten().map(decided_for);
        let entries = entries.collect::<Option<Vec<DecidedFor>>>();
        let entries = entries.context("cannot parse the old weir's flows")?;
        for records in bytes.chunks(length * ROWS as usize) {
            let page = FlowPage { entries: entries.clone(), records: records.into(), length, next: None };
            let page = Arc::new(page);
            let all = workers
                .ask_all(|_, answer| Command::ResumeFlows(Some((*pipe, Arc::clone(&page))), answer))?;
            let mut sum = TakenOver::default();
            for one in all {
                sum.unreadable = one.unreadable;
                sum.flows += one.flows;
                sum.ended += one.ended;
            }
            sums.add(sum);
        }
        Ok(())
    }
}

/// Returns why a process in this control group cannot replace one that systemd runs in `unit`.
fn outside(unit: Option<&str>, own: Option<&str>) -> Option<String> {
    let (unit, own) = unit.zip(own).filter(|(unit, own)| unit != own)?;
    Some(format!(
        "systemd runs the running weir as a service, in the control group {unit}, but this process is in \
         {own}, so systemd would lose track of it. Start it in that control group, or stop the service first"
    ))
}

/// Lets the workers receive once all their ports have their sockets and memory. A worker that started before
/// another was ready would lose the frames that it transmits through the other's ports or hands to it.
fn begin_to_receive(workers: &Workers, interfaces: &Interfaces) -> Result<()> {
    let are_ready = || interfaces.all().all(XdpInterface::has_obeyed);
    // A sleeping worker notices its sockets when it is asked for something.
    let wake = || workers.ask_all(|_, answer| Command::Report(answer)).map(drop);
    after_all(are_ready, PATIENCE, wake, || workers.ask_all(|_, answer| Command::Receive(answer)).map(drop))
}

/// Wakes workers until all are ready, and only then releases them.
fn after_all(
    are_ready: impl Fn() -> bool,
    patience: Duration,
    wake: impl Fn() -> Result<()>,
    go: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let until = Instant::now() + patience;
    while !are_ready() {
        if Instant::now() > until {
            bail!("the workers cannot use the old weir's sockets");
        }
        wake()?;
    }
    go()
}

/// Reads the entry for which flows of a page were decided. `None` if it is not understood.
pub(super) fn decided_for(entry: &Value) -> Option<DecidedFor> {
    match entry {
        Value::Null => Some(DecidedFor::Default),
        Value::Array(names) => match &names[..] {
            [Value::String(group), Value::String(target)] => {
                Some(DecidedFor::Target { group: group.clone(), target: target.clone() })
            }
            _ => None,
        },
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => None,
    }
}

/// Removes a file when it is dropped.
struct Removed<'a>(&'a Path);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn workers_receive_after_the_last_of_them_is_ready() {
        let (unready, said) = (RefCell::new(3), RefCell::new(Vec::new()));
        let wake = || {
            *unready.borrow_mut() -= 1;
            said.borrow_mut().push("wake");
            Ok(())
        };
        let go = || {
            said.borrow_mut().push("go");
            Ok(())
        };
        after_all(|| *unready.borrow() == 0, PATIENCE, wake, go).unwrap();
        assert_eq!(*said.borrow(), ["wake", "wake", "wake", "go"]);
    }

    #[test]
    fn workers_of_which_one_never_gets_ready_do_not_receive() {
        let go = || panic!("it lets them go");
        let error = after_all(|| false, Duration::ZERO, || Ok(()), go).unwrap_err();
        assert!(error.to_string().contains("cannot use the old weir's sockets"));
        let error = after_all(|| false, PATIENCE, || bail!("a worker has ended"), go).unwrap_err();
        assert_eq!(error.to_string(), "a worker has ended");
    }

    #[test]
    fn what_flows_were_decided_for_is_read_or_refused() {
        let target = DecidedFor::Target { group: "g".into(), target: "t".into() };
        for (said, wanted) in [
            (json!(null), Some(DecidedFor::Default)),
            (json!(["g", "t"]), Some(target)),
            (json!([]), None),
            (json!(["g"]), None),
            (json!(["g", 7]), None),
            (json!(["g", "t", "u"]), None),
            (json!("default"), None),
            (json!({}), None),
        ] {
            assert_eq!(decided_for(&said), wanted, "{said}");
        }
    }
}
