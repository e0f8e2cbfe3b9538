//! Compiles the eBPF programs with the system's clang, as the kernel's own tools do.

use std::env;
use std::path::PathBuf;
use std::process::Command;

const ADVICE: &str = "weir's eBPF programs need clang and libbpf's headers: `apt-get install clang libbpf-dev` \
                      (another compiler: set CLANG)";

fn main() {
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let target = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("xdp_take.bpf.o");
    // Debian keeps asm/types.h in the architecture's folder, where `-target bpf` does not look.
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    let status = Command::new(&clang)
        .args(["-O2", "-g", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3", "-idirafter"])
        .arg(format!("/usr/include/{arch}-linux-gnu"))
        .args(["-c", "src/xdp_take.bpf.c", "-o"])
        .arg(target)
        .status()
        .unwrap_or_else(|error| panic!("cannot run {clang}: {error}. {ADVICE}"));
    assert!(status.success(), "{clang} cannot compile src/xdp_take.bpf.c, see above. {ADVICE}");
    println!("cargo::rerun-if-changed=src/xdp_take.bpf.c");
    println!("cargo::rerun-if-env-changed=CLANG");
}
