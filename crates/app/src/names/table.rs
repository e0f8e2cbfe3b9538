//! A table of names by address and prefix. An address has the name of the longest prefix that contains it.

use super::{NAMES_MAX, Name, NameKind};
use sha2::{Digest, Sha256};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use weir_control::addresses::NamedAddress;

/// The largest name, in bytes: that of an object of Kubernetes.
const NAME_MAX: usize = 253;
/// The largest name of a namespace, in bytes.
const NAMESPACE_MAX: usize = 63;

/// A prefix: the addresses with the same first bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct NamedPrefix {
    ipv6: bool,
    /// The address, left-aligned, with zeros after the prefix.
    bits: u128,
    length: u8,
}

impl NamedPrefix {
    fn of(address: IpAddr, length: u8) -> NamedPrefix {
        let (ipv6, bits) = match address {
            IpAddr::V4(address) => (false, u128::from(u32::from(address)) << 96),
            IpAddr::V6(address) => (true, u128::from(address)),
        };
        NamedPrefix { ipv6, bits: bits & mask(length), length }
    }

    /// Reads an address, or a prefix in the form `10.0.0.0/8`.
    fn parse(text: &str) -> Result<NamedPrefix, String> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let shown = text.escape_debug();
        let wrong = || format!("`{shown}` is not an address or a prefix such as 10.0.0.0/24");
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv6() { 128 } else { 32 };
        let length: u8 = match length {
            // An IPv4-mapped IPv6 address is the address of IPv4 packets.
            None => return Ok(NamedPrefix::whole(address.to_canonical())),
            Some(length) => length.parse::<u8>().ok().filter(|length| *length <= most).ok_or_else(wrong)?,
        };
        let prefix = NamedPrefix::of(address, length);
        if prefix.bits != NamedPrefix::whole(address).bits {
            return Err(format!("`{text}` has bits after its prefix: write {prefix}"));
        }
        Ok(prefix)
    }

    fn whole(address: IpAddr) -> NamedPrefix {
        NamedPrefix::of(address, if address.is_ipv6() { 128 } else { 32 })
    }
}

impl std::fmt::Display for NamedPrefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (address, most) = match self.ipv6 {
            true => (IpAddr::V6(Ipv6Addr::from(self.bits)), 128),
            false => (IpAddr::V4(Ipv4Addr::from((self.bits >> 96) as u32)), 32),
        };
        if self.length == most { write!(f, "{address}") } else { write!(f, "{address}/{}", self.length) }
    }
}

fn mask(length: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0)
}

/// The names of addresses and prefixes. An address has the name of the longest prefix that contains it.
#[derive(Clone, Debug, Default)]
pub struct NameTable {
    names: HashMap<NamedPrefix, Arc<Name>>,
    /// The lengths of prefixes, longest first, of IPv4 and IPv6.
    lengths: [Vec<u8>; 2],
    /// The sum of the fingerprints of all names, which does not depend on their order.
    sum: u128,
}

impl NameTable {
    /// Returns the name of an address, with the length of the longest prefix that has one.
    #[must_use]
    pub fn find(&self, address: IpAddr) -> Option<(u8, &Arc<Name>)> {
        let lengths = &self.lengths[usize::from(address.is_ipv6())];
        lengths.iter().find_map(|length| Some((*length, self.names.get(&NamedPrefix::of(address, *length))?)))
    }

    /// Returns the number of names.
    #[must_use]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Returns true if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Returns the tag of the names, which does not depend on their order.
    #[must_use]
    pub fn tag(&self) -> String {
        format!("{:032x}", self.sum)
    }

    /// Returns all names, in the order of their addresses.
    #[must_use]
    pub fn all(&self) -> Vec<NamedAddress> {
        let mut all: Vec<(&NamedPrefix, &Arc<Name>)> = self.names.iter().collect();
        all.sort_unstable_by_key(|(prefix, _)| **prefix);
        all.into_iter().map(|(prefix, name)| named(*prefix, name)).collect()
    }
}

/// Returns a name with its address, in the form in which clients set it.
fn named(prefix: NamedPrefix, name: &Name) -> NamedAddress {
    let text = |word: &Arc<str>| word.to_string();
    NamedAddress {
        address: prefix.to_string(),
        name: name.name.to_string(),
        namespace: name.namespace.as_ref().map(text),
        kind: name.kind.word().to_string(),
        node: name.node.as_ref().map(text),
    }
}

/// Returns the fingerprint of a name and its address.
fn fingerprint(prefix: NamedPrefix, name: &Name) -> u128 {
    let NamedAddress { address, name, namespace, kind, node } = named(prefix, name);
    let mut hash = Sha256::new();
    for part in [Some(address), Some(name), namespace, Some(kind), node] {
        // The length comes first, so that different sequences differ.
        let length = part.as_ref().map_or(u32::MAX, |part| part.len() as u32);
        hash.update(length.to_le_bytes());
        hash.update(part.unwrap_or_default());
    }
    let all = hash.finalize();
    all.iter().take(16).fold(0, |number, byte| number << 8 | u128::from(*byte))
}

