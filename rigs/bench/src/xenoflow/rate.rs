//! The rate of a core by payload length: XenoFlow's program on memory ports.

use super::program::{BackEndsAs, scenario};
use super::thesis;
use crate::engine::{Bench, PACKETS};
use crate::scenarios::Scenario;
use anyhow::{Result, ensure};
use serde_json::{Value, json};
use std::fmt::Display;
use weir_lab::spread::ResultSpread;

/// Bytes of payload.
const PAYLOADS: [u32; 10] = [2, 8, 16, 22, 24, 64, 128, 256, 512, 1024];
const PAYLOADS_QUICK: [u32; 4] = [2, 22, 24, 1024];

/// Bytes before the payload: Ethernet, IPv4, UDP.
const HEADERS: u32 = 14 + 20 + 8;
/// The shortest frame, without FCS.
pub const SHORTEST: u32 = 60;

/// Rounds whose median is reported, after an uncounted warm-up round.
const ROUNDS: usize = 5;

/// Measures, and prints a row for each payload.
pub fn run(quick: bool, say: &impl Fn(&dyn Display) -> Result<()>) -> Result<Vec<Value>> {
    say(&"rate by payload, memory ports, one core")?;
    say(&"payload  frame    Mpps  (min - max)        ns   thesis Mpps")?;
    let (payloads, packets) =
        if quick { (&PAYLOADS_QUICK[..], PACKETS / 4) } else { (&PAYLOADS[..], PACKETS) };
    let scenario = scenario(2, BackEndsAs::Entries, true);
    let mut rows = Vec::new();
    for &payload in payloads {
        let row = measure(&scenario, payload, packets)?;
        let number = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
        let theirs = thesis::rate(payload).map_or("-".to_string(), |mpps| format!("{mpps:.0}"));
        say(&format_args!(
            "{payload:>7}  {:>5}  {:>6.2}  ({:.2} - {:.2})  {:>7.1}  {theirs:>11}",
            row["frame"],
            number("mpps"),
            number("mpps_min"),
            number("mpps_max"),
            1e3 / number("mpps"),
        ))?;
        rows.push(row);
    }
    Ok(rows)
}

fn measure(scenario: &Scenario, payload: u32, packets: u64) -> Result<Value> {
    let frame = frame(payload);
    let mut bench = Bench::of_length(scenario, frame as usize);
    bench.round(scenario, packets);
    let rate = ResultSpread::of((0..ROUNDS).map(|_| 1e3 / bench.round(scenario, packets).0).collect());
    let (unsent, all) = bench.unsent();
    ensure!(unsent == 0, "{unsent} of {all} packets were not sent");
    Ok(json!({
        "payload": payload, "frame": frame, "mpps": rate.median, "mpps_min": rate.min, "mpps_max": rate.max,
        "thesis_mpps": thesis::rate(payload),
    }))
}

/// Returns the bytes of a frame with this payload, without FCS.
fn frame(payload: u32) -> u32 {
    (HEADERS + payload).max(SHORTEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Dropping packets would look fast.
    #[test]
    fn every_packet_of_every_length_is_sent() {
        for payload in PAYLOADS {
            let row = measure(&scenario(2, BackEndsAs::Entries, true), payload, 1024).expect("all are sent");
            assert_eq!(row["frame"], u64::from(frame(payload)));
        }
        assert_eq!((frame(2), frame(18), frame(22), frame(1024)), (60, 60, 64, 1066));
    }
}
