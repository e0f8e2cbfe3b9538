//! Groups that pick by a hash, and what they hash.

use crate::flow_match::FlowMatch;
use crate::switch_field::SwitchField;
use crate::{Compiler, SelectGroup, TABLE_MAX, Why};
use std::fmt::Write;
use weir_packet::{Field, FieldKind, KeySource};
use weir_program::{Fill, Group, HashInput};

/// The fields of a flow key of IP.
const FLOW_KEY: &str = "ip_src,ip_dst,ipv6_src,ipv6_dst,nw_proto,tcp_src,tcp_dst,udp_src,udp_dst";
/// What the select hash is computed from without IP.
const ETHERNET: &str = "eth_dst,eth_src,eth_type";

/// The register that says which flow of the last table has a bucket's actions.
const LIST: u8 = 15;

/// The most that a bucket weighs.
const WEIGHT_MAX: u32 = 65_535;

/// What a group hashes, for packets of IP and for others.
pub(crate) struct Hashed {
    pub ip: String,
    /// `None`: the same, or there are no such packets.
    pub other: Option<String>,
}

impl Hashed {
    /// The select hash, as the group uses it.
    pub(crate) fn select(group: &Group) -> Hashed {
        let ip = match group.affinity {
            None => FLOW_KEY.to_string(),
            Some(affinity) => {
                let v4 = part(SwitchField::Ipv4Src, leading(u32::MAX.into(), 32, affinity.ipv4));
                let v6 = part(SwitchField::Ipv6Src, leading(u128::MAX, 128, affinity.ipv6));
                let parts: Vec<String> = [v4, v6].into_iter().flatten().collect();
                // All sources are one prefix.
                if parts.is_empty() { "eth_type".into() } else { parts.join(",") }
            }
        };
        Hashed { ip, other: Some(ETHERNET.to_string()) }
    }

    /// What a HASH pipe hashes.
    pub(crate) fn of(input: &HashInput, group: &Group) -> Result<Hashed, Why> {
        match input {
            HashInput::Select(KeySource::Outer) => Ok(Hashed::select(group)),
            HashInput::Select(KeySource::Inner) => Err(Why::HashInput("headers inside tunnels")),
            HashInput::Rss => Err(Why::HashInput("by the NIC's hash here")),
            HashInput::RoundRobin => Err(Why::HashInput("in turn")),
            HashInput::Quic => Err(Why::HashInput("QUIC connection IDs")),
            HashInput::Fields(fields) => {
                let mut text = String::new();
                for (field, mask) in fields {
                    for part in hashed(*field, *mask)? {
                        let comma = if text.is_empty() { "" } else { "," };
                        let _ = write!(text, "{comma}{part}");
                    }
                }
                Ok(Hashed { ip: text, other: None })
            }
        }
    }
}

/// The mask of the first bits of an address.
fn leading(all: u128, bits: u32, count: u8) -> u128 {
    let rest = bits - u32::from(count).min(bits);
    all & u128::MAX.checked_shl(rest).unwrap_or_default()
}

fn part(key: SwitchField, mask: u128) -> Option<String> {
    match mask {
        0 => None,
        _ if mask == key.all() => Some(key.name(None)),
        _ => Some(format!("{}={}", key.name(None), key.number(mask))),
    }
}

