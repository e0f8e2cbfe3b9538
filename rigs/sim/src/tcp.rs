//! TCP, simplified: slow start and congestion avoidance in packets, selective acknowledgements of single
//! packets, fast retransmission after three later ones, timeouts with back-off, and DCTCP's reaction to marks
//! (SIGCOMM'10). Every packet is acknowledged; there is no pacing, no delayed acknowledgement, no tail loss
//! probe and no adaptation to reordering.

use weir_path::flow::Round;

/// Bytes of data in a packet.
pub const DATA_BYTES: u32 = 1448;
/// Bytes of headers (Ethernet, IPv4, TCP with timestamps, and the tunnel's), and thus of an acknowledgement.
pub const HEADER_BYTES: u32 = 116;

/// The initial window (RFC 6928), packets.
const WINDOW_FIRST: f64 = 10.0;

/// The largest window, packets: the receiver's buffer of 1.5 MB.
pub const WINDOW_MAX: u32 = 1024;

/// How many later packets must arrive before a packet counts as lost (RFC 5681).
const DUPLICATES: u32 = 3;

/// DCTCP's g.
const GAIN: f64 = 1.0 / 16.0;

/// The longest timeout, ns (RFC 6298 asks for at least 60 s).
const TIMEOUT_MAX: u64 = 60_000_000_000;

/// Which packets of a window have arrived.
#[derive(Clone, Debug, Default)]
struct Window([u64; WINDOW_MAX as usize / 64]);

impl Window {
    fn place(packet: u32) -> (usize, u64) {
        ((packet % WINDOW_MAX / 64) as usize, 1 << (packet % 64))
    }

    fn has(&self, packet: u32) -> bool {
        let (word, bit) = Window::place(packet);
        self.0[word] & bit != 0
    }

    fn add(&mut self, packet: u32) {
        let (word, bit) = Window::place(packet);
        self.0[word] |= bit;
    }

    fn remove(&mut self, packet: u32) {
        let (word, bit) = Window::place(packet);
        self.0[word] &= !bit;
    }
}

/// The receiving end of a flow.
#[derive(Clone, Debug, Default)]
pub struct Receiver {
    next: u32,
    arrived: Window,
}

impl Receiver {
    /// Returns true if a packet has already arrived.
    #[must_use]
    pub fn has(&self, packet: u32) -> bool {
        packet < self.next || packet - self.next < WINDOW_MAX && self.arrived.has(packet)
    }

    /// Takes a packet; returns the number of the first missing packet.
    pub fn take(&mut self, packet: u32) -> u32 {
        if packet >= self.next && packet - self.next < WINDOW_MAX {
            self.arrived.add(packet);
            while self.arrived.has(self.next) {
                self.arrived.remove(self.next);
                self.next += 1;
            }
        }
        self.next
    }
}

/// The contents of an acknowledgement.
#[derive(Clone, Copy, Debug)]
pub struct Ack {
    /// The number below which all packets have arrived.
    pub next: u32,
    /// The packet that was just received.
    pub packet: u32,
    /// Whether that packet was marked.
    pub marked: bool,
    /// When the packet left, ns.
    pub sent: u64,
}

/// How a sender behaves.
#[derive(Clone, Copy, Debug)]
pub struct Behaviour {
    /// Reacts to marks like DCTCP; otherwise packets are dropped instead of marked.
    pub dctcp: bool,
    /// The shortest timeout, ns.
    pub timeout_min: u64,
}

/// The sending end of a flow.
#[derive(Clone, Debug)]
pub struct TcpSender {
    behaviour: Behaviour,
    packets: u32,
    next: u32,
    acked: u32,
    arrived: Window,
    /// One above the highest packet that is known to have arrived.
    highest: u32,
    /// Packets from `again` to `lost` that have not arrived must be retransmitted.
    again: u32,
    lost: u32,
    in_flight: u32,
    window: f64,
    threshold: f64,
    /// Recovery ends when this packet is acknowledged.
    recovers: Option<u32>,
    round_trip: Option<(u64, u64)>,
    back_off: u32,
    deadline: u64,
    alpha: f64,
    round_ends: u32,
    round: (u32, u32),
}

