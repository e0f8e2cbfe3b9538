//! Files in a real folder.

use super::*;
use crate::Export;
use crate::FlowRecord;
use crate::export::End;
use std::path::PathBuf;
use weir_packet::{FlowKey, Observed};

/// A folder that is removed with the test.
struct TestFolder(PathBuf);

impl TestFolder {
    fn new(name: &str) -> TestFolder {
        let path = std::env::temp_dir().join(format!("weir-parquet-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        TestFolder(path)
    }

    /// The names of its files, sorted.
    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn files(&self, rotate_bytes: u64) -> Files {
        let rotate = Duration::from_secs(3600);
        let to = Parquet { directory: self.0.clone(), rotate, rotate_bytes };
        Files::new("edge", to, Arc::default())
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn batch(records: u64) -> Vec<Given> {
    let given = |n: u64| {
        let key = FlowKey([n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 8; 5]);
        let observed = Observed::default();
        let record = FlowRecord { key, packets: 1, bytes: n, first_ns: n, last_ns: n * n, observed };
        Given { record, end: End::Active, target: None, ingress: None, point: None, names: [None, None] }
    };
    (0..records).map(given).collect()
}

fn tally(files: &Files) -> (u64, u64, bool) {
    let Export { sent, lost, works } = files.tally.export();
    (sent, lost, works)
}

#[test]
fn a_file_has_its_name_when_it_is_whole() {
    let folder = TestFolder::new("whole");
    let mut files = folder.files(1 << 30);
    files.send(batch(100));
    assert!(folder.names().iter().all(|name| name.ends_with(".parquet.part")), "{:?}", folder.names());
    assert_eq!(tally(&files), (0, 0, true));
    // The file is due.
    files.file.as_mut().unwrap().until = Instant::now();
    files.tend();
    files.send(batch(5));
    files.end();
    let names = folder.names();
    assert!(names.len() == 2 && names.iter().all(|name| name.ends_with(".parquet")), "{names:?}");
    assert_eq!(tally(&files), (105, 0, true));
    let bytes = std::fs::read(folder.0.join(&names[0])).unwrap();
    assert_eq!((&bytes[..4], &bytes[bytes.len() - 4..]), (&b"PAR1"[..], &b"PAR1"[..]));
}

#[test]
fn a_file_that_is_large_enough_is_followed_by_another() {
    let folder = TestFolder::new("large");
    let mut files = folder.files(1 << 16);
    (0..20).for_each(|_| files.send(batch(1_000)));
    files.end();
    let names = folder.names();
    assert!(names.len() > 3, "{names:?}");
    assert_eq!(tally(&files), (20_000, 0, true));
}

#[test]
fn without_its_folder_records_are_counted_until_it_is_there() {
    let folder = TestFolder::new("missing");
    let mut files = folder.files(1 << 30);
    files.to.directory = folder.0.join("not/yet");
    files.send(batch(10));
    files.send(batch(10));
    assert_eq!(tally(&files), (0, 20, false));
    std::fs::create_dir_all(&files.to.directory).unwrap();
    files.down.0 = Instant::now();
    files.send(batch(10));
    files.end();
    assert_eq!(tally(&files), (10, 20, true));
}

#[test]
fn a_file_that_cannot_be_written_is_given_up_and_counted() {
    let folder = TestFolder::new("full");
    let mut files = folder.files(1 << 16);
    files.send(batch(10));
    // A full disk.
    files.file.as_mut().unwrap().file.fill_disk();
    files.send(batch(10_000));
    assert_eq!(tally(&files), (0, 10_000, false));
    assert_eq!((files.file.is_none(), folder.names()), (true, Vec::new()));
    files.send(batch(1));
    assert_eq!(tally(&files), (0, 10_001, false));
}
