//! Injected frames that wait for room in a port's transmit ring. Frames from apps keep links and neighbours
//! alive and must not be lost because data has filled the ring, so they are retried in every breath before
//! data is sent.
//!
//! Guarantees: the frames for a port leave in order of arrival; a port that is stuck does not use up the room
//! of another; a frame is answered exactly once, when it is sent or dropped.

use std::collections::VecDeque;
use std::sync::mpsc::SyncSender;
use weir_packet::DropReason;
use weir_program::PortId;

/// Maximum number of frames waiting for one port: more than all control protocols of a port send in a second.
pub const WAITING_MAX: usize = 64;

/// The outcome of an injected frame: `Ok` if it was sent or went through the program.
pub type Injected = Result<(), DropReason>;

/// A frame sent by an app.
#[derive(Clone, Debug)]
pub struct Inject {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The port to send it through; `None` to pass it through the program as if it had arrived on `input`.
    pub output: Option<PortId>,
    /// The port on which the frame pretends to have arrived.
    pub input: PortId,
}

/// A waiting frame, and the channel for its answer.
#[derive(Debug)]
pub(super) struct Waiter {
    /// The frame, which waits for its output port.
    pub inject: Inject,
    /// Receives the outcome.
    pub answer: SyncSender<Injected>,
}

impl Waiter {
    /// Reports the outcome, unless the receiver is gone.
    pub fn reply(self, injected: Injected) {
        let _ = self.answer.try_send(injected);
    }
}

/// All waiting frames of a worker.
#[derive(Debug, Default)]
pub(super) struct Waiting(VecDeque<Waiter>);

impl Waiting {
    /// Returns the number of waiting frames.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if no frame waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of frames that wait for this port.
    pub fn at(&self, port: PortId) -> usize {
        self.0.iter().filter(|one| one.inject.output == Some(port)).count()
    }

    /// Adds a frame. Returns it if too many already wait for its port.
    pub fn push(&mut self, waiter: Waiter) -> Result<(), Waiter> {
        if waiter.inject.output.is_none_or(|port| self.at(port) >= WAITING_MAX) {
            return Err(waiter);
        }
        self.0.push_back(waiter);
        Ok(())
    }

    /// Takes the oldest frame. A frame that must wait longer is returned by [`Waiting::put_back`], so that a
    /// pass visits each once.
    pub fn pop(&mut self) -> Option<Waiter> {
        self.0.pop_front()
    }

    /// Returns a frame to the queue, after those that were put back earlier.
    pub fn put_back(&mut self, waiter: Waiter) {
        self.0.push_back(waiter);
    }

    /// Renumbers ports: `ports[n]` is the old number of the new port `n`, unless it is new. Returns the
    /// frames whose port is gone.
    pub fn renumber(&mut self, ports: &[Option<usize>]) -> Vec<Waiter> {
        let mut gone = Vec::new();
        for mut waiter in std::mem::take(&mut self.0) {
            let old = waiter.inject.output.map(PortId::index);
            match ports.iter().position(|&port| port.is_some() && port == old) {
                Some(new) => {
                    waiter.inject.output = Some(PortId(new as u16));
                    self.0.push_back(waiter);
                }
                None => gone.push(waiter),
            }
        }
        gone
    }

    /// Drops all frames for this reason. Returns how many there were.
    pub fn give_up(&mut self, reason: DropReason) -> u64 {
        let all = std::mem::take(&mut self.0);
        let count = all.len() as u64;
        all.into_iter().for_each(|waiter| waiter.reply(Err(reason)));
        count
    }
}
