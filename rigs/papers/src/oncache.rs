//! The programs of `oncache.bpf.c`, for comparisons: `weir run` does not load them.

use aya::maps::{HashMap, MapData, MapError};
use aya::programs::{ProgramError, SchedClassifier, TcAttachType, TestRunOptions};
use aya::{Ebpf, EbpfError, TestRun};
use std::net::Ipv4Addr;
use weir_bpf::hook::{self, Attachment};
use weir_bpf::load::uninterrupted;

const OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/oncache.bpf.o"));

/// The programs and their hooks.
const PROGRAMS: [(&str, TcAttachType); 4] = [
    ("oncache_send", TcAttachType::Ingress),
    ("oncache_learn_receive", TcAttachType::Egress),
    ("oncache_learn_send", TcAttachType::Egress),
    ("oncache_receive", TcAttachType::Ingress),
];

/// A cache as ONCache's authors describe it, on a node with one pod or several.
pub struct Oncache {
    ebpf: Ebpf,
    links: Vec<Attachment>,
}

impl Oncache {
    /// Loads the programs, which are not attached yet.
    ///
    /// # Errors
    /// Returns the kernel's error, usually a missing privilege.
    pub fn load() -> Result<Oncache, EbpfError> {
        let mut ebpf = Ebpf::load(OBJECT)?;
        for (name, _) in PROGRAMS {
            uninterrupted(|| program(&mut ebpf, name)?.load())?;
        }
        Ok(Oncache { ebpf, links: Vec::new() })
    }

    /// Attaches the programs to the uplink.
    ///
    /// # Errors
    /// Returns the kernel's error: there is no such interface.
    pub fn attach_uplink(&mut self, interface: &str) -> Result<(), ProgramError> {
        self.attach(interface, 2)
    }

    /// Attaches the programs to the interface of a pod.
    ///
    /// # Errors
    /// As for [`Oncache::attach_uplink`].
    pub fn attach_pod(&mut self, interface: &str) -> Result<(), ProgramError> {
        self.attach(interface, 0)
    }

    /// Makes a pod known, by its address and the index of its interface.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn set_pod(&mut self, address: Ipv4Addr, interface: u32) -> Result<(), MapError> {
        let map = self.ebpf.map_mut("oncache_ingress").expect("oncache.bpf.c defines it");
        let mut pods: HashMap<&mut MapData, u32, [u32; 4]> = HashMap::try_from(map)?;
        pods.insert(u32::from_ne_bytes(address.octets()), [interface, 0, 0, 0], 0)
    }

    /// Returns the nanoseconds that the kernel's statistics of programs (`kernel.bpf_stats_enabled`, which
    /// must be on) count for a program that does nothing, over `runs` runs.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn statistics_ns(&mut self, runs: u32) -> Result<f64, ProgramError> {
        let program = program(&mut self.ebpf, "oncache_nothing")?;
        if program.fd().is_err() {
            uninterrupted(|| program.load())?;
        }
        let options = TestRunOptions { data_in: Some(&[0; 64]), repeat: runs, ..TestRunOptions::new() };
        program.test_run(options)?;
        let info = program.info()?;
        Ok(info.run_time().as_nanos() as f64 / info.run_count().max(1) as f64)
    }

    /// Attaches two programs, starting with this one.
    fn attach(&mut self, interface: &str, first: usize) -> Result<(), ProgramError> {
        for (name, at) in PROGRAMS.into_iter().skip(first).take(2) {
            let program = program(&mut self.ebpf, name)?;
            self.links.push(hook::attach(program, interface, at)?);
        }
        Ok(())
    }
}

fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut SchedClassifier, ProgramError> {
    ebpf.program_mut(name).expect("oncache.bpf.c defines it").try_into()
}
