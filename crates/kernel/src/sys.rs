//! The system call bpf(2): maps, programs and their test runs. The only file of this crate with unsafe code.

use std::ffi::{CStr, CString};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Commands of bpf(2), as in linux/bpf.h.
const MAP_CREATE: i32 = 0;
const MAP_LOOKUP_ELEM: i32 = 1;
const MAP_UPDATE_ELEM: i32 = 2;
const MAP_DELETE_ELEM: i32 = 3;
const PROG_LOAD: i32 = 5;
const PROG_TEST_RUN: i32 = 10;
const OBJ_GET_INFO_BY_FD: i32 = 15;

/// `BPF_PROG_TYPE_XDP` and the attach type `BPF_XDP`.
const PROG_TYPE_XDP: u64 = 6;
const ATTACH_XDP: u64 = 37;

/// `BPF_F_NO_PREALLOC`.
const NO_PREALLOC: u32 = 1;
/// `BPF_F_MMAPABLE`.
const MMAPABLE: u32 = 1 << 10;
/// `BPF_F_XDP_HAS_FRAGS`.
const HAS_FRAGS: u32 = 1 << 5;

/// The number of bytes of the verifier's log that are kept: its end says what is wrong.
const LOG: usize = 1 << 20;

/// How often a load is repeated if a signal has interrupted the verifier.
const LOADS: usize = 10;

/// What kind of map to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum MapKind {
    /// Values by number.
    Array = 2,
    /// The entry with the longest prefix of a key.
    LpmTrie = 11,
    /// Maps by number.
    ArrayOfMaps = 12,
    /// Interfaces by number.
    Devices = 14,
}

/// A map, as long as it is open.
#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    key: usize,
    value: usize,
}

/// A program that the kernel has accepted.
#[derive(Debug)]
pub struct Loaded(OwnedFd);

/// Why the kernel refused a program.
#[derive(Debug)]
pub struct Refused {
    /// The error of the system call.
    pub error: io::Error,
    /// The last lines of the verifier's log.
    pub log: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = self.log.lines().rev().find(|line| !line.is_empty() && !line.starts_with("processed"));
        write!(f, "the kernel's verifier refused the program ({}): {}", self.error, last.unwrap_or("no log"))
    }
}

impl std::error::Error for Refused {}

/// Calls bpf(2) with attributes that are laid out as 64-bit words.
fn bpf(command: i32, attributes: &mut [u64]) -> io::Result<i32> {
    let size = size_of_val(attributes) as u32;
    // SAFETY: the kernel reads and writes `size` bytes of the attributes. The addresses in them are those of
    // buffers that outlive the call and have the lengths that the attributes, or the sizes of the map's keys
    // and values, say: every caller below creates them from slices.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), size) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

/// Takes over a new descriptor.
fn owned(fd: i32) -> OwnedFd {
    // SAFETY: nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// Returns how many processors a per-CPU map has values for.
///
/// # Errors
/// The kernel's list of processors cannot be read.
pub fn processors() -> io::Result<usize> {
    // Bounded: the kernel writes one short line.
    let list = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = list.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<usize>().ok());
    last.map(|last| last + 1).ok_or_else(|| io::Error::other("the list of processors is not one"))
}

impl Map {
    /// Creates a map; `entries` and the sizes are at least 1.
    ///
    /// # Errors
    /// Returns the kernel's error: `EPERM` without `CAP_BPF`, `ENOMEM` or `E2BIG` if it is too large.
    pub fn create(kind: MapKind, key: usize, value: usize, entries: u32) -> io::Result<Map> {
        let mut attributes = [0_u64; 9];
        attributes[0] = pair(kind as u32, key as u32);
        attributes[1] = pair(value as u32, entries);
        // Tries exist only without preallocation. Memory is mapped to read counts without a system call.
        attributes[2] = match kind {
            MapKind::LpmTrie => pair(NO_PREALLOC, 0),
            MapKind::Array => pair(MMAPABLE, 0),
            MapKind::ArrayOfMaps | MapKind::Devices => 0,
        };
        let fd = owned(bpf(MAP_CREATE, &mut attributes)?);
        Ok(Map { fd, key, value })
    }

    /// Creates an array with room for one map that is like `inner`.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn array_of(inner: &Map) -> io::Result<Map> {
        let mut attributes = [0_u64; 9];
        attributes[0] = pair(MapKind::ArrayOfMaps as u32, 4);
        attributes[1] = pair(4, 1);
        attributes[2] = pair(0, inner.fd().cast_unsigned());
        let fd = owned(bpf(MAP_CREATE, &mut attributes)?);
        Ok(Map { fd, key: 4, value: 4 })
    }

    /// Returns the map's descriptor.
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Maps the only value of an array into memory.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn memory(&self) -> io::Result<Memory> {
        let bytes = self.value.next_multiple_of(8);
        // SAFETY: a new mapping of a map that is one, of no more bytes than it has: values are rounded up to
        // 8 bytes, and a map to whole pages.
        let at = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, self.fd(), 0)
        };
        let at = NonNull::new(at.cast()).filter(|_| at != libc::MAP_FAILED);
        at.map(|at| Memory { at, bytes }).ok_or_else(io::Error::last_os_error)
    }

    /// Removes an entry.
    ///
    /// # Errors
    /// Returns the kernel's error: `ENOENT` if there is no such entry.
    pub fn remove(&self, key: &[u8]) -> io::Result<()> {
        assert_eq!(key.len(), self.key, "the size is that of the map");
        let mut attributes = [pair(self.fd().cast_unsigned(), 0), key.as_ptr() as u64, 0, 0];
        bpf(MAP_DELETE_ELEM, &mut attributes).map(drop)
    }

    /// Writes an entry.
    ///
    /// # Errors
    /// Returns the kernel's error: `E2BIG` if the map is full.
    pub fn update(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        assert!(key.len() == self.key && value.len() == self.value, "the sizes are those of the map");
        let mut attributes =
            [pair(self.fd().cast_unsigned(), 0), key.as_ptr() as u64, value.as_ptr() as u64, 0];
        bpf(MAP_UPDATE_ELEM, &mut attributes).map(drop)
    }
}

