//! Recordings (pcap files): a reader of classic pcap and pcapng, a writer of classic pcap, and the port made
//! of both.
//!
//! Everything is streamed and nothing is trusted: a length in a file is checked before it is used, and no
//! file makes weir hold more than two records ([`RECORD_MAX`]) and a list of interfaces ([`INTERFACES_MAX`]).
#![forbid(unsafe_code)]

mod classic;
mod clock;
mod error;
mod ng;
mod port;
mod reader;
mod source;
mod writer;

pub use error::{Problem, ReadError};
pub use port::{Files, Output, PcapPort};
pub use reader::{Lent, Links, Reader, Record};
pub use writer::Writer;

/// What to do about frames that were recorded only in part.
pub const RECORD_ALL: &str = "record with a larger snaplen (`tcpdump -s 0`)";

/// The largest record in bytes: libpcap's `MAXIMUM_SNAPLEN`, so that every file written by tcpdump can be
/// read.
pub const RECORD_MAX: u32 = 262_144;

/// The largest pcapng block in bytes: Wireshark's limit. Blocks are streamed; a longer one means a garbled
/// length.
pub const BLOCK_MAX: u32 = 16 << 20;

/// The largest number of interfaces in a pcapng section: more than any host has, at 24 bytes each.
pub const INTERFACES_MAX: usize = 4096;

/// Ethernet in the registry of link types (<https://www.tcpdump.org/linktypes.html>).
const LINK_ETHERNET: u16 = 1;

const NS_PER_S: u64 = 1_000_000_000;
