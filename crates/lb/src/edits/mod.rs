//! Additions and removals at run time: services, and back ends of services and pools.
//!
//! Edits are kept beside the file and applied to the parsed file before anything else uses it
//! ([`weir_app::edits::Edits::apply`]), so that they are checked and carried out as if they were in the file.
//! Each edit records the content of the file at the place that it changes. If the file later has different
//! content there, the edit is dropped: the later of the two changes wins.

mod draft;
mod reconcile;
#[cfg(test)]
mod tests;
pub mod tree;

use crate::requests::{CONFLICT, DRY_RUN, EXPECT, PUT, is_condition};
use crate::specs::{API, SERVICES_OF, Specs, source_of};
use crate::{Lb, amend};
use reconcile::{Wanted, reconcile};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use tree::{canonical, json as to_json};
use weir_app::edits::{Amended, Requested, RunningConfig};
use weir_app::kind::Apps;
use weir_config::raw::{Kind, Node};
use weir_config::section::NAME_MAX;
use weir_config::{Report, Span};
use weir_program::check::Severity;

/// Reads the output of [`Edits::json`].
pub fn read(value: &Value) -> Option<Arc<dyn weir_app::edits::Edits>> {
    Some(Arc::new(Edits::read(value)?))
}

/// The name of the edits' text in reports, for edits of what the file has.
const CHANGES: &str = "changes at run time";

/// What the error says if another service has the same address.
const TAKEN: &str = "already has this address";

/// The largest number of edits.
const EDITS_MAX: usize = 65_536;

/// The largest number of sources that have services: reports number their texts with 16 bits.
const SOURCES_MAX: usize = 32_768;

/// The owner of a list of back ends.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Owner {
    /// A service.
    Service(String),
    /// A pool that services share.
    Pool(String),
}

impl Owner {
    fn key(&self) -> &'static str {
        match self {
            Owner::Service(_) => "service",
            Owner::Pool(_) => "pool",
        }
    }

    fn name(&self) -> &str {
        let (Owner::Service(name) | Owner::Pool(name)) = self;
        name
    }
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} `{}`", self.key(), self.name())
    }
}

/// What is edited: a back end, or a whole service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct EditTarget {
    owner: Owner,
    back_end: Option<String>,
}

impl std::fmt::Display for EditTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.back_end {
            Some(name) => write!(f, "back end `{name}` of {}", self.owner),
            None => self.owner.fmt(f),
        }
    }
}

/// An edit. Values are mappings as they would appear in the file, and null where there is nothing.
#[derive(Clone, Debug, PartialEq)]
struct Edit {
    place: EditTarget,
    /// The content of the file at this place.
    base: Value,
    now: Arc<Value>,
    /// The source of the edit: an added service belongs to it.
    source: Arc<str>,
}

impl Serialize for Edit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Edit { place, base, now, source } = self;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("base", base)?;
        map.serialize_entry("now", &**now)?;
        if **source != *API {
            map.serialize_entry("source", &**source)?;
        }
        map.serialize_entry(place.owner.key(), place.owner.name())?;
        if let Some(name) = &place.back_end {
            map.serialize_entry("back_end", name)?;
        }
        map.end()
    }
}

impl Edit {
    /// Returns the source of the service that this edit adds. `None` if it changes what the file has.
    fn owner(&self) -> Option<&Arc<str>> {
        (self.place.back_end.is_none() && self.base.is_null()).then_some(&self.source)
    }

    /// Returns the name of its text in reports.
    fn text_name(&self) -> String {
        self.owner().map_or_else(|| CHANGES.to_string(), |source| format!("{SERVICES_OF}{source}"))
    }
}

/// All edits, in the order in which they were requested.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Edits(Vec<Edit>);

