//! Says which commit and which features `weir --version` names.
//!
//! The commit is `WEIR_COMMIT`, which `make deb` sets, or what git says. Without git, as in an archive of
//! the sources, it is `unknown`. Debug builds do not ask git: otherwise, each commit would rebuild this crate
//! with its many test programs. Nothing here depends on the time or place of the build.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The features in the order in which they are listed.
const FEATURES: [&str; 6] = ["dpdk", "parquet", "tls", "bench", "lab", "sim"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=WEIR_COMMIT");
    let given = std::env::var("WEIR_COMMIT").ok().filter(|commit| is_plain(commit));
    let is_release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let commit = match given {
        Some(commit) => commit,
        None if is_release => of_git().unwrap_or_else(|| "unknown".to_string()),
        None => "development build".to_string(),
    };
    println!("cargo::rustc-env=WEIR_COMMIT={commit}");
    let has = |name: &&str| std::env::var_os(format!("CARGO_FEATURE_{}", name.to_uppercase())).is_some();
    let features: Vec<&str> = FEATURES.into_iter().filter(has).collect();
    let features = if features.is_empty() { "none".to_string() } else { features.join(", ") };
    println!("cargo::rustc-env=WEIR_FEATURES={features}");
}

/// Whether it can be a commit, with a suffix such as `-dirty`.
fn is_plain(commit: &str) -> bool {
    (1..=64).contains(&commit.len())
        && commit.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// Returns the commit that is checked out, and makes cargo ask again when it changes.
fn of_git() -> Option<String> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().ok()?;
    // An archive of the sources may have been unpacked in a repository of something else.
    let found = PathBuf::from(git(&["rev-parse", "--show-toplevel"])?).canonicalize().ok()?;
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).filter(|_| found == top)?;
    let branch = git(&["rev-parse", "--symbolic-full-name", "HEAD"]).unwrap_or_default();
    for name in ["HEAD", &branch, "packed-refs"] {
        let path = git(&["rev-parse", "--git-path", name]).unwrap_or_default();
        if Path::new(&path).is_file() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    is_plain(&commit).then_some(commit)
}

/// Returns what git prints.
fn git(arguments: &[&str]) -> Option<String> {
    let output =
        Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_string())
}
