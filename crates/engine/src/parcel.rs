//! Bounded rings that carry frames from worker to worker, many at a time.
//!
//! A frame cannot leave its worker, because its memory belongs to the worker's pool; but its bytes can. They
//! travel in parcels: buffers that are allocated once and circulate, full ones forward, empty ones back. The
//! frames of a parcel are packed back to back, so that short frames cost little memory and few cache lines,
//! and the two ends synchronise once per parcel rather than once per frame. Neither end waits for the other;
//! if there is no empty parcel, a frame is refused.
//!
//! A parcel leaves at the end of a breath. While half of the ring is in flight, a parcel with room left stays
//! open and is filled further, so that a slow receiver gets a few full parcels rather than many small ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use weir_program::replica::MARK_BYTES;

/// Maximum number of frames in a parcel: as many as in a batch.
pub const PARCEL_FRAMES: usize = weir_packet::BATCH;

/// Bytes of frames in a parcel: 64 frames of 256 bytes, ten of the usual MTU, or one of the largest size that
/// a port receives.
pub const PARCEL_BYTES: usize = 16 * 1024;

/// A frame in a parcel.
#[derive(Clone, Copy, Debug, Default)]
struct Packed {
    end: u32,
    hash: u32,
    input: u32,
    ports: Option<[u8; 4]>,
    front: Option<[u8; MARK_BYTES]>,
}

/// Frames on their way to another worker.
#[derive(Debug)]
struct Parcel {
    bytes: Box<[u8]>,
    frames: [Packed; PARCEL_FRAMES],
    count: usize,
}

/// Memory of a parcel, in bytes.
pub const PARCEL_MEMORY: usize = PARCEL_BYTES + size_of::<Parcel>();

/// A frame in a parcel, with its metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived<'a> {
    /// Its bytes.
    pub bytes: &'a [u8],
    /// The hash that its NIC delivered; 0 if there was none.
    pub hash: u32,
    /// The port on which it arrived, by the number that the sender gave.
    pub input: u32,
    /// For a fragment, the ports of its datagram, if known.
    pub ports: Option<[u8; 4]>,
    /// The bytes in front of the frame, where the kernel may have left a mark.
    pub front: Option<[u8; MARK_BYTES]>,
}

/// How many frames the receiver has taken, for the sender to read.
#[derive(Debug, Default)]
struct Progress {
    frames: AtomicU64,
    parcels: AtomicU64,
}

/// The sending end of a ring.
#[derive(Debug)]
pub struct ParcelSender {
    full: SyncSender<Box<Parcel>>,
    empty: Receiver<Box<Parcel>>,
    open: Option<Box<Parcel>>,
    capacity: u64,
    frames: u64,
    parcels: u64,
    progress: Arc<Progress>,
}

/// The receiving end of a ring.
#[derive(Debug)]
pub struct ParcelReceiver {
    full: Receiver<Box<Parcel>>,
    empty: SyncSender<Box<Parcel>>,
    /// The parcel that is being unpacked, and how many of its frames have been taken.
    open: Option<(Box<Parcel>, usize)>,
    frames: u64,
    parcels: u64,
    progress: Arc<Progress>,
}

/// Creates a ring of `capacity` parcels, at least one.
#[must_use]
pub fn parcels(capacity: usize) -> (ParcelSender, ParcelReceiver) {
    let capacity = capacity.max(1);
    let (full, full_end) = sync_channel(capacity);
    let (empty, empty_end) = sync_channel(capacity);
    for _ in 0..capacity {
        // The ring has room for all of its parcels.
        let _ = empty.try_send(Box::new(Parcel::new()));
    }
    let progress = Arc::new(Progress::default());
    let sender = ParcelSender {
        full,
        empty: empty_end,
        open: None,
        capacity: capacity as u64,
        frames: 0,
        parcels: 0,
        progress: progress.clone(),
    };
    (sender, ParcelReceiver { full: full_end, empty, open: None, frames: 0, parcels: 0, progress })
}

impl Parcel {
    fn new() -> Parcel {
        Parcel {
            bytes: vec![0; PARCEL_BYTES].into_boxed_slice(),
            frames: [Packed::default(); PARCEL_FRAMES],
            count: 0,
        }
    }

