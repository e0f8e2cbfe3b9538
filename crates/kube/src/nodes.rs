//! Sends services to nodes.

use crate::config::{NodeConfig, read};
use crate::endpoints::is_everywhere;
use crate::objects::{Cluster, FrontEnd, Owner};
use crate::shared::{Hub, HubState, WantedService};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout;
use weir_client::{Client, ClientError, Options, RefusalReason, Tls, status_of};

/// How often a node that has everything is asked whether it still has it.
const CHECK: Duration = Duration::from_secs(5);
/// When a node that fails is tried again.
const RETRY: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(5)];
/// How often services that a node keeps refusing are tried again, at least.
const AGAIN_MAX: Duration = Duration::from_secs(60);
/// How much is read of a file with a token, in bytes.
const TOKEN_MAX: u64 = 4096;
/// After how long without an answer a node counts as not in sync, and after how long it is asked again: its
/// host may have died silently. A change of many services may take a node longer than the first of these.
const ANSWERS: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(120)];
/// How many services may differ for each to be sent by itself.
const SINGLE_MAX: usize = 8;
/// How many services a node may refuse before everything waits.
const REFUSED_MAX: usize = 64;
/// The owner of the services that are set over a node's API.
const API: &str = "api";

/// Services as a node reads them, in JSON, by name. Nodes share the texts that are equal.
type Texts = BTreeMap<Arc<str>, Arc<str>>;

/// Services that a node has refused, by name: each as it was sent, and why.
type Refusals = BTreeMap<Arc<str>, (Arc<str>, String)>;

/// What a node has.
#[derive(Default)]
struct Confirmed {
    client: Option<Client>,
    /// The services that it has confirmed.
    services: Option<Texts>,
    /// The services that it has refused.
    refused: Refusals,
    again: Again,
    etag: Option<String>,
}

/// When refused services are tried again: that takes a request for each of them.
#[derive(Default)]
struct Again {
    at: Option<Instant>,
    wait: Option<Duration>,
}

impl Again {
    /// Whether it is time. If so, the next time is later.
    fn is_due(&mut self, now: Instant) -> bool {
        if self.at.is_some_and(|at| now < at) {
            return false;
        }
        let wait = self.wait.map_or(CHECK, |wait| (wait * 2).min(AGAIN_MAX));
        (self.at, self.wait) = (Some(now + wait), Some(wait));
        true
    }
}

/// Keeps a node up to date.
pub(crate) async fn feed(shared: Arc<Hub>, node: NodeConfig) {
    let mut known = Confirmed::default();
    let mut wait = CHECK;
    let mut retry = RETRY[0];
    let Some(wake) = shared.nodes.get(&node.name) else { return };
    loop {
        let is_new = timeout(wait, wake.notified()).await.is_ok();
        wait = CHECK;
        if !shared.leads() || shared.state().wanted.is_none() {
            // Another controller may change it now.
            known = Confirmed::default();
            continue;
        }
        if is_unknown(&shared, &node) {
            known = Confirmed::default();
        }
        let result = while_leading(&shared, &node, ANSWERS, known.bring(&shared, &node, is_new)).await;
        let error = match result {
            Ok(since) => {
                retry = RETRY[0];
                if let (true, Some(since)) = (is_new, since) {
                    shared.metrics.delay.observe(since.elapsed().as_secs_f64());
                }
                refusal(&shared, &node)
            }
            Err(why) => {
                known = Confirmed { refused: known.refused, again: known.again, ..Confirmed::default() };
                wait = retry;
                retry = (retry * 2).min(RETRY[1]);
                Some(why.to_string())
            }
        };
        note(&shared, &node, error);
    }
}

/// Notes why a node does not have what it should, if it does not.
fn note(shared: &Hub, node: &NodeConfig, error: Option<String>) {
    let labels = vec![("node", node.name.clone())];
    shared.metrics.in_sync.get_or_create(&labels).set(i64::from(error.is_none()));
    let mut state = shared.state();
    let place = state.nodes.entry(node.name.clone()).or_default();
    if place.error != error {
        match &error {
            Some(why) => tracing::warn!("node {}: {why}", node.name),
            None => tracing::info!("node {} has all services", node.name),
        }
        place.error = error;
    }
}

