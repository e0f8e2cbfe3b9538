//! Measures the generator's cost to a bench: nanoseconds per frame for `receive` and `transmit` together.
//!
//! `cargo run --release -p weir-port --example mem_speed`

use std::net::Ipv4Addr;
use std::time::Instant;
use weir_packet::{Batch, Pools, Port};
use weir_port::{Generator, Stream};

/// Frames per run: few, so that some of the [`RUNS`] runs are not disturbed by other processes.
const FRAMES: u64 = 200_000;
const RUNS: usize = 100;
const FLOWS: u32 = 100_000;

fn main() {
    for length in [60, 64, 1514] {
        // Multiplying by an odd number visits every flow, in an order that defeats prefetching of the flow
        // table.
        let flow = |i: u32| {
            (Ipv4Addr::from(0x0a00_0000 + i.wrapping_mul(0x9e37_79b1) % FLOWS), [192, 0, 2, 1].into())
        };
        let flows = (0..FLOWS).map(|i| (flow(i).0, flow(i).1, i as u16, 80));
        let stream = Stream::udp(length, flows);
        let best = (0..RUNS).map(|_| run(stream.clone())).fold(f64::INFINITY, f64::min);
        println!("{length} B: {best:.2} ns per frame");
    }
}

fn run(stream: Stream) -> f64 {
    let mut pools = Pools::region(4096);
    let pool = pools.first().id();
    let mut port: Box<dyn Port> = Box::new(Generator::new("g", &mut pools, pool, stream, FRAMES));
    let mut batch = Batch::new();
    let start = Instant::now();
    while !port.exhausted() {
        port.receive(&mut pools, &mut batch);
        let all = batch.mask();
        port.transmit(&mut pools, &mut batch, all);
        batch.clear();
        port.flush(&mut pools);
    }
    start.elapsed().as_nanos() as f64 / (FRAMES) as f64
}
