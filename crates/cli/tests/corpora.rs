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
