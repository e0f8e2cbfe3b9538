//! Passes an interface from one process to another, with its sockets where possible.
//!
//! The kernel closes and binds sockets under one lock and waits for the lock's readers each time, which takes
//! tens of milliseconds per socket. Passing a socket on costs none of this, and frames wait in the socket's
//! rings meanwhile. To allow this, the frame memory is an in-memory file ([`RegionPool::shareable`]), which
//! both processes map:
//!
//! 1. The old process offers its sockets and their memory ([`XdpInterface::offers`]); it continues as before.
//! 2. The new process maps both ([`RegionPool::adopt`], [`Queues::adopt`]), and reports which sockets it can
//!    use.
//! 3. The old process stops its workers. Their ports leave these sockets open, and record which of their
//!    chunks the kernel has ([`Left`]). All other chunks are then free: whatever a worker held is given up or
//!    dropped.
//! 4. The new process reads the indices of the rings, marks the chunks that the kernel has, takes the other
//!    chunks ([`Home`]), and continues.
//!
//! A socket that does not fit, because its rings or its mode are not wanted, is closed by one process and
//! opened by the other; meanwhile, frames are dropped and counted as `held_back`.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use weir_packet::{PoolId, Pools, RegionPool};

use super::interface::{Attached, Queues, XdpConfig, XdpInterface, find, join, join_groups, map_io};
use super::line::Line;
use super::{Mode, Rings, XdpError, XdpPort};

/// The data that a process passes to the one that takes over an interface.
#[derive(Debug)]
pub struct Handover {
    /// The interface's index.
    pub index: u32,
    /// Whether the program runs in the driver.
    pub native: bool,
    /// Whether the driver reads and writes frames in place; `None` if no socket was open.
    pub zero_copy: Option<bool>,
    /// The link between program and interface.
    pub link: OwnedFd,
    /// The program's socket map.
    pub sockets: OwnedFd,
    /// The sockets that are handed over.
    pub left: Vec<Left>,
}

/// A socket that a process offers to the one that takes over.
#[derive(Debug)]
pub struct Offer {
    /// The queue to which it is bound.
    pub queue: u32,
    /// Whether the program runs in the driver.
    pub native: bool,
    /// Whether the driver reads and writes frames in place.
    pub zero_copy: bool,
    /// The sizes of its rings.
    pub rings: Rings,
    /// The process's number for the pool whose memory is registered with the socket.
    pub pool: u32,
    /// The AF_XDP socket, which stays bound to its queue.
    pub socket: OwnedFd,
}

/// The memory of a pool that a process offers to the one that takes over.
#[derive(Debug)]
pub struct Memory {
    /// The process's number for the pool.
    pub pool: u32,
    /// Number of its chunks.
    pub chunks: u32,
    /// Bytes of a chunk.
    pub chunk: u32,
    /// The file in memory (memfd) that backs the pool.
    pub file: OwnedFd,
}

/// The state in which a process left a socket that it hands over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// The queue to which it is bound.
    pub queue: u32,
    /// A bit for each chunk of its pool: whether the kernel has it, in any ring or in the driver.
    pub away: Vec<u64>,
    /// For each chunk, how many pieces the kernel has besides the first; empty if no chunk is larger than a
    /// page.
    pub further: Vec<u8>,
    /// Frames that the kernel has not sent yet. The process that sent them has counted them as transmitted.
    pub held: u64,
    /// Whether the process has dropped the beginning of a frame whose next piece is still to come.
    pub in_pieces: bool,
    /// The frames that the socket had lost by then. The process has counted these frames, and its successor
    /// counts those that are lost later. `None` if the process is an older weir, which does not say.
    pub lost: Option<LostFrames>,
}

/// Frames that XDP took and a socket lost, since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LostFrames {
    /// Frames that were too large, or for which there was no chunk.
    pub dropped: u64,
    /// Frames for which there was no room in the receive ring.
    pub ring_full: u64,
}

/// The chunks of a pool that no socket owned when a process stopped.
#[derive(Debug, PartialEq, Eq)]
pub struct Home(Vec<u32>);

