//! Announces where VIPs are: answers ARP requests (RFC 826) and neighbour solicitations (RFC 4861) for them,
//! with the VLAN tags of the request, and sends a few unsolicited announcements at startup. It also answers
//! DAD, which keeps other hosts from taking a VIP.

use super::limit::Limit;
use super::{Punted, sum};
use crate::announce::{Answered, Speaker, Unasked, solicited_node};
use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use weir_app::{Action, Level};
use weir_config::attachment::Mac;
use weir_config::value::write_mac;
use weir_packet::{Base, Depth, ETHER_ARP, ETHER_IPV6, ETHER_VLAN, Layer, PROTOCOL_ICMPV6};
use weir_program::PortId;
use weir_program::builder::Number;

/// Answers per second, and burst size. A thousand clients may send requests at the same moment; each retries
/// after a second.
const RATE: u64 = 5000;
const BURST: u64 = 1000;
/// How many times a VIP is announced unsolicited, and at what interval (RFC 4861 §10: three times, a second
/// apart; RFC 5227 §1.1 requires two for ARP).
const TIMES: u32 = 3;
const APART_NS: u64 = 1_000_000_000;
/// Announcements sent in one batch. The next batch follows after a pause, because workers have limited room
/// for frames.
const AT_ONCE: usize = 64;
const PAUSE_NS: u64 = 2_000_000;
/// The minimum time between two log messages about other stations that claim a VIP.
const SAYS_NS: u64 = 60_000_000_000;

const BROADCAST: Mac = [0xff; 6];
/// Frames are padded to Ethernet's minimum length, without FCS.
const SHORTEST: usize = 60;
/// ARP for IPv4 over Ethernet (RFC 826).
const ARP: [u8; 6] = [0, 1, 8, 0, 6, 4];
const REQUEST: u16 = 1;
const REPLY: u16 = 2;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Type, code, checksum, reserved, target.
const SOLICITATION_LEAST: usize = 24;
/// Flags of an advertisement (RFC 4861 §4.4).
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
/// The hop limit that proves that no router has forwarded a message (RFC 4861 §7.1.1).
const HOP_LIMIT: u8 = 255;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_NODES_MAC: Mac = [0x33, 0x33, 0, 0, 0, 1];

/// A VIP at a port, as a successor knows it: port, address, VLAN, MAC address.
type AnnouncedVip = (Arc<str>, IpAddr, u16, Mac);

/// Answers for VIPs, and announces them.
pub(super) struct Announcer {
    answered: Arc<Answered>,
    vips: HashSet<(PortId, IpAddr)>,
    speakers: HashMap<PortId, Speaker>,
    /// The VIPs that were announced before a reload.
    former: HashSet<AnnouncedVip>,
    /// VIPs still to be announced (positions in the unsolicited list of `answered`), and how many times each.
    waiting: VecDeque<(usize, u32)>,
    /// How many of the waiting VIPs are due in the current round.
    turn: usize,
    next_ns: Option<u64>,
    limit: Limit,
    answers: u64,
    announced: u64,
    conflicts: u64,
    /// When another station that claims a VIP was last logged.
    said_ns: Option<u64>,
}

/// A valid request for the address of a VIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnnounceQuery {
    /// An ARP request: the sender's addresses, and the VIP.
    Arp { mac: Mac, ip: Ipv4Addr, vip: Ipv4Addr },
    /// A neighbour solicitation; without a sender, it is DAD by a host that wants to use the VIP.
    Solicitation { mac: Mac, ip: Option<Ipv6Addr>, vip: Ipv6Addr },
}

impl AnnounceQuery {
    fn vip(&self) -> IpAddr {
        match *self {
            AnnounceQuery::Arp { vip, .. } => vip.into(),
            AnnounceQuery::Solicitation { vip, .. } => vip.into(),
        }
    }

