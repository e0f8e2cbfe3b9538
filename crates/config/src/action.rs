//! Actions: the operations of a pipe's templates, and the values in them that entries supply.

use crate::diagnostic::Report;
use crate::key::Shape;
use crate::pipes::fields;
use crate::raw::{Kind, Node};
use crate::schema::{Schema, typed};
use crate::section::{Section, boolean, choice, list, pairs, position, text};
use crate::value;
use serde_json::{Map, json};
use std::net::Ipv6Addr;
use weir_packet::Field;
use weir_program::builder::Number;
use weir_program::operation::{
    Argument, Encap, Form, Line, NatPart, OPERATIONS, Operation, Slot, Value, order,
};
use weir_program::{Program, Template};

/// The shape of an action.
pub const SHAPE: Shape = Shape::Defined("action", schema);

/// The word for an address or port that a flow takes from the NAT pool.
const NAT_POOL: &str = "nat_pool";

/// The key of a value that is a port's own MAC address.
const MAC_OF: &str = "mac_of";

/// Reads a list of operations.
#[must_use]
pub fn template(name: &str, node: &Node, program: &Program, report: &mut Report) -> Template {
    let mut reader = ActionReader { program, operations: Vec::new(), last: None };
    for item in list(node, "operations", report) {
        reader.item(item, report);
    }
    Template { name: name.to_string(), operations: reader.operations }
}

struct ActionReader<'a> {
    program: &'a Program,
    operations: Vec<Operation>,
    /// The operation of the latest stage among those read so far.
    last: Option<&'static Line>,
}