    fn start(&self, at: usize) -> usize {
        if at == 0 { 0 } else { self.frames[at - 1].end as usize }
    }

    fn has_room(&self, length: usize) -> bool {
        self.count < PARCEL_FRAMES && self.start(self.count) + length <= PARCEL_BYTES
    }

    fn push(&mut self, frame: Arrived<'_>) {
        let Arrived { bytes, hash, input, ports, front } = frame;
        let start = self.start(self.count);
        let end = start + bytes.len();
        self.bytes[start..end].copy_from_slice(bytes);
        self.frames[self.count] = Packed { end: end as u32, hash, input, ports, front };
        self.count += 1;
    }

    fn get(&self, at: usize) -> Arrived<'_> {
        debug_assert!(at < self.count, "frame {at} of {}", self.count);
        let Packed { end, hash, input, ports, front } = self.frames[at];
        Arrived { bytes: &self.bytes[self.start(at)..end as usize], hash, input, ports, front }
    }
}

impl ParcelSender {
    /// Packs a frame. Returns false if the ring is full or the frame is longer than [`PARCEL_BYTES`].
    pub fn push(&mut self, frame: Arrived<'_>) -> bool {
        let bytes = frame.bytes;
        if bytes.len() > PARCEL_BYTES {
            return false;
        }
        if self.open.as_ref().is_some_and(|open| !open.has_room(bytes.len())) {
            self.send();
        }
        if self.open.is_none() {
            self.open = self.empty.try_recv().ok();
        }
        let Some(open) = &mut self.open else { return false };
        open.push(frame);
        self.frames += 1;
        true
    }

    /// Sends the open parcel, unless half of the ring is in flight. Returns whether a parcel was sent.
    pub fn flush(&mut self) -> bool {
        let taken = self.progress.parcels.load(Ordering::Acquire);
        // More than `capacity` may seem to be in flight, because parcels come back before they are reported.
        debug_assert!(taken <= self.parcels, "only what was sent is taken");
        self.open.is_some() && (self.parcels - taken) * 2 <= self.capacity && self.send()
    }

    /// Sends the open parcel. Returns whether there was one.
    pub fn send(&mut self) -> bool {
        let Some(open) = self.open.take() else { return false };
        self.parcels += 1;
        // The channel has room for every parcel of the ring. If the other end is gone, the frames count as
        // held forever: workers end only when none hands over any more.
        self.full.try_send(open).is_ok()
    }

    /// Returns the number of frames that were packed but not yet taken.
    #[must_use]
    pub fn held(&self) -> u64 {
        let taken = self.progress.frames.load(Ordering::Acquire);
        debug_assert!(taken <= self.frames, "{taken} of {} frames were taken", self.frames);
        self.frames - taken
    }

    /// Returns whether a parcel waits for more frames or for room.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }
}

