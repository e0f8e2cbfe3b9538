//! The configuration of ports. Opening them is the daemon's task.

use crate::diagnostic::{Report, Span};
use crate::key::{Key, Shape};
use crate::nic::{Nic, Nics};
use crate::raw::{Kind, Node};
use crate::schema::Schema;
use crate::section::{Section, list, number, parsed, text, words};
use crate::value;
use crate::{Frames, IpRule, TakeRule};
use serde_json::{Value, json};
use std::net::IpAddr;
use std::path::PathBuf;
use weir_program::PortId;

/// A configured port; its position is that in `Program::ports`.
#[derive(Clone, Debug, PartialEq)]
pub struct PortConfig {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: PortKind,
    /// Its interface, as far as it is known.
    pub nic: Option<Nic>,
    /// Its MAC address: as configured, or the interface's if known.
    pub mac: Option<[u8; 6]>,
    /// Whether `mac` is configured.
    pub mac_configured: bool,
    /// Faults to simulate.
    pub fault: Option<Fault>,
    /// A pcap file in which all its frames are recorded.
    pub trace: Option<PathBuf>,
}

/// Kinds of ports.
#[derive(Clone, Debug, PartialEq)]
pub enum PortKind {
    /// AF_XDP on an interface.
    Xdp(Xdp),
    /// Recordings.
    Pcap {
        /// The file to receive.
        input: Option<PathBuf>,
        /// The file in which transmitted frames are recorded.
        output: Option<PathBuf>,
        /// The file in which frames for the kernel are recorded.
        kernel: Option<PathBuf>,
    },
    /// Memory, for tests and benches.
    Mem,
    /// Traffic that weir makes itself, for benches.
    Traffic(Traffic),
    /// DPDK.
    Dpdk {
        /// Device arguments for DPDK.
        devargs: String,
        /// A TAP interface for frames to the kernel.
        tap: Option<String>,
        /// Frames that the device keeps, as `net_pcap` does with a looped recording.
        frames: u32,
    },
}

/// Traffic that weir makes itself: small UDP frames of several flows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traffic {
    /// Number of flows.
    pub flows: u32,
    /// Frames in all; `None` without end.
    pub frames: Option<u64>,
    /// How fast they come.
    pub pace: Pace,
}

/// How fast traffic comes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// As fast as it is taken.
    Full,
    /// So many frames a second.
    Rate(u64),
    /// A share, between 0 and 1, of the highest rate at which nothing is lost.
    Share(f64),
}

/// An AF_XDP port.
#[derive(Clone, Debug, PartialEq)]
pub struct Xdp {
    /// The interface.
    pub interface: String,
    /// The queues to use; `None` means all.
    pub queues: Option<Vec<u32>>,
    /// How the kernel passes frames.
    pub mode: XdpMode,
    /// The frames to take from the kernel's stack.
    pub take: Take,
    /// Frames that stay with the kernel although `take` or an app names them.
    pub leave: Vec<LeaveRule>,
    /// The NIC lets frames for other MAC addresses through, and they are taken too.
    pub promisc: bool,
}

/// Frames that stay with the kernel: those for which everything present holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaveRule {
    /// The EtherType.
    pub ethertype: Option<u16>,
    /// Destination address and number of its leading bits that are compared.
    pub dst: Option<(IpAddr, u8)>,
    /// Transport protocol.
    pub protocol: Option<u8>,
    /// The lowest and the highest destination port.
    pub dport: Option<(u16, u16)>,
}

/// Mode of AF_XDP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpMode {
    /// The best that works.
    #[default]
    Auto,
    /// Driver mode, no copy.
    ZeroCopy,
    /// Driver mode, one copy.
    Copy,
    /// Generic mode: any interface, slow.
    Generic,
}

/// The frames that a port takes; all others stay with the kernel.
#[derive(Clone, Debug, PartialEq)]
pub enum Take {
    /// All frames.
    All,
    /// The frames that apps need, and those that match these rules.
    Rules(Vec<TakeRule>),
}