impl Home {
    /// Returns the chunks, among a pool's `chunks`, that no socket owns. `None` if the sockets contradict the
    /// pool or each other: if a socket names a chunk that does not exist, or two sockets own the same chunk.
    #[must_use]
    pub fn new<'a>(chunks: u32, sockets: impl IntoIterator<Item = &'a Left>) -> Option<Home> {
        let words = (chunks as usize).div_ceil(64);
        let mut all = vec![0_u64; words];
        for one in sockets {
            if one.away.len() != words {
                return None;
            }
            for (all, away) in all.iter_mut().zip(&one.away) {
                if *all & away != 0 {
                    return None;
                }
                *all |= away;
            }
        }
        let is_away = |chunk: u32| all[chunk as usize / 64] >> (chunk % 64) & 1 == 1;
        let beyond = (chunks..words as u32 * 64).any(is_away);
        (!beyond).then(|| Home((0..chunks).rev().filter(|&chunk| !is_away(chunk)).collect()))
    }

    /// Returns the chunks, each once.
    pub(super) fn chunks(&self) -> &[u32] {
        &self.0
    }
}

/// What a port needs to offer its socket: its pool, as other processes know it.
pub(super) struct SocketHandOver {
    pool: u32,
    chunks: u32,
    chunk: u32,
    file: Option<OwnedFd>,
}

impl SocketHandOver {
    pub(super) fn of(pool: &RegionPool) -> SocketHandOver {
        let file = pool.file().and_then(|file| file.try_clone_to_owned().ok());
        SocketHandOver { pool: pool.id().0, chunks: pool.chunks(), chunk: pool.chunk() as u32, file }
    }

    fn memory(&self) -> Option<Memory> {
        let file = self.file.as_ref()?.try_clone().ok()?;
        Some(Memory { pool: self.pool, chunks: self.chunks, chunk: self.chunk, file })
    }
}

/// The sockets that another process offers for the queues of an interface.
#[derive(Clone, Default)]
pub(super) struct Offers(Arc<Mutex<Vec<Offer>>>);

