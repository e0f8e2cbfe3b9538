//! What the kernel has reported about links, forwarding tables and neighbours: a message contains the current
//! state, and the previous state determines which entries become invalid.

use super::change::{Cause, Change};
use super::news::MessageSource;
use super::translation::{ORIGINAL, REPLY, read};
use crate::bpf::OverlayTuple;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use weir_netlink::{Address, Forwarding, Link, Mac, Neighbour, NetlinkEvent, Object, Route, find, nud};

/// NFNL_SUBSYS_NFTABLES, NFT_MSG_NEWGEN: a transaction is complete.
const NEWGEN: u16 = 10 << 8 | 15;
/// NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_DELETE.
const CONNECTION_ENDED: u16 = 1 << 8 | 2;

/// The links that an overlay consists of, by index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    pub tunnel: u32,
    pub uplink: u32,
    pub pods: Pods,
}

/// Which interfaces are those of pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pods {
    /// The ports of a bridge, by its index.
    Bridge(u32),
    /// The interfaces whose names have this prefix; each pod has its own routes.
    Named(String),
}

impl Parts {
    /// Returns whether the overlay cannot work without this link.
    fn has(&self, link: u32) -> bool {
        [self.tunnel, self.uplink].contains(&link) || self.bridge() == Some(link)
    }

    fn bridge(&self) -> Option<u32> {
        if let Pods::Bridge(bridge) = self.pods { Some(bridge) } else { None }
    }
}

/// Where frames for a MAC address go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextHop {
    Node(IpAddr),
    Port(u32),
}

/// The state reported by the kernel.
pub struct World {
    parts: Parts,
    links: BTreeMap<u32, Link>,
    /// The next hops by the VXLAN device or the bridge, and MAC address.
    places: HashMap<(u32, Mac), NextHop>,
    neighbours: HashMap<(u32, IpAddr), Mac>,
    /// Addresses of the node.
    addresses: HashSet<Address>,
}

/// Kinds of links to whose peer a program may redirect a frame.
const PAIRS: [&str; 2] = ["veth", "netkit"];

/// Keeps only the attributes that flows depend on. A change of anything else, such as carrier or an attached
/// program, invalidates nothing.
fn relevant(link: Link) -> Link {
    let Link { index, name, mac, mtu, up, master, kind, namespace, vxlan, geneve, .. } = link;
    let namespace = namespace.map(|_| 0);
    Link { index, name, mac, mtu, up, master, kind, namespace, vxlan, geneve, ..Link::default() }
}

/// Returns whether the peer of a link is an interface in another network namespace, as with pods.
fn is_paired(link: &Link) -> bool {
    PAIRS.contains(&link.kind.as_str()) && link.namespace.is_some()
}

/// Returns whether an address is link-local: no frame to one is forwarded.
fn is_of_link(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local() || address.is_multicast())
}

impl World {
    /// Creates a world of which only the links are known.
    pub fn new(parts: Parts, links: Vec<Link>) -> World {
        let links = links.into_iter().map(|link| (link.index, relevant(link))).collect();
        World { parts, links, places: HashMap::new(), neighbours: HashMap::new(), addresses: HashSet::new() }
    }

    /// Returns the index of the uplink.
    pub fn uplink(&self) -> u32 {
        self.parts.uplink
    }

    /// Returns the pods' interfaces.
    pub fn pods(&self) -> Vec<Change> {
        let pods = self.links.values().filter(|link| self.is_pod(link));
        pods.map(|link| Change::PodCame(link.index, link.name.clone())).collect()
    }

    /// Returns the remote node that is configured in the tunnel device itself. Others are in its forwarding
    /// table.
    pub fn node(&self) -> Option<Change> {
        self.links.get(&self.parts.tunnel)?.geneve?.remote.map(Change::NodeCame)
    }

    /// Forgets forwarding tables and neighbours before they are reread.
    pub fn forget_tables(&mut self) {
        self.places.clear();
        self.neighbours.clear();
        self.addresses.clear();
    }

    /// Replaces all links, because messages were lost. An interface with another name may be a different one
    /// with the same index.
    pub fn replace_links(&mut self, links: Vec<Link>, changes: &mut Vec<Change>) {
        let same = |old: &Link| links.iter().any(|new| (new.index, &new.name) == (old.index, &old.name));
        let gone: Vec<u32> = self.links.values().filter(|old| !same(old)).map(|old| old.index).collect();
        for index in gone {
            changes.extend(self.link_gone(index));
        }
        for link in links {
            changes.extend(self.link_is(link));
        }
    }

