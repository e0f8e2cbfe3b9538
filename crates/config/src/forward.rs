//! Where packets go: `forward:` and `miss:`, read and written.

use crate::diagnostic::{Report, Span, suggestion};
use crate::key::{Key, Shape};
use crate::raw::{Kind, Node};
use crate::schema::Schema;
use crate::section::{Section, pairs, text, words};
use serde_json::{Value, json};
use weir_program::{AppId, Forward, Program};

/// Words of the language, which cannot be names.
pub const RESERVED: &[&str] =
    &["drop", "kernel", "in_port", "per_entry", "any", "default", "null", "Null", "NULL"];

/// The shape of a forward.
pub const SHAPE: Shape = Shape::Defined("forward", schema);

const TEE: &[Key] = crate::keys! {
    needed "copy": Shape::Name, "the app that gets a copy";
    needed "then": Shape::Name, "the pipe where the packet itself goes";
};

/// Words that are forwards, and their meanings.
const WORDS: [(&str, Forward); 4] = [
    ("drop", Forward::Drop),
    ("kernel", Forward::Kernel),
    ("in_port", Forward::InputPort),
    ("per_entry", Forward::PerEntry),
];

fn schema(schema: &mut Schema) -> Value {
    let mut shapes = vec![json!({ "enum": words(&WORDS) }), schema.shape(&Shape::Name), schema.map(TEE)];
    for (kind, help) in KINDS.into_iter().zip(KINDS_HELP).chain([FLOOD]) {
        shapes.push(schema.map(&[Key::new(kind, Shape::Name, help).needed()]));
    }
    json!({ "anyOf": shapes })
}

/// Reads a forward: a word, a name, `{ port | pipe | group | app: name }`, `{ flood: group }` or `{ copy:
/// app, then: pipe }`.
#[must_use]
pub fn read(node: &Node, program: &Program, report: &mut Report) -> Option<Forward> {
    if let Kind::Map(_) = node.kind {
        return one_kind(node, program, report);
    }
    let name = text(node, "a port, a pipe, a group, an app, `kernel`, `in_port` or `drop`", report)?;
    match WORDS.iter().find(|(word, _)| *word == name) {
        Some((_, forward)) => Some(*forward),
        None => any_kind(name, node.span, program, report),
    }
}

/// Kinds of things that can be forwarded to by name.
const KINDS: [&str; 4] = ["port", "pipe", "group", "app"];
const KINDS_HELP: [&str; 4] =
    ["the port of this name", "the pipe of this name", "the group of this name", "the app of this name"];
const FLOOD: (&str, &str) = ("flood", "the group whose targets each get a copy");

fn one_kind(node: &Node, program: &Program, report: &mut Report) -> Option<Forward> {
    let pairs = pairs(node, report);
    if pairs.iter().any(|(key, ..)| ["copy", "then"].contains(key)) {
        return tee(node, program, report);
    }
    let [(kind, span, value)] = pairs.as_slice() else {
        report.error(node.span, "expected one of `port`, `pipe`, `group`, `app` or `flood`");
        return None;
    };
    if *kind == FLOOD.0 {
        let Some(Forward::Group(group)) = named("group", value, program, report) else { return None };
        return Some(Forward::Flood(group));
    }
    if !KINDS.contains(kind) {
        let all = KINDS.into_iter().chain(["flood", "copy"]);
        report.error_help(*span, format!("a forward has no `{kind}`"), suggestion(kind, all));
        return None;
    }
    named(kind, value, program, report)
}

/// Reads a name of one kind.
fn named(kind: &str, node: &Node, program: &Program, report: &mut Report) -> Option<Forward> {
    let name = text(node, "a name", report)?;
    let found = find(kind, name, program);
    if found.is_none() {
        let names: Vec<&str> = names(kind, program).collect();
        report.error_help(node.span, format!("there is no {kind} `{name}`"), suggestion(name, names));
    }
    found
}

/// Reads the name of an app.
#[must_use]
pub fn app(node: &Node, program: &Program, report: &mut Report) -> Option<AppId> {
    match named("app", node, program, report) {
        Some(Forward::App(app)) => Some(app),
        _ => None,
    }
}

