//! The XDP program in the kernel (`BPF_PROG_TEST_RUN`) against a naive reading of the rules. Needs root.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_bpf::{Counters, Fragments, MaskedSource, Ports, Prefix, Take, TakeError, TakeRule, XdpTake};
use weir_packet::random::Random;

const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
const ALSO_OWN: [u8; 6] = [2, 0, 0, 0, 0, 7];
const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;

/// Loads the program; `None` without root.
fn load() -> Option<XdpTake> {
    weir_bed::is_root().then(|| XdpTake::load(1).unwrap())
}

#[derive(Debug, PartialEq)]
enum Verdict {
    Taken,
    Passed,
    NotOurs,
}

/// A test run has no socket, so a frame that is taken counts as `redirect_failed`.
fn verdict(program: &mut XdpTake, frame: &[u8]) -> Verdict {
    let before = program.counters(0);
    assert_eq!(program.test_run(frame).unwrap(), XDP_PASS);
    let after = program.counters(0);
    let Counters { taken, passed, not_ours, redirect_failed, .. } = before;
    let steps = [after.taken - taken, after.passed - passed, after.not_ours - not_ours];
    match (steps, after.redirect_failed - redirect_failed) {
        ([0, 0, 0], 1) => Verdict::Taken,
        ([0, 1, 0], 0) => Verdict::Passed,
        ([0, 0, 1], 0) => Verdict::NotOurs,
        other => panic!("a frame is counted once, not {other:?}"),
    }
}

/// Properties of a frame, determined the slow way.
#[derive(Debug, Default)]
struct Facts {
    ethertype: u16,
    protocol: Option<u8>,
    destination: Option<IpAddr>,
    source: Option<IpAddr>,
    fragment: bool,
    dport: Option<u16>,
    /// ICMP type and code, for IPv4 or IPv6.
    icmp: Option<u16>,
    /// The address that a neighbour query asks for.
    asked: Option<IpAddr>,
    vni: Option<u32>,
}

fn facts(frame: &[u8]) -> Facts {
    let mut facts = Facts::default();
    let mut at = 12;
    facts.ethertype = be16(frame, at).unwrap();
    at += 2;
    for _ in 0..2 {
        if matches!(facts.ethertype, 0x8100 | 0x88a8) && frame.len() >= at + 4 {
            facts.ethertype = be16(frame, at + 2).unwrap();
            at += 4;
        }
    }
    // In a header that is truncated or contradicts itself, both addresses count as 0.
    let unspecified: Option<IpAddr> = match facts.ethertype {
        0x0800 => Some(Ipv4Addr::UNSPECIFIED.into()),
        0x86dd => Some(Ipv6Addr::UNSPECIFIED.into()),
        _ => None,
    };
    (facts.source, facts.destination) = (unspecified, unspecified);
    let transport = match facts.ethertype {
        0x0800 => ipv4(frame.get(at..).unwrap_or_default(), &mut facts).map(|length| at + length),
        0x86dd => ipv6(frame.get(at..).unwrap_or_default(), &mut facts).map(|length| at + length),
        _ => None,
    };
    let payload = transport.and_then(|at| frame.get(at..));
    facts.icmp =
        payload.filter(|_| matches!(facts.protocol, Some(1 | 58))).and_then(|payload| be16(payload, 0));
    facts.asked = match facts.ethertype {
        0x0806 => frame.get(at..).and_then(arp_asks),
        0x86dd if facts.protocol == Some(58) => payload.and_then(solicits),
        _ => None,
    };
    if let Some(payload) = payload
        && matches!(facts.protocol, Some(6 | 17))
        && payload.len() >= 8
    {
        facts.dport = be16(payload, 2);
        if facts.protocol == Some(17) && payload.len() >= 16 && payload[8] & 8 != 0 {
            facts.vni = Some(u32::from_be_bytes([0, payload[12], payload[13], payload[14]]));
        }
    }
    facts
}

/// The address that an ARP request for IPv4 over Ethernet asks for.
fn arp_asks(packet: &[u8]) -> Option<IpAddr> {
    let packet: &[u8; 28] = packet.first_chunk()?;
    let is_request = packet[..8] == [0, 1, 8, 0, 6, 4, 0, 1];
    is_request.then(|| IpAddr::from(<[u8; 4]>::try_from(&packet[24..]).unwrap()))
}

