//! The traffic generator in the kernel. Needs root. `weir bench xdp` shows that its frames arrive.

use weir_papers::XdpGenerate;

/// The loopback interface, present in every namespace. It accepts no XDP frames, so nothing is disturbed.
const LO: u32 = 1;

#[test]
fn the_kernel_runs_it_on_live_frames() {
    if !weir_bed::is_root() {
        return;
    }
    let mut generate = XdpGenerate::load().unwrap();
    generate.send(LO, &[0; 60], 1000).unwrap();
    // Too short for an IPv4 header, so the program drops it.
    generate.send(LO, &[0; 20], 1).unwrap();
    assert!(generate.send(u32::MAX, &[0; 60], 1).is_err(), "no such interface");
}