/// Faults, each for a share of the frames between 0 and 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fault {
    /// Equal seeds affect the same frames.
    pub seed: u64,
    /// Share of frames lost.
    pub loss: f64,
    /// Share of frames duplicated.
    pub duplicate: f64,
    /// Share of frames truncated.
    pub truncate: f64,
    /// Share of frames with a flipped bit.
    pub corrupt: f64,
    /// Share of frames overtaken by the next one.
    pub reorder: f64,
    /// Delay of all frames, in nanoseconds.
    pub delay_ns: u64,
}

impl PortConfig {
    /// Returns the MTU of its interface, in bytes; `None` if that is not known.
    #[must_use]
    pub fn mtu(&self) -> Option<u16> {
        self.nic.as_ref().map(|nic| nic.mtu.min(u16::MAX.into()) as u16)
    }

    /// Returns its interface's present name, or the configured one of an interface that is not known.
    #[must_use]
    pub fn interface_name(&self) -> Option<&str> {
        let PortKind::Xdp(xdp) = &self.kind else { return None };
        Some(self.nic.as_ref().map_or(&xdp.interface, |nic| &nic.name))
    }

    /// Returns true if frames can be passed to the host's stack here. AF_XDP cannot return what it has taken.
    #[must_use]
    pub fn kernel_path(&self) -> bool {
        match &self.kind {
            PortKind::Xdp(_) => false,
            PortKind::Pcap { .. } | PortKind::Mem | PortKind::Traffic(_) => true,
            PortKind::Dpdk { tap, .. } => tap.is_some(),
        }
    }
}

const KINDS: [&str; 4] = ["xdp", "pcap", "mem", "dpdk"];

/// Keys of a port, of which one of the first four determines the kind.
const KEYS: &[Key] = crate::keys! {
    "xdp": Shape::Text, "the interface that AF_XDP receives from and sends to";
    "pcap": Shape::Map(PCAP), "recordings, each of which may be left out";
    "mem": Shape::Either(&[Shape::Nothing, Shape::Map(MEM)]), "memory, for tests and benches";
    "dpdk": Shape::Text, "devargs of a DPDK device, such as net_pcap0,iface=eth0";
    "queues": Shape::Either(&[Shape::Words(|| vec!["all"]), Shape::List(&Shape::Number(0, QUEUE_MAX))]),
        "queues of the interface that are used" or "all" only "xdp";
    "mode": Shape::Words(|| words(&MODES)),
        "how the kernel hands frames over; `auto` is the best that works" or "auto" only "xdp";
    "take": Shape::Either(&[Shape::Words(|| vec!["all"]), Shape::List(&Shape::Map(TAKE))]),
        "what is taken from the kernel, besides what apps name: all, or rules" only "xdp";
    "leave": Shape::List(&Shape::Map(LEAVE)),
        "what stays with the kernel although `take` or an app names it" only "xdp";
    "promisc": Shape::Boolean,
        "also take frames for other MAC addresses, and have the NIC pass them" or "false" only "xdp";
    "tap": Shape::Text, "the TAP interface that frames for the kernel go to" only "dpdk";
    "frames": Shape::Number(0, FRAMES_MAX), "frames that the device keeps for itself" or "0" only "dpdk";
    "mac": Shape::Mac, "the port's own MAC address, by default the interface's";
    "root": Shape::Name, "the pipe that the port's frames enter, before that of an app or of the file";
    "fault": Shape::Map(FAULT), "mishaps that are made to happen to the port's frames";
    "trace": Shape::Text, "a pcap file that all frames of the port are written to";
};
const PCAP: &[Key] = crate::keys! {
    "in": Shape::Text, "the recording that is received";
    "out": Shape::Text, "the recording of what is sent";
    "kernel": Shape::Text, "the recording of what goes to the kernel";
};
const MEM: &[Key] = crate::keys! {
    "flows": Shape::Number(1, FLOWS_MAX), "makes traffic of so many flows";
    "frames": Shape::Number(0, u64::MAX), "frames in all; without end unless it is written";
    "rate": Shape::Number(1, RATE_MAX), "frames a second; as many as are taken unless it is written";
    "share": Shape::Share, "instead of `rate`: a share of the highest rate without loss, found first";
};
const TAKE: &[Key] = crate::keys! {
    needed "dst": Shape::Prefix, "the destination address or prefix";
    "protocol": Shape::Defined("protocol", protocols), "the IP protocol; any unless it is written";
    "dport": Shape::Defined("dport", dports),
        "the destination port of TCP or UDP, or a range of them; any unless it is written";
    "fragments": Shape::Boolean, "take fragments, and only them: they have no ports" or "false";
};
const LEAVE: &[Key] = crate::keys! {
    "ethertype": Shape::Defined("ethertype", ethertypes), "the EtherType; any unless it is written";
    "dst": Shape::Prefix, "the destination address or prefix; any unless it is written";
    "protocol": Shape::Defined("protocol", protocols), "the IP protocol; any unless it is written";
    "dport": Shape::Defined("dport", dports),
        "the destination port of TCP or UDP, or a range of them; any unless it is written";
};
const FAULT: &[Key] = crate::keys! {
    "seed": Shape::Number(0, u64::MAX), "equal seeds make the same frames suffer" or "0";
    "loss": Shape::Share, "the share of frames that is lost" or "0";
    "duplicate": Shape::Share, "the share that is sent twice" or "0";
    "truncate": Shape::Share, "the share that is cut short" or "0";
    "corrupt": Shape::Share, "the share in which a bit is flipped" or "0";
    "reorder": Shape::Share, "the share that is overtaken by the next frame" or "0";
    "delay": Shape::Time, "how long every frame is held back";
};
const MODES: [(&str, XdpMode); 4] = [
    ("auto", XdpMode::Auto),
    ("zero_copy", XdpMode::ZeroCopy),
    ("copy", XdpMode::Copy),
    ("generic", XdpMode::Generic),
];

