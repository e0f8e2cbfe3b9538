//! The objects of a cluster from which services are derived. Services and EndpointSlices, of which there may
//! be many, are kept with only the fields that are used here.

use crate::config::DOMAIN;
use crate::pools::IpVersion;
use gateway_api::gatewayclasses::GatewayClass;
use gateway_api::gateways::Gateway;
use gateway_api::referencegrants::ReferenceGrant;
use k8s_openapi::api::core::v1::{Namespace, ObjectReference, Service, ServiceSpec};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::core::{ApiResource, GroupVersionKind, Object};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use weir_control::kubernetes::{EndpointState, SERVICE_NAME, affinity_s};

/// The group of the Gateway API.
pub const GATEWAY_GROUP: &str = "gateway.networking.k8s.io";

/// Namespace (empty for objects without one) and name.
pub type ObjectKey = (String, String);

/// All objects of a kind.
pub type Objects<K> = BTreeMap<ObjectKey, Arc<K>>;

/// Returns the namespace and the name of an object.
#[must_use]
pub fn key(meta: &ObjectMeta) -> ObjectKey {
    (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}

/// The sort key that decides between two objects: the older one comes first, then the one whose namespace and
/// name come first.
pub type Age = (Timestamp, ObjectKey);

/// Returns the age of an object.
#[must_use]
pub fn age(meta: &ObjectMeta) -> Age {
    (created(meta), key(meta))
}

/// An object without a time, which no API server sends, comes last.
fn created(meta: &ObjectMeta) -> Timestamp {
    meta.creation_timestamp.as_ref().map_or(Timestamp::MAX, |time| time.0)
}

/// The parts of a Service (core/v1) that weir-kube reads.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceObject {
    /// Its `metadata.uid`: another Service that gets the same name later has another one.
    pub uid: Option<Box<str>>,
    /// Its version, which changes with every change.
    pub version: Option<Box<str>>,
    /// When it was created.
    pub created: Timestamp,
    /// Whether it is a name of something elsewhere, without endpoints.
    pub is_external_name: bool,
    /// Its ports, in the order of `spec.ports`.
    pub ports: Vec<PortObject>,
    /// All its addresses: those of the cluster, external ones, and those that its status has.
    pub addresses: Vec<IpAddr>,
    /// The fields that matter if it has a load balancer.
    pub balanced: Option<Box<BalancedObject>>,
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq)]
pub struct PortObject {
    /// Its name; empty if it has none.
    pub name: Box<str>,
    /// The port to which clients send, as the API server sent it: not yet checked to be 1 to 65535.
    pub port: i32,
    /// Its protocol, or the name of one that nodes do not balance.
    pub protocol: Result<Protocol, Box<str>>,
}

/// A Service of type LoadBalancer with a class.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BalancedObject {
    /// Its `spec.loadBalancerClass`.
    pub class: Box<str>,
    /// The annotation that asks for addresses.
    pub addresses: Option<Box<str>>,
    /// The annotation that asks for a pool.
    pub pool: Option<Box<str>>,
    /// The field that asks for an address.
    pub load_balancer_ip: Option<Box<str>>,
    /// Its IP versions.
    pub families: Vec<IpVersion>,
    /// Whether one IP version is enough, although it asks for both.
    pub one_is_enough: bool,
    /// How long clients keep their back end, in seconds, if they do.
    pub affinity_s: Option<u64>,
    /// Whether each node of the cluster uses only the endpoints on it.
    pub is_local: bool,
    /// The prefixes of the clients that are served; if empty, all clients are served.
    pub source_ranges: Vec<Box<str>>,
    /// The addresses that its status has.
    pub ingress: Vec<IpAddr>,
}

fn boxed(text: &Option<String>) -> Option<Box<str>> {
    text.as_deref().map(Into::into)
}

fn family(name: &str) -> Option<IpVersion> {
    match name {
        "IPv4" => Some(IpVersion::Four),
        "IPv6" => Some(IpVersion::Six),
        // FQDN, of EndpointSlices.
        _ => None,
    }
}

