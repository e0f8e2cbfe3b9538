//! The queries of a measurement, each a row of a table.
//!
//! Everything that depends on a query reads the table: sketches and their memory, files, reports as JSON and
//! as text, and the pages of `weir top`. A query about another kind of key, or about another quantity of
//! packets, is a row here and a paragraph of docs/reference/measure.md. Each kind of query is answered by the
//! estimator with the best bounds:
//!
//! | kind | by | bound |
//! |---|---|---|
//! | [`Asks::Top`], with bytes, entropy and changes | [`weir_sketch::TopCounts`] | certain, key by key |
//! | [`Asks::FlowSizes`] | [`weir_sketch::Mrac`] | none is proven; exact counts beside it on request |
//! | [`Asks::Spreaders`] | [`weir_sketch::SpreadSketch`] | 95 % |
//! | [`Asks::Quantiles`] | [`weir_sketch::Quantiles`] | 99 % |

use crate::numbers::{lasted, whole};
use serde::{Serialize, Serializer};
use weir_sketch::KeyKind;

/// A query. Unlike totals and the numbers of flows, sources and destinations, it costs memory and can be left
/// out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Query(u8);

/// A row of the table.
pub(crate) struct QueryRow {
    /// Its name in outputs and settings.
    pub(crate) word: &'static str,
    /// Its key in JSON.
    pub(crate) field: &'static str,
    /// Its number in sketch files, which never changes.
    pub(crate) number: u8,
    /// Queries are shed in the order of their worth: the least requested first, and among equally requested
    /// ones, the most expensive first.
    worth: u8,
    pub(crate) asks: Asks,
}

/// The kinds of queries.
pub(crate) enum Asks {
    /// The keys of one kind with the most packets.
    Top(TopQuery),
    /// How many flows have how many packets.
    FlowSizes,
    /// Sources with many destinations.
    Spreaders,
    /// Quantiles of a quantity that single packets have.
    Quantiles(Quantity),
}

/// A list of keys.
pub(crate) struct TopQuery {
    /// How keys are built; for flows, the settings determine this.
    pub(crate) kind: KeyKind,
    /// The noun for a key.
    pub(crate) one: &'static str,
    /// The number of keys that the settings allow is divided by this number for the list.
    pub(crate) share: usize,
    /// Whether changes between intervals are reported.
    pub(crate) has_changes: bool,
    /// The number of possible keys, unless distinct keys are counted.
    pub(crate) keys_max: f64,
}

/// A quantity of packets.
pub(crate) struct Quantity {
    /// Its name in text.
    pub(crate) title: &'static str,
    /// Returns the quantity, if it is known, given the bytes of a packet and the nanoseconds since the
    /// previous packet.
    pub(crate) of: fn(f64, Option<f64>) -> Option<f64>,
    pub(crate) text: fn(f64) -> String,
}

/// The number of queries.
pub(crate) const COUNT: usize = QUERIES.len();

/// All queries, in the order of outputs. Lists of keys come first, so that the place of a list here is the
/// place of its keys in [`crate::keys::Keys`]; the first three are those whose distinct keys are counted.
pub(crate) static QUERIES: [QueryRow; 9] = [
    top("top-flows", "top_flows", (8, 90), (KeyKind::FiveTuple, "flow")),
    top("top-sources", "top_sources", (7, 80), (KeyKind::Source, "source")),
    top("top-destinations", "top_destinations", (6, 70), (KeyKind::Destination, "destination")),
    top("top-source-ports", "top_source_ports", (4, 50), (KeyKind::SourcePort, "source port")),
    top(
        "top-destination-ports",
        "top_destination_ports",
        (5, 60),
        (KeyKind::DestinationPort, "destination port"),
    ),
    QueryRow { word: "flow-sizes", field: "flow_sizes", number: 1, worth: 20, asks: Asks::FlowSizes },
    QueryRow { word: "spreaders", field: "spreaders", number: 0, worth: 10, asks: Asks::Spreaders },
    QueryRow {
        word: "packet-bytes",
        field: "packet_bytes",
        number: 3,
        worth: 40,
        asks: Asks::Quantiles(Quantity { title: "packet bytes", of: |bytes, _| Some(bytes), text: whole }),
    },
    QueryRow {
        word: "inter-arrival",
        field: "inter_arrival_ns",
        number: 2,
        worth: 30,
        asks: Asks::Quantiles(Quantity { title: "between packets", of: |_, gap| gap, text: lasted }),
    },
];

