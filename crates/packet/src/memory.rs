//! Frames and the pools that own their memory: the only unsafe code of this crate besides `lanes.rs`.
//!
//! A frame is a move-only handle on a piece of a memory region: the owner of the handle owns the bytes, and
//! nothing else can refer to them. Receiving, rewriting and transmitting therefore need neither copies nor
//! reference counts. Frames are not returned by `Drop`, because a data path that frees frames implicitly
//! cannot account for them: every owner passes its frame to a port or back to its pool, and pools know how
//! many frames are in use.
//!
//! A region pool serves memory ports, pcap ports and AF_XDP alike (an AF_XDP port registers the region as its
//! UMEM). Its memory is on the heap, or in an in-memory file, which a successor process can map as well: the
//! kernel then keeps using the chunks that it holds. DPDK has its own memory, behind
//! [`ForeignPool`](crate::ForeignPool).
//!
//! Cost: taking and giving a frame is one pop or push of a `u32`.

use crate::resident::{HUGE_PAGE, advise_huge_range, collapse_huge, map_file, populate_range};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::io::{self, Errno};
use rustix::mm::munmap;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes kept free in front of a received frame, so that an outer Ethernet, IPv6, UDP and VXLAN header (70 B)
/// and two VLAN tags fit without moving the payload.
pub const HEADROOM: u16 = 128;

/// The smallest chunk size of a region: AF_XDP supports 2048 or 4096.
pub const CHUNK_MIN: usize = 2048;

/// The longest frame that a port can receive: what the smallest chunk holds behind its headroom. Longer ones
/// are `oversize`.
pub const FRAME_BYTES_MAX: usize = CHUNK_MIN - HEADROOM as usize;

/// Regions are page aligned, as AF_XDP requires of a UMEM; regions of a huge page or more are aligned to one,
/// so that they can lie entirely in huge pages.
const REGION_ALIGNMENT: usize = 4096;

/// Bytes in a cache line.
const CACHE_LINE: usize = 64;

/// Identifies a pool, uniquely in the process, so that a frame can never return to the wrong one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct PoolId(pub u32);

impl PoolId {
    /// The pool of absent frames (see [`Frame::absent`]).
    pub const NONE: PoolId = PoolId(0);

    /// Returns an ID that no other pool of this process has.
    #[must_use]
    pub fn next() -> PoolId {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        PoolId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A frame: bytes on a wire, held in a pool's memory. 32 bytes, move-only.
///
/// The layout is `repr(C)` because the DPDK shim fills arrays of frames (`struct weir_frame`).
#[derive(Debug)]
#[repr(C)]
#[must_use = "a frame that is neither given to a port nor returned to its pool is lost"]
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

// SAFETY: a frame owns its bytes exclusively, and they belong to no thread.
unsafe impl Send for Frame {}

/// A frame has too little room in front of it or behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

impl Frame {
    /// Creates a frame without bytes or a pool: what remains where a frame was taken.
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

    /// Creates a frame from memory that a driver owns.
    ///
    /// # Safety
    /// `data - headroom .. data + length + tailroom` must be valid for reads and writes, initialised, and
    /// referred to by nothing else until the frame has been passed to the pool `pool` or to a port.
    pub unsafe fn from_raw(data: NonNull<u8>, handle: u64, room: Room, pool: PoolId) -> Frame {
        let Room { headroom, length, tailroom } = room;
        // `trim_front` and `resize` move bytes between these counts.
        debug_assert!(u32::from(headroom) + u32::from(length) + u32::from(tailroom) <= u16::MAX.into());
        Frame { data, handle, length, headroom, tailroom, pad: 0, pool, hash: 0 }
    }

    /// Returns true for [`Frame::absent`].
    #[inline]
    #[must_use]
    pub fn is_absent(&self) -> bool {
        self.pool == PoolId::NONE
    }

    /// Returns the pool to which this frame must return.
    #[inline]
    #[must_use]
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// Returns the pool's own identification of the memory: a region pool's chunk number, a DPDK pool's mbuf
    /// address.
    #[inline]
    #[must_use]
    pub fn handle(&self) -> u64 {
        self.handle
    }

    /// Returns the hash delivered by the NIC, or 0 if there is none. It does not change when the frame's
    /// bytes do.
    #[inline]
    #[must_use]
    pub fn hash(&self) -> u32 {
        self.hash
    }

    /// Sets the hash that came with the frame; 0 means none. A new frame has none.
    #[inline]
    pub fn set_hash(&mut self, hash: u32) {
        self.hash = hash;
    }

    /// Returns the length in bytes, without FCS.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.length)
    }

    /// Returns true if the frame has no bytes.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the frame's length, and the free bytes in front of it and behind it.
    #[inline]
    #[must_use]
    pub fn room(&self) -> Room {
        Room { headroom: self.headroom, length: self.length, tailroom: self.tailroom }
    }

    /// Returns the address of the first byte, from which drivers compute descriptors.
    #[inline]
    #[must_use]
    pub fn data(&self) -> NonNull<u8> {
        self.data
    }

    /// Returns the frame's bytes.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `from_raw` guarantees `length` initialised bytes that this frame owns.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), usize::from(self.length)) }
    }