/// A name as it was written.
#[derive(Clone, Copy, Debug, Default)]
pub struct RawName<'a> {
    /// The address or prefix.
    pub address: &'a str,
    /// The name, at most 253 bytes.
    pub name: &'a str,
    /// The namespace that the name belongs to, at most 63 bytes.
    pub namespace: Option<&'a str>,
    /// The word of the kind, one of [`NameKind::WORDS`]; without one, the kind is `other`.
    pub kind: Option<&'a str>,
    /// The name of the node that the named object runs on, at most 253 bytes.
    pub node: Option<&'a str>,
}

/// Why a name cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongName {
    /// The field that is wrong.
    pub field: &'static str,
    /// What is wrong, in a sentence.
    pub why: String,
    /// The place that was given for the name that the address already has.
    pub first: Option<u32>,
}

/// Checks names one by one and collects them in a [`NameTable`].
#[derive(Debug, Default)]
pub struct NameTableBuilder {
    table: NameTable,
    places: HashMap<NamedPrefix, u32>,
    lengths: [BTreeSet<u8>; 2],
    /// Strings that many names share.
    words: HashSet<Arc<str>>,
}

impl NameTableBuilder {
    /// Adds a name. If another name with the same address follows, its error contains this `place`, so that
    /// the caller can report it.
    ///
    /// # Errors
    /// A field is wrong, the address has a name already, or there are too many names.
    pub fn add(&mut self, raw: &RawName<'_>, place: u32) -> Result<(), WrongName> {
        let of = |field| move |why| WrongName { field, why, first: None };
        let prefix = NamedPrefix::parse(raw.address).map_err(of("address"))?;
        text("name", raw.name, NAME_MAX).map_err(of("name"))?;
        raw.namespace
            .map_or(Ok(()), |word| text("namespace", word, NAMESPACE_MAX))
            .map_err(of("namespace"))?;
        raw.node.map_or(Ok(()), |word| text("node", word, NAME_MAX)).map_err(of("node"))?;
        let kind = match raw.kind {
            None => NameKind::Other,
            Some(word) => {
                let found = NameKind::WORDS.into_iter().find(|(other, _)| *other == word);
                let words = NameKind::WORDS.map(|(word, _)| word).join(", ");
                let wrong = || format!("`{}` is not a kind: {words}", word.escape_debug());
                found.ok_or_else(wrong).map_err(of("kind"))?.1
            }
        };
        if let Some(first) = self.places.get(&prefix) {
            let why = format!("{prefix} has a name already, `{}`", self.table.names[&prefix]);
            return Err(WrongName { field: "address", why, first: Some(*first) });
        }
        if self.table.len() == NAMES_MAX {
            let why = format!("there are more than {NAMES_MAX} names: name prefixes instead of addresses");
            return Err(of("address")(why));
        }
        let node = raw.node.or((kind == NameKind::Node).then_some(raw.name));
        let name = Name {
            name: raw.name.into(),
            namespace: raw.namespace.map(|word| self.shared(word)),
            kind,
            node: node.map(|word| self.shared(word)),
        };
        self.table.sum = self.table.sum.wrapping_add(fingerprint(prefix, &name));
        self.table.names.insert(prefix, Arc::new(name));
        self.places.insert(prefix, place);
        self.lengths[usize::from(prefix.ipv6)].insert(prefix.length);
        Ok(())
    }

    /// Returns the table of all names that were added.
    #[must_use]
    pub fn build(self) -> NameTable {
        let lengths = self.lengths.map(|lengths| lengths.into_iter().rev().collect());
        NameTable { lengths, ..self.table }
    }

    fn shared(&mut self, word: &str) -> Arc<str> {
        if let Some(known) = self.words.get(word) {
            return known.clone();
        }
        let new: Arc<str> = word.into();
        self.words.insert(new.clone());
        new
    }
}

/// Checks a text that will be displayed, including on terminals.
fn text(what: &str, text: &str, most: usize) -> Result<(), String> {
    // Characters that change the direction of text can make it look like another one.
    let is_hidden = |one: char| {
        one.is_control()
            || matches!(one, '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if text.is_empty() {
        return Err(format!("a {what} cannot be empty: leave the field out, or write one"));
    }
    if text.len() > most {
        return Err(format!("this {what} has {} bytes; it may have at most {most}", text.len()));
    }
    match text.chars().find(|one| is_hidden(*one)) {
        Some(one) => Err(format!("this {what} has a control character, {}", one.escape_unicode())),
        None => Ok(()),
    }
}
