//! What a miss costs: the nanoseconds of weir's programs for a frame of which nothing can be learnt
//! (`kernel.bpf_stats_enabled`), over those of the kernel's own way without them.

use std::fs;

use anyhow::{Context, Result};
use lab::Interrupt;
use lab::run::Run;
use lab::spread::Spread;
use serde_json::{Value, json};

use super::bed::{Bed, VXLAN, WEIR};

const STATS: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// Has the kernel keep statistics of programs, until it is dropped.
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

/// What came of it.
pub struct Miss {
    /// Nanoseconds of a packet the kernel's way.
    pub kernel_ns: Spread,
    /// Nanoseconds of all programs that a packet meets when it misses, and when it takes the short way.
    pub miss_ns: Spread,
    pub hit_ns: Spread,
    /// The time of a packet when weir's caches miss over that without them, all in all.
    pub whole: Spread,
}

impl Miss {
    /// Measures it in turns.
    pub fn measure(
        bed: &mut Bed,
        run: &mut Run,
        (rounds, slice_ms): (usize, u32),
        interrupt: &Interrupt,
    ) -> Result<Miss> {
        let order = format!("udp_rr 1 {slice_ms}");
        let (mut kernel, mut hit, mut missed, mut whole) = (vec![], vec![], vec![], vec![]);
        for _ in 0..rounds {
            let plain = packet_ns(&bed.arms[VXLAN].order(run, &order)?);
            kernel.push(plain);
            hit.push(programs_ns(bed, run, &order)?);
            bed.let_miss(true)?;
            missed.push(programs_ns(bed, run, &order)?);
            // The statistics themselves cost time, so this is without.
            whole.push(packet_ns(&bed.arms[WEIR].order(run, &order)?) / plain);
            bed.let_miss(false)?;
            interrupt.sleep(std::time::Duration::ZERO)?;
        }
        let [kernel_ns, hit_ns, miss_ns, whole] = [kernel, hit, missed, whole].map(Spread::of);
        Ok(Miss { kernel_ns, miss_ns, hit_ns, whole })
    }

    /// Returns the cost of a packet that misses over that without weir.
    pub fn ratio(&self) -> f64 {
        1.0 + self.miss_ns.median / self.kernel_ns.median
    }

    /// A line for a person.
    pub fn text(&self) -> String {
        format!(
            "a packet the kernel's way {:.0} ns, weir's programs for one that misses {:.0} ns, for one that \
             does not {:.0} ns: a miss costs {:.3}; all in all {:.3} ({:.3} - {:.3})",
            self.kernel_ns.median,
            self.miss_ns.median,
            self.hit_ns.median,
            self.ratio(),
            self.whole.median,
            self.whole.min,
            self.whole.max
        )
    }

    /// For a program.
    pub fn json(&self) -> Value {
        let of = |spread: Spread| json!({ "median": spread.median, "min": spread.min, "max": spread.max });
        json!({
            "kernel_ns": of(self.kernel_ns), "programs_miss_ns": of(self.miss_ns),
            "programs_hit_ns": of(self.hit_ns), "whole_ratio": of(self.whole),
        })
    }
}

/// Returns the time of one of the two packets of a transaction.
fn packet_ns(answer: &Value) -> f64 {
    let of = |name: &str| answer[name].as_f64().unwrap_or_default();
    of("ns") / of("count") / 2.0
}

/// Returns the nanoseconds that weir's programs have for a packet.
fn programs_ns(bed: &mut Bed, run: &mut Run, order: &str) -> Result<f64> {
    let _statistics = Statistics::keep()?;
    let before = spent_ns(bed, run)?;
    let answer = bed.arms[WEIR].order(run, order)?;
    let spent = spent_ns(bed, run)? - before;
    Ok(spent as f64 / answer["all"].as_f64().unwrap_or_default() / 2.0)
}

/// Returns the nanoseconds that the programs of weir's daemons have run.
fn spent_ns(bed: &Bed, run: &mut Run) -> Result<u64> {
    let mut sum = 0;
    for daemon in &bed.daemons {
        let folder = format!("/proc/{}/fdinfo", run.child(daemon.process()).id());
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {folder}"))? {
            // A file that was closed meanwhile is no program's.
            let text = fs::read_to_string(entry?.path()).unwrap_or_default();
            let spent = text.lines().find_map(|line| line.strip_prefix("run_time_ns:"));
            sum += spent.and_then(|number| number.trim().parse::<u64>().ok()).unwrap_or_default();
        }
    }
    Ok(sum)
}
