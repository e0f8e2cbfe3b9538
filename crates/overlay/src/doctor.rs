//! What `weir doctor` reports about overlays: whether the kernel has the features that they need, and the
//! kernel's settings.

use crate::agent::{needed_settings, rule};
use crate::cni::{self, ContainerNetwork};
use crate::yaml::overlays;
use std::io;
use weir_app::doctor::{Examined, Finding, Has, Level, hooks};
use weir_bpf::hook::has_tcx;

/// Examines the kernel and its settings.
pub(crate) fn findings(examined: &Examined<'_>) -> Vec<Finding> {
    let wanted = examined.apps.map(overlays).unwrap_or_default();
    let (is_used, mut found) = (!wanted.is_empty(), Vec::new());
    if is_used || examined.apps.is_none() {
        found.push(hooks(has_tcx()).finding("overlay", is_used));
        found.push(nftables(rule::tables().map(drop)).finding("overlay", is_used));
    }
    // Without an overlay, a network that is not supported is no flaw.
    if is_used || examined.apps.is_none() {
        found.extend(weir_netlink::links().ok().and_then(|links| cni::recognise(&links)).map(network));
    }
    let setting = |(name, is_so): (&str, anyhow::Result<()>)| match is_so {
        Ok(()) => Finding::new("sysctl", name, Level::Ok, "as the overlay needs it"),
        Err(why) => Finding::new("sysctl", name, Level::Fault, why.to_string()),
    };
    found.extend(wanted.iter().flat_map(|wanted| needed_settings(&wanted.task)).map(setting));
    found
}

/// Reports a network that was recognised.
fn network(network: ContainerNetwork) -> Finding {
    let (level, says) = match network.says {
        Ok(says) => (Level::Ok, says),
        Err(says) => (Level::Warning, says),
    };
    Finding::new("container_network", network.name, level, says)
}

/// Connections are marked with an nftables rule. `tables` is the result of listing the tables.
fn nftables(tables: io::Result<()>) -> Has {
    match tables {
        Ok(()) => Has::All("needs nftables: supported by this kernel".to_string()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Has::Unknown(format!("needs nftables, but this process may not query it: {error}"))
        }
        Err(error) => {
            Has::Lacks(format!("needs nftables (the module nf_tables), which does not respond: {error}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn a_kernel_without_nftables_is_told_from_a_missing_privilege() {
        assert!(matches!(nftables(Ok(())), Has::All(_)));
        assert!(matches!(nftables(Err(Errno::PERM.into())), Has::Unknown(_)));
        assert!(matches!(nftables(Err(Errno::INVAL.into())), Has::Lacks(_)));
    }
}
