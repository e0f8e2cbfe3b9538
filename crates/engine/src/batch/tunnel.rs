//! Tunnels: outer headers are removed, or added as a copy of the action row with the per-packet parts filled
//! in.
//!
//! ECN follows RFC 6040: the packet's ECN field is copied into the outer header (§4.1), and on decapsulation
//! the outer field is combined with the inner one (§4.2), so that congestion inside the tunnel reaches the
//! receiver.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_packet::tunnel::{Carried, Finish, Inside, Outer, OuterShape};
use weir_packet::{Base, DropReason, Frame, Headers, Layer, Level, Sum, TunnelKind, TunnelPorts};
use weir_program::{Encap, Value};

/// A tunnel in a frame.
struct FrameTunnel {
    kind: TunnelKind,
    /// Where its header starts.
    at: usize,
    inside: Inside,
    /// Where the inner packet starts.
    start: usize,
    /// First byte after the inner packet.
    end: usize,
    /// The inner IP header.
    ip: Option<Ip>,
}

impl FrameTunnel {
    /// The tunnel of a frame whose headers were parsed.
    fn of(bytes: &[u8], found: &Headers) -> Option<FrameTunnel> {
        let weir_packet::Tunnel { kind, at, .. } = found.tunnel()?;
        let inner = found.inner();
        let ip = Ip::of(inner);
        let (inside, start) = match ip {
            _ if inner.layers.has(Layer::Ethernet) => (Inside::Ethernet, inner.at(Base::L2)),
            Some(Ip { at, is_ipv6 }) => (if is_ipv6 { Inside::Ipv6 } else { Inside::Ipv4 }, at),
            None => return None,
        };
        let end = if kind.is_udp() {
            let udp = found.outer().at(Base::L4);
            udp + usize::from(u16::from_be_bytes(*bytes.get(udp + 4..)?.first_chunk()?))
        } else {
            Ip::of(found.outer())?.end(bytes)?
        };
        Some(FrameTunnel { kind, at, inside, start, end, ip })
    }
}

/// Removes the outer headers of a tunnel, and everything after its payload. For a tunnel with IP inside, the
/// outer Ethernet header and its tags stay.
pub fn decap(frame: &mut Frame, found: &Headers, kind: TunnelKind) -> Result<(), DropReason> {
    let bytes = frame.bytes_mut();
    let tunnel = FrameTunnel::of(bytes, found)
        .filter(|tunnel| tunnel.kind == kind)
        .ok_or(DropReason::NotApplicable)?;
    let outer = Ip::of(found.outer()).ok_or(DropReason::NotApplicable)?;
    if kind == TunnelKind::Geneve {
        geneve_options(bytes.get(tunnel.at + 8..tunnel.start).unwrap_or_default())?;
    }
    let ecn = outer.class(bytes) & 3;
    if let Some(ip) = tunnel.ip.filter(|_| ecn != NOT_ECT) {
        let inner = ip.class(bytes) & 3;
        let new = combined(ecn, inner).ok_or(DropReason::EcnCeNotEct)?;
        if new != inner {
            ip.set_ecn(bytes, new);
        }
    }
    let ethernet = match tunnel.inside {
        Inside::Ethernet => 0,
        Inside::Ipv4 | Inside::Ipv6 => outer.at,
    };
    if ethernet > 0 {
        bytes.copy_within(..ethernet, tunnel.start - ethernet);
        bytes[tunnel.start - 2..tunnel.start].copy_from_slice(&tunnel.inside.ether_type().to_be_bytes());
    }
    cut(frame, tunnel.start - ethernet, tunnel.end)
}

/// RFC 8926 §3.5: class 16, type 8 (whose first bit means critical), reserved 3, length 5 in words. No
/// option is known.
fn geneve_options(mut options: &[u8]) -> Result<(), DropReason> {
    while let Some(&[_, _, kind, length]) = options.first_chunk() {
        if kind & 0x80 != 0 {
            return Err(DropReason::GeneveCriticalOption);
        }
        options = options.get(4 + 4 * usize::from(length & 0x1f)..).ok_or(DropReason::MalformedGeneve)?;
    }
    Ok(())
}

