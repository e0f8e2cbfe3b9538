//! What an operator should read of. A partner decides how often such things happen, so each kind is let through four
//! times and then once in half a minute, with the number of those that were not.

use super::info::System;
use super::refusal::Refusal;
use std::fmt;

/// Notices of a kind that are let through at once.
const BURST: u64 = 4;
/// One more is allowed after each.
const REFILL_NS: u64 = 30_000_000_000;

/// Something worth a line in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The link leads back to our own system.
    Loop,
    /// A PDU was refused.
    Refused(Refusal),
    /// The partner has been silent for too long.
    Expired {
        /// Who.
        partner: System,
    },
    /// Somebody else answers.
    PartnerChanged {
        /// Who did.
        from: System,
        /// Who does.
        to: System,
    },
    /// The partner or a key differs from the aggregator in use: the member stays out.
    NotSelected {
        /// Who is there.
        partner: System,
        /// Its key.
        key: u16,
    },
    /// We have been out of sync for a minute.
    ActorChurn,
    /// The partner has been out of sync for a minute.
    PartnerChurn,
}

const KINDS: usize = 6 + Refusal::ALL.len();

impl Notice {
    fn kind(&self) -> usize {
        match self {
            Notice::Loop => 0,
            Notice::Expired { .. } => 1,
            Notice::PartnerChanged { .. } => 2,
            Notice::NotSelected { .. } => 3,
            Notice::ActorChurn => 4,
            Notice::PartnerChurn => 5,
            Notice::Refused(refusal) => 6 + *refusal as usize,
        }
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Loop => f.write_str("loop: the link leads back to our own LACP system"),
            Notice::Refused(refusal) => write!(f, "LACPDU refused: {refusal}"),
            Notice::Expired { partner } => write!(f, "LACP partner {partner} is silent"),
            Notice::PartnerChanged { from, to } => write!(f, "LACP partner is {to}, and was {from}"),
            Notice::NotSelected { partner, key } => {
                write!(f, "not used: LACP partner {partner} key {key} is another than the bond's")
            }
            Notice::ActorChurn => f.write_str("churn: not in an aggregator for 60 s"),
            Notice::PartnerChurn => f.write_str("churn: LACP partner not in sync for 60 s"),
        }
    }
}

/// A member's notices, each with how many of its kind were kept back before it.
#[derive(Clone, Debug, Default)]
pub(super) struct Notices {
    pub pending: Vec<(Notice, u64)>,
    kinds: [Allowance; KINDS],
}

impl Notices {
    pub(super) fn add(&mut self, now_ns: u64, notice: Notice) {
        if let Some(kept_back) = self.kinds[notice.kind()].take(now_ns) {
            self.pending.push((notice, kept_back));
        }
    }
}

/// A bucket of tokens, kept as the time when it would be full again.
#[derive(Clone, Copy, Debug, Default)]
struct Allowance {
    full_ns: u64,
    kept_back: u64,
}

impl Allowance {
    fn take(&mut self, now_ns: u64) -> Option<u64> {
        let full_ns = self.full_ns.max(now_ns).saturating_add(REFILL_NS);
        if full_ns.saturating_sub(now_ns) > BURST * REFILL_NS {
            self.kept_back += 1;
            return None;
        }
        self.full_ns = full_ns;
        Some(std::mem::take(&mut self.kept_back))
    }
}
