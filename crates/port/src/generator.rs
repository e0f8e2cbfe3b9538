//! A port that generates traffic for benches. Every frame is a copy of a template with the bytes of a flow
//! patched in; transmitted frames return straight to the pool.
//!
//! The generator costs as little as possible, because a bench measures what lies between its two ends: the
//! order of flows is computed in advance and read as one stream, a frame costs two copies of constant length,
//! and nothing is allocated. `examples/mem_speed.rs` measures it.
#![forbid(unsafe_code)]

use std::net::Ipv4Addr;
use weir_packet::{Batch, Bits, Frame, Pool, PoolId, Pools, Port, PortStatistics, Sum, checksum};

/// A range of bytes in which the frames differ from the template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patch {
    /// Offset of the first byte.
    pub offset: usize,
    /// Number of bytes.
    pub length: usize,
}

/// The frames of a [`Generator`]: a template, the patches, and their values for each frame.
#[derive(Clone, Debug)]
pub struct Stream {
    template: Vec<u8>,
    patches: Vec<Patch>,
    /// The values of all patches, frame after frame.
    values: Vec<u8>,
    /// Bytes of values per frame.
    stride: usize,
}

/// Addresses and ports of a UDP flow over IPv4: source, destination, `sport`, `dport`.
pub type UdpFlow = (Ipv4Addr, Ipv4Addr, u16, u16);

impl Stream {
    /// Creates a stream of as many frames as `values` has records.
    ///
    /// # Panics
    /// Panics if `values` is not a whole number (at least one) of records, or a patch lies outside the
    /// template.
    #[must_use]
    pub fn new(template: Vec<u8>, patches: Vec<Patch>, values: Vec<u8>) -> Stream {
        let stride = patches.iter().map(|patch| patch.length).sum::<usize>();
        assert!(
            stride > 0 && !values.is_empty() && values.len().is_multiple_of(stride),
            "values for whole frames"
        );
        assert!(
            patches.iter().all(|patch| patch.offset + patch.length <= template.len()),
            "a patch outside the frame"
        );
        Stream { template, patches, values, stride }
    }

    /// Creates UDP over IPv4 frames of `length` bytes (without FCS), one for each of `flows` in order, with a
    /// correct IPv4 checksum and no UDP checksum.
    ///
    /// # Panics
    /// Panics if there is no flow, or `length` is below 42 (the headers) or above 1514.
    #[must_use]
    pub fn udp(length: usize, flows: impl IntoIterator<Item = UdpFlow>) -> Stream {
        assert!((42..=1514).contains(&length), "{length} bytes of UDP over IPv4");
        let mut template = vec![0; length];
        template[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
        template[14..24].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17]);
        template[16..18].copy_from_slice(&(length as u16 - 14).to_be_bytes());
        template[38..40].copy_from_slice(&(length as u16 - 34).to_be_bytes());
        // IPv4 checksum to UDP length are contiguous, 16 bytes: a single copy.
        let patch = Patch { offset: 24, length: 16 };
        let values = flows.into_iter().flat_map(|flow| udp_patch(&template, flow)).collect();
        Stream::new(template, vec![patch], values)
    }

    /// Creates 60-byte UDP frames of `flows` flows (up to 2^24) in a scattered order. Flow `n` is from
    /// 10.0.0.0 + `n`, port 1024, to 198.18.0.1, port 53.
    #[must_use]
    pub fn scattered(flows: u32) -> Stream {
        // A prime above any number of flows: each flow occurs once before the first repeats.
        const STEP: u64 = 2_654_435_761;
        let flow = |at: u64| {
            let number = (at * STEP % u64::from(flows)) as u32;
            (Ipv4Addr::from_bits(0x0a00_0000 + number), Ipv4Addr::new(198, 18, 0, 1), 1024, 53)
        };
        Stream::udp(60, (0..u64::from(flows)).map(flow))
    }

    /// Returns the number of frames before the stream repeats.
    #[must_use]
    pub fn frames(&self) -> usize {
        self.values.len() / self.stride
    }

    /// Builds frame number `number`, which must be below [`frames`](Stream::frames).
    ///
    /// # Panics
    /// Panics if there is no such frame.
    #[must_use]
    pub fn frame(&self, number: usize) -> Vec<u8> {
        let mut bytes = vec![0; self.template.len()];
        self.write(number * self.stride, &mut bytes);
        bytes
    }

    #[inline]
    fn write(&self, at: usize, bytes: &mut [u8]) {
        copy(bytes, &self.template);
        let mut values = &self.values[at..at + self.stride];
        for patch in &self.patches {
            let (value, rest) = values.split_at(patch.length);
            copy(&mut bytes[patch.offset..patch.offset + patch.length], value);
            values = rest;
        }
    }
}

