//! Actions: the operations of a pipe's templates, and the places in them that entries fill in.

use crate::diagnostic::{Report, suggestion};
use crate::raw::{Kind, Node};
use crate::section::{Section, boolean, list, pairs, text};
use crate::value;
use engine::program::{Encap, Operation, Program, Template, Value};
use packet::Field;
use std::net::Ipv6Addr;

/// Names of operations, with their place in the fixed order (docs/pipes.md A1).
const OPERATIONS: &[(&str, u8)] = &[
    ("decap_vxlan", 0),
    ("pop_vlan", 1),
    ("set", 2),
    ("add", 2),
    ("copy", 2),
    ("decrement_ttl", 2),
    ("push_vlan", 3),
    ("encap_vxlan", 4),
];
const ORDER: &str =
    "the order is decap_vxlan, pop_vlan; set, add, copy, decrement_ttl as written; push_vlan, encap_vxlan";

/// Reads a list of operations.
#[must_use]
pub fn template(name: &str, node: &Node, program: &Program, report: &mut Report) -> Template {
    let mut reader = Reader { program, operations: Vec::new(), stage: 0, last: "" };
    for item in list(node, "operations", report) {
        reader.item(item, report);
    }
    Template { name: name.to_string(), operations: reader.operations }
}

struct Reader<'a> {
    program: &'a Program,
    operations: Vec<Operation>,
    stage: u8,
    last: &'static str,
}

impl Reader<'_> {
    /// One item of the list: a word, or a mapping from an operation to what it is told.
    fn item(&mut self, item: &Node, report: &mut Report) {
        match &item.kind {
            Kind::Scalar(name) => self.operation(name, item, None, report),
            Kind::Map(_) => {
                for (name, span, told) in pairs(item, report) {
                    let at = Node { span, kind: Kind::Null };
                    self.operation(name, &at, Some(told), report);
                }
            }
            _ => report.error(item.span, format!("an operation is wanted here, not {}", item.what())),
        }
    }

    fn operation(&mut self, name: &str, at: &Node, told: Option<&Node>, report: &mut Report) {
        let Some((name, stage)) = OPERATIONS.iter().find(|(one, _)| *one == name) else {
            let names = OPERATIONS.iter().map(|(name, _)| *name);
            report.error_help(at.span, format!("there is no operation `{name}`"), suggestion(name, names));
            return;
        };
        if *stage < self.stage {
            report.error_help(at.span, format!("`{name}` cannot stand behind `{}`", self.last), ORDER);
        }
        (self.stage, self.last) = (self.stage.max(*stage), name);
        match (*name, told) {
            ("decap_vxlan", None) => self.operations.push(Operation::DecapVxlan),
            ("pop_vlan", None) => self.operations.push(Operation::PopVlan),
            ("decrement_ttl", None) => self.operations.push(Operation::DecrementTtl),
            ("decap_vxlan" | "pop_vlan" | "decrement_ttl", Some(_)) => {
                report.error(at.span, format!("`{name}` is told nothing: write the word alone"));
            }
            (_, None) => report.error(at.span, format!("`{name}` wants a mapping: `{name}: {{ ... }}`")),
            ("set", Some(told)) => self.assign(told, Operation::Set, report),
            ("add", Some(told)) => self.assign(told, Operation::Add, report),
            ("copy", Some(told)) => self.copy(told, report),
            ("push_vlan", Some(told)) => self.push_vlan(told, report),
            (_, Some(told)) => self.encap(told, report),
        }
    }

    fn assign(&mut self, told: &Node, make: fn(Field, Value) -> Operation, report: &mut Report) {
        for (name, span, node) in pairs(told, report) {
            let Some(field) = field_named(name, span, report) else { continue };
            if field.spec().access == packet::Access::ReadOnly {
                report.error(span, format!("`{field}` is read-only: it can be matched and copied from, not written"));
                continue;
            }
            self.operations.extend(self.value(field, node, report).map(|value| make(field, value)));
        }
    }

    fn copy(&mut self, told: &Node, report: &mut Report) {
        let section = Section::of(told, &["from", "to"], report);
        let mut end = |key: &str, what: &str| {
            let node = section.need(key, what, report)?;
            field_named(text(node, "a field", report)?, node.span, report)
        };
        let (from, to) = (end("from", "the field that is read"), end("to", "the field that is written"));
        let (Some(from), Some(to)) = (from, to) else { return };
        if to.spec().access == packet::Access::ReadOnly {
            report.error(section.span, format!("`{to}` is read-only: it can be matched and copied from, not written"));
        }
        self.operations.push(Operation::Copy { from, to });
    }

    fn push_vlan(&mut self, told: &Node, report: &mut Report) {
        let section = Section::of(told, &["vid", "pcp", "tpid"], report);
        let vid = section.need("vid", "the VLAN id", report).and_then(|node| self.value(Field::VlanVid, node, report));
        let pcp = section.get("pcp").map_or(Some(Value::Const(0)), |node| self.value(Field::VlanPcp, node, report));
        let tpid = match section.get("tpid") {
            None => Some(packet::ETHER_VLAN),
            Some(node) => tpid(node, report),
        };
        if let (Some(vid), Some(pcp), Some(tpid)) = (vid, pcp, tpid) {
            self.operations.push(Operation::PushVlan { tpid, vid, pcp });
        }
    }

    fn encap(&mut self, told: &Node, report: &mut Report) {
        let known = ["eth.dst", "eth.src", "src", "dst", "vni", "ttl", "sport", "ipv6"];
        let section = Section::of(told, &known, report);
        let ipv6 = match section.get("ipv6") {
            Some(node) => boolean(node, "`ipv6`", report).unwrap_or_default(),
            None => ["src", "dst"].iter().filter_map(|key| section.get(key)).any(is_ipv6),
        };
        let mut need = |key: &str, what: &str| {
            let node = section.need(key, what, report)?;
            self.value(encap_field(key, ipv6), node, report)
        };
        let eth = (need("eth.dst", "the outer destination MAC"), need("eth.src", "the outer source MAC"));
        let ip = (need("src", "the outer source address"), need("dst", "the outer destination address"));
        let vni = need("vni", "the VXLAN network identifier");
        let ttl = section.get("ttl").map_or(Some(Value::Const(TTL)), |node| self.value(Field::Ipv4Ttl, node, report));
        let sport = section.get("sport").map(|node| self.value(Field::UdpSport, node, report));
        if let ((Some(eth_dst), Some(eth_src)), (Some(src), Some(dst)), Some(vni), Some(ttl)) = (eth, ip, vni, ttl) {
            let sport = sport.flatten();
            self.operations.push(Operation::EncapVxlan(Encap { eth_dst, eth_src, ipv6, src, dst, vni, ttl, sport }));
        }
    }

    fn value(&self, field: Field, node: &Node, report: &mut Report) -> Option<Value> {
        if matches!(&node.kind, Kind::Scalar(text) if text == "per_entry") {
            return Some(Value::PerEntry);
        }
        constant(field, node, self.program, report).map(Value::Const)
    }
}

