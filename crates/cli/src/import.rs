//! Configurations of other systems, which kinds of apps convert to YAML ([`Foreign`]). Where `weir run`
//! accepts such a file unchanged, it reads the YAML that `weir import` prints, so that import and run cannot
//! differ.

mod checked;
#[cfg(test)]
mod tests;

pub use checked::{Checked, checked};

use crate::config::{self, Loaded, Nics, Report};
use crate::kinds::KINDS;
use anyhow::{Context, Result};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use std::path::Path;
use std::sync::Arc;
use weir_app::edits::{self, Edits};
use weir_app::foreign::{Foreign, Setting, SettingValues};
use weir_app::kind::Kind;
use weir_config::infile;
use weir_daemon::nics;

/// Settings of other systems' files that can be run unchanged; not used with weir's own configurations.
#[derive(Clone, Debug)]
pub struct ImportOptions(SettingValues);

impl Default for ImportOptions {
    fn default() -> ImportOptions {
        let defaults = runnable().map(|one| SettingValues::defaults(one.settings));
        ImportOptions(defaults.fold(SettingValues::new(Vec::new()), SettingValues::and))
    }
}

impl Args for ImportOptions {
    fn augment_args(command: Command) -> Command {
        command.args(runnable().flat_map(|one| one.settings).map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        ImportOptions::augment_args(command)
    }
}

impl FromArgMatches for ImportOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<ImportOptions, clap::Error> {
        Ok(ImportOptions(settings(runnable().flat_map(|one| one.settings), matches)))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = ImportOptions::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Returns all systems that can be imported, with the kind of app that converts each.
pub fn foreign() -> impl Iterator<Item = (&'static Kind, &'static Foreign)> {
    KINDS.iter().flat_map(|kind| kind.foreign.iter().map(move |foreign| (kind, foreign)))
}

/// Returns the systems whose files can be run unchanged.
fn runnable() -> impl Iterator<Item = &'static Foreign> {
    foreign().map(|(_, foreign)| foreign).filter(|foreign| foreign.recognise.is_some())
}

/// Returns the option for a setting.
pub fn argument(setting: &'static Setting) -> Arg {
    let check = |text: &str| (setting.check)(text).map(|()| text.to_string());
    let action = if setting.several { ArgAction::Append } else { ArgAction::Set };
    let arg = Arg::new(setting.name).long(setting.name).value_name(setting.value).help(setting.help);
    let arg = arg.action(action).value_parser(check);
    if let Some(default) = setting.default { arg.default_value(default) } else { arg }
}

/// Returns the values of settings in parsed arguments.
pub fn settings(all: impl Iterator<Item = &'static Setting>, matches: &ArgMatches) -> SettingValues {
    let values = |setting: &'static Setting| {
        let values = matches.get_many::<String>(setting.name).into_iter().flatten();
        values.map(|value| (setting.name, value.clone())).collect::<Vec<_>>()
    };
    SettingValues::new(all.flat_map(values).collect())
}

/// Returns the text of a file, or a report of the first byte that is not UTF-8.
///
/// # Errors
/// Fails if the file cannot be read.
pub fn text(file: &Path) -> Result<std::result::Result<String, Report>> {
    let bytes = infile::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(String::from_utf8(bytes).map_err(|error| {
        let good = error.utf8_error().valid_up_to();
        Report::not_utf8(&file.display().to_string(), error.as_bytes(), good)
    }))
}

/// Reads a configuration file: weir's own, or another system's that can be run unchanged.
///
/// # Errors
/// Fails if the file cannot be read. Errors in its contents are in the report.
pub fn load(file: &Path, options: &ImportOptions) -> Result<Loaded> {
    load_edited(file, options, &*edits::none(KINDS), &Nics::default())
}

/// The same, with changes made at run time, and with what is `known` about interfaces that do not exist under
/// these names.
///
/// # Errors
/// Fails if the file cannot be read.
pub fn load_edited(file: &Path, options: &ImportOptions, edits: &dyn Edits, known: &Nics) -> Result<Loaded> {
    let text = match text(file)? {
        Ok(text) => text,
        Err(report) => return Ok(Loaded { plan: None, report, forgotten: Vec::new() }),
    };
    let nics = nics::present().or(known);
    let Some(system) = runnable().find(|one| one.recognise.is_some_and(|recognise| recognise(&text))) else {
        let file = file.display().to_string();
        return Ok(config::read_edited(&file, Arc::new(text), &nics, edits));
    };
    Ok(match (system.convert)(file, &text, &options.0) {
        Ok((yaml, _)) => config::read_knowing(&format!("{} (imported)", file.display()), &yaml, &nics),
        Err(report) => Loaded { plan: None, report, forgotten: Vec::new() },
    })
}
