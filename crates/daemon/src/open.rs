//! Opens the configured ports: one queue of each per worker.

use super::dpdk::Dpdk;
use super::takeover::Offered;
use crate::config::{Fault, Plan, PortConfig, PortKind, Xdp, XdpMode};
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::path::Path;
use tracing::info;
use weir_app::clock::since_1970_ns;
use weir_config::infile;
use weir_config::outfile;
use weir_config::ports::{self, GeneratedTraffic};
use weir_engine::worker::Rewire;
use weir_packet::{Pool, PoolId, Pools, Port, RegionPool};
use weir_port::pcap::Output;
use weir_port::xdp::{Mode, Queues, Rings, Wanted, XdpConfig};
use weir_port::{
    Arrivals, Delay, FaultPort, Faults, Generator, MemPort, PcapPort, Rates, Recording, Retrace, Stream,
    Taps, TracePort, XdpInterface, rewrap,
};
use weir_program::PortId;

/// Chunks of a worker's pool in addition to those in its ports: batches, hand-over, a burst of apps.
const CHUNKS_SPARE: u32 = 1024;

/// The maximum size of a `trace` in each direction, in bytes, so that a forgotten one does not fill the disk.
const TRACE_BYTES: u64 = 1 << 30;

/// Attaches weir's program to the interfaces of all XDP ports. Returns them by the ports' positions.
///
/// Interfaces of ports for which `later` returns true are only prepared: another daemon will hand them over.
pub fn attach(plan: &Plan, later: impl Fn(&PortConfig) -> bool) -> Result<Vec<Option<XdpInterface>>> {
    (0..plan.ports.len()).map(|at| attach_one(plan, at, later(&plan.ports[at]))).collect()
}

/// Attaches weir's program to the interface of a port, if it has one. With `later`, it is only prepared.
pub fn attach_one(plan: &Plan, at: usize, later: bool) -> Result<Option<XdpInterface>> {
    let port = &plan.ports[at];
    let PortKind::Xdp(xdp) = &port.kind else { return Ok(None) };
    let config = XdpConfig {
        port: port.name.clone(),
        interface: xdp.interface.clone(),
        frames: wanted(plan, at).with_context(|| format!("port `{}`", port.name))?,
        mode: mode(xdp.mode),
        rings: Rings::default(),
    };
    let interface = if later { XdpInterface::prepare(config) } else { XdpInterface::attach(config) };
    Ok(Some(interface.with_context(|| format!("port `{}`", port.name))?))
}

/// Changes the rules of the interfaces to those of `plan`; `order` has the current position of each of its
/// ports.
pub fn set_take(plan: &Plan, order: &[Option<usize>], interfaces: &mut [Option<XdpInterface>]) -> Result<()> {
    for (at, (port, old)) in plan.ports.iter().zip(order).enumerate() {
        let interface = old.and_then(|old| interfaces.get_mut(old)?.as_mut());
        if let (PortKind::Xdp(xdp), Some(interface)) = (&port.kind, interface) {
            let wanted = wanted(plan, at).with_context(|| format!("port `{}`", port.name))?;
            interface.want(wanted).with_context(|| format!("port `{}`", port.name))?;
            interface.call(&xdp.interface);
        }
    }
    Ok(())
}

/// Returns the NUMA node of the plan's interfaces if they all share one: memory for frames and tables should
/// be there.
pub fn node(plan: &Plan) -> Option<u32> {
    weir_port::numa::common(plan.ports.iter().filter_map(PortConfig::interface_name))
}

