//! pcapng (draft-ietf-opsawg-pcapng): blocks of type, length, body and length again. A section starts with
//! its byte order; interfaces are described before the packets that refer to them.
//!
//! The reader reads section headers, interface descriptions, and enhanced, simple and obsolete packet blocks;
//! it skips all other blocks. Packets of interfaces with other link types are skipped and counted.

use super::reader::{Links, Skipped, Stamp};
use super::source::{Order, Source};
use super::{BLOCK_MAX, INTERFACES_MAX, NS_PER_S, Problem, RECORD_MAX, ReadError};
use std::io::BufRead;

/// Block types (section 10.1 of the draft); that of the section header is the same in both byte orders.
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const OBSOLETE_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;

/// The value of a section header's byte-order magic, read in the section's byte order.
const ORDER_MARK: u32 = 0x1a2b_3c4d;

/// Size of the shortest block: its type and both lengths.
const BLOCK_MIN: u32 = 12;
/// Size of the shortest section header: also magic, version and section length.
const SECTION_MIN: u32 = 28;

/// Options of an interface (section 4.2 of the draft).
const OPTION_END: u16 = 0;
const OPTION_RESOLUTION: u16 = 9;
const OPTION_FCS: u16 = 13;
const OPTION_OFFSET: u16 = 14;

struct Interface {
    link: u16,
    snap: u32,
    fcs: u32,
    resolution: u8,
    offset_s: i64,
}

impl Interface {
    /// Converts a timestamp to nanoseconds. `resolution` is a negative power of 10, or of 2 if its highest
    /// bit is set.
    fn time_ns(&self, high: u32, low: u32) -> u64 {
        let units = u128::from(u64::from(high) << 32 | u64::from(low)) * u128::from(NS_PER_S);
        let power = u32::from(self.resolution & 0x7f);
        let ns = if self.resolution & 0x80 != 0 {
            units >> power
        } else {
            // If the unit is too small for 128 bits, every time is 0.
            10u128.checked_pow(power).map_or(0, |per_second| units / per_second)
        };
        // Both terms are below 2^94.
        let ns = ns as i128 + i128::from(self.offset_s) * i128::from(NS_PER_S);
        ns.clamp(0, i128::from(u64::MAX)) as u64
    }
}

/// A block whose body is being read. A wrong length inside the body cannot make the reader leave the body.
struct Block {
    kind: u32,
    length: u32,
    left: u32,
}

impl Block {
    fn claim(
        &mut self,
        source: &Source<impl BufRead>,
        what: &'static str,
        wanted: u32,
    ) -> Result<(), ReadError> {
        if wanted > self.left {
            return source.wrong(0, Problem::OutsideBlock { what, wanted, left: self.left });
        }
        self.left -= wanted;
        Ok(())
    }

    fn piece<const N: usize>(
        &mut self,
        source: &mut Source<impl BufRead>,
        what: &'static str,
    ) -> Result<[u8; N], ReadError> {
        self.claim(source, what, N as u32)?;
        source.piece(what)
    }

    /// Reads a packet's data; the source then holds it.
    fn data(&mut self, source: &mut Source<impl BufRead>, wanted: u32) -> Result<(), ReadError> {
        if wanted > RECORD_MAX {
            return source.wrong(0, Problem::RecordTooLong(wanted));
        }
        self.claim(source, "a packet", wanted)?;
        source.hold(wanted, "a packet")
    }

    fn end(self, source: &mut Source<impl BufRead>) -> Result<(), ReadError> {
        source.skip(self.left, "a block")?;
        let last = source.order.u32(source.piece("the length behind a block")?);
        if last != self.length {
            return source.wrong(4, Problem::BlockLengthsDiffer { first: self.length, last });
        }
        Ok(())
    }
}

/// The section being read.
pub(super) struct Section {
    interfaces: Vec<Interface>,
    /// Simple packets have no timestamp; each one gets the time of the packet before it.
    last_ns: u64,
    links: Links,
    pub(super) skipped: Skipped,
}

