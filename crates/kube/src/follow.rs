//! Follows the objects of the API server.

use crate::objects::{Changed, Cluster, ObjectKey, Objects, Protocol, ServiceObject, SliceObject, key};
use crate::shared::{Hub, Watched};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::Api;
use kube::core::DeserializeGuard;
use kube::runtime::WatchStreamExt;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// After how many seconds the server ends a watch, so that one that hangs is noticed.
const WATCH_S: u32 = 60;

/// When a watch that has failed is tried again.
const WAIT: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(3)];

/// How long to wait at most for another list while lists are not trusted.
const DOUBT_WAIT: Duration = Duration::from_secs(60);

/// For how long an error of a watch counts. A watch that works gives no sign of it, but a broken one fails
/// again before this time.
const ERROR_LASTS: Duration = Duration::from_secs(20);

/// How many objects have to be known for a list to be doubted: fewer are often deleted together. The limit
/// exceeds what even an API server that has lost everything lists: a Service and an EndpointSlice
/// (`kubernetes`), and four namespaces.
const FEW: usize = 10;

/// Waits twice as long each time.
struct Doubling {
    next: Duration,
    max: Duration,
}

impl Default for Doubling {
    fn default() -> Doubling {
        Doubling { next: WAIT[0], max: WAIT[1] }
    }
}

impl Iterator for Doubling {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let now = self.next.min(self.max);
        self.next = (now * 2).min(self.max);
        Some(now)
    }
}

impl Backoff for Doubling {
    fn reset(&mut self) {
        *self = Doubling::default();
    }
}

/// A kind of objects: where they are kept, what their version is, and how a change is noted.
struct FollowedKind<S> {
    name: &'static str,
    /// Whether the API server may lack this kind.
    is_optional: bool,
    place: fn(&mut Cluster) -> &mut Objects<S>,
    version: fn(&S) -> Option<&str>,
    /// Notes that an object has changed, given its forms before and after.
    note: fn(&mut Changed, &ObjectKey, [Option<&S>; 2]),
}

impl<S> FollowedKind<S> {
    /// Replaces or removes an object, and notes the change if its version differs: a list repeats objects
    /// that have not changed.
    fn set(&self, objects: &mut Objects<S>, changed: &mut Changed, key: ObjectKey, after: Option<Arc<S>>) {
        let before = match &after {
            Some(after) => objects.insert(key.clone(), after.clone()),
            None => objects.remove(&key),
        };
        let version =
            |one: &Option<Arc<S>>| one.as_ref().map(|one| (self.version)(one).map(ToString::to_string));
        if version(&before) != version(&after) {
            (self.note)(changed, &key, [before.as_deref(), after.as_deref()]);
        }
    }

    /// Replaces all objects by those of a list.
    fn set_all(&self, objects: &mut Objects<S>, changed: &mut Changed, list: Objects<S>) {
        let gone = objects.keys().filter(|key| !list.contains_key(*key));
        for key in gone.cloned().collect::<Vec<_>>() {
            self.set(objects, changed, key, None);
        }
        for (key, object) in list {
            self.set(objects, changed, key, Some(object));
        }
    }
}

/// Follows all kinds of objects, each in a task.
pub(crate) fn all(shared: &Arc<Hub>, client: &Client) -> Vec<JoinHandle<()>> {
    let mut tasks = core(shared, client);
    tasks.extend(gateway_api(shared, client));
    tasks
}

/// Follows the kinds that every API server has.
fn core(shared: &Arc<Hub>, client: &Client) -> Vec<JoinHandle<()>> {
    let api = || client.clone();
    let service = FollowedKind::<ServiceObject> {
        name: "Service",
        is_optional: false,
        place: |all| &mut all.services,
        version: |one| one.version.as_deref(),
        note: |changed, key, _| {
            changed.services.insert(key.clone());
        },
    };
    let slice = FollowedKind::<SliceObject> {
        name: "EndpointSlice",
        is_optional: false,
        place: |all| &mut all.slices,
        version: |one| one.version.as_deref(),
        note: Changed::slice,
    };
    let namespace = FollowedKind {
        name: "Namespace",
        is_optional: false,
        place: |all| &mut all.namespaces,
        version: version_of,
        note: |changed, (_, name), _| {
            changed.namespaces.insert(name.clone());
        },
    };
    vec![
        tokio::spawn(one(shared.clone(), service, Api::<Service>::all(api()), |one| Ok(one.into()))),
        tokio::spawn(one(shared.clone(), slice, Api::<EndpointSlice>::all(api()), |one| Ok(one.into()))),
        tokio::spawn(one(shared.clone(), namespace, Api::all(api()), |one| Ok(bare(one)))),
    ]
}

