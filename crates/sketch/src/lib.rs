//! Sketches and counters that summarise flows.
//!
//! A sketch has a fixed size, given in bytes when it is created, and answers one kind of question about any
//! number of flows, with a bound on its error. Sketches with equal seeds and sizes merge: over workers,
//! intervals and nodes. Nothing here does I/O or knows about threads, and no update allocates.
//!
//! A key is hashed once ([`KeyHash`]), and every sketch derives its rows from the hash. In front of the
//! sketches, the [`Aggregator`] sums up packets, so that one update covers many packets.
//!
//! | module | answers | aggregated packets give |
//! |---|---|---|
//! | [`count_min`] | size of a flow, heavy hitters | the same state |
//! | [`count_sketch`] | size of a flow | the same state |
//! | [`flow_radar`] | all flows, exactly | the same state, but for flows that its filter mistakes |
//! | [`flajolet_martin`], [`linear_counting`] | number of flows | the same state |
//! | [`mrac`] | distribution of sizes | the same state |
//! | [`reversible`] | heavy changes, without candidates | the same state |
//! | [`space_saving`], [`top_counts`] | top flows, with their bytes | a state within the same bounds |
//! | [`two_level`], [`spread`] | super-spreaders | the same state |
//! | [`univmon`] | heavy hitters, changes, entropy, number of flows | the same counters |
//! | [`coco`] | size of any part of a key | a state with the same mean |
//! | [`elastic`] | size of a flow, heavy hitters | a state within the same bounds |
//! | [`apache`] | number of flows, quantiles, frequent items, in files others read | as their kind does |
//!
//! [`exact`] is the ground truth, [`accuracy`] measures the distance from it, and [`traffic`] generates the
//! input for both.
#![deny(unsafe_code)]

pub mod accuracy;
pub mod aggregator;
pub mod apache;
pub mod coco;
pub mod count_min;
pub mod count_sketch;
mod counter;
pub mod elastic;
mod estimate;
pub mod exact;
pub mod flajolet_martin;
pub mod flow_radar;
mod hash;
pub mod key;
pub mod linear_counting;
mod memory;
pub mod modular;
pub mod mrac;
pub mod nine;
mod ranked;
pub mod reversible;
pub mod space_saving;
pub mod spread;
#[cfg(test)]
mod tests;
pub mod top_counts;
pub mod traffic;
pub mod two_level;
pub mod univmon;

pub use aggregator::{Aggregator, AggregatorCounts, BATCH, Compare, Evicted, Gate, Policy, Scalar, Vectors};
pub use apache::{Distinct, FormatError, Frequent, FrequentText, Quantiles, frequent_items};
pub use coco::Coco;
pub use count_min::{CountMin, HeavyHitters};
pub use count_sketch::CountSketch;
pub use counter::Counter;
pub use elastic::Elastic;
pub use estimate::{BYTES_MAX, Estimate, MergeError, Sigmas, SizeError};
pub use exact::{Count, Exact};
pub use flajolet_martin::FlajoletMartin;
pub use flow_radar::{Decoded, FlowRadar};
pub use hash::{Item, KEY_WORDS_MAX, KeyHash, LANES_MAX, Note, Purpose, Seed, Update};
pub use key::{KeyKind, Projection};
pub use linear_counting::LinearCounting;
pub use modular::{Modular, Reversed};
pub use mrac::{Distribution, Mrac};
pub use nine::{Nine, NineBytes};
pub use ranked::Top;
pub use reversible::{AddressChange, Changes, Reversible};
pub use space_saving::SpaceSaving;
pub use spread::{Spread, SpreadSketch};
pub use top_counts::TopCounts;
pub use two_level::{Spreader, Spreaders, TwoLevel};
pub use univmon::UnivMon;
