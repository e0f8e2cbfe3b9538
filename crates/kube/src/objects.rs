//! The objects of a cluster from which services are derived.

use gateway_api::gatewayclasses::GatewayClass;
use gateway_api::gateways::Gateway;
use gateway_api::referencegrants::ReferenceGrant;
use k8s_openapi::api::core::v1::{Namespace, ObjectReference, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::core::{ApiResource, GroupVersionKind, Object};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

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

/// Returns the sort key that decides between two objects: the older one comes first, then the one whose
/// namespace and name come first.
#[must_use]
pub fn age(meta: &ObjectMeta) -> (Timestamp, ObjectKey) {
    // An object without a time, which no API server sends, comes last.
    let created = meta.creation_timestamp.as_ref().map_or(Timestamp::MAX, |time| time.0);
    (created, key(meta))
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
    /// The name.
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
    /// The name.
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
    /// The entries.
    #[serde(default)]
    pub parents: Vec<Value>,
}

/// A protocol that nodes balance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    /// Both.
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

/// The objects of a cluster at one moment.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    /// The time, for conditions that change.
    pub now: Timestamp,
    /// Services.
    pub services: Objects<Service>,
    /// Their endpoints.
    pub slices: Objects<EndpointSlice>,
    /// Namespaces, whose labels listeners select.
    pub namespaces: Objects<Namespace>,
    /// Gateway classes.
    pub classes: Objects<GatewayClass>,
    /// Gateways.
    pub gateways: Objects<Gateway>,
    /// TCPRoutes.
    pub tcp_routes: Objects<L4Route>,
    /// UDPRoutes.
    pub udp_routes: Objects<L4Route>,
    /// Permissions for references to other namespaces.
    pub grants: Objects<ReferenceGrant>,
}

impl Cluster {
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
