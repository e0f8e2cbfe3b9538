//! Stations inside a bond: what is learnt of them ([`Learnt`]), and the entries by which the pipes know them.

use super::config::{Bond, Mode};
use super::entries::{add, remove};
use super::learnt::{Learnt, Mac};
use super::pipes::Names;
use crate::app::Action;
use engine::program::{PipeId, Program};

/// The stations inside, and the pipes that know them.
pub(super) struct Stations {
    pub learnt: Learnt,
    /// The pipes `learn` and `reflected`, as far as the bond has them.
    pipes: Vec<PipeId>,
    /// Addresses that are to be taken out of the pipes.
    unlearnt: Vec<Mac>,
}

impl Stations {
    /// None is known yet.
    pub fn new(bond: &Bond) -> Stations {
        Stations { learnt: Learnt::new(bond.learnt_max), pipes: Vec::new(), unlearnt: Vec::new() }
    }

    /// Looks up the pipes.
    pub fn bind(&mut self, names: &Names<'_>, program: &Program) {
        let named = [names.learn(), names.reflected()];
        self.pipes = named.iter().filter_map(|name| program.pipe_named(name)).collect();
    }

    /// After a reload: what was known stays so if the pipes do in which it lies.
    pub fn adapt(&mut self, before: &Bond, now: &Bond) {
        let pipes = |bond: &Bond| (bond.learns(), bond.learns() && bond.mode == Mode::BalanceSlb);
        let shrinks = now.learnt_max < before.learnt_max;
        if pipes(before) == pipes(now) && !shrinks {
            self.learnt.set_capacity(now.learnt_max);
        } else {
            // Some entries of a pipe that shrinks may be lost.
            self.unlearnt.extend(self.learnt.iter().map(|(mac, _)| mac).filter(|_| now.learns()));
            self.learnt = Learnt::new(now.learnt_max);
        }
    }

    /// Removes the entries that a reload has left.
    pub fn begin(&mut self, actions: &mut Vec<Action>) {
        for mac in std::mem::take(&mut self.unlearnt) {
            self.forget(mac, actions);
        }
    }

    /// A frame from inside whose source was not known.
    pub fn learn(&mut self, now_ns: u64, frame: &[u8], actions: &mut Vec<Action>) {
        let Some((mac, gone)) = self.learnt.learn(now_ns, frame) else { return };
        gone.into_iter().for_each(|gone| self.forget(gone, actions));
        actions.extend(self.pipes.iter().map(|pipe| add(*pipe, mac)));
    }

    /// A frame whose source is inside came in from outside. Whether the station has moved there; then it is forgotten.
    pub fn has_moved(&mut self, now_ns: u64, frame: &[u8], actions: &mut Vec<Action>) -> bool {
        let moved = self.learnt.has_moved(now_ns, frame);
        moved.into_iter().for_each(|mac| self.forget(mac, actions));
        moved.is_some()
    }

    /// Addresses that were learnt long ago have to be seen again.
    pub fn age(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        while let Some(mac) = self.learnt.age(now_ns) {
            self.forget(mac, actions);
        }
    }

    fn forget(&self, mac: Mac, actions: &mut Vec<Action>) {
        actions.extend(self.pipes.iter().map(|pipe| remove(*pipe, mac)));
    }
}
