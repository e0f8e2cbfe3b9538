//! Invariants that hold in all histories of paths, and the histories of single paths.

use super::*;
use crate::buckets::{MOVES_MAX, PathBuckets};
use crate::flow::{Flow, Route};
use crate::scheme::Scheme;
use proptest::prelude::*;

const MS: u64 = 1_000_000;

fn paths(count: u16) -> Paths {
    let ports: Vec<Ports> = (0..count).map(|main| Ports { main, spare: None }).collect();
    Paths::new(0, Settings::of_rate(10_000_000_000), &ports)
}

/// Probes a path and answers at once, with this queue in ns. Earlier unanswered probes have not arrived.
fn answer(paths: &mut Paths, now: u64, path: usize, queue: i64) {
    let sequence = paths.probe_sent(now, path);
    let arrived = paths.all()[path].loss.arrived() + 1;
    let said = ProbeReply { delay_ns: 1_000_000_007 + queue, marked: false, arrived };
    assert!(paths.probe_answered(now, path, sequence, said));
}

fn all_answer(paths: &mut Paths, from: u64, rounds: u64, queues: &[i64]) -> u64 {
    for round in 0..rounds {
        let now = from + round * 10 * MS;
        for (path, queue) in queues.iter().enumerate() {
            answer(paths, now, path, *queue);
        }
        paths.tick(now);
    }
    from + rounds * 10 * MS
}

#[test]
fn three_misses_put_a_path_out_within_50_ms_and_it_returns_slowly() {
    let mut paths = paths(2);
    let cut = all_answer(&mut paths, 0, 20, &[0, 0]);
    let mut out = None;
    for now in (cut..cut + 60 * MS).step_by(MS as usize) {
        if (now - cut).is_multiple_of(10 * MS) {
            answer(&mut paths, now, 0, 0);
            paths.probe_sent(now, 1);
        }
        paths.tick(now);
        if paths.all()[1].state() == State::Failed {
            out = out.or(Some(now - cut));
        }
    }
    assert!(out.is_some_and(|out| out <= 40 * MS), "{out:?}");
    assert_eq!(paths.all()[1].last_change().0, Reason::Misses);
    assert_eq!(paths.shares(), [FULL, 0]);
    // The last probe sent before the repair is given up after the first answer.
    let back = all_answer(&mut paths, cut + 60 * MS, u64::from(ANSWERS_TO_RETURN) + 1, &[0, 0]);
    assert_eq!(paths.all()[1].state(), State::Returning);
    assert_eq!(paths.all()[1].weight(), WEIGHT_MIN);
    all_answer(&mut paths, back, 80, &[0, 0]);
    assert!(paths.all()[1].weight() < FULL, "the ramp is slow");
    all_answer(&mut paths, back + 800 * MS, 100, &[0, 0]);
    assert_eq!((paths.all()[1].state(), paths.all()[1].weight()), (State::Good, FULL));
}

#[test]
fn a_path_that_loses_two_percent_is_grey() {
    let mut paths = paths(2);
    for round in 0..400 {
        let now = round * 10 * MS;
        answer(&mut paths, now, 0, 0);
        if round % 50 == 7 {
            paths.probe_sent(now, 1);
        } else {
            answer(&mut paths, now, 1, 0);
        }
        paths.tick(now + 10 * MS);
    }
    assert_eq!(paths.all()[1].state(), State::Grey);
    assert_eq!(paths.choose(0, None, &mut Random::new(1)), 0);
}