/// The address that a neighbour solicitation asks for.
fn solicits(message: &[u8]) -> Option<IpAddr> {
    let message: &[u8; 24] = message.first_chunk()?;
    (message[0] == 135).then(|| IpAddr::from(<[u8; 16]>::try_from(&message[8..]).unwrap()))
}

/// Returns the header's length if ports may follow it.
fn ipv4(packet: &[u8], facts: &mut Facts) -> Option<usize> {
    let header: &[u8; 20] = packet.first_chunk()?;
    let length = usize::from(header[0] & 15) * 4;
    if header[0] >> 4 != 4 || length < 20 {
        return None;
    }
    facts.source = Some(IpAddr::from(<[u8; 4]>::try_from(&header[12..16]).unwrap()));
    facts.destination = Some(IpAddr::from(<[u8; 4]>::try_from(&header[16..20]).unwrap()));
    facts.protocol = Some(header[9]);
    facts.fragment = be16(header, 6)? & 0x3fff != 0 || packet.len() < length;
    (!facts.fragment).then_some(length)
}

fn ipv6(packet: &[u8], facts: &mut Facts) -> Option<usize> {
    let header: &[u8; 40] = packet.first_chunk()?;
    if header[0] >> 4 != 6 {
        return None;
    }
    facts.source = Some(IpAddr::from(<[u8; 16]>::try_from(&header[8..24]).unwrap()));
    facts.destination = Some(IpAddr::from(<[u8; 16]>::try_from(&header[24..40]).unwrap()));
    let (mut protocol, mut at) = (header[6], 40);
    for _ in 0..8 {
        let length = match protocol {
            44 => 8,
            51 => (usize::from(*packet.get(at + 1)?) + 2) * 4,
            0 | 43 | 60 => (usize::from(*packet.get(at + 1)?) + 1) * 8,
            _ => break,
        };
        let header: &[u8; 4] = packet.get(at..)?.first_chunk()?;
        facts.fragment = protocol == 44 && be16(header, 2)? & 0xfff9 != 0;
        protocol = header[0];
        at += length;
        if facts.fragment {
            facts.protocol = Some(protocol);
            return None;
        }
    }
    facts.protocol = (!matches!(protocol, 0 | 43 | 44 | 51 | 60)).then_some(protocol);
    facts.protocol.map(|_| at)
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

fn expected(take: &Take, frame: &[u8]) -> Verdict {
    let group = frame[0] & 1 == 1;
    let foreign = !group && frame[..6] != OWN && frame[..6] != ALSO_OWN;
    let facts = facts(frame);
    let for_us = |rule: &TakeRule| if group { rule.group } else { take.promiscuous || !foreign };
    let left = take.leave.iter().any(|rule| fits(rule, &facts));
    // Frames for the host itself are not taken because of their source.
    let is_own = facts.destination.is_some_and(|address| take.own.contains(&address));
    let is_for_host = |rule: &TakeRule| rule.source.is_some() && is_own;
    let takes = |rule: &TakeRule| for_us(rule) && fits(rule, &facts) && !is_for_host(rule);
    match !left && take.rules.iter().any(takes) {
        true => Verdict::Taken,
        false if foreign => Verdict::NotOurs,
        false => Verdict::Passed,
    }
}

fn fits(rule: &TakeRule, facts: &Facts) -> bool {
    let place = if matches!(rule.protocol, Some(1 | 58)) { facts.icmp } else { facts.dport };
    let in_range = |ports: Ports| place.is_some_and(|port| (ports.first..=ports.last).contains(&port));
    let ports_known = rule.dport.is_none_or(in_range) && rule.vni.is_none_or(|vni| facts.vni == Some(vni));
    rule.ethertype.is_none_or(|ethertype| facts.ethertype == ethertype)
        && rule.protocol.is_none_or(|protocol| facts.protocol == Some(protocol))
        && rule
            .destination
            .is_none_or(|prefix| facts.destination.is_some_and(|address| covers(prefix, address)))
        && rule.source.is_none_or(|MaskedSource { mask, value }| match facts.source {
            Some(source) => {
                let solicits = facts.ethertype == 0x86dd && facts.asked.is_some();
                !solicits && masked(source, mask) == Some(value)
            }
            None => false,
        })
        && rule.asked.is_none_or(|asked| facts.asked == Some(asked))
        && match rule.fragments {
            Fragments::Also => ports_known || facts.fragment,
            Fragments::Alone => facts.fragment,
            Fragments::No => ports_known,
        }
}

/// An address under a mask of the same version.
fn masked(address: IpAddr, mask: IpAddr) -> Option<IpAddr> {
    match (address, mask) {
        (IpAddr::V4(address), IpAddr::V4(mask)) => Some((address & mask).into()),
        (IpAddr::V6(address), IpAddr::V6(mask)) => Some((address & mask).into()),
        _ => None,
    }
}

fn covers(prefix: Prefix, address: IpAddr) -> bool {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(address) => format!("4{:032b}", address.to_bits()),
        IpAddr::V6(address) => format!("6{:0128b}", address.to_bits()),
    };
    let length = 1 + usize::from(prefix.length);
    bits(prefix.address)[..length] == bits(address).get(..length).unwrap_or_default()[..]
}

