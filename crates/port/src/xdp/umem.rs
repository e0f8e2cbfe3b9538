//! The pool's region as a socket's UMEM, and the owner of each chunk.
//!
//! Every port registers the region of its worker's pool separately, so a frame passes from port to port by
//! descriptor, whatever the drivers support. (XDP_SHARED_UMEM would pin the pages once rather than once per
//! port, but it forces the first port's mode on all ports: a veth cannot join the UMEM of a zero-copy NIC. It
//! also ties the lifetimes of the ports together.)
//!
//! The kernel's chunks are at most a page. If the pool's chunks are larger, for larger frames, the kernel
//! gets the first page of each, into which a frame of usual length is received as always. A longer frame
//! arrives in pieces; the second and later ones are copied behind the first (`joining.rs`). It is sent in
//! place, with one descriptor for each page that it touches. Its chunk returns to the pool when the last of
//! these descriptors is completed.
//!
//! Promise: every chunk that the kernel owns is marked here, and only a marked chunk is taken back. A wrong
//! descriptor is therefore counted and ignored, and after the socket is closed every chunk returns, even
//! those that the kernel kept outside all rings. Cost: one bit set and one cleared per frame; with chunks
//! larger than a page, also a byte for the further pieces.

use rustix::fd::AsFd;
use rustix::io;
use rustix::net::sockopt::set_xdp_umem_reg;
use rustix::net::xdp::{XdpDesc, XdpDescOptions, XdpUmemReg, XdpUmemRegFlags};
use weir_packet::{Frame, PoolId, RegionPool};

use super::socket::Socket;

/// The kernel's largest chunk: a page.
const PAGE: usize = 4096;

/// The first piece of a sent frame must contain the whole Ethernet header, because the kernel removes it.
const FIRST_PIECE_MIN: usize = 14;

/// The largest number of pieces of a frame: the number of pages in the largest chunk of a pool, 32 KiB.
const PIECES_MAX: usize = 8;

/// The kernel named a chunk that it does not own, or bytes outside it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotOurs;

/// Where a pool's region is. Only a port of a living pool may register it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area {
    address: u64,
    length: u64,
    chunk: u32,
}

impl Area {
    pub(super) fn of(pool: &RegionPool) -> Area {
        let (base, length) = pool.region();
        Area { address: base.as_ptr() as u64, length: length as u64, chunk: pool.chunk() as u32 }
    }

    /// Returns true if frames can be longer than the kernel's chunks, and therefore come in pieces.
    pub(super) fn is_big(self) -> bool {
        self.chunk as usize > PAGE
    }

    /// Registers the region with a socket.
    pub(super) fn register(self, socket: impl AsFd) -> io::Result<()> {
        let region = XdpUmemReg {
            addr: self.address,
            len: self.length,
            chunk_size: self.chunk.min(PAGE as u32),
            // The kernel leaves 256 bytes (XDP_PACKET_HEADROOM) in front of a frame anyway; weir needs 128.
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        set_xdp_umem_reg(socket, region)
    }
}

/// The chunks of a pool that one socket owns.
pub(super) struct Umem {
    pool: PoolId,
    chunk_bits: u32,
    away: Vec<u64>,
    count: u32,
    /// For each chunk, the number of pieces that the kernel owns besides the first. Empty if no chunk is
    /// larger than a page.
    further: Vec<u8>,
}

/// A frame as descriptors of the transmit ring.
pub(super) struct Pieces {
    all: [XdpDesc; PIECES_MAX],
    count: usize,
}

impl Pieces {
    #[inline]
    pub(super) fn as_slice(&self) -> &[XdpDesc] {
        &self.all[..self.count]
    }
}

impl Umem {
    /// Creates the state with no chunk owned by the socket.
    pub(super) fn new(pool: &RegionPool) -> Umem {
        let words = (pool.chunks() as usize).div_ceil(64);
        let further = if Area::of(pool).is_big() { vec![0; pool.chunks() as usize] } else { Vec::new() };
        // The upper bits of an address are the number of its chunk.
        assert!(pool.chunk().is_power_of_two(), "chunks of {} bytes", pool.chunk());
        let chunk_bits = pool.chunk().trailing_zeros();
        Umem { pool: pool.id(), chunk_bits, away: vec![0; words], count: 0, further }
    }

