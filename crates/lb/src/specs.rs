//! Services as they are configured: what clients of the API read and write, and who each service belongs to.
//!
//! A specification is a mapping in the vocabulary of the file, with the values as they were written. Two
//! specifications are equal if they have the same fingerprint, which ignores the order of keys and how a
//! number is spelled in JSON.

use crate::changes::update;
use crate::edits::tree::json;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::sync::Arc;
use weir_config::raw::Node;
use weir_config::{Key, Report, Shape};
use weir_control::services::Changes;

/// The name in reports of a text of services, before the source that they belong to.
pub const SERVICES_OF: &str = "services of ";

/// Returns the source of the services in a text with this name; `None` for the texts of files.
pub fn source_of(text: &str) -> Option<Arc<str>> {
    text.strip_prefix(SERVICES_OF).map(Arc::from)
}

/// The source of services that clients add at run time.
pub const API: &str = "api";

/// The owner of a service, who alone may change it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceOwner {
    /// The configuration; the place is `file:line`.
    File(String),
    /// A source of services at run time, such as the API.
    Source(Arc<str>),
}

impl std::fmt::Display for ServiceOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ServiceOwner::File(place) => f.write_str(place),
            ServiceOwner::Source(name) => write!(f, "source `{name}`"),
        }
    }
}

/// A service as it is configured.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Its name.
    pub name: String,
    /// Its owner.
    pub owner: ServiceOwner,
    /// Identifies its contents.
    pub tag: Tag,
    /// Its contents in JSON, every scalar as a string.
    text: Box<str>,
}

impl Spec {
    /// Returns its contents, with numbers and booleans where a table of keys has them.
    #[must_use]
    pub fn typed(&self, keys: &[Key]) -> Value {
        typed_map(self.value(), keys)
    }

    /// Returns `file`, or the name of the source that it belongs to.
    pub(crate) fn source(&self) -> &str {
        match &self.owner {
            ServiceOwner::File(_) => "file",
            ServiceOwner::Source(source) => source,
        }
    }

    /// Returns its contents, with every scalar as a string.
    pub(crate) fn value(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_default()
    }
}

/// A fingerprint of 128 bits (FNV-1a), which is the same on all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag(u128);

impl Tag {
    const BASIS: Tag = Tag(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);

    /// Returns the fingerprint of a value in which every scalar is a string.
    #[must_use]
    pub fn of(value: &Value) -> Tag {
        let mut tag = Tag::BASIS;
        tag.value(value);
        tag
    }

    /// Adds bytes. The length comes first, so that different sequences differ.
    fn bytes(&mut self, kind: u8, bytes: &[u8]) {
        let length = (bytes.len() as u32).to_le_bytes();
        for byte in std::iter::once(&kind).chain(&length).chain(bytes) {
            self.0 = (self.0 ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
    }

    fn value(&mut self, value: &Value) {
        match value {
            Value::Null => self.bytes(b'0', &[]),
            Value::String(text) => self.bytes(b's', text.as_bytes()),
            Value::Bool(_) | Value::Number(_) => self.bytes(b's', value.to_string().as_bytes()),
            Value::Array(list) => {
                self.bytes(b'[', &[]);
                list.iter().for_each(|one| self.value(one));
                self.bytes(b']', &[]);
            }
            Value::Object(map) => {
                self.bytes(b'{', &[]);
                let mut pairs: Vec<(&String, &Value)> = map.iter().collect();
                pairs.sort_unstable_by_key(|(key, _)| *key);
                for (key, value) in pairs {
                    self.bytes(b'k', key.as_bytes());
                    self.value(value);
                }
                self.bytes(b'}', &[]);
            }
        }
    }
}

impl std::fmt::Display for Tag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A service that differs: its name, and both specifications where there are.
pub(crate) type SpecDifference<'a> = (&'a str, Option<&'a Spec>, Option<&'a Spec>);

/// All services as they are configured, in the order of the document.
#[derive(Clone, Debug)]
pub struct Specs {
    all: Vec<Arc<Spec>>,
    places: Arc<HashMap<String, usize>>,
    /// The services by name.
    sorted: Arc<[usize]>,
    /// Identifies the contents of all services.
    pub tag: Tag,
}

impl Default for Specs {
    fn default() -> Specs {
        Specs::new(Vec::new())
    }
}

impl PartialEq for Specs {
    fn eq(&self, other: &Specs) -> bool {
        self.tag == other.tag
            && self.all.iter().map(|one| &one.owner).eq(other.all.iter().map(|one| &one.owner))
    }
}

impl Specs {
    /// Returns the services that `items` describe.
    pub(crate) fn of<'a>(items: impl Iterator<Item = &'a Node>, report: &Report) -> Specs {
        let spec = |item: &Node| {
            let value = json(item);
            let name = value["name"].as_str()?.to_string();
            let span = item.span;
            let place = || ServiceOwner::File(format!("{}:{}", report.name_of(span.file), span.line));
            let owner = source_of(report.name_of(span.file)).map_or_else(place, ServiceOwner::Source);
            Some(Arc::new(Spec { name, owner, tag: Tag::of(&value), text: value.to_string().into() }))
        };
        Specs::new(items.filter_map(spec).collect())
    }

    fn new(all: Vec<Arc<Spec>>) -> Specs {
        let places = all.iter().enumerate().map(|(at, one)| (one.name.clone(), at)).collect();
        let mut sorted: Vec<usize> = (0..all.len()).collect();
        sorted.sort_by_key(|at| &all[*at].name);
        let (places, sorted) = (Arc::new(places), sorted.into());
        let mut specs = Specs { all, places, sorted, tag: Tag::BASIS };
        specs.tag = specs.tag_with(&HashMap::new());
        specs
    }

