//! Programs at the tc hooks of an interface: through tcx, or through clsact where the kernel has no tcx
//! (before Linux 6.6). Both run after the programs already present, and end with the process.

mod filters;

use crate::link::{self, Hook, OwnedLink};
use crate::load::uninterrupted;
use aya::Ebpf;
use aya::maps::ProgramArray;
use aya::programs::tc::{NlOptions, SchedClassifierLink, TcAttachOptions, TcHandle, qdisc_add_clsact};
use aya::programs::{ProgramError, SchedClassifier, TcAttachType};
use aya::util::KernelVersion;
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketType, socket};
use std::io;
use std::os::fd::AsFd;

pub use filters::remove_dead;

const OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/hook.bpf.o"));

/// The name of the program that a filter runs.
const NAME: &str = "weir_hook";

/// The priority of the first filter; those attached later have higher numbers, so that they run after it.
/// Filters of other tools run before, because the kernel chooses 49152 or less for them.
const PRIORITY: u16 = 50_000;

/// A program at a hook. Dropping it detaches the program.
pub struct Attachment(Means);

/// How a program is attached.
enum Means {
    /// A link of tcx.
    Tcx { _link: OwnedLink },
    /// A filter of clsact. Dropping this value removes the filter. If the process is killed instead, the
    /// kernel empties the array of the program, which then does nothing.
    Filter { id: u32, _link: SchedClassifierLink, _hook: Box<Ebpf> },
}

impl Attachment {
    /// Returns the ID of the program that the kernel lists in place of ours, if it lists another program.
    #[must_use]
    pub fn stands_in(&self) -> Option<u32> {
        match self.0 {
            Means::Tcx { .. } => None,
            Means::Filter { id, .. } => Some(id),
        }
    }
}

/// Whether the kernel has tcx.
#[must_use]
pub fn has_tcx() -> bool {
    KernelVersion::current().is_ok_and(|version| version >= KernelVersion::new(6, 6, 0))
}

/// Attaches a program to the ingress or egress of an interface.
///
/// # Errors
/// Returns the kernel's error: there is no such interface, or the kernel has neither tcx nor clsact.
pub fn attach(
    program: &mut SchedClassifier,
    interface: &str,
    hook: TcAttachType,
) -> Result<Attachment, ProgramError> {
    if !has_tcx() {
        return by_filter(program, interface, hook);
    }
    let index = index_of(interface).map_err(io_error)?;
    let link = OwnedLink::create(program.fd()?.as_fd(), index, Hook::Tcx(hook)).map_err(io_error)?;
    Ok(Attachment(Means::Tcx { _link: link }))
}

/// Attaches a program through clsact, and removes leftovers of killed processes.
fn by_filter(
    program: &SchedClassifier,
    interface: &str,
    hook: TcAttachType,
) -> Result<Attachment, ProgramError> {
    // This fails if the interface has clsact already. Any other error occurs again with the filter.
    let _ = qdisc_add_clsact(interface);
    // Finding leftovers needs privileges that a daemon has already dropped when a pod starts; they do no
    // harm.
    let _ = remove_dead(interface);
    let mut ebpf = Ebpf::load(OBJECT).map_err(|error| io_error(io::Error::other(error)))?;
    let map = ebpf.map_mut("hook_target").expect("hook.bpf.c defines it");
    let mut target = ProgramArray::try_from(map)?;
    target.set(0, program.fd()?, 0)?;
    let hooked: &mut SchedClassifier = ebpf.program_mut(NAME).expect("hook.bpf.c defines it").try_into()?;
    uninterrupted(|| hooked.load())?;
    let id = hooked.info()?.id();
    let [high, low] = [id >> 16, id & 0xffff].map(|half| half as u16);
    let others = filters::at(index_of(interface).map_err(io_error)?, hook).map_err(io_error)?;
    let last = others.iter().map(|filter| filter.priority).max().unwrap_or_default();
    let priority = last.saturating_add(1).max(PRIORITY);
    // The ID distinguishes the filters of all processes.
    let options = NlOptions { priority, handle: TcHandle::new(high, low), classid: None };
    let link = hooked.attach_with_options(interface, hook, TcAttachOptions::Netlink(options))?;
    let link = hooked.take_link(link)?;
    Ok(Attachment(Means::Filter { id, _link: link, _hook: Box::new(ebpf) }))
}

/// Returns the IDs of the programs at a hook of the interface with this index, in the order in which they
/// run: those of tcx, then filters. Reading the programs' names would need another privilege.
///
/// # Errors
/// Returns the kernel's error.
pub fn ids_at(interface: u32, hook: TcAttachType) -> io::Result<Vec<u32>> {
    let mut ids = if has_tcx() { link::at_hook(interface, hook)? } else { Vec::new() };
    ids.extend(filters::at(interface, hook)?.iter().map(|filter| filter.program));
    Ok(ids)
}

/// Returns the IDs of the programs at a hook of an interface. For a filter of weir, this is the program that
/// it jumps to; filters whose process has ended are left out.
///
/// # Errors
/// Returns the kernel's error: there is no such interface, or a privilege is missing.
pub fn programs_at(interface: &str, hook: TcAttachType) -> Result<Vec<u32>, ProgramError> {
    let ids = ids_at(index_of(interface).map_err(io_error)?, hook).map_err(io_error)?;
    let hooks = filters::hooks()?;
    let meant = |id: u32| match hooks.get(&id) {
        Some(target) => *target,
        None => Some(id),
    };
    Ok(ids.into_iter().filter_map(meant).collect())
}

pub(crate) fn index_of(interface: &str) -> io::Result<u32> {
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    Ok(name_to_index(&any, interface)?)
}

fn io_error(error: io::Error) -> ProgramError {
    ProgramError::IOError(error)
}

#[cfg(test)]
mod tests;
