//! What follows from objects, as users write them.

mod gateways;
mod happenings;
mod services;

use crate::config::Config;
use crate::desired::{Desired, StatusChange, VirtualService, desired, note_sent};
use crate::incremental::{Incremental, forget_times};
use crate::nodes::set_confirmed;
use crate::objects::{Changed, Cluster, L4Route, ObjectKey, Objects, Protocol, key};
use crate::run::lasting;
use crate::shared::WantedService;
use gateway_api::gatewayclasses::GatewayClass;
use gateway_api::gateways::Gateway;
use gateway_api::referencegrants::ReferenceGrant;
use k8s_openapi::api::core::v1::{Namespace, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::jiff::Span;
use kube::ResourceExt;
use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

fn config() -> Config {
    Config::parse(
        "{ template: { port: p0, scheduler: maglev }, each: { mode: full_nat },
           nodes: [{ name: n, url: 'unix:/x' }],
           pools: [{ name: a, addresses: [192.0.2.0/30] }, { name: six, addresses: ['2001:db8::/126'] },
                   { name: b, addresses: [198.51.100.1], automatic: false }] }",
    )
    .unwrap()
}

/// The documentation marks examples for weir-kube with the words `yaml weir-kube`, because examples marked
/// with `yaml` alone are configurations of weir.
#[test]
fn the_examples_of_the_documentation_are_valid() {
    let page = std::fs::read_to_string("../../docs/how-to/kubernetes.md").unwrap();
    let examples = page.split("```yaml weir-kube\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let parsed: Vec<_> =
        examples.map(|one| Config::parse(one).unwrap_or_else(|why| panic!("{why}"))).collect();
    assert!(parsed.iter().any(|one| one.nodes.len() == 3 && one.lease.is_some()), "{parsed:?}");
}

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap()
}

/// Adds an object, or replaces the one with the same name, and returns its key and what it replaces.
fn put<K: DeserializeOwned + ResourceExt + Into<S>, S>(
    all: &mut Objects<S>,
    value: &Value,
) -> (ObjectKey, Option<Arc<S>>) {
    let one: K = serde_json::from_value(value.clone()).unwrap();
    let key = key(one.meta());
    (key.clone(), all.insert(key, Arc::new(one.into())))
}

/// Adds objects, or replaces those with the same name, and returns what has changed.
fn add(snapshot: &mut Cluster, value: &Value) -> Changed {
    let mut changed = Changed::default();
    let mut value = value.clone();
    let version = match value["kind"].as_str().unwrap() {
        "Service" | "Namespace" => "v1",
        "EndpointSlice" => "discovery.k8s.io/v1",
        _ => "gateway.networking.k8s.io/v1",
    };
    value["apiVersion"] = version.into();
    match value["kind"].as_str().unwrap() {
        "Service" => {
            changed.services.insert(put::<Service, _>(&mut snapshot.services, &value).0);
        }
        "EndpointSlice" => {
            let (key, before) = put::<EndpointSlice, _>(&mut snapshot.slices, &value);
            changed.slice(&key, [before.as_deref(), snapshot.slices.get(&key).map(AsRef::as_ref)]);
        }
        "Namespace" => {
            let (_, name) = put::<Namespace, _>(&mut snapshot.namespaces, &value).0;
            changed.namespaces.insert(name);
        }
        "GatewayClass" => {
            put::<GatewayClass, _>(&mut snapshot.classes, &value);
            changed.classes = true;
        }
        "Gateway" => {
            changed.gateways.insert(put::<Gateway, _>(&mut snapshot.gateways, &value).0);
        }
        "TCPRoute" => {
            let (key, _) = put::<L4Route, _>(&mut snapshot.tcp_routes, &value);
            changed.routes.insert((Protocol::Tcp, key));
        }
        "UDPRoute" => {
            let (key, _) = put::<L4Route, _>(&mut snapshot.udp_routes, &value);
            changed.routes.insert((Protocol::Udp, key));
        }
        "ReferenceGrant" => {
            let (namespace, _) = put::<ReferenceGrant, _>(&mut snapshot.grants, &value).0;
            changed.grants.insert(namespace);
        }
        other => panic!("{other}"),
    }
    changed
}

