//! What the programs of `watch.h` have seen of TCP connections.

use super::layout::Sight;
use super::{PATHS_MAX, TcPath};
use aya::maps::{Array, MapData};

/// What TCP connections have revealed about a path since [`TcPath::load`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathSeen {
    /// The latest two windows of 8.4 ms with round trips, the later one first: the number of the window, and
    /// the shortest round trip in it, in nanoseconds.
    pub least: [(u64, u64); 2],
    /// Segments sent.
    pub segments: u64,
    /// Of these, segments that were sent again; they count for the path on which they were sent first.
    pub again: u64,
    /// Acknowledgements of new data.
    pub acknowledgements: u64,
}

impl PathSeen {
    /// The number of the window at this time, in nanoseconds of `CLOCK_MONOTONIC`. Round trips may still be
    /// added to it.
    #[must_use]
    pub fn window(now_ns: u64) -> u64 {
        now_ns >> 23
    }
}

impl TcPath {
    /// Returns what TCP connections have revealed about the paths of a peer, given its index, with a single
    /// system call. Nothing, unless they are observed.
    #[must_use]
    pub fn seen(&self, index: u32) -> [PathSeen; PATHS_MAX] {
        let map = self.ebpf.map("sights").expect("path.bpf.c defines it");
        let map = Array::<&MapData, [u8; Sight::SIZE]>::try_from(map).expect("its values have this size");
        let sight = map.get(&index, 0).map_or_else(|_| Sight::default(), |bytes| Sight::of(&bytes));
        sight.paths.map(|path| PathSeen {
            least: [(path.window, path.least_ns), (path.window_before, path.least_before_ns)],
            segments: path.segments,
            again: path.again,
            acknowledgements: path.acknowledgements,
        })
    }
}
