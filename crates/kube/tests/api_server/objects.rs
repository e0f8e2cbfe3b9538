//! Objects reach nodes, and get their conditions.

use crate::bed::{Bed, SERVICES, SLICES, wait};
use serde_json::{Value, json};

const GATEWAYS: &str = "/apis/gateway.networking.k8s.io/v1";

pub fn service(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": name },
        "spec": {
            "type": "LoadBalancer", "loadBalancerClass": "weir-net.github.io/lb",
            "allocateLoadBalancerNodePorts": false,
            "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }],
        },
    })
}

pub fn slice(service: &str, addresses: &[String]) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "name": service, "labels": { "kubernetes.io/service-name": service } },
        "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }],
        "endpoints": addresses.iter().map(|ip| json!({ "addresses": [ip] })).collect::<Vec<_>>(),
    })
}

fn endpoints(all: &[&str]) -> Vec<String> {
    all.iter().map(ToString::to_string).collect()
}

fn condition<'a>(status: &'a Value, kind: &str) -> &'a Value {
    let all = status["conditions"].as_array().unwrap();
    &all.iter().find(|one| one["type"] == kind).unwrap_or_else(|| panic!("no {kind}: {status}"))["status"]
}

/// A service gets an address, and its endpoints: through a rolling update, without endpoints, with one again,
/// and after it was deleted and created.
pub fn endpoints_come_and_go(bed: &Bed) {
    bed.create(SERVICES, &service("web"));
    bed.create(SLICES, &slice("web", &endpoints(&["10.1.0.1", "10.1.0.2"])));
    bed.until("shop.web.80-tcp", &["10.1.0.1", "10.1.0.2"]);
    let path = format!("{SERVICES}/web");
    let address: String = wait("an address", || {
        bed.get(&path)["status"]["loadBalancer"]["ingress"][0]["ip"].as_str().map(Into::into)
    });
    assert_eq!(bed.services(0).services[0]["service"]["vip"], address.as_str());
    bed.put_slice("web", &endpoints(&["10.1.0.2", "10.1.0.3"]));
    bed.until("shop.web.80-tcp", &["10.1.0.2", "10.1.0.3"]);
    bed.put_slice("web", &[]);
    bed.until("shop.web.80-tcp", &[]);
    bed.put_slice("web", &endpoints(&["10.1.0.9"]));
    bed.until("shop.web.80-tcp", &["10.1.0.9"]);
    bed.ask("DELETE", &path, &json!({})).unwrap();
    for node in 0..bed.nodes.len() {
        wait("no service", || bed.services(node).services.is_empty().then_some(()));
    }
    bed.create(SERVICES, &service("web"));
    bed.until("shop.web.80-tcp", &["10.1.0.9"]);
}

/// A gateway and a route reach the nodes, and get their conditions.
pub fn a_gateway_has_conditions(bed: &Bed) {
    let create = |path: &str, kind: &str, name: &str, spec: Value| {
        let version = "gateway.networking.k8s.io/v1";
        let object =
            json!({ "apiVersion": version, "kind": kind, "metadata": { "name": name }, "spec": spec });
        bed.create(&format!("{GATEWAYS}/{path}"), &object);
    };
    let class = json!({ "controllerName": "weir-net.github.io/gateway" });
    create("gatewayclasses", "GatewayClass", "weir", class);
    let listener = json!({ "name": "db", "port": 5432, "protocol": "TCP" });
    let edge = json!({ "gatewayClassName": "weir", "listeners": [listener] });
    create("namespaces/shop/gateways", "Gateway", "edge", edge);
    let rule = json!({ "backendRefs": [{ "name": "web", "port": 80 }] });
    let route = json!({ "parentRefs": [{ "name": "edge" }], "rules": [rule] });
    create("namespaces/shop/tcproutes", "TCPRoute", "db", route);
    let gateway = format!("{GATEWAYS}/namespaces/shop/gateways/edge");
    wait("a programmed gateway", || {
        let status = &bed.get(&gateway)["status"];
        let all = status["conditions"].as_array()?;
        all.iter().find(|one| one["type"] == "Programmed" && one["status"] == "True").map(drop)
    });
    bed.until("gateway.shop.edge.5432-tcp", &["10.1.0.9"]);
    let class = bed.get(&format!("{GATEWAYS}/gatewayclasses/weir"));
    assert_eq!(condition(&class["status"], "Accepted"), "True");
    wait("the finalizer of a class that is used", || {
        let class = bed.get(&format!("{GATEWAYS}/gatewayclasses/weir"));
        let finalizer = "gateway-exists-finalizer.gateway.networking.k8s.io";
        class["metadata"]["finalizers"].as_array()?.iter().find(|one| *one == finalizer).map(drop)
    });
    // Once all nodes have confirmed the service of the route.
    wait("a programmed listener", || {
        let listener = bed.get(&gateway)["status"]["listeners"][0].clone();
        (condition(&listener, "Programmed") == "True" && listener["attachedRoutes"] == 1).then_some(())
    });
    let route = bed.get(&format!("{GATEWAYS}/namespaces/shop/tcproutes/db"));
    let parent = &route["status"]["parents"][0];
    assert_eq!([condition(parent, "Accepted"), condition(parent, "ResolvedRefs")], ["True", "True"]);
    // The share of an unresolved reference is rejected.
    let missing = json!({ "name": "missing", "port": 80, "weight": 3 });
    let rule = json!({ "backendRefs": [{ "name": "web", "port": 80 }, missing] });
    let route = format!("{GATEWAYS}/namespaces/shop/tcproutes/db");
    bed.ask("PATCH", &route, &json!({ "spec": { "rules": [rule] } })).unwrap();
    for node in 0..bed.nodes.len() {
        wait("a back end that rejects", || {
            let services = bed.services(node).services;
            let service = services.iter().find(|one| one["name"] == "gateway.shop.edge.5432-tcp")?;
            let all = service["back_ends"].as_array()?;
            let share = |one: &Value| one["mode"] == "reject" && one["weight"] == 3;
            all.iter().any(share).then_some(())
        });
    }
    wait("a condition", || {
        let parent = bed.get(&route)["status"]["parents"][0].clone();
        (condition(&parent, "ResolvedRefs") == "False").then_some(())
    });
}
