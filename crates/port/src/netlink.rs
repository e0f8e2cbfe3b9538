//! Netlink, the kernel's language for networks: messages with attributes, and requests.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rustix::fd::OwnedFd;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

/// Iterates over attributes: their types and values.
pub fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    const NESTED: u16 = 1 << 15;
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(rest.get(0..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(rest.get(2..4)?.try_into().ok()?);
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind & !NESTED, value))
    })
}

/// Returns a value as a number; 0 if it is too short.
#[must_use]
pub fn word(value: &[u8]) -> u32 {
    value.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

/// Returns a value as text.
#[must_use]
pub fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).trim_end_matches('\0').to_owned()
}

/// Types and bodies of messages.
pub type Answers = Vec<(u16, Vec<u8>)>;

/// Requests a dump of all objects of a kind, of this protocol (route if `None`).
///
/// # Errors
/// Returns the kernel's error.
pub fn dump(protocol: Option<Protocol>, kind: u16, question: &[u8]) -> io::Result<Answers> {
    const NLM_F_DUMP: u16 = 0x300;
    talk(protocol, kind, NLM_F_DUMP, question)
}

/// Returns all IP addresses of this host (RTM_GETADDR, rtnetlink(7)).
///
/// # Errors
/// Returns the kernel's error.
pub fn addresses() -> io::Result<Vec<IpAddr>> {
    const RTM_GETADDR: u16 = 22;
    const AF_UNSPEC: u8 = 0;
    let answers = dump(None, RTM_GETADDR, &[AF_UNSPEC, 0, 0, 0, 0, 0, 0, 0])?;
    Ok(answers.iter().filter_map(|(_, body)| address(body)).collect())
}

/// Reads the address in a message of type RTM_NEWADDR: a header of 8 bytes, and attributes. For IPv4, it is
/// the local address if the other end of a link is named as well.
fn address(body: &[u8]) -> Option<IpAddr> {
    const IFA_ADDRESS: u16 = 1;
    const IFA_LOCAL: u16 = 2;
    const AF_INET: u8 = 2;
    const AF_INET6: u8 = 10;
    let attribute =
        |wanted| attributes(body.get(8..)?).find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
    match *body.first()? {
        AF_INET => attribute(IFA_LOCAL)?.first_chunk::<4>().map(|octets| Ipv4Addr::from(*octets).into()),
        AF_INET6 => {
            let octets = attribute(IFA_LOCAL).or_else(|| attribute(IFA_ADDRESS))?.first_chunk::<16>()?;
            Some(Ipv6Addr::from(*octets).into())
        }
        _ => None,
    }
}

/// Sends one request and returns the types and bodies of the answers.
///
/// # Errors
/// Returns the kernel's error.
pub fn talk(protocol: Option<Protocol>, kind: u16, flags: u16, question: &[u8]) -> io::Result<Answers> {
    const NLM_F_REQUEST: u16 = 1;
    const HEADER: usize = 16;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
    let mut message = Vec::new();
    message.extend(((HEADER + question.len()) as u32).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend((flags | NLM_F_REQUEST).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(question);
    sendto(&socket, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut answers = Answers::new();
    while listen(&socket, &mut answers)? && flags != 0 {}
    Ok(answers)
}

/// Reads one datagram of answers. Returns false after the last one.
fn listen(socket: &OwnedFd, answers: &mut Answers) -> io::Result<bool> {
    const NLMSG_ERROR: u16 = 2;
    const NLMSG_DONE: u16 = 3;
    let mut buffer = vec![0; 65536];
    let (_, length) = recv(socket, &mut buffer[..], RecvFlags::empty())?;
    for (kind, body) in messages(&buffer[..length]) {
        match kind {
            NLMSG_DONE => return Ok(false),
            NLMSG_ERROR => return Err(io::Error::from_raw_os_error(-(word(body) as i32))),
            kind => answers.push((kind, body.to_vec())),
        }
    }
    Ok(true)
}

/// Iterates over the types and bodies of the messages in a datagram.
pub fn messages(datagram: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let head = rest.get(..16)?;
        let length = word(head) as usize;
        let body = rest.get(16..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([head[4], head[5]]), body))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_whole_or_not_at_all() {
        assert!(addresses().unwrap().contains(&Ipv4Addr::LOCALHOST.into()));
        let body = [2, 24, 0, 0, 1, 0, 0, 0, 8, 0, 1, 0, 10, 0, 0, 9, 8, 0, 2, 0, 10, 0, 0, 1];
        assert_eq!(address(&body), Some([10, 0, 0, 1].into()));
        let six = [&[10, 64, 0, 0, 1, 0, 0, 0, 20, 0, 1, 0, 0xfe, 0x80][..], &[0; 13], &[1]].concat();
        assert_eq!(address(&six), Some(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1).into()));
        assert!((0..body.len() - 1).all(|length| address(&body[..length]).is_none()));
        assert!((0..six.len() - 1).all(|length| address(&six[..length]).is_none()));
    }

    #[test]
    fn attributes_that_lie_about_their_length_end_the_walk() {
        assert_eq!(attributes(&[8, 0, 4, 0, 220, 5, 0, 0]).collect::<Vec<_>>(), [(4, &[220, 5, 0, 0][..])]);
        for broken in [&[0, 0, 1, 0][..], &[9, 0, 1, 0, 1, 2, 3, 4], &[4], &[]] {
            assert_eq!(attributes(broken).count(), 0);
        }
    }
}
