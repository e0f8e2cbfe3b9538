//! weir's configuration: services over TCP and UDP, for both IP versions, in every mode.

use std::fmt::Write;

use super::network::{FAMILIES, Host, POOLS, SOURCES, VIPS};
use crate::topology::INTERFACE;

/// The VXLAN network identifier of tunnels to back ends.
pub const VNI: &str = "77";
/// The port on which web servers listen besides port 80; translated packets go there.
pub const WEB_PORT_BEHIND: u16 = 8080;
/// Capacity for flows. A pool must have a place for each connection, and a connection takes two flows.
const FLOWS: u32 = 65_536;

/// The services: HTTP over TCP, and DNS over both.
const KINDS: [ServiceKind; 2] = [
    ServiceKind {
        name: "web",
        protocol: "tcp",
        port: 80,
        behind: WEB_PORT_BEHIND,
        check: "type: http",
        resolves: true,
    },
    ServiceKind {
        name: "dns",
        protocol: "both",
        port: 53,
        behind: 53,
        check: "type: dns, name: h0.weir.test",
        resolves: false,
    },
];

struct ServiceKind {
    name: &'static str,
    protocol: &'static str,
    port: u16,
    /// The port of the service's servers, where ports are translated.
    behind: u16,
    check: &'static str,
    /// Whether the service resolves its back ends' MAC addresses; all services resolve the address of the
    /// first back end, which moves.
    resolves: bool,
}

/// How packets are sent to back ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LabMode {
    /// With other MAC addresses.
    L2,
    /// Through an IP-in-IP tunnel, which `weir decap` decapsulates.
    Ipip,
    /// Through Generic UDP Encapsulation.
    Gue,
    /// Through GRE.
    Gre,
    /// Through VXLAN.
    Vxlan,
    /// With destination address and port translated; replies return through weir.
    Nat,
    /// With the source address translated, too.
    #[value(name = "full_nat")]
    FullNat,
    /// The four back ends use l2, nat, ipip over the other IP version, and vxlan.
    Mixed,
}

impl LabMode {
    /// All modes.
    pub const ALL: [LabMode; 8] = [
        LabMode::L2,
        LabMode::Ipip,
        LabMode::Gue,
        LabMode::Gre,
        LabMode::Vxlan,
        LabMode::Nat,
        LabMode::FullNat,
        LabMode::Mixed,
    ];

    /// The mode's name in the lab's options and results.
    pub fn word(self) -> &'static str {
        match self {
            LabMode::L2 => "l2",
            LabMode::Ipip => "ipip",
            LabMode::Gue => "gue",
            LabMode::Gre => "gre",
            LabMode::Vxlan => "vxlan",
            LabMode::Nat => "nat",
            LabMode::FullNat => "full_nat",
            LabMode::Mixed => "mixed",
        }
    }

    /// Returns the mode of a back end, numbered from 0.
    fn of(self, back_end: usize) -> LabMode {
        match self {
            // A back end that is added later must not be the first with nat, since nat has a flow table of
            // its own.
            LabMode::Mixed => [LabMode::L2, LabMode::Nat, LabMode::Ipip, LabMode::Vxlan][back_end % 4],
            mode => mode,
        }
    }

    /// Returns true if a back end replies to clients directly.
    pub fn answers_directly(self, back_end: usize) -> bool {
        // With full_nat it replies to weir, whatever its route to clients.
        self.of(back_end) != LabMode::Nat
    }

    /// Returns true if a packet's destination can be determined without the flow's entry. The port that
    /// full_nat assigned to a connection is recorded only in that entry.
    pub fn outlives_its_flows(self) -> bool {
        self != LabMode::FullNat
    }
}

/// The names of all services.
pub fn services() -> impl Iterator<Item = String> {
    KINDS.iter().flat_map(|kind| FAMILIES.map(|family| format!("{}-{family}", kind.name)))
}

/// Returns a configuration in which these back ends have these weights, for a machine that is `slowdown`
/// times slower than usual.
pub fn configuration((mode, slowdown): (LabMode, u32), back_ends: &[Host], weights: &[u32]) -> String {
    let mut text = format!("ports: {{ p0: {{ xdp: {INTERFACE} }} }}\n");
    if mode == LabMode::FullNat {
        let pools = [0, 1].map(|at| format!("{}: {{ addresses: \"{}\" }}", FAMILIES[at], POOLS[at]));
        let _ = writeln!(text, "nat_pools: {{ {} }}", pools.join(", "));
    }
    let _ = write!(text, "apps:\n  - lb: {{ flows: {FLOWS} }}\n");
    for kind in &KINDS {
        for family in [0, 1] {
            service(&mut text, (kind, family), mode, slowdown);
            text += "      back_ends:\n";
            for (at, (host, weight)) in back_ends.iter().zip(weights).enumerate() {
                text += &back_end(kind, family, mode.of(at), mode == LabMode::Mixed, (at, host, *weight));
            }
        }
    }
    text
}

fn service(text: &mut String, (kind, family): (&ServiceKind, usize), mode: LabMode, slowdown: u32) {
    let ServiceKind { name, protocol, port, check, .. } = kind;
    let [v4, v6] = SOURCES;
    let _ = write!(
        text,
        "  - lb:\n      name: {name}-{}\n      port: p0\n      \
         service: {{ vip: \"{}\", protocol: {protocol}, port: {port} }}\n      \
         source: [\"{v4}\", \"{v6}\"]\n      \
         check: {{ {check}, interval: {}ms, timeout: {slowdown}s, fall: 2, rise: 2 }}\n",
        FAMILIES[family],
        VIPS[family],
        200 * slowdown,
    );
    if mode == LabMode::FullNat {
        let _ = writeln!(text, "      nat_pool: {}", FAMILIES[family]);
    }
}

fn back_end(
    kind: &ServiceKind,
    family: usize,
    mode: LabMode,
    crosses: bool,
    (at, host, weight): (usize, &Host, u32),
) -> String {
    let Host { name, addresses, mac, .. } = host;
    let is_other = crosses && mode == LabMode::Ipip;
    let ip = &addresses[if is_other { 1 - family } else { family }];
    let mut line = format!("        - {{ name: {name}, mode: {}, ip: \"{ip}\"", mode.word());
    if !kind.resolves && at > 0 {
        let _ = write!(line, ", mac: \"{mac}\"");
    }
    match mode {
        LabMode::Vxlan => {
            let _ = write!(line, ", vni: {VNI}, inner_mac: \"{mac}\"");
        }
        LabMode::Nat | LabMode::FullNat => {
            let _ = write!(line, ", port: {}", kind.behind);
        }
        _ => {}
    }
    let _ = writeln!(line, ", weight: {weight} }}");
    line
}
