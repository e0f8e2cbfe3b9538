//! The daemon's answers: one function per kind of request, JSON in and JSON out. The client converts them to
//! text.

use super::collector::{self, Sum, Totals};
use super::reload::Ticket;
use super::{Daemon, durations, live};
use crate::config::{self, Plan};
use crate::explain::decision;
use ::apps::{KINDS, RequestId, buckets};
use anyhow::{Context, Result, anyhow, bail};
use engine::batch::SwapReport;
use engine::change::Change;
use engine::check::WEIGHT_MAX;
use engine::delta::DeltaReason;
use engine::program::{Entry, Fill, Group, GroupId, PipeId, PipeKind, PortId};
use engine::snapshot::{Count, FlowAccount};
use engine::worker::{Command, Inject, Injected, PipeReport, Report};
use packet::{DropReason, Ledger};
use serde_json::{Map, Value, json};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

/// What can be shown, besides the tables of apps.
const SHOWN: [&str; 11] =
    ["all", "ports", "pipes", "entries", "flows", "deltas", "groups", "apps", "counters", "drops", "ledger"];

/// Returns everything that can be shown.
pub fn shown() -> impl Iterator<Item = &'static str> {
    SHOWN.into_iter().chain(KINDS.iter().filter_map(|kind| kind.table))
}

/// How long a request may take to answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);

/// The longest time that a client may ask to wait for the end of a reload: less than the HTTP server waits.
const RELOAD_PATIENCE: Duration = Duration::from_secs(20);

/// The default number of flows shown.
const FLOWS: usize = 100;

/// The answer to a request.
pub enum Reply {
    /// The answer is there.
    Now(Value),
    /// The answer will come.
    Later(Later),
}

/// An answer that another part of weir gives.
pub enum Later {
    /// A worker answers when the frame has been sent.
    Injected(Receiver<Injected>),
    /// An app answers.
    App(RequestId),
    /// A reload ends, or the client's patience, and then it is told how far the reload has come.
    Reload(Ticket, Duration),
    /// The request is answered when all workers have taken over a new program.
    Settled(Value),
}

impl Later {
    /// Returns the answer if it is there.
    pub fn take(&self, daemon: &mut Daemon) -> Option<Result<Value>> {
        match self {
            Later::App(id) => daemon.take_answer(*id),
            Later::Reload(ticket, _) => daemon.reloads.outcome(*ticket),
            Later::Settled(_) if daemon.reloads.are_taking_over() => None,
            Later::Settled(request) => Some(daemon.answer_at_once(request)),
            Later::Injected(answer) => answer.try_recv().ok().map(|injected| match injected {
                Ok(()) => Ok(json!({ "done": true })),
                Err(reason) => Err(anyhow!("the frame was not sent ({reason}): {}", reason.explanation())),
            }),
        }
    }

    /// Discards the request, because nobody waits for the answer any more.
    pub fn forget(&self, daemon: &mut Daemon) {
        if let Later::App(id) = self {
            daemon.forget(*id);
        }
    }

    /// Returns how long to wait for the answer.
    pub fn patience(&self) -> Duration {
        match self {
            Later::Reload(_, patience) => *patience,
            _ => ANSWER_PATIENCE,
        }
    }

    /// Returns the answer for a client that has waited for so long.
    pub fn too_late(&self, daemon: &Daemon) -> Result<Value> {
        match self {
            Later::Injected(_) => bail!("the port's transmit queue is full: the frame waits for room there"),
            Later::App(_) => bail!("the app has not answered"),
            Later::Settled(_) => bail!("the workers are taking over a new program: try again"),
            Later::Reload(ticket, _) => Ok(daemon.reloads.progress(*ticket)),
        }
    }
}

impl Daemon {
    /// Answers a request, or says what will.
    pub fn answer(&mut self, request: &Value) -> Result<Reply> {
        let later = match text(request, "command")? {
            "inject" => self.inject(request)?,
            "app" => Later::App(self.request(text(request, "app")?, &request["request"])?),
            "reload" => {
                let ticket = request["reload"].as_u64().unwrap_or_else(|| self.ask_reload());
                let patience = request["wait_s"].as_u64().map_or(ANSWER_PATIENCE, Duration::from_secs);
                Later::Reload(ticket, patience.min(RELOAD_PATIENCE))
            }
            "stop" => return Ok(Reply::Now(json!({ "stopping": true }))),
            // The workers would not answer before.
            _ if self.reloads.are_taking_over() => Later::Settled(request.clone()),
            _ => return self.answer_at_once(request).map(Reply::Now),
        };
        Ok(Reply::Later(later))
    }