/// Follows the kinds of the Gateway API.
fn gateway_api(shared: &Arc<Hub>, client: &Client) -> Vec<JoinHandle<()>> {
    let api = || client.clone();
    let routes = |protocol: Protocol| Api::all_with(api(), &protocol.route_resource());
    let class = FollowedKind {
        name: "GatewayClass",
        is_optional: true,
        place: |all| &mut all.classes,
        version: version_of,
        note: |changed, _, _| changed.classes = true,
    };
    let gateway = FollowedKind {
        name: "Gateway",
        is_optional: true,
        place: |all| &mut all.gateways,
        version: version_of,
        note: |changed, key, _| {
            changed.gateways.insert(key.clone());
        },
    };
    let grant = FollowedKind {
        name: "ReferenceGrant",
        is_optional: true,
        place: |all| &mut all.grants,
        version: version_of,
        note: |changed, (namespace, _), _| {
            changed.grants.insert(namespace.clone());
        },
    };
    let tcp = FollowedKind {
        name: "TCPRoute",
        is_optional: true,
        place: |all| &mut all.tcp_routes,
        version: version_of,
        note: |changed, key, _| {
            changed.routes.insert((Protocol::Tcp, key.clone()));
        },
    };
    let udp = FollowedKind {
        name: "UDPRoute",
        is_optional: true,
        place: |all| &mut all.udp_routes,
        version: version_of,
        note: |changed, key, _| {
            changed.routes.insert((Protocol::Udp, key.clone()));
        },
    };
    vec![
        tokio::spawn(one(shared.clone(), class, Api::all(api()), read_alone)),
        tokio::spawn(one(shared.clone(), gateway, Api::all(api()), read_alone)),
        tokio::spawn(one(shared.clone(), grant, Api::all(api()), read_alone)),
        tokio::spawn(one(shared.clone(), tcp, routes(Protocol::Tcp), read_alone)),
        tokio::spawn(one(shared.clone(), udp, routes(Protocol::Udp), read_alone)),
    ]
}

fn version_of<K: Resource>(object: &K) -> Option<&str> {
    object.meta().resource_version.as_deref()
}

/// Returns an object without the fields that may be large and are not used.
fn bare<K: Resource>(mut object: K) -> K {
    object.meta_mut().managed_fields = None;
    object.meta_mut().annotations = None;
    object
}

/// Reads an object of the Gateway API. Its types are closed, and other controllers may use values that later
/// versions add: the other objects of a list can still be read.
fn read_alone<K: Resource>(object: DeserializeGuard<K>) -> Result<K, String> {
    object.0.map(bare).map_err(|why| why.error)
}

/// The objects of a kind that cannot be read.
#[derive(Default)]
struct Unreadable(BTreeSet<ObjectKey>);

impl Unreadable {
    /// Returns an object, given its new form and the one that is known, which stays if the new one cannot be
    /// read.
    fn choose<S>(
        &mut self,
        kind: &str,
        at: &ObjectKey,
        new: Result<S, String>,
        known: Option<&Arc<S>>,
    ) -> Option<Arc<S>> {
        match new {
            Ok(new) => {
                self.0.remove(at);
                Some(Arc::new(new))
            }
            Err(why) => {
                // Once, not for every change of an object that another controller may change often.
                if self.0.insert(at.clone()) {
                    let (namespace, name) = at;
                    let kept = if known.is_some() { "what is known of it is kept" } else { "it is ignored" };
                    tracing::warn!("{kind} `{name}` (namespace `{namespace}`) cannot be read: {why}; {kept}");
                }
                known.cloned()
            }
        }
    }
}

/// Follows a kind of objects.
async fn one<K, S>(shared: Arc<Hub>, kind: FollowedKind<S>, api: Api<K>, read: fn(K) -> Result<S, String>)
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    S: Send + Sync + 'static,
{
    shared.state().watched.entry(kind.name).or_default();
    let mut waits = Doubling::default();
    loop {
        follow(&shared, &kind, api.clone(), read, &mut waits).await;
        if let Some(wait) = waits.next() {
            sleep(wait).await;
        }
    }
}

