//! AF_XDP ports on real veth pairs, in private network namespaces. Needs root.
//!
//! Each test has a [`Lab`]: a namespace for weir with the interfaces w0 and w1, and one for the other end
//! with f0 and f1. Threads enter them, the process never does. Each test first removes the labs of dead runs.

use std::io::{BufRead, BufReader, ErrorKind};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bpf::{Prefix, Take, TakeRule};
use packet::{Batch, Bits, Pool, PoolId, Pools, Port, RegionPool};
use port::xdp::{Mode, Rings, XdpConfig, XdpError, XdpInterface, XdpPort, interfaces, obstacles};

const RINGS: Rings = Rings { fill: 512, receive: 512, transmit: 512 };

/// Attaches with small rings.
fn attach(name: &str, take: &Take, mode: Option<Mode>) -> Result<XdpInterface, XdpError> {
    XdpInterface::attach(XdpConfig { mode, rings: RINGS, ..XdpConfig::new(name, take.clone()) })
}

const PATIENCE: Duration = Duration::from_secs(3);

/// Two namespaces connected by veth pairs.
struct Lab {
    weir: String,
    far: String,
}

impl Lab {
    /// Creates a lab. Without root, prints so and returns `None`; in CI that is a failure.
    fn new(pairs: u32, queues: u32) -> Option<Lab> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        if !rustix::process::geteuid().is_root() {
            assert!(std::env::var_os("CI").is_none(), "CI runs as root");
            eprintln!("skipped: needs root");
            return None;
        }
        sweep();
        let name = format!("weirtest-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let lab = Lab { weir: format!("{name}-w"), far: format!("{name}-f") };
        for netns in [&lab.weir, &lab.far] {
            run(&format!("ip netns add {netns}"));
            run(&format!("ip netns exec {netns} sysctl -qw net.ipv6.conf.all.disable_ipv6=1"));
        }
        for pair in 0..pairs {
            lab.add_pair(pair, queues);
        }
        Some(lab)
    }

    /// Interface w0 has 10.0.0.1 and MAC 02:00:00:00:00:00, f0 has 10.0.0.2 and 02:00:00:00:01:00, w1
    /// 10.0.1.1 ...
    fn add_pair(&self, pair: u32, queues: u32) {
        let Lab { weir, far } = self;
        let sizes = format!("numtxqueues {queues} numrxqueues {queues}");
        run(&format!(
            "ip -n {weir} link add w{pair} address 02:00:00:00:00:0{pair} {sizes} type veth \
             peer name f{pair} address 02:00:00:00:01:0{pair} {sizes} netns {far}"
        ));
        for (netns, end, host) in [(weir, "w", 1), (far, "f", 2)] {
            run(&format!("ip -n {netns} addr add 10.0.{pair}.{host}/24 dev {end}{pair}"));
            run(&format!("ip netns exec {netns} ethtool -K {end}{pair} tx off txvlan off"));
            run(&format!("ip -n {netns} link set {end}{pair} up"));
        }
    }

    /// Runs `body` in weir's namespace.
    fn weir<R: Send>(&self, body: impl FnOnce() -> R + Send) -> R {
        inside(&self.weir, body)
    }

    /// Runs `body` in the other namespace.
    fn far<R: Send>(&self, body: impl FnOnce() -> R + Send) -> R {
        inside(&self.far, body)
    }

    /// Attaches to an interface on weir's side.
    fn attach(&self, name: &str, take: &Take) -> XdpInterface {
        self.weir(|| attach(name, take, None)).unwrap()
    }

    /// Opens a port at the far end that takes everything.
    fn far_end(&self, name: &str, queue: u32) -> End {
        self.far(|| {
            let take = Take { promiscuous: true, ..Take::all() };
            End::open(&attach(name, &take, None).unwrap(), queue)
        })
    }

    /// Opens a port at weir's end.
    fn near_end(&self, interface: &XdpInterface, queue: u32) -> End {
        self.weir(|| End::open(interface, queue))
    }