/// Says what a node refuses, if it refuses anything.
fn refusal(shared: &Hub, node: &NodeConfig) -> Option<String> {
    let state = shared.state();
    let refused = &state.nodes.get(&node.name)?.refused;
    let (name, why) = refused.first_key_value()?;
    let others = refused.len() - 1;
    let others = if others > 0 { format!(" and {others} others") } else { String::new() };
    Some(format!("it refuses `{name}`{others}: {why}"))
}

/// Waits for the answers of a node, which counts as not in sync while it takes long. They are given up as
/// soon as another controller may lead, because that one may then change the node.
async fn while_leading<T>(
    shared: &Hub,
    node: &NodeConfig,
    [slow, patience]: [Duration; 2],
    work: impl Future<Output = Result<T, ClientError>>,
) -> Result<T, ClientError> {
    let begin = Instant::now();
    let mut work = pin!(work);
    loop {
        let until = shared.state().leads_until;
        let left = until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
        if let Ok(result) = timeout(left.min(slow), &mut work).await {
            return result;
        }
        let took = begin.elapsed();
        let given_up = |why: &str| Err(ClientError::Unreachable(format!("has not answered {why}")));
        if !shared.leads() {
            return given_up("before the lease ended");
        } else if took >= patience {
            return given_up(&format!("within {} s", patience.as_secs()));
        } else if took >= slow {
            note(shared, node, Some(format!("weir has not answered for {} s", slow.as_secs())));
        }
    }
}

/// Whether another controller may have changed the services of a node since this was last called.
fn is_unknown(shared: &Hub, node: &NodeConfig) -> bool {
    let mut state = shared.state();
    std::mem::take(&mut state.nodes.entry(node.name.clone()).or_default().is_unknown)
}

/// What has changed for a node.
struct NodeChanges {
    /// The services, by name; `None` if they are gone.
    services: BTreeMap<Arc<str>, Option<Arc<WantedService>>>,
    /// When the first of these changes arrived.
    since: Option<Instant>,
}

/// Returns what has changed for a node since this was last called.
fn take_changes(shared: &Hub, node: &NodeConfig) -> NodeChanges {
    let mut state = shared.state();
    let place = state.nodes.entry(node.name.clone()).or_default();
    let (names, since) = (std::mem::take(&mut place.changed), place.since.take());
    let wanted = |name: &Arc<str>| state.wanted.as_ref().and_then(|all| all.get(name)).cloned();
    let services = names.into_iter().map(|name| (name.clone(), wanted(&name))).collect();
    NodeChanges { services, since }
}

/// Returns a service as a node reads it.
fn text(shared: &Hub, node: &NodeConfig, name: &str, wanted: &WantedService) -> Arc<str> {
    let service = &wanted.service;
    let make = || service.of_node(name, &shared.config, node).to_string().into();
    let is_in_cluster = node.kubernetes_node.is_some() || node.zone.is_some();
    if is_in_cluster && !is_everywhere(&service.groups, service.is_local) {
        return make();
    }
    wanted.text.get_or_init(make).clone()
}

impl Confirmed {
    /// Brings a node to its desired state. If something was sent because of a change, returns when the change
    /// arrived.
    async fn bring(
        &mut self,
        shared: &Hub,
        node: &NodeConfig,
        is_new: bool,
    ) -> Result<Option<Instant>, ClientError> {
        let client = match &self.client {
            Some(client) => client.clone(),
            None => self.client.insert(connect(node)?).clone(),
        };
        let labels = |result: &str| vec![("node", node.name.clone()), ("result", result.to_string())];
        let count = |result: &str| shared.metrics.puts.get_or_create(&labels(result)).inc();
        // What the node has refused is tried again from time to time.
        if self.refused.is_empty() {
            self.again = Again::default();
        }
        let tries_again = !is_new && !self.refused.is_empty() && self.again.is_due(Instant::now());
        if tries_again {
            self.refused.clear();
        }
        let changes = take_changes(shared, node);
        if let Some(differences) = self.differences(shared, node, &changes).filter(|_| !tries_again) {
            if differences.is_empty() {
                if is_new || !self.is_different(&client).await? {
                    // A service may have changed back to the form that the node has.
                    confirm(shared, node, &changes.services, &self.refused);
                    self.note_refused(shared, node);
                    return Ok(None);
                }
            } else if differences.len() <= SINGLE_MAX {
                // If one of them is refused, all services are sent at once, because that answer says more
                // about what is wrong. So are they if the node has other services than it should.
                if self.put_each(&client, &differences).await.is_ok() {
                    count("one");
                    confirm(shared, node, &changes.services, &self.refused);
                    self.note_refused(shared, node);
                    return Ok(changes.since);
                }
            }
        }
        let wanted = shared.state().wanted.clone().unwrap_or_default();
        let texts = wanted.iter().map(|(name, one)| (name.clone(), text(shared, node, name, one)));
        let mut texts: Texts = texts.collect();
        if let Err(why) = self.put_all(&client, &mut texts).await {
            count("failed");
            return Err(why);
        }
        count("all");
        self.services = Some(texts);
        confirm_all(shared, node, &wanted, &self.refused);
        self.note_refused(shared, node);
        Ok(changes.since)
    }

