//! Frames that arrive in pieces: the kernel's chunks are at most a page, and the engine only knows frames
//! whose bytes are contiguous.
//!
//! The first piece stays where it is, in the first page of a chunk of the pool; the others are copied behind
//! it, and their chunks become free again. A frame that fits into a page therefore costs nothing here, and a
//! longer one only the copy of what does not fit. A frame that is longer than a chunk of the pool is dropped
//! whole.

use rustix::net::xdp::{XdpDesc, XdpDescOptions};
use weir_packet::{Frame, RegionPool};

use super::umem::{NotOurs, Umem};

/// The received part of a frame that is not complete yet.
pub(super) struct Joining {
    /// The pieces received so far; absent between two frames, and once the frame is known to be dropped.
    frame: Frame,
    /// Bytes of a frame that is dropped.
    dropped_bytes: u64,
    in_pieces: bool,
    counts: JoinCounts,
}

/// Counts of frames that arrived in pieces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct JoinCounts {
    /// Frames that were joined.
    pub(super) frames: u64,
    /// Bytes that were copied to join them.
    pub(super) bytes: u64,
}

/// What a piece completes.
#[derive(Debug)]
pub(super) enum Joined {
    /// Nothing yet.
    Partly,
    /// A frame.
    Whole(Frame),
    /// The number of bytes of a frame that was longer than a chunk of the pool and was dropped.
    TooLong(u64),
}

impl Joining {
    pub(super) fn new() -> Joining {
        let counts = JoinCounts::default();
        Joining { frame: Frame::absent(), dropped_bytes: 0, in_pieces: false, counts }
    }

    pub(super) fn counts(&self) -> JoinCounts {
        self.counts
    }

    /// Returns true if the next descriptor continues a frame, or begins one in pieces.
    #[inline]
    pub(super) fn concerns(&self, descriptor: &XdpDesc) -> bool {
        self.in_pieces || goes_on(descriptor)
    }

    /// Returns the number of chunks that are neither the pool's nor the kernel's.
    pub(super) fn chunks(&self) -> usize {
        usize::from(!self.frame.is_absent())
    }

    /// Adds a piece.
    ///
    /// # Errors
    /// Returns [`NotOurs`] if the descriptor is wrong; the rest of the frame is dropped.
    pub(super) fn add(
        &mut self,
        umem: &mut Umem,
        pool: &mut RegionPool,
        descriptor: &XdpDesc,
    ) -> Result<Joined, NotOurs> {
        let is_first = !std::mem::replace(&mut self.in_pieces, goes_on(descriptor));
        let piece = match umem.receive(pool, descriptor) {
            Ok(piece) => piece,
            Err(wrong) => {
                self.drop_begun(pool);
                return Err(wrong);
            }
        };
        if is_first {
            self.frame = piece;
        } else {
            self.append(&piece, pool);
            pool.give(piece);
        }
        Ok(match (self.in_pieces, self.frame.is_absent()) {
            (true, _) => Joined::Partly,
            (false, true) => Joined::TooLong(std::mem::take(&mut self.dropped_bytes)),
            (false, false) => {
                self.counts.frames += 1;
                Joined::Whole(self.frame.take())
            }
        })
    }

    fn append(&mut self, piece: &Frame, pool: &mut RegionPool) {
        let before = self.frame.len();
        let length = u16::try_from(before + piece.len()).ok();
        let fits = !self.frame.is_absent() && length.is_some_and(|length| self.frame.resize(length).is_ok());
        if fits {
            self.frame.bytes_mut()[before..].copy_from_slice(piece.bytes());
            self.counts.bytes += piece.len() as u64;
        } else {
            self.drop_begun(pool);
            self.dropped_bytes += piece.len() as u64;
        }
    }

    fn drop_begun(&mut self, pool: &mut RegionPool) {
        self.dropped_bytes += self.frame.len() as u64;
        if !self.frame.is_absent() {
            pool.give(self.frame.take());
        }
    }

    /// Returns true if a frame has begun whose next piece is still to come.
    pub(super) fn is_in_pieces(&self) -> bool {
        self.in_pieces
    }

    /// Drops the rest of a frame whose beginning another process has dropped.
    pub(super) fn resume(&mut self, in_pieces: bool) {
        self.in_pieces = in_pieces;
    }

    /// Gives up an incomplete frame, because its socket is closed. Returns the number of frames.
    pub(super) fn abandon(&mut self, pool: &mut RegionPool) -> u64 {
        self.drop_begun(pool);
        self.dropped_bytes = 0;
        u64::from(std::mem::take(&mut self.in_pieces))
    }
}

