//! A weir for a lab or bench: this program, run as a daemon in a separate process and controlled through its
//! socket.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::Interrupt;
use weir_bed::{Run, Started};

/// How long weir may take to start. Loading XDP programs and opening sockets takes a tenth of this time; DPDK
/// takes a second to load its drivers on an idle machine.
const START: Duration = Duration::from_secs(30);

/// Returns the path of this program.
pub fn program() -> Result<String> {
    let path = std::env::current_exe().context("cannot find the path of this program")?;
    Ok(path.to_string_lossy().into_owned())
}

/// Sends a request to the daemon behind a control socket and returns the answer.
pub fn ask(socket: &Path, request: &Value) -> Result<Value> {
    weir_control::ask(socket, request)
}

/// A running daemon.
pub struct Weir {
    name: &'static str,
    process: Started,
    configuration: PathBuf,
    socket: PathBuf,
}

impl Weir {
    /// Starts a daemon with this configuration and waits until it answers; `command` runs a program (in a
    /// namespace, or not).
    pub fn start(
        run: &mut Run,
        name: &'static str,
        command: impl FnOnce(&str) -> Command,
        configuration: &str,
        interrupt: &Interrupt,
    ) -> Result<Weir> {
        Weir::start_within(START, run, name, command, configuration, interrupt)
    }

    /// Starts a daemon like [`Weir::start`], for a configuration that may take up to `patience` to start.
    pub fn start_within(
        patience: Duration,
        run: &mut Run,
        name: &'static str,
        command: impl FnOnce(&str) -> Command,
        configuration: &str,
        interrupt: &Interrupt,
    ) -> Result<Weir> {
        let file = run.folder().join(format!("{name}.yaml"));
        fs::write(&file, configuration)?;
        let socket = run.folder().join(format!("{name}.sock"));
        let mut command = command(&program()?);
        command.arg("run").arg(&file).arg("--socket").arg(&socket).stdout(Stdio::null());
        let process = run.start(name, &mut command)?;
        let weir = Weir { name, process, configuration: file, socket };
        weir.wait_until_it_answers(patience, run, interrupt)?;
        Ok(weir)
    }

    fn wait_until_it_answers(&self, patience: Duration, run: &mut Run, interrupt: &Interrupt) -> Result<()> {
        let answers = || self.still_runs(run).map(|()| self.show("ledger").is_ok());
        if !interrupt.wait(patience, answers)? {
            let (name, seconds) = (self.name, patience.as_secs());
            bail!("{name} did not answer within {seconds} s: {}", run.last_words(name));
        }
        Ok(())
    }

    /// Waits until the kernel runs weir's program for the first port.
    pub fn wait_for_kernel(&self, patience: Duration, run: &Run, interrupt: &Interrupt) -> Result<()> {
        let runs = || Ok(self.show("kernel")?["kernel"][0]["runs"] == true);
        if !interrupt.wait(patience, runs)? {
            bail!("the kernel does not run the program of {}: {}", self.name, run.last_words(self.name));
        }
        Ok(())
    }

    /// Fails with the daemon's last log lines if it has exited.
    pub fn still_runs(&self, run: &mut Run) -> Result<()> {
        match run.child(self.process).try_wait()? {
            Some(status) => bail!("{} has ended ({status}): {}", self.name, run.last_words(self.name)),
            None => Ok(()),
        }
    }

    /// Returns the daemon's process.
    pub fn process(&self) -> Started {
        self.process
    }

    /// Returns the daemon's control socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the file of the daemon's configuration.
    pub fn configuration(&self) -> &Path {
        &self.configuration
    }

    /// Sends a request and returns the answer.
    pub fn ask(&self, request: &Value) -> Result<Value> {
        weir_control::ask(&self.socket, request)
    }

    /// Returns the output of `weir show WHAT`.
    pub fn show(&self, what: &str) -> Result<Value> {
        self.ask(&json!({"command": "show", "what": what}))
    }

    /// Sends a request to an app and returns the answer.
    pub fn app(&self, name: &str, request: &str) -> Result<Value> {
        self.ask(&json!({"command": "app", "app": name, "request": request}))
    }

    /// Waits until a back end is in this state in all services that have it.
    pub fn wait_for_health(
        &self,
        back_end: &str,
        state: &str,
        patience: Duration,
        interrupt: &Interrupt,
    ) -> Result<()> {
        let mut last = Value::Null;
        let is_so = || {
            last = self.ask(&json!({ "command": "app", "app": "lb", "request": { "do": "list" } }))?;
            let services = last["services"].as_array().into_iter().flatten();
            let rows = services.flat_map(|service| service["back_ends"].as_array().into_iter().flatten());
            let mut its = rows.filter(|row| row["name"] == back_end).map(|row| row["health"] == state);
            Ok(its.next() == Some(true) && its.all(|so| so))
        };
        if !interrupt.wait(patience, is_so)? {
            bail!("{back_end} is not {state}: {last}");
        }
        Ok(())
    }

    /// Replaces the daemon's configuration. Returns when all workers have applied it.
    pub fn reload(&self, configuration: &str) -> Result<()> {
        fs::write(&self.configuration, configuration)?;
        weir_control::reload(&self.socket, |_| {}).map(drop)
    }

    /// Lets another daemon with the same configuration take over. Fails unless this one exits successfully.
    pub fn succeed(
        &mut self,
        run: &mut Run,
        name: &'static str,
        command: impl FnOnce(&str) -> Command,
        interrupt: &Interrupt,
    ) -> Result<()> {
        let mut command = command(&program()?);
        command.arg("run").arg(&self.configuration).arg("--socket").arg(&self.socket).arg("--takeover");
        let process = run.start(name, command.stdout(Stdio::null()))?;
        let old = std::mem::replace(&mut self.process, process);
        let before = std::mem::replace(&mut self.name, name);
        let mut status = None;
        interrupt.wait(START, || {
            status = run.child(old).try_wait()?;
            Ok(status.is_some())
        })?;
        if !status.is_some_and(|status| status.success()) {
            bail!("{before} was not replaced: {}; {}", run.last_words(before), run.last_words(name));
        }
        self.wait_until_it_answers(START, run, interrupt)
    }

    /// Stops the daemon with SIGTERM. Fails unless it exits successfully.
    pub fn stop(&self, run: &mut Run) -> Result<()> {
        let status = run.stop(self.process)?;
        if !status.success() {
            bail!("{} did not stop cleanly ({status}): {}", self.name, run.last_words(self.name));
        }
        Ok(())
    }
}
