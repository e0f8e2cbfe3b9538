//! One queue of an interface as a port.
//!
//! The port keeps the promises of [`weir_packet::Port`]: frames that were accepted but not completed are
//! `held`, and a frame counts as transmitted when its descriptor returns in the completion ring.
//!
//! `has_kernel_path` is false: a frame that XDP redirected into a socket has left the kernel's receive path,
//! and no call puts it back. Frames meant for the kernel must not be taken (see [`weir_bpf::Take`]).
//!
//! The owner of a frame is the pool, the kernel (marked in `umem`: fill ring, receive ring, transmit ring,
//! completion ring, and frames inside the driver), or the worker. `check` asserts that the numbers add up.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::net::xdp::XdpDesc;
use weir_packet::{
    Batch, Bits, DropReason, Frame, Leave, PoolId, Pools, Port, PortStatistics, RegionPool, SendProgress,
};

use crate::wrong_checksums;

use super::interface::Attached;
use super::joining::{Joined, Joining};
use super::line::{Bound, Line, Order};
use super::socket::Socket;
use super::succession::Left;
use super::umem::{Area, Umem};
use super::{Mode, XdpError};

/// Shorter frames have no Ethernet header; the kernel would consume their descriptors without completing
/// them.
const FRAME_MIN: usize = 14;

/// The number of times that `close` checks, 1 ms apart, whether the kernel is still sending frames.
const CLOSE_ROUNDS: u32 = 100;
const CLOSE_PAUSE: Duration = Duration::from_millis(1);

/// Number of descriptors in each ring; powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rings {
    /// Free chunks for the kernel to fill. The ring is kept full; its size limits the burst that can arrive
    /// without loss while the worker sleeps.
    pub fill: u32,
    /// Received frames, from the kernel to the worker.
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
    /// ports, plus the frames that the worker holds (a batch or two).
    #[must_use]
    pub fn chunks(&self) -> u32 {
        self.fill + self.receive + self.transmit
    }

    pub(super) fn check(&self) -> Result<(), XdpError> {
        let is_ring = |size: &u32| size.is_power_of_two() && (64..=32768).contains(size);
        match [self.fill, self.receive, self.transmit].into_iter().find(|size| !is_ring(size)) {
            Some(size) => Err(XdpError::RingSize(size)),
            None => Ok(()),
        }
    }
}

/// The number of received frames of which one has its checksums verified.
const SAMPLED: u64 = 256;

/// Counters that only this kind of port has, in addition to the kernel's.
#[derive(Clone, Copy, Debug, Default)]
struct Extra {
    kicks: u64,
    transmit_refused: u64,
    wrong_descriptors: u64,
    /// The frames whose checksums were verified, and how many of them had a wrong checksum.
    sampled: [u64; 2],
}

/// A queue of an interface, using AF_XDP. If it is dropped without `close`, the frames it owns are lost to
/// the pool.
///
/// While its interface is gone, the port receives nothing, and refuses frames as `interface_gone`.
pub struct XdpPort {
    name: String,
    /// The socket; `None` while the interface is gone, and once the port is closed.
    bound: Option<Box<Bound>>,
    line: Arc<Line>,
    umem: Umem,
    joining: Joining,
    counted: PortStatistics,
    extra: Extra,
    /// The accumulated counts of previous sockets and programs.
    former: Vec<(&'static str, u64)>,
    former_lost: u64,
    /// The number of frames that another process sent on the socket and that the kernel has not completed.
    inherited: u64,
    leaving: Option<Leaving>,
}

/// The socket of a port that is being closed in steps.
enum Leaving {
    /// Frames are still being sent. The port waits for them until this time at the latest.
    Sending(Instant),
    /// Another thread is closing the socket, and sets this flag when it has finished.
    Closing(Arc<AtomicBool>),
}

/// A socket to be closed by another thread.
struct Discarded {
    bound: Option<Box<Bound>>,
    closed: Arc<AtomicBool>,
}

impl Drop for Discarded {
    fn drop(&mut self) {
        self.bound = None;
        self.closed.store(true, Ordering::Release);
    }
}

impl XdpPort {
    /// Opens a queue for frames up to a length. Also returns the daemon's side of it.
    pub(super) fn open(
        name: String,
        interface: Arc<Attached>,
        (queue, frame_max): (u32, usize),
        pool: &mut RegionPool,
    ) -> Result<(XdpPort, Arc<Line>), XdpError> {
        let bound = Bound::open(interface, queue, Area::of(pool))?;
        let (mut port, line) = XdpPort::waiting(name, (queue, frame_max), pool);
        line.uses(&bound.socket);
        port.bound = Some(Box::new(bound));
        port.refill(pool);
        let announced = port.bound.as_ref().map_or(Ok(()), |bound| bound.announce(queue));
        match announced {
            Ok(()) => Ok((port, line)),
            Err(error) => {
                port.unbind(pool);
                Err(error)
            }
        }
    }

