//! What nodes get for Services, and what Services get for that.

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
