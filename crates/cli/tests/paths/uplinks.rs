//! Tunnels other than VXLAN, with devices of the kernel, and uplinks other than a single plain interface.
//! Where the kernel has no modules for these, a test says what it skips; `make test-kernels` runs it.

use crate::bed::{LINKS, PathNetwork, Stream, all_good};
use serde_json::Value;
use weir_bed::cable;

const MAC: &str = "02:00:00:00:00:09";

/// Whether this kernel can create a device, as `ip link add` describes it.
fn has(bed: &PathNetwork, what: &str, device: &str) -> bool {
    let words = |line: &str| -> Vec<String> { line.split(' ').map(str::to_string).collect() };
    let run =
        |line: String| bed.at("a").output("ip", &words(&line).iter().map(String::as_str).collect::<Vec<_>>());
    let has = run(format!("link add trial {device}")).is_ok();
    if has {
        run("link del trial".to_string()).unwrap();
    } else {
        println!("this kernel has no {what}");
    }
    has
}

fn count(shown: &Value, name: &str) -> u64 {
    shown.pointer(&format!("/path/0/counts/{name}")).and_then(Value::as_u64).unwrap_or_default()
}

/// Waits until the paths are found, and sends a flow through the tunnel. None of its packets may be lost, and
/// its frames must be given a path.
fn flows_are_placed(bed: &PathNetwork, port: u16, case: &str) {
    bed.wait_for(&format!("{case}: four good paths"), |bed| bed.paths().filter(|paths| paths.len() == LINKS));
    let mut stream = Stream::open(bed, port);
    // The first packets wait for ARP.
    stream.lost_of(50);
    bed.wait_for(&format!("{case}: no packet is lost"), |_| (stream.lost_of(200) == 0).then_some(()));
    bed.wait_for(&format!("{case}: the flow has a path"), |bed| bed.link_of(port));
    let shown = bed
        .wait_for(case, |bed| bed.ask(&["show", "path"]).filter(|shown| count(shown, "path_steered") >= 200));
    for name in ["path_headers_malformed", "path_headers_unknown"] {
        assert_eq!(count(&shown, name), 0, "{case}: {shown}");
    }
}

#[test]
fn flows_in_geneve_gue_and_fou_devices_are_placed() {
    let Some(mut bed) = PathNetwork::build('g') else { return };
    // Of each case: its name, the keys of weir, a command that opens the port if the device does not, and the
    // device. `A` and `B` are the addresses of its two ends.
    let cases = [
        ("geneve", "tunnel: geneve", "", "type geneve id 7 remote B dstport 6081"),
        (
            "geneve with a checksum",
            "tunnel: geneve\n      tunnel_port: 6085",
            "",
            "type geneve id 7 remote B dstport 6085 udpcsum",
        ),
        (
            "gue",
            "tunnel: gue",
            "fou add port 6080 gue",
            "type ipip local A remote B encap gue encap-sport auto encap-dport 6080",
        ),
        (
            "gue with a checksum",
            "tunnel: gue\n      tunnel_port: 6090",
            "fou add port 6090 gue",
            "type ipip local A remote B encap gue encap-sport auto encap-dport 6090 encap-csum",
        ),
        (
            "fou",
            "tunnel: gue\n      tunnel_port: 5555",
            "fou add port 5555 ipproto 4",
            "type ipip local A remote B encap fou encap-sport auto encap-dport 5555",
        ),
    ];
    for (number, (name, tunnel, listen, device)) in (0..).zip(cases) {
        if !has(&bed, name, &device.replace('A', "10.0.1.1").replace('B', "10.0.2.1")) {
            continue;
        }
        let inner = [format!("192.168.{}.1", 10 + number), format!("192.168.{}.2", 10 + number)];
        for (host, own, peer) in [("a", 1, 2), ("b", 2, 1)] {
            bed.ip(host, listen);
            let device =
                device.replace('A', &format!("10.0.{own}.1")).replace('B', &format!("10.0.{peer}.1"));
            bed.ip(host, &format!("link add tunnel {device}"));
            bed.ip(host, &format!("addr add {}/24 dev tunnel\nlink set tunnel up", inner[own - 1]));
        }
        bed.tunnel_is(tunnel, inner);
        bed.start();
        flows_are_placed(&bed, 7100 + number, name);
        bed.wait_for_doctor("uplink", "ok", "so does an interface that sends G");
        bed.stop();
        ["a", "b"].iter().for_each(|host| {
            bed.ip(host, "link del tunnel");
        });
    }
}

