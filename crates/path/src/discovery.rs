//! Which source ports lead along which distinct paths, derived from probes with increasing TTL.
//!
//! The signature of a port is the list of hops that answered. Ports with equal signatures take the same path,
//! and one main and one spare port for each path are enough ([`distinct`]). The more paths there are, the
//! more ports are needed to find all of them ([`ports_needed`]). When ports are probed again, some may have
//! moved, for example because an ECMP group has changed its size ([`changes`]); [`follow`] brings a list of
//! paths up to date.

use crate::paths::{PATHS_MAX, Ports};
use std::net::IpAddr;

/// The minimum number of ports tried for a node: they cover 4 paths with a probability of 99.96 % (coupon
/// collector).
pub const PORTS_TRIED: usize = 32;

/// The acceptable probability that a survey misses a path.
const MISS: f64 = 0.001;

/// How many ports must have been tried once `paths` paths have been found: if there were one more path, and
/// all were equally likely, the probability of having missed one would be 0.1 %. This is the stopping rule of
/// Paris traceroute's multipath detection (Veitch et al., Failure Control in Multipath Route Tracing, INFOCOM
/// 2009). [`PATHS_MAX`] paths need no further ports, because no more of them are used.
#[must_use]
pub fn ports_needed(paths: usize) -> usize {
    if paths == 0 || paths >= PATHS_MAX {
        return PORTS_TRIED;
    }
    let more = (paths + 1) as f64;
    let ports = (MISS / more).ln() / (1.0 - 1.0 / more).ln();
    (ports.ceil() as usize).max(PORTS_TRIED)
}

/// The address that answered for each TTL, from 1; `None` where none did.
pub type Hops = Vec<Option<IpAddr>>;

/// The hops that the probes from one port revealed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The source port.
    pub port: u16,
    /// Its hops.
    pub hops: Hops,
}

/// A path that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveredPath {
    /// Its ports: the first two of the list that were seen on it.
    pub ports: Ports,
    /// Its hops; `None` where none ever answered.
    pub hops: Hops,
}

/// A change in the hops of the ports of known paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HopChange {
    /// Path `path` is now reached by these ports; its hops are unchanged.
    Ports {
        /// Its number.
        path: usize,
        /// Its ports.
        ports: Ports,
    },
    /// No port leads along this path any more.
    Gone {
        /// Its number.
        path: usize,
    },
    /// A previously unknown path.
    New(DiscoveredPath),
}

/// Returns true if two lists of hops may belong to one path: they are equal wherever both have an answer.
fn agree(one: &[Option<IpAddr>], other: &[Option<IpAddr>]) -> bool {
    one.len() == other.len()
        && one.iter().zip(other).all(|(one, other)| one.is_none() || other.is_none() || one == other)
}

/// The distinct paths, in the order in which their first port is listed; at most [`PATHS_MAX`]. Ports without
/// any hop are left out. A port that misses some hops belongs to the path it agrees with if there is exactly
/// one; if it agrees with several, it is inconclusive and left out.
#[must_use]
pub fn distinct(observations: &[Observation]) -> Vec<DiscoveredPath> {
    let answered = |one: &&Observation| one.hops.iter().any(Option::is_some);
    let unknown = |one: &Observation| one.hops.iter().filter(|hop| hop.is_none()).count();
    let mut order: Vec<(usize, &Observation)> = observations.iter().filter(answered).enumerate().collect();
    order.sort_by_key(|(at, one)| (unknown(one), *at));
    let mut groups: Vec<(Hops, Vec<(usize, u16)>)> = Vec::new();
    for (at, one) in order {
        let mut fits = (0..groups.len()).filter(|group| agree(&groups[*group].0, &one.hops));
        match (fits.next(), fits.next()) {
            (Some(group), None) => {
                for (known, hop) in groups[group].0.iter_mut().zip(&one.hops) {
                    *known = known.or(*hop);
                }
                groups[group].1.push((at, one.port));
            }
            (None, _) => groups.push((one.hops.clone(), vec![(at, one.port)])),
            _ => (),
        }
    }
    groups.iter_mut().for_each(|group| group.1.sort_unstable());
    groups.sort_by_key(|group| group.1[0]);
    groups.truncate(PATHS_MAX);
    groups.into_iter().map(|(hops, ports)| DiscoveredPath { ports: main_and_spare(ports), hops }).collect()
}

