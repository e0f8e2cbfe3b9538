//! Entries: rows of a pipe, read from YAML (a configuration, or a line typed at run time) and written as
//! YAML.

use crate::action::constant;
use crate::attachment::Attachments;
use crate::diagnostic::{Report, Span, suggestion};
use crate::group_names::GroupNames;
use crate::key::{Key, Shape};
use crate::raw::{Kind, Node};
use crate::schema::Schema;
use crate::section::{Section, named, pairs, position, text};
use crate::{action, forward, pipes, value};
use std::collections::HashMap;
use std::sync::LazyLock;
use weir_packet::Field;
use weir_program::change::EntryKey;
use weir_program::operation::{Line, OPERATIONS, Place};
use weir_program::{
    CounterId, Criterion, Entry, EntryMatch, Forward, GroupChoice, GroupId, Match, MeterId, Pipe, PipeKind,
    Program, SharedUse, Template,
};

/// Names of shared counters.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// The names, ordered by number.
    pub names: Vec<String>,
    numbers: HashMap<String, u16>,
    /// Whether new names may be used.
    open: bool,
}

impl Counters {
    /// Takes the counters of a program.
    #[must_use]
    pub fn new(names: Vec<String>, open: bool) -> Counters {
        let numbers = names.iter().enumerate().map(|(at, name)| (name.clone(), at as u16)).collect();
        Counters { names, numbers, open }
    }

    /// Returns the counter that `node` names.
    pub fn named(&mut self, node: &Node, report: &mut Report) -> Option<CounterId> {
        let name = text(node, "the name of a counter", report)?;
        if let Some(number) = self.numbers.get(name) {
            return Some(CounterId(*number));
        }
        if !self.open {
            named("counter", node, self.names.iter().map(String::as_str), report);
            return None;
        }
        let name = crate::section::name(name, node.span, report)?;
        // If there are too many, the check reports it.
        let number = u16::try_from(self.names.len()).ok()?;
        self.numbers.insert(name.to_string(), number);
        self.names.push(name.to_string());
        Some(CounterId(number))
    }
}

/// Reads the entries of a pipe.
pub struct EntryReader<'a, 'p> {
    /// The names of everything else.
    pub program: &'p Program,
    /// The names of groups and their targets.
    pub names: &'a mut GroupNames<'p>,
    /// The attachments that a port's name may refer to.
    pub attachments: &'a Attachments,
    /// The pipe, without its entries.
    pub pipe: &'a Pipe,
    /// The names of counters.
    pub counters: &'a mut Counters,
    /// Whether the pipe was read without errors, so that any mismatch is the entry's fault.
    pub sure: bool,
    /// Whether the entry is added at run time.
    pub run_time: bool,
    /// Collects errors.
    pub report: &'a mut Report,
}

/// Keys of an entry, besides the words of operations that take numbers from the entry.
const KEYS: &[Key] = crate::keys! {
    "match": Shape::Defined("entry_match", matches), "what a packet must match to hit this entry";
    "priority": Shape::Number(0, u32::MAX as u64), "acl: among matching entries, the lowest wins" or "0";
    "action": Shape::Name, "which of the pipe's `actions`";
    "counter": Shape::Name, "the shared counter, if the pipe says `per_entry`";
    "meter": Shape::Name, "the meter, if the pipe says `per_entry`";
    "forward": forward::SHAPE, "where packets go, if the pipe says `per_entry`";
};
const TARGET: &[Key] = crate::keys! {
    "group": Shape::Name, "hash, flow: the group of the target, if metadata chooses the group";
    needed "target": Shape::Name, "hash, flow: the target of the group";
};
const FLOW: &[Key] = crate::keys! {
    needed "flow": Shape::Text, "flow: one flow, such as `udp 10.0.0.1:53 > 10.0.0.2:4000`";
};

/// Returns the schema of an entry.
pub fn schema(schema: &mut Schema) -> serde_json::Value {
    let mut entry = schema.map(KEYS);
    for line in OPERATIONS.iter().filter(|line| WORDS.contains(&line.word)) {
        entry["properties"][line.word] = action::entry_schema(line, schema);
    }
    entry
}