    /// Returns these services after some of them have changed: `changed` has their names and new contents, in
    /// which every scalar is a string.
    pub(crate) fn with(&self, changed: &[(&str, &Value)]) -> Specs {
        let mut next = self.clone();
        for (name, value) in changed {
            let Some(spec) = self.places.get(*name).and_then(|at| next.all.get_mut(*at)) else { continue };
            let spec = Arc::make_mut(spec);
            (spec.tag, spec.text) = (Tag::of(value), value.to_string().into());
        }
        next.tag = next.tag_with(&HashMap::new());
        next
    }

    /// Returns the tag of all services after some have changed: by name, the new tag, or `None` for one that
    /// is gone.
    pub(crate) fn tag_with(&self, changes: &HashMap<String, Option<Tag>>) -> Tag {
        let now = self.sorted.iter().map(|at| &self.all[*at]);
        let same = now.filter(|one| changes.is_empty() || !changes.contains_key(&one.name));
        let same = same.map(|one| (one.name.as_str(), one.tag));
        let new = changes.iter().filter_map(|(name, tag)| Some((name.as_str(), (*tag)?)));
        let mut all: Vec<(&str, Tag)> = same.chain(new).collect();
        // Stable, because nearly all are in order.
        all.sort_by_key(|(name, _)| *name);
        let mut tag = Tag::BASIS;
        all.iter().for_each(|(_, one)| tag.bytes(b'#', &one.0.to_le_bytes()));
        tag
    }

    /// Returns the services that differ from `old`: their names, with both specifications where there are.
    pub(crate) fn changed<'a>(&'a self, old: &'a Specs) -> Vec<SpecDifference<'a>> {
        let mut changed = Vec::new();
        for (at, now) in self.all.iter().enumerate() {
            if old.all.get(at).is_some_and(|before| Arc::ptr_eq(before, now)) {
                continue;
            }
            let before = old.named(&now.name);
            if before.is_none_or(|before| before.tag != now.tag || before.source() != now.source()) {
                changed.push((now.name.as_str(), before, Some(&**now)));
            }
        }
        if !Arc::ptr_eq(&self.places, &old.places) {
            let gone = old.all.iter().filter(|before| self.named(&before.name).is_none());
            changed.extend(gone.map(|before| (before.name.as_str(), Some(&**before), None)));
        }
        changed
    }

    /// Returns what differs from `old`, as the answer to a client.
    pub(crate) fn differences(&self, old: &Specs) -> Changes {
        let mut changes = Changes { etag: Some(self.tag.to_string()), ..Changes::default() };
        for (name, before, now) in self.changed(old) {
            match (before, now) {
                (Some(before), Some(now)) => update(&mut changes, name, &before.value(), &now.value()),
                (None, _) => changes.created.push(name.to_string()),
                (_, None) => changes.removed.push(name.to_string()),
            }
        }
        changes.unchanged = self.all.len() - changes.updated.len() - changes.created.len();
        changes
    }

    /// Returns all services.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Spec> {
        self.all.iter().map(|one| &**one)
    }

    /// Returns the service with this name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Spec> {
        self.all.get(*self.places.get(name)?).map(|one| &**one)
    }
}

/// Returns a mapping with numbers and booleans in place of strings, where a table says so.
fn typed_map(value: Value, keys: &[Key]) -> Value {
    let Value::Object(map) = value else { return value };
    let one = |(word, value): (String, Value)| {
        let value = match keys.iter().find(|key| key.word == word) {
            Some(key) => typed(value, &key.shape),
            None => value,
        };
        (word, value)
    };
    Value::Object(map.into_iter().map(one).collect())
}

fn typed(value: Value, shape: &Shape) -> Value {
    match *shape {
        Shape::Map(keys) | Shape::Overrides(keys) => typed_map(value, keys),
        Shape::List(of) => match value {
            Value::Array(list) => list.into_iter().map(|one| typed(one, of)).collect(),
            other => other,
        },
        Shape::Named(of) => match value {
            Value::Object(map) => {
                Value::Object(map.into_iter().map(|(key, one)| (key, typed(one, of))).collect::<Map<_, _>>())
            }
            other => other,
        },
        Shape::Either(shapes) => shapes.iter().fold(value, |value, shape| match (&value, shape) {
            // A list of mappings has the shape of a list, and a single one that of a mapping.
            (Value::Array(_), Shape::List(_)) | (Value::Object(_), Shape::Map(_)) => typed(value, shape),
            (Value::String(_), Shape::Number(..) | Shape::Boolean) => typed(value, shape),
            _ => value,
        }),
        Shape::Number(..) | Shape::Numbers(_) | Shape::Boolean => spelled(value),
        Shape::Share => spelled(value),
        Shape::Words(_)
        | Shape::Text
        | Shape::Name
        | Shape::Time
        | Shape::Mac
        | Shape::Ip
        | Shape::Ipv4
        | Shape::Prefix
        | Shape::Endpoint
        | Shape::Nothing
        | Shape::Defined(..)
        | Shape::Given(_) => value,
    }
}

/// Returns the number or boolean that is written as this string, if it is then written in the same way again.
fn spelled(value: Value) -> Value {
    let Value::String(text) = &value else { return value };
    let Ok(read @ (Value::Number(_) | Value::Bool(_))) = serde_json::from_str::<Value>(text) else {
        return value;
    };
    let again = read.to_string();
    if again == *text { read } else { value }
}
