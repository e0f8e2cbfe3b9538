//! The rings between an AF_XDP socket and the kernel: bounded single-producer single-consumer queues in
//! shared memory.
//!
//! Weir produces into the fill and the transmit ring and consumes from the receive and the completion ring;
//! the kernel is at the other end of each. The same code implements both ends and works on any memory, so a
//! test can act as the kernel.
//!
//! Promises: the other end sees nothing before `publish` or `release`; indices are u32 and wrap around; each
//! ring belongs to one thread. Cost: an entry is a load or a store; the other end's index is read only when
//! the cached one is exhausted.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fd::AsFd;
use rustix::io;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::xdp::{XdpRingFlags, XdpRingOffset};

/// Memory shared with the other end, unmapped when both ends are dropped.
struct Mapping {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: a mapping is an address range without affinity to a thread.
unsafe impl Send for Mapping {}
// SAFETY: as above, and only the two ends of a ring access memory through `&Mapping`.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by us with this length, and kept alive by the ends of the ring, which point into it.
        // An error would mean that nothing was mapped, and cannot be handled.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
    }
}

/// A ring as seen from one end.
struct Ring<T> {
    _mapping: Arc<Mapping>,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: Option<NonNull<AtomicU32>>,
    entries: NonNull<T>,
    size: u32,
}

// SAFETY: the pointers point into the mapping, which the ring keeps alive; only one thread uses an end at a
// time.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    /// Places a ring over a mapping.
    ///
    /// # Safety
    /// The offsets must be inside the mapping, aligned, and followed by `size` entries at `desc`; every bit
    /// pattern must be a valid `T`.
    unsafe fn over(mapping: Arc<Mapping>, offsets: &XdpRingOffset, size: u32) -> Ring<T> {
        assert!(size.is_power_of_two(), "ring size {size}");
        // Everything that is read or written later lies between these offsets.
        let is_inside = |offset: u64, length: usize, align: usize| {
            offset.is_multiple_of(align as u64) && offset as usize + length <= mapping.length
        };
        let mut indices = [offsets.producer, offsets.consumer].into_iter().chain(offsets.flags);
        assert!(indices.all(|offset| is_inside(offset, size_of::<AtomicU32>(), align_of::<AtomicU32>())));
        assert!(is_inside(offsets.desc, size as usize * size_of::<T>(), align_of::<T>()));
        let base = mapping.base;
        // SAFETY: the caller guarantees that the offset is inside the mapping.
        let at = |offset: u64| unsafe { base.add(offset as usize) };
        Ring {
            producer: at(offsets.producer).cast(),
            consumer: at(offsets.consumer).cast(),
            flags: offsets.flags.map(|offset| at(offset).cast()),
            entries: at(offsets.desc).cast(),
            size,
            _mapping: mapping,
        }
    }

    /// Maps the socket's ring at `page_offset`.
    fn of_socket(
        socket: impl AsFd,
        page_offset: u64,
        offsets: &XdpRingOffset,
        size: u32,
    ) -> io::Result<Ring<T>> {
        let length = offsets.desc as usize + size as usize * size_of::<T>();
        // SAFETY: a new mapping at an address chosen by the kernel touches no existing memory.
        let base = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            mmap(
                std::ptr::null_mut(),
                length,
                access,
                MapFlags::SHARED | MapFlags::POPULATE,
                socket,
                page_offset,
            )?
        };
        let base = NonNull::new(base.cast()).expect("a mapping is not at address 0");
        // SAFETY: XDP_MMAP_OFFSETS returned the offsets of this ring; entries are u64 or xdp_desc: integers
        // only.
        Ok(unsafe { Ring::over(Arc::new(Mapping { base, length }), offsets, size) })
    }

    fn producer(&self) -> &AtomicU32 {
        // SAFETY: inside the mapping and aligned (`over`); both ends access it atomically.
        unsafe { self.producer.as_ref() }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as in `producer`.
        unsafe { self.consumer.as_ref() }
    }

    fn needs_wakeup(&self) -> bool {
        // SAFETY: as in `producer`.
        let flags = self.flags.map_or(0, |flags| unsafe { flags.as_ref() }.load(Ordering::Relaxed));
        flags & XdpRingFlags::XDP_RING_NEED_WAKEUP.bits() != 0
    }

    fn entry(&self, index: u32) -> NonNull<T> {
        // SAFETY: masked to the `size` entries that `over` was promised.
        unsafe { self.entries.add((index & (self.size - 1)) as usize) }
    }
}

