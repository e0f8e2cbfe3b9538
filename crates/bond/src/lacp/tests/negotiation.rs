//! Two ends find each other, lose each other and find each other again.

use super::wire::*;
use crate::lacp::*;

const ALL_SIX: &str = "activity timeout aggregation synchronized collecting distributing";

fn slow(system: u8) -> Config {
    Config { rate: Rate::Slow, ..config(system) }
}

fn passive(system: u8) -> Config {
    Config { active: false, ..config(system) }
}

fn negotiated(a: Config, b: Config, links: u16) -> Net {
    let mut net = Net::pair(a, b, links);
    net.run_until(6 * SEC, Net::all_work).expect("negotiated");
    net
}

// L1
#[test]
fn without_partner_a_port_expires_defaults_and_carries_nothing() {
    let mut net = Net::new(&[config(1)]);
    net.add(0, settings(1));
    let status = net.status(0, 1);
    assert_eq!(net.states(0, 1), ("expired", "detached"));
    assert_eq!(status.actor.state.to_string(), "activity timeout aggregation defaulted expired");
    assert_eq!(status.partner.state.to_string(), "timeout");
    net.run(3 * SEC);
    assert_eq!(net.states(0, 1), ("defaulted", "detached"));
    assert_eq!(net.status(0, 1).actor.state.to_string(), "activity timeout aggregation defaulted");
    net.run(120 * SEC);
    assert_eq!(net.ends[0].changes, []);
    assert_eq!(net.ends[0].negotiation, Negotiation::Configured);
}

// L2
#[test]
fn what_is_configured_is_what_is_sent() {
    let mut config = config(1);
    config.key = 3333;
    config.system.priority = 54321;
    let mut net = Net::new(&[config.clone()]);
    net.add(0, Settings { priority: 111, ..settings(11) });
    net.add(0, Settings { priority: 222, key: Some(4444), ..settings(22) });
    for (member, priority, key) in [(11, 111, 3333), (22, 222, 4444)] {
        let actor = net.ends[0].pdus(member)[0].1.actor;
        assert_eq!(actor.system, config.system);
        assert_eq!((actor.port, actor.key), (Port { priority, number: member }, key));
    }
}

// L3
#[test]
fn two_links_are_negotiated_within_three_seconds() {
    let mut net = Net::pair(config(1), config(2), 2);
    let took = net.run_until(10 * SEC, Net::all_work).unwrap();
    assert!((2 * SEC..=3 * SEC).contains(&took), "{took}");
    net.run(SEC);
    for (end, other) in [(0, 1), (1, 0)] {
        assert_eq!(net.ends[end].negotiation, Negotiation::Negotiated);
        for member in [1, 2] {
            let status = net.status(end, member);
            assert_eq!((status.receive, status.mux, status.periodic), ("current", "distributing", "fast"));
            assert_eq!(
                (status.actor.state.to_string().as_str(), status.partner.state),
                (ALL_SIX, State(0x3f))
            );
            assert_eq!(status.partner, net.status(other, member).actor);
            assert_eq!(status.partner.system.priority, 65534);
        }
    }
}

#[test]
fn nothing_is_sent_before_the_other_end_takes_it() {
    let net = negotiated(config(1), config(2), 3);
    let first = |end: usize, member: u16, wanted: fn(&(u64, u16, bool, bool)) -> bool| {
        let changes = net.ends[end].changes.iter();
        changes
            .filter(|change| change.1 == member)
            .find(|change| wanted(change))
            .map(|change| change.0)
            .unwrap()
    };
    for (end, other) in [(0, 1), (1, 0)] {
        for member in 1..=3 {
            assert!(first(end, member, |change| change.3) > first(other, member, |change| change.2));
        }
    }
}