    /// Programs redirect frames to the peer, which must belong to a pod: other ports of the bridge, such as
    /// those of virtual machines, stay on the slow path.
    fn is_pod(&self, link: &Link) -> bool {
        let is_there = match &self.parts.pods {
            Pods::Bridge(bridge) => link.master == *bridge,
            Pods::Named(start) => link.name.starts_with(start),
        };
        is_there && is_paired(link) && link.index != self.parts.tunnel && link.index != self.parts.uplink
    }

    /// Takes a message, and appends the resulting changes.
    pub fn take(&mut self, source: MessageSource, kind: u16, body: &[u8], changes: &mut Vec<Change>) {
        match (source, kind) {
            (MessageSource::Route, kind) => self.event(NetlinkEvent::parse(kind, body), changes),
            (MessageSource::Filter, NEWGEN) => changes.push(Change::Policy),
            (MessageSource::Filter, CONNECTION_ENDED) => {
                let tuples = ended(body);
                changes.extend((!tuples.is_empty()).then_some(Change::Ended(tuples)));
            }
            (MessageSource::Filter, _) => {}
        }
    }

    fn event(&mut self, NetlinkEvent { exists, object }: NetlinkEvent, changes: &mut Vec<Change>) {
        match object {
            Object::BridgePort(index) => {
                let is_pod = self.links.get(&index).is_some_and(|port| self.is_pod(port));
                changes.extend(is_pod.then_some(Change::Pod(index, Cause::Link)));
            }
            Object::Link(link) if exists => changes.extend(self.link_is(link)),
            Object::Link(link) => changes.extend(self.link_gone(link.index)),
            Object::Address(address) => {
                let changed = address.is_none_or(|address| self.address(exists, address));
                changes.extend(changed.then_some(Change::All(Cause::Address)));
            }
            Object::Route(Route { is_for_forwarding, destination }) => {
                let counts = is_for_forwarding && !destination.is_some_and(is_of_link);
                changes.extend(counts.then_some(Change::All(Cause::Route)));
            }
            Object::Rule => changes.push(Change::All(Cause::Rule)),
            Object::NextHop => changes.push(Change::All(Cause::Route)),
            Object::Forwarding(entry) => self.place(exists, entry, changes),
            Object::Neighbour(neighbour) => self.neighbour(exists, neighbour, changes),
            Object::Other => {}
        }
    }

    /// Returns whether an address was added or removed. IPv6 addresses are reported again with each router
    /// advertisement, and each interface has a link-local one that is irrelevant for routing.
    fn address(&mut self, exists: bool, address: Address) -> bool {
        let was_known =
            if exists { !self.addresses.insert(address) } else { self.addresses.remove(&address) };
        // A removed address may have been there before the first report.
        !(exists && was_known || is_of_link(address.local))
    }

    fn link_is(&mut self, link: Link) -> Option<Change> {
        let link = relevant(link);
        let before = self.links.insert(link.index, link.clone());
        if before.as_ref() == Some(&link) {
            return None;
        }
        if self.parts.has(link.index) {
            let device = |link: Link| (link.name, link.vxlan, link.geneve);
            let same = before.map(device) == Some(device(link));
            return Some(if same { Change::All(Cause::Link) } else { Change::Restart });
        }
        match (before.is_some_and(|old| self.is_pod(&old)), self.is_pod(&link)) {
            (true, true) => Some(Change::Pod(link.index, Cause::Link)),
            (true, false) => Some(Change::PodLeft(link.index)),
            (false, true) => Some(Change::PodCame(link.index, link.name)),
            (false, false) => None,
        }
    }

    fn link_gone(&mut self, index: u32) -> Option<Change> {
        let before = self.links.remove(&index)?;
        if self.parts.has(index) {
            return Some(Change::Restart);
        }
        self.is_pod(&before).then_some(Change::PodLeft(index))
    }

    /// Handles a neighbour that was resolved or removed.
    fn neighbour(&mut self, exists: bool, neighbour: Neighbour, changes: &mut Vec<Change>) {
        let Neighbour { index, address, state, mac, .. } = neighbour;
        if index == self.parts.tunnel || self.leads_to_pods(index) {
            let is_there = exists && state & (nud::FAILED | nud::INCOMPLETE) == 0;
            self.resolved((index, address), mac.filter(|_| is_there), changes);
        }
    }

    /// Returns whether an interface's neighbours are pods.
    fn leads_to_pods(&self, index: u32) -> bool {
        let is_pod = || self.links.get(&index).is_some_and(|link| self.is_pod(link));
        self.parts.bridge().map_or_else(is_pod, |bridge| bridge == index)
    }

