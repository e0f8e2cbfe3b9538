//! Follows the objects of the API server.

use crate::objects::{Cluster, Objects, Protocol, key};
use crate::shared::Hub;
use futures::{StreamExt, TryStreamExt};
use kube::api::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// After how many seconds the server ends a watch, so that one that hangs is noticed.
const WATCH_S: u32 = 60;

/// When a watch that has failed is tried again.
const WAIT: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(3)];

/// Waits twice as long each time.
struct Doubling(Duration);

impl Iterator for Doubling {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let now = self.0;
        self.0 = (now * 2).min(WAIT[1]);
        Some(now)
    }
}

impl Backoff for Doubling {
    fn reset(&mut self) {
        self.0 = WAIT[0];
    }
}

/// Follows all kinds of objects, each in a task.
pub(crate) fn all(shared: &Arc<Hub>, client: &Client) -> Vec<JoinHandle<()>> {
    let api = || client.clone();
    let routes = |protocol: Protocol| Api::all_with(api(), &protocol.route_resource());
    vec![
        tokio::spawn(one(shared.clone(), "Service", false, Api::all(api()), |all| &mut all.services)),
        tokio::spawn(one(shared.clone(), "EndpointSlice", false, Api::all(api()), |all| &mut all.slices)),
        tokio::spawn(one(shared.clone(), "Namespace", false, Api::all(api()), |all| &mut all.namespaces)),
        tokio::spawn(one(shared.clone(), "GatewayClass", true, Api::all(api()), |all| &mut all.classes)),
        tokio::spawn(one(shared.clone(), "Gateway", true, Api::all(api()), |all| &mut all.gateways)),
        tokio::spawn(one(shared.clone(), "ReferenceGrant", true, Api::all(api()), |all| &mut all.grants)),
        tokio::spawn(one(shared.clone(), "TCPRoute", true, routes(Protocol::Tcp), |all| &mut all.tcp_routes)),
        tokio::spawn(one(shared.clone(), "UDPRoute", true, routes(Protocol::Udp), |all| &mut all.udp_routes)),
    ]
}

/// Follows a kind of objects. One that is optional may be unknown to the API server.
async fn one<K>(
    shared: Arc<Hub>,
    kind: &'static str,
    is_optional: bool,
    api: Api<K>,
    place: fn(&mut Cluster) -> &mut Objects<K>,
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    shared.state().watched.entry(kind).or_default();
    let config = watcher::Config::default().timeout(WATCH_S);
    let stream = watcher(api, config).backoff(Doubling(WAIT[0]));
    let mut stream = pin!(stream.into_stream());
    // What a list has so far: it replaces what is known when it is complete.
    let mut list: Objects<K> = Objects::new();
    while let Some(event) = stream.next().await {
        let event = match event {
            Ok(event) => event.modify(|one| one.managed_fields_mut().clear()),
            Err(why) => {
                failed(&shared, kind, is_optional, &why);
                continue;
            }
        };
        {
            let mut state = shared.state();
            let state = &mut *state;
            let objects = place(&mut state.snapshot);
            let watched = state.watched.entry(kind).or_default();
            watched.error = None;
            match event {
                Event::Init => {
                    list.clear();
                    continue;
                }
                Event::InitApply(one) => {
                    list.insert(key(one.meta()), Arc::new(one));
                    continue;
                }
                Event::InitDone => {
                    *objects = std::mem::take(&mut list);
                    watched.is_listed = true;
                }
                Event::Apply(one) => {
                    objects.insert(key(one.meta()), Arc::new(one));
                }
                Event::Delete(one) => {
                    objects.remove(&key(one.meta()));
                }
            }
        }
        shared.touch();
    }
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
        watched.is_listed = true;
        drop(state);
        if is_new {
            tracing::info!("the API server has no {kind}");
            shared.touch();
        }
        return;
    }
    let text = chain(why);
    if watched.error.is_none() {
        tracing::warn!("{kind}: {text}; what is known stays");
    }
    watched.error = Some((Instant::now(), text));
    drop(state);
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
