//! When loads are evened out, and what is known of them: the rule itself is [`super::rebalance`].

use super::config::Bond;
use super::elephants::Lanes;
use super::rebalance::{Carrier, Plan, Rebalance, View};

/// The rule, and when it is applied next.
pub(super) struct Balance {
    pub rebalance: Rebalance,
    /// The totals that the next run needs are being read.
    reading: bool,
    /// Totals have been read once: what was carried before is nobody's load.
    pub counted: bool,
}

impl Balance {
    /// Nothing was counted yet.
    pub fn new(bond: &Bond) -> Balance {
        let totals = vec![0; bond.size() as usize];
        let rebalance = Rebalance::new(bond.rule, bond.rebalance_ms, 0, &totals);
        Balance { rebalance, reading: false, counted: false }
    }

    /// After a reload: the rule and the interval as configured now.
    pub fn adapt(&mut self, now_ns: u64, bond: &Bond, totals: &[u64]) {
        self.rebalance.set_rule(bond.rule);
        self.rebalance.set_interval(bond.rebalance_ms, now_ns, totals);
    }

    /// Totals were read. Whether a run has waited for them.
    pub fn count(&mut self, now_ns: u64, bond: &Bond, totals: &[u64]) -> bool {
        if !std::mem::replace(&mut self.counted, true) {
            self.rebalance = Rebalance::new(bond.rule, bond.rebalance_ms, now_ns, totals);
        }
        std::mem::take(&mut self.reading)
    }

    /// When the totals are to be read for the next run.
    pub fn wake_ns(&self) -> Option<u64> {
        self.rebalance.wake_ns().filter(|_| !self.reading)
    }

    /// Whether it is time to read the totals; they are being read then.
    pub fn reads(&mut self, now_ns: u64) -> bool {
        let due = self.wake_ns().is_some_and(|at_ns| at_ns <= now_ns);
        self.reading |= due;
        due
    }

    /// A run: if it is time, or because the operator asked.
    pub fn run(&mut self, now_ns: u64, asked: bool, lanes: &Lanes<'_>, carriers: &[Carrier]) -> Option<Plan> {
        let view = view(lanes, carriers);
        if asked { Some(self.rebalance.run(now_ns, view)) } else { self.rebalance.step(now_ns, view) }
    }

    /// What a run would do.
    pub fn plan(&self, lanes: &Lanes<'_>, carriers: &[Carrier]) -> Plan {
        self.rebalance.plan(view(lanes, carriers))
    }
}

fn view<'a>(lanes: &'a Lanes<'_>, carriers: &'a [Carrier]) -> View<'a> {
    View { totals: &lanes.totals, slots: &lanes.slots, carriers }
}
