//! DPDK ports on virtual devices. DPDK starts once per process, so every test re-executes itself in its own
//! process, with ordinary memory. None needs a NIC or huge pages.
#![cfg(feature = "dpdk")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use weir_packet::{Batch, Bits, Frame, Pools, Port};
use weir_port::LinkState;
use weir_port::dpdk::{DpdkError, DpdkLink, DpdkOptions, DpdkPort, Eal, EalMemory, EalOptions, MbufPool};

/// A test that takes longer than this hangs.
const TIME_LIMIT: Duration = Duration::from_secs(180);

/// The environment variable that tells a process which test to run.
const ALONE: &str = "WEIR_DPDK_TEST";

/// Runs `test` in its own process, started by `program` and its arguments (if empty: directly).
fn alone_under(program: &[&str], name: &str, test: impl FnOnce(Eal)) {
    if std::env::var(ALONE).is_ok_and(|wanted| wanted == name) {
        let options = EalOptions { memory: EalMemory::NoHuge(96), ..EalOptions::default() };
        return test(Eal::init(&options).unwrap());
    }
    let own = std::env::current_exe().unwrap();
    let mut words = program.iter().map(|&word| PathBuf::from(word)).chain([own]);
    let mut command = Command::new(words.next().unwrap());
    command.args(words).args(["--exact", name, "--nocapture"]).env(ALONE, name);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > TIME_LIMIT {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let said = std::io::read_to_string(child.stdout.take().unwrap()).unwrap();
    assert!(status.success() && said.contains("1 passed"), "{name}: {status}\n{said}");
}

fn alone(name: &str, test: impl FnOnce(Eal)) {
    alone_under(&[], name, test);
}

fn pool(eal: Eal, frames: u32) -> (MbufPool, Pools) {
    let pool = MbufPool::new(eal, frames).unwrap();
    let mut pools = Pools::new();
    pools.add(pool.share());
    (pool, pools)
}

fn open(eal: Eal, device: &str, pool: &MbufPool) -> DpdkPort {
    DpdkPort::open(eal, &DpdkOptions::new(device, device), pool).unwrap().remove(0)
}

/// Returns a frame whose every byte depends on its number and position.
fn bytes(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|place| (number * 31 + place * 7) as u8).collect()
}

fn frame(pools: &mut Pools, bytes: &[u8]) -> Frame {
    let mut frame = pools.first().take().unwrap();
    frame.fill(bytes).unwrap();
    frame
}

fn return_all(pools: &mut Pools, batch: &mut Batch) {
    for slot in Bits(batch.mask()) {
        pools.give(batch.take(slot));
    }
    batch.clear();
}

/// Sends a whole batch; frames that the port refuses return to the pool. Returns how many were accepted.
fn send(port: &mut DpdkPort, pools: &mut Pools, batch: &mut Batch) -> u64 {
    let all = batch.mask();
    let accepted = port.transmit(pools, batch, all);
    return_all(pools, batch);
    u64::from(accepted.count_ones())
}

fn assert_all_home(pools: &mut Pools, pool: &MbufPool) {
    assert_eq!(pools.first().available(), pool.frames() as usize, "a frame leaked");
}

/// A file in a directory named after the process id.
fn file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("weir-dpdk-{}-{name}", std::process::id()))
}

fn write_pcap(path: &Path, frames: &[Vec<u8>]) {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let mut text = words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65535, 1]);
    for frame in frames {
        text.extend(words(&[0, 0, frame.len() as u32, frame.len() as u32]));
        text.extend(frame);
    }
    std::fs::write(path, text).unwrap();
}

fn read_pcap(path: &Path) -> Vec<Vec<u8>> {
    let text = std::fs::read(path).unwrap();
    let (mut rest, mut frames) = (&text[24..], Vec::new());
    while let Some((header, more)) = rest.split_at_checked(16) {
        let length = u32::from_le_bytes(header[8..12].try_into().unwrap()) as usize;
        frames.push(more[..length].to_vec());
        rest = &more[length..];
    }
    frames
}

