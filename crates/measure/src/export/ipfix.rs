//! IPFIX (RFC 7011): flow records as messages for collectors such as nfdump and pmacct. Messages have the
//! headers of §3.1, sets those of §3.3, templates those of §3.4.1 and options templates those of §3.4.2. The
//! information elements are those of IANA's registry (RFC 7012).
//!
//! There are four templates: IPv4 and IPv6, each outside and inside a tunnel with an id. They are sent ahead
//! of the next records when [`Encoder::announce`] requests it, so the sender decides how often: periodically
//! over UDP, because datagrams get lost (RFC 7011 section 8.4), and once per connection over TCP. Records of
//! addresses with names have four further templates, which are sent ahead of the first such record.
//!
//! IANA has no elements for the names of the source and the destination. Those of Antrea ([`ENTERPRISE`]) are
//! used, because collectors for Kubernetes know them. weir has no enterprise number, and its own elements
//! would be unknown to every collector. They are strings of variable length (RFC 7011 section 7).
//!
//! A message is an array of bytes of at most the given length. Nothing is sent here, so nothing can fail; a
//! record that the network loses is a gap in the sequence numbers, which collectors count.
//!
//! The port that a flow came from is a number in `ingressInterface`, the target chosen for it (a back end, a
//! member of a bond) one in `egressInterface`, and the pipe that measured it one in `observationPointId`. 0
//! means none. The name of a number is in an options record of the domain: `ingressInterface` and
//! `interfaceDescription`. That is how routers name their interfaces, so collectors show the name: nfdump as
//! `%inam` and `%onam`. Names are sent before the first record that refers to their number, and after the
//! templates whenever these are sent.
//!
//! Bytes: `layer2OctetDeltaCount` is of whole frames without FCS, `octetDeltaCount` of IP packets (RFC 7012):
//! without Ethernet header, VLAN tags and padding, and inside a tunnel of the packets inside.

use super::Given;
use std::borrow::Cow;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use weir_app::names::{Name, NameKind};
use weir_packet::FlowKey;

/// The IPFIX version in the header of a message.
const VERSION: u16 = 10;
/// Bytes in a message's header, and in a set's.
const HEADER: usize = 16;
const SET_HEADER: usize = 4;
/// The sets of templates and of options templates.
const TEMPLATES: u16 = 2;
const OPTIONS: u16 = 3;
/// The first number of a template.
const FIRST_TEMPLATE: u16 = 256;
/// The template of names.
const NAMES: u16 = 260;
/// The maximum number of names: this bounds the data that is retransmitted with templates.
const NAMES_MAX: usize = 4096;

const NS_PER_MS: u64 = 1_000_000;

/// The minimum size limit of a message: more than a record of maximum length.
pub const LIMIT_LEAST: usize = 1024;

/// Information elements: number (IANA) and bytes.
type Element = (u16, u16);

const OCTETS: Element = (1, 8);
const PACKETS: Element = (2, 8);
const PROTOCOL: Element = (4, 1);
const CLASS: Element = (5, 1);
/// The lower eight of sixteen bits. The upper bits are not observed, and may be omitted (RFC 7011 section
/// 6.2).
const TCP_FLAGS: Element = (6, 1);
const ICMP_IPV4: Element = (32, 2);
const VLAN: Element = (58, 2);
const POINT: Element = (138, 8);
const ICMP_IPV6: Element = (139, 2);
const DOMAIN: Element = (149, 4);
const INGRESS: Element = (10, 4);
const EGRESS: Element = (14, 4);
/// The name of an interface. Collectors expect a fixed length; it is padded with zeros.
const NAME: Element = (83, 64);
const SPORT: Element = (7, 2);
const SRC_IPV4: Element = (8, 4);
const DPORT: Element = (11, 2);
const DST_IPV4: Element = (12, 4);
const SRC_IPV6: Element = (27, 16);
const DST_IPV6: Element = (28, 16);
const END_REASON: Element = (136, 1);
const START_MS: Element = (152, 8);
const END_MS: Element = (153, 8);
const SEGMENT: Element = (351, 8);
const OCTETS_L2: Element = (352, 8);

/// The elements that follow the addresses in all templates.
const COMMON: [Element; 15] = [
    SPORT, DPORT, PROTOCOL, OCTETS, PACKETS, START_MS, END_MS, OCTETS_L2, END_REASON, EGRESS, INGRESS, POINT,
    TCP_FLAGS, CLASS, VLAN,
];