/// A seeded source of a small range of values, so that rules and frames match often.
struct Draws(Random);

impl Draws {
    fn below(&mut self, limit: u64) -> u64 {
        self.0.below(limit)
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    fn sometimes<T>(&mut self, make: impl FnOnce(&mut Draws) -> T) -> Option<T> {
        self.one_in(2).then(|| make(self))
    }

    fn v4(&mut self) -> Ipv4Addr {
        Ipv4Addr::new(10, 0, self.below(3) as u8, self.below(3) as u8)
    }

    fn v6(&mut self) -> Ipv6Addr {
        Ipv6Addr::new(0xfd00, self.below(2) as u16, 0, self.below(2) as u16, 0, 0, 0, self.below(2) as u16)
    }

    fn source(&mut self, v4: bool) -> MaskedSource {
        let (address, mask): (IpAddr, IpAddr) = if v4 {
            let masks = [Ipv4Addr::new(0, 0, 0, 1), Ipv4Addr::new(255, 0, 3, 0), Ipv4Addr::BROADCAST];
            (self.v4().into(), self.pick(&masks).into())
        } else {
            let masks = [u128::MAX, 1, u128::MAX << 64 | 3].map(Ipv6Addr::from_bits);
            (self.v6().into(), self.pick(&masks).into())
        };
        MaskedSource { mask, value: masked(address, mask).expect("one version of IP") }
    }

    fn rule(&mut self) -> TakeRule {
        let v4 = self.one_in(2);
        let destination = self.sometimes(|random| match v4 {
            true => Prefix { address: random.v4().into(), length: random.pick(&[0, 8, 23, 24, 31, 32]) },
            false => Prefix {
                address: random.v6().into(),
                length: random.pick(&[0, 16, 31, 32, 63, 64, 127, 128]),
            },
        });
        if self.one_in(12) {
            let asked = if v4 { self.v4().into() } else { self.v6().into() };
            return TakeRule { asked: Some(asked), group: self.one_in(2), ..TakeRule::default() };
        }
        let source = self.one_in(3).then(|| self.source(v4));
        TakeRule {
            ethertype: self.sometimes(|_| if v4 { 0x0800 } else { 0x86dd }),
            protocol: self.sometimes(|random| random.pick(&[1, 6, 17, 58, 132])),
            destination,
            source,
            asked: None,
            dport: self.sometimes(|random| match random.below(5) {
                0 => Ports { first: 53, last: random.pick(&[60, 79, 80, 4789]) },
                1 => Ports { first: 0, last: u16::MAX },
                // The last one is the type and code of the ICMP frames used here.
                _ => random.pick(&[53, 80, 4789, 12_345]).into(),
            }),
            vni: self.one_in(4).then(|| self.below(2) as u32 * 0xff_ffff),
            fragments: self.pick(&[Fragments::Also, Fragments::Alone, Fragments::No]),
            group: self.one_in(2),
            errors: false,
        }
    }

    fn take(&mut self) -> Take {
        let (count, left) = self.pick(&[(0, 0), (1, 0), (1, 1), (2, 0), (3, 2), (64, 0), (61, 3)]);
        let rules = (0..count).map(|_| self.rule()).collect();
        let own =
            (0..self.below(3)).map(|_| if self.one_in(2) { self.v4().into() } else { self.v6().into() });
        let own = own.collect();
        Take { promiscuous: self.one_in(4), rules, leave: (0..left).map(|_| self.rule()).collect(), own }
    }

    fn frame(&mut self) -> Vec<u8> {
        let mut frame = self.pick(&[OWN, OWN, ALSO_OWN, [0xff; 6], [2, 0, 0, 0, 0, 2]]).to_vec();
        frame.extend([2, 0, 0, 0, 0, 9]);
        for _ in 0..self.pick(&[0, 0, 0, 1, 2, 3]) {
            frame.extend(self.pick(&[[0x81, 0, 0, 5], [0x88, 0xa8, 0, 6]]));
        }
        match self.below(5) {
            0 => self.add_arp(&mut frame),
            1 | 2 => self.add_ipv6(&mut frame),
            _ => self.add_ipv4(&mut frame),
        }
        if self.one_in(5) {
            let length = 14 + self.below(frame.len() as u64 - 13);
            frame.truncate(length as usize);
        }
        frame.resize(frame.len().max(14), 0);
        frame
    }

    fn add_arp(&mut self, frame: &mut Vec<u8>) {
        frame.extend([0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, self.pick(&[1, 1, 1, 2])]);
        frame.extend([2, 0, 0, 0, 0, 9]);
        frame.extend(self.v4().octets());
        frame.extend([0; 6]);
        frame.extend(self.v4().octets());
    }

    fn add_ipv4(&mut self, frame: &mut Vec<u8>) {
        let options = self.pick(&[0, 0, 4, 40]);
        let head = if self.one_in(20) { 0x44 } else { 0x45 + options / 4 };
        let fragment = self.pick(&[[0, 0], [0x40, 0], [0x20, 0], [0, 7]]);
        let protocol = self.pick(&[1, 6, 17, 17]);
        frame.extend([8, 0, head, 0, 0, 0, 0, 0, fragment[0], fragment[1], 64, protocol, 0, 0]);
        frame.extend(self.v4().octets());
        frame.extend(self.v4().octets());
        frame.extend(vec![0; usize::from(options)]);
        self.add_transport(frame);
    }

    fn add_ipv6(&mut self, frame: &mut Vec<u8>) {
        let headers = self.pick(&[0, 0, 0, 1, 2, 8, 9]);
        let chain: Vec<u8> = (0..headers).map(|_| self.pick(&[0, 43, 44, 51, 60])).collect();
        let last = self.pick(&[6, 17, 17, 58]);
        let mut next = chain.iter().skip(1).copied().chain([last]);
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, chain.first().copied().unwrap_or(last), 64]);
        frame.extend(self.v6().octets());
        frame.extend(self.v6().octets());
        for kind in &chain {
            let words = if *kind == 44 { 0 } else { self.below(3) as u8 };
            let offset = if *kind == 44 { self.pick(&[[0, 0], [0, 6], [0, 1], [1, 0]]) } else { [0, 0] };
            frame.extend([next.next().unwrap_or(last), words, offset[0], offset[1]]);
            let length =
                if *kind == 51 { (usize::from(words) + 2) * 4 } else { (usize::from(words) + 1) * 8 };
            frame.extend(vec![0; length - 4]);
        }
        if last == 58 && self.one_in(2) {
            frame.extend([self.pick(&[135, 135, 136]), 0, 0, 0, 0, 0, 0, 0]);
            frame.extend(self.v6().octets());
        } else {
            self.add_transport(frame);
        }
    }

    fn add_transport(&mut self, frame: &mut Vec<u8>) {
        frame.extend([0x30, 0x39]);
        frame.extend(self.pick(&[53_u16, 80, 4789]).to_be_bytes());
        frame.extend([0, 16, 0, 0, self.pick(&[0, 8]), 0, 0, 0]);
        frame.extend(self.pick(&[[0; 4], [0xff, 0xff, 0xff, 0], [0, 0, 1, 0]]));
    }
}