impl TcpSender {
    /// Creates the sender of a flow with `packets` packets, at least 1.
    #[must_use]
    pub fn new(packets: u32, behaviour: Behaviour) -> TcpSender {
        TcpSender {
            behaviour,
            packets: packets.max(1),
            next: 0,
            acked: 0,
            arrived: Window::default(),
            highest: 0,
            again: 0,
            lost: 0,
            in_flight: 0,
            window: WINDOW_FIRST,
            threshold: f64::from(WINDOW_MAX),
            recovers: None,
            round_trip: None,
            back_off: 0,
            deadline: u64::MAX,
            alpha: 1.0,
            round_ends: 0,
            round: (0, 0),
        }
    }

    /// Returns true if all packets are acknowledged.
    #[inline]
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.acked >= self.packets
    }

    /// Returns one above the highest packet sent.
    #[inline]
    #[must_use]
    pub fn highest_sent(&self) -> u32 {
        self.next
    }

    /// Returns true if a timeout has fired since the last progress.
    #[inline]
    #[must_use]
    pub fn is_backed_off(&self) -> bool {
        self.back_off > 0
    }

    /// When the timeout fires, ns.
    #[inline]
    #[must_use]
    pub fn deadline(&self) -> u64 {
        self.deadline
    }

    /// Takes the number of the next packet to send now, if the window allows one.
    #[inline]
    pub fn take(&mut self, now: u64) -> Option<u32> {
        if f64::from(self.in_flight) >= self.window {
            return None;
        }
        while self.again < self.lost && self.arrived.has(self.again) {
            self.again += 1;
        }
        let packet = if self.again < self.lost {
            self.again += 1;
            self.again - 1
        } else if self.next < self.packets && self.next - self.acked < WINDOW_MAX {
            self.next += 1;
            self.next - 1
        } else {
            return None;
        };
        self.in_flight += 1;
        if self.deadline == u64::MAX {
            self.deadline = now + self.timeout();
        }
        Some(packet)
    }

    /// The timeout (RFC 6298), doubled each time it fires.
    fn timeout(&self) -> u64 {
        let (mean, deviation) = self.round_trip.unwrap_or((0, self.behaviour.timeout_min / 4));
        let first = (mean + 4 * deviation).max(self.behaviour.timeout_min);
        (first << self.back_off.min(10)).min(TIMEOUT_MAX)
    }

    /// Takes an acknowledgement. At the end of a round trip, returns a summary of it.
    pub fn acknowledged(&mut self, now: u64, ack: Ack) -> Option<Round> {
        self.measure(now - ack.sent);
        self.round.0 += 1;
        self.round.1 += u32::from(ack.marked);
        let mut news = 0;
        if ack.packet >= ack.next.max(self.acked) && !self.arrived.has(ack.packet) {
            self.arrived.add(ack.packet);
            self.highest = self.highest.max(ack.packet + 1);
            self.leave(ack.packet);
            news += 1;
        }
        if ack.next > self.acked {
            for packet in self.acked..ack.next {
                if self.arrived.has(packet) {
                    self.arrived.remove(packet);
                } else {
                    self.leave(packet);
                    news += 1;
                }
            }
            self.acked = ack.next;
            self.highest = self.highest.max(self.acked);
            self.lost = self.lost.max(self.acked);
            self.again = self.again.max(self.acked);
            self.back_off = 0;
            self.deadline = if self.is_done() { u64::MAX } else { now + self.timeout() };
        }
        self.detect_loss();
        if self.recovers.is_some_and(|end| self.acked >= end) {
            self.recovers = None;
        }
        if self.recovers.is_none() {
            self.grow(news);
        }
        self.end_round()
    }

    fn measure(&mut self, time: u64) {
        self.round_trip = Some(match self.round_trip {
            None => (time, time / 2),
            Some((mean, deviation)) => ((7 * mean + time) / 8, (3 * deviation + mean.abs_diff(time)) / 4),
        });
    }

    /// Notes that a packet is no longer in flight, unless it was already given up.
    fn leave(&mut self, packet: u32) {
        if !(self.again..self.lost).contains(&packet) {
            self.in_flight = self.in_flight.saturating_sub(1);
        }
    }

    fn detect_loss(&mut self) {
        let bound = self.highest.saturating_sub(DUPLICATES);
        let mut found = false;
        while self.lost < bound {
            if !self.arrived.has(self.lost) {
                self.in_flight = self.in_flight.saturating_sub(1);
                found = true;
            }
            self.lost += 1;
        }
        if found && self.recovers.is_none() {
            self.recovers = Some(self.next);
            self.threshold = (self.window / 2.0).max(2.0);
            self.window = self.threshold;
        }
    }

    fn grow(&mut self, packets: u32) {
        let packets = f64::from(packets);
        let growth = if self.window < self.threshold { packets } else { packets / self.window };
        self.window = (self.window + growth).min(f64::from(WINDOW_MAX));
    }

    fn end_round(&mut self) -> Option<Round> {
        if self.acked < self.round_ends || self.round.0 == 0 {
            return None;
        }
        let (packets, marked) = self.round;
        self.round = (0, 0);
        self.round_ends = self.next;
        if self.behaviour.dctcp {
            self.alpha += GAIN * (f64::from(marked) / f64::from(packets) - self.alpha);
            if marked > 0 && self.recovers.is_none() {
                self.window = (self.window * (1.0 - self.alpha / 2.0)).max(2.0);
                self.threshold = self.window;
            }
        }
        Some(Round { packets, marked, idle: self.in_flight == 0 })
    }

    /// Handles a timeout: every packet that has not arrived counts as lost.
    pub fn timed_out(&mut self, now: u64) {
        self.threshold = (self.window / 2.0).max(2.0);
        self.window = 1.0;
        self.in_flight = 0;
        self.again = self.acked;
        self.lost = self.next;
        self.recovers = None;
        self.back_off += 1;
        self.deadline = now + self.timeout();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_packet::random::Random;

    /// Sends over a link that loses and reorders packets, one packet per microsecond; returns the number of
    /// packets sent.
    fn transfer(packets: u32, loss_percent: u64, seed: u64) -> (u32, u64) {
        let mut random = Random::new(seed);
        let behaviour = Behaviour { dctcp: false, timeout_min: 1_000_000 };
        let (mut sender, mut receiver) = (TcpSender::new(packets, behaviour), Receiver::default());
        let (mut line, mut now, mut sent) = (Vec::new(), 0, 0);
        while !sender.is_done() {
            now += 1000;
            while let Some(packet) = sender.take(now) {
                sent += 1;
                if random.below(100) >= loss_percent {
                    line.push((now + 50_000 + random.below(4000), packet, now));
                }
            }
            line.sort_unstable();
            while line.first().is_some_and(|first| first.0 <= now) {
                let (_, packet, left) = line.remove(0);
                let next = receiver.take(packet);
                if random.below(100) >= loss_percent {
                    sender.acknowledged(now, Ack { next, packet, marked: false, sent: left });
                }
            }
            if now >= sender.deadline() {
                sender.timed_out(now);
            }
            assert!(now < 60_000_000_000, "it never ends");
        }
        assert_eq!(receiver.next, packets);
        (sent, now)
    }

    #[test]
    fn everything_arrives_whatever_is_lost() {
        for seed in 0..20 {
            for loss in [0, 1, 5, 20] {
                let (sent, _) = transfer(500, loss, seed);
                assert!(sent >= 500 && (loss > 0 || sent < 600), "{sent} at {loss} %");
            }
        }
    }

    #[test]
    fn few_losses_need_no_timeout() {
        let (_, time) = transfer(2000, 1, 3);
        assert!(time < 60_000_000, "{time}");
    }
}