/// Returns the schema of a port.
pub fn schema(schema: &mut Schema) -> Value {
    let mut port = schema.map(KEYS);
    port["oneOf"] = KINDS.iter().map(|kind| json!({ "required": [kind] })).collect();
    let only = KEYS.iter().filter_map(|key| Some((key.word.to_string(), json!([key.only?]))));
    port["dependentRequired"] = Value::Object(only.collect());
    port
}

fn ethertypes(schema: &mut Schema) -> Value {
    value::schema(weir_packet::Field::EthType, schema)
}

fn protocols(schema: &mut Schema) -> Value {
    value::schema(weir_packet::Field::IpProtocol, schema)
}

fn dports(_: &mut Schema) -> Value {
    json!({ "anyOf": [
        { "type": "integer", "minimum": 1, "maximum": 65535 },
        { "type": "string", "pattern": "^[0-9]+ *- *[0-9]+$" },
    ] })
}

/// Reads a port. `id` is its position in the program.
#[must_use]
pub fn read(
    (name, span): (&str, Span),
    id: PortId,
    node: &Node,
    nics: &Nics,
    report: &mut Report,
) -> PortConfig {
    let section = Section::read(node, KEYS, report).at(span);
    let kinds: Vec<&str> = KINDS.into_iter().filter(|kind| section.get(kind).is_some()).collect();
    let kind = match kinds.as_slice() {
        [one] => kind(one, &section, id, report),
        [] => {
            report
                .error(section.span, format!("port `{name}` has no kind: write one of {}", KINDS.join(", ")));
            PortKind::Mem
        }
        several => {
            report.error(section.span, format!("port `{name}` has several kinds: {}", several.join(", ")));
            PortKind::Mem
        }
    };
    misplaced(&section, &kinds, report);
    let configured = section.get("mac").and_then(|node| mac(node, report));
    let nic = match &kind {
        PortKind::Xdp(xdp) => nics.get(&xdp.interface).cloned(),
        _ => None,
    };
    warn_of_queues(&section, &kind, nic.as_ref(), report);
    let mac = configured.or(nic.as_ref().map(|nic| nic.mac));
    let fault = section.get("fault").map(|node| fault(node, report));
    let trace = section.get("trace").and_then(|node| path(node, report));
    let mac_configured = configured.is_some();
    PortConfig { name: name.to_string(), kind, nic, mac, mac_configured, fault, trace }
}

