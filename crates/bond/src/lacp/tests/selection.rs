//! Which members are used if they do not all have the same partner.

use super::wire::*;
use crate::lacp::*;
use proptest::prelude::*;

fn with_key(member: u16, key: u16) -> Settings {
    Settings { key: Some(key), ..settings(member) }
}

/// Our end with a link to each end in `partners`.
fn star(ours: Config, partners: &[usize]) -> Net {
    let configs: Vec<Config> = std::iter::once(ours).chain((2..=4).map(config)).collect();
    let mut net = Net::new(&configs);
    for (member, partner) in (1..).zip(partners) {
        net.connect((0, settings(member)), (*partner, settings(member)));
    }
    net
}

fn used(net: &Net, end: usize) -> Vec<u16> {
    net.ends[end].used.iter().filter(|(_, used)| **used == (true, true)).map(|(member, _)| *member).collect()
}

#[test]
fn a_wrong_key_costs_the_member_that_has_it() {
    let mut net = Net::new(&[config(1), config(2)]);
    net.connect((0, settings(1)), (1, settings(1)));
    net.connect((0, settings(2)), (1, settings(2)));
    net.connect((0, settings(3)), (1, with_key(3, 99)));
    net.run(10 * SEC);
    assert_eq!((used(&net, 0), used(&net, 1)), (vec![1, 2], vec![1, 2]));
    assert_eq!(net.states(0, 3), ("current", "detached"));
    let key = Notice::NotSelected { partner: config(2).system, key: 99 };
    assert_eq!(net.ends[0].reports.iter().map(|report| (report.1, report.2)).collect::<Vec<_>>(), [(3, key)]);
}

#[test]
fn our_own_key_is_a_key_too() {
    let mut net = Net::new(&[config(1), config(2)]);
    net.connect((0, settings(1)), (1, settings(1)));
    net.connect((0, with_key(2, 5)), (1, settings(2)));
    net.run(10 * SEC);
    assert_eq!((used(&net, 0).len(), used(&net, 0)), (1, used(&net, 1)));
    assert_eq!(net.ends[0].lacp.status().aggregators.len(), 2);
}

#[test]
fn a_wrong_system_costs_the_member_that_leads_to_it() {
    let mut net = star(config(1), &[1, 1, 2]);
    net.run(10 * SEC);
    assert_eq!((used(&net, 0), used(&net, 1), used(&net, 2)), (vec![1, 2], vec![1, 2], vec![]));
    assert_eq!(net.states(0, 3), ("current", "detached"));
    let status = net.ends[0].lacp.status();
    let list: Vec<_> =
        status.aggregators.iter().map(|at| (at.active, at.partner.mac[5], at.members.clone())).collect();
    assert_eq!(list, [(true, 2, vec![1, 2]), (false, 3, vec![3])]);
    assert_eq!((status.aggregators[0].speed_bps, status.links), (20_000_000_000, 2));
}

#[test]
fn one_pdu_with_another_system_id_costs_one_member_for_as_long_as_it_is_sent() {
    for policy in [Policy::Stable, Policy::Bandwidth, Policy::Count] {
        let mut net = Net::pair(Config { policy, ..config(1) }, config(2), 2);
        net.run(5 * SEC);
        // The second chassis of the partner no longer sees the first.
        let mut pdu = net.ends[1].pdus(2).last().unwrap().1;
        pdu.actor.system.mac = [2, 0, 0, 0, 0, 1 << 7];
        pdu.actor.system.priority = 1;
        net.step(0, Event::Pdu { member: 2, bytes: &pdu.frame([2; 6]) });
        assert_eq!(used(&net, 0), [1]);
        assert!(net.run_until(4 * SEC, Net::all_work).is_some());
        assert_eq!(net.ends[0].changes.iter().filter(|change| change.1 == 1).count(), 2, "{policy:?}");
    }
}

