//! `weir bench changes`: a daemon forwards 80 % of its highest rate without loss, while something changes.
//! Measures how long breaths take, how many frames are lost, and how late the timers of apps are.
//!
//! The daemon is a real one, with its own threads, reloads and socket; everything but its worker shares
//! another core with this bench. The traffic comes from memory (`port/arrivals.rs`), not from a veth or a
//! NIC, because the kernel's share of the cost of a frame is larger than weir's and would be measured
//! instead.
//!
//! Only losses caused by weir itself should count. Therefore the clock of the traffic stops while the worker
//! does not have its core (`core_lost_ms`), and frames lost right after that are counted separately
//! (`lost_disturbed`). Neighbours that use the same memory slow a core down without taking it, threefold on
//! some machines. Therefore a second without changes is measured before and after each phase
//! (`control_lost`): a phase with losses next to a control with losses is repeated.

mod reading;
mod work;

use super::million::{self, Traffic};
use super::peers::Setting;
use super::selection::Selection;
use anyhow::{Context, Result, bail};
use reading::Reading;
pub use reading::{Buckets, buckets, durations};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde_json::{Value, json};
use std::fmt::Display;
use std::process::Command;
use std::time::{Duration, Instant};
use weir_bed::Run;
use weir_lab::Interrupt;
use weir_lab::weir::Weir;

/// Duration of a phase, unless its work determines when it ends.
const PHASE: Duration = Duration::from_secs(5);

/// Duration of the control before and after a phase.
const CONTROL: Duration = Duration::from_secs(1);

/// Maximum number of attempts at a phase until its controls lose nothing.
const ATTEMPTS: usize = 4;

/// How long a daemon may take to start or reload.
const PATIENCE: Duration = Duration::from_secs(600);

/// How long the search for the rate may take: it restarts when neighbours disturb it.
const SEARCH: Duration = Duration::from_secs(120);

/// The work of a phase. Returns the number of events.
type Work = fn(&Session) -> Result<f64>;

/// The phases in order. Ageing comes first, since flows start to age when the daemon starts.
const PHASES: [(&str, Work); 6] = [
    ("idle", work::nothing),
    ("aging", work::age),
    ("scrape", work::scrape),
    ("changes", work::changes),
    ("weights", work::weights),
    ("reload", work::reload),
];

/// A daemon under traffic.
struct Session {
    weir: Weir,
    interrupt: Interrupt,
    entries: u32,
    traffic: Traffic,
}

impl Session {
    fn start(run: &mut Run, entries: u32) -> Result<Session> {
        let setting = Setting::new(0, false);
        if setting.core == setting.other {
            bail!("it needs two cores: one for the worker, one for everything else");
        }
        let mut other = CpuSet::new();
        other.set(setting.other);
        // The daemon inherits the affinity; its worker moves to its own core.
        sched_setaffinity(None, &other).context("a core that was allowed is not")?;
        let traffic = Traffic {
            line: "share: 80%",
            once: 1,
            busy: true,
            core: Some(setting.core),
            idle_timeout: "30s",
        };
        let interrupt = Interrupt::on_signals()?;
        let text = million::configuration(entries, &traffic);
        let command = |program: &str| Command::new(program);
        let weir = Weir::start_within(PATIENCE, run, "weir", command, &text, &interrupt)?;
        Ok(Session { weir, interrupt, entries, traffic })
    }

    /// Waits until the port has found its rate. Returns the highest rate without loss.
    fn find_rate(&self) -> Result<f64> {
        let mut rate = 0;
        let found = self.interrupt.wait(SEARCH, || {
            rate = self.line()?["extra"]["rate_without_loss"].as_u64().unwrap_or(0);
            std::thread::sleep(Duration::from_millis(200));
            Ok(rate > 0)
        })?;
        if !found {
            bail!("frames are lost at every rate");
        }
        Ok(rate as f64)
    }

    /// Returns the line of `weir show ports` for the port with the traffic.
    fn line(&self) -> Result<Value> {
        let ports = self.weir.show("ports")?;
        let line = ports["ports"].as_array().into_iter().flatten().find(|port| port["name"] == "line");
        line.cloned().context("port `line`")
    }

