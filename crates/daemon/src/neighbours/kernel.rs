//! Queries to the kernel about neighbours, over netlink: links, routes, its neighbour table.

use super::world::State;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};
use std::io;
use std::net::IpAddr;
use weir_app::neighbour::Mac;
use weir_port::netlink::{Answers, attributes, dump, talk, word};

const RTM_GETROUTE: u16 = 26;
pub const RTM_NEWNEIGH: u16 = 28;
pub const RTM_DELNEIGH: u16 = 29;
const RTM_GETNEIGH: u16 = 30;

/// Groups of rtnetlink(7), as bits: links, neighbours, and addresses, routes and rules of IPv4 and IPv6.
const GROUPS: u32 = 1 | 4 | 0x10 | 0x40 | 0x80 | 0x100 | 0x400 | 1 << 18 | 1 << 31;

/// Datagrams read per iteration; the kernel may produce them faster than we read.
const DATAGRAMS_MAX: usize = 4096;

/// The socket that receives changes.
pub struct News {
    fd: OwnedFd,
    buffer: Vec<u8>,
}

impl News {
    /// Opens the socket, which receives everything that happens from now on.
    pub fn open() -> io::Result<News> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&fd, &SocketAddrNetlink::new(0, GROUPS))?;
        Ok(News { fd, buffer: vec![0; 65536] })
    }

    /// Returns the descriptor that becomes readable when there is news.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Reads messages, and passes each to `take`: its type and its body. Returns false if some were lost.
    pub fn read(&mut self, mut take: impl FnMut(u16, &[u8])) -> bool {
        let mut all = true;
        for _ in 0..DATAGRAMS_MAX {
            match recv(&self.fd, &mut self.buffer[..], RecvFlags::empty()) {
                Ok((length, _)) => {
                    let messages = weir_port::netlink::messages(&self.buffer[..length]);
                    messages.for_each(|(kind, body)| take(kind, body));
                }
                Err(Errno::INTR) => {}
                Err(Errno::NOBUFS) => all = false,
                Err(_) => break,
            }
        }
        all
    }
}

/// Returns the kernel's neighbours: interface, address, and state.
pub fn neighbours() -> io::Result<Vec<(u32, IpAddr, State)>> {
    let answers: Answers = dump(None, RTM_GETNEIGH, &[0; 12])?;
    Ok(answers.iter().filter_map(|(_, body)| neighbour(body)).collect())
}

/// Parses `struct ndmsg` and its attributes.
pub fn neighbour(body: &[u8]) -> Option<(u32, IpAddr, State)> {
    let index = word(body.get(4..)?);
    let state = u16::from_ne_bytes(body.get(8..10)?.try_into().ok()?);
    let attributes = body.get(12..)?;
    let address = ip(attribute(attributes, 1)?)?;
    let mac = attribute(attributes, 2).and_then(|value| Mac::try_from(value).ok());
    Some((index, address, State::of(state, mac)))
}

/// The kernel's route to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// It leaves by this interface, to this next hop.
    To(u32, IpAddr),
    /// It is an address of this host, or of a group.
    Local,
    /// No route leads there.
    Nowhere,
}

