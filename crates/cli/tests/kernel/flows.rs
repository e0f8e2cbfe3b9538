//! FLOW pipes: the engine learns flows, and the kernel decides their packets from then on.

use crate::{B1, B2, CLIENTS, Network, PATIENCE, VIP, build};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Packets of a flow: more than its first ones, which the engine gets.
pub(crate) const PACKETS: u64 = 300;
const FLOWS: usize = 40;
const FLOWS_AT_ONCE: usize = 8;

/// Packets of a burst that are on their way at a time: a veth has room for 256.
const WINDOW: u64 = 30;

fn balancer(monitor: &str) -> String {
    format!(
        "
metrics: 127.0.0.1:9105
ports:
  p0: {{ xdp: eth0, take: [{{ dst: 10.7.0.53 }}], kernel: require, root: flows }}
groups:
  back: {{ size: 251, targets: {{ b1: p0, b2: p0 }} }}
pipes:
  flows:
    type: flow
    learn: {{ pin: back }}
    capacity: 1000
    monitor: {{ {monitor} }}
    action: [{{ set: {{ eth.dst: per_entry, eth.src: 02:00:00:00:07:02 }} }}]
    forward: in_port
    miss: drop
    entries:
      - {{ match: {{ target: b1 }}, set: {{ eth.dst: {B1} }} }}
      - {{ match: {{ target: b2 }}, set: {{ eth.dst: {B2} }} }}
"
    )
}

/// A client's socket, and what it has sent.
pub(crate) struct ClientFlow {
    socket: UdpSocket,
    pub(crate) back_end: Option<u8>,
    pub(crate) sent: u64,
}

impl ClientFlow {
    pub(crate) fn new(network: &Network) -> ClientFlow {
        ClientFlow { socket: network.client(0), back_end: None, sent: 0 }
    }

    pub(crate) fn name(&self) -> String {
        format!("udp {} > {VIP}:53", self.socket.local_addr().unwrap())
    }

    /// Sends numbered queries, with pauses of up to `pause_us` microseconds, and receives all answers: in
    /// order, and from the back end that has answered the first.
    pub(crate) fn burst(&mut self, network: &Network, queries: u64, pause_us: u64) {
        let (numbers, received) = (self.sent..self.sent + queries, AtomicU64::new(self.sent));
        let answers = std::thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                let receive = |_| {
                    let mut answer = [0; 9];
                    let bytes = self.socket.recv_from(&mut answer).ok()?.0;
                    received.fetch_add(1, Ordering::Relaxed);
                    (bytes == 9).then(|| (answer[0], u64::from_be_bytes(answer[1..].try_into().unwrap())))
                };
                numbers.clone().map_while(receive).collect::<Vec<_>>()
            });
            for number in numbers.clone() {
                while number - received.load(Ordering::Relaxed) >= WINDOW && !receiver.is_finished() {
                    std::thread::yield_now();
                }
                self.socket.send_to(&number.to_be_bytes(), (VIP, 53)).unwrap();
                let until = Instant::now() + Duration::from_micros((number * 7_919) % pause_us.max(1));
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
            }
            receiver.join().unwrap()
        });
        let came: Vec<u64> = answers.iter().map(|(_, number)| *number).collect();
        assert!(came.is_sorted(), "packets of one flow were overtaken: {came:?}");
        let lost: Vec<u64> = numbers.filter(|number| !came.contains(number)).collect();
        if !lost.is_empty() {
            let [ledger, drops, ports] = ["ledger", "drops", "ports"].map(|what| network.show(what));
            panic!("queries {lost:?} are lost: {ledger} {drops} {ports} {}", network.spaces.log());
        }
        let back_end = *self.back_end.get_or_insert(answers[0].0);
        assert!(answers.iter().all(|(from, _)| *from == back_end), "{answers:?}");
        self.sent += queries;
    }
}

impl Network {
    /// Returns the row of a flow, if it is live.
    pub(crate) fn row(&self, name: &str) -> Option<Value> {
        let flows = self.show("flows");
        flows.as_array()?.iter().find(|flow| flow["flow"] == name).cloned()
    }

    pub(crate) fn account(&self) -> Value {
        self.spaces.show("deltas").expect("weir answers")["flow_account"].clone()
    }

    pub(crate) fn decided(&self) -> u64 {
        self.show("kernel")[0]["decided"].as_u64().unwrap()
    }