impl Edits {
    /// Reads the output of `json`, possibly from another version of weir. `None` if the value is something
    /// else.
    fn read(value: &Value) -> Option<Edits> {
        let list = value.as_array().filter(|list| list.len() <= EDITS_MAX)?;
        let mut places = HashSet::new();
        let one = |one: &Value| {
            let name = |key: &str| {
                let name = one.get(key)?.as_str()?;
                (!name.is_empty() && name.len() <= NAME_MAX).then(|| name.to_string())
            };
            let owner = match (name("service"), name("pool")) {
                (Some(name), None) => Owner::Service(name),
                (None, Some(name)) if one.get("back_end").is_some() => Owner::Pool(name),
                _ => return None,
            };
            let back_end = if one.get("back_end").is_some() { Some(name("back_end")?) } else { None };
            let place = EditTarget { owner, back_end };
            let value = |key: &str| one.get(key).filter(|one| one.is_null() || one.is_object());
            let (base, now) = (canonical(value("base")?), Arc::new(canonical(value("now")?)));
            let source = if one.get("source").is_some() { name("source")? } else { API.to_string() };
            let source = source.into();
            places.insert(place.clone()).then_some(Edit { place, base, now, source })
        };
        let edits = list.iter().map(one).collect::<Option<Vec<Edit>>>()?;
        let sources: HashSet<&Arc<str>> = edits.iter().filter_map(Edit::owner).collect();
        (sources.len() <= SOURCES_MAX).then_some(Edits(edits))
    }

    /// Applies the edits to a document.
    fn applied(&self, document: &mut Node, report: &mut Report) -> (Edits, Vec<String>) {
        if self.0.is_empty() {
            return (Edits::default(), Vec::new());
        }
        let nodes = self.nodes(report);
        let mut applying = Applying { edits: self, nodes, met: vec![false; self.0.len()] };
        applying.all(document);
        let held = |(edit, met): (&Edit, &bool)| met.then(|| edit.clone());
        let edits = Edits(self.0.iter().zip(&applying.met).filter_map(held).collect());
        let lost = self.0.iter().zip(&applying.met).filter(|(_, met)| !**met);
        let notes = lost.map(|(edit, _)| {
            format!("{}: the file changed there, so the run-time change is discarded", edit.place)
        });
        (edits, notes.collect())
    }

    /// Returns what each edit puts into a document. Reports get the text of all edits, one per line, under
    /// the names of their sources.
    fn nodes(&self, report: &mut Report) -> Vec<Option<Node>> {
        let first = report.add_file(CHANGES, Arc::default());
        let mut files: HashMap<Option<&Arc<str>>, u16> = HashMap::from([(None, first)]);
        let mut names: Vec<String> = Vec::new();
        let mut text = String::new();
        let mut nodes = Vec::with_capacity(self.0.len());
        for (at, edit) in self.0.iter().enumerate() {
            let file = *files.entry(edit.owner()).or_insert_with(|| {
                names.push(edit.text_name());
                first + names.len() as u16
            });
            let place = Span { line: at as u32 + 1, column: 1, length: 1, file };
            let node = tree::node(&edit.now, place, &mut text);
            text.push('\n');
            nodes.push((!edit.now.is_null()).then_some(node));
        }
        let text = Arc::new(text);
        report.set_text(first, text.clone());
        for name in &names {
            report.add_file(name, text.clone());
        }
        nodes
    }

    /// Returns the edits that result from requests, each of which sets the services of a source or makes a
    /// single edit.
    fn after(&self, document: &Node, apps: &Apps, requests: &[Value]) -> Result<(Edits, Value), String> {
        let specs = apps.of::<Lb>().map(|lb| lb.specs.clone()).unwrap_or_default();
        if let Some(set) = self.after_puts(&specs, requests)? {
            return Ok(set);
        }
        Ok((draft::requested(self, document, requests)?, Value::Null))
    }

