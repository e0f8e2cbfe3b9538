//! The plots of `weir bench xenoflow`, from its results.

use anyhow::Result;
use serde_json::Value;
use std::path::Path;
use weir_plot::{Plot, Series};

/// Writes all plots.
pub fn save(results: &Value, directory: &Path) -> Result<()> {
    rate(results).save(directory, "rate")?;
    if results["load"]["scenarios"].is_null() {
        return Ok(());
    }
    let latency = ("Added to the median, AF_XDP on veth", "microseconds added");
    load(results, latency, |row| row["added_us"].as_f64()).save(directory, "latency")?;
    let loss = ("Loss, AF_XDP on veth; the thesis: above 95 Mpps", "percent lost");
    load(results, loss, |row| row["loss"].as_f64().map(|loss| 100.0 * loss)).save(directory, "loss")
}

/// The rate by payload. Positions are labels, because short payloads are close together.
fn rate(results: &Value) -> Plot {
    let rows = results["rate"].as_array().map_or(&[][..], Vec::as_slice);
    let points = |key: &str| {
        let point = |(at, row): (usize, &Value)| row[key].as_f64().map(|mpps| (at as f64, mpps));
        rows.iter().enumerate().filter_map(point).collect()
    };
    let series = |name: &str, key, is_other| Series { name: name.to_string(), points: points(key), is_other };
    Plot {
        title: "Rate by payload of UDP: one core of ours; the thesis: an ASIC".to_string(),
        axes: ("bytes of payload", "Mpps"),
        bars: rows.iter().map(|row| row["payload"].to_string()).collect(),
        series: vec![
            series("weir, memory ports", "mpps", false),
            series("XenoFlow's thesis", "thesis_mpps", true),
        ],
    }
}

/// A line for each scenario over the offered load.
fn load(results: &Value, (title, axis): (&str, &'static str), value: fn(&Value) -> Option<f64>) -> Plot {
    let scenarios = results["load"]["scenarios"].as_array().map_or(&[][..], Vec::as_slice);
    let line = |scenario: &Value| {
        let rows = scenario["rows"].as_array().map_or(&[][..], Vec::as_slice);
        let points = rows.iter().filter_map(|row| row["percent"].as_f64().zip(value(row)));
        let name = scenario["name"].as_str().unwrap_or_default().to_string();
        Series { name, points: points.collect(), is_other: false }
    };
    let most = results["load"]["most_mpps"].as_f64().unwrap_or(f64::NAN);
    Plot {
        title: format!("{title} (100 %: {most:.3} Mpps)"),
        axes: ("load, percent of the most that could be sent", axis),
        bars: Vec::new(),
        series: scenarios.iter().map(line).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::thesis;
    use super::*;
    use serde_json::json;

    #[test]
    fn the_thesis_is_beside_ours_where_it_has_a_figure() {
        let payload =
            |bytes: u32| json!({ "payload": bytes, "mpps": 20.0, "thesis_mpps": thesis::rate(bytes) });
        let plot = rate(&json!({ "rate": [payload(22), payload(24), payload(64)] }));
        assert_eq!(plot.series[0].points.len(), 3);
        assert_eq!(plot.series[1].points, [(0.0, 98.0), (1.0, 92.0)]);
    }

    #[test]
    fn what_has_no_latency_is_no_point() {
        let rows = json!([{ "percent": 10, "added_us": 5.0 }, { "percent": 100, "added_us": null }]);
        let results = json!({ "load": { "scenarios": [{ "name": "single", "rows": rows }] } });
        let plot = load(&results, ("title", "us"), |row| row["added_us"].as_f64());
        assert_eq!(plot.series[0].points, [(10.0, 5.0)]);
    }
}
