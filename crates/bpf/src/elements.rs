//! Elements of hash maps, many with each system call. aya finds each element by the key of the previous one,
//! and starts over if that key has been removed meanwhile.

use aya::maps::{HashMap, IterableMap, MapData};
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The command of bpf(2), as in linux/bpf.h.
const MAP_LOOKUP_BATCH: i32 = 24;

/// Elements of a map with their keys, and where the next elements begin; `None` after the last.
pub type Elements<const KEY: usize, const VALUE: usize> = (Vec<([u8; KEY], [u8; VALUE])>, Option<u32>);

/// Reads up to `most` elements. `from` is where the previous call ended, or 0. Elements that exist throughout
/// are read exactly once, whatever is added and removed meanwhile: the place is a bucket's number, and the
/// number of buckets is constant.
///
/// # Errors
/// Returns the kernel's error: `ENOSPC` if a bucket has more than `most` elements, `EINVAL` before Linux 5.6.
pub fn elements<const KEY: usize, const VALUE: usize>(
    map: &HashMap<MapData, [u8; KEY], [u8; VALUE]>,
    from: u32,
    most: u32,
) -> io::Result<Elements<KEY, VALUE>> {
    let (mut keys, mut values) = (vec![[0; KEY]; most as usize], vec![[0; VALUE]; most as usize]);
    let mut next = 0_u32;
    let fd = map.map().fd().as_fd().as_raw_fd().cast_unsigned();
    // The part of `union bpf_attr` for batches: where to begin and where that went, the keys, the values, how
    // many elements and which map, then flags.
    let mut attributes = [
        &raw const from as u64,
        &raw mut next as u64,
        keys.as_mut_ptr() as u64,
        values.as_mut_ptr() as u64,
        u64::from(most) | u64::from(fd) << 32,
        0,
        0,
    ];
    let size = size_of_val(&attributes) as u32;
    // SAFETY: the kernel reads and writes within `attributes`, whose size is passed, reads `from`, and writes
    // `next` and at most `most` keys and values, whose sizes `HashMap` has compared with the map's; all of
    // them live until it returns.
    let result = unsafe { libc::syscall(libc::SYS_bpf, MAP_LOOKUP_BATCH, attributes.as_mut_ptr(), size) };
    if result < 0 {
        let error = io::Error::last_os_error();
        // The last bucket was read.
        if error.raw_os_error() != Some(libc::ENOENT) {
            return Err(error);
        }
    }
    let read = attributes[4] as u32;
    assert!(read <= most, "the kernel has written {read} of {most} elements");
    Ok((keys.into_iter().zip(values).take(read as usize).collect(), (result >= 0).then_some(next)))
}
