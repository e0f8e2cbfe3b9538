//! Configurations imported from other systems are valid and run.

use super::folder::Folder;
use super::running::Daemon;
use super::weir;
use serde_json::json;

/// Services without back ends, in each system's format.
const EMPTY: [(&str, &str); 6] = [
    ("ipvs", "-A -t 10.0.0.80:80 -s rr\n"),
    ("ipvs", "-A -t 10.0.0.80:80 -s wlc -p 300\n"),
    ("ipvs", "-A -t 10.0.0.80:80 -s sh\n-A -u 10.0.0.80:80 -s mh\n"),
    ("katran", "-A -t 10.0.0.80:80 -vf NO_SPORT\n-A -u 10.0.0.80:443 -vf QUIC_VIP\n"),
    ("katran", "-A -t 10.0.0.80:80\n-a -t 10.0.0.80:80 -r 10.0.1.1\n-d -t 10.0.0.80:80 -r 10.0.1.1\n"),
    (
        "glb",
        r#"{ "tables": [ { "name": "empty", "hash_key": "12345678901234561234567890123456",
            "seed": "34567890123456783456789012345678",
            "binds": [{ "ip": "10.0.0.80", "proto": "tcp", "port": 80 }], "backends": [] } ] }"#,
    ),
];

const SYN: &str = "eth.dst=02:00:00:00:00:fe src=192.0.2.7 dst=10.0.0.80 proto=tcp sport=9 dport=80 flags=S";

#[test]
fn services_without_back_ends_are_imported_checked_and_run_until_they_get_some() {
    for (system, text) in EMPTY {
        let folder = Folder::new();
        folder.write("other", text);
        let imported = weir(folder.path(), &["import", system, "other", "--in", "p0"]);
        assert_eq!(imported.code, Some(0), "{text}: {}", imported.err);
        let config = imported.out.replace("  in: { xdp: p0 }", "  p0: { mem: ~ }");
        folder.write("weir.yaml", config.replace("port: in\n", "port: p0\n"));
        let checked = weir(folder.path(), &["check", "weir.yaml"]);
        assert_eq!(checked.code, Some(0), "{text}: {}", checked.err);
        assert!(checked.err.contains("has no targets"), "{text}: {}", checked.err);
        let daemon = Daemon::start_in(folder);
        daemon.receive(&[SYN]);
        let ledger = daemon.show("ledger");
        assert_eq!(ledger["dropped"], json!({ "no_target": 1 }), "{text}: {ledger}");
        let services = daemon.weir(&["lb", "list", "--json"]).good().json();
        let name =
            services["services"][0]["name"].as_str().unwrap_or_else(|| panic!("{services}")).to_string();
        let back_end = "{ name: b1, mac: 02:00:00:00:00:11, address: 10.0.1.1 }";
        drop(daemon.weir(&["lb", "add", &name, back_end]).good());
        daemon.receive(&[SYN]);
        assert_eq!(daemon.count(&format!("lb/{name}/b1")), 1, "{text}");
        assert_eq!(daemon.show("ledger")["held"], 0);
    }
}