impl ActionReader<'_> {
    /// Reads an item of the list: a word, or a mapping from an operation to its arguments.
    fn item(&mut self, item: &Node, report: &mut Report) {
        match &item.kind {
            Kind::Scalar(name) => self.operation(name, item, None, report),
            Kind::Map(_) => {
                for (name, span, body) in pairs(item, report) {
                    let at = Node { span, kind: Kind::Null };
                    self.operation(name, &at, Some(body), report);
                }
            }
            _ => report.error(item.span, format!("expected an operation, found {}", item.what())),
        }
    }

    fn operation(&mut self, name: &str, at: &Node, body: Option<&Node>, report: &mut Report) {
        let names = OPERATIONS.iter().map(|line| line.word);
        let line = position("there is no operation", (name, at.span), names, report);
        let Some(line) = line.map(|at| &OPERATIONS[at]) else { return };
        match self.last.filter(|last| line.blank.stage() < last.blank.stage()) {
            Some(last) => {
                let message = format!("`{name}` cannot follow `{}`", last.word);
                report.error_help(at.span, message, format!("the order is {}", order()));
            }
            None => self.last = Some(line),
        }
        match (line.blank.form(), body) {
            (Form::Alone, None) => self.operations.push(line.blank),
            (Form::Alone, Some(_)) => {
                report.error(at.span, format!("`{name}` takes no arguments: write only the word"));
            }
            (_, None) => report.error(at.span, format!("`{name}` needs a mapping: `{name}: {{ ... }}`")),
            (Form::Fields, Some(body)) => self.fields(line.blank, body, report),
            (Form::Keys, Some(body)) => self.keys(line.blank, body, report),
        }
    }

    /// Reads `field: value` for each operation.
    fn fields(&mut self, blank: Operation, body: &Node, report: &mut Report) {
        for (name, span, node) in pairs(body, report) {
            let mut operation = blank;
            let mut read = |at: usize, node: &Node, report: &mut Report| {
                self.slot(&mut operation.arguments()[at], node, report)
            };
            let name = Node { span, kind: Kind::Scalar(name.to_string()) };
            if let (Operation::Set(..), Some(port)) = (blank, named_port(node)) {
                self.operations.extend(self.set_mac(&name, port, report));
                continue;
            }
            if read(0, &name, report).is_some() && read(1, node, report).is_some() {
                self.operations.push(operation);
            }
        }
    }

    /// Sets a field to the MAC address of a port. If the address is not known, because this host does not
    /// have the interface, the frame's destination address is used instead.
    fn set_mac(&self, name: &Node, port: &Node, report: &mut Report) -> Option<Operation> {
        let field = writable(name, report)?;
        if field.spec().bits != 48 {
            report.error(
                port.span,
                format!(
                    "`{MAC_OF}` gives a MAC address, but `{field}` does not hold \
                one"
                ),
            );
            return None;
        }
        let names = self.program.ports.iter().map(|port| &*port.name);
        let called = text(port, "the name of a port", report)?;
        let port_at = position("there is no port", (called, port.span), names, report)?;
        if let Some(mac) = self.program.ports[port_at].mac {
            return Some(Operation::Set(field, Value::Const(mac.number())));
        }
        let message = format!(
            "the MAC address of port `{called}` is unknown here: frames will use their original \
             destination MAC address as their source, unless you write the port's `mac`"
        );
        report.warning(port.span, message);
        Some(Operation::Copy { from: Field::EthDst, to: field })
    }

    /// Reads `key: value` for each argument. An argument may determine the notation of later ones.
    fn keys(&mut self, blank: Operation, body: &Node, report: &mut Report) {
        let mut operation = blank;
        let known: Vec<&str> = operation.arguments().iter().map(|one| one.key).collect();
        let section = Section::of(body, &known, report);
        let before = report.errors();
        let mut src_bits = None;
        for (at, key) in known.iter().enumerate() {
            let argument = &mut operation.arguments()[at];
            let node =
                if argument.needed { section.need(key, argument.help, report) } else { section.get(key) };
            match (node, &mut argument.slot) {
                (Some(Node { span, kind: Kind::Scalar(text) }), Slot::Number(value, like))
                    if *key == "src" && text.contains('/') =>
                {
                    let read = value::source(*like, text).map_err(|why| report.error(*span, why));
                    if let Ok((address, bits)) = read {
                        **value = Value::Const(address);
                        src_bits = Some(Value::Const(bits.into()));
                    }
                }
                (None, Slot::Optional(bits, _)) if *key == "src_bits" => **bits = src_bits,
                (Some(node), _) => drop(self.slot(argument, node, report)),
                (None, Slot::Ipv6(ipv6)) => {
                    **ipv6 = known.iter().filter_map(|key| section.get(key)).any(is_ipv6)
                }
                (None, _) => {}
            }
        }
        if let Some(node) = section.get("src_bits") {
            fits_source(operation, src_bits.is_some(), node, report);
        }
        if report.errors() == before {
            self.operations.push(operation);
        }
    }

    /// Reads one argument; `None` if it has errors, which are in the report.
    fn slot(&self, argument: &mut Argument<'_>, node: &Node, report: &mut Report) -> Option<()> {
        match &mut argument.slot {
            Slot::Number(value, like) => **value = self.value(*like, node, report)?,
            Slot::Optional(value, like) | Slot::Hashed(value, like) => {
                **value = Some(self.value(*like, node, report)?);
            }
            Slot::Copied(copied, _) if node.is("copy") => **copied = None,
            Slot::Copied(copied, like) => {
                **copied = Some(constant(*like, node, self.program, report)? as u8);
            }
            Slot::Either(either, [no, yes]) => {
                **either = choice(node, argument.help, &[(*no, false), (*yes, true)], report)?;
            }
            Slot::Read(field) => **field = field_named(text(node, "a field", report)?, node.span, report)?,
            Slot::Written(field) | Slot::Changed(field) => **field = writable(node, report)?,
            Slot::OneOf(value, of) => **value = one_of(argument.help, of, node, report)?,
            Slot::Ipv6(ipv6) => **ipv6 = boolean(node, "`ipv6`", report)?,
        }
        Some(())
    }

    fn value(&self, field: Field, node: &Node, report: &mut Report) -> Option<Value> {
        if node.is("per_entry") {
            return Some(Value::PerEntry);
        }
        if node.is("per_flow") {
            return Some(Value::PerFlow);
        }
        if let Kind::Map(_) = node.kind {
            return self.learnt(field, node, report);
        }
        constant(field, node, self.program, report).map(Value::Const)
    }
}

