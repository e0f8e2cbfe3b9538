//! `weir completions` and `weir man`: every subcommand is in what a package installs.

use super::folder::Folder;
use super::weir;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// The subcommands that `weir --help` lists, and one of an app.
fn subcommands() -> Vec<String> {
    let help = weir(Path::new("/"), &["--help"]).good().out;
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let words = listed.take_while(|line| !line.is_empty()).filter_map(|line| line.split_whitespace().next());
    let all: Vec<String> = words.filter(|word| *word != "help").map(str::to_string).collect();
    assert!(["run", "show", "bond", "man"].iter().all(|one| all.iter().any(|word| word == one)), "{help}");
    all
}

#[test]
fn each_shell_completes_every_subcommand() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = weir(Path::new("/"), &["completions", shell]).good().out;
        for word in subcommands() {
            assert!(script.contains(&word), "{shell}: no {word}");
        }
    }
    assert_eq!(weir(Path::new("/"), &["completions", "nush"]).code, Some(2));
}

/// The shell itself parses the script, if it is installed.
#[test]
fn shells_read_their_scripts() {
    for shell in ["bash", "zsh", "fish"] {
        let script = weir(Path::new("/"), &["completions", shell]).good().out;
        let started = Command::new(shell).arg("-n").stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let Ok(mut child) = started else { continue };
        child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        let ended = child.wait_with_output().unwrap();
        assert!(ended.status.success(), "{shell}: {}", String::from_utf8_lossy(&ended.stderr));
    }
}

#[test]
fn every_subcommand_has_a_page() {
    let folder = Folder::new();
    weir(folder.path(), &["man", "share/man1"]).good();
    for word in subcommands().into_iter().chain(["bond-migrate".to_string()]) {
        let page = std::fs::read_to_string(folder.file(&format!("share/man1/weir-{word}.1"))).unwrap();
        assert!(page.contains(".SH SYNOPSIS"), "{word}: {page}");
    }
    let page = std::fs::read_to_string(folder.file("share/man1/weir.1")).unwrap();
    assert!(page.contains("weir\\-show(1)"), "{page}");
    folder.write("file", "");
    weir(folder.path(), &["man", "file"]).refused(1, &["file", "cannot write the pages"]);
}

#[test]
fn the_reference_has_every_command_key_and_path() {
    let folder = Folder::new();
    weir(folder.path(), &["reference", "pages"]).good();
    let page = |name: &str| std::fs::read_to_string(folder.file(&format!("pages/{name}"))).unwrap();
    let commands = page("commands.md");
    for word in subcommands().into_iter().chain(["bond migrate".to_string()]) {
        assert!(commands.contains(&format!("\n## weir {word}\n")), "no {word}");
    }
    assert!(commands.contains("\n| `--socket <"), "{commands}");
    let keys = page("keys.md");
    for key in ["ports", "control.listen", "control.token", "hash_seed"] {
        assert!(keys.contains(&format!("\n| `{key}` | ")), "no {key}: {keys}");
    }
    assert!(keys.contains("MAC address") && keys.contains("number, 1 to 65535"), "{keys}");
    let api = page("api.md");
    let path = "PATCH /v1/services/SERVICE/back_ends/BACK_END\n";
    let section = api.split("\n## ").find(|part| part.starts_with(path)).expect("a PATCH");
    assert!(section.contains("| body | [") && section.contains("\n| 412 | [Error](#error) | "), "{section}");
    // Every link leads to a heading of the page.
    for page in [&keys, &api] {
        for (_, rest) in page.match_indices("](#").map(|(at, _)| (at, &page[at + 3..])) {
            let anchor = rest.split(')').next().unwrap();
            let found = page
                .lines()
                .any(|line| line.strip_prefix("## ").is_some_and(|name| name.to_lowercase() == anchor));
            assert!(found, "no heading for #{anchor}");
        }
    }
    folder.write("file", "");
    weir(folder.path(), &["reference", "file"]).refused(1, &["file", "cannot write the pages"]);
}

#[test]
fn the_version_names_commit_and_features() {
    let said = weir(Path::new("/"), &["--version"]).good().out;
    let [first, second] = said.lines().collect::<Vec<_>>()[..] else { panic!("{said}") };
    let number = format!("weir {} (", env!("CARGO_PKG_VERSION"));
    let commit = first.strip_prefix(&number).and_then(|rest| rest.strip_suffix(')'));
    assert!(commit.is_some_and(|commit| !commit.is_empty()), "{said}");
    let features = second.strip_prefix("features: ").unwrap().split(", ");
    let has = |name: &str| features.clone().any(|one| one == name);
    for (name, is_in) in [
        ("dpdk", cfg!(feature = "dpdk")),
        ("parquet", cfg!(feature = "parquet")),
        ("tls", cfg!(feature = "tls")),
        ("bench", cfg!(feature = "bench")),
        ("lab", cfg!(feature = "lab")),
        ("sim", cfg!(feature = "sim")),
    ] {
        assert_eq!(has(name), is_in, "{name}: {said}");
    }
    // Scripts parse this one.
    assert_eq!(
        weir(Path::new("/"), &["-V"]).good().out.trim(),
        format!("weir {}", env!("CARGO_PKG_VERSION"))
    );
}