    /// Creates a port on a queue without a socket, as if its interface were gone: the daemon opens one later.
    pub(super) fn waiting(
        name: String,
        (queue, frame_max): (u32, usize),
        pool: &mut RegionPool,
    ) -> (XdpPort, Arc<Line>) {
        let line = Arc::new(Line::new(queue, pool, frame_max));
        let port = XdpPort {
            name,
            bound: None,
            line: Arc::clone(&line),
            umem: Umem::new(pool),
            joining: Joining::new(),
            counted: PortStatistics::default(),
            extra: Extra::default(),
            former: Vec::new(),
            former_lost: 0,
            inherited: 0,
            leaving: None,
        };
        (port, line)
    }

    /// Returns the mode in which the port runs; `None` while its interface is gone.
    #[must_use]
    pub fn xdp_mode(&self) -> Option<Mode> {
        self.bound.as_ref().map(|bound| bound.mode)
    }

    /// Returns the number of the receive queue.
    #[must_use]
    pub fn queue(&self) -> u32 {
        self.line.queue()
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
        let away = ports.iter().map(|port| port.umem.away() as usize + port.joining.chunks());
        let away: usize = away.sum();
        let chunks = pool.chunks() as usize;
        assert_eq!(pool.available() + away + elsewhere, chunks, "free + away + worker == frames of the pool");
        for port in ports {
            assert!(port.counted.held <= u64::from(port.umem.away()), "held frames are away");
        }
    }

    fn socket(&mut self) -> Option<&mut Socket> {
        self.bound.as_mut().map(|bound| &mut bound.socket)
    }

    /// Carries out the daemon's orders.
    #[inline]
    fn carry_out_orders(&mut self, pool: &mut RegionPool) {
        loop {
            match self.line.take_order() {
                Order::Nothing => break,
                Order::Detach => self.detach(pool),
                Order::Attach(bound) => {
                    self.detach(pool);
                    self.bound = Some(bound);
                }
                Order::Home(home) => Umem::bring_home(pool, home.chunks()),
                Order::Resume(bound, left) => self.resume(bound, &left),
            }
        }
    }

    /// Continues with a socket that another process has left.
    #[cold]
    fn resume(&mut self, bound: Box<Bound>, left: &Left) {
        if self.bound.is_none() && self.umem.resume(&left.away, &left.further) {
            self.joining.resume(left.in_pieces);
            self.inherited = left.held;
            self.bound = Some(bound);
        }
    }

    /// Leaves the socket open for another process, if that was requested: received frames and frames being
    /// sent stay where they are. Returns false if the socket should be closed.
    fn leave_open(&mut self, pool: &mut RegionPool) -> bool {
        if !self.line.is_left_open() {
            return false;
        }
        self.carry_out_orders(pool);
        self.complete(pool);
        let (former, in_pieces) = (self.socket_statistics(), self.joining.is_in_pieces());
        let Some(bound) = self.bound.take() else { return false };
        self.line.close();
        self.former = former;
        let lost = bound.socket.lost_ever();
        self.former_lost += bound.socket.lost_here(lost) + self.joining.abandon(pool);
        // The kernel sends them, whichever process has the socket.
        let held = std::mem::take(&mut self.counted.held);
        self.counted.transmitted += held;
        let (away, further) = self.umem.give_up();
        let held = held + std::mem::take(&mut self.inherited);
        let (queue, lost) = (self.line.queue(), Some(lost));
        self.line.leave(Left { queue, away, further, held, in_pieces, lost });
        true
    }

