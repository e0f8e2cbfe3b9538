//! The Gateway API: classes, gateways with listeners of TCP and UDP, and routes. The conditions and their
//! reasons are those of version 1.6 of the specification.

use crate::config::Config;
use crate::desired::{Desired, StatusChange, VirtualService, problem_words};
use crate::endpoints::{Group, Slices, number};
use crate::objects::{
    BackendRef, Cluster, GATEWAY_GROUP, L4Route, ObjectKey, ParentRef, Protocol, age, key, reference,
};
use crate::pools::{AddressRequest, Given, IpVersion, Shortage, Want};
use gateway_api::gateways::{
    Gateway, GatewayListeners, GatewayListenersAllowedRoutesNamespaces,
    GatewayListenersAllowedRoutesNamespacesFrom as From,
    GatewayListenersAllowedRoutesNamespacesSelector as Selector,
};
use k8s_openapi::api::core::v1::ServicePort;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use weir_control::names;

/// How the API names the version of these objects.
const VERSION: &str = "gateway.networking.k8s.io/v1";

/// What this controller supports, in the words of the conformance suite and in its order.
const FEATURES: [&str; 5] = ["Gateway", "GatewayStaticAddresses", "ReferenceGrant", "TCPRoute", "UDPRoute"];

/// The conditions of an object.
struct ConditionSet<'a> {
    /// Those that the object has.
    before: &'a [Condition],
    generation: Option<i64>,
    now: Timestamp,
    all: Vec<Condition>,
}

impl<'a> ConditionSet<'a> {
    fn new(before: &'a [Condition], meta: &ObjectMeta, now: Timestamp) -> ConditionSet<'a> {
        ConditionSet { before, generation: meta.generation, now, all: Vec::new() }
    }

    /// Adds a condition. Its transition time changes only when its status does.
    fn set(&mut self, kind: &str, is_true: bool, reason: &str, message: impl Into<String>) {
        let status = if is_true { "True" } else { "False" };
        let before = self.before.iter().find(|one| one.type_ == kind && one.status == status);
        self.all.push(Condition {
            type_: kind.into(),
            status: status.into(),
            reason: reason.into(),
            message: message.into(),
            observed_generation: self.generation,
            last_transition_time: before.map_or(Time(self.now), |one| one.last_transition_time.clone()),
        });
    }
}

impl ConditionSet<'_> {
    /// Adds those of a route.
    fn of_route(&mut self, is_nowhere: bool, is_refused: bool, problem: Option<&(&'static str, String)>) {
        if is_nowhere {
            let why = "the gateway has no listener with this name or port";
            self.set("Accepted", false, "NoMatchingParent", why);
        } else if is_refused {
            let why = "no listener allows routes of this kind from this namespace";
            self.set("Accepted", false, "NotAllowedByListeners", why);
        } else {
            self.set("Accepted", true, "Accepted", "the route is attached");
        }
        match problem {
            Some((reason, why)) => self.set("ResolvedRefs", false, reason, why.clone()),
            None => self.set("ResolvedRefs", true, "ResolvedRefs", "all references are resolved"),
        }
    }
}

/// Compares as JSON, in which absent and empty fields look alike.
fn json_of(value: &impl Serialize) -> Value {
    // These types have only keys that are strings.
    serde_json::to_value(value).unwrap_or_default()
}

/// The gateways that this controller implements.
pub(crate) struct Gateways<'a> {
    all: Vec<(&'a Gateway, GatewayWant)>,
}

/// What a gateway asks for.
pub(crate) struct GatewayWant {
    pub want: Want,
    /// Why the gateway cannot be accepted: a reason and a message.
    refusal: Option<(&'static str, String)>,
}

impl<'a> Gateways<'a> {
    /// Finds the gateways of this controller's classes, and sets the status of the classes.
    pub(crate) fn of(config: &Config, snapshot: &'a Cluster, desired: &mut Desired) -> Gateways<'a> {
        let mut classes = BTreeSet::new();
        for class in snapshot.classes.values().filter(|one| one.spec.controller_name == config.controller) {
            let name = class.metadata.name.clone().unwrap_or_default();
            let before = class.status.as_ref().and_then(|status| status.conditions.as_deref());
            let mut conditions = ConditionSet::new(before.unwrap_or_default(), &class.metadata, snapshot.now);
            if class.spec.parameters_ref.is_some() {
                let why = "`parametersRef` is not supported";
                conditions.set("Accepted", false, "InvalidParameters", why);
            } else {
                conditions.set("Accepted", true, "Accepted", "weir-kube implements this class");
                classes.insert(name);
            }
            let features = FEATURES.map(|name| json!({ "name": name }));
            let status = json!({ "conditions": conditions.all, "supportedFeatures": features });
            let current = json_of(&class.status);
            change(desired, "GatewayClass", &class.metadata, &current, status);
        }
        let ours =
            snapshot.gateways.values().filter(|gateway| classes.contains(&gateway.spec.gateway_class_name));
        Gateways { all: ours.map(|gateway| (gateway.as_ref(), wanted(config, gateway))).collect() }
    }

    /// Returns the gateways, in the order of [`Gateways::wants`].
    pub(crate) fn accepted(&self) -> impl Iterator<Item = &'a Gateway> {
        self.all.iter().map(|(gateway, _)| *gateway)
    }

