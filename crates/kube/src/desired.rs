//! What nodes should have, and what to tell the cluster, given a snapshot of its objects. Nothing here
//! waits, reads or writes: the same objects always have the same result.

use crate::config::{Config, NodeConfig};
use crate::endpoints::{Group, Slices, back_ends, number};
use crate::objects::{
    Age, BalancedObject, Changed, Cluster, FrontEnd, ObjectKey, Owner, PortObject, Protocol, SentAddresses,
    ServiceObject, age,
};
use crate::pools::{AddressRequest, Given, IpVersion, Shortage, Want, give};
use crate::{classes, gateway};
use k8s_openapi::api::core::v1::ObjectReference;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::IpAddr;
use std::sync::Arc;
use weir_control::names;

/// The largest name that nodes accept, in bytes.
const NAME_MAX: usize = 64;
/// The largest number of prefixes of clients that nodes accept.
const CLIENTS_MAX: usize = 256;

/// What nodes should have, and what to say to the cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Desired {
    /// The services, by name.
    pub services: BTreeMap<Arc<str>, VirtualService>,
    /// The statuses that differ from those of the objects.
    pub statuses: Vec<StatusChange>,
    /// All that deserves an event at present. An event is sent when an entry is new in this list.
    pub events: Vec<Notice>,
}

/// A service of nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct VirtualService {
    /// The object that it comes from.
    pub origin: Arc<ObjectReference>,
    /// Where clients reach it: addresses of one IP version, with a protocol and a port.
    pub front_end: FrontEnd,
    /// The prefixes of the clients that are served; if empty, all clients are served.
    pub clients: Vec<String>,
    /// For how many seconds clients keep their back end, if they do.
    pub affinity_s: Option<u64>,
    /// Whether nodes of the cluster use only endpoints that are on them.
    pub is_local: bool,
    /// Its endpoints.
    pub groups: Vec<Group>,
}

impl VirtualService {
    /// Returns the service in the vocabulary of a node's configuration.
    #[must_use]
    pub fn of_node(&self, name: &str, config: &Config, node: &NodeConfig) -> Value {
        let mut map: Map<String, Value> = config.template.clone();
        map.insert("name".into(), name.into());
        let FrontEnd { vips, protocol, port } = &self.front_end;
        let vips: Vec<String> = vips.iter().map(ToString::to_string).collect();
        let vip = if let [one] = vips.as_slice() { json!(one) } else { json!(vips) };
        let service = json!({ "vip": vip, "protocol": protocol.word(), "port": port.to_string() });
        map.insert("service".into(), service);
        let mut back_ends = back_ends(&self.groups, self.is_local, config, node);
        if !config.checks(*protocol) {
            map.shift_remove("check");
            for back_end in back_ends.iter_mut().filter_map(Value::as_object_mut) {
                back_end.shift_remove("check");
            }
        }
        map.insert("back_ends".into(), back_ends.into());
        if !self.clients.is_empty() {
            map.insert("clients".into(), json!(self.clients));
        }
        // A service may lose all its endpoints.
        map.entry("fail").or_insert_with(|| "reject".into());
        if let (Some(timeout), false) = (self.affinity_s, map.contains_key("affinity")) {
            // The client's address selects the back end instead.
            map.shift_remove("scheduler");
            map.insert("affinity".into(), json!({ "timeout": format!("{timeout}s") }));
        }
        Value::Object(map)
    }
}

/// A status that differs from that of the object.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusChange {
    /// The object.
    pub object: ObjectReference,
    /// The version of the object that this status was computed for.
    pub version: Option<String>,
    /// The new status.
    pub status: Value,
    /// The new finalizers, if these are to be written instead of the status.
    pub finalizers: Option<Vec<String>>,
    /// The addresses in this status, if the object is of a kind that gets addresses.
    pub addresses: Vec<IpAddr>,
}

