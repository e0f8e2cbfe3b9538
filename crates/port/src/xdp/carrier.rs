//! Queries of a link's state, cheap enough to repeat often. Netlink also reports changes, but it may report
//! those of a NIC a second late, because the kernel batches them. The ethtool ioctl returns the driver's
//! present state and costs only a microsecond or two.

use std::io;

use rustix::io::Errno;

use super::ethtool::Ethtool;
use crate::LinkState;

/// Queries the interfaces of the network namespace in which it was opened.
pub struct Carrier(Ethtool);

impl Carrier {
    /// Opens a socket for queries.
    ///
    /// # Errors
    /// No socket could be opened.
    pub fn open() -> io::Result<Carrier> {
        Ok(Carrier(Ethtool::open()?))
    }

    /// Returns true if the interface's link is up. A missing interface counts as down, an interface whose
    /// driver does not report carrier as up.
    #[must_use]
    pub fn is_up(&self, interface: &str) -> bool {
        !matches!(self.0.carrier(interface), Ok(false) | Err(Errno::NODEV))
    }

    /// Returns the link's state and speed, which takes longer.
    #[must_use]
    pub fn state(&self, interface: &str) -> LinkState {
        let up = self.is_up(interface);
        LinkState { up, speed_bps: self.0.speed_bps(interface).filter(|_| up) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_up_and_what_is_not_is_down() {
        let carrier = Carrier::open().unwrap();
        assert_eq!(carrier.state("lo"), LinkState { up: true, speed_bps: None });
        assert_eq!(carrier.state("no-such-one"), LinkState::default());
        assert_eq!(carrier.state("a name far too long for an interface"), LinkState::default());
    }
}