fn snapshot(text: &str) -> Cluster {
    let mut all = Cluster { now: "2026-11-01T10:00:00Z".parse().unwrap(), ..Cluster::default() };
    for value in yaml(text).as_array().unwrap() {
        add(&mut all, value);
    }
    all
}

/// Returns the results once the node has confirmed the services.
fn run(text: &str) -> Desired {
    let mut all = snapshot(text);
    let first = desired(&config(), &all);
    confirm(&mut all, &first);
    desired(&config(), &all)
}

/// Stores the statuses as an API server does, and lets some time pass.
fn apply(snapshot: &mut Cluster, desired: &Desired) {
    snapshot.now = snapshot.now.checked_add(Span::new().seconds(1)).unwrap();
    for change in &desired.statuses {
        write(snapshot, change);
    }
}

/// Writes a status or finalizers to their object, which then has another version, and returns what has
/// changed.
fn write(snapshot: &mut Cluster, change: &StatusChange) -> Changed {
    let at =
        (change.object.namespace.clone().unwrap_or_default(), change.object.name.clone().unwrap_or_default());
    let kind = change.object.kind.clone().unwrap();
    let version = snapshot.now.to_string();
    let mut value = match kind.as_str() {
        "Service" => {
            let service = Arc::make_mut(snapshot.services.get_mut(&at).unwrap());
            let ingress = change.status["loadBalancer"]["ingress"].as_array().unwrap().iter();
            let ingress = ingress.map(|one| one["ip"].as_str().unwrap().parse().unwrap()).collect();
            service.balanced.as_mut().unwrap().ingress = ingress;
            service.version = Some(version.into());
            return Changed { services: [at].into(), ..Changed::default() };
        }
        "GatewayClass" => serde_json::to_value(&*snapshot.classes[&at]),
        "Gateway" => serde_json::to_value(&*snapshot.gateways[&at]),
        "TCPRoute" => serde_json::to_value(&*snapshot.tcp_routes[&at]),
        "UDPRoute" => serde_json::to_value(&*snapshot.udp_routes[&at]),
        other => panic!("{other}"),
    }
    .unwrap();
    value["kind"] = kind.into();
    value["metadata"]["resourceVersion"] = version.into();
    for (key, part) in change.status.as_object().into_iter().flatten() {
        value["status"][key] = part.clone();
    }
    if let Some(finalizers) = &change.finalizers {
        value["metadata"]["finalizers"] = json!(finalizers);
    }
    add(snapshot, &value)
}

/// The node of the configuration confirms all services.
fn confirm(snapshot: &mut Cluster, desired: &Desired) -> Changed {
    let want = |service: &VirtualService| {
        Arc::new(WantedService { service: Arc::new(service.clone()), text: OnceLock::new() })
    };
    let all = desired.services.iter().map(|(name, one)| (name.clone(), want(one))).collect();
    let mut changed = Changed::default();
    let owners = set_confirmed(snapshot, "n", &all, &BTreeMap::new());
    owners.into_iter().for_each(|owner| changed.owner(owner));
    changed
}

/// Returns each service with its back ends, as `NAME VIP,... BACK_END:WEIGHT|-...`.
fn shown(desired: &Desired) -> Vec<String> {
    let config = config();
    let one = |(name, service): (&Arc<str>, &VirtualService)| {
        let value = service.of_node(name, &config, &config.nodes[0]);
        let vips: Vec<String> = service.front_end.vips.iter().map(ToString::to_string).collect();
        let mut text = format!("{name} {}", vips.join(","));
        for back_end in value["back_ends"].as_array().unwrap() {
            let weight = back_end["weight"].as_u64().unwrap_or(1).to_string();
            let weight = if back_end["state"] == "draining" { "-" } else { &weight };
            text += &format!(" {}:{weight}", back_end["name"].as_str().unwrap());
        }
        text
    };
    desired.services.iter().map(one).collect()
}

fn status<'a>(desired: &'a Desired, name: &str) -> &'a Value {
    let found = desired.statuses.iter().find(|one| one.object.name.as_deref() == Some(name));
    &found.unwrap_or_else(|| panic!("no status of {name}: {:?}", desired.statuses)).status
}

