//! Classic pcap (draft-ietf-opsawg-pcap): a header of 24 bytes, then records of 16 bytes and their data.
//!
//! Versions before 2.4 differ in the order of a record's two lengths. As libpcap and Wireshark do, 2.0 to 2.2
//! are read with the length on the wire first, and 2.3, for which both orders exist, by plausibility.

use super::reader::{Links, Stamp};
use super::source::{Order, Source};
use super::{NS_PER_S, Problem, RECORD_MAX, ReadError};
use std::io::BufRead;

const MICROSECONDS: u32 = 0xa1b2_c3d4;
const NANOSECONDS: u32 = 0xa1b2_3c4d;

/// Which of a record's lengths comes first.
enum Lengths {
    /// The captured length (version 2.4).
    CapturedFirst,
    /// The length on the wire (before 2.3).
    WireFirst,
    /// In either order: the smaller length is the captured one (2.3).
    Smaller,
}

pub(super) struct Classic {
    ns_per_unit: u64,
    link: u16,
    lengths: Lengths,
    /// Bytes of frame check sequence at the end of every frame.
    fcs: u32,
}

impl Classic {
    /// Returns the byte order and the nanoseconds per unit of time if this is the magic number of a classic
    /// pcap.
    pub(super) fn recognise(magic: [u8; 4]) -> Option<(Order, u64)> {
        [Order::Little, Order::Big].into_iter().find_map(|order| match order.u32(magic) {
            MICROSECONDS => Some((order, 1000)),
            NANOSECONDS => Some((order, 1)),
            _ => None,
        })
    }

    /// Reads the header after the magic number.
    pub(super) fn open<R: BufRead>(
        source: &mut Source<R>,
        ns_per_unit: u64,
        links: Links,
    ) -> Result<Classic, ReadError> {
        let header: [u8; 20] = source.piece("the pcap header")?;
        let [version, _zone, _accuracy, _snap, link] = [0, 4, 8, 12, 16].map(|at| {
            let word: [u8; 4] = header[at..at + 4].try_into().expect("4 bytes");
            word
        });
        let [major, minor] = source.order.halves(version);
        let lengths = match (major, minor) {
            (2, 4) => Lengths::CapturedFirst,
            (2, 3) => Lengths::Smaller,
            (2, 0..=2) => Lengths::WireFirst,
            _ => return source.wrong(20, Problem::Version { format: "pcap", major, minor }),
        };
        let link = source.order.u32(link);
        let number = link as u16;
        if !(links.has)(number) {
            return source.wrong(4, Problem::Link { number, read: links.said });
        }
        // If bit 26 is set, the four bits above it are the length of the FCS in 16-bit words.
        let fcs = if link & 1 << 26 == 0 { 0 } else { (link >> 28) * 2 };
        Ok(Classic { ns_per_unit, link: number, lengths, fcs })
    }

    /// Reads a record; the source then holds its data. Returns `None` at the end of the file.
    #[inline]
    pub(super) fn read<R: BufRead>(&self, source: &mut Source<R>) -> Result<Option<Stamp>, ReadError> {
        let Some(header) = source.next::<16>("a record's header")? else { return Ok(None) };
        let [seconds, part, first, second] = source.order.words(&header);
        let (captured, length) = match self.lengths {
            Lengths::CapturedFirst => (first, second),
            Lengths::WireFirst => (second, first),
            Lengths::Smaller => (first.min(second), first.max(second)),
        };
        if captured > RECORD_MAX {
            return source.wrong(16, Problem::RecordTooLong(captured));
        }
        source.hold(captured, "a record's data")?;
        let time_ns = u64::from(seconds) * NS_PER_S + u64::from(part) * self.ns_per_unit;
        Ok(Some(Stamp { link: self.link, time_ns, length, fcs: self.fcs }))
    }
}
