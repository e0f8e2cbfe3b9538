use super::*;
use crate::assignment::{Assignment, Move, When};
use proptest::prelude::*;

const MS: u64 = NS_PER_MS;
const GBPS: u64 = 1_000_000_000;

fn link(member: u16, carrier: bool) -> Link {
    Link { member, carrier, speed_bps: Some(10 * GBPS), admission: Admission::default() }
}

/// A bond with members 1 to `count`, all with carrier.
fn links(policy: LinkPolicy, count: u16) -> Links {
    let members: Vec<Link> = (1..=count).map(|member| link(member, true)).collect();
    let mut links = Links::new(0, policy, None, &members).0;
    // Lets every delay pass.
    links.step(0, LinkEvent::Tick);
    links
}

fn active(from: Option<u16>, to: Option<u16>) -> Output {
    Output::Active { from, to }
}

fn primary(member: u16, reselect: Reselect) -> LinkPolicy {
    LinkPolicy { primary: Some(member), reselect, ..LinkPolicy::default() }
}

#[test]
fn members_with_carrier_are_enabled_and_the_first_is_active() {
    let (links, outputs) =
        Links::new(0, LinkPolicy::default(), None, &[link(1, false), link(2, true), link(3, true)]);
    assert_eq!(outputs, [Output::Enabled(2), Output::Enabled(3), active(None, Some(2))]);
    assert_eq!((links.active(), links.wake_ns()), (Some(2), None));
    assert_eq!(links.enabled().collect::<Vec<_>>(), [2, 3]);
}

/// B6 without a primary: p1 is active until it fails, then p2 is, even after p1 returns.
#[test]
fn without_a_primary_the_active_member_stays() {
    let mut links = links(LinkPolicy::default(), 2);
    assert_eq!(links.step(MS, LinkEvent::Carrier(2, false)), [Output::Disabled(2, Reason::Carrier)]);
    assert_eq!(links.active(), Some(1));
    links.step(2 * MS, LinkEvent::Carrier(2, true));
    let outputs = links.step(3 * MS, LinkEvent::Carrier(1, false));
    assert_eq!(outputs, [Output::Disabled(1, Reason::Carrier), active(Some(1), Some(2))]);
    assert_eq!(links.step(4 * MS, LinkEvent::Carrier(1, true)), [Output::Enabled(1)]);
    assert_eq!(links.active(), Some(2));
}

/// B6 with a primary: it becomes active again as soon as its carrier returns (in OVS, within 100 ms).
#[test]
fn a_primary_returns() {
    let mut links = links(primary(1, Reselect::Always), 2);
    links.step(MS, LinkEvent::Carrier(1, false));
    assert_eq!(links.active(), Some(2));
    assert_eq!(
        links.step(2 * MS, LinkEvent::Carrier(1, true)),
        [Output::Enabled(1), active(Some(2), Some(1))]
    );
}

/// B7: the primary is removed from the bond, added again, changed, and finally unset.
#[test]
fn a_primary_need_not_be_there() {
    let mut links = links(primary(1, Reselect::Always), 3);
    let outputs = links.step(MS, LinkEvent::Remove(1));
    assert_eq!(outputs, [Output::Disabled(1, Reason::Removed), active(Some(1), Some(2))]);
    assert_eq!(links.state(1), None);
    assert_eq!(
        links.step(2 * MS, LinkEvent::Add(link(1, true))),
        [Output::Enabled(1), active(Some(2), Some(1))]
    );
    let change = LinkEvent::Policy(primary(2, Reselect::Always));
    assert_eq!(links.step(3 * MS, change), [active(Some(1), Some(2))]);
    assert_eq!(links.step(4 * MS, LinkEvent::Policy(LinkPolicy::default())), []);
    assert_eq!(links.active(), Some(2));
    assert_eq!(links.step(5 * MS, LinkEvent::Policy(primary(9, Reselect::Always))), []);
}

/// B8: once the primary changes, nothing is sent to the old one, since the bond's only bucket moves at once.
#[test]
fn a_changed_primary_takes_the_bucket_along() {
    let mut links = links(primary(1, Reselect::Always), 2);
    let mut assignment = Assignment::new(1, &[(1, 1), (2, 1)]);
    assignment.set_only(links.active());
    links.step(MS, LinkEvent::Policy(primary(2, Reselect::Failure)));
    assert_eq!(assignment.set_only(links.active()), [Move { bucket: 0, to: 2, when: When::Now }]);
    links.step(2 * MS, LinkEvent::Carrier(2, false));
    assert_eq!(assignment.set_only(links.active()), [Move { bucket: 0, to: 1, when: When::Now }]);
}

