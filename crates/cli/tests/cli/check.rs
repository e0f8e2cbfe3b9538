//! `weir check` reports every error at once, each with its line and a caret.

use super::folder::Folder;
use super::{TWO, weir};

#[test]
fn a_good_file_is_good() {
    let folder = Folder::new();
    folder.write("weir.yaml", TWO);
    let said = weir(folder.path(), &["check", "weir.yaml"]).good();
    assert_eq!(said.out, "weir.yaml: good (2 ports, 1 pipe, 2 entries, 0 groups)\n");
    let json = weir(folder.path(), &["check", "weir.yaml", "--json"]).good().json();
    assert_eq!(
        (&json["ok"], &json["errors"], json["diagnostics"].as_array().map(Vec::len)),
        (&true.into(), &0.into(), Some(0))
    );
}

#[test]
fn all_errors_are_told_at_once_with_line_and_caret() {
    let folder = Folder::new();
    let broken = TWO
        .replace("type: basic", "type: basik")
        .replace("ipv4.src: per_entry/", "ipv4.scr: per_entry/")
        .replace("forward: p1", "forward: p9")
        .replace("02:00:00:00:00:11", "02:00:00:00:00")
        + "wrokers: 2\n";
    folder.write("broken.yaml", broken);
    let said = weir(folder.path(), &["check", "broken.yaml"]);
    assert_eq!(said.code, Some(2), "{}", said.err);
    let found: Vec<&str> = said.err.lines().collect();
    for (line, what) in [(6, "basik"), (7, "ipv4.scr"), (10, "p9"), (14, "02:00:00:00:00"), (15, "wrokers")] {
        let place = format!("broken.yaml:{line}:");
        let at = found
            .iter()
            .position(|one| one.starts_with(&place))
            .unwrap_or_else(|| panic!("{place} {}", said.err));
        assert!(found[at].contains("error: ") && found[at].contains(what), "{}", found[at]);
        let (text, caret) = (found[at + 1], found[at + 2]);
        let under = text.find(what).expect("the line is shown");
        assert_eq!(caret.find('^'), Some(under), "{text}\n{caret}");
    }
    assert!(said.err.contains("did you mean `ipv4.src`?"), "{}", said.err);
    assert_eq!(said.out, "broken.yaml: 5 errors, 0 warnings\n");
    let json = weir(folder.path(), &["check", "broken.yaml", "--json"]).json();
    assert_eq!((&json["ok"], &json["errors"]), (&false.into(), &5.into()));
    assert_eq!(json["diagnostics"][0]["line"], 6);
}

#[test]
fn what_the_program_check_finds_has_its_place_too() {
    let folder = Folder::new();
    let text = "\
ports: { p0: { mem: ~, root: a } }
pipes:
  a: { type: basic, match: { meta.0: 1 }, forward: b, miss: drop, entries: [{}] }
  b: { type: basic, forward: a, miss: drop, entries: [{}] }
  c: { type: basic, forward: drop, miss: drop }
";
    folder.write("loop.yaml", text);
    let said = weir(folder.path(), &["check", "loop.yaml"]);
    assert_eq!(said.code, Some(2));
    for part in ["loop.yaml:3:", "loop", "meta.0", "loop.yaml:5:", "`c`"] {
        assert!(said.err.contains(part), "no `{part}` in {}", said.err);
    }
}

#[test]
fn bad_yaml_and_missing_files_are_one_sentence() {
    let folder = Folder::new();
    folder.write("bad.yaml", "ports: { p0\n");
    let said = weir(folder.path(), &["check", "bad.yaml"]);
    assert_eq!(said.code, Some(2));
    assert!(said.err.contains("bad.yaml:") && said.err.contains("not YAML"), "{}", said.err);
    folder.write("binary.yaml", b"\xff\xfe\x00");
    weir(folder.path(), &["check", "binary.yaml"]).refused(1, &["binary.yaml", "UTF-8"]);
    for command in ["check", "replay", "explain", "run"] {
        let mut arguments = vec![command, "none.yaml"];
        if command == "explain" {
            arguments.extend(["--packet", "dport=1"]);
        }
        weir(folder.path(), &arguments).refused(1, &["none.yaml", "No such file"]);
    }
    folder.write("empty.yaml", "");
    assert_eq!(weir(folder.path(), &["check", "empty.yaml"]).code, Some(2));
    // Every command that reads a configuration refuses an invalid one in the same way.
    for arguments in [
        &["replay", "empty.yaml"][..],
        &["run", "empty.yaml"],
        &["explain", "empty.yaml", "--packet", "dport=1"],
    ] {
        let said = weir(folder.path(), arguments);
        assert_eq!(said.code, Some(2), "{arguments:?}: {}", said.err);
    }
}
