//! The datagrams between weir and a client, one frame each: eight bytes, the name of a port, the frame.
//! Numbers are in network byte order.
//!
//! ```text
//!   0        1        2             3       4..8           8..8+n       8+n..8+n+length
//!   version  kind     name length   zero    frame length   port's name  frame
//! ```

use thiserror::Error;

/// Version of the header.
pub const VERSION: u8 = 1;

/// Bytes in front of the port's name.
pub const HEADER_BYTES: usize = 8;

/// The kind of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DatagramKind {
    /// From weir: a frame for the app, with the port on which it arrived.
    Punted = 1,
    /// To weir: send the frame out of the port.
    Out = 2,
    /// To weir: pass the frame through the program, as if it had arrived on the port.
    Through = 3,
    /// From weir: a datagram or the client was refused. The datagram has no port, and a sentence with the
    /// reason in place of the frame.
    Refused = 4,
}

/// A parsed datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// What it is.
    pub kind: DatagramKind,
    /// The port's name.
    pub port: &'a str,
    /// The frame, without FCS.
    pub frame: &'a [u8],
}

/// Why a client's datagram is refused.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Problem {
    /// The datagram is shorter than the header.
    #[error("the datagram has {0} bytes and the header has {HEADER_BYTES}")]
    Short(usize),
    /// The datagram has another version.
    #[error("header version {0} is not supported: use version {VERSION}")]
    Version(u8),
    /// The datagram is not of a kind that clients may send.
    #[error("clients cannot send kind {0}: use 2 (out of a port) or 3 (through the program)")]
    Kind(u8),
    /// The byte that must be zero is not.
    #[error("the fourth byte must be 0 in version {VERSION}, not {0}")]
    Reserved(u8),
    /// The lengths do not add up.
    #[error("the header claims {said} bytes in total, but the datagram has {has}")]
    Length {
        /// The length according to the datagram's header.
        said: u64,
        /// The actual length of the datagram.
        has: usize,
    },
    /// The port's name is not UTF-8.
    #[error("the port's name is not UTF-8")]
    Name,
    /// There is no such port.
    #[error("there is no port `{0}`")]
    Port(String),
    /// The datagram is too short for a frame.
    #[error("the frame has {0} bytes, fewer than the 14 of an Ethernet header")]
    Frame(usize),
}

impl<'a> Datagram<'a> {
    /// Encodes the datagram. The name of a port has at most 64 bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.port.len() + self.frame.len());
        bytes.extend([VERSION, self.kind as u8, self.port.len() as u8, 0]);
        bytes.extend((self.frame.len() as u32).to_be_bytes());
        bytes.extend(self.port.as_bytes());
        bytes.extend(self.frame);
        bytes
    }

    /// Parses a datagram from a client.
    ///
    /// # Errors
    /// The error says why the datagram is refused.
    pub fn of_client(bytes: &'a [u8]) -> Result<Datagram<'a>, Problem> {
        let (head, rest) = bytes.split_first_chunk::<HEADER_BYTES>().ok_or(Problem::Short(bytes.len()))?;
        let [version, kind, name, reserved, length @ ..] = *head;
        if version != VERSION {
            return Err(Problem::Version(version));
        }
        let kind = match kind {
            2 => DatagramKind::Out,
            3 => DatagramKind::Through,
            other => return Err(Problem::Kind(other)),
        };
        if reserved != 0 {
            return Err(Problem::Reserved(reserved));
        }
        let length = u64::from(u32::from_be_bytes(length));
        let said = HEADER_BYTES as u64 + u64::from(name) + length;
        if said != bytes.len() as u64 {
            return Err(Problem::Length { said, has: bytes.len() });
        }
        let (port, frame) = rest.split_at(usize::from(name));
        let port = std::str::from_utf8(port).map_err(|_| Problem::Name)?;
        if frame.len() < 14 {
            return Err(Problem::Frame(frame.len()));
        }
        Ok(Datagram { kind, port, frame })
    }
}