impl ActionReader<'_> {
    /// Reads `{ per_flow: field }`, or `{ per_flow: nat_pool }`, which is an address or a port, like `of`.
    fn learnt(&self, of: Field, node: &Node, report: &mut Report) -> Option<Value> {
        let section = Section::of(node, &["per_flow"], report);
        let from = section.need("per_flow", "the field that a flow learns the value from", report)?;
        if from.is(NAT_POOL) {
            let is_address = matches!(of.spec().bits, 32 | 128);
            return Some(Value::Nat(if is_address { NatPart::Address } else { NatPart::Port }));
        }
        field_named(text(from, "a field, or `nat_pool`", report)?, from.span, report).map(Value::Learnt)
    }
}

/// Returns the port in `{ mac_of: port }`.
fn named_port(node: &Node) -> Option<&Node> {
    let Kind::Map(entries) = &node.kind else { return None };
    let [(key, port)] = &entries[..] else { return None };
    key.is(MAC_OF).then_some(port)
}

fn is_ipv6(node: &Node) -> bool {
    let address = |text: &str| text.split('/').next().and_then(|address| address.parse::<Ipv6Addr>().ok());
    matches!(&node.kind, Kind::Scalar(text) if address(text).is_some())
}

/// Checks that `src_bits` makes sense and does not repeat what a prefix in `src` says.
fn fits_source(operation: Operation, prefix: bool, node: &Node, report: &mut Report) {
    let Operation::Encap(Encap { ipv6, src_bits, .. }) = operation else { return };
    let range = Encap::src_bits_range(ipv6);
    if prefix {
        report.error_help(node.span, "`src` is already a prefix", "omit `src_bits`, or write an address");
    } else if let Some(Value::Const(bits)) = src_bits
        && !u8::try_from(bits).is_ok_and(|bits| range.contains(&bits))
    {
        let help = format!("write {} to {}, or omit it", range.start(), range.end());
        report.error_help(node.span, format!("`src_bits` cannot be {bits}"), help);
    }
}

fn one_of(what: &str, of: &[u16], node: &Node, report: &mut Report) -> Option<u16> {
    let number =
        text(node, what, report).and_then(value::number).and_then(|number| u16::try_from(number).ok());
    let number = number.filter(|number| of.contains(number));
    if number.is_none() {
        let of: Vec<String> = of.iter().map(|one| format!("{one:#06x}")).collect();
        report.error(node.span, format!("{what} is {}", of.join(" or ")));
    }
    number
}

fn writable(node: &Node, report: &mut Report) -> Option<Field> {
    let field = field_named(text(node, "a field", report)?, node.span, report)?;
    if field.spec().access == weir_packet::Access::ReadOnly {
        report.error(
            node.span,
            format!("`{field}` is read-only: it can be matched and copied from, not written"),
        );
        return None;
    }
    Some(field)
}

/// Returns the field with this name; an unknown name is reported.
#[must_use]
pub fn field_named(name: &str, span: crate::diagnostic::Span, report: &mut Report) -> Option<Field> {
    let names = Field::ALL.iter().map(|field| field.name());
    position("there is no field", (name, span), names, report).map(|at| Field::ALL[at])
}

/// Reads a constant value of a field.
#[must_use]
pub fn constant(field: Field, node: &Node, program: &Program, report: &mut Report) -> Option<u128> {
    let text = text(node, "a value", report)?;
    value::field(field, text, program).map_err(|why| report.error(node.span, why)).ok()
}

fn schema(schema: &mut Schema) -> serde_json::Value {
    let is_alone = |line: &&Line| line.blank.form() == Form::Alone;
    let alone = OPERATIONS
        .iter()
        .filter(is_alone)
        .map(|line| json!({ "const": line.word, "description": line.help }));
    let mut shapes: Vec<serde_json::Value> = alone.collect();
    let body = OPERATIONS.iter().filter(|line| !is_alone(line));
    let body: Map<_, _> = body.map(|line| (line.word.to_string(), operation_schema(line, schema))).collect();
    shapes.push(json!({ "type": "object", "properties": body, "additionalProperties": false }));
    json!({ "type": "array", "items": { "anyOf": shapes } })
}

