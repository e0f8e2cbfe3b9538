//! Recordings: both formats in both byte orders, invalid files, and the port that replays them.

mod sink;

use proptest::prelude::*;
use sink::Sink;
use std::io::BufReader;
use weir_packet::{Batch, Pools, Port};
use weir_port::PcapPort;
use weir_port::pcap::{Files, Links, Output, Problem, ReadError, Reader, Record, Writer};

/// Builds files in either byte order.
#[derive(Clone)]
struct File {
    big: bool,
    bytes: Vec<u8>,
}

impl File {
    fn new(big: bool) -> File {
        File { big, bytes: Vec::new() }
    }

    fn u16(mut self, value: u16) -> File {
        self.bytes.extend(if self.big { value.to_be_bytes() } else { value.to_le_bytes() });
        self
    }

    fn u32(mut self, value: u32) -> File {
        self.bytes.extend(if self.big { value.to_be_bytes() } else { value.to_le_bytes() });
        self
    }

    fn raw(mut self, bytes: &[u8]) -> File {
        self.bytes.extend_from_slice(bytes);
        self
    }

    fn padded(self, bytes: &[u8]) -> File {
        let padding = bytes.len().next_multiple_of(4) - bytes.len();
        self.raw(bytes).raw(&vec![0; padding])
    }

    fn classic(big: bool, magic: u32, link: u32) -> File {
        File::of_version(big, magic, 4, link)
    }

    fn of_version(big: bool, magic: u32, minor: u16, link: u32) -> File {
        File::new(big).u32(magic).u16(2).u16(minor).u32(0).u32(0).u32(65535).u32(link)
    }

    fn record(self, seconds: u32, part: u32, length: u32, bytes: &[u8]) -> File {
        self.u32(seconds).u32(part).u32(bytes.len() as u32).u32(length).raw(bytes)
    }

    fn block(self, kind: u32, body: impl FnOnce(File) -> File) -> File {
        let body = body(File::new(self.big)).bytes;
        let length = body.len() as u32 + 12;
        self.u32(kind).u32(length).raw(&body).u32(length)
    }

    fn section(mut self, big: bool) -> File {
        self.big = big;
        self.block(0x0a0d_0d0a, |body| body.u32(0x1a2b_3c4d).u16(1).u16(0).raw(&[0xff; 8]))
    }

    fn interface(self, link: u16, options: impl FnOnce(File) -> File) -> File {
        self.block(1, |body| options(body.u16(link).u16(0).u32(0)))
    }

    fn packet(self, interface: u32, time: u64, length: u32, bytes: &[u8]) -> File {
        self.block(6, |body| {
            let body = body.u32(interface).u32((time >> 32) as u32).u32(time as u32);
            // A comment after the packet, which is skipped.
            body.u32(bytes.len() as u32).u32(length).padded(bytes).u16(1).u16(2).padded(b"hi").u32(0)
        })
    }
}

/// Reads a recording, and asserts that reading it in pieces gives the same result.
fn read(bytes: &[u8]) -> (Vec<Record>, Option<ReadError>) {
    let whole = read_through(bytes, 1 << 18);
    for buffer in [1, 7, 64] {
        let pieces = read_through(bytes, buffer);
        assert_eq!(pieces.0, whole.0, "a buffer of {buffer} bytes");
        assert_eq!(pieces.1.map(|error| error.to_string()), whole.1.as_ref().map(ToString::to_string));
    }
    whole
}

/// Reads through a buffer of `buffer` bytes: with small buffers, records begin in one and end in another.
fn read_through(bytes: &[u8], buffer: usize) -> (Vec<Record>, Option<ReadError>) {
    let reader = match Reader::open_of(BufReader::with_capacity(buffer, bytes), Links::ETHERNET) {
        Ok(reader) => reader,
        Err(error) => return (Vec::new(), Some(error)),
    };
    let (mut records, mut wrong) = (Vec::new(), None);
    for record in reader {
        assert!(wrong.is_none(), "no frame follows an error");
        match record {
            Ok(record) => records.push(record),
            Err(error) => wrong = Some(error),
        }
    }
    (records, wrong)
}

