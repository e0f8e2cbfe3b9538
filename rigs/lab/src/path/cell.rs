//! The cells of the comparison, and the samples of their runs.

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::node::{PathScheme, Scheme};

/// How large messages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Regime {
    /// So large that ten flows without elephant take 27 ms, as DOCA-AR's did on 40 Gbit/s links: flow times
    /// then relate to retransmission timers as they did there.
    Time,
    /// 5 MB, as DOCA-AR's.
    Size,
}

impl Regime {
    /// The name in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Regime::Time => "time",
            Regime::Size => "size",
        }
    }

    /// Bytes of a message, given the rate of a link in Mbit/s.
    #[must_use]
    pub fn bytes(self, rate_mbit: u32) -> usize {
        match self {
            // 5 MB at 15.4 Gbit/s, the rate that the hosts reached in DOCA-AR's measurements.
            Regime::Time => 325 * rate_mbit as usize,
            Regime::Size => 5_000_000,
        }
    }
}

/// Whether, and when, an elephant fills one of the links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElephantStarts {
    /// No elephant.
    Never,
    /// Before the flows, so that a probe can have seen it.
    Before,
    /// After the flows, so that it hits some of them in place.
    After,
}

impl ElephantStarts {
    /// The name in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ElephantStarts::Never => "never",
            ElephantStarts::Before => "before",
            ElephantStarts::After => "after",
        }
    }
}

/// A cell of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// How large messages are.
    pub regime: Regime,
    /// Number of concurrent flows.
    pub flows: usize,
    /// When the elephant starts.
    pub elephant: ElephantStarts,
}

impl Cell {
    /// Returns the same cell without elephant.
    #[must_use]
    pub fn without_elephant(self) -> Cell {
        Cell { elephant: ElephantStarts::Never, ..self }
    }
}

/// A run, with the times of its flows (at least one).
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The cell that was measured.
    pub cell: Cell,
    /// How ports were chosen.
    pub arm: PathScheme,
    /// The time of each flow, in milliseconds.
    pub flow_ms: Vec<f64>,
}

impl Sample {
    /// The time of the last flow, in milliseconds: MaxFCT of DOCA-AR's authors.
    #[must_use]
    pub fn max_ms(&self) -> f64 {
        self.flow_ms.iter().copied().fold(0.0, f64::max)
    }

    /// The sample as a line of text.
    #[must_use]
    pub fn text(&self) -> String {
        let Cell { regime, flows, elephant } = self.cell;
        let (arm, regime, elephant) = (self.arm.name(), regime.name(), elephant.name());
        format!("{arm:<14} {flows} flows, {regime}, elephant {elephant}: {:.1} ms", self.max_ms())
    }

    fn json(&self, conditions: [u32; 2]) -> Value {
        let [rate_mbit, elephant_percent] = conditions;
        json!({
            "regime": self.cell.regime.name(),
            "flows": self.cell.flows,
            "elephant_starts": self.cell.elephant.name(),
            "scheme": self.arm.scheme.name(),
            "txrehash": u32::from(self.arm.rehash),
            "flow_ms": self.flow_ms,
            "rate_mbit": rate_mbit,
            "elephant_percent": elephant_percent,
        })
    }

    fn of(value: &Value, conditions: [u32; 2]) -> Option<Sample> {
        let named = |key: &str, name: &str| value[key] == name;
        let regime = [Regime::Time, Regime::Size].into_iter().find(|one| named("regime", one.name()))?;
        let starts = [ElephantStarts::Never, ElephantStarts::Before, ElephantStarts::After];
        let elephant = starts.into_iter().find(|one| named("elephant_starts", one.name()))?;
        let scheme = Scheme::ALL.into_iter().find(|one| named("scheme", one.name()))?;
        let flow_ms: Option<Vec<f64>> = value["flow_ms"].as_array()?.iter().map(Value::as_f64).collect();
        let flow_ms = flow_ms.filter(|times| !times.is_empty())?;
        let arm = PathScheme { scheme, rehash: value["txrehash"].as_u64()? == 1 };
        let [rate_mbit, elephant_percent] = conditions;
        let is_alike = value["rate_mbit"] == rate_mbit && value["elephant_percent"] == elephant_percent;
        let flows = usize::try_from(value["flows"].as_u64()?).ok()?;
        is_alike.then_some(Sample { cell: Cell { regime, flows, elephant }, arm, flow_ms })
    }
}

/// Reads the samples of a file, one JSON object per line; none if there is no file. `conditions` are the rate
/// of a link in Mbit/s, and the elephant's rate in percent of that; they must match those in the file.
///
/// # Errors
/// A line is not a sample, or was taken under other conditions.
pub fn read_samples(file: &Path, conditions: [u32; 2]) -> Result<Vec<Sample>> {
    let text = match fs::read_to_string(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        text => text.with_context(|| file.display().to_string())?,
    };
    let mut samples = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let sample = serde_json::from_str(line).ok().and_then(|value| Sample::of(&value, conditions));
        let place = || format!("{}:{}", file.display(), at + 1);
        samples.push(sample.with_context(|| format!("{}: no sample under these conditions", place()))?);
    }
    Ok(samples)
}

/// Appends samples to a file.
///
/// # Errors
/// The file cannot be written, or a sample has no flows.
pub fn add_samples(file: &Path, samples: &[Sample], conditions: [u32; 2]) -> Result<()> {
    ensure!(samples.iter().all(|sample| !sample.flow_ms.is_empty()), "a run needs flows");
    let lines: String = samples.iter().map(|sample| format!("{}\n", sample.json(conditions))).collect();
    let mut out = fs::OpenOptions::new().append(true).create(true).open(file)?;
    out.write_all(lines.as_bytes()).with_context(|| file.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_read_back_and_others_refused() {
        let file = std::env::temp_dir().join(format!("weir-samples-{}", std::process::id()));
        let _ = fs::remove_file(&file);
        assert_eq!(read_samples(&file, [200, 100]).unwrap(), []);
        let cell = Cell { regime: Regime::Size, flows: 2, elephant: ElephantStarts::After };
        let arm = PathScheme { scheme: Scheme::Adaptive, rehash: true };
        let sample = Sample { cell, arm, flow_ms: vec![1.5, 2.0] };
        for _ in 0..2 {
            add_samples(&file, std::slice::from_ref(&sample), [200, 100]).unwrap();
        }
        assert_eq!(read_samples(&file, [200, 100]).unwrap(), [sample.clone(), sample]);
        let error = read_samples(&file, [200, 200]).unwrap_err().to_string();
        assert!(error.ends_with(":1: no sample under these conditions"), "{error}");
        fs::remove_file(&file).unwrap();
    }
}