    /// Returns the frame's bytes for modification.
    #[inline]
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), usize::from(self.length)) }
    }

    /// Returns the frame's bytes and its tailroom, so that a load of 8 or 16 bytes near the frame's end stays
    /// inside. The bytes past `len()` are initialised but meaningless.
    #[inline]
    #[must_use]
    pub fn window(&self) -> &[u8] {
        let length = usize::from(self.length) + usize::from(self.tailroom);
        // SAFETY: `from_raw` guarantees that the tailroom is valid and initialised.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), length) }
    }

    /// Returns the `N` bytes in front of the frame, where a driver may have left something about it. `None`
    /// if the headroom is smaller.
    #[inline]
    #[must_use]
    pub fn front<const N: usize>(&self) -> Option<&[u8; N]> {
        // SAFETY: `from_raw` guarantees that the headroom is valid, initialised and owned by this frame, and
        // bytes are aligned anywhere.
        (usize::from(self.headroom) >= N).then(|| unsafe { self.data.sub(N).cast().as_ref() })
    }

    /// Writes bytes in front of the frame, as far as the headroom has room for them.
    #[inline]
    pub fn set_front<const N: usize>(&mut self, front: [u8; N]) {
        if let Ok(bytes) = self.prepend(N as u16) {
            bytes[..N].copy_from_slice(&front);
            // As many bytes as were added.
            let _ = self.trim_front(N as u16);
        }
    }

    /// Extends the frame at its front by `count` bytes with unspecified content.
    ///
    /// # Errors
    /// Returns [`NoRoom`] if the headroom is too small.
    #[inline]
    pub fn prepend(&mut self, count: u16) -> Result<&mut [u8], NoRoom> {
        if count > self.headroom || self.length.checked_add(count).is_none() {
            return Err(NoRoom);
        }
        self.headroom -= count;
        self.length += count;
        // SAFETY: the headroom in front of `data` belongs to this frame (`from_raw`), and `count` bytes of it
        // were left.
        self.data = unsafe { self.data.sub(usize::from(count)) };
        Ok(self.bytes_mut())
    }

    /// Removes `count` bytes from the front; they become headroom.
    ///
    /// # Errors
    /// Returns [`NoRoom`] if the frame is shorter.
    #[inline]
    pub fn trim_front(&mut self, count: u16) -> Result<(), NoRoom> {
        if count > self.length {
            return Err(NoRoom);
        }
        self.headroom += count;
        self.length -= count;
        // SAFETY: the frame's own `count` bytes lie between the old start and the new one.
        self.data = unsafe { self.data.add(usize::from(count)) };
        Ok(())
    }

    /// Makes the frame `length` bytes long by moving its end into or out of the tailroom.
    ///
    /// # Errors
    /// Returns [`NoRoom`] if the tailroom is too small.
    #[inline]
    pub fn resize(&mut self, length: u16) -> Result<(), NoRoom> {
        let end = u32::from(self.length) + u32::from(self.tailroom);
        let tailroom = end.checked_sub(u32::from(length)).ok_or(NoRoom)?;
        self.tailroom = u16::try_from(tailroom).map_err(|_| NoRoom)?;
        self.length = length;
        Ok(())
    }

    /// Replaces the frame's content by `bytes`.
    ///
    /// # Errors
    /// Returns [`NoRoom`] if they do not fit behind the present headroom.
    #[inline]
    pub fn fill(&mut self, bytes: &[u8]) -> Result<(), NoRoom> {
        self.resize(u16::try_from(bytes.len()).map_err(|_| NoRoom)?)?;
        self.bytes_mut().copy_from_slice(bytes);
        Ok(())
    }

    /// Takes the frame and leaves [`Frame::absent`] behind.
    #[inline]
    pub fn take(&mut self) -> Frame {
        std::mem::replace(self, Frame::absent())
    }
}

