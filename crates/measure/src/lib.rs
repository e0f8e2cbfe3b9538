//! What traffic consists of: flows are summed up in sketches, interval by interval, and told as reports and
//! exports. The source is the collector's flow deltas or the packets of a recording.
//!
//! Promises: memory is bounded by settings, not by traffic. There is no I/O here but `std::io::Write` of what
//! is exported, no thread and no clock.

mod record;

pub use record::FlowRecord;
