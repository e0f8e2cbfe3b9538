//! Compiles the DPDK shim if the feature `dpdk` is on; otherwise there is nothing to build.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "dpdk")]
    dpdk::build();
}

#[cfg(feature = "dpdk")]
mod dpdk {
    use std::process::Command;

    const SOURCES: [&str; 2] = ["src/dpdk/shim.c", "src/dpdk/member.c"];
    const MISSING: &str =
        "feature `dpdk` needs DPDK's headers and pkg-config: apt-get install libdpdk-dev pkg-config";

    pub fn build() {
        SOURCES.iter().for_each(|source| println!("cargo::rerun-if-changed={source}"));
        let (Some(cflags), Some(libs)) = (pkg_config("--cflags"), pkg_config("--libs")) else {
            println!("cargo::error={MISSING}");
            return;
        };
        let mut shim = cc::Build::new();
        // Without optimisation, the shim would cost more per burst than the driver.
        shim.files(SOURCES).opt_level(3).warnings(true);
        for flag in &cflags {
            // Warnings in DPDK's own headers are not ours to fix.
            match flag.strip_prefix("-I") {
                Some(directory) => shim.flag("-isystem").flag(directory),
                None => shim.flag(flag),
            };
        }
        shim.compile("weir_dpdk_shim");
        link(&libs);
    }

    /// Links the core libraries dynamically. Drivers are plug-ins, which DPDK loads only if it is linked
    /// dynamically itself.
    fn link(libs: &[String]) {
        for flag in libs {
            if let Some(library) = flag.strip_prefix("-l") {
                println!("cargo::rustc-link-lib=dylib={library}");
            } else if let Some(directory) = flag.strip_prefix("-L") {
                println!("cargo::rustc-link-search=native={directory}");
            }
        }
    }

    fn pkg_config(what: &str) -> Option<Vec<String>> {
        println!("cargo::rerun-if-env-changed=PKG_CONFIG_PATH");
        let output = Command::new("pkg-config").args([what, "libdpdk"]).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.split_whitespace().map(str::to_string).collect())
    }
}