/// Returns conditions as `TYPE=STATUS REASON`.
fn conditions(holder: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap().to_string();
    let one =
        |one: &Value| format!("{}={} {}", text(&one["type"]), text(&one["status"]), text(&one["reason"]));
    holder["conditions"].as_array().unwrap().iter().map(one).collect()
}

fn reasons(desired: &Desired) -> Vec<&str> {
    desired.events.iter().map(|event| event.reason).collect()
}

const SHOP: &str = r#"
- kind: Service
  metadata: { namespace: shop, name: web, creationTimestamp: "2026-01-01T00:00:00Z" }
  spec:
    type: LoadBalancer
    loadBalancerClass: weir-net.github.io/lb
    ipFamilies: [IPv4, IPv6]
    sessionAffinity: ClientIP
    ports: [{ name: http, port: 80 }, { name: quic, port: 80, protocol: UDP }]
- kind: EndpointSlice
  metadata: { namespace: shop, name: web-1, labels: { kubernetes.io/service-name: web } }
  addressType: IPv4
  ports: [{ name: http, port: 8080 }]
  endpoints:
  - { addresses: [10.1.0.1], conditions: { ready: true } }
  - { addresses: [10.1.0.2], conditions: { ready: false, serving: true, terminating: true } }
- kind: EndpointSlice
  metadata: { namespace: other, name: web-1, labels: { kubernetes.io/service-name: web } }
  addressType: IPv4
  ports: [{ name: http, port: 8080 }]
  endpoints: [{ addresses: [10.9.9.9] }]
"#;

#[test]
fn a_service_has_addresses_and_its_endpoints() {
    let first = run(SHOP);
    assert_eq!(
        shown(&first),
        [
            "shop.web.80-tcp 192.0.2.0 10.1.0.1_8080:1 10.1.0.2_8080:-",
            "shop.web.80-tcp-v6 2001:db8::",
            "shop.web.80-udp 192.0.2.0",
            "shop.web.80-udp-v6 2001:db8::",
        ]
    );
    let ingress = json!([{ "ip": "192.0.2.0", "ipMode": "VIP" }, { "ip": "2001:db8::", "ipMode": "VIP" }]);
    assert_eq!(status(&first, "web"), &json!({ "loadBalancer": { "ingress": ingress } }));
    assert_eq!(reasons(&first), ["AddressAssigned", "AddressAssigned"]);
    let config = config();
    let value = first.services["shop.web.80-tcp"].of_node("shop.web.80-tcp", &config, &config.nodes[0]);
    let expected = json!({
        "port": "p0", "name": "shop.web.80-tcp",
        "service": { "vip": "192.0.2.0", "protocol": "tcp", "port": "80" },
        "back_ends": [
            { "mode": "full_nat", "name": "10.1.0.1_8080", "ip": "10.1.0.1", "port": "8080" },
            { "mode": "full_nat", "name": "10.1.0.2_8080", "ip": "10.1.0.2", "port": "8080",
              "state": "draining" },
        ],
        "fail": "reject", "affinity": { "timeout": "10800s" },
    });
    assert_eq!(value, expected);
}

#[test]
fn other_classes_are_ignored_and_statuses_come_to_rest() {
    let mut all = snapshot(SHOP);
    for class in ["", "loadBalancerClass: example.com/other, "] {
        let text = format!(
            "{{ kind: Service, metadata: {{ namespace: x, name: other }}, \
                              spec: {{ type: LoadBalancer, {class}ports: [{{ port: 1 }}] }} }}"
        );
        add(&mut all, &yaml(&text));
    }
    let unconfirmed = desired(&config(), &all);
    confirm(&mut all, &unconfirmed);
    let first = desired(&config(), &all);
    assert_eq!(first.statuses.len(), 1);
    apply(&mut all, &first);
    let second = desired(&config(), &all);
    assert_eq!((second.statuses, second.events), (vec![], vec![]));
    assert_eq!(second.services, first.services);
}

