//! Secrets in a line of a configuration: error messages show the line and go to the log, which others read.
//!
//! A secret is recognised by the key in front of it, or, if that is on another line, by its form. The caret's
//! position stays correct, because each character is replaced with exactly one.

/// The keys whose values are secrets: those of path probes, QUIC connection IDs, the GLB director and the
/// select hash. Other keys with these names have short values or file names.
const KEYS: [&str; 5] = ["key", "secret", "seed", "hash_key", "hash_seed"];

/// Shorter values of [`KEYS`] are not secrets.
const VALUE_MIN: usize = 8;

/// The minimum number of consecutive hexadecimal digits that are a secret wherever they occur: at least half
/// of a key.
const DIGITS_MIN: usize = 24;

/// Returns the line with an asterisk in place of each character of a secret.
#[must_use]
pub fn hidden(line: &str) -> String {
    let mut characters: Vec<char> = line.chars().collect();
    let mut at = 0;
    while at < characters.len() {
        let length = characters[at..].iter().take_while(|one| is_of_word(**one)).count();
        let word: String = characters[at..at + length].iter().collect();
        let is_key = KEYS.contains(&&*word);
        if is_key && let Some((first, last)) = value(&characters, at + length) {
            characters[first..last].fill('*');
        } else if length >= DIGITS_MIN && word.chars().all(|one| one.is_ascii_hexdigit()) {
            characters[at..at + length].fill('*');
        }
        at += length.max(1);
    }
    characters.into_iter().collect()
}

fn is_of_word(one: char) -> bool {
    one.is_alphanumeric() || one == '_'
}

/// Returns where the value after a key begins and ends, without its quotes, if it can be a secret.
fn value(characters: &[char], behind: usize) -> Option<(usize, usize)> {
    let skip = |from: usize, what: &[char]| {
        from + characters[from..].iter().take_while(|one| what.contains(one)).count()
    };
    let colon = skip(behind, &['"', '\'', ' ']);
    (characters.get(colon) == Some(&':')).then_some(())?;
    let first = skip(colon + 1, &['"', '\'', ' ']);
    let ends = |one: &char| ",}]\"' #".contains(*one);
    let length = characters[first..].iter().take_while(|one| !ends(one)).count();
    let is_file = characters[first..first + length].contains(&'/');
    (length >= VALUE_MIN && !is_file).then_some((first, first + length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_hidden_and_what_is_none_is_shown() {
        let digits = "0123456789abcdef0123456789abcdef";
        let stars = "*".repeat(32);
        for (line, shown) in [
            (format!("  key: {digits}"), format!("  key: {stars}")),
            (format!("quic: {{ key: \"{digits}\" }}, b: 1"), format!("quic: {{ key: \"{stars}\" }}, b: 1")),
            (format!("{{\"hash_key\": \"{digits}\"}}"), format!("{{\"hash_key\": \"{stars}\"}}")),
            ("hash_seed: 0x0123456789abcdef # ours".into(), "hash_seed: ****************** # ours".into()),
            ("secret: not-hexadecimal".into(), "secret: ***************".into()),
            (format!("  - {digits}"), format!("  - {stars}")),
        ] {
            assert_eq!(hidden(&line), shown);
        }
        for shown in [
            "key: 1",
            "key: outer",
            "key: /etc/weir/private.pem",
            "keys: 0123456789",
            "name: seed",
            "mac: 02:00:00:00:00:01",
            "server_id: 0123456789abcdef",
            "key",
            "key:",
            "",
        ] {
            assert_eq!(hidden(shown), shown);
        }
    }
}