#[test]
fn policies_choose_among_partners() {
    let choose = |policy: Policy, speeds: [u64; 3]| {
        let mut net = star(Config { policy, ..config(1) }, &[1, 2, 2]);
        for (member, speed_bps) in (1..).zip(speeds) {
            net.step(0, Event::Link { member, up: true, speed_bps: Some(speed_bps) });
        }
        net.run(10 * SEC);
        used(&net, 0)
    };
    assert_eq!(choose(Policy::Bandwidth, [100, 10, 10]), [1]);
    assert_eq!(choose(Policy::Stable, [100, 10, 10]), [1]);
    assert_eq!(choose(Policy::Count, [100, 10, 10]), [2, 3]);
    assert_eq!(choose(Policy::Bandwidth, [15, 10, 10]), [2, 3]);
    assert_eq!(choose(Policy::Stable, [15, 10, 10]), [2, 3]);
}

#[test]
fn stable_stays_and_the_others_move_to_what_is_better() {
    for (policy, expected) in
        [(Policy::Stable, vec![1]), (Policy::Bandwidth, vec![2, 3]), (Policy::Count, vec![2, 3])]
    {
        let mut net = star(Config { policy, ..config(1) }, &[1]);
        net.run(5 * SEC);
        net.connect((0, settings(2)), (2, settings(2)));
        net.run(5 * SEC);
        assert_eq!(used(&net, 0), [1], "{policy:?} does not switch to an equally good partner");
        net.connect((0, settings(3)), (2, settings(3)));
        net.run(5 * SEC);
        assert_eq!(used(&net, 0), expected, "{policy:?}");
        // The chosen partner is given up once it is silent.
        for member in expected {
            net.cut(usize::from(member) - 1, true);
        }
        net.run(10 * SEC);
        assert_eq!(used(&net, 0), if policy == Policy::Stable { vec![2, 3] } else { vec![1] });
    }
}

#[test]
fn fewer_than_min_links_are_not_used() {
    let three = |system| Config { min_links: 3, ..config(system) };
    let mut net = Net::pair(three(1), three(2), 2);
    net.run(10 * SEC);
    assert!(net.ends[0].changes.is_empty());
    assert_eq!(net.ends[0].negotiation, Negotiation::TooFewLinks);
    assert_eq!((net.ends[0].lacp.status().links, net.ends[0].lacp.status().min_links), (2, 3));
    net.connect((0, settings(3)), (1, settings(3)));
    assert!(net.run_until(3 * SEC, Net::all_work).is_some());
    net.run(2 * SEC);
    net.carrier(0, 1, false);
    assert_eq!(used(&net, 0), [] as [u16; 0]);
    net.run(MS);
    assert_eq!(
        used(&net, 1),
        [1],
        "a member that does not collect is sent nothing, except on the link that cannot signal it"
    );
    net.carrier(0, 1, true);
    net.run(4 * SEC);
    assert!(net.all_work());
}

#[test]
fn an_aggregator_with_min_links_is_preferred_even_by_stable() {
    let mut net = star(Config { min_links: 2, ..config(1) }, &[1, 1, 2, 2]);
    net.run(5 * SEC);
    assert_eq!(used(&net, 0), [1, 2]);
    net.cut(0, true);
    net.run(10 * SEC);
    assert_eq!(used(&net, 0), [3, 4]);
}

#[test]
fn a_loop_is_reported_and_never_selected() {
    let mut net = Net::new(&[config(1), config(2)]);
    net.connect((0, settings(1)), (1, settings(1)));
    net.connect((0, settings(2)), (0, settings(3)));
    net.run(200 * SEC);
    assert_eq!(used(&net, 0), [1]);
    for member in [2, 3] {
        assert_eq!(net.states(0, member), ("defaulted", "detached"));
        assert!(net.status(0, member).counters.refused(Refusal::OwnSystem) > 100);
        assert_eq!(net.status(0, member).counters.lacpdus_received, 0);
        let loops = net.ends[0]
            .reports
            .iter()
            .filter(|report| (report.1, report.2) == (member, Notice::Loop))
            .count();
        assert!((4..=12).contains(&loops), "{loops}");
    }
}

