//! Huge pages: how many are free, and reserving some for a while.

use std::fs;

const RESERVED: &str = "/proc/sys/vm/nr_hugepages";

/// Writing to it makes the kernel move pages so that free ones are adjacent.
const COMPACT: &str = "/proc/sys/vm/compact_memory";

/// How often a reservation is tried: with little adjacent free memory, the first attempt may get a part.
const ATTEMPTS: u32 = 3;

/// Size of a huge page in MiB if the kernel does not report it.
const PAGE_MIB: usize = 2;

/// Returns how many MiB of huge pages (of the default size) are free.
#[must_use]
pub fn free_mebibytes() -> usize {
    meminfo("HugePages_Free:").unwrap_or(0) * page_mebibytes()
}

/// Returns the number of pages for `mebibytes` MiB.
#[must_use]
pub fn count(mebibytes: usize) -> usize {
    mebibytes.div_ceil(page_mebibytes())
}

fn page_mebibytes() -> usize {
    meminfo("Hugepagesize:").map_or(PAGE_MIB, |kibibytes| (kibibytes >> 10).max(1))
}

fn meminfo(name: &str) -> Option<usize> {
    let table = fs::read_to_string("/proc/meminfo").ok()?;
    let line = table.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Pages that are reserved until this value is dropped.
pub struct HugePages {
    /// Whether at least the requested number of pages is free.
    pub enough: bool,
    /// The number of pages before the reservation, which dropping this restores.
    before: Option<usize>,
}

impl HugePages {
    /// Makes the kernel reserve the pages that are missing for `mebibytes` MiB. If memory is short, the
    /// kernel reserves fewer.
    #[must_use]
    pub fn reserve(mebibytes: usize) -> HugePages {
        let missing = count(mebibytes.saturating_sub(free_mebibytes()));
        if missing == 0 {
            return HugePages { enough: true, before: None };
        }
        // Bounded: the kernel writes it.
        let before = fs::read_to_string(RESERVED).ok().and_then(|text| text.trim().parse().ok());
        if let Some(before) = before {
            for _ in 0..ATTEMPTS {
                set(before + missing);
                if free_mebibytes() >= mebibytes {
                    break;
                }
                let _ = fs::write(COMPACT, "1");
            }
        }
        HugePages { enough: free_mebibytes() >= mebibytes, before }
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            set(before);
        }
    }
}

fn set(pages: usize) {
    let _ = fs::write(RESERVED, pages.to_string());
}
