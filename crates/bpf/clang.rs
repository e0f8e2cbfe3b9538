//! Compiles eBPF programs with the system's clang, as the kernel's own tools do. The build scripts of all
//! crates with such programs include this file.

#[path = "layouts.rs"]
mod layouts;

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

const ADVICE: &str = "weir's eBPF programs need clang and libbpf's headers: `apt-get install clang \
    libbpf-dev` (another compiler: set CLANG)";

/// The folder of crates/bpf, as seen from a crate and from a rig.
const HERE: [&str; 2] = ["../bpf", "../../crates/bpf"];

/// Compiles `SOURCE`, a file of this crate, to `OBJECT.bpf.o` in `OUT_DIR`, and generates Rust types in
/// `OBJECT.rs` for the types that it shares with user space. Headers are looked up beside the source, then in
/// `crates/bpf/include`.
pub fn compile(source: &str, object: &str, defines: &[String]) {
    run(source, &out(&format!("{object}.bpf.o")), defines);
    // The types are in another object, so that the one that is loaded contains nothing for their sake.
    let shared = out(&format!("{object}.shared.o"));
    run(source, &shared, &[defines, &["-DSHARES".to_owned()]].concat());
    layouts::generate(&shared, &out(&format!("{object}.rs")));
    println!("cargo::rerun-if-changed={source}");
    for part in ["include", "clang.rs", "layouts.rs"] {
        println!("cargo::rerun-if-changed={}/{part}", here());
    }
    println!("cargo::rerun-if-env-changed=CLANG");
    let folder = Path::new(source).parent().expect("a file in a folder");
    let beside = std::fs::read_dir(folder).expect("the source's folder").flatten().map(|file| file.path());
    for header in beside.filter(|path| path.extension().is_some_and(|extension| extension == "h")) {
        println!("cargo::rerun-if-changed={}", header.display());
    }
}

fn here() -> &'static str {
    HERE.into_iter().find(|folder| Path::new(folder).exists()).expect("crates/bpf is there")
}

fn out(name: &str) -> PathBuf {
    PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join(name)
}

fn run(source: &str, target: &Path, defines: &[String]) {
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    // Debug information contains the compilation directory: with `.`, every folder gives the same bytes.
    // Debian keeps asm/types.h in a directory per architecture, which `-target bpf` does not search. The
    // second directory is that of its cross compilers.
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    // libbpf's names for targets.
    let target_arch = match arch.as_str() {
        "x86_64" => "x86",
        "aarch64" => "arm64",
        other => other,
    };
    let status = Command::new(&clang)
        .args(["-O2", "-g", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3"])
        .arg("-fdebug-compilation-dir=.")
        .arg(format!("-D__TARGET_ARCH_{target_arch}"))
        .args(["-I", &format!("{}/include", here()), "-idirafter"])
        .arg(format!("/usr/include/{arch}-linux-gnu"))
        .args(["-idirafter", &format!("/usr/{arch}-linux-gnu/include")])
        .args(defines)
        .args(["-c", source, "-o"])
        .arg(target)
        .status()
        .unwrap_or_else(|error| panic!("cannot run {clang}: {error}. {ADVICE}"));
    assert!(status.success(), "{clang} cannot compile {source}, see above. {ADVICE}");
}
