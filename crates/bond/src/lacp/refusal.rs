//! Why a PDU was refused. A refused PDU has no effect except on the counter of its reason.

use thiserror::Error;

macro_rules! refusals {
    ($($id:ident = $name:literal, $why:literal;)*) => {
        /// Why a PDU was refused.
        #[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Hash)]
        pub enum Refusal { $(#[doc = $why] #[error($why)] $id,)* }

        impl Refusal {
            /// All reasons.
            pub const ALL: [Refusal; [$($name),*].len()] = [$(Refusal::$id),*];

            /// Returns its name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Refusal::$id => $name,)* }
            }
        }
    };
}

refusals! {
    Truncated = "truncated", "shorter than the PDU it claims to be";
    NotSlowProtocol = "not_slow_protocol", "not sent to the Slow Protocols address and EtherType";
    Subtype = "subtype", "neither LACP nor Marker";
    Version = "version", "version 0";
    TlvType = "tlv_type", "a marker that is neither request nor response";
    TlvLength = "tlv_length", "a TLV of the wrong length";
    Nobody = "nobody", "its system id is 00:00:00:00:00:00, which means no system";
    OwnSystem = "own_system", "our own system id: the link leads back to us";
    LinkDown = "link_down", "the link is down";
}
