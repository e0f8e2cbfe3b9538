//! Facts about the packets of a batch other than their bytes: one column for each kind, 64 rows.

use crate::program::{KeyUse, PortId};
use packet::{
    Base, Batch, Bits, Depth, DropReason, FlowKey, Headers, KeySource, Layer, LevelLayers, SelectIpv4,
    TableHash, TunnelPorts, parse_into, select_hash,
};
use table::Seen;

/// Below this number packets are hashed, and keys gathered, one by one.
pub const LANES_MIN: u32 = 16;

/// Facts about the packets of one batch.
#[derive(Debug)]
pub struct Packets {
    pub headers: [Headers; 64],
    /// Layers that every packet has. Most batches are uniform, so single packets need not be examined.
    all: LevelLayers,
    pub meta: [[u32; 4]; 64],
    pub color: [u8; 64],
    pub input: PortId,
    pub outer: Keys,
    pub inner: Keys,
    /// Packets whose headers an action has moved; they are parsed again on entering the next pipe.
    pub stale: u64,
    /// Packets that an action may have written to since their keys were made.
    pub written: u64,
    /// Packets of the next batch whose headers were found to tell their workers.
    parsed: u64,
}

/// Flow keys of one level, their hashes, and the packets that have them.
#[derive(Debug)]
pub struct Keys {
    /// For usual packets ([`FlowKey::ipv4`]) only filled in where flows are looked up.
    pub key: [FlowKey; 64],
    pub table: [u64; 64],
    pub select: [u64; 64],
    pub known: u64,
    /// Those of them that are usual ([`FlowKey::ipv4`]).
    pub usual: u64,
    /// What the TCP headers behind the keys say, if that is used.
    pub seen: [Seen; 64],
    /// Addresses and last words of the keys of usual packets ([`FlowKey::ipv4`]), for select hashes.
    ipv4: [[u64; 64]; 2],
    pub uses: KeyUse,
    pub source: KeySource,
}

/// What is needed to compute the facts.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    pub depth: Depth,
    pub tunnels: TunnelPorts,
    pub seed: u64,
    /// The select hash, seeded.
    pub select: SelectIpv4,
    pub hash: TableHash,
    pub uses_meta: bool,
}

impl Keys {
    fn new(source: KeySource, uses: KeyUse) -> Keys {
        Keys {
            key: [FlowKey::default(); 64],
            table: [0; 64],
            select: [0; 64],
            known: 0,
            usual: 0,
            seen: [Seen::NO_TCP; 64],
            ipv4: [[0; 64]; 2],
            uses,
            source,
        }
    }

    /// Makes keys and hashes of `list` from the current bytes. `ahead` is called with each table hash as it
    /// is made.
    #[inline]
    fn make(
        &mut self,
        batch: &Batch,
        headers: &[Headers; 64],
        list: u64,
        reading: &Reading,
        ahead: impl Fn(KeySource, u64),
    ) {
        let KeyUse { table, select, select_unhashed, flags, sums } = self.uses;
        // What is needed only for frames without a NIC hash is not made for the others.
        let list = match (table || select || sums, select_unhashed) {
            (true, _) => list,
            (false, true) => unhashed(batch, list),
            (false, false) => return,
        };
        // Short loops keep their operands in registers, and let packets overlap in the pipeline.
        let (mut usual, mut known) = (0, 0);
        for slot in Bits(list) {
            let (bytes, headers) = (batch.frame(slot).bytes(), &headers[slot]);
            if let Some((addresses, last)) = FlowKey::ipv4(bytes, headers, self.source) {
                usual |= 1 << slot;
                self.ipv4[0][slot] = addresses;
                self.ipv4[1][slot] = last;
                if table {
                    self.key[slot].set_ipv4(addresses, last);
                }
            } else if let Some(key) = FlowKey::of(bytes, headers, self.source) {
                known |= 1 << slot;
                self.key[slot] = key;
            }
        }
        self.known = self.known & !list | usual | known;
        self.usual = self.usual & !list | usual;
        if flags {
            for slot in Bits(usual | known) {
                self.seen[slot] = seen(batch.frame(slot).bytes(), &headers[slot], self.source);
            }
        }
        if table {
            for slot in Bits(usual | known) {
                self.table[slot] = reading.hash.hash(&self.key[slot].0);
                ahead(self.source, self.table[slot]);
            }
        }
        if select || select_unhashed {
            self.select_ipv4(usual, reading);
            for slot in Bits(known) {
                self.select[slot] = select_hash(reading.seed, &self.key[slot].0);
            }
            for slot in Bits(list & !usual & !known) {
                let words = ethernet_words(batch.frame(slot).bytes(), &headers[slot]);
                self.select[slot] = select_hash(reading.seed, &words);
            }
        }
    }

    /// The two words of the key of a usual packet.
    #[inline(always)]
    #[must_use]
    pub fn words(&self, slot: usize) -> [u64; 2] {
        [self.ipv4[0][slot % 64], self.ipv4[1][slot % 64]]
    }

