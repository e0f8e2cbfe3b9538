//! What `weir doctor` reports about tunnels and the fabric.

mod fabric;
mod tunnel;

use crate::Fabric;
use crate::yaml::fabrics;
use weir_app::doctor::{Examined, Finding, Level, hooks};
use weir_bpf::hook::has_tcx;

/// Examines the kernel, the tunnels of this host, and what the daemon knows of the fabric.
pub(crate) fn findings(examined: &Examined<'_>) -> Vec<Finding> {
    let wanted = examined.apps.map(fabrics).unwrap_or_default();
    let fabrics: Vec<Fabric> = wanted.into_iter().map(|one| one.task).collect();
    let mut found = Vec::new();
    let is_examined = examined.apps.is_none() || !fabrics.is_empty();
    if is_examined {
        found.push(hooks(has_tcx()).finding("path", examined.apps.is_some()));
    }
    found.extend(tunnel::findings(&fabrics));
    if is_examined {
        found.extend(fabric::findings(&fabrics, examined));
    }
    found
}
