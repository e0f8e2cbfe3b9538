//! Measures the composition of traffic: flows are counted in sketches, interval by interval, and reported or
//! exported. The source is the collector's flow deltas or the packets of a recording.
//!
//! Promises: memory is bounded by settings, not by traffic. Outside of `agent`, `command`, `files`
//! and `nodes` there is no I/O except `std::io::Write` for exports, no thread and no clock.
#![forbid(unsafe_code)]

mod agent;
mod app;
mod command;
mod entropy;
pub mod export;
mod file;
mod files;
mod frames;
mod inside;
mod keys;
mod link;
mod nodes;
mod numbers;
mod page;
mod queries;
mod record;
mod recording;
mod report;
mod reporting;
mod settings;
mod sketches;
mod solution;
mod summary;
#[cfg(test)]
mod tests;
mod text;
mod truth;

pub use app::{
    Export, HISTORY, Ipfix, KEPT, KIND, KeptInterval, MeasurePublisher, Measurement, MeasurementReport,
    OfOverlay, Parquet, Sum, read_with,
};
pub use command::{COMMAND, SolutionRequest, Solve, run_command};
pub use file::{FileError, Unlike};
pub use files::{FileReport, Packets, read_packets, said};
pub use frames::{Frames, NoFlow};
pub use inside::{Encapsulation, Encapsulations};
pub use link::Link;
pub use numbers::grouped;
pub use queries::Query;
pub use record::FlowRecord;
pub use recording::{DETAILED, INTERVALS, Measured, Recording, STEPS, Series};
pub use report::{
    Answer, Answers, ChangeRow, Estimated, Interval, QuantileRow, Report, RowNames, SizeClass, SpreaderRow,
    TopList, TopRow, Unflowed,
};
pub use settings::Settings;
pub use solution::{
    LiveSolution, NewSolution, SolutionCounter, SolutionError, SolutionSettings, solution_line, write_answers,
};
pub use summary::Summary;
pub use weir_sketch::{KeyKind, Projection, Seed};
