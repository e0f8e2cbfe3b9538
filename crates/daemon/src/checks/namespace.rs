//! The network namespace of checks that follow a service's own path. Its only device is a TUN device of ours:
//! what a check's socket sends is read here and passed to the app that requested the check, which sends it on
//! through the program; replies are written here, and a socket receives them.
//!
//! So checks use the kernel's sockets, but are independent of the host's routes, its filters, and the
//! addresses that it has or lacks. A packet is recognised by its protocol and source port (the identifier of
//! an echo request), which belongs to its socket alone and is registered before anything is sent.

use super::super::doorbell::Doorbell;
use std::collections::{HashMap, HashSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::unix::pipe;
use weir_app::check::Check;
use weir_packet::{PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_TCP, PROTOCOL_UDP};
use weir_port::tun::Tun;

/// How many packets may be queued for the main thread; others are lost, as on a wire.
const WAITING: usize = 1024;
/// The longest packet of the device, whose MTU is the kernel's default of 1500.
const PACKET_MAX: usize = 2048;
/// Types of echo requests.
const ECHO: [u8; 2] = [8, 128];

/// A packet that a socket of a check sends.
pub struct Sent {
    /// The name of the app that requested the check.
    pub app: Arc<str>,
    pub check: Arc<Check>,
    pub packet: Vec<u8>,
}

/// Maps protocol and port to the sender.
type Senders = HashMap<(u8, u16), (Arc<str>, Arc<Check>)>;

/// The namespace, shared by the thread inside and the one that writes replies.
pub struct Namespace {
    tun: Tun,
    /// Entries stay until the port is reused, because sockets send their last packet after they are closed;
    /// there are at most as many as ports.
    senders: Mutex<Senders>,
    addresses: Mutex<HashSet<IpAddr>>,
    sent: SyncSender<Sent>,
    doorbell: Doorbell,
}

/// How a check's packets are sent: from which address, and how they are recognised.
#[derive(Clone, Copy)]
pub struct Way<'a> {
    namespace: &'a Namespace,
    from: IpAddr,
    check: (&'a Arc<str>, &'a Arc<Check>),
}

impl Namespace {
    /// Moves this thread into a new namespace. Returns the namespace, and the channel that delivers the
    /// packets which checks send.
    pub fn create(doorbell: Doorbell) -> io::Result<(Namespace, Receiver<Sent>)> {
        let (sent, receiver) = sync_channel(WAITING);
        let tun = Tun::in_new_namespace()?;
        let (senders, addresses) = Default::default();
        Ok((Namespace { tun, senders, addresses, sent, doorbell }, receiver))
    }

    /// Passes on the packets that sockets send, as long as the runtime exists.
    pub async fn listen(&self) {
        let Ok(fd) = self.tun.as_fd().try_clone_to_owned() else { return };
        // The device is read like a pipe, a packet at a time.
        let Ok(tun) = pipe::Receiver::from_owned_fd_unchecked(fd) else { return };
        let mut bytes = vec![0; PACKET_MAX];
        while tun.readable().await.is_ok() {
            if let Ok(length) = tun.try_read(&mut bytes) {
                self.pass_on(&bytes[..length]);
            }
        }
    }

    /// Passes a packet on. Packets that belong to no check are the kernel's own traffic, and are ignored.
    fn pass_on(&self, packet: &[u8]) {
        let senders = self.senders.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((app, check)) = sender(packet).and_then(|one| senders.get(&one)) else { return };
        let (app, check, packet) = (app.clone(), check.clone(), packet.to_vec());
        if self.sent.try_send(Sent { app, check, packet }).is_ok() {
            self.doorbell.ring();
        }
    }

    /// Delivers a packet to the sockets.
    pub fn deliver(&self, packet: &[u8]) {
        // A packet that the kernel does not accept is lost, as on a wire.
        let _ = self.tun.write(packet);
    }

    /// Returns how the packets of a check are sent from an address.
    pub fn way<'a>(&'a self, from: IpAddr, check: (&'a Arc<str>, &'a Arc<Check>)) -> Result<Way<'a>, String> {
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        if !addresses.contains(&from) {
            let failed = |error| format!("checks cannot be sent from {from}: {error}");
            self.tun.add_address(from).map_err(failed)?;
            addresses.insert(from);
        }
        Ok(Way { namespace: self, from, check })
    }
}

impl Way<'_> {
    /// Returns the source address of packets.
    pub fn from(&self) -> IpAddr {
        self.from
    }

    /// Registers that packets of a protocol from a port belong to the check.
    pub fn note(&self, protocol: u8, port: u16) {
        let mut senders = self.namespace.senders.lock().unwrap_or_else(PoisonError::into_inner);
        let (app, check) = self.check;
        senders.insert((protocol, port), (app.clone(), check.clone()));
    }
}

/// Returns protocol and source port of a packet, or the identifier of an echo request.
fn sender(packet: &[u8]) -> Option<(u8, u16)> {
    let first = *packet.first()?;
    let (protocol, at) = match first >> 4 {
        4 => (*packet.get(9)?, usize::from(first & 0x0f) * 4),
        6 => (*packet.get(6)?, 40),
        _ => return None,
    };
    let at = match protocol {
        PROTOCOL_TCP | PROTOCOL_UDP => at,
        PROTOCOL_ICMP | PROTOCOL_ICMPV6 if ECHO.contains(packet.get(at)?) => at + 4,
        _ => return None,
    };
    Some((protocol, u16::from_be_bytes(packet.get(at..at + 2)?.try_into().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_known_by_protocol_and_port() {
        let v4 = |protocol: u8, payload: &[u8]| {
            let mut packet = vec![0; 24];
            (packet[0], packet[9]) = (0x46, protocol);
            packet.extend(payload);
            packet
        };
        let v6 = |protocol: u8, payload: &[u8]| {
            let mut packet = vec![0; 40];
            (packet[0], packet[6]) = (0x60, protocol);
            packet.extend(payload);
            packet
        };
        let ports = [0x80, 0x01, 0, 80];
        assert_eq!(sender(&v4(6, &ports)), Some((6, 0x8001)), "behind options");
        assert_eq!(sender(&v6(17, &ports)), Some((17, 0x8001)));
        assert_eq!(sender(&v4(1, &[8, 0, 0, 0, 0x12, 0x34])), Some((1, 0x1234)));
        assert_eq!(sender(&v6(58, &[128, 0, 0, 0, 0x12, 0x34])), Some((58, 0x1234)));
        assert_eq!(sender(&v6(58, &[133, 0, 0, 0, 0, 0])), None, "the kernel asks for routers");
        assert_eq!(sender(&v4(47, &ports)), None);
        for length in 0..25 {
            assert_eq!(sender(&v4(6, &ports)[..length]), None, "cut to {length}");
        }
        assert_eq!(sender(&[]), None);
    }
}
