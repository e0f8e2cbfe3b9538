//! Applies requested edits, one after the other, on top of the existing ones.

use super::tree::{self, canonical, json};
use super::{EDITS_MAX, Edit, EditTarget, Edits, Owner};
use crate::requests::{is_condition, is_edit};
use crate::specs::API;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;
use weir_config::raw::{Kind, Node};

/// Returns the edits that result from adding requests to `edits`, given a document without edits.
///
/// # Errors
/// The error names the request that is wrong, and its field.
pub fn requested(edits: &Edits, document: &Node, requests: &[Value]) -> Result<Edits, String> {
    let mut draft = Draft::new(document, edits);
    let requests: Vec<&Value> = requests.iter().filter(|one| !is_condition(one)).collect();
    for (at, request) in requests.iter().enumerate() {
        let place = if requests.len() > 1 { format!("request {at}: ") } else { String::new() };
        draft.take(request).map_err(|why| format!("{place}{why}"))?;
    }
    draft.edits()
}

/// A list of back ends in the file.
struct Listed<'a> {
    /// The pool whose list the service uses, if it has no list of its own.
    pool: Option<&'a str>,
    item: Option<&'a Node>,
    back_ends: HashMap<&'a str, &'a Node>,
}

/// Edits as they accumulate, request by request.
struct Draft<'a> {
    file: HashMap<Owner, Listed<'a>>,
    edits: Vec<Option<Edit>>,
    places: HashMap<EditTarget, usize>,
}

impl<'a> Draft<'a> {
    /// Starts from the existing edits and a document without them.
    fn new(document: &'a Node, edits: &Edits) -> Draft<'a> {
        let mut file = HashMap::new();
        for item in tree::items(document) {
            let listed = |list: Option<&'a Node>, item| Listed {
                pool: list
                    .and_then(|list| if let Kind::Scalar(pool) = &list.kind { Some(&**pool) } else { None }),
                item,
                back_ends: back_ends(list),
            };
            if let Some(name) = tree::name(item) {
                let owner = Owner::Service(name.to_string());
                file.entry(owner).or_insert_with(|| listed(tree::value(item, "back_ends"), Some(item)));
            }
            for (name, list) in tree::pools(item) {
                file.entry(Owner::Pool(name.to_string())).or_insert_with(|| listed(Some(list), None));
            }
        }
        let places = edits.0.iter().enumerate().map(|(at, edit)| (edit.place.clone(), at)).collect();
        Draft { file, edits: edits.0.iter().cloned().map(Some).collect(), places }
    }

    /// Returns the edits.
    ///
    /// # Errors
    /// There are too many edits.
    fn edits(self) -> Result<Edits, String> {
        let edits: Vec<Edit> = self.edits.into_iter().flatten().collect();
        if edits.len() > EDITS_MAX {
            return Err(format!(
                "there can be at most {EDITS_MAX} changes at run time: move some into the \
                file"
            ));
        }
        Ok(Edits(edits))
    }

    /// Takes a request that either edits the configuration or names a back end that must exist.
    ///
    /// # Errors
    /// The error names the field that is wrong.
    fn take(&mut self, request: &Value) -> Result<(), String> {
        if !is_edit(request) {
            return self.names(request);
        }
        let word = crate::requests::verb(request)?;
        if word == "reset" {
            (self.edits, self.places) = (Vec::new(), HashMap::new());
            return Ok(());
        }
        let back_end = request.get("back_end").filter(|one| !one.is_null());
        match (word, back_end, &request["service"]) {
            ("add", None, service @ Value::Object(_)) if request.get("pool").is_none() => {
                self.add_service(service)
            }
            ("add", Some(back_end @ Value::Object(_)), _) => self.add(owner(request)?, back_end),
            ("add", None, _) => {
                Err("write `service: { ... }` to add a service, or `back_end: { ... }` with \
                `service` or `pool` to add a back end"
                    .to_string())
            }
            ("add", ..) => {
                Err("`back_end` must be a mapping, such as `{ name: b1, mac: 02:00:00:00:00:11 }`"
                    .to_string())
            }
            (_, None, _) => match owner(request)? {
                Owner::Pool(pool) => Err(format!(
                    "`back_end` is missing: a request can only remove back ends of pool \
                        `{pool}`, not the pool"
                )),
                owner => self.remove_service(owner),
            },
            (_, Some(Value::String(name)), _) => self.remove(owner(request)?, name),
            _ => Err("`back_end` is the name of the one to remove".to_string()),
        }
    }

    /// Checks a request about a back end that must exist.
    fn names(&self, request: &Value) -> Result<(), String> {
        let (Some(service), Some(back_end)) = (request["service"].as_str(), request["back_end"].as_str())
        else {
            return Err("`service` and `back_end` name the back end to change".to_string());
        };
        let service = self.list_of(Owner::Service(service.to_string()), true)?;
        if self.has(&service, back_end) { Ok(()) } else { Err(no_back_end(&service, back_end)) }
    }

    fn edit(&self, place: &EditTarget) -> Option<&Edit> {
        self.edits[*self.places.get(place)?].as_ref()
    }

    /// Returns the owner of the list that a service's back ends are in.
    fn list_of(&self, owner: Owner, through_pools: bool) -> Result<Owner, String> {
        let place = EditTarget { owner: owner.clone(), back_end: None };
        let pool = match (self.edit(&place), self.file.get(&owner)) {
            (Some(edit), _) if edit.now.is_null() => return Err(absent(&owner)),
            (Some(edit), _) => edit.now["back_ends"].as_str().map(str::to_string),
            (None, Some(listed)) => listed.pool.map(str::to_string),
            (None, None) => return Err(absent(&owner)),
        };
        match pool {
            None => Ok(owner),
            Some(pool) if through_pools => Ok(Owner::Pool(pool)),
            Some(pool) => Err(format!(
                "{owner} has the back ends of pool `{pool}`, which others may share: name the `pool`"
            )),
        }
    }

