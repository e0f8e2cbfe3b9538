//! Configurations of other systems, which kinds of apps convert to YAML ([`Foreign`]). Where `weir run`
//! accepts such a file unchanged, it reads the YAML that `weir import` prints, so that import and run cannot
//! differ.

mod checked;
#[cfg(test)]
mod tests;

pub use checked::{Checked, checked};

use crate::config::{self, ConfigSource, Loaded, Nics, NodeFile, Report};
use crate::kinds::KINDS;
use anyhow::{Context, Result};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weir_app::edits::{self, Edits};
use weir_app::foreign::{Foreign, Setting, SettingValues};
use weir_app::kind::Kind;
use weir_config::{infile, node};
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

/// Which file has the values of this node.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct NodeOption {
    /// The file with this node's values, to which `${NODE.name}` in the configuration refers; by default
    /// `node.yaml` in the folder of the configuration.
    #[arg(long, value_name = "FILE")]
    node: Option<PathBuf>,
}

impl NodeOption {
    /// The values in this file, or in the default one.
    pub fn of(node: Option<PathBuf>) -> NodeOption {
        NodeOption { node }
    }

    /// Reads the node's file, if the command line names the file or the configuration refers to its values.
    fn read(
        &self,
        configuration: &Path,
        text: &str,
    ) -> Result<std::result::Result<Option<NodeFile>, Report>> {
        if self.node.is_none() && !node::has_references(text) {
            return Ok(Ok(None));
        }
        let path = self.node.clone().unwrap_or_else(|| node::beside(configuration));
        let name = path.display().to_string();
        let is_absent = |error: &anyhow::Error| {
            error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::NotFound)
        };
        match self::text(&path) {
            Ok(Ok(text)) => Ok(Ok(Some(NodeFile { name, text: Some(Arc::new(text)) }))),
            Ok(Err(report)) => Ok(Err(report)),
            Err(error) if self.node.is_none() && is_absent(&error) => {
                Ok(Ok(Some(NodeFile { name, text: None })))
            }
            Err(error) => Err(error),
        }
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
    let arg = Arg::new(setting.name).long(setting.name).help(setting.help);
    if setting.value.is_empty() {
        return arg.action(ArgAction::SetTrue);
    }
    let arg = arg.value_name(setting.value).action(action).value_parser(check);
    if let Some(default) = setting.default { arg.default_value(default) } else { arg }
}

/// Returns the values of settings in parsed arguments.
pub fn settings(all: impl Iterator<Item = &'static Setting>, matches: &ArgMatches) -> SettingValues {
    let values = |setting: &'static Setting| {
        if setting.value.is_empty() {
            let given = matches.get_flag(setting.name);
            return given.then(|| (setting.name, String::new())).into_iter().collect();
        }
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

/// Reads the texts of a configuration, or returns a report of the first byte that is not UTF-8.
///
/// # Errors
/// Fails if a file cannot be read.
pub fn source(file: &Path, node: &NodeOption) -> Result<std::result::Result<ConfigSource, Report>> {
    let text = match text(file)? {
        Ok(text) => text,
        Err(report) => return Ok(Err(report)),
    };
    let node = match node.read(file, &text)? {
        Ok(node) => node,
        Err(report) => return Ok(Err(report)),
    };
    Ok(Ok(ConfigSource { file: file.display().to_string(), text: Arc::new(text), node }))
}

/// Reads a configuration file: weir's own, or another system's that can be run unchanged.
///
/// # Errors
/// Fails if the file cannot be read. Errors in its contents are in the report.
pub fn load(file: &Path, node: &NodeOption, options: &ImportOptions) -> Result<Loaded> {
    load_edited((file, node), options, &*edits::none(KINDS), &Nics::default())
}

/// Reads a configuration file with changes made at run time, and with what is `known` about interfaces that
/// do not exist under these names.
///
/// # Errors
/// Fails if the file cannot be read.
pub fn load_edited(
    (file, node): (&Path, &NodeOption),
    options: &ImportOptions,
    edits: &dyn Edits,
    known: &Nics,
) -> Result<Loaded> {
    let refused = |report| Loaded { plan: None, report, forgotten: Vec::new() };
    let source = match source(file, node)? {
        Ok(source) => source,
        Err(report) => return Ok(refused(report)),
    };
    let text = &source.text;
    let nics = nics::present().or(known);
    let Some(system) = runnable().find(|one| one.recognise.is_some_and(|recognise| recognise(text))) else {
        return Ok(config::read_edited(&source, &nics, edits));
    };
    Ok(match (system.convert)(file, text, &options.0) {
        Ok((yaml, said)) => {
            let imported = format!("{} (imported)", file.display());
            let mut loaded = config::read_knowing(&imported, &yaml, &nics);
            loaded.report.add_warnings_of(&said);
            loaded
        }
        Err(report) => refused(report),
    })
}
