//! Values of fields as people write them: numbers, MAC and IP addresses, prefixes, ranges, names of
//! protocols. Every reader here is paired with a writer, and reads its output.

use crate::schema::{IPV4, IPV6, MAC, NUMBER, Schema, text};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_packet::{Base, Field, FieldKind, FlowKey, Source, read_mac, write_hex};
use weir_program::builder::Number;
use weir_program::{Encap, GroupChoice, PipeKind, Program};

/// Names of values, for fields whose values have names.
const NAMES: &[(FieldKind, &[(&str, u128)])] = &[
    (FieldKind::EthType, ETHER_TYPES),
    (FieldKind::IpProtocol, PROTOCOLS),
    (FieldKind::ErrorV4Protocol, PROTOCOLS),
    (FieldKind::ErrorV6Protocol, PROTOCOLS),
    (FieldKind::MeterColor, &[("green", 0), ("yellow", 1), ("red", 2)]),
];
const ETHER_TYPES: &[(&str, u128)] = &[("ipv4", 0x0800), ("arp", 0x0806), ("ipv6", 0x86dd)];
const PROTOCOLS: &[(&str, u128)] =
    &[("icmp", 1), ("tcp", 6), ("udp", 17), ("gre", 47), ("esp", 50), ("icmpv6", 58), ("sctp", 132)];

/// Reads a number: decimal or 0x hexadecimal, with underscores anywhere.
#[must_use]
pub fn number(text: &str) -> Option<u128> {
    let text = text.replace('_', "");
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) if hex.bytes().all(|digit| digit.is_ascii_hexdigit()) => u128::from_str_radix(hex, 16).ok(),
        Some(_) => None,
        None if text.bytes().all(|digit| digit.is_ascii_digit()) => text.parse().ok(),
        None => None,
    }
}

/// Reads a time, in nanoseconds.
#[must_use]
pub fn duration(text: &str) -> Option<u64> {
    if text == "never" {
        return Some(0);
    }
    let unit_at = text.find(|one: char| !one.is_ascii_digit() && one != '_')?;
    let (count, unit) = text.split_at(unit_at);
    let nanoseconds = match unit.trim() {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "d" => 86_400_000_000_000,
        _ => return None,
    };
    u64::try_from(number(count)?).ok()?.checked_mul(nanoseconds)
}

/// Reads a value of `field`.
///
/// # Errors
/// The error is the message.
pub fn field(field: Field, text: &str, program: &Program) -> Result<u128, String> {
    if let Some(name) = group_name(field, text) {
        return group_number(name, program).map(u128::from);
    }
    let value = match named(field, text, program) {
        Some(value) => value,
        None => spelt(field, text)
            .ok_or_else(|| format!("`{text}` is not a value of `{field}`: {}", example(field, program)))?,
    };
    if value > field.max() {
        return Err(format!(
            "`{field}` has {} bits: at most {:#x}, not `{text}`",
            field.spec().bits,
            field.max()
        ));
    }
    Ok(value)
}

/// Returns the name in `group(name)`, which denotes the number of that group where metadata is written.
#[must_use]
pub fn group_name(field: Field, text: &str) -> Option<&str> {
    field.meta_word()?;
    text.strip_prefix("group(")?.strip_suffix(')').map(str::trim)
}

/// Returns the value of metadata that chooses a group.
fn group_number(name: &str, program: &Program) -> Result<u16, String> {
    let group = program.groups.iter().find(|group| group.name == name);
    let group = group.ok_or_else(|| format!("there is no group `{name}`"))?;
    group.number.ok_or_else(|| {
        let taken = |number: &u16| program.groups.iter().any(|group| group.number == Some(*number));
        let free = (1..=u16::MAX).find(|number| !taken(number)).unwrap_or(1);
        format!("group `{name}` has no number, so metadata cannot select it: add `number: {free}` to it")
    })
}

/// Returns the group chosen by this value of metadata, if a pipe uses that word to choose groups.
fn group_chosen(field: Field, value: u128, program: &Program) -> Option<&str> {
    field.meta_word()?;
    let chooses = |pipe: &weir_program::Pipe| pipe.kind.group().and_then(GroupChoice::field) == Some(field);
    if !program.pipes.iter().any(chooses) {
        return None;
    }
    let group = program.groups.iter().find(|group| group.number.map(u128::from) == Some(value))?;
    Some(&group.name)
}

fn named(field: Field, text: &str, program: &Program) -> Option<u128> {
    if field == Field::InputPort {
        return program.port_named(text).map(|port| u128::from(port.0));
    }
    names(field).iter().find(|(name, _)| *name == text).map(|(_, value)| *value)
}

