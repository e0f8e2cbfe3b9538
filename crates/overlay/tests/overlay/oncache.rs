//! The programs of the cache with which ours is compared. They do exactly what its authors describe.

use crate::handle::Handle;
use crate::rig::*;
use aya::programs::TcAttachType;
use weir_papers::Oncache;

const MISSED: u8 = 0x04;
const BOTH: u8 = 0x0c;

/// Returns a frame with a different type of service in its inner header.
fn with_tos(frame: &[u8], at: usize, tos: u8) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[at + 1] = tos;
    seal(&mut frame, at);
    frame
}

#[test]
fn it_learns_what_has_both_marks_and_goes_by_it_for_ever() {
    let Some(rig) = OverlayRig::new(64) else { return };
    let mut cache = Oncache::load().unwrap();
    cache.attach_uplink("up0").unwrap();
    cache.attach_pod("pod0").unwrap();
    cache.set_pod(POD, rig.pod).unwrap();
    let at = |interface, hook, name| Handle::find(interface, hook, name);
    let send = at("pod0", TcAttachType::Ingress, "oncache_send");
    let learn_send = at("up0", TcAttachType::Egress, "oncache_learn_send");
    let receive = at("up0", TcAttachType::Ingress, "oncache_receive");
    let learn_receive = at("pod0", TcAttachType::Egress, "oncache_learn_receive");
    let (out, left) = (sent(UDP, 7000), tunnelled(&routed(UDP, 7000), [HERE, NODE]));
    let (came, given) = (arriving(UDP, 7000), delivered(UDP, 7000));

    let missed = |handle: &Handle, frame: &[u8], inner: usize, at: u32| {
        let (verdict, out, _) = handle.run(frame, (at, 0));
        assert_eq!((verdict, out), (PASS, with_tos(frame, inner, MISSED)), "a miss is marked");
    };
    missed(&send, &out, 14, rig.pod);
    missed(&receive, &came, 64, rig.up);
    // One mark is not enough.
    learn_send.run(&with_tos(&left, 64, MISSED), (rig.up, 0));
    missed(&send, &out, 14, rig.pod);
    let (_, unmarked, _) = learn_send.run(&with_tos(&left, 64, BOTH), (rig.up, 0));
    assert_eq!(unmarked, left, "marks go no further");
    missed(&send, &out, 14, rig.pod);
    let (_, unmarked, _) = learn_receive.run(&with_tos(&given, 14, BOTH), (rig.pod, 0));
    assert_eq!(unmarked, given);

    let (verdict, frame, _) = send.run(&out, (rig.pod, 0));
    assert_eq!((verdict, frame.len()), (REDIRECT, out.len() + 50));
    // The headers as they were learnt, followed by the packet as it arrived.
    assert_eq!((&frame[..14], &frame[26..34], &frame[42..64]), (&left[..14], &left[26..34], &left[42..64]));
    assert_eq!((folded(&frame[14..34], 0), &frame[64..]), (0xffff, &out[14..]));
    let (verdict, frame, _) = receive.run(&came, (rig.up, 0));
    assert_eq!((verdict, &frame[..12], &frame[14..]), (REDIRECT, &given[..12], &came[64..]));
    // The node has moved, but the frame is sent to its old location.
    let moved = tunnelled(&routed(UDP, 7000), [HERE, SECOND_NODE]);
    learn_send.run(&with_tos(&moved, 64, BOTH), (rig.up, 0));
    assert_eq!(send.run(&out, (rig.pod, 0)).1[30..34], NODE.octets());
    assert!(cache.statistics_ns(10).is_ok());
}