/// How outer headers are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encapsulation {
    shape: OuterShape,
    finish: Finish,
    /// The number of bytes that can be carried.
    length_max: usize,
    /// The number of bytes of the outer headers.
    length: usize,
    /// Whether low bits of the source address come from the select hash. The row then has, after the headers,
    /// the number of addresses.
    spread: bool,
    /// Whether the whole frame is carried rather than its IP packet.
    ethernet: bool,
    /// Whether the UDP source port comes from the select hash.
    hashed: bool,
    /// Whether the flow label comes from the select hash.
    labelled: bool,
    /// The bits of the packet's DSCP and ECN that are copied, and the values of the others.
    class: (u8, u8),
    udp_checksum: bool,
    /// Whether the GUE header names the other back end of the packet's row in a group filled like the GLB
    /// director's.
    second_chance: bool,
}

/// The outer headers in an action row: complete except for what [`Encapsulation::run`] fills in. A UDP source
/// port that is not hashed is already in place.
pub fn write_outer(encap: &Encap, ports: &TunnelPorts, numbers: &[u128; 8], place: &mut [u8]) {
    let [eth_dst, eth_src, src, src_bits, dst, id, ttl, sport] = *numbers;
    let hosts = hosts(src_bits, encap.ipv6);
    let src = if hosts == 0 { src } else { src & !(u128::from(hosts) + 1) };
    let mac = |number: u128| {
        let [_, _, mac @ ..] = (number as u64).to_be_bytes();
        mac
    };
    let address = |number: u128| match encap.ipv6 {
        true => IpAddr::V6(Ipv6Addr::from_bits(number)),
        false => IpAddr::V4(Ipv4Addr::from_bits(number as u32)),
    };
    let shape = encap.shape();
    let (place, behind) = place.split_at_mut(shape.length());
    behind.copy_from_slice(&hosts.to_be_bytes()[..behind.len()]);
    let outer = Outer {
        eth_dst: mac(eth_dst),
        eth_src: mac(eth_src),
        src: address(src),
        dst: address(dst),
        ttl: ttl as u8,
        id: id as u32,
    };
    let inside = if encap.ethernet { Inside::Ethernet } else { Inside::Ipv4 };
    shape.write(&outer, inside, ports, place);
    if encap.kind.is_udp() {
        place[shape.transport()..][..2].copy_from_slice(&(sport as u16).to_be_bytes());
    }
}

/// Returns the operation whose numbers [`write_outer`] has laid out in `place`. Low bits of the source
/// address that come from the select hash are 0.
pub fn read_outer(encap: &Encap, place: &[u8]) -> Encap {
    let shape = encap.shape();
    let (place, behind) = place.split_at(shape.length());
    let hosts = behind.first_chunk().map_or(0, |hosts| u64::from_be_bytes(*hosts));
    let outer = shape.read(place);
    let mac = |[a, b, c, d, e, f]: [u8; 6]| u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
    let address = |address: IpAddr| match address {
        IpAddr::V6(address) => address.to_bits(),
        IpAddr::V4(address) => address.to_bits().into(),
    };
    let sport = place.get(shape.transport()..).and_then(|udp| udp.first_chunk());
    let sport = sport.map_or(0, |port| u16::from_be_bytes(*port));
    Encap {
        eth_dst: Value::Const(mac(outer.eth_dst).into()),
        eth_src: Value::Const(mac(outer.eth_src).into()),
        src: Value::Const(address(outer.src)),
        src_bits: encap.src_bits.map(|_| Value::Const((u64::BITS - hosts.leading_zeros()).into())),
        dst: Value::Const(address(outer.dst)),
        id: encap.id.map(|_| Value::Const(outer.id.into())),
        ttl: Value::Const(outer.ttl.into()),
        sport: encap.sport.map(|_| Value::Const(sport.into())),
        ..*encap
    }
}

impl Encapsulation {
    /// Extracts the parameters of an operation.
    #[must_use]
    pub fn new(encap: &Encap) -> Encapsulation {
        let shape = encap.shape();
        Encapsulation {
            shape,
            finish: shape.finish(),
            length_max: shape.finish().length_max(),
            length: shape.length(),
            spread: encap.src_bits.is_some(),
            ethernet: encap.ethernet,
            hashed: encap.sport.is_none() && encap.kind.is_udp(),
            labelled: encap.ipv6,
            class: encap.dscp.map_or((0xff, 0), |dscp| (3, dscp << 2)),
            udp_checksum: encap.udp_checksum && encap.kind.is_udp(),
            second_chance: encap.second_chance,
        }
    }

