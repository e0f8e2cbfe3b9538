//! The host: kernel, privileges, clock, interfaces, and how it hashes flows.

use super::{Finding, Level, ip};
use crate::config::{Plan, PortConfig, PortKind};
use crate::ways;
use rustix::thread::{CapabilitySet, capabilities};
use serde_json::Value;
use std::cell::OnceCell;
use std::fs;
use std::path::Path;
use weir_control::{Request, answer};

/// The privileges that the daemon needs, and their purpose.
const NEEDED: [(CapabilitySet, &str); 4] = [
    (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"),
    (CapabilitySet::NET_RAW, "CAP_NET_RAW"),
    (CapabilitySet::BPF, "CAP_BPF"),
    (CapabilitySet::PERFMON, "CAP_PERFMON"),
];

/// Clock sources for which each reading costs a system call or more.
const SLOW_CLOCKS: [&str; 4] = ["hpet", "acpi_pm", "jiffies", "refined-jiffies"];

/// Examines the host, and asks the daemon that listens on `socket`, if there is one.
pub fn findings(plan: Option<&Plan>, socket: &Path) -> Vec<Finding> {
    let mut found = vec![kernel(), types(), privileges(), clock()];
    found.extend(interfaces(plan, socket));
    for (family, forwards) in [("ipv4", "net/ipv4/ip_forward"), ("ipv6", "net/ipv6/conf/all/forwarding")] {
        let read = |name: &str| number(&format!("net/{family}/{name}"));
        let Some(policy) = read("fib_multipath_hash_policy") else { continue };
        let role = match number(forwards) {
            Some(1) => Role::Router,
            _ if has_equal_routes(family) => Role::HostWithEqualRoutes,
            _ => Role::Host,
        };
        let fields = read("fib_multipath_hash_fields").unwrap_or_default();
        found.push(hash_policy(family, (policy, fields), role));
    }
    found.extend(rehash());
    found
}

/// Returns a kernel setting, of this network namespace if it is per namespace.
pub(super) fn number(path: &str) -> Option<u64> {
    // Bounded: the kernel writes it.
    fs::read_to_string(Path::new("/proc/sys").join(path)).ok()?.trim().parse().ok()
}

/// Reports which kernel the host has; `features.rs` reports what features need from the kernel.
fn kernel() -> Finding {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let says = if weir_bpf::hook::has_tcx() {
        "programs are attached through tcx"
    } else {
        "it has no tcx (Linux 6.6): programs are attached through clsact, see \"Before Linux 6.6\" in \
         docs/how-to/run.md"
    };
    Finding::new("kernel", release.trim(), Level::Ok, says)
}

fn types() -> Finding {
    let file = "/sys/kernel/btf/vmlinux";
    if Path::new(file).exists() {
        return Finding::new("btf", file, Level::Ok, "the kernel provides BTF type information");
    }
    let says = "the kernel has no BTF type information, which the verifier needs to explain rejections: use \
        one with CONFIG_DEBUG_INFO_BTF";
    Finding::new("btf", file, Level::Warning, says)
}

fn privileges() -> Finding {
    let held = capabilities(None).map(|sets| sets.effective).unwrap_or(CapabilitySet::empty());
    let missing: Vec<&str> =
        NEEDED.iter().filter(|(one, _)| !held.contains(*one)).map(|(_, name)| *name).collect();
    if missing.is_empty() {
        return Finding::new(
            "privileges",
            "this process",
            Level::Ok,
            "it has all privileges that the daemon \
            needs",
        );
    }
    let says = format!("the daemon needs {}, which is missing: run it as root", missing.join(", "));
    Finding::new("privileges", "this process", Level::Warning, says)
}

/// Whether checks with `via: service` can be run, if there are any.
pub fn ways(plan: &Plan, file: &Path) -> Option<Finding> {
    let found = |level, says: String| Finding::new("via", "checks", level, says);
    match ways::missing(plan, file) {
        Some(missing) if missing.is_certain => Some(found(Level::Fault, missing.says)),
        Some(missing) => Some(found(Level::Warning, missing.says)),
        None => ways::are_used(plan)
            .then(|| found(Level::Ok, "`via: service` has the network namespace that it needs".to_string())),
    }
}

/// Probes get timestamps of the system's clock, in the program at the uplink.
fn clock() -> Finding {
    let file = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    // Bounded: the kernel writes it.
    let name = fs::read_to_string(file).unwrap_or_default();
    match name.trim() {
        "" => Finding::new("clock", "time stamps", Level::Warning, format!("{file} cannot be read")),
        name if SLOW_CLOCKS.contains(&name) => {
            let says = "reading it takes a microsecond or more: boot with clocksource=tsc if the \
                processor's TSC is stable";
            Finding::new("clock", name, Level::Warning, says)
        }
        name => {
            Finding::new("clock", name, Level::Ok, "timestamps are fast and exact to a microsecond or better")
        }
    }
}

/// The interfaces that the configuration uses with XDP; without a configuration, all.
fn interfaces(plan: Option<&Plan>, socket: &Path) -> Vec<Finding> {
    let used = |name: &str| {
        plan.is_none_or(|plan| {
            let mut nics = plan.ports.iter().filter_map(|port| port.nic.as_ref());
            nics.any(|nic| nic.name == name)
        })
    };
    let all = match weir_port::xdp::interfaces() {
        Ok(all) => all,
        Err(error) => {
            let says = format!("cannot list the kernel's interfaces: {error}");
            return vec![Finding::new("xdp", "interfaces", Level::Warning, says)];
        }
    };
    let asked = OnceCell::new();
    let counts = |name: &str| {
        let shown: &answer::Shown =
            asked.get_or_init(|| weir_control::ask(socket, &Request::show("ports")).unwrap_or_default());
        let mut named = plan.into_iter().flat_map(|plan| &plan.ports);
        let port = named.find(|port| port.nic.as_ref().is_some_and(|nic| nic.name == name));
        port.and_then(|port| shown.ports.iter().find(|one| one.name == port.name))
    };
    let one = |report: &weir_port::xdp::InterfaceReport| {
        let right = counts(&report.name).filter(|_| report.is_far_unknown).and_then(right_checksums);
        interface(report, right)
    };
    let there = all.iter().filter(|report| report.name != "lo" && used(&report.name)).map(one);
    there.chain(plan.into_iter().flat_map(missing)).collect()
}

/// Returns how many received frames of a running port were checked, if all had correct checksums.
fn right_checksums(port: &answer::Port) -> Option<u64> {
    let count = |name: &str| port.extra.get(name)?.as_u64();
    count("checksums_sampled").filter(|sampled| *sampled > 0 && count("checksums_wrong") == Some(0))
}

/// The state of an interface. `right` is the number of frames that arrived with correct checksums from a peer
/// that cannot be examined: if there are any, the advice about the peer was followed.
fn interface(report: &weir_port::xdp::InterfaceReport, right: Option<u64>) -> Finding {
    let modes: Vec<String> = report.modes.iter().map(ToString::to_string).collect();
    let obstacle = match right {
        Some(_) => report.obstacles_of_near_end().next(),
        None => report.obstacles_of_running().next(),
    };
    match obstacle {
        Some(obstacle) => Finding::new("xdp", &report.name, Level::Warning, obstacle),
        None if modes.is_empty() => Finding::new("xdp", &report.name, Level::Warning, "no XDP mode works"),
        None => {
            let taken = if report.is_taken { "; a running weir takes its frames" } else { "" };
            let right = right.map(|count| format!("; {count} sampled frames had correct checksums"));
            let says = format!("modes: {}{taken}{}", modes.join(", "), right.unwrap_or_default());
            Finding::new("xdp", &report.name, Level::Ok, says)
        }
    }
}

/// Interfaces that ports name but that do not exist.
fn missing(plan: &Plan) -> Vec<Finding> {
    let missing = |port: &PortConfig| match &port.kind {
        PortKind::Xdp(xdp) if port.nic.is_none() => {
            let says = format!("there is no such interface, but port `{}` names it", port.name);
            Some(Finding::new("xdp", &xdp.interface, Level::Fault, says))
        }
        _ => None,
    };
    plan.ports.iter().filter_map(missing).collect()
}

/// Whether the host has a choice of routes: by its policy, and before weir assigns ports to frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// For forwarded frames, too.
    Router,
    /// For its own frames.
    HostWithEqualRoutes,
    /// There is nothing to select from.
    Host,
}

