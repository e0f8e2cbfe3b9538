//! The output of `weir check` for `overlay` apps.

use crate::folder::Folder;
use crate::weir;

const APP: &str = "apps:\n  - overlay: { name: pods, tunnel: vx0, uplink: up0, bridge: cni0 }\n";

#[test]
fn an_overlay_needs_no_port_and_a_bad_one_is_shown() {
    let folder = Folder::new();
    folder.write("weir.yaml", APP);
    let said = weir(folder.path(), &["check", "weir.yaml"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let twice = "\n  - overlay: { name: other, tunnel: vx1, uplink: up1, bridge: cni1 }\n";
    for (old, new, words) in [
        ("tunnel: vx0, ", "", "`tunnel` is missing"),
        ("uplink: up0, ", "", "`uplink` is missing"),
        ("bridge: cni0", "bridge: \"a b\"", "not a valid interface name"),
        (", bridge: cni0", "", "`bridge` or `pods`"),
        ("bridge: cni0", "bridge: cni0, pods: cali*", "`bridge` or `pods`"),
        ("bridge: cni0", "pods: cali", "`cali*`"),
        ("cni0 }", "cni0, mark: 0xf }", "at least 6 contiguous bits"),
        ("cni0 }", "cni0, mark: 0xff00ff }", "at least 6 contiguous bits"),
        ("cni0 }", "cni0, refresh: 30s }", "`refresh` is out of range"),
        ("cni0 }", "cni0, refresh: soon }", "`refresh`"),
        ("cni0 }", "cni0, idle_timeout: 10ms }", "`idle_timeout` is out of range"),
        ("cni0 }", "cni0, mode: oncache }", "`mode: oncache` is for comparisons"),
        ("cni0 }", "cni0, mode: other }", "`mode` cannot be `other`"),
        ("cni0 }", "cni0 }\n  - measure: { name: m, overlay: others }", "there is no overlay app `others`"),
        (
            "cni0 }",
            "cni0 }\n  - measure: { name: m, overlay: pods, key: inner }",
            "`key` is not for a measured",
        ),
        ("cni0 }", "cni0, policy: lax }", "strict"),
        ("cni0 }", "cni0, flows: 1 }", "`flows`"),
        ("cni0 }\n", &format!("cni0 }}{twice}"), "`pods` already exists"),
    ] {
        assert!(APP.contains(old), "{old}");
        folder.write("weir.yaml", APP.replace(old, new));
        let said = weir(folder.path(), &["check", "weir.yaml"]);
        assert!(said.code == Some(2) && said.err.contains(words), "{words}: {}", said.err);
        assert!(said.err.contains('^'), "it shows the place: {}", said.err);
        assert_eq!(said.err.matches("error:").count(), 1, "nothing follows from it: {}", said.err);
    }
}
