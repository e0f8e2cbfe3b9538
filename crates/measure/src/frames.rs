//! From a recorded frame to the flow that it belongs to, or the reason why it belongs to none.
//!
//! A recording may contain only the beginning of a frame (`tcpdump -s 96`). The rest is replaced with zeros,
//! so that lengths in headers make sense. If the ports were not recorded, the frame belongs to no flow.

use crate::inside::{self, Encapsulation, Encapsulations};
use crate::link::Link;
use weir_packet::{
    Base, Depth, DropReason, FlowKey, Headers, KeySource, Layer, Level, Observed, TunnelPorts, parse_into,
};

/// The part of a frame, in bytes, in which headers are looked for: offsets have 16 bits.
const FRAME_MAX: usize = 65_535;

/// How many nested encapsulations are looked into.
const CARRIERS_MAX: usize = 4;

/// Why a frame belongs to no flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoFlow {
    /// The frame has no bytes.
    Empty,
    /// The frame is an ARP packet.
    Arp,
    /// The frame has a header that carries packets, but that is not read.
    Unread(Encapsulation),
    /// The frame has an EtherType other than these and those of IP and ARP.
    NotIp,
    /// A header is malformed.
    Malformed(DropReason),
    /// The frame's ports were not recorded.
    Cut,
    /// The id of its tunnel has more than 24 bits, which does not fit into a flow's key.
    TunnelId,
}

impl NoFlow {
    /// Returns its name in outputs.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            NoFlow::Empty => "empty",
            NoFlow::Arp => "arp",
            NoFlow::Unread(carrier) => carrier.reason(),
            NoFlow::NotIp => "not_ip",
            NoFlow::Malformed(reason) => reason.as_str(),
            NoFlow::Cut => "cut_before_ports",
            NoFlow::TunnelId => "tunnel_id_too_long",
        }
    }
}

/// Finds the flows of frames: by the headers inside a tunnel and its id, otherwise by the outer ones.
#[derive(Debug, Default)]
pub struct Frames {
    /// A partially recorded frame, padded with zeros.
    whole: Vec<u8>,
    /// A packet of another link type, as an Ethernet frame.
    ethernet: Vec<u8>,
    /// The encapsulations to look inside, and two buffers, used in turn, for what they contain.
    through: Encapsulations,
    carried: [Vec<u8>; 2],
}

impl Frames {
    /// Reads through some carriers: the flow of a frame is that of the packet inside them.
    #[must_use]
    pub fn through(carriers: Encapsulations) -> Frames {
        Frames { through: carriers, ..Frames::default() }
    }

    /// Returns the flow of a frame of `length` bytes, of which `bytes` were recorded, and observations of it.
    ///
    /// # Errors
    /// The frame belongs to no flow.
    #[inline]
    pub fn flow(&mut self, bytes: &[u8], length: u32) -> Result<(FlowKey, Observed), NoFlow> {
        let found = self.flow_outside(bytes, length);
        if self.through.is_empty() { found } else { self.flow_inside(found, bytes, length) }
    }

    /// Returns the encapsulation that the parser found in a frame, if weir is to look inside it.
    fn carrier(&self, found: &Result<(FlowKey, Observed), NoFlow>) -> Option<Encapsulation> {
        let carrier = match found {
            Ok((key, _)) => inside::of_flow(key.protocol(), key.dport()),
            Err(NoFlow::Unread(carrier)) => Some(*carrier),
            Err(_) => None,
        };
        carrier.filter(|carrier| self.through.has(*carrier))
    }

    /// Looks inside nested encapsulations, one by one. If what one of them holds belongs to no flow, a frame
    /// that is in a flow by its outer headers stays in that flow.
    #[inline(never)]
    fn flow_inside(
        &mut self,
        mut found: Result<(FlowKey, Observed), NoFlow>,
        bytes: &[u8],
        mut length: u32,
    ) -> Result<(FlowKey, Observed), NoFlow> {
        if self.carrier(&found).is_none() {
            return found;
        }
        let [mut frame, mut inner] = std::mem::take(&mut self.carried);
        frame.clear();
        frame.extend_from_slice(&bytes[..bytes.len().min(FRAME_MAX)]);
        for _ in 0..CARRIERS_MAX {
            let recorded = frame.len();
            // Lengths in headers are checked against the whole frame.
            frame.resize((length as usize).clamp(recorded, FRAME_MAX), 0);
            let Some(carrier) = self.carrier(&found) else { break };
            let extent = (recorded, length);
            let Some(inner_length) = inside::read_through(carrier, &frame, extent, &mut inner) else { break };
            length = inner_length;
            std::mem::swap(&mut frame, &mut inner);
            let next = self.flow_outside(&frame, length);
            if next.is_err() && found.is_ok() {
                break;
            }
            found = next;
        }
        self.carried = [frame, inner];
        found
    }

    #[inline]
    fn flow_outside(&mut self, bytes: &[u8], length: u32) -> Result<(FlowKey, Observed), NoFlow> {
        if bytes.len() < (length as usize).min(FRAME_MAX) {
            return self.flow_of_part(bytes, length);
        }
        let bytes = &bytes[..bytes.len().min(FRAME_MAX)];
        let mut headers = Headers::default();
        find(bytes, &mut headers)
    }