    /// Gives up the socket of an interface that is gone, with the frames in its transmit ring.
    #[cold]
    fn detach(&mut self, pool: &mut RegionPool) {
        self.complete(pool);
        self.unbind(pool);
        self.counted.gone += std::mem::take(&mut self.counted.held);
        self.inherited = 0;
    }

    /// Drops frames that have arrived but were not received. Returns the number of frames.
    fn drop_arrived(&mut self, pool: &mut RegionPool) -> u64 {
        let mut batch = Batch::new();
        let (oversize, before) = (self.counted.oversize, self.counted.received);
        while let Some(descriptor) = self.socket().and_then(|socket| socket.receive.pop()) {
            self.receive_one(pool, &mut batch, &descriptor);
            Bits(batch.mask()).for_each(|slot| pool.give(batch.take(slot)));
            batch.clear();
        }
        self.counted.received - before - (self.counted.oversize - oversize)
    }

    /// Leaves closing the socket to another thread.
    fn discard(&mut self, pool: &mut RegionPool) -> Leave {
        // Frames that have arrived count as held until the socket is closed.
        self.counted.held += self.drop_arrived(pool);
        self.former = self.socket_statistics();
        let Some(bound) = self.bound.take() else {
            return Leave::Closed(std::mem::take(&mut self.counted.held));
        };
        self.former_lost += lost(&bound.socket) + self.joining.abandon(pool);
        let closed = Arc::new(AtomicBool::new(false));
        self.leaving = Some(Leaving::Closing(closed.clone()));
        Leave::Give(Box::new(Discarded { bound: Some(bound), closed }))
    }

    /// Closes the socket and takes back every chunk.
    fn unbind(&mut self, pool: &mut RegionPool) {
        self.former = self.socket_statistics();
        let Some(mut bound) = self.bound.take() else { return };
        self.former_lost += lost(&bound.socket) + u64::from(bound.socket.receive.waiting());
        self.former_lost += self.joining.abandon(pool);
        self.umem.close(Some(bound.socket), pool);
    }

    /// Returns the counts of the sockets that the port has had.
    fn socket_statistics(&self) -> Vec<(&'static str, u64)> {
        let Some(bound) = &self.bound else { return self.former.clone() };
        let mut all = bound.statistics();
        for (name, count) in &mut all {
            let former = self.former.iter().find(|(former, _)| former == name);
            *count += former.map_or(0, |(_, count)| *count);
        }
        all
    }

    /// Keeps the fill ring full, because a partly filled one runs dry in a burst.
    #[inline]
    fn refill(&mut self, pool: &mut RegionPool) {
        let Some(socket) = self.bound.as_mut().map(|bound| &mut bound.socket) else { return };
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
        let Some(socket) = self.bound.as_mut().map(|bound| &mut bound.socket) else { return };
        let mut sent = 0;
        while let Some(address) = socket.completion.pop() {
            match self.umem.take_back(pool, address) {
                Ok(is_whole) => sent += u64::from(is_whole),
                Err(_) => self.extra.wrong_descriptors += 1,
            }
        }
        socket.completion.release();
        let inherited = sent.min(self.inherited);
        self.inherited -= inherited;
        self.counted.transmitted += sent - inherited;
        self.counted.held -= sent - inherited;
    }

    /// Turns a descriptor from the receive ring into a frame of the batch, or into a piece of one.
    #[inline]
    fn receive_one(&mut self, pool: &mut RegionPool, batch: &mut Batch, descriptor: &XdpDesc) {
        if self.joining.concerns(descriptor) {
            self.receive_piece(pool, batch, descriptor);
            return;
        }
        match self.umem.receive(pool, descriptor) {
            Ok(frame) => self.push(batch, frame),
            Err(_) => self.extra.wrong_descriptors += 1,
        }
    }