    /// Handles a forwarding table entry, which says where frames for a MAC address go.
    fn place(&mut self, is_new: bool, entry: Forwarding, changes: &mut Vec<Change>) {
        let Forwarding { index, mac, endpoint } = entry;
        let bridge = self.parts.bridge();
        let is_port = |bridge| self.links.get(&index).is_some_and(|link| link.master == bridge);
        let (table, place) = match endpoint {
            Some(node) if index == self.parts.tunnel => (index, NextHop::Node(node)),
            None => match bridge {
                Some(bridge) if is_port(bridge) => (bridge, NextHop::Port(index)),
                _ => return,
            },
            _ => return,
        };
        if is_new && let NextHop::Node(node) = place {
            changes.push(Change::NodeCame(node));
        }
        // The entry for unknown addresses: any flow may have used it.
        if mac == [0; 6] {
            changes.push(Change::All(Cause::Forwarding));
            return;
        }
        let before =
            if is_new { self.places.insert((table, mac), place) } else { self.places.remove(&(table, mac)) };
        match before {
            Some(before) if is_new && before == place => {}
            Some(before) => changes.push(self.of(before, Cause::Forwarding)),
            // Frames for it were flooded until now, and may have been learned from elsewhere.
            None if is_new => changes.push(Change::All(Cause::Forwarding)),
            None => {}
        }
    }

    /// Records that a neighbour now has this MAC address.
    fn resolved(&mut self, at: (u32, IpAddr), mac: Option<Mac>, changes: &mut Vec<Change>) {
        let before = match mac {
            Some(mac) => self.neighbours.insert(at, mac).filter(|before| *before != mac),
            None => self.neighbours.remove(&at),
        };
        let Some(before) = before else { return };
        let own =
            self.links.get(&at.0).filter(|link| self.is_pod(link)).map(|link| NextHop::Port(link.index));
        let place = own.or_else(|| self.places.get(&(at.0, before)).copied());
        let all = Change::All(Cause::Neighbour);
        changes.push(place.map_or(all, |place| self.of(place, Cause::Neighbour)));
    }

    /// Returns the change that invalidates the flows through a place.
    fn of(&self, place: NextHop, cause: Cause) -> Change {
        match place {
            NextHop::Node(node) => Change::Node(node, cause),
            NextHop::Port(port) if self.links.get(&port).is_some_and(|link| self.is_pod(link)) => {
                Change::Pod(port, cause)
            }
            NextHop::Port(_) => Change::All(cause),
        }
    }
}

