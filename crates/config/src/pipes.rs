//! Pipes: what they match, count, do, and where they lead.

use crate::action::{field_named, template};
use crate::attachment::Attachments;
use crate::diagnostic::{Report, suggestion};
use crate::entry::{Counters, EntryReader, meter_named};
use crate::raw::{Kind, Node};
use crate::section::{Section, boolean, choice, duration, list, number, pairs, text};
use crate::{forward, value};
use engine::check::CAPACITY_MAX;
use engine::pipes::Type;
use engine::program::{
    Criterion, Forward, GroupId, HashInput, Learn, Match, Monitor, Pipe, PipeId, PipeKind, Program, SharedUse, Template,
};
use packet::{Field, KeySource};

/// Keys of every pipe; each type has [more](engine::pipes::Type::keys).
const KEYS: &[&str] =
    &["type", "match", "monitor", "action", "actions", "forward", "miss", "rehash", "capacity", "entries"];

/// Reads the contents of a pipe that the program knows by name. What cannot be used is reported and left out.
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
    let own = PipeKind::BLANK.iter().flat_map(|kind| kind.of_type().keys);
    let keys: Vec<&str> = KEYS.iter().chain(own).copied().collect();
    let section = Section::of(node, &keys, report).at(report.span_of(pipe.origin));
    let reader = Reader { section: &section, program, attachments };
    pipe.kind = reader.kind(report);
    pipe.matches = reader.matches(report);
    pipe.monitor = reader.monitor(&mut pipe.kind, counters, report);
    pipe.templates = reader.templates(report);
    pipe.forward = reader.forward("forward", "where hits go", report);
    pipe.miss = reader.forward("miss", "where packets go that match nothing: a pipe, a port, `kernel`, `drop`", report);
    pipe.rehash = section.get("rehash").and_then(|node| boolean(node, "`rehash`", report)).unwrap_or_default();
    if let Some(node) = section.get("entries") {
        let mut entries = Vec::new();
        let sure = report.errors() == before;
        let mut reader = EntryReader { program, attachments, pipe: &pipe, counters, sure, run_time: false, report };
        for node in list(node, "entries", reader.report) {
            entries.extend(reader.read_all(node));
        }
        pipe.entries = entries;
    }
    pipe.capacity = reader.capacity(&pipe, report);
    pipe
}

struct Reader<'a> {
    section: &'a Section<'a>,
    program: &'a Program,
    attachments: &'a Attachments,
}

