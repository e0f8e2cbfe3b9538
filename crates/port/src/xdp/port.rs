//! One queue of an interface as a port.
//!
//! It keeps the promises of [`packet::Port`]: frames that were accepted but not completed are `held`, and a
//! frame counts as transmitted when its descriptor returns in the completion ring.
//!
//! `has_kernel_path` is false: a frame that XDP redirected into a socket has left the kernel's receive path,
//! and no call puts it back. Frames meant for the kernel must not be taken (see [`bpf::Take`]).
//!
//! The owner of a frame is the pool, the kernel (marked in `umem`: fill ring, receive ring, transmit ring,
//! completion ring, and frames inside the driver), or the worker. `check` asserts that the numbers add up.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use packet::{Batch, Bits, DropReason, PoolId, Pools, Port, PortStatistics, RegionPool};
use rustix::net::xdp::{XdpDesc, XdpDescOptions};

use super::interface::Attached;
use super::socket::{Binding, Socket};
use super::umem::Umem;
use super::{Mode, XdpError};

/// Shorter frames have no Ethernet header; the kernel would consume their descriptors without completing
/// them.
const FRAME_MIN: usize = 14;

/// Ethernet header and two VLAN tags, which an interface's MTU does not include.
const LINK_OVERHEAD: u32 = 14 + 2 * 4;

/// How often `close` checks for frames that the kernel is still sending, 1 ms apart.
const CLOSE_ROUNDS: u32 = 100;
const CLOSE_PAUSE: Duration = Duration::from_millis(1);

/// Number of descriptors in each ring; powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rings {
    /// Free chunks for the kernel to fill. The ring is kept full; it bounds the burst that a sleeping worker
    /// survives.
    pub fill: u32,
    /// Received frames.
    pub receive: u32,
    /// Frames to send; the completion ring has the same size.
    pub transmit: u32,
}

impl Default for Rings {
    fn default() -> Rings {
        Rings { fill: 4096, receive: 4096, transmit: 2048 }
    }
}

impl Rings {
    /// Returns the largest number of chunks that a port can take from the pool. A pool needs the sum over its
    /// ports, plus what the worker holds (a batch or two).
    #[must_use]
    pub fn chunks(&self) -> u32 {
        self.fill + self.receive + self.transmit
    }

    fn check(&self) -> Result<(), XdpError> {
        let is_ring = |size: &u32| size.is_power_of_two() && (64..=32768).contains(size);
        match [self.fill, self.receive, self.transmit].into_iter().find(|size| !is_ring(size)) {
            Some(size) => Err(XdpError::RingSize(size)),
            None => Ok(()),
        }
    }
}

/// Counters that only this kind of port has, besides the kernel's.
#[derive(Clone, Copy, Debug, Default)]
struct Extra {
    kicks: u64,
    transmit_refused: u64,
    wrong_descriptors: u64,
}

/// A queue of an interface, by AF_XDP. If it is dropped without `close`, the frames it owns are lost to the
/// pool.
pub struct XdpPort {
    name: String,
    queue: u32,
    frame_max: usize,
    mode: Mode,
    /// `None` once closed.
    socket: Option<Socket>,
    umem: Umem,
    /// Set while pieces of one large frame arrive, all of which are dropped.
    in_pieces: bool,
    counted: PortStatistics,
    /// The kernel's count of lost frames when the socket was closed.
    lost_at_close: u64,
    extra: Extra,
    /// Keeps the program attached while the port exists.
    interface: Arc<Attached>,
}

impl XdpPort {
    pub(super) fn open(
        interface: Arc<Attached>,
        queue: u32,
        pool: &mut RegionPool,
    ) -> Result<XdpPort, XdpError> {
        let rings = interface.config().rings;
        rings.check()?;
        let zero_copy = interface.zero_copy();
        let binding =
            Binding { interface: interface.name(), index: interface.index(), queue, rings, zero_copy };
        let socket = Socket::open(&binding, pool)?;
        let mode = interface.mode(socket.is_zero_copy());
        let mut port = XdpPort {
            name: interface.config().port.clone(),
            queue,
            frame_max: (interface.mtu() + LINK_OVERHEAD) as usize,
            mode,
            umem: Umem::new(pool),
            socket: Some(socket),
            in_pieces: false,
            counted: PortStatistics::default(),
            lost_at_close: 0,
            extra: Extra::default(),
            interface,
        };
        port.refill(pool);
        if let Err(error) = port.announce() {
            port.shut(pool);
            return Err(error);
        }
        Ok(port)
    }

