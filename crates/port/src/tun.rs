//! TUN devices, which the kernel removes when the process that holds them ends, however it ends.
//!
//! [`Tun`] is a device in a separate network namespace: packets that sockets in the namespace send are read
//! here, and packets that are written here reach those sockets. There is no other way in or out, and the host
//! does not see the device: no interface, route, rule or address of the host is touched, whatever addresses
//! are used inside. Creating it needs CAP_SYS_ADMIN and CAP_NET_ADMIN; using it needs no privileges, except
//! CAP_NET_ADMIN to add addresses.
//!
//! [`RouteDevice`] is a device in the host's namespace that carries no packets: routes lead to it.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open};
use rustix::io;
use rustix::ioctl::{Getter, Opcode, Setter, ioctl};
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::net::IpAddr;
use weir_netlink::{add_address, add_default_route, add_local_route, set_up, set_up_without_queue};

const TUNSETIFF: Opcode = 0x4004_54ca;
const TUNGETIFF: Opcode = 0x8004_54d2;
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
        let fd = open_file()?;
        set_interface(&fd, NAME)?;
        let tun = Tun { fd, index: index_of(NAME)? };
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

    /// Reads an IP packet that a socket has sent. Returns the length of the packet; if there is no packet,
    /// the error is `WouldBlock`.
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

/// A TUN device in the host's network namespace to which routes lead. It carries no packets: the kernel drops
/// all that the host sends through it. It exists as long as a process has its descriptor.
pub struct RouteDevice {
    fd: OwnedFd,
    name: String,
    index: u32,
}

/// The maximum length of an interface's name in bytes, without the terminating 0.
pub const NAME_MAX: usize = 15;

/// A step towards a [`RouteDevice`] that the kernel has refused.
#[derive(Debug, thiserror::Error)]
pub enum RouteDeviceError {
    /// The file of TUN devices cannot be opened.
    #[error("/dev/net/tun cannot be opened: {0}")]
    File(std::io::Error),
    /// The device cannot be created.
    #[error("the TUN device cannot be created: {0}")]
    Create(std::io::Error),
    /// The device cannot be set up.
    #[error("the TUN device cannot be set up: {0}")]
    SetUp(std::io::Error),
}

impl RouteDevice {
    /// Creates a device and sets it up. Needs CAP_NET_ADMIN.
    ///
    /// # Errors
    /// The error names the step and contains the kernel's error: `ResourceBusy` if another process has a
    /// device of this name.
    pub fn create(name: &str) -> Result<RouteDevice, RouteDeviceError> {
        let fd = open_file().map_err(|error| RouteDeviceError::File(error.into()))?;
        set_interface(&fd, name).map_err(|error| RouteDeviceError::Create(error.into()))?;
        let index = index_of(name).map_err(|error| RouteDeviceError::Create(error.into()))?;
        set_up_without_queue(index).map_err(RouteDeviceError::SetUp)?;
        Ok(RouteDevice { fd, name: name.to_string(), index })
    }

    /// Continues with a device of another process, which has sent its descriptor.
    ///
    /// # Errors
    /// Fails if the descriptor is not that of a TUN device in this network namespace.
    pub fn adopt(fd: OwnedFd) -> std::io::Result<RouteDevice> {
        // SAFETY: TUNGETIFF writes one `struct ifreq`, and `IfreqFlags` is as long as that, without invalid
        // values.
        let found: IfreqFlags = unsafe { ioctl(&fd, Getter::<TUNGETIFF, IfreqFlags>::new())? };
        let name: Vec<u8> = found.name.into_iter().take_while(|byte| *byte != 0).collect();
        let name = String::from_utf8(name).map_err(|_| std::io::Error::from(rustix::io::Errno::INVAL))?;
        let index = index_of(&name)?;
        Ok(RouteDevice { fd, name, index })
    }

    /// Sets the device up again, after the host has set it down.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn set_up(&self) -> std::io::Result<()> {
        set_up_without_queue(self.index)
    }

    /// Returns the name of the device.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the index of the device.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }
}

impl AsFd for RouteDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn open_file() -> io::Result<OwnedFd> {
    open("/dev/net/tun", OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
}

fn index_of(name: &str) -> io::Result<u32> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    name_to_index(&socket, name)
}

fn set_interface(fd: &OwnedFd, called: &str) -> io::Result<()> {
    let mut name = [0; 16];
    let length = called.len().min(NAME_MAX);
    name[..length].copy_from_slice(&called.as_bytes()[..length]);
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
    fn routes_lead_to_a_device_that_drops_everything_and_goes_with_its_last_descriptor() {
        if !weir_bed::is_root() {
            return;
        }
        let inside = || {
            // The device is created in a namespace of its own, so that the host keeps its interfaces.
            let _tun = Tun::in_new_namespace().unwrap();
            let device = RouteDevice::create("weir-routes").unwrap();
            assert!(matches!(RouteDevice::create("weir-routes"), Err(RouteDeviceError::Create(_))));
            let kept = RouteDevice::adopt(device.as_fd().try_clone_to_owned().unwrap()).unwrap();
            assert_eq!((kept.name(), kept.index()), ("weir-routes", device.index()));
            drop(device);
            let routes = ["203.0.113.80", "2001:db8::80"].map(|address| weir_netlink::DeviceRoute {
                address: address.parse().unwrap(),
                prefix: if address.contains(':') { 128 } else { 32 },
                metric: 100,
                table: 1850,
                protocol: 185,
                device: kept.index(),
            });
            routes.iter().for_each(|route| route.add().unwrap());
            let again = routes[0].add().unwrap_err();
            assert_eq!(again.kind(), std::io::ErrorKind::AlreadyExists);
            assert_eq!(weir_netlink::routes_in(1850).unwrap(), routes);
            routes[0].remove().unwrap();
            assert_eq!(weir_netlink::routes_in(1850).unwrap(), routes[1..]);
            // A packet of the host does not wait for a reader.
            add_default_route("203.0.113.80".parse().unwrap(), kept.index()).unwrap();
            add_address(kept.index(), "192.0.2.9".parse().unwrap()).unwrap();
            let socket = UdpSocket::bind("192.0.2.9:0").unwrap();
            let _ = socket.send_to(b"lost", "203.0.113.80:9");
            assert_eq!(io::read(&kept.fd, &mut [0; 64][..]), Err(rustix::io::Errno::AGAIN));
            drop(kept);
            assert_eq!(weir_netlink::routes_in(1850).unwrap(), []);
        };
        std::thread::spawn(inside).join().unwrap();
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
