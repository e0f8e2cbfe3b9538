//! Geneve tunnels work like VXLAN tunnels, unless their headers have options.

use crate::headers_are_those_of_the_kernels_device;
use crate::rig::*;
use std::process::Command;

#[test]
fn geneve_without_options_takes_the_fast_path_and_with_options_the_slow_one() {
    let Some(mut rig) = OverlayRig::new(64) else { return };
    rig.use_geneve();
    for protocol in [TCP, UDP] {
        rig.learn(protocol, 7000);
        let (verdict, out, mark) = rig.run("overlay_send", &sent(protocol, 7000), 0);
        assert_eq!((verdict, mark), (REDIRECT, 0));
        let mut expected = geneve(&tunnelled(&routed(protocol, 7000), [HERE, NODE]), &[]);
        expected[18..20].copy_from_slice(&out[18..20]);
        expected[34..36].copy_from_slice(&out[34..36]);
        seal(&mut expected, 14);
        assert_eq!(out, expected);
        let (verdict, out, _) = rig.run("overlay_receive", &geneve(&arriving(protocol, 7000), &[]), 0);
        assert_eq!((verdict, out), (REDIRECT, delivered(protocol, 7000)));
    }
    // An option of 4 bytes, one of 8, a critical one, a control message, another version, a packet without
    // an Ethernet header, another VNI, and VXLAN.
    let good = geneve(&arriving(UDP, 7000), &[]);
    let with = |at: usize, bytes: &[u8]| {
        let mut frame = good.clone();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    };
    let option = |options: &[u8]| geneve(&arriving(UDP, 7000), options);
    for (why, frame) in [
        ("options", option(&[1, 2, 3, 0])),
        ("options", option(&[1, 2, 3, 1, 9, 9, 9, 9])),
        ("options", option(&[1, 2, 0x83, 0])),
        ("other_vni", with(43, &[0x80])),
        ("other_vni", with(42, &[0x40])),
        ("other_vni", with(44, &[8, 0])),
        ("other_vni", with(46, &[0, 0, 43])),
        ("not_tunnel", arriving(UDP, 7000)),
    ] {
        assert_eq!(rig.slow("overlay_receive", &frame), why);
    }
    // Nothing is learnt from a frame whose header has options.
    let (_, _, mark) = rig.run("overlay_send", &sent(UDP, 7001), 0);
    let left = geneve(&tunnelled(&routed(UDP, 7001), [HERE, NODE]), &[1, 2, 3, 0]);
    let before = rig.programs.entries();
    rig.run("overlay_learn_send", &left, mark | ESTABLISHED);
    let after = rig.programs.entries();
    assert_eq!(after.learnt, before.learnt);
    assert_eq!(after.unlearnable, before.unlearnable + 1);
}

#[test]
fn headers_are_those_of_the_kernels_own_geneve_device() {
    let Some(mut rig) = OverlayRig::new(64) else { return };
    ip("link del vx0");
    let device = "link add vx0 mtu 1450 type geneve id 42 remote 10.0.1.2 dstport 6081";
    if !Command::new("ip").args(device.split(' ')).status().unwrap().success() {
        weir_bed::kernel_lacks("geneve");
        return;
    }
    ip("link set vx0 up");
    run("sysctl", &["-qw", "net.ipv6.conf.vx0.disable_ipv6=0"]);
    rig.use_geneve();
    headers_are_those_of_the_kernels_device(&mut rig);
}
