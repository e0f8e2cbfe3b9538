//! Tunnels: an example configuration, and weir's tunnels compared with the kernel's own devices, byte for
//! byte: what each sends into a tunnel for the same frame, and what each decapsulates from it. Needs root.
//! Devices that the running kernel lacks are listed and skipped.
//!
//! ```text
//!  namespace far       namespace near
//!   inside1 ---------- inside0 - bridge or route - tunnel device - outside0 ---------- outside1
//!   (frames)                                                                          (tunnel)
//! ```
//!
//! Five things are not compared: the IPv4 identification, which the kernel increments and weir leaves 0; the
//! IPv6 flow label, which is 0 or the kernel's own; the UDP source port, where the device cannot be given a
//! range; packets marked CE, for which the kernel sets ECT(0) in the outer header (RFC 3168) where weir
//! copies the mark (RFC 6040 §4.1); and the outer DSCP and ECN of gretap around a VLAN tag, which the kernel
//! leaves 0 where weir copies those of the IP header behind the tag, as RFC 6040 requires and the kernel's
//! own vxlan and geneve devices do.

use cli::config::{Plan, read};
use cli::explain::Explanation;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use weir_bed::{Namespace, Run, cable};
use weir_packet::craft::{Recipe, describe};
use weir_packet::{Batch, Bits, DropReason, Pool, PoolId, Pools, Port, RegionPool, checksum};
use weir_port::xdp::{Rings, XdpConfig, XdpInterface, XdpPort};
use weir_program::PortId;
use weir_program::Verdict;

const RINGS: Rings = Rings { fill: 256, receive: 256, transmit: 256 };
const PATIENCE: Duration = Duration::from_secs(30);
/// How long to wait for a frame that must not arrive.
const SILENCE: Duration = Duration::from_millis(200);

/// A tunnel, as configured in the kernel and in weir.
struct TunnelCase {
    /// Name used in messages.
    name: &'static str,
    /// Arguments of `ip link add tunnel`.
    device: &'static str,
    /// An `ip` command that must run first.
    before: Option<&'static str>,
    /// Tunnel name in weir's configuration.
    word: &'static str,
    /// Parameters for weir besides addresses.
    options: &'static str,
    /// The outer header is IPv6.
    ipv6: bool,
    /// The tunnel carries Ethernet frames; otherwise IP packets, which the kernel routes.
    ethernet: bool,
    /// There is no UDP source port, or the kernel can be given one.
    same_port: bool,
}

