//! Declarations of the functions of shim.c, and owners of what they return: the only unsafe code of the DPDK
//! port.
//!
//! Promises: a pool outlives its ports and its frames, a device outlives its queues, and a queue is used by
//! one thread at a time, as is a device apart from its queues. The types ensure this: devices hold their
//! pool, queues hold their device, using a queue needs `&mut`, and a running device is queried under its
//! lock. A pool with frames still in use is leaked, never freed.

use crate::LinkState;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use weir_packet::{Frame, PoolId, RSS_KEY, RSS_KEY_BYTES};

/// Bytes in the name of an xstat, including the NUL (`RTE_ETH_XSTATS_NAME_SIZE`).
const XSTAT_NAME: usize = 64;

/// Bytes of the log from which an error is extracted; the shim keeps the same number.
const LOG_BYTES: usize = 16384;

/// `struct weir_burst`: the outcome of a burst.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Burst {
    pub bytes: u64,
    pub frames: u16,
    /// Frames with several segments, freed by the shim.
    pub refused: u16,
}

/// `struct weir_counters`: the driver's counters of the whole port.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct DpdkCounters {
    pub missed: u64,
    pub no_mbuf: u64,
    pub receive_errors: u64,
    pub transmit_errors: u64,
}

/// `struct weir_link`.
#[derive(Default)]
#[repr(C)]
struct DpdkLink {
    /// Mbit/s; 0 if unknown.
    speed: u32,
    up: u32,
}

/// `struct weir_info`.
#[derive(Default)]
#[repr(C)]
struct Info {
    driver: [c_char; 32],
    receive_queues: u16,
    transmit_queues: u16,
}

const _: () = assert!(size_of::<Burst>() == 16 && size_of::<DpdkCounters>() == 32 && size_of::<Info>() == 36);
const _: () = assert!(size_of::<DpdkLink>() == 8);
const _: () = assert!(size_of::<Frame>() == 32 && align_of::<Frame>() == 8);

unsafe extern "C" {
    fn weir_log_take(out: *mut u8, size: usize) -> usize;
    fn weir_eal_init(argc: c_int, argv: *mut *mut c_char) -> c_int;
    safe fn weir_first_cpu() -> c_int;
    fn weir_thread_register() -> c_int;
    fn weir_thread_unregister();
    fn weir_pool_create(name: *const c_char, frames: u32, cache: u32, room: u16) -> *mut c_void;
    fn weir_pool_available(pool: *const c_void) -> u32;
    fn weir_pool_free(pool: *mut c_void);
    fn weir_pool_take(pool: *mut c_void, out: *mut Frame, id: u32) -> c_int;
    fn weir_pool_give(handle: u64);
    fn weir_frame_sample(out: *mut Frame, data: *mut u8);
    fn weir_device_add(devargs: *const c_char, out: *mut u16) -> c_int;
    fn weir_port_info(port: u16, out: *mut Info) -> c_int;
    fn weir_port_start(port: u16, queues: u16, descriptors: u16, mtu: u16, pool: *mut c_void) -> c_int;
    fn weir_port_spread(port: u16, queues: u16, key: *mut u8, length: u8) -> c_int;
    fn weir_port_close(port: u16, queues: u16);
    fn weir_port_link(port: u16, out: *mut DpdkLink) -> c_int;
    fn weir_rx_burst(port: u16, queue: u16, out: *mut Frame, n: u16, pool: u32, sum: *mut Burst);
    fn weir_tx_burst(
        port: u16,
        queue: u16,
        frames: *const Frame,
        list: u64,
        pool: u32,
        sum: *mut Burst,
    ) -> u64;
    fn weir_port_counters(port: u16, out: *mut DpdkCounters) -> c_int;
    fn weir_xstat_names(port: u16, names: *mut [u8; XSTAT_NAME], ids: *mut u64, n: u32) -> c_int;
    fn weir_xstats(port: u16, ids: *const u64, values: *mut u64, n: u32) -> c_int;
}

