//! What overlays have left behind in this network namespace when no daemon runs. Everything is removed with
//! the process that created it, so something can be left only if another process or a file in a bpffs holds a
//! program, or if someone saved the nftables rules and loaded them again.

use super::rule::{self, NftTable};
use crate::bpf::{OverlayProgram, overlay_pins, overlay_programs, overlay_programs_at};
use anyhow::{Context, Result};
use rustix::fs::readlink;
use std::collections::BTreeSet;
use std::fs::{read_dir, read_to_string, remove_file};
use std::path::{Path, PathBuf};
use weir_bpf::hook::remove_dead;

/// The directory in which files may hold programs.
const BPFFS: &str = "/sys/fs/bpf";

/// A process of this network namespace that has programs of an overlay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub process: u32,
    pub name: String,
}

/// Everything left behind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Interfaces, and the programs attached to them.
    pub attached: Vec<(String, OverlayProgram)>,
    /// Tables of nftables.
    pub tables: Vec<NftTable>,
    /// Files that hold programs.
    pub pins: Vec<PathBuf>,
    /// Processes that have programs.
    pub holders: Vec<Holder>,
}

impl Left {
    /// Looks for everything left behind.
    pub fn look() -> Result<Left> {
        let programs = overlay_programs().context("the kernel does not list its eBPF programs")?;
        let mut left = Left {
            tables: rule::tables().context("nftables does not list its tables")?,
            pins: overlay_pins(Path::new(BPFFS), &programs),
            holders: holders(&programs.iter().map(|program| program.id).collect()),
            ..Left::default()
        };
        for interface in super::keeper::links()?.into_iter().map(|link| link.name) {
            // An interface that has disappeared meanwhile has no programs.
            let programs = overlay_programs_at(&interface).unwrap_or_default();
            left.attached.extend(programs.into_iter().map(|program| (interface.clone(), program)));
        }
        Ok(left)
    }

    /// Returns a sentence about the processes that must end first: whatever a process has created is removed
    /// with it.
    pub fn belongs_to(&self) -> Option<String> {
        let stop = "stop it first, which also removes what it has installed";
        if let Some(Holder { process, name }) = self.holders.first() {
            return Some(format!("process {process} ({name}) has loaded the programs of an overlay: {stop}"));
        }
        let owned = self.tables.iter().find(|table| table.has_owner)?;
        Some(format!("the nftables table `inet {}` belongs to a running process: {stop}", owned.name))
    }

    /// Removes everything that can be removed. Returns a sentence about each removal.
    pub fn remove(&self) -> Result<Vec<String>> {
        let mut said = Vec::new();
        for NftTable { name, .. } in &self.tables {
            rule::remove(name).with_context(|| format!("the table `inet {name}` cannot be removed"))?;
            said.push(format!("removed the nftables table `inet {name}`"));
        }
        for pin in &self.pins {
            let path = pin.display();
            remove_file(pin).with_context(|| format!("{path} cannot be removed"))?;
            said.push(format!("removed {path}, which pinned a program of an overlay"));
        }
        for interface in super::keeper::links()?.into_iter().map(|link| link.name) {
            // An interface that has disappeared meanwhile has no programs.
            let count = remove_dead(&interface).unwrap_or_default();
            if count > 0 {
                said.push(format!(
                    "removed {count} filters from `{interface}`, which a killed process left behind"
                ));
            }
        }
        Ok(said)
    }

    /// Returns one sentence per item.
    pub fn sentences(&self) -> Vec<String> {
        let programs = self.attached.iter().map(|(interface, program)| {
            format!("the program `{}` ({}) is still attached to `{interface}`", program.name, program.id)
        });
        let tables =
            self.tables.iter().map(|table| format!("the table `inet {}` is still there", table.name));
        let pins = self.pins.iter().map(|pin| format!("{} still pins a program", pin.display()));
        programs.chain(tables).chain(pins).collect()
    }
}

/// Finds the processes of this network namespace, besides this one, that have one of these programs or one
/// of its attachments.
fn holders(programs: &BTreeSet<u32>) -> Vec<Holder> {
    let network = |process: &str| readlink(format!("/proc/{process}/ns/net"), Vec::new()).ok();
    let here = network("self");
    let has = |fd: &Path| {
        // Bounded: the kernel writes it.
        let text = read_to_string(fd).unwrap_or_default();
        let id = text.lines().find_map(|line| line.strip_prefix("prog_id:"));
        id.and_then(|id| id.trim().parse().ok()).is_some_and(|id: u32| programs.contains(&id))
    };
    let holder = |folder: PathBuf| {
        let process: u32 = folder.file_name()?.to_str()?.parse().ok()?;
        if process == std::process::id() || network(&process.to_string()) != here {
            return None;
        }
        let mut fds = read_dir(folder.join("fdinfo")).ok()?.flatten();
        // Bounded: the kernel writes it.
        let name = read_to_string(folder.join("comm")).unwrap_or_default().trim().to_string();
        fds.any(|fd| has(&fd.path())).then_some(Holder { process, name })
    };
    if programs.is_empty() {
        return Vec::new();
    }
    read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| holder(entry.path())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_a_process_is_not_removed() {
        let table = |has_owner| NftTable { name: "weir_pods".into(), has_owner };
        let free = Left { tables: vec![table(false)], ..Left::default() };
        assert_eq!(free.belongs_to(), None);
        assert_eq!(free.sentences(), ["the table `inet weir_pods` is still there"]);
        let owned = Left { tables: vec![table(true)], ..Left::default() };
        assert!(owned.belongs_to().is_some_and(|why| why.contains("inet weir_pods")));
        let held = Left { holders: vec![Holder { process: 7, name: "weir".into() }], ..free };
        assert!(held.belongs_to().is_some_and(|why| why.starts_with("process 7 (weir)")));
    }
}