    /// Returns the flow of a packet of any link type.
    ///
    /// # Errors
    /// The packet belongs to no flow.
    #[inline]
    pub fn flow_on(&mut self, link: Link, bytes: &[u8], length: u32) -> Result<(FlowKey, Observed), NoFlow> {
        if link == Link::Ethernet {
            return self.flow(bytes, length);
        }
        let mut ethernet = std::mem::take(&mut self.ethernet);
        let length = link.as_ethernet(bytes, length, &mut ethernet);
        let flow = self.flow(&ethernet, length);
        self.ethernet = ethernet;
        flow
    }

    #[inline(never)]
    fn flow_of_part(&mut self, bytes: &[u8], length: u32) -> Result<(FlowKey, Observed), NoFlow> {
        self.whole.clear();
        self.whole.extend_from_slice(bytes);
        self.whole.resize((length as usize).min(FRAME_MAX), 0);
        if bytes.is_empty() && length > 0 {
            return Err(NoFlow::Cut);
        }
        let mut headers = Headers::default();
        let found = match find(&self.whole, &mut headers) {
            // If the recorded part is malformed, the zeros in place of the rest may be the reason.
            Err(NoFlow::Malformed(_) | NoFlow::NotIp | NoFlow::Unread(_))
                if matches!(find(bytes, &mut headers), Err(NoFlow::Malformed(_))) =>
            {
                return Err(NoFlow::Cut);
            }
            other => other?,
        };
        let inner = headers.inner();
        let level = if has_ip(inner) { inner } else { headers.outer() };
        if end_of(level) > bytes.len() { Err(NoFlow::Cut) } else { Ok(found) }
    }
}

fn has_ip(level: &Level) -> bool {
    level.layers.has(Layer::Ipv4) || level.layers.has(Layer::Ipv6)
}

/// The end of those headers of a level from which a flow's key is built.
fn end_of(level: &Level) -> usize {
    match (level.layers.has(Layer::Ports), level.layers.has(Layer::Ipv4)) {
        (true, _) => level.at(Base::L4) + 4,
        (false, true) => level.at(Base::L3) + 20,
        (false, false) => level.at(Base::L3) + 40,
    }
}

#[inline(always)]
fn find(frame: &[u8], headers: &mut Headers) -> Result<(FlowKey, Observed), NoFlow> {
    if frame.is_empty() {
        return Err(NoFlow::Empty);
    }
    parse_into(frame, Depth::Inner, &TunnelPorts::STANDARD, headers).map_err(NoFlow::Malformed)?;
    match FlowKey::of(frame, headers, KeySource::Inner) {
        Some(key) => Ok((key, Observed::of(frame, headers, KeySource::Inner))),
        None => Err(why_none(headers)),
    }
}

