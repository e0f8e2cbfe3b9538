//! Errors in recordings: each is a sentence that a person can act on, with the offset where it was found.

use super::{BLOCK_MAX, INTERFACES_MAX, RECORD_MAX};
use std::io;

/// Reading stopped. The records before `offset` were read and are valid.
#[derive(Debug, thiserror::Error)]
#[error("byte {offset}: {problem}")]
pub struct ReadError {
    /// Offset in the file where the faulty part begins.
    pub offset: u64,
    /// What is wrong. It is part of the message above, so it is not also the error's source.
    pub problem: Problem,
}

/// What is wrong with a recording.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentence of each variant is its documentation")]
pub enum Problem {
    #[error("reading failed: {0}")]
    Io(#[from] io::Error),
    #[error("the file ends within {what}: expected {wanted} bytes, found {there}")]
    Ends { what: &'static str, wanted: usize, there: usize },
    #[error("the file is empty")]
    Empty,
    #[error("not a recording: it begins with {}, which is neither pcap nor pcapng{}", hex(.0), guess(.0))]
    Unknown([u8; 4]),
    #[error("{format} version {major}.{minor} is not supported")]
    Version { format: &'static str, major: u16, minor: u16 },
    #[error("link type {number}{}: weir reads {read}", link(*.number))]
    Link { number: u16, read: &'static str },
    #[error("the record claims {0} bytes, more than {RECORD_MAX}: the file is corrupt here")]
    RecordTooLong(u32),
    #[error("the block claims {length} bytes: not a multiple of 4 between {least} and {BLOCK_MAX}")]
    BlockLength { length: u32, least: u32 },
    #[error("the block's length is {first} at its start and {last} at its end")]
    BlockLengthsDiffer { first: u32, last: u32 },
    #[error("{what} of {wanted} bytes does not fit into its block, which has {left} bytes left")]
    OutsideBlock { what: &'static str, wanted: u32, left: u32 },
    #[error("the section has an invalid byte-order magic: {}", hex(.0))]
    ByteOrder([u8; 4]),
    #[error("the packet refers to interface {wanted}, but the section describes only {there}")]
    Interface { wanted: u32, there: usize },
    #[error("the section describes more than {INTERFACES_MAX} interfaces")]
    TooManyInterfaces,
}

fn hex(bytes: &[u8; 4]) -> String {
    weir_packet::write_hex(bytes, " ")
}

/// Recognises what people often pass instead of a recording.
fn guess(magic: &[u8; 4]) -> &'static str {
    match magic {
        [0x1f, 0x8b, ..] => " (gzip: unpack it first)",
        [0x28, 0xb5, 0x2f, 0xfd] => " (zstd: unpack it first)",
        [0xfd, b'7', b'z', b'X'] => " (xz: unpack it first)",
        [0x34, 0xcd, 0xb2, 0xa1] | [0xa1, 0xb2, 0xcd, 0x34] => {
            " (Kuznetzov's modified pcap: convert it with `editcap -F pcap`)"
        }
        _ => "",
    }
}

/// Returns the number of a link type followed by its name.
pub(super) fn link(link: u16) -> &'static str {
    match link {
        0 => " (NULL, a BSD loopback)",
        101 => " (RAW, IP without Ethernet)",
        113 => " (LINUX_SLL, a recording of `any`)",
        276 => " (LINUX_SLL2, a recording of `any`)",
        105 | 127 => " (802.11)",
        _ => "",
    }
}