    pub(crate) fn wants(&self) -> impl Iterator<Item = &GatewayWant> {
        self.all.iter().map(|(_, wanted)| wanted)
    }

    /// Adds the services of listeners, and the status of gateways and routes.
    pub(crate) fn serve(
        &self,
        config: &Config,
        snapshot: &Cluster,
        slices: &Slices<'_>,
        given: &[Given],
        desired: &mut Desired,
    ) {
        let all = self.all.iter().zip(given);
        let mut parents: BTreeMap<ObjectKey, Parent<'_>> = BTreeMap::new();
        for ((gateway, wanted), given) in all {
            let listeners = listeners(gateway);
            parents.insert(key(&gateway.metadata), Parent { gateway, wanted, given, listeners });
        }
        // The references of a route are resolved once, whatever its parents are.
        for protocol in Protocol::ALL {
            let mut routes: Vec<&L4Route> = snapshot.routes(protocol).values().map(AsRef::as_ref).collect();
            routes.sort_by_cached_key(|route| age(&route.metadata));
            for route in routes {
                attach(config, snapshot, slices, (route, protocol), &mut parents, desired);
            }
        }
        for parent in parents.values() {
            parent.serve(desired);
            parent.status(snapshot, desired);
        }
    }
}

/// Adds a status change, if the new status differs from the current one.
fn change(desired: &mut Desired, kind: &str, meta: &ObjectMeta, current: &Value, status: Value) {
    let same = |key: &String, value: &Value| current.get(key).unwrap_or(&Value::Null) == value;
    if !status.as_object().is_some_and(|map| map.iter().all(|(key, value)| same(key, value))) {
        let object = reference(VERSION, kind, meta);
        desired.statuses.push(StatusChange { object, version: meta.resource_version.clone(), status });
    }
}

/// Reads what addresses a gateway asks for.
fn wanted(config: &Config, gateway: &Gateway) -> GatewayWant {
    let status = gateway.status.as_ref().and_then(|status| status.addresses.as_ref());
    let current = status.into_iter().flatten().filter_map(|one| one.value.parse().ok()).collect();
    let mut refusal = None;
    let mut asked = Vec::new();
    for address in gateway.spec.addresses.iter().flatten() {
        match address.r#type.as_deref() {
            Some("IPAddress") | None => {}
            Some(other) => {
                let why = format!("addresses of the type `{other}` are not supported, only IPAddress");
                refusal = refusal.or(Some(("UnsupportedAddress", why)));
                continue;
            }
        }
        match address.value.as_deref().filter(|text| !text.is_empty()).map(str::parse::<IpAddr>) {
            Some(Ok(address)) => asked.push(address),
            Some(Err(_)) => {
                let why = format!("`{}` is not an IP address", address.value.as_deref().unwrap_or_default());
                refusal = refusal.or(Some(("UnsupportedAddress", why)));
            }
            None => {}
        }
    }
    if gateway.spec.infrastructure.as_ref().is_some_and(|one| one.parameters_ref.is_some()) {
        refusal = refusal.or(Some(("InvalidParameters", "`parametersRef` is not supported".into())));
    }
    let asked = if refusal.is_some() {
        AddressRequest::Wrong
    } else if asked.is_empty() {
        // A gateway names no IP version: it gets the one that pools have.
        let has_only_six = config.pools.offers(IpVersion::Six) && !config.pools.offers(IpVersion::Four);
        AddressRequest::Families(vec![if has_only_six { IpVersion::Six } else { IpVersion::Four }], None)
    } else {
        AddressRequest::Addresses(asked)
    };
    GatewayWant { want: Want { current, asked }, refusal }
}

/// A listener, and what is attached to it.
struct Listener<'a> {
    spec: &'a GatewayListeners,
    /// The protocol, if it is supported.
    protocol: Option<Protocol>,
    /// Whether routes of its protocol are allowed.
    takes_kind: bool,
    /// The kind of routes that is not supported, if one is named.
    wrong_kind: Option<String>,
    /// The name of another listener that has the same port and a conflicting protocol.
    conflict: Option<&'a str>,
    attached: usize,
    /// The endpoints of the oldest attached route, which gets all of the listener's packets.
    winner: Option<Targets>,
}