    /// Notes which services are refused, and why.
    fn note_refused(&self, shared: &Hub, node: &NodeConfig) {
        let now = self.refused.iter().map(|(name, (_, why))| (name.clone(), why.clone()));
        let now: BTreeMap<Arc<str>, String> = now.collect();
        let is_changed = {
            let mut state = shared.state();
            let place = state.nodes.entry(node.name.clone()).or_default();
            let is_changed = place.refused != now;
            place.refused = now;
            is_changed
        };
        if is_changed {
            // For events about it.
            shared.touch();
        }
    }

    /// Returns the services that differ from those that the node has confirmed; `None` if that is not known.
    /// Services that it has refused, and that have not changed since, are left out.
    fn differences(
        &mut self,
        shared: &Hub,
        node: &NodeConfig,
        changes: &NodeChanges,
    ) -> Option<BTreeMap<Arc<str>, Option<Arc<str>>>> {
        let services = self.services.as_ref()?;
        let mut differences = BTreeMap::new();
        for (name, wanted) in &changes.services {
            let new = wanted.as_ref().map(|wanted| text(shared, node, name, wanted));
            if self.refused.get(name).is_some_and(|(refused, _)| new.as_ref() == Some(refused)) {
                continue;
            }
            self.refused.remove(name);
            if services.get(name) != new.as_ref() {
                differences.insert(name.clone(), new);
            }
        }
        Some(differences)
    }

    /// Replaces services that the node has refused by what it has instead. Each is tried again when it
    /// changes, or when the node is checked.
    fn leave_out_refused(&mut self, wanted: &mut Texts) {
        self.refused.retain(|name, (text, _)| wanted.get(name) == Some(text));
        for name in self.refused.keys() {
            self.replace(wanted, name);
        }
    }

    /// Replaces a service by the form that the node has, so that what it has accepted before stays. Returns
    /// what it was.
    fn replace(&self, wanted: &mut Texts, name: &Arc<str>) -> Option<Arc<str>> {
        match self.services.as_ref().and_then(|services| services.get(name)) {
            Some(before) => wanted.insert(name.clone(), before.clone()),
            None => wanted.remove(name),
        }
    }

    /// Whether a node has other services than it has confirmed, because it has started again or someone else
    /// has changed them.
    async fn is_different(&mut self, client: &Client) -> Result<bool, ClientError> {
        let Some(etag) = &self.etag else { return Ok(true) };
        let other = client.services_unless(etag).await?.map(|all| all.status.etag);
        let is_different = other.is_some();
        self.etag = other.or_else(|| self.etag.take());
        Ok(is_different)
    }

