//! Which frames weir takes from an interface: the rules, and their translation into what `xdp_take.bpf.c`
//! compares.
//!
//! The program only compares a summary of the frame with values under masks. Everything more complicated is
//! done here, where it can be tested: prefixes, ranges of ports, address families, fragments that follow
//! their service, destination MAC addresses.

use crate::shared::xdp_take::{self as shared, DESTINATION, DPORT, KIND, SOURCE, VNI, WORDS};
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The largest number of masks: the number of different ways in which rules compare (which conditions they
/// have, how long their prefixes are). The program visits the masks one by one.
pub const MASKS_MAX: usize = 128;

/// The largest number of values under all masks. A rule has one value; a rule with a port or VNI has another
/// one for fragments, which it shares with the other rules for its address and protocol. A range of ports has
/// a value for each power of two of which it consists, at most 30. 10 000 services with a port each have at
/// most 20 000 values. The kernel allocates about 120 bytes for each.
pub const VALUES_MAX: usize = 1 << 17;

const FOREIGN: u32 = shared::FOREIGN as u32;
const GROUP: u32 = shared::GROUP as u32;
const FRAGMENT: u32 = shared::FRAGMENT as u32;
const QUESTION: u32 = shared::QUESTION as u32;
const PORT_PRESENT: u32 = 1 << 31;
const ICMP_PRESENT: u32 = 1 << 30;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const ERROR_PRESENT: u32 = 1 << 30;
const VNI_PRESENT: u32 = 1 << 31;
const VNI_BITS: u32 = (1 << 24) - 1;

const ETHER_IPV4: u16 = 0x0800;
const ETHER_ARP: u16 = 0x0806;
const ETHER_IPV6: u16 = 0x86dd;

/// Which part of an interface's traffic weir takes. By default, none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Take {
    /// Whether frames for the MAC addresses of other hosts are taken as well. The interface itself must be
    /// promiscuous too. Never set this on two ports of one switch: both would forward frames that are meant
    /// for neither.
    pub promiscuous: bool,
    /// Exceptions that stay with the kernel although a rule matches: frames that match one of these, whatever
    /// their destination MAC address (`group` has no effect).
    pub leave: Vec<TakeRule>,
    /// A frame is taken if any of these rules matches.
    pub rules: Vec<TakeRule>,
    /// Addresses of the host itself. Rules with a source leave frames to these addresses to the kernel; other
    /// rules do not. A station that answers clients through weir also answers the host itself, for example
    /// its checks and neighbour solicitations.
    pub own: Vec<IpAddr>,
}

impl Take {
    /// Takes everything for this interface, including broadcast and multicast: nothing is left to the kernel.
    #[must_use]
    pub fn all() -> Take {
        Take { rules: vec![TakeRule { group: true, ..TakeRule::default() }], ..Take::default() }
    }
}

/// A rule matches a frame if all of its conditions hold. The default rule matches every frame for the port's
/// own MAC address. Up to two VLAN tags are skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakeRule {
    /// EtherType after the VLAN tags; implied by an address.
    pub ethertype: Option<u16>,
    /// IP protocol, after IPv6 extension headers.
    pub protocol: Option<u8>,
    /// The prefix that must contain the destination address.
    pub destination: Option<Prefix>,
    /// Destination ports; match TCP and UDP only. With ICMP (1) or ICMPv6 (58) as protocol, the message's
    /// type (upper byte) and code.
    pub dport: Option<Ports>,
    /// Source address under an arbitrary mask; never matches a neighbour solicitation. The rule takes nothing
    /// that is sent to the host's [own](Take::own) addresses.
    pub source: Option<MaskedSource>,
    /// The address that an ARP request or a neighbour solicitation asks for; matches nothing else. Not
    /// together with `source`.
    pub asked: Option<IpAddr>,
    /// VXLAN network identifier, 24 bits, in the header after UDP.
    pub vni: Option<u32>,
    /// Whether fragments match. They do not carry the port or VNI.
    pub fragments: Fragments,
    /// Also match broadcast and multicast frames, not only those for the port's own MAC address.
    pub group: bool,
    /// Match ICMP errors instead (RFC 792, RFC 4443 §3), about packets of `protocol` that come from
    /// `destination`, to which the errors are sent, and from these ports.
    pub errors: bool,
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
            asked: None,
            vni: None,
            fragments: Fragments::Also,
            group: false,
            errors: false,
        }
    }
}

