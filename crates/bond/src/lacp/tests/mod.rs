//! Two ends of a link on a virtual clock. The cases are those with which other implementations are tested,
//! expressed as bits on the wire and durations.

mod codec;
mod limits;
mod negotiation;
mod random;
mod selection;
mod wire;
