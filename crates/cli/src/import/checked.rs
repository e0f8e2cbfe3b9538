//! Reads an imported configuration as `weir check` does. An app that weir would refuse becomes a comment with
//! the reason, so that the rest works without edits.

use crate::config::{self, Report, Span};
use std::ops::Range;
use weir_app::kind::Kind;
use weir_program::check::Severity;

/// A configuration that weir accepts, and the apps that were excluded.
pub struct Checked {
    /// The text, in which apps that weir refuses are commented out.
    pub yaml: String,
    /// The reasons, each a sentence with the app's name.
    pub refused: Vec<String>,
}

/// Reads a configuration with apps of this kind.
///
/// # Errors
/// The error says what is wrong outside of the apps.
pub fn checked(kind: &Kind, yaml: String) -> Result<Checked, Report> {
    let mut lines: Vec<String> = yaml.lines().map(str::to_string).collect();
    let (item, mut refused) = (format!("  - {}:", kind.key), Vec::new());
    let what = kind.one.map_or(kind.key, |(_, what)| what);
    // Errors of one app may hide those of others, which are found once it is removed.
    loop {
        let text = text_of(&lines, &item);
        let loaded = config::read("imported", &text);
        if loaded.report.errors() == 0 {
            return Ok(Checked { yaml: text, refused });
        }
        let items = items(&lines, &item);
        let mut culprits: Vec<(Range<usize>, String)> = Vec::new();
        for (span, message) in errors(&loaded.report) {
            let line = span.line.saturating_sub(1) as usize;
            let Some(item) = items.iter().find(|item| item.contains(&line)) else { continue };
            if culprits.last().is_none_or(|(last, _)| last != item) {
                culprits.push((item.clone(), message));
            }
        }
        if culprits.is_empty() {
            return Err(loaded.report);
        }
        // From last to first, so that positions stay valid.
        culprits.sort_by_key(|(item, _)| std::cmp::Reverse(item.start));
        culprits.dedup_by(|one, other| one.0 == other.0);
        for (item, message) in culprits {
            refused.push(format!("{what} `{}` is a comment: {message}", name_of(&lines[item.clone()])));
            lines[item.clone()].iter_mut().for_each(|line| line.insert_str(0, "  #"));
            lines.insert(item.start, format!("  # weir refuses this {what}: {message}"));
        }
    }
}

/// Joins the lines; a list of apps without items is written as an empty list.
fn text_of(lines: &[String], item: &str) -> String {
    let is_empty = items(lines, item).is_empty();
    let line =
        |line: &String| if is_empty && line == "apps:" { "apps: []".to_string() } else { line.clone() };
    lines.iter().map(|one| line(one) + "\n").collect()
}

fn errors(report: &Report) -> impl Iterator<Item = (Span, String)> {
    report.diagnostics().into_iter().filter(|one| one.severity == Severity::Error).map(|one| {
        let help = one.help.as_ref().map(|help| format!(" ({help})")).unwrap_or_default();
        (one.span, format!("{}{help}", one.message.replace('\n', " ")))
    })
}

/// The lines of each app, which begin with `item`.
fn items(lines: &[String], item: &str) -> Vec<Range<usize>> {
    let starts = lines.iter().enumerate().filter(|(_, line)| *line == item).map(|(at, _)| at);
    let length =
        |start: usize| lines[start + 1..].iter().take_while(|line| line.starts_with("      ")).count();
    starts.map(|start| start..start + 1 + length(start)).collect()
}

fn name_of(item: &[String]) -> &str {
    item.iter().find_map(|line| line.trim_start().strip_prefix("name: ")).unwrap_or_default()
}
