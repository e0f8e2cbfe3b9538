//! Is a link up, asked again and again. Netlink tells of changes too, but for a NIC it may do so a second late, as the
//! kernel gathers them; the ethtool ioctl says what the driver says now, and for little: a microsecond or two.

use std::io;

use rustix::io::Errno;

use super::ethtool::Ethtool;
use crate::LinkState;

/// Asks about interfaces of the network namespace it was opened in.
pub struct Carrier(Ethtool);

impl Carrier {
    /// Something to ask with.
    ///
    /// # Errors
    /// No socket could be opened.
    pub fn open() -> io::Result<Carrier> {
        Ok(Carrier(Ethtool::open()?))
    }

    /// Is the interface's link up? One that is gone is down; one whose driver does not say counts as up.
    #[must_use]
    pub fn is_up(&self, interface: &str) -> bool {
        !matches!(self.0.carrier(interface), Ok(false) | Err(Errno::NODEV))
    }

    /// The same with its speed, which takes longer.
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
