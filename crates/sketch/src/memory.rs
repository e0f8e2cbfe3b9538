//! Tables in huge pages: an update reads places that are far apart, and with pages of 4 KiB each of them
//! misses the TLB. This module also makes updates in batches, whose fetches overlap.

use crate::aggregator::Evicted;

/// Number of updates whose memory is fetched at once: with four places each, the lines fit into the
/// first-level cache.
pub const CHUNK: usize = 32;

/// Finds the places of many updates in `sketch`, then makes the updates at them. Finding a place fetches it.
#[inline(always)]
pub fn in_chunks<S, const W: usize, P: Copy + Default>(
    sketch: &mut S,
    updates: &[Evicted<W>],
    find: impl Fn(&S, &Evicted<W>) -> P,
    update: impl Fn(&mut S, &Evicted<W>, P),
) {
    for chunk in updates.chunks(CHUNK) {
        let mut places = [P::default(); CHUNK];
        for (place, one) in places.iter_mut().zip(chunk) {
            *place = find(sketch, one);
        }
        for (place, one) in places.iter().zip(chunk) {
            update(sketch, one, *place);
        }
    }
}

/// Returns a vector of `length` values, whose memory the kernel was asked to back with huge pages before it
/// is touched.
pub fn table<T: Clone>(value: T, length: usize) -> Vec<T> {
    let mut table = Vec::with_capacity(length);
    weir_packet::advise_huge(&table);
    table.resize(length, value);
    table
}
