//! Parts of a page as lines of text, with growth between two answers.

use ratatui_core::style::{Modifier, Style};
use ratatui_core::text::Line;
use serde_json::Value;
use std::cmp::Ordering;
use std::collections::HashMap;
use weir_app::page::{Column, Holds, Map, Part, Table};

/// The length to which texts are truncated, unless they are in the last column.
const TEXT_MAX: usize = 24;

/// How far sentences are indented.
const INDENT: usize = 4;

/// The minimum and maximum number of slots of a map in a line.
const SLOTS: [usize; 2] = [8, 64];

/// The letters of a map's owners; letters that have a capital are shown in upper case when their slot is
/// used.
const LETTERS: &str = "abcdefghijklmnopqrstuvwxyz0123456789";

/// The column that rows are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sort {
    /// The name of the column.
    pub column: &'static str,
    /// Whether small numbers and late names come first.
    pub reverse: bool,
}

/// How to show parts.
#[derive(Clone, Copy)]
pub struct Way {
    /// The available width in columns.
    pub width: usize,
    /// The time between the two answers, in seconds.
    pub seconds: f64,
    /// How rows are sorted, if not in the order of the answer.
    pub sort: Option<Sort>,
}

/// Returns the lines of a page: its current contents, compared with the previous ones.
pub fn lines(now: &[Part], before: Option<&[Part]>, way: Way) -> Vec<Line<'static>> {
    let mut lines: Vec<Line<'static>> = Vec::new();
    for (at, part) in now.iter().enumerate() {
        if !lines.is_empty() {
            lines.push(Line::default());
        }
        let earlier = || before?.iter().find(|other| is_same(part, other));
        match part {
            Part::Facts(facts) => lines.extend(fact_lines(facts)),
            Part::Table(table) => {
                if now.len() > 1 && at > 0 {
                    lines.push(bold(table.title.clone()));
                }
                let earlier = match earlier() {
                    Some(Part::Table(earlier)) => Some(earlier),
                    _ => None,
                };
                lines.extend(table_lines(&Grown::of(table, earlier, way.seconds), way));
            }
            Part::Bars(title, bars) => {
                let earlier = match earlier() {
                    Some(Part::Bars(_, earlier)) => Some(earlier.as_slice()),
                    _ => None,
                };
                lines.push(bold(title.to_string()));
                lines.extend(bar_lines(bars, earlier, way));
            }
            Part::Map(map) => {
                let earlier = match earlier() {
                    Some(Part::Map(earlier)) => Some(earlier),
                    _ => None,
                };
                lines.extend(map_lines(map, earlier, way.width));
            }
        }
    }
    lines
}

/// Returns true if both parts show the same thing at different times.
fn is_same(one: &Part, other: &Part) -> bool {
    match (one, other) {
        (Part::Table(one), Part::Table(other)) => one.title == other.title,
        (Part::Map(one), Part::Map(other)) => one.title == other.title,
        (Part::Bars(one, _), Part::Bars(other, _)) => one == other,
        _ => false,
    }
}

fn bold(text: String) -> Line<'static> {
    Line::styled(text, Style::new().add_modifier(Modifier::BOLD))
}

fn fact_lines(facts: &[(&str, String)]) -> Vec<Line<'static>> {
    let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    facts.iter().map(|(name, value)| Line::raw(format!("{name:<width$}  {value}"))).collect()
}

/// The value of a cell: its sort key, and its text.
struct Cell {
    number: Option<f64>,
    text: String,
}

/// A table with growth.
struct Grown<'a> {
    table: &'a Table,
    rows: Vec<Vec<Cell>>,
}

