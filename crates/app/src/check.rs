//! Checks of servers: what an app asks for ([`crate::Action::Check`]) and whoever drives it carries out. An
//! app is told how a check has ended, and nothing else ([`crate::Event::Checked`]).

use std::net::IpAddr;

/// Identifies a check whose outcome an app waits for; never reused by the same app.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CheckId(pub u64);

/// How a check has ended: the server does what it should, or a few words say why not.
pub type Outcome = Result<(), String>;

/// A check.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Check {
    /// Where the server is; the first VIP, if the check goes the service's own way.
    pub address: IpAddr,
    /// Its TCP or UDP port; of no meaning to [`Ask::Icmp`].
    pub port: u16,
    /// What is asked.
    pub ask: Ask,
    /// How long it may take from its first packet to its outcome, in nanoseconds.
    pub timeout_ns: u64,
    /// The service and back end whose way its packets go, if it is not the host's.
    pub via: Option<Via>,
    /// How its connection ends; of no meaning to those that have none.
    pub close: Close,
}

/// How the connection of a check ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Close {
    /// With a FIN, once what the server says has been read to its end.
    #[default]
    Fin,
    /// With a RST as soon as the outcome is known, so that no side keeps it in TIME_WAIT.
    Reset,
}

/// The way of a service's packets to one of its back ends. What the sockets of such a check send comes to the
/// app as [`crate::Event::CheckSends`], and the app gives them the answers by
/// [`crate::Action::CheckHears`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Via {
    /// The service's name.
    pub service: String,
    /// The back end's name.
    pub back_end: String,
    /// What is checked, one after the other: the source address of packets, which answers come to, and the
    /// VIP that they are sent to. There is at least one.
    pub ways: Vec<(IpAddr, IpAddr)>,
}

/// What a check asks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Ask {
    /// That it accepts a TCP connection.
    Tcp,
    /// That it completes a TLS handshake for this name (SNI, RFC 6066 section 3), or for none.
    Tls(Option<String>),
    /// That it answers an HTTP/1.1 request.
    Http(Request),
    /// That it answers a DNS query for the A records of a name with a response code (RFC 1035 section 4.1.1);
    /// `None` is any.
    Dns(String, Option<u8>),
    /// That it answers a datagram with one that contains these bytes.
    Udp(Vec<u8>, Vec<u8>),
    /// That it answers an ICMP or ICMPv6 echo request.
    Icmp,
}

/// An HTTP request, and the answer that is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// Over TLS.
    pub tls: bool,
    /// The path, and perhaps a query, beginning with `/`.
    pub path: String,
    /// The host of its `Host` field and of TLS; the address if there is none.
    pub host: Option<String>,
    /// The first and the last status that is good.
    pub status: [u16; 2],
    /// What the body must contain in its first 64 KiB.
    pub body: Option<String>,
}
