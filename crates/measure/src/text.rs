//! Reports for terminals with 100 columns.

use crate::numbers::{grouped, scaled, whole};
use crate::queries::{Asks, QUERIES, Quantity};
use crate::recording::Measured;
use crate::report::{
    Answer, ChangeRow, Estimated, QuantileRow, Report, SizeClass, SpreaderRow, TopList, TopRow,
};
use std::fmt::Write;

/// Characters of a key; longer ones (IPv6 flows) get a line of their own.
const KEY: usize = 46;

/// Characters of a bar.
const BAR: usize = 30;

/// Formats an estimate of a count, its bounds, and the true value if it is known.
fn estimated(one: &Estimated) -> String {
    let mut text = whole(one.estimate);
    if one.high - one.low >= 1.0 {
        let share = one.confidence * 100.0;
        let _ = write!(text, "  ({} to {}, {share:.1} %)", whole(one.low), whole(one.high));
    }
    if let Some(exact) = one.exact {
        let _ = write!(text, "  exactly {}", whole(exact));
    }
    text
}

impl Measured {
    /// Formats everything, with `rows` rows per list.
    #[must_use]
    pub fn text(&self, rows: usize) -> String {
        let mut text = self.all.text(rows);
        for interval in &self.intervals {
            interval_text(&mut text, interval, self.all.start_ns, rows);
        }
        if self.intervals_left_out > 0 {
            let _ = writeln!(text, "\n{} intervals are omitted", grouped(self.intervals_left_out));
        }
        text
    }
}

impl Report {
    /// Formats the report, with `rows` rows per list.
    #[must_use]
    pub fn text(&self, rows: usize) -> String {
        let mut text = self.head();
        for (row, answer) in QUERIES.iter().zip(&self.answers.0) {
            match (&row.asks, answer) {
                (Asks::Top(top), Some(Answer::Top(list))) if !list.rows.is_empty() => {
                    top_text(&mut text, top.one, list, self.packets, rows);
                }
                (_, Some(Answer::Sizes(sizes))) => sizes_text(&mut text, sizes),
                (_, Some(Answer::Spreaders(spreaders))) => spreaders_text(&mut text, spreaders, rows),
                (Asks::Quantiles(quantity), Some(Answer::Quantiles(rows))) => {
                    quantiles_text(&mut text, quantity, rows);
                }
                (_, Some(Answer::Top(_) | Answer::Quantiles(_)) | None) => (),
            }
        }
        if !self.changes.is_empty() {
            text += "\nChanges since the previous interval\n";
            changes_text(&mut text, &self.changes, rows);
        }
        text
    }

    /// Totals, numbers, and what is missing.
    fn head(&self) -> String {
        let mut text = String::new();
        let seconds = self.end_ns.saturating_sub(self.start_ns) as f64 / 1e9;
        let _ = write!(text, "{} packets, {} bytes", grouped(self.packets), grouped(self.bytes));
        if seconds > 0.0 {
            let packets = scaled(self.packets as f64 / seconds, "packets/s");
            let bits = scaled(self.bytes as f64 * 8.0 / seconds, "bit/s");
            let _ = write!(text, " in {seconds:.3} s: {packets}, {bits}");
        }
        text.push('\n');
        for (what, number) in
            [("flows", &self.flows), ("sources", &self.sources), ("destinations", &self.destinations)]
        {
            let _ = writeln!(text, "  {what:<14}{}", estimated(number));
        }
        for one in &self.unflowed {
            let packets = grouped(one.packets);
            // Running measurements do not count these bytes.
            let bytes =
                if one.bytes == 0 { String::new() } else { format!(", {} bytes", grouped(one.bytes)) };
            let _ = writeln!(text, "  no flow       {packets} packets{bytes}: {}", one.reason);
        }
        if self.backwards > 0 {
            let _ = writeln!(text, "  time went backwards at {} packets", grouped(self.backwards));
        }
        if !self.shed.is_empty() {
            let words: Vec<&str> = self.shed.iter().map(|query| query.word()).collect();
            let _ = writeln!(text, "  omitted for lack of memory or time: {}", words.join(", "));
        }
        if let Some(why) = &self.exact_ended {
            let _ = writeln!(text, "  {why}");
        }
        text
    }
}

