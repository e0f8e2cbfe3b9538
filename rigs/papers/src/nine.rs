//! The nine solutions with which Agg-Evict was evaluated, as one: everything that leaves the aggregator goes
//! to all of them. A key's hash is computed once; the memory of the next key is fetched while the current one
//! is counted.

use crate::count_min::HeavyHitters;
use crate::flajolet_martin::FlajoletMartin;
use crate::flow_radar::FlowRadar;
use crate::linear_counting::LinearCounting;
use crate::reversible::Reversible;
use crate::space_saving::SpaceSaving;
use crate::two_level::TwoLevel;
use crate::univmon::UnivMon;
use weir_sketch::aggregator::Evicted;
use weir_sketch::estimate::SizeError;
use weir_sketch::hash::Seed;
use weir_sketch::mrac::Mrac;

/// The memory of each solution, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the solutions")]
pub struct NineBytes {
    pub count_min: usize,
    pub flow_radar: usize,
    pub flajolet_martin: usize,
    pub linear_counting: usize,
    pub mrac: usize,
    pub reversible: usize,
    pub space_saving: usize,
    pub two_level: usize,
    pub univmon: usize,
}

impl NineBytes {
    /// About as large as in Agg-Evict's paper: 12 MiB in total.
    pub const PAPER: NineBytes = NineBytes {
        count_min: 1 << 20,
        flow_radar: 4 << 20,
        flajolet_martin: 512,
        linear_counting: 1 << 20,
        mrac: 1 << 20,
        reversible: (1 << 20) + (16 << 10),
        space_saving: 10 << 10,
        two_level: 3 << 20,
        univmon: 1 << 20,
    };

    /// The same with room for IPv6 sources and for keys of five words: 18 MiB.
    pub const PAPER_V6: NineBytes = NineBytes {
        flow_radar: 8 << 20,
        reversible: (2 << 20) + (32 << 10),
        two_level: 4 << 20,
        ..NineBytes::PAPER
    };
}

/// Keys that the heavy hitters of Count-Min and each level of UnivMon remember, as in the paper.
const KEYS: usize = 128;

/// Levels of UnivMon: of a million flows, 128 reach the last one.
const LEVELS: usize = 14;

/// All nine solutions; each is queried separately. Sources are numbers of `Q` bytes: `<W, 4, 1>` holds IPv4,
/// `<W, 8, 2>` IPv6 as well.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names are those of the solutions")]
pub struct Nine<const W: usize, const Q: usize = 4, const L: usize = 1> {
    pub count_min: HeavyHitters<W>,
    pub flow_radar: FlowRadar<W>,
    pub flajolet_martin: FlajoletMartin,
    pub linear_counting: LinearCounting,
    pub mrac: Mrac,
    pub reversible: Reversible<Q, L>,
    pub space_saving: SpaceSaving<W>,
    pub two_level: TwoLevel<Q, L>,
    pub univmon: UnivMon<W>,
}

impl<const W: usize, const Q: usize, const L: usize> Nine<W, Q, L> {
    /// Creates all nine.
    ///
    /// # Errors
    /// The memory of one of them is too little or too much.
    pub fn with_bytes(bytes: &NineBytes, seed: &Seed) -> Result<Self, SizeError> {
        Ok(Nine {
            count_min: HeavyHitters::with_bytes(bytes.count_min, KEYS, seed)?,
            flow_radar: FlowRadar::with_bytes(bytes.flow_radar, seed)?,
            flajolet_martin: FlajoletMartin::with_bytes(bytes.flajolet_martin, seed)?,
            linear_counting: LinearCounting::with_bytes(bytes.linear_counting, seed)?,
            mrac: Mrac::with_bytes(bytes.mrac, seed)?,
            reversible: Reversible::with_bytes(bytes.reversible, seed)?,
            space_saving: SpaceSaving::with_bytes(bytes.space_saving)?,
            two_level: TwoLevel::with_bytes(bytes.two_level, seed)?,
            univmon: UnivMon::with_bytes(bytes.univmon, LEVELS, KEYS, seed)?,
        })
    }

    /// Counts packets; `source` gives the number of a key's source (see [`weir_sketch::key::source_number`]).
    /// Batches of more than thirty keys cost least.
    #[inline]
    pub fn add(&mut self, evicted: &[Evicted<W>], source: impl Fn(&[u64; W]) -> u64) {
        self.count_min.add(evicted);
        self.flow_radar.add(evicted);
        self.linear_counting.add(evicted);
        self.mrac.add(evicted);
        self.reversible.add(evicted, &source);
        self.two_level.add(evicted, &source);
        self.univmon.add(evicted);
        for one in evicted {
            self.flajolet_martin.update(one.item.hash);
            self.space_saving.update(&one.item, one.packets);
        }
    }
}