fn spelt(field: Field, text: &str) -> Option<u128> {
    if field == Field::InputPort {
        return None;
    }
    let address = match field.spec().bits {
        48 => read_mac(text).map(Number::number),
        32 => text.parse::<Ipv4Addr>().ok().map(|address| u128::from(address.to_bits())),
        128 => text.parse::<Ipv6Addr>().ok().map(Ipv6Addr::to_bits),
        _ => None,
    };
    address.or_else(|| number(text))
}

fn example(field: Field, program: &Program) -> String {
    match field.spec().bits {
        _ if field == Field::InputPort => {
            let names: Vec<&str> = program.ports.iter().map(|port| port.name.as_str()).collect();
            format!("write the name of a port: {}", names.join(", "))
        }
        48 => "write a MAC address such as 02:00:00:00:00:01".to_string(),
        128 => "write an IPv6 address such as 2001:db8::1".to_string(),
        32 if is_address(field) => "write an IPv4 address such as 10.0.0.1".to_string(),
        _ if names(field).is_empty() => "write a number, decimal or 0x".to_string(),
        _ => {
            let names: Vec<&str> = names(field).iter().map(|(name, _)| *name).collect();
            format!("write a number or one of {}", names.join(", "))
        }
    }
}

/// Returns true if the field is an IP address, whose mask may be a prefix length.
fn is_address(field: Field) -> bool {
    let spec = field.spec();
    matches!(spec.bits, 32 | 128) && matches!(spec.source, Source::Frame(Base::L3 | Base::L4))
}

/// Returns the schema of a value of `field`.
pub fn schema(field: Field, schema: &mut Schema) -> Value {
    spelt_as(field, &kind(field), &spelling(field), schema)
}

/// Returns the schema of a pipe's match for a field: a criterion's word, a value with an optional mask, or
/// the long form.
pub fn criterion_schema(field: Field, schema: &mut Schema) -> Value {
    let (kind, spelling) = (kind(field), spelling(field));
    let one = spelt_as(field, &kind, &spelling, schema);
    schema.define(&format!("match_{kind}"), |_| {
        let mask = format!("/({spelling}|all)|/?[0-9]+");
        let single = json!({ "type": ["string", "number"] });
        json!({ "anyOf": [
            { "enum": criteria() },
            one,
            text(&format!("(per_entry|{spelling})({mask})")),
            { "type": "object", "properties": { "const": one, "mask": single }, "required": ["const"],
              "additionalProperties": false },
            { "type": "object", "properties": { "per_entry": single }, "required": ["per_entry"],
              "additionalProperties": false },
        ] })
    })
}

/// Returns the schema of an entry's value for a field: a value, a prefix, a value and its mask, a range, or
/// `any`.
pub fn entry_schema(field: Field, schema: &mut Schema) -> Value {
    let (kind, spelling) = (kind(field), spelling(field));
    let one = spelt_as(field, &kind, &spelling, schema);
    schema.define(&format!("entry_{kind}"), |_| {
        let more = format!("any|({spelling})/({spelling}|[0-9]+)|({spelling}) *- *({spelling})");
        json!({ "anyOf": [{ "enum": ["any"] }, one, text(&more)] })
    })
}

/// Returns the words of criteria other than values, for all types of pipes.
fn criteria() -> BTreeSet<&'static str> {
    let types = PipeKind::BLANK.iter().flat_map(|kind| kind.of_type().criteria);
    types.copied().chain(["ignore"]).collect()
}

/// Returns the definition of a notation, which is shared by fields with the same notation.
fn spelt_as(field: Field, kind: &str, spelling: &str, schema: &mut Schema) -> Value {
    schema.define(&format!("value_{kind}"), |_| {
        let names: Vec<&str> = names(field).iter().map(|(name, _)| *name).collect();
        let mut shapes = vec![text(spelling)];
        if !names.is_empty() {
            shapes.insert(0, json!({ "enum": names }));
        }
        if field != Field::InputPort {
            let most = u64::try_from(field.max()).unwrap_or(u64::MAX);
            shapes.push(json!({ "type": "integer", "minimum": 0, "maximum": most }));
        }
        json!({ "anyOf": shapes })
    })
}

fn kind(field: Field) -> String {
    match field.spec().bits {
        _ if field == Field::InputPort => "port".to_string(),
        _ if field.meta_word().is_some() => "metadata".to_string(),
        _ if !names(field).is_empty() => names(field)[0].0.to_string() + "_or_number",
        48 => "mac".to_string(),
        128 => "ipv6".to_string(),
        32 if is_address(field) => "ipv4".to_string(),
        bits => format!("{bits}_bits"),
    }
}

