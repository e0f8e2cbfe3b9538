//! Which crate may use which: a crate is a wall, and an arrow through it is a decision.

use crate::Offence;
use crate::source::{paths, read};

/// A crate, the crates it may use, and those that only its tests may use besides.
type Arrows = (&'static str, &'static [&'static str], &'static [&'static str]);

/// All arrows between crates.
const ARROWS: &[Arrows] = &[
    ("packet", &[], &[]),
    ("table", &["packet"], &[]),
    ("path", &["packet", "table"], &[]),
    ("plot", &[], &[]),
    ("sim", &["path", "plot"], &[]),
    ("sketch", &["packet"], &[]),
    ("measure", &["packet", "sketch"], &[]),
    ("bpf", &[], &["packet", "path"]),
    ("port", &["bpf", "packet"], &[]),
    ("engine", &["packet", "sketch", "table"], &["engine", "port"]),
    ("config", &["engine", "packet"], &[]),
    ("apps", &["config", "engine", "measure", "packet", "path", "sketch", "table"], &["port"]),
    ("control", &[], &[]),
    ("lab", &["control", "path"], &[]),
    (
        "bench",
        &["apps", "bpf", "config", "engine", "lab", "measure", "packet", "plot", "port", "sketch"],
        &[],
    ),
    (
        "weir",
        &[
            "apps", "bench", "bpf", "config", "control", "engine", "lab", "measure", "packet", "path",
            "port", "sim", "sketch",
        ],
        &[],
    ),
];

/// Returns the dependencies in `crates/*/Cargo.toml` that are not in the table, and crates without a row.
pub fn offences() -> Vec<Offence> {
    let mut offences = Vec::new();
    for path in paths() {
        if !(path.starts_with("crates/") && path.ends_with("/Cargo.toml") && path.matches('/').count() == 2) {
            continue;
        }
        let manifest = read(&path);
        let name = manifest
            .lines()
            .find_map(|line| line.strip_prefix("name = "))
            .unwrap_or_default()
            .trim_matches('"');
        let Some((_, uses, tests_use)) = ARROWS.iter().find(|(from, ..)| *from == name) else {
            let advice =
                format!("crate `{name}` has no row in ARROWS (crates/cli/tests/tidy/arrows.rs): add one");
            offences.push(Offence { path, line: 1, advice });
            continue;
        };
        for (line, to, in_tests) in dependencies(&manifest) {
            if !(uses.contains(&to) || in_tests && tests_use.contains(&to)) {
                let advice =
                    format!("`{name}` must not use `{to}`: see ARROWS in crates/cli/tests/tidy/arrows.rs");
                offences.push(Offence { path: path.clone(), line, advice });
            }
        }
    }
    offences
}

/// Returns line and name of each dependency on a crate of the workspace, and whether only tests use it.
fn dependencies(manifest: &str) -> Vec<(usize, &str, bool)> {
    let (mut section, mut found) = ("", Vec::new());
    for (at, line) in manifest.lines().enumerate() {
        let word = line.split(['.', ' ', '=']).next().unwrap_or_default();
        if line.starts_with('[') {
            section = line;
        } else if section.ends_with("dependencies]") && ARROWS.iter().any(|(name, ..)| *name == word) {
            found.push((at + 1, word, section == "[dev-dependencies]"));
        }
    }
    found
}
