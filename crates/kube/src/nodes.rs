//! Sends services to nodes.

use crate::config::{NodeConfig, read};
use crate::desired::{Desired, VirtualService};
use crate::shared::Hub;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::timeout;
use weir_client::{Client, ClientError, Options, RefusalReason, Tls};

/// How often a node that has everything is asked whether it still has it.
const CHECK: Duration = Duration::from_secs(5);
/// When a node that fails is tried again.
const RETRY: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(5)];
/// How much is read of a file with a token, in bytes.
const TOKEN_MAX: u64 = 4096;
/// How many services may differ for each to be sent by itself.
const SINGLE_MAX: usize = 8;
/// How many services a node may refuse before everything waits.
const REFUSED_MAX: usize = 64;

/// What nodes are sent.
pub(crate) struct NodeOrder {
    pub desired: Desired,
    /// When the first change has arrived that led to it.
    pub since: Option<Instant>,
}

/// What is to be sent; nothing if another controller leads.
pub(crate) type NodeOrders = watch::Receiver<Option<Arc<NodeOrder>>>;

/// Services as a node reads them, by name. What stays the same is not built or compared again.
type ServiceValues = BTreeMap<String, Arc<Value>>;

/// What a node has.
#[derive(Default)]
struct Confirmed {
    client: Option<Client>,
    /// The services that it has confirmed.
    services: Option<ServiceValues>,
    /// The services that it has refused, as they were sent.
    refused: ServiceValues,
    etag: Option<String>,
}