/// Returns bytes 24..40 of the template with a flow filled in.
fn udp_patch(template: &[u8], (source, destination, sport, dport): UdpFlow) -> [u8; 16] {
    let mut header = [0; 26];
    header.copy_from_slice(&template[14..40]);
    header[12..16].copy_from_slice(&source.octets());
    header[16..20].copy_from_slice(&destination.octets());
    header[20..22].copy_from_slice(&sport.to_be_bytes());
    header[22..24].copy_from_slice(&dport.to_be_bytes());
    let sum = checksum(Sum::default().bytes(&header[..20]));
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    header[10..].try_into().expect("26 - 10 bytes")
}

/// `copy_from_slice` with the usual lengths as constants, which avoids calling `memcpy`.
#[inline(always)]
fn copy(to: &mut [u8], from: &[u8]) {
    #[inline(always)]
    fn fixed<const N: usize>(to: &mut [u8], from: &[u8]) {
        let to: &mut [u8; N] = to.try_into().expect("the caller checked the length");
        *to = *<&[u8; N]>::try_from(from).expect("the caller checked the length");
    }
    match from.len() {
        64 => fixed::<64>(to, from),
        60 => fixed::<60>(to, from),
        16 => fixed::<16>(to, from),
        12 => fixed::<12>(to, from),
        4 => fixed::<4>(to, from),
        2 => fixed::<2>(to, from),
        _ => to.copy_from_slice(from),
    }
}

/// The port: it receives a [`Stream`], and discards transmitted frames.
#[derive(Debug)]
pub struct Generator {
    name: String,
    pool: PoolId,
    stream: Stream,
    /// Position of the next frame's values in the stream.
    at: usize,
    /// Frames still to be received.
    left: u64,
    statistics: PortStatistics,
}

impl Generator {
    /// Creates a port on `pool` that repeats `stream` until `frames` frames have been received (`u64::MAX`:
    /// unlimited).
    ///
    /// # Panics
    /// Panics if `pool` is not one of `pools`, is empty, or has chunks too small for the stream's frames.
    #[must_use]
    pub fn new(name: &str, pools: &mut Pools, pool: PoolId, stream: Stream, frames: u64) -> Generator {
        let memory = pools.get_mut(pool).expect("a port is opened on a pool of its worker");
        let mut frame = memory.take().expect("a pool with a free frame");
        let fits = frame.fill(&stream.template);
        memory.give(frame);
        fits.expect("chunks that hold the template");
        Generator {
            name: name.to_owned(),
            pool,
            stream,
            at: 0,
            left: frames,
            statistics: PortStatistics::default(),
        }
    }

    /// Sets how many frames are still to be received.
    pub fn set_left(&mut self, frames: u64) {
        self.left = frames;
    }

    #[inline(always)]
    fn generate(&mut self, free: &mut [Frame], mut take: impl FnMut() -> Option<Frame>) -> usize {
        for (count, slot) in free.iter_mut().enumerate() {
            let Some(mut frame) = take() else { return count };
            frame.resize(self.stream.template.len() as u16).expect("opened with room for the template");
            *slot = frame;
            self.stream.write(self.at, slot.bytes_mut());
            self.at += self.stream.stride;
            if self.at == self.stream.values.len() {
                self.at = 0;
            }
        }
        free.len()
    }
}

/// Frees the frames of `list` and returns their total bytes.
#[inline(always)]
fn swallow(batch: &mut Batch, list: u64, mut give: impl FnMut(Frame)) -> u64 {
    let mut bytes = 0;
    for slot in Bits(list) {
        let frame = batch.take(slot);
        bytes += frame.len() as u64;
        give(frame);
    }
    bytes
}

impl Port for Generator {
    fn name(&self) -> &str {
        &self.name
    }

    fn pool(&self) -> Option<PoolId> {
        Some(self.pool)
    }