#[test]
fn a_vlan_and_a_bond_are_uplinks() {
    let Some(mut bed) = PathNetwork::build('v') else { return };
    if !has(&bed, "VLAN", "link up0 type vlan id 7") || !has(&bed, "bond", "type bond mode active-backup") {
        return;
    }
    for (host, router, net) in [("a", "r1", 1), ("b", "r2", 2)] {
        for (role, below, last) in [(host, "up0", 1), (router, "host", 254)] {
            bed.ip(
                role,
                &format!(
                    "addr flush dev {below}
                 link add link {below} name {below}.7 type vlan id 7
                 addr add 10.0.{net}.{last}/24 dev {below}.7
                 link set {below}.7 up"
                ),
            );
        }
        bed.ip(host, &format!("route replace default via 10.0.{net}.254"));
    }
    bed.at_hosts = [(); 2].map(|()| "uplink: up0.7".to_string());
    bed.start();
    flows_are_placed(&bed, 7200, "a VLAN");
    bed.wait_for_doctor("uplink", "ok", "it exists");
    bed.stop();

    // Only host a gets a bond; the peer keeps its VLAN. The router's ends of the links are ports of a bridge.
    let ends = [bed.at("a").end("up1").mac(MAC), bed.at("r1").end("host1")];
    cable(None, &ends[0], &ends[1]).unwrap();
    bed.ip(
        "r1",
        "link del host.7
                  link add br0 type bridge
                  link set host master br0
                  link set host1 master br0
                  addr add 10.0.1.254/24 dev br0
                  link set br0 up",
    );
    bed.ip(
        "a",
        "link del up0.7
                 link add bond0 type bond mode active-backup miimon 20
                 link set up0 down
                 link set up1 down
                 link set up0 master bond0
                 link set up1 master bond0
                 addr add 10.0.1.1/24 dev bond0
                 link set bond0 up
                 route replace default via 10.0.1.254",
    );
    bed.at_hosts[0] = "uplink: bond0".to_string();
    bed.start();
    flows_are_placed(&bed, 7201, "a bond");
    bed.wait_for_doctor("uplink", "ok", "it exists");
    // The member that carries the traffic loses its link: the other takes over, and the paths stay.
    bed.ip("r1", "link set host down");
    let mut stream = Stream::open(&bed, 7202);
    bed.wait_for("the other member carries everything", |_| (stream.lost_of(200) == 0).then_some(()));
    bed.wait_for("the paths are good again", |bed| bed.paths().filter(|paths| paths.len() == LINKS));
    bed.wait_for("the new flow has a path", |bed| bed.link_of(7202));
}

/// The uplink of a node, with its paths, if there are four and all are good.
fn over(bed: &PathNetwork, node: usize) -> Option<(String, Vec<Value>)> {
    let shown = bed.ask(&["show", "path"])?;
    let node = shown.pointer(&format!("/path/0/nodes/{node}"))?;
    let good = all_good(node["paths"].as_array()?).filter(|paths| paths.len() == LINKS)?;
    Some((node["uplink"].as_str()?.to_string(), good))
}

/// Whether eight flows leave through an uplink, each from the port of a path that begins there.
fn are_placed(bed: &PathNetwork, node: usize, uplink: &str) -> bool {
    let flows = bed.ask(&["path", "conntrack", "fabric"]);
    let flows = flows.and_then(|list| list["flows"].as_array().cloned()).unwrap_or_default();
    let Some((_, paths)) = over(bed, node) else { return false };
    let is_placed = |flow: &&Value| {
        let path = flow["path"].as_u64().and_then(|path| paths.get(path as usize));
        path.is_some_and(|path| flow["port"] == path["port"])
    };
    let there: Vec<&Value> =
        flows.iter().filter(|flow| flow["uplink"] == uplink && flow["protocol"] == 17).collect();
    there.len() >= 8 && there.iter().all(is_placed)
}

#[test]
fn flows_over_two_uplinks_take_paths_of_the_one_that_the_route_gives_them() {
    let Some(mut bed) = PathNetwork::build('t') else { return };
    let ends = [
        bed.at("a").end("up1").mac(MAC).address("10.0.11.1/24".to_string()),
        bed.at("r1").end("host1").address("10.0.11.254/24".to_string()),
    ];
    cable(None, &ends[0], &ends[1]).unwrap();
    let loose = ["net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.host1.rp_filter=0"];
    bed.set("r1", &loose);
    bed.set("a", &["net.ipv4.fib_multipath_hash_policy=1", "net.ipv4.conf.all.rp_filter=0"]);
    // A VXLAN device caches its route on each processor, so with equal next hops, it would depend on chance
    // which uplink its flows take.
    bed.ip(
        "a",
        "route del default
                 route add default via 10.0.1.254 dev up0 metric 10
                 route add default via 10.0.11.254 dev up1 metric 20",
    );
    bed.at_hosts[0] = "uplink: [up0, up1]\n      local: 10.0.1.1".to_string();
    bed.start();
    for (node, uplink, router) in [(0, "up0", "10.0.1.254"), (1, "up1", "10.0.11.254")] {
        let (name, paths) = bed.wait_for("four good paths over each uplink", |bed| over(bed, node));
        assert!(name == uplink && paths.iter().all(|path| path["hops"][0] == router), "{name} {paths:?}");
    }

    let mut streams: Vec<Stream> = (7301..7309).map(|port| Stream::open(&bed, port)).collect();
    streams[0].lost_of(50);
    for (node, uplink) in [(0, "up0"), (1, "up1")] {
        if node == 1 {
            bed.ip("a", "route add default via 10.0.11.254 dev up1 metric 5");
        }
        bed.wait_for("no packet is lost", |_| {
            (streams.iter_mut().map(|stream| stream.lost_of(30)).sum::<usize>() == 0).then_some(())
        });
        bed.wait_for("the flows have ports of paths over their uplink", |bed| {
            are_placed(bed, node, uplink).then_some(())
        });
    }

    // An uplink that disappears is named, and the other one continues with its paths.
    bed.ip("a", "link del up1");
    bed.wait_for("the lost uplink is named", |bed| {
        let shown = bed.ask(&["show", "path"])?;
        shown.pointer("/path/0/obstacle")?.as_str()?.contains("`up1`").then_some(())
    });
    bed.wait_for("all flows continue", |_| {
        (streams.iter_mut().map(|stream| stream.lost_of(30)).sum::<usize>() == 0).then_some(())
    });
    bed.wait_for("four good paths over the other", |bed| over(bed, 0));
}
