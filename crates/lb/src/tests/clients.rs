//! Which clients of a service are served, and whose connections are rejected.

use super::*;
use weir_program::{NatPool, NatPoolId, NatPrefix};

/// The service at port 53 limits its clients, for every way of choosing back ends; the one at port 54 does
/// not.
#[test]
fn only_the_clients_that_a_service_names_reach_it() {
    for by in [By::FiveTuple, By::Source, By::SourcePort, By::SourceBits(3)] {
        let clients = [(Ipv4Addr::new(192, 0, 2, 0), 24), (Ipv4Addr::new(198, 51, 100, 7), 32)];
        let clients = clients.map(|(address, length)| (IpAddr::from(address), length));
        let limited = Service { clients: clients.to_vec(), ..service("limited", by) };
        let program = program(vec![limited, at(54, service("open", by))], true);
        let mut interpreter = interpreter(&program);
        let mut is_served = |src: [u8; 4], port: u8| {
            let mut frame = query(OURS, src.into(), VIP, 4000, 0);
            frame[37] = port;
            let verdict = interpreter.walk(PortId(0), &frame, 128, 0).verdict;
            assert!(verdict == Verdict::Transmit(PortId(0)) || matches!(verdict, Verdict::Drop(_)));
            verdict == Verdict::Transmit(PortId(0))
        };
        for (src, served) in [
            ([192, 0, 2, 0], true),
            ([192, 0, 2, 255], true),
            ([192, 0, 3, 0], false),
            ([198, 51, 100, 7], true),
            ([198, 51, 100, 6], false),
        ] {
            assert_eq!(is_served(src, 53), served, "{by:?} {src:?}");
            assert!(is_served(src, 54), "{by:?} {src:?}");
        }
    }
}

/// A service that names no client of an IP version serves none of that version.
#[test]
fn clients_of_the_other_ip_version_are_not_served() {
    let six: IpAddr = "2001:db8::".parse().unwrap();
    let limited = Service { clients: vec![(six, 32)], ..service("limited", By::FiveTuple) };
    let program = program(vec![limited], true);
    let frame = query(OURS, Ipv4Addr::new(192, 0, 2, 1), VIP, 4000, 0);
    let verdict = interpreter(&program).walk(PortId(0), &frame, 128, 0).verdict;
    assert!(matches!(verdict, Verdict::Drop(_)), "{verdict:?}");
}

/// Flows of a back end with `mode: reject` reach the app that answers them unchanged, whatever the mode of
/// the other back ends.
#[test]
fn flows_of_a_back_end_that_rejects_are_answered() {
    let ip = Ipv4Addr::new(10, 0, 1, 1).into();
    let prefixes = vec![NatPrefix { first: Ipv4Addr::new(10, 0, 2, 0).into(), length: 28 }];
    let pool =
        NatPool { name: "pool".into(), prefixes, first: 1024, last: 65_535, origin: Origin::default() };
    for mode in [Mode::L2, Mode::Gue(ip), Mode::Nat { ip, port: Some(80) }, Mode::FullNat { ip, port: None }]
    {
        let is_full = matches!(mode, Mode::FullNat { .. });
        let mut one = service("a", By::FiveTuple);
        change(&mut one, |all| {
            all.iter_mut().for_each(|one| one.mode = mode);
            (all[2].mode, all[2].mac) = (Mode::Reject, [0; 6]);
        });
        one.nat_pool = is_full.then_some(NatPoolId(0));
        one.source = (Some((Ipv4Addr::new(10, 0, 0, 9), 0)), None);
        let nat_pools = if is_full { vec![pool.clone()] } else { Vec::new() };
        let lb = Lb { services: vec![one], nat_pools, flows: 1024, ..Lb::default() };
        let program = program_of(lb, true);
        let mut interpreter = interpreter(&program);
        let mut counts = [0; 2];
        for port in 0..300 {
            let frame = query(OURS, Ipv4Addr::new(192, 0, 2, 1), VIP, 4000 + port, 0);
            let walk = interpreter.walk(PortId(0), &frame, 128, 0);
            match walk.verdict {
                Verdict::Transmit(_) => counts[0] += 1,
                Verdict::App(app) => {
                    assert_eq!(program.apps[app.index()], "lb/reject");
                    assert_eq!(walk.bytes, frame);
                    counts[1] += 1;
                }
                other => panic!("{mode:?}: {other:?}"),
            }
        }
        assert!(counts[0] > 150 && counts[1] > 60, "{mode:?}: {counts:?}");
    }
}
