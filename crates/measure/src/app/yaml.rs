//! Reads measurements from the configuration, and writes their pipes.

use super::board::Measure;
use super::{Ipfix, MeasurePublisher, Measurement, OfOverlay, Parquet};
use crate::export::NO_PARQUET;
use crate::settings::hex_seed;
use crate::solution::NO_SOLUTIONS;
use crate::{
    KeyKind, LiveSolution, NewSolution, Projection, Query, Seed, Settings, SolutionError, SolutionSettings,
};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use weir_app::App;
use weir_app::kind::flow_table;
use weir_app::kind::{Apps, Configured, Scope};
use weir_config::raw::{Kind, Node};
use weir_config::section::{Section, choice, duration, named, parsed, text, words};
use weir_config::{Key, Report, Shape, Span};
use weir_packet::KeySource;
use weir_program::builder::ProgramBuilder;
use weir_program::check::CAPACITY_MAX;
use weir_program::{Entry, EntryMatch, Forward, Learn, Measured, Origin, Pipe, PipeId, PipeKind, PortId};

const NS_PER_MS: u64 = 1_000_000;
/// The shortest and the longest interval, in nanoseconds.
const INTERVALS: [u64; 2] = [100 * NS_PER_MS, 3_600_000 * NS_PER_MS];
/// An hour in nanoseconds. The length of intervals that are merged with those of other nodes must divide it,
/// because the workers' clocks of all nodes begin at a full hour.
const HOUR_NS: u64 = 3_600_000 * NS_PER_MS;
/// The minimum interval at which flows report their counts, in nanoseconds.
const FLUSH_LEAST: u64 = 10 * NS_PER_MS;
/// The minimum memory for sketches: without any of them, there is nothing to query.
const MEMORY_LEAST: u64 = 8 << 20;
const MEMORY_MAX: u64 = 1 << 36;
const TOP_MAX: u64 = 1_000;
/// The maximum number of KV arrays in front of a solution: a gibibyte.
const KVS_MAX: u64 = 1 << 20;
/// The keys of a `solution`.
const OF_SOLUTION: [&str; 6] = ["aggregator", "kvs", "simd", "always_on", "flow", "spread"];
/// The minimum size that can be configured for files of records, in bytes.
const FILE_LEAST: u64 = 1 << 16;
const FILE_MAX: u64 = 1 << 36;
/// The shortest and the longest time for which records go to the same file, in nanoseconds.
const ROTATIONS: [u64; 2] = [1_000 * NS_PER_MS, 86_400_000 * NS_PER_MS];
/// The maximum number of measurements in a configuration: each has memory of its own.
const MEASUREMENTS_MAX: usize = 16;

