//! What takes the members' frames: a weir on the core that carries none, the same for every arm, that drops them all.

use super::turn::RING_BITS;
use super::weir;
use crate::bench::peers::Setting;
use crate::lab::Interrupt;
use crate::lab::run::{Run, Started};
use crate::lab::weir::Weir;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::path::Path;

/// A sink.
pub struct Sink(Weir);

/// A member's end of the wire between member `id` and its sink.
pub fn memif(role: &str, number: usize, id: usize, socket: &Path) -> String {
    let socket = socket.display();
    format!("net_memif{number},role={role},id={id},socket-abstract=no,socket={socket},rsize={RING_BITS},bsize=2048")
}

impl Sink {
    /// Connects to the two members on `socket`, by as many queues as they have.
    pub fn start(
        run: &mut Run,
        name: &'static str,
        setting: &Setting,
        socket: &Path,
        queues: usize,
        interrupt: &Interrupt,
    ) -> Result<Sink> {
        let port = |at: usize| format!("  m{at}: {{ dpdk: \"{}\" }}\n", memif("client", at, at, socket));
        // With two queues data comes by one of them; the other's worker must not take half of the core.
        let configuration = format!("workers: {queues}\nbusy: {}\nports:\n{}{}", queues == 1, port(0), port(1));
        let command = |program: &str| {
            let mut command = weir::preferred("taskset");
            command.args(["-c", &setting.other.to_string(), program]);
            command
        };
        Ok(Sink(Weir::start(run, name, command, &configuration, interrupt)?))
    }

    /// Its process.
    pub fn process(&self) -> Started {
        self.0.process()
    }

    /// Frames that came from both members.
    pub fn arrived(&self) -> Result<u64> {
        let ledger = self.0.show("ledger")?;
        ledger["ledger"]["received"].as_u64().context("the sink's ledger")
    }

    /// Says to both members that it is one system which takes frames on both links.
    pub fn greet(&self) -> Result<()> {
        for at in 0..2 {
            let hex: String = lacpdu(at).iter().map(|byte| format!("{byte:02x}")).collect();
            self.0.ask(&json!({"command": "inject", "hex": hex, "output": format!("m{at}")})).map(|_: Value| ())?;
        }
        Ok(())
    }
}

fn lacpdu(port: u8) -> Vec<u8> {
    let mut frame = vec![0x01, 0x80, 0xc2, 0, 0, 2, 2, 0, 0, 0, 0, 0x50 + port, 0x88, 9, 1, 1];
    frame.extend([1, 20, 0xff, 0xff, 2, 0, 0, 0, 0, 0x50, 0, 7, 0xff, 0xff, 0, port + 1, 0x3d, 0, 0, 0]);
    frame.extend([2, 20]);
    frame.extend([0; 18]);
    frame.extend([3, 16]);
    frame.extend([0; 14]);
    frame.resize(124, 0);
    frame
}