/// Notes the addresses of a status that is about to be written, and marks them as a possible change.
pub fn note_sent(cluster: &mut Cluster, changed: &mut Changed, change: &StatusChange) {
    let object = &change.object;
    let at = (object.namespace.clone().unwrap_or_default(), object.name.clone().unwrap_or_default());
    let owner = match object.kind.as_deref() {
        Some("Service") => {
            changed.services.insert(at.clone());
            Owner::Service(at)
        }
        Some("Gateway") => {
            changed.gateways.insert(at.clone());
            Owner::Gateway(at)
        }
        // Other kinds have no addresses.
        _ => return,
    };
    let sent = SentAddresses { version: change.version.clone(), addresses: change.addresses.clone() };
    cluster.sent.insert(owner, sent);
}

/// Something that deserves an event.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    /// The object that it is about.
    pub object: ObjectReference,
    /// Whether someone has to act.
    pub is_warning: bool,
    /// A word for programs.
    pub reason: &'static str,
    /// A sentence for people.
    pub note: String,
}

impl Desired {
    pub(crate) fn notice(
        &mut self,
        object: &ObjectReference,
        is_warning: bool,
        reason: &'static str,
        note: impl Display,
    ) {
        let note = note.to_string();
        self.events.push(Notice { object: object.clone(), is_warning, reason, note });
    }

    /// Adds a service for each IP version of the addresses.
    pub(crate) fn serve(
        &mut self,
        name: &str,
        addresses: &[IpAddr],
        make: impl Fn(IpVersion, Vec<IpAddr>) -> VirtualService,
    ) {
        for family in [IpVersion::Four, IpVersion::Six] {
            let vips: Vec<IpAddr> =
                addresses.iter().copied().filter(|address| IpVersion::of(*address) == family).collect();
            if !vips.is_empty() {
                self.services.insert(service_name(name, family), make(family, vips));
            }
        }
    }

    /// Appends the results of another object.
    pub(crate) fn append(&mut self, mut other: Desired) {
        self.services.append(&mut other.services);
        self.statuses.append(&mut other.statuses);
        self.events.append(&mut other.events);
    }
}

/// Returns the name of the service of nodes for an IP version.
pub(crate) fn service_name(name: &str, family: IpVersion) -> Arc<str> {
    let version = if family == IpVersion::Six { "-v6" } else { "" };
    names::shortened(format!("{name}{version}"), NAME_MAX).into()
}

/// Returns the desired state for these objects. [`Incremental`](crate::incremental::Incremental) has the same
/// result, but recomputes only the parts that may have changed.
#[must_use]
pub fn desired(config: &Config, cluster: &Cluster) -> Desired {
    let mut desired = Desired::default();
    let slices = Slices::of(cluster);
    let classes = classes::classes(config, cluster, &mut desired);
    // Addresses are given to the oldest first, of both kinds.
    let mut wants: BTreeMap<(Age, Owner), Want> = BTreeMap::new();
    for (key, service) in &cluster.services {
        if let Some(balanced) = ours(config, service) {
            let want = service_want(config, cluster, (key, &**service, balanced)).0;
            wants.insert(((service.created, key.clone()), Owner::Service(key.clone())), want);
        }
    }
    for (key, gateway) in &cluster.gateways {
        if classes.have(gateway) {
            let want = gateway::wanted(config, cluster, gateway).want;
            wants.insert((age(&gateway.metadata), Owner::Gateway(key.clone())), want);
        }
    }
    let given = give(&config.pools, &wants.values().collect::<Vec<_>>());
    let given: BTreeMap<Owner, Given> = wants.into_keys().map(|(_, owner)| owner).zip(given).collect();
    for (key, service) in &cluster.services {
        if let Some(given) = given.get(&Owner::Service(key.clone())) {
            desired.append(serve_service(config, cluster, &slices, key, service, given));
        }
    }
    let is_ours = |key: &ObjectKey| given.contains_key(&Owner::Gateway(key.clone()));
    let mut routes = Vec::new();
    for protocol in Protocol::ALL {
        for route in cluster.routes(protocol).values() {
            let (attached, own) = gateway::attach(config, cluster, &slices, (&**route, protocol), &is_ours);
            desired.append(own);
            routes.push((age(&route.metadata), attached));
        }
    }
    routes.sort_by(|(one, _), (other, _)| one.cmp(other));
    for (key, gateway) in &cluster.gateways {
        if let Some(given) = given.get(&Owner::Gateway(key.clone())) {
            let routes = routes.iter().map(|(_, attached)| attached);
            desired.append(gateway::serve(config, cluster, (key, &**gateway), given, routes));
        }
    }
    desired
}