/// B10: without a primary, the member that was active before a restart is active after it.
#[test]
fn the_last_active_member_survives_a_restart() {
    let members = [link(1, true), link(2, true)];
    assert_eq!(Links::new(0, LinkPolicy::default(), Some(2), &members).0.active(), Some(2));
    assert_eq!(Links::new(0, primary(1, Reselect::Always), Some(2), &members).0.active(), Some(1));
    assert_eq!(Links::new(0, LinkPolicy::default(), Some(7), &members).0.active(), Some(1));
    // With an updelay only one member is enabled at first, and it is the one that was active.
    let slow = LinkPolicy { updelay_ms: 500, ..LinkPolicy::default() };
    assert_eq!(Links::new(0, slow.clone(), Some(2), &members).0.active(), Some(2));
    let slow = LinkPolicy { primary: Some(1), ..slow };
    assert_eq!(Links::new(0, slow, Some(2), &members).0.active(), Some(1));
}

#[test]
fn reselection_is_a_policy() {
    for (reselect, speed_bps, after) in [
        (Reselect::Always, GBPS, 1),
        (Reselect::Better, 10 * GBPS, 2),
        (Reselect::Better, 25 * GBPS, 1),
        (Reselect::Failure, 25 * GBPS, 2),
    ] {
        let mut links = links(primary(1, reselect), 2);
        links.step(MS, LinkEvent::Speed(1, Some(speed_bps)));
        links.step(MS, LinkEvent::Carrier(1, false));
        assert_eq!(links.active(), Some(2));
        links.step(2 * MS, LinkEvent::Carrier(1, true));
        assert_eq!(links.active(), Some(after), "{reselect:?} at {speed_bps}");
        links.step(3 * MS, LinkEvent::Carrier(2, false));
        assert_eq!(links.active(), Some(1));
    }
}

#[test]
fn the_operator_chooses_and_the_primary_waits() {
    let mut links = links(primary(1, Reselect::Always), 3);
    assert_eq!(links.set_active(2), Ok(vec![active(Some(1), Some(2))]));
    assert_eq!(links.set_active(2), Ok(vec![]));
    assert_eq!(links.step(MS, LinkEvent::Tick), []);
    assert_eq!(links.set_active(9), Err(ActivationRefusal::NoMember(9)));
    links.step(2 * MS, LinkEvent::Carrier(3, false));
    assert_eq!(links.set_active(3), Err(ActivationRefusal::Disabled(3)));
    assert_eq!(links.active(), Some(2));
    links.step(3 * MS, LinkEvent::Carrier(2, false));
    links.step(4 * MS, LinkEvent::Carrier(2, true));
    assert_eq!(links.active(), Some(1), "the manual choice ended when the member failed");
}

#[test]
fn the_operator_disables_at_once_and_for_good() {
    let mut links = links(LinkPolicy { updelay_ms: 100, downdelay_ms: 100, ..LinkPolicy::default() }, 1);
    let outputs = links.step(MS, LinkEvent::Operator(1, false));
    assert_eq!(outputs, [Output::Disabled(1, Reason::Operator), active(Some(1), None)]);
    assert_eq!(links.step(2 * MS, LinkEvent::Carrier(1, false)), []);
    assert_eq!(links.step(500 * MS, LinkEvent::Carrier(1, true)), []);
    assert_eq!(
        links.state(1).unwrap(),
        MemberState { enabled: false, collecting: false, against: Some(Reason::Operator), due_ns: None }
    );
    assert_eq!(
        links.step(501 * MS, LinkEvent::Operator(1, true)),
        [Output::Enabled(1), active(None, Some(1))]
    );
    assert_eq!(links.step(502 * MS, LinkEvent::Operator(1, true)), []);
}

/// Enabling a member without carrier must not start a delay at the end of which the member is disabled again.
#[test]
fn the_operator_cannot_enable_what_has_no_carrier() {
    let mut links = links(LinkPolicy::default(), 2);
    links.step(MS, LinkEvent::Operator(2, false));
    links.step(2 * MS, LinkEvent::Carrier(2, false));
    assert_eq!(links.step(3 * MS, LinkEvent::Operator(2, true)), []);
    assert_eq!(links.state(2).unwrap().against, Some(Reason::Carrier));
    assert_eq!(links.step(4 * MS, LinkEvent::Carrier(2, true)), [Output::Enabled(2)]);
}

