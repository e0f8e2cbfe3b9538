//! Pipes: what they match, count and do, and where they lead.

use crate::action::{self, field_named, template};
use crate::attachment::Attachments;
use crate::diagnostic::{Report, Span};
use crate::entry::{self, Counters, EntryReader, meter_named};
use crate::group_names::GroupNames;
use crate::key::{Key, Shape};
use crate::lines::Lines;
use crate::plain_entry::PlainEntries;
use crate::raw::{Kind, Node};
use crate::schema::Schema;
use crate::section::{Section, boolean, choice, list, named, pairs, text, words};
use crate::{forward, value};
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use weir_packet::{Field, KeySource};
use weir_program::check::CAPACITY_MAX;
use weir_program::{
    Criterion, Entry, EntryList, FlowState, Forward, GroupChoice, GroupId, HashInput, Learn, Match, Monitor,
    NatPoolId, OwnedBy, Pipe, PipeId, PipeKind, Program, SharedUse, Template, Timeouts,
};

/// Keys of pipes; some exist only for one type.
const KEYS: &[Key] = crate::keys! {
    needed "type": Shape::Words(types), "how packets are looked up";
    "match": Shape::Defined("match", matches), "the fields that packets are looked up by";
    needed "hash": Shape::Either(&[Shape::Words(|| HASHES.to_vec()), Shape::List(&Shape::Text)]),
        "`5-tuple`, `inner 5-tuple`, `rss`, `round_robin`, `quic` or a list of fields" only "hash";
    needed "group": GROUP, "the group whose buckets are used, or `{ by: meta.0 }` to let metadata choose it"
        only "hash";
    "key": Shape::Words(|| words(&SOURCES)), "the headers that tell flows apart" or "outer" only "flow";
    needed "learn": Shape::Either(&[Shape::Words(|| words(&LEARNT)), Shape::Map(LEARN)]),
        "what a new flow gets: `nothing`, `default`, `{ pin: group }` or `{ follow: group }`" only "flow";
    "owner": Shape::Words(|| words(&OwnedBy::WORDS)),
        "which part of a flow's key decides which worker owns it" or "both" only "flow";
    "first": Shape::Boolean, "whether the first packet of a flow produces a delta" or "false" only "flow";
    "monitor": Shape::Map(MONITOR), "what is counted and metered";
    "action": action::SHAPE, "what is done to packets: a list of operations";
    "actions": Shape::Named(&action::SHAPE), "several actions by name, of which each entry has one";
    needed "forward": forward::SHAPE, "where hits go";
    needed "miss": forward::SHAPE, "where packets that match nothing go: a pipe, a port, `kernel`, `drop`";
    "too_long": Shape::Name, "the app that gets packets which `limit_length` refuses" or "drop";
    "rehash": Shape::Boolean, "whether flow key and select hash are recomputed after the action" or "false";
    "capacity": Shape::Number(1, CAPACITY_MAX as u64),
        "how many entries the pipe has room for; flow: how many flows per worker";
    "entries": Shape::Either(&[Shape::List(&Shape::Defined("entry", entry::schema)), Shape::Map(FILE)]),
        "the pipe's entries: a list, or `{ file: path }` with one on each line";
};
const FILE: &[Key] = crate::keys! {
    needed "file": Shape::Text, "path of the file, relative to the folder of the configuration";
};
const LEARN: &[Key] = crate::keys! {
    "pin": GROUP, "the group of which a flow keeps its first target, or `{ by: meta.0 }`";
    "follow": GROUP, "the group whose buckets a flow follows, or `{ by: meta.0 }`";
    "reverse": Shape::Boolean, "whether the answers to a flow are learnt with it" or "false";
    "nat_pool": Shape::Name, "the NAT pool from which each flow takes an address and a port";
};
const GROUP: Shape = Shape::Either(&[Shape::Name, Shape::Map(BY)]);
const BY: &[Key] = crate::keys! {
    needed "by": Shape::Words(|| words(&WORDS)), "the metadata whose value is the number of the group";
};
const WORDS: [(&str, u8); 4] = [("meta.0", 0), ("meta.1", 1), ("meta.2", 2), ("meta.3", 3)];
const LEARNT: [(&str, Learn); 2] = [("nothing", Learn::Nothing), ("default", Learn::Default)];
const SOURCES: [(&str, KeySource); 2] = [("outer", KeySource::Outer), ("inner", KeySource::Inner)];
const HASHES: [&str; 5] = ["5-tuple", "inner 5-tuple", "rss", "round_robin", "quic"];
const MONITOR: &[Key] = crate::keys! {
    "counter": Shape::Name, "the shared counter that counts hits, or `per_entry`";
    "meter": Shape::Name, "the meter that colours hits, or `per_entry`";
    "red": Shape::Words(|| words(&RED)), "what happens to packets that the meter colours red" or "pass";
    "idle_timeout": Shape::Time,
        "how long an entry added at run time, or a flow, may be idle before it is removed" or "never";
    "timeouts": Shape::Map(TIMEOUTS), "how long a flow may be idle before it is removed, by its state";
};
const TIMEOUTS: &[Key] = crate::keys! {
    "single": Shape::Time, "one packet, not TCP" or "30 s";
    "stream": Shape::Time, "more packets, not TCP" or "120 s";
    "tcp_syn": Shape::Time, "TCP: only a SYN, or one packet" or "120 s";
    "tcp_established": Shape::Time, "TCP: packets after the first" or "5 d";
    "tcp_half_closed": Shape::Time, "TCP: a FIN in one direction" or "1 h";
    "tcp_fin": Shape::Time, "TCP: a FIN in each direction" or "120 s";
    "tcp_rst": Shape::Time, "TCP: an RST" or "10 s";
};
const RED: [(&str, bool); 2] = [("drop", true), ("pass", false)];
const LONG: &[Key] = crate::keys! {
    "const": Shape::Text, "the value that the field must have";
    "mask": Shape::Text, "the bits of the value that are compared";
    "per_entry": Shape::Text, "the bits that entries give a value for";
};

