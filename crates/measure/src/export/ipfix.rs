//! IPFIX (RFC 7011): flow records as messages for collectors such as nfdump and pmacct. Messages have the
//! headers of §3.1, sets those of §3.3, templates those of §3.4.1 and options templates those of §3.4.2. The
//! information elements are those of IANA's registry (RFC 7012).
//!
//! There are four templates: IPv4 and IPv6, each outside and inside a tunnel with an id. They are sent ahead
//! of the next records when [`Encoder::announce`] requests it, so the sender decides how often: periodically
//! over UDP, because datagrams get lost (RFC 7011 section 8.4), and once per connection over TCP.
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
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
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

/// The minimum size limit of a message: all templates and one record of maximum length.
pub const LIMIT_LEAST: usize = 512;

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

/// The contents of records of names.
const NAMED: [Element; 3] = [DOMAIN, INGRESS, NAME];
const NAMED_BYTES: usize = (DOMAIN.1 + INGRESS.1 + NAME.1) as usize;

/// The kinds of records, each with its own template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RecordKind {
    ipv6: bool,
    tunnelled: bool,
}

impl RecordKind {
    const ALL: [RecordKind; 4] = [
        RecordKind { ipv6: false, tunnelled: false },
        RecordKind { ipv6: true, tunnelled: false },
        RecordKind { ipv6: false, tunnelled: true },
        RecordKind { ipv6: true, tunnelled: true },
    ];

    fn of(key: &FlowKey) -> RecordKind {
        RecordKind { ipv6: key.src().is_ipv6(), tunnelled: key.vni().is_some() }
    }

    fn template(self) -> u16 {
        FIRST_TEMPLATE + u16::from(self.ipv6) + 2 * u16::from(self.tunnelled)
    }

    fn elements(self) -> impl Iterator<Item = Element> {
        let own = match self.ipv6 {
            true => [SRC_IPV6, DST_IPV6, ICMP_IPV6],
            false => [SRC_IPV4, DST_IPV4, ICMP_IPV4],
        };
        own.into_iter().chain(COMMON).chain(self.tunnelled.then_some(SEGMENT))
    }

    fn bytes(self) -> usize {
        self.elements().map(|(_, bytes)| usize::from(bytes)).sum()
    }
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
        Encoder { domain, limit, sequence, announces, message, set, records, options, names, numbers, named }
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
        let kind = RecordKind::of(&given.record.key);
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
        self.reserve(kind.template(), kind.bytes(), now_s, &mut send);
        self.record(given, numbers, kind);
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