#[test]
fn delays_are_kept_to_the_nanosecond() {
    let mut links = links(LinkPolicy { updelay_ms: 500, downdelay_ms: 200, ..LinkPolicy::default() }, 2);
    links.step(500 * MS, LinkEvent::Tick);
    assert_eq!(links.enabled().count(), 2);
    assert_eq!(links.step(1000 * MS, LinkEvent::Carrier(2, false)), []);
    assert_eq!(links.wake_ns(), Some(1200 * MS));
    assert_eq!(links.step(1200 * MS - 1, LinkEvent::Tick), []);
    assert_eq!(links.step(1200 * MS, LinkEvent::Tick), [Output::Disabled(2, Reason::Carrier)]);
    assert_eq!(links.step(2000 * MS, LinkEvent::Carrier(2, true)), []);
    assert_eq!(links.state(2).unwrap().due_ns, Some(2500 * MS));
    assert_eq!(links.step(2500 * MS - 1, LinkEvent::Tick), []);
    assert_eq!(links.step(2500 * MS, LinkEvent::Tick), [Output::Enabled(2)]);
    assert_eq!(links.wake_ns(), None);
}

#[test]
fn flaps_shorter_than_the_delays_change_nothing() {
    let mut links = links(LinkPolicy { updelay_ms: 100, downdelay_ms: 100, ..LinkPolicy::default() }, 2);
    links.step(100 * MS, LinkEvent::Tick);
    for flap in 0..50 {
        let at = (200 + flap * 150) * MS;
        assert_eq!(links.step(at, LinkEvent::Carrier(1, false)), []);
        assert_eq!(links.step(at + 99 * MS, LinkEvent::Carrier(1, true)), []);
    }
    links.step(9000 * MS, LinkEvent::Carrier(1, false));
    links.step(9100 * MS, LinkEvent::Tick);
    for flap in 0..50 {
        let at = (9200 + flap * 150) * MS;
        assert_eq!(links.step(at, LinkEvent::Carrier(1, true)), []);
        assert_eq!(links.step(at + 99 * MS, LinkEvent::Carrier(1, false)), []);
    }
    assert_eq!(links.wake_ns(), None);
}

/// The updelay is waived while no member is enabled.
#[test]
fn nobody_waits_while_nobody_is_enabled() {
    let mut links = links(LinkPolicy { updelay_ms: 1000, ..LinkPolicy::default() }, 3);
    assert_eq!(links.enabled().collect::<Vec<_>>(), [1]);
    links.step(500 * MS, LinkEvent::Carrier(2, false));
    links.step(600 * MS, LinkEvent::Carrier(2, true));
    // Member 3 is due at 1000 ms and member 2 at 1600 ms, so 3 is enabled now.
    let outputs = links.step(700 * MS, LinkEvent::Carrier(1, false));
    assert_eq!(outputs, [Output::Disabled(1, Reason::Carrier), Output::Enabled(3), active(Some(1), Some(3))]);
    assert_eq!(links.step(1600 * MS, LinkEvent::Tick), [Output::Enabled(2)]);
}

/// A late step first handles everything that was due, in order, and then the new event.
#[test]
fn late_steps_catch_up() {
    let mut links = links(LinkPolicy { downdelay_ms: 100, ..LinkPolicy::default() }, 3);
    links.step(0, LinkEvent::Carrier(2, false));
    links.step(50 * MS, LinkEvent::Carrier(1, false));
    let outputs = links.step(1000 * MS, LinkEvent::Carrier(1, true));
    let wanted = [
        Output::Disabled(2, Reason::Carrier),
        Output::Disabled(1, Reason::Carrier),
        active(Some(1), Some(3)),
        Output::Enabled(1),
    ];
    assert_eq!(outputs, wanted);
}

#[test]
fn lacp_admits() {
    let silent = Admission { collecting: false, distributing: false };
    let members = [1, 2].map(|member| Link { admission: silent, ..link(member, true) });
    let (mut links, outputs) =
        Links::new(0, LinkPolicy { downdelay_ms: 50, ..LinkPolicy::default() }, None, &members);
    assert_eq!(outputs, []);
    assert_eq!(links.state(1).unwrap().against, Some(Reason::Lacp));
    let half = Admission { collecting: true, distributing: false };
    assert_eq!(links.step(MS, LinkEvent::Admission(1, half)), []);
    assert!(links.state(1).unwrap().collecting);
    let outputs = links.step(2 * MS, LinkEvent::Admission(1, Admission::default()));
    assert_eq!(outputs, [Output::Enabled(1), active(None, Some(1))]);
    // The downdelay applies to LACP too: carrier and LACP fail together and may return together.
    links.step(3 * MS, LinkEvent::Carrier(1, false));
    links.step(3 * MS, LinkEvent::Admission(1, silent));
    links.step(40 * MS, LinkEvent::Carrier(1, true));
    assert_eq!(links.step(52 * MS, LinkEvent::Admission(1, Admission::default())), []);
    links.step(60 * MS, LinkEvent::Admission(1, half));
    let outputs = links.step(110 * MS, LinkEvent::Tick);
    assert_eq!(outputs, [Output::Disabled(1, Reason::Lacp), active(Some(1), None)]);
}

