//! Packets on their way, in an arena, and the account of what became of them.

use crate::fabric::{DROPS, Drop, Way};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Packet `number` of flow `of`.
    Data,
    /// Its acknowledgement: all below `next` have arrived.
    Ack,
    /// Probe `number` of node `of` along a path.
    Probe,
    /// Its answer; `stamp` is the one-way delay.
    Answer,
    /// DOCA-AR's probe of flow `of`, from port `number`.
    DocaProbe,
    /// Its echo.
    DocaEcho,
}

/// A packet.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// Where it leads.
    pub way: Way,
    /// The sender's clock at departure, ns; for an answer, what the probe took.
    pub stamp: u64,
    /// For an acknowledgement, the time at which the packet left, ns.
    pub echo: u64,
    /// Flow or node.
    pub of: u32,
    /// Number.
    pub number: u32,
    /// Acknowledged below this.
    pub next: u32,
    /// The lower half of the switches' hash.
    pub hash: u32,
    /// Bytes on the wire.
    pub bytes: u16,
    /// What it is.
    pub kind: Kind,
    /// The link it is on, and how many there are.
    pub at: u8,
    /// Links of its way.
    pub links: u8,
    /// The path that the sender chose.
    pub path: u8,
    /// It may be marked.
    pub markable: bool,
    /// It was marked, or acknowledges one that was.
    pub marked: bool,
    /// It was sent after a timeout.
    pub late: bool,
}

/// All packets that are on their way.
#[derive(Default)]
pub struct Arena {
    packets: Vec<Packet>,
    free: Vec<u32>,
}

impl Arena {
    /// Adds a packet; returns its place.
    pub fn add(&mut self, packet: Packet) -> u32 {
        match self.free.pop() {
            Some(at) => {
                self.packets[at as usize] = packet;
                at
            }
            None => {
                self.packets.push(packet);
                self.packets.len() as u32 - 1
            }
        }
    }

    /// The packet at a place.
    #[inline]
    pub fn at(&mut self, at: u32) -> &mut Packet {
        &mut self.packets[at as usize]
    }

    /// Removes a packet.
    pub fn remove(&mut self, at: u32) -> Packet {
        self.free.push(at);
        self.packets[at as usize]
    }

    /// Packets on their way.
    #[must_use]
    pub fn len(&self) -> u64 {
        (self.packets.len() - self.free.len()) as u64
    }
}

/// What became of all packets: sent = delivered + dropped + in flight.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// Packets that a host sent.
    pub sent: u64,
    /// Packets that a host received.
    pub delivered: u64,
    /// Packets on their way at the end.
    pub in_flight: u64,
    /// Packets dropped, by reason.
    pub dropped: BTreeMap<String, u64>,
    /// Those of the packets sent that were probes, answers and echoes.
    pub probes: u64,
    /// Packets that a switch marked.
    pub marked: u64,
    /// Data packets sent again.
    pub again: u64,
}

/// The account while it runs.
#[derive(Default)]
pub struct Account {
    /// All but drops.
    pub ledger: Ledger,
    drops: [u64; DROPS.len()],
}

impl Account {
    /// Counts a drop.
    pub fn drop(&mut self, reason: Drop) {
        self.drops[reason as usize] += 1;
    }

    /// The account, with so many packets on their way.
    #[must_use]
    pub fn closed(&self, in_flight: u64) -> Ledger {
        let drops = DROPS.iter().zip(self.drops).filter(|(_, count)| *count > 0);
        Ledger {
            in_flight,
            dropped: drops.map(|(name, count)| ((*name).to_string(), count)).collect(),
            ..self.ledger.clone()
        }
    }
}

impl Ledger {
    /// Adds the account of another run.
    pub fn add(&mut self, other: &Ledger) {
        self.sent += other.sent;
        self.delivered += other.delivered;
        self.in_flight += other.in_flight;
        self.probes += other.probes;
        self.marked += other.marked;
        self.again += other.again;
        for (reason, count) in &other.dropped {
            *self.dropped.entry(reason.clone()).or_default() += count;
        }
    }

    /// Returns true if no packet was forgotten.
    #[must_use]
    pub fn balances(&self) -> bool {
        self.sent == self.delivered + self.in_flight + self.dropped.values().sum::<u64>()
    }
}
