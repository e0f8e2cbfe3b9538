//! What a node answers about its measurements, so that they can be merged with those of other nodes.

use crate::addresses::NamedAddress;
use crate::answers;

/// The path of all measurements over HTTP.
pub const MEASUREMENTS: &str = "/v1/measurements";

/// Returns the path of an interval of a measurement.
#[must_use]
pub fn interval_path(measurement: &str, start_ns: u64) -> String {
    format!("{MEASUREMENTS}/{measurement}/intervals/{start_ns}")
}

answers! {
    /// The measurements of a node.
    Measurements {
        /// The measurements.
        measurements: Vec<MeasurementState>,
    }

    /// A measurement.
    MeasurementState {
        /// Its name.
        name: String,
        /// The length of an interval, in milliseconds.
        interval_ms: u64,
        /// Whether it has a seed, so that its intervals can be merged with those of other nodes.
        seeded: bool,
        /// The node's time, in nanoseconds since 1970.
        now_ns: u64,
        /// The latest complete intervals, oldest first; none without a seed.
        intervals: Vec<IntervalState>,
    }

    /// A complete interval.
    IntervalState {
        /// When it began, in nanoseconds since 1970.
        start_ns: u64,
        /// When it ended, in nanoseconds since 1970.
        end_ns: u64,
        /// Packets that it contains.
        packets: u64,
        /// Their bytes.
        bytes: u64,
        /// Packets among these that had arrived before it began, and came too late for their own interval.
        late_packets: u64,
        /// Packets among these that arrived after it had ended.
        early_packets: u64,
        /// Packets in records that began in an earlier interval than the one in which they count.
        spanning_packets: u64,
    }

    /// The sketches of a complete interval.
    IntervalSketches {
        /// The version of weir.
        version: String,
        /// The name of the measurement.
        name: String,
        /// When the interval began, in nanoseconds since 1970.
        start_ns: u64,
        /// A sketch file as `weir measure --save` writes it, in base64.
        sketches: String,
        /// The names that the addresses of the most frequent flows, sources and destinations had when it
        /// ended.
        names: Vec<NamedAddress>,
    }
}
