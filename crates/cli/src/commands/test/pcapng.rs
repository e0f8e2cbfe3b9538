//! Packets as pcapng (draft-ietf-opsawg-pcapng), the format that has comments: an interface for each port,
//! and a comment for each packet.

use anyhow::{Context, Result};
use std::io::{BufWriter, Write};
use std::path::Path;
use weir_config::outfile;
use weir_cover::Case;
use weir_program::Program;

/// Block types (section 10.1 of the draft).
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const ENHANCED_PACKET: u32 = 6;

/// Options: the end of a list, the comment of a block, the name of an interface.
const OPTION_END: u16 = 0;
const OPTION_COMMENT: u16 = 1;
const OPTION_NAME: u16 = 2;

/// The time between two packets, in microseconds: the unit of interfaces that do not name one.
const APART: u64 = 1_000;

/// Writes packets to a file. Each has a comment: where it goes, as `goes` says, and its purpose.
///
/// # Errors
/// Fails if the file cannot be written.
pub fn write(file: &Path, program: &Program, cases: &[Case], goes: impl Fn(usize) -> String) -> Result<()> {
    let mut output = BufWriter::new(outfile::create(file)?);
    let failed = || format!("{} cannot be written", file.display());
    // The byte-order magic, version 1.0, and a section of unknown length.
    let section = [&0x1a2b_3c4d_u32.to_le_bytes()[..], &[1, 0, 0, 0], &[0xff; 8]].concat();
    output.write_all(&block(SECTION_HEADER, &section)).with_context(failed)?;
    for port in &program.ports {
        // Ethernet, without a limit of the frames' length.
        let interface = [&[1, 0, 0, 0, 0, 0, 0, 0][..], &option(OPTION_NAME, &port.name)].concat();
        output.write_all(&block(INTERFACE, &interface)).with_context(failed)?;
    }
    for (at, case) in cases.iter().enumerate() {
        let comment = format!("{}; {}", goes(at), case.purpose);
        output.write_all(&packet(case, at as u64 * APART, &comment)).with_context(failed)?;
    }
    output.flush().with_context(failed)
}

fn packet(case: &Case, time: u64, comment: &str) -> Vec<u8> {
    let length = case.frame.len() as u32;
    let head = [u32::from(case.input.0), (time >> 32) as u32, time as u32, length, length];
    let mut body: Vec<u8> = head.iter().flat_map(|word| word.to_le_bytes()).collect();
    body.extend(&case.frame);
    pad(&mut body);
    body.extend(option(OPTION_COMMENT, comment));
    block(ENHANCED_PACKET, &body)
}

/// A block: its type, length, body and length again.
fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u32 + 12).to_le_bytes();
    [&kind.to_le_bytes(), &length, body, &length].concat()
}

/// A list of one option. A value has at most 65535 bytes.
fn option(kind: u16, value: &str) -> Vec<u8> {
    let value = &value[..value.floor_char_boundary(usize::from(u16::MAX))];
    let mut option = [kind.to_le_bytes(), (value.len() as u16).to_le_bytes()].concat();
    option.extend(value.as_bytes());
    pad(&mut option);
    option.extend([OPTION_END.to_le_bytes(), [0, 0]].concat());
    option
}

/// Fills up to a multiple of 32 bits.
fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}
