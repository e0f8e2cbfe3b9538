//! A network namespace with the interfaces of a node, in which the test's thread runs, and frames as a pod
//! and a remote node send them.

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use rustix::time::{ClockId, clock_gettime};
use std::fs::File;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::Duration;
use weir_overlay::bpf::{OverlayIp, OverlaySettings, OverlayTunnel, STAMP_FIRST, TcOverlay};

pub const PASS: i32 = -1;
pub const REDIRECT: i32 = 7;
pub const HERE: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 1);
pub const NODE: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 2);
pub const HERE_6: Ipv6Addr = Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 1);
pub const NODE_6: Ipv6Addr = Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 2);
pub const POD: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 5);
pub const OTHER: Ipv4Addr = Ipv4Addr::new(10, 244, 2, 7);
/// The addresses of another pod on this node, of a service, and of another node.
pub const NEIGHBOUR: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 6);
pub const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 9);
pub const SECOND_NODE: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 3);
pub const VNI: u32 = 42;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const ACK: u8 = 0x10;
/// MAC addresses by their last byte: the uplink, the next hop, the pod, its bridge, the two VXLAN devices.
pub const NODE_STAMP: u32 = STAMP_FIRST;
pub const POD_STAMP: u32 = STAMP_FIRST + 1;
pub const SECOND_NODE_STAMP: u32 = STAMP_FIRST + 2;
pub const NEIGHBOUR_STAMP: u32 = STAMP_FIRST + 3;
pub const UP: u8 = 1;
pub const HOP: u8 = 2;
pub const POD_MAC: u8 = 3;
pub const BRIDGE: u8 = 4;
pub const TUNNEL: u8 = 5;
pub const FAR: u8 = 6;
pub const NEIGHBOUR_MAC: u8 = 7;
const WANTS: [u32; 2] = [1 << 24, 2 << 24];
pub const ESTABLISHED: u32 = 4 << 24;
pub const NAT: u32 = 8 << 24;
pub const MASK: u32 = 0xff00_0000;

/// Interfaces: the uplink, a pod's, the VXLAN device, all with nothing at the other end.
const INTERFACES: &str = "link set lo up
link add up0 address 02:00:00:00:00:01 type veth peer name far0
link add pod0 mtu 1450 type veth peer name peer0
link add pod1 mtu 1450 type veth peer name peer1
link set up0 up
link set far0 up
link set pod0 up
link set peer0 up
link set pod1 up
link set peer1 up
";
/// Further commands for IPv4 nodes.
const NODES_OF_4: &str =
    "link add vx0 mtu 1450 type vxlan id 42 dstport 4789 local 10.0.1.1 dev up0 nolearning noudpcsum
link set vx0 up
address add 10.0.1.1/24 dev up0
neighbour add 10.0.1.2 lladdr 02:00:00:00:00:02 dev up0 nud permanent
";
/// Further commands for IPv6 nodes.
const NODES_OF_6: &str =
    "link add vx0 mtu 1430 type vxlan id 42 dstport 4789 local fd00:1::1 dev up0 nolearning udp6zerocsumtx
link set vx0 up
address add fd00:1::1/64 dev up0 nodad
neighbour add fd00:1::2 lladdr 02:00:00:00:00:02 dev up0 nud permanent
";

/// The programs in a separate namespace.
pub struct OverlayRig {
    pub programs: TcOverlay,
    pub settings: OverlaySettings,
    pub up: u32,
    pub pod: u32,
    /// The interface of [`NEIGHBOUR`].
    pub neighbour: u32,
    namespace: String,
}

impl Drop for OverlayRig {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.namespace]).status();
    }
}

/// Runs `ip` with lines of commands, in the thread's namespace. The programs repeat their look-ups once the
/// kernel's coarse clock has ticked.
pub fn ip(lines: &str) {
    for line in lines.lines() {
        run("ip", &line.split(' ').collect::<Vec<_>>());
    }
    wait_for_ticks(Duration::from_millis(20));
}

/// Waits until the kernel's coarse clock, which the programs read, has advanced by `time`. On a busy machine,
/// it may stand still for longer than its tick.
pub fn wait_for_ticks(time: Duration) {
    let until = coarse_now() + time;
    while coarse_now() < until {
        sleep(Duration::from_millis(1));
    }
}