pub(super) const KEYS: &[Key] = weir_config::keys! {
    needed "name": Shape::Name, "its name";
    "port": Shape::Either(&[Shape::Name, Shape::List(&Shape::Name)]),
        "the port (or list of ports) whose frames are measured; or `pipe`, or `overlay`";
    "pipe": Shape::Either(&[Shape::Name, Shape::List(&Shape::Name)]),
        "the pipe (or list of pipes) whose flows or packets are measured; or `port`, or `overlay`";
    "overlay": Shape::Name, "the overlay app whose flows between pods are measured; or `port`, or `pipe`";
    "key": Shape::Words(|| words(&SOURCES)), "with `port`: the headers that tell flows apart" or "outer";
    "flows": Shape::Number(1, CAPACITY_MAX as u64),
        "with `port`: keeps flows instead of summing up packets; the number of flows per port and worker";
    "idle_timeout": Shape::Time, "with `flows`: flows idle for longer are evicted" or "30s";
    "interval": Shape::Time, "how long an interval is" or "5s";
    "flush": Shape::Time, "how often flows report their counts, a fraction of the interval; by default once \
     per interval";
    "flush_packets": Shape::Number(1, u32::MAX as u64),
        "where flows are kept: a flow also reports its counts after this number of packets";
    "top": Shape::Number(1, TOP_MAX), "rows of each top list" or "10";
    "memory": Shape::Number(MEMORY_LEAST, MEMORY_MAX),
        "bytes for sketches; answers that do not fit are omitted" or "67108864";
    "seed": Shape::Text, "up to 32 hexadecimal digits, a secret: nodes with the same seed can be measured \
     together (`weir measure --from`)" or "random";
    "solution": Shape::Name, "one of the nine solutions of Agg-Evict's paper, in which flows are counted \
     too; a feature of the build";
    "aggregator": Shape::Name, "with `solution`: the policy of the aggregator in front of it: grr, lru, \
     second_chance, min_count; or none" or "min_count";
    "kvs": Shape::Number(1, KVS_MAX), "with `solution`: KV arrays of the aggregator, of sixteen keys each; \
     by default, as many as a mebibyte holds";
    "simd": Shape::Boolean, "with `solution`: whether the aggregator uses vector instructions" or "true";
    "always_on": Shape::Boolean,
        "with `solution`: whether the aggregator works even where that does not pay" or "false";
    "flow": Shape::Words(|| KeyKind::ALL.map(KeyKind::word).to_vec()),
        "with `solution`: what a flow is" or "5-tuple";
    "spread": Shape::Number(1, u32::MAX as u64), "with `solution: two_level`: report sources with this many \
     destinations" or "64";
    "ipfix": Shape::Map(IPFIX), "sends flow records to a collector";
    "parquet": Shape::Map(PARQUET), "writes flow records to files";
};
const IPFIX: &[Key] = weir_config::keys! {
    needed "to": Shape::Endpoint, "the collector's address and port, such as 192.0.2.1:4739";
    "over": Shape::Words(|| words(&OVER)), "the transport protocol to the collector" or "udp";
    "domain": Shape::Number(0, u32::MAX as u64), "the observation domain" or "1";
};
const PARQUET: &[Key] = weir_config::keys! {
    needed "directory": Shape::Text, "the folder that files are written to, such as /var/lib/weir/flows";
    "rotate": Shape::Time, "how long records go to the same file" or "1m";
    "rotate_bytes": Shape::Number(FILE_LEAST, FILE_MAX), "approximate maximum size of a file" or "268435456";
};
const SOURCES: [(&str, KeySource); 2] = [("outer", KeySource::Outer), ("inner", KeySource::Inner)];
const OVER: [(&str, bool); 2] = [("udp", false), ("tcp", true)];

/// The measurements of a configuration.
#[derive(Debug)]
struct Measurements(Vec<Written>);

/// A measurement, and what it has written into the program.
#[derive(Debug)]
struct Written {
    measurement: Measurement,
    /// The pipes in front of ports.
    fronts: Vec<(PortId, PipeId)>,
    /// The measured pipes from the configuration.
    own: Vec<Own>,
    origin: Origin,
}

/// A measured pipe from the configuration. Whether it keeps flows is known only after all pipes have been
/// read. The settings are checked then, and errors refer to the positions of these keys.
#[derive(Debug)]
struct Own {
    pipe: PipeId,
    key: Option<Origin>,
    flush_packets: Option<Origin>,
}

impl Own {
    fn check(&self, program: &mut ProgramBuilder, report: &mut Report) {
        let pipe = program.pipe_mut(self.pipe);
        let keeps_flows = matches!(pipe.kind, PipeKind::Flow { .. });
        if let Some(origin) = self.key.filter(|_| keeps_flows) {
            let message = format!("FLOW pipe `{}` has its own `key`", pipe.name);
            report.error_help(
                report.span_of(origin),
                message,
                "write it there: the measured flows are the \
                pipe's",
            );
        }
        if let Some(origin) = self.flush_packets.filter(|_| !keeps_flows) {
            let message = format!("pipe `{}` keeps no flows that could report their counts", pipe.name);
            let help = "omit `flush_packets`, or measure a FLOW pipe";
            report.error_help(report.span_of(origin), message, help);
        }
    }
}

/// Returns the measurements of a configuration.
pub(crate) fn measurements(apps: &Apps) -> Vec<Measurement> {
    let all = apps.of::<Measurements>().into_iter().flat_map(|all| &all.0);
    all.map(|written| written.measurement.clone()).collect()
}

