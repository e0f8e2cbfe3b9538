//! `names`: the file with the names of addresses.

use std::path::PathBuf;
use weir_config::raw::Node;
use weir_config::section::{Section, text};
use weir_config::{Key, Report, Shape};

pub(super) const KEYS: &[Key] = weir_config::keys! {
    needed "file": Shape::Text, "the file with names, in YAML or JSON, which weir follows";
};

/// Reads the section; `None` if there is an error, which is reported.
pub(super) fn read(node: &Node, report: &mut Report) -> Option<PathBuf> {
    let section = Section::read(node, KEYS, report);
    let file = section.needed("file", report)?;
    text(file, "a file", report).map(PathBuf::from)
}
