//! The MTU of the path to a service's back ends.

use super::service::{MTU, Mode, Service};
use weir_app::kind::Scope;
use weir_config::ports::PortConfig;
use weir_config::section::Section;
use weir_program::PortId;

/// Adds the MTU of the path to a service's back ends.
pub(super) fn measured(service: Service, section: &Section<'_>, scope: &mut Scope<'_>) -> Option<Service> {
    let written = match section.get("mtu") {
        Some(_) => Some(section.number("mtu", scope.report)? as u16),
        None => None,
    };
    let (mtu, narrow) = width(written, &service, scope.ports);
    let limited =
        narrow && service.back_ends.iter().any(|one| !one.mode.is_tunnel() && one.mode != Mode::Reject);
    Some(Service { mtu, limited, ..service })
}

/// The smallest known MTU of the ports through which back ends are reached.
fn way_mtu(ports: &[PortId], all: &[PortConfig]) -> Option<u16> {
    ports.iter().filter_map(|port| all.get(port.index())?.mtu()).min()
}

/// Returns the MTU of the path to back ends, which may be configured, and whether the path is narrower than a
/// port on which packets arrive: that is, whether the port's MTU is larger or unknown. A packet that leaves
/// through the port on which it arrived always fits.
fn width(written: Option<u16>, service: &Service, all: &[PortConfig]) -> (u16, bool) {
    let way = written.or_else(|| way_mtu(&service.back_ports(), all));
    let elsewhere = service.ways().iter().any(Option::is_some);
    let exceeds = |mtu: u16| {
        service
            .ports
            .iter()
            .any(|port| all.get(port.index()).and_then(PortConfig::mtu).is_none_or(|one| one > mtu))
    };
    (way.unwrap_or(MTU), way.is_some_and(|mtu| (written.is_some() || elsewhere) && exceeds(mtu)))
}
