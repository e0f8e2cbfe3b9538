//! Two network namespaces connected by veth pairs, and ports at their ends.
//!
//! Each test has a [`Lab`]: a namespace for weir with the interfaces w0 and w1, and one for the other end
//! with f0 and f1. Threads enter them, the process never does.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use weir_bed::{Namespace, Run, cable};
use weir_bpf::{Prefix, Take, TakeRule};
use weir_packet::{Batch, Bits, Pool, PoolId, Pools, Port, RegionPool};
use weir_port::xdp::{Mode, Rings, XdpConfig, XdpError, XdpInterface, XdpPort};

pub const W0: [u8; 6] = [2, 0, 0, 0, 0, 0];
pub const SOMEBODY: [u8; 6] = [2, 0, 0, 0, 0, 77];

pub fn service(dport: u16) -> Take {
    let destination = Some(Prefix { address: "10.0.0.1".parse().unwrap(), length: 32 });
    let rule = TakeRule { protocol: Some(17), dport: Some(dport.into()), destination, ..TakeRule::default() };
    Take { rules: vec![rule], ..Take::default() }
}

pub fn extra(port: &XdpPort, name: &str) -> u64 {
    port.extra_statistics().into_iter().find(|(word, _)| *word == name).unwrap().1
}

pub const RINGS: Rings = Rings { fill: 512, receive: 512, transmit: 512 };

/// Attaches with small rings.
pub fn attach(name: &str, take: &Take, mode: Option<Mode>) -> Result<XdpInterface, XdpError> {
    XdpInterface::attach(XdpConfig { mode, ..config(name, take) })
}

/// Returns a configuration with small rings.
pub fn config(name: &str, take: &Take) -> XdpConfig {
    XdpConfig { rings: RINGS, ..XdpConfig::new(name, take.clone()) }
}

/// How long the tests wait for what must happen, on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Two namespaces connected by veth pairs.
pub struct Lab {
    pub weir: String,
    pub far: String,
    spaces: [Namespace; 2],
    _run: Run,
}

impl Lab {
    /// Creates a lab; `None` without root.
    pub fn new(pairs: u32, queues: u32) -> Option<Lab> {
        let run = Run::of_test("xdp")?;
        let spaces = ["w", "f"].map(|role| run.namespace(role).unwrap());
        let [weir, far] = spaces.each_ref().map(|space| space.name().to_string());
        let lab = Lab { weir, far, spaces, _run: run };
        (0..pairs).for_each(|pair| lab.add_pair(pair, queues));
        Some(lab)
    }

    /// Interface w0 has 10.0.0.1 and MAC 02:00:00:00:00:00, f0 has 10.0.0.2 and 02:00:00:00:01:00, w1
    /// 10.0.1.1 ...
    pub fn add_pair(&self, pair: u32, queues: u32) {
        let names = ["w", "f"].map(|end| format!("{end}{pair}"));
        let end = |at: usize| {
            let end = self.spaces[at].end(&names[at]).mac(format!("02:00:00:00:0{at}:0{pair}"));
            end.address(format!("10.0.{pair}.{}/24", at + 1))
        };
        cable(Some(queues), &end(0), &end(1)).unwrap();
        for (space, name) in self.spaces.iter().zip(&names) {
            space.output("ethtool", &["-K", name, "tx", "off", "txvlan", "off"]).unwrap();
        }
    }

    /// Runs `body` in weir's namespace.
    pub fn weir<R: Send>(&self, body: impl FnOnce() -> R + Send) -> R {
        self.spaces[0].within(body)
    }

    /// Runs `body` in the other namespace.
    pub fn far<R: Send>(&self, body: impl FnOnce() -> R + Send) -> R {
        self.spaces[1].within(body)
    }

    /// Attaches to an interface on weir's side.
    pub fn attach(&self, name: &str, take: &Take) -> XdpInterface {
        self.weir(|| attach(name, take, None)).unwrap()
    }

    /// Opens a port at the far end that takes everything.
    pub fn far_end(&self, name: &str, queue: u32) -> End {
        self.far(|| {
            let take = Take { promiscuous: true, ..Take::all() };
            End::open(&attach(name, &take, None).unwrap(), queue)
        })
    }

    /// Opens a port at weir's end.
    pub fn near_end(&self, interface: &XdpInterface, queue: u32) -> End {
        self.weir(|| End::open(interface, queue))
    }