impl Configured for Measurements {
    fn running(&self) -> Vec<Box<dyn App>> {
        let app = |written: &Written| -> Box<dyn App> {
            let Measurement { name, interval_ms, board, .. } = written.measurement.clone();
            Box::new(Measure { name, interval_ms, board })
        };
        self.0.iter().map(app).collect()
    }

    fn refer(&self, apps: &Apps, report: &mut Report) {
        let tables = apps.flow_tables();
        for Written { measurement, origin, .. } in &self.0 {
            let Some(of) = &measurement.overlay else { continue };
            let others = || self.0.iter().map(|one| &one.measurement);
            if !tables.contains(&flow_table("overlay", &of.name)) {
                let message = format!("there is no overlay app `{}`", of.name);
                report.error(report.span_of(*origin), message);
            } else if others()
                .find(|one| one.overlay.is_some())
                .is_some_and(|one| one.name != measurement.name)
            {
                let message = format!("another measurement already covers the overlay `{}`", of.name);
                report.error(report.span_of(*origin), message);
            }
        }
    }

    /// Inserts each pipe in front of the destination of its port's frames.
    fn enclose(&self, program: &mut ProgramBuilder, report: &mut Report) {
        for Written { fronts, own, origin, .. } in &self.0 {
            own.iter().for_each(|own| own.check(program, report));
            for &(port, pipe) in fronts {
                let declared = &program.ports[port.index()];
                let Some(root) = declared.root else {
                    let message =
                        format!("the frames of port `{}` enter no pipe: it has no root", declared.name);
                    let help = "give it one, or measure another port";
                    report.error_help(report.span_of(*origin), message, help);
                    continue;
                };
                let front = program.pipe_mut(pipe);
                (front.forward, front.miss) = (Forward::Pipe(root), Forward::Pipe(root));
                program.root(port, pipe);
            }
        }
    }
}

/// Reads the measurements and writes their pipes, in a build without the solutions of Agg-Evict's paper.
pub(super) fn read(items: &[&Node], scope: &mut Scope<'_>) -> Arc<dyn Configured> {
    read_with(None, items, scope)
}

/// Reads the measurements and writes their pipes; `create` creates the solutions of Agg-Evict's paper.
pub fn read_with(create: Option<NewSolution>, items: &[&Node], scope: &mut Scope<'_>) -> Arc<dyn Configured> {
    let mut all: Vec<Written> = Vec::new();
    for item in items {
        let Some(written) = measurement(create, item, scope) else { continue };
        let name = &written.measurement.name;
        if all.iter().any(|other| other.measurement.name == *name) {
            let message = format!("two measurements are called `{name}`");
            scope.report.error(scope.report.span_of(written.origin), message);
        } else if all.len() == MEASUREMENTS_MAX {
            let message = format!("there can be at most {MEASUREMENTS_MAX} measurements");
            scope.report.error(scope.report.span_of(written.origin), message);
        } else {
            all.push(written);
        }
    }
    Arc::new(Measurements(all))
}

