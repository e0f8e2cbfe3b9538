//! Tells the cluster: statuses and events.

use crate::config::DOMAIN;
use crate::desired::{Notice, StatusChange};
use crate::follow::chain;
use crate::objects::Cluster;
use crate::shared::Hub;
use futures::StreamExt;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource};
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

/// How many requests are under way at a time.
const PARALLEL: usize = 16;
/// How long one may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the watch may take to bring what has been written.
const ECHO: Duration = Duration::from_secs(1);
/// The largest note of an event in bytes, by its API.
const NOTE_MAX: usize = 1024;

/// Sends statuses, and waits until they are in the snapshot, so that addresses are not given twice. Returns
/// whether one has failed and should be tried again.
pub(crate) async fn statuses(shared: &Hub, client: &Client, changes: &[StatusChange]) -> bool {
    // Owned: a borrowed one makes the task too specific for the runtime.
    let send = |(at, change): (usize, StatusChange)| {
        let client = client.clone();
        async move { (at, send(&client, &change).await) }
    };
    let owned: Vec<(usize, StatusChange)> = changes.iter().cloned().enumerate().collect();
    let mut results = futures::stream::iter(owned).map(send).buffer_unordered(PARALLEL);
    let mut written = Vec::new();
    let mut has_failed = false;
    while let Some((at, result)) = results.next().await {
        let change = &changes[at];
        let word = match result {
            Ok(()) => {
                written.push(change);
                "written"
            }
            // The object has changed meanwhile, or is gone, and the watch brings it.
            Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => "outdated",
            Err(why) => {
                let object = &change.object;
                let kind = object.kind.as_deref().unwrap_or_default();
                let name = object.name.as_deref().unwrap_or_default();
                tracing::warn!("status of {kind} {name}: {}", chain(&why));
                has_failed = true;
                "failed"
            }
        };
        shared.metrics.statuses.get_or_create(&vec![("result", word.to_string())]).inc();
    }
    let begin = Instant::now();
    while begin.elapsed() < ECHO {
        let is_old = |change: &&StatusChange| {
            let state = shared.state();
            let version = version(&state.snapshot, &change.object);
            version.is_some() && version == change.version
        };
        written.retain(is_old);
        if written.is_empty() {
            break;
        }
        sleep(Duration::from_millis(2)).await;
    }
    has_failed
}

async fn send(client: &Client, change: &StatusChange) -> Result<(), kube::Error> {
    let api = api(client, &change.object);
    // With the version, the change is refused if the object is not the one that it was computed for.
    let patch = json!({
        "metadata": { "resourceVersion": change.version },
        "status": change.status,
    });
    let name = change.object.name.as_deref().unwrap_or_default();
    let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
    let sent = timeout(PATIENCE, api.patch_status(name, &params, &patch)).await;
    sent.map_or_else(
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

/// Returns the version of an object in a snapshot.
fn version(snapshot: &Cluster, object: &ObjectReference) -> Option<String> {
    let at = (object.namespace.clone().unwrap_or_default(), object.name.clone().unwrap_or_default());
    let meta = match object.kind.as_deref().unwrap_or_default() {
        "Service" => snapshot.services.get(&at).map(|one| one.meta().clone()),
        "Gateway" => snapshot.gateways.get(&at).map(|one| one.meta().clone()),
        "GatewayClass" => snapshot.classes.get(&at).map(|one| one.meta().clone()),
        "TCPRoute" => snapshot.tcp_routes.get(&at).map(|one| one.meta().clone()),
        "UDPRoute" => snapshot.udp_routes.get(&at).map(|one| one.meta().clone()),
        // No other kind gets a status.
        _ => None,
    };
    meta?.resource_version
}

/// Sends events. One that fails is lost.
pub(crate) async fn events(shared: Arc<Hub>, recorder: Recorder, notices: Vec<Notice>) {
    for notice in notices {
        let mut note = notice.note;
        let end = (0..=NOTE_MAX.min(note.len())).rev().find(|at| note.is_char_boundary(*at));
        note.truncate(end.unwrap_or_default());
        let event = Event {
            type_: if notice.is_warning { EventType::Warning } else { EventType::Normal },
            reason: notice.reason.into(),
            note: Some(note),
            action: "Reconcile".into(),
            secondary: None,
        };
        match timeout(PATIENCE, recorder.publish(&event, &notice.object)).await {
            Ok(Ok(())) => {
                shared.metrics.events.inc();
            }
            Ok(Err(why)) => tracing::warn!("an event is lost: {}", chain(&why)),
            Err(_) => tracing::warn!("an event is lost: the API server does not answer"),
        }
    }
}

pub(crate) fn recorder(client: Client, me: &str) -> Recorder {
    Recorder::new(client, Reporter { controller: DOMAIN.into(), instance: Some(me.into()) })
}
