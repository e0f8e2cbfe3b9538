//! Compiles the eBPF programs.

#[path = "../bpf/clang.rs"]
mod clang;

fn main() {
    clang::compile("src/bpf/path.bpf.c", "path", &[]);
}
