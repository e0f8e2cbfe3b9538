//! Gathers fields into keys. A field becomes a load, a shift and a mask, and keys are filled load by load,
//! for all packets at once, so that the kind of a field is examined only once per batch.

use crate::batch::packets::{LANES_MIN, Packets};
use weir_packet::{Base, Batch, Bits, Field, FieldKind, Layer, LevelId, LevelLayers, widest};

/// Words of the widest key: four IPv6 addresses.
pub const KEY_WORDS_MAX: usize = 8;

/// Where a load reads from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LoadSource {
    Frame(LevelId, Base),
    Found(Field),
}

/// One load: moves up to 64 bits of a field into their place in the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldLoad {
    source: LoadSource,
    offset: i8,
    right: u8,
    mask: u64,
    left: u8,
    word: u8,
    /// Whether this is the first load of its word, which overwrites the word; later loads are ORed in.
    first: bool,
    /// Where the same bits are in the words of usual flow keys: which word, and the number of bits below
    /// them.
    known: Option<(u8, u8)>,
}

/// Where the words of usual flow keys ([`weir_packet::FlowKey::ipv4`]) contain a field.
fn known(field: Field) -> Option<(u8, u8)> {
    match field {
        Field::Ipv4Src => Some((0, 32)),
        Field::Ipv4Dst => Some((0, 0)),
        Field::L4Sport | Field::TcpSport | Field::UdpSport => Some((1, 48)),
        Field::L4Dport | Field::TcpDport | Field::UdpDport => Some((1, 32)),
        Field::IpProtocol => Some((1, 24)),
        _ => None,
    }
}

/// The loads of a key, and the layers a packet must have for all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyPlan {
    pub loads: Vec<FieldLoad>,
    pub needs: LevelLayers,
    pub words: usize,
    /// The place of each field: word, and left shift of its low 64 bits. A 128-bit field also takes the
    /// preceding word.
    pub places: Vec<KeyField>,
}

/// The place of a field in the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyField {
    pub word: usize,
    pub left: u32,
    pub bits: u32,
}

impl KeyPlan {
    /// Packs fields under their masks, widest first, so that none crosses a word boundary.
    #[must_use]
    pub fn new(fields: &[(Field, u128)]) -> KeyPlan {
        let bits: Vec<u32> = fields.iter().map(|(field, _)| u32::from(field.spec().bits)).collect();
        let (places, words) = pack(&bits);
        let mut plan = KeyPlan { words, ..KeyPlan::default() };
        for (&(field, mask), &place) in fields.iter().zip(&places) {
            plan.needs.join(field.needs());
            plan.push(field, mask, place);
        }
        KeyPlan { places, ..plan }
    }

    /// Gives each field a word (two if over 64 bits) in the given order, as the specified hash requires.
    #[must_use]
    pub fn unpacked(fields: &[(Field, u128)]) -> KeyPlan {
        let mut plan = KeyPlan::default();
        for &(field, mask) in fields {
            let bits = u32::from(field.spec().bits);
            plan.needs.join(field.needs());
            plan.words += bits.div_ceil(64) as usize;
            let place = KeyField { word: plan.words - 1, left: 0, bits };
            plan.places.push(place);
            plan.push(field, mask, place);
        }
        plan
    }

    /// Adds the loads of a field under a mask.
    pub fn push(&mut self, field: Field, mask: u128, place: KeyField) {
        let spec = field.spec();
        let mask = mask & field.max();
        let source = match spec.source {
            weir_packet::Source::Frame(base) => LoadSource::Frame(field.level, base),
            weir_packet::Source::Found | weir_packet::Source::Packet => LoadSource::Found(field),
        };
        if spec.bits == 128 {
            let (high, low) = ((mask >> 64) as u64, mask as u64);
            self.load(FieldLoad { source, offset: spec.offset, mask: high, ..FieldLoad::at(place.word - 1) });
            self.load(FieldLoad { source, offset: spec.offset + 8, mask: low, ..FieldLoad::at(place.word) });
            return;
        }
        let right = match source {
            LoadSource::Frame(..) => 64 - 8 * spec.bytes + spec.shift,
            LoadSource::Found(_) => 0,
        };
        let (mask, left, known) = (mask as u64, place.left as u8, known(field));
        self.load(FieldLoad {
            source,
            offset: spec.offset,
            right,
            mask,
            left,
            known,
            ..FieldLoad::at(place.word)
        });
    }

