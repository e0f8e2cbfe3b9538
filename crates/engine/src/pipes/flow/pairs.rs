//! Which flow has the answers of which, where a pipe learns them together and has no NAT pool: the two age as
//! one. With a pool, what they have of it says so ([`super::nat`]).
//!
//! Costs: 4 bytes for each flow of the table.

use std::collections::HashMap;

const NONE: u32 = u32::MAX;

/// The row of the other direction, by row.
#[derive(Clone, Debug)]
pub struct Pairs {
    others: Vec<u32>,
    /// The rows of flows that have come from another table, by what both of a pair were called there.
    moved: HashMap<u64, u32>,
}

impl Pairs {
    /// There are no pairs. `rows` is the number of flows that fit the table.
    #[must_use]
    pub fn new(rows: u32) -> Pairs {
        Pairs { others: vec![NONE; rows as usize], moved: HashMap::new() }
    }

    /// Makes two rows a pair.
    pub fn join(&mut self, row: u32, answers: u32) {
        (self.others[row as usize], self.others[answers as usize]) = (answers, row);
    }

    /// Returns the row of the other direction.
    #[inline]
    #[must_use]
    pub fn other(&self, row: u32) -> Option<u32> {
        self.others.get(row as usize).copied().filter(|&other| other != NONE)
    }

    /// The flow of a row is alone from now on, and so is the other one.
    pub fn part(&mut self, row: u32) {
        if let Some(other) = self.other(row) {
            (self.others[row as usize], self.others[other as usize]) = (NONE, NONE);
        }
    }

    /// A flow has come from another table into this row; the other one of its pair has the same name.
    pub fn attach(&mut self, row: u32, name: u64) {
        if let Some(other) = self.moved.insert(name, row).filter(|&other| other != row) {
            self.join(row, other);
        }
    }

    /// All flows have come.
    pub fn arrived(&mut self) {
        self.moved = HashMap::new();
    }
}
