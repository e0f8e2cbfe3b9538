//! weir's part in a comparison: a worker with the `basic2` program between two ports, as `weir bench arm`.
//!
//! Between `start` and `stop` on standard input it breathes without a pause; then it says how many frames it has sent.
//! At the end of its input it ends.

use super::scenarios::basic2;
use anyhow::{Context, Result};
use engine::batch::Engine;
use engine::worker::Worker;
use packet::{Pool, Pools, Port, RegionPool, TableHash};
use port::xdp::{Rings, XdpConfig, XdpInterface};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::io::BufRead;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

/// Breaths between two looks at the word.
const BREATHS: u32 = 64;

/// Chunks of an AF_XDP pool besides those that the ports have.
const CHUNKS_SPARE: u32 = 1024;

/// What a worker is put between.
#[derive(clap::Args)]
pub struct Arm {
    /// The core to run on.
    #[arg(long)]
    core: usize,
    #[command(subcommand)]
    ports: Ports,
}

#[derive(clap::Subcommand)]
enum Ports {
    /// Two DPDK devices.
    #[cfg(feature = "dpdk")]
    Dpdk {
        /// MiB of DPDK's memory.
        #[arg(long)]
        mebibytes: u32,
        /// Huge pages.
        #[arg(long)]
        huge: bool,
        /// Where frames come from.
        input: String,
        /// Where they go.
        output: String,
    },
    /// Two interfaces, by AF_XDP.
    Xdp {
        /// Where frames come from.
        input: String,
        /// Where they go.
        output: String,
    },
}

/// Serves turns until standard input ends.
pub fn run(arm: &Arm) -> Result<()> {
    let mut core = CpuSet::new();
    core.set(arm.core);
    sched_setaffinity(None, &core).with_context(|| format!("core {} cannot be used", arm.core))?;
    let (pools, ports) = match &arm.ports {
        #[cfg(feature = "dpdk")]
        Ports::Dpdk { mebibytes, huge, input, output } => dpdk(*mebibytes, *huge, [input, output])?,
        Ports::Xdp { input, output } => xdp([input, output])?,
    };
    let engine = Engine::new(&basic2().program, TableHash::random())?;
    serve(&mut Worker::new(engine, ports, pools));
    Ok(())
}

type Opened = (Pools, Vec<Box<dyn Port>>);

#[cfg(feature = "dpdk")]
fn dpdk(mebibytes: u32, huge: bool, devices: [&String; 2]) -> Result<Opened> {
    use port::dpdk::{DpdkOptions, DpdkPort, Eal, EalMemory, EalOptions, MbufPool};
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

fn xdp(interfaces: [&String; 2]) -> Result<Opened> {
    let mut pools = Pools::new();
    let chunks = 2 * Rings::default().chunks() + CHUNKS_SPARE;
    let pool = pools.add(Pool::Region(RegionPool::new(chunks, packet::CHUNK_MIN)));
    let mut ports: Vec<Box<dyn Port>> = Vec::new();
    for interface in interfaces {
        let take = bpf::Take { promiscuous: true, ..bpf::Take::all() };
        let interface = XdpInterface::attach(XdpConfig::new(interface, take))?;
        ports.push(Box::new(interface.open_queue(0, &mut pools, pool)?));
    }
    Ok((pools, ports))
}

fn serve(worker: &mut Worker) {
    let running = Arc::new(AtomicBool::new(false));
    let turns = listen(Arc::clone(&running));
    let clock = Instant::now();
    println!("ready");
    for () in turns {
        println!("started");
        let before = sent(worker);
        while running.load(Ordering::Relaxed) {
            for _ in 0..BREATHS {
                worker.breathe(clock.elapsed().as_nanos() as u64);
            }
        }
        println!("transmitted {}", sent(worker) - before);
    }
}

fn sent(worker: &Worker) -> u64 {
    worker.ports().iter().map(|port| port.statistics().transmitted).sum()
}

/// Hears the words on a thread of its own; `running` is true between them.
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