/// The end that adds entries.
pub(super) struct Producer<T> {
    ring: Ring<T>,
    next: u32,
    /// The other end's index when it was last read.
    consumed: u32,
}

impl<T: Copy> Producer<T> {
    /// Maps our end of a socket's fill or transmit ring.
    pub(super) fn of_socket(
        socket: impl AsFd,
        page_offset: u64,
        offsets: &XdpRingOffset,
        size: u32,
    ) -> io::Result<Producer<T>> {
        Ok(Producer::new(Ring::of_socket(socket, page_offset, offsets, size)?))
    }

    fn new(ring: Ring<T>) -> Producer<T> {
        let mut new = Producer { ring, next: 0, consumed: 0 };
        new.resume();
        new
    }

    /// Continues where the process that had this end stopped. Returns false if that process left more entries
    /// than the ring can hold.
    pub(super) fn resume(&mut self) -> bool {
        self.next = self.ring.producer().load(Ordering::Acquire);
        self.unconsumed() <= self.ring.size
    }

    /// Returns how many entries can be pushed. Reads the other end's index only if the known space is below
    /// `wanted`.
    #[inline]
    pub(super) fn space(&mut self, wanted: u32) -> u32 {
        let known = self.ring.size - self.next.wrapping_sub(self.consumed);
        if known >= wanted { known } else { self.ring.size - self.unconsumed() }
    }

    /// Adds an entry. Returns false if the ring is full.
    #[inline]
    pub(super) fn push(&mut self, entry: T) -> bool {
        if self.space(1) == 0 {
            return false;
        }
        // SAFETY: the entry is inside the ring, and the other end does not read it before `publish`.
        unsafe { self.ring.entry(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Makes the pushed entries visible to the other end.
    #[inline]
    pub(super) fn publish(&mut self) {
        self.ring.producer().store(self.next, Ordering::Release);
    }

    /// Returns how many entries the other end has not consumed yet.
    #[inline]
    pub(super) fn unconsumed(&mut self) -> u32 {
        self.consumed = self.ring.consumer().load(Ordering::Acquire);
        self.next.wrapping_sub(self.consumed)
    }

    /// Returns true if the kernel needs a system call to continue.
    #[inline]
    pub(super) fn needs_wakeup(&self) -> bool {
        self.ring.needs_wakeup()
    }
}

/// The end that removes entries.
pub(super) struct Consumer<T> {
    ring: Ring<T>,
    next: u32,
    /// The other end's index when it was last read.
    produced: u32,
}

impl<T: Copy> Consumer<T> {
    /// Maps our end of a socket's receive or completion ring.
    pub(super) fn of_socket(
        socket: impl AsFd,
        page_offset: u64,
        offsets: &XdpRingOffset,
        size: u32,
    ) -> io::Result<Consumer<T>> {
        Ok(Consumer::new(Ring::of_socket(socket, page_offset, offsets, size)?))
    }

    fn new(ring: Ring<T>) -> Consumer<T> {
        let mut new = Consumer { ring, next: 0, produced: 0 };
        new.resume();
        new
    }

    /// Continues where the process that had this end stopped. Returns false if more entries are waiting than
    /// the ring can hold.
    pub(super) fn resume(&mut self) -> bool {
        self.next = self.ring.consumer().load(Ordering::Acquire);
        self.waiting() <= self.ring.size
    }

    /// Removes and returns the next entry.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.next == self.produced && self.waiting() == 0 {
            return None;
        }
        // SAFETY: the entry is inside the ring; the other end has published it and does not change it until
        // `release`.
        let entry = unsafe { self.ring.entry(self.next).read() };
        self.next = self.next.wrapping_add(1);
        Some(entry)
    }

    /// Returns how many entries can be popped.
    #[inline]
    pub(super) fn waiting(&mut self) -> u32 {
        self.produced = self.ring.producer().load(Ordering::Acquire);
        self.produced.wrapping_sub(self.next)
    }

    /// Returns the slots of popped entries to the other end.
    #[inline]
    pub(super) fn release(&mut self) {
        self.ring.consumer().store(self.next, Ordering::Release);
    }
}

/// Rings without a kernel, for tests that act as the kernel.
#[cfg(test)]
pub(super) mod testing {
    use super::*;
    use rustix::mm::mmap_anonymous;

    const OFFSETS: XdpRingOffset = XdpRingOffset { producer: 0, consumer: 64, desc: 256, flags: Some(128) };

