//! Rules to rows. Keys have two, four or eight words, with separate code for each width.

use super::key::KeyLayout;
use crate::batch::compile_error::{CompileError, fields};
use crate::batch::load::KEY_WORDS_MAX;
use crate::pipes::lookup::{Hits, Lookup, Refusal};
use std::collections::HashMap;
use weir_packet::{Bits, Field};
use weir_program::change::EntryKey;
use weir_program::{Criterion, Entry, Pipe};
use weir_table::{Acl, AclError};

/// Rule numbers are reassigned once more of them have been used than this factor times the capacity.
const NUMBERS_PER_ENTRY: usize = 4;

/// The rules of a pipe. Newer rules have higher numbers, so among equal priorities the older rule wins.
#[derive(Debug)]
pub struct AclTable {
    keys: KeyLayout,
    rules: Rules,
    capacity: usize,
    /// Row of each rule number, including rules that were removed.
    row_of: Vec<u32>,
    /// Rule number of each entry.
    numbers: HashMap<EntryKey, u32>,
    /// How often rule numbers were reassigned.
    pub renumbered: u32,
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
        // Each with the smallest number of bits it must have: the table cuts ranges of 16 bits.
        let fields = fields(pipe, |criterion| match criterion {
            Criterion::Masked => Some(0),
            Criterion::Range => Some(16),
            _ => None,
        })?;
        let fields: Vec<(Field, u32)> =
            fields.into_iter().map(|(field, least)| (field, least as u32)).collect();
        let (keys, capacity) = (KeyLayout::new(&fields), pipe.capacity as usize);
        let rules = match keys.words {
            0..=2 => Rules::Two(Acl::with_capacity(capacity, secret)),
            3 | 4 => Rules::Four(Acl::with_capacity(capacity, secret)),
            5..=KEY_WORDS_MAX => Rules::Eight(Acl::with_capacity(capacity, secret)),
            _ => return Err(CompileError::KeyTooWide(pipe.name.clone())),
        };
        Ok(AclTable { keys, rules, capacity, row_of: Vec::new(), numbers: HashMap::new(), renumbered: 0 })
    }

    /// Returns the packets that a rule matches, with the row of the best rule.
    #[inline(never)]
    pub fn lookup(&mut self, look: &mut Lookup<'_>) -> Hits {
        let (batch, packets, list) = (look.batch, look.packets, look.list);
        let rows = &mut *look.rows;
        let hits = each_width!(&self.rules, acl => acl.lookup_batch(&self.keys.gather(batch, packets, list),
            list, rows));
        for slot in Bits(hits) {
            rows[slot] = self.row(rows[slot]);
        }
        Hits::Each(hits)
    }

    /// Inserts an entry whose row is `row`.
    pub fn insert(&mut self, entry: &Entry, row: u32) -> Result<(), Refusal> {
        let key = EntryKey::of(entry);
        if self.numbers.contains_key(&key) {
            return Err(Refusal::Exists);
        }
        if self.len() >= self.capacity {
            return Err(Refusal::Full);
        }
        if self.row_of.len() > self.capacity * NUMBERS_PER_ENTRY {
            self.renumber();
        }
        self.insert_rule(key, row).map_err(refusal)
    }

    /// Holds room for an entry that is inserted later.
    pub fn hold(&mut self, entry: &Entry) -> Result<(), Refusal> {
        let Entry { priority, matches, .. } = entry;
        let held = each_width!(&mut self.rules, acl => acl.hold(&self.keys.rule(0, *priority, matches)));
        held.map_err(refusal)
    }

    /// Releases all held room.
    pub fn let_go(&mut self) {
        each_width!(&mut self.rules, acl => acl.let_go());
    }

    /// Returns the row of an entry.
    #[must_use]
    pub fn find(&self, key: &EntryKey) -> Option<u32> {
        self.numbers.get(key).map(|&number| self.row(number))
    }

    /// Removes an entry and returns its row.
    pub fn remove(&mut self, key: &EntryKey) -> Option<u32> {
        let number = self.numbers.remove(key)?;
        self.remove_rule(number);
        Some(self.row(number))
    }

    /// Number of rule numbers ever used since they were last reassigned.
    #[must_use]
    pub fn numbers_used(&self) -> u32 {
        self.row_of.len() as u32
    }

    /// Returns the row of a rule number, even if the rule was removed.
    #[must_use]
    pub fn row_of(&self, number: u32) -> Option<u32> {
        self.row_of.get(number as usize).copied()
    }

    /// Returns the row of a number that a rule has or had since numbers were last reassigned.
    #[inline]
    fn row(&self, number: u32) -> u32 {
        debug_assert!((number as usize) < self.row_of.len(), "rule {number} of {}", self.row_of.len());
        self.row_of[number as usize]
    }

    /// Whether the entry with this key has this rule number.
    #[must_use]
    pub fn has_number(&self, key: &EntryKey, number: u32) -> bool {
        self.numbers.get(key) == Some(&number)
    }

    /// Returns all entries and their rows, older ones first.
    fn keys(&self) -> Vec<(EntryKey, u32)> {
        let mut keys: Vec<(&EntryKey, u32)> =
            self.numbers.iter().map(|(key, &number)| (key, number)).collect();
        keys.sort_unstable_by_key(|(_, number)| *number);
        keys.into_iter().map(|(key, number)| (key.clone(), self.row(number))).collect()
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        each_width!(&self.rules, acl => acl.len())
    }

    /// Inserts a rule with the next number.
    fn insert_rule(&mut self, key: EntryKey, row: u32) -> Result<(), AclError> {
        let number = self.row_of.len() as u32;
        each_width!(&mut self.rules, acl => acl.insert(self.keys.rule(number, key.priority, &key.matches)))?;
        self.row_of.push(row);
        let former = self.numbers.insert(key, number);
        debug_assert!(former.is_none(), "an entry has one rule, not both {former:?} and {number}");
        debug_assert_eq!(self.numbers.len(), self.len(), "every rule has an entry");
        Ok(())
    }

    fn remove_rule(&mut self, number: u32) {
        let removed = each_width!(&mut self.rules, acl => acl.remove(number).is_some());
        debug_assert!(removed, "an entry has rule {number}");
    }

    /// Reassigns rule numbers in the order of the old ones.
    fn renumber(&mut self) {
        let entries = self.keys();
        self.renumbered = self.renumbered.wrapping_add(1);
        for number in self.numbers.drain().map(|(_, number)| number).collect::<Vec<u32>>() {
            self.remove_rule(number);
        }
        self.row_of.clear();
        for (key, row) in entries {
            let inserted = self.insert_rule(key, row);
            debug_assert_eq!(inserted, Ok(()), "all rules fitted before, so they fit again");
        }
    }
}

fn refusal(error: AclError) -> Refusal {
    match error {
        AclError::Full => Refusal::Full,
        other => Refusal::Unfit(other.to_string()),
    }
}
