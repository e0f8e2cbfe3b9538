//! Every thread of every mode has dropped the capabilities that it does not need, including those of its
//! bounding set. Needs root; skipped without, except in CI.

mod spaces;

use spaces::Spaces;

/// CAP_DAC_READ_SEARCH, CAP_NET_ADMIN, CAP_NET_RAW, CAP_IPC_LOCK, CAP_PERFMON and CAP_BPF.
const DAEMON: u64 = 1 << 2 | 1 << 12 | 1 << 13 | 1 << 14 | 1 << 38 | 1 << 39;

/// CAP_NET_ADMIN and CAP_BPF.
const DECAP: u64 = 1 << 12 | 1 << 39;

/// Threads that need nothing.
const NEEDY_OF_NOTHING: [&str; 2] = ["weir-log", "weir-collector"];

/// Asserts that each thread of a process has at most these capabilities. Returns the threads' names.
fn assert_least(pid: u32, most: u64) -> Vec<String> {
    let mut names = Vec::new();
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten() {
        // A thread may end meanwhile.
        let Ok(status) = std::fs::read_to_string(thread.path().join("status")) else { continue };
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
        let name = field("Name:");
        let most = if NEEDY_OF_NOTHING.contains(&name) { 0 } else { most };
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
            let has = u64::from_str_radix(field(set), 16).unwrap();
            assert_eq!(has & !most, 0, "{name}: {set} {has:x}, expected at most {most:x}");
        }
        assert_eq!(field("NoNewPrivs:"), "1", "{name}");
        names.push(name.to_string());
    }
    names
}

fn bed(name: &str) -> Option<Spaces> {
    let bed = Spaces::build(name, &["h"])?;
    bed.ip(
        "h",
        "link add eth0 type veth peer name far\nlink set eth0 up\nlink set far up\n\
         addr add 10.0.1.1/24 dev eth0\nroute add default via 10.0.1.254\n\
         link add vx0 type vxlan id 42 dstport 4789 local 10.0.1.1 remote 10.0.2.1 noudpcsum\n\
         link set vx0 up\nlink add cni0 type bridge\nlink set cni0 up\naddr add 10.244.1.1/24 dev cni0",
    );
    Some(bed)
}

/// Starts a daemon with a configuration, and examines its threads.
fn look(name: &str, text: &str) -> Option<(Spaces, Vec<String>)> {
    let mut bed = bed(name)?;
    bed.weir("h", text);
    let names = assert_least(bed.process(0), DAEMON);
    assert!(NEEDY_OF_NOTHING.iter().all(|name| names.iter().any(|has| has == name)), "{names:?}");
    Some((bed, names))
}

#[test]
fn a_daemon_and_its_successor_keep_the_least() {
    const PORT: &str = "\
ports: { p0: { xdp: eth0, queues: [0], take: [{ dst: 10.0.1.9, protocol: udp, dport: 7 }], root: all } }
pipes: { all: { type: basic, match: { udp.dport: 7 }, forward: p0, miss: drop, entries: [{}] } }
";
    let Some((mut bed, names)) = look("pr", PORT) else { return };
    assert!(names.iter().any(|name| name == "weir-worker-0"), "{names:?}");
    bed.take_over("h");
    let names = assert_least(bed.process(1), DAEMON);
    assert!(names.iter().any(|name| name == "weir-worker-0"), "{names:?}");
}

#[test]
fn the_path_app_keeps_the_least() {
    let app = "apps:\n  - path: { name: fabric, uplink: eth0, peers: [10.0.2.1] }\n";
    let Some((_bed, names)) = look("pp", app) else { return };
    assert!(names.len() > NEEDY_OF_NOTHING.len() + 1, "{names:?}");
}

#[test]
fn the_overlay_app_keeps_the_least() {
    let app = "apps:\n  - overlay: { name: pods, tunnel: vx0, uplink: eth0, bridge: cni0 }\n";
    let Some((_bed, names)) = look("po", app) else { return };
    assert!(names.len() > NEEDY_OF_NOTHING.len() + 1, "{names:?}");
}

#[test]
fn decap_keeps_the_least() {
    let Some(mut bed) = bed("pd") else { return };
    bed.decap("h", &["--from", "10.0.2.0/24", "--to", "10.0.1.1"]);
    assert_least(bed.process(0), DECAP);
    assert_eq!(bed.end().len(), 1, "it still reads its counters");
}