fn goes_on(descriptor: &XdpDesc) -> bool {
    descriptor.options.contains(XdpDescOptions::XDP_PKT_CONTD)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CHUNK: usize = 16384;
    /// The largest number of bytes that the kernel puts into a chunk.
    const PIECE: usize = 4096 - 256;

    struct Kernel {
        pool: RegionPool,
        umem: Umem,
        joining: Joining,
    }

    impl Kernel {
        fn new(chunk: usize) -> Kernel {
            let pool = RegionPool::new(40, chunk);
            Kernel { umem: Umem::new(&pool), pool, joining: Joining::new() }
        }

        /// Delivers a frame like the kernel, and returns the outcome.
        fn deliver(&mut self, bytes: &[u8]) -> Joined {
            let mut last = Joined::Partly;
            let count = bytes.len().div_ceil(PIECE);
            for (at, part) in bytes.chunks(PIECE).enumerate() {
                let address = self.umem.lend(&mut self.pool).unwrap() + 256;
                let (base, _) = self.pool.region();
                // SAFETY: the chunk was lent; its first page has room for the part.
                unsafe {
                    base.add(address as usize).as_ptr().copy_from_nonoverlapping(part.as_ptr(), part.len())
                };
                let more = at + 1 < count;
                let options = if more { XdpDescOptions::XDP_PKT_CONTD } else { XdpDescOptions::empty() };
                let descriptor = XdpDesc { addr: address, len: part.len() as u32, options };
                assert!(count == 1 || self.joining.concerns(&descriptor));
                last = self.joining.add(&mut self.umem, &mut self.pool, &descriptor).unwrap();
                let away = self.umem.away() as usize;
                assert_eq!(self.pool.available() + away + self.joining.chunks() + at_hand(&last), 40);
            }
            last
        }
    }

    fn at_hand(joined: &Joined) -> usize {
        usize::from(matches!(joined, Joined::Whole(_)))
    }

    proptest! {
        #[test]
        fn frames_arrive_as_they_were_sent_or_are_dropped_whole(
            lengths in prop::collection::vec(1_usize..20_000, 1..20),
        ) {
            let mut kernel = Kernel::new(CHUNK);
            let (mut whole, mut copied) = (0, 0);
            for (number, length) in lengths.into_iter().enumerate() {
                let bytes: Vec<u8> = (0..length).map(|at| (at * 7 + at / 256 + number) as u8).collect();
                match kernel.deliver(&bytes) {
                    Joined::Whole(frame) => {
                        prop_assert!(length <= CHUNK - 256);
                        prop_assert_eq!(frame.bytes(), &bytes);
                        whole += 1;
                        copied += length.saturating_sub(PIECE) as u64;
                        kernel.pool.give(frame);
                        prop_assert_eq!(kernel.joining.counts().frames, whole);
                    }
                    Joined::TooLong(dropped) => {
                        prop_assert!(length > CHUNK - 256);
                        prop_assert_eq!(dropped, length as u64);
                        copied = kernel.joining.counts().bytes;
                    }
                    Joined::Partly => prop_assert!(false, "the frame was complete"),
                }
                prop_assert_eq!(kernel.joining.counts().bytes, copied);
                prop_assert_eq!(kernel.pool.available(), 40);
            }
        }
    }

    #[test]
    fn nothing_is_joined_where_a_chunk_is_a_page() {
        let mut kernel = Kernel::new(4096);
        assert!(
            matches!(kernel.deliver(&[7; PIECE + 1]), Joined::TooLong(bytes) if bytes == PIECE as u64 + 1)
        );
        assert!(
            matches!(kernel.deliver(&[7; 3 * PIECE]), Joined::TooLong(bytes) if bytes == 3 * PIECE as u64)
        );
        assert_eq!((kernel.pool.available(), kernel.joining.counts()), (40, JoinCounts::default()));
    }

    #[test]
    fn a_wrong_piece_drops_the_frame_and_a_closed_socket_abandons_it() {
        let mut kernel = Kernel::new(CHUNK);
        let Kernel { pool, umem, joining } = &mut kernel;
        let contd = XdpDescOptions::XDP_PKT_CONTD;
        for last in [contd, XdpDescOptions::empty()] {
            let addr = umem.lend(pool).unwrap() + 256;
            joining.add(umem, pool, &XdpDesc { addr, len: 3840, options: contd }).unwrap();
            let wrong = XdpDesc { addr: u64::MAX, len: 9, options: last };
            assert!(joining.add(umem, pool, &wrong).is_err());
            assert_eq!((pool.available(), joining.chunks()), (40, 0));
            assert_eq!(joining.abandon(pool), u64::from(last == contd));
        }
        let addr = umem.lend(pool).unwrap() + 256;
        joining.add(umem, pool, &XdpDesc { addr, len: 3840, options: contd }).unwrap();
        assert_eq!((pool.available(), joining.chunks()), (39, 1));
        assert_eq!((joining.abandon(pool), joining.abandon(pool)), (1, 0));
        assert_eq!((pool.available(), joining.chunks()), (40, 0));
    }
}