    fn receive(&mut self, pools: &mut Pools, batch: &mut Batch) {
        let wanted = (batch.space() as u64).min(self.left) as usize;
        let free = &mut batch.free_slots()[..wanted];
        // The kind of pool is matched once, outside the loop, so that a frame is built in registers and
        // written once. A frame that is built in memory and then copied would cause a store-forwarding stall,
        // which is half of the total cost.
        let count = match pools.get_mut(self.pool).expect("a port is opened on a pool of its worker") {
            Pool::Region(pool) => self.generate(free, || pool.take()),
            Pool::Foreign(_, pool) => self.generate(free, || pool.take()),
        };
        batch.extend(count);
        self.statistics.starved += u64::from(count < wanted);
        self.left -= count as u64;
        self.statistics.received += count as u64;
        self.statistics.received_bytes += (count * self.stream.template.len()) as u64;
    }

    fn transmit(&mut self, pools: &mut Pools, batch: &mut Batch, list: u64) -> u64 {
        let bytes = match pools.get_mut(self.pool).expect("a port is opened on a pool of its worker") {
            Pool::Region(pool) => swallow(batch, list, |frame| {
                // `give` asserts the same, but by reference. Asserting it here by value keeps the compiler
                // from writing the frame to the stack in pieces of one size and reading it back in pieces of
                // another, which costs 4 ns.
                assert!(frame.pool() == pool.id(), "a frame returns to its own pool");
                pool.give(frame);
            }),
            Pool::Foreign(_, pool) => swallow(batch, list, |frame| pool.give(frame)),
        };
        self.statistics.transmitted += u64::from(list.count_ones());
        self.statistics.transmitted_bytes += bytes;
        list
    }

    fn flush(&mut self, _pools: &mut Pools) {}

    fn statistics(&self) -> PortStatistics {
        self.statistics
    }

    fn mode(&self) -> String {
        "generator".to_owned()
    }

    fn exhausted(&self) -> bool {
        self.left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_packet::BATCH;

    fn address(last: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 0, 0, last)
    }

    #[test]
    fn the_stream_repeats_until_its_count_is_reached() {
        let mut pools = Pools::region(128);
        let pool = pools.first().id();
        let stream = Stream::udp(60, (0..3).map(|i| (address(i), address(9), 1000 + u16::from(i), 53)));
        assert_eq!(stream.frames(), 3);
        let mut port = Generator::new("g", &mut pools, pool, stream, 70);
        let (mut batch, mut order) = (Batch::new(), Vec::new());
        while !port.exhausted() {
            port.receive(&mut pools, &mut batch);
            assert!(batch.len() == BATCH || batch.len() == 6);
            order.extend(batch.frames().iter().map(|frame| frame.bytes()[29]));
            assert!(batch.frames().iter().all(
                |frame| frame.len() == 60 && checksum(Sum::default().bytes(&frame.bytes()[14..34])) == 0
            ));
            let all = batch.mask();
            assert_eq!(port.transmit(&mut pools, &mut batch, all), all);
            batch.clear();
        }
        assert_eq!(order, (0..70).map(|i| i % 3).collect::<Vec<u8>>());
        assert_eq!(port.statistics().transmitted_bytes, 70 * 60);
        assert_eq!(pools.first().available(), 128);
    }

    #[test]
    fn scattered_flows_come_once_each() {
        let stream = Stream::scattered(1000);
        let source = |at| u32::from_be_bytes(stream.frame(at)[26..30].try_into().expect("four bytes"));
        let sources: std::collections::BTreeSet<u32> = (0..stream.frames()).map(source).collect();
        assert!(sources.into_iter().eq((0..1000).map(|at| 0x0a00_0000 + at)));
        assert_ne!(source(1), source(0) + 1);
    }

    #[test]
    fn patches_are_written_where_they_belong() {
        let mut pools = Pools::region(1);
        let pool = pools.first().id();
        let patches = vec![Patch { offset: 1, length: 2 }, Patch { offset: 5, length: 1 }];
        let stream = Stream::new(vec![0; 7], patches, vec![1, 2, 3, 4, 5, 6]);
        let mut port = Generator::new("g", &mut pools, pool, stream, u64::MAX);
        let mut batch = Batch::new();
        for expected in [[0, 1, 2, 0, 0, 3, 0], [0, 4, 5, 0, 0, 6, 0]] {
            port.receive(&mut pools, &mut batch);
            assert_eq!(batch.frame(0).bytes(), expected);
            port.transmit(&mut pools, &mut batch, 1);
            batch.clear();
        }
        assert_eq!(port.statistics().starved, 2, "one chunk: each receive wanted 64");
    }
}
