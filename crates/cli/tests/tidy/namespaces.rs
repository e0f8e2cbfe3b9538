//! /sys/class/net shows the network namespace in which /sys was mounted, not that of the process: interfaces
//! are read by netlink.

use crate::Offence;
use crate::source::files;

/// What only /sys says.
const ONLY_THERE: &str = "numa_node";

/// Returns the lines that read facts about an interface from /sys that netlink provides as well.
pub fn read_from_sys() -> Vec<Offence> {
    // Labs and benches, in rigs/, enter namespaces with a /sys of their own.
    let is_ours = |path: &str| path.starts_with("crates/") && path.contains("/src/");
    let mut offences = Vec::new();
    for file in files(&["rs"]).into_iter().filter(|file| is_ours(&file.path)) {
        for (at, line) in file.text.lines().enumerate() {
            if is_read(line) {
                let advice = "/sys shows another network namespace after `setns`: ask weir_netlink::links";
                let (path, advice) = (file.path.clone(), advice.to_string());
                offences.push(Offence { path, line: at + 1, advice });
            }
        }
    }
    offences
}

fn is_read(line: &str) -> bool {
    let line = line.trim_start();
    line.contains("/sys/class/net") && !line.contains(ONLY_THERE) && !line.starts_with("//")
}

#[test]
fn comments_and_what_netlink_does_not_say_are_no_offence() {
    assert!(is_read("  let interfaces = Path::new(\"/sys/class/net\");"));
    assert!(is_read("format!(\"/sys/class/net/{name}/address\")"));
    assert!(!is_read("    // /sys/class/net would not do"));
    assert!(!is_read("format!(\"/sys/class/net/{name}/device/numa_node\")"));
}
