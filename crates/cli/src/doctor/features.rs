//! What features need from the kernel beyond what every kernel has, and whether this one has it.

use super::{Finding, Level};
use crate::config::{Plan, PortKind};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, socket};
use std::fs;
use std::io;
use std::path::Path;
use weir_config::infile;
use weir_daemon::rule;

/// Modules that a kernel without tcx needs for clsact programs.
const FILTERS: [&str; 2] = ["sch_ingress", "cls_bpf"];

/// The result of examining the kernel, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Has {
    All(String),
    Lacks(String),
    /// The kernel could not be asked.
    Unknown(String),
}

/// Examines what the used features of a configuration need; without a configuration, all features.
pub fn findings(plan: Option<&Plan>) -> Vec<Finding> {
    let uses = |feature: fn(&Plan) -> bool| plan.is_none_or(feature);
    let has_xdp_port = |plan: &Plan| plan.ports.iter().any(|port| matches!(port.kind, PortKind::Xdp(_)));
    let attaches = |plan: &Plan| {
        !plan.apps.wanted::<weir_path::Wanted>().is_empty()
            || !plan.apps.wanted::<weir_overlay::Wanted>().is_empty()
    };
    let has_overlay = |plan: &Plan| !plan.apps.wanted::<weir_overlay::Wanted>().is_empty();
    let mut found = Vec::new();
    if uses(has_xdp_port) {
        found.push(finding("ports by interface", af_xdp(), plan.is_some()));
    }
    if uses(attaches) {
        found.push(finding("path, overlay, decap", hooks(weir_bpf::has_tcx(), has_module), plan.is_some()));
    }
    if uses(has_overlay) {
        found.push(finding("overlay", nftables(rule::tables().map(drop)), plan.is_some()));
    }
    found
}

/// A configuration that uses what the kernel lacks cannot work.
fn finding(feature: &str, has: Has, is_used: bool) -> Finding {
    let (level, says) = match has {
        Has::All(says) => (Level::Ok, says),
        Has::Lacks(says) if is_used => (Level::Fault, says),
        Has::Lacks(says) | Has::Unknown(says) => (Level::Warning, says),
    };
    Finding::new("feature", feature, level, says)
}

fn af_xdp() -> Has {
    match socket(AddressFamily::XDP, SocketType::RAW, None) {
        Ok(_) => Has::All("needs AF_XDP sockets, which this kernel has".to_string()),
        Err(Errno::AFNOSUPPORT) => {
            Has::Lacks("needs AF_XDP sockets: use a kernel with CONFIG_XDP_SOCKETS".to_string())
        }
        Err(error) => {
            Has::Unknown(format!("needs AF_XDP sockets, and this process may not open one: {error}"))
        }
    }
}

/// How programs are attached. `module` says whether the kernel has a module; `None` if it cannot be known.
fn hooks(has_tcx: bool, module: impl Fn(&str) -> Option<bool>) -> Has {
    if has_tcx {
        return Has::All("needs tcx (Linux 6.6), which this kernel has".to_string());
    }
    let needs = "needs tcx (Linux 6.6) or clsact; this kernel has no tcx";
    let looked = FILTERS.map(|name| (name, module(name)));
    let missing: Vec<&str> =
        looked.iter().filter(|(_, has)| *has == Some(false)).map(|(name, _)| *name).collect();
    if !missing.is_empty() {
        return Has::Lacks(format!("{needs}, and lacks the modules for clsact: {}", missing.join(", ")));
    }
    if looked.iter().any(|(_, has)| has.is_none()) {
        let modules = FILTERS.join(" and ");
        return Has::Unknown(format!("{needs}, and does not list its modules: clsact needs {modules}"));
    }
    Has::All(format!("{needs}, and has the modules for clsact"))
}

/// The overlay marks connections with an nftables rule. `tables` is the result of listing the tables.
fn nftables(tables: io::Result<()>) -> Has {
    match tables {
        Ok(()) => Has::All("needs nftables, which this kernel has".to_string()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Has::Unknown(format!("needs nftables, and this process may not ask for it: {error}"))
        }
        Err(error) => {
            Has::Lacks(format!("needs nftables (the module nf_tables), which does not answer: {error}"))
        }
    }
}

/// Whether the kernel has a module: loaded, built in or loadable; `None` without a list of its modules.
fn has_module(name: &str) -> Option<bool> {
    if Path::new("/sys/module").join(name).exists() {
        return Some(true);
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    let folder = Path::new("/lib/modules").join(release.trim());
    let listed = |list: &str| {
        let text = String::from_utf8(infile::read(&folder.join(list)).ok()?).ok()?;
        let file = format!("/{name}.ko");
        // The name of a compressed file has a suffix after `.ko`.
        Some(text.lines().any(|line| line.split(':').next().unwrap_or_default().contains(&file)))
    };
    let found = [listed("modules.dep"), listed("modules.builtin")];
    if found.contains(&Some(true)) { Some(true) } else { found[0] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feature_is_a_fault_only_where_it_is_used_and_cannot_work() {
        let level = |has, is_used| finding("x", has, is_used).level;
        assert_eq!(level(Has::All(String::new()), true), Level::Ok);
        assert_eq!(level(Has::Lacks(String::new()), true), Level::Fault);
        assert_eq!(level(Has::Lacks(String::new()), false), Level::Warning);
        assert_eq!(level(Has::Unknown(String::new()), true), Level::Warning);
    }

    #[test]
    fn programs_are_attached_through_tcx_or_clsact() {
        let has = |list: &'static [&str]| move |name: &str| Some(list.contains(&name));
        assert!(matches!(hooks(true, has(&[])), Has::All(says) if says.contains("which this kernel has")));
        assert!(matches!(hooks(false, has(&FILTERS)), Has::All(says) if says.contains("no tcx")));
        let lacks = hooks(false, has(&["sch_ingress"]));
        assert!(matches!(&lacks, Has::Lacks(says) if says.ends_with("clsact: cls_bpf")), "{lacks:?}");
        assert!(matches!(hooks(false, |_| None), Has::Unknown(_)));
    }

    #[test]
    fn a_kernel_without_nftables_is_told_from_a_missing_privilege() {
        assert!(matches!(nftables(Ok(())), Has::All(_)));
        assert!(matches!(nftables(Err(Errno::PERM.into())), Has::Unknown(_)));
        assert!(matches!(nftables(Err(Errno::INVAL.into())), Has::Lacks(_)));
    }
}
