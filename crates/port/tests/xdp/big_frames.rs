//! Frames larger than a page, which the kernel passes in pieces: between ports, and with the kernel's own
//! sockets, mixed with small ones.

use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::Instant;

use weir_bpf::Take;
use weir_packet::{Batch, Bits, Port};
use weir_port::xdp::{Mode, interfaces, obstacles};

use super::lab::{End, Lab, PATIENCE, SOMEBODY, attach, extra, run, service, udp};

const CHUNK: usize = 16384;
const MODES: [Mode; 2] = [Mode::NativeCopy, Mode::GenericCopy];

/// A lab whose interfaces have this MTU.
fn lab(mtu: u32) -> Option<Lab> {
    let lab = Lab::new(1, 1)?;
    for (netns, end) in [(&lab.far, "f0"), (&lab.weir, "w0")] {
        run(&format!("ip -n {netns} link set {end} mtu {mtu}"));
    }
    Some(lab)
}

/// Opens ports at both ends, weir's in this mode.
fn both(lab: &Lab, mode: Mode, chunk: usize) -> (End, End) {
    let take = Take { promiscuous: true, ..Take::all() };
    let open = |name, mode| End::of_chunks(&attach(name, &take, Some(mode)).unwrap(), 0, chunk);
    (lab.weir(|| open("w0", mode)), lab.far(|| open("f0", Mode::NativeCopy)))
}

/// A frame of this length with a number, and content that depends on it.
fn frame(length: usize, number: u32) -> Vec<u8> {
    let mut frame = udp(SOMEBODY, 1, number);
    let content = (frame.len()..length).map(|at| (at * 7 + at / 256) as u8 ^ number as u8);
    frame.extend(content.collect::<Vec<_>>());
    frame
}

#[test]
fn frames_of_mtu_9000_pass_both_ways_among_small_ones() {
    for mode in MODES {
        let Some(lab) = lab(9000) else { return };
        let (mut near, mut far) = both(&lab, mode, CHUNK);
        assert_eq!(near.port.xdp_mode(), Some(mode));
        let lengths = [60, 9014, 1514, 3840, 3841, 4000, 60, 7680, 7681, 9014, 9018];
        let frames: Vec<_> = (0..330).map(|at| frame(lengths[at % lengths.len()], at as u32)).collect();
        for part in frames.chunks(50) {
            far.send(part);
            assert_eq!(near.receive(part.len()), part);
            near.send(part);
            assert_eq!(far.receive(part.len()), part);
        }
        let bytes: usize = frames.iter().map(Vec::len).sum();
        let longer = frames.iter().filter(|frame| frame.len() > 3840);
        let behind: usize = longer.clone().map(|frame| frame.len() - 3840).sum();
        for end in [&near, &far] {
            let statistics = end.port.statistics();
            assert_eq!((statistics.received, statistics.received_bytes), (330, bytes as u64));
            assert_eq!((statistics.transmitted, statistics.transmitted_bytes), (330, bytes as u64));
            assert_eq!((statistics.held, statistics.oversize, statistics.lost_before), (0, 0, 0));
            assert_eq!(extra(&end.port, "frames_joined"), longer.clone().count() as u64);
            assert_eq!(extra(&end.port, "bytes_joined"), behind as u64);
            assert_eq!(extra(&end.port, "tx_invalid_descs") + extra(&end.port, "wrong_descriptors"), 0);
        }
        near.close();
        far.close();
    }
}

/// Returns each frame that arrives at a port to its sender, until `count` frames have arrived.
fn echo(end: &mut End, count: usize) {
    let (mut batch, mut seen) = (Batch::new(), 0);
    let until = Instant::now() + PATIENCE;
    while seen < count && Instant::now() < until {
        end.port.receive(&mut end.pools, &mut batch);
        for slot in Bits(batch.mask()) {
            let bytes = batch.frame_mut(slot).bytes_mut();
            for (one, other, length) in [(0, 6, 6), (26, 30, 4), (34, 36, 2)] {
                (0..length).for_each(|at| bytes.swap(one + at, other + at));
            }
        }
        seen += batch.len();
        let list = batch.mask();
        assert_eq!(end.port.transmit(&mut end.pools, &mut batch, list), list);
        end.port.flush(&mut end.pools);
        end.check();
        batch.clear();
    }
    while end.port.statistics().held > 0 && Instant::now() < until {
        end.port.flush(&mut end.pools);
    }
}

