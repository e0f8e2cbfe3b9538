//! Tells clients that their packets are too long for the path to a back end: ICMP "fragmentation needed" (RFC
//! 792, RFC 1191 §4) and ICMPv6 "packet too big" (RFC 4443 §3.2), from the address that they were sent to.
//!
//! The program refuses such packets before it changes them (pipes.md A21) and passes them to the app with the
//! length limit, so that the answer depends on nothing else. Answers are rate-limited, both in total and per
//! client, so a client that floods weir with long packets does not use up the answers of others.

use super::icmp::{Wrong, answer};
use super::limit::{AnswerRates, Limited};

const RATES: AnswerRates = AnswerRates { all: 1000, burst: 200, client: 20 };

/// The answers to packets that are too long.
#[derive(Clone, Debug)]
pub(super) struct TooBig(Limited);

impl Default for TooBig {
    fn default() -> TooBig {
        TooBig(Limited::new(RATES))
    }
}

impl TooBig {
    /// Returns the answer to a packet that may have at most `limit` bytes, if one may be sent now.
    pub fn answer(&mut self, frame: &[u8], limit: u16, now_ns: u64) -> Option<Vec<u8>> {
        self.0.answer(frame, answer(frame, Wrong::TooBig(limit)), now_ns)
    }

    /// Returns the counters.
    pub fn counts(&self) -> [(&'static str, u64); 3] {
        let [sent, limited, unanswerable] = self.0.counts();
        [("too_big_sent", sent), ("too_big_limited", limited), ("too_big_unanswerable", unanswerable)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_packet::craft;

    const MS: u64 = 1_000_000;
    const BURST: u64 = RATES.burst;

    #[test]
    fn a_client_gets_few_answers_and_others_get_theirs() {
        let mut answers = TooBig::default();
        let from = |client: u8| {
            let payload = "5a".repeat(100);
            craft::frame(&format!(
                "eth.src=02:00:00:00:00:0c eth.dst=02:00:00:00:00:01 src=10.0.1.{client} dst=10.0.0.80 df=1 \
                 proto=udp sport=1 dport=2 payload={payload}"
            ))
        };
        let mut ask = |client, now_ms: u64| answers.answer(&from(client), 60, now_ms * MS).is_some();
        let got = (0..100).filter(|_| ask(1, 0)).count();
        assert_eq!(got, RATES.client as usize);
        assert!(ask(2, 0), "another client");
        assert!(!ask(1, 49) && ask(1, 50) && !ask(1, 50), "twenty in a second");
        let got = (0..=255).filter(|client| ask(*client, 60)).count();
        assert!(got >= BURST as usize - 25, "{got}");
        assert!(got <= BURST as usize, "{got}: there is a limit for all clients together");
        assert_eq!(answers.counts()[0].1 + answers.counts()[1].1, 100 + 1 + 3 + 256);
    }
}
