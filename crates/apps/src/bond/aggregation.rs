//! The bond's side of LACP: the protocol itself is in [`super::lacp`], here is what the bond makes of its word.

use super::config::Bond;
use super::config::Member;
use super::lacp::{Action, Event, Lacp, Negotiation, Settings, Status};
use super::links::Admission;
use std::collections::BTreeMap;
use std::num::NonZeroU16;

/// LACP, if the bond speaks it, and how far it has come.
pub(super) struct Aggregation {
    lacp: Option<Lacp>,
    pub negotiation: Negotiation,
    /// Members of which LACP is told at that time that they are out.
    holding: BTreeMap<u16, u64>,
}

impl Aggregation {
    /// LACP as configured, without members.
    pub fn new(bond: &Bond) -> Aggregation {
        let lacp = bond.lacp.clone().map(Lacp::new);
        Aggregation { lacp, negotiation: Negotiation::default(), holding: BTreeMap::new() }
    }

    /// Whether a partner's silence has made the bond one that uses a single member.
    pub fn falls_back(&self) -> bool {
        self.negotiation == Negotiation::Fallback
    }

    /// Whether it is LACP that opens a member.
    pub fn decides(&self) -> bool {
        self.lacp.is_some() && !self.falls_back()
    }

    /// Tells LACP; gives what it wants done.
    pub fn step(&mut self, now_ns: u64, event: Event<'_>) -> Vec<Action> {
        let mut wanted = Vec::new();
        if let Some(lacp) = &mut self.lacp {
            lacp.step(now_ns, event, &mut wanted);
        }
        wanted
    }

    /// How LACP stands, for the operator.
    pub fn status(&self) -> Option<Status> {
        self.lacp.as_ref().map(Lacp::status)
    }

    /// Notes how far LACP has come. When it falls back or has a partner again: what each member may do from now on.
    pub fn negotiated(&mut self, negotiation: Negotiation) -> Option<Vec<(u16, Admission)>> {
        let was = self.falls_back();
        self.negotiation = negotiation;
        let falls_back = self.falls_back();
        if was == falls_back {
            return None;
        }
        // Without a partner LACP has no say; with one it has it all.
        let admission = |mux: &str| match falls_back {
            true => Admission::default(),
            false => Admission {
                collecting: matches!(mux, "collecting" | "distributing"),
                distributing: mux == "distributing",
            },
        };
        let members = self.status().into_iter().flat_map(|status| status.members);
        Some(members.map(|member| (member.member, admission(member.mux))).collect())
    }

    /// Has the partner told at that time that a member is out.
    pub fn hold(&mut self, id: u16, at_ns: u64) {
        self.holding.insert(id, at_ns);
    }

    /// A member is not to be held out any more.
    pub fn release(&mut self, id: u16) {
        self.holding.remove(&id);
    }

    /// Members whose partner is to be told now.
    pub fn due(&mut self, now_ns: u64) -> Vec<u16> {
        self.holding.extract_if(.., |_, at_ns| *at_ns <= now_ns).map(|(id, _)| id).collect()
    }

    /// When something is to be done.
    pub fn wake_ns(&self) -> Option<u64> {
        self.lacp.as_ref().and_then(Lacp::wake_ns).into_iter().chain(self.holding.values().copied()).min()
    }
}

/// What LACP is told of a member.
pub(super) fn settings(bond: &Bond, id: u16, member: &Member) -> Settings {
    let port = NonZeroU16::MIN.saturating_add(id);
    Settings { mac: member.mac.unwrap_or_else(|| bond.mac()), port, priority: member.priority, key: member.key }
}