    /// Returns true if frames that do not fit into a page are sent in pieces.
    #[inline]
    pub(super) fn is_big(&self) -> bool {
        !self.further.is_empty()
    }

    /// Returns the pool that the region belongs to.
    pub(super) fn pool(&self) -> PoolId {
        self.pool
    }

    /// Returns the number of chunks that the kernel owns.
    pub(super) fn away(&self) -> u32 {
        self.count
    }

    /// Takes a free chunk for the fill ring. `None` if there is none.
    #[inline]
    pub(super) fn lend(&mut self, pool: &mut RegionPool) -> Option<u64> {
        let chunk = pool.lend()?;
        self.mark(chunk);
        Some(u64::from(chunk) << self.chunk_bits)
    }

    /// Builds the frame named by a descriptor of the receive ring.
    #[inline]
    pub(super) fn receive(&mut self, pool: &mut RegionPool, descriptor: &XdpDesc) -> Result<Frame, NotOurs> {
        let chunk = self.unmark(descriptor.addr)?;
        let offset = descriptor.addr as usize & (pool.chunk() - 1);
        // SAFETY: the chunk was marked: we lent or surrendered it, and by naming it the kernel returns it.
        let frame = unsafe { pool.receive(chunk, offset, descriptor.len as usize) };
        frame.map_err(|_| {
            // SAFETY: as above; no frame was built from it.
            unsafe { pool.reclaim(chunk) };
            NotOurs
        })
    }

    /// Hands a frame to the kernel, as a descriptor for the transmit ring.
    #[inline]
    pub(super) fn send_to_kernel(&mut self, pool: &RegionPool, frame: Frame) -> XdpDesc {
        let (chunk, addr, len) = pool.release(frame);
        self.mark(chunk);
        XdpDesc { addr, len, options: XdpDescOptions::empty() }
    }

    /// Returns how many descriptors a frame takes.
    #[inline]
    pub(super) fn pieces(&self, pool: &RegionPool, frame: &Frame) -> u32 {
        if !self.is_big() {
            return 1;
        }
        let start = frame.data().as_ptr() as usize - pool.region().0.as_ptr() as usize;
        ((start + frame.len()).div_ceil(PAGE) - start / PAGE) as u32
    }

    /// Hands a frame of several pieces to the kernel, as descriptors for the transmit ring.
    pub(super) fn send_pieces_to_kernel(&mut self, pool: &RegionPool, mut frame: Frame) -> Pieces {
        with_first_piece(&mut frame, pool);
        let (chunk, start, length) = pool.release(frame);
        let (end, mut at) = (start + u64::from(length), start);
        let absent = XdpDesc { addr: 0, len: 0, options: XdpDescOptions::empty() };
        let mut pieces = Pieces { all: [absent; PIECES_MAX], count: 0 };
        while at < end {
            let next = (at / PAGE as u64 + 1) * PAGE as u64;
            let more = if next < end { XdpDescOptions::XDP_PKT_CONTD } else { XdpDescOptions::empty() };
            pieces.all[pieces.count] = XdpDesc { addr: at, len: (next.min(end) - at) as u32, options: more };
            pieces.count += 1;
            at = next;
        }
        self.mark(chunk);
        self.further[chunk as usize] = pieces.count as u8 - 1;
        pieces
    }

    /// Takes back the chunk that contains an address from the completion ring or from a refused piece.
    /// Returns false if the kernel still has other pieces of it.
    #[inline]
    pub(super) fn take_back(&mut self, pool: &mut RegionPool, address: u64) -> Result<bool, NotOurs> {
        if self.is_big() {
            let further = self.further.get_mut((address >> self.chunk_bits) as usize).ok_or(NotOurs)?;
            if *further > 0 {
                *further -= 1;
                return Ok(false);
            }
        }
        let chunk = self.unmark(address)?;
        // SAFETY: the chunk was marked: we lent or surrendered it, and by naming it the kernel returns it; it
        // has already named all other pieces of it.
        unsafe { pool.reclaim(chunk) };
        Ok(true)
    }

