//! Frames sent by apps. Frames for a port wait for room, in order, and are tried before data; frames for the
//! program go to the worker that owns their flow.

use super::Worker;
use super::outbox::Sent;
use super::waiting::{Inject, Injected, Waiter};
use std::sync::mpsc::SyncSender;
use weir_packet::DropReason;
use weir_program::PortId;

impl Worker {
    /// Sends an app's frame. A frame for a port waits for room after the frames that already wait there.
    pub(super) fn inject(&mut self, inject: Inject, answer: SyncSender<Injected>, now_ns: u64) {
        self.outbox.ledger.originated += 1;
        let waiter = Waiter { inject, answer };
        let Some(port) = waiter.inject.output else {
            let injected = self.inject_through(&waiter.inject, now_ns);
            return self.answer(waiter, injected);
        };
        let sent = if self.waiting.at(port) > 0 { Sent::NotNow } else { self.send(&waiter, port) };
        match sent {
            Sent::Yes => self.answer(waiter, Ok(())),
            Sent::Never(reason) => self.answer(waiter, Err(reason)),
            Sent::NotNow => {
                if let Err(waiter) = self.waiting.push(waiter) {
                    self.answer(waiter, Err(DropReason::TransmitFull));
                }
            }
        }
    }

    /// Passes a frame through the program, on the worker that owns its flow.
    fn inject_through(&mut self, inject: &Inject, now_ns: u64) -> Injected {
        if inject.input.index() >= self.outbox.ports.len() {
            return Err(DropReason::Policy);
        }
        self.outbox.originate(&mut self.batch, &inject.bytes, None)?;
        let list = self.admit(inject.input, now_ns);
        self.walk(inject.input, list, now_ns);
        self.release_fragments(now_ns);
        self.hand_over.flush();
        Ok(())
    }

    /// Tries to send the waiting frames, in order of arrival. If a frame finds no room, later frames for its
    /// port are not tried.
    pub(super) fn send_waiting(&mut self, now_ns: u64) {
        let mut full = 0_u64;
        for _ in 0..self.waiting.len() {
            let Some(waiter) = self.waiting.pop() else { return };
            let port = waiter.inject.output.unwrap_or_default();
            if full & 1 << (port.0 & 63) != 0 {
                self.waiting.put_back(waiter);
                continue;
            }
            if let Some(port) = self.outbox.ports.get_mut(port.index()) {
                port.set_time(now_ns);
            }
            match self.send(&waiter, port) {
                Sent::Yes => self.answer(waiter, Ok(())),
                Sent::Never(reason) => self.answer(waiter, Err(reason)),
                Sent::NotNow => {
                    full |= 1 << (port.0 & 63);
                    self.waiting.put_back(waiter);
                }
            }
        }
    }

    fn send(&mut self, waiter: &Waiter, port: PortId) -> Sent {
        self.outbox.send(&mut self.batch, &waiter.inject.bytes, port)
    }

    /// Answers the sender of an injected frame; a frame that was not sent is dropped.
    pub(super) fn answer(&mut self, waiter: Waiter, injected: Injected) {
        if let Err(reason) = injected {
            self.outbox.ledger.drop_one(reason);
        }
        self.outbox.signal = true;
        waiter.reply(injected);
    }
}