impl From<Service> for ServiceObject {
    fn from(service: Service) -> ServiceObject {
        let meta = &service.metadata;
        let spec = service.spec.as_ref();
        let port = |one: &k8s_openapi::api::core::v1::ServicePort| PortObject {
            name: one.name.as_deref().unwrap_or_default().into(),
            port: one.port,
            protocol: Protocol::of(one.protocol.as_deref())
                .ok_or_else(|| one.protocol.as_deref().unwrap_or_default().into()),
        };
        let is_balanced = |spec: &&ServiceSpec| spec.type_.as_deref() == Some("LoadBalancer");
        let balanced = spec.filter(is_balanced).and_then(|spec| {
            let class = spec.load_balancer_class.as_deref()?.into();
            let annotation = |name: &str| {
                let all = meta.annotations.as_ref()?;
                all.get(&format!("{DOMAIN}/{name}")).map(|text| text.as_str().into())
            };
            let timeout = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
            let timeout = timeout.and_then(|one| u64::try_from(one.timeout_seconds?).ok());
            let ingress = service.status.iter().flat_map(|status| &status.load_balancer);
            let ingress = ingress.flat_map(|one| one.ingress.iter().flatten());
            Some(Box::new(BalancedObject {
                class,
                addresses: annotation("addresses"),
                pool: annotation("pool"),
                load_balancer_ip: boxed(&spec.load_balancer_ip),
                families: spec.ip_families.iter().flatten().filter_map(|name| family(name)).collect(),
                one_is_enough: spec.ip_family_policy.as_deref() == Some("PreferDualStack"),
                affinity_s: (spec.session_affinity.as_deref() == Some("ClientIP"))
                    .then(|| affinity_s(timeout)),
                is_local: spec.external_traffic_policy.as_deref() == Some("Local"),
                source_ranges: spec
                    .load_balancer_source_ranges
                    .iter()
                    .flatten()
                    .map(|text| text.as_str().into())
                    .collect(),
                ingress: ingress.filter_map(|one| one.ip.as_deref()?.parse().ok()).collect(),
            }))
        });
        ServiceObject {
            uid: boxed(&meta.uid),
            version: boxed(&meta.resource_version),
            created: created(meta),
            is_external_name: spec.is_some_and(|spec| spec.type_.as_deref() == Some("ExternalName")),
            ports: spec.iter().flat_map(|spec| spec.ports.iter().flatten()).map(port).collect(),
            addresses: addresses(&service),
            balanced,
        }
    }
}

/// Returns all addresses of a Service, each once. One without an address has `None` in its place.
fn addresses(service: &Service) -> Vec<IpAddr> {
    let own = service.spec.iter().flat_map(|spec| {
        let lists = [&spec.cluster_ips, &spec.external_ips].into_iter().flatten().flatten();
        lists.chain(&spec.cluster_ip).map(String::as_str)
    });
    let ingress = service.status.iter().flat_map(|status| &status.load_balancer);
    let ingress = ingress.flat_map(|one| one.ingress.iter().flatten()).filter_map(|one| one.ip.as_deref());
    let mut all: Vec<IpAddr> = own.chain(ingress).filter_map(|text| text.parse().ok()).collect();
    all.sort_unstable();
    all.dedup();
    all
}

impl ServiceObject {
    /// Returns a reference to it, for events.
    #[must_use]
    pub fn reference(&self, (namespace, name): &ObjectKey) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Service".into()),
            namespace: Some(namespace.clone()),
            name: Some(name.clone()),
            uid: self.uid.as_deref().map(Into::into),
            ..ObjectReference::default()
        }
    }
}

/// The parts of an EndpointSlice (discovery.k8s.io/v1) that weir-kube reads.
#[derive(Clone, Debug, PartialEq)]
pub struct SliceObject {
    /// Its version, which changes with every change.
    pub version: Option<Box<str>>,
    /// The name of its service.
    pub service: Option<Box<str>>,
    /// The version of its addresses.
    pub family: Option<IpVersion>,
    /// The ports of its endpoints.
    pub ports: Vec<SlicePort>,
    /// Its endpoints, one for each address.
    pub endpoints: Vec<SliceEndpoint>,
}