/// An address and the number of its leading bits that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The address; bits beyond the length are ignored.
    pub address: IpAddr,
    /// The number of leading bits that count: 0 to 32 for IPv4, 0 to 128 for IPv6.
    pub length: u8,
}

/// A range of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// The lowest port of the range.
    pub first: u16,
    /// The highest port of the range, not below `first`.
    pub last: u16,
}

impl From<u16> for Ports {
    fn from(port: u16) -> Ports {
        Ports { first: port, last: port }
    }
}

impl Ports {
    /// Returns masks and values that together match exactly these ports.
    fn pieces(self) -> Vec<(u32, u32)> {
        let (mut next, last) = (u32::from(self.first), u32::from(self.last));
        let mut pieces = Vec::new();
        while next <= last {
            // The largest power of two that divides `next` and does not lead beyond the end.
            let largest = 1 << next.trailing_zeros().min(16);
            let size = (0..=16)
                .map(|bits| 1_u32 << bits)
                .take_while(|&size| size <= largest && next + size <= last + 1);
            let size = size.last().unwrap_or(1);
            pieces.push((0xffff & !(size - 1), next));
            next += size;
        }
        pieces
    }
}

/// A source address of this version of IP matches if `source & mask == value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskedSource {
    /// The bits that count; an address of the same version as the value.
    pub mask: IpAddr,
    /// The required value of these bits.
    pub value: IpAddr,
}

impl From<IpAddr> for MaskedSource {
    fn from(value: IpAddr) -> MaskedSource {
        let mask = match value {
            IpAddr::V4(_) => Ipv4Addr::BROADCAST.into(),
            IpAddr::V6(_) => Ipv6Addr::from_bits(u128::MAX).into(),
        };
        MaskedSource { mask, value }
    }
}

/// Why a rule is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TakeError {
    /// There are more than [`VALUES_MAX`] values.
    #[error("the rules have {0} values to compare, but an interface has room for {VALUES_MAX}")]
    TooManyValues(usize),
    /// There are more than [`MASKS_MAX`] masks.
    #[error(
        "the rules use {0} combinations of conditions, prefix lengths and port ranges, but an interface \
         supports at most {MASKS_MAX}: use fewer prefix lengths"
    )]
    TooManyMasks(usize),
    /// A range of ports ends before it begins.
    #[error("the range of ports from {first} to {last} is empty")]
    PortsEmpty {
        /// The range's lowest port.
        first: u16,
        /// The range's highest port.
        last: u16,
    },
    /// The kernel refuses a value, usually for lack of memory.
    #[error("the kernel rejects the rules: {0}")]
    Refused(String),
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
        value: IpAddr,
        /// Its mask.
        mask: IpAddr,
    },
    /// The rule has addresses of two families, or an EtherType that matches neither.
    #[error("the rule mixes IPv4, IPv6 and ARP, or its EtherType does not match its addresses")]
    FamiliesDiffer,
}

/// The words of a frame's summary, or the bits of them that count.
pub(crate) type FrameSummary = [u32; WORDS];

/// A mask and a value for each word of a frame's summary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) mask: FrameSummary,
    pub(crate) value: FrameSummary,
}

impl Entry {
    const ANY: Entry = Entry { mask: [0; WORDS], value: [0; WORDS] };

    fn require(&mut self, word: usize, mask: u32, value: u32) {
        self.mask[word] |= mask;
        self.value[word] |= value & mask;
    }
}

/// A mask, and the values that match under it: at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Masked {
    pub(crate) mask: FrameSummary,
    pub(crate) values: HashSet<FrameSummary>,
    /// Whether matching frames stay with the kernel; otherwise they are taken.
    pub(crate) leaves: bool,
}

/// All rules by their masks. The first mask under which a frame matches determines what happens to the frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Compiled(pub(crate) Vec<Masked>);

impl Take {
    /// Checks that an interface can take these frames.
    ///
    /// # Errors
    /// A rule is invalid, or there are too many.
    pub fn check(&self) -> Result<(), TakeError> {
        compile(self).map(|_| ())
    }
}

