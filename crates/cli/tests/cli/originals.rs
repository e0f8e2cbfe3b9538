//! docs/originals.md names only commands, options and tests that exist.

use super::folder::Folder;
use super::weir;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What the last column of a table's rows has in backticks.
fn shown_by(page: &str) -> Vec<&str> {
    let rows = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| there "));
    let last = rows.filter_map(|row| row.trim_end_matches('|').rsplit('|').next());
    last.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect()
}

/// All Rust sources below these folders, joined.
fn sources(folders: &[&str]) -> String {
    let mut open: Vec<PathBuf> = folders.iter().map(|folder| root().join(folder)).collect();
    let mut all = String::new();
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                all.push_str(&std::fs::read_to_string(path).unwrap());
            }
        }
    }
    all
}

#[test]
fn every_command_and_test_exists() {
    let page = std::fs::read_to_string(root().join("docs/originals.md")).unwrap();
    let (folder, code) = (Folder::new(), sources(&["crates", "rigs"]));
    let makefile = std::fs::read_to_string(root().join("Makefile")).unwrap();
    let (mut helps, mut wrong) = (BTreeMap::new(), Vec::new());
    let shown = shown_by(&page);
    assert!(shown.len() > 30, "only {} proofs were found", shown.len());
    for one in shown {
        if let Some(target) = one.strip_prefix("make ") {
            if !makefile.contains(&format!("\n{target}:")) {
                wrong.push(format!("there is no command `{one}`"));
            }
            continue;
        }
        let Some(command) = one.strip_prefix("weir ") else {
            if !code.contains(&format!("fn {one}()")) {
                wrong.push(format!("there is no test `{one}`"));
            }
            continue;
        };
        let (options, words): (Vec<&str>, Vec<&str>) =
            command.split_whitespace().partition(|word| word.starts_with("--"));
        let help = helps.entry(words.clone()).or_insert_with(|| {
            let said = weir(folder.path(), &[&words[..], &["--help"]].concat());
            (said.code == Some(0)).then_some(said.out)
        });
        let Some(help) = help else {
            wrong.push(format!("there is no command `{one}`"));
            continue;
        };
        // The views of `show` are arguments.
        let has = |word: &&str| {
            help.split(|one: char| !(one.is_ascii_alphanumeric() || "-_".contains(one)))
                .any(|other| other == *word)
        };
        wrong.extend(
            options.iter().filter(|option| !has(option)).map(|option| format!("`{one}`: no {option}")),
        );
    }
    assert!(wrong.is_empty(), "docs/originals.md: {wrong:#?}");
}

/// The test above finds what is wrong.
#[test]
fn the_last_column_is_what_is_checked() {
    let page = "| there | here | shown by |\n|---|---|---|\n| `a` | `b` | `weir c`, `d` |\n| e | f | |\n";
    assert_eq!(shown_by(page), ["weir c", "d"]);
}
