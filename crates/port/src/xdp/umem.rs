//! The pool's region as a socket's UMEM, and the owner of each chunk.
//!
//! Every port registers the region of its worker's pool separately, so a frame passes from port to port by
//! descriptor whatever their drivers support. (XDP_SHARED_UMEM would pin the pages once rather than once per
//! port, but it forces the first port's mode on all: a veth cannot join the UMEM of a zero-copy NIC. It also
//! ties the lifetimes of the ports together.)
//!
//! Promise: every chunk that the kernel owns is marked here, and only a marked chunk is taken back. A wrong
//! descriptor is therefore counted and ignored, and after the socket is closed every chunk returns, even
//! those that the kernel kept outside all rings. Cost: one bit set and one cleared per frame.

use packet::{Frame, PoolId, RegionPool};
use rustix::fd::AsFd;
use rustix::io;
use rustix::net::sockopt::set_xdp_umem_reg;
use rustix::net::xdp::{XdpDesc, XdpDescOptions, XdpUmemReg, XdpUmemRegFlags};

use super::socket::Socket;

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

    /// Registers the region with a socket.
    pub(super) fn register(self, socket: impl AsFd) -> io::Result<()> {
        let region = XdpUmemReg {
            addr: self.address,
            len: self.length,
            chunk_size: self.chunk,
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
}

impl Umem {
    /// Creates the state with no chunk owned by the socket.
    pub(super) fn new(pool: &RegionPool) -> Umem {
        let words = (pool.chunks() as usize).div_ceil(64);
        Umem { pool: pool.id(), chunk_bits: pool.chunk().trailing_zeros(), away: vec![0; words], count: 0 }
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
    pub(super) fn surrender(&mut self, pool: &RegionPool, frame: Frame) -> XdpDesc {
        let (chunk, addr, len) = pool.surrender(frame);
        self.mark(chunk);
        XdpDesc { addr, len, options: XdpDescOptions::empty() }
    }

    /// Takes back the chunk that contains an address from the completion ring or from a refused piece.
    #[inline]
    pub(super) fn take_back(&mut self, pool: &mut RegionPool, address: u64) -> Result<(), NotOurs> {
        let chunk = self.unmark(address)?;
        // SAFETY: the chunk was marked: we lent or surrendered it, and by naming it the kernel returns it.
        unsafe { pool.reclaim(chunk) };
        Ok(())
    }

    /// Closes the socket and takes back everything it owned.
    pub(super) fn close(&mut self, socket: Option<Socket>, pool: &mut RegionPool) {
        drop(socket);
        for (word, away) in self.away.iter_mut().enumerate() {
            for bit in packet::Bits(std::mem::take(away)) {
                // SAFETY: marked, hence ours to take back. The socket is closed: the kernel has unbound it
                // and waited for its receivers (xsk_unbind_dev). A frame that it is still sending was copied,
                // or is read from pages that stay pinned: its bytes can be wrong, but only the kernel reads
                // them.
                unsafe { pool.reclaim((word * 64 + bit) as u32) };
            }
        }
        self.count = 0;
    }

    #[inline]
    fn mark(&mut self, chunk: u32) {
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
        let sent = umem.surrender(&pool, frame);
        assert_eq!((sent.addr, sent.len, umem.away()), (address + 256, 60, 1));
        assert_eq!(umem.take_back(&mut pool, sent.addr), Ok(()));
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
    fn what_the_kernel_put_aside_comes_home_at_the_end() {
        let mut pool = RegionPool::new(130, 2048);
        let mut umem = Umem::new(&pool);
        while umem.lend(&mut pool).is_some() {}
        assert_eq!((umem.away(), pool.available()), (130, 0));
        umem.close(None, &mut pool);
        assert_eq!((umem.away(), pool.available()), (0, 130));
    }
}