#[test]
fn the_kernels_verdict_is_that_of_a_naive_reading() {
    let Some(mut program) = load() else { return };
    let mut random = Draws(Random::new(0x5eed_cafe_f00d_0001));
    let (mut taken, mut refused, mut asked, mut own) = (0, 0, 0, 0);
    for _ in 0..400 {
        let take = random.take();
        match program.set_take([OWN, ALSO_OWN], &take) {
            Err(TakeError::TooManyMasks(_)) => {
                refused += 1;
                continue;
            }
            other => other.unwrap(),
        }
        for _ in 0..50 {
            let frame = random.frame();
            let expected = expected(&take, &frame);
            taken += usize::from(expected == Verdict::Taken);
            let by_question = |rule: &TakeRule| rule.asked.is_some() && fits(rule, &facts(&frame));
            asked += usize::from(expected == Verdict::Taken && take.rules.iter().any(by_question));
            let by_source = |rule: &TakeRule| rule.source.is_some() && fits(rule, &facts(&frame));
            own += usize::from(expected != Verdict::Taken && take.rules.iter().any(by_source));
            assert_eq!(
                verdict(&mut program, &frame),
                expected,
                "{frame:02x?}\n{:?}\n{take:?}",
                facts(&frame)
            );
        }
    }
    assert!((4000..16000).contains(&taken), "{taken} of 20000: the cases are not well mixed");
    assert!(asked > 100, "{asked} questions of 20000 frames: the cases are not well mixed");
    assert!(own > 100, "{own} left although their source fits: the cases are not well mixed");
    assert!(refused < 100, "{refused} of 400 have too many masks");
}

