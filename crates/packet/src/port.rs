//! A port: where frames come from and go to. One trait, called once per batch, never per frame.

use crate::{Batch, PoolId, Pools};
use std::os::fd::BorrowedFd;

/// One queue of a port, as a worker holds it.
///
/// Promises of an implementation: frames leave `receive` in arrival order and `transmit` in slot order; nothing is
/// freed or copied uncounted; `held` is counted, never derived.
pub trait Port: Send {
    /// The port's name in the program.
    fn name(&self) -> &str;

    /// The pool that frames given to `transmit` must be of; `None` when any will do.
    fn pool(&self) -> Option<PoolId>;

    /// Appends frames that have arrived, as many as the batch has space for.
    fn receive(&mut self, pools: &mut Pools, batch: &mut Batch);

    /// Sends the frames of `list` and takes them out of the batch. Returns the mask of those accepted; the others stay
    /// in the batch and the caller drops them.
    fn transmit(&mut self, pools: &mut Pools, batch: &mut Batch, list: u64) -> u64;

    /// The longest frame that `transmit` takes, in bytes: a longer one is refused as `oversize`, not for want of room.
    fn frame_max(&self) -> usize {
        usize::MAX
    }

    /// Called once a breath after the last `transmit`, also when there was nothing to send: rings doorbells, takes
    /// completed frames back, refills.
    fn flush(&mut self, pools: &mut Pools);

    /// Counters since the port was opened.
    fn statistics(&self) -> PortStatistics;

    /// Counters only this kind of port has, by name (AF_XDP's ring statistics, the fault port's faults).
    fn extra_statistics(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Says in a word or two how the port runs (`native copy`, `pcap`, `net_ring`).
    fn mode(&self) -> String;

    /// What a sleeping worker waits on to learn that frames have arrived; `None` when the port must be asked.
    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// True when the port will never receive again (the end of a pcap).
    fn exhausted(&self) -> bool {
        false
    }

    /// True when frames given to the host's stack arrive there.
    fn has_kernel_path(&self) -> bool {
        false
    }

    /// Gives the frames of `list` to the host's stack, as `transmit` gives them to the wire.
    fn to_kernel(&mut self, pools: &mut Pools, batch: &mut Batch, list: u64) -> u64 {
        let _ = (pools, batch, list);
        0
    }

    /// Arrival time of the next frame in virtual nanoseconds, for ports that replay a recording.
    fn next_arrival_ns(&self) -> Option<u64> {
        None
    }

    /// Virtual time reached: a port that replays releases what has arrived by then.
    fn set_time(&mut self, now_ns: u64) {
        let _ = now_ns;
    }

    /// Takes every frame it still holds back to its pool and closes; the count of frames that were dropped by it.
    fn close(&mut self, pools: &mut Pools) -> u64 {
        let _ = pools;
        0
    }
}

/// What a port has counted since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStatistics {
    /// Frames taken in: given to the worker, or counted `oversize`.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Frames sent and done with.
    pub transmitted: u64,
    /// Bytes of the frames accepted for sending.
    pub transmitted_bytes: u64,
    /// Frames given to the host's stack.
    pub to_kernel: u64,
    /// Frames that lie in the port's transmit ring at this moment.
    pub held: u64,
    /// Frames lost before the worker could see them (not in the ledger: they were never received).
    pub lost_before: u64,
    /// Times that the worker found no free frame to refill the receive ring with.
    pub starved: u64,
    /// Frames dropped by the port itself after receiving them: they are in the ledger as `oversize`.
    pub oversize: u64,
}
