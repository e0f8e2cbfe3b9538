//! `weir completions` and `weir man`: files that a package installs with the binary, generated from the same
//! description of the command line as `--help`.

use crate::output;
use anyhow::{Context, Result};
use clap::Command;
use clap_complete::Shell;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `weir completions`.
#[derive(clap::Args)]
pub struct Completions {
    /// The shell to complete in.
    shell: Shell,
}

/// Arguments of `weir man`.
#[derive(clap::Args)]
pub struct Man {
    /// The directory to write them to; it is created if it does not exist.
    dir: PathBuf,
}

/// Prints the shell's script.
///
/// # Errors
/// Fails if standard output cannot be written to.
pub fn completions(arguments: &Completions, mut command: Command) -> Result<ExitCode> {
    // Into memory first, because the generators panic on write errors.
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "weir", &mut script);
    output::print(String::from_utf8(script).context("the script is not valid UTF-8")?)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a page for `weir` and one for each subcommand.
///
/// # Errors
/// Fails if the directory cannot be written to.
pub fn man(arguments: &Man, command: Command) -> Result<ExitCode> {
    let dir = &arguments.dir;
    std::fs::create_dir_all(dir)
        .and_then(|()| clap_mangen::generate_to(command, dir))
        .with_context(|| format!("cannot write the pages to {}", dir.display()))?;
    Ok(ExitCode::SUCCESS)
}
