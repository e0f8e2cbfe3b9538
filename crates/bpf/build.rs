//! Compiles the eBPF programs with the system's clang, as the kernel's own tools do.

use std::env;
use std::path::PathBuf;
use std::process::Command;

const ADVICE: &str = "weir's eBPF programs need clang and libbpf's headers: `apt-get install clang \
    libbpf-dev` \
                      (another compiler: set CLANG)";

/// Each program is in the file `NAME.bpf.c`.
const PROGRAMS: [&str; 7] = ["xdp_take", "xdp_generate", "path", "oncache", "impair", "decap", "hook"];
/// IP versions for which `overlay.bpf.c` is compiled: of pods and of nodes.
const VERSIONS: [[u8; 2]; 4] = [[4, 4], [4, 6], [6, 4], [6, 6]];

fn main() {
    PROGRAMS.into_iter().for_each(|program| compile(program, program, &[]));
    for [pods, nodes] in VERSIONS {
        let defines = [format!("-DPOD_IP={pods}"), format!("-DNODE_IP={nodes}")];
        compile("overlay", &format!("overlay{pods}{nodes}"), &defines);
    }
    println!("cargo::rerun-if-changed=src/room.h");
    println!("cargo::rerun-if-changed=src/path");
    println!("cargo::rerun-if-changed=src/overlay");
    println!("cargo::rerun-if-env-changed=CLANG");
}

fn compile(program: &str, object: &str, defines: &[String]) {
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let source = format!("src/{program}.bpf.c");
    let target =
        PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join(format!("{object}.bpf.o"));
    // Debian keeps asm/types.h in a directory per architecture, which `-target bpf` does not search.
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    let status = Command::new(&clang)
        .args(["-O2", "-g", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3", "-idirafter"])
        .arg(format!("/usr/include/{arch}-linux-gnu"))
        .args(defines)
        .args(["-c", &source, "-o"])
        .arg(target)
        .status()
        .unwrap_or_else(|error| panic!("cannot run {clang}: {error}. {ADVICE}"));
    assert!(status.success(), "{clang} cannot compile {source}, see above. {ADVICE}");
    println!("cargo::rerun-if-changed={source}");
}
