//! Import cycles: files of a crate that use each other, directly or through others. To understand one of
//! them, one has to read all of them, so the size of a cycle is limited.
//!
//! A name is looked up where it is defined: a re-export is no use of the file that it names. Tests do not
//! count.

use crate::Offence;
use crate::source::{code, files};
use std::collections::{BTreeMap, BTreeSet};

/// The largest number of files in a cycle.
const CYCLE_MAX: usize = 8;

/// The largest number of re-exports through which a name is followed.
const REEXPORTS_MAX: usize = 8;

/// The path of a module, from the root of its crate.
type Module = Vec<String>;

/// A use of a path by a module: whether it is re-exported, and the path.
type ImportedPath = (bool, Vec<String>);

/// Returns cycles of more than [`CYCLE_MAX`] files, each at its first file.
pub fn offences() -> Vec<Offence> {
    let mut crates: BTreeMap<String, BTreeMap<Module, String>> = BTreeMap::new();
    let mut places = BTreeMap::new();
    for file in files(&["rs"]) {
        let Some((name, inside)) = file.path.split_once("/src/") else { continue };
        let mut module: Module = inside.trim_end_matches(".rs").split('/').map(str::to_string).collect();
        if module.iter().any(|part| part == "tests") {
            continue;
        }
        module.pop_if(|last| ["mod", "lib", "main"].contains(&last.as_str()));
        places.insert((name.to_string(), module.clone()), file.path.clone());
        crates.entry(name.to_string()).or_default().insert(module, without_tests(&code(&file.text)));
    }
    let mut offences = Vec::new();
    for (name, modules) in crates {
        for cycle in cycles(&modules).into_iter().filter(|cycle| cycle.len() > CYCLE_MAX) {
            let members: Vec<String> = cycle.iter().map(|module| module.join("/")).collect();
            let advice = format!(
                "{} files use each other, more than {CYCLE_MAX}: move what several of them need into a file \
                 that uses none of them ({})",
                cycle.len(),
                members.join(", ")
            );
            offences.push(Offence {
                path: places[&(name.clone(), cycle[0].clone())].clone(),
                line: 1,
                advice,
            });
        }
    }
    offences
}

/// Returns code without the modules of tests that are written into a file.
fn without_tests(code: &str) -> String {
    let end = code.match_indices("#[cfg(test)]").find(|(at, mark)| {
        let rest = code[at + mark.len()..].trim_start();
        rest.starts_with("mod ")
            && rest.split_once(['{', ';']).is_some_and(|(head, _)| rest[head.len()..].starts_with('{'))
    });
    end.map_or(code, |(at, _)| &code[..at]).to_string()
}

/// Returns the cycles of a crate's modules.
fn cycles(modules: &BTreeMap<Module, String>) -> Vec<Vec<Module>> {
    let uses: BTreeMap<&Module, Vec<ImportedPath>> =
        modules.iter().map(|(at, code)| (at, uses(code))).collect();
    let edges: BTreeMap<&Module, BTreeSet<Module>> = uses
        .iter()
        .map(|(at, own)| (*at, own.iter().filter_map(|one| target(at, one, &uses)).collect()))
        .collect();
    let reached = |from: &Module| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(at) = open.pop() {
            open.extend(edges[at].iter().filter(|to| seen.insert((*to).clone())));
        }
        seen
    };
    let reach: BTreeMap<&Module, BTreeSet<Module>> = edges.keys().map(|at| (*at, reached(at))).collect();
    let mut cycles: BTreeSet<Vec<Module>> = BTreeSet::new();
    for (at, others) in reach.iter().filter(|(at, others)| others.contains(**at)) {
        cycles.insert(others.iter().filter(|other| reach[*other].contains(*at)).cloned().collect());
    }
    cycles.into_iter().collect()
}

/// Returns the paths that code uses: in `use` items and in expressions.
fn uses(code: &str) -> Vec<ImportedPath> {
    let mut uses = Vec::new();
    let mut rest = String::new();
    for item in code.split_inclusive(';') {
        let Some((head, tree)) = use_item(item) else {
            rest.push_str(item);
            continue;
        };
        rest.push_str(head);
        let is_public = head.trim_end().ends_with("pub") || head.trim_end().ends_with(')');
        leaves(&mut Vec::new(), tree, &mut |path| uses.push((is_public, path)));
    }
    let is_word = |one: char| one.is_alphanumeric() || one == '_' || one == ':';
    for path in rest.split(|one| !is_word(one)).filter(|path| path.contains("::")) {
        let parts: Vec<String> = path.split("::").map(str::to_string).collect();
        if parts[0].starts_with(|one: char| one.is_lowercase()) {
            uses.push((false, parts));
        }
    }
    uses
}

