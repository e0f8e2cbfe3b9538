//! MAC addresses inside a bond. A switch that is not configured for the bond must learn which member leads to
//! them, and frames that they sent must not be received again through another member.
//!
//! The table is bounded: a new address replaces the oldest one. An address displaced by a flood is learnt
//! again from its next frame.

use std::collections::{HashMap, VecDeque};

/// How long after an address was learnt to ignore reports that it has moved outside, in nanoseconds: frames
/// that it sent earlier may still come back.
const LOCK_NS: u64 = 5_000_000_000;

/// How long an address stays known without being seen again, in nanoseconds (the ageing time of IEEE 802.1Q
/// 8.8.3): a station may leave silently.
const AGE_NS: u64 = 300_000_000_000;

/// A MAC address.
pub type MacBytes = [u8; 6];

/// The information about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LearntAddress {
    /// The VLAN id with which it was first seen.
    pub vid: Option<u16>,
    /// When it was learnt, in nanoseconds.
    pub since_ns: u64,
}

/// The addresses inside.
#[derive(Clone, Debug)]
pub struct Learnt {
    known: HashMap<MacBytes, LearntAddress>,
    /// The addresses in the order in which they were learnt.
    order: VecDeque<MacBytes>,
    capacity: usize,
}

impl Learnt {
    /// Creates a table for `capacity` addresses.
    #[must_use]
    pub fn new(capacity: u32) -> Learnt {
        Learnt { known: HashMap::new(), order: VecDeque::new(), capacity: capacity.max(1) as usize }
    }

    /// Changes the capacity.
    pub fn set_capacity(&mut self, capacity: u32) {
        self.capacity = self.capacity.max(capacity as usize);
    }

    /// Learns the source of a frame from inside. Returns the address and the one it displaced, or `None` if
    /// it is known or not the address of a station.
    pub fn learn(&mut self, now_ns: u64, frame: &[u8]) -> Option<(MacBytes, Option<MacBytes>)> {
        let mac: MacBytes = frame.get(6..12)?.try_into().ok()?;
        if mac[0] & 1 == 1 || mac == [0; 6] || self.known.contains_key(&mac) {
            return None;
        }
        let gone = if self.order.len() >= self.capacity { self.order.pop_front() } else { None };
        if let Some(gone) = gone {
            self.known.remove(&gone);
        }
        self.known.insert(mac, LearntAddress { vid: vid(frame), since_ns: now_ns });
        self.order.push_back(mac);
        Some((mac, gone))
    }

    /// Handles a frame that came back from outside. If it is a gratuitous ARP, its source has moved there;
    /// then the address is removed and returned.
    pub fn has_moved(&mut self, now_ns: u64, frame: &[u8]) -> Option<MacBytes> {
        let mac: MacBytes = frame.get(6..12)?.try_into().ok()?;
        let since_ns = self.known.get(&mac)?.since_ns;
        if !is_gratuitous(frame) || now_ns.saturating_sub(since_ns) < LOCK_NS {
            return None;
        }
        self.forget(mac);
        Some(mac)
    }

    /// Removes and returns an address that was learnt too long ago, if there is one.
    pub fn age(&mut self, now_ns: u64) -> Option<MacBytes> {
        let first =
            *self.order.front().filter(|_| self.wake_ns().is_some_and(|wake_ns| wake_ns <= now_ns))?;
        self.forget(first);
        Some(first)
    }

    /// Returns when the next address expires.
    #[must_use]
    pub fn wake_ns(&self) -> Option<u64> {
        self.known.get(self.order.front()?).map(|known| known.since_ns.saturating_add(AGE_NS))
    }

    fn forget(&mut self, mac: MacBytes) {
        self.known.remove(&mac);
        self.order.retain(|other| *other != mac);
    }

    /// Returns true if this address is known.
    #[must_use]
    pub fn knows(&self, mac: MacBytes) -> bool {
        self.known.contains_key(&mac)
    }

    /// Iterates over all addresses, in the order in which they were learnt.
    pub fn iter(&self) -> impl Iterator<Item = (MacBytes, LearntAddress)> + '_ {
        self.order.iter().filter_map(|mac| Some((*mac, *self.known.get(mac)?)))
    }

    /// Returns the number of addresses.
    #[must_use]
    pub fn len(&self) -> usize {
        self.order.len()
    }
}

