//! Links between the pages of this repository lead somewhere, and pages that code and messages name exist.

use crate::Offence;
use crate::source::{files, line_of, root};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

/// Files in which pages are named in text: code, scripts, units and configurations.
const NAMING: &[&str] =
    &["rs", "c", "h", "py", "sh", "yaml", "yml", "txt", "service", "socket", "md", "Makefile"];

/// Returns the links in pages whose file or heading does not exist.
pub fn broken() -> Vec<Offence> {
    let pages = files(&["md"]);
    let anchors: BTreeMap<&str, BTreeSet<String>> =
        pages.iter().map(|page| (page.path.as_str(), anchors(&page.text))).collect();
    let mut offences = Vec::new();
    for page in &pages {
        for (at, target) in links(&page.text).into_iter().filter(|(_, target)| !target.contains("://")) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = if file.is_empty() { page.path.clone() } else { resolved(&page.path, file) };
            let exists = root().join(&path).exists();
            let found = anchor.is_empty()
                || anchors.get(path.as_str()).is_some_and(|anchors| anchors.contains(anchor));
            if !exists || !found {
                let what = if exists { "heading" } else { "file" };
                let advice = format!("the link `{target}` leads to no {what}: correct it");
                offences.push(Offence { path: page.path.clone(), line: line_of(&page.text, at), advice });
            }
        }
    }
    offences
}

/// Returns the places where text names a page of `docs/` that does not exist.
pub fn named_pages() -> Vec<Offence> {
    let mut offences = Vec::new();
    for file in files(NAMING) {
        for (at, page) in pages_in(&file.text).into_iter().filter(|(_, page)| !root().join(page).exists()) {
            let advice = format!("`{page}` does not exist: name the page that has its contents now");
            offences.push(Offence { path: file.path.clone(), line: line_of(&file.text, at), advice });
        }
    }
    offences
}

/// Returns the paths of pages in a text, each with its offset. A match inside a longer path, such as the path
/// of a page in another repository, is not one of ours.
fn pages_in(text: &str) -> Vec<(usize, &str)> {
    let is_path = |part: char| part.is_alphanumeric() || "/._-".contains(part);
    let mut pages = Vec::new();
    for (at, _) in text.match_indices("docs/") {
        let length = text[at..].find(|part| !is_path(part)).unwrap_or(text.len() - at);
        let page = text[at..at + length].trim_end_matches('.');
        if page.ends_with(".md") && !text[..at].ends_with(is_path) {
            pages.push((at, page));
        }
    }
    pages
}

/// Returns the targets of the links outside code, each with its offset.
fn links(page: &str) -> Vec<(usize, &str)> {
    let text = without_code(page);
    let targets = text.match_indices("](").map(|(at, _)| at + 2);
    targets.filter_map(|at| text[at..].find(')').map(|length| (at, page[at..at + length].trim()))).collect()
}

/// Replaces code by spaces: blocks between fences, and text between backticks.
fn without_code(page: &str) -> String {
    let (mut text, mut fenced, mut quoted) = (String::with_capacity(page.len()), false, false);
    for line in page.split_inclusive('\n') {
        let fence = line.trim_start().starts_with("```");
        for byte in line.bytes() {
            quoted ^= byte == b'`' && !fence && !fenced;
            let keep = byte == b'\n' || (byte.is_ascii() && !fence && !fenced && !quoted);
            text.push(if keep { char::from(byte) } else { ' ' });
        }
        fenced ^= fence;
        quoted &= !line.trim().is_empty();
    }
    text
}

/// Returns the anchors of a page's headings, as GitHub forms them.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let mut fenced = false;
    for line in page.lines() {
        fenced ^= line.trim_start().starts_with("```");
        let heading = line.trim_start_matches('#');
        if fenced || heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let kept = |part: &char| part.is_alphanumeric() || " -_".contains(*part);
        let anchor: String = heading.trim().to_lowercase().chars().filter(kept).collect();
        let anchor = anchor.replace(' ', "-");
        let numbered = (1..).map(|number| format!("{anchor}-{number}"));
        let free = std::iter::once(anchor.clone()).chain(numbered).find(|one| !anchors.contains(one));
        anchors.extend(free);
    }
    anchors
}

/// Returns the path of a link's file relative to the root.
fn resolved(page: &str, file: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in Path::new(file).components() {
        match part {
            Component::ParentDir => drop(parts.pop()),
            Component::Normal(name) => parts.push(name.to_str().unwrap_or_default()),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    parts.join("/")
}

#[test]
fn links_and_headings_are_found() {
    let page = "# A b\n[x](y.md#z) `[no](no)` [q\nr](s)\n```\n# no\n[no](no)\n```\n## A `b`, c\n# A b\n";
    let targets: Vec<&str> = links(page).into_iter().map(|(_, target)| target).collect();
    assert_eq!(targets, ["y.md#z", "s"]);
    assert_eq!(anchors(page).into_iter().collect::<Vec<_>>(), ["a-b", "a-b-1", "a-b-c"]);
    assert_eq!(resolved("a/b/c.md", "../d/e.md"), "a/d/e.md");
    let text = ["see d", "ocs/a/b.md. Not x/d", "ocs/c.md."].concat();
    assert_eq!(pages_in(&text).into_iter().map(|(at, _)| at).collect::<Vec<_>>(), [4]);
}