#[test]
fn a_bad_annotation_has_an_event_and_changes_nothing() {
    let with = |annotation: &str, status: &str| {
        let text = format!(
            "- kind: Service
  metadata: {{ namespace: a, name: b, annotations: {{ {annotation} }} }}
  spec:
    type: LoadBalancer
    loadBalancerClass: weir-net.github.io/lb
    ports: [{{ port: 53, protocol: UDP }}]
  status: {{ loadBalancer: {{ ingress: [{status}] }} }}"
        );
        let desired = run(&text);
        let reasons = reasons(&desired).join(" ");
        (shown(&desired).join(" "), reasons, desired.statuses.len())
    };
    let has = "{ ip: 192.0.2.3 }";
    for wrong in ["addresses: 192.0.2.x", "addresses: '2001:db8::1'", "pool: c", "addresses: ''"] {
        let wrong = format!("weir-net.github.io/{wrong}");
        let kept = ("a.b.53-udp 192.0.2.3".to_string(), "InvalidAnnotation".to_string(), 0);
        assert_eq!(with(&wrong, has), kept, "{wrong}");
        assert_eq!(with(&wrong, "").0, "", "{wrong}");
    }
    let taken = with("weir-net.github.io/addresses: 203.0.113.1", has);
    assert_eq!(taken, ("a.b.53-udp 192.0.2.3".into(), "AddressUnavailable".into(), 0));
    let moved = with("weir-net.github.io/pool: b", has);
    assert_eq!(moved, ("a.b.53-udp 198.51.100.1".into(), "AddressAssigned".into(), 1));
}

#[test]
fn warnings_are_repeated_as_long_as_they_hold() {
    let mut all = snapshot(&SHOP.replace(
        "web, creationTimestamp",
        "web, annotations: { weir-net.github.io/pool: six }, creationTimestamp",
    ));
    let (mut known, config) = (Incremental::default(), config());
    let first = desired(&config, &all);
    confirm(&mut all, &first);
    let changed = Changed::all(&all);
    let update = known.update(&config, &all, &changed);
    let reasons = |known: &Incremental| lasting(known, &[]).iter().map(|one| one.reason).collect::<Vec<_>>();
    assert_eq!(update.events.len(), 2, "{:?}", update.events);
    assert_eq!(reasons(&known), ["PoolExhausted"], "no news of an address");
    let mut refusal = update.events[0].clone();
    refusal.reason = "Refused";
    assert_eq!(lasting(&known, &[refusal]).len(), 2);
    all.services.clear();
    known.update(&config, &all, &changed);
    assert_eq!(reasons(&known), [""; 0]);
}

#[test]
fn source_ranges_are_the_clients_that_are_served() {
    let with = |ranges: &str| {
        let desired = run(&format!(
            "- kind: Service
  metadata: {{ namespace: a, name: b }}
  spec:
    type: LoadBalancer
    loadBalancerClass: weir-net.github.io/lb
    loadBalancerSourceRanges: [{ranges}]
    ports: [{{ port: 53 }}]\n"
        ));
        let config = config();
        let clients = desired.services.iter().map(|(name, one)| one.of_node(name, &config, &config.nodes[0]));
        let clients: Vec<Value> = clients.map(|one| one["clients"].clone()).collect();
        (clients, reasons(&desired).join(" "))
    };
    assert_eq!(with(""), (vec![Value::Null], "AddressAssigned".into()));
    let some = json!(["10.1.0.0/16", "2001:db8::/32", "0.0.0.0/0"]);
    let asked = "10.1.2.3/16, '2001:db8::1/32', ' 0.0.0.0/0 '";
    assert_eq!(with(asked), (vec![some], "AddressAssigned".into()));
    let left = (vec![json!(["10.1.0.0/16"])], "AddressAssigned InvalidSourceRange".into());
    assert_eq!(with("10.1.0.0/16, 10.0.0.0/33"), left);
    assert_eq!(with("x"), (vec![], "AddressAssigned InvalidSourceRange".into()), "not all are served");
    let once = (vec![json!(["10.0.0.0/8"])], "AddressAssigned".into());
    assert_eq!(with("10.1.0.0/8, 10.2.0.0/8, 10.2.0.0/8"), once);
    let many = |count: u32| -> Vec<String> {
        (0..count).map(|at| format!("10.{}.{}.0/24", at / 256, at % 256)).collect()
    };
    assert_eq!(with(&many(256).join(", ")), (vec![json!(many(256))], "AddressAssigned".into()));
    let cut = (vec![json!(many(256))], "AddressAssigned TooManySourceRanges".into());
    assert_eq!(with(&many(258).join(", ")), cut);
}

