//! The plots of `weir bench xenoflow`, from its results.

use super::thesis;
use anyhow::Result;
use serde_json::Value;
use std::path::Path;
use weir_plot::{Plot, Series};

/// The axis of loads.
const LOAD: &str = "load, percent of the most that the worker forwards";

/// Writes a plot for each figure, named after it.
pub fn save(results: &Value, directory: &Path) -> Result<()> {
    let figures = &results["figures"];
    rate(&figures["7.3"]).save(directory, "7.3-rate")?;
    bandwidth(&figures["7.4"]).save(directory, "7.4-bandwidth")?;
    published(&figures["7.5"], "Katran's published rate beside ours").save(directory, "7.5-published")?;
    let title = "The thesis's rate beside ours; we have no rate of Kakao's that we could check";
    published(&figures["7.6"], title).save(directory, "7.6-published")?;
    if figures["7.7"]["scenarios"].is_array() {
        round_trip(&figures["7.7"]).save(directory, "7.7-round-trip")?;
        round_trip_by_length(&figures["7.7"]).save(directory, "7.7-round-trip-by-length")?;
    }
    if !figures["7.8"]["scenarios"].is_array() {
        return Ok(());
    }
    let latency = ("Added to the median of the load itself, AF_XDP on veth", "microseconds added");
    load(results, latency, |row| row["added_us"].as_f64()).save(directory, "latency-of-the-load")?;
    let title = ("Loss of the load itself, AF_XDP on veth", "percent lost");
    load(results, title, |row| row["loss"].as_f64().map(|loss| 100.0 * loss))
        .save(directory, "loss-of-the-load")?;
    if figures["7.8"]["with_back_ends"].is_array() {
        loss(&figures["7.8"]).save(directory, "7.8-loss")?;
    }
    Ok(())
}

/// A bar for each balancer.
fn published(figure: &Value, title: &str) -> Plot {
    let rows = figure["rows"].as_array().map_or(&[][..], Vec::as_slice);
    let point = |(at, row): (usize, &Value)| Some(at as f64).zip(row["mpps"].as_f64());
    Plot {
        title: title.to_string(),
        axes: ("balancer", "million packets per second"),
        bars: rows.iter().map(|row| row["who"].as_str().unwrap_or_default().to_string()).collect(),
        series: vec![Series {
            name: "rate".to_string(),
            points: rows.iter().enumerate().filter_map(point).collect(),
            is_other: false,
        }],
    }
}

/// A line for each distribution and executor over the load.
fn round_trip(figure: &Value) -> Plot {
    let mut lines =
        by_place(&figure["scenarios"], |(_, row)| row["percent"].as_f64().zip(row["median_us"].as_f64()));
    lines.extend(thesis_round_trip(&lines));
    let most = figure["most_mpps"].as_f64().unwrap_or(f64::NAN);
    Plot {
        title: format!("DNS round trip under load (100 %: {most:.3} Mpps); the thesis gives only the shape"),
        axes: (LOAD, "median, microseconds"),
        bars: Vec::new(),
        series: lines,
    }
}

/// The shape of the thesis's curve: the round trip does not depend on load. The thesis gives no numbers, so
/// the line is at the height of our first point.
fn thesis_round_trip(ours: &[Series]) -> Option<Series> {
    let points = || ours.iter().flat_map(|series| &series.points);
    let (_, height) = *points().next()?;
    let end = points().map(|point| point.0).fold(0.0, f64::max);
    let name = "the thesis: flat".to_string();
    Some(Series { name, points: vec![(0.0, height), (end, height)], is_other: true })
}

