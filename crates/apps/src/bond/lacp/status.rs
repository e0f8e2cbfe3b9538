//! What `show bond` shows of LACP.

use super::info::{Info, System};
use super::machine::Negotiation;
use super::refusal::Refusal;

/// A bond.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Who we are.
    pub system: System,
    /// How far it has come.
    pub negotiation: Negotiation,
    /// Members in sync in the aggregator in use.
    pub links: u16,
    /// How many are needed.
    pub min_links: u16,
    /// All partners that members lead to.
    pub aggregators: Vec<Aggregator>,
    /// All members, by number.
    pub members: Vec<MemberStatus>,
}

/// Members with one partner and one pair of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aggregator {
    /// Is it the one in use?
    pub active: bool,
    /// Our key.
    pub key: u16,
    /// Who is at the other end.
    pub partner: System,
    /// Its key.
    pub partner_key: u16,
    /// The partner does not aggregate: there is one member at most.
    pub individual: bool,
    /// Sum of the known link speeds of members whose partner's word is good.
    pub speed_bps: u64,
    /// Its members.
    pub members: Vec<u16>,
}

/// A member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// Its number.
    pub member: u16,
    /// Is its link up?
    pub link_up: bool,
    /// Its link's speed, if known.
    pub speed_bps: Option<u64>,
    /// Kept out by the operator?
    pub held: bool,
    /// Receive machine: `port disabled`, `expired`, `defaulted`, `current`.
    pub receive: &'static str,
    /// Periodic machine: `none`, `fast`, `slow`.
    pub periodic: &'static str,
    /// In the aggregator in use?
    pub selected: bool,
    /// Mux machine: `detached`, `waiting`, `attached`, `collecting`, `distributing`.
    pub mux: &'static str,
    /// Our churn: `idle`, `watching`, `none`, `churning`.
    pub actor_churn: &'static str,
    /// The partner's.
    pub partner_churn: &'static str,
    /// Our end.
    pub actor: Info,
    /// The partner's end, as we believe.
    pub partner: Info,
    /// What has happened.
    pub counters: Counters,
}

/// What has happened to a member, since it was added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// LACPDUs taken.
    pub lacpdus_received: u64,
    /// LACPDUs sent.
    pub lacpdus_sent: u64,
    /// Markers that asked us.
    pub markers_received: u64,
    /// Of those, beyond what may be answered in a second.
    pub markers_unanswered: u64,
    /// Answers to markers, of which we send none.
    pub marker_responses_received: u64,
    /// PDUs refused, by reason: in the order of [`Refusal::ALL`].
    pub refused: [u64; Refusal::ALL.len()],
    /// The partner fell silent.
    pub expired: u64,
    /// It was given up.
    pub defaulted: u64,
    /// Another system answered.
    pub partner_changed: u64,
    /// We were out of sync for a minute.
    pub actor_churned: u64,
    /// The partner was.
    pub partner_churned: u64,
}

impl Counters {
    /// PDUs refused for `reason`.
    pub fn refused(&self, reason: Refusal) -> u64 {
        self.refused[reason as usize]
    }
}