    /// Returns true if a list has a back end.
    fn has(&self, owner: &Owner, name: &str) -> bool {
        let whole = EditTarget { owner: owner.clone(), back_end: None };
        if let Some(edit) = self.edit(&whole) {
            return position(&edit.now, name).is_some();
        }
        match self.edit(&EditTarget { back_end: Some(name.to_string()), ..whole }) {
            Some(edit) => !edit.now.is_null(),
            None => self.file.get(owner).is_some_and(|listed| listed.back_ends.contains_key(name)),
        }
    }

    fn add_service(&mut self, service: &Value) -> Result<(), String> {
        let name = service["name"].as_str().ok_or("`service.name` is missing: the name of the service")?;
        let owner = Owner::Service(name.to_string());
        if self.list_of(owner.clone(), true).is_ok() {
            return Err(format!("{owner} already exists: to replace it, remove it in the same list"));
        }
        self.put(EditTarget { owner, back_end: None }, canonical(service));
        Ok(())
    }

    fn remove_service(&mut self, owner: Owner) -> Result<(), String> {
        self.list_of(owner.clone(), true)?;
        self.is_of_clients(&owner)?;
        for edit in &mut self.edits {
            if edit.as_ref().is_some_and(|edit| edit.place.owner == owner && edit.place.back_end.is_some()) {
                self.places.remove(&edit.take().map(|edit| edit.place).expect("an edit"));
            }
        }
        self.put(EditTarget { owner, back_end: None }, Value::Null);
        Ok(())
    }

    fn add(&mut self, owner: Owner, back_end: &Value) -> Result<(), String> {
        let name = back_end["name"].as_str().ok_or("`back_end.name` is missing: its name")?;
        let owner = self.list_of(owner, false)?;
        if self.has(&owner, name) {
            return Err(format!(
                "{owner} already has a back end `{name}`: to replace it, remove it in the same list"
            ));
        }
        self.set(owner, name, canonical(back_end))
    }

    fn remove(&mut self, owner: Owner, name: &str) -> Result<(), String> {
        let owner = self.list_of(owner, false)?;
        if !self.has(&owner, name) {
            return Err(no_back_end(&owner, name));
        }
        self.set(owner, name, Value::Null)
    }

    /// Refuses to change a service of another source, which would change it back.
    fn is_of_clients(&self, owner: &Owner) -> Result<(), String> {
        let edit = self.edit(&EditTarget { owner: owner.clone(), back_end: None });
        match edit.and_then(Edit::owner).filter(|source| ***source != *API) {
            Some(source) => Err(format!("{owner} belongs to source `{source}`: change it there")),
            None => Ok(()),
        }
    }

    /// Sets the value of a back end in a list.
    fn set(&mut self, owner: Owner, name: &str, now: Value) -> Result<(), String> {
        self.is_of_clients(&owner)?;
        let whole = EditTarget { owner, back_end: None };
        let Some(at) = self.places.get(&whole).copied() else {
            self.put(EditTarget { back_end: Some(name.to_string()), ..whole }, now);
            return Ok(());
        };
        let Some(edit) = self.edits[at].as_mut() else { return Err(absent(&whole.owner)) };
        let place = position(&edit.now, name);
        let list = Arc::make_mut(&mut edit.now)["back_ends"].as_array_mut();
        let list = list.ok_or_else(|| format!("{} has no list of back ends", whole.owner))?;
        match place {
            Some(at) => drop(list.remove(at)),
            None => list.push(now),
        }
        Ok(())
    }

    /// Records an edit, unless it matches the file.
    fn put(&mut self, place: EditTarget, now: Value) {
        let listed = self.file.get(&place.owner);
        let node = listed.and_then(|listed| match &place.back_end {
            Some(name) => listed.back_ends.get(name.as_str()).copied(),
            None => listed.item,
        });
        let base = node.map_or(Value::Null, |node| canonical(&json(node)));
        if let Some(at) = self.places.remove(&place) {
            self.edits[at] = None;
        }
        if base != now {
            self.places.insert(place.clone(), self.edits.len());
            let (now, source) = (Arc::new(now), API.into());
            self.edits.push(Some(Edit { place, base, now, source }));
        }
    }
}

/// The owner of the back end that a request names.
fn owner(request: &Value) -> Result<Owner, String> {
    match (&request["service"], &request["pool"]) {
        (Value::String(name), Value::Null) => Ok(match name.strip_prefix("pool:") {
            Some(pool) => Owner::Pool(pool.to_string()),
            None => Owner::Service(name.clone()),
        }),
        (Value::Null, Value::String(name)) => Ok(Owner::Pool(name.clone())),
        (Value::Null, Value::Null) => {
            Err("`service` or `pool` is missing: say where the back end belongs".to_string())
        }
        _ => Err("`service` or `pool` is a name, and only one of them".to_string()),
    }
}

fn back_ends(list: Option<&Node>) -> HashMap<&str, &Node> {
    let Some(Node { kind: Kind::List(list), .. }) = list else { return HashMap::new() };
    list.iter().filter_map(|node| Some((tree::name(node)?, node))).collect()
}

fn position(service: &Value, name: &str) -> Option<usize> {
    service["back_ends"].as_array()?.iter().position(|one| one["name"] == name)
}

fn absent(owner: &Owner) -> String {
    format!("there is no {owner}")
}

fn no_back_end(owner: &Owner, name: &str) -> String {
    format!("{owner} has no back end `{name}`")
}
