//! The kernel's links between an XDP program and an interface, as file descriptors that another process can
//! take over. aya makes such links but neither shows nor accepts their descriptors.

use aya::programs::TcAttachType;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Commands of bpf(2), as in linux/bpf.h.
const PROG_QUERY: i32 = 16;
const LINK_CREATE: i32 = 28;
const LINK_UPDATE: i32 = 29;

/// The attach type `BPF_XDP`.
const XDP: u32 = 37;

/// The beginning of `union bpf_attr` for both commands: four words; the kernel takes the rest as 0.
type Attributes = [u32; 4];

/// Attaches a program to the interface with this index; `flags` are those of `IFLA_XDP_FLAGS`.
///
/// # Errors
/// Returns the kernel's error: `EBUSY` if a program is attached already, `EINVAL` before Linux 5.9.
pub fn create(program: BorrowedFd<'_>, interface: u32, flags: u32) -> io::Result<OwnedFd> {
    let number = bpf(LINK_CREATE, &[raw(program), interface, XDP, flags])?;
    // SAFETY: the kernel returned this new descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Replaces the program of a link: each frame meets the old one or the new one.
///
/// # Errors
/// Returns the kernel's error: `ENOLINK` if the interface is gone.
pub fn update(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    bpf(LINK_UPDATE, &[raw(link), raw(program), 0, 0]).map(drop)
}

/// Returns the IDs of the programs at a tcx hook of the interface with this index, in the order in which they
/// run. Their names would take another privilege.
///
/// # Errors
/// Returns the kernel's error: `EINVAL` before Linux 6.6.
pub fn at_hook(interface: u32, hook: TcAttachType) -> io::Result<Vec<u32>> {
    let hook: u64 = match hook {
        TcAttachType::Ingress => 46,
        TcAttachType::Egress => 47,
        TcAttachType::Custom(_) => return Err(io::ErrorKind::InvalidInput.into()),
    };
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
    // for these two commands.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), size_of::<Attributes>() as u32) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}
