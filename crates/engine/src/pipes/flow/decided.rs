//! The decisions for flows: a number in each flow leads to the row of an entry.
//!
//! The number outlives the row. When an entry is removed, or a swap has no row for it, the number leads
//! nowhere from then on: its flows are gone for all packets at once, at a cost independent of their number,
//! and leave the table in slices, as their deltas are accepted. A number is reused once its last flow has
//! left.

use crate::pipes::lookup::NO_ROW;
use std::sync::Arc;
use weir_packet::prefetch;
use weir_program::census::Census;
use weir_table::{Belonging, Decision, Flow};

/// The maximum number of decisions for which all of them are in a near cache.
const FAR_MIN: usize = 4096;

/// Numbers of decisions, and where they lead.
#[derive(Clone, Debug, Default)]
pub struct Decided {
    /// The row of each number, or [`NO_ROW`].
    rows: RowsOfNumbers,
    /// How many flows each number has.
    flows: Vec<u32>,
    /// The target to which the flows of each number are attributed.
    of: Vec<Belonging>,
    /// The number of each row, plus one; 0 for a row without a number.
    of_rows: Vec<u32>,
    /// Numbers that were free when they were added here.
    free: Vec<u32>,
    /// Flows whose number leads nowhere.
    removed: usize,
    /// Data that a successor does not need; the worker frees nothing.
    replaced: Option<Renumbering>,
    /// Where all workers count the flows of each target.
    census: Arc<Census>,
    /// The flows of numbers below this one have been counted in the census.
    counted: usize,
}

/// The row of each number, or [`NO_ROW`]. While each number equals its row, as it does where no entry has
/// been removed, looking up a packet's row accesses no memory: a million of them are four megabytes.
#[derive(Clone, Debug, Default)]
struct RowsOfNumbers {
    rows: Vec<u32>,
    /// How many numbers differ from their rows.
    strays: usize,
}

impl RowsOfNumbers {
    fn with_capacity(numbers: usize) -> RowsOfNumbers {
        RowsOfNumbers { rows: Vec::with_capacity(numbers), strays: 0 }
    }

    fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns the row of a number that exists.
    fn at(&self, number: usize) -> u32 {
        self.rows[number]
    }

    /// Returns the row of a number, or [`NO_ROW`].
    #[inline(always)]
    fn get(&self, number: u32) -> u32 {
        if self.strays == 0 && (number as usize) < self.rows.len() {
            return number;
        }
        self.rows.get(number as usize).copied().unwrap_or(NO_ROW)
    }

    fn push(&mut self, row: u32) {
        self.strays += usize::from(self.rows.len() as u32 != row);
        self.rows.push(row);
    }

    fn set(&mut self, number: usize, row: u32) {
        let was = std::mem::replace(&mut self.rows[number], row);
        self.strays -= usize::from(was != number as u32);
        self.strays += usize::from(row != number as u32);
    }
}

/// Where the numbers of a previous program lead in the one that takes over. They are resolved one by one
/// while the previous program runs, because there may be a million of them.
#[derive(Clone, Debug)]
pub struct Renumbering {
    rows: RowsOfNumbers,
    of: Vec<Belonging>,
    of_rows: Vec<u32>,
    /// The numbers that led somewhere and no longer do.
    lost: Vec<u32>,
    /// The next row that may need a number.
    row: u32,
}

impl Renumbering {
    /// Begins to resolve numbers, with all memory allocated.
    pub fn new(old: &Decided, new: &Decided) -> Renumbering {
        let most = old.rows.len() + new.rows.len();
        Renumbering {
            rows: RowsOfNumbers::with_capacity(most),
            of: Vec::with_capacity(most),
            of_rows: vec![0; new.of_rows.len()],
            lost: Vec::with_capacity(old.rows.len()),
            row: 0,
        }
    }

