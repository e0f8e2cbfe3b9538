//! `make test` runs test programs in two lanes, which select them by patterns of names: each program is in
//! one of them.

use crate::Offence;
use crate::source;

/// Returns the test programs that the Makefile runs in no lane, or in both.
pub fn offences() -> Vec<Offence> {
    let makefile = source::read("Makefile");
    let lanes = ["waiting:", "others:"].map(|target| patterns(&makefile, target));
    let paths = source::paths();
    let programs = paths.iter().filter_map(|path| Some((path, program(path)?)));
    let offences = programs.filter_map(|(path, name)| {
        let runs = lanes.iter().filter(|lane| lane.iter().any(|pattern| matches(pattern, name))).count();
        let advice = format!("{runs} lanes in the Makefile run `{name}`: change its name or their patterns");
        (runs != 1).then(|| Offence { path: path.clone(), line: 1, advice })
    });
    offences.collect()
}

/// Returns what follows `--test` in the recipe of a target.
fn patterns<'a>(makefile: &'a str, target: &str) -> Vec<&'a str> {
    let recipe = makefile.lines().skip_while(|line| *line != target).skip(1);
    let words = recipe.take_while(|line| line.starts_with('\t')).flat_map(str::split_whitespace);
    let words: Vec<&str> = words.collect();
    let after = words.windows(2).filter(|pair| pair[0] == "--test");
    after.map(|pair| pair[1].trim_matches('\'')).collect()
}

/// Returns the name of the test program whose main file this is.
fn program(path: &str) -> Option<&str> {
    let (above, below) = path.split_once("/tests/")?;
    let name = below.strip_suffix("/main.rs").or_else(|| below.strip_suffix(".rs"))?;
    (!name.contains('/') && !above.ends_with("/src")).then_some(name)
}

/// Whether a name matches a pattern of literals, `[!abc]` and `*` at the end.
fn matches(pattern: &str, name: &str) -> bool {
    if pattern == "*" {
        return true;
    }
    if let Some((none_of, rest)) = pattern.strip_prefix("[!").and_then(|set| set.split_once(']')) {
        let first = name.chars().next();
        return first.is_some_and(|first| !none_of.contains(first) && matches(rest, &name[1..]));
    }
    match (pattern.chars().next(), name.chars().next()) {
        (Some(wanted), Some(first)) => wanted == first && matches(&pattern[1..], &name[1..]),
        (wanted, first) => wanted == first,
    }
}

#[test]
fn patterns_select_programs() {
    let makefile = "a:\n\t$(TEST) --lib --test cli --test 'lab_*'\nb:\n\tc\n";
    assert_eq!(patterns(makefile, "a:"), ["cli", "lab_*"]);
    assert_eq!(program("crates/cli/tests/lab_lb.rs"), Some("lab_lb"));
    assert_eq!(program("crates/cli/tests/cli/main.rs"), Some("cli"));
    assert_eq!(program("crates/cli/tests/cli/lb.rs"), None);
    assert_eq!(program("crates/lb/src/tests/a.rs"), None);
    assert!(matches("lab_*", "lab_lb") && matches("cli", "cli") && matches("l[!a]*", "lists"));
    assert!(!matches("cli", "clip") && !matches("l[!a]*", "lab") && !matches("[!cl]*", "cli"));
}
