//! Reacts to changes of interfaces: logs them, informs the modules for neighbours and links, and requests
//! another program if the current one depends on the change.

use super::Daemon;
use super::app_host::places;
use super::interfaces::say_obstacles;
use tracing::{error, info, warn};
use weir_port::XdpInterface;
use weir_port::xdp::{InterfaceNews, InterfaceState};
use weir_program::{Operation, PortId, Program};

impl Daemon {
    /// Returns why a port's interface cannot carry frames at the moment.
    pub(super) fn obstacle(&self, port: PortId) -> Option<String> {
        let interface = self.interfaces.of(port)?;
        let effect = match interface.state() {
            InterfaceState::Up => return None,
            InterfaceState::Gone | InterfaceState::Refused => "the frame is dropped as `interface_gone`",
            InterfaceState::Down | InterfaceState::NoCarrier => "the frame does not arrive",
        };
        let (name, state) = (interface.name(), interface.state());
        Some(format!("port {}: interface {name} is {state}: {effect}", self.plan.ports[port.index()].name))
    }

    /// Records the current state of the interfaces for everything that asks about a port's interface.
    pub(super) fn note_interfaces(&mut self) {
        self.interfaces.note(&mut self.plan);
        self.neighbours.place(places(&self.plan));
    }

    /// Follows changes of interfaces, and logs them.
    pub(super) fn follow_interfaces(&mut self) {
        let news = self.interfaces.look(self.clock.now_ns());
        if !news.is_empty() {
            self.note_interfaces();
        }
        if let Err(error) = self.interfaces.refresh_addresses(&self.plan) {
            error!("frames for the host's present addresses may not reach it: {error:#}");
        }
        for (port, news) in &news {
            let name = self.interfaces.of(*port).map_or("", XdpInterface::name);
            let port_name = &self.plan.ports[port.index()].name;
            match news {
                InterfaceNews::Gone | InterfaceNews::Moved | InterfaceNews::Refused(_) => {
                    error!("port {port_name}: interface {name} {news}");
                }
                InterfaceNews::State(state) if *state != InterfaceState::Up => {
                    warn!("port {port_name}: interface {name} {news}");
                }
                _ => info!("port {port_name}: interface {name} {news}"),
            }
            if matches!(news, InterfaceNews::Back | InterfaceNews::Mtu(..)) {
                say_obstacles(port_name, name, self.plan.chunk());
            }
            if matches!(news, InterfaceNews::Mtu(..)) && limits_length(&self.plan.program) {
                self.reloads.mtu = true;
                self.ask_rebuild();
            }
            if matches!(news, InterfaceNews::Back | InterfaceNews::Mtu(..) | InterfaceNews::Gone) {
                self.kernel.renew();
            }
            let usable = self.interfaces.usable_name(*port).map(str::to_string);
            self.host.links.set_interface(*port, usable);
        }
        if news.iter().any(|(_, news)| matches!(news, InterfaceNews::Mac(_))) {
            self.ask_rebuild();
        }
    }
}

/// Returns whether a program has length limits, which may follow from the MTU of an interface.
fn limits_length(program: &Program) -> bool {
    let mut all = program.pipes.iter().flat_map(|pipe| &pipe.templates).flat_map(|one| &one.operations);
    all.any(|operation| matches!(operation, Operation::LimitLength { .. } | Operation::ClampMss { .. }))
}
