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
            body = &body[4..];
            let mut elements = Vec::new();
            for _ in 0..count {
                elements.push((word(body, 0), word(body, 2)));
                body = &body[4..];
                if elements.last().unwrap().0 & 0x8000 != 0 {
                    assert_eq!(long(body, 0), 56_506);
                    body = &body[4..];
                }
            }
            self.templates.insert(id, elements);
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
                let length = match *length {
                    u16::MAX => {
                        let length = u16::from(body[0]);
                        body = &body[1..];
                        length
                    }
                    fixed => fixed,
                };
                let (field, rest) = body.split_at(usize::from(length));
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
    let named = n % 5 > 2;
    let names = ["web-1", "db"].map(|name| named.then(|| named_pod(&format!("{name}-{n}"))));
    Given { record, end, target, ingress, point: Some("measure/edge/p0".into()), names }
}

fn named_pod(name: &str) -> Arc<Name> {
    let (name, namespace) = (name.into(), Some("shop".into()));
    Arc::new(Name { name, namespace, kind: NameKind::Pod, node: Some("n1".into()) })
}

/// The values of the elements of names; `None` if the record has none.
fn texts_of(fields: &Fields) -> Option<[&str; 7]> {
    fields.get(&(100 | 0x8000))?;
    let text = |element: u16| std::str::from_utf8(&fields[&(element | 0x8000)]).unwrap();
    Some([100, 101, 102, 103, 104, 105, 109].map(text))
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
    let names = given.names.each_ref().map(|name| name.as_ref().map(|name| &*name.name));
    let wanted = match names {
        [Some(source), Some(target)] => Some(["shop", source, "shop", target, "n1", "n1", ""]),
        _ => None,
    };
    assert_eq!(texts_of(fields), wanted);
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
    for limit in [LIMIT_LEAST, 1200, 1400, 65_535] {
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
    // Not those of records with names, which may begin a message too.
    let with = all.iter().filter(|message| (word(message, 16), word(message, 20)) == (2, 256)).count();
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
fn names_are_cut_so_that_a_record_fits_and_other_kinds_have_their_elements() {
    let name = |name: &str, namespace: Option<&str>, kind, node: Option<&str>| {
        let [namespace, node] = [namespace, node].map(|word| word.map(Into::into));
        Some(Arc::new(Name { name: name.into(), namespace, kind, node }))
    };
    let long = "\u{e4}".repeat(126);
    let pod = || name(&long, Some(&long[..62]), NameKind::Pod, Some(&long));
    let service = || name(&long, Some(&long[..62]), NameKind::Service, Some(&long));
    let mut encoder = Encoder::new(1, LIMIT_LEAST);
    let (mut decoder, mut decoded) = (Decoder::default(), Vec::new());
    let mut send = |message: &[u8], _| {
        assert!(message.len() <= LIMIT_LEAST);
        decoded.extend(Decoder::named(decoder.message(message, 1), &mut HashMap::new()));
    };
    for names in [
        [pod(), pod()],
        [service(), service()],
        [name("n1", None, NameKind::Node, Some("n1")), name("office", None, NameKind::Other, None)],
        [None, name("office", None, NameKind::Other, None)],
    ] {
        let (target, ingress, point) = (None, None, None);
        encoder.add(&Given { names, target, ingress, point, ..given(7) }, 7, &mut send);
    }
    encoder.finish(7, &mut send);
    let (space, cut) = (&long[..62], &long[..128]);
    let both = format!("{space}/{cut}");
    let texts: Vec<Option<[&str; 7]>> = decoded.iter().map(|(fields, _)| texts_of(fields)).collect();
    assert_eq!(texts[0], Some([space, cut, space, cut, cut, cut, ""]));
    assert_eq!(texts[1], Some(["", "", "", "", cut, cut, &both]));
    assert_eq!(texts[2..], [Some(["", "", "", "", "n1", "", ""]), None]);
}

#[test]
fn without_records_there_is_no_message() {
    Encoder::new(1, 1400).finish(7, |_, _| panic!("an empty message"));
}
