//! Hash to bucket to target to row.

use crate::batch::compile_error::{CompileError, fields};
use crate::batch::group::{GroupTable, Meeting};
use crate::batch::load::{KEY_WORDS_MAX, KeyPlan};
use crate::batch::packets::Packets;
use crate::pipes::lookup::{Hits, Lookup, NO_ROW, Refusal};
use crate::pipes::targets::Targets;
use weir_packet::{Base, Batch, Bits, KeySource, Layer, select_hash, widest};
use weir_program::HashInput;
use weir_program::change::EntryKey;
use weir_program::{Entry, GroupChoice, GroupId, Pipe, Program};
use weir_table::{NO_TARGET, seeded, spread};

/// The hash input, the group whose buckets are picked from, and the row of each target.
#[derive(Debug)]
pub struct HashTable {
    input: HashInput,
    plan: KeyPlan,
    choice: GroupChoice,
    targets: Targets,
    /// The number of packets distributed in turn.
    pub turns: u64,
}

impl HashTable {
    /// Creates an empty table.
    ///
    /// # Errors
    /// The hashed fields are too wide, or the pipe has per-entry matches.
    pub fn new(
        pipe: &Pipe,
        program: &Program,
        input: &HashInput,
        choice: GroupChoice,
    ) -> Result<HashTable, CompileError> {
        fields(pipe, |_| None)?;
        let plan = match input {
            HashInput::Select(_) | HashInput::Rss | HashInput::RoundRobin | HashInput::Quic => {
                KeyPlan::default()
            }
            HashInput::Fields(fields) => KeyPlan::unpacked(fields),
        };
        if plan.words > KEY_WORDS_MAX {
            return Err(CompileError::KeyTooWide(pipe.name.clone()));
        }
        let targets = Targets::new(program, Some(choice));
        Ok(HashTable { input: input.clone(), plan, choice, targets, turns: 0 })
    }

    /// Inserts an entry whose row is `row`.
    pub fn insert(&mut self, entry: &Entry, row: u32) -> Result<(), Refusal> {
        self.targets.insert(&entry.matches, row)
    }

    /// Returns the row of an entry.
    #[must_use]
    pub fn find(&self, key: &EntryKey) -> Option<u32> {
        self.targets.find(&key.matches)
    }

    /// Removes an entry and returns its row.
    pub fn remove(&mut self, key: &EntryKey) -> Option<u32> {
        self.targets.remove(&key.matches)
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.targets.len()
    }

    /// Continues with the turn where the predecessor stopped.
    pub fn inherit(&mut self, old: &HashTable) {
        self.turns = old.turns;
    }

    /// Returns the packets whose bucket has a target with an entry. Packets without the hashed fields miss,
    /// as do those whose metadata chooses no group.
    #[inline(never)]
    pub fn lookup(&mut self, look: &mut Lookup<'_>) -> Hits {
        let able = self.plan.able(look.packets, look.list);
        let (batch, packets) = (look.batch, look.packets);
        let mut made = [0; 64];
        let hashes = match &self.input {
            HashInput::Select(source) => &packets.keys(*source).select,
            HashInput::Fields(_) => {
                self.hash_fields(batch, packets, able, look.reading.seed, &mut made);
                &made
            }
            HashInput::Rss => {
                received_hashes(batch, packets, able, &mut made);
                &made
            }
            HashInput::RoundRobin => return self.deal(able, look),
            HashInput::Quic => return self.by_server(able, look),
        };
        let Some(group) = look.common(self.choice, able) else { return self.choose(able, hashes, look) };
        let (now_ns, live) = (look.now_ns, look.live);
        let (targets, keys) = (self.targets.of(group), packets.keys(self.input.source()));
        let (number, group) = (group.0, &mut look.groups[group.index()]);
        let (rows, mut lost) = (&mut *look.rows, 0);
        let mut give = |slot: usize, target: u16| {
            rows[slot] = targets.get(usize::from(target)).copied().unwrap_or(NO_ROW);
            if rows[slot] == NO_ROW {
                lost |= 1 << slot;
            }
        };
        if let Some(buckets) = group.plain() {
            Bits(able).for_each(|slot| give(slot, buckets.pick(hashes[slot])));
        } else if let Some((given, seed)) = group.given().filter(|_| live) {
            // The kind of group is checked once per list; a packet then costs a hash, computed side by side
            // with 63 others, and two loads.
            let mut own = [0; 64];
            widest(|| {
                for (own, hash) in own.iter_mut().zip(hashes) {
                    *own = seeded(*hash, seed);
                }
            });
            for slot in Bits(able) {
                let bucket = given.buckets().bucket(own[slot]);
                give(slot, given.meet(bucket, batch.frame(slot).len(), now_ns));
            }
        } else {
            for slot in Bits(able) {
                let meeting = Meeting { bytes: batch.frame(slot).len(), now_ns, live };
                give(slot, group.meet(hashes[slot], (keys, slot), meeting));
            }
        }
        look.without_target(lost, Some(&[number; 64]));
        Hits::Each(able & !lost)
    }

