//! The host: kernel, privileges, clock, interfaces, and how it hashes flows.

use super::{Finding, Level};
use crate::config::{Plan, PortKind};
use rustix::thread::{CapabilitySet, capabilities};
use std::fs;
use std::path::Path;

/// Programs at tc hooks end with their process since this kernel (tcx links).
const TCX: (u32, u32) = (6, 6);

/// What the daemon needs, and for what.
const NEEDED: [(CapabilitySet, &str); 4] = [
    (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"),
    (CapabilitySet::NET_RAW, "CAP_NET_RAW"),
    (CapabilitySet::BPF, "CAP_BPF"),
    (CapabilitySet::PERFMON, "CAP_PERFMON"),
];

/// Sources of the clock that cost a system call or more for each reading.
const SLOW_CLOCKS: [&str; 4] = ["hpet", "acpi_pm", "jiffies", "refined-jiffies"];

/// Looks at the host. `has_paths`: tunnels of the kernel are watched.
pub fn findings(plan: Option<&Plan>, has_paths: bool) -> Vec<Finding> {
    let mut found = vec![kernel(has_paths), types(), privileges(), clock()];
    found.extend(interfaces(plan));
    let is_router = number("net/ipv4/ip_forward") == Some(1);
    found.extend(hash_policy("net/ipv4/fib_multipath_hash_policy", is_router));
    let is_router = number("net/ipv6/conf/all/forwarding") == Some(1);
    found.extend(hash_policy("net/ipv6/fib_multipath_hash_policy", is_router));
    found.extend(rehash());
    found
}

/// A setting of the kernel, for this network namespace where it is one of a namespace.
fn number(path: &str) -> Option<u64> {
    fs::read_to_string(Path::new("/proc/sys").join(path)).ok()?.trim().parse().ok()
}

fn kernel(has_paths: bool) -> Finding {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    let mut parts = release.split(['.', '-']).map(|part| part.parse().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if version >= TCX {
        return Finding::new("kernel", release, Level::Ok, "it has all that weir attaches programs by");
    }
    let level = if has_paths { Level::Fault } else { Level::Warning };
    Finding::new(
        "kernel",
        release,
        level,
        "a path app at an `uplink` needs Linux 6.6: install a newer kernel",
    )
}

fn types() -> Finding {
    let file = "/sys/kernel/btf/vmlinux";
    if Path::new(file).exists() {
        return Finding::new("btf", file, Level::Ok, "the kernel describes its types");
    }
    let says = "the kernel has no type information, by which the verifier explains what it refuses: use one \
                with CONFIG_DEBUG_INFO_BTF";
    Finding::new("btf", file, Level::Warning, says)
}

fn privileges() -> Finding {
    let held = capabilities(None).map(|sets| sets.effective).unwrap_or(CapabilitySet::empty());
    let missing: Vec<&str> =
        NEEDED.iter().filter(|(one, _)| !held.contains(*one)).map(|(_, name)| *name).collect();
    if missing.is_empty() {
        return Finding::new("privileges", "this process", Level::Ok, "it has what the daemon needs");
    }
    let says = format!("without {} the daemon cannot run like this: run it as root", missing.join(", "));
    Finding::new("privileges", "this process", Level::Warning, says)
}

/// Probes are stamped by the system's clock, in the program at the uplink.
fn clock() -> Finding {
    let file = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let name = fs::read_to_string(file).unwrap_or_default();
    match name.trim() {
        "" => Finding::new("clock", "time stamps", Level::Warning, format!("{file} cannot be read")),
        name if SLOW_CLOCKS.contains(&name) => {
            let says = "reading it takes a microsecond or more for each stamp: boot with clocksource=tsc if \
                        the processor's is stable";
            Finding::new("clock", name, Level::Warning, says)
        }
        name => {
            Finding::new("clock", name, Level::Ok, "stamps are fast and exact to a microsecond or better")
        }
    }
}

/// The interfaces that the configuration uses by XDP; without one, all.
fn interfaces(plan: Option<&Plan>) -> Vec<Finding> {
    let used = |name: &str| {
        plan.is_none_or(|plan| {
            let is_it = |kind: &PortKind| matches!(kind, PortKind::Xdp(xdp) if xdp.interface == name);
            plan.ports.iter().any(|port| is_it(&port.kind))
        })
    };
    let all = match port::xdp::interfaces() {
        Ok(all) => all,
        Err(error) => {
            let says = format!("the kernel cannot be asked for its interfaces: {error}");
            return vec![Finding::new("xdp", "interfaces", Level::Warning, says)];
        }
    };
    let one = |report: &port::xdp::InterfaceReport| {
        let modes: Vec<String> = report.modes.iter().map(ToString::to_string).collect();
        match report.obstacles.first() {
            Some(obstacle) => Finding::new("xdp", &report.name, Level::Warning, obstacle),
            None if modes.is_empty() => Finding::new("xdp", &report.name, Level::Warning, "no mode of XDP"),
            None => Finding::new("xdp", &report.name, Level::Ok, format!("modes: {}", modes.join(", "))),
        }
    };
    all.iter().filter(|report| report.name != "lo" && used(&report.name)).map(one).collect()
}

/// By policy 0 a router chooses among equal routes by addresses alone.
fn hash_policy(path: &str, is_router: bool) -> Option<Finding> {
    let (policy, name) = (number(path)?, path.replace('/', "."));
    Some(match policy {
        0 if is_router => {
            let says = format!(
                "this host forwards, and by policy 0 all tunnels between two nodes take one of its equal \
                 routes: `sysctl -w {name}=1`"
            );
            Finding::new("hash_policy", name, Level::Warning, says)
        }
        0 => Finding::new("hash_policy", name, Level::Ok, "0, which is not used: this host does not forward"),
        _ => Finding::new("hash_policy", name, Level::Ok, format!("{policy}: ports are part of the hash")),
    })
}

/// A flow that gets another port after a timeout tells the path app of the timeout.
fn rehash() -> Option<Finding> {
    let name = "net.core.txrehash";
    Some(match number("net/core/txrehash")? {
        0 => {
            let says = format!(
                "flows keep their port after a timeout, so the path app does not learn of it: \
                 `sysctl -w {name}=1`"
            );
            Finding::new("rehash", name, Level::Warning, says)
        }
        _ => Finding::new(
            "rehash",
            name,
            Level::Ok,
            "a timeout shows as another port, which the path app uses",
        ),
    })
}
