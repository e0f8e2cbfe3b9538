//! An AF_XDP socket bound to one queue of an interface, with its four rings. All system calls on it are here.

use std::io as std_io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::io::{self, Errno};
use rustix::net::sockopt;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING,
    XDP_UMEM_PGOFF_FILL_RING, XdpDesc, XdpOptionsFlags, XdpStatistics,
};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};

use super::XdpError;
use super::port::Rings as RingSizes;
use super::ring::{Consumer, Producer};
use super::succession::LostFrames;
use super::umem::Area;

/// In copy mode, `sendto` takes at most 32 descriptors from the ring (`TX_BATCH_SIZE` in net/xdp/xsk.c).
const KICK_BATCH: u32 = 32;

const BIND_RETRIES: u32 = 200;
const BIND_PAUSE: Duration = Duration::from_millis(1);

/// How a socket is bound.
pub(super) struct Binding<'a> {
    pub(super) interface: &'a str,
    pub(super) index: u32,
    pub(super) queue: u32,
    pub(super) rings: RingSizes,
    /// Whether zero-copy is required, refused, or used if available.
    pub(super) zero_copy: Option<bool>,
    /// Whether frames in pieces are joined. Otherwise they are received only to be counted as dropped.
    pub(super) in_pieces: bool,
}

/// The socket and our ends of its rings.
pub(super) struct Socket {
    fd: Arc<OwnedFd>,
    pub(super) fill: Producer<u64>,
    pub(super) receive: Consumer<XdpDesc>,
    pub(super) transmit: Producer<XdpDesc>,
    pub(super) completion: Consumer<u64>,
    zero_copy: bool,
    /// The kernel's counters at the time when another process left the socket.
    before: Option<XdpStatistics>,
}

impl Socket {
    /// Opens a socket on a pool's region and binds it.
    pub(super) fn open(binding: &Binding<'_>, area: Area) -> Result<Socket, XdpError> {
        let mut socket = Socket::unbound(binding, area)?;
        socket.bind(binding)?;
        Ok(socket)
    }

    /// Opens a socket on a pool's region: the kernel pins the whole region, which takes milliseconds.
    pub(super) fn unbound(binding: &Binding<'_>, area: Area) -> Result<Socket, XdpError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd =
            socket_with(AddressFamily::XDP, SocketType::RAW, flags, None).map_err(|errno| match errno {
                Errno::PERM => XdpError::not_permitted("AF_XDP sockets"),
                _ => binding.error("opening an AF_XDP socket", errno),
            })?;
        area.register(&fd).map_err(|errno| match errno {
            Errno::NOBUFS => XdpError::MemoryLimit,
            _ => binding.error("registering frame memory with a socket", errno),
        })?;
        Socket::with_rings(fd, &binding.rings).map_err(|errno| binding.error("creating the rings", errno))
    }

