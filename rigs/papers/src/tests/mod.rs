//! Properties of all sketches: that aggregation leaves no trace, that merging does not either, and that
//! bounds hold. The truth is [`weir_sketch::Exact`].

mod accuracy;
mod bounds;
mod hostile;
mod linear;
mod merging;

use crate::*;
use weir_packet::random::Random;
use weir_sketch::traffic::{Flood, PopZipf, Trains, Zipf, five_tuple};
use weir_sketch::*;

pub(super) const SEED: Seed = Seed::new([0x0123_4567_89ab_cdef, 0x1122_3344_5566_7788]);

/// A stream of traffic of a random kind, as flow numbers.
pub(super) fn stream(number: u64, packets: usize) -> Vec<u64> {
    let mut random = Random::new(number);
    let bits = 4 + random.below(10);
    let flows = 1 + random.below(1 << bits);
    let skew = random.uniform() * 2.0;
    let zipf = Zipf::new(flows, skew, number);
    match random.below(4) {
        0 => zipf.take(packets).collect(),
        1 => PopZipf::new(flows, skew, number).take(packets).collect(),
        2 => Trains::new(zipf, 10.0, 16, number).take(packets).collect(),
        _ => Flood::new(zipf, 0.3, number).take(packets).collect(),
    }
}

/// The packets of a stream, of 60 to 1500 bytes.
pub(super) fn packets(flows: &[u64]) -> Vec<Update<2>> {
    let mut random = Random::new(flows.len() as u64);
    flows.iter().map(|flow| Update::packet(five_tuple(*flow), 60 + random.below(1441))).collect()
}

/// The truth about packets.
pub(super) fn exact(packets: &[Update<2>]) -> Exact<2> {
    let mut exact = Exact::default();
    packets.iter().for_each(|packet| exact.add(packet));
    exact
}

/// One item for each packet.
pub(super) fn items(packets: &[Update<2>]) -> Vec<Evicted<2>> {
    let hash = KeyHash::new(&SEED);
    let item = |update: &Update<2>| Evicted {
        item: hash.item(update.key),
        packets: update.packets,
        bytes: update.bytes,
        note: (),
    };
    packets.iter().map(item).collect()
}

/// The output of a small aggregator for these packets.
pub(super) fn aggregated(packets: &[Update<2>], policy: Policy) -> Vec<Evicted<2>> {
    let mut aggregator = Aggregator::with_bytes(4096, policy, Gate::default(), &SEED).unwrap();
    let mut out = Vec::with_capacity(packets.len() + aggregator.capacity());
    aggregator.add(packets, &mut out);
    aggregator.flush(|evicted| out.push(*evicted));
    out
}

/// The source address of a narrow key, as a number.
pub(super) fn source(key: &[u64; 2]) -> u64 {
    key[0] >> 32
}