// L4, L5, L6
#[test]
fn a_cut_link_expires_defaults_and_comes_back() {
    let mut net = negotiated(config(1), config(2), 2);
    net.run(7 * SEC / 2);
    let cut = net.now;
    net.cut(0, true);
    net.run(4100 * MS);
    for end in [0, 1] {
        assert_eq!(net.states(end, 1), ("expired", "attached"));
        assert!(!net.status(end, 1).partner.state.has(State::SYNC));
        assert!(net.status(end, 1).actor.state.has(State::EXPIRED));
        assert_eq!(net.ends[end].used[&1], (false, false));
        let (at, member, ..) = *net.ends[end].changes.last().unwrap();
        assert!(member == 1 && at - cut <= 3 * SEC, "silence is noticed within 3 s: {}", at - cut);
        assert!(net.ends[end].reports.iter().any(|report| matches!(report.2, Notice::Expired { .. })));
    }
    net.run(4100 * MS);
    for end in [0, 1] {
        assert_eq!(net.states(end, 1), ("defaulted", "detached"));
        assert_eq!(net.status(end, 1).partner, Info { state: State::TIMEOUT, ..Info::default() });
        assert!(net.works(end, 2), "the other link stays");
        assert_eq!(net.ends[end].changes.iter().filter(|change| change.1 == 2).count(), 2);
    }
    net.cut(0, false);
    net.run(30_100 * MS);
    for end in [0, 1] {
        assert_eq!(net.states(end, 1), ("current", "distributing"));
        // The link goes up, down and up again. On the way up, the state in which it only collects is reported
        // too.
        let announced: Vec<_> = net.ends[end].changes.iter().filter(|change| change.1 == 1).collect();
        assert_eq!(announced.iter().filter(|change| change.3).count(), 2);
        assert_eq!(announced.iter().filter(|change| !change.2).count(), 1);
    }
}

#[test]
fn fast_ends_are_back_within_four_seconds() {
    let mut net = negotiated(config(1), config(2), 2);
    net.cut(0, true);
    net.run(20 * SEC);
    net.cut(0, false);
    assert!(net.run_until(4 * SEC, Net::all_work).is_some());
}

#[test]
fn one_lost_direction_stops_both() {
    let mut net = negotiated(config(1), config(2), 2);
    // Frames from the first end are lost, but it still receives.
    net.links[0].lost = [true, false];
    assert!(net.run_until(3010 * MS, |net| !net.works(0, 1) && !net.works(1, 1)).is_some());
    net.run(10 * SEC);
    assert_eq!(net.ends[0].used[&1], (false, false));
    assert_eq!(net.states(0, 1), ("current", "attached"));
    assert!(net.works(0, 2) && net.works(1, 2));
}

#[test]
fn carrier_counts_at_once_and_the_partner_is_remembered() {
    let mut net = negotiated(config(1), config(2), 2);
    for end in [0, 1] {
        net.carrier(end, 1, false);
        assert_eq!(net.ends[end].used[&1], (false, false));
        assert_eq!(net.states(end, 1).0, "port disabled");
    }
    net.run(300 * SEC);
    assert!(net.works(0, 2) && net.works(1, 2));
    for end in [0, 1] {
        net.carrier(end, 1, true);
    }
    assert!(net.run_until(10 * MS, Net::all_work).is_some(), "the same partner is used again at once");
}

#[test]
fn carrier_of_one_end_only() {
    let mut net = negotiated(config(1), config(2), 2);
    net.carrier(0, 1, false);
    let received = net.status(0, 1).counters.lacpdus_received;
    net.run(2 * SEC);
    let counters = net.status(0, 1).counters;
    assert_eq!(counters.lacpdus_received, received, "PDUs are ignored while the link is down");
    assert!(counters.refused(Refusal::LinkDown) >= 1);
    assert!(net.ends[0].reports.is_empty());
    net.run(SEC);
    assert_eq!(net.ends[1].used[&1], (false, false), "the other end receives nothing for 3 s");
    net.carrier(0, 1, true);
    assert!(net.run_until(3 * SEC, Net::all_work).is_some());
}

