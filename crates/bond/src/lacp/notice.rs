//! Messages for the operator. The partner controls how often messages arise, so each kind is limited to a
//! burst of four, and then to one every half minute. Each message states how many were suppressed before it.

use super::info::System;
use super::refusal::Refusal;
use std::fmt;

/// Messages of one kind that are allowed at once.
const BURST: u64 = 4;
/// Time until one more is allowed, in nanoseconds.
const REFILL_NS: u64 = 30_000_000_000;

/// A message for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The link leads back to our own system.
    Loop,
    /// A PDU was refused.
    Refused(Refusal),
    /// The partner has been silent for too long.
    Expired {
        /// The partner.
        partner: System,
    },
    /// Another system answers.
    PartnerChanged {
        /// The previous partner.
        from: System,
        /// The new partner.
        to: System,
    },
    /// The partner or a key differs from the aggregator in use, so the member is not used.
    NotSelected {
        /// The partner of this member.
        partner: System,
        /// The partner's key.
        key: u16,
    },
    /// Our end has been out of sync for a minute.
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
            Notice::PartnerChanged { from, to } => write!(f, "LACP partner is now {to}, and was {from}"),
            Notice::NotSelected { partner, key } => {
                write!(f, "not used: LACP partner {partner} key {key} differs from the bond's")
            }
            Notice::ActorChurn => f.write_str("churn: not in an aggregator for 60 s"),
            Notice::PartnerChurn => f.write_str("churn: LACP partner not in sync for 60 s"),
        }
    }
}

/// A member's messages, each with the number of suppressed messages of its kind before it.
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

/// A token bucket, stored as the time at which it will be full again.
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
