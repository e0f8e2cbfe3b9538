//! The plan's DPDK ports. If the plan has any, DPDK is started once; the ports share one pool, and every
//! worker has one queue of each port.
//!
//! Huge pages are used if enough of them are free; otherwise DPDK runs on ordinary memory, and a message says
//! so. Only PCI devices that the plan names are used. A reload changes none of this: ports stay as they are.

use crate::config::{Plan, PortConfig, PortKind};
use anyhow::{Context, Result, bail};
use std::vec::IntoIter;
use tracing::warn;
use weir_packet::{Pool, Port};
pub use weir_port::dpdk::DpdkLink;
use weir_port::dpdk::{
    DESCRIPTORS, DpdkError, DpdkOptions, DpdkPort, Eal, EalMemory, EalOptions, EalThread, MBUF_ROOM, MbufPool,
};
use weir_port::huge_pages;

/// Frames per worker in addition to those in its ports: its cache, batches, hand-over, a burst of apps.
const FRAMES_SPARE: usize = 2048;

/// The smallest pool: a driver may want more descriptors than requested.
const FRAMES_MIN: usize = 8192;

/// Memory per frame of usual size in KiB: a page of ordinary memory, or its own size in huge pages.
const FRAME_KIB: usize = 4;
const FRAME_KIB_HUGE: usize = 3;

/// Memory of DPDK besides frames in MiB: rings, device tables.
const OTHER_MIB: usize = 64;

/// DPDK and its ports, before the workers get them.
pub struct Dpdk {
    eal: Eal,
    pool: MbufPool,
    /// For each port of the plan, the queues that have no worker yet; empty for ports of other kinds.
    queues: Vec<IntoIter<DpdkPort>>,
}

impl Dpdk {
    /// Starts DPDK and opens its ports; `None` if the plan has none.
    pub fn open(plan: &Plan) -> Result<Option<Dpdk>> {
        let devices: Vec<&str> = plan.ports.iter().filter_map(|port| Some(device(port)?.devargs)).collect();
        if devices.is_empty() {
            return Ok(None);
        }
        let frames = frames(plan);
        let pci = devices.iter().filter(|device| is_pci(device));
        let arguments: Vec<String> = pci.flat_map(|device| ["-a".to_string(), device.to_string()]).collect();
        let eal = Eal::init(&EalOptions {
            memory: memory(frames, plan.frame_bytes()),
            pci: !arguments.is_empty(),
            arguments,
        })?;
        let pool = MbufPool::with_room(eal, frames as u32, plan.frame_bytes())?;
        let open = |(at, port)| queues(eal, &pool, plan, at, port);
        let queues = plan.ports.iter().enumerate().map(open).collect::<Result<_>>()?;
        Ok(Some(Dpdk { eal, pool, queues }))
    }

    /// Returns a share of the ports' pool.
    pub fn pool(&self) -> Pool {
        self.pool.share()
    }

    /// Returns, for each port of the plan before a worker has it, a handle to query its link; none for ports
    /// of other kinds.
    pub fn links(&self) -> Vec<Option<DpdkLink>> {
        self.queues.iter().map(|queues| queues.as_slice().first().map(DpdkPort::link)).collect()
    }

    /// Configures a port of the plan, before a worker gets it, to spread frames in the same way as the
    /// workers share flows. Returns the number of buckets; 0 if the port does not support that.
    pub fn spread(&self, at: usize) -> u32 {
        self.queues[at].as_slice().first().map_or(0, DpdkPort::spread)
    }

    /// Returns the next worker's queue of the plan's port number `at`.
    pub fn queue(&mut self, at: usize) -> Result<Box<dyn Port>> {
        Ok(Box::new(self.queues[at].next().context("every worker has one queue")?))
    }

    /// Returns a function that a worker's thread must call first; the result must live as long as the worker.
    pub fn register(&self) -> impl FnOnce() -> Result<EalThread> + Send + use<> {
        let eal = self.eal;
        move || Ok(eal.register_thread()?)
    }
}

/// A configured DPDK port.
#[derive(Clone, Copy)]
struct Device<'a> {
    devargs: &'a str,
    tap: Option<&'a str>,
    frames: u32,
}

