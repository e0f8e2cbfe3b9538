//! The web page of a node with real interfaces, in Chromium: health checks, frames that the kernel handles,
//! paths and an overlay to another node, and what is measured there. Needs root.

use super::browser::Browser;
use super::folder::Folder;
use super::lb_control::{http, with_token};
use super::running::Daemon;
use super::web::{VIEW, no_errors, url, view_token};
use super::wire::{Wire, sh};
use serde_json::json;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::mpsc::{self, TryRecvError};
use std::time::{Duration, Instant};
use weir_bed::Namespace;

/// A load balancer in the kernel, paths and an overlay: what needs real interfaces and another node.
const WIRED: &str = "\
ports: { p0: { xdp: w0, kernel: require } }
apps:
  - path: { name: fabric, uplink: w1, peers: [10.0.1.2] }
  - overlay: { name: pods, tunnel: vx0, uplink: w2, bridge: cni0 }
  - measure: { name: inner, overlay: pods, interval: 500ms }
  - lb:
      name: dns
      port: p0
      stateless: true
      service: { vip: 10.0.0.53, protocol: udp, port: 53 }
      size: 251
      check: { type: tcp, port: 81 }
      back_ends:
        - { name: b1, mac: 02:00:00:00:10:00, address: 10.0.0.2 }
        - { name: b2, mac: 02:00:00:00:10:00, address: 10.0.0.2, check: { port: 82 } }
";

/// The other node's paths.
const OTHER: &str = "\
ports: { p0: { pcap: {} } }
apps: [path: { name: fabric, uplink: f1, peers: [10.0.1.1] }]
";

/// Lays a tunnel over the second pair for paths, and one over the third pair to a pod, for the overlay.
fn lay_tunnels(wire: &Wire) {
    for (node, uplink, own, other) in [(&wire.weir, "w", 1, 2), (&wire.far, "f", 2, 1)] {
        let lines = format!(
            "link add vx1 address 02:00:00:00:01:a{own} type vxlan id 7 local 10.0.1.{own} remote \
             10.0.1.{other} dstport 4789 dev {uplink}1
             addr add 10.9.0.{own}/24 dev vx1
             link set vx1 up
             link add vx0 address 02:00:00:00:02:a{own} mtu 1450 type vxlan id 42 local 10.0.2.{own} dstport \
             4790 dev {uplink}2 nolearning noudpcsum
             addr add 10.244.{own}.0/32 dev vx0
             link set vx0 up
             route add 10.244.{other}.0/24 via 10.244.{other}.0 dev vx0 onlink
             neigh add 10.244.{other}.0 lladdr 02:00:00:00:02:a{other} dev vx0 nud permanent
             link add cni0 type bridge
             addr add 10.244.{own}.1/24 dev cni0
             link set cni0 up"
        );
        lines.lines().for_each(|line| drop(sh(&format!("ip -n {node} {}", line.trim()))));
        sh(&format!("bridge -n {node} fdb add 02:00:00:00:02:a{other} dev vx0 dst 10.0.2.{other}"));
    }
    wire.ip(&format!("link add pod type veth peer name eth0 netns {}", wire.third));
    wire.ip("link set pod master cni0 up");
    for line in ["addr add 10.244.1.5/24 dev eth0", "link set eth0 up", "route add default via 10.244.1.1"] {
        sh(&format!("ip -n {} {line}", wire.third));
    }
    let values = "net.ipv4.ip_forward=1 net.netfilter.nf_conntrack_tcp_be_liberal=1";
    sh(&format!("ip netns exec {} sysctl -qw {values}", wire.weir));
    sh(&format!("ip -n {} neigh replace 10.0.0.53 lladdr 02:00:00:00:00:00 dev f0 nud permanent", wire.far));
}

