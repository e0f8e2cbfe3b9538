//! Neighbours, which are the resolved addresses of other hosts on a link, and forwarding tables of bridges
//! and VXLAN devices: both are messages of the same type (linux/neighbour.h).

use super::message::{NLM_F_CREATE, Request, attribute, family_and_octets, find, read_ip, word};
use super::rtm::{RTM_GETNEIGH, RTM_NEWNEIGH};
use super::socket::{Message, Protocol, change, dump, get};
use super::{AF_BRIDGE, AF_INET, AF_INET6, AF_UNSPEC, Mac};
use std::io;
use std::net::IpAddr;

const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;

const NTF_USE: u8 = 1;
const NTF_EXT_LEARNED: u8 = 0x10;

/// `struct ndmsg`.
const HEADER: usize = 12;

/// States of neighbours, as bits.
#[allow(missing_docs, reason = "the kernel's names")]
pub mod nud {
    pub const INCOMPLETE: u16 = 0x01;
    pub const REACHABLE: u16 = 0x02;
    pub const STALE: u16 = 0x04;
    pub const DELAY: u16 = 0x08;
    pub const PROBE: u16 = 0x10;
    pub const FAILED: u16 = 0x20;
    pub const NOARP: u16 = 0x40;
    pub const PERMANENT: u16 = 0x80;
}

/// An entry of the neighbour table: the MAC address behind an IP address (rtnetlink(7): `RTM_NEWNEIGH`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The interface behind which the neighbour is.
    pub index: u32,
    /// The IP address of the neighbour.
    pub address: IpAddr,
    /// The neighbour's state: bits of [`nud`].
    pub state: u16,
    /// The neighbour's MAC address, if an address of 6 bytes is known.
    pub mac: Option<Mac>,
    flags: u8,
}

/// An entry of a forwarding table: where frames for a MAC address go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forwarding {
    /// The port of the bridge, or the VXLAN device.
    pub index: u32,
    /// The address; zeros are the entry for unknown addresses.
    pub mac: Mac,
    /// The remote VXLAN endpoint.
    pub endpoint: Option<IpAddr>,
}

impl Neighbour {
    /// Parses the body of a message.
    pub(crate) fn parse(body: &[u8]) -> Option<Neighbour> {
        let attributes = body.get(HEADER..)?;
        Some(Neighbour {
            index: word(&body[4..]),
            address: read_ip(find(attributes, NDA_DST)?)?,
            state: u16::from_ne_bytes([body[8], body[9]]),
            mac: find(attributes, NDA_LLADDR).and_then(|mac| mac.try_into().ok()),
            flags: body[10],
        })
    }
}

impl Forwarding {
    /// Parses the body of a message.
    pub(crate) fn parse(body: &[u8]) -> Option<Forwarding> {
        let attributes = body.get(HEADER..)?;
        let mac = find(attributes, NDA_LLADDR)?.try_into().ok()?;
        let endpoint = find(attributes, NDA_DST).and_then(read_ip);
        Some(Forwarding { index: word(&body[4..]), mac, endpoint })
    }
}

/// Returns the kernel's neighbours.
///
/// # Errors
/// Returns the kernel's error.
pub fn neighbours() -> io::Result<Vec<Neighbour>> {
    let all = dump(Protocol::Route, RTM_GETNEIGH, &header(AF_UNSPEC, 0, 0, 0))?;
    let is_ip = |body: &[u8]| matches!(body.first(), Some(&(AF_INET | AF_INET6)));
    Ok(all.iter().filter(|(_, body)| is_ip(body)).filter_map(|(_, body)| Neighbour::parse(body)).collect())
}

/// Returns forwarding tables, then neighbours, as messages.
///
/// # Errors
/// Returns the kernel's error.
pub fn forwarding_and_neighbours() -> io::Result<Vec<Message>> {
    let of = |family| dump(Protocol::Route, RTM_GETNEIGH, &header(family, 0, 0, 0));
    Ok([of(AF_BRIDGE)?, of(AF_INET)?, of(AF_INET6)?].concat())
}

/// Makes the kernel resolve a neighbour, or check whether it is still reachable, as if there were a packet
/// for it.
///
/// # Errors
/// Returns the kernel's error.
pub fn use_neighbour(index: u32, address: IpAddr) -> io::Result<()> {
    set(index, address, NLM_F_CREATE, (0, NTF_USE))
}

