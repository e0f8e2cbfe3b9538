//! The fuzzers' corpora, run as tests: what a fuzzer has found once stays found.

use std::path::Path;

/// Runs `fuzzer` on every file of its corpus.
fn run(name: &str, fuzzer: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let mut files = 0;
    for file in std::fs::read_dir(&folder).expect("a corpus").flatten() {
        let bytes = std::fs::read(file.path()).expect("a file of the corpus");
        println!("{}", file.path().display());
        fuzzer(&bytes);
        // And cut short: the cheapest mutation there is.
        (0..bytes.len().min(256)).for_each(|end| fuzzer(&bytes[..end]));
        files += 1;
    }
    assert!(files > 0, "{} is empty", folder.display());
}

#[test]
fn parse() {
    run("parse", weir_fuzz::parse);
}

#[test]
fn pcap() {
    run("pcap", weir_fuzz::pcap);
}

#[test]
fn config() {
    run("config", weir_fuzz::config);
}

#[test]
fn program() {
    run("program", weir_fuzz::program);
}
