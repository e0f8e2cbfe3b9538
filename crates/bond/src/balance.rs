//! When loads are rebalanced. The algorithm itself is in [`super::rebalance`].

use super::config::Bond;
use super::elephants::Lanes;
use super::rebalance::{Carrier, Plan, Rebalance, View};

/// The rebalancing algorithm and the time of its next run.
pub(super) struct Balance {
    pub rebalance: Rebalance,
    /// Whether the counters for the next run are being read.
    reading: bool,
    /// Whether counters have been read at least once. Traffic before that belongs to no interval.
    pub counted: bool,
}

impl Balance {
    /// State before any counters were read.
    pub fn new(bond: &Bond) -> Balance {
        let totals = vec![0; bond.size() as usize];
        let rebalance = Rebalance::new(bond.rule, bond.rebalance_ms, 0, &totals);
        Balance { rebalance, reading: false, counted: false }
    }

    /// Takes over the configuration after a reload.
    pub fn adapt(&mut self, now_ns: u64, bond: &Bond, totals: &[u64]) {
        self.rebalance.set_rule(bond.rule);
        self.rebalance.set_interval(bond.rebalance_ms, now_ns, totals);
    }

    /// Processes counters that were read. Returns whether a run was waiting for them.
    pub fn count(&mut self, now_ns: u64, bond: &Bond, totals: &[u64]) -> bool {
        if !std::mem::replace(&mut self.counted, true) {
            self.rebalance = Rebalance::new(bond.rule, bond.rebalance_ms, now_ns, totals);
        }
        std::mem::take(&mut self.reading)
    }

    /// When the counters must be read for the next run.
    pub fn wake_ns(&self) -> Option<u64> {
        self.rebalance.wake_ns().filter(|_| !self.reading)
    }

    /// Whether it is time to read the counters; if so, records that they are being read.
    pub fn reads(&mut self, now_ns: u64) -> bool {
        let due = self.wake_ns().is_some_and(|at_ns| at_ns <= now_ns);
        self.reading |= due;
        due
    }

    /// Runs the algorithm if it is time, or if the operator asked (`asked`).
    pub fn run(&mut self, now_ns: u64, asked: bool, lanes: &Lanes<'_>, carriers: &[Carrier]) -> Option<Plan> {
        let view = view(lanes, carriers);
        if asked { Some(self.rebalance.run(now_ns, view)) } else { self.rebalance.step(now_ns, view) }
    }

    /// The moves a run would make now.
    pub fn plan(&self, lanes: &Lanes<'_>, carriers: &[Carrier]) -> Plan {
        self.rebalance.plan(view(lanes, carriers))
    }
}

fn view<'a>(lanes: &'a Lanes<'_>, carriers: &'a [Carrier]) -> View<'a> {
    View { totals: &lanes.totals, slots: &lanes.slots, carriers }
}
