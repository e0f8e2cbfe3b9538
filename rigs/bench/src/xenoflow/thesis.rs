//! What XenoFlow's thesis says, as far as it does not contradict itself.
//!
//! Its rates in Gbit/s do not agree with its packets a second (92 Mpps of 64 bytes are 47 Gbit/s, not 16),
//! and its frames fill 100 Gbit/s above 1024 bytes, those of a later report at 128. So only packets a second
//! are here, and only of the short frames for which they are told.

use serde_json::{Value, json};

/// Payload of UDP in bytes, and million packets a second.
pub const RATES: [(u32, f64); 3] = [(2, 98.0), (22, 98.0), (24, 92.0)];

/// The load above which packets are lost, in million packets a second; the loss then grows linearly.
pub const LOSS_ABOVE: f64 = 95.0;

/// Of latency there are no figures, but what it depends on.
pub const LATENCY: &str = "the round trip does not depend on load with 50/50, 70/30 and the worst case; \
                           with a single end point it grows a little, for which the thesis blames the end \
                           point";

/// The rate for this payload, if the thesis has it.
pub fn rate(payload: u32) -> Option<f64> {
    RATES.iter().find(|(bytes, _)| *bytes == payload).map(|(_, mpps)| *mpps)
}

/// The same for a program.
pub fn json() -> Value {
    json!({
        "rate": RATES.map(|(payload, mpps)| json!({ "payload": payload, "mpps": mpps })),
        "loss_above_mpps": LOSS_ABOVE,
        "latency": LATENCY,
    })
}