    /// Waits until the kernel handles the packets of all these flows: the worker activates a flow once the
    /// last packet that came to it has been sent.
    pub(crate) fn until_in_kernel(&self, flows: &[&ClientFlow]) {
        self.spaces.until("the kernel handles all flows", || {
            let shown = self.show("flows");
            let rows = shown.as_array()?;
            let is_in_kernel =
                |name: String| rows.iter().any(|row| row["flow"] == name && row["in_kernel"] == true);
            flows.iter().all(|flow| is_in_kernel(flow.name())).then_some(())
        });
    }

    /// Checks that live flows have counted what was sent, and that everything balances.
    fn assert_flows_are_exact(&self, flows: &[ClientFlow]) {
        for flow in flows {
            let row = self.row(&flow.name()).unwrap_or_else(|| panic!("{} is gone", flow.name()));
            assert_eq!(row["packets"], flow.sent, "{row}");
        }
        let sent: u64 = flows.iter().map(|flow| flow.sent).sum();
        self.until_account(sent);
        self.assert_all_counted(sent, 0);
    }

    /// Waits until the account of flows has `met` packets, which takes up to a second, and balances.
    pub(crate) fn until_account(&self, met: u64) -> Value {
        self.spaces.until("the account of flows has all packets", || {
            let account = self.account();
            assert_eq!(account["balances"], true, "{account}");
            (account["met"] == met).then_some(account)
        })
    }
}

#[test]
fn the_kernel_decides_all_but_the_first_packets_of_a_flow_in_order_and_counts_them() {
    let Some(mut network) = build("kl") else { return };
    network.spaces.weir("weir", &balancer("idle_timeout: 1h"));
    network.until_it_runs();
    let mut flows: Vec<ClientFlow> = (0..FLOWS).map(|_| ClientFlow::new(&network)).collect();
    // At once, so that packets of a flow wait for the worker while the first ones are on their way.
    for (flows, pause_us) in flows.chunks_mut(FLOWS_AT_ONCE).zip([0, 10, 30, 100, 300]) {
        std::thread::scope(|scope| {
            let network = &network;
            flows.iter_mut().for_each(|flow| _ = scope.spawn(move || flow.burst(network, PACKETS, pause_us)));
        });
    }
    network.assert_flows_are_exact(&flows);
    let both = [1, 2].map(|back_end| flows.iter().any(|flow| flow.back_end == Some(back_end)));
    assert_eq!(both, [true; 2]);
    let (kernel, all) = (network.show("kernel"), FLOWS as u64 * PACKETS);
    let decided = kernel[0]["decided"].as_u64().unwrap();
    eprintln!("{decided} of {all} packets were decided in the kernel: {kernel}");
    // On slow machines, more of them wait for the worker at a time.
    assert!(decided > all / 10, "{kernel}");

    // All of them from now on.
    network.until_in_kernel(&flows.iter().collect::<Vec<_>>());
    let decided = network.decided();
    flows.iter_mut().for_each(|flow| flow.burst(&network, PACKETS, 0));
    assert_eq!(network.decided(), decided + all);
    network.assert_flows_are_exact(&flows);
    assert!(flows.iter().all(|flow| network.row(&flow.name()).unwrap()["in_kernel"] == true));
    let explain = |flow: &ClientFlow| {
        let port = flow.socket.local_addr().unwrap().port();
        let packet = format!("src={} dst={VIP} proto=udp sport={port} dport=53", CLIENTS[0]);
        network.spaces.ask(&["explain", "--live", "--packet", &packet]).unwrap()["runs"].clone()
    };
    assert_eq!(explain(&flows[0])["in"], "kernel");
    let new = explain(&ClientFlow::new(&network));
    assert_eq!(new["why"], "pipe `flows`: the flow is new, or is not followed in the kernel", "{new}");

    // Flows end with their entry, and other flows continue.
    network.change(&["entry", "remove", "flows", "{ match: { target: b1 } }"]);
    let (gone, stay): (Vec<ClientFlow>, Vec<ClientFlow>) =
        flows.into_iter().partition(|flow| flow.back_end == Some(1));
    let is_gone = |flow: &ClientFlow| network.row(&flow.name()).is_none();
    assert!(gone.iter().all(is_gone) && !stay.iter().any(is_gone));
    let mut flow = stay.into_iter().next().unwrap();
    flow.burst(&network, PACKETS, 0);
    assert_eq!(network.decided(), decided + all + PACKETS);
    let account = network.until_account(2 * all + PACKETS);
    assert_eq!(account["deltas"], gone.iter().map(|flow| flow.sent).sum::<u64>(), "{account}");
}