/// Returns the schema of a pipe, whose type determines some of the keys.
pub fn schema(schema: &mut Schema) -> Value {
    let mut pipe = schema.map(KEYS);
    let rules = types().into_iter().map(|of| {
        let others = KEYS.iter().filter(|key| key.only.is_some_and(|only| only != of));
        let others: Map<_, _> = others.map(|key| (key.word.to_string(), json!(false))).collect();
        let own = KEYS.iter().filter(|key| key.needed && key.only == Some(of)).map(|key| key.word);
        let own: Vec<&str> = own.collect();
        json!({
            "if": { "properties": { "type": { "const": of } }, "required": ["type"] },
            "then": { "required": own, "properties": others },
        })
    });
    pipe["allOf"] = rules.collect();
    pipe
}

fn matches(schema: &mut Schema) -> Value {
    fields(Field::ALL.iter().copied(), schema, value::criterion_schema)
}

/// Returns the schema of a mapping from fields to the result of `of` for each.
pub(crate) fn fields(
    fields: impl Iterator<Item = Field>,
    schema: &mut Schema,
    of: fn(Field, &mut Schema) -> Value,
) -> Value {
    let field = |field: Field| {
        let mut value = of(field, schema);
        value["description"] = json!(format!("{} bits.", field.spec().bits));
        (field.to_string(), value)
    };
    let properties: Map<_, _> = fields.map(field).collect();
    json!({ "type": "object", "properties": properties, "additionalProperties": false })
}

fn types() -> Vec<&'static str> {
    PipeKind::BLANK.iter().map(PipeKind::word).collect()
}