/// The enterprise number whose elements name addresses: Antrea's, as in the registry of its library
/// (go-ipfix).
pub const ENTERPRISE: u32 = 56_506;
/// The bit in an element's number that indicates that an enterprise number follows.
const OF_ENTERPRISE: u16 = 1 << 15;
/// The length of strings of variable length.
const VARIABLE: u16 = u16::MAX;
/// The elements that follow in the templates of records with names: namespace and name of the source and of
/// the destination if they are pods, the nodes of both, and the service if the destination is one.
const OF_NAMES: [u16; 7] = [100, 101, 102, 103, 104, 105, 109];
/// The templates of records with names follow those of others and that of names of interfaces.
const FIRST_WITH_NAMES: u16 = NAMES + 1;
/// Bytes of these templates.
const WITH_NAMES_BYTES: usize = 4 * (4 + (3 + COMMON.len()) * 4 + OF_NAMES.len() * 8) + 2 * 4;
/// Longer names and namespaces are truncated to this number of bytes.
const NAME_BYTES: usize = 128;
const NAMESPACE_BYTES: usize = 63;

/// The contents of records of names.
const NAMED: [Element; 3] = [DOMAIN, INGRESS, NAME];
const NAMED_BYTES: usize = (DOMAIN.1 + INGRESS.1 + NAME.1) as usize;

/// The kinds of records, each with its own template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RecordKind {
    ipv6: bool,
    tunnelled: bool,
    /// Whether the source or the destination has a name.
    named: bool,
}

impl RecordKind {
    /// All kinds, with names or without.
    fn all(named: bool) -> [RecordKind; 4] {
        [(false, false), (true, false), (false, true), (true, true)].map(|(ipv6, tunnelled)| RecordKind {
            ipv6,
            tunnelled,
            named,
        })
    }

    fn of(key: &FlowKey, named: bool) -> RecordKind {
        RecordKind { ipv6: key.src().is_ipv6(), tunnelled: key.vni().is_some(), named }
    }

    fn template(self) -> u16 {
        let first = if self.named { FIRST_WITH_NAMES } else { FIRST_TEMPLATE };
        first + u16::from(self.ipv6) + 2 * u16::from(self.tunnelled)
    }

    fn elements(self) -> impl Iterator<Item = Element> {
        let own = match self.ipv6 {
            true => [SRC_IPV6, DST_IPV6, ICMP_IPV6],
            false => [SRC_IPV4, DST_IPV4, ICMP_IPV4],
        };
        own.into_iter().chain(COMMON).chain(self.tunnelled.then_some(SEGMENT))
    }

    /// Returns the bytes of a record, without names.
    fn bytes(self) -> usize {
        self.elements().map(|(_, bytes)| usize::from(bytes)).sum()
    }
}

/// The values of the elements for names, in the order of [`OF_NAMES`]; unknown ones are empty.
fn texts(given: &Given) -> [Cow<'_, str>; 7] {
    let [source, destination] = given.names.each_ref().map(Option::as_deref);
    let ([source_space, source_name], [space, name]) = (pod(source), pod(destination));
    let texts = [source_space, source_name, space, name, node(source), node(destination)];
    let [one, two, three, four, five, six] = texts.map(Cow::Borrowed);
    [one, two, three, four, five, six, Cow::Owned(service(destination))]
}

/// The namespace and the name of a pod.
fn pod(name: Option<&Name>) -> [&str; 2] {
    let Some(Name { name, namespace, .. }) = name.filter(|name| name.kind == NameKind::Pod) else {
        return [""; 2];
    };
    [cut(namespace.as_deref().unwrap_or_default(), NAMESPACE_BYTES), cut(name, NAME_BYTES)]
}

fn node(name: Option<&Name>) -> &str {
    cut(name.and_then(|name| name.node.as_deref()).unwrap_or_default(), NAME_BYTES)
}

/// The namespace and the name of a service, as one text.
fn service(name: Option<&Name>) -> String {
    let service = name.filter(|name| name.kind == NameKind::Service);
    let text = service.map(ToString::to_string).unwrap_or_default();
    cut(&text, NAMESPACE_BYTES + 1 + NAME_BYTES).to_string()
}

/// Truncates a text to at most `most` bytes.
fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