/// Returns the relevant part of a service, if this controller implements it.
pub(crate) fn ours<'a>(config: &Config, service: &'a ServiceObject) -> Option<&'a BalancedObject> {
    service.balanced.as_deref().filter(|balanced| *balanced.class == *config.class)
}

/// Reads what addresses a service asks for, and says why its request is wrong.
pub(crate) fn service_want(
    config: &Config,
    cluster: &Cluster,
    (key, service, balanced): (&ObjectKey, &ServiceObject, &BalancedObject),
) -> (Want, Option<String>) {
    let owner = Owner::Service(key.clone());
    let current = cluster.held(&owner, service.version.as_deref(), &balanced.ingress);
    let mut families = balanced.families.clone();
    if families.is_empty() {
        families.push(IpVersion::Four);
    }
    // The field is deprecated, but has no replacement in the API.
    let addresses =
        balanced.addresses.as_deref().map(|text| ("annotation `addresses`", text)).or_else(|| {
            let field = balanced.load_balancer_ip.as_deref().filter(|text| !text.is_empty());
            field.map(|text| ("`loadBalancerIP`", text))
        });
    let asked = match (addresses, balanced.pool.as_deref()) {
        (Some((place, text)), _) => match parse_addresses(text, &families) {
            Ok(addresses) => Ok(AddressRequest::Addresses(addresses)),
            Err(why) => Err(format!("{place}: {why}")),
        },
        (None, Some(name)) if config.pool(name).is_none() => {
            Err(format!("annotation `pool`: there is no pool `{name}`"))
        }
        (None, pool) => {
            // A version that no pool has is no problem then; one whose pools are exhausted is.
            let has = |family: &IpVersion| current.iter().any(|one| IpVersion::of(*one) == *family);
            let may_have = |family: &IpVersion| has(family) || config.pools.offer(*family, pool);
            if balanced.one_is_enough && families.iter().any(may_have) {
                families.retain(may_have);
            }
            Ok(AddressRequest::Families(families, pool.map(ToString::to_string)))
        }
    };
    match asked {
        Ok(asked) => (Want { current, asked }, None),
        Err(why) => (Want { current, asked: AddressRequest::Wrong }, Some(why)),
    }
}

fn parse_addresses(text: &str, families: &[IpVersion]) -> Result<Vec<IpAddr>, String> {
    let mut all = Vec::new();
    for one in text.split(',').map(str::trim) {
        let address: IpAddr = one.parse().map_err(|_| format!("`{one}` is not an IP address"))?;
        if !families.contains(&IpVersion::of(address)) {
            return Err(format!(
                "{address} is of an IP version that the service does not have (`ipFamilies`)"
            ));
        }
        if !all.contains(&address) {
            all.push(address);
        }
    }
    Ok(all)
}

/// Says why an object does not get the addresses that it asks for.
pub(crate) fn problem_words(problem: &Shortage) -> (&'static str, String) {
    match problem {
        Shortage::Exhausted(family) => {
            let version = if *family == IpVersion::Six { "IPv6" } else { "IPv4" };
            ("PoolExhausted", format!("no pool that it may use has a free {version} address"))
        }
        Shortage::Outside(address) => ("AddressUnavailable", format!("{address} is in no pool")),
        Shortage::Taken(address) => ("AddressUnavailable", format!("{address} belongs to another object")),
    }
}

