//! Ordinary clients from Debian: `wrk`, `dnsperf` and `curl`, each with both IP versions.
//!
//! The clients run for a phase, and then report their counts. `wrk` keeps connections open and sends repeated
//! requests over each. `curl` opens a connection for each request, and records who answers. `dnsperf` sends
//! queries from a few ports. None of them sends as fast as it can: the lab is about losses, and weir and the
//! servers share the same cores.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::network::{FAMILIES, Host, Network, VIPS};
use super::questions::ByName;
use crate::Interrupt;
use weir_bed::{Run, Started};

/// Programs that are run.
pub const NEEDED: [&str; 4] = ["wrk", "dnsperf", "curl", "stdbuf"];

/// Milliseconds between two requests on a wrk connection.
const DELAY_MS: u32 = 20;
/// The Lua function that makes wrk print its summary.
const WRK: &str = r#"function done(summary, latency, requests)
  local e = summary.errors
  io.write("weir ", summary.requests, " ", e.connect + e.read + e.write + e.status + e.timeout, "\n")
end
"#;
/// Connections per wrk.
const CONNECTIONS: &str = "4";
/// Queries per second of each dnsperf, and the number of ports that they come from.
const QUERIES: u32 = 100;
const SOCKETS: &str = "8";
/// Requests per minute of each curl.
const REQUESTS: u32 = 1200;
/// Seconds after which a query over UDP counts as lost.
const UDP_S: u32 = 3;
/// Seconds after which a request over TCP counts as failed; lost segments are retransmitted several times by
/// then.
const TCP_S: u32 = 10;
/// How long a client may take to start, which means for curl that it has got an answer.
const START: Duration = Duration::from_secs(20);
/// How long a client may take to exit: longer than it may still wait for an answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// The maximum lifetime of a client, longer than any phase: if the lab is killed, no client outlives it by
/// more.
const AT_MOST_S: &str = "900";

/// The counts of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Count {
    pub requests: u64,
    pub failures: u64,
}

/// The counts of all programs.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// By program.
    pub programs: BTreeMap<&'static str, Count>,
    /// Answers to curl, by back end.
    pub answered: ByName,
}

impl Tally {
    fn add(&mut self, program: &'static str, count: Count) {
        let sum = self.programs.entry(program).or_default();
        sum.requests += count.requests;
        sum.failures += count.failures;
    }

    /// Returns the sum of the counts of these programs.
    pub fn of(&self, programs: &[&str]) -> Count {
        let some = self.programs.iter().filter(|(name, _)| programs.contains(*name));
        some.fold(Count::default(), |sum, (_, count)| Count {
            requests: sum.requests + count.requests,
            failures: sum.failures + count.failures,
        })
    }

    /// Adds another tally.
    pub fn join(&mut self, other: Tally) {
        other.programs.into_iter().for_each(|(program, count)| self.add(program, count));
        other.answered.into_iter().for_each(|(name, count)| *self.answered.entry(name).or_default() += count);
    }

    /// The tally as JSON.
    pub fn json(&self) -> Value {
        let of = |(name, count): (&&str, &Count)| {
            ((*name).to_string(), json!({ "requests": count.requests, "failures": count.failures }))
        };
        Value::Object(self.programs.iter().map(of).collect())
    }
}

/// A running client.
struct Client {
    program: &'static str,
    name: String,
    process: Started,
    output: PathBuf,
}

/// All clients of a phase.
pub struct PhaseClients {
    clients: Vec<Client>,
    patience: Duration,
}