    /// The same for requests that set the services of sources; `None` for other requests.
    fn after_puts(&self, specs: &Specs, requests: &[Value]) -> Result<Option<(Edits, Value)>, String> {
        let (conditions, rest): (Vec<&Value>, Vec<&Value>) =
            requests.iter().partition(|one| is_condition(one));
        conditions.into_iter().try_for_each(|one| reconcile::meets(specs, one))?;
        if rest.iter().any(|one| one["do"] == PUT) {
            let all = rest.iter().all(|one| one["do"] == PUT);
            let wanted: Vec<Wanted<'_>> =
                rest.iter().map(|one| Wanted::read(one)).collect::<Result<_, _>>()?;
            if !all || !Wanted::differ(&wanted) {
                return Err("a list with `put` changes nothing else, and has one `put` of each source".into());
            }
            let (edits, summary) = reconcile(specs, self, &wanted)?;
            return Ok(Some((edits, json!(summary))));
        }
        Ok(None)
    }

    /// Returns the services of sources that differ from those in `before`, with their contents then and now;
    /// `None` if anything else differs.
    fn changed_services<'a>(&'a self, before: &'a Edits) -> Option<Vec<amend::Changed<'a>>> {
        let mut changed = Vec::new();
        if self.0.len() != before.0.len() {
            return None;
        }
        for (now, old) in self.0.iter().zip(&before.0) {
            if (&now.place, &now.base, &now.source) != (&old.place, &old.base, &old.source) {
                return None;
            }
            if now.now != old.now {
                now.owner().filter(|_| now.now.is_object() && old.now.is_object())?;
                changed.push((now.place.owner.name(), &*old.now, &*now.now));
            }
        }
        Some(changed)
    }
}

impl weir_app::edits::Edits for Edits {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn json(&self) -> Value {
        json!(self.0)
    }

    fn write(&self, out: &mut dyn io::Write) -> io::Result<()> {
        Ok(serde_json::to_writer(out, &self.0)?)
    }

    fn apply(
        &self,
        document: &mut Node,
        report: &mut Report,
    ) -> (Arc<dyn weir_app::edits::Edits>, Vec<String>) {
        let (edits, discarded) = self.applied(document, report);
        (Arc::new(edits), discarded)
    }

    fn request(&self, document: &Node, apps: &Apps, requests: &[Value]) -> Result<Requested, String> {
        let (edits, summary) = self.after(document, apps, requests)?;
        let changed = edits != *self;
        let dry_run = requests.iter().any(|one| one["do"] == DRY_RUN);
        Ok(Requested { edits: Arc::new(edits), changed, dry_run, summary })
    }

    fn amend(&self, running: &RunningConfig<'_>, requests: &[Value]) -> Option<Amended> {
        let sets_one = |one: &Value| one["do"] == PUT && one["service"].is_object();
        if !requests.iter().all(|one| sets_one(one) || one["do"] == EXPECT) {
            return None;
        }
        let lb = running.apps.of::<Lb>()?;
        let (edits, summary) = self.after_puts(&lb.specs, requests).ok()??;
        let amended = amend::services(lb, running, &edits.changed_services(self)?)?;
        Some(Amended {
            edits: Arc::new(edits),
            summary,
            apps: running.apps.with(amended.lb),
            groups: amended.groups,
            counters: amended.counters,
            takes: amended.takes,
        })
    }

    fn explain(&self, report: &Report, requests: &[Value]) -> String {
        let all = report.diagnostics();
        let errors: Vec<_> = all.iter().filter(|one| one.severity == Severity::Error).collect();
        let is_own = |name: &str| name == CHANGES || source_of(name).is_some();
        let own = |span: Span| is_own(report.name_of(span.file)).then_some(span.line as usize);
        let edit = |span: Span| self.0.get(own(span)?.checked_sub(1)?).map(|edit| (edit, span));
        // The error is probably at an edit.
        let found = errors.iter().find_map(|one| Some((one, edit(one.span)?)));
        let more = match errors.len() {
            0 | 1 => String::new(),
            more => format!(" (and {} more errors)", more - 1),
        };
        match (found, errors.first()) {
            (Some((one, (edit, span))), _) => {
                let field = tree::field(&edit.now, span, &one.message);
                let field = match reconcile::place_in(requests, edit.place.owner.name()) {
                    Some(Ok(at)) => format!(" ({at}/{})", field.unwrap_or_default().replace('.', "/")),
                    Some(Err(source)) => {
                        let field = field.map_or_else(String::new, |field| format!(", field `{field}`"));
                        format!(" (of source `{source}`{field})")
                    }
                    None => field.map_or_else(String::new, |field| format!(", field `{field}`")),
                };
                let kind = if one.message.contains(TAKEN) { CONFLICT } else { "" };
                format!("{kind}{}{field}: {}{more}", edit.place, one.message)
            }
            (None, Some(one)) => {
                let place = match one.span.line {
                    0 => String::new(),
                    line => format!("{}:{line}: ", report.name_of(one.span.file)),
                };
                format!("{place}{}{more}", one.message)
            }
            (None, None) => "the configuration has errors".to_string(),
        }
    }
}

