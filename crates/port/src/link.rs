//! The state of a port's link, the same for every kind of port.

/// The state of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkState {
    /// Whether the link has carrier.
    pub up: bool,
    /// Bits per second; `None` if the link is down or the driver does not know.
    pub speed_bps: Option<u64>,
}
