//! The network with everything that runs in it, and what an operator does to it.

use std::fmt::Write;
use std::fs::{self, File};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::questions::{Counts, Questions};
use super::{Mode, Options};
use crate::Interrupt;
use crate::nsd;
use crate::run::{Run, Started};
use crate::topology::{BackEnd, INTERFACE, Topology, VIP, WEIR};
use crate::weir::{self, Weir};

/// The services, by protocol.
pub const SERVICES: [&str; 2] = ["tcp", "udp"];
/// How long what must happen may take.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// The MAC address that the first back end gets.
const MOVED: &str = "02:00:00:00:00:77";
/// How long packets and counts may be on their way.
const SETTLE: Duration = Duration::from_millis(200);

/// The network.
pub struct Bed {
    pub topology: Topology,
    weir: Weir,
    servers: Vec<Started>,
    questions: Questions,
    mode: Mode,
    /// How long a phase goes on after what happens in it.
    pub phase: Duration,
    /// The number of flows that stay, of both protocols.
    pub flows: u64,
}

impl Bed {
    /// Sets it up, with all back ends but the last in the configuration; `run` removes it.
    pub fn start(run: &mut Run, options: &Options, interrupt: &Interrupt) -> Result<Bed> {
        let topology = Topology::build(run, 1)?;
        topology.hide_vip()?;
        let servers = topology.back_ends.iter().map(|at| nsd::start(run, at)).collect::<Result<_>>()?;
        if matches!(options.mode, Mode::Ipip) {
            for back_end in &topology.back_ends {
                decap(run, back_end, interrupt)?;
            }
        }
        let some = &topology.back_ends[..topology.back_ends.len() - 1];
        let configuration = configuration(options.mode, some, &[1, 1]);
        let inside = |program: &str| topology.weir.command(program);
        let weir = Weir::start(run, "weir", inside, &configuration, interrupt)?;
        let questions = Questions::start(run, &topology.client, &format!("{VIP}:53"), options.flows)?;
        let phase = Duration::from_secs(options.seconds);
        let flows = 2 * u64::from(options.flows);
        let bed = Bed { topology, weir, servers, questions, mode: options.mode, phase, flows };
        for name in ["b1", "b2"] {
            bed.wait_for_health(name, "up", interrupt)?;
        }
        let begun = || Ok(bed.questions.counts().began.values().sum::<u64>() >= bed.flows);
        if !interrupt.wait(PATIENCE, begun)? {
            bail!("clients get no answers: {}", run.last_words("questions"));
        }
        Ok(bed)
    }

    /// Returns what clients have counted, once what is on its way has arrived.
    pub fn settled(&self, interrupt: &Interrupt) -> Result<Counts> {
        interrupt.sleep(SETTLE)?;
        Ok(self.questions.counts())
    }

    /// Replaces the configuration by one with the first `weights.len()` back ends.
    pub fn reload(&self, weights: &[u32]) -> Result<()> {
        let some = &self.topology.back_ends[..weights.len()];
        self.weir.reload(&configuration(self.mode, some, weights))
    }

    /// Does what `weir lb VERB SERVICE BACK_END` does, for both services: all or none.
    pub fn order(&self, verb: &str, back_end: &str, weight: Option<u32>) -> Result<()> {
        let one = |service: &str| {
            let mut order = json!({ "do": verb, "service": service, "back_end": back_end });
            if let Some(weight) = weight {
                order["weight"] = json!(weight);
            }
            order
        };
        self.request(&json!(SERVICES.map(one))).map(drop)
    }

    fn request(&self, request: &Value) -> Result<Value> {
        self.weir.ask(&json!({ "command": "app", "app": "lb", "request": request }))
    }

    /// Waits until a back end is in this state in both services.
    pub fn wait_for_health(&self, back_end: &str, state: &str, interrupt: &Interrupt) -> Result<()> {
        let mut last = Value::Null;
        let is_so = || {
            last = self.request(&json!({ "do": "list" }))?;
            let services = last["services"].as_array().into_iter().flatten();
            let rows = services.flat_map(|service| service["back_ends"].as_array().into_iter().flatten());
            let mut its = rows.filter(|row| row["name"] == back_end).map(|row| row["health"] == state);
            Ok(its.next() == Some(true) && its.all(|so| so))
        };
        if !interrupt.wait(PATIENCE, is_so)? {
            bail!("{back_end} is not {state}: {last}");
        }
        Ok(())
    }

