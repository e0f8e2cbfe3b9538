//! Endpoints as back ends.

use crate::config::{Config, NodeConfig};
use crate::objects::{Cluster, Protocol};
use crate::pools::IpVersion;
use k8s_openapi::api::core::v1::ServicePort;
use k8s_openapi::api::discovery::v1::{EndpointConditions, EndpointSlice};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use weir_control::names;

/// The label with the name of an EndpointSlice's service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// The EndpointSlices by namespace and name of their service.
pub(crate) struct Slices<'a>(HashMap<(&'a str, &'a str), Vec<&'a EndpointSlice>>);

impl<'a> Slices<'a> {
    pub(crate) fn of(snapshot: &'a Cluster) -> Slices<'a> {
        let mut all = Slices(HashMap::new());
        for ((namespace, _), slice) in &snapshot.slices {
            let labels = slice.metadata.labels.as_ref();
            if let Some(name) = labels.and_then(|labels| labels.get(SERVICE_NAME)) {
                all.0.entry((namespace, name)).or_default().push(Arc::as_ref(slice));
            }
        }
        all
    }

    /// Returns the endpoints of a service's port, with addresses of one IP version. Addresses and ports that
    /// cannot be used are left out.
    pub(crate) fn endpoints(
        &self,
        (namespace, name): (&str, &str),
        port: &ServicePort,
        protocol: Protocol,
        family: IpVersion,
    ) -> Vec<Endpoint> {
        let mut all: BTreeMap<(IpAddr, u16), Endpoint> = BTreeMap::new();
        let kind = if family == IpVersion::Six { "IPv6" } else { "IPv4" };
        let wanted = port.name.as_deref().unwrap_or_default();
        let slices = self.0.get(&(namespace, name)).map(Vec::as_slice).unwrap_or_default();
        for slice in slices.iter().filter(|slice| slice.address_type == kind) {
            let ports = slice.ports.iter().flatten().filter(|one| {
                one.name.as_deref().unwrap_or_default() == wanted
                    && Protocol::of(one.protocol.as_deref()) == Some(protocol)
            });
            for number in ports.filter_map(|one| number(one.port.unwrap_or(port.port))) {
                for endpoint in &slice.endpoints {
                    let state = EndpointState::of(endpoint.conditions.as_ref());
                    let zones = endpoint.hints.iter().flat_map(|hints| hints.for_zones.iter().flatten());
                    let zones: Vec<String> = zones.map(|zone| zone.name.clone()).collect();
                    let addresses = endpoint.addresses.iter().filter_map(|text| text.parse().ok());
                    for address in addresses.filter(|address: &IpAddr| IpVersion::of(*address) == family) {
                        let one = Endpoint {
                            address,
                            port: number,
                            state,
                            node: endpoint.node_name.clone(),
                            zones: zones.clone(),
                        };
                        // An endpoint may be in two slices for a while; it has the better state.
                        let before = all.get(&(address, number));
                        if before.is_none_or(|before| before.state < state) {
                            all.insert((address, number), one);
                        }
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

/// The state of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EndpointState {
    /// The endpoint gets no new flows.
    Out,
    /// The endpoint terminates, but serves until then.
    Terminating,
    /// The endpoint is ready.
    Ready,
}

impl EndpointState {
    /// Reads conditions. By default, an endpoint is ready, serves if it is ready, and is not terminating.
    fn of(conditions: Option<&EndpointConditions>) -> EndpointState {
        let of = |one: fn(&EndpointConditions) -> Option<bool>| conditions.and_then(one);
        let is_ready = of(|all| all.ready).unwrap_or(true);
        let serves = of(|all| all.serving).unwrap_or(is_ready);
        match (is_ready, serves, of(|all| all.terminating).unwrap_or(false)) {
            (true, ..) => EndpointState::Ready,
            (false, true, true) => EndpointState::Terminating,
            (false, ..) => EndpointState::Out,
        }
    }
}

/// An endpoint of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// Its state.
    pub state: EndpointState,
    /// The Kubernetes node that it is on.
    pub node: Option<String>,
    /// The zones that it should serve; if empty, all zones.
    pub zones: Vec<String>,
}

/// Endpoints that share the new flows of a weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The weight.
    pub weight: u32,
    /// The endpoints.
    pub endpoints: Vec<Endpoint>,
}

/// Returns the back ends of groups for a node.
pub(crate) fn back_ends(groups: &[Group], is_local: bool, config: &Config, node: &NodeConfig) -> Vec<Value> {
    // The weight of those that get new flows, by address and port.
    let mut weights: BTreeMap<(IpAddr, u16), u128> = BTreeMap::new();
    let chosen: Vec<Vec<&Endpoint>> =
        groups.iter().map(|group| chosen(&group.endpoints, is_local, node)).collect();
    // The endpoints of a group share its weight equally.
    let sizes = chosen.iter().map(|all| all.len() as u128).filter(|size| *size > 0);
    let common = sizes.fold(1, |all, size| (all / gcd(all, size)).checked_mul(size).unwrap_or(all));
    for (group, all) in groups.iter().zip(&chosen) {
        for endpoint in all {
            let one = u128::from(group.weight).saturating_mul(common) / all.len() as u128;
            *weights.entry((endpoint.address, endpoint.port)).or_default() += one;
        }
    }
    let shared = weights.values().copied().fold(0, gcd).max(1);
    let largest = weights.values().copied().max().unwrap_or_default() / shared;
    let scaled = |weight: u128| {
        let weight = weight / shared;
        let most = u128::from(u16::MAX);
        if largest <= most { weight } else { (weight * most / largest).max(u128::from(weight > 0)) }
    };
    // Every endpoint is a back end, because flows that it has may continue.
    let all = groups.iter().flat_map(|group| &group.endpoints);
    let all: BTreeMap<(IpAddr, u16), &Endpoint> =
        all.map(|endpoint| ((endpoint.address, endpoint.port), endpoint)).collect();
    let back_end = |((address, port), endpoint): ((IpAddr, u16), &Endpoint)| {
        let mut map: Map<String, Value> = config.each.clone();
        map.insert("name".into(), names::back_end(address, Some(port)).into());
        map.insert("ip".into(), endpoint.address.to_string().into());
        if config.translates() {
            map.insert("port".into(), port.to_string().into());
        }
        match weights.get(&(address, port)).map(|weight| scaled(*weight)) {
            None => {
                map.insert("state".into(), "draining".into());
            }
            Some(1) => {}
            // At most 65535.
            Some(weight) => {
                map.insert("weight".into(), u64::try_from(weight).unwrap_or(u64::from(u16::MAX)).into());
            }
        }
        Value::Object(map)
    };
    all.into_iter().map(back_end).collect()
}

/// Returns the endpoints that get new flows. If none is ready, those that still serve while they terminate
/// get them, so that no connection fails when the last endpoint is replaced.
fn chosen<'a>(all: &'a [Endpoint], is_local: bool, node: &NodeConfig) -> Vec<&'a Endpoint> {
    let here = node.kubernetes_node.as_ref().filter(|_| is_local);
    let near: Vec<&Endpoint> = all.iter().filter(|one| here.is_none() || one.node.as_ref() == here).collect();
    let best = near.iter().map(|one| one.state).max().filter(|state| *state > EndpointState::Out);
    let best: Vec<&Endpoint> = near.into_iter().filter(|one| Some(one.state) == best).collect();
    let Some(zone) = &node.zone else { return best };
    // As kube-proxy does: hints count only if every endpoint has some and one of them names this zone.
    let in_zone: Vec<&Endpoint> = best.iter().copied().filter(|one| one.zones.contains(zone)).collect();
    if in_zone.is_empty() || best.iter().any(|one| one.zones.is_empty()) { best } else { in_zone }
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
            node: Some(format!("n{last}")),
            zones: zones.iter().map(ToString::to_string).collect(),
        }
    }

