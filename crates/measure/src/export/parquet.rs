//! Flow records as Parquet files, which DuckDB, ClickHouse, Spark and pandas read.
//!
//! Columns are named after IPFIX information elements, except those of names; [`COLUMNS`] lists them. Rows
//! are collected into a row group, which is written at once: readers prefer long row groups. The output is
//! unusable before [`Writer::finish`], because a Parquet file ends with its table of contents.

use super::Given;
use ::parquet::basic::Compression;
use ::parquet::data_type::{ByteArray, ByteArrayType, Int32Type, Int64Type};
use ::parquet::errors::{ParquetError, Result};
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use ::parquet::schema::parser::parse_message_type;
use std::fmt::Write as _;
use std::io::Write;
use std::sync::Arc;
use weir_app::names::Name;

/// The maximum number of rows in a row group: what DuckDB writes. 14 MB until it is written.
pub const GROUP_MAX: usize = 122_880;

/// Approximate number of bytes per row in a file, after compression.
const ROW_BYTES: u64 = 40;

/// A column: its name, its type as Parquet's schemas write it, and its values.
struct Column {
    name: &'static str,
    kind: &'static str,
    annotation: &'static str,
    values: Values,
}

/// How a column's values are extracted from records.
enum Values {
    Int32(fn(&Given) -> u32),
    Int64(fn(&Given) -> u64),
    /// An optional value.
    Optional(fn(&Given) -> Option<u32>),
    Text(fn(&Given, &mut String)),
    /// An optional text.
    Word(fn(&Given) -> Option<&str>),
}

const fn column(name: &'static str, kind: &'static str, annotation: &'static str, values: Values) -> Column {
    Column { name, kind, annotation, values }
}

const COLUMNS: [Column; 28] = [
    column(
        "flowStartNanoseconds",
        "INT64",
        "TIMESTAMP(NANOS,true)",
        Values::Int64(|one| one.record.first_ns),
    ),
    column("flowEndNanoseconds", "INT64", "TIMESTAMP(NANOS,true)", Values::Int64(|one| one.record.last_ns)),
    column("sourceIPAddress", "BYTE_ARRAY", "STRING", Values::Text(source)),
    column("destinationIPAddress", "BYTE_ARRAY", "STRING", Values::Text(destination)),
    column(
        "sourceTransportPort",
        "INT32",
        "INTEGER(16,false)",
        Values::Int32(|one| one.record.key.sport().into()),
    ),
    column(
        "destinationTransportPort",
        "INT32",
        "INTEGER(16,false)",
        Values::Int32(|one| one.record.key.dport().into()),
    ),
    column(
        "protocolIdentifier",
        "INT32",
        "INTEGER(8,false)",
        Values::Int32(|one| one.record.key.protocol().into()),
    ),
    column("layer2SegmentId", "INT32", "INTEGER(32,false)", Values::Optional(|one| one.record.key.vni())),
    column("packetDeltaCount", "INT64", "INTEGER(64,false)", Values::Int64(|one| one.record.packets)),
    column("layer2OctetDeltaCount", "INT64", "INTEGER(64,false)", Values::Int64(|one| one.record.bytes)),
    column("flowEndReason", "INT32", "INTEGER(8,false)", Values::Int32(|one| one.end.reason().into())),
    column("target", "BYTE_ARRAY", "STRING", Values::Word(|one| one.target.as_deref())),
    column("octetDeltaCount", "INT64", "INTEGER(64,false)", Values::Int64(|one| one.record.observed.octets)),
    column(
        "tcpControlBits",
        "INT32",
        "INTEGER(8,false)",
        Values::Int32(|one| one.record.observed.flags.into()),
    ),
    column(
        "ipClassOfService",
        "INT32",
        "INTEGER(8,false)",
        Values::Int32(|one| one.record.observed.class.into()),
    ),
    column("icmpTypeCodeIPv4", "INT32", "INTEGER(16,false)", Values::Optional(|one| icmp(one, false))),
    column("icmpTypeCodeIPv6", "INT32", "INTEGER(16,false)", Values::Optional(|one| icmp(one, true))),
    column("vlanId", "INT32", "INTEGER(16,false)", Values::Optional(vlan)),
    column("ingressInterface", "BYTE_ARRAY", "STRING", Values::Word(|one| one.ingress.as_deref())),
    column("observationPoint", "BYTE_ARRAY", "STRING", Values::Word(|one| one.point.as_deref())),
    column("sourceName", "BYTE_ARRAY", "STRING", Values::Word(|one| Some(&*name(one, 0)?.name))),
    column("sourceNamespace", "BYTE_ARRAY", "STRING", Values::Word(|one| name(one, 0)?.namespace.as_deref())),
    column("sourceKind", "BYTE_ARRAY", "STRING", Values::Word(|one| Some(name(one, 0)?.kind.word()))),
    column("sourceNode", "BYTE_ARRAY", "STRING", Values::Word(|one| name(one, 0)?.node.as_deref())),
    column("destinationName", "BYTE_ARRAY", "STRING", Values::Word(|one| Some(&*name(one, 1)?.name))),
    column(
        "destinationNamespace",
        "BYTE_ARRAY",
        "STRING",
        Values::Word(|one| name(one, 1)?.namespace.as_deref()),
    ),
    column("destinationKind", "BYTE_ARRAY", "STRING", Values::Word(|one| Some(name(one, 1)?.kind.word()))),
    column("destinationNode", "BYTE_ARRAY", "STRING", Values::Word(|one| name(one, 1)?.node.as_deref())),
];