    fn answer_at_once(&mut self, request: &Value) -> Result<Value> {
        match text(request, "command")? {
            "show" => self.show(request),
            "entry" => self.entry(request),
            "weight" => self.weight(request),
            "explain" => live::explain(self, request),
            other => bail!("no command `{other}`: show, reload, entry, weight, inject, app, explain or stop"),
        }
    }

    fn show(&self, request: &Value) -> Result<Value> {
        // Read before the workers say what they have given, so that none appears to come from nowhere.
        let read = self.collector.totals();
        let reports = self.reports()?;
        let only = request["what"].as_str().unwrap_or("all");
        match only {
            "entries" => return self.show_entries(request),
            "flows" => return self.show_flows(request),
            _ => {}
        }
        let mut all = Map::new();
        all.insert("generation".into(), json!(self.generation));
        all.insert("file".into(), json!(self.file.display().to_string()));
        all.insert("uptime_s".into(), json!(self.clock.now_ns() / 1_000_000_000));
        all.insert("log_lost".into(), json!(crate::log::lost()));
        all.insert("workers".into(), json!(reports.len()));
        let received: Vec<u64> = reports.iter().map(|report| report.ledger.received).collect();
        all.insert("received_by_worker".into(), json!(received));
        let ledger = total(&reports);
        all.insert("ledger".into(), ledger_json(&ledger));
        all.insert("balances".into(), json!(ledger.balances()));
        all.insert("ports".into(), self.ports_json(&reports));
        all.insert("pipes".into(), self.pipes_json(&reports));
        all.insert("counters".into(), self.counters_json(&reports));
        let counts = self.counts(&reports);
        let counted = |name: &str| {
            let at = self.plan.program.counters.iter().position(|counter| counter == name);
            at.map(|at| counts[at]).unwrap_or_default()
        };
        all.extend(self.plan.apps.tables(&counted).map(|(name, table)| (name.to_string(), table)));
        all.insert("groups".into(), self.groups_json()?);
        all.insert("apps".into(), self.apps_json());
        let sum = |count: fn(&Report) -> u64| reports.iter().map(count).sum::<u64>();
        all.insert("breaths".into(), json!(sum(|report| report.breaths)));
        let times = reports.iter().map(|report| durations::breaths(&report.breath_times));
        all.insert("breath_times".into(), times.collect());
        all.insert("events_late".into(), durations::json(&self.host.late));
        all.insert("pool_copies".into(), json!(sum(|report| report.pool_copies)));
        all.insert("handed_over".into(), json!(sum(|report| report.handed_over)));
        all.insert("flow_deltas".into(), json!(sum(|report| report.deltas)));
        all.insert("deltas".into(), deltas_json(&read));
        all.insert("flow_account".into(), account_json(&reports, &read));
        all.insert("tee_missed".into(), json!(sum(|report| report.tee_missed)));
        match only {
            "all" => Ok(Value::Object(all)),
            "deltas" => Ok(json!({ "deltas": all["deltas"], "flow_account": all["flow_account"] })),
            "drops" => Ok(json!({ "drops": drops_json(&ledger) })),
            what => {
                let found = all.remove(what);
                let found = found.ok_or_else(|| {
                    anyhow!("nothing is called `{what}`: {}", shown().collect::<Vec<_>>().join(", "))
                })?;
                Ok(json!({ what: found }))
            }
        }
    }

    fn ports_json(&self, reports: &[Report]) -> Value {
        let port = |at: usize| {
            let mut all = Map::new();
            let mut sums = [0u64; 10];
            let mut extra: Map<String, Value> = Map::new();
            let mut modes = Vec::new();
            for report in reports.iter().filter_map(|report| report.ports.get(at)) {
                let s = &report.statistics;
                let counts = [
                    s.received,
                    s.received_bytes,
                    s.transmitted,
                    s.transmitted_bytes,
                    s.to_kernel,
                    s.held,
                    s.lost_before,
                    s.starved,
                    s.oversize,
                    s.gone,
                ];
                sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
                for (name, count) in &report.extra {
                    let before = extra.get(*name).and_then(Value::as_u64).unwrap_or(0);
                    extra.insert((*name).into(), json!(before + count));
                }
                modes.push(report.mode.clone());
            }
            modes.dedup();
            all.insert("name".into(), json!(self.plan.ports[at].name));
            all.insert("mode".into(), json!(modes.join(", ")));
            all.insert("link".into(), json!(self.link_of(PortId(at as u16))));
            let names = [
                "received",
                "received_bytes",
                "transmitted",
                "transmitted_bytes",
                "to_kernel",
                "held",
                "lost_before",
                "starved",
                "oversize",
                "gone",
            ];
            all.extend(names.into_iter().zip(sums).map(|(name, sum)| (name.to_string(), json!(sum))));
            all.insert("extra".into(), Value::Object(extra));
            Value::Object(all)
        };
        (0..self.plan.ports.len()).map(port).collect()
    }