fn matches(schema: &mut Schema) -> serde_json::Value {
    let fields = pipes::fields(Field::ALL.iter().copied(), schema, value::entry_schema);
    serde_json::json!({ "anyOf": [fields, schema.map(TARGET), schema.map(FLOW), { "enum": ["default"] }] })
}

/// The words of operations that can take numbers from an entry.
static WORDS: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let numbers = |line: &&Line| line.blank.numbers().next().is_some();
    OPERATIONS.iter().filter(numbers).map(|line| line.word).collect()
});

/// The keys of an entry.
static KNOWN: LazyLock<Vec<&str>> =
    LazyLock::new(|| KEYS.iter().map(|key| key.word).chain(WORDS.iter().copied()).collect());

impl EntryReader<'_, '_> {
    /// Reads the entries that a text describes: one entry, or one for each port of the attachment that the
    /// text names as its port. Empty if the text has errors, which are in the report.
    pub fn read_all(&mut self, node: &Node) -> Vec<Entry> {
        let Some(entry) = self.read(node) else { return Vec::new() };
        let Some((place, members)) = self.each_port(node) else { return vec![entry] };
        let one = |given: EntryMatch| {
            let mut entry = entry.clone();
            entry.matches[place] = given;
            entry
        };
        members.into_iter().map(one).collect()
    }

    /// If an entry applies to several ports, returns the index of its port match, and the match for each
    /// port.
    fn each_port(&self, node: &Node) -> Option<(usize, Vec<EntryMatch>)> {
        let (place, one) = self.pipe.varying().enumerate().find(|(_, one)| one.field == Field::InputPort)?;
        let section = Section::of(node, &KNOWN, &mut Report::default());
        let matches = pairs(section.get("match")?, &mut Report::default());
        let port =
            matches.into_iter().find(|(name, ..)| *name == Field::InputPort.name()).map(|(.., node)| node)?;
        let several =
            self.attachments.several(Field::InputPort, text(port, "a port", &mut Report::default())?)?;
        let ports = self.attachments.port_names(several).into_iter();
        Some((place, ports.filter_map(|port| self.value(one, port).ok().flatten()).collect()))
    }

    /// Reads one entry, or the first port's if the entry applies to several ports; `None` if it has errors,
    /// which are in the report.
    pub fn read(&mut self, node: &Node) -> Option<Entry> {
        let before = self.report.errors();
        let section = Section::of(node, &KNOWN, self.report);
        let (matches, priority) = self.key(&section);
        let template = self.template(&section);
        let values = self.values(&section, template);
        let entry = Entry {
            matches,
            priority,
            template,
            values,
            forward: self.forward(&section),
            counter: self.counter(&section),
            meter: self.meter(&section),
            run_time: false,
            origin: self.report.origin(section.get("match").map_or(node.span, |node| node.span)),
        };
        (self.report.errors() == before).then_some(entry)
    }

    /// Reads what identifies the entry.
    pub fn read_key(&mut self, node: &Node) -> Option<EntryKey> {
        let before = self.report.errors();
        let section = Section::of(node, &KNOWN, self.report);
        let (matches, priority) = self.key(&section);
        (self.report.errors() == before).then_some(EntryKey { matches, priority })
    }

    fn key(&mut self, section: &Section) -> (Vec<EntryMatch>, u32) {
        let priority = match section.get("priority") {
            Some(node) if self.pipe.kind.of_type().priorities => {
                crate::section::number(node, "`priority`", 0..=u64::from(u32::MAX), self.report)
                    .unwrap_or_default() as u32
            }
            Some(node) => {
                self.report.error(node.span, "only entries of acl pipes have a priority");
                0
            }
            None => 0,
        };
        (self.matches(section), priority)
    }

    fn matches(&mut self, section: &Section) -> Vec<EntryMatch> {
        match self.pipe.kind {
            PipeKind::Hash { group, .. } => self.row(section, Some(group), false),
            PipeKind::Flow { learn, .. } => self.row(section, learn.group(), true),
            _ => self.fields(section),
        }
    }