fn spelling(field: Field) -> String {
    let own = match field.spec().bits {
        _ if field == Field::InputPort => return "[A-Za-z0-9_][A-Za-z0-9_.-]*".to_string(),
        _ if field.meta_word().is_some() => r"group\([A-Za-z0-9_][A-Za-z0-9_.-]*\)".to_string(),
        48 => MAC.to_string(),
        128 => IPV6.to_string(),
        32 if is_address(field) => IPV4.to_string(),
        _ => names(field).iter().map(|(name, _)| *name).collect::<Vec<_>>().join("|"),
    };
    if own.is_empty() { NUMBER.to_string() } else { format!("{own}|{NUMBER}") }
}

fn names(field: Field) -> &'static [(&'static str, u128)] {
    NAMES.iter().find(|(one, _)| *one == field.kind).map_or(&[], |(_, names)| names)
}

/// Reads a mask of `field`: `/24` (addresses), `all`, or a value.
///
/// # Errors
/// The error is the message.
pub fn mask(of: Field, text: &str, program: &Program) -> Result<u128, String> {
    if text == "all" {
        return Ok(of.max());
    }
    match text.strip_prefix('/') {
        Some(length) => prefix_length(of, length).map(|length| prefix_mask(of, length)),
        None => field(of, text, program),
    }
}

fn prefix_length(field: Field, text: &str) -> Result<u8, String> {
    let bits = field.spec().bits;
    let length = number(text).and_then(|length| u8::try_from(length).ok()).filter(|length| *length <= bits);
    length.ok_or_else(|| format!("a prefix of `{field}` has 0 to {bits} bits, not `{text}`"))
}

/// Returns the mask of a prefix.
#[must_use]
pub fn prefix_mask(field: Field, length: u8) -> u128 {
    let rest = field.spec().bits.saturating_sub(length);
    if rest >= 128 { 0 } else { field.max() >> rest << rest }
}

/// Reads a value and the mask after its slash: `10.0.0.0/8`, `10.0.0.1/255.0.0.255`, `0x02/0x12`; without a
/// slash, all bits.
///
/// # Errors
/// The error is the message.
pub fn masked(of: Field, text: &str, program: &Program) -> Result<(u128, u128), String> {
    let Some((value, behind)) = text.split_once('/') else {
        return Ok((field(of, text, program)?, of.max()));
    };
    let mask = if !behind.bytes().all(|digit| digit.is_ascii_digit()) {
        field(of, behind, program)?
    } else if is_address(of) {
        prefix_mask(of, prefix_length(of, behind)?)
    } else {
        return Err(format!("write the mask of `{of}` in hexadecimal: `{value}/0x..`"));
    };
    let value = field(of, value, program)?;
    within(of, value, mask, program)?;
    Ok((value, mask))
}

/// Checks that a value lies within its mask.
///
/// # Errors
/// The error is a message that suggests a value.
pub fn within(field: Field, value: u128, mask: u128, program: &Program) -> Result<(), String> {
    if value & !mask == 0 {
        return Ok(());
    }
    let (value, meant) = (write(field, value, program), write(field, value & mask, program));
    Err(format!("`{value}` has bits outside the mask {}: did you mean `{meant}`?", write_mask(field, mask)))
}

/// Reads a prefix: `10.0.0.0/8`; without a slash, the whole value.
///
/// # Errors
/// The error is the message.
pub fn prefix(of: Field, text: &str, program: &Program) -> Result<(u128, u8), String> {
    let (value, length) = match text.split_once('/') {
        Some((value, length)) => (value, prefix_length(of, length)?),
        None => (text, of.spec().bits),
    };
    let value = field(of, value, program)?;
    within(of, value, prefix_mask(of, length), program)?;
    Ok((value, length))
}