/// Sends `queries` queries of each flow, one at a time: queues of different processors could reorder more.
fn one_by_one(network: &Network, flows: &mut [ClientFlow], queries: u64) {
    for _ in 0..queries {
        flows.iter_mut().for_each(|flow| flow.burst(network, 1, 0));
    }
}

/// Sends queries until the kernel follows every flow, then `queries` more of each, all of which the kernel
/// must handle itself.
fn follow_all(network: &Network, flows: &mut [ClientFlow], queries: u64) {
    let until = Instant::now() + PATIENCE;
    let is_followed =
        |flow: &ClientFlow| network.row(&flow.name()).is_some_and(|row| row["in_kernel"] == true);
    while !flows.iter().all(is_followed) {
        assert!(Instant::now() < until, "{}: {}", network.show("flows"), network.show("kernel"));
        one_by_one(network, flows, 1);
    }
    let decided = network.decided();
    one_by_one(network, flows, queries);
    assert_eq!(network.decided(), decided + flows.len() as u64 * queries, "{}", network.show("kernel"));
    network.assert_flows_are_exact(flows);
}

#[test]
fn the_kernel_decides_flows_of_two_workers_on_whatever_queue_their_packets_arrive() {
    let Some(mut network) = build("kq") else { return };
    for (role, end) in [("switch", "weir"), ("weir", "eth0")] {
        let wide = ["-L", end, "rx", "2", "tx", "2"];
        network.spaces.at(role).output("ethtool", &wide).unwrap();
    }
    let text = balancer("idle_timeout: 1h");
    network.spaces.weir("weir", &format!("workers: 2\n{text}"));
    network.until_it_runs();
    let mut flows: Vec<ClientFlow> = (0..FLOWS).map(|_| ClientFlow::new(&network)).collect();
    follow_all(&network, &mut flows, 20);
    // Each worker has flows, and got packets of the other one's.
    let workers = network.show("workers");
    for worker in workers.as_array().expect("a list") {
        assert!(
            worker["received"].as_u64() > Some(0) && worker["handed_over"].as_u64() > Some(0),
            "{workers}"
        );
    }
    network.change(&["reload"]);
    network.until_it_runs();
    follow_all(&network, &mut flows, 20);

    // Flows end with their entry, on both workers, and the others continue.
    network.change(&["entry", "remove", "flows", "{ match: { target: b1 } }"]);
    let (gone, mut stay): (Vec<ClientFlow>, Vec<ClientFlow>) =
        flows.into_iter().partition(|flow| flow.back_end == Some(1));
    assert!(gone.iter().all(|flow| network.row(&flow.name()).is_none()));
    let decided = network.decided();
    one_by_one(&network, &mut stay, 20);
    assert_eq!(network.decided(), decided + 20 * stay.len() as u64, "{}", network.show("kernel"));
    let sent = |flows: &[ClientFlow]| flows.iter().map(|flow| flow.sent).sum::<u64>();
    let account = network.until_account(sent(&gone) + sent(&stay));
    assert_eq!(account["deltas"], sent(&gone), "{account}");
    network.assert_all_counted(sent(&gone) + sent(&stay), 0);
}

#[test]
fn a_flow_that_only_the_kernel_sees_stays_and_an_idle_one_ends_with_its_counts() {
    let Some(mut network) = build("ki") else { return };
    network.spaces.weir("weir", &balancer("idle_timeout: 5s"));
    network.until_it_runs();
    let [mut live, mut idle] = [(); 2].map(|()| ClientFlow::new(&network));
    for flow in [&mut live, &mut idle] {
        flow.burst(&network, PACKETS, 50);
        flow.burst(&network, 10, 0);
    }
    network.until_in_kernel(&[&live, &idle]);
    let decided = network.decided();
    let begin = live.sent;
    let until = Instant::now() + PATIENCE;
    while network.row(&idle.name()).is_some() {
        assert!(Instant::now() < until, "the idle flow stays");
        live.burst(&network, 1, 0);
        std::thread::sleep(Duration::from_millis(200));
    }
    live.burst(&network, 1, 0);
    assert_eq!(network.row(&live.name()).expect("it is live")["packets"], live.sent);
    let account = network.until_account(live.sent + idle.sent);
    assert_eq!(account["deltas"], idle.sent, "{account}");
    assert_eq!(network.decided(), decided + live.sent - begin, "the engine has seen none of them");
    network.assert_all_counted(live.sent + idle.sent, 0);
}

