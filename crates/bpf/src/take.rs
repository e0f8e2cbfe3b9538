//! Which frames weir takes from an interface: rules, and their translation into what `xdp_take.bpf.c` compares.
//!
//! The program knows only masks and values over a frame's summary, so everything that needs thought is thought here,
//! where it can be tested: prefixes, families, the fragments that follow their service, who the frame is for.

use std::net::{IpAddr, Ipv4Addr};

/// Rules at most. Each may need a second entry for its fragments, and the program walks them one by one.
pub const RULES_MAX: usize = 64;

/// Words of a frame's summary; the order is that of the enum in `xdp_take.bpf.c`.
pub(crate) const WORDS: usize = 11;
const KIND: usize = 0;
const DPORT: usize = 1;
const VNI: usize = 2;
const DESTINATION: usize = 3;
const SOURCE: usize = 7;

const FOREIGN: u32 = 1;
const GROUP: u32 = 2;
const FRAGMENT: u32 = 4;
const VNI_PRESENT: u32 = 1 << 31;
const VNI_BITS: u32 = (1 << 24) - 1;

const ETHER_IPV4: u16 = 0x0800;
const ETHER_IPV6: u16 = 0x86dd;

/// What of an interface's traffic goes to weir. The default is nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Take {
    /// Also frames for other hosts' MAC addresses. Never set it on two ports of one switch: both would forward what is
    /// neither's. The interface itself must be promiscuous too (`ip link set eth0 promisc on`).
    pub promiscuous: bool,
    /// A frame is taken when any of them fits.
    pub rules: Vec<TakeRule>,
}

impl Take {
    /// Everything that is for this interface, broadcast and multicast included: the kernel sees nothing any more.
    #[must_use]
    pub fn all() -> Take {
        Take { promiscuous: false, rules: vec![TakeRule { group: true, ..TakeRule::default() }] }
    }
}

/// One rule: a frame fits when everything that is given is so. The default fits every frame for the port's own MAC.
/// Up to two VLAN tags are looked through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakeRule {
    /// Behind VLAN tags; an address implies it.
    pub ethertype: Option<u16>,
    /// IP protocol, behind IPv6 extension headers.
    pub protocol: Option<u8>,
    /// Destination addresses.
    pub destination: Option<Prefix>,
    /// Destination port; fits TCP and UDP only.
    pub dport: Option<u16>,
    /// IPv4 source addresses by arbitrary mask.
    pub source: Option<MaskedSource>,
    /// VXLAN network identifier, behind the UDP header.
    pub vni: Option<u32>,
    /// What of fragments, which carry no port and no VNI to tell by.
    pub fragments: Fragments,
    /// Also broadcast and multicast frames, not only those for the port's own MAC.
    pub group: bool,
}

/// Which fragments a rule takes, of those that fit otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fragments {
    /// Fragments as well as whole packets: a service whose fragments went elsewhere would be broken.
    #[default]
    Also,
    /// Fragments and nothing else.
    Alone,
    /// With a port or VNI: none.
    No,
}

impl Default for TakeRule {
    fn default() -> TakeRule {
        TakeRule {
            ethertype: None,
            protocol: None,
            destination: None,
            dport: None,
            source: None,
            vni: None,
            fragments: Fragments::Also,
            group: false,
        }
    }
}

/// An address and how many of its leading bits count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The address; bits behind the length are ignored.
    pub address: IpAddr,
    /// 0..=32 or 0..=128.
    pub length: u8,
}

/// IPv4 sources with `source & mask == value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskedSource {
    /// Bits that count.
    pub mask: Ipv4Addr,
    /// What they must be.
    pub value: Ipv4Addr,
}