#[test]
fn what_all_paths_lose_makes_none_grey_and_one_that_is_grey_recovers_where_nothing_is_sent() {
    let mut paths = paths(3);
    let mut now = all_answer(&mut paths, 0, 250, &[0; 3]);
    // The node is unreachable for two probes of each path, now and then; then only the second path loses
    // some.
    let mut lose = |paths: &mut Paths, which: &[usize], probes: u32| {
        for number in 0..probes {
            for path in 0..3 {
                if number % 20 < 2 && which.contains(&path) {
                    paths.probe_sent(now, path);
                } else {
                    answer(paths, now, path, 0);
                }
            }
            now += 10 * MS;
            paths.tick(now);
        }
    };
    lose(&mut paths, &[0, 1, 2], 600);
    assert!(paths.all().iter().all(|path| path.state() != State::Grey && path.judged().lost > 10));
    lose(&mut paths, &[1], 600);
    assert_eq!(paths.all()[1].state(), State::Grey);
    // From now on only paths in doubt are probed, as on a host that sends nothing.
    let grey_at = now;
    while paths.all()[1].state() == State::Grey {
        assert!(now < grey_at + 5000 * MS, "it takes some seconds");
        for path in paths.doubtful(now) {
            answer(&mut paths, now, path, 0);
        }
        now += 10 * MS;
        paths.tick(now);
    }
}

#[test]
fn a_broken_way_back_condemns_no_path() {
    let mut paths = paths(2);
    let mut states = Vec::new();
    for round in 0..2000 {
        let now = round * 10 * MS;
        answer(&mut paths, now, 0, 0);
        // All probes arrive. Four consecutive answers of sixteen are lost, more than enough to fail a path.
        let sequence = paths.probe_sent(now, 1);
        if round % 16 < 12 {
            let arrived = round as u32 + 1;
            paths.probe_answered(now, 1, sequence, ProbeReply { delay_ns: 0, marked: false, arrived });
        }
        paths.tick(now + 10 * MS);
        states.push(paths.all()[1].state());
    }
    assert!(!states.contains(&State::Grey) && !states.contains(&State::Congested));
    let failed = states.iter().filter(|state| **state == State::Failed).count();
    assert!(failed < 2000 / 4, "only until an answer shows that the probes arrived: {failed}");
    assert_eq!(paths.all()[1].judged().lost, paths.all()[1].loss.misses());
}

#[test]
fn a_path_that_loses_packets_is_no_way_out_however_short_its_queue() {
    let mut paths = paths(2);
    let now = all_answer(&mut paths, 0, 20, &[0, 0]);
    paths.probe_sent(now, 1);
    let now = all_answer(&mut paths, now + 10 * MS, 1, &[0, 0]);
    assert_eq!(paths.all()[1].state(), State::Congested);
    assert_eq!(paths.all()[1].last_change().0, Reason::Drops);
    // A burst on the other one takes less than a timeout.
    paths.sent(now, 0, 1_000_000);
    assert!(paths.is_better(now, 0, 1));
    assert_eq!(paths.doubtful(now), [1], "it is probed even while nothing is sent");
    let now = all_answer(&mut paths, now, 30, &[0, 0]);
    assert_eq!(paths.all()[1].state(), State::Good);
    assert_eq!(paths.doubtful(now), [0_usize; 0]);
}

#[test]
fn a_congested_path_gets_less_and_recovers() {
    let mut paths = paths(4);
    let from = all_answer(&mut paths, 0, 5, &[0; 4]);
    let from = all_answer(&mut paths, from, 40, &[0, 0, 0, 500_000]);
    assert_eq!(paths.all()[3].state(), State::Congested);
    assert_eq!(paths.all()[3].last_change().0, Reason::Delay);
    assert!(paths.shares()[3] < FULL / 2, "{:?}", paths.shares());
    all_answer(&mut paths, from, 300, &[0; 4]);
    assert_eq!(paths.shares(), [FULL; 4]);
}

#[test]
fn a_clock_that_jumps_changes_no_choice() {
    for jump in [-3_600_000_000_000_i64, 30_000_000, 3_600_000_000_000] {
        let mut paths = paths(4);
        let from = all_answer(&mut paths, 0, 5, &[0; 4]);
        let from = all_answer(&mut paths, from, 20, &[0, 300_000, 0, 0]);
        all_answer(&mut paths, from, 40, &[jump, jump + 300_000, jump, jump]);
        let states: Vec<State> = paths.all().iter().map(Path::state).collect();
        // The queue itself is forgotten with the old clock if the jump is large; the healthy stay healthy.
        assert!(states[0] == State::Good && states[2] == State::Good, "{jump}: {states:?}");
        assert_ne!(states[1], State::Failed);
    }
}

