//! Bounded rings that carry frames out of a worker, to another worker (hand-over) or to an app (punt), and
//! flow deltas to the collector.
//!
//! A frame cannot leave its worker, because its memory belongs to the worker's pool; but its bytes can. They
//! travel in carriers, which are allocated once and circulate: full ones forward, empty ones back. Neither
//! end waits for the other; if there is no empty carrier, sending fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use weir_program::{AppId, PortId};
use weir_table::FlowDelta;

/// Bytes in a carrier: enough for the largest frame in a chunk.
pub const CARRIER_BYTES: usize = 2048;

/// Maximum number of flow deltas that a pipe keeps until they are collected. Beyond it, counts stay in the
/// flows, and flows in the table, so that none is lost. A breath may produce that number of deltas, and the
/// ring to the collector holds more.
pub(crate) const DELTAS_MAX: usize = 4096;

/// The bytes of a frame in transit.
#[derive(Debug)]
pub struct FrameBytes {
    bytes: Box<[u8; CARRIER_BYTES]>,
    length: usize,
    /// The hash delivered by the NIC with the frame; 0 if there is none or the receiver does not need it.
    pub hash: u32,
    /// The port on which the frame arrived.
    pub input: PortId,
    /// On a punt ring, the app that gets the frame.
    pub app: AppId,
    /// If the app gets the frame because it is too long: the maximum length of its IP packet, in bytes.
    pub limit: Option<u16>,
}

impl FrameBytes {
    /// Returns the frame.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// The sending end of a ring.
#[derive(Debug)]
pub struct CarrierSender {
    full: SyncSender<FrameBytes>,
    empty: Receiver<FrameBytes>,
    held: Arc<AtomicU64>,
}

/// The receiving end of a ring.
#[derive(Debug)]
pub struct CarrierReceiver {
    full: Receiver<FrameBytes>,
    empty: SyncSender<FrameBytes>,
    held: Arc<AtomicU64>,
}

/// Creates a ring for `capacity` frames.
#[must_use]
pub fn carriers(capacity: usize) -> (CarrierSender, CarrierReceiver) {
    let (full, full_end) = sync_channel(capacity);
    let (empty, empty_end) = sync_channel(capacity);
    for _ in 0..capacity {
        let carrier = FrameBytes {
            bytes: Box::new([0; CARRIER_BYTES]),
            length: 0,
            hash: 0,
            input: PortId(0),
            app: AppId(0),
            limit: None,
        };
        // The ring has room for all of its carriers.
        let _ = empty.try_send(carrier);
    }
    let held = Arc::new(AtomicU64::new(0));
    let sender = CarrierSender { full, empty: empty_end, held: held.clone() };
    (sender, CarrierReceiver { full: full_end, empty, held })
}

impl CarrierSender {
    /// Sends a frame's bytes. Returns false if the ring is full, the other end is gone, or the frame is too
    /// long.
    pub fn send(&mut self, bytes: &[u8], input: PortId, app: AppId) -> bool {
        self.send_hashed(bytes, 0, input, app)
    }

    /// Like [`CarrierSender::send`], with the hash delivered by the NIC (0: none), for a worker that
    /// continues with the frame.
    pub fn send_hashed(&mut self, bytes: &[u8], hash: u32, input: PortId, app: AppId) -> bool {
        self.send_all(bytes, (hash, None), input, app)
    }

    /// Like [`CarrierSender::send`], for a frame that may be too long, with the maximum length.
    pub fn send_limited(&mut self, bytes: &[u8], limit: Option<u16>, input: PortId, app: AppId) -> bool {
        self.send_all(bytes, (0, limit), input, app)
    }

