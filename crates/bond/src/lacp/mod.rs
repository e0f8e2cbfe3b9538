//! LACP, the Link Aggregation Control Protocol of IEEE 802.1AX clause 6.4: which members of a bond lead to
//! the same partner, and when frames may be received and sent on them.
//!
//! The code is pure: [`Lacp::step`] takes the time and an event, and returns actions. There is no clock, no
//! thread and no port, so the protocol can be replayed on a virtual clock. Each state machine of the standard
//! is a file: `receive`, `periodic`, `selection`, `mux`, `transmit`, `churn`.
//!
//! The implementation differs from the standard's diagrams in these points:
//! - INITIALIZE is the creation of a member. There is no LACP_DISABLED, because members without LACP are not
//!   handled here.
//! - A member waits only for itself before it attaches (wait_while), not for the other members of its
//!   aggregator, so a flapping member cannot delay the others.
//! - A silent partner is assumed to want PDUs at our own rate, so that a fast bond finds a passive partner
//!   within 1 s.
//! - A member without a partner never collects: the handling of silent partners (`fallback`) is decided
//!   outside LACP.
//! - PDUs with our own system id are refused (a loop), and so are PDUs to an address other than the
//!   protocol's: bridges forward the latter, so anyone could have sent them.

mod churn;
mod config;
mod info;
mod lacpdu;
mod machine;
mod member;
mod mux;
mod notice;
mod periodic;
mod receive;
mod refusal;
mod resume;
mod selection;
mod status;
#[cfg(test)]
mod tests;
mod transmit;

pub use config::{Config, LacpProblem, Policy, Rate, Settings};
pub use info::{Info, Port, State, System};
pub use lacpdu::{ETHER_TYPE, FRAME_LEN, LacpPdu, Marker, Pdu, SLOW_ADDRESS, parse};
pub use machine::{Action, Event, Lacp, Negotiation};
pub use notice::Notice;
pub use refusal::Refusal;
pub use status::{Aggregator, Counters, MemberStatus, Status};