    /// Enters the socket in the program's map: from here on frames arrive.
    fn announce(&self) -> Result<(), XdpError> {
        self.socket.as_ref().map_or(Ok(()), |socket| self.interface.set_socket(self.queue, socket.as_fd()))
    }

    /// Returns the mode it runs in.
    #[must_use]
    pub fn xdp_mode(&self) -> Mode {
        self.mode
    }

    /// Returns the number of the receive queue.
    #[must_use]
    pub fn queue(&self) -> u32 {
        self.queue
    }

    /// Returns the number of the pool's chunks that the kernel owns now.
    #[must_use]
    pub fn away(&self) -> u32 {
        self.umem.away()
    }

    /// Asserts that every frame of a pool is accounted for: free, held by the worker (`elsewhere`), or owned
    /// by one of the ports.
    ///
    /// # Panics
    /// Panics if a frame is missing.
    pub fn check(ports: &[&XdpPort], pool: &RegionPool, elsewhere: usize) {
        let away: usize = ports.iter().map(|port| port.umem.away() as usize).sum();
        let chunks = pool.chunks() as usize;
        assert_eq!(pool.available() + away + elsewhere, chunks, "free + away + worker == frames of the pool");
        for port in ports {
            assert!(port.counted.held <= u64::from(port.umem.away()), "held frames are away");
        }
    }

    /// Keeps the fill ring full, because a partly filled one runs dry in a burst.
    #[inline]
    fn refill(&mut self, pool: &mut RegionPool) {
        let Some(socket) = &mut self.socket else { return };
        let wanted = socket.fill.space(u32::MAX);
        let mut given = 0;
        while given < wanted {
            let Some(address) = self.umem.lend(pool) else { break };
            socket.fill.push(address);
            given += 1;
        }
        if given > 0 {
            socket.fill.publish();
        }
        self.counted.starved += u64::from(given < wanted);
        socket.wake_receive();
    }

    /// Takes back frames that have been sent.
    #[inline]
    fn complete(&mut self, pool: &mut RegionPool) {
        let Some(socket) = &mut self.socket else { return };
        let mut sent = 0;
        while let Some(address) = socket.completion.pop() {
            match self.umem.take_back(pool, address) {
                Ok(()) => sent += 1,
                Err(_) => self.extra.wrong_descriptors += 1,
            }
        }
        socket.completion.release();
        self.counted.transmitted += sent;
        self.counted.held -= sent;
    }

    /// Turns a descriptor of the receive ring into a frame of the batch, unless it is a piece of a larger
    /// frame.
    #[inline]
    fn receive_one(&mut self, pool: &mut RegionPool, batch: &mut Batch, descriptor: &XdpDesc) {
        let more = descriptor.options.contains(XdpDescOptions::XDP_PKT_CONTD);
        if more || self.in_pieces {
            self.drop_piece(pool, descriptor, !more);
            return;
        }
        let Ok(frame) = self.umem.receive(pool, descriptor) else {
            self.extra.wrong_descriptors += 1;
            return;
        };
        self.counted.received += 1;
        self.counted.received_bytes += frame.len() as u64;
        let pushed = batch.push(frame);
        debug_assert!(pushed.is_ok(), "the caller saw space");
    }

    #[cold]
    fn drop_piece(&mut self, pool: &mut RegionPool, descriptor: &XdpDesc, last: bool) {
        self.in_pieces = !last;
        self.counted.received += u64::from(last);
        self.counted.oversize += u64::from(last);
        self.counted.received_bytes += u64::from(descriptor.len);
        if self.umem.take_back(pool, descriptor.addr).is_err() {
            self.extra.wrong_descriptors += 1;
        }
    }

    /// Closes the socket and takes back every chunk.
    fn shut(&mut self, pool: &mut RegionPool) {
        let Some(mut socket) = self.socket.take() else { return };
        self.lost_at_close = lost(&socket) + u64::from(socket.receive.waiting());
        self.umem.close(Some(socket), pool);
    }
}

/// Frames that XDP took and the socket lost: too large, no chunk to fill, or no room in the receive ring.
fn lost(socket: &Socket) -> u64 {
    socket.statistics().map_or(0, |kernel| kernel.rx_dropped + kernel.rx_ring_full.unwrap_or(0))
}

/// Returns why a frame of this length cannot be sent.
#[inline]
fn refusal(length: usize, frame_max: usize) -> Option<DropReason> {
    match length {
        _ if length < FRAME_MIN => Some(DropReason::MalformedEthernet),
        _ if length > frame_max => Some(DropReason::Oversize),
        _ => None,
    }
}

