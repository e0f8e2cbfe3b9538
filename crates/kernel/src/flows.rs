//! The flows that the kernel follows: a hash table in one array, which XDP and user space share.
//!
//! The engine learns a flow, chooses an entry for it, and keeps its state. Then it writes the flow here, and
//! XDP handles the flow's packets as this entry says. Packets that may change the state of a connection (SYN,
//! FIN, RST) always go to the engine. There is no system call per flow: user space writes lines of the table
//! and reads their counts in mapped memory.
//!
//! **Lines.** A flow takes a line of 64 bytes; two with IPv6, or if it keeps values ([`crate::kept`]); four
//! if it keeps many values. Eight lines are a bucket, and a key may be in one of two buckets. The bucket's
//! tags, 16 bits for each line, are apart from the lines, so a look-up reads a cache line of tags and that of
//! its flow. No bucket has the same tag twice, so there is at most one line to compare. A flow whose two
//! buckets are full is refused and stays in the engine; no flow is ever evicted. The hash has secret keys.
//!
//! **Owners.** Each worker writes the flows that it has learnt, sweeps them and removes them. The workers
//! share one table, because lines are found by the flows' keys, on whatever queue a packet arrives. Only
//! writing tags takes a lock, which is held for one flow.
//!
//! **Publication.** User space writes a line and then its tag. A flow that is removed loses its tag first,
//! and its line is not used again before every program that may have seen the tag has returned, which the
//! kernel reports ([`Grace`]). So no packet ever meets a line that is half written or that of another flow,
//! and the last counts of a flow are complete.
//!
//! **Order.** When a flow is written here, packets of it may be on their way through the engine, and none
//! may overtake them. So a line is pending at first: XDP counts the packets that it leaves to the engine,
//! and puts the number of each in front of its frame ([`FlowLines::read_mark`]). Once the engine has sent the
//! n-th, it activates the flow if n packets have been counted ([`MappedFlows::try_activate`]), by one atomic
//! comparison; otherwise, another packet follows the n-th and will activate the flow. Frames of a flow arrive
//! in order, so whatever came before the line was written is in front of the first packet that has a number.
//! It does no harm if frames are lost on the way. A packet that may change the state makes its flow pending
//! again. All flows are pending when the program starts after a pause, in which it has numbered no packet: a
//! flow is active only in the epoch of its activation ([`MappedFlows::begin_epoch`]).

use crate::sys::{self, Map, MapKind, Memory, PacketWait};
use std::collections::VecDeque;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::IpAddr;
use std::ops::Deref;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use weir_packet::FlowKey;
use weir_program::PipeId;
use weir_program::replica::{FlowCounts, FlowLines, FlowMark, FlowSlot, MARK_BYTES};

/// Bytes of a line.
pub const LINE: usize = 64;
/// Lines of a bucket.
pub const LANES: usize = 8;
/// Bytes of a bucket's tags.
pub const TAGS: usize = LANES * 2;

/// Offsets in a line: [`ACTIVE`], [`LIFE`], and in 32 bits how many packets were left to the engine.
pub const STATE: i16 = 0;
/// Packets since the last sweep.
pub const PACKETS: i16 = 8;
/// Their bytes.
pub const BYTES: i16 = 16;
/// When the last packet was counted, in nanoseconds; 0 if none was.
pub const LAST: i16 = 24;
/// The number of the entry, 32 bits.
pub const ENTRY: i16 = 32;
/// The entry's life in which the flow was decided, 32 bits.
pub const STAMP: i16 = 36;
/// The highest byte of the last TCP sequence number, and [`HAS_SEQ`].
pub const SEQ: i16 = 40;
/// The [epoch](MappedFlows::begin_epoch) in which XDP began to follow the flow, 32 bits.
pub const EPOCH: i16 = 44;
/// The key: two words, or five with IPv6, which reach into the next line.
pub const KEY: i16 = 48;

/// The values that the flow keeps, after the longest key.
pub const KEPT: i16 = KEY + 8 * WORDS6 as i16;
/// The maximum number of bytes that a flow keeps, limited by the number of its lines.
pub const KEPT_MAX: usize = LINES_MAX as usize * LINE - KEPT as usize;
const LINES_MAX: u32 = 4;

/// XDP follows the flow.
pub const ACTIVE: u64 = 1 << 63;
/// How often the line has been written, which distinguishes the frames of a previous flow.
pub const LIFE: u64 = 0x7fff_ffff << 32;
/// There is a sequence number.
pub const HAS_SEQ: i32 = 0x100;