    fn send_all(
        &mut self,
        bytes: &[u8],
        (hash, limit): (u32, Option<u16>),
        input: PortId,
        app: AppId,
    ) -> bool {
        if bytes.len() > CARRIER_BYTES {
            return false;
        }
        let Ok(mut carrier) = self.empty.try_recv() else { return false };
        carrier.bytes[..bytes.len()].copy_from_slice(bytes);
        (carrier.length, carrier.hash, carrier.input, carrier.app) = (bytes.len(), hash, input, app);
        carrier.limit = limit;
        self.held.fetch_add(1, Ordering::Release);
        let sent = self.full.try_send(carrier).is_ok();
        if !sent {
            self.held.fetch_sub(1, Ordering::Release);
        }
        sent
    }

    /// Returns the number of frames in the ring.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Acquire)
    }
}

impl CarrierReceiver {
    /// Takes the next frame, if there is one.
    pub fn receive(&mut self) -> Option<FrameBytes> {
        self.full.try_recv().ok()
    }

    /// Returns a carrier after its frame has been used; until then the ring holds the frame.
    pub fn done(&mut self, carrier: FrameBytes) {
        self.held.fetch_sub(1, Ordering::Release);
        // If the sender is gone, the carrier is not needed.
        let _ = self.empty.try_send(carrier);
    }
}

/// The sending end of a ring for flow deltas.
#[derive(Debug)]
pub struct DeltaSender {
    ring: SyncSender<FlowDelta>,
    source: u8,
    sent: u64,
    packets: u64,
    abandoned: bool,
}

/// Creates a ring for `capacity` flow deltas of the worker with this number.
#[must_use]
pub fn deltas(source: u8, capacity: usize) -> (DeltaSender, Receiver<FlowDelta>) {
    let (ring, receiver) = sync_channel(capacity);
    (DeltaSender { ring, source, sent: 0, packets: 0, abandoned: false }, receiver)
}

impl DeltaSender {
    /// Sends a delta. Returns false if the ring is full or no longer has a reader: the counts must stay where
    /// they are.
    pub fn send(&mut self, mut delta: FlowDelta) -> bool {
        delta.source = self.source;
        let sent = self.ring.try_send(delta);
        self.abandoned |= matches!(sent, Err(TrySendError::Disconnected(_)));
        if sent.is_ok() {
            self.sent += 1;
            self.packets += delta.packets();
        }
        sent.is_ok()
    }

    /// Returns the number of packets in the deltas sent.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Returns the number of deltas sent.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Returns true if the last delta was refused because the ring no longer has a reader.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.abandoned
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_pass_in_order_and_a_full_ring_refuses() {
        let (mut sender, mut receiver) = carriers(2);
        assert!(sender.send(b"one", PortId(1), AppId(0)));
        assert!(sender.send_hashed(b"two", 2, PortId(2), AppId(0)));
        assert!(!sender.send(b"three", PortId(3), AppId(0)));
        assert_eq!(sender.held(), 2);
        let carrier = receiver.receive().unwrap();
        assert_eq!((carrier.bytes(), carrier.hash, carrier.input), (&b"one"[..], 0, PortId(1)));
        receiver.done(carrier);
        assert_eq!(sender.held(), 1);
        assert!(sender.send(b"three", PortId(3), AppId(0)));
        assert!(!sender.send(&[0; CARRIER_BYTES + 1], PortId(0), AppId(0)));
        for expected in [(&b"two"[..], 2), (b"three", 0)] {
            let carrier = receiver.receive().unwrap();
            assert_eq!((carrier.bytes(), carrier.hash), expected, "a reused carrier has no old hash");
            receiver.done(carrier);
        }
        assert!(receiver.receive().is_none());
        assert_eq!(sender.held(), 0);
    }

    #[test]
    fn two_threads_lose_nothing() {
        let (mut sender, mut receiver) = carriers(8);
        let thread = std::thread::spawn(move || {
            for number in 0..20_000u32 {
                while !sender.send(&number.to_be_bytes(), PortId(0), AppId(0)) {
                    std::thread::yield_now();
                }
            }
        });
        for number in 0..20_000u32 {
            let carrier = loop {
                match receiver.receive() {
                    Some(carrier) => break carrier,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!(carrier.bytes(), number.to_be_bytes());
            receiver.done(carrier);
        }
        thread.join().unwrap();
    }
}
