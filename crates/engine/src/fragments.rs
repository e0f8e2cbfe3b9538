//! A worker's state about fragmented datagrams: the ports of those whose first fragment has arrived, and
//! fragments that arrived earlier and wait for it (pipes.md F13, F14).
//!
//! Guarantees: memory and time are bounded, whatever arrives. When there are too many, a datagram evicts the
//! oldest of a few, and a waiting fragment evicts the oldest ones: senders send a datagram's fragments back
//! to back, so what an honest sender needs is young. Waiting frames are copied, so that an attacker cannot
//! exhaust the memory that ports receive into. The hash is secret, so that an attacker cannot choose which
//! datagram is evicted.

use crate::parcel::Arrived;
use std::collections::VecDeque;
use weir_packet::TableHash;
use weir_packet::fragment::DatagramId;
use weir_program::fragments::{KNOWN_NS, WAIT_NS};

/// Maximum number of datagrams whose ports a worker knows.
pub const DATAGRAMS: usize = 4096;

/// Number of places that a datagram may occupy.
const WAYS: usize = 4;

/// Maximum number of fragments that wait for the first fragment of their datagram.
pub const WAITING_MAX: usize = 256;

/// Maximum total size of waiting fragments in bytes.
pub const WAITING_BYTES: usize = 512 << 10;

/// A datagram whose ports are known, or none where `last_ns` is 0.
#[derive(Clone, Copy, Debug, Default)]
struct Datagram {
    id: DatagramId,
    ports: [u8; 4],
    /// When its last fragment arrived, plus 1.
    last_ns: u64,
}

impl Datagram {
    fn is_live(&self, now_ns: u64) -> bool {
        self.last_ns != 0 && now_ns.saturating_sub(self.last_ns - 1) <= KNOWN_NS
    }
}

/// The fate of a waiting fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FragmentFate {
    /// The fragment waits for the first one of its datagram.
    Waits,
    /// Its first fragment has arrived, with these ports; or the fragment is to be examined again.
    Due(Option<[u8; 4]>),
    /// The fragment is no longer there.
    Gone,
}

/// A fragment that waits.
#[derive(Debug)]
struct WaitingFragment {
    id: DatagramId,
    start: usize,
    length: usize,
    hash: u32,
    input: u32,
    since_ns: u64,
    fate: FragmentFate,
}

/// Fragmented datagrams, as known to a worker.
#[derive(Debug)]
pub struct Fragments {
    hash: TableHash,
    /// Sets of [`WAYS`] places; empty until they are needed.
    datagrams: Box<[Datagram]>,
    /// In order of arrival, which is also the order of their bytes.
    waiting: VecDeque<WaitingFragment>,
    bytes: Box<[u8]>,
    /// Fragments that are not gone, and how many of them are due.
    held: usize,
    due: usize,
}

impl Fragments {
    /// Creates an empty instance that has no memory to learn anything.
    #[must_use]
    pub fn new(hash: TableHash) -> Fragments {
        let (datagrams, bytes) = Default::default();
        Fragments { hash, datagrams, waiting: VecDeque::new(), bytes, held: 0, due: 0 }
    }

    /// Allocates the memory, if that has not been done yet.
    pub fn allocate(&mut self) {
        if self.datagrams.is_empty() {
            self.datagrams = vec![Datagram::default(); DATAGRAMS].into();
            self.waiting = VecDeque::with_capacity(WAITING_MAX);
            self.bytes = vec![0; WAITING_BYTES].into();
        }
    }

    /// Records a first fragment: its ports become those of the datagram, and fragments that wait for it are
    /// due.
    pub fn first(&mut self, id: &DatagramId, ports: [u8; 4], now_ns: u64) {
        let set = self.set(id);
        let place = set.iter().position(|one| one.is_live(now_ns) && one.id == *id);
        let oldest = || (0..set.len()).min_by_key(|&at| set[at].last_ns);
        if let Some(at) = place.or_else(oldest) {
            set[at] = Datagram { id: *id, ports, last_ns: now_ns + 1 };
        }
        if self.held > self.due {
            for one in self.waiting.iter_mut().filter(|one| one.fate == FragmentFate::Waits && one.id == *id)
            {
                one.fate = FragmentFate::Due(Some(ports));
                self.due += 1;
            }
        }
    }

    /// Records a later fragment. Returns the ports of its datagram, if they are known.
    pub fn later(&mut self, id: &DatagramId, now_ns: u64) -> Option<[u8; 4]> {
        let known = self.set(id).iter_mut().find(|one| one.is_live(now_ns) && one.id == *id)?;
        known.last_ns = now_ns + 1;
        Some(known.ports)
    }