/// The value of an array, mapped into memory. Programs change it at the same time, so it is read and written
/// in atomic pieces.
#[derive(Debug)]
pub struct Memory {
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory belongs to the mapping, which any thread may use and end.
unsafe impl Send for Memory {}
// SAFETY: all accesses through it are atomic.
unsafe impl Sync for Memory {}

impl Memory {
    /// Returns a byte.
    pub fn byte(&self, at: usize) -> &AtomicU8 {
        assert!(at < self.bytes, "within the map");
        // SAFETY: the address is in the mapping, which lives as long as `self`.
        unsafe { AtomicU8::from_ptr(self.at.as_ptr().add(at)) }
    }

    /// Returns 32 bits at an offset that is a multiple of 4.
    pub fn half(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= self.bytes, "within the map");
        // SAFETY: as for words.
        unsafe { AtomicU32::from_ptr(self.at.as_ptr().add(at).cast()) }
    }

    /// Returns a word at an offset that is a multiple of 8.
    pub fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.bytes, "within the map");
        // SAFETY: the address is in the mapping, which lives as long as `self`, and aligned, because the
        // mapping begins at a page.
        unsafe { AtomicU64::from_ptr(self.at.as_ptr().add(at).cast()) }
    }

    /// Writes bytes at an offset that is a multiple of 8, word by word.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        for (place, piece) in bytes.chunks(8).enumerate() {
            let mut word = self.word(at + place * 8).load(Ordering::Relaxed).to_ne_bytes();
            word[..piece.len()].copy_from_slice(piece);
            self.word(at + place * 8).store(u64::from_ne_bytes(word), Ordering::Release);
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one, and nothing refers to it any longer.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}

/// Returns the nanoseconds of CLOCK_MONOTONIC, which programs use as well.
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the address is that of a local variable, which the call fills.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Puts a program into an array of programs.
///
/// # Errors
/// Returns the kernel's error: `EINVAL` if the program does not fit the others.
pub fn set_program(programs: BorrowedFd<'_>, program: &Loaded) -> io::Result<()> {
    let (key, value) = (0_u32, program.0.as_raw_fd().cast_unsigned());
    let (key, value) = (&raw const key as u64, &raw const value as u64);
    let mut attributes = [pair(programs.as_raw_fd().cast_unsigned(), 0), key, value, 0];
    bpf(MAP_UPDATE_ELEM, &mut attributes).map(drop)
}

/// Replaces a program in an array of programs, unless the array has something else in its place.
///
/// # Errors
/// Returns the kernel's error; an empty array is none.
pub fn replace_program(programs: BorrowedFd<'_>, program: &Loaded, by: &Loaded) -> io::Result<()> {
    if is_program(programs, program)? { set_program(programs, by) } else { Ok(()) }
}

/// Takes a program out of an array of programs, unless the array has something else in its place. If the
/// kernel has compiled the jump to the program, this waits some milliseconds for packets.
///
/// # Errors
/// Returns the kernel's error; an empty array is none.
pub fn clear_program(programs: BorrowedFd<'_>, program: &Loaded) -> io::Result<()> {
    if !is_program(programs, program)? {
        return Ok(());
    }
    let key = 0_u32;
    let array = pair(programs.as_raw_fd().cast_unsigned(), 0);
    bpf(MAP_DELETE_ELEM, &mut [array, &raw const key as u64, 0, 0]).map(drop)
}

