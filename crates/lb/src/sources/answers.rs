//! Answers of DNS servers, as back ends.

use super::{BACK_ENDS_MAX, DnsQuery, RecordKind, ServiceSource};
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// The servers of a name at a time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct DnsAnswer {
    /// The servers, in any order.
    pub servers: Vec<DnsServer>,
    /// The smallest TTL of the records that were used.
    pub ttl: Duration,
    /// What was left out, in words.
    pub notes: Vec<String>,
}

/// A server that DNS names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DnsServer {
    pub address: IpAddr,
    /// The port, priority and weight of its SRV record.
    pub srv: Option<(u16, u16, u16)>,
}

impl DnsQuery {
    /// Returns when to ask again after records with this TTL.
    pub fn clamped(&self, ttl: Duration) -> Duration {
        ttl.clamp(self.ttl[0], self.ttl[1].max(self.ttl[0]))
    }
}

/// Returns the back ends of a source, in an order that depends only on the servers, and what was left out.
/// Only servers of the lowest priority value are used, because weir has no priorities.
pub(crate) fn back_ends_of(
    source: &ServiceSource,
    query: &DnsQuery,
    answer: &DnsAnswer,
) -> (Vec<Value>, Vec<String>) {
    let mut notes = answer.notes.clone();
    let best = answer.servers.iter().filter_map(|one| one.srv.map(|(_, priority, _)| priority)).min();
    let used = answer.servers.iter().filter(|one| one.srv.map(|(_, priority, _)| priority) == best);
    let mut all: BTreeMap<String, Value> = BTreeMap::new();
    let mut over = 0;
    for server in used {
        // RFC 2782: a weight of 0 has a very small chance; weir's 0 would have none.
        let weight = server.srv.map(|(_, _, weight)| ("weight", weight.max(1).to_string()));
        let port = server.srv.map(|(port, ..)| port).filter(|port| *port != 0);
        let (name, back_end) = source.back_end(server.address, port, weight.as_slice());
        if all.len() < BACK_ENDS_MAX || all.contains_key(&name) {
            all.insert(name, back_end);
        } else {
            over += 1;
        }
    }
    if over > 0 {
        notes.push(format!("{over} servers are left out: a service has at most {BACK_ENDS_MAX}"));
    }
    let ports = source.template.get("service").and_then(|service| service.get("port"));
    let other = query.records == RecordKind::Srv && !source.translates() && {
        let differs =
            |one: &DnsServer| one.srv.is_some_and(|(port, ..)| ports != Some(&port.to_string().into()));
        answer.servers.iter().any(differs)
    };
    if other {
        notes.push("ports of SRV records count only with `mode: nat` or `full_nat`".to_string());
    }
    (all.into_values().collect(), notes)
}