    /// Sends services one by one, or removes them. It is an error if the node's services were not those that
    /// it has confirmed. The API has no condition for this, so a delayed request may change a service after
    /// another controller has taken over; that controller's next check puts it right.
    async fn put_each(
        &mut self,
        client: &Client,
        services: &BTreeMap<Arc<str>, Option<Arc<str>>>,
    ) -> Result<(), ClientError> {
        // If the `ETag` is not known afterwards, the next check sends everything.
        let mut etag = self.etag.take();
        for (name, text) in services {
            let Some(text) = text else {
                // The answer to a deletion has no `ETag` of the node's services.
                etag = None;
                match client.delete(name, &Options::default()).await {
                    Ok(_) | Err(ClientError::Refused { reason: RefusalReason::Absent, .. }) => {}
                    Err(other) => return Err(other),
                }
                if let Some(all) = &mut self.services {
                    all.remove(name);
                }
                continue;
            };
            let changes = client.put_text(name, text.to_string(), &Options::default()).await?;
            if etag.is_some() && changes.set_before != etag {
                let why = "the node has other services".to_string();
                return Err(ClientError::Refused { reason: RefusalReason::Stale, why });
            }
            etag = etag.and(changes.set_after);
            if let Some(all) = &mut self.services {
                all.insert(name.clone(), text.clone());
            }
        }
        self.etag = etag;
        Ok(())
    }

    /// Asks a node for the `ETag` of its services, unless that is known, and for the services themselves if
    /// some are refused: what the node has instead of these is sent, too. Without need, thousands of services
    /// are not asked for.
    async fn ask(&mut self, client: &Client, is_refused: bool) -> Result<(), ClientError> {
        if is_refused && self.services.is_none() {
            let (services, etag) = services_of(client).await?;
            (self.services, self.etag) = (Some(services), etag);
        } else if self.etag.is_none() {
            self.etag = client.services_etag().await?;
        }
        Ok(())
    }

    /// Sends all services. Those that the node refuses do not hold up the others. If the node's services are
    /// not those that are known, nothing happens: the request may have been delayed, and another controller
    /// may have changed them meanwhile.
    async fn put_all(&mut self, client: &Client, wanted: &mut Texts) -> Result<(), ClientError> {
        self.ask(client, !self.refused.is_empty()).await?;
        self.leave_out_refused(wanted);
        let mut new = BTreeSet::<Arc<str>>::new();
        loop {
            let texts = wanted.values().map(AsRef::as_ref);
            let options = Options { etag: self.etag.clone(), ..Options::default() };
            let (reason, why) = match client.put_all_texts(texts, &options).await {
                Ok(changes) => {
                    self.etag = changes.set_after.or(changes.etag);
                    return Ok(());
                }
                Err(ClientError::Refused { reason, why }) => (reason, why),
                Err(other) => return Err(other),
            };
            let name = place(reason, &why).and_then(|at| wanted.keys().nth(at)).cloned();
            let name = name.filter(|name| new.len() < REFUSED_MAX && !new.contains(name));
            let Some(name) = name else { return Err(ClientError::Refused { reason, why }) };
            self.ask(client, true).await?;
            let now = self.replace(wanted, &name);
            self.refused.extend(now.map(|text| (name.clone(), (text, why))));
            new.insert(name);
        }
    }
}

/// Asks a node which services of its API it has, and for the `ETag` of all its services.
async fn services_of(client: &Client) -> Result<(Texts, Option<String>), ClientError> {
    let mut texts = Texts::new();
    let all = client.services().await?;
    for mut service in all.services {
        // Others are not replaced with those of the API.
        if status_of(&service).owner != API {
            continue;
        }
        if let Some(map) = service.as_object_mut() {
            map.shift_remove("status");
        }
        let text = service.to_string().into();
        texts.extend(service["name"].as_str().map(|name| (name.into(), text)));
    }
    Ok((texts, Some(all.status.etag).filter(|etag| !etag.is_empty())))
}

/// Returns the object whose status may change when a service is confirmed, if there is one: a gateway, or a
/// Service that does not have all its addresses yet.
fn awaiting(cluster: &Cluster, wanted: &WantedService) -> Option<Owner> {
    let origin = &wanted.service.origin;
    let key = (origin.namespace.clone().unwrap_or_default(), origin.name.clone().unwrap_or_default());
    if origin.kind.as_deref() == Some("Gateway") {
        return Some(Owner::Gateway(key));
    }
    let service = cluster.services.get(&key)?;
    let balanced = service.balanced.as_deref()?;
    let owner = Owner::Service(key);
    let held = cluster.held(&owner, service.version.as_deref(), &balanced.ingress);
    let vips = &wanted.service.front_end.vips;
    vips.iter().any(|vip| !held.contains(vip)).then_some(owner)
}