/// Reads an app that receives packets that would otherwise be dropped; `drop` means none.
pub(crate) fn app_or_drop(node: &Node, program: &Program, report: &mut Report) -> Option<AppId> {
    if node.is("drop") { None } else { app(node, program, report) }
}

/// Reads `{ copy: app, then: pipe }`.
fn tee(node: &Node, program: &Program, report: &mut Report) -> Option<Forward> {
    let section = Section::read(node, TEE, report);
    let app = section.needed("copy", report);
    let app = app.and_then(|node| named("app", node, program, report));
    let next = section.needed("then", report);
    let next = next.and_then(|node| named("pipe", node, program, report));
    match (app, next) {
        (Some(Forward::App(app)), Some(Forward::Pipe(next))) => Some(Forward::Tee { app, next }),
        _ => None,
    }
}

fn any_kind(name: &str, span: Span, program: &Program, report: &mut Report) -> Option<Forward> {
    let found: Vec<(&str, Forward)> =
        KINDS.iter().filter_map(|kind| find(kind, name, program).map(|forward| (*kind, forward))).collect();
    match found.as_slice() {
        [(_, forward)] => Some(*forward),
        [] => {
            let words = ["drop", "kernel", "in_port"].into_iter();
            let all: Vec<&str> = KINDS.iter().flat_map(|kind| names(kind, program)).chain(words).collect();
            let help = suggestion(name, all);
            report.error_help(span, format!("there is no port, pipe, group or app `{name}`"), help);
            None
        }
        several => {
            let kinds: Vec<&str> = several.iter().map(|(kind, _)| *kind).collect();
            let help = format!("write `{{ {}: {name} }}`", kinds[0]);
            report.error_help(span, format!("`{name}` is the name of a {}", kinds.join(" and of a ")), help);
            None
        }
    }
}

fn find(kind: &str, name: &str, program: &Program) -> Option<Forward> {
    match kind {
        "port" => program.port_named(name).map(Forward::Port),
        "pipe" => program.pipe_named(name).map(Forward::Pipe),
        "group" => program.group_named(name).map(Forward::Group),
        _ => program.apps.iter().position(|app| app == name).map(|at| Forward::App(AppId(at as u16))),
    }
}

fn names<'a>(kind: &str, program: &'a Program) -> Box<dyn Iterator<Item = &'a str> + 'a> {
    match kind {
        "port" => Box::new(program.ports.iter().map(|port| port.name.as_str())),
        "pipe" => Box::new(program.pipes.iter().map(|pipe| pipe.name.as_str())),
        "group" => Box::new(program.groups.iter().map(|group| group.name.as_str())),
        _ => Box::new(program.apps.iter().map(String::as_str)),
    }
}

/// Writes a forward as [`read`] reads it.
#[must_use]
pub fn write(forward: Forward, program: &Program) -> String {
    let (kind, name) = match forward {
        Forward::Drop => return "drop".to_string(),
        Forward::Kernel => return "kernel".to_string(),
        Forward::InputPort => return "in_port".to_string(),
        Forward::PerEntry => return "per_entry".to_string(),
        Forward::Port(id) => ("port", program.ports.get(id.index()).map(|port| &port.name)),
        Forward::Pipe(id) => ("pipe", program.pipes.get(id.index()).map(|pipe| &pipe.name)),
        Forward::Group(id) => ("group", program.groups.get(id.index()).map(|group| &group.name)),
        Forward::App(id) => ("app", program.apps.get(id.index())),
        Forward::Flood(id) => {
            let name = program.groups.get(id.index()).map_or("?", |group| &group.name);
            return format!("{{ flood: {name} }}");
        }
        Forward::Tee { app, next } => {
            let app = program.apps.get(app.index()).map_or("?", String::as_str);
            let next = program.pipes.get(next.index()).map_or("?", |pipe| &pipe.name);
            return format!("{{ copy: {app}, then: {next} }}");
        }
    };
    let Some(name) = name else { return format!("{{ {kind}: ? }}") };
    let plain = KINDS.iter().filter(|kind| find(kind, name, program).is_some()).count() == 1;
    if plain { name.clone() } else { format!("{{ {kind}: {name} }}") }
}
