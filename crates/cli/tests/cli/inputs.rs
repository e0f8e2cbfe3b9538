//! No input file makes a command exhaust memory: sizes are limited before anything is parsed.

use super::folder::Folder;
use super::{record, weir};

/// Commands that read a whole file, with `FILE` in its place; the last one reads the file that its
/// configuration names.
const READERS: [&[&str]; 12] = [
    &["check", "FILE"],
    &["run", "FILE"],
    &["replay", "FILE", "in.pcap"],
    &["plan", "--from", "good.yaml", "FILE"],
    &["entry", "load", "FILE", "--socket", "none.sock"],
    &["import", "xenoflow", "FILE"],
    &["import", "ipvs", "FILE"],
    &["import", "katran", "FILE"],
    &["import", "glb", "FILE"],
    &["import", "ovs", "FILE"],
    &["measure", "merge", "FILE"],
    &["check", "names.yaml"],
];

#[test]
fn a_file_that_is_far_too_large_is_refused_by_its_size() {
    let folder = Folder::new();
    folder.write(
        "good.yaml",
        "root: a\nports: { p0: { mem: ~ } }\npipes: { a: { type: basic, forward: p0, miss: drop } }\n",
    );
    record(&folder.file("in.pcap"), &["src=192.0.2.2 dst=10.0.0.53"]);
    let sparse = std::fs::File::create(folder.file("sparse")).unwrap();
    sparse.set_len((1 << 30) + 1).unwrap();
    std::os::unix::fs::symlink("/dev/zero", folder.file("endless")).unwrap();
    for (file, words) in [("sparse", "bytes, but the limit"), ("endless", "bytes, the limit")] {
        let names = format!(
            "root: a\nports: {{ p0: {{ mem: ~ }} }}\npipes:\n  a:\n    type: basic\n    \
             match: {{ udp.dport: per_entry }}\n    forward: p0\n    miss: drop\n    \
             entries: {{ file: {file} }}\n"
        );
        folder.write("names.yaml", names);
        for arguments in READERS {
            let arguments: Vec<&str> =
                arguments.iter().map(|word| if *word == "FILE" { file } else { *word }).collect();
            let said = weir(folder.path(), &arguments);
            assert!(
                said.code != Some(0) && said.err.contains(words),
                "{arguments:?}: {}{}",
                said.out,
                said.err
            );
        }
    }
}