    /// Describes the state of a port's link; `None` for recordings and memory.
    fn link_of(&self, port: PortId) -> Option<String> {
        if let Some(interface) = self.interfaces.of(port) {
            return Some(interface.state().to_string());
        }
        let link = self.dpdk_links.get(port.index())?.as_ref()?;
        Some(if link.state().up { "up" } else { "no carrier" }.to_string())
    }

    fn pipes_json(&self, reports: &[Report]) -> Value {
        let pipe = |(at, pipe): (usize, &engine::program::Pipe)| {
            let mut sum = PipeReport::default();
            for report in reports.iter().filter_map(|report| report.pipes.get(at)) {
                sum.entries = report.entries;
                sum.flows += report.flows;
                sum.hits += report.hits;
                sum.misses.add(report.misses);
                sum.account.add(&report.account);
            }
            let mut json = json!({
                "name": pipe.name, "type": pipe.kind.word(), "entries": sum.entries,
                    "capacity": pipe.capacity,
                "hits": sum.hits, "misses": sum.misses.packets,
                    "forward": config::write_forward(pipe.forward, &self.plan.program),
                "miss": config::write_forward(pipe.miss, &self.plan.program),
            });
            if let PipeKind::Flow { .. } = pipe.kind {
                json["flows"] = json!(sum.flows);
                // Each worker has a table of its own for its flows, which are added up here.
                json["capacity"] = json!(pipe.capacity as usize * reports.len());
                json["capacity_per_worker"] = json!(pipe.capacity);
                json["unflowed_full"] = json!(sum.account.unflowed.full);
            }
            json
        };
        self.plan.program.pipes.iter().enumerate().map(pipe).collect()
    }

    /// Returns shared counters summed over workers, in the program's order.
    fn counts(&self, reports: &[Report]) -> Vec<Count> {
        let mut sums = vec![Count::default(); self.plan.program.counters.len()];
        for report in reports {
            sums.iter_mut().zip(&report.counters).for_each(|(sum, count)| sum.add(*count));
        }
        sums
    }

    fn counters_json(&self, reports: &[Report]) -> Value {
        let names = self.plan.program.counters.iter();
        let one = |(name, count): (&String, Count)| {
            json!({ "name": name, "packets": count.packets,
            "bytes": count.bytes })
        };
        names.zip(self.counts(reports)).map(one).collect()
    }

    fn groups_json(&self) -> Result<Value> {
        let group = |(at, group): (usize, &Group)| {
            let id = GroupId(at as u16);
            let (table, target) = (self.tables.table(id), |at: usize, buckets: u64| {
                let target = &group.targets[at];
                json!({ "name": target.name, "weight": target.weight, "buckets": buckets })
            });
            if group.fill != Fill::Given {
                let targets = (0..group.targets.len()).map(|at| target(at, table.share(at).into()));
                let targets: Vec<Value> = targets.collect();
                return Ok(json!({ "name": group.name, "buckets": group.size, "targets": targets }));
            }
            // While moves are pending, workers may differ in a few buckets; show those of the first worker.
            let reports = self.fleet.buckets(id)?;
            let slots = reports.first().map(|one| one.slots.clone()).unwrap_or_default();
            let held = |at: usize| slots.iter().filter(|&&slot| usize::from(slot) == at).count() as u64;
            let all = buckets(reports);
            let targets: Vec<Value> = (0..group.targets.len()).map(|at| target(at, held(at))).collect();
            Ok(json!({
                "name": group.name, "buckets": slots.len(), "targets": targets,
                "packets": all.packets.iter().sum::<u64>(), "bytes": all.bytes.iter().sum::<u64>(),
                "moved": all.moved, "moved_busy": all.moved_busy, "pending": all.pending,
            }))
        };
        // Their targets have the weights of now.
        self.tables.groups().iter().enumerate().map(group).collect()
    }

