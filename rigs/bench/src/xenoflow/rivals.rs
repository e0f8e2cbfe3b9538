//! Other balancers in the same bed, in the same run: the rate that each forwards, the speedup of weir, and
//! the DNS round trip through each. These are user-space and kernel balancers of Debian; Katran's program is
//! measured by `weir bench kernel --beside`.
//!
//! The speedup (formula 2.1 of the thesis) is that of rates: weir's divided by the rival's, in the same
//! round.

use super::bed::{Balancer, Bed, LoadParameters};
use super::rate::SHORTEST;
use super::trip::{ROUNDS, point, time};
use anyhow::Result;
use serde_json::{Value, json};
use std::fmt::Display;
use std::path::Path;
use weir_bed::namespace;
use weir_lab::ovs::{PACKAGE, SWITCH};
use weir_lab::spread::ResultSpread;

/// The arms, in the order of a round.
const ARMS: [Balancer; 6] = [
    Balancer::Engine,
    Balancer::Kernel,
    Balancer::Nginx,
    Balancer::Nftables,
    Balancer::Ipvs,
    Balancer::OpenVSwitch,
];

/// The load under which the round trip is timed, in percent of the full load.
const LOAD: u32 = 10;

/// nginx's module, a package of its own.
const NGINX_STREAM: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

/// Returns what an arm lacks on this machine.
fn lacks(arm: Balancer) -> Option<String> {
    let program = |name: &'static str| {
        (!namespace::missing(&[name]).is_empty()).then(|| format!("`{name}` is not installed"))
    };
    match arm {
        Balancer::Engine | Balancer::Kernel => None,
        Balancer::Nginx => program("nginx").or_else(|| {
            let why = "nginx's stream module (libnginx-mod-stream) is not installed";
            (!Path::new(NGINX_STREAM).exists()).then(|| why.to_string())
        }),
        Balancer::Nftables => program("nft"),
        Balancer::Ipvs => {
            let why = "this kernel has no IPVS (CONFIG_IP_VS): there is no /proc/net/ip_vs";
            (!Path::new("/proc/net/ip_vs").exists()).then(|| why.to_string()).or_else(|| program("ipvsadm"))
        }
        Balancer::OpenVSwitch => {
            let has = |file: &str| Path::new(file).exists();
            let package = (!has(SWITCH)).then(|| format!("`{PACKAGE}` is not installed"));
            let why = "this kernel has no TUN, which a bridge in user space needs";
            package.or_else(|| (!has("/dev/net/tun")).then(|| why.to_string()))
        }
    }
}

/// Describes an arm of the comparison.
fn what(arm: Balancer) -> &'static str {
    match arm {
        Balancer::Engine => "weir's worker, on a core of its own",
        Balancer::Kernel => "weir's program in the kernel, on the sender's core",
        Balancer::Nginx => "nginx stream, a proxy of UDP in user space, on a core of its own",
        Balancer::Nftables => "nftables dnat and masquerade, with connection tracking, on a core of its own",
        Balancer::Ipvs => "IPVS with direct routing, on a core of its own",
        Balancer::OpenVSwitch => {
            "Open vSwitch's user-space datapath with a select group, on the kernel's sockets and a core of \
             its own"
        }
    }
}

/// The rounds of an arm.
struct ArmRounds {
    arm: Balancer,
    /// Million frames per second that it forwards of as many as can be sent.
    mpps: Vec<f64>,
    /// The round trip without load, and under load.
    trips: [Vec<Value>; 2],
}