/// A port of an EndpointSlice.
#[derive(Clone, Debug, PartialEq)]
pub struct SlicePort {
    /// Its name; empty if it has none.
    pub name: Box<str>,
    /// Its protocol, if nodes balance it.
    pub protocol: Option<Protocol>,
    /// Its number; by default that of the service's port.
    pub port: Option<i32>,
}

/// An address of an endpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct SliceEndpoint {
    /// The address, of the version that the slice states.
    pub address: IpAddr,
    /// Its state, from the conditions `ready`, `serving` and `terminating`.
    pub state: EndpointState,
    /// The Kubernetes node that it is on.
    pub node: Option<Arc<str>>,
    /// The Kubernetes nodes that it should serve; if empty, all nodes.
    pub for_nodes: Vec<Arc<str>>,
    /// The zones that it should serve; if empty, all zones.
    pub zones: Vec<Arc<str>>,
    /// What has the address, if that is known.
    pub target: Option<EndpointTarget>,
}

/// What has the address of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointTarget {
    /// The pod with this name, in the namespace of the EndpointSlice.
    Pod(Arc<str>),
    /// The node with this name.
    Node(Arc<str>),
}

impl EndpointTarget {
    fn of(target: &ObjectReference) -> Option<EndpointTarget> {
        let name = target.name.as_deref()?.into();
        match target.kind.as_deref()? {
            "Pod" => Some(EndpointTarget::Pod(name)),
            "Node" => Some(EndpointTarget::Node(name)),
            // Other objects have no names that a flow could have.
            _ => None,
        }
    }
}

impl From<EndpointSlice> for SliceObject {
    fn from(slice: EndpointSlice) -> SliceObject {
        let family = family(&slice.address_type);
        let port = |one: &k8s_openapi::api::discovery::v1::EndpointPort| SlicePort {
            name: one.name.as_deref().unwrap_or_default().into(),
            protocol: Protocol::of(one.protocol.as_deref()),
            port: one.port,
        };
        let mut endpoints = Vec::new();
        for one in &slice.endpoints {
            let conditions = one.conditions.as_ref();
            let state = EndpointState::of(
                conditions.and_then(|all| all.ready),
                conditions.and_then(|all| all.serving),
                conditions.and_then(|all| all.terminating),
            );
            let zones = one.hints.iter().flat_map(|hints| hints.for_zones.iter().flatten());
            let zones: Vec<Arc<str>> = zones.map(|zone| zone.name.as_str().into()).collect();
            let for_nodes = one.hints.iter().flat_map(|hints| hints.for_nodes.iter().flatten());
            let for_nodes: Vec<Arc<str>> = for_nodes.map(|node| node.name.as_str().into()).collect();
            let node: Option<Arc<str>> = one.node_name.as_deref().map(Into::into);
            let target = one.target_ref.as_ref().and_then(EndpointTarget::of);
            let addresses = one.addresses.iter().filter_map(|text| text.parse::<IpAddr>().ok());
            for address in addresses.filter(|address| Some(IpVersion::of(*address)) == family) {
                let (node, target) = (node.clone(), target.clone());
                let (for_nodes, zones) = (for_nodes.clone(), zones.clone());
                endpoints.push(SliceEndpoint { address, state, node, for_nodes, zones, target });
            }
        }
        endpoints.shrink_to_fit();
        let labels = slice.metadata.labels.as_ref();
        SliceObject {
            version: boxed(&slice.metadata.resource_version),
            service: labels.and_then(|labels| labels.get(SERVICE_NAME)).map(|name| name.as_str().into()),
            family,
            ports: slice.ports.iter().flatten().map(port).collect(),
            endpoints,
        }
    }
}

/// A TCPRoute or UDPRoute of the API version v1.
pub type L4Route = Object<RouteSpec, RouteStatus>;

