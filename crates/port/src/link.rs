//! What a port's link is like, whatever kind of port it is.

/// The state of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkState {
    /// It has carrier.
    pub up: bool,
    /// Bits per second; `None`: down, or the driver does not know.
    pub speed_bps: Option<u64>,
}
