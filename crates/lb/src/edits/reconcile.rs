//! Brings the services of a source to what the source wants: the API, DNS or a file. The one place where
//! services of different owners meet.

use super::{CONFLICT, EDITS_MAX, Edit, EditTarget, Edits, Owner, canonical};
use crate::specs::{API, ServiceOwner, Specs, Tag};
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use weir_config::section::NAME_MAX;

/// The verb of the request that sets services.
pub const PUT: &str = "put";

/// The key of a service's status, which clients may send back and which is ignored.
pub const STATUS: &str = "status";

/// The services that a source wants.
pub struct Wanted<'a> {
    /// The source.
    source: &'a str,
    /// The services, and the place of each in the request, as a JSON pointer.
    services: Vec<(String, &'a Map<String, Value>)>,
    /// Whether these are all services of the source, so that its others are removed.
    whole: bool,
}

/// What changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Services that are new, by name.
    pub created: Vec<String>,
    /// Services that are different.
    pub updated: Vec<String>,
    /// Services that are gone.
    pub removed: Vec<String>,
    /// The number of services that stay as they are.
    pub unchanged: usize,
    /// Back ends that are added to services which stay.
    pub back_ends_added: usize,
    /// Back ends that are removed from services which stay.
    pub back_ends_removed: usize,
    /// Back ends of which only the weight changes.
    pub back_ends_reweighted: usize,
    /// Back ends of which other values change.
    pub back_ends_changed: usize,
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
}

/// Returns the place of a service in requests that set services, as a JSON pointer.
pub fn pointer(requests: &[Value], name: &str) -> Option<String> {
    let request = requests.iter().find(|one| one["do"] == PUT)?;
    let listed = request["services"].as_array().map(Vec::as_slice).unwrap_or_default();
    let at = listed.iter().position(|one| one["name"] == name);
    let of_list = at.map(|at| format!("/services/{at}"));
    of_list.or_else(|| (request["service"]["name"] == name).then(String::new))
}

/// Returns the edits after which the services of a source are the wanted ones, and what that changes.
///
/// A wanted service that equals one of another owner is left to that owner, so that a client may send back
/// everything that it has read.
///
/// # Errors
/// Names the service that is wrong, or that belongs to another owner, with both places.
pub fn reconcile(now: &Specs, edits: &Edits, wanted: &Wanted<'_>) -> Result<(Edits, Summary), String> {
    let mut next = edits.0.clone();
    let of_service = |(at, edit): (usize, &Edit)| match (&edit.place.owner, &edit.place.back_end) {
        (Owner::Service(name), None) => Some((name.clone(), at)),
        (Owner::Service(_) | Owner::Pool(_), _) => None,
    };
    let places: HashMap<String, usize> = edits.0.iter().enumerate().filter_map(of_service).collect();
    let source: Arc<str> = wanted.source.into();
    let mut summary = Summary::default();
    let mut firsts: HashMap<&str, &str> = HashMap::with_capacity(wanted.services.len());
    let mut gone: HashSet<usize> = HashSet::new();
    for (place, service) in &wanted.services {
        let Some(name) = service.get("name").and_then(Value::as_str) else {
            return Err(format!("{place}/name is missing, or not a string: the name of the service"));
        };
        if let Some(first) = firsts.insert(name, place) {
            return Err(format!("{first} and {place} have the same name: `{name}`"));
        }
        let own = service.iter().filter(|(key, _)| *key != STATUS);
        let value: Value =
            own.map(|(key, value)| (key.clone(), canonical(value))).collect::<Map<_, _>>().into();
        let current = now.named(name);
        let at = places.get(name).copied();
        if current.is_some_and(|current| current.tag == Tag::of(&value)) {
            summary.unchanged += 1;
            continue;
        }
        match (current.map(|one| &one.owner), at) {
            (Some(owner @ ServiceOwner::File(_)), _) => return Err(conflict(name, place, owner)),
            (Some(owner @ ServiceOwner::Source(of)), _) if *of != source => {
                return Err(conflict(name, place, owner));
            }
            (None, Some(_)) => {
                return Err(format!(
                    "{CONFLICT}service `{name}` (at {}) is in the configuration, from which it was removed at \
                     run time",
                    shown(place)
                ));
            }
            (Some(_), Some(at)) => {
                summary.updated.push(name.to_string());
                count(&next[at].now, &value, &mut summary);
                next[at].now = Arc::new(value);
            }
            (_, None) => {
                summary.created.push(name.to_string());
                let place = EditTarget { owner: Owner::Service(name.to_string()), back_end: None };
                let (base, now) = (Value::Null, Arc::new(value));
                next.push(Edit { place, base, now, source: source.clone() });
            }
        }
    }
    if wanted.whole {
        for (at, edit) in edits.0.iter().enumerate() {
            let name = edit.place.owner.name();
            if edit.owner().is_some_and(|of| *of == source) && !firsts.contains_key(name) {
                summary.removed.push(name.to_string());
                gone.insert(at);
            }
        }
        let mut at = 0;
        next.retain(|_| {
            at += 1;
            !gone.contains(&(at - 1))
        });
    }
    if next.len() > EDITS_MAX {
        return Err(format!("there can be at most {EDITS_MAX} changes at run time, with all their services"));
    }
    Ok((Edits(next), summary))
}

fn shown(place: &str) -> &str {
    if place.is_empty() { "/" } else { place }
}

fn conflict(name: &str, place: &str, owner: &ServiceOwner) -> String {
    format!("{CONFLICT}service `{name}` (at {}) belongs to {owner}, where it is different", shown(place))
}

/// Counts the differences between the back ends of a service.
fn count(before: &Value, after: &Value, summary: &mut Summary) {
    let list = |service: &Value| -> HashMap<String, Value> {
        let list = service["back_ends"].as_array().into_iter().flatten();
        list.filter_map(|one| Some((one["name"].as_str()?.to_string(), one.clone()))).collect()
    };
    let (before, after) = (list(before), list(after));
    summary.back_ends_removed += before.keys().filter(|name| !after.contains_key(*name)).count();
    for (name, one) in &after {
        let Some(other) = before.get(name) else {
            summary.back_ends_added += 1;
            continue;
        };
        let but_weight = |one: &Value| {
            let mut one = one.clone();
            one.as_object_mut().map(|map| map.shift_remove("weight"));
            one
        };
        match (one == other, but_weight(one) == but_weight(other)) {
            (true, _) => {}
            (false, true) => summary.back_ends_reweighted += 1,
            (false, false) => summary.back_ends_changed += 1,
        }
    }
}
