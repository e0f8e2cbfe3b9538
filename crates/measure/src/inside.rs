//! Headers that the parser does not read: weir names them and, on request, looks inside them.
//!
//! The parser of the data path reads Ethernet with up to two VLAN tags, IP, and the tunnels that weir
//! forwards. Recordings of carriers have more around their packets. A frame that belongs to no flow because
//! of such a header has the header's name as its reason. If the header is to be read through, what is behind
//! it is copied to a frame of its own, and parsed like any other.
//!
//! Only frames without a flow come here, and, if GTP-U or ERSPAN are read through, flows on their port or
//! their protocol.

use weir_packet::{Base, Depth, ETHER_IPV4, ETHER_IPV6, ETHER_QINQ, ETHER_VLAN, PROTOCOL_UDP, parse};

/// EtherTypes: of MPLS (unicast, multicast; RFC 5332), of PPPoE (discovery, session; RFC 2516), of provider
/// backbone bridges (IEEE 802.1ah), and of the tag that some switches used before IEEE 802.1ad.
const ETHER_MPLS: [u16; 2] = [0x8847, 0x8848];
const ETHER_PPPOE: [u16; 2] = [0x8863, 0x8864];
const ETHER_802_1AH: u16 = 0x88e7;
const ETHER_OLD_QINQ: u16 = 0x9100;

/// The protocols of PPP that carry IP (RFC 1332, RFC 5072).
const PPP_IPV4: u16 = 0x0021;
const PPP_IPV6: u16 = 0x0057;

/// The UDP port of GTP-U (3GPP TS 29.281), and its message that carries a packet.
const GTP_U_PORT: u16 = 2152;
const GTP_U_PACKET: u8 = 0xff;

/// GRE, and the protocols of ERSPAN: of types I and II, and of type III.
const PROTOCOL_GRE: u8 = 47;
const ERSPAN: u16 = 0x88be;
const ERSPAN_III: u16 = 0x22eb;

/// Bytes of the addresses of an Ethernet header.
const ADDRESSES: usize = 12;

/// VLAN tags, MPLS labels and extension headers of GTP-U that are followed; more are an attack.
const STEPS_MAX: usize = 16;

/// A header that carries packets, but that the parser does not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encapsulation {
    /// PPPoE.
    Pppoe,
    /// MPLS.
    Mpls,
    /// More than two VLAN tags, or tags with the EtherType 0x9100.
    Tags,
    /// A provider backbone bridge (MAC-in-MAC).
    BackboneBridge,
    /// GTP-U.
    GtpU,
    /// ERSPAN.
    Erspan,
}

impl Encapsulation {
    /// All of them.
    pub const ALL: [Encapsulation; 6] = [
        Encapsulation::Pppoe,
        Encapsulation::Mpls,
        Encapsulation::Tags,
        Encapsulation::BackboneBridge,
        Encapsulation::GtpU,
        Encapsulation::Erspan,
    ];

    /// Returns its name as a reason in outputs.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Encapsulation::Pppoe => "pppoe",
            Encapsulation::Mpls => "mpls",
            Encapsulation::Tags => "vlan_tags",
            Encapsulation::BackboneBridge => "ieee_802_1ah",
            Encapsulation::GtpU => "gtp_u",
            Encapsulation::Erspan => "erspan",
        }
    }

    /// Returns its name in options.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Encapsulation::Pppoe => "pppoe",
            Encapsulation::Mpls => "mpls",
            Encapsulation::Tags => "tags",
            Encapsulation::BackboneBridge => "802.1ah",
            Encapsulation::GtpU => "gtp-u",
            Encapsulation::Erspan => "erspan",
        }
    }

    /// Finds the carrier that an EtherType names, behind at most two VLAN tags.
    #[must_use]
    pub const fn of(ether_type: u16) -> Option<Encapsulation> {
        match ether_type {
            _ if ether_type == ETHER_PPPOE[0] || ether_type == ETHER_PPPOE[1] => Some(Encapsulation::Pppoe),
            _ if ether_type == ETHER_MPLS[0] || ether_type == ETHER_MPLS[1] => Some(Encapsulation::Mpls),
            ETHER_VLAN | ETHER_QINQ | ETHER_OLD_QINQ => Some(Encapsulation::Tags),
            ETHER_802_1AH => Some(Encapsulation::BackboneBridge),
            _ => None,
        }
    }
}

