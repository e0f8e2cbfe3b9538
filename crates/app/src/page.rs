//! Pages of `weir top`: which parts of the daemon's answers a page needs, and what it shows of them.
//!
//! A page is written once, as a function from an answer to tables. Whoever shows it calls the function on two
//! answers and computes what has grown between them, so no page keeps state and none computes a rate.

use serde_json::Value;

/// A page.
pub struct Page {
    /// Its title, one word.
    pub title: &'static str,
    /// The parts of the answer to `weir show` that it needs.
    pub sections: &'static [&'static str],
    /// What it asks of each app of its kind. The answers are in `answers` of what it is given: a list by app
    /// of lists by request.
    pub requests: &'static [&'static str],
    /// Returns what it shows of an answer. A part of the answer that is missing is shown as if it were empty.
    pub parts: fn(&Value) -> Vec<Part>,
}

/// A part of a page.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// Names with their values, one in each line.
    Facts(Vec<(&'static str, String)>),
    /// A table.
    Table(Table),
    /// A histogram: each bar has a label and what it has counted since the start.
    Bars(&'static str, Vec<(String, u64)>),
    /// Which of a few owners each of many slots has.
    Map(Map),
}

/// A table.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// What it is about; unique on its page.
    pub title: String,
    /// Its columns; the most important ones first, because a narrow terminal cuts the others.
    pub columns: &'static [Column],
    /// Its rows: objects, of which the columns show some fields.
    pub rows: Vec<Value>,
}

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: &'static str,
    /// The field of a row that it shows; if it begins with `/`, a JSON pointer to what is deeper.
    pub field: &'static str,
    /// What its values are.
    pub holds: Holds,
}

/// What the values of a column are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// A name: those of a row tell it apart from the others.
    Name,
    /// Text.
    Text,
    /// A number that goes up and down.
    Number,
    /// A count, shown as it is.
    Total,
    /// A count, shown as its growth per second.
    Rate,
    /// A count of bytes, shown as its growth in bits per second.
    BitRate,
    /// A count, shown as this row's part of the growth of all rows that have the same first name; of all
    /// rows if these have only one name each.
    Share,
    /// A sentence, shown below its row.
    Sentence,
}

/// Which owner each slot has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Map {
    /// What the slots are.
    pub title: String,
    /// The names of the owners.
    pub owners: Vec<String>,
    /// For each slot, its owner if it has one, and how often it has been used since the start.
    pub slots: Vec<(Option<usize>, u64)>,
}

/// Returns a column.
#[must_use]
pub const fn column(name: &'static str, field: &'static str, holds: Holds) -> Column {
    Column { name, field, holds }
}

impl Column {
    /// Returns the value that it shows of a row.
    #[must_use]
    pub fn of<'a>(&self, row: &'a Value) -> &'a Value {
        let found = if self.field.starts_with('/') { row.pointer(self.field) } else { row.get(self.field) };
        found.unwrap_or(&Value::Null)
    }
}

/// Returns a table of the rows of an answer.
#[must_use]
pub fn table(title: &str, rows: &Value, columns: &'static [Column]) -> Part {
    Part::Table(Table { title: title.to_string(), columns, rows: items(rows).to_vec() })
}

/// Returns the items of a list; none if it is not one.
#[must_use]
pub fn items(list: &Value) -> &[Value] {
    list.as_array().map(Vec::as_slice).unwrap_or_default()
}
