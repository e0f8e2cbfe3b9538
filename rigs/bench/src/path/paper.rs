//! The two tables of DOCA-AR's README, for 10 and 50 flows of 5 MB, beside ours: with messages of 5 MB, and
//! with messages that take as long on our slower links.

use serde_json::{Value, json};
use weir_lab::path::{ElephantStarts, Regime, Row, Scheme};

/// Where the tables are.
const SOURCE: &str = "README.en.md of github.com/markchen7788/doca_ar, 2024-01-08: 30 runs";

/// A row of the tables: with or without the elephant of 40 Gbit/s, on links of 40 Gbit/s.
struct Published {
    flows: usize,
    has_elephant: bool,
    scheme: Scheme,
    /// The time until the last flow finished, ms: minimum, average and maximum over the runs.
    max_ms: [f64; 3],
}

const fn row(flows: usize, has_elephant: bool, scheme: Scheme, max_ms: [f64; 3]) -> Published {
    Published { flows, has_elephant, scheme, max_ms }
}

/// The tables, in their order.
const TABLES: [Published; 8] = [
    row(10, true, Scheme::DocaAr, [22.74, 34.21, 231.29]),
    row(10, true, Scheme::Ecmp, [27.41, 920.81, 1709.99]),
    row(10, false, Scheme::DocaAr, [23.54, 27.32, 34.49]),
    row(10, false, Scheme::Ecmp, [20.42, 26.97, 35.1]),
    row(50, true, Scheme::DocaAr, [103.45, 334.52, 1535.76]),
    row(50, true, Scheme::Ecmp, [1127.96, 1857.05, 2235.71]),
    row(50, false, Scheme::DocaAr, [98.35, 221.72, 292.31]),
    row(50, false, Scheme::Ecmp, [100.83, 236.18, 289.77]),
];

/// The time until the last flow finished: minimum, average and maximum over our runs.
fn ours(row: &Row) -> Option<[f64; 3]> {
    let all = &row.max_ms;
    Some([*all.first()?, all.iter().sum::<f64>() / all.len() as f64, *all.last()?])
}

/// Our rows that a published row is compared with: the same flows and load, and the same scheme, with
/// messages that take as long as theirs did, or that are as large.
fn beside<'a>(published: &'a Published, rows: &'a [Row], regime: Regime) -> impl Iterator<Item = &'a Row> {
    // Theirs never starts after the flows.
    let elephant = if published.has_elephant { ElephantStarts::Before } else { ElephantStarts::Never };
    rows.iter().filter(move |row| {
        row.cell.regime == regime
            && row.cell.flows == published.flows
            && row.cell.elephant == elephant
            && row.arm.scheme == published.scheme
    })
}

/// The tables as lines of text, one for each size of messages; none if no run is comparable.
pub fn text(rows: &[Row]) -> Vec<String> {
    let tables = [(Regime::Time, "65 KB"), (Regime::Size, "5 MB")];
    tables.into_iter().flat_map(|(regime, bytes)| table(rows, regime, bytes)).collect()
}

fn table(rows: &[Row], regime: Regime, bytes: &str) -> Vec<String> {
    let times = |[min, average, max]: [f64; 3]| format!("{min:>9.1} {average:>9.1} {max:>9.1}");
    let mut lines = vec![format!(
        "{:<44} {:>29}   ours, with messages of {bytes} on links of 200 Mbit/s",
        "MaxFCT in ms, min, average, max", "DOCA-AR's README"
    )];
    for published in &TABLES {
        let load = if published.has_elephant { "an elephant" } else { "no elephant" };
        for row in beside(published, rows, regime) {
            let Some(ours) = ours(row) else { continue };
            let what = format!("{} flows, {load}, {}", published.flows, row.arm.name());
            lines.push(format!("{what:<44} {}   {}", times(published.max_ms), times(ours)));
        }
    }
    if lines.len() == 1 { Vec::new() } else { lines }
}

/// The tables as JSON. This format is stable.
pub fn json(rows: &[Row]) -> Value {
    let times = |[min, average, max]: [f64; 3]| json!({ "min": min, "average": average, "max": max });
    let ours =
        |row: &Row| json!({ "txrehash": u32::from(row.arm.rehash), "maxfct_ms": ours(row).map(times) });
    let tables = TABLES.iter().map(|published| {
        json!({
            "flows": published.flows,
            "elephant": published.has_elephant,
            "scheme": published.scheme.name(),
            "maxfct_ms": times(published.max_ms),
            "ours": beside(published, rows, Regime::Time).map(ours).collect::<Vec<_>>(),
            "ours_of_5_mb": beside(published, rows, Regime::Size).map(ours).collect::<Vec<_>>(),
        })
    });
    json!({ "source": SOURCE, "rows": tables.collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_lab::path::{Cell, PathScheme, Sample};

    #[test]
    fn runs_are_beside_the_rows_of_the_same_flows_load_and_scheme() {
        let cell = |flows, elephant| Cell { regime: Regime::Time, flows, elephant };
        let cells = [cell(10, ElephantStarts::Before), cell(10, ElephantStarts::Never)];
        let arms = [Scheme::Ecmp, Scheme::Adaptive].map(|scheme| PathScheme { scheme, rehash: false });
        let sample = |cell, arm, time| Sample { cell, arm, flow_ms: vec![1.0, time] };
        let mut samples = vec![sample(cells[0], arms[0], 800.0), sample(cells[0], arms[0], 1200.0)];
        samples.push(sample(cells[0], arms[1], 30.0));
        let rows = Row::of(&cells, &arms, &samples, 1);
        let found = json(&rows);
        let of = |at: usize| found["rows"][at]["ours"].as_array().unwrap().len();
        assert_eq!((0..8).map(of).collect::<Vec<_>>(), [0, 1, 0, 0, 0, 0, 0, 0]);
        let ours = &found["rows"][1]["ours"][0]["maxfct_ms"];
        assert_eq!(*ours, json!({ "min": 800.0, "average": 1000.0, "max": 1200.0 }));
        let lines = text(&rows);
        assert!(lines.len() == 2 && lines[1].contains("920.8"), "{lines:?}");
        assert_eq!(found["rows"][1]["ours_of_5_mb"], json!([]));
        assert_eq!((text(&[]).len(), json(&[])["rows"].as_array().unwrap().len()), (0, 8));
    }

    #[test]
    fn messages_of_their_size_are_in_a_table_of_their_own() {
        let arm = PathScheme { scheme: Scheme::Ecmp, rehash: true };
        let cell = |regime, elephant| Cell { regime, flows: 50, elephant };
        let late = cell(Regime::Size, ElephantStarts::After);
        let cells = [late, cell(Regime::Time, ElephantStarts::Never), late.without_elephant()];
        let sample = |cell, time| Sample { cell, arm, flow_ms: vec![time] };
        let samples = [sample(late, 11_000.0), sample(cells[1], 140.0), sample(cells[2], 9000.0)];
        let rows = Row::of(&cells, &[arm], &samples, 1);
        let lines = text(&rows);
        let [first, _, second, last] = &lines[..] else { panic!("{lines:?}") };
        assert!(first.contains("65 KB") && second.contains("5 MB"), "{lines:?}");
        assert!(last.contains("236.2") && last.contains("9000.0"), "{last}");
        let published = &json(&rows)["rows"][7];
        assert_eq!(published["ours"][0]["maxfct_ms"]["max"], json!(140.0));
        assert_eq!(published["ours_of_5_mb"].as_array().map(Vec::len), Some(1), "{published}");
        assert_eq!(published["ours_of_5_mb"][0]["maxfct_ms"]["max"], json!(9000.0));
    }
}
