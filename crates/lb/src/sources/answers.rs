//! Answers of DNS servers, as back ends.

use super::{BACK_ENDS_MAX, DnsQuery, PRIORITY, RecordKind, ServiceSource};
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
    /// Whether DNS says that there is no such service (RFC 2782: the target is `.`).
    pub is_unavailable: bool,
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
/// If there are several priorities, each back end has its own as [`PRIORITY`].
pub(crate) fn back_ends_of(
    source: &ServiceSource,
    query: &DnsQuery,
    answer: &DnsAnswer,
) -> (Vec<Value>, Vec<String>) {
    let mut notes = answer.notes.clone();
    let mut servers: Vec<&DnsServer> = answer.servers.iter().collect();
    let priority = |one: &DnsServer| one.srv.map_or(0, |(_, priority, _)| priority);
    servers.sort_by_key(|one| priority(one));
    let several = servers.first().map(|one| priority(one)) != servers.last().map(|one| priority(one));
    let mut all: BTreeMap<String, (u16, Value)> = BTreeMap::new();
    let mut over = 0;
    for server in servers {
        // RFC 2782: a weight of 0 has a very small chance; weir's 0 would have none.
        let weight = server.srv.map(|(_, _, weight)| ("weight", weight.max(1).to_string()));
        let port = server.srv.map(|(port, ..)| port).filter(|port| *port != 0);
        let (name, mut back_end) = source.back_end(server.address, port, weight.as_slice());
        if several {
            back_end[PRIORITY] = priority(server).into();
        }
        match all.get(&name) {
            // The lowest priority at which it occurs counts.
            Some((before, _)) if *before < priority(server) => {}
            None if all.len() >= BACK_ENDS_MAX => over += 1,
            Some(_) | None => drop(all.insert(name, (priority(server), back_end))),
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
    (all.into_values().map(|(_, back_end)| back_end).collect(), notes)
}

/// The priorities of a source's back ends.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Priorities {
    /// The names of the back ends, by priority.
    pub all: BTreeMap<u64, Vec<String>>,
    /// The priority whose back ends get new flows.
    pub active: u64,
}

impl Priorities {
    /// Reads the priorities; `None` if there are not several.
    pub fn of(back_ends: &[Value]) -> Option<Priorities> {
        let mut all: BTreeMap<u64, Vec<String>> = BTreeMap::new();
        for one in back_ends {
            let name = one["name"].as_str().unwrap_or_default().to_string();
            all.entry(one[PRIORITY].as_u64()?).or_default().push(name);
        }
        let active = *all.keys().next()?;
        Some(Priorities { all, active })
    }

    /// Returns the lowest priority with a back end that serves, or the lowest if none does.
    pub fn serving(&self, serves: impl Fn(&str) -> bool) -> u64 {
        let first = self.all.iter().find(|(_, names)| names.iter().any(|name| serves(name)));
        first.or(self.all.first_key_value()).map_or(0, |(priority, _)| *priority)
    }

    /// Returns back ends as they are configured: only those of the active priority have a weight.
    pub fn weighted(&self, back_ends: &[Value]) -> Vec<Value> {
        let one = |back_end: &Value| {
            let mut back_end = back_end.clone();
            let priority = back_end.as_object_mut().and_then(|map| map.shift_remove(PRIORITY));
            if priority.and_then(|priority| priority.as_u64()) != Some(self.active) {
                back_end["weight"] = "0".into();
            }
            back_end
        };
        back_ends.iter().map(one).collect()
    }

    /// Returns a sentence that says which priority is active; `None` if it is the lowest.
    pub fn says(&self) -> Option<String> {
        let lowest = *self.all.keys().next()?;
        let active = self.active;
        let text =
            || format!("no server of priority {lowest} serves, so those of priority {active} are used");
        (active > lowest).then(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::SourceKind;
    use serde_json::json;

    #[test]
    fn only_the_lowest_priority_that_serves_has_weights() {
        let query = DnsQuery {
            name: "s.".into(),
            records: RecordKind::Srv,
            servers: Vec::new(),
            ttl: [Duration::ZERO; 2],
            timeout: Duration::ZERO,
            empty_after: 0,
        };
        let each = json!({ "mode": "nat" }).as_object().unwrap().clone();
        let kind = SourceKind::Dns(query.clone());
        let source = ServiceSource { name: "s".into(), kind, template: serde_json::Map::new(), each };
        let answer = |all: &[(u8, u16, u16)]| {
            let server = |(last, priority, weight): &(u8, u16, u16)| DnsServer {
                address: [10, 0, 0, *last].into(),
                srv: Some((80, *priority, *weight)),
            };
            let answer = DnsAnswer { servers: all.iter().map(server).collect(), ..DnsAnswer::default() };
            back_ends_of(&source, &query, &answer).0
        };
        assert_eq!(Priorities::of(&answer(&[(1, 5, 0), (2, 5, 7)])), None);
        // A server that occurs twice has the lower priority.
        let back_ends = answer(&[(3, 20, 9), (1, 10, 3), (1, 20, 4), (2, 10, 0), (4, 65_535, 1)]);
        let mut priorities = Priorities::of(&back_ends).unwrap();
        let weights = |priorities: &Priorities| -> Vec<String> {
            let all = priorities.weighted(&back_ends);
            assert!(all.iter().all(|one| one.get(PRIORITY).is_none()));
            all.iter().map(|one| one["weight"].as_str().unwrap().to_string()).collect()
        };
        for (down, active, expected) in [
            (&[][..], 10, ["3", "1", "0", "0"]),
            (&["10.0.0.1_80"], 10, ["3", "1", "0", "0"]),
            (&["10.0.0.1_80", "10.0.0.2_80"], 20, ["0", "0", "9", "0"]),
            (&["10.0.0.1_80", "10.0.0.2_80", "10.0.0.3_80"], 65_535, ["0", "0", "0", "1"]),
            (&["10.0.0.1_80", "10.0.0.2_80", "10.0.0.3_80", "10.0.0.4_80"], 10, ["3", "1", "0", "0"]),
        ] {
            priorities.active = priorities.serving(|name| !down.contains(&name));
            assert_eq!(
                (priorities.active, &weights(&priorities)[..]),
                (active, &expected.map(String::from)[..])
            );
            assert_eq!(priorities.says().is_some(), active > 10);
        }
    }
}
