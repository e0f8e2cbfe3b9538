//! Ports of the kernel's datapath. Each is one end of a veth pair; at the other end, an AF_XDP socket sends
//! and receives whole frames with their tags.

use crate::switch::Wires;
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use std::time::{Duration, Instant};
use weir_bed::{Namespace, Run, cable};
use weir_packet::{Batch, Bits, Pool, Pools, Port, RegionPool};
use weir_port::xdp::{Rings, XdpConfig, XdpInterface, XdpPort};

const RINGS: Rings = Rings { fill: 64, receive: 64, transmit: 64 };

/// How long a frame may take to leave.
const PATIENCE: Duration = Duration::from_secs(30);

/// The other ends of a switch's ports, in a network namespace that is removed with this value.
pub struct VethPairs {
    namespace: Namespace,
    /// The names of these ends.
    names: Vec<String>,
    ends: Vec<WireEnd>,
    _run: Run,
}

/// A socket at the end of a veth pair.
struct WireEnd {
    port: XdpPort,
    pools: Pools,
    _interface: XdpInterface,
}

impl VethPairs {
    /// Connects ports with these names, in a namespace that the calling thread enters; `None` without root.
    pub fn lay(ports: &[&str]) -> Option<VethPairs> {
        let run = Run::of_test("openflow")?;
        let namespace = run.namespace("switch").unwrap();
        let names: Vec<String> = ports.iter().map(|name| format!("far-{name}")).collect();
        for (near, far) in ports.iter().zip(&names) {
            cable(Some(1), &namespace.end(near), &namespace.end(far)).unwrap();
            for end in [near, far.as_str()] {
                // Tags and checksums are in the frames, as on a wire.
                let off = ["-K", end, "tx", "off", "txvlan", "off", "tx-vlan-stag-hw-insert", "off"];
                namespace.output("ethtool", &off).unwrap();
            }
        }
        namespace.enter().unwrap();
        Some(VethPairs { namespace, names, ends: Vec::new(), _run: run })
    }
}

impl Wires for VethPairs {
    // The switch has a handler for each processor. The calling thread stays on one, so that what it sends
    // stays in order.
    fn open(&mut self) {
        let mut here = CpuSet::new();
        here.set(sched_getcpu());
        sched_setaffinity(None, &here).unwrap();
        self.ends = self.names.iter().map(|name| self.namespace.within(|| WireEnd::open(name))).collect();
    }

    fn send(&mut self, port: usize, frames: &[Vec<u8>]) {
        frames.iter().for_each(|frame| self.ends[port].send(frame));
    }

    fn receive(&mut self, port: usize) -> Vec<Vec<u8>> {
        self.ends[port].receive()
    }
}

impl WireEnd {
    fn open(name: &str) -> WireEnd {
        let take = weir_bpf::Take { promiscuous: true, ..weir_bpf::Take::all() };
        let config = XdpConfig { rings: RINGS, ..XdpConfig::new(name, take) };
        let interface = XdpInterface::attach(config).unwrap();
        let mut pools = Pools::new();
        let pool = pools.add(Pool::Region(RegionPool::new(RINGS.chunks() + 64, 2048)));
        let port = interface.open_queue(0, &mut pools, pool).unwrap();
        WireEnd { port, pools, _interface: interface }
    }

    fn send(&mut self, bytes: &[u8]) {
        let mut batch = Batch::new();
        let mut frame = self.pools.first().take().unwrap();
        frame.fill(bytes).unwrap();
        batch.push(frame).unwrap();
        assert_eq!(self.port.transmit(&mut self.pools, &mut batch, 1), 1);
        let start = Instant::now();
        loop {
            self.port.flush(&mut self.pools);
            if self.port.statistics().held == 0 {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "a frame does not leave");
        }
    }

    fn receive(&mut self) -> Vec<Vec<u8>> {
        let mut batch = Batch::new();
        self.port.receive(&mut self.pools, &mut batch);
        let mut frames = Vec::new();
        for slot in Bits(batch.mask()) {
            let frame = batch.take(slot);
            frames.push(frame.bytes().to_vec());
            self.pools.give(frame);
        }
        self.port.flush(&mut self.pools);
        frames
    }
}