/// Words of a key with IPv4 and with IPv6.
pub const WORDS4: usize = 2;
/// The same with IPv6.
pub const WORDS6: usize = 5;
/// Where a key's first word has pipe and version of IP, above ports and protocol.
pub const PIPE_SHIFT: i32 = 40;
/// See [`PIPE_SHIFT`].
pub const VERSION_SHIFT: i32 = 48;

/// Odd constants that spread the sum of a key.
pub const SPREAD: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xbb67_ae85_84ca_a73b];
/// The bits of the hash in a tag.
pub const TAG_MASK: i32 = 0x7fff;
/// Marks a tag as that of a flow.
pub const TAG_FLOW: i32 = 0x8000;

/// Tags of lines without a key of their own.
const FREE: u16 = 0;
/// Another line of a flow than its first.
const SECOND: u16 = 1;
/// The line of a flow that was removed.
const LEAVING: u16 = 2;

/// Returns how many lines there are for the `flows` flows of a pipe, each of which keeps `kept` bytes: at
/// full load, an IPv4 flow takes 124 bytes, and one with an address and a port of a NAT pool 182.
pub fn lines_for(flows: u32, kept: usize) -> u64 {
    let lines_per_8 = match lines_with(kept) {
        0 => 15,
        2 => 22,
        // The flows of answers keep the most; those in front of them take two lines.
        _ => 33,
    };
    (u64::from(flows) * lines_per_8).div_ceil(8)
}

/// The number of lines that a flow takes because of what it keeps.
fn lines_with(kept: usize) -> usize {
    if kept == 0 { 0 } else { (KEPT as usize + kept).div_ceil(LINE).next_power_of_two() }
}

/// The most bytes: the verifier accepts no larger offsets into a map's value.
const BYTES_MAX: u64 = 1 << 29;

/// Where the flows are.
#[derive(Clone, Debug)]
pub struct FlowPlace {
    /// The map.
    pub map: RawFd,
    /// How the table is laid out.
    pub layout: FlowLayout,
}

/// How the table is laid out: the tags of all buckets, then the lines.
#[derive(Clone)]
pub struct FlowLayout {
    /// The number of buckets.
    pub buckets: u32,
    /// The secret keys of the hash.
    pub keys: [u64; WORDS6],
    /// What the marks in front of frames begin with.
    pub magic: u64,
}

impl fmt::Debug for FlowLayout {
    /// Does not print the secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlowLayout").field("buckets", &self.buckets).finish_non_exhaustive()
    }
}

impl FlowLayout {
    fn new(lines: u64) -> FlowLayout {
        let most = BYTES_MAX / (LANES * LINE + TAGS) as u64 - 1;
        let buckets = lines.div_ceil(LANES as u64).clamp(1, most) as u32;
        let state = RandomState::new();
        let secret = |number: u64| state.hash_one(number);
        FlowLayout { buckets, keys: [0, 1, 2, 3, 4].map(secret), magic: secret(5) }
    }

    /// The number of lines.
    pub fn lines(&self) -> u32 {
        self.buckets * LANES as u32
    }

    /// Where the first line is.
    pub fn first_line(&self) -> usize {
        (self.buckets as usize * TAGS).next_multiple_of(LINE)
    }

    /// Bytes of the table. Behind the last line, there is room for another flow, which the verifier wants.
    pub fn bytes(&self) -> usize {
        self.first_line() + (self.lines() + LINES_MAX) as usize * LINE
    }

    /// Where the present epoch is: in the line behind the last one.
    pub fn epoch(&self) -> usize {
        self.line(self.lines())
    }

    fn line(&self, line: u32) -> usize {
        self.first_line() + line as usize * LINE
    }

    /// The two buckets of a key, and its tag.
    fn places(&self, key: &[u64]) -> ([u32; 2], u16) {
        let product = |(word, key): (&u64, &u64)| {
            let low = (*word as u32).wrapping_add(*key as u32);
            let high = ((word >> 32) as u32).wrapping_add((key >> 32) as u32);
            u64::from(low) * u64::from(high)
        };
        let mut hash = key.iter().zip(&self.keys).map(product).fold(0, u64::wrapping_add);
        hash = (hash ^ hash >> 32).wrapping_mul(SPREAD[0]);
        hash ^= hash >> 29;
        let bucket = |hash: u64| (((hash >> 32) * u64::from(self.buckets)) >> 32) as u32;
        let tag = hash as u16 & TAG_MASK as u16 | TAG_FLOW as u16;
        ([bucket(hash), bucket(hash.wrapping_mul(SPREAD[1]))], tag)
    }
}

