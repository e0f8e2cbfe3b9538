//! Packets that are assigned by bits of their source address, without a group: each value of the bits has a
//! target.

/// The assignment of packets to targets by bits of their IPv4 source address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BitAssignment {
    /// The name that a group would have.
    pub name: String,
    /// The bits of the source address that count, most significant byte first.
    pub mask: u32,
    /// By value: the name of the target; empty if there is none.
    pub targets: Vec<String>,
}

/// Spreads the low bits of `value` over the bits set in `mask`.
#[must_use]
pub fn spread(value: u32, mask: u32) -> u32 {
    let places = (0..32).filter(|bit| mask & 1 << bit != 0);
    places.enumerate().map(|(from, to)| (value >> from & 1) << to).sum()
}

/// Gathers the bits of `value` that are set in `mask` at the low end: the reverse of [`spread`].
#[must_use]
pub fn gather(value: u32, mask: u32) -> u32 {
    let places = (0..32).filter(|bit| mask & 1 << bit != 0);
    places.enumerate().map(|(to, from)| (value >> from & 1) << to).sum()
}