/// An errno returned by DPDK, as a positive number.
pub(super) type Errno = i32;

fn check(code: c_int) -> Result<c_int, Errno> {
    if code < 0 { Err(-code) } else { Ok(code) }
}

/// Returns what DPDK has logged since the last call.
pub(super) fn take_log() -> String {
    let mut text = vec![0; LOG_BYTES];
    // SAFETY: the shim writes at most `len` bytes and returns how many.
    let length = unsafe { weir_log_take(text.as_mut_ptr(), text.len()) };
    text.truncate(length);
    String::from_utf8_lossy(&text).into_owned()
}

/// Returns the first CPU that this thread may run on.
pub(super) fn first_cpu() -> i32 {
    weir_first_cpu()
}

/// Starts DPDK. Must be called only once per process, even if it fails.
pub(super) fn start_eal(arguments: Vec<CString>) -> Result<(), Errno> {
    let mut argv: Vec<*mut c_char> = arguments.into_iter().map(CString::into_raw).collect();
    let argc = c_int::try_from(argv.len()).expect("few arguments");
    argv.push(std::ptr::null_mut());
    // SAFETY: `argv` is a NULL-terminated array of C strings; all of it is leaked because DPDK keeps pointers
    // to it.
    check(unsafe { weir_eal_init(argc, argv.leak().as_mut_ptr()) })?;
    assert_frame_layout();
    Ok(())
}

/// Checks that C and Rust agree on the layout of a frame. Its fields are private, so C fills one and Rust
/// reads it.
fn assert_frame_layout() {
    let mut byte = 0;
    let mut frame = Frame::absent();
    // SAFETY: the shim writes a frame's 32 bytes; the frame's memory is never accessed, only its fields are
    // read.
    unsafe { weir_frame_sample(&raw mut frame, &raw mut byte) };
    let room = frame.room();
    assert_eq!(frame.data().as_ptr(), &raw mut byte, "frame layout: data");
    assert_eq!(frame.handle(), 0x0102_0304_0506_0708, "frame layout: handle");
    assert_eq!((room.length, room.headroom, room.tailroom), (0x1112, 0x2122, 0x3132), "frame layout: room");
    assert_eq!(frame.pool(), PoolId(0x4142_4344), "frame layout: pool");
    assert_eq!(frame.hash(), 0x5152_5354, "frame layout: hash");
}

/// Registers this thread with DPDK. Returns false if it was registered already.
pub(super) fn register_thread() -> Result<bool, Errno> {
    // SAFETY: changes only DPDK's thread-local state; refused before `start_eal`.
    check(unsafe { weir_thread_register() }).map(|known| known == 0)
}

/// Reverts [`register_thread`] on the same thread.
pub(super) fn unregister_thread() {
    // SAFETY: as in `register_thread`; does nothing for a thread that is not registered.
    unsafe { weir_thread_unregister() }
}

/// A mempool of mbufs.
pub(super) struct Mempool {
    pool: NonNull<c_void>,
    id: PoolId,
    frames: u32,
}

// SAFETY: a mempool created without flags can be used from any thread; the pointer is valid until `drop`.
unsafe impl Send for Mempool {}
// SAFETY: as above.
unsafe impl Sync for Mempool {}

impl Mempool {
    /// Creates a pool of `frames` mbufs for frames of `room` bytes, of which a registered thread caches up to
    /// `cache`. `None` if memory is short.
    pub fn new(name: &CStr, frames: u32, cache: u32, room: u16) -> Option<Mempool> {
        // SAFETY: `name` is a C string, which the shim copies.
        let pool = NonNull::new(unsafe { weir_pool_create(name.as_ptr(), frames, cache, room) })?;
        Some(Mempool { pool, id: PoolId::next(), frames })
    }

    pub fn id(&self) -> PoolId {
        self.id
    }

    pub fn frames(&self) -> u32 {
        self.frames
    }

