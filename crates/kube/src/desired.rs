//! What nodes should have, and what to tell the cluster, given a snapshot of its objects. Nothing here
//! waits, reads or writes: the same objects always have the same result.

use crate::config::{Config, DOMAIN, NodeConfig};
use crate::endpoints::{Group, Slices, back_ends, number};
use crate::gateway::{self, Gateways};
use crate::objects::{Cluster, Protocol, age, reference};
use crate::pools::{AddressRequest, Given, IpVersion, Shortage, Want, give};
use k8s_openapi::api::core::v1::{ObjectReference, Service, ServicePort, ServiceSpec};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::IpAddr;
use weir_control::names;

/// The largest name that nodes accept, in bytes.
const NAME_MAX: usize = 64;
/// The default of `sessionAffinityConfig.clientIP.timeoutSeconds`, and the longest that weir remembers.
const AFFINITY_S: i32 = 10_800;
const AFFINITY_MAX_S: i32 = 864_000;

/// What nodes should have, and what to say to the cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Desired {
    /// The services, by name.
    pub services: BTreeMap<String, VirtualService>,
    /// The statuses that differ from those of the objects.
    pub statuses: Vec<StatusChange>,
    /// All that deserves an event at present. An event is sent when an entry is new in this list.
    pub events: Vec<Notice>,
}

/// A service of nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct VirtualService {
    /// The object that it comes from.
    pub origin: ObjectReference,
    /// Its addresses, all of the same IP version.
    pub vips: Vec<IpAddr>,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its port.
    pub port: u16,
    /// For how many seconds clients keep their back end, if they do.
    pub affinity_s: Option<i32>,
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
        let vips: Vec<String> = self.vips.iter().map(ToString::to_string).collect();
        let vip = if let [one] = vips.as_slice() { json!(one) } else { json!(vips) };
        let service = json!({ "vip": vip, "protocol": self.protocol.word(), "port": self.port.to_string() });
        map.insert("service".into(), service);
        map.insert("back_ends".into(), back_ends(&self.groups, self.is_local, config, node).into());
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
        make: impl Fn(IpVersion) -> VirtualService,
    ) {
        for family in [IpVersion::Four, IpVersion::Six] {
            let vips: Vec<IpAddr> =
                addresses.iter().copied().filter(|address| IpVersion::of(*address) == family).collect();
            if !vips.is_empty() {
                let version = if family == IpVersion::Six { "-v6" } else { "" };
                let service = VirtualService { vips, ..make(family) };
                self.services.insert(names::shortened(format!("{name}{version}"), NAME_MAX), service);
            }
        }
    }
}

/// Returns what follows from the objects.
#[must_use]
pub fn desired(config: &Config, snapshot: &Cluster) -> Desired {
    let mut desired = Desired::default();
    let slices = Slices::of(snapshot);
    let gateways = Gateways::of(config, snapshot, &mut desired);
    let services = snapshot.services.values().map(AsRef::as_ref).filter(|one| is_ours(config, one));
    let services: Vec<&Service> = services.collect();
    // Addresses are given to the oldest first, of both kinds.
    let mut order = Vec::new();
    for service in &services {
        order.push((age(&service.metadata), Owner::Service(service)));
    }
    for (at, gateway) in gateways.accepted().enumerate() {
        order.push((age(&gateway.metadata), Owner::Gateway(at)));
    }
    order.sort_by(|(one, _), (other, _)| one.cmp(other));
    let all_wants: Vec<&gateway::GatewayWant> = gateways.wants().collect();
    let mut wants = Vec::new();
    for (_, owner) in &order {
        wants.push(match owner {
            Owner::Service(service) => service_want(config, service, &mut desired),
            Owner::Gateway(at) => all_wants[*at].want.clone(),
        });
    }
    let given = give(&config.pools, &wants);
    let mut of_gateways = vec![Given::default(); all_wants.len()];
    for (((_, owner), given), want) in order.iter().zip(given).zip(&wants) {
        match owner {
            Owner::Service(service) => serve_service(service, want, &given, &slices, &mut desired),
            Owner::Gateway(at) => of_gateways[*at] = given,
        }
    }
    gateways.serve(config, snapshot, &slices, &of_gateways, &mut desired);
    desired
}

/// Who gets addresses.
enum Owner<'a> {
    Service(&'a Service),
    /// By its position among the gateways.
    Gateway(usize),
}

fn is_ours(config: &Config, service: &Service) -> bool {
    let spec = service.spec.as_ref();
    let is = |field: fn(&ServiceSpec) -> &Option<String>, value: &str| {
        spec.and_then(|spec| field(spec).as_deref()) == Some(value)
    };
    is(|spec| &spec.type_, "LoadBalancer") && is(|spec| &spec.load_balancer_class, &config.class)
}

/// Returns the annotation with a name of weir's domain.
fn annotation<'a>(service: &'a Service, name: &str) -> Option<&'a str> {
    let all = service.metadata.annotations.as_ref()?;
    all.get(&format!("{DOMAIN}/{name}")).map(String::as_str)
}

