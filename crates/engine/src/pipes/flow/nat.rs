//! The addresses and ports of a NAT pool that the flows of a pipe have taken. Each flow takes its own: in the
//! terms of RFC 4787 §4.1, the mapping depends on the destination's address and port.
//!
//! The free places of a slice are in two sets. A flow takes the lowest of the first set; places that flows
//! leave go into the second, and when the first is empty, the two swap. So no place is reused before all that
//! were free at the last swap have been handed out, and the choice does not depend on the order in which
//! simultaneous flows leave.
//!
//! A flow and the flow of its answers share one address and port, which is free once both have left the
//! table. Taking and leaving touch the same few words, regardless of the size of the pool and of the table.
//!
//! Costs: two bits for each place of the pool, and 8 bytes for each flow of the table.

use std::collections::HashMap;
use weir_program::nat::{Binding, NatPool, SLICES};
use weir_table::NumberSet;

const NONE: u32 = u32::MAX;

/// A place of a pool: its slice, and the position within it.
pub type Place = (u32, u32);

/// The free places of a slice.
#[derive(Clone, Debug)]
struct Slice {
    fresh: NumberSet,
    /// Places that flows have left during this round.
    rested: NumberSet,
    /// Whether any place of the slice was ever taken.
    is_used: bool,
}

/// The place in the pool that a row of the flow table holds.
#[derive(Clone, Copy, Debug)]
struct PoolLease {
    place: u32,
    /// The row of the other direction.
    other: u32,
}

const UNBOUND: PoolLease = PoolLease { place: NONE, other: NONE };

/// The places of a pool, and the flows that have them.
#[derive(Clone, Debug)]
pub struct Bindings {
    pool: NatPool,
    slices: Vec<Slice>,
    links: Vec<PoolLease>,
    /// Places taken.
    used: usize,
    /// The rows of flows that have arrived from another table, by place.
    moved: HashMap<Place, u32>,
    /// Places of flows that found no room in this table.
    lost: Vec<Place>,
}

impl Slice {
    fn of(pool: &NatPool, slice: u32) -> Slice {
        let bound = pool.bound();
        let mut fresh = NumberSet::below(bound);
        let has = |place: &u32| pool.binding(slice, *place).is_some();
        (0..bound).filter(has).for_each(|place| _ = fresh.insert(place));
        Slice { fresh, rested: NumberSet::below(bound), is_used: false }
    }

    fn next(&self) -> Option<u32> {
        self.fresh.first().or_else(|| self.rested.first())
    }

    fn take(&mut self, place: u32) -> bool {
        if self.fresh.is_empty() {
            std::mem::swap(&mut self.fresh, &mut self.rested);
        }
        self.claim(place)
    }

    /// Takes a place out of turn.
    fn claim(&mut self, place: u32) -> bool {
        self.is_used = true;
        self.fresh.remove(place) || self.rested.remove(place)
    }
}

impl Bindings {
    /// Creates bindings with nothing taken. `rows` is the number of flows that fit in the table.
    #[must_use]
    pub fn new(pool: &NatPool, rows: u32) -> Bindings {
        Bindings {
            slices: (0..SLICES).map(|slice| Slice::of(pool, slice)).collect(),
            pool: pool.clone(),
            links: vec![UNBOUND; rows as usize],
            used: 0,
            moved: HashMap::new(),
            lost: Vec::new(),
        }
    }

    /// Returns the pool.
    #[must_use]
    pub fn pool(&self) -> &NatPool {
        &self.pool
    }