/// Turns records into messages.
#[derive(Debug)]
pub struct Encoder {
    domain: u32,
    limit: usize,
    /// Records in earlier messages, including those of names, modulo 2^32.
    sequence: u32,
    announces: bool,
    message: Vec<u8>,
    /// The template of the set at the end of the message, and where the set begins.
    set: Option<(u16, usize)>,
    /// The records of flows and of names in the message.
    records: u32,
    options: u32,
    /// Names in the order of their numbers, from 1, and how many were sent since the templates were sent.
    names: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, u32>,
    named: usize,
    /// Whether the templates of records with names have been sent since the others were last sent.
    with_names: bool,
}

impl Encoder {
    /// Creates an encoder for messages of an observation domain with at most `limit` bytes, between
    /// [`LIMIT_LEAST`] and 65,535. The first message begins with the templates.
    #[must_use]
    pub fn new(domain: u32, limit: usize) -> Encoder {
        let limit = limit.clamp(LIMIT_LEAST, usize::from(u16::MAX));
        let message = Vec::with_capacity(limit);
        let (names, numbers) = Default::default();
        let (sequence, announces, set, records, options, named) = (0, true, None, 0, 0, 0);
        Encoder {
            domain,
            limit,
            sequence,
            announces,
            message,
            set,
            records,
            options,
            names,
            numbers,
            named,
            with_names: false,
        }
    }

    /// Makes the next message begin with the templates.
    pub fn announce(&mut self) {
        self.announces = true;
    }

    /// Restarts for another connection: with templates, and at sequence number 0. Records in an incomplete
    /// message are lost; returns how many were lost.
    pub fn restart(&mut self) -> u32 {
        let lost = self.records;
        let (names, numbers) = (std::mem::take(&mut self.names), std::mem::take(&mut self.numbers));
        *self = Encoder { names, numbers, ..Encoder::new(self.domain, self.limit) };
        lost
    }

    /// Appends a record. If it does not fit into the message, the message is first passed to `send`, with the
    /// number of flow records in it; `now_s` is the time of the message, in seconds since 1970.
    pub fn add(&mut self, given: &Given, now_s: u32, mut send: impl FnMut(&[u8], u32)) {
        let texts = texts(given);
        let kind = RecordKind::of(&given.record.key, texts.iter().any(|text| !text.is_empty()));
        let names = [&given.target, &given.ingress, &given.point];
        let numbers = names.map(|name| name.as_ref().map_or(0, |name| self.number(name)));
        if self.message.is_empty() {
            self.begin();
        }
        while self.named < self.names.len() {
            // This may begin a message with templates, and with the first name again.
            self.reserve(NAMES, NAMED_BYTES, now_s, &mut send);
            let name = self.names[self.named].clone();
            self.named += 1;
            self.name(self.named as u32, &name);
        }
        if kind.named && !self.with_names {
            self.reserve(TEMPLATES, WITH_NAMES_BYTES, now_s, &mut send);
            self.templates_of(true);
        }
        let bytes: usize = texts.iter().filter(|_| kind.named).map(|text| 1 + text.len()).sum();
        self.reserve(kind.template(), kind.bytes() + bytes, now_s, &mut send);
        self.record(given, numbers, kind);
        if kind.named {
            texts.iter().for_each(|text| self.text(text));
        }
        self.records += 1;
    }