/// Returns the number of buckets over which all ports spread frames to the workers' queues in the same way as
/// workers share flows; 0 if some ports do not. DPDK ports are configured by weir, `xdp` ports by `ethtool`.
pub fn spread(plan: &Plan, dpdk: Option<&Dpdk>) -> u32 {
    let workers = plan.workers.count();
    let one = |(at, port): (usize, &PortConfig)| match (&port.kind, dpdk) {
        (PortKind::Dpdk { .. }, Some(dpdk)) => dpdk.spread(at),
        (PortKind::Xdp(xdp), _) if xdp.queues.is_none() => {
            let name = port.interface_name().unwrap_or_default();
            weir_port::xdp::spread(name, workers as u32).buckets()
        }
        _ => 0,
    };
    if workers < 2 {
        return 0;
    }
    let mut all = plan.ports.iter().enumerate().map(one);
    let first = all.next().unwrap_or_default();
    if all.all(|buckets| buckets == first) { first } else { 0 }
}

/// Returns a worker's pools and its queue of every port.
pub fn ports(
    plan: &Plan,
    interfaces: &[Option<Queues>],
    dpdk: &mut Option<Dpdk>,
    worker: usize,
    offered: &mut Offered,
) -> Result<(Pools, Vec<Box<dyn Port>>)> {
    let mut pools = Pools::new();
    let adopted = adopt(plan, interfaces, worker, offered, &mut pools)?;
    add_pools(plan, interfaces, dpdk.as_ref(), adopted.len(), &mut pools);
    let mut open = Vec::new();
    for (at, (config, interface)) in plan.ports.iter().zip(interfaces).enumerate() {
        let adopted = adopted.iter().find(|(port, _)| *port == at).zip(interface.as_ref());
        let inner = match (&config.kind, dpdk.as_mut(), adopted) {
            (PortKind::Dpdk { .. }, Some(dpdk), _) => dpdk.queue(at)?,
            (PortKind::Xdp(xdp), _, Some(((_, pool), interface))) => {
                adopted_port(config, xdp, interface, (worker, plan.workers.count()), (&mut pools, *pool))?
            }
            _ => one(config, interface.as_ref(), &mut pools, worker, plan.workers.count())
                .with_context(|| format!("port `{}`", config.name))?,
        };
        open.push(wrap_at(inner, config, (worker, 0), outfile::create_without_waiting)?);
    }
    Ok((pools, open))
}

/// Adds a pool for each kind of memory that the ports need beyond the adopted pools. Frames that weir itself
/// creates come from the first.
fn add_pools(
    plan: &Plan,
    interfaces: &[Option<Queues>],
    dpdk: Option<&Dpdk>,
    adopted: usize,
    pools: &mut Pools,
) {
    let xdp_ports = interfaces.iter().flatten().count() - adopted;
    let all_dpdk = plan.ports.iter().all(|port| matches!(port.kind, PortKind::Dpdk { .. }));
    if plan.ports.is_empty() || !all_dpdk && (adopted == 0 || xdp_ports > 0) {
        let chunks = xdp_ports as u32 * Rings::default().chunks() + CHUNKS_SPARE;
        pools.add(Pool::Region(region(xdp_ports, chunks, plan.chunk())));
    }
    if let Some(dpdk) = dpdk {
        pools.add(dpdk.pool());
    }
}

/// Allocates the memory of a pool, such that another process can take it over if there are sockets on it.
fn region(xdp_ports: usize, chunks: u32, chunk: usize) -> RegionPool {
    if xdp_ports > 0 { RegionPool::shareable(chunks, chunk) } else { RegionPool::new(chunks, chunk) }
}