const TUNNELS: &[TunnelCase] = &[
    TunnelCase {
        name: "vxlan over IPv4",
        device: "type vxlan id 5010 local 192.0.2.1 remote 192.0.2.2 dstport 4789 srcport 50000 50001 ttl \
            64 tos inherit \
                 df set noudpcsum nolearning",
        before: None,
        word: "vxlan",
        options: "vni: 5010, sport: 50000, dscp: copy",
        ipv6: false,
        ethernet: true,
        same_port: true,
    },
    TunnelCase {
        name: "vxlan over IPv4 with a UDP checksum",
        device: "type vxlan id 5010 local 192.0.2.1 remote 192.0.2.2 dstport 4789 srcport 50000 50001 ttl \
            64 tos inherit \
                 df set udpcsum nolearning",
        before: None,
        word: "vxlan",
        options: "vni: 5010, sport: 50000, dscp: copy, udp_checksum: true",
        ipv6: false,
        ethernet: true,
        same_port: true,
    },
    TunnelCase {
        name: "vxlan over IPv6",
        device: "type vxlan id 16777215 local 2001:db8::1 remote 2001:db8::2 dstport 4789 srcport 50000 \
            50001 ttl 64 \
                 tos inherit udp6zerocsumtx udp6zerocsumrx nolearning",
        before: None,
        word: "vxlan",
        options: "vni: 16777215, sport: 50000, dscp: copy",
        ipv6: true,
        ethernet: true,
        same_port: true,
    },
    TunnelCase {
        name: "vxlan over IPv6 with a UDP checksum",
        device: "type vxlan id 1 local 2001:db8::1 remote 2001:db8::2 dstport 4789 srcport 50000 50001 ttl \
            64 tos inherit \
                 noudp6zerocsumtx udp6zerocsumrx nolearning",
        before: None,
        word: "vxlan",
        options: "vni: 1, sport: 50000, dscp: copy, udp_checksum: true",
        ipv6: true,
        ethernet: true,
        same_port: true,
    },
    TunnelCase {
        name: "geneve over IPv4",
        device: "type geneve id 5010 remote 192.0.2.2 dstport 6081 ttl 64 tos inherit df set noudpcsum",
        before: None,
        word: "geneve",
        options: "vni: 5010, sport: 50000, dscp: copy",
        ipv6: false,
        ethernet: true,
        same_port: false,
    },
    TunnelCase {
        name: "geneve over IPv6",
        device: "type geneve id 5010 remote 2001:db8::2 dstport 6081 ttl 64 tos inherit udp6zerocsumtx \
            udp6zerocsumrx",
        before: None,
        word: "geneve",
        options: "vni: 5010, sport: 50000, dscp: copy",
        ipv6: true,
        ethernet: true,
        same_port: false,
    },
    TunnelCase {
        name: "gre with Ethernet inside (gretap)",
        device: "type gretap local 192.0.2.1 remote 192.0.2.2 key 7 ttl 64 tos inherit",
        before: None,
        word: "gre",
        options: "key: 7, inner: ethernet, dscp: copy",
        ipv6: false,
        ethernet: true,
        same_port: true,
    },
    TunnelCase {
        name: "gre with IP inside",
        device: "type gre local 192.0.2.1 remote 192.0.2.2 ttl 64 tos inherit",
        before: None,
        word: "gre",
        options: "dscp: copy",
        ipv6: false,
        ethernet: false,
        same_port: true,
    },
    TunnelCase {
        name: "gre over IPv6 with Ethernet inside (ip6gretap)",
        device: "type ip6gretap local 2001:db8::1 remote 2001:db8::2 key 7 hoplimit 64 tclass inherit \
            encaplimit none",
        before: None,
        word: "gre",
        options: "key: 7, inner: ethernet, dscp: copy",
        ipv6: true,
        ethernet: true,
        same_port: true,
    },
    TunnelCase {
        name: "gre over IPv6 with IP inside (ip6gre)",
        device: "type ip6gre local 2001:db8::1 remote 2001:db8::2 hoplimit 64 tclass inherit encaplimit none",
        before: None,
        word: "gre",
        options: "dscp: copy",
        ipv6: true,
        ethernet: false,
        same_port: true,
    },
    TunnelCase {
        name: "IP in IPv4 (ipip)",
        device: "type ipip local 192.0.2.1 remote 192.0.2.2 mode any ttl 64 tos inherit",
        before: None,
        word: "ipip",
        options: "dscp: copy",
        ipv6: false,
        ethernet: false,
        same_port: true,
    },
    TunnelCase {
        name: "IP in IPv4 (sit)",
        device: "type sit local 192.0.2.1 remote 192.0.2.2 mode any ttl 64 tos inherit",
        before: None,
        word: "ipip",
        options: "dscp: copy",
        ipv6: false,
        ethernet: false,
        same_port: true,
    },
    TunnelCase {
        name: "IP in IPv6 (ip6tnl)",
        device: "type ip6tnl local 2001:db8::1 remote 2001:db8::2 mode any hoplimit 64 tclass inherit \
            encaplimit none",
        before: None,
        word: "ipip",
        options: "dscp: copy",
        ipv6: true,
        ethernet: false,
        same_port: true,
    },
    TunnelCase {
        name: "gue over IPv4 (ipip, encap gue)",
        device: "type ipip local 192.0.2.1 remote 192.0.2.2 mode any ttl 64 tos inherit encap gue \
            encap-sport 50000 encap-dport 6080 noencap-csum",
        before: Some("fou add port 6080 gue"),
        word: "gue",
        options: "sport: 50000, dscp: copy",
        ipv6: false,
        ethernet: false,
        same_port: true,
    },
    TunnelCase {
        name: "gue over IPv6 (ip6tnl, encap gue)",
        device: "type ip6tnl local 2001:db8::1 remote 2001:db8::2 mode any hoplimit 64 tclass inherit \
            encaplimit none encap gue encap-sport 50000 encap-dport 6080 noencap-udp6-csum",
        before: Some("-6 fou add port 6080 gue"),
        word: "gue",
        options: "sport: 50000, dscp: copy",
        ipv6: true,
        ethernet: false,
        same_port: true,
    },
    TunnelCase {
        name: "gue of variant 1 over IPv4 (ipip, encap fou)",
        device: "type ipip local 192.0.2.1 remote 192.0.2.2 mode any ttl 64 tos inherit encap fou \
            encap-sport 50000 encap-dport 6080 noencap-csum",
        before: Some("fou add port 6080 gue"),
        word: "gue",
        options: "sport: 50000, dscp: copy, variant: 1",
        ipv6: false,
        ethernet: false,
        same_port: true,
    },
];

