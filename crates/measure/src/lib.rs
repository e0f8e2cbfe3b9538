//! What traffic consists of: flows are summed up in sketches, interval by interval, and told as reports and
//! exports. The source is the collector's flow deltas or the packets of a recording.
//!
//! Promises: memory is bounded by settings, not by traffic. There is no I/O here but `std::io::Write` of what
//! is exported, no thread and no clock.
#![forbid(unsafe_code)]

mod entropy;
pub mod export;
mod keys;
mod record;
mod report;
mod reporting;
mod settings;
mod sketches;
mod summary;
#[cfg(test)]
mod tests;
mod truth;

pub use record::FlowRecord;
pub use report::{
    ChangeRow, Estimated, Interval, QuantileRow, Report, SizeClass, SpreaderRow, TopList, TopRow, Unflowed,
};
pub use settings::{Part, Settings};
pub use sketch::{KeyKind, Seed};
pub use summary::Summary;