    /// The number of a name; 0 if there are too many.
    fn number(&mut self, name: &Arc<str>) -> u32 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        if self.names.len() == NAMES_MAX {
            return 0;
        }
        self.names.push(name.clone());
        let number = self.names.len() as u32;
        self.numbers.insert(name.clone(), number);
        number
    }

    /// Makes room for a record of `bytes` bytes in a set.
    fn reserve(&mut self, set: u16, bytes: usize, now_s: u32, send: &mut impl FnMut(&[u8], u32)) {
        let is_open = |encoder: &Encoder| encoder.set.is_some_and(|(open, _)| open == set);
        let header = if is_open(self) { 0 } else { SET_HEADER };
        if self.message.len() + header + bytes > self.limit {
            self.finish(now_s, send);
            self.begin();
        }
        if !is_open(self) {
            self.open(set);
        }
    }

    /// The record of a name.
    fn name(&mut self, number: u32, name: &str) {
        self.put(self.domain.to_be_bytes());
        self.put(number.to_be_bytes());
        let end = self.message.len() + usize::from(NAME.1);
        let bytes = name.floor_char_boundary(usize::from(NAME.1));
        self.message.extend_from_slice(&name.as_bytes()[..bytes]);
        self.message.resize(end, 0);
        self.options += 1;
    }

    /// A string of variable length, of at most 254 bytes.
    fn text(&mut self, text: &str) {
        self.put([text.len() as u8]);
        self.message.extend_from_slice(text.as_bytes());
    }

    /// Passes the message to `send`, if anything was added to it.
    pub fn finish(&mut self, now_s: u32, mut send: impl FnMut(&[u8], u32)) {
        if self.message.is_empty() {
            return;
        }
        self.close();
        let length = self.message.len() as u16;
        self.message[2..4].copy_from_slice(&length.to_be_bytes());
        self.message[4..8].copy_from_slice(&now_s.to_be_bytes());
        send(&self.message, self.records);
        self.sequence = self.sequence.wrapping_add(self.records + self.options);
        (self.records, self.options) = (0, 0);
        self.message.clear();
    }

    /// Begins a message; length and time are filled in at the end.
    fn begin(&mut self) {
        self.put(VERSION.to_be_bytes());
        self.put([0; 6]);
        self.put(self.sequence.to_be_bytes());
        self.put(self.domain.to_be_bytes());
        debug_assert_eq!(self.message.len(), HEADER);
        if std::mem::take(&mut self.announces) {
            self.templates();
            self.named = 0;
        }
    }

    /// The templates of records with names, or of those without, in a set of templates.
    fn templates_of(&mut self, named: bool) {
        for kind in RecordKind::all(named) {
            let names = if named { &OF_NAMES[..] } else { &[] };
            self.put(kind.template().to_be_bytes());
            self.put(((kind.elements().count() + names.len()) as u16).to_be_bytes());
            for (element, bytes) in kind.elements() {
                self.put(element.to_be_bytes());
                self.put(bytes.to_be_bytes());
            }
            for element in names {
                self.put((element | OF_ENTERPRISE).to_be_bytes());
                self.put(VARIABLE.to_be_bytes());
                self.put(ENTERPRISE.to_be_bytes());
            }
        }
        self.with_names = named;
    }

    fn templates(&mut self) {
        self.open(TEMPLATES);
        self.templates_of(false);
        self.open(OPTIONS);
        // The first element is the scope: nfdump looks for the others after it.
        [NAMES, NAMED.len() as u16, 1].iter().for_each(|word| self.put(word.to_be_bytes()));
        for (element, bytes) in NAMED {
            self.put(element.to_be_bytes());
            self.put(bytes.to_be_bytes());
        }
    }

    /// Begins a set; its length is filled in at the end.
    fn open(&mut self, set: u16) {
        self.close();
        self.set = Some((set, self.message.len()));
        self.put(set.to_be_bytes());
        self.put([0; 2]);
    }

    fn close(&mut self) {
        if let Some((_, start)) = self.set.take() {
            let length = (self.message.len() - start) as u16;
            self.message[start + 2..start + 4].copy_from_slice(&length.to_be_bytes());
        }
    }

    /// The elements of a record, in the template's order.
    fn record(&mut self, Given { record, end, .. }: &Given, numbers: [u32; 3], kind: RecordKind) {
        let (key, observed, [egress, ingress, point]) = (&record.key, &record.observed, numbers);
        self.address(key.src());
        self.address(key.dst());
        self.put(record.icmp().unwrap_or_default().to_be_bytes());
        self.put(key.sport().to_be_bytes());
        self.put(key.dport().to_be_bytes());
        self.put([key.protocol()]);
        self.put(observed.octets.to_be_bytes());
        self.put(record.packets.to_be_bytes());
        self.put((record.first_ns / NS_PER_MS).to_be_bytes());
        self.put((record.last_ns / NS_PER_MS).to_be_bytes());
        self.put(record.bytes.to_be_bytes());
        self.put([end.reason()]);
        self.put(egress.to_be_bytes());
        self.put(ingress.to_be_bytes());
        self.put(u64::from(point).to_be_bytes());
        self.put([observed.flags, observed.class]);
        self.put(observed.vlan.to_be_bytes());
        if kind.tunnelled {
            // The upper byte would be the tunnel type (RFC 7133), which a key does not contain.
            self.put(u64::from(key.vni().unwrap_or_default()).to_be_bytes());
        }
    }

    fn address(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(address) => self.put(address.octets()),
            IpAddr::V6(address) => self.put(address.octets()),
        }
    }

    fn put<const N: usize>(&mut self, bytes: [u8; N]) {
        self.message.extend_from_slice(&bytes);
    }
}

#[cfg(test)]
mod tests;
