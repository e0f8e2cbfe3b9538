//! The network with everything that runs in it, and the operator's actions on it.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::LbOptions;
use super::configuration::{LabMode, configuration, services};
use super::network::{MOVED, Network};
use super::questions::{FlowCounts, Questions};
use super::servers::{Servers, decap};
use crate::Interrupt;
use crate::overlay::talk::now_ms;
use crate::weir::Weir;
use weir_bed::Run;

/// How long an expected event may take.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// How long packets and counts may be in flight.
const SETTLE: Duration = Duration::from_millis(200);

/// The network.
pub struct LbBed {
    pub network: Network,
    weir: Weir,
    servers: Vec<Servers>,
    questions: Vec<Questions>,
    mode: LabMode,
    /// How many times slower this machine is than usual.
    slowdown: u32,
    /// Persistent flows per protocol, IP version and client.
    flows: u32,
}

impl LbBed {
    /// Sets up the network, with all back ends but the last in the configuration; `run` removes it.
    pub fn start(run: &mut Run, options: &LbOptions, interrupt: &Interrupt) -> Result<LbBed> {
        let network = Network::build(run)?;
        let servers =
            network.back_ends.iter().map(|host| Servers::start(run, host)).collect::<Result<_>>()?;
        for host in &network.back_ends {
            decap(run, host, interrupt)?;
        }
        let (mode, slowdown) = (options.mode, interrupt.slowdown());
        network.answer_directly(|at| mode.answers_directly(at))?;
        let configuration = configuration((mode, slowdown), &network.back_ends, &[1, 1, 1]);
        let inside = |program: &str| network.weir.namespace.command(program);
        let weir = Weir::start(run, "weir", inside, &configuration, interrupt)?;
        let flows = options.flows;
        let mut bed = LbBed { network, weir, servers, questions: Vec::new(), mode, slowdown, flows };
        for name in ["b1", "b2", "b3"] {
            bed.wait_for_health(name, "up", interrupt)?;
        }
        bed.ask(run, interrupt)?;
        Ok(bed)
    }

    /// Starts persistent flows, and waits until all of them have a back end.
    fn ask(&mut self, run: &mut Run, interrupt: &Interrupt) -> Result<()> {
        for client in &self.network.clients {
            self.questions.push(Questions::start(run, client, (self.flows, self.slowdown))?);
        }
        let all = self.flows();
        if !interrupt.wait(PATIENCE, || Ok(self.counts().held.values().sum::<u64>() == all))? {
            let held = self.counts().held;
            bail!(
                "clients get no answers: of {all} flows, {held:?}; {}",
                run.last_words("questions-client1")
            );
        }
        Ok(())
    }

    /// Ends all persistent flows.
    pub fn end_flows(&mut self, run: &mut Run) -> Result<()> {
        self.questions.drain(..).try_for_each(|questions| questions.stop(run))
    }

    /// Ends all persistent flows and starts new ones, each of which goes where the buckets say.
    pub fn renew_flows(&mut self, run: &mut Run, interrupt: &Interrupt) -> Result<()> {
        self.end_flows(run)?;
        self.ask(run, interrupt)
    }

    /// Returns the number of persistent flows: of two protocols, two IP versions and two clients.
    pub fn flows(&self) -> u64 {
        8 * u64::from(self.flows)
    }

    /// Returns how packets are sent to back ends.
    pub fn mode(&self) -> LabMode {
        self.mode
    }

    /// Returns the counts of clients with persistent flows.
    pub fn counts(&self) -> FlowCounts {
        let mut sum = FlowCounts::default();
        self.questions.iter().for_each(|questions| sum.add(&questions.counts()));
        sum
    }

    /// Returns the counts of clients with persistent flows, once every question that they have asked by now
    /// has been answered or given up, and is counted.
    pub fn settled(&self, interrupt: &Interrupt) -> Result<FlowCounts> {
        let since_ms = now_ms();
        interrupt.sleep(interrupt.limit(SETTLE))?;
        let counted = || Ok(self.questions.iter().all(|questions| questions.counted_ms() >= since_ms));
        if !interrupt.wait(2 * PATIENCE, counted)? {
            bail!("questions are neither answered nor given up");
        }
        Ok(self.counts())
    }

