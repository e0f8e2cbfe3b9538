//! A DPDK port: one queue in each direction of any device that a driver of DPDK 22.11 supports.
//!
//! Promises: a frame that the driver accepts counts as transmitted, because drivers do not report completion
//! (`held` is 0); frames lost after that are the driver's `oerrors`. Frames with several segments are refused
//! and counted. Frames for the host's stack leave through a TAP port beside this one, and frames that the
//! host sends there leave through this port without passing the program: host and port share one wire. Cost:
//! one foreign call per burst; receiving writes 32 bytes per frame, transmitting rewrites one cache line of
//! the mbuf.

use super::eal::{DpdkError, Eal, first_line, plug_error};
use super::link::DpdkLink;
use super::pool::MbufPool;
use super::shim::{self, Device, Queue};
use std::collections::BTreeSet;
use std::ffi::CString;
use std::sync::{Mutex, PoisonError};
use weir_packet::{Batch, Bits, PoolId, Pools, Port, PortStatistics};

/// Descriptors of a queue in each direction, unless the driver requires another number: DPDK's usual default
/// for throughput.
pub const DESCRIPTORS: u16 = 1024;

/// Extended statistics read per port: mlx5 has hundreds, most of them per queue.
const XSTATS_MAX: usize = 128;

/// The first extended statistics are DPDK's own, the same for all drivers; they are reported under their
/// `rte_eth_stats` names.
const XSTATS_COMMON: usize = 8;

/// Configuration of a port.
#[derive(Clone, Debug)]
pub struct DpdkOptions {
    /// The port's name in the program.
    pub name: String,
    /// Device arguments: a PCI address or the name of a virtual device, followed by the driver's arguments.
    pub device: String,
    /// Queues in each direction.
    pub queues: u16,
    /// Descriptors of a queue.
    pub descriptors: u16,
    /// The largest packet without Ethernet header, in bytes, if the device accepts it; 0 for the driver's
    /// default.
    pub mtu: u16,
    /// Device arguments of a TAP device (`net_tap0,iface=...`) connected to the host's stack.
    pub kernel: Option<String>,
}

impl DpdkOptions {
    /// Options for one queue without a connection to the host's stack.
    #[must_use]
    pub fn new(name: &str, device: &str) -> DpdkOptions {
        DpdkOptions {
            name: name.into(),
            device: device.into(),
            queues: 1,
            descriptors: DESCRIPTORS,
            mtu: 0,
            kernel: None,
        }
    }
}

/// One queue of a DPDK port.
pub struct DpdkPort {
    name: String,
    driver: String,
    wire: Queue,
    kernel: Option<Kernel>,
    statistics: PortStatistics,
    /// Numbers and names of the driver's extended statistics, on queue 0.
    xstats: (Vec<u64>, Vec<&'static str>),
}

/// The connection to the host's stack.
struct Kernel {
    tap: Queue,
    /// Frames from the host on their way to the wire; empty between flushes.
    batch: Batch,
    sent: u64,
    lost: u64,
}

impl DpdkPort {
    /// Plugs the device in and opens its queues in order, one [`DpdkPort`] for each worker. Frames come from
    /// `pool`.
    ///
    /// # Errors
    /// Returns why there is no such device, or why it does not start.
    pub fn open(eal: Eal, options: &DpdkOptions, pool: &MbufPool) -> Result<Vec<DpdkPort>, DpdkError> {
        let (driver, wires) = open_device(eal, &options.device, options, pool)?;
        let mut taps = match &options.kernel {
            Some(device) => open_device(eal, device, options, pool)?.1,
            None => Vec::new(),
        }
        .into_iter();
        let open = |wire: Queue| DpdkPort {
            name: options.name.clone(),
            driver: driver.clone(),
            xstats: if wire.number() == 0 { xstats(wire.device()) } else { Default::default() },
            wire,
            kernel: taps.next().map(|tap| Kernel { tap, batch: Batch::new(), sent: 0, lost: 0 }),
            statistics: PortStatistics::default(),
        };
        Ok(wires.into_iter().map(open).collect())
    }

    /// Configures the port to spread frames over its queues in the way workers share flows: by a hash of
    /// addresses and ports with [`weir_packet::RSS_KEY`]. Returns the number of buckets that are assigned to
    /// the queues in turn; 0 if the driver does not support this. Called once for all queues.
    #[must_use]
    pub fn spread(&self) -> u32 {
        self.wire.spread()
    }

