//! Paths of unix sockets: the control socket's and those of apps.

use crate::diagnostic::Report;
use crate::raw::Node;
use crate::section::text;

/// The maximum length of a unix socket's path in bytes: `sun_path` (108) without its terminating zero.
pub const PATH_MAX: usize = 107;

/// Reads the path of a socket.
pub fn path<'a>(node: &'a Node, report: &mut Report) -> Option<&'a str> {
    let path = text(node, "a path", report)?;
    match wrong(path) {
        None => Some(path),
        Some(wrong) => {
            report.error_help(node.span, format!("the path {wrong}"), "such as /run/weir/weir.sock");
            None
        }
    }
}

/// Explains why no socket can have this path.
#[must_use]
pub fn wrong(path: &str) -> Option<String> {
    if path.is_empty() || path.ends_with('/') {
        Some("names no file".to_string())
    } else if path.len() > PATH_MAX {
        Some(format!("has {} bytes, but a socket path has at most {PATH_MAX}", path.len()))
    } else if path.contains('\0') {
        Some("contains a NUL byte".to_string())
    } else {
        None
    }
}