/// Measures all arms in turn. `most` is the rate of a full load, in million frames per second.
pub fn run(
    bed: &mut Bed,
    most: f64,
    quick: bool,
    say: &impl Fn(&dyn Display) -> Result<()>,
) -> Result<Vec<Value>> {
    say(&"rivals, 50/50: Mpps forwarded, speedup of weir (engine, kernel), DNS round trip in us")?;
    let (present, absent): (Vec<Balancer>, Vec<Balancer>) =
        ARMS.into_iter().partition(|arm| lacks(*arm).is_none());
    let new = |arm| ArmRounds { arm, mpps: Vec::new(), trips: [const { Vec::new() }; 2] };
    let mut all: Vec<ArmRounds> = present.into_iter().map(new).collect();
    let full = LoadParameters { rate: 0.0, even: 5, length: SHORTEST as u16 };
    let some = LoadParameters { rate: most * 1e4 * f64::from(LOAD), ..full };
    for _ in 0..if quick { 1 } else { ROUNDS } {
        for rounds in &mut all {
            let running = bed.start(rounds.arm, 2)?;
            for (trips, load) in rounds.trips.iter_mut().zip([None, Some(some)]) {
                trips.push(bed.measure(load, time(quick))?);
            }
            let forwarded = bed.measure(Some(full), time(quick))?;
            rounds.mpps.push(forwarded["arrived_mpps"].as_f64().unwrap_or_default());
            bed.stop(running)?;
        }
    }
    let weir = [Balancer::Engine, Balancer::Kernel]
        .map(|arm| all.iter().find(|rounds| rounds.arm == arm).map(|rounds| rounds.mpps.clone()));
    let mut rows: Vec<Value> = all.iter().map(|rounds| row(rounds, &weir)).collect();
    for arm in absent {
        rows.push(json!({ "name": arm.name(), "what": what(arm), "missing": lacks(arm) }));
    }
    let has_ovs = Path::new("/sys/module/openvswitch").exists();
    let why = if has_ovs { "this bench has no arm for it" } else { "this kernel does not have it" };
    rows.push(json!({
        "name": "ovs", "what": "Open vSwitch in the kernel, with a select group",
        "missing": format!("{why} (CONFIG_OPENVSWITCH)"),
    }));
    rows.iter().try_for_each(|row| say(&line(row)))?;
    Ok(rows)
}

/// Returns the results of an arm.
fn row(rounds: &ArmRounds, weir: &[Option<Vec<f64>>; 2]) -> Value {
    let mut row = json!({ "name": rounds.arm.name(), "what": what(rounds.arm) });
    let mut put = |key: &str, values: Vec<f64>| {
        let spread = (!values.is_empty()).then(|| ResultSpread::of(values));
        row[key] = json!(spread.map(|spread| spread.median));
        row[format!("{key}_min")] = json!(spread.map(|spread| spread.min));
        row[format!("{key}_max")] = json!(spread.map(|spread| spread.max));
    };
    put("mpps", rounds.mpps.clone());
    for (key, weir) in ["speedup_engine", "speedup_kernel"].into_iter().zip(weir) {
        let pairs = weir.iter().flatten().zip(&rounds.mpps).filter(|(_, rival)| **rival > 0.0);
        put(key, pairs.map(|(weir, rival)| weir / rival).collect());
    }
    let [idle, loaded] = &rounds.trips;
    row["round_trip"] = json!([point(0, 0, idle), point(LOAD, SHORTEST as u16, loaded)]);
    row
}

fn line(row: &Value) -> String {
    let name = row["name"].as_str().unwrap_or_default();
    if let Some(missing) = row["missing"].as_str() {
        return format!("{name:<10} left out: {missing}");
    }
    let spread = |key: &str| {
        let number = |end: &str| row[format!("{key}{end}")].as_f64().unwrap_or(f64::NAN);
        format!("{:.3} ({:.3} - {:.3})", number(""), number("_min"), number("_max"))
    };
    let trip = |at: usize| row["round_trip"][at]["median_us"].as_f64().unwrap_or(f64::NAN);
    format!(
        "{name:<10} {:<23} speedup {:<23} {:<23} round trip {:.1} without load, {:.1} with {LOAD} %",
        spread("mpps"),
        spread("speedup_engine"),
        spread("speedup_kernel"),
        trip(0),
        trip(1)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_speedup_is_the_ratio_of_rates_in_the_same_round() {
        let rounds =
            ArmRounds { arm: Balancer::Nginx, mpps: vec![0.1, 0.2, 0.0], trips: [const { Vec::new() }; 2] };
        let row = row(&rounds, &[Some(vec![0.5, 0.4, 0.4]), None]);
        assert_eq!((&row["speedup_engine_min"], &row["speedup_engine_max"]), (&json!(2.0), &json!(5.0)));
        assert_eq!((&row["mpps"], &row["speedup_kernel"]), (&json!(0.1), &Value::Null));
    }
}
