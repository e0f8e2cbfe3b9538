//! The part of sources that runs in the app: it watches the boards of all sources, requests the changes that
//! make the services match them, and reports the outcome.

use super::{
    DNS, Priorities, ServiceSource, SourceBoards, SourceContent, SourceKind, SourceTask, is_of_source,
};
use crate::requests::PUT;
use crate::specs::{ServiceOwner, Specs, Tag};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use weir_app::{Action, Level, RequestId, Sample, SampleValue};

/// How often to look at the boards, in nanoseconds.
const POLL_NS: u64 = 50_000_000;
/// The longest time to collect changes while sources keep changing, in nanoseconds. They are requested
/// together, because each request is a reload.
const COLLECT_NS: u64 = 400_000_000;
/// The shortest time from a refusal until the same services are requested again, in nanoseconds.
const RETRY_NS: u64 = 10_000_000_000;
/// The shortest time between two requests that are repeated after a refusal, in nanoseconds.
const RETRIES_NS: u64 = 500_000_000;

/// The largest number of sources whose new states are logged on a line each at the same time.
const LINES_MAX: usize = 10;

/// The app's own requests count down from the highest number; those of clients count up from 0.
const FIRST_ID: u64 = u64::MAX;

/// What the app knows about sources.
#[derive(Debug, Default)]
pub(crate) struct SourceFollower {
    boards: SourceBoards,
    specs: Arc<Specs>,
    /// The request in progress, with the owners of its services.
    pending: Option<(RequestId, Vec<String>)>,
    /// Owners whose services are requested separately, because a request for all of them was refused.
    apart: Vec<Vec<String>>,
    ids: u64,
    due_ns: u64,
    /// The stamp that the boards had at the last look, and when the first change that has not been requested
    /// yet was seen.
    stamp: u64,
    since_ns: Option<u64>,
    /// The priorities of the back ends of sources that have several, by owner.
    priorities: BTreeMap<String, Priorities>,
    /// What is logged about the sources next.
    sayings: Vec<Action>,
    /// The version of the board when an owner's services were last compared.
    seen: HashMap<String, u64>,
    /// When refused services are requested again, by owner.
    retry_ns: HashMap<String, u64>,
    /// When the next refused services may be requested.
    retries_ns: u64,
    /// The state of each source as last logged.
    said: HashMap<String, &'static str>,
    /// Whether services of sources that are no longer configured may exist.
    has_orphans: bool,
}

/// Returns whether a back end serves, given its service's name and its own; also true if this is not known
/// yet.
pub(crate) type Serves<'a> = dyn Fn(&str, &str) -> bool + 'a;

impl SourceFollower {
    /// Follows these sources, given the services that are configured now.
    pub fn new(boards: SourceBoards, specs: Arc<Specs>) -> SourceFollower {
        SourceFollower { boards, specs, has_orphans: true, ..SourceFollower::default() }
    }

    /// Continues from a predecessor.
    pub fn inherit(&mut self, mut old: SourceFollower) {
        self.boards.inherit(&old.boards);
        old.seen.retain(|owner, _| old.retry_ns.contains_key(owner));
        (self.pending, self.ids, self.apart) = (old.pending, old.ids, old.apart);
        (self.said, self.seen, self.priorities) = (old.said, old.seen, old.priorities);
        (self.retry_ns, self.retries_ns) = (old.retry_ns, old.retries_ns);
        (self.stamp, self.since_ns) = (old.stamp, old.since_ns);
    }

    /// Takes over other services.
    pub fn amend(&mut self, specs: &Arc<Specs>) {
        self.specs = specs.clone();
    }

    /// Returns when to look at the boards next.
    pub fn wake_ns(&self) -> Option<u64> {
        let idle = self.has_orphans || !self.boards.is_empty();
        idle.then_some(self.due_ns)
    }

    /// Returns the rows of `weir show sources`.
    pub fn rows(&self) -> Value {
        self.boards.rows()
    }

    /// Looks at the boards, if that is due, given whether a back end of a service serves.
    pub fn tick(&mut self, now_ns: u64, serves: &Serves<'_>, actions: &mut Vec<Action>) {
        if now_ns < self.due_ns {
            return;
        }
        self.due_ns = now_ns.saturating_add(POLL_NS);
        let stamp = self.boards.stamp();
        let changes = std::mem::replace(&mut self.stamp, stamp) != stamp;
        if changes {
            self.since_ns.get_or_insert(now_ns);
            let all = self.boards.all();
            self.say(&all, actions);
        }
        for (owner, priorities) in &self.priorities {
            let service = owner.strip_prefix(DNS).unwrap_or(owner);
            if priorities.serving(|name| serves(service, name)) != priorities.active {
                self.seen.remove(owner);
                self.since_ns.get_or_insert(now_ns);
            }
        }
        let retries = now_ns >= self.retries_ns && self.retry_ns.values().any(|due_ns| *due_ns <= now_ns);
        let is_due = self.since_ns.is_some() || self.has_orphans || retries || !self.apart.is_empty();
        if self.pending.is_some() || !is_due {
            return;
        }
        let all = self.boards.all();
        let collects = self.since_ns.is_some_and(|since_ns| now_ns < since_ns.saturating_add(COLLECT_NS));
        if changes && collects && all.len() > 1 && !self.has_orphans {
            return;
        }
        self.request(&all, (retries, serves), now_ns, actions);
    }

