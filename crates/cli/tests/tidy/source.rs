//! The files that the rules apply to, and a lexer that is good enough to count braces in Rust and C.

use std::fs;
use std::path::{Path, PathBuf};

/// Directories that hold no source: build output, inputs that fuzzers found, packages of others, and version
/// control.
const SKIPPED: [&str; 5] = ["target", "corpus", "artifacts", "node_modules", ".git"];

/// A file of the repository.
pub struct SourceFile {
    /// Its path relative to the root, with `/`.
    pub path: String,
    /// Its content.
    pub text: String,
}

impl SourceFile {
    /// Returns true if the file has one of these extensions; a file without one is known by its whole name.
    pub fn is(&self, extensions: &[&str]) -> bool {
        let path = Path::new(&self.path);
        let extension = path.extension().or(path.file_name()).and_then(|extension| extension.to_str());
        extension.is_some_and(|extension| extensions.contains(&extension))
    }
}

/// Returns the root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository is there")
}

/// Reads a file of the repository.
pub fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns all text files with one of these extensions, ordered by path.
pub fn files(extensions: &[&str]) -> Vec<SourceFile> {
    let mut files: Vec<SourceFile> =
        paths().into_iter().map(|path| SourceFile { path, text: String::new() }).collect();
    files.retain(|file| file.is(extensions));
    for file in &mut files {
        file.text = read(&file.path);
    }
    files
}

/// Returns the paths of all files, ordered.
pub fn paths() -> Vec<String> {
    let (root, mut open, mut paths) = (root(), vec![PathBuf::new()], Vec::new());
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(root.join(&directory)).expect("a directory of the repository").flatten() {
            let path = directory.join(entry.file_name());
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && !SKIPPED.iter().any(|name| path.ends_with(name)) => {
                    open.push(path)
                }
                Ok(kind) if kind.is_file() => paths.push(path.to_string_lossy().replace('\\', "/")),
                _ => (),
            }
        }
    }
    paths.sort();
    paths
}

/// Replaces comments, strings and character literals by spaces, keeping every line break.
pub fn code(text: &str) -> String {
    let mut rest = text;
    let mut code = String::with_capacity(text.len());
    while let Some(first) = rest.chars().next() {
        let inside_word = code.ends_with(|last: char| last.is_alphanumeric() || last == '_');
        let length = blank_length(rest, inside_word);
        if length == 0 {
            code.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            code.extend(rest[..length].chars().map(|blanked| if blanked == '\n' { '\n' } else { ' ' }));
            rest = &rest[length..];
        }
    }
    code
}

/// Returns the length in bytes of the comment or literal that `rest` begins with, or 0.
fn blank_length(rest: &str, inside_word: bool) -> usize {
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return rest.find("*/").map_or(rest.len(), |at| at + 2);
    }
    if let Some(quoted) = rest.strip_prefix('"') {
        return 1 + end_of_quoted(quoted, '"');
    }
    if rest.starts_with('\'') {
        return character_length(rest);
    }
    if let Some(raw) = rest.strip_prefix('r').or_else(|| rest.strip_prefix("br")).filter(|_| !inside_word) {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            let end = format!("\"{}", "#".repeat(hashes));
            let body = rest.len() - raw.len() + hashes + 1;
            return rest[body..].find(&end).map_or(rest.len(), |at| body + at + end.len());
        }
    }
    0
}

/// Returns the length of the rest of a literal, including its closing quote.
fn end_of_quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, found) in rest.char_indices() {
        if found == quote && !escaped {
            return at + found.len_utf8();
        }
        escaped = found == '\\' && !escaped;
    }
    rest.len()
}

/// Returns the length of a character literal, or 0 for a lifetime.
fn character_length(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), _) => 1 + end_of_quoted(&rest[1..], '\''),
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 0,
    }
}

/// Returns the number of the line at a byte offset, counted from 1.
pub fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

#[test]
fn comments_strings_and_characters_are_blanked() {
    let code = |text| code(text).split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(code("a // {\nb /* {\n{ */ c"), "a b c");
    assert_eq!(code(r##"a("\"{", '{', '\'', b'{', r#"{"{"#, br"{")"##), "a( , , , b , , )");
    assert_eq!(code("fn f<'a>(x: &'a str) -> u8 { b'\\\\' }"), "fn f<'a>(x: &'a str) -> u8 { b }");
}