    /// Returns a handle to query the port's link, the same for all of its queues.
    #[must_use]
    pub fn link(&self) -> DpdkLink {
        DpdkLink::new(self.wire.shared_device())
    }
}

fn open_device(
    eal: Eal,
    devargs: &str,
    options: &DpdkOptions,
    pool: &MbufPool,
) -> Result<(String, Vec<Queue>), DpdkError> {
    let _ = eal.take_log();
    let text = CString::new(devargs).unwrap_or_default();
    let device = Device::plug(&text).map_err(|errno| plug_error(devargs, errno, &shim::take_log()))?;
    let failed = |errno| {
        let log = format!("{} (errno {errno})", first_line(&shim::take_log()));
        DpdkError::PortStart { device: devargs.into(), log }
    };
    let (driver, receive, transmit) = device.info().map_err(failed)?;
    let (wanted, most) = (options.queues, receive.min(transmit));
    if wanted == 0 || wanted > most {
        return Err(DpdkError::Queues { device: devargs.into(), wanted, most });
    }
    let queues = device.start((wanted, options.descriptors), options.mtu, pool.mempool()).map_err(failed)?;
    Ok((driver, queues))
}

fn xstats(device: &Device) -> (Vec<u64>, Vec<&'static str>) {
    let per_queue = |name: &str| name.starts_with("rx_q") || name.starts_with("tx_q");
    let names = device.xstat_names(XSTATS_MAX).into_iter().skip(XSTATS_COMMON);
    names.filter(|(_, name)| !per_queue(name)).map(|(id, name)| (id, intern(name))).unzip()
}

/// Returns a copy of a statistic's name that lives as long as the process. Names are few, and the same for
/// all ports of a driver.
fn intern(name: String) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.get(name.as_str()) {
        return known;
    }
    let name: &'static str = name.leak();
    names.insert(name);
    name
}

/// Transmits, and forgets the frames that the driver now owns.
#[inline]
fn transmit(queue: &mut Queue, batch: &mut Batch, list: u64) -> (u64, shim::Burst) {
    let (accepted, burst) = queue.transmit(batch.frames(), list);
    for slot in Bits(accepted) {
        let _ = batch.take(slot);
    }
    (accepted, burst)
}

impl Port for DpdkPort {
    fn name(&self) -> &str {
        &self.name
    }

    fn pool(&self) -> Option<PoolId> {
        Some(self.wire.pool())
    }

    #[inline]
    fn receive(&mut self, _pools: &mut Pools, batch: &mut Batch) {
        let burst = self.wire.receive(batch.free_slots());
        batch.extend(usize::from(burst.frames));
        self.statistics.received += u64::from(burst.frames) + u64::from(burst.refused);
        self.statistics.received_bytes += burst.bytes;
        self.statistics.oversize += u64::from(burst.refused);
    }

    #[inline]
    fn transmit(&mut self, _pools: &mut Pools, batch: &mut Batch, list: u64) -> u64 {
        let (accepted, burst) = transmit(&mut self.wire, batch, list);
        self.statistics.transmitted += u64::from(burst.frames);
        self.statistics.transmitted_bytes += burst.bytes;
        accepted
    }

    /// DPDK rings its doorbells in `transmit`; here only the host's frames move to the wire.
    fn flush(&mut self, pools: &mut Pools) {
        if let Some(kernel) = &mut self.kernel {
            kernel.carry(&mut self.wire, pools);
        }
    }

    /// On queue 0, this queries the driver for the losses of the whole port, so call it once per second
    /// rather than once per breath.
    fn statistics(&self) -> PortStatistics {
        if self.wire.number() != 0 {
            return self.statistics;
        }
        let counters = self.wire.device().counters();
        PortStatistics { lost_before: counters.missed, starved: counters.no_mbuf, ..self.statistics }
    }

    fn extra_statistics(&self) -> Vec<(&'static str, u64)> {
        let mut all = Vec::new();
        if let Some(kernel) = &self.kernel {
            all.extend([("from_kernel", kernel.sent), ("from_kernel_lost", kernel.lost)]);
        }
        if self.wire.number() == 0 {
            let device = self.wire.device();
            let counters = device.counters();
            all.extend([("imissed", counters.missed), ("rx_nombuf", counters.no_mbuf)]);
            all.extend([("ierrors", counters.receive_errors), ("oerrors", counters.transmit_errors)]);
            all.extend(self.xstats.1.iter().copied().zip(device.xstats(&self.xstats.0)));
        }
        all
    }

    fn mode(&self) -> String {
        self.driver.clone()
    }

    fn has_kernel_path(&self) -> bool {
        self.kernel.is_some()
    }

    fn to_kernel(&mut self, _pools: &mut Pools, batch: &mut Batch, list: u64) -> u64 {
        let Some(kernel) = &mut self.kernel else { return 0 };
        let (accepted, burst) = transmit(&mut kernel.tap, batch, list);
        self.statistics.to_kernel += u64::from(burst.frames);
        accepted
    }
}

impl Kernel {
    fn carry(&mut self, wire: &mut Queue, pools: &mut Pools) {
        let burst = self.tap.receive(self.batch.free_slots());
        self.batch.extend(usize::from(burst.frames));
        if self.batch.is_empty() {
            return;
        }
        let all = self.batch.mask();
        let (accepted, sent) = transmit(wire, &mut self.batch, all);
        for slot in Bits(all & !accepted) {
            pools.give(self.batch.take(slot));
        }
        self.batch.clear();
        self.sent += u64::from(sent.frames);
        self.lost += u64::from(burst.frames - sent.frames) + u64::from(burst.refused);
    }
}
