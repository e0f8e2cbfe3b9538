//! The program that impairs a link, in the kernel (`BPF_PROG_TEST_RUN`). Needs root.

use weir_bpf::{Impaired, Impairment, TcImpair, class_of};

const PASS: i32 = -1;
const SHOT: i32 = 2;

/// Loads the program; `None` without root.
fn load() -> Option<TcImpair> {
    weir_bed::is_root().then(|| TcImpair::load(4789).unwrap())
}

/// An ECN-capable VXLAN frame of 100 bytes.
fn frame(port: u16) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 2, 0, 86, 0, 0, 0x40, 0, 64, 17];
    frame.extend([0, 0, 10, 0, 1, 1, 10, 0, 2, 1]);
    frame.extend(port.to_be_bytes());
    frame.extend(4789_u16.to_be_bytes());
    frame.extend([0, 66, 0, 0, 8, 0, 0, 0, 0, 0, 42, 0]);
    frame.resize(100, 0);
    frame
}

#[test]
fn frames_are_lost_at_a_rate_and_others_pass() {
    let Some(mut impair) = load() else { return };
    assert_eq!(impair.test(&frame(50_000)).unwrap(), (PASS, frame(50_000)));
    impair.set(&Impairment { lost: 0.1, ..Impairment::default() }).unwrap();
    let lost = (0..2000).filter(|_| impair.test(&frame(50_000)).unwrap().0 == SHOT).count() as u64;
    // Five standard deviations on either side.
    assert!((133..267).contains(&lost), "{lost}");
    assert_eq!(impair.counts(), Impaired { seen: 2001, lost, ..Impaired::default() });
    let mut other = frame(50_000);
    other[37] = 1;
    impair.set(&Impairment { lost: 1.0, ..Impairment::default() }).unwrap();
    assert_eq!(impair.test(&other).unwrap().0, PASS, "another port is not impaired");
}

#[test]
fn a_class_of_source_ports_is_lost() {
    let Some(mut impair) = load() else { return };
    impair.set(&Impairment { class_lost: Some((5, 3)), ..Impairment::default() }).unwrap();
    let mut lost = 0;
    for port in 49_152..49_652 {
        let is_lost = impair.test(&frame(port)).unwrap().0 == SHOT;
        assert_eq!(is_lost, class_of(port, 5) == 3, "{port}");
        lost += u32::from(is_lost);
    }
    assert!((60..140).contains(&lost), "{lost}");
}

#[test]
fn a_long_virtual_queue_marks() {
    let Some(mut impair) = load() else { return };
    // 1 byte/s: nothing drains meanwhile.
    impair.set(&Impairment { queue: Some((1, 450)), ..Impairment::default() }).unwrap();
    let ecn: Vec<u8> = (0..8).map(|_| impair.test(&frame(50_000)).unwrap().1[15] & 3).collect();
    assert_eq!(ecn, [2, 2, 2, 2, 3, 3, 3, 3]);
    assert_eq!(impair.counts().marked, 4);
}
