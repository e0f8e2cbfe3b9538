//! Flows whose addresses and ports the kernel's NAT changes.

use crate::rig::*;
use std::net::{IpAddr, Ipv4Addr};
use weir_overlay::bpf::OverlayTuple;

/// The frame that the pod sends to the service; below, the frame that the node makes of it.
const BEFORE: OverlayTuple = tuple([POD, SERVICE], [7000, 80], UDP);
const AFTER: OverlayTuple = tuple([HERE_POD, OTHER], [9000, 5001], UDP);
/// The address to which it is masqueraded.
const HERE_POD: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 0);

const fn tuple([from, to]: [Ipv4Addr; 2], ports: [u16; 2], protocol: u8) -> OverlayTuple {
    OverlayTuple { addresses: [IpAddr::V4(from), IpAddr::V4(to)], ports, protocol }
}

fn v4(addresses: [IpAddr; 2]) -> [Ipv4Addr; 2] {
    addresses.map(|address| match address {
        IpAddr::V4(address) => address,
        IpAddr::V6(_) => unreachable!("the tuples here are of IPv4"),
    })
}

fn with_protocol(tuple: OverlayTuple, protocol: u8) -> OverlayTuple {
    OverlayTuple { protocol, ..tuple }
}

/// A frame with this tuple, MAC addresses and TTL, and a correct checksum.
fn frame(tuple: OverlayTuple, macs: [u8; 2], ttl: u8) -> Vec<u8> {
    let mut frame = inner(macs, v4(tuple.addresses), tuple.ports, (tuple.protocol, ttl));
    let at = if tuple.protocol == TCP { 50 } else { 40 };
    frame[at..at + 2].fill(0);
    let check = !sum(&frame[14..]);
    frame[at..at + 2].copy_from_slice(&check.to_be_bytes());
    frame
}

/// The sum of a segment with its pseudo header: 0xffff if its checksum is correct.
fn sum(packet: &[u8]) -> u16 {
    let length = u32::try_from(packet.len() - 20).unwrap();
    folded(&packet[20..], u32::from(folded(&packet[12..20], 0)) + u32::from(packet[9]) + length)
}

impl OverlayRig {
    /// Makes the programs learn a direction that NAT changes.
    fn learn_nat(&mut self, [marks, learns]: [&str; 2], before: &[u8], after: &[u8]) {
        let (verdict, _, mark) = self.run(marks, before, 0);
        assert_eq!(verdict, PASS);
        self.run(learns, after, mark | ESTABLISHED | NAT);
    }

    fn learn_service(&mut self, protocol: u8) -> [Vec<u8>; 4] {
        let [before, after] = [BEFORE, AFTER].map(|tuple| with_protocol(tuple, protocol));
        let out = frame(before, [BRIDGE, POD_MAC], 64);
        let left = tunnelled(&frame(after, [FAR, TUNNEL], 63), [HERE, NODE]);
        let came = tunnelled(&frame(after.reversed(), [TUNNEL, FAR], 63), [NODE, HERE]);
        let given = frame(before.reversed(), [POD_MAC, BRIDGE], 62);
        self.learn_nat(["overlay_send", "overlay_learn_send"], &out, &left);
        self.learn_nat(["overlay_receive", "overlay_learn_receive"], &came, &given);
        [out, left, came, given]
    }
}

#[test]
fn a_service_is_translated_both_ways_as_the_kernel_does() {
    let Some(mut rig) = OverlayRig::new(64) else { return };
    for protocol in [TCP, UDP] {
        let [before, after] = [BEFORE, AFTER].map(|tuple| with_protocol(tuple, protocol));
        rig.learn_service(protocol);
        // Nothing is guessed: user space is asked for the tuple before NAT.
        assert_eq!(rig.programs.asked(), [after, before.reversed()]);
        assert_eq!(rig.programs.asked(), []);
        rig.programs.translate(&before, &after).unwrap();
        rig.programs.translate(&after.reversed(), &before.reversed()).unwrap();
        let [out, left, came, given] = rig.learn_service(protocol);

        let (verdict, mut frame, _) = rig.run("overlay_send", &out, 0);
        assert_eq!(verdict, REDIRECT);
        frame[18..20].copy_from_slice(&left[18..20]);
        frame[34..36].copy_from_slice(&left[34..36]);
        seal(&mut frame, 14);
        assert_eq!(frame, left);
        assert_eq!((sum(&frame[64..]), folded(&frame[64..84], 0)), (0xffff, 0xffff));

        let (verdict, frame, _) = rig.run("overlay_receive", &came, 0);
        assert_eq!((verdict, &frame), (REDIRECT, &given));
        assert_eq!((sum(&frame[14..]), folded(&frame[14..34], 0)), (0xffff, 0xffff));
    }
    assert_eq!((rig.programs.entries().asked, rig.programs.frames()[0].of("dropped")), (4, 0));
    let flows = rig.programs.flows().unwrap().read();
    let first = flows.iter().find(|flow| flow.key.addresses == [POD, SERVICE]).expect("the flow");
    assert_eq!(first.translated[0].map(|to| to.addresses), Some(AFTER.addresses));
    assert_eq!(first.is_usable, [true, false], "what it receives is found by the other key");
}

#[test]
fn a_direct_flow_with_the_tuple_of_a_translated_one_is_not_mistaken_for_it() {
    let Some(mut rig) = OverlayRig::new(64) else { return };
    rig.programs.translate(&BEFORE, &AFTER).unwrap();
    rig.programs.translate(&AFTER.reversed(), &BEFORE.reversed()).unwrap();
    rig.learn_service(UDP);
    // A pod whose own frames look like other pods' frames after NAT: connection tracking gives it another
    // port.
    let direct = frame(AFTER, [BRIDGE, POD_MAC], 64);
    assert_eq!(rig.slow("overlay_send", &direct), "half");
    // An answer from the service's own address does not belong to the flow.
    let from_service = tunnelled(&frame(BEFORE.reversed(), [TUNNEL, FAR], 63), [NODE, HERE]);
    assert_eq!(rig.slow("overlay_receive", &from_service), "half");
}

#[test]
fn an_ended_connection_is_forgotten_with_its_translation() {
    let Some(mut rig) = OverlayRig::new(64) else { return };
    rig.programs.translate(&BEFORE, &AFTER).unwrap();
    rig.programs.translate(&AFTER.reversed(), &BEFORE.reversed()).unwrap();
    rig.learn_service(UDP);
    rig.programs.forget_translation(&AFTER);
    rig.programs.forget_translations();
    rig.programs.bump(&[weir_overlay::bpf::STAMP_GLOBAL]).unwrap();
    rig.learn_service(UDP);
    assert_eq!(rig.programs.asked(), [AFTER, BEFORE.reversed()]);
}
