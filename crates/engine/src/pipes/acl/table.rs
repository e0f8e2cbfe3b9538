//! Rules to rows. Keys have two, four or eight words, with separate code for each width.

use super::key::Keys;
use crate::batch::compile::{self, CompileError};
use crate::batch::load::KEY_WORDS_MAX;
use crate::change::EntryKey;
use crate::pipes::table::{Hits, Lookup, Refusal};
use crate::program::{Criterion, Entry, EntryMatch, Pipe};
use packet::{Bits, Field};
use table::{Acl, AclError};

/// Rule numbers are reassigned when this many per entry of capacity have been used.
const NUMBERS_PER_ENTRY: usize = 4;

/// The rules of a pipe. Newer rules have higher numbers, so that of equal priorities the older rule wins.
#[derive(Debug)]
pub struct AclTable {
    keys: Keys,
    rules: Rules,
    capacity: usize,
    /// Row of each rule number; and the entry of each.
    row_of: Vec<u32>,
    entries: Vec<Option<(Vec<EntryMatch>, u32)>>,
}

#[derive(Debug)]
enum Rules {
    Two(Acl<2>),
    Four(Acl<4>),
    Eight(Acl<KEY_WORDS_MAX>),
}

macro_rules! each_width {
    ($rules:expr, $acl:ident => $body:expr) => {
        match $rules {
            Rules::Two($acl) => $body,
            Rules::Four($acl) => $body,
            Rules::Eight($acl) => $body,
        }
    };
}

impl AclTable {
    /// Creates an empty table.
    ///
    /// # Errors
    /// The pipe's keys are too wide, or this type does not support one of its criteria.
    pub fn new(pipe: &Pipe, secret: u64) -> Result<AclTable, CompileError> {
        // With the smallest number of bits each must have: the table cuts ranges of 16 bits.
        let fields = compile::fields(pipe, |criterion| match criterion {
            Criterion::Masked => Some(0),
            Criterion::Range => Some(16),
            _ => None,
        })?;
        let fields: Vec<(Field, u32)> =
            fields.into_iter().map(|(field, least)| (field, least as u32)).collect();
        let (keys, capacity) = (Keys::new(&fields), pipe.capacity as usize);
        let rules = match keys.words {
            0..=2 => Rules::Two(Acl::with_capacity(capacity, secret)),
            3 | 4 => Rules::Four(Acl::with_capacity(capacity, secret)),
            5..=KEY_WORDS_MAX => Rules::Eight(Acl::with_capacity(capacity, secret)),
            _ => return Err(CompileError::KeyTooWide(pipe.name.clone())),
        };
        Ok(AclTable { keys, rules, capacity, row_of: Vec::new(), entries: Vec::new() })
    }

    /// Returns the packets that a rule matches, with the row of the best rule.
    #[inline(never)]
    pub fn lookup(&mut self, look: &mut Lookup<'_>) -> Hits {
        let (batch, packets, list) = (look.batch, look.packets, look.list);
        let rows = &mut *look.rows;
        let hits = each_width!(&self.rules, acl => acl.lookup_batch(&self.keys.gather(batch, packets, list),
            list, rows));
        for slot in Bits(hits) {
            rows[slot] = self.row_of[rows[slot] as usize];
        }
        Hits::Each(hits)
    }

    /// Inserts an entry whose row is `row`.
    pub fn insert(&mut self, entry: &Entry, row: u32) -> Result<(), Refusal> {
        if self.number(&entry.matches, entry.priority).is_some() {
            return Err(Refusal::Exists);
        }
        if self.len() >= self.capacity {
            return Err(Refusal::Full);
        }
        if self.entries.len() > self.capacity * NUMBERS_PER_ENTRY {
            self.renumber();
        }
        self.insert_rule(entry.priority, &entry.matches).map_err(|error| match error {
            AclError::Full => Refusal::Full,
            other => Refusal::Unfit(other.to_string()),
        })?;
        self.row_of.push(row);
        self.entries.push(Some((entry.matches.clone(), entry.priority)));
        Ok(())
    }

    /// Returns the row of an entry.
    #[must_use]
    pub fn find(&self, key: &EntryKey) -> Option<u32> {
        Some(self.row_of[self.number(&key.matches, key.priority)?])
    }

    /// Removes an entry and returns its row.
    pub fn remove(&mut self, key: &EntryKey) -> Option<u32> {
        let number = self.number(&key.matches, key.priority)?;
        self.remove_rule(number).then(|| {
            self.entries[number] = None;
            self.row_of[number]
        })
    }

    /// Returns all entries and their rows.
    #[must_use]
    pub fn keys(&self) -> Vec<(EntryKey, u32)> {
        let live =
            self.entries.iter().zip(&self.row_of).filter_map(|(entry, &row)| Some((entry.as_ref()?, row)));
        live.map(|((matches, priority), row)| {
            (EntryKey { matches: matches.clone(), priority: *priority }, row)
        })
        .collect()
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        each_width!(&self.rules, acl => acl.len())
    }

    /// Returns the number of an entry's rule.
    fn number(&self, matches: &[EntryMatch], priority: u32) -> Option<usize> {
        let is = |entry: &Option<(Vec<EntryMatch>, u32)>| {
            entry.as_ref().is_some_and(|entry| entry.0 == matches && entry.1 == priority)
        };
        self.entries.iter().position(is)
    }

    /// Inserts a rule with the next number.
    fn insert_rule(&mut self, priority: u32, matches: &[EntryMatch]) -> Result<(), AclError> {
        let number = self.entries.len() as u32;
        each_width!(&mut self.rules, acl => acl.insert(self.keys.rule(number, priority, matches)))
    }

    fn remove_rule(&mut self, number: usize) -> bool {
        each_width!(&mut self.rules, acl => acl.remove(number as u32).is_some())
    }

    /// Reassigns rule numbers in the order of the old ones. All rules fitted before, so they fit again.
    fn renumber(&mut self) {
        let (entries, row_of) = (std::mem::take(&mut self.entries), std::mem::take(&mut self.row_of));
        for number in 0..entries.len() {
            self.remove_rule(number);
        }
        for (entry, row) in entries.into_iter().zip(row_of) {
            let Some((matches, priority)) = &entry else { continue };
            if self.insert_rule(*priority, matches).is_ok() {
                self.row_of.push(row);
                self.entries.push(entry);
            }
        }
    }
}
