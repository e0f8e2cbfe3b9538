//! The nine solutions, each empty and of the paper's size, with room for IPv6.

use weir_measure::SolutionError;
use weir_packet::FlowKey;
use weir_papers::{
    FlajoletMartin, FlowRadar, HeavyHitters, LinearCounting, NineBytes, Reversible, SpaceSaving, TwoLevel,
    UnivMon,
};
use weir_sketch::key::source_number;
use weir_sketch::{Evicted, KeyHash, KeyKind, Mrac, Projection, Seed, SizeError};

/// Keys that heavy hitters and each level of UnivMon remember, and levels of UnivMon, as in the paper.
const KEYS: usize = 128;
const LEVELS: usize = 14;

/// The kinds of keys that have a source, and those that have a destination too.
const WITH_SOURCE: [KeyKind; 4] = [KeyKind::FiveTuple, KeyKind::FourTuple, KeyKind::Pair, KeyKind::Source];
const WITH_PAIR: [KeyKind; 3] = [KeyKind::FiveTuple, KeyKind::FourTuple, KeyKind::Pair];

/// One of the solutions.
#[allow(clippy::large_enum_variant, reason = "there are three of them at most")]
pub enum Solution {
    CountMin(HeavyHitters<5>),
    FlowRadar(FlowRadar<5>),
    FlajoletMartin(FlajoletMartin),
    LinearCounting(LinearCounting),
    Mrac(Mrac),
    Reversible(Reversible<8, 2>),
    SpaceSaving(SpaceSaving<5>),
    TwoLevel(TwoLevel<8, 2>),
    UnivMon(UnivMon<5>),
}

/// What there is to know about a solution: its name; how to create it; the evictions per packet at which an
/// aggregator in front of it no longer pays; and the keys that it can have, if not all.
struct SolutionKind {
    name: &'static str,
    create: fn(&Seed) -> Result<Solution, SizeError>,
    /// 1 - look-up / update, with the costs in `bench/results/2026-11-23-measure.md` (Zipf 1.1, a look-up of
    /// 10.5 ns): constants, so that measuring a recording again gives the same result.
    pays_below: f64,
    keys: Option<&'static [KeyKind]>,
}

const BYTES: NineBytes = NineBytes::PAPER_V6;

/// All solutions, in the order of the paper's table.
const KINDS: [SolutionKind; 9] = [
    SolutionKind {
        name: "count_min",
        create: |seed| Ok(Solution::CountMin(HeavyHitters::with_bytes(BYTES.count_min, KEYS, seed)?)),
        pays_below: 0.2,
        keys: None,
    },
    SolutionKind {
        name: "flow_radar",
        create: |seed| Ok(Solution::FlowRadar(FlowRadar::with_bytes(BYTES.flow_radar, seed)?)),
        pays_below: 0.64,
        keys: None,
    },
    SolutionKind {
        name: "flajolet_martin",
        create: |seed| Ok(Solution::FlajoletMartin(FlajoletMartin::with_bytes(BYTES.flajolet_martin, seed)?)),
        pays_below: 0.0,
        keys: None,
    },
    SolutionKind {
        name: "linear_counting",
        create: |seed| Ok(Solution::LinearCounting(LinearCounting::with_bytes(BYTES.linear_counting, seed)?)),
        pays_below: 0.0,
        keys: None,
    },
    SolutionKind {
        name: "mrac",
        create: |seed| Ok(Solution::Mrac(Mrac::with_bytes(BYTES.mrac, seed)?)),
        pays_below: 0.0,
        keys: None,
    },
    SolutionKind {
        name: "reversible",
        create: |seed| Ok(Solution::Reversible(Reversible::with_bytes(BYTES.reversible, seed)?)),
        pays_below: 0.31,
        keys: Some(&WITH_SOURCE),
    },
    SolutionKind {
        name: "space_saving",
        create: |_| Ok(Solution::SpaceSaving(SpaceSaving::with_bytes(BYTES.space_saving)?)),
        pays_below: 0.72,
        keys: None,
    },
    SolutionKind {
        name: "two_level",
        create: |seed| Ok(Solution::TwoLevel(TwoLevel::with_bytes(BYTES.two_level, seed)?)),
        pays_below: 0.57,
        keys: Some(&WITH_PAIR),
    },
    SolutionKind {
        name: "univmon",
        create: |seed| Ok(Solution::UnivMon(UnivMon::with_bytes(BYTES.univmon, LEVELS, KEYS, seed)?)),
        pays_below: 0.86,
        keys: None,
    },
];