#[test]
fn active_finds_passive_and_passive_does_not_find_passive() {
    for (a, b) in
        [(config(1), passive(2)), (passive(1), config(2)), (slow(1), Config { active: false, ..slow(2) })]
    {
        let mut net = Net::pair(a, b, 2);
        assert!(net.run_until(3 * SEC, Net::all_work).is_some());
    }
    let mut net = Net::pair(passive(1), passive(2), 2);
    net.run(600 * SEC);
    for end in &net.ends {
        assert!(end.sent.is_empty() && end.changes.is_empty());
        assert_eq!(end.negotiation, Negotiation::Configured);
    }
}

#[test]
fn a_passive_partner_that_comes_late_is_found_within_a_second() {
    let mut net = Net::new(&[config(1), passive(2)]);
    net.connect((0, settings(1)), (1, settings(1)));
    net.cut(0, true);
    net.run(100 * SEC);
    net.restart(1, passive(2));
    net.cut(0, false);
    assert!(net.run_until(SEC + MS, |net| net.status(1, 1).receive == "current").is_some());
    assert!(net.run_until(3 * SEC, Net::all_work).is_some());
}

#[test]
fn each_end_waits_as_long_as_it_said() {
    for (a, b) in [(slow(1), config(2)), (slow(1), slow(2)), (config(1), slow(2)), (config(1), config(2))] {
        let rates = [a.rate, b.rate];
        let mut net = negotiated(a, b, 1);
        net.run(200 * SEC);
        for end in [0, 1] {
            assert_eq!(net.status(end, 1).counters.expired, 0);
            let sent = net.ends[end].pdus(1).iter().filter(|pdu| pdu.0 > net.now - 120 * SEC).count();
            let asked = if rates[1 - end] == Rate::Fast { 119..=121 } else { 3..=5 };
            assert!(asked.contains(&sent), "{rates:?} end {end} sent {sent} in 120 s");
            assert_eq!(
                net.status(end, 1).periodic,
                if rates[1 - end] == Rate::Fast { "fast" } else { "slow" }
            );
        }
        let cut = net.now;
        net.cut(0, true);
        net.run(200 * SEC);
        for end in [0, 1] {
            let down = net.ends[end].changes.iter().find(|change| change.0 > cut).unwrap().0 - cut;
            let expected = if rates[end] == Rate::Fast { 2 * SEC..=3 * SEC } else { 60 * SEC..=90 * SEC };
            assert!(expected.contains(&down), "{rates:?} end {end} noticed after {down} ns");
            assert_eq!(net.states(end, 1), ("defaulted", "detached"));
        }
        net.cut(0, false);
        assert!(net.run_until(30 * SEC + 3 * SEC, Net::all_work).is_some());
    }
}

#[test]
fn a_change_of_rate_breaks_nothing() {
    let mut net = negotiated(config(1), config(2), 2);
    for rate in [Rate::Slow, Rate::Fast, Rate::Slow, Rate::Fast] {
        for end in [0, 1] {
            net.reconfigure(end, |config| config.rate = rate);
            net.run(100 * SEC);
        }
    }
    for end in [0, 1] {
        assert_eq!(net.ends[end].changes.len(), 4, "up once, each member in two steps");
    }
    net.cut(0, true);
    assert!(
        net.run_until(3 * SEC, |net| !net.works(0, 1) && !net.works(1, 1)).is_some(),
        "it is fast at the end"
    );
}

