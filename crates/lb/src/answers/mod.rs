//! Frames that the pipes forward to the running app, and its answers. Each subject has a name under which its
//! frames are forwarded ([`weir_app::App::punts`]), so that a flood of one fills only its own ring, and a
//! file: [`announce`] answers requests for a VIP's MAC address, [`echo`] answers pings, [`too_big`] answers
//! packets that do not fit the path to a back end, and [`reject`] answers packets to a service without back
//! ends. These answers are rate-limited. [`idle`] resets connections that have been idle for too long.

mod announce;
mod echo;
mod icmp;
mod idle;
mod limit;
mod reject;
mod too_big;

use super::announce::Answered;
use super::{REJECT, TOO_LONG};
use announce::Announcer;
use echo::Echo;
use idle::Idle;
use reject::Reject;
use std::net::IpAddr;
use std::sync::Arc;
use too_big::TooBig;
use weir_app::{Action, MetricHelp};
use weir_packet::{PROTOCOL_ICMPV6, Sum, checksum};
use weir_program::PortId;

/// The name under which requests for MAC addresses are forwarded.
pub(super) const ANNOUNCE: &str = "lb/announce";
/// The name under which the newest segments of idle connections are forwarded.
pub(super) const IDLE: &str = "lb/idle";
/// The name under which pings are forwarded.
pub(super) const ECHO: &str = "lb/echo";

/// A frame that was forwarded to the app.
#[derive(Clone, Copy, Debug)]
pub(super) struct Punted<'a> {
    /// The name under which it was forwarded.
    pub app: &'a str,
    /// The port on which it arrived.
    pub input: PortId,
    /// The frame, without FCS.
    pub bytes: &'a [u8],
}

/// Everything that answers frames.
pub(super) struct Answers {
    announcer: Announcer,
    echo: Echo,
    too_big: TooBig,
    reject: Reject,
    idle: Idle,
}

impl Answers {
    /// Creates the answerers for the services.
    pub fn new(answered: &Arc<Answered>) -> Answers {
        Answers {
            announcer: Announcer::new(answered.clone()),
            echo: Echo::default(),
            too_big: TooBig::default(),
            reject: Reject::default(),
            idle: Idle::default(),
        }
    }

    /// Returns the names under which frames are forwarded.
    pub fn punts() -> Vec<String> {
        [ANNOUNCE, ECHO, TOO_LONG, REJECT, IDLE].map(str::to_string).into()
    }

    /// Answers a frame.
    pub fn handle(&mut self, now_ns: u64, punted: Punted<'_>, actions: &mut Vec<Action>) {
        match punted.app {
            ANNOUNCE => self.announcer.handle(now_ns, punted, actions),
            ECHO => self.echo.handle(now_ns, punted, actions),
            REJECT => {
                let answer = self.reject.answer(punted.bytes, now_ns);
                actions.extend(answer.map(|bytes| Action::Inject { bytes, output: punted.input }));
            }
            IDLE => self.idle.handle(punted, actions),
            _ => {}
        }
    }

    /// Answers a packet that may have at most `limit` bytes, through the port on which it arrived.
    pub fn refuse(
        &mut self,
        now_ns: u64,
        (input, bytes): (PortId, &[u8]),
        limit: u16,
        actions: &mut Vec<Action>,
    ) {
        let answer = self.too_big.answer(bytes, limit, now_ns);
        actions.extend(answer.map(|bytes| Action::Inject { bytes, output: input }));
    }

    /// Takes over from the app that ran before a reload.
    pub fn inherit(&mut self, old: Answers) {
        self.announcer.inherit(old.announcer);
        (self.echo, self.too_big) = (old.echo, old.too_big);
        (self.reject, self.idle) = (old.reject, old.idle);
    }

    /// Starts.
    pub fn start(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        self.announcer.start(now_ns);
        self.tick(now_ns, actions);
    }

    /// Does what is due.
    pub fn tick(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        self.announcer.tick(now_ns, actions);
    }

    /// Returns when [`Answers::tick`] must be called next.
    pub fn wake_ns(&self) -> Option<u64> {
        self.announcer.wake_ns()
    }

    /// Returns the counters.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        let others = self.echo.counts().into_iter().chain(self.too_big.counts());
        let others = others.chain(self.reject.counts()).chain(self.idle.counts());
        self.announcer.counts().into_iter().chain(others).collect()
    }
}

/// What the counters mean.
pub const HELPS: &[MetricHelp] = &[
    ("vips_announced", "Unsolicited announcements of VIPs"),
    ("questions_answered", "ARP requests and neighbour solicitations answered"),
    ("questions_over_limit", "ARP requests and neighbour solicitations beyond the rate"),
    ("vip_conflicts", "Times that another station claimed a VIP"),
    ("pings_answered", "Pings to VIPs answered"),
    ("pings_over_limit", "Pings to VIPs beyond the rate"),
    ("too_big_sent", "ICMP messages sent about packets that are too long"),
    ("too_big_limited", "Packets that are too long, beyond the rate of ICMP messages"),
    ("too_big_unanswerable", "Packets that are too long and get no ICMP message"),
    ("rejections_sent", "Packets rejected by a TCP reset or an ICMP message"),
    ("rejections_limited", "Packets to reject beyond the rate of answers"),
    ("rejections_unanswerable", "Packets to reject that get no answer"),
    ("idle_connections_reset", "Idle connections reset at both ends"),
    ("idle_connections_unreadable", "Packets of idle connections that could not be read"),
];

/// Returns the checksum of a message; 0 if the message already contains the right checksum. The checksum of
/// ICMPv6 covers a pseudo header (RFC 4443 §2.3).
fn sum((src, dst): (IpAddr, IpAddr), message: &[u8]) -> u16 {
    let sum = Sum::default().bytes(message);
    let sum = match (src, dst) {
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let sum = sum.bytes(&src.octets()).bytes(&dst.octets());
            sum.value32(message.len() as u32).word(PROTOCOL_ICMPV6.into())
        }
        _ => sum,
    };
    checksum(sum)
}
