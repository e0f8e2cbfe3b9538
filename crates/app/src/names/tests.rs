use super::*;
use proptest::prelude::*;
use serde_json::json;

fn set(names: serde_json::Value) -> Result<NameTable, String> {
    read_set(&json!({ "names": names }))
}

fn found(names: &AddressNames, address: &str) -> Option<String> {
    names.find(address.parse().unwrap()).map(ToString::to_string)
}

#[test]
fn the_longest_prefix_names_an_address_and_the_file_wins_among_equal_ones() {
    let file = "names:\n- { address: 10.0.0.0/8, name: cluster }\n- { address: 10.0.0.7, name: mine }\n\
                - { address: 2001:db8::/32, name: six, kind: node }\n";
    let board = NamesBoard::default();
    board.set_file(read_file("names.yaml", file.to_string()).unwrap());
    let api = set(json!([
        { "address": "10.0.0.7", "name": "web-1", "namespace": "shop", "kind": "pod", "node": "n1" },
        { "address": "10.0.0.8", "name": "web-2", "namespace": "shop", "kind": "pod", "node": null },
        { "address": "0.0.0.0/0", "name": "anything" },
        { "address": "::ffff:192.0.2.1", "name": "mapped" },
    ]));
    assert_eq!(board.set_api(api.unwrap(), |_| true), Ok(true));
    let names = board.names();
    for (address, name) in [
        ("10.0.0.7", Some("mine")),
        ("10.0.0.8", Some("shop/web-2")),
        ("10.9.9.9", Some("cluster")),
        ("192.0.2.1", Some("mapped")),
        ("192.0.2.2", Some("anything")),
        ("2001:db8::1", Some("six")),
        ("2001:db9::1", None),
    ] {
        assert_eq!(found(&names, address).as_deref(), name, "{address}");
    }
    let node = names.find("2001:db8::5".parse().unwrap()).unwrap();
    assert_eq!((node.kind, node.node.as_deref()), (NameKind::Node, Some("six")));
    board.forget_file();
    assert_eq!(found(&board.names(), "10.0.0.7").as_deref(), Some("shop/web-1"));
}

#[test]
fn a_tag_depends_on_names_and_not_on_their_order_and_guards_them() {
    let [one, two] = ["10.0.0.1", "10.0.0.2"].map(|address| json!({ "address": address, "name": "a" }));
    let table = set(json!([one, two])).unwrap();
    assert_eq!(table.tag(), set(json!([two, one])).unwrap().tag());
    assert_ne!(table.tag(), set(json!([one])).unwrap().tag());
    // A client can set the listed names again, and they stay the same.
    assert_eq!(set(json!(table.all())).unwrap().tag(), table.tag());
    let (board, tag) = (NamesBoard::default(), table.tag());
    let none = board.state().etag;
    board.set_api(table.clone(), |tag| tag == none).unwrap();
    assert_eq!(board.set_api(NameTable::default(), |tag| tag == none), Err(StaleNames(tag)));
    assert_eq!((board.set_api(table, |_| true), board.state().of_api), (Ok(false), 2));
}

#[test]
fn wrong_names_are_refused_with_their_place() {
    let long = "n".repeat(254);
    for (names, words) in [
        (json!([{ "address": "10.0.0.1", "name": "a\u{1b}[2J" }]), "/names/0/name: this name has a control"),
        (json!([{ "address": "10.0.0.1", "name": "a\u{202e}b" }]), "/names/0/name: this name has a control"),
        (json!([{ "address": "10.0.0.1", "name": long }]), "/names/0/name: this name has 254 bytes"),
        (json!([{ "address": "10.0.0.1", "name": "" }]), "/names/0/name: a name cannot be empty"),
        (json!([{ "address": "10.0.0.1" }]), "/names/0/name: it is missing"),
        (json!([{ "address": "10.0.0.1", "name": 7 }]), "/names/0/name: this is not a string"),
        (json!([{ "address": "10.0.0.1", "name": "a", "zone": "b" }]), "/names/0/zone: there is no such"),
        (json!([{ "address": "10.0.0.1", "name": "a", "kind": "job" }]), "/names/0/kind: `job` is not a"),
        (json!([{ "address": "10.0.0", "name": "a" }]), "/names/0/address: `10.0.0` is not an address"),
        (json!([{ "address": "10.0.0.1/33", "name": "a" }]), "/names/0/address: `10.0.0.1/33` is not an"),
        (json!([{ "address": "10.0.0.1/8", "name": "a" }]), "bits after its prefix: write 10.0.0.0/8"),
        (
            json!([{ "address": "10.0.0.1", "name": "a" }, { "address": "10.0.0.1", "name": "b" }]),
            "/names/1/address: 10.0.0.1 has a name already, `a` (at /names/0)",
        ),
        (json!([7]), "/names/0: this is not an object"),
        (json!(7), "the body is not an object"),
    ] {
        let why = set(names).unwrap_err();
        assert!(why.contains(words), "{why}, not {words}");
    }
    let many: Vec<_> = (0..=NAMES_MAX as u32)
        .map(|n| json!({ "address": std::net::Ipv4Addr::from(n).to_string(), "name": "a" }))
        .collect();
    assert!(set(json!(many)).unwrap_err().contains("there are more than 262144 names"));
}

#[test]
fn errors_in_a_file_have_a_caret() {
    let text =
        "names:\n- { address: 10.0.0.1, name: a }\n- { address: 10.0.0.1, name: b }\n- { adress: x }\n";
    let why = read_file("names.yaml", text.to_string()).unwrap_err();
    assert!(why.contains("names.yaml:3:14: error: 10.0.0.1 has a name already, `a`"), "{why}");
    assert!(why.contains("^^^^^^^^ remove this one, or that of line 2"), "{why}");
    assert!(why.contains("there is no key `adress` here") && why.contains("`address`"), "{why}");
    let json = "{\"names\": [{\"address\": \"10.0.0.1\", \"name\": \"a\"}]}";
    assert_eq!(read_file("names.json", json.to_string()).map(|table| table.len()), Ok(1));
    assert!(read_file("names.yaml", "names: [\n".to_string()).is_err());
    assert!(read_file("names.yaml", "- a\n".to_string()).unwrap_err().contains("expected a mapping"));
}

proptest! {
    /// The table finds the same names as a linear search through all prefixes.
    #[test]
    fn a_table_finds_the_longest_prefix(
        all in prop::collection::btree_map((any::<u32>(), 0u8..=32), any::<u8>(), 0..40),
        addresses in prop::collection::vec(any::<u32>(), 1..40),
    ) {
        let mask = |length: u8| u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
        let keep = |address: u32, length: u8| address & mask(length);
        let mut kept = std::collections::BTreeMap::new();
        for ((address, length), name) in &all {
            kept.insert((keep(*address, *length), *length), name.to_string());
        }
        let entries: Vec<_> = kept.iter().map(|((address, length), name)| {
            json!({ "address": format!("{}/{length}", std::net::Ipv4Addr::from(*address)), "name": name })
        }).collect();
        let table = set(json!(entries)).unwrap();
        for address in addresses.iter().copied().chain(kept.keys().map(|(address, _)| address ^ 1)) {
            let naive = kept.iter().filter(|((prefix, length), _)| keep(address, *length) == *prefix);
            let naive = naive.max_by_key(|((_, length), _)| *length);
            let found = table.find(std::net::Ipv4Addr::from(address).into());
            prop_assert_eq!(
                found.map(|(length, name)| (length, name.name.to_string())),
                naive.map(|((_, length), name)| (*length, name.clone()))
            );
        }
    }
}
