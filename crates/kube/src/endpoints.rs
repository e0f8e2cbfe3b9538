//! Endpoints as back ends.

use crate::config::{Config, NodeConfig};
use crate::objects::{Cluster, ObjectKey, PortObject, Protocol};
use crate::pools::IpVersion;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use weir_control::kubernetes::EndpointState;
use weir_control::names;

/// The names of EndpointSlices by namespace and name of their service.
#[derive(Debug, Default)]
pub(crate) struct Slices(HashMap<ObjectKey, BTreeSet<String>>);

impl Slices {
    pub(crate) fn of(cluster: &Cluster) -> Slices {
        let mut all = Slices::default();
        for ((namespace, name), slice) in &cluster.slices {
            if let Some(service) = &slice.service {
                let service = (namespace.clone(), service.to_string());
                all.0.entry(service).or_default().insert(name.clone());
            }
        }
        all
    }

    /// Notes whether a slice is one of a service.
    pub(crate) fn set(&mut self, service: &ObjectKey, slice: &str, is_of_it: bool) {
        if is_of_it {
            self.0.entry(service.clone()).or_default().insert(slice.into());
        } else if let Some(all) = self.0.get_mut(service) {
            all.remove(slice);
            if all.is_empty() {
                self.0.remove(service);
            }
        }
    }

    /// Returns the endpoints of a service's port, with addresses of one IP version. Ports that cannot be used
    /// are left out.
    pub(crate) fn endpoints(
        &self,
        cluster: &Cluster,
        service: &ObjectKey,
        (port, protocol): (&PortObject, Protocol),
        family: IpVersion,
    ) -> Arc<[Endpoint]> {
        let mut all: BTreeMap<(IpAddr, u16), Endpoint> = BTreeMap::new();
        for name in self.0.get(service).into_iter().flatten() {
            let slice = cluster.slices.get(&(service.0.clone(), name.clone()));
            let Some(slice) = slice.filter(|slice| slice.family == Some(family)) else { continue };
            let ports = slice.ports.iter();
            let ports = ports.filter(|one| one.name == port.name && one.protocol == Some(protocol));
            for number in ports.filter_map(|one| number(one.port.unwrap_or(port.port))) {
                for endpoint in &slice.endpoints {
                    // An endpoint may temporarily be in two slices.
                    let before = all.get(&(endpoint.address, number));
                    if before.is_none_or(|before| before.state < endpoint.state) {
                        let (address, state) = (endpoint.address, endpoint.state);
                        let (node, for_nodes) = (endpoint.node.clone(), endpoint.for_nodes.clone());
                        let zones = endpoint.zones.clone();
                        let one = Endpoint { address, port: number, state, node, for_nodes, zones };
                        all.insert((address, number), one);
                    }
                }
            }
        }
        all.into_values().collect()
    }
}

/// Returns a port that can be used.
pub(crate) fn number(port: i32) -> Option<u16> {
    u16::try_from(port).ok().filter(|port| *port > 0)
}

/// An endpoint that can serve one port of a service: a pod's address and port, as a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The address to which packets are sent.
    pub address: IpAddr,
    /// The port to which packets are sent, 1 to 65535.
    pub port: u16,
    /// Whether it is ready, serves while it terminates, or should get no new flows.
    pub state: EndpointState,
    /// The Kubernetes node that it is on.
    pub node: Option<Arc<str>>,
    /// The Kubernetes nodes that it should serve; if empty, all nodes.
    pub for_nodes: Vec<Arc<str>>,
    /// The zones that it should serve; if empty, all zones.
    pub zones: Vec<Arc<str>>,
}

/// Endpoints that share the new flows of a weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The group's share of new flows, relative to the weights of the other groups; 0 means none.
    pub weight: u32,
    /// The endpoints, which share the weight equally. If none of them may get new flows, the share is
    /// rejected.
    pub endpoints: Arc<[Endpoint]>,
}

/// Where a node sends packets: an address, and a port unless packets keep theirs.
type BackEndPlace = (IpAddr, Option<u16>);

/// The back end that rejects its share of new flows.
const REJECT: &str = "reject";