    /// The flow key of a packet, if it has one; made where select hashes are, too.
    #[inline]
    #[must_use]
    pub fn flow(&self, slot: usize) -> Option<FlowKey> {
        if self.usual >> slot & 1 == 1 {
            let mut key = FlowKey::default();
            let [addresses, last] = self.words(slot);
            key.set_ipv4(addresses, last);
            return Some(key);
        }
        (self.known >> slot & 1 == 1).then(|| self.key[slot % 64])
    }

    /// The select hashes of the packets of `usual`, whose words are in `ipv4`.
    #[inline]
    fn select_ipv4(&mut self, usual: u64, reading: &Reading) {
        let [addresses, last] = &self.ipv4;
        if usual == u64::MAX {
            return reading.select.hash_all(addresses, last, &mut self.select);
        }
        if usual.count_ones() < LANES_MIN {
            for slot in Bits(usual) {
                self.select[slot] = reading.select.hash(addresses[slot], last[slot]);
            }
            return;
        }
        // Hashes of this batch's other packets must stay as they are.
        let mut hashes = [0; 64];
        reading.select.hash_all(addresses, last, &mut hashes);
        for slot in Bits(usual) {
            self.select[slot] = hashes[slot];
        }
    }
}

/// The frames of `list` that arrived without a NIC hash.
fn unhashed(batch: &Batch, list: u64) -> u64 {
    Bits(list).fold(0, |unhashed, slot| unhashed | u64::from(batch.frame(slot).hash() == 0) << slot)
}

/// What the TCP header says that belongs to a packet's key.
fn seen(bytes: &[u8], headers: &Headers, source: KeySource) -> Seen {
    let inner = headers.inner();
    let is_inside = |layer| inner.layers.has(layer);
    let level = match source {
        KeySource::Inner if is_inside(Layer::Ipv4) || is_inside(Layer::Ipv6) => inner,
        _ => headers.outer(),
    };
    let flags = level.layers.has(Layer::Tcp).then(|| bytes.get(level.at(Base::L4) + 13)).flatten();
    flags.map_or(Seen::NO_TCP, |flags| Seen::flags(*flags))
}

/// What selects for a packet without IP: both MAC addresses and the EtherType.
fn ethernet_words(bytes: &[u8], headers: &Headers) -> [u64; 3] {
    let mac = |at: usize| {
        let mut word = [0; 8];
        if let Some(mac) = bytes.get(at..at + 6) {
            word[2..].copy_from_slice(mac);
        }
        u64::from_be_bytes(word)
    };
    [mac(0), mac(6), u64::from(headers.outer().ether_type)]
}

impl Packets {
    /// Creates the columns for a program with this use of flow keys.
    #[must_use]
    pub fn new(outer: KeyUse, inner: KeyUse) -> Packets {
        Packets {
            headers: [Headers::default(); 64],
            all: LevelLayers::default(),
            meta: [[0; 4]; 64],
            color: [0; 64],
            input: PortId(0),
            outer: Keys::new(KeySource::Outer, outer),
            inner: Keys::new(KeySource::Inner, inner),
            stale: 0,
            written: 0,
            parsed: 0,
        }
    }

    /// Reads a batch that has just arrived. Malformed frames are told to `malformed`; the mask of the others
    /// returns. `ahead` gets the hashes that flow tables are read with as they are made.
    #[inline]
    pub fn read(
        &mut self,
        batch: &Batch,
        list: u64,
        reading: &Reading,
        ahead: impl Fn(KeySource, u64),
        mut malformed: impl FnMut(usize, DropReason),
    ) -> u64 {
        (self.stale, self.written) = (0, 0);
        let parsed = list & std::mem::take(&mut self.parsed);
        if reading.uses_meta {
            self.meta = [[0; 4]; 64];
            self.color = [0; 64];
        }
        if parsed == 0 {
            self.all = LevelLayers::ALL;
        }
        let good = parsed | self.parse(batch, list & !parsed, reading, &mut malformed);
        self.outer.make(batch, &self.headers, good, reading, &ahead);
        self.inner.make(batch, &self.headers, good, reading, &ahead);
        good
    }

    /// Finds the headers of a batch that has just arrived, and calls `stays` for each packet that is not
    /// malformed. Those that stay need not be parsed again by the [`Packets::read`] that follows. Returns the
    /// others.
    #[inline]
    pub fn sort(
        &mut self,
        batch: &Batch,
        list: u64,
        reading: &Reading,
        mut stays: impl FnMut(usize, &Headers) -> bool,
    ) -> u64 {
        self.all = LevelLayers::ALL;
        let good = self.parse(batch, list, reading, |_, _| {});
        let others = Bits(good).filter(|&slot| !stays(slot, &self.headers[slot]));
        let others = others.fold(0, |others, slot| others | 1 << slot);
        self.stay(good & !others);
        others
    }

