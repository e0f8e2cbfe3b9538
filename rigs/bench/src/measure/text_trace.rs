//! The text traces that Agg-Evict's sender reads: a packet on each line, with the source and the destination
//! address as decimal numbers, both ports and the protocol, separated by spaces, commas or tabs. As in the
//! sender, the first line is skipped, protocols other than TCP and UDP are not sent, and further fields are
//! ignored.

use super::stream::FRAME;
use anyhow::{Context, Result};
use std::io::{BufRead, BufReader, Read};
use std::net::Ipv4Addr;
use std::path::Path;
use weir_app::kind::BadInput;
use weir_config::infile;
use weir_packet::FlowKey;

/// The maximum length of a line with its end: that of the sender's buffer.
const LINE_MAX: u64 = 255;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// The packets of a trace, and how many others are in no flow.
#[derive(Debug, Default, PartialEq)]
pub struct TextTrace {
    /// The flow and the length of each packet.
    pub keys: Vec<([u64; 5], u32)>,
    /// Packets of other protocols.
    pub unflowed: u64,
}

/// Reads at most `most` packets from a text trace. Returns `None` if the file is something else, such as a
/// recording, whose first line is not text, or no regular file.
///
/// # Errors
/// The file cannot be read, or a line is malformed. The error names the line.
pub fn read(path: &Path, most: usize) -> Result<Option<TextTrace>> {
    let file = infile::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    if !file.metadata()?.is_file() {
        return Ok(None);
    }
    let read = parse(BufReader::new(file), most);
    read.with_context(|| path.display().to_string())
}

fn parse(mut input: impl BufRead, most: usize) -> Result<Option<TextTrace>> {
    let mut line = Vec::new();
    next(&mut input, &mut line)?;
    let is_text = |byte: &u8| byte.is_ascii_graphic() || [b' ', b'\t'].contains(byte);
    if trimmed(&line).is_empty() || !trimmed(&line).iter().all(is_text) {
        return Ok(None);
    }
    let mut trace = TextTrace::default();
    let mut number = 1;
    while trace.keys.len() < most && next(&mut input, &mut line)? {
        number += 1;
        let text = String::from_utf8_lossy(trimmed(&line));
        let read = match line.len() as u64 > LINE_MAX {
            true => Err(format!("it has more than {LINE_MAX} bytes, the limit")),
            false => packet(&text),
        };
        match read.map_err(|why| BadInput(format!("line {number}: {why}")))? {
            TraceLine::Packet(key) => trace.keys.push((key.0, FRAME as u32)),
            TraceLine::Other => trace.unflowed += 1,
            TraceLine::Empty => {}
        }
    }
    Ok(Some(trace))
}

/// Reads the next line, but not more than one byte beyond the limit. Returns false at the end of the file.
fn next(input: &mut impl BufRead, line: &mut Vec<u8>) -> Result<bool> {
    line.clear();
    Ok(input.take(LINE_MAX + 1).read_until(b'\n', line)? > 0)
}

fn trimmed(line: &[u8]) -> &[u8] {
    line.trim_ascii_end()
}

enum TraceLine {
    Packet(FlowKey),
    /// A packet of another protocol.
    Other,
    Empty,
}

fn packet(line: &str) -> Result<TraceLine, String> {
    let mut fields = line.split([' ', ',', '\t']).filter(|field| !field.is_empty()).peekable();
    if fields.peek().is_none() {
        return Ok(TraceLine::Empty);
    }
    let mut number = |what: &str, max: u32| {
        let text = fields.next().ok_or_else(|| format!("the {what} is missing; {FORMAT}"))?;
        let number = text.parse().ok().filter(|number| *number <= max);
        number.ok_or_else(|| format!("expected {what} as a number from 0 to {max}, found `{text}`; {FORMAT}"))
    };
    let [source, destination] =
        [number("source address", u32::MAX)?, number("destination address", u32::MAX)?];
    let ports = [number("source port", 65_535)?, number("destination port", 65_535)?].map(|port| port as u16);
    let protocol = number("protocol", 255)? as u8;
    if ![TCP, UDP].contains(&protocol) {
        return Ok(TraceLine::Other);
    }
    let [source, destination] = [source, destination].map(|address| Ipv4Addr::from_bits(address).into());
    Ok(TraceLine::Packet(FlowKey::new(source, destination, protocol, (ports[0], ports[1]), None)))
}

const FORMAT: &str = "a line has source address, destination address, source port, destination port and \
                      protocol, such as `167772161 167772162 4000 80 6`";

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &[u8]) -> Result<Option<TextTrace>> {
        parse(text, 100)
    }

    fn key(source: [u8; 4], ports: (u16, u16), protocol: u8) -> [u64; 5] {
        FlowKey::new(source.into(), [10, 0, 0, 2].into(), protocol, ports, None).0
    }

    #[test]
    fn lines_become_flows_of_tcp_and_udp() {
        let text = b"the first line\n167772161 167772162 4000 80 6\n\n4294967295,167772162\t53,65535 17\r\n\
                     167772161 167772162 0 0 1\n167772161 167772162 4000 80 6 7 x";
        let trace = read_text(text).unwrap().unwrap();
        let tcp = key([10, 0, 0, 1], (4000, 80), 6);
        let keys = [tcp, key([255; 4], (53, 65_535), 17), tcp].map(|key| (key, 64));
        assert_eq!(trace, TextTrace { keys: keys.to_vec(), unflowed: 1 });
        assert_eq!(parse(&text[..], 1).unwrap().unwrap().keys, keys[..1]);
    }

    #[test]
    fn a_malformed_line_is_named() {
        let long = format!("1 2 3 4 6 {}", "7".repeat(LINE_MAX as usize));
        let lines: [(&str, &str); 6] = [
            ("1 2 3 4", "the protocol is missing"),
            (
                "10.0.0.1 2 3 4 6",
                "expected source address as a number from 0 to 4294967295, found `10.0.0.1`",
            ),
            ("1 4294967296 3 4 6", "expected destination address"),
            ("1 2 -3 4 6", "expected source port as a number from 0 to 65535, found `-3`"),
            ("1 2 3 4 256", "expected protocol as a number from 0 to 255"),
            (&long, "it has more than 255 bytes"),
        ];
        for (line, why) in lines {
            let error = read_text(format!("first\n1 2 3 4 6\n{line}\n").as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with(&format!("line 3: {why}")), "{line}: {error}");
        }
    }

    #[test]
    fn recordings_are_no_text() {
        for magic in [0xa1b2_c3d4_u32, 0xa1b2_3c4d, 0x0a0d_0d0a, 0xfd2f_b528, 0x0000_8b1f] {
            for bytes in [magic.to_le_bytes(), magic.to_be_bytes()] {
                let file = [&bytes[..], b"more\n1 2 3 4 6\n"].concat();
                assert_eq!(read_text(&file).unwrap(), None, "{magic:x}");
            }
        }
        assert_eq!(read_text(b"").unwrap(), None);
        assert_eq!(read_text(b"one line").unwrap(), Some(TextTrace::default()));
    }
}
