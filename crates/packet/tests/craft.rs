//! `craft`: text to bytes to text and back, and the errors of texts that are not recipes.

mod recipes;

use proptest::prelude::*;
use weir_packet::craft::{Recipe, WordError, describe, describe_short, frame};

fn recipe(text: &str) -> Recipe {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn what_is_printed_builds_the_same_bytes(text in recipes::any_recipe()) {
        let bytes = recipe(&text).build();
        let printed = describe(&bytes);
        prop_assert_eq!(&recipe(&printed).build(), &bytes, "{} printed as {}", text, printed);
        prop_assert!(printed.starts_with("hex=") <= text.starts_with("hex="), "{} printed as {}", text,
            printed);
        prop_assert_eq!(recipe(&printed), Recipe::of(&bytes));
        prop_assert_eq!(recipe(&recipe(&text).to_string()).build(), bytes);
    }

    #[test]
    fn any_bytes_print_and_build(text in recipes::any_recipe(),
        changes in prop::collection::vec((any::<u16>(), any::<u8>()), 0..4), cut in 0..200usize) {
        let mut bytes = recipe(&text).build();
        for (at, value) in changes {
            let length = bytes.len().max(1);
            if let Some(byte) = bytes.get_mut(usize::from(at) % length) {
                *byte = value;
            }
        }
        bytes.truncate(bytes.len().saturating_sub(cut / 4));
        prop_assert_eq!(frame(&describe(&bytes)), bytes.clone());
        prop_assert!(describe_short(&bytes).len() < 2000);
    }

    #[test]
    fn any_text_is_a_recipe_or_an_error(text in "[a-z0-9_.:=(), +x]{0,60}") {
        if let Err(error) = text.parse::<Recipe>() {
            prop_assert!(!error.to_string().is_empty());
            prop_assert_eq!(&text[error.at..error.at + error.word.len()], error.word);
        }
    }
}

#[test]
fn bytes_are_as_the_standards_say() {
    // The example of RFC 1071 arithmetic on Wikipedia's IPv4 page: checksum 0xb861.
    let ipv4 = frame("src=192.168.0.1 dst=192.168.0.199 df=1 proto=17 len=129");
    assert_eq!(
        ipv4[14..34],
        [0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7]
    );
    let tunnel = frame(
        "vlan=100.5 second_vlan=7 src=10.0.0.1 dst=10.0.0.2 sport=50000 vni=0x123456 inner(type=0x88cc)",
    );
    assert_eq!(tunnel[12..20], [0x88, 0xa8, 0xa0, 100, 0x81, 0, 0, 7]);
    assert_eq!(tunnel[42..58], [0xc3, 0x50, 0x12, 0xb5, 0, 30, 0, 0, 8, 0, 0, 0, 0x12, 0x34, 0x56, 0]);
    let fragment = frame("src=fd00::1 dst=fd00::2 ext=hbh frag=1480+ id=0xabcdef01 payload=0102");
    assert_eq!(fragment[18..22], [0, 18, 0, 64]);
    assert_eq!(fragment[54..72], [44, 0, 1, 4, 0, 0, 0, 0, 17, 0, 0x05, 0xc9, 0xab, 0xcd, 0xef, 1, 1, 2]);
}

#[test]
fn text_is_as_a_person_writes_it() {
    for text in [
        "src=10.0.0.1 dst=10.0.0.2 proto=udp sport=1000 dport=2000",
        "eth.dst=ff:ff:ff:ff:ff:ff arp=request sender_ip=10.0.0.1 target_ip=10.0.0.2 len=60",
        "vlan=100.5 second_vlan=7 src=fd00::1 dst=fd00::2 ttl=1 flow_label=9 ext=hbh,dst proto=tcp sport=1 \
            dport=2 flags=SA",
        "src=10.0.0.1 dst=10.0.0.2 ip_csum=bad proto=icmp icmp_type=8 icmp_code=0 icmp_rest=0x00010002 \
            csum=bad payload=6869",
        "src=10.0.0.1 dst=10.0.0.2 frag=8+ id=7 proto=17 payload=01",
        "src=10.0.0.1 dst=10.0.0.2 proto=udp sport=9 dport=4789 vni=5 inner(src=fd00::1 dst=fd00::2 \
            proto=udp sport=1 dport=2)",
        "src=10.0.0.1 dst=10.0.0.2 proto=udp sport=9 dport=6081 tunnel=geneve vni=5 inside=ip \
            inner(src=10.1.0.1 dst=10.1.0.2 proto=tcp sport=1 dport=2 flags=S len=60)",
        "src=10.0.0.1 dst=10.0.0.2 tunnel=gre key=7 inner(src=10.1.0.1 dst=10.1.0.2 proto=udp sport=1 \
            dport=2)",
        "src=fd00::1 dst=fd00::2 tunnel=gre header=8000655800000000 inside=ethernet inner(arp=request \
            sender_ip=10.0.0.1 target_ip=10.0.0.2)",
        "src=fd00::1 dst=fd00::2 tunnel=ipip inner(src=10.1.0.1 dst=10.1.0.2 proto=udp sport=1 dport=2)",
        "src=10.0.0.1 dst=10.0.0.2 proto=udp sport=9 dport=6080 tunnel=gue inner(src=fd00::1 dst=fd00::2 \
            proto=udp sport=1 dport=2)",
        "vlan=5 second_vlan=6@0x88a8 src=10.0.0.1 dst=10.0.0.2 proto=udp sport=1 dport=2",
        "vlan=100.3.dei@0x88a8 arp=request sender_ip=10.0.0.1 target_ip=10.0.0.2",
        "vlan=1@0x8100 second_vlan=2.0.dei src=10.0.0.1 dst=10.0.0.2 proto=udp sport=1 dport=2",
        "src=10.0.0.1 dst=10.0.0.2 ip_options=94040000 proto=udp sport=1 dport=2",
        "src=10.0.0.1 dst=10.0.0.2 options=2 proto=udp sport=1 dport=2",
        "src=fd00::1 dst=fd00::2 ext=hbh:050200000100,routing:020100000000fd000000000000000000000000000009 \
            proto=udp sport=1 dport=2",
        "src=fd00::1 dst=fd00::2 ext=ah:000000000001000000020102030405060708090a0b0c proto=17",
        "src=fd00::1 dst=fd00::2 ext=dst,ah frag=8+ id=9 proto=17 payload=01",
        "type=0x88cc payload=0102 trailer=00",
        "hex=0102",
        "hex=",
    ] {
        let text = text.replace(" trailer=00", ""); // what follows an unknown EtherType is payload
        assert_eq!(describe(&frame(&text)), text);
    }
    assert_eq!(recipe(""), Recipe::default());
    assert_eq!(frame("len=64").len(), 64);
    let long = frame(&format!("payload={}", "ab".repeat(100)));
    assert!(describe_short(&long).ends_with(&format!("payload={}...(84_more)", "ab".repeat(16))));
}

