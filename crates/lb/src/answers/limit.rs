//! Rate limit for answers (RFC 1812 §4.3.2.8, RFC 4443 §2.4 f): a token bucket on the app's clock. Requests
//! beyond the limit are not answered, so that no client can make weir send an unlimited number of frames or
//! keep its main thread busy.

use super::icmp::network;

/// Nanoseconds in a second.
const SECOND_NS: u64 = 1_000_000_000;

/// A rate per second with a burst.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    /// Nanoseconds per answer.
    each_ns: u64,
    /// The burst, in nanoseconds.
    burst_ns: u64,
    /// When the bucket will be full again, on the caller's clock.
    until_ns: u64,
    refused: u64,
}

impl Limit {
    /// Creates a limit of `rate` per second with bursts of `burst`. Neither may be 0.
    pub const fn new(rate: u64, burst: u64) -> Limit {
        let each_ns = SECOND_NS / rate;
        Limit { each_ns, burst_ns: burst * each_ns, until_ns: 0, refused: 0 }
    }

    /// Returns whether one more answer is allowed now.
    pub fn allows(&mut self, now_ns: u64) -> bool {
        let until_ns = self.until_ns.max(now_ns) + self.each_ns;
        let allowed = until_ns <= now_ns + self.burst_ns;
        if allowed {
            self.until_ns = until_ns;
        } else {
            self.refused += 1;
        }
        allowed
    }

    /// Returns how many answers were refused.
    pub fn refused(&self) -> u64 {
        self.refused
    }
}

/// The number of buckets for clients.
const CLIENTS: usize = 256;

/// A limit for all answers, and one for each bucket of clients, chosen by a hash of their addresses, so a
/// client that floods weir does not use up the answers of others.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    all: Limit,
    clients: Box<[Limit; CLIENTS]>,
}

impl Limits {
    fn new(rates: AnswerRates) -> Limits {
        let AnswerRates { all, burst, client } = rates;
        Limits { all: Limit::new(all, burst), clients: Box::new([Limit::new(client, client); CLIENTS]) }
    }

    /// Returns whether a frame may be answered now. The client's own limit is checked first.
    pub fn allow(&mut self, frame: &[u8], now_ns: u64) -> bool {
        self.clients[bucket_of(frame)].allows(now_ns) && self.all.allows(now_ns)
    }
}

/// How many answers may be sent per second.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnswerRates {
    /// The rate to all clients together.
    pub all: u64,
    /// The burst to all clients together.
    pub burst: u64,
    /// The rate to each bucket of clients, and the burst.
    pub client: u64,
}

/// Rate-limited answers to clients, with counters of their outcomes.
#[derive(Clone, Debug)]
pub(super) struct Limited {
    limits: Limits,
    sent: u64,
    refused: u64,
    impossible: u64,
}

impl Limited {
    /// Creates answers with these limits.
    pub fn new(rates: AnswerRates) -> Limited {
        Limited { limits: Limits::new(rates), sent: 0, refused: 0, impossible: 0 }
    }

    /// Returns the answer to a frame, if one is possible and may be sent now.
    pub fn answer(&mut self, frame: &[u8], answer: Option<Vec<u8>>, now_ns: u64) -> Option<Vec<u8>> {
        let Some(answer) = answer else {
            self.impossible += 1;
            return None;
        };
        if !self.limits.allow(frame, now_ns) {
            self.refused += 1;
            return None;
        }
        self.sent += 1;
        Some(answer)
    }

    /// Returns how many answers were sent, how many were refused by the limits, and how many were impossible.
    pub fn counts(&self) -> [u64; 3] {
        [self.sent, self.refused, self.impossible]
    }
}

/// Returns the bucket of a client, chosen by its IPv4 address or its IPv6 /64 network.
fn bucket_of(frame: &[u8]) -> usize {
    let Some((l3, is_ipv4)) = network(frame) else { return 0 };
    let address = if is_ipv4 { l3 + 12..l3 + 16 } else { l3 + 8..l3 + 16 };
    let address = frame.get(address).unwrap_or_default();
    let word = address.iter().fold(0, |word: u64, byte| word << 8 | u64::from(*byte));
    // Fibonacci hashing; clients that share a bucket share its tokens.
    (word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_allowed_and_then_the_rate() {
        let mut limit = Limit::new(1000, 10);
        let mut allowed = |now_ns: u64, asked: usize| (0..asked).filter(|_| limit.allows(now_ns)).count();
        assert_eq!(allowed(0, 50), 10);
        assert_eq!(allowed(500_000, 50), 0);
        assert_eq!(allowed(3_000_000, 50), 3);
        assert_eq!(allowed(SECOND_NS, 50), 10, "at most the burst accumulates");
        assert_eq!(limit.refused(), 200 - 23);
    }
}