fn device(port: &PortConfig) -> Option<Device<'_>> {
    match &port.kind {
        PortKind::Dpdk { devargs, tap, frames } => {
            Some(Device { devargs, tap: tap.as_deref(), frames: *frames })
        }
        PortKind::Xdp(_) | PortKind::Pcap { .. } | PortKind::Mem | PortKind::Traffic(_) => None,
    }
}

/// Returns true for a PCI address such as `0000:01:00.0` or `01:00.0`, with or without arguments, and false
/// for a virtual device.
fn is_pci(devargs: &str) -> bool {
    let address = devargs.split(',').next().unwrap_or_default();
    let parts: Vec<&str> = address.trim_start_matches("pci:").split([':', '.']).collect();
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    let hexadecimal = parts.iter().all(|part| part.bytes().all(|digit| digit.is_ascii_hexdigit()));
    hexadecimal && matches!(lengths[..], [4, 2, 2, 1] | [2, 2, 1])
}

/// Returns the size of the pool: enough for every descriptor of every queue, for the workers, and for what
/// devices hold; a power of two minus one, as mempools prefer.
fn frames(plan: &Plan) -> usize {
    let devices = || plan.ports.iter().filter_map(device);
    let queues: usize = devices().map(|device| 1 + usize::from(device.tap.is_some())).sum();
    let of_worker = queues * 2 * usize::from(DESCRIPTORS) + FRAMES_SPARE;
    let kept: usize = devices().map(|device| device.frames as usize).sum();
    (of_worker * plan.workers.count() + kept).max(FRAMES_MIN).next_power_of_two() - 1
}

/// `longest` is the length of the longest frame, in bytes, if it is above the usual.
fn memory(frames: usize, longest: usize) -> EalMemory {
    let more_kib = longest.saturating_sub(MBUF_ROOM).div_ceil(1024);
    let mebibytes = |frame_kib: usize| ((frames * (frame_kib + more_kib)) >> 10) + OTHER_MIB;
    let (wanted, free) = (mebibytes(FRAME_KIB_HUGE), huge_pages::free_mebibytes());
    if wanted <= free {
        return EalMemory::Huge(wanted as u32);
    }
    warn!(
        "DPDK uses ordinary memory, because it needs {wanted} MiB of huge pages and only {free} MiB are \
         free: `echo {} > /proc/sys/vm/nr_hugepages` before the start makes it faster",
        huge_pages::count(wanted)
    );
    EalMemory::NoHuge(mebibytes(FRAME_KIB) as u32)
}

fn queues(
    eal: Eal,
    pool: &MbufPool,
    plan: &Plan,
    at: usize,
    port: &PortConfig,
) -> Result<IntoIter<DpdkPort>> {
    let Some(Device { devargs: device, tap, .. }) = device(port) else { return Ok(Vec::new().into_iter()) };
    let workers = plan.workers.count();
    let options = DpdkOptions {
        queues: workers as u16,
        mtu: plan.mtu.unwrap_or_default(),
        kernel: tap.map(|tap| format!("net_tap{at},iface={tap}")),
        ..DpdkOptions::new(&port.name, device)
    };
    match DpdkPort::open(eal, &options, pool) {
        Ok(queues) => Ok(queues.into_iter()),
        Err(DpdkError::Queues { device, most, .. }) => bail!(
            "port `{}`: DPDK device `{device}` supports {most} queues, but each of the {workers} workers \
             needs one: set `workers: {most}`, or configure more queues in the device's arguments",
            port.name
        ),
        Err(error) => Err(error).with_context(|| format!("port `{}`", port.name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pci_address_is_told_from_a_virtual_device() {
        for pci in ["0000:01:00.0", "01:00.0", "pci:0000:af:00.1", "0000:01:00.0,representor=[0-3]"] {
            assert!(is_pci(pci), "{pci}");
        }
        for other in ["net_null0", "net_pcap0,rx_pcap=0000:01:00.0", "", "01:00", "zz:00.0", "vdev:net_ring0"]
        {
            assert!(!is_pci(other), "{other}");
        }
    }
}
