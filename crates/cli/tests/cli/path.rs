//! The output of `weir check` for `path` apps.

use crate::folder::Folder;
use crate::weir;

const APP: &str = "apps:\n  - path: { name: fabric, uplink: up0, peers: [10.0.2.1] }\n";

#[test]
fn tunnels_peers_and_uplinks_of_every_kind_are_valid() {
    let folder = Folder::new();
    let with = |keys: &str| APP.replace("] }", &format!("], {keys} }}"));
    let tunnels = ["vxlan", "geneve", "geneve, tunnel_port: 6082", "gue, scheme: one_sided"];
    let mut valid: Vec<String> = tunnels.iter().map(|tunnel| with(&format!("tunnel: {tunnel}"))).collect();
    valid.push(with("vxlan_port: 8472"));
    valid.push(with("scheme: one_sided, probe: { interval: 2s }"));
    valid.push(APP.replace("10.0.2.1", "10.0.2.1, \"2001:db8::1\""));
    valid.push(APP.replace("up0", "[up0, up1], local: 10.0.1.1"));
    for text in valid {
        folder.write("weir.yaml", &text);
        let said = weir(folder.path(), &["check", "weir.yaml"]);
        assert_eq!(said.code, Some(0), "{text}: {}", said.err);
    }
}

#[test]
fn a_tunnel_needs_no_port_and_a_bad_one_is_shown() {
    let folder = Folder::new();
    folder.write("weir.yaml", APP);
    let said = weir(folder.path(), &["check", "weir.yaml"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let twice = "\n  - path: { name: other, uplink: up0, peers: [10.0.2.2] }\n";
    for (old, new, words) in [
        ("peers: [10.0.2.1]", "peers: []", "no peers"),
        ("[10.0.2.1]", "[10.0.2.1, 10.0.2.1]", "10.0.2.1 is listed twice"),
        ("[10.0.2.1]", "[\"fe80::1\"]", "cannot be the address of a remote node"),
        ("[10.0.2.1]", "[\"2001:db8::1\"], scheme: doca_ar", "only for IPv4"),
        ("[10.0.2.1]", "[\"2001:db8::1\"], local: 10.0.1.1", "different IP versions"),
        ("[10.0.2.1]", "[224.0.0.1]", "cannot be the address of a remote node"),
        ("uplink: up0, ", "", "`uplink` is missing"),
        ("up0", "a/b", "not a valid interface name"),
        ("up0", "[up0, up1]", "write it as `local`"),
        ("up0", "[up0, up0], local: 10.0.1.1", "`up0` is listed twice"),
        ("up0", "[a, b, c, d, e], local: 10.0.1.1", "name 1 to 4 uplinks"),
        ("up0", "[], local: 10.0.1.1", "name 1 to 4 uplinks"),
        ("up0", "[up0, up1], local: 10.0.1.1, scheme: doca_ar", "is for one uplink"),
        ("up0", "[up0, up1], local: 10.0.1.1, reflect: openflow", "is for one uplink"),
        ("] }", "], scheme: best }", "adaptive"),
        ("] }", "], sources: 50000-50010 }", "at least 32 ports"),
        ("] }", "], sources: many }", "49152-65535"),
        ("] }", "], key: secret }", "openssl rand -hex 16"),
        ("] }", "], probe: { interval: 1us } }", "`interval` is out of range"),
        ("] }", "], rate: 0 }", "`rate`"),
        ("[10.0.2.1]", "[\"2001:db8::1\"], reflect: openflow", "is for IPv4, and 2001:db8::1 is not"),
        ("] }", "], reflect: openflow, vxlan_port: 8472 }", "sends probes to port 4789"),
        ("] }", "], reflect: openflow, tunnel: gue }", "recognises probes of VXLAN, not of GUE"),
        ("] }", "], tunnel: genev }", "geneve"),
        ("] }", "], tunnel: geneve, vxlan_port: 6081 }", "write `tunnel_port`"),
        ("] }", "], tunnel_port: 4789, vxlan_port: 4789 }", "`tunnel_port` already says this"),
        ("] }", "], tunnel: gue, tunnel_port: 65536 }", "`tunnel_port`"),
        ("] }", "], reflect: openflow, dscp: 8 }", "would send data with the DSCP 8 back"),
        ("] }", "], scheme: one_sided, reflect: openflow }", "nothing sends probes back"),
        ("] }", "], reflect: mirror }", "openflow"),
        ("[10.0.2.1]", "[\"2001:db8::1\"], scheme: one_sided", "asks routers over IPv4 only"),
        ("] }", &format!("], scheme: one_sided, key: {} }}", "0".repeat(32)), "signs nothing"),
        ("] }", "], scheme: one_sided, probe: { interval: 10ms } }", "at least 1s"),
        ("] }", "], scheme: one_sided, probe: { answers: 7 } }", "`answers` has no effect"),
        ("] }\n", &format!("] }}{twice}"), "`fabric` already uses the uplink `up0`"),
    ] {
        folder.write("weir.yaml", APP.replace(old, new));
        let said = weir(folder.path(), &["check", "weir.yaml"]);
        assert!(said.code == Some(2) && said.err.contains(words), "{words}: {}", said.err);
        assert!(said.err.contains('^'), "it shows the place: {}", said.err);
    }
}