    #[inline]
    fn push(&mut self, batch: &mut Batch, frame: Frame) {
        self.counted.received += 1;
        self.counted.received_bytes += frame.len() as u64;
        if self.counted.received % SAMPLED == 1 {
            self.sample(&frame);
        }
        let pushed = batch.push(frame);
        debug_assert!(pushed.is_ok(), "the caller saw space");
    }

    /// Checks the checksums of a frame.
    #[inline(never)]
    fn sample(&mut self, frame: &Frame) {
        let is_wrong = wrong_checksums(frame.bytes()).iter().any(Option::is_some);
        self.extra.sampled[0] += 1;
        self.extra.sampled[1] += u64::from(is_wrong);
    }

    #[inline(never)]
    fn receive_piece(&mut self, pool: &mut RegionPool, batch: &mut Batch, descriptor: &XdpDesc) {
        match self.joining.add(&mut self.umem, pool, descriptor) {
            Ok(Joined::Partly) => {}
            Ok(Joined::Whole(frame)) => self.push(batch, frame),
            Ok(Joined::TooLong(bytes)) => {
                self.counted.received += 1;
                self.counted.oversize += 1;
                self.counted.received_bytes += bytes;
            }
            Err(_) => self.extra.wrong_descriptors += 1,
        }
    }
}

impl Bound {
    fn statistics(&self) -> Vec<(&'static str, u64)> {
        let Some(kernel) = self.socket.statistics() else { return Vec::new() };
        vec![
            ("rx_dropped", kernel.rx_dropped),
            ("rx_invalid_descs", kernel.rx_invalid_descs),
            ("tx_invalid_descs", kernel.tx_invalid_descs),
            ("rx_ring_full", kernel.rx_ring_full.unwrap_or(0)),
            ("rx_fill_ring_empty_descs", kernel.rx_fill_ring_empty_descs.unwrap_or(0)),
            ("tx_ring_empty_descs", kernel.tx_ring_empty_descs.unwrap_or(0)),
        ]
    }
}

/// Frames that XDP took and the socket lost: too large, no chunk to fill, or no room in the receive ring.
fn lost(socket: &Socket) -> u64 {
    socket.lost_here(socket.lost_ever())
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
            let Some(descriptor) = self.socket().and_then(|socket| socket.receive.pop()) else { break };
            self.receive_one(pool, batch, &descriptor);
        }
        if let Some(socket) = self.socket() {
            socket.receive.release();
        }
    }

    fn transmit(&mut self, pools: &mut Pools, batch: &mut Batch, list: u64) -> u64 {
        let frame_max = self.line.frame_max();
        let Some(socket) = self.bound.as_mut().map(|bound| &mut bound.socket) else { return 0 };
        let pool = pools.region_mut(self.umem.pool());
        let mut accepted = 0_u64;
        for slot in Bits(list) {
            let length = batch.frame(slot).len();
            if refusal(length, frame_max).is_some() {
                self.extra.transmit_refused += 1;
                continue;
            }
            let pieces = self.umem.pieces(pool, batch.frame(slot));
            if socket.transmit.space(pieces) < pieces {
                break;
            }
            if pieces == 1 {
                socket.transmit.push(self.umem.send_to_kernel(pool, batch.take(slot)));
            } else {
                for piece in self.umem.send_pieces_to_kernel(pool, batch.take(slot)).as_slice() {
                    socket.transmit.push(*piece);
                }
            }
            accepted |= 1 << slot;
            self.counted.transmitted_bytes += length as u64;
        }
        socket.transmit.publish();
        self.counted.held += u64::from(accepted.count_ones());
        accepted
    }

    fn flush(&mut self, pools: &mut Pools) {
        let pool = pools.region_mut(self.umem.pool());
        self.carry_out_orders(pool);
        if self.counted.held + self.inherited > 0 {
            self.extra.kicks += self.socket().map_or(0, |socket| u64::from(socket.kick()));
            self.complete(pool);
        }
        self.refill(pool);
    }

    fn progress(&self) -> SendProgress {
        let done = self.counted.transmitted + self.counted.gone;
        SendProgress { accepted: done + self.counted.held, done }
    }

    /// Makes a system call, for `lost_before`.
    fn statistics(&self) -> PortStatistics {
        let lost_now = self.bound.as_ref().map_or(0, |bound| lost(&bound.socket));
        PortStatistics { lost_before: self.former_lost + lost_now, ..self.counted }
    }

    fn extra_statistics(&self) -> Vec<(&'static str, u64)> {
        let mut all = self.socket_statistics();
        all.extend([
            ("kicks", self.extra.kicks),
            ("transmit_refused", self.extra.transmit_refused),
            ("wrong_descriptors", self.extra.wrong_descriptors),
            ("checksums_sampled", self.extra.sampled[0]),
            ("checksums_wrong", self.extra.sampled[1]),
            ("frames_joined", self.joining.counts().frames),
            ("bytes_joined", self.joining.counts().bytes),
        ]);
        all
    }

    fn refuses(&self, length: usize) -> Option<DropReason> {
        let gone = self.bound.is_none().then_some(DropReason::InterfaceGone);
        gone.or_else(|| refusal(length, self.line.frame_max()))
    }

    fn mode(&self) -> String {
        self.xdp_mode().map_or_else(|| "interface gone".to_string(), |mode| mode.to_string())
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.bound.as_ref().map(|bound| bound.socket.as_fd())
    }

    /// True also while the interface is gone, because nothing can wake the worker then.
    fn exhausted(&self) -> bool {
        self.bound.is_none()
    }

    fn leave(&mut self, pools: &mut Pools) -> Leave {
        let pool = pools.region_mut(self.umem.pool());
        if self.leaving.is_none() && self.leave_open(pool) {
            return Leave::Closed(0);
        }
        match &self.leaving {
            None => {
                self.line.close();
                self.leaving = Some(Leaving::Sending(Instant::now() + CLOSE_PAUSE * CLOSE_ROUNDS));
                Leave::Later
            }
            Some(Leaving::Sending(until)) => {
                let until = *until;
                self.extra.kicks += self.socket().map_or(0, |socket| u64::from(socket.kick()));
                self.complete(pool);
                let goes_on = self.bound.is_some() && self.counted.held > 0 && Instant::now() < until;
                if goes_on { Leave::Later } else { self.discard(pool) }
            }
            Some(Leaving::Closing(closed)) if !closed.load(Ordering::Acquire) => Leave::Later,
            Some(Leaving::Closing(_)) => {
                self.umem.close(None, pool);
                Leave::Closed(std::mem::take(&mut self.counted.held))
            }
        }
    }

    /// Waits up to 100 ms for frames being sent. Returns how many frames were not sent; these are no longer
    /// `held`.
    fn close(&mut self, pools: &mut Pools) -> u64 {
        if self.leaving.is_none() && self.leave_open(pools.region_mut(self.umem.pool())) {
            return 0;
        }
        self.line.close();
        if let Some(Leaving::Closing(closed)) = &self.leaving {
            let is_closed = || closed.load(Ordering::Acquire);
            (0..CLOSE_ROUNDS).take_while(|_| !is_closed()).for_each(|_| std::thread::sleep(CLOSE_PAUSE));
            // The chunks of an open socket belong to the kernel. The process is ending, so they may stay with
            // the kernel.
            if is_closed() {
                self.umem.close(None, pools.region_mut(self.umem.pool()));
            }
            return std::mem::take(&mut self.counted.held);
        }
        for _ in 0..CLOSE_ROUNDS {
            if self.bound.is_none() || self.counted.held == 0 {
                break;
            }
            self.extra.kicks += self.socket().map_or(0, |socket| u64::from(socket.kick()));
            self.complete(pools.region_mut(self.umem.pool()));
            if self.counted.held > 0 {
                std::thread::sleep(CLOSE_PAUSE);
            }
        }
        self.unbind(pools.region_mut(self.umem.pool()));
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
