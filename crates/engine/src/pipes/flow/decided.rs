//! What flows are decided for: a number in each flow leads to the row of an entry.
//!
//! The number outlives the row. When an entry is removed, or a swap has no row for it, the number leads
//! nowhere from then on: its flows are gone for every packet at once, at a cost that does not depend on how
//! many they are, and leave the table in slices, as their deltas are accepted. A number is used again when
//! its last flow has left.

use crate::pipes::table::NO_ROW;
use table::Belonging;

/// Numbers of decisions, and where they lead.
#[derive(Clone, Debug, Default)]
pub struct Decided {
    /// The row of each number, or [`NO_ROW`]; read for every packet.
    rows: Vec<u32>,
    about: Vec<About>,
    /// The number of each row, or [`NO_ROW`].
    of_rows: Vec<u32>,
    free: Vec<u32>,
    /// Flows whose number leads nowhere.
    removed: usize,
}

#[derive(Clone, Copy, Debug)]
struct About {
    flows: u32,
    of: Belonging,
}

impl Decided {
    /// Returns the row that a number leads to, or [`NO_ROW`].
    #[inline(always)]
    pub fn row(&self, number: u32) -> u32 {
        self.rows.get(number as usize).copied().unwrap_or(NO_ROW)
    }

    /// Returns the number that leads to a row.
    #[inline]
    pub fn of_row(&self, row: u32) -> Option<u32> {
        self.of_rows.get(row as usize).copied().filter(|&number| number != NO_ROW)
    }

    /// Returns what the flows of a number belong to.
    pub fn belonging(&self, number: u32) -> Option<Belonging> {
        self.about.get(number as usize).map(|about| about.of)
    }

    /// Number of flows that are removed but have not left the table.
    pub fn removed(&self) -> usize {
        self.removed
    }

    /// Makes a number for a new row.
    pub fn add(&mut self, row: u32, of: Belonging) {
        let about = About { flows: 0, of };
        let number = match self.free.pop() {
            Some(number) => {
                (self.rows[number as usize], self.about[number as usize]) = (row, about);
                number
            }
            None => {
                self.rows.push(row);
                self.about.push(about);
                self.rows.len() as u32 - 1
            }
        };
        self.lead(row, number);
    }

    /// From now on the number of this row leads nowhere.
    pub fn remove(&mut self, row: u32) {
        if let Some(number) = self.of_row(row) {
            self.of_rows[row as usize] = NO_ROW;
            self.lose(number);
        }
    }

    /// Counts a flow that was decided for a number.
    #[inline]
    pub fn joined(&mut self, number: u32) {
        if let Some(about) = self.about.get_mut(number as usize) {
            about.flows += 1;
            self.removed += usize::from(self.rows[number as usize] == NO_ROW);
        }
    }

    /// Counts a flow that has left the table.
    pub fn left(&mut self, number: u32) {
        let Some(about) = self.about.get_mut(number as usize) else { return };
        about.flows -= 1;
        if self.rows[number as usize] == NO_ROW {
            self.removed -= 1;
            if about.flows == 0 {
                self.free.push(number);
            }
        }
    }

    /// Returns the same numbers without flows.
    pub fn without_flows(&self) -> Decided {
        let mut all = self.clone();
        all.removed = 0;
        for (number, about) in (0..).zip(&mut all.about) {
            let had = std::mem::take(&mut about.flows) != 0;
            if had && all.rows[number as usize] == NO_ROW {
                all.free.push(number);
            }
        }
        all
    }

    /// Leads the numbers of a predecessor to the rows of `self`, as far as `row_now` knows one for their
    /// rows; the others lead nowhere. Rows without a number get one. Returns how many flows are removed.
    pub fn inherit(&mut self, old: Decided, row_now: impl Fn(u32) -> Option<u32>) -> usize {
        let new = std::mem::replace(self, old);
        let before = self.removed;
        self.of_rows.clear();
        for number in 0..self.rows.len() as u32 {
            let row = self.row(number);
            if row == NO_ROW {
                continue;
            }
            let now = row_now(row).and_then(|now| Some((now, new.belonging(new.of_row(now)?)?)));
            match now.filter(|&(now, _)| self.of_row(now).is_none()) {
                Some((now, of)) => {
                    self.about[number as usize].of = of;
                    self.rows[number as usize] = now;
                    self.lead(now, number);
                }
                None => self.lose(number),
            }
        }
        for (row, &number) in (0..).zip(&new.of_rows) {
            if let Some(of) = new.belonging(number).filter(|_| self.of_row(row).is_none()) {
                self.add(row, of);
            }
        }
        self.removed - before
    }

    /// Sets the generation of the program; what is removed belongs to the one in which it was removed.
    pub fn set_generation(&mut self, generation: u8) {
        let alive = self.about.iter_mut().zip(&self.rows).filter(|(_, row)| **row != NO_ROW);
        alive.for_each(|(about, _)| about.of.generation = generation);
    }

    fn lead(&mut self, row: u32, number: u32) {
        let needed = row as usize + 1;
        if self.of_rows.len() < needed {
            self.of_rows.resize(needed, NO_ROW);
        }
        self.of_rows[row as usize] = number;
    }

    fn lose(&mut self, number: u32) {
        let flows = self.about[number as usize].flows;
        self.rows[number as usize] = NO_ROW;
        self.removed += flows as usize;
        if flows == 0 {
            self.free.push(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use table::NO_DELTA_TARGET;

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
        // The row is used again while flows of the removed entry are in the table.
        decided.add(7, of(1));
        let second = decided.of_row(7).unwrap();
        assert_ne!(second, first);
        (0..2).for_each(|_| decided.left(first));
        assert_eq!(decided.removed(), 0);
        decided.add(9, of(2));
        assert_eq!(decided.of_row(9), Some(first));
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
        let lost = new.inherit(old, |row| [Some(1), None, Some(2)][row as usize]);
        assert_eq!((lost, new.removed()), (1, 1));
        assert_eq!(numbers.map(|number| new.row(number)), [1, NO_ROW, 2]);
        assert_eq!(numbers.map(|number| new.belonging(number).unwrap().pipe), [11, 0, 12]);
        assert_eq!(new.row(new.of_row(0).unwrap()), 0);
        assert_eq!(new.without_flows().removed(), 0);
    }
}