impl PhaseClients {
    /// Starts the clients, and waits until all of them are at work: on a busy machine, a phase could end
    /// before that.
    pub fn start(run: &mut Run, network: &Network, interrupt: &Interrupt) -> Result<PhaseClients> {
        let slowdown = interrupt.slowdown();
        let script = run.folder().join("wrk.lua");
        let queries = crate::nsd::write_queries(run.folder(), crate::nsd::NAMES)?;
        fs::write(&script, format!("function delay() return {} end\n{WRK}", DELAY_MS * slowdown))?;
        let [udp_s, tcp_s] = [UDP_S, TCP_S].map(|seconds| (seconds * slowdown).to_string());
        let queries_s = QUERIES.div_ceil(slowdown).to_string();
        let requests = format!("{}/m", REQUESTS.div_ceil(slowdown));
        let mut clients = Vec::new();
        for (at, vip) in VIPS.into_iter().enumerate() {
            // Each IP version is used from both clients, though not with all programs.
            let [one, other] = [&network.clients[at], &network.clients[1 - at]];
            let mut wrk = by_line(one, "wrk");
            wrk.args(["-t", "1", "-c", CONNECTIONS, "-d", AT_MOST_S, "--timeout", &tcp_s, "-s"]);
            wrk.arg(&script).arg(url(vip));
            let mut dnsperf = by_line(other, "dnsperf");
            dnsperf.args(["-s", vip, "-T", "1", "-c", SOCKETS, "-Q", &queries_s, "-l", AT_MOST_S]);
            dnsperf.args(["-t", &udp_s, "-d"]).arg(&queries);
            let mut curl = curl(other, &["--rate", &requests, "--max-time", &tcp_s]);
            curl.arg(format!("{}?[1-1000000]", url(vip)));
            for (program, command) in [("wrk", wrk), ("dnsperf", dnsperf), ("curl", curl)] {
                clients.push(Client::start(run, (program, FAMILIES[at]), command)?);
            }
        }
        for client in &clients {
            client.wait_until_it_says_something(run, interrupt)?;
        }
        Ok(PhaseClients { clients, patience: PATIENCE * slowdown })
    }

    /// Ends the clients, and returns their counts.
    pub fn end(self, run: &mut Run) -> Result<Tally> {
        let mut tally = Tally::default();
        for Client { program, name, process, output } in self.clients {
            run.interrupt(process, self.patience)?;
            let text = fs::read_to_string(&output)?;
            let failure = || format!("{name} printed nothing: {text} {}", run.last_words(&name));
            let count = match program {
                "wrk" => wrk_count(&text).with_context(failure)?,
                "dnsperf" => dnsperf_count(&text).with_context(failure)?,
                _ => curl_count(&text, &mut tally.answered),
            };
            tally.add(program, count);
        }
        Ok(tally)
    }
}

