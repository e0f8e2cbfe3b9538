//! Injected frames that wait for room in a port's transmit ring. What an app sends keeps links and neighbours alive: it
//! must not be lost because data has filled the ring, so it is tried again in every breath before data is sent.
//!
//! Promises: the frames of a port leave in the order in which they came; a port that is stuck takes no other's room; a
//! frame is answered once, when it has been sent or given up.

use super::{Inject, Injected};
use crate::program::PortId;
use packet::DropReason;
use std::collections::VecDeque;
use std::sync::mpsc::SyncSender;

/// Frames that may wait for one port: more than all control protocols of a port send in a second.
pub const WAITING_MAX: usize = 64;

/// A frame that waits, and where its answer goes.
#[derive(Debug)]
pub(super) struct Waiter {
    /// The frame; its output is the port it waits for.
    pub inject: Inject,
    /// Told what became of it.
    pub answer: SyncSender<Injected>,
}

impl Waiter {
    /// Says what became of it. Whoever asked may have gone.
    pub fn tell(self, injected: Injected) {
        let _ = self.answer.try_send(injected);
    }
}

/// All frames of a worker that wait.
#[derive(Debug, Default)]
pub(super) struct Waiting(VecDeque<Waiter>);

impl Waiting {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Nobody waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many wait for this port.
    pub fn at(&self, port: PortId) -> usize {
        self.0.iter().filter(|one| one.inject.output == Some(port)).count()
    }

    /// One more; given back when as many wait for its port as may.
    pub fn push(&mut self, waiter: Waiter) -> Result<(), Waiter> {
        if waiter.inject.output.is_none_or(|port| self.at(port) >= WAITING_MAX) {
            return Err(waiter);
        }
        self.0.push_back(waiter);
        Ok(())
    }

    /// Takes the oldest; who must wait on comes back by [`Waiting::put_back`], and all are met once.
    pub fn pop(&mut self) -> Option<Waiter> {
        self.0.pop_front()
    }

    /// Waits on, behind those that were put back before.
    pub fn put_back(&mut self, waiter: Waiter) {
        self.0.push_back(waiter);
    }

    /// Ports have new numbers: `ports[n]` is which of the old ones is port `n` now. Gives those whose port is gone.
    pub fn renumber(&mut self, ports: &[usize]) -> Vec<Waiter> {
        let mut gone = Vec::new();
        for mut waiter in std::mem::take(&mut self.0) {
            let old = waiter.inject.output.map(PortId::index);
            match ports.iter().position(|&port| Some(port) == old) {
                Some(new) => {
                    waiter.inject.output = Some(PortId(new as u16));
                    self.0.push_back(waiter);
                }
                None => gone.push(waiter),
            }
        }
        gone
    }

    /// All of them, given up for this reason; how many there were.
    pub fn give_up(&mut self, reason: DropReason) -> u64 {
        let all = std::mem::take(&mut self.0);
        let count = all.len() as u64;
        all.into_iter().for_each(|waiter| waiter.tell(Err(reason)));
        count
    }
}