/// Splits the text up to a semicolon at its `use`, if it ends with such an item.
fn use_item(item: &str) -> Option<(&str, &str)> {
    let at = item.rfind("use ")?;
    let begins = item[..at].chars().next_back().is_none_or(char::is_whitespace);
    let tree = item[at + 4..].trim_end_matches(';');
    let is_path = tree.chars().all(|one| one.is_alphanumeric() || "_:{}, *\n\r".contains(one));
    (begins && is_path).then_some((&item[..at], tree))
}

/// Calls `each` with every path of a tree of imports.
fn leaves(prefix: &mut Vec<String>, tree: &str, each: &mut impl FnMut(Vec<String>)) {
    let (head, group) = tree.split_once('{').map_or((tree, None), |(head, group)| (head, Some(group)));
    let head = head.split(" as ").next().unwrap_or_default();
    let depth = prefix.len();
    prefix.extend(head.split("::").map(str::trim).filter(|part| !part.is_empty()).map(str::to_string));
    match group.and_then(|group| group.rsplit_once('}')) {
        Some((group, _)) => {
            let (mut open, mut start) = (0, 0);
            for (at, one) in group.char_indices().chain([(group.len(), ',')]) {
                open += i32::from(one == '{') - i32::from(one == '}');
                if one == ',' && open == 0 {
                    if !group[start..at].trim().is_empty() {
                        leaves(prefix, &group[start..at], each);
                    }
                    start = at + 1;
                }
            }
        }
        None => {
            let mut path = prefix.clone();
            path.pop_if(|last| last == "self");
            each(path);
        }
    }
    prefix.truncate(depth);
}

/// Returns the module that a use leads to, unless it is another crate's, its own, or a re-export of a child.
fn target(
    from: &Module,
    (is_public, path): &ImportedPath,
    uses: &BTreeMap<&Module, Vec<ImportedPath>>,
) -> Option<Module> {
    let (start, rest) = absolute(from, path, uses)?;
    if *is_public && start == *from {
        return None;
    }
    let to = resolve(start, rest, uses, 0);
    (to != *from).then_some(to)
}

/// Returns where a path starts, and the rest of it; `None` if it starts in another crate or is a local name.
fn absolute<'a>(
    from: &Module,
    path: &'a [String],
    uses: &BTreeMap<&Module, Vec<ImportedPath>>,
) -> Option<(Module, &'a [String])> {
    match path.first()?.as_str() {
        "crate" => Some((Vec::new(), &path[1..])),
        "self" => Some((from.clone(), &path[1..])),
        "super" => {
            let ups = path.iter().take_while(|part| *part == "super").count();
            Some((from[..from.len().checked_sub(ups)?].to_vec(), &path[ups..]))
        }
        child => uses.contains_key(&[&from[..], &[child.to_string()]].concat()).then(|| (from.clone(), path)),
    }
}

/// Follows a path through modules and the names that they import.
fn resolve(
    mut at: Module,
    mut rest: &[String],
    uses: &BTreeMap<&Module, Vec<ImportedPath>>,
    depth: usize,
) -> Module {
    while let Some((first, others)) = rest.split_first() {
        let child = [&at[..], std::slice::from_ref(first)].concat();
        if !uses.contains_key(&child) {
            break;
        }
        (at, rest) = (child, others);
    }
    let Some(name) = rest.first().filter(|_| depth < REEXPORTS_MAX) else { return at };
    for (_, path) in uses.get(&at).into_iter().flatten().filter(|(_, path)| path.last() == Some(name)) {
        let Some((start, inside)) = absolute(&at, path, uses) else { continue };
        if (&start, inside) == (&at, rest) {
            continue;
        }
        let to = resolve(start, inside, uses, depth + 1);
        if to != at {
            return to;
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crate_of(files: &[(&str, &str)]) -> BTreeMap<Module, String> {
        let module =
            |path: &str| path.split('/').filter(|part| !part.is_empty()).map(str::to_string).collect();
        files.iter().map(|(path, code)| (module(path), (*code).to_string())).collect()
    }

    #[test]
    fn files_that_use_each_other_are_a_cycle() {
        let two = crate_of(&[
            ("", "mod a; mod b; pub use a::A;"),
            ("a", "use crate::b::{self, B}; pub struct A;"),
            ("b", "use super::A; pub struct B;"),
            ("c", "use super::a; fn f() { crate::b::g() }"),
        ]);
        assert_eq!(cycles(&two), [[["a".to_string()], ["b".to_string()]]]);
        let none = crate_of(&[("", "mod a; pub use a::A;"), ("a", "pub struct A;"), ("b", "use super::A;")]);
        assert!(cycles(&none).is_empty());
    }
}