/// The specification of a route.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteSpec {
    /// What it is attached to.
    #[serde(default)]
    pub parent_refs: Vec<ParentRef>,
    /// The rules, of which there is one.
    #[serde(default)]
    pub rules: Vec<RouteRule>,
}

/// A reference to a gateway, or to a listener of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ParentRef {
    /// The group; that of the Gateway API by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The kind; `Gateway` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The namespace; that of the route by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The name of the parent, which is required.
    pub name: String,
    /// The name of a listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub section_name: Option<String>,
    /// The port of listeners.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
}

/// A rule, which all packets match.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RouteRule {
    /// Where packets go.
    pub backend_refs: Vec<BackendRef>,
}

/// A reference to a service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendRef {
    /// The group; the core group by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The kind; `Service` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The namespace; that of the route by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The name of the service, which is required.
    pub name: String,
    /// The port of the service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
    /// The share of new flows, 1 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<i32>,
}

/// The status of a route: an entry for each parent, of several controllers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RouteStatus {
    /// The entries, verbatim: those of other controllers must be sent back unchanged.
    #[serde(default)]
    pub parents: Vec<Value>,
}

/// A protocol that nodes balance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    /// Both protocols, in the order of their names.
    pub const ALL: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];

    /// Reads the name that Kubernetes has for it; TCP is the default.
    #[must_use]
    pub fn of(text: Option<&str>) -> Option<Protocol> {
        match text {
            Some("TCP") | None => Some(Protocol::Tcp),
            Some("UDP") => Some(Protocol::Udp),
            // SCTP, and what later versions add.
            Some(_) => None,
        }
    }

    /// Returns the name that weir has for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        }
    }

    /// Returns the kind of its routes.
    #[must_use]
    pub fn route_kind(self) -> &'static str {
        match self {
            Protocol::Tcp => "TCPRoute",
            Protocol::Udp => "UDPRoute",
        }
    }

    /// Returns how the API names its routes.
    #[must_use]
    pub fn route_resource(self) -> ApiResource {
        let kind = GroupVersionKind::gvk(GATEWAY_GROUP, "v1", self.route_kind());
        ApiResource::from_gvk_with_plural(&kind, &format!("{}routes", self.word()))
    }
}

/// An object that gets addresses. Of two with the same age, the Service comes first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// A Service.
    Service(ObjectKey),
    /// A Gateway.
    Gateway(ObjectKey),
}

/// The addresses in a status that was sent, until the object arrives with that status, so that they are not
/// assigned twice.
#[derive(Clone, Debug, PartialEq)]
pub struct SentAddresses {
    /// The version of the object that the status was sent for.
    pub version: Option<String>,
    /// The addresses in the status that was sent.
    pub addresses: Vec<IpAddr>,
}

/// Where clients reach a service of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontEnd {
    /// The addresses to which clients send (VIPs).
    pub vips: Vec<IpAddr>,
    /// The transport protocol of the service.
    pub protocol: Protocol,
    /// The port to which clients send.
    pub port: u16,
}

/// A cluster at one moment: its objects, and the controller's progress with them.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    /// The time, for conditions that change.
    pub now: Timestamp,
    /// All Services, of any type.
    pub services: Objects<ServiceObject>,
    /// All EndpointSlices, which hold the endpoints of Services.
    pub slices: Objects<SliceObject>,
    /// Namespaces, whose labels listeners select.
    pub namespaces: Objects<Namespace>,
    /// All gateway classes, including those of other controllers.
    pub classes: Objects<GatewayClass>,
    /// All Gateways, including those of classes that other controllers implement.
    pub gateways: Objects<Gateway>,
    /// All TCPRoutes.
    pub tcp_routes: Objects<L4Route>,
    /// All UDPRoutes.
    pub udp_routes: Objects<L4Route>,
    /// Permissions for references to other namespaces.
    pub grants: Objects<ReferenceGrant>,
    /// The addresses that were sent, and may not have arrived yet.
    pub sent: BTreeMap<Owner, SentAddresses>,
    /// The services that nodes have confirmed, by node and name. A node that has not confirmed anything yet
    /// is absent.
    pub confirmed: BTreeMap<String, BTreeMap<Arc<str>, FrontEnd>>,
}