    /// The number of bytes of an action row that this encapsulation needs.
    #[inline(always)]
    #[must_use]
    pub fn row_length(&self) -> usize {
        self.length + if self.spread { size_of::<u64>() } else { 0 }
    }

    /// Adds the outer headers; `hash` computes the select hash, and `hops` finds the back ends of the
    /// packet's row; not every packet needs these.
    #[inline(always)]
    pub fn run(
        &self,
        frame: &mut Frame,
        found: &Headers,
        row: &[u8],
        (hash, hops): (impl FnOnce() -> u64, impl FnOnce() -> [u32; 2]),
    ) -> Result<(), DropReason> {
        let class = Ip::of(found.outer()).map_or(0, |ip| ip.class(frame.bytes()));
        let is_ipv6 = !self.ethernet && only_ip(frame, found)? == Inside::Ipv6;
        let length = frame.len();
        if length > self.length_max {
            return Err(DropReason::Oversize);
        }
        let (row, hosts) = row.split_at(self.length);
        let hosts = hosts.first_chunk().map_or(0, |hosts| u64::from_be_bytes(*hosts));
        let hash = if self.hashed || self.labelled || hosts != 0 { hash() } else { 0 };
        let bytes = frame.prepend(row.len() as u16).map_err(|_| DropReason::NoHeadroom)?;
        let Some(outer) = bytes.get_mut(..row.len()) else { return Err(DropReason::NoHeadroom) };
        copy(row, outer);
        if is_ipv6 {
            self.shape.carry(Inside::Ipv6, outer);
        }
        let sport = self.hashed.then_some(49152 + (hash >> 50) as u16);
        let traffic_class = class & self.class.0 | self.class.1;
        // RFC 6437 §3: 0 means that there is no label.
        let flow_label = (hash as u32 & 0xf_ffff).max(1);
        self.finish.write(
            outer,
            Carried { length: length as u16, traffic_class, sport, flow_label, host: host(hosts, hash) },
        );
        if self.second_chance {
            second_chance(self.shape, outer, hops());
        }
        if self.udp_checksum {
            udp_checksum(bytes, self.shape);
        }
        Ok(())
    }
}

/// Writes into outer headers which back end of a row is the packet's second chance: the second one, or the
/// first one if the packet goes to another. If there is none, it is the packet's destination: back ends drop
/// packets without a second chance.
#[inline(never)]
fn second_chance(shape: OuterShape, outer: &mut [u8], [first, second]: [u32; 2]) {
    let at = shape.ip() + 16;
    let to = outer.get(at..at + 4).and_then(|to| to.try_into().ok()).map_or(0, u32::from_be_bytes);
    let hop = if to == first { second } else { first };
    shape.second_chance(if hop == 0 { to } else { hop }, outer);
}

/// The number of source addresses to choose from if `bits` low bits come from the hash: one for each value of
/// these bits except 0 and all ones, which are the addresses of a network and of all its hosts (RFC 1122
/// §3.2.1.3), or of any router (RFC 4291 §2.6.1).
fn hosts(bits: u128, is_ipv6: bool) -> u64 {
    let bits = bits.min(if is_ipv6 { 64 } else { 24 }) as u32;
    u64::MAX.checked_shr(64 - bits).unwrap_or(0).saturating_sub(1)
}

/// The value of a flow's low source address bits. Its upper bits come from the lower bits of the hash,
/// because the upper bits of the hash pick the bucket, so all flows of a back end share some of them.
#[inline(always)]
fn host(hosts: u64, hash: u64) -> u64 {
    if hosts == 0 {
        return 0;
    }
    1 + ((u128::from(hash.rotate_left(32)) * u128::from(hosts)) >> 64) as u64
}

/// VXLAN and Geneve over IPv4, and over IPv6, are copied without a call.
#[inline(always)]
fn copy(row: &[u8], outer: &mut [u8]) {
    if let (Ok(row), Ok(outer)) = (<&[u8; 50]>::try_from(row), <&mut [u8; 50]>::try_from(&mut *outer)) {
        *outer = *row;
    } else if let (Ok(row), Ok(outer)) = (<&[u8; 70]>::try_from(row), <&mut [u8; 70]>::try_from(&mut *outer))
    {
        *outer = *row;
    } else {
        outer.copy_from_slice(row);
    }
}

