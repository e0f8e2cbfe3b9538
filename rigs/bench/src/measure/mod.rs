//! `weir bench measure`: the cost and the accuracy of measurement.
//!
//! It measures the nine solutions of Agg-Evict's paper, each alone and behind the aggregator, on the paper's
//! kinds of traffic, in arms that take turns (`round.rs`), compared with the paper's own figures
//! (`paper.rs`); the accuracy of 600 KB sketches, compared with the exact truth and with rivals on the same
//! packets; and what measurement in the data path costs programs (`in_path.rs`). The paper's parameters can
//! be chosen instead (`chosen.rs`).

mod accuracy;
mod chosen;
mod front;
mod in_path;
mod paper;
mod plots;
mod rivals;
mod round;
mod solutions;
mod stream;
mod text_trace;

use anyhow::Result;
use chosen::Chosen;
use front::{AGGREGATOR, Front, POLICY, alone, pair, sweep};
use round::{ArmCost, CountingMethod, Make, measure};
use serde_json::{Value, json};
use solutions::{ADDRESSES, FIVE_TUPLES, FIVE_TUPLES_V6, FOUR_TUPLES, Keys, NAMES, PAIRS, WIDTHS};
use std::fmt::Display;
use std::path::PathBuf;
pub use stream::Traffic;
use stream::{PacketOrigin, Size};
use weir_sketch::{Gate, Policy, Scalar, Update, Vectors};

