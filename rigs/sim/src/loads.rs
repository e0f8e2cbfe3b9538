//! Flow sizes and arrivals.

use weir_packet::random::Random;

/// Bytes, and the share of flows up to that size; interpolated linearly.
type Sizes = &'static [(f64, f64)];

/// Web search: DCTCP, SIGCOMM'10, as in HKUST-SING/TrafficGenerator `conf/DCTCP_CDF.txt`.
const WEB_SEARCH: Sizes = &[
    (0.0, 0.0),
    (10e3, 0.15),
    (20e3, 0.2),
    (30e3, 0.3),
    (50e3, 0.4),
    (80e3, 0.53),
    (200e3, 0.6),
    (1e6, 0.7),
    (2e6, 0.8),
    (5e6, 0.9),
    (10e6, 0.97),
    (30e6, 1.0),
];

/// Data mining: VL2, SIGCOMM'09, as in `conf/VL2_CDF.txt` there.
const DATA_MINING: Sizes = &[
    (0.0, 0.0),
    (180.0, 0.1),
    (216.0, 0.2),
    (560.0, 0.3),
    (900.0, 0.4),
    (1100.0, 0.5),
    (1870.0, 0.6),
    (3160.0, 0.7),
    (10e3, 0.8),
    (400e3, 0.9),
    (3.16e6, 0.95),
    (100e6, 0.98),
    (1e9, 1.0),
];

/// A flow size distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Load {
    /// Queries and updates of a search engine: half are below 80 KB, the mean is 1.71 MB.
    WebSearch,
    /// A cluster of MapReduce jobs: half are below 1.1 KB, the mean is 12.7 MB.
    DataMining,
}

impl Load {
    fn sizes(self) -> Sizes {
        match self {
            Load::WebSearch => WEB_SEARCH,
            Load::DataMining => DATA_MINING,
        }
    }

    /// The mean size, bytes.
    #[must_use]
    pub fn mean(self) -> f64 {
        self.sizes().windows(2).map(|two| (two[1].1 - two[0].1) * f64::midpoint(two[0].0, two[1].0)).sum()
    }

    /// Draws a size, bytes, at least 1.
    pub fn draw(self, random: &mut Random) -> u64 {
        let share = random.uniform();
        let sizes = self.sizes();
        let above = sizes.iter().position(|size| size.1 > share).unwrap_or(sizes.len() - 1);
        let ((from, low), (to, high)) = (sizes[above - 1], sizes[above]);
        (from + (to - from) * (share - low) / (high - low)).ceil().max(1.0) as u64
    }
}

/// Draws the time to the next arrival of a Poisson process, ns.
pub fn draw_gap(mean_ns: f64, random: &mut Random) -> u64 {
    (-mean_ns * (1.0 - random.uniform()).ln()).min(1e18) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_those_of_the_tables() {
        assert!((Load::WebSearch.mean() / 1.71e6 - 1.0).abs() < 0.01, "{}", Load::WebSearch.mean());
        assert!((Load::DataMining.mean() / 12.7e6 - 1.0).abs() < 0.01, "{}", Load::DataMining.mean());
        let mut random = Random::new(1);
        let drawn: f64 = (0..200_000).map(|_| Load::WebSearch.draw(&mut random) as f64).sum();
        assert!((drawn / 200_000.0 / Load::WebSearch.mean() - 1.0).abs() < 0.02);
        let gaps: u64 = (0..200_000).map(|_| draw_gap(5000.0, &mut random)).sum();
        assert!((gaps as f64 / 200_000.0 / 5000.0 - 1.0).abs() < 0.01);
    }
}