/// Notes that the statuses of these objects may change.
fn note_confirmed(shared: &Hub, state: &mut HubState, owners: BTreeSet<Owner>) {
    if owners.is_empty() {
        return;
    }
    owners.into_iter().for_each(|owner| state.changed.owner(owner));
    state.since.get_or_insert_with(Instant::now);
    shared.wake.notify_one();
}

/// Notes which of these services a node has confirmed, for the statuses that depend on it.
fn confirm(
    shared: &Hub,
    node: &NodeConfig,
    services: &BTreeMap<Arc<str>, Option<Arc<WantedService>>>,
    refused: &Refusals,
) {
    let mut state = shared.state();
    let cluster = &mut state.cluster;
    let mut confirmed = cluster.confirmed.remove(&node.name).unwrap_or_default();
    let mut owners = BTreeSet::new();
    for (name, wanted) in services.iter().filter(|(name, _)| !refused.contains_key(*name)) {
        let Some(wanted) = wanted else {
            confirmed.remove(name);
            continue;
        };
        let front_end = &wanted.service.front_end;
        if confirmed.get(name) != Some(front_end) {
            confirmed.insert(name.clone(), front_end.clone());
            owners.extend(awaiting(cluster, wanted));
        }
    }
    cluster.confirmed.insert(node.name.clone(), confirmed);
    note_confirmed(shared, &mut state, owners);
}

/// Like [`confirm`], for all services.
fn confirm_all(
    shared: &Hub,
    node: &NodeConfig,
    wanted: &BTreeMap<Arc<str>, Arc<WantedService>>,
    refused: &Refusals,
) {
    let mut state = shared.state();
    let owners = set_confirmed(&mut state.cluster, &node.name, wanted, refused);
    note_confirmed(shared, &mut state, owners);
}

/// Replaces what a node has confirmed, and returns the objects whose statuses may change. All services are
/// kept, not only those that a status waits for, because a status may lose its addresses later.
pub(crate) fn set_confirmed(
    cluster: &mut Cluster,
    node: &str,
    wanted: &BTreeMap<Arc<str>, Arc<WantedService>>,
    refused: &Refusals,
) -> BTreeSet<Owner> {
    let before = cluster.confirmed.remove(node);
    let mut now: BTreeMap<Arc<str>, FrontEnd> = BTreeMap::new();
    let mut owners = BTreeSet::new();
    for (name, one) in wanted {
        let old = before.as_ref().and_then(|before| before.get(name));
        let has = if refused.contains_key(name) { old } else { Some(&one.service.front_end) };
        if before.is_none() || has != old {
            owners.extend(awaiting(cluster, one));
        }
        now.extend(has.map(|has| (name.clone(), has.clone())));
    }
    cluster.confirmed.insert(node.to_string(), now);
    owners
}

/// Returns the position of the service that a refusal is about.
fn place(reason: RefusalReason, why: &str) -> Option<usize> {
    match reason {
        RefusalReason::Wrong | RefusalReason::Conflict => {}
        RefusalReason::Token
        | RefusalReason::Absent
        | RefusalReason::Stale
        | RefusalReason::TooLarge
        | RefusalReason::Busy
        | RefusalReason::Other(_) => return None,
    }
    let (_, rest) = why.split_once("/services/")?;
    let end = rest.find(|one: char| !one.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// Makes a client. The token is read again after each failure, so that it can be replaced.
pub(crate) fn connect(node: &NodeConfig) -> Result<Client, ClientError> {
    let unreadable = |path: &Path, why: std::io::Error| {
        ClientError::Unreachable(format!("cannot be asked: {}: {why}", path.display()))
    };
    if let Some(path) = node.url.strip_prefix("unix:") {
        return Ok(Client::unix(path));
    }
    let token = match &node.token {
        Some(path) => read(path, TOKEN_MAX).map_err(|why| unreadable(path, why))?,
        None => String::new(),
    };
    let token = token.trim();
    let address = node.url.trim_start_matches("https://").trim_start_matches("http://");
    let address = address.trim_end_matches('/');
    match &node.certificates {
        Some(path) => {
            let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let tls = Tls::new(path, host).map_err(|why| unreadable(path, why))?;
            Ok(Client::tls(address, token, tls))
        }
        None => Ok(Client::tcp(address, token)),
    }
}

#[cfg(test)]
mod tests;