/// Reads the listeners of a gateway.
fn listeners(gateway: &Gateway) -> Vec<Listener<'_>> {
    // Everything but UDP arrives over TCP: a port has one protocol of that kind.
    let carrier = |one: &GatewayListeners| (one.port, one.protocol == "UDP");
    let all = &gateway.spec.listeners;
    let read = |(at, spec): (usize, &'_ GatewayListeners)| {
        let protocol = match spec.protocol.as_str() {
            "TCP" => Some(Protocol::Tcp),
            "UDP" => Some(Protocol::Udp),
            // HTTP, HTTPS, TLS, and names of other domains.
            _ => None,
        };
        let kinds = spec.allowed_routes.as_ref().and_then(|routes| routes.kinds.as_ref());
        let group_is_ours = |group: Option<&String>| group.is_none_or(|group| group == GATEWAY_GROUP);
        let own = protocol.map(Protocol::route_kind);
        let is_own = |kind: &str, group: Option<&String>| Some(kind) == own && group_is_ours(group);
        let named = kinds.map(Vec::as_slice).unwrap_or_default();
        let takes_kind = named.is_empty() || named.iter().any(|one| is_own(&one.kind, one.group.as_ref()));
        let wrong = named.iter().find(|one| !is_own(&one.kind, one.group.as_ref()));
        let mut others = all.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, one)| one);
        let conflict = others.find(|other| carrier(other) == carrier(spec)).map(|one| one.name.clone());
        (protocol, takes_kind && protocol.is_some(), wrong.map(|one| one.kind.clone()), conflict)
    };
    let of_name = |name: String| all.iter().find(|one| one.name == name).map(|one| one.name.as_str());
    let make = |(at, spec)| {
        let (protocol, takes_kind, wrong_kind, conflict) = read((at, spec));
        let conflict = conflict.and_then(of_name);
        Listener { spec, protocol, takes_kind, wrong_kind, conflict, attached: 0, winner: None }
    };
    all.iter().enumerate().map(make).collect()
}

impl Listener<'_> {
    fn is_valid(&self) -> bool {
        self.protocol.is_some() && self.conflict.is_none() && number(self.spec.port).is_some()
    }

    /// Whether routes for a protocol from a namespace may be attached.
    fn takes(&self, protocol: Protocol, route: &str, gateway: &str, snapshot: &Cluster) -> bool {
        self.protocol == Some(protocol) && self.takes_kind && self.allows(route, gateway, snapshot)
    }

    /// Whether routes of a namespace may be attached.
    fn allows(&self, route: &str, gateway: &str, snapshot: &Cluster) -> bool {
        let namespaces = self.spec.allowed_routes.as_ref().and_then(|routes| routes.namespaces.as_ref());
        let selected = |all: &GatewayListenersAllowedRoutesNamespaces| {
            let labels = snapshot.namespaces.get(&(String::new(), route.to_string()));
            let labels = labels.map(|one| one.metadata.labels.clone().unwrap_or_default());
            all.selector.as_ref().zip(labels).is_some_and(|(selector, labels)| selects(selector, &labels))
        };
        match namespaces.map(|all| (all, all.from.as_ref())) {
            Some((_, Some(From::All))) => true,
            Some((all, Some(From::Selector))) => selected(all),
            Some((_, Some(From::Same) | None)) | None => route == gateway,
        }
    }
}

/// Whether a selector selects labels. An operator that the API does not have selects nothing.
fn selects(selector: &Selector, labels: &BTreeMap<String, String>) -> bool {
    let equal = selector.match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    equal
        && selector.match_expressions.iter().flatten().all(|one| {
            let value = labels.get(&one.key);
            let is_in = value.is_some_and(|value| one.values.iter().flatten().any(|one| one == value));
            match one.operator.as_str() {
                "In" => is_in,
                "NotIn" => !is_in,
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                _ => false,
            }
        })
}

