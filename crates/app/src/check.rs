//! Checks of servers, which an app requests ([`crate::Action::Check`]) and its driver carries out. The app
//! learns only how a check has ended ([`crate::Event::Checked`]).

use std::net::IpAddr;

/// Identifies a check whose outcome an app waits for; never reused by the same app.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CheckId(pub u64);

/// The outcome of a check: success, or a few words on why it failed.
pub type Outcome = Result<(), String>;

/// One health check of a server: where to send what, and for how long to wait.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Check {
    /// The server's address, or the first VIP if the check takes the service's own path.
    pub address: IpAddr,
    /// The server's TCP or UDP port; ignored for [`Ask::Icmp`].
    pub port: u16,
    /// The request, and the expected answer.
    pub ask: Ask,
    /// How long the check may take from its first packet to its outcome, in nanoseconds.
    pub timeout_ns: u64,
    /// The service and back end whose path the packets of the check take, if not the host's routes.
    pub via: Option<Via>,
    /// How the connection of the check ends; ignored for checks without a connection.
    pub close: Close,
}

/// How the connection of a check ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Close {
    /// With a FIN, after reading everything that the server sends.
    #[default]
    Fin,
    /// With a RST as soon as the outcome is known, so that neither side stays in TIME_WAIT.
    Reset,
}

/// The path of a service's packets to one of its back ends. Packets sent by the sockets of such a check reach
/// the app as [`crate::Event::CheckSends`], and the app passes the answers to them with
/// [`crate::Action::CheckHears`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Via {
    /// The name of the service whose path is taken.
    pub service: String,
    /// The name of the back end that is checked.
    pub back_end: String,
    /// The pairs of addresses to check, one after the other; at least one. Each pair is the source address of
    /// packets, to which answers are sent, and the VIP.
    pub ways: Vec<(IpAddr, IpAddr)>,
}

/// What the server must do to pass the check.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Ask {
    /// Accept a TCP connection.
    Tcp,
    /// Complete a TLS handshake for this name (SNI, RFC 6066 section 3), or without a name.
    Tls(Option<String>),
    /// Answer an HTTP/1.1 request.
    Http(Request),
    /// Answer a DNS query for the A records of a name with this response code (RFC 1035 section 4.1.1);
    /// `None` accepts any.
    Dns(String, Option<u8>),
    /// Answer the first datagram with one that contains the second byte string.
    Udp(Vec<u8>, Vec<u8>),
    /// Answer an ICMP or ICMPv6 echo request.
    Icmp,
}

/// An HTTP request, and the expected answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// Whether to use TLS.
    pub tls: bool,
    /// The path, and optionally a query, beginning with `/`.
    pub path: String,
    /// The host of its `Host` field and of TLS; the address if there is none.
    pub host: Option<String>,
    /// The lowest and the highest acceptable status.
    pub status: [u16; 2],
    /// What the body must contain in its first 64 KiB.
    pub body: Option<String>,
}
