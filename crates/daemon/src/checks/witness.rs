//! Replies from an address other than the one that was queried. A connected socket never sees them, so the
//! check would only time out. A second socket with the same port does receive them, and the check reports
//! where the reply came from.

use super::{ANSWER_MAX, said};
use rustix::net::sockopt::set_socket_reuseport;
use std::future::{Future, pending, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::Poll;
use tokio::net::UdpSocket;

/// A socket that receives only from the server, and one that receives from all other addresses.
pub struct WitnessSockets {
    socket: UdpSocket,
    witness: UdpSocket,
    /// The server.
    asked: SocketAddr,
}

impl WitnessSockets {
    /// Connects an already bound UDP socket to a server.
    pub async fn of_port(socket: UdpSocket, asked: SocketAddr) -> io::Result<WitnessSockets> {
        // Only now, so that no other process shares the port.
        set_socket_reuseport(&socket, true)?;
        let own = socket.local_addr()?;
        socket.connect(asked).await?;
        let (family, kind) = (family(asked), rustix::net::SocketType::DGRAM);
        let flags = rustix::net::SocketFlags::NONBLOCK | rustix::net::SocketFlags::CLOEXEC;
        let witness = rustix::net::socket_with(family, kind, flags, None)?;
        set_socket_reuseport(&witness, true)?;
        rustix::net::bind(&witness, &own)?;
        Ok(WitnessSockets { socket, witness: UdpSocket::from_std(witness.into())?, asked })
    }

    /// Creates the sockets from two raw sockets, each of which receives everything.
    pub async fn of_raw(
        socket: UdpSocket,
        witness: UdpSocket,
        asked: SocketAddr,
    ) -> io::Result<WitnessSockets> {
        socket.connect(asked).await?;
        Ok(WitnessSockets { socket, witness, asked })
    }

    pub async fn send(&self, bytes: &[u8]) -> Result<(), String> {
        self.socket.send(bytes).await.map(drop).map_err(|error| said(&error))
    }

    /// Returns the server's next datagram.
    ///
    /// # Errors
    /// Fails if the server cannot be reached, or if a datagram that `is_reply` accepts came from another
    /// address.
    pub async fn receive(&self, is_reply: impl Fn(&[u8]) -> bool) -> Result<Vec<u8>, String> {
        let mut answer = vec![0; ANSWER_MAX];
        let length = {
            let (mut received, mut elsewhere) =
                (pin!(self.socket.recv(&mut answer)), pin!(self.see(&is_reply)));
            poll_fn(|context| match received.as_mut().poll(context) {
                Poll::Ready(got) => Poll::Ready(got.map_err(|error| said(&error))),
                Poll::Pending => elsewhere.as_mut().poll(context).map(Err),
            })
            .await?
        };
        answer.truncate(length);
        Ok(answer)
    }

    /// Waits for a reply from another address or port. Returns a message about it.
    async fn see(&self, is_reply: impl Fn(&[u8]) -> bool) -> String {
        let mut bytes = vec![0; ANSWER_MAX];
        loop {
            match self.witness.recv_from(&mut bytes).await {
                Ok((length, from)) if self.is_other(from) && is_reply(&bytes[..length]) => {
                    return self.explanation(from);
                }
                Ok(_) => {}
                // A failure to receive here is not a reply; the socket itself reports errors.
                Err(_) => return pending().await,
            }
        }
    }

    /// Whether a datagram does not come from the server. For raw sockets, which have no ports, only
    /// the addresses are compared.
    fn is_other(&self, from: SocketAddr) -> bool {
        from.ip() != self.asked.ip() || self.asked.port() != 0 && from.port() != self.asked.port()
    }

    fn explanation(&self, from: SocketAddr) -> String {
        if from.ip() == self.asked.ip() {
            return format!("the reply came from port {}, not from {}", from.port(), self.asked.port());
        }
        format!("the reply came from {}, not from {}", from.ip(), self.asked.ip())
    }
}

fn family(address: SocketAddr) -> rustix::net::AddressFamily {
    match address {
        SocketAddr::V4(_) => rustix::net::AddressFamily::INET,
        SocketAddr::V6(_) => rustix::net::AddressFamily::INET6,
    }
}