/// Edits being applied to a document.
struct Applying<'a> {
    edits: &'a Edits,
    /// What each edit puts into the document.
    nodes: Vec<Option<Node>>,
    /// Which of the edits still apply to something in the file.
    met: Vec<bool>,
}

impl Applying<'_> {
    fn all(&mut self, document: &mut Node) {
        let edits = self.edits;
        let places: HashMap<&EditTarget, usize> =
            edits.0.iter().enumerate().map(|(at, edit)| (&edit.place, at)).collect();
        let mut added: HashMap<&Owner, Vec<usize>> = HashMap::new();
        let mut services: Vec<usize> = Vec::new();
        for (at, edit) in edits.0.iter().enumerate().filter(|(_, edit)| edit.base.is_null()) {
            match edit.place.back_end {
                Some(_) => added.entry(&edit.place.owner).or_default().push(at),
                None => services.push(at),
            }
        }
        let mut known = HashSet::new();
        tree::each_item(document, &mut |item| {
            if let Some(name) = tree::name(item) {
                let owner = Owner::Service(name.to_string());
                let place = EditTarget { owner, back_end: None };
                known.insert(place.owner.name().to_string());
                if let Some(at) = places.get(&place).copied() {
                    if canonical(&to_json(item)) == edits.0[at].base {
                        self.met[at] = true;
                        // An item without keys has no services.
                        *item = self.take(at).unwrap_or(Node { kind: Kind::Map(Vec::new()), ..item.clone() });
                    }
                } else if let Some(list) = tree::value_mut(item, "back_ends") {
                    self.list(list, &place.owner, &places, &added);
                }
            }
            for (name, list) in tree::pools_mut(item) {
                self.list(list, &Owner::Pool(name), &places, &added);
            }
        });
        let new: Vec<usize> =
            services.into_iter().filter(|at| !known.contains(edits.0[*at].place.owner.name())).collect();
        for at in new {
            self.met[at] = true;
            if let Some(node) = self.take(at) {
                tree::append(document, node);
            }
        }
    }

    fn take(&mut self, at: usize) -> Option<Node> {
        self.nodes[at].take()
    }

    /// Edits a list of back ends.
    fn list(
        &mut self,
        list: &mut Node,
        owner: &Owner,
        places: &HashMap<&EditTarget, usize>,
        added: &HashMap<&Owner, Vec<usize>>,
    ) {
        let Kind::List(nodes) = &mut list.kind else { return };
        let mut place = EditTarget { owner: owner.clone(), back_end: None };
        let mut known = HashSet::new();
        for mut node in std::mem::take(nodes) {
            place.back_end = tree::name(&node).map(str::to_string);
            known.extend(place.back_end.clone());
            if let Some(at) = places.get(&place).copied()
                && canonical(&to_json(&node)) == self.edits.0[at].base
            {
                self.met[at] = true;
                let Some(new) = self.take(at) else { continue };
                node = new;
            }
            nodes.push(node);
        }
        for &at in added.get(owner).into_iter().flatten() {
            if self.edits.0[at].place.back_end.as_ref().is_some_and(|name| !known.contains(name)) {
                self.met[at] = true;
                nodes.extend(self.take(at));
            }
        }
    }
}
