//! Attaching through clsact, which newer kernels also have. Needs root.

use super::*;
use weir_bed::Run;

const PROGRAM: &str = "impair";
const OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/impair.bpf.o"));

/// Puts this thread into its own network namespace with an interface.
fn namespace(test: &str) -> Option<Run> {
    let run = Run::of_test(test)?;
    let namespace = run.namespace("hook").unwrap();
    namespace.ip("link add here type veth peer name there\n").unwrap();
    namespace.enter().unwrap();
    Some(run)
}

fn loaded() -> Ebpf {
    let mut ebpf = Ebpf::load(OBJECT).unwrap();
    uninterrupted(|| program(&mut ebpf).load()).unwrap();
    ebpf
}

fn program(ebpf: &mut Ebpf) -> &mut SchedClassifier {
    ebpf.program_mut(PROGRAM).unwrap().try_into().unwrap()
}

fn filters() -> usize {
    filters::at(index_of("here").unwrap(), TcAttachType::Egress).unwrap().len()
}

#[test]
fn a_program_behind_a_filter_is_found_and_gone_when_it_is_dropped() {
    let Some(_run) = namespace("found") else { return };
    let (mut one, mut other) = (loaded(), loaded());
    assert_eq!(filters(), 0);
    let egress = TcAttachType::Egress;
    let first = by_filter(program(&mut one), "here", egress).unwrap();
    let second = by_filter(program(&mut other), "here", egress).unwrap();
    let ids = [&mut one, &mut other].map(|ebpf| program(ebpf).info().unwrap().id());
    assert_eq!(programs_at("here", egress).unwrap(), ids);
    assert_eq!(programs_at("here", TcAttachType::Ingress).unwrap(), [0_u32; 0]);
    drop(first);
    assert_eq!(programs_at("here", egress).unwrap(), [ids[1]]);
    assert_eq!(ids_at(index_of("here").unwrap(), egress).unwrap(), [second.stands_in().unwrap()]);
    drop(second);
    assert_eq!(filters(), 0);
    assert!(programs_at("none0", egress).is_err());
}

/// The kernel closes the array of a killed process; here it is closed without removing the filter.
#[test]
fn what_a_killed_process_has_left_does_nothing_and_is_removed() {
    let Some(_run) = namespace("left") else { return };
    let mut ebpf = loaded();
    let egress = TcAttachType::Egress;
    let killed = by_filter(program(&mut ebpf), "here", egress).unwrap();
    let lives = by_filter(program(&mut ebpf), "here", egress).unwrap();
    let Attachment(Means::Filter { _link, _hook, .. }) = killed else { panic!("a filter") };
    std::mem::forget(_link);
    drop(_hook);
    let id = program(&mut ebpf).info().unwrap().id();
    // For a moment, a process started by another test also holds the array.
    let waited = (0..6000).find(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        programs_at("here", egress).unwrap() == [id]
    });
    assert!(waited.is_some(), "the dead one jumps nowhere");
    assert_eq!(filters(), 2);
    assert_eq!(remove_dead("here").unwrap(), 1);
    assert_eq!(filters(), 1);
    drop(lives);
    assert_eq!(filters(), 0);
}