    /// Returns the station that claims the VIP as its own (RFC 5227 §2.4), if the request is such a claim.
    fn rival(&self) -> Option<Mac> {
        match *self {
            AnnounceQuery::Arp { mac, ip, vip } if ip == vip => Some(mac),
            _ => None,
        }
    }
}

impl Announcer {
    /// Creates the announcer.
    pub fn new(answered: Arc<Answered>) -> Announcer {
        let vips = answered.vips.iter().map(|one| (one.port, one.vip)).collect();
        let speakers = answered.speakers.iter().map(|one| (one.port, one.clone())).collect();
        Announcer {
            answered,
            vips,
            speakers,
            former: HashSet::new(),
            waiting: VecDeque::new(),
            turn: 0,
            next_ns: None,
            limit: Limit::new(RATE, BURST),
            answers: 0,
            announced: 0,
            conflicts: 0,
            said_ns: None,
        }
    }

    /// Continues where its predecessor stopped: VIPs whose announcements are complete are not announced
    /// again.
    pub fn inherit(&mut self, old: Announcer) {
        let unfinished: HashSet<usize> = old.waiting.iter().map(|(at, _)| *at).collect();
        let done = (0..old.answered.unasked.len()).filter(|at| !unfinished.contains(at));
        self.former = done.filter_map(|at| old.known(at)).collect();
        (self.limit, self.said_ns) = (old.limit, old.said_ns);
        (self.answers, self.announced, self.conflicts) = (old.answers, old.announced, old.conflicts);
    }

    /// Returns a VIP as a successor knows it.
    fn known(&self, at: usize) -> Option<AnnouncedVip> {
        let one = self.answered.unasked.get(at)?;
        let speaker = self.speakers.get(&one.port)?;
        Some((speaker.name.clone(), one.vip, one.vlan, speaker.mac))
    }

    /// Begins to announce new VIPs.
    pub fn start(&mut self, now_ns: u64) {
        let is_wire = |at: &usize| {
            let speaker = self.speakers.get(&self.answered.unasked[*at].port);
            speaker.is_some_and(|speaker| speaker.is_wire)
        };
        let is_new = |at: &usize| self.known(*at).is_some_and(|known| !self.former.contains(&known));
        let new = (0..self.answered.unasked.len()).filter(is_wire).filter(is_new);
        self.waiting = new.map(|at| (at, TIMES)).collect();
        self.former.clear();
        self.turn = self.waiting.len();
        self.next_ns = (self.turn > 0).then_some(now_ns);
    }

    /// Returns when the next announcements are due.
    pub fn wake_ns(&self) -> Option<u64> {
        self.next_ns
    }

    /// Announces a batch of the VIPs that are due.
    pub fn tick(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        if self.next_ns.is_none_or(|next_ns| next_ns > now_ns) {
            return;
        }
        let count = self.turn.min(AT_ONCE);
        for _ in 0..count {
            let Some((at, times)) = self.waiting.pop_front() else { break };
            let one = self.answered.unasked[at];
            if let Some(speaker) = self.speakers.get(&one.port) {
                self.announced += 1;
                actions.push(Action::Inject { bytes: unasked(speaker.mac, one), output: one.port });
            }
            if times > 1 {
                self.waiting.push_back((at, times - 1));
            }
        }
        self.turn -= count;
        self.next_ns = match (self.turn, self.waiting.len()) {
            (0, 0) => None,
            (0, waiting) => {
                self.turn = waiting;
                Some(now_ns + APART_NS)
            }
            _ => Some(now_ns + PAUSE_NS),
        };
    }

