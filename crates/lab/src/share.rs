//! What share of the frames a back end should have, and how far from it chance can carry it.
//!
//! The back end of a flow is as good as random. Of `flows` equally large flows with `packets` packets together, a back
//! end that should get the fraction p of flows gets p * packets, with the standard deviation
//! sqrt(p (1 - p) / flows) * packets. With every query a flow of its own (clients.rs) that is the smallest there is.

/// Chance exceeds five standard deviations once in 1.7 million.
const SIGMAS: f64 = 5.0;

/// The frames that a back end should have got: a range when reloads leave open which configuration met some of them.
pub struct Share {
    /// The back end.
    pub name: &'static str,
    /// Least and most expected.
    pub expected: (f64, f64),
    /// One standard deviation.
    pub sigma: f64,
}

impl Share {
    /// The share of a back end that gets `fraction` of all flows.
    pub fn of(name: &'static str, fraction: f64, packets: u64, flows: u64) -> Share {
        let packets = packets as f64;
        let sigma = (fraction * (1.0 - fraction) / flows.max(1) as f64).sqrt() * packets;
        Share { name, expected: (fraction * packets, fraction * packets), sigma }
    }

    /// True when chance explains the difference.
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