/// The time of the kernel's coarse clock.
pub fn coarse_now() -> Duration {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Runs a command in the thread's namespace.
pub fn run(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status().unwrap();
    assert!(status.success(), "{program} {arguments:?}");
}

fn index(interface: &str) -> u32 {
    let out = Command::new("ip").args(["-o", "link", "show", interface]).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    text.split(':').next().and_then(|index| index.parse().ok()).expect("an interface")
}

impl OverlayRig {
    /// Loads the programs with a lease, a remote node and a pod; `None` without root.
    pub fn new(flows: u32) -> Option<OverlayRig> {
        OverlayRig::with(flows, OverlayIp::V4)
    }

    /// Loads the programs for nodes of this IP version.
    pub fn with(flows: u32, nodes: OverlayIp) -> Option<OverlayRig> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        if !weir_bed::is_root() {
            return None;
        }
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let namespace = format!("weir-bpf-{}-{count}", std::process::id());
        ip(&format!("netns add {namespace}"));
        let file = File::open(format!("/run/netns/{namespace}")).unwrap();
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        // The other ends must not send anything by themselves.
        let before = [
            "net.ipv4.ip_forward=1",
            "net.ipv6.conf.all.forwarding=1",
            "net.ipv6.conf.default.disable_ipv6=1",
        ];
        run("sysctl", &[&["-qw"][..], &before].concat());
        ip(INTERFACES);
        run("sysctl", &["-qw", "net.ipv6.conf.up0.disable_ipv6=0"]);
        ip(if nodes == OverlayIp::V4 { NODES_OF_4 } else { NODES_OF_6 });
        run("sysctl", &["-qw", "net.ipv6.conf.vx0.disable_ipv6=0"]);
        let settings = OverlaySettings {
            kind: OverlayTunnel::Vxlan,
            vni: VNI,
            port: 4789,
            tunnel: index("vx0"),
            sources: [32_768, 60_999],
            mark: MASK,
            ttl_ns: u64::MAX,
            seed: 7,
            zero_checks: [true; 2],
        };
        let mut programs = TcOverlay::load(flows, nodes).unwrap();
        programs.set(&settings).unwrap();
        programs.extend(u64::MAX).unwrap();
        let pod = index("pod0");
        let node = if nodes == OverlayIp::V4 { NODE.into() } else { NODE_6.into() };
        programs.set_node(node, NODE_STAMP).unwrap();
        programs.attach_pod("pod0", pod, POD_STAMP).unwrap();
        let neighbour = index("pod1");
        programs.attach_pod("pod1", neighbour, NEIGHBOUR_STAMP).unwrap();
        Some(OverlayRig { programs, settings, up: index("up0"), pod, neighbour, namespace })
    }

    /// Runs a program on a frame with a mark; returns its verdict, the frame and its mark.
    pub fn run(&mut self, name: &str, frame: &[u8], mark: u32) -> (i32, Vec<u8>, u32) {
        let interface = match name {
            "overlay_send" | "overlay_learn_receive" => self.pod,
            _ => self.up,
        };
        self.programs.test_run(name, frame, (interface, mark, 0)).unwrap()
    }

    /// Runs a program on a frame, and asserts that the frame leaves unchanged, on the slow path. Returns the
    /// count that this has incremented besides that of frames seen.
    pub fn slow(&mut self, name: &str, frame: &[u8]) -> &'static str {
        let at = usize::from(name == "overlay_receive");
        let before = self.programs.frames()[at];
        let (verdict, out, _) = self.run(name, frame, 0);
        assert_eq!((verdict, &out[..]), (PASS, frame), "as without the programs");
        let after = self.programs.frames()[at];
        assert!(after.is_balanced(), "{after:?}");
        let grown: Vec<_> =
            after.slow().zip(before.slow()).filter(|((_, now), (_, then))| now != then).collect();
        assert_eq!(grown.len(), 1, "{grown:?}");
        grown[0].0.0
    }

    /// Changes the kind of the tunnels. Geneve devices choose from all source ports.
    pub fn use_geneve(&mut self) {
        self.settings.tunnel = index("vx0");
        (self.settings.kind, self.settings.port) = (OverlayTunnel::Geneve, 6081);
        self.settings.sources = [1, u16::MAX];
        self.programs.set(&self.settings).unwrap();
    }

    /// Returns a frame with VXLAN as a frame of the rig's tunnels.
    pub fn in_tunnel(&self, vxlan: &[u8]) -> Vec<u8> {
        match self.settings.kind {
            OverlayTunnel::Vxlan => vxlan.to_vec(),
            OverlayTunnel::Geneve => geneve(vxlan, &[]),
        }
    }

    /// Makes the programs learn a flow with this port in both directions, as the kernel and nftables would.
    pub fn learn(&mut self, protocol: u8, port: u16) {
        for direction in 0..2 {
            let (marks, learns) =
                [("overlay_send", "overlay_learn_send"), ("overlay_receive", "overlay_learn_receive")]
                    [direction];
            let (before, after) = if direction == 0 {
                (sent(protocol, port), self.in_tunnel(&tunnelled(&routed(protocol, port), [HERE, NODE])))
            } else {
                (self.in_tunnel(&arriving(protocol, port)), delivered(protocol, port))
            };
            let (_, _, mark) = self.run(marks, &before, 0);
            assert_eq!(mark & 15 << 24, WANTS[direction]);
            let (verdict, out, mark) = self.run(learns, &after, mark | ESTABLISHED);
            assert_eq!((verdict, &out, mark), (PASS, &after, 0));
        }
    }
}