/// Returns the back ends of groups for a node. The share of a group without an endpoint that may get new
/// flows is rejected, unless this is true of all groups: the service then has no back end for new flows
/// anyway.
pub(crate) fn back_ends(groups: &[Group], is_local: bool, config: &Config, node: &NodeConfig) -> Vec<Value> {
    // Packets that keep their port reach an address at that port, whatever its target port is.
    let place = |one: &Endpoint| -> BackEndPlace { (one.address, config.translates().then_some(one.port)) };
    // The weight of those that get new flows, by place; and what is rejected.
    let mut weights: BTreeMap<Option<BackEndPlace>, u128> = BTreeMap::new();
    let chosen: Vec<Vec<&Endpoint>> =
        groups.iter().map(|group| chosen(&group.endpoints, is_local, node)).collect();
    // The endpoints of a group share its weight equally.
    let sizes = chosen.iter().map(|all| all.len() as u128).filter(|size| *size > 0);
    let common = sizes.fold(1, |all, size| (all / gcd(all, size)).checked_mul(size).unwrap_or(all));
    let has_any = chosen.iter().any(|all| !all.is_empty());
    for (group, all) in groups.iter().zip(&chosen) {
        let whole = u128::from(group.weight).saturating_mul(common);
        for endpoint in all {
            *weights.entry(Some(place(endpoint))).or_default() += whole / all.len() as u128;
        }
        if all.is_empty() && has_any && whole > 0 {
            *weights.entry(None).or_default() += whole;
        }
    }
    let shared = weights.values().copied().fold(0, gcd).max(1);
    let largest = weights.values().copied().max().unwrap_or_default() / shared;
    // At most 65535.
    let scaled = |weight: u128| {
        let weight = weight / shared;
        let most = u128::from(u16::MAX);
        let scaled =
            if largest <= most { weight } else { (weight * most / largest).max(u128::from(weight > 0)) };
        u64::try_from(scaled).unwrap_or(u64::from(u16::MAX))
    };
    // Every endpoint is a back end, because flows that it has may continue.
    let all = groups.iter().flat_map(|group| group.endpoints.iter());
    let all: BTreeSet<BackEndPlace> = all.map(place).collect();
    let back_end = |(address, port): BackEndPlace| {
        let mut map: Map<String, Value> = config.each.clone();
        map.insert("name".into(), names::back_end(address, port).into());
        map.insert("ip".into(), address.to_string().into());
        if let Some(port) = port {
            map.insert("port".into(), port.to_string().into());
        }
        match weights.get(&Some((address, port))).map(|weight| scaled(*weight)) {
            None => {
                map.insert("state".into(), "draining".into());
            }
            Some(1) => {}
            Some(weight) => {
                map.insert("weight".into(), weight.into());
            }
        }
        Value::Object(map)
    };
    let rejected = weights
        .get(&None)
        .map(|weight| json!({ "name": REJECT, "mode": "reject", "weight": scaled(*weight) }));
    all.into_iter().map(back_end).chain(rejected).collect()
}

/// Whether all nodes have the same back ends for these groups, regardless of `kubernetes_node` and `zone`.
pub(crate) fn is_everywhere(groups: &[Group], is_local: bool) -> bool {
    let has_hints = |one: &Endpoint| !(one.zones.is_empty() && one.for_nodes.is_empty());
    !is_local && !groups.iter().flat_map(|group| group.endpoints.iter()).any(has_hints)
}

/// Returns the endpoints that get new flows, as kube-proxy chooses them.
fn chosen<'a>(all: &'a [Endpoint], is_local: bool, node: &NodeConfig) -> Vec<&'a Endpoint> {
    let here = node.kubernetes_node.as_deref();
    let is_near = |one: &&Endpoint| !is_local || here.is_none() || one.node.as_deref() == here;
    let near: Vec<&Endpoint> = all.iter().filter(is_near).collect();
    let chosen = EndpointState::chosen(near.iter().map(|one| one.state));
    let best: Vec<&Endpoint> = near.into_iter().filter(|one| Some(one.state) == chosen).collect();
    // Hints are for what is ready; `Local` has a rule of its own.
    if is_local || chosen != Some(EndpointState::Ready) {
        return best;
    }
    let by_node = hinted(&best, here, |one| &one.for_nodes);
    by_node.or_else(|| hinted(&best, node.zone.as_deref(), |one| &one.zones)).unwrap_or(best)
}

