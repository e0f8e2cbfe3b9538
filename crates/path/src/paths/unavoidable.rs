//! The part of the queueing delay that no choice of a path avoids.

use super::Path;

/// The lowest queueing delays among the paths without faults, ns.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Unavoidable {
    /// According to probes.
    probed: u64,
    /// According to probes and connections, whichever show more of a path.
    shown: u64,
}

impl Unavoidable {
    /// Returns the delays that these paths have in common; 0 without paths.
    pub fn of<'a>(paths: impl Iterator<Item = &'a Path> + Clone) -> Unavoidable {
        let least = |queue_ns: fn(&Path) -> u64| paths.clone().map(queue_ns).min().unwrap_or(0);
        Unavoidable { probed: least(|path| path.delay.queue_ns()), shown: least(Path::queue_ns) }
    }

    /// Returns a path's queueing delay beyond that.
    ///
    /// Delays are compared with those of the same kind: connections also wait in queues that their own bursts
    /// fill, such as the host's, and would wait there on a path that has no connections now and whose last
    /// probe was answered before the burst.
    #[inline]
    pub fn beyond(self, path: &Path) -> u64 {
        let probed = path.delay.queue_ns().saturating_sub(self.probed);
        probed.max(path.seen.delay.queue_ns().saturating_sub(self.shown))
    }
}
