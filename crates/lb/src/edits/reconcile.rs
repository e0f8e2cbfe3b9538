//! Makes the services of a source (the API, DNS or a file) match what it wants. This is the only place where
//! services of different owners meet.

use super::tree::canonical;
use super::{EDITS_MAX, Edit, EditTarget, Edits, Owner, SOURCES_MAX};
use crate::changes::update;
use crate::requests::{CONFLICT, EXPECT, PUT, STALE, STATUS, verb};
use crate::specs::{API, ServiceOwner, Specs, Tag};
use serde_json::{Map, Value};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use weir_config::section::NAME_MAX;
use weir_control::services::Changes;

/// The services that a source wants.
pub struct Wanted<'a> {
    /// The source.
    source: &'a str,
    /// The services, and the place of each in the request, as a JSON pointer.
    services: Vec<(String, &'a Map<String, Value>)>,
    /// Whether these are all the services of the source, so that any others that it has are removed.
    whole: bool,
}

impl<'a> Wanted<'a> {
    /// Reads `{ do: put, service: { ... } }` or `{ do: put, services: [ ... ] }`, with the `source` unless it
    /// is the API.
    ///
    /// # Errors
    /// The error names the field, as a JSON pointer into the request.
    pub fn read(request: &'a Value) -> Result<Wanted<'a>, String> {
        let verb = crate::requests::verb(request)?;
        let source = match request.get("source") {
            None => API,
            Some(Value::String(source)) if !source.is_empty() && source.len() <= NAME_MAX => source,
            Some(_) => return Err("`source` is a name".to_string()),
        };
        let whole = request.get("services");
        let list = match (request.get("service"), whole) {
            (Some(one), None) => std::slice::from_ref(one),
            (None, Some(Value::Array(all))) => all.as_slice(),
            (None, Some(_)) => return Err("/services is a list of services".to_string()),
            _ => return Err(format!("`{verb}` has either `service` or `services`")),
        };
        let one = |(at, one): (usize, &'a Value)| {
            let place = if whole.is_some() { format!("/services/{at}") } else { String::new() };
            let shown = if place.is_empty() { "the body" } else { &place };
            let map = one.as_object().ok_or_else(|| format!("{shown} is not an object"))?;
            Ok((place, map))
        };
        let services = list.iter().enumerate().map(one).collect::<Result<_, String>>()?;
        Ok(Wanted { source, services, whole: whole.is_some() })
    }

    /// Returns whether all of them are of different sources.
    pub fn differ(all: &[Wanted<'_>]) -> bool {
        let sources: HashSet<&str> = all.iter().map(|one| one.source).collect();
        sources.len() == all.len()
    }
}

/// Returns where requests set a service: as a JSON pointer into the client's request, or as the name of the
/// source that wants it, whose request no client has seen.
pub fn place_in(requests: &[Value], name: &str) -> Option<Result<String, String>> {
    requests.iter().filter(|one| one["do"] == PUT).find_map(|request| {
        let listed = request["services"].as_array().map(Vec::as_slice).unwrap_or_default();
        let at = listed.iter().position(|one| one["name"] == name);
        let of_list = at.map(|at| format!("/services/{at}"));
        let at = of_list.or_else(|| (request["service"]["name"] == name).then(String::new))?;
        let source = request["source"].as_str().filter(|source| *source != API);
        Some(source.map_or(Ok(at), |source| Err(source.to_string())))
    })
}

/// Returns the edits that make the services of these sources the wanted ones, and what they change.
///
/// If another owner already has an equal service, that owner keeps it, so that a client may send back
/// everything that it has read.
///
/// # Errors
/// The error names the service that is wrong, or that belongs to another owner, with both places.
pub fn reconcile<'a>(
    now: &Specs,
    edits: &'a Edits,
    wanted: &'a [Wanted<'_>],
) -> Result<(Edits, Changes), String> {
    let of_service = |(at, edit): (usize, &'a Edit)| match (&edit.place.owner, &edit.place.back_end) {
        (Owner::Service(name), None) => Some((name.as_str(), at)),
        (Owner::Service(_) | Owner::Pool(_), _) => None,
    };
    let places = edits.0.iter().enumerate().filter_map(of_service).collect();
    let (tags, changes) = (HashMap::new(), Changes::default());
    let mut reconciling = Reconciling { now, places, next: edits.0.clone(), tags, changes };
    let mut whole: HashMap<&str, HashMap<&str, &str>> = HashMap::new();
    let mut last = None;
    for one in wanted {
        let source: Arc<str> = one.source.into();
        let mut firsts: HashMap<&str, &str> = HashMap::with_capacity(one.services.len());
        for (place, service) in &one.services {
            let Some(name) = service.get("name").and_then(Value::as_str) else {
                return Err(format!("{place}/name is missing, or not a string: the name of the service"));
            };
            if let Some(first) = firsts.insert(name, place) {
                return Err(format!("{first} and {place} have the same name: `{name}`"));
            }
            let own = service.iter().filter(|(key, _)| *key != STATUS);
            let value = own.map(|(key, value)| (key.clone(), canonical(value))).collect::<Map<_, _>>();
            last = Some(reconciling.want(&source, name, place, Value::Object(value))?);
        }
        if one.whole {
            whole.insert(one.source, firsts);
        }
    }
    reconciling.remove_others(&whole);
    let set = now.tag_with(&reconciling.tags);
    if !whole.is_empty() {
        last = Some(set);
    }
    let Reconciling { next, mut changes, .. } = reconciling;
    if next.len() > EDITS_MAX {
        return Err(format!("there can be at most {EDITS_MAX} changes at run time, with all their services"));
    }
    let sources: HashSet<&Arc<str>> = next.iter().filter_map(Edit::owner).collect();
    if sources.len() > SOURCES_MAX {
        return Err(format!("there can be at most {SOURCES_MAX} sources with services"));
    }
    changes.etag = last.map(|tag| tag.to_string());
    (changes.set_before, changes.set_after) = (Some(now.tag.to_string()), Some(set.to_string()));
    Ok((Edits(next), changes))
}