    fn load(&mut self, load: FieldLoad) {
        let first = self.loads.iter().all(|other| other.word != load.word);
        self.loads.push(FieldLoad { first, ..load });
    }

    /// Writes the value of the field numbered `at` into a key.
    pub fn put(&self, at: usize, value: u128, key: &mut [u64]) {
        self.places[at].put(value, key);
    }

    /// Reads the value of the field numbered `at` from a key.
    #[must_use]
    pub fn get(&self, at: usize, key: &[u64]) -> u128 {
        let KeyField { word, left, bits } = self.places[at];
        match bits {
            128 => u128::from(key[word - 1]) << 64 | u128::from(key[word]),
            64.. => u128::from(key[word]),
            _ => u128::from(key[word] >> left & ((1 << bits) - 1)),
        }
    }

    /// The packets of `list` that have every layer the key needs.
    #[inline]
    #[must_use]
    pub fn able(&self, packets: &Packets, list: u64) -> u64 {
        packets.having(self.needs, list)
    }

    /// Writes the keys of `list`, whose packets must all be `able`. Words without a field are left unchanged.
    #[inline]
    pub fn gather<const W: usize>(
        &self,
        batch: &Batch,
        packets: &Packets,
        list: u64,
        keys: &mut [[u64; W]; 64],
    ) {
        if let Some(known) = packets.words_of(list).filter(|_| list.count_ones() >= LANES_MIN) {
            return self.gather_lanes(batch, packets, list, known, keys);
        }
        for load in &self.loads {
            if load.first {
                load.column(batch, packets, list, keys, |_, value| value);
            } else {
                load.column(batch, packets, list, keys, |word, value| word | value);
            }
        }
    }

    /// The same for usual packets whose flow keys have been computed: fields in those keys are taken from
    /// there, for 64 packets side by side.
    #[inline(always)]
    fn gather_lanes<const W: usize>(
        &self,
        batch: &Batch,
        packets: &Packets,
        list: u64,
        known: &[[u64; 64]; 2],
        keys: &mut [[u64; W]; 64],
    ) {
        for word in 0..self.words.min(W) {
            let mut column = [0; 64];
            for load in self.loads.iter().filter(|load| usize::from(load.word) == word) {
                load.lanes(batch, packets, list, known, &mut column);
            }
            for (key, value) in keys.iter_mut().zip(column) {
                key[word] = value;
            }
        }
    }

    /// ORs the fields into the keys of `list`, whose bits must be zero there.
    #[inline]
    pub fn add<const W: usize>(
        &self,
        batch: &Batch,
        packets: &Packets,
        list: u64,
        keys: &mut [[u64; W]; 64],
    ) {
        for load in &self.loads {
            load.column(batch, packets, list, keys, |word, value| word | value);
        }
    }
}

/// Places fields of these widths, widest first, so that none crosses a word boundary. Also returns the number
/// of words.
#[must_use]
pub fn pack(bits: &[u32]) -> (Vec<KeyField>, usize) {
    let mut places = vec![KeyField { word: 0, left: 0, bits: 0 }; bits.len()];
    let mut order: Vec<usize> = (0..bits.len()).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(bits[at]));
    let mut used = Vec::new();
    for at in order {
        places[at] = KeyField::take(bits[at], &mut used);
    }
    (places, used.len().max(1))
}

impl KeyField {
    /// Allocates bits in the first word with enough room.
    fn take(bits: u32, used: &mut Vec<u32>) -> KeyField {
        if bits == 128 {
            used.extend([64, 64]);
            return KeyField { word: used.len() - 1, left: 0, bits };
        }
        if let Some(word) = used.iter().position(|&taken| taken + bits <= 64) {
            let left = used[word];
            used[word] += bits;
            return KeyField { word, left, bits };
        }
        used.push(bits);
        KeyField { word: used.len() - 1, left: 0, bits }
    }

    /// Writes a value into this place.
    pub fn put(&self, value: u128, key: &mut [u64]) {
        if self.bits == 128 {
            key[self.word - 1] |= (value >> 64) as u64;
            key[self.word] |= value as u64;
        } else {
            key[self.word] |= (value as u64) << self.left;
        }
    }
}

