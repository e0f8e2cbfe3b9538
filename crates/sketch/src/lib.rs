//! Sketches and counters that summarise flows.
//!
//! A sketch has a fixed size, given in bytes when it is created, and answers one kind of question about any
//! number of flows, with a bound on its error. Sketches with equal seeds and sizes merge: over workers,
//! intervals and nodes. Nothing here does I/O or knows about threads, and no update allocates.
//!
//! A key is hashed once ([`KeyHash`]), and every sketch derives its rows from the hash. In front of the
//! sketches, the [`Aggregator`] adds up packets, so that one update covers many packets.
//!
//! | module | answers | aggregated packets give |
//! |---|---|---|
//! | [`top_counts`] | top flows, with their bytes | a state within the same bounds |
//! | [`spread`] | super-spreaders | the same state |
//! | [`mrac`] | distribution of sizes | the same state |
//! | [`apache`] | number of flows, quantiles, in files others read | as their kind does |
//!
//! These are the sketches that weir measures with. Sketches that serve only for comparison are in
//! `rigs/papers`, and are made of the same parts: [`hash`], [`memory`], [`counter`] and [`ranked`].
//!
//! [`exact`] is the ground truth, [`accuracy`] measures the distance from it, and [`traffic`] generates the
//! input for both.
#![deny(unsafe_code)]

pub mod accuracy;
pub mod aggregator;
pub mod apache;
pub mod counter;
pub mod estimate;
pub mod exact;
pub mod hash;
pub mod key;
pub mod memory;
pub mod mrac;
pub mod ranked;
pub mod spread;
pub mod top_counts;
pub mod traffic;

pub use aggregator::{Aggregator, AggregatorCounts, BATCH, Compare, Evicted, Gate, Policy, Scalar, Vectors};
pub use apache::{Distinct, FormatError, Quantiles, frequent_items};
pub use counter::Counter;
pub use estimate::{BYTES_MAX, Estimate, MergeError, Sigmas, SizeError};
pub use exact::{Count, Exact};
pub use hash::{Item, KEY_WORDS_MAX, KeyHash, LANES_MAX, Note, Purpose, Seed, Update};
pub use key::{KeyKind, Projection};
pub use mrac::{Distribution, Mrac};
pub use ranked::Top;
pub use spread::{Spread, SpreadSketch};
pub use top_counts::TopCounts;
