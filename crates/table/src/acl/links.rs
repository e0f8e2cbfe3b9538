//! The order of the rules that share an entry, kept so that the best one is the first.

use crate::Full;

/// Marks the end of a list of links.
pub(super) const NO_LINK: u32 = u32::MAX;

/// The ranks of each entry's rules: ascending linked lists in one slab.
#[derive(Debug)]
pub(super) struct RankLists {
    links: Vec<(u64, u32)>,
    vacant: u32,
    free: usize,
}

impl RankLists {
    pub(super) fn with_capacity(links: usize) -> RankLists {
        RankLists { links: Vec::with_capacity(links), vacant: NO_LINK, free: links }
    }

    /// Adds a rank to a list. Returns the list's new first link.
    pub(super) fn insert(&mut self, first: u32, rank: u64) -> Result<u32, Full> {
        if self.free == 0 {
            return Err(Full);
        }
        self.free -= 1;
        let (before, after) = self.around(first, rank);
        let new = self.add((rank, after));
        if before == NO_LINK {
            return Ok(new);
        }
        self.links[before as usize].1 = new;
        Ok(first)
    }

    /// Removes a rank from a list. Returns the list's new first link.
    pub(super) fn remove(&mut self, first: u32, rank: u64) -> u32 {
        let (before, at) = self.around(first, rank);
        let Some(&(found, after)) = self.links.get(at as usize) else { return first };
        if found != rank {
            return first;
        }
        self.links[at as usize].1 = std::mem::replace(&mut self.vacant, at);
        self.free += 1;
        if before == NO_LINK {
            return after;
        }
        self.links[before as usize].1 = after;
        first
    }

    /// Returns the rank of a link; `None` at the end of a list.
    pub(super) fn rank(&self, link: u32) -> Option<u64> {
        self.links.get(link as usize).map(|link| link.0)
    }

    /// Number of unused links.
    pub(super) fn free(&self) -> usize {
        self.free
    }

    /// Returns the last link below a rank and the one that follows it.
    fn around(&self, first: u32, rank: u64) -> (u32, u32) {
        let (mut before, mut at) = (NO_LINK, first);
        while let Some(&(found, next)) = self.links.get(at as usize).filter(|link| link.0 < rank) {
            debug_assert!(found < rank);
            (before, at) = (at, next);
        }
        (before, at)
    }

    fn add(&mut self, link: (u64, u32)) -> u32 {
        if self.vacant == NO_LINK {
            self.links.push(link);
            return self.links.len() as u32 - 1;
        }
        let at = self.vacant;
        self.vacant = std::mem::replace(&mut self.links[at as usize], link).1;
        at
    }
}
