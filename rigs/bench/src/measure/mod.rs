//! `weir bench measure`: the cost and the accuracy of measurement.
//!
//! It measures the nine solutions of Agg-Evict's paper, each alone and behind the aggregator, on the paper's
//! kinds of traffic, in arms that take turns (`round.rs`), compared with the paper's own figures
//! (`paper.rs`); the accuracy of 600 KB sketches, compared with the exact truth and with rivals on the same
//! packets; and what measurement in the data path costs programs (`in_path.rs`).

mod accuracy;
mod in_path;
mod paper;
mod plots;
mod rivals;
mod round;
mod solutions;
mod stream;

use anyhow::Result;
use round::{Aggregated, ArmCost, CountingMethod, Make, Nothing, Pure, SEED, measure};
use serde_json::{Value, json};
use solutions::{ADDRESSES, FIVE_TUPLES, FIVE_TUPLES_V6, Keys, NAMES, PAIRS, solution};
use std::fmt::Display;
use std::path::PathBuf;
use stream::Size;
pub use stream::Traffic;
use weir_sketch::{Aggregator, Compare, Gate, Policy, Scalar, Update, Vectors};

/// Bytes of the aggregator: 29,000 keys of 13 bytes (the paper has 32,000 keys of 4 bytes).
const AGGREGATOR: usize = 1 << 20;

/// Its replacement policy, except where policies are compared.
const POLICY: Policy = Policy::MinCount;

/// What to measure, and how thoroughly.
#[derive(clap::Args)]
pub struct MeasureOptions {
    /// A short run: fewer skews, a quarter of the packets, three rounds.
    #[arg(long)]
    quick: bool,
    /// Only the cost of measurement in the data path of programs.
    #[arg(long, conflicts_with = "svg")]
    in_path: bool,
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
    let results = run_plan(&plan, say)?;
    if let Some(directory) = &options.svg {
        plots::save(&results, directory)?;
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
        "rivals_win": lost,
        "flows": flows,
        "packets": packets,
        "aggregator_bytes": AGGREGATOR,
    }))
}

/// Returns the arms of a sketch: nothing, alone, and behind an aggregator whose gate knows the cost of both.
fn pair<const W: usize, const Q: usize, const L: usize>(
    name: &'static str,
    keys: Keys<W>,
    packets: &[Update<W>],
    rounds: usize,
) -> Result<Vec<ArmCost>> {
    drop(solution::<W, Q, L>(name, keys.source)?);
    let sketch = move || solution::<W, Q, L>(name, keys.source).expect("it was created before");
    let pure = || -> Make<'_, W> { Box::new(move || Box::new(Pure::new(sketch()))) };
    // Measure what a lookup and an update cost on this traffic: the gate closes when aggregation would lose.
    let look_up: Make<'_, W> = Box::new(|| Box::new(alone::<W, Vectors>(POLICY, Gate::always_open())));
    let costs = measure(packets, 1, &[pure(), look_up]);
    let gate = Gate::for_costs(costs[1].ns.median, costs[0].ns.median);
    let aggregated: Make<'_, W> =
        Box::new(move || Box::new(Aggregated::new(aggregator::<W, Vectors>(POLICY, gate), sketch())));
    Ok(measure(packets, rounds, &[Box::new(|| Box::new(Nothing)), pure(), aggregated]))
}

fn aggregator<const W: usize, M: Compare>(policy: Policy, gate: Gate) -> Aggregator<W, M> {
    Aggregator::comparing(AGGREGATOR, policy, gate, &SEED).expect("it is larger than a row")
}

/// Returns an aggregator whose evictions are not counted.
fn alone<const W: usize, M: Compare>(policy: Policy, gate: Gate) -> Aggregated<W, M> {
    Aggregated::new(aggregator(policy, gate), Box::new(|_| ()))
}

/// Measures the nine solutions on all traffic with keys of 13 bytes, and with other keys at the middle skew.
fn all_solutions(plan: &MeasurePlan, say: Say<'_>) -> Result<Vec<Value>> {
    let mut traffic: Vec<Traffic> = plan.zipf.iter().map(|skew| Traffic::Zipf(*skew)).collect();
    traffic.extend(plan.popzipf.iter().map(|skew| Traffic::PopZipf(*skew)));
    if plan.others {
        traffic.extend([Traffic::Trains(MIDDLE), Traffic::Flood(MIDDLE)]);
    }
    let mut rows = Vec::new();
    for traffic in traffic {
        nine::<2, 4, 1>(plan, traffic, FIVE_TUPLES, &mut rows, say)?;
    }
    for skew in [MIDDLE, 1.5] {
        nine::<1, 4, 1>(plan, Traffic::Zipf(skew), ADDRESSES, &mut rows, say)?;
        nine::<1, 4, 1>(plan, Traffic::Zipf(skew), PAIRS, &mut rows, say)?;
        nine::<5, 8, 2>(plan, Traffic::Zipf(skew), FIVE_TUPLES_V6, &mut rows, say)?;
    }
    Ok(rows)
}