/// Keeps a node up to date.
pub(crate) async fn feed(shared: Arc<Hub>, node: NodeConfig, mut receiver: NodeOrders) {
    let mut known = Confirmed::default();
    let mut wait = CHECK;
    let mut retry = RETRY[0];
    let mut before = None;
    loop {
        // The end of the sender is the end of the program.
        let is_new = match timeout(wait, receiver.changed()).await {
            Ok(Ok(())) => true,
            Ok(Err(_)) => return,
            Err(_) => false,
        };
        wait = CHECK;
        let Some(sent) = receiver.borrow_and_update().clone() else {
            // Another controller may change it now.
            known = Confirmed::default();
            continue;
        };
        if !shared.leads() {
            continue;
        }
        let wanted = values(&shared, &node, &sent.desired, before.as_ref());
        before = Some((sent.clone(), wanted.clone()));
        let result = known.bring(&shared, &node, wanted, is_new).await;
        let labels = vec![("node", node.name.clone())];
        let in_sync = shared.metrics.in_sync.get_or_create(&labels);
        let error = match result {
            Ok(changed) => {
                retry = RETRY[0];
                in_sync.set(1);
                if let (true, true, Some(since)) = (is_new, changed, sent.since) {
                    shared.metrics.delay.observe(since.elapsed().as_secs_f64());
                }
                None
            }
            Err(why) => {
                in_sync.set(0);
                known = Confirmed { refused: known.refused, ..Confirmed::default() };
                wait = retry;
                retry = (retry * 2).min(RETRY[1]);
                Some(why.to_string())
            }
        };
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
}

/// Returns the services as a node reads them; those that have not changed are taken from before.
fn values(
    shared: &Hub,
    node: &NodeConfig,
    desired: &Desired,
    before: Option<&(Arc<NodeOrder>, ServiceValues)>,
) -> ServiceValues {
    let value = |(name, service): (&String, &VirtualService)| {
        let old = before.filter(|(order, _)| order.desired.services.get(name) == Some(service));
        let old = old.and_then(|(_, values)| values.get(name)).cloned();
        let new = || Arc::new(service.of_node(name, &shared.config, node));
        (name.clone(), old.unwrap_or_else(new))
    };
    desired.services.iter().map(value).collect()
}

impl Confirmed {
    /// Brings a node to what it should have, and returns whether something was sent.
    async fn bring(
        &mut self,
        shared: &Hub,
        node: &NodeConfig,
        mut wanted: ServiceValues,
        is_new: bool,
    ) -> Result<bool, ClientError> {
        let client = match &self.client {
            Some(client) => client.clone(),
            None => self.client.insert(connect(node)?).clone(),
        };
        if !is_new {
            self.refused.clear();
        }
        self.leave_out_refused(&mut wanted);
        let labels = |result: &str| vec![("node", node.name.clone()), ("result", result.to_string())];
        let count = |result: &str| shared.metrics.puts.get_or_create(&labels(result)).inc();
        match &self.services {
            Some(services) if *services == wanted => {
                if is_new || !self.is_different(&client).await? {
                    return Ok(false);
                }
            }
            Some(services) if services.len() > SINGLE_MAX => {
                let etag = self.etag.take();
                // If one of them is refused, all services are sent at once, because that answer says more
                // about what is wrong. So are they if the node has other services than it should.
                if let Some(Ok(etag)) = single(&client, services, &wanted, etag).await {
                    count("one");
                    self.services = Some(wanted);
                    self.etag = etag;
                    return Ok(true);
                }
            }
            Some(_) | None => self.etag = None,
        }
        let reasons = match self.put_all(&client, &mut wanted).await {
            Ok(reasons) => reasons,
            Err(why) => {
                count("failed");
                return Err(why);
            }
        };
        count("all");
        self.services = Some(wanted);
        let is_changed = {
            let mut state = shared.state();
            let state = state.nodes.entry(node.name.clone()).or_default();
            std::mem::replace(&mut state.refused, reasons.clone()) != reasons
        };
        if is_changed {
            // For events about it.
            shared.touch();
        }
        Ok(true)
    }

    /// Replaces services that the node has refused by what it has instead. Each is tried again when it
    /// changes, or when the node is checked.
    fn leave_out_refused(&mut self, wanted: &mut ServiceValues) {
        self.refused.retain(|name, value| wanted.get(name) == Some(value));
        let names: Vec<String> = self.refused.keys().cloned().collect();
        for name in names {
            self.replace(wanted, &name);
        }
    }

    /// Replaces a service by the form that the node has, and returns what it was.
    fn replace(&self, wanted: &mut ServiceValues, name: &str) -> Option<Arc<Value>> {
        match self.services.as_ref().and_then(|all| all.get(name)).cloned() {
            Some(before) => wanted.insert(name.into(), before),
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

    /// Sends all services, and returns why the node has refused some of them. The others are not held up.
    async fn put_all(
        &mut self,
        client: &Client,
        wanted: &mut ServiceValues,
    ) -> Result<BTreeMap<String, String>, ClientError> {
        let mut reasons = BTreeMap::new();
        loop {
            let list: Vec<Value> = wanted.values().map(|value| Value::clone(value)).collect();
            let (reason, why) = match client.put_all(&list, &Options::default()).await {
                Ok(changes) => {
                    self.etag = changes.set_after.or(changes.etag);
                    return Ok(reasons);
                }
                Err(ClientError::Refused { reason, why }) => (reason, why),
                Err(other) => return Err(other),
            };
            let name = place(reason, &why).and_then(|at| wanted.keys().nth(at)).cloned();
            let name = name.filter(|name| reasons.len() < REFUSED_MAX && !reasons.contains_key(name));
            let Some(name) = name else { return Err(ClientError::Refused { reason, why }) };
            let now = self.replace(wanted, &name);
            self.refused.extend(now.map(|value| (name.clone(), value)));
            reasons.insert(name, why);
        }
    }
}

/// Sends the services that differ one by one; `None` if there are too many. Returns the `ETag` of the node's
/// services afterwards, if it is known. It is an error if the node's services were not those of `etag`.
async fn single(
    client: &Client,
    before: &ServiceValues,
    wanted: &ServiceValues,
    mut etag: Option<String>,
) -> Option<Result<Option<String>, ClientError>> {
    let gone: Vec<&String> = before.keys().filter(|name| !wanted.contains_key(*name)).collect();
    let new: Vec<(&String, &Arc<Value>)> =
        wanted.iter().filter(|(name, value)| before.get(*name) != Some(*value)).collect();
    if gone.len() + new.len() > SINGLE_MAX {
        return None;
    }
    for name in gone {
        // The answer to a deletion has no `ETag` of the node's services.
        etag = None;
        match client.delete(name, &Options::default()).await {
            Ok(_) | Err(ClientError::Refused { reason: RefusalReason::Absent, .. }) => {}
            Err(other) => return Some(Err(other)),
        }
    }
    for (name, value) in new {
        match client.put(name, value, &Options::default()).await {
            Ok(changes) if etag.is_none() || changes.set_before == etag => {
                etag = etag.and(changes.set_after);
            }
            Ok(_) => {
                let why = "the node has other services".to_string();
                return Some(Err(ClientError::Refused { reason: RefusalReason::Stale, why }));
            }
            Err(why) => return Some(Err(why)),
        }
    }
    Some(Ok(etag))
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
fn connect(node: &NodeConfig) -> Result<Client, ClientError> {
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
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_a_service() {
        let place = |why| place(RefusalReason::Wrong, why);
        assert_eq!(place("/services/3/back_ends/0/mac: wrong"), Some(3));
        assert_eq!(place("conflict: service `web` (at /services/12) belongs to weir.yaml:6"), Some(12));
        assert_eq!(place("the configuration is wrong"), None);
        assert_eq!(super::place(RefusalReason::Busy, "/services/3"), None);
    }
}
