//! Large tables: huge pages, and memory that is resident before a worker touches it.
//!
//! The first access to a page waits until the kernel has found and cleared it. For a huge page, with
//! fragmented memory, this has taken up to 20 ms, which is far too long for a worker between two batches.
//! Tables that are accessed everywhere are therefore made resident when they are created. For tables that
//! grow, a thread makes memory resident two steps ahead of its use. If that thread is late, the worker faults
//! the page in itself and only loses time.

use rustix::io::{self, Errno};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::alloc::Layout;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, sync_channel};

/// The size of a huge page on the supported processors.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// How much of a growing table is resident beyond the part in use, in bytes: the kernel can find several huge
/// pages while 64 Ki flows are learnt.
const AHEAD: usize = 2 * HUGE_PAGE;

/// The most requests that wait for the thread; further ones are skipped.
const REQUESTS: usize = 64;

/// Memory to make resident: start and length in bytes.
type ResidentRange = (usize, usize);

/// Asks the kernel to back a large table with huge pages: with pages of 4 KiB, every look-up in a table of
/// many megabytes misses not only the cache but also the TLB. This is a hint; small tables and systems
/// without huge pages are unaffected.
pub fn advise_huge<T>(table: &Vec<T>) {
    advise_huge_range(table.as_ptr() as usize, table.capacity() * size_of::<T>());
}

/// Like [`advise_huge`], for memory that begins at an address.
pub(crate) fn advise_huge_range(start: usize, bytes: usize) {
    let end = start + bytes;
    let first = start.next_multiple_of(HUGE_PAGE);
    if end.saturating_sub(first) < HUGE_PAGE {
        return;
    }
    let length = (end - first) / HUGE_PAGE * HUGE_PAGE;
    // SAFETY: the range lies inside one allocation of ours, and this advice changes none of its bytes.
    let advised = unsafe { rustix::mm::madvise(first as *mut _, length, rustix::mm::Advice::LinuxHugepage) };
    // A kernel without huge pages returns an error, which does no harm.
    let _ = advised;
}

/// Asks the kernel to collapse a range into huge pages now, even those of a mapped in-memory file, and
/// regardless of the system's settings. It may succeed only in part, or not at all.
pub(crate) fn collapse_huge(start: usize, bytes: usize) {
    let (first, end) = (start.next_multiple_of(HUGE_PAGE), (start + bytes) / HUGE_PAGE * HUGE_PAGE);
    for at in (first..end).step_by(HUGE_PAGE) {
        // SAFETY: the range lies inside one mapping of ours, and this changes none of its bytes. Kernels
        // before 6.1 do not know it and return an error, which does no harm.
        let result = unsafe { libc::madvise(at as *mut _, HUGE_PAGE, libc::MADV_COLLAPSE) };
        if result != 0 {
            break;
        }
    }
}

/// Maps the beginning of a file with the length and alignment of the layout, in whole pages of this size.
pub(crate) fn map_file(file: &OwnedFd, layout: Layout, page: usize) -> io::Result<NonNull<u8>> {
    let (length, alignment) = (layout.size().next_multiple_of(page), layout.align());
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses touches no existing memory.
    let reserved = unsafe {
        mmap_anonymous(std::ptr::null_mut(), length + alignment, ProtFlags::empty(), MapFlags::PRIVATE)?
    };
    let front = (reserved as usize).next_multiple_of(alignment) - reserved as usize;
    // SAFETY: the range lies inside the reserved one, which is ours and unused; the rest of the reservation
    // before and after it is unmapped.
    unsafe {
        let place = reserved.byte_add(front);
        if let Err(errno) = mmap(place, length, access, MapFlags::SHARED | MapFlags::FIXED, file, 0) {
            munmap(reserved, length + alignment)?;
            return Err(errno);
        }
        if front > 0 {
            munmap(reserved, front)?;
        }
        if alignment > front {
            munmap(place.byte_add(length), alignment - front)?;
        }
        NonNull::new(place.cast()).ok_or(Errno::FAULT)
    }
}

/// Makes all memory of a large table resident, which takes long and is therefore not for workers. Small
/// tables are left as they are.
pub fn populate<T>(table: &Vec<T>) {
    let bytes = table.capacity() * size_of::<T>();
    if bytes >= HUGE_PAGE {
        populate_range((table.as_ptr() as usize, bytes));
    }
}

pub(crate) fn populate_range((start, bytes): ResidentRange) {
    const PAGE: usize = 4096;
    let (first, end) = (start.next_multiple_of(PAGE), (start + bytes) / PAGE * PAGE);
    if first >= end {
        return;
    }
    let advice = rustix::mm::Advice::LinuxPopulateWrite;
    // SAFETY: this reads and writes no byte that the program can see: pages are faulted in as if they had
    // been accessed. That also holds if the memory has been freed meanwhile, and has no owner or a new one.
    let populated = unsafe { rustix::mm::madvise(first as *mut _, end - first, advice) };
    // Kernels before 5.14 do not know this advice; pages are then faulted in on first access.
    let _ = populated;
}

