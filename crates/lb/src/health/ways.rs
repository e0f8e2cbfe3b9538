//! Checks along a service's own path: which back ends have them, and how their packets are sent.

use super::app::LbApp;
use crate::probes;
use weir_app::Action;
use weir_app::check::Via;

impl LbApp {
    /// Finds the back ends that are checked along the service's own path.
    pub(super) fn begin_probes(&mut self) {
        self.probes = self.health.probes.to_vec();
        for (at, probe) in self.probes.iter().enumerate() {
            let (service, place) = probe.at;
            let Some(service) = self.services.get_mut(service) else { continue };
            let Some(row) = service.rows.get_mut(place) else { continue };
            row.probe = Some(at);
            self.probed.entry(service.name.clone()).or_default().insert(row.name.clone(), at);
        }
    }

    /// Sends a packet of a check.
    pub(super) fn send(&self, via: &Via, packet: &[u8]) -> Option<Action> {
        let at = *self.probed.get(&via.service)?.get(&via.back_end)?;
        Some(Action::InjectThrough { bytes: probes::frame(at, packet)?, input: self.probes[at].input })
    }
}