#[test]
fn ring_gives_back_what_was_sent_in_order() {
    alone("ring_gives_back_what_was_sent_in_order", |eal| {
        let (pool, mut pools) = pool(eal, 4096);
        let mut port = open(eal, "net_ring0", &pool);
        assert_eq!(port.mode(), "net_ring");
        assert!(!port.has_kernel_path());
        let mut batch = Batch::new();
        let lengths = [60, 61, 64, 1500, 1, 1920];
        for (number, &length) in lengths.iter().cycle().take(64).enumerate() {
            batch.push(frame(&mut pools, &bytes(number, length))).unwrap();
        }
        // Every other frame, then the rest.
        let odd = 0xaaaa_aaaa_aaaa_aaaa;
        assert_eq!(port.transmit(&mut pools, &mut batch, odd), odd);
        assert_eq!(port.transmit(&mut pools, &mut batch, !odd), !odd);
        batch.clear();
        port.receive(&mut pools, &mut batch);
        let order: Vec<usize> = Bits(odd).chain(Bits(!odd)).collect();
        assert_eq!(batch.len(), 64);
        for (slot, &number) in order.iter().enumerate() {
            assert_eq!(batch.frame(slot).bytes(), bytes(number, lengths[number % lengths.len()]));
            assert_eq!(batch.frame(slot).room().headroom, weir_packet::HEADROOM);
        }
        let counted = port.statistics();
        assert_eq!((counted.transmitted, counted.received, counted.held), (64, 64, 0));
        assert_eq!(counted.transmitted_bytes, counted.received_bytes);
        return_all(&mut pools, &mut batch);
        drop(port);
        assert_all_home(&mut pools, &pool);
    });
}

#[test]
fn what_a_full_ring_refuses_stays_with_the_caller() {
    alone("what_a_full_ring_refuses_stays_with_the_caller", |eal| {
        let (pool, mut pools) = pool(eal, 4096);
        let mut port = open(eal, "net_ring0", &pool);
        let mut batch = Batch::new();
        let mut sent = 0;
        let refused = loop {
            (0..64).for_each(|number| batch.push(frame(&mut pools, &bytes(number, 60 + number))).unwrap());
            let list = 0x7fff_ffff_ffff_fff1;
            let accepted = port.transmit(&mut pools, &mut batch, list);
            sent += u64::from(accepted.count_ones());
            let left: Vec<usize> = Bits(list & !accepted).collect();
            assert!(left.iter().all(|&slot| batch.frame(slot).bytes() == bytes(slot, 60 + slot)));
            assert!(
                accepted & !list == 0 && left.iter().all(|&slot| accepted >> slot == 0),
                "the first ones"
            );
            return_all(&mut pools, &mut batch);
            if !left.is_empty() {
                break left.len();
            }
        };
        assert!(refused > 0 && sent > 500);
        assert_eq!(port.statistics().transmitted, sent);
        // A port that is closed with frames in its ring returns them.
        drop(port);
        assert_all_home(&mut pools, &pool);
    });
}

#[test]
fn null_receives_and_swallows_without_a_leak() {
    alone("null_receives_and_swallows_without_a_leak", |eal| {
        let (pool, mut pools) = pool(eal, 8192);
        let options = DpdkOptions { queues: 2, ..DpdkOptions::new("null", "net_null0,size=90") };
        let ports = DpdkPort::open(eal, &options, &pool).unwrap();
        assert_eq!(ports.len(), 2);
        assert_eq!(ports[0].spread(), 128, "net_null takes a key and a table, and hashes nothing");
        let workers = ports.into_iter().map(|mut port| {
            let share = pool.share();
            std::thread::spawn(move || {
                let _known = eal.register_thread().unwrap();
                let (mut pools, mut batch) = (Pools::new(), Batch::new());
                pools.add(share);
                for _ in 0..100 {
                    port.receive(&mut pools, &mut batch);
                    assert!(batch.frames().iter().all(|frame| frame.len() == 90));
                    assert_eq!(send(&mut port, &mut pools, &mut batch), 64);
                }
                port.statistics()
            })
        });
        for worker in workers.collect::<Vec<_>>() {
            let counted = worker.join().unwrap();
            assert_eq!((counted.received, counted.received_bytes), (6400, 6400 * 90));
            assert_eq!((counted.transmitted, counted.transmitted_bytes), (6400, 6400 * 90));
        }
        assert_all_home(&mut pools, &pool);
    });
}

