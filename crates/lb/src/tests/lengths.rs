//! ICMP errors about packets sent by back ends, packets that are too long for the path to them, and the
//! segments of connections.

use super::modes::{BACK_END, CLIENTS, VIPS, ip, kinds, of, request, word};
use super::*;
use crate::health::LbApp;
use weir_app::{Action, App, Event};
use weir_packet::{DropReason, craft};

const CLIENT_MAC: &str = "eth.src=02:00:00:00:00:0c eth.dst=02:00:00:00:00:fe";

/// A router's error about a packet that the service has sent to a client.
fn error(family: usize, protocol: u8, (vip, vip_port): (&str, u16), (client, sport): (&str, u16)) -> Vec<u8> {
    let sent = format!("src={vip} dst={client} proto={} sport={vip_port} dport={sport}", word(protocol));
    let bytes = [28, 48][family];
    let inside: String =
        craft::frame(&sent)[14..][..bytes].iter().map(|byte| format!("{byte:02x}")).collect();
    let (router, kind) =
        [("198.51.100.77", "icmp icmp_type=3"), ("2001:db8:77::1", "icmpv6 icmp_type=2")][family];
    craft::frame(&format!("{CLIENT_MAC} src={router} dst={vip} proto={kind} icmp_code=0 payload={inside}"))
}

#[test]
fn errors_go_to_the_back_end_of_the_flow_in_every_mode() {
    let inner_mac = [2, 0, 0, 0, 7, 7];
    for (family, protocol) in kinds() {
        for outer in [0, 1] {
            let to = ip(BACK_END[outer]);
            let tunnels = [
                Mode::Ipip(to),
                Mode::Gue(to),
                Mode::BareGue(to),
                Mode::Gre(to),
                Mode::Vxlan { ip: to, vni: 7, inner_mac },
            ];
            for mode in tunnels.into_iter().chain([Mode::L2]) {
                let mut interpreter = interpreter(&program_of(of(family, protocol, mode), true));
                let frame = error(family, protocol, (VIPS[family], 53), (CLIENTS[family], 4000));
                let walk = interpreter.walk(PortId(0), &frame, 128, 0);
                assert_eq!(walk.verdict, Verdict::Kernel(PortId(0)), "{mode:?}: its flow is unknown");
                interpreter.walk(PortId(0), &request(family, protocol), 128, 0);
                let walk = interpreter.walk(PortId(0), &frame, 128, 0);
                assert_eq!(walk.verdict, Verdict::Transmit(PortId(1)), "{mode:?}");
                assert_eq!(walk.bytes[..6], [2, 0, 0, 0, 1, 0]);
                assert!(walk.bytes.ends_with(&frame[14..]), "{mode:?}: unchanged");
            }
        }
        // An error about another port, protocol or address does not belong to the service.
        let mut interpreter = interpreter(&program_of(of(family, protocol, Mode::L2), true));
        interpreter.walk(PortId(0), &request(family, protocol), 128, 0);
        for (of_protocol, vip, port) in
            [(protocol, VIPS[family], 54), (23 - protocol, VIPS[family], 53), (protocol, CLIENTS[family], 53)]
        {
            let frame = error(family, of_protocol, (vip, port), (CLIENTS[family], 4000));
            let walk = interpreter.walk(PortId(0), &frame, 128, 0);
            assert_eq!(walk.verdict, Verdict::Kernel(PortId(0)), "{of_protocol} {vip} {port}");
        }
    }
}

#[test]
fn errors_are_translated_where_their_flow_is() {
    for (family, protocol) in kinds() {
        let (to, port) = (ip(BACK_END[family]), Some(5353));
        for mode in [Mode::Nat { ip: to, port }, Mode::FullNat { ip: to, port }] {
            let mut interpreter = interpreter(&program_of(of(family, protocol, mode), true));
            let sent = interpreter.walk(PortId(0), &request(family, protocol), 128, 0).bytes;
            let frame = error(family, protocol, (VIPS[family], 53), (CLIENTS[family], 4000));
            let walk = interpreter.walk(PortId(0), &frame, 128, 0);
            assert_eq!(walk.verdict, Verdict::Transmit(PortId(1)), "{mode:?}");
            // The quoted packet is the answer to the packet that the back end received.
            let (l3, header) = (14, [20, 40][family]);
            let (src, dst) = ([12..16, 8..24][family].clone(), [16..20, 24..40][family].clone());
            let inside = &walk.bytes[l3 + header + 8..];
            let at = |packet: &[u8], range: &std::ops::Range<usize>| packet[range.clone()].to_vec();
            let sent = &sent[l3..];
            assert_eq!(at(inside, &src), at(sent, &dst), "{mode:?}");
            assert_eq!(at(inside, &dst), at(sent, &src), "{mode:?}");
            let ports =
                |packet: &[u8]| [at(packet, &(header..header + 2)), at(packet, &(header + 2..header + 4))];
            let [sport, dport] = ports(sent);
            assert_eq!(ports(inside), [dport, sport], "{mode:?}");
            assert_eq!(at(&walk.bytes[l3..], &dst), at(sent, &dst), "it goes to the back end");
        }
    }
}

