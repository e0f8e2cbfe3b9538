//! Groups from which packets pick by their source address, so that a client keeps its target.

use crate::program::Group;

/// The leading bits of source addresses by which packets pick: all flows from a prefix of this length go to
/// the same target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Affinity {
    /// Of IPv4, up to 32.
    pub ipv4: u8,
    /// Of IPv6, up to 128.
    pub ipv6: u8,
}

impl Affinity {
    /// All bits: a client is one address.
    pub const ADDRESS: Affinity = Affinity { ipv4: 32, ipv6: 128 };
}

impl Group {
    /// Returns whether packets with a flow key pick by anything other than their select hash.
    #[must_use]
    pub fn picks_by_key(&self) -> bool {
        self.affinity.is_some() || self.fill.fixed_size().is_some()
    }
}
