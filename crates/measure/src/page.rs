//! A measurement as a self-contained HTML page: data, style and script are embedded, so that it can be mailed
//! and viewed offline. The script draws plots as SVG, and sorts and filters the list of flows.

use crate::recording::Measured;

/// The page, with placeholders for title and data.
const TEMPLATE: &str = include_str!("page.html");

impl Measured {
    /// Returns the page, with this title.
    ///
    /// # Errors
    /// The data cannot be written as JSON, which is a bug.
    pub fn page(&self, title: &str) -> Result<String, serde_json::Error> {
        // Inside a script, only `</` and `<!--` could end or open something; JSON allows `\u003c` in both.
        let data = serde_json::to_string(self)?.replace('<', "\\u003c");
        let title = title.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let (head, rest) = TEMPLATE.split_once("@TITLE@").unwrap_or((TEMPLATE, ""));
        let (middle, tail) = rest.split_once("@DATA@").unwrap_or((rest, ""));
        Ok([head, &title, middle, &data, tail].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FlowRecord, Seed, Settings, Summary};
    use weir_packet::Observed;

    #[test]
    fn titles_and_keys_cannot_break_the_page() {
        let mut summary = Summary::new(&Settings::default(), Seed::new([1, 2]));
        summary.add_unflowed("</script><b>", 1, 60, 0);
        let key = crate::tests::flow(1);
        summary.add(&FlowRecord {
            key,
            packets: 1,
            bytes: 60,
            first_ns: 0,
            last_ns: 0,
            observed: Observed::default(),
        });
        let page = Measured { all: summary.report(), ..Measured::default() }.page("<b>@DATA@").unwrap();
        assert!(page.contains("<title>&lt;b&gt;@DATA@") && !page.contains("</script><b>"));
        assert_eq!(page.matches("</script>").count(), 2);
        let data = page.split_once("application/json\">").unwrap().1.split_once("</script>").unwrap().0;
        let data: serde_json::Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["unflowed"][0]["reason"], "</script><b>");
        assert_eq!(data["packets"], 2);
    }

    #[test]
    fn the_page_needs_no_network() {
        for word in ["http:", "https:", "src=", "@import", "url(", "<link"] {
            let allowed = TEMPLATE.matches("http://www.w3.org/2000/svg").count();
            let found = TEMPLATE.matches(word).count() - if word == "http:" { allowed } else { 0 };
            assert_eq!(found, 0, "{word}");
        }
    }
}