/// Loss by load, a line for each distribution and executor.
fn loss(figure: &Value) -> Plot {
    let percent = |(_, row): (usize, &Value)| {
        // Without load, nothing can be lost.
        let lost = row["loss"].as_f64().or((row["percent"] == 0).then_some(0.0));
        row["percent"].as_f64().zip(lost.map(|lost| 100.0 * lost))
    };
    let mut series = by_place(&figure["with_back_ends"], percent);
    series.push(thesis_loss());
    Plot {
        title: "Loss, AF_XDP or the kernel on veth; the thesis: from 97 % of its most".to_string(),
        axes: (LOAD, "percent lost"),
        bars: Vec::new(),
        series,
    }
}

/// Bars for each distribution and executor at each length of frames.
fn round_trip_by_length(figure: &Value) -> Plot {
    let first = figure["by_length"][0]["rows"].as_array().map_or(&[][..], Vec::as_slice);
    Plot {
        title: "DNS round trip by length of the load's frames; the thesis: independent of load".to_string(),
        axes: ("bytes of a frame", "median, microseconds"),
        bars: first.iter().map(|row| row["frame"].to_string()).collect(),
        series: by_place(&figure["by_length"], |(at, row)| Some(at as f64).zip(row["median_us"].as_f64())),
    }
}

/// Returns the point for a row and its index.
type PointOf = fn((usize, &Value)) -> Option<(f64, f64)>;

/// A series for each distribution and executor.
fn by_place(places: &Value, point: PointOf) -> Vec<Series> {
    let places = places.as_array().map_or(&[][..], Vec::as_slice);
    let series = |place: &Value| {
        let rows = place["rows"].as_array().map_or(&[][..], Vec::as_slice);
        let [name, executor] = ["name", "executor"].map(|key| place[key].as_str().unwrap_or_default());
        let points = rows.iter().enumerate().filter_map(point).collect();
        Series { name: format!("{name}, {executor}"), points, is_other: false }
    };
    places.iter().map(series).collect()
}

/// The rate by payload.
fn rate(figure: &Value) -> Plot {
    let title = "Rate by payload of UDP: one core of ours; the thesis: an ASIC";
    by_payload(figure, title, "Mpps", ["mpps", "kernel_mpps", "thesis_mpps"])
}

/// The bandwidth by payload.
fn bandwidth(figure: &Value) -> Plot {
    let title =
        "Bandwidth by payload of UDP: one core of ours; the thesis: an ASIC, its rate times the payload";
    by_payload(figure, title, "Gbit/s of payload", ["gbit_s", "kernel_gbit_s", "thesis_gbit_s"])
}

/// Bars for both executors and for the thesis. The positions are evenly spaced labels, because short payloads
/// are close together.
fn by_payload(figure: &Value, title: &str, axis: &'static str, keys: [&str; 3]) -> Plot {
    let rows = figure["rows"].as_array().map_or(&[][..], Vec::as_slice);
    let points = |key: &str| {
        let point = |(at, row): (usize, &Value)| row[key].as_f64().map(|value| (at as f64, value));
        rows.iter().enumerate().filter_map(point).collect()
    };
    let series = |name: &str, key, is_other| Series { name: name.to_string(), points: points(key), is_other };
    Plot {
        title: title.to_string(),
        axes: ("bytes of payload", axis),
        bars: rows.iter().map(|row| row["payload"].to_string()).collect(),
        series: vec![
            series("weir, memory ports", keys[0], false),
            series("weir, kernel test runs", keys[1], false),
            series("XenoFlow's thesis", keys[2], true),
        ],
    }
}

