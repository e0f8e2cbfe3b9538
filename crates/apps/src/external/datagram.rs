//! What passes between weir and a client, a frame each: eight bytes, the name of a port, the frame. Numbers are in network
//! byte order.
//!
//! ```text
//!   0        1        2             3       4..8           8..8+n       8+n..8+n+length
//!   version  kind     name length   zero    frame length   port's name  frame
//! ```

use thiserror::Error;

/// The version of the header.
pub const VERSION: u8 = 1;

/// Bytes in front of the port's name.
pub const HEADER_BYTES: usize = 8;

/// What a datagram is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// From weir: a frame for the app; the port is where it came in.
    Punted = 1,
    /// To weir: send the frame out of the port.
    Out = 2,
    /// To weir: carry the frame through the program, as if it had come in by the port.
    Through = 3,
    /// From weir: a datagram was refused, or the client is; no port, and in place of the frame a sentence that says why.
    Refused = 4,
}

/// A datagram taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// What it is.
    pub kind: Kind,
    /// The port's name.
    pub port: &'a str,
    /// The frame from the Ethernet header on, without FCS.
    pub frame: &'a [u8],
}

/// Why a client's datagram is refused.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Problem {
    /// It is shorter than its header.
    #[error("the datagram has {0} bytes and the header has {HEADER_BYTES}")]
    Short(usize),
    /// Another version.
    #[error("version {0} of the header is not known here, {VERSION} is")]
    Version(u8),
    /// Nothing that a client may say.
    #[error("kind {0} is not for clients: 2 (out of a port) and 3 (through the program) are")]
    Kind(u8),
    /// The byte that must be zero is not.
    #[error("the fourth byte is 0 in version {VERSION}, not {0}")]
    Reserved(u8),
    /// The lengths do not add up.
    #[error("the header says {said} bytes in all and the datagram has {has}")]
    Length {
        /// By its header.
        said: u64,
        /// By itself.
        has: usize,
    },
    /// The port's name is not UTF-8.
    #[error("the port's name is not UTF-8")]
    Name,
    /// No such port.
    #[error("there is no port `{0}`")]
    Port(String),
    /// Not a frame.
    #[error("the frame has {0} bytes: an Ethernet header alone has 14")]
    Frame(usize),
}

impl<'a> Datagram<'a> {
    /// As it goes over the socket. The name of a port has 64 bytes at most.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.port.len() + self.frame.len());
        bytes.extend([VERSION, self.kind as u8, self.port.len() as u8, 0]);
        bytes.extend((self.frame.len() as u32).to_be_bytes());
        bytes.extend(self.port.as_bytes());
        bytes.extend(self.frame);
        bytes
    }

    /// What a client says.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn of_client(bytes: &'a [u8]) -> Result<Datagram<'a>, Problem> {
        let (head, rest) = bytes.split_first_chunk::<HEADER_BYTES>().ok_or(Problem::Short(bytes.len()))?;
        let [version, kind, name, reserved, length @ ..] = *head;
        if version != VERSION {
            return Err(Problem::Version(version));
        }
        let kind = match kind {
            2 => Kind::Out,
            3 => Kind::Through,
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