    /// Kills the server of a back end. Returns how long it took until weir knew, in milliseconds.
    pub fn kill(&mut self, run: &mut Run, at: usize, interrupt: &Interrupt) -> Result<f64> {
        let killed = Instant::now();
        run.kill(self.servers[at])?;
        self.wait_for_health(self.topology.back_ends[at].name, "down", interrupt)?;
        Ok(killed.elapsed().as_secs_f64() * 1e3)
    }

    /// Gives the interface of the first back end another MAC address, which it announces.
    pub fn move_mac(&self) -> Result<()> {
        let host = &self.topology.back_ends[0].namespace;
        host.set(&[(&format!("ipv4/conf/{INTERFACE}/arp_notify"), 1)])?;
        host.ip(&format!("link set {INTERFACE} address {MOVED}\n"))
    }

    /// Waits until weir sends packets for the first back end to its new MAC address.
    pub fn wait_for_move(&self, interrupt: &Interrupt) -> Result<()> {
        let mut last = Value::Null;
        let is_so = || {
            last = self.weir.show("backends")?;
            let rows = last["backends"].as_array().into_iter().flatten();
            let mut its = rows.filter(|row| row["name"] == self.topology.back_ends[0].name);
            Ok(its.clone().next().is_some() && its.all(|row| row["mac"] == MOVED))
        };
        if !interrupt.wait(PATIENCE, is_so)? {
            bail!("the new MAC address is not known: {last}");
        }
        Ok(())
    }

    /// Starts the server of a back end again, and waits until weir knows.
    pub fn revive(&mut self, run: &mut Run, at: usize, interrupt: &Interrupt) -> Result<()> {
        let back_end = &self.topology.back_ends[at];
        self.servers[at] = nsd::start(run, back_end)?;
        self.wait_for_health(back_end.name, "up", interrupt)
    }

    /// Lets another weir take over.
    pub fn succeed(&mut self, run: &mut Run, interrupt: &Interrupt) -> Result<()> {
        let inside = |program: &str| self.topology.weir.command(program);
        self.weir.succeed(run, "weir-2", inside, interrupt)
    }
}

/// Starts `weir decap` at a back end, and waits until it is attached.
fn decap(run: &mut Run, back_end: &BackEnd, interrupt: &Interrupt) -> Result<()> {
    let name = format!("decap-{}", back_end.name);
    let said = run.folder().join(&name);
    let mut command = back_end.namespace.command(&weir::program()?);
    command.args(["decap", INTERFACE, "--json", "--from", WEIR, "--to", back_end.address]);
    let process = run.start(&name, command.stdout(File::create(&said)?))?;
    let attached = || {
        if let Some(status) = run.child(process).try_wait()? {
            bail!("{name} has ended ({status}): {}", run.last_words(&name));
        }
        Ok(fs::read_to_string(&said)?.contains("attached"))
    };
    if !interrupt.wait(PATIENCE, attached)? {
        bail!("{name} is not attached: {}", run.last_words(&name));
    }
    Ok(())
}

/// Returns a configuration with a service for each protocol.
fn configuration(mode: Mode, back_ends: &[BackEnd], weights: &[u32]) -> String {
    let mut text = format!("ports: {{ p0: {{ xdp: {INTERFACE} }} }}\napps:\n");
    let checks = ["type: tcp", "type: dns, name: h0.weir.test"];
    for (protocol, check) in SERVICES.into_iter().zip(checks) {
        let _ = write!(
            text,
            "  - lb:\n      name: {protocol}\n      port: p0\n      \
             service: {{ vip: {VIP}, protocol: {protocol}, port: 53 }}\n      \
             check: {{ {check}, interval: 100ms, timeout: 200ms, fall: 2, rise: 2 }}\n"
        );
        if matches!(mode, Mode::Ipip) {
            let _ = writeln!(text, "      source: {WEIR}");
        }
        text += "      back_ends:\n";
        for (at, (BackEnd { name, address, mac, .. }, weight)) in back_ends.iter().zip(weights).enumerate() {
            // One service finds out where its back ends are, and both where the one is that will move.
            let resolved = protocol == "tcp" || at == 0;
            let mac = if resolved { String::new() } else { format!("mac: \"{mac}\", ") };
            let mode = match mode {
                Mode::L2 => "",
                Mode::Ipip => "mode: ipip, ",
            };
            let _ =
                writeln!(text, "        - {{ name: {name}, {mac}{mode}ip: {address}, weight: {weight} }}");
        }
    }
    text
}