/// Makes the kernel verify at once that a neighbour is still where it was, even if it has answered recently.
/// The kernel probes the known MAC address; if there is no answer, [`use_neighbour`] makes it query all
/// stations. An entry created by an operator or a control plane is left alone.
///
/// # Errors
/// Returns the kernel's error.
pub fn probe_neighbour(index: u32, address: IpAddr) -> io::Result<()> {
    let (family, octets) = family_and_octets(address);
    let question = [&header(family, index, 0, 0)[..], &attribute(NDA_DST, &octets)].concat();
    let answer = get(Protocol::Route, RTM_GETNEIGH, &question).ok();
    let Some(known) = answer.and_then(|(_, body)| Neighbour::parse(&body)) else {
        return use_neighbour(index, address);
    };
    let has_answered = known.state & (nud::REACHABLE | nud::STALE | nud::DELAY) != 0;
    if known.flags & NTF_EXT_LEARNED != 0 || !has_answered {
        return Ok(());
    }
    set(index, address, 0, (nud::PROBE, known.flags))
}

/// Sets the state and flags of a neighbour.
fn set(index: u32, address: IpAddr, flags: u16, (state, neighbour_flags): (u16, u8)) -> io::Result<()> {
    let (family, octets) = family_and_octets(address);
    let body = [&header(family, index, state, neighbour_flags)[..], &attribute(NDA_DST, &octets)].concat();
    change(Protocol::Route, Request { kind: RTM_NEWNEIGH, flags, body: &body })
}

/// Encodes `struct ndmsg`.
fn header(family: u8, index: u32, state: u16, flags: u8) -> [u8; HEADER] {
    let ([a, b, c, d], [e, f]) = (index.to_ne_bytes(), state.to_ne_bytes());
    [family, 0, 0, 0, a, b, c, d, e, f, flags, 0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    /// Needs root: a namespace with a device, where the kernel has just heard from a neighbour.
    #[test]
    fn a_neighbour_that_is_sure_is_probed_at_once_and_a_permanent_one_is_left_alone() {
        if !weir_bed::is_root() {
            return;
        }
        let run = |words: &str| {
            let mut words = words.split_whitespace();
            let command = std::process::Command::new(words.next().unwrap()).args(words).output().unwrap();
            assert!(command.status.success(), "{command:?}");
            String::from_utf8(command.stdout).unwrap()
        };
        let within = move || {
            // SAFETY: only this thread moves, and it ends with the test.
            unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET).unwrap() };
            run("ip link add w0 type veth peer name w1");
            run("ip link set w1 up");
            run("ip link set w0 up");
            run("ip addr add 10.0.0.1/24 dev w0");
            // So that probing has not ended when a busy machine looks.
            run("sysctl -qw net.ipv4.neigh.w0.retrans_time_ms=60000");
            run("ip neigh add 10.0.0.8 lladdr 02:00:00:00:00:08 dev w0 nud permanent");
            run("ip neigh add 10.0.0.9 lladdr 02:00:00:00:00:09 dev w0 nud reachable");
            let index = run("ip -o link show w0").split(':').next().unwrap().parse().unwrap();
            for last in [8, 9, 10] {
                probe_neighbour(index, Ipv4Addr::new(10, 0, 0, last).into()).unwrap();
            }
            [8, 9, 10].map(|last| run(&format!("ip neigh show 10.0.0.{last}")))
        };
        let [permanent, sure, unknown] = std::thread::spawn(within).join().unwrap();
        assert!(permanent.contains("PERMANENT"), "{permanent}");
        assert!(sure.contains("PROBE"), "{sure}");
        assert!(unknown.contains("INCOMPLETE"), "{unknown}");
    }

    #[test]
    fn neighbours_are_read_whole_or_not_at_all() {
        neighbours().unwrap();
        let mut body = header(AF_INET, 7, nud::REACHABLE, 0).to_vec();
        body.extend(attribute(NDA_DST, &[10, 0, 0, 9]));
        let without = body.len();
        body.extend(attribute(NDA_LLADDR, &[2, 0, 0, 0, 0, 9]));
        let address = Ipv4Addr::new(10, 0, 0, 9).into();
        let one =
            Neighbour { index: 7, address, state: nud::REACHABLE, mac: Some([2, 0, 0, 0, 0, 9]), flags: 0 };
        assert_eq!(Neighbour::parse(&body), Some(one));
        assert_eq!(Neighbour::parse(&body[..without]), Some(Neighbour { mac: None, ..one }));
        assert!((0..without).all(|length| Neighbour::parse(&body[..length]).is_none()));
        let entry = Forwarding { index: 7, mac: [2, 0, 0, 0, 0, 9], endpoint: Some(address) };
        assert_eq!(Forwarding::parse(&body), Some(entry));
        // The last two bytes are padding.
        assert!((0..body.len() - 2).all(|length| Forwarding::parse(&body[..length]).is_none()));
    }
}
