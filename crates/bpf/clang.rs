//! Compiles eBPF programs with the system's clang, as the kernel's own tools do. The build scripts of all
//! crates with such programs include this file.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

const ADVICE: &str = "weir's eBPF programs need clang and libbpf's headers: `apt-get install clang \
    libbpf-dev` (another compiler: set CLANG)";

/// The folder of crates/bpf, as seen from a crate and from a rig.
const HERE: [&str; 2] = ["../bpf", "../../crates/bpf"];

/// Compiles `SOURCE`, a file of this crate, to `OBJECT.bpf.o` in `OUT_DIR`. Headers are looked up beside the
/// source, then in `crates/bpf/include`.
pub fn compile(source: &str, object: &str, defines: &[String]) {
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let target =
        PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join(format!("{object}.bpf.o"));
    // Debian keeps asm/types.h in a directory per architecture, which `-target bpf` does not search.
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    let here = HERE.into_iter().find(|folder| Path::new(folder).exists()).expect("crates/bpf is there");
    let shared = &format!("{here}/include");
    let status = Command::new(&clang)
        .args(["-O2", "-g", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3", "-I", shared, "-idirafter"])
        .arg(format!("/usr/include/{arch}-linux-gnu"))
        .args(defines)
        .args(["-c", source, "-o"])
        .arg(target)
        .status()
        .unwrap_or_else(|error| panic!("cannot run {clang}: {error}. {ADVICE}"));
    assert!(status.success(), "{clang} cannot compile {source}, see above. {ADVICE}");
    println!("cargo::rerun-if-changed={source}");
    println!("cargo::rerun-if-changed={shared}");
    println!("cargo::rerun-if-changed={here}/clang.rs");
    println!("cargo::rerun-if-env-changed=CLANG");
    let folder = Path::new(source).parent().expect("a file in a folder");
    let beside = std::fs::read_dir(folder).expect("the source's folder").flatten().map(|file| file.path());
    for header in beside.filter(|path| path.extension().is_some_and(|extension| extension == "h")) {
        println!("cargo::rerun-if-changed={}", header.display());
    }
}
