//! The running app's part: it watches the boards of all sources, requests the changes that bring the
//! services to what the sources say, and says what becomes of them.

use super::{DNS, ServiceSource, SourceBoards, SourceContent, SourceKind, SourceTask, is_of_source};
use crate::requests::PUT;
use crate::specs::{ServiceOwner, Specs, Tag};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use weir_app::{Action, Level, RequestId, Sample, SampleValue};

/// How often the boards are looked at, in nanoseconds.
const POLL_NS: u64 = 50_000_000;
/// How long after a refusal the same services are requested again, in nanoseconds.
const RETRY_NS: u64 = 10_000_000_000;

/// Own requests have the highest numbers; those of clients count up from 0.
const FIRST_ID: u64 = u64::MAX;

/// What the app knows about sources.
#[derive(Debug, Default)]
pub(crate) struct SourceFollower {
    boards: SourceBoards,
    specs: Arc<Specs>,
    /// The request that is carried out, with the owner of the services.
    pending: Option<(RequestId, String)>,
    ids: u64,
    due_ns: u64,
    /// The versions of the boards when an owner's services were last compared.
    seen: HashMap<String, Vec<u64>>,
    /// When refused services are requested again, by owner.
    retry_ns: HashMap<String, u64>,
    /// The state of each source that the log has last named.
    said: HashMap<String, &'static str>,
    /// Whether services of sources that are no longer configured may exist.
    has_orphans: bool,
}

type Members<'a> = Vec<&'a SourceTask>;

impl SourceFollower {
    /// Follows these sources, given the services that are configured now.
    pub fn new(boards: SourceBoards, specs: Arc<Specs>) -> SourceFollower {
        SourceFollower { boards, specs, has_orphans: true, ..SourceFollower::default() }
    }

    /// Continues from a predecessor.
    pub fn inherit(&mut self, old: SourceFollower) {
        self.boards.inherit(&old.boards);
        (self.pending, self.ids, self.said, self.retry_ns) = (old.pending, old.ids, old.said, old.retry_ns);
    }

    /// Returns when the boards are looked at next.
    pub fn wake_ns(&self) -> Option<u64> {
        let idle = self.has_orphans || !self.boards.all().is_empty();
        idle.then_some(self.due_ns)
    }

    /// Returns the rows of `weir show sources`.
    pub fn rows(&self) -> Value {
        self.boards.rows()
    }

    /// Looks at the boards, if that is due.
    pub fn tick(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        if now_ns < self.due_ns {
            return;
        }
        self.due_ns = now_ns.saturating_add(POLL_NS);
        let all = self.boards.all();
        self.say(&all, actions);
        if self.pending.is_some() {
            return;
        }
        let mut owners: BTreeMap<String, Members<'_>> = BTreeMap::new();
        for one in &all {
            owners.entry(one.0.owner()).or_default().push(one);
        }
        if std::mem::take(&mut self.has_orphans) {
            for spec in self.specs.iter() {
                if let ServiceOwner::Source(owner) = &spec.owner
                    && is_of_source(owner)
                {
                    owners.entry(owner.to_string()).or_default();
                }
            }
        }
        for (owner, members) in owners {
            if let Some(orders) = self.orders(&owner, &members, now_ns) {
                self.ids += 1;
                let id = RequestId(FIRST_ID - self.ids);
                self.pending = Some((id, owner));
                // Other owners may have no members, and are looked for again.
                self.has_orphans = true;
                actions.push(Action::Configure { id, orders: Arc::new(json!([orders])) });
                return;
            }
        }
    }

    /// Returns the request that brings the services of an owner to what its sources say; `None` if they are
    /// like that, or if the sources say nothing yet.
    fn orders(&mut self, owner: &str, members: &Members<'_>, now_ns: u64) -> Option<Value> {
        let versions: Vec<u64> = members.iter().map(|(_, board)| board.found().1).collect();
        let retry = self.retry_ns.get(owner).is_some_and(|due_ns| *due_ns <= now_ns);
        if !retry && !members.is_empty() && self.seen.get(owner) == Some(&versions) {
            return None;
        }
        let services = wanted(&self.specs, members)?;
        self.seen.insert(owner.to_string(), versions);
        self.retry_ns.remove(owner);
        if is_so(&self.specs, owner, &services) {
            members.iter().for_each(|(_, board)| board.decided(None));
            return None;
        }
        Some(json!({ "do": PUT, "source": owner, "services": services }))
    }

    /// Records the outcome of a request. Returns false if it is not one of a source.
    pub fn configured(
        &mut self,
        id: RequestId,
        outcome: &Result<Value, String>,
        now_ns: u64,
        actions: &mut Vec<Action>,
    ) -> bool {
        let Some((_, owner)) = self.pending.take_if(|(pending, _)| *pending == id) else { return false };
        match outcome {
            Ok(changes) => {
                if let Some(text) = changed(changes) {
                    actions.push(Action::Say(Level::Info, format!("source {owner}: {text}")));
                }
            }
            Err(_) => {
                self.retry_ns.insert(owner.clone(), now_ns.saturating_add(RETRY_NS));
            }
        }
        for (source, board) in self.boards.all() {
            if source.owner() == owner {
                board.decided(outcome.as_ref().err().cloned());
            }
        }
        true
    }

