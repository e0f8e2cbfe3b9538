//! `weir drain` and `weir undrain`: the former withdraws the routes of this node, and waits until routers
//! send its packets to other nodes; the latter announces the node again.

use super::show::{Connection, Plain};
use crate::output;
use anyhow::Result;
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use weir_config::value::duration;
use weir_control::answer::Drained;
use weir_control::{Request, Show, What};

/// The exit code if packets still arrive at the end of the time limit.
const STILL_BUSY: u8 = 3;

/// How often the daemon is asked.
const EVERY: Duration = Duration::from_millis(100);

/// The sections that show whether packets still arrive, and whether a route announces any VIP.
const ASKED: [&str; 3] = ["backends", "pipes", "routes"];

/// Arguments of `weir drain`.
#[derive(clap::Args)]
pub struct DrainArguments {
    /// How long to wait at most, such as 30s; 0s does not wait.
    #[arg(long, default_value = "30s", value_parser = time)]
    timeout: Duration,
    /// How long no packet of a service must have arrived.
    #[arg(long, default_value = "1s", value_parser = time)]
    quiet: Duration,
    #[command(flatten)]
    connection: Connection,
}

fn time(text: &str) -> Result<Duration, &'static str> {
    let ns = if text == "0" { Some(0) } else { duration(text) };
    ns.map(Duration::from_nanos).ok_or("write a number and its unit: ms, s, m")
}

/// What services have received, and how many flows there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Arrived {
    packets: u64,
    flows: u64,
    routes: usize,
}

impl Arrived {
    fn read(answer: &Value) -> Arrived {
        let sum = |rows: &Value, key: &str| {
            rows.as_array().into_iter().flatten().filter_map(|row| row[key].as_u64()).sum()
        };
        let routes = answer["routes"].as_array().map_or(0, Vec::len);
        Arrived {
            packets: sum(&answer["backends"], "packets"),
            flows: sum(&answer["pipes"], "flows"),
            routes,
        }
    }

    fn ask(connection: &Connection) -> Result<Arrived> {
        let what = Some(What::Several(ASKED.map(str::to_string).to_vec()));
        Ok(Arrived::read(&connection.answer(&Request::Show(Show { what, ..Show::default() }))?))
    }
}

/// Runs `weir drain`.
///
/// # Errors
/// Fails if there is no daemon, or if it ends meanwhile.
pub fn drain(arguments: &DrainArguments) -> Result<ExitCode> {
    let DrainArguments { timeout, quiet, connection } = arguments;
    let begun = Instant::now();
    let Drained { withdrawn, .. } = connection.answer(&Request::Drain {})?;
    let (mut last, mut since) = (Arrived::ask(connection)?, begun);
    let first = last;
    if first.routes == 0 && !connection.is_json() {
        output::line(
            "draining: no service has `announce: route`, so there is nothing to withdraw or to wait for",
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    while first.routes > 0 && since.elapsed() < *quiet && begun.elapsed() < *timeout {
        std::thread::sleep(EVERY);
        let now = Arrived::ask(connection)?;
        if now.packets != last.packets {
            since = Instant::now();
        }
        last = now;
    }
    let (is_quiet, waited) = (first.routes == 0 || since.elapsed() >= *quiet, begun.elapsed().as_secs_f64());
    let Arrived { packets, flows, .. } = last;
    let packets = packets.saturating_sub(first.packets);
    if connection.is_json() {
        let (seconds, quiet) = ((waited * 1000.0).round() / 1000.0, is_quiet);
        output::line(json!({
            "quiet": quiet, "withdrawn": withdrawn, "seconds": seconds, "packets": packets, "flows": flows,
        }))?;
    } else {
        let end = if is_quiet {
            format!("no packet has arrived for {:.1} s", quiet.as_secs_f64())
        } else {
            "packets still arrive".to_string()
        };
        output::line(format!(
            "draining: {withdrawn} VIPs withdrawn; after {waited:.1} s, {end}; {packets} packets arrived \
             meanwhile, and {flows} flows are left in the tables"
        ))?;
    }
    Ok(if is_quiet { ExitCode::SUCCESS } else { ExitCode::from(STILL_BUSY) })
}

/// Runs `weir undrain`.
///
/// # Errors
/// Fails if there is no daemon.
pub fn undrain(arguments: &Plain) -> Result<ExitCode> {
    arguments.connection.ask(&Request::Undrain {}, |answer| {
        let was =
            if answer["changed"] == true { "the node is no longer draining" } else { "it was not draining" };
        format!("{was}\n")
    })
}
