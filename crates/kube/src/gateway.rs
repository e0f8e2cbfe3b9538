//! The Gateway API: gateways with listeners of TCP and UDP, and routes. The conditions and their reasons are
//! those of version 1.6 of the specification.

use crate::conditions::ConditionSet;
use crate::config::{Config, DOMAIN};
use crate::desired::{
    Desired, StatusChange, VirtualService, problem_words, report_target_ports, service_name,
};
use crate::endpoints::{Group, Slices, number};
use crate::objects::{
    BackendRef, Cluster, FrontEnd, GATEWAY_GROUP, L4Route, ObjectKey, Owner, ParentRef, PortObject, Protocol,
    key, reference,
};
use crate::pools::{AddressRequest, Given, IpVersion, Shortage, Want};
use gateway_api::gateways::{
    Gateway, GatewayListeners, GatewayListenersAllowedRoutesNamespaces,
    GatewayListenersAllowedRoutesNamespacesFrom as From,
    GatewayListenersAllowedRoutesNamespacesSelector as Selector,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use weir_control::names;

/// How the API names the version of these objects.
pub(crate) const VERSION: &str = "gateway.networking.k8s.io/v1";

/// Compares as JSON, in which absent and empty fields look alike.
pub(crate) fn json_of(value: &impl Serialize) -> Value {
    // These types have only keys that are strings.
    serde_json::to_value(value).unwrap_or_default()
}

/// What a gateway asks for.
pub(crate) struct GatewayWant {
    pub want: Want,
    /// Why the gateway cannot be accepted: a reason and a message.
    refusal: Option<(&'static str, String)>,
}

/// Adds a status change, if the new status differs from the current one, and returns whether it does.
pub(crate) fn change(
    desired: &mut Desired,
    kind: &str,
    meta: &ObjectMeta,
    current: &Value,
    status: Value,
) -> bool {
    let same = |key: &String, value: &Value| current.get(key).unwrap_or(&Value::Null) == value;
    let differs = !status.as_object().is_some_and(|map| map.iter().all(|(key, value)| same(key, value)));
    if differs {
        desired.statuses.push(StatusChange {
            object: reference(VERSION, kind, meta),
            version: meta.resource_version.clone(),
            status,
            finalizers: None,
            addresses: Vec::new(),
        });
    }
    differs
}

/// Returns the IP versions of the addresses that a gateway leaves to this controller, given their number:
/// from the versions that its other addresses do not have, first those that pools have, and IPv4 before IPv6.
fn open_families(
    config: &Config,
    count: usize,
    asked: &[IpAddr],
    pool: Option<&str>,
) -> Result<Vec<IpVersion>, String> {
    let is_free = |family: &IpVersion| !asked.iter().any(|address| IpVersion::of(*address) == *family);
    let mut families: Vec<IpVersion> =
        [IpVersion::Four, IpVersion::Six].into_iter().filter(is_free).collect();
    families.sort_by_key(|family| !config.pools.offer(*family, pool));
    if count > families.len() {
        return Err("an address without `value` must be the only one of its IP version".into());
    }
    families.truncate(count);
    Ok(families)
}

/// Reads what addresses a gateway asks for.
pub(crate) fn wanted(config: &Config, cluster: &Cluster, gateway: &Gateway) -> GatewayWant {
    let status = gateway.status.as_ref().and_then(|status| status.addresses.as_ref());
    let status: Vec<IpAddr> = status.into_iter().flatten().filter_map(|one| one.value.parse().ok()).collect();
    let version = gateway.metadata.resource_version.as_deref();
    let current = cluster.held(&Owner::Gateway(key(&gateway.metadata)), version, &status);
    let mut refusal = None;
    let (mut asked, mut open) = (Vec::new(), 0);
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
            None => open += 1,
        }
    }
    let infrastructure = gateway.spec.infrastructure.as_ref();
    if infrastructure.is_some_and(|one| one.parameters_ref.is_some()) {
        refusal = refusal.or(Some(("InvalidParameters", "`parametersRef` is not supported".into())));
    }
    let annotations = infrastructure.and_then(|one| one.annotations.as_ref());
    let pool = annotations.and_then(|all| all.get(&format!("{DOMAIN}/pool"))).map(String::as_str);
    if let Some(name) = pool.filter(|name| config.pool(name).is_none()) {
        let why = format!("annotation `pool` of `infrastructure`: there is no pool `{name}`");
        refusal = refusal.or(Some(("Invalid", why)));
    }
    let open = if asked.is_empty() { open.max(1) } else { open };
    let asked = match open_families(config, open, &asked, pool) {
        Err(why) => {
            refusal = refusal.or(Some(("UnsupportedAddress", why)));
            AddressRequest::Wrong
        }
        Ok(_) if refusal.is_some() => AddressRequest::Wrong,
        Ok(families) if families.is_empty() => AddressRequest::Addresses(asked),
        Ok(families) => AddressRequest::Both(asked, families, pool.map(ToString::to_string)),
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
    winner: Option<&'a Targets>,
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
    fn takes(&self, protocol: Protocol, route: &str, gateway: &str, cluster: &Cluster) -> bool {
        self.protocol == Some(protocol) && self.takes_kind && self.allows(route, gateway, cluster)
    }

    /// Whether routes of a namespace may be attached.
    fn allows(&self, route: &str, gateway: &str, cluster: &Cluster) -> bool {
        let namespaces = self.spec.allowed_routes.as_ref().and_then(|routes| routes.namespaces.as_ref());
        let selected = |all: &GatewayListenersAllowedRoutesNamespaces| {
            let labels = cluster.namespaces.get(&(String::new(), route.to_string()));
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

/// Where the packets of a route go, by IP version.
type Targets = [Vec<Group>; 2];

/// What a route is attached to.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Attached {
    /// The listeners, by gateway and position.
    pub listeners: BTreeSet<(ObjectKey, usize)>,
    /// Where packets go.
    targets: Targets,
    /// The services whose ports or endpoints matter for this.
    pub services: BTreeSet<ObjectKey>,
}

/// Attaches a route to the gateways of this controller, and returns its status.
pub(crate) fn attach(
    config: &Config,
    cluster: &Cluster,
    slices: &Slices,
    (route, protocol): (&L4Route, Protocol),
    is_ours: &dyn Fn(&ObjectKey) -> bool,
) -> (Attached, Desired) {
    let mut desired = Desired::default();
    let mut attached = Attached::default();
    let (namespace, _) = key(&route.metadata);
    let before = route.status.as_ref().map(|status| status.parents.as_slice()).unwrap_or_default();
    let has_set = |entry: &Value| entry["controllerName"] == config.controller.as_str();
    let mut own = Vec::new();
    // The references of a route are resolved once for all its parents.
    let mut resolved = None;
    for reference in &route.spec.parent_refs {
        let is_gateway = reference.group.as_deref().is_none_or(|group| group == GATEWAY_GROUP)
            && reference.kind.as_deref().is_none_or(|kind| kind == "Gateway");
        let at = parent(reference, &namespace);
        // Those of other controllers are none of our business.
        let gateway = cluster.gateways.get(&at).filter(|_| is_gateway && is_ours(&at));
        let Some(gateway) = gateway else { continue };
        let problem = resolved
            .get_or_insert_with(|| resolve(cluster, slices, (route, protocol), &namespace, &mut attached));
        let listeners = listeners(gateway);
        let named = listeners.iter().enumerate().filter(|(_, one)| matches(reference, one.spec));
        let named: Vec<(usize, &Listener<'_>)> = named.collect();
        let allowed = |(_, one): &&(usize, &Listener<'_>)| one.takes(protocol, &namespace, &at.0, cluster);
        let allowed: Vec<usize> = named.iter().filter(allowed).map(|(position, _)| *position).collect();
        let old = before.iter().find(|entry| has_set(entry) && entry["parentRef"] == json_of(reference));
        let old: Vec<Condition> = old
            .and_then(|entry| serde_json::from_value(entry["conditions"].clone()).ok())
            .unwrap_or_default();
        let mut conditions = ConditionSet::new(&old, &route.metadata, cluster.now);
        conditions.of_route(named.is_empty(), allowed.is_empty(), problem.as_ref());
        attached.listeners.extend(allowed.into_iter().map(|position| (at.clone(), position)));
        own.push(json!({
            "parentRef": reference,
            "controllerName": config.controller,
            "conditions": conditions.all,
        }));
    }
    let entries = in_place(before, own, has_set);
    if entries != before {
        let status = json!({ "parents": entries });
        change(&mut desired, protocol.route_kind(), &route.metadata, &Value::Null, status);
    }
    (attached, desired)
}

/// Replaces the entries that this controller has set, and appends new ones. Entries keep their places:
/// otherwise, two controllers that share a route would take turns at reordering its entries, without end.
fn in_place(before: &[Value], mut own: Vec<Value>, has_set: impl Fn(&Value) -> bool) -> Vec<Value> {
    let mut entries = Vec::new();
    for entry in before {
        if has_set(entry) {
            let new = own.iter().position(|new| new["parentRef"] == entry["parentRef"]);
            entries.extend(new.map(|at| own.remove(at)));
        } else {
            entries.push(entry.clone());
        }
    }
    entries.extend(own);
    entries
}

/// Returns the gateway that a reference of a route names.
pub(crate) fn parent(reference: &ParentRef, namespace: &str) -> ObjectKey {
    (reference.namespace.clone().unwrap_or_else(|| namespace.into()), reference.name.clone())
}

fn matches(reference: &ParentRef, listener: &GatewayListeners) -> bool {
    reference.section_name.as_ref().is_none_or(|name| *name == listener.name)
        && reference.port.is_none_or(|port| port == listener.port)
}

/// Finds the endpoints of a route's references, and returns the first reason why one of them is not resolved.
fn resolve(
    cluster: &Cluster,
    slices: &Slices,
    (route, protocol): (&L4Route, Protocol),
    namespace: &str,
    attached: &mut Attached,
) -> Option<(&'static str, String)> {
    let mut problem = None;
    // The API accepts one rule; packets would match the first one.
    for reference in route.spec.rules.first().iter().flat_map(|rule| &rule.backend_refs) {
        let at = (reference.namespace.clone().unwrap_or_else(|| namespace.into()), reference.name.clone());
        attached.services.insert(at.clone());
        let found = service_port(cluster, (reference, &at), protocol, namespace);
        let weight = u32::try_from(reference.weight.unwrap_or(1)).unwrap_or_default();
        for (all, family) in attached.targets.iter_mut().zip([IpVersion::Four, IpVersion::Six]) {
            // An unresolved reference is treated like a service without endpoints.
            let endpoints = found.as_ref().map_or_else(
                |_| Arc::default(),
                |port| slices.endpoints(cluster, &at, (port, protocol), family),
            );
            all.push(Group { weight, endpoints });
        }
        problem = problem.or(found.err());
    }
    problem
}

/// Finds the port of a service that a reference names.
fn service_port<'a>(
    cluster: &'a Cluster,
    (reference, at): (&BackendRef, &ObjectKey),
    protocol: Protocol,
    namespace: &str,
) -> Result<&'a PortObject, (&'static str, String)> {
    let name = &reference.name;
    let group = reference.group.as_deref().unwrap_or_default();
    let kind = reference.kind.as_deref().unwrap_or("Service");
    if !group.is_empty() || kind != "Service" {
        return Err(("InvalidKind", format!("`{name}` is a {kind}, not a Service")));
    }
    if at.0 != namespace && !is_granted(cluster, protocol.route_kind(), namespace, at) {
        let why = format!("no ReferenceGrant in `{}` permits the reference to `{name}`", at.0);
        return Err(("RefNotPermitted", why));
    }
    let missing = |what: String| ("BackendNotFound", what);
    let service = cluster.services.get(at).filter(|service| !service.is_external_name);
    let service =
        service.ok_or_else(|| missing(format!("there is no service `{}/{name}` with endpoints", at.0)))?;
    let wanted = reference.port.ok_or_else(|| missing(format!("`port` of `{name}` is missing")))?;
    let mut ports = service.ports.iter().filter(|port| port.port == wanted).peekable();
    let has_port = ports.peek().is_some();
    match ports.find(|port| port.protocol == Ok(protocol)) {
        Some(port) => Ok(port),
        None if has_port => {
            let why = format!("port {wanted} of the service `{name}` is not {}", protocol.word());
            Err(("UnsupportedProtocol", why))
        }
        None => Err(missing(format!("the service `{name}` has no port {wanted}"))),
    }
}

/// Whether a ReferenceGrant permits routes of a namespace to refer to a service.
fn is_granted(cluster: &Cluster, kind: &str, namespace: &str, (to, name): &ObjectKey) -> bool {
    let grants = cluster.grants.iter().filter(|((at, _), _)| at == to).map(|(_, grant)| &grant.spec);
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

/// A gateway with what is attached to it.
struct Parent<'a> {
    key: &'a ObjectKey,
    gateway: &'a Gateway,
    wanted: GatewayWant,
    given: &'a Given,
    listeners: Vec<Listener<'a>>,
}

/// Returns the services of a gateway of this controller, its status and its events. `routes` are those that
/// may be attached to it, the oldest first.
pub(crate) fn serve<'a>(
    config: &Config,
    cluster: &Cluster,
    (key, gateway): (&'a ObjectKey, &'a Gateway),
    given: &'a Given,
    routes: impl Iterator<Item = &'a Attached>,
) -> Desired {
    let mut desired = Desired::default();
    let mut listeners = listeners(gateway);
    for route in routes {
        let own = route.listeners.range((key.clone(), 0)..).take_while(|(at, _)| at == key);
        for (_, position) in own {
            if let Some(listener) = listeners.get_mut(*position) {
                listener.attached += 1;
                listener.winner.get_or_insert(&route.targets);
            }
        }
    }
    let wanted = wanted(config, cluster, gateway);
    let parent = Parent { key, gateway, wanted, given, listeners };
    parent.serve(config, &mut desired);
    parent.status(config, cluster, &mut desired);
    desired
}

impl Parent<'_> {
    /// Returns the name, protocol and port of a listener's services, if it has any.
    fn service(&self, listener: &Listener<'_>) -> Option<(String, Protocol, u16)> {
        let (namespace, name) = self.key;
        let (protocol, port) = (listener.protocol?, number(listener.spec.port)?);
        // Service names have no dots, so no service port can have this name.
        let name = names::service_port(&format!("gateway.{namespace}"), name, port, protocol.word());
        (listener.is_valid() && listener.winner.is_some()).then_some((name, protocol, port))
    }

    fn serve(&self, config: &Config, desired: &mut Desired) {
        let object = Arc::new(reference(VERSION, "Gateway", &self.gateway.metadata));
        if let Some(problem) = &self.given.problem {
            let (reason, note) = problem_words(problem);
            desired.notice(&object, true, reason, note);
        }
        for listener in &self.listeners {
            let Some(((name, protocol, port), targets)) = self.service(listener).zip(listener.winner) else {
                continue;
            };
            desired.serve(&name, &self.given.addresses, |family, vips| VirtualService {
                origin: object.clone(),
                front_end: FrontEnd { vips, protocol, port },
                clients: Vec::new(),
                affinity_s: None,
                is_local: false,
                groups: targets[usize::from(family == IpVersion::Six)].clone(),
            });
        }
        report_target_ports(config, &object, desired);
    }

    /// Returns the nodes that have not confirmed the services of a listener. Nodes of which nothing is known
    /// yet, because this controller has just become the leader, are assumed to have confirmed them if
    /// `was_programmed`.
    fn behind<'c>(
        &self,
        config: &'c Config,
        cluster: &Cluster,
        listener: &Listener<'_>,
        was_programmed: bool,
    ) -> BTreeSet<&'c str> {
        let Some((name, protocol, port)) = self.service(listener) else { return BTreeSet::new() };
        let mut wanted = Vec::new();
        for family in [IpVersion::Four, IpVersion::Six] {
            let vips = self.given.addresses.iter().copied();
            let vips: Vec<IpAddr> = vips.filter(|address| IpVersion::of(*address) == family).collect();
            if !vips.is_empty() {
                wanted.push((service_name(&name, family), FrontEnd { vips, protocol, port }));
            }
        }
        let is_behind = |node: &&str| match cluster.confirmed.get(*node) {
            Some(has) => wanted.iter().any(|(name, front_end)| has.get(name) != Some(front_end)),
            None => !was_programmed,
        };
        config.nodes.iter().map(|node| node.name.as_str()).filter(is_behind).collect()
    }

    /// Adds the conditions of the gateway, and returns whether its services are sent to nodes.
    fn conditions(&self, conditions: &mut ConditionSet, behind: &BTreeSet<&str>) -> bool {
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
        let is_sent = accepted && self.given.problem.is_none();
        if !accepted {
            conditions.set("Programmed", false, "Invalid", "the gateway is not accepted");
        } else if let Some(problem) = &self.given.problem {
            let reason = match problem {
                Shortage::Exhausted(_) => "AddressNotAssigned",
                Shortage::Outside(_) | Shortage::Taken(_) => "AddressNotUsable",
            };
            conditions.set("Programmed", false, reason, problem_words(problem).1);
        } else {
            conditions.programmed(behind);
        }
        is_sent
    }

    fn status(&self, config: &Config, cluster: &Cluster, desired: &mut Desired) {
        let meta = &self.gateway.metadata;
        let status = self.gateway.status.as_ref();
        let before = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        let old = status.and_then(|status| status.listeners.as_deref()).unwrap_or_default();
        let old_of = |listener: &Listener<'_>| {
            let old = old.iter().find(|one| one.name == listener.spec.name);
            old.map(|one| one.conditions.as_slice()).unwrap_or_default()
        };
        let was_programmed = |conditions: &[Condition]| {
            let is = |one: &Condition| one.type_ == "Programmed" && one.status == "True";
            conditions.iter().any(|one| is(one) && one.observed_generation == meta.generation)
        };
        let behind = |listener: &Listener<'_>| {
            self.behind(config, cluster, listener, was_programmed(old_of(listener)))
        };
        let behind: Vec<BTreeSet<&str>> = self.listeners.iter().map(behind).collect();
        let mut conditions = ConditionSet::new(before, meta, cluster.now);
        let is_sent = self.conditions(&mut conditions, &behind.iter().flatten().copied().collect());
        let listener = |(listener, behind): (&Listener<'_>, &BTreeSet<&str>)| {
            let mut conditions = ConditionSet::new(old_of(listener), meta, cluster.now);
            listener.conditions(&mut conditions, is_sent, behind);
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
        };
        let listeners: Vec<Value> = self.listeners.iter().zip(&behind).map(listener).collect();
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
        for change in &mut desired.statuses {
            change.addresses.clone_from(&self.given.addresses);
        }
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
    fn conditions(&self, conditions: &mut ConditionSet, is_sent: bool, behind: &BTreeSet<&str>) {
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
        // A kind that is not supported does not keep routes of other kinds from being served.
        if !self.is_valid() || !self.takes_kind {
            conditions.set("Programmed", false, "Invalid", "see the other conditions");
        } else if is_sent {
            conditions.programmed(behind);
        } else {
            conditions.set("Programmed", false, "Pending", "see the conditions of the gateway");
        }
    }
}