impl<'a> Grown<'a> {
    fn of(table: &'a Table, before: Option<&Table>, seconds: f64) -> Grown<'a> {
        let known: HashMap<String, &Value> = before
            .map(|before| before.rows.iter().map(|row| (name(before.columns, row), row)).collect())
            .unwrap_or_default();
        // Without an earlier answer, growth is unknown; without an earlier row, everything is growth.
        let growth = |column: &Column, row: &Value| -> Option<u64> {
            before?;
            let new = column.of(row).as_u64()?;
            let old = known.get(&name(table.columns, row)).and_then(|row| column.of(row).as_u64());
            new.checked_sub(old.unwrap_or(0))
        };
        let cell = |column: &Column, row: &Value| match column.holds {
            Holds::Name | Holds::Text | Holds::Sentence => Cell { number: None, text: plain(column.of(row)) },
            Holds::Number | Holds::Total => {
                Cell { number: column.of(row).as_f64(), text: plain(column.of(row)) }
            }
            Holds::Rate => rate(growth(column, row), seconds),
            Holds::BitRate => rate(growth(column, row).map(|bytes| bytes.saturating_mul(8)), seconds),
            Holds::Share => {
                let is_rival = |other: &&Value| group(table.columns, other) == group(table.columns, row);
                let all = table.rows.iter().filter(is_rival).filter_map(|other| growth(column, other));
                share(growth(column, row), all.fold(0, u64::saturating_add))
            }
        };
        let cells = |row: &Value| table.columns.iter().map(|column| cell(column, row)).collect();
        Grown { table, rows: table.rows.iter().map(cells).collect() }
    }
}

fn rate(growth: Option<u64>, seconds: f64) -> Cell {
    let number = growth.filter(|_| seconds > 0.0).map(|growth| growth as f64 / seconds);
    Cell { number, text: number.map_or_else(|| "-".to_string(), short) }
}

fn share(growth: Option<u64>, all: u64) -> Cell {
    let number = growth.filter(|_| all > 0).map(|growth| growth as f64 * 100.0 / all as f64);
    Cell { number, text: number.map_or_else(|| "-".to_string(), |percent| format!("{percent:.1} %")) }
}

fn names<'a>(columns: &'static [Column], row: &'a Value) -> impl Iterator<Item = String> + 'a {
    columns.iter().filter(|column| column.holds == Holds::Name).map(|column| plain(column.of(row)))
}

/// Returns what identifies a row.
fn name(columns: &'static [Column], row: &Value) -> String {
    names(columns, row).collect::<Vec<_>>().join("\n")
}

/// Returns the first of a row's several names; `None` if it has only one.
fn group(columns: &'static [Column], row: &Value) -> Option<String> {
    let mut names = names(columns, row);
    names.next().filter(|_| names.next().is_some())
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".into(),
        other => other.to_string(),
    }
}

/// Formats a number with three digits and, from a thousand on, a unit.
pub fn short(number: f64) -> String {
    let units = ["", " k", " M", " G", " T", " P", " E"];
    let (mut value, mut unit) = (number, 0);
    while value >= 999.5 && unit + 1 < units.len() {
        (value, unit) = (value / 1000.0, unit + 1);
    }
    let digits = match value {
        value if value == 0.0 || value >= 99.95 => 0,
        value if value >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.digits$}{}", units[unit])
}