    /// Resolves the next number by `row_now`, which maps old rows to current ones; after the last number,
    /// assigns a number to the next row without one. Returns false if nothing was left to do.
    pub fn step(
        &mut self,
        (old, new): (&Decided, &Decided),
        generation: u8,
        row_now: impl FnOnce(u32) -> Option<u32>,
    ) -> bool {
        let present = |row: u32| {
            let of = new.belonging(new.of_row(row)?)?;
            Some((row, Belonging { generation, ..of }))
        };
        let number = self.rows.len();
        if number < old.rows.len() {
            let was = old.rows.at(number);
            let now = if was == NO_ROW { None } else { row_now(was).and_then(present) };
            let now = now.filter(|&(row, _)| self.is_free(row));
            if now.is_none() && was != NO_ROW {
                self.lost.push(number as u32);
            }
            let (row, of) = now.unwrap_or((NO_ROW, old.of[number]));
            self.add(row, of);
            return true;
        }
        let row = self.row;
        if row as usize >= self.of_rows.len() {
            return false;
        }
        self.row += 1;
        if let Some((row, of)) = present(row).filter(|&(row, _)| self.is_free(row)) {
            self.add(row, of);
        }
        true
    }

    fn is_free(&self, row: u32) -> bool {
        self.of_rows.get(row as usize) == Some(&0)
    }

    fn add(&mut self, row: u32, of: Belonging) {
        self.rows.push(row);
        self.of.push(of);
        if let Some(number) = self.of_rows.get_mut(row as usize) {
            *number = self.rows.len() as u32;
        }
    }
}

impl Decided {
    /// Returns the row that a number leads to, or [`NO_ROW`].
    #[inline(always)]
    pub fn row(&self, number: u32) -> u32 {
        self.rows.get(number)
    }

    /// Whether a flow is live, that is, did not end with its entry.
    #[inline]
    pub fn is_alive(&self, flow: &Flow) -> bool {
        match flow.decision() {
            Decision::Pinned(number) => self.row(number) != NO_ROW,
            Decision::Group(_) | Decision::Cached(_) => true,
        }
    }

    /// Whether finding where numbers lead takes a look-up in a table that is too large for a near cache.
    #[inline(always)]
    pub fn is_far(&self) -> bool {
        self.rows.len() > FAR_MIN && self.rows.strays > 0
    }

    /// Prefetches what a number leads to.
    #[inline(always)]
    pub fn prefetch(&self, number: u32) {
        self.rows.rows.get(number as usize).into_iter().for_each(prefetch);
    }

    /// Returns the number that leads to a row.
    #[inline]
    pub fn of_row(&self, row: u32) -> Option<u32> {
        self.of_rows.get(row as usize)?.checked_sub(1)
    }

    /// Returns what the flows of a number are attributed to.
    pub fn belonging(&self, number: u32) -> Option<Belonging> {
        self.of.get(number as usize).copied()
    }

    /// Counts flows in this census from now on. There must be no flows yet.
    pub fn count_in(&mut self, census: &Arc<Census>) {
        self.census = Arc::clone(census);
    }

    /// Returns where flows are counted.
    #[inline]
    pub fn census(&self) -> &Census {
        &self.census
    }

    /// Adds the flows of up to `most` numbers of a predecessor to the count.
    pub fn count_some(&mut self, most: usize) {
        let end = self.rows.len().min(self.counted.saturating_add(most));
        for number in self.counted..end {
            if self.rows.at(number) != NO_ROW && self.flows[number] > 0 {
                self.census.come(self.of[number].target, self.flows[number]);
            }
        }
        self.counted = end;
    }

    /// Counts a retransmitted SYN of a flow with this number.
    pub fn repeated(&self, number: u32) {
        if let Some(of) = self.of.get(number as usize) {
            self.census.repeat(of.target);
        }
    }

    /// Counts a flow with this number whose target has not answered its SYN, or has answered it with a reset.
    pub fn unanswered(&self, number: u32) {
        if let Some(of) = self.of.get(number as usize) {
            self.census.leave_unanswered(of.target);
        }
    }

    /// Counts a flow that was learnt for a number.
    #[inline]
    pub fn begun(&self, number: u32) {
        if let Some(of) = self.of.get(number as usize) {
            self.census.begin(of.target);
        }
    }

    /// Number of flows that are removed but have not left the table.
    pub fn removed(&self) -> usize {
        self.removed
    }

