//! The other end of a veth in another network namespace, as far as this process may inspect it: what that end
//! offloads determines what arrives here.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use weir_netlink::{links, namespace_number};

use super::ethtool::{Ethtool, Offloads};

/// The largest number of files that are inspected.
const NAMESPACES_MAX: usize = 8192;

/// An end of a veth in another namespace.
pub(super) struct Far {
    pub(super) name: String,
    /// The file of the namespace of this end.
    pub(super) namespace: PathBuf,
    pub(super) offloads: Offloads,
}

/// The other namespaces that have a number here (`link-netnsid`); the search happens once, on demand.
#[derive(Default)]
pub(super) struct Namespaces(OnceCell<HashMap<u32, PathBuf>>);

impl Namespaces {
    /// Looks for the interface with an index in the namespace with a number. `None` if the namespace is not
    /// found or may not be entered.
    pub(super) fn find(&self, (number, index): (u32, u32)) -> Option<Far> {
        let namespace = self.0.get_or_init(numbered).get(&number)?.clone();
        // Bounded: nothing is read.
        let file = File::open(&namespace).ok()?;
        // A separate thread enters the namespace, and ends there.
        let looked = std::thread::spawn(move || -> Option<(String, Offloads)> {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).ok()?;
            let name = links().ok()?.into_iter().find(|link| link.index == index)?.name;
            let offloads = Ethtool::open().ok()?.offloads(&name);
            Some((name, offloads))
        });
        let (name, offloads) = looked.join().ok()??;
        Some(Far { name, namespace, offloads })
    }
}

/// Returns the file of each namespace by the namespace's number; the first one if there are several.
fn numbered() -> HashMap<u32, PathBuf> {
    let (mut all, mut seen) = (HashMap::new(), HashSet::new());
    for path in namespaces().take(NAMESPACES_MAX) {
        // Bounded: nothing is read.
        let Ok(file) = File::open(&path) else { continue };
        let is_new = file.metadata().is_ok_and(|known| seen.insert(known.ino()));
        if let Some(number) = is_new.then(|| namespace_number(&file)).flatten() {
            all.entry(number).or_insert(path);
        }
    }
    all
}

/// The files of namespaces: named ones first, then those of processes.
fn namespaces() -> impl Iterator<Item = PathBuf> {
    let entries = |folder: &str| std::fs::read_dir(Path::new(folder)).into_iter().flatten().flatten();
    let named = entries("/run/netns").map(|entry| entry.path());
    let is_process = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    let processes = entries("/proc").filter(move |entry| entry.file_name().to_str().is_some_and(is_process));
    named.chain(processes.map(|entry| entry.path().join("ns/net")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_that_is_not_there_is_not_found() {
        assert!(Namespaces::default().find((u32::MAX - 1, 1)).is_none());
        assert!(namespaces().any(|path| path.starts_with("/proc") && path.ends_with("ns/net")));
    }
}