fn table_lines(grown: &Grown<'_>, way: Way) -> Vec<Line<'static>> {
    let columns = grown.table.columns;
    let order = order(grown, way.sort);
    let shown: Vec<usize> = (0..columns.len()).filter(|at| columns[*at].holds != Holds::Sentence).collect();
    let head: Vec<String> = columns.iter().map(|column| title(column, way.sort)).collect();
    let width = |at: &usize| {
        let cells = grown.rows.iter().map(|row| row[*at].text.chars().count());
        let longest = cells.chain([head[*at].chars().count()]).max().unwrap_or_default();
        let is_cut = is_text(&columns[*at]) && shown.last() != Some(at);
        if is_cut { longest.min(TEXT_MAX) } else { longest }
    };
    let widths: Vec<usize> = shown.iter().map(width).collect();
    let line = |text: &dyn Fn(usize) -> String| {
        let cells = shown.iter().zip(&widths).map(|(at, width)| fit(&text(*at), *width, &columns[*at]));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_string()
    };
    let mut lines = vec![bold(line(&|at| head[at].clone()))];
    for row in order.into_iter().map(|at| &grown.rows[at]) {
        lines.push(Line::raw(line(&|at| row[at].text.clone())));
        let sentences = columns.iter().zip(row).filter(|(column, _)| column.holds == Holds::Sentence);
        lines.extend(sentences.flat_map(|(_, cell)| wrapped(&cell.text, way.width)));
    }
    if grown.rows.is_empty() {
        lines.push(Line::raw("none"));
    }
    lines
}

fn is_text(column: &Column) -> bool {
    matches!(column.holds, Holds::Name | Holds::Text)
}

/// Returns a column's name, with a mark if rows are sorted by it.
fn title(column: &Column, sort: Option<Sort>) -> String {
    match sort.filter(|sort| sort.column == column.name) {
        Some(Sort { reverse: false, .. }) => format!("{}*", column.name),
        Some(Sort { reverse: true, .. }) => format!("{}*r", column.name),
        None => column.name.to_string(),
    }
}

/// Fits a text to a width: numbers right-aligned, other text left-aligned, truncated if it is too long.
fn fit(text: &str, width: usize, column: &Column) -> String {
    match (text.chars().count() > width, is_text(column)) {
        (true, _) => text.chars().take(width.saturating_sub(1)).chain(['~']).collect(),
        (false, true) => format!("{text:<width$}"),
        (false, false) => format!("{text:>width$}"),
    }
}

/// Returns the order of rows: large numbers first, names and text alphabetically, unknown values last.
fn order(grown: &Grown<'_>, sort: Option<Sort>) -> Vec<usize> {
    let mut order: Vec<usize> = (0..grown.rows.len()).collect();
    let columns = grown.table.columns;
    let by = sort
        .and_then(|sort| Some((columns.iter().position(|column| column.name == sort.column)?, sort.reverse)));
    let Some((at, reverse)) = by else { return order };
    order.sort_by(|one, other| {
        let (one, other) = (&grown.rows[*one][at], &grown.rows[*other][at]);
        let sorted = match (one.number, other.number) {
            (Some(one), Some(other)) => other.total_cmp(&one),
            (Some(_), None) => return Ordering::Less,
            (None, Some(_)) => return Ordering::Greater,
            (None, None) => one.text.cmp(&other.text),
        };
        if reverse { sorted.reverse() } else { sorted }
    });
    order
}

/// Wraps a sentence into indented lines.
fn wrapped(sentence: &str, width: usize) -> Vec<Line<'static>> {
    let room = width.saturating_sub(INDENT).max(SLOTS[0]);
    let mut lines: Vec<String> = Vec::new();
    for word in sentence.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= room => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_string()),
        }
    }
    lines.into_iter().map(|line| Line::raw(format!("{:INDENT$}{line}", ""))).collect()
}

/// Draws a bar for each label: its count between the two answers or, without an earlier one, since the start.
fn bar_lines(bars: &[(String, u64)], before: Option<&[(String, u64)]>, way: Way) -> Vec<Line<'static>> {
    let old = |label: &str| {
        let found = before.into_iter().flatten().find(|(other, _)| other == label);
        found.map_or(0, |(_, count)| *count)
    };
    let grown: Vec<u64> = bars.iter().map(|(label, count)| count.saturating_sub(old(label))).collect();
    let most = grown.iter().copied().max().unwrap_or_default().max(1);
    let labels = bars.iter().map(|(label, _)| label.chars().count()).max().unwrap_or_default();
    let numbers: Vec<String> = grown
        .iter()
        .map(|count| match before {
            Some(_) if way.seconds > 0.0 => format!("{}/s", short(*count as f64 / way.seconds)),
            _ => count.to_string(),
        })
        .collect();
    let room = way.width.saturating_sub(labels + 2 + numbers.iter().map(String::len).max().unwrap_or(0));
    let line = |((label, _), (count, number)): (&(String, u64), (&u64, &String))| {
        // Anything counted at all must be visible.
        let length = (*count as f64 / most as f64 * room as f64).ceil() as usize;
        Line::raw(format!("{label:>labels$} {} {number}", "#".repeat(length)))
    };
    bars.iter().zip(grown.iter().zip(&numbers)).map(line).collect()
}

