//! Link failures for tests and labs: not every kernel has netem, and netem has no notion of source port
//! classes.

use crate::hook::{self, Attachment};
use crate::load::uninterrupted;
use crate::shared::impair::{Impairment as Settings, LOST, LOST_BY_CLASS, MARKED, SEEN};
use aya::maps::{Array, MapData, MapError, PerCpuArray};
use aya::programs::{ProgramError, SchedClassifier, TcAttachType, TestRun, TestRunOptions};
use aya::{Ebpf, EbpfError};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/impair.bpf.o"));

/// What happens to the VXLAN frames of a link. Default: nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Impairment {
    /// The share of frames that are lost, 0 to 1.
    pub lost: f64,
    /// The number of classes (above 0), and the class of source ports whose frames are lost.
    pub class_lost: Option<(u32, u32)>,
    /// A virtual queue: its rate in bytes/s, above 0, and the length in bytes at which it begins to mark
    /// ECN-capable frames CE.
    pub queue: Option<(u32, u32)>,
}

/// What has happened to the VXLAN frames of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Impaired {
    /// All VXLAN frames of the link, including those that were lost.
    pub seen: u64,
    /// Frames lost by chance.
    pub lost: u64,
    /// Frames lost because of the class of their source port.
    pub lost_by_class: u64,
    /// Frames that were marked.
    pub marked: u64,
}

/// Returns the class of a source port, given the number of classes (above 0).
#[must_use]
pub fn class_of(port: u16, classes: u32) -> u32 {
    (u32::from(port).wrapping_mul(0x9e37_79b1) >> 16) % classes
}

/// The program that impairs a link.
pub struct TcImpair {
    ebpf: Ebpf,
    link: Option<Attachment>,
}

impl TcImpair {
    /// Loads the program for frames to this UDP port. At first, the program impairs nothing.
    ///
    /// # Errors
    /// Returns the kernel's error, usually a missing privilege.
    pub fn load(port: u16) -> Result<TcImpair, EbpfError> {
        let mut impair = TcImpair { ebpf: Ebpf::load(OBJECT)?, link: None };
        uninterrupted(|| impair.program().load())?;
        impair.write(&Settings { port: port.into(), ..Settings::default() })?;
        Ok(impair)
    }

    /// Attaches the program to the egress of an interface in this thread's network namespace, until `self` is
    /// dropped.
    ///
    /// # Errors
    /// Returns the kernel's error: there is no such interface.
    pub fn attach(&mut self, interface: &str) -> Result<(), ProgramError> {
        let program = self.program();
        self.link = Some(hook::attach(program, interface, TcAttachType::Egress)?);
        Ok(())
    }

    /// Changes what happens to frames.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn set(&mut self, impairment: &Impairment) -> Result<(), MapError> {
        let port = Settings::of(&self.settings().get(&0, 0)?).port;
        let (classes, class_lost) = impairment.class_lost.unwrap_or((0, 0));
        let (rate, threshold) = impairment.queue.unwrap_or((0, 0));
        let lost = (impairment.lost.clamp(0.0, 1.0) * f64::from(u32::MAX)) as u32;
        self.write(&Settings { port, lost, classes, class_lost, rate, threshold })
    }

    /// Returns what has happened so far.
    #[must_use]
    pub fn counts(&self) -> Impaired {
        let map = self.ebpf.map("counts").expect("impair.bpf.c defines it");
        let map = PerCpuArray::<&MapData, u64>::try_from(map).expect("numbers");
        let of = |at| map.get(&(at as u32), 0).map(|cpus| cpus.iter().sum()).unwrap_or_default();
        Impaired { seen: of(SEEN), lost: of(LOST), lost_by_class: of(LOST_BY_CLASS), marked: of(MARKED) }
    }

    /// Runs the program on a frame (`BPF_PROG_TEST_RUN`): returns its verdict and the resulting frame.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn test(&mut self, frame: &[u8]) -> Result<(i32, Vec<u8>), ProgramError> {
        let mut out = vec![0; frame.len()];
        let options =
            TestRunOptions { data_in: Some(frame), data_out: Some(&mut out), ..TestRunOptions::new() };
        let result = self.program().test_run(options)?;
        Ok((result.return_value as i32, out))
    }

    fn write(&mut self, settings: &Settings) -> Result<(), MapError> {
        self.settings().set(0, settings.bytes(), 0)
    }

    fn settings(&mut self) -> Array<&mut MapData, [u8; Settings::SIZE]> {
        let map = self.ebpf.map_mut("impairment_map").expect("impair.bpf.c defines it");
        Array::try_from(map).expect("its values have this size")
    }

    fn program(&mut self) -> &mut SchedClassifier {
        let program = self.ebpf.program_mut("impair").expect("impair.bpf.c defines it");
        program.try_into().expect("it is a classifier")
    }
}