    /// Counts the free frames, including those in the caches of threads.
    pub fn available(&self) -> u32 {
        // SAFETY: the pool is valid until `drop`.
        unsafe { weir_pool_available(self.pool.as_ptr()) }
    }

    #[inline]
    pub fn take(&self) -> Option<Frame> {
        let mut frame = Frame::absent();
        // SAFETY: the pool is valid; the shim fills the frame with an mbuf that nothing else owns, whose
        // memory was mapped zeroed, hence initialised.
        let taken = unsafe { weir_pool_take(self.pool.as_ptr(), &raw mut frame, self.id.0) };
        debug_assert!(taken == 0 || frame.pool() == self.id, "the shim has filled the frame");
        (taken == 1).then_some(frame)
    }

    #[inline]
    pub fn give(&self, frame: Frame) {
        assert_eq!(frame.pool(), self.id, "a frame returns to its own pool");
        // SAFETY: only this file creates frames with this pool's id, with an mbuf as their handle; they are
        // move-only, so the owner of the frame owns the mbuf.
        unsafe { weir_pool_give(frame.handle()) }
    }
}

impl Drop for Mempool {
    fn drop(&mut self) {
        // The memory must stay while frames are in use: leaking it is the safe choice.
        if self.available() == self.frames {
            // SAFETY: all mbufs are free, and no device uses the pool, because devices hold it.
            unsafe { weir_pool_free(self.pool.as_ptr()) }
        }
    }
}

/// A DPDK port that was plugged in. It is closed and unplugged when its last queue is dropped.
pub(super) struct Device {
    port: u16,
    /// Queues in each direction while it runs.
    queues: u16,
    pool: Option<Arc<Mempool>>,
    /// Held during calls that concern the whole port, because DPDK does not allow them to overlap.
    asking: Mutex<()>,
}

impl Device {
    /// Plugs in the device given by `devargs`. Returns `EBUSY` if it is in use already.
    pub fn plug(devargs: &CStr) -> Result<Device, Errno> {
        let mut port = 0;
        // SAFETY: `devargs` is a C string; the shim writes one u16.
        check(unsafe { weir_device_add(devargs.as_ptr(), &raw mut port) })?;
        Ok(Device { port, queues: 0, pool: None, asking: Mutex::new(()) })
    }

    /// Returns the driver's name and its number of receive and transmit queues.
    pub fn info(&self) -> Result<(String, u16, u16), Errno> {
        let mut info = Info::default();
        // SAFETY: the shim fills an `Info`, whose layout is asserted above.
        check(unsafe { weir_port_info(self.port, &raw mut info) })?;
        // SAFETY: snprintf ended the name with a NUL inside the array.
        let driver = unsafe { CStr::from_ptr(info.driver.as_ptr()) };
        Ok((driver.to_string_lossy().into_owned(), info.receive_queues, info.transmit_queues))
    }

    /// Starts the port with `queues` queues in each direction and returns them. An `mtu` of 0 means the
    /// driver's default.
    pub fn start(
        mut self,
        (queues, descriptors): (u16, u16),
        mtu: u16,
        pool: &Arc<Mempool>,
    ) -> Result<Vec<Queue>, Errno> {
        self.pool = Some(Arc::clone(pool));
        // SAFETY: the pool is valid, and this device holds it from now on.
        check(unsafe { weir_port_start(self.port, queues, descriptors, mtu, pool.pool.as_ptr()) })?;
        self.queues = queues;
        let device = Arc::new(self);
        Ok((0..queues).map(|queue| Queue { queue, pool: pool.id, device: Arc::clone(&device) }).collect())
    }

    /// Configures the port to hash addresses and ports with [`RSS_KEY`] and to assign the buckets to its
    /// queues in turn. Returns the number of buckets; 0 if the driver does not support this.
    pub fn spread(&self) -> u32 {
        let _asking = self.ask();
        let mut key = RSS_KEY;
        // SAFETY: the port is ours and started; the shim reads the key's bytes while it runs.
        let buckets =
            unsafe { weir_port_spread(self.port, self.queues, key.as_mut_ptr(), RSS_KEY_BYTES as u8) };
        u32::try_from(buckets).unwrap_or_default()
    }