/// The name of the source (0) or the destination (1).
fn name(one: &Given, end: usize) -> Option<&Name> {
    one.names[end].as_deref()
}

fn icmp(one: &Given, ipv6: bool) -> Option<u32> {
    one.record.icmp().filter(|_| one.record.key.src().is_ipv6() == ipv6).map(u32::from)
}

fn vlan(one: &Given) -> Option<u32> {
    Some(u32::from(one.record.observed.vlan)).filter(|vlan| *vlan != 0)
}

fn source(one: &Given, text: &mut String) {
    let _ = write!(text, "{}", one.record.key.src());
}

fn destination(one: &Given, text: &mut String) {
    let _ = write!(text, "{}", one.record.key.dst());
}

/// The schema, as Parquet's tools print it.
fn schema() -> String {
    let line = |column: &Column| {
        let Column { name, kind, annotation, values } = column;
        let optional = matches!(values, Values::Optional(_) | Values::Word(_));
        format!("{} {kind} {name} ({annotation});", if optional { "OPTIONAL" } else { "REQUIRED" })
    };
    format!("message flow {{ {} }}", COLUMNS.iter().map(line).collect::<Vec<_>>().join(" "))
}

/// A file being written.
pub struct Writer<W: Write + Send> {
    file: SerializedFileWriter<W>,
    group: Vec<Given>,
    group_rows: usize,
    rows: u64,
}

impl<W: Write + Send> Writer<W> {
    /// Begins a file with row groups of at most `group_rows` rows, clamped to between 1 and [`GROUP_MAX`].
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn new(output: W, group_rows: usize) -> Result<Writer<W>> {
        let schema = Arc::new(parse_message_type(&schema())?);
        let properties = WriterProperties::builder().set_compression(Compression::SNAPPY);
        let properties = properties.set_created_by(format!("weir {}", env!("CARGO_PKG_VERSION"))).build();
        let file = SerializedFileWriter::new(output, schema, properties.into())?;
        Ok(Writer { file, group: Vec::new(), group_rows: group_rows.clamp(1, GROUP_MAX), rows: 0 })
    }

