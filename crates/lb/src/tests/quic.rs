//! Back ends by the server IDs in QUIC connection IDs.

use super::flows::FlowRig;
use super::*;
use crate::Place;
use weir_program::buckets::BucketTable;
use weir_program::{GlbHash, Group, QuicConfig, ServerId};

/// A service whose back ends have the server IDs 0, 1 and 2, and one without `quic` at another port.
fn services() -> Vec<Service> {
    let mut quic = service("h3", By::FiveTuple);
    let config = QuicConfig { id: 2, server_id: 1, nonce: 4, key: None };
    quic.quic = Some([config].into());
    change(&mut quic, |all| {
        (0..).zip(all).for_each(|(at, one)| one.server_id = ServerId::new(&[at]));
    });
    vec![quic, at(54, service("dns", By::FiveTuple))]
}

/// A packet with a short header, and a server ID in its connection ID.
fn packet(client: u8, sport: u16, server: u8) -> Vec<u8> {
    let payload = format!("4045{server:02x}01020304aabb");
    weir_packet::craft::frame(&format!(
        "eth.dst=02:00:00:00:00:fe src=192.0.2.{client} dst=10.0.0.53 proto=udp sport={sport} dport=53 \
         payload={payload}"
    ))
}

#[test]
fn a_client_that_migrates_keeps_its_back_end_while_that_is_there() {
    let program = program(services(), true);
    let mut rig = FlowRig::new(&program);
    let places = Place::find(&program, "h3");
    let to = |rig: &mut FlowRig, client: u8| rig.frame(&packet(client, 4000 + u16::from(client), 1));
    assert!((0..40).all(|client| to(&mut rig, client) == Some(1)), "regardless of the 5-tuple");
    // The back end drains and keeps its connections; then it is down, and others serve its connections, each
    // by its flow.
    rig.apply(places[1].changes((State::Up, State::Draining), 1));
    assert!((0..40).all(|client| to(&mut rig, client) == Some(1)));
    rig.apply(places[1].changes((State::Draining, State::Down), 1));
    let others: Vec<u8> = (0..40).map(|client| to(&mut rig, client).unwrap()).collect();
    assert!(others.contains(&0) && others.contains(&2) && !others.contains(&1), "{others:?}");
    assert!((0..40).all(|client| to(&mut rig, client) == Some(others[usize::from(client)])), "they stay");
    // The back end is back: its connection IDs select it, regardless of the table of flows.
    rig.apply(places[1].changes((State::Down, State::Up), 1));
    assert!((0..40).all(|client| to(&mut rig, client) == Some(1)));
}

#[test]
fn an_unknown_server_id_is_assigned_as_without_quic() {
    let (with, mut without) = (services(), services());
    without[0].quic = None;
    let mut rigs = [with, without].map(|services| FlowRig::new(&program(services, true)));
    for client in 0..40 {
        let [one, other] = rigs.each_mut().map(|rig| rig.frame(&packet(client, 4000, 9)));
        assert!(one.is_some() && one == other);
    }
}

#[test]
fn stateless_services_have_it_as_well() {
    let mut services = services();
    services[0].stateless = true;
    let mut rig = FlowRig::new(&program(services, true));
    assert!((0..40).all(|client| rig.frame(&packet(client, 4000, 2)) == Some(2)));
}

/// A packet that is assigned by its server ID selects no row, so its tunnel header names no second back end.
#[test]
fn a_director_s_service_says_a_second_chance_where_its_row_chooses() {
    let mut services = services();
    let one = &mut services[0];
    one.fill = Fill::Glb([7; 16], GlbHash { key: [9; 16], fields: GlbHash::SOURCE });
    (one.size, one.source.0) = (65_536, Some(([10, 0, 0, 9].into(), 0)));
    change(one, |all| {
        for (at, one) in (1..).zip(all) {
            one.mode = Mode::Gue([10, 1, 0, at].into());
        }
    });
    let program = program(services, true);
    let filled = |group: &Group| BucketTable::fill(group, None).buckets().slots().to_vec();
    let mut interpreter = Interpreter::new(&program, program.groups.iter().map(filled).collect());
    let mut length = |server: u8| {
        let walk = interpreter.walk(PortId(0), &packet(7, 4000, server), 128, 0);
        assert!(matches!(walk.verdict, Verdict::Transmit(_)), "{:?}", walk.trace);
        (walk.bytes[42], walk.bytes.len())
    };
    let (by_id, by_row) = (length(1), length(9));
    assert_eq!((by_id.0, by_row), (0, (2, by_id.1 + 8)));
}

#[test]
fn what_cannot_work_is_told() {
    let problem = |change: &dyn Fn(&mut Service)| {
        let mut services = services();
        change(&mut services[0]);
        let problems = Lb { services, ..Lb::default() }.problems();
        problems.first().map(|(_, problem)| problem.clone())
    };
    assert_eq!(problem(&|_| {}), None);
    let back_end = |edit: &dyn Fn(&mut [BackEnd])| problem(&|one| change(one, |all| edit(all)));
    assert!(matches!(back_end(&|all| all[1].server_id = None), Some(Problem::NoServerId { .. })));
    let twice = back_end(&|all| all[1].server_id = all[0].server_id);
    assert!(matches!(twice, Some(Problem::ServerIdTwice { .. })));
    let long = back_end(&|all| all[1].server_id = ServerId::new(&[1, 2]));
    assert!(matches!(long, Some(Problem::ServerIdLength { octets: 2, wanted: 1, .. })));
    let nat = Mode::Nat { ip: [10, 1, 0, 1].into(), port: None };
    assert!(matches!(back_end(&|all| all[1].mode = nat), Some(Problem::QuicNat { .. })));
    assert!(matches!(problem(&|one| one.addresses[0].protocol = 6), Some(Problem::QuicNotUdp { .. })));
    assert!(matches!(problem(&|one| one.by = By::SourceBits(3)), Some(Problem::QuicSourceBits)));
}