#[test]
fn errors_find_the_back_end_of_the_client_whatever_chooses() {
    let services = [
        Service { stateless: true, ..service("dns", By::FiveTuple) },
        service("dns", By::Source),
        service("dns", By::SourcePort),
        service("dns", By::SourceBits(3)),
    ];
    for service in services {
        let by = service.by;
        let mut interpreter = interpreter(&program(vec![service], true));
        let mut seen = std::collections::BTreeSet::new();
        for host in 0..50 {
            let client = Ipv4Addr::new(192, 0, 2, host);
            let packet = chosen(&mut interpreter, &query(OURS, client, VIP, 4000, 0), PortId(0));
            let frame = error(0, 17, (&VIP.to_string(), 53), (&client.to_string(), 4000));
            assert_eq!(chosen(&mut interpreter, &frame, PortId(0)), packet, "{by:?} {client}");
            seen.extend(packet);
        }
        assert!(seen.len() > 1, "{by:?}");
    }
}

/// A packet of this length from a client.
fn packet(family: usize, protocol: u8, length: usize, more: &str) -> Vec<u8> {
    let headers = [20, 40][family] + if protocol == 6 { 20 } else { 8 };
    let df = if family == 0 { "df=1" } else { "" };
    craft::frame(&format!(
        "{CLIENT_MAC} {more} src={} dst={} {df} proto={} sport=4000 dport=53 payload={}",
        CLIENTS[family],
        VIPS[family],
        word(protocol),
        "5a".repeat(length - headers)
    ))
}

#[test]
fn what_does_not_fit_goes_to_the_app_with_the_length_that_does() {
    let inner_mac = [2, 0, 0, 0, 7, 7];
    for (family, protocol) in kinds() {
        for outer in [0, 1] {
            let to = ip(BACK_END[outer]);
            let modes = [
                (Mode::Ipip(to), [20, 40]),
                (Mode::Gre(to), [24, 44]),
                (Mode::Gue(to), [32, 52]),
                (Mode::BareGue(to), [28, 48]),
                (Mode::Vxlan { ip: to, vni: 7, inner_mac }, [50, 70]),
            ];
            for (mode, takes) in modes {
                for mtu in [1500, 1300] {
                    let mut lb = of(family, protocol, mode);
                    lb.services[0].mtu = mtu;
                    let program = program_of(lb, true);
                    let walk = |frame: &[u8]| interpreter(&program).walk(PortId(0), frame, 128, 0);
                    let fits = mtu - takes[outer];
                    let sent = walk(&packet(family, protocol, fits.into(), ""));
                    assert_eq!(sent.verdict, Verdict::Transmit(PortId(1)), "{mode:?}");
                    assert_eq!(sent.bytes.len(), usize::from(mtu) + 14, "as long as the path allows");
                    let frame = packet(family, protocol, usize::from(fits) + 1, "");
                    let refused = walk(&frame);
                    assert!(matches!(refused.verdict, Verdict::App(_)), "{mode:?}");
                    assert_eq!((refused.limit, &refused.bytes), (Some(fits), &frame), "{mode:?}");
                    // A tag is carried in VXLAN, and is not part of the other tunnels' packets.
                    let tag = if let Mode::Vxlan { .. } = mode { 4 } else { 0 };
                    let refused = walk(&packet(family, protocol, usize::from(fits) + 1, "vlan=7"));
                    assert_eq!(refused.limit, Some(fits - tag), "{mode:?}");
                }
            }
        }
    }
    let program = program_of(of(0, 17, Mode::Ipip(ip(BACK_END[0]))), true);
    assert_eq!(program.apps, [TOO_LONG]);
    let mut frame = packet(0, 17, 1481, "");
    frame[20] = 0;
    let walk = interpreter(&program).walk(PortId(0), &frame, 128, 0);
    assert_eq!(walk.verdict, Verdict::Drop(DropReason::NotFragmented));
    assert_eq!(program_of(of(0, 17, Mode::L2), true).apps, [""; 0], "without tunnels, nothing goes there");
}

