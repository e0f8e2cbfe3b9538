//! Answers for terminals.

use super::Solved;
use std::fmt::Write;
use weir_measure::{grouped, solution_line, write_answers};

/// Formats everything, with at most `rows` rows per list.
pub fn text(solved: &Solved, rows: usize) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{} packets, {} bytes", grouped(solved.all[0]), grouped(solved.all[1]));
    for (reason, [packets, bytes]) in &solved.unflowed {
        let _ =
            writeln!(text, "in no flow: {reason}, {} packets, {} bytes", grouped(*packets), grouped(*bytes));
    }
    let _ = writeln!(text, "{}", solution_line(&solved.head));
    solved.no_truth.iter().for_each(|why| {
        let _ = writeln!(text, "without exact values: {why}");
    });
    let start_ns = solved.intervals.first().map_or(0, |interval| interval.span_ns[0]);
    for interval in &solved.intervals {
        if solved.has_intervals {
            let since = |ns: u64| (ns - start_ns) as f64 / 1e9;
            let [from, to] = interval.span_ns.map(since);
            let _ = writeln!(text, "\n{from:.3} s to {to:.3} s: {} packets", grouped(interval.counted[0]));
        }
        write_answers(&mut text, &interval.answers, rows);
    }
    if solved.left_out > 0 {
        let _ = writeln!(text, "\n{} intervals are omitted", grouped(solved.left_out));
    }
    text
}