    /// Binds the socket to a queue.
    pub(super) fn bind(&mut self, binding: &Binding<'_>) -> Result<(), XdpError> {
        binding.try_all(|flags| self.bind_patiently(binding, flags))?;
        let options =
            sockopt::xdp_options(&self.fd).map_err(|errno| binding.error("reading the mode", errno))?;
        self.zero_copy = options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY);
        Ok(())
    }

    fn with_rings(fd: OwnedFd, sizes: &RingSizes) -> io::Result<Socket> {
        sockopt::set_xdp_umem_fill_ring_size(&fd, sizes.fill)?;
        sockopt::set_xdp_umem_completion_ring_size(&fd, sizes.transmit)?;
        sockopt::set_xdp_rx_ring_size(&fd, sizes.receive)?;
        sockopt::set_xdp_tx_ring_size(&fd, sizes.transmit)?;
        Socket::mapped(fd, sizes)
    }

    /// Maps the rings of a bound socket that another process uses and will hand over. The sizes must be those
    /// with which the socket was created: the kernel refuses to map larger rings, and smaller ones lie within
    /// its own.
    pub(super) fn of_another(fd: OwnedFd, sizes: &RingSizes) -> io::Result<Socket> {
        if sockopt::socket_domain(&fd)? != AddressFamily::XDP {
            return Err(Errno::INVAL);
        }
        let options = sockopt::xdp_options(&fd)?;
        let zero_copy = options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY);
        Ok(Socket { zero_copy, ..Socket::mapped(fd, sizes)? })
    }

    /// Continues where the other process stopped. Frames lost after the `lost` frames that the other process
    /// had lost, if that number is known, count as lost by this process. Returns false if its rings are
    /// inconsistent.
    pub(super) fn resume(&mut self, lost: Option<LostFrames>) -> bool {
        self.before = sockopt::xdp_statistics(&self.fd).ok();
        if let (Some(before), Some(lost)) = (&mut self.before, lost) {
            before.rx_dropped = before.rx_dropped.min(lost.dropped);
            before.rx_ring_full = before.rx_ring_full.map(|full| full.min(lost.ring_full));
        }
        let ours = self.fill.resume() & self.transmit.resume();
        ours & self.receive.resume() & self.completion.resume()
    }

    fn mapped(fd: OwnedFd, sizes: &RingSizes) -> io::Result<Socket> {
        let offsets = sockopt::xdp_mmap_offsets(&fd)?;
        Ok(Socket {
            fill: Producer::of_socket(&fd, XDP_UMEM_PGOFF_FILL_RING, &offsets.fr, sizes.fill)?,
            completion: Consumer::of_socket(
                &fd,
                XDP_UMEM_PGOFF_COMPLETION_RING,
                &offsets.cr,
                sizes.transmit,
            )?,
            receive: Consumer::of_socket(&fd, XDP_PGOFF_RX_RING, &offsets.rx, sizes.receive)?,
            transmit: Producer::of_socket(&fd, XDP_PGOFF_TX_RING, &offsets.tx, sizes.transmit)?,
            fd: Arc::new(fd),
            zero_copy: false,
            before: None,
        })
    }

    /// Binds, retrying a busy queue: the kernel frees the queue of a closed socket with a delay
    /// (`xp_release_deferred`).
    fn bind_patiently(&self, binding: &Binding<'_>, flags: SocketAddrXdpFlags) -> io::Result<()> {
        let flags = flags | SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
        let address = SocketAddrXdp::new(flags, binding.index, binding.queue);
        for _ in 0..BIND_RETRIES {
            match bind(&self.fd, &address) {
                Err(Errno::BUSY) => std::thread::sleep(BIND_PAUSE),
                other => return other,
            }
        }
        bind(&self.fd, &address)
    }

    /// Returns true if the driver reads and writes frames in place.
    pub(super) fn is_zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Makes the kernel send as much of the transmit ring as it can. Returns the number of system calls.
    ///
    /// `EAGAIN` (the batch is done, or the send buffer is full), `EBUSY`, `ENOBUFS` and `ENETDOWN` leave the
    /// rest in the ring until the next call; therefore the only reliable sign of progress is the ring itself.
    #[inline]
    pub(super) fn kick(&mut self) -> u32 {
        let mut left = self.transmit.unconsumed();
        let mut calls = 0;
        while left > 0 && self.transmit.needs_wakeup() {
            let _ = send(&self.fd, &[], SendFlags::DONTWAIT);
            calls += 1;
            let before = std::mem::replace(&mut left, self.transmit.unconsumed());
            if left >= before || (before - left < KICK_BATCH && !self.zero_copy) {
                break;
            }
        }
        calls
    }

    /// Tells the kernel, if it requested a wake-up, that the fill ring has chunks again.
    #[inline]
    pub(super) fn wake_receive(&self) {
        if self.fill.needs_wakeup() {
            let _ = recv(&self.fd, &mut [0; 0][..], RecvFlags::DONTWAIT);
        }
    }

    /// Returns the kernel's counters since this process has had the socket.
    pub(super) fn statistics(&self) -> Option<XdpStatistics> {
        let mut now = sockopt::xdp_statistics(&self.fd).ok()?;
        if let Some(before) = &self.before {
            let since = |now: Option<u64>, before: Option<u64>| Some(now? - before.unwrap_or(0));
            now.rx_dropped -= before.rx_dropped;
            now.rx_invalid_descs -= before.rx_invalid_descs;
            now.tx_invalid_descs -= before.tx_invalid_descs;
            now.rx_ring_full = since(now.rx_ring_full, before.rx_ring_full);
            now.rx_fill_ring_empty_descs =
                since(now.rx_fill_ring_empty_descs, before.rx_fill_ring_empty_descs);
            now.tx_ring_empty_descs = since(now.tx_ring_empty_descs, before.tx_ring_empty_descs);
        }
        Some(now)
    }

    /// Returns how many frames the socket has lost since it was opened, in any process.
    pub(super) fn lost_ever(&self) -> LostFrames {
        let lost = |now: XdpStatistics| LostFrames {
            dropped: now.rx_dropped,
            ring_full: now.rx_ring_full.unwrap_or(0),
        };
        sockopt::xdp_statistics(&self.fd).map(lost).unwrap_or_default()
    }

    /// Returns how many of the frames in `ever` this process has lost.
    pub(super) fn lost_here(&self, ever: LostFrames) -> u64 {
        let before = self.before.as_ref().map_or(0, |one| one.rx_dropped + one.rx_ring_full.unwrap_or(0));
        (ever.dropped + ever.ring_full).saturating_sub(before)
    }

    /// Returns a weak reference to the socket, which does not keep it open, for passing it to another
    /// process.
    pub(super) fn weak(&self) -> Weak<OwnedFd> {
        Arc::downgrade(&self.fd)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Binding<'_> {
    fn error(&self, doing: &'static str, errno: Errno) -> XdpError {
        XdpError::System { doing, interface: self.interface.to_owned(), reason: std_io::Error::from(errno) }
    }

    /// Binds with the best flags that the kernel and the driver support.
    ///
    /// XDP_USE_SG (Linux 6.6) delivers frames in pieces. If the pieces are not joined, the flag only lets
    /// weir count such frames as dropped, where the kernel would otherwise lose them. In that case zero-copy
    /// takes precedence over the flag, and an older kernel works without it.
    fn try_all(&self, mut bind: impl FnMut(SocketAddrXdpFlags) -> io::Result<()>) -> Result<(), XdpError> {
        const COPY: SocketAddrXdpFlags = SocketAddrXdpFlags::XDP_COPY;
        const ZERO_COPY: SocketAddrXdpFlags = SocketAddrXdpFlags::XDP_ZEROCOPY;
        const PIECES: SocketAddrXdpFlags = SocketAddrXdpFlags::XDP_USE_SG;
        let all: &[SocketAddrXdpFlags] = match (self.in_pieces, self.zero_copy) {
            (true, Some(true)) => &[ZERO_COPY.union(PIECES)],
            (true, Some(false)) => &[COPY.union(PIECES)],
            (true, None) => &[ZERO_COPY.union(PIECES), COPY.union(PIECES)],
            (false, Some(true)) => &[ZERO_COPY],
            (false, Some(false)) => &[COPY.union(PIECES), COPY],
            (false, None) => &[ZERO_COPY, COPY.union(PIECES), COPY],
        };
        let mut refused = Errno::INVAL;
        for flags in all {
            match bind(*flags) {
                Ok(()) => return Ok(()),
                Err(errno) => refused = errno,
            }
            if refused == Errno::BUSY {
                break;
            }
        }
        Err(self.bind_error(refused))
    }

    fn bind_error(&self, errno: Errno) -> XdpError {
        let (interface, queue) = (self.interface.to_owned(), self.queue);
        match errno {
            Errno::BUSY => XdpError::QueueInUse { interface, queue },
            Errno::OPNOTSUPP if self.zero_copy == Some(true) => XdpError::NoZeroCopy { interface, queue },
            // The queue was checked earlier, so the kernel can only object to a flag.
            Errno::INVAL if self.in_pieces => XdpError::NoPieces { interface },
            _ => self.error("binding a socket to a queue", errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [Option<bool>; 3] = [None, Some(false), Some(true)];

    fn binding(zero_copy: Option<bool>, in_pieces: bool) -> Binding<'static> {
        Binding { interface: "eth0", index: 1, queue: 2, rings: RingSizes::default(), zero_copy, in_pieces }
    }

    /// Binds to a kernel that knows only these flags, and returns the flags that were used.
    fn bound(binding: &Binding<'_>, known: SocketAddrXdpFlags) -> Result<SocketAddrXdpFlags, XdpError> {
        let mut with = None;
        binding.try_all(|flags| {
            with = Some(flags);
            if !known.contains(flags & SocketAddrXdpFlags::XDP_USE_SG) {
                return Err(Errno::INVAL);
            }
            if known.contains(flags) { Ok(()) } else { Err(Errno::OPNOTSUPP) }
        })?;
        Ok(with.unwrap())
    }

    #[test]
    fn an_old_kernel_refuses_big_frames_by_name_and_usual_ones_not_at_all() {
        let old = SocketAddrXdpFlags::XDP_COPY | SocketAddrXdpFlags::XDP_ZEROCOPY;
        for zero_copy in KINDS {
            let refused = bound(&binding(zero_copy, true), old).unwrap_err();
            assert!(matches!(&refused, XdpError::NoPieces { interface } if interface == "eth0"));
            assert!(refused.to_string().contains("`mtu: 3818`"), "{refused}");
            let used = bound(&binding(zero_copy, false), old).unwrap();
            assert_eq!(used.contains(SocketAddrXdpFlags::XDP_ZEROCOPY), zero_copy != Some(false));
        }
    }

    #[test]
    fn zero_copy_goes_before_counting_frames_in_pieces_and_copies_where_there_is_none() {
        let all = SocketAddrXdpFlags::all();
        let copies = SocketAddrXdpFlags::XDP_COPY | SocketAddrXdpFlags::XDP_USE_SG;
        assert_eq!(bound(&binding(None, false), all).unwrap(), SocketAddrXdpFlags::XDP_ZEROCOPY);
        for (zero_copy, in_pieces) in [(None, false), (None, true), (Some(false), false), (Some(false), true)]
        {
            assert_eq!(bound(&binding(zero_copy, in_pieces), copies).unwrap(), copies);
        }
        for in_pieces in [false, true] {
            let refused = bound(&binding(Some(true), in_pieces), copies).unwrap_err();
            assert!(matches!(refused, XdpError::NoZeroCopy { queue: 2, .. }), "{refused}");
        }
    }

    #[test]
    fn a_queue_in_use_is_not_tried_otherwise() {
        let mut calls = 0;
        let refused = binding(None, false).try_all(|_| {
            calls += 1;
            Err(Errno::BUSY)
        });
        assert!(matches!(refused, Err(XdpError::QueueInUse { queue: 2, .. })) && calls == 1);
    }
}