fn has_equal_routes(family: &str) -> bool {
    let family = if family == "ipv4" { "-4" } else { "-6" };
    let has_several = |route: &Value| route["nexthops"].as_array().is_some_and(|all| all.len() > 1);
    ip(&[family, "route", "show"]).is_ok_and(|routes| routes.iter().any(has_several))
}

/// The source port among the fields of policy 3 (`fib_multipath_hash_fields`, ip-sysctl of the kernel).
const SOURCE_PORT: u64 = 0x10;

/// Whether tunnels between two nodes are spread over equal-cost routes: by their source port, or not at all.
fn hash_policy(family: &str, (policy, fields): (u64, u64), role: Role) -> Finding {
    let name = format!("net.{family}.fib_multipath_hash_policy");
    let found = |level, says: String| Finding::new("hash_policy", &name, level, says);
    let hashed = match policy {
        1 => return found(Level::Ok, "1: ports are part of the hash".to_string()),
        3 if fields & SOURCE_PORT != 0 => {
            return found(
                Level::Ok,
                format!("3: the source port is part of the hash (fields {fields:#06x})"),
            );
        }
        0 => "addresses alone",
        // The kernel looks into tunnels that it can recognise without a port, such as GRE, but not into
        // VXLAN.
        2 => "only addresses: the inner ones of tunnels such as GRE, the outer ones of VXLAN",
        3 => "fields without the source port",
        _ => "fields that this version of weir does not know",
    };
    let whose = match role {
        Role::Router => "this host forwards",
        Role::HostWithEqualRoutes => "this host has equal-cost routes",
        Role::Host => {
            let says = format!(
                "{policy}: {hashed} are hashed, which has no effect here because this host does not forward \
                 and has no equal-cost routes"
            );
            return found(Level::Ok, says);
        }
    };
    let mend = if policy == 3 {
        format!("`sysctl -w net.{family}.fib_multipath_hash_fields={}`", fields | SOURCE_PORT)
    } else {
        format!("`sysctl -w {name}=1`")
    };
    let says = format!(
        "{whose}, but policy {policy} hashes {hashed}, so all tunnels between two nodes take the same one \
         of its equal-cost routes: {mend}"
    );
    found(Level::Warning, says)
}