    /// Answers a request.
    pub fn handle(&mut self, now_ns: u64, punted: Punted<'_>, actions: &mut Vec<Action>) {
        let Some(speaker) = self.speakers.get(&punted.input) else { return };
        let (mac, frame) = (speaker.mac, punted.bytes);
        // Frames sent by weir itself may come back, and frames for other stations may be let through.
        let is_for_us = frame.len() > 12 && frame[6..12] != mac && (frame[0] & 1 == 1 || frame[..6] == mac);
        let Some(question) = question(frame).filter(|_| is_for_us) else { return };
        let vip = question.vip();
        if !self.vips.contains(&(punted.input, vip)) {
            return;
        }
        if let Some(rival) = question.rival() {
            self.conflict(now_ns, (rival, vip), punted.input, actions);
        } else if self.limit.allows(now_ns) {
            self.answers += 1;
            actions.push(Action::Inject { bytes: answer(frame, mac, question), output: punted.input });
        }
    }

    /// Logs that another station claims a VIP, at a limited rate.
    fn conflict(
        &mut self,
        now_ns: u64,
        (rival, vip): (Mac, IpAddr),
        port: PortId,
        actions: &mut Vec<Action>,
    ) {
        self.conflicts += 1;
        if self.said_ns.is_some_and(|said_ns| now_ns < said_ns + SAYS_NS) {
            return;
        }
        self.said_ns = Some(now_ns);
        let port = self.speakers.get(&port).map_or("", |speaker| &speaker.name);
        let rival = write_mac(rival.number());
        actions.push(Action::Say(
            Level::Warning,
            format!("{rival} at {port} claims {vip}, which weir announces: remove one of them"),
        ));
    }