    /// Reads the match of an entry of a HASH or FLOW pipe: `{ target: name }`, `{ group: name, target: name
    /// }` where metadata chooses the group, `{ flow: "..." }` or `default`.
    fn row(&mut self, section: &Section, choice: Option<GroupChoice>, flow: bool) -> Vec<EntryMatch> {
        let what = match (choice, flow) {
            (Some(GroupChoice::One(_)), false) => "`{ target: name }`",
            (Some(GroupChoice::One(_)), true) => "`{ target: name }`, `{ flow: \"...\" }` or `default`",
            (Some(GroupChoice::ByMeta(_)), false) => "`{ group: name, target: name }`",
            (Some(GroupChoice::ByMeta(_)), true) => {
                "`{ group: name, target: name }`, `{ flow: \"...\" }` or `default`"
            }
            (None, _) => "`{ flow: \"...\" }` or `default`",
        };
        let Some(node) = section.need("match", what, self.report) else { return Vec::new() };
        if flow && node.is("default") {
            return vec![EntryMatch::Default];
        }
        let pairs = pairs(node, self.report);
        let value = |wanted: &str| pairs.iter().find(|(key, ..)| *key == wanted).map(|(.., value)| *value);
        let given = match (pairs.len(), value("group"), value("target"), value("flow"), choice) {
            (1, None, Some(target), None, Some(GroupChoice::One(group))) => {
                self.target(target, group).map(EntryMatch::Target)
            }
            (2, Some(group), Some(target), None, Some(GroupChoice::ByMeta(_))) => {
                self.group(group).and_then(|group| {
                    let target = self.target(target, group)?;
                    Some(EntryMatch::Member { group, target })
                })
            }
            (1, None, None, Some(value), _) if flow => self.flow(value),
            _ => {
                let (span, found) = match pairs.as_slice() {
                    [(key, span, _)] => (*span, format!(", not `{key}`")),
                    _ => (node.span, String::new()),
                };
                self.report.error(span, format!("the match of this entry is {what}{found}"));
                None
            }
        };
        given.into_iter().collect()
    }

    /// Reads the name of a group.
    fn group(&mut self, node: &Node) -> Option<GroupId> {
        let name = text(node, "the name of a group", self.report)?;
        if let Some(group) = self.names.group(name) {
            return Some(group);
        }
        let all = self.program.groups.iter().map(|group| group.name.as_str());
        position("there is no group", (name, node.span), all, self.report).map(|at| GroupId(at as u16))
    }

    fn target(&mut self, node: &Node, id: GroupId) -> Option<u16> {
        let name = text(node, "the name of a target", self.report)?;
        if let Some(at) = self.names.target(id, name) {
            return Some(at);
        }
        let group = self.program.groups.get(id.index())?;
        let names = group.targets.iter().map(|target| target.name.as_str());
        let what = format_args!("group `{}` has no target", group.name);
        position(what, (name, node.span), names, self.report).map(|at| at as u16)
    }

    fn flow(&mut self, node: &Node) -> Option<EntryMatch> {
        let text = text(node, "a flow", self.report)?;
        let key = value::flow(text);
        if key.is_none() {
            let help = "write `\"udp 10.0.0.1:53 > 10.0.0.2:4000\"`, IPv6 as `[::1]:53`, and ` vni 7` \
                behind an inner flow";
            self.report.error_help(node.span, format!("`{text}` is not a flow"), help);
        }
        key.map(EntryMatch::Flow)
    }

    fn fields(&mut self, section: &Section) -> Vec<EntryMatch> {
        let empty = Node { span: section.span, kind: Kind::Map(Vec::new()) };
        let node = section.get("match").unwrap_or(&empty);
        let given = pairs(node, self.report);
        for (name, span, _) in &given {
            self.known(name, *span);
        }
        let values: Vec<(&Match, Option<&Node>)> = self
            .pipe
            .varying()
            .map(|one| {
                (one, given.iter().find(|(name, ..)| *name == one.field.name()).map(|(_, _, node)| *node))
            })
            .collect();
        values.into_iter().filter_map(|(one, value)| self.field(one, value, node.span)).collect()
    }