fn kind(kind: &str, section: &Section, id: PortId, report: &mut Report) -> PortKind {
    let Some(node) = section.get(kind) else { return PortKind::Mem };
    match kind {
        "xdp" => PortKind::Xdp(xdp(node, section, id, report)),
        "pcap" => pcap(node, report),
        "dpdk" => {
            let tap = section.get("tap").and_then(|node| text(node, "the name of a TAP interface", report));
            let devargs = text(node, "the device's devargs", report).unwrap_or_default();
            let frames = section.number("frames", report);
            PortKind::Dpdk {
                devargs: devargs.to_string(),
                tap: tap.map(str::to_string),
                frames: frames.unwrap_or_default() as u32,
            }
        }
        _ => mem(node, report),
    }
}

/// Warns of queues of the interface that the port has not: what arrives there is not taken.
fn warn_of_queues(section: &Section, kind: &PortKind, nic: Option<&Nic>, report: &mut Report) {
    let PortKind::Xdp(Xdp { queues: Some(queues), .. }) = kind else { return };
    let Some((node, nic)) = section.get("queues").zip(nic) else { return };
    if let Some(remedy) = nic.missed(queues) {
        let message = format!(
            "{} has {} receive queues: frames that arrive on others than these stay with the kernel, and \
             count as `xdp_redirect_failed`",
            nic.name, nic.rx_queues
        );
        report.warning_help(node.span, message, remedy);
    }
}

/// Reports keys of other kinds of ports.
fn misplaced(section: &Section, kinds: &[&str], report: &mut Report) {
    for (key, kind) in KEYS.iter().filter_map(|key| Some((key.word, key.only?))) {
        if let Some(node) = section.get(key).filter(|_| !kinds.is_empty() && !kinds.contains(&kind)) {
            report.error(node.span, format!("only {kind} ports have `{key}`"));
        }
    }
}

fn xdp(node: &Node, section: &Section, id: PortId, report: &mut Report) -> Xdp {
    let interface = text(node, "the name of an interface", report).unwrap_or_default();
    if interface.len() > INTERFACE_MAX || interface.contains(['/', ' ']) {
        report.error(
            node.span,
            format!("`{interface}` cannot be an interface: {INTERFACE_MAX} bytes at most, no `/`"),
        );
    }
    let mode = section.choice("mode", &MODES, report).unwrap_or_default();
    let queues = section.get("queues").and_then(|node| queues(node, report));
    let leave: Vec<&Node> =
        section.get("leave").map(|node| list(node, "rules", report).iter().collect()).unwrap_or_default();
    let host_has_some = !leave.is_empty();
    let take =
        section.get("take").map_or(Take::Rules(Vec::new()), |node| take(node, id, host_has_some, report));
    let leave = leave.into_iter().filter_map(|node| leave_rule(node, report)).collect();
    let promisc = section.boolean("promisc", report);
    Xdp { interface: interface.to_string(), queues, mode, take, leave, promisc }
}

/// The largest number of frames that a device may keep: 10 GiB of them.
const FRAMES_MAX: u64 = 1 << 22;
/// The largest number of flows of traffic: the addresses of 10.0.0.0/8.
const FLOWS_MAX: u64 = 1 << 24;
/// The highest rate of traffic: above that of any wire.
const RATE_MAX: u64 = 10_000_000_000;
/// `ALTIFNAMSIZ`, the size of alternative names, without the terminating zero.
const INTERFACE_MAX: usize = 127;
/// The highest queue number of an interface.
const QUEUE_MAX: u64 = 1023;

fn queues(node: &Node, report: &mut Report) -> Option<Vec<u32>> {
    if node.is("all") {
        return None;
    }
    let queues = list(node, "queue numbers (or `all`)", report).iter();
    Some(
        queues
            .filter_map(|node| number(node, "a queue", 0..=QUEUE_MAX, report))
            .map(|queue| queue as u32)
            .collect(),
    )
}

