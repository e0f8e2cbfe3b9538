//! Frames and the pools they live in: the only unsafe code of this crate.
//!
//! A frame is a move-only handle on a piece of a memory region: whoever holds the handle owns the bytes, and nobody
//! else can name them. That makes receive, rewrite and transmit free of copies and of reference counts. Frames are not
//! returned by `Drop`: a data path that frees behind the reader's back cannot account for its frames, so every owner
//! gives its frame to a port or back to its pool, and pools know how many are out.
//!
//! A region pool serves memory ports, pcap ports and AF_XDP alike (an AF_XDP port registers the region as its UMEM).
//! DPDK brings its own memory, behind [`ForeignPool`].
//!
//! Cost: taking and giving a frame is one push or pop of a `u32`.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes kept free in front of a received frame, so that an outer Ethernet, IPv6, UDP and VXLAN header (70 B) and two
/// VLAN tags fit without moving the payload.
pub const HEADROOM: u16 = 128;

/// Smallest chunk a region may be cut into: AF_XDP takes 2048 or 4096.
pub const CHUNK_MIN: usize = 2048;

/// Regions are page aligned: AF_XDP requires it of a UMEM.
const REGION_ALIGNMENT: usize = 4096;

/// Bytes that a processor fetches at a time.
const CACHE_LINE: usize = 64;

/// Bytes of a huge page (x86-64, and AArch64 with pages of 4 KiB).
const HUGE_PAGE: usize = 2 << 20;

/// Names a pool; unique in the process, so that a frame can never return to the wrong one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct PoolId(pub u32);

impl PoolId {
    /// The pool of frames that are not there (see [`Frame::absent`]).
    pub const NONE: PoolId = PoolId(0);

    /// A number no other pool of this process has.
    #[must_use]
    pub fn next() -> PoolId {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        PoolId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A frame: bytes on a wire, held in a pool's memory. 32 bytes, move-only.
///
/// The layout is `repr(C)` because the DPDK shim fills arrays of it (`struct weir_frame`).
#[derive(Debug)]
#[repr(C)]
#[must_use = "a frame that is not given to a port or back to its pool is lost"]
pub struct Frame {
    data: NonNull<u8>,
    handle: u64,
    length: u16,
    headroom: u16,
    tailroom: u16,
    pad: u16,
    pool: PoolId,
    hash: u32,
}

const _: () = assert!(size_of::<Frame>() == 32);

// SAFETY: a frame owns its bytes exclusively; they belong to no thread.
unsafe impl Send for Frame {}

/// Refused: a frame has no room for what was to be put in front of it or behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

impl Frame {
    /// A frame that is not there: no bytes, no pool. What is left where a frame was taken away.
    pub const fn absent() -> Frame {
        Frame {
            data: NonNull::dangling(),
            handle: 0,
            length: 0,
            headroom: 0,
            tailroom: 0,
            pad: 0,
            pool: PoolId::NONE,
            hash: 0,
        }
    }

    /// Makes a frame from memory that a driver owns.
    ///
    /// # Safety
    /// `data - headroom .. data + length + tailroom` must be valid for reads and writes, initialised, and named by
    /// nothing else until the frame has been given to the pool `pool` or to a port.
    pub unsafe fn from_raw(data: NonNull<u8>, handle: u64, room: Room, pool: PoolId) -> Frame {
        let Room { headroom, length, tailroom } = room;
        Frame { data, handle, length, headroom, tailroom, pad: 0, pool, hash: 0 }
    }

    /// True for [`Frame::absent`].
    #[inline]
    #[must_use]
    pub fn is_absent(&self) -> bool {
        self.pool == PoolId::NONE
    }

    /// The pool this frame must return to.
    #[inline]
    #[must_use]
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// What the pool knows the memory by: a region pool's chunk number, a DPDK pool's mbuf address.
    #[inline]
    #[must_use]
    pub fn handle(&self) -> u64 {
        self.handle
    }

    /// The hash that the NIC delivered with the frame; 0: none. It stays with the frame whatever becomes of its bytes.
    #[inline]
    #[must_use]
    pub fn hash(&self) -> u32 {
        self.hash
    }

    /// Notes the hash that came with the frame; 0: none. A frame made by a pool has none.
    #[inline]
    pub fn set_hash(&mut self, hash: u32) {
        self.hash = hash;
    }

    /// Length in bytes, without FCS.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.length)
    }

    /// True when the frame has no bytes.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Free bytes in front of the frame and behind it, and its length.
    #[inline]
    #[must_use]
    pub fn room(&self) -> Room {
        Room { headroom: self.headroom, length: self.length, tailroom: self.tailroom }
    }

    /// Address of the first byte: what drivers compute descriptors from.
    #[inline]
    #[must_use]
    pub fn data(&self) -> NonNull<u8> {
        self.data
    }

    /// The frame's bytes.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `from_raw` promises `length` initialised bytes that this frame owns.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), usize::from(self.length)) }
    }