    /// Passes the message to `send`, if it has records.
    pub fn finish(&mut self, now_s: u32, mut send: impl FnMut(&[u8], u32)) {
        if self.records + self.options == 0 {
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

    fn templates(&mut self) {
        self.open(TEMPLATES);
        for kind in RecordKind::ALL {
            self.put(kind.template().to_be_bytes());
            self.put((kind.elements().count() as u16).to_be_bytes());
            for (element, bytes) in kind.elements() {
                self.put(element.to_be_bytes());
                self.put(bytes.to_be_bytes());
            }
        }
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
mod tests {
    use super::*;
    use crate::FlowRecord;
    use crate::export::End;
    use std::collections::HashMap;
    use weir_packet::Observed;

    /// A decoder that knows IPFIX but not the encoder: it reads templates, and uses them to read records.
    #[derive(Default)]
    struct Decoder {
        templates: HashMap<u16, Vec<Element>>,
        next: Option<u32>,
    }

    type Fields = HashMap<u16, Vec<u8>>;
    /// Egress, ingress and the observation point.
    type Names = [Option<String>; 3];

    fn word(bytes: &[u8], at: usize) -> u16 {
        u16::from_be_bytes(bytes[at..at + 2].try_into().unwrap())
    }

    fn long(bytes: &[u8], at: usize) -> u32 {
        u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    fn number(field: &[u8]) -> u64 {
        field.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    impl Decoder {
        /// Returns the records of a message.
        fn message(&mut self, bytes: &[u8], domain: u32) -> Vec<Fields> {
            assert_eq!((word(bytes, 0), usize::from(word(bytes, 2))), (10, bytes.len()));
            assert_eq!(long(bytes, 12), domain);
            let mut records = Vec::new();
            let mut at = 16;
            while at < bytes.len() {
                let (set, length) = (word(bytes, at), usize::from(word(bytes, at + 2)));
                let body = &bytes[at + 4..at + length];
                match set {
                    2 => self.template_set(body),
                    3 => self.options_set(body),
                    _ => records.extend(self.data(set, body)),
                }
                at += length;
            }
            assert_eq!(at, bytes.len());
            let sequence = long(bytes, 8);
            assert!(self.next.is_none_or(|next| next == sequence), "{:?}, not {sequence}", self.next);
            self.next = Some(sequence.wrapping_add(records.len() as u32));
            records
        }

        fn template_set(&mut self, mut body: &[u8]) {
            while !body.is_empty() {
                let (id, count) = (word(body, 0), usize::from(word(body, 2)));
                let elements = (0..count).map(|at| (word(body, 4 + 4 * at), word(body, 6 + 4 * at)));
                self.templates.insert(id, elements.collect());
                body = &body[4 + 4 * count..];
            }
        }

        fn options_set(&mut self, body: &[u8]) {
            let (id, count) = (word(body, 0), usize::from(word(body, 2)));
            let elements = (0..count).map(|at| (word(body, 6 + 4 * at), word(body, 8 + 4 * at)));
            self.templates.insert(id, elements.collect());
            assert_eq!(body.len(), 6 + 4 * count);
        }

        /// The records of flows among these, with the names that they refer to.
        fn named(records: Vec<Fields>, names: &mut HashMap<u64, String>) -> Vec<(Fields, Names)> {
            let mut flows = Vec::new();
            for record in records {
                if let Some(name) = record.get(&83) {
                    let name = String::from_utf8(name.clone()).unwrap();
                    names.insert(number(&record[&10]), name.trim_end_matches('\0').to_string());
                } else {
                    let numbers = [14, 10, 138].map(|element| number(&record[&element]));
                    let named = numbers.map(|one| (one != 0).then(|| names[&one].clone()));
                    flows.push((record, named));
                }
            }
            flows
        }

        fn data(&self, set: u16, mut body: &[u8]) -> Vec<Fields> {
            let mut records = Vec::new();
            let template = self.templates.get(&set).expect("the template came before");
            while !body.is_empty() {
                let mut fields = Fields::new();
                for (element, length) in template {
                    let (field, rest) = body.split_at(usize::from(*length));
                    assert!(fields.insert(*element, field.to_vec()).is_none());
                    body = rest;
                }
                records.push(fields);
            }
            records
        }
    }

    /// A record of each kind in turn.
    fn given(n: u64) -> Given {
        let address = |last: u8, ipv6: bool| -> IpAddr {
            if ipv6 {
                [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last].into()
            } else {
                [10, 0, 0, last].into()
            }
        };
        let (ipv6, vni) = (n % 2 == 1, (n % 4 > 1).then_some(n as u32 % 1000));
        let protocol = if n.is_multiple_of(5) { [1, 58][usize::from(ipv6)] } else { 6 };
        let key = FlowKey::new(address(1, ipv6), address(n as u8, ipv6), protocol, (n as u16, 443), vni);
        let first_ns = 1_790_000_000_000_000_000 + n * 1_000_000;
        let (octets, flags, class, vlan) = (77 * n + 40, n as u8, !(n as u8), n as u16 % 4096);
        let observed = Observed { octets, flags, class, vlan, icmp: 0x801, ..Observed::default() };
        let (packets, bytes, last_ns) = (n + 1, 100 * (n + 1), first_ns + 7_000_000);
        let record = FlowRecord { key, packets, bytes, first_ns, last_ns, observed };
        let end = [End::Idle, End::Active, End::Closed, End::Forced, End::Evicted][n as usize % 5];
        let target = (!n.is_multiple_of(3)).then(|| format!("web/b{}", n % 7).into());
        let ingress = Some(format!("p{}", n % 2).into());
        Given { record, end, target, ingress, point: Some("measure/edge/p0".into()) }
    }

    fn check(fields: &Fields, given: &Given) {
        let record = &given.record;
        let of = |element: u16| number(&fields[&element]);
        let (src, dst) = if record.key.src().is_ipv6() { (27, 28) } else { (8, 12) };
        let bytes = |address: IpAddr| match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        assert_eq!((&fields[&src], &fields[&dst]), (&bytes(record.key.src()), &bytes(record.key.dst())));
        let protocol = record.key.protocol().into();
        assert_eq!((of(7), of(11), of(4)), (record.key.sport().into(), 443, protocol));
        let observed = &record.observed;
        assert_eq!((of(1), of(2), of(352)), (observed.octets, record.packets, record.bytes));
        assert_eq!((of(6), of(5)), (observed.flags.into(), observed.class.into()));
        let icmp = if record.key.src().is_ipv6() { 139 } else { 32 };
        assert_eq!((of(58), of(icmp)), (observed.vlan.into(), if protocol == 6 { 0 } else { 0x801 }));
        assert_eq!((of(152), of(153)), (record.first_ns / 1_000_000, record.last_ns / 1_000_000));
        assert_eq!(of(136), [1, 2, 3, 4, 5][(record.packets - 1) as usize % 5]);
        assert_eq!(fields.get(&351).map(|id| number(id)), record.key.vni().map(u64::from));
    }

    /// Encodes `records` records, with templates before every `announce`th.
    fn messages(encoder: &mut Encoder, records: u64, announce: u64) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        for n in 0..records {
            if n % announce == 0 {
                encoder.announce();
            }
            encoder.add(&given(n), 7, |message, _| all.push(message.to_vec()));
        }
        encoder.finish(7, |message, _| all.push(message.to_vec()));
        all
    }

    #[test]
    fn a_decoder_reads_what_was_encoded_and_sequence_numbers_count_records() {
        for limit in [LIMIT_LEAST, 600, 1400, 65_535] {
            let mut encoder = Encoder::new(42, limit);
            let all = messages(&mut encoder, 5_000, 999);
            assert!(all.iter().all(|message| message.len() <= limit));
            let mut decoder = Decoder::default();
            let mut names = HashMap::new();
            let records = all.iter().flat_map(|message| decoder.message(message, 42)).collect();
            let decoded = Decoder::named(records, &mut names);
            assert_eq!((decoded.len(), names.len()), (5_000, 7 + 2 + 1));
            for (n, (fields, names)) in (0..).zip(&decoded) {
                let given = given(n);
                check(fields, &given);
                let wanted = [&given.target, &given.ingress, &given.point];
                assert_eq!(names.each_ref().map(Option::as_deref), wanted.map(Option::as_deref));
            }
        }
    }

    #[test]
    fn templates_come_first_and_again_when_asked_for() {
        let mut encoder = Encoder::new(1, 1400);
        let all = messages(&mut encoder, 1_000, 100);
        let with = all.iter().filter(|message| word(message, 16) == 2).count();
        assert_eq!((word(&all[0], 16), with), (2, 10));
    }

    #[test]
    fn a_restart_begins_with_templates_at_sequence_number_zero() {
        let mut encoder = Encoder::new(1, 1400);
        messages(&mut encoder, 10, 100);
        encoder.add(&given(1), 7, |_, _| panic!("it fits"));
        assert_eq!(encoder.restart(), 1);
        let again = messages(&mut encoder, 10, 100);
        let mut decoder = Decoder::default();
        let records = again.iter().flat_map(|message| decoder.message(message, 1)).collect();
        let flows = Decoder::named(records, &mut HashMap::new());
        assert_eq!((long(&again[0], 8), flows.len()), (0, 10));
    }

    #[test]
    fn a_name_too_long_is_cut_and_one_too_many_has_no_number() {
        let mut encoder = Encoder::new(1, 1400);
        let mut decoder = Decoder::default();
        let (mut names, mut decoded) = (HashMap::new(), Vec::new());
        let mut send = |message: &[u8], _| {
            decoded.extend(Decoder::named(decoder.message(message, 1), &mut names));
        };
        for n in 0..=NAMES_MAX {
            let target = Some(format!("{n:04}{}", "\u{e4}".repeat(40)).into());
            encoder.add(&Given { target, ingress: None, point: None, ..given(1) }, 7, &mut send);
        }
        encoder.finish(7, &mut send);
        let egress = |at: usize| decoded[at].1[0].as_deref();
        assert_eq!(egress(0), Some(format!("0000{}", "\u{e4}".repeat(30)).as_str()));
        assert_eq!((egress(NAMES_MAX - 1).is_some(), egress(NAMES_MAX)), (true, None));
    }

    #[test]
    fn without_records_there_is_no_message() {
        Encoder::new(1, 1400).finish(7, |_, _| panic!("an empty message"));
    }
}