impl TunnelCase {
    /// Outer addresses of the near and the far end.
    fn ends(&self) -> [&'static str; 2] {
        if self.ipv6 { ["2001:db8::1", "2001:db8::2"] } else { ["192.0.2.1", "192.0.2.2"] }
    }

    /// Whether the kernel's device carries IPv6: one of type ipip carries only IPv4 and MPLS.
    fn carries_ipv6(&self) -> bool {
        !self.device.starts_with("type ipip")
    }

    /// Whether the kernel's device fails to find the IP header of this frame.
    fn overlooks_ip(&self, inner: &[u8]) -> bool {
        self.word == "gre" && !self.ipv6 && inner[12..14] == [0x81, 0]
    }

    /// A configuration with which weir does the same as the near namespace. A router decrements the TTL and
    /// rewrites MACs.
    fn plan(&self) -> Plan {
        let TunnelCase { word, options, .. } = self;
        let [near, far] = self.ends();
        let outer = format!(
            "encap_{word}: {{ eth.dst: 02:00:00:00:02:01, eth.src: 02:00:00:00:02:00, src: \"{near}\", dst: \
                \"{far}\", {options} }}"
        );
        let (before, behind) = match self.ethernet {
            true => ("", ""),
            false => (
                "decrement_ttl, ",
                ", { set: { eth.dst: 02:00:00:00:01:01, eth.src: 02:00:00:00:01:00 } }, decrement_ttl",
            ),
        };
        let text = format!(
            "ports: {{ inside: {{ mem: , root: wrap }}, outside: {{ mem: , root: unwrap }} }}\npipes:\n\
             \x20 wrap: {{ type: basic, action: [{before}{{ {outer} }}], forward: outside, miss: drop, \
             entries: [{{}}] }}\n\
             \x20 unwrap: {{ type: basic, action: [decap_{word}{behind}], forward: inside, miss: drop, \
             entries: [{{}}] }}\n"
        );
        let loaded = read("kernel_tunnels", &text);
        loaded.plan.unwrap_or_else(|| panic!("{text}{}", loaded.report))
    }
}

/// Two namespaces, one of them with a tunnel device.
struct TunnelLab {
    near: String,
    far: Namespace,
    _run: Run,
}

impl TunnelLab {
    /// Creates it; `None` without root.
    fn new() -> Option<TunnelLab> {
        let run = Run::of_test("tunnel")?;
        let [near, far] = ["n", "f"].map(|role| run.namespace(role).unwrap());
        near.set(&[("ipv6/conf/all/disable_ipv6", 0), ("ipv6/conf/default/disable_ipv6", 0)]).unwrap();
        near.set(&[("ipv6/conf/default/accept_dad", 0), ("ipv4/ip_forward", 1)]).unwrap();
        for (number, name) in [(1, "inside"), (2, "outside")] {
            let [here, there] = [0, 1].map(|end| format!("{name}{end}"));
            let [one, other] = [(&near, &here), (&far, &there)].map(|(netns, name)| netns.end(name));
            let mac = |end| format!("02:00:00:00:0{number}:0{end}");
            cable(None, &one.mac(mac(0)), &other.mac(mac(1))).unwrap();
            for (netns, end) in [(&near, &here), (&far, &there)] {
                netns.output("ethtool", &["-K", end, "tx", "off", "txvlan", "off"]).unwrap();
            }
        }
        for (address, peer) in [("192.0.2.1/24", "192.0.2.2"), ("2001:db8::1/64", "2001:db8::2")] {
            near.ip(&format!(
                "addr add {address} dev outside0\n\
                 neigh add {peer} lladdr 02:00:00:00:02:01 dev outside0 nud permanent\n"
            ))
            .unwrap();
        }
        Some(TunnelLab { near: near.name().to_string(), far, _run: run })
    }