    /// Returns the packets of `list` whose metadata chooses a group, and whose bucket there has a target with
    /// an entry. Groups, buckets and rows are numerous, so each is fetched for all packets before it is read.
    fn choose(&self, list: u64, hashes: &[u64; 64], look: &mut Lookup<'_>) -> Hits {
        let mut chosen = [0; 64];
        let able = look.choose(Some(self.choice), list, &mut chosen);
        let (now_ns, live, mut lost) = (look.now_ns, look.live, 0);
        let keys = look.packets.keys(self.input.source());
        for slot in Bits(able) {
            let group = usize::from(chosen[slot]);
            look.groups[group].prefetch(hashes[slot]);
            self.targets.prefetch_group(group);
        }
        let mut picked = [NO_TARGET; 64];
        for slot in Bits(able) {
            let group = usize::from(chosen[slot]);
            let meeting = Meeting { bytes: look.batch.frame(slot).len(), now_ns, live };
            picked[slot] = look.groups[group].meet(hashes[slot], (keys, slot), meeting);
            self.targets.prefetch(group, picked[slot]);
        }
        for slot in Bits(able) {
            look.rows[slot] = self.targets.row(usize::from(chosen[slot]), picked[slot]);
            lost |= u64::from(look.rows[slot] == NO_ROW) << slot;
        }
        look.without_target(lost, Some(&chosen));
        Hits::Each(able & !lost)
    }

    /// Returns the packets of `list` with the server ID of a target that has an entry. All others miss.
    fn by_server(&self, list: u64, look: &mut Lookup<'_>) -> Hits {
        let mut chosen = [0; 64];
        let able = look.choose(Some(self.choice), list, &mut chosen);
        let mut hits = 0;
        for slot in Bits(able) {
            let group = usize::from(chosen[slot]);
            let Some(servers) = look.groups.get(group).and_then(GroupTable::quic) else { continue };
            let Some(payload) = datagram(look.batch, look.packets, slot) else { continue };
            look.rows[slot] = self.targets.row(group, servers.target(payload));
            hits |= u64::from(look.rows[slot] != NO_ROW) << slot;
        }
        Hits::Each(hits)
    }

    /// Deals the buckets to the packets of `list` in turn.
    fn deal(&mut self, list: u64, look: &mut Lookup<'_>) -> Hits {
        // The check refuses turns where metadata chooses the group.
        let Some(group) = self.choice.one().map(GroupId::index) else { return Hits::Each(0) };
        let (now_ns, live) = (look.now_ns, look.live);
        let held = &mut look.groups[group].held;
        let size = held.buckets().slots().len().max(1) as u64;
        let (mut turn, mut lost) = (self.turns, 0);
        for slot in Bits(list) {
            let meeting = Meeting { bytes: look.batch.frame(slot).len(), now_ns, live };
            look.rows[slot] = self.targets.row(group, held.meet((turn % size) as usize, meeting));
            lost |= u64::from(look.rows[slot] == NO_ROW) << slot;
            turn += 1;
        }
        if live {
            self.turns = turn;
        }
        look.without_target(lost, Some(&[group as u16; 64]));
        Hits::Each(list & !lost)
    }

    fn hash_fields(&self, batch: &Batch, packets: &Packets, list: u64, seed: u64, hashes: &mut [u64; 64]) {
        let mut keys = [[0; KEY_WORDS_MAX]; 64];
        self.plan.gather(batch, packets, list, &mut keys);
        for slot in Bits(list) {
            hashes[slot] = select_hash(seed, &keys[slot][..self.plan.words]);
        }
    }
}

/// Returns the payload of a packet's outer UDP datagram.
#[inline]
fn datagram<'b>(batch: &'b Batch, packets: &Packets, slot: usize) -> Option<&'b [u8]> {
    const HEADER: usize = 8;
    let outer = packets.headers[slot].outer();
    if !outer.layers.has(Layer::Udp) {
        return None;
    }
    let (bytes, at) = (batch.frame(slot).bytes(), outer.at(Base::L4));
    let length = bytes.get(at + 4..at + 6)?;
    bytes.get(at + HEADER..at + usize::from(u16::from_be_bytes([length[0], length[1]])))
}

/// Fills in the hashes delivered by the NIC with the frames of `list`, and the select hashes of frames
/// without one.
fn received_hashes(batch: &Batch, packets: &Packets, list: u64, hashes: &mut [u64; 64]) {
    let select = &packets.keys(KeySource::Outer).select;
    for slot in Bits(list) {
        let hash = batch.frame(slot).hash();
        hashes[slot] = if hash == 0 { select[slot] } else { spread(hash) };
    }
}
