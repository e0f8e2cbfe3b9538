//! A hostile or broken partner can cause only a limited amount of work.

use super::wire::*;
use crate::lacp::*;

fn negotiated(links: u16) -> Net {
    let mut net = Net::pair(config(1), config(2), links);
    net.run_until(4 * SEC, Net::all_work).expect("negotiated");
    net.run(SEC / 3);
    net
}

/// The whole status except for counters.
fn state(net: &Net) -> Status {
    let mut status = net.ends[0].lacp.status();
    status.members.iter_mut().for_each(|member| member.counters = Counters::default());
    status
}

fn most_in_a_second(times: &[u64]) -> usize {
    let within = |start: u64| times.iter().filter(|at| (start..start + SEC).contains(*at)).count();
    times.iter().map(|start| within(*start)).max().unwrap_or(0)
}

#[test]
fn refused_pdus_change_nothing_but_their_counter() {
    let mut net = negotiated(2);
    let good = net.ends[1].sent.iter().rfind(|sent| sent.1 == 1).unwrap().2.clone();
    let own = LacpPdu { actor: net.status(0, 2).actor, ..net.ends[1].pdus(1)[0].1 }.frame([2; 6]);
    let changed = |at: usize, byte: u8| {
        let mut frame = good.clone();
        frame[at] = byte;
        frame
    };
    let mut hostile: Vec<(Refusal, Vec<u8>)> =
        (0..good.len()).map(|len| (Refusal::Truncated, good[..len].to_vec())).collect();
    hostile.extend([
        (Refusal::NotSlowProtocol, changed(0, 0x02)),
        (Refusal::NotSlowProtocol, changed(12, 0x08)),
        (Refusal::Subtype, changed(14, 3)),
        (Refusal::TlvLength, changed(14, 2)),
        (Refusal::Version, changed(15, 0)),
        (Refusal::TlvLength, changed(17, 255)),
        (Refusal::OwnSystem, own),
    ]);
    let before = (state(&net), net.ends[0].lacp.wake_ns());
    let taken = net.status(0, 1).counters.lacpdus_received;
    for (refusal, bytes) in &hostile {
        let counted = net.status(0, 1).counters.refused(*refusal);
        let mut actions = Vec::new();
        net.ends[0].lacp.step(net.now, Event::Pdu { member: 1, bytes }, &mut actions);
        assert_eq!((state(&net), net.ends[0].lacp.wake_ns()), before, "{refusal}");
        assert_eq!(net.status(0, 1).counters.refused(*refusal), counted + 1);
        assert!(actions.iter().all(|action| matches!(action, Action::Report { .. })), "{actions:?}");
    }
    assert_eq!(net.status(0, 1).counters.lacpdus_received, taken);
}

#[test]
fn a_flood_of_bad_pdus_is_four_lines_and_two_a_minute() {
    let mut net = negotiated(1);
    let own = LacpPdu { actor: net.status(0, 1).actor, ..net.ends[1].pdus(1)[0].1 }.frame([2; 6]);
    let mut kept_back = 0;
    let mut lines = 0;
    for _ in 0..100 * 60 {
        let mut actions = Vec::new();
        for bytes in [&own[..], &own[..20]] {
            net.ends[0].lacp.step(net.now, Event::Pdu { member: 1, bytes }, &mut actions);
        }
        for action in actions {
            let Action::Report { kept_back: before, notice, .. } = action else { panic!("{action:?}") };
            lines += 1;
            kept_back += if notice == Notice::Loop { before + 1 } else { 0 };
        }
        net.run(10 * MS);
    }
    assert_eq!(lines, 2 * (4 + 1), "two kinds, four at once, and one more within this minute");
    assert!(kept_back > 2900, "each line says how many it represents: {kept_back}");
    assert!(net.all_work());
}

#[test]
fn never_more_than_three_lacpdus_in_a_second() {
    let mut net = negotiated(1);
    let mut pdu = net.ends[1].pdus(1).last().unwrap().1;
    for turn in 0..2000u16 {
        // A partner that never acknowledges us requests an answer to each PDU; a partner whose key changes
        // makes us detach.
        pdu.partner.key = turn;
        pdu.actor.key = turn / 7;
        net.step(0, Event::Pdu { member: 1, bytes: &pdu.frame([2; 6]) });
        net.run(5 * MS);
    }
    let times: Vec<u64> = net.ends[0].pdus(1).iter().map(|pdu| pdu.0).collect();
    assert_eq!(most_in_a_second(&times), 3);
    assert!(times.len() > 25, "and not fewer than that: {}", times.len());
    assert!(net.run_until(7 * SEC, Net::all_work).is_some(), "suppressed lines are reported at the end");
}

#[test]
fn what_is_wanted_while_the_limit_holds_is_sent_when_it_ends() {
    let mut net = negotiated(1);
    net.run(10 * SEC);
    let start = net.now;
    for held in [true, false, true, false, true] {
        net.step(0, Event::Hold { member: 1, held });
    }
    let said = |net: &Net| net.ends[0].pdus(1).iter().filter(|pdu| pdu.0 >= start).count();
    assert!(said(&net) <= 3);
    net.run(SEC);
    assert!(!net.ends[0].pdus(1).last().unwrap().1.actor.state.has(State::SYNC));
    assert!(!net.works(1, 1));
}

