//! The paths to a node as found by successive surveys.

use crate::covariation::groups;
use crate::discovery::{DiscoveredPath, Followed, distinct, follow, is_hidden};
use crate::paths::{NOISE, PATHS_MAX, Paths, Ports};
use crate::settings::Settings;
use crate::survey::Surveyed;

/// The known paths; initially none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    found: Vec<DiscoveredPath>,
    /// Whether the last survey met silent routers.
    is_hidden: bool,
}

/// How the list of paths has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathListChange {
    /// The list is unchanged.
    None,
    /// The list was replaced: numbers mean different paths than before.
    Replaced,
    /// Some of its paths have changed.
    Followed(Followed),
}

impl Known {
    /// The paths; a path's number is its index.
    #[must_use]
    pub fn all(&self) -> &[DiscoveredPath] {
        &self.found
    }

    /// All their ports, which the next survey should try.
    #[must_use]
    pub fn ports(&self) -> Vec<u16> {
        let spares = self.found.iter().filter_map(|found| found.ports.spare);
        self.found.iter().map(|found| found.ports.main).chain(spares).collect()
    }

    /// Processes the result of a survey of a node that answered.
    pub fn learn(&mut self, surveyed: &Surveyed, settings: &Settings) -> PathListChange {
        let mut now = distinct(&surveyed.seen);
        self.is_hidden = is_hidden(&now);
        if self.is_hidden {
            now = self.by_delays(surveyed, settings);
        }
        now.truncate(PATHS_MAX);
        let fewer = self.is_hidden && now.len() < self.found.len() && self.is_by_delays();
        if self.found.is_empty() || fewer {
            self.found = now;
            return PathListChange::Replaced;
        }
        if self.is_hidden {
            return PathListChange::None;
        }
        let followed = follow(&mut self.found, &surveyed.seen);
        if followed.is_renumbered { PathListChange::Replaced } else { PathListChange::Followed(followed) }
    }

    /// Processes what another app has found in the same fabric, between the same addresses.
    pub fn adopt(&mut self, other: &Known) -> PathListChange {
        if *self == *other {
            return PathListChange::None;
        }
        let before = std::mem::replace(self, other.clone()).found;
        if before.is_empty() || before.len() > self.found.len() {
            return PathListChange::Replaced;
        }
        let pairs = before.iter().zip(&self.found).enumerate().filter(|(_, (was, is))| was != is);
        let changed = pairs.map(|(path, (was, is))| (path, was.hops != is.hops)).collect();
        let added = self.found.len() - before.len();
        PathListChange::Followed(Followed { changed, added, is_renumbered: false })
    }

    /// Describes what is known, in a sentence.
    #[must_use]
    pub fn sentence(&self) -> String {
        match (self.is_hidden, self.found.len()) {
            (true, count) if self.is_by_delays() => {
                format!("routers do not identify themselves: {count} ports are assumed to be paths")
            }
            (true, count) => format!("{count} paths; routers currently do not answer"),
            (false, 1) => {
                "one path, so traffic uses ECMP: the fabric has no other path, does not hash the UDP source \
                 port, or its routers do not distinguish links"
                    .to_string()
            }
            (false, count) => format!("{count} paths"),
        }
    }

    /// Returns true if no hops are known: ports are distinguished by their delays, or not at all.
    fn is_by_delays(&self) -> bool {
        self.found.iter().all(|found| found.hops.is_empty())
    }

    /// The paths as far as delays reveal them: ports that move together are one path, every other port is a
    /// path of its own. Ports that were once grouped stay together, because queues are not always present to
    /// reveal it.
    fn by_delays(&self, found: &Surveyed, settings: &Settings) -> Vec<DiscoveredPath> {
        let groups = groups(&found.delays, settings.congested_ns / NOISE);
        let ports =
            groups.iter().map(|group| group.iter().map(|at| found.seen[*at].port).collect::<Vec<_>>());
        let alone = |main, spare| DiscoveredPath { ports: Ports { main, spare }, hops: Vec::new() };
        if self.found.is_empty() {
            return ports.map(|ports| alone(ports[0], ports.get(1).copied())).collect();
        }
        let mut known = self.found.clone();
        for ports in ports {
            let is_known = |port: &u16| known.iter().any(|known| known.ports.main == *port);
            let same: Vec<u16> = ports.into_iter().filter(is_known).collect();
            let [first, others @ ..] = &same[..] else { continue };
            known.retain(|known| !others.contains(&known.ports.main));
            for path in known.iter_mut().filter(|known| known.ports.main == *first) {
                path.ports.spare = path.ports.spare.or(others.first().copied());
            }
        }
        known
    }
}

impl Paths {
    /// Paths of which only the ports are known.
    #[must_use]
    pub fn of(now: u64, settings: Settings, known: &Known) -> Paths {
        let ports: Vec<Ports> = known.all().iter().map(|found| found.ports).collect();
        Paths::new(now, settings, &ports)
    }

    /// Brings the list up to date with what is known.
    pub fn follow(&mut self, now: u64, known: &Known, followed: &Followed) {
        for &(path, elsewhere) in &followed.changed {
            self.set_ports(now, path, known.all()[path].ports, elsewhere);
        }
        for found in &known.all()[self.all().len().min(known.all().len())..] {
            self.add(now, found.ports);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discovery::Observation;
    use std::net::IpAddr;

    fn surveyed(seen: &[(u16, u8)]) -> Surveyed {
        let hops = |spine: u8| vec![Some(IpAddr::from([10, 9, spine, 1]))];
        let seen = seen.iter().map(|&(port, spine)| Observation { port, hops: hops(spine) }).collect();
        Surveyed { seen, round_trip_ns: Some(1000), ..Surveyed::default() }
    }

    #[test]
    fn who_adopts_has_the_same_paths_under_the_same_numbers() {
        let settings = Settings::of_rate(1_000_000_000);
        let (mut finder, mut other) = (Known::default(), Known::default());
        let mut paths = Paths::new(0, settings, &[]);
        let surveys = [
            vec![(1, 1), (2, 2), (3, 1)],
            vec![(1, 1), (2, 2), (3, 1)],
            vec![(1, 2), (2, 2), (3, 1), (4, 3)],
            vec![(1, 2), (2, 2), (4, 3), (3, 2)],
            vec![(1, 1), (2, 1), (3, 1), (4, 1)],
        ];
        for (turn, seen) in surveys.iter().enumerate() {
            let learnt = finder.learn(&surveyed(seen), &settings);
            assert_eq!(learnt == PathListChange::Replaced, [0, 3, 4].contains(&turn), "{turn}: {learnt:?}");
            match other.adopt(&finder) {
                PathListChange::Replaced => paths = Paths::of(0, settings, &other),
                PathListChange::Followed(followed) => paths.follow(0, &other, &followed),
                PathListChange::None => assert_eq!(turn, 1),
            }
            assert_eq!(other, finder);
            let ports = paths.all().iter().map(|path| path.ports());
            assert!(ports.eq(finder.all().iter().map(|found| found.ports)), "{turn}");
        }
    }
}