fn record(time_ns: u64, length: u32, bytes: &[u8]) -> Record {
    Record { time_ns, length, bytes: bytes.to_vec() }
}

#[test]
fn classic_pcap_is_read_in_both_units_and_orders() {
    for (magic, unit) in [(0xa1b2_c3d4, 1000), (0xa1b2_3c4d, 1)] {
        for big in [false, true] {
            let file = File::classic(big, magic, 1)
                .record(3, 5, 4, b"abcd")
                .record(4, 0, 1500, b"cut")
                .record(4, 1, 0, b"");
            let (records, wrong) = read(&file.bytes);
            let expected = [
                record(3_000_000_000 + 5 * unit, 4, b"abcd"),
                record(4_000_000_000, 1500, b"cut"),
                record(4_000_000_000 + unit, 0, b""),
            ];
            assert_eq!(records, expected);
            assert!(wrong.is_none() && records[1].is_truncated() && !records[0].is_truncated());
        }
    }
}

/// Like libpcap: up to 2.2 the length on the wire comes first; for 2.3 there are files with either order.
#[test]
fn old_versions_of_classic_pcap_have_their_lengths_in_another_order() {
    for big in [false, true] {
        for minor in 0..=4 {
            let (first, second) = if minor < 3 { (1500, 3) } else { (3, 1500) };
            let head = File::of_version(big, 0xa1b2_c3d4, minor, 1);
            let file = head.clone().u32(0).u32(1).u32(first).u32(second).raw(b"cut").record(0, 2, 4, b"full");
            let (records, wrong) = read(&file.bytes);
            assert!(wrong.is_none(), "2.{minor}: {wrong:?}");
            assert_eq!(records, [record(1000, 1500, b"cut"), record(2000, 4, b"full")], "2.{minor}");
            let swapped = head.u32(0).u32(1).u32(1500).u32(3).raw(b"cut");
            assert_eq!(read(&swapped.bytes).1.is_some(), minor == 4, "2.{minor}");
        }
    }
    let newer = File::of_version(false, 0xa1b2_c3d4, 5, 1);
    check_errors(vec![(newer.bytes, 0, "byte 4: pcap version 2.5 is not supported")]);
}

#[test]
fn packets_of_other_link_types_are_skipped_and_counted() {
    for big in [false, true] {
        let file = File::new(false)
            .section(big)
            .interface(1, |options| options)
            .interface(113, |options| options)
            .interface(101, |options| options)
            .packet(1, 1_000, 5, b"sll 1")
            .packet(0, 2_000, 3, b"one")
            .packet(1, 3_000, 5, b"sll 2")
            .packet(2, 4_000, 3, b"raw")
            .packet(0, 5_000, 3, b"two")
            .section(big)
            .interface(0, |options| options)
            .interface(1, |options| options)
            .block(3, |body| body.u32(4).padded(b"null"))
            .packet(1, 6_000, 5, b"three");
        let mut reader = Reader::open(file.bytes.as_slice()).unwrap();
        let (mut one, mut all) = (Record::default(), Vec::new());
        while reader.read(&mut one).unwrap() {
            all.push((reader.number(), one.clone()));
        }
        let expected = [
            (2, record(2_000_000, 3, b"one")),
            (5, record(5_000_000, 3, b"two")),
            (7, record(6_000_000, 5, b"three")),
        ];
        assert_eq!(all, expected);
        assert_eq!(reader.skipped().collect::<Vec<_>>(), [(0, [1, 4]), (101, [1, 3]), (113, [2, 10])]);
        let (_, port, ..) = open(&file.bytes);
        let remarks: Vec<String> = port.remarks().into_iter().map(|remark| remark.text).collect();
        // The port is two frames ahead.
        assert_eq!(
            remarks,
            [
                "packets skipped, of link type 101 (RAW, IP without Ethernet): 1",
                "packets skipped, of link type 113 (LINUX_SLL, a recording of `any`): 2",
            ]
        );
    }
}