impl FieldLoad {
    fn at(word: usize) -> FieldLoad {
        FieldLoad {
            source: LoadSource::Found(Field::EthType),
            offset: 0,
            right: 0,
            mask: 0,
            left: 0,
            word: word as u8,
            first: false,
            known: None,
        }
    }

    /// ORs the loaded values into a column. Slots that are not in the list contain garbage.
    #[inline]
    fn lanes(
        &self,
        batch: &Batch,
        packets: &Packets,
        list: u64,
        known: &[[u64; 64]; 2],
        column: &mut [u64; 64],
    ) {
        let (mask, left) = (self.mask, self.left);
        if let Some((from, right)) = self.known {
            let from = &known[usize::from(from) & 1];
            return widest(|| {
                for (value, word) in column.iter_mut().zip(from) {
                    *value |= ((word >> right) & mask) << left;
                }
            });
        }
        if self.source == LoadSource::Found(Field::InputPort) {
            let port = (u64::from(packets.input.0) & mask) << left;
            return column.iter_mut().for_each(|value| *value |= port);
        }
        for slot in Bits(list) {
            column[slot] |= self.one(batch, packets, slot);
        }
    }

    #[inline(always)]
    fn column<const W: usize>(
        &self,
        batch: &Batch,
        packets: &Packets,
        list: u64,
        keys: &mut [[u64; W]; 64],
        join: impl Fn(u64, u64) -> u64,
    ) {
        let word = usize::from(self.word) % W;
        match self.source {
            LoadSource::Frame(level, base) => {
                let ported = if self.is_port() { list & packets.fragments.ported } else { 0 };
                for slot in Bits(ported) {
                    let key = &mut keys[slot][word];
                    *key = join(*key, self.of_fragment(packets, slot));
                }
                let (level, base) = (level as usize & 1, base as usize & 3);
                for slot in Bits(list & !ported) {
                    let start =
                        i32::from(packets.headers[slot].levels[level].at[base]) + i32::from(self.offset);
                    let value = load_be64(batch.frame(slot).window(), start as usize);
                    let key = &mut keys[slot][word];
                    *key = join(*key, ((value >> self.right) & self.mask) << self.left);
                }
            }
            LoadSource::Found(field) => {
                for slot in Bits(list) {
                    let key = &mut keys[slot][word];
                    *key = join(*key, (found(field, packets, slot) & self.mask) << self.left);
                }
            }
        }
    }

    /// Whether this load may read the port of a fragment: ports are all that a fragment has after IP.
    #[inline(always)]
    fn is_port(&self) -> bool {
        self.source == LoadSource::Frame(LevelId::Outer, Base::L4)
    }

    /// The port of a fragment, shifted to its place in the word.
    #[cold]
    fn of_fragment(&self, packets: &Packets, slot: usize) -> u64 {
        let ports = &packets.fragments.ports[slot % 64];
        ((load_be64(ports, self.offset as usize) >> self.right) & self.mask) << self.left
    }

    /// The value of this load for one packet, shifted to its place in the word.
    #[inline(always)]
    fn one(&self, batch: &Batch, packets: &Packets, slot: usize) -> u64 {
        if self.is_port() && packets.fragments.ported >> slot & 1 == 1 {
            return self.of_fragment(packets, slot);
        }
        let value = match self.source {
            LoadSource::Frame(level, base) => {
                let at = packets.headers[slot].levels[level as usize & 1].at[base as usize & 3];
                let start = i32::from(at) + i32::from(self.offset);
                load_be64(batch.frame(slot).window(), start as usize) >> self.right
            }
            LoadSource::Found(field) => found(field, packets, slot),
        };
        (value & self.mask) << self.left
    }
}

/// Eight bytes in network order; bytes beyond the end of the chunk read as zero.
#[inline(always)]
#[must_use]
pub fn load_be64(window: &[u8], at: usize) -> u64 {
    match window.get(at..at.wrapping_add(8)) {
        Some(bytes) => u64::from_be_bytes(bytes.try_into().unwrap_or_default()),
        None => load_short(window, at),
    }
}

#[cold]
fn load_short(window: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    let rest = window.get(at..).unwrap_or_default();
    bytes[..rest.len().min(8)].copy_from_slice(&rest[..rest.len().min(8)]);
    u64::from_be_bytes(bytes)
}

