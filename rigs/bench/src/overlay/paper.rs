//! What ONCache's authors measured, beside our figures.
//!
//! Only ratios are compared: their hosts are connected by 100 Gbit/s, and ours share two cores.

use serde_json::{Value, json};

use super::bed::{ONCACHE, WEIR};
use super::row::OverlayRow;

/// Where the figures are. The overlay in both is Antrea.
const SOURCES: [(&str, &str); 2] = [
    ("tutorial", "the tutorial in the README of github.com/shengkai16/ONCache"),
    ("paper", "ONCache, NSDI 2025: gains over the overlay, some of which are ranges"),
];

/// A test, and what its rate was with ONCache, relative to the overlay alone.
struct PublishedGain {
    test: &'static str,
    /// The name of the source.
    source: &'static str,
    /// The lowest and the highest ratio to the overlay.
    over_overlay: [f64; 2],
    /// The ratio to hosts without an overlay, where the source has it.
    over_host: Option<f64>,
}

/// A row of the tutorial's table: the rates with ONCache, with the overlay, and without either.
const fn tutorial(test: &'static str, [oncache, overlay, host]: [f64; 3]) -> PublishedGain {
    let ratio = oncache / overlay;
    PublishedGain { test, source: "tutorial", over_overlay: [ratio, ratio], over_host: Some(oncache / host) }
}

/// A gain of the paper, in percent.
const fn gain(test: &'static str, [low, high]: [f64; 2]) -> PublishedGain {
    let over_overlay = [1.0 + low / 100.0, 1.0 + high / 100.0];
    PublishedGain { test, source: "paper", over_overlay, over_host: None }
}

/// Transactions/s of netperf and Gbit/s of iperf3, and the gains. The one in TCP throughput is for one flow,
/// and so is our test.
const PUBLISHED: [PublishedGain; 6] = [
    tutorial("tcp_rr", [36_977.0, 28_246.0, 39_272.0]),
    gain("tcp_rr", [35.8, 40.9]),
    gain("udp_rr", [34.1, 39.1]),
    tutorial("tcp_stream", [37.2, 36.0, 39.5]),
    gain("tcp_stream", [11.53, 11.53]),
    gain("udp_stream", [19.7, 31.8]),
];

/// The sources by name, as JSON.
pub fn sources() -> Value {
    SOURCES.into_iter().collect()
}

fn of(test: &str) -> impl Iterator<Item = &'static PublishedGain> {
    PUBLISHED.iter().filter(move |published| published.test == test)
}

/// The published ratios of a test as JSON; none if there are none. This format is stable.
pub fn json(test: &str) -> Value {
    let one = |published: &PublishedGain| {
        json!({
            "source": published.source, "over_overlay": published.over_overlay,
            "over_host": published.over_host,
        })
    };
    of(test).map(one).collect()
}

/// The published ratios as lines of text, each beside ours; none if no test was measured that has any.
pub fn text(rows: &[OverlayRow]) -> Vec<String> {
    let mut lines = vec![format!(
        "{:<11}{:>6} {:<9}{:<14}{:>6}   ours: oncache / vxlan, / host; weir / vxlan, / host",
        "test", "flows", "ONCache's", "/ overlay", "/ host"
    )];
    for row in rows {
        let (test, flows) = row.name();
        let ours = [ONCACHE, WEIR].map(|arm| {
            let [vxlan, host] = row.ratios(arm);
            format!("{vxlan:.2}, {host:.2}")
        });
        for published in of(test) {
            let overlay = match published.over_overlay {
                [low, high] if low < high => format!("{low:.2} - {high:.2}"),
                [ratio, _] => format!("{ratio:.2}"),
            };
            let host = published.over_host.map_or("-".to_string(), |ratio| format!("{ratio:.2}"));
            let source = published.source;
            lines.push(format!(
                "{test:<11}{flows:>6} {source:<9}{overlay:<14}{host:>6}   {}",
                ours.join("; ")
            ));
        }
    }
    if lines.len() == 1 { Vec::new() } else { lines }
}

#[cfg(test)]
mod tests {
    use super::super::row::{SOFTIRQ, TESTS};
    use super::*;

    #[test]
    fn published_ratios_are_beside_ours_of_the_same_test() {
        let samples = [[100.0, 50.0, 60.0, 80.0]];
        let rows = [TESTS[0], SOFTIRQ].map(|test| OverlayRow::of(test, &samples));
        let lines = text(&rows);
        let words = |at: usize| lines[at].split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert_eq!(words(1), "tcp_rr 1 tutorial 1.31 0.94 1.20, 0.60; 1.60, 0.80");
        assert_eq!(words(2), "tcp_rr 1 paper 1.36 - 1.41 - 1.20, 0.60; 1.60, 0.80");
        assert!(text(&rows[1..]).is_empty(), "nothing is published about it");
        let of = |at: usize| rows[at].json()["paper"].clone();
        assert_eq!((of(0)[1]["source"].as_str(), of(1)), (Some("paper"), json!([])));
    }

    #[test]
    fn every_published_figure_has_a_test_and_a_source() {
        for published in &PUBLISHED {
            assert!(TESTS.iter().any(|test| test.name == published.test), "{}", published.test);
            assert!(SOURCES.iter().any(|(source, _)| *source == published.source), "{}", published.source);
        }
    }
}