    /// The frame's bytes, to be rewritten in place.
    #[inline]
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), usize::from(self.length)) }
    }

    /// The frame's bytes and its tailroom: a load of 8 or 16 bytes near the frame's end stays inside. The bytes past
    /// `len()` are initialised but mean nothing.
    #[inline]
    #[must_use]
    pub fn window(&self) -> &[u8] {
        let length = usize::from(self.length) + usize::from(self.tailroom);
        // SAFETY: `from_raw` promises the tailroom to be valid and initialised.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), length) }
    }

    /// Grows the frame at its front by `count` bytes, whose content is whatever lay there.
    ///
    /// # Errors
    /// [`NoRoom`] when the headroom is smaller.
    #[inline]
    pub fn prepend(&mut self, count: u16) -> Result<&mut [u8], NoRoom> {
        if count > self.headroom || self.length.checked_add(count).is_none() {
            return Err(NoRoom);
        }
        self.headroom -= count;
        self.length += count;
        // SAFETY: the headroom in front of `data` belongs to this frame (`from_raw`), and `count` of it was left.
        self.data = unsafe { self.data.sub(usize::from(count)) };
        Ok(self.bytes_mut())
    }

    /// Cuts `count` bytes off the front; they become headroom.
    ///
    /// # Errors
    /// [`NoRoom`] when the frame is shorter.
    #[inline]
    pub fn trim_front(&mut self, count: u16) -> Result<(), NoRoom> {
        if count > self.length {
            return Err(NoRoom);
        }
        self.headroom += count;
        self.length -= count;
        // SAFETY: `count` bytes of the frame itself lie between the old start and the new one.
        self.data = unsafe { self.data.add(usize::from(count)) };
        Ok(())
    }

    /// Makes the frame `length` bytes long, growing into its tailroom or giving bytes back to it.
    ///
    /// # Errors
    /// [`NoRoom`] when the tailroom does not suffice.
    #[inline]
    pub fn resize(&mut self, length: u16) -> Result<(), NoRoom> {
        let end = u32::from(self.length) + u32::from(self.tailroom);
        let tailroom = end.checked_sub(u32::from(length)).ok_or(NoRoom)?;
        self.tailroom = u16::try_from(tailroom).map_err(|_| NoRoom)?;
        self.length = length;
        Ok(())
    }

    /// Replaces the frame's bytes by `bytes`.
    ///
    /// # Errors
    /// [`NoRoom`] when they do not fit behind the present headroom.
    #[inline]
    pub fn fill(&mut self, bytes: &[u8]) -> Result<(), NoRoom> {
        self.resize(u16::try_from(bytes.len()).map_err(|_| NoRoom)?)?;
        self.bytes_mut().copy_from_slice(bytes);
        Ok(())
    }

    /// Takes the frame away and leaves [`Frame::absent`] behind.
    #[inline]
    pub fn take(&mut self) -> Frame {
        std::mem::replace(self, Frame::absent())
    }
}

/// How a frame lies in its chunk: bytes free in front, bytes of frame, bytes free behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Free bytes in front of the frame.
    pub headroom: u16,
    /// Bytes of the frame.
    pub length: u16,
    /// Free bytes behind the frame.
    pub tailroom: u16,
}

/// A pool whose memory somebody else manages (DPDK's mempool).
pub trait ForeignPool: Send {
    /// An empty frame with [`HEADROOM`], or none when all are out.
    fn take(&mut self) -> Option<Frame>;
    /// Takes a frame back.
    fn give(&mut self, frame: Frame);
    /// Frames that can still be taken; an estimate is enough.
    fn available(&self) -> usize;
}

/// A page-aligned region cut into equal chunks, with a free list.
#[derive(Debug)]
pub struct RegionPool {
    id: PoolId,
    base: NonNull<u8>,
    chunk: usize,
    chunks: u32,
    free: Vec<u32>,
}

// SAFETY: the region is owned by the pool and by the frames taken from it, each a disjoint part; none has an affinity.
unsafe impl Send for RegionPool {}

