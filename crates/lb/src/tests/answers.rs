//! Answers for VIPs: the frames that each port takes, those that reach the app, and the app's answers as
//! parsed by etherparse.

use super::*;
use crate::health::LbApp;
use etherparse::{Icmpv4Type, Icmpv6Type, LinkExtHeader, NetHeaders, PacketHeaders, TransportHeader};
use weir_app::{Action, App, Event};
use weir_packet::craft;

const VIP6: &str = "2001:db8::53";
const CLIENT: [u8; 6] = [2, 0, 0, 0, 9, 9];
const SECOND_NS: u64 = 1_000_000_000;

/// Services with a VIP of each version of IP, and TCP.
fn tcp(name: &str) -> Service {
    let addresses = [IpAddr::V4(VIP), VIP6.parse().unwrap()];
    let tcp = |vip| Address { protocol: 6, ..address(vip, 80) };
    Service { addresses: addresses.map(tcp).into(), ..service(name, By::FiveTuple) }
}

fn ports_of(kind: &PortKind) -> [PortConfig; 2] {
    [0, 1].map(|at| PortConfig {
        mac: Some(OURS),
        mac_configured: true,
        ..PortConfig::new(format!("p{at}"), kind.clone())
    })
}

fn balancer(services: Vec<Service>, kind: &PortKind) -> Lb {
    let ports = ports_of(kind);
    let answered = Arc::new(Answered::of((&services, &[]), &attachments(), &ports));
    Lb { services, answered, is_there: true, ..Lb::default() }
}

fn announced(service: Service) -> Vec<IpAddr> {
    balancer(vec![service], &PortKind::Mem).answered.vips.iter().map(|one| one.vip).collect()
}

/// An app, and the frames it wants to send.
struct Talk {
    app: LbApp,
    now_ns: u64,
    said: Vec<String>,
}

impl Talk {
    fn new(lb: &Lb) -> Talk {
        let mut app = LbApp::new(lb.health.clone()).answering(&lb.answered);
        app.bind(&program_of(lb.clone(), false));
        Talk { app, now_ns: 0, said: Vec::new() }
    }