    /// Creates both ends of a ring whose indices start at `start`.
    pub(in super::super) fn pair<T: Copy>(size: u32, start: u32) -> (Producer<T>, Consumer<T>) {
        let length = 256 + size as usize * size_of::<T>();
        // SAFETY: a new anonymous mapping touches no existing memory.
        let base = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            mmap_anonymous(std::ptr::null_mut(), length, access, MapFlags::PRIVATE).unwrap()
        };
        let mapping = Arc::new(Mapping { base: NonNull::new(base.cast()).unwrap(), length });
        // SAFETY: OFFSETS and `size` entries lie inside the mapping; tests use integers.
        let ring = || unsafe { Ring::over(mapping.clone(), &OFFSETS, size) };
        ring().producer().store(start, Ordering::Relaxed);
        ring().consumer().store(start, Ordering::Relaxed);
        (Producer::new(ring()), Consumer::new(ring()))
    }

    /// Creates another view of both ends.
    pub(in super::super) fn others<T: Copy>(of: &Producer<T>) -> (Producer<T>, Consumer<T>) {
        // SAFETY: as in `pair`, which created the ring.
        let ring = || unsafe { Ring::over(of.ring._mapping.clone(), &OFFSETS, of.ring.size) };
        (Producer::new(ring()), Consumer::new(ring()))
    }

    impl<T: Copy> Producer<T> {
        /// Sets the flag with which the kernel requests a system call.
        pub(in super::super) fn set_wakeup(&self, needed: bool) {
            // SAFETY: as in `Ring::producer`.
            let flags = self.ring.flags.map(|flags| unsafe { flags.as_ref() }).unwrap();
            flags.store(u32::from(needed), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::pair;

    #[test]
    fn nothing_is_seen_before_it_is_published() {
        let (mut ours, mut kernels) = pair::<u64>(4, 0);
        assert!(ours.push(7));
        assert_eq!(kernels.pop(), None);
        ours.publish();
        assert_eq!(kernels.pop(), Some(7));
        assert_eq!(ours.unconsumed(), 1, "popped, but its slot is not yet released");
        kernels.release();
        assert_eq!(ours.unconsumed(), 0);
    }

    #[test]
    fn a_full_ring_refuses_and_indices_wrap_around() {
        let (mut ours, mut kernels) = pair::<u64>(4, u32::MAX - 1);
        for round in 0..3 {
            for entry in 0..4 {
                assert!(ours.push(round * 4 + entry));
            }
            assert!(!ours.push(99));
            assert_eq!(ours.space(1), 0);
            ours.publish();
            assert_eq!(kernels.waiting(), 4);
            assert_eq!([(); 4].map(|()| kernels.pop().unwrap()), [0, 1, 2, 3].map(|entry| round * 4 + entry));
            assert_eq!(kernels.pop(), None);
            kernels.release();
        }
    }

    #[test]
    fn another_goes_on_at_either_end_where_the_first_one_stopped() {
        let (mut ours, mut kernels) = pair::<u64>(4, u32::MAX - 1);
        let (mut after_ours, mut after_kernels) = super::testing::others(&ours);
        for entry in [1, 2, 3] {
            ours.push(entry);
        }
        ours.publish();
        assert_eq!(kernels.pop(), Some(1));
        kernels.release();
        assert!(after_ours.resume() && after_kernels.resume());
        assert_eq!((after_ours.unconsumed(), after_ours.space(4)), (2, 2));
        assert!(after_ours.push(4));
        after_ours.publish();
        assert_eq!([(); 4].map(|()| after_kernels.pop()), [Some(2), Some(3), Some(4), None]);
        after_ours.next = after_ours.next.wrapping_add(9);
        after_ours.publish();
        assert!(!ours.resume() && !kernels.resume());
    }

    #[test]
    fn the_wakeup_flag_is_the_kernels_word() {
        let (ours, _kernels) = pair::<u64>(4, 0);
        assert!(!ours.needs_wakeup());
        ours.set_wakeup(true);
        assert!(ours.needs_wakeup());
    }

    #[test]
    fn two_threads_pass_everything_in_order() {
        const COUNT: u64 = 200_000;
        let (mut ours, mut kernels) = pair::<u64>(64, u32::MAX - 1000);
        let kernel = std::thread::spawn(move || {
            let mut expected = 0;
            while expected < COUNT {
                while let Some(entry) = kernels.pop() {
                    assert_eq!(entry, expected);
                    expected += 1;
                }
                kernels.release();
                std::thread::yield_now();
            }
        });
        let mut entry = 0;
        while entry < COUNT {
            while entry < COUNT && ours.push(entry) {
                entry += 1;
            }
            ours.publish();
            std::thread::yield_now();
        }
        kernel.join().unwrap();
    }
}
