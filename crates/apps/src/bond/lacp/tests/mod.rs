//! Two ends on a wire, on a virtual clock. The cases are those that other implementations are tested with, stated by the
//! bits on the wire and the seconds they took.

mod codec;
mod limits;
mod negotiation;
mod random;
mod selection;
mod wire;
