//! `weir test FILE --expect DIR`: a file of packets and where they go, with which later runs are compared.
//!
//! Only where packets go is compared. The path is written for readers: it changes whenever a pipe is renamed.

use super::{NO_PORT, SHOWN, and_more, change, change_text, goes, outcomes, path_text};
use crate::commands::BadInput;
use crate::output;
use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use weir_config::{infile, outfile};
use weir_cover::compare::Comparison;
use weir_cover::{Case, Exploration};
use weir_packet::craft::{Recipe, describe};
use weir_program::Program;

const NAME: &str = "verdicts.txt";

const HEAD: &str = "\
# Written by `weir test --expect`: packets, the pipes that they passed, and where they went. A later run
# compares where they go; `--accept` replaces this file.
";

/// A packet of the file.
struct Expected {
    port: String,
    packet: String,
    goes: String,
    frame: Vec<u8>,
}

/// Compares with the file in a directory, or writes the file. Returns the packets that go elsewhere.
pub fn run(
    folder: &Path,
    accept: bool,
    (program, found, compared): (&Program, &Exploration, &Comparison),
) -> Result<Vec<Value>> {
    let file = folder.join(NAME);
    if accept || !file.exists() {
        std::fs::create_dir_all(folder).with_context(|| format!("{} cannot be created", folder.display()))?;
        outfile::write(&file, written(program, found, compared).as_bytes())?;
        output::line(format_args!("{}: {} packets written", file.display(), found.record.cases.len()))?;
        return Ok(Vec::new());
    }
    let expected = read(&file)?;
    let changed = changes(program, &expected)?;
    let known: BTreeSet<(&str, &[u8])> =
        expected.iter().map(|one| (one.port.as_str(), one.frame.as_slice())).collect();
    let port = |case: &Case| program.ports[case.input.index()].name.as_str();
    let unknown = found
        .record
        .cases
        .iter()
        .filter(|case| !known.contains(&(port(case), case.frame.as_slice())))
        .count();
    let mut text =
        format!("{}: {} of {} packets go elsewhere\n", file.display(), changed.len(), expected.len());
    text.extend(changed.iter().take(SHOWN).map(change_text));
    text += &and_more(changed.len());
    if unknown > 0 {
        let _ = writeln!(text, "{unknown} generated packets are not in the file: `--accept` adds them");
    }
    if !changed.is_empty() {
        text += "If these changes are intended, run the command again with `--accept`.\n";
    }
    output::print(text)?;
    Ok(changed)
}

fn written(program: &Program, found: &Exploration, compared: &Comparison) -> String {
    let mut text = HEAD.to_string();
    for (at, case) in found.record.cases.iter().enumerate() {
        let path = found.record.path_of(case.input, &compared.walks[at]);
        let port = &program.ports[case.input.index()].name;
        let _ = write!(
            text,
            "\npacket {port} {}\npath {}\ngoes {}\n",
            describe(&case.frame),
            path_text(program, &path),
            goes(program, &compared.walks[at])
        );
    }
    text
}

fn read(file: &Path) -> Result<Vec<Expected>> {
    let bytes = infile::read(file)
        .map_err(|error| BadInput(format!("{} cannot be read: {error}", file.display())))?;
    let text = String::from_utf8_lossy(&bytes);
    let mut expected: Vec<Expected> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let refuse = |why: String| {
            BadInput(format!("{}:{number}: {why}; `--accept` writes the file again", file.display()))
        };
        match line.split_once(' ') {
            None if line.is_empty() => {}
            Some(("#" | "path", _)) => {}
            Some(("packet", packet)) => {
                let (port, packet) =
                    packet.split_once(' ').ok_or_else(|| refuse("a port and a packet are missing".into()))?;
                let recipe: Recipe = packet
                    .parse()
                    .map_err(|error: weir_packet::craft::RecipeError| refuse(error.to_string()))?;
                expected.push(Expected {
                    port: port.into(),
                    packet: packet.into(),
                    goes: String::new(),
                    frame: recipe.build(),
                });
            }
            Some(("goes", goes)) => match expected.last_mut() {
                Some(one) => one.goes = goes.into(),
                None => return Err(refuse("there is no packet in front of this line".into()).into()),
            },
            _ => return Err(refuse("a line begins with `packet`, `path` or `goes`".into()).into()),
        }
    }
    Ok(expected)
}

/// Runs the packets of the file one after the other, as when the file was written.
fn changes(program: &Program, expected: &[Expected]) -> Result<Vec<Value>> {
    let packets = expected.iter().map(|one| (one.port.as_str(), one.frame.as_slice()));
    let now = outcomes(program, packets, |_, walk| goes(program, walk))?;
    let mut changed = Vec::new();
    for (one, now) in expected.iter().zip(now) {
        let now = now.unwrap_or_else(|| NO_PORT.into());
        if now != one.goes {
            changed.push(change(&one.port, &one.packet, (&one.goes, &now)));
        }
    }
    Ok(changed)
}