/// Returns the row of a list, given its number in files and its worth. Addresses have half as many keys as
/// flows, and ports a quarter: there are 65,536 for each of two protocols.
const fn top(
    word: &'static str,
    field: &'static str,
    (number, worth): (u8, u8),
    (kind, one): (KeyKind, &'static str),
) -> QueryRow {
    let (share, has_changes) = match kind {
        KeyKind::FiveTuple | KeyKind::FourTuple | KeyKind::Pair => (1, true),
        KeyKind::Source | KeyKind::Destination => (2, true),
        KeyKind::SourcePort | KeyKind::DestinationPort => (4, false),
    };
    QueryRow {
        word,
        field,
        number,
        worth,
        asks: Asks::Top(TopQuery { kind, one, share, has_changes, keys_max: 131_072.0 }),
    }
}

impl Query {
    /// Sources with many destinations, the query that is shed first.
    pub const SPREADERS: Query = Query(6);

    /// All queries, in the order of outputs.
    pub fn all() -> impl Iterator<Item = Query> + Clone {
        (0..COUNT as u8).map(Query)
    }

    /// All queries, in the order in which they are shed.
    #[must_use]
    pub fn shed_order() -> Vec<Query> {
        let mut all: Vec<Query> = Query::all().collect();
        all.sort_by_key(|query| query.row().worth);
        all
    }

    /// Returns the query with a number in sketch files.
    pub(crate) fn numbered(number: u8) -> Option<Query> {
        Query::all().find(|query| query.row().number == number)
    }

    /// Its place in the table.
    pub(crate) fn place(self) -> usize {
        self.0.into()
    }

    pub(crate) fn row(self) -> &'static QueryRow {
        &QUERIES[self.place()]
    }

    /// Returns its name in outputs and settings.
    #[must_use]
    pub fn word(self) -> &'static str {
        self.row().word
    }

    /// Returns true if the query is about single packets, which flow records do not describe.
    #[must_use]
    pub fn is_about_packets(self) -> bool {
        matches!(self.row().asks, Asks::Quantiles(_))
    }
}

/// Returns the lists of keys, each with its place.
pub(crate) fn tops() -> impl Iterator<Item = (usize, &'static QueryRow, &'static TopQuery)> {
    QUERIES.iter().enumerate().filter_map(|(place, row)| match &row.asks {
        Asks::Top(top) => Some((place, row, top)),
        Asks::FlowSizes | Asks::Spreaders | Asks::Quantiles(_) => None,
    })
}

impl std::fmt::Debug for Query {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.word())
    }
}

impl Serialize for Query {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_and_numbers_are_different_and_lists_come_first() {
        let of = |name: fn(&QueryRow) -> String| QUERIES.iter().map(name).collect::<BTreeSet<_>>().len();
        let counts =
            [of(|row| row.word.into()), of(|row| row.field.into()), of(|row| row.number.to_string())];
        assert_eq!((counts, of(|row| row.worth.to_string())), ([COUNT; 3], COUNT));
        assert!(tops().enumerate().all(|(nth, (place, ..))| nth == place));
        assert_eq!(Query::SPREADERS.word(), "spreaders");
        assert!(Query::all().all(|query| Query::numbered(query.row().number) == Some(query)));
    }

    /// Files contain the numbers, and docs/reference/measure.md the order of shedding.
    #[test]
    fn the_first_queries_keep_their_numbers_and_their_order() {
        let words = [
            "spreaders",
            "flow-sizes",
            "inter-arrival",
            "packet-bytes",
            "top-source-ports",
            "top-destination-ports",
            "top-destinations",
            "top-sources",
            "top-flows",
        ];
        assert_eq!([0, 1, 2, 3, 4, 5, 6, 7, 8].map(|number| Query::numbered(number).unwrap().word()), words);
        let numbers = Query::shed_order().into_iter().map(|query| query.row().number);
        assert!(numbers.filter(|number| *number < 9).eq(0..9));
    }
}
