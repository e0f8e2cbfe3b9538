//! Pages of `weir top`: which parts of the daemon's answers a page needs, and what the page shows of them.
//!
//! A page is a function from an answer to tables. The viewer calls it on two answers and computes the growth
//! between them, so a page neither keeps state nor computes rates.

use serde_json::Value;

/// A page of `weir top`: the parts of the daemon's answers that it needs, and how it shows them.
pub struct Page {
    /// Its title, one word.
    pub title: &'static str,
    /// The parts of the answer to `weir show` that the page needs.
    pub sections: &'static [&'static str],
    /// The requests that the page sends to each app of its kind. The answers are in the field `answers` of
    /// the page's input: a list by app of lists by request.
    pub requests: &'static [&'static str],
    /// Returns the parts that the page shows of an answer. A missing part of the answer is shown as if it
    /// were empty.
    pub parts: fn(&Value) -> Vec<Part>,
}

/// A part of a page.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// Names and values, one pair per line.
    Facts(Vec<(&'static str, String)>),
    /// Objects, one per row.
    Table(Table),
    /// A histogram: each bar has a label and its count since the start.
    Bars(&'static str, Vec<(String, u64)>),
    /// A map of many slots, each of which belongs to one of a few owners.
    Map(Map),
}

/// A table on a page: one row for each object.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Its subject; unique on its page.
    pub title: String,
    /// Its columns, most important first, because a narrow terminal cuts off the rest.
    pub columns: &'static [Column],
    /// Its rows: objects, of which the columns show some fields.
    pub rows: Vec<Value>,
}

/// A column of a table: which field of a row it shows, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// The heading of the column.
    pub name: &'static str,
    /// The field of a row that the column shows; a JSON pointer to a nested field if it begins with `/`.
    pub field: &'static str,
    /// The kind of values in the column.
    pub holds: Holds,
    /// The title of the web page's plot of the column; `None` if there is no plot.
    pub plot: Option<&'static str>,
}

/// The kind of values in a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// A name; together, the names of a row identify it.
    Name,
    /// Text.
    Text,
    /// A number that goes up and down.
    Number,
    /// A count, shown unchanged.
    Total,
    /// A count, shown as its growth per second.
    Rate,
    /// A count of bytes, shown as its growth in bits per second.
    BitRate,
    /// A count, shown as this row's share of the growth of all rows with the same first name, or of all rows
    /// if each has only one name.
    Share,
    /// A sentence, shown below its row.
    Sentence,
}

/// The owner of each slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Map {
    /// What the slots are.
    pub title: String,
    /// The names of the owners.
    pub owners: Vec<String>,
    /// The owner of each slot, if it has one, and its number of uses since the start.
    pub slots: Vec<(Option<usize>, u64)>,
}

/// Creates a column with this heading, for a field of the rows.
#[must_use]
pub const fn column(name: &'static str, field: &'static str, holds: Holds) -> Column {
    Column { name, field, holds, plot: None }
}

impl Column {
    /// Makes the web page plot the column, under this title. Each row takes one of a few hundred plots, so
    /// this is for tables whose rows stay the same.
    #[must_use]
    pub const fn plotted(self, title: &'static str) -> Column {
        Column { plot: Some(title), ..self }
    }

    /// Returns the value that the column shows of a row.
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

/// Returns the items of a list; none if the value is not a list.
#[must_use]
pub fn items(list: &Value) -> &[Value] {
    list.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Returns the text of a string; empty if the value is not a string.
#[must_use]
pub fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
