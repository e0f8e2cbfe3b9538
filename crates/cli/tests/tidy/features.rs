//! The code that runs features does not name any of them: the daemon, the commands, and the eBPF that several
//! features share. Only the list of kinds names their crates.

use crate::Offence;
use crate::source::{code, files, line_of};

/// The list of kinds.
const LIST: &str = "crates/cli/src/kinds.rs";

/// A folder, the extensions of its files, and the texts that they must not contain.
type Free = (&'static str, &'static [&'static str], &'static [&'static str]);

/// Code outside of tests that must not name a feature, by folder and extensions, and the texts that it must
/// not contain.
const FREE: [Free; 8] = [
    ("crates/app/src/", &["rs"], &CRATES),
    ("crates/client/src/", &["rs"], &CRATES),
    ("crates/control/src/", &["rs"], &CRATES),
    ("crates/daemon/src/", &["rs"], &CRATES),
    ("crates/engine/src/", &["rs"], &CRATES),
    ("crates/cli/src/", &["rs"], &CRATES),
    ("crates/bpf/", &["c", "h"], &MAPS),
    ("crates/port/", &["c", "h"], &MAPS),
];

/// The crates of features.
const CRATES: [&str; 5] = ["weir_bond", "weir_lb", "weir_measure", "weir_overlay", "weir_path"];

/// How maps and programs of features begin in C.
const MAPS: [&str; 3] = ["overlay_", "path_", "pods_"];

/// Returns the uses of a feature's name in code that must not name it.
pub fn offences() -> Vec<Offence> {
    let mut offences = Vec::new();
    for file in files(&["rs", "c", "h"]) {
        let is_test = file.path.contains("/tests/") || file.path.ends_with("/tests.rs");
        let free = FREE.iter().find(|(folder, of, _)| file.path.starts_with(folder) && file.is(of));
        let Some((.., names)) = free.filter(|_| !is_test && file.path != LIST) else { continue };
        let code = code(&file.text);
        for name in *names {
            let begins = |at: &usize| !code[..*at].ends_with(|one: char| one.is_alphanumeric() || one == '_');
            let places = code.match_indices(name).map(|(at, _)| at).filter(begins);
            offences.extend(places.map(|at| Offence {
                path: file.path.clone(),
                line: line_of(&code, at),
                advice: format!("`{name}` names a feature: let its `Kind` provide what is needed ({LIST})"),
            }));
        }
    }
    offences
}