    /// Checks that a field in an entry's match is a per-entry field of the pipe.
    fn known(&mut self, name: &str, span: Span) {
        let matched = self.pipe.matches.iter().find(|one| one.field.name() == name);
        match matched.map(|one| one.criterion) {
            Some(Criterion::Const { .. }) => {
                self.report.error(
                    span,
                    format!("`{name}` has one value for the whole pipe: remove it from the entry"),
                );
            }
            Some(_) => {}
            None if !self.sure => {}
            None => {
                let what = format_args!("pipe `{}` does not match", self.pipe.name);
                let names = self.pipe.matches.iter().map(|one| one.field.name());
                position(what, (name, span), names, self.report);
            }
        }
    }

    fn field(&mut self, one: &Match, node: Option<&Node>, at: Span) -> Option<EntryMatch> {
        let Some(node) = node else {
            if matches!(one.criterion, Criterion::Masked | Criterion::Range) {
                return Some(EntryMatch::Any);
            }
            self.report.error(at, format!("`{}` is missing: the pipe matches it per entry", one.field));
            return None;
        };
        let text = text(node, "a value", self.report)?;
        let read = match self.attachments.several(one.field, text) {
            None => self.value(one, text),
            Some(several) if self.run_time => Err(format!(
                "`{text}` is a {}: at run time an entry names one of its members, {}",
                several.kind,
                self.attachments.port_names(several).join(", ")
            )),
            Some(several) => self.value(one, self.attachments.port_names(several).first()?),
        };
        read.map_err(|why| self.report.error(node.span, why)).ok().flatten()
    }

    fn value(&self, one: &Match, text: &str) -> Result<Option<EntryMatch>, String> {
        match_value(one, text, self.program)
    }

    fn template(&mut self, section: &Section) -> u16 {
        let Some(node) = section.get("action") else {
            if self.pipe.templates.len() > 1 {
                let names: Vec<&str> = self.pipe.templates.iter().map(|one| one.name.as_str()).collect();
                let message = format!("`action` is missing: the pipe has several ({})", names.join(", "));
                self.report.error(section.span, message);
            }
            return 0;
        };
        let Some(name) = text(node, "the name of an action", self.report) else { return 0 };
        let what = format_args!("pipe `{}` has no action", self.pipe.name);
        let names = self.pipe.templates.iter().map(|one| one.name.as_str());
        position(what, (name, node.span), names, self.report).unwrap_or_default() as u16
    }

    fn values(&mut self, section: &Section, template: u16) -> Vec<u128> {
        let places = self.pipe.templates.get(usize::from(template)).map(Template::places).unwrap_or_default();
        for operation in WORDS.iter().copied() {
            if let Some(node) = section.get(operation).filter(|_| self.sure) {
                self.only_places(operation, node, &places);
            }
        }
        let mut values = Vec::with_capacity(places.len());
        for place in &places {
            let given = section.get(place.word).and_then(|node| self.given(node, place));
            let Some(node) = given else {
                let message = format!(
                    "`{}: {{ {}: ... }}` is missing: the action takes it per entry",
                    place.word, place.key
                );
                self.report.error(section.span, message);
                continue;
            };
            values.extend(self.entry_value(place.field, node));
        }
        values
    }

    /// Reads a value. Any number of entries may have a value that names a group.
    fn entry_value(&mut self, field: Field, node: &Node) -> Option<u128> {
        let name = if let Kind::Scalar(text) = &node.kind { value::group_name(field, text) } else { None };
        let group = name.and_then(|name| self.names.group(name));
        let number = group.and_then(|group| self.program.groups[group.index()].number);
        number.map_or_else(|| constant(field, node, self.program, self.report), |number| Some(number.into()))
    }

