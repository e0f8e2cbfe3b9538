//! What a bond says of those inside, when they are reached by another member: some frames at a time, as workers have room
//! for so many only.

use super::announce;
use super::app::BondApp;
use super::config::Inward;
use crate::app::Action;

/// Stations that are announced at once; the next ones a millisecond later.
const AT_ONCE: usize = 64;
const PAUSE_NS: u64 = 1_000_000;

impl BondApp {
    /// Tells the network that what is inside is reached another way now.
    pub(super) fn announce(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        let Some(active) = self.state.links.active().and_then(|id| self.member(id)) else { return };
        let (mac, output) = (self.bond.mac(), active.port);
        let own = |address| Action::Inject { bytes: announce::address(mac, address), output };
        actions.extend(self.bond.announce.iter().copied().map(own));
        self.state.announcing = self.state.learnt.iter().collect();
        self.announce_some(now_ns, actions);
    }

    /// The next stations that are to be announced.
    pub(super) fn announce_some(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        let state = &mut self.state;
        let count = state.announcing.len().min(AT_ONCE);
        let next: Vec<_> = state.announcing.drain(..count).collect();
        if let Inward::Port(input) = self.bond.inward {
            // By the bucket that its frames go by.
            let through = |(mac, vid)| Action::InjectThrough { bytes: announce::rarp(mac, vid), input };
            let still = next.into_iter().filter(|(mac, _)| state.learnt.knows(*mac));
            actions.extend(still.map(|(mac, known)| through((mac, known.vid))));
        }
        state.announces_ns = (!state.announcing.is_empty()).then(|| now_ns + PAUSE_NS);
    }
}
