//! Pools of either kind of memory, and those of one worker.

use crate::memory::{CHUNK_MIN, Frame, PoolId, RegionPool};

/// A pool with memory managed by others (DPDK's mempool).
pub trait ForeignPool: Send {
    /// Takes an empty frame with [`HEADROOM`](crate::HEADROOM). `None` if there is none.
    fn take(&mut self) -> Option<Frame>;
    /// Gives a frame back.
    fn give(&mut self, frame: Frame);
    /// Returns the number of frames that can still be taken; may be an estimate.
    fn available(&self) -> usize;
}

/// A pool of either kind.
pub enum Pool {
    /// Weir's own region: heap or UMEM.
    Region(RegionPool),
    /// Memory managed by a driver.
    Foreign(PoolId, Box<dyn ForeignPool>),
}

impl Pool {
    /// Returns the pool's id.
    #[inline]
    #[must_use]
    pub fn id(&self) -> PoolId {
        match self {
            Pool::Region(pool) => pool.id(),
            Pool::Foreign(id, _) => *id,
        }
    }

    /// Takes an empty frame. `None` if there is none.
    #[inline]
    pub fn take(&mut self) -> Option<Frame> {
        match self {
            Pool::Region(pool) => pool.take(),
            Pool::Foreign(_, pool) => pool.take(),
        }
    }

    /// Gives a frame back.
    #[inline]
    pub fn give(&mut self, frame: Frame) {
        match self {
            Pool::Region(pool) => pool.give(frame),
            Pool::Foreign(_, pool) => pool.give(frame),
        }
    }

    /// Returns the number of frames that can be taken.
    #[must_use]
    pub fn available(&self) -> usize {
        match self {
            Pool::Region(pool) => pool.available(),
            Pool::Foreign(_, pool) => pool.available(),
        }
    }
}

/// The pools of one worker: one per kind of memory, so almost always just one.
#[derive(Default)]
pub struct Pools(Vec<Pool>);

impl Pools {
    /// Creates an empty list of pools.
    #[must_use]
    pub fn new() -> Pools {
        Pools::default()
    }

    /// Creates a list with a single region pool, for tests and replay.
    #[must_use]
    pub fn region(chunks: u32) -> Pools {
        let mut pools = Pools::new();
        pools.add(Pool::Region(RegionPool::new(chunks, CHUNK_MIN)));
        pools
    }

    /// Adds a pool and returns its id.
    pub fn add(&mut self, pool: Pool) -> PoolId {
        let id = pool.id();
        self.0.push(pool);
        id
    }

    /// Returns the pool with this id.
    #[inline]
    pub fn get_mut(&mut self, id: PoolId) -> Option<&mut Pool> {
        self.0.iter_mut().find(|pool| pool.id() == id)
    }

    /// Returns the region pool with this id.
    ///
    /// # Panics
    /// Panics if there is none, because a port was opened on a pool of another worker.
    #[inline]
    pub fn region_mut(&mut self, id: PoolId) -> &mut RegionPool {
        match self.get_mut(id) {
            Some(Pool::Region(pool)) => pool,
            _ => panic!("no region pool {id:?} in this worker"),
        }
    }

    /// Returns the first pool, from which copies and originated frames come unless a port requires another.
    ///
    /// # Panics
    /// Panics if there is no pool at all.
    #[inline]
    pub fn first(&mut self) -> &mut Pool {
        self.0.first_mut().expect("a worker has a pool")
    }

    /// Gives a frame back to its pool. Does nothing for an absent frame.
    ///
    /// # Panics
    /// Panics if its pool is not in this list.
    #[inline]
    pub fn give(&mut self, frame: Frame) {
        if frame.is_absent() {
            return;
        }
        match self.get_mut(frame.pool()) {
            Some(pool) => pool.give(frame),
            None => panic!("frame of unknown pool {:?}", frame.pool()),
        }
    }

    /// Returns true if there is exactly one pool, to which all frames of the worker then belong.
    #[inline]
    #[must_use]
    pub fn is_single(&self) -> bool {
        self.0.len() == 1
    }

    /// Takes the last pool out, to pass it to another worker.
    pub fn pop(&mut self) -> Option<Pool> {
        self.0.pop()
    }

    /// Removes a pool to which all frames have returned, unless it is the first pool or on loan from a
    /// driver. Returns the pool, so that a thread with time to spare can free its memory.
    pub fn remove_idle(&mut self, id: PoolId) -> Option<Pool> {
        let at = self.0.iter().skip(1).position(|pool| pool.id() == id)? + 1;
        let is_idle = |pool: &RegionPool| pool.available() == pool.chunks() as usize;
        matches!(&self.0[at], Pool::Region(pool) if is_idle(pool)).then(|| self.0.remove(at))
    }

    /// Iterates over all pools.
    pub fn iter(&self) -> impl Iterator<Item = &Pool> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_removed_when_all_its_frames_are_home_and_the_first_one_never() {
        let mut pools = Pools::region(1);
        let first = pools.first().id();
        let second = pools.add(Pool::Region(RegionPool::new(2, 2048)));
        let frame = pools.get_mut(second).and_then(Pool::take).unwrap();
        assert!(pools.remove_idle(second).is_none() && !pools.is_single());
        pools.give(frame);
        assert_eq!(pools.remove_idle(second).map(|pool| pool.id()), Some(second));
        assert!(pools.remove_idle(second).is_none() && pools.remove_idle(first).is_none());
        assert!(pools.is_single());
    }
}