/// TTL of outer headers (the value that RFC 1700 recommends).
const TTL: u128 = 64;

fn is_ipv6(node: &Node) -> bool {
    matches!(&node.kind, Kind::Scalar(text) if text.parse::<Ipv6Addr>().is_ok())
}

fn tpid(node: &Node, report: &mut Report) -> Option<u16> {
    let tpid = text(node, "a TPID", report).and_then(value::number).and_then(|tpid| u16::try_from(tpid).ok());
    let tpid = tpid.filter(|tpid| [packet::ETHER_VLAN, packet::ETHER_QINQ].contains(tpid));
    if tpid.is_none() {
        report.error(node.span, "a VLAN tag's TPID is 0x8100 or 0x88a8");
    }
    tpid
}

/// The field of a name; what is none is told.
#[must_use]
pub fn field_named(name: &str, span: crate::diagnostic::Span, report: &mut Report) -> Option<Field> {
    let field = Field::from_name(name);
    if field.is_none() {
        let names = Field::ALL.iter().map(|field| field.name());
        report.error_help(span, format!("there is no field `{name}`"), suggestion(name, names));
    }
    field
}

/// A constant value of a field.
#[must_use]
pub fn constant(field: Field, node: &Node, program: &Program, report: &mut Report) -> Option<u128> {
    let text = text(node, "a value", report)?;
    value::field(field, text, program).map_err(|why| report.error(node.span, why)).ok()
}

/// The field that reads like one of an encapsulation's own names.
fn encap_field(key: &str, ipv6: bool) -> Field {
    match (key, ipv6) {
        ("eth.dst", _) => Field::EthDst,
        ("eth.src", _) => Field::EthSrc,
        ("src", true) => Field::Ipv6Src,
        ("src", false) => Field::Ipv4Src,
        ("dst", true) => Field::Ipv6Dst,
        ("dst", false) => Field::Ipv4Dst,
        ("vni", _) => Field::VxlanVni,
        ("ttl", _) => Field::Ipv4Ttl,
        _ => Field::UdpSport,
    }
}

/// A place in a template that each entry fills in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The operation: the key under which an entry gives the value.
    pub operation: &'static str,
    /// Which of several `push_vlan` or `encap_vxlan`.
    pub occurrence: usize,
    /// The key of the value: a field's name, or `vid`, `pcp`, `src`, ...
    pub key: &'static str,
    /// The field whose values it reads like.
    pub field: Field,
}

/// The places that entries fill in, in the order of an entry's values.
#[must_use]
pub fn places(template: &Template) -> Vec<Place> {
    let mut list = Vec::new();
    let (mut pushes, mut encaps) = (0, 0);
    for operation in &template.operations {
        let (name, occurrence, keys): (_, _, Vec<(&'static str, Field)>) = match operation {
            Operation::Set(field, _) => ("set", 0, vec![(field.name(), *field)]),
            Operation::Add(field, _) => ("add", 0, vec![(field.name(), *field)]),
            Operation::PushVlan { .. } => ("push_vlan", pushes, vec![("vid", Field::VlanVid), ("pcp", Field::VlanPcp)]),
            Operation::EncapVxlan(encap) => {
                let keys = ["eth.dst", "eth.src", "src", "dst", "vni", "ttl", "sport"];
                ("encap_vxlan", encaps, keys.iter().map(|key| (*key, encap_field(key, encap.ipv6))).collect())
            }
            _ => continue,
        };
        let before = list.len();
        let named = keys.into_iter().zip(operation.values()).filter(|(_, value)| *value == Value::PerEntry);
        list.extend(named.map(|((key, field), _)| Place { operation: name, occurrence, key, field }));
        if list.len() > before {
            pushes += usize::from(name == "push_vlan");
            encaps += usize::from(name == "encap_vxlan");
        }
    }
    list
}