/// Reads a measurement; `None` if it cannot be used, and the report says why.
fn measurement(create: Option<NewSolution>, node: &Node, scope: &mut Scope<'_>) -> Option<Written> {
    let before = scope.report.errors();
    let section = Section::read(node, KEYS, scope.report);
    let name = scope.name(&section).filter(|_| scope.name_is_free(&section));
    let origin = scope.report.origin(section.get("name").unwrap_or(node).span);
    let (interval_ns, measured) = times(&section, scope.report);
    let top = section.number("top", scope.report).unwrap_or_default() as usize;
    let settings = Settings {
        top,
        interval_top: top,
        memory: section.number("memory", scope.report).unwrap_or_default() as usize,
        queries: queries(),
        ..Settings::default()
    };
    let seed = section.get("seed").and_then(|node| seed(node, interval_ns, scope.report));
    let solution = solution(create, &section, &settings, scope.report);
    let ipfix = section.get("ipfix").and_then(|node| ipfix(node, scope.report));
    let parquet = section.get("parquet").and_then(|node| parquet(node, scope.report));
    let key = section.get("key").map(|node| choice(node, "`key`", &SOURCES, scope.report));
    let measured = Measured { key: key.flatten().unwrap_or_default(), ..measured };
    let front = front(&section, measured, origin, scope.report);
    let at = place(&section, scope)?;
    if scope.report.errors() > before {
        return None;
    }
    let (name, board) = (name?, MeasurePublisher::default());
    let mut overlay = None;
    let (fronts, pipes, own) = match at {
        MeasurementPort::Overlay(name) => {
            let pipes = vec![flow_table("overlay", &name)];
            overlay = Some(OfOverlay { name, flush_ms: u64::from(measured.period_ms) });
            (Vec::new(), pipes, Vec::new())
        }
        MeasurementPort::Ports(ports) => {
            let (fronts, pipes) = write(&name, &ports, &front, scope);
            (fronts, pipes, Vec::new())
        }
        MeasurementPort::Pipes(all) => {
            let pipes = all.iter().map(|(pipe, span)| measure(*pipe, measured, *span, scope));
            let pipes = pipes.collect::<Option<Vec<String>>>()?;
            let mut place = |key| section.get(key).map(|node| scope.report.origin(node.span));
            let (key, flush_packets) = (place("key"), place("flush_packets"));
            let own = all.into_iter().map(|(pipe, _)| Own { pipe, key, flush_packets });
            (Vec::new(), pipes, own.collect())
        }
    };
    let interval_ms = interval_ns / NS_PER_MS;
    let measurement =
        Measurement { name, pipes, overlay, interval_ms, settings, seed, solution, ipfix, parquet, board };
    Some(Written { measurement, fronts, own, origin })
}

/// Reads the seed that nodes share.
fn seed(node: &Node, interval_ns: u64, report: &mut Report) -> Option<Seed> {
    let text = text(node, "a seed", report)?;
    if !HOUR_NS.is_multiple_of(interval_ns.max(1)) {
        let help = "choose an `interval` that divides an hour, such as 5s, 10s or 1m: intervals of all nodes \
                    then begin at the same moments";
        report.error_help(node.span, "the intervals of nodes with this `seed` would not coincide", help);
        return None;
    }
    let seed = hex_seed(text);
    if seed.is_none() {
        let help = "generate a seed with `openssl rand -hex 16`, and write the same one on all nodes";
        report.error_help(node.span, format!("`{text}` is not up to 32 hexadecimal digits"), help);
    }
    seed
}

/// Reads a solution and the aggregator in front of it, and creates both once to check the settings.
fn solution(
    create: Option<NewSolution>,
    section: &Section<'_>,
    of: &Settings,
    report: &mut Report,
) -> Option<LiveSolution> {
    let Some(node) = section.get("solution") else {
        for key in OF_SOLUTION {
            if let Some(node) = section.get(key) {
                let message = format!("`{key}` has no effect without a `solution`");
                report.error_help(node.span, message, "name one, such as `solution: flow_radar`, or omit it");
            }
        }
        return None;
    };
    let flows = KeyKind::ALL.map(|kind| (kind.word(), kind));
    let settings = SolutionSettings {
        solution: text(node, "the name of a solution", report)?.to_string(),
        aggregator: section
            .get("aggregator")
            .and_then(|node| text(node, "a policy", report))
            .map(str::to_string),
        kvs: section.get("kvs").and_then(|_| section.number("kvs", report)).map(|kvs| kvs as usize),
        simd: section.get("simd").is_none() || section.boolean("simd", report),
        always_on: section.boolean("always_on", report),
        key: Projection::new(section.choice("flow", &flows, report)?),
        spread: section.get("spread").and_then(|_| section.number("spread", report)),
        top: of.top,
        exact_memory: of.memory,
    };
    let Some(create) = create else {
        report.error(node.span, NO_SOLUTIONS);
        return None;
    };
    if let Err(SolutionError { key, value, why }) = create(&settings, Seed::random()) {
        let span = section.get(key).unwrap_or(node).span;
        let value = value.map_or(String::new(), |value| format!(": {value}"));
        report.error_help(span, format!("`{key}{value}` cannot be used"), why);
        return None;
    }
    Some(LiveSolution { settings, create })
}

