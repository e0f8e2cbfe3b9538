//! Which frames weir takes from an interface: the rules, and their translation into what `xdp_take.bpf.c`
//! compares.
//!
//! The program only compares a summary of the frame with masks and values. Everything more complicated is
//! done here, where it can be tested: prefixes, address families, fragments that follow their service,
//! destination MAC addresses.

use std::net::{IpAddr, Ipv4Addr};

/// The largest number of rules. Each may need a second entry for fragments, and the program visits them one
/// by one.
pub const RULES_MAX: usize = 64;

/// Words in a frame's summary, in the order of the enum in `xdp_take.bpf.c`.
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

/// Which part of an interface's traffic weir takes. By default, none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Take {
    /// Also take frames for the MAC addresses of other hosts. The interface itself must be promiscuous too.
    /// Never set this on two ports of one switch: both would forward the frames meant for neither.
    pub promiscuous: bool,
    /// What stays with the kernel although a rule matches it: frames that match one of these, whatever their
    /// destination MAC address (`group` has no effect).
    pub leave: Vec<TakeRule>,
    /// A frame is taken if any of these rules matches.
    pub rules: Vec<TakeRule>,
}

impl Take {
    /// Takes everything for this interface, including broadcast and multicast: nothing is left for the
    /// kernel.
    #[must_use]
    pub fn all() -> Take {
        Take { rules: vec![TakeRule { group: true, ..TakeRule::default() }], ..Take::default() }
    }
}

/// A rule matches a frame if all the conditions present hold. The default rule matches every frame for the
/// port's own MAC address. Up to two VLAN tags are skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakeRule {
    /// EtherType behind the VLAN tags; implied by an address.
    pub ethertype: Option<u16>,
    /// IP protocol, behind IPv6 extension headers.
    pub protocol: Option<u8>,
    /// Destination address.
    pub destination: Option<Prefix>,
    /// Destination port; matches TCP and UDP only.
    pub dport: Option<u16>,
    /// IPv4 source address under an arbitrary mask.
    pub source: Option<MaskedSource>,
    /// VXLAN network identifier in the header behind UDP.
    pub vni: Option<u32>,
    /// Whether fragments match. They do not show their port or VNI.
    pub fragments: Fragments,
    /// Also match broadcast and multicast frames, not only those for the port's own MAC address.
    pub group: bool,
}

/// Which fragments match, among the frames that satisfy the other conditions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fragments {
    /// Both fragments and whole packets: a service would break if its fragments went elsewhere.
    #[default]
    Also,
    /// Only fragments.
    Alone,
    /// Only whole packets, if the rule has a port or VNI; without one, fragments match as well.
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

/// An address and the number of its leading bits that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The address; bits beyond the length are ignored.
    pub address: IpAddr,
    /// 0..=32 or 0..=128.
    pub length: u8,
}

/// An IPv4 source matches if `source & mask == value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskedSource {
    /// The bits that count.
    pub mask: Ipv4Addr,
    /// Their required value.
    pub value: Ipv4Addr,
}

/// Why a rule is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TakeError {
    /// There are more than [`RULES_MAX`] rules.
    #[error("{0} take rules, but an interface has room for {RULES_MAX}: merge some")]
    TooMany(usize),
    /// A prefix is longer than its address.
    #[error("the prefix length {length} is longer than the address {address}")]
    PrefixTooLong {
        /// Address of the prefix.
        address: IpAddr,
        /// The invalid length.
        length: u8,
    },
    /// A VNI has more than 24 bits.
    #[error("VNI {0} does not fit into 24 bits")]
    VniTooLarge(u32),
    /// A source value has bits outside its mask.
    #[error("the source value {value} has bits outside the mask {mask}, so it matches no frame")]
    ValueOutsideMask {
        /// The source value.
        value: Ipv4Addr,
        /// Its mask.
        mask: Ipv4Addr,
    },
    /// The rule has addresses of two families, or an EtherType of neither.
    #[error("the rule mixes IPv4 and IPv6, or its ethertype is not that of its addresses")]
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

/// The entries of all rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Compiled {
    /// What stays with the kernel.
    pub(crate) left: Vec<Entry>,
    /// What is taken of the rest.
    pub(crate) taken: Vec<Entry>,
}

/// Translates all rules into entries.
pub(crate) fn compile(take: &Take) -> Result<Compiled, TakeError> {
    let rules = take.rules.len() + take.leave.len();
    if rules > RULES_MAX {
        return Err(TakeError::TooMany(rules));
    }
    let mut compiled = Compiled { left: Vec::new(), taken: Vec::new() };
    for rule in &take.leave {
        entries(&TakeRule { group: true, ..rule.clone() }, true, &mut compiled.left)?;
    }
    for rule in &take.rules {
        entries(rule, take.promiscuous, &mut compiled.taken)?;
    }
    Ok(compiled)
}

/// Appends the entries of a rule.
fn entries(rule: &TakeRule, promiscuous: bool, entries: &mut Vec<Entry>) -> Result<(), TakeError> {
    let entry = base(rule, promiscuous)?;
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
    Ok(())
}

/// Builds the entry of a rule, except for ports and VNI.
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

/// Returns the EtherType on which all conditions of the rule agree.
fn ethertype(rule: &TakeRule) -> Result<Option<u16>, TakeError> {
    let destination =
        rule.destination.map(|prefix| if prefix.address.is_ipv4() { ETHER_IPV4 } else { ETHER_IPV6 });
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
        compile(&Take { rules: vec![rule], ..Take::default() }).map(|compiled| compiled.taken)
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
        assert_eq!(
            one(TakeRule { vni: Some(1 << 24), ..TakeRule::default() }),
            Err(TakeError::VniTooLarge(1 << 24))
        );
        let rule = TakeRule::default();
        let many = Take { leave: vec![rule.clone()], rules: vec![rule; 64], ..Take::default() };
        assert_eq!(compile(&many), Err(TakeError::TooMany(65)));
    }
}
