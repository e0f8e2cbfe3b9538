//! The features of the running kernel that labs depend on.

use std::fs;

use anyhow::{Context, Result};
use weir_bed::Namespace;
use weir_bpf::{AttachMode, XdpTake};

/// The first version in which a process can map the rings of an AF_XDP socket that is already bound.
const MAPS_BOUND_SOCKETS: (u32, u32) = (6, 4);

/// Returns true if one weir can take over the sockets of another.
pub fn maps_bound_sockets() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    version(&release).is_some_and(|version| version >= MAPS_BOUND_SOCKETS)
}

/// Attaches a program that passes every frame to an interface of a cable. A veth receives what XDP sends at
/// the cable's other end only while it has such a program, which stays attached as long as the result lives.
///
/// # Errors
/// There is no such interface, or the kernel refuses the program.
pub fn pass_all(namespace: &Namespace, interface: &str) -> Result<XdpTake> {
    namespace.within(|| {
        let links = weir_netlink::links()?;
        let link = links.iter().find(|link| link.name == interface);
        let link = link.with_context(|| format!("there is no interface `{interface}`"))?;
        let mut program = XdpTake::load(1)?;
        program.attach(link.index, AttachMode::Native)?;
        Ok(program)
    })
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