fn main_and_spare(ports: Vec<(usize, u16)>) -> Ports {
    let mut ports = ports.into_iter().map(|(_, port)| port);
    let main = ports.next().unwrap_or_default();
    Ports { main, spare: ports.find(|port| *port != main) }
}

/// Compares known paths with current observations. A path keeps its ports as long as its main port leads
/// along it, so that flows stay.
#[must_use]
pub fn changes(known: &[DiscoveredPath], observations: &[Observation]) -> Vec<HopChange> {
    let now = distinct(observations);
    let mut changes = Vec::new();
    let leads = |port: u16, hops: &[Option<IpAddr>]| {
        observations
            .iter()
            .any(|one| one.port == port && one.hops.iter().any(Option::is_some) && agree(hops, &one.hops))
    };
    for (path, old) in known.iter().enumerate() {
        let Some(found) = now.iter().find(|found| agree(&found.hops, &old.hops)) else {
            changes.push(HopChange::Gone { path });
            continue;
        };
        let (main, spare) = (old.ports.main, old.ports.spare);
        let spare_leads = spare.is_some_and(|spare| leads(spare, &old.hops));
        let ports = match (leads(main, &old.hops), spare_leads) {
            (true, true) => old.ports,
            (true, false) => Ports { main, spare: other(found.ports, main) },
            (false, true) => Ports {
                main: spare.unwrap_or(main),
                spare: spare.and_then(|spare| other(found.ports, spare)),
            },
            (false, false) => found.ports,
        };
        if ports != old.ports {
            changes.push(HopChange::Ports { path, ports });
        }
    }
    let is_new = |found: &DiscoveredPath| !known.iter().any(|old| agree(&found.hops, &old.hops));
    changes.extend(now.into_iter().filter(is_new).map(HopChange::New));
    changes
}

/// Returns true if hops do not distinguish paths: no hops are known, or there is a single list of hops in
/// which a router is silent, which may hide many paths.
#[must_use]
pub fn is_hidden(found: &[DiscoveredPath]) -> bool {
    match found {
        [one] => one.hops.iter().any(Option::is_none) || one.hops.is_empty(),
        all => all.iter().all(|found| found.hops.is_empty()),
    }
}

/// How a list of paths has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Followed {
    /// The numbers of the paths whose ports have changed; `true` means that a different path has taken the
    /// number of one that is gone.
    pub changed: Vec<(usize, bool)>,
    /// How many paths were appended.
    pub added: usize,
    /// Whether paths were removed, which changes the numbers of those after them.
    pub is_renumbered: bool,
}

/// Brings the list of known paths up to date. A new path takes the number of one that is gone; otherwise it
/// is appended. A path that is gone is removed if its port was seen to lead elsewhere. If its port was not
/// seen, it may have failed temporarily, and stays.
pub fn follow(known: &mut Vec<DiscoveredPath>, observations: &[Observation]) -> Followed {
    let mut followed = Followed::default();
    let (mut gone, mut new) = (Vec::new(), Vec::new());
    for change in changes(known, observations) {
        match change {
            HopChange::Ports { path, ports } => {
                known[path].ports = ports;
                followed.changed.push((path, false));
            }
            HopChange::Gone { path } => gone.push(path),
            HopChange::New(found) => new.push(found),
        }
    }
    let taken = gone.len().min(new.len());
    for (path, found) in gone.drain(..taken).zip(new.drain(..taken)) {
        known[path] = found;
        followed.changed.push((path, true));
    }
    let is_seen =
        |port: u16| observations.iter().any(|one| one.port == port && one.hops.iter().any(Option::is_some));
    for path in gone.into_iter().rev() {
        if is_seen(known[path].ports.main) {
            known.remove(path);
            followed.is_renumbered = true;
        }
    }
    new.truncate(PATHS_MAX.saturating_sub(known.len()));
    followed.added = new.len();
    known.extend(new);
    followed
}

