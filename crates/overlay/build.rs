//! Compiles the eBPF programs.

#[path = "../bpf/clang.rs"]
mod clang;

/// IP versions for which the programs are compiled: of pods and of nodes.
const VERSIONS: [[u8; 2]; 4] = [[4, 4], [4, 6], [6, 4], [6, 6]];

fn main() {
    for [pods, nodes] in VERSIONS {
        let defines = [format!("-DPOD_IP={pods}"), format!("-DNODE_IP={nodes}")];
        clang::compile("src/bpf/overlay.bpf.c", &format!("overlay{pods}{nodes}"), &defines);
    }
}
