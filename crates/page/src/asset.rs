//! The files of the page, compressed with gzip, and its content security policy.

use std::fmt::Write;

/// A file of the page.
#[derive(Clone, Copy, Debug)]
pub struct PageAsset {
    /// Its path.
    pub path: &'static str,
    /// Its media type.
    pub kind: &'static str,
    /// Its content, compressed with gzip, which every browser decompresses.
    pub content: &'static [u8],
}

/// Two lines with a word and a hash in hexadecimal digits: that of the `sources` from which the page was
/// built, and that of the `built` files, which is the page's ETag.
const HASHES: &str = include_str!("../built/sources.sha256");

const ASSETS: [PageAsset; 4] = [
    PageAsset {
        path: "/",
        kind: "text/html; charset=utf-8",
        content: include_bytes!("../built/index.html.gz"),
    },
    PageAsset {
        path: "/app.js",
        kind: "text/javascript; charset=utf-8",
        content: include_bytes!("../built/app.js.gz"),
    },
    PageAsset {
        path: "/app.css",
        kind: "text/css; charset=utf-8",
        content: include_bytes!("../built/app.css.gz"),
    },
    PageAsset { path: "/icon.svg", kind: "image/svg+xml", content: include_bytes!("../built/icon.svg.gz") },
];

impl PageAsset {
    /// Returns its ETag, with its quotes. All files of one build have the same.
    #[must_use]
    pub fn tag(&self) -> String {
        format!("\"{:.32}\"", hash_of("built"))
    }
}

/// Returns the hash that was written when the page was built.
fn hash_of(what: &str) -> &'static str {
    let mut lines = HASHES.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(word, _)| *word == what).map_or("", |(_, hash)| hash)
}

/// Returns the file at a path.
#[must_use]
pub fn asset(path: &str) -> Option<&'static PageAsset> {
    const { &ASSETS }.iter().find(|asset| asset.path == path)
}

/// Returns the content security policy. It permits only the page's own files, and requests only to this node
/// and to the given origins. Inline scripts and styles are blocked.
#[must_use]
pub fn content_security_policy(nodes: &[String]) -> String {
    let mut policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
        base-uri 'none'; form-action 'none'; frame-ancestors 'none'; connect-src 'self'"
        .to_string();
    for node in nodes {
        let _ = write!(policy, " {node}");
    }
    policy
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};
    use std::path::Path;

    /// The maximum size of the page, in bytes, as promised by the issue and the documentation.
    const SIZE_MAX: usize = 150_000;

    /// Returns the hash of files in a folder, as `build.mjs` computes it.
    fn hash(folder: &Path, mut names: Vec<String>) -> String {
        names.sort_unstable();
        let mut hash = Sha256::new();
        for name in names {
            let text = std::fs::read(folder.join(&name)).unwrap();
            hash.update(format!("{name}\n{}\n", text.len()));
            hash.update(text);
        }
        hash.finalize().iter().fold(String::new(), |all, byte| all + &format!("{byte:02x}"))
    }

    fn names_in(folder: &Path) -> Vec<String> {
        let all = std::fs::read_dir(folder).unwrap();
        all.map(|one| one.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn the_page_was_built_from_these_sources() {
        let web = Path::new(env!("CARGO_MANIFEST_DIR")).join("web");
        let fixed =
            ["build.mjs", "icon.svg", "index.html", "package-lock.json", "package.json", "tsconfig.json"];
        let mut names: Vec<String> = fixed.map(str::to_string).to_vec();
        names.extend(names_in(&web.join("src")).iter().map(|name| format!("src/{name}")));
        let expected = "`make page` builds the page from the changed sources";
        assert_eq!(hash(&web, names), hash_of("sources"), "{expected}");
    }

    #[test]
    fn the_built_files_are_those_that_were_built_with_the_hashes() {
        let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("built");
        let mut names = names_in(&built);
        names.retain(|name| name != "sources.sha256");
        assert_eq!(names.len(), ASSETS.len());
        assert_eq!(hash(&built, names), hash_of("built"), "`make page` builds the page and its hashes");
        assert_eq!(ASSETS[0].tag().len(), 34);
    }

    #[test]
    fn the_page_is_small_and_every_file_is_compressed() {
        assert!(ASSETS.iter().all(|one| one.content.starts_with(&[0x1f, 0x8b])));
        let size: usize = ASSETS.iter().map(|one| one.content.len()).sum();
        assert!(size <= SIZE_MAX, "{size} bytes");
        assert!(asset("/").is_some() && asset("/index.html").is_none() && asset("/../app.js").is_none());
    }

    #[test]
    fn the_policy_allows_the_nodes_of_the_fleet_and_nothing_inline() {
        let policy = content_security_policy(&["https://lb2:9106".to_string()]);
        assert!(policy.ends_with("connect-src 'self' https://lb2:9106") && !policy.contains("unsafe"));
    }
}
