//! The requirements of checks with `via: service`: a network namespace with a TUN device. `weir check` and
//! `weir doctor` examine systemd's unit if it runs this file, and otherwise this process.

use crate::config::Plan;
use rustix::thread::{CapabilitySet, capabilities};
use std::path::Path;
use std::process::Command;

const UNIT: &str = "weir.service";
const TUN: &str = "/dev/net/tun";
/// The properties of the unit to query from systemd.
const ASKED: &str =
    "ExecStart,User,CapabilityBoundingSet,AmbientCapabilities,RestrictNamespaces,DevicePolicy,DeviceAllow";

/// The lines that a drop-in of the unit needs under `[Service]`.
const CAPABILITY: &str = "CapabilityBoundingSet=CAP_SYS_ADMIN";
const AMBIENT: &str = "AmbientCapabilities=CAP_SYS_ADMIN";
const NAMESPACES: &str = "RestrictNamespaces=net";
const DEVICE: &str = "DeviceAllow=/dev/net/tun rw";

/// Something that is missing.
#[derive(Debug, PartialEq, Eq)]
pub struct Missing {
    /// Whether such checks will certainly fail.
    pub is_certain: bool,
    /// The missing requirement, and how to meet it.
    pub says: String,
}

/// Returns whether checks of this plan follow a service's own path.
pub fn are_used(plan: &Plan) -> bool {
    plan.apps.has_ways()
}

/// Returns what a weir that runs this executable lacks for such checks.
pub fn missing(plan: &Plan, file: &Path) -> Option<Missing> {
    if !are_used(plan) {
        return None;
    }
    if let Some(unit) = unit(file) {
        return lacking(&unit);
    }
    let held = capabilities(None).map(|sets| sets.effective).unwrap_or(CapabilitySet::empty());
    of_process(held).or_else(|| {
        let says = format!("`via: service` needs {TUN}, which this host currently lacks: `modprobe tun`");
        (!Path::new(TUN).exists()).then_some(Missing { is_certain: false, says })
    })
}

/// Returns systemd's properties of the unit, if the unit runs this executable.
fn unit(file: &Path) -> Option<String> {
    let file = file.canonicalize().ok()?;
    let properties = Command::new("systemctl").args(["show", UNIT, "-p", ASKED]).output().ok()?;
    let properties = String::from_utf8(properties.stdout).ok()?;
    runs(&properties, file.to_str()?).then_some(properties)
}

/// Whether the unit's command names this file.
fn runs(unit: &str, file: &str) -> bool {
    value(unit, "ExecStart").split([' ', ';']).any(|word| word == file)
}

/// The value of a property; empty if there is none.
fn value<'a>(unit: &'a str, name: &str) -> &'a str {
    let named = |line: &'a str| line.strip_prefix(name)?.strip_prefix('=');
    unit.lines().find_map(named).unwrap_or_default()
}

/// Returns what the unit does not permit.
fn lacking(unit: &str) -> Option<Missing> {
    let has = |name: &str, word: &str| value(unit, name).split_whitespace().any(|one| one == word);
    let devices = || value(unit, "DevicePolicy") == "auto" && value(unit, "DeviceAllow").is_empty();
    let wanted = [
        (CAPABILITY, has("CapabilityBoundingSet", "cap_sys_admin")),
        (AMBIENT, matches!(value(unit, "User"), "" | "root") || has("AmbientCapabilities", "cap_sys_admin")),
        (NAMESPACES, has("RestrictNamespaces", "no") || has("RestrictNamespaces", "net")),
        (DEVICE, devices() || has("DeviceAllow", TUN)),
    ];
    let lines: Vec<String> =
        wanted.iter().filter(|(_, there)| !there).map(|(line, _)| format!("`{line}`")).collect();
    let says = format!(
        "`via: service` needs a network namespace, which the unit {UNIT} does not allow: `systemctl edit \
         weir`, write {} under `[Service]`, and restart it",
        lines.join(" and ")
    );
    (!lines.is_empty()).then_some(Missing { is_certain: true, says })
}

/// Returns what a process with these capabilities lacks. A process that could not run the daemon at all tells
/// nothing about the one that will.
fn of_process(held: CapabilitySet) -> Option<Missing> {
    let says = "`via: service` needs CAP_SYS_ADMIN when weir starts, to create a network namespace, and \
        this process lacks it: run weir with it (`--cap-add SYS_ADMIN` for a container; for systemd, see \
        the drop-in at the end of weir.service), or write `via: address`";
    (!held.contains(CapabilitySet::SYS_ADMIN))
        .then(|| Missing { is_certain: held.contains(CapabilitySet::NET_ADMIN), says: says.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHIPPED: &str = "ExecStart={ path=/usr/bin/weir ; argv[]=/usr/bin/weir run \
        /etc/weir/weir.yaml ; ignore_errors=no }\nUser=weir\nCapabilityBoundingSet=cap_net_admin cap_bpf\n\
        AmbientCapabilities=cap_net_admin cap_bpf\n\
        RestrictNamespaces=yes\nDevicePolicy=closed\nDeviceAllow=\n";

    #[test]
    fn the_shipped_unit_documents_the_drop_in() {
        let unit = include_str!("../../../configs/weir.service");
        for line in [CAPABILITY, AMBIENT, NAMESPACES, DEVICE] {
            assert!(unit.contains(line), "{line}");
        }
    }

    #[test]
    fn a_unit_is_asked_only_about_its_own_file_and_for_what_it_lacks() {
        assert!(runs(SHIPPED, "/etc/weir/weir.yaml"));
        assert!(!runs(SHIPPED, "/etc/weir/weir") && !runs("", "/etc/weir/weir.yaml"));
        let says = lacking(SHIPPED).unwrap().says;
        let all = [CAPABILITY, AMBIENT, NAMESPACES, DEVICE];
        assert!(all.iter().all(|line| says.contains(line)), "{says}");
        let root = lacking(&SHIPPED.replace("User=weir", "User=root")).unwrap().says;
        assert!(!root.contains(AMBIENT) && root.contains(CAPABILITY), "{root}");
        let with = SHIPPED
            .replace("cap_bpf", "cap_bpf cap_sys_admin")
            .replace("RestrictNamespaces=yes", "RestrictNamespaces=net")
            .replace("DeviceAllow=", "DeviceAllow=/dev/net/tun rw");
        assert_eq!(lacking(&with), None);
        let free =
            "CapabilityBoundingSet=cap_sys_admin\nRestrictNamespaces=no\nDevicePolicy=auto\nDeviceAllow=";
        assert_eq!(lacking(free), None);
        let says = lacking(&free.replace("=no", "=yes")).unwrap().says;
        assert!(says.contains(NAMESPACES) && !says.contains(CAPABILITY) && !says.contains(DEVICE), "{says}");
    }

    #[test]
    fn a_process_that_could_run_weir_needs_the_capability() {
        let daemon = CapabilitySet::NET_ADMIN;
        assert!(of_process(daemon).unwrap().is_certain);
        assert!(!of_process(CapabilitySet::empty()).unwrap().is_certain);
        assert_eq!(of_process(daemon | CapabilitySet::SYS_ADMIN), None);
    }
}
