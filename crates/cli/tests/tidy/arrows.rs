//! The dependencies that are allowed between crates: each arrow is a deliberate decision.

use crate::Offence;
use crate::source::{paths, read};

/// A crate, the crates it may use, and those that only its tests may use besides.
type Arrows = (&'static str, &'static [&'static str], &'static [&'static str]);

/// All arrows between crates, without the prefix of their names.
const ARROWS: &[Arrows] = &[
    ("packet", &[], &[]),
    ("table", &["packet"], &[]),
    ("sketch", &["packet"], &[]),
    ("program", &["packet", "table"], &["oracle"]),
    ("oracle", &["packet", "program", "table"], &[]),
    ("netlink", &[], &["bed"]),
    ("bpf", &["netlink"], &["bed", "packet"]),
    ("port", &["bpf", "netlink", "packet"], &["bed"]),
    ("engine", &["oracle", "packet", "program", "sketch", "table"], &["engine", "kernel", "port"]),
    ("kernel", &["packet", "program"], &["oracle"]),
    ("openflow", &["packet", "program"], &["bed", "bpf", "oracle", "port"]),
    ("cover", &["engine", "kernel", "oracle", "packet", "program", "table"], &[]),
    ("config", &["packet", "program"], &[]),
    ("control", &[], &[]),
    ("client", &["control"], &[]),
    ("page", &["control"], &[]),
    ("kube", &["client", "control"], &["bed"]),
    ("app", &["config", "control", "engine", "packet", "program", "table"], &[]),
    (
        "lb",
        &["app", "config", "control", "netlink", "packet", "program", "table"],
        &["engine", "oracle", "port"],
    ),
    ("bond", &["app", "config", "engine", "packet", "program", "table"], &["port"]),
    ("path", &["app", "bpf", "config", "engine", "netlink", "packet", "port", "program", "table"], &["bed"]),
    ("overlay", &["app", "bpf", "config", "engine", "netlink", "packet", "program"], &["bed", "papers"]),
    ("measure", &["app", "config", "control", "engine", "packet", "port", "program", "sketch"], &[]),
    ("bed", &[], &[]),
    ("papers", &["bpf", "packet", "sketch"], &["bed"]),
    ("plot", &[], &[]),
    ("sim", &["packet", "path", "plot"], &[]),
    ("lab", &["bed", "bpf", "control", "netlink", "packet", "path"], &[]),
    (
        "bench",
        &[
            "app", "bed", "bond", "bpf", "config", "engine", "kernel", "lab", "lb", "measure", "packet",
            "papers", "path", "plot", "port", "program", "sketch",
        ],
        &[],
    ),
    (
        "daemon",
        &[
            "app", "bpf", "client", "config", "control", "engine", "kernel", "netlink", "oracle", "packet",
            "page", "port", "program",
        ],
        &["bed"],
    ),
    (
        "weir",
        &[
            "app", "bench", "bond", "bpf", "config", "control", "cover", "daemon", "engine", "lab", "lb",
            "measure", "netlink", "openflow", "overlay", "packet", "path", "port", "program", "sim",
        ],
        &["bed", "client", "kernel", "oracle", "papers", "sketch"],
    ),
];

/// Returns the dependencies in `crates/*/Cargo.toml` and `rigs/*/Cargo.toml` that are not in the table, and
/// crates without a row.
pub fn offences() -> Vec<Offence> {
    let mut offences = Vec::new();
    for path in paths() {
        let is_crate = path.starts_with("crates/") || path.starts_with("rigs/");
        if !(is_crate && path.ends_with("/Cargo.toml") && path.matches('/').count() == 2) {
            continue;
        }
        let manifest = read(&path);
        let name = manifest
            .lines()
            .find_map(|line| line.strip_prefix("name = "))
            .unwrap_or_default()
            .trim_matches('"');
        let name = without_prefix(name);
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
        // The package of the binary is `weir` itself. A dependency without the prefix is someone else's.
        let word = word.strip_prefix("weir-").unwrap_or(if word == "weir" { word } else { "" });
        if line.starts_with('[') {
            section = line;
        } else if section.ends_with("dependencies]") && ARROWS.iter().any(|(name, ..)| *name == word) {
            found.push((at + 1, word, section == "[dev-dependencies]"));
        }
    }
    found
}

/// Returns a crate's name without the prefix that all crates but the binary's have.
fn without_prefix(name: &str) -> &str {
    name.strip_prefix("weir-").unwrap_or(name)
}
