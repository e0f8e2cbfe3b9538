//! Prometheus metrics at `/metrics`, enabled by configuring an address: workers keep plain counters, and a
//! scrape sums them.
//!
//! An observer renders the text, and `http.rs` serves it.

use super::observer::Snapshot;
use super::shown::total;
use crate::config::kernel_use;
use crate::log;
use anyhow::Result;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::collections::HashSet;
use std::sync::atomic::AtomicU64;
use weir_app::rings::Checksum;
use weir_app::{Sample, SampleValue};
use weir_config::ports::KernelUse;
use weir_engine::worker::{Histogram, PipeReport, PortReport};
use weir_packet::{Ledger, PortStatistics};
use weir_program::snapshot::Count;

/// A label: the name of the dimension, and its value.
type Labels = Vec<(&'static str, String)>;

/// Returns all metrics as OpenMetrics text.
pub fn text(now: &Snapshot) -> Result<String> {
    let ledger = total(&now.reports);
    let mut registry = Registry::with_prefix("weir");
    let mut totals = Totals { registry: &mut registry };
    totals.frames(&ledger);
    totals.counters(now);
    totals.pipes(now);
    totals.ports(now);
    totals.breaths(now);
    totals.kernel(now);
    let lost: Counter = Counter::default();
    lost.inc_by(log::lost());
    let refused: Counter = Counter::default();
    refused.inc_by(super::rest::refused());
    totals.registry.register("control_refused", "Control requests without the token", refused);
    totals.registry.register("log_lost", "Log lines lost because they were not read in time", lost);
    for family in &now.families {
        totals.family((&format!("app_{}", family.name), "app"), family.help, family.counts.clone());
    }
    for gauges in &now.gauges {
        let family = Family::<Labels, Gauge<f64, AtomicU64>>::default();
        for (app, value) in &gauges.values {
            family.get_or_create(&vec![("app", app.clone())]).set(*value);
        }
        registry.register(format!("app_{}", gauges.name), gauges.help, family);
    }
    samples(&mut registry, &now.samples);
    flows(&mut registry, now);
    nat_pools(&mut registry, now);
    rings(&mut registry, now);
    routes(&mut registry, now);
    gauge(&mut registry, "held", "Frames currently in rings", ledger.held);
    gauge(&mut registry, "generation", "Generation of the program", now.generation);
    gauge(
        &mut registry,
        "ledger_balanced",
        "1 if every frame is accounted for",
        u64::from(ledger.balances()),
    );
    let age: Gauge<f64, AtomicU64> = Gauge::default();
    age.set(now.taken.elapsed().as_secs_f64());
    registry.register("snapshot_age_seconds", "Age of these counts; if it grows, part of weir is busy", age);
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

/// Counts of `xdp` ports: the family's name, the port's name for it, and its help text.
const SAMPLED: [(&str, &str, &str); 2] = [
    ("port_checksums_sampled", "checksums_sampled", "Received frames whose checksums were sampled"),
    ("port_checksums_wrong", "checksums_wrong", "Sampled frames that arrived with a wrong checksum"),
];

/// Families of counters in a registry.
struct Totals<'a> {
    registry: &'a mut Registry,
}

impl Totals<'_> {
    fn frames(&mut self, ledger: &Ledger) {
        let frames = [
            ("received", ledger.received),
            ("originated", ledger.originated),
            ("copied", ledger.copied),
            ("transmitted", ledger.transmitted),
            ("to_kernel", ledger.to_kernel),
            ("to_app", ledger.to_app),
        ];
        let frames = frames.map(|(name, count)| (name.to_string(), count));
        self.family(("frames", "fate"), "Frames by outcome", frames);
        let reasons = weir_packet::DropReason::ALL.iter();
        let drops = reasons.map(|reason| (reason.to_string(), ledger.dropped[*reason as usize]));
        self.family(("dropped", "reason"), "Frames dropped, by reason", drops);
    }

    fn counters(&mut self, now: &Snapshot) {
        let counters = |of: fn(&Count) -> u64| {
            let names = now.plan.program.counters.iter().enumerate().filter(|(_, name)| !name.is_empty());
            names.map(move |(at, name)| {
                (
                    name.clone(),
                    now.reports.iter().filter_map(|report| report.counters.get(at)).map(of).sum::<u64>(),
                )
            })
        };
        let packets = counters(|count| count.packets);
        self.family(("counter_packets", "counter"), "Packets of shared counters", packets);
        self.family(("counter_bytes", "counter"), "Bytes of shared counters", counters(|count| count.bytes));
    }

    fn pipes(&mut self, now: &Snapshot) {
        let pipes = |of: fn(&PipeReport) -> u64| {
            let pipes = now.plan.program.pipes.iter().enumerate();
            pipes.map(move |(at, pipe)| {
                let all = now.reports.iter().filter_map(|report| report.pipes.get(at));
                (pipe.name.clone(), all.map(of).sum::<u64>())
            })
        };
        self.family(("pipe_hits", "pipe"), "Packets that hit an entry of the pipe", pipes(|pipe| pipe.hits));
        let misses = pipes(|pipe| pipe.misses.packets);
        self.family(("pipe_misses", "pipe"), "Packets that missed the pipe", misses);
        let unflowed = pipes(|pipe| pipe.account.unflowed.full);
        self.family(
            ("pipe_unflowed", "pipe"),
            "Packets without a flow entry because the table was full",
            unflowed,
        );
    }

    fn ports(&mut self, now: &Snapshot) {
        let ports = |of: fn(&PortStatistics) -> u64| {
            now.plan.ports.iter().enumerate().map(move |(at, port)| {
                let all = now.reports.iter().filter_map(|report| report.ports.get(at));
                (port.name.clone(), all.map(|port| of(&port.statistics)).sum::<u64>())
            })
        };
        self.family(("port_received", "port"), "Frames received by port", ports(|port| port.received));
        self.family(
            ("port_transmitted", "port"),
            "Frames transmitted by port",
            ports(|port| port.transmitted),
        );
        for (name, extra, help) in SAMPLED {
            let of = |report: &PortReport| report.extra.iter().find(|one| one.0 == extra).map(|one| one.1);
            let all = now.plan.ports.iter().enumerate().filter_map(|(at, port)| {
                let counts = now.reports.iter().filter_map(|report| of(report.ports.get(at)?));
                counts.reduce(|sum, one| sum + one).map(|sum| (port.name.clone(), sum))
            });
            self.family((name, "port"), help, all);
        }
        let lost = ports(|port| port.lost_before);
        self.family(("port_lost_before", "port"), "Frames lost before the worker saw them", lost);
        let starved = ports(|port| port.starved);
        self.family(("port_starved", "port"), "Times without a free frame to receive into", starved);
    }

    /// Counts of the kernel for the ports that use it.
    fn kernel(&mut self, now: &Snapshot) {
        let runs = Family::<Labels, Gauge>::default();
        let decided = Family::<Labels, Counter>::default();
        let left = Family::<Labels, Counter>::default();
        let required = Family::<Labels, Gauge>::default();
        let uses = now.plan.ports.iter().map(kernel_use);
        for (port, kernel) in
            now.kernel().into_iter().zip(uses).filter_map(|(port, uses)| Some((port, uses?)))
        {
            let of_port = vec![("port", port.port.clone())];
            required.get_or_create(&of_port).set(i64::from(kernel == KernelUse::Require));
            runs.get_or_create(&of_port).set(i64::from(port.runs));
            decided.get_or_create(&of_port).inc_by(port.decided);
            for (reason, count) in &port.left {
                let labels = [("reason", reason.clone())].into_iter().chain(of_port.clone()).collect();
                left.get_or_create(&labels).inc_by(count.as_u64().unwrap_or_default());
            }
        }
        self.registry.register("kernel_runs", "1 if the kernel handles frames of the port", runs);
        let help = "1 if the kernel should handle frames of the port: the port says `kernel: require`";
        self.registry.register("kernel_required", help, required);
        let help = "Frames that the kernel has handled since the program was last compiled";
        self.registry.register("kernel_decided", help, decided);
        let help = "Frames that the kernel has left to a worker since the program was last compiled";
        self.registry.register("kernel_left", help, left);
    }

    /// Quantiles over the whole lifetime of a worker: a scrape has no room for every bucket of every worker.
    fn breaths(&mut self, now: &Snapshot) {
        let family = Family::<Labels, Gauge<f64, AtomicU64>>::default();
        let note = |worker: usize, clock: &str, histogram: &Histogram| {
            for (quantile, share) in [("0.5", 0.5), ("0.99", 0.99), ("0.9999", 0.9999), ("1", 1.0)] {
                let labels =
                    [("worker", worker.to_string()), ("clock", clock.into()), ("quantile", quantile.into())];
                family.get_or_create(&labels.into()).set(histogram.quantile_ns(share) as f64 / 1e9);
            }
        };
        for (worker, report) in now.reports.iter().enumerate() {
            note(worker, "processor", &report.breath_times.processor);
            note(worker, "wall", &report.breath_times.wall);
        }
        self.registry.register("breath_seconds", "Duration of a worker's breaths", family);
    }

    fn family(
        &mut self,
        (name, label): (&str, &'static str),
        help: &str,
        counts: impl IntoIterator<Item = (String, u64)>,
    ) {
        let family = Family::<Labels, Counter>::default();
        for (name, count) in counts {
            family.get_or_create(&vec![(label, name)]).inc_by(count);
        }
        self.registry.register(name, help, family);
    }
}

/// The flows of each target, where they are counted.
fn flows(registry: &mut Registry, now: &Snapshot) {
    let active = Family::<Labels, Gauge>::default();
    let begun = Family::<Labels, Counter>::default();
    let repeated = Family::<Labels, Counter>::default();
    let refused = Family::<Labels, Counter>::default();
    let mut with_flows = HashSet::new();
    for ((group, target), flows) in now.flows_of_targets() {
        with_flows.insert(group);
        let labels = vec![("group", group.to_string()), ("target", target.to_string())];
        active.get_or_create(&labels).set(flows.active as i64);
        begun.get_or_create(&labels).inc_by(flows.begun);
        repeated.get_or_create(&labels).inc_by(flows.repeated);
    }
    for (group, count) in now.refused_of_groups() {
        if count == 0 && !with_flows.contains(group) {
            continue;
        }
        refused.get_or_create(&vec![("group", group.to_string())]).inc_by(count);
    }
    registry.register("target_flows", "Live flows pinned to a target of a group", active);
    registry.register("target_flows_begun", "Flows that were pinned to a target of a group", begun);
    let help = "SYNs retransmitted to a target, because it did not answer or its answer was lost";
    registry.register("target_syns_repeated", help, repeated);
    let help = "Packets of new flows for which a group had no target or a NAT pool had no port";
    registry.register("group_refused", help, refused);
}

/// How many address and port pairs of each NAT pool are in use, and how many are free.
fn nat_pools(registry: &mut Registry, now: &Snapshot) {
    let families = [Family::<Labels, Gauge>::default(), Family::default()];
    for (at, pool) in now.plan.program.nat_pools.iter().enumerate() {
        let (used, all) = now.nat_pool_use(at);
        for (family, count) in families.iter().zip([used, all.saturating_sub(used)]) {
            family.get_or_create(&vec![("nat_pool", pool.name.clone())]).set(count as i64);
        }
    }
    let [used, free] = families;
    registry.register("nat_ports_used", "Pairs of address and port of a NAT pool in use", used);
    registry.register("nat_ports_free", "Free pairs of address and port of a NAT pool", free);
}

/// The maximum number of services whose checksums are exported.
const RINGS_MAX: usize = 4096;

/// The checksums of rings: numbers, because a label that changes with the health of a back end would be a new
/// time series each time. A gauge of 64-bit floating point has room for the 48 bits.
fn rings(registry: &mut Registry, now: &Snapshot) {
    let sums = now.ring_sums();
    let [all, each] = [Family::<Labels, Gauge>::default(), Family::default()];
    for (ring, of) in [("configured", &sums.configured), ("effective", &sums.effective)] {
        let number = |sum: Checksum| sum.number() as i64;
        all.get_or_create(&vec![("ring", ring.to_string())]).set(number(sums.rings.total(of)));
        for (owner, sum) in sums.rings.owners().iter().zip(of).take(RINGS_MAX) {
            let labels = vec![("service", owner.service.name.clone()), ("ring", ring.to_string())];
            each.get_or_create(&labels).set(number(*sum));
        }
    }
    registry.register("ring_checksum", "Checksum of all rings, to compare the nodes of a fleet", all);
    registry.register("service_ring_checksum", "Checksum of the ring of a service", each);
}

/// The maximum number of VIPs with a series of their own.
const ROUTES_MAX: usize = 1024;

/// The VIPs that are announced by routes, or should be, and whether the node is draining.
fn routes(registry: &mut Registry, now: &Snapshot) {
    gauge(registry, "draining", "1 if the node is draining", u64::from(now.draining_ns.is_some()));
    if now.routes.is_empty() {
        return;
    }
    let announced = now.routes.iter().filter(|route| route.announced).count();
    gauge(registry, "routes_announced", "VIPs that are announced by a route", announced as u64);
    let help = "VIPs with `announce: route` that are not announced";
    gauge(registry, "routes_withheld", help, (now.routes.len() - announced) as u64);
    let each = Family::<Labels, Gauge>::default();
    for route in now.routes.iter().take(ROUTES_MAX) {
        each.get_or_create(&vec![("vip", route.vip.clone())]).set(i64::from(route.announced));
    }
    registry.register("route_announced", "1 if the VIP is announced by a route", each);
}

/// Values with their own labels, one family per name.
fn samples(registry: &mut Registry, samples: &[(String, Sample)]) {
    let mut names: Vec<&str> = samples.iter().map(|(_, one)| one.name).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let of_name = || samples.iter().filter(|(_, one)| one.name == name);
        let Some((_, first)) = of_name().next() else { continue };
        let counts = Family::<Labels, Counter>::default();
        let gauges = Family::<Labels, Gauge<f64, AtomicU64>>::default();
        for (app, one) in of_name() {
            let labels = [("app", app.clone())].into_iter().chain(one.labels.iter().cloned()).collect();
            match one.value {
                SampleValue::Count(count) => {
                    counts.get_or_create(&labels).inc_by(count);
                }
                SampleValue::Gauge(value) => {
                    gauges.get_or_create(&labels).set(value);
                }
            }
        }
        match first.value {
            SampleValue::Count(_) => registry.register(format!("app_{name}"), first.help, counts),
            SampleValue::Gauge(_) => registry.register(format!("app_{name}"), first.help, gauges),
        }
    }
}

fn gauge(registry: &mut Registry, name: &str, help: &str, value: u64) {
    let gauge: Gauge = Gauge::default();
    gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
    registry.register(name, help, gauge);
}
