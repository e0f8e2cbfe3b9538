//! The output of `weir show`, computed from a snapshot: JSON, which the client converts to text.

use super::collector::{self, Sum, Totals};
use super::durations;
use super::names;
use super::observer::Snapshot;
use crate::config;
use anyhow::{Result, anyhow};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use weir_app::buckets;
use weir_app::clock::since_1970_ns;
use weir_app::kind::{Counts, Kind};
use weir_control::{Show, What, answer};
use weir_engine::delta::DeltaReason;
use weir_engine::worker::{Breaths, DroppedFlows, PipeReport, Report};
use weir_packet::{DropReason, Ledger, PortStatistics};
use weir_program::census::{COUNTED_MAX, Flows};
use weir_program::replica::ReplicaReport;
use weir_program::snapshot::{Count, FlowAccount};
use weir_program::{Fill, Group, GroupId, NatPool, NatPrefix, PipeId, PipeKind};

/// How many flows are shown for each drop reason.
const DROPPED_FLOWS_SHOWN: usize = 5;

/// The sections that can be shown, besides the tables of apps.
const SHOWN: [&str; 18] = [
    "all",
    "ports",
    "pipes",
    "entries",
    "flows",
    "deltas",
    "groups",
    "rings",
    "node",
    "nat_pools",
    "names",
    "apps",
    "routes",
    "counters",
    "drops",
    "ledger",
    "kernel",
    "workers",
];

/// What is shown by default.
const SECTIONS: [&str; 27] = [
    "generation",
    "file",
    "uptime_s",
    "log_lost",
    "workers",
    "received_by_worker",
    "ledger",
    "balances",
    "ports",
    "kernel",
    "pipes",
    "counters",
    "groups",
    "rings",
    "nat_pools",
    "apps",
    "draining_s",
    "routes",
    "breaths",
    "breath_times",
    "events_late",
    "pool_copies",
    "handed_over",
    "flow_deltas",
    "deltas",
    "flow_account",
    "tee_missed",
];

