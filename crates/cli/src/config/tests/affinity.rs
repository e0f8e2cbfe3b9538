//! Services whose clients keep their back end.

use super::*;
use weir_program::Affinity;

fn loaded(keys: &str) -> Loaded {
    let text = format!(
        "ports: {{ p0: {{ mem: ~ }} }}\napps:\n  - lb:\n      name: web\n      port: p0\n      \
         service: {{ vip: 10.0.0.80, protocol: tcp, port: 80 }}\n      {keys}\n      \
         back_ends: [{{ name: b1, mode: nat, ip: 10.0.0.11, mac: 02:00:00:00:00:11 }}]\n"
    );
    read("test.yaml", &text)
}

#[test]
fn clients_are_addresses_or_prefixes() {
    for (keys, ipv4, ipv6, seconds) in [
        ("affinity: source", 32, 128, 0),
        ("affinity: { ipv4: 24 }", 24, 128, 0),
        ("affinity: { ipv6: 56 }", 32, 56, 0),
        ("affinity: { ipv4: 0, ipv6: 0 }", 0, 0, 0),
        ("affinity: { timeout: 3h }", 32, 128, 10_800),
        ("affinity: { ipv4: 24, timeout: 10d }", 24, 128, 864_000),
    ] {
        let loaded = loaded(keys);
        let wanted = Affinity { ipv4, ipv6, timeout_ns: seconds * 1_000_000_000 };
        let plan = loaded.plan.unwrap_or_else(|| panic!("{}", loaded.report));
        assert_eq!(plan.program.groups[0].affinity, Some(wanted), "{keys}");
    }
}

#[test]
fn what_does_not_go_with_affinity_is_told() {
    for (keys, message) in [
        ("affinity: client", "`affinity` cannot be `client`"),
        ("affinity: { ipv4: 33 }", "from 0 to 32, not `33`"),
        ("affinity: { ipv6: 129 }", "from 0 to 128, not `129`"),
        ("affinity: { bits: 24 }", "bits"),
        ("affinity: { timeout: soon }", "`timeout` cannot be `soon`"),
        ("affinity: { timeout: 11d }", "at most 10 days"),
        ("affinity: { timeout: 1h }\n      stateless: true", "without flows, clients are not remembered"),
        ("affinity: [source]", "a list"),
        ("affinity: source\n      scheduler: round_robin", "so `scheduler` has no effect"),
        ("affinity: source\n      scheduler: least_connections", "so `scheduler` has no effect"),
        ("affinity: source\n      scheduler: katran", "so `scheduler` has no effect"),
        ("affinity: source\n      by: source", "`by` already selects"),
        ("affinity: source\n      by: src/0.0.0.1", "`by` already selects"),
    ] {
        let loaded = loaded(keys);
        let said = loaded.report.to_string();
        assert!(loaded.plan.is_none() && said.contains(message), "{keys}: {said}");
    }
}