    fn ask(&self) -> MutexGuard<'_, ()> {
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the link as the driver knows it now, without waiting. An error means that the driver does not
    /// report it.
    pub fn link(&self) -> Result<LinkState, Errno> {
        let _asking = self.ask();
        let mut link = DpdkLink::default();
        // SAFETY: the port is ours until `drop`, so it is neither stopped nor closed meanwhile, and the lock
        // keeps calls that concern the whole port from overlapping; its queues may be in use. The shim fills
        // a `DpdkLink`, whose layout is asserted above, or leaves it unchanged.
        check(unsafe { weir_port_link(self.port, &raw mut link) })?;
        let up = link.up != 0;
        let speed_bps = (up && link.speed != 0).then(|| u64::from(link.speed) * 1_000_000);
        Ok(LinkState { up, speed_bps })
    }

    /// Returns the driver's counters; zero for drivers without counters.
    pub fn counters(&self) -> DpdkCounters {
        let _asking = self.ask();
        let mut counters = DpdkCounters::default();
        // SAFETY: the shim fills a `DpdkCounters`, whose layout is asserted above, or leaves it unchanged.
        let _ = unsafe { weir_port_counters(self.port, &raw mut counters) };
        counters
    }

    /// Returns the numbers and names of the first `limit` extended statistics.
    pub fn xstat_names(&self, limit: usize) -> Vec<(u64, String)> {
        let _asking = self.ask();
        let (mut names, mut ids) = (vec![[0; XSTAT_NAME]; limit], vec![0; limit]);
        // SAFETY: both arrays have `limit` elements, and the shim fills no more than that.
        let count =
            unsafe { weir_xstat_names(self.port, names.as_mut_ptr(), ids.as_mut_ptr(), limit as u32) };
        let count = usize::try_from(count).unwrap_or(0);
        let text =
            |name: &[u8]| CStr::from_bytes_until_nul(name).map(|name| name.to_string_lossy().into_owned());
        ids.into_iter()
            .zip(&names)
            .take(count)
            .filter_map(|(id, name)| Some((id, text(name).ok()?)))
            .collect()
    }

    /// Returns the values of extended statistics; empty if the driver refuses.
    pub fn xstats(&self, ids: &[u64]) -> Vec<u64> {
        let _asking = self.ask();
        let mut values = vec![0; ids.len()];
        // SAFETY: both arrays have `ids.len()` elements.
        let got = unsafe { weir_xstats(self.port, ids.as_ptr(), values.as_mut_ptr(), ids.len() as u32) };
        values.truncate(usize::try_from(got).unwrap_or(0));
        values
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: `plug` made the port ours. Queues and callers hold the device, so no burst or call is in
        // progress.
        unsafe { weir_port_close(self.port, self.queues) }
    }
}

/// One queue in each direction of a started device.
pub(super) struct Queue {
    queue: u16,
    pool: PoolId,
    device: Arc<Device>,
}

impl Queue {
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Configures how the port spreads frames over its queues; see [`Device::spread`].
    pub fn spread(&self) -> u32 {
        self.device.spread()
    }

    /// Returns a weak reference to the device for users other than its queues; they may find it closed.
    pub fn shared_device(&self) -> Weak<Device> {
        Arc::downgrade(&self.device)
    }

    pub fn number(&self) -> u16 {
        self.queue
    }

    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// Fills the first of `slots`, which must hold no frames, with frames that have arrived.
    #[inline]
    pub fn receive(&mut self, slots: &mut [Frame]) -> Burst {
        let mut burst = Burst::default();
        let n = slots.len().min(weir_packet::BATCH) as u16;
        debug_assert!(slots.iter().all(Frame::is_absent), "a frame would be overwritten");
        // SAFETY: there are `n` slots, of the layout asserted at start; the shim fills them with mbufs of one
        // segment and one owner that the driver has released; `&mut self` keeps other threads off the queue.
        unsafe {
            weir_rx_burst(self.device.port, self.queue, slots.as_mut_ptr(), n, self.pool.0, &raw mut burst);
        }
        assert!(burst.frames <= n, "the shim has filled {} of {n} slots", burst.frames);
        debug_assert!(slots[..usize::from(burst.frames)].iter().all(|frame| frame.pool() == self.pool));
        burst
    }

