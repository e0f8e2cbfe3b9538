//! Random programs, packets and changes from one small generator that tests, the fuzzer and CI share; and
//! [`Coverage`], which records what a run has exercised.
//!
//! Values come from small pools, so that packets hit entries often. Programs pass the check, except that they
//! may read metadata before writing it, because its initial value of 0 must be tested too.

mod actions;
mod choices;
mod coverage;
mod entries;
mod events;
mod packets;
mod pools;
mod programs;

pub use choices::Choices;
pub use coverage::Coverage;
pub use events::{Event, change, datagram_ports, event, hash};
pub use packets::frame;
pub use programs::program;

use weir_program::Group;

/// Returns buckets assigned to targets in turn, which suffices to run the interpreter without an engine.
#[must_use]
pub fn dealt_buckets(group: &Group) -> Vec<u16> {
    let live: Vec<u16> =
        (0..).zip(&*group.targets).filter(|(_, target)| target.weight > 0).map(|(at, _)| at).collect();
    (0..group.size as usize)
        .map(|bucket| live.get(bucket % live.len().max(1)).copied().unwrap_or(u16::MAX))
        .collect()
}