/// Where an IP header is.
#[derive(Clone, Copy)]
struct Ip {
    at: usize,
    is_ipv6: bool,
}

impl Ip {
    /// The IP header of a level.
    #[inline(always)]
    fn of(level: &Level) -> Option<Ip> {
        let is_ipv6 = level.layers.has(Layer::Ipv6);
        (is_ipv6 || level.layers.has(Layer::Ipv4)).then(|| Ip { at: level.at(Base::L3), is_ipv6 })
    }

    /// DSCP and ECN.
    #[inline(always)]
    fn class(self, bytes: &[u8]) -> u8 {
        match bytes.get(self.at..self.at + 2) {
            Some(&[first, second]) if self.is_ipv6 => first << 4 | second >> 4,
            Some(&[_, second]) => second,
            _ => 0,
        }
    }

    /// First byte after the packet.
    fn end(self, bytes: &[u8]) -> Option<usize> {
        let (length, header) = if self.is_ipv6 { (4, 40) } else { (2, 0) };
        let length = bytes.get(self.at + length..)?.first_chunk()?;
        Some(self.at + header + usize::from(u16::from_be_bytes(*length)))
    }

    /// Writes the ECN field and updates IPv4's checksum.
    fn set_ecn(self, bytes: &mut [u8], ecn: u8) -> Option<()> {
        if self.is_ipv6 {
            let byte = bytes.get_mut(self.at + 1)?;
            *byte = *byte & !0x30 | ecn << 4;
            return Some(());
        }
        let header: &mut [u8; 20] = bytes.get_mut(self.at..)?.first_chunk_mut()?;
        let old = u16::from_be_bytes([header[0], header[1]]);
        header[1] = header[1] & !3 | ecn;
        let change = Sum::default().replace16(old, u16::from_be_bytes([header[0], header[1]]));
        let sum = weir_packet::update(u16::from_be_bytes([header[10], header[11]]), change);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        Some(())
    }
}

/// Cuts the frame down to its IP packet: no Ethernet, no tags, no padding.
#[inline(never)]
fn only_ip(frame: &mut Frame, found: &Headers) -> Result<Inside, DropReason> {
    let ip = Ip::of(found.outer()).ok_or(DropReason::NotApplicable)?;
    let end = ip.end(frame.bytes()).ok_or(DropReason::NotApplicable)?;
    cut(frame, ip.at, end)?;
    Ok(if ip.is_ipv6 { Inside::Ipv6 } else { Inside::Ipv4 })
}

/// Leaves the bytes from `start` to `end`.
fn cut(frame: &mut Frame, start: usize, end: usize) -> Result<(), DropReason> {
    let shorten = u16::try_from(end).ok().and_then(|end| frame.resize(end).ok());
    let shorten = shorten.and_then(|()| frame.trim_front(u16::try_from(start).ok()?).ok());
    shorten.ok_or(DropReason::NotApplicable)
}

/// RFC 768, and RFC 8200 §8.1 for IPv6: pseudo header, header, and everything after it.
#[inline(never)]
fn udp_checksum(bytes: &mut [u8], shape: OuterShape) {
    let (ip, udp) = (shape.ip(), shape.transport());
    let addresses = if shape.is_ipv6 { ip + 8..ip + 40 } else { ip + 12..ip + 20 };
    let sum = Sum::default().bytes(&bytes[addresses]).word(u16::from(weir_packet::PROTOCOL_UDP));
    let sum = sum.value32((bytes.len() - udp) as u32).bytes(&bytes[udp..]);
    let sum = match weir_packet::checksum(sum) {
        0 => 0xffff,
        sum => sum,
    };
    bytes[udp + 6..udp + 8].copy_from_slice(&sum.to_be_bytes());
}

/// ECN codepoints, RFC 3168 §5.
const NOT_ECT: u8 = 0;
const ECT_1: u8 = 1;
const ECT_0: u8 = 2;
const CE: u8 = 3;

/// RFC 6040 §4.2, figure 4; `None`: the packet is dropped.
fn combined(outer: u8, inner: u8) -> Option<u8> {
    match (inner, outer) {
        (NOT_ECT, CE) => None,
        (NOT_ECT, _) => Some(NOT_ECT),
        (_, CE) => Some(CE),
        (ECT_0, ECT_1) => Some(ECT_1),
        (inner, _) => Some(inner),
    }
}
