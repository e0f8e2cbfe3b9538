//! A server against a naive model that keeps the whole history, under random outcomes and times.

use crate::health::{Monitor, RAMP, ServerState, Step, Times};
use proptest::prelude::*;
use weir_packet::random::Random;

const MS: u64 = 1_000_000;

fn times() -> Times {
    Times { interval_ns: 1000 * MS, jitter: 0, rise: 2, fall: 3, slow_start_ns: 0 }
}

fn outcome(good: bool) -> Result<(), String> {
    if good { Ok(()) } else { Err("refused".to_string()) }
}

/// A server after these outcomes, one per second.
fn monitor_after(times: Times, outcomes: &[bool]) -> Monitor {
    let mut random = Random::new(1);
    let mut monitor = Monitor::new(times, 0, &mut random);
    for (outcome_good, second) in outcomes.iter().zip(1..) {
        monitor.asked(second * 1000 * MS, MS, &mut random);
        monitor.handle(second * 1000 * MS, &outcome(*outcome_good));
    }
    monitor
}

/// The state that results from a history of outcomes.
fn twin(rise: usize, fall: usize, outcomes: &[bool]) -> ServerState {
    let mut state = ServerState::Unknown;
    for end in 1..=outcomes.len() {
        let last = |count: usize, good: bool| {
            end >= count && outcomes[end - count..end].iter().all(|one| *one == good)
        };
        state = match state {
            ServerState::Unknown if outcomes[0] => ServerState::Up,
            ServerState::Unknown => ServerState::Down,
            ServerState::Up if last(fall, false) => ServerState::Down,
            ServerState::Down if last(rise, true) => ServerState::Up,
            same => same,
        };
    }
    state
}

#[test]
fn the_first_outcome_decides_and_then_several_in_a_row() {
    let state = |outcomes: &[bool]| monitor_after(times(), outcomes).state();
    assert_eq!(state(&[]), ServerState::Unknown);
    assert_eq!(state(&[true]), ServerState::Up);
    assert_eq!(state(&[false]), ServerState::Down);
    assert_eq!(state(&[true, false, false]), ServerState::Up);
    assert_eq!(state(&[true, false, false, true, false, false]), ServerState::Up, "not in a row");
    assert_eq!(state(&[true, false, false, false]), ServerState::Down);
    assert_eq!(state(&[false, true]), ServerState::Down);
    assert_eq!(state(&[false, true, true]), ServerState::Up);
}

#[test]
fn it_says_why() {
    let reason = |outcomes: &[bool]| monitor_after(times(), outcomes).reason();
    assert_eq!(reason(&[]), "no check has finished yet");
    assert_eq!(reason(&[true]), "");
    assert_eq!(reason(&[true, false]), "1 of 3 bad checks: refused");
    assert_eq!(reason(&[false]), "refused");
    assert_eq!(reason(&[false, true]), "1 of 2 good checks");
}

#[test]
fn its_last_check_is_the_one_that_ended_last() {
    let last = |outcomes: &[bool]| monitor_after(times(), outcomes).last();
    assert_eq!(last(&[]), None);
    assert_eq!(last(&[false]).map(|check| check.passed), Some(false));
    let check = last(&[true, false, true]).unwrap();
    assert!(check.passed && check.ended_ns > last(&[true, false]).unwrap().ended_ns);
}

#[test]
fn a_check_without_an_answer_is_a_bad_one() {
    let mut random = Random::new(1);
    let mut monitor = Monitor::new(times(), 0, &mut random);
    let first_ns = monitor.due_ns();
    assert!(first_ns < 1000 * MS);
    assert_eq!((monitor.step(first_ns - 1), monitor.step(first_ns)), (Step::Wait, Step::Ask));
    monitor.asked(first_ns, 500 * MS, &mut random);
    assert_eq!(monitor.step(first_ns + 1500 * MS), Step::Wait, "one at a time");
    assert_eq!(monitor.step(first_ns + 5500 * MS), Step::Unanswered);
    assert!(monitor.handle(first_ns + 5500 * MS, &outcome(false)));
    assert_eq!(monitor.step(first_ns + 5500 * MS), Step::Ask, "the next one is overdue");
}

