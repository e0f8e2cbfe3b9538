//! Replays the fuzzers' corpora (`fuzz/corpus/<target>/`), so that `cargo test` reproduces whatever a fuzzer
//! has found, without a nightly toolchain.

#[path = "../../../fuzz/src/lib.rs"]
mod fuzz;

use std::path::Path;

/// Calls a target with every input of its corpus, and names an input that panics.
fn replay(target: &str, call: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut paths: Vec<_> =
        std::fs::read_dir(&folder).expect("a corpus").map(|one| one.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{target} has no corpus");
    for path in paths {
        let input = std::fs::read(&path).unwrap();
        let result = std::panic::catch_unwind(|| call(&input));
        assert!(result.is_ok(), "{} panics", path.display());
    }
    call(b"");
}

#[test]
fn parse() {
    replay("parse", fuzz::parse);
}

#[test]
fn recipe() {
    replay("recipe", fuzz::recipe);
}

#[test]
fn pcap() {
    replay("pcap", fuzz::pcap);
}

#[test]
fn config() {
    replay("config", fuzz::config);
}

#[test]
fn program() {
    replay("program", fuzz::program);
}

#[test]
fn ring() {
    replay("ring", fuzz::ring);
}

#[test]
fn quic() {
    replay("quic", fuzz::quic);
}

#[test]
fn lacpdu() {
    replay("lacpdu", fuzz::network::lacpdu);
}

#[test]
fn probe() {
    replay("probe", fuzz::network::probe);
}

#[test]
fn sketch_file() {
    replay("sketch_file", fuzz::network::sketch_file);
}

#[test]
fn external() {
    replay("external", fuzz::network::external);
}

#[test]
fn imports() {
    replay("imports", fuzz::network::imports);
}

#[test]
fn netlink() {
    replay("netlink", fuzz::network::netlink);
}

#[test]
fn takeover() {
    replay("takeover", fuzz::network::takeover);
}

#[test]
fn apps() {
    replay("apps", fuzz::network::apps);
}

#[test]
fn change() {
    replay("change", fuzz::network::change);
}

/// The targets are not compiled here, so this is how they are kept in step with their functions.
#[test]
fn every_target_calls_a_function_that_is_replayed_here() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let read = |path: &str| std::fs::read_to_string(folder.join(path)).unwrap();
    let (manifest, replayed) = (read("Cargo.toml"), include_str!("corpora.rs"));
    let targets = std::fs::read_dir(folder.join("fuzz_targets")).unwrap();
    let names: Vec<_> = targets.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(names.len(), manifest.matches("[[bin]]").count());
    for file in names {
        let (path, name) = (format!("fuzz_targets/{file}"), file.strip_suffix(".rs").unwrap());
        assert!(manifest.contains(&format!("name = \"{name}\"\npath = \"{path}\"")), "{path}");
        let text = read(&path);
        let called =
            text.split("weir_fuzz::").nth(1).and_then(|call| call.split('(').next()).expect("a call");
        assert!(replayed.contains(&format!("replay(\"{name}\", fuzz::{called});")), "{path} calls {called}");
    }
}
