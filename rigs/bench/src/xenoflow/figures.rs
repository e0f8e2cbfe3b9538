//! The results of `weir bench xenoflow` by the numbers of the thesis's figures.

use super::thesis;
use serde_json::{Value, json};

/// Returns an object for each figure, with its unit and its rows. One that was not measured says why.
pub fn json(rate: &[Value], load: &Value, trip: &Value) -> Value {
    let not_measured = |what: &str, found: &Value| json!({ "what": what, "why": found["why"] });
    let mut figures = json!({
        "7.3": { "what": "rate by bytes of payload", "unit": "Mpps", "rows": rate },
        "7.4": {
            "what": "bandwidth by bytes of payload: the rate times the payload", "unit": "Gbit/s",
            "rows": rate.iter().map(bandwidth).collect::<Vec<_>>(),
        },
        "7.5": {
            "what": "published rates beside the thesis's and ours: Katran", "unit": "Mpps",
            "thesis": thesis::KATRAN,
            "rows": beside_ours(&[thesis::XENOFLOW_RATE, thesis::KATRAN_RATE], rate),
        },
        "7.6": {
            "what": "published rates beside the thesis's and ours: Kakao", "unit": "Mpps",
            "why": thesis::KAKAO, "rows": beside_ours(&[thesis::XENOFLOW_RATE], rate),
        },
    });
    let what = "round trip of DNS queries by load and by length of frames, for each distribution of clients";
    figures["7.7"] = if trip["scenarios"].is_array() {
        json!({
            "what": what, "unit": "us", "scenarios": trip["scenarios"], "by_length": trip["by_length"],
            "most_mpps": trip["most_mpps"], "thesis": thesis::LATENCY,
        })
    } else {
        not_measured(what, trip)
    };
    let what = "share of frames lost, by load";
    figures["7.8"] = if load["scenarios"].is_array() {
        json!({
            "what": what, "unit": "frames lost per frame sent", "scenarios": load["scenarios"],
            "most_mpps": load["most_mpps"], "with_back_ends": trip["scenarios"],
            "thesis_loss_above_mpps": thesis::LOSS_ABOVE,
        })
    } else {
        not_measured(what, load)
    };
    figures
}

/// Returns a row for each published rate, and for each of ours.
fn beside_ours(rates: &[thesis::PublishedRate], rate: &[Value]) -> Vec<Value> {
    rates.iter().copied().chain(ours(rate)).map(published).collect()
}

/// Returns our rates at the shortest payload.
fn ours(rate: &[Value]) -> impl Iterator<Item = thesis::PublishedRate> {
    let of = |key: &str| rate.first().and_then(|row| row[key].as_f64());
    [
        ("weir, a core", of("mpps"), "measured in this run, on memory ports"),
        ("weir in the kernel, a core", of("kernel_mpps"), "measured in this run, in test runs"),
    ]
    .into_iter()
    .filter_map(|(who, mpps, source)| Some((who, mpps?, source)))
}

fn published((who, mpps, source): thesis::PublishedRate) -> Value {
    json!({ "who": who, "mpps": mpps, "source": source })
}

/// Returns the bandwidth of a row of rates, in Gbit/s of payload. The thesis's bandwidth is computed from its
/// rate, because the bandwidths that it gives contradict its rates.
fn bandwidth(row: &Value) -> Value {
    let payload = row["payload"].as_f64();
    let gbit_s = |key: &str| payload.zip(row[key].as_f64()).map(|(payload, mpps)| payload * 8.0 * mpps / 1e3);
    json!({
        "payload": row["payload"], "frame": row["frame"],
        "gbit_s": gbit_s("mpps"), "gbit_s_min": gbit_s("mpps_min"), "gbit_s_max": gbit_s("mpps_max"),
        "thesis_gbit_s": gbit_s("thesis_mpps"),
        "kernel_gbit_s": gbit_s("kernel_mpps"), "kernel_gbit_s_min": gbit_s("kernel_mpps_min"),
        "kernel_gbit_s_max": gbit_s("kernel_mpps_max"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidth_is_rate_times_payload() {
        let rows = [
            json!({ "payload": 24, "frame": 66, "mpps": 10.0, "mpps_min": 5.0, "mpps_max": 20.0,
                "kernel_mpps": 100.0, "thesis_mpps": 92.0 }),
            json!({ "payload": 1000, "frame": 1042, "mpps": 10.0, "thesis_mpps": null }),
        ];
        let figures = json(&rows, &json!({ "why": "no root" }), &json!({ "why": "no root" }));
        let [short, long] = [0, 1].map(|at| &figures["7.4"]["rows"][at]);
        assert_eq!((&short["gbit_s"], &short["gbit_s_min"]), (&json!(1.92), &json!(0.96)));
        assert_eq!((&short["thesis_gbit_s"], &long["thesis_gbit_s"]), (&json!(17.664), &Value::Null));
        assert_eq!((&long["gbit_s"], &short["kernel_gbit_s"]), (&json!(80.0), &json!(19.2)));
        assert_eq!(figures["7.5"]["rows"].as_array().map(Vec::len), Some(4));
        let ours = [2, 3].map(|at| figures["7.5"]["rows"][at]["mpps"].as_f64());
        assert_eq!(ours, [Some(10.0), Some(100.0)]);
        assert_eq!(figures["7.6"]["rows"].as_array().map(Vec::len), Some(3), "Kakao's rate is not known");
        assert!(figures["7.6"]["why"].is_string());
        for figure in [&figures["7.7"], &figures["7.8"]] {
            assert_eq!((&figure["why"], figure.get("scenarios")), (&json!("no root"), None));
        }
        let scenarios = json!({ "scenarios": [], "most_mpps": 0.5 });
        assert_eq!(json(&rows, &scenarios, &scenarios)["7.7"]["most_mpps"], json!(0.5));
    }
}
