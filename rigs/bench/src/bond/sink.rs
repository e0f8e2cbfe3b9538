//! The sink of an arm, a separate process (`bench/sink.rs`) on the core that does not forward frames.

use super::turn::RING_BITS;
use crate::peers::{Forwarder, Setting};
use anyhow::Result;
use std::path::Path;
use std::process::Command;
use weir_bed::namespace;
use weir_bed::{Run, Started};
use weir_lab::weir;

/// MiB of the sink's memory.
pub const MEBIBYTES: u32 = 128;

/// Real-time priority: above that of a machine (`machine.rs`).
const PRIORITY: &str = "2";

/// A sink.
pub struct Sink(Forwarder);

/// Device number `number`: one end of the wire between a member and its sink. A buffer holds a frame or an
/// LACPDU. With larger buffers, a ring long enough not to overflow would not fit a cache.
pub fn memif(role: &str, number: usize, socket: &Path) -> String {
    let socket = socket.display();
    format!(
        "net_memif{number},role={role},id={number},socket-abstract=no,socket={socket},rsize={RING_BITS},bsize=128"
    )
}

impl Sink {
    /// Connects to the two members on `socket`, with as many queues as they have.
    pub fn start(
        run: &mut Run,
        name: &'static str,
        setting: &Setting,
        socket: &Path,
        queues: u16,
    ) -> Result<Sink> {
        let mut command = Command::new(weir::program()?);
        command.args(["bench", "arm", "--core", &setting.other.to_string(), "sink"]);
        command.args(["--mebibytes", &MEBIBYTES.to_string(), "--queues", &queues.to_string()]);
        command.args([memif("client", 0, socket), memif("client", 1, socket)]);
        let sink = Forwarder::weir(run, name, &mut command)?;
        // Makes the sink real-time: whatever else runs on its core, it returns from a nap before a ring is
        // full. This is not done at the start, when DPDK waits for its own threads on the same core.
        namespace::output(
            "chrt",
            &["--all-tasks", "--fifo", "--pid", PRIORITY, &sink.process_id(run).to_string()],
        )?;
        Ok(Sink(sink))
    }

    /// Its process.
    pub fn process(&self) -> Started {
        self.0.process()
    }

    /// Returns the number of frames received from both members.
    pub fn arrived(&mut self, run: &Run) -> Result<u64> {
        self.0.arrived(run)
    }
}
