//! The figures of Agg-Evict's paper, for comparison with ours: Zhou, Alipourfard, Yu, Yang: Accelerating
//! network measurement in software, ACM CCR 48(3), 2018. Xeon E5-2650 v4 at 2.2 GHz, a trace of CAIDA with
//! 0.59 million sources, key of 4 bytes (TwoLevel: 8), 32,000 keys in the aggregator, replacement GRR. Values
//! are taken from the coordinates of its vector graphics.

/// Nanoseconds per packet in the paper: average and 99th percentile, without and with the aggregator.
/// Replacement is GRR, except where LRU is named.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Name of the solution, as in our results.
    pub name: &'static str,
    /// Alone.
    pub pure_ns: f64,
    /// Alone, 99th percentile.
    pub pure_p99_ns: f64,
    /// Behind the aggregator.
    pub aggregated_ns: f64,
    /// Behind the aggregator, 99th percentile.
    pub aggregated_p99_ns: f64,
    /// Behind the aggregator with LRU.
    pub lru_ns: f64,
    /// Million packets per second without loss, alone and behind the aggregator. The NIC's limit is 14.88.
    pub mpps: [f64; 2],
}

/// The nine solutions, as the paper measured them.
pub const NINE: [Figures; 9] = [
    figures("univmon", [323.0, 394.0, 56.4, 112.0, 56.0], [2.92, 14.35]),
    figures("two_level", [276.0, 384.0, 77.8, 139.0, 150.4], [3.24, 8.11]),
    figures("space_saving", [132.0, 157.0, 47.8, 88.0, 46.1], [5.97, 14.5]),
    figures("reversible", [121.0, 144.0, 36.7, 56.0, 41.5], [7.45, 14.7]),
    figures("flow_radar", [108.0, 131.0, 37.0, 56.0, 41.6], [8.11, 14.69]),
    figures("linear_counting", [64.3, 81.0, 33.0, 47.0, 38.0], [10.88, 14.7]),
    figures("count_min", [63.1, 73.0, 32.7, 47.0, 37.6], [13.02, 14.69]),
    figures("flajolet_martin", [56.2, 63.0, 31.2, 43.0, 36.6], [14.63, 14.69]),
    figures("mrac", [38.1, 48.0, 37.8, 46.0, 40.0], [14.65, 14.7]),
];

const fn figures(name: &'static str, ns: [f64; 5], mpps: [f64; 2]) -> Figures {
    let [pure_ns, pure_p99_ns, aggregated_ns, aggregated_p99_ns, lru_ns] = ns;
    Figures { name, pure_ns, pure_p99_ns, aggregated_ns, aggregated_p99_ns, lru_ns, mpps }
}

/// FlowRadar at skews of popzipf: skew, nanoseconds alone, behind the aggregator.
pub const FLOW_RADAR_POPZIPF: [(f64, f64, f64); 8] = [
    (0.0, 118.7, 119.3),
    (0.3, 118.0, 107.0),
    (0.6, 116.0, 76.6),
    (0.9, 113.0, 62.6),
    (1.2, 111.0, 54.9),
    (1.5, 109.0, 49.6),
    (2.1, 106.0, 42.9),
    (3.0, 103.0, 37.5),
];

/// FlowRadar by key size in bytes: nanoseconds alone, behind the aggregator.
pub const FLOW_RADAR_KEYS: [(u32, f64, f64); 4] =
    [(4, 106.0, 38.0), (8, 118.0, 63.0), (12, 133.0, 75.0), (13, 145.0, 84.0)];

/// FlowRadar by the number of KV arrays, of sixteen keys each: nanoseconds behind the aggregator.
pub const FLOW_RADAR_KVS: [(usize, f64); 7] =
    [(100, 63.6), (500, 48.9), (1000, 42.7), (1500, 38.9), (2000, 37.0), (3000, 33.7), (5000, 30.5)];

/// FlowRadar without aggregator, in the same figure.
pub const FLOW_RADAR_KVS_PURE: f64 = 107.0;

/// FlowRadar by packets per batch: nanoseconds alone, behind the aggregator.
pub const FLOW_RADAR_BATCH: [(usize, f64, f64); 2] = [(32, 118.0, 38.6), (8192, 138.0, 52.5)];

/// FlowRadar without aggregator, with a linear search of sixteen tags, with SSE2.
pub const FLOW_RADAR_SEARCH: [(&str, f64); 3] = [("none", 108.0), ("scalar", 55.0), ("vectors", 36.9)];

/// The paper's figures of a solution.
pub fn of(name: &str) -> Option<&'static Figures> {
    NINE.iter().find(|figures| figures.name == name)
}
