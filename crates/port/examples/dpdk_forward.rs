//! Forwards between two DPDK ports for a number of seconds, swapping MAC addresses, and prints the rate. This
//! is what `dpdk-testpmd --forward-mode=macswap` (or `io`) does, through the `Port` trait.
//! `bench/dpdk-forward.sh` runs both.
//!
//!     dpdk_forward SECONDS MIB_OF_HUGE_PAGES RECEIVE_DEVARGS TRANSMIT_DEVARGS [macswap | io]
//!
//! With 0 MiB it uses ordinary memory.

use std::error::Error;
use std::time::{Duration, Instant};
use weir_packet::{Batch, Frame, Pools, Port};
use weir_port::dpdk::{DpdkOptions, DpdkPort, Eal, EalMemory, EalOptions, MbufPool};

/// Frames in the pool: the number that testpmd allocates for one core.
const FRAMES: u32 = 163_456;

/// Batches between two readings of the clock.
const BATCHES: u32 = 1024;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [seconds, mebibytes, receive, transmit, rest @ ..] = arguments.as_slice() else {
        return Err("usage: dpdk_forward SECONDS MIB RECEIVE_DEVARGS TRANSMIT_DEVARGS [macswap | io]".into());
    };
    let memory = match mebibytes.parse()? {
        0 => EalMemory::NoHuge(1024),
        mebibytes => EalMemory::Huge(mebibytes),
    };
    let eal = Eal::init(&EalOptions { memory, ..EalOptions::default() })?;
    let pool = MbufPool::new(eal, FRAMES)?;
    let mut pools = Pools::new();
    pools.add(pool.share());
    let mut input = DpdkPort::open(eal, &DpdkOptions::new("input", receive), &pool)?.remove(0);
    let mut output = DpdkPort::open(eal, &DpdkOptions::new("output", transmit), &pool)?.remove(0);
    let swap = rest.first().is_none_or(|mode| mode != "io");
    let took = forward(&mut input, &mut output, &mut pools, Duration::from_secs(seconds.parse()?), swap);
    let sent = output.statistics().transmitted;
    println!(
        "{:.2} Mpps, {:.1} ns per frame",
        sent as f64 / took.as_secs_f64() / 1e6,
        took.as_nanos() as f64 / sent as f64
    );
    Ok(())
}

fn forward(
    input: &mut dyn Port,
    output: &mut dyn Port,
    pools: &mut Pools,
    time: Duration,
    swap: bool,
) -> Duration {
    let mut batch = Batch::new();
    let start = Instant::now();
    while start.elapsed() < time {
        for _ in 0..BATCHES {
            input.receive(pools, &mut batch);
            if swap {
                (0..batch.len()).for_each(|slot| swap_addresses(batch.frame_mut(slot)));
            }
            let all = batch.mask();
            let accepted = output.transmit(pools, &mut batch, all);
            for slot in weir_packet::Bits(all & !accepted) {
                pools.give(batch.take(slot));
            }
            batch.clear();
            output.flush(pools);
        }
    }
    start.elapsed()
}

fn swap_addresses(frame: &mut Frame) {
    if let Some((addresses, _)) = frame.bytes_mut().split_first_chunk_mut::<12>() {
        addresses.rotate_left(6);
    }
}