/// An address of a service: of both families, in many networks.
fn vip(n: u32) -> IpAddr {
    match n % 3 {
        0 => Ipv6Addr::new(0xfd00, (n >> 16) as u16, n as u16, 0, 0, 0, 0, 1).into(),
        _ => Ipv4Addr::from_bits(0x0a00_0000 + n * 7).into(),
    }
}

/// A rule for one service; rules for whole addresses and for fragments follow.
fn service(n: u32, dport: u16) -> TakeRule {
    let address = vip(n);
    let destination = Some(Prefix { address, length: if address.is_ipv4() { 32 } else { 128 } });
    TakeRule { destination, protocol: Some(17), dport: Some(dport.into()), ..TakeRule::default() }
}

/// A packet for a service.
fn packet_for(n: u32, dport: u16, fragment: bool) -> Vec<u8> {
    let mut frame = [OWN.as_slice(), &[2, 0, 0, 0, 0, 9]].concat();
    match vip(n) {
        IpAddr::V4(address) => {
            frame.extend([
                8,
                0,
                0x45,
                0,
                0,
                0,
                0,
                0,
                if fragment { 0x20 } else { 0 },
                0,
                64,
                17,
                0,
                0,
                9,
                9,
                9,
                9,
            ]);
            frame.extend(address.octets());
        }
        IpAddr::V6(address) => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, if fragment { 44 } else { 17 }, 64]);
            frame.extend([[0xfd; 16], address.octets()].concat());
            frame.extend(if fragment { vec![17, 0, 0, 1, 0, 0, 0, 1] } else { Vec::new() });
        }
    }
    frame.extend([0x30, 0x39]);
    frame.extend(dport.to_be_bytes());
    frame.extend([0; 20]);
    frame
}

