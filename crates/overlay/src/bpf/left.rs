//! Leftover programs that no process manages: still attached to interfaces, or pinned by files in a bpffs.

use aya::programs::links::{FdLink, LinkType, PinnedLink};
use aya::programs::{ProgramError, ProgramInfo, TcAttachType, loaded_programs};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use weir_bpf::hook;

/// The names of all programs, as the kernel lists them: at most 15 letters.
const NAMES: [&str; 6] = [
    "overlay_send",
    "overlay_receive",
    "overlay_learn_s",
    "overlay_learn_r",
    "overlay_forget",
    "overlay_sweep",
];

/// How deep nested directories of a bpffs are searched.
const DEPTH_MAX: usize = 8;

/// An overlay program in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverlayProgram {
    /// Its ID in the kernel.
    pub id: u32,
    /// Its name, as the kernel lists it.
    pub name: String,
}

fn ours(info: &ProgramInfo) -> Option<OverlayProgram> {
    let name = info.name_as_str().filter(|name| NAMES.contains(name))?;
    Some(OverlayProgram { id: info.id(), name: name.to_string() })
}

/// Returns the overlay programs at the tc hooks of an interface, regardless of who attached them.
///
/// # Errors
/// Returns the kernel's error: there is no such interface.
pub fn overlay_programs_at(interface: &str) -> Result<Vec<OverlayProgram>, ProgramError> {
    let (listed, mut all) = (overlay_programs()?, Vec::new());
    for at in [TcAttachType::Egress, TcAttachType::Ingress] {
        let ids = hook::programs_at(interface, at)?;
        let find = |id: u32| listed.iter().find(|program| program.id == id).cloned();
        all.extend(ids.into_iter().filter_map(find));
    }
    Ok(all)
}

/// Returns all overlay programs in the kernel, in any network namespace.
///
/// # Errors
/// Returns the kernel's error: listing programs requires a privilege.
pub fn overlay_programs() -> Result<Vec<OverlayProgram>, ProgramError> {
    let mut all = Vec::new();
    for program in loaded_programs() {
        all.extend(ours(&program?));
    }
    Ok(all)
}

/// Returns the files below a directory of a bpffs that pin overlay programs or their links.
#[must_use]
pub fn overlay_pins(folder: &Path, programs: &[OverlayProgram]) -> Vec<PathBuf> {
    let ids: BTreeSet<u32> = programs.iter().map(|program| program.id).collect();
    let mut found = Vec::new();
    look_into(folder, DEPTH_MAX, &mut |path| {
        let is_link = || {
            let info = PinnedLink::from_pin(path).ok().and_then(|link| FdLink::from(link).info().ok());
            info.is_some_and(|info| {
                matches!(info.link_type(), Ok(LinkType::Tcx)) && ids.contains(&info.program_id())
            })
        };
        let is_program = || ProgramInfo::from_pin(path).is_ok_and(|info| ours(&info).is_some());
        if is_link() || is_program() {
            found.push(path.to_path_buf());
        }
    });
    found
}

fn look_into(folder: &Path, depth: usize, look: &mut dyn FnMut(&Path)) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && depth > 0 => look_into(&entry.path(), depth - 1, look),
            Ok(kind) if kind.is_file() => look(&entry.path()),
            _ => {}
        }
    }
}