/// The services of sources while they are reconciled with the wanted ones.
struct Reconciling<'a> {
    /// All services before.
    now: &'a Specs,
    /// The places of services among the edits.
    places: HashMap<&'a str, usize>,
    /// The edits so far.
    next: Vec<Edit>,
    /// The tags of services that change; `None` for those that are removed.
    tags: HashMap<String, Option<Tag>>,
    changes: Changes,
}

impl<'a> Reconciling<'a> {
    /// Adds or replaces a service of a source. Returns its tag.
    fn want(&mut self, source: &Arc<str>, name: &'a str, place: &str, value: Value) -> Result<Tag, String> {
        let current = self.now.named(name);
        let (at, tag) = (self.places.get(name).copied(), Tag::of(&value));
        if current.is_some_and(|current| current.tag == tag) {
            self.changes.unchanged += 1;
            return Ok(tag);
        }
        let added = at.and_then(|at| self.next[at].owner()).cloned();
        // Another source in the same list may want it, too.
        match self.tags.insert(name.to_string(), Some(tag)) {
            Some(before) if before == Some(tag) => {
                self.changes.unchanged += 1;
                return Ok(tag);
            }
            Some(_) if let Some(other) = added.as_ref().filter(|other| *other != source) => {
                return Err(conflict(name, source, place, &ServiceOwner::Source(other.clone())));
            }
            Some(_) | None => {}
        }
        match (current.map(|one| &one.owner), at) {
            (Some(owner @ ServiceOwner::File(_)), _) => return Err(conflict(name, source, place, owner)),
            (Some(owner @ ServiceOwner::Source(of)), _) if of != source => {
                return Err(conflict(name, source, place, owner));
            }
            (None, Some(_)) if added.is_none() => {
                return Err(format!(
                    "{CONFLICT}service `{name}` ({}) is in the configuration, from which a client has \
                     removed it",
                    wanted_at(source, place)
                ));
            }
            (_, Some(at)) => {
                update(&mut self.changes, name, &self.next[at].now, &value);
                self.next[at].now = Arc::new(value);
            }
            (_, None) => {
                self.changes.created.push(name.to_string());
                let place = EditTarget { owner: Owner::Service(name.to_string()), back_end: None };
                let (base, now) = (Value::Null, Arc::new(value));
                self.places.insert(name, self.next.len());
                self.next.push(Edit { place, base, now, source: source.clone() });
            }
        }
        Ok(tag)
    }

    /// Removes the services that their sources do not want, given what each source wants.
    fn remove_others(&mut self, wanted: &HashMap<&str, HashMap<&str, &str>>) {
        let Reconciling { next, tags, changes, .. } = self;
        next.retain(|edit| {
            let name = edit.place.owner.name();
            let of_source = edit.owner().and_then(|of| wanted.get(&**of));
            let stays = of_source.is_none_or(|wanted| wanted.contains_key(name));
            if !stays {
                changes.removed.push(name.to_string());
                tags.insert(name.to_string(), None);
            }
            stays
        });
    }
}

/// Checks a condition.
///
/// # Errors
/// The error says which condition is not met.
pub fn meets(now: &Specs, condition: &Value) -> Result<(), String> {
    if verb(condition)? != EXPECT {
        return Ok(());
    }
    let (name, tag) = match condition.get("service") {
        None => ("the set of services".to_string(), Some(now.tag)),
        Some(Value::String(name)) => (format!("service `{name}`"), now.named(name).map(|one| one.tag)),
        Some(_) => return Err("`service` is a name".to_string()),
    };
    match (condition.get("absent"), condition.get("etags"), tag) {
        (Some(Value::Bool(true)), None, None) => Ok(()),
        (Some(Value::Bool(true)), None, Some(_)) => Err(format!("{STALE}{name} already exists")),
        (None, Some(Value::Array(_)), None) => Err(format!("{STALE}{name} does not exist")),
        (None, Some(Value::Array(wanted)), Some(tag)) => {
            let tag = tag.to_string();
            let has = wanted.iter().any(|one| *one == tag || one == "*");
            let why = || format!("{STALE}{name} has another ETag, \"{tag}\": read it again");
            has.then_some(()).ok_or_else(why)
        }
        _ => Err("`expect` has either `etags`, a list, or `absent: true`".to_string()),
    }
}

/// Returns where a service is wanted: its place in a request of the API, or the name of the source.
fn wanted_at(source: &str, place: &str) -> String {
    match (source, place) {
        (API, "") => "at /".to_string(),
        (API, place) => format!("at {place}"),
        (source, _) => format!("of source `{source}`"),
    }
}

fn conflict(name: &str, source: &str, place: &str, owner: &ServiceOwner) -> String {
    let at = wanted_at(source, place);
    format!("{CONFLICT}service `{name}` ({at}) belongs to {owner}, where it is different")
}
