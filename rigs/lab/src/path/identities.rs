//! Predictions for the test bed from hashing alone, and whether the runs agree. If they do not, the bed does
//! not hash ports as a fabric does, or something other than the elephant slows flows down.

use serde_json::{Value, json};

use super::cell::{ElephantStarts, Regime};
use super::node::Scheme;
use super::rows::Row;
use super::statistics::{Share, at};
use super::topology::LINKS;

/// Significance level: a prediction outside the corresponding interval disagrees. In a good bed, one check in
/// a hundred does.
const DOUBT: f64 = 0.01;
/// The minimum time of a run's last flow, as a multiple of the median of the same scheme without elephant,
/// for the run to count as hit by the elephant. Without elephant, runs differ by a few percent; a flow on the
/// elephant's link at least waits for its queue.
const HIT: f64 = 1.25;
/// Number of DOCA-AR's probes per flow. DOCA-AR fails if the ports of all probes lead to the elephant's link.
const PROBES: i32 = 4;

/// A predicted share of runs.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The scheme of the runs.
    scheme: Scheme,
    /// Flows per run.
    flows: usize,
    /// The predicted share of runs that the elephant hits.
    expected: f64,
    seen: Share,
}

impl Identity {
    /// Returns the identities that the rows can check: those of schemes that place a flow permanently, by
    /// hashing.
    #[must_use]
    pub fn of(rows: &[Row]) -> Vec<Identity> {
        let of = |row: &Row| {
            let cell = row.cell;
            let expected = match row.arm.scheme {
                Scheme::Ecmp => any(cell.flows, 1.0 / LINKS as f64),
                Scheme::DocaAr => any(cell.flows, (LINKS as f64).powi(-PROBES)),
                Scheme::Adaptive | Scheme::OneSided | Scheme::LetFlow | Scheme::Spray => return None,
            };
            let is_predicted = cell.elephant == ElephantStarts::Before && cell.regime == Regime::Time;
            if !is_predicted || row.arm.rehash {
                return None;
            }
            let without = |other: &&Row| other.arm == row.arm && other.cell == cell.without_elephant();
            let limit = HIT * at(&rows.iter().find(without)?.max_ms, 0.5);
            let seen = row.max_ms.iter().filter(|&&time| time > limit).count();
            let seen = Share { seen, runs: row.max_ms.len() };
            Some(Identity { scheme: row.arm.scheme, flows: cell.flows, expected, seen })
        };
        rows.iter().filter_map(of).collect()
    }

    /// Returns true if the observation agrees with the prediction.
    #[must_use]
    pub fn holds(&self) -> bool {
        let (low, high) = self.seen.interval(DOUBT);
        (low..=high).contains(&self.expected)
    }

    /// The result as a line of text.
    #[must_use]
    pub fn text(&self) -> String {
        let Identity { scheme, flows, expected, seen: Share { seen, runs } } = self;
        let (low, high) = self.seen.interval(DOUBT);
        let says = if self.holds() { "agrees" } else { "DISAGREES" };
        format!(
            "{} with {flows} flows: the elephant hit {seen} of {runs} runs, {:.1} % are predicted \
             ({:.1} - {:.1} %): {says}",
            scheme.name(),
            expected * 100.0,
            low * 100.0,
            high * 100.0
        )
    }

    /// The result as JSON. This format is stable.
    #[must_use]
    pub fn json(&self) -> Value {
        let (low, high) = self.seen.interval(DOUBT);
        json!({
            "scheme": self.scheme.name(),
            "flows": self.flows,
            "runs": self.seen.runs,
            "hit": self.seen.seen,
            "expected_share": self.expected,
            "interval": [low, high],
            "holds": self.holds(),
        })
    }
}

/// The probability that at least one of `flows` flows meets the elephant, which each meets with probability
/// `share`.
fn any(flows: usize, share: f64) -> f64 {
    1.0 - (1.0 - share).powi(flows as i32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::cell::Cell;
    use crate::path::node::PathScheme;

    fn identity(scheme: Scheme, flows: usize, hit: usize, runs: usize) -> Identity {
        let cell = |elephant| Cell { regime: Regime::Time, flows, elephant };
        let arm = PathScheme { scheme, rehash: false };
        let row = |elephant, times: Vec<f64>| Row::new(cell(elephant), arm, times);
        let mut hits = vec![30.0; runs - hit];
        hits.extend(vec![200.0; hit]);
        let rows = [row(ElephantStarts::Never, vec![27.0; 5]), row(ElephantStarts::Before, hits)];
        let found = Identity::of(&rows);
        assert_eq!(found.len(), 1);
        found[0].clone()
    }

    /// DOCA-AR's authors measured that 26 and 30 of 30 runs of ECMP were hit, and 1 and 4 of DOCA-AR's.
    #[test]
    fn the_published_measurement_agrees() {
        for (scheme, flows, hit, expected) in [
            (Scheme::Ecmp, 10, 26, 0.944),
            (Scheme::Ecmp, 50, 30, 1.0),
            (Scheme::DocaAr, 10, 1, 0.038),
            (Scheme::DocaAr, 50, 4, 0.178),
        ] {
            let found = identity(scheme, flows, hit, 30);
            assert!(found.holds() && (found.expected - expected).abs() < 0.001, "{}", found.text());
        }
    }

    #[test]
    fn a_bed_that_does_not_hash_disagrees() {
        // All flows are on one link, which is the elephant's in a quarter of the runs, and probes see
        // nothing.
        for (scheme, hit) in [(Scheme::Ecmp, 8), (Scheme::DocaAr, 8)] {
            let found = identity(scheme, 10, hit, 30);
            assert!(!found.holds() && found.text().ends_with("DISAGREES"), "{}", found.text());
        }
    }
}
