//! Tells the cluster: statuses, finalizers and events.

use crate::config::DOMAIN;
use crate::desired::{Notice, StatusChange};
use crate::follow::chain;
use crate::shared::Hub;
use futures::StreamExt;
use futures::future::{Either, select};
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// How many requests are under way at a time.
const PARALLEL: usize = 16;
/// How long one may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long after a failure a status is sent again.
const RETRY: Duration = Duration::from_secs(1);
/// The largest note of an event in bytes, by its API.
const NOTE_MAX: usize = 1024;
/// How many events are remembered, so that a repeated event is counted instead of becoming another event.
const EVENTS_KNOWN: usize = 256;
/// How often an event is sent while the API server answers other requests.
const ATTEMPTS: u32 = 5;

/// An object of any kind: kind, namespace and name.
type AnyObject = [Option<String>; 3];

/// Sends statuses. If there are several for an object, the last one counts. One that fails is sent again,
/// unless the object has changed or is gone: the watch then delivers the change, and the status is
/// recomputed.
pub(crate) async fn statuses(
    shared: Arc<Hub>,
    client: Client,
    mut changes: mpsc::UnboundedReceiver<StatusChange>,
) {
    let mut waiting: BTreeMap<AnyObject, StatusChange> = BTreeMap::new();
    let mut busy: BTreeSet<AnyObject> = BTreeSet::new();
    let mut requests = FuturesUnordered::new();
    loop {
        while requests.len() < PARALLEL {
            let Some(name) = waiting.keys().find(|name| !busy.contains(*name)).cloned() else { break };
            let Some(change) = waiting.remove(&name) else { break };
            busy.insert(name.clone());
            requests.push(attempt(shared.clone(), client.clone(), name, change));
        }
        let done = if requests.is_empty() {
            None
        } else {
            match select(pin!(changes.recv()), requests.next()).await {
                Either::Left((change, _)) => Some(Either::Left(change)),
                Either::Right((done, _)) => Some(Either::Right(done)),
            }
        };
        match done {
            Some(Either::Right(Some((name, sent, is_written)))) => {
                busy.remove(&name);
                let is_old = waiting.get(&name).is_some_and(|next| next.version == sent.version);
                if is_written && is_old {
                    // It was computed for a version that is gone now.
                    waiting.remove(&name);
                } else if !is_written {
                    waiting.entry(name).or_insert(sent);
                }
            }
            Some(Either::Right(None)) => {}
            Some(Either::Left(Some(change))) => drop(waiting.insert(name_of(&change.object), change)),
            None => match changes.recv().await {
                Some(change) => drop(waiting.insert(name_of(&change.object), change)),
                None => return,
            },
            Some(Either::Left(None)) => return,
        }
    }
}

fn name_of(object: &ObjectReference) -> AnyObject {
    [object.kind.clone(), object.namespace.clone(), object.name.clone()]
}

/// Sends a status, and returns whether that is done. If not, some time has passed.
async fn attempt(
    shared: Arc<Hub>,
    client: Client,
    name: AnyObject,
    change: StatusChange,
) -> (AnyObject, StatusChange, bool) {
    // Another controller may write statuses now. After a short lapse of the lease, this status would not be
    // computed again, so it is kept; otherwise the object's version changes, and the status is dropped.
    if !shared.leads() {
        sleep(RETRY).await;
        return (name, change, false);
    }
    let (word, is_done) = match send(&client, &change).await {
        Ok(()) => ("written", true),
        Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => ("outdated", true),
        Err(why) => {
            let [kind, _, name] = name.each_ref().map(|part| part.as_deref().unwrap_or_default());
            tracing::warn!("status of {kind} {name}: {}", chain(&why));
            ("failed", false)
        }
    };
    shared.metrics.statuses.get_or_create(&vec![("result", word.to_string())]).inc();
    if !is_done {
        sleep(RETRY).await;
    }
    (name, change, is_done)
}