fn vid(frame: &[u8]) -> Option<u16> {
    let tag = frame.get(12..16)?;
    let tpid = u16::from_be_bytes([tag[0], tag[1]]);
    matches!(tpid, 0x8100 | 0x88a8).then(|| u16::from_be_bytes([tag[2], tag[3]]) & 0xfff)
}

/// Returns true for an ARP packet whose sender and target addresses are equal (RFC 5227 §3).
fn is_gratuitous(frame: &[u8]) -> bool {
    let at = if vid(frame).is_some() { 18 } else { 14 };
    let arp = frame.get(at..at + 28);
    arp.is_some_and(|arp| arp[..6] == [0, 1, 8, 0, 6, 4] && arp[14..18] == arp[24..28])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(mac: u8) -> Vec<u8> {
        let mut frame = vec![0xff; 60];
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, mac]);
        frame[12..14].copy_from_slice(&[8, 0]);
        frame
    }

    fn gratuitous(mac: u8) -> Vec<u8> {
        let mut frame = from(mac);
        frame[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
        frame[28..32].copy_from_slice(&[10, 0, 0, 1]);
        frame[38..42].copy_from_slice(&[10, 0, 0, 1]);
        frame
    }

    #[test]
    fn the_first_learnt_makes_room() {
        let mut learnt = Learnt::new(2);
        assert_eq!(learnt.learn(0, &from(1)), Some(([2, 0, 0, 0, 0, 1], None)));
        assert_eq!(learnt.learn(0, &from(1)), None);
        learnt.learn(0, &from(2));
        assert_eq!(learnt.learn(0, &from(3)), Some(([2, 0, 0, 0, 0, 3], Some([2, 0, 0, 0, 0, 1]))));
        assert_eq!(learnt.iter().map(|(mac, _)| mac[5]).collect::<Vec<_>>(), [2, 3]);
    }

    #[test]
    fn groups_and_short_frames_are_nobody() {
        let mut learnt = Learnt::new(2);
        let mut group = from(1);
        group[6] |= 1;
        assert_eq!(learnt.learn(0, &group), None);
        assert_eq!(learnt.learn(0, &[0; 11]), None);
        assert_eq!(learnt.len(), 0);
    }

    #[test]
    fn only_gratuitous_arp_moves_an_address_and_not_at_once() {
        let mut learnt = Learnt::new(2);
        learnt.learn(0, &from(1));
        assert_eq!(learnt.has_moved(LOCK_NS, &from(1)), None);
        assert_eq!(learnt.has_moved(LOCK_NS - 1, &gratuitous(1)), None);
        assert_eq!(learnt.has_moved(LOCK_NS, &gratuitous(2)), None);
        assert_eq!(learnt.has_moved(LOCK_NS, &gratuitous(1)), Some([2, 0, 0, 0, 0, 1]));
        assert_eq!(learnt.len(), 0);
    }

    #[test]
    fn what_was_learnt_long_ago_is_forgotten_and_learnt_again() {
        let mut learnt = Learnt::new(2);
        learnt.learn(0, &from(1));
        learnt.learn(1, &from(2));
        assert_eq!((learnt.wake_ns(), learnt.age(AGE_NS - 1)), (Some(AGE_NS), None));
        assert_eq!((learnt.age(AGE_NS), learnt.age(AGE_NS)), (Some([2, 0, 0, 0, 0, 1]), None));
        assert_eq!(learnt.learn(AGE_NS, &from(1)), Some(([2, 0, 0, 0, 0, 1], None)));
        assert_eq!(learnt.iter().map(|(mac, _)| mac[5]).collect::<Vec<_>>(), [2, 1]);
    }

    #[test]
    fn the_tag_is_remembered() {
        let mut learnt = Learnt::new(2);
        let mut tagged = from(1);
        tagged.splice(12..12, [0x81, 0, 0x20, 7]);
        learnt.learn(5, &tagged);
        assert_eq!(
            learnt.iter().next(),
            Some(([2, 0, 0, 0, 0, 1], LearntAddress { vid: Some(7), since_ns: 5 }))
        );
    }
}