#[test]
fn replayed_and_made_up_answers_are_refused() {
    let mut paths = paths(1);
    let sequence = paths.probe_sent(0, 0);
    let wild = ProbeReply { delay_ns: i64::MIN, marked: true, arrived: 7 };
    assert!(!paths.probe_answered(1, 0, sequence + 1, wild));
    assert!(!paths.probe_answered(1, 9, sequence, wild));
    assert!(paths.probe_answered(1, 0, sequence, ProbeReply { delay_ns: 5, marked: false, arrived: 1 }));
    assert!(!paths.probe_answered(1, 0, sequence, wild));
}

#[test]
fn local_bytes_keep_simultaneous_flows_apart() {
    let (mut paths, mut random) = (paths(4), Random::new(1));
    let mut counts = [0; 4];
    for hash in 0..40 {
        let mut flow = Flow::new(Scheme::Adaptive, hash);
        let Route::Path(path) = flow.place(1000, 150_000, &mut paths, &mut random) else { panic!() };
        counts[path] += 1;
    }
    assert!(counts.iter().all(|count| (7..=13).contains(count)), "{counts:?}");
}

#[test]
fn a_flow_leaves_a_failed_path_at_its_next_packet_and_no_other() {
    let (mut paths, mut random) = (paths(2), Random::new(1));
    let mut flow = Flow::new(Scheme::Adaptive, 1);
    let Route::Path(first) = flow.place(0, 1500, &mut paths, &mut random) else { panic!() };
    for now in 1..1000 {
        assert_eq!(flow.place(now * 1000, 1500, &mut paths, &mut random), Route::Path(first));
    }
    for at in 0..MISSES_MAX {
        paths.probe_sent(u64::from(at), first);
    }
    paths.tick(20 * MS);
    assert_eq!(flow.place(20 * MS, 1500, &mut paths, &mut random), Route::Path(1 - first));
    assert_eq!(flow.moves(), 1);
}

#[test]
fn after_a_gap_a_flow_is_placed_anew_among_equal_paths_and_off_a_long_queue() {
    let mut paths = paths(4);
    let (gap, mut random) = (paths.settings().flowlet_ns, Random::new(1));
    let now = all_answer(&mut paths, 0, 5, &[0; 4]);
    let mut flow = Flow::new(Scheme::Adaptive, 1);
    let mut used = [0; 4];
    for at in 0..200 {
        let Route::Path(path) = flow.place(now + at * gap, 1500, &mut paths, &mut random) else { panic!() };
        used[path] += 1;
    }
    assert!(used.iter().all(|count| *count > 20), "{used:?}");
    let later = all_answer(&mut paths, now + 1000 * MS, 20, &[0, 0, 0, 900_000]);
    for at in 0..200 {
        assert_ne!(flow.place(later + at * gap, 1500, &mut paths, &mut random), Route::Path(3));
    }
}

#[test]
fn cells_use_all_paths_but_congested_ones() {
    let settings = Settings { cell_bytes: Some(0), ..Settings::of_rate(10_000_000_000) };
    let ports: Vec<Ports> = (0..3).map(|main| Ports { main, spare: None }).collect();
    let (mut paths, mut random) = (Paths::new(0, settings, &ports), Random::new(1));
    let from = all_answer(&mut paths, 0, 5, &[0; 3]);
    let now = all_answer(&mut paths, from, 20, &[0, 0, 900_000]);
    let mut flow = Flow::new(Scheme::Adaptive, 1);
    let mut used = [0; 3];
    for packet in 0..100 {
        let Route::Path(path) = flow.place(now + packet, 1500, &mut paths, &mut random) else { panic!() };
        used[path] += 1;
    }
    assert!(used[0] > 40 && used[1] > 40 && used[2] <= 1, "{used:?}");
}