/// A gateway while routes are attached to it.
struct Parent<'a> {
    gateway: &'a Gateway,
    wanted: &'a GatewayWant,
    given: &'a Given,
    listeners: Vec<Listener<'a>>,
}

/// Where the packets of a route go, by IP version.
type Targets = [Vec<Group>; 2];

/// Attaches a route to its parents, and sets its status.
fn attach(
    config: &Config,
    snapshot: &Cluster,
    slices: &Slices<'_>,
    (route, protocol): (&L4Route, Protocol),
    parents: &mut BTreeMap<ObjectKey, Parent<'_>>,
    desired: &mut Desired,
) {
    let (namespace, _) = key(&route.metadata);
    let before = route.status.as_ref().map(|status| status.parents.as_slice()).unwrap_or_default();
    let is_ours = |entry: &Value| entry["controllerName"] == config.controller.as_str();
    let mut entries: Vec<Value> = before.iter().filter(|entry| !is_ours(entry)).cloned().collect();
    let mut resolved = None;
    let mut reached: BTreeSet<(ObjectKey, usize)> = BTreeSet::new();
    for reference in &route.spec.parent_refs {
        let is_gateway = reference.group.as_deref().is_none_or(|group| group == GATEWAY_GROUP)
            && reference.kind.as_deref().is_none_or(|kind| kind == "Gateway");
        let at = reference.namespace.clone().unwrap_or_else(|| namespace.clone());
        let at = (at, reference.name.clone());
        // Those of other controllers are none of our business.
        let Some(parent) = parents.get_mut(&at).filter(|_| is_gateway) else { continue };
        let (targets, problem) =
            resolved.get_or_insert_with(|| resolve(snapshot, slices, (route, protocol), &namespace));
        let named: Vec<usize> = (0..parent.listeners.len())
            .filter(|one| matches(reference, parent.listeners[*one].spec))
            .collect();
        let allowed = |one: &usize| parent.listeners[*one].takes(protocol, &namespace, &at.0, snapshot);
        let allowed: Vec<usize> = named.iter().copied().filter(allowed).collect();
        let old = before.iter().find(|entry| is_ours(entry) && entry["parentRef"] == json_of(reference));
        let old: Vec<Condition> = old
            .and_then(|entry| serde_json::from_value(entry["conditions"].clone()).ok())
            .unwrap_or_default();
        let mut conditions = ConditionSet::new(&old, &route.metadata, snapshot.now);
        conditions.of_route(named.is_empty(), allowed.is_empty(), problem.as_ref());
        for one in allowed {
            let listener = &mut parent.listeners[one];
            if reached.insert((at.clone(), one)) {
                listener.attached += 1;
            }
            // Routes come by age, and the oldest one wins.
            listener.winner.get_or_insert_with(|| targets.clone());
        }
        entries.push(json!({
            "parentRef": reference,
            "controllerName": config.controller,
            "conditions": conditions.all,
        }));
    }
    if entries != before {
        let status = json!({ "parents": entries });
        change(desired, protocol.route_kind(), &route.metadata, &Value::Null, status);
    }
}

fn matches(reference: &ParentRef, listener: &GatewayListeners) -> bool {
    reference.section_name.as_ref().is_none_or(|name| *name == listener.name)
        && reference.port.is_none_or(|port| port == listener.port)
}

