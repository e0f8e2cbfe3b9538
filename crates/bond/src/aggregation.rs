//! The bond's side of LACP: how the bond uses the results of the protocol, which is in [`super::lacp`].

use super::config::Bond;
use super::config::Member;
use super::lacp::{Action, Event, Lacp, Negotiation, Settings, Status};
use super::links::Admission;
use std::collections::BTreeMap;
use std::num::NonZeroU16;

/// The bond's LACP state, if LACP is configured, and the progress of the negotiation.
pub(super) struct Aggregation {
    lacp: Option<Lacp>,
    pub negotiation: Negotiation,
    /// The members that LACP must withdraw, and the time at which it must do so.
    holding: BTreeMap<u16, u64>,
}

impl Aggregation {
    /// LACP as configured, without members.
    pub fn new(bond: &Bond) -> Aggregation {
        let lacp = bond.lacp.clone().map(Lacp::new);
        Aggregation { lacp, negotiation: Negotiation::default(), holding: BTreeMap::new() }
    }

    /// Whether the bond has fallen back to a single member because no partner answers.
    pub fn falls_back(&self) -> bool {
        self.negotiation == Negotiation::Fallback
    }

    /// Whether LACP determines which members may be used.
    pub fn decides(&self) -> bool {
        self.lacp.is_some() && !self.falls_back()
    }

    /// Passes an event to LACP; returns the actions that result.
    pub fn step(&mut self, now_ns: u64, event: Event<'_>) -> Vec<Action> {
        let mut wanted = Vec::new();
        if let Some(lacp) = &mut self.lacp {
            lacp.step(now_ns, event, &mut wanted);
        }
        wanted
    }

    /// Returns the last LACPDU of each partner, by the members' numbers ([`Lacp::last_pdus`]).
    pub fn last_pdus(&self) -> Vec<(u16, Vec<u8>)> {
        self.lacp.as_ref().map(Lacp::last_pdus).unwrap_or_default()
    }

    /// Lets a member continue from the last LACPDU that a previous process received from its partner.
    pub fn resume(&mut self, id: u16, bytes: &[u8]) {
        if let Some(lacp) = &mut self.lacp {
            lacp.resume(id, bytes);
        }
    }

    /// The status of LACP, for the operator.
    pub fn status(&self) -> Option<Status> {
        self.lacp.as_ref().map(Lacp::status)
    }

    /// Records the progress of the negotiation. If it starts or ends the fallback, returns what each member
    /// may now do.
    pub fn negotiated(&mut self, negotiation: Negotiation) -> Option<Vec<(u16, Admission)>> {
        let was = self.falls_back();
        self.negotiation = negotiation;
        let falls_back = self.falls_back();
        if was == falls_back {
            return None;
        }
        // During the fallback LACP decides nothing; otherwise it decides everything.
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

    /// Schedules for `at_ns` that the partner is informed that a member is out of use.
    pub fn hold(&mut self, id: u16, at_ns: u64) {
        self.holding.insert(id, at_ns);
    }

    /// Cancels the effect of [`Aggregation::hold`].
    pub fn release(&mut self, id: u16) {
        self.holding.remove(&id);
    }

    /// Members whose partner must be informed now.
    pub fn due(&mut self, now_ns: u64) -> Vec<u16> {
        self.holding.extract_if(.., |_, at_ns| *at_ns <= now_ns).map(|(id, _)| id).collect()
    }

    /// When the next partner must be informed.
    pub fn wake_ns(&self) -> Option<u64> {
        self.lacp.as_ref().and_then(Lacp::wake_ns).into_iter().chain(self.holding.values().copied()).min()
    }
}

/// The settings of a member, in LACP's terms.
pub(super) fn settings(bond: &Bond, id: u16, member: &Member) -> Settings {
    let port = NonZeroU16::MIN.saturating_add(id);
    Settings {
        mac: member.mac.unwrap_or_else(|| bond.mac()),
        port,
        priority: member.priority,
        key: member.key,
    }
}
