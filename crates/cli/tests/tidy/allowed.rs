//! Offences that are tolerated for now, in `allowed.txt`: each line has a rule, a number (or `any`) and the
//! beginning of a path.

use crate::Offence;

const LIST: &str = include_str!("allowed.txt");

/// A line of the list.
struct Allowed {
    line: usize,
    rule: &'static str,
    /// How many offences there are; `None` if they are not counted, only more than none.
    count: Option<usize>,
    path: &'static str,
}

fn list() -> Vec<Allowed> {
    let mut list = Vec::new();
    for (at, line) in LIST.lines().enumerate() {
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            [] | ["#", ..] => (),
            [rule, "any", path] => list.push(Allowed { line: at + 1, rule, count: None, path }),
            [rule, count, path] => {
                let count = count.parse().unwrap_or_else(|_| panic!("allowed.txt:{}: not a number", at + 1));
                list.push(Allowed { line: at + 1, rule, count: Some(count), path });
            }
            _ => panic!("allowed.txt:{}: a line is RULE COUNT PATH", at + 1),
        }
    }
    list
}

/// Fails with every offence that the list does not allow, and with every line that allows more than there is.
pub fn assert(rule: &str, offences: Vec<Offence>) {
    let list = list();
    let allowing = |offence: &Offence| {
        list.iter().position(|line| line.rule == offence.rule && offence.path.starts_with(line.path))
    };
    let mut failures: Vec<String> =
        offences.iter().filter(|offence| allowing(offence).is_none()).map(ToString::to_string).collect();
    for (at, line) in list.iter().enumerate().filter(|(_, line)| line.rule == rule) {
        let found: Vec<_> = offences.iter().filter(|offence| allowing(offence) == Some(at)).collect();
        if line.count.is_some_and(|count| found.len() > count) {
            failures.extend(found.iter().map(ToString::to_string));
        }
        if found.len() < line.count.unwrap_or(1) {
            let (line, left) = (line.line, found.len());
            failures.push(format!(
                "crates/cli/tests/tidy/allowed.txt:{line}: {left} left: lower the number or remove the line"
            ));
        }
    }
    assert!(failures.is_empty(), "{} to tidy:\n{}\n", failures.len(), failures.join("\n"));
}