/// Finds the endpoints of a route's references, and the first reason why one of them is not resolved.
fn resolve(
    snapshot: &Cluster,
    slices: &Slices<'_>,
    (route, protocol): (&L4Route, Protocol),
    namespace: &str,
) -> (Targets, Option<(&'static str, String)>) {
    let mut targets = Targets::default();
    let mut problem = None;
    // The API accepts one rule; packets would match the first one.
    for reference in route.spec.rules.first().iter().flat_map(|rule| &rule.backend_refs) {
        match service_port(snapshot, reference, protocol, namespace) {
            Ok((at, port)) => {
                let weight = u32::try_from(reference.weight.unwrap_or(1)).unwrap_or_default();
                for (all, family) in targets.iter_mut().zip([IpVersion::Four, IpVersion::Six]) {
                    let endpoints = slices.endpoints((&at.0, &at.1), port, protocol, family);
                    all.push(Group { weight, endpoints });
                }
            }
            Err(why) => problem = problem.or(Some(why)),
        }
    }
    (targets, problem)
}

/// Finds the port of a service that a reference names.
fn service_port<'a>(
    snapshot: &'a Cluster,
    reference: &BackendRef,
    protocol: Protocol,
    namespace: &str,
) -> Result<(ObjectKey, &'a ServicePort), (&'static str, String)> {
    let name = &reference.name;
    let group = reference.group.as_deref().unwrap_or_default();
    let kind = reference.kind.as_deref().unwrap_or("Service");
    if !group.is_empty() || kind != "Service" {
        return Err(("InvalidKind", format!("`{name}` is a {kind}, not a Service")));
    }
    let at = (reference.namespace.clone().unwrap_or_else(|| namespace.into()), name.clone());
    if at.0 != namespace && !is_granted(snapshot, protocol.route_kind(), namespace, &at) {
        let why = format!("no ReferenceGrant in `{}` permits the reference to `{name}`", at.0);
        return Err(("RefNotPermitted", why));
    }
    let missing = |what: String| ("BackendNotFound", what);
    let service = snapshot.services.get(&at).and_then(|service| service.spec.as_ref());
    let service = service.filter(|spec| spec.type_.as_deref() != Some("ExternalName"));
    let service =
        service.ok_or_else(|| missing(format!("there is no service `{}/{name}` with endpoints", at.0)))?;
    let wanted = reference.port.ok_or_else(|| missing(format!("`port` of `{name}` is missing")))?;
    let ports: Vec<&ServicePort> =
        service.ports.iter().flatten().filter(|port| port.port == wanted).collect();
    let port = ports.iter().find(|port| Protocol::of(port.protocol.as_deref()) == Some(protocol));
    match port {
        Some(port) => Ok((at, port)),
        None if ports.is_empty() => Err(missing(format!("the service `{name}` has no port {wanted}"))),
        None => {
            let why = format!("port {wanted} of the service `{name}` is not {}", protocol.word());
            Err(("UnsupportedProtocol", why))
        }
    }
}

/// Whether a ReferenceGrant permits routes of a namespace to refer to a service.
fn is_granted(snapshot: &Cluster, kind: &str, namespace: &str, (to, name): &ObjectKey) -> bool {
    let grants = snapshot.grants.iter().filter(|((at, _), _)| at == to).map(|(_, grant)| &grant.spec);
    grants.into_iter().any(|grant| {
        let from = grant
            .from
            .iter()
            .any(|from| from.group == GATEWAY_GROUP && from.kind == kind && from.namespace == namespace);
        let to = grant.to.iter().any(|to| {
            to.group.is_empty() && to.kind == "Service" && to.name.as_ref().is_none_or(|one| one == name)
        });
        from && to
    })
}

