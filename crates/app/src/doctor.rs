//! Findings of `weir doctor`: whether this host meets the needs of a configuration. The command examines the
//! needs of the daemon itself, and agents examine their own
//! ([`Agent::findings`](crate::agent::Agent::findings)). Neither changes anything.

use crate::kind::Apps;
use anyhow::Result;
use serde_json::{Value, json};
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;
use weir_config::infile;

/// Modules that a kernel without tcx needs for clsact programs.
const FILTERS: [&str; 2] = ["sch_ingress", "cls_bpf"];

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Everything is as it should be.
    Ok,
    /// What is checked works, but something else would be better; or it could not be examined.
    Warning,
    /// The configuration cannot work.
    Fault,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Level::Ok => "ok",
            Level::Warning => "warning",
            Level::Fault => "fault",
        })
    }
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The check: a stable word, for programs.
    pub check: &'static str,
    /// What was examined: an interface, a peer, a setting.
    pub of: String,
    /// How bad the finding is: `weir doctor` exits with 1 if any is a fault.
    pub level: Level,
    /// A sentence about the state, and what to do.
    pub says: String,
}

impl Finding {
    /// Creates a finding of the check `check` about the object `of`.
    #[must_use]
    pub fn new(check: &'static str, of: impl Into<String>, level: Level, says: impl Into<String>) -> Finding {
        Finding { check, of: of.into(), level, says: says.into() }
    }

    /// Returns the finding as an object, whose format is stable.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({ "check": self.check, "of": self.of, "level": self.level.to_string(), "says": self.says })
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<8} {:<14} {}: {}", self.level, self.check, self.of, self.says)
    }
}

/// What is examined.
pub struct Examined<'a> {
    /// The apps of the configuration. Without a configuration, everything that an agent may need is examined.
    pub apps: Option<&'a Apps>,
    /// Sends a request to the running app with this name.
    pub ask: &'a dyn Fn(&str, &str) -> Result<Value>,
}

/// Whether the kernel has what a feature needs, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Has {
    /// The kernel has everything.
    All(String),
    /// The kernel lacks something.
    Lacks(String),
    /// The kernel could not be queried.
    Unknown(String),
}

impl Has {
    /// Returns the finding for a feature. A configuration that uses a feature that the kernel lacks cannot
    /// work.
    #[must_use]
    pub fn finding(self, feature: &str, is_used: bool) -> Finding {
        let (level, says) = match self {
            Has::All(says) => (Level::Ok, says),
            Has::Lacks(says) if is_used => (Level::Fault, says),
            Has::Lacks(says) | Has::Unknown(says) => (Level::Warning, says),
        };
        Finding::new("feature", feature, level, says)
    }
}

/// Returns whether programs can be attached to tc hooks, with or without tcx.
#[must_use]
pub fn hooks(has_tcx: bool) -> Has {
    hooks_of(has_tcx, has_module)
}

/// `module` returns whether the kernel has a module; `None` if it cannot be known.
fn hooks_of(has_tcx: bool, module: impl Fn(&str) -> Option<bool>) -> Has {
    if has_tcx {
        return Has::All("needs tcx (Linux 6.6), which this kernel has".to_string());
    }
    let needs = "needs tcx (Linux 6.6) or clsact; this kernel has no tcx";
    let looked = FILTERS.map(|name| (name, module(name)));
    let missing: Vec<&str> =
        looked.iter().filter(|(_, has)| *has == Some(false)).map(|(name, _)| *name).collect();
    if !missing.is_empty() {
        return Has::Lacks(format!("{needs}, and lacks the modules for clsact: {}", missing.join(", ")));
    }
    if looked.iter().any(|(_, has)| has.is_none()) {
        let modules = FILTERS.join(" and ");
        return Has::Unknown(format!("{needs}, and does not list its modules: clsact needs {modules}"));
    }
    Has::All(format!("{needs}, and has the modules for clsact"))
}

/// Returns whether the kernel has a module: loaded, built in or loadable; `None` without a list of its
/// modules.
fn has_module(name: &str) -> Option<bool> {
    if Path::new("/sys/module").join(name).exists() {
        return Some(true);
    }
    // Bounded: the kernel writes it.
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    let folder = Path::new("/lib/modules").join(release.trim());
    let listed = |list: &str| {
        let text = String::from_utf8(infile::read(&folder.join(list)).ok()?).ok()?;
        let file = format!("/{name}.ko");
        // The name of a compressed file has a suffix after `.ko`.
        Some(text.lines().any(|line| line.split(':').next().unwrap_or_default().contains(&file)))
    };
    let found = [listed("modules.dep"), listed("modules.builtin")];
    if found.contains(&Some(true)) { Some(true) } else { found[0] }
}

/// Returns the output of `ip -j` of iproute2.
///
/// # Errors
/// The error says why there is no output.
pub fn ip(words: &[&str]) -> Result<Vec<Value>, String> {
    let output = Command::new("ip").arg("-j").args(words).output();
    let output =
        output.map_err(|error| format!("`ip` of iproute2 cannot be run, so tunnels are unknown: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_string());
    }
    // Older versions print nothing instead of an empty list.
    let list = serde_json::from_slice(&output.stdout).unwrap_or_default();
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feature_is_a_fault_only_where_it_is_used_and_cannot_work() {
        let level = |has: Has, is_used| has.finding("x", is_used).level;
        assert_eq!(level(Has::All(String::new()), true), Level::Ok);
        assert_eq!(level(Has::Lacks(String::new()), true), Level::Fault);
        assert_eq!(level(Has::Lacks(String::new()), false), Level::Warning);
        assert_eq!(level(Has::Unknown(String::new()), true), Level::Warning);
    }

    #[test]
    fn programs_are_attached_through_tcx_or_clsact() {
        let has = |list: &'static [&str]| move |name: &str| Some(list.contains(&name));
        assert!(matches!(hooks_of(true, has(&[])), Has::All(says) if says.contains("which this kernel has")));
        assert!(matches!(hooks_of(false, has(&FILTERS)), Has::All(says) if says.contains("no tcx")));
        let lacks = hooks_of(false, has(&["sch_ingress"]));
        assert!(matches!(&lacks, Has::Lacks(says) if says.ends_with("clsact: cls_bpf")), "{lacks:?}");
        assert!(matches!(hooks_of(false, |_| None), Has::Unknown(_)));
    }
}
