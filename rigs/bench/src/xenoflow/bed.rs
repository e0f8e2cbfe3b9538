//! The network in which a DNS round trip through a balancer is timed, while a generator loads it.
//!
//! ```text
//!   client:  f0 ------ w0 :node: w1 ------ switch ------ b1 (DNS server), b2
//!            c0 --------------------------'
//! ```
//!
//! Queries and load leave through f0, and a balancer on the node sends them to the back ends. With weir,
//! which only rewrites MAC addresses, answers return through c0, as in the thesis; a rival that translates
//! addresses gets them back and returns them through f0. The balancer has a core of its own; the generator
//! and all others share the other one, where the generator yields to them.

use super::far::DISCARD;
use super::ovs;
use crate::peers::{Forwarder, Setting};
use crate::source::received;
use anyhow::{Context, Result, bail, ensure};
use rustix::process::setpriority_process;
use serde_json::{Value, json};
use std::net::{Ipv4Addr, UdpSocket};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use weir_bed::{Namespace, Run, Started, Switch, cable, namespace};
use weir_bpf::XdpTake;
use weir_lab::ovs::Ovs;
use weir_lab::weir::{self, Weir};
use weir_lab::{Interrupt, kernel, nsd};

/// The address of the service, that of the client, which is even, and those of the back ends.
const VIP: &str = "10.0.0.53";
const CLIENT: &str = "10.9.0.2";
const BACK_ENDS: [(&str, &str, &str); 2] =
    [("b1", "10.9.1.1", "a0:88:c2:b5:f4:5a"), ("b2", "10.9.1.2", "a0:88:c2:b5:f4:5b")];
/// MAC addresses of f0, w0, w1 and c0. The generator sends to that of w0.
const MACS: [&str; 4] = ["02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:03", "02:00:00:00:00:04"];

/// The node's interfaces: that to the client, and that to the switch.
const LINE: [&str; 2] = ["w0", "w1"];

/// How long an answer may take, and how long the client pauses between queries.
const PATIENCE: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_micros(500);
/// How long the servers may take to start, and the kernel to get a program.
const START: Duration = Duration::from_secs(30);
/// How long frames may be in flight.
const UNDER_WAY: Duration = Duration::from_millis(50);

/// The niceness of all processes, so that they do not wait for others on this machine, and how much the
/// generator's is above it: the client and the DNS server share its core, and do not wait for it.
const NICENESS: i32 = -20;
const YIELDS: &str = "10";

/// Programs that the bed runs.
pub const NEEDED: [&str; 5] = ["ip", "bridge", "ethtool", "nsd", "nice"];

/// A balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balancer {
    /// weir's worker.
    Engine,
    /// weir's program in the kernel.
    Kernel,
    /// nginx with its stream module.
    Nginx,
    /// nftables, which translates addresses.
    Nftables,
    /// IPVS, which rewrites MAC addresses.
    Ipvs,
    /// Open vSwitch's user-space datapath, whose select group rewrites MAC addresses.
    OpenVSwitch,
}

impl Balancer {
    /// Returns its name in results.
    pub fn name(self) -> &'static str {
        match self {
            Balancer::Engine => "engine",
            Balancer::Kernel => "kernel",
            Balancer::Nginx => "nginx",
            Balancer::Nftables => "nftables",
            Balancer::Ipvs => "ipvs",
            Balancer::OpenVSwitch => "ovs_netdev",
        }
    }
}

/// The load on a balancer.
#[derive(Clone, Copy, Debug)]
pub struct LoadParameters {
    /// Frames per second; 0 is as fast as possible.
    pub rate: f64,
    /// How many of ten clients are even.
    pub even: u32,
    /// Bytes of a frame.
    pub length: u16,
}

/// A balancer at work.
pub struct BalancerRun {
    weir: Option<Weir>,
    process: Option<Started>,
    /// A program at the switch, where XDP sends frames.
    _passing: Option<XdpTake>,
    balancer: Balancer,
}

/// The namespaces, and the servers in them.
pub struct Bed {
    run: Run,
    interrupt: Interrupt,
    client: Namespace,
    node: Namespace,
    switch: Switch,
    setting: Setting,
    /// It does nothing while it has no bridge.
    ovs: Option<Ovs>,
    _back_ends: Vec<Namespace>,
    /// Sockets that are never read, so that load causes no ICMP errors.
    _discards: Vec<UdpSocket>,
}