/// Reads the tuples of a connection that has ended: before and after NAT, in both directions.
fn ended(body: &[u8]) -> Vec<OverlayTuple> {
    let Some(rest) = body.get(4..) else { return Vec::new() };
    let both = [ORIGINAL, REPLY].into_iter().filter_map(|kind| read(find(rest, kind)?));
    let mut tuples: Vec<OverlayTuple> = Vec::new();
    for tuple in both.flat_map(|tuple| [tuple, tuple.reversed()]) {
        if !tuples.contains(&tuple) {
            tuples.push(tuple);
        }
    }
    tuples
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};
    use weir_netlink::rtm::*;
    use weir_netlink::{AF_BRIDGE, AF_INET, AF_INET6, attribute};

    const PARTS: Parts = Parts { tunnel: 5, uplink: 2, pods: Pods::Bridge(4) };
    const NODES: [IpAddr; 2] =
        [IpAddr::V4(Ipv4Addr::new(10, 98, 0, 2)), IpAddr::V6(Ipv6Addr::new(0xfd98, 0, 0, 0, 0, 0, 0, 3))];

    fn world() -> World {
        let pod = |index, name: &str| Link {
            index,
            name: name.into(),
            master: 4,
            kind: "veth".into(),
            namespace: Some(0),
            ..Link::default()
        };
        let own = |index, name: &str| Link { index, name: name.into(), ..Link::default() };
        let links = vec![own(2, "up0"), own(4, "cni0"), own(5, "vx0"), pod(7, "vp1"), pod(8, "vp2")];
        World::new(PARTS, links)
    }

    fn octets(address: IpAddr) -> Vec<u8> {
        match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        }
    }

    /// A neighbour's message: family, interface, MAC address (its last byte), and where.
    fn neighbour(family: u8, index: u32, mac: u8, to: Option<IpAddr>) -> Vec<u8> {
        let mut body = vec![family, 0, 0, 0];
        body.extend(index.to_ne_bytes());
        body.extend([2, 0, 0, 0]);
        body.extend(to.map(|to| attribute(1, &octets(to))).unwrap_or_default());
        body.extend(attribute(2, &[2, 0, 0, 0, 0, mac]));
        body
    }

    fn took(world: &mut World, kind: u16, body: &[u8]) -> Vec<Change> {
        let mut changes = Vec::new();
        world.take(MessageSource::Route, kind, body, &mut changes);
        changes
    }

    #[test]
    fn a_mac_address_that_moves_makes_void_what_led_to_its_former_place() {
        let mut world = world();
        let at = |node: usize| neighbour(AF_BRIDGE, 5, 1, Some(NODES[node]));
        let flooded_before = Change::All(Cause::Forwarding);
        let came = [Change::NodeCame(NODES[0]), flooded_before.clone()];
        assert_eq!(took(&mut world, RTM_NEWNEIGH, &at(0)), came);
        assert_eq!(took(&mut world, RTM_NEWNEIGH, &at(0)), [Change::NodeCame(NODES[0])], "as before");
        let moved = [Change::NodeCame(NODES[1]), Change::Node(NODES[0], Cause::Forwarding)];
        assert_eq!(took(&mut world, RTM_NEWNEIGH, &at(1)), moved);
        assert_eq!(took(&mut world, RTM_DELNEIGH, &at(1)), [Change::Node(NODES[1], Cause::Forwarding)]);
        // The bridge's own table.
        assert_eq!(took(&mut world, RTM_NEWNEIGH, &neighbour(AF_BRIDGE, 7, 9, None)), [flooded_before]);
        let moved = took(&mut world, RTM_NEWNEIGH, &neighbour(AF_BRIDGE, 8, 9, None));
        assert_eq!(moved, [Change::Pod(7, Cause::Forwarding)]);
    }

    #[test]
    fn a_neighbour_with_another_mac_address_makes_void_what_led_to_the_former() {
        neighbour_changes(AF_INET, Ipv4Addr::new(10, 244, 1, 11).into());
        neighbour_changes(AF_INET6, Ipv6Addr::new(0xfd00, 10, 244, 1, 0, 0, 0, 11).into());
    }

    fn neighbour_changes(family: u8, pod: IpAddr) {
        let mut world = world();
        took(&mut world, RTM_NEWNEIGH, &neighbour(AF_BRIDGE, 7, 1, None));
        let is = |mac| neighbour(family, 4, mac, Some(pod));
        assert_eq!(took(&mut world, RTM_NEWNEIGH, &is(1)), []);
        assert_eq!(took(&mut world, RTM_NEWNEIGH, &is(1)), [], "as before");
        assert_eq!(took(&mut world, RTM_NEWNEIGH, &is(3)), [Change::Pod(7, Cause::Neighbour)]);
        assert_eq!(
            took(&mut world, RTM_DELNEIGH, &is(3)),
            [Change::All(Cause::Neighbour)],
            "an unknown place"
        );
        // The next hop on the uplink is resolved for every frame.
        let hop = |mac| neighbour(family, 2, mac, Some(NODES[0]));
        assert_eq!(took(&mut world, RTM_NEWNEIGH, &hop(1)), []);
        assert_eq!(took(&mut world, RTM_NEWNEIGH, &hop(2)), []);
    }

    #[test]
    fn addresses_and_routes_of_one_link_change_nothing() {
        let mut world = world();
        let of = |address: &str| attribute(1, &octets(address.parse().unwrap()));
        let address = |text: &str| [vec![AF_INET6, 64, 0, 0, 2, 0, 0, 0], of(text)].concat();
        let route = |text: &str| [vec![AF_INET6, 64, 0, 0, 254, 0, 0, 0, 0, 0, 0, 0], of(text)].concat();
        let all = |cause| vec![Change::All(cause)];
        assert_eq!(took(&mut world, RTM_NEWADDR, &address("fd00::5")), all(Cause::Address));
        assert_eq!(took(&mut world, RTM_NEWADDR, &address("fd00::5")), [], "reported again");
        assert_eq!(took(&mut world, RTM_DELADDR, &address("fd00::5")), all(Cause::Address));
        assert_eq!(took(&mut world, RTM_NEWADDR, &address("fe80::5")), []);
        assert_eq!(took(&mut world, RTM_NEWADDR, &[AF_INET6]), all(Cause::Address), "what is not understood");
        assert_eq!(took(&mut world, RTM_NEWROUTE, &route("fd00::")), all(Cause::Route));
        assert_eq!(took(&mut world, RTM_NEWROUTE, &route("fe80::")), []);
        assert_eq!(took(&mut world, RTM_DELROUTE, &route("ff00::")), []);
    }

    #[test]
    fn links_come_change_and_go() {
        let mut world = world();
        let body = |index: u32, name: &str, mtu: u32, master: u32| {
            let mut body = vec![0; 16];
            body[4..8].copy_from_slice(&index.to_ne_bytes());
            body.extend(attribute(3, format!("{name}\0").as_bytes()));
            body.extend(attribute(4, &mtu.to_ne_bytes()));
            body.extend(attribute(10, &master.to_ne_bytes()));
            body.extend(attribute(18, &attribute(1, b"veth\0")));
            body.extend(attribute(37, &[0; 4]));
            body
        };
        // The interface of a virtual machine, whose peer is not an interface.
        let mut tap = body(6, "tap0", 1450, 4);
        tap.truncate(tap.len() - 8);
        assert_eq!(took(&mut world, RTM_NEWLINK, &tap), []);
        let came = took(&mut world, RTM_NEWLINK, &body(9, "vp3", 1450, 4));
        assert_eq!(came, [Change::PodCame(9, "vp3".into())]);
        assert_eq!(took(&mut world, RTM_NEWLINK, &body(9, "vp3", 1450, 4)), [], "as before");
        let changed = took(&mut world, RTM_NEWLINK, &body(9, "vp3", 1400, 4));
        assert_eq!(changed, [Change::Pod(9, Cause::Link)]);
        assert_eq!(took(&mut world, RTM_NEWLINK, &body(9, "vp3", 1400, 0)), [Change::PodLeft(9)]);
        assert_eq!(took(&mut world, RTM_DELLINK, &body(7, "vp1", 0, 4)), [Change::PodLeft(7)]);
        assert_eq!(took(&mut world, RTM_NEWLINK, &body(2, "up0", 1400, 0)), [Change::All(Cause::Link)]);
        assert_eq!(took(&mut world, RTM_DELLINK, &body(5, "vx0", 0, 0)), [Change::Restart]);
    }

    #[test]
    fn pods_without_a_bridge_are_found_by_their_names() {
        let mut world = world();
        world.parts.pods = Pods::Named("vp".into());
        let pods = [Change::PodCame(7, "vp1".into()), Change::PodCame(8, "vp2".into())];
        assert_eq!(world.pods(), pods);
        let is = |mac| neighbour(AF_INET, 7, mac, Some(Ipv4Addr::new(10, 244, 1, 11).into()));
        assert_eq!(took(&mut world, RTM_NEWNEIGH, &is(1)), []);
        assert_eq!(took(&mut world, RTM_NEWNEIGH, &is(2)), [Change::Pod(7, Cause::Neighbour)]);
        assert_eq!(took(&mut world, RTM_NEWNEIGH, &neighbour(AF_BRIDGE, 7, 9, None)), [], "no bridge");
    }

    #[test]
    fn links_that_came_and_went_unheard_are_found() {
        let mut world = world();
        let mut links: Vec<Link> = world.links.values().cloned().collect();
        let mut changes = Vec::new();
        world.replace_links(links.clone(), &mut changes);
        assert_eq!(changes, [], "as before");
        // Another pod has reused the index of one that is gone, and a new one has appeared.
        links[3].name = "vp9".into();
        links.push(Link { index: 11, name: "vp11".into(), ..links[4].clone() });
        world.replace_links(links.clone(), &mut changes);
        let came = |index, name: &str| Change::PodCame(index, name.into());
        assert_eq!(changes, [Change::PodLeft(7), came(7, "vp9"), came(11, "vp11")]);
        changes.clear();
        links.retain(|link| link.name != "vx0");
        world.replace_links(links, &mut changes);
        assert_eq!(changes, [Change::Restart]);
    }

    #[test]
    fn a_connection_that_has_ended_is_one_flow_as_either_end_sees_it() {
        let ip = [attribute(1, &[10, 244, 1, 11]), attribute(2, &[10, 244, 2, 11])].concat();
        let ports = [attribute(1, &[17]), attribute(2, &[0x12, 0x34]), attribute(3, &[0x13, 0x89])].concat();
        let tuple = [attribute(1, &ip), attribute(2, &ports)].concat();
        let body = [vec![2, 0, 0, 0], attribute(1, &tuple)].concat();
        let tuples = ended(&body);
        assert_eq!(tuples.len(), 2);
        assert_eq!((tuples[0].ports, tuples[1].ports), ([0x1234, 5001], [5001, 0x1234]));
        assert_eq!(tuples[0].addresses[0], tuples[1].addresses[1]);
        for length in 0..body.len() {
            assert!(ended(&body[..length]).len() <= 2, "a truncated message does not panic");
        }
    }
}