/// A set of encapsulations to look inside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Encapsulations(u8);

impl Encapsulations {
    /// Adds one.
    #[must_use]
    pub const fn with(self, carrier: Encapsulation) -> Encapsulations {
        Encapsulations(self.0 | 1 << carrier as u8)
    }

    /// Adds others.
    #[must_use]
    pub const fn and(self, others: Encapsulations) -> Encapsulations {
        Encapsulations(self.0 | others.0)
    }

    /// Returns true if it is among them.
    #[must_use]
    pub const fn has(self, carrier: Encapsulation) -> bool {
        self.0 >> carrier as u8 & 1 == 1
    }

    /// Returns true if there is none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// What an encapsulation contains, with the offset at which it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carried {
    /// A frame.
    Frame(usize),
    /// The EtherType and what is behind it.
    Typed(usize),
    /// An IP packet.
    Packet(usize),
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

/// Returns the place of the EtherType behind all VLAN tags, as many as `most`.
fn ether_type_at(frame: &[u8], most: usize) -> Option<usize> {
    let mut at = ADDRESSES;
    for _ in 0..most {
        if !matches!(be16(frame, at)?, ETHER_VLAN | ETHER_QINQ | ETHER_OLD_QINQ) {
            break;
        }
        at += 4;
    }
    Some(at)
}

/// Reads through a carrier: writes what it carries to `inner`, as an Ethernet frame. Only the first bytes of
/// the frame were `recorded`, and only those are written; zeros follow them. Returns the length that the
/// whole of it had if the frame had `length` bytes. `None` if there is nothing that can be read.
pub fn read_through(
    carrier: Encapsulation,
    frame: &[u8],
    (recorded, length): (usize, u32),
    inner: &mut Vec<u8>,
) -> Option<u32> {
    let carried = match carrier {
        Encapsulation::Pppoe => pppoe(frame)?,
        Encapsulation::Mpls => mpls(frame)?,
        Encapsulation::Tags => Carried::Typed(ether_type_at(frame, STEPS_MAX)?),
        // The tag with the service's number, then the customer's frame.
        Encapsulation::BackboneBridge => Carried::Frame(ether_type_at(frame, 2)? + 6),
        Encapsulation::GtpU => gtp_u(frame)?,
        Encapsulation::Erspan => erspan(frame)?,
    };
    inner.clear();
    let at = match carried {
        Carried::Frame(at) => at,
        Carried::Typed(at) => {
            inner.extend_from_slice(frame.get(..ADDRESSES)?);
            at
        }
        Carried::Packet(at) => {
            let ether_type = match frame.get(at)? >> 4 {
                4 => ETHER_IPV4,
                6 => ETHER_IPV6,
                _ => return None,
            };
            inner.extend_from_slice(frame.get(..ADDRESSES)?);
            inner.extend_from_slice(&ether_type.to_be_bytes());
            at
        }
    };
    let front = inner.len();
    inner.extend_from_slice(frame.get(at..recorded)?);
    Some(length.saturating_sub(at as u32).saturating_add(front as u32))
}

/// A session's packets of IP.
fn pppoe(frame: &[u8]) -> Option<Carried> {
    let at = ether_type_at(frame, 2)?;
    // Version 1, type 1, and code 0, which is session data.
    let is_session = be16(frame, at)? == ETHER_PPPOE[1] && be16(frame, at + 2)? == 0x1100;
    let protocol = be16(frame, at + 8)?;
    (is_session && matches!(protocol, PPP_IPV4 | PPP_IPV6)).then_some(Carried::Packet(at + 10))
}

/// What is behind the last label: IP, or a frame of a pseudowire, with a control word (RFC 4385) or without.
/// Nothing in the packet says which. A frame whose address begins with the digit 4 or 6 looks like IP: what
/// decides is whether its length fits. A control word begins with a zero byte and with the length of what it
/// is a part of, or with another zero if that is 64 bytes or more; a frame without one seems to have one only
/// if its destination address begins in the same way.
fn mpls(frame: &[u8]) -> Option<Carried> {
    let mut at = ether_type_at(frame, 2)? + 2;
    for _ in 0..STEPS_MAX {
        let is_last = frame.get(at + 2)? & 1 == 1;
        at += 4;
        if is_last {
            let first = *frame.get(at)?;
            let is_ip = match first >> 4 {
                4 => first & 0xf >= 5 && usize::from(be16(frame, at + 2)?) <= frame.len() - at,
                6 => usize::from(be16(frame, at + 4)?) + 40 <= frame.len() - at,
                _ => false,
            };
            let length = usize::from(*frame.get(at + 1)?);
            let has_control_word = first == 0 && (length == 0 || length < 64 && length == frame.len() - at);
            return Some(match (is_ip, has_control_word) {
                (true, _) => Carried::Packet(at),
                (false, true) => Carried::Frame(at + 4),
                (false, false) => Carried::Frame(at),
            });
        }
    }
    None
}

/// The place of a frame's transport header, if its outermost IP packet has this protocol.
fn transport(frame: &[u8], protocol: u8) -> Option<usize> {
    let headers = parse(frame, Depth::L4).ok()?;
    (headers.outer().protocol == protocol).then(|| headers.outer().at(Base::L4))
}

/// The packet of a G-PDU.
fn gtp_u(frame: &[u8]) -> Option<Carried> {
    let udp = transport(frame, PROTOCOL_UDP)?;
    let mut at = udp + 8;
    let (flags, message) = (*frame.get(at)?, *frame.get(at + 1)?);
    // Version 1 of GTP, not GTP'.
    if be16(frame, udp + 2)? != GTP_U_PORT || flags >> 4 != 3 || message != GTP_U_PACKET {
        return None;
    }
    at += 8;
    if flags & 7 != 0 {
        let mut next = *frame.get(at + 3)?;
        at += 4;
        for _ in 0..STEPS_MAX {
            if flags & 4 == 0 || next == 0 {
                break;
            }
            let words = usize::from(*frame.get(at)?);
            if words == 0 {
                return None;
            }
            at += 4 * words;
            next = *frame.get(at - 1)?;
        }
    }
    Some(Carried::Packet(at))
}

/// The mirrored frame.
fn erspan(frame: &[u8]) -> Option<Carried> {
    let gre = transport(frame, PROTOCOL_GRE)?;
    let (flags, protocol) = (be16(frame, gre)?, be16(frame, gre + 2)?);
    let (checksum, key, sequence) = (flags & 0x8000 != 0, flags & 0x2000 != 0, flags & 0x1000 != 0);
    let at = gre + 4 + 4 * (usize::from(checksum) + usize::from(key) + usize::from(sequence));
    match protocol {
        // Type I has no header of its own, and no sequence number.
        ERSPAN => Some(Carried::Frame(at + if sequence { 8 } else { 0 })),
        ERSPAN_III => {
            let has_more = frame.get(at + 11)? & 1 == 1;
            Some(Carried::Frame(at + 12 + if has_more { 8 } else { 0 }))
        }
        _ => None,
    }
}

/// Returns the carrier that a flow may be of: its packets are in the flow of the tunnel, not of what it
/// carries.
pub fn of_flow(protocol: u8, dport: u16) -> Option<Encapsulation> {
    match (protocol, dport) {
        (PROTOCOL_UDP, GTP_U_PORT) => Some(Encapsulation::GtpU),
        (PROTOCOL_GRE, _) => Some(Encapsulation::Erspan),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::Frames;
    use weir_packet::craft::Recipe;

    fn frame(text: &str) -> Vec<u8> {
        text.parse::<Recipe>().unwrap().build()
    }

    const PACKET: &str = "src=10.0.0.1 dst=10.0.0.2 proto=tcp sport=1000 dport=443";
    const FLOW: &str = "tcp 10.0.0.1:1000 > 10.0.0.2:443";

    fn all() -> Encapsulations {
        Encapsulation::ALL.into_iter().fold(Encapsulations::default(), Encapsulations::with)
    }

    fn flow(through: Encapsulations, bytes: &[u8]) -> Result<String, &'static str> {
        let flow = Frames::through(through).flow(bytes, bytes.len() as u32);
        flow.map(|(key, _)| key.to_string()).map_err(|reason| reason.word())
    }

    /// An Ethernet header with a type, then these bytes.
    fn behind(ether_type: u16, parts: &[&[u8]]) -> Vec<u8> {
        let whole = frame(PACKET);
        [&whole[..12], &ether_type.to_be_bytes(), &parts.concat()].concat()
    }

    /// IP over UDP or GRE from 1.1.1.1 to 2.2.2.2 with this payload.
    fn over(recipe: &str, payload: &[u8]) -> Vec<u8> {
        let hex: String = payload.iter().map(|byte| format!("{byte:02x}")).collect();
        frame(&format!("src=1.1.1.1 dst=2.2.2.2 {recipe} payload={hex}"))
    }

    /// An IPv4 packet with this protocol number and payload, patched by hand.
    fn ip(protocol: u8, payload: &[u8]) -> Vec<u8> {
        let mut whole = frame("src=1.1.1.1 dst=2.2.2.2 proto=udp sport=1 dport=2");
        whole.truncate(34);
        whole[16..18].copy_from_slice(&(20 + payload.len() as u16).to_be_bytes());
        whole[23] = protocol;
        whole.extend_from_slice(payload);
        whole
    }

    /// Every carrier around one packet, with its reason, or its flow, if it is not read through.
    fn carried() -> Vec<(Encapsulation, Vec<u8>, Result<&'static str, &'static str>)> {
        let whole = frame(PACKET);
        let packet = &whole[14..];
        let length = (packet.len() as u16 + 2).to_be_bytes();
        let pppoe: [&[u8]; 4] = [&[0x11, 0, 0, 9], &length, &[0, 0x21], packet];
        let tagged: [&[u8]; 2] = [&[0, 7, 0x88, 0x64], &pppoe.concat()];
        let tags: [&[u8]; 2] = [&[0, 1, 0x81, 0, 0, 2, 0x81, 0, 0, 3, 8, 0], packet];
        let gtp_u: [&[u8]; 2] = [&[0x30, 0xff, 0, packet.len() as u8, 0, 0, 0, 1], packet];
        let extended: [&[u8]; 2] =
            [&[0x34, 0xff, 0, packet.len() as u8, 0, 0, 0, 1, 0, 0, 0, 0x85, 1, 0x10, 1, 0], packet];
        let gtp = Ok("udp 1.1.1.1:5 > 2.2.2.2:2152");
        let gre = Ok("protocol 47 1.1.1.1:0 > 2.2.2.2:0");
        let erspan_2: [&[u8]; 2] = [&[0x10, 0, 0x88, 0xbe, 0, 0, 0, 1, 0x10, 0, 0, 0, 0, 0, 0, 0], &whole];
        let erspan_3: [&[u8]; 2] =
            [&[0x10, 0, 0x22, 0xeb, 0, 0, 0, 1, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &whole];
        vec![
            (Encapsulation::Pppoe, behind(0x8864, &pppoe), Err("pppoe")),
            (Encapsulation::Pppoe, behind(0x8100, &tagged), Err("pppoe")),
            (Encapsulation::Mpls, behind(0x8847, &[&[0, 1, 0, 64, 0, 2, 1, 64], packet]), Err("mpls")),
            (Encapsulation::Mpls, behind(0x8847, &[&[0, 2, 1, 64], &[0; 4], &whole]), Err("mpls")),
            (Encapsulation::Mpls, behind(0x8847, &[&[0, 2, 1, 64], &[0, 58, 0, 9], &whole]), Err("mpls")),
            (Encapsulation::Mpls, behind(0x8848, &[&[0, 2, 1, 64], &whole]), Err("mpls")),
            (Encapsulation::Tags, behind(0x88a8, &tags), Err("vlan_tags")),
            (Encapsulation::Tags, behind(0x9100, &[&[0, 1, 8, 0], packet]), Err("vlan_tags")),
            (Encapsulation::BackboneBridge, behind(0x88e7, &[&[0, 0, 0, 5], &whole]), Err("ieee_802_1ah")),
            (Encapsulation::GtpU, over("proto=udp sport=5 dport=2152", &gtp_u.concat()), gtp),
            (Encapsulation::GtpU, over("proto=udp sport=5 dport=2152", &extended.concat()), gtp),
            (Encapsulation::Erspan, ip(47, &[&[0, 0, 0x88, 0xbe][..], &whole].concat()), gre),
            (Encapsulation::Erspan, ip(47, &erspan_2.concat()), gre),
            (Encapsulation::Erspan, ip(47, &erspan_3.concat()), gre),
        ]
    }

    #[test]
    fn what_is_not_read_is_named_and_what_is_asked_is_read_through() {
        for (carrier, bytes, otherwise) in carried() {
            let otherwise = otherwise.map(str::to_string);
            let others = Encapsulation::ALL.into_iter().filter(|other| *other != carrier);
            let others = others.fold(Encapsulations::default(), Encapsulations::with);
            assert_eq!(flow(Encapsulations::default(), &bytes), otherwise, "{carrier:?}");
            assert_eq!(flow(others, &bytes), otherwise, "{carrier:?}");
            assert_eq!(
                flow(Encapsulations::default().with(carrier), &bytes).as_deref(),
                Ok(FLOW),
                "{carrier:?}"
            );
        }
    }

    #[test]
    fn carriers_in_carriers_are_read_to_the_end() {
        let (_, pppoe, _) = carried().swap_remove(1);
        let mut bytes = behind(0x88e7, &[&[0, 0, 0, 5], &pppoe]);
        assert_eq!(flow(all(), &bytes).as_deref(), Ok(FLOW));
        for _ in 0..40 {
            bytes = behind(0x88e7, &[&[0, 0, 0, 5], &bytes]);
        }
        assert_eq!(flow(all(), &bytes), Err("ieee_802_1ah"));
    }

    /// A frame in which no packet can be read keeps its reason or its flow, wherever it was cut.
    #[test]
    fn what_carries_no_packet_keeps_its_name() {
        let discovery = behind(0x8863, &[&[0x11, 9, 0, 0, 0, 0]]);
        assert_eq!(flow(all(), &discovery), Err("pppoe"));
        let lcp = behind(0x8864, &[&[0x11, 0, 0, 9, 0, 4, 0xc0, 0x21, 9, 9, 0, 8]]);
        assert_eq!(flow(all(), &lcp), Err("pppoe"));
        let echo = over("proto=udp sport=5 dport=2152", &[0x30, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(flow(all(), &echo).as_deref(), Ok("udp 1.1.1.1:5 > 2.2.2.2:2152"));
        for (_, bytes, _) in carried() {
            for cut in 0..bytes.len() {
                let _ = flow(all(), &bytes[..cut]);
                let part = Frames::through(all()).flow(&bytes[..cut], bytes.len() as u32);
                assert!(part.is_ok() || cut < bytes.len() - 7, "{cut}");
            }
        }
    }

    #[test]
    fn any_bytes_behind_a_carrier_are_a_flow_or_have_a_reason() {
        let mut random = weir_packet::random::Random::new(7);
        for round in 0..20_000 {
            let (_, mut bytes, _) = carried().swap_remove(round % carried().len());
            for _ in 0..random.below(6) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.bits() as u8;
            }
            bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
            let _ = flow(all(), &bytes);
        }
    }
}
