//! Names of addresses for nodes, so that flow records have them: pods and nodes from EndpointSlices, and the
//! addresses of Services and Gateways. They need no other objects than those that are followed anyway.

use crate::config::NodeConfig;
use crate::nodes::connect;
use crate::objects::{Cluster, EndpointTarget, Objects, SliceEndpoint};
use crate::shared::Hub;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use weir_client::{Client, ClientError};
use weir_control::addresses::NamedAddress;
use weir_control::kubernetes::EndpointState;

/// How often names are computed, if objects have changed.
const PERIOD: Duration = Duration::from_secs(1);
/// How often a node that has the names is asked whether it still has them, and one that fails is tried again.
const CHECK: Duration = Duration::from_secs(5);

/// The names that nodes should have; nothing if another controller leads.
type NameOrders = watch::Receiver<Option<Arc<Vec<NamedAddress>>>>;

/// Computes names whenever objects have changed.
pub(crate) async fn follow(shared: Arc<Hub>, sender: watch::Sender<Option<Arc<Vec<NamedAddress>>>>) {
    let mut known: Option<Cluster> = None;
    loop {
        sleep(PERIOD).await;
        if !shared.leads() {
            if known.take().is_some() {
                sender.send_replace(None);
            }
            continue;
        }
        let now = {
            let state = shared.state();
            if state.watched.values().any(|watched| !watched.is_listed) {
                continue;
            }
            let is_same = |known: &Cluster| {
                is_same(&known.services, &state.cluster.services)
                    && is_same(&known.slices, &state.cluster.slices)
                    && is_same(&known.gateways, &state.cluster.gateways)
            };
            if known.as_ref().is_some_and(is_same) {
                continue;
            }
            state.cluster.clone()
        };
        let names = Arc::new(names(&now));
        known = Some(now);
        sender.send_if_modified(|sent| {
            let is_new = sent.as_ref() != Some(&names);
            if is_new {
                *sent = Some(names);
            }
            is_new
        });
    }
}

/// Returns whether these are the same objects; one that has changed has another place in memory.
fn is_same<K>(known: &Objects<K>, now: &Objects<K>) -> bool {
    let mut both = known.iter().zip(now);
    known.len() == now.len()
        && both.all(|((name, one), (other_name, other))| name == other_name && Arc::ptr_eq(one, other))
}

/// Keeps the names of a node up to date.
pub(crate) async fn feed(shared: Arc<Hub>, node: NodeConfig, mut orders: NameOrders) {
    let mut client: Option<Client> = None;
    // The tag of what the node has confirmed.
    let mut etag: Option<String> = None;
    let mut failure: Option<String> = None;
    loop {
        match timeout(CHECK, orders.changed()).await {
            Ok(Ok(())) => etag = None,
            // The end of the sender is the end of the program.
            Ok(Err(_)) => return,
            Err(_) => {}
        }
        let Some(names) = orders.borrow_and_update().clone() else { continue };
        if !shared.leads() {
            continue;
        }
        let error = match bring(&mut client, &node, &names, etag.take()).await {
            Ok(tag) => {
                etag = Some(tag);
                None
            }
            Err(why) => {
                // The token is read again.
                client = None;
                Some(why.to_string())
            }
        };
        if error != failure {
            match &error {
                Some(why) => tracing::warn!("node {}: it does not get names of addresses: {why}", node.name),
                None => tracing::info!("node {} has {} names of addresses", node.name, names.len()),
            }
            failure = error;
        }
    }
}

/// Brings the names to a node, unless it still has those of this tag. Returns their tag.
async fn bring(
    client: &mut Option<Client>,
    node: &NodeConfig,
    names: &[NamedAddress],
    etag: Option<String>,
) -> Result<String, ClientError> {
    let client = match client {
        Some(client) => client,
        None => client.insert(connect(node)?),
    };
    if let Some(etag) = etag
        && client.names_unless(&etag).await?.is_none()
    {
        return Ok(etag);
    }
    Ok(client.put_names(names).await?.etag)
}

/// Returns the names that follow from the objects, in the order of addresses.
fn names(cluster: &Cluster) -> Vec<NamedAddress> {
    let mut all = BTreeMap::new();
    for ((namespace, name), service) in &cluster.services {
        add_service(&mut all, service.addresses.iter().copied(), (namespace.as_str(), name.as_str()));
    }
    for ((namespace, name), gateway) in &cluster.gateways {
        let status = gateway.status.as_ref().and_then(|status| status.addresses.as_ref());
        let addresses = status.into_iter().flatten().filter_map(|one| one.value.parse().ok());
        add_service(&mut all, addresses, (namespace.as_str(), name.as_str()));
    }
    for ((namespace, _), slice) in &cluster.slices {
        for endpoint in &slice.endpoints {
            if let Some(name) = of_endpoint(namespace, endpoint) {
                add_endpoint(&mut all, endpoint.address, (name, endpoint.state == EndpointState::Ready));
            }
        }
    }
    let named =
        |(address, (name, _)): (IpAddr, KnownName)| NamedAddress { address: address.to_string(), ..name };
    all.into_iter().map(named).collect()
}

/// A name, whose address is filled in later, and whether its endpoint is ready.
type KnownName = (NamedAddress, bool);