/// Returns the endpoints whose hints include a name. Hints count only if every endpoint has some, and those
/// of at least one include this name.
fn hinted<'a>(
    all: &[&'a Endpoint],
    name: Option<&str>,
    hints: fn(&Endpoint) -> &[Arc<str>],
) -> Option<Vec<&'a Endpoint>> {
    let name = name?;
    let named = |one: &&&Endpoint| hints(one).iter().any(|hint| **hint == *name);
    let named: Vec<&Endpoint> = all.iter().filter(named).copied().collect();
    (!named.is_empty() && all.iter().all(|one| !hints(one).is_empty())).then_some(named)
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn endpoint(last: u8, state: EndpointState, zones: &[&str]) -> Endpoint {
        Endpoint {
            address: IpAddr::from([10, 0, 0, last]),
            port: 80,
            state,
            node: Some(format!("n{last}").into()),
            for_nodes: Vec::new(),
            zones: zones.iter().map(|zone| (*zone).into()).collect(),
        }
    }

    fn node(more: &str) -> NodeConfig {
        serde_saphyr::from_str(&format!("{{ name: n, url: 'unix:/x'{more} }}")).unwrap()
    }

    /// Returns each back end as `LAST:WEIGHT`, or `LAST:-` if it drains.
    fn shown(groups: &[Group], is_local: bool, node: &NodeConfig) -> String {
        let config = Config::parse("template: { port: p0 }").unwrap();
        let one = |back_end: &Value| {
            let name = back_end["name"].as_str().unwrap().replace("10.0.0.", "");
            let weight = back_end["weight"].as_u64().unwrap_or(1).to_string();
            format!("{name}:{}", if back_end["state"] == "draining" { "-" } else { &weight })
        };
        back_ends(groups, is_local, &config, node).iter().map(one).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn weights_of_services_are_shared_by_their_endpoints() {
        use EndpointState::{Out, Ready, Terminating};
        let all = |from: u8, to: u8| (from..=to).map(|last| endpoint(last, Ready, &[])).collect();
        let group = |weight, endpoints: Vec<Endpoint>| Group { weight, endpoints: endpoints.into() };
        let any = node("");
        assert_eq!(shown(&[group(1, all(1, 2))], false, &any), "1:1 2:1");
        assert_eq!(shown(&[group(70, all(1, 2)), group(30, all(3, 3))], false, &any), "1:7 2:7 3:6");
        assert_eq!(shown(&[group(0, all(1, 1)), group(5, all(2, 2))], false, &any), "1:0 2:1");
        // The share of a service without endpoints is rejected, unless there is no other.
        assert_eq!(shown(&[group(3, vec![]), group(2, all(1, 2))], false, &any), "1:1 2:1 reject:3");
        let ends = vec![endpoint(3, Out, &[])];
        assert_eq!(shown(&[group(1, all(1, 1)), group(1, ends.clone())], false, &any), "1:1 3:- reject:1");
        assert_eq!(shown(&[group(1, ends.clone()), group(1, vec![])], false, &any), "3:-");
        assert_eq!(shown(&[group(1, all(1, 1)), group(0, vec![])], false, &any), "1:1");
        // The same endpoint in two services has the weight of both.
        assert_eq!(shown(&[group(1, all(1, 1)), group(2, all(1, 2))], false, &any), "1:2 2:1");
        let some = vec![endpoint(1, Terminating, &[]), endpoint(2, Out, &[])];
        assert_eq!(shown(&[group(1, some.clone())], false, &any), "1:1 2:-");
        let some = [some, vec![endpoint(3, Ready, &[])]].concat();
        assert_eq!(shown(&[group(1, some)], false, &any), "1:- 2:- 3:1");
    }

    #[test]
    fn nodes_of_the_cluster_prefer_what_is_near() {
        use EndpointState::Ready;
        let hinted = [endpoint(1, Ready, &["a"]), endpoint(2, Ready, &["b"])].to_vec();
        let all = |endpoints: Vec<Endpoint>| [Group { weight: 1, endpoints: endpoints.into() }];
        assert_eq!(shown(&all(hinted.clone()), false, &node(", zone: b")), "1:- 2:1");
        assert_eq!(shown(&all(hinted.clone()), false, &node(", zone: c")), "1:1 2:1");
        let partly = [hinted.clone(), vec![endpoint(3, Ready, &[])]].concat();
        assert_eq!(shown(&all(partly), false, &node(", zone: b")), "1:1 2:1 3:1");
        assert_eq!(shown(&all(hinted.clone()), true, &node(", kubernetes_node: n1")), "1:1 2:-");
        assert_eq!(shown(&all(hinted.clone()), false, &node(", kubernetes_node: n1")), "1:1 2:1");
        // Hints for nodes come first, and count under the same conditions.
        let mut both = hinted.clone();
        both[0].for_nodes = vec!["n7".into()];
        let far = ", kubernetes_node: n7, zone: b";
        assert_eq!(shown(&all(both.clone()), false, &node(far)), "1:- 2:1", "one has no hint for nodes");
        both[1].for_nodes = vec!["n8".into()];
        assert_eq!(shown(&all(both.clone()), false, &node(far)), "1:1 2:-");
        assert_eq!(shown(&all(both.clone()), false, &node(", kubernetes_node: n9, zone: b")), "1:- 2:1");
        assert_eq!(shown(&all(both), false, &node(", zone: b")), "1:- 2:1", "it is no node of the cluster");
    }

    #[test]
    fn hints_do_not_apply_to_local_or_terminating_endpoints() {
        let at = |last: u8, state: EndpointState, zone: &str| Endpoint {
            node: Some("n1".into()),
            ..endpoint(last, state, &[zone])
        };
        let all = |state| {
            let endpoints = [at(1, state, "a"), at(2, state, "b")].to_vec();
            [Group { weight: 1, endpoints: endpoints.into() }]
        };
        let here = node(", kubernetes_node: n1, zone: b");
        assert_eq!(shown(&all(EndpointState::Ready), false, &here), "1:- 2:1");
        assert_eq!(shown(&all(EndpointState::Ready), true, &here), "1:1 2:1");
        assert_eq!(shown(&all(EndpointState::Ready), true, &node(", zone: b")), "1:1 2:1");
        assert_eq!(shown(&all(EndpointState::Terminating), false, &here), "1:1 2:1");
    }

    #[test]
    fn packets_that_keep_their_port_have_one_back_end_at_an_address() {
        let ports = |mode: &str| {
            let mut second = endpoint(1, EndpointState::Ready, &[]);
            second.port = 8080;
            let all = [endpoint(1, EndpointState::Out, &[]), second];
            let groups = [Group { weight: 1, endpoints: all.into() }];
            let config = Config::parse(&format!("{{ template: {{ port: p0 }}, each: {{ mode: {mode} }} }}"));
            let all = back_ends(&groups, false, &config.unwrap(), &node(""));
            let one = |one: &Value| format!("{} {} {}", one["name"], one["port"], one["state"]);
            all.iter().map(one).collect::<Vec<_>>()
        };
        let translated = ["\"10.0.0.1_80\" \"80\" \"draining\"", "\"10.0.0.1_8080\" \"8080\" null"];
        assert_eq!(ports("full_nat"), translated);
        assert_eq!(ports("ipip"), ["\"10.0.0.1\" null null"]);
    }

    proptest! {
        /// The shares of services are those of their weights, up to the precision of 16 bits.
        #[test]
        fn shares_are_those_of_the_weights(
            groups in prop::collection::vec((0u32..=1_000_000, 1u8..6), 1..5),
        ) {
            let mut next = 0;
            let all: Vec<Group> = groups.iter().map(|(weight, count)| {
                let ready = |one| endpoint(one, EndpointState::Ready, &[]);
                let endpoints = (next..next + count).map(ready).collect();
                next += count;
                Group { weight: *weight, endpoints }
            }).collect();
            let config = Config::parse("template: { port: p0 }").unwrap();
            let made = back_ends(&all, false, &config, &node(""));
            let weight = |last: u8| {
                let one = made.iter().find(|one| one["ip"] == format!("10.0.0.{last}").as_str()).unwrap();
                one["weight"].as_u64().unwrap_or(1) as f64
            };
            let total: f64 = (0..next).map(weight).sum();
            let wanted: f64 = groups.iter().map(|(weight, _)| f64::from(*weight)).sum();
            prop_assert!(made.iter().all(|one| one["weight"].as_u64().unwrap_or(1) <= 65535));
            let mut first = 0;
            for (share, count) in &groups {
                let has: f64 = (first..first + count).map(weight).sum();
                first += count;
                if wanted > 0.0 {
                    let off = has / total - f64::from(*share) / wanted;
                    prop_assert!(off.abs() < 0.002, "{made:?}");
                } else {
                    prop_assert!(has == 0.0);
                }
            }
        }
    }
}
