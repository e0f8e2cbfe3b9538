//! DPDK's heavy-hitter sketch (`rte_member` of kind `SKETCH`, after NitroSketch: Liu et al., SIGCOMM 2019).
//! No port uses it: `weir bench measure` compares weir's own sketches with it, and nothing but this crate
//! links DPDK.
//!
//! Promises: a pointer from `weir_member_new` is used until it is freed, by its owner alone, and every key
//! that is passed has the length that the sketch was created for.

use super::{DpdkError, Eal};
use std::ffi::{c_int, c_void};
use std::ptr::{NonNull, null_mut};

/// A key: two words.
type MemberKey = [u64; 2];

unsafe extern "C" {
    fn weir_member_new(key_length: u32, keys: u32, bytes: f64) -> *mut c_void;
    fn weir_member_add(sketch: *mut c_void, key: *const c_void);
    fn weir_member_list(sketch: *mut c_void, keys: *mut *mut c_void, counts: *mut u64) -> c_int;
    fn weir_member_free(sketch: *mut c_void);
}

/// A sketch of `rte_member`.
#[derive(Debug)]
pub struct MemberSketch {
    sketch: NonNull<c_void>,
    keys: usize,
}

impl MemberSketch {
    /// Creates a sketch with five rows of counters of `bytes` bytes in total, which also remembers `keys`
    /// keys. Every packet is counted. DPDK must be running: `_eal` proves it.
    ///
    /// # Errors
    /// Returns [`DpdkError::Start`] if the library refuses, for example for lack of memory.
    pub fn new(_eal: Eal, keys: usize, bytes: usize) -> Result<MemberSketch, DpdkError> {
        let length = size_of::<MemberKey>() as u32;
        // SAFETY: DPDK runs; the function keeps none of its arguments.
        let sketch = unsafe { weir_member_new(length, keys as u32, bytes as f64) };
        let refused = || DpdkError::Start(format!("rte_member refuses a sketch of {bytes} bytes"));
        Ok(MemberSketch { sketch: NonNull::new(sketch).ok_or_else(refused)?, keys })
    }

    /// Counts a packet.
    #[inline]
    pub fn add(&mut self, key: &MemberKey) {
        // SAFETY: the sketch is alive, and a key has the length given to `weir_member_new`.
        unsafe { weir_member_add(self.sketch.as_ptr(), key.as_ptr().cast()) }
    }

    /// Returns the keys that the sketch remembers, with their packets.
    #[must_use]
    pub fn list(&self) -> Vec<(MemberKey, u64)> {
        let (mut keys, mut counts) = (vec![null_mut(); self.keys], vec![0; self.keys]);
        // SAFETY: there is room for all keys that the sketch was created for, which are the most it reports.
        let found = unsafe { weir_member_list(self.sketch.as_ptr(), keys.as_mut_ptr(), counts.as_mut_ptr()) };
        let found = usize::try_from(found).unwrap_or(0).min(self.keys);
        let read = |(key, count): (&*mut c_void, &u64)| {
            // SAFETY: the library has written the addresses of keys that it holds until the sketch is freed
            // or counts again; they may lie at any address.
            (unsafe { key.cast::<MemberKey>().read_unaligned() }, *count)
        };
        keys[..found].iter().zip(&counts).map(read).collect()
    }
}

impl Drop for MemberSketch {
    fn drop(&mut self) {
        // SAFETY: nothing else has the pointer, and it is not used again.
        unsafe { weir_member_free(self.sketch.as_ptr()) }
    }
}
