//! Compiles the eBPF programs.

#[path = "../../crates/bpf/clang.rs"]
mod clang;

fn main() {
    ["oncache", "xdp_generate"]
        .into_iter()
        .for_each(|name| clang::compile(&format!("src/{name}.bpf.c"), name, &[]));
}
