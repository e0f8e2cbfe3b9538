//! What nodes get for Services, and what Services get in return.

use super::*;
use crate::objects::Protocol;

/// Returns the configuration with these keys of `template` and `each`.
fn with(template: &str, each: &str) -> Config {
    Config::parse(&format!(
        "{{ template: {{ port: p0, {template} }}, each: {{ {each} }},
           nodes: [{{ name: n, url: 'unix:/x' }}], pools: [{{ name: a, addresses: [192.0.2.0/30] }}] }}"
    ))
    .unwrap()
}

#[test]
fn checks_of_another_protocol_are_left_out() {
    let checked = |template: &str, each: &str| {
        let config = with(template, each);
        let desired = desired(&config, &snapshot(SHOP));
        ["shop.web.80-tcp", "shop.web.80-udp"].map(|name| {
            let mut service = desired.services[name].clone();
            // The UDP port has no endpoints in this snapshot.
            service.groups = desired.services["shop.web.80-tcp"].groups.clone();
            let value = service.of_node(name, &config, &config.nodes[0]);
            value.get("check").is_some() || value["back_ends"][0].get("check").is_some()
        })
    };
    for kind in ["tcp", "http", "https", "tls"] {
        assert_eq!(checked(&format!("check: {{ type: {kind} }}"), "mode: nat"), [true, false], "{kind}");
    }
    for kind in ["udp", "dns"] {
        assert_eq!(checked(&format!("check: {{ type: {kind} }}"), "mode: nat"), [false, true], "{kind}");
    }
    assert_eq!(checked("check: { type: icmp }", "mode: nat"), [true, true]);
    assert_eq!(checked("check: { type: http, port: 8081 }", "mode: nat"), [true, true], "a port for health");
    assert_eq!(checked("", "mode: nat, check: { type: tcp }"), [true, false]);
    assert_eq!(checked("check: { type: tcp }", "mode: nat, check: { port: 8081 }"), [true, true]);
    assert_eq!(checked("check: { type: tcp }", "mode: nat, check: { type: dns }"), [false, true]);
    assert!(with("", "").checks(Protocol::Udp));
}

#[test]
fn an_address_is_published_once_a_node_has_all_services_that_use_it() {
    let mut config = config();
    config.nodes.extend(serde_saphyr::from_str::<crate::config::NodeConfig>("{ name: m, url: 'unix:/y' }"));
    let mut all = snapshot(SHOP);
    let first = desired(&config, &all);
    assert_eq!((first.services.len(), &first.statuses, reasons(&first)), (4, &vec![], vec![]));
    let mut confirmed: BTreeMap<_, _> =
        first.services.iter().map(|(name, one)| (name.clone(), one.front_end.clone())).collect();
    // A node that refuses one of the services at the IPv4 address, or has an older form of it.
    let udp: Arc<str> = "shop.web.80-udp".into();
    let missing = confirmed.remove(&udp).unwrap();
    all.confirmed.insert("m".into(), confirmed.clone());
    let ingress = |desired: &Desired| status(desired, "web")["loadBalancer"]["ingress"].clone();
    let six = json!([{ "ip": "2001:db8::", "ipMode": "VIP" }]);
    assert_eq!(ingress(&desired(&config, &all)), six);
    let mut older = missing.clone();
    older.port = 81;
    all.confirmed.get_mut("m").unwrap().insert(udp.clone(), older);
    assert_eq!(ingress(&desired(&config, &all)), six);
    // The other node is down.
    all.confirmed.get_mut("m").unwrap().insert(udp, missing);
    let both = desired(&config, &all);
    assert_eq!(ingress(&both).as_array().unwrap().len(), 2);
    apply(&mut all, &both);
    // It stays, whatever happens to nodes and controllers.
    all.confirmed.clear();
    assert_eq!(desired(&config, &all).statuses, []);
    config.nodes.clear();
    assert_eq!(desired(&config, &snapshot(SHOP)).statuses.len(), 1, "there is no node to wait for");
}

#[test]
fn an_address_that_a_status_has_lost_is_written_again() {
    let (config, mut all) = (config(), snapshot(SHOP));
    let first = desired(&config, &all);
    confirm(&mut all, &first);
    let both = desired(&config, &all);
    apply(&mut all, &both);
    // A controller starts when the status has all addresses.
    all.confirmed.clear();
    let again = desired(&config, &all);
    confirm(&mut all, &again);
    let service = Arc::make_mut(all.services.values_mut().next().unwrap());
    service.balanced.as_mut().unwrap().ingress.clear();
    assert_eq!(status(&desired(&config, &all), "web"), status(&both, "web"));
}

#[test]
fn an_address_that_moves_is_replaced_once_the_new_one_is_served() {
    let config = config();
    let mut all = snapshot(&SHOP.replace(
        "web, creationTimestamp",
        "web, annotations: { weir-net.github.io/addresses: '192.0.2.2, 2001:db8::' }, creationTimestamp",
    ));
    let service = Arc::make_mut(all.services.values_mut().next().unwrap());
    let before = ["192.0.2.1", "2001:db8::"].map(|ip| ip.parse::<std::net::IpAddr>().unwrap());
    service.balanced.as_mut().unwrap().ingress = before.to_vec();
    let first = desired(&config, &all);
    assert_eq!((first.services.len(), &first.statuses), (4, &vec![]));
    confirm(&mut all, &first);
    let ingress = json!([{ "ip": "192.0.2.2", "ipMode": "VIP" }, { "ip": "2001:db8::", "ipMode": "VIP" }]);
    let second = desired(&config, &all);
    assert_eq!(status(&second, "web")["loadBalancer"]["ingress"], ingress);
    apply(&mut all, &second);
    assert_eq!(desired(&config, &all).statuses, []);
}

#[test]
fn target_ports_that_nodes_ignore_have_an_event() {
    let notes = |each: &str, text: &str| {
        let desired = desired(&with("", each), &snapshot(text));
        let all = desired.events.into_iter().filter(|one| one.reason == "TargetPortIgnored");
        all.map(|one| one.note).collect::<Vec<_>>()
    };
    let ignored = notes("mode: ipip", SHOP);
    assert_eq!(ignored.len(), 1, "{ignored:?}");
    assert!(ignored[0].contains("port 80 at port 80, not at their target port 8080"), "{ignored:?}");
    assert_eq!(notes("", SHOP), ignored, "the default is l2");
    assert!(notes("mode: full_nat", SHOP).is_empty());
    assert!(notes("mode: ipip", &SHOP.replace("8080", "80")).is_empty());
    let attached = route("infra", "r", "01", "name: edge, sectionName: db", "{ name: one, port: 5432 }");
    let ignored = notes("mode: ipip", &format!("{GATEWAY}{attached}"));
    assert_eq!(ignored.len(), 1, "{ignored:?}");
    assert!(ignored[0].contains("port 5432 at port 5432, not at their target port 1:"), "{ignored:?}");
}

#[test]
fn hints_for_nodes_are_read() {
    let text = "[{ kind: EndpointSlice, metadata: { namespace: a, name: b }, addressType: IPv4, endpoints: [
        { addresses: [10.0.0.1], hints: { forNodes: [{ name: n1 }], forZones: [{ name: z }] } }] }]";
    let all = snapshot(text);
    let endpoint = &all.slices.values().next().unwrap().endpoints[0];
    assert_eq!((&*endpoint.for_nodes, &*endpoint.zones), (&["n1".into()][..], &["z".into()][..]));
}
