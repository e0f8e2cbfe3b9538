//! Applies random requests and compares the result with a model: the file with the same changes written into
//! it.

use super::draft::requested;
use super::reconcile::{Wanted, reconcile};
use super::tree::canonical;
use super::tree::{append, items, json as to_json, name, value};
use super::{Edits, Owner};
use crate::specs::Specs;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use weir_app::edits::Edits as _;
use weir_config::raw::{self, Node};
use weir_config::{Report, Span};

const FILE: &str = "\
apps:
  - lb: { name: web, port: p0, back_ends: [{ name: b0, mac: 02:00:00:00:00:10 }, { name: b1, weight: 2 }] }
  - lb: { name: dns, port: p0, back_ends: fleet }
  - lb: { pools: { fleet: [{ name: b0 }, { name: b1 }] } }
";

fn document(text: &str) -> Node {
    let mut report = Report::new("t", text);
    raw::document(&mut report).unwrap_or_else(|| panic!("{report}"))
}

fn take(file: &Node, edits: &Edits, requests: &[Value]) -> Result<Edits, String> {
    requested(edits, file, requests)
}

fn applied(text: &str, edits: &Edits) -> (Node, Edits, Vec<String>) {
    let (mut node, mut report) = (document(text), Report::new("t", text));
    let (held, notes) = edits.applied(&mut node, &mut report);
    assert_eq!(report.errors(), 0, "{report}");
    (node, held, notes)
}

/// Lists of back ends by owner; a service that uses a pool has the pool's name instead of a list.
type Model = BTreeMap<String, Result<Vec<(String, String)>, String>>;

fn seen(document: &Node) -> Model {
    let mut model = Model::new();
    let list = |list: &Node| match to_json(list) {
        Value::String(pool) => Err(pool),
        Value::Array(list) => {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
            Ok(list.iter().map(|one| (text(&one["name"]), text(&one["weight"]))).collect())
        }
        _ => Ok(Vec::new()),
    };
    for item in items(document) {
        if let (Some(name), Some(back_ends)) = (name(item), value(item, "back_ends")) {
            model.insert(format!("service {name}"), list(back_ends));
        }
        for (name, back_ends) in super::tree::pools(item) {
            model.insert(format!("pool {name}"), list(back_ends));
        }
    }
    model
}

/// Carries out a request; `None` if it is refused.
fn model(mut now: Model, request: &Value) -> Option<Model> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let owner = match request["pool"].as_str() {
        Some(pool) => format!("pool {pool}"),
        None => format!("service {}", text(&request["service"])),
    };
    let back_end = |one: &Value| (text(&one["name"]), text(&canonical(&one["weight"])));
    match (text(&request["do"]).as_str(), &request["back_end"]) {
        ("add", Value::Null) => {
            let service = &request["service"];
            let list = service["back_ends"].as_array().unwrap().iter().map(back_end).collect();
            let key = format!("service {}", text(&service["name"]));
            now.insert(key, Ok(list)).is_none().then_some(now)
        }
        ("remove", Value::Null) => now.remove(&owner).is_some().then_some(now),
        ("add", one) => {
            let list = now.get_mut(&owner)?.as_mut().ok()?;
            let new = back_end(one);
            (!list.iter().any(|(name, _)| *name == new.0)).then(|| list.push(new))?;
            Some(now)
        }
        (_, one) => {
            let list = now.get_mut(&owner)?.as_mut().ok()?;
            let at = list.iter().position(|(name, _)| Some(name.as_str()) == one.as_str())?;
            list.remove(at);
            Some(now)
        }
    }
}

fn request() -> impl Strategy<Value = Value> {
    let owner = prop_oneof![
        3 => prop_oneof![Just("web"), Just("dns"), Just("new")].prop_map(|name| ("service", name)),
        1 => Just(("pool", "fleet")),
    ];
    let back_end = (owner, 0..4_u8, 1..3_u8, any::<bool>());
    prop_oneof![
        8 => back_end.prop_map(|((key, owner), at, weight, adds)| {
            let name = format!("b{at}");
            match adds {
                true => json!({ "do": "add", key: owner, "back_end": { "name": name, "weight": weight } }),
                false => json!({ "do": "remove", key: owner, "back_end": name }),
            }
        }),
        1 => prop_oneof![Just("web"), Just("new")].prop_map(|name| {
            json!({ "do": "add", "service": { "name": name, "port": "p0", "back_ends": [{ "name": "b7" }] } })
        }),
        1 => prop_oneof![Just("web"), Just("dns"), Just("new")]
            .prop_map(|name| json!({ "do": "remove", "service": name })),
    ]
}