#[test]
fn without_a_tunnel_what_does_not_fit_goes_to_the_app_as_it_came_where_longer_packets_arrive() {
    for (family, protocol) in kinds() {
        let to = ip(BACK_END[family]);
        for mode in [Mode::L2, Mode::Nat { ip: to, port: Some(5353) }, Mode::FullNat { ip: to, port: None }] {
            let mut lb = of(family, protocol, mode);
            (lb.services[0].mtu, lb.services[0].limited) = (1400, true);
            let program = program_of(lb, true);
            assert_eq!(program.apps, [TOO_LONG]);
            let walk = |frame: &[u8]| interpreter(&program).walk(PortId(0), frame, 128, 0);
            for tag in ["", "vlan=7"] {
                let sent = walk(&packet(family, protocol, 1400, tag));
                assert_eq!(sent.verdict, Verdict::Transmit(PortId(1)), "{mode:?}");
                let frame = packet(family, protocol, 1401, tag);
                let refused = walk(&frame);
                assert!(matches!(refused.verdict, Verdict::App(_)), "{mode:?}");
                assert_eq!((refused.limit, &refused.bytes), (Some(1400), &frame), "{mode:?}");
            }
            if family == 0 {
                let mut frame = packet(0, protocol, 1401, "");
                frame[20] = 0;
                assert_eq!(walk(&frame).verdict, Verdict::Drop(DropReason::NotFragmented), "{mode:?}");
            }
        }
    }
}

#[test]
fn the_app_answers_by_the_port_that_a_packet_came_by() {
    let lb = of(0, 17, Mode::Ipip(ip(BACK_END[0])));
    let mut app = LbApp::new(lb.health.clone());
    app.bind(&program_of(lb, true));
    assert!(app.punts().contains(&TOO_LONG.to_string()));
    let (frame, mut actions) = (packet(0, 17, 1500, "vlan=7"), Vec::new());
    let event = Event::TooLong { app: TOO_LONG, input: PortId(0), bytes: &frame, limit: 1480 };
    app.step(0, event, &mut actions);
    let [Action::Inject { bytes, output: PortId(0) }] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!((&bytes[..6], &bytes[6..12], &bytes[12..18]), (&frame[6..12], &frame[..6], &frame[12..18]));
    assert_eq!((&bytes[30..34], &bytes[34..38]), (&frame[34..38], &frame[30..34]), "from the VIP");
    assert!(app.counts().contains(&("too_big_sent", 1)));
    let short = Event::TooLong { app: TOO_LONG, input: PortId(0), bytes: &frame[..20], limit: 1480 };
    actions.clear();
    app.step(0, short, &mut actions);
    assert_eq!(actions.len(), 0);
    assert!(app.counts().contains(&("too_big_unanswerable", 1)));
}

#[test]
fn the_segments_of_a_service_are_limited_if_it_says_so() {
    let syn = |family: usize, dport: u16| {
        craft::frame(&format!(
            "{CLIENT_MAC} src={} dst={} proto=tcp sport=4000 dport={dport} flags=S tcp_options=020405b4",
            CLIENTS[family], VIPS[family]
        ))
    };
    /// The segment size announced by a packet, inside a tunnel or not.
    fn announced(bytes: &[u8]) -> u16 {
        u16::from_be_bytes([bytes[bytes.len() - 2], bytes[bytes.len() - 1]])
    }
    for (family, headers) in [(0, 40), (1, 60)] {
        for (mss, wanted) in [
            (None, 1460),
            (Some(Mss::Fixed(1000)), 1000),
            (Some(Mss::Fixed(2000)), 1460),
            (Some(Mss::Auto), 1500 - 20 - headers),
        ] {
            let mut lb = of(family, 6, Mode::Ipip(ip(BACK_END[0])));
            lb.services[0].mss = mss;
            let other = Address { ports: (80, 90), ..lb.services[0].addresses[0] };
            lb.services.push(Service {
                name: "other".into(),
                addresses: vec![other],
                mss: None,
                ..lb.services[0].clone()
            });
            let program = program_of(lb, true);
            let sent = |dport| {
                let walk = interpreter(&program).walk(PortId(0), &syn(family, dport), 128, 0);
                assert_eq!(walk.verdict, Verdict::Transmit(PortId(1)));
                announced(&walk.bytes)
            };
            assert_eq!((sent(53), sent(85)), (wanted, 1460), "{mss:?}");
        }
    }
    // Where answers return through weir, the server's segment size is clamped, too.
    let mut lb = of(0, 6, Mode::Nat { ip: ip(BACK_END[0]), port: None });
    lb.services[0].mss = Some(Mss::Fixed(1000));
    let mut interpreter = interpreter(&program_of(lb, true));
    interpreter.walk(PortId(0), &syn(0, 53), 128, 0);
    let answer = craft::frame(&format!(
        "eth.dst=02:00:00:00:00:fd src={} dst={} proto=tcp sport=53 dport=4000 flags=SA tcp_options=020405b4",
        BACK_END[0], CLIENTS[0]
    ));
    let walk = interpreter.walk(PortId(1), &answer, 128, 0);
    assert_eq!((walk.verdict, announced(&walk.bytes)), (Verdict::Transmit(PortId(0)), 1000));
}
