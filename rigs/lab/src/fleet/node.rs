//! A node: weir, and BIRD beside it, which announces the routes that weir writes to the router.

use std::process::Stdio;
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::network::FleetHost;
use super::routing;
use crate::Interrupt;
use crate::weir::{self, Weir};
use weir_bed::{Run, Started};

/// How long an expected event may take.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// How long the router may take to notice that BFD has stopped, which takes it less than a second, and how
/// often BIRD is paused until it does.
const NOTICED: Duration = Duration::from_secs(5);
const PAUSES: u32 = 5;
/// How long BFD may take to come up.
const BFD_IS_UP: Duration = Duration::from_secs(3);
/// How long `weir upgrade` may take; it limits itself to less.
const UPGRADE: Duration = Duration::from_secs(100);

/// A node.
pub struct FleetNode {
    weir: Weir,
    bird: Started,
}

impl FleetNode {
    /// Starts weir and BIRD.
    pub fn start(
        run: &mut Run,
        host: &FleetHost,
        configuration: &str,
        interrupt: &Interrupt,
    ) -> Result<FleetNode> {
        let weir = start_weir(run, host, configuration, interrupt)?;
        let bird = routing::start_at_node(run, host)?;
        Ok(FleetNode { weir, bird })
    }

    /// Does what `weir drain` and `weir undrain` do: withdraws the routes, or announces them again.
    pub fn drain(&self, so: bool) -> Result<()> {
        let word = if so { "drain" } else { "undrain" };
        self.weir.ask(&json!({ "command": word })).map(drop)
    }

    /// Kills weir (SIGKILL); BIRD stays.
    pub fn kill(&self, run: &mut Run) -> Result<()> {
        run.kill(self.weir.process())
    }

    /// Starts weir again.
    pub fn restart(
        &mut self,
        run: &mut Run,
        host: &FleetHost,
        configuration: &str,
        interrupt: &Interrupt,
    ) -> Result<()> {
        self.weir = start_weir(run, host, configuration, interrupt)?;
        Ok(())
    }

    /// Ends BIRD.
    pub fn stop_bird(&self, run: &mut Run) -> Result<()> {
        run.stop(self.bird).map(drop)
    }

    /// Starts BIRD again.
    pub fn start_bird(&mut self, run: &mut Run, host: &FleetHost) -> Result<()> {
        self.bird = routing::start_at_node(run, host)?;
        Ok(())
    }

    /// Pauses BIRD until the router has ended its BFD session and withdrawn the route, which `is_gone` says.
    /// After a stall of the machine, BGP may be up again before BFD, and the router then notices nothing for
    /// minutes, so BIRD continues for a moment and is paused again.
    pub fn pause_bird(&self, run: &mut Run, is_gone: impl Fn() -> bool, interrupt: &Interrupt) -> Result<()> {
        for _ in 0..PAUSES {
            run.hold(self.bird);
            let gone = interrupt.wait(NOTICED, || Ok(is_gone()));
            run.go_on(self.bird);
            if gone? {
                return Ok(());
            }
            interrupt.sleep(BFD_IS_UP)?;
        }
        bail!("the router does not notice that BIRD pauses")
    }

    /// Replaces the configuration.
    pub fn reload(&self, configuration: &str) -> Result<()> {
        self.weir.reload(configuration)
    }

    /// Sends a request to the app lb.
    pub fn request(&self, request: &Value) -> Result<Value> {
        self.weir.ask(&json!({ "command": "app", "app": "lb", "request": request }))
    }

    /// Waits until a back end is in this state.
    pub fn wait_for_health(&self, back_end: &str, state: &str, interrupt: &Interrupt) -> Result<()> {
        self.weir.wait_for_health(back_end, state, PATIENCE, interrupt)
    }

    /// Runs `weir upgrade` with a new executable, and waits until the new weir has taken over. This is not
    /// interrupted, because the new weir would be left behind.
    pub fn upgrade(&self, run: &mut Run, host: &FleetHost) -> Result<()> {
        let executable = run.folder().join("weir");
        let next = run.folder().join("weir.new");
        fs::copy(weir::program()?, &next)?;
        fs::rename(&next, &executable)?;
        let name = format!("upgrade-{}", host.name);
        let mut command = host.namespace.command(&executable.to_string_lossy());
        command.args(["upgrade", "--socket"]).arg(self.weir.socket()).stdout(Stdio::null());
        let process = run.start(&name, &mut command)?;
        let deadline = Instant::now() + UPGRADE;
        let status = loop {
            match run.child(process).try_wait()? {
                Some(status) => break status,
                None if Instant::now() > deadline => bail!("`weir upgrade` does not end"),
                None => thread::sleep(Duration::from_millis(10)),
            }
        };
        let answer = self.weir.ask(&json!({ "command": "process" }))?;
        let pid = answer["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
        run.adopt(pid.context("weir does not know its process")?)?;
        if !status.success() {
            bail!("`weir upgrade` failed ({status}): {}", run.last_words(&name));
        }
        Ok(())
    }
}

fn start_weir(run: &mut Run, host: &FleetHost, configuration: &str, interrupt: &Interrupt) -> Result<Weir> {
    let inside = |program: &str| host.namespace.command(program);
    Weir::start(run, host.name, inside, configuration, interrupt)
}