    /// Returns the target of each bucket of a group; where moves are pending, those of the first worker.
    pub(super) fn slots(&self, group: GroupId) -> Result<Vec<u16>> {
        let declared = &self.plan.program.groups[group.index()];
        if declared.fill != Fill::Given {
            return Ok(self.tables.table(group).buckets().slots().to_vec());
        }
        Ok(self.fleet.buckets(group)?.into_iter().next().map(|one| one.slots).unwrap_or_default())
    }

    fn pipe_named(&self, request: &Value) -> Result<PipeId> {
        let name = text(request, "pipe")?;
        let names =
            || self.plan.program.pipes.iter().map(|pipe| pipe.name.as_str()).collect::<Vec<_>>().join(", ");
        self.plan
            .program
            .pipe_named(name)
            .ok_or_else(|| anyhow!("there is no pipe `{name}`; there are {}", names()))
    }

    /// Returns the entries of a pipe with their counts, summed over the workers' replicas.
    pub(super) fn entries(&self, pipe: PipeId) -> Result<Vec<(Entry, Count)>> {
        let mut replicas = self.fleet.ask_all(|_, answer| Command::Entries(pipe, answer))?.into_iter();
        let mut all = replicas.next().unwrap_or_default();
        for replica in replicas {
            for (entry, count) in replica {
                let same = |one: &&mut (Entry, Count)| {
                    one.0.matches == entry.matches && one.0.priority == entry.priority
                };
                if let Some(one) = all.iter_mut().find(same) {
                    one.1.add(count);
                }
            }
        }
        Ok(all)
    }

    fn show_entries(&self, request: &Value) -> Result<Value> {
        let pipes = match request.get("pipe").filter(|pipe| !pipe.is_null()) {
            Some(_) => vec![self.pipe_named(request)?],
            None => (0..self.plan.program.pipes.len()).map(|at| PipeId(at as u16)).collect(),
        };
        let mut all = Vec::new();
        for id in pipes {
            let pipe = &self.plan.program.pipes[id.index()];
            for (entry, count) in self.entries(id)? {
                all.push(json!({
                    "pipe": pipe.name, "entry": config::write_entry(&self.plan.program, pipe, &entry),
                    "run_time": entry.run_time, "packets": count.packets, "bytes": count.bytes,
                }));
            }
        }
        Ok(json!({ "entries": all }))
    }

    fn show_flows(&self, request: &Value) -> Result<Value> {
        let limit = request["limit"].as_u64().map_or(FLOWS, |limit| limit as usize);
        let (mut all, mut live) = (Vec::new(), 0);
        for (at, pipe) in self.plan.program.pipes.iter().enumerate() {
            if !matches!(pipe.kind, PipeKind::Flow { .. }) {
                continue;
            }
            for (flows, count) in
                self.fleet.ask_all(|_, answer| Command::Flows(PipeId(at as u16), limit, answer))?
            {
                live += count;
                all.extend(flows.into_iter().map(|flow| {
                    let decided = decision(&self.plan.program, PipeId(at as u16), flow.decision);
                    json!({
                        "pipe": pipe.name, "flow": flow.key.to_string(), "decision": decided,
                        "packets": flow.hits.packets, "bytes": flow.hits.bytes, "first_ms": flow.first_ms,
                            "last_ms": flow.last_ms, "state": flow.state.map(|state| state.word()),
                    })
                }));
            }
        }
        all.truncate(limit);
        Ok(json!({ "live": live, "flows": all }))
    }

    fn entry(&mut self, request: &Value) -> Result<Value> {
        let (pipe, written) = (text(request, "pipe")?, text(request, "entry")?);
        let Plan { program, attachments, .. } = &*self.plan;
        let told = |report: config::Report| anyhow!("{}", report.to_string().trim_end());
        let change = match text(request, "do")? {
            "add" => {
                let (pipe, entry) = config::entry(program, attachments, pipe, written).map_err(told)?;
                Change::Add { pipe, entry }
            }
            "update" => {
                let (pipe, entry) = config::entry(program, attachments, pipe, written).map_err(told)?;
                Change::Update { pipe, entry }
            }
            "remove" => {
                let (pipe, key) = config::entry_key(program, attachments, pipe, written).map_err(told)?;
                Change::Remove { pipe, key }
            }
            other => bail!("an entry is added, updated or removed, not `{other}`"),
        };
        self.change(&change)?;
        Ok(json!({ "done": true }))
    }

