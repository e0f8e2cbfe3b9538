//! Entries of the plainest form, read without a tree: `{ match: { ipv4.src: 10.0.0.1 }, set: { vid: 7 } }`.
//!
//! Long lists consist of such lines, and building a tree for each would take most of the time. This module
//! reads correct entries of BASIC, LPM and ACL pipes that consist of field values, a priority and an action's
//! name, and refuses everything else. Refused lines are left to [`crate::entry::EntryReader`], which alone
//! decides what an entry is, and reports errors. So whatever this module accepts, it must read exactly as
//! that reader does; the tests compare the two.

use crate::entry::match_value;
use crate::flow::{self, ITEMS_MAX, Item};
use crate::group_names::GroupNames;
use crate::value;
use weir_packet::Field;
use weir_program::change::EntryKey;
use weir_program::operation::Place;
use weir_program::{
    Criterion, Entry, EntryMatch, Forward, Match, Pipe, PipeKind, Program, SharedUse, Template,
};

/// Reads the plainest entries of a pipe.
pub(crate) struct PlainEntries<'p> {
    program: &'p Program,
    fields: Vec<(&'static str, Match)>,
    /// The actions, and the numbers that entries supply to each.
    actions: Vec<(&'p str, Vec<Place>)>,
    priorities: bool,
}

/// The parts of a line.
struct Parts<'l> {
    all: [Item<'l>; ITEMS_MAX],
    count: usize,
}

impl<'p> PlainEntries<'p> {
    /// Prepares to read entries of a pipe; `None` if they are never plain.
    pub(crate) fn of(program: &'p Program, pipe: &'p Pipe) -> Option<PlainEntries<'p>> {
        let fields: Vec<_> = pipe.varying().map(|one| (one.field.name(), *one)).collect();
        let actions: Vec<_> =
            pipe.templates.iter().map(|one| (one.name.as_str(), Template::places(one))).collect();
        let places = || actions.iter().flat_map(|(_, places)| places);
        let monitor = &pipe.monitor;
        let is_plain = !matches!(pipe.kind, PipeKind::Hash { .. } | PipeKind::Flow { .. })
            // A port's name can refer to several ports.
            && fields.iter().all(|(_, one)| one.field != Field::InputPort)
            && places().all(|place| place.occurrence == 0)
            && pipe.forward != Forward::PerEntry
            && monitor.counter != Some(SharedUse::PerEntry)
            && monitor.meter != Some(SharedUse::PerEntry);
        let priorities = pipe.kind.of_type().priorities;
        is_plain.then_some(PlainEntries { program, fields, actions, priorities })
    }

    /// Reads the entry in a line from byte `from` on. Also returns the byte at which its match begins. `None`
    /// if it is not plain, or wrong.
    pub(crate) fn entry(
        &self,
        line: &str,
        from: usize,
        names: &mut GroupNames<'_>,
    ) -> Option<(Entry, Option<usize>)> {
        let parts = Parts::of(line, from)?;
        let (matches, priority) = (self.matches(&parts)?, self.priority(&parts)?);
        let (template, values) = self.values(&parts, names)?;
        let entry = Entry {
            matches,
            priority,
            template,
            values,
            forward: None,
            counter: None,
            meter: None,
            run_time: false,
            origin: Default::default(),
        };
        Some((entry, parts.find("", "match").map(|part| part.at)))
    }

    /// Reads what identifies an entry, if nothing else is present.
    pub(crate) fn key(&self, line: &str, from: usize) -> Option<EntryKey> {
        let parts = Parts::of(line, from)?;
        let only = |part: &Item<'_>| match part.section {
            "" => ["match", "priority"].contains(&part.key),
            section => section == "match",
        };
        let alone = parts.iter().all(only);
        Some(EntryKey { matches: self.matches(&parts).filter(|_| alone)?, priority: self.priority(&parts)? })
    }

    fn matches(&self, parts: &Parts<'_>) -> Option<Vec<EntryMatch>> {
        let mut matches = Vec::with_capacity(self.fields.len());
        let mut given = 0;
        for (name, one) in &self.fields {
            matches.push(match parts.find("match", name) {
                Some(part) => {
                    given += 1;
                    match_value(one, part.text?, self.program).ok().flatten()?
                }
                None if matches!(one.criterion, Criterion::Masked | Criterion::Range) => EntryMatch::Any,
                None => return None,
            });
        }
        // The pipe matches all fields, and `match` is a mapping.
        let all = parts.iter().filter(|part| part.section == "match").count();
        let is_map = parts.find("", "match").is_none_or(|part| part.text.is_none());
        (given == all && is_map).then_some(matches)
    }

    fn priority(&self, parts: &Parts<'_>) -> Option<u32> {
        match parts.find("", "priority") {
            Some(part) if self.priorities => u32::try_from(value::number(part.text?)?).ok(),
            Some(_) => None,
            None => Some(0),
        }
    }

    /// Reads the entry's action and the numbers for the action.
    fn values(&self, parts: &Parts<'_>, names: &mut GroupNames<'_>) -> Option<(u16, Vec<u128>)> {
        let at = match parts.find("", "action") {
            Some(part) => {
                let name = part.text?;
                self.actions.iter().position(|(action, _)| *action == name)?
            }
            None if self.actions.len() > 1 => return None,
            None => 0,
        };
        let places = self.actions.get(at).map_or(&[][..], |(_, places)| places);
        let takes = |part: &Item<'_>| match (part.section, part.text) {
            ("match", _) => true,
            ("", None) => part.key == "match" || places.iter().any(|place| place.word == part.key),
            ("", Some(_)) => ["priority", "action"].contains(&part.key),
            (section, _) => places.iter().any(|place| place.word == section && place.key == part.key),
        };
        if !parts.iter().all(takes) {
            return None;
        }
        let mut values = Vec::with_capacity(places.len());
        for place in places {
            let text = parts.find(place.word, place.key)?.text?;
            values.push(match value::group_name(place.field, text) {
                Some(name) => self.program.groups[names.group(name)?.index()].number?.into(),
                None => value::field(place.field, text, self.program).ok()?,
            });
        }
        Some((at as u16, values))
    }
}

impl<'l> Parts<'l> {
    fn of(line: &'l str, from: usize) -> Option<Parts<'l>> {
        let mut parts = Parts { all: [Item::default(); ITEMS_MAX], count: 0 };
        parts.count = flow::items(line, from, &mut parts.all)?;
        Some(parts)
    }

    fn iter(&self) -> impl Iterator<Item = &Item<'l>> {
        self.all[..self.count].iter()
    }

    fn find(&self, section: &str, key: &str) -> Option<&Item<'l>> {
        self.iter().find(|part| part.key == key && part.section == section)
    }
}