fn probing(need: Need, validate: bool) -> LinkPolicy {
    let probe = Probe { interval_ms: 100, missed_max: 2, targets: 2, need, validate };
    LinkPolicy { probe: Some(probe), ..LinkPolicy::default() }
}

#[test]
fn probes_are_sent_and_missed() {
    let (mut links, outputs) = Links::new(0, probing(Need::Any, true), None, &[link(1, true)]);
    let asked = [Output::Probe(1, 0), Output::Probe(1, 1)];
    assert_eq!(outputs, asked);
    assert_eq!(links.step(0, LinkEvent::Tick), []);
    assert_eq!(links.step(MS, LinkEvent::Received(1)), [], "not an answer");
    assert_eq!(links.step(2 * MS, LinkEvent::Answer(1, 1)), [Output::Enabled(1), active(None, Some(1))]);
    assert_eq!(links.wake_ns(), Some(100 * MS));
    assert_eq!(links.step(100 * MS, LinkEvent::Tick), asked);
    assert_eq!(links.step(200 * MS, LinkEvent::Tick), asked, "one missed");
    links.step(250 * MS, LinkEvent::Answer(1, 0));
    assert_eq!(links.step(300 * MS, LinkEvent::Tick), asked);
    assert_eq!(links.step(400 * MS, LinkEvent::Tick), asked, "one missed again");
    let lost = [Output::Disabled(1, Reason::Probe), active(Some(1), None)];
    assert_eq!(links.step(500 * MS, LinkEvent::Tick), [asked.as_slice(), &lost].concat());
    assert_eq!(links.step(510 * MS, LinkEvent::Answer(1, 7)), [], "no such target");
    assert_eq!(links.step(520 * MS, LinkEvent::Answer(1, 0)), [Output::Enabled(1), active(None, Some(1))]);
}

#[test]
fn all_targets_may_be_needed() {
    let mut links = Links::new(0, probing(Need::All, true), None, &[link(1, true)]).0;
    links.step(0, LinkEvent::Tick);
    assert_eq!(links.step(MS, LinkEvent::Answer(1, 0)), []);
    assert_eq!(links.step(MS, LinkEvent::Answer(1, 1)).len(), 2);
    for at in [100, 200] {
        links.step(at * MS, LinkEvent::Tick);
        links.step(at * MS, LinkEvent::Answer(1, 0));
        assert!(links.state(1).unwrap().enabled);
    }
    links.step(300 * MS, LinkEvent::Tick);
    assert!(!links.state(1).unwrap().enabled);
}

#[test]
fn what_is_heard_counts_unless_answers_are_validated() {
    let mut links = Links::new(0, probing(Need::All, false), None, &[link(1, true)]).0;
    links.step(0, LinkEvent::Tick);
    assert_eq!(links.step(MS, LinkEvent::Received(1)).len(), 2);
}

/// Without carrier no probe is sent and no answer counts, and earlier answers do not count afterwards.
#[test]
fn probes_start_anew_with_carrier() {
    let asked = [Output::Probe(1, 0), Output::Probe(1, 1)];
    let (mut links, outputs) =
        Links::new(0, probing(Need::Any, false), None, &[link(1, true), link(2, false)]);
    assert_eq!(outputs, asked);
    assert_eq!(links.step(0, LinkEvent::Answer(2, 0)), []);
    assert_eq!(links.step(MS, LinkEvent::Received(2)), []);
    links.step(MS, LinkEvent::Received(1));
    links.step(50 * MS, LinkEvent::Carrier(1, false));
    assert_eq!(links.wake_ns(), None);
    assert_eq!(links.step(60 * MS, LinkEvent::Carrier(1, true)), asked);
    assert_eq!(links.state(1).unwrap().against, Some(Reason::Probe));
    let outputs = links.step(61 * MS, LinkEvent::Policy(LinkPolicy::default()));
    assert_eq!(outputs, [Output::Enabled(1), active(None, Some(1))]);
}

