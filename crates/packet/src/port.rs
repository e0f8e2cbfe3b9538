//! The port trait: where frames come from and where they go. Called once per batch, never per frame.

use crate::{Batch, DropReason, PoolId, Pools};
use std::any::Any;
use std::os::fd::BorrowedFd;

/// One queue of a port, owned by a worker.
///
/// Promises of an implementation: frames leave `receive` in arrival order and `transmit` in slot order; no
/// frame is freed or copied uncounted; `held` is counted, never derived.
pub trait Port: Any + Send {
    /// Returns the port's name in the program.
    fn name(&self) -> &str;

    /// Returns the pool that transmitted frames must belong to; `None` if any pool will do.
    fn pool(&self) -> Option<PoolId>;

    /// Appends frames that have arrived, up to the free space of the batch.
    fn receive(&mut self, pools: &mut Pools, batch: &mut Batch);

    /// Sends the frames of `list`. Returns the mask of those accepted, which leave the batch; the others stay
    /// in the batch and the caller drops them.
    fn transmit(&mut self, pools: &mut Pools, batch: &mut Batch, list: u64) -> u64;

    /// Returns why a frame of this length in bytes can never be sent; the frame is then dropped for this
    /// reason rather than as `transmit_full`. Returns `None` if only a full transmit queue can prevent
    /// sending it.
    fn refuses(&self, length: usize) -> Option<DropReason> {
        let _ = length;
        None
    }

    /// Rings doorbells, takes back completed frames and refills. Called once per breath after the last
    /// `transmit`, even if there was nothing to send.
    fn flush(&mut self, pools: &mut Pools);

    /// Returns how many of the accepted frames the port is done with. Costs no system call.
    fn progress(&self) -> SendProgress {
        SendProgress::default()
    }

    /// Returns the counters since the port was opened.
    fn statistics(&self) -> PortStatistics;

    /// Returns the counters that only this kind of port has, by name (AF_XDP's ring statistics, the fault
    /// port's faults).
    fn extra_statistics(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Describes in a word or two how the port runs (`native copy`, `pcap`, `net_ring`).
    fn mode(&self) -> String;

    /// Returns remarks for the operator about the recordings (pcap files) that the port reads and writes.
    fn remarks(&self) -> Vec<Remark> {
        Vec::new()
    }

    /// Returns the file descriptor on which a sleeping worker waits for frames; `None` if the port must be
    /// polled.
    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Returns true if the port will never receive again (the end of a pcap).
    fn exhausted(&self) -> bool {
        false
    }

    /// Returns true if frames can be passed to the host's stack.
    fn has_kernel_path(&self) -> bool {
        false
    }

    /// Passes the frames of `list` to the host's stack; otherwise like `transmit`.
    fn to_kernel(&mut self, pools: &mut Pools, batch: &mut Batch, list: u64) -> u64 {
        let _ = (pools, batch, list);
        0
    }

    /// Returns the arrival time of the next frame in virtual nanoseconds, for ports that replay a recording.
    fn next_arrival_ns(&self) -> Option<u64> {
        None
    }

    /// Sets the virtual time. A port that replays a recording releases the frames that have arrived by then.
    fn set_time(&mut self, now_ns: u64) {
        let _ = now_ns;
    }

    /// Closes the port and returns every frame it still holds to its pool. Returns how many frames it
    /// dropped.
    fn close(&mut self, pools: &mut Pools) -> u64 {
        let _ = pools;
        0
    }

    /// Continues closing the port, in a worker whose other ports must not wait for it. Called once per breath
    /// until it returns [`Leave::Closed`]; meanwhile, no other method except `statistics` is called.
    fn leave(&mut self, pools: &mut Pools) -> Leave {
        Leave::Closed(self.close(pools))
    }
}

/// How many frames a port has accepted, and how many of these, which it sends in order, it is done with. A
/// port that is not asked for this, because the kernel does not send through it, has accepted none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendProgress {
    /// Frames that were accepted.
    pub accepted: u64,
    /// Accepted frames that were sent or given up.
    pub done: u64,
}

/// The progress of a port that is being closed.
pub enum Leave {
    /// The port still waits for frames to be sent, or for the value that it handed out to be dropped.
    Later,
    /// Another thread should drop this value, because that takes long.
    Give(Box<dyn Any + Send>),
    /// The port is closed. It has returned every frame to the frame's pool; the number of frames that it
    /// dropped is given.
    Closed(u64),
}

/// A remark for the operator about a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// Part of a sentence: `skipped 3 packets of link type 113`.
    pub text: String,
    /// Whether frames are missing as a result.
    pub is_error: bool,
}

/// Counters of a port since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStatistics {
    /// Frames received: passed to the worker, or counted as `oversize`.
    pub received: u64,
    /// Bytes of the frames received.
    pub received_bytes: u64,
    /// Frames whose transmission is complete.
    pub transmitted: u64,
    /// Bytes of the frames accepted for sending.
    pub transmitted_bytes: u64,
    /// Frames passed to the host's stack.
    pub to_kernel: u64,
    /// Frames currently in the port's transmit ring.
    pub held: u64,
    /// Frames lost before the worker could see them. They are not in the ledger, because they were never
    /// received.
    pub lost_before: u64,
    /// How often there was no free frame to refill the receive ring.
    pub starved: u64,
    /// Frames that the port received and dropped; the ledger has them as `oversize`.
    pub oversize: u64,
    /// Frames that the port accepted and could not write to its file; the ledger has them as `not_written`.
    pub not_written: u64,
    /// Frames that were in the transmit ring when the interface disappeared; the ledger has them as
    /// `interface_gone`.
    pub gone: u64,
}

impl PortStatistics {
    /// Adds the counts of another queue.
    pub fn add(&mut self, other: &PortStatistics) {
        self.received += other.received;
        self.received_bytes += other.received_bytes;
        self.transmitted += other.transmitted;
        self.transmitted_bytes += other.transmitted_bytes;
        self.to_kernel += other.to_kernel;
        self.held += other.held;
        self.lost_before += other.lost_before;
        self.starved += other.starved;
        self.oversize += other.oversize;
        self.not_written += other.not_written;
        self.gone += other.gone;
    }
}
