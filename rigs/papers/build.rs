//! Compiles the eBPF programs.

#[path = "../../crates/bpf/clang.rs"]
mod clang;

fn main() {
    ["oncache", "xdp_by_hand", "xdp_generate", "xdp_restore"]
        .into_iter()
        .for_each(|name| clang::compile(&format!("src/{name}.bpf.c"), name, &[]));
}
