//! Packet in, packet out, for a program outside weir. See README.md.

mod app;
mod datagram;
#[cfg(test)]
mod tests;

pub use app::{CLIENTS_MAX, External};
pub use datagram::{Datagram, HEADER_BYTES, Kind, Problem, VERSION};
