//! Counts frames that XDP programs have sent and the kernel has then dropped.

use crate::load::uninterrupted;
use crate::shared::xdp_errors::Key;
use aya::maps::{HashMap as BpfMap, MapData};
use aya::programs::{BtfTracePoint, ProgramError};
use aya::{Btf, Ebpf, EbpfError, EbpfLoader};
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::sync::Mutex;
use std::sync::PoisonError;

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/xdp_errors.bpf.o"));

/// The programs and the tracepoints that they are attached to.
const PROGRAMS: [(&str, &str); 4] = [
    ("sent_back", "xdp_bulk_tx"),
    ("refused", "xdp_exception"),
    ("redirected", "xdp_devmap_xmit"),
    ("refused_redirect", "xdp_redirect_err"),
];

/// Programs at the tracepoints of XDP. Dropping this detaches them.
#[derive(Debug)]
pub struct XdpErrors {
    ebpf: Ebpf,
    /// The counts that were returned by earlier calls.
    taken: Mutex<HashMap<(&'static str, Key), u64>>,
}

impl XdpErrors {
    /// Attaches the programs, for the interfaces of this thread's network namespace.
    ///
    /// # Errors
    /// Returns the kernel's error: it has no BTF, or a privilege (`CAP_PERFMON`) is missing.
    pub fn attach() -> Result<XdpErrors, EbpfError> {
        let btf = Btf::from_sys_fs()?;
        let network = std::fs::metadata("/proc/thread-self/ns/net").map(|file| file.ino() as u32);
        let network = network.map_err(|error| EbpfError::from(ProgramError::IOError(error)))?;
        let mut ebpf = EbpfLoader::new().override_global("network", &network, true).load(OBJECT)?;
        for (name, tracepoint) in PROGRAMS {
            let program = ebpf.program_mut(name).expect("xdp_errors.bpf.c defines it");
            let program: &mut BtfTracePoint = program.try_into()?;
            uninterrupted(|| program.load(tracepoint, &btf))?;
            program.attach()?;
        }
        Ok(XdpErrors { ebpf, taken: Mutex::default() })
    }

    /// Returns how many frames that arrived at the interface `from`, and should have been sent by the
    /// interface `to`, were dropped since the last call.
    pub fn take_unsent(&self, from: u32, to: u32) -> u64 {
        self.take("unsent", Key { from, to })
    }

    /// Returns how many frames that arrived at the interface, and should have been redirected to the
    /// interface in this place of a map, were dropped since the last call.
    pub fn take_unredirected(&self, from: u32, place: u32) -> u64 {
        self.take("unredirected", Key { from, to: place })
    }

    fn take(&self, name: &'static str, key: Key) -> u64 {
        let map = self.ebpf.map(name).expect("xdp_errors.bpf.c defines it");
        let map = BpfMap::<&MapData, [u8; Key::SIZE], u64>::try_from(map).expect("its keys have this size");
        let now = map.get(&key.bytes(), 0).unwrap_or(0);
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        now - taken.insert((name, key), now).unwrap_or(0)
    }
}
