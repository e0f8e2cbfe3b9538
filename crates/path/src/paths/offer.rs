//! What a data plane that places frames on its own must know about paths.

use super::{Path, Paths, State};

/// The information about a path for a data plane that places frames on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The source port that leads along it.
    pub port: u16,
    /// Its share of new flows, 0 to [`FULL`]; with 0, no frame may take it.
    pub weight: u32,
    /// Whether large flows should leave the path.
    pub is_congested: bool,
    /// How long a packet would wait on the path according to probes, ns.
    pub cost_ns: u64,
}

impl Paths {
    /// The information about all paths.
    #[must_use]
    pub fn offers(&self) -> Vec<Offer> {
        let rank = self.best_rank();
        let one_sided = self.settings.is_one_sided;
        let offer = |(at, path): (usize, &Path)| Offer {
            port: path.ports.main,
            // With `one_sided`, flows leave a working path only during their pauses, so that none is
            // reordered. It is usable until then, and rarely chosen.
            weight: self.share(at, rank).max(u32::from(one_sided && path.state == State::Grey)),
            is_congested: path.state == State::Congested && !one_sided,
            cost_ns: self.cost_ns(at),
        };
        self.paths.iter().enumerate().map(offer).collect()
    }
}
