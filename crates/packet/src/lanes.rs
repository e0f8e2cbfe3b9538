//! Loops over the packets of a batch, compiled for the widest vectors of the processor at hand. The rest of
//! weir is compiled for any x86-64 processor, because only a few hashes would gain from newer instructions.
//!
//! A loop is written once, in plain Rust, and inlined into functions that differ in the instructions the
//! compiler may use.

/// Runs `body`, a loop that does the same work for each of 64 packets: additions, products and shifts, but no
/// table look-ups.
#[inline(always)]
pub fn widest(body: impl FnOnce()) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512dq") && is_x86_feature_detected!("avx512vl") {
            // SAFETY: the line above checked that the processor has what the function is compiled for.
            return unsafe { with_avx512(body) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: as above.
            return unsafe { with_avx2(body) };
        }
    }
    body();
}

/// Compiled for vectors of 512 bits, with 64-bit products and rotations.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512vl")]
fn with_avx512(body: impl FnOnce()) {
    body();
}

/// Compiled for vectors of 256 bits.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn with_avx2(body: impl FnOnce()) {
    body();
}
