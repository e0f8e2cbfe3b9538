//! The traffic of `weir bench measure`: the packets of one interval, as updates of keys of one width.

use serde_json::{Value, json};
use weir_sketch::Update;
use weir_sketch::traffic::{Flood, PopZipf, Trains, Zipf};

/// Bytes counted per packet.
pub const FRAME: u64 = 64;

/// Mean length of a packet train, and number of concurrent trains.
const TRAIN: (f64, usize) = (10.0, 64);

/// Share of the packets that a SYN flood sends.
const FLOOD: f64 = 0.3;

/// A kind of traffic, over a given number of flows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Traffic {
    /// True Zipf with a skew, with independent packets.
    Zipf(f64),
    /// The `popzipf` of the paper's generator, whose parameter is not the exponent.
    PopZipf(f64),
    /// True Zipf with a skew, in packet trains.
    Trains(f64),
    /// True Zipf with a skew, along with a SYN flood.
    Flood(f64),
}

impl Traffic {
    /// Its name in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Traffic::Zipf(_) => "zipf",
            Traffic::PopZipf(_) => "popzipf",
            Traffic::Trains(_) => "trains",
            Traffic::Flood(_) => "flood",
        }
    }

    /// Its skew.
    pub fn skew(self) -> f64 {
        match self {
            Traffic::Zipf(skew) | Traffic::PopZipf(skew) | Traffic::Trains(skew) | Traffic::Flood(skew) => {
                skew
            }
        }
    }

    /// Returns an endless sequence of its flow numbers.
    pub fn flows(self, flows: u64, seed: u64) -> Box<dyn Iterator<Item = u64>> {
        let zipf = |skew| Zipf::new(flows, skew, seed);
        match self {
            Traffic::Zipf(skew) => Box::new(zipf(skew)),
            Traffic::PopZipf(skew) => Box::new(PopZipf::new(flows, skew, seed)),
            Traffic::Trains(skew) => Box::new(Trains::new(zipf(skew), TRAIN.0, TRAIN.1, seed)),
            Traffic::Flood(skew) => Box::new(Flood::new(zipf(skew), FLOOD, seed)),
        }
    }

    /// Returns the packets of an interval, with keys made by `key`.
    pub fn packets<const W: usize>(
        self,
        size: Size,
        seed: u64,
        key: impl Fn(u64) -> [u64; W],
    ) -> Vec<Update<W>> {
        let flows = self.flows(size.flows, seed).take(size.packets);
        flows.map(|flow| Update::packet(key(flow), FRAME)).collect()
    }

    /// Describes it as the origin of packets.
    pub fn origin(self) -> PacketOrigin {
        PacketOrigin { name: self.name(), skew: Some(self.skew()) }
    }
}

/// Where packets come from: a kind of traffic or, without a skew, a recording.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PacketOrigin {
    /// Its name in tables and JSON.
    pub name: &'static str,
    /// Its skew.
    pub skew: Option<f64>,
}

impl PacketOrigin {
    /// A recording.
    pub const TRACE: PacketOrigin = PacketOrigin { name: "trace", skew: None };

    /// Adds its fields to a JSON object.
    pub fn put(self, row: &mut Value) {
        row["skew"] = json!(self.skew);
        row["traffic"] = json!(self.name);
    }
}

impl std::fmt::Display for PacketOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.skew {
            Some(skew) => write!(f, "{} {skew}", self.name),
            None => f.write_str(self.name),
        }
    }
}

/// The size of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Number of flows that packets are drawn from.
    pub flows: u64,
    /// Packets per interval.
    pub packets: usize,
    /// Rounds whose median is reported.
    pub rounds: usize,
}

impl Size {
    /// The paper's size: 600,000 flows and 2^21 packets per interval.
    pub const PAPER: Size = Size { flows: 600_000, packets: 1 << 21, rounds: 5 };
    /// A quick run: the same flows, a quarter of the packets.
    pub const QUICK: Size = Size { flows: 600_000, packets: 1 << 19, rounds: 3 };
}