#[test]
fn a_frame_check_sequence_is_taken_off() {
    let (records, _) =
        read(&File::classic(false, 0xa1b2_c3d4, 0x2400_0001).record(0, 0, 8, b"abcdFCS!").bytes);
    assert_eq!(records, [record(0, 4, b"abcd")]);
}

#[test]
fn pcapng_is_read_in_several_sections_of_either_order() {
    let mut file = File::new(false);
    let mut expected = Vec::new();
    for big in [false, true] {
        file = file
            .section(big)
            .interface(1, |options| options)
            .interface(1, |options| options.u16(9).u16(1).raw(&[9, 0, 0, 0]).u16(0).u16(0))
            .interface(1, |options| {
                let seconds = if big { 7i64.to_be_bytes() } else { 7i64.to_le_bytes() };
                options
                    .u16(2)
                    .u16(3)
                    .padded(b"eth")
                    .u16(9)
                    .u16(1)
                    .raw(&[0x8a, 0, 0, 0])
                    .u16(14)
                    .u16(8)
                    .raw(&seconds)
            })
            // An interface that has another link type but no packets does no harm.
            .interface(113, |options| options)
            .block(5, |body| body.raw(&[1; 20]))
            .packet(0, 2_000_001, 3, b"one")
            .packet(1, u64::from(u32::MAX) + 9, 9, b"two")
            .packet(2, 1024 + 512, 5, b"three")
            .block(3, |body| body.u32(6).padded(b"simple"))
            .block(2, |body| body.u16(1).u16(77).u32(0).u32(8).u32(3).u32(3).padded(b"old"));
        expected.extend([
            record(2_000_001_000, 3, b"one"),
            record(u64::from(u32::MAX) + 9, 9, b"two"),
            record(8_500_000_000, 5, b"three"),
            record(8_500_000_000, 6, b"simple"),
            record(8, 3, b"old"),
        ]);
    }
    let (records, wrong) = read(&file.bytes);
    assert!(wrong.is_none(), "{wrong:?}");
    assert_eq!(records, expected);
}

#[test]
fn absurd_resolutions_and_offsets_of_time_are_survived() {
    for resolution in [0, 18, 19, 38, 39, 127, 0x80, 0xff] {
        let file = File::new(false).section(false).interface(1, |options| {
            options.u16(9).u16(1).raw(&[resolution, 0, 0, 0]).u16(14).u16(8).raw(&i64::MIN.to_le_bytes())
        });
        let (records, wrong) = read(&file.packet(0, u64::MAX, 1, b"x").bytes);
        assert!(wrong.is_none());
        assert!(matches!(records[0].time_ns, 0 | u64::MAX));
    }
}

#[test]
fn errors_in_classic_pcap_say_where_and_what_and_keep_the_records_before() {
    let good = File::classic(false, 0xa1b2_c3d4, 1).record(0, 0, 4, b"abcd");
    let cases = vec![
        (vec![], 0, "byte 0: the file is empty"),
        (vec![1, 2], 0, "byte 0: the file ends within the magic number: expected 4 bytes, found 2"),
        (
            b"\x1f\x8b\x08\x00".to_vec(),
            0,
            "byte 0: not a recording: it begins with 1f 8b 08 00, which is neither pcap nor pcapng (gzip: \
             unpack it \
                first)",
        ),
        (
            good.bytes[..20].to_vec(),
            0,
            "byte 4: the file ends within the pcap header: expected 20 bytes, found 16",
        ),
        (
            File::classic(true, 0xa1b2_c3d4, 113).bytes,
            0,
            "byte 20: link type 113 (LINUX_SLL, a recording of `any`): weir reads only Ethernet (1); record \
             on one Ethernet interface",
        ),
        (
            good.clone().raw(&[0; 15]).bytes,
            1,
            "byte 44: the file ends within a record's header: expected 16 bytes, found 15",
        ),
        (
            good.clone().u32(0).u32(0).u32(9).u32(9).raw(b"abc").bytes,
            1,
            "byte 60: the file ends within a record's data: expected 9 bytes, found 3",
        ),
        (
            good.clone().u32(0).u32(0).u32(1 << 31).u32(9).bytes,
            1,
            "byte 44: the record claims 2147483648 bytes, more than 262144: the file is corrupt here",
        ),
    ];
    check_errors(cases);
}

