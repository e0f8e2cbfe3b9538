//! The claims of XenoFlow's thesis, as far as they are consistent.
//!
//! Its rates in Gbit/s do not agree with its packets per second (92 Mpps of 64 bytes are 47 Gbit/s, not 16),
//! and its frames fill 100 Gbit/s only above 1024 bytes, but those of a later report already at 128.
//! Therefore only packets per second are listed here, and only for the short frames for which they are given.

use serde_json::{Value, json};

/// UDP payload in bytes, and million packets per second.
pub const RATES: [(u32, f64); 3] = [(2, 98.0), (22, 98.0), (24, 92.0)];

/// The load above which packets are lost, in million packets per second; the loss then grows linearly.
pub const LOSS_ABOVE: f64 = 95.0;

/// There are no figures for latency, only a statement of what it depends on.
pub const LATENCY: &str = "the round trip does not depend on load with 50/50, 70/30 and the worst case; \
                           with a single end point it grows a little, for which the thesis blames the end \
                           point";

/// A balancer, its rate in million packets per second, and where the rate is from.
pub type PublishedRate = (&'static str, f64, &'static str);

/// The rate of the thesis itself.
pub const XENOFLOW_RATE: PublishedRate = ("XenoFlow, a card", 98.0, "the thesis, 2 to 22 bytes of payload");

/// The published rate of Katran.
pub const KATRAN_RATE: PublishedRate =
    ("Katran, a core", 5.2, "published by its authors for hardware of 2018, with the driver");

/// What the thesis says about Katran, without a number.
pub const KATRAN: &str = "about half of XenoFlow's rate, in another thesis, from 254 source addresses";

/// Why there is no number of Kakao's balancer. The thesis probably means doi:10.1109/ACCESS.2021.3108801.
pub const KAKAO: &str = "we have no rate of Kakao's balancer that we could check: we could read only the \
                         abstract of its paper (IEEE Access 9, 2021), which gives none";

/// Returns the rate for this payload, if the thesis gives one.
pub fn rate(payload: u32) -> Option<f64> {
    RATES.iter().find(|(bytes, _)| *bytes == payload).map(|(_, mpps)| *mpps)
}

/// The claims as JSON.
pub fn json() -> Value {
    json!({
        "rate": RATES.map(|(payload, mpps)| json!({ "payload": payload, "mpps": mpps })),
        "loss_above_mpps": LOSS_ABOVE,
        "latency": LATENCY,
    })
}