#[test]
fn flows_outlive_a_reload_and_a_takeover_and_the_kernel_follows_them_again() {
    let Some(mut network) = build("ku") else { return };
    network.spaces.weir("weir", &balancer("idle_timeout: 1h"));
    network.until_it_runs();
    let mut flows: Vec<ClientFlow> = (0..6).map(|_| ClientFlow::new(&network)).collect();
    flows.iter_mut().for_each(|flow| flow.burst(&network, PACKETS, 50));
    for _ in 0..3 {
        network.change(&["reload"]);
        flows.iter_mut().for_each(|flow| flow.burst(&network, 20, 200));
        network.until_it_runs();
        flows.iter_mut().for_each(|flow| flow.burst(&network, PACKETS, 50));
    }
    let decided = network.decided();
    assert!(decided > 3 * PACKETS, "{decided}");
    network.assert_flows_are_exact(&flows);
    network.spaces.take_over("weir");
    network.until_it_runs();
    flows.iter_mut().for_each(|flow| flow.burst(&network, PACKETS, 50));
    network.until_in_kernel(&flows.iter().collect::<Vec<_>>());
    let decided = network.decided();
    flows.iter_mut().for_each(|flow| flow.burst(&network, PACKETS, 0));
    assert_eq!(network.decided(), decided + 6 * PACKETS);
    assert!(flows.iter().all(|flow| network.row(&flow.name()).unwrap()["in_kernel"] == true));
}

/// Serves connections: answers each line, until the client closes.
pub(crate) fn serve(network: &Network, role: &str) {
    let listener = network.spaces.within(role, || TcpListener::bind((VIP, 80)).unwrap());
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            std::thread::spawn(move || {
                let mut byte = [0];
                while stream.read(&mut byte).is_ok_and(|bytes| bytes == 1) && stream.write_all(&byte).is_ok()
                {
                }
            });
        }
    });
}

/// Opens a connection to the service.
pub(crate) fn connect(network: &Network) -> TcpStream {
    let stream = network.spaces.within("client", || TcpStream::connect((VIP, 80)).unwrap());
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Sends bytes, each of which is answered before the next one.
pub(crate) fn talk(stream: &mut TcpStream, bytes: u32) {
    for number in 0..bytes {
        let byte = [number as u8];
        stream.write_all(&byte).unwrap();
        let mut answer = [0];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer, byte);
    }
}

#[test]
fn connections_have_the_states_that_their_packets_say() {
    let Some(mut network) = build("kc") else { return };
    ["b1", "b2"].into_iter().for_each(|role| serve(&network, role));
    network.spaces.weir("weir", &balancer("timeouts: { tcp_established: 1h, tcp_half_closed: 3s }"));
    network.until_it_runs();
    let name = |stream: &TcpStream| format!("tcp {} > {VIP}:80", stream.local_addr().unwrap());
    let state = |name: &str| network.row(name).map(|row| row["state"].as_str().unwrap().to_string());
    let [mut closing, mut resetting] = [(); 2].map(|()| connect(&network));
    for stream in [&mut closing, &mut resetting] {
        talk(stream, 50);
        let followed = || (network.row(&name(stream))?["in_kernel"] == true).then_some(());
        network.spaces.until("the kernel follows the connection", followed);
        let decided = network.decided();
        talk(stream, 100);
        assert!(network.decided() >= decided + 100, "data goes through the kernel");
        let row = network.row(&name(stream)).unwrap();
        assert_eq!((&row["state"], &row["in_kernel"]), (&"tcp_established".into(), &true.into()), "{row}");
    }
    let [closed, reset] = [&closing, &resetting].map(name);
    closing.shutdown(Shutdown::Write).unwrap();
    assert_eq!(closing.read(&mut [0]).unwrap(), 0);
    network.spaces.until("it has closed", || (state(&closed)? == "tcp_half_closed").then_some(()));
    // What it has not read makes the client reset the connection.
    resetting.write_all(&[1; 100]).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    drop(resetting);
    network.spaces.until("it was reset", || (state(&reset)? == "tcp_rst").then_some(()));
    network.spaces.until("it ends", || state(&closed).is_none().then_some(()));
    let account = network.account();
    assert_eq!(account["balances"], true, "{account}");
}
