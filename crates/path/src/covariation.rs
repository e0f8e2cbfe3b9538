//! Which source ports share a path, where routers do not identify themselves: ports whose delays move
//! together.
//!
//! A queue delays everything that passes through it at the same time, so the delays of two ports on one path
//! rise and fall together, and those on different paths do not (the idea of shared bottleneck detection, RFC
//! 8382). A port whose delay does not vary reveals nothing and stays alone: ports are only grouped on
//! evidence. Two paths whose only queue is shared are equivalent for path selection.

//!
//! Changes from round to round are compared rather than levels: levels of independent queues, which grow and
//! shrink slowly, look alike too often. Clock drift and the node's own queue change all delays, so changes
//! are measured relative to those of the steadiest port.

/// The number of rounds, which suffices even if a fifth of the probes is lost.
pub const ROUNDS: usize = 64;

/// The number of changes that must be known for both ports.
const CHANGES_MIN: usize = 24;

/// The minimum correlation of two ports on one path. Ports on two busy paths reach 0.5 if the steadiest port,
/// relative to which both are measured, is on a third path that is equally busy.
const ALIKE: f64 = 0.85;

/// Groups ports. `delays[port][round]` is the one-way delay of the port's probe in this round in nanoseconds,
/// with any clock offset; `None` if the probe was lost. Delays that deviate by less than `noise_ns` count as
/// constant. Groups are in the order of their first port; every port is in one.
#[must_use]
pub fn groups(delays: &[Vec<Option<i64>>], noise_ns: u64) -> Vec<Vec<usize>> {
    let changes: Vec<Changes> = delays.iter().map(|delays| changes_of(delays)).collect();
    let steadiest = changes.iter().filter(|changes| changes.iter().flatten().count() >= CHANGES_MIN);
    let Some(steadiest) = steadiest.min_by(|one, other| deviation(one).total_cmp(&deviation(other))) else {
        return (0..delays.len()).map(|port| vec![port]).collect();
    };
    let beyond = |changes: &Changes| -> Changes {
        let each = changes.iter().zip(steadiest).map(|(change, common)| Some((*change)? - (*common)?));
        each.collect()
    };
    let beyond: Vec<Changes> = changes.iter().map(beyond).collect();
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for port in 0..beyond.len() {
        let is_alike = |member: &usize| are_alike(&beyond[*member], &beyond[port], noise_ns as f64);
        match groups.iter_mut().find(|group| group.iter().all(is_alike)) {
            Some(group) => group.push(port),
            None => groups.push(vec![port]),
        }
    }
    groups
}

/// How delays change from round to round, ns; `None` if either is unknown.
type Changes = Vec<Option<f64>>;

fn changes_of(delays: &[Option<i64>]) -> Changes {
    let change = |two: &[Option<i64>]| Some(two[1]?.saturating_sub(two[0]?) as f64);
    delays.windows(2).map(change).collect()
}

/// The deviation of changes from their mean in nanoseconds; with a drifting clock the mean is not 0.
fn deviation(changes: &Changes) -> f64 {
    let count = changes.iter().flatten().count() as f64;
    let mean = changes.iter().flatten().sum::<f64>() / count;
    (changes.iter().flatten().map(|change| (change - mean).powi(2)).sum::<f64>() / count).sqrt()
}

/// Returns whether both delays vary, and vary together.
fn are_alike(one: &Changes, other: &Changes, noise: f64) -> bool {
    let both: Vec<(f64, f64)> = one.iter().zip(other).filter_map(|(one, other)| one.zip(*other)).collect();
    if both.len() < CHANGES_MIN {
        return false;
    }
    let count = both.len() as f64;
    let (sum, other_sum) = both.iter().fold((0.0, 0.0), |sums, pair| (sums.0 + pair.0, sums.1 + pair.1));
    let (mean, other_mean) = (sum / count, other_sum / count);
    let (mut squares, mut other_squares, mut products) = (0.0, 0.0, 0.0);
    for (one, other) in both {
        let (one, other) = (one - mean, other - other_mean);
        squares += one * one;
        other_squares += other * other;
        products += one * other;
    }
    let least = noise * noise * count;
    squares > least && other_squares > least && products > ALIKE * (squares * other_squares).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_packet::random::Random;

    const NOISE_NS: u64 = 20_000;

    /// Delays of 16 ports over `paths` paths, of which the first `busy` have queues that come and go, and the
    /// path of each port. Clocks are offset and drift, a twentieth of the probes is lost, and timestamps are
    /// late.
    fn measured(paths: u64, busy: u64, rounds: u64, seed: u64) -> (Vec<Vec<Option<i64>>>, Vec<u64>) {
        let mut random = Random::new(seed);
        let of: Vec<u64> = (0..16).map(|_| random.below(paths)).collect();
        let mut queues = vec![0_i64; paths as usize];
        let mut delays = vec![Vec::new(); of.len()];
        for round in 0..rounds {
            for queue in queues.iter_mut().take(busy as usize) {
                let change = random.below(400_000) as i64 - 200_000;
                *queue = (*queue + change).clamp(0, 1_000_000);
            }
            for (path, delays) in of.iter().zip(&mut delays) {
                let late = random.below(15_000) as i64;
                let delay = queues[*path as usize] + late - 5_000_000_000 + round as i64 * 20_000;
                delays.push((random.below(20) > 0).then_some(delay));
            }
        }
        (delays, of)
    }

    #[test]
    fn ports_of_one_path_are_put_together_and_others_are_not() {
        let (mut pairs, mut joined) = (0, 0);
        for seed in 0..200 {
            let (paths, busy) = (2 + seed % 7, 1 + seed % 3);
            let (delays, of) = measured(paths, busy.min(paths), ROUNDS as u64, seed);
            let groups = groups(&delays, NOISE_NS);
            assert_eq!(groups.iter().map(Vec::len).sum::<usize>(), of.len());
            for group in &groups {
                assert!(group.iter().all(|port| of[*port] == of[group[0]]), "{seed}: {groups:?} of {of:?}");
            }
            let group_of = |port: usize| groups.iter().position(|group| group.contains(&port));
            for one in 0..of.len() {
                for other in (0..one).filter(|other| of[*other] == of[one] && of[one] < busy.min(paths)) {
                    pairs += 1;
                    joined += u32::from(group_of(one) == group_of(other));
                }
            }
        }
        // If every path has a queue, the ports that share the path of the steadiest port reveal nothing.
        assert!(joined * 4 > pairs * 3, "{joined} of {pairs} pairs on a path with a queue");
    }

    #[test]
    fn without_queues_or_with_few_rounds_nothing_is_known() {
        for (busy, rounds) in [(0, ROUNDS as u64), (4, CHANGES_MIN as u64)] {
            let (delays, of) = measured(4, busy, rounds, 1);
            assert_eq!(groups(&delays, NOISE_NS).len(), of.len());
        }
        assert_eq!(groups(&[], NOISE_NS), Vec::<Vec<usize>>::new());
        assert_eq!(groups(&[vec![None; 50], Vec::new(), vec![Some(i64::MIN), Some(i64::MAX)]], 1).len(), 3);
    }
}