#[test]
fn a_large_flow_whose_packets_are_marked_moves_and_a_small_one_stays() {
    for (bytes, moves) in [(10_000_u64, false), (1_000_000, true)] {
        let (mut paths, mut random) = (paths(4), Random::new(2));
        let mut flow = Flow::new(Scheme::Adaptive, 1);
        flow.place(0, bytes, &mut paths, &mut random);
        for at in 1..100 {
            let Some(Route::Path(path)) = flow.route() else { panic!() };
            paths.echoed(at * 1000, path, 10, 9);
            flow.round(at * 1000, crate::flow::Round { packets: 10, marked: 9, idle: false }, &mut random);
            flow.place(at * 1000, 100, &mut paths, &mut random);
        }
        assert_eq!(flow.moves() > 0, moves, "{bytes} bytes");
        assert!(flow.moves() < 20, "it is held: {}", flow.moves());
    }
}

/// An event in the history of a path.
#[derive(Clone, Debug)]
enum HistoryEvent {
    Probe(i64, bool),
    Lose,
    Send(u64),
    Echo(u32, u32),
    Rehash,
    Wait(u64),
}

fn events() -> impl Strategy<Value = Vec<(usize, HistoryEvent)>> {
    let event = prop_oneof![
        (any::<i64>(), any::<bool>()).prop_map(|(delay, marked)| HistoryEvent::Probe(delay, marked)),
        (0_i64..2_000_000, any::<bool>()).prop_map(|(delay, marked)| HistoryEvent::Probe(delay, marked)),
        Just(HistoryEvent::Lose),
        (0_u64..1_000_000).prop_map(HistoryEvent::Send),
        (0_u32..100, 0_u32..200).prop_map(|(packets, marked)| HistoryEvent::Echo(packets, marked)),
        Just(HistoryEvent::Rehash),
        (0_u64..100 * MS).prop_map(HistoryEvent::Wait),
    ];
    prop::collection::vec((0_usize..6, event), 0..300)
}

