//! The share of every back end, given the standing of all of them.

use crate::health::{Fail, Member, RAMP, Standing, weights};
use proptest::prelude::*;

fn member(standing: Standing, since_ns: u64, weight: u32) -> Member {
    Member { standing, since_ns, weight, share: RAMP }
}

#[test]
fn those_that_are_not_up_get_nothing() {
    use Standing::{Down, Draining, Maintenance, NoNeighbour, Unchecked, Unknown, Up};
    let all = [Unchecked, Unknown, Up, Down, Draining, Maintenance, NoNeighbour].map(|one| member(one, 0, 3));
    assert_eq!(weights(&all, Fail::All), (vec![3, 3, 3, 0, 0, 0, 0], false));
}

#[test]
fn with_all_down_the_policy_decides() {
    use Standing::{Down, Draining};
    let all = [member(Down, 5, 1), member(Down, 9, 2), member(Down, 9, 3), member(Draining, 20, 4)];
    assert_eq!(weights(&all, Fail::Drop), (vec![0, 0, 0, 0], true));
    assert_eq!(weights(&all, Fail::All), (vec![1, 2, 3, 0], true));
    assert_eq!(weights(&all, Fail::Last), (vec![0, 2, 3, 0], true));
}

#[test]
fn what_an_operator_takes_away_stays_away() {
    use Standing::{Draining, Maintenance};
    let all = [member(Draining, 0, 1), member(Maintenance, 0, 1)];
    for fail in [Fail::Drop, Fail::All, Fail::Last, Fail::Reject] {
        assert_eq!(weights(&all, fail), (vec![0, 0], false));
    }
    let unknown = [member(Standing::NoNeighbour, 0, 1), member(Standing::Down, 0, 1)];
    assert_eq!(weights(&unknown, Fail::All), (vec![0, 1], true), "nothing is sent when there is no back end");
    let zero = [member(Standing::Down, 0, 0), member(Standing::Up, 0, 0)];
    assert_eq!(weights(&zero, Fail::All), (vec![0, 0], false), "no back end has a configured weight");
}

#[test]
fn a_rising_share_is_at_least_something() {
    let rising = |weight, share| Member { share, ..member(Standing::Up, 0, weight) };
    let all = [rising(10, 1), rising(1, 1), rising(0, 1), rising(65_535, 9)];
    assert_eq!(weights(&all, Fail::All).0, [1, 1, 0, 58_981]);
}

fn standings() -> impl Strategy<Value = Standing> {
    use Standing::{Down, Draining, Maintenance, Unchecked, Unknown, Up};
    prop_oneof![Just(Unchecked), Just(Unknown), Just(Up), Just(Down), Just(Draining), Just(Maintenance)]
}

proptest! {
    #[test]
    fn promises(
        all in proptest::collection::vec((standings(), 0_u64..5, 0_u32..5, 1_u32..=RAMP), 0..12),
        fail in prop_oneof![Just(Fail::Drop), Just(Fail::All), Just(Fail::Last)],
    ) {
        let members: Vec<Member> = all
            .iter()
            .map(|&(standing, since_ns, weight, share)| Member { standing, since_ns, weight, share })
            .collect();
        let (got, decided) = weights(&members, fail);
        prop_assert_eq!(got.len(), members.len());
        let somebody = members.iter().any(|one| one.standing.is_up() && one.weight > 0);
        let could = members.iter().any(|one| one.standing == Standing::Down && one.weight > 0);
        prop_assert_eq!(decided, !somebody && could);
        for (one, &weight) in members.iter().zip(&got) {
            prop_assert!(weight <= one.weight);
            let withheld = matches!(one.standing, Standing::Draining | Standing::Maintenance);
            prop_assert!(!withheld || weight == 0);
            if somebody {
                prop_assert_eq!(weight > 0, one.standing.is_up() && one.weight > 0);
            }
        }
        let any = got.iter().any(|weight| *weight > 0);
        prop_assert_eq!(any, somebody || could && fail != Fail::Drop);
    }
}
