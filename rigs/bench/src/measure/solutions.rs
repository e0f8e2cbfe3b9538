//! The nine solutions of Agg-Evict's paper, each empty and of the same size as there.

use super::round::{SEED, Sketch};
use anyhow::Result;
use weir_papers::{
    CountMin, FlajoletMartin, FlowRadar, LinearCounting, Nine, NineBytes, Reversible, SpaceSaving, TwoLevel,
    UnivMon,
};
use weir_sketch::Mrac;
use weir_sketch::key::narrow;

/// Levels of UnivMon, and keys per level.
const UNIVMON: (usize, usize) = (14, 128);

/// The names of the nine solutions, in the paper's order.
pub const NAMES: [&str; 9] = [
    "univmon",
    "two_level",
    "space_saving",
    "reversible",
    "flow_radar",
    "linear_counting",
    "count_min",
    "flajolet_martin",
    "mrac",
];

/// Returns true if a solution counts pairs of a source and a destination.
pub fn needs_pairs(name: &str) -> bool {
    name == "two_level"
}

/// The keys of a measurement: flows of one width in words, and how to find their sources.
#[derive(Clone, Copy)]
pub struct Keys<const W: usize> {
    /// Bytes of a packet's headers that the key represents.
    pub bytes: u32,
    /// The key of a flow number.
    pub of: fn(u64) -> [u64; W],
    /// The key of a recorded flow; `None` if it has too few bytes for an IPv6 address.
    pub from: fn(&[u64; 5]) -> Option<[u64; W]>,
    /// The number of a key's source.
    pub source: fn(&[u64; W]) -> u64,
    /// Whether a key has both a source and a destination, as TwoLevel requires.
    pub has_pair: bool,
}

/// Source addresses.
pub const ADDRESSES: Keys<1> = Keys {
    bytes: 4,
    of: |flow| [weir_sketch::traffic::address(flow)],
    from: |key| narrow(key).map(|[addresses, _]| [addresses >> 32]),
    source: |key| key[0],
    has_pair: false,
};

/// Source and destination addresses.
pub const PAIRS: Keys<1> = Keys {
    bytes: 8,
    of: |flow| [weir_sketch::traffic::five_tuple(flow)[0]],
    from: |key| narrow(key).map(|[addresses, _]| [addresses]),
    source: |key| key[0] >> 32,
    has_pair: true,
};

/// IPv4 addresses and ports.
pub const FOUR_TUPLES: Keys<2> = Keys {
    bytes: 12,
    of: |flow| without_protocol(weir_sketch::traffic::five_tuple(flow)),
    from: |key| narrow(key).map(without_protocol),
    source: |key| key[0] >> 32,
    has_pair: true,
};

/// Returns the addresses and the ports alone.
const fn without_protocol([addresses, last]: [u64; 2]) -> [u64; 2] {
    [addresses, last & 0xffff_ffff << 32]
}

/// IPv4 5-tuples.
pub const FIVE_TUPLES: Keys<2> = Keys {
    bytes: 13,
    of: weir_sketch::traffic::five_tuple,
    from: narrow,
    source: |key| key[0] >> 32,
    has_pair: true,
};

/// IPv6 5-tuples.
pub const FIVE_TUPLES_V6: Keys<5> = Keys {
    bytes: 37,
    of: five_tuple_v6,
    from: |key| Some(*key),
    source: weir_sketch::key::source_number,
    has_pair: true,
};

/// The widths of all keys, in bytes.
pub const WIDTHS: [u32; 5] =
    [ADDRESSES.bytes, PAIRS.bytes, FOUR_TUPLES.bytes, FIVE_TUPLES.bytes, FIVE_TUPLES_V6.bytes];

/// A flow key without the IPv4 marker, for IPv6 flows only.
fn five_tuple_v6(flow: u64) -> [u64; 5] {
    let [addresses, last] = weir_sketch::traffic::five_tuple(flow);
    let network = 0x2001_0db8_0000_0000;
    [network | addresses >> 32, addresses, network | addresses & 0xffff_ffff, addresses.rotate_left(32), last]
}

/// Creates one of the nine solutions, empty.
pub fn solution<const W: usize, const Q: usize, const L: usize>(
    name: &str,
    source: fn(&[u64; W]) -> u64,
) -> Result<Sketch<W>> {
    let bytes = if Q == 4 { NineBytes::PAPER } else { NineBytes::PAPER_V6 };
    Ok(match name {
        "count_min" => {
            let mut sketch = CountMin::<u32, 4>::with_bytes(bytes.count_min, &SEED)?;
            Box::new(move |keys| sketch.add(keys))
        }
        "flow_radar" => {
            let mut sketch = FlowRadar::<W>::with_bytes(bytes.flow_radar, &SEED)?;
            Box::new(move |keys| sketch.add(keys))
        }
        "flajolet_martin" => {
            let mut sketch = FlajoletMartin::with_bytes(bytes.flajolet_martin, &SEED)?;
            Box::new(move |keys| keys.iter().for_each(|one| sketch.update(one.item.hash)))
        }
        "linear_counting" => {
            let mut sketch = LinearCounting::with_bytes(bytes.linear_counting, &SEED)?;
            Box::new(move |keys| sketch.add(keys))
        }
        "mrac" => {
            let mut sketch = Mrac::<u32>::with_bytes(bytes.mrac, &SEED)?;
            Box::new(move |keys| sketch.add(keys))
        }
        "reversible" => {
            let mut sketch = Reversible::<Q, L>::with_bytes(bytes.reversible, &SEED)?;
            Box::new(move |keys| sketch.add(keys, source))
        }
        "space_saving" => {
            let mut sketch = SpaceSaving::<W>::with_bytes(bytes.space_saving)?;
            Box::new(move |keys| keys.iter().for_each(|one| sketch.update(&one.item, one.packets)))
        }
        "two_level" => {
            let mut sketch = TwoLevel::<Q, L>::with_bytes(bytes.two_level, &SEED)?;
            Box::new(move |keys| sketch.add(keys, source))
        }
        "univmon" => {
            let (levels, keys) = UNIVMON;
            let mut sketch = UnivMon::<W>::with_bytes(bytes.univmon, levels, keys, &SEED)?;
            Box::new(move |keys| sketch.add(keys))
        }
        _ => {
            let mut nine = Nine::<W, Q, L>::with_bytes(&bytes, &SEED)?;
            Box::new(move |keys| nine.add(keys, source))
        }
    })
}