#[test]
fn errors_in_pcapng_say_where_and_what_and_keep_the_records_before() {
    let ng = File::new(false).section(false).interface(1, |options| options);
    let cases = vec![
        (
            ng.clone().packet(7, 0, 0, b"").bytes,
            0,
            "byte 60: the packet refers to interface 7, but the section describes only 1",
        ),
        (
            ng.clone().block(6, |body| body.u32(0).u32(0).u32(0).u32(9).u32(9).padded(b"abc")).bytes,
            0,
            "byte 76: a packet of 9 bytes does not fit into its block, which has 4 bytes left",
        ),
        (
            ng.clone().packet(0, 0, 1, b"x").u32(5).u32(10).bytes,
            1,
            "byte 100: the block claims 10 bytes: not a multiple of 4 between 12 and 16777216",
        ),
        (
            ng.clone().u32(5).u32(12).u32(16).bytes,
            0,
            "byte 56: the block's length is 12 at its start and 16 at its end",
        ),
        (
            ng.clone().interface(113, |options| options).packet(1, 0, 0, b"").bytes,
            0,
            "byte 80: link type 113 (LINUX_SLL, a recording of `any`): weir reads only Ethernet (1); record \
             on one Ethernet interface",
        ),
    ];
    check_errors(cases);
}

/// Reads each file and compares the number of valid records and the error.
fn check_errors(cases: Vec<(Vec<u8>, usize, &str)>) {
    for (bytes, good_records, expected) in cases {
        let (records, wrong) = read(&bytes);
        assert_eq!(wrong.map(|error| error.to_string()).as_deref(), Some(expected));
        assert_eq!(records.len(), good_records, "{expected}");
    }
}

#[test]
fn a_claimed_length_is_not_allocated() {
    let file = File::classic(false, 0xa1b2_c3d4, 1).u32(0).u32(0).u32(262_144).u32(9).raw(b"abc");
    let mut reader = Reader::open(file.bytes.as_slice()).unwrap();
    let mut record = Record::default();
    assert!(matches!(reader.read(&mut record), Err(ReadError { problem: Problem::Ends { .. }, .. })));
    assert!(record.bytes.capacity() < 64 << 10);
}

fn written(records: &[Record]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes).unwrap();
    for record in records {
        writer.write(record.time_ns, record.length, &record.bytes).unwrap();
    }
    drop(writer);
    bytes
}

fn recorded(name: &str, sink: &Sink) -> Option<Output> {
    sink.boxed().map(|file| Output { name: name.to_string(), file })
}

fn open(input: &[u8]) -> (Pools, PcapPort, Sink, Sink) {
    let mut pools = Pools::region(4);
    let (output, kernel) = (Sink::default(), Sink::default());
    let files = Files {
        input: Some(Box::new(std::io::Cursor::new(input.to_vec()))),
        output: recorded("output", &output),
        kernel: recorded("kernel", &kernel),
    };
    let port = PcapPort::open("p", pools.first().id(), files).unwrap();
    (pools, port, output, kernel)
}