#[test]
fn a_change_of_key_or_system_negotiates_anew() {
    let mut net = negotiated(config(1), config(2), 2);
    net.reconfigure(0, |config| config.key = 77);
    assert!(!net.works(0, 1) && !net.works(0, 2));
    assert!(net.run_until(3 * SEC, Net::all_work).is_some());
    assert_eq!(net.status(1, 1).partner.key, 77);
    net.reconfigure(0, |config| config.system.mac = [2, 0, 0, 0, 9, 9]);
    assert!(net.run_until(3 * SEC, Net::all_work).is_some());
    assert_eq!(net.status(1, 2).partner.system.mac, [2, 0, 0, 0, 9, 9]);
    assert_eq!(net.status(1, 2).counters.partner_changed, 1);
}

#[test]
fn either_end_restarts() {
    for end in [0, 1] {
        let mut net = negotiated(config(1), config(2), 3);
        net.run(10 * SEC);
        net.restart(end, config(end as u8 + 1));
        net.run(2 * MS);
        for member in 1..=3 {
            // The partner's first PDU announces that it does not know us, and nothing is sent to a partner
            // that does not receive.
            assert!(!net.works(1 - end, member));
        }
        assert!(net.run_until(3 * SEC, Net::all_work).is_some());
        net.run(5 * SEC);
        assert!(net.all_work());
    }
}

#[test]
fn an_end_that_another_process_takes_over_works_at_once_and_its_partner_notices_nothing() {
    for end in [0, 1] {
        let mut net = negotiated(config(1), config(2), 3);
        net.run(10 * SEC);
        let changes = net.ends[1 - end].changes.len();
        net.succeed(end, config(end as u8 + 1), 100 * MS);
        assert!(net.all_work(), "at once");
        net.run(10 * SEC);
        assert!(net.all_work());
        assert_eq!(net.ends[1 - end].changes.len(), changes);
        assert_eq!(net.ends[end].negotiation, Negotiation::Negotiated);
    }
}

#[test]
fn what_was_heard_by_another_process_counts_only_for_the_same_port_and_only_once() {
    let mut net = negotiated(config(1), config(2), 2);
    net.run(10 * SEC);
    // The partner does not know the new key yet.
    net.succeed(0, Config { key: 7, ..config(1) }, 0);
    assert!(!net.works(0, 1));
    net.run(10 * SEC);
    assert!(net.all_work());
    // The partner has gone in the meantime: it is given up like any other.
    (0..2).for_each(|link| net.cut(link, true));
    net.succeed(0, Config { key: 7, ..config(1) }, 0);
    net.run(7 * SEC);
    assert!(!net.works(0, 1) && !net.works(0, 2));
    for nonsense in [&[][..], &[1, 0x80], &[0; 124]] {
        net.ends[0].lacp.resume(1, nonsense);
    }
}

#[test]
fn a_partner_that_returns_with_another_system_id_is_taken() {
    let mut net = negotiated(config(1), config(2), 2);
    net.restart(1, config(3));
    assert!(net.run_until(3 * SEC, Net::all_work).is_some());
    assert_eq!(net.status(0, 1).partner.system, config(3).system);
    let changed =
        net.ends[0].reports.iter().filter(|report| matches!(report.2, Notice::PartnerChanged { .. }));
    assert_eq!(changed.count(), 2);
}

#[test]
fn members_come_and_go() {
    let mut net = negotiated(config(1), config(2), 2);
    net.connect((0, settings(3)), (1, settings(3)));
    assert!(net.run_until(3 * SEC, Net::all_work).is_some());
    net.step(0, Event::Remove { member: 2 });
    assert_eq!(net.ends[0].used[&2], (false, false));
    net.run(MS);
    assert_eq!(net.ends[1].used[&2], (false, false), "the partner is notified");
    net.run(10 * SEC);
    assert!(net.link_works(0) && net.link_works(2));
    for end in &net.ends {
        assert_eq!(end.changes.iter().filter(|change| change.1 == 1).count(), 2, "the others never noticed");
    }
    // Events for a member that was removed or never existed are ignored.
    net.step(0, Event::Link { member: 2, up: true, speed_bps: None });
    net.step(0, Event::Hold { member: 9, held: true });
    net.step(0, Event::Remove { member: 2 });
    assert_eq!(net.ends[0].lacp.status().members.len(), 2);
}

