//! Which source ports lead along which distinct paths, out of what probes of growing TTL showed.
//!
//! The signature of a port is the list of hops that answered. Ports with equal signatures take the same path,
//! and one main and one spare port for each path is enough ([`distinct`]). Verified again, a port may have
//! moved, for example because an ECMP group has another size now ([`changes`]).

use crate::paths::{PATHS_MAX, Ports};
use std::net::IpAddr;

/// Ports that are tried for a node: they cover 4 paths with 99.96 %, 8 with 89 % (coupon collector).
pub const PORTS_TRIED: usize = 32;

/// The address that answered for each TTL, from 1; `None` where none did.
pub type Hops = Vec<Option<IpAddr>>;

/// What the probes from one port showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The source port.
    pub port: u16,
    /// Its hops.
    pub hops: Hops,
}

/// A path that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its ports: of those that were seen on it, the first two of the list.
    pub ports: Ports,
    /// Its hops; `None` where none ever answered.
    pub hops: Hops,
}

/// What the hops of the ports of known paths are now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Path `path` is reached by these ports now; the hops are the same.
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
    /// A path that was not known.
    New(Found),
}

/// Returns true if two lists of hops may be those of one path: equal wherever both answered.
fn agree(one: &[Option<IpAddr>], other: &[Option<IpAddr>]) -> bool {
    one.len() == other.len()
        && one.iter().zip(other).all(|(one, other)| one.is_none() || other.is_none() || one == other)
}

/// The distinct paths, in the order in which their first port is listed; at most [`PATHS_MAX`]. Ports without
/// any hop are left out. A port that misses some hops belongs to the path it agrees with, if that is one; if
/// it agrees with several, it says nothing and is left out.
#[must_use]
pub fn distinct(observations: &[Observation]) -> Vec<Found> {
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
    groups.into_iter().map(|(hops, ports)| Found { ports: main_and_spare(ports), hops }).collect()
}

fn main_and_spare(ports: Vec<(usize, u16)>) -> Ports {
    let mut ports = ports.into_iter().map(|(_, port)| port);
    let main = ports.next().unwrap_or_default();
    Ports { main, spare: ports.find(|port| *port != main) }
}

/// Compares known paths with what was observed now. A path keeps its ports as long as its main port leads
/// along it, so that flows stay.
#[must_use]
pub fn changes(known: &[Found], observations: &[Observation]) -> Vec<Change> {
    let now = distinct(observations);
    let mut changes = Vec::new();
    let leads = |port: u16, hops: &[Option<IpAddr>]| {
        observations
            .iter()
            .any(|one| one.port == port && one.hops.iter().any(Option::is_some) && agree(hops, &one.hops))
    };
    for (path, old) in known.iter().enumerate() {
        let Some(found) = now.iter().find(|found| agree(&found.hops, &old.hops)) else {
            changes.push(Change::Gone { path });
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
            changes.push(Change::Ports { path, ports });
        }
    }
    let is_new = |found: &Found| !known.iter().any(|old| agree(&found.hops, &old.hops));
    changes.extend(now.into_iter().filter(is_new).map(Change::New));
    changes
}

/// One of the ports that is not this one.
fn other(ports: Ports, not: u16) -> Option<u16> {
    [Some(ports.main), ports.spare].into_iter().flatten().find(|port| *port != not)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use proptest::prelude::*;

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
                Change::Ports { path: 0, ports: Ports { main: 3, spare: None } },
                Change::Ports { path: 1, ports: Ports { main: 2, spare: Some(1) } },
                Change::New(Found { ports: Ports { main: 4, spare: None }, hops: seen(0, 3).hops }),
            ]
        );
        assert_eq!(changes(&before, &[seen(2, 2), seen(4, 2)]), [Change::Gone { path: 0 }]);
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
            // Hops that all paths share may be silent, and nothing is lost.
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
