//! Which two flows answer each other, where a pipe learns them together and has no NAT pool: the two age as a
//! unit. With a pool, their shared place links them ([`super::nat`]).
//!
//! Costs: 4 bytes for each flow of the table.

use std::collections::HashMap;

const NONE: u32 = u32::MAX;

/// The row of the other direction, by row.
#[derive(Clone, Debug)]
pub struct Pairs {
    others: Vec<u32>,
    /// The rows of flows that have arrived from another table, by the name of their pair there.
    moved: HashMap<u64, u32>,
}

impl Pairs {
    /// Creates a table without pairs. `rows` is the number of flows that fit in the flow table.
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

    /// Separates the flow of a row from the one of the other direction.
    pub fn part(&mut self, row: u32) {
        if let Some(other) = self.other(row) {
            (self.others[row as usize], self.others[other as usize]) = (NONE, NONE);
        }
    }

    /// Called when a flow has arrived from another table in this row; the other flow of its pair has the same
    /// name.
    pub fn attach(&mut self, row: u32, name: u64) {
        if let Some(other) = self.moved.insert(name, row).filter(|&other| other != row) {
            self.join(row, other);
        }
    }

    /// Called when all flows have arrived.
    pub fn arrived(&mut self) {
        self.moved = HashMap::new();
    }
}