/// Sorted, because an entry replaced in the file keeps its place there, but comes last in the model.
fn sorted(mut model: Model) -> Model {
    model.values_mut().filter_map(|list| list.as_mut().ok()).for_each(|list| list.sort());
    model
}

proptest! {
    #[test]
    fn lists_are_done_whole_or_not_at_all(
        lists in prop::collection::vec(prop::collection::vec(request(), 1..5), 1..12)
    ) {
        let file = document(FILE);
        let (mut edits, mut wanted) = (Edits::default(), seen(&file));
        for list in lists {
            let after = list.iter().try_fold(wanted.clone(), model);
            let made = take(&file, &edits, &list);
            prop_assert_eq!(made.is_ok(), after.is_some(), "{:?} of {:?}: {:?}", list, wanted, made);
            if let (Ok(made), Some(after)) = (made, after) {
                (edits, wanted) = (made, after);
            }
            let (node, held, notes) = applied(FILE, &edits);
            prop_assert_eq!(sorted(seen(&node)), sorted(wanted.clone()));
            prop_assert_eq!((&held, notes.len()), (&edits, 0));
            // Another process would read the same edits back.
            let read = Edits::read(&edits.json());
            prop_assert_eq!(read.as_ref(), Some(&edits));
        }
    }

    /// Everything in the file that survives a restart.
    #[test]
    fn any_json_is_read_without_harm(text in "[\\[\\]{}\",:a-z0-9]{0,60}") {
        if let Ok(value) = serde_json::from_str(&text) {
            let _ = Edits::read(&value);
            let _ = take(&document(FILE), &Edits::default(), &[value]);
        }
    }
}

#[test]
fn the_later_of_file_and_edit_holds() {
    let file = document(FILE);
    let requests = [
        json!({ "do": "add", "service": "web", "back_end": { "name": "b9", "weight": 3 } }),
        json!({ "do": "remove", "service": "web", "back_end": "b1" }),
        json!({ "do": "remove", "service": "dns" }),
        json!({ "do": "add", "service": { "name": "api", "back_ends": [] } }),
    ];
    let edits = take(&file, &Edits::default(), &requests).unwrap();
    assert_eq!(edits.0.len(), 4);
    // The file may change elsewhere.
    let other = FILE.replace("02:00:00:00:00:10", "02:00:00:00:00:99");
    assert_eq!(applied(&other, &edits).1.0.len(), 4);
    // If the file changes in the same place, the file takes precedence.
    let other = FILE.replace("weight: 2", "weight: 5").replace("name: dns, port: p0", "name: dns, port: p1");
    let (node, held, notes) = applied(&other, &edits);
    assert_eq!((held.0.len(), notes.len()), (2, 2), "{notes:?}");
    assert!(notes[0].starts_with("back end `b1` of service `web`: the file changed there"), "{notes:?}");
    assert_eq!(seen(&node)["service web"].as_ref().unwrap().len(), 3);
    // The file may already contain the added back end, or may have lost the list to which it was added.
    let other = FILE.replace("weight: 2 }", "weight: 2 }, { name: b9 }");
    assert_eq!(applied(&other, &edits).1.0.len(), 3);
    let (node, held, _) = applied("apps: [{ lb: { name: api, back_ends: [] } }]\n", &edits);
    assert_eq!((held.0.len(), seen(&node).len()), (0, 1));
    let all = [json!({ "do": "reset" })];
    assert!(take(&file, &edits, &all).unwrap().0.is_empty());
}