/// Plays a history; `check` sees the state after each event.
fn replay(story: &[(usize, HistoryEvent)], count: u16, mut check: impl FnMut(u64, &Paths)) {
    let (mut paths, mut now, mut arrived) = (paths(count), 0, [0; 6]);
    for (path, event) in story {
        match *event {
            HistoryEvent::Probe(delay_ns, marked) => {
                let sequence = paths.probe_sent(now, *path);
                arrived[*path] += 1;
                let answer = ProbeReply { delay_ns, marked, arrived: arrived[*path] };
                let known = paths.probe_answered(now, *path, sequence, answer);
                assert_eq!(known, *path < usize::from(count));
            }
            HistoryEvent::Lose => {
                paths.probe_sent(now, *path);
                now += 10 * MS;
            }
            HistoryEvent::Send(bytes) => paths.sent(now, *path, bytes),
            HistoryEvent::Echo(packets, marked) => paths.echoed(now, *path, packets, marked),
            HistoryEvent::Rehash => paths.rehashed(now, *path),
            HistoryEvent::Wait(time) => now += time,
        }
        paths.tick(now);
        check(now, &paths);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_failed_path_is_never_chosen_while_another_lives(story in events(), count in 1_u16..6, seed: u64) {
        let mut random = Random::new(seed);
        replay(&story, count, |now, paths| {
            let is_alive = |path: usize| paths.all()[path].state() != State::Failed;
            let lives = (0..usize::from(count)).any(is_alive);
            for avoid in (0..usize::from(count)).map(Some).chain([None]) {
                let chosen = paths.choose(now, avoid, &mut random);
                assert!(chosen < usize::from(count));
                assert!(is_alive(chosen) || !lives);
                let again = paths.choose_again(now, chosen, &mut random);
                assert!(is_alive(again) || !lives);
            }
        });
    }

    #[test]
    fn weights_are_within_limits_and_somebody_has_one(story in events(), count in 1_u16..6) {
        replay(&story, count, |_, paths| {
            let shares = paths.shares();
            assert!(shares.iter().all(|share| *share <= FULL));
            assert!(shares.iter().sum::<u32>() > 0);
            for (share, path) in shares.iter().zip(paths.all()) {
                assert!(path.state() != State::Failed || *share <= 1);
                assert!(path.weight() == 0 || (WEIGHT_MIN..=FULL).contains(&path.weight()));
            }
        });
    }

    #[test]
    fn buckets_leave_failed_paths_at_once_and_others_step_by_step(story in events(), seed: u64) {
        let (mut random, mut buckets) = (Random::new(seed), PathBuckets::new(&paths(5)));
        replay(&story, 5, |_, paths| {
            let shares = paths.shares();
            let moves = buckets.follow(paths, &mut random);
            let usable = moves.iter().filter(|one| shares[usize::from(one.from)] > 0).count();
            assert!(usable <= MOVES_MAX);
            assert!(buckets.slots().iter().all(|path| shares[usize::from(*path)] > 0));
        });
    }

    #[test]
    fn equal_stories_have_equal_ends(story in events(), seed: u64) {
        let run = |_: u8| {
            let (mut random, mut chosen) = (Random::new(seed), Vec::new());
            replay(&story, 5, |now, paths| {
                chosen.push((paths.choose(now, None, &mut random), paths.shares()));
            });
            chosen
        };
        prop_assert_eq!(run(0), run(1));
    }
}

/// Small probes are always answered, and large ones, if due, on the paths for which `passes` is true. Returns
/// how many large ones were sent.
fn large_probes(paths: &mut Paths, from: u64, seconds: u64, passes: &[bool]) -> usize {
    let (mut random, mut sent) = (Random::new(3), 0);
    for now in (from..from + seconds * 1000 * MS).step_by(10 * MS as usize) {
        (0..passes.len()).for_each(|path| answer(paths, now, path, 0));
        if let Some(path) = paths.large_due(now) {
            sent += 1;
            let sequence = paths.large_sent(now, path, &mut random);
            assert!(!passes[path] || paths.large_answered(path, sequence));
            assert!(!paths.large_answered(path, sequence + 1), "made up");
        }
        paths.tick(now);
    }
    sent
}

fn states(paths: &Paths) -> Vec<State> {
    paths.all().iter().map(Path::state).collect()
}

#[test]
fn a_path_that_loses_large_frames_is_grey_until_one_passes() {
    let mut paths = paths(3);
    assert_eq!(large_probes(&mut paths, 0, 20, &[true; 3]), 0, "there are none until their length is known");
    paths.set_large(1500);
    let sent = large_probes(&mut paths, 20_000 * MS, 100, &[true; 3]);
    assert!((24..=45).contains(&sent), "each path once in ten seconds: {sent}");
    assert_eq!((states(&paths), paths.fit(1)), (vec![State::Good; 3], Fit::Pass));
    large_probes(&mut paths, 120_000 * MS, 16, &[true, false, true]);
    assert_eq!(states(&paths), [State::Good, State::Grey, State::Good]);
    assert_eq!((paths.fit(1), paths.all()[1].last_change().0), (Fit::Lost, Reason::LargeLost));
    assert_eq!(paths.shares(), [FULL, 0, FULL]);
    // Small probes alone do not restore it.
    large_probes(&mut paths, 136_000 * MS, 60, &[true, false, true]);
    assert_eq!(paths.all()[1].state(), State::Grey);
    large_probes(&mut paths, 196_000 * MS, 16, &[true; 3]);
    assert_eq!((states(&paths), paths.fit(1)), (vec![State::Good; 3], Fit::Pass));
    // Results for another length do not apply to this one.
    paths.set_large(9000);
    assert_eq!(paths.fit(1), Fit::Unknown);
}

#[test]
fn a_node_that_answers_no_large_probe_has_good_paths() {
    let mut paths = paths(2);
    paths.set_large(1500);
    large_probes(&mut paths, 0, 100, &[false; 2]);
    assert_eq!((states(&paths), paths.fit(0)), (vec![State::Good; 2], Fit::Unanswered));
    large_probes(&mut paths, 100_000 * MS, 16, &[false, true]);
    assert_eq!(states(&paths), [State::Grey, State::Good], "now there is information");
}

#[test]
fn large_probes_that_are_lost_with_small_ones_say_nothing() {
    let mut paths = paths(2);
    paths.set_large(1500);
    large_probes(&mut paths, 0, 20, &[true; 2]);
    let mut random = Random::new(3);
    for now in (20_000 * MS..60_000 * MS).step_by(10 * MS as usize) {
        answer(&mut paths, now, 0, 0);
        paths.probe_sent(now, 1);
        if let Some(path) = paths.large_due(now) {
            assert!(path == 0 || now < 20_010 * MS, "a failed path is not probed");
            let sequence = paths.large_sent(now, path, &mut random);
            assert!(path == 1 || paths.large_answered(path, sequence));
        }
        paths.tick(now);
    }
    assert_eq!((paths.all()[1].state(), paths.fit(1)), (State::Failed, Fit::Pass));
}

fn one_sided(count: u16) -> Paths {
    let ports: Vec<Ports> = (0..count).map(|main| Ports { main, spare: None }).collect();
    Paths::new(0, Settings::of_rate(10_000_000_000).one_sided(1000 * MS), &ports)
}

/// Connections on a path send 20 segments, some of them again, and get acknowledgements after this time.
fn carry(paths: &mut Paths, now: u64, path: usize, again: u32, round_trip_ns: Option<u64>) {
    let is_heard = round_trip_ns.is_some();
    paths.observed(now, path, Observed { round_trip_ns, segments: 20, again, is_heard });
    paths.tick(now);
}

#[test]
fn without_help_connections_and_routers_reveal_the_bad_path() {
    // The fault of path 0, and the state that it leads to.
    for (again, round_trip_ns, states) in [
        (0, Some(5 * MS), [State::Congested].as_slice()),
        (10, Some(MS), &[State::Congested, State::Grey]),
        (20, None, &[State::Failed]),
    ] {
        let mut paths = one_sided(3);
        for at in 0..20 {
            (0..3).for_each(|path| carry(&mut paths, at * 10 * MS, path, 0, Some(MS)));
        }
        assert!(paths.all().iter().all(|path| path.state() == State::Good), "{:?}", paths.shares());
        for at in 20..30 {
            carry(&mut paths, at * 10 * MS, 0, again, round_trip_ns);
            (1..3).for_each(|path| carry(&mut paths, at * 10 * MS, path, 0, Some(MS)));
        }
        let now = 300 * MS;
        assert!(states.contains(&paths.all()[0].state()), "{again}: {:?}", paths.all()[0].state());
        let mut random = Random::new(1);
        assert!((0..100).all(|_| paths.choose(now, None, &mut random) != 0), "nothing new goes there");
        let offers = paths.offers();
        assert!(offers.iter().all(|offer| !offer.is_congested), "no flow moves within a burst");
        assert_eq!(offers[0].weight == 0, paths.all()[0].state() == State::Failed, "what works stays usable");
        // Without connections there, the fault is forgotten.
        for at in 0..1000 {
            let now = now + at * 100 * MS;
            (1..3).for_each(|path| carry(&mut paths, now, path, 0, Some(MS)));
        }
        assert!(matches!(paths.all()[0].state(), State::Good | State::Returning | State::Congested));
        assert!((0..100).any(|_| paths.choose(now + 100_000 * MS, None, &mut random) == 0));
    }
}

#[test]
fn a_queue_of_others_costs_more_than_one_of_our_own() {
    let mut paths = one_sided(2);
    let answer = |paths: &mut Paths, second: u64, path: usize, queue: u64| {
        let now = second * 1000 * MS;
        let sequence = paths.probe_sent(now, path);
        let said = ProbeReply { delay_ns: (MS + queue) as i64, marked: false, arrived: second as u32 + 1 };
        assert!(paths.probe_answered(now, path, sequence, said));
    };
    (0..2).for_each(|path| answer(&mut paths, 0, path, 0));
    (0..2).for_each(|path| answer(&mut paths, 1, path, 4 * MS));
    answer(&mut paths, 2, 1, 0);
    assert_eq!((paths.cost_ns(1), paths.all()[1].queue_ns()), (0, 0), "each answer counts as it is");
    assert_eq!(paths.cost_ns(0), 4 * MS + 50 * MS, "others may fill it");
    carry(&mut paths, 2000 * MS, 0, 0, Some(MS));
    assert_eq!(paths.cost_ns(0), 4 * MS, "connections get acknowledgements there");
    carry(&mut paths, 3001 * MS, 1, 0, Some(MS));
    assert_eq!(paths.cost_ns(0), 4 * MS + 50 * MS);
}

/// Connections on three of four paths fill a queue that all paths share, in the host for example. The last
/// probes were answered before that.
#[test]
fn a_common_queue_of_connections_hides_no_queue_of_others() {
    let mut paths = one_sided(4);
    for second in 0..2 {
        for path in 0..4 {
            let sequence = paths.probe_sent(second * 1000 * MS, path);
            let queue = if path == 3 { second * 7 * MS } else { 0 };
            let said =
                ProbeReply { delay_ns: (MS + queue) as i64, marked: false, arrived: second as u32 + 1 };
            assert!(paths.probe_answered(second * 1000 * MS + MS, path, sequence, said));
            if path < 3 {
                carry(&mut paths, second * 1000 * MS + MS, path, 0, Some(MS));
            }
        }
    }
    assert_eq!(paths.all()[3].state(), State::Congested);
    let mut random = Random::new(1);
    for step in 1..=50 {
        let now = 1001 * MS + step * 3 * MS;
        (0..3).for_each(|path| carry(&mut paths, now, path, 0, Some(23 * MS + step * path as u64 * MS / 10)));
        assert_eq!(paths.all()[3].state(), State::Congested, "after {step} acknowledgements");
        assert!((0..3).all(|path| paths.cost_ns(path) < paths.cost_ns(3)));
        assert!((0..100).all(|_| paths.choose(now, None, &mut random) != 3), "flows to come avoid it");
    }
}

#[test]
fn a_router_that_stops_to_answer_fails_only_a_path_without_acknowledgements() {
    let mut paths = one_sided(3);
    for second in 0..20 {
        let now = second * 1000 * MS;
        for path in 0..2 {
            let sequence = paths.probe_sent(now, path);
            let said = ProbeReply { delay_ns: MS as i64, marked: false, arrived: second as u32 + 1 };
            assert!(second >= 10 || paths.probe_answered(now + MS, path, sequence, said));
        }
        // A router that never answered says nothing.
        paths.probe_sent(now, 2);
        carry(&mut paths, now + MS, 0, 0, Some(MS));
        paths.tick(now + 999 * MS);
    }
    let states: Vec<State> = paths.all().iter().map(Path::state).collect();
    assert_eq!(states, [State::Good, State::Failed, State::New]);
}

proptest! {
    /// A flow that changes paths only after pauses of two round trips, measured with the queues of that time,
    /// is never reordered, however queues grow and shrink.
    #[test]
    fn after_two_round_trips_nothing_is_overtaken(
        steps in prop::collection::vec((0..3usize, 0..5u64, 0..4000u64), 1..200)
    ) {
        // Queues of three paths, in us: what a link of 1 packet/us has not sent yet.
        let (mut queues, mut now, mut last, mut latest) = ([0_u64; 3], 0_u64, (0, 0_u64), 0_u64);
        for (path, burst, pause) in steps {
            now += pause;
            queues.iter_mut().for_each(|queue| *queue = queue.saturating_sub(pause));
            queues[path] += burst * 100;
            let (before, sent) = last;
            let round_trip = 100 + queues.into_iter().max().unwrap_or_default() + pause.min(now - sent);
            let path = if now - sent >= 2 * round_trip { path } else { before };
            let arrives = now + 50 + queues[path];
            prop_assert!(arrives >= latest, "{} {}", arrives, latest);
            (last, latest) = ((path, now), arrives);
        }
    }
}
