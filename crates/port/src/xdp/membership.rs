//! Which frames the NIC lets through. By default it filters unicast frames for other hosts; a packet socket
//! can ask for more. The kernel withdraws the request when the socket is closed, however the process ends,
//! unlike the flag that `ip link set eth0 promisc on` sets.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io;
use rustix::net::sockopt::set_ipv6_add_membership;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use weir_bpf::Take;

/// A request that the NIC let more frames through. It is in force until this value is dropped.
pub(super) struct Membership(#[allow(dead_code, reason = "closed on drop")] OwnedFd);

/// What is requested from the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admit {
    /// All frames.
    Everything,
    /// Frames for one more MAC address.
    Address([u8; 6]),
    /// All multicast frames.
    Groups,
}

impl Membership {
    /// Makes the request to the interface with this index.
    pub(super) fn join(index: u32, admit: Admit) -> io::Result<Membership> {
        // Protocol 0: the socket itself receives nothing.
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        let (kind, address) = match admit {
            Admit::Everything => (libc::PACKET_MR_PROMISC, [0; 6]),
            Admit::Address(address) => (libc::PACKET_MR_UNICAST, address),
            Admit::Groups => (libc::PACKET_MR_ALLMULTI, [0; 6]),
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

/// Membership in the groups to which neighbour solicitations are sent, for the requested addresses. The
/// kernel is the member, so that the NIC and switches with MLD snooping let these frames through.
pub(super) struct Groups {
    joined: Vec<Ipv6Addr>,
    #[allow(dead_code, reason = "closed on drop")]
    socket: Option<OwnedFd>,
    /// If the groups cannot be joined, a request for all multicast frames.
    #[allow(dead_code, reason = "closed on drop")]
    all: Option<Membership>,
}

impl Groups {
    /// Joins the groups at the interface with this index.
    pub(super) fn join(index: u32, take: &Take) -> io::Result<Groups> {
        let joined = groups(take);
        if joined.is_empty() {
            return Ok(Groups { joined, socket: None, all: None });
        }
        let socket = || {
            let socket = socket_with(AddressFamily::INET6, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
            joined.iter().try_for_each(|group| set_ipv6_add_membership(&socket, group, index))?;
            Ok::<_, io::Errno>(socket)
        };
        let socket = socket().ok();
        let all = if socket.is_none() { Some(Membership::join(index, Admit::Groups)?) } else { None };
        Ok(Groups { joined, socket, all })
    }

    /// Returns whether these are the groups that the rules need.
    pub(super) fn are_those_of(&self, take: &Take) -> bool {
        self.joined == groups(take)
    }
}

/// The solicited-node groups (RFC 4291 §2.7.1) of the requested addresses, each once.
fn groups(take: &Take) -> Vec<Ipv6Addr> {
    let asked = take.rules.iter().filter_map(|rule| match rule.asked {
        Some(IpAddr::V6(address)) => Some(address),
        _ => None,
    });
    let group = |address: Ipv6Addr| {
        let bits = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0).to_bits();
        Ipv6Addr::from_bits(bits | address.to_bits() & 0xff_ffff)
    };
    let mut all: Vec<Ipv6Addr> = asked.map(group).collect();
    all.sort_unstable();
    all.dedup();
    all
}
