//! Decides when learning must wait. A frame's mark distinguishes only a few epochs, so an epoch could be
//! confused with an earlier one in which a frame that is still in flight was marked.

/// How long a frame may be in flight inside the kernel, in nanoseconds: three attempts to resolve a
/// neighbour, plus a margin.
const FLIGHT_NS: u64 = 4_000_000_000;

/// The epochs that a mark distinguishes.
pub struct Epochs {
    /// When each epoch last ended; 0 if never.
    ended: Vec<u64>,
    present: usize,
}

impl Epochs {
    /// Creates `count` epochs and begins the first.
    pub fn new(count: usize) -> Epochs {
        Epochs { ended: vec![0; count.max(1)], present: 0 }
    }

    /// Begins the next epoch. Returns the time from which on a frame marked with this epoch certainly belongs
    /// to it, if that time is later.
    pub fn next(&mut self, now_ns: u64) -> Option<u64> {
        self.ended[self.present] = now_ns;
        self.present = (self.present + 1) % self.ended.len();
        let ended = self.ended[self.present];
        (ended > 0).then_some(ended + FLIGHT_NS).filter(|from| *from > now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_that_comes_again_waits_for_frames_of_the_former() {
        let mut epochs = Epochs::new(4);
        assert_eq!([epochs.next(10), epochs.next(20), epochs.next(30)], [None; 3]);
        assert_eq!(epochs.next(40), Some(10 + FLIGHT_NS), "the first one comes again");
        assert_eq!(epochs.next(50), Some(20 + FLIGHT_NS));
        assert_eq!(epochs.next(FLIGHT_NS * 2), None, "all earlier frames have arrived");
    }
}
