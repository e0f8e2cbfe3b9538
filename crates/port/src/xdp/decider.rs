//! The maps and limits that a program needs to handle frames in the kernel, before they reach a socket.

use super::XdpInterface;
use super::interface::frame_max;
use std::io;
use weir_bpf::TakeMaps;

impl XdpInterface {
    /// Returns the maps with which another program handles frames that are taken; `None` while the interface
    /// is gone. While the interface still belongs to another process, they are those of the program that will
    /// [replace](XdpInterface::replace) the other one.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn take_maps(&self) -> io::Result<Option<TakeMaps>> {
        match (&self.attached, &self.prepared) {
            (Some(attached), _) => attached.program().maps().map(Some),
            (None, Some(program)) => program.maps().map(Some),
            (None, None) => Ok(None),
        }
    }

    /// Returns the length of the longest frame that the interface sends, in bytes.
    #[must_use]
    pub fn frame_max(&self) -> usize {
        frame_max(self.link())
    }
}
