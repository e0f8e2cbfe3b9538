//! A search for packets that take every reachable path of a program.
//!
//! [`explore`] fixes the shape of a packet (which headers it has), so that every field is present or absent,
//! and follows the program from each port. At each pipe it splits: a branch for each entry, and one for each
//! way to miss. What a branch requires becomes conditions on fields of the packet as it arrives
//! (`symbols.rs`). At the end of a path, `solve.rs` finds values that meet all of them, or proves that there
//! are none. The interpreter then walks the packet; only what it reports counts as reached.
//!
//! The search does not compute hashes: where a hash picks a target, the search tries the values of a free
//! field until each target has been picked.

pub mod compare;
mod domain;
mod pick;
mod proof;
mod record;
mod rows;
mod search;
mod sequences;
pub mod shadow;
mod shape;
mod shapes;
mod solve;
mod symbols;
mod variants;

pub use record::{Case, CaseRecord, Path, PathStep, RowId, Taken};
pub use search::{Exploration, Limits, UnhitRow, explore};
pub use weir_oracle::Walk;
