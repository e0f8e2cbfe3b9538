//! ICMP and ICMPv6 echo (RFC 792, RFC 4443 section 4).

use super::witness::WitnessSockets;
use super::{Server, said};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, socket_with};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr};
use tokio::net::UdpSocket;
use weir_app::check::Outcome;
use weir_packet::{PROTOCOL_ICMP, PROTOCOL_ICMPV6};

/// Types of messages: request and answer, by family.
const V4: [u8; 2] = [8, 0];
const V6: [u8; 2] = [128, 129];
/// Identifier, sequence number and data of a request.
const BODY: usize = 12;

/// Sends an echo request and waits for the answer.
pub async fn ask(server: Server<'_>) -> Outcome {
    let address = server.at.ip();
    let body = RandomState::new().hash_one(address).to_be_bytes();
    let body: [u8; BODY] = std::array::from_fn(|at| body[at % body.len()] ^ at as u8);
    let failed = |error: io::Error| said(&error);
    let (socket, witness) = (open(server).map_err(failed)?, open(server).map_err(failed)?);
    // Answers have the identifier of the request, which is the first two bytes of `body`.
    let protocol = if address.is_ipv4() { PROTOCOL_ICMP } else { PROTOCOL_ICMPV6 };
    server.note(protocol, u16::from_be_bytes([body[0], body[1]]));
    let sockets =
        WitnessSockets::of_raw(socket, witness, SocketAddr::new(address, 0)).await.map_err(failed)?;
    sockets.send(&request(address, &body)).await?;
    loop {
        let answer = sockets.receive(|answer| answers(address, answer, &body)).await?;
        if answers(address, &answer, &body) {
            return Ok(());
        }
    }
}

/// Opens a raw socket. It is used as a UDP socket, which sends and receives with the same system calls.
fn open(server: Server<'_>) -> io::Result<UdpSocket> {
    let (family, protocol) = match server.at.ip() {
        IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP),
        IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6),
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::RAW, flags, Some(protocol))?;
    bind(&socket, &server.own())?;
    UdpSocket::from_std(socket.into())
}

/// Builds an echo request. The kernel computes the checksum of ICMPv6 (RFC 3542 section 3.1).
fn request(address: IpAddr, body: &[u8; BODY]) -> Vec<u8> {
    let kind = if address.is_ipv4() { V4[0] } else { V6[0] };
    let mut request = [&[kind, 0, 0, 0][..], body].concat();
    if address.is_ipv4() {
        let words = request.chunks(2).map(|two| u32::from(u16::from_be_bytes([two[0], two[1]])));
        let sum: u32 = words.sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        let check = !(((sum & 0xffff) + (sum >> 16)) as u16);
        request[2..4].copy_from_slice(&check.to_be_bytes());
    }
    request
}

/// Returns true if what a raw socket has received is the answer. IPv4 packets include their header.
fn answers(address: IpAddr, received: &[u8], body: &[u8; BODY]) -> bool {
    let (message, kind) = match address {
        IpAddr::V4(_) => {
            let header = received.first().map_or(0, |first| usize::from(first & 0x0f) * 4);
            (received.get(header..).unwrap_or_default(), V4[1])
        }
        IpAddr::V6(_) => (received, V6[1]),
    };
    message.len() >= 4 + BODY && message[..2] == [kind, 0] && message[4..4 + BODY] == body[..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    #[test]
    fn requests_and_answers_are_told_apart() {
        let body = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        let (four, six) = (IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST));
        let sent = request(four, &body);
        let sum = sent.chunks(2).map(|two| u32::from(u16::from_be_bytes([two[0], two[1]]))).sum::<u32>();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        let header = [0x45; 20];
        assert!(!answers(four, &[&header[..], &sent].concat(), &body), "our own request");
        let mut answer = sent.clone();
        answer[0] = 0;
        let answer = [&header[..], &answer].concat();
        assert!(answers(four, &answer, &body));
        assert!(!answers(four, &answer, &[0; BODY]), "the answer to another");
        assert!((0..answer.len()).all(|length| !answers(four, &answer[..length], &body)));
        let mut answer = request(six, &body);
        assert!(!answers(six, &answer, &body));
        answer[0] = 129;
        assert!(answers(six, &answer, &body));
    }
}
