//! Packets in flight, in an arena, and a ledger of their fates.

use crate::fabric::{DROPS, Drop, PacketRoute};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketKind {
    /// Packet `number` of flow `of`.
    Data,
    /// The acknowledgement of a packet: all packets below `next` have arrived.
    Ack,
    /// Probe `number` of node `of` along a path.
    Probe,
    /// The answer to a probe; `stamp` is the one-way delay.
    Answer,
    /// DOCA-AR's probe of flow `of`, from port `number`.
    DocaProbe,
    /// Its echo.
    DocaEcho,
}

/// A packet.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// The links that the packet takes, from the sender to the receiver.
    pub way: PacketRoute,
    /// The sender's clock at departure, ns; for an answer, the one-way delay of the probe.
    pub stamp: u64,
    /// For an acknowledgement, the time at which the packet left, ns.
    pub echo: u64,
    /// Flow or node.
    pub of: u32,
    /// The number of the packet in its flow, or of the probe.
    pub number: u32,
    /// The number below which all packets are acknowledged.
    pub next: u32,
    /// The lower half of the switches' hash.
    pub hash: u32,
    /// The bytes that the packet takes on the wire, with all headers.
    pub bytes: u16,
    /// What the packet is: data, an acknowledgement, a probe, or an answer to one.
    pub kind: PacketKind,
    /// The index of the link that the packet is on.
    pub at: u8,
    /// Number of links on the packet's route.
    pub links: u8,
    /// The path that the sender chose.
    pub path: u8,
    /// Whether the packet may be marked.
    pub markable: bool,
    /// Whether the packet was marked, or acknowledges a marked packet.
    pub marked: bool,
    /// Whether the packet was sent after a timeout.
    pub late: bool,
}

/// All packets in flight.
#[derive(Default)]
pub struct Arena {
    packets: Vec<Packet>,
    free: Vec<u32>,
}

impl Arena {
    /// Adds a packet; returns its index.
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

    /// The packet at an index.
    #[inline]
    pub fn at(&mut self, at: u32) -> &mut Packet {
        &mut self.packets[at as usize]
    }

    /// Removes a packet.
    pub fn remove(&mut self, at: u32) -> Packet {
        self.free.push(at);
        self.packets[at as usize]
    }

    /// The number of packets in flight.
    #[must_use]
    pub fn len(&self) -> u64 {
        (self.packets.len() - self.free.len()) as u64
    }
}

/// The fate of all packets: sent = delivered + dropped + in flight.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// Packets that a host sent.
    pub sent: u64,
    /// Packets that a host received.
    pub delivered: u64,
    /// Packets in flight at the end.
    pub in_flight: u64,
    /// Packets dropped, by reason.
    pub dropped: BTreeMap<String, u64>,
    /// How many of the packets sent were probes, answers and echoes.
    pub probes: u64,
    /// Packets that a switch marked.
    pub marked: u64,
    /// Data packets retransmitted.
    pub again: u64,
}

/// The ledger during a run.
#[derive(Default)]
pub struct Account {
    /// The ledger without its drops, which are counted by index during a run.
    pub ledger: Ledger,
    drops: [u64; DROPS.len()],
}

impl Account {
    /// Counts a drop.
    pub fn drop(&mut self, reason: Drop) {
        self.drops[reason as usize] += 1;
    }

    /// The final ledger, given the number of packets in flight.
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
    /// Adds the ledger of another run.
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

    /// Returns true if all packets are accounted for.
    #[must_use]
    pub fn balances(&self) -> bool {
        self.sent == self.delivered + self.in_flight + self.dropped.values().sum::<u64>()
    }
}