#[test]
fn one_ip_version_is_enough_for_those_who_prefer_two() {
    let pools = "pools: [{ name: a, addresses: [192.0.2.0/30] }]";
    let four = format!("{{ template: {{ port: p0 }}, each: {{ mode: nat }}, {pools} }}");
    let four = Config::parse(&four).unwrap();
    let with = |config: &Config, policy: &str| {
        let policy = format!("    ipFamilyPolicy: {policy}\n    ipFamilies");
        let mut all = snapshot(&SHOP.replace("    ipFamilies", &policy));
        let first = desired(config, &all);
        confirm(&mut all, &first);
        let desired = desired(config, &all);
        (reasons(&desired).join(" "), desired.services.len())
    };
    assert_eq!(with(&four, "PreferDualStack"), ("AddressAssigned".into(), 2));
    assert_eq!(with(&four, "RequireDualStack"), ("PoolExhausted AddressAssigned".into(), 2));
    assert_eq!(with(&config(), "PreferDualStack"), ("AddressAssigned AddressAssigned".into(), 4));
}

const GATEWAY: &str = r#"
- { kind: Namespace, metadata: { name: infra } }
- { kind: Namespace, metadata: { name: apps, labels: { team: red } } }
- kind: GatewayClass
  metadata: { name: weir, generation: 1 }
  spec: { controllerName: weir-net.github.io/gateway }
- kind: Gateway
  metadata: { namespace: infra, name: edge, generation: 3, creationTimestamp: "2026-01-01T00:00:00Z" }
  spec:
    gatewayClassName: weir
    listeners:
    - { name: db, protocol: TCP, port: 5432 }
    - { name: dns, protocol: UDP, port: 5432, allowedRoutes: { namespaces: { from: All } } }
    - name: red
      protocol: TCP
      port: 6000
      allowedRoutes: { namespaces: { from: Selector, selector: { matchLabels: { team: red } } } }
- kind: Service
  metadata: { namespace: infra, name: one }
  spec: { ports: [{ name: p, port: 5432 }] }
- kind: Service
  metadata: { namespace: infra, name: two }
  spec: { ports: [{ name: p, port: 5432 }] }
- kind: EndpointSlice
  metadata: { namespace: infra, name: one, labels: { kubernetes.io/service-name: one } }
  addressType: IPv4
  ports: [{ name: p, port: 1 }]
  endpoints: [{ addresses: [10.0.0.1] }, { addresses: [10.0.0.2] }]
- kind: EndpointSlice
  metadata: { namespace: infra, name: two, labels: { kubernetes.io/service-name: two } }
  addressType: IPv4
  ports: [{ name: p, port: 2 }]
  endpoints: [{ addresses: [10.0.0.3] }]
"#;