/// A solution that counts keys of one kind.
pub struct Counter {
    kind: &'static SolutionKind,
    pub solution: Solution,
    seed: Seed,
    /// Source and destination of a key.
    pair: Projection,
}

impl Counter {
    /// Creates an empty solution by its name.
    pub fn new(name: &str, key: Projection, seed: Seed) -> Result<Counter, SolutionError> {
        const ALL: &[SolutionKind] = &KINDS;
        let Some(kind) = ALL.iter().find(|kind| kind.name == name) else {
            let names: Vec<&str> = ALL.iter().map(|kind| kind.name).collect();
            let why = format!("expected one of {}", names.join(", "));
            return Err(SolutionError { key: "solution", value: Some(name.to_string()), why });
        };
        if let Some(keys) = kind.keys
            && !keys.contains(&key.kind())
        {
            let what = if keys.len() == WITH_PAIR.len() { "a source and a destination" } else { "a source" };
            let words: Vec<&str> = keys.iter().map(|kind| kind.word()).collect();
            let why = format!("{name} needs {what}: expected one of {}", words.join(", "));
            return Err(SolutionError { key: "flow", value: Some(key.kind().word().to_string()), why });
        }
        let pair = Projection::new(KeyKind::Pair);
        let solution = (kind.create)(&seed).expect("the sizes of the paper suffice");
        Ok(Counter { kind, solution, seed, pair })
    }

    /// Returns an empty solution of the same kind.
    pub fn empty(&self) -> Counter {
        let solution = (self.kind.create)(&self.seed).expect("it was created before");
        Counter { kind: self.kind, solution, seed: self.seed, pair: self.pair }
    }

    /// Returns its name.
    pub fn name(&self) -> &'static str {
        self.kind.name
    }

    /// Returns the evictions per packet at which an aggregator in front of it no longer pays.
    pub fn pays_below(&self) -> f64 {
        self.kind.pays_below
    }

    /// Returns true if it counts the destinations of sources.
    pub fn counts_destinations(&self) -> bool {
        matches!(self.solution, Solution::TwoLevel(_))
    }

    /// Returns true if it answers nothing about a single interval.
    pub fn needs_intervals(&self) -> bool {
        matches!(self.solution, Solution::Reversible(_))
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        match &self.solution {
            Solution::CountMin(sketch) => sketch.bytes(),
            Solution::FlowRadar(sketch) => sketch.bytes(),
            Solution::FlajoletMartin(sketch) => sketch.bytes(),
            Solution::LinearCounting(sketch) => sketch.bytes(),
            Solution::Mrac(sketch) => sketch.bytes(),
            Solution::Reversible(sketch) => sketch.bytes(),
            Solution::SpaceSaving(sketch) => sketch.bytes(),
            Solution::TwoLevel(sketch) => sketch.bytes(),
            Solution::UnivMon(sketch) => sketch.bytes(),
        }
    }

    /// Counts keys; `hash` is the one that produced their items.
    pub fn add(&mut self, keys: &[Evicted<5>], hash: &KeyHash) {
        match &mut self.solution {
            Solution::CountMin(sketch) => sketch.add(keys),
            Solution::FlowRadar(sketch) => sketch.add(keys),
            Solution::FlajoletMartin(sketch) => keys.iter().for_each(|one| sketch.update(one.item.hash)),
            Solution::LinearCounting(sketch) => sketch.add(keys),
            Solution::Mrac(sketch) => sketch.add(keys),
            Solution::Reversible(sketch) => sketch.add(keys, source_number),
            Solution::SpaceSaving(sketch) => {
                keys.iter().for_each(|one| sketch.update(&one.item, one.packets));
            }
            // Its hash must be that of source and destination, whatever else the key has.
            Solution::TwoLevel(sketch) => {
                for one in keys {
                    let pair = self.pair.of(&FlowKey(one.item.key));
                    sketch.update(source_number(&one.item.key), hash.hash(&pair));
                }
            }
            Solution::UnivMon(sketch) => sketch.add(keys),
        }
    }

    /// Returns source and destination of a key.
    pub fn pair(&self, key: &[u64; 5]) -> [u64; 5] {
        self.pair.of(&FlowKey(*key))
    }
}