/// What the thesis says about loss: there is none up to a certain rate. It does not say how much is lost
/// above that rate.
fn thesis_loss() -> Series {
    let most = thesis::RATES.iter().map(|(_, mpps)| *mpps).fold(0.0, f64::max);
    let points = vec![(0.0, 0.0), (100.0 * thesis::LOSS_ABOVE / most, 0.0)];
    Series { name: "XenoFlow's thesis".to_string(), points, is_other: true }
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
    use super::*;
    use serde_json::json;

    #[test]
    fn the_thesis_is_beside_ours_where_it_has_a_figure() {
        let payload = |bytes: u32| {
            let theirs = thesis::rate(bytes);
            json!({ "payload": bytes, "mpps": 20.0, "kernel_mpps": 90.0, "thesis_mpps": theirs })
        };
        let plot = rate(&json!({ "rows": [payload(22), payload(24), payload(64)] }));
        assert_eq!([0, 1].map(|at| plot.series[at].points[2]), [(2.0, 20.0), (2.0, 90.0)]);
        assert_eq!(plot.series[2].points, [(0.0, 98.0), (1.0, 92.0)]);
    }

    #[test]
    fn figures_without_root_have_plots_where_they_were_measured() {
        let rows = [json!({ "payload": 2, "mpps": 10.0, "kernel_mpps": 90.0, "thesis_mpps": 98.0 })];
        let no_root = json!({ "why": "no root" });
        let figures = crate::xenoflow::figures::json(&rows, &no_root, &no_root);
        assert_eq!(published(&figures["7.6"], "title").bars.len(), 3);
        let directory = std::env::temp_dir().join(format!("weir-figures-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory for files");
        save(&json!({ "figures": figures }), &directory).expect("every plot has its numbers");
        let files = std::fs::read_dir(&directory).expect("it exists");
        let name = |file: std::fs::DirEntry| file.file_name().to_string_lossy().into_owned();
        let mut names: Vec<String> = files.map(|file| name(file.expect("it is listed"))).collect();
        std::fs::remove_dir_all(&directory).expect("it exists");
        names.sort();
        assert_eq!(names, ["7.3-rate.svg", "7.4-bandwidth.svg", "7.5-published.svg", "7.6-published.svg"]);
    }

    #[test]
    fn a_round_trip_has_a_line_for_each_executor() {
        let rows = json!([
            { "percent": 0, "frame": 60, "median_us": 30.0 },
            { "percent": 50, "frame": 60, "median_us": null }
        ]);
        let place = |executor: &str| json!({ "name": "single", "executor": executor, "rows": rows });
        let places = json!([place("engine"), place("kernel")]);
        let figure = json!({ "scenarios": places, "by_length": places, "most_mpps": 0.5 });
        let [lines, bars] = [round_trip(&figure), round_trip_by_length(&figure)];
        assert_eq!(lines.series[1].name, "single, kernel");
        assert_eq!(lines.series[0].points, [(0.0, 30.0)]);
        assert_eq!(lines.series[2].points, [(0.0, 30.0); 2], "the thesis has a shape");
        assert_eq!((bars.bars.len(), &bars.series[0].points[..]), (2, &[(0.0, 30.0)][..]));
    }

    #[test]
    fn what_has_no_latency_is_no_point() {
        let rows = json!([{ "percent": 10, "added_us": 5.0 }, { "percent": 100, "added_us": null }]);
        let results = json!({ "load": { "scenarios": [{ "name": "single", "rows": rows }] } });
        let plot = load(&results, ("title", "us"), |row| row["added_us"].as_f64());
        assert_eq!(plot.series[0].points, [(10.0, 5.0)]);
    }

    #[test]
    fn loss_has_a_line_for_each_executor_and_one_for_the_thesis() {
        let rows = json!([{ "percent": 0, "loss": null }, { "percent": 125, "loss": 0.25 }]);
        let place = |executor: &str| json!({ "name": "single", "executor": executor, "rows": rows });
        let plot = loss(&json!({ "with_back_ends": [place("engine"), place("kernel")] }));
        assert_eq!(plot.series[1].name, "single, kernel");
        assert_eq!(plot.series[1].points, [(0.0, 0.0), (125.0, 25.0)]);
        let [_, (last, lost)] = plot.series[2].points[..] else { panic!("the thesis has a line") };
        assert!((96.0..98.0).contains(&last) && lost == 0.0, "95 of 98 Mpps are carried: {last}");
    }
}
