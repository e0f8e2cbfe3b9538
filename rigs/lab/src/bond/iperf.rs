//! A TCP load from the inside to the outside: Debian's iperf3 with cubic.

use std::fs::File;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::topology::{OUTSIDE, Topology};
use crate::Interrupt;
use weir_bed::{Run, Started};

/// Number of connections: enough for every member to carry some.
const CONNECTIONS: &str = "24";
/// How much longer than its duration iperf3 may take.
const GRACE: Duration = Duration::from_secs(15);

/// A running load.
pub struct Iperf {
    client: Started,
    server: Started,
    deadline: Instant,
}

/// The result of a load.
pub struct Throughput {
    /// Received, in megabits per second.
    pub mbps: f64,
    /// Retransmitted segments.
    pub retransmits: u64,
}

impl Iperf {
    /// Starts a load of `seconds` seconds.
    pub fn start(run: &mut Run, topology: &Topology, seconds: u32, interrupt: &Interrupt) -> Result<Iperf> {
        let mut command = topology.outside.command("iperf3");
        command.args(["--server", "--one-off", "--bind", OUTSIDE]).stdout(Stdio::null());
        let server = run.start("iperf3-server", &mut command)?;
        wait_until_it_listens(topology, interrupt)?;
        let mut command = topology.inside.command("iperf3");
        let time = seconds.to_string();
        command.args(["--client", OUTSIDE, "--time", &time, "--parallel", CONNECTIONS]);
        command.args(["--congestion", "cubic"]);
        command.arg("--json").stdout(File::create(run.folder().join("iperf3.json"))?);
        let client = run.start("iperf3", &mut command)?;
        Ok(Iperf {
            client,
            server,
            deadline: Instant::now() + Duration::from_secs(u64::from(seconds)) + interrupt.limit(GRACE),
        })
    }

    /// Returns true if the load has ended. Fails if it is overdue.
    pub fn ended(&self, run: &mut Run) -> Result<bool> {
        if run.child(self.client).try_wait()?.is_some() {
            return Ok(true);
        }
        if Instant::now() > self.deadline {
            bail!("iperf3 did not end in time");
        }
        Ok(false)
    }

    /// Returns the result of a load that has ended.
    pub fn throughput(self, run: &mut Run) -> Result<Throughput> {
        run.stop(self.server)?;
        let text = std::fs::read_to_string(run.folder().join("iperf3.json"))?;
        let result: Value = serde_json::from_str(&text).context("iperf3 printed no JSON")?;
        let end = &result["end"];
        match end["sum_received"]["bits_per_second"].as_f64() {
            Some(bps) => Ok(Throughput {
                mbps: bps / 1e6,
                retransmits: end["sum_sent"]["retransmits"].as_u64().unwrap_or(0),
            }),
            None => bail!("iperf3 failed: {}", result["error"]),
        }
    }
}

/// Waits for the server: port 5201 is 0x1451, and state 0A is LISTEN.
fn wait_until_it_listens(topology: &Topology, interrupt: &Interrupt) -> Result<()> {
    let sockets = || topology.outside.output("cat", &["/proc/net/tcp"]);
    if !interrupt.wait(GRACE, || Ok(sockets()?.contains(":1451 00000000:0000 0A")))? {
        bail!("iperf3's server does not listen");
    }
    Ok(())
}