impl Bed {
    /// Builds it, and waits until the DNS server answers.
    pub fn new(setting: Setting) -> Result<Bed> {
        let interrupt = Interrupt::on_signals()?;
        setpriority_process(None, NICENESS)?;
        let mut run = Run::begin(false)?;
        let (client, node) = (run.namespace("client")?, run.namespace("node")?);
        // Answers arrive on another interface than queries leave by.
        for host in [&client, &node] {
            host.set(&[("ipv4/conf/all/rp_filter", 0), ("ipv4/conf/default/rp_filter", 0)])?;
        }
        node.set(&[("ipv4/ip_forward", 1)])?;
        let switch = Switch::create(&run, "switch")?;
        let [f0, w0, w1, c0] = MACS;
        cable(Some(1), &client.end("f0").mac(f0), &node.end("w0").mac(w0))?;
        switch.plug("out", Some(1), &node.end("w1").mac(w1).address("10.9.2.1/16"))?;
        switch.plug("client", Some(1), &client.end("c0").mac(c0).address(format!("{CLIENT}/16")))?;
        client.ip(&format!(
            "route add {VIP}/32 dev f0 src {CLIENT}\nneigh add {VIP} lladdr {w0} dev f0 nud permanent\n"
        ))?;
        node.ip(&format!(
            "route add 10.9.0.0/24 dev w0\nneigh add {CLIENT} lladdr {f0} dev w0 nud permanent\n"
        ))?;
        client.checksum_in_software("f0")?;
        let (mut back_ends, mut discards) = (Vec::new(), Vec::new());
        for (name, address, mac) in BACK_ENDS {
            let host = run.namespace(name)?;
            switch.plug(name, Some(1), &host.end("eth0").mac(mac).address(format!("{address}/16")))?;
            host.ip(&format!(
                "address add {VIP}/32 dev lo\nneigh add {CLIENT} lladdr {c0} dev eth0 nud permanent\n"
            ))?;
            for near in [&client, &node] {
                let device = if near.name() == client.name() { "c0" } else { "w1" };
                near.ip(&format!("neigh add {address} lladdr {mac} dev {device} nud permanent\n"))?;
            }
            discards.push(host.within(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, DISCARD)))?);
            back_ends.push(host);
        }
        let (name, address, _) = BACK_ENDS[0];
        nsd::serve(&mut run, &back_ends[0], name, &[VIP, address])?;
        let bed = Bed {
            run,
            interrupt,
            client,
            node,
            switch,
            setting,
            ovs: None,
            _back_ends: back_ends,
            _discards: discards,
        };
        let answers = || {
            let once = |client: &DnsClient| Ok(client.ask(0)?.is_some());
            bed.client.within(|| once(&DnsClient::open(address)?))
        };
        ensure!(bed.interrupt.wait(START, answers)?, "nsd does not answer: {}", bed.run.last_words("nsd-b1"));
        Ok(bed)
    }

    /// Starts a balancer for one or two back ends.
    pub fn start(&mut self, balancer: Balancer, back_ends: usize) -> Result<BalancerRun> {
        let mut running = BalancerRun { weir: None, process: None, _passing: None, balancer };
        match balancer {
            Balancer::Engine | Balancer::Kernel => {
                let text = self.configuration(balancer, back_ends)?;
                if balancer == Balancer::Kernel {
                    running._passing = Some(kernel::pass_all(self.switch.namespace(), "out")?);
                }
                let inside = |program: &str| self.node.command(program);
                let weir = Weir::start_within(START, &mut self.run, "weir", inside, &text, &self.interrupt)?;
                if balancer == Balancer::Kernel {
                    weir.wait_for_kernel(START, &self.run, &self.interrupt)?;
                }
                running.weir = Some(weir);
            }
            Balancer::Nginx => {
                self.node.ip(&format!("address add {VIP}/32 dev lo\n"))?;
                running.process = Some(self.nginx(back_ends)?);
            }
            Balancer::Nftables => self.nftables(back_ends)?,
            Balancer::Ipvs => self.ipvs(back_ends)?,
            Balancer::OpenVSwitch => self.open_vswitch(back_ends)?,
        }
        if !self.interrupt.wait(START, || self.is_answered())? {
            let logs = ["weir", "nginx", "ovs-vswitchd"].map(|name| self.run.last_words(name)).join("\n");
            bail!("no answer through {}: {logs}", balancer.name());
        }
        Ok(running)
    }

    /// Whether a query is answered by the DNS server.
    fn is_answered(&self) -> Result<bool> {
        self.client.within(|| Ok(DnsClient::open(VIP)?.ask(0)?.is_some()))
    }

    /// Lets nftables translate addresses: even clients to the first back end.
    fn nftables(&self, back_ends: usize) -> Result<()> {
        self.steer(true)?;
        let to = match back_ends {
            1 => BACK_ENDS[0].1.to_string(),
            _ => format!(
                "ip saddr & 0.0.0.1 map {{ 0.0.0.0 : {}, 0.0.0.1 : {} }}",
                BACK_ENDS[0].1, BACK_ENDS[1].1
            ),
        };
        let rules = format!(
            "table ip weir {{\n  chain in {{ type nat hook prerouting priority dstnat; \
             ip daddr {VIP} \
             dnat to {to}; }}\n  chain out {{ type nat hook postrouting priority srcnat; oifname w1 \
             masquerade; }}\n}}\n"
        );
        self.node.input("nft", &["-f", "-"], &rules)
    }

    /// Lets IPVS pick a back end by a hash of the source address.
    fn ipvs(&self, back_ends: usize) -> Result<()> {
        self.steer(true)?;
        self.node.ip(&format!("address add {VIP}/32 dev lo\n"))?;
        let mut rules = String::new();
        for port in [53, DISCARD] {
            rules += &format!("-A -u {VIP}:{port} -s sh\n");
            for (_, address, _) in &BACK_ENDS[..back_ends] {
                rules += &format!("-a -u {VIP}:{port} -r {address}:{port} -g\n");
            }
        }
        self.node.input("ipvsadm", &["-R"], &rules)
    }

    /// Lets Open vSwitch pick a back end by its own hash of the source address. The order of back ends is
    /// such that the client's queries reach the DNS server.
    fn open_vswitch(&mut self, back_ends: usize) -> Result<()> {
        // The kernel also gets what the switch reads from w0, and would report that it has no route.
        self.node.set(&[("ipv4/ip_forward", 0)])?;
        if self.ovs.is_none() {
            let core = self.setting.core;
            self.ovs = Some(ovs::start(&mut self.run, core, &self.node, &self.interrupt)?);
        }
        let switch = self.ovs.as_ref().context("it has been started")?;
        ovs::open(switch, LINE)?;
        let mut macs: Vec<&str> = BACK_ENDS[..back_ends].iter().map(|(.., mac)| *mac).collect();
        let is_answered = || {
            macs.rotate_left(1);
            ovs::balance(switch, LINE, VIP, MACS[2], &macs)?;
            self.is_answered()
        };
        self.interrupt.wait(START, is_answered).map(drop)
    }

    /// Stops a balancer, so that nothing of it is left.
    pub fn stop(&mut self, running: BalancerRun) -> Result<()> {
        if let Some(weir) = running.weir {
            weir.stop(&mut self.run)?;
        }
        if let Some(process) = running.process {
            let _ = self.run.stop(process)?;
        }
        match running.balancer {
            Balancer::Engine | Balancer::Kernel => Ok(()),
            Balancer::Nginx => self.node.ip(&format!("address del {VIP}/32 dev lo\n")),
            Balancer::Nftables => {
                self.node.input("nft", &["-f", "-"], "delete table ip weir\n")?;
                self.steer(false)
            }
            Balancer::Ipvs => {
                self.node.output("ipvsadm", &["-C"])?;
                self.node.ip(&format!("address del {VIP}/32 dev lo\n"))?;
                self.steer(false)
            }
            Balancer::OpenVSwitch => {
                self.ovs.iter().try_for_each(ovs::close)?;
                self.node.set(&[("ipv4/ip_forward", 1)])
            }
        }
    }

    /// Makes the node's network stack run on the balancer's core, or on the sender's core again.
    fn steer(&self, own_core: bool) -> Result<()> {
        let mask = if own_core { 1_u64 << (self.setting.core % 32) } else { 0 };
        let line = format!("echo {mask:x} >/sys/class/net/w0/queues/rx-0/rps_cpus\n");
        self.node.input("sh", &["-e"], &line)
    }

    /// Returns the output of `weir import xenoflow` for a `backends.json`, with a worker that does not sleep
    /// on its own core.
    fn configuration(&self, balancer: Balancer, back_ends: usize) -> Result<String> {
        let file = self.run.folder().join("backends.json");
        let one = |(name, _, mac): &(&str, &str, &str)| json!({ "name": name, "mac_address": mac });
        let list: Vec<Value> = BACK_ENDS[..back_ends].iter().map(one).collect();
        std::fs::write(&file, json!({ "backends": list }).to_string())?;
        let mut import = Command::new(weir::program()?);
        import.args(["import", "xenoflow"]).arg(&file);
        let finished = import.args(["--in", "w0", "--out", "w1", "--vip", VIP, "--udp-only"]).output()?;
        let said = String::from_utf8_lossy(&finished.stderr);
        ensure!(finished.status.success(), "weir import: {}", said.trim());
        let mut yaml = String::from_utf8_lossy(&finished.stdout).into_owned();
        let executor = if balancer == Balancer::Kernel { "require" } else { "off" };
        for interface in ["w0", "w1"] {
            yaml =
                yaml.replace(&format!("xdp: {interface}"), &format!("xdp: {interface}, kernel: {executor}"));
        }
        Ok(format!("workers: [{}]\nbusy: true\n{yaml}", self.setting.core))
    }

    /// Starts nginx with the rule of XenoFlow: even clients to the first back end.
    fn nginx(&mut self, back_ends: usize) -> Result<Started> {
        let folder = self.run.folder().join("nginx");
        std::fs::create_dir_all(&folder)?;
        let (file, at) = (folder.join("nginx.conf"), folder.display());
        let [first, second] = [0, back_ends - 1].map(|at| BACK_ENDS[at].1);
        let server = |port: u16, more: &str| {
            format!(
                "  server {{ listen {VIP}:{port} udp; proxy_pass $back_end:{port}; \
                 proxy_timeout 1s; {more}}}\n"
            )
        };
        let text = format!(
            "load_module modules/ngx_stream_module.so;\ndaemon off;\nmaster_process off;\n\
             pid {at}/pid;\nerror_log {at}/error.log crit;\nevents {{ worker_connections 4096; }}\n\
             stream {{\n  \
             map $remote_addr $back_end {{ ~[02468]$ {first}; default {second}; }}\n{}{}}}\n",
            server(53, "proxy_responses 1; "),
            server(DISCARD, "")
        );
        std::fs::write(&file, text)?;
        let mut command = self.node.command("taskset");
        command.args(["-c", &self.setting.core.to_string(), "nginx", "-e"]);
        command.arg(folder.join("error.log")).arg("-c").arg(&file).stdout(Stdio::null());
        self.run.start("nginx", &mut command)
    }

    /// Sends one query after another under a load, for the given time. Returns what was offered, the share of
    /// the load that was lost, and the times.
    pub fn measure(&mut self, load: Option<LoadParameters>, time: Duration) -> Result<Value> {
        let mut generator = load.map(|load| self.generator(load)).transpose()?;
        let before = self.arrived()?;
        if let Some(generator) = &mut generator {
            generator.begin(&self.run)?;
        }
        let start = Instant::now();
        let trips = self.client.within(|| DnsClient::open(VIP)?.trips(time))?;
        self.interrupt.sleep(Duration::ZERO)?;
        let (mut sent, mut seconds) = (0, start.elapsed().as_secs_f64());
        if let Some(mut generator) = generator {
            sent = generator.end(&self.run)?;
            seconds = start.elapsed().as_secs_f64();
            generator.stop(&mut self.run)?;
        }
        std::thread::sleep(UNDER_WAY);
        // The queries have passed, too.
        let arrived = (self.arrived()? - before).saturating_sub(trips.queries);
        let mpps = |frames: u64| frames as f64 / seconds / 1e6;
        let loss = (sent > 0).then(|| (sent.saturating_sub(arrived)) as f64 / sent as f64);
        Ok(json!({
            "offered_mpps": mpps(sent), "arrived_mpps": mpps(arrived.min(sent)), "loss": loss,
            "queries": trips.queries, "unanswered": trips.queries - trips.us.len() as u64,
            "median_us": trips.at(0.5), "p99_us": trips.at(0.99),
        }))
    }

    /// Starts a generator, which waits for its turn.
    fn generator(&mut self, load: LoadParameters) -> Result<Forwarder> {
        let mut command = self.client.command("nice");
        command.args(["-n", YIELDS, &weir::program()?, "bench", "arm", "--core"]);
        command.args([&self.setting.other.to_string(), "load", "f0"]);
        let LoadParameters { rate, even, length } = load;
        for (option, value) in
            [("--rate", rate.to_string()), ("--even", even.to_string()), ("--length", length.to_string())]
        {
            command.args([option, &value]);
        }
        Forwarder::weir(&mut self.run, "load", &mut command)
    }

    /// Returns the number of frames that have arrived at the switch from the balancer.
    fn arrived(&self) -> Result<u64> {
        self.switch.namespace().within(|| received("out"))
    }
}

