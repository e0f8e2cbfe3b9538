//! Two ends of a link on a virtual clock. The cases are those used to test other implementations, expressed
//! as bits on the wire and durations.

mod codec;
mod limits;
mod negotiation;
mod random;
mod selection;
mod wire;
