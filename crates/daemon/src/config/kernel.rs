//! Whether the kernel can handle frames of a port, according to the configuration.

use super::Plan;
use weir_config::ports::{KernelUse, PortConfig, PortKind};
use weir_kernel::{Coverage, leads_of};
use weir_program::replica::Leads;
use weir_program::{PortId, Program};

/// Returns how a port uses the kernel; `None` if it is not an AF_XDP port.
#[must_use]
pub fn kernel_use(port: &PortConfig) -> Option<KernelUse> {
    if let PortKind::Xdp(xdp) = &port.kind { Some(xdp.kernel) } else { None }
}

/// Returns why the kernel cannot handle frames of a port, whatever the program.
#[must_use]
pub fn port_obstacle(port: &PortConfig) -> Option<&'static str> {
    match kernel_use(port) {
        None => Some("it is not an AF_XDP port"),
        Some(KernelUse::Off) => Some("it has `kernel: off`"),
        Some(KernelUse::Auto) if port.nic.as_ref().is_some_and(|nic| nic.veth) => {
            Some("it is a veth, which may send only to a peer with NAPI: `kernel: require`")
        }
        Some(KernelUse::Auto | KernelUse::Require) if port.fault.is_some() => Some("its frames have faults"),
        Some(KernelUse::Auto | KernelUse::Require) => {
            port.trace.is_some().then_some("its frames are recorded")
        }
    }
}

/// Returns which parts of a program compile if its entries have these leads.
#[must_use]
pub fn coverage_with(program: &Program, ports: &[PortConfig], leads: &[Leads]) -> Coverage {
    let reaches: Vec<bool> = ports.iter().map(|port| port_obstacle(port).is_none()).collect();
    Coverage::of(program, leads, &reaches)
}

/// Returns why the kernel can never handle the frames of a port with `kernel: require`.
pub(super) fn unmet(program: &Program, ports: &[PortConfig], port: PortId) -> Option<String> {
    let config = &ports[port.index()];
    if kernel_use(config) != Some(KernelUse::Require) {
        return None;
    }
    if let Some(obstacle) = port_obstacle(config) {
        return Some(obstacle.to_string());
    }
    // Whether the root pipe compiles does not depend on entries.
    let root = program.ports[port.index()].root?;
    let leads = vec![Leads::new(); program.pipes.len()];
    let why = coverage_with(program, ports, &leads).pipes[root.index()]?;
    Some(format!("its pipe `{}` is not compiled: {}", program.pipes[root.index()].name, why.explanation()))
}

impl Plan {
    /// Returns which parts of the program compile for the kernel.
    #[must_use]
    pub fn coverage(&self) -> Coverage {
        coverage_with(&self.program, &self.ports, &leads_of(&self.program))
    }

    /// Whether the kernel may handle frames of any port.
    #[must_use]
    pub fn uses_kernel(&self) -> bool {
        self.ports.iter().any(|port| !matches!(kernel_use(port), None | Some(KernelUse::Off)))
    }
}
