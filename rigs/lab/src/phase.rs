//! Phases of labs: what happened in each, and what went wrong.

use std::ops::{Deref, DerefMut};

use anyhow::Result;
use serde_json::{Value, json};

use crate::premise::premise;
use crate::session::LabOutcome;

/// The observations of a lab in a phase, and the faults that it found.
#[derive(Default)]
pub struct Phase<T> {
    seen: T,
    faults: Vec<String>,
}

impl<T> Phase<T> {
    /// Creates a phase without faults.
    pub fn with(seen: T) -> Phase<T> {
        Phase { seen, faults: Vec::new() }
    }

    /// Notes a fault unless `so` holds.
    pub fn must(&mut self, so: bool, fault: impl Into<String>) {
        if !so {
            self.faults.push(fault.into());
        }
    }

    /// Notes a fault unless a premise holds.
    pub fn needs(&mut self, holds: bool, otherwise: impl FnOnce() -> String) {
        self.faults.extend(premise(holds, otherwise).err().map(|unmet| unmet.to_string()));
    }

    /// Returns the faults noted so far.
    pub fn faults(&self) -> &[String] {
        &self.faults
    }

    /// Returns true if there are none.
    pub fn is_ok(&self) -> bool {
        self.faults.is_empty()
    }
}

impl<T> Deref for Phase<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.seen
    }
}

impl<T> DerefMut for Phase<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.seen
    }
}

/// Returns the phases whose names start with one of the `wanted` prefixes, or all of them.
pub fn chosen<P: Copy>(all: &[(&'static str, P)], wanted: &[String]) -> Result<Vec<(&'static str, P)>> {
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|one| name.starts_with(one));
    let chosen: Vec<_> = all.iter().copied().filter(|(name, _)| is_wanted(name)).collect();
    premise(!chosen.is_empty(), || {
        let names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
        format!("no phase begins with `{}`; the phases are {}", wanted.join("`, `"), names.join(", "))
    })?;
    Ok(chosen)
}

/// Returns the outcome of a lab, which is the first of two texts if all phases are ok.
pub fn outcome(phases: Vec<Value>, [good, bad]: [&str; 2]) -> LabOutcome {
    let ok = phases.iter().all(|phase| phase["ok"] == true);
    let text = if ok { good } else { bad }.to_string();
    LabOutcome { ok, text, json: json!({ "ok": ok, "phases": phases }), kept: None }
}