    /// Closes the socket and takes back everything it owned.
    pub(super) fn close(&mut self, socket: Option<Socket>, pool: &mut RegionPool) {
        drop(socket);
        for (word, away) in self.away.iter_mut().enumerate() {
            for bit in weir_packet::Bits(std::mem::take(away)) {
                // SAFETY: marked, hence ours to take back. The socket is closed: the kernel has unbound it
                // and waited for its receivers (xsk_unbind_dev). A frame that it is still sending was copied,
                // or is read from pages that stay pinned: its bytes can be wrong, but only the kernel reads
                // them.
                unsafe { pool.reclaim((word * 64 + bit) as u32) };
            }
        }
        self.count = 0;
        self.further.fill(0);
    }

    /// Removes and returns the marks of all chunks and the counts of further pieces, because another process
    /// owns the socket from now on.
    pub(super) fn give_up(&mut self) -> (Vec<u64>, Vec<u8>) {
        self.count = 0;
        (std::mem::take(&mut self.away), std::mem::take(&mut self.further))
    }

    /// Marks the chunks that the kernel owned when another process handed the socket over. Does nothing and
    /// returns false if these are not marks for this pool.
    pub(super) fn resume(&mut self, away: &[u64], further: &[u8]) -> bool {
        let fits = away.len() == self.away.len() && further.len() == self.further.len();
        let few = further.iter().all(|&count| usize::from(count) < PIECES_MAX);
        if !fits || !few || self.count > 0 {
            return false;
        }
        self.away.copy_from_slice(away);
        self.further.copy_from_slice(further);
        self.count = away.iter().map(|word| word.count_ones()).sum();
        true
    }

    /// Adds to an adopted pool the chunks that no socket owned when another process stopped.
    pub(super) fn bring_home(pool: &mut RegionPool, chunks: &[u32]) {
        let all = pool.chunks();
        for &chunk in chunks.iter().filter(|&&chunk| chunk < all) {
            // SAFETY: the other process has stopped its workers, so it uses no chunk, and has closed its
            // other sockets on the region; those that are handed over do not own this one (`Home::new`, which
            // lists each once). The list is given to one port of the pool, and only once.
            unsafe { pool.reclaim(chunk) };
        }
    }

    #[inline]
    fn mark(&mut self, chunk: u32) {
        debug_assert_eq!(
            self.away[chunk as usize / 64] >> (chunk % 64) & 1,
            0,
            "the kernel has chunk {chunk}"
        );
        self.away[chunk as usize / 64] |= 1 << (chunk % 64);
        self.count += 1;
    }

