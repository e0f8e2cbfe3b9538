//! A packet in transit: its bytes, the headers last found in them, and other facts.

use super::bytes::{self, Fragment, Headers, Ip};
use super::checksum::mend;
use super::fields::{self, Facts, FieldLocation, place};
use super::fragments::ports_of;
use super::icmp_error;
use super::source::Arrival;
use super::trace::{Color, Mended};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_packet::{Depth, DropReason, Field, FlowKey, KeySource, TunnelPorts, select_hash};
use weir_program::PortId;

/// The facts about a connection in a TCP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The lower eight flags.
    pub flags: u8,
    /// The highest byte of the sequence number.
    pub seq: u8,
    /// Whether data follow.
    pub has_data: bool,
}

/// A packet in transit.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub bytes: Vec<u8>,
    /// Free bytes in front of the frame (headroom).
    pub headroom: usize,
    /// The headers, as last found.
    pub headers: Headers,
    /// Whether headers have moved since they were found.
    pub moved: bool,
    depth: Depth,
    /// UDP ports that identify tunnels.
    pub tunnels: TunnelPorts,
    pub input: PortId,
    /// The hash delivered by the NIC; 0 if there is none. No action changes it.
    pub hash: u32,
    pub color: Color,
    /// The packet's maximum length, once the packet is too long.
    pub limit: Option<u16>,
    meta: [u32; 4],
    /// The outer flow key, computed on arrival or at the last rehash.
    pub outer: Option<FlowKey>,
    pub inner: Option<FlowKey>,
    /// For a packet that arrived as a fragment: the current ports of its datagram, source first.
    ports: Option<[u16; 2]>,
    /// The same facts in the TCP headers that belonged to the keys at that time.
    outer_segment: Option<Segment>,
    inner_segment: Option<Segment>,
    /// Whether each key is that of a flow that the packet is an ICMP error about.
    outer_error: bool,
    inner_error: bool,
    /// MAC addresses and EtherType at that time.
    ethernet: [u64; 3],
}

impl Packet {
    /// Receives a packet: parses headers and computes keys. With `follows`, fragments have ports.
    pub fn receive(
        arrival: &Arrival<'_>,
        depth: Depth,
        tunnels: TunnelPorts,
        follows: bool,
    ) -> Result<Packet, DropReason> {
        let Arrival { input, bytes: frame, headroom, hash, ports } = *arrival;
        let headers = bytes::headers(frame, depth, &tunnels)?;
        let ports = if follows { ports_of(frame, &headers, ports)? } else { None };
        let mut packet = Packet {
            bytes: frame.to_vec(),
            headroom,
            headers,
            moved: false,
            depth,
            tunnels,
            input,
            hash,
            color: Color::Green,
            limit: None,
            meta: [0; 4],
            outer: None,
            inner: None,
            ports,
            outer_segment: None,
            inner_segment: None,
            outer_error: false,
            inner_error: false,
            ethernet: [0; 3],
        };
        packet.make_keys();
        Ok(packet)
    }

    /// Finds the headers again if an action has moved them.
    pub fn find_headers(&mut self) -> Result<(), DropReason> {
        if self.moved {
            self.headers = bytes::headers(&self.bytes, self.depth, &self.tunnels)?;
            self.moved = false;
        }
        Ok(())
    }

    /// Computes both flow keys from the current bytes.
    pub fn make_keys(&mut self) {
        self.outer = self.headers.ip.as_ref().map(|ip| self.key_of(&self.headers, ip, None));
        let inside = self.headers.tunnel.as_ref().zip(self.headers.inner());
        self.inner = match inside.and_then(|(tunnel, inner)| Some((tunnel, inner, inner.ip.as_ref()?))) {
            None => self.outer,
            Some((tunnel, inner, ip)) => {
                let id = tunnel.id.map_or(0, |(first, count)| fields::read_bits(&self.bytes, first, count));
                // A key has only 24 bits for the id.
                (id < 1 << 24).then(|| self.key_of(inner, ip, Some(id as u32)))
            }
        };
        let outer_segment = self.segment_in(Field::TcpFlags, &self.headers);
        let is_inside = self.headers.inner().is_some_and(|inner| inner.ip.is_some());
        let inner = self.headers.inner().filter(|_| is_inside);
        self.inner_segment = match inner {
            Some(inner) => self.segment_in(Field::TcpFlags.inner(), inner),
            None => outer_segment,
        };
        self.outer_segment = outer_segment;
        let is_error = |headers: &Headers| icmp_error::packet_inside(&self.bytes, headers).is_some();
        let outer_error = is_error(&self.headers);
        let inner_error = self.headers.inner().is_some_and(is_error);
        (self.outer_error, self.inner_error) =
            (outer_error, if is_inside { inner_error } else { outer_error });
        let mac = |first: usize| fields::read_bits(&self.bytes, first, 48) as u64;
        self.ethernet = [mac(0), mac(48), u64::from(self.headers.ether_type)];
    }

    /// The hash that selects buckets: of the flow key or, without one, of the Ethernet header.
    pub fn select_hash(&self, source: KeySource, seed: u64) -> u64 {
        match self.key(source) {
            Some(key) => select_hash(seed, &key.0),
            None => select_hash(seed, &self.ethernet),
        }
    }

