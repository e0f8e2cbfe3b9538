//! Facts about the packets of a batch other than their bytes: one column for each kind, 64 rows.

use weir_packet::fragment::{self, DatagramId, FragmentPart};
use weir_packet::{
    Base, Batch, Bits, Depth, DropReason, FlowKey, Headers, KeySource, Layer, LevelLayers, Observed,
    SelectIpv4, TableHash, TunnelPorts, parse_into, select_hash,
};
use weir_program::owner::{self, Spread};
use weir_program::{KeyUse, PortId};
use weir_table::Seen;

/// The minimum number of packets for hashes and keys to be computed in parallel rather than one by one.
pub const LANES_MIN: u32 = 16;

/// Facts about the packets of one batch.
#[derive(Debug)]
pub struct Packets {
    pub headers: [Headers; 64],
    /// Layers that every packet has. Most batches are uniform, so individual packets need not be examined.
    all: LevelLayers,
    pub meta: [[u32; 4]; 64],
    pub color: [u8; 64],
    /// For packets that `limit_length` has just refused: their maximum length.
    pub limit: [u16; 64],
    pub input: PortId,
    pub outer: Keys,
    pub inner: Keys,
    /// Packets whose headers an action has moved; they are parsed again on entering the next pipe.
    pub stale: u64,
    /// Packets that an action may have written to since their keys were made.
    pub written: u64,
    /// Packets of the next batch whose headers were parsed to find their workers.
    parsed: u64,
    pub fragments: Fragments,
}

/// Facts about the fragments of a batch (pipes.md F11).
#[derive(Debug)]
pub struct Fragments {
    /// Packets whose outermost IP header is that of a fragment whose ports are known.
    pub ported: u64,
    /// The ports of these packets, in the form in which a TCP or UDP header starts with them; a first
    /// fragment's header has the same.
    pub ports: [[u8; 4]; 64],
    /// Fragments of the next batch whose ports were set in advance.
    learnt: u64,
    /// Packets that arrived as fragments of TCP or UDP, with ports that are known.
    followed: u64,
    /// Fragments of TCP or UDP whose ports were not set, among those whose headers were parsed.
    untold: u64,
}

/// Flow keys of one level, their hashes, and the packets that have them.
#[derive(Debug)]
pub struct Keys {
    /// For usual packets ([`FlowKey::ipv4`]), only filled in where flows are looked up.
    pub key: [FlowKey; 64],
    pub table: [u64; 64],
    /// Filled in where the hashes of all packets are used, and for packets without a key; see
    /// [`Keys::select`].
    pub select: [u64; 64],
    pub known: u64,
    /// The packets with a key that are usual ([`FlowKey::ipv4`]).
    pub usual: u64,
    /// The packets that are ICMP errors about the flow that the key identifies.
    pub errors: u64,
    /// The connection states in the TCP headers that belong to the keys, if these are used.
    pub seen: [Seen; 64],
    /// The packets that open a TCP connection, and those that close or reset one, if this is needed.
    pub opens: u64,
    pub closes: u64,
    /// Addresses and last words of the keys of usual packets ([`FlowKey::ipv4`]), for select hashes.
    ipv4: [[u64; 64]; 2],
    pub uses: KeyUse,
    pub source: KeySource,
}

/// The settings that are needed to compute the facts.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    pub depth: Depth,
    pub tunnels: TunnelPorts,
    pub seed: u64,
    /// The select hash, seeded.
    pub select: SelectIpv4,
    pub hash: TableHash,
    pub uses_meta: bool,
    /// Whether fragments have the ports of their datagram.
    pub follows: bool,
}

impl Keys {
    fn new(source: KeySource, uses: KeyUse) -> Keys {
        Keys {
            key: [FlowKey::default(); 64],
            table: [0; 64],
            select: [0; 64],
            known: 0,
            usual: 0,
            errors: 0,
            seen: [Seen::NO_TCP; 64],
            opens: 0,
            closes: 0,
            ipv4: [[0; 64]; 2],
            uses,
            source,
        }
    }