/// The queries that flow deltas can answer: none that depends on single packets.
fn queries() -> Vec<Query> {
    Query::all().filter(|query| !query.is_about_packets()).collect()
}

/// The place at which traffic is measured.
enum MeasurementPort {
    Ports(Vec<PortId>),
    /// Pipes, with the positions of their names.
    Pipes(Vec<(PipeId, Span)>),
    Overlay(String),
}

fn place(section: &Section<'_>, scope: &mut Scope<'_>) -> Option<MeasurementPort> {
    if let Some(node) = section.get("overlay") {
        for key in ["port", "pipe", "key", "flows", "idle_timeout", "flush_packets"] {
            if let Some(node) = section.get(key) {
                let message = format!("`{key}` is not for a measured `overlay`");
                let help = "omit it: the overlay app identifies flows by the addresses that pods see";
                scope.report.error_help(node.span, message, help);
            }
        }
        return text(node, "the name of an overlay app", scope.report)
            .map(|name| MeasurementPort::Overlay(name.into()));
    }
    match (section.get("port"), section.get("pipe")) {
        (Some(node), None) => ports(node, scope).map(MeasurementPort::Ports),
        (None, Some(node)) => {
            for key in ["flows", "idle_timeout"] {
                if let Some(node) = section.get(key) {
                    let message = format!("`{key}` is for a measured `port`, not for a pipe");
                    scope.report.error_help(node.span, message, "omit it: a FLOW pipe has its own");
                }
            }
            let nodes = one_or_list(node, scope.report);
            let mut pipe = |node: &Node| {
                let names = scope.program.pipes.iter().map(|pipe| pipe.name.as_str());
                let at = named("pipe", node, names, scope.report)?;
                Some((PipeId(at as u16), node.span))
            };
            nodes.iter().map(&mut pipe).collect::<Option<Vec<_>>>().map(MeasurementPort::Pipes)
        }
        (Some(_), Some(node)) => {
            scope.report.error(node.span, "`port` or `pipe`, not both");
            None
        }
        (None, None) => {
            scope.report.error(section.span, "`port`, `pipe` or `overlay` is missing: say what to measure");
            None
        }
    }
}

/// Returns the names of the measured objects, which are given as a single name or a list.
fn one_or_list<'a>(node: &'a Node, report: &mut Report) -> &'a [Node] {
    match &node.kind {
        Kind::List(list) => {
            if list.is_empty() {
                report.error(node.span, "nothing is measured here: write at least one name");
            }
            list
        }
        _ => std::slice::from_ref(node),
    }
}

/// The ports of the named objects, without duplicates.
fn ports(node: &Node, scope: &mut Scope<'_>) -> Option<Vec<PortId>> {
    let mut ports = Vec::new();
    for node in one_or_list(node, scope.report) {
        let attachment = scope.attachment(node)?;
        ports.extend(
            attachment.ports.iter().copied().filter(|port| !ports.contains(port)).collect::<Vec<_>>(),
        );
    }
    (!ports.is_empty()).then_some(ports)
}

/// Reads the interval, and how soon flows report their counts.
fn times(section: &Section<'_>, report: &mut Report) -> (u64, Measured) {
    let [least, most] = INTERVALS;
    let interval_ns = section.time("interval", report);
    let mut span = section.get("interval").map_or(section.span, |node| node.span);
    if !(least..=most).contains(&interval_ns) || !interval_ns.is_multiple_of(NS_PER_MS) {
        report.error_help(span, "`interval` is out of range", "write 100 ms to 1 h, in whole milliseconds");
    }
    let mut flush_ns = interval_ns;
    if let Some(node) = section.get("flush") {
        (flush_ns, span) = (duration(node, "`flush`", report).unwrap_or(interval_ns), node.span);
    }
    let is_part =
        flush_ns >= FLUSH_LEAST && flush_ns.is_multiple_of(NS_PER_MS) && interval_ns.is_multiple_of(flush_ns);
    if !is_part {
        let help = "write at least 10 ms, in whole milliseconds, so that the interval is a multiple of it";
        report.error_help(span, "`flush` must divide the interval", help);
    }
    let packets = section.get("flush_packets").and_then(|_| section.number("flush_packets", report));
    let period_ms = (flush_ns / NS_PER_MS).max(1) as u32;
    (
        interval_ns,
        Measured {
            packets: packets.map_or(u32::MAX, |packets| packets as u32),
            ..Measured::every(period_ms)
        },
    )
}