/// Returns the ports of a service of this controller, its status and its events.
pub(crate) fn serve_service(
    config: &Config,
    cluster: &Cluster,
    slices: &Slices,
    key: &ObjectKey,
    service: &ServiceObject,
    given: &Given,
) -> Desired {
    let mut desired = Desired::default();
    let Some(balanced) = ours(config, service) else { return desired };
    let object = Arc::new(service.reference(key));
    if let (_, Some(why)) = service_want(config, cluster, (key, service, balanced)) {
        let note = format!("{why}; the service keeps its addresses");
        desired.notice(&object, true, "InvalidAnnotation", note);
    }
    if let Some(problem) = &given.problem {
        let (reason, note) = problem_words(problem);
        desired.notice(&object, true, reason, note);
    }
    let mut served = serve_ports(cluster, slices, (key, service, balanced), &object, given);
    report_target_ports(config, &object, &mut served);
    let has = |address: &IpAddr| is_served(config, cluster, &served.services, *address);
    let owner = Owner::Service(key.clone());
    let held = cluster.held(&owner, service.version.as_deref(), &balanced.ingress);
    publish(published(&given.addresses, &held, has), &object, (service, balanced), &mut desired);
    desired.append(served);
    desired
}

/// Returns the ports of a service, and events about them.
fn serve_ports(
    cluster: &Cluster,
    slices: &Slices,
    (key, service, balanced): (&ObjectKey, &ServiceObject, &BalancedObject),
    object: &Arc<ObjectReference>,
    given: &Given,
) -> Desired {
    let mut desired = Desired::default();
    let (namespace, name) = key;
    let Some(clients) = clients(balanced, object, &mut desired) else { return desired };
    for one in &service.ports {
        let (Ok(protocol), Some(port)) = (&one.protocol, number(one.port)) else {
            let protocol = one.protocol.as_ref().map_or_else(|name| &**name, |protocol| protocol.word());
            let note = format!("port {} is left out: {protocol} is not TCP or UDP", one.port);
            desired.notice(object, true, "ProtocolUnsupported", note);
            continue;
        };
        let protocol = *protocol;
        desired.serve(
            &names::service_port(namespace, name, port, protocol.word()),
            &given.addresses,
            |family, vips| VirtualService {
                origin: object.clone(),
                front_end: FrontEnd { vips, protocol, port },
                clients: clients.clone(),
                affinity_s: balanced.affinity_s,
                is_local: balanced.is_local,
                groups: vec![group(cluster, slices, key, (one, protocol), family)],
            },
        );
    }
    desired
}

/// Whether a node has confirmed everything that is served at an address. Not all nodes must have, because one
/// that is down would keep all new services from their clients.
fn is_served(
    config: &Config,
    cluster: &Cluster,
    services: &BTreeMap<Arc<str>, VirtualService>,
    address: IpAddr,
) -> bool {
    let has_all = |node: &NodeConfig| {
        let confirmed = cluster.confirmed.get(&node.name);
        let has = |name: &Arc<str>| confirmed.and_then(|confirmed| confirmed.get(name));
        let mut all = services.iter().filter(|(_, one)| one.front_end.vips.contains(&address));
        all.all(|(name, one)| has(name) == Some(&one.front_end))
    };
    config.nodes.is_empty() || config.nodes.iter().any(has_all)
}

/// Returns the addresses that a service should have in its status, given those that it gets and those that it
/// has: the ones that are served or were published before. Until there is one of an IP version, those that it
/// has stay, because a reader of the status would take an empty one for the end of the service.
fn published(given: &[IpAddr], held: &[IpAddr], is_served: impl Fn(&IpAddr) -> bool) -> Vec<IpAddr> {
    let is_ready = |address: &IpAddr| held.contains(address) || is_served(address);
    let mut all: Vec<IpAddr> = Vec::new();
    for address in given {
        let is_alike = |other: &&IpAddr| IpVersion::of(**other) == IpVersion::of(*address);
        if is_ready(address) {
            all.push(*address);
        } else if !given.iter().filter(is_alike).any(is_ready) {
            for kept in held.iter().filter(is_alike) {
                if !all.contains(kept) {
                    all.push(*kept);
                }
            }
        }
    }
    all
}