    /// Sends the frames selected by `list`; returns the mask of those that the driver now owns. The caller
    /// removes them from the slots.
    ///
    /// # Panics
    /// Panics if a frame belongs to another pool.
    #[inline]
    pub fn transmit(&mut self, frames: &[Frame], list: u64) -> (u64, Burst) {
        assert!(list.checked_shr(frames.len() as u32).unwrap_or(0) == 0, "a list names slots in use");
        let mut burst = Burst::default();
        // SAFETY: all bits are inside `frames`; the shim checks that each frame belongs to this queue's pool
        // before it treats its handle as an mbuf; the frame's bytes lie inside that mbuf (ensured by
        // `Frame`).
        let accepted = unsafe {
            weir_tx_burst(self.device.port, self.queue, frames.as_ptr(), list, self.pool.0, &raw mut burst)
        };
        assert!(burst.frames != u16::MAX, "a frame goes to a port on its own pool");
        debug_assert_eq!(accepted & !list, 0, "only listed frames are accepted");
        (accepted, burst)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DpdkOptions, DpdkPort, Eal, EalMemory, EalOptions, MbufPool};
    use super::*;
    use weir_packet::{Batch, Bits, Pools, Port};

    unsafe extern "C" {
        safe fn weir_hash_for_tests(port: u16, queue: u16) -> c_int;
    }

    /// The only test in this process that starts DPDK.
    #[test]
    fn a_frame_has_the_hash_that_its_driver_delivered_and_leaves_without() {
        let eal = Eal::init(&EalOptions { memory: EalMemory::NoHuge(96), ..EalOptions::default() }).unwrap();
        let pool = MbufPool::new(eal, 4095).unwrap();
        let mut pools = Pools::new();
        pools.add(pool.share());
        let mut port = DpdkPort::open(eal, &DpdkOptions::new("p", "net_ring0"), &pool).unwrap().remove(0);
        let mut batch = Batch::new();
        for _ in 0..4 {
            batch.push(pools.first().take().unwrap()).unwrap();
        }
        let hashes = |batch: &Batch| batch.frames().iter().map(Frame::hash).collect::<Vec<u32>>();
        // Frames sent to a net_ring arrive from it again, in the same mbufs.
        let mut pass = |batch: &mut Batch| {
            let all = batch.mask();
            assert_eq!(port.transmit(&mut pools, batch, all), all);
            batch.clear();
            port.receive(&mut pools, batch);
            hashes(batch)
        };
        assert_eq!(pass(&mut batch), [0; 4]);
        assert_eq!(check(weir_hash_for_tests(0, 0)), Ok(0));
        assert_eq!(pass(&mut batch), [0, 0x8000_0001, 0, 0x8000_0003]);
        // The second and fourth of these frames arrive as the first and second of the next burst.
        let list = 0b1010;
        assert_eq!(port.transmit(&mut pools, &mut batch, list), list);
        [0, 2].into_iter().for_each(|slot| pools.give(batch.take(slot)));
        batch.clear();
        port.receive(&mut pools, &mut batch);
        assert_eq!(hashes(&batch), [0, 0x8000_0001], "a hash does not travel with the mbuf");
        Bits(batch.mask()).for_each(|slot| pools.give(batch.take(slot)));
        batch.clear();
        let fresh: Vec<Frame> = std::iter::from_fn(|| pools.first().take()).collect();
        assert!(fresh.len() == 4095 && fresh.iter().all(|frame| frame.hash() == 0), "nor with its memory");
        fresh.into_iter().for_each(|frame| pools.give(frame));
    }
}