/// Position of a frame in its chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Free bytes in front of the frame.
    pub headroom: u16,
    /// Bytes in the frame.
    pub length: u16,
    /// Free bytes behind the frame.
    pub tailroom: u16,
}

/// A page-aligned region divided into equal chunks, with a free list.
#[derive(Debug)]
pub struct RegionPool {
    id: PoolId,
    base: NonNull<u8>,
    chunk: usize,
    chunks: u32,
    free: Vec<u32>,
    /// The mapped in-memory file; `None` if the region is on the heap.
    file: Option<OwnedFd>,
}

// SAFETY: the pool and its frames own the region, each a disjoint part; none has an affinity to a thread.
unsafe impl Send for RegionPool {}

impl RegionPool {
    /// Allocates a region of `chunks` chunks of `chunk` bytes (2048 or 4096 for AF_XDP).
    ///
    /// # Panics
    /// Panics if `chunk` is below [`CHUNK_MIN`], above 32 KiB or not a power of two, or if memory runs out.
    /// Both are setup errors; traffic cannot cause them.
    #[must_use]
    pub fn new(chunks: u32, chunk: usize) -> RegionPool {
        assert!(is_chunk(chunk), "chunk size {chunk}");
        let layout = Self::layout(chunks, chunk);
        // SAFETY: the layout is not empty (`layout` ensures at least one chunk).
        let base = NonNull::new(unsafe { alloc(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        // Before the first byte is written, because writing allocates the pages.
        advise_huge_range(base.as_ptr() as usize, layout.size());
        // SAFETY: the allocation has that many bytes.
        unsafe { base.write_bytes(0, layout.size()) };
        let free = (0..chunks).rev().collect();
        RegionPool { id: PoolId::next(), base, chunk, chunks, free, file: None }
    }

    /// Allocates the region in an in-memory file, which another process can map; on the heap where in-memory
    /// files are not supported.
    ///
    /// # Panics
    /// See [`RegionPool::new`].
    #[must_use]
    pub fn shareable(chunks: u32, chunk: usize) -> RegionPool {
        assert!(is_chunk(chunk), "chunk size {chunk}");
        Self::in_file(chunks, chunk).unwrap_or_else(|_| Self::new(chunks, chunk))
    }

    fn in_file(chunks: u32, chunk: usize) -> io::Result<RegionPool> {
        let layout = Self::layout(chunks, chunk);
        let file = memfd_create("weir-frames", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, layout.size() as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let base = map_file(&file, layout, REGION_ALIGNMENT)?;
        // Before the first byte is written, because writing allocates the pages. The kernel heeds the advice
        // for files only if configured to (`shmem_enabled`), but collapses a range into huge pages on
        // request.
        advise_huge_range(base.as_ptr() as usize, layout.size());
        collapse_huge(base.as_ptr() as usize, layout.size());
        // SAFETY: the mapping has that many bytes, and nothing else refers to it.
        unsafe { base.write_bytes(0, layout.size()) };
        let free = (0..chunks).rev().collect();
        Ok(RegionPool { id: PoolId::next(), base, chunk, chunks, free, file: Some(file) })
    }

    /// Maps the region of another process ([`RegionPool::file`]), which continues to use it: this pool has no
    /// chunks at first. Chunks that the other process gives up are added with [`RegionPool::reclaim`].
    ///
    /// # Errors
    /// The file does not have `chunks` chunks of `chunk` bytes, could become shorter, or cannot be mapped.
    pub fn adopt(file: OwnedFd, chunks: u32, chunk: usize) -> io::Result<RegionPool> {
        if !is_chunk(chunk) || chunks == 0 || chunk.checked_mul(chunks as usize).is_none() {
            return Err(Errno::INVAL);
        }
        let layout = Self::layout(chunks, chunk);
        if u64::try_from(fstat(&file)?.st_size) != Ok(layout.size() as u64) {
            return Err(Errno::INVAL);
        }
        // A file that became shorter would kill this process with SIGBUS.
        if !fcntl_get_seals(&file)?.contains(SealFlags::SHRINK) {
            return Err(Errno::PERM);
        }
        let base = map_file(&file, layout, REGION_ALIGNMENT)?;
        populate_range((base.as_ptr() as usize, layout.size()));
        let free = Vec::with_capacity(chunks as usize);
        Ok(RegionPool { id: PoolId::next(), base, chunk, chunks, free, file: Some(file) })
    }

    /// Returns the in-memory file of a region that another process can [adopt](RegionPool::adopt).
    #[must_use]
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    fn layout(chunks: u32, chunk: usize) -> Layout {
        let bytes = chunk.checked_mul(chunks.max(1) as usize).expect("a region fits the address space");
        let alignment = if bytes < HUGE_PAGE { REGION_ALIGNMENT } else { HUGE_PAGE };
        Layout::from_size_align(bytes, alignment).expect("page alignment is a power of two")
    }

    /// Returns the pool's id.
    #[must_use]
    pub fn id(&self) -> PoolId {
        self.id
    }

    /// Returns the region's first byte and its length in bytes, which AF_XDP registers.
    #[must_use]
    pub fn region(&self) -> (NonNull<u8>, usize) {
        (self.base, self.chunk * self.chunks as usize)
    }

    /// Returns the size of a chunk in bytes.
    #[must_use]
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    /// Returns the total number of chunks.
    #[must_use]
    pub fn chunks(&self) -> u32 {
        self.chunks
    }

    /// Returns the number of chunks that can be taken.
    #[must_use]
    pub fn available(&self) -> usize {
        self.free.len()
    }

    /// Takes an empty frame with [`HEADROOM`] in front. `None` if all chunks are in use.
    #[inline]
    pub fn take(&mut self) -> Option<Frame> {
        let chunk = self.free.pop()?;
        Some(self.frame(chunk, HEADROOM, 0))
    }

    /// Takes the number of a chunk that a driver will fill (AF_XDP's fill ring).
    #[inline]
    pub fn lend(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Takes back a lent chunk that did not become a frame (AF_XDP's completion ring).
    ///
    /// # Safety
    /// The chunk must have been lent, or its frame consumed by [`RegionPool::release`], or the process from
    /// which the region was [adopted](RegionPool::adopt) must have given it up; nothing may use it any more.
    #[inline]
    pub unsafe fn reclaim(&mut self, chunk: u32) {
        debug_assert!(chunk < self.chunks && self.free.len() < self.chunks as usize);
        self.free.push(chunk);
    }

    /// Creates the frame that a driver wrote into a lent chunk, `offset` bytes from the chunk's start.
    ///
    /// # Errors
    /// Returns [`NoRoom`] if the frame does not lie inside the chunk.
    ///
    /// # Safety
    /// The chunk must have been lent, and the driver must be done with it.
    #[inline]
    pub unsafe fn receive(&self, chunk: u32, offset: usize, length: usize) -> Result<Frame, NoRoom> {
        if chunk >= self.chunks || offset.checked_add(length).is_none_or(|end| end > self.chunk) {
            return Err(NoRoom);
        }
        // Both values fit: a chunk has at most 32 KiB.
        Ok(self.frame(chunk, offset as u16, length as u16))
    }

    /// Hands a frame to a driver. Returns its chunk, its offset in the region in bytes, and its length in
    /// bytes.
    ///
    /// # Panics
    /// Panics if the frame belongs to another pool.
    #[inline]
    pub fn release(&self, frame: Frame) -> (u32, u64, u32) {
        // Not `assert_eq`, which takes references and would spill the frame to the stack.
        assert!(frame.pool == self.id, "a frame goes to a port on its own pool");
        let offset = frame.data.as_ptr() as usize - self.base.as_ptr() as usize;
        debug_assert_eq!((offset / self.chunk) as u64, frame.handle, "a frame lies in its own chunk");
        (frame.handle as u32, offset as u64, u32::from(frame.length))
    }

    /// Gives a frame back.
    ///
    /// # Panics
    /// Panics if the frame belongs to another pool.
    #[inline]
    pub fn give(&mut self, frame: Frame) {
        assert!(frame.pool == self.id, "a frame returns to its own pool");
        debug_assert!(frame.handle < self.chunks.into() && self.free.len() < self.chunks as usize);
        self.free.push(frame.handle as u32);
    }

    #[inline]
    fn frame(&self, chunk: u32, headroom: u16, length: u16) -> Frame {
        debug_assert!(chunk < self.chunks && usize::from(headroom) + usize::from(length) <= self.chunk);
        let start = chunk as usize * self.chunk + usize::from(headroom);
        let tailroom = (self.chunk - usize::from(headroom) - usize::from(length)) as u16;
        // SAFETY: `chunk < chunks` (it came from the free list or was checked), so the frame lies inside the
        // region.
        let data = unsafe { self.base.add(start) };
        let room = Room { headroom, length, tailroom };
        // SAFETY: the region was zeroed when allocated, here or by the process from which it was adopted,
        // hence initialised; the chunk has left the free list,
        // so no other frame refers to it; the region outlives its frames (see `drop`).
        unsafe { Frame::from_raw(data, u64::from(chunk), room, self.id) }
    }
}

impl Drop for RegionPool {
    fn drop(&mut self) {
        // The region must stay while frames are in use: leaking it is the safe choice.
        if self.free.len() == self.chunks as usize {
            let layout = Self::layout(self.chunks, self.chunk);
            if self.file.is_some() {
                // SAFETY: mapped by `map_file` with the same length; every chunk is free, so no frame refers
                // to the region. An error would mean that nothing was mapped.
                let _ = unsafe { munmap(self.base.as_ptr().cast(), layout.size()) };
            } else {
                // SAFETY: allocated in `new` with the same layout; every chunk is free, as above.
                unsafe { dealloc(self.base.as_ptr(), layout) };
            }
        }
    }
}

/// Returns true if a region can have chunks of this size.
fn is_chunk(chunk: usize) -> bool {
    chunk.is_power_of_two() && (CHUNK_MIN..=32768).contains(&chunk)
}

/// Prefetches the cache lines of `place`, at most two, at the cost of an instruction each. A value of the
/// size of a cache line, or half or a quarter of it, is assumed to lie in one line.
#[inline(always)]
pub fn prefetch<T>(place: &T) {
    let start: *const i8 = std::ptr::from_ref(place).cast();
    prefetch_line(start);
    if size_of::<T>() > 1 && !CACHE_LINE.is_multiple_of(size_of::<T>()) {
        prefetch_line(start.wrapping_add(size_of::<T>() - 1));
    }
}

/// Prefetches a cache line, on processors for which this is implemented.
#[inline(always)]
fn prefetch_line(at: *const i8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, whatever the address.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<{ _MM_HINT_T0 }>(at);
    };
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch never faults, whatever the address, and changes neither registers nor memory.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    };
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pools;

    #[test]
    fn a_frame_keeps_its_bytes_through_growing_and_trimming() {
        let mut pools = Pools::region(2);
        let mut frame = pools.first().take().unwrap();
        frame.fill(&[1, 2, 3, 4]).unwrap();
        frame.prepend(2).unwrap()[..2].copy_from_slice(&[8, 9]);
        assert_eq!(frame.bytes(), [8, 9, 1, 2, 3, 4]);
        frame.trim_front(3).unwrap();
        assert_eq!(frame.bytes(), [2, 3, 4]);
        assert_eq!((frame.front(), frame.front::<130>()), (Some(&[8, 9, 1]), None));
        assert_eq!(frame.room(), Room { headroom: 129, length: 3, tailroom: 2048 - 132 });
        frame.set_front([7, 7]);
        assert_eq!((frame.bytes(), frame.front()), (&[2, 3, 4][..], Some(&[8, 7, 7])));
        frame.set_front([0; 130]);
        assert_eq!((frame.bytes(), frame.front()), (&[2, 3, 4][..], Some(&[8, 7, 7])));
        pools.give(frame);
        assert_eq!(pools.first().available(), 2);
    }

    #[test]
    fn a_large_region_is_aligned_to_huge_pages_and_asks_for_them() {
        let pool = RegionPool::new(2048, 4096);
        let start = pool.region().0.as_ptr() as usize;
        assert_eq!(start % HUGE_PAGE, 0);
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            return;
        }
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let holds = |line: &str| {
            let ends = line.split(' ').next().and_then(|ends| ends.split_once('-'));
            let ends = ends.map(|(first, last)| [first, last].map(|end| usize::from_str_radix(end, 16)));
            matches!(ends, Some([Ok(first), Ok(last)]) if (first..last).contains(&start))
        };
        let flags = maps.lines().skip_while(|line| !holds(line)).find(|line| line.starts_with("VmFlags:"));
        assert!(flags.is_some_and(|flags| flags.contains(" hg")), "{flags:?}");
    }

    #[test]
    fn another_process_maps_a_region_and_has_the_chunks_that_it_is_given() {
        let mut old = RegionPool::shareable(1500, 2048);
        let mut frame = old.take().unwrap();
        frame.fill(b"written by the old frame").unwrap();
        let (chunk, _, length) = old.release(frame);
        let file = || old.file().unwrap().try_clone_to_owned().unwrap();
        let mut new = RegionPool::adopt(file(), 1500, 2048).unwrap();
        assert_eq!((new.available(), new.region().1), (0, old.region().1));
        assert_eq!(new.region().0.as_ptr() as usize % HUGE_PAGE, 0);
        // SAFETY: surrendered above, and the old pool no longer uses it.
        let frame = unsafe { new.receive(chunk, usize::from(HEADROOM), length as usize) }.unwrap();
        assert_eq!(frame.bytes(), b"written by the old frame");
        new.give(frame);
        assert_eq!(new.available(), 1);
        for (chunks, chunk) in [(1499, 2048), (1501, 2048), (750, 4096), (1500, 1024), (0, 2048), (1, 0)] {
            let refused = RegionPool::adopt(file(), chunks, chunk).map(|_| ());
            assert_eq!((chunks, chunk, refused.is_err()), (chunks, chunk, chunks != 750));
        }
        assert!(RegionPool::new(1, 2048).file().is_none());
        // Files that could shrink.
        let unsealed = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&unsealed, 2048).unwrap();
        assert_eq!(RegionPool::adopt(unsealed, 1, 2048).map(|_| ()), Err(Errno::PERM));
        let other: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        assert!(RegionPool::adopt(other, 1, 2048).is_err());
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
        assert_eq!(frame.hash(), 0, "the next frame in this memory is a different one");
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
        // SAFETY: just lent, and no driver has it.
        let frame = unsafe { pool.receive(chunk, 256, 60) }.unwrap();
        assert_eq!(pool.release(frame), (chunk, u64::from(chunk) * 2048 + 256, 60));
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
