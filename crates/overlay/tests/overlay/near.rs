//! Two pods on the same node.

use crate::rig::*;

/// A frame from one to the other, as it is sent and as it is delivered, routed or bridged.
fn frames(ports: [u16; 2], is_answer: bool, is_routed: bool) -> [Vec<u8>; 2] {
    let ends = [(POD, POD_MAC), (NEIGHBOUR, NEIGHBOUR_MAC)];
    let [(from, own), (to, its)] = if is_answer { [ends[1], ends[0]] } else { ends };
    let gateway = |mac| if is_routed { BRIDGE } else { mac };
    let ttl = if is_routed { 63 } else { 64 };
    [
        inner([gateway(its), own], [from, to], ports, (TCP, 64)),
        inner([its, gateway(own)], [from, to], ports, (TCP, ttl)),
    ]
}

impl OverlayRig {
    /// Makes the programs learn a direction, as the kernel and nftables would; returns the frames.
    fn learn_near(&mut self, is_answer: bool, is_routed: bool) -> [Vec<u8>; 2] {
        let ports = if is_answer { [80, 7000] } else { [7000, 80] };
        let [sent, delivered] = frames(ports, is_answer, is_routed);
        let (from, to) = if is_answer { (self.neighbour, self.pod) } else { (self.pod, self.neighbour) };
        let (verdict, _, mark) = self.programs.test_run("overlay_send", &sent, (from, 0, 0)).unwrap();
        assert_eq!(verdict, PASS);
        let mark = mark | ESTABLISHED;
        self.programs.test_run("overlay_learn_receive", &delivered, (to, mark, 0)).unwrap();
        [sent, delivered]
    }
}

#[test]
fn frames_between_pods_of_a_node_skip_it() {
    for is_routed in [true, false] {
        let Some(mut rig) = OverlayRig::new(64) else { return };
        // The MAC addresses of both must have been seen before anything is learnt about where they are.
        rig.learn_near(true, is_routed);
        let there = rig.learn_near(false, is_routed);
        let back = rig.learn_near(true, is_routed);
        for (at, [sent, delivered]) in [(rig.pod, &there), (rig.neighbour, &back)] {
            let (verdict, out, mark) = rig.programs.test_run("overlay_send", sent, (at, 0, 0)).unwrap();
            assert_eq!((verdict, mark, &out), (REDIRECT, 0, delivered), "{is_routed}");
        }
        assert_eq!(rig.programs.frames()[0].of("fast"), 2);
        let flows = rig.programs.flows().unwrap().read();
        assert_eq!(flows.len(), 2, "one as each sees it: {flows:?}");
        for flow in flows {
            let own = flow.key.addresses[0] == POD;
            let (pod, peer) = if own { (rig.pod, rig.neighbour) } else { (rig.neighbour, rig.pod) };
            assert_eq!((flow.pod, flow.peer, flow.packets), (pod, Some(peer), [1, 0]));
        }
    }
}

#[test]
fn a_pod_that_changes_makes_both_ways_void() {
    for (stamp, at) in [(NEIGHBOUR_STAMP, 0), (POD_STAMP, 1)] {
        let Some(mut rig) = OverlayRig::new(64) else { return };
        rig.learn_near(true, true);
        let all = [rig.learn_near(false, true), rig.learn_near(true, true)];
        rig.programs.bump(&[stamp]).unwrap();
        let from = [rig.pod, rig.neighbour];
        let (verdict, ..) = rig.programs.test_run("overlay_send", &all[at][0], (from[at], 0, 0)).unwrap();
        assert_eq!((verdict, rig.programs.frames()[0].of("stale_own")), (PASS, 1), "{stamp}");
    }
}

#[test]
fn a_tunnel_cannot_speak_for_a_pod_of_the_node() {
    let Some(mut rig) = OverlayRig::new(64) else { return };
    rig.learn_near(true, true);
    rig.learn_near(false, true);
    rig.learn_near(true, true);
    let forged = inner([TUNNEL, FAR], [NEIGHBOUR, POD], [80, 7000], (TCP, 63));
    assert_eq!(rig.slow("overlay_receive", &tunnelled(&forged, [NODE, HERE])), "half");
}

#[test]
fn what_the_other_pod_does_not_carry_takes_the_kernels_way() {
    let Some(mut rig) = OverlayRig::new(64) else { return };
    rig.learn_near(true, true);
    let [sent, _] = rig.learn_near(false, true);
    rig.learn_near(true, true);
    let mut long = sent.clone();
    long.resize(14 + 200, 7);
    long[16..18].copy_from_slice(&200_u16.to_be_bytes());
    seal(&mut long, 14);
    ip("link set pod1 mtu 199");
    let (verdict, out, _) = rig.programs.test_run("overlay_send", &long, (rig.pod, 0, 0)).unwrap();
    assert_eq!((verdict, rig.programs.frames()[0].of("oversize"), &out), (PASS, 1, &long));
    // The tunnel's MTU does not matter.
    ip("link set pod1 mtu 200\nlink set vx0 mtu 68");
    assert_eq!(rig.programs.test_run("overlay_send", &long, (rig.pod, 0, 0)).unwrap().0, REDIRECT);
}
