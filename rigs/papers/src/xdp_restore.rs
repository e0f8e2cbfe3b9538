//! Measures XDP programs that rewrite frames: see `xdp_restore.bpf.c`.

use aya::maps::{Array, Map, MapData, MapError, ProgramArray};
use aya::programs::{ProgramError, ProgramFd, ProgramInfo, TestRun, TestRunOptions, Xdp};
use aya::{Ebpf, EbpfError, EbpfLoader};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use weir_bpf::load::uninterrupted;

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/xdp_restore.bpf.o"));

/// Bytes of each frame, or of its beginning where frames are longer.
pub const FRAME: usize = 64;

/// Bytes that a program may make of a frame.
const LONGEST: usize = 2048;

/// The value that `xdp_restore` returns if it did not reach the measured program.
const FAILED: u32 = 255;

/// Whether an XDP program supports frames in several buffers. An array does not hold programs that do beside
/// programs that do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffers {
    /// The program supports only one buffer.
    One,
    /// The program supports several buffers (`xdp.frags`).
    Several,
}

impl Buffers {
    const ALL: [Buffers; 2] = [Buffers::One, Buffers::Several];

    fn name(self, plain: &'static str, frags: &'static str) -> &'static str {
        match self {
            Buffers::One => plain,
            Buffers::Several => frags,
        }
    }
}

/// A program to be measured.
#[derive(Clone, Copy)]
pub enum XdpArm<'a> {
    /// A program that only returns: its time is the cost of measuring.
    Stub(Buffers),
    /// A loaded program.
    Program(&'a ProgramFd),
    /// A program that this function puts in the first place of an array.
    PutBy(&'a dyn Fn(BorrowedFd<'_>) -> io::Result<()>),
}

/// A program that is pinned to a file system of type bpf.
pub struct PinnedXdp(ProgramFd);

impl PinnedXdp {
    /// Opens it.
    ///
    /// # Errors
    /// Returns the kernel's error: there is no such file, or it is no program.
    pub fn open(path: &Path) -> Result<PinnedXdp, ProgramError> {
        ProgramInfo::from_pin(path)?.fd().map(PinnedXdp)
    }

    /// Returns it to be measured.
    #[must_use]
    pub fn arm(&self) -> XdpArm<'_> {
        XdpArm::Program(&self.0)
    }
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// The program's return value for the last frame.
    pub action: u32,
    /// The last frame afterwards.
    pub bytes: Vec<u8>,
}

/// Runs programs on the frames of a list, each time on an original one.
pub struct XdpRestore {
    ebpf: Ebpf,
    first: Vec<u8>,
    frames: u32,
}

impl XdpRestore {
    /// Loads the programs and the frames, of which there is at least one.
    ///
    /// # Errors
    /// Returns the kernel's error, usually a missing privilege.
    ///
    /// # Panics
    /// Panics if there is no frame.
    pub fn load(frames: &[[u8; FRAME]]) -> Result<XdpRestore, EbpfError> {
        let count = frames.len() as u32;
        let mut ebpf = EbpfLoader::new().map_max_entries("frames", count).load(OBJECT)?;
        for buffers in Buffers::ALL {
            for name in [restore(buffers), stub(buffers)] {
                uninterrupted(|| program(&mut ebpf, name)?.load())?;
            }
        }
        let mut list: Array<&mut MapData, [u8; FRAME]> = Array::try_from(map(&mut ebpf, "frames"))?;
        for (at, frame) in (0..).zip(frames) {
            list.set(at, frame, 0)?;
        }
        Ok(XdpRestore { ebpf, first: frames[0].to_vec(), frames: count })
    }

    /// Makes every frame `length` bytes long, at least [`FRAME`]. Zeros follow, which a measured program must
    /// not overwrite, because they are not restored.
    ///
    /// # Panics
    /// Panics if frames would become shorter.
    #[must_use]
    pub fn of_length(mut self, length: usize) -> XdpRestore {
        assert!(length >= FRAME, "{length} bytes of a frame");
        self.first.resize(length, 0);
        self
    }

    /// Makes a program the measured one, and returns what it supports.
    ///
    /// # Errors
    /// Returns the kernel's error: `EINVAL` if the program is not an XDP program for interfaces.
    pub fn measure(&mut self, arm: XdpArm<'_>) -> Result<Buffers, EbpfError> {
        if let XdpArm::Stub(buffers) = arm {
            let stub = program(&mut self.ebpf, stub(buffers))?.fd()?.try_clone();
            let stub = stub.map_err(ProgramError::IOError)?;
            self.put(buffers, XdpArm::Program(&stub))?;
            return Ok(buffers);
        }
        match self.put(Buffers::One, arm) {
            Ok(()) => Ok(Buffers::One),
            Err(_) => self.put(Buffers::Several, arm).map(|()| Buffers::Several),
        }
    }

    fn put(&mut self, buffers: Buffers, arm: XdpArm<'_>) -> Result<(), EbpfError> {
        let map = map(&mut self.ebpf, buffers.name("measured", "measured_frags"));
        match (arm, map) {
            (XdpArm::Program(program), map) => ProgramArray::try_from(map)?.set(0, program, 0)?,
            (XdpArm::PutBy(put), Map::ProgramArray(array)) => {
                put(array.fd().as_fd()).map_err(|error| EbpfError::MapError(MapError::IoError(error)))?;
            }
            (XdpArm::PutBy(_) | XdpArm::Stub(_), _) => {
                unreachable!("the map is an array, the stub a program")
            }
        }
        Ok(())
    }

    /// Runs the measured program on `runs` frames, starting with number `first`; the list repeats.
    ///
    /// # Errors
    /// Returns the kernel's error, or that a frame could not be restored.
    pub fn run(&mut self, buffers: Buffers, first: u32, runs: u32) -> Result<Ran, EbpfError> {
        let mut position: Array<&mut MapData, [u64; 4]> = Array::try_from(map(&mut self.ebpf, "position"))?;
        position.set(0, [0, 0, two(first, self.frames), two(self.first.len() as u32, 0)], 0)?;
        let mut bytes = vec![0; LONGEST];
        let options = TestRunOptions {
            data_in: Some(&self.first),
            data_out: Some(&mut bytes),
            repeat: runs,
            ..TestRunOptions::new()
        };
        let result = program(&mut self.ebpf, restore(buffers))?.test_run(options)?;
        if result.return_value == FAILED {
            let error = io::Error::other("a frame could not be restored in front of the measured program");
            return Err(ProgramError::IOError(error).into());
        }
        bytes.truncate(result.data_size_out as usize);
        Ok(Ran { action: result.return_value, bytes })
    }
}

/// Two numbers of 32 bits, in the processor's order.
fn two(one: u32, other: u32) -> u64 {
    let [a, b, c, d] = one.to_ne_bytes();
    let [e, f, g, h] = other.to_ne_bytes();
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

fn restore(buffers: Buffers) -> &'static str {
    buffers.name("xdp_restore", "xdp_restore_frags")
}

fn stub(buffers: Buffers) -> &'static str {
    buffers.name("xdp_stub", "xdp_stub_frags")
}

fn map<'a>(ebpf: &'a mut Ebpf, name: &str) -> &'a mut Map {
    ebpf.map_mut(name).expect("xdp_restore.bpf.c defines it")
}

fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut Xdp, ProgramError> {
    ebpf.program_mut(name).expect("xdp_restore.bpf.c defines it").try_into()
}
