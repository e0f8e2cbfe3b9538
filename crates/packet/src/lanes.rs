//! Loops over the packets of a batch, compiled for the widest vectors that the processor at hand has. The program itself is
//! compiled for any x86-64, and what gains by more than that is little: a few hashes.
//!
//! A loop is written once, in plain Rust, and inlined into functions that differ in what the compiler may use.

/// Runs `body`, a loop over 64 packets that does the same for each: additions, products, shifts, no look-ups.
#[inline(always)]
pub fn widest(body: impl FnOnce()) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512dq") && is_x86_feature_detected!("avx512vl") {
            // SAFETY: the processor has what the function is compiled for; it says so on the line above.
            return unsafe { with_avx512(body) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: as above.
            return unsafe { with_avx2(body) };
        }
    }
    body();
}

/// Vectors of 512 bits, with 64-bit products and rotations.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512vl")]
fn with_avx512(body: impl FnOnce()) {
    body();
}

/// Vectors of 256 bits.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn with_avx2(body: impl FnOnce()) {
    body();
}