/// Returns the route to an address, through an interface if one is given.
pub fn route(address: IpAddr, through: Option<u32>) -> Route {
    const UNICAST: u8 = 1;
    let (family, length, bytes) = family(address);
    let mut question = vec![family, length, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    push(&mut question, 1, &bytes);
    through.iter().for_each(|index| push(&mut question, 4, &index.to_ne_bytes()));
    let Ok(answers) = talk(None, RTM_GETROUTE, 0, &question) else { return Route::Nowhere };
    let Some((_, body)) = answers.first() else { return Route::Nowhere };
    if body.get(7) != Some(&UNICAST) {
        return Route::Local;
    }
    let attributes = body.get(12..).unwrap_or_default();
    // RTA_VIA has the family of the next hop in front.
    let via = attribute(attributes, 18).and_then(|value| value.get(2..));
    let gateway = attribute(attributes, 5).or(via).and_then(ip);
    match attribute(attributes, 4).map(word) {
        Some(index) => Route::To(index, gateway.unwrap_or(address)),
        None => Route::Nowhere,
    }
}

/// Makes the kernel resolve a neighbour, or check whether it is still reachable, as if there were a packet
/// for it.
pub fn ask(index: u32, address: IpAddr) -> io::Result<()> {
    const CREATE: u16 = 0x400;
    const NTF_USE: u8 = 1;
    set(index, address, CREATE, (0, NTF_USE))
}

/// Makes the kernel verify at once that a neighbour is still where it was, even if it has answered recently.
/// The kernel probes its MAC address, and with [`ask`] all stations if there is no answer. An entry created
/// by an operator or a control plane is left alone.
pub fn confirm(index: u32, address: IpAddr) -> io::Result<()> {
    // REACHABLE, STALE and DELAY.
    const KNOWN: u16 = 0x02 | 0x04 | 0x08;
    const PROBE: u16 = 0x10;
    const NTF_EXT_LEARNED: u8 = 0x10;
    let (family, _, bytes) = family(address);
    let mut question = vec![family, 0, 0, 0];
    question.extend(index.to_ne_bytes());
    question.extend([0; 4]);
    push(&mut question, 1, &bytes);
    let answers = talk(None, RTM_GETNEIGH, 0, &question).unwrap_or_default();
    let answer = answers.iter().find(|(kind, _)| *kind == RTM_NEWNEIGH).map(|(_, body)| body.as_slice());
    let Some(&[low, high, flags]) = answer.and_then(|body| body.get(8..11)) else {
        return ask(index, address);
    };
    if flags & NTF_EXT_LEARNED != 0 || u16::from_ne_bytes([low, high]) & KNOWN == 0 {
        return Ok(());
    }
    set(index, address, 0, (PROBE, flags))
}

/// Sets the state and flags of a neighbour.
fn set(index: u32, address: IpAddr, how: u16, (state, flags): (u16, u8)) -> io::Result<()> {
    const ANSWER: u16 = 4;
    let (family, _, bytes) = family(address);
    let mut question = vec![family, 0, 0, 0];
    question.extend(index.to_ne_bytes());
    question.extend(state.to_ne_bytes());
    question.extend([flags, 0]);
    push(&mut question, 1, &bytes);
    match talk(None, RTM_NEWNEIGH, how | ANSWER, &question) {
        // An acknowledgement is an error with number 0.
        Err(error) if error.raw_os_error() == Some(0) => Ok(()),
        other => other.map(drop),
    }
}

fn family(address: IpAddr) -> (u8, u8, Vec<u8>) {
    match address {
        IpAddr::V4(address) => (2, 32, address.octets().to_vec()),
        IpAddr::V6(address) => (10, 128, address.octets().to_vec()),
    }
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

/// Returns the value of an attribute.
fn attribute(body: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(body).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

/// Appends an attribute.
fn push(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    message.extend(((value.len() + 4) as u16).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(value);
    message.resize(message.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn the_kernel_is_asked_in_its_language() {
        assert_eq!(route(Ipv4Addr::LOCALHOST.into(), None), Route::Local);
        neighbours().unwrap();
    }

    /// Needs root: a namespace with a device, where the kernel has just heard from a neighbour.
    #[test]
    fn a_neighbour_that_is_sure_is_probed_at_once_and_a_permanent_one_is_left_alone() {
        if !rustix::process::geteuid().is_root() {
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
            run("ip neigh add 10.0.0.8 lladdr 02:00:00:00:00:08 dev w0 nud permanent");
            run("ip neigh add 10.0.0.9 lladdr 02:00:00:00:00:09 dev w0 nud reachable");
            let index = run("ip -o link show w0").split(':').next().unwrap().parse().unwrap();
            for last in [8, 9, 10] {
                confirm(index, Ipv4Addr::new(10, 0, 0, last).into()).unwrap();
            }
            [8, 9, 10].map(|last| run(&format!("ip neigh show 10.0.0.{last}")))
        };
        let [permanent, sure, unknown] = std::thread::spawn(within).join().unwrap();
        assert!(permanent.contains("PERMANENT"), "{permanent}");
        assert!(sure.contains("PROBE"), "{sure}");
        assert!(unknown.contains("INCOMPLETE"), "{unknown}");
    }

    #[test]
    fn what_is_told_of_a_neighbour_is_read_whole_or_not_at_all() {
        let mut body = vec![2, 0, 0, 0, 7, 0, 0, 0, 2, 0, 0, 1];
        push(&mut body, 1, &[10, 0, 0, 9]);
        let without = body.len();
        push(&mut body, 2, &[2, 0, 0, 0, 0, 9]);
        let address: IpAddr = Ipv4Addr::new(10, 0, 0, 9).into();
        assert_eq!(neighbour(&body), Some((7, address, State::Sure([2, 0, 0, 0, 0, 9]))));
        assert_eq!(neighbour(&body[..without]), Some((7, address, State::Failed)));
        for length in 0..body.len() {
            let _ = neighbour(&body[..length]);
        }
        assert_eq!(neighbour(&body[..15]), None);
    }
}
