//! Memory close to the NIC: on a machine with several NUMA nodes, a frame that the NIC writes into another
//! node's memory takes twice as long to read.
//!
//! A thread prefers a node for memory that it touches first. Nothing fails if the node has no memory left, or
//! if the kernel, or a container, does not allow it: memory is then wherever the kernel puts it.

use std::ffi::c_ulong;

/// How the kernel chooses memory for a thread (`linux/mempolicy.h`).
const DEFAULT: libc::c_long = 0;
const PREFERRED: libc::c_long = 1;

/// Number of nodes that fit into the mask.
const NODES: u32 = c_ulong::BITS;

/// Makes this thread prefer a node's memory until the value is dropped, which restores the default policy.
#[derive(Debug)]
pub struct Preferred(bool);

/// Returns the node of a network interface's device; `None` if the device has no node, or if the machine has
/// only one.
#[must_use]
pub fn node(interface: &str) -> Option<u32> {
    if interface.contains('/') {
        return None;
    }
    let file = format!("/sys/class/net/{interface}/device/numa_node");
    // Bounded: the kernel writes it.
    parse(&std::fs::read_to_string(file).ok()?)
}

/// Parses the file that the kernel writes: a number, or -1 if there is no choice.
fn parse(text: &str) -> Option<u32> {
    text.trim().parse().ok()
}

/// Returns the node of these interfaces, if all interfaces with a node have the same one.
#[must_use]
pub fn common<'a>(interfaces: impl IntoIterator<Item = &'a str>) -> Option<u32> {
    agreed(interfaces.into_iter().filter_map(node))
}

fn agreed(nodes: impl IntoIterator<Item = u32>) -> Option<u32> {
    let mut nodes = nodes.into_iter();
    let first = nodes.next()?;
    nodes.all(|node| node == first).then_some(first)
}

impl Preferred {
    /// Makes this thread prefer a node. Does nothing if there is none.
    #[must_use]
    pub fn of(node: Option<u32>) -> Preferred {
        Preferred(node.filter(|node| *node < NODES).is_some_and(|node| set(PREFERRED, 1 << node)))
    }

    /// Returns true if any node is preferred.
    #[must_use]
    pub fn is_in_force(&self) -> bool {
        self.0
    }
}

impl Drop for Preferred {
    fn drop(&mut self) {
        if self.0 {
            set(DEFAULT, 0);
        }
    }
}

/// Sets the policy of this thread. Returns false if the kernel refuses.
fn set(policy: libc::c_long, nodes: c_ulong) -> bool {
    let (mask, bits) = if nodes == 0 { (std::ptr::null(), 0) } else { (&raw const nodes, NODES + 1) };
    // SAFETY: the kernel reads at most a word of `nodes`, which lives longer than the call, and writes
    // nothing.
    let result = unsafe { libc::syscall(libc::SYS_set_mempolicy, policy, mask, libc::c_ulong::from(bits)) };
    result == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_a_number_and_minus_one_is_none() {
        assert_eq!(["0\n", "3\n", "-1\n", "", "x"].map(parse), [Some(0), Some(3), None, None, None]);
        assert_eq!((node("lo"), node("../../x"), node("no-such-interface")), (None, None, None));
    }

    #[test]
    fn interfaces_on_several_nodes_have_none_in_common() {
        assert_eq!([agreed([1, 1]), agreed([1, 0]), agreed([])], [Some(1), None, None]);
    }

    #[test]
    fn without_a_node_nothing_is_preferred_and_a_node_that_is_not_there_does_no_harm() {
        assert!(!Preferred::of(None).is_in_force());
        for node in [NODES, NODES - 1] {
            assert!(!Preferred::of(Some(node)).is_in_force());
        }
        // Node 0 is always there; in some containers the call is not allowed.
        drop(Preferred::of(Some(0)));
        assert_eq!(vec![7_u8; 1 << 20].iter().map(|one| usize::from(*one)).sum::<usize>(), 7 << 20);
    }
}
