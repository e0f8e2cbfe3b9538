//! Why a PDU was refused. A refused PDU changes nothing but the counter of its reason.

use thiserror::Error;

/// Why.
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
    #[error("a marker that neither asks nor answers")]
    TlvType,
    #[error("a TLV of wrong length")]
    TlvLength,
    #[error("its sender is nobody: system id 00:00:00:00:00:00")]
    Nobody,
    #[error("our own system id: the link leads back to us")]
    OwnSystem,
    #[error("the link is down")]
    LinkDown,
}

impl Refusal {
    /// All of them, in the order of their counters.
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