/// Writes addresses to the status of a service, from which clients learn them.
fn publish(
    addresses: Vec<IpAddr>,
    object: &ObjectReference,
    (service, balanced): (&ServiceObject, &BalancedObject),
    desired: &mut Desired,
) {
    let current = &balanced.ingress;
    if addresses == *current {
        return;
    }
    let ingress: Vec<Value> =
        addresses.iter().map(|ip| json!({ "ip": ip.to_string(), "ipMode": "VIP" })).collect();
    for address in addresses.iter().filter(|address| !current.contains(address)) {
        desired.notice(object, false, "AddressAssigned", format!("assigned {address}"));
    }
    desired.statuses.push(StatusChange {
        object: object.clone(),
        version: service.version.as_deref().map(Into::into),
        status: json!({ "loadBalancer": { "ingress": ingress } }),
        finalizers: None,
        addresses,
    });
}

/// Reports target ports that have no effect, because nodes do not translate ports.
pub(crate) fn report_target_ports(config: &Config, object: &ObjectReference, desired: &mut Desired) {
    if config.translates() {
        return;
    }
    let mut ignored = BTreeSet::new();
    for service in desired.services.values() {
        let port = service.front_end.port;
        let targets = service.groups.iter().flat_map(|group| group.endpoints.iter()).map(|one| one.port);
        ignored.extend(targets.filter(|target| *target != port).map(|target| (port, target)));
    }
    for (port, target) in ignored {
        let note = format!(
            "pods get the packets for port {port} at port {port}, not at their target port {target}: only \
             `mode: nat` and `full_nat` translate ports"
        );
        desired.notice(object, true, "TargetPortIgnored", note);
    }
}

/// Returns the prefixes of the clients that are served; empty means all, and `None` means none. To serve all
/// clients because no prefix can be read would be worse than to serve none. Nodes refuse repeated prefixes
/// and more than [`CLIENTS_MAX`], so neither is returned.
fn clients(
    balanced: &BalancedObject,
    object: &ObjectReference,
    desired: &mut Desired,
) -> Option<Vec<String>> {
    let (mut clients, mut left_out) = (Vec::new(), 0);
    for text in &balanced.source_ranges {
        match prefix(text) {
            Some(prefix) if clients.contains(&prefix) => {}
            Some(prefix) if clients.len() < CLIENTS_MAX => clients.push(prefix),
            Some(_) => left_out += 1,
            None => {
                let note = format!("`loadBalancerSourceRanges`: `{text}` is not a prefix and is left out");
                desired.notice(object, true, "InvalidSourceRange", note);
            }
        }
    }
    if left_out > 0 {
        let note = format!(
            "`loadBalancerSourceRanges`: at most {CLIENTS_MAX} different prefixes are possible; the last \
             {left_out} are left out"
        );
        desired.notice(object, true, "TooManySourceRanges", note);
    }
    (!clients.is_empty() || balanced.source_ranges.is_empty()).then_some(clients)
}

/// Reads a prefix of addresses, ignoring bits beyond its length.
fn prefix(text: &str) -> Option<String> {
    let (address, length) = text.trim().split_once('/')?;
    let (address, length): (IpAddr, u32) = (address.parse().ok()?, length.parse().ok()?);
    let first = match address {
        IpAddr::V4(four) => {
            let mask = u32::MAX.checked_shl(32_u32.checked_sub(length)?).unwrap_or(0);
            IpAddr::from((four.to_bits() & mask).to_be_bytes())
        }
        IpAddr::V6(six) => {
            let mask = u128::MAX.checked_shl(128_u32.checked_sub(length)?).unwrap_or(0);
            IpAddr::from((six.to_bits() & mask).to_be_bytes())
        }
    };
    Some(format!("{first}/{length}"))
}

fn group(
    cluster: &Cluster,
    slices: &Slices,
    service: &ObjectKey,
    port: (&PortObject, Protocol),
    family: IpVersion,
) -> Group {
    Group { weight: 1, endpoints: slices.endpoints(cluster, service, port, family) }
}