/// A rule that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TakeError {
    /// More than [`RULES_MAX`].
    #[error("{0} take rules, and an interface has room for {RULES_MAX}: join some by a shorter prefix or without port")]
    TooMany(usize),
    /// A prefix longer than the address.
    #[error("prefix length {length} of {address} is longer than the address")]
    PrefixTooLong {
        /// The prefix's address.
        address: IpAddr,
        /// The length asked for.
        length: u8,
    },
    /// A VNI of more than 24 bits.
    #[error("VNI {0} does not fit 24 bits")]
    VniTooLarge(u32),
    /// Source value with bits outside the mask.
    #[error("source value {value} has bits that the mask {mask} does not have, so it fits no frame")]
    ValueOutsideMask {
        /// The value.
        value: Ipv4Addr,
        /// The mask.
        mask: Ipv4Addr,
    },
    /// Addresses of two families, or an ethertype that is neither's.
    #[error("the rule names IPv4 and IPv6, or an ethertype that is neither of its address's: it fits no frame")]
    FamiliesDiffer,
}

/// A mask and a value for each word of a frame's summary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) mask: [u32; WORDS],
    pub(crate) value: [u32; WORDS],
}

impl Entry {
    const ANY: Entry = Entry { mask: [0; WORDS], value: [0; WORDS] };

    fn require(&mut self, word: usize, mask: u32, value: u32) {
        self.mask[word] |= mask;
        self.value[word] |= value & mask;
    }
}

/// All rules as entries.
pub(crate) fn compile(take: &Take) -> Result<Vec<Entry>, TakeError> {
    if take.rules.len() > RULES_MAX {
        return Err(TakeError::TooMany(take.rules.len()));
    }
    let mut entries = Vec::new();
    for rule in &take.rules {
        let entry = base(rule, take.promiscuous)?;
        let whole = rule.dport.is_none() && rule.vni.is_none();
        if rule.fragments == Fragments::Alone || rule.fragments == Fragments::Also && !whole {
            let mut fragments = entry.clone();
            fragments.require(KIND, FRAGMENT, FRAGMENT);
            entries.push(fragments);
        }
        match rule.fragments {
            Fragments::Alone => {}
            _ if whole => entries.push(entry),
            _ => entries.push(with_ports(entry, rule)?),
        }
    }
    Ok(entries)
}

/// Everything but ports and VNI.
fn base(rule: &TakeRule, promiscuous: bool) -> Result<Entry, TakeError> {
    let mut entry = Entry::ANY;
    let unwanted = match (promiscuous, rule.group) {
        (true, true) => 0,
        (true, false) => GROUP,
        (false, true) => FOREIGN,
        (false, false) => FOREIGN | GROUP,
    };
    entry.require(KIND, unwanted, 0);
    if let Some(ethertype) = ethertype(rule)? {
        entry.require(KIND, 0xffff << 16, u32::from(ethertype) << 16);
    }
    if let Some(protocol) = rule.protocol {
        entry.require(KIND, 0xff << 8, u32::from(protocol) << 8);
    }
    if let Some(prefix) = rule.destination {
        require_prefix(&mut entry, prefix)?;
    }
    if let Some(MaskedSource { mask, value }) = rule.source {
        if value.to_bits() & !mask.to_bits() != 0 {
            return Err(TakeError::ValueOutsideMask { value, mask });
        }
        entry.require(SOURCE, u32::from_ne_bytes(mask.octets()), u32::from_ne_bytes(value.octets()));
    }
    Ok(entry)
}

fn with_ports(mut entry: Entry, rule: &TakeRule) -> Result<Entry, TakeError> {
    if let Some(dport) = rule.dport {
        entry.require(DPORT, 0xffff, u32::from(dport));
    }
    if let Some(vni) = rule.vni {
        if vni > VNI_BITS {
            return Err(TakeError::VniTooLarge(vni));
        }
        entry.require(VNI, VNI_PRESENT | VNI_BITS, VNI_PRESENT | vni);
    }
    Ok(entry)
}