/// Adopts the pools of the sockets that another daemon offers for a worker's queues, unless another worker
/// has adopted them. Returns the positions of the ports whose sockets use these pools, and logs why those of
/// other ports do not.
fn adopt(
    plan: &Plan,
    interfaces: &[Option<Queues>],
    worker: usize,
    offered: &mut Offered,
    pools: &mut Pools,
) -> Result<Vec<(usize, PoolId)>> {
    let (mut ports, mut adopted) = (Vec::new(), Vec::<(u32, PoolId)>::new());
    for (at, (config, interface)) in plan.ports.iter().zip(interfaces).enumerate() {
        let (PortKind::Xdp(xdp), Some(interface)) = (&config.kind, interface) else { continue };
        if !interface.is_prepared() || offered.is_empty() {
            continue;
        }
        let queue = queues((config, xdp), interface, plan.workers.count())
            .with_context(|| format!("port `{}`", config.name))?[worker];
        let known = |number| adopted.iter().find(|(known, _)| *known == number).map(|(_, pool)| *pool);
        let pool = interface.offered(queue).map_err(str::to_owned).and_then(|number| match known(number) {
            Some(pool) => Ok((number, pool)),
            None => offered.take(number, plan.chunk()).map(|pool| (number, pools.add(Pool::Region(pool)))),
        });
        match pool {
            Ok((number, pool)) => {
                adopted.push((number, pool));
                ports.push((at, pool));
            }
            Err(why) => say_not_adopted(&config.name, queue, &why),
        }
    }
    Ok(ports)
}

/// Opens a worker's queue of one port, on the socket that another daemon offers and on that socket's pool.
fn adopted_port(
    config: &PortConfig,
    xdp: &Xdp,
    interface: &Queues,
    (worker, workers): (usize, usize),
    (pools, pool): (&mut Pools, PoolId),
) -> Result<Box<dyn Port>> {
    let mut open = || {
        let queue = queues((config, xdp), interface, workers)?[worker];
        let (port, refused) = interface.adopt(queue, pools, pool)?;
        refused.iter().for_each(|why| say_not_adopted(&config.name, queue, why));
        Ok::<_, anyhow::Error>(Box::new(port) as Box<dyn Port>)
    };
    open().with_context(|| format!("port `{}`", config.name))
}

fn say_not_adopted(port: &str, queue: u32, why: &str) {
    info!("port {port}: the socket of queue {queue} could not be taken over and was reopened: {why}");
}

/// Opens a worker's queue of one port, on a pool of its own.
pub fn alone(
    config: &PortConfig,
    interface: Option<&Queues>,
    (worker, workers): (usize, usize),
    chunk: usize,
    now_ns: u64,
) -> Result<(Box<dyn Port>, Pools)> {
    let mut pools = Pools::new();
    let chunks = interface.map_or(0, |_| Rings::default().chunks()) + CHUNKS_SPARE;
    pools.add(Pool::Region(region(usize::from(interface.is_some()), chunks, chunk)));
    let inner = one(config, interface, &mut pools, worker, workers)
        .with_context(|| format!("port `{}`", config.name))?;
    Ok((wrap_at(inner, config, (worker, now_ns), outfile::create_without_waiting)?, pools))
}

fn one(
    config: &PortConfig,
    interface: Option<&Queues>,
    pools: &mut Pools,
    worker: usize,
    workers: usize,
) -> Result<Box<dyn Port>> {
    let pool = pools.first().id();
    match (&config.kind, interface) {
        (PortKind::Xdp(xdp), Some(interface)) => {
            let queue = queues((config, xdp), interface, workers)?[worker];
            let port = interface.open(queue, pools, pool)?;
            Ok(Box::new(port))
        }
        (PortKind::Xdp(_), None) => bail!("its interface was not attached"),
        (PortKind::Pcap { .. }, _) if workers > 1 => {
            bail!("a recording has one queue: use one worker")
        }
        (PortKind::Pcap { input, output, kernel }, _) => Ok(Box::new(recording(
            &config.name,
            pool,
            input,
            output,
            kernel,
            outfile::create_without_waiting,
        )?)),
        (PortKind::Mem, _) => Ok(Box::new(MemPort::new(&config.name, pool).0)),
        (PortKind::Traffic(traffic), _) => Ok(Box::new(arrivals(&config.name, traffic, pools, pool))),
        (PortKind::Dpdk { .. }, _) => bail!("DPDK was not started"),
    }
}