#[test]
fn markers_are_answered_with_what_they_asked_ten_a_second_at_most() {
    let mut net = negotiated(1);
    let ask = |transaction: u32| Marker { port: 0x1234, system: [2, 9, 8, 7, 6, 5], transaction };
    let before = net.ends[0].sent.len();
    net.step(0, Event::Pdu { member: 1, bytes: &ask(0xdead_beef).question([2; 6]) });
    let (_, member, frame) = net.ends[0].sent[before].clone();
    assert_eq!((member, &frame[..12]), (1, &[1, 0x80, 0xc2, 0, 0, 2, 2, 1, 0, 0, 0, 1][..]));
    assert_eq!(parse(&frame), Ok(Pdu::MarkerResponse(ask(0xdead_beef))));
    net.run(5 * SEC);
    for turn in 0..300 {
        net.step(0, Event::Pdu { member: 1, bytes: &ask(turn).question([2; 6]) });
        net.run(10 * MS);
    }
    let is_answer = |frame: &[u8]| matches!(parse(frame), Ok(Pdu::MarkerResponse(_)));
    let answers: Vec<u64> =
        net.ends[0].sent.iter().filter(|sent| is_answer(&sent.2)).map(|sent| sent.0).collect();
    assert_eq!((answers.len(), most_in_a_second(&answers)), (31, 10));
    let counters = net.status(0, 1).counters;
    assert_eq!((counters.markers_received, counters.markers_unanswered), (301, 270));
    // The other end gets responses that it did not request, and only counts them.
    assert_eq!(net.status(1, 1).counters.marker_responses_received, 31);
    assert!(net.all_work());
    assert_eq!(net.status(0, 1).counters.expired, 0);
}

#[test]
fn markers_are_answered_in_any_state_with_a_link_and_in_none_without() {
    let mut net = Net::new(&[config(1)]);
    net.add(0, settings(1));
    net.run(10 * SEC);
    let question = Marker { port: 1, system: [2; 6], transaction: 1 }.question([2; 6]);
    let sent = net.ends[0].sent.len();
    net.step(0, Event::Pdu { member: 1, bytes: &question });
    assert_eq!(net.ends[0].sent.len(), sent + 1);
    net.carrier(0, 1, false);
    net.step(0, Event::Pdu { member: 1, bytes: &question });
    assert_eq!(net.ends[0].sent.len(), sent + 1);
}

#[test]
fn churn_is_a_minute_out_of_sync() {
    let mut net = Net::new(&[config(1), config(2)]);
    net.connect((0, settings(1)), (1, settings(1)));
    net.connect((0, settings(2)), (1, Settings { key: Some(9), ..settings(2) }));
    net.run(59 * SEC);
    assert_eq!((net.status(0, 2).actor_churn, net.status(0, 2).partner_churn), ("watching", "watching"));
    net.run(2 * SEC);
    let status = net.status(0, 2);
    assert_eq!((status.actor_churn, status.partner_churn), ("churning", "churning"));
    assert_eq!((status.counters.actor_churned, status.counters.partner_churned), (1, 1));
    for notice in [Notice::ActorChurn, Notice::PartnerChurn] {
        assert_eq!(
            net.ends[0].reports.iter().filter(|report| (report.1, report.2) == (2, notice)).count(),
            1
        );
    }
    let other = net.status(0, 1);
    assert_eq!((other.actor_churn, other.partner_churn), ("none", "none"));
    // Churn ends when the link goes down, and when it is in sync.
    net.carrier(0, 2, false);
    assert_eq!(net.status(0, 2).actor_churn, "idle");
    net.carrier(0, 2, true);
    net.add(1, settings(2));
    assert!(net.run_until(5 * SEC, Net::all_work).is_some());
    assert_eq!((net.status(0, 2).actor_churn, net.status(0, 2).partner_churn), ("none", "none"));
}

#[test]
fn wait_while_of_one_that_flaps_holds_up_nobody() {
    let mut net = Net::pair(config(1), config(2), 2);
    for _ in 0..30 {
        net.carrier(0, 2, false);
        net.step(0, Event::Remove { member: 2 });
        net.run(50 * MS);
        net.add(0, settings(2));
        net.run(50 * MS);
    }
    assert!(net.link_works(0));
}

#[test]
fn a_configuration_says_what_is_wrong_with_it() {
    let with_mac = |mac| Config { system: System { priority: 1, mac }, ..config(1) };
    assert_eq!(config(1).problem(), None);
    assert_eq!(with_mac([0; 6]).problem(), Some(LacpProblem::SystemZero));
    assert_eq!(with_mac([1, 0, 0, 0, 0, 1]).problem(), Some(LacpProblem::SystemGroup));
}