fn top_text(text: &mut String, one: &str, list: &TopList, packets: u64, rows: usize) {
    let _ = write!(text, "\nTop {one}s");
    if let Some(entropy) = &list.entropy {
        let _ = write!(text, ", entropy {:.2} bits", entropy.estimate);
        if entropy.high - entropy.low >= 0.01 {
            let _ = write!(text, " ({:.2} to {:.2})", entropy.low, entropy.high);
        }
        if let Some(exact) = entropy.exact {
            let _ = write!(text, " exactly {exact:.2}");
        }
    }
    if list.missing > 0 {
        let _ = write!(text, "; any other has at most {} packets", grouped(list.missing));
    }
    let has_truth = list.rows.iter().any(|row| row.exact_packets.is_some());
    let truth = if has_truth { "  exactly" } else { "" };
    let _ = writeln!(
        text,
        "\n  {:<KEY$} {:>13} {:>7} {:>14} {:>7}{truth}",
        "", "packets", "of them", "bytes", "error"
    );
    for row in list.rows.iter().take(rows) {
        row_text(text, row, packets);
    }
}

fn row_text(text: &mut String, row: &TopRow, packets: u64) {
    let pad = if row.key.len() > KEY { format!("\n  {:KEY$}", "") } else { String::new() };
    let share = row.packets as f64 * 100.0 / packets.max(1) as f64;
    let _ = write!(
        text,
        "  {:<KEY$}{pad} {:>13} {share:>5.1} % {:>14} {:>7}",
        row.key,
        grouped(row.packets),
        grouped(row.bytes),
        if row.bound == 0 { "none".to_string() } else { format!("-{}", grouped(row.bound)) },
    );
    if let (Some(packets), Some(bytes)) = (row.exact_packets, row.exact_bytes) {
        let _ = write!(text, "  {} {}", grouped(packets), grouped(bytes));
    }
    let _ = writeln!(text, "{}", row.names.text());
}

fn sizes_text(text: &mut String, sizes: &[SizeClass]) {
    let most = sizes.iter().map(|class| class.flows).fold(0.0, f64::max);
    if most <= 0.0 {
        return;
    }
    let _ = writeln!(text, "\nFlows by packets (no bound is proven)");
    for class in sizes.iter().filter(|class| class.flows >= 0.5 || class.exact.is_some_and(|flows| flows > 0))
    {
        let range = match class.to {
            to if to == class.from => grouped(to),
            to => format!("{} to {}", grouped(class.from), grouped(to)),
        };
        let bar = "#".repeat((class.flows / most * BAR as f64).ceil() as usize);
        let truth = class.exact.map_or(String::new(), |exact| format!("  exactly {}", grouped(exact)));
        let _ = writeln!(text, "  {range:>24} {:>12} {bar}{truth}", whole(class.flows));
    }
}

fn spreaders_text(text: &mut String, spreaders: &[SpreaderRow], rows: usize) {
    if spreaders.is_empty() {
        return;
    }
    let _ = writeln!(text, "\nSources with many destinations");
    for row in spreaders.iter().take(rows) {
        let (destinations, name) = (estimated(&row.destinations), row.names.text());
        let _ = writeln!(text, "  {:<KEY$} {destinations}{name}", row.source);
    }
}

fn quantiles_text(text: &mut String, quantity: &Quantity, rows: &[QuantileRow]) {
    if rows.is_empty() {
        return;
    }
    let _ = write!(text, "\nQuantiles of {}:", quantity.title);
    for row in rows {
        let _ = write!(text, "  {:.0} % {}", row.share * 100.0, (quantity.text)(row.value.estimate));
    }
    text.push('\n');
}

fn interval_text(text: &mut String, interval: &Report, zero_ns: u64, rows: usize) {
    let at = |ns: u64| (ns as f64 - zero_ns as f64) / 1e9;
    let (from, to) = (at(interval.start_ns), at(interval.end_ns));
    let (packets, bytes) = (grouped(interval.packets), grouped(interval.bytes));
    let _ = writeln!(text, "\nFrom {from:.3} s to {to:.3} s: {packets} packets, {bytes} bytes");
    let _ = writeln!(text, "  flows         {}", estimated(&interval.flows));
    for row in interval.top.iter().take(rows.min(3)) {
        row_text(text, row, interval.packets);
    }
    changes_text(text, &interval.changes, rows.min(3));
}

fn changes_text(text: &mut String, changes: &[ChangeRow], rows: usize) {
    for ChangeRow { kind, key, names, change } in changes.iter().take(rows) {
        let (low, high) = (change.low, change.high);
        let bounds = if high - low >= 1.0 { format!(" ({low:+.0} to {high:+.0})") } else { String::new() };
        let truth = change.exact.map_or(String::new(), |exact| format!("  exactly {exact:+.0}"));
        let names = names.text();
        let _ = writeln!(text, "  {kind} {key}: {:+.0} packets{bounds}{truth}{names}", change.estimate);
    }
}
