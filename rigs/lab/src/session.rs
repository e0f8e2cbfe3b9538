//! What all labs have around them: what they need, how they are interrupted, what they print at the end.

use std::process::ExitCode;

use anyhow::{Result, bail};
use serde_json::Value;

use super::run::Run;
use super::screen::{self, Screen};
use super::{INTERRUPTED, Interrupt, Interrupted};

/// The options that all labs have.
#[derive(clap::Args)]
// A group has the name of its type, and labs flatten this into an `Options` of their own.
#[group(skip)]
pub struct Options {
    /// For a slow machine, such as an emulated one: multiply time limits, and the pauses of clients, by this
    /// number. What may be lost or reordered does not change.
    #[arg(long, value_name = "FACTOR", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100))]
    pub slowdown: u32,
    /// Print a JSON object on the last line.
    #[arg(long)]
    pub json: bool,
    /// Leave the namespaces and their processes for inspection; the next lab removes them.
    #[arg(long)]
    pub keep: bool,
}

impl Options {
    /// Begins a run.
    pub fn begin(&self) -> Result<Run> {
        Ok(Run::begin(self.keep)?.slowed_down_by(self.slowdown))
    }
}

/// What a lab found out.
pub struct Outcome {
    /// Whether everything was as it must be.
    pub ok: bool,
    /// The last lines for a person.
    pub text: String,
    /// The last line for a program.
    pub json: Value,
}

/// Refuses a lab that is not run by root, or lacks programs; `setup` installs them.
pub fn check_means(lab: &str, missing: &[&str], setup: &str) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("labs create network namespaces: run this as root (sudo weir lab {lab})");
    }
    if !missing.is_empty() {
        bail!("missing: {}; `{setup}` installs what labs need", missing.join(", "));
    }
    Ok(())
}

/// Runs a lab and prints its outcome, as JSON if wanted.
pub fn run(
    options: &Options,
    lab: impl FnOnce(&Interrupt, &mut Screen) -> Result<Outcome>,
) -> Result<ExitCode> {
    let Options { slowdown, json, keep } = *options;
    let interrupt = Interrupt::on_signals()?.slowed_down_by(slowdown);
    let mut screen = Screen::new(json);
    let outcome = match lab(&interrupt, &mut screen) {
        Err(error) if error.is::<Interrupted>() => {
            screen.say("interrupted");
            return Ok(ExitCode::from(INTERRUPTED));
        }
        result => result?,
    };
    screen.say(&outcome.text);
    if keep {
        screen.say("Kept until the next lab: `ip netns` lists the namespaces.");
    }
    if json {
        screen::line(&outcome.json)?;
    }
    Ok(if outcome.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
