//! Entries on lines: in a separate file, and in long lists of the configuration.

use crate::config::{Loaded, read};
use std::path::PathBuf;
use weir_program::Entry;

/// A folder for a test's files.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("weir-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// Reads a configuration in the folder, with these entries.
    fn read(&self, entries: &str) -> Loaded {
        read(&self.0.join("weir.yaml").display().to_string(), &text(entries))
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.0.join(file), text).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn text(entries: &str) -> String {
    format!(
        "ports: {{ p0: {{ mem: }} }}\nroot: a\npipes:\n  a:\n    type: basic\n    \
         match: {{ ipv4.dst: per_entry }}\n    action: [{{ set: {{ eth.dst: per_entry }} }}]\n    \
         forward: p0\n    miss: drop\n    entries: {entries}\n"
    )
}

fn entry(at: u32) -> String {
    let (high, low) = (at >> 8, at & 0xff);
    format!("{{ match: {{ ipv4.dst: 10.0.{high}.{low} }}, set: {{ eth.dst: 02:00:00:00:00:{low:02x} }} }}")
}

/// The entries of the only pipe, without their places.
fn entries(loaded: &Loaded) -> Vec<Entry> {
    let plan = loaded.plan.as_ref().unwrap_or_else(|| panic!("{}", loaded.report));
    let all = plan.program.pipes[0].entries.iter();
    all.map(|entry| Entry { origin: Default::default(), ..entry }).collect()
}

fn list(count: u32) -> String {
    (0..count).map(|at| format!("\n      - {}", entry(at))).collect()
}

#[test]
fn entries_of_a_file_are_those_of_a_list() {
    let folder = Folder::new("lines");
    let lines: String = (0..300).map(|at| format!("{}\n", entry(at))).collect();
    folder.write("a.entries", &format!("# three hundred\n{lines}"));
    let flow: Vec<String> = (0..300).map(entry).collect();
    let wanted = entries(&folder.read(&format!("[{}]", flow.join(", "))));
    assert_eq!(wanted.len(), 300);
    assert_eq!(entries(&folder.read("{ file: a.entries }")), wanted);
    assert_eq!(entries(&folder.read(&list(300))), wanted);
    let loaded = folder.read("{ file: a.entries }");
    assert_eq!(loaded.plan.unwrap().program.pipes[0].capacity, 1024);
}

#[test]
fn errors_in_a_file_have_their_places_there() {
    let folder = Folder::new("lines-wrong");
    let wrong = "{ match: { ipv4.dst: 10.0.0.x }, set: { eth.dst: 02:00:00:00:00:01 } }";
    let (first, second) = (entry(1), entry(2));
    folder.write("a.entries", &format!("{first}\n{wrong}\n{second}\n"));
    let said = folder.read("{ file: a.entries }").report;
    let file = folder.0.join("a.entries").display().to_string();
    assert!(said.to_string().starts_with(&format!("{file}:2:22: error: ")), "{said}");
    assert!(
        said.to_string().contains(&format!("    2 | {wrong}\n      |                      ^^^^^^^^")),
        "{said}"
    );
    assert_eq!(said.json()[0]["file"], file.as_str());

    folder.write("a.entries", &format!("{first}\n{second}\n{first}\n"));
    let said = folder.read("{ file: a.entries }").report.to_string();
    assert!(said.starts_with(&format!("{file}:3:10: error: ")) && said.contains("twice"), "{said}");

    folder.write("a.entries", &format!("{first}\n{{ a: [ }}\n"));
    let said = folder.read("{ file: a.entries }").report.to_string();
    assert!(said.starts_with(&format!("{file}:2:")) && said.contains("this is not YAML"), "{said}");

    std::fs::write(folder.0.join("a.entries"), b"{ a: \xe9 }\n").unwrap();
    let said = folder.read("{ file: a.entries }").report.to_string();
    assert!(said.starts_with(&format!("{file}:1:6: error: this is not UTF-8")), "{said}");
}

#[test]
fn a_file_that_is_none_is_told_at_its_name() {
    let folder = Folder::new("lines-none");
    for (file, message) in [("b.entries", "No such file"), (".", "Is a directory")] {
        let said = folder.read(&format!("{{ file: {file} }}")).report.to_string();
        assert!(said.contains("weir.yaml:10:22: error: ") && said.contains(message), "{said}");
    }
    let said = folder.read("{ path: b }").report.to_string();
    assert!(said.contains("there is no key `path` here"), "{said}");
}

#[test]
fn errors_in_a_long_list_have_their_places() {
    let folder = Folder::new("lines-long");
    let wrong = list(300).replace("ipv4.dst: 10.0.0.77 ", "ipv4.dst: 10.0.0.x ");
    let said = folder.read(&wrong).report.to_string();
    assert!(
        said.contains("weir.yaml:88:30: error: ") && said.contains("\n   88 |       - { match: "),
        "{said}"
    );
    let unknown = list(300).replace("ipv4.dst: 10.0.0.77 ", "ipv4.dts: 10.0.0.77 ");
    let said = folder.read(&unknown).report.to_string();
    assert!(said.contains("weir.yaml:88:20: error: ") && said.contains("did you mean `ipv4.dst`?"), "{said}");
    let twice = list(300).replace("10.0.0.77 ", "10.0.0.76 ");
    let said = folder.read(&twice).report.to_string();
    assert!(said.contains("weir.yaml:88:18: error: ") && said.contains("twice"), "{said}");
}

/// The places of all entries, and of the file that names the first.
fn places(loaded: &Loaded) -> Vec<(u32, u32, u32)> {
    let plan = loaded.plan.as_ref().unwrap_or_else(|| panic!("{}", loaded.report));
    let spans = plan.program.pipes[0].entries.iter().map(|entry| loaded.report.span_of(entry.origin));
    spans.map(|span| (span.line, span.column, span.length)).collect()
}

#[test]
fn a_plain_line_has_the_place_of_any_other() {
    let folder = Folder::new("places");
    let plain = folder.read(&list(100));
    // Quotes of this kind are left to the YAML parser.
    let quoted = folder.read(&list(100).replace("10.0.0.", "'10.0.0.").replace(" }, set", "' }, set"));
    assert_eq!((places(&plain), entries(&plain)), (places(&quoted), entries(&quoted)));
    assert_eq!(places(&plain)[1], (12, 18, 1));
}