/// Reads the outer source address of a tunnel, or a prefix from which each flow takes an address: `10.0.0.1`,
/// `10.255.0.0/16`, `fd00:1::/64`. Also returns how many bits vary by flow.
///
/// # Errors
/// The error is the message.
pub fn source(of: Field, text: &str) -> Result<(u128, u8), String> {
    let (value, length) = prefix(of, text, &Program::default())?;
    let (bits, ipv6) = (of.spec().bits - length, of.spec().bits == 128);
    if bits > 0 && !Encap::src_bits_range(ipv6).contains(&bits) {
        let (long, short) = if ipv6 { (64, 126) } else { (8, 30) };
        return Err(format!(
            "flows cannot share the addresses of a /{length}: write a prefix from /{long} to /{short}, or \
             an address"
        ));
    }
    let address = match ipv6 {
        true => IpAddr::V6(Ipv6Addr::from_bits(value)),
        false => IpAddr::V4(Ipv4Addr::from_bits(value as u32)),
    };
    if bits > 0 && (address.is_multicast() || address.is_loopback() || address.is_unspecified()) {
        return Err(format!(
            "`{text}` contains no host addresses: write a prefix that is routed to this \
            host"
        ));
    }
    Ok((value, bits))
}

/// Reads a range: `1000-2000`, or one value.
///
/// # Errors
/// The error is the message.
pub fn range(of: Field, text: &str, program: &Program) -> Result<(u16, u16), String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let end = |text: &str| -> Result<u16, String> {
        let value = field(of, text.trim(), program)?;
        u16::try_from(value).map_err(|_| format!("`{of}` is too wide for a range"))
    };
    let (first, last) = (end(first)?, end(last)?);
    if first > last { Err(format!("the range `{text}` is empty")) } else { Ok((first, last)) }
}

/// Writes a value of `field` as [`field`] reads it.
#[must_use]
pub fn write(field: Field, value: u128, program: &Program) -> String {
    if field == Field::InputPort {
        let port = program.ports.get(value as usize);
        return port.map_or_else(|| value.to_string(), |port| port.name.clone());
    }
    if let Some((name, _)) = names(field).iter().find(|(_, one)| *one == value) {
        return (*name).to_string();
    }
    if let Some(name) = group_chosen(field, value, program) {
        return format!("group({name})");
    }
    match field.spec().bits {
        48 => write_mac(value),
        128 => Ipv6Addr::from_bits(value).to_string(),
        32 if is_address(field) => Ipv4Addr::from_bits(value as u32).to_string(),
        _ if matches!(field.kind, FieldKind::EthType | FieldKind::TcpFlags) => format!("{value:#x}"),
        _ => value.to_string(),
    }
}

/// Writes a MAC address.
#[must_use]
pub fn write_mac(value: u128) -> String {
    write_hex(&value.to_be_bytes()[10..], ":")
}

/// Writes a mask as [`mask`] reads it.
#[must_use]
pub fn write_mask(field: Field, mask: u128) -> String {
    if is_address(field) {
        let length = (0..=field.spec().bits).find(|length| prefix_mask(field, *length) == mask);
        return length.map_or_else(|| write_address(field, mask), |length| format!("/{length}"));
    }
    if field.spec().bits == 48 { write_mac(mask) } else { format!("{mask:#x}") }
}

fn write_address(field: Field, value: u128) -> String {
    if field.spec().bits == 128 {
        Ipv6Addr::from_bits(value).to_string()
    } else {
        Ipv4Addr::from_bits(value as u32).to_string()
    }
}

/// Writes a value and its mask as [`masked`] reads them.
#[must_use]
pub fn write_masked(field: Field, value: u128, mask: u128, program: &Program) -> String {
    let value = write(field, value, program);
    if mask == field.max() {
        return value;
    }
    format!("{value}/{}", write_mask(field, mask).trim_start_matches('/'))
}

/// Reads a flow key as its `Display` writes it: `udp 10.0.0.1:53 > 10.0.0.2:4000`, `protocol 47 10.0.0.1:0 >
/// 10.0.0.2:0`, `tcp [2001:db8::1]:1 > [2001:db8::2]:2 vni 7`.
#[must_use]
pub fn flow(text: &str) -> Option<FlowKey> {
    let mut words = text.split_whitespace();
    let protocol = match words.next()? {
        "protocol" => u8::try_from(number(words.next()?)?).ok()?,
        name => u8::try_from(PROTOCOLS.iter().find(|(one, _)| *one == name)?.1).ok()?,
    };
    let (src, sport) = endpoint(words.next()?)?;
    words.next().filter(|arrow| *arrow == ">")?;
    let (dst, dport) = endpoint(words.next()?)?;
    let vni = match words.next() {
        None => None,
        Some("vni") => Some(u32::try_from(number(words.next()?)?).ok().filter(|vni| *vni < 1 << 24)?),
        Some(_) => return None,
    };
    let same_family = src.is_ipv4() == dst.is_ipv4();
    (same_family && words.next().is_none()).then(|| FlowKey::new(src, dst, protocol, (sport, dport), vni))
}