#[test]
fn its_weight_rises_only_after_it_was_down() {
    let slow = Times { slow_start_ns: 10_000 * MS, ..times() };
    let fresh = monitor_after(slow, &[true]);
    assert_eq!((fresh.share(1000 * MS), fresh.grows_ns(1000 * MS)), (RAMP, None));
    // The server comes up at 6 s.
    let back = monitor_after(slow, &[true, false, false, false, true, true]);
    let shares: Vec<u32> = (6..18).map(|second| back.share(second * 1000 * MS)).collect();
    assert_eq!(shares, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 10]);
    assert_eq!(back.grows_ns(6000 * MS), Some(7000 * MS));
    assert_eq!(back.grows_ns(6999 * MS), Some(7000 * MS));
    assert_eq!(back.grows_ns(7000 * MS), Some(8000 * MS));
    assert_eq!(back.grows_ns(15_000 * MS), None);
}

#[test]
fn after_maintenance_it_is_down_until_a_check_is_good() {
    let mut monitor = monitor_after(times(), &[true]);
    monitor.restart(5000 * MS);
    assert_eq!((monitor.state(), monitor.step(5000 * MS)), (ServerState::Down, Step::Ask));
    monitor.asked(5000 * MS, MS, &mut Random::new(1));
    assert!(monitor.handle(5001 * MS, &outcome(true)));
    assert_eq!(monitor.state(), ServerState::Up);
}

proptest! {
    #[test]
    fn states_are_those_of_the_whole_history(
        rise in 1_u32..5,
        fall in 1_u32..5,
        outcomes in proptest::collection::vec(any::<bool>(), 1..60),
    ) {
        let times = Times { rise, fall, ..times() };
        let mut changes = 0;
        let mut before = ServerState::Unknown;
        for end in 1..=outcomes.len() {
            let monitor = monitor_after(times, &outcomes[..end]);
            prop_assert_eq!(monitor.state(), twin(rise as usize, fall as usize, &outcomes[..end]));
            changes += u64::from(before != ServerState::Unknown && before != monitor.state());
            before = monitor.state();
            let counts = monitor.counts();
            prop_assert_eq!(counts.passed + counts.failed, end as u64);
            prop_assert_eq!(counts.changes, changes);
        }
    }

    #[test]
    fn checks_are_as_far_apart_as_configured(
        interval_ms in 10_u64..100_000,
        jitter in 0_u32..=500,
        seed in any::<u64>(),
        late_ms in 0_u64..200_000,
    ) {
        let times = Times { interval_ns: interval_ms * MS, jitter, ..times() };
        let mut random = Random::new(seed);
        let mut monitor = Monitor::new(times, 0, &mut random);
        let mut now_ns = monitor.due_ns();
        for _ in 0..20 {
            prop_assert_eq!(monitor.step(now_ns), Step::Ask);
            monitor.asked(now_ns, MS, &mut random);
            let heard_ns = now_ns + late_ms * MS;
            monitor.handle(heard_ns, &Ok(()));
            let apart = monitor.due_ns() - now_ns;
            let most = interval_ms * MS / 1000 * u64::from(jitter);
            prop_assert!(apart >= interval_ms * MS - most && apart <= interval_ms * MS + most);
            now_ns = monitor.due_ns().max(heard_ns);
        }
    }

    #[test]
    fn shares_grow_when_they_say(slow_ms in 1_u64..1_000_000, steps in 1_usize..30) {
        let slow = Times { slow_start_ns: slow_ms * MS, ..times() };
        let back = monitor_after(slow, &[false, true, true]);
        let mut now_ns = back.since_ns();
        for _ in 0..steps {
            let Some(grows_ns) = back.grows_ns(now_ns) else { break };
            prop_assert!(grows_ns > now_ns);
            prop_assert_eq!(back.share(grows_ns - 1), back.share(now_ns));
            prop_assert_eq!(back.share(grows_ns), back.share(now_ns) + 1);
            now_ns = grows_ns;
        }
        prop_assert_eq!(back.share(back.since_ns() + slow_ms * MS), RAMP);
    }
}