/// Translates all rules into masks and values: first the frames that stay with the kernel in any case, then
/// those that are taken regardless of their source, and then those that are taken by their source, except
/// frames to the host.
pub(crate) fn compile(take: &Take) -> Result<Compiled, TakeError> {
    let by_source = |wanted: bool| {
        let rules = take.rules.iter().filter(move |rule| rule.source.is_some() == wanted).cloned();
        masks(rules, take.promiscuous, false)
    };
    let left = |rules: Vec<TakeRule>| {
        let whole = rules.into_iter().map(|rule| TakeRule { group: true, ..rule });
        masks(whole, true, true)
    };
    let all = [left(take.leave.clone())?, by_source(false)?, left(for_host(take))?, by_source(true)?];
    let compiled = Compiled(all.concat());
    let values = compiled.0.iter().map(|one| one.values.len()).sum();
    match (compiled.0.len(), values) {
        (..=MASKS_MAX, ..=VALUES_MAX) => Ok(compiled),
        (..=MASKS_MAX, values) => Err(TakeError::TooManyValues(values)),
        (masks, _) => Err(TakeError::TooManyMasks(masks)),
    }
}

/// Returns what rules with a source leave to the kernel, for the IP versions that they use.
fn for_host(take: &Take) -> Vec<TakeRule> {
    let sources = take.rules.iter().filter_map(|rule| rule.source);
    let [v4, v6] = [false, true].map(|v6| sources.clone().any(|source| source.value.is_ipv6() == v6));
    let own = take.own.iter().filter(|own| if own.is_ipv6() { v6 } else { v4 });
    let whole = |&address: &IpAddr| {
        let length = if address.is_ipv6() { 128 } else { 32 };
        TakeRule { destination: Some(Prefix { address, length }), ..TakeRule::default() }
    };
    own.map(whole).collect()
}

/// Collects the values of each mask; the masks are in the order of the rules.
fn masks(
    rules: impl Iterator<Item = TakeRule>,
    promiscuous: bool,
    leaves: bool,
) -> Result<Vec<Masked>, TakeError> {
    let mut found = Vec::new();
    for rule in rules {
        entries(&rule, promiscuous, &mut found)?;
    }
    let (mut all, mut places) = (Vec::<Masked>::new(), HashMap::new());
    for Entry { mask, value } in found {
        let place = *places.entry(mask).or_insert(all.len());
        if place == all.len() {
            all.push(Masked { mask, values: HashSet::new(), leaves });
        }
        all[place].values.insert(value);
    }
    Ok(all)
}

/// Appends the entries of a rule.
fn entries(rule: &TakeRule, promiscuous: bool, entries: &mut Vec<Entry>) -> Result<(), TakeError> {
    if rule.errors {
        return errors(rule, promiscuous, entries);
    }
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
        _ => with_ports(&entry, rule, entries)?,
    }
    Ok(())
}

/// Appends the entries of a rule for ICMP errors.
fn errors(rule: &TakeRule, promiscuous: bool, entries: &mut Vec<Entry>) -> Result<(), TakeError> {
    let icmp = if ethertype(rule)? == Some(ETHER_IPV6) { ICMPV6 } else { ICMP };
    let mut entry = base(&TakeRule { protocol: Some(icmp), ..rule.clone() }, promiscuous)?;
    entry.require(VNI, ERROR_PRESENT, ERROR_PRESENT);
    if let Some(protocol) = rule.protocol {
        entry.require(VNI, 0xff << 16, u32::from(protocol) << 16);
    }
    let ports = rule.dport.unwrap_or(Ports { first: 0, last: u16::MAX });
    if ports.first > ports.last {
        return Err(TakeError::PortsEmpty { first: ports.first, last: ports.last });
    }
    entries.extend(ports.pieces().into_iter().map(|(mask, value)| {
        let mut piece = entry.clone();
        piece.require(VNI, mask, value);
        piece
    }));
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
        let (masks, values) = (octets(mask), octets(value));
        if masks.len() != values.len() {
            return Err(TakeError::FamiliesDiffer);
        }
        if masks.iter().zip(&values).any(|(mask, value)| value & !mask != 0) {
            return Err(TakeError::ValueOutsideMask { value, mask });
        }
        let words = |octets: Vec<u8>| -> Vec<u32> {
            octets
                .chunks_exact(4)
                .map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]]))
                .collect()
        };
        for (at, (mask, value)) in words(masks).into_iter().zip(words(values)).enumerate() {
            entry.require(SOURCE + at, mask, value);
        }
        entry.require(KIND, QUESTION, 0);
    }
    if let Some(address) = rule.asked {
        for (at, word) in octets(address).as_chunks::<4>().0.iter().enumerate() {
            entry.require(SOURCE + at, u32::MAX, u32::from_ne_bytes(*word));
        }
        entry.require(KIND, QUESTION, QUESTION);
    }
    Ok(entry)
}