/// Reads `take`. `all` is warned of, unless it is written what the host keeps.
fn take(node: &Node, id: PortId, host_has_some: bool, report: &mut Report) -> Take {
    if node.is("all") {
        if !host_has_some {
            report.warning(
                node.span,
                "`take: all`: the host gets nothing from this interface any more, not even ARP or SSH, \
                 except what `leave` says",
            );
        }
        return Take::All;
    }
    let rules = list(node, "rules (or `all`)", report).iter();
    Take::Rules(rules.filter_map(|node| take_rule(node, id, report)).collect())
}

fn take_rule(node: &Node, port: PortId, report: &mut Report) -> Option<TakeRule> {
    let section = Section::read(node, TAKE, report);
    let (dst, prefix) = address_prefix(section.needed("dst", report)?, report)?;
    let protocol = section.get("protocol").and_then(|node| protocol(node, report));
    let dport = dport(&section, report);
    let fragments = section.boolean("fragments", report);
    if dport.is_some() && section.get("protocol").is_none() {
        report.error(section.span, "`dport` needs `protocol: tcp` or `protocol: udp`");
    }
    if let Some(node) = section.get("dport").filter(|_| fragments) {
        report.error(node.span, "fragments have no ports (docs/pipes.md F5)");
    }
    if prefix == 0 && protocol.is_none() && !fragments {
        let family = if dst.is_ipv4() { "IPv4" } else { "IPv6" };
        report.warning(
            section.span,
            format!("this takes all {family}: the host gets none of it any more, SSH included"),
        );
    }
    let rule = IpRule { dst, prefix, protocol, dport, fragments };
    Some(TakeRule { port, frames: Frames::Ip(rule) })
}

/// Reads a rule of what stays with the kernel.
fn leave_rule(node: &Node, report: &mut Report) -> Option<LeaveRule> {
    let section = Section::read(node, LEAVE, report);
    let mut field = |key: &str, field| {
        let text = text(section.get(key)?, "a name or number", report)?;
        let value = value::field(field, text, &weir_program::Program::default());
        value.map_err(|why| report.error(section.span, why)).ok()
    };
    let ethertype = field("ethertype", weir_packet::Field::EthType).map(|value| value as u16);
    let protocol = field("protocol", weir_packet::Field::IpProtocol).map(|value| value as u8);
    let dst = match section.get("dst") {
        Some(node) => Some(address_prefix(node, report)?),
        None => None,
    };
    let dport = dport(&section, report);
    if LEAVE.iter().all(|key| section.get(key.word).is_none()) {
        report.error(section.span, "this leaves everything with the kernel: write what stays there");
    }
    if dport.is_some() && section.get("protocol").is_none() {
        report.error(section.span, "`dport` needs `protocol: tcp` or `protocol: udp`");
    }
    if let Some(node) = section.get("ethertype").filter(|_| dst.is_some()) {
        report.error(node.span, "`dst` already says which EtherType: leave one of them out");
    }
    Some(LeaveRule { ethertype, dst, protocol, dport })
}

/// Reads destination ports: `53`, `1000-2000`.
fn dport(section: &Section, report: &mut Report) -> Option<(u16, u16)> {
    let node = section.get("dport")?;
    let text = text(node, "a port or a range of ports", report)?;
    let read = value::range(weir_packet::Field::L4Dport, text, &weir_program::Program::default());
    let read = read.and_then(|ports| match ports {
        (0, _) => Err("a port is a number from 1 to 65535".to_string()),
        ports => Ok(ports),
    });
    read.map_err(|why| report.error(node.span, why)).ok()
}