#[test]
fn a_member_with_new_settings_starts_anew() {
    let mut net = negotiated(config(1), config(2), 2);
    net.step(0, Event::Add { member: 1, settings: settings(1) });
    assert!(net.works(0, 1), "the same settings change nothing");
    net.add(0, Settings { priority: 7, ..settings(1) });
    assert_eq!(net.ends[0].used[&1], (false, false));
    assert!(net.run_until(3 * SEC, Net::all_work).is_some());
    assert_eq!(net.status(1, 1).partner.port, Port { priority: 7, number: 1 });
}

#[test]
fn a_held_member_is_out_of_the_bond_and_still_speaks() {
    let mut net = negotiated(config(1), config(2), 2);
    net.run(2 * SEC);
    net.step(0, Event::Hold { member: 1, held: true });
    net.run(MS);
    assert_eq!((net.ends[0].used[&1], net.ends[1].used[&1]), ((false, false), (false, false)));
    net.run(20 * SEC);
    assert_eq!(net.states(0, 1), ("current", "detached"));
    assert_eq!(net.states(1, 1), ("current", "attached"));
    net.step(0, Event::Hold { member: 1, held: false });
    assert!(net.run_until(3 * SEC, Net::all_work).is_some());
}

#[test]
fn a_lossy_link_is_negotiated_and_held() {
    let mut net = Net::pair(config(1), config(2), 2);
    net.links[0].loss_percent = 30;
    assert!(net.run_until(15 * SEC, Net::all_work).is_some());
    net.links[0].loss_percent = 5;
    net.run(600 * SEC);
    assert!(net.status(0, 1).counters.expired <= 1);
    assert_eq!(net.status(0, 2).counters.expired, 0);
}

#[test]
fn a_late_caller_hands_over_what_waits_before_it_ticks() {
    let mut net = negotiated(config(1), config(2), 2);
    let frames: Vec<_> =
        [1, 2].map(|member| (member, net.ends[1].sent.iter().rfind(|sent| sent.1 == member))).into();
    let frames: Vec<(u16, Vec<u8>)> =
        frames.into_iter().map(|(member, sent)| (member, sent.unwrap().2.clone())).collect();
    // Our thread does not run for 5 s, which is longer than the partner may be silent.
    net.now += 5 * SEC;
    for (member, frame) in &frames {
        net.handle(0, Event::Pdu { member: *member, bytes: frame });
    }
    net.handle(0, Event::Tick);
    assert!(net.works(0, 1) && net.works(0, 2));
    assert_eq!(net.status(0, 2).counters.expired, 0);
}

#[test]
fn fallback_is_said_once_every_link_that_is_up_is_silent() {
    let fallback = Config { fallback: true, ..config(1) };
    let mut net = Net::pair(fallback.clone(), config(2), 2);
    net.cut(0, true);
    net.cut(1, true);
    net.run(2900 * MS);
    assert_eq!(net.ends[0].negotiation, Negotiation::Configured, "a partner has 3 s to speak");
    net.run(200 * MS);
    assert_eq!(net.ends[0].negotiation, Negotiation::Fallback);
    assert_eq!(net.ends[1].negotiation, Negotiation::Configured, "only when asked to");
    net.carrier(0, 2, false);
    assert_eq!(net.ends[0].negotiation, Negotiation::Fallback);
    net.carrier(0, 1, false);
    assert_eq!(net.ends[0].negotiation, Negotiation::Configured, "without a link there is no fallback");
    net.carrier(0, 1, true);
    net.cut(0, false);
    net.run(1100 * MS);
    assert_eq!(net.ends[0].negotiation, Negotiation::TooFewLinks);
    net.run(2 * SEC);
    assert_eq!(net.ends[0].negotiation, Negotiation::Negotiated);
}

