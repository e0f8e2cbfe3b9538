//! Compiles the eBPF programs.

mod clang;

/// Each program is in the file `NAME.bpf.c`.
const PROGRAMS: [&str; 5] = ["xdp_take", "xdp_errors", "impair", "decap", "hook"];

fn main() {
    PROGRAMS.into_iter().for_each(|name| clang::compile(&format!("src/{name}.bpf.c"), name, &[]));
}
