//! The features of the running kernel that labs depend on.

use std::fs;

/// The first version in which a process can map the rings of an AF_XDP socket that is already bound.
const MAPS_BOUND_SOCKETS: (u32, u32) = (6, 4);

/// Returns true if one weir can take over the sockets of another.
pub fn maps_bound_sockets() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    version(&release).is_some_and(|version| version >= MAPS_BOUND_SOCKETS)
}

/// Reads the first two numbers of a release such as `6.1.0-56-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.trim().split(|letter: char| !letter.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_compared_by_numbers() {
        for (release, can) in [("6.1.0-56-amd64\n", false), ("6.4-rc1", true), ("6.12.9+deb13", true)] {
            assert_eq!(version(release) >= Some(MAPS_BOUND_SOCKETS), can, "{release}");
        }
        assert_eq!(version("unknown"), None);
    }
}