/// A member with this partner, which every second sends a PDU of a partner in sync, modified by `change`.
fn with_partner(ours: Config, change: impl Fn(&mut LacpPdu)) -> Net {
    let mut net = Net::new(&[ours]);
    net.add(0, settings(1));
    for _ in 0..10 {
        let system = System { priority: 1, mac: [2, 9, 9, 9, 9, 9] };
        let actor = Info { system, key: 1, port: Port { priority: 1, number: 1 }, state: State(0x3f) };
        let mut pdu = LacpPdu { actor, partner: net.status(0, 1).actor, collector_delay: 0 };
        change(&mut pdu);
        net.step(0, Event::Pdu { member: 1, bytes: &pdu.frame([2; 6]) });
        net.run(SEC);
    }
    net
}

#[test]
fn a_partner_is_in_sync_if_it_says_so_of_this_link() {
    assert!(with_partner(config(1), |_| {}).works(0, 1));
    let changes: [fn(&mut LacpPdu); 6] = [
        |pdu| pdu.partner.port.number = 2,
        |pdu| pdu.partner.port.priority = 1,
        |pdu| pdu.partner.key = 2,
        |pdu| pdu.partner.system.mac[5] = 9,
        |pdu| pdu.partner.state = pdu.partner.state.with(State::AGGREGATION, false),
        |pdu| pdu.actor.state = pdu.actor.state.with(State::SYNC, false),
    ];
    for (at, change) in changes.into_iter().enumerate() {
        let net = with_partner(config(1), change);
        assert_eq!(net.ends[0].changes, [], "change {at}");
        assert_eq!(net.states(0, 1), ("current", "attached"));
    }
}

#[test]
fn a_partner_that_has_not_heard_us_is_answered_at_once_and_sent_nothing() {
    let mut net = with_partner(config(1), |_| {});
    assert!(net.works(0, 1));
    let mut pdu =
        LacpPdu { actor: net.status(0, 1).partner, partner: net.status(0, 1).actor, collector_delay: 0 };
    pdu.actor.state = pdu.actor.state | State::EXPIRED;
    net.run(SEC / 2);
    let sent = net.ends[0].sent.len();
    net.step(0, Event::Pdu { member: 1, bytes: &pdu.frame([2; 6]) });
    assert_eq!((net.ends[0].sent.len(), net.ends[0].used[&1]), (sent + 1, (true, false)));
    pdu.actor.state = pdu.actor.state.with(State::EXPIRED, false);
    net.step(0, Event::Pdu { member: 1, bytes: &pdu.frame([2; 6]) });
    assert!(net.works(0, 1));
}

#[test]
fn two_ends_of_which_none_speaks_first_are_not_in_sync() {
    let net = with_partner(passive(1), |pdu| pdu.actor.state = State(0x3e));
    assert_eq!(net.ends[0].changes, []);
    assert!(
        with_partner(config(1), |pdu| pdu.actor.state = State(0x3e)).works(0, 1),
        "we send LACPDUs, and it receives them"
    );
    let unaware = |pdu: &mut LacpPdu| {
        pdu.actor.state = State(0x3e);
        pdu.partner.state = pdu.partner.state.with(State::ACTIVITY, false);
    };
    assert_eq!(with_partner(config(1), unaware).ends[0].changes, []);
}

#[test]
fn a_cable_moved_to_another_port_of_the_partner_is_attached_anew() {
    let mut net = negotiated(config(1), config(2), 2);
    let mut pdu = net.ends[1].pdus(1).last().unwrap().1;
    pdu.actor.port.number = 7;
    net.step(0, Event::Pdu { member: 1, bytes: &pdu.frame([2; 6]) });
    assert_eq!(net.states(0, 1), ("current", "waiting"));
    assert_eq!(net.ends[0].used[&1], (false, false));
    assert!(net.works(0, 2));
}

