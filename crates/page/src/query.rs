//! The query of a URL: names and values, as browsers encode them.

/// The names and values of a query, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueryParameters(Vec<(String, String)>);

impl QueryParameters {
    /// Returns the value of a name; the first one if it occurs repeatedly.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(one, _)| one == name).map(|(_, value)| value.as_str())
    }

    /// Checks that the query has no other names than these.
    ///
    /// # Errors
    /// Returns a sentence with the first unknown name, and the known ones.
    pub fn only(&self, names: &[&str]) -> Result<(), String> {
        let other = self.0.iter().find(|(one, _)| !names.contains(&one.as_str()));
        other.map_or(Ok(()), |(one, _)| match names {
            [] => Err(format!("there is no parameter `{one}`: this path has none")),
            _ => Err(format!("there is no parameter `{one}`: {}", names.join(", "))),
        })
    }
}

/// Decodes a query.
///
/// # Errors
/// Returns a sentence with the part that is not encoded correctly.
pub fn query(text: &str) -> Result<QueryParameters, String> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let decoded = decoded(name).zip(decoded(value));
        decoded.ok_or_else(|| format!("`{pair}` in the query is not percent-encoded UTF-8"))
    };
    pairs.map(pair).collect::<Result<_, _>>().map(QueryParameters)
}

fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                (digit()? * 16 + digit()?) as u8
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded_and_unknown_names_are_refused() {
        let all = query("packet=src%3D10.0.0.1+dst%3d::1&port=p%C3%A9&empty").unwrap();
        assert_eq!(all.get("packet"), Some("src=10.0.0.1 dst=::1"));
        assert_eq!((all.get("port"), all.get("empty"), all.get("hex")), (Some("p\u{e9}"), Some(""), None));
        assert!(all.only(&["packet", "port", "empty"]).is_ok());
        let why = all.only(&["packet", "hex"]).unwrap_err();
        assert_eq!(why, "there is no parameter `port`: packet, hex");
        for wrong in ["a=%", "a=%4", "a=%zz", "a=%ff"] {
            assert!(query(wrong).unwrap_err().contains(wrong), "{wrong}");
        }
    }
}