/// A flow that gets another port after a timeout signals that timeout to the path app.
fn rehash() -> Option<Finding> {
    let name = "net.core.txrehash";
    Some(match number("net/core/txrehash")? {
        0 => {
            let says = format!(
                "flows keep their port after a timeout, so the path app does not notice it: `sysctl -w \
                 {name}=1`"
            );
            Finding::new("rehash", name, Level::Warning, says)
        }
        _ => {
            Finding::new("rehash", name, Level::Ok, "a timeout changes the port, which the path app notices")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_policies_that_hash_the_source_port_spread_tunnels() {
        use Role::{Host, HostWithEqualRoutes, Router};
        for (policy, fields, role, level, words) in [
            (0, 7, Router, Level::Warning, "this host forwards, but policy 0 hashes addresses alone"),
            (0, 7, HostWithEqualRoutes, Level::Warning, "`sysctl -w net.ipv4.fib_multipath_hash_policy=1`"),
            (0, 7, Host, Level::Ok, "does not forward and has no equal-cost routes"),
            (1, 7, Router, Level::Ok, "ports are part"),
            (2, 7, Router, Level::Warning, "the outer ones of VXLAN"),
            (3, 7, Router, Level::Warning, "`sysctl -w net.ipv4.fib_multipath_hash_fields=23`"),
            (3, 0x37, Router, Level::Ok, "the source port is part"),
            (4, 0, Router, Level::Warning, "does not know"),
        ] {
            let found = hash_policy("ipv4", (policy, fields), role);
            assert!(found.level == level && found.says.contains(words), "{found}");
        }
    }
}