    /// Returns the counters.
    pub fn counts(&self) -> [(&'static str, u64); 4] {
        [
            ("vips_announced", self.announced),
            ("questions_answered", self.answers),
            ("questions_over_limit", self.limit.refused()),
            ("vip_conflicts", self.conflicts),
        ]
    }
}

/// Reads a request; `None` if the frame is not a request or is invalid.
fn question(frame: &[u8]) -> Option<AnnounceQuery> {
    let headers = weir_packet::parse(frame, Depth::L4).ok()?;
    let level = headers.outer();
    if level.layers.has(Layer::Arp) {
        return arp_request(frame.get(level.at(Base::L3)..)?);
    }
    if !level.layers.has(Layer::Icmpv6) {
        return None;
    }
    let ip = frame.get(level.at(Base::L3)..)?;
    let end = 40 + usize::from(u16::from_be_bytes([ip[4], ip[5]]));
    let message = ip.get(level.at(Base::L4) - level.at(Base::L3)..end)?;
    solicitation(ip, message, frame.get(6..12)?.try_into().ok()?)
}

fn arp_request(arp: &[u8]) -> Option<AnnounceQuery> {
    let arp: &[u8; 28] = arp.first_chunk()?;
    if arp[..6] != ARP || u16::from_be_bytes([arp[6], arp[7]]) != REQUEST {
        return None;
    }
    let mac: Mac = arp[8..14].try_into().ok()?;
    let v4 = |at: usize| Ipv4Addr::from([arp[at], arp[at + 1], arp[at + 2], arp[at + 3]]);
    let (ip, vip) = (v4(14), v4(24));
    if !is_station(mac) || ip.is_multicast() || ip.is_broadcast() {
        return None;
    }
    Some(AnnounceQuery::Arp { mac, ip, vip })
}

/// RFC 4861 §7.1.1. The answer goes to the station that sent the frame.
fn solicitation(ip: &[u8], message: &[u8], mac: Mac) -> Option<AnnounceQuery> {
    let address = |from: &[u8]| Some(Ipv6Addr::from(<[u8; 16]>::try_from(from).ok()?));
    let (src, dst) = (address(ip.get(8..24)?)?, address(ip.get(24..40)?)?);
    let is_one = message.len() >= SOLICITATION_LEAST && message[..2] == [SOLICITATION, 0];
    if !is_one || ip[7] != HOP_LIMIT || sum((src.into(), dst.into()), message) != 0 || !is_station(mac) {
        return None;
    }
    let vip = address(&message[8..24])?;
    let has_source = options(&message[SOLICITATION_LEAST..])?;
    let ip = (!src.is_unspecified()).then_some(src);
    let is_valid = ip.is_some() || dst == solicited_node(vip) && !has_source;
    (is_valid && !vip.is_multicast()).then_some(AnnounceQuery::Solicitation { mac, ip, vip })
}

/// Whether the options include a source link-layer address; `None` if an option has length 0.
fn options(mut rest: &[u8]) -> Option<bool> {
    const SOURCE: u8 = 1;
    let mut found = false;
    while let [kind, length, ..] = *rest {
        if length == 0 {
            return None;
        }
        found |= kind == SOURCE;
        rest = rest.get(8 * usize::from(length)..).unwrap_or_default();
    }
    Some(found)
}

fn is_station(mac: Mac) -> bool {
    mac[0] & 1 == 0 && mac != [0; 6]
}

/// Returns the answer to a request, with the tags of its frame.
fn answer(frame: &[u8], own: Mac, question: AnnounceQuery) -> Vec<u8> {
    // Tags and EtherType; the request was parsed, so they are present.
    let ether_types = weir_packet::parse(frame, Depth::L2).map_or(14, |found| found.outer().at(Base::L3));
    let head = |to: Mac| [&to[..], &own, &frame[12..ether_types]].concat();
    match question {
        AnnounceQuery::Arp { mac, ip, vip } => arp(head(mac), REPLY, (own, vip), (mac, ip)),
        AnnounceQuery::Solicitation { mac, ip: Some(ip), vip } => {
            advertisement(head(mac), SOLICITED | OVERRIDE, (own, vip), ip)
        }
        // RFC 4861 §7.2.4: a host that has no address yet is answered by multicast to all nodes.
        AnnounceQuery::Solicitation { ip: None, vip, .. } => {
            advertisement(head(ALL_NODES_MAC), OVERRIDE, (own, vip), ALL_NODES)
        }
    }
}

/// Returns an unsolicited announcement of a VIP: gratuitous ARP (RFC 5227 §3), or an advertisement to all
/// nodes (RFC 4861 §7.2.6).
fn unasked(own: Mac, one: Unasked) -> Vec<u8> {
    let tag = [ETHER_VLAN.to_be_bytes(), one.vlan.to_be_bytes()].concat();
    let tag = if one.vlan > 0 { &tag[..] } else { &[] };
    let head = |to: Mac, ether_type: u16| [&to[..], &own, tag, &ether_type.to_be_bytes()].concat();
    match one.vip {
        IpAddr::V4(vip) => arp(head(BROADCAST, ETHER_ARP), REQUEST, (own, vip), ([0; 6], vip)),
        IpAddr::V6(vip) => advertisement(head(ALL_NODES_MAC, ETHER_IPV6), OVERRIDE, (own, vip), ALL_NODES),
    }
}

fn arp(mut frame: Vec<u8>, operation: u16, sender: (Mac, Ipv4Addr), target: (Mac, Ipv4Addr)) -> Vec<u8> {
    frame.extend(ARP);
    frame.extend(operation.to_be_bytes());
    for (mac, ip) in [sender, target] {
        frame.extend(mac);
        frame.extend(ip.octets());
    }
    frame.resize(frame.len().max(SHORTEST), 0);
    frame
}

/// RFC 4861 §4.4, with the target's link-layer address.
fn advertisement(mut frame: Vec<u8>, flags: u8, (own, vip): (Mac, Ipv6Addr), to: Ipv6Addr) -> Vec<u8> {
    let mut message = [&[ADVERTISEMENT, 0, 0, 0, flags, 0, 0, 0][..], &vip.octets(), &[2, 1], &own].concat();
    let computed = sum((vip.into(), to.into()), &message);
    message[2..4].copy_from_slice(&computed.to_be_bytes());
    frame.extend([0x60, 0, 0, 0]);
    frame.extend((message.len() as u16).to_be_bytes());
    frame.extend([PROTOCOL_ICMPV6, HOP_LIMIT]);
    frame.extend(vip.octets());
    frame.extend(to.octets());
    frame.extend(message);
    frame
}