    /// Creates a number for a new row: the row's own, if no flow has it.
    pub fn add(&mut self, row: u32, of: Belonging) {
        let number = match self.take_free(row) {
            Some(number) => {
                self.rows.set(number as usize, row);
                self.of[number as usize] = of;
                number
            }
            None => {
                self.counted += usize::from(self.counted == self.rows.len());
                self.rows.push(row);
                self.flows.push(0);
                self.of.push(of);
                self.rows.len() as u32 - 1
            }
        };
        let needed = row as usize + 1;
        if self.of_rows.len() < needed {
            self.of_rows.resize(needed, 0);
        }
        self.of_rows[row as usize] = number + 1;
    }

    /// Makes the number of this row lead nowhere from now on.
    pub fn remove(&mut self, row: u32) {
        if let Some(number) = self.of_row(row) {
            self.of_rows[row as usize] = 0;
            self.rows.set(number as usize, NO_ROW);
            self.lose(number);
        }
    }

    /// Counts a flow that was decided for a number.
    #[inline]
    pub fn joined(&mut self, number: u32) {
        if let Some(flows) = self.flows.get_mut(number as usize) {
            *flows += 1;
            if self.rows.at(number as usize) == NO_ROW {
                self.removed += 1;
            } else if (number as usize) < self.counted {
                self.census.come(self.of[number as usize].target, 1);
            }
        }
    }

    /// Counts a flow that has left the table.
    pub fn left(&mut self, number: u32) {
        let Some(flows) = self.flows.get_mut(number as usize) else { return };
        *flows -= 1;
        if self.rows.at(number as usize) == NO_ROW {
            self.removed -= 1;
            if *flows == 0 {
                self.let_go(number);
            }
        } else if (number as usize) < self.counted {
            self.census.go(self.of[number as usize].target, 1);
        }
    }

    /// Takes over the numbers of a predecessor with their flows. Its cost grows with the count of those
    /// numbers that lead nowhere from now on. Returns how many flows are removed.
    pub fn follow(&mut self, old: &mut Decided, mut now: Renumbering) -> usize {
        std::mem::swap(self, old);
        // The predecessor's census counts its flows as long as other workers use it; here they are counted in
        // slices.
        std::mem::swap(&mut self.census, &mut old.census);
        (self.counted, old.counted) = (0, 0);
        std::mem::swap(&mut self.rows, &mut now.rows);
        std::mem::swap(&mut self.of, &mut now.of);
        std::mem::swap(&mut self.of_rows, &mut now.of_rows);
        self.flows.resize(self.rows.len(), 0);
        let before = self.removed;
        now.lost.iter().for_each(|&number| self.lose(number));
        old.replaced = Some(now);
        self.removed - before
    }

    /// Takes over the numbers of a predecessor without their flows.
    pub fn follow_without_flows(&mut self, now: Renumbering) {
        let Renumbering { rows, of, of_rows, .. } = now;
        let nowhere = (0..).zip(&rows.rows).filter(|(_, row)| **row == NO_ROW);
        let (free, flows) = (nowhere.map(|(number, _)| number).collect(), vec![0; rows.len()]);
        let (census, counted) = (Arc::clone(&self.census), rows.len());
        *self = Decided { rows, flows, of, of_rows, free, removed: 0, replaced: None, census, counted };
    }

    /// Sets the generation of the program for what a number is attributed to. Returns false if there is no
    /// such number.
    pub fn set_generation(&mut self, number: u32, generation: u8) -> bool {
        let of = self.of.get_mut(number as usize);
        of.map(|of| of.generation = generation).is_some()
    }

    fn lose(&mut self, number: u32) {
        let flows = self.flows[number as usize];
        self.removed += flows as usize;
        if (number as usize) < self.counted && flows > 0 {
            self.census.go(self.of[number as usize].target, flows);
        }
        if flows == 0 {
            self.let_go(number);
        }
    }

    /// Whether a number exists, leads nowhere and has no flows.
    fn is_free(&self, number: u32) -> bool {
        let number = number as usize;
        number < self.rows.len() && self.rows.at(number) == NO_ROW && self.flows[number] == 0
    }