fn endpoint(text: &str) -> Option<(IpAddr, u16)> {
    let endpoint: std::net::SocketAddr = text.parse().ok()?;
    Some((endpoint.ip(), endpoint.port()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values_are_read_as_people_write_them() {
        let program = Program::default();
        let read = |of, text| field(of, text, &program);
        assert_eq!(read(Field::Ipv4Src, "10.0.0.1"), Ok(0x0a00_0001));
        assert_eq!(read(Field::EthDst, "A0:88:C2:B5:F4:5A"), Ok(0xa088_c2b5_f45a));
        assert_eq!(read(Field::Ipv6Src, "::1"), Ok(1));
        assert_eq!(read(Field::IpProtocol, "udp"), Ok(17));
        assert_eq!(read(Field::UdpDport, "0x35"), Ok(53));
        assert_eq!(read(Field::Meta0, "1_000"), Ok(1000));
        assert!(read(Field::UdpDport, "65536").unwrap_err().contains("16 bits"));
        assert!(read(Field::Ipv6Src, "10.0.0.1").unwrap_err().contains("IPv6 address"));
        assert!(read(Field::EthDst, "a0:88:c2:b5:f4").unwrap_err().contains("MAC"));
        assert!(read(Field::EthDst, "+0:88:c2:b5:f4:01").is_err());
    }

    #[test]
    fn masks_prefixes_and_ranges() {
        let program = Program::default();
        assert_eq!(masked(Field::Ipv4Src, "10.0.0.0/8", &program), Ok((0x0a00_0000, 0xff00_0000)));
        assert_eq!(masked(Field::Ipv4Src, "0.0.0.1/0.0.0.1", &program), Ok((1, 1)));
        assert_eq!(masked(Field::TcpFlags, "0x02/0x12", &program), Ok((2, 0x12)));
        assert!(masked(Field::TcpFlags, "2/18", &program).unwrap_err().contains("hexadecimal"));
        assert!(
            masked(Field::Ipv4Src, "10.0.0.1/8", &program).unwrap_err().contains("did you mean `10.0.0.0`")
        );
        assert_eq!(prefix(Field::Ipv6Dst, "::/0", &program), Ok((0, 0)));
        assert!(prefix(Field::Ipv4Dst, "1.2.3.4/33", &program).is_err());
        assert_eq!(range(Field::UdpDport, "1000-2000", &program), Ok((1000, 2000)));
        assert!(range(Field::UdpDport, "2000-1000", &program).unwrap_err().contains("empty"));
    }

    #[test]
    fn durations_have_units() {
        assert_eq!((duration("30s"), duration("1_500ms")), (Some(30_000_000_000), Some(1_500_000_000)));
        assert_eq!(
            (duration("never"), duration("30"), duration("s"), duration("-1s")),
            (Some(0), None, None, None)
        );
        assert_eq!(duration("99999999999999999999d"), None);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(at in 0..Field::ALL.len(), value: u128, mask: u128) {
            let (of, program) = (Field::ALL[at], Program::default());
            prop_assume!(of != Field::InputPort);
            let (mask, value) = (mask & of.max(), value & mask & of.max());
            prop_assert_eq!(field(of, &write(of, value, &program), &program), Ok(value));
            prop_assert_eq!(masked(of, &write_masked(of, value, mask, &program), &program), Ok((value,
                mask)));
            prop_assert_eq!(super::mask(of, &write_mask(of, mask), &program), Ok(mask));
        }

        #[test]
        fn flows_are_read_again(v6: bool, src: u128, dst: u128, protocol: u8, ports: (u16, u16),
            vni in prop::option::of(prop_oneof![Just(0), 0_u32..1 << 24])) {
            let address = |bits: u128| -> IpAddr {
                if v6 { Ipv6Addr::from_bits(bits).into() } else { Ipv4Addr::from_bits(bits as u32).into() }
            };
            // A multicast IPv6 source address would be the marker of IPv4 keys.
            let src = if v6 { src >> 8 } else { src };
            let key = FlowKey::new(address(src), address(dst), protocol, ports, vni);
            prop_assert_eq!(flow(&key.to_string()), Some(key));
        }

        #[test]
        fn no_text_makes_it_panic(text in ".{0,40}", at in 0..Field::ALL.len()) {
            let (of, program) = (Field::ALL[at], Program::default());
            let _ = (field(of, &text, &program), masked(of, &text, &program), prefix(of, &text, &program));
            let _ = (range(of, &text, &program), flow(&text), duration(&text), super::mask(of, &text,
                &program));
        }
    }
}