    fn key_of(&self, headers: &Headers, ip: &Ip, vni: Option<u32>) -> FlowKey {
        if let Some(key) = icmp_error::key_inside(&self.bytes, headers, vni) {
            return key;
        }
        let address = |offset_v4: usize, offset_v6: usize| {
            if ip.version == 4 {
                let bits = fields::read_bits(&self.bytes, 8 * (ip.start + offset_v4), 32);
                IpAddr::V4(Ipv4Addr::from_bits(bits as u32))
            } else {
                IpAddr::V6(Ipv6Addr::from_bits(fields::read_bits(
                    &self.bytes,
                    8 * (ip.start + offset_v6),
                    128,
                )))
            }
        };
        // A packet inside a tunnel did not itself arrive as a fragment.
        if let Some([sport, dport]) = self.fragment_ports().filter(|_| vni.is_none()) {
            return FlowKey::new(address(12, 8), address(16, 24), ip.protocol, (sport, dport), None);
        }
        let port = |offset: usize| {
            headers.ports().and_then(|start| bytes::number16(&self.bytes, start + offset)).unwrap_or_default()
        };
        FlowKey::new(address(12, 8), address(16, 24), ip.protocol, (port(0), port(2)), vni)
    }

    /// The ports of the datagram, if the outermost IP header is that of a fragment that arrived as one.
    fn fragment_ports(&self) -> Option<[u16; 2]> {
        self.ports.filter(|_| self.headers.ip.as_ref().is_some_and(|ip| ip.fragment != Fragment::Whole))
    }

    pub fn key(&self, source: KeySource) -> Option<FlowKey> {
        match source {
            KeySource::Outer => self.outer,
            KeySource::Inner => self.inner,
        }
    }

    /// The facts about the connection in the TCP header that belongs to a key; `None` without one.
    pub fn segment(&self, source: KeySource) -> Option<Segment> {
        match source {
            KeySource::Outer => self.outer_segment,
            KeySource::Inner => self.inner_segment,
        }
    }

    fn segment_in(&self, flags: Field, headers: &Headers) -> Option<Segment> {
        let flags = self.read(flags)? as u8;
        let (ip, start) = (headers.ip.as_ref()?, headers.ports()?);
        let number = |first: usize, bits| fields::read_bits(&self.bytes, 8 * first, bits) as usize;
        let length = if ip.version == 4 { number(ip.start + 2, 16) } else { 40 + number(ip.start + 4, 16) };
        let data = start + 4 * number(start + 12, 4);
        Some(Segment { flags, seq: number(start + 4, 8) as u8, has_data: ip.start + length > data })
    }

    /// Whether the packet is an ICMP error about the flow that a key identifies.
    pub fn is_error(&self, source: KeySource) -> bool {
        match source {
            KeySource::Outer => self.outer_error,
            KeySource::Inner => self.inner_error,
        }
    }

    /// The value of a field; `None` if the packet does not have this field.
    pub fn read(&self, field: Field) -> Option<u128> {
        match self.place(field) {
            FieldLocation::Absent => None,
            FieldLocation::Bits { first, count } => Some(fields::read_bits(&self.bytes, first, count)),
            FieldLocation::Fact(value) => Some(value),
            FieldLocation::Meta(word) => Some(u128::from(self.meta[word])),
            FieldLocation::Port(end) => self.ports.map(|ports| u128::from(ports[end])),
        }
    }

    /// Writes a field and updates the checksums that cover it.
    pub fn write(&mut self, field: Field, value: u128) -> Result<Vec<Mended>, DropReason> {
        match self.place(field) {
            FieldLocation::Absent | FieldLocation::Fact(_) => Err(DropReason::NotApplicable),
            FieldLocation::Bits { first, count } => {
                let before = self.bytes.clone();
                fields::write_bits(&mut self.bytes, first, count, value);
                Ok(mend(&before, &mut self.bytes, &self.headers, field))
            }
            FieldLocation::Meta(word) => {
                self.meta[word] = value as u32;
                Ok(Vec::new())
            }
            FieldLocation::Port(end) => Ok(self.write_port(end, field, value as u16)),
        }
    }

    /// Writes a port of a fragment's datagram. The first fragment has it in its bytes as well.
    fn write_port(&mut self, end: usize, field: Field, value: u16) -> Vec<Mended> {
        if let Some(ports) = &mut self.ports {
            ports[end] = value;
        }
        let first = self.headers.ip.as_ref().filter(|ip| ip.fragment == Fragment::First);
        let Some(start) = first.map(|ip| ip.payload) else { return Vec::new() };
        let before = self.bytes.clone();
        fields::write_bits(&mut self.bytes, 8 * start + 16 * end, 16, value.into());
        mend(&before, &mut self.bytes, &self.headers, field)
    }

    fn place(&self, field: Field) -> FieldLocation {
        if let Some(place) = icmp_error::place_inside(&self.bytes, &self.headers, field) {
            return place;
        }
        match field {
            Field::L4Sport if self.fragment_ports().is_some() => return FieldLocation::Port(0),
            Field::L4Dport if self.fragment_ports().is_some() => return FieldLocation::Port(1),
            _ => {}
        }
        place(field, &self.headers, Facts { input: self.input.0, color: self.color as u8 })
    }

    /// Removes bytes from the front.
    pub fn take_front(&mut self, count: usize) {
        self.bytes.drain(..count);
        self.headroom += count;
        self.moved = true;
    }

    /// Adds bytes to the front.
    pub fn put_front(&mut self, front: &[u8]) -> Result<(), DropReason> {
        let Some(left) = self.headroom.checked_sub(front.len()) else { return Err(DropReason::NoHeadroom) };
        self.headroom = left;
        self.bytes.splice(..0, front.iter().copied());
        self.moved = true;
        Ok(())
    }
}
