//! The cost of a miss: the nanoseconds that weir's programs take for a frame from which nothing can be learnt
//! (`kernel.bpf_stats_enabled`), relative to those of the slow path without them.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use weir_bed::Run;
use weir_lab::Interrupt;
use weir_lab::spread::ResultSpread;
use weir_papers::Oncache;

use super::bed::{OverlayBed, VXLAN, WEIR};

const STATS: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// Makes the kernel keep BPF program statistics, until it is dropped.
struct Statistics(String);

impl Statistics {
    fn keep() -> Result<Statistics> {
        let before = fs::read_to_string(STATS).with_context(|| format!("cannot read {STATS}"))?;
        fs::write(STATS, "1").with_context(|| format!("cannot write {STATS}"))?;
        Ok(Statistics(before))
    }
}

impl Drop for Statistics {
    fn drop(&mut self) {
        let _ = fs::write(STATS, &self.0);
    }
}

/// The result, in nanoseconds per packet.
pub struct Miss {
    /// The slow path in total, without weir.
    pub kernel_ns: ResultSpread,
    /// All programs that a packet passes when it misses, and when it takes the fast path, including the cost
    /// of the statistics.
    pub miss_ns: ResultSpread,
    pub hit_ns: ResultSpread,
    /// The cost of the statistics per program.
    pub statistics_ns: ResultSpread,
}

/// Number of programs that a packet passes when it misses: at the pod, the uplink, the other uplink, the
/// other pod.
const PROGRAMS: f64 = 4.0;
/// Runs of a program that does nothing.
const RUNS: u32 = 100_000;

impl Miss {
    /// Measures in turns.
    pub fn measure(
        bed: &mut OverlayBed,
        run: &mut Run,
        (rounds, slice_ms): (usize, u32),
        interrupt: &Interrupt,
    ) -> Result<Miss> {
        let order = |test: &str| format!("{test} 1 {slice_ms}");
        let (mut kernel, mut hit, mut missed, mut statistics) = (vec![], vec![], vec![], vec![]);
        let mut nothing = Oncache::load()?;
        for _ in 0..rounds {
            let plain = bed.arms[VXLAN].order(run, &order("udp_one_way"))?;
            let of = |name: &str| plain[name].as_f64().unwrap_or_default();
            kernel.push(of("ns") / of("count"));
            let keep = Statistics::keep()?;
            hit.push(programs_ns(bed, run, &order("udp_stream"))?);
            missed.push(programs_ns(bed, run, &order("udp_one_way"))?);
            statistics.push(nothing.statistics_ns(RUNS)?);
            drop(keep);
            interrupt.sleep(Duration::ZERO)?;
        }
        let [kernel_ns, hit_ns, miss_ns, statistics_ns] =
            [kernel, hit, missed, statistics].map(ResultSpread::of);
        Ok(Miss { kernel_ns, miss_ns, hit_ns, statistics_ns })
    }

    /// Returns the cost of a packet that misses, relative to that without weir.
    pub fn ratio(&self) -> f64 {
        let own = PROGRAMS * self.statistics_ns.median;
        1.0 + (self.miss_ns.median - own) / self.kernel_ns.median
    }

    /// The result as a line of text.
    pub fn text(&self) -> String {
        format!(
            "a packet on the slow path {:.0} ns, weir's programs for one that misses {:.0} ns, for one that \
             does not {:.0} ns, of which statistics are {:.0} ns for each of four and three programs: a miss \
             costs {:.3}",
            self.kernel_ns.median,
            self.miss_ns.median,
            self.hit_ns.median,
            self.statistics_ns.median,
            self.ratio(),
        )
    }

    /// The result as JSON.
    pub fn json(&self) -> Value {
        let of =
            |spread: ResultSpread| json!({ "median": spread.median, "min": spread.min, "max": spread.max });
        json!({
            "kernel_ns": of(self.kernel_ns), "programs_miss_ns": of(self.miss_ns),
            "programs_hit_ns": of(self.hit_ns), "statistics_ns": of(self.statistics_ns),
        })
    }
}

/// Returns the nanoseconds that weir's programs take per packet.
fn programs_ns(bed: &mut OverlayBed, run: &mut Run, order: &str) -> Result<f64> {
    let before = spent_ns(bed, run)?;
    let answer = bed.arms[WEIR].order(run, order)?;
    let spent = spent_ns(bed, run)? - before;
    Ok(spent as f64 / answer["count"].as_f64().unwrap_or_default())
}

/// Returns the total run time of the programs of weir's daemons, in nanoseconds.
fn spent_ns(bed: &OverlayBed, run: &mut Run) -> Result<u64> {
    let mut sum = 0;
    for daemon in &bed.daemons {
        let folder = format!("/proc/{}/fdinfo", run.child(daemon.process()).id());
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {folder}"))? {
            // A file descriptor that was closed in the meantime does not refer to a program.
            let text = fs::read_to_string(entry?.path()).unwrap_or_default();
            let spent = text.lines().find_map(|line| line.strip_prefix("run_time_ns:"));
            sum += spent.and_then(|number| number.trim().parse::<u64>().ok()).unwrap_or_default();
        }
    }
    Ok(sum)
}
