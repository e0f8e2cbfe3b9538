//! Why a PDU was refused. A refused PDU has no effect except on the counter of its reason.

use thiserror::Error;

/// Why a PDU was refused.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "every variant's sentence is its documentation")]
pub enum Refusal {
    #[error("shorter than the PDU it claims to be")]
    Truncated,
    #[error("not sent to the slow protocols' address and type")]
    NotSlowProtocol,
    #[error("neither LACP nor Marker")]
    Subtype,
    #[error("version 0")]
    Version,
    #[error("a marker that is neither request nor response")]
    TlvType,
    #[error("a TLV of wrong length")]
    TlvLength,
    #[error("its system id is 00:00:00:00:00:00, which means no system")]
    Nobody,
    #[error("our own system id: the link leads back to us")]
    OwnSystem,
    #[error("the link is down")]
    LinkDown,
}

impl Refusal {
    /// All reasons, in the order of their counters.
    pub const ALL: [Refusal; 9] = [
        Refusal::Truncated,
        Refusal::NotSlowProtocol,
        Refusal::Subtype,
        Refusal::Version,
        Refusal::TlvType,
        Refusal::TlvLength,
        Refusal::Nobody,
        Refusal::OwnSystem,
        Refusal::LinkDown,
    ];

    /// Its name in counters.
    pub const fn name(self) -> &'static str {
        match self {
            Refusal::Truncated => "truncated",
            Refusal::NotSlowProtocol => "not_slow_protocol",
            Refusal::Subtype => "subtype",
            Refusal::Version => "version",
            Refusal::TlvType => "tlv_type",
            Refusal::TlvLength => "tlv_length",
            Refusal::Nobody => "nobody",
            Refusal::OwnSystem => "own_system",
            Refusal::LinkDown => "link_down",
        }
    }
}