/// Reads what addresses a service asks for.
fn service_want(config: &Config, service: &Service, desired: &mut Desired) -> Want {
    let spec = service.spec.as_ref();
    let ingress = service.status.iter().flat_map(|status| &status.load_balancer);
    let ingress = ingress.flat_map(|one| one.ingress.iter().flatten());
    let current = ingress.filter_map(|one| one.ip.as_deref()?.parse().ok()).collect();
    let names = spec.and_then(|spec| spec.ip_families.as_ref());
    let mut families: Vec<IpVersion> = names.into_iter().flatten().filter_map(|name| family(name)).collect();
    if families.is_empty() {
        families.push(IpVersion::Four);
    }
    let object = reference("v1", "Service", &service.metadata);
    let mut wrong = |note: String| {
        desired.notice(
            &object,
            true,
            "InvalidAnnotation",
            format!("{note}; the service keeps its addresses"),
        );
        AddressRequest::Wrong
    };
    // The field is deprecated, but has no replacement in the API.
    let addresses =
        annotation(service, "addresses").map(|text| ("annotation `addresses`", text)).or_else(|| {
            let field =
                spec.and_then(|spec| spec.load_balancer_ip.as_deref()).filter(|text| !text.is_empty());
            field.map(|text| ("`loadBalancerIP`", text))
        });
    let pool = annotation(service, "pool");
    let asked = match (addresses, pool) {
        (Some((place, text)), _) => match parse_addresses(text, &families) {
            Ok(addresses) => AddressRequest::Addresses(addresses),
            Err(why) => wrong(format!("{place}: {why}")),
        },
        (None, Some(name)) if config.pool(name).is_none() => {
            wrong(format!("annotation `pool`: there is no pool `{name}`"))
        }
        (None, pool) => AddressRequest::Families(families, pool.map(ToString::to_string)),
    };
    Want { current, asked }
}

fn family(name: &str) -> Option<IpVersion> {
    match name {
        "IPv4" => Some(IpVersion::Four),
        "IPv6" => Some(IpVersion::Six),
        // The API has no other.
        _ => None,
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

/// Adds the ports of a service, its status and its events.
fn serve_service(service: &Service, want: &Want, given: &Given, slices: &Slices<'_>, desired: &mut Desired) {
    let (namespace, name) = crate::objects::key(&service.metadata);
    let object = reference("v1", "Service", &service.metadata);
    if let Some(problem) = &given.problem {
        let (reason, note) = problem_words(problem);
        desired.notice(&object, true, reason, note);
    }
    if given.addresses != want.current {
        let ingress: Vec<Value> =
            given.addresses.iter().map(|ip| json!({ "ip": ip.to_string(), "ipMode": "VIP" })).collect();
        let version = service.metadata.resource_version.clone();
        let status = json!({ "loadBalancer": { "ingress": ingress } });
        desired.statuses.push(StatusChange { object: object.clone(), version, status });
        for address in given.addresses.iter().filter(|address| !want.current.contains(address)) {
            desired.notice(&object, false, "AddressAssigned", format!("assigned {address}"));
        }
    }
    let Some(spec) = &service.spec else { return };
    if spec.load_balancer_source_ranges.as_ref().is_some_and(|ranges| !ranges.is_empty()) {
        let note = "`loadBalancerSourceRanges` is not supported: all clients are served";
        desired.notice(&object, true, "SourceRangesIgnored", note);
    }
    let is_sticky = spec.session_affinity.as_deref() == Some("ClientIP");
    let timeout = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
    let timeout = timeout.and_then(|one| one.timeout_seconds).filter(|seconds| *seconds > 0);
    let affinity_s = is_sticky.then(|| timeout.unwrap_or(AFFINITY_S).min(AFFINITY_MAX_S));
    for one in spec.ports.iter().flatten() {
        let (Some(protocol), Some(port)) = (Protocol::of(one.protocol.as_deref()), number(one.port)) else {
            let protocol = one.protocol.as_deref().unwrap_or("TCP");
            let note = format!("port {} is left out: {protocol} is not TCP or UDP", one.port);
            desired.notice(&object, true, "ProtocolUnsupported", note);
            continue;
        };
        desired.serve(
            &names::service_port(&namespace, &name, port, protocol.word()),
            &given.addresses,
            |family| VirtualService {
                origin: object.clone(),
                vips: Vec::new(),
                protocol,
                port,
                affinity_s,
                is_local: spec.external_traffic_policy.as_deref() == Some("Local"),
                groups: vec![group(slices, (&namespace, &name), one, protocol, family)],
            },
        );
    }
}

fn group(
    slices: &Slices<'_>,
    service: (&str, &str),
    port: &ServicePort,
    protocol: Protocol,
    family: IpVersion,
) -> Group {
    Group { weight: 1, endpoints: slices.endpoints(service, port, protocol, family) }
}
