//! LACP, the Link Aggregation Control Protocol of IEEE 802.1AX, clause 6.4: which members of a bond lead to the same
//! partner, and when frames may be taken from them and sent by them.
//!
//! It is pure: [`Lacp::step`] takes the time and what happened, and says what to do. It has no clock, no thread and no
//! port, so it replays on a virtual clock. Each machine of the standard is a file: `receive`, `periodic`, `selection`,
//! `mux`, `transmit`, `churn`.
//!
//! Where it is not what the standard draws:
//! - INITIALIZE is making a member; there is no LACP_DISABLED, because a member without LACP is not given to us.
//! - A member waits for itself before it attaches (wait_while), not for its aggregator's others: one that flaps cannot
//!   hold up those that do not.
//! - A silent partner is taken to want PDUs at our own rate, so that a fast bond finds a passive partner within 1 s.
//! - A member without partner never collects: what a bond does with silent partners (`fallback`) is not LACP's.
//! - PDUs from our own system id are refused (a loop), and so are those sent to any other address than the protocol's:
//!   a bridge forwards those, so anyone could have sent them.

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
mod selection;
mod status;
#[cfg(test)]
mod tests;
mod transmit;

pub use config::{Config, Policy, Problem, Rate, Settings};
pub use info::{Info, Port, State, System};
pub use lacpdu::{ETHER_TYPE, FRAME_LEN, LacpPdu, Marker, Pdu, SLOW_ADDRESS, parse};
pub use machine::{Action, Event, Lacp, Negotiation};
pub use notice::Notice;
pub use refusal::Refusal;
pub use status::{Aggregator, Counters, MemberStatus, Status};
