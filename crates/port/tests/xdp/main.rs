//! AF_XDP ports on real veth pairs, in private network namespaces ([`lab`]). Needs root.

mod big_frames;
mod lab;
mod succession;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lab::{End, Lab, PATIENCE, RINGS, SOMEBODY, W0, attach, config, extra, pools, run, service, udp};
use weir_bed::Namespace;
use weir_bpf::{Take, TakeRule};
use weir_packet::{Batch, Bits, Port};
use weir_port::xdp::{Mode, XdpError, XdpInterface, XdpPort, interfaces, obstacles};

#[test]
fn what_is_taken_arrives_and_the_rest_stays_with_the_kernel() {
    let Some(lab) = Lab::new(1, 1) else { return };
    let interface = lab.attach("w0", &service(5000));
    let mut near = lab.near_end(&interface, 0);
    let mut far = lab.far_end("f0", 0);
    assert_eq!(near.port.xdp_mode(), Some(Mode::NativeCopy));
    assert!(near.port.readiness().is_some());
    let before = interface.counters();
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
    let after = interface.counters();
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
        // The kernel reports a frame as sent a moment after it has arrived.
        let end = Instant::now() + PATIENCE;
        while to.statistics().held > 0 && Instant::now() < end {
            to.flush(&mut pools);
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
    assert_eq!(interface.counters().not_ours, 1);
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
    assert_eq!(interface.queues().count(), 2);
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
    assert!(interface.counters().redirect_failed > 0);
    let near = lab.near_end(&interface, 0);
    assert!(!lab.connects());
    near.close();
    assert!(lab.connects_soon());
}

#[test]
fn another_process_takes_an_interface_over_and_the_kernel_gets_no_frame_meanwhile() {
    let Some(lab) = Lab::new(1, 1) else { return };
    let take = service(5000);
    let old = lab.attach("w0", &take);
    let mut near = lab.near_end(&old, 0);
    let mut far = lab.far_end("f0", 0);
    let mut new = lab.weir(|| XdpInterface::prepare(config("w0", &take))).unwrap();
    let mut heir = lab.near_end(&new, 0);
    far.send(&[udp(W0, 5000, 1)]);
    assert_eq!(near.receive(1), [udp(W0, 5000, 1)], "preparing changes nothing");
    let handover = old.hand_over().unwrap();
    near.close();
    far.send(&[udp(W0, 5000, 2)]);
    let end = Instant::now() + PATIENCE;
    while old.counters().held_back == 0 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!((old.counters().held_back, old.counters().redirect_failed), (1, 0));
    lab.weir(|| new.take_over(handover).and_then(|()| new.replace())).unwrap();
    drop(old);
    heir.receives_nothing();
    far.send(&[udp(W0, 5000, 3)]);
    assert_eq!(heir.receive(1), [udp(W0, 5000, 3)]);
    assert_eq!(heir.port.xdp_mode(), Some(Mode::NativeCopy));
    heir.close();
    far.close();
    drop(new);
    lab.attach("w0", &take);
    assert!(lab.connects_soon(), "neither leaves anything behind");
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
        assert!(matches!(refused, XdpError::NoZeroCopy { .. }), "a veth cannot do this: {refused}");
        assert_eq!(pools.region_mut(pool).available(), RINGS.chunks() as usize);
    });
    assert!(matches!(attach("weirnone0", &Take::all(), None), Err(XdpError::NoInterface(_))));
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
    // The kernel may not have taken all frames from the cable yet.
    let end = Instant::now() + PATIENCE;
    let mut statistics = near.port.statistics();
    while statistics.received + statistics.lost_before < 600 && Instant::now() < end {
        let mut batch = Batch::new();
        near.port.receive(&mut near.pools, &mut batch);
        kept.extend(Bits(batch.mask()).map(|slot| batch.take(slot)));
        near.port.flush(&mut near.pools);
        statistics = near.port.statistics();
    }
    XdpPort::check(&[&near.port], near.pools.region_mut(near.pool), hoard.len() + kept.len());
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
    // The report names the offloads that the other end, in its own namespace, still has enabled, but not
    // those that it has disabled.
    let said = report.obstacles.join("; ");
    assert!(said.contains("ethtool -K f0 tx-vlan-stag-hw-insert off") && !said.contains("tx off"), "{said}");
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
    Namespace::existing(&netns).within(|| {
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
    assert!(
        report.obstacles.iter().all(|sentence| !sentence.contains("XDP program")),
        "{:?}",
        report.obstacles
    );
    assert!(lab.connects_soon());
    lab.near_end(&lab.attach("w0", &Take::all()), 0).close();
}
