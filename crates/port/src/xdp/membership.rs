//! Which frames the NIC lets through. By default it filters unicast frames for other hosts; a packet socket
//! can ask for more. The kernel takes the request back when the socket is closed, however the process ends,
//! which it does not do for the flag that `ip link set eth0 promisc on` sets.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// A request to let more frames through, in force until it is dropped.
pub(super) struct Membership(#[allow(dead_code, reason = "closed on drop")] OwnedFd);

/// What is asked of the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admit {
    /// All frames.
    Everything,
    /// Frames for one more MAC address.
    Address([u8; 6]),
}

impl Membership {
    /// Asks the interface with this index.
    pub(super) fn join(index: u32, admit: Admit) -> io::Result<Membership> {
        // Protocol 0: the socket itself receives nothing.
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        let (kind, address) = match admit {
            Admit::Everything => (libc::PACKET_MR_PROMISC, [0; 6]),
            Admit::Address(address) => (libc::PACKET_MR_UNICAST, address),
        };
        let mut request = libc::packet_mreq {
            mr_ifindex: index as c_int,
            mr_type: kind as _,
            mr_alen: address.len() as _,
            mr_address: [0; 8],
        };
        request.mr_address[..6].copy_from_slice(&address);
        // SAFETY: the option takes a `struct packet_mreq`, which the kernel only reads.
        let result = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_ADD_MEMBERSHIP,
                (&raw const request).cast(),
                size_of::<libc::packet_mreq>() as libc::socklen_t,
            )
        };
        if result != 0 {
            let error = std::io::Error::last_os_error();
            return Err(io::Errno::from_io_error(&error).unwrap_or(io::Errno::INVAL));
        }
        Ok(Membership(socket))
    }
}