    /// Measures a phase, repeatedly if neighbours disturb it. Returns the attempt that lost least.
    fn phase(&self, name: &'static str, work: Work) -> Result<Value> {
        // Ageing cannot be repeated, since aged flows are gone.
        let attempts = if name == "aging" { 1 } else { ATTEMPTS };
        let (lost, mut attempt) = (|phase: &Value| phase["lost"].as_u64().unwrap_or(u64::MAX), 1);
        let mut best = self.attempt(name, work)?;
        while lost(&best) > 0 && best["control_lost"] != 0 && attempt < attempts {
            let next = self.attempt(name, work)?;
            if lost(&next) < lost(&best) {
                best = next;
            }
            attempt += 1;
        }
        best["attempts"] = attempt.into();
        Ok(best)
    }

    fn attempt(&self, name: &'static str, work: Work) -> Result<Value> {
        let before = self.control()?;
        let mut phase = self.measure(name, work)?;
        phase["control_lost"] = (before + self.control()?).into();
        Ok(phase)
    }

    /// Returns the frames lost while nothing changes.
    fn control(&self) -> Result<u64> {
        let before = Reading::take(self)?.lost;
        self.interrupt.sleep(CONTROL)?;
        Ok(Reading::take(self)?.lost - before)
    }

    fn measure(&self, name: &'static str, work: Work) -> Result<Value> {
        let before = Reading::take(self)?;
        let start = Instant::now();
        let done = work(self)?;
        let seconds = start.elapsed().as_secs_f64();
        let after = Reading::take(self)?;
        let processor = durations(&before.processor, &after.processor);
        let wall = durations(&before.wall, &after.wall);
        let late = durations(&before.late, &after.late);
        let us = |ns: Option<u64>| ns.map(|ns| ns as f64 / 1e3);
        Ok(json!({
            "name": name,
            "lost": after.lost - before.lost,
            "lost_disturbed": after.lost_disturbed - before.lost_disturbed,
            "breath_us_p9999": us(processor.quantile_ns(0.9999)),
            "event_late_ms": late.quantile_ns(1.0).map(|ns| ns as f64 / 1e6),
            "rate_per_s": done / seconds,
            "breath_us_longest": us(processor.quantile_ns(1.0)),
            "breath_wall_us_p9999": us(wall.quantile_ns(0.9999)),
            "breaths": processor.count(),
            "frames": after.received - before.received,
            "core_lost_ms": (after.core_lost_us - before.core_lost_us) as f64 / 1e3,
            "seconds": seconds,
        }))
    }
}

/// Measures the phases named by `only` (all when empty), and reports each.
pub fn run(entries: u32, only: &[String], say: impl Fn(&dyn Display) -> Result<()>) -> Result<Value> {
    let only = Selection::new(only, PHASES.iter().map(|phase| phase.0))?;
    let mut run = Run::begin(false)?;
    let session = Session::start(&mut run, entries)?;
    let rate = session.find_rate()?;
    say(&format_args!("{entries} entries; {:.2} Mpps without loss, 80 % of which is sent", rate / 1e6))?;
    say(&"phase      lost (control)  p99.99 us (wall)  longest us  event late ms      per s  core lost ms")?;
    let mut phases = Vec::new();
    for (name, work) in PHASES {
        if only.has(name) {
            let phase = session.phase(name, work)?;
            say(&row(&phase))?;
            phases.push(phase);
        }
    }
    session.weir.stop(&mut run)?;
    Ok(json!({ "phases": phases, "entries": entries, "rate_without_loss": rate }))
}

fn row(phase: &Value) -> String {
    let number = |key: &str| phase[key].as_f64().unwrap_or(f64::NAN);
    format!(
        "{:<9} {:>5} {:>9} {:>8.1} ({:>7.1}) {:>11.1} {:>14.2} {:>10.1} {:>13.1}",
        phase["name"].as_str().unwrap_or_default(),
        phase["lost"],
        format!("({})", phase["control_lost"]),
        number("breath_us_p9999"),
        number("breath_wall_us_p9999"),
        number("breath_us_longest"),
        number("event_late_ms"),
        number("rate_per_s"),
        number("core_lost_ms"),
    )
}
