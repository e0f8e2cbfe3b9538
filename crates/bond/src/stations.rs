//! The stations inside a bond: those learnt ([`Learnt`]), and their entries in the pipes.

use super::config::{Bond, Mode};
use super::entries::{add, remove};
use super::learnt::{Learnt, MacBytes};
use super::pipes::Names;
use weir_app::Action;
use weir_program::{PipeId, Program};

/// The stations inside, and the pipes with their entries.
pub(super) struct Stations {
    pub learnt: Learnt,
    /// The pipes `learn` and `reflected`, where the bond has them.
    pipes: Vec<PipeId>,
    /// Addresses whose entries are still to be removed.
    unlearnt: Vec<MacBytes>,
}

impl Stations {
    /// State without any station.
    pub fn new(bond: &Bond) -> Stations {
        Stations { learnt: Learnt::new(bond.learnt_max), pipes: Vec::new(), unlearnt: Vec::new() }
    }

    /// Looks up the pipes in the program.
    pub fn bind(&mut self, names: &Names<'_>, program: &Program) {
        let named = [names.learn(), names.reflected()];
        self.pipes = named.iter().filter_map(|name| program.pipe_named(name)).collect();
    }

    /// Keeps the stations after a reload if the pipes keep their entries.
    pub fn adapt(&mut self, before: &Bond, now: &Bond) {
        let pipes = |bond: &Bond| (bond.learns(), bond.learns() && bond.mode == Mode::BalanceSlb);
        let shrinks = now.learnt_max < before.learnt_max;
        if pipes(before) == pipes(now) && !shrinks {
            self.learnt.set_capacity(now.learnt_max);
        } else {
            // A pipe that gets smaller may lose some of its entries.
            self.unlearnt.extend(self.learnt.iter().map(|(mac, _)| mac).filter(|_| now.learns()));
            self.learnt = Learnt::new(now.learnt_max);
        }
    }

    /// Removes entries left over from before a reload.
    pub fn begin(&mut self, actions: &mut Vec<Action>) {
        for mac in std::mem::take(&mut self.unlearnt) {
            self.forget(mac, actions);
        }
    }

    /// Learns the source of a frame from inside.
    pub fn learn(&mut self, now_ns: u64, frame: &[u8], actions: &mut Vec<Action>) {
        let Some((mac, gone)) = self.learnt.learn(now_ns, frame) else { return };
        gone.into_iter().for_each(|gone| self.forget(gone, actions));
        actions.extend(self.pipes.iter().map(|pipe| add(*pipe, mac)));
    }

    /// Handles a frame from outside whose source is inside. Returns whether the station has moved, and
    /// forgets it if so.
    pub fn has_moved(&mut self, now_ns: u64, frame: &[u8], actions: &mut Vec<Action>) -> bool {
        let moved = self.learnt.has_moved(now_ns, frame);
        moved.into_iter().for_each(|mac| self.forget(mac, actions));
        moved.is_some()
    }

    /// Forgets addresses not seen for a long time.
    pub fn age(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        while let Some(mac) = self.learnt.age(now_ns) {
            self.forget(mac, actions);
        }
    }

    fn forget(&self, mac: MacBytes, actions: &mut Vec<Action>) {
        actions.extend(self.pipes.iter().map(|pipe| remove(*pipe, mac)));
    }
}
