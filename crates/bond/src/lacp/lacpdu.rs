//! LACPDUs and Marker PDUs as bytes (802.1AX 6.4.2 and 6.5.3). Both have one fixed layout, so a field is an
//! offset.
//!
//! Parsing accepts any bytes and never panics. It ignores the types of TLVs and the reserved bytes of an
//! LACPDU, as the standard demands, and checks lengths, as it permits. A later version is read as version 1,
//! whose fields it must keep in place.

use super::info::{Info, Port, State, System};
use super::refusal::Refusal;

/// Destination address of all slow protocols (IEEE 802.3 Annex 57A), which bridges do not forward.
pub const SLOW_ADDRESS: [u8; 6] = [0x01, 0x80, 0xc2, 0x00, 0x00, 0x02];
/// EtherType of all slow protocols.
pub const ETHER_TYPE: u16 = 0x8809;
/// Bytes in a frame with either PDU, without the frame check sequence: 128 bytes on the wire.
pub const FRAME_LEN: usize = 124;

const SUBTYPE: usize = 14;
const VERSION: usize = 15;
/// Offset of the first TLV: the actor's, or the marker's.
const FIRST: usize = 16;
const PARTNER: usize = 36;
const COLLECTOR: usize = 56;

const LACP: u8 = 1;
const MARKER: u8 = 2;
const END_LEN: u8 = 20;
const COLLECTOR_LEN: u8 = 16;
const MARKER_LEN: u8 = 16;
const ASKS: u8 = 1;
const ANSWERS: u8 = 2;

type Frame = [u8; FRAME_LEN];

/// A PDU of the link aggregation protocols.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pdu {
    /// Describes both ends of the link.
    Lacp(LacpPdu),
    /// Requests a response once all frames before it have been received.
    Marker(Marker),
    /// The response to a marker.
    MarkerResponse(Marker),
}

/// An LACPDU of version 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LacpPdu {
    /// The sender's own end.
    pub actor: Info,
    /// The sender's view of the receiver's end.
    pub partner: Info,
    /// How long the sender's collector may delay a frame, in tens of microseconds.
    pub collector_delay: u16,
}

impl LacpPdu {
    /// Builds the frame with this PDU.
    pub fn frame(&self, source: [u8; 6]) -> Vec<u8> {
        let mut frame = blank(source, LACP);
        put_info(&mut frame, FIRST, 1, &self.actor);
        put_info(&mut frame, PARTNER, 2, &self.partner);
        frame[COLLECTOR] = 3;
        frame[COLLECTOR + 1] = COLLECTOR_LEN;
        put(&mut frame, COLLECTOR + 2, self.collector_delay.to_be_bytes());
        frame.to_vec()
    }

    fn read(frame: &Frame) -> Result<LacpPdu, Refusal> {
        let lengths = [FIRST, PARTNER, COLLECTOR].map(|tlv| frame[tlv + 1]);
        if lengths != [END_LEN, END_LEN, COLLECTOR_LEN] {
            return Err(Refusal::TlvLength);
        }
        let actor = info(frame, FIRST);
        if actor.system.is_nobody() {
            return Err(Refusal::Nobody);
        }
        Ok(LacpPdu { actor, partner: info(frame, PARTNER), collector_delay: number(frame, COLLECTOR + 2) })
    }
}

/// The contents of a Marker PDU, chosen by the end that sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marker {
    /// Port number of the requester.
    pub port: u16,
    /// System address of the requester.
    pub system: [u8; 6],
    /// Number of the request.
    pub transaction: u32,
}

impl Marker {
    /// Builds the frame with the marker.
    pub fn question(&self, source: [u8; 6]) -> Vec<u8> {
        self.frame(source, ASKS)
    }

    /// Builds the frame with the response.
    pub fn answer(&self, source: [u8; 6]) -> Vec<u8> {
        self.frame(source, ANSWERS)
    }

    fn frame(&self, source: [u8; 6], tlv: u8) -> Vec<u8> {
        let mut frame = blank(source, MARKER);
        frame[FIRST] = tlv;
        frame[FIRST + 1] = MARKER_LEN;
        put(&mut frame, FIRST + 2, self.port.to_be_bytes());
        put(&mut frame, FIRST + 4, self.system);
        put(&mut frame, FIRST + 10, self.transaction.to_be_bytes());
        frame.to_vec()
    }

    fn read(frame: &Frame) -> Result<Pdu, Refusal> {
        if frame[FIRST + 1] != MARKER_LEN {
            return Err(Refusal::TlvLength);
        }
        let transaction = u32::from_be_bytes(bytes(frame, FIRST + 10));
        let marker = Marker { port: number(frame, FIRST + 2), system: bytes(frame, FIRST + 4), transaction };
        match frame[FIRST] {
            ASKS => Ok(Pdu::Marker(marker)),
            ANSWERS => Ok(Pdu::MarkerResponse(marker)),
            _ => Err(Refusal::TlvType),
        }
    }
}

/// Parses a frame, starting with its destination address.
pub fn parse(frame: &[u8]) -> Result<Pdu, Refusal> {
    let header: &[u8; SUBTYPE + 1] = frame.first_chunk().ok_or(Refusal::Truncated)?;
    if header[..6] != SLOW_ADDRESS || header[12..14] != ETHER_TYPE.to_be_bytes() {
        return Err(Refusal::NotSlowProtocol);
    }
    let subtype = header[SUBTYPE];
    if ![LACP, MARKER].contains(&subtype) {
        return Err(Refusal::Subtype);
    }
    let frame: &Frame = frame.first_chunk().ok_or(Refusal::Truncated)?;
    match (frame[VERSION], subtype) {
        (0, _) => Err(Refusal::Version),
        (_, LACP) => LacpPdu::read(frame).map(Pdu::Lacp),
        _ => Marker::read(frame),
    }
}

/// Builds a frame of version 1 without TLVs. Everything else is zero, including the terminator.
fn blank(source: [u8; 6], subtype: u8) -> Frame {
    let mut frame = [0; FRAME_LEN];
    put(&mut frame, 0, SLOW_ADDRESS);
    put(&mut frame, 6, source);
    put(&mut frame, 12, ETHER_TYPE.to_be_bytes());
    frame[SUBTYPE] = subtype;
    frame[VERSION] = 1;
    frame
}

fn put_info(frame: &mut Frame, at: usize, tlv: u8, info: &Info) {
    frame[at] = tlv;
    frame[at + 1] = END_LEN;
    put(frame, at + 2, info.system.priority.to_be_bytes());
    put(frame, at + 4, info.system.mac);
    put(frame, at + 10, info.key.to_be_bytes());
    put(frame, at + 12, info.port.priority.to_be_bytes());
    put(frame, at + 14, info.port.number.to_be_bytes());
    frame[at + 16] = info.state.0;
}

fn info(frame: &Frame, at: usize) -> Info {
    Info {
        system: System { priority: number(frame, at + 2), mac: bytes(frame, at + 4) },
        key: number(frame, at + 10),
        port: Port { priority: number(frame, at + 12), number: number(frame, at + 14) },
        state: State(frame[at + 16]),
    }
}

fn put<const N: usize>(frame: &mut Frame, at: usize, bytes: [u8; N]) {
    frame[at..at + N].copy_from_slice(&bytes);
}

fn bytes<const N: usize>(frame: &Frame, at: usize) -> [u8; N] {
    std::array::from_fn(|byte| frame[at + byte])
}

fn number(frame: &Frame, at: usize) -> u16 {
    u16::from_be_bytes(bytes(frame, at))
}
