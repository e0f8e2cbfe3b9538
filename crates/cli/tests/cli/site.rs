//! `packaging/site/build`, which `make site` runs, without mdBook itself: it accepts all pages, and what it
//! gives to mdBook is complete.

use super::folder::Folder;
use std::path::{Path, PathBuf};
use std::process::Command;

/// All Markdown files below a folder.
fn pages(folder: &Path) -> Vec<PathBuf> {
    let (mut open, mut pages) = (vec![folder.to_path_buf()], Vec::new());
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages
}

/// The files to which a page links, as paths relative to it. Links in code do not count.
fn targets(page: &str) -> Vec<&str> {
    let mut fenced = false;
    let outside = page.lines().filter(|line| {
        fenced ^= line.starts_with("```");
        !fenced
    });
    let prose = outside.flat_map(|line| line.split('`').step_by(2));
    let links = prose.flat_map(|text| text.split("](").skip(1).filter_map(|rest| rest.split(')').next()));
    let files = links.filter(|link| !link.contains("://") && !link.starts_with(['#', '<']));
    files.filter_map(|link| link.split('#').next()).filter(|file| !file.starts_with("mailto:")).collect()
}

/// A page that docs/README.md does not list, or a link to a file that does not exist, ends the build.
#[test]
fn all_pages_become_a_site_whose_links_lead_somewhere() {
    let folder = Folder::new();
    let version = folder.file("html").join(env!("CARGO_PKG_VERSION"));
    std::fs::create_dir_all(&version).unwrap();
    // What mdBook would write. Its stand-in, `true`, writes nothing.
    std::fs::write(version.join("index.html"), "").unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut build = Command::new("python3");
    build.arg(root.join("packaging/site/build")).args([env!("CARGO_BIN_EXE_weir"), "true"]);
    let output = build.arg(folder.file("html")).output().expect("python3 runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (source, mut links, mut broken) = (folder.file("source/src"), 0, Vec::new());
    let pages = pages(&source);
    for page in &pages {
        let text = std::fs::read_to_string(page).unwrap();
        for target in targets(&text) {
            links += 1;
            if !page.with_file_name(target).exists() {
                broken.push(format!("{}: {target}", page.strip_prefix(&source).unwrap().display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(pages.len() > 60 && links > 400, "{} pages, {links} links", pages.len());
    for (wanted, which) in [("keys.md", "configuration"), ("commands.md", "commands"), ("api.md", "HTTP API")]
    {
        let page = std::fs::read_to_string(source.join("reference").join(wanted)).unwrap();
        assert!(page.lines().count() > 100, "the generated reference of the {which} is short");
    }
}

/// The test above finds what is wrong.
#[test]
fn links_outside_code_are_found() {
    let page = "[a](b.md#c) `[no](no)` ![d](e.svg)\n```\n[no](no)\n```\n[f](#g) [h](https://i)\n";
    assert_eq!(targets(page), ["b.md", "e.svg"]);
}