#[test]
fn datagrams_of_the_kernels_sockets_come_back_as_they_were() {
    const COUNT: usize = 40;
    for mode in MODES {
        let Some(lab) = lab(9000) else { return };
        run(&format!("ip -n {} neigh add 10.0.0.1 lladdr 02:00:00:00:00:00 dev f0", lab.far));
        let interface = lab.weir(|| attach("w0", &service(5000), Some(mode))).unwrap();
        let mut near = lab.weir(|| End::of_chunks(&interface, 0, CHUNK));
        let socket = lab.far(|| UdpSocket::bind("10.0.0.2:4000")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.connect("10.0.0.1:5000").unwrap();
        let echoed = std::thread::spawn(move || {
            echo(&mut near, COUNT);
            near
        });
        let mut buffer = [0; 10_000];
        for number in 0..COUNT {
            let length = [18, 8972, 1000, 4000][number % 4];
            let sent: Vec<u8> = (0..length).map(|at| (at * 3 + at / 200 + number) as u8).collect();
            socket.send(&sent).unwrap();
            let got = socket.recv(&mut buffer).unwrap_or_else(|error| panic!("{mode} {number}: {error}"));
            assert!(buffer[..got] == sent[..], "datagram {number} of {length} bytes in {mode}");
        }
        let near = echoed.join().unwrap();
        let statistics = near.port.statistics();
        assert_eq!((statistics.received, statistics.transmitted), (COUNT as u64, COUNT as u64));
        near.close();
    }
}

/// Makes the kernel leave segmentation of a socket's datagrams to the interface.
fn segments(socket: &UdpSocket, bytes: i32) {
    const SOL_UDP: i32 = 17;
    const UDP_SEGMENT: i32 = 103;
    // SAFETY: the option's value is an integer.
    let done = unsafe {
        let length = size_of::<i32>() as u32;
        libc::setsockopt(socket.as_raw_fd(), SOL_UDP, UDP_SEGMENT, (&raw const bytes).cast(), length)
    };
    assert_eq!(done, 0);
}

/// A native program on a veth makes the kernel segment what the peer sends; a generic one does not.
#[test]
fn frames_longer_than_any_mtu_are_dropped_by_name() {
    for chunk in [2048, 4096, CHUNK] {
        let Some(lab) = lab(1500) else { return };
        run(&format!("ip -n {} neigh add 10.0.0.1 lladdr 02:00:00:00:00:00 dev f0", lab.far));
        let interface = lab.weir(|| attach("w0", &service(5000), Some(Mode::GenericCopy))).unwrap();
        let mut near = lab.weir(|| End::of_chunks(&interface, 0, chunk));
        run(&format!("ip netns exec {} ethtool -K f0 tx on tso on gso on tx-udp-segmentation on", lab.far));
        let socket = lab.far(|| UdpSocket::bind("10.0.0.2:4000")).unwrap();
        socket.connect("10.0.0.1:5000").unwrap();
        segments(&socket, 1400);
        socket.send(&[7; 28_000]).unwrap();
        segments(&socket, 0);
        socket.send(&[8; 100]).unwrap();
        assert_eq!(near.receive(1)[0].len(), 142);
        let statistics = near.port.statistics();
        let bytes = 142 + 28_042;
        assert_eq!((statistics.received, statistics.received_bytes, statistics.oversize), (2, bytes, 1));
        assert_eq!(statistics.lost_before, 0);
        near.close();
    }
    let said = weir_packet::DropReason::Oversize.explanation();
    assert!(said.contains("`ethtool -K DEV tso off gso off gro off lro off`"), "{said}");
}

#[test]
fn the_report_asks_for_an_mtu_that_the_buffers_have() {
    let Some(lab) = lab(9000) else { return };
    let mtu = |sentences: Vec<String>| sentences.into_iter().find(|sentence| sentence.contains("MTU"));
    assert_eq!(lab.weir(|| mtu(obstacles("w0", CHUNK))), None);
    let small = lab.weir(|| mtu(obstacles("w0", 2048))).unwrap();
    assert!(small.contains("`mtu: 9000` in the configuration (9216 at most)"), "{small}");
    let report = lab.weir(|| interfaces().unwrap()).into_iter().find(|report| report.name == "w0").unwrap();
    assert!(report.obstacles.iter().any(|sentence| sentence.contains("MTU 9000")), "{:?}", report.obstacles);
}
