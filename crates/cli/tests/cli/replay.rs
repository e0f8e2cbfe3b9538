//! `weir replay` is repeatable byte for byte, and reports recordings that end early.

use super::folder::Folder;
use super::{TWO, record, recorded, weir};

const PACKETS: [&str; 4] = [
    "src=192.0.2.2 dst=10.0.0.53 dport=53 payload=00",
    "src=192.0.2.3 dst=10.0.0.53 dport=53 payload=0001",
    "src=192.0.2.3 dst=10.0.0.54 dport=53",
    "src=192.0.2.5 dst=10.0.0.53 proto=tcp",
];

fn prepared() -> Folder {
    let folder = Folder::new();
    folder.write("weir.yaml", TWO);
    record(&folder.file("in.pcap"), &PACKETS);
    folder
}

#[test]
fn equal_inputs_give_equal_bytes() {
    let folder = prepared();
    let run =
        |out: &str| weir(folder.path(), &["replay", "weir.yaml", "in.pcap", "-o", out, "--json"]).good();
    let (one, other) = (run("one.pcap"), run("other.pcap"));
    assert_eq!(one.out, other.out);
    let bytes = |name: &str| std::fs::read(folder.file(name)).unwrap();
    assert_eq!(bytes("one.pcap"), bytes("other.pcap"));
    assert_eq!(
        recorded(&folder.file("one.pcap")),
        [
            "eth.dst=02:00:00:00:00:10 src=192.0.2.2 dst=10.0.0.53 proto=udp sport=1000 dport=53 payload=00",
            "eth.dst=02:00:00:00:00:11 src=192.0.2.3 dst=10.0.0.53 proto=udp sport=1000 dport=53 \
                payload=0001",
            "eth.dst=02:00:00:00:00:11 src=192.0.2.5 dst=10.0.0.53 proto=tcp sport=1000 dport=2000 flags=S",
        ]
    );
    let json = one.json();
    assert_eq!((&json["frames"]["received"], &json["frames"]["transmitted"]), (&4.into(), &3.into()));
    assert_eq!((&json["frames"]["dropped"]["miss"], &json["balances"]), (&1.into(), &true.into()));
    assert_eq!((&json["counters"][1]["name"], &json["counters"][1]["packets"]), (&"odd".into(), &2.into()));
    assert_eq!((&json["pipes"][0]["hits"], &json["pipes"][0]["misses"]), (&3.into(), &1.into()));
}

#[test]
fn ports_are_named_or_first_and_last() {
    let folder = prepared();
    let said = weir(
        folder.path(),
        &["replay", "weir.yaml", "p0=in.pcap", "-o", "p1=out.pcap", "-o", "p0=none.pcap"],
    );
    let said = said.good();
    assert!(
        said.out.starts_with("4 received, 3 transmitted, 0 to the kernel, 0 to apps, 1 dropped\n"),
        "{}",
        said.out
    );
    assert!(said.out.contains("miss: No entry of a pipe matched"), "{}", said.out);
    assert_eq!((recorded(&folder.file("out.pcap")).len(), recorded(&folder.file("none.pcap")).len()), (3, 0));
}

#[test]
fn what_is_for_the_kernel_can_be_recorded() {
    let folder = prepared();
    folder.write("kernel.yaml", TWO.replace("miss: drop", "miss: kernel"));
    // Frames to the kernel are counted even where nothing records them.
    let json = weir(folder.path(), &["replay", "kernel.yaml", "in.pcap", "--json"]).good().json();
    assert_eq!(json["frames"]["to_kernel"], 1);
    weir(folder.path(), &["replay", "kernel.yaml", "in.pcap", "-k", "host.pcap"]).good();
    assert_eq!(recorded(&folder.file("host.pcap")).len(), 1);
}

#[test]
fn a_recording_cut_short_names_the_byte_and_keeps_what_came_before() {
    let folder = prepared();
    let whole = std::fs::read(folder.file("in.pcap")).unwrap();
    // Within the third record's data: it follows the header and two records of 43 and 44 bytes.
    let third = 24 + 16 + 43 + 16 + 44;
    folder.write("cut.pcap", &whole[..third + 16 + 5]);
    let said = weir(folder.path(), &["replay", "weir.yaml", "cut.pcap", "-o", "out.pcap"]);
    assert_eq!(said.code, Some(1));
    assert_eq!(said.err.lines().count(), 1, "{}", said.err);
    let place = format!("byte {}", third + 16);
    assert!(said.err.contains(&place) && said.err.contains("ends within a record's data"), "{}", said.err);
    assert!(said.out.starts_with("2 received, 2 transmitted"), "{}", said.out);
    assert_eq!(recorded(&folder.file("out.pcap")).len(), 2);
    let json = weir(folder.path(), &["replay", "weir.yaml", "cut.pcap", "--json"]).json();
    assert!(json["error"].as_str().is_some_and(|error| error.contains(&place)), "{json}");
    assert_eq!((&json["frames"]["received"], &json["balances"]), (&2.into(), &true.into()));
}

#[test]
fn a_garbled_length_names_the_byte_too() {
    let folder = prepared();
    let mut bytes = std::fs::read(folder.file("in.pcap")).unwrap();
    let second = 24 + 16 + 43;
    bytes[second + 8..second + 12].copy_from_slice(&0x7fff_ffff_u32.to_le_bytes());
    folder.write("garbled.pcap", &bytes);
    let said = weir(folder.path(), &["replay", "weir.yaml", "garbled.pcap", "-o", "out.pcap"]);
    assert_eq!(said.code, Some(1));
    assert!(
        said.err.contains(&format!("byte {second}")) && said.err.contains("the file is corrupt here"),
        "{}",
        said.err
    );
    assert_eq!(recorded(&folder.file("out.pcap")).len(), 1);
}

#[test]
fn what_is_no_recording_is_refused_by_name() {
    let folder = prepared();
    folder.write("empty.pcap", b"");
    folder.write("text.pcap", b"hello, world");
    weir(folder.path(), &["replay", "weir.yaml", "empty.pcap"]).refused(1, &["empty.pcap", "empty"]);
    weir(folder.path(), &["replay", "weir.yaml", "text.pcap"]).refused(1, &["text.pcap", "not a recording"]);
    weir(folder.path(), &["replay", "weir.yaml", "none.pcap"]).refused(1, &["none.pcap", "No such file"]);
    weir(folder.path(), &["replay", "weir.yaml", "in.pcap", "-o", "no/such/folder.pcap"])
        .refused(1, &["no/such/folder.pcap", "cannot be written"]);
}
