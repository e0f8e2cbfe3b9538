//! A separate network namespace with a TUN device: packets that sockets in it send are read here, and packets
//! that are written here reach those sockets. There is no other way in or out, and the host does not see it:
//! no interface, route, rule or address of the host is touched, whatever addresses are used inside. The
//! kernel removes all of it when the process ends, however it ends.
//!
//! Creating it needs CAP_SYS_ADMIN and CAP_NET_ADMIN; using it needs no privileges, except CAP_NET_ADMIN to
//! add addresses.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open};
use rustix::io;
use rustix::ioctl::{Opcode, Setter, ioctl};
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::net::IpAddr;
use weir_netlink::{add_address, add_default_route, add_local_route, set_up};

const TUNSETIFF: Opcode = 0x4004_54ca;
const IFF_TUN: u16 = 0x0001;
const IFF_NO_PI: u16 = 0x1000;
const NAME: &str = "weir";
/// The index of the loopback device in every namespace.
const LOOPBACK: u32 = 1;

/// `struct ifreq` with flags in its union, which is 24 bytes long.
#[repr(C)]
struct IfreqFlags {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

/// The device, as seen from outside its namespace.
pub struct Tun {
    fd: OwnedFd,
    index: u32,
}

impl Tun {
    /// Moves this thread into a new network namespace that has a TUN device, with a route to everywhere
    /// through it and no address. Sockets that this thread opens from now on belong to that namespace.
    ///
    /// # Errors
    /// Returns the kernel's error; the thread may have moved even then, and is of no further use.
    pub fn in_new_namespace() -> std::io::Result<Tun> {
        // SAFETY: descriptors stay shared with all threads; only the namespace of new sockets changes.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET)? };
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = open("/dev/net/tun", flags, Mode::empty())?;
        set_interface(&fd)?;
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        let tun = Tun { fd, index: name_to_index(&socket, NAME)? };
        // Packets to IPv6 addresses are delivered through the loopback device.
        set_up(LOOPBACK)?;
        set_up(tun.index)?;
        Ok(tun)
    }

    /// Gives the device an address, and a route to everything of its IP version. Only a thread in the
    /// namespace can do this.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn add_address(&self, address: IpAddr) -> std::io::Result<()> {
        add_address(self.index, address)?;
        if address.is_ipv6() {
            // The kernel delivers to a new IPv6 address only after a short delay, when one of its threads has
            // written such a route. Packets that arrive earlier would be forwarded.
            add_local_route(address, LOOPBACK)?;
        }
        add_default_route(address, self.index)
    }

    /// Reads an IP packet that a socket has sent. Returns its length; without one, the error is `WouldBlock`.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn read(&self, packet: &mut [u8]) -> std::io::Result<usize> {
        Ok(io::read(&self.fd, packet)?)
    }

    /// Delivers an IP packet to the sockets. It is lost if the kernel does not accept it.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn write(&self, packet: &[u8]) -> std::io::Result<()> {
        io::write(&self.fd, packet)?;
        Ok(())
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn set_interface(fd: &OwnedFd) -> io::Result<()> {
    let mut name = [0; 16];
    name[..NAME.len()].copy_from_slice(NAME.as_bytes());
    let request = IfreqFlags { name, flags: IFF_TUN | IFF_NO_PI, rest: [0; 22] };
    // SAFETY: TUNSETIFF reads and writes one `struct ifreq`, and `IfreqFlags` is as long as that.
    unsafe { ioctl(fd, Setter::<TUNSETIFF, IfreqFlags>::new(request)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::time::{Duration, Instant};

    /// Reads packets until one is from the first address to the second.
    fn sent(tun: &Tun, [from, to]: [&[u8]; 2], at: usize) -> Vec<u8> {
        let until = Instant::now() + Duration::from_secs(30);
        let mut packet = vec![0; 2048];
        loop {
            if let Ok(length) = tun.read(&mut packet) {
                let ends = &packet[at..at + 2 * from.len()];
                if ends == [from, to].concat() {
                    packet.truncate(length);
                    return packet;
                }
            }
            assert!(Instant::now() < until, "nothing was sent");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn sockets_inside_talk_to_who_holds_the_device() {
        if !weir_bed::is_root() {
            return;
        }
        let inside = || {
            let tun = Tun::in_new_namespace().unwrap();
            for (own, other, at) in [("192.0.2.1", "203.0.113.7", 12), ("2001:db8::1", "2001:db8:f::7", 8)] {
                let (own, other): (IpAddr, IpAddr) = (own.parse().unwrap(), other.parse().unwrap());
                tun.add_address(own).unwrap();
                tun.add_address(own).unwrap();
                let socket = UdpSocket::bind((own, 0)).unwrap();
                socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
                socket.connect((other, 53)).unwrap();
                socket.send(b"ping").unwrap();
                let octets = |address: IpAddr| match address {
                    IpAddr::V4(address) => address.octets().to_vec(),
                    IpAddr::V6(address) => address.octets().to_vec(),
                };
                let (own, other) = (octets(own), octets(other));
                let mut packet = sent(&tun, [&own, &other], at);
                assert!(packet.ends_with(b"ping"));
                // The same packet in the opposite direction, which has the same checksums.
                let ends = at + 2 * own.len();
                packet[at..ends].copy_from_slice(&[other, own].concat());
                let ports: [u8; 4] = packet[ends..ends + 4].try_into().unwrap();
                let back = [ports[2], ports[3], ports[0], ports[1]];
                packet[ends..ends + 4].copy_from_slice(&back);
                tun.write(&packet).unwrap();
                let mut answer = [0; 16];
                assert_eq!(socket.recv(&mut answer).unwrap(), 4);
                assert_eq!(&answer[..4], b"ping");
            }
        };
        std::thread::spawn(inside).join().unwrap();
    }
}