    /// Returns true if the far end's kernel can reach weir's. Nobody listens there, so success is a refused
    /// connection.
    fn connects(&self) -> bool {
        let address = "10.0.0.1:9".parse().unwrap();
        let answer = self.far(|| TcpStream::connect_timeout(&address, Duration::from_millis(300)));
        answer.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    }

    /// Like `connects`, with retries: a link that has just come up on a busy machine may need a second
    /// attempt.
    fn connects_soon(&self) -> bool {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if self.connects() {
                return true;
            }
        }
        false
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for netns in [&self.weir, &self.far] {
            let _ = Command::new("ip").args(["netns", "del", netns]).status();
        }
    }
}

/// Removes namespaces whose test process is dead.
fn sweep() {
    let Ok(entries) = std::fs::read_dir("/run/netns") else { return };
    for name in entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
        let Some(pid) = name.strip_prefix("weirtest-").and_then(|rest| rest.split('-').next()) else {
            continue;
        };
        if !Path::new("/proc").join(pid).exists() {
            let _ = Command::new("ip").args(["netns", "del", &name]).stderr(Stdio::null()).status();
        }
    }
}

fn run(command: &str) {
    let output = Command::new("sh").args(["-c", command]).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

fn inside<R: Send>(netns: &str, body: impl FnOnce() -> R + Send) -> R {
    let enter = || {
        let netns = std::fs::File::open(Path::new("/run/netns").join(netns)).unwrap();
        let kind = Some(rustix::thread::LinkNameSpaceType::Network);
        rustix::thread::move_into_link_name_space(rustix::fd::AsFd::as_fd(&netns), kind).unwrap();
        body()
    };
    std::thread::scope(|scope| scope.spawn(enter).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// A port with its own pool.
struct End {
    port: XdpPort,
    pools: Pools,
    pool: PoolId,
}

impl End {
    fn open(interface: &XdpInterface, queue: u32) -> End {
        End::of_chunks(interface, queue, 2048)
    }

    /// Opens a port whose chunks have this size.
    fn of_chunks(interface: &XdpInterface, queue: u32, chunk: usize) -> End {
        let mut pools = Pools::new();
        let pool = pools.add(Pool::Region(RegionPool::new(RINGS.chunks() + 64, chunk)));
        let port = interface.open_queue(queue, &mut pools, pool).unwrap();
        End { port, pools, pool }
    }

    fn send(&mut self, frames: &[Vec<u8>]) {
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
    fn receive(&mut self, count: usize) -> Vec<Vec<u8>> {
        let mut got = Vec::new();
        let mut batch = Batch::new();
        let end = Instant::now() + PATIENCE;
        while got.len() < count && Instant::now() < end {
            self.port.receive(&mut self.pools, &mut batch);
            for slot in Bits(batch.mask()) {
                let frame = batch.take(slot);
                assert!(frame.room().headroom >= packet::HEADROOM);
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
    fn receives_nothing(&mut self) {
        std::thread::sleep(Duration::from_millis(20));
        let mut batch = Batch::new();
        self.port.receive(&mut self.pools, &mut batch);
        assert_eq!(batch.len(), 0);
    }

    fn check(&mut self) {
        XdpPort::check(&[&self.port], self.pools.region_mut(self.pool), 0);
    }

    fn close(mut self) {
        assert_eq!(self.port.close(&mut self.pools), 0);
        let pool = self.pools.region_mut(self.pool);
        assert_eq!(pool.available(), pool.chunks() as usize, "every frame is home");
    }
}

fn pools(chunks: u32) -> (Pools, PoolId) {
    let mut pools = Pools::new();
    let pool = pools.add(Pool::Region(RegionPool::new(chunks, 2048)));
    (pools, pool)
}

/// Builds a UDP frame to 10.0.0.1 whose payload ends in a number.
fn udp(mac: [u8; 6], dport: u16, number: u32) -> Vec<u8> {
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

const W0: [u8; 6] = [2, 0, 0, 0, 0, 0];
const SOMEBODY: [u8; 6] = [2, 0, 0, 0, 0, 77];

fn service(dport: u16) -> Take {
    let destination = Some(Prefix { address: "10.0.0.1".parse().unwrap(), length: 32 });
    let rule = TakeRule { protocol: Some(17), dport: Some(dport.into()), destination, ..TakeRule::default() };
    Take { rules: vec![rule], ..Take::default() }
}

fn extra(port: &XdpPort, name: &str) -> u64 {
    port.extra_statistics().into_iter().find(|(word, _)| *word == name).unwrap().1
}

#[test]
fn what_is_taken_arrives_and_the_rest_stays_with_the_kernel() {
    let Some(lab) = Lab::new(1, 1) else { return };
    let interface = lab.attach("w0", &service(5000));
    let mut near = lab.near_end(&interface, 0);
    let mut far = lab.far_end("f0", 0);
    assert_eq!(near.port.xdp_mode(), Some(Mode::NativeCopy));
    assert!(near.port.readiness().is_some());
    let before = interface.counters(0);
    let frames: Vec<_> = (0..300).map(|number| udp(W0, 5000 + (number % 3 == 0) as u16, number)).collect();
    // Send at most 64 at a time, because the ring of the veth has 256 slots.
    for part in frames.chunks(64) {
        far.send(part);
        let expected: Vec<_> =
            part.iter().filter(|frame| frame[37] == 5000_u16.to_be_bytes()[1]).cloned().collect();
        assert_eq!(near.receive(expected.len()), expected);
    }
    near.receives_nothing();
    let statistics = near.port.statistics();
    assert_eq!((statistics.received, statistics.received_bytes, statistics.lost_before), (200, 12_000, 0));
    assert_eq!((far.port.statistics().transmitted, far.port.statistics().held), (300, 0));
    let after = interface.counters(0);
    assert_eq!((after.taken - before.taken, after.redirect_failed), (200, before.redirect_failed));
    assert!(after.passed - before.passed >= 100);
    assert_eq!(extra(&near.port, "rx_invalid_descs") + extra(&near.port, "wrong_descriptors"), 0);
    near.close();
    far.close();
}

#[test]
fn frames_pass_between_two_interfaces_by_descriptor() {
    let Some(lab) = Lab::new(2, 1) else { return };
    let take = Take { promiscuous: true, ..Take::all() };
    let (mut left, mut right) = (lab.far_end("f0", 0), lab.far_end("f1", 0));
    let frames: Vec<_> = (0..2000).map(|number| udp(SOMEBODY, 1, number)).collect();
    lab.weir(|| {
        let (mut pools, pool) = pools(2 * RINGS.chunks() + 64);
        let open =
            |name, pools: &mut _| attach(name, &take, None).unwrap().open_queue(0, pools, pool).unwrap();
        let (mut from, mut to) = (open("w0", &mut pools), open("w1", &mut pools));
        for part in frames.chunks(64) {
            left.send(part);
            let mut left_over = part.len();
            let end = Instant::now() + PATIENCE;
            while left_over > 0 && Instant::now() < end {
                let mut batch = Batch::new();
                from.receive(&mut pools, &mut batch);
                left_over -= batch.len();
                let list = batch.mask();
                assert_eq!(to.transmit(&mut pools, &mut batch, list), list);
                XdpPort::check(&[&from, &to], pools.region_mut(pool), 0);
                to.flush(&mut pools);
                from.flush(&mut pools);
            }
            assert_eq!(right.receive(part.len()), part);
        }
        assert_eq!((to.statistics().transmitted, to.statistics().held), (2000, 0));
        assert_eq!((from.close(&mut pools), to.close(&mut pools)), (0, 0));
        assert_eq!(pools.region_mut(pool).available(), 2 * RINGS.chunks() as usize + 64);
    });
    left.close();
    right.close();
}

#[test]
fn rules_change_under_a_running_port_and_the_kernel_has_the_rest() {
    let Some(lab) = Lab::new(1, 1) else { return };
    let mut interface = lab.attach("w0", &service(5000));
    let mut near = lab.near_end(&interface, 0);
    assert!(lab.connects_soon(), "TCP is not taken");
    interface.set_take(&Take::all()).unwrap();
    assert!(!lab.connects(), "everything is taken");
    assert!(!near.receive(1).is_empty());
    interface.set_take(&Take::default()).unwrap();
    assert!(lab.connects_soon(), "nothing is taken");
    drop(interface);
    let before = lab.connects_soon();
    near.close();
    assert!(before && lab.connects_soon(), "as before");
}

#[test]
fn a_frame_for_another_mac_is_not_ours() {
    let Some(lab) = Lab::new(1, 1) else { return };
    let own = Take { rules: vec![TakeRule::default()], ..Take::default() };
    let mut interface = lab.attach("w0", &own);
    let mut near = lab.near_end(&interface, 0);
    let mut far = lab.far_end("f0", 0);
    far.send(&[udp(SOMEBODY, 1, 1), udp([0xff; 6], 1, 2), udp(W0, 1, 3)]);
    assert_eq!(near.receive(1), [udp(W0, 1, 3)]);
    near.receives_nothing();
    assert_eq!(extra(&near.port, "xdp_not_ours"), 1);
    interface.set_take(&Take::all()).unwrap();
    far.send(&[udp(SOMEBODY, 1, 1), udp([0xff; 6], 1, 2), udp(W0, 1, 3)]);
    assert_eq!(near.receive(2), [udp([0xff; 6], 1, 2), udp(W0, 1, 3)]);
    interface.set_take(&Take { promiscuous: true, ..Take::all() }).unwrap();
    far.send(&[udp(SOMEBODY, 1, 1)]);
    assert_eq!(near.receive(1), [udp(SOMEBODY, 1, 1)]);
}

#[test]
fn each_queue_has_its_port() {
    let Some(lab) = Lab::new(1, 2) else { return };
    let interface = lab.attach("w0", &service(5000));
    assert_eq!(interface.queues(), 2);
    let mut near = [lab.near_end(&interface, 0), lab.near_end(&interface, 1)];
    let far_interface = lab.far(|| attach("f0", &Take::default(), None)).unwrap();
    for queue in 0..2 {
        let mut far = lab.far(|| End::open(&far_interface, queue));
        far.send(&[udp(W0, 5000, queue)]);
        assert_eq!(near[queue as usize].receive(1), [udp(W0, 5000, queue)]);
        near[1 - queue as usize].receives_nothing();
        far.close();
    }
    lab.weir(|| {
        let (mut pools, pool) = pools(RINGS.chunks());
        let mut refuse = |queue| interface.open_queue(queue, &mut pools, pool).err().unwrap();
        assert!(matches!(refuse(2), XdpError::QueueOutOfRange { queue: 2, queues: 2, .. }));
        assert!(matches!(refuse(0), XdpError::QueueInUse { queue: 0, .. }));
    });
    let [first, second] = near;
    first.close();
    lab.near_end(&interface, 0).close();
    second.close();
}

#[test]
fn a_queue_without_port_leaves_its_frames_to_the_kernel() {
    let Some(lab) = Lab::new(1, 1) else { return };
    let interface = lab.attach("w0", &Take::all());
    assert!(lab.connects_soon());
    assert!(interface.counters(0).redirect_failed > 0);
    let near = lab.near_end(&interface, 0);
    assert!(!lab.connects());
    near.close();
    assert!(lab.connects_soon());
}

#[test]
fn modes_are_forced_or_refused() {
    let Some(lab) = Lab::new(1, 1) else { return };
    let mut far = lab.far_end("f0", 0);
    let generic = lab.weir(|| attach("w0", &service(5000), Some(Mode::GenericCopy))).unwrap();
    let mut near = lab.near_end(&generic, 0);
    assert_eq!(Port::mode(&near.port), "generic copy");
    far.send(&[udp(W0, 5000, 1)]);
    assert_eq!(near.receive(1), [udp(W0, 5000, 1)]);
    let again = lab.weir(|| attach("w0", &Take::all(), Some(Mode::GenericCopy)));
    assert!(matches!(again, Err(XdpError::AlreadyAttached(_))), "{:?}", again.err());
    near.close();
    drop(generic);
    lab.weir(|| {
        let (mut pools, pool) = pools(RINGS.chunks());
        let native = attach("w0", &Take::all(), Some(Mode::NativeZeroCopy)).unwrap();
        let refused = native.open_queue(0, &mut pools, pool).err().unwrap();
        assert!(matches!(refused, XdpError::NoZeroCopy { .. }), "a veth cannot: {refused}");
        assert_eq!(pools.region_mut(pool).available(), RINGS.chunks() as usize);
    });
    assert!(matches!(attach("weirnone0", &Take::all(), None), Err(XdpError::NoInterface(_))));
}

#[test]
fn a_jumbo_mtu_falls_back_to_generic() {
    let Some(lab) = Lab::new(1, 1) else { return };
    run(&format!("ip -n {} link set f0 mtu 9000", lab.far));
    run(&format!("ip -n {} link set w0 mtu 9000", lab.weir));
    let native = lab.weir(|| attach("w0", &Take::all(), Some(Mode::NativeCopy)));
    assert!(matches!(native, Err(XdpError::MtuTooLarge { .. })), "{:?}", native.err());
    let near = lab.near_end(&lab.attach("w0", &Take::all()), 0);
    assert_eq!(near.port.xdp_mode(), Some(Mode::GenericCopy));
    let report = lab.weir(|| interfaces().unwrap()).into_iter().find(|report| report.name == "w0").unwrap();
    assert!(report.obstacles.iter().any(|sentence| sentence.contains("MTU 9000")), "{:?}", report.obstacles);
}

#[test]
fn frames_of_nearly_a_page_pass_natively_in_chunks_of_a_page() {
    let Some(lab) = Lab::new(1, 1) else { return };
    for (netns, end) in [(&lab.far, "f0"), (&lab.weir, "w0")] {
        run(&format!("ip -n {netns} link set {end} mtu 3400"));
    }
    let take = Take { promiscuous: true, ..Take::all() };
    let open = |name| {
        let interface = attach(name, &take, Some(Mode::NativeCopy)).unwrap();
        End::of_chunks(&interface, 0, 4096)
    };
    let (mut near, mut far) = (lab.weir(|| open("w0")), lab.far(|| open("f0")));
    let long = |number| {
        let mut frame = udp(SOMEBODY, 1, number);
        frame.resize(3414, number as u8);
        frame
    };
    let frames: Vec<_> = (0..100).map(long).collect();
    far.send(&frames);
    assert_eq!(near.receive(100), frames);
    near.send(&frames);
    assert_eq!(far.receive(100), frames);
    near.close();
    far.close();
    let report = lab.weir(|| obstacles("w0", 4096));
    assert!(!report.iter().any(|sentence| sentence.contains("MTU")), "{report:?}");
    let small = lab.weir(|| obstacles("w0", 2048));
    assert!(small.iter().any(|sentence| sentence.contains("`mtu: 3400` in the configuration")), "{small:?}");
}

#[test]
fn what_a_dead_link_holds_is_counted_at_close() {
    let Some(lab) = Lab::new(1, 1) else { return };
    let interface = lab.attach("w0", &Take::all());
    let mut near = lab.near_end(&interface, 0);
    run(&format!("ip -n {} link set w0 down", lab.weir));
    let mut batch = Batch::new();
    for _ in 0..3 {
        let mut frame = near.pools.first().take().unwrap();
        frame.fill(&udp(SOMEBODY, 1, 1)).unwrap();
        batch.push(frame).unwrap();
    }
    batch.frame_mut(2).resize(3).unwrap();
    assert_eq!(
        near.port.transmit(&mut near.pools, &mut batch, 0b111),
        0b011,
        "no Ethernet header in 3 bytes"
    );
    near.pools.give(batch.take(2));
    near.port.flush(&mut near.pools);
    assert_eq!((near.port.statistics().held, near.port.statistics().transmitted), (2, 0));
    assert_eq!(near.port.close(&mut near.pools), 2);
    assert_eq!(near.port.statistics().held, 0);
    let pool = near.pools.region_mut(near.pool);
    assert_eq!(pool.available(), pool.chunks() as usize);
}

#[test]
fn an_empty_pool_starves_the_port_and_a_refill_revives_it() {
    let Some(lab) = Lab::new(1, 1) else { return };
    let interface = lab.attach("w0", &service(5000));
    let mut near = lab.near_end(&interface, 0);
    let mut far = lab.far_end("f0", 0);
    let mut hoard = Vec::new();
    while let Some(frame) = near.pools.first().take() {
        hoard.push(frame);
    }
    let mut kept = Vec::new();
    for number in 0..12 {
        far.send(&(0..50).map(|part| udp(W0, 5000, number * 50 + part)).collect::<Vec<_>>());
        let mut batch = Batch::new();
        near.port.receive(&mut near.pools, &mut batch);
        kept.extend(Bits(batch.mask()).map(|slot| batch.take(slot)));
        near.port.flush(&mut near.pools);
    }
    XdpPort::check(&[&near.port], near.pools.region_mut(near.pool), hoard.len() + kept.len());
    let statistics = near.port.statistics();
    assert!(statistics.starved > 0 && statistics.lost_before > 0, "{statistics:?}");
    assert_eq!(statistics.received + statistics.lost_before, 600);
    hoard.into_iter().chain(kept).for_each(|frame| near.pools.give(frame));
    near.port.flush(&mut near.pools);
    far.send(&[udp(W0, 5000, 9999)]);
    assert_eq!(near.receive(1), [udp(W0, 5000, 9999)]);
    near.close();
}

#[test]
fn the_report_names_a_veths_modes_and_obstacles() {
    let Some(lab) = Lab::new(1, 1) else { return };
    let find = || lab.weir(|| interfaces().unwrap()).into_iter().find(|report| report.name == "w0").unwrap();
    let report = find();
    assert_eq!((report.driver.as_str(), report.rx_queues, report.mtu, report.mac), ("veth", 1, 1500, W0));
    assert!(report.carrier);
    assert_eq!(report.modes, [Mode::NativeCopy, Mode::GenericCopy]);
    assert!(report.obstacles.iter().any(|sentence| sentence.contains("another network namespace")));
    let _interface = lab.attach("w0", &Take::default());
    assert!(find().obstacles.iter().any(|sentence| sentence.contains("XDP program is attached")));
    run(&format!("ip -n {} link add va numtxqueues 4 type veth peer name vb", lab.weir));
    let report = lab.weir(|| interfaces().unwrap()).into_iter().find(|report| report.name == "vb").unwrap();
    assert!(
        report.obstacles.iter().any(|sentence| sentence.contains("ethtool -K va tx off")),
        "{:?}",
        report.obstacles
    );
}

/// The process that `a_killed_process_leaves_the_interface_as_it_was` kills.
#[test]
fn child() {
    let Ok(netns) = std::env::var("WEIR_TEST_CHILD") else { return };
    inside(&netns, || {
        let _end = End::open(&attach("w0", &Take::all(), None).unwrap(), 0);
        println!("\nready");
        std::thread::sleep(Duration::from_secs(60));
    });
}

#[test]
fn a_killed_process_leaves_the_interface_as_it_was() {
    let Some(lab) = Lab::new(1, 1) else { return };
    assert!(lab.connects_soon());
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env("WEIR_TEST_CHILD", &lab.weir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "ready"));
    assert!(!lab.connects(), "the child takes everything");
    child.kill().unwrap();
    child.wait().unwrap();
    let report = lab.weir(|| interfaces().unwrap()).into_iter().find(|report| report.name == "w0").unwrap();
    assert!(report.obstacles.iter().all(|sentence| !sentence.contains("XDP")), "{:?}", report.obstacles);
    assert!(lab.connects_soon());
    lab.near_end(&lab.attach("w0", &Take::all()), 0).close();
}
