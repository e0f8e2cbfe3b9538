//! weir's part in a comparison: a worker between two ports with the `basic2` program, or another one, as
//! `weir bench arm`.
//!
//! Between `start` and `stop` on standard input, the arm breathes without pausing, and then reports how many
//! frames it has sent. It exits at the end of its input.

use super::scenarios::basic2;
#[cfg(feature = "dpdk")]
use super::scenarios::peer;
use super::source::FrameSource;
use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::io::BufRead;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;
use weir_engine::batch::Engine;
use weir_engine::worker::Worker;
use weir_lab::screen::line;
use weir_packet::{Pool, Pools, Port, RegionPool, TableHash};
use weir_port::xdp::{Rings, XdpConfig, XdpInterface};
use weir_program::Program;

/// Breaths between two checks for a command.
const BREATHS: u32 = 64;

/// Chunks of an AF_XDP pool beyond those that the ports hold.
const CHUNKS_SPARE: u32 = 1024;

/// Frames of a sink: a batch, plus what drivers hold.
#[cfg(feature = "dpdk")]
const SINK_FRAMES: u32 = 8191;

/// Frames that the source sends between two checks for a command: many, as each call costs the kernel
/// milliseconds.
const BURST: u64 = 1 << 18;

/// The ports that a worker runs between, or another role.
#[derive(clap::Args)]
pub struct WorkerArm {
    /// The core to run on.
    #[arg(long)]
    core: usize,
    #[command(subcommand)]
    ports: ArmPorts,
}

#[derive(clap::Subcommand)]
enum ArmPorts {
    /// No worker: the far end of the `change` measurement of `weir bench lb`.
    Changes(crate::lb::FarEndOptions),
    /// Two DPDK devices.
    #[cfg(feature = "dpdk")]
    Dpdk {
        /// DPDK's memory in MiB.
        #[arg(long)]
        mebibytes: u32,
        /// Huge pages.
        #[arg(long)]
        huge: bool,
        /// The input of frames.
        input: String,
        /// The output for frames.
        output: String,
        /// The program, a counterpart of SWX's of the same name.
        #[arg(long, default_value = "basic2")]
        program: String,
        /// Flows of the input.
        #[arg(long, default_value = "1000")]
        flows: u32,
    },
    /// No worker: a sink of the frames of two DPDK devices.
    #[cfg(feature = "dpdk")]
    Sink {
        /// DPDK's memory in MiB, all of it in huge pages.
        #[arg(long)]
        mebibytes: u32,
        /// Queues of a device.
        #[arg(long)]
        queues: u16,
        /// The devices.
        #[arg(num_args = 2)]
        devices: Vec<String>,
    },
    /// No worker: the far end of the loads of `weir bench xenoflow`.
    Far(crate::xenoflow::Far),
    /// No worker: the load of `weir bench xenoflow`, while a round trip is timed.
    Load(crate::xenoflow::GeneratorOptions),
    /// Two interfaces, through AF_XDP.
    Xdp {
        /// The input of frames.
        input: String,
        /// The output for frames.
        output: String,
    },
    /// No worker: a source of frames.
    Source {
        /// The interface to send out of.
        interface: String,
    },
}

/// Serves turns until standard input ends.
pub fn run(arm: &WorkerArm) -> Result<()> {
    let mut core = CpuSet::new();
    core.set(arm.core);
    sched_setaffinity(None, &core).with_context(|| format!("core {} cannot be used", arm.core))?;
    match &arm.ports {
        #[cfg(feature = "dpdk")]
        ArmPorts::Dpdk { mebibytes, huge, input, output, program, flows } => {
            let program = peer(program, *flows).with_context(|| format!("no program `{program}`"))?;
            forward(&program, dpdk(*mebibytes, *huge, [input, output])?)
        }
        #[cfg(feature = "dpdk")]
        ArmPorts::Sink { mebibytes, queues, devices } => sink(*mebibytes, *queues, devices),
        ArmPorts::Xdp { input, output } => forward(&basic2().program, xdp([input, output])?),
        ArmPorts::Source { interface } => source(interface),
        ArmPorts::Changes(probe) => crate::lb::probe(probe),
        ArmPorts::Far(far) => crate::xenoflow::far(far),
        ArmPorts::Load(load) => serve(crate::xenoflow::generator(load)?),
    }
}

type Opened = (Pools, Vec<Box<dyn Port>>);

