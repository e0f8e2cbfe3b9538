//! Sockets pass from one port to another, as between two processes, while frames are sent and received.

use std::fs::File;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use weir_bpf::Take;
use weir_packet::{Batch, Pool, Pools, Port, RegionPool};
use weir_port::xdp::{Home, Left, Rings, XdpConfig, XdpInterface};

use super::lab::{End, Lab, RINGS, SOMEBODY, W0, attach, config, extra, service, udp};

/// The most frames that may be in flight or wait: fewer than the ring of a veth or a socket holds.
const WINDOW: u32 = 200;

/// How long the test waits for frames that must arrive, on a busy machine.
const LONG: Duration = Duration::from_secs(60);

fn end_on(interface: &XdpInterface, pool: RegionPool) -> End {
    let mut pools = Pools::new();
    let pool = pools.add(Pool::Region(pool));
    let port = interface.open_queue(0, &mut pools, pool).unwrap();
    End { port, pools, pool }
}

fn shareable() -> RegionPool {
    let pool = RegionPool::shareable(RINGS.chunks() + 64, 2048);
    assert!(pool.file().is_some(), "in-memory files exist here");
    pool
}

/// Prepares another instance that adopts the sockets and the memory that the old one offers.
fn heir(lab: &Lab, old: &XdpInterface, wanted: XdpConfig) -> (XdpInterface, End, Option<String>) {
    let new = lab.weir(|| XdpInterface::prepare(wanted)).unwrap();
    let mut offers = old.offers();
    assert_eq!(offers.len(), 1);
    let (offer, memory) = offers.remove(0);
    new.offer(vec![offer]);
    let pool = RegionPool::adopt(memory.file, memory.chunks, memory.chunk as usize).unwrap();
    let mut pools = Pools::new();
    let pool = pools.add(Pool::Region(pool));
    let (port, refused) = lab.weir(|| new.queues().adopt(0, &mut pools, pool)).unwrap();
    (new, End { port, pools, pool }, refused)
}

/// Lets the new instance continue with the sockets that the old one has left open.
fn take_over(lab: &Lab, old: &XdpInterface, (new, next): (&mut XdpInterface, &End), left: Vec<Left>) {
    let mut handover = old.hand_over().unwrap();
    new.keep_adopted(&left);
    assert_eq!(new.bring_home(next.pool, Home::new(RINGS.chunks() + 64, &left).unwrap()), None);
    handover.left = left;
    lab.weir(|| new.take_over(handover).and_then(|()| new.replace())).unwrap();
}

/// Receives until `count` frames have arrived, and appends their numbers to `numbers`.
fn receive_until(end: &mut End, count: usize, numbers: &mut Vec<u32>, progress: &AtomicU32) {
    let patience = Instant::now() + LONG;
    while numbers.len() < count && Instant::now() < patience {
        let mut batch = Batch::new();
        end.port.receive(&mut end.pools, &mut batch);
        for slot in weir_packet::Bits(batch.mask()) {
            let frame = batch.take(slot);
            numbers.push(u32::from_be_bytes(frame.bytes()[56..60].try_into().unwrap()));
            end.pools.give(frame);
        }
        progress.store(numbers.len() as u32, Ordering::Release);
        end.port.flush(&mut end.pools);
    }
}

/// Sends `all` numbered frames, keeping at most a window of them in flight.
fn send_all(mut far: End, all: u32, progress: &AtomicU32, sent: &AtomicU32) -> End {
    let patience = Instant::now() + 2 * LONG;
    for first in (0..all).step_by(10) {
        while first + 10 > progress.load(Ordering::Acquire) + WINDOW && Instant::now() < patience {
            std::thread::yield_now();
        }
        far.send(&(first..first + 10).map(|number| udp(W0, 5000, number)).collect::<Vec<_>>());
        sent.store(first + 10, Ordering::Release);
    }
    far
}

fn wait_until_sent(count: u32, sent: &AtomicU32) {
    let patience = Instant::now() + LONG;
    while sent.load(Ordering::Acquire) <= count && Instant::now() < patience {
        std::thread::yield_now();
    }
}

/// Puts a frame into the transmit ring without telling the kernel.
fn leave_in_the_ring(end: &mut End, number: u32) {
    let mut frame = end.pools.first().take().unwrap();
    frame.fill(&udp(SOMEBODY, 6000, number)).unwrap();
    let mut batch = Batch::new();
    batch.push(frame).unwrap();
    assert_eq!(end.port.transmit(&mut end.pools, &mut batch, 1), 1);
}