#[test]
fn ten_thousand_services_are_taken_and_what_is_left_stays() {
    let Some(mut program) = load() else { return };
    let rules: Vec<TakeRule> = (0..10_000).map(|n| service(n / 4, 1000 + (n % 4) as u16)).collect();
    // Every address with a number that ends in 7 keeps a port for the host.
    let leave = (7..2_500).step_by(10).map(|n| TakeRule { fragments: Fragments::No, ..service(n, 1001) });
    let take = Take { rules, leave: leave.collect(), ..Take::default() };
    program.set_take([OWN; 2], &take).unwrap();
    let mut random = Draws(Random::new(0x5eed_cafe_f00d_0002));
    let mut seen = [0; 2];
    for _ in 0..20_000 {
        let (n, dport, fragment) =
            (random.below(3_000) as u32, 999 + random.below(6) as u16, random.one_in(4));
        let is_service = n < 2_500 && (fragment || (1000..1004).contains(&dport));
        let is_left = n < 2_500 && n % 10 == 7 && dport == 1001 && !fragment;
        let wanted = if is_service && !is_left { Verdict::Taken } else { Verdict::Passed };
        seen[usize::from(wanted == Verdict::Taken)] += 1;
        let frame = packet_for(n, dport, fragment);
        assert_eq!(verdict(&mut program, &frame), wanted, "{n} {dport} {fragment} {:?}", facts(&frame));
    }
    assert!(seen.iter().all(|&count| count > 5_000), "{seen:?}");
}

#[test]
fn what_is_taken_before_and_after_a_change_is_taken_between_its_steps() {
    let Some(mut program) = load() else { return };
    let mut random = Draws(Random::new(0x5eed_cafe_f00d_0003));
    let kept = [service(1, 53), service(2, 53), service(3, 80)];
    let (frame, mut steps) = (packet_for(1, 53, false), 0);
    for round in 0..30 {
        let others = (0..random.below(40)).map(|_| {
            let n = 10 + random.below(60) as u32;
            let rule = service(n, 53);
            match random.below(4) {
                0 => TakeRule { protocol: None, dport: None, ..rule },
                1 => TakeRule { dport: Some(Ports { first: 5, last: 99 }), ..rule },
                _ => rule,
            }
        });
        let mut rules: Vec<TakeRule> = others.collect();
        // The masks change order.
        rules.splice(..0, if round % 2 == 0 { kept.to_vec() } else { Vec::new() });
        rules.extend(kept.clone());
        let take = Take { rules, ..Take::default() };
        let look = |program: &mut XdpTake| {
            steps += 1;
            if round > 0 {
                assert_eq!(verdict(program, &frame), Verdict::Taken, "round {round}");
            }
        };
        program.set_take_by_steps([OWN; 2], &take, look).unwrap();
    }
    assert!(steps > 500, "{steps}");
}

#[test]
fn a_refused_rule_changes_nothing() {
    let Some(mut program) = load() else { return };
    let frame = [OWN.as_slice(), &[2, 0, 0, 0, 0, 9, 8, 6], &[0; 46]].concat();
    assert_eq!(verdict(&mut program, &frame), Verdict::NotOurs, "it knows no MAC yet");
    program.set_take([OWN; 2], &Take::all()).unwrap();
    assert_eq!(verdict(&mut program, &frame), Verdict::Taken);
    let vni = TakeRule { vni: Some(u32::MAX), ..TakeRule::default() };
    assert!(program.set_take([OWN; 2], &Take { rules: vec![vni], ..Take::default() }).is_err());
    assert_eq!(verdict(&mut program, &frame), Verdict::Taken);
    program.set_take([OWN; 2], &Take::default()).unwrap();
    assert_eq!(verdict(&mut program, &frame), Verdict::Passed);
}

#[test]
fn while_a_successor_is_awaited_what_is_taken_is_dropped_and_the_rest_passes() {
    let Some(mut program) = load() else { return };
    program.set_take([OWN; 2], &Take { rules: vec![service(1, 53)], ..Take::default() }).unwrap();
    program.hold_back(true).unwrap();
    assert_eq!(program.test_run(&packet_for(1, 53, false)).unwrap(), XDP_DROP);
    assert_eq!(program.test_run(&packet_for(1, 54, false)).unwrap(), XDP_PASS);
    let after = program.counters(0);
    assert_eq!((after.held_back, after.passed, after.redirect_failed), (1, 1, 0));
    program.hold_back(false).unwrap();
    assert_eq!(verdict(&mut program, &packet_for(1, 53, false)), Verdict::Taken);
}