impl ParcelReceiver {
    /// Returns the next frame without taking it.
    #[must_use]
    pub fn peek(&mut self) -> Option<Arrived<'_>> {
        if self.open.is_none() {
            self.open = Some((self.full.try_recv().ok()?, 0));
        }
        self.open.as_ref().map(|(parcel, at)| parcel.get(*at))
    }

    /// Takes the frame that [`ParcelReceiver::peek`] returned.
    pub fn take(&mut self) {
        let Some((parcel, at)) = &mut self.open else { return };
        *at += 1;
        self.frames += 1;
        if *at == parcel.count
            && let Some((mut parcel, _)) = self.open.take()
        {
            parcel.count = 0;
            self.parcels += 1;
            // If the sender is gone, the parcel is not needed.
            let _ = self.empty.try_send(parcel);
        }
    }

    /// Reports to the sender which frames have been taken; until then, the ring holds these frames.
    pub fn done(&mut self) {
        self.progress.frames.store(self.frames, Ordering::Release);
        self.progress.parcels.store(self.parcels, Ordering::Release);
    }

    /// Returns whether the sender is gone and everything that it sent has been taken.
    #[must_use]
    pub fn is_finished(&mut self) -> bool {
        if self.open.is_some() {
            return false;
        }
        match self.full.try_recv() {
            Ok(parcel) => {
                self.open = Some((parcel, 0));
                false
            }
            Err(TryRecvError::Empty) => false,
            Err(TryRecvError::Disconnected) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &[u8], hash: u32, input: u32) -> Arrived<'_> {
        Arrived { bytes, hash, input, ports: None, front: Some([bytes.len() as u8; MARK_BYTES]) }
    }

    fn take(receiver: &mut ParcelReceiver) -> Option<(Vec<u8>, u32, u32)> {
        let taken = receiver.peek().map(|frame| (frame.bytes.to_vec(), frame.hash, frame.input));
        receiver.take();
        receiver.done();
        taken
    }

    #[test]
    fn frames_pass_in_order_with_what_belongs_to_them() {
        let (mut sender, mut receiver) = parcels(2);
        let all = [of(b"one", 0, 1), of(b"", 2, 2), of(b"three", 3, 3)];
        assert!(all.into_iter().all(|frame| sender.push(frame)));
        assert!(receiver.peek().is_none(), "the parcel is open");
        assert!(sender.flush() && !sender.flush());
        assert_eq!(sender.held(), 3);
        assert_eq!(take(&mut receiver), Some((b"one".to_vec(), 0, 1)));
        assert_eq!(sender.held(), 2);
        assert_eq!(take(&mut receiver), Some((Vec::new(), 2, 2)));
        assert_eq!(take(&mut receiver), Some((b"three".to_vec(), 3, 3)));
        assert_eq!((take(&mut receiver), sender.held()), (None, 0));
    }

    #[test]
    fn a_ring_is_full_when_all_parcels_are_and_a_frame_longer_than_one_is_refused() {
        let (mut sender, mut receiver) = parcels(3);
        assert!(!sender.push(of(&[0; PARCEL_BYTES + 1], 0, 0)));
        let long = [7; PARCEL_BYTES / 2];
        let taken = (0..10).take_while(|_| sender.push(of(&long, 0, 0))).count();
        assert_eq!(taken, 6, "two in each of three");
        for _ in 0..2 {
            assert_eq!(take(&mut receiver).map(|frame| frame.0), Some(long.to_vec()));
        }
        assert!(sender.push(of(b"short", 0, 0)));
        assert!(!sender.flush(), "more than half of the ring is in flight, so it waits for more");
        assert!(sender.push(of(b"short", 0, 0)));
        (0..2).for_each(|_| assert!(take(&mut receiver).is_some()));
        assert!(sender.flush());
        assert!((0..4).all(|_| take(&mut receiver).is_some()) && take(&mut receiver).is_none());
        let short = (0..1000).take_while(|_| sender.push(of(&[1], 0, 0))).count();
        assert_eq!((short, sender.held()), (3 * PARCEL_FRAMES, 3 * PARCEL_FRAMES as u64));
    }

    #[test]
    fn a_receiver_is_finished_when_the_sender_is_gone_and_all_is_taken() {
        let (mut sender, mut receiver) = parcels(1);
        sender.push(of(b"last", 0, 0));
        sender.send();
        assert!(!receiver.is_finished());
        drop(sender);
        assert!(!receiver.is_finished());
        assert!(take(&mut receiver).is_some());
        assert!(receiver.is_finished());
    }

    #[test]
    fn two_threads_lose_nothing() {
        let (mut sender, mut receiver) = parcels(3);
        const FRAMES: u32 = 50_000;
        let thread = std::thread::spawn(move || {
            for number in 0..FRAMES {
                while !sender.push(of(&number.to_be_bytes(), number, 7)) {
                    sender.flush();
                    std::thread::yield_now();
                }
                if number % 5 == 0 {
                    sender.flush();
                }
            }
            sender.send();
            while sender.held() > 0 {
                std::thread::yield_now();
            }
        });
        for number in 0..FRAMES {
            let frame = loop {
                match take(&mut receiver) {
                    Some(frame) => break frame,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!(frame, (number.to_be_bytes().to_vec(), number, 7));
        }
        thread.join().unwrap();
    }
}
