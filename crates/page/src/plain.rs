//! The page for browsers without JavaScript: static tables.

use serde_json::Value;
use std::fmt::Write;

/// Rows of each table. A browser without JavaScript cannot filter or sort.
const ROWS_MAX: usize = 2000;

/// The tables: the section, its title, and the fields that are its columns.
const TABLES: [(&str, &str, &[&str]); 3] = [
    (
        "backends",
        "Back ends",
        &["service", "name", "state", "health", "weight", "flows", "packets", "bytes", "check", "reason"],
    ),
    ("drops", "Drops", &["reason", "frames", "meaning"]),
    ("ports", "Ports", &["name", "link", "mode", "received", "transmitted", "to_kernel", "lost_before"]),
];

/// Returns the page for an answer to `weir show` with the sections of the tables.
#[must_use]
pub fn plain_page(node: &str, shown: &Value) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>weir {node}</title><link rel=\"stylesheet\" \
         href=\"/app.css\"></head><body><main><h1>weir {node}</h1><p>Loaded once: load it again for current \
         numbers.</p>\n",
        node = escaped(node)
    );
    for (section, title, columns) in TABLES {
        let rows = shown[section].as_array().map(Vec::as_slice).unwrap_or_default();
        let _ =
            write!(page, "<section class=\"card\"><h2>{title}</h2><div class=\"small\"><table><thead><tr>");
        for column in columns {
            let _ = write!(page, "<th>{}</th>", column.replace('_', " "));
        }
        page += "</tr></thead><tbody>\n";
        for row in rows.iter().take(ROWS_MAX) {
            page += "<tr>";
            for column in columns {
                let _ = write!(page, "<td>{}</td>", cell(&row[*column]));
            }
            page += "</tr>\n";
        }
        page += "</tbody></table></div>";
        if rows.len() > ROWS_MAX {
            let _ = write!(page, "<p>and {} more: see <code>weir show</code></p>", rows.len() - ROWS_MAX);
        }
        page += "</section>\n";
    }
    page + "</main></body></html>\n"
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_string(),
        Value::String(text) => escaped(text),
        other => escaped(&other.to_string()),
    }
}

/// Escapes a text for HTML.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for one in text.chars() {
        match one {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn markup_in_names_is_text_and_long_tables_end() {
        let row = json!({ "service": "<script>alert(1)</script>", "name": "\"><img src=x onerror='x'>" });
        let shown = json!({ "backends": vec![row; ROWS_MAX + 3] });
        let page = plain_page("<b>node", &shown);
        assert!(!page.contains("<script") && !page.contains("<img") && !page.contains("<b>"));
        assert!(page.contains("&lt;script&gt;alert(1)") && page.contains("and 3 more"));
        assert_eq!(page.matches("<tr>").count(), ROWS_MAX + 3);
    }
}