/// An ICMP error to 10.0.0.80 or fd00::80 about a packet that came from there, in a frame with a tag or none.
fn error(kind: u8, protocol: u8, sport: u16, is_ipv6: bool) -> Vec<u8> {
    let mut frame = [&OWN[..], &[2, 0, 0, 0, 0, 9]].concat();
    let (vip, other): (Vec<u8>, Vec<u8>) = match is_ipv6 {
        true => {
            let of = |last| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last).octets().to_vec();
            (of(0x80), of(9))
        }
        false => (vec![10, 0, 0, 80], vec![192, 0, 2, 9]),
    };
    let header = |protocol: u8, src: &[u8], dst: &[u8]| -> Vec<u8> {
        let front = match is_ipv6 {
            true => vec![0x60, 0, 0, 0, 0, 60, protocol, 64],
            false => vec![0x46, 0, 0, 60, 0, 0, 0x40, 0, 64, protocol, 0, 0],
        };
        // IPv4 has four bytes of options.
        [&front[..], src, dst, if is_ipv6 { &[] } else { &[1, 1, 1, 1] }].concat()
    };
    frame.extend(if is_ipv6 { [0x86, 0xdd] } else { [8, 0] });
    frame.extend(header(if is_ipv6 { 58 } else { 1 }, &other, &vip));
    frame.extend([kind, 0, 0, 0, 0, 0, 0, 0]);
    frame.extend(header(protocol, &vip, &other));
    frame.extend(sport.to_be_bytes());
    frame.extend([0x0f, 0xa0, 0, 0, 0, 0]);
    frame
}

#[test]
fn an_error_is_taken_by_the_packet_inside() {
    let Some(mut program) = load() else { return };
    let rule = |address: IpAddr, length| TakeRule {
        protocol: Some(6),
        destination: Some(Prefix { address, length }),
        dport: Some(Ports { first: 443, last: 445 }),
        errors: true,
        ..TakeRule::default()
    };
    let v4 = rule(Ipv4Addr::new(10, 0, 0, 80).into(), 32);
    let v6 = rule(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0).into(), 64);
    program.set_take([OWN, ALSO_OWN], &Take { rules: vec![v4, v6], ..Take::default() }).unwrap();
    for is_ipv6 in [false, true] {
        let kinds: &[u8] = if is_ipv6 { &[1, 2, 3, 4] } else { &[3, 4, 5, 11, 12] };
        for kind in 0..=20 {
            let wanted = if kinds.contains(&kind) { Verdict::Taken } else { Verdict::Passed };
            assert_eq!(verdict(&mut program, &error(kind, 6, 444, is_ipv6)), wanted, "type {kind} {is_ipv6}");
        }
        let taken = error(3, 6, 443, is_ipv6);
        let mut tagged = taken[..12].to_vec();
        tagged.extend([0x81, 0, 0, 7]);
        tagged.extend(&taken[12..]);
        assert_eq!(verdict(&mut program, &tagged), Verdict::Taken);
        // Another port, another protocol.
        for other in [error(3, 6, 442, is_ipv6), error(3, 6, 446, is_ipv6), error(3, 17, 444, is_ipv6)] {
            assert_eq!(verdict(&mut program, &other), Verdict::Passed);
        }
        // Truncated before the port, or about a packet sent by another host.
        assert_eq!(verdict(&mut program, &taken[..taken.len() - 7]), Verdict::Passed);
        let inside = taken.len() - if is_ipv6 { 24 + 16 } else { 16 + 4 };
        let mut forged = taken.clone();
        forged[inside] ^= 1;
        assert_eq!(verdict(&mut program, &forged), Verdict::Passed, "{is_ipv6}");
        // The packets themselves do not match.
        let mut packet = taken;
        packet[if is_ipv6 { 20 } else { 23 }] = 6;
        assert_eq!(verdict(&mut program, &packet), Verdict::Passed);
    }
    // A fragment inside has no ports.
    let mut fragment = error(3, 6, 444, false);
    let flags = fragment.len() - 8 - 24 + 6;
    fragment[flags] = 0x20;
    assert_eq!(verdict(&mut program, &fragment), Verdict::Passed);
}