    #[inline]
    fn unmark(&mut self, address: u64) -> Result<u32, NotOurs> {
        let chunk = address >> self.chunk_bits;
        let bit = 1 << (chunk % 64);
        let word =
            self.away.get_mut((chunk / 64) as usize).filter(|word| **word & bit != 0).ok_or(NotOurs)?;
        *word &= !bit;
        self.count -= 1;
        Ok(chunk as u32) // An index of `away` times 64: the pool counts chunks in u32.
    }
}

/// Moves a frame within its chunk if its first piece would be shorter than the kernel accepts: this only
/// affects frames from whose front nearly a page was removed.
#[inline]
fn with_first_piece(frame: &mut Frame, pool: &RegionPool) {
    let start = frame.data().as_ptr() as usize - pool.region().0.as_ptr() as usize;
    let first = PAGE - start % PAGE;
    if first < FIRST_PIECE_MIN {
        let (length, front) = (frame.len(), (FIRST_PIECE_MIN - first) as u16);
        frame.prepend(front).expect("a page minus a few bytes is free in front of it");
        frame.bytes_mut().copy_within(usize::from(front).., 0);
        frame.resize(length as u16).expect("it becomes shorter");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor(addr: u64, len: u32) -> XdpDesc {
        XdpDesc { addr, len, options: XdpDescOptions::empty() }
    }

    #[test]
    fn a_chunk_goes_out_and_comes_back_as_a_frame() {
        let mut pool = RegionPool::new(2, 2048);
        let mut umem = Umem::new(&pool);
        let address = umem.lend(&mut pool).unwrap();
        assert_eq!((umem.away(), pool.available()), (1, 1));
        let frame = umem.receive(&mut pool, &descriptor(address + 256, 60)).unwrap();
        assert_eq!((umem.away(), frame.room().headroom, frame.len()), (0, 256, 60));
        let sent = umem.send_to_kernel(&pool, frame);
        assert_eq!((sent.addr, sent.len, umem.away()), (address + 256, 60, 1));
        assert_eq!(umem.take_back(&mut pool, sent.addr), Ok(true));
        assert_eq!((umem.away(), pool.available()), (0, 2));
    }

    #[test]
    fn a_wrong_descriptor_is_not_believed() {
        let mut pool = RegionPool::new(70, 2048);
        let mut umem = Umem::new(&pool);
        let address = umem.lend(&mut pool).unwrap();
        for wrong in [address + 2048, 70 * 2048, u64::MAX] {
            assert_eq!(umem.receive(&mut pool, &descriptor(wrong, 60)).map(|_| ()), Err(NotOurs));
            assert_eq!(umem.take_back(&mut pool, wrong), Err(NotOurs));
        }
        assert_eq!(umem.receive(&mut pool, &descriptor(address + 2000, 60)).map(|_| ()), Err(NotOurs));
        assert_eq!(umem.take_back(&mut pool, address), Err(NotOurs), "once only");
        assert_eq!(pool.available(), 70);
    }

    #[test]
    fn a_frame_of_several_pages_goes_out_in_pieces_and_is_back_with_the_last() {
        let mut pool = RegionPool::new(3, 16384);
        let mut umem = Umem::new(&pool);
        for (front, length, expected) in [
            (128, 9014, vec![(128, 3968), (4096, 4096), (8192, 950)]),
            (128, 3969, vec![(128, 3968), (4096, 1)]),
            (4090, 100, vec![(4082, 14), (4096, 86)]),
            (128, 16256, vec![(128, 3968), (4096, 4096), (8192, 4096), (12288, 4096)]),
        ] {
            let mut frame = pool.take().unwrap();
            frame.resize(front + length - 128).unwrap();
            frame.trim_front(front - 128).unwrap();
            let content: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            frame.fill(&content).unwrap();
            let chunk = frame.handle() * 16384;
            assert_eq!(umem.pieces(&pool, &frame) as usize, expected.len());
            let pieces = umem.send_pieces_to_kernel(&pool, frame);
            let placed: Vec<_> = pieces.as_slice().iter().map(|one| (one.addr - chunk, one.len)).collect();
            assert_eq!(placed, expected);
            let (base, _) = pool.region();
            let mut sent = Vec::new();
            for (at, piece) in pieces.as_slice().iter().enumerate() {
                let more = piece.options.contains(XdpDescOptions::XDP_PKT_CONTD);
                assert_eq!(more, at + 1 < expected.len());
                // SAFETY: a descriptor of this region, for which no frame exists.
                sent.extend(unsafe {
                    let first = base.add(piece.addr as usize).as_ptr();
                    std::slice::from_raw_parts(first, piece.len as usize).to_vec()
                });
            }
            assert_eq!(sent, content);
            for (at, piece) in pieces.as_slice().iter().rev().enumerate() {
                assert_eq!(umem.take_back(&mut pool, piece.addr), Ok(at + 1 == expected.len()));
            }
            assert_eq!(umem.take_back(&mut pool, chunk), Err(NotOurs), "once only");
            assert_eq!((umem.away(), pool.available()), (0, 3));
        }
        let frame = pool.take().unwrap();
        assert_eq!(umem.pieces(&pool, &frame), 1, "an empty frame is one that the port refuses");
        pool.give(frame);
        let mut frame = pool.take().unwrap();
        frame.resize(9000).unwrap();
        let pieces = umem.send_pieces_to_kernel(&pool, frame);
        umem.take_back(&mut pool, pieces.as_slice()[0].addr).unwrap();
        umem.close(None, &mut pool);
        assert_eq!((umem.away(), pool.available(), umem.further.iter().sum::<u8>()), (0, 3, 0));
    }

    #[test]
    fn what_the_kernel_put_aside_comes_home_at_the_end() {
        let mut pool = RegionPool::new(130, 2048);
        let mut umem = Umem::new(&pool);
        while umem.lend(&mut pool).is_some() {}
        assert_eq!((umem.away(), pool.available()), (130, 0));
        umem.close(None, &mut pool);
        assert_eq!((umem.away(), pool.available()), (0, 130));
    }
}