    fn set(&mut self, id: &DatagramId) -> &mut [Datagram] {
        let sets = self.datagrams.len() / WAYS;
        let set = ((self.hash.hash(&id.0) >> 32) as usize * sets) >> 32;
        self.datagrams.get_mut(set * WAYS..(set + 1) * WAYS).unwrap_or_default()
    }

    /// Stores a copy of a fragment that has to wait. Returns how many other fragments it displaced; `None` if
    /// there is no place for it at all.
    pub fn wait(&mut self, id: &DatagramId, frame: Arrived<'_>, now_ns: u64) -> Option<usize> {
        let length = frame.bytes.len();
        if length > self.bytes.len() {
            return None;
        }
        let mut lost = 0;
        let start = loop {
            match self.room(length) {
                Some(start) => break start,
                None => lost += usize::from(self.give_up_oldest()),
            }
        };
        self.bytes[start..start + length].copy_from_slice(frame.bytes);
        let Arrived { hash, input, .. } = frame;
        let fate = FragmentFate::Waits;
        self.waiting.push_back(WaitingFragment {
            id: *id,
            start,
            length,
            hash,
            input,
            since_ns: now_ns,
            fate,
        });
        self.held += 1;
        Some(lost)
    }

    /// Finds a place for `length` bytes after those of the youngest fragment.
    fn room(&self, length: usize) -> Option<usize> {
        if self.waiting.len() == WAITING_MAX {
            return None;
        }
        let (Some(oldest), Some(youngest)) = (self.waiting.front(), self.waiting.back()) else {
            return Some(0);
        };
        let end = youngest.start + youngest.length;
        if youngest.start < oldest.start {
            return (end + length <= oldest.start).then_some(end);
        }
        if end + length <= self.bytes.len() {
            return Some(end);
        }
        (length <= oldest.start).then_some(0)
    }

    /// Gives up the oldest fragment. Returns true if it was still waiting.
    fn give_up_oldest(&mut self) -> bool {
        let Some(oldest) = self.waiting.pop_front() else { return false };
        self.due -= usize::from(matches!(oldest.fate, FragmentFate::Due(_)));
        let is_there = oldest.fate != FragmentFate::Gone;
        self.held -= usize::from(is_there);
        is_there
    }

    /// Returns whether any fragments are due.
    #[must_use]
    pub fn has_due(&self) -> bool {
        self.due > 0
    }

    /// Returns the position of the first due fragment at or after a position.
    #[must_use]
    pub fn next_due(&self, from: usize) -> Option<usize> {
        (from..self.waiting.len()).find(|&at| matches!(self.waiting[at].fate, FragmentFate::Due(_)))
    }