/// The words of a key, as XDP loads them.
#[derive(Clone, Copy, Debug)]
struct TableKey {
    words: [u64; WORDS6],
    used: usize,
}

impl TableKey {
    /// Returns the key of a flow of a pipe; `None` for one inside a tunnel.
    fn new(pipe: PipeId, flow: &FlowKey) -> Option<TableKey> {
        if flow.vni().is_some() {
            return None;
        }
        let [ports, other] = [flow.sport().to_be_bytes(), flow.dport().to_be_bytes()];
        let ports = u32::from_ne_bytes([ports[0], ports[1], other[0], other[1]]);
        let first = |version: u64| {
            u64::from(ports)
                | u64::from(flow.protocol()) << 32
                | u64::from(pipe.0) << PIPE_SHIFT
                | version << VERSION_SHIFT
        };
        let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("8 bytes"));
        Some(match (flow.src(), flow.dst()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let addresses = [src.octets(), dst.octets()].concat();
                TableKey { words: [first(4), word(&addresses), 0, 0, 0], used: WORDS4 }
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let [src, dst] = [src.octets(), dst.octets()];
                let [one, two, three, four] = [&src[..8], &src[8..], &dst[..8], &dst[8..]].map(word);
                TableKey { words: [first(6), one, two, three, four], used: WORDS6 }
            }
            _ => unreachable!("a key has addresses of one version"),
        })
    }

    fn words(&self) -> &[u64] {
        &self.words[..self.used]
    }

    fn lines(&self) -> usize {
        if self.used == WORDS4 { 1 } else { 2 }
    }
}

/// The entry that a flow was decided for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowEntry {
    /// The number of the entry's record.
    pub number: u32,
    /// How often the entry had been removed before the flow was decided. If the entry is removed again, XDP
    /// leaves the flow's packets to the engine, whether or not another such entry is added.
    pub stamp: u32,
}

impl FlowEntry {
    /// For a flow that follows the buckets of its pipe's group.
    pub const FOLLOWS: FlowEntry = FlowEntry { number: 0, stamp: 0 };
}

/// Why a flow is not followed in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotFollowed {
    /// There is no room in the flow's buckets.
    Full,
    /// The flow is followed already.
    Known,
    /// The flow is inside a tunnel.
    Tunnel,
}

/// The lines of a table. What flows have counted may be read beside the thread that writes flows.
#[derive(Debug)]
pub struct MappedFlows {
    map: Map,
    memory: Memory,
    layout: FlowLayout,
    /// Held to write tags.
    tags: Mutex<()>,
}

/// The flows that the kernel follows, as one of their owners sees them.
#[derive(Debug)]
pub struct FlowTable {
    mapped: Arc<MappedFlows>,
    grace: Arc<Grace>,
    /// Flows that were removed, each with the grace period after which its line is free.
    leaving: VecDeque<(u64, FlowSlot)>,
    used: usize,
}

impl FlowTable {
    /// Creates a table of `lines` lines.
    ///
    /// # Errors
    /// Returns the number of bytes, with the kernel's error: it has no memory.
    pub fn new(lines: u64) -> Result<FlowTable, (usize, io::Error)> {
        let layout = FlowLayout::new(lines);
        let bytes = layout.bytes();
        let map = Map::create(MapKind::Array, 4, bytes, 1).map_err(|error| (bytes, error))?;
        let memory = map.memory().map_err(|error| (bytes, error))?;
        let grace = Arc::new(Grace::new().map_err(|error| (bytes, error))?);
        let mapped = Arc::new(MappedFlows { map, memory, layout, tags: Mutex::new(()) });
        Ok(FlowTable { mapped, grace, leaving: VecDeque::new(), used: 0 })
    }

    /// Returns the same table for another owner, which has no flows yet.
    #[must_use]
    pub fn share(&self) -> FlowTable {
        let (mapped, grace) = (Arc::clone(&self.mapped), Arc::clone(&self.grace));
        FlowTable { mapped, grace, leaving: VecDeque::new(), used: 0 }
    }

    /// Returns the table's lines.
    #[must_use]
    pub fn lines(&self) -> Arc<MappedFlows> {
        Arc::clone(&self.mapped)
    }

