//! The controller that brings a cluster's services to nodes.

use clap::Parser;
use std::io::{Write, stderr};
use std::process::ExitCode;
use weir_kube::{Arguments, run};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    tracing_subscriber::fmt().with_writer(stderr).with_ansi(false).with_target(false).init();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            // The reader may be gone.
            let _ = writeln!(stderr(), "weir-kube: {why:#}");
            ExitCode::FAILURE
        }
    }
}
