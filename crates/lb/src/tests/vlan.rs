//! Back ends with a `vlan`: packets to them are tagged, and answers get the client's tag back.

use super::*;
use weir_packet::craft;
use weir_program::{NatPool, NatPoolId, NatPrefix};

const BACK_END: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);

/// A service whose only back end has a VLAN.
fn of(mode: Mode, vlan: Option<u16>) -> Lb {
    let one = BackEnd { mode, vlan, ..back_ends(1)[0].clone() };
    let full = matches!(mode, Mode::FullNat { .. });
    let service = Service {
        addresses: vec![Address { protocol: 6, ..address(VIP.into(), 80) }],
        back_ends: [one].into(),
        out: Some(port(1, THEIRS)),
        source: (Some((Ipv4Addr::new(198, 51, 100, 254), 0)), None),
        nat_pool: full.then_some(NatPoolId(0)),
        ..service("web", By::FiveTuple)
    };
    let prefixes = vec![NatPrefix { first: Ipv4Addr::new(203, 0, 113, 8).into(), length: 32 }];
    let pool =
        NatPool { name: "pool".into(), prefixes, first: 1024, last: 65_535, origin: Origin::default() };
    let nat_pools = if full { vec![pool] } else { Vec::new() };
    Lb { services: vec![service], flows: 1024, nat_pools, ..Lb::default() }
}

/// The tags of a frame, as in a recipe.
fn tags(frame: &[u8]) -> String {
    let words = craft::describe(frame);
    let outer = words.split(" inner(").next().unwrap_or_default();
    let tags = outer.split(' ').filter(|word| word.contains("vlan="));
    tags.collect::<Vec<_>>().join(" ")
}

fn request(tags: &str) -> Vec<u8> {
    craft::frame(&format!(
        "eth.dst=02:00:00:00:00:fe src=192.0.2.7 dst=10.0.0.53 proto=tcp sport=4000 dport=80 flags=S {tags}"
    ))
}

#[test]
fn packets_get_the_tag_of_their_back_end() {
    let to = BACK_END.into();
    for mode in [
        Mode::L2,
        Mode::Ipip(to),
        Mode::Gue(to),
        Mode::Gre(to),
        Mode::Vxlan { ip: to, vni: 7, inner_mac: [2, 0, 0, 0, 7, 7] },
        Mode::Nat { ip: to, port: Some(8080) },
        Mode::FullNat { ip: to, port: None },
    ] {
        let tunnel = mode.is_tunnel();
        for (given, with, without) in [
            ("", "vlan=20", ""),
            ("vlan=3", "vlan=20", "vlan=3"),
            ("vlan=3 second_vlan=4", "vlan=20 second_vlan=4", "vlan=3 second_vlan=4"),
        ] {
            for (vlan, wanted) in [(Some(20), with), (None, without)] {
                let program = program_of(of(mode, vlan), true);
                let walk = interpreter(&program).walk(PortId(0), &request(given), 128, 0);
                assert_eq!(walk.verdict, Verdict::Transmit(PortId(1)), "{mode:?} {vlan:?} {given}");
                assert_eq!(walk.bytes[..6], [2, 0, 0, 0, 1, 0], "{mode:?}");
                // IP in IP leaves the client's tags behind; VXLAN carries them inside.
                let wanted = match (tunnel, vlan) {
                    (true, Some(_)) => "vlan=20",
                    (true, None) => "",
                    (false, _) => wanted,
                };
                assert_eq!(tags(&walk.bytes), wanted, "{mode:?} {vlan:?} {given}");
            }
        }
    }
}

#[test]
fn a_priority_stays_and_an_id_of_0_is_one() {
    let walk = |vlan, given: &str| {
        let program = program_of(of(Mode::L2, Some(vlan)), true);
        interpreter(&program).walk(PortId(0), &request(given), 128, 0).bytes
    };
    let mut tagged = request("vlan=3");
    tagged[14] |= 0xa0;
    let program = program_of(of(Mode::L2, Some(20)), true);
    let bytes = interpreter(&program).walk(PortId(0), &tagged, 128, 0).bytes;
    assert_eq!(bytes[12..16], [0x81, 0, 0xa0, 20]);
    assert_eq!(walk(0, "")[12..18], [0x81, 0, 0, 0, 8, 0]);
    assert_eq!(walk(4094, "vlan=3")[12..16], [0x81, 0, 0x0f, 0xfe]);
}

#[test]
fn answers_get_the_clients_tag_back() {
    for full in [false, true] {
        let to = BACK_END.into();
        let mode = if full { Mode::FullNat { ip: to, port: None } } else { Mode::Nat { ip: to, port: None } };
        for (given, answered) in [("", ""), ("", "vlan=20"), ("vlan=3", "vlan=20"), ("vlan=3", "")] {
            let program = program_of(of(mode, Some(20)), true);
            let mut interpreter = interpreter(&program);
            let sent = interpreter.walk(PortId(0), &request(given), 128, 0);
            assert_eq!(sent.verdict, Verdict::Transmit(PortId(1)));
            assert_eq!(tags(&sent.bytes), "vlan=20");
            let words = craft::describe(&sent.bytes);
            let word = |key: &str| {
                let found = words.split(' ').find_map(|word| word.strip_prefix(key));
                found.unwrap_or_else(|| panic!("no {key} in {words}")).to_string()
            };
            let answer = craft::frame(&format!(
                "eth.src=02:00:00:00:01:00 eth.dst=02:00:00:00:00:fd src={} dst={} proto=tcp sport={} \
                 dport={} flags=SA {answered}",
                word("dst="),
                word("src="),
                word("dport="),
                word("sport=")
            ));
            let back = interpreter.walk(PortId(1), &answer, 128, 0);
            assert_eq!(back.verdict, Verdict::Transmit(PortId(0)), "{given} {answered}");
            assert_eq!(tags(&back.bytes), given, "{given} {answered}");
        }
    }
}

#[test]
fn services_with_and_without_share_pipes() {
    let mut one = of(Mode::L2, Some(20)).services.remove(0);
    let back_end = |at: u8, vlan| BackEnd { vlan, ..back_ends(3)[usize::from(at)].clone() };
    one.back_ends = vec![back_end(0, Some(20)), back_end(1, Some(30)), back_end(2, None)].into();
    let other = Service { out: None, back_ends: one.back_ends.clone(), ..at(54, service("dns", By::Source)) };
    let program = program(vec![one, other], true);
    let mut interpreter = interpreter(&program);
    for host in 1..100 {
        let frame = query(OURS, Ipv4Addr::new(192, 0, 2, host), VIP, 4000, 0);
        let frame = [&frame[..36], &[0, 54], &frame[38..]].concat();
        let walk = interpreter.walk(PortId(0), &frame, 128, 0);
        assert_eq!(walk.verdict, Verdict::Transmit(PortId(0)));
        let wanted = ["vlan=20", "vlan=30", ""][usize::from(walk.bytes[5])];
        assert_eq!(tags(&walk.bytes), wanted);
    }
}

#[test]
fn a_back_end_with_a_vlan_needs_its_mac() {
    let mut one = service("dns", By::FiveTuple);
    change(&mut one, |all| (all[1].vlan, all[1].resolve) = (Some(20), Some(BACK_END.into())));
    let problems = Lb { services: vec![one], ..Lb::default() }.problems();
    assert!(matches!(problems[..], [(_, Problem::VlanNeighbour { .. })]), "{problems:?}");
}
