//! Configurations of other systems, which kinds of apps convert to YAML.

use std::path::Path;
use weir_config::Report;

/// Converts a file, whose path is for messages.
pub type Convert = fn(&Path, &str, &SettingValues) -> Result<(String, Report), Report>;

/// A system whose configurations can be converted.
pub struct Foreign {
    /// Its name in `weir import NAME`.
    pub name: &'static str,
    /// Its description in the help.
    pub about: &'static str,
    /// The description of its file in the help.
    pub file: &'static str,
    /// Values that the system's file does not contain.
    pub settings: &'static [Setting],
    /// Recognises a file of the system, if `weir run` converts such files automatically.
    pub recognise: Option<fn(&str) -> bool>,
    /// Whether apps that weir refuses become comments in the result.
    pub is_partial: bool,
    /// Converts a file. Returns YAML and a report with warnings, or a report with all errors.
    pub convert: Convert,
}

/// A command-line option for a value that a file does not contain.
pub struct Setting {
    /// Its name, without dashes.
    pub name: &'static str,
    /// The name of its value in the help; empty for an option without a value, whose value is empty if it is
    /// given.
    pub value: &'static str,
    /// Its description in the help.
    pub help: &'static str,
    /// The value if the option is not given; `None` means that the setting then has no value.
    pub default: Option<&'static str>,
    /// Whether it may be given several times.
    pub several: bool,
    /// Checks a value. The error explains what is wrong.
    pub check: fn(&str) -> Result<(), String>,
}

/// The values of settings, which have been checked.
#[derive(Clone, Debug)]
pub struct SettingValues(Vec<(&'static str, String)>);

impl SettingValues {
    /// Wraps names and values.
    #[must_use]
    pub fn new(values: Vec<(&'static str, String)>) -> SettingValues {
        SettingValues(values)
    }

    /// Returns the defaults.
    #[must_use]
    pub fn defaults(settings: &'static [Setting]) -> SettingValues {
        SettingValues(settings.iter().filter_map(|one| Some((one.name, one.default?.to_string()))).collect())
    }

    /// Adds the values of other settings.
    #[must_use]
    pub fn and(mut self, others: SettingValues) -> SettingValues {
        self.0.extend(others.0);
        self
    }

    /// Returns all values of a setting.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(one, _)| *one == name).map(|(_, value)| value.as_str())
    }

    /// Returns the value of a setting, if there is one.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }
}
