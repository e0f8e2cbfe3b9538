//! `weir ui`: the address of the running daemon's web page.

use super::show::Connection;
use crate::output;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;
use weir_config::infile;
use weir_control::Request;
use weir_control::answer::ControlListener;

/// Arguments of `weir ui`.
#[derive(clap::Args)]
pub struct UiArguments {
    /// Add the read-only token, or the control token if there is no other. Terminals may keep printed tokens
    /// in their scrollback.
    #[arg(long)]
    token: bool,
    /// Add the control token, which also permits changes.
    #[arg(long, conflicts_with = "token")]
    control: bool,
    #[command(flatten)]
    connection: Connection,
}

/// Runs the command.
///
/// # Errors
/// Fails if the daemon does not answer, if it has no web page, or if the token cannot be read.
pub fn run(arguments: &UiArguments) -> Result<ExitCode> {
    let answer: Value = arguments.connection.answer(&Request::show("control"))?;
    let listener: Option<ControlListener> = serde_json::from_value(answer["control"].clone())?;
    let listener = listener.context(
        "the configuration has no `control`, so there is no web page: write \
         `control: { listen: 127.0.0.1:9106, token: FILE }`",
    )?;
    let file = match (arguments.control, arguments.token) {
        (true, _) => Some(&listener.token),
        (false, true) => Some(listener.view_token.as_ref().unwrap_or(&listener.token)),
        (false, false) => None,
    };
    let fragment = file.map(|file| token(Path::new(file)).map(|token| format!("#token={token}")));
    let url = format!("{}/{}", listener.url, fragment.transpose()?.unwrap_or_default());
    output::line(if arguments.connection.is_json() { json!({ "url": url }).to_string() } else { url })?;
    Ok(ExitCode::SUCCESS)
}

/// Reads a token, and encodes it for a URL.
fn token(file: &Path) -> Result<String> {
    let text = infile::read(file).with_context(|| format!("{} cannot be read", file.display()))?;
    let encoded = |byte: &u8| match byte {
        byte if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) => char::from(*byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    Ok(text.trim_ascii().iter().map(encoded).collect())
}
