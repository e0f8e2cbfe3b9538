//! A pool whose frames are DPDK's mbufs.
//!
//! One pool can serve all workers: any thread may take and give frames, and a thread registered with DPDK
//! (`Eal::register_thread`) uses a cache of its own. Give each worker a clone.

use super::eal::{DpdkError, Eal};
use super::shim::Mempool;
use std::ffi::CString;
use std::sync::Arc;
use weir_packet::{ForeignPool, Frame, Pool, PoolId};

/// The most frames that a thread may have in its cache; DPDK's upper limit is 512.
const CACHE: u32 = 256;

/// Bytes for the frame in an mbuf of usual size.
pub const MBUF_ROOM: usize = 2048;

/// A shared reference to a pool of mbufs with 128 bytes of headroom and 2048 bytes or more for the frame.
#[derive(Clone)]
pub struct MbufPool(Arc<Mempool>);

impl MbufPool {
    /// Creates a pool of `frames` frames: enough for every descriptor of its ports, every batch and every
    /// cache (256 per worker).
    ///
    /// # Errors
    /// Returns [`DpdkError::PoolMemory`] if DPDK has too little memory.
    pub fn new(eal: Eal, frames: u32) -> Result<MbufPool, DpdkError> {
        MbufPool::with_room(eal, frames, MBUF_ROOM)
    }

    /// Creates a pool for frames of up to `room` bytes, at least 2048.
    ///
    /// # Errors
    /// Returns [`DpdkError::PoolMemory`] if DPDK has too little memory.
    pub fn with_room(eal: Eal, frames: u32, room: usize) -> Result<MbufPool, DpdkError> {
        let room = room.clamp(MBUF_ROOM, usize::from(u16::MAX / 2)) as u16;
        // DPDK requires two thirds of a pool to be outside any one cache.
        let cache = CACHE.min(frames / 2);
        let name = CString::new(format!("weir-pool-{}", PoolId::next().0)).expect("no NUL in a number");
        let pool = Mempool::new(&name, frames, cache, room);
        pool.map(|pool| MbufPool(Arc::new(pool))).ok_or_else(|| eal.pool_memory(frames))
    }

    /// Returns the ID of the pool, the same for all clones.
    #[must_use]
    pub fn id(&self) -> PoolId {
        self.0.id()
    }

    /// Returns the total number of frames.
    #[must_use]
    pub fn frames(&self) -> u32 {
        self.0.frames()
    }

    /// Returns this pool as one of a worker's [`weir_packet::Pools`].
    #[must_use]
    pub fn share(&self) -> Pool {
        Pool::Foreign(self.id(), Box::new(self.clone()))
    }

    pub(super) fn mempool(&self) -> &Arc<Mempool> {
        &self.0
    }
}

impl ForeignPool for MbufPool {
    fn take(&mut self) -> Option<Frame> {
        self.0.take()
    }

    fn give(&mut self, frame: Frame) {
        self.0.give(frame);
    }

    fn available(&self) -> usize {
        self.0.available() as usize
    }
}