/// Sends packets through the load balancer and both tunnels, and answers those of the tunnels and checks of
/// b1, until the sender is dropped.
fn keep_sending(wire: &Wire) -> mpsc::Sender<()> {
    let socket = |netns: &str, address: &str| {
        let socket = Namespace::existing(netns).within(|| UdpSocket::bind(address)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
        socket
    };
    let servers = ["10.244.2.1:7000", "10.9.0.2:7000"].map(|address| socket(&wire.far, address));
    let pod = (socket(&wire.third, "0.0.0.0:7001"), "10.244.2.1:7000");
    let node = (socket(&wire.weir, "0.0.0.0:7001"), "10.9.0.2:7000");
    let client = (socket(&wire.far, "10.0.0.2:7001"), "10.0.0.53:53");
    let checked = Namespace::existing(&wire.far).within(|| TcpListener::bind("10.0.0.2:81")).unwrap();
    std::thread::spawn(move || checked.incoming().for_each(drop));
    let (sends, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let mut answer = [0; 2048];
        while ended.try_recv() != Err(TryRecvError::Disconnected) {
            for (socket, to) in [&pod, &node, &client] {
                let _ = socket.send_to(&[0; 64], to);
            }
            for server in &servers {
                if let Ok((length, from)) = server.recv_from(&mut answer) {
                    let _ = server.send_to(&answer[..length], from);
                }
            }
            for (socket, _) in [&pod, &node] {
                let _ = socket.recv_from(&mut answer);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    sends
}

/// Checks that the view of paths shows their state, and plots.
fn shows_paths(browser: &Browser, address: SocketAddr) {
    // The second point of the plots is the first one with paths.
    let start = Instant::now();
    while http(address, "GET", "/v1/history?series=app/path/", "").1["series"] == json!([]) {
        assert!(start.elapsed() < Duration::from_secs(60), "there are no plots of paths");
        std::thread::sleep(Duration::from_millis(100));
    }
    browser.open(&url(address, "#/path"));
    browser.wait_for_text("paths of fabric to 10.0.1.2");
    let loads = "[...document.querySelectorAll('tbody tr')].map(row => parseFloat(row.cells[2].textContent))";
    browser.wait_for(&format!("{loads}.some(load => load > 0)"));
    for title in ["Round-trip time", "Queueing delay", "Loss of probes", "Load, bit/s"] {
        browser.wait_for(&format!(
            "[...document.querySelectorAll('.plot')].some(plot => plot.innerText.includes('{title}') \
             && plot.querySelector('canvas') && plot.innerText.includes('paths of fabric'))"
        ));
    }
    browser.picture("path");
}

#[test]
fn views_of_paths_an_overlay_and_the_kernel_show_live_data() {
    let Some(browser) = Browser::start((1280, 1000), false) else { return };
    let Some(wire) = Wire::new("page", 3) else { return };
    lay_tunnels(&wire);
    let _sends = keep_sending(&wire);
    let other = Folder::new();
    other.write("weir.yaml", OTHER);
    let _other = Daemon::start_in_namespace(other, &wire.far);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (folder, _) = with_token();
    view_token(&folder);
    let address = listener.local_addr().unwrap();
    let control = format!("control: {{ listen: \"{address}\", token: token, view_token: view }}\n");
    folder.write("weir.yaml", control + WIRED);
    let _daemon = Daemon::start_in_namespace_with(folder, &wire.weir, listener);

    browser.open(&url(address, &format!("#token={VIEW}")));
    browser.wait_for_text("passed ");
    browser.wait_for("document.querySelector('td .failed')?.textContent.startsWith('failed ')");
    browser.wait_for_text("connection refused");
    browser.write("#filter", "check = failed");
    browser.wait_for("document.querySelectorAll('.table tbody tr').length === 1");
    browser.write("#filter", "check = failed or check = passed");
    browser.wait_for("document.querySelectorAll('.table tbody tr').length === 2");
    browser.picture("checks");
    // The numbers in the last row that begins with `word`, in the card with this title.
    let numbers = |title: &str, word: &str| {
        format!(
            "[...document.querySelectorAll('.card')].find(one => one.innerText.startsWith('{title}'))\
             ?.innerText.split('\\n').findLast(line => line.startsWith('{word}'))?.split('\\t')\
             .map(cell => parseFloat(cell.replaceAll(',', '')))"
        )
    };
    browser.open(&url(address, "#/ports"));
    browser.wait_for_text("in the kernel");
    browser.wait_for(&format!("{}?.[2] > 0", numbers("The program in the kernel", "p0")));
    browser.picture("kernel");
    browser.open(&url(address, "#/overlay"));
    browser.wait_for_text("pods: vx0 by w2");
    browser.wait_for(&format!("{0}?.[1] > 0 && {0}?.[3] > 0", numbers("frames of pods", "fast")));
    browser.picture("overlay");
    browser.open(&url(address, "#/measure"));
    browser.wait_for_text("inner, ");
    browser.wait_for_text("10.244.1.5");
    browser.wait_for(r"/^flows\s+[1-9]/m.test(document.body.innerText)");
    browser.picture("measured");
    shows_paths(&browser, address);
    no_errors(&browser);
}