#[test]
fn each_frame_arrives_once_while_a_socket_passes_from_one_to_the_next() {
    const ALL: u32 = 4000;
    const TIMES: u32 = 3;
    let Some(lab) = Lab::new(1, 1) else { return };
    let (lab, progress, sent) = (&lab, AtomicU32::new(0), AtomicU32::new(0));
    let mut old = lab.attach("w0", &service(5000));
    let mut near = lab.weir(|| end_on(&old, shareable()));
    let far = lab.far_end("f0", 0);
    let mut numbers = Vec::new();
    let mut far = std::thread::scope(|scope| {
        let sender = scope.spawn(|| send_all(far, ALL, &progress, &sent));
        for time in 1..=TIMES {
            receive_until(&mut near, (time * 1000) as usize, &mut numbers, &progress);
            let before = near.port.statistics();
            let (mut new, mut next, refused) = heir(lab, &old, config("w0", &service(5000)));
            assert_eq!(refused, None);
            assert_eq!((new.adopted(), next.pools.first().available()), (vec![0], 0));
            receive_until(&mut near, (time * 1000) as usize + 20, &mut numbers, &progress);
            // Wait until the window is full: some frames are in the transmit ring, and the worker holds
            // others.
            wait_until_sent(numbers.len() as u32 + WINDOW - 10, &sent);
            (0..20).for_each(|number| leave_in_the_ring(&mut near, time * 100 + number));
            let with_the_worker = [(); 3].map(|()| near.pools.first().take().unwrap());
            old.leave_open(&[0]);
            assert_eq!(near.port.close(&mut near.pools), 0);
            let after = near.port.statistics();
            assert_eq!((after.held, after.transmitted - before.transmitted, after.lost_before), (0, 20, 0));
            let left = old.left();
            assert_eq!((left.len(), left[0].held), (1, 20));
            assert_eq!(old.left(), [], "once");
            with_the_worker.into_iter().for_each(|frame| near.pools.give(frame));
            take_over(lab, &old, (&mut new, &next), left);
            assert_eq!(old.counters().held_back, 0);
            drop((std::mem::replace(&mut old, new), std::mem::replace(&mut near, next)));
        }
        receive_until(&mut near, ALL as usize, &mut numbers, &progress);
        sender.join().unwrap()
    });
    assert_eq!(numbers, (0..ALL).collect::<Vec<_>>(), "each once, in order");
    let sent = far.receive(20 * TIMES as usize);
    let expected = (1..=TIMES).flat_map(|time| (0..20).map(move |number| time * 100 + number));
    assert_eq!(sent, expected.map(|number| udp(SOMEBODY, 6000, number)).collect::<Vec<_>>());
    let statistics = near.port.statistics();
    assert_eq!((statistics.transmitted, statistics.held, statistics.lost_before), (0, 0, 0));
    assert_eq!(extra(&near.port, "wrong_descriptors") + extra(&near.port, "rx_invalid_descs"), 0);
    near.check();
    near.send(&[udp(SOMEBODY, 6000, 7)]);
    assert_eq!((far.receive(1).len(), near.port.statistics().transmitted), (1, 1));
    near.close();
    far.close();
    drop(old);
    lab.attach("w0", &Take::default());
    assert!(lab.connects_soon(), "none leaves anything behind");
}

#[test]
fn a_socket_that_does_not_fit_is_opened_anew() {
    let Some(lab) = Lab::new(1, 1) else { return };
    let old = lab.attach("w0", &service(5000));
    let mut near = lab.weir(|| end_on(&old, shareable()));
    let mut far = lab.far_end("f0", 0);
    let wanted = XdpConfig { rings: Rings { fill: 256, ..RINGS }, ..config("w0", &service(5000)) };
    let mut new = lab.weir(|| XdpInterface::prepare(wanted)).unwrap();
    assert!(new.queues().offered(0).is_err(), "nothing is offered yet");
    new.offer(old.offers().into_iter().map(|(offer, _)| offer).collect());
    assert!(new.queues().offered(0).unwrap_err().contains("rings"));
    let mut next = lab.near_end(&new, 0);
    assert_eq!(new.adopted(), []);
    far.send(&[udp(W0, 5000, 1)]);
    assert_eq!(near.receive(1), [udp(W0, 5000, 1)]);
    let handover = old.hand_over().unwrap();
    near.close();
    lab.weir(|| new.take_over(handover).and_then(|()| new.replace())).unwrap();
    next.receives_nothing();
    far.send(&[udp(W0, 5000, 2)]);
    assert_eq!(next.receive(1), [udp(W0, 5000, 2)]);
    next.close();
    far.close();
}

#[test]
fn what_is_offered_and_not_left_is_opened_anew_on_the_same_memory() {
    let Some(lab) = Lab::new(1, 1) else { return };
    let old = lab.attach("w0", &service(5000));
    let near = lab.weir(|| end_on(&old, shareable()));
    let mut far = lab.far_end("f0", 0);
    let (mut new, mut next, refused) = heir(&lab, &old, config("w0", &service(5000)));
    assert_eq!((refused, new.adopted()), (None, vec![0]));
    // The old process closes the socket although it should have left it open.
    near.close();
    assert_eq!(old.left(), []);
    take_over(&lab, &old, (&mut new, &next), Vec::new());
    next.receives_nothing();
    far.send(&[udp(W0, 5000, 1)]);
    assert_eq!(next.receive(1), [udp(W0, 5000, 1)]);
    next.close();
    far.close();
}

#[test]
fn what_is_no_socket_of_this_kind_is_refused_and_what_is_on_the_heap_not_offered() {
    let Some(lab) = Lab::new(1, 1) else { return };
    let old = lab.attach("w0", &service(5000));
    let near = lab.near_end(&old, 0);
    assert_eq!(old.offers().len(), 0, "its memory cannot be mapped");
    near.close();
    let near = lab.weir(|| end_on(&old, shareable()));
    let new = lab.weir(|| XdpInterface::prepare(config("w0", &service(5000)))).unwrap();
    let (mut offer, memory) = old.offers().remove(0);
    offer.socket = File::open("/dev/null").unwrap().into();
    new.offer(vec![offer]);
    let mut pools = Pools::new();
    let pool = RegionPool::adopt(memory.file, memory.chunks, memory.chunk as usize).unwrap();
    let pool = pools.add(Pool::Region(pool));
    let (_port, refused) = lab.weir(|| new.queues().adopt(0, &mut pools, pool)).unwrap();
    assert!(refused.is_some_and(|why| why.contains("rings cannot be mapped")));
    assert_eq!(new.adopted(), []);
    let far = lab.far(|| attach("f0", &Take::default(), None)).unwrap();
    assert_eq!(far.offers().len(), 0, "there is no socket");
    near.close();
}