    /// Finds the headers of a batch that has just arrived, for pipes that are looked through before it is
    /// [read](Packets::read). No keys are made. Returns the packets that are not malformed.
    pub fn open(&mut self, batch: &Batch, list: u64, reading: &Reading) -> u64 {
        // Keys are those of another batch.
        (self.stale, self.written) = (0, u64::MAX);
        self.meta = [[0; 4]; 64];
        self.color = [0; 64];
        self.all = LevelLayers::ALL;
        self.parse(batch, list, reading, |_, _| {})
    }

    /// Takes note of packets whose headers are found, and which are read next.
    pub fn stay(&mut self, list: u64) {
        self.parsed = list;
    }

    /// Parses again those of `list` whose headers have moved.
    #[inline]
    pub fn refresh(
        &mut self,
        batch: &Batch,
        list: u64,
        reading: &Reading,
        malformed: impl FnMut(usize, DropReason),
    ) -> u64 {
        let stale = list & self.stale;
        if stale == 0 {
            return list;
        }
        self.stale &= !stale;
        let good = self.parse(batch, stale, reading, malformed);
        list & !stale | good
    }

    /// Makes flow keys and hashes again.
    #[inline]
    pub fn make_keys(&mut self, batch: &Batch, list: u64, reading: &Reading) {
        self.written &= !list;
        self.outer.make(batch, &self.headers, list, reading, |_, _| {});
        self.inner.make(batch, &self.headers, list, reading, |_, _| {});
    }

    /// The words of the outer flow keys, by packet ([`FlowKey::ipv4`]), if they are there for all of `list`
    /// and say what its bytes say now.
    #[inline]
    #[must_use]
    pub fn words_of(&self, list: u64) -> Option<&[[u64; 64]; 2]> {
        let KeyUse { table, select, sums, .. } = self.outer.uses;
        let hold = list & (self.written | !self.outer.usual) == 0;
        (hold && (table || select || sums)).then_some(&self.outer.ipv4)
    }

    /// The keys of one level.
    #[inline(always)]
    #[must_use]
    pub fn keys(&self, source: KeySource) -> &Keys {
        match source {
            KeySource::Outer => &self.outer,
            KeySource::Inner => &self.inner,
        }
    }

    #[inline]
    fn parse(
        &mut self,
        batch: &Batch,
        list: u64,
        reading: &Reading,
        mut malformed: impl FnMut(usize, DropReason),
    ) -> u64 {
        let mut good = list;
        let mut all = self.all;
        for slot in Bits(list) {
            let headers = &mut self.headers[slot];
            match parse_into(batch.frame(slot).bytes(), reading.depth, &reading.tunnels, headers) {
                Ok(()) => all.keep(headers),
                Err(reason) => {
                    good &= !(1 << slot);
                    malformed(slot, reason);
                }
            }
        }
        self.all = all;
        good
    }

    /// The packets of `list` that have every layer of `needs`.
    #[inline]
    #[must_use]
    pub fn having(&self, needs: LevelLayers, list: u64) -> u64 {
        if self.all.has_all(needs) {
            return list;
        }
        Bits(list).fold(0, |having, slot| having | u64::from(self.headers[slot].has_all(needs)) << slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::{Pools, craft};

    #[test]
    fn a_frame_that_brought_a_hash_is_not_hashed_again_unless_another_pipe_wants_it() {
        let (mut pools, mut batch) = (Pools::region(2), Batch::new());
        for hash in [0, 0x8000_0001] {
            let mut frame = pools.first().take().unwrap();
            frame.fill(&craft::frame("src=10.0.0.1 dst=10.0.0.2 proto=udp sport=7 dport=80")).unwrap();
            frame.set_hash(hash);
            batch.push(frame).unwrap();
        }
        let reading = Reading {
            depth: Depth::L4,
            tunnels: TunnelPorts::default(),
            seed: 7,
            select: SelectIpv4::new(7),
            hash: TableHash::new([1, 2]),
            uses_meta: false,
        };
        let made = |uses| {
            let mut packets = Packets::new(uses, KeyUse::default());
            packets.read(&batch, 0b11, &reading, |_, _| {}, |_, _| {});
            let keys = packets.keys(KeySource::Outer);
            (keys.known, [keys.select[0] != 0, keys.select[1] != 0])
        };
        let none = KeyUse::default();
        assert_eq!(made(none), (0, [false, false]));
        assert_eq!(made(KeyUse { select_unhashed: true, ..none }), (0b01, [true, false]));
        assert_eq!(made(KeyUse { select_unhashed: true, select: true, ..none }), (0b11, [true, true]));
        assert_eq!(made(KeyUse { select_unhashed: true, table: true, ..none }), (0b11, [true, true]));
        (0..2).for_each(|slot| pools.give(batch.take(slot)));
    }
}
