//! The kernel's links between a program and an interface, as file descriptors that another process can take
//! over. aya makes such links but neither shows nor accepts their descriptors.

use aya::programs::TcAttachType;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Commands of bpf(2), as in linux/bpf.h.
const PROG_QUERY: i32 = 16;
const LINK_CREATE: i32 = 28;
const LINK_UPDATE: i32 = 29;
const LINK_DETACH: i32 = 34;

/// The place of an interface to which a link attaches a program.
#[derive(Clone, Copy)]
pub enum Hook {
    /// XDP, with the flags of `IFLA_XDP_FLAGS`.
    Xdp { flags: u32 },
    /// tcx (since Linux 6.6). The program runs after those that are there.
    Tcx(TcAttachType),
}

impl Hook {
    /// Returns the attach type and the flags, as in linux/bpf.h.
    fn numbers(self) -> io::Result<[u32; 2]> {
        /// `BPF_XDP`.
        const XDP: u32 = 37;
        /// `BPF_F_AFTER`: without another program to refer to, it means after all of them.
        const AFTER: u32 = 1 << 4;
        match self {
            Hook::Xdp { flags } => Ok([XDP, flags]),
            Hook::Tcx(hook) => Ok([tcx(hook)?, AFTER]),
        }
    }
}

/// Returns the attach type of a tcx hook.
fn tcx(hook: TcAttachType) -> io::Result<u32> {
    match hook {
        TcAttachType::Ingress => Ok(46),
        TcAttachType::Egress => Ok(47),
        TcAttachType::Custom(_) => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// The beginning of `union bpf_attr` for the commands on links: four words; the kernel takes the rest as 0.
type Attributes = [u32; 4];

/// A link. Dropping it detaches the program, unless another process may hold the link as well.
pub struct OwnedLink {
    fd: OwnedFd,
    is_shared: bool,
}

impl OwnedLink {
    /// Attaches a program to the interface with this index.
    ///
    /// # Errors
    /// Returns the kernel's error: `EBUSY` if an XDP program is attached already, `EINVAL` before Linux 5.9
    /// (6.6 for tcx).
    pub fn create(program: BorrowedFd<'_>, interface: u32, hook: Hook) -> io::Result<OwnedLink> {
        let [kind, flags] = hook.numbers()?;
        let number = bpf(LINK_CREATE, &[raw(program), interface, kind, flags])?;
        // SAFETY: the kernel returned this new descriptor, and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(number) };
        Ok(OwnedLink { fd, is_shared: false })
    }

    /// Replaces the program of another process's link: each frame meets the old one or the new one.
    ///
    /// # Errors
    /// Returns the kernel's error: `ENOLINK` if the interface is gone.
    pub fn take_over(link: OwnedFd, program: BorrowedFd<'_>) -> io::Result<OwnedLink> {
        bpf(LINK_UPDATE, &[raw(link.as_fd()), raw(program), 0, 0])?;
        Ok(OwnedLink { fd: link, is_shared: false })
    }

    /// Returns the link for another process. From now on, the program stays attached until both have dropped
    /// the link.
    ///
    /// # Errors
    /// The process has too many open files.
    pub fn share(&mut self) -> io::Result<OwnedFd> {
        let fd = self.fd.try_clone()?;
        self.is_shared = true;
        Ok(fd)
    }
}

impl Drop for OwnedLink {
    /// Closing the descriptor is not enough: a process that another thread has just forked has a copy of it
    /// until it executes its program, and the kernel detaches the program when the last copy is closed.
    fn drop(&mut self) {
        if !self.is_shared {
            // This fails if the interface is gone, which has detached the program.
            let _ = bpf(LINK_DETACH, &[raw(self.fd.as_fd()), 0, 0, 0]);
        }
    }
}

/// Returns the IDs of the programs at a tcx hook of the interface with this index, in the order in which they
/// run. Reading the programs' names would need another privilege.
///
/// # Errors
/// Returns the kernel's error: `EINVAL` before Linux 6.6.
pub fn at_hook(interface: u32, hook: TcAttachType) -> io::Result<Vec<u32>> {
    let hook = u64::from(tcx(hook)?);
    /// The maximum that the kernel allows.
    const IDS: usize = 64;
    let mut ids = [0_u32; IDS];
    // The part of `union bpf_attr` for queries: interface and attach type, flags, where the IDs go and how
    // many, then nothing of interest.
    let mut attributes = [0_u64; 8];
    attributes[0] = u64::from(interface) | hook << 32;
    attributes[2] = ids.as_mut_ptr() as u64;
    attributes[3] = IDS as u64;
    let size = size_of_val(&attributes) as u32;
    // SAFETY: the kernel reads and writes within `attributes`, whose size is passed, and writes at most the
    // given number of IDs to `ids`; both live until it returns.
    let result = unsafe { libc::syscall(libc::SYS_bpf, PROG_QUERY, attributes.as_mut_ptr(), size) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(ids[..(attributes[3] as u32 as usize).min(IDS)].to_vec())
}

fn raw(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

fn bpf(command: i32, attributes: &Attributes) -> io::Result<i32> {
    // SAFETY: the kernel reads the given number of bytes, which all belong to `attributes`, and writes none
    // for these commands.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), size_of::<Attributes>() as u32) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aya::Ebpf;
    use aya::programs::Xdp;
    use weir_bed::Run;

    const OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/xdp_take.bpf.o"));

    /// Another thread that starts a process has such copies for a moment.
    #[test]
    fn a_dropped_link_detaches_its_program_although_a_copy_of_its_descriptor_is_open() {
        let Some(run) = Run::of_test("link") else { return };
        let namespace = run.namespace("link").unwrap();
        namespace.ip("link add here type veth peer name there\n").unwrap();
        namespace.enter().unwrap();
        let index = crate::hook::index_of("here").unwrap();
        let mut ebpf = Ebpf::load(OBJECT).unwrap();
        let program: &mut Xdp = ebpf.program_mut("xdp_take").unwrap().try_into().unwrap();
        crate::load::uninterrupted(|| program.load()).unwrap();
        let program = program.fd().unwrap().as_fd();
        let attach = || OwnedLink::create(program, index, Hook::Xdp { flags: 0 });
        let mut link = attach().unwrap();
        let _copy = link.fd.try_clone().unwrap();
        let refused = attach().err().unwrap();
        assert_eq!(refused.raw_os_error(), Some(libc::EBUSY));
        drop(link);
        link = attach().unwrap();
        let shared = link.share().unwrap();
        drop(link);
        attach().err().expect("the other process keeps the program");
        let heir = OwnedLink::take_over(shared, program).unwrap();
        drop(heir);
        attach().unwrap();
    }
}
