//! Back ends of the load balancer specified by IP address, or by MAC address.

use super::*;

fn text(back_end: &str, service: &str, port: &str) -> String {
    format!(
        "ports: {{ p0: {{ {port} }} }}\napps:\n  - lb:\n      name: web\n      port: p0\n      \
         service: {{ vip: 10.0.0.80, protocol: tcp, port: 80 }}\n      {service}\n      \
         back_ends:\n        - {{ name: b1, {back_end} }}\n"
    )
}

/// The address that is resolved, if nothing is wrong.
fn resolved(back_end: &str) -> Vec<String> {
    let loaded = read("test.yaml", &text(back_end, "source: 10.0.0.1", "xdp: eth0"));
    let plan = loaded.plan.unwrap_or_else(|| panic!("{}", loaded.report));
    plan.apps.hops().iter().map(|hop| format!("{} {}", hop.port, hop.address)).collect()
}

#[test]
fn the_address_that_is_resolved_is_its_own_or_its_router_s() {
    assert_eq!(resolved("ip: 10.0.0.11"), ["p0 10.0.0.11"]);
    assert_eq!(resolved("address: 10.0.0.11"), ["p0 10.0.0.11"]);
    assert_eq!(resolved("mode: ipip, ip: 10.9.0.11"), ["p0 10.9.0.11"]);
    assert_eq!(resolved("mode: ipip, ip: 10.9.0.11, address: 10.9.0.12"), ["p0 10.9.0.11"]);
    assert_eq!(resolved("mode: ipip, ip: 10.9.0.11, gateway: 10.0.0.254"), ["p0 10.0.0.254"]);
    assert_eq!(resolved("ip: 10.0.0.11, mac: 02:00:00:00:00:11"), [""; 0]);
}

#[test]
fn a_back_end_that_cannot_be_resolved_is_refused() {
    let said = |back_end, service, port| {
        let loaded = read("test.yaml", &text(back_end, service, port));
        assert!(loaded.plan.is_none(), "{}", loaded.report);
        loaded.report.to_string()
    };
    let eth0 = "xdp: eth0";
    for (back_end, message) in [
        ("weight: 1", "a back end needs `mac`, or `ip` so that its MAC address can be resolved"),
        ("ip: 10.0.0.11, address: 10.0.0.12", "`ip` and `address` (10.0.0.12) mean the same"),
        ("ip: 10.0.0.11, mac: 02:00:00:00:00:11, gateway: 10.0.0.1", "`mac` already says where"),
        ("ip: 224.0.0.1", "224.0.0.1 has no MAC address"),
        ("ip: 10.0.0.11, gateway: ten", "an IP address"),
    ] {
        let said = said(back_end, "by: 5-tuple", eth0);
        assert!(said.contains(message), "{back_end}: {said}");
    }
    let bits = said("ip: 10.0.0.11", "by: src/0.0.0.1", eth0);
    assert!(bits.contains("back end `b1` needs `mac`, because of `by: src/MASK`"), "{bits}");
    let mem = said("ip: 10.0.0.11", "by: source", "mem: ~");
    assert!(mem.contains("back end `b1` needs `mac`: the host has no neighbours at port `p0`"), "{mem}");
}
