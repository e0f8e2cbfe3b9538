//! Groups whose packets pick a target by source address, so that a client keeps its target.

use crate::Group;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The number of leading bits of a source address with which packets pick a target: all flows from a prefix
/// of this length go to the same target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Affinity {
    /// For IPv4, up to 32.
    pub ipv4: u8,
    /// For IPv6, up to 128.
    pub ipv6: u8,
    /// How long a target is remembered after the last new flow from the prefix, in nanoseconds; 0 if only the
    /// buckets determine the target.
    pub timeout_ns: u64,
}

/// The longest timeout: ten days.
pub const AFFINITY_TIMEOUT_MAX: u64 = 10 * 86_400 * 1_000_000_000;

impl Affinity {
    /// All bits: each address is a client of its own.
    pub const ADDRESS: Affinity = Affinity { ipv4: 32, ipv6: 128, timeout_ns: 0 };

    /// Returns the same affinity without its timeout: the part that picks the bucket.
    #[must_use]
    pub fn prefixes(self) -> Affinity {
        Affinity { timeout_ns: 0, ..self }
    }

    /// Returns the first address of the prefix that contains an address.
    #[must_use]
    pub fn first(self, address: IpAddr) -> IpAddr {
        match address {
            IpAddr::V4(address) => {
                Ipv4Addr::from_bits(address.to_bits() & leading(32, self.ipv4) as u32).into()
            }
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & leading(128, self.ipv6)).into(),
        }
    }
}

/// Returns the first bits of a word of `width` bits.
fn leading(width: u32, bits: u8) -> u128 {
    let low = width.saturating_sub(bits.into());
    let all = u128::MAX >> (128 - width);
    all & u128::MAX.checked_shl(low).unwrap_or(0)
}

impl Group {
    /// Returns whether the targets of sources are remembered.
    #[must_use]
    pub fn remembers(&self) -> bool {
        self.affinity.is_some_and(|affinity| affinity.timeout_ns != 0)
    }

    /// Returns whether packets with a flow key pick by anything other than their select hash.
    #[must_use]
    pub fn picks_by_key(&self) -> bool {
        self.affinity.is_some() || self.fill.fixed_size().is_some()
    }
}
