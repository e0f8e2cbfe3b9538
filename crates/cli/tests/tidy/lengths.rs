//! Limits on the length of files, functions and lines: a function fits a screen, and two files fit side by
//! side.

use crate::Offence;
use crate::source::{code, files, line_of};

const FILE_LINES_MAX: usize = 700;
const FUNCTION_LINES_MAX: usize = 60;
const COLUMNS_MAX: usize = 110;

/// The kinds of files with limits.
const EXTENSIONS: [&str; 7] = ["rs", "c", "h", "sh", "md", "Makefile", "setup"];

/// Returns the files that are too long.
pub fn long_files() -> Vec<Offence> {
    let mut offences = Vec::new();
    for file in files(&EXTENSIONS) {
        let lines = file.text.lines().count();
        if lines > FILE_LINES_MAX {
            let advice =
                format!("the file has {lines} lines, more than {FILE_LINES_MAX}: split it by what it knows");
            offences.push(Offence { path: file.path, line: FILE_LINES_MAX + 1, advice });
        }
    }
    offences
}

/// Returns the lines that are too long, except for those that cannot be wrapped: tables and listings in
/// Markdown, and lines of a single word, such as a link.
pub fn long_lines() -> Vec<Offence> {
    let mut offences = Vec::new();
    for file in files(&EXTENSIONS) {
        let mut listing = false;
        for (at, line) in file.text.lines().enumerate() {
            listing ^= file.is(&["md"]) && line.trim_start().starts_with("```");
            let columns = line.chars().count();
            let wraps = !listing && !line.starts_with('|') && line.split_whitespace().count() > 2;
            if columns > COLUMNS_MAX && wraps {
                let advice = format!("the line has {columns} columns, more than {COLUMNS_MAX}: wrap it");
                offences.push(Offence { path: file.path.clone(), line: at + 1, advice });
            }
        }
    }
    offences
}

/// Returns the functions of Rust and C that are too long, from the line of their name to their closing brace.
pub fn long_functions() -> Vec<Offence> {
    let mut offences = Vec::new();
    for file in files(&["rs", "c", "h"]) {
        let code = code(&file.text);
        let functions = if file.is(&["rs"]) { rust_functions(&code) } else { c_functions(&code) };
        for (name, start, end) in functions {
            let (first, last) = (line_of(&code, start), line_of(&code, end));
            let lines = last - first + 1;
            if lines > FUNCTION_LINES_MAX {
                let advice = format!(
                    "`{name}` has {lines} lines, more than {FUNCTION_LINES_MAX}: split it by its steps"
                );
                offences.push(Offence { path: file.path.clone(), line: first, advice });
            }
        }
    }
    offences
}

/// Returns name, start and end of every function with a body.
fn rust_functions(code: &str) -> Vec<(String, usize, usize)> {
    let mut functions = Vec::new();
    for (start, _) in code.match_indices("fn ") {
        if code[..start].ends_with(|before: char| before.is_alphanumeric() || before == '_') {
            continue;
        }
        let name: String =
            code[start + 3..].chars().take_while(|part| part.is_alphanumeric() || *part == '_').collect();
        if name.is_empty() {
            continue;
        }
        if let Some(body) = start_of_body(&code[start..]) {
            functions.push((name, start, start + body + block_length(&code[start + body..])));
        }
    }
    functions
}

/// Returns the offset of the brace that opens a function's body; `None` for a declaration.
fn start_of_body(signature: &str) -> Option<usize> {
    let mut depth = 0;
    for (at, found) in signature.char_indices() {
        match found {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '{' if depth == 0 => return Some(at),
            ';' if depth == 0 => return None,
            _ => (),
        }
    }
    None
}

/// Returns the length of the block that `code` begins with, up to and without its closing brace.
fn block_length(code: &str) -> usize {
    let mut depth = 0;
    for (at, found) in code.char_indices() {
        match found {
            '{' => depth += 1,
            '}' if depth == 1 => return at,
            '}' => depth -= 1,
            _ => (),
        }
    }
    code.len()
}

/// Returns name, start and end of every function with a body: a block outside all others that follows
/// parentheses.
fn c_functions(code: &str) -> Vec<(String, usize, usize)> {
    let (mut functions, mut at) = (Vec::new(), 0);
    while let Some(open) = code[at..].find('{').map(|open| at + open) {
        let end = open + block_length(&code[open..]);
        let head = code[..open].trim_end();
        if head.ends_with(')') {
            let start = head[at..].rfind(['}', ';']).map_or(at, |before| at + before + 1);
            let words = head[start..].split_once('(').map_or("", |(words, _)| words);
            let name =
                words.rsplit(|part: char| !part.is_alphanumeric() && part != '_').next().unwrap_or_default();
            functions.push((name.to_string(), start + head[start..].find(name).unwrap_or(0), end));
        }
        at = (end + 1).min(code.len());
    }
    functions
}

#[test]
fn functions_are_found_with_their_bodies() {
    let rust = "trait T { fn a(&self); }\nfn b(x: [u8; 3]) -> u8\nwhere u8: T,\n{\n    let f = |x| { x \
        };\n}\nlet fn_x = 1;";
    let found: Vec<_> = rust_functions(rust);
    assert_eq!(found, [("b".to_string(), rust.find("fn b").unwrap(), rust.rfind('}').unwrap())]);
    let c = "struct s { int a; };\nstatic int f(int a)\n{\n  if (a) { }\n}\nint g(void) { }\n";
    let names: Vec<_> = c_functions(c).into_iter().map(|(name, ..)| name).collect();
    assert_eq!(names, ["f", "g"]);
}