impl Port for XdpPort {
    fn name(&self) -> &str {
        &self.name
    }

    fn pool(&self) -> Option<PoolId> {
        Some(self.umem.pool())
    }

    fn receive(&mut self, pools: &mut Pools, batch: &mut Batch) {
        let pool = pools.region_mut(self.umem.pool());
        while batch.space() > 0 {
            let Some(descriptor) = self.socket.as_mut().and_then(|socket| socket.receive.pop()) else {
                break;
            };
            self.receive_one(pool, batch, &descriptor);
        }
        if let Some(socket) = &mut self.socket {
            socket.receive.release();
        }
    }

    fn transmit(&mut self, pools: &mut Pools, batch: &mut Batch, list: u64) -> u64 {
        let Some(socket) = &mut self.socket else { return 0 };
        let pool = pools.region_mut(self.umem.pool());
        let mut accepted = 0_u64;
        for slot in Bits(list) {
            let length = batch.frame(slot).len();
            if refusal(length, self.frame_max).is_some() {
                self.extra.transmit_refused += 1;
                continue;
            }
            if socket.transmit.space(1) == 0 {
                break;
            }
            socket.transmit.push(self.umem.surrender(pool, batch.take(slot)));
            accepted |= 1 << slot;
            self.counted.transmitted_bytes += length as u64;
        }
        socket.transmit.publish();
        self.counted.held += u64::from(accepted.count_ones());
        accepted
    }

    fn flush(&mut self, pools: &mut Pools) {
        let pool = pools.region_mut(self.umem.pool());
        if self.counted.held > 0 {
            self.extra.kicks += self.socket.as_mut().map_or(0, |socket| u64::from(socket.kick()));
            self.complete(pool);
        }
        self.refill(pool);
    }

    /// Makes a system call, for `lost_before`.
    fn statistics(&self) -> PortStatistics {
        let lost_before = self.socket.as_ref().map_or(self.lost_at_close, lost);
        PortStatistics { lost_before, ..self.counted }
    }

    fn extra_statistics(&self) -> Vec<(&'static str, u64)> {
        let program = self.interface.counters(self.queue);
        let mut all = vec![
            ("xdp_taken", program.taken),
            ("xdp_passed", program.passed),
            ("xdp_not_ours", program.not_ours),
            ("xdp_redirect_failed", program.redirect_failed),
            ("kicks", self.extra.kicks),
            ("transmit_refused", self.extra.transmit_refused),
            ("wrong_descriptors", self.extra.wrong_descriptors),
        ];
        if let Some(kernel) = self.socket.as_ref().and_then(Socket::statistics) {
            all.extend([
                ("rx_dropped", kernel.rx_dropped),
                ("rx_invalid_descs", kernel.rx_invalid_descs),
                ("tx_invalid_descs", kernel.tx_invalid_descs),
                ("rx_ring_full", kernel.rx_ring_full.unwrap_or(0)),
                ("rx_fill_ring_empty_descs", kernel.rx_fill_ring_empty_descs.unwrap_or(0)),
                ("tx_ring_empty_descs", kernel.tx_ring_empty_descs.unwrap_or(0)),
            ]);
        }
        all
    }

    fn refuses(&self, length: usize) -> Option<DropReason> {
        refusal(length, self.frame_max)
    }

    fn mode(&self) -> String {
        self.mode.to_string()
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    fn exhausted(&self) -> bool {
        self.socket.is_none()
    }

    /// Waits up to 100 ms for frames being sent. Returns how many were not sent; they are no longer `held`.
    fn close(&mut self, pools: &mut Pools) -> u64 {
        for _ in 0..CLOSE_ROUNDS {
            if self.socket.is_none() || self.counted.held == 0 {
                break;
            }
            self.extra.kicks += self.socket.as_mut().map_or(0, |socket| u64::from(socket.kick()));
            self.complete(pools.region_mut(self.umem.pool()));
            if self.counted.held > 0 {
                std::thread::sleep(CLOSE_PAUSE);
            }
        }
        self.shut(pools.region_mut(self.umem.pool()));
        std::mem::take(&mut self.counted.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_a_power_of_two_within_reason() {
        assert!(Rings::default().check().is_ok());
        for size in [0, 32, 100, 65536] {
            let refused = Rings { transmit: size, ..Rings::default() }.check();
            assert!(matches!(refused, Err(XdpError::RingSize(wrong)) if wrong == size));
        }
    }
}