/// Draws a letter for each slot, in upper case if the slot was used between the two answers.
fn map_lines(map: &Map, before: Option<&Map>, width: usize) -> Vec<Line<'static>> {
    let letter = |owner: usize| LETTERS.chars().nth(owner).unwrap_or('?');
    let legend = map.owners.iter().enumerate().map(|(at, owner)| format!("{} {owner}", letter(at)));
    let legend = legend.collect::<Vec<_>>().join("  ");
    let mut lines = vec![
        bold(map.title.clone()),
        Line::raw(format!("{legend}  (capital: in use since the last answer)")),
    ];
    let draw = |(at, (owner, count)): (usize, &(Option<usize>, u64))| {
        let old = before.and_then(|before| before.slots.get(at)).map_or(*count, |(_, count)| *count);
        let letter = owner.map_or('.', letter);
        if *count > old { letter.to_ascii_uppercase() } else { letter }
    };
    let letters: Vec<char> = map.slots.iter().enumerate().map(draw).collect();
    let numbers = letters.len().to_string().len();
    let [least, most] = SLOTS;
    let mut row = most;
    while row > least && row + numbers + 1 > width {
        row /= 2;
    }
    let line = |(at, letters): (usize, &[char])| {
        Line::raw(format!("{:>numbers$} {}", at * row, letters.iter().collect::<String>()))
    };
    lines.extend(letters.chunks(row).enumerate().map(line));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use weir_app::page::{column, table};

    const COLUMNS: &[Column] = &[
        column("service", "service", Holds::Name),
        column("end", "end", Holds::Name),
        column("n/s", "n", Holds::Rate),
        column("bit/s", "n", Holds::BitRate),
        column("share", "n", Holds::Share),
        column("n", "n", Holds::Total),
        column("why", "deep/why", Holds::Text),
    ];

    fn text(now: &[Part], before: Option<&[Part]>, way: Way) -> Vec<String> {
        lines(now, before, way).iter().map(Line::to_string).collect()
    }

    fn way(width: usize, sort: Option<(&'static str, bool)>) -> Way {
        Way { width, seconds: 2.0, sort: sort.map(|(column, reverse)| Sort { column, reverse }) }
    }

    #[test]
    fn what_has_grown_is_found_by_name_and_shared_within_a_service() {
        let row = |service: &str, end: &str, n: u64| json!({ "service": service, "end": end, "n": n });
        let before = [table("t", &json!([row("b", "x", 50), row("a", "x", 10)]), COLUMNS)];
        let now = [table("t", &json!([row("a", "x", 40), row("a", "new", 10), row("b", "x", 20)]), COLUMNS)];
        assert_eq!(
            text(&now, Some(&before), way(80, None)),
            [
                "service  end   n/s  bit/s   share   n  why",
                "a        x    15.0    120  75.0 %  40  -",
                "a        new  5.00   40.0  25.0 %  10  -",
                "b        x       -      -       -  20  -",
            ]
        );
        let first = text(&now, None, way(80, None));
        assert_eq!(first[1], "a        x      -      -      -  40  -", "one answer has no rates");
        let sorted = |column, reverse| {
            let lines = text(&now, Some(&before), way(80, Some((column, reverse))));
            lines[1..]
                .iter()
                .map(|line| line.split_whitespace().nth(1).unwrap().to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(sorted("n/s", false), ["x", "new", "x"], "what is unknown comes last");
        assert_eq!(sorted("n", true), ["new", "x", "x"]);
        assert_eq!(sorted("end", false), ["new", "x", "x"]);
        assert_eq!(sorted("elsewhere", false), ["x", "new", "x"], "a column of another table");
    }

    #[test]
    fn numbers_have_three_digits() {
        for (number, expected) in [
            (0.0, "0"),
            (0.5, "0.50"),
            (9.996, "10.0"),
            (99.96, "100"),
            (999.4, "999"),
            (999.6, "1.00 k"),
            (14_880_952.0, "14.9 M"),
            (1.8e19, "18.0 E"),
            (1e30, "1000000000000 E"),
        ] {
            assert_eq!(short(number), expected);
        }
    }

    #[test]
    fn sentences_are_wrapped_and_bars_and_maps_fit() {
        assert_eq!(wrapped("one two three", 11)[1].to_string(), "    three");
        let bars =
            |counts: [u64; 2]| [Part::Bars("b", vec![("x".into(), counts[0]), ("yy".into(), counts[1])])];
        assert_eq!(text(&bars([10, 1]), None, way(16, None)), ["b", " x ########## 10", "yy # 1"]);
        assert_eq!(
            text(&bars([14, 1]), Some(&bars([10, 1])), way(20, None)),
            ["b", " x ########## 2.00/s", "yy  0/s"]
        );
        let map = |used: u64| {
            let slots = (0..20).map(|at| (Some(at % 2).filter(|_| at < 19), used * at as u64 % 3)).collect();
            [Part::Map(Map { title: "m".into(), owners: vec!["p1".into(), "p2".into()], slots })]
        };
        assert_eq!(
            text(&map(1), Some(&map(0)), way(12, None)),
            [
                "m",
                "a p1  b p2  (capital: in use since the last answer)",
                " 0 aBAbABaB",
                " 8 AbABaBAb",
                "16 ABa.",
            ]
        );
    }
}