impl RegionPool {
    /// A region of `chunks` chunks of `chunk` bytes (2048 or 4096 for AF_XDP).
    ///
    /// # Panics
    /// When `chunk` is below [`CHUNK_MIN`], above 32 KiB or not a power of two, or when memory runs out: both are
    /// mistakes of set-up, not of traffic.
    #[must_use]
    pub fn new(chunks: u32, chunk: usize) -> RegionPool {
        assert!(chunk.is_power_of_two() && (CHUNK_MIN..=32768).contains(&chunk), "chunk size {chunk}");
        let layout = Self::layout(chunks, chunk);
        // SAFETY: the layout is not empty (`layout` sees to at least one chunk).
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        let free = (0..chunks).rev().collect();
        RegionPool { id: PoolId::next(), base, chunk, chunks, free }
    }

    fn layout(chunks: u32, chunk: usize) -> Layout {
        let bytes = chunk.checked_mul(chunks.max(1) as usize).expect("a region fits the address space");
        Layout::from_size_align(bytes, REGION_ALIGNMENT).expect("page alignment is a power of two")
    }

    /// This pool's name.
    #[must_use]
    pub fn id(&self) -> PoolId {
        self.id
    }

    /// First byte of the region and its length in bytes: what AF_XDP registers.
    #[must_use]
    pub fn region(&self) -> (NonNull<u8>, usize) {
        (self.base, self.chunk * self.chunks as usize)
    }

    /// Bytes of one chunk.
    #[must_use]
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    /// Chunks in all.
    #[must_use]
    pub fn chunks(&self) -> u32 {
        self.chunks
    }

    /// Chunks that can be taken.
    #[must_use]
    pub fn available(&self) -> usize {
        self.free.len()
    }

    /// An empty frame with [`HEADROOM`] in front, or none when all chunks are out.
    #[inline]
    pub fn take(&mut self) -> Option<Frame> {
        let chunk = self.free.pop()?;
        Some(self.frame(chunk, HEADROOM, 0))
    }