/// Reads an address or prefix: `10.0.0.1`, `10.0.0.0/8`, `2001:db8::/32`.
pub fn address_prefix(node: &Node, report: &mut Report) -> Option<(IpAddr, u8)> {
    let text = text(node, "an address or prefix", report)?;
    let (address, length) =
        text.split_once('/').map_or((text, None), |(address, length)| (address, Some(length)));
    let parsed = address.parse::<IpAddr>().ok().and_then(|address| {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let length =
            length.map_or(Some(bits), |length| length.parse().ok()).filter(|length| *length <= bits)?;
        Some((address, length))
    });
    if parsed.is_none() {
        report.error(node.span, format!("`{text}` is not an address or prefix such as 10.0.0.0/8"));
    }
    parsed
}

/// Reads the protocol of a service or rule, by name or number.
pub fn protocol(node: &Node, report: &mut Report) -> Option<u8> {
    let text = text(node, "a protocol", report)?;
    let value = value::field(weir_packet::Field::IpProtocol, text, &weir_program::Program::default());
    value.map_err(|why| report.error(node.span, why)).ok().map(|value| value as u8)
}

fn pcap(node: &Node, report: &mut Report) -> PortKind {
    let section = Section::read(node, PCAP, report);
    let mut file = |key: &str| section.get(key).and_then(|node| path(node, report));
    PortKind::Pcap { input: file("in"), output: file("out"), kernel: file("kernel") }
}

/// Reads a memory port, which makes traffic if it has flows.
fn mem(node: &Node, report: &mut Report) -> PortKind {
    if matches!(node.kind, Kind::Null) {
        return PortKind::Mem;
    }
    let section = Section::read(node, MEM, report);
    let mut number = |key: &str| section.get(key).and_then(|_| section.number(key, report));
    let (flows, frames, rate) = (number("flows"), number("frames"), number("rate"));
    let share = section.get("share").map(|node| share(node, report));
    if let Some(node) = section.get("share").filter(|_| rate.is_some()) {
        report.error(node.span, "traffic has a `rate` or a `share`, not both");
    }
    let Some(flows) = flows else {
        if MEM.iter().any(|key| section.get(key.word).is_some()) {
            report.error(section.span, "traffic needs a number of `flows`");
        }
        return PortKind::Mem;
    };
    let pace = rate.map(Pace::Rate).or(share.map(Pace::Share)).unwrap_or(Pace::Full);
    PortKind::Traffic(Traffic { flows: flows as u32, frames, pace })
}

fn path(node: &Node, report: &mut Report) -> Option<PathBuf> {
    text(node, "a file name", report).map(PathBuf::from)
}

/// Reads the MAC address of a station.
pub fn mac(node: &Node, report: &mut Report) -> Option<[u8; 6]> {
    let text = text(node, "a MAC address", report)?;
    let Some(mac) = value::mac(text) else {
        report.error_help(
            node.span,
            format!("`{text}` is not a MAC address"),
            "six pairs of hex digits: 02:00:00:00:00:01",
        );
        return None;
    };
    if mac[0] & 1 != 0 || mac == [0; 6] {
        report.error(
            node.span,
            format!("`{text}` is not the address of a station: it is broadcast, multicast or zero"),
        );
        return None;
    }
    Some(mac)
}

fn fault(node: &Node, report: &mut Report) -> Fault {
    let section = Section::read(node, FAULT, report);
    let mut share = |key: &str| section.get(key).map(|node| share(node, report)).unwrap_or_default();
    Fault {
        loss: share("loss"),
        duplicate: share("duplicate"),
        truncate: share("truncate"),
        corrupt: share("corrupt"),
        reorder: share("reorder"),
        seed: section.number("seed", report).unwrap_or_default(),
        delay_ns: section.time("delay", report),
    }
}

/// Reads a share of frames: `0.01` or `1%`.
fn share(node: &Node, report: &mut Report) -> f64 {
    let share = match &node.kind {
        Kind::Scalar(text) if text.ends_with('%') => {
            text.trim_end_matches('%').trim().parse::<f64>().ok().map(|percent| percent / 100.0)
        }
        _ => parsed::<f64>(node, "a share of the frames", report),
    };
    let share = share.filter(|share| (0.0..=1.0).contains(share));
    if share.is_none() {
        report.error(node.span, "a share of the frames is between 0 and 1, or 0% and 100%");
    }
    share.unwrap_or_default()
}
