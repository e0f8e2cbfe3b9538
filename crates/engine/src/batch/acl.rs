//! ACL: rules with masks, ranges and priorities. Keys of two, four or eight words, each width its own code.
//!
//! A packet may lack a field, and only a rule's `any` matches that. So a key has, besides the fields, one bit for each
//! set of layers that fields need: a rule that asks for the field asks for the bit.

use crate::batch::load::{KEY_WORDS_MAX, KeyPlan, Place, pack};
use crate::batch::packets::Packets;
use crate::batch::rows::Slab;
use crate::program::EntryMatch;
use packet::{Batch, Bits, Field, Layers};
use table::{Acl, AclError, PortRange, Rule};

/// The rules of a pipe: rule numbers rise with age, so that of equal priorities the older one wins.
#[derive(Debug)]
pub struct AclTable {
    keys: Keys,
    rules: Rules,
    pub slab: Slab,
    /// Rule number to row; and back to what the entry said.
    pub row_of: Vec<u32>,
    pub entries: Vec<Option<(Vec<EntryMatch>, u32)>>,
}

/// How keys are put together.
#[derive(Debug)]
struct Keys {
    /// Fields that need the same layers, gathered together.
    groups: Vec<(KeyPlan, Option<Place>)>,
    /// Each field's place, and that of its presence bit, in the pipe's order.
    fields: Vec<(Field, Place, Option<Place>)>,
    words: usize,
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

impl Keys {
    /// `fields` with the least bits each must have: the table cuts ranges of 16 bits, so a narrower field that is matched
    /// by range has as many to itself.
    fn new(fields: &[(Field, u32)]) -> Keys {
        let mut needs: Vec<Layers> = Vec::new();
        for wanted in fields.iter().map(|(field, _)| field.spec().needs).filter(|needs| needs.0 != 0) {
            if !needs.contains(&wanted) {
                needs.push(wanted);
            }
        }
        let bits = fields.iter().map(|&(field, least)| u32::from(field.spec().bits).max(least));
        let bits: Vec<u32> = bits.chain(needs.iter().map(|_| 1)).collect();
        let (places, words) = pack(&bits);
        let (places, presence) = places.split_at(fields.len());
        let present = |field: Field| needs.iter().position(|one| *one == field.spec().needs).map(|at| presence[at]);
        let mut keys = Keys { groups: Vec::new(), fields: Vec::new(), words };
        for (&(field, _), &place) in fields.iter().zip(places) {
            let layers = field.spec().needs;
            let at = keys.groups.iter().position(|(plan, _)| plan.needs == layers).unwrap_or_else(|| {
                keys.groups.push((KeyPlan { needs: layers, ..KeyPlan::default() }, present(field)));
                keys.groups.len() - 1
            });
            keys.groups[at].0.push(field, u128::MAX, place);
            keys.fields.push((field, place, present(field)));
        }
        keys
    }

    fn gather<const W: usize>(&self, batch: &Batch, packets: &Packets, list: u64) -> [[u64; W]; 64] {
        let mut keys = [[0; W]; 64];
        for (plan, present) in &self.groups {
            let able = plan.able(packets, list);
            if let Some(Place { word, left, .. }) = *present {
                for slot in Bits(able) {
                    keys[slot][word % W] |= 1 << left;
                }
            }
            plan.add(batch, packets, able, &mut keys);
        }
        keys
    }

    fn rule<const W: usize>(&self, id: u32, priority: u32, matches: &[EntryMatch]) -> Rule<W> {
        let mut rule = Rule { id, priority, ..Rule::default() };
        for (&(field, place, present), &one) in self.fields.iter().zip(matches) {
            match one {
                EntryMatch::Masked { value, mask } => {
                    place.put(value, &mut rule.key);
                    place.put(mask, &mut rule.mask);
                }
                EntryMatch::Value(value) => {
                    place.put(value, &mut rule.key);
                    place.put(field.max(), &mut rule.mask);
                }
                EntryMatch::Range { first, last } => {
                    let range = PortRange { word: place.word, shift: place.left, low: first, high: last };
                    if let Some(free) = rule.ranges.iter_mut().find(|range| range.is_none()) {
                        *free = Some(range);
                    }
                }
                _ => continue,
            }
            if let Some(present) = present {
                present.put(1, &mut rule.key);
                present.put(1, &mut rule.mask);
            }
        }
        rule
    }
}

impl AclTable {
    /// A table over these fields (with the least bits each must have); `None` when they do not fit the widest key.
    #[must_use]
    pub fn new(fields: &[(Field, u32)], capacity: usize, secret: u64) -> Option<AclTable> {
        let keys = Keys::new(fields);
        let rules = match keys.words {
            0..=2 => Rules::Two(Acl::with_capacity(capacity, secret)),
            3 | 4 => Rules::Four(Acl::with_capacity(capacity, secret)),
            5..=KEY_WORDS_MAX => Rules::Eight(Acl::with_capacity(capacity, secret)),
            _ => return None,
        };
        Some(AclTable { keys, rules, slab: Slab::default(), row_of: Vec::new(), entries: Vec::new() })
    }

    /// Rows of the winning rules.
    #[inline(never)]
    pub fn lookup(&self, batch: &Batch, packets: &Packets, list: u64, rows: &mut [u32; 64]) -> u64 {
        let hits =
            each_width!(&self.rules, acl => acl.lookup_batch(&self.keys.gather(batch, packets, list), list, rows));
        for slot in Bits(hits) {
            rows[slot] = self.row_of[rows[slot] as usize];
        }
        hits
    }

    /// Rules there are.
    #[must_use]
    pub fn len(&self) -> usize {
        each_width!(&self.rules, acl => acl.len())
    }

    /// Enters a rule under the number `id`.
    ///
    /// # Errors
    /// What the table says; nothing has changed then.
    pub fn insert_rule(&mut self, id: u32, priority: u32, matches: &[EntryMatch]) -> Result<(), AclError> {
        each_width!(&mut self.rules, acl => acl.insert(self.keys.rule(id, priority, matches)))
    }

    /// Takes a rule out by its number; was it there?
    pub fn remove_rule(&mut self, id: u32) -> bool {
        each_width!(&mut self.rules, acl => acl.remove(id).is_some())
    }
}