    /// Creates the device; returns false if the kernel does not support it.
    fn add(&self, tunnel: &TunnelCase) -> bool {
        let near = &self.near;
        let before = tunnel.before.is_none_or(|line| succeeds(&format!("ip -n {near} {line}")));
        if !before || !succeeds(&format!("ip -n {near} link add tunnel {}", tunnel.device)) {
            return false;
        }
        if tunnel.ethernet {
            run(&format!("ip -n {near} link add bridge type bridge mcast_snooping 0"));
            for link in ["tunnel", "inside0"] {
                run(&format!("ip -n {near} link set {link} master bridge"));
            }
            // The kernel's own multicast reports would be mistaken for a frame's answer.
            for link in ["tunnel", "inside0", "bridge"] {
                run(&format!("ip netns exec {near} sysctl -qw net.ipv6.conf.{link}.disable_ipv6=1"));
            }
            run(&format!("ip -n {near} link set bridge mtu 1400 up"));
        } else {
            // A device that is down has no routes.
            run(&format!("ip -n {near} link set tunnel up"));
            for (address, peer, net) in
                [("10.1.0.254/24", "10.1.0.1", "10.2.0.0/16"), ("fd01::fe/64", "fd01::1", "fd02::/64")]
            {
                run(&format!("ip -n {near} addr add {address} dev inside0"));
                run(&format!(
                    "ip -n {near} neigh add {peer} lladdr 02:00:00:00:01:01 dev inside0 nud permanent"
                ));
                let _ = succeeds(&format!("ip -n {near} route add {net} dev tunnel"));
            }
            run(&format!(
                "ip netns exec {near} sysctl -qw net.ipv6.conf.all.forwarding=1 net.ipv4.conf.all.rp_filter=0"
            ));
        }
        run(&format!("ip -n {near} link set tunnel up"));
        true
    }

    /// Opens the far end of a link.
    fn open(&self, name: &str) -> FarSocket {
        self.far.within(|| {
            let take = weir_bpf::Take { promiscuous: true, ..weir_bpf::Take::all() };
            let interface =
                XdpInterface::attach(XdpConfig { rings: RINGS, ..XdpConfig::new(name, take) }).unwrap();
            let mut pools = Pools::new();
            let pool = pools.add(Pool::Region(RegionPool::new(RINGS.chunks() + 64, 2048)));
            let port = interface.open_queue(0, &mut pools, pool).unwrap();
            FarSocket { port, pools, _interface: interface, _pool: pool }
        })
    }
}

fn succeeds(command: &str) -> bool {
    Command::new("sh").args(["-c", command]).stderr(Stdio::null()).status().unwrap().success()
}