/// Follows a kind of objects until it has to be listed again.
async fn follow<K, S>(
    shared: &Hub,
    kind: &FollowedKind<S>,
    api: Api<K>,
    read: fn(K) -> Result<S, String>,
    waits: &mut Doubling,
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    S: Send + Sync + 'static,
{
    let config = watcher::Config::default().timeout(WATCH_S);
    let stream = watcher(api, config).backoff(Doubling::default());
    let mut stream = pin!(stream.into_stream());
    // What a list has so far: it replaces what is known when it is complete.
    let mut list: Objects<S> = Objects::new();
    let mut unreadable = Unreadable::default();
    while let Some(event) = stream.next().await {
        let event = match event {
            Ok(event) => event,
            Err(why) => {
                failed(shared, kind.name, kind.is_optional, &why);
                if is_event_lost(&why) {
                    return;
                }
                continue;
            }
        };
        match take(shared, kind, read, event, (&mut list, &mut unreadable)) {
            Following::Part => continue,
            Following::Doubted => {
                waits.max = DOUBT_WAIT;
                return;
            }
            Following::List => waits.max = WAIT[1],
            Following::Object => waits.reset(),
        }
        shared.touch();
    }
}

/// What an event has led to.
enum Following {
    /// It is part of a list that is not complete.
    Part,
    /// A list replaces what was known.
    List,
    /// A list is not trusted, so what was known stays.
    Doubted,
    /// An object was added, changed or removed.
    Object,
}

/// Takes an event into account. `list` has the objects of a list so far.
fn take<K, S>(
    shared: &Hub,
    kind: &FollowedKind<S>,
    read: fn(K) -> Result<S, String>,
    event: Event<K>,
    (list, unreadable): (&mut Objects<S>, &mut Unreadable),
) -> Following
where
    K: Resource,
{
    let mut state = shared.state();
    let state = &mut *state;
    let objects = (kind.place)(&mut state.cluster);
    let watched = state.watched.entry(kind.name).or_default();
    let changed = &mut state.changed;
    let taken = match event {
        Event::Init => {
            list.clear();
            return Following::Part;
        }
        Event::InitApply(one) => {
            let at = key(one.meta());
            let object = unreadable.choose(kind.name, &at, read(one), objects.get(&at));
            list.extend(object.map(|object| (at, object)));
            return Following::Part;
        }
        Event::InitDone => {
            // Kinds of the Gateway API come and go with their definitions.
            let doubt = doubt(objects.len(), list.len()).filter(|_| !kind.is_optional);
            if let Some(why) = doubt {
                note_error(shared, kind.name, watched, (why, DOUBT_WAIT + ERROR_LASTS));
                return Following::Doubted;
            }
            watched.is_listed = true;
            kind.set_all(objects, changed, std::mem::take(list));
            Following::List
        }
        Event::Apply(one) => {
            let at = key(one.meta());
            let object = unreadable.choose(kind.name, &at, read(one), objects.get(&at));
            kind.set(objects, changed, at, object);
            Following::Object
        }
        Event::Delete(one) => {
            unreadable.0.remove(&key(one.meta()));
            kind.set(objects, changed, key(one.meta()), None);
            Following::Object
        }
    };
    watched.error = None;
    taken
}

/// Whether an event is lost. After one that cannot be read, the watch continues, and so does the version from
/// which it would be resumed: only a list tells what the event was about.
fn is_event_lost(why: &watcher::Error) -> bool {
    match why {
        // The connection has broken, and the watch is resumed after the last event that was read.
        watcher::Error::WatchFailed(kube::Error::ReadEvents(_)) => false,
        watcher::Error::WatchFailed(_) => true,
        watcher::Error::InitialListFailed(_)
        | watcher::Error::WatchStartFailed(_)
        | watcher::Error::WatchError(_)
        | watcher::Error::NoResourceVersion => false,
    }
}

/// Says why a list is not trusted, given the numbers of objects that are known and that it has: an API server
/// that has lost its objects, for example because it was restored from nothing, must not empty all nodes.
/// Names do not matter, because other controllers create their objects again under new names.
fn doubt(known: usize, listed: usize) -> Option<String> {
    (known >= FEW && listed * 2 < known).then(|| {
        format!(
            "the API server lists {listed} objects instead of {known}; changes are ignored until it lists at \
             least half as many, or weir-kube is restarted"
        )
    })
}

/// Notes an error: what is known stays.
fn failed(shared: &Hub, kind: &'static str, is_optional: bool, why: &watcher::Error) {
    let is_unknown = match why {
        watcher::Error::InitialListFailed(kube::Error::Api(status)) => status.code == 404,
        _ => false,
    };
    let mut state = shared.state();
    let watched = state.watched.entry(kind).or_default();
    if is_unknown && is_optional {
        // The API server does not have the kind, which may come later. Objects that are known stay, because
        // a server that loses a kind for a moment has not lost them.
        let is_new = !watched.is_listed;
        (watched.is_listed, watched.error) = (true, None);
        drop(state);
        if is_new {
            tracing::info!("the API server has no {kind}");
            shared.touch();
        }
        return;
    }
    note_error(shared, kind, watched, (chain(why), ERROR_LASTS));
}

/// Notes an error and for how long it counts, and logs it if it is the first one since the kind could be
/// read.
fn note_error(shared: &Hub, kind: &'static str, watched: &mut Watched, (why, lasts): (String, Duration)) {
    if watched.error.is_none() {
        tracing::warn!("{kind}: {why}; what is known stays");
    }
    watched.error = Some((Instant::now() + lasts, why));
    shared.metrics.errors.get_or_create(&vec![("kind", kind.to_string())]).inc();
}

/// Returns the text of an error, with the causes that it does not mention already.
pub(crate) fn chain(why: &dyn std::error::Error) -> String {
    let mut text = why.to_string();
    let mut next = why.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use gateway_api::gateways::Gateway;
    use k8s_openapi::api::core::v1::Namespace;
    use kube::core::ObjectList;
    use serde_json::json;

    #[test]
    fn a_list_that_lacks_most_objects_is_doubted() {
        for (known, listed) in [(0, 0), (0, 9), (1, 0), (9, 0), (10, 5), (1000, 500)] {
            assert_eq!(doubt(known, listed), None, "{listed} of {known}");
        }
        for (known, listed) in [(10, 4), (10, 0), (1000, 499)] {
            assert!(doubt(known, listed).is_some(), "{listed} of {known}");
        }
    }

    #[test]
    fn lists_of_optional_kinds_are_believed_and_doubts_last() {
        let config = "{ template: { port: p0 }, pools: [{ name: a, addresses: [192.0.2.0/30] }] }";
        let hub = Hub::new(Config::parse(config).unwrap());
        let mut kind = FollowedKind::<Namespace> {
            name: "Namespace",
            is_optional: false,
            place: |all| &mut all.namespaces,
            version: version_of,
            note: |_, _, _| {},
        };
        let list = |kind: &FollowedKind<Namespace>, count: usize| {
            let mut list = Objects::new();
            for at in 0..count {
                list.insert((String::new(), format!("n{at}")), Arc::new(Namespace::default()));
            }
            take(&hub, kind, Ok, Event::InitDone, (&mut list, &mut Unreadable::default()))
        };
        let known = || hub.state().cluster.namespaces.len();
        assert!(matches!(list(&kind, FEW), Following::List));
        assert!(matches!(list(&kind, 4), Following::Doubted) && known() == FEW);
        // The next list may come as late as that.
        let (until, why) = hub.state().watched["Namespace"].error.clone().unwrap();
        assert!(until > Instant::now() + DOUBT_WAIT, "{why}");
        assert!(hub.unready().contains("lists 4 objects instead of 10; "), "{}", hub.unready());
        kind.is_optional = true;
        assert!(matches!(list(&kind, 4), Following::List) && known() == 4);
        assert!(!hub.unready().contains("Namespace"), "{}", hub.unready());
    }

    #[test]
    fn lists_that_are_not_trusted_are_asked_for_less_and_less_often() {
        let mut waits = Doubling::default();
        assert_eq!(waits.by_ref().take(9).last(), Some(WAIT[1]));
        waits.max = DOUBT_WAIT;
        assert_eq!(waits.by_ref().take(9).last(), Some(DOUBT_WAIT));
        waits.max = WAIT[1];
        assert_eq!(waits.next(), Some(WAIT[1]));
        waits.reset();
        assert_eq!(waits.next(), Some(WAIT[0]));
    }

    #[test]
    fn a_broken_connection_loses_no_event() {
        let broken = kube::Error::ReadEvents(std::io::Error::other("broken"));
        assert!(!is_event_lost(&watcher::Error::WatchFailed(broken)));
        let garbled = kube::Error::SerdeError(serde_json::from_str::<u8>("{").unwrap_err());
        assert!(is_event_lost(&watcher::Error::WatchFailed(garbled)));
    }

    #[test]
    fn an_object_that_cannot_be_read_keeps_its_last_form_and_hides_no_other() {
        let from = |name: &str, from: &str| {
            let routes = json!({ "namespaces": { "from": from } });
            let listener = json!({ "name": "a", "port": 1, "protocol": "TCP", "allowedRoutes": routes });
            let spec = json!({ "gatewayClassName": "x", "listeners": [listener] });
            json!({ "metadata": { "namespace": "n", "name": name }, "spec": spec })
        };
        let read = |one: &str, other: &str| {
            let items = [from("one", one), from("other", other)];
            let metadata = json!({ "resourceVersion": "1" });
            let list = json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayList",
                "metadata": metadata, "items": items });
            let list: ObjectList<DeserializeGuard<Gateway>> = serde_json::from_value(list).unwrap();
            list.items
        };
        let mut unreadable = Unreadable::default();
        let mut known: Objects<Gateway> = Objects::new();
        for (one, other, count) in [("All", "Later", 1), ("Later", "Later", 1), ("Later", "All", 2)] {
            for object in read(one, other) {
                let at = key(object.meta());
                let object = unreadable.choose("Gateway", &at, read_alone(object), known.get(&at));
                known.extend(object.map(|object| (at, object)));
            }
            assert_eq!(known.len(), count, "{one} {other}");
        }
        assert_eq!(unreadable.0.into_iter().map(|(_, name)| name).collect::<Vec<_>>(), ["one"]);
    }
}
