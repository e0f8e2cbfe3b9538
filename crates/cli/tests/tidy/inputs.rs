//! Every input that weir reads as a whole has a maximum size and a time limit: `weir_config::infile` reads
//! it. Where something else bounds the input, a comment above says what: `// Bounded: ...`.

use crate::Offence;
use crate::source::files;

/// Where files are read.
const READER: &str = "crates/config/src/infile.rs";

/// Calls that read all of a file or a stream, or open a file to read it.
const CALLS: [&str; 6] =
    ["fs::read(", "read_to_string(", "read_to_end(", "File::open(", "lock().lines()", ".read(true)"];

/// What the kernel writes is small.
const FROM_KERNEL: [&str; 2] = ["\"/proc/", "\"/sys/"];

/// The beginning of a comment about something else that bounds the input.
const BOUNDED: &str = "// Bounded: ";

/// Returns the lines that read without a limit.
pub fn read_without_limit() -> Vec<Offence> {
    let is_ours = |path: &str| {
        // The code in rigs/ reads only files that it has written itself.
        let of_crate = path.starts_with("crates/") && path.contains("/src/");
        of_crate && path != READER && !path.contains("/tests/") && !path.ends_with("/tests.rs")
    };
    let mut offences = Vec::new();
    for file in files(&["rs"]).into_iter().filter(|file| is_ours(&file.path)) {
        for line in lines(&file.text) {
            let advice = "read it with `weir_config::infile`, or say in a comment above it what bounds what \
                          is read: `// Bounded: ...`";
            offences.push(Offence { path: file.path.clone(), line, advice: advice.to_string() });
        }
    }
    offences
}

/// Returns the lines of a text that read without a limit, except in its tests, which come last.
fn lines(text: &str) -> Vec<usize> {
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let is_test = |at: &usize| lines[*at] == "#[cfg(test)]" && lines[*at + 1].ends_with(" {");
    let end = (0..lines.len().saturating_sub(1)).find(is_test).unwrap_or(lines.len());
    let is_bounded = |at: usize| {
        let comments = lines[..at].iter().rev().take_while(|line| line.starts_with("//"));
        comments.clone().any(|line| line.starts_with(BOUNDED))
            || FROM_KERNEL.iter().any(|place| lines[at].contains(place))
    };
    let reads = |at: &usize| {
        let line = lines[*at];
        !line.starts_with("//") && CALLS.iter().any(|call| line.contains(call)) && !is_bounded(*at)
    };
    (0..end).filter(reads).map(|at| at + 1).collect()
}

#[test]
fn a_reader_without_a_limit_is_found() {
    for call in ["std::fs::read(path)", "fs::read_to_string(path)", "stream.read_to_end(&mut answer)"] {
        assert_eq!(lines(&format!("a\n    let text = {call}?;\n")), [2], "{call}");
        assert_eq!(lines(&format!("a\n// Bounded: by `take`.\n// Or so.\nlet b = {call}?;\n")), [0; 0]);
        assert_eq!(lines(&format!("// Bounded: no.\n\nlet b = {call}?;\n")), [3], "the comment is elsewhere");
        assert_eq!(lines(&format!("#[cfg(test)]\nmod tests {{\nlet b = {call}?;\n}}\n")), [0; 0]);
    }
    assert_eq!(lines("for order in stdin().lock().lines() {\n}\nFile::open(path)\n"), [1, 3]);
    assert_eq!(lines("fs::read_to_string(\"/proc/meminfo\")\ntext.lines()\n"), [0; 0]);
}