/// How a field of a HASH pipe is hashed.
fn hashed(field: Field, mask: u128) -> Result<Vec<String>, Why> {
    let ports = |name: &str| {
        let mask = if mask == field.max() { String::new() } else { format!("={mask:#x}") };
        vec![format!("tcp_{name}{mask}"), format!("udp_{name}{mask}")]
    };
    let key = match field.kind {
        FieldKind::EthDst => SwitchField::EthDst,
        FieldKind::EthSrc => SwitchField::EthSrc,
        FieldKind::Ipv4Src => SwitchField::Ipv4Src,
        FieldKind::Ipv4Dst => SwitchField::Ipv4Dst,
        FieldKind::Ipv6Src => SwitchField::Ipv6Src,
        FieldKind::Ipv6Dst => SwitchField::Ipv6Dst,
        FieldKind::L4Sport | FieldKind::TcpSport | FieldKind::UdpSport if mask != 0 => {
            return Ok(ports("src"));
        }
        FieldKind::L4Dport | FieldKind::TcpDport | FieldKind::UdpDport if mask != 0 => {
            return Ok(ports("dst"));
        }
        _ => return Err(Why::HashedField(field)),
    };
    part(key, mask).map(|part| vec![part]).ok_or(Why::HashedField(field))
}

/// Checks that a group's buckets can be those of a select group, and returns each target's weight.
pub(crate) fn weights(group: &Group) -> Result<Vec<u32>, Why> {
    match group.fill {
        Fill::Maglev | Fill::Wants => {}
        Fill::Given | Fill::Katran(..) | Fill::Glb(..) => return Err(Why::Fill),
    }
    let weights: Vec<u32> = group.targets.iter().map(|target| target.weight).collect();
    let total = weights.iter().map(|weight| u64::from(*weight)).sum::<u64>();
    if total == 0 && group.no_target.is_some() {
        return Err(Why::NoTarget);
    }
    if weights.iter().any(|weight| *weight > WEIGHT_MAX) {
        return Err(Why::Fill);
    }
    Ok(weights)
}

/// Whether these actions do the same as a bucket's, which are a set: of each kind it has the last one, and
/// they are carried out in an order of their own.
fn is_set(actions: &[String]) -> bool {
    let count = |is: fn(&str) -> bool| actions.iter().filter(|one| is(one)).count();
    let sends = |one: &str| one == "IN_PORT" || one == "NORMAL" || one.starts_with("output");
    let (ttl, decrements) = (count(|one| one.ends_with("->nw_ttl")), count(|one| one == "dec_ttl"));
    let tags = [count(|one| one.starts_with("push_vlan")), count(|one| one == "pop_vlan")];
    count(sends) <= 1 && decrements <= 1 && (decrements == 0 || ttl == 0) && tags.iter().all(|one| *one <= 1)
}

impl Compiler<'_> {
    /// Returns a bucket with these actions. If a set cannot express them, a flow has them, in the last table.
    pub(crate) fn bucket_of(&mut self, packets: &FlowMatch, actions: &[String]) -> String {
        let all = actions.join(",");
        if is_set(actions) {
            return all;
        }
        let list = (packets.headers(), all);
        let known = self.lists.iter().position(|one| *one == list);
        let at = known.unwrap_or(self.lists.len());
        if known.is_none() {
            self.lists.push(list);
        }
        format!("set_field:{:#x}->reg{LIST},resubmit(,{})", at + 1, self.list_table())
    }

    /// The flows of buckets that are no sets.
    pub(crate) fn lists(&mut self) {
        let table = self.list_table();
        for (at, (matches, actions)) in std::mem::take(&mut self.lists).into_iter().enumerate() {
            let key = SwitchField::Register(LIST);
            self.flow(table, 1, &matches.and(key, at as u128 + 1, key.all()), actions);
        }
    }

    fn list_table(&self) -> u8 {
        (self.first_table + self.order.len()).min(TABLE_MAX) as u8
    }

    /// Returns the number of a group with these buckets; equal ones are one group.
    pub(crate) fn group(&mut self, fields: &str, buckets: &[(u32, String)]) -> u32 {
        let groups = &mut self.compiled.groups;
        let same = |one: &&SelectGroup| one.fields == fields && one.buckets == buckets;
        if let Some(group) = groups.iter().find(same) {
            return group.id;
        }
        let id = groups.len() as u32 + 1;
        groups.push(SelectGroup { id, fields: fields.into(), buckets: buckets.to_vec() });
        id
    }
}