#[test]
fn a_refusal_names_the_field() {
    let file = document(FILE);
    for (request, part) in [
        (json!({ "do": "add" }), "to add a service"),
        (json!({ "do": "add", "service": "web", "back_end": "b9" }), "`back_end` must be a mapping"),
        (json!({ "do": "add", "service": "web", "back_end": {} }), "`back_end.name` is missing"),
        (json!({ "do": "add", "service": {} }), "`service.name` is missing"),
        (json!({ "do": "add", "service": "web", "pool": "fleet", "back_end": { "name": "b9" } }), "only one"),
        (
            json!({ "do": "add", "service": "dns", "back_end": { "name": "b9" } }),
            "pool `fleet`, which others may",
        ),
        (
            json!({ "do": "add", "service": "web", "back_end": { "name": "b1" } }),
            "already has a back end \
            `b1`",
        ),
        (json!({ "do": "add", "back_end": { "name": "b1" } }), "`service` or `pool` is missing"),
        (json!({ "do": "remove", "service": "api" }), "there is no service `api`"),
        (json!({ "do": "remove", "service": "web", "back_end": "b7" }), "no back end `b7`"),
        (json!({ "do": "remove", "service": "web", "back_end": 7 }), "`back_end` is the name"),
        (json!({ "do": "remove", "pool": "fleet" }), "can only remove back ends"),
        (json!({ "do": "remove", "service": "web", "weight": 1 }), "no field `weight`"),
        (json!({ "do": "reset", "service": "web" }), "`reset` has no other fields"),
        (json!({ "do": "drain", "service": "dns", "back_end": "b7" }), "pool `fleet` has no back end `b7`"),
        (json!({ "do": "drain", "service": "dns" }), "`service` and `back_end`"),
    ] {
        let why = take(&file, &Edits::default(), std::slice::from_ref(&request)).unwrap_err();
        assert!(why.contains(part), "{request}: {why}");
    }
    assert!(
        take(&file, &Edits::default(), &[json!({ "do": "drain", "service": "dns", "back_end": "b1" })])
            .is_ok()
    );
}

#[test]
fn a_place_in_an_edit_is_named_by_its_path() {
    let edit = json!({ "check": { "type": "tcp" }, "list": [1, { "x": "y" }] });
    let text = edit.to_string();
    let at = |part: &str| Span { line: 4, column: text.find(part).unwrap() as u32 + 1, length: 1, file: 1 };
    let field = |part: &str, message: &str| super::tree::field(&edit, at(part), message);
    assert_eq!(field("\"type\"", "no such key").as_deref(), Some("check.type"));
    assert_eq!(field("\"tcp\"", "").as_deref(), Some("check.type"));
    assert_eq!(field("\"y\"", "").as_deref(), Some("list.1.x"));
    assert_eq!(field("{\"check", "`mac` is missing: a MAC").as_deref(), Some("mac"));
    let mut document = document(FILE);
    append(&mut document, Node { span: at("{"), kind: raw::Kind::Map(Vec::new()) });
    assert_eq!(items(&document).count(), 4);
    assert_eq!(Owner::Pool("x".into()).to_string(), "pool `x`");
}

/// The services after the edits, with who each belongs to.
fn specs(edits: &Edits) -> Specs {
    let (mut node, mut report) = (document(FILE), Report::new("t", FILE));
    let _ = edits.applied(&mut node, &mut report);
    Specs::of(items(&node).filter(|item| name(item).is_some()), &report)
}

/// Services by name and owner.
fn owned(specs: &Specs) -> BTreeMap<String, (String, Value)> {
    specs
        .iter()
        .map(|one| (one.name.clone(), (one.owner.to_string(), one.typed(crate::yaml::SERVICE))))
        .collect()
}

/// A service named by a letter; `None` for one that is not wanted.
fn wanted() -> impl Strategy<Value = Vec<Value>> {
    let back_end = |weight: u8| json!({ "name": format!("b{weight}"), "weight": weight });
    let service = prop::option::of(prop::collection::btree_set(0..3_u8, 0..3));
    prop::collection::vec(service, 4).prop_map(move |all| {
        let named = ["a", "b", "c", "d"].into_iter().zip(all);
        let one = |(name, weights): (&str, Option<std::collections::BTreeSet<u8>>)| {
            let list: Vec<Value> = weights?.into_iter().map(back_end).collect();
            Some(json!({ "name": name, "port": "p0", "back_ends": list, "status": { "owner": "ignored" } }))
        };
        named.filter_map(one).collect()
    })
}