/// Appends the entries of a rule with ports or a VNI.
fn with_ports(entry: &Entry, rule: &TakeRule, entries: &mut Vec<Entry>) -> Result<(), TakeError> {
    let mut entry = entry.clone();
    if let Some(vni) = rule.vni {
        if vni > VNI_BITS {
            return Err(TakeError::VniTooLarge(vni));
        }
        entry.require(VNI, VNI_PRESENT | VNI_BITS, VNI_PRESENT | vni);
    }
    let Some(ports) = rule.dport else {
        entries.push(entry);
        return Ok(());
    };
    if ports.first > ports.last {
        return Err(TakeError::PortsEmpty { first: ports.first, last: ports.last });
    }
    let is_icmp = matches!(rule.protocol, Some(ICMP | ICMPV6));
    let present = if is_icmp { ICMP_PRESENT } else { PORT_PRESENT };
    entries.extend(ports.pieces().into_iter().map(|(mask, value)| {
        let mut piece = entry.clone();
        piece.require(DPORT, present | mask, present | value);
        piece
    }));
    Ok(())
}

/// Returns the EtherType on which all conditions of the rule agree.
fn ethertype(rule: &TakeRule) -> Result<Option<u16>, TakeError> {
    let destination =
        rule.destination.map(|prefix| if prefix.address.is_ipv4() { ETHER_IPV4 } else { ETHER_IPV6 });
    let source = rule.source.map(|source| if source.value.is_ipv4() { ETHER_IPV4 } else { ETHER_IPV6 });
    let asked = rule.asked.map(|asked| if asked.is_ipv4() { ETHER_ARP } else { ETHER_IPV6 });
    let mut named = [rule.ethertype, destination, source, asked].into_iter().flatten();
    let first = named.next();
    if named.any(|other| Some(other) != first) { Err(TakeError::FamiliesDiffer) } else { Ok(first) }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn require_prefix(entry: &mut Entry, prefix: Prefix) -> Result<(), TakeError> {
    let octets = octets(prefix.address);
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
        let mut all = Vec::new();
        entries(&rule, false, &mut all).map(|()| all)
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
        let rule = TakeRule { dport: Some(80.into()), ..to("10.0.0.1", 32) };
        assert_eq!(one(rule.clone()).unwrap().len(), 2);
        assert_eq!(one(TakeRule { fragments: Fragments::No, ..rule.clone() }).unwrap().len(), 1);
        let alone = one(TakeRule { fragments: Fragments::Alone, dport: None, ..rule }).unwrap();
        assert_eq!((alone.len(), alone[0].value[KIND] & FRAGMENT), (1, FRAGMENT));
        assert_eq!(one(to("10.0.0.1", 32)).unwrap().len(), 1);
    }

    #[test]
    fn a_question_is_of_arp_or_of_neighbour_discovery() {
        let asked = |text: &str| TakeRule { asked: Some(text.parse().unwrap()), ..TakeRule::default() };
        let entry = &one(asked("10.0.0.1")).unwrap()[0];
        assert_eq!(entry.value[KIND], u32::from(ETHER_ARP) << 16 | QUESTION);
        assert_eq!(entry.value[SOURCE].to_ne_bytes(), [10, 0, 0, 1]);
        let entry = &one(asked("fd00::1")).unwrap()[0];
        assert_eq!(entry.value[KIND], u32::from(ETHER_IPV6) << 16 | QUESTION);
        assert_eq!(entry.mask[SOURCE..], [u32::MAX; 4]);
        let mixed = TakeRule { asked: asked("10.0.0.1").asked, ..to("10.0.0.1", 32) };
        assert_eq!(one(mixed), Err(TakeError::FamiliesDiffer));
    }

    #[test]
    fn what_cannot_fit_is_refused() {
        let last = |byte| Ipv4Addr::new(0, 0, 0, byte).into();
        let source = MaskedSource { mask: last(3), value: last(4) };
        let refused = one(TakeRule { source: Some(source), ..TakeRule::default() });
        assert!(matches!(refused, Err(TakeError::ValueOutsideMask { .. })));
        assert!(matches!(one(to("10.0.0.1", 33)), Err(TakeError::PrefixTooLong { .. })));
        let mixed = TakeRule { ethertype: Some(0x86dd), ..to("10.0.0.1", 32) };
        assert_eq!(one(mixed), Err(TakeError::FamiliesDiffer));
        assert_eq!(
            one(TakeRule { vni: Some(1 << 24), ..TakeRule::default() }),
            Err(TakeError::VniTooLarge(1 << 24))
        );
        let ports = Ports { first: 2, last: 1 };
        let empty = one(TakeRule { dport: Some(ports), ..TakeRule::default() });
        assert_eq!(empty, Err(TakeError::PortsEmpty { first: 2, last: 1 }));
    }

    #[test]
    fn a_range_of_ports_is_matched_by_few_pieces() {
        for (first, last, most) in [(53, 53, 1), (0, 65_535, 1), (1, 65_534, 30), (1000, 2000, 9), (0, 1, 1)]
        {
            let pieces = Ports { first, last }.pieces();
            assert!(pieces.len() <= most, "{first}-{last}: {pieces:?}");
            for port in 0..=u16::MAX {
                let fitting = pieces.iter().filter(|(mask, value)| u32::from(port) & mask == *value).count();
                assert_eq!(fitting, usize::from((first..=last).contains(&port)), "{port} of {first}-{last}");
            }
        }
    }

    #[test]
    fn services_share_masks_and_fragments() {
        let service = |vip: u32, dport: u16| {
            let address = IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + vip));
            TakeRule {
                destination: Some(Prefix { address, length: 32 }),
                protocol: Some(6),
                dport: Some(dport.into()),
                ..TakeRule::default()
            }
        };
        let rules = (0..10_000).map(|n| service(n / 10, 1 + n as u16 % 10)).collect();
        let Compiled(taken) = compile(&Take { rules, ..Take::default() }).unwrap();
        let counts: Vec<usize> = taken.iter().map(|one| one.values.len()).collect();
        assert_eq!(counts, [1_000, 10_000], "fragments of a thousand addresses, and the services");
    }

    #[test]
    fn what_is_meant_for_the_host_is_left_before_sources_are_compared() {
        let own = ["10.0.0.1", "10.0.0.2", "fd00::1"].map(|own| own.parse().unwrap()).to_vec();
        let from = |source: &str| {
            let source: IpAddr = source.parse().unwrap();
            TakeRule { source: Some(source.into()), ..TakeRule::default() }
        };
        let kinds = |rules: &[TakeRule]| -> Vec<(bool, usize)> {
            let take = Take { own: Vec::clone(&own), rules: rules.to_vec(), ..Take::default() };
            compile(&take).unwrap().0.iter().map(|one| (one.leaves, one.values.len())).collect()
        };
        let v4 = [from("10.0.0.9"), to("10.0.0.1", 32)];
        assert_eq!(kinds(&v4), [(false, 1), (true, 2), (false, 1)], "rules that name the address come first");
        assert_eq!(kinds(&v4[1..]), [(false, 1)], "without sources nothing is left");
        let v6 = kinds(&[from("fd00::9"), from("fd00::8")]);
        assert_eq!(v6, [(true, 1), (false, 2)]);
    }

    #[test]
    fn only_so_many_masks_and_values_fit() {
        let lengths = (0..=128).map(|length| to("fd00::1", length));
        let many = Take { rules: lengths.collect(), ..Take::default() };
        assert_eq!(many.check(), Err(TakeError::TooManyMasks(129)));
        let one = |n: usize| to(&Ipv4Addr::from_bits(n as u32).to_string(), 32);
        let rules = |count| Take { rules: (0..count).map(one).collect(), ..Take::default() };
        assert_eq!(rules(VALUES_MAX).check(), Ok(()));
        assert_eq!(rules(VALUES_MAX + 1).check(), Err(TakeError::TooManyValues(VALUES_MAX + 1)));
    }
}
