//! Traffic for benches, generated in the kernel.

use aya::programs::{ProgramError, TestRun, TestRunAttrs, TestRunOptions, Xdp, XdpMode};
use aya::{Ebpf, EbpfError};
use weir_bpf::load::uninterrupted;

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/xdp_generate.bpf.o"));

/// Frames that the kernel handles at a time; its own drivers use the same number.
const BATCH: u32 = 64;

/// A generator of frames.
pub struct XdpGenerate(Ebpf);

impl XdpGenerate {
    /// Loads the program.
    ///
    /// # Errors
    /// Returns the kernel's error, usually a missing privilege.
    pub fn load() -> Result<XdpGenerate, EbpfError> {
        let mut ebpf = Ebpf::load(OBJECT)?;
        uninterrupted(|| program(&mut ebpf)?.load())?;
        Ok(XdpGenerate(ebpf))
    }

    /// Attaches the program to the interface with this index in this thread's network namespace, which
    /// should carry no frames. The kernel then keeps its direct call of the program from one
    /// [`XdpGenerate::send`] to the next; to make that call again takes it milliseconds.
    ///
    /// # Errors
    /// Returns the kernel's error: the interface's driver does not run XDP programs.
    pub fn attach(&mut self, interface: u32) -> Result<(), ProgramError> {
        program(&mut self.0)?.attach_to_if_index(interface, XdpMode::Driver).map(drop)
    }

    /// Sends the IPv4 frame `frame` `count` times from the interface with this index in this thread's network
    /// namespace, each time with a different source address. Returns when all have been sent.
    ///
    /// # Errors
    /// Returns the kernel's error. Linux before 5.18 does not support this.
    pub fn send(&mut self, interface: u32, frame: &[u8], count: u32) -> Result<(), ProgramError> {
        // struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
        let context = [0, frame.len() as u32, 0, interface, 0, 0].map(u32::to_ne_bytes);
        let options = TestRunOptions {
            data_in: Some(frame),
            ctx_in: Some(context.as_flattened()),
            repeat: count,
            attrs: TestRunAttrs::new().xdp_live_frames(BATCH),
            ..TestRunOptions::new()
        };
        program(&mut self.0)?.test_run(options).map(drop)
    }
}

fn program(ebpf: &mut Ebpf) -> Result<&mut Xdp, ProgramError> {
    ebpf.program_mut("xdp_generate").expect("xdp_generate.bpf.c defines it").try_into()
}