    /// The number of this owner's flows, including those that were removed and still have their lines.
    #[must_use]
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether the owner has no flows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Writes a flow of a pipe, which is pending until [`MappedFlows::try_activate`]. If the pipe tracks
    /// states, the flow's packets must lead from its state to a single one
    /// (`FlowState::after_plain_packets`), which the engine knows without seeing them. `kept` are the values
    /// that the flow keeps ([`crate::kept_bytes`]).
    ///
    /// # Errors
    /// The flow stays in the engine, which is no fault.
    pub fn insert(
        &mut self,
        pipe: PipeId,
        key: &FlowKey,
        entry: FlowEntry,
        kept: &[u8],
    ) -> Result<FlowSlot, NotFollowed> {
        let key = TableKey::new(pipe, key).ok_or(NotFollowed::Tunnel)?;
        let lines = key.lines().max(lines_with(kept.len()));
        let (buckets, tag) = self.layout.places(key.words());
        let mapped = Arc::clone(&self.mapped);
        let _writes = mapped.write_tags();
        let mut best: Option<(usize, u32, usize)> = None;
        for (at, bucket) in buckets.into_iter().enumerate() {
            let tags = self.tags(bucket);
            if let Some(lane) = tags.iter().position(|one| *one == tag) {
                if self.has(bucket * LANES as u32 + lane as u32, &key) {
                    return Err(NotFollowed::Known);
                }
                // XDP would not look any further.
                continue;
            }
            let room = tags.iter().filter(|tag| **tag == FREE).count();
            let Some(lane) = free_lane(&tags, lines) else { continue };
            // The first bucket is found sooner, as long as it is half empty. Free neighbours are rarer.
            let is_roomy = at == 0 && lines == 1 && room >= LANES / 2;
            let room = if is_roomy { LANES + 1 } else { room };
            if best.is_none_or(|(most, ..)| room > most) {
                best = Some((room, bucket, lane));
            }
        }
        let (_, bucket, lane) = best.ok_or(NotFollowed::Full)?;
        let line = bucket * LANES as u32 + lane as u32;
        self.write(line, &key, entry);
        self.memory.write(self.layout.line(line) + KEPT as usize, kept);
        // The line is complete before its tag is there.
        fence(Ordering::Release);
        (1..lines as u32).for_each(|more| self.set_tag(line + more, SECOND));
        self.set_tag(line, tag);
        self.used += 1;
        Ok(FlowSlot(line))
    }

    /// Returns the slot of a flow.
    #[must_use]
    pub fn find(&self, pipe: PipeId, key: &FlowKey) -> Option<FlowSlot> {
        let key = TableKey::new(pipe, key)?;
        let (buckets, tag) = self.layout.places(key.words());
        let found = buckets.into_iter().filter_map(|bucket| {
            let lane = self.tags(bucket).iter().position(|one| *one == tag)?;
            Some(bucket * LANES as u32 + lane as u32)
        });
        found.into_iter().find(|line| self.has(*line, &key)).map(FlowSlot)
    }

    /// Removes a flow. Packets that XDP has begun to treat may still be counted; [`FlowTable::take_removed`]
    /// returns the last counts.
    pub fn remove(&mut self, slot: FlowSlot) {
        let writes = self.write_tags();
        self.set_tag(slot.0, LEAVING);
        drop(writes);
        self.deactivate(slot);
        self.leaving.push_back((self.grace.request(), slot));
    }

    /// Passes on the last counts of removed flows that no packet meets any more, and frees their lines.
    pub fn take_removed(&mut self, mut gone: impl FnMut(FlowSlot, FlowCounts)) {
        let over = self.grace.over();
        while let Some((_, slot)) = self.leaving.pop_front_if(|(period, _)| *period <= over) {
            gone(slot, self.sweep(slot));
            self.mapped.free(slot.0);
            self.used -= 1;
        }
    }
}

impl Deref for FlowTable {
    type Target = MappedFlows;

    fn deref(&self) -> &MappedFlows {
        &self.mapped
    }
}

impl MappedFlows {
    /// Returns where the table is, for the compiler.
    #[must_use]
    pub fn place(&self) -> FlowPlace {
        FlowPlace { map: self.map.fd(), layout: self.layout.clone() }
    }

