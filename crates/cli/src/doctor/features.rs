//! The optional kernel features that the daemon needs, and whether this kernel has them.

use super::{Finding, Has, hooks};
use crate::config::{Plan, PortKind};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, socket};

/// Examines what a configuration uses; without a configuration, everything.
pub fn findings(plan: Option<&Plan>) -> Vec<Finding> {
    let has_xdp_port = |plan: &Plan| plan.ports.iter().any(|port| matches!(port.kind, PortKind::Xdp(_)));
    let mut found = Vec::new();
    if plan.is_none_or(has_xdp_port) {
        found.push(af_xdp().finding("ports by interface", plan.is_some()));
    }
    if plan.is_none() {
        found.push(hooks(weir_bpf::hook::has_tcx()).finding("decap", false));
    }
    found
}

fn af_xdp() -> Has {
    match socket(AddressFamily::XDP, SocketType::RAW, None) {
        Ok(_) => Has::All("needs AF_XDP sockets: supported by this kernel".to_string()),
        Err(Errno::AFNOSUPPORT) => {
            Has::Lacks("needs AF_XDP sockets: use a kernel with CONFIG_XDP_SOCKETS".to_string())
        }
        Err(error) => {
            Has::Unknown(format!("needs AF_XDP sockets, but this process may not open one: {error}"))
        }
    }
}