    /// Returns the fragment at a position that [`Fragments::next_due`] has returned.
    #[must_use]
    pub fn frame(&self, at: usize) -> Arrived<'_> {
        let WaitingFragment { start, length, hash, input, fate, .. } = self.waiting[at];
        let ports = if let FragmentFate::Due(ports) = fate { ports } else { None };
        Arrived { bytes: &self.bytes[start..start + length], hash, input, ports, front: None }
    }

    /// Takes the fragment at a position. Positions stay valid.
    pub fn take(&mut self, at: usize) {
        if std::mem::replace(&mut self.waiting[at].fate, FragmentFate::Gone) != FragmentFate::Gone {
            self.held -= 1;
            self.due -= 1;
        }
    }

    /// Makes every waiting fragment due, without ports.
    pub fn look_again(&mut self) {
        for one in self.waiting.iter_mut().filter(|one| one.fate == FragmentFate::Waits) {
            one.fate = FragmentFate::Due(None);
            self.due += 1;
        }
    }

    /// Drops fragments that have waited too long. Returns how many there were.
    pub fn expire(&mut self, now_ns: u64) -> usize {
        let mut expired = 0;
        while let Some(oldest) = self.waiting.front() {
            let is_there = oldest.fate != FragmentFate::Gone;
            if is_there && now_ns.saturating_sub(oldest.since_ns) <= WAIT_NS {
                break;
            }
            expired += usize::from(self.give_up_oldest());
        }
        expired
    }

    /// Drops all waiting fragments. Returns how many there were.
    pub fn give_up(&mut self) -> usize {
        self.waiting.clear();
        self.due = 0;
        std::mem::take(&mut self.held)
    }

    /// Returns the number of waiting fragments.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fragments() -> Fragments {
        let mut fragments = Fragments::new(TableHash::new([1, 2]));
        fragments.allocate();
        fragments
    }

    fn id(number: u64) -> DatagramId {
        DatagramId([1, 2, 3, 4, number << 32])
    }

    fn frame(bytes: &[u8]) -> Arrived<'_> {
        Arrived { bytes, hash: 7, input: 3, ports: None, front: None }
    }

    fn due(fragments: &mut Fragments) -> Vec<(Vec<u8>, Option<[u8; 4]>)> {
        let mut all = Vec::new();
        while let Some(at) = fragments.next_due(0) {
            let Arrived { bytes, ports, hash: 7, input: 3, .. } = fragments.frame(at) else {
                panic!("changed")
            };
            all.push((bytes.to_vec(), ports));
            fragments.take(at);
        }
        assert!(!fragments.has_due());
        all
    }

    #[test]
    fn ports_are_known_until_a_second_after_the_last_fragment() {
        let mut known = fragments();
        assert_eq!(known.later(&id(1), 0), None);
        known.first(&id(1), [1; 4], 0);
        assert_eq!(known.later(&id(1), KNOWN_NS), Some([1; 4]));
        assert_eq!(known.later(&id(2), KNOWN_NS), None);
        assert_eq!(known.later(&id(1), 2 * KNOWN_NS), Some([1; 4]));
        known.first(&id(1), [9; 4], 2 * KNOWN_NS);
        assert_eq!(known.later(&id(1), 3 * KNOWN_NS), Some([9; 4]), "the latest first fragment counts");
        assert_eq!(known.later(&id(1), 4 * KNOWN_NS + 1), None);
    }

    #[test]
    fn fragments_wait_for_the_first_one_and_go_on_in_their_order() {
        let mut held = fragments();
        for (number, bytes) in [(1, b"a"), (2, b"b"), (1, b"c")] {
            assert_eq!(held.wait(&id(number), frame(bytes), number), Some(0));
        }
        assert_eq!((held.held(), due(&mut held)), (3, vec![]));
        held.first(&id(1), [5; 4], 9);
        let ports = Some([5; 4]);
        assert_eq!(due(&mut held), [(b"a".to_vec(), ports), (b"c".to_vec(), ports)]);
        assert_eq!((held.held(), held.expire(WAIT_NS)), (1, 0));
        assert_eq!((held.expire(WAIT_NS + 3), held.held()), (1, 0));
        held.wait(&id(4), frame(b"d"), WAIT_NS);
        held.look_again();
        assert_eq!(due(&mut held), [(b"d".to_vec(), None)]);
    }

    #[test]
    fn a_flood_takes_no_more_room_than_there_is_and_what_is_young_stays() {
        let mut held = fragments();
        let bytes = vec![7; 1480];
        let mut lost = 0;
        for number in 0..100_000 {
            held.first(&id(number), [1; 4], number);
            lost += held.wait(&id(1 << 20 | number), frame(&bytes), number).unwrap();
            assert_eq!(held.later(&id(number), number), Some([1; 4]), "the most recent datagram is known");
            assert!(held.held() <= WAITING_MAX && held.waiting.len() <= WAITING_MAX);
        }
        assert_eq!(lost + held.held(), 100_000);
        assert_eq!((held.datagrams.len(), held.bytes.len()), (DATAGRAMS, WAITING_BYTES));
        held.first(&id(1 << 20 | 99_999), [2; 4], 100_000);
        assert_eq!(due(&mut held), [(bytes, Some([2; 4]))], "the most recent one still waits");
        assert_eq!((held.give_up(), held.held()), (WAITING_MAX - 1, 0));
    }

    #[test]
    fn bytes_of_any_length_lie_beside_each_other_and_are_what_they_were() {
        let mut held = fragments();
        assert_eq!(held.wait(&id(0), frame(&vec![0; WAITING_BYTES + 1]), 0), None);
        assert_eq!(held.wait(&id(0), frame(&vec![0; WAITING_BYTES]), 0), Some(0));
        let mut inside = 1;
        let mut length = 1;
        for number in 1..2_000_u64 {
            length = (length * 7919 + 13) % 9_000 + 1;
            let lost = held.wait(&id(number), frame(&vec![number as u8; length]), number).unwrap();
            inside = inside + 1 - lost;
            assert_eq!(held.held(), inside);
            for one in &held.waiting {
                let bytes = &held.bytes[one.start..one.start + one.length];
                let wanted = (one.id.0[4] >> 32) as u8;
                assert!(bytes.iter().all(|byte| *byte == wanted), "{number}: {one:?}");
            }
        }
    }
}