    /// Appends a row.
    ///
    /// # Errors
    /// The output cannot be written. The file can then no longer be finished.
    pub fn add(&mut self, given: Given) -> Result<()> {
        self.group.push(given);
        self.rows += 1;
        if self.group.len() == self.group_rows { self.flush() } else { Ok(()) }
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the approximate size of the file in bytes, including rows not written yet.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.file.bytes_written() as u64 + self.group.len() as u64 * ROW_BYTES
    }

    /// Writes the remaining rows and the table of contents. Returns the output.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn finish(mut self) -> Result<W> {
        self.flush()?;
        self.file.into_inner()
    }

    /// Writes a row group.
    fn flush(&mut self) -> Result<()> {
        if self.group.is_empty() {
            return Ok(());
        }
        let mut group = self.file.next_row_group()?;
        for column in &COLUMNS {
            let mut writer = group.next_column()?.ok_or_else(|| ParquetError::EOF("columns".into()))?;
            column.values.write(&self.group, &mut writer)?;
            writer.close()?;
        }
        group.close()?;
        self.group.clear();
        Ok(())
    }
}

impl Values {
    fn write(&self, rows: &[Given], writer: &mut SerializedColumnWriter<'_>) -> Result<()> {
        match self {
            // An unsigned number has the same bits as the signed one (Parquet's LogicalTypes, INT).
            Values::Int32(of) => {
                let values: Vec<i32> = rows.iter().map(|row| of(row) as i32).collect();
                writer.typed::<Int32Type>().write_batch(&values, None, None)?;
            }
            Values::Int64(of) => {
                let values: Vec<i64> = rows.iter().map(|row| of(row) as i64).collect();
                writer.typed::<Int64Type>().write_batch(&values, None, None)?;
            }
            Values::Optional(of) => {
                let present: Vec<i16> = rows.iter().map(|row| of(row).is_some().into()).collect();
                let values: Vec<i32> = rows.iter().filter_map(|row| Some(of(row)? as i32)).collect();
                writer.typed::<Int32Type>().write_batch(&values, Some(&present), None)?;
            }
            Values::Text(of) => {
                let values = texts(rows, *of);
                writer.typed::<ByteArrayType>().write_batch(&values, None, None)?;
            }
            Values::Word(of) => {
                let present: Vec<i16> = rows.iter().map(|row| of(row).is_some().into()).collect();
                let values: Vec<ByteArray> = rows
                    .iter()
                    .filter_map(|row| Some(ByteArray::from(of(row)?.as_bytes().to_vec())))
                    .collect();
                writer.typed::<ByteArrayType>().write_batch(&values, Some(&present), None)?;
            }
        }
        Ok(())
    }
}