/// The value of a field that comes from parsing or metadata.
#[inline(always)]
fn found(field: Field, packets: &Packets, slot: usize) -> u64 {
    let headers = &packets.headers[slot];
    let level = headers.level(field.level);
    match field.kind {
        FieldKind::EthType => u64::from(level.ether_type),
        FieldKind::IpVersion if level.layers.has(Layer::Ipv4) => 4,
        FieldKind::IpVersion if level.layers.has(Layer::Ipv6) => 6,
        FieldKind::IpProtocol => u64::from(level.protocol),
        FieldKind::IpFragment => u64::from(level.layers.has(Layer::Fragment)),
        FieldKind::TunnelId => u64::from(headers.tunnel_id),
        FieldKind::InputPort => u64::from(packets.input.0),
        FieldKind::MeterColor => u64::from(packets.color[slot]),
        _ => field.meta_word().map_or(0, |word| u64::from(packets.meta[slot][word])),
    }
}

/// One comparison with a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Guard {
    load: FieldLoad,
    want: u64,
}

/// All of a pipe's comparisons with constants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Guards {
    guards: Vec<Guard>,
    needs: LevelLayers,
}

impl Guards {
    /// Creates the guards for a list of `(field, value, mask)`.
    #[must_use]
    pub fn new(constants: &[(Field, u128, u128)]) -> Guards {
        let mut guards = Guards::default();
        for &(field, value, mask) in constants {
            let plan = KeyPlan::unpacked(&[(field, mask)]);
            let mut want = [0; 2];
            plan.put(0, value, &mut want);
            guards.needs.join(plan.needs);
            for load in plan.loads {
                guards.guards.push(Guard { load, want: want[usize::from(load.word)] });
            }
        }
        guards
    }

    /// The packets of `list` that pass all guards.
    #[inline]
    #[must_use]
    pub fn pass(&self, batch: &Batch, packets: &Packets, list: u64) -> u64 {
        let mut passed = packets.having(self.needs, list);
        for guard in &self.guards {
            for slot in Bits(passed) {
                passed &= !(u64::from(guard.load.one(batch, packets, slot) != guard.want) << slot);
            }
        }
        passed
    }
}

/// Reads one field of one packet as a number; `None` if the packet does not have this field.
#[inline]
#[must_use]
pub fn read(plan: &KeyPlan, batch: &Batch, packets: &Packets, slot: usize) -> Option<u128> {
    if !packets.headers[slot].has_all(plan.needs) {
        return None;
    }
    Some(plan.loads.iter().fold(0, |value, load| value << 64 | u128::from(load.one(batch, packets, slot))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::packets::Reading;
    use weir_packet::{Depth, Pools, SelectIpv4, TableHash, TunnelPorts, craft};
    use weir_program::KeyUse;

    #[test]
    fn keys_from_frames_and_from_the_words_of_flow_keys_are_equal() {
        let (mut pools, mut batch) = (Pools::region(64), Batch::new());
        for at in 0..64 {
            let mut frame = pools.first().take().unwrap();
            let what = format!("src=10.{at}.0.7 dst=10.0.1.{at} proto=udp sport={} dport=53", 4000 + at);
            frame.fill(&craft::frame(&what)).unwrap();
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
        let (port, mask) = (Field::InputPort, 0xff00_ffff);
        let masks = [(Field::Ipv4Src, mask), (Field::Ipv4Dst, u128::MAX), (Field::L4Dport, 0xfff0)];
        let others = [Field::EthDst, port, Field::L4Sport, Field::IpProtocol].map(|field| (field, u128::MAX));
        let plan = KeyPlan::new(&[&masks[..], &others[..]].concat());
        let gathered = |uses, list| {
            let (mut packets, mut keys) = (Packets::new(uses, KeyUse::default()), [[0; 3]; 64]);
            packets.read(&batch, u64::MAX, &reading, |_, _| {}, |_, _| {});
            packets.input = weir_program::PortId(5);
            plan.gather(&batch, &packets, list, &mut keys);
            (packets.words_of(list).is_some(), keys)
        };
        let (from_words, keys) = gathered(KeyUse { table: true, ..KeyUse::default() }, u64::MAX);
        let (from_words_too, from_frames) = gathered(KeyUse::default(), u64::MAX);
        assert!(plan.words == 3 && from_words && !from_words_too);
        assert_eq!(keys, from_frames);
        (0..64).for_each(|slot| pools.give(batch.take(slot)));
    }
}