#[test]
fn a_partner_that_turns_fast_is_served_at_once() {
    let mut net = negotiated(slow(1), slow(2), 1);
    net.run(50 * SEC);
    let before = net.ends[0].sent.len();
    net.reconfigure(1, |config| config.rate = Rate::Fast);
    net.run(MS);
    assert_eq!(net.ends[0].sent.len(), before + 1);
    assert_eq!(net.status(0, 1).periodic, "fast");
}

/// A partner like Open vSwitch, which announces sync, collecting and distributing as soon as it aggregates
/// the link, and reports `ours` as its knowledge of us.
fn open_vswitch(net: &mut Net, member: u16, ours: Info) {
    let port = Port { priority: 255, number: 6 + member };
    let system = System { priority: 1, mac: [2, 0, 0, 0, 0, 9] };
    let actor = Info { system, key: 5, port, state: State(0x3f) };
    let pdu = LacpPdu { actor, partner: ours, ..net.ends[0].pdus(member)[0].1 };
    net.step(0, Event::Pdu { member, bytes: &pdu.frame([2; 6]) });
}

/// Lets such a partner speak on a member until the member is in sync, which the partner has not yet heard.
fn in_sync_with_open_vswitch(net: &mut Net, member: u16) {
    net.add(0, settings(member));
    let before = net.status(0, member).actor;
    assert!(!before.state.has(State::SYNC));
    open_vswitch(net, member, before);
    net.run(1500 * MS);
    open_vswitch(net, member, before);
    net.run(600 * MS);
}

/// Returns a bond whose member 2 sends and whose member 1 is in sync, which the partner has not yet heard.
fn second_in_sync_with_open_vswitch() -> Net {
    let mut net = Net::new(&[config(1)]);
    in_sync_with_open_vswitch(&mut net, 2);
    let ours = net.status(0, 2).actor;
    open_vswitch(&mut net, 2, ours);
    in_sync_with_open_vswitch(&mut net, 1);
    assert!(net.works(0, 2));
    assert_eq!(net.states(0, 1), ("current", "collecting"), "it receives, but does not yet send");
    assert_eq!(net.ends[0].used[&1], (true, false));
    net
}

#[test]
fn a_partner_that_always_collects_is_believed_when_it_knows_that_we_are_in_sync() {
    let mut net = second_in_sync_with_open_vswitch();
    let old = Info { state: net.status(0, 1).actor.state.with(State::SYNC, false), ..net.status(0, 1).actor };
    open_vswitch(&mut net, 1, old);
    assert!(!net.works(0, 1), "this was sent before it knew");
    let ours = net.status(0, 1).actor;
    open_vswitch(&mut net, 1, ours);
    assert!(net.works(0, 1));
    // Out of the bond and in again, as by `weir bond disable` and `enable`.
    net.step(0, Event::Hold { member: 1, held: true });
    assert_eq!(net.ends[0].used[&1], (false, false));
    let (held, other) = (net.status(0, 1).actor, net.status(0, 2).actor);
    open_vswitch(&mut net, 1, held);
    open_vswitch(&mut net, 2, other);
    net.step(0, Event::Hold { member: 1, held: false });
    net.run(2100 * MS);
    assert_eq!(net.ends[0].used[&1], (true, false));
    let ours = net.status(0, 1).actor;
    open_vswitch(&mut net, 1, ours);
    assert!(net.works(0, 1));
}

#[test]
fn a_partner_that_speaks_seldom_is_believed_after_a_second() {
    let mut net = second_in_sync_with_open_vswitch();
    net.run(800 * MS);
    assert!(!net.works(0, 1));
    net.run(200 * MS);
    assert!(net.works(0, 1));
}

#[test]
fn a_member_does_not_wait_where_no_other_sends() {
    let mut net = Net::new(&[config(1)]);
    in_sync_with_open_vswitch(&mut net, 1);
    assert!(net.works(0, 1));
}
