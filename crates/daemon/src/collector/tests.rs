//! The collector as the daemon uses it: rings in, totals out.

use super::*;
use weir_engine::delta::Belonging;
use weir_engine::ring;
use weir_packet::FlowKey;

fn delta(packets: u64, reason: DeltaReason) -> FlowDelta {
    let of = Belonging { generation: 1, pipe: 0, target: 0 };
    FlowDelta::new(FlowKey([0; 5]), (packets, 100 * packets), (0, 0), of, reason)
}

#[test]
fn all_rings_are_read_to_their_end_and_added_up_by_reason() {
    let collector = Collector::start(Clock::start(), Vec::new()).unwrap();
    let workers: Vec<_> = (0..3)
        .map(|source| {
            let (mut sender, ring) = ring::deltas(source, 8);
            collector.add(Ring { deltas: ring, of_program: true }).unwrap();
            std::thread::spawn(move || {
                for packets in 0..1_000 {
                    let reason = DeltaReason::ALL[packets as usize % DeltaReason::ALL.len()];
                    while !sender.send(delta(packets, reason)) {
                        std::thread::yield_now();
                    }
                }
            })
        })
        .collect();
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    let totals = collector.finish().unwrap();
    let all = over_reasons(&totals);
    assert_eq!((all.deltas, all.packets, all.bytes), (3_000, 3 * 499_500, 300 * 499_500));
    let first = DeltaReason::ALL.iter().position(|reason| *reason == DeltaReason::First).unwrap();
    let of_one = (0..1000).filter(|packets| packets % DeltaReason::ALL.len() == first).count();
    assert_eq!(totals[DeltaReason::First as usize].deltas, 3 * of_one as u64);
}

#[test]
fn a_collector_without_workers_ends() {
    assert_eq!(Collector::start(Clock::start(), Vec::new()).unwrap().finish().unwrap(), Totals::default());
}