    fn node(more: &str) -> NodeConfig {
        serde_saphyr::from_str(&format!("{{ name: n, url: 'unix:/x'{more} }}")).unwrap()
    }

    /// Returns each back end as `LAST:WEIGHT`, or `LAST:-` if it drains.
    fn shown(groups: &[Group], is_local: bool, node: &NodeConfig) -> String {
        let config = Config::parse("template: { port: p0 }").unwrap();
        let one = |back_end: &Value| {
            let name = back_end["name"].as_str().unwrap().replace("10.0.0.", "").replace("_80", "");
            let weight = back_end["weight"].as_u64().unwrap_or(1).to_string();
            format!("{name}:{}", if back_end["state"] == "draining" { "-" } else { &weight })
        };
        back_ends(groups, is_local, &config, node).iter().map(one).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn weights_of_services_are_shared_by_their_endpoints() {
        use EndpointState::{Out, Ready, Terminating};
        let all = |from: u8, to: u8| (from..=to).map(|last| endpoint(last, Ready, &[])).collect();
        let group = |weight, endpoints| Group { weight, endpoints };
        let any = node("");
        assert_eq!(shown(&[group(1, all(1, 2))], false, &any), "1:1 2:1");
        assert_eq!(shown(&[group(70, all(1, 2)), group(30, all(3, 3))], false, &any), "1:7 2:7 3:6");
        assert_eq!(shown(&[group(0, all(1, 1)), group(5, all(2, 2))], false, &any), "1:0 2:1");
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
        let all = |endpoints: Vec<Endpoint>| [Group { weight: 1, endpoints }];
        assert_eq!(shown(&all(hinted.clone()), false, &node(", zone: b")), "1:- 2:1");
        assert_eq!(shown(&all(hinted.clone()), false, &node(", zone: c")), "1:1 2:1");
        let partly = [hinted.clone(), vec![endpoint(3, Ready, &[])]].concat();
        assert_eq!(shown(&all(partly), false, &node(", zone: b")), "1:1 2:1 3:1");
        assert_eq!(shown(&all(hinted.clone()), true, &node(", kubernetes_node: n1")), "1:1 2:-");
        assert_eq!(shown(&all(hinted), false, &node(", kubernetes_node: n1")), "1:1 2:1");
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
