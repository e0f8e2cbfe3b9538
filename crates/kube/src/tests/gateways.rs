//! Gateways and their classes, as users change them, beside other controllers.

use super::*;

const FINALIZER: &str = "gateway-exists-finalizer.gateway.networking.k8s.io";

/// A gateway `g2` with one listener.
fn gateway(listener: &str, more: &str) -> String {
    format!(
        "- kind: Gateway
  metadata: {{ namespace: infra, name: g2 }}
  spec: {{ gatewayClassName: weir, listeners: [{{ name: a, port: 1, {listener} }}]{more} }}\n"
    )
}

/// Applies statuses and finalizers until nothing changes any more.
fn rest(all: &mut Cluster) -> Desired {
    for _ in 0..6 {
        let next = desired(&config(), all);
        confirm(all, &next);
        apply(all, &next);
    }
    let last = desired(&config(), all);
    assert_eq!(last.statuses, []);
    last
}

#[test]
fn controllers_that_share_a_route_come_to_rest() {
    let other = Config { controller: "example.com/other".into(), ..config() };
    let shared = route("infra", "r", "01", "name: edge }, { name: theirs", "{ name: one, port: 5432 }");
    let mut all = snapshot(&format!(
        "{GATEWAY}{shared}
- {{ kind: GatewayClass, metadata: {{ name: theirs }}, spec: {{ controllerName: example.com/other }} }}
- kind: Gateway
  metadata: {{ namespace: infra, name: theirs }}
  spec: {{ gatewayClassName: theirs, listeners: [{{ name: a, protocol: TCP, port: 1 }}] }}\n"
    ));
    for round in 0..6 {
        for config in [&config(), &other] {
            let next = desired(config, &all);
            apply(&mut all, &next);
            assert!(round < 4 || next.statuses.is_empty(), "{:?}", next.statuses);
        }
    }
    let parents = &all.tcp_routes.values().next().unwrap().status.as_ref().unwrap().parents;
    let names: Vec<_> = parents.iter().map(|one| one["parentRef"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["edge", "theirs"]);
}

#[test]
fn gateways_outlive_the_acceptance_of_their_class() {
    let attached = route("infra", "r", "01", "name: edge", "{ name: one, port: 5432 }");
    let mut all = snapshot(&format!("{GATEWAY}{attached}"));
    let before = rest(&mut all);
    assert_eq!(before.services.len(), 1);
    let class = all.classes.values().next().unwrap();
    assert_eq!(class.metadata.finalizers, Some(vec![FINALIZER.into()]));
    let mut class = serde_json::to_value(&**class).unwrap();
    class["kind"] = "GatewayClass".into();
    class["spec"]["parametersRef"] = json!({ "group": "", "kind": "ConfigMap", "name": "x" });
    add(&mut all, &class);
    // One that is new is not implemented. Its status is what the API server gives it.
    let mut late = yaml(&gateway("protocol: TCP", ""))[0].clone();
    late["status"]["conditions"] = json!([{ "type": "Accepted", "status": "Unknown", "reason": "Pending",
        "message": "Waiting for controller", "lastTransitionTime": "1970-01-01T00:00:00Z" }]);
    add(&mut all, &late);
    let after = desired(&config(), &all);
    assert_eq!(after.services, before.services);
    assert_eq!(conditions(status(&after, "weir")), ["Accepted=False InvalidParameters"]);
    assert_eq!(after.statuses.len(), 1, "{:?}", after.statuses);
}

#[test]
fn conditions_that_others_have_added_stay() {
    let mut gateway = yaml(&gateway("protocol: TCP", ""))[0].clone();
    let other = json!({ "type": "example.com/Audited", "status": "True", "reason": "Audited", "message": "",
        "lastTransitionTime": "1970-01-01T00:00:00Z" });
    gateway["status"]["conditions"] = json!([other]);
    let mut all = snapshot(GATEWAY);
    add(&mut all, &gateway);
    let desired = desired(&config(), &all);
    let all = conditions(status(&desired, "g2"));
    assert_eq!(all[0], "example.com/Audited=True Audited");
    assert!(all[1].starts_with("Accepted=True"), "{all:?}");
}

#[test]
fn a_class_has_its_finalizer_as_long_as_gateways_name_it() {
    let mut all = snapshot(GATEWAY);
    rest(&mut all);
    all.gateways.clear();
    let last = desired(&config(), &all);
    assert_eq!(last.statuses.iter().map(|one| one.finalizers.clone()).collect::<Vec<_>>(), [Some(vec![])]);
    // One that is being deleted cannot get it any more.
    let mut all = snapshot(&GATEWAY.replace(
        "{ name: weir, generation: 1 }",
        "{ name: weir, deletionTimestamp: \"2026-11-01T09:00:00Z\", finalizers: [example.com/x] }",
    ));
    rest(&mut all);
    let class = all.classes.values().next().unwrap();
    assert_eq!(class.metadata.finalizers, Some(vec!["example.com/x".into()]));
}

#[test]
fn a_class_claims_only_features_whose_tests_can_pass() {
    let claimed = status(&run(GATEWAY), "weir")["supportedFeatures"].clone();
    assert_eq!(
        claimed,
        json!([{ "name": "ReferenceGrant" }, { "name": "TCPRoute" }, { "name": "UDPRoute" }])
    );
}

#[test]
fn a_listener_is_programmed_if_one_of_its_kinds_of_routes_is_served() {
    let kinds = "protocol: TCP, allowedRoutes: { kinds: [{ kind: HTTPRoute }, { kind: TCPRoute }] }";
    let attached = route("infra", "r", "01", "name: g2", "{ name: one, port: 5432 }");
    let desired = of_gateway(&format!("{}{attached}", gateway(kinds, "")));
    let listener = &status(&desired, "g2")["listeners"][0];
    assert_eq!(desired.services.len(), 1);
    assert_eq!(
        conditions(listener)[2..],
        ["ResolvedRefs=False InvalidRouteKinds", "Programmed=True Programmed"]
    );
}

#[test]
fn listeners_of_a_gateway_that_lacks_an_address_are_valid() {
    let asks = gateway("protocol: TCP", ", addresses: [{ value: 203.0.113.1 }]");
    let has = "  status: { addresses: [{ type: IPAddress, value: 192.0.2.3 }] }\n";
    let desired = of_gateway(&format!("{asks}{has}"));
    let g2 = status(&desired, "g2");
    assert_eq!(g2["addresses"][0]["value"], "192.0.2.3");
    assert_eq!(conditions(g2)[1], "Programmed=False AddressNotUsable");
    assert_eq!(conditions(&g2["listeners"][0])[3], "Programmed=False Pending");
}

#[test]
fn a_gateway_chooses_a_pool_and_ip_versions() {
    let with = |more: &str| {
        let desired = of_gateway(&gateway("protocol: TCP", &format!(", {more}")));
        let g2 = status(&desired, "g2").clone();
        let addresses = g2["addresses"].as_array().unwrap().iter();
        let addresses: Vec<_> = addresses.map(|one| one["value"].as_str().unwrap().to_string()).collect();
        (addresses.join(" "), conditions(&g2)[0].clone())
    };
    let pool =
        |name: &str| format!("infrastructure: {{ annotations: {{ weir-net.github.io/pool: {name} }} }}");
    let accepted = |addresses: &str| (addresses.to_string(), "Accepted=True Accepted".to_string());
    let refused = |reason: &str| (String::new(), format!("Accepted=False {reason}"));
    assert_eq!(with(&pool("b")), accepted("198.51.100.1"));
    assert_eq!(with(&pool("six")), accepted("2001:db8::"));
    assert_eq!(with(&pool("x")), refused("Invalid"));
    let any = "{ type: IPAddress }";
    assert_eq!(with(&format!("addresses: [{any}, {any}]")), accepted("192.0.2.1 2001:db8::"));
    assert_eq!(
        with(&format!("addresses: [{any}, {{ value: 192.0.2.2 }}]")),
        accepted("192.0.2.2 2001:db8::")
    );
    assert_eq!(with(&format!("addresses: [{any}, {any}, {any}]")), refused("UnsupportedAddress"));
}