    /// Requests whatever differs from the sources: all of it, or the next part that is requested separately.
    fn request(
        &mut self,
        all: &[SourceTask],
        (retries, serves): (bool, &Serves<'_>),
        now_ns: u64,
        actions: &mut Vec<Action>,
    ) {
        let members: BTreeMap<String, &SourceTask> = all.iter().map(|one| (one.0.owner(), one)).collect();
        let specs = self.specs.clone();
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for spec in specs.iter() {
            if let ServiceOwner::Source(owner) = &spec.owner
                && is_of_source(owner)
            {
                *counts.entry(owner).or_default() += 1;
            }
        }
        let (owners, force): (Vec<String>, bool) = match self.apart.pop() {
            Some(owners) => (owners, true),
            None => {
                self.since_ns = None;
                let gone = counts.keys().filter(|owner| !members.contains_key(**owner));
                let gone: Vec<String> = gone.map(|owner| owner.to_string()).collect();
                self.has_orphans = false;
                self.priorities.retain(|owner, _| members.contains_key(owner));
                (gone.into_iter().chain(members.keys().cloned()).collect(), false)
            }
        };
        let mut orders: Vec<(String, Value)> = Vec::new();
        for owner in owners {
            let (member, count) = (members.get(&owner).copied(), counts.get(&*owner).copied());
            let order = self.order(&owner, member, (count.unwrap_or_default(), force), serves);
            orders.extend(order.map(|order| (owner, order)));
        }
        if orders.is_empty() && retries {
            // One owner at a time, so that a refusal does not affect other requests.
            let due = self.retry_ns.iter().find(|(_, due_ns)| **due_ns <= now_ns);
            let Some(owner) = due.map(|(owner, _)| owner.clone()) else { return };
            self.retries_ns = now_ns.saturating_add(RETRIES_NS);
            self.retry_ns.remove(&owner);
            let (member, count) = (members.get(&owner).copied(), counts.get(&*owner).copied());
            let order = self.order(&owner, member, (count.unwrap_or_default(), true), serves);
            orders.extend(order.map(|order| (owner, order)));
        }
        actions.append(&mut self.sayings);
        if orders.is_empty() {
            return;
        }
        self.ids += 1;
        let id = RequestId(FIRST_ID - self.ids);
        let (owners, orders): (Vec<String>, Vec<Value>) = orders.into_iter().unzip();
        self.pending = Some((id, owners));
        actions.push(Action::Configure { id, orders: Arc::new(orders.into()) });
    }

    /// Returns the request that makes the services of an owner match its source, given how many services it
    /// has; `None` if they match already, or if the source has said nothing yet. Unless forced, also `None`
    /// if the source has not changed since the last comparison.
    fn order(
        &mut self,
        owner: &str,
        member: Option<&SourceTask>,
        (count, force): (usize, bool),
        serves: &Serves<'_>,
    ) -> Option<Value> {
        let version = member.map(|(_, board)| board.version());
        if let (Some(version), false) = (version, force)
            && self.seen.get(owner) == Some(&version)
        {
            return None;
        }
        let services = match member {
            Some(task) => self.wanted(owner, task, serves)?,
            None => Vec::new(),
        };
        if let Some(version) = version {
            self.seen.insert(owner.to_string(), version);
        }
        self.retry_ns.remove(owner);
        if is_so(&self.specs, owner, count, &services) {
            if let Some((_, board)) = member {
                board.decided(None);
            }
            return None;
        }
        Some(json!({ "do": PUT, "source": owner, "services": services }))
    }

    /// Returns the services that a source wants; `None` if it has said nothing.
    fn wanted(
        &mut self,
        owner: &str,
        (source, board): &SourceTask,
        serves: &Serves<'_>,
    ) -> Option<Vec<Value>> {
        match (&source.kind, board.found()) {
            (SourceKind::File(_), SourceContent::These(these)) => Some(these.to_vec()),
            // Without its file, nothing is known about its services.
            (SourceKind::File(_), SourceContent::Nothing | SourceContent::Failed) => None,
            (SourceKind::Dns(_), SourceContent::These(these)) => {
                let Some(mut priorities) = Priorities::of(&these) else {
                    self.priorities.remove(owner);
                    board.falls_back(None);
                    return Some(vec![filled(source, these.to_vec())]);
                };
                priorities.active = priorities.serving(|name| serves(&source.name, name));
                let service = filled(source, priorities.weighted(&these));
                let (active, says) = (priorities.active, priorities.says());
                board.falls_back(says.clone());
                let before = self.priorities.insert(owner.to_string(), priorities);
                if before.map(|before| before.active).map_or(says.is_some(), |before| before != active) {
                    let (level, text) = match says {
                        Some(why) => (Level::Warning, why),
                        None => (Level::Info, format!("servers of priority {active} serve again")),
                    };
                    self.sayings.push(Action::Say(level, format!("source {owner}: {text}")));
                }
                Some(vec![service])
            }
            (SourceKind::Dns(_), SourceContent::Nothing) => None,
            (SourceKind::Dns(_), SourceContent::Failed) => {
                // It may be left over from an earlier run.
                let is_left = |owner_of: &ServiceOwner| *owner_of == ServiceOwner::Source(owner.into());
                let has = self.specs.named(&source.name).is_some_and(|spec| is_left(&spec.owner));
                (!has).then(|| vec![filled(source, Vec::new())])
            }
        }
    }

    /// Records the outcome of a request. Returns false if the request was not for a source.
    pub fn configured(
        &mut self,
        id: RequestId,
        outcome: &Result<Value, String>,
        now_ns: u64,
        actions: &mut Vec<Action>,
    ) -> bool {
        let Some((_, owners)) = self.pending.take_if(|(pending, _)| *pending == id) else { return false };
        match outcome {
            Ok(changes) => {
                if let Some(text) = changed(changes) {
                    let of = match &owners[..] {
                        [owner] => format!("source {owner}"),
                        several => format!("{} sources", several.len()),
                    };
                    actions.push(Action::Say(Level::Info, format!("{of}: {text}")));
                }
            }
            // The services of at least one owner are refused; halving the request finds out whose.
            Err(_) if owners.len() > 1 => {
                let (first, second) = owners.split_at(owners.len() / 2);
                self.apart.extend([second.to_vec(), first.to_vec()]);
                return true;
            }
            Err(_) => {
                let retry_ns = now_ns.saturating_add(RETRY_NS);
                self.retry_ns.extend(owners.iter().map(|owner| (owner.clone(), retry_ns)));
            }
        }
        let owners: HashSet<String> = owners.into_iter().collect();
        for (source, board) in self.boards.all() {
            if owners.contains(&source.owner()) {
                board.decided(outcome.as_ref().err().cloned());
            }
        }
        true
    }

    /// Logs changes of the sources' states. A DNS server that stalls may change a thousand of them at once,
    /// so only some get a line of their own.
    fn say(&mut self, all: &[SourceTask], actions: &mut Vec<Action>) {
        let mut counts: BTreeMap<&'static str, usize> = BTreeMap::new();
        for (source, board) in all {
            let status = board.status();
            let state = status.state();
            let before = self.said.insert(source.name.clone(), state).unwrap_or("starting");
            if before == state {
                continue;
            }
            let count = counts.entry(state).or_default();
            *count += 1;
            if *count > LINES_MAX {
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
        for (state, count) in counts {
            let more = count.saturating_sub(LINES_MAX);
            let level = if state == "ok" { Level::Info } else { Level::Warning };
            let text = || format!("{more} more sources are now {state}: see `weir show sources`");
            actions.extend((more > 0).then(|| Action::Say(level, text())));
        }
        if self.said.len() > all.len() {
            let names: HashSet<&str> = all.iter().map(|(source, _)| source.name.as_str()).collect();
            self.said.retain(|name, _| names.contains(&**name));
        }
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

/// Returns a service of DNS with these back ends.
fn filled(source: &ServiceSource, back_ends: Vec<Value>) -> Value {
    let mut map = source.template.clone();
    map.insert("back_ends".into(), back_ends.into());
    Value::Object(map)
}

/// Returns whether these are all the services of an owner, which has `count` services.
fn is_so(specs: &Specs, owner: &str, count: usize, services: &[Value]) -> bool {
    let owned = |owner_of: &ServiceOwner| matches!(owner_of, ServiceOwner::Source(name) if **name == *owner);
    count == services.len()
        && services.iter().all(|service| {
            let spec = service["name"].as_str().and_then(|name| specs.named(name));
            spec.is_some_and(|spec| owned(&spec.owner) && spec.tag == Tag::of(service))
        })
}

/// Returns a sentence about what has changed; `None` if nothing has.
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