impl Section {
    pub(super) fn recognise(magic: [u8; 4]) -> bool {
        Order::Little.u32(magic) == SECTION_HEADER
    }

    /// Reads the first section header after its type.
    pub(super) fn open<R: BufRead>(source: &mut Source<R>, links: Links) -> Result<Section, ReadError> {
        let mut section = Section { interfaces: Vec::new(), last_ns: 0, links, skipped: Skipped::default() };
        let length = source.piece("a section header")?;
        section.begin(source, length)?;
        Ok(section)
    }

    /// Reads a section header. The byte order comes first, because even the block's length depends on it.
    fn begin<R: BufRead>(&mut self, source: &mut Source<R>, length: [u8; 4]) -> Result<(), ReadError> {
        let mark: [u8; 4] = source.piece("a section header")?;
        let order = [Order::Little, Order::Big].into_iter().find(|order| order.u32(mark) == ORDER_MARK);
        let Some(order) = order else {
            return source.wrong(4, Problem::ByteOrder(mark));
        };
        source.order = order;
        let length = order.u32(length);
        if !(SECTION_MIN..=BLOCK_MAX).contains(&length) || !length.is_multiple_of(4) {
            return source.wrong(8, Problem::BlockLength { length, least: SECTION_MIN });
        }
        let mut block = Block { kind: SECTION_HEADER, length, left: length - BLOCK_MIN - 4 };
        let [major, minor] = order.halves(block.piece(source, "a section's version")?);
        // Some tools write minor version 2, which means the same (section 4.1).
        if major != 1 || !matches!(minor, 0 | 2) {
            return source.wrong(4, Problem::Version { format: "pcapng", major, minor });
        }
        self.interfaces.clear();
        block.end(source)
    }

    /// Reads blocks up to the next packet of a supported link type. The source then holds its data. Returns
    /// `None` at the end of the file.
    #[inline]
    pub(super) fn read<R: BufRead>(&mut self, source: &mut Source<R>) -> Result<Option<Stamp>, ReadError> {
        loop {
            let Some(header) = source.next::<8>("a block's header")? else { return Ok(None) };
            let [kind, length] = source.order.words(&header);
            if kind == SECTION_HEADER {
                self.begin(source, header[4..].try_into().expect("4 bytes"))?;
                continue;
            }
            if !(BLOCK_MIN..=BLOCK_MAX).contains(&length) || !length.is_multiple_of(4) {
                return source.wrong(4, Problem::BlockLength { length, least: BLOCK_MIN });
            }
            let mut block = Block { kind, length, left: length - BLOCK_MIN };
            let packet = self.body(source, &mut block)?;
            block.end(source)?;
            if packet.is_some() {
                return Ok(packet);
            }
        }
    }

    fn body<R: BufRead>(
        &mut self,
        source: &mut Source<R>,
        block: &mut Block,
    ) -> Result<Option<Stamp>, ReadError> {
        match block.kind {
            INTERFACE => self.describe(source, block).map(|()| None),
            ENHANCED_PACKET | OBSOLETE_PACKET => self.packet(source, block),
            SIMPLE_PACKET => self.simple_packet(source, block),
            _ => Ok(None),
        }
    }

    fn describe<R: BufRead>(&mut self, source: &mut Source<R>, block: &mut Block) -> Result<(), ReadError> {
        if self.interfaces.len() == INTERFACES_MAX {
            return source.wrong(8, Problem::TooManyInterfaces);
        }
        let [link, _] = source.order.halves(block.piece(source, "an interface")?);
        let snap = source.order.u32(block.piece(source, "an interface")?);
        // Microseconds, unless an option says otherwise.
        let mut interface = Interface { link, snap, fcs: 0, resolution: 6, offset_s: 0 };
        while block.left >= 4 {
            let [code, length] = source.order.halves(block.piece(source, "an option")?);
            if code == OPTION_END {
                break;
            }
            option(source, block, &mut interface, code, length)?;
        }
        self.interfaces.push(interface);
        Ok(())
    }