    /// Takes a free number, preferably `wanted`.
    fn take_free(&mut self, wanted: u32) -> Option<u32> {
        if self.is_free(wanted) {
            return Some(wanted);
        }
        if wanted as usize == self.rows.len() {
            // A new number equals its row.
            return None;
        }
        // Numbers taken this way are still listed.
        while let Some(number) = self.free.pop() {
            if self.is_free(number) {
                return Some(number);
            }
        }
        None
    }

    /// Lists a number as free.
    fn let_go(&mut self, number: u32) {
        if self.free.len() > self.rows.len() {
            let free = std::mem::take(&mut self.free);
            self.free = free.into_iter().filter(|&number| self.is_free(number)).collect();
            self.free.sort_unstable();
            self.free.dedup();
        }
        self.free.push(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_table::NO_DELTA_TARGET;

    fn of(pipe: u16) -> Belonging {
        Belonging { generation: 1, pipe, target: NO_DELTA_TARGET }
    }

    #[test]
    fn a_number_leads_nowhere_once_its_row_is_removed_and_comes_back_with_its_last_flow() {
        let mut decided = Decided::default();
        decided.add(7, of(0));
        let first = decided.of_row(7).unwrap();
        (0..2).for_each(|_| decided.joined(first));
        decided.remove(7);
        assert_eq!((decided.row(first), decided.of_row(7), decided.removed()), (NO_ROW, None, 2));
        // The row is reused while flows of the removed entry are in the table.
        decided.add(7, of(1));
        let second = decided.of_row(7).unwrap();
        assert_ne!(second, first);
        (0..2).for_each(|_| decided.left(first));
        assert_eq!(decided.removed(), 0);
        decided.add(9, of(2));
        assert_eq!(decided.of_row(9), Some(first));
    }

    #[test]
    fn a_row_that_comes_back_has_its_own_number_and_others_take_what_is_free() {
        let mut decided = Decided::default();
        (0..4).for_each(|row| decided.add(row, of(0)));
        for _ in 0..100 {
            (0..4).for_each(|row| decided.remove(row));
            [2, 0, 3, 1].into_iter().for_each(|row| decided.add(row, of(0)));
            assert_eq!(
                (decided.rows.strays, [0, 1, 2, 3].map(|number| decided.row(number))),
                (0, [0, 1, 2, 3])
            );
        }
        assert!(decided.free.len() <= 5, "{:?}", decided.free);
        decided.joined(1);
        decided.remove(1);
        decided.remove(2);
        // The number of row 1 has a flow, so that of row 2 is taken, which then gets another.
        decided.add(1, of(1));
        decided.add(2, of(1));
        let numbers = [1, 2].map(|row| decided.of_row(row).unwrap());
        assert_eq!((numbers, numbers.map(|number| decided.row(number))), ([2, 4], [1, 2]));
        assert_eq!((decided.row(1), decided.rows.strays), (NO_ROW, 3));
    }

    #[test]
    fn an_heir_leads_the_numbers_of_flows_to_its_own_rows() {
        let mut old = Decided::default();
        (0..3).for_each(|row| old.add(row, of(0)));
        let numbers = [0, 1, 2].map(|row| old.of_row(row).unwrap());
        numbers.iter().for_each(|&number| old.joined(number));
        let mut new = Decided::default();
        (0..3).for_each(|row| new.add(row, of(row as u16 + 10)));
        // Row 0 has moved, row 1 is gone, row 2 stays; the heir's row 0 is new.
        let mut now = Renumbering::new(&old, &new);
        while now.step((&old, &new), 2, |row| [Some(1), None, Some(2)][row as usize]) {}
        let lost = new.follow(&mut old, now.clone());
        assert_eq!((lost, new.removed()), (1, 1));
        assert_eq!(numbers.map(|number| new.row(number)), [1, NO_ROW, 2]);
        assert_eq!(numbers.map(|number| new.belonging(number).unwrap().pipe), [11, 0, 12]);
        assert_eq!(new.row(new.of_row(0).unwrap()), 0);
        assert_eq!(numbers.map(|number| new.belonging(number).unwrap().generation), [2, 1, 2]);
        new.follow_without_flows(now);
        assert_eq!((new.removed(), numbers.map(|number| new.row(number))), (0, [1, NO_ROW, 2]));
    }
}