/// One of the ports other than `not`.
fn other(ports: Ports, not: u16) -> Option<u16> {
    [Some(ports.main), ports.spare].into_iter().flatten().find(|port| *port != not)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weir_packet::random::Random;

    fn hop(number: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 9, number, 1]))
    }

    fn seen(port: u16, spine: u8) -> Observation {
        Observation { port, hops: vec![hop(200), hop(spine), hop(201)] }
    }

    #[test]
    fn a_silent_hop_does_not_make_a_path() {
        let mut silent = seen(3, 1);
        silent.hops[0] = None;
        let mut ambiguous = seen(4, 1);
        ambiguous.hops[1] = None;
        let mute = Observation { port: 5, hops: vec![None; 3] };
        let found = distinct(&[silent, seen(1, 1), seen(2, 2), ambiguous, mute]);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].ports, Ports { main: 3, spare: Some(1) });
        assert_eq!(found[0].hops, seen(0, 1).hops);
        assert_eq!(found[1].ports, Ports { main: 2, spare: None });
    }

    #[test]
    fn a_group_of_another_size_moves_ports_and_not_paths() {
        let before = distinct(&[seen(1, 1), seen(2, 2), seen(3, 1), seen(4, 2)]);
        assert_eq!(changes(&before, &[seen(1, 1), seen(2, 2), seen(3, 1), seen(4, 2)]), []);
        let after = [seen(1, 2), seen(2, 2), seen(3, 1), seen(4, 3)];
        assert_eq!(
            changes(&before, &after),
            [
                HopChange::Ports { path: 0, ports: Ports { main: 3, spare: None } },
                HopChange::Ports { path: 1, ports: Ports { main: 2, spare: Some(1) } },
                HopChange::New(DiscoveredPath {
                    ports: Ports { main: 4, spare: None },
                    hops: seen(0, 3).hops
                }),
            ]
        );
        assert_eq!(changes(&before, &[seen(2, 2), seen(4, 2)]), [HopChange::Gone { path: 0 }]);
    }

    /// A two-tier fabric: leaf, some aggregation switches, cores behind each of them, leaf. Every switch has
    /// its own hash.
    struct Fabric {
        seeds: [u64; 2],
        aggregations: u64,
        cores: u64,
    }

    impl Fabric {
        fn hops(&self, port: u16) -> Hops {
            let hash = |seed: u64, of: u64| Random::new(seed ^ u64::from(port) << 20).below(of) as u8;
            let aggregation = hash(self.seeds[0], self.aggregations);
            let core = hash(self.seeds[1].wrapping_add(aggregation.into()), self.cores);
            vec![hop(200), hop(aggregation), hop(100 + aggregation * self.cores as u8 + core), hop(201)]
        }

        fn see(&self, ports: &[u16]) -> Vec<Observation> {
            ports.iter().map(|&port| Observation { port, hops: self.hops(port) }).collect()
        }

        /// All existing paths.
        fn truth(&self) -> Vec<Hops> {
            let mut all: Vec<Hops> = (1024..=u16::MAX).step_by(7).map(|port| self.hops(port)).collect();
            all.sort_unstable();
            all.dedup();
            all
        }

        /// Surveys it like the daemon: known ports first, then others, until there are enough.
        fn survey(&self, known: &mut Vec<DiscoveredPath>, random: &mut Random) -> Followed {
            let ports = known.iter().flat_map(|found| [Some(found.ports.main), found.ports.spare]);
            let mut ports: Vec<u16> = ports.flatten().collect();
            loop {
                while ports.len() < ports_needed(distinct(&self.see(&ports)).len()) {
                    let port = 49_152 + random.below(16_384) as u16;
                    ports.extend(Some(port).filter(|port| !ports.contains(port)));
                }
                if ports.len() >= ports_needed(distinct(&self.see(&ports)).len()) {
                    return follow(known, &self.see(&ports));
                }
            }
        }

        /// Whether exactly the existing paths were found, and their ports lead along them.
        fn is_found(&self, known: &[DiscoveredPath]) -> bool {
            let mut paths: Vec<Hops> = known.iter().map(|found| found.hops.clone()).collect();
            paths.sort_unstable();
            let leads = |found: &DiscoveredPath| {
                let ports = [Some(found.ports.main), found.ports.spare];
                ports.into_iter().flatten().all(|port| self.hops(port) == found.hops)
            };
            paths == self.truth() && known.iter().all(leads)
        }
    }

    #[test]
    fn exactly_the_true_paths_are_found_and_followed_when_groups_change_their_size() {
        let shapes = [[2, 1], [3, 1], [4, 1], [5, 1], [3, 2], [7, 1], [2, 4], [9, 1], [5, 2], [11, 1]];
        let shapes = shapes.into_iter().chain([[3, 4], [13, 1], [7, 2], [5, 3], [4, 4], [16, 1], [2, 1]]);
        let (mut surveys, mut missed) = (0, 0);
        for seed in 0..40 {
            let mut random = Random::new(seed);
            let mut known = Vec::new();
            for [aggregations, cores] in shapes.clone() {
                let fabric = Fabric { seeds: [random.bits(), random.bits()], aggregations, cores };
                fabric.survey(&mut known, &mut random);
                surveys += 1;
                if !fabric.is_found(&known) {
                    missed += 1;
                    fabric.survey(&mut known, &mut random);
                }
                assert!(fabric.is_found(&known), "{aggregations} * {cores}: {known:?}");
                let again = fabric.survey(&mut known, &mut random);
                let is_spare = again.changed.iter().all(|(_, elsewhere)| !elsewhere);
                assert!(is_spare && again.added == 0 && !again.is_renumbered, "{again:?}");
            }
        }
        // 0.1 % of them may be missed.
        assert!(missed * 300 < surveys, "{missed} of {surveys}");
    }

    #[test]
    fn all_of_several_new_paths_are_added_and_a_failed_one_stays() {
        let mut known = distinct(&[seen(1, 1), seen(2, 1)]);
        let all = [seen(1, 3), seen(2, 1), seen(3, 2), seen(4, 4)];
        let followed = follow(&mut known, &all);
        assert_eq!(followed, Followed { changed: vec![(0, false)], added: 3, is_renumbered: false });
        let spines: Vec<_> = known.iter().map(|found| found.hops[1]).collect();
        assert_eq!(spines, [hop(1), hop(3), hop(2), hop(4)]);
        // No port of the second path was seen: it may have failed. The port of the third now leads along the
        // first.
        let followed = follow(&mut known, &[seen(2, 1), seen(3, 1), seen(4, 4)]);
        assert_eq!(followed, Followed { changed: vec![(0, false)], added: 0, is_renumbered: true });
        let spines: Vec<_> = known.iter().map(|found| found.hops[1]).collect();
        assert_eq!(spines, [hop(1), hop(3), hop(4)]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn exactly_the_paths_that_ports_reach_are_found(
            seed: u64, spines in 2_u64..=16, silent in 0_u64..30,
        ) {
            let mut random = Random::new(seed);
            let mut truth: Vec<Observation> = Vec::new();
            truth.extend((0..128).map(|port| seen(port, random.below(spines) as u8)));
            let mut observed = truth.clone();
            // Hops that all paths share may be silent without any loss of information.
            for one in observed.iter_mut().filter(|_| random.below(100) < silent) {
                one.hops[0] = None;
            }
            let found = distinct(&observed);
            let mut reached: Vec<_> = truth.iter().map(|one| one.hops[1]).collect();
            reached.sort_unstable();
            reached.dedup();
            let mut paths: Vec<_> = found.iter().map(|found| found.hops[1]).collect();
            paths.sort_unstable();
            prop_assert_eq!(paths, reached);
            for path in found {
                for port in [Some(path.ports.main), path.ports.spare].into_iter().flatten() {
                    prop_assert_eq!(truth[usize::from(port)].hops[1], path.hops[1]);
                }
            }
        }
    }
}