/// A DNS client.
struct DnsClient(UdpSocket);

/// The times of queries.
struct DnsTrips {
    queries: u64,
    /// Microseconds of those that were answered, in ascending order.
    us: Vec<f64>,
}

impl DnsClient {
    /// Opens a socket in the namespace of this thread.
    fn open(server: &str) -> Result<DnsClient> {
        let socket = UdpSocket::bind((CLIENT, 0)).context("the client's address")?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.connect((server, 53))?;
        Ok(DnsClient(socket))
    }

    /// Asks once. Returns how long it took to get an answer; `None` if there was none.
    fn ask(&self, id: u16) -> Result<Option<Duration>> {
        let query = query(id);
        let start = Instant::now();
        // An error here means that an earlier query was refused, because the server was not listening yet.
        if self.0.send(&query).is_err() {
            return Ok(None);
        }
        let mut answer = [0; 512];
        while start.elapsed() < PATIENCE {
            let Ok(length) = self.0.recv(&mut answer) else { return Ok(None) };
            if is_answer(&answer[..length], id) {
                return Ok(Some(start.elapsed()));
            }
        }
        Ok(None)
    }

    /// Asks one query after another for some time.
    fn trips(&self, time: Duration) -> Result<DnsTrips> {
        let mut trips = DnsTrips { queries: 0, us: Vec::new() };
        let start = Instant::now();
        while start.elapsed() < time {
            let id = trips.queries as u16;
            trips.queries += 1;
            trips.us.extend(self.ask(id)?.map(|took| took.as_secs_f64() * 1e6));
            std::thread::sleep(PAUSE);
        }
        trips.us.sort_by(f64::total_cmp);
        Ok(trips)
    }
}

