//! What to do about each drop reason. The texts are taken from the reference, so that they are written only
//! once.

use serde_json::{Map, Value, json};

/// The reference that has the table of reasons.
const REFERENCE: &str = include_str!("../../../docs/reference/metrics.md");

/// Returns, for each reason that the reference lists, `cause` and `advice`, as plain text.
#[must_use]
pub fn reasons() -> Map<String, Value> {
    let rows = REFERENCE.lines().skip_while(|line| !line.starts_with("| reason |"));
    let rows = rows.take_while(|line| line.starts_with('|')).skip(2);
    rows.flat_map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [names, cause, advice] = cells[..] else { return Vec::new() };
        let value = json!({ "cause": plain(cause), "advice": plain(advice) });
        names.split(',').map(|name| (plain(name), value.clone())).collect()
    })
    .collect()
}

/// Removes Markdown from a text: backticks, and the targets of links.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text.trim();
    while let Some((before, link)) = rest.split_once("](") {
        let (words, target) = (before.rsplit_once('['), link.split_once(')'));
        let (Some((before, words)), Some((_, after))) = (words, target) else { break };
        plain = plain + before + words;
        rest = after;
    }
    (plain + rest).replace('`', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_says_what_to_do_in_plain_text() {
        let reasons = reasons();
        for reason in ["policy", "miss", "transmit_full", "no_target", "malformed_ipv4"] {
            let advice = reasons.get(reason).and_then(|one| one["advice"].as_str()).unwrap_or_default();
            assert!(advice.len() > 5 && !advice.contains(['`', '[', '|']), "{reason}: {advice:?}");
        }
        assert_eq!(plain("use `a`: see [the page](x.md#y), or [b](c)."), "use a: see the page, or b.");
    }
}