proptest! {
    /// Whatever the order in which two sources set their services, each has what it wanted last, and what
    /// belongs to the other or to the file stays.
    #[test]
    fn each_source_has_what_it_wanted_last(
        sets in prop::collection::vec((any::<bool>(), wanted()), 1..6)
    ) {
        let (mut edits, file) = (Edits::default(), owned(&specs(&Edits::default())));
        let mut model = file.clone();
        for (is_api, set) in sets {
            let source = if is_api { "api" } else { "dns" };
            let owner = format!("source `{source}`");
            let is_own = |one: &Value| (one["name"].as_str() < Some("c")) == is_api;
            let set: Vec<Value> = set.into_iter().filter(is_own).collect();
            let request = json!({ "do": "put", "source": source, "services": set });
            let before = specs(&edits);
            let (next, summary) = reconcile(&before, &edits, &[Wanted::read(&request).unwrap()]).unwrap();
            let had = model.iter().filter(|(_, (of, _))| *of == owner).count();
            model.retain(|_, (of, _)| *of != owner);
            for one in &set {
                let mut one = one.clone();
                one.as_object_mut().unwrap().shift_remove("status");
                model.insert(one["name"].as_str().unwrap().to_string(), (owner.clone(), one));
            }
            let now = specs(&next);
            prop_assert_eq!(owned(&now), model.clone());
            let stays = summary.unchanged + summary.updated.len();
            prop_assert_eq!(stays + summary.created.len(), set.len());
            prop_assert_eq!(stays + summary.removed.len(), had);
            prop_assert_eq!(now.tag == before.tag, next == edits);
            let (again, summary) = reconcile(&now, &next, &[Wanted::read(&request).unwrap()]).unwrap();
            prop_assert_eq!((&again, summary.unchanged), (&next, set.len()));
            let read = Edits::read(&next.json());
            prop_assert_eq!(read.as_ref(), Some(&next));
            edits = next;
        }
    }
}

#[test]
fn a_service_of_another_owner_is_a_conflict() {
    let put = |source: &str, edits: &Edits, service: Value| {
        let request = json!({ "do": "put", "source": source, "services": [service] });
        reconcile(&specs(edits), edits, &[Wanted::read(&request).unwrap()])
    };
    let of = |name: &str, weight: u8| {
        let back_end = json!({ "name": "x", "weight": weight });
        json!({ "name": name, "port": "p0", "back_ends": [back_end] })
    };
    let (edits, _) = put("dns", &Edits::default(), of("a", 1)).unwrap();
    let why = put("api", &edits, of("a", 2)).unwrap_err();
    assert!(why.starts_with("conflict: service `a` (at /services/0) belongs to source `dns`"), "{why}");
    assert_eq!(put("api", &edits, of("a", 1)).unwrap().1.unchanged, 1);
    let why = put("api", &edits, of("web", 1)).unwrap_err();
    assert!(why.contains("belongs to t:2"), "{why}");
    // In one list as well, and nothing of it takes effect.
    let both = |one: Value, other: Value| {
        let requests = [("dns:x", one), ("dns:y", other)]
            .map(|(source, service)| json!({ "do": "put", "source": source, "services": [service] }));
        let wanted: Vec<Wanted<'_>> = requests.iter().map(|one| Wanted::read(one).unwrap()).collect();
        reconcile(&specs(&edits), &edits, &wanted)
    };
    let why = both(of("b", 1), of("b", 2)).unwrap_err();
    assert_eq!(
        why,
        "conflict: service `b` (of source `dns:y`) belongs to source `dns:x`, where it is different"
    );
    let (next, changes) = both(of("b", 1), of("c", 2)).unwrap();
    assert_eq!((&changes.created[..], changes.removed.len()), (&["b".to_string(), "c".to_string()][..], 0));
    let owner = |name: &str| specs(&next).named(name).map(|one| one.owner.to_string());
    assert_eq!(owner("b").as_deref(), Some("source `dns:x`"));
    assert_eq!(owner("c").as_deref(), Some("source `dns:y`"));
    assert_eq!(both(of("b", 1), of("b", 1)).unwrap().1.unchanged, 1);
    let remove = [json!({ "do": "remove", "service": "a" })];
    let why = take(&document(FILE), &edits, &remove).unwrap_err();
    assert_eq!(why, "service `a` belongs to source `dns`: change it there");
    let hidden = [json!({ "do": "remove", "service": "web" })];
    let hidden = take(&document(FILE), &Edits::default(), &hidden).unwrap();
    let why = put("api", &hidden, of("web", 1)).unwrap_err();
    assert!(why.contains("from which a client has removed it"), "{why}");
}