#[cfg(feature = "dpdk")]
fn dpdk(mebibytes: u32, huge: bool, devices: [&String; 2]) -> Result<Opened> {
    use weir_port::dpdk::{DpdkOptions, DpdkPort, Eal, EalMemory, EalOptions, MbufPool};
    let memory = if huge { EalMemory::Huge(mebibytes) } else { EalMemory::NoHuge(mebibytes) };
    let eal = Eal::init(&EalOptions { memory, ..EalOptions::default() })?;
    let pool = MbufPool::new(eal, super::peers::FRAMES)?;
    let mut pools = Pools::new();
    pools.add(pool.share());
    let mut ports: Vec<Box<dyn Port>> = Vec::new();
    for device in devices {
        let queues = DpdkPort::open(eal, &DpdkOptions::new(device, device), &pool)?;
        ports.extend(queues.into_iter().map(|queue| Box::new(queue) as Box<dyn Port>));
    }
    Ok((pools, ports))
}

#[cfg(feature = "dpdk")]
fn sink(mebibytes: u32, queues: u16, devices: &[String]) -> Result<()> {
    use weir_port::dpdk::{DpdkOptions, DpdkPort, Eal, EalMemory, EalOptions, MbufPool};
    let eal = Eal::init(&EalOptions { memory: EalMemory::Huge(mebibytes), ..EalOptions::default() })?;
    let pool = MbufPool::new(eal, SINK_FRAMES)?;
    let mut pools = Pools::new();
    pools.add(pool.share());
    let open = |device: &String| -> Result<Vec<Box<dyn Port>>> {
        let options = DpdkOptions { queues, ..DpdkOptions::new(device, device) };
        let queues = DpdkPort::open(eal, &options, &pool)?;
        Ok(queues.into_iter().map(|queue| Box::new(queue) as Box<dyn Port>).collect())
    };
    let members = devices.iter().map(open).collect::<Result<_>>()?;
    super::sink::run(pools, members)
}

fn xdp(interfaces: [&String; 2]) -> Result<Opened> {
    let mut pools = Pools::new();
    let chunks = 2 * Rings::default().chunks() + CHUNKS_SPARE;
    let pool = pools.add(Pool::Region(RegionPool::new(chunks, weir_packet::CHUNK_MIN)));
    let mut ports: Vec<Box<dyn Port>> = Vec::new();
    for interface in interfaces {
        let take = weir_bpf::Take { promiscuous: true, ..weir_bpf::Take::all() };
        let interface = XdpInterface::attach(XdpConfig::new(interface, take))?;
        ports.push(Box::new(interface.open_queue(0, &mut pools, pool)?));
    }
    Ok((pools, ports))
}

fn forward(program: &Program, (pools, ports): Opened) -> Result<()> {
    let engine = Engine::new(program, TableHash::random())?;
    let mut worker = Worker::new(engine, ports, pools);
    let clock = Instant::now();
    serve(|running| {
        let before = sent(&worker);
        while running.load(Ordering::Relaxed) {
            for _ in 0..BREATHS {
                worker.breathe(clock.elapsed().as_nanos() as u64);
            }
        }
        Ok(sent(&worker) - before)
    })
}

fn sent(worker: &Worker) -> u64 {
    worker.ports().iter().map(|port| port.statistics().transmitted).sum()
}

fn source(interface: &str) -> Result<()> {
    let mut source = FrameSource::open(interface)?;
    serve(|running| {
        let mut sent = 0;
        while running.load(Ordering::Relaxed) {
            sent += source.send(BURST)?;
        }
        Ok(sent)
    })
}

/// Runs `turn` after each `start`, which lasts as long as its flag is set.
fn serve(mut turn: impl FnMut(&AtomicBool) -> Result<u64>) -> Result<()> {
    let running = Arc::new(AtomicBool::new(false));
    let turns = listen(Arc::clone(&running));
    line("ready")?;
    for () in turns {
        line("started")?;
        line(format_args!("transmitted {}", turn(&running)?))?;
    }
    Ok(())
}

/// Reads commands on a separate thread; `running` is true between `start` and `stop`.
fn listen(running: Arc<AtomicBool>) -> Receiver<()> {
    let (turn, turns) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            running.store(line == "start", Ordering::Relaxed);
            if line == "start" && turn.send(()).is_err() {
                return;
            }
        }
        running.store(false, Ordering::Relaxed);
    });
    turns
}