impl Parent<'_> {
    fn serve(&self, desired: &mut Desired) {
        let (namespace, name) = key(&self.gateway.metadata);
        let object = reference(VERSION, "Gateway", &self.gateway.metadata);
        if let Some(problem) = &self.given.problem {
            let (reason, note) = problem_words(problem);
            desired.notice(&object, true, reason, note);
        }
        for listener in self.listeners.iter().filter(|listener| listener.is_valid()) {
            let (Some(protocol), Some(port), Some(targets)) =
                (listener.protocol, number(listener.spec.port), &listener.winner)
            else {
                continue;
            };
            // Service names have no dots, so no service port can have this name.
            let name = names::service_port(&format!("gateway.{namespace}"), &name, port, protocol.word());
            desired.serve(&name, &self.given.addresses, |family| VirtualService {
                origin: object.clone(),
                vips: Vec::new(),
                protocol,
                port,
                affinity_s: None,
                is_local: false,
                groups: targets[usize::from(family == IpVersion::Six)].clone(),
            });
        }
    }

    /// Adds the conditions of the gateway, and returns whether nodes are sent its services.
    fn conditions(&self, conditions: &mut ConditionSet<'_>) -> bool {
        let invalid: Vec<&str> = self
            .listeners
            .iter()
            .filter(|one| !one.is_valid() || one.wrong_kind.is_some())
            .map(|one| one.spec.name.as_str())
            .collect();
        let has_valid = self.listeners.iter().any(Listener::is_valid);
        let accepted = self.wanted.refusal.is_none() && has_valid;
        if let Some((reason, why)) = &self.wanted.refusal {
            conditions.set("Accepted", false, reason, why.clone());
        } else if invalid.is_empty() {
            conditions.set("Accepted", true, "Accepted", "the gateway is accepted");
        } else {
            let why = format!("these listeners are not valid: {}", invalid.join(", "));
            conditions.set("Accepted", has_valid, "ListenersNotValid", why);
        }
        let is_programmed = accepted && self.given.problem.is_none();
        if !accepted {
            conditions.set("Programmed", false, "Invalid", "the gateway is not accepted");
        } else if let Some(problem) = &self.given.problem {
            let reason = match problem {
                Shortage::Exhausted(_) => "AddressNotAssigned",
                Shortage::Outside(_) | Shortage::Taken(_) => "AddressNotUsable",
            };
            conditions.set("Programmed", false, reason, problem_words(problem).1);
        } else {
            conditions.set("Programmed", true, "Programmed", "nodes are sent its services");
        }
        is_programmed
    }

    fn status(&self, snapshot: &Cluster, desired: &mut Desired) {
        let meta = &self.gateway.metadata;
        let status = self.gateway.status.as_ref();
        let before = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        let mut conditions = ConditionSet::new(before, meta, snapshot.now);
        let is_programmed = self.conditions(&mut conditions);
        let old = status.and_then(|status| status.listeners.as_deref()).unwrap_or_default();
        let listeners: Vec<Value> = self
            .listeners
            .iter()
            .map(|listener| {
                let old = old.iter().find(|one| one.name == listener.spec.name);
                let old = old.map(|one| one.conditions.as_slice()).unwrap_or_default();
                let mut conditions = ConditionSet::new(old, meta, snapshot.now);
                listener.conditions(&mut conditions, is_programmed);
                let kinds: Vec<Value> = listener
                    .protocol
                    .filter(|_| listener.takes_kind)
                    .into_iter()
                    .map(|protocol| json!({ "group": GATEWAY_GROUP, "kind": protocol.route_kind() }))
                    .collect();
                json!({
                    "name": listener.spec.name,
                    "supportedKinds": kinds,
                    "attachedRoutes": listener.attached,
                    "conditions": conditions.all,
                })
            })
            .collect();
        let addresses: Vec<Value> = self
            .given
            .addresses
            .iter()
            .map(|address| json!({ "type": "IPAddress", "value": address.to_string() }))
            .collect();
        let new = json!({ "addresses": addresses, "conditions": conditions.all, "listeners": listeners });
        let mut current = json_of(&self.gateway.status);
        normalize(&mut current);
        change(desired, "Gateway", meta, &current, new);
    }
}

/// Gives the lists of a status that the API may leave out if they are empty.
fn normalize(status: &mut Value) {
    let Value::Object(map) = status else { return };
    map.entry("addresses").or_insert_with(|| json!([]));
    for listener in map.get_mut("listeners").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Value::Object(listener) = listener {
            listener.entry("supportedKinds").or_insert_with(|| json!([]));
        }
    }
}

impl Listener<'_> {
    fn conditions(&self, conditions: &mut ConditionSet<'_>, is_programmed: bool) {
        let port = self.spec.port;
        if self.protocol.is_none() {
            let why = format!("`{}` is not supported, only TCP and UDP", self.spec.protocol);
            conditions.set("Accepted", false, "UnsupportedProtocol", why);
        } else if let Some(other) = self.conflict {
            let why = format!("the listener `{other}` has the same port");
            conditions.set("Accepted", false, "ProtocolConflict", why);
        } else if self.is_valid() {
            conditions.set("Accepted", true, "Accepted", "the listener is accepted");
        } else {
            conditions.set("Accepted", false, "PortUnavailable", format!("{port} is not a port"));
        }
        match self.conflict {
            Some(other) => {
                let why = format!("the listener `{other}` has the same port");
                conditions.set("Conflicted", true, "ProtocolConflict", why);
            }
            None => conditions.set("Conflicted", false, "NoConflicts", "no listener has the same port"),
        }
        match &self.wrong_kind {
            Some(kind) => {
                let why = format!("routes of the kind `{kind}` cannot be attached to {}", self.spec.protocol);
                conditions.set("ResolvedRefs", false, "InvalidRouteKinds", why);
            }
            None => conditions.set("ResolvedRefs", true, "ResolvedRefs", "all references are resolved"),
        }
        if is_programmed && self.is_valid() && self.wrong_kind.is_none() {
            conditions.set("Programmed", true, "Programmed", "nodes are sent its services");
        } else {
            conditions.set("Programmed", false, "Invalid", "see the other conditions");
        }
    }
}