/// Creates a port of generated traffic; every worker gets all of it.
fn arrivals(name: &str, traffic: &GeneratedTraffic, pools: &mut Pools, pool: PoolId) -> Arrivals {
    let pace = match traffic.pace {
        ports::Pace::Full => weir_port::Pace::Full,
        ports::Pace::Rate(rate) => weir_port::Pace::PerSecond(rate),
        ports::Pace::Share(share) => weir_port::Pace::Share(share),
    };
    let frames = Generator::new(name, pools, pool, Stream::scattered(traffic.flows), 0);
    Arrivals::new(frames, pace, traffic.frames.unwrap_or(u64::MAX))
}

type OptionalPath = Option<std::path::PathBuf>;

/// Opens an output. A daemon never waits for the reader of an output.
pub type Create = fn(&Path) -> Result<File>;

/// Opens a pcap port and its files.
pub fn recording(
    name: &str,
    pool: PoolId,
    input: &OptionalPath,
    output: &OptionalPath,
    kernel: &OptionalPath,
    create: Create,
) -> Result<PcapPort> {
    let named = |path: &Path| -> Result<Output> {
        Ok(Output { name: path.display().to_string(), file: Box::new(create(path)?) })
    };
    let files = weir_port::pcap::Files {
        input: input.as_deref().map(|path| open(path).map(|file| Box::new(file) as _)).transpose()?,
        output: output.as_deref().map(&named).transpose()?,
        // Frames that are not recorded are counted and freed, because the check assumes that recordings have
        // a kernel path.
        kernel: Some(kernel.as_deref().map_or_else(|| Ok(nowhere()), named)?),
    };
    let read = input.as_ref().map_or_else(|| "its output".to_string(), |path| path.display().to_string());
    PcapPort::open(name, pool, files).context(read)
}

fn open(path: &Path) -> Result<File> {
    infile::open(path).with_context(|| format!("{} cannot be read", path.display()))
}

fn nowhere() -> Output {
    Output { name: "nowhere".to_string(), file: Box::new(std::io::sink()) }
}

/// Checks that every port has a queue for every worker, when the number of workers changes.
pub fn check_queues(plan: &Plan, interfaces: &[Option<Queues>]) -> Result<()> {
    for (port, interface) in plan.ports.iter().zip(interfaces) {
        if let (PortKind::Xdp(xdp), Some(interface)) = (&port.kind, interface) {
            queues((port, xdp), interface, plan.workers.count())
                .with_context(|| format!("port `{}`", port.name))?;
        }
    }
    Ok(())
}

/// Returns the queues of a port, the `n`th for worker `n`: every worker needs one to transmit on.
fn queues((port, xdp): (&PortConfig, &Xdp), interface: &Queues, workers: usize) -> Result<Vec<u32>> {
    let queues: Vec<u32> = xdp.queues.clone().unwrap_or_else(|| (0..interface.count()).collect());
    if queues.len() != workers {
        let nic = port.nic.clone().unwrap_or_default();
        bail!(
            "{} has {} queue(s) for weir but there are {workers} worker(s), and every queue needs its own \
             worker. Set `workers: {}`, or `{}`; with `queues: [0]` (as many queues as workers), frames of \
             other queues stay with the kernel",
            xdp.interface,
            queues.len(),
            queues.len(),
            nic.resize(workers)
        );
    }
    Ok(queues)
}

fn mode(mode: XdpMode) -> Option<Mode> {
    match mode {
        XdpMode::Auto => None,
        XdpMode::ZeroCopy => Some(Mode::NativeZeroCopy),
        XdpMode::Copy => Some(Mode::NativeCopy),
        XdpMode::Generic => Some(Mode::GenericCopy),
    }
}

/// Returns what the interface of port `at` takes: what its configuration says and the apps need, minus
/// traffic for the host's current addresses.
pub(super) fn wanted(plan: &Plan, at: usize) -> Result<Wanted> {
    let PortKind::Xdp(xdp) = &plan.ports[at].kind else { return Ok(Wanted::default()) };
    let mac = plan.ports[at].mac.filter(|_| plan.ports[at].mac_configured);
    let mut take = plan.frames(PortId(at as u16));
    if takes_by_source(&take) {
        take.own = weir_netlink::addresses().context("the host's addresses cannot be read")?;
        take.own.sort_unstable();
    }
    Ok(Wanted { take, promiscuous: xdp.promisc, mac })
}

