//! The destinations of a pipe's entries and the meters that they use, with a count of each, so that a change
//! at run time is checked without scanning all entries.

use crate::{Entry, EntryList, Forward, MeterId};
use std::collections::BTreeMap;

/// An edge out of a pipe through entries: where they lead, and which action they have.
pub type Lead = (Forward, u16);

/// The edges out of a pipe through its entries, and the meters that the entries name.
#[derive(Clone, Debug, Default)]
pub struct Uses {
    leads: BTreeMap<Lead, u32>,
    meters: BTreeMap<MeterId, u32>,
}

impl Uses {
    /// Collects the uses of entries.
    pub fn of(entries: &EntryList) -> Uses {
        let mut uses = Uses::default();
        let mut entries = entries.cursor();
        while let Some(entry) = entries.next() {
            uses.add_entry(entry);
        }
        uses
    }

    /// Counts an entry.
    pub fn add_entry(&mut self, entry: &Entry) {
        self.add(entry.forward, entry.template, entry.meter);
    }

    /// Counts an entry, or several that share all of this.
    pub fn add(&mut self, forward: Option<Forward>, template: u16, meter: Option<MeterId>) {
        if let Some(forward) = forward {
            *self.leads.entry((forward, template)).or_default() += 1;
        }
        if let Some(meter) = meter {
            *self.meters.entry(meter).or_default() += 1;
        }
    }

    /// Undoes [`Uses::add`].
    pub fn remove(&mut self, forward: Option<Forward>, template: u16, meter: Option<MeterId>) {
        if let Some(forward) = forward {
            less(&mut self.leads, &(forward, template));
        }
        if let Some(meter) = meter {
            less(&mut self.meters, &meter);
        }
    }

    /// Iterates over the edges, each once.
    pub fn leads(&self) -> impl Iterator<Item = Lead> + '_ {
        self.leads.keys().copied()
    }

    /// The edge that all entries share, if there is one.
    #[inline]
    pub fn only_lead(&self) -> Option<Lead> {
        self.leads.first_key_value().filter(|_| self.leads.len() == 1).map(|(lead, _)| *lead)
    }

    /// Whether some entry already leads this way.
    pub fn has_lead(&self, lead: Lead) -> bool {
        self.leads.contains_key(&lead)
    }

    /// Whether some entry already names this meter.
    pub fn has_meter(&self, meter: MeterId) -> bool {
        self.meters.contains_key(&meter)
    }
}

fn less<Key: Ord>(counts: &mut BTreeMap<Key, u32>, key: &Key) {
    let Some(count) = counts.get_mut(key) else { return };
    *count -= 1;
    if *count == 0 {
        counts.remove(key);
    }
}