/// Reads the contents of a pipe whose name the program knows. Errors are reported, and the parts that contain
/// them are left out.
#[must_use]
pub fn read(
    id: PipeId,
    node: &Node,
    (program, attachments): (&Program, &Attachments),
    counters: &mut Counters,
    report: &mut Report,
) -> Pipe {
    let before = report.errors();
    let mut pipe = program.pipes[id.index()].clone();
    let section = Section::read(node, KEYS, report).at(report.span_of(pipe.origin));
    let reader = Reader { section: &section, program, attachments };
    pipe.kind = reader.kind(report);
    pipe.matches = reader.matches(report);
    // An app may have enabled its measurement.
    let measured = pipe.monitor.measured;
    pipe.monitor = Monitor { measured, ..reader.monitor(&mut pipe.kind, counters, report) };
    pipe.templates = reader.templates(report);
    pipe.forward = reader.forward("forward", report);
    pipe.miss = reader.forward("miss", report);
    pipe.too_long = section.get("too_long").and_then(|node| forward::app_or_drop(node, program, report));
    pipe.nat = reader.nat_pool(report);
    pipe.owner = section.choice("owner", &OwnedBy::WORDS, report).unwrap_or_default();
    pipe.rehash = section.boolean("rehash", report);
    if let Some(node) = section.get("entries") {
        let sure = report.errors() == before;
        let (mut names, mut more) = (GroupNames::new(program), GroupNames::new(program));
        let entries = RefCell::new(EntryList::default());
        let plain = PlainEntries::of(program, &pipe).filter(|_| sure);
        let read_plain = |(line, from, at): (&str, usize, Span), report: &mut Report| {
            let read = plain.as_ref().and_then(|plain| plain.entry(line, from, &mut more));
            let Some((entry, matched)) = read else { return false };
            let column = at.column + matched.unwrap_or(from) as u32;
            let origin = report.origin(Span { column, length: 1, ..at });
            entries.borrow_mut().extend([Entry { origin, ..entry }]);
            true
        };
        each_entry(node, read_plain, report, |node, report| {
            let (pipe, names, run_time) = (&pipe, &mut names, false);
            let mut reader =
                EntryReader { program, names, attachments, pipe, counters, sure, run_time, report };
            entries.borrow_mut().extend(reader.read_all(node));
        });
        let mut entries = entries.into_inner();
        entries.shrink();
        pipe.entries = entries;
    }
    pipe.capacity = reader.capacity(&pipe, report);
    pipe
}

/// Iterates over a list of entries, those of a file, or lines of the configuration. No nodes are built for
/// lines that `plain` handles.
fn each_entry(
    node: &Node,
    mut plain: impl FnMut((&str, usize, Span), &mut Report) -> bool,
    report: &mut Report,
    mut read: impl FnMut(&Node, &mut Report),
) {
    if let Kind::Map(_) = node.kind {
        let path = Section::read(node, FILE, report).needed("file", report);
        let path = path.and_then(|node| Some((node.span, text(node, "the path of a file", report)?)));
        let lines = path.and_then(|(span, path)| Lines::open(path, span, report));
        lines.iter().for_each(|lines| lines.each_unless(&mut plain, report, &mut read));
        return;
    }
    for node in list(node, "entries", report) {
        match &node.kind {
            Kind::Lines(lines) => lines.each_unless(&mut plain, report, &mut read),
            _ => read(node, report),
        }
    }
}

/// Reads `timeouts`; without them, `idle_timeout` applies to all states.
fn flow_timeouts(section: &Section<'_>, idle_timeout_ns: u64, report: &mut Report) -> Timeouts {
    let Some(node) = section.get("timeouts") else { return Timeouts::all(idle_timeout_ns) };
    if section.get("idle_timeout").is_some() {
        report.error(node.span, "`idle_timeout` or `timeouts`, not both");
    }
    let by_state = Section::read(node, TIMEOUTS, report);
    let with = |all: Timeouts, state: FlowState| all.with(state, by_state.time(state.word(), report));
    FlowState::ALL.into_iter().fold(Timeouts::CONNTRACK, with)
}

struct Reader<'a> {
    section: &'a Section<'a>,
    program: &'a Program,
    attachments: &'a Attachments,
}