fn nine<const W: usize, const Q: usize, const L: usize>(
    plan: &MeasurePlan,
    traffic: Traffic,
    keys: Keys<W>,
    rows: &mut Vec<Value>,
    say: Say<'_>,
) -> Result<()> {
    let packets = traffic.packets(plan.size, 1, keys.of);
    say(&format_args!(
        "{} {}, {} byte keys\n  solution           alone   p99   Mpps   aggregated   p99   Mpps   gain  \
         evicted  the paper: alone aggregated gain",
        traffic.name(),
        traffic.skew(),
        keys.bytes
    ))?;
    for name in NAMES {
        if name == "two_level" && !keys.has_pair {
            continue;
        }
        let readings = pair::<W, Q, L>(name, keys, &packets, plan.size.rounds)?;
        let [floor, pure, aggregated] = [0, 1, 2].map(|at| readings[at]);
        let mut row = json!({ "name": name, "key_bytes": keys.bytes });
        traffic.put(&mut row);
        pure.put("pure", &mut row);
        aggregated.put("aggregated", &mut row);
        row["evictions"] = json!(aggregated.evictions);
        row["floor_ns"] = json!(floor.ns.median);
        say(&line(name, pure, aggregated))?;
        rows.push(row);
    }
    Ok(())
}

fn line(name: &str, pure: ArmCost, aggregated: ArmCost) -> String {
    let p99 = |reading: ArmCost| reading.p99_ns.unwrap_or(f64::NAN);
    let paper = paper::of(name).map_or(String::new(), |paper| {
        let gain = paper.pure_ns / paper.aggregated_ns;
        format!("{:>19.1} {:>10.1} {gain:>4.1}", paper.pure_ns, paper.aggregated_ns)
    });
    format!(
        "  {name:<16} {:>7.1} {:>5.1} {:>6.2} {:>12.1} {:>5.1} {:>6.2} {:>6.2} {:>8.3} {paper}",
        pure.ns.median,
        p99(pure),
        pure.mpps(),
        aggregated.ns.median,
        p99(aggregated),
        aggregated.mpps(),
        pure.ns.median / aggregated.ns.median,
        aggregated.evictions,
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
    let sketch = || solution::<2, 4, 1>("flow_radar", FIVE_TUPLES.source).expect("it was created before");
    let arms: Vec<Make<'_, 2>> = vec![
        Box::new(|| Box::new(Pure::new(sketch()))),
        Box::new(|| Box::new(Aggregated::new(aggregator::<2, Scalar>(POLICY, Gate::default()), sketch()))),
        Box::new(|| Box::new(Aggregated::new(aggregator::<2, Vectors>(POLICY, Gate::default()), sketch()))),
    ];
    let readings = measure(&packets, plan.size.rounds, &arms);
    say(&"FlowRadar, zipf 1.1, 13 byte keys, by the aggregator's tag search: ns (the paper: 4 byte keys)")?;
    let mut rows = Vec::new();
    for ((search, paper_ns), reading) in paper::FLOW_RADAR_SEARCH.into_iter().zip(&readings) {
        let ns = reading.ns.median;
        say(&format_args!("  {search:<8} {ns:.1} ({paper_ns})"))?;
        rows.push(json!({ "search": search, "ns": ns, "paper_ns": paper_ns }));
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
        let readings = pair::<2, 4, 1>("all nine", FIVE_TUPLES, &packets, plan.size.rounds)?;
        let (pure, aggregated) = (readings[1], readings[2]);
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
        // Four kinds of traffic with 13-byte keys; at two skews, keys of 4 bytes (no pairs), 8 and 37.
        assert_eq!(solutions.len(), 4 * 9 + 2 * (8 + 9 + 9));
        for row in solutions {
            for key in ["key_bytes", "skew", "pure_ns", "aggregated_ns", "pure_mpps", "aggregated_mpps"] {
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
        assert_eq!(plots, 7);
    }
}