#[test]
fn the_port_replays_in_virtual_time_and_writes_with_the_recordings_base() {
    let base = 1_700_000_000_000_000_000;
    let input = [
        record(base, 3, b"one"),
        record(base + 10, 3000, &[7; 3000]),
        record(base + 5, 100, b"two"),
        record(base + 20, 5, b"three"),
    ];
    let (mut pools, mut port, output, kernel) = open(&written(&input));
    let (mut batch, mut arrivals) = (Batch::new(), Vec::new());
    while let Some(arrival_ns) = port.next_arrival_ns() {
        port.receive(&mut pools, &mut batch);
        assert!(arrival_ns == 0 || batch.is_empty(), "nothing arrives before its time");
        port.set_time(arrival_ns);
        port.receive(&mut pools, &mut batch);
        arrivals.push((
            arrival_ns,
            batch.frames().iter().map(|frame| frame.bytes().to_vec()).collect::<Vec<_>>(),
        ));
        let all = batch.mask();
        assert_eq!(port.transmit(&mut pools, &mut batch, all & 1), all & 1);
        assert_eq!(port.to_kernel(&mut pools, &mut batch, all & !1), all & !1);
        batch.clear();
    }
    // The second is larger than a chunk; the third, recorded earlier, arrives with it.
    let expected = [(0, vec![b"one".to_vec()]), (10, vec![b"two".to_vec()]), (20, vec![b"three".to_vec()])];
    assert_eq!(arrivals, expected);
    assert!(port.exhausted());
    assert_eq!(port.close(&mut pools), 0);
    let statistics = port.statistics();
    assert_eq!((statistics.received, statistics.oversize, statistics.transmitted), (4, 1, 3));
    assert_eq!(port.extra_statistics()[0], ("truncated", 1));
    let (records, _) = read(&output.bytes());
    assert_eq!(
        records,
        [record(base, 3, b"one"), record(base + 10, 3, b"two"), record(base + 20, 5, b"three")]
    );
    assert_eq!(read(&kernel.bytes()).0, []);
    assert_eq!(pools.first().available(), 4);
}

#[test]
fn a_starved_port_keeps_its_frames_and_several_ports_share_a_base() {
    let input: Vec<_> = (0..6).map(|i| record(1000 + i, 1, &[i as u8])).collect();
    let (mut pools, mut port, ..) = open(&written(&input));
    port.set_base(900);
    assert_eq!(port.next_arrival_ns(), Some(100));
    port.set_time(1000);
    let mut batch = Batch::new();
    port.receive(&mut pools, &mut batch);
    assert_eq!((batch.len(), port.statistics().starved, port.exhausted()), (4, 1, false));
    port.transmit(&mut pools, &mut batch, 0b1111);
    batch.clear();
    port.receive(&mut pools, &mut batch);
    assert_eq!((batch.len(), port.statistics().received), (2, 6));
    port.transmit(&mut pools, &mut batch, 0b11);
}

#[test]
fn a_corrupt_recording_ends_the_port_and_its_mode_says_where() {
    let mut input = written(&[record(0, 3, b"one")]);
    input.push(0);
    let (mut pools, mut port, ..) = open(&input);
    let mut batch = Batch::new();
    port.receive(&mut pools, &mut batch);
    assert_eq!((batch.len(), port.exhausted()), (1, true));
    let expected =
        "pcap, truncated at byte 43: the file ends within a record's header: expected 16 bytes, found 1";
    assert_eq!(port.mode(), expected);
    pools.give(batch.take(0));
}