    fn step(&mut self, event: Event<'_>) -> Vec<(PortId, Vec<u8>)> {
        let mut actions = Vec::new();
        self.app.step(self.now_ns, event, &mut actions);
        let mut sent = Vec::new();
        for action in actions {
            match action {
                Action::Inject { bytes, output } => sent.push((output, bytes)),
                Action::Say(_, text) => self.said.push(text),
                Action::Publish { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        sent
    }

    /// Starts, and continues until nothing is due. Returns what was sent, and when.
    fn begin(&mut self) -> Vec<(u64, Vec<u8>)> {
        let mut sent: Vec<(u64, Vec<u8>)> =
            self.step(Event::Start).into_iter().map(|(_, bytes)| (self.now_ns, bytes)).collect();
        while let Some(wake_ns) = self.app.wake_ns() {
            self.now_ns = wake_ns;
            sent.extend(self.step(Event::Tick).into_iter().map(|(_, bytes)| (wake_ns, bytes)));
        }
        sent
    }

    /// Returns the only answer to a frame on the first port, if there is one.
    fn handle(&mut self, app: &str, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut sent = self.step(Event::Frame { app, input: PortId(0), bytes });
        assert!(sent.len() <= 1 && sent.iter().all(|(port, _)| *port == PortId(0)), "{sent:?}");
        sent.pop().map(|(_, bytes)| bytes)
    }
}

fn arp(words: &str) -> Vec<u8> {
    craft::frame(&format!("eth.src=02:00:00:00:09:09 eth.dst=ff:ff:ff:ff:ff:ff arp=request {words}"))
}

/// A neighbour solicitation for the VIP, with the source's address as option if one is given.
fn solicitation(src: &str, dst: &str, option: bool, more: &str) -> Vec<u8> {
    solicitation_for(VIP6, (src, dst), option, more)
}

fn solicitation_for(target: &str, (src, dst): (&str, &str), option: bool, more: &str) -> Vec<u8> {
    let target: Ipv6Addr = target.parse().unwrap();
    let mut payload: String = target.octets().iter().map(|byte| format!("{byte:02x}")).collect();
    if option {
        payload += "0101020000000909";
    }
    craft::frame(&format!(
        "eth.src=02:00:00:00:09:09 eth.dst=33:33:ff:00:00:53 src={src} dst={dst} ttl=255 proto=icmpv6 \
         icmp_type=135 payload={payload} {more}"
    ))
}

const GROUP: &str = "ff02::1:ff00:53";

fn read(frame: &[u8]) -> PacketHeaders<'_> {
    PacketHeaders::from_ethernet_slice(frame).expect("a frame that etherparse parses")
}

/// The VLANs of a frame.
fn vlans(headers: &PacketHeaders<'_>) -> Vec<u16> {
    let vlan = |header: &LinkExtHeader| match header {
        LinkExtHeader::Vlan(vlan) => Some(vlan.vlan_id.value()),
        LinkExtHeader::Macsec(_) => None,
    };
    headers.link_exts.iter().filter_map(vlan).collect()
}

/// The addresses of an IPv6 packet, after verifying its checksum and hop limit.
fn icmpv6(headers: &PacketHeaders<'_>, hop_limit: u8) -> (Ipv6Addr, Ipv6Addr, Icmpv6Type) {
    let (Some(NetHeaders::Ipv6(ip, _)), Some(TransportHeader::Icmpv6(icmp))) =
        (&headers.net, &headers.transport)
    else {
        panic!("{headers:?}")
    };
    let payload = headers.payload.slice();
    let sum = icmp.icmp_type.calc_checksum(ip.source, ip.destination, payload).unwrap();
    assert_eq!((icmp.checksum, ip.hop_limit), (sum, hop_limit));
    (ip.source.into(), ip.destination.into(), icmp.icmp_type)
}

#[test]
fn services_with_tcp_are_announced_unless_they_say_otherwise() {
    let both: Vec<IpAddr> = vec![VIP.into(), VIP6.parse().unwrap()];
    let udp = || service("dns", By::FiveTuple);
    assert_eq!(announced(tcp("web")), both);
    assert!(announced(udp()).is_empty());
    assert_eq!(announced(Service { announce: Announce::Arp, ..udp() }), both[..1]);
    assert!(announced(Service { announce: Announce::Never, ..tcp("web") }).is_empty());
    let prefix = Address { prefix: 24, ..tcp("web").addresses[0] };
    let prefixes = Service { addresses: vec![prefix], ..tcp("web") };
    assert!(announced(prefixes).is_empty(), "prefixes must be routed to");
    // One service that announces suffices, and each VIP is announced once per port.
    let lb = balancer(vec![udp(), tcp("web"), at(443, tcp("tls"))], &PortKind::Mem);
    assert_eq!(lb.answered.vips.len(), 2);
}

#[test]
fn ports_take_questions_and_pings_for_vips_and_nothing_else() {
    let lb = balancer(vec![tcp("web")], &PortKind::Mem);
    let rules: Vec<Frames> = lb.take().into_iter().map(|rule| rule.frames).collect();
    let asked = |vip: &str| Frames::Asked(vip.parse().unwrap());
    assert!(rules.contains(&asked("10.0.0.53")) && rules.contains(&asked(VIP6)));
    let pings: Vec<_> = rules
        .iter()
        .filter_map(|frames| match frames {
            Frames::Ip(IpRule { protocol: Some(protocol @ (1 | 58)), dport, prefix, .. }) => {
                Some((*protocol, *dport, *prefix))
            }
            _ => None,
        })
        .collect();
    assert_eq!(pings, [(1, Some((0x800, 0x8ff)), 32), (58, Some((0x8000, 0x80ff)), 128)]);
    let udp = balancer(vec![service("dns", By::FiveTuple)], &PortKind::Mem);
    assert_eq!(udp.take().len(), 3, "the service, its fragments and ICMP errors");
}

#[test]
fn only_questions_for_vips_and_pings_reach_the_app() {
    for kernel_path in [false, true] {
        let program = program_of(balancer(vec![tcp("web")], &PortKind::Mem), kernel_path);
        let mut interpreter = interpreter(&program);
        let mut to = |frame: &[u8]| {
            let walk = interpreter.walk(PortId(0), frame, 128, 0);
            let copied = walk.copies.iter().find_map(|copy| match copy.to {
                Verdict::App(app) => Some(app),
                _ => None,
            });
            let app = if let Verdict::App(app) = walk.verdict { Some(app) } else { copied };
            app.map(|app| program.apps[app.index()].clone())
        };
        let ping = |dst: &str, more: &str| {
            let family = if dst.contains(':') { "src=2001:db8::7 proto=icmpv6" } else { "proto=icmp" };
            craft::frame(&format!("eth.dst=02:00:00:00:00:fe {family} dst={dst} {more}"))
        };
        let (asks, pings) = (Some("lb/announce".to_string()), Some("lb/echo".to_string()));
        assert_eq!(to(&arp("target_ip=10.0.0.53")), asks);
        assert_eq!(to(&arp("target_ip=10.0.0.53 vlan=7")), asks);
        assert_eq!(to(&arp("target_ip=10.0.0.54")), None);
        assert_eq!(to(&craft::frame("arp=reply target_ip=10.0.0.53")), None);
        assert_eq!(to(&solicitation("2001:db8::7", GROUP, true, "")), asks);
        assert_eq!(to(&solicitation("2001:db8::7", VIP6, true, "")), asks);
        assert_eq!(to(&solicitation("2001:db8::7", "ff02::1:ff00:54", true, "")), None);
        assert_eq!(to(&ping("10.0.0.53", "")), pings);
        assert_eq!(to(&ping(VIP6, "")), pings);
        assert_eq!(to(&ping("10.0.0.53", "icmp_type=0")), None);
        assert_eq!(to(&ping("10.0.0.54", "")), None);
        assert_eq!(to(&craft::frame("eth.dst=02:00:00:00:00:77 proto=icmp dst=10.0.0.53")), None);
    }
}

#[test]
fn the_host_gets_solicitations_as_well_where_it_can() {
    let program = program_of(balancer(vec![tcp("web")], &PortKind::Mem), true);
    let walk = interpreter(&program).walk(PortId(0), &solicitation("2001:db8::7", GROUP, true, ""), 128, 0);
    assert_eq!((walk.verdict, walk.copies.len()), (Verdict::Kernel(PortId(0)), 1));
}

#[test]
fn arp_requests_are_answered_with_their_tags() {
    let mut talk = Talk::new(&balancer(vec![tcp("web")], &PortKind::Mem));
    for tags in ["", "vlan=7", "vlan=7 second_vlan=9"] {
        for sender in ["192.0.2.7", "0.0.0.0"] {
            let question = arp(&format!("sender_ip={sender} target_ip=10.0.0.53 {tags}"));
            let answer = talk.handle("lb/announce", &question).expect("an answer");
            assert!(answer.len() >= 60, "{answer:?}");
            let headers = read(&answer);
            let ethernet = headers.link.as_ref().and_then(|link| link.clone().ethernet2()).unwrap();
            assert_eq!((ethernet.destination, ethernet.source), (CLIENT, OURS));
            let wanted: &[u16] = [&[][..], &[7], &[7, 9]][tags.split_whitespace().count()];
            assert_eq!(vlans(&headers), wanted);
            let Some(NetHeaders::Arp(arp)) = &headers.net else { panic!("{headers:?}") };
            assert_eq!(
                (arp.operation.0, arp.sender_hw_addr(), arp.target_hw_addr()),
                (2, &OURS[..], &CLIENT[..])
            );
            let sender: Ipv4Addr = sender.parse().unwrap();
            assert_eq!(arp.sender_protocol_addr(), VIP.octets());
            assert_eq!(arp.target_protocol_addr(), sender.octets());
        }
    }
}

#[test]
fn solicitations_are_answered_to_who_asks_or_to_all() {
    let mut talk = Talk::new(&balancer(vec![tcp("web")], &PortKind::Mem));
    let (client, all): (Ipv6Addr, Ipv6Addr) = ("2001:db8::7".parse().unwrap(), "ff02::1".parse().unwrap());
    for (src, dst, option, to, solicited) in [
        ("2001:db8::7", GROUP, true, client, true),
        ("2001:db8::7", VIP6, false, client, true),
        // Duplicate address detection.
        ("::", GROUP, false, all, false),
    ] {
        let question = solicitation(src, dst, option, "vlan=7");
        let answer = talk.handle("lb/announce", &question).expect("an answer");
        let headers = read(&answer);
        assert_eq!(vlans(&headers), [7]);
        let (from, towards, message) = icmpv6(&headers, 255);
        assert_eq!((from.to_string(), towards), (VIP6.to_string(), to));
        let Icmpv6Type::NeighborAdvertisement(advertisement) = message else { panic!("{message:?}") };
        assert_eq!((advertisement.solicited, advertisement.r#override), (solicited, true));
        let vip: Ipv6Addr = VIP6.parse().unwrap();
        assert_eq!(headers.payload.slice(), [&vip.octets()[..], &[2, 1], &OURS].concat());
        assert_eq!(answer[..6] == CLIENT, solicited);
    }
}

#[test]
fn what_is_no_valid_question_gets_no_answer() {
    let mut talk = Talk::new(&balancer(vec![tcp("web")], &PortKind::Mem));
    let mut handle = |frame: &[u8]| talk.handle("lb/announce", frame);
    for frame in [
        arp("sender_ip=192.0.2.7 target_ip=10.0.0.54"),
        craft::frame("eth.dst=02:00:00:00:00:77 arp=request target_ip=10.0.0.53"),
        craft::frame("eth.src=02:00:00:00:00:fe eth.dst=ff:ff:ff:ff:ff:ff arp=request target_ip=10.0.0.53"),
        craft::frame("eth.dst=ff:ff:ff:ff:ff:ff arp=reply target_ip=10.0.0.53"),
        // Invalid by RFC 4861 §7.1.1: the hop limit, the code, the checksum, an option, or a source address
        // option without a source.
        solicitation("2001:db8::7", GROUP, true, "").replacing("ttl=255", "ttl=254"),
        solicitation("2001:db8::7", GROUP, true, "icmp_code=1"),
        solicitation("2001:db8::7", GROUP, true, "csum=bad"),
        solicitation("::", GROUP, true, ""),
        solicitation("::", VIP6, false, ""),
        Vec::new(),
        vec![0xff; 13],
    ] {
        assert_eq!(handle(&frame), None, "{}", craft::describe(&frame));
    }
    // No frame makes it panic, wherever it is truncated.
    for whole in [arp("target_ip=10.0.0.53"), solicitation("2001:db8::7", GROUP, true, "vlan=7")] {
        for cut in 0..whole.len() {
            let _ = handle(&whole[..cut]);
        }
    }
}

/// Replaces the hop limit.
trait Replacing {
    fn replacing(self, from: &str, to: &str) -> Vec<u8>;
}

impl Replacing for Vec<u8> {
    fn replacing(self, from: &str, to: &str) -> Vec<u8> {
        craft::frame(&craft::describe(&self).replace(from, to))
    }
}

#[test]
fn pings_are_answered_with_their_tags_and_data() {
    let mut talk = Talk::new(&balancer(vec![tcp("web")], &PortKind::Mem));
    for (src, dst, tags) in [
        ("192.0.2.7", "10.0.0.53", ""),
        ("192.0.2.7", "10.0.0.53", "vlan=7 second_vlan=9"),
        ("2001:db8::7", VIP6, "vlan=7"),
        ("2001:db8::7", VIP6, ""),
    ] {
        let protocol = if src.contains(':') { "icmpv6" } else { "icmp" };
        let ping = craft::frame(&format!(
            "eth.src=02:00:00:00:09:09 eth.dst=02:00:00:00:00:fe src={src} dst={dst} dscp=10 ecn=1 \
             proto={protocol} icmp_rest=0x00070009 payload=00112233445566 trailer=eeeeee {tags}"
        ));
        let answer = talk.handle("lb/echo", &ping).expect("an answer");
        let headers = read(&answer);
        assert_eq!(vlans(&headers).len(), tags.split_whitespace().count());
        assert_eq!((&answer[..6], &answer[6..12]), (&CLIENT[..], &OURS[..]));
        assert_eq!(headers.payload.slice(), [0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66]);
        let (id, seq) = match (&headers.net, &headers.transport) {
            (Some(NetHeaders::Ipv4(ip, _)), Some(TransportHeader::Icmpv4(icmp))) => {
                assert_eq!(ip.header_checksum, ip.calc_header_checksum());
                assert_eq!((ip.dscp.value(), ip.ecn.value(), ip.time_to_live), (10, 0, 64));
                assert_eq!((ip.source, ip.destination), (VIP.octets(), [192, 0, 2, 7]));
                assert_eq!(icmp.checksum, icmp.icmp_type.calc_checksum(headers.payload.slice()));
                let Icmpv4Type::EchoReply(echo) = &icmp.icmp_type else { panic!("{icmp:?}") };
                (echo.id, echo.seq)
            }
            _ => {
                let (from, to, message) = icmpv6(&headers, 64);
                assert_eq!((from.to_string().as_str(), to.to_string().as_str()), (VIP6, "2001:db8::7"));
                let Icmpv6Type::EchoReply(echo) = message else { panic!("{message:?}") };
                (echo.id, echo.seq)
            }
        };
        assert_eq!((id, seq), (7, 9));
    }
    let ping = "eth.dst=02:00:00:00:00:fe dst=10.0.0.53 proto=icmp src=";
    for src in
        ["192.0.2.7 csum=bad", "10.0.0.53", "224.0.0.1", "255.255.255.255", "0.0.0.0", "192.0.2.7 frag=0+"]
    {
        assert_eq!(talk.handle("lb/echo", &craft::frame(&format!("{ping}{src}"))), None, "{src}");
    }
}

#[test]
fn a_flood_of_pings_is_answered_at_a_limited_rate() {
    let mut talk = Talk::new(&balancer(vec![tcp("web")], &PortKind::Mem));
    let ping = craft::frame("eth.dst=02:00:00:00:00:fe src=192.0.2.7 dst=10.0.0.53 proto=icmp");
    let mut answered = 0;
    for at in 0..100_000 {
        talk.now_ns = at * SECOND_NS / 100_000;
        answered += usize::from(talk.handle("lb/echo", &ping).is_some());
    }
    assert!((1000..=1101).contains(&answered), "{answered} in a second");
    // Requests have a limit of their own.
    assert!(talk.handle("lb/announce", &arp("sender_ip=192.0.2.7 target_ip=10.0.0.53")).is_some());
    let counts = talk.app.counts();
    let count = |name| counts.iter().find(|(one, _)| *one == name).unwrap().1;
    assert_eq!(count("pings_answered") + count("pings_over_limit"), 100_000);
}

#[test]
fn vips_are_announced_three_times_and_not_again_by_a_reload() {
    let port = || PortKind::Dpdk { devargs: String::new(), tap: None, frames: 0 };
    let lb = balancer(vec![tcp("web")], &port());
    let mut talk = Talk::new(&lb);
    let sent = talk.begin();
    assert_eq!(sent.iter().map(|(at_ns, _)| at_ns / SECOND_NS).collect::<Vec<_>>(), [0, 0, 1, 1, 2, 2]);
    let headers = read(&sent[0].1);
    let Some(NetHeaders::Arp(arp)) = &headers.net else { panic!("{headers:?}") };
    assert_eq!((&sent[0].1[..6], arp.operation.0), (&[0xff; 6][..], 1));
    assert_eq!((arp.sender_hw_addr(), arp.sender_protocol_addr()), (&OURS[..], &VIP.octets()[..]));
    assert_eq!(arp.target_protocol_addr(), VIP.octets());
    let headers = read(&sent[1].1);
    let (from, to, message) = icmpv6(&headers, 255);
    assert_eq!((from.to_string().as_str(), to.to_string().as_str()), (VIP6, "ff02::1"));
    assert!(matches!(message, Icmpv6Type::NeighborAdvertisement(one) if !one.solicited && one.r#override));

    // A reload announces only new VIPs.
    let more = Address { vip: Ipv4Addr::new(10, 0, 0, 54).into(), ..tcp("web").addresses[0] };
    let mut addresses = tcp("web").addresses;
    addresses.push(more);
    let mut next = Talk::new(&balancer(vec![Service { addresses, ..tcp("web") }], &port()));
    next.now_ns = talk.now_ns;
    next.app.inherit(Box::new(talk.app));
    assert_eq!(next.begin().len(), 3);
    // A recording has no other stations.
    assert!(Talk::new(&balancer(vec![tcp("web")], &PortKind::Mem)).begin().is_empty());
}

#[test]
fn vips_are_announced_in_the_vlans_that_are_named() {
    let port = || PortKind::Dpdk { devargs: String::new(), tap: None, frames: 0 };
    // The second service has the first VIP of the other, and adds its own VLANs.
    let udp = service("dns", By::FiveTuple);
    let both = |vlans: &[u16]| {
        let web = Service { announce_vlans: vec![7, 0], ..tcp("web") };
        vec![web, Service { announce: Announce::Arp, announce_vlans: vlans.to_vec(), ..udp.clone() }]
    };
    let mut talk = Talk::new(&balancer(both(&[7, 9]), &port()));
    let sent = talk.begin();
    let wanted: [&[u16]; 5] = [&[7], &[], &[7], &[], &[9]];
    assert_eq!(sent[..5].iter().map(|(_, bytes)| vlans(&read(bytes))).collect::<Vec<_>>(), wanted);
    let is_arp = |bytes: &[u8]| matches!(read(bytes).net, Some(NetHeaders::Arp(_)));
    let arps: Vec<bool> = sent[..5].iter().map(|(_, bytes)| is_arp(bytes)).collect();
    assert_eq!((sent.len(), arps), (15, vec![true, true, false, false, true]));
    // A reload announces in new VLANs only.
    let mut next = Talk::new(&balancer(both(&[9, 11]), &port()));
    next.now_ns = talk.now_ns;
    next.app.inherit(Box::new(talk.app));
    let sent = next.begin();
    assert!(sent.len() == 3 && sent.iter().all(|(_, bytes)| vlans(&read(bytes)) == [11]), "{sent:?}");
}

#[test]
fn on_a_bond_vips_have_its_address_and_the_bond_tells_unasked() {
    let bond = [2, 0, 0, 0, 0, 0xbb];
    let mut attachments = attachments();
    attachments.add(Attachment {
        name: "bond0".into(),
        to: weir_program::Forward::Pipe(weir_program::PipeId(0)),
        ports: vec![PortId(0), PortId(1)],
        mac: Some(bond),
        ..port(0, OURS)
    });
    let ports = ports_of(&PortKind::Dpdk { devargs: String::new(), tap: None, frames: 0 });
    let services = vec![Service { ports: vec![PortId(0), PortId(1)], ..tcp("web") }];
    let answered = Arc::new(Answered::of((&services, &[]), &attachments, &ports));
    assert_eq!(answered.vips.len(), 4);
    let mut talk = Talk::new(&Lb { services, answered, ..Lb::default() });
    assert!(talk.begin().is_empty());
    let answer = talk.handle("lb/announce", &arp("sender_ip=192.0.2.7 target_ip=10.0.0.53")).expect("one");
    assert_eq!(answer[6..12], bond);
}

#[test]
fn another_station_with_a_vip_is_spoken_of_and_not_answered() {
    let mut talk = Talk::new(&balancer(vec![tcp("web")], &PortKind::Mem));
    for _ in 0..3 {
        let gratuitous = arp("sender_ip=10.0.0.53 target_ip=10.0.0.53");
        assert_eq!(talk.handle("lb/announce", &gratuitous), None);
    }
    assert_eq!(talk.said.len(), 1, "{:?}", talk.said);
    assert!(talk.said[0].contains("02:00:00:00:09:09 at p0 claims 10.0.0.53"), "{}", talk.said[0]);
    assert!(talk.app.counts().contains(&("vip_conflicts", 3)));
}

/// The answers for services with a NAT pool whose back ends are behind the second port.
fn pooled(family: usize, announce: Announce) -> Lb {
    let mode = Mode::FullNat { ip: modes::ip(modes::BACK_END[family]), port: None };
    let mut lb = modes::of(family, 17, mode);
    lb.services[0].announce = announce;
    let ports = ports_of(&PortKind::Dpdk { devargs: String::new(), tap: None, frames: 0 });
    let sources = pools::answered(&lb.services, &lb.nat_pools);
    lb.answered = Arc::new(Answered::of((&lb.services, &sources), &attachments(), &ports));
    lb
}

#[test]
fn the_addresses_of_a_nat_pool_are_weirs_own_where_back_ends_are() {
    let asks = [
        (arp("sender_ip=192.0.2.7 target_ip=203.0.113.8"), "203.0.113.8"),
        (solicitation_for("2001:db8:3::8", ("2001:db8::7", "ff02::1:ff00:8"), true, ""), "2001:db8:3::8"),
    ];
    for (family, (ask, address)) in asks.into_iter().enumerate() {
        let lb = pooled(family, Announce::Auto);
        assert_eq!(lb.answers_for(), [address.parse::<IpAddr>().unwrap()]);
        assert!(lb.announced().is_empty(), "the host may have it");
        let asked = |rule: &weir_config::TakeRule| matches!(rule.frames, Frames::Asked(_));
        let ports: Vec<PortId> = lb.take().iter().filter(|rule| asked(rule)).map(|rule| rule.port).collect();
        assert_eq!(ports, [PortId(1)]);
        let walk = interpreter(&program_of(lb.clone(), false)).walk(PortId(1), &ask, 128, 0);
        assert!(matches!(walk.verdict, Verdict::App(_)), "{:?}", walk.verdict);

        let mut talk = Talk::new(&lb);
        let sent = talk.begin();
        assert_eq!(sent.len(), 3, "gratuitous ones");
        assert!(sent.iter().all(|(_, bytes)| bytes[6..12] == THEIRS), "{sent:?}");
        let event = |bytes| Event::Frame { app: "lb/announce", input: PortId(1), bytes };
        let answers = talk.step(event(&ask));
        assert_eq!(answers.len(), 1);
        assert!(answers[0].0 == PortId(1) && answers[0].1[6..12] == THEIRS, "{answers:?}");
    }
    // A station that claims one is logged.
    let mut talk = Talk::new(&pooled(0, Announce::Auto));
    let gratuitous = arp("sender_ip=203.0.113.8 target_ip=203.0.113.8");
    talk.step(Event::Frame { app: "lb/announce", input: PortId(1), bytes: &gratuitous });
    assert!(talk.said[0].contains("at p1 claims 203.0.113.8"), "{:?}", talk.said);
}

#[test]
fn pools_that_are_large_or_of_services_that_announce_nothing_are_left_to_others() {
    assert!(pooled(0, Announce::Never).answers_for().is_empty());
    let mut lb = pooled(0, Announce::Auto);
    for (length, count) in [(24, 256), (23, 0)] {
        let first = Ipv4Addr::new(203, 0, 112, 0).into();
        lb.nat_pools[0].prefixes = vec![weir_program::NatPrefix { first, length }];
        assert_eq!(pools::answered(&lb.services, &lb.nat_pools).len(), count);
    }
}

#[test]
fn a_pool_with_slices_that_may_be_used_up_before_the_table_of_flows_is_warned_of_once() {
    let lb = pooled(0, Announce::Auto);
    let twice = [lb.services.clone(), lb.services.clone()].concat();
    let said = |flows| pools::tight(&twice, &lb.nat_pools, flows);
    // 64 512 pairs, 1008 in each slice: a mean of 917 and three standard deviations of 30.3 fit.
    assert!(said(117_376).is_empty());
    let warned = said(129_000);
    assert_eq!(warned.len(), 1, "{warned:?}");
    assert!(
        warned[0].1.contains("the smallest has 1008, and `flows: 129000` needs about 1104"),
        "{warned:?}"
    );
}

#[test]
fn pings_go_to_a_back_end_where_that_is_written() {
    let one = Service { icmp_echo: IcmpEcho::Forward, ..service("dns", By::FiveTuple) };
    let wide = Address { vip: Ipv4Addr::new(10, 0, 1, 0).into(), prefix: 24, ..one.addresses[0] };
    let answers =
        Service { icmp_echo: IcmpEcho::Answer, addresses: vec![wide], ..service("games", By::Source) };
    // Explicit settings take precedence over defaults.
    let lb = balancer(vec![tcp("web"), one, answers], &PortKind::Mem);
    let program = program_of(lb, true);
    let mut interpreter = interpreter(&program);
    let mut to = |dst: &str| {
        let ping = craft::frame(&format!("eth.dst=02:00:00:00:00:fe src=192.0.2.7 dst={dst} proto=icmp"));
        interpreter.walk(PortId(0), &ping, 128, 0)
    };
    let walk = to("10.0.0.53");
    assert_eq!((walk.verdict, &walk.bytes[..5]), (Verdict::Transmit(PortId(0)), &[2, 0, 0, 0, 1][..]));
    assert!(matches!(to("10.0.1.77").verdict, Verdict::App(_)));
    assert_eq!(to("10.0.2.77").verdict, Verdict::Kernel(PortId(0)));
}

#[test]
fn what_cannot_be_announced_or_pinged_is_told() {
    let problems = |service: Service| {
        let all = Lb { services: vec![service], ..Lb::default() }.problems();
        all.into_iter().map(|(_, problem)| problem).collect::<Vec<_>>()
    };
    let prefix = Address { prefix: 24, ..tcp("web").addresses[0] };
    let announced = Service { announce: Announce::Arp, addresses: vec![prefix], ..tcp("web") };
    assert!(matches!(problems(announced)[..], [Problem::NothingToAnnounce { .. }]));
    let mut pinged = Service { icmp_echo: IcmpEcho::Forward, ..service("dns", By::FiveTuple) };
    assert_eq!(problems(pinged.clone()), []);
    assert!(matches!(problems(Service { by: By::SourcePort, ..pinged.clone() })[..], [Problem::EchoByPort]));
    change(&mut pinged, |all| {
        all[0].mode = Mode::Nat { ip: Ipv4Addr::new(10, 0, 0, 9).into(), port: None };
    });
    assert!(matches!(problems(pinged)[..], [Problem::EchoTranslated { .. }]));
}