/// The pipe to put in front of ports, without a name: one that adds up packets by flow, or a FLOW pipe.
fn front(section: &Section<'_>, measured: Measured, origin: Origin, report: &mut Report) -> Pipe {
    if section.get("flows").is_none() {
        for key in ["idle_timeout", "flush_packets"] {
            if let Some(node) = section.get(key).filter(|_| section.get("port").is_some()) {
                let message = format!("`{key}` has no effect unless flows are kept");
                report.error_help(node.span, message, "set the number with `flows`, or omit it");
            }
        }
        return Pipe::basic("").origin(origin).measured(measured);
    }
    Pipe::flow("", Learn::Default)
        .origin(origin)
        .key(measured.key)
        .entries([Entry::on(EntryMatch::Default)])
        .capacity(section.number("flows", report).unwrap_or(1) as u32)
        .idle_timeout_ns(section.time("idle_timeout", report))
        .measured(measured)
}

/// Writes a pipe for each port; its destination is known once all ports have their roots.
fn write(
    name: &str,
    ports: &[PortId],
    front: &Pipe,
    scope: &mut Scope<'_>,
) -> (Vec<(PortId, PipeId)>, Vec<String>) {
    let mut fronts = Vec::new();
    let mut names = Vec::new();
    for &port in ports {
        let pipe = format!("measure/{name}/{}", scope.program.ports[port.index()].name);
        fronts.push((port, scope.program.pipe(Pipe { name: pipe.clone(), ..front.clone() })));
        names.push(pipe);
    }
    (fronts, names)
}

/// Sets up the measurement of a configured pipe. Returns the name of the pipe.
fn measure(pipe: PipeId, measured: Measured, span: Span, scope: &mut Scope<'_>) -> Option<String> {
    let pipe = scope.program.pipe_mut(pipe);
    if pipe.monitor.measured.replace(measured).is_some() {
        let message = format!("pipe `{}` is already measured", pipe.name);
        scope.report.error(span, message);
        return None;
    }
    Some(pipe.name.clone())
}

fn ipfix(node: &Node, report: &mut Report) -> Option<Ipfix> {
    let section = Section::read(node, IPFIX, report);
    let to = section.needed("to", report);
    let to =
        to.and_then(|node| parsed::<SocketAddr>(node, "an address and port such as 192.0.2.1:4739", report));
    let tcp = section.choice("over", &OVER, report);
    let domain = section.number("domain", report);
    Some(Ipfix { to: to?, tcp: tcp?, domain: domain? as u32 })
}

fn parquet(node: &Node, report: &mut Report) -> Option<Parquet> {
    let section = Section::read(node, PARQUET, report);
    if let Some(why) = NO_PARQUET {
        report.error(node.span, why);
    }
    let directory = section.needed("directory", report);
    let directory = directory.and_then(|node| text(node, "a folder", report));
    let rotate_ns = section.time("rotate", report);
    let [least, most] = ROTATIONS;
    if !(least..=most).contains(&rotate_ns) {
        let span = section.get("rotate").map_or(section.span, |node| node.span);
        report.error_help(span, "`rotate` is out of range", "write 1 s to 24 h");
    }
    let rotate_bytes = section.number("rotate_bytes", report)?;
    Some(Parquet { directory: directory?.into(), rotate: Duration::from_nanos(rotate_ns), rotate_bytes })
}