impl Offers {
    fn change<R>(&self, how: impl FnOnce(&mut Vec<Offer>) -> R) -> R {
        how(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Offer {
    /// Returns why the offered socket does not suit a port with these requirements.
    fn refusal(&self, rings: Rings, mode: Option<Mode>) -> Option<&'static str> {
        let its = Mode::of(self.native, self.zero_copy);
        if self.rings != rings {
            return Some("its rings have different sizes");
        }
        mode.is_some_and(|mode| mode != its).then_some("it runs in a different mode")
    }
}

impl XdpInterface {
    /// Prepares to take over an interface from another process: the program is loaded, and attached by
    /// [`XdpInterface::take_over`]. Until then its ports receive nothing.
    ///
    /// # Errors
    /// Returns an [`XdpError`], which says what to do.
    pub fn prepare(config: XdpConfig) -> Result<XdpInterface, XdpError> {
        let link = find(&config.interface)?;
        let mut program = Attached::load(&config, &link)?;
        program.hold_back(true).map_err(|error| XdpError::System {
            doing: "preparing the XDP program",
            interface: link.name.clone(),
            reason: map_io(error),
        })?;
        let mut interface = XdpInterface::without_program(config, link);
        interface.prepared = Some(program);
        Ok(interface)
    }

    /// Assigns to a prepared interface the sockets that the other process offers for it.
    pub fn offer(&self, offers: Vec<Offer>) {
        self.offers.change(|all| *all = offers);
    }

    /// Returns the queues whose sockets will be handed over, and closes the other offered sockets.
    #[must_use]
    pub fn adopted(&self) -> Vec<u32> {
        self.offer(Vec::new());
        self.lines().iter().filter(|line| line.has_adopted()).map(|line| line.queue()).collect()
    }

    /// Closes adopted sockets that the other process did not leave open, because it has closed them itself.
    /// After that, their chunks can be used.
    pub fn keep_adopted(&self, left: &[Left]) {
        for line in self.lines().iter().filter(|line| left.iter().all(|one| one.queue != line.queue())) {
            line.forget_adopted();
        }
    }

    /// Adds the chunks that no socket owns to a pool, through a port on that pool. Returns them if there is
    /// no such port.
    #[must_use]
    pub fn bring_home(&self, pool: PoolId, home: Home) -> Option<Home> {
        let lines = self.lines();
        let Some(line) = lines.iter().find(|line| line.source().pool == pool.0) else { return Some(home) };
        line.bring_home(home);
        None
    }

    /// Continues where the other process stopped. Ports whose sockets it has left come first; then a socket
    /// is opened for each other port, and given to the other process's program, which sends frames to it.
    /// Frames that arrive while their queue has no socket are dropped, and the other program counts them as
    /// `held_back`. [`XdpInterface::replace`] must follow, and no worker may receive before all ports [have
    /// obeyed](XdpInterface::has_obeyed): it would send frames to ports that do not have a socket or memory
    /// yet.
    ///
    /// # Errors
    /// The interface is gone, or another process still has its queues.
    pub fn take_over(&mut self, from: Handover) -> Result<(), XdpError> {
        let Some(mut program) = self.prepared.take() else { return Ok(()) };
        let system = |doing, reason| XdpError::System { doing, interface: self.link.name.clone(), reason };
        program.follow(from.sockets).map_err(|error| system("using the old sockets' map", map_io(error)))?;
        let attached = Arc::new(Attached::of(&self.config, &self.link, program, from.native));
        from.zero_copy.map(|zero_copy| attached.zero_copy.set(zero_copy));
        let mut others = Vec::new();
        for line in self.lines().iter() {
            let left = from.left.iter().find(|left| left.queue == line.queue()).cloned();
            if !line.resume(&attached, left)? {
                others.push(Arc::clone(line));
            }
        }
        others.iter().try_for_each(|line| line.attach(&attached))?;
        self.attached = Some(attached);
        self.replaces = Some(from.link);
        Ok(())
    }

    /// Returns true if all ports use the sockets and the memory that were assigned to them.
    #[must_use]
    pub fn has_obeyed(&self) -> bool {
        self.lines().iter().all(|line| line.has_obeyed())
    }

    /// Replaces the other process's program with its own, which takes tens of milliseconds. Each frame meets
    /// exactly one of the two.
    ///
    /// # Errors
    /// The interface is gone, or the NIC refuses what this program requires.
    pub fn replace(&mut self) -> Result<(), XdpError> {
        let Some((link, attached)) = self.replaces.take().zip(self.attached.as_ref()) else { return Ok(()) };
        let system = |doing, reason| XdpError::System { doing, interface: self.link.name.clone(), reason };
        self.membership = join(&self.config.frames, &self.link)?;
        self.groups = Some(join_groups(&self.config.frames, &self.link)?);
        let placed = attached.program().attach_by(link);
        placed.map_err(|reason| system("taking the XDP program's place", reason))?;
        let held = attached.program().hold_back(false);
        held.map_err(|error| system("taking frames", map_io(error)))
    }

    /// Returns what another process needs to take over the interface. From now on, frames that are taken
    /// while a queue has no socket are dropped. `None` while the interface is gone.
    #[must_use]
    pub fn hand_over(&self) -> Option<Handover> {
        let attached = self.attached.as_ref()?;
        let mut program = attached.program();
        // If this fails, frames that arrive between two sockets go to the kernel.
        let _ = program.hold_back(true);
        let link = program.share_link()?;
        let sockets = program.sockets()?.try_clone_to_owned().ok()?;
        let (index, native, zero_copy) =
            (attached.index(), attached.native, attached.zero_copy.get().copied());
        Some(Handover { index, native, zero_copy, link, sockets, left: Vec::new() })
    }

    /// Returns the open sockets that another process could use, and their memory.
    #[must_use]
    pub fn offers(&self) -> Vec<(Offer, Memory)> {
        let Some(attached) = &self.attached else { return Vec::new() };
        let zero_copy = attached.zero_copy.get().copied().unwrap_or_default();
        let offer = |line: &Arc<Line>| {
            let socket = line.socket()?;
            let memory = line.source().memory()?;
            let (queue, native, rings) = (line.queue(), attached.native, attached.rings());
            Some((Offer { queue, native, zero_copy, rings, pool: memory.pool, socket }, memory))
        };
        self.lines().iter().filter_map(offer).collect()
    }

    /// Makes the ports on these queues leave their sockets open when they are closed.
    pub fn leave_open(&self, queues: &[u32]) {
        self.lines().iter().filter(|line| queues.contains(&line.queue())).for_each(|line| line.leave_open());
    }

    /// Returns the states in which ports have left their sockets, once.
    #[must_use]
    pub fn left(&self) -> Vec<Left> {
        self.lines().iter().filter_map(|line| line.left()).collect()
    }

    /// Whether the interface waits for another process to hand it over.
    #[must_use]
    pub fn is_prepared(&self) -> bool {
        self.prepared.is_some()
    }
}

impl Queues {
    /// Whether another process will hand the interface over.
    #[must_use]
    pub fn is_prepared(&self) -> bool {
        self.prepared.is_some()
    }

    /// Returns the other process's number for the pool of the socket that it offers for a queue.
    ///
    /// # Errors
    /// The error says why no socket can be used.
    pub fn offered(&self, queue: u32) -> Result<u32, &'static str> {
        let Some((_, rings)) = self.prepared else { return Err("it is not handed over") };
        self.offers.change(|all| {
            let offer = all.iter().find(|offer| offer.queue == queue).ok_or("none is offered")?;
            offer.refusal(rings, self.mode).map_or(Ok(offer.pool), Err)
        })
    }

    /// Opens a port on a queue whose socket is [offered](Queues::offered), on that socket's adopted pool. If
    /// the kernel does not let this process map its rings (before Linux 6.4), a socket will be opened as
    /// usual, and this is reported.
    ///
    /// # Errors
    /// Returns an [`XdpError`], which says what to do.
    ///
    /// # Panics
    /// Panics if the pool is not a region pool in `pools`.
    pub fn adopt(
        &self,
        queue: u32,
        pools: &mut Pools,
        pool: PoolId,
    ) -> Result<(XdpPort, Option<String>), XdpError> {
        let (name, place) = (self.port.clone(), (queue, self.frame_max));
        let take = |all: &mut Vec<Offer>| {
            let at = all.iter().position(|offer| offer.queue == queue)?;
            Some(all.swap_remove(at))
        };
        let Some((offer, (_, rings))) = self.offers.change(take).zip(self.prepared) else {
            return self.open(queue, pools, pool).map(|port| (port, None));
        };
        let (port, line) = XdpPort::waiting(name, place, pools.region_mut(pool));
        let refused = line.adopt(offer).err();
        if refused.is_some() {
            line.prepare(&self.interface, rings)?;
        }
        self.keep(line);
        Ok((port, refused.map(|errno| format!("its rings cannot be mapped: {errno}"))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(away: &[u64]) -> Left {
        Left { away: away.into(), ..Left::default() }
    }

    #[test]
    fn every_chunk_is_with_one_socket_or_at_home() {
        let home = Home::new(66, [&left(&[0b101, 0]), &left(&[u64::MAX << 3, 1])]).unwrap();
        assert_eq!(home.chunks(), [65, 1]);
        assert_eq!(Home::new(64, [&left(&[u64::MAX])]).unwrap().chunks(), []);
        assert_eq!(Home::new(2, []).unwrap().chunks(), [1, 0]);
    }

    #[test]
    fn marks_that_cannot_be_are_refused() {
        assert_eq!(Home::new(66, [&left(&[1])]), None, "too short");
        assert_eq!(Home::new(64, [&left(&[1, 0])]), None, "too long");
        assert_eq!(Home::new(66, [&left(&[0, 4])]), None, "there is no chunk 66");
        assert_eq!(Home::new(66, [&left(&[3, 0]), &left(&[2, 0])]), None, "chunk 1 twice");
    }

    #[test]
    fn a_socket_serves_a_port_of_the_same_rings_and_mode() {
        let socket = std::fs::File::open("/dev/null").unwrap().into();
        let rings = Rings::default();
        let offer = Offer { queue: 0, native: true, zero_copy: false, rings, pool: 1, socket };
        assert_eq!(offer.refusal(rings, None), None);
        assert_eq!(offer.refusal(rings, Some(Mode::NativeCopy)), None);
        for mode in [Mode::NativeZeroCopy, Mode::GenericCopy] {
            assert!(offer.refusal(rings, Some(mode)).unwrap().contains("mode"));
        }
        let other = Rings { transmit: 64, ..rings };
        assert!(offer.refusal(other, None).unwrap().contains("rings"));
    }
}
