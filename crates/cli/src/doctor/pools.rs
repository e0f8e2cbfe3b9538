//! NAT pools: whether something answers ARP or neighbour discovery for each address that other hosts resolve
//! on a link of this host. weir answers for pools of services, and the host for its own addresses.

use super::{Finding, Level, ip};
use crate::config::Plan;
use serde_json::Value;
use std::collections::HashSet;
use std::net::IpAddr;
use weir_program::NatPool;

/// An interface's address and prefix length; neighbours resolve addresses within the prefix directly.
struct InterfaceNetwork {
    name: String,
    address: IpAddr,
    length: u32,
}

/// Examines the pools of a configuration.
pub fn findings(plan: &Plan) -> Vec<Finding> {
    let pools = &plan.program.nat_pools;
    if pools.is_empty() {
        return Vec::new();
    }
    let links = match ip(&["address", "show"]) {
        Ok(interfaces) => links(&interfaces),
        Err(why) => return vec![Finding::new("pool", "ip", Level::Warning, why)],
    };
    let answered = plan.apps.answers_for();
    pools.iter().map(|pool| finding(pool, &answered, &links)).collect()
}

/// Parses the output of `ip -j address show`.
fn links(interfaces: &[Value]) -> Vec<InterfaceNetwork> {
    let of = |interface: &Value| {
        let name = interface["ifname"].as_str().unwrap_or_default().to_string();
        let all = interface["addr_info"].as_array().cloned().unwrap_or_default();
        let link = move |one: Value| {
            let address = one["local"].as_str()?.parse().ok()?;
            let length = one["prefixlen"].as_u64()?.try_into().ok()?;
            Some(InterfaceNetwork { name: name.clone(), address, length })
        };
        all.into_iter().filter_map(link).collect::<Vec<_>>()
    };
    interfaces.iter().flat_map(of).collect()
}

impl InterfaceNetwork {
    /// Whether neighbours resolve an address on this link.
    fn has(&self, address: IpAddr) -> bool {
        let apart = |one: u128, other: u128, width: u32| {
            (one ^ other).checked_shr(width.saturating_sub(self.length)).unwrap_or_default() != 0
        };
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => !apart(own.to_bits().into(), other.to_bits().into(), 32),
            (IpAddr::V6(own), IpAddr::V6(other)) => !apart(own.to_bits(), other.to_bits(), 128),
            _ => false,
        }
    }
}

/// `answered`: the addresses for which weir answers.
fn finding(pool: &NatPool, answered: &HashSet<IpAddr>, links: &[InterfaceNetwork]) -> Finding {
    let own: HashSet<IpAddr> = links.iter().map(|link| link.address).collect();
    let question = if pool.is_ipv4() { "ARP" } else { "neighbour discovery" };
    let found = |level, says: String| Finding::new("pool", &pool.name, level, says);
    let mut open = pool.addresses().filter(|address| !answered.contains(address) && !own.contains(address));
    let Some(first) = open.next() else {
        let who =
            if pool.addresses().all(|address| answered.contains(&address)) { "weir" } else { "this host" };
        return found(Level::Ok, format!("{who} answers {question} for its addresses"));
    };
    let link = |address: IpAddr| links.iter().find(|link| link.has(address)).map(|link| (address, link));
    let Some((address, link)) = std::iter::once(first).chain(open).find_map(link) else {
        let says =
            format!("no link of this host has {first}: routers need a route for the pool to this host");
        return found(Level::Ok, says);
    };
    let (name, length) = (&link.name, if pool.is_ipv4() { 32 } else { 128 });
    let says = format!(
        "neighbours on `{name}` expect {address} there, but no host answers {question} for it, so answers \
         to the pool are lost: `ip address add {address}/{length} dev {name}`, or remove `announce: none` if \
         it is the pool of a service"
    );
    found(Level::Fault, says)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use weir_program::{NatPrefix, Origin};

    fn pool(first: &str, length: u8) -> NatPool {
        let prefixes = vec![NatPrefix { first: first.parse().unwrap(), length }];
        NatPool { name: "world".into(), prefixes, first: 1024, last: 65_535, origin: Origin::default() }
    }

    #[test]
    fn a_pool_on_a_link_needs_somebody_who_answers_for_each_address() {
        let links = links(&[
            json!({ "ifname": "lo", "addr_info": [{ "local": "127.0.0.1", "prefixlen": 8 }] }),
            json!({ "ifname": "eth1", "addr_info": [
                { "local": "10.0.1.1", "prefixlen": 24 }, { "local": "10.0.1.9", "prefixlen": 32 },
                { "local": "2001:db8::1", "prefixlen": 64 }, { "prefixlen": 64 },
            ] }),
        ]);
        let weir = |address: &str| HashSet::from([address.parse().unwrap()]);
        let none = HashSet::new();
        for (pool, answered, level, words) in [
            (pool("10.0.1.8", 32), &none, Level::Fault, "`ip address add 10.0.1.8/32 dev eth1`"),
            (pool("10.0.1.8", 31), &weir("10.0.1.8"), Level::Ok, "this host answers ARP"),
            (pool("10.0.1.8", 32), &weir("10.0.1.8"), Level::Ok, "weir answers ARP"),
            (pool("10.0.1.8", 30), &weir("10.0.1.8"), Level::Fault, "expect 10.0.1.10 there"),
            (pool("10.0.2.8", 32), &none, Level::Ok, "routers need a route"),
            // The first ones are on no link.
            (pool("10.0.0.0", 23), &none, Level::Fault, "expect 10.0.1.0 there"),
            (pool("2001:db8::8", 128), &none, Level::Fault, "no host answers neighbour discovery"),
            (pool("2001:db8:1::8", 128), &none, Level::Ok, "routers need a route"),
        ] {
            let found = finding(&pool, answered, &links);
            assert!(found.level == level && found.says.contains(words), "{found}");
        }
    }
}