impl Client {
    fn start(run: &mut Run, (program, family): (&'static str, &str), mut command: Command) -> Result<Client> {
        let name = format!("{program}-{family}");
        let output = run.folder().join(format!("{name}.out"));
        let process = run.start(&name, command.stdout(File::create(&output)?))?;
        Ok(Client { program, name, process, output })
    }

    fn wait_until_it_says_something(&self, run: &Run, interrupt: &Interrupt) -> Result<()> {
        if !interrupt.wait(START, || Ok(fs::metadata(&self.output)?.len() > 0))? {
            bail!("{} does not start: {}", self.name, run.last_words(&self.name));
        }
        Ok(())
    }
}

/// Sends one pass of requests from a client, `requests` of them by curl, to check that every answer arrives.
pub fn ask(client: &Host, (family, slowdown): (usize, u32), requests: u32, queries: &str) -> Result<Tally> {
    let (vip, mut tally) = (VIPS[family], Tally::default());
    let [curl_s, udp_s, dnsperf_s] = [5, UDP_S, 8].map(|seconds| (seconds * slowdown).to_string());
    let mut curl = curl(client, &["--parallel", "--parallel-max", "16", "--max-time", &curl_s]);
    let text = said(curl.arg(format!("{}?[1-{requests}]", url(vip))))?;
    let count = curl_count(&text, &mut tally.answered);
    ensure!(count.requests == u64::from(requests), "curl made {} of {requests} requests", count.requests);
    tally.add("curl", count);
    for (transport, program) in [("udp", "dnsperf"), ("tcp", "dnsperf_tcp")] {
        let mut dnsperf = client.namespace.command("dnsperf");
        dnsperf.args(["-s", vip, "-m", transport, "-T", "1", "-c", SOCKETS, "-n", "1", "-q", "16"]);
        let text = said(dnsperf.args(["-t", &udp_s, "-l", &dnsperf_s, "-d", queries]))?;
        tally.add(program, dnsperf_count(&text).with_context(|| format!("dnsperf: {text}"))?);
    }
    Ok(tally)
}

/// Runs a client to its end, and returns its output.
fn said(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A curl that opens a connection for each request, and prints a line for each: who answered and how it
/// ended.
fn curl(client: &Host, options: &[&str]) -> Command {
    let mut command = by_line(client, "curl");
    command.args(["--silent", "--header", "Connection: close"]).args(options);
    command.args(["--write-out", "%{http_code} %{exitcode}\n"]);
    command
}

/// A program whose output can be read line by line while it runs.
fn by_line(client: &Host, program: &str) -> Command {
    let mut command = client.namespace.command("stdbuf");
    command.args(["-oL", program]);
    command
}

fn url(vip: &str) -> String {
    if vip.contains(':') { format!("http://[{vip}]/") } else { format!("http://{vip}/") }
}

/// Parses the output of `WRK`.
fn wrk_count(text: &str) -> Option<Count> {
    let mut numbers = text.lines().find_map(|line| line.strip_prefix("weir "))?.split(' ');
    let mut next = || numbers.next()?.parse::<f64>().ok();
    let (answers, failures) = (next()? as u64, next()? as u64);
    Some(Count { requests: answers + failures, failures })
}

/// Parses dnsperf's summary. Queries that it no longer waited for when it ended do not count as requests.
fn dnsperf_count(text: &str) -> Option<Count> {
    let of = |name: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let (completed, lost) = (of("Queries completed:")?, of("Queries lost:")?);
    let codes = text.lines().find_map(|line| line.trim().strip_prefix("Response codes:"));
    let sound =
        codes.and_then(|codes| codes.trim().strip_prefix("NOERROR ")?.split(' ').next()?.parse().ok());
    let sound: u64 = sound.unwrap_or_default();
    Some(Count { requests: completed + lost, failures: lost + completed.saturating_sub(sound) })
}

/// Parses curl's lines: who answered, and the status and exit code of each request.
fn curl_count(text: &str, answered: &mut ByName) -> Count {
    let mut count = Count::default();
    for line in text.lines() {
        match line.split_once(' ') {
            None => *answered.entry(line.to_string()).or_default() += 1,
            Some(outcome) => {
                count.requests += 1;
                count.failures += u64::from(outcome != ("200", "0"));
            }
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_wrk_says_is_read() {
        assert_eq!(wrk_count("Running\nweir 12 3\n"), Some(Count { requests: 15, failures: 3 }));
        assert_eq!(wrk_count("weir 12"), None);
    }

    #[test]
    fn what_dnsperf_says_is_read() {
        let text = "Statistics:\n\n  Queries sent:         21\n  Queries completed:    20 (95.24%)\n  \
                    Queries lost:         1 (4.76%)\n\n  \
                    Response codes:       NOERROR 18 (90.00%), REFUSED 2\n";
        assert_eq!(dnsperf_count(text), Some(Count { requests: 21, failures: 3 }));
        assert_eq!(dnsperf_count("Queries sent: 21\n"), None);
    }

    #[test]
    fn what_curl_says_is_read() {
        let mut answered = ByName::new();
        let count = curl_count("b1\n200 0\nb2\n200 0\n000 28\nb1\n503 0\n", &mut answered);
        assert_eq!(count, Count { requests: 4, failures: 2 });
        assert_eq!(answered, [("b1".to_string(), 2), ("b2".to_string(), 1)].into());
    }
}