    fn given<'n>(&self, node: &'n Node, place: &Place) -> Option<&'n Node> {
        let mapping = occurrences(node).get(place.occurrence).copied()?;
        let Kind::Map(map) = &mapping.kind else { return None };
        map.iter()
            .find(|(key, _)| matches!(&key.kind, Kind::Scalar(name) if name == place.key))
            .map(|(_, value)| value)
    }

    /// Checks that the action uses everything that an entry supplies.
    fn only_places(&mut self, operation: &str, node: &Node, places: &[Place]) {
        for (occurrence, mapping) in occurrences(node).into_iter().enumerate() {
            for (key, span, _) in pairs(mapping, self.report) {
                let fits = |place: &&Place| place.word == operation && place.occurrence == occurrence;
                let names = places.iter().filter(fits).map(|place| place.key);
                if !names.clone().any(|one| one == key) {
                    let message = format!("the action takes no `{key}` per entry in `{operation}`");
                    self.report.error_help(span, message, suggestion(key, names));
                }
            }
        }
    }

    fn forward(&mut self, section: &Section) -> Option<Forward> {
        let node = self.per_entry(section, "forward", self.pipe.forward == Forward::PerEntry)?;
        let forward = forward::read(node, self.program, self.report);
        if forward == Some(Forward::PerEntry) {
            self.report.error(
                node.span,
                "only the pipe says `per_entry`: the entry names its own \
                destination",
            );
        }
        forward
    }

    fn counter(&mut self, section: &Section) -> Option<CounterId> {
        let node =
            self.per_entry(section, "counter", self.pipe.monitor.counter == Some(SharedUse::PerEntry))?;
        self.counters.named(node, self.report)
    }

    fn meter(&mut self, section: &Section) -> Option<MeterId> {
        let node = self.per_entry(section, "meter", self.pipe.monitor.meter == Some(SharedUse::PerEntry))?;
        meter_named(node, self.program, self.report)
    }

    /// Returns the value of a key that must be present if and only if the pipe leaves it to its entries.
    fn per_entry<'n>(&mut self, section: &Section<'n>, key: &str, wanted: bool) -> Option<&'n Node> {
        match section.get(key) {
            None if wanted => {
                self.report
                    .error(section.span, format!("`{key}` is missing: the pipe says `{key}: per_entry`"));
                None
            }
            Some(node) if !wanted => {
                let message =
                    format!("an entry gives its own `{key}` only if the pipe says `{key}: per_entry`");
                self.report.error(node.span, message);
                None
            }
            given => given,
        }
    }
}

/// Reads `text` as a match of one of a pipe's fields; `None` for a constant, which entries do not supply.
pub(crate) fn match_value(one: &Match, text: &str, program: &Program) -> Result<Option<EntryMatch>, String> {
    let of = one.field;
    let given = match one.criterion {
        Criterion::Masked | Criterion::Range if text == "any" => EntryMatch::Any,
        Criterion::Prefix => {
            let (value, length) = value::prefix(of, text, program)?;
            EntryMatch::Prefix { value, length }
        }
        Criterion::Masked => {
            let (value, mask) = value::masked(of, text, program)?;
            EntryMatch::Masked { value, mask }
        }
        Criterion::Range => {
            let (first, last) = value::range(of, text, program)?;
            EntryMatch::Range { first, last }
        }
        Criterion::PerEntry { mask } => {
            let value = value::field(of, text, program)?;
            value::within(of, value, mask, program)?;
            EntryMatch::Value(value)
        }
        Criterion::Const { .. } => return Ok(None),
    };
    Ok(Some(given))
}

/// Reads `{ ... }` or `[{ ... }, { ... }]`: the values for each of several operations with the same word.
fn occurrences(node: &Node) -> Vec<&Node> {
    match &node.kind {
        Kind::List(list) => list.iter().collect(),
        _ => vec![node],
    }
}

/// Returns the meter that `node` names.
pub fn meter_named(node: &Node, program: &Program, report: &mut Report) -> Option<MeterId> {
    let names = program.meters.iter().map(|meter| meter.name.as_str());
    named("meter", node, names, report).map(|at| MeterId(at as u16))
}

/// Writes an entry as one line of YAML that reads back as the same entry.
#[must_use]
pub fn write(program: &Program, pipe: &Pipe, entry: &Entry) -> String {
    let mut parts = vec![write_match(program, pipe, &entry.matches)];
    if entry.priority != 0 {
        parts.push(format!("priority: {}", entry.priority));
    }
    let template = pipe.templates.get(usize::from(entry.template));
    if pipe.templates.len() > 1 {
        parts.extend(template.map(|template| format!("action: {}", template.name)));
    }
    let places = template.map(Template::places).unwrap_or_default();
    parts.extend(write_values(program, &places, &entry.values));
    let counter = entry.counter.and_then(|id| program.counters.get(id.index()));
    parts.extend(counter.map(|name| format!("counter: {name}")));
    let meter = entry.meter.and_then(|id| program.meters.get(id.index()));
    parts.extend(meter.map(|meter| format!("meter: {}", meter.name)));
    parts.extend(entry.forward.map(|forward| format!("forward: {}", forward::write(forward, program))));
    format!("{{ {} }}", parts.join(", "))
}

