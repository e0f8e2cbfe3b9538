//! A daemon on real interfaces, and what can happen to those. Needs root.

use super::folder::Folder;
use super::running::Daemon;
use super::wire::Wire;
use serde_json::json;

/// A daemon in the wire's namespace.
fn daemon(wire: &Wire, config: &str) -> Daemon {
    let folder = Folder::new();
    folder.write("weir.yaml", config);
    Daemon::start_in_namespace(folder, &wire.weir)
}

/// Frames to w0 leave through w0 again.
const BACK: &str = "\
ports: { p0: { xdp: w0, queues: [0], take: [{ dst: 10.0.0.1, protocol: udp, dport: 7777 }], root: back } }
pipes: { back: { type: basic, forward: in_port, miss: drop } }
";

/// A frame that a port can never send must not be tried for ever, or all later ones wait behind it.
#[test]
fn a_frame_without_an_ethernet_header_holds_up_nobody() {
    let Some(wire) = Wire::new("short", 1) else { return };
    let daemon = daemon(&wire, BACK);
    let inject = |hex: &str| daemon.ask(&json!({ "command": "inject", "hex": hex, "output": "p0" }));
    let refused = inject("0102030405060708090a0b0c0d")["error"].as_str().unwrap_or_default().to_string();
    assert!(refused.contains("malformed_ethernet"), "{refused}");
    assert_eq!(inject(&"02".repeat(60)), json!({ "done": true }));
    let ledger = daemon.show("ledger");
    assert_eq!((&ledger["transmitted"], &ledger["held"]), (&json!(1), &json!(0)));
    assert_eq!(ledger["dropped"], json!({ "malformed_ethernet": 1 }));
}