impl Reader<'_> {
    fn kind(&self, report: &mut Report) -> PipeKind {
        let types: Vec<(&str, &PipeKind)> = PipeKind::BLANK.iter().map(|kind| (kind.word(), kind)).collect();
        let words: Vec<&str> = types.iter().map(|(word, _)| *word).collect();
        let node = self.section.need("type", &format!("one of {}", words.join(", ")), report);
        let Some(kind) = node.and_then(|node| choice(node, "a pipe's type", &types, report)) else {
            return PipeKind::Basic;
        };
        self.no_others(kind.of_type(), report);
        match kind {
            PipeKind::Hash { .. } => PipeKind::Hash { input: self.hash(report), group: self.group(report) },
            PipeKind::Flow { .. } => {
                PipeKind::Flow { key: self.key(report), learn: self.learn(report), idle_timeout_ns: 0 }
            }
            same => same.clone(),
        }
    }

    /// Keys that only pipes of another type have.
    fn no_others(&self, own: &Type, report: &mut Report) {
        let others = PipeKind::BLANK.iter().map(PipeKind::of_type).filter(|other| other.word != own.word);
        for (other, key) in others.flat_map(|other| other.keys.iter().map(move |key| (other, key))) {
            if let Some(node) = self.section.get(key) {
                report.error(node.span, format!("only {} pipes have `{key}`", other.word));
            }
        }
    }

    /// `5-tuple`, `inner 5-tuple`, `rss`, `round_robin`, or fields with masks.
    fn hash(&self, report: &mut Report) -> HashInput {
        let Some(node) =
            self.section.need("hash", "`5-tuple`, `inner 5-tuple`, `rss`, `round_robin` or a list of fields", report)
        else {
            return HashInput::Select(KeySource::Outer);
        };
        if let Kind::Scalar(_) = node.kind {
            // An input cannot be copied, as it may be a list of fields.
            let inputs = [
                HashInput::Select(KeySource::Outer),
                HashInput::Select(KeySource::Inner),
                HashInput::Rss,
                HashInput::RoundRobin,
            ];
            let words = ["5-tuple", "inner 5-tuple", "rss", "round_robin"];
            let words: Vec<(&str, &HashInput)> = words.into_iter().zip(&inputs).collect();
            return choice(node, "`hash`", &words, report).unwrap_or(&inputs[0]).clone();
        }
        HashInput::Fields(list(node, "fields", report).iter().filter_map(|node| self.hashed(node, report)).collect())
    }

    fn hashed(&self, node: &Node, report: &mut Report) -> Option<(Field, u128)> {
        let text = text(node, "a field, or a field and its mask: `ipv4.src/0.0.0.255`", report)?;
        let (name, mask) = text.split_once('/').map_or((text, None), |(name, mask)| (name, Some(mask)));
        let field = field_named(name, node.span, report)?;
        let mask = mask.map_or(Ok(field.max()), |mask| self.mask(field, mask));
        mask.map(|mask| (field, mask)).map_err(|why| report.error(node.span, why)).ok()
    }

    /// The mask behind a slash: a prefix length for addresses, otherwise a value.
    fn mask(&self, field: Field, text: &str) -> Result<u128, String> {
        let prefix = format!("/{text}");
        let length = text.bytes().all(|digit| digit.is_ascii_digit()) && matches!(field.spec().bits, 32 | 128);
        value::mask(field, if length { &prefix } else { text }, self.program)
    }

    fn group(&self, report: &mut Report) -> GroupId {
        let node = self.section.need("group", "the group whose buckets are used", report);
        node.and_then(|node| self.group_named(node, report)).unwrap_or_default()
    }

    fn group_named(&self, node: &Node, report: &mut Report) -> Option<GroupId> {
        let name = text(node, "the name of a group", report)?;
        let group = self.program.group_named(name);
        if group.is_none() {
            let names: Vec<&str> = self.program.groups.iter().map(|group| group.name.as_str()).collect();
            report.error_help(node.span, format!("there is no group `{name}`"), suggestion(name, names));
        }
        group
    }

    fn key(&self, report: &mut Report) -> KeySource {
        let words = [("outer", KeySource::Outer), ("inner", KeySource::Inner)];
        self.section.get("key").and_then(|node| choice(node, "`key`", &words, report)).unwrap_or_default()
    }

    /// `nothing`, `default`, `{ pin: group }` or `{ follow: group }`.
    fn learn(&self, report: &mut Report) -> Learn {
        let what = "what a new flow gets: `nothing`, `default`, `{ pin: group }` or `{ follow: group }`";
        let Some(node) = self.section.need("learn", what, report) else { return Learn::Nothing };
        if let Kind::Scalar(_) = node.kind {
            let words = [("nothing", Learn::Nothing), ("default", Learn::Default)];
            return choice(node, "`learn`", &words, report).unwrap_or(Learn::Nothing);
        }
        let section = Section::of(node, &["pin", "follow"], report);
        let mut group = |key: &str| section.get(key).and_then(|node| self.group_named(node, report));
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

    /// `per_entry`, `prefix`, `masked`, `range`, `ignore`, a value; `value/mask` and `per_entry/mask`, or the
    /// same as mappings: `{ const: value, mask: mask }`, `{ per_entry: mask }`.
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

    /// A constant, of which a port's name must be one.
    fn constant(&self, field: Field, text: &str) -> Result<Criterion, String> {
        self.attachments.is_one(field, text)?;
        let (value, mask) = value::masked(field, text, self.program)?;
        Ok(Criterion::Const { value, mask })
    }

    fn long_criterion(&self, field: Field, node: &Node, report: &mut Report) -> Option<Criterion> {
        let section = Section::of(node, &["const", "mask", "per_entry"], report);
        let mut given = |key: &str| section.get(key).and_then(|node| Some((node, text(node, "a value", report)?)));
        let (constant, mask, per_entry) = (given("const"), given("mask"), given("per_entry"));
        let told = |at: &Node, result: Result<u128, String>, report: &mut Report| {
            result.map_err(|why| report.error(at.span, why)).ok()
        };
        match (constant, mask, per_entry) {
            (None, None, Some((at, text))) => {
                told(at, value::mask(field, text, self.program), report).map(|mask| Criterion::PerEntry { mask })
            }
            (Some((at, text)), mask, None) => {
                let one = self.attachments.is_one(field, text);
                let value = told(at, one.and_then(|()| value::field(field, text, self.program)), report)?;
                let mask = match mask {
                    Some((at, text)) => told(at, value::mask(field, text, self.program), report)?,
                    None => field.max(),
                };
                told(at, value::within(field, value, mask, self.program).map(|()| value), report)?;
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
        let section = Section::of(node, &["counter", "meter", "red", "idle_timeout"], report);
        let per_entry = |node: &Node| matches!(&node.kind, Kind::Scalar(text) if text == "per_entry");
        monitor.counter = section.get("counter").and_then(|node| match per_entry(node) {
            true => Some(SharedUse::PerEntry),
            false => counters.named(node, report).map(SharedUse::Pipe),
        });
        monitor.meter = section.get("meter").and_then(|node| match per_entry(node) {
            true => Some(SharedUse::PerEntry),
            false => meter_named(node, self.program, report).map(SharedUse::Pipe),
        });
        if let Some(node) = section.get("red") {
            monitor.drop_red = choice(node, "`red`", &[("drop", true), ("pass", false)], report).unwrap_or_default();
            if section.get("meter").is_none() {
                report.error(
                    node.span,
                    "`red` says what becomes of packets that a meter colours red: there is no `meter`",
                );
            }
        }
        let timeout =
            section.get("idle_timeout").and_then(|node| duration(node, "a timeout", report)).unwrap_or_default();
        match kind {
            PipeKind::Flow { idle_timeout_ns, .. } => *idle_timeout_ns = timeout,
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
                    report.error(node.span, "`actions` names one action at least");
                }
                named.into_iter().map(|(name, _, node)| template(name, node, self.program, report)).collect()
            }
        }
    }

    fn forward(&self, key: &str, what: &str, report: &mut Report) -> Forward {
        let Some(node) = self.section.need(key, what, report) else { return Forward::Drop };
        let forward = forward::read(node, self.program, report).unwrap_or_default();
        if key == "miss" && forward == Forward::PerEntry {
            report.error(node.span, "a miss cannot be `per_entry`: where nothing matched, there is no entry");
            return Forward::Drop;
        }
        forward
    }

    fn capacity(&self, pipe: &Pipe, report: &mut Report) -> u32 {
        let written = pipe.entries.len();
        if let Some(node) = self.section.get("capacity") {
            let capacity = number(node, "a capacity", 1..=u64::from(CAPACITY_MAX), report);
            return capacity.map_or(CAPACITY_MAX, |capacity| capacity as u32);
        }
        pipe.kind.capacity(self.program, written)
    }
}
