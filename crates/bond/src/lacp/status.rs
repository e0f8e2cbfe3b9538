//! The state of LACP for `show bond`.

use super::info::{Info, System};
use super::machine::Negotiation;
use super::refusal::Refusal;

/// The state of LACP on all members of a bond.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The system identifier that we announce: priority and MAC address.
    pub system: System,
    /// State of the negotiation.
    pub negotiation: Negotiation,
    /// Number of members in sync in the aggregator in use.
    pub links: u16,
    /// Number of members required.
    pub min_links: u16,
    /// The aggregators, one for each partner and pair of keys.
    pub aggregators: Vec<Aggregator>,
    /// All members, ordered by number.
    pub members: Vec<MemberStatus>,
}

/// Members with the same partner and pair of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aggregator {
    /// Whether it is the one in use.
    pub active: bool,
    /// The key that we announce for these members: 16 bits, equal for members that may be aggregated.
    pub key: u16,
    /// System id of the partner.
    pub partner: System,
    /// The key that the partner announces for its ends of these links.
    pub partner_key: u16,
    /// Whether the partner does not aggregate, so that there is at most one member.
    pub individual: bool,
    /// Sum of the known link speeds of members whose partner's information is current.
    pub speed_bps: u64,
    /// Numbers of its members.
    pub members: Vec<u16>,
}

/// State of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// Number of the member.
    pub member: u16,
    /// Whether its link is up.
    pub link_up: bool,
    /// Speed of its link in bits per second, if known.
    pub speed_bps: Option<u64>,
    /// Whether the operator excluded it.
    pub held: bool,
    /// Receive machine: `port disabled`, `expired`, `defaulted`, `current`.
    pub receive: &'static str,
    /// Periodic machine: `none`, `fast`, `slow`.
    pub periodic: &'static str,
    /// Whether it is in the aggregator in use.
    pub selected: bool,
    /// Mux machine: `detached`, `waiting`, `attached`, `collecting`, `distributing`.
    pub mux: &'static str,
    /// Churn detection of our end: `idle`, `watching`, `none`, `churning`.
    pub actor_churn: &'static str,
    /// Churn detection of the partner's end.
    pub partner_churn: &'static str,
    /// The information that we announce about our end.
    pub actor: Info,
    /// Our view of the partner's end.
    pub partner: Info,
    /// Counters of the member.
    pub counters: Counters,
}

/// Counters of a member since it was added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// LACPDUs that were received and accepted. Those that were not are in `refused`.
    pub lacpdus_received: u64,
    /// LACPDUs that were handed to the port for sending.
    pub lacpdus_sent: u64,
    /// Markers that the partner has sent (802.1AX 6.5), most of which get a response.
    pub markers_received: u64,
    /// Markers not answered, because they exceeded the limit per second.
    pub markers_unanswered: u64,
    /// Responses to markers received, although we send no markers.
    pub marker_responses_received: u64,
    /// PDUs refused, by reason, in the order of [`Refusal::ALL`].
    pub refused: [u64; Refusal::ALL.len()],
    /// How often the partner went silent.
    pub expired: u64,
    /// How often the partner was given up.
    pub defaulted: u64,
    /// How often another system answered.
    pub partner_changed: u64,
    /// How often our end was out of sync for a minute.
    pub actor_churned: u64,
    /// How often the partner was out of sync for a minute.
    pub partner_churned: u64,
}

impl Counters {
    /// Returns the number of PDUs refused for `reason`.
    pub fn refused(&self, reason: Refusal) -> u64 {
        self.refused[reason as usize]
    }
}