#[test]
fn probes_that_begin_on_a_working_member_give_it_time() {
    let mut links = links(LinkPolicy::default(), 1);
    assert_eq!(links.step(MS, LinkEvent::Policy(probing(Need::All, true))).len(), 2);
    assert_eq!(links.step(200 * MS, LinkEvent::Tick).len(), 2);
    assert!(links.state(1).unwrap().enabled);
    links.step(300 * MS, LinkEvent::Tick);
    links.step(400 * MS, LinkEvent::Tick);
    assert_eq!(links.state(1).unwrap().against, Some(Reason::Probe));
}

/// A daemon that was busy for 1 s has missed no answers, since no probes were sent.
#[test]
fn late_probes_are_not_caught_up() {
    let mut links = Links::new(0, probing(Need::Any, true), None, &[link(1, true)]).0;
    links.step(0, LinkEvent::Tick);
    links.step(MS, LinkEvent::Answer(1, 0));
    assert_eq!(links.step(1000 * MS, LinkEvent::Tick).len(), 2);
    assert!(links.state(1).unwrap().enabled);
    assert_eq!(links.wake_ns(), Some(1100 * MS));
}

fn event() -> impl Strategy<Value = LinkEvent> {
    let member = 0_u16..4;
    let admission = (any::<bool>(), any::<bool>())
        .prop_map(|(collecting, distributing)| Admission { collecting, distributing });
    let reselect = prop_oneof![Just(Reselect::Always), Just(Reselect::Better), Just(Reselect::Failure)];
    let policy = (0_u32..50, 0_u32..50, prop::option::of(0_u16..5), reselect).prop_map(
        |(updelay_ms, downdelay_ms, primary, reselect)| LinkPolicy {
            updelay_ms,
            downdelay_ms,
            primary,
            reselect,
            probe: None,
        },
    );
    prop_oneof![
        6 => (member.clone(), any::<bool>()).prop_map(|(at, up)| LinkEvent::Carrier(at, up)),
        2 => (member.clone(), admission).prop_map(|(at, admission)| LinkEvent::Admission(at, admission)),
        1 => (member.clone(), any::<bool>()).prop_map(|(at, allowed)| LinkEvent::Operator(at, allowed)),
        1 => (member.clone(), any::<bool>()).prop_map(|(at, carrier)| LinkEvent::Add(link(at, carrier))),
        1 => member.clone().prop_map(LinkEvent::Remove),
        1 => (member, 0_u64..3).prop_map(|(member, speed)| LinkEvent::Speed(member, Some(speed))),
        1 => policy.prop_map(LinkEvent::Policy),
        2 => Just(LinkEvent::Tick),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// For any events, the outputs add up to the state. If any member is usable, one is enabled, and if any
    /// is enabled, one is active. Stepping every millisecond gives the same result as stepping only at the
    /// requested times.
    #[test]
    fn what_is_told_is_what_is(events in prop::collection::vec((0_u64..40, event()), 1..80)) {
        let (mut links, mut often) = (links(LinkPolicy::default(), 3), links(LinkPolicy::default(), 3));
        let (mut enabled, mut active, mut now) = (vec![1, 2, 3], Some(1), 0);
        for (pause, event) in events {
            let mut announced = Vec::new();
            for _ in 0..pause {
                now += MS;
                announced.extend(often.step(now, LinkEvent::Tick));
            }
            announced.extend(often.step(now, event.clone()));
            let outputs = links.step(now, event);
            prop_assert_eq!(&outputs, &announced);
            for output in outputs {
                match output {
                    Output::Enabled(member) => enabled.push(member),
                    Output::Disabled(member, _) => {
                        prop_assert!(enabled.contains(&member));
                        enabled.retain(|&other| other != member);
                    }
                    Output::Active { from, to } => {
                        prop_assert!(from == active && from != to);
                        active = to;
                    }
                    Output::Probe(..) => prop_assert!(false, "there are none"),
                }
            }
            enabled.sort_unstable();
            prop_assert_eq!(&enabled, &links.enabled().collect::<Vec<_>>());
            prop_assert_eq!(active, links.active());
            prop_assert_eq!(active.is_some(), !enabled.is_empty());
            prop_assert!(active.is_none_or(|active| enabled.contains(&active)));
            let usable = (0..4).filter_map(|member| links.state(member)).any(|state| state.against.is_none());
            prop_assert!(!usable || !enabled.is_empty());
            prop_assert!(links.wake_ns().is_none_or(|wake| wake > now));
        }
    }
}