#[test]
fn frames_of_9000_bytes_fit_mbufs_made_for_them() {
    alone("frames_of_9000_bytes_fit_mbufs_made_for_them", |eal| {
        let pool = MbufPool::with_room(eal, 1023, 9022).unwrap();
        let mut pools = Pools::new();
        pools.add(pool.share());
        let options =
            DpdkOptions { mtu: 9000, descriptors: 128, ..DpdkOptions::new("null", "net_null0,size=9014") };
        let mut port = DpdkPort::open(eal, &options, &pool).unwrap().remove(0);
        let mut batch = Batch::new();
        port.receive(&mut pools, &mut batch);
        assert_eq!(batch.len(), 64);
        assert!(batch.frames().iter().all(|frame| frame.len() == 9014 && frame.room().headroom >= 128));
        assert_eq!(send(&mut port, &mut pools, &mut batch), 64);
        drop(port);
        assert_all_home(&mut pools, &pool);
    });
}

/// Device arguments of one end of a memif link; the other end has the same number.
fn memif(role: &str, device: u32, socket: &Path) -> String {
    format!("net_memif{device},role={role},id=0,socket-abstract=no,socket={}", socket.display())
}

/// Waits until a link is up or down. A DPDK thread informs one end about the other through a socket.
fn wait_for_link(link: &DpdkLink, up: bool) -> LinkState {
    let start = Instant::now();
    while link.state().up != up {
        assert!(
            start.elapsed() < TIME_LIMIT / 4,
            "the link does not become {}",
            if up { "up" } else { "down" }
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    link.state()
}

#[test]
fn a_wire_in_memory_is_up_while_both_ends_are_there() {
    alone("a_wire_in_memory_is_up_while_both_ends_are_there", |eal| {
        let (pool, mut pools) = pool(eal, 8192);
        let socket = file("memif");
        let server = open(eal, &memif("server", 0, &socket), &pool);
        let link = server.link();
        assert_eq!(link.state(), LinkState::default(), "nothing is attached at the other end");
        // The driver reports this speed, which is meaningless.
        let speed_bps = Some(100_000_000_000);
        for _ in 0..2 {
            let client = open(eal, &memif("client", 1, &socket), &pool);
            assert_eq!(wait_for_link(&link, true), LinkState { up: true, speed_bps });
            let other = client.link();
            assert_eq!(wait_for_link(&other, true), LinkState { up: true, speed_bps });
            drop(client);
            assert_eq!(wait_for_link(&link, false), LinkState::default());
            assert_eq!(other.state(), LinkState::default(), "a closed port is down");
        }
        drop(server);
        assert_eq!(link.state(), LinkState::default());
        assert_all_home(&mut pools, &pool);
        let _ = std::fs::remove_file(socket);
    });
}

#[test]
fn what_has_no_other_end_is_up() {
    alone("what_has_no_other_end_is_up", |eal| {
        let (pool, _pools) = pool(eal, 8192);
        for device in ["net_null0", "net_ring0"] {
            let port = open(eal, device, &pool);
            assert!(port.link().state().up, "{device}");
        }
    });
}

/// As in the daemon: a worker reads counters and closes the port while another thread keeps querying its
/// link.
#[test]
fn a_link_may_be_asked_about_while_its_port_is_used_and_closed() {
    alone("a_link_may_be_asked_about_while_its_port_is_used_and_closed", |eal| {
        let (pool, _pools) = pool(eal, 8192);
        for _ in 0..50 {
            let port = open(eal, "net_null0,no-rx=1", &pool);
            let link = port.link();
            let asker = std::thread::spawn(move || {
                let mut asked = 0_u64;
                while link.state().up {
                    asked += 1;
                }
                asked
            });
            (0..100).for_each(|_| assert_eq!(port.statistics().starved, 0));
            drop(port);
            asker.join().unwrap();
        }
    });
}

#[test]
fn an_empty_pool_receives_nothing_and_recovers() {
    alone("an_empty_pool_receives_nothing_and_recovers", |eal| {
        let (pool, mut pools) = pool(eal, 1023);
        let mut port = open(eal, "net_null0", &pool);
        let mut batch = Batch::new();
        let all: Vec<Frame> = std::iter::from_fn(|| pools.first().take()).collect();
        assert_eq!((all.len(), pools.first().available()), (1023, 0));
        port.receive(&mut pools, &mut batch);
        assert!(batch.is_empty());
        all.into_iter().for_each(|frame| pools.give(frame));
        port.receive(&mut pools, &mut batch);
        assert_eq!(batch.len(), 64);
        return_all(&mut pools, &mut batch);
        drop(port);
        assert_all_home(&mut pools, &pool);
    });
}

#[test]
fn a_frame_of_several_segments_is_refused_and_counted() {
    alone("a_frame_of_several_segments_is_refused_and_counted", |eal| {
        let (pool, mut pools) = pool(eal, 4096);
        let recording = file("segments.pcap");
        write_pcap(&recording, &[bytes(1, 60), bytes(2, 3000), bytes(3, 2048), bytes(4, 61)]);
        let mut port = open(eal, &format!("net_pcap0,rx_pcap={}", recording.display()), &pool);
        let mut batch = Batch::new();
        port.receive(&mut pools, &mut batch);
        std::fs::remove_file(recording).unwrap();
        let got: Vec<&[u8]> = batch.frames().iter().map(Frame::bytes).collect();
        assert_eq!(got, [bytes(1, 60), bytes(3, 2048), bytes(4, 61)]);
        let counted = port.statistics();
        assert_eq!((counted.received, counted.oversize), (4, 1));
        return_all(&mut pools, &mut batch);
        drop(port);
        assert_all_home(&mut pools, &pool);
    });
}

#[test]
fn a_header_pushed_in_front_reaches_the_wire() {
    alone("a_header_pushed_in_front_reaches_the_wire", |eal| {
        let (pool, mut pools) = pool(eal, 4096);
        let (recording, sent) = (file("in.pcap"), file("out.pcap"));
        let frames: Vec<Vec<u8>> = (0..200).map(|number| bytes(number, 60 + number)).collect();
        write_pcap(&recording, &frames);
        let mut input = open(eal, &format!("net_pcap0,rx_pcap={}", recording.display()), &pool);
        let mut output = open(eal, &format!("net_pcap1,tx_pcap={}", sent.display()), &pool);
        let (mut batch, mut total) = (Batch::new(), 0);
        while total < 200 {
            input.receive(&mut pools, &mut batch);
            for slot in 0..batch.len() {
                batch.frame_mut(slot).prepend(50).unwrap()[..50].fill(0xee);
                batch.frame_mut(slot).trim_front(3).unwrap();
            }
            total += send(&mut output, &mut pools, &mut batch);
        }
        drop((input, output));
        let wanted: Vec<Vec<u8>> =
            frames.iter().map(|frame| [&[0xee; 47], frame.as_slice()].concat()).collect();
        assert_eq!(read_pcap(&sent), wanted);
        std::fs::remove_file(recording).unwrap();
        std::fs::remove_file(sent).unwrap();
        assert_all_home(&mut pools, &pool);
    });
}

#[test]
fn mistakes_are_answered_in_a_sentence() {
    alone("mistakes_are_answered_in_a_sentence", |eal| {
        let (pool, _) = pool(eal, 1023);
        let open = |device: &str| DpdkPort::open(eal, &DpdkOptions::new("p", device), &pool);
        let refusal = |device: &str| open(device).err().unwrap().to_string();
        let unknown = refusal("net_foo0");
        assert!(unknown.starts_with("no DPDK driver supports device `net_foo0`"), "{unknown}");
        assert!(refusal("").contains("no DPDK driver supports"));
        let missing = refusal("net_pcap0,rx_pcap=/does/not/exist.pcap");
        assert!(missing.contains("/does/not/exist.pcap: No such file or directory"), "{missing}");
        let misspelt = refusal("net_null0,sizze=3");
        assert!(misspelt.contains("check the arguments after its name"), "{misspelt}");
        let held = open("net_null0").unwrap();
        assert!(matches!(open("net_null0").err(), Some(DpdkError::InUse(device)) if device == "net_null0"));
        drop(held);
        assert!(open("net_null0").is_ok(), "a closed device can be opened again");
        let queues = DpdkOptions { queues: 5000, ..DpdkOptions::new("p", "net_null1") };
        assert!(matches!(
            DpdkPort::open(eal, &queues, &pool).err(),
            Some(DpdkError::Queues { wanted: 5000, .. })
        ));
        let vast = MbufPool::new(eal, 10_000_000).err().unwrap().to_string();
        assert!(vast.starts_with("DPDK has no memory for a pool of 10000000 frames"), "{vast}");
        assert!(matches!(Eal::init(&EalOptions::default()), Err(DpdkError::AlreadyStarted)));
    });
}

#[test]
fn a_frame_of_another_pool_is_not_sent() {
    alone("a_frame_of_another_pool_is_not_sent", |eal| {
        let (pool, mut pools) = pool(eal, 1023);
        let mut port = open(eal, "net_null0", &pool);
        let mut batch = Batch::new();
        batch.push(Pools::region(1).first().take().unwrap()).unwrap();
        let send = std::panic::AssertUnwindSafe(|| port.transmit(&mut pools, &mut batch, 1));
        let message = *std::panic::catch_unwind(send).unwrap_err().downcast::<&str>().unwrap();
        assert_eq!(message, "a frame goes to a port on its own pool");
    });
}

/// Runs in its own network namespace, so that the TAP does not disturb the host.
#[test]
fn a_tap_leads_to_the_hosts_stack_and_back() {
    if !weir_bed::is_root() {
        return;
    }
    alone_under(&["unshare", "--net"], "a_tap_leads_to_the_hosts_stack_and_back", |eal| {
        let (pool, mut pools) = pool(eal, 8191);
        let kernel = Some("net_tap0,iface=weirtap".into());
        let options = DpdkOptions { kernel, ..DpdkOptions::new("wire", "net_ring0") };
        let mut port = DpdkPort::open(eal, &options, &pool).unwrap().remove(0);
        assert!(port.has_kernel_path());
        let mut batch = Batch::new();
        (0..10).for_each(|number| batch.push(frame(&mut pools, &bytes(number, 100))).unwrap());
        let before = tap_received();
        assert_eq!(port.to_kernel(&mut pools, &mut batch, 0x3f0), 0x3f0);
        assert_eq!(port.statistics().to_kernel, 6);
        assert_eq!(tap_received() - before, 6);
        return_all(&mut pools, &mut batch);
        // The host asks who has 198.18.7.2; the request appears on the wire, which here leads back to us.
        let added =
            Command::new("ip").args(["addr", "add", "198.18.7.1/24", "dev", "weirtap"]).status().unwrap();
        assert!(added.success());
        let socket = std::net::UdpSocket::bind("198.18.7.1:0").unwrap();
        socket.send_to(b"hello", "198.18.7.2:9").unwrap();
        let start = Instant::now();
        let is_question = |frame: &Frame| frame.bytes().get(12..14) == Some(&[0x08, 0x06]);
        let mut asked = false;
        while !asked && start.elapsed() < TIME_LIMIT / 4 {
            port.flush(&mut pools);
            port.receive(&mut pools, &mut batch);
            asked = batch.frames().iter().any(is_question);
            return_all(&mut pools, &mut batch);
        }
        assert!(asked, "{:?}", port.extra_statistics());
        assert!(port.extra_statistics().iter().any(|&(name, count)| name == "from_kernel" && count > 0));
        drop(port);
        assert_all_home(&mut pools, &pool);
    });
}

/// Returns the number of frames that the host received from the TAP. /sys shows the namespace in which it was
/// mounted; /proc/net follows the thread.
fn tap_received() -> u64 {
    let table = std::fs::read_to_string("/proc/self/net/dev").unwrap();
    let line = table.lines().find_map(|line| line.trim().strip_prefix("weirtap:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
