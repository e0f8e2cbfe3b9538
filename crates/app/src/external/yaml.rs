//! Reads `external` apps from the configuration.

use super::External;
use crate::App;
use crate::kind::{Configured, Scope};
use std::path::Path;
use std::sync::Arc;
use weir_config::raw::Node;
use weir_config::section::Section;
use weir_config::{Key, Report, Shape, socket};

pub(super) const KEYS: &[Key] = weir_config::keys! {
    needed "name": Shape::Name, "its name, which pipes forward to";
    needed "socket": Shape::Text, "the unix socket where its clients connect";
};

/// The apps outside weir, none of which has a client yet.
#[derive(Debug)]
struct Externals(Vec<External>);

impl Configured for Externals {
    fn running(&self) -> Vec<Box<dyn App>> {
        self.0.iter().map(|external| -> Box<dyn App> { Box::new(external.clone()) }).collect()
    }
}

/// Reads the apps; frames are forwarded to each of them by its name.
pub(super) fn read(items: &[&Node], scope: &mut Scope<'_>) -> Arc<dyn Configured> {
    let mut all: Vec<External> = Vec::new();
    for item in items {
        let Some(external) = external(item, scope) else { continue };
        let others = all.iter().map(|other| (other.socket.as_path(), format!("app `{}`", other.name)));
        let taken: Vec<_> = others.chain([(scope.control, "the daemon".to_string())]).collect();
        if let Some(external) = alone(external, item, &taken, scope.report) {
            scope.program.app(&external.name);
            all.push(external);
        }
    }
    Arc::new(Externals(all))
}

/// Reads an external app; `None` if it cannot be used, and the report says why.
fn external(node: &Node, scope: &mut Scope<'_>) -> Option<External> {
    let section = Section::read(node, KEYS, scope.report);
    let name = scope.name(&section).filter(|_| scope.name_is_free(&section));
    let path = section.needed("socket", scope.report);
    let path = path.and_then(|node| socket::path(node, scope.report));
    let origin = scope.report.origin(section.get("name").unwrap_or(node).span);
    Some(External::new(name?, path?.into(), origin))
}

/// Checks that no two apps share a socket.
fn alone(
    external: External,
    node: &Node,
    taken: &[(&Path, String)],
    report: &mut Report,
) -> Option<External> {
    let Some((_, who)) = taken.iter().find(|(path, _)| *path == external.socket) else {
        return Some(external);
    };
    let section = Section::read(node, KEYS, &mut Report::default());
    let span = section.get("socket").unwrap_or(node).span;
    report.error(span, format!("{who} already uses this socket: each app needs its own"));
    None
}