#[test]
fn a_partner_that_does_not_aggregate_gets_one_link() {
    let mut net = Net::new(&[config(1)]);
    for member in [1, 2] {
        net.add(0, settings(member));
        let state = State(0x3f).with(State::AGGREGATION, false);
        let port = Port { priority: 1, number: member };
        let system = System { priority: 1, mac: [2, 9, 9, 9, 9, 9] };
        let actor = Info { system, key: 1, port, state };
        let bytes = LacpPdu { actor, partner: Info::default(), collector_delay: 0 }.frame([2; 6]);
        net.step(0, Event::Pdu { member, bytes: &bytes });
    }
    net.run(2900 * MS);
    assert_eq!(used(&net, 0), [1]);
    let individual: Vec<_> =
        net.ends[0].lacp.status().aggregators.iter().map(|at| (at.individual, at.active)).collect();
    assert_eq!(individual, [(true, true), (true, false)]);
}

#[test]
fn a_partner_that_has_chosen_otherwise_is_followed() {
    // Both partners' ports of key 8 are in sync; ours prefers key 7, which has more members. Depending on the
    // priority, our end decides or follows.
    for (priority, patience_ns) in [(1, 5 * SEC), (65535, 70 * SEC)] {
        let mut net = Net::new(&[config(1)]);
        let partner = System { priority, mac: [2, 9, 9, 9, 9, 9] };
        let members = [(1, 7), (2, 7), (3, 8)];
        for (member, _) in members {
            net.add(0, settings(member));
        }
        let say = |net: &mut Net| {
            for (member, key) in members {
                let sync = State::SYNC | State::COLLECTING | State::DISTRIBUTING;
                let state = State(0x07).with(sync, key == 8);
                let actor = Info { system: partner, key, port: Port { priority: 1, number: member }, state };
                let partner = net.status(0, member).actor;
                let bytes = LacpPdu { actor, partner, collector_delay: 0 }.frame([2; 6]);
                net.step(0, Event::Pdu { member, bytes: &bytes });
            }
        };
        while net.now < patience_ns {
            assert!(net.now < 60 * SEC || priority == 65535);
            say(&mut net);
            net.run(SEC);
        }
        assert_eq!(used(&net, 0), [3], "partner of priority {priority}");
    }
}

fn policy() -> impl Strategy<Value = Policy> {
    prop_oneof![Just(Policy::Stable), Just(Policy::Bandwidth), Just(Policy::Count)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// For all keys, priorities, speeds and policies, both ends agree on an aggregator, and it works.
    #[test]
    fn both_ends_settle_on_one_aggregator(
        links in prop::collection::vec((1u16..3, 1u16..3, 0u16..3, 0u16..3, 0u64..3, 0u64..3), 1..6),
        policies in (policy(), policy()),
        systems in (1u8..3).prop_map(|first| [first, 3 - first]),
    ) {
        let [a, b] = systems.map(config);
        let mut net = Net::new(&[Config { policy: policies.0, ..a }, Config { policy: policies.1, ..b }]);
        for (member, (key_a, key_b, priority_a, priority_b, ..)) in (1..).zip(&links) {
            let of_a = Settings { priority: *priority_a, ..with_key(member, *key_a) };
            // The partner numbers its ports in reverse order.
            let of_b = Settings { priority: *priority_b, ..with_key(10 - member, *key_b) };
            net.connect((0, of_a), (1, of_b));
        }
        for (member, (.., speed_a, speed_b)) in (1..).zip(&links) {
            net.step(0, Event::Link { member, up: true, speed_bps: Some(*speed_a) });
            net.step(1, Event::Link { member: 10 - member, up: true, speed_bps: Some(*speed_b) });
        }
        net.run(12 * SEC);
        let [ours, mut theirs] = [0, 1].map(|end| used(&net, end));
        theirs.iter_mut().for_each(|member| *member = 10 - *member);
        theirs.sort();
        prop_assert!(!ours.is_empty());
        let keys = |member: &u16| (links[usize::from(*member) - 1].0, links[usize::from(*member) - 1].1);
        let expected: Vec<u16> = (1..=links.len() as u16).filter(|member| keys(member) ==
            keys(&ours[0])).collect();
        prop_assert_eq!(&ours, &expected);
        prop_assert_eq!(&theirs, &expected);
    }
}