/// What to measure, and how thoroughly.
#[derive(clap::Args)]
pub struct MeasureOptions {
    /// A short run: fewer skews, a quarter of the packets, three rounds.
    #[arg(long)]
    quick: bool,
    /// Only the cost of measurement in the data path of programs.
    #[arg(long, conflicts_with = "svg")]
    in_path: bool,
    #[command(flatten)]
    chosen: Chosen,
    /// Also write plots, as SVG files, to this directory.
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// End with one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// The cells of the tables.
struct MeasurePlan {
    size: Size,
    zipf: &'static [f64],
    popzipf: &'static [f64],
    /// Whether to include packet trains and a SYN flood, at the middle skew.
    others: bool,
}

impl MeasurePlan {
    const WHOLE: MeasurePlan = MeasurePlan {
        size: Size::PAPER,
        zipf: &[0.0, 0.6, 0.8, 0.9, 1.0, 1.1, 1.2, 1.5],
        popzipf: &[0.9, 1.2, 1.5, 2.1, 3.0],
        others: true,
    };
    const QUICK: MeasurePlan =
        MeasurePlan { size: Size::QUICK, zipf: &[0.0, 1.1, 1.5], popzipf: &[0.9], others: false };
}

/// The skew for all other comparisons: that of the paper's backbone traffic.
const MIDDLE: f64 = 1.1;

/// A sink for lines of output, shared by all measurements.
type Say<'a> = &'a mut dyn FnMut(&dyn Display) -> Result<()>;

/// Measures, prints tables, writes plots, and returns the JSON.
pub fn run(options: &MeasureOptions, say: Say<'_>) -> Result<Value> {
    let plan = if options.quick { MeasurePlan::QUICK } else { MeasurePlan::WHOLE };
    if options.in_path {
        return Ok(json!({ "in_path": in_path::run(plan.size, say)? }));
    }
    if let Some(directory) = &options.svg {
        std::fs::create_dir_all(directory)?;
    }
    let is_chosen = options.chosen.is_any();
    let results = if is_chosen { options.chosen.run(plan.size, say)? } else { run_plan(&plan, say)? };
    if let Some(directory) = &options.svg {
        let save = if is_chosen { plots::save_chosen } else { plots::save };
        save(&results, directory)?;
        say(&format_args!("plots: {}", directory.display()))?;
    }
    Ok(results)
}

fn run_plan(plan: &MeasurePlan, say: Say<'_>) -> Result<Value> {
    let Size { flows, packets, rounds } = plan.size;
    say(&format_args!(
        "{flows} flows, intervals of {packets} packets in bursts of {}, aggregator of {} KiB, median of \
         {rounds} rounds, ns of processor time per packet",
        round::BURST,
        AGGREGATOR >> 10
    ))?;
    let solutions = all_solutions(plan, say)?;
    let (policies, search) = aggregator_alone(plan, say)?;
    let flow_radar = flow_radar_search(plan, say)?;
    let flow_radar_kvs = flow_radar_kvs(plan, say)?;
    let flow_radar_batch = flow_radar_batch(plan, say)?;
    let replacement = replacement(plan, say)?;
    let (all_nine, all_nine_ns) = all_nine(plan, say)?;
    let in_path = in_path::run(plan.size, say)?;
    let (accuracy, lost) = accuracy_rows(plan, say)?;
    Ok(json!({
        "solutions": solutions,
        "all_nine_ns": all_nine_ns,
        "in_path": in_path,
        "accuracy": accuracy,
        "all_nine": all_nine,
        "policies": policies,
        "search": search,
        "flow_radar_search": flow_radar,
        "flow_radar_kvs": flow_radar_kvs,
        "flow_radar_batch": flow_radar_batch,
        "replacement": replacement,
        "rivals_win": lost,
        "flows": flows,
        "packets": packets,
        "aggregator_bytes": AGGREGATOR,
    }))
}

/// Measures the nine solutions on all traffic with keys of 13 bytes, and with other keys at the middle skew.
fn all_solutions(plan: &MeasurePlan, say: Say<'_>) -> Result<Vec<Value>> {
    let mut traffic: Vec<Traffic> = plan.zipf.iter().map(|skew| Traffic::Zipf(*skew)).collect();
    traffic.extend(plan.popzipf.iter().map(|skew| Traffic::PopZipf(*skew)));
    if plan.others {
        traffic.extend([Traffic::Trains(MIDDLE), Traffic::Flood(MIDDLE)]);
    }
    let mut rows = Vec::new();
    let size = plan.size;
    for traffic in traffic {
        nine::<2, 4, 1>(size, traffic, FIVE_TUPLES, &mut rows, say)?;
    }
    for skew in [MIDDLE, 1.5] {
        nine::<1, 4, 1>(size, Traffic::Zipf(skew), ADDRESSES, &mut rows, say)?;
        nine::<1, 4, 1>(size, Traffic::Zipf(skew), PAIRS, &mut rows, say)?;
        nine::<2, 4, 1>(size, Traffic::Zipf(skew), FOUR_TUPLES, &mut rows, say)?;
        nine::<5, 8, 2>(size, Traffic::Zipf(skew), FIVE_TUPLES_V6, &mut rows, say)?;
    }
    Ok(rows)
}

fn nine<const W: usize, const Q: usize, const L: usize>(
    size: Size,
    traffic: Traffic,
    keys: Keys<W>,
    rows: &mut Vec<Value>,
    say: Say<'_>,
) -> Result<()> {
    let packets = traffic.packets(size, 1, keys.of);
    let cell = MeasuredCell { origin: traffic.origin(), keys, front: Front::OURS, rounds: size.rounds };
    cell.measure::<Q, L>(&NAMES, &packets, rows, say)
}

/// What solutions are measured on, and with which aggregator in front of them.
struct MeasuredCell<const W: usize> {
    origin: PacketOrigin,
    keys: Keys<W>,
    front: Front,
    rounds: usize,
}

impl<const W: usize> MeasuredCell<W> {
    /// Measures solutions on the packets, those without pairs only if the keys have pairs, and appends a row
    /// for each of them.
    fn measure<const Q: usize, const L: usize>(
        &self,
        names: &[&'static str],
        packets: &[Update<W>],
        rows: &mut Vec<Value>,
        say: Say<'_>,
    ) -> Result<()> {
        let MeasuredCell { origin, keys, front, rounds } = self;
        let kvs = front.kvs::<W>();
        say(&format_args!(
            "{origin}, {} byte keys, {kvs} KV arrays, {}{}{}, bursts of {}\n  solution           alone   \
             p99   Mpps   aggregated   p99   Mpps   gain  evicted   off  the paper: alone aggregated gain",
            keys.bytes,
            front.policy.word(),
            if front.is_scalar { ", without SIMD" } else { "" },
            if front.is_always_on { ", always on" } else { "" },
            front.batch,
        ))?;
        for &name in names.iter().filter(|name| keys.has_pair || !solutions::needs_pairs(name)) {
            let [floor, pure, aggregated] = pair::<W, Q, L>(name, *keys, packets, *rounds, *front)?;
            let mut row = json!({ "name": name, "key_bytes": keys.bytes, "kvs": kvs });
            origin.put(&mut row);
            front.put(&mut row);
            pure.put("pure", &mut row);
            aggregated.put("aggregated", &mut row);
            row["evictions"] = json!(aggregated.evictions);
            row["bypassed"] = json!(aggregated.bypassed);
            row["floor_ns"] = json!(floor.ns.median);
            say(&line(name, pure, aggregated))?;
            rows.push(row);
        }
        Ok(())
    }
}

fn line(name: &str, pure: ArmCost, aggregated: ArmCost) -> String {
    let p99 = |reading: ArmCost| reading.p99_ns.unwrap_or(f64::NAN);
    let paper = paper::of(name).map_or(String::new(), |paper| {
        let gain = paper.pure_ns / paper.aggregated_ns;
        format!("{:>19.1} {:>10.1} {gain:>4.1}", paper.pure_ns, paper.aggregated_ns)
    });
    format!(
        "  {name:<16} {:>7.1} {:>5.1} {:>6.2} {:>12.1} {:>5.1} {:>6.2} {:>6.2} {:>8.3} {:>4.0}% {paper}",
        pure.ns.median,
        p99(pure),
        pure.mpps(),
        aggregated.ns.median,
        p99(aggregated),
        aggregated.mpps(),
        pure.ns.median / aggregated.ns.median,
        aggregated.evictions,
        100.0 * aggregated.bypassed,
    )
}

/// Measures the aggregator by itself: replacement policies at all skews, and tags compared at once and one by
/// one.
fn aggregator_alone(plan: &MeasurePlan, say: Say<'_>) -> Result<(Vec<Value>, Vec<Value>)> {
    let (mut policies, mut search) = (Vec::new(), Vec::new());
    say(&"the aggregator alone, 13 byte keys: ns (evictions per packet); tags one by one")?;
    for skew in plan.zipf {
        let packets = Traffic::Zipf(*skew).packets(plan.size, 1, FIVE_TUPLES.of);
        let mut arms: Vec<Make<'_, 2>> = Vec::new();
        for policy in Policy::ALL {
            arms.push(Box::new(move || Box::new(alone::<2, Vectors>(policy, Gate::always_open()))));
        }
        arms.push(Box::new(|| {
            Box::new(alone::<2, Scalar>(POLICY, Gate::always_open())) as Box<dyn CountingMethod<2>>
        }));
        let readings = measure(&packets, plan.size.rounds, &arms);
        let mut text = format!("  zipf {skew:<4}");
        for (policy, reading) in Policy::ALL.into_iter().zip(&readings) {
            let ns = reading.ns.median;
            text += &format!("  {} {ns:.1} ({:.3})", policy.word(), reading.evictions);
            let evictions = reading.evictions;
            policies.push(json!({ "policy": policy.word(), "skew": skew, "ns": ns, "evictions": evictions }));
        }
        let at = Policy::ALL.iter().position(|policy| *policy == POLICY).unwrap_or(0);
        let (vectors, scalar) = (readings[at].ns.median, readings[Policy::ALL.len()].ns.median);
        text += &format!("  {} one by one {scalar:.1}", POLICY.word());
        search.push(json!({ "skew": skew, "vectors_ns": vectors, "scalar_ns": scalar }));
        say(&text)?;
    }
    Ok((policies, search))
}

/// Measures FlowRadar without aggregator, with tags compared one by one, and all at once: the paper's
/// comparison.
fn flow_radar_search(plan: &MeasurePlan, say: Say<'_>) -> Result<Vec<Value>> {
    let packets = Traffic::Zipf(MIDDLE).packets(plan.size, 1, FIVE_TUPLES.of);
    let scalar = Front { is_scalar: true, ..Front::PAPER };
    let readings = sweep("flow_radar", FIVE_TUPLES, &packets, plan.size.rounds, &[scalar, Front::PAPER])?;
    say(&"FlowRadar, zipf 1.1, 13 byte keys, by the aggregator's tag search: ns (the paper: 4 byte keys)")?;
    let mut rows = Vec::new();
    for ((search, paper_ns), reading) in paper::FLOW_RADAR_SEARCH.into_iter().zip(&readings) {
        let ns = reading.ns.median;
        say(&format_args!("  {search:<8} {ns:.1} ({paper_ns})"))?;
        rows.push(json!({ "search": search, "ns": ns, "paper_ns": paper_ns }));
    }
    Ok(rows)
}

/// Measures FlowRadar by the number of KV arrays of the paper's figure.
fn flow_radar_kvs(plan: &MeasurePlan, say: Say<'_>) -> Result<Vec<Value>> {
    let packets = Traffic::Zipf(MIDDLE).packets(plan.size, 1, FIVE_TUPLES.of);
    let papers = paper::FLOW_RADAR_KVS;
    let fronts = papers.map(|(kvs, _)| Front { kvs: Some(kvs), ..Front::PAPER });
    let readings = sweep("flow_radar", FIVE_TUPLES, &packets, plan.size.rounds, &fronts)?;
    say(&"FlowRadar, zipf 1.1, 13 byte keys, by KV arrays of GRR that stay on: ns (the paper: 4 byte keys)")?;
    let (pure_ns, paper_pure_ns) = (readings[0].ns.median, paper::FLOW_RADAR_KVS_PURE);
    say(&format_args!("  none     {pure_ns:.1} ({paper_pure_ns})"))?;
    let mut rows = Vec::new();
    for ((kvs, paper_ns), reading) in papers.into_iter().zip(&readings[1..]) {
        let ns = reading.ns.median;
        say(&format_args!("  {kvs:<8} {ns:.1} ({paper_ns})"))?;
        rows.push(json!({
            "kvs": kvs, "ns": ns, "paper_ns": paper_ns, "evictions": reading.evictions, "pure_ns": pure_ns,
            "paper_pure_ns": paper_pure_ns,
        }));
    }
    Ok(rows)
}

/// Measures FlowRadar by packets per batch.
fn flow_radar_batch(plan: &MeasurePlan, say: Say<'_>) -> Result<Vec<Value>> {
    let packets = Traffic::Zipf(MIDDLE).packets(plan.size, 1, FIVE_TUPLES.of);
    say(&"FlowRadar, zipf 1.1, 13 byte keys, by packets per batch: ns alone, aggregated (the paper)")?;
    let mut rows = Vec::new();
    for batch in [32, 128, 512, 2048, 8192] {
        let front = Front { batch, ..Front::PAPER };
        let readings = sweep("flow_radar", FIVE_TUPLES, &packets, plan.size.rounds, &[front])?;
        let [pure_ns, ns] = [0, 1].map(|at| readings[at].ns.median);
        let paper = paper::FLOW_RADAR_BATCH.into_iter().find(|(of, ..)| *of == batch);
        let papers = paper.map_or(String::new(), |(_, pure_ns, ns)| format!(" ({pure_ns}, {ns})"));
        say(&format_args!("  {batch:<8} {pure_ns:.1}, {ns:.1}{papers}"))?;
        rows.push(json!({
            "batch": batch, "pure_ns": pure_ns, "aggregated_ns": ns,
            "paper_pure_ns": paper.map(|paper| paper.1), "paper_aggregated_ns": paper.map(|paper| paper.2),
        }));
    }
    Ok(rows)
}

/// Measures all nine solutions with the paper's two replacement policies.
fn replacement(plan: &MeasurePlan, say: Say<'_>) -> Result<Vec<Value>> {
    let packets = Traffic::Zipf(MIDDLE).packets(plan.size, 1, FIVE_TUPLES.of);
    let fronts = [Policy::Grr, Policy::Lru].map(|policy| Front { policy, ..Front::PAPER });
    say(&"zipf 1.1, 13 byte keys, GRR and LRU that stay on: ns (the paper: 4 byte keys)")?;
    let mut rows = Vec::new();
    for name in NAMES {
        let readings = sweep(name, FIVE_TUPLES, &packets, plan.size.rounds, &fronts)?;
        let [grr, lru] = [1, 2].map(|at| readings[at].ns.median);
        let paper = paper::of(name).map(|paper| [paper.aggregated_ns, paper.lru_ns]);
        let papers = paper.map_or(String::new(), |[grr, lru]| format!(" ({grr}, {lru})"));
        say(&format_args!("  {name:<16} {grr:>6.1} {lru:>6.1}{papers}"))?;
        let [paper_grr, paper_lru] = [0, 1].map(|at| paper.map(|paper| paper[at]));
        rows.push(json!({
            "name": name, "grr_ns": grr, "lru_ns": lru, "paper_grr_ns": paper_grr, "paper_lru_ns": paper_lru,
        }));
    }
    Ok(rows)
}

/// Measures all nine solutions behind one aggregator, at every true Zipf skew; also returns the cost of a
/// packet at the middle skew.
fn all_nine(plan: &MeasurePlan, say: Say<'_>) -> Result<(Vec<Value>, f64)> {
    let (mut rows, mut middle) = (Vec::new(), f64::NAN);
    say(&"all nine at once, 13 byte keys: ns alone, behind one aggregator (p99), Mpps")?;
    for skew in plan.zipf {
        let packets = Traffic::Zipf(*skew).packets(plan.size, 1, FIVE_TUPLES.of);
        let rounds = plan.size.rounds;
        let [_, pure, aggregated] = pair::<2, 4, 1>("all nine", FIVE_TUPLES, &packets, rounds, Front::OURS)?;
        say(&format_args!(
            "  zipf {skew:<4} {:>7.1} {:>7.1} ({:.1}) {:>7.2}",
            pure.ns.median,
            aggregated.ns.median,
            aggregated.p99_ns.unwrap_or(f64::NAN),
            aggregated.mpps()
        ))?;
        let mut row = json!({ "skew": skew });
        pure.put("pure", &mut row);
        aggregated.put("aggregated", &mut row);
        rows.push(row);
        if *skew == MIDDLE {
            middle = aggregated.ns.median;
        }
    }
    Ok((rows, middle))
}

/// Measures accuracy, and describes what rivals do better.
fn accuracy_rows(plan: &MeasurePlan, say: Say<'_>) -> Result<(Vec<Value>, Vec<String>)> {
    let interval = accuracy::interval(plan.size);
    let heavy = accuracy::heavy(&interval, plan.size.rounds)?;
    say(&format_args!(
        "heavy flows (from {} % of all packets on) of 600 KB, zipf {MIDDLE}: F1, ARE of their sizes, ns per \
         packet",
        accuracy::HEAVY * 100.0
    ))?;
    for one in &heavy {
        say(&format_args!("  {:<26} {:.4} {:.4} {:>7.1}", one.name, one.f1, one.are, one.ns))?;
    }
    let lost = accuracy::lost(&heavy);
    lost.iter().chain(&rivals::left_out()).try_for_each(|sentence| say(sentence))?;
    let others = accuracy::others(&interval, plan.size)?;
    say(&"everything else of 600 KB, compared with the exact values")?;
    for row in &others {
        let text = |key: &str| row[key].as_str().unwrap_or_default().to_string();
        let value = row["value"].as_f64().unwrap_or(f64::NAN);
        say(&format_args!("  {:<16} {:<20} {value:.4}", text("name"), text("metric")))?;
    }
    let mut rows = accuracy::rows(&heavy);
    rows.extend(others);
    Ok((rows, lost))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TINY: MeasurePlan = MeasurePlan {
        size: Size { flows: 2000, packets: 4096, rounds: 1 },
        zipf: &[MIDDLE],
        popzipf: &[0.9],
        others: true,
    };

    /// Checks the fields that scripts read, and that no number is missing.
    #[test]
    fn a_tiny_run_holds_the_stable_fields() {
        let results = run_plan(&TINY, &mut |_| Ok(())).expect("nothing depends on the machine");
        let solutions = results["solutions"].as_array().expect("rows");
        // Four kinds of traffic with 13-byte keys; at two skews, keys of 4 bytes (no pairs), 8, 12 and 37.
        assert_eq!(solutions.len(), 4 * 9 + 2 * (8 + 9 + 9 + 9));
        for row in solutions {
            const KEYS: [&str; 7] =
                ["key_bytes", "kvs", "skew", "pure_ns", "aggregated_ns", "pure_mpps", "aggregated_mpps"];
            for key in KEYS {
                assert!(row[key].as_f64().is_some_and(|value| value >= 0.0), "{key}: {row}");
            }
            for key in ["pure_p99_ns", "aggregated_p99_ns"] {
                assert!(row.get(key).is_some(), "{key}: {row}");
            }
            assert!(row["name"].is_string() && row["traffic"].is_string(), "{row}");
        }
        assert!(results["all_nine_ns"].as_f64().is_some_and(|ns| ns > 0.0));
        for row in results["in_path"].as_array().expect("rows") {
            assert!(
                row["program"].is_string() && row["off_mpps"].is_f64() && row["on_mpps"].is_f64(),
                "{row}"
            );
            assert_eq!(row["packets_lost"], 0, "{row}");
        }
        let accuracy = results["accuracy"].as_array().expect("rows");
        assert!(accuracy.iter().any(|row| row["rival"] == "heavykeeper TopK"));
        for row in accuracy {
            assert!(row["name"].is_string() && row["metric"].is_string() && row["value"].is_f64(), "{row}");
            assert_eq!(row["rival"].is_string(), row["rival_value"].is_f64(), "{row}");
        }
        let directory = std::env::temp_dir().join(format!("weir-plots-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory for files");
        plots::save(&results, &directory).expect("every plot has its numbers");
        let plots = std::fs::read_dir(&directory).expect("it exists").count();
        std::fs::remove_dir_all(&directory).expect("it exists");
        assert_eq!(plots, 11);
    }
}
