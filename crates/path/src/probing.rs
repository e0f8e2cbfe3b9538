//! When a node is probed, along which paths, and at what cost.
//!
//! A probe is 64 to 100 bytes. A node in use has at most 4 paths probed per round, plus those that seem to
//! fail or carry data, every 10 ms: 400 to 1600 packets/s. The total of a host is bounded by
//! [`PACKETS_PER_SECOND_MAX`]; with more nodes than that allows, rounds are less frequent. Large probes are
//! few: see [`Budget::take_large`].

use crate::paths::Paths;
use weir_packet::random::Random;

/// The maximum rate of a host, probes/s: 10,000 of 100 bytes are 8 Mbit/s, and 2 % of a core at 2 us each.
pub const PACKETS_PER_SECOND_MAX: u64 = 10_000;

/// The burst that the budget allows: a tenth of a second.
const BURST: u64 = PACKETS_PER_SECOND_MAX / 10;

/// The maximum number of paths of a node for all of them to be probed (Hermes probes the best and two at
/// random).
const ALL_UP_TO: usize = 4;

/// Random paths per round.
const RANDOM_PATHS: usize = 2;

/// How long after the last data a node counts as in use, ns: ten rounds.
const ACTIVE_NS: u64 = 100_000_000;

/// How long after being in use a node is still probed, at a tenth of the rate, ns; after that it is not
/// probed at all.
const IDLE_NS: u64 = 10_000_000_000;

/// The factor with which an idle node's interval between rounds is multiplied, unless a path is in doubt.
const IDLE_TIMES: u64 = 10;

/// How much a node is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Data within the last 100 ms.
    Active,
    /// Data within the last 10 s.
    Idle,
    /// No data for longer: no probes.
    Unused,
}

/// The minimum time between two large probes of a host, ns: 100 per second, which at 1500 bytes is 1.2
/// Mbit/s.
const LARGE_NS: u64 = 10_000_000;

/// The budget of a host's probes: a token bucket.
#[derive(Clone, Debug)]
pub struct Budget {
    /// Probes, in units of 1/10^9.
    tokens: u64,
    at: u64,
    large_at: u64,
}

const PROBE: u64 = 1_000_000_000;

impl Budget {
    /// A full budget.
    #[must_use]
    pub fn new(now: u64) -> Budget {
        Budget { tokens: BURST * PROBE, at: now, large_at: now }
    }

    /// How many probes may be taken now.
    pub fn left(&mut self, now: u64) -> u64 {
        let earned = now.saturating_sub(self.at).saturating_mul(PACKETS_PER_SECOND_MAX);
        self.tokens = self.tokens.saturating_add(earned).min(BURST * PROBE);
        self.at = now;
        self.tokens / PROBE
    }

    /// Takes `probes` probes from the budget, or none if it is too small.
    pub fn take(&mut self, now: u64, probes: u64) -> bool {
        self.left(now);
        let enough = self.tokens >= probes.saturating_mul(PROBE);
        if enough {
            self.tokens -= probes * PROBE;
        }
        enough
    }

    /// Returns true if a large probe may be sent now.
    #[must_use]
    pub fn has_large(&self, now: u64) -> bool {
        now >= self.large_at
    }

    /// Takes a large probe.
    pub fn take_large(&mut self, now: u64) {
        self.large_at = now + LARGE_NS;
        self.take(now, 1);
    }
}

/// When the paths of a node that may be used at any time are probed: often
/// ([`crate::settings::Settings::probe_ns`]) while data leaves for it, equally often for paths in doubt
/// regardless of data, and rarely otherwise.
#[derive(Clone, Debug, Default)]
pub struct Rounds {
    round_ns: u64,
    doubts_ns: u64,
}

impl Rounds {
    /// Makes the next round due now.
    pub fn hasten(&mut self, now: u64) {
        self.round_ns = now;
    }

    /// The paths to probe now: those of a round or, between the rounds of a node to which nothing is sent,
    /// those in doubt. `idle_ns` is the time between two rounds of such a node.
    pub fn due(&mut self, now: u64, paths: &Paths, idle_ns: u64, random: &mut Random) -> Vec<usize> {
        let probe_ns = paths.settings().probe_ns;
        let interval = if paths.usage(now) == Use::Active { probe_ns } else { idle_ns };
        // A round that is this far away was scheduled with the longer interval of an idle node.
        if now.saturating_add(2 * interval) < self.round_ns {
            self.round_ns = now;
        }
        if now >= self.round_ns {
            self.round_ns = now + random.jittered(interval);
            self.doubts_ns = now + random.jittered(probe_ns);
            return paths.round(now, random);
        }
        if now < self.doubts_ns {
            return Vec::new();
        }
        self.doubts_ns = now + random.jittered(probe_ns);
        paths.doubtful(now)
    }
}

impl Paths {
    /// Returns true if the node needs attention every few milliseconds: it is in use, or a path is in doubt.
    #[must_use]
    pub fn is_busy(&self, now: u64) -> bool {
        self.usage(now) == Use::Active || self.all().iter().any(|path| path.is_doubtful(now, self.settings()))
    }

