//! The share of frames that a back end should receive, and how far it may deviate by chance.
//!
//! The back end of a flow is effectively random. Of `flows` equally large flows with `packets` packets in
//! total, a back end that should receive the fraction p of flows receives p * packets, with a standard
//! deviation of sqrt(p (1 - p) / flows) * packets. The deviation is smallest if every query is a flow of its
//! own (clients.rs).

/// Chance exceeds five standard deviations once in 1.7 million.
const SIGMAS: f64 = 5.0;

/// The frames that a back end should have received: a range if reloads leave open which configuration some of
/// them met.
pub struct Share {
    /// Name of the back end.
    pub name: &'static str,
    /// The smallest and largest expected number.
    pub expected: (f64, f64),
    /// One standard deviation.
    pub sigma: f64,
}

impl Share {
    /// Returns the share of a back end that receives `fraction` of all flows.
    pub fn of(name: &'static str, fraction: f64, packets: u64, flows: u64) -> Share {
        let packets = packets as f64;
        let sigma = (fraction * (1.0 - fraction) / flows.max(1) as f64).sqrt() * packets;
        Share { name, expected: (fraction * packets, fraction * packets), sigma }
    }

    /// Returns true if chance explains the difference.
    pub fn contains(&self, packets: u64) -> bool {
        let margin = SIGMAS * self.sigma;
        (self.expected.0 - margin..=self.expected.1 + margin).contains(&(packets as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_third_of_nine_hundred_flows_is_three_hundred_give_or_take() {
        let share = Share::of("b1", 1.0 / 3.0, 900, 900);
        assert!((share.expected.0 - 300.0).abs() < 1e-9 && (share.sigma - 200f64.sqrt()).abs() < 1e-9);
        assert!(share.contains(300) && share.contains(370) && !share.contains(371) && !share.contains(229));
    }

    #[test]
    fn few_large_flows_may_differ_more() {
        assert!(Share::of("b1", 0.5, 1000, 10).contains(100));
        assert!(!Share::of("b1", 0.5, 1000, 1000).contains(100));
    }
}