    /// Returns how many places are taken.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used
    }

    /// Returns the place that the next flow of a slice will take.
    #[inline]
    #[must_use]
    pub fn next(&self, slice: u32) -> Option<Place> {
        Some((slice, self.slices[slice as usize].next()?))
    }

    /// Returns the place that the next flow of a slice will take once the flow that holds `freed`, a place of
    /// this slice, has left.
    #[must_use]
    pub fn next_beside(&self, slice: u32, freed: Option<Place>) -> Option<Place> {
        let next = self.next(slice);
        match freed.filter(|_| self.is_round_over(slice)) {
            Some(freed) => Some(next.map_or(freed, |next| next.min(freed))),
            None => next,
        }
    }

    /// Whether the round of a slice ends with the next flow.
    #[inline]
    #[must_use]
    pub fn is_round_over(&self, slice: u32) -> bool {
        self.slices[slice as usize].fresh.is_empty()
    }

    /// Returns the address and the port of a place.
    #[must_use]
    pub fn binding(&self, (slice, place): Place) -> Option<Binding> {
        self.pool.binding(slice, place)
    }

    /// Gives a place to the flow of a row.
    pub fn take(&mut self, row: u32, (slice, place): Place) {
        if self.slices[slice as usize].take(place) {
            self.used += 1;
            self.links[row as usize] = PoolLease { place: place * SLICES + slice, other: NONE };
        }
    }

    /// Shares the place of this row's flow with the flow of another row: that of its answers.
    pub fn join(&mut self, row: u32, answers: u32) {
        let PoolLease { place, .. } = self.links[row as usize];
        if place != NONE {
            self.links[row as usize].other = answers;
            self.links[answers as usize] = PoolLease { place, other: row };
        }
    }

    /// Returns the place of the flow of a row.
    #[must_use]
    pub fn of_row(&self, row: u32) -> Option<Place> {
        let place = self.links.get(row as usize)?.place;
        (place != NONE).then_some((place % SLICES, place / SLICES))
    }

    /// Returns the row of the other direction, if it has the same place.
    #[inline]
    #[must_use]
    pub fn other(&self, row: u32) -> Option<u32> {
        Some(self.links.get(row as usize)?.other).filter(|&other| other != NONE)
    }

    /// Called when the flow of a row has left the table, or no longer has a place in the pool.
    pub fn leave(&mut self, row: u32) {
        let other = self.other(row);
        if let Some(place) = self.detach(row)
            && other.is_none()
        {
            self.free(place);
        }
    }

    fn free(&mut self, (slice, place): Place) {
        let Slice { fresh, rested, .. } = &mut self.slices[slice as usize];
        self.used -= usize::from(!fresh.contains(place) && rested.insert(place));
    }

    /// Called when the flow of a row moves to another table and keeps its place.
    pub fn detach(&mut self, row: u32) -> Option<Place> {
        let place = self.of_row(row)?;
        if let Some(other) = self.other(row) {
            self.links[other as usize].other = NONE;
        }
        self.links[row as usize] = UNBOUND;
        Some(place)
    }

    /// Called when a flow with a place has arrived from another table in this row.
    pub fn attach(&mut self, row: u32, place: Place) {
        let (slice, number) = place;
        self.links[row as usize] = PoolLease { place: number * SLICES + slice, other: NONE };
        match self.moved.insert(place, row) {
            Some(other) => {
                self.links[other as usize].other = row;
                self.links[row as usize].other = other;
            }
            None => {
                // Places of a slice that has moved here as well are taken already.
                self.used += usize::from(self.slices[slice as usize].claim(number));
            }
        }
    }

    /// Called when a flow with a place has ended in transit.
    pub fn lose(&mut self, place: Place) {
        self.lost.push(place);
    }

    /// Called when all flows have arrived: places whose two flows have ended become free.
    pub fn arrived(&mut self) {
        for place in std::mem::take(&mut self.lost) {
            if !self.moved.contains_key(&place) {
                self.free(place);
            }
        }
        self.moved = HashMap::new();
    }

    /// Returns the place here that corresponds to a place of another pool, if this pool has the address and
    /// the port.
    #[must_use]
    pub fn place_of(&self, other: &Bindings, place: Place) -> Option<Place> {
        self.pool.place(other.binding(place)?)
    }

    /// Whether both have the same addresses and ports.
    #[must_use]
    pub fn is_alike(&self, other: &Bindings) -> bool {
        let NatPool { prefixes, first, last, .. } = &self.pool;
        (prefixes, first, last) == (&other.pool.prefixes, &other.pool.first, &other.pool.last)
    }

    /// Exchanges the free places of a slice with those of another pool's slice, if that was ever used.
    pub fn take_slice(&mut self, other: &mut Bindings, slice: u32) {
        if other.slices[slice as usize].is_used {
            let taken = other.taken_of(slice);
            std::mem::swap(&mut self.slices[slice as usize], &mut other.slices[slice as usize]);
            self.used += taken;
            other.used -= taken;
        }
    }

    /// Returns how many places of a slice are taken.
    fn taken_of(&self, slice: u32) -> usize {
        let Slice { fresh, rested, .. } = &self.slices[slice as usize];
        self.pool.places_of(slice) as usize - (fresh.len() + rested.len()) as usize
    }
}