    fn weight(&mut self, request: &Value) -> Result<Value> {
        let (group, target) = (text(request, "group")?, text(request, "target")?);
        let weight = request["weight"]
            .as_u64()
            .and_then(|weight| u32::try_from(weight).ok())
            .with_context(|| format!("`weight` is a number from 0 to {WEIGHT_MAX}"))?;
        let id =
            self.plan.program.group_named(group).with_context(|| format!("there is no group `{group}`"))?;
        let targets = &self.plan.program.groups[id.index()].targets;
        let at = targets.iter().position(|one| one.name == target);
        let at = at.with_context(|| format!("group `{group}` has no target `{target}`"))?;
        self.change(&Change::SetWeight { group: id, target: at as u16, weight })?;
        Ok(json!({ "done": true }))
    }

    fn inject(&mut self, request: &Value) -> Result<Later> {
        let bytes = live::packet(request)?;
        let port = |key: &str| -> Result<Option<PortId>> {
            let Some(name) = request[key].as_str() else { return Ok(None) };
            let id =
                self.plan.program.port_named(name).with_context(|| format!("there is no port `{name}`"))?;
            Ok(Some(id))
        };
        let (output, input) = (port("output")?, port("input")?.unwrap_or_default());
        let (answer, injected) = sync_channel(1);
        let inject = Inject { bytes, output, input };
        if !self.fleet.offer(self.worker_for(&inject), Command::Inject(inject, answer)) {
            bail!("the worker has too much to do: try again");
        }
        Ok(Later::Injected(injected))
    }
}

/// Sums the ledgers of all workers.
pub fn total(reports: &[Report]) -> Ledger {
    let mut ledger = Ledger::default();
    reports.iter().for_each(|report| ledger.add(&report.ledger));
    ledger
}

/// Returns a ledger in the stable output format.
pub fn ledger_json(ledger: &Ledger) -> Value {
    let dropped: Map<String, Value> =
        ledger.drops().map(|(reason, count)| (reason.as_str().to_string(), json!(count))).collect();
    json!({
        "received": ledger.received, "originated": ledger.originated, "copied": ledger.copied,
        "transmitted": ledger.transmitted, "to_kernel": ledger.to_kernel, "to_app": ledger.to_app,
            "held": ledger.held,
        "dropped": dropped,
    })
}

fn drops_json(ledger: &Ledger) -> Value {
    let one = |(reason, count): (DropReason, u64)| {
        json!({ "reason": reason.as_str(), "frames": count,
        "meaning": reason.explanation() })
    };
    ledger.drops().map(one).collect()
}

/// Describes what a swap kept and removed, for the log and for the client.
pub fn swap_summary(generation: u64, reports: &[SwapReport]) -> String {
    let Some(report) = reports.first() else { return String::new() };
    let flows: usize = reports.iter().map(|report| report.flows_kept).sum();
    let mut text = format!("generation {generation}: {} entries and {flows} flows kept", report.entries_kept);
    for (at, (pipe, entries, _)) in report.removed.iter().enumerate() {
        let flows: usize = reports.iter().filter_map(|report| report.removed.get(at)).map(|one| one.2).sum();
        text += &format!("; pipe {pipe}: {entries} entries and {flows} flows removed");
    }
    text
}

fn text<'a>(request: &'a Value, key: &str) -> Result<&'a str> {
    request[key].as_str().with_context(|| format!("the request needs `{key}`"))
}

/// Flow deltas by reason.
fn deltas_json(read: &Totals) -> Value {
    let one = |(reason, sum): (DeltaReason, &Sum)| {
        let Sum { deltas, packets, bytes } = *sum;
        json!({ "reason": reason.word(), "deltas": deltas, "packets": packets, "bytes": bytes })
    };
    DeltaReason::ALL.into_iter().zip(read).map(one).collect()
}

/// Where the packets that met FLOW pipes are: `met` = `live` + `deltas` + `unflowed`. `waiting` of those in
/// deltas are on their way to the collector.
fn account_json(reports: &[Report], read: &Totals) -> Value {
    let mut account = FlowAccount::default();
    reports.iter().for_each(|report| account.add(&report.flows));
    let left: u64 = reports.iter().map(|report| report.deltas_left).sum();
    let read = collector::over_reasons(read).packets;
    let unflowed: Map<String, Value> = account
        .unflowed
        .by_reason()
        .into_iter()
        .map(|(why, count)| (why.to_string(), json!(count)))
        .collect();
    json!({
        "met": account.met, "live": account.live, "deltas": account.given, "unflowed": unflowed,
        "waiting": account.given.saturating_sub(read),
        // Given by flows, and neither sent nor waiting to be sent; or read, and never given.
        "lost": account.given.abs_diff(left) + read.saturating_sub(account.given),
        "balances": account.balances(),
    })
}
