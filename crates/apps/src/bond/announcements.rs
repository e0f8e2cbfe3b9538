//! Announces the stations inside when another member leads to them: a few frames at a time, because workers
//! have limited room.

use super::announce;
use super::app::BondApp;
use super::config::Inward;
use crate::app::Action;

/// Stations announced at once; the next ones follow a millisecond later.
const AT_ONCE: usize = 64;
const PAUSE_NS: u64 = 1_000_000;

impl BondApp {
    /// Tells the network that the stations inside are now reached through another member.
    pub(super) fn announce(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        let Some(active) = self.state.links.active().and_then(|id| self.member(id)) else { return };
        let (mac, output) = (self.bond.mac(), active.port);
        let own = |address| Action::Inject { bytes: announce::address(mac, address), output };
        actions.extend(self.bond.announce.iter().copied().map(own));
        self.state.announcing = self.state.learnt.iter().collect();
        self.announce_some(now_ns, actions);
    }

    /// Announces the next stations.
    pub(super) fn announce_some(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        let state = &mut self.state;
        let count = state.announcing.len().min(AT_ONCE);
        let next: Vec<_> = state.announcing.drain(..count).collect();
        if let Inward::Port(input) = self.bond.inward {
            // Through the bucket that the station's own frames use.
            let through = |(mac, vid)| Action::InjectThrough { bytes: announce::rarp(mac, vid), input };
            let still = next.into_iter().filter(|(mac, _)| state.learnt.knows(*mac));
            actions.extend(still.map(|(mac, known)| through((mac, known.vid))));
        }
        state.announces_ns = (!state.announcing.is_empty()).then(|| now_ns + PAUSE_NS);
    }
}