fn operation_schema(line: &Line, schema: &mut Schema) -> serde_json::Value {
    let mut operation = match line.blank.form() {
        Form::Alone => json!({ "type": "null" }),
        Form::Fields => {
            let writable = |field: &Field| field.spec().access == weir_packet::Access::Writable;
            fields(Field::ALL.iter().copied().filter(writable), schema, number_schema)
        }
        Form::Keys => arguments(line, schema),
    };
    operation["description"] = json!(line.help);
    operation
}

/// Returns the schema of what an entry supplies to an operation: numbers, or a list of them for several
/// operations with the same word.
pub fn entry_schema(line: &Line, schema: &mut Schema) -> serde_json::Value {
    let one = schema.define(&format!("entry_{}", line.word), |schema| {
        let mut one = operation_schema(line, schema);
        one.as_object_mut().map(|one| one.remove("required"));
        one
    });
    json!({ "anyOf": [one, { "type": "array", "items": one }] })
}

/// Returns the schema of a value that a flow learns.
fn learnt_schema(schema: &mut Schema) -> serde_json::Value {
    let from = json!({ "anyOf": [field_schema(schema), { "const": NAT_POOL }] });
    json!({ "type": "object", "properties": { "per_flow": from }, "required": ["per_flow"],
        "additionalProperties": false })
}

/// Returns the schema of a value of a field, or `per_entry`.
fn number_schema(field: Field, schema: &mut Schema) -> serde_json::Value {
    let words = json!({ "enum": ["per_entry", "per_flow"] });
    let mut forms = vec![value::schema(field, schema), words, learnt_schema(schema)];
    if field.spec().bits == 48 {
        forms.push(json!({ "type": "object", "properties": { MAC_OF: { "type": "string" } },
            "required": [MAC_OF], "additionalProperties": false }));
    }
    json!({ "anyOf": forms })
}

fn arguments(line: &Line, schema: &mut Schema) -> serde_json::Value {
    let mut operation = line.blank;
    let (mut properties, mut needed) = (Map::new(), Vec::new());
    for argument in operation.arguments() {
        let mut value = match &argument.slot {
            // The other arguments determine whether an address is IPv4 or IPv6.
            Slot::Number(_, like) if matches!(like.spec().bits, 32 | 128) => {
                let both = [Field::Ipv4Src, Field::Ipv6Src].map(|field| value::schema(field, schema));
                let words = json!({ "enum": ["per_entry", "per_flow"] });
                let mut forms = vec![both[0].clone(), both[1].clone(), words, learnt_schema(schema)];
                forms.extend((argument.key == "src").then(|| schema.shape(&Shape::Prefix)));
                json!({ "anyOf": forms })
            }
            Slot::Number(_, like) | Slot::Optional(_, like) | Slot::Hashed(_, like) => {
                number_schema(*like, schema)
            }
            Slot::Copied(_, like) => json!({ "anyOf": [value::schema(*like, schema), { "enum": ["copy"] }] }),
            Slot::Either(_, words) => json!({ "enum": words.map(typed) }),
            Slot::Read(_) | Slot::Written(_) | Slot::Changed(_) => field_schema(schema),
            Slot::OneOf(_, of) => schema.shape(&Shape::Numbers(of)),
            Slot::Ipv6(_) => schema.shape(&Shape::Boolean),
        };
        value["description"] = json!(argument.help);
        if argument.needed {
            needed.push(argument.key);
        }
        properties.insert(argument.key.to_string(), value);
    }
    json!({ "type": "object", "properties": properties, "required": needed, "additionalProperties": false })
}

/// Returns the schema of a field's name.
fn field_schema(schema: &mut Schema) -> serde_json::Value {
    let names: Vec<String> = Field::ALL.iter().map(|field| field.to_string()).collect();
    schema.define("field", |_| json!({ "enum": names }))
}