/// What has changed in a [`Cluster`] since results were last computed from it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changed {
    /// The Services that were added, changed or removed, or whose addresses a node has confirmed.
    pub services: BTreeSet<ObjectKey>,
    /// EndpointSlices, with the names of the services that they were or are of.
    pub slices: BTreeMap<ObjectKey, BTreeSet<Box<str>>>,
    /// The namespaces that were added, changed or removed.
    pub namespaces: BTreeSet<String>,
    /// Whether gateway classes have changed.
    pub classes: bool,
    /// Gateways, including what nodes have confirmed of their services.
    pub gateways: BTreeSet<ObjectKey>,
    /// TCPRoutes and UDPRoutes.
    pub routes: BTreeSet<(Protocol, ObjectKey)>,
    /// The namespaces with ReferenceGrants that have changed.
    pub grants: BTreeSet<String>,
}

impl Changed {
    /// Notes an EndpointSlice, given its forms before and after a change.
    pub fn slice(&mut self, key: &ObjectKey, forms: [Option<&SliceObject>; 2]) {
        let names = forms.into_iter().flatten().filter_map(|slice| slice.service.clone());
        self.slices.entry(key.clone()).or_default().extend(names);
    }

    /// Notes an object that has addresses.
    pub fn owner(&mut self, owner: Owner) {
        match owner {
            Owner::Service(key) => self.services.insert(key),
            Owner::Gateway(key) => self.gateways.insert(key),
        };
    }

    /// Notes all objects of a cluster.
    #[must_use]
    pub fn all(cluster: &Cluster) -> Changed {
        let mut all = Changed { classes: true, ..Changed::default() };
        all.services.extend(cluster.services.keys().cloned());
        cluster.slices.iter().for_each(|(key, slice)| all.slice(key, [Some(slice), None]));
        all.gateways.extend(cluster.gateways.keys().cloned());
        for protocol in Protocol::ALL {
            all.routes.extend(cluster.routes(protocol).keys().map(|key| (protocol, key.clone())));
        }
        all
    }
}

impl Cluster {
    /// Returns the addresses that an object has, given those of its status: the ones that were last sent, if
    /// no later version of the object has arrived.
    #[must_use]
    pub fn held(&self, owner: &Owner, version: Option<&str>, status: &[IpAddr]) -> Vec<IpAddr> {
        let sent = self.sent.get(owner).filter(|sent| sent.version.as_deref() == version);
        sent.map_or_else(|| status.to_vec(), |sent| sent.addresses.clone())
    }

    /// Forgets the addresses that were sent for objects of which another version has arrived.
    pub fn forget_sent(&mut self, changed: &Changed) {
        let services = changed.services.iter().map(|key| Owner::Service(key.clone()));
        let gateways = changed.gateways.iter().map(|key| Owner::Gateway(key.clone()));
        for owner in services.chain(gateways) {
            let version = match &owner {
                Owner::Service(key) => self.services.get(key).and_then(|one| one.version.as_deref()),
                Owner::Gateway(key) => {
                    self.gateways.get(key).and_then(|one| one.metadata.resource_version.as_deref())
                }
            };
            if self.sent.get(&owner).is_some_and(|sent| sent.version.as_deref() != version) {
                self.sent.remove(&owner);
            }
        }
    }

    /// Returns the routes for a protocol.
    #[must_use]
    pub fn routes(&self, protocol: Protocol) -> &Objects<L4Route> {
        match protocol {
            Protocol::Tcp => &self.tcp_routes,
            Protocol::Udp => &self.udp_routes,
        }
    }
}

/// Returns a reference to an object, for events.
#[must_use]
pub fn reference(version: &str, kind: &str, meta: &ObjectMeta) -> ObjectReference {
    ObjectReference {
        api_version: Some(version.into()),
        kind: Some(kind.into()),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        ..ObjectReference::default()
    }
}