    /// Logs changes of the sources' states.
    fn say(&mut self, all: &[SourceTask], actions: &mut Vec<Action>) {
        for (source, board) in all {
            let status = board.status();
            let state = status.state();
            let before = self.said.insert(source.name.clone(), state).unwrap_or("starting");
            if before == state {
                continue;
            }
            let (name, of) = (&source.name, source.of());
            let kept = "the services stay as they are";
            let (level, text) = match state {
                "failing" => (Level::Warning, format!("cannot be read: {}; {kept}", status.says())),
                "refused" => (Level::Warning, format!("is refused: {}; {kept}", status.says())),
                _ => {
                    let [services, back_ends] = status.counts;
                    let notes =
                        if status.notes.is_empty() { String::new() } else { format!("; {}", status.says()) };
                    (Level::Info, format!("is read: {services} services, {back_ends} back ends{notes}"))
                }
            };
            actions.push(Action::Say(level, format!("source {name} ({of}) {text}")));
        }
        self.said.retain(|name, _| all.iter().any(|(source, _)| source.name == *name));
    }

    /// Returns the series of all sources.
    pub fn samples(&self) -> Vec<Sample> {
        let all = self.boards.all();
        let one = |(source, board): &SourceTask| {
            use SampleValue::{Count, Gauge};
            let status = board.status();
            let labels = vec![("source", source.name.clone())];
            let sample = |(name, help, value)| Sample { name, help, labels: labels.clone(), value };
            let [services, back_ends] = status.counts.map(|count| Gauge(count as f64));
            let age = status.age_s().map(|age_s| {
                ("source_age_seconds", "Time since the source was last read", Gauge(age_s as f64))
            });
            let is_ok = Gauge(f64::from(u8::from(status.state() == "ok")));
            let all = [
                ("source_ok", "1 if the source can be read and its services are in use", is_ok),
                ("source_services", "Services that the source names", services),
                ("source_back_ends", "Back ends that the source names", back_ends),
                (
                    "source_errors",
                    "Times that the source could not be read, or was refused",
                    Count(status.errors),
                ),
                ("source_changes", "Times that the source has changed", Count(status.changes)),
            ];
            all.into_iter().chain(age).map(sample).collect::<Vec<_>>()
        };
        all.iter().flat_map(one).collect()
    }
}

/// Returns the services that an owner's sources want; `None` if none of them has said anything.
fn wanted(specs: &Specs, members: &Members<'_>) -> Option<Vec<Value>> {
    let mut services = Vec::new();
    let mut knows = members.is_empty();
    for (source, board) in members {
        let (found, _) = board.found();
        match (&source.kind, found) {
            (SourceKind::File(_), SourceContent::These(these)) => services.extend(these.iter().cloned()),
            // Without its file, nothing is known about its services.
            (SourceKind::File(_), SourceContent::Nothing | SourceContent::Failed) => return None,
            (SourceKind::Dns(_), SourceContent::These(these)) => services.push(filled(source, &these)),
            (SourceKind::Dns(_), found) => match specs.named(&source.name) {
                // It is left over from an earlier run.
                Some(spec) if spec.owner == ServiceOwner::Source(DNS.into()) => services.push(spec.value()),
                _ if matches!(found, SourceContent::Failed) => services.push(filled(source, &[])),
                _ => continue,
            },
        }
        knows = true;
    }
    knows.then_some(services)
}

/// Returns a service of DNS with these back ends.
fn filled(source: &ServiceSource, back_ends: &[Value]) -> Value {
    let mut map = source.template.clone();
    map.insert("back_ends".into(), back_ends.to_vec().into());
    Value::Object(map)
}

/// Returns whether the services of an owner are these.
fn is_so(specs: &Specs, owner: &str, services: &[Value]) -> bool {
    let owned = |owner_of: &ServiceOwner| matches!(owner_of, ServiceOwner::Source(name) if **name == *owner);
    let count = specs.iter().filter(|spec| owned(&spec.owner)).count();
    count == services.len()
        && services.iter().all(|service| {
            let spec = service["name"].as_str().and_then(|name| specs.named(name));
            spec.is_some_and(|spec| owned(&spec.owner) && spec.tag == Tag::of(service))
        })
}

/// Says what has changed; `None` if nothing has.
fn changed(changes: &Value) -> Option<String> {
    let length = |key: &str| changes[key].as_array().map_or(0, Vec::len);
    let counts = [("created", "services added"), ("updated", "changed"), ("removed", "removed")];
    let services = counts.into_iter().map(|(key, word)| (length(key), word));
    let keys = [
        ("back_ends_added", "back ends added"),
        ("back_ends_removed", "back ends removed"),
        ("back_ends_reweighted", "back ends reweighted"),
        ("back_ends_changed", "back ends changed"),
    ];
    let back_ends = keys.into_iter().map(|(key, word)| (changes[key].as_u64().unwrap_or(0) as usize, word));
    let all: Vec<String> = services
        .chain(back_ends)
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    (!all.is_empty()).then(|| all.join(", "))
}