impl DnsTrips {
    fn at(&self, share: f64) -> Option<f64> {
        let last = self.us.len().checked_sub(1)?;
        Some(self.us[((self.us.len() as f64 * share) as usize).min(last)])
    }
}

/// Returns a DNS query for the IPv4 address of a name in the labs' zone, `weir.test` (RFC 1035 §4.1).
fn query(id: u16) -> Vec<u8> {
    let mut query = id.to_be_bytes().to_vec();
    // Recursion desired, one question.
    query.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in ["h1", "weir", "test"] {
        query.push(label.len() as u8);
        query.extend(label.bytes());
    }
    query.extend([0, 0, 1, 0, 1]);
    query
}

/// Whether a message answers the query with this identifier, without an error.
fn is_answer(message: &[u8], id: u16) -> bool {
    let Some(head) = message.get(..8) else { return false };
    head[..2] == id.to_be_bytes() && head[2] & 0x80 != 0 && head[3] & 0x0f == 0 && head[6..8] != [0, 0]
}

/// Returns the programs of the bed that are not installed.
pub fn missing() -> Vec<&'static str> {
    namespace::missing(&NEEDED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_the_identifier_of_its_query_and_a_record() {
        let query = query(0x1234);
        assert_eq!(query.len(), 12 + 3 + 5 + 5 + 1 + 4);
        let mut answer = query.clone();
        answer[2] |= 0x80;
        assert!(!is_answer(&query, 0x1234) && !is_answer(&answer, 0x1234), "it has no record");
        answer[7] = 1;
        assert!(is_answer(&answer, 0x1234) && !is_answer(&answer, 0x1235));
        answer[3] |= 3;
        assert!(!is_answer(&answer, 0x1234), "the name is unknown");
    }
}
