//! Frames that the kernel drops are sampled: the samples represent all of them, and identify their flows.

use weir_kernel::Executor;
use weir_packet::{DropReason, craft};
use weir_program::replica::Swept;
use weir_program::{Forward, Pipe, PipeId, PipeKind, PortDeclaration, PortId, Program};

/// A program that drops everything.
fn program() -> Program {
    let pipe = Pipe { miss: Forward::Drop, ..Pipe::new("none", PipeKind::Basic) };
    let port = PortDeclaration { root: Some(PipeId(0)), ..PortDeclaration::new("a".to_string()) };
    Program { ports: vec![port], pipes: vec![pipe], ..Program::default() }
}

/// Takes the samples since the last call, and how many frames each represents.
fn take_dropped(executor: &mut Executor) -> Vec<(DropReason, Vec<u8>, u64)> {
    let mut all = Vec::new();
    executor.replica().sweep(false, &mut |swept| {
        if let Swept::Dropped(reason, frame, frames) = swept {
            all.push((reason, frame.to_vec(), frames));
        }
    });
    all
}

#[test]
fn samples_represent_all_frames_that_were_dropped() {
    let loaded = Executor::load(&program(), &[]);
    assert!(loaded.is_ok() || std::env::var_os("CI").is_none(), "CI runs as root: {loaded:?}");
    let Ok(mut executor) = loaded else { return };
    let packets = [
        "src=10.0.0.1 dst=10.0.0.2 proto=udp sport=1 dport=2",
        "src=2001:db8::1 dst=2001:db8::2 proto=tcp sport=3 dport=4 len=1400",
    ];
    for frames in [0, 1, 30, 31, 32, 33, 100, 1000] {
        let sent: Vec<Vec<u8>> = (0..frames).map(|at| craft::frame(packets[at % 2])).collect();
        for frame in &sent {
            executor.run(PortId(0), frame).unwrap();
        }
        let samples = take_dropped(&mut executor);
        assert_eq!(samples.iter().map(|sample| sample.2).sum::<u64>(), frames as u64);
        for (reason, frame, _) in &samples {
            assert_eq!(*reason, DropReason::Miss);
            let like = sent.iter().any(|sent| {
                let known = if sent.len() < 64 { 40 } else { 64 };
                frame.len() == sent.len() && frame[..known] == sent[..known]
            });
            assert!(like, "{frame:02x?}");
        }
        assert!(samples.len() >= frames.min(31), "{} samples of {frames}", samples.len());
    }
    assert!(take_dropped(&mut executor).is_empty());
}