fn route(namespace: &str, name: &str, created: &str, parent: &str, refs: &str) -> String {
    format!(
        "- kind: TCPRoute
  metadata: {{ namespace: {namespace}, name: {name}, creationTimestamp: \"2026-01-{created}T00:00:00Z\" }}
  spec: {{ parentRefs: [{{ {parent} }}], rules: [{{ backendRefs: [{refs}] }}] }}\n"
    )
}

fn of_gateway(more: &str) -> Desired {
    run(&format!("{GATEWAY}{more}"))
}

fn of_route(desired: &Desired, name: &str) -> Vec<String> {
    conditions(&status(desired, name)["parents"][0])
}

#[test]
fn routes_with_weights_get_the_listeners_that_they_name() {
    let refs = "{ name: one, port: 5432, weight: 70 }, { name: two, port: 5432, weight: 30 }";
    let desired = of_gateway(&route("infra", "r", "01", "name: edge, sectionName: db", refs));
    let expected = ["gateway.infra.edge.5432-tcp 192.0.2.0 10.0.0.1_1:7 10.0.0.2_1:7 10.0.0.3_2:6"];
    assert_eq!(shown(&desired), expected);
    assert_eq!(of_route(&desired, "r"), ["Accepted=True Accepted", "ResolvedRefs=True ResolvedRefs"]);
    let edge = status(&desired, "edge");
    assert_eq!(conditions(edge), ["Accepted=True Accepted", "Programmed=True Programmed"]);
    assert_eq!(edge["addresses"], json!([{ "type": "IPAddress", "value": "192.0.2.0" }]));
    assert_eq!(edge["conditions"][0]["observedGeneration"], 3);
    let attached: Vec<u64> = edge["listeners"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["attachedRoutes"].as_u64().unwrap())
        .collect();
    assert_eq!(attached, [1, 0, 0]);
    assert_eq!(edge["listeners"][1]["supportedKinds"][0]["kind"], "UDPRoute");
    assert_eq!(
        conditions(&edge["listeners"][0]),
        [
            "Accepted=True Accepted",
            "Conflicted=False NoConflicts",
            "ResolvedRefs=True ResolvedRefs",
            "Programmed=True Programmed",
        ]
    );
    assert_eq!(conditions(status(&desired, "weir")), ["Accepted=True Accepted"]);
}

#[test]
fn a_gateway_is_programmed_once_all_nodes_have_confirmed_its_services() {
    let mut all = snapshot(&format!(
        "{GATEWAY}{}",
        route("infra", "r", "01", "name: edge, sectionName: db", "{ name: one, port: 5432 }")
    ));
    let config = config();
    let first = desired(&config, &all);
    let edge = status(&first, "edge");
    assert_eq!(conditions(edge), ["Accepted=True Accepted", "Programmed=False Pending"]);
    let why = "these nodes have not confirmed its services: n";
    assert_eq!(edge["conditions"][1]["message"], why);
    // A listener without routes has no services.
    let of = |edge: &Value, at: usize| conditions(&edge["listeners"][at])[3].clone();
    assert_eq!([of(edge, 0), of(edge, 1)], ["Programmed=False Pending", "Programmed=True Programmed"]);
    apply(&mut all, &first);
    confirm(&mut all, &first);
    let second = desired(&config, &all);
    assert_eq!(conditions(status(&second, "edge"))[1], "Programmed=True Programmed");
    apply(&mut all, &second);
    // A controller that restarts knows nothing about nodes yet, and changes nothing.
    all.confirmed.clear();
    assert_eq!(desired(&config, &all).statuses, []);
    // A node that has an older form of a service, because it refuses the new one.
    confirm(&mut all, &second);
    let name: Arc<str> = "gateway.infra.edge.5432-tcp".into();
    all.confirmed.get_mut("n").unwrap().get_mut(&name).unwrap().vips.clear();
    assert_eq!(conditions(status(&desired(&config, &all), "edge"))[1], "Programmed=False Pending");
}

#[test]
fn the_oldest_route_gets_the_packets_of_a_listener() {
    let parent = "name: edge, port: 5432";
    let young = route("infra", "a", "02", parent, "{ name: one, port: 5432 }");
    let old = route("infra", "z", "01", parent, "{ name: two, port: 5432 }");
    let desired = of_gateway(&format!("{young}{old}"));
    assert_eq!(shown(&desired), ["gateway.infra.edge.5432-tcp 192.0.2.0 10.0.0.3_2:1"]);
    assert_eq!(status(&desired, "edge")["listeners"][0]["attachedRoutes"], 2);
    assert_eq!(of_route(&desired, "a")[0], "Accepted=True Accepted");
    let same = of_gateway(&format!("{young}{}", old.replace("01-01T", "01-02T")));
    assert_eq!(shown(&same)[0].split(' ').nth(2), Some("10.0.0.1_1:1"));
}

#[test]
fn what_listeners_do_not_allow_is_not_attached() {
    let refs = "{ name: one, port: 5432 }";
    let accepted = |namespace: &str, parent: &str| {
        let desired = of_gateway(&route(namespace, "r", "01", parent, refs));
        (of_route(&desired, "r")[0].clone(), desired.services.len())
    };
    let refused = |reason: &str| (format!("Accepted=False {reason}"), 0);
    let edge = "namespace: infra, name: edge";
    assert_eq!(accepted("infra", "name: edge, sectionName: none"), refused("NoMatchingParent"));
    assert_eq!(accepted("infra", "name: edge, port: 1"), refused("NoMatchingParent"));
    // A listener of UDP.
    assert_eq!(accepted("infra", "name: edge, sectionName: dns"), refused("NotAllowedByListeners"));
    assert_eq!(accepted("apps", &format!("{edge}, port: 5432")), refused("NotAllowedByListeners"));
    assert_eq!(accepted("infra", "name: edge, sectionName: red"), refused("NotAllowedByListeners"));
    assert_eq!(accepted("apps", edge), ("Accepted=True Accepted".into(), 1));
    // Parents of others have no status, and statuses of others stay.
    let other = route("infra", "r", "01", "name: other", refs)
        + "  status: { parents: [{ controllerName: example.com/x, parentRef: { name: other } }] }\n";
    let desired = of_gateway(&other);
    assert!(desired.statuses.iter().all(|one| one.object.name.as_deref() != Some("r")));
    let both = of_gateway(&other.replace("[{ name: other }]", "[{ name: other }, { name: edge }]"));
    let parents = status(&both, "r")["parents"].as_array().unwrap();
    assert_eq!((parents.len(), &parents[0]["controllerName"]), (2, &json!("example.com/x")));
}

#[test]
fn references_are_resolved_or_say_why_not() {
    let resolved = |refs: &str, more: &str| {
        let desired = of_gateway(&(route("apps", "r", "01", "namespace: infra, name: edge", refs) + more));
        of_route(&desired, "r")[1].clone()
    };
    let infra = "{ namespace: infra, name: one, port: 5432 }";
    let refused = |reason: &str| format!("ResolvedRefs=False {reason}");
    assert_eq!(resolved("{ name: none, port: 1 }", ""), refused("BackendNotFound"));
    assert_eq!(resolved("{ kind: Pod, name: one, port: 1 }", ""), refused("InvalidKind"));
    assert_eq!(resolved(infra, ""), refused("RefNotPermitted"));
    let grant = |kind: &str, from: &str, to: &str| {
        format!(
            "- kind: ReferenceGrant
  metadata: {{ namespace: infra, name: g }}
  spec:
    from: [{{ group: gateway.networking.k8s.io, kind: {kind}, namespace: {from} }}]
    to: [{{ group: '', kind: Service{to} }}]\n"
        )
    };
    assert_eq!(resolved(infra, &grant("UDPRoute", "apps", "")), refused("RefNotPermitted"));
    assert_eq!(resolved(infra, &grant("TCPRoute", "shop", "")), refused("RefNotPermitted"));
    assert_eq!(resolved(infra, &grant("TCPRoute", "apps", ", name: two")), refused("RefNotPermitted"));
    assert_eq!(resolved(infra, &grant("TCPRoute", "apps", ", name: one")), "ResolvedRefs=True ResolvedRefs");
    let all = grant("TCPRoute", "apps", "");
    assert_eq!(resolved(&infra.replace("5432", "1"), &all), refused("BackendNotFound"));
    // The share of an unresolved reference is rejected.
    let refs = "{ name: one, port: 5432, weight: 6 }, { name: none, port: 5432, weight: 4 }";
    let desired = of_gateway(&route("infra", "r", "01", "name: edge, sectionName: db", refs));
    assert_eq!(of_route(&desired, "r")[1], refused("BackendNotFound"));
    let expected = ["gateway.infra.edge.5432-tcp 192.0.2.0 10.0.0.1_1:3 10.0.0.2_1:3 reject:4"];
    assert_eq!(shown(&desired), expected);
}

#[test]
fn wrong_listeners_and_addresses_have_conditions() {
    let with = |listeners: &str, more: &str| {
        let text = format!(
            "- kind: Gateway
  metadata: {{ namespace: infra, name: g2 }}
  spec: {{ gatewayClassName: weir, listeners: [{listeners}]{more} }}\n"
        );
        status(&of_gateway(&text), "g2").clone()
    };
    let good = "{ name: a, protocol: TCP, port: 1 }";
    let http = "{ name: b, protocol: HTTP, port: 80 }";
    let one = with(http, "");
    assert_eq!(conditions(&one), ["Accepted=False ListenersNotValid", "Programmed=False Invalid"]);
    assert_eq!(conditions(&one["listeners"][0])[0], "Accepted=False UnsupportedProtocol");
    let partly = with(&format!("{good}, {http}"), "");
    assert_eq!(conditions(&partly), ["Accepted=True ListenersNotValid", "Programmed=True Programmed"]);
    let conflict = with(&format!("{good}, {}", http.replace("80", "1")), "");
    assert_eq!(conditions(&conflict["listeners"][0])[1], "Conflicted=True ProtocolConflict");
    assert_eq!(conditions(&conflict["listeners"][1])[1], "Conflicted=True ProtocolConflict");
    let kinds =
        with("{ name: a, protocol: TCP, port: 1, allowedRoutes: { kinds: [{ kind: HTTPRoute }] } }", "");
    assert_eq!(conditions(&kinds["listeners"][0])[2], "ResolvedRefs=False InvalidRouteKinds");
    assert_eq!(kinds["listeners"][0]["supportedKinds"], json!([]));
    let address = |text: &str| conditions(&with(good, &format!(", addresses: [{{ {text} }}]")));
    assert_eq!(address("value: 203.0.113.1")[1], "Programmed=False AddressNotUsable");
    assert_eq!(address("type: Hostname, value: x.example")[0], "Accepted=False UnsupportedAddress");
    assert_eq!(address("value: 192.0.2.2"), ["Accepted=True Accepted", "Programmed=True Programmed"]);
}

/// A cluster in which many things are wrong.
fn any_cluster() -> impl Strategy<Value = Cluster> {
    let pick = |all: &'static [&'static str]| prop::sample::select(all);
    let refs = pick(&["{ name: one, port: 5432, weight: 3 }", "{ name: none, port: 5432 }", ""]);
    let parents = pick(&["name: edge", "name: edge, port: 5432", "name: edge, port: 9", "name: other"]);
    let routes = prop::collection::vec((pick(&["infra", "apps"]), 0u8..3, parents, refs), 0..4);
    let services = prop::collection::vec(
        (0u8..6, pick(&["", "addresses: 192.0.2.1", "addresses: x", "pool: b", "pool: none"])),
        0..7,
    );
    (routes, services).prop_map(|(routes, services)| {
        let mut text = GATEWAY.to_string();
        for (at, (namespace, day, parent, refs)) in routes.iter().enumerate() {
            text += &route(namespace, &format!("r{at}"), &format!("0{}", day + 1), parent, refs);
        }
        for (name, annotation) in services {
            let annotation = if annotation.is_empty() {
                String::new()
            } else {
                format!("weir-net.github.io/{annotation}")
            };
            text += &format!(
                "- kind: Service
  metadata: {{ namespace: a, name: s{name}, annotations: {{ {annotation} }} }}
  spec: {{ type: LoadBalancer, loadBalancerClass: weir-net.github.io/lb, ports: [{{ port: 80 }}] }}\n"
            );
        }
        snapshot(&text)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Addresses have one owner, and once the cluster has the statuses, nothing changes: a controller that
    /// starts again finds everything as it left it.
    #[test]
    fn any_cluster_comes_to_rest(mut all in any_cluster()) {
        let config = config();
        let mut last = Desired::default();
        for round in 0..8 {
            let next = desired(&config, &all);
            let mut owners = std::collections::BTreeMap::new();
            for service in next.services.values() {
                for vip in &service.front_end.vips {
                    let owner = owners.entry(*vip).or_insert(&service.origin);
                    prop_assert_eq!(*owner, &service.origin);
                }
            }
            apply(&mut all, &next);
            confirm(&mut all, &next);
            prop_assert!(round < 7 || next.statuses.is_empty(), "{:?}", next.statuses);
            prop_assert!(round < 7 || next.services == last.services);
            last = next;
        }
    }
}