/// A disk that fills up may still take part of a write: frames that are complete in the file count as
/// transmitted, the others do not.
#[test]
fn frames_that_an_output_did_not_take_are_not_transmitted() {
    let input: Vec<_> = (0..8).map(|i| record(i, 1500, &[0; 1500])).collect();
    let mut pools = Pools::region(8);
    let output = Sink::failing(4000);
    let files = Files {
        input: Some(Box::new(std::io::Cursor::new(written(&input)))),
        output: recorded("out.pcap", &output),
        kernel: None,
    };
    let mut port = PcapPort::open("p", pools.first().id(), files).unwrap();
    port.set_time(100);
    let mut batch = Batch::new();
    port.receive(&mut pools, &mut batch);
    assert_eq!(port.transmit(&mut pools, &mut batch, 0xff), 0xff);
    assert_eq!((port.remarks(), port.has_kernel_path()), (vec![], false));
    assert_eq!(port.close(&mut pools), 0);
    let statistics = port.statistics();
    assert_eq!((statistics.transmitted, statistics.not_written), (2, 6));
    assert_eq!(read(&output.bytes()).0.len(), 2);
    let remarks = port.remarks();
    assert!(remarks.len() == 1 && remarks[0].is_error, "{remarks:?}");
    let text = &remarks[0].text;
    assert!(
        text.starts_with("out.pcap cannot be written: ")
            && text.ends_with(
                "6 frames are missing from \
        it"
            )
    );
    assert_eq!(pools.first().available(), 8);
}

fn records() -> impl Strategy<Value = Vec<Record>> {
    let one = (0..u64::from(u32::MAX) * 1_000_000_000, prop::collection::vec(any::<u8>(), 0..80), 0..40u32);
    let one =
        one.prop_map(|(time_ns, bytes, lost)| Record { time_ns, length: bytes.len() as u32 + lost, bytes });
    prop::collection::vec(one, 0..12)
}

/// Writes the same records as pcapng with nanoseconds.
fn ng(records: &[Record], big: bool) -> Vec<u8> {
    let file = File::new(big).section(big).interface(1, |options| options.u16(9).u16(1).raw(&[9, 0, 0, 0]));
    let add = |file: File, record: &Record| file.packet(0, record.time_ns, record.length, &record.bytes);
    records.iter().fold(file, add).bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn what_is_written_is_read(records in records(), big: bool) {
        prop_assert_eq!(&read(&written(&records)).0, &records);
        prop_assert_eq!(&read(&ng(&records, big)).0, &records);
    }

    #[test]
    fn a_cut_recording_yields_its_front(records in records(), big: bool, cut: prop::sample::Index) {
        for file in [written(&records), ng(&records, big)] {
            let (front, _) = read(&file[..cut.index(file.len() + 1)]);
            prop_assert!(records.starts_with(&front));
        }
    }

    #[test]
    fn a_mutated_recording_yields_the_records_before_the_mutation(
        records in records(), big: bool, place: prop::sample::Index, flip in 1..=255u8, cut in 0..200usize,
    ) {
        for mut file in [written(&records), ng(&records, big)] {
            let place = place.index(file.len());
            let (before, _) = read(&file[..place]);
            file[place] ^= flip;
            file.truncate(file.len().saturating_sub(cut).max(place + 1));
            let (after, _) = read(&file);
            prop_assert!(after.starts_with(&before));
        }
    }

    #[test]
    fn any_bytes_are_survived(start in 0..4usize, bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let start = [
            Vec::new(),
            File::classic(false, 0xa1b2_c3d4, 1).bytes,
            File::new(true).section(true).interface(1, |options| options).bytes,
            File::new(false).section(false).bytes,
        ][start].clone();
        let (records, _) = read(&File::new(false).raw(&start).raw(&bytes).bytes);
        prop_assert!(records.iter().map(|record| record.bytes.len()).sum::<usize>() <= bytes.len());
    }

    #[test]
    fn any_blocks_are_survived(big: bool, blocks in prop::collection::vec((0..8u32,
        prop::collection::vec(0..40u8, 0..60)), 0..20)) {
        let file = File::new(big).section(big).interface(1, |options| options);
        let add = |file: File, (kind, body): (u32, Vec<u8>)| file.block(kind, |file| file.padded(&body));
        read(&blocks.into_iter().fold(file, add).bytes);
    }
}
