//! The page of `weir measure --html`, in a DOM: its script draws, sorts and filters, formats numbers for
//! people, and never interprets a name as markup.

mod folder;

use folder::Folder;
use serde_json::{Value, json};
use std::fs::File;
use std::path::Path;
use std::process::Command;
use weir_packet::craft::Recipe;
use weir_port::pcap::Writer;

/// Where Debian installs node packages.
const MODULES: &str = "/usr/share/nodejs:/usr/lib/nodejs";

/// A recording's name that would be markup.
const NAME: &str = "<b class=intruder>&amp;.pcap";

/// 2000 packets of 1042 bytes in one flow, 3 of 46 in another, 2 of 854 in a third: the last has more bytes
/// than the second. And two without a flow.
fn record(path: &Path) {
    let large = format!("payload={}", "00".repeat(1000));
    let middle = format!("payload={}", "00".repeat(800));
    let mut recipes = vec![format!("src=10.0.0.1 dst=10.0.0.9 proto=udp sport=9 dport=53 {large}"); 2000];
    recipes
        .extend(vec!["src=10.0.0.2 dst=10.0.0.9 proto=udp sport=5 dport=53 payload=00000000".to_string(); 3]);
    recipes.extend(vec![format!("src=10.0.0.3 dst=10.0.0.9 proto=tcp sport=7 dport=80 {middle}"); 2]);
    recipes.extend(vec!["arp=request sender_ip=10.0.0.1 target_ip=10.0.0.2".to_string(); 2]);
    let mut writer = Writer::new(File::create(path).unwrap()).unwrap();
    for (at, recipe) in recipes.iter().enumerate() {
        let bytes = recipe.parse::<Recipe>().unwrap_or_else(|error| panic!("{error}")).build();
        writer.write(at as u64 * 1_000_000, bytes.len() as u32, &bytes).unwrap();
    }
    writer.flush().unwrap();
}

/// Opens a page and returns what `page.js` saw; `None`, and a line with the reason, without a DOM.
fn seen(page: &Path) -> Option<Value> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/page.js");
    let has_dom = |mut node: Command| {
        let checked = node.env("NODE_PATH", MODULES).args(["-e", "require('jsdom')"]).output();
        checked.is_ok_and(|output| output.status.success())
    };
    if !has_dom(Command::new("node")) {
        assert!(std::env::var_os("CI").is_none(), "CI has node and jsdom");
        eprintln!("skipped: there is no node with jsdom (Debian: node-jsdom)");
        return None;
    }
    let output = Command::new("node").env("NODE_PATH", MODULES).arg(script).arg(page).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(serde_json::from_slice(&output.stdout).expect("a JSON object"))
}

#[test]
fn the_page_draws_sorts_filters_and_takes_no_name_for_markup() {
    let folder = Folder::new();
    record(&folder.file(NAME));
    let mut weir = Command::new(env!("CARGO_BIN_EXE_weir"));
    weir.current_dir(folder.path()).args(["measure", NAME, "--interval", "1s", "--html", "page.html"]);
    assert!(weir.output().unwrap().status.success());
    let page = std::fs::read_to_string(folder.file("page.html")).unwrap();
    // No packet has such a key or reason, so they are put into the page's data.
    let image = "\\u003cimg src=x>";
    let page = page.replace("tcp 10.0.0.3:7", &format!("{image} tcp 10.0.0.3:7"));
    let page = page.replace("\"reason\":\"arp\"", &format!("\"reason\":\"{image}\""));
    let Some(seen) = seen(&folder.write("page.html", page)) else { return };

    assert_eq!(seen["errors"], json!([]));
    assert_eq!(
        (&seen["title"], &seen["heading"], &seen["intruders"]),
        (&json!(NAME), &json!(NAME), &json!(0))
    );
    assert_eq!(seen["notes"], json!(["2 packets in no flow: <img src=x>"]));
    let tiles: Vec<&str> =
        seen["tiles"].as_array().unwrap().iter().map(|tile| tile.as_str().unwrap()).collect();
    assert_eq!(tiles[..2], ["packets2,0071.00 kpackets/s", "bytes2.09 MB8.32 Mbit/s"]);
    assert_eq!(tiles[2], "time2.006 s1970-01-01 00:00:00 UTC");
    assert_eq!(tiles[3], "flows3exact");
    let plots = ["Packets over time", "Bits over time", "Rank and size", "Flows by packets"];
    assert_eq!(seen["plots"].as_array().unwrap()[..4], plots.map(Value::from));
    let is_drawn =
        |path: &Value| path.as_str().is_some_and(|d| !d.contains("NaN") && !d.contains("Infinity"));
    assert!(seen["paths"].as_array().unwrap().iter().all(is_drawn), "{}", seen["paths"]);
    assert_eq!(seen["intervals"], 3);

    let [heavy, light, image] = [
        "udp 10.0.0.1:9 > 10.0.0.9:53",
        "udp 10.0.0.2:5 > 10.0.0.9:53",
        "<img src=x> tcp 10.0.0.3:7 > 10.0.0.9:80",
    ];
    assert_eq!(seen["columns"], json!(["flow", "packets", "error", "share", "bytes", "bytes a packet"]));
    assert_eq!(seen["first"], json!([heavy, "2,000", "none", "99.65 %", "2,084,000", "1,042"]));
    assert_eq!(seen["by_packets"], json!([heavy, light, image]));
    assert_eq!(seen["by_packets_again"], json!([image, light, heavy]), "pressed again, the other way round");
    assert_eq!(seen["by_flow"], json!([image, heavy, light]));
    assert_eq!((&seen["by_bytes"], &seen["sorted"]), (&json!([heavy, image, light]), &json!("bytes")));
    let known = "of the 3 heaviest flows. Every flow is known.";
    assert_eq!(seen["udp"], json!({ "keys": [light], "about": format!("1 {known}") }));
    assert_eq!(seen["nothing"], json!({ "keys": [], "about": format!("0 {known}") }));
    assert_eq!(seen["all"]["keys"], json!([heavy, image, light]));
}