/// Returns whether what an interface takes depends on the host's addresses.
fn takes_by_source(take: &weir_bpf::Take) -> bool {
    take.rules.iter().any(|rule| rule.source.is_some())
}

/// Wraps a port of a replay with faults and traces, as configured.
pub fn wrap(inner: Box<dyn Port>, config: &PortConfig) -> Result<Box<dyn Port>> {
    wrap_at(inner, config, (0, 0), outfile::create)
}

/// Wraps a worker's port, which is opened at time `now_ns` of the worker's clock, with faults and traces.
fn wrap_at(
    inner: Box<dyn Port>,
    config: &PortConfig,
    when: (usize, u64),
    create: Create,
) -> Result<Box<dyn Port>> {
    let mut port = inner;
    if let Some(fault) = &config.fault {
        port = Box::new(FaultPort::new(port, faults(fault)));
    }
    if let Some(path) = &config.trace {
        port = Box::new(TracePort::with(port, recording_of(path, when, create)?));
    }
    Ok(port)
}

/// Creates the files of a trace. `now_ns` is the worker's time.
fn recording_of(path: &Path, (worker, now_ns): (usize, u64), create: Create) -> Result<Recording> {
    let epoch_ns = since_1970_ns();
    let file = |direction: &str| {
        let file = create(&traced(path, direction, worker))?;
        Ok::<_, anyhow::Error>(Some(Box::new(file) as _))
    };
    let taps = Taps {
        received: file("in")?,
        transmitted: file("out")?,
        to_kernel: None,
        limit_bytes: TRACE_BYTES,
        base_ns: epoch_ns.saturating_sub(now_ns),
    };
    Ok(Recording::begin(taps)?)
}

/// Returns what a reload does to a worker's port that has index `at` now.
pub fn rewire(at: usize, old: &PortConfig, new: &PortConfig, worker: usize, now_ns: u64) -> Result<Rewire> {
    if (&old.fault, &old.trace) == (&new.fault, &new.trace) {
        return Ok(Rewire::Keep(at));
    }
    let trace = if old.trace == new.trace {
        Retrace::Keep
    } else {
        let begin =
            |path| recording_of(path, (worker, now_ns), outfile::create_without_waiting).map(Box::new);
        let begin = new.trace.as_deref().map(begin).transpose();
        Retrace::Change(begin.with_context(|| format!("port `{}`", new.name))?)
    };
    let faults = new.fault.as_ref().map(faults);
    Ok(Rewire::Change(at, Box::new(move |port| rewrap(port, faults, trace))))
}

/// Returns the file of a trace: `trace.pcap` becomes `trace.in.pcap`, and `trace.1.in.pcap` for the second
/// worker.
pub fn traced(path: &Path, direction: &str, worker: usize) -> std::path::PathBuf {
    let ending = if worker == 0 { format!("{direction}.pcap") } else { format!("{worker}.{direction}.pcap") };
    path.with_extension(ending)
}

/// Converts the configuration's fractions to parts per million; faults affect received frames.
fn faults(fault: &Fault) -> Faults {
    let ppm = |share: f64| (share * 1e6).round() as u32;
    let receive = Rates {
        loss_ppm: ppm(fault.loss),
        duplication_ppm: ppm(fault.duplicate),
        truncation_ppm: ppm(fault.truncate),
        corruption_ppm: ppm(fault.corrupt),
        reordering_ppm: ppm(fault.reorder),
        delay_ppm: if fault.delay_ns > 0 { 1_000_000 } else { 0 },
        delay: Delay::Ns(fault.delay_ns),
    };
    Faults { seed: fault.seed, receive, transmit: Rates::default() }
}
