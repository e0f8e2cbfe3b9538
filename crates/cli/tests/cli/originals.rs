//! docs/originals.md names only commands, options and tests that exist, and a row without any says that weir
//! lacks what it is about.

use super::folder::Folder;
use super::weir;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The cells of each row of the tables, without their heads.
fn rows(page: &str) -> Vec<Vec<&str>> {
    let rows = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| there "));
    rows.filter_map(|row| row.strip_prefix('|')?.strip_suffix('|'))
        .map(|row| row.split('|').collect())
        .collect()
}

/// What the last column of a table's rows has in backticks.
fn shown_by(page: &str) -> Vec<&str> {
    let last = rows(page).into_iter().filter_map(|row| row.last().copied());
    last.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect()
}

/// Whether the code has a test of this name that is not ignored.
fn is_run(code: &str, name: &str) -> bool {
    code.match_indices(&format!("fn {name}()")).any(|(at, _)| {
        let before = code[..at].trim_end().lines().rev().map(str::trim);
        let attributes: Vec<&str> = before.take_while(|line| line.starts_with("#[")).collect();
        attributes.contains(&"#[test]") && !attributes.iter().any(|one| one.starts_with("#[ignore"))
    })
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
            if !is_run(&code, one) {
                wrong.push(format!("there is no test `{one}`, or it is ignored"));
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

/// What nothing shows is not claimed.
#[test]
fn a_row_without_proof_says_what_is_missing() {
    let page = std::fs::read_to_string(root().join("docs/originals.md")).unwrap();
    let unproven: Vec<Vec<&str>> =
        rows(&page).into_iter().filter(|row| row[row.len() - 1].trim() == "").collect();
    let claims: Vec<_> = unproven.iter().filter(|row| !row[1].trim_start().starts_with("no")).collect();
    assert!(!unproven.is_empty() && claims.is_empty(), "{claims:#?}");
}

/// The tests above find what is wrong.
#[test]
fn the_last_column_is_what_is_checked() {
    let page = "| there | here | shown by |\n|---|---|---|\n| `a` | `b` | `weir c`, `d` |\n| e | f | |\n";
    assert_eq!(shown_by(page), ["weir c", "d"]);
    let code = "#[test]\nfn a() {}\nfn b() {}\n#[test]\n#[ignore = \"slow\"]\nfn c() {}\n";
    assert_eq!(["a", "b", "c", "d"].map(|name| is_run(code, name)), [true, false, false, false]);
}
