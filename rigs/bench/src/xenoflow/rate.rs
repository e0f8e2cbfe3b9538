//! The rate of a core by payload length: XenoFlow's program in a worker on memory ports, and in test runs of
//! the kernel, which have no ports at all.

use super::program::{BackEndsAs, scenario};
use super::thesis;
use crate::engine::{Bench, PACKETS};
use crate::kernel;
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
const ROUNDS: u16 = 5;

/// Measures, and prints a row for each payload.
pub fn run(quick: bool, say: &impl Fn(&dyn Display) -> Result<()>) -> Result<Vec<Value>> {
    say(&"rate by payload, one core: a worker on memory ports, and test runs of the kernel")?;
    say(&"payload  frame    Mpps  (min - max)        ns   thesis Mpps   kernel Mpps  (min - max)")?;
    let (payloads, packets) =
        if quick { (&PAYLOADS_QUICK[..], PACKETS / 4) } else { (&PAYLOADS[..], PACKETS) };
    let scenario = scenario(2, BackEndsAs::Entries, true);
    let mut rows = Vec::new();
    for &payload in payloads {
        let mut row = measure(&scenario, payload, packets)?;
        let why = add_kernel(&mut row, &scenario, payload)?;
        let number = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
        let theirs = thesis::rate(payload).map_or("-".to_string(), |mpps| format!("{mpps:.0}"));
        let [kernel, least, most] = ["", "_min", "_max"].map(|end| number(&format!("kernel_mpps{end}")));
        let kernel = why.unwrap_or_else(|| format!("{kernel:>11.2}  ({least:.2} - {most:.2})"));
        say(&format_args!(
            "{payload:>7}  {:>5}  {:>6.2}  ({:.2} - {:.2})  {:>7.1}  {theirs:>11}   {kernel}",
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

/// Adds the rate of the kernel's executor to a row, or returns why there is none.
fn add_kernel(row: &mut Value, scenario: &Scenario, payload: u32) -> Result<Option<String>> {
    let measured = kernel::alike(std::array::from_ref(scenario), frame(payload) as usize, ROUNDS)?;
    let (rate, why) = match measured {
        Ok([ns]) => (Some(ResultSpread::of(ns.into_iter().map(|ns| 1e3 / ns).collect())), None),
        Err(why) => (None, Some(why)),
    };
    ResultSpread::put(rate, "kernel", row);
    row["kernel_why"] = json!(why);
    Ok(why)
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

    #[test]
    fn the_kernel_sends_the_shortest_and_the_longest_frames() {
        if !rustix::process::geteuid().is_root() {
            assert!(std::env::var_os("CI").is_none(), "CI runs as root");
            return;
        }
        for payload in [2, 1024] {
            let scenario = scenario(2, BackEndsAs::Entries, true);
            let ns = kernel::alike(&[scenario], frame(payload) as usize, 1).expect("it sends them all");
            assert_eq!(ns.map(|[ns]| ns.len()), Ok(1), "{payload} bytes");
        }
    }
}