    /// Computes keys and hashes of `list` from the current bytes. `ahead` is called with each table hash as
    /// it is computed.
    #[inline]
    fn make(
        &mut self,
        batch: &Batch,
        (headers, fragments): (&[Headers; 64], &Fragments),
        list: u64,
        reading: &Reading,
        ahead: impl Fn(KeySource, u64),
    ) {
        let KeyUse { table, select, select_some, select_unhashed, flags, sums } = self.uses;
        // Values that only frames without a NIC hash need are not computed for the others.
        let list = match (table || select || select_some || sums, select_unhashed) {
            (true, _) => list,
            (false, true) => unhashed(batch, list),
            (false, false) => return,
        };
        // Short loops keep their operands in registers, and let packets overlap in the pipeline.
        let (mut usual, mut known, mut errors) = (0, 0, 0);
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
                errors |= u64::from(self.source.level(headers).layers.has(Layer::IcmpError)) << slot;
                self.key[slot] = key;
            }
        }
        // A fragment has no tunnel, so both keys are those of its outer headers.
        for slot in Bits(known & fragments.ported) {
            self.key[slot].set_ports(fragments.ports[slot]);
        }
        self.known = self.known & !list | usual | known;
        self.usual = self.usual & !list | usual;
        self.errors = self.errors & !list | errors;
        if flags {
            self.look_at_flags(batch, headers, usual | known);
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
        }
        if select || select_some || select_unhashed {
            self.select_unkeyed(batch, headers, list & !usual & !known, reading.seed);
        }
    }

    /// The select hashes of the packets of `list`, which have no flow key.
    #[inline]
    fn select_unkeyed(&mut self, batch: &Batch, headers: &[Headers; 64], list: u64, seed: u64) {
        for slot in Bits(list) {
            let words = ethernet_words(batch.frame(slot).bytes(), &headers[slot]);
            self.select[slot] = select_hash(seed, &words);
        }
    }

    /// Reads the flags in the TCP headers of the packets of `list`.
    #[inline]
    fn look_at_flags(&mut self, batch: &Batch, headers: &[Headers; 64], list: u64) {
        let (mut opens, mut closes) = (0, 0);
        for slot in Bits(list) {
            let seen = seen(batch.frame(slot).bytes(), &headers[slot], self.source);
            opens |= u64::from(seen.opens()) << slot;
            closes |= u64::from(seen.closes()) << slot;
            self.seen[slot] = seen;
        }
        self.opens = self.opens & !list | opens;
        self.closes = self.closes & !list | closes;
    }

    /// The two words of the key of a usual packet.
    #[inline(always)]
    #[must_use]
    pub fn words(&self, slot: usize) -> [u64; 2] {
        [self.ipv4[0][slot % 64], self.ipv4[1][slot % 64]]
    }

    /// The select hash of a packet, as of when its key was computed.
    #[inline]
    #[must_use]
    pub fn select(&self, slot: usize, reading: &Reading) -> u64 {
        if self.uses.select {
            self.select[slot % 64]
        } else if self.usual >> slot & 1 == 1 {
            let [addresses, last] = self.words(slot);
            reading.select.hash(addresses, last)
        } else if self.known >> slot & 1 == 1 {
            select_hash(reading.seed, &self.key[slot % 64].0)
        } else {
            self.select[slot % 64]
        }
    }

    /// The flow key of a packet, if it has one; computed where select hashes are, too.
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
        // Hashes of this batch's other packets must be preserved.
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

/// Bytes that the length in an IPv6 header does not include.
const IPV6_HEADER: usize = 40;

/// What the TCP header that belongs to a packet's key says.
fn seen(bytes: &[u8], headers: &Headers, source: KeySource) -> Seen {
    let level = source.level(headers);
    let at = level.at(Base::L4);
    let Some(tcp) = bytes.get(at..at + 14).filter(|_| level.layers.has(Layer::Tcp)) else {
        return Seen::NO_TCP;
    };
    let ip = level.at(Base::L3);
    let (length_at, before) = if level.layers.has(Layer::Ipv4) { (ip + 2, 0) } else { (ip + 4, IPV6_HEADER) };
    let length =
        bytes.get(length_at..length_at + 2).map_or(0, |length| u16::from_be_bytes([length[0], length[1]]));
    let end = ip + before + usize::from(length);
    Seen::segment(tcp[13], tcp[4], end > at + usize::from(tcp[12] >> 4) * 4)
}

