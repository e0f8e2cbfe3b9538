//! Path apps at ports in a configuration.

use super::*;

/// A configuration with three ports and this section of a path app on line 2.
fn with(section: &str) -> String {
    let ports = "ports: { p0: { mem: ~, mac: 02:00:00:00:00:01 }, p1: { mem: ~ }, p2: { mem: ~ } }";
    format!("{ports}\napps: [{{ path: {{ {section} }} }}]\n")
}

const GOOD: &str =
    "name: f, port: p0, input: p1, local: 10.0.0.1, next_hop: 02:00:00:00:00:02, peers: [10.0.0.2]";

#[test]
fn a_path_app_at_a_port_leads_its_ports() {
    let plan = plan(&with(GOOD));
    let roots: Vec<_> = plan.program.ports.iter().map(|port| port.root).collect();
    let pipe = |name| plan.program.pipe_named(name);
    assert_eq!(roots, [pipe("f/probes"), pipe("f"), None]);
    assert_eq!((plan.apps.running().len(), weir_path::fabrics(&plan.apps).len()), (1, 0));
    assert_eq!(plan.apps.take(PortId(1)), [Frames::All]);
    let group = &plan.program.groups[0];
    assert_eq!((group.name.as_str(), group.size, group.targets.len()), ("f/10.0.0.2", 64, 16));
}

#[test]
fn what_a_path_app_at_a_port_lacks_is_said_where_it_is() {
    let outcome = |from: &str, to: &str| {
        assert!(GOOD.contains(from), "{from}");
        wrong(&with(&GOOD.replace(from, to))).join("\n")
    };
    let said = [
        (("[10.0.0.2]", "[]"), "no peers: name the underlay address of at least one remote node"),
        (("[10.0.0.2]", "[10.0.0.2, 10.0.0.2]"), "10.0.0.2 is listed twice"),
        (("port: p0", "port: p9"), "there is no port `p9`"),
        (("input: p1", "input: p0"), "`p0` is already the port towards the fabric"),
        (("input: p1", "scheme: letflow"), "`scheme` cannot be `letflow`"),
        (("input: p1", "uplink: eth0"), "`uplink` goes with `uplink`, not with `port`"),
        (("input: p1", "ports: [7], sources: 50000-60000"), "`ports` lists the ports that are paths"),
        (("input: p1", "sources: 50000-50001"), "this range of ports cannot be used"),
        (("input: p1", "ports: [7, 7]"), "7 is listed twice"),
        (("input: p1", "ports: []"), "write 1 to 16 ports"),
        (("input: p1", "key: abc"), "a key has 32 hexadecimal digits"),
        (("port: p0, input: p1", "port: p1"), "the MAC address of port `p1` is not known here"),
        (("local: 10.0.0.1, ", ""), "`local` is missing"),
        (("next_hop: 02:00:00:00:00:02, ", ""), "`next_hop` is missing"),
    ];
    for ((from, to), what) in said {
        let outcome = outcome(from, to);
        assert!(outcome.starts_with("2:") && outcome.contains(what), "{what}: {outcome}");
    }
    let uplink =
        |peers: &str| wrong(&format!("apps: [{{ path: {{ name: f, uplink: u, peers: {peers} }} }}]\n"));
    for peers in ["10.0.0.2", "[]", "[x]", "{ a: 1 }"] {
        assert_eq!(uplink(peers).len(), 1, "{peers} is said once: {:?}", uplink(peers));
    }
}

#[test]
fn a_gateway_with_several_workers_is_possible() {
    let example = example("path-gateway");
    assert_eq!(wrong(&format!("workers: [0, 1]\n{example}")), [""; 0]);
    assert_eq!(
        wrong(&format!("workers: [0, 1]\n{}", example.replace("rate:", "headers: outer\n      rate:"))).len(),
        1
    );
}