fn run(command: &str) {
    let output = Command::new("sh").args(["-c", command]).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A socket at the far end of a link.
struct FarSocket {
    port: XdpPort,
    pools: Pools,
    _interface: XdpInterface,
    _pool: PoolId,
}

impl FarSocket {
    fn send(&mut self, bytes: &[u8]) {
        let mut batch = Batch::new();
        let mut frame = self.pools.first().take().unwrap();
        frame.fill(bytes).unwrap();
        batch.push(frame).unwrap();
        assert_eq!(self.port.transmit(&mut self.pools, &mut batch, 1), 1);
        let end = Instant::now() + PATIENCE;
        self.port.flush(&mut self.pools);
        while self.port.statistics().held > 0 && Instant::now() < end {
            self.port.flush(&mut self.pools);
        }
    }

    /// Returns the next frame to this MAC address, if one arrives in time. Others, which the kernel sends on
    /// its own, are skipped.
    fn receive(&mut self, mac: [u8; 6], patience: Duration) -> Option<Vec<u8>> {
        let end = Instant::now() + patience;
        while Instant::now() < end {
            let mut batch = Batch::new();
            self.port.receive(&mut self.pools, &mut batch);
            let mut found = None;
            for slot in Bits(batch.mask()) {
                let frame = batch.take(slot);
                if frame.bytes().starts_with(&mac) {
                    found.get_or_insert(frame.bytes().to_vec());
                }
                self.pools.give(frame);
            }
            self.port.flush(&mut self.pools);
            if found.is_some() {
                return found;
            }
        }
        None
    }
}

/// Frames to send into the tunnel through the near namespace's bridge or router.
fn frames(tunnel: &TunnelCase) -> Vec<Vec<u8>> {
    let ethernet = "eth.src=02:00:00:00:01:01 eth.dst=02:00:00:00:03:03";
    let routed = "eth.src=02:00:00:00:01:01 eth.dst=02:00:00:00:01:00";
    let mut texts = Vec::new();
    let start = if tunnel.ethernet { ethernet } else { routed };
    for ecn in [0, 1, 2] {
        texts.push(format!(
            "{start} src=10.1.0.1 dst=10.2.0.2 ttl=9 dscp=10 ecn={ecn} proto=udp payload=c0ffee"
        ));
        texts.push(format!("{start} src=10.1.0.1 dst=10.2.0.2 dscp=46 ecn={ecn} proto=tcp len=900"));
        if tunnel.carries_ipv6() {
            texts.push(format!("{start} src=fd01::1 dst=fd02::2 dscp=10 ecn={ecn} proto=udp len=333"));
        }
    }
    if tunnel.ethernet {
        texts.push(format!("{ethernet} vlan=7.3 src=10.1.0.1 dst=10.2.0.2 dscp=10 ecn=1 proto=icmp"));
        texts.push("eth.src=02:00:00:00:01:01 eth.dst=ff:ff:ff:ff:ff:ff arp=request".to_string());
    }
    texts.iter().map(|text| text.parse::<Recipe>().unwrap().build()).collect()
}

/// What weir does with a frame, having checked that the engine and the interpreter agree.
fn weir(plan: &Plan, port: u16, frame: &[u8]) -> Result<Vec<u8>, DropReason> {
    let explanation = Explanation::offline(plan, PortId(port), frame).unwrap();
    assert!(explanation.agrees(), "{}", describe(frame));
    match explanation.walk.verdict {
        Verdict::Drop(reason) => Err(reason),
        _ => Ok(explanation.walk.bytes),
    }
}

/// Clears what may differ: the IPv4 identification (after verifying the checksum), the IPv6 flow label, and
/// where needed the source port.
fn comparable(tunnel: &TunnelCase, frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    if !tunnel.ipv6 {
        assert_eq!(checksum(weir_packet::Sum::default().bytes(&frame[14..34])), 0, "{}", describe(&frame));
        frame[18..20].fill(0);
        frame[24..26].fill(0);
    } else {
        frame[15] &= 0xf0;
        frame[16..18].fill(0);
    }
    if !tunnel.same_port {
        let udp = if tunnel.ipv6 { 54 } else { 34 };
        frame[udp..udp + 2].fill(0);
    }
    frame
}

fn into_the_tunnel(tunnel: &TunnelCase, plan: &Plan, ends: &mut [FarSocket; 2]) {
    for frame in frames(tunnel) {
        let [inside, outside] = ends;
        inside.send(&frame);
        let kernel = outside.receive([2, 0, 0, 0, 2, 1], PATIENCE);
        let kernel = kernel
            .unwrap_or_else(|| panic!("{}: the kernel sent nothing for {}", tunnel.name, describe(&frame)));
        let mut wrapped = weir(plan, 0, &frame).unwrap();
        if tunnel.overlooks_ip(&frame) {
            // Of DSCP 10 and ECT(1).
            assert_eq!((kernel[15], wrapped[15]), (0, 10 << 2 | 1), "{}", describe(&kernel));
            wrapped[15] = 0;
            wrapped[24..26].fill(0);
            let sum = checksum(weir_packet::Sum::default().bytes(&wrapped[14..34]));
            wrapped[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        let equal = comparable(tunnel, &kernel) == comparable(tunnel, &wrapped);
        assert!(equal, "{}\nkernel {}\nweir   {}", tunnel.name, describe(&kernel), describe(&wrapped));
    }
}

/// Tries every outer ECN value with every inner one, in packets wrapped by weir and addressed to the near
/// end.
fn out_of_the_tunnel(tunnel: &TunnelCase, plan: &Plan, ends: &mut [FarSocket; 2]) {
    for (outer, inner) in (0..4).flat_map(|outer| (0..4).map(move |inner| (outer, inner))) {
        let texts = ["src=10.2.0.2 dst=10.1.0.1", "src=fd02::2 dst=fd01::1"];
        for text in &texts[..1 + usize::from(tunnel.carries_ipv6())] {
            let eth = "eth.src=02:00:00:00:03:03 eth.dst=02:00:00:00:01:01";
            let text = format!("{eth} {text} ttl=9 dscp=10 ecn={inner} proto=udp payload=c0ffee");
            let frame = text.parse::<Recipe>().unwrap().build();
            let arriving = towards_near(tunnel, &weir(plan, 0, &frame).unwrap(), outer);
            let [inside, outside] = &mut *ends;
            outside.send(&arriving);
            let options = format!("{}: ECN {outer} around {inner}, {}", tunnel.name, describe(&arriving));
            match weir(plan, 1, &arriving) {
                Ok(bytes) => {
                    let kernel = inside.receive([2, 0, 0, 0, 1, 1], PATIENCE);
                    let kernel = kernel.unwrap_or_else(|| panic!("the kernel drops {options}"));
                    assert!(
                        kernel == bytes,
                        "{options}\nkernel {}\nweir   {}",
                        describe(&kernel),
                        describe(&bytes)
                    );
                }
                Err(reason) => {
                    assert_eq!((reason, outer, inner), (DropReason::EcnCeNotEct, 3, 0), "{options}");
                    assert_eq!(
                        inside.receive([2, 0, 0, 0, 1, 1], SILENCE),
                        None,
                        "the kernel passes {options}"
                    );
                }
            }
        }
    }
}

/// A frame wrapped by weir, with source and destination exchanged and this outer ECN value. Exchanging the
/// addresses does not change checksums, and the UDP checksum does not cover ECN.
fn towards_near(tunnel: &TunnelCase, frame: &[u8], ecn: u8) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 2, 0, 2, 0, 0, 0, 2, 1]);
    if tunnel.ipv6 {
        frame[22..54].rotate_left(16);
        frame[15] = frame[15] & !0x30 | ecn << 4;
    } else {
        frame[26..34].rotate_left(4);
        frame[15] = frame[15] & !3 | ecn;
        frame[24..26].fill(0);
        let sum = checksum(weir_packet::Sum::default().bytes(&frame[14..34]));
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    frame
}

#[test]
fn the_kernel_sends_and_receives_the_same_bytes() {
    let (mut absent, mut unequal) = (Vec::new(), Vec::new());
    for tunnel in TUNNELS {
        let Some(lab) = TunnelLab::new() else { return };
        if !lab.add(tunnel) {
            absent.push(tunnel.name);
            continue;
        }
        let plan = tunnel.plan();
        // A difference does not prevent other comparisons; its panic message describes it.
        let compared = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut ends = [lab.open("inside1"), lab.open("outside1")];
            into_the_tunnel(tunnel, &plan, &mut ends);
            out_of_the_tunnel(tunnel, &plan, &mut ends);
        }));
        match compared {
            Ok(()) => println!("the same as the kernel: {}", tunnel.name),
            Err(_) => unequal.push(tunnel.name),
        }
    }
    assert!(unequal.is_empty(), "not the same as the kernel: {}", unequal.join(", "));
    if !absent.is_empty() {
        weir_bed::kernel_lacks(&absent.join(", no "));
    }
    assert!(absent.len() < TUNNELS.len() || std::env::var_os("CI").is_none(), "not one device");
}

/// configs/tunnels.yaml: traffic to a site enters its tunnel, and leaves it unchanged but one hop further.
#[test]
fn the_example_sends_and_receives_through_every_tunnel() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs/tunnels.yaml");
    let plan = read(file, &std::fs::read_to_string(file).unwrap()).plan.unwrap();
    for (site, kind) in [(1, "geneve"), (2, "gre"), (3, "ipip"), (4, "gue")] {
        let text = format!("dst=10.{site}.0.1 src=10.9.0.1 dscp=10 ecn=1 proto=tcp sport=9 payload=c0ffee");
        let build = |text: String| text.parse::<Recipe>().unwrap().build();
        let outside = weir(&plan, 0, &build(format!("vlan=5 ttl=9 {text}"))).unwrap();
        let inside = weir(&plan, 1, &outside).unwrap();
        let expected = build(format!("eth.dst=02:00:00:00:02:01 eth.src=02:00:00:00:02:02 ttl=8 {text}"));
        assert_eq!(describe(&inside), describe(&expected), "{kind}");
    }
    let nowhere = "dst=10.5.0.1".parse::<Recipe>().unwrap().build();
    assert_eq!(weir(&plan, 0, &nowhere), Err(DropReason::Miss));
}