impl Reader<'_> {
    fn kind(&self, report: &mut Report) -> PipeKind {
        let _ = self.section.need("type", &format!("one of {}", types().join(", ")), report);
        let types: Vec<(&str, &PipeKind)> = PipeKind::BLANK.iter().map(|kind| (kind.word(), kind)).collect();
        let Some(kind) = self.section.choice("type", &types, report) else { return PipeKind::Basic };
        self.no_others(kind.word(), report);
        match kind {
            PipeKind::Hash { .. } => PipeKind::Hash { input: self.hash(report), group: self.group(report) },
            PipeKind::Flow { .. } => {
                let (key, learn, first) =
                    (self.key(report), self.learn(report), self.section.boolean("first", report));
                PipeKind::Flow { key, learn, timeouts: Timeouts::NEVER, first, reverse: self.reverse(report) }
            }
            same => same.clone(),
        }
    }

    /// Reports keys of other types.
    fn no_others(&self, own: &str, report: &mut Report) {
        for (key, only) in KEYS.iter().filter_map(|key| Some((key.word, key.only?))) {
            if let Some(node) = self.section.get(key).filter(|_| only != own) {
                report.error(node.span, format!("only {only} pipes have `{key}`"));
            }
        }
    }

    /// Reads `5-tuple`, `inner 5-tuple`, `rss`, `round_robin`, `quic`, or fields with masks.
    fn hash(&self, report: &mut Report) -> HashInput {
        let Some(node) = self.section.needed("hash", report) else {
            return HashInput::Select(KeySource::Outer);
        };
        if let Kind::Scalar(_) = node.kind {
            // An input may be a list of fields, so it cannot be copied.
            let inputs = [
                HashInput::Select(KeySource::Outer),
                HashInput::Select(KeySource::Inner),
                HashInput::Rss,
                HashInput::RoundRobin,
                HashInput::Quic,
            ];
            let words: Vec<(&str, &HashInput)> = HASHES.into_iter().zip(&inputs).collect();
            return choice(node, "`hash`", &words, report).unwrap_or(&inputs[0]).clone();
        }
        HashInput::Fields(
            list(node, "fields", report).iter().filter_map(|node| self.hashed(node, report)).collect(),
        )
    }

    fn hashed(&self, node: &Node, report: &mut Report) -> Option<(Field, u128)> {
        let text = text(node, "a field, or a field and its mask: `ipv4.src/0.0.0.255`", report)?;
        let (name, mask) = text.split_once('/').map_or((text, None), |(name, mask)| (name, Some(mask)));
        let field = field_named(name, node.span, report)?;
        let mask = mask.map_or(Ok(field.max()), |mask| self.mask(field, mask));
        mask.map(|mask| (field, mask)).map_err(|why| report.error(node.span, why)).ok()
    }

    /// Reads the mask after a slash: a prefix length for addresses, otherwise a value.
    fn mask(&self, field: Field, text: &str) -> Result<u128, String> {
        let prefix = format!("/{text}");
        let length =
            text.bytes().all(|digit| digit.is_ascii_digit()) && matches!(field.spec().bits, 32 | 128);
        value::mask(field, if length { &prefix } else { text }, self.program)
    }

    fn group(&self, report: &mut Report) -> GroupChoice {
        let node = self.section.needed("group", report);
        let choice = node.and_then(|node| self.choice_of_group(node, report));
        choice.unwrap_or(GroupChoice::One(GroupId::default()))
    }

    /// Reads the name of a group, or `{ by: meta.0 }`.
    fn choice_of_group(&self, node: &Node, report: &mut Report) -> Option<GroupChoice> {
        if let Kind::Map(_) = node.kind {
            let section = Section::read(node, BY, report);
            section.needed("by", report)?;
            return section.choice("by", &WORDS, report).map(GroupChoice::ByMeta);
        }
        let names = self.program.groups.iter().map(|group| group.name.as_str());
        named("group", node, names, report).map(|at| GroupChoice::One(GroupId(at as u16)))
    }

    fn key(&self, report: &mut Report) -> KeySource {
        self.section.choice("key", &SOURCES, report).unwrap_or_default()
    }

    /// Reads `nothing`, `default`, `{ pin: group }` or `{ follow: group }`.
    fn learn(&self, report: &mut Report) -> Learn {
        let Some(node) = self.section.needed("learn", report) else { return Learn::Nothing };
        if let Kind::Scalar(_) = node.kind {
            return choice(node, "`learn`", &LEARNT, report).unwrap_or(Learn::Nothing);
        }
        let section = Section::read(node, LEARN, report);
        let mut group = |key: &str| section.get(key).and_then(|node| self.choice_of_group(node, report));
        match (group("pin"), group("follow")) {
            (Some(group), None) => Learn::Pin(group),
            (None, Some(group)) => Learn::Follow(group),
            (Some(_), Some(_)) => {
                report.error(section.span, "`pin` or `follow`, not both");
                Learn::Nothing
            }
            (None, None) => Learn::Nothing,
        }
    }

    /// Returns a key of `learn`, whose other keys are read by [`Reader::learn`].
    fn of_learn(&self, key: &str) -> Option<&Node> {
        let node = self.section.get("learn").filter(|node| matches!(node.kind, Kind::Map(_)))?;
        let keys = pairs(node, &mut Report::default());
        keys.into_iter().find(|one| one.0 == key).map(|(_, _, node)| node)
    }

    fn reverse(&self, report: &mut Report) -> bool {
        let reverse = self.of_learn("reverse");
        reverse.and_then(|node| boolean(node, "`reverse`", report)).unwrap_or_default()
    }

    fn nat_pool(&self, report: &mut Report) -> Option<NatPoolId> {
        let names = self.program.nat_pools.iter().map(|pool| pool.name.as_str());
        let at = self.of_learn("nat_pool").and_then(|node| named("NAT pool", node, names, report));
        at.map(|at| NatPoolId(at as u16))
    }

    fn matches(&self, report: &mut Report) -> Vec<Match> {
        let Some(node) = self.section.get("match") else { return Vec::new() };
        let mut matches = Vec::new();
        for (name, span, node) in pairs(node, report) {
            let Some(field) = field_named(name, span, report) else { continue };
            if let Some(criterion) = self.criterion(field, node, report) {
                matches.push(Match { field, criterion, origin: report.origin(span) });
            }
        }
        matches
    }

    /// Reads `per_entry`, `prefix`, `masked`, `range`, `ignore` or a value; `value/mask` and
    /// `per_entry/mask`; or the same as mappings: `{ const: value, mask: mask }`, `{ per_entry: mask }`.
    fn criterion(&self, field: Field, node: &Node, report: &mut Report) -> Option<Criterion> {
        if let Kind::Map(_) = node.kind {
            return self.long_criterion(field, node, report);
        }
        let text = text(node, "a value, `per_entry`, `prefix`, `masked` or `range`", report)?;
        let criterion = match text {
            "ignore" => return None,
            "per_entry" => Ok(Criterion::PerEntry { mask: field.max() }),
            "prefix" => Ok(Criterion::Prefix),
            "masked" => Ok(Criterion::Masked),
            "range" => Ok(Criterion::Range),
            _ => match text.strip_prefix("per_entry/") {
                Some(mask) => self.mask(field, mask).map(|mask| Criterion::PerEntry { mask }),
                None => self.constant(field, text),
            },
        };
        criterion.map_err(|why| report.error(node.span, why)).ok()
    }

    /// Reads a constant; an attachment must refer to a single port here.
    fn constant(&self, field: Field, text: &str) -> Result<Criterion, String> {
        self.attachments.is_one(field, text)?;
        let (value, mask) = value::masked(field, text, self.program)?;
        Ok(Criterion::Const { value, mask })
    }

    fn long_criterion(&self, field: Field, node: &Node, report: &mut Report) -> Option<Criterion> {
        let section = Section::read(node, LONG, report);
        let mut given =
            |key: &str| section.get(key).and_then(|node| Some((node, text(node, "a value", report)?)));
        let (constant, mask, per_entry) = (given("const"), given("mask"), given("per_entry"));
        let or_report = |at: &Node, result: Result<u128, String>, report: &mut Report| {
            result.map_err(|why| report.error(at.span, why)).ok()
        };
        match (constant, mask, per_entry) {
            (None, None, Some((at, text))) => or_report(at, value::mask(field, text, self.program), report)
                .map(|mask| Criterion::PerEntry { mask }),
            (Some((at, text)), mask, None) => {
                let one = self.attachments.is_one(field, text);
                let value =
                    or_report(at, one.and_then(|()| value::field(field, text, self.program)), report)?;
                let mask = match mask {
                    Some((at, text)) => or_report(at, value::mask(field, text, self.program), report)?,
                    None => field.max(),
                };
                or_report(at, value::within(field, value, mask, self.program).map(|()| value), report)?;
                Some(Criterion::Const { value, mask })
            }
            _ => {
                report.error(section.span, "write `{ const: value, mask: mask }` or `{ per_entry: mask }`");
                None
            }
        }
    }

    fn monitor(&self, kind: &mut PipeKind, counters: &mut Counters, report: &mut Report) -> Monitor {
        let mut monitor = Monitor::default();
        let Some(node) = self.section.get("monitor") else { return monitor };
        let section = Section::read(node, MONITOR, report);
        monitor.counter = section.get("counter").and_then(|node| match node.is("per_entry") {
            true => Some(SharedUse::PerEntry),
            false => counters.named(node, report).map(SharedUse::Pipe),
        });
        monitor.meter = section.get("meter").and_then(|node| match node.is("per_entry") {
            true => Some(SharedUse::PerEntry),
            false => meter_named(node, self.program, report).map(SharedUse::Pipe),
        });
        if let Some(node) = section.get("red") {
            monitor.drop_red = section.choice("red", &RED, report).unwrap_or_default();
            if section.get("meter").is_none() {
                report.error(
                    node.span,
                    "`red` says what happens to packets that a meter colours red, but there is no `meter`",
                );
            }
        }
        let timeout = section.time("idle_timeout", report);
        match kind {
            PipeKind::Flow { timeouts, .. } => *timeouts = flow_timeouts(&section, timeout, report),
            _ => monitor.idle_timeout_ns = timeout,
        }
        monitor
    }

    fn templates(&self, report: &mut Report) -> Vec<Template> {
        match (self.section.get("action"), self.section.get("actions")) {
            (None, None) => vec![Template::default()],
            (Some(node), None) => vec![template(Template::DEFAULT, node, self.program, report)],
            (given, Some(node)) => {
                if let Some(one) = given {
                    report.error(one.span, "`action` or `actions`, not both");
                }
                let named = pairs(node, report);
                if named.is_empty() {
                    report.error(node.span, "`actions` needs at least one action");
                }
                named.into_iter().map(|(name, _, node)| template(name, node, self.program, report)).collect()
            }
        }
    }

    fn forward(&self, key: &str, report: &mut Report) -> Forward {
        let Some(node) = self.section.needed(key, report) else { return Forward::Drop };
        let forward = forward::read(node, self.program, report).unwrap_or_default();
        if key == "miss" && forward == Forward::PerEntry {
            report.error(node.span, "`miss` cannot be `per_entry`: a packet that misses has no entry");
            return Forward::Drop;
        }
        forward
    }

    fn capacity(&self, pipe: &Pipe, report: &mut Report) -> u32 {
        let written = pipe.entries.len();
        if self.section.get("capacity").is_some() {
            return self.section.number("capacity", report).map_or(CAPACITY_MAX, |capacity| capacity as u32);
        }
        pipe.kind.capacity(self.program, written)
    }
}