    /// Waits until no flow has this back end.
    pub fn wait_until_left(&self, back_end: &str, interrupt: &Interrupt) -> Result<()> {
        let held = || self.counts().held.get(back_end).copied().unwrap_or_default();
        if !interrupt.wait(PATIENCE, || Ok(held() == 0))? {
            bail!("{} flows remain on {back_end}", held());
        }
        Ok(())
    }

    /// Replaces the configuration with one that has the first `weights.len()` back ends.
    pub fn reload(&self, weights: &[u32]) -> Result<()> {
        self.weir.reload(&configuration((self.mode, self.slowdown), &self.network.back_ends, weights))
    }

    /// Replaces the configuration with one that has all back ends, in another mode.
    pub fn change_mode(&mut self, mode: LabMode, interrupt: &Interrupt) -> Result<()> {
        self.mode = mode;
        self.network.answer_directly(|at| mode.answers_directly(at))?;
        self.reload(&[1; 4])?;
        let names = self.network.back_ends.each_ref().map(|host| host.name);
        names.into_iter().try_for_each(|name| self.wait_for_health(name, "up", interrupt))
    }

    /// Does what `weir lb VERB SERVICE BACK_END` does, for all services or for none.
    pub fn order(&self, verb: &str, back_end: &str, weight: Option<u32>) -> Result<()> {
        let one = |service: String| {
            let mut order = json!({ "do": verb, "service": service, "back_end": back_end });
            if let Some(weight) = weight {
                order["weight"] = json!(weight);
            }
            order
        };
        self.request(&services().map(one).collect()).map(drop)
    }

    fn request(&self, request: &Value) -> Result<Value> {
        self.weir.ask(&json!({ "command": "app", "app": "lb", "request": request }))
    }

    /// Waits until a back end is in this state in all services.
    pub fn wait_for_health(&self, back_end: &str, state: &str, interrupt: &Interrupt) -> Result<()> {
        self.weir.wait_for_health(back_end, state, PATIENCE, interrupt)
    }

    /// Kills the servers of a back end. Returns how long weir took to notice, in milliseconds.
    pub fn kill(&mut self, run: &mut Run, at: usize, interrupt: &Interrupt) -> Result<f64> {
        let killed = Instant::now();
        self.servers[at].kill(run)?;
        self.wait_for_health(self.network.back_ends[at].name, "down", interrupt)?;
        Ok(killed.elapsed().as_secs_f64() * 1e3)
    }

    /// Restarts the servers of a back end, and waits until weir notices.
    pub fn revive(&mut self, run: &mut Run, at: usize, interrupt: &Interrupt) -> Result<()> {
        let host = &self.network.back_ends[at];
        self.servers[at] = Servers::start(run, host)?;
        self.wait_for_health(host.name, "up", interrupt)
    }

    /// Waits until weir sends packets for the first back end to its new MAC address.
    pub fn wait_for_move(&self, interrupt: &Interrupt) -> Result<()> {
        let mut last = Value::Null;
        let is_so = || {
            last = self.weir.show("backends")?;
            let rows = last["backends"].as_array().into_iter().flatten();
            let mut its = rows.filter(|row| row["name"] == self.network.back_ends[0].name);
            Ok(its.clone().next().is_some() && its.all(|row| row["mac"] == MOVED))
        };
        if !interrupt.wait(PATIENCE, is_so)? {
            bail!("the new MAC address is not known: {last}");
        }
        Ok(())
    }

    /// Lets another weir take over.
    pub fn succeed(&mut self, run: &mut Run, interrupt: &Interrupt) -> Result<()> {
        let inside = |program: &str| self.network.weir.namespace.command(program);
        self.weir.succeed(run, "weir-2", inside, interrupt)
    }

    /// Ends weir by SIGTERM or SIGKILL, and restarts it.
    pub fn restart(&mut self, run: &mut Run, by: Death, interrupt: &Interrupt) -> Result<()> {
        let name = match by {
            Death::Stopped => self.weir.stop(run).map(|()| "weir-stopped")?,
            Death::Killed => run.kill(self.weir.process()).map(|()| "weir-killed")?,
        };
        let inside = |program: &str| self.network.weir.namespace.command(program);
        let text = configuration((self.mode, self.slowdown), &self.network.back_ends, &[1; 4]);
        self.weir = Weir::start(run, name, inside, &text, interrupt)?;
        Ok(())
    }
}

/// How a weir ends.
#[derive(Clone, Copy)]
pub enum Death {
    /// SIGTERM.
    Stopped,
    /// SIGKILL.
    Killed,
}