/// Names the addresses of a service; of several services that share one, the first.
fn add_service(
    all: &mut BTreeMap<IpAddr, KnownName>,
    addresses: impl Iterator<Item = IpAddr>,
    (namespace, name): (&str, &str),
) {
    for address in addresses {
        let kind = "service".to_string();
        let (name, namespace) = (name.to_string(), Some(namespace.to_string()));
        let one = NamedAddress { name, namespace, kind, ..NamedAddress::default() };
        all.entry(address).or_insert((one, true));
    }
}

/// Returns the name of an endpoint, if it is a pod or a node.
fn of_endpoint(namespace: &str, endpoint: &SliceEndpoint) -> Option<NamedAddress> {
    Some(match endpoint.target.as_ref()? {
        EndpointTarget::Pod(name) => NamedAddress {
            name: name.to_string(),
            namespace: Some(namespace.to_string()),
            kind: "pod".into(),
            node: endpoint.node.as_ref().map(ToString::to_string),
            ..NamedAddress::default()
        },
        EndpointTarget::Node(name) => of_node(name.to_string()),
    })
}

fn of_node(name: String) -> NamedAddress {
    NamedAddress { node: Some(name.clone()), name, kind: "node".into(), ..NamedAddress::default() }
}

/// Names an address of an endpoint. An address that several pods of a node have is the node's: their pods use
/// the network of the host. Of pods of different nodes, the ready one has it: the other is gone.
fn add_endpoint(all: &mut BTreeMap<IpAddr, KnownName>, address: IpAddr, (name, is_ready): KnownName) {
    let Some((before, was_ready)) = all.get_mut(&address) else {
        all.insert(address, (name, is_ready));
        return;
    };
    if before.kind == "service" || (&before.name, &before.namespace) == (&name.name, &name.namespace) {
        *was_ready |= is_ready;
        return;
    }
    let shared = name.node.clone().filter(|_| before.node == name.node);
    match shared {
        Some(node) => (*before, *was_ready) = (of_node(node), true),
        None if before.kind == "pod" && is_ready && !*was_ready => (*before, *was_ready) = (name, is_ready),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::key;
    use k8s_openapi::api::core::v1::Service;
    use k8s_openapi::api::discovery::v1::EndpointSlice;
    use serde_json::json;

    fn slice(name: &str, endpoints: serde_json::Value) -> EndpointSlice {
        let meta = json!({ "name": name, "namespace": "shop" });
        serde_json::from_value(json!({ "metadata": meta, "addressType": "IPv4", "endpoints": endpoints }))
            .unwrap()
    }

    fn pod(address: &str, name: &str, node: &str, ready: bool) -> serde_json::Value {
        json!({ "addresses": [address], "nodeName": node, "conditions": { "ready": ready },
            "targetRef": { "kind": "Pod", "name": name, "namespace": "shop" } })
    }

    #[test]
    fn pods_nodes_and_services_have_names() {
        let service: Service = serde_json::from_value(json!({
            "metadata": { "name": "web", "namespace": "shop" },
            "spec": { "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00::1"],
                "externalIPs": ["198.51.100.7"] },
            "status": { "loadBalancer": { "ingress": [{ "ip": "192.0.2.80" }] } },
        }))
        .unwrap();
        let headless: Service = serde_json::from_value(json!({
            "metadata": { "name": "db", "namespace": "shop" }, "spec": { "clusterIP": "None" },
        }))
        .unwrap();
        let slices = [
            slice(
                "web",
                json!([
                    pod("10.244.1.5", "web-1", "n1", true),
                    // Both use the network of their host.
                    pod("10.0.0.1", "proxy-a", "n1", true),
                    pod("10.0.0.1", "agent-a", "n1", true),
                    // The address of a pod that is gone, which another one has now.
                    pod("10.244.1.6", "old", "n1", false),
                    pod("10.244.1.6", "new", "n2", true),
                    { "addresses": ["10.244.1.9"], "nodeName": "n1" },
                    { "addresses": ["10.0.0.2"], "targetRef": { "kind": "Node", "name": "n2" } },
                ]),
            ),
            slice("again", json!([pod("10.244.1.5", "web-1", "n1", false)])),
        ];
        let mut cluster = Cluster::default();
        for one in [service, headless] {
            cluster.services.insert(key(&one.metadata), Arc::new(one.into()));
        }
        for one in slices {
            cluster.slices.insert(key(&one.metadata), Arc::new(one.into()));
        }
        let shown: Vec<String> = names(&cluster)
            .into_iter()
            .map(|one| {
                let (namespace, node) = (one.namespace.unwrap_or_default(), one.node.unwrap_or_default());
                format!("{} {} {namespace}/{} {node}", one.address, one.kind, one.name)
            })
            .collect();
        assert_eq!(
            shown,
            [
                "10.0.0.1 node /n1 n1",
                "10.0.0.2 node /n2 n2",
                "10.96.0.1 service shop/web ",
                "10.244.1.5 pod shop/web-1 n1",
                "10.244.1.6 pod shop/new n2",
                "192.0.2.80 service shop/web ",
                "198.51.100.7 service shop/web ",
                "fd00::1 service shop/web ",
            ]
        );
        assert!(is_same(&cluster.slices, &cluster.slices.clone()));
    }
}