#[cold]
fn why_none(headers: &Headers) -> NoFlow {
    let outer = headers.outer();
    match () {
        () if has_ip(outer) => NoFlow::TunnelId,
        () if outer.ether_type == weir_packet::ETHER_ARP => NoFlow::Arp,
        () => Encapsulation::of(outer.ether_type).map_or(NoFlow::NotIp, NoFlow::Unread),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_packet::craft;

    fn flow(bytes: &[u8], length: usize) -> Result<String, &'static str> {
        let flow = Frames::default().flow(bytes, length as u32);
        flow.map(|(key, _)| key.to_string()).map_err(NoFlow::word)
    }

    fn frame(text: &str) -> Vec<u8> {
        text.parse::<craft::Recipe>().unwrap().build()
    }

    #[test]
    fn a_frame_cut_behind_its_ports_has_its_flow() {
        let udp = frame("src=10.0.0.1 dst=10.0.0.2 proto=udp sport=1000 dport=443 len=200");
        let tcp = frame("src=10.0.0.1 dst=10.0.0.2 proto=tcp sport=1000 dport=443 len=1500");
        for (frame, protocol, enough) in [(&udp, "udp", 40), (&tcp, "tcp", 47)] {
            let whole = flow(frame, frame.len());
            assert_eq!(whole, Ok(format!("{protocol} 10.0.0.1:1000 > 10.0.0.2:443")));
            for cut in 1..frame.len() {
                let expected = if cut >= enough { whole.clone() } else { Err("cut_before_ports") };
                assert_eq!(flow(&frame[..cut], frame.len()), expected, "{protocol} {cut}");
            }
        }
    }

    #[test]
    fn a_flow_inside_a_tunnel_has_its_id_and_others_a_reason() {
        let inner = "src=10.0.0.1 dst=10.0.0.2 proto=tcp sport=1 dport=2";
        let vxlan = frame(&format!("src=1.1.1.1 dst=2.2.2.2 tunnel=vxlan vni=77 inner({inner})"));
        assert_eq!(flow(&vxlan, vxlan.len()).as_deref(), Ok("tcp 10.0.0.1:1 > 10.0.0.2:2 vni 77"));
        let gre = frame(&format!("src=1.1.1.1 dst=2.2.2.2 tunnel=gre key=4294967295 inner({inner})"));
        assert_eq!(flow(&gre, gre.len()), Err("tunnel_id_too_long"));
        let arp = frame("arp=request sender_ip=10.0.0.1 target_ip=10.0.0.2");
        assert_eq!(flow(&arp, arp.len()), Err("arp"));
        assert_eq!(flow(&arp[..20], arp.len()), Err("arp"));
        assert_eq!(flow(&[], 0), Err("empty"));
        assert_eq!(flow(&[], 60), Err("cut_before_ports"));
        assert_eq!(flow(&[0; 60], 60), Err("not_ip"));
        assert_eq!(flow(&[0; 13], 13), Err("malformed_ethernet"));
        let mut bad = frame("src=10.0.0.1 dst=10.0.0.2");
        bad[14] = 0x41;
        assert_eq!(flow(&bad, bad.len()), Err("malformed_ipv4"));
    }

    /// Puts the header of a link type, given by its number, in front of an IP packet with this EtherType.
    fn on(link: u16, ether_type: [u8; 2], packet: &[u8]) -> Result<String, &'static str> {
        let family = if ether_type == [8, 0] { 2 } else { 30 };
        let front = match link {
            0 => vec![family, 0, 0, 0],
            108 => vec![0, 0, 0, family],
            113 => [&[0, 0, 0, 1, 0, 6, 2, 2, 2, 2, 2, 2, 0, 0][..], &ether_type].concat(),
            276 => [&ether_type[..], &[0, 0, 0, 0, 0, 3, 0, 1, 0, 6, 2, 2, 2, 2, 2, 2, 0, 0]].concat(),
            _ => Vec::new(),
        };
        let bytes = [&front, packet].concat();
        let link = Link::of(link).unwrap();
        // Every missing part has a reason.
        (0..bytes.len()).for_each(|cut| {
            let reason = Frames::default().flow_on(link, &bytes[..cut], bytes.len() as u32);
            assert!(cut >= front.len() + 24 || reason == Err(NoFlow::Cut) || packet.len() < 40, "{cut}");
        });
        let flow = Frames::default().flow_on(link, &bytes, bytes.len() as u32);
        flow.map(|(key, _)| key.to_string()).map_err(NoFlow::word)
    }

    #[test]
    fn a_frame_cut_behind_its_ports_has_all_its_octets() {
        let tcp = frame("src=10.0.0.1 dst=10.0.0.2 proto=tcp vlan=7 len=1500");
        let observed = |bytes: &[u8]| Frames::default().flow(bytes, 1500).unwrap().1;
        assert_eq!((observed(&tcp[..54]).octets, observed(&tcp).octets), (1482, 1482));
        assert_eq!((observed(&tcp[..54]), observed(&tcp).vlan), (observed(&tcp), 7));
    }

    #[test]
    fn a_packet_without_ethernet_has_the_same_flow() {
        let ipv4 = frame("src=10.0.0.1 dst=10.0.0.2 proto=udp sport=1000 dport=443");
        let ipv6 = frame("src=2001:db8::1 dst=2001:db8::2 proto=tcp sport=1000 dport=443");
        for link in [0, 12, 14, 101, 108, 113, 228, 229, 276] {
            for frame in [&ipv4, &ipv6] {
                let ether_type = frame[12..14].try_into().unwrap();
                assert_eq!(on(link, ether_type, &frame[14..]), flow(frame, frame.len()), "{link}");
            }
            assert_eq!(on(link, [0, 4], &[0; 30]), Err("not_ip"), "{link}");
        }
        let arp = frame("arp=request sender_ip=10.0.0.1 target_ip=10.0.0.2");
        assert_eq!((on(113, [8, 6], &arp[14..]), on(276, [8, 6], &arp[14..])), (Err("arp"), Err("arp")));
        assert_eq!(Frames::default().flow_on(Link::Raw, &[], 0), Err(NoFlow::Empty));
        assert_eq!((Link::of(1), Link::of(105)), (Some(Link::Ethernet), None));
        // Netlink: its numbers are not EtherTypes.
        let netlink = [&[0, 4, 3, 56, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0][..], &ipv4[14..]].concat();
        assert_eq!(Frames::default().flow_on(Link::Sll, &netlink, 100), Err(NoFlow::NotIp));
    }

    #[test]
    fn any_bytes_are_a_flow_or_have_a_reason() {
        let mut random = weir_packet::random::Random::new(1);
        let base = frame("src=10.0.0.1 dst=10.0.0.2 proto=udp sport=1000 dport=4789 len=120");
        for _ in 0..20_000 {
            let mut bytes = base.clone();
            for _ in 0..random.below(6) {
                let at = random.below(60) as usize;
                bytes[at] = random.bits() as u8;
            }
            bytes.truncate(random.below(121) as usize);
            let length = bytes.len() as u64 + random.below(3) * random.below(70_000);
            let _ = flow(&bytes, length as usize);
        }
    }
}
