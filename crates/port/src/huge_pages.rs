//! Huge pages: how many are free, and reserving some for a while.

use std::fs;

const RESERVED: &str = "/proc/sys/vm/nr_hugepages";

/// MiB of a huge page when the kernel does not say.
const PAGE_MIB: usize = 2;

/// MiB of huge pages (of the usual size) that nobody has taken.
#[must_use]
pub fn free_mebibytes() -> usize {
    meminfo("HugePages_Free:").unwrap_or(0) * page_mebibytes()
}

/// How many pages so many MiB are.
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

/// Pages reserved for as long as this lives.
pub struct HugePages {
    /// Are there as many as were asked for?
    pub enough: bool,
    /// How many there were before.
    before: Option<usize>,
}

impl HugePages {
    /// Has the kernel reserve what is missing of so many MiB; it makes as many as it has memory for.
    #[must_use]
    pub fn reserve(mebibytes: usize) -> HugePages {
        let missing = count(mebibytes.saturating_sub(free_mebibytes()));
        if missing == 0 {
            return HugePages { enough: true, before: None };
        }
        // Bounded: the kernel writes it.
        let before = fs::read_to_string(RESERVED).ok().and_then(|text| text.trim().parse().ok());
        if let Some(before) = before {
            set(before + missing);
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