/// Returns everything that can be shown if there are apps of these kinds.
pub fn shown(kinds: &'static [Kind]) -> impl Iterator<Item = &'static str> {
    SHOWN.into_iter().chain(kinds.iter().flat_map(|kind| kind.tables).copied())
}

impl Snapshot {
    /// Answers `weir show`.
    pub fn show(&self, request: &Show) -> Result<Value> {
        let only = match &request.what {
            Some(What::Several(parts)) => return self.show_parts(parts),
            Some(What::One(only)) => only.as_str(),
            None => "all",
        };
        match only {
            "all" => self.all().map(Value::Object),
            "entries" => self.show_entries(request),
            "flows" => self.show_flows(request),
            "deltas" => self.show_parts(&["deltas".to_string(), "flow_account".to_string()]),
            _ => self.show_parts(&[only.to_string()]),
        }
    }

    /// Returns several sections.
    fn show_parts(&self, names: &[String]) -> Result<Value> {
        let part = |name: &String| {
            let table = || self.tables().find(|(other, _)| other == name).map(|(_, table)| table);
            let found = self.section(name)?.or_else(table).ok_or_else(|| {
                let all: Vec<&str> = shown(self.plan.apps.kinds()).collect();
                anyhow!("nothing is called `{name}`: {}", all.join(", "))
            })?;
            Ok((name.clone(), found))
        };
        names.iter().map(part).collect::<Result<Map<_, _>>>().map(Value::Object)
    }

    fn all(&self) -> Result<Map<String, Value>> {
        let mut all = Map::new();
        for name in SECTIONS {
            let is_absent = match name {
                "nat_pools" => self.plan.program.nat_pools.is_empty(),
                "routes" => self.routes.is_empty(),
                "draining_s" => self.draining_ns.is_none(),
                _ => false,
            };
            if is_absent {
                continue;
            }
            // Among everything, this has always been a number, and the breaths are shown separately.
            let section =
                if name == "workers" { Some(json!(self.reports.len())) } else { self.section(name)? };
            all.extend(section.map(|section| (name.to_string(), section)));
            if name == "counters" {
                all.extend(self.tables());
            }
        }
        Ok(all)
    }

    /// Returns a section. Each is computed only on request, because some are long.
    fn section(&self, name: &str) -> Result<Option<Value>> {
        let reports = &self.reports;
        let sum = |count: fn(&Report) -> u64| json!(reports.iter().map(count).sum::<u64>());
        Ok(Some(match name {
            "generation" => json!(self.generation),
            "file" => json!(self.file.display().to_string()),
            "uptime_s" => json!(self.clock.uptime_ns() / 1_000_000_000),
            "health" => json!(if self.is_fresh { "ok" } else { "the main thread does not answer" }),
            "log_lost" => json!(crate::log::lost()),
            "received_by_worker" => reports.iter().map(|report| report.ledger.received).collect(),
            "ledger" => json!(ledger(&total(reports))),
            "drops" => json!(drops(reports)),
            "kernel" => json!(self.kernel()),
            "balances" => json!(total(reports).balances()),
            "ports" => json!(self.ports()),
            "pipes" => json!(self.pipes()),
            "counters" => json!(self.counters()),
            "groups" => json!(self.groups()?),
            "rings" => json!(self.rings()),
            "node" => json!(self.fleet_node()),
            "nat_pools" => json!(self.nat_pools()),
            "names" => json!(names::rows(self.plan.names.as_deref(), &self.names)),
            "apps" => self.apps.clone(),
            "routes" => json!(self.routes),
            "draining_s" => {
                let now_ns = self.clock.now_ns();
                json!(self.draining_ns.map(|since_ns| now_ns.saturating_sub(since_ns) / 1_000_000_000))
            }
            "control" => json!(self.control()),
            "workers" => json!(self.workers()),
            "breaths" => sum(|report| report.breaths),
            "breath_times" => {
                let breaths = reports.iter().map(|report| durations::breaths(&report.breath_times));
                json!(breaths.collect::<Vec<_>>())
            }
            "events_late" => json!(durations::times(&self.late)),
            "pool_copies" => sum(|report| report.pool_copies),
            "handed_over" => sum(|report| report.handed_over),
            "flow_deltas" => sum(|report| report.deltas),
            "deltas" => json!(deltas(&self.read)),
            "flow_account" => json!(account(reports, &self.read)),
            "tee_missed" => sum(|report| report.tee_missed),
            _ => return Ok(None),
        }))
    }

    /// Returns what the kernel does with the frames of each port.
    pub(super) fn kernel(&self) -> Vec<answer::KernelPort> {
        let report = self.reports.iter().find_map(|report| report.kernel.as_ref());
        let one = |(at, port): (usize, &config::PortConfig)| {
            let of = |report: &ReplicaReport| {
                let left = report.left.iter().filter(|(_, ports)| ports[at] > 0);
                (report.decided[at], left.map(|(why, ports)| (why.to_string(), json!(ports[at]))).collect())
            };
            let (decided, left) = report.map(of).unwrap_or_default();
            let obstacle = self.copies[at].clone();
            let runs = report.is_some_and(|report| report.active) && obstacle.is_none();
            let failed = report.and_then(|report| report.obstacle.clone());
            answer::KernelPort { port: port.name.clone(), runs, obstacle: obstacle.or(failed), decided, left }
        };
        self.plan.ports.iter().enumerate().map(one).collect()
    }

    /// Returns the tables of apps.
    fn tables(&self) -> impl Iterator<Item = (String, Value)> {
        let counts = self.counts();
        let counters = self.plan.program.counters.iter().map(String::as_str);
        let counters: HashMap<&str, Count> = counters.zip(counts).rev().collect();
        let counted = |name: &str| counters.get(name).copied().unwrap_or_default();
        let by_target = self.flows_of_targets();
        let flows = |group: &str, target: &str| by_target.get(&(group, target)).copied();
        let by_group = self.refused_of_groups();
        let refused = |group: &str| by_group.get(group).copied();
        // Whole seconds, so that a time always has the same date, although two clocks are read.
        let origin_ns = since_1970_ns().saturating_sub(self.clock.now_ns());
        let date_s = |time_ns: u64| origin_ns.saturating_add(time_ns) / 1_000_000_000;
        let counts = Counts { counter: &counted, flows: &flows, refused: &refused, date_s: &date_s };
        let tables = self.plan.apps.tables(&counts).map(|(name, table)| (name.to_string(), table));
        tables.collect::<Vec<_>>().into_iter()
    }

    /// Returns the flows of each target to which any flows were ever pinned, and of the other targets of its
    /// group, by group and target name. Empty if there are too many targets to count.
    pub fn flows_of_targets(&self) -> HashMap<(&str, &str), Flows> {
        let program = &self.plan.program;
        let mut all = HashMap::new();
        if program.groups.iter().map(|group| group.targets.len()).sum::<usize>() > COUNTED_MAX {
            return all;
        }
        let pipes = (0..program.pipes.len()).map(|at| self.tables.census(PipeId(at as u16)));
        let censuses: Vec<_> = pipes.filter(|census| !census.is_empty()).collect();
        let mut first = 0;
        for group in &program.groups {
            let of = |number: u32| {
                censuses.iter().map(|census| census.flows(number)).fold(Flows::default(), Flows::plus)
            };
            let flows: Vec<Flows> = (first..).take(group.targets.len()).map(of).collect();
            first += group.targets.len() as u32;
            if flows.iter().any(|flows| *flows != Flows::default()) {
                let names = group.targets.iter().map(|target| (group.name.as_str(), target.name.as_str()));
                all.extend(names.zip(flows).filter(|((_, target), _)| !target.is_empty()));
            }
        }
        all
    }

    /// Returns how many packets of new flows each group has refused, by group name; empty if targets' flows
    /// are not counted.
    pub fn refused_of_groups(&self) -> HashMap<&str, u64> {
        let program = &self.plan.program;
        let pipes = (0..program.pipes.len()).map(|at| self.tables.census(PipeId(at as u16)));
        let censuses: Vec<_> = pipes.filter(|census| !census.is_empty()).collect();
        let targets = program.groups.iter().map(|group| group.targets.len()).sum::<usize>();
        if censuses.is_empty() || targets > COUNTED_MAX {
            return HashMap::new();
        }
        let refused = |at: usize| censuses.iter().map(|census| census.refused(at)).sum();
        program.groups.iter().enumerate().map(|(at, group)| (group.name.as_str(), refused(at))).collect()
    }

    /// Returns where the web page is, and the files with the tokens; `None` if there is no web page.
    fn control(&self) -> Option<answer::ControlListener> {
        let control = self.plan.control.as_ref()?;
        Some(answer::ControlListener {
            url: control.url(&crate::host::host_name()),
            token: control.token.display().to_string(),
            view_token: control.view_token.as_ref().map(|file| file.display().to_string()),
        })
    }

    /// Returns a row for each worker, with its breaths by processor time.
    fn workers(&self) -> Vec<answer::Worker> {
        let us = |ns: u64| ns as f64 / 1e3;
        let worker = |(worker, report): (usize, &Report)| {
            let Breaths { wall, processor } = &report.breath_times;
            answer::Worker {
                worker,
                received: report.ledger.received,
                handed_over: report.handed_over,
                held: report.ledger.held,
                breaths: report.breaths,
                p50_us: us(processor.quantile_ns(0.5)),
                p99_us: us(processor.quantile_ns(0.99)),
                p9999_us: us(processor.quantile_ns(0.9999)),
                longest_us: us(processor.longest_ns()),
                wall_p9999_us: us(wall.quantile_ns(0.9999)),
                wall_longest_us: us(wall.longest_ns()),
            }
        };
        self.reports.iter().enumerate().map(worker).collect()
    }

    fn ports(&self) -> Vec<answer::Port> {
        let port = |at: usize| {
            let mut sum = PortStatistics::default();
            let mut extra = answer::Counts::new();
            let mut add = |name: &str, count: u64| {
                let before = extra.get(name).and_then(Value::as_u64).unwrap_or(0);
                extra.insert(name.to_string(), json!(before + count));
            };
            self.programs.get(at).into_iter().flatten().for_each(|(name, count)| add(name, *count));
            let mut modes = Vec::new();
            for report in self.reports.iter().filter_map(|report| report.ports.get(at)) {
                sum.add(&report.statistics);
                report.extra.iter().for_each(|(name, count)| add(name, *count));
                modes.push(report.mode.clone());
            }
            modes.dedup();
            answer::Port {
                name: self.plan.ports[at].name.clone(),
                mode: modes.join(", "),
                link: self.links[at].clone(),
                received: sum.received,
                received_bytes: sum.received_bytes,
                transmitted: sum.transmitted,
                transmitted_bytes: sum.transmitted_bytes,
                to_kernel: sum.to_kernel,
                held: sum.held,
                lost_before: sum.lost_before,
                starved: sum.starved,
                oversize: sum.oversize,
                gone: sum.gone,
                extra,
            }
        };
        (0..self.plan.ports.len()).map(port).collect()
    }

    fn pipes(&self) -> Vec<answer::Pipe> {
        let reports = &self.reports;
        let pipe = |(at, pipe): (usize, &weir_program::Pipe)| {
            let mut sum = PipeReport::default();
            for report in reports.iter().filter_map(|report| report.pipes.get(at)) {
                sum.entries = report.entries;
                sum.flows += report.flows;
                sum.hits += report.hits;
                sum.misses.add(report.misses);
                sum.account.add(&report.account);
            }
            let is_flow = matches!(pipe.kind, PipeKind::Flow { .. });
            let capacity = u64::from(pipe.capacity);
            answer::Pipe {
                name: pipe.name.clone(),
                r#type: pipe.kind.word().to_string(),
                entries: sum.entries as u64,
                // Each worker has its own table for its flows; these are added up here.
                capacity: if is_flow { capacity * reports.len() as u64 } else { capacity },
                hits: sum.hits,
                misses: sum.misses.packets,
                forward: config::write_forward(pipe.forward, &self.plan.program),
                miss: config::write_forward(pipe.miss, &self.plan.program),
                flows: is_flow.then_some(sum.flows as u64),
                capacity_per_worker: is_flow.then_some(capacity),
                unflowed_full: is_flow.then_some(sum.account.unflowed.full),
            }
        };
        self.plan.program.pipes.iter().enumerate().map(pipe).collect()
    }

    /// Returns shared counters summed over workers, in the program's order.
    fn counts(&self) -> Vec<Count> {
        let mut sums = vec![Count::default(); self.plan.program.counters.len()];
        for report in &self.reports {
            sums.iter_mut().zip(&report.counters).for_each(|(sum, count)| sum.add(*count));
        }
        sums
    }

    fn counters(&self) -> Vec<answer::Counter> {
        let one = |(name, Count { packets, bytes }): (&String, Count)| answer::Counter {
            name: name.clone(),
            packets,
            bytes,
        };
        let all = self.plan.program.counters.iter().zip(self.counts());
        all.filter(|(name, _)| !name.is_empty()).map(one).collect()
    }

    /// Returns how many address and port pairs of a NAT pool are in use, and how many there are.
    pub(super) fn nat_pool_use(&self, at: usize) -> (u64, u64) {
        let pipes = self.plan.program.pipes.iter();
        let pipe = pipes.into_iter().position(|pipe| pipe.nat.is_some_and(|id| id.index() == at));
        let reports = self.reports.iter().filter_map(|report| report.pipes.get(pipe?));
        let used = reports.map(|pipe| pipe.nat_used as u64).sum();
        (used, self.plan.program.nat_pools[at].places())
    }

    pub(super) fn nat_pools(&self) -> Vec<answer::NatPool> {
        let pool = |(at, pool): (usize, &NatPool)| {
            let (used, all) = self.nat_pool_use(at);
            let prefixes = pool.prefixes.iter().map(NatPrefix::to_string).collect::<Vec<_>>();
            answer::NatPool {
                name: pool.name.clone(),
                addresses: prefixes.join(" "),
                ports: format!("{}-{}", pool.first, pool.last),
                used,
                free: all.saturating_sub(used),
            }
        };
        self.plan.program.nat_pools.iter().enumerate().map(pool).collect()
    }

    fn groups(&self) -> Result<Vec<answer::Group>> {
        let scales = self.plan.apps.scales();
        let group = |(at, group): (usize, &Group)| {
            let (id, scale) = (GroupId(at as u16), scales.get(&group.name).copied().unwrap_or(1));
            let shown = |size: usize, held: &dyn Fn(usize) -> u64, given: Option<answer::Given>| {
                let target = |(at, target): (usize, &weir_program::Target)| answer::Target {
                    name: target.name.clone(),
                    weight: if target.weight % scale == 0 {
                        json!(target.weight / scale)
                    } else {
                        json!(f64::from(target.weight) / f64::from(scale))
                    },
                    buckets: held(at),
                };
                let targets = group.targets.iter().enumerate().filter(|(_, target)| !target.is_vacant());
                let targets = targets.map(target).collect();
                let (name, number) = (group.name.clone(), group.number);
                answer::Group { name, number, buckets: size as u64, targets, given }
            };
            if group.fill != Fill::Given {
                let table = self.tables.table(id);
                return Ok(shown(group.size as usize, &|at| table.share(at).into(), None));
            }
            // While moves are pending, workers may differ in a few buckets; show those of the first worker.
            let reports = self.fleet.buckets(id)?;
            let slots = reports.first().map(|one| one.slots.clone()).unwrap_or_default();
            let held = |at: usize| slots.iter().filter(|&&slot| usize::from(slot) == at).count() as u64;
            let all = buckets(reports);
            let given = answer::Given {
                packets: all.packets.iter().sum(),
                bytes: all.bytes.iter().sum(),
                moved: all.moved,
                moved_busy: all.moved_busy,
                pending: all.pending as u64,
            };
            Ok(shown(slots.len(), &held, Some(given)))
        };
        // Their targets have the current weights.
        self.tables.groups().iter().enumerate().map(group).collect()
    }

    /// Returns the target of each bucket of a group; where moves are pending, those of the first worker.
    pub fn slots(&self, group: GroupId) -> Result<Vec<u16>> {
        let declared = &self.plan.program.groups[group.index()];
        if declared.fill != Fill::Given {
            return Ok(self.tables.table(group).buckets().slots().to_vec());
        }
        Ok(self.fleet.buckets(group)?.into_iter().next().map(|one| one.slots).unwrap_or_default())
    }

    pub fn pipe_named(&self, name: &str) -> Result<PipeId> {
        let names =
            || self.plan.program.pipes.iter().map(|pipe| pipe.name.as_str()).collect::<Vec<_>>().join(", ");
        self.plan
            .program
            .pipe_named(name)
            .ok_or_else(|| anyhow!("there is no pipe `{name}`; there are {}", names()))
    }
}

/// Sums the ledgers of all workers.
pub fn total(reports: &[Report]) -> Ledger {
    let mut ledger = Ledger::default();
    reports.iter().for_each(|report| ledger.add(&report.ledger));
    ledger
}

/// Returns a ledger in the stable output format.
pub fn ledger(ledger: &Ledger) -> answer::Ledger {
    answer::Ledger {
        received: ledger.received,
        originated: ledger.originated,
        copied: ledger.copied,
        transmitted: ledger.transmitted,
        to_kernel: ledger.to_kernel,
        to_app: ledger.to_app,
        held: ledger.held,
        dropped: ledger.drops().map(|(reason, count)| (reason.as_str().to_string(), json!(count))).collect(),
    }
}

fn drops(reports: &[Report]) -> Vec<answer::Drops> {
    let mut flows = DroppedFlows::default();
    reports.iter().for_each(|report| flows.merge(&report.dropped_flows));
    let flow = |(flow, frames)| answer::DroppedFlow { flow, frames };
    let one = |(reason, frames): (DropReason, u64)| answer::Drops {
        reason: reason.as_str().to_string(),
        frames,
        meaning: reason.explanation().to_string(),
        flows: flows.worst(reason, DROPPED_FLOWS_SHOWN).into_iter().map(flow).collect(),
    };
    total(reports).drops().map(one).collect()
}

/// Flow deltas by reason.
fn deltas(read: &Totals) -> Vec<answer::Deltas> {
    let one = |(reason, &Sum { deltas, packets, bytes }): (DeltaReason, &Sum)| answer::Deltas {
        reason: reason.word().to_string(),
        deltas,
        packets,
        bytes,
    };
    DeltaReason::ALL.into_iter().zip(read).map(one).collect()
}

/// Returns where the packets that met FLOW pipes are.
fn account(reports: &[Report], read: &Totals) -> answer::FlowAccount {
    let mut account = FlowAccount::default();
    reports.iter().for_each(|report| account.add(&report.flows));
    let left: u64 = reports.iter().map(|report| report.deltas_left).sum();
    let read = collector::over_reasons(read).packets;
    let unflowed = account.unflowed.by_reason().into_iter();
    answer::FlowAccount {
        met: account.met,
        live: account.live,
        deltas: account.given,
        unflowed: unflowed.map(|(why, count)| (why.to_string(), json!(count))).collect(),
        waiting: account.given.saturating_sub(read),
        // Sent by flows, but neither delivered nor waiting to be sent; or read, but never sent.
        lost: account.given.abs_diff(left) + read.saturating_sub(account.given),
        balances: account.balances(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sections that may be long, of which `ledger` has the sums, or that repeat others for peers.
    const APART: [&str; 5] = ["entries", "flows", "drops", "names", "node"];

    #[test]
    fn everything_has_each_section_that_can_be_shown() {
        let missing = |name: &&str| *name != "all" && !APART.contains(name) && !SECTIONS.contains(name);
        assert_eq!(SHOWN.into_iter().find(missing), None);
    }
}
