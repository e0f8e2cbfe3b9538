//! The tables a packet is looked up in.
//!
//! Every table is sized when it is created, never grows, and returns an error for whatever does not fit.
//! Hashes come from the caller, keyed and well mixed, so that a frame is hashed once however many tables it
//! meets. The data path looks up whole batches, selected by a `u64` mask (bit i = packet i), because the
//! memory latencies of 64 packets overlap and those of a single packet do not.
//!
//! | module | answers | structure |
//! |---|---|---|
//! | [`exact`] | which row has this key | bucketised cuckoo index over dense rows |
//! | [`small`] | the same, for a handful of keys | compare with each |
//! | [`flow`] | which flow is this, what was decided, what was seen | the same index, 64-byte rows |
//! | [`delta`] | what has a flow counted | a record of a cache line and a half |
//! | [`bucket`] | which target does this hash go to | an array |
//! | [`given`] | the same, with buckets that the caller assigns | the array, a row of counts for each |
//! | [`maglev`] | how are its buckets filled, the same on all nodes | turns through permutations |
//! | [`katran`], [`glb`] | the same as nodes of Katran, or of the GLB director | their rings, to the bit |
//! | [`published`] | what they hash with | others' hash functions |
//! | [`mod@in_turn`] | whose turn is it | an array |
//! | [`lpm`] | which is the longest prefix of this address | multibit trie, 4 bits a node |
//! | [`acl`] | which matching rule has the lowest priority number | tuple space over one cuckoo index |
//! | [`meter`] | what colour is this packet | token buckets of RFC 2697 and RFC 2698 |
//! | [`number_set`] | which is the lowest free number | three levels of bits |
#![forbid(unsafe_code)]

pub mod acl;
pub mod bucket;
pub mod delta;
pub mod exact;
pub mod flow;
pub mod given;
pub mod glb;
pub mod in_turn;
mod index;
pub mod katran;
pub mod lpm;
pub mod maglev;
pub mod meter;
mod mix;
pub mod number_set;
pub mod published;
pub mod small;
pub mod state;
mod store;
pub mod sweep;

pub use acl::{Acl, AclError, PortRange, Rule};
pub use bucket::{Buckets, NO_TARGET, fill_wants, seeded, spread};
pub use delta::{Belonging, DeltaReason, FlowDelta, NO_DELTA_TARGET, UNFLOWED};
pub use exact::{Exact, ExactRow};
pub use flow::{Counted, CountedElsewhere, Decision, Flow, FlowTable, HEARD_MAX, Resumed};
pub use given::{GivenBuckets, Patience};
pub use glb::{GlbHash, GlbRow, GlbState, GlbTarget, fill_glb, glb_row};
pub use in_turn::in_turn;
pub use katran::{KatranHash, KatranTarget, KatranVersion, fill_katran};
pub use lpm::{Lpm, LpmError, Width};
pub use maglev::{MaglevTarget, fill_maglev};
pub use meter::{Color, Meter, MeterConfig, MeterError, MeterSecond, MeterUnit};
pub use number_set::{NUMBERS_MAX, NumberSet};
pub use small::Small;
pub use state::{FlowState, Seen, StateEvent};
pub use sweep::{SweepVerdict, Visitor};

use thiserror::Error;

/// A table is full: its rows are used up, or the buckets where this key may lie are (see [`exact`]).
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the table is full")]
pub struct Full;

/// Why a key was not inserted.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum InsertError {
    /// No room, see [`Full`].
    #[error("{Full}")]
    Full,
    /// The key exists already, in this row.
    #[error("the key is already in row {0}")]
    Exists(u32),
}

impl From<Full> for InsertError {
    fn from(Full: Full) -> InsertError {
        InsertError::Full
    }
}
