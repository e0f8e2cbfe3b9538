//! Paths for flows without state: hash -> bucket -> path.
//!
//! The buckets follow the weights of the paths ([`weir_table::bucket::fill_wants`]: the fewest moves).
//! Buckets of a path that may no longer be used move at once. Of the others, only a few move per step, drawn
//! at random, so that hosts that see the same queue do not all leave it together.

use crate::paths::Paths;
use weir_packet::random::Random;
use weir_table::bucket::{Buckets, fill_wants};

/// Buckets per node: with 16 paths, shares still differ by a quarter.
pub const SIZE: usize = 64;

/// The maximum number of buckets per step that move although their path may still be used: a sixteenth.
pub const MOVES_MAX: usize = SIZE / 16;

/// A bucket that now leads to another path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Its number.
    pub bucket: usize,
    /// The path to which the bucket led; [`weir_table::bucket::NO_TARGET`] at first.
    pub from: u16,
    /// The path to which the bucket leads.
    pub to: u16,
}

/// The buckets of a remote node.
#[derive(Clone, Debug)]
pub struct PathBuckets {
    buckets: Buckets,
}

impl PathBuckets {
    /// Buckets filled according to the paths' weights.
    #[must_use]
    pub fn new(paths: &Paths) -> PathBuckets {
        PathBuckets { buckets: Buckets::new(fill_wants(None, &paths.shares(), SIZE).0) }
    }

    /// The path of a flow's select hash; [`weir_table::bucket::NO_TARGET`] if there are no paths.
    #[inline]
    #[must_use]
    pub fn pick(&self, hash: u64) -> u16 {
        self.buckets.pick(hash)
    }

    /// The paths of all buckets.
    #[must_use]
    pub fn slots(&self) -> &[u16] {
        self.buckets.slots()
    }

    /// Moves the buckets one step towards the weights; call it every [`crate::paths::STEP_NS`], and at once
    /// when a path fails. Returns the moves.
    pub fn follow(&mut self, paths: &Paths, random: &mut Random) -> Vec<Move> {
        let shares = paths.shares();
        let (wanted, _) = fill_wants(Some(self.slots()), &shares, SIZE);
        let usable = |path: u16| shares.get(usize::from(path)).is_some_and(|share| *share > 0);
        let differing = (0..).zip(self.slots().iter().zip(&wanted)).filter(|(_, (from, to))| from != to);
        let all = differing.map(|(bucket, (&from, &to))| Move { bucket, from, to });
        let (mut optional, mut moves): (Vec<Move>, Vec<Move>) = all.partition(|one| usable(one.from));
        for _ in 0..MOVES_MAX.min(optional.len()) {
            moves.push(optional.swap_remove(random.below(optional.len() as u64) as usize));
        }
        moves.iter().for_each(|one| self.buckets.set(one.bucket, one.to));
        moves
    }
}
