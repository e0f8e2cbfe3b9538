//! The plots of `weir bench measure`, from its results, each with the paper's figures if it has some.

use super::paper;
use super::{FIVE_TUPLES, MIDDLE, NAMES, WIDTHS};
use anyhow::Result;
use serde_json::Value;
use std::path::Path;
use weir_plot::{Plot, Series};

/// The name of the paper's series.
const PAPER: &str = "Agg-Evict's paper";

/// Writes all plots.
pub fn save(results: &Value, directory: &Path) -> Result<()> {
    let rows = results["solutions"].as_array().map_or(&[][..], Vec::as_slice);
    let ns = ("_ns", "average", "ns a packet");
    solutions(rows, ns, |paper| [paper.pure_ns, paper.aggregated_ns]).save(directory, "solutions")?;
    let p99 = ("_p99_ns", "99th percentile of bursts of 32", "ns a packet");
    solutions(rows, p99, |paper| [paper.pure_p99_ns, paper.aggregated_p99_ns]).save(directory, "p99")?;
    let mpps = ("_mpps", "rate (the paper's NIC: at most 14.88 Mpps)", "million packets per second");
    solutions(rows, mpps, |paper| paper.mpps).save(directory, "throughput")?;
    search(results).save(directory, "search")?;
    skews(rows, "zipf", "aggregated_ns").save(directory, "zipf")?;
    popzipf(rows).save(directory, "popzipf")?;
    keys(rows).save(directory, "keys")?;
    kvs(results).save(directory, "kvs")?;
    batch(results).save(directory, "batch")?;
    replacement(results).save(directory, "replacement")?;
    policies(results).save(directory, "policies")
}

fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or(f64::NAN)
}

fn series(name: impl Into<String>, points: Vec<(f64, f64)>, is_other: bool) -> Series {
    Series { name: name.into(), points, is_other }
}

/// Returns the rows with 13-byte keys on this traffic.
fn of<'a>(rows: &'a [Value], traffic: &'a str) -> impl Iterator<Item = &'a Value> {
    rows.iter().filter(move |row| row["traffic"] == traffic && row["key_bytes"] == FIVE_TUPLES.bytes)
}