async fn send(client: &Client, change: &StatusChange) -> Result<(), kube::Error> {
    let api = api(client, &change.object);
    // With the version, the change is refused if the object is not the one that it was computed for.
    let version = &change.version;
    let name = change.object.name.as_deref().unwrap_or_default();
    let params = PatchParams::default();
    let request = async {
        if let Some(finalizers) = &change.finalizers {
            let patch = json!({ "metadata": { "resourceVersion": version, "finalizers": finalizers } });
            return api.patch(name, &params, &Patch::Merge(patch)).await;
        }
        let patch = json!({ "metadata": { "resourceVersion": version }, "status": change.status });
        api.patch_status(name, &params, &Patch::Merge(patch)).await
    };
    timeout(PATIENCE, request).await.map_or_else(
        |_| Err(kube::Error::Service("the API server does not answer".into())),
        |one| one.map(drop),
    )
}

fn api(client: &Client, object: &ObjectReference) -> Api<DynamicObject> {
    let version = object.api_version.as_deref().unwrap_or_default();
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let kind = GroupVersionKind::gvk(group, version, object.kind.as_deref().unwrap_or_default());
    let resource = ApiResource::from_gvk(&kind);
    match &object.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

/// Sends events. One that fails is sent again, unless the API server refuses it or has answered only other
/// requests for a while.
pub(crate) async fn events(
    shared: Arc<Hub>,
    client: Client,
    me: String,
    mut notices: mpsc::Receiver<Notice>,
) {
    let new = || {
        let reporter = Reporter { controller: DOMAIN.into(), instance: Some(me.clone()) };
        Recorder::new(client.clone(), reporter)
    };
    // A recorder takes events of an object with the same reason for one, whatever their notes are.
    let mut recorders: BTreeMap<String, Recorder> = BTreeMap::new();
    let mut known = 0;
    while let Some(notice) = notices.recv().await {
        // A recorder remembers whole events.
        known += 1;
        if known > EVENTS_KNOWN {
            recorders.clear();
            known = 1;
        }
        let mut note = notice.note;
        let end = (0..=NOTE_MAX.min(note.len())).rev().find(|at| note.is_char_boundary(*at));
        note.truncate(end.unwrap_or_default());
        let recorder = recorders.entry(note.clone()).or_insert_with(new);
        let event = Event {
            type_: if notice.is_warning { EventType::Warning } else { EventType::Normal },
            reason: notice.reason.into(),
            note: Some(note),
            action: "Reconcile".into(),
            secondary: None,
        };
        let (begin, mut attempts) = (Instant::now(), 0);
        while !publish(&shared, recorder, &event, &notice.object).await {
            // An API server that is away accepts no other event either.
            attempts += u32::from(shared.state().answered.is_some_and(|at| at > begin));
            if attempts >= ATTEMPTS {
                tracing::warn!("an event is lost: the API server answers, but has not accepted it");
                break;
            }
            sleep(RETRY).await;
        }
    }
}

/// Sends an event, and returns whether that is done.
async fn publish(shared: &Hub, recorder: &Recorder, event: &Event, object: &ObjectReference) -> bool {
    let why = match timeout(PATIENCE, recorder.publish(event, object)).await {
        Ok(Ok(())) => {
            shared.metrics.events.inc();
            return true;
        }
        Ok(Err(why)) => why,
        Err(_) => kube::Error::Service("the API server does not answer".into()),
    };
    let is_refused = match &why {
        // A namespace that is being deleted takes no events. 429 asks to try again later.
        kube::Error::Api(status) => status.code < 500 && status.code != 429,
        // There was no answer, or none that can be read.
        _ => false,
    };
    let what = if is_refused { "an event is lost" } else { "an event has to wait" };
    tracing::warn!("{what}: {}", chain(&why));
    is_refused
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn a_status_survives_a_lapse_of_the_lease() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _entered = runtime.enter();
        let config = "{ template: { port: p0 }, nodes: [{ name: n, url: 'unix:/x' }],
                        pools: [{ name: a, addresses: [192.0.2.0/30] }] }";
        let shared = Arc::new(Hub::new(Config::parse(config).unwrap()));
        let client = Client::try_from(kube::Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap();
        let change = StatusChange {
            object: ObjectReference::default(),
            version: None,
            status: json!({}),
            finalizers: None,
            addresses: Vec::new(),
        };
        assert!(!shared.leads());
        let (_, same, is_done) =
            runtime.block_on(attempt(shared, client, AnyObject::default(), change.clone()));
        assert_eq!((same, is_done), (change, false));
    }
}