/// The one ethertype that everything in the rule agrees on.
fn ethertype(rule: &TakeRule) -> Result<Option<u16>, TakeError> {
    let destination = rule.destination.map(|prefix| if prefix.address.is_ipv4() { ETHER_IPV4 } else { ETHER_IPV6 });
    let source = rule.source.map(|_| ETHER_IPV4);
    let mut named = [rule.ethertype, destination, source].into_iter().flatten();
    let first = named.next();
    if named.any(|other| Some(other) != first) { Err(TakeError::FamiliesDiffer) } else { Ok(first) }
}

fn require_prefix(entry: &mut Entry, prefix: Prefix) -> Result<(), TakeError> {
    let octets = match prefix.address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    if usize::from(prefix.length) > octets.len() * 8 {
        return Err(TakeError::PrefixTooLong { address: prefix.address, length: prefix.length });
    }
    for (word, bytes) in octets.as_chunks::<4>().0.iter().enumerate() {
        let bits = u32::from(prefix.length).saturating_sub(word as u32 * 32).min(32);
        let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
        entry.require(DESTINATION + word, mask.to_be(), u32::from_ne_bytes(*bytes));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(rule: TakeRule) -> Result<Vec<Entry>, TakeError> {
        compile(&Take { promiscuous: false, rules: vec![rule] })
    }

    fn to(address: &str, length: u8) -> TakeRule {
        let destination = Some(Prefix { address: address.parse().unwrap(), length });
        TakeRule { destination, ..TakeRule::default() }
    }

    #[test]
    fn a_prefix_becomes_the_mask_of_its_bits() {
        let entry = &one(to("10.1.2.3", 20)).unwrap()[0];
        assert_eq!(entry.mask[DESTINATION].to_ne_bytes(), [255, 255, 240, 0]);
        assert_eq!(entry.value[DESTINATION].to_ne_bytes(), [10, 1, 0, 0]);
        assert_eq!(entry.value[KIND] >> 16, 0x0800);
        let entry = &one(to("fd00::1", 48)).unwrap()[0];
        assert_eq!(entry.mask[DESTINATION..SOURCE], [u32::MAX, 0xffff_u32.to_le(), 0, 0].map(u32::from_le));
        assert_eq!(one(to("10.0.0.1", 0)).unwrap()[0].mask[DESTINATION], 0);
    }

    #[test]
    fn fragments_follow_a_rule_with_a_port_unless_told_otherwise() {
        let rule = TakeRule { dport: Some(80), ..to("10.0.0.1", 32) };
        assert_eq!(one(rule.clone()).unwrap().len(), 2);
        assert_eq!(one(TakeRule { fragments: Fragments::No, ..rule.clone() }).unwrap().len(), 1);
        let alone = one(TakeRule { fragments: Fragments::Alone, dport: None, ..rule }).unwrap();
        assert_eq!((alone.len(), alone[0].value[KIND] & FRAGMENT), (1, FRAGMENT));
        assert_eq!(one(to("10.0.0.1", 32)).unwrap().len(), 1);
    }

    #[test]
    fn what_cannot_fit_is_refused() {
        let source = MaskedSource { mask: Ipv4Addr::new(0, 0, 0, 3), value: Ipv4Addr::new(0, 0, 0, 4) };
        let refused = one(TakeRule { source: Some(source), ..TakeRule::default() });
        assert!(matches!(refused, Err(TakeError::ValueOutsideMask { .. })));
        assert!(matches!(one(to("10.0.0.1", 33)), Err(TakeError::PrefixTooLong { .. })));
        let mixed = TakeRule { ethertype: Some(0x86dd), ..to("10.0.0.1", 32) };
        assert_eq!(one(mixed), Err(TakeError::FamiliesDiffer));
        assert_eq!(one(TakeRule { vni: Some(1 << 24), ..TakeRule::default() }), Err(TakeError::VniTooLarge(1 << 24)));
        let many = Take { promiscuous: false, rules: vec![TakeRule::default(); 65] };
        assert_eq!(compile(&many), Err(TakeError::TooMany(65)));
    }
}