    /// How much the node is used.
    #[must_use]
    pub fn usage(&self, now: u64) -> Use {
        match now.saturating_sub(self.last_sent) {
            _ if self.last_sent == 0 => Use::Unused,
            silent if silent < ACTIVE_NS => Use::Active,
            silent if silent < IDLE_NS => Use::Idle,
            _ => Use::Unused,
        }
    }

    /// The paths in doubt, ascending: they are probed without delay even if the node is idle.
    #[must_use]
    pub fn doubtful(&self, now: u64) -> Vec<usize> {
        let is_doubtful = |at: &usize| self.all()[*at].is_doubtful(now, self.settings());
        (0..self.all().len()).filter(is_doubtful).collect()
    }

    /// How long after this round the next one is, ns: jittered, so that hosts do not probe in lockstep.
    /// `None` if the node is unused: ask again when data leaves for it.
    #[must_use]
    pub fn next_round_in(&self, now: u64, random: &mut Random) -> Option<u64> {
        let time = self.settings().probe_ns;
        match self.usage(now) {
            // A jittered time is shorter as often as it is longer, so the rate is preserved.
            Use::Active => Some(random.jittered(time)),
            Use::Idle if !self.doubtful(now).is_empty() => Some(random.jittered(time)),
            Use::Idle => Some(random.jittered(time * IDLE_TIMES)),
            Use::Unused => None,
        }
    }

    /// The paths to probe in this round, ascending: all if there are up to four; otherwise the best, two at
    /// random, paths that carry data and paths that seem to fail.
    #[must_use]
    pub fn round(&self, now: u64, random: &mut Random) -> Vec<usize> {
        let count = self.all().len();
        if count <= ALL_UP_TO {
            return (0..count).collect();
        }
        let pressing = |at: &usize| {
            let path = &self.all()[*at];
            path.is_suspect(now, self.settings()) || path.load(now, self.settings()) > 0
        };
        let mut chosen: Vec<usize> = self.best(now).into_iter().chain((0..count).filter(pressing)).collect();
        chosen.sort_unstable();
        chosen.dedup();
        for _ in 0..RANDOM_PATHS {
            let left = count - chosen.len();
            let nth = random.below(left as u64) as usize;
            let free = (0..count).filter(|path| chosen.binary_search(path).is_err()).nth(nth);
            chosen.extend(free);
            chosen.sort_unstable();
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::Ports;
    use crate::settings::Settings;

    fn paths(count: u16) -> Paths {
        let ports: Vec<_> = (0..count).map(|main| Ports { main, spare: None }).collect();
        Paths::new(0, Settings::of_rate(10_000_000_000), &ports)
    }

    #[test]
    fn few_paths_are_all_probed_and_many_in_turn() {
        let mut random = Random::new(1);
        assert_eq!(paths(4).round(1, &mut random), [0, 1, 2, 3]);
        assert_eq!(paths(0).round(1, &mut random), [0_usize; 0]);
        let mut seen = [0; 16];
        for _ in 0..200 {
            let round = paths(16).round(1, &mut random);
            assert_eq!(round.len(), 3);
            round.iter().for_each(|path| seen[*path] += 1);
        }
        assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
    }

    #[test]
    fn paths_in_use_are_in_every_round() {
        let (mut paths, mut random) = (paths(16), Random::new(1));
        paths.sent(1, 7, 1500);
        paths.sent(1, 11, 1500);
        for _ in 0..20 {
            let round = paths.round(2, &mut random);
            assert!(round.contains(&7) && round.contains(&11), "{round:?}");
        }
    }

    #[test]
    fn who_sends_nothing_is_not_probed() {
        let (mut paths, mut random) = (paths(2), Random::new(1));
        assert_eq!(paths.next_round_in(1, &mut random), None);
        paths.sent(1, 0, 1);
        let active = paths.next_round_in(2, &mut random).unwrap();
        let idle = paths.next_round_in(1_000_000_000, &mut random).unwrap();
        assert!(idle > 5 * active);
        assert_eq!(paths.next_round_in(20_000_000_000, &mut random), None);
    }

    #[test]
    fn rounds_come_once_an_interval_and_at_once_when_data_leaves() {
        let (mut paths, mut random, mut rounds) = (paths(2), Random::new(1), Rounds::default());
        const MS: u64 = 1_000_000;
        let mut probed = |paths: &Paths, times: std::ops::Range<u64>| {
            let due = times.map(|at| rounds.due(at * MS, paths, 1000 * MS, &mut random).len());
            due.filter(|probes| *probes > 0).count()
        };
        let idle = probed(&paths, 1..100_000);
        assert!((95..=105).contains(&idle), "{idle}");
        paths.sent(100_000 * MS, 0, 1);
        let used = probed(&paths, 100_000..100_100);
        assert!((8..=12).contains(&used), "{used}");
    }

    #[test]
    fn the_budget_holds_over_any_second() {
        let mut budget = Budget::new(0);
        let asked = (0..200_000).filter(|at| budget.take(at * 10_000, 1)).count() as u64;
        let earned = 2 * PACKETS_PER_SECOND_MAX;
        assert!((earned - 1..=earned + BURST).contains(&asked), "{asked}");
    }
}