/// The select input of a packet without IP: both MAC addresses and the EtherType.
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
            limit: [0; 64],
            input: PortId(0),
            outer: Keys::new(KeySource::Outer, outer),
            inner: Keys::new(KeySource::Inner, inner),
            stale: 0,
            written: 0,
            parsed: 0,
            fragments: Fragments { ported: 0, ports: [[0; 4]; 64], learnt: 0, followed: 0, untold: 0 },
        }
    }

    /// Sets the ports of the datagram for the frame in a slot of the next batch, which is a fragment of it.
    pub fn set_datagram_ports(&mut self, slot: usize, ports: [u8; 4]) {
        self.fragments.learnt |= 1 << slot;
        self.fragments.ports[slot & 63] = ports;
    }

    /// The ports of a fragment of the next batch, if they were set.
    #[must_use]
    pub fn told_ports(&self, slot: usize) -> Option<[u8; 4]> {
        (self.fragments.learnt >> slot & 1 == 1).then(|| self.fragments.ports[slot & 63])
    }

    /// The fragments of TCP or UDP in `list` whose ports were not set. Their headers must have been parsed.
    #[must_use]
    pub fn untold(&self, list: u64) -> u64 {
        list & self.fragments.untold & !self.fragments.learnt
    }

    /// Calls `found` with the slot and the worker of each of these fragments whose ports a worker other than
    /// `own` learns. Returns their mask.
    pub fn untold_of_others(
        &self,
        batch: &Batch,
        untold: u64,
        own: usize,
        spread: Spread<'_>,
        mut found: impl FnMut(usize, usize),
    ) -> u64 {
        let mut others = 0;
        for slot in Bits(untold) {
            let worker = owner::of_fragment(batch.frame(slot).bytes(), &self.headers[slot], spread);
            if let Some(worker) = worker.filter(|worker| *worker != own) {
                found(slot, worker);
                others |= 1 << slot;
            }
        }
        others
    }

    /// The ports of a fragment whose headers were parsed, if known.
    #[must_use]
    pub fn ports_of(&self, slot: usize) -> Option<[u8; 4]> {
        let known = (self.fragments.learnt | self.fragments.ported) >> slot & 1 == 1;
        known.then(|| self.fragments.ports[slot & 63])
    }

    /// Forgets the ports that were set for the next batch, which will not be read.
    pub fn forget(&mut self) {
        (self.parsed, self.fragments.learnt) = (0, 0);
    }

    /// Whether the outermost IP header of a packet is that of a fragment whose ports are known.
    #[inline(always)]
    #[must_use]
    pub fn is_ported(&self, slot: usize) -> bool {
        self.fragments.ported >> slot & 1 == 1
    }

    /// Identifies the datagram and the part of it that a fragment carries. Its headers must have been parsed.
    #[must_use]
    pub fn piece(&self, batch: &Batch, slot: usize) -> Option<(DatagramId, FragmentPart)> {
        let (bytes, level) = (batch.frame(slot).bytes(), self.headers[slot].outer());
        Some((fragment::datagram(bytes, level)?, fragment::part(bytes, level).ok()?))
    }

    /// Reads a batch that has just arrived. Malformed frames are reported to `malformed`; the mask of the
    /// others is returned. `ahead` gets the hashes with which flow tables are read, as they are computed.
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
            self.start();
        }
        let good = parsed | self.parse(batch, list & !parsed, reading, true, &mut malformed);
        self.fragments.learnt = 0;
        let found = (&self.headers, &self.fragments);
        self.outer.make(batch, found, good, reading, &ahead);
        self.inner.make(batch, found, good, reading, &ahead);
        good
    }

    fn start(&mut self) {
        self.all = LevelLayers::ALL;
        (self.fragments.ported, self.fragments.followed, self.fragments.untold) = (0, 0, 0);
    }

    /// Parses the headers of a batch that has just arrived; a following [`Packets::read`] of some of its
    /// packets need not parse them again. Returns the packets that are not malformed, including fragments
    /// whose ports are not set yet.
    #[inline]
    pub fn find(&mut self, batch: &Batch, list: u64, reading: &Reading) -> u64 {
        self.start();
        let mut without_ports = 0;
        self.parsed = self.parse(batch, list, reading, true, |slot, reason| {
            without_ports |= u64::from(reason == DropReason::FirstFragmentMissing) << slot;
        });
        self.parsed | without_ports
    }

    /// Parses headers for pipes that are evaluated before the batch is [read](Packets::read). No keys are
    /// computed.
    pub fn open(&mut self, batch: &Batch, list: u64, reading: &Reading) -> u64 {
        // The keys are those of another batch.
        (self.stale, self.written) = (0, u64::MAX);
        self.meta = [[0; 4]; 64];
        self.color = [0; 64];
        self.find(batch, list, reading)
    }

    /// Forgets the headers of packets that are handed over instead of being read.
    pub fn forget_headers(&mut self, others: u64) {
        self.parsed &= !others;
    }

    /// Parses again the packets of `list` whose headers have moved.
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
        self.fragments.ported &= !stale;
        let good = self.parse(batch, stale, reading, false, malformed);
        list & !stale | good
    }

    /// Computes flow keys and hashes again.
    #[inline]
    pub fn make_keys(&mut self, batch: &Batch, list: u64, reading: &Reading) {
        self.written &= !list;
        let found = (&self.headers, &self.fragments);
        self.outer.make(batch, found, list, reading, |_, _| {});
        self.inner.make(batch, found, list, reading, |_, _| {});
    }

    /// The words of the outer flow keys, by packet ([`FlowKey::ipv4`]), if all of `list` have them and they
    /// match the current bytes.
    #[inline]
    #[must_use]
    pub fn words_of(&self, list: u64) -> Option<&[[u64; 64]; 2]> {
        let KeyUse { table, select, select_some, sums, .. } = self.outer.uses;
        let hold = list & (self.written | !self.outer.usual) == 0;
        (hold && (table || select || select_some || sums)).then_some(&self.outer.ipv4)
    }

    /// The contribution of a packet with a flow key to the record of its flow.
    #[inline(always)]
    #[must_use]
    pub fn observed(&self, batch: &Batch, slot: usize, source: KeySource) -> Observed {
        let observed = Observed::of(batch.frame(slot).bytes(), &self.headers[slot % 64], source);
        Observed { input: self.input.0, ..observed }
    }

    /// The headers of a packet, as last parsed.
    #[inline]
    #[must_use]
    pub fn headers(&self, slot: usize) -> &Headers {
        &self.headers[slot % 64]
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

    /// Parses headers. `arrives` is false where an action has moved them.
    #[inline]
    fn parse(
        &mut self,
        batch: &Batch,
        list: u64,
        reading: &Reading,
        arrives: bool,
        mut malformed: impl FnMut(usize, DropReason),
    ) -> u64 {
        let (mut good, mut all, mut fragments) = (list, self.all, 0);
        for slot in Bits(list) {
            let headers = &mut self.headers[slot];
            match parse_into(batch.frame(slot).bytes(), reading.depth, &reading.tunnels, headers) {
                Ok(()) => {
                    all.keep(headers);
                    fragments |= u64::from(headers.outer().layers.has(Layer::Fragment)) << slot;
                }
                Err(reason) => {
                    good &= !(1 << slot);
                    malformed(slot, reason);
                }
            }
        }
        self.all = all;
        if reading.follows && fragments != 0 {
            good &= !self.follow(batch, fragments, arrives, malformed);
        }
        good
    }

    /// Gives fragments their ports. Returns those that have none or are malformed.
    #[cold]
    fn follow(
        &mut self,
        batch: &Batch,
        list: u64,
        arrives: bool,
        mut malformed: impl FnMut(usize, DropReason),
    ) -> u64 {
        let mut bad = 0;
        for slot in Bits(list) {
            let (bytes, level) = (batch.frame(slot).bytes(), self.headers[slot].outer());
            if arrives && fragment::is_of_ports(level) {
                self.fragments.untold |= 1 << slot;
                let learnt = self.fragments.learnt >> slot & 1 == 1;
                let found = match fragment::part(bytes, level) {
                    Ok(FragmentPart::First(ports)) => {
                        self.fragments.ports[slot] = ports;
                        Ok(())
                    }
                    Ok(FragmentPart::Later) if !learnt => Err(DropReason::FirstFragmentMissing),
                    found => found.map(|_| ()),
                };
                if let Err(reason) = found {
                    bad |= 1 << slot;
                    malformed(slot, reason);
                    continue;
                }
                self.fragments.followed |= 1 << slot;
            }
            if self.fragments.followed >> slot & 1 == 1 {
                self.fragments.ported |= 1 << slot;
                self.headers[slot].levels[0].layers.0 |= Layer::Ports as u32;
            }
        }
        bad
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
    use weir_packet::{Pools, craft};

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
            follows: false,
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