/// Writes what identifies an entry, as YAML.
#[must_use]
pub fn write_key(program: &Program, pipe: &Pipe, key: &EntryKey) -> String {
    let priority = if key.priority == 0 { String::new() } else { format!(", priority: {}", key.priority) };
    format!("{{ {}{priority} }}", write_match(program, pipe, &key.matches))
}

fn write_match(program: &Program, pipe: &Pipe, matches: &[EntryMatch]) -> String {
    let named = |group: GroupId, at: u16| {
        let target = program.groups.get(group.index()).and_then(|group| group.targets.get(usize::from(at)));
        target.map_or_else(|| at.to_string(), |target| target.name.clone())
    };
    let row = match matches {
        [EntryMatch::Default] => Some("default".to_string()),
        [EntryMatch::Flow(key)] => Some(format!("{{ flow: \"{key}\" }}")),
        [EntryMatch::Target(at)] => {
            let group = pipe.kind.group().and_then(GroupChoice::one);
            let target = group.map_or_else(|| at.to_string(), |group| named(group, *at));
            Some(format!("{{ target: {target} }}"))
        }
        [EntryMatch::Member { group, target }] => {
            let name = program.groups.get(group.index()).map_or("?", |group| &group.name);
            Some(format!("{{ group: {name}, target: {} }}", named(*group, *target)))
        }
        _ => None,
    };
    let fields = || {
        let named: Vec<String> =
            pipe.varying().zip(matches).map(|(one, given)| write_field(program, one, *given)).collect();
        if named.is_empty() { "{}".to_string() } else { format!("{{ {} }}", named.join(", ")) }
    };
    format!("match: {}", row.unwrap_or_else(fields))
}

fn write_field(program: &Program, one: &Match, given: EntryMatch) -> String {
    let of = one.field;
    let value = match given {
        EntryMatch::Value(value) => value::write(of, value, program),
        EntryMatch::Prefix { value, length } => format!("{}/{length}", value::write(of, value, program)),
        EntryMatch::Masked { value, mask } => value::write_masked(of, value, mask, program),
        EntryMatch::Range { first, last } if first == last => value::write(of, u128::from(first), program),
        EntryMatch::Range { first, last } => format!("{first}-{last}"),
        EntryMatch::Any
        | EntryMatch::Target(_)
        | EntryMatch::Member { .. }
        | EntryMatch::Flow(_)
        | EntryMatch::Default => "any".to_string(),
    };
    format!("{of}: {}", quoted(value))
}

/// Quotes a value if YAML would interpret its colons.
fn quoted(value: String) -> String {
    if value.contains("::") { format!("\"{value}\"") } else { value }
}

fn write_values(program: &Program, places: &[Place], values: &[u128]) -> Vec<String> {
    let mut mapping: Vec<(&str, Vec<Vec<String>>)> = Vec::new();
    for (place, value) in places.iter().zip(values) {
        let at = mapping.iter().position(|(name, _)| *name == place.word).unwrap_or_else(|| {
            mapping.push((place.word, Vec::new()));
            mapping.len() - 1
        });
        let occurrences = &mut mapping[at].1;
        occurrences.resize(occurrences.len().max(place.occurrence + 1), Vec::new());
        let pair = format!("{}: {}", place.key, quoted(value::write(place.field, *value, program)));
        if !occurrences[place.occurrence].contains(&pair) {
            occurrences[place.occurrence].push(pair);
        }
    }
    let one = |pairs: &Vec<String>| format!("{{ {} }}", pairs.join(", "));
    mapping
        .iter()
        .map(|(name, occurrences)| match occurrences.as_slice() {
            [pairs] => format!("{name}: {}", one(pairs)),
            several => format!("{name}: [{}]", several.iter().map(one).collect::<Vec<_>>().join(", ")),
        })
        .collect()
}
