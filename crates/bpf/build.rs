//! Compiles the eBPF programs.

mod clang;

/// Each program is in the file `NAME.bpf.c`.
const PROGRAMS: [&str; 4] = ["xdp_take", "impair", "decap", "hook"];

fn main() {
    PROGRAMS.into_iter().for_each(|name| clang::compile(&format!("src/{name}.bpf.c"), name, &[]));
}