/// Whether a program is the one in an array of programs.
fn is_program(programs: BorrowedFd<'_>, program: &Loaded) -> io::Result<bool> {
    let (key, mut present) = (0_u32, 0_u32);
    let array = pair(programs.as_raw_fd().cast_unsigned(), 0);
    let mut attributes = [array, &raw const key as u64, &raw mut present as u64, 0];
    match bpf(MAP_LOOKUP_ELEM, &mut attributes) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
        Ok(_) => Ok(present == program.id()?),
    }
}

/// Waits until every program that is running now has returned.
#[derive(Debug)]
pub struct PacketWait {
    outer: Map,
    inner: Map,
}

impl PacketWait {
    /// Creates what is needed to wait.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn new() -> io::Result<PacketWait> {
        let inner = Map::create(MapKind::Array, 4, 8, 1)?;
        let outer = Map::array_of(&inner)?;
        Ok(PacketWait { outer, inner })
    }

    /// Waits some milliseconds: when a map in a map is replaced, the kernel waits for programs that may use
    /// the former one.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn wait(&self) -> io::Result<()> {
        self.outer.update(&[0; 4], &self.inner.fd().to_ne_bytes())
    }
}

/// What a test run returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// The program's return value.
    pub action: u32,
    /// The frame afterwards.
    pub bytes: Vec<u8>,
}

impl Loaded {
    /// Loads an XDP program.
    ///
    /// # Errors
    /// Returns the kernel's error with the end of the verifier's log.
    pub fn xdp(name: &str, code: &[u64]) -> Result<Loaded, Refused> {
        match Loaded::try_xdp(name, code, &mut []) {
            Ok(loaded) => Ok(loaded),
            Err(_) => {
                // This load is only for the log, which takes time to write and is not needed if the program
                // loads.
                let mut log = vec![0; LOG];
                Loaded::try_xdp(name, code, &mut log).map_err(|error| {
                    let text =
                        CStr::from_bytes_until_nul(&log).map(|text| text.to_string_lossy().into_owned());
                    Refused { error, log: text.unwrap_or_default() }
                })
            }
        }
    }

    fn try_xdp(name: &str, code: &[u64], log: &mut [u8]) -> io::Result<Loaded> {
        let licence = CString::from(c"GPL");
        let mut attributes = [0_u64; 15];
        attributes[0] = pair(PROG_TYPE_XDP as u32, code.len() as u32);
        attributes[1] = code.as_ptr() as u64;
        attributes[2] = licence.as_ptr() as u64;
        if !log.is_empty() {
            attributes[3] = pair(1, log.len() as u32);
            attributes[4] = log.as_mut_ptr() as u64;
        }
        // Program flags, then 15 bytes of name, and a 0.
        attributes[5] = pair(0, HAS_FRAGS);
        let mut bytes = [0_u8; 16];
        bytes.iter_mut().zip(name.bytes().take(15)).for_each(|(to, from)| *to = from);
        attributes[6] = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
        attributes[7] = u64::from_le_bytes(bytes[8..].try_into().expect("8 bytes"));
        attributes[8] = pair(0, ATTACH_XDP as u32);
        for _ in 1..LOADS {
            match bpf(PROG_LOAD, &mut attributes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return other.map(|fd| Loaded(owned(fd))),
            }
        }
        bpf(PROG_LOAD, &mut attributes).map(|fd| Loaded(owned(fd)))
    }

    /// Returns the program's ID, which is also what a look-up in an array of programs returns.
    fn id(&self) -> io::Result<u32> {
        // `struct bpf_prog_info` begins with `type` and `id`. The kernel writes no more than fits.
        let mut info = [0_u64; 1];
        let mut attributes =
            [pair(self.0.as_raw_fd().cast_unsigned(), size_of_val(&info) as u32), info.as_mut_ptr() as u64];
        bpf(OBJ_GET_INFO_BY_FD, &mut attributes)?;
        Ok((info[0] >> 32) as u32)
    }

    /// Runs the program on a frame of at least 14 bytes.
    ///
    /// # Errors
    /// Returns the kernel's error: `EINVAL` if the frame is too short or too long.
    pub fn run(&self, frame: &[u8]) -> io::Result<Ran> {
        let mut out = vec![0_u8; 4096];
        let mut attributes = [0_u64; 10];
        attributes[0] = pair(self.0.as_raw_fd().cast_unsigned(), 0);
        attributes[1] = pair(frame.len() as u32, out.len() as u32);
        attributes[2] = frame.as_ptr() as u64;
        attributes[3] = out.as_mut_ptr() as u64;
        attributes[4] = pair(1, 0);
        bpf(PROG_TEST_RUN, &mut attributes)?;
        out.truncate((attributes[1] >> 32) as usize);
        Ok(Ran { action: (attributes[0] >> 32) as u32, bytes: out })
    }
}
