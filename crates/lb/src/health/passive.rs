//! Passive checks: a back end that leaves the SYNs of new flows unanswered gets no new flows, before its
//! active check fails. See README.md.
//!
//! The evidence is what the FLOW pipe counts anyway ([`Flows::unanswered`]): flows whose SYN the client had
//! to retransmit, and flows that the back end reset. Each flow counts once, so a client that keeps
//! retransmitting one SYN is one piece of evidence.

use super::app::{LbApp, Service, Timer};
use std::collections::{HashMap, VecDeque};
use weir_app::{Action, Level};
use weir_program::GroupId;
use weir_program::census::Flows;

/// How many times per window the counts of a service are read.
const READS: u64 = 4;

/// When a back end is suspect, as configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passive {
    /// The minimum number of unanswered flows in a window.
    pub unanswered: u64,
    /// The minimum share of unanswered flows among those that began in the window, in thousandths.
    pub share: u32,
    /// The length of a window, in nanoseconds.
    pub within_ns: u64,
    /// How long a suspect back end gets no new flows, in nanoseconds.
    pub for_ns: u64,
}

/// Why a back end gets no new flows, and until when.
#[derive(Clone, Debug)]
pub(super) struct Suspicion {
    pub until_ns: u64,
    /// Consecutive good checks since then. As many as it takes to bring a server up end the suspicion early.
    passed: u32,
    pub why: String,
}

/// Observations of a service's new flows.
#[derive(Debug, Default)]
pub(super) struct Watched {
    /// Snapshots of its targets' counts, oldest first.
    reads: VecDeque<Vec<Flows>>,
    /// The time before which no further back end becomes suspect.
    rests_until_ns: u64,
}

/// New flows of a target within a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct New {
    begun: u64,
    unanswered: u64,
}

impl Passive {
    /// Whether the share of unanswered flows indicates that a back end does not work.
    fn is_bad(&self, new: New) -> bool {
        new.unanswered > 0
            && u128::from(new.unanswered) * 1000 >= u128::from(new.begun) * u128::from(self.share)
    }

    /// Returns the target to suspect: the worst one, provided that another one answers.
    fn worst(&self, targets: &[(usize, New)]) -> Option<(usize, New)> {
        let works = |(_, new): &(usize, New)| new.begun > 0 && !self.is_bad(*new);
        let bad = |(_, new): &&(usize, New)| new.unanswered >= self.unanswered && self.is_bad(*new);
        let worst = targets.iter().filter(bad).max_by_key(|(_, new)| new.unanswered);
        worst.filter(|_| targets.iter().any(works)).copied()
    }

    fn reads_every_ns(&self) -> u64 {
        self.within_ns / READS
    }
}

impl Watched {
    /// Records counts. Returns each target's new flows since the window began.
    fn note(&mut self, flows: &[Flows]) -> Vec<New> {
        self.reads.push_back(flows.to_vec());
        if self.reads.len() as u64 > READS + 1 {
            self.reads.pop_front();
        }
        let since = |(now, then): (&Flows, &Flows)| New {
            begun: now.begun.saturating_sub(then.begun),
            unanswered: now.unanswered.saturating_sub(then.unanswered),
        };
        flows.iter().zip(&self.reads[0]).map(since).collect()
    }
}

impl LbApp {
    /// Begins to read the counts of services with passive checks.
    pub(super) fn begin_passive(&mut self, now_ns: u64) {
        for (at, service) in self.services.iter().enumerate() {
            if service.passive.is_some() {
                self.timers.insert((now_ns, Timer::Passive(at)));
            }
        }
    }

    /// Requests the counts of a service.
    pub(super) fn read_flows(&mut self, at: usize, now_ns: u64, actions: &mut Vec<Action>) {
        let service = &self.services[at];
        let (Some(passive), Some(group)) = (service.passive, service.group) else { return };
        self.timers.insert((now_ns.saturating_add(passive.reads_every_ns()), Timer::Passive(at)));
        actions.push(Action::ReadFlows(group));
    }

    /// Judges a service's back ends by the flows of its targets.
    pub(super) fn count_flows(
        &mut self,
        group: GroupId,
        flows: &[Flows],
        now_ns: u64,
        actions: &mut Vec<Action>,
    ) {
        let Some(at) = self.services.iter().position(|service| service.group == Some(group)) else { return };
        let service = &mut self.services[at];
        let Some(passive) = service.passive else { return };
        let new = service.watched.note(flows);
        if now_ns < service.watched.rests_until_ns {
            return;
        }
        // Only targets that currently get new flows are compared.
        let service = &self.services[at];
        let gets = |(place, row): (usize, &super::app::Row)| {
            let new = *new.get(usize::from(row.target?))?;
            let is_up = self.standing(row).0.is_up() && row.now().is_some_and(|weight| weight > 0);
            is_up.then_some((place, new))
        };
        let targets: Vec<(usize, New)> = service.rows.iter().enumerate().filter_map(gets).collect();
        let Some((place, new)) = passive.worst(&targets) else { return };
        let why = format!(
            "{} of {} new flows within {} ms got no answer",
            new.unanswered,
            new.begun.max(new.unanswered),
            passive.within_ns / 1_000_000
        );
        let service = &mut self.services[at];
        service.watched.rests_until_ns = now_ns.saturating_add(passive.within_ns);
        let row = &mut service.rows[place];
        let text = format!("{} of {} gets no new flows: {why}", row.name, service.name);
        row.suspicion = Some(Suspicion { until_ns: now_ns.saturating_add(passive.for_ns), passed: 0, why });
        actions.push(Action::Say(Level::Warning, text));
        self.evaluate(at, now_ns, actions);
    }

    /// Records the outcome of a check of a back end. Enough good outcomes in a row end a suspicion.
    pub(super) fn passes(&mut self, (at, place): (usize, usize), good: bool, rise: u32) -> bool {
        let Some(suspicion) = &mut self.services[at].rows[place].suspicion else { return false };
        suspicion.passed = if good { suspicion.passed + 1 } else { 0 };
        if suspicion.passed >= rise {
            suspicion.until_ns = 0;
        }
        suspicion.until_ns == 0
    }

    /// Ends the suspicions of a service that have expired.
    pub(super) fn end_suspicions(&mut self, at: usize, now_ns: u64, actions: &mut Vec<Action>) {
        let service = &mut self.services[at];
        let mut any = false;
        for row in &mut service.rows {
            if row.suspicion.take_if(|one| one.until_ns <= now_ns).is_some() {
                any = true;
                let text = format!("{} of {} may get new flows again", row.name, service.name);
                actions.push(Action::Say(Level::Info, text));
            }
        }
        if any {
            // Earlier counts are no longer evidence.
            service.watched.reads.clear();
        }
    }

    /// Takes over the suspicions of a predecessor, by the names of services and back ends.
    pub(super) fn keep_suspicions(&mut self, old: &mut [Service]) {
        let mut kept: HashMap<(String, String), Suspicion> = HashMap::new();
        for service in old {
            for row in &mut service.rows {
                let key = (service.name.clone(), row.name.clone());
                kept.extend(row.suspicion.take().map(|suspicion| (key, suspicion)));
            }
        }
        for service in self.services.iter_mut().filter(|service| service.passive.is_some()) {
            for row in &mut service.rows {
                row.suspicion = kept.remove(&(service.name.clone(), row.name.clone()));
            }
        }
    }
}