    /// Bytes of the kernel's memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.layout.bytes()
    }

    /// Lets XDP follow a flow if the packet with this mark is the last one that XDP has left to the engine,
    /// which has sent it and all before it. Returns whether that was so.
    pub fn try_activate(&self, mark: FlowMark) -> bool {
        let state = self.word(mark.slot, STATE);
        let pending = u64::from(mark.life) << 32 | u64::from(mark.packets);
        if state.load(Ordering::Acquire) != pending {
            return false;
        }
        // XDP never activates a flow, so this one stays pending until the exchange.
        let epoch = self.layout.line(mark.slot.0) + EPOCH as usize;
        self.memory.half(epoch).store(mark.epoch, Ordering::Release);
        state.compare_exchange(pending, pending | ACTIVE, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Returns the mark of the last packet that XDP has left to the engine, unless it follows the flow.
    #[must_use]
    pub fn pending(&self, slot: FlowSlot) -> Option<FlowMark> {
        let state = self.word(slot, STATE).load(Ordering::Acquire);
        let mark = FlowMark { slot, life: (state >> 32) as u32, packets: state as u32, epoch: self.epoch() };
        (state & ACTIVE == 0).then_some(mark)
    }

    /// Makes all flows pending, because packets were left to the engine without being counted.
    pub fn begin_epoch(&self) {
        self.memory.word(self.layout.epoch()).fetch_add(1, Ordering::AcqRel);
    }

    fn epoch(&self) -> u32 {
        self.memory.word(self.layout.epoch()).load(Ordering::Acquire) as u32
    }

    /// Makes a flow pending again: its packets are left to the engine until it is activated.
    pub fn deactivate(&self, slot: FlowSlot) {
        self.word(slot, STATE).fetch_and(!ACTIVE, Ordering::AcqRel);
    }

    /// Returns what a flow has counted; `count` reads the word at an offset.
    fn counts(&self, slot: FlowSlot, count: impl Fn(i16) -> u64) -> FlowCounts {
        let last_ns = self.word(slot, LAST).load(Ordering::Acquire);
        let (packets, bytes) = (count(PACKETS), count(BYTES));
        let seq = self.word(slot, SEQ).load(Ordering::Acquire);
        let seq = (seq & HAS_SEQ as u64 != 0).then_some(seq as u8);
        FlowCounts { packets, bytes, last_ns, seq }
    }

    fn word(&self, slot: FlowSlot, offset: i16) -> &AtomicU64 {
        self.memory.word(self.layout.line(slot.0) + offset as usize)
    }

    fn write(&self, line: u32, key: &TableKey, entry: FlowEntry) {
        let slot = FlowSlot(line);
        let life = self.word(slot, STATE).load(Ordering::Relaxed) & LIFE;
        self.word(slot, STATE).store((life + (1 << 32)) & LIFE, Ordering::Relaxed);
        for word in [PACKETS, BYTES, LAST, SEQ] {
            self.word(slot, word).store(0, Ordering::Relaxed);
        }
        let [number, stamp] = [entry.number, entry.stamp].map(u32::to_ne_bytes);
        self.memory.write(self.layout.line(line) + ENTRY as usize, &[number, stamp].concat());
        for (at, word) in key.words().iter().enumerate() {
            self.word(slot, KEY + 8 * at as i16).store(*word, Ordering::Relaxed);
        }
    }

    fn has(&self, line: u32, key: &TableKey) -> bool {
        let word = |at: usize| self.word(FlowSlot(line), KEY + 8 * at as i16).load(Ordering::Relaxed);
        key.words().iter().enumerate().all(|(at, one)| word(at) == *one)
    }

    fn tags(&self, bucket: u32) -> [u16; LANES] {
        std::array::from_fn(|lane| self.tag(bucket * LANES as u32 + lane as u32))
    }

    /// The word with the tag of a line, and where the tag is in it.
    fn tag_word(&self, line: u32) -> (&AtomicU64, usize) {
        let at = line as usize * 2;
        (self.memory.word(at / 8 * 8), at % 8)
    }

    fn tag(&self, line: u32) -> u16 {
        let (word, at) = self.tag_word(line);
        let bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        u16::from_ne_bytes([bytes[at], bytes[at + 1]])
    }

    /// Frees the lines of a flow that was removed, of which this is the first.
    fn free(&self, line: u32) {
        let _writes = self.write_tags();
        let end = (line / LANES as u32 + 1) * LANES as u32;
        let more = (line + 1..end).take_while(|line| self.tag(*line) == SECOND).count() as u32;
        (line..=line + more).rev().for_each(|line| self.set_tag(line, FREE));
    }

    /// Prevents other owners from writing tags until the guard is dropped.
    fn write_tags(&self) -> MutexGuard<'_, ()> {
        // A tag is written by one store, so a panic leaves none half written.
        self.tags.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the tag of a line. A word has four tags: without the lock, the other three could be lost.
    fn set_tag(&self, line: u32, tag: u16) {
        let (word, at) = self.tag_word(line);
        let mut bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        bytes[at..at + 2].copy_from_slice(&tag.to_ne_bytes());
        word.store(u64::from_ne_bytes(bytes), Ordering::SeqCst);
    }
}

impl FlowLines for MappedFlows {
    fn sweep(&self, slot: FlowSlot) -> FlowCounts {
        // A line without new packets is only read.
        self.counts(slot, |word| match self.word(slot, word).load(Ordering::Acquire) {
            0 => 0,
            _ => self.word(slot, word).swap(0, Ordering::AcqRel),
        })
    }

    fn peek(&self, slot: FlowSlot) -> FlowCounts {
        self.counts(slot, |word| self.word(slot, word).load(Ordering::Acquire))
    }

    fn is_active(&self, slot: FlowSlot) -> bool {
        let epoch = self.memory.half(self.layout.line(slot.0) + EPOCH as usize).load(Ordering::Acquire);
        self.word(slot, STATE).load(Ordering::Acquire) & ACTIVE != 0 && epoch == self.epoch()
    }

    fn read_mark(&self, front: &[u8; MARK_BYTES]) -> Option<FlowMark> {
        let word = |at: usize| u64::from_ne_bytes(front[at..at + 8].try_into().expect("8 of 16 bytes"));
        let (slot, packets) = (FlowSlot((word(8) >> 32) as u32), word(8) as u32);
        let (life, epoch) = (word(0) ^ self.layout.magic, self.epoch());
        let is_flow = life & !LIFE == u64::from(epoch)
            && slot.0 < self.layout.lines()
            && self.tag(slot.0) >= TAG_FLOW as u16;
        let is_same = is_flow && self.word(slot, STATE).load(Ordering::Acquire) & LIFE == life & LIFE;
        is_same.then_some(FlowMark { slot, life: (life >> 32) as u32, packets, epoch })
    }

    fn now_ns(&self) -> u64 {
        sys::monotonic_ns()
    }
}

/// Returns where a flow of one, two or four lines has room in a bucket. Two lines are an even one and the
/// next; single lines take what is left of such a pair first.
fn free_lane(tags: &[u16; LANES], lines: usize) -> Option<usize> {
    let is_free = |lane: usize| tags[lane] == FREE;
    let room = |lines: usize| (0..LANES).step_by(lines).find(|lane| (*lane..lane + lines).all(is_free));
    if lines > 1 {
        return room(lines);
    }
    (0..LANES).find(|lane| is_free(*lane) && !is_free(lane ^ 1)).or_else(|| room(2))
}

/// Waits, in a thread of its own, until every program that was running when a flow was removed has returned:
/// the kernel takes some milliseconds to report this ([`PacketWait`]).
#[derive(Debug)]
struct Grace {
    requested: AtomicU64,
    over: Arc<AtomicU64>,
    requests: Option<Sender<u64>>,
    thread: Option<JoinHandle<()>>,
}

impl Grace {
    fn new() -> io::Result<Grace> {
        let packets = PacketWait::new()?;
        let (requests, wanted) = channel();
        let over = Arc::new(AtomicU64::new(0));
        let shared = Arc::clone(&over);
        let wait = move || wait(&wanted, &packets, &shared);
        let thread = std::thread::Builder::new().name("weir-flows".into()).spawn(wait)?;
        Ok(Grace { requested: AtomicU64::new(0), over, requests: Some(requests), thread: Some(thread) })
    }

    /// Returns the number of a period that begins from now on.
    fn request(&self) -> u64 {
        let requested = self.requested.fetch_add(1, Ordering::AcqRel) + 1;
        if let Some(requests) = &self.requests {
            // The thread ends only with the table.
            let _ = requests.send(requested);
        }
        requested
    }

    /// Returns the number of the last period that is over.
    fn over(&self) -> u64 {
        self.over.load(Ordering::Acquire)
    }
}

fn wait(wanted: &Receiver<u64>, packets: &PacketWait, over: &AtomicU64) {
    while let Ok(first) = wanted.recv() {
        // Owners may send their requests in another order than that of the numbers.
        let last = wanted.try_iter().fold(first, u64::max);
        // If the kernel refuses, lines are not used again, which wastes them and is safe.
        if packets.wait().is_ok() {
            over.fetch_max(last, Ordering::AcqRel);
        }
    }
}

impl Drop for Grace {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            // It waits for one period at most; a panic there has been printed.
            let _ = thread.join();
        }
    }
}