/// The nine solutions at the middle skew, alone and aggregated, with the paper's figures.
fn solutions(
    rows: &[Value],
    (key, what, axis): (&str, &str, &'static str),
    papers: fn(&paper::Figures) -> [f64; 2],
) -> Plot {
    let places = |arm: &str| {
        let row = |name: &&str| of(rows, "zipf").find(|row| row["name"] == **name && row["skew"] == MIDDLE);
        let point = |(at, name): (usize, &&str)| {
            row(name).map(|row| (at as f64, number(row, &format!("{arm}{key}"))))
        };
        NAMES.iter().enumerate().filter_map(point).collect()
    };
    let papers = |arm: usize| {
        let point = |(at, name): (usize, &&str)| paper::of(name).map(|paper| (at as f64, papers(paper)[arm]));
        NAMES.iter().enumerate().filter_map(point).collect()
    };
    Plot {
        title: format!("{what}: Zipf {MIDDLE}, 13 byte keys; the paper: CAIDA, 4 byte keys, 2.2 GHz"),
        axes: ("", axis),
        bars: NAMES.map(str::to_string).to_vec(),
        series: vec![
            series("alone", places("pure"), false),
            series("aggregated", places("aggregated"), false),
            series(format!("alone, {PAPER}"), papers(0), true),
            series(format!("aggregated, {PAPER}"), papers(1), true),
        ],
    }
}

/// FlowRadar by how the aggregator finds a tag.
fn search(results: &Value) -> Plot {
    let rows = results["flow_radar_search"].as_array().map_or(&[][..], Vec::as_slice);
    let points = |key: &str| rows.iter().enumerate().map(|(at, row)| (at as f64, number(row, key))).collect();
    Plot {
        title: format!(
            "FlowRadar by search of tags: Zipf {MIDDLE}, 13 byte keys; the paper: CAIDA, 4 byte keys"
        ),
        axes: ("how sixteen tags are searched", "ns a packet"),
        bars: rows.iter().filter_map(|row| row["search"].as_str()).map(str::to_string).collect(),
        series: vec![series("ours", points("ns"), false), series(PAPER, points("paper_ns"), true)],
    }
}

/// A line over skews for each of the nine solutions.
fn skews(rows: &[Value], traffic: &str, key: &str) -> Plot {
    let line = |name: &str| {
        let points = of(rows, traffic).filter(|row| row["name"] == name);
        series(name, points.map(|row| (number(row, "skew"), number(row, key))).collect(), false)
    };
    Plot {
        title: "Behind the aggregator, 13 byte keys".to_string(),
        axes: ("skew of a true Zipf distribution", "ns a packet"),
        bars: Vec::new(),
        series: NAMES.into_iter().map(line).collect(),
    }
}

/// FlowRadar over skews of popzipf, as in the paper.
fn popzipf(rows: &[Value]) -> Plot {
    let line = |name: &str, key: &str| {
        let points = of(rows, "popzipf").filter(|row| row["name"] == "flow_radar");
        series(name, points.map(|row| (number(row, "skew"), number(row, key))).collect(), false)
    };
    let papers = paper::FLOW_RADAR_POPZIPF;
    Plot {
        title: "FlowRadar, 13 byte keys; the paper: 4 byte keys, 2.2 GHz".to_string(),
        axes: ("skew of popzipf (not the exponent of a Zipf distribution)", "ns a packet"),
        bars: Vec::new(),
        series: vec![
            line("alone", "pure_ns"),
            line("aggregated", "aggregated_ns"),
            series(format!("alone, {PAPER}"), papers.map(|(skew, pure, _)| (skew, pure)).to_vec(), true),
            series(format!("aggregated, {PAPER}"), papers.map(|(skew, _, ns)| (skew, ns)).to_vec(), true),
        ],
    }
}

/// FlowRadar by key size.
fn keys(rows: &[Value]) -> Plot {
    let bars = |name: &str, key: &str| {
        let row = |bytes: u32| {
            rows.iter().find(|row| {
                row["name"] == "flow_radar"
                    && row["key_bytes"] == bytes
                    && row["traffic"] == "zipf"
                    && row["skew"] == MIDDLE
            })
        };
        let point = |(at, bytes)| row(bytes).map(|row| (at as f64, number(row, key)));
        series(name, WIDTHS.into_iter().enumerate().filter_map(point).collect(), false)
    };
    let papers = |of: fn(&(u32, f64, f64)) -> f64| {
        let figures = paper::FLOW_RADAR_KEYS;
        figures.iter().enumerate().map(|(at, figures)| (at as f64, of(figures))).collect()
    };
    Plot {
        title: format!("FlowRadar by bytes of the key, Zipf {MIDDLE}; the paper: CAIDA, 2.2 GHz"),
        axes: ("bytes of the key", "ns a packet"),
        bars: WIDTHS.iter().map(ToString::to_string).collect(),
        series: vec![
            bars("alone", "pure_ns"),
            bars("aggregated", "aggregated_ns"),
            series(format!("alone, {PAPER}"), papers(|figures| figures.1), true),
            series(format!("aggregated, {PAPER}"), papers(|figures| figures.2), true),
        ],
    }
}

/// FlowRadar by the number of KV arrays.
fn kvs(results: &Value) -> Plot {
    let rows = results["flow_radar_kvs"].as_array().map_or(&[][..], Vec::as_slice);
    let points = |key: &str| rows.iter().map(|row| (number(row, "kvs"), number(row, key))).collect();
    Plot {
        title: format!("FlowRadar behind GRR, Zipf {MIDDLE}, 13 byte keys; the paper: 4 byte keys, 2.2 GHz"),
        axes: ("KV arrays, of sixteen keys each", "ns a packet"),
        bars: Vec::new(),
        series: vec![
            series("alone", points("pure_ns"), false),
            series("aggregated", points("ns"), false),
            series(format!("alone, {PAPER}"), points("paper_pure_ns"), true),
            series(format!("aggregated, {PAPER}"), points("paper_ns"), true),
        ],
    }
}

/// FlowRadar by packets per batch.
fn batch(results: &Value) -> Plot {
    let rows = results["flow_radar_batch"].as_array().map_or(&[][..], Vec::as_slice);
    let points = |key: &str| {
        let has_value = |(_, row): &(usize, &Value)| row[key].is_number();
        rows.iter().enumerate().filter(has_value).map(|(at, row)| (at as f64, number(row, key))).collect()
    };
    Plot {
        title: format!("FlowRadar, Zipf {MIDDLE}, 13 byte keys; the paper: 4 byte keys, 2.2 GHz"),
        axes: ("packets per batch", "ns a packet"),
        bars: rows.iter().map(|row| row["batch"].to_string()).collect(),
        series: vec![
            series("alone", points("pure_ns"), false),
            series("aggregated", points("aggregated_ns"), false),
            series(format!("alone, {PAPER}"), points("paper_pure_ns"), true),
            series(format!("aggregated, {PAPER}"), points("paper_aggregated_ns"), true),
        ],
    }
}

/// The nine solutions behind the paper's two replacement policies.
fn replacement(results: &Value) -> Plot {
    let rows = results["replacement"].as_array().map_or(&[][..], Vec::as_slice);
    let points = |key: &str| rows.iter().enumerate().map(|(at, row)| (at as f64, number(row, key))).collect();
    Plot {
        title: format!("GRR and LRU, Zipf {MIDDLE}, 13 byte keys; the paper: CAIDA, 4 byte keys, 2.2 GHz"),
        axes: ("", "ns a packet"),
        bars: NAMES.map(str::to_string).to_vec(),
        series: vec![
            series("GRR", points("grr_ns"), false),
            series("LRU", points("lru_ns"), false),
            series(format!("GRR, {PAPER}"), points("paper_grr_ns"), true),
            series(format!("LRU, {PAPER}"), points("paper_lru_ns"), true),
        ],
    }
}

/// The parameters over which [`save_chosen`] draws: key of a row, name of the plot, and axis.
const PARAMETERS: [(&str, &str, &str); 4] = [
    ("kvs", "kvs", "KV arrays, of sixteen keys each"),
    ("key_bytes", "keys", "bytes of the key"),
    ("batch", "batch", "packets per batch"),
    ("skew", "zipf", "skew of a true Zipf distribution"),
];

/// Writes a plot over each parameter of which several values were chosen: the average and the 99th
/// percentile of every solution, alone and aggregated, with the first value of all other parameters.
pub fn save_chosen(results: &Value, directory: &Path) -> Result<()> {
    let rows = results["solutions"].as_array().map_or(&[][..], Vec::as_slice);
    let Some(first) = rows.first() else { return Ok(()) };
    let has_several = |key: &str| rows.iter().any(|row| row[key] != first[key]);
    for (key, name, axis) in PARAMETERS {
        if !has_several(key) {
            continue;
        }
        // The number of KV arrays of one size in bytes depends on the width of the key.
        let is_other = |other: &str| other != key && !(key == "key_bytes" && other == "kvs");
        let others = PARAMETERS.map(|(key, ..)| key).into_iter().filter(|other| is_other(other));
        let others: Vec<&str> = others.chain(["aggregator"]).collect();
        let like_first = |row: &&Value| others.iter().all(|other| row[*other] == first[*other]);
        let mut lines = Vec::new();
        for solution in NAMES {
            let of: Vec<&Value> =
                rows.iter().filter(like_first).filter(|row| row["name"] == solution).collect();
            for (value, arm, is_other) in [
                ("aggregated_ns", "", false),
                ("aggregated_p99_ns", ", p99", false),
                ("pure_ns", " alone", true),
            ] {
                let points = of.iter().filter(|row| row[value].is_number());
                let points: Vec<_> = points.map(|row| (number(row, key), number(row, value))).collect();
                if !points.is_empty() {
                    lines.push(series(format!("{solution}{arm}"), points, is_other));
                }
            }
        }
        let plot = Plot {
            title: format!("Behind the aggregator ({})", first["aggregator"].as_str().unwrap_or_default()),
            axes: (axis, "ns a packet"),
            bars: Vec::new(),
            series: lines,
        };
        plot.save(directory, name)?;
    }
    Ok(())
}

/// The aggregator alone: policies over skews, and tags compared one by one.
fn policies(results: &Value) -> Plot {
    let rows = |key: &str| results[key].as_array().cloned().unwrap_or_default();
    let (policies, search) = (rows("policies"), rows("search"));
    let line = |policy: weir_sketch::Policy| {
        let points = policies.iter().filter(|row| row["policy"] == policy.word());
        let points = points.map(|row| (number(row, "skew"), number(row, "ns"))).collect();
        series(policy.word(), points, false)
    };
    let mut all: Vec<Series> = weir_sketch::Policy::ALL.into_iter().map(line).collect();
    let one_by_one = search.iter().map(|row| (number(row, "skew"), number(row, "scalar_ns"))).collect();
    all.push(series(format!("{}, tags one by one", super::POLICY.word()), one_by_one, false));
    Plot {
        title: "The aggregator alone, 13 byte keys".to_string(),
        axes: ("skew of a true Zipf distribution", "ns a packet"),
        bars: Vec::new(),
        series: all,
    }
}