#[test]
fn errors_say_where_and_what_to_do() {
    let problem = |text: &str| text.parse::<Recipe>().map_err(|error| (error.at, error.problem));
    assert_eq!(problem("src=10.0.0.1 dst=fd00::1"), Err((13, WordError::Families)));
    assert_eq!(problem("proto=tcp sport"), Err((10, WordError::NotKeyValue)));
    assert_eq!(problem("colour=red"), Err((0, WordError::UnknownKey)));
    assert_eq!(problem("ttl=1 ttl=2"), Err((6, WordError::Twice)));
    assert_eq!(problem("vni=1 inner(proto=tcp"), Err((6, WordError::Parenthesis)));
    assert_eq!(problem("vni=1 inner(proto=tcp))"), Err((12, WordError::Parenthesis)));
    assert_eq!(problem("len=20"), Err((0, WordError::TooShort(42))));
    assert_eq!(problem(&format!("payload={}", "00".repeat(65500))), Err((0, WordError::TooLong(65542))));
    assert_eq!(problem(&format!("{}{}", "inner(".repeat(5), ")".repeat(5))), Err((30, WordError::TooDeep)));
    for (text, at) in [
        ("proto=udp flags=S", 10),
        ("src=10.0.0.1 flow_label=1", 13),
        ("src=fd00::1 options=1", 12),
        ("src=fd00::1 id=1", 12),
        ("src=fd00::1 proto=icmp", 12),
        ("frag=8 sport=1", 7),
        ("second_vlan=1", 0),
        ("type=0x88cc src=10.0.0.1", 12),
        ("hex=00 len=5", 7),
        ("tunnel=gre proto=udp", 11),
        ("tunnel=ipip key=5 inner()", 12),
        ("tunnel=gue inner(vlan=1)", 17),
        ("tunnel=gre inner(arp=request)", 17),
        ("vni=1 inner(proto=udp vlan=1 ttl=1 seq=3)", 35),
    ] {
        let found = problem(text);
        assert!(matches!(found, Err((place, WordError::OutOfPlace(_))) if place == at), "{text}: {found:?}");
    }
    for text in [
        "ttl=256",
        "src=10.0.0",
        "frag=7",
        "vlan=4096",
        "vlan=1.8",
        "vlan=1@0x9100",
        "ip_options=010101",
        "payload=0",
        "proto=+1",
        "options=11",
    ] {
        let found = problem(text);
        assert!(matches!(found, Err((0, WordError::Expected(_)))), "{text}: {found:?}");
    }
    assert_eq!(problem("proto=tcp flags=SX").map_err(|error| error.0), Err(10));
    for text in ["ext=esp", "ext=hbh:00", "ext=dst:0102030405", "ext=ah:00", "ext=hbh:01040000000001"] {
        assert_eq!(problem(&format!("src=fd00::1 {text}")).map_err(|error| error.0), Err(12), "{text}");
    }
    assert_eq!(problem("options=1 ip_options=01010101").map_err(|error| error.0), Err(10));
    let sentence = "src=10.0.0.1 ttl=300".parse::<Recipe>().unwrap_err().to_string();
    assert_eq!(sentence, "`ttl=300` at column 14: the value must be a number, at most 255");
}

#[test]
fn checksums_are_good_bad_or_as_said() {
    let sum = |text: &str| {
        let bytes = frame(text);
        u16::from_be_bytes([bytes[40], bytes[41]])
    };
    let good = sum("payload=010203");
    assert_ne!(good, sum("payload=010203 csum=bad"));
    assert_eq!(sum("csum=0x1234"), 0x1234);
    assert_eq!(sum("udp_csum=0"), 0);
    assert_eq!(sum("vni=1"), 0);
    assert_ne!(sum("vni=1 udp_csum=full"), 0);
}