    /// Returns true if the far end's kernel can reach weir's. Nothing listens there, so success is a refused
    /// connection.
    pub fn connects(&self) -> bool {
        let address = "10.0.0.1:9".parse().unwrap();
        let answer = self.far(|| TcpStream::connect_timeout(&address, Duration::from_millis(300)));
        answer.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    }

    /// Like `connects`, with retries: a link that has just come up on a busy machine may need a second
    /// attempt.
    pub fn connects_soon(&self) -> bool {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if self.connects() {
                return true;
            }
        }
        false
    }
}

pub fn run(command: &str) {
    let output = Command::new("sh").args(["-c", command]).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A port with its own pool.
pub struct End {
    pub port: XdpPort,
    pub pools: Pools,
    pub pool: PoolId,
}

impl End {
    pub fn open(interface: &XdpInterface, queue: u32) -> End {
        End::of_chunks(interface, queue, 2048)
    }

    /// Opens a port whose chunks have this size.
    pub fn of_chunks(interface: &XdpInterface, queue: u32, chunk: usize) -> End {
        let mut pools = Pools::new();
        let pool = pools.add(Pool::Region(RegionPool::new(RINGS.chunks() + 64, chunk)));
        let port = interface.open_queue(queue, &mut pools, pool).unwrap();
        End { port, pools, pool }
    }

    pub fn send(&mut self, frames: &[Vec<u8>]) {
        for chunk in frames.chunks(64) {
            let mut batch = Batch::new();
            for bytes in chunk {
                let mut frame = self.pools.first().take().unwrap();
                frame.fill(bytes).unwrap();
                batch.push(frame).unwrap();
            }
            let list = batch.mask();
            assert_eq!(self.port.transmit(&mut self.pools, &mut batch, list), list);
            self.port.flush(&mut self.pools);
        }
        let end = Instant::now() + PATIENCE;
        while self.port.statistics().held > 0 && Instant::now() < end {
            self.port.flush(&mut self.pools);
        }
    }

    /// Receives `count` frames, or as many as arrive.
    pub fn receive(&mut self, count: usize) -> Vec<Vec<u8>> {
        let mut got = Vec::new();
        let mut batch = Batch::new();
        let end = Instant::now() + PATIENCE;
        while got.len() < count && Instant::now() < end {
            self.port.receive(&mut self.pools, &mut batch);
            for slot in Bits(batch.mask()) {
                let frame = batch.take(slot);
                assert!(frame.room().headroom >= weir_packet::HEADROOM);
                got.push(frame.bytes().to_vec());
                self.pools.give(frame);
            }
            batch.clear();
            self.port.flush(&mut self.pools);
        }
        self.check();
        got
    }

    /// Asserts that no frame arrives.
    pub fn receives_nothing(&mut self) {
        std::thread::sleep(Duration::from_millis(20));
        let mut batch = Batch::new();
        self.port.receive(&mut self.pools, &mut batch);
        assert_eq!(batch.len(), 0);
        self.port.flush(&mut self.pools);
    }

    pub fn check(&mut self) {
        XdpPort::check(&[&self.port], self.pools.region_mut(self.pool), 0);
    }

    pub fn close(mut self) {
        assert_eq!(self.port.close(&mut self.pools), 0);
        let pool = self.pools.region_mut(self.pool);
        assert_eq!(pool.available(), pool.chunks() as usize, "every frame is back in its pool");
    }
}

pub fn pools(chunks: u32) -> (Pools, PoolId) {
    let mut pools = Pools::new();
    let pool = pools.add(Pool::Region(RegionPool::new(chunks, 2048)));
    (pools, pool)
}

/// Builds a UDP frame to 10.0.0.1 whose payload ends in a number.
pub fn udp(mac: [u8; 6], dport: u16, number: u32) -> Vec<u8> {
    let mut frame = Vec::new();
    frame.extend(mac);
    frame.extend([2, 0, 0, 0, 9, 9, 8, 0]);
    frame.extend([0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 9, 10, 0, 0, 1]);
    frame.extend([0x10, 0]);
    frame.extend(dport.to_be_bytes());
    frame.extend([0, 26, 0, 0]);
    frame.resize(56, 0);
    frame.extend(number.to_be_bytes());
    frame
}