pub fn mac(last: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, last]
}

pub fn folded(bytes: &[u8], start: u32) -> u16 {
    let sum = bytes.chunks(2).fold(start, |sum, two| {
        sum + u32::from(u16::from_be_bytes([two[0], two.get(1).copied().unwrap_or_default()]))
    });
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// Writes the checksum of the IP header at an offset.
pub fn seal(frame: &mut [u8], at: usize) {
    frame[at + 10..at + 12].fill(0);
    let check = !folded(&frame[at..at + 20], 0);
    frame[at + 10..at + 12].copy_from_slice(&check.to_be_bytes());
}

/// An inner frame: MAC addresses (destination, source), addresses, ports, the TTL.
pub fn inner(
    macs: [u8; 2],
    [from, to]: [Ipv4Addr; 2],
    ports: [u16; 2],
    (protocol, ttl): (u8, u8),
) -> Vec<u8> {
    let segment = if protocol == TCP { 20 } else { 8 } + 10;
    let mut frame = [mac(macs[0]), mac(macs[1])].concat();
    frame.extend([8, 0, 0x45, 0]);
    frame.extend((20 + segment as u16).to_be_bytes());
    frame.extend([0x12, 0x34, 0x40, 0, ttl, protocol, 0, 0]);
    frame.extend(from.octets());
    frame.extend(to.octets());
    ports.iter().for_each(|port| frame.extend(port.to_be_bytes()));
    match protocol {
        TCP => frame.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, ACK, 1, 0, 0xab, 0xcd, 0, 0]),
        _ => frame.extend([0, 18, 0xab, 0xcd]),
    }
    frame.extend(*b"0123456789");
    seal(&mut frame, 14);
    frame
}

/// A frame that the pod sends from a port to its bridge.
pub fn sent(protocol: u8, port: u16) -> Vec<u8> {
    inner([BRIDGE, POD_MAC], [POD, OTHER], [port, 5001], (protocol, 64))
}

/// The frame of [`sent`] after the node has routed it to the VXLAN device.
pub fn routed(protocol: u8, port: u16) -> Vec<u8> {
    inner([FAR, TUNNEL], [POD, OTHER], [port, 5001], (protocol, 63))
}

/// The other pod's answer, as the remote node passes it to its VXLAN device.
pub fn answer(protocol: u8, port: u16) -> Vec<u8> {
    inner([TUNNEL, FAR], [OTHER, POD], [5001, port], (protocol, 63))
}

/// The frame of [`answer`] as it arrives at the uplink.
pub fn arriving(protocol: u8, port: u16) -> Vec<u8> {
    tunnelled(&answer(protocol, port), [NODE, HERE])
}

/// The frame of [`answer`] as the pod receives it.
pub fn delivered(protocol: u8, port: u16) -> Vec<u8> {
    inner([POD_MAC, BRIDGE], [OTHER, POD], [5001, port], (protocol, 62))
}

/// Prepends tunnel headers to a frame, like the kernel without checksums.
pub fn tunnelled(frame: &[u8], [from, to]: [Ipv4Addr; 2]) -> Vec<u8> {
    let udp = 16 + frame.len() as u16;
    let macs = if from == HERE { [HOP, UP] } else { [UP, HOP] };
    let mut out = macs.map(mac).concat();
    out.extend([8, 0, 0x45, frame[15] & 3]);
    out.extend((20 + udp).to_be_bytes());
    out.extend([0x55, 0x55, 0, 0, 64, UDP, 0, 0]);
    out.extend(from.octets());
    out.extend(to.octets());
    out.extend(40_000_u16.to_be_bytes());
    out.extend(4789_u16.to_be_bytes());
    out.extend(udp.to_be_bytes());
    out.extend([0, 0, 8, 0, 0, 0]);
    out.extend(&(VNI << 8).to_be_bytes());
    seal(&mut out, 14);
    out.extend(frame);
    out
}

/// Turns a frame with VXLAN over IPv4 into one with Geneve and these options, of a multiple of four bytes.
pub fn geneve(vxlan: &[u8], options: &[u8]) -> Vec<u8> {
    let mut out = [&vxlan[..50], options, &vxlan[50..]].concat();
    for at in [16, 38] {
        let length = u16::from_be_bytes([out[at], out[at + 1]]) + options.len() as u16;
        out[at..at + 2].copy_from_slice(&length.to_be_bytes());
    }
    out[36..38].copy_from_slice(&6081_u16.to_be_bytes());
    out[42..46].copy_from_slice(&[options.len() as u8 / 4, 0, 0x65, 0x58]);
    seal(&mut out, 14);
    out
}