/// The texts of all rows, in a single buffer.
fn texts(rows: &[Given], of: fn(&Given, &mut String)) -> Vec<ByteArray> {
    let mut text = String::new();
    let mut ends = Vec::with_capacity(rows.len());
    for row in rows {
        of(row, &mut text);
        ends.push(text.len());
    }
    let whole = ByteArray::from(text.into_bytes());
    let starts = std::iter::once(0).chain(ends.iter().copied());
    starts.zip(&ends).map(|(start, &end)| whole.slice(start, end - start)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FlowRecord;
    use crate::export::End;
    use ::parquet::file::reader::{FileReader, SerializedFileReader};
    use ::parquet::record::Field;
    use std::net::IpAddr;
    use weir_app::names::NameKind;
    use weir_packet::{FlowKey, Observed};

    /// A record of each kind in turn.
    fn given(n: u64) -> Given {
        let address = |last: u16| -> IpAddr {
            if n % 2 == 1 {
                [0x2001, 0xdb8, 0, 0, 0, 0, 0, last].into()
            } else {
                [10, 0, 0, last as u8].into()
            }
        };
        let vni = (n % 4 > 1).then_some(n as u32);
        let protocol = if n.is_multiple_of(5) { [1, 58][n as usize % 2] } else { 6 };
        let key = FlowKey::new(address(1), address(n as u16), protocol, (n as u16, 65_535), vni);
        let first_ns = 1_790_000_000_000_000_001 + n;
        let (octets, flags, class, vlan) = (n * n, n as u8, !(n as u8), n as u16 % 3);
        let observed = Observed { octets, flags, class, vlan, icmp: n as u16, ..Observed::default() };
        let (packets, bytes, last_ns) = (n, u64::MAX - n, first_ns + 7);
        let record = FlowRecord { key, packets, bytes, first_ns, last_ns, observed };
        let target = n.is_multiple_of(3).then(|| format!("web/b{}", n % 5).into());
        let ingress = n.is_multiple_of(2).then(|| "p0".into());
        let names = [n.is_multiple_of(3).then(|| source_name(n)), None];
        Given { record, end: End::Idle, target, ingress, point: Some("f".into()), names }
    }

    fn source_name(n: u64) -> Arc<Name> {
        let namespace = n.is_multiple_of(2).then(|| "shop".into());
        Arc::new(Name { name: format!("web-{n}").into(), namespace, kind: NameKind::Pod, node: None })
    }

    fn fields(one: &Given) -> Vec<Field> {
        let FlowRecord { key, packets, bytes, first_ns, last_ns, observed } = &one.record;
        let word = |word: &Option<Arc<str>>| match word {
            Some(word) => Field::Str(word.to_string()),
            None => Field::Null,
        };
        let icmp = |protocol: u8| match key.protocol() {
            one if one == protocol => Field::UShort(observed.icmp),
            _ => Field::Null,
        };
        vec![
            Field::Long(*first_ns as i64),
            Field::Long(*last_ns as i64),
            Field::Str(key.src().to_string()),
            Field::Str(key.dst().to_string()),
            Field::UShort(key.sport()),
            Field::UShort(key.dport()),
            Field::UByte(key.protocol()),
            key.vni().map_or(Field::Null, Field::UInt),
            Field::ULong(*packets),
            Field::ULong(*bytes),
            Field::UByte(1),
            word(&one.target),
            Field::ULong(observed.octets),
            Field::UByte(observed.flags),
            Field::UByte(observed.class),
            icmp(1),
            icmp(58),
            if observed.vlan == 0 { Field::Null } else { Field::UShort(observed.vlan) },
            word(&one.ingress),
            word(&one.point),
            word(&one.names[0].as_ref().map(|name| name.name.clone())),
            word(&one.names[0].as_ref().and_then(|name| name.namespace.clone())),
            word(&one.names[0].as_ref().map(|_| "pod".into())),
            Field::Null,
            Field::Null,
            Field::Null,
            Field::Null,
            Field::Null,
        ]
    }

    #[test]
    fn a_reader_finds_every_field_of_every_record_in_any_row_groups() {
        for (rows, group_rows) in [(0, 10), (1, 1), (1000, 64), (1000, GROUP_MAX)] {
            let mut writer = Writer::new(Vec::new(), group_rows).unwrap();
            (0..rows).for_each(|n| writer.add(given(n)).unwrap());
            assert_eq!(writer.rows(), rows);
            let bytes = writer.finish().unwrap();
            let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).unwrap();
            assert_eq!(reader.num_row_groups() as u64, rows.div_ceil(group_rows as u64));
            let read = reader.get_row_iter(None).unwrap();
            let read: Vec<Vec<Field>> = read
                .map(|row| row.unwrap().into_columns().into_iter().map(|(_, field)| field).collect())
                .collect();
            assert_eq!(read, (0..rows).map(|n| fields(&given(n))).collect::<Vec<_>>());
        }
    }

    #[test]
    fn an_output_that_cannot_be_written_is_an_error() {
        struct Full(usize);
        impl Write for Full {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0 = self.0.checked_sub(bytes.len()).ok_or(std::io::ErrorKind::StorageFull)?;
                Ok(bytes.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let mut writer = Writer::new(Full(5_000), 100).unwrap();
        let failed = (0..10_000).find_map(|n| writer.add(given(n)).err());
        assert!(failed.is_some() || writer.finish().is_err());
    }
}