    /// Returns the interface of a packet, or `None` if its link type is not read and the packet is skipped.
    fn interface<R: BufRead>(
        &mut self,
        source: &Source<R>,
        number: u32,
    ) -> Result<Option<&Interface>, ReadError> {
        let Some(interface) = self.interfaces.get(number as usize) else {
            return source.wrong(0, Problem::Interface { wanted: number, there: self.interfaces.len() });
        };
        if !(self.links.has)(interface.link) {
            self.skipped.count(interface.link, source.offset);
            return Ok(None);
        }
        Ok(Some(interface))
    }

    /// Reads a packet; returns `None` if it was skipped. Enhanced and obsolete packets differ in the first
    /// word: the interface, or interface and drop count.
    fn packet<R: BufRead>(
        &mut self,
        source: &mut Source<R>,
        block: &mut Block,
    ) -> Result<Option<Stamp>, ReadError> {
        let first: [u8; 4] = block.piece(source, "a packet's header")?;
        let number = match block.kind {
            OBSOLETE_PACKET => u32::from(source.order.halves(first)[0]),
            _ => source.order.u32(first),
        };
        let Some(interface) = self.interface(source, number)? else {
            // The length of the FCS is counted, if the frame includes one.
            if block.left >= 16 {
                let rest: [u8; 16] = block.piece(source, "a packet's header")?;
                let [.., length] = source.order.words::<4>(&rest);
                self.skipped.count_bytes(self.interfaces[number as usize].link, length);
            }
            return Ok(None);
        };
        let rest: [u8; 16] = block.piece(source, "a packet's header")?;
        let [high, low, captured, length] = source.order.words(&rest);
        block.data(source, captured)?;
        let time_ns = interface.time_ns(high, low);
        let stamp = Stamp { link: interface.link, time_ns, length, fcs: interface.fcs };
        self.last_ns = time_ns;
        Ok(Some(stamp))
    }

    fn simple_packet<R: BufRead>(
        &mut self,
        source: &mut Source<R>,
        block: &mut Block,
    ) -> Result<Option<Stamp>, ReadError> {
        let last_ns = self.last_ns;
        let Some(interface) = self.interface(source, 0)? else {
            if block.left >= 4 {
                let length = source.order.u32(block.piece(source, "a packet's header")?);
                self.skipped.count_bytes(self.interfaces[0].link, length);
            }
            return Ok(None);
        };
        let length = source.order.u32(block.piece(source, "a packet's header")?);
        let captured = if interface.snap == 0 { length } else { length.min(interface.snap) };
        block.data(source, captured)?;
        Ok(Some(Stamp { link: interface.link, time_ns: last_ns, length, fcs: interface.fcs }))
    }
}

/// Reads one option of an interface, padded to 4 bytes. Unknown options and those of a wrong length are
/// skipped.
fn option<R: BufRead>(
    source: &mut Source<R>,
    block: &mut Block,
    interface: &mut Interface,
    code: u16,
    length: u16,
) -> Result<(), ReadError> {
    match (code, length) {
        (OPTION_RESOLUTION, 1) => interface.resolution = block.piece::<4>(source, "an option")?[0],
        (OPTION_FCS, 1) => interface.fcs = u32::from(block.piece::<4>(source, "an option")?[0]),
        (OPTION_OFFSET, 8) => {
            let [first, second] = source.order.words(&block.piece::<8>(source, "an option")?);
            let (high, low) = match source.order {
                Order::Little => (second, first),
                Order::Big => (first, second),
            };
            interface.offset_s = (u64::from(high) << 32 | u64::from(low)) as i64;
        }
        _ => {
            let padded = u32::from(length).next_multiple_of(4);
            block.claim(source, "an option", padded)?;
            source.skip(padded, "an option")?;
        }
    }
    Ok(())
}