    /// Takes a chunk's number out of the pool, for a driver that fills it (AF_XDP's fill ring).
    #[inline]
    pub fn lend(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Takes a lent chunk back without a frame having come of it (AF_XDP's completion ring).
    ///
    /// # Safety
    /// The chunk must have been lent, or its frame consumed by [`RegionPool::surrender`], and nobody may use it.
    #[inline]
    pub unsafe fn reclaim(&mut self, chunk: u32) {
        debug_assert!(chunk < self.chunks && self.free.len() < self.chunks as usize);
        self.free.push(chunk);
    }

    /// Makes the frame that a driver put into a lent chunk, `offset` bytes from the chunk's start.
    ///
    /// # Errors
    /// [`NoRoom`] when the frame would not lie inside the chunk.
    ///
    /// # Safety
    /// The chunk must have been lent and the driver done with it.
    #[inline]
    pub unsafe fn receive(&self, chunk: u32, offset: usize, length: usize) -> Result<Frame, NoRoom> {
        if chunk >= self.chunks || offset.checked_add(length).is_none_or(|end| end > self.chunk) {
            return Err(NoRoom);
        }
        // Both fit: a chunk has at most 32 KiB.
        Ok(self.frame(chunk, offset as u16, length as u16))
    }

    /// Hands a frame to a driver: its chunk, and the frame's offset in the region and length, both in bytes.
    ///
    /// # Panics
    /// When the frame is another pool's.
    #[inline]
    pub fn surrender(&self, frame: Frame) -> (u32, u64, u32) {
        // Not `assert_eq`: that takes references, and the frame would be spilled to the stack.
        assert!(frame.pool == self.id, "a frame goes to a port on its own pool");
        let offset = frame.data.as_ptr() as usize - self.base.as_ptr() as usize;
        (frame.handle as u32, offset as u64, u32::from(frame.length))
    }

    /// Takes a frame back.
    ///
    /// # Panics
    /// When the frame is another pool's.
    #[inline]
    pub fn give(&mut self, frame: Frame) {
        assert!(frame.pool == self.id, "a frame returns to its own pool");
        self.free.push(frame.handle as u32);
    }

    #[inline]
    fn frame(&self, chunk: u32, headroom: u16, length: u16) -> Frame {
        let start = chunk as usize * self.chunk + usize::from(headroom);
        let tailroom = (self.chunk - usize::from(headroom) - usize::from(length)) as u16;
        // SAFETY: `chunk < chunks` (it came from the free list or was checked), so the frame lies inside the region.
        let data = unsafe { self.base.add(start) };
        let room = Room { headroom, length, tailroom };
        // SAFETY: the region is zeroed at birth, hence initialised; the chunk has left the free list, so no other
        // frame names it; the region outlives its frames (see `drop`).
        unsafe { Frame::from_raw(data, u64::from(chunk), room, self.id) }
    }
}

impl Drop for RegionPool {
    fn drop(&mut self) {
        // With frames still out the region must stay: leaking it is the safe answer.
        if self.free.len() == self.chunks as usize {
            // SAFETY: allocated in `new` with the same layout; every chunk is home, so no frame names the region.
            unsafe { dealloc(self.base.as_ptr(), Self::layout(self.chunks, self.chunk)) };
        }
    }
}

/// A pool of either kind.
pub enum Pool {
    /// Our own region: heap or UMEM.
    Region(RegionPool),
    /// Memory that a driver manages.
    Foreign(PoolId, Box<dyn ForeignPool>),
}

impl Pool {
    /// This pool's name.
    #[inline]
    #[must_use]
    pub fn id(&self) -> PoolId {
        match self {
            Pool::Region(pool) => pool.id,
            Pool::Foreign(id, _) => *id,
        }
    }

    /// An empty frame, or none when all are out.
    #[inline]
    pub fn take(&mut self) -> Option<Frame> {
        match self {
            Pool::Region(pool) => pool.take(),
            Pool::Foreign(_, pool) => pool.take(),
        }
    }

    /// Takes a frame back.
    #[inline]
    pub fn give(&mut self, frame: Frame) {
        match self {
            Pool::Region(pool) => pool.give(frame),
            Pool::Foreign(_, pool) => pool.give(frame),
        }
    }

    /// Frames that can be taken.
    #[must_use]
    pub fn available(&self) -> usize {
        match self {
            Pool::Region(pool) => pool.available(),
            Pool::Foreign(_, pool) => pool.available(),
        }
    }
}

/// The pools of one worker: one per memory kind, so almost always one.
#[derive(Default)]
pub struct Pools(Vec<Pool>);

impl Pools {
    /// No pool yet.
    #[must_use]
    pub fn new() -> Pools {
        Pools::default()
    }

    /// A single region pool, for tests and replay.
    #[must_use]
    pub fn region(chunks: u32) -> Pools {
        let mut pools = Pools::new();
        pools.add(Pool::Region(RegionPool::new(chunks, CHUNK_MIN)));
        pools
    }

    /// Adds a pool.
    pub fn add(&mut self, pool: Pool) -> PoolId {
        let id = pool.id();
        self.0.push(pool);
        id
    }

    /// The pool named `id`.
    #[inline]
    pub fn get_mut(&mut self, id: PoolId) -> Option<&mut Pool> {
        self.0.iter_mut().find(|pool| pool.id() == id)
    }

    /// The region pool named `id`.
    ///
    /// # Panics
    /// When there is none: a port was opened on a pool of another worker.
    #[inline]
    pub fn region_mut(&mut self, id: PoolId) -> &mut RegionPool {
        match self.get_mut(id) {
            Some(Pool::Region(pool)) => pool,
            _ => panic!("no region pool {id:?} in this worker"),
        }
    }

    /// The first pool: where copies and originated frames are made when no port says otherwise.
    ///
    /// # Panics
    /// When there is no pool at all.
    #[inline]
    pub fn first(&mut self) -> &mut Pool {
        self.0.first_mut().expect("a worker has a pool")
    }

    /// Gives a frame back to wherever it belongs; an absent frame belongs nowhere.
    ///
    /// # Panics
    /// When its pool is not here.
    #[inline]
    pub fn give(&mut self, frame: Frame) {
        if frame.is_absent() {
            return;
        }
        match self.get_mut(frame.pool) {
            Some(pool) => pool.give(frame),
            None => panic!("frame of unknown pool {:?}", frame.pool),
        }
    }

    /// Is there one pool only? Then every frame of the worker is of it.
    #[inline]
    #[must_use]
    pub fn is_single(&self) -> bool {
        self.0.len() == 1
    }

    /// All pools.
    pub fn iter(&self) -> impl Iterator<Item = &Pool> {
        self.0.iter()
    }
}

/// Asks the processor to fetch the cache lines of `place`, at most two. Changes nothing; costs an instruction a line. What
/// is as large as a line, or a half, a quarter of it, is taken to lie in one.
#[inline(always)]
pub fn prefetch<T>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let start: *const i8 = std::ptr::from_ref(place).cast();
        // SAFETY: a prefetch never faults, and `place` is a valid reference besides.
        unsafe { _mm_prefetch::<{ _MM_HINT_T0 }>(start) };
        if size_of::<T>() > 1 && !CACHE_LINE.is_multiple_of(size_of::<T>()) {
            // SAFETY: as above; the last byte of `place` is inside it.
            unsafe { _mm_prefetch::<{ _MM_HINT_T0 }>(start.add(size_of::<T>() - 1)) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// Asks the kernel to back a large table with huge pages: with pages of 4 KiB every look-up in a table of many megabytes
/// misses the TLB besides the cache. A hint; small tables and systems without huge pages are left as they are.
pub fn advise_huge<T>(table: &Vec<T>) {
    let start = table.as_ptr() as usize;
    let end = start + table.capacity() * size_of::<T>();
    let first = start.next_multiple_of(HUGE_PAGE);
    if end.saturating_sub(first) < HUGE_PAGE {
        return;
    }
    let length = (end - first) / HUGE_PAGE * HUGE_PAGE;
    // SAFETY: the range lies inside the table's allocation, and this advice changes no byte of it.
    let advised = unsafe { rustix::mm::madvise(first as *mut _, length, rustix::mm::Advice::LinuxHugepage) };
    // A kernel without huge pages says no; nothing is lost.
    let _ = advised;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_keeps_its_bytes_through_growing_and_trimming() {
        let mut pools = Pools::region(2);
        let mut frame = pools.first().take().unwrap();
        frame.fill(&[1, 2, 3, 4]).unwrap();
        frame.prepend(2).unwrap()[..2].copy_from_slice(&[8, 9]);
        assert_eq!(frame.bytes(), [8, 9, 1, 2, 3, 4]);
        frame.trim_front(3).unwrap();
        assert_eq!(frame.bytes(), [2, 3, 4]);
        assert_eq!(frame.room(), Room { headroom: 129, length: 3, tailroom: 2048 - 132 });
        pools.give(frame);
        assert_eq!(pools.first().available(), 2);
    }

    #[test]
    fn a_frame_keeps_its_hash_until_it_is_home() {
        let mut pools = Pools::region(1);
        let mut frame = pools.first().take().unwrap();
        assert_eq!((frame.hash(), Frame::absent().hash()), (0, 0));
        frame.set_hash(0x8000_0001);
        frame.fill(&[1, 2, 3, 4]).unwrap();
        frame.prepend(4).unwrap().fill(9);
        let frame = frame.take();
        assert_eq!(frame.hash(), 0x8000_0001);
        pools.give(frame);
        let frame = pools.first().take().unwrap();
        assert_eq!(frame.hash(), 0, "the next frame in this memory is another");
        pools.give(frame);
    }

    #[test]
    fn room_is_refused_beyond_the_chunk() {
        let mut pools = Pools::region(1);
        let mut frame = pools.first().take().unwrap();
        assert_eq!(frame.prepend(HEADROOM + 1).map(|_| ()), Err(NoRoom));
        assert_eq!(frame.trim_front(1), Err(NoRoom));
        assert_eq!(frame.resize(2048 - HEADROOM + 1), Err(NoRoom));
        assert!(frame.resize(2048 - HEADROOM).is_ok());
        assert!(pools.first().take().is_none());
        pools.give(frame);
    }

    #[test]
    fn a_driver_round_trip_ends_where_it_began() {
        let mut pool = RegionPool::new(4, 2048);
        let chunk = pool.lend().unwrap();
        // SAFETY: just lent, no driver has it.
        let frame = unsafe { pool.receive(chunk, 256, 60) }.unwrap();
        assert_eq!(pool.surrender(frame), (chunk, u64::from(chunk) * 2048 + 256, 60));
        // SAFETY: surrendered on the line above.
        unsafe { pool.reclaim(chunk) };
        assert_eq!(pool.available(), 4);
        let chunk = pool.lend().unwrap();
        // SAFETY: just lent.
        assert_eq!(unsafe { pool.receive(chunk, 2000, 60) }.map(|_| ()), Err(NoRoom));
    }

    #[test]
    #[should_panic(expected = "own pool")]
    fn a_frame_cannot_return_to_another_pool() {
        let (mut one, mut other) = (RegionPool::new(1, 2048), RegionPool::new(1, 2048));
        other.give(one.take().unwrap());
    }
}