/// The thread that makes memory resident; `None` if it cannot be started.
fn thread() -> Option<&'static SyncSender<ResidentRange>> {
    static THREAD: OnceLock<Option<SyncSender<ResidentRange>>> = OnceLock::new();
    let start = || {
        let (sender, requests) = sync_channel(REQUESTS);
        let work = move || requests.into_iter().for_each(populate_range);
        std::thread::Builder::new().name("weir-memory".into()).spawn(work).ok().map(|_| sender)
    };
    THREAD.get_or_init(start).as_ref()
}

/// How much of a table that grows row by row is resident.
#[derive(Clone, Debug)]
pub struct Frontier {
    /// Bytes of the table that are resident, or have been requested.
    resident: usize,
    /// Number of rows at which more is requested.
    due: usize,
}

impl Frontier {
    /// Makes the beginning of an empty table resident, if it is large.
    #[must_use]
    pub fn of<T>(table: &Vec<T>) -> Frontier {
        let bytes = table.capacity() * size_of::<T>();
        if bytes < HUGE_PAGE || thread().is_none() {
            return Frontier { resident: bytes, due: usize::MAX };
        }
        let resident = AHEAD.min(bytes);
        populate_range((table.as_ptr() as usize, resident));
        let mut frontier = Frontier { resident, due: 0 };
        frontier.set_due::<T>(bytes);
        frontier
    }

    /// Requests more resident memory, if it is time, after the table has grown to its present length.
    /// Otherwise, a call costs one comparison.
    #[inline(always)]
    pub fn follow<T>(&mut self, table: &Vec<T>) {
        if table.len() >= self.due {
            self.ask(table);
        }
    }

    #[cold]
    #[inline(never)]
    fn ask<T>(&mut self, table: &Vec<T>) {
        let bytes = table.capacity() * size_of::<T>();
        let step = HUGE_PAGE.min(bytes - self.resident);
        if let Some(thread) = thread() {
            // If the thread is busy, the caller does not wait for it.
            let _ = thread.try_send((table.as_ptr() as usize + self.resident, step));
        }
        self.resident += step;
        self.set_due::<T>(bytes);
    }

    fn set_due<T>(&mut self, bytes: usize) {
        let rows = (self.resident.saturating_sub(AHEAD - HUGE_PAGE)) / size_of::<T>().max(1);
        self.due = if self.resident < bytes { rows } else { usize::MAX };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Seek, SeekFrom};
    use std::time::{Duration, Instant};

    /// Bytes of a table that are resident.
    fn resident<T>(table: &Vec<T>) -> usize {
        const PAGE: usize = 4096;
        const PRESENT: u64 = 1 << 63;
        let first = table.as_ptr() as usize / PAGE;
        let pages = (table.capacity() * size_of::<T>()).div_ceil(PAGE);
        // A word for each page of the process.
        let mut map = File::open("/proc/self/pagemap").unwrap();
        map.seek(SeekFrom::Start(8 * first as u64)).unwrap();
        let mut words = vec![0; 8 * pages];
        map.read_exact(&mut words).unwrap();
        let words = words.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
        words.filter(|word| word & PRESENT != 0).count() * PAGE
    }

    #[test]
    fn memory_is_resident_ahead_of_the_rows_that_are_used() {
        let mut table: Vec<u64> = Vec::with_capacity(8 * HUGE_PAGE / 8);
        advise_huge(&table);
        assert!(resident(&table) < AHEAD);
        let mut frontier = Frontier::of(&table);
        assert!(resident(&table) >= AHEAD - HUGE_PAGE);
        assert!(resident(&table) < 5 * HUGE_PAGE, "not all of it");
        let half = 4 * HUGE_PAGE / 8;
        for row in 0..half {
            table.push(row as u64);
            frontier.follow(&table);
        }
        let patience = Instant::now() + Duration::from_secs(20);
        while resident(&table) < 4 * HUGE_PAGE + AHEAD - HUGE_PAGE {
            assert!(Instant::now() < patience, "{} bytes are resident", resident(&table));
            std::thread::sleep(Duration::from_millis(1));
        }
        for row in half..table.capacity() {
            table.push(row as u64);
            frontier.follow(&table);
        }
        assert_eq!((frontier.resident, frontier.due), (8 * HUGE_PAGE, usize::MAX));
        assert!(table.iter().enumerate().all(|(row, &value)| value == row as u64));
    }

    #[test]
    fn small_tables_are_left_as_they_are_and_whole_ones_become_resident() {
        let small: Vec<u64> = Vec::with_capacity(1000);
        let mut frontier = Frontier::of(&small);
        frontier.follow(&small);
        assert_eq!(frontier.due, usize::MAX);
        let table = vec![0_u64; 2 * HUGE_PAGE / 8];
        populate(&table);
        assert!(resident(&table) >= 2 * HUGE_PAGE);
    }
}
