//! Keys of packets and rules.
//!
//! A packet may lack a field, in which case only the `any` of a rule matches. Therefore a key has, besides
//! the fields, one bit for each set of layers that fields need; a rule that matches the field also matches
//! the bit.

use crate::batch::load::{KeyField, KeyPlan, pack};
use crate::batch::packets::Packets;
use weir_packet::{Batch, Bits, Field, LevelLayers};
use weir_program::EntryMatch;
use weir_table::{PortRange, Rule};

/// Layout of keys.
#[derive(Debug)]
pub struct KeyLayout {
    /// Fields that need the same layers, gathered together.
    groups: Vec<(KeyPlan, Option<KeyField>)>,
    /// Position of each field and of its presence bit, in the pipe's order.
    fields: Vec<(Field, KeyField, Option<KeyField>)>,
    pub words: usize,
}

impl KeyLayout {
    /// Creates a layout of `fields`, each with the minimum number of bits that it must have: the table splits
    /// ranges of 16 bits, so a narrower field that is matched by range gets 16 bits of its own.
    pub fn new(fields: &[(Field, u32)]) -> KeyLayout {
        let mut needs: Vec<LevelLayers> = Vec::new();
        for wanted in
            fields.iter().map(|(field, _)| field.needs()).filter(|needs| *needs != LevelLayers::default())
        {
            if !needs.contains(&wanted) {
                needs.push(wanted);
            }
        }
        let bits = fields.iter().map(|&(field, least)| u32::from(field.spec().bits).max(least));
        let bits: Vec<u32> = bits.chain(needs.iter().map(|_| 1)).collect();
        let (places, words) = pack(&bits);
        let (places, presence) = places.split_at(fields.len());
        let present =
            |field: Field| needs.iter().position(|one| *one == field.needs()).map(|at| presence[at]);
        let mut keys = KeyLayout { groups: Vec::new(), fields: Vec::new(), words };
        for (&(field, _), &place) in fields.iter().zip(places) {
            let layers = field.needs();
            let at = keys.groups.iter().position(|(plan, _)| plan.needs == layers).unwrap_or_else(|| {
                keys.groups.push((KeyPlan { needs: layers, ..KeyPlan::default() }, present(field)));
                keys.groups.len() - 1
            });
            keys.groups[at].0.push(field, u128::MAX, place);
            keys.fields.push((field, place, present(field)));
        }
        keys
    }

    /// Gathers the keys of the packets in `list`.
    pub fn gather<const W: usize>(&self, batch: &Batch, packets: &Packets, list: u64) -> [[u64; W]; 64] {
        let mut keys = [[0; W]; 64];
        for (plan, present) in &self.groups {
            let able = plan.able(packets, list);
            if let Some(KeyField { word, left, .. }) = *present {
                for slot in Bits(able) {
                    keys[slot][word % W] |= 1 << left;
                }
            }
            plan.add(batch, packets, able, &mut keys);
        }
        keys
    }

    /// Converts an entry to a rule.
    pub fn rule<const W: usize>(&self, id: u32, priority: u32, matches: &[EntryMatch]) -> Rule<W> {
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
