//! `weir import SYSTEM FILE`: converts another system's configuration to YAML and prints it.

use super::bad_input;
use crate::import::{self, Checked, argument, checked, foreign, settings};
use crate::output;
use anyhow::Result;
use clap::{Arg, ArgMatches, Command, FromArgMatches, Subcommand, value_parser};
use std::path::PathBuf;
use std::process::ExitCode;
use weir_app::foreign::{Foreign, SettingValues};
use weir_app::kind::Kind;

/// The name of the file's argument.
const FILE: &str = "FILE";

/// The system to import from, its file, and what the file does not contain.
pub struct ImportSource {
    kind: &'static Kind,
    system: &'static Foreign,
    file: PathBuf,
    settings: SettingValues,
}

impl Subcommand for ImportSource {
    fn augment_subcommands(command: Command) -> Command {
        let file = |help: &'static str| {
            Arg::new(FILE).help(help).required(true).value_parser(value_parser!(PathBuf))
        };
        let subcommand = |(_, one): (&Kind, &'static Foreign)| {
            let command = Command::new(one.name).about(one.about).arg(file(one.file));
            command.args(one.settings.iter().map(argument))
        };
        command.subcommand_required(true).arg_required_else_help(true).subcommands(foreign().map(subcommand))
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        ImportSource::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        foreign().any(|(_, one)| one.name == name)
    }
}

impl FromArgMatches for ImportSource {
    fn from_arg_matches(matches: &ArgMatches) -> Result<ImportSource, clap::Error> {
        let given = matches.subcommand().and_then(|(name, matches)| {
            let (kind, system) = foreign().find(|(_, one)| one.name == name)?;
            let file = matches.get_one::<PathBuf>(FILE)?.clone();
            Some(ImportSource { kind, system, file, settings: settings(system.settings.iter(), matches) })
        });
        given.ok_or_else(|| clap::Error::new(clap::error::ErrorKind::MissingSubcommand))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = ImportSource::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Runs the command. Apps that weir would refuse are commented out in the output, and the exit code is then
/// 1.
///
/// # Errors
/// Fails if the file cannot be read.
pub fn run(ImportSource { kind, system, file, settings }: &ImportSource) -> Result<ExitCode> {
    let converted = import::text(file)?.and_then(|text| {
        let (yaml, warnings) = (system.convert)(file, &text, settings)?;
        let all = Checked { yaml, refused: Vec::new() };
        Ok((if system.is_partial { checked(kind, all.yaml)? } else { all }, warnings))
    });
    match converted {
        Ok((Checked { yaml, refused }, warnings)) => {
            output::complain(warnings);
            for one in &refused {
                output::complain(format_args!("{}: warning: {one}\n", file.display()));
            }
            output::print(yaml)?;
            Ok(if refused.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Err(report) => {
            output::complain(report);
            Ok(bad_input())
        }
    }
}
