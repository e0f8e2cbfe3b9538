//! Functions common to all labs: checking requirements, handling interrupts, printing the outcome.

use std::any::Any;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::Value;

use super::screen::{self, Screen};
use super::{INTERRUPTED, Interrupt, Interrupted};
use weir_bed::Run;

/// Options common to all labs.
#[derive(clap::Args)]
// clap names a group after its type, and labs flatten this type into their own `SessionOptions`.
#[group(skip)]
pub struct SessionOptions {
    /// For a slow machine, such as an emulated one: multiply time limits and client pauses by this number.
    /// Limits on loss and reordering do not change.
    #[arg(long, value_name = "FACTOR", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100))]
    pub slowdown: u32,
    /// Print a JSON object on the last line.
    #[arg(long)]
    pub json: bool,
    /// Leave the namespaces and their processes for inspection; the next lab removes them. `dns` runs until
    /// Ctrl-C instead, with a web page for each node, and then removes everything.
    #[arg(long)]
    pub keep: bool,
}

impl SessionOptions {
    /// Starts a run.
    pub fn begin(&self) -> Result<Run> {
        Ok(Run::begin(self.keep)?.slowed_down_by(self.slowdown))
    }
}

/// The outcome of a lab.
pub struct LabOutcome {
    /// Whether the lab succeeded.
    pub ok: bool,
    /// The final lines of text.
    pub text: String,
    /// The final line of JSON.
    pub json: Value,
    /// The lab, if it keeps running until it is interrupted.
    pub kept: Option<KeptLab>,
}

/// A lab that keeps running after its measurements.
pub struct KeptLab {
    /// What the user is shown, such as the addresses of web pages.
    pub text: String,
    /// The processes and namespaces, which are removed when this is dropped.
    pub held: Box<dyn Any>,
}

/// How soon a kept lab notices that it is interrupted.
const KEPT_TICK: Duration = Duration::from_millis(200);

/// Fails if the lab is not run by root, or if programs are missing; `setup` installs them.
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
    options: &SessionOptions,
    lab: impl FnOnce(&Interrupt, &mut Screen) -> Result<LabOutcome>,
) -> Result<ExitCode> {
    let SessionOptions { slowdown, json, keep } = *options;
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
    if keep && outcome.kept.is_none() {
        screen.say("Kept until the next lab: `ip netns` lists the namespaces.");
    }
    if json {
        screen::line(&outcome.json)?;
    }
    if let Some(KeptLab { text, held }) = outcome.kept {
        screen.say(&text);
        while interrupt.sleep(KEPT_TICK).is_ok() {}
        drop(held);
    }
    Ok(if outcome.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
