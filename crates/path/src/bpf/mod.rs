//! The programs of `path.bpf.c` and their maps.

mod flows;
mod layout;
mod rules;
mod seen;

pub use self::flows::{PathFlows, PathFlowsPage};
pub use self::rules::{PathSettings, Steer};
pub use self::seen::PathSeen;
pub use crate::fabric::UPLINKS_MAX;
pub use crate::paths::PATHS_MAX;
pub use crate::tunnel::{PathTunnel, TunnelType};

use self::layout::{
    Activity, Collected, Flow, FlowKey, Missed, Peer, PeerKey, PeerKey6, Script, Settings, Traffic, Window,
};
use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray, RingBuf};
use aya::programs::{ProgramError, SchedClassifier, TcAttachType, TestRunOptions};
use aya::{Ebpf, EbpfError, EbpfLoader, TestRun};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd};
use weir_bpf::Plain;
use weir_bpf::hook::{self, Attachment};
use weir_bpf::load::uninterrupted;

const OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/path.bpf.o"));

/// The largest number of peers.
pub const PEERS_MAX: usize = 1024;

/// The paths to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPeer {
    /// The index of its counters, which differs by uplink; below the number given to [`TcPath::load`].
    pub index: u32,
    /// Its paths, by number; at most [`PATHS_MAX`].
    pub paths: Vec<PathOut>,
}

/// A path to a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathOut {
    /// The source port that leads to this path.
    pub port: u16,
    /// The path's share of new flows, at most 2^16; with 0, no frame may take it.
    pub weight: u32,
    /// Whether flows should move away from the path.
    pub congested: bool,
    /// How long a frame waits on the path, in nanoseconds.
    pub cost_ns: u32,
}

/// Frames by outcome since [`TcPath::load`]: `enum count`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathCounters {
    /// Frames that were assigned a path.
    pub steered: u64,
    /// Frames of tunnels to addresses that are not peers.
    pub unknown_peer: u64,
    /// Frames to peers that kept the kernel's port.
    pub unsteered: u64,
    /// First frames passed to user space (DOCA-AR).
    pub held: u64,
    /// First frames that could not be passed to user space, and left with the kernel's port.
    pub unheld: u64,
    /// Probes that left.
    pub probes_sent: u64,
    /// Probes of peers answered.
    pub answered: u64,
    /// Probes from addresses that are not peers.
    pub stranger: u64,
    /// Probes with a wrong length or layout.
    pub malformed: u64,
    /// Probes and answers whose cookie does not match our secret.
    pub bad_cookie: u64,
    /// Probes that had already been answered, which get no second answer.
    pub repeated: u64,
    /// Probes that were not answered because they exceeded the limit on answers.
    pub limited: u64,
    /// Answers that arrived.
    pub collected: u64,
    /// Answers for which user space had no room.
    pub uncollected: u64,
    /// Frames whose tunnel header is cut short, longer than the packet, or without a VNI (VXLAN).
    pub header_malformed: u64,
    /// Frames whose tunnel header has an unknown version.
    pub header_unknown: u64,
    /// Frames whose inner packet is not IP, and whose path the kernel's port selected.
    pub scattered: u64,
}

/// The traffic on a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathTraffic {
    /// Packets; those of a GSO frame are counted individually.
    pub packets: u64,
    /// Their bytes, headers included.
    pub bytes: u64,
    /// Flows that began on it.
    pub new_flows: u64,
    /// Flows that came here after a pause.
    pub after_gap: u64,
    /// Flows that came here because their path was not usable.
    pub after_failure: u64,
    /// Flows that came here because the kernel gave them another port.
    pub after_rehash: u64,
    /// Flows that came here because their path was congested.
    pub without_gap: u64,
}

/// The current traffic to a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathActivity {
    /// When the last frame left, in nanoseconds of `CLOCK_MONOTONIC`; 0 if none has.
    pub last_ns: u64,
    /// For each path, when the last frame left, and the bytes sent until then, decaying by half in each
    /// half-life.
    pub loads: [(u64, u64); PATHS_MAX],
    /// Flows on each path to which the kernel gave another port, since [`TcPath::load`].
    pub rehashed: [u64; PATHS_MAX],
}

/// The key of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PathFlowKey(FlowKey);

impl PathFlowKey {
    /// The peer's index.
    #[must_use]
    pub fn peer(&self) -> u32 {
        self.0.peer
    }

    /// The VNI; 0 if the tunnel header identifies the flow.
    #[must_use]
    pub fn vni(&self) -> u32 {
        self.0.vni
    }

    /// Source and destination address; IPv4 if all but the first four bytes are 0.
    #[must_use]
    pub fn addresses(&self) -> [IpAddr; 2] {
        [self.0.source, self.0.destination].map(|words| {
            if words[1..] == [0; 3] {
                return Ipv4Addr::from(words[0].to_ne_bytes()).into();
            }
            let mut octets = [0; 16];
            words.write(&mut octets);
            Ipv6Addr::from(octets).into()
        })
    }

    /// Source and destination port, 0 if there are none.
    #[must_use]
    pub fn ports(&self) -> [u16; 2] {
        let [a, b, c, d] = self.0.ports.to_ne_bytes();
        [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])]
    }

    /// The protocol of IP.
    #[must_use]
    pub fn protocol(&self) -> u8 {
        self.0.protocol as u8
    }
}

/// A flow of the table that the eBPF programs keep: its path, and what it has sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathFlow {
    /// When its last packet left, in nanoseconds of `CLOCK_MONOTONIC`.
    pub last_ns: u64,
    /// Packets since the flow began.
    pub packets: u64,
    /// Bytes since then.
    pub bytes: u64,
    /// The number of the path that the flow takes.
    pub path: u32,
    /// The port that the kernel chose last.
    pub kernel_port: u16,
    /// The pinned port (DOCA-AR), otherwise 0.
    pub port: u16,
    /// How often the flow has changed paths.
    pub moves: u32,
    /// How it came to its path.
    pub decision: PathDecision,
}

/// How a flow came to its path: `enum move`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathDecision {
    /// It was placed there when it began. With DOCA-AR: by the first answer to its probes.
    #[default]
    AtFirst,
    /// It moved there after a pause. With DOCA-AR: no probe was answered in time.
    AfterGap,
    /// Its path had failed.
    AfterFailure,
    /// The kernel gave it another port.
    AfterRehash,
    /// Its path was congested.
    WithoutGap,
}

/// An answer to a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathAnswer {
    /// The index of the peer's window, which is the same over all uplinks.
    pub peer: u32,
    /// The probe's session.
    pub session: u32,
    /// The probe's number.
    pub number: u32,
    /// The port from which the probe was sent.
    pub port: u16,
    /// Whether the probe arrived with a CE mark.
    pub marked: bool,
    /// The TTL with which the probe arrived.
    pub ttl: u8,
    /// How many probes of its path had arrived by that time.
    pub arrived: u32,
    /// When the probe left, on our clock, in nanoseconds.
    pub sent_ns: u64,
    /// When the probe was answered, on the peer's clock, in nanoseconds.
    pub reflected_ns: u64,
    /// When the answer arrived, on our clock.
    pub received_ns: u64,
}

/// The first frame of a flow (DOCA-AR).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathMissed {
    /// The key of the flow that the frame belongs to.
    pub key: PathFlowKey,
    /// The source port that the kernel chose.
    pub kernel_port: u16,
    /// The frame, starting with its Ethernet header.
    pub frame: Vec<u8>,
}

/// The programs and their maps.
pub struct TcPath {
    ebpf: Ebpf,
    answers: RingBuf<MapData>,
    missed: RingBuf<MapData>,
    peers: u32,
    /// Whether there is a peer over IPv6: the programs for IPv6 are then attached, too.
    has_six: bool,
    /// Whether TCP connections are observed.
    watches: bool,
    /// The attachments by uplink; dropping them detaches the programs.
    links: [Vec<Attachment>; UPLINKS_MAX],
}

/// The programs for each version of IP: their names and hooks.
const PROGRAMS: [[(&str, TcAttachType); 2]; 2] = [
    [("path_egress", TcAttachType::Egress), ("path_reflect", TcAttachType::Ingress)],
    [("path_egress6", TcAttachType::Egress), ("path_reflect6", TcAttachType::Ingress)],
];

/// The programs that observe TCP connections.
const WATCHERS: [(&str, TcAttachType); 2] =
    [("path_watch", TcAttachType::Egress), ("path_listen", TcAttachType::Ingress)];

impl TcPath {
    /// Loads the programs for `peers` peers and `flows` flows. They are not attached yet.
    ///
    /// # Errors
    /// Returns the kernel's error, usually a missing privilege.
    pub fn load(peers: usize, flows: u32) -> Result<TcPath, EbpfError> {
        TcPath::load_as(peers, flows, [false, false])
    }

    /// Like [`TcPath::load`], with the programs that observe TCP connections ([`TcPath::seen`]).
    ///
    /// # Errors
    /// As for [`TcPath::load`].
    pub fn load_watching(peers: usize, flows: u32) -> Result<TcPath, EbpfError> {
        TcPath::load_as(peers, flows, [true, false])
    }

    /// Like [`TcPath::load`], for tests: time and random numbers are those of [`TcPath::set_script`].
    ///
    /// # Errors
    /// As for [`TcPath::load`].
    pub fn load_scripted(peers: usize, flows: u32) -> Result<TcPath, EbpfError> {
        TcPath::load_as(peers, flows, [true, true])
    }

    fn load_as(peers: usize, flows: u32, [watches, is_scripted]: [bool; 2]) -> Result<TcPath, EbpfError> {
        let (peers, is_scripted) = (peers.clamp(1, PEERS_MAX) as u32, u32::from(is_scripted));
        let [watched_peers, watched_flows] =
            [peers, flows].map(|count| if watches { count.max(1) } else { 1 });
        let mut ebpf = EbpfLoader::new()
            .map_max_entries("windows", peers)
            .map_max_entries("traffic", peers)
            .map_max_entries("activity_map", peers)
            .map_max_entries("flows", flows.max(1))
            .map_max_entries("sights", watched_peers)
            .map_max_entries("connections", watched_flows)
            .override_global("is_scripted", &is_scripted, true)
            .load(OBJECT)?;
        let watchers = WATCHERS.into_iter().filter(|_| watches);
        for (name, _) in PROGRAMS.into_iter().flatten().chain(watchers) {
            uninterrupted(|| program(&mut ebpf, name)?.load())?;
        }
        let mut ring = |name| RingBuf::try_from(ebpf.take_map(name).expect("path.bpf.c defines it"));
        let (answers, missed) = (ring("answers")?, ring("missed")?);
        Ok(TcPath { ebpf, answers, missed, peers, has_six: false, watches, links: Default::default() })
    }

    /// Attaches the programs to the interface of the uplink with this number, which is below [`UPLINKS_MAX`],
    /// and detaches them from its previous interface. The programs for IPv6 are attached too, if a peer over
    /// IPv6 was set.
    ///
    /// # Errors
    /// Returns the kernel's error, for example if there is no such interface.
    pub fn attach(&mut self, uplink: usize, interface: &str) -> Result<(), ProgramError> {
        self.detach(uplink);
        let versions = &PROGRAMS[..1 + usize::from(self.has_six)];
        let watchers = WATCHERS.iter().filter(|_| self.watches);
        for &(name, at) in versions.iter().flatten().chain(watchers) {
            let program = program(&mut self.ebpf, name)?;
            self.links[uplink].push(hook::attach(program, interface, at)?);
        }
        Ok(())
    }

    /// Detaches the programs from an uplink.
    pub fn detach(&mut self, uplink: usize) {
        self.links[uplink].clear();
    }

    /// Changes the settings of the programs.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn set(&mut self, settings: &PathSettings) -> Result<(), MapError> {
        let [first, last] = settings.sources.map(u32::from);
        let every_ns = 1_000_000_000 / settings.answers.max(1);
        let settings = Settings {
            scheme: settings.steer as u32,
            tunnel_type: settings.tunnel.of as u32,
            tunnel_port: settings.tunnel.port.into(),
            probe_vni: settings.probe_vni,
            source_first: first,
            source_count: last.saturating_sub(first) + 1,
            answers_ns: every_ns,
            answers_burst_ns: every_ns.saturating_mul(settings.answers_burst),
            pinned_ms: settings.pinned_ms,
            gap_us: settings.gap_us,
            noise_ns: settings.noise_ns,
            reroute_bytes: settings.reroute_bytes,
            gain_ns: settings.gain_ns,
            hold_us: settings.hold_us,
            drain_ns: settings.drain_ns,
            half_life_us: settings.half_life_us.max(1),
            echo_port: settings.echo_port.into(),
            uplinks: settings.uplinks,
            peers: settings.peers,
            key: settings.secret,
        };
        array::<{ Settings::SIZE }>(&mut self.ebpf, "settings").set(0, settings.bytes(), 0)
    }

    /// Sets the time, ns, and the state of the random numbers of [`TcPath::load_scripted`]; returns that
    /// state as it was.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn set_script(&mut self, now_ns: u64, random: Option<u64>) -> Result<u64, MapError> {
        let mut map = array::<{ Script::SIZE }>(&mut self.ebpf, "script_map");
        let before = Script::of(&map.get(&0, 0)?).random;
        map.set(0, Script { now_ns, random: random.unwrap_or(before) }.bytes(), 0)?;
        Ok(before)
    }

    /// Sets which addresses are our own: probes to or from other addresses pass. Addresses beyond
    /// [`PEERS_MAX`] are ignored.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn set_locals<A: Copy + Into<IpAddr>>(&mut self, addresses: &[A]) -> Result<(), MapError> {
        let (mut four, mut six) = (Vec::new(), Vec::new());
        for address in addresses.iter().take(PEERS_MAX) {
            match (*address).into() {
                IpAddr::V4(address) => four.push(u32::from_ne_bytes(address.octets())),
                IpAddr::V6(address) => six.push(address.octets()),
            }
        }
        only(&mut self.by_address("locals"), &four)?;
        only(&mut self.by_address("locals6"), &six)
    }

    /// Writes a peer and its paths over the first uplink. Its window, which detects duplicate probes, has the
    /// same index.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn set_peer(&mut self, address: impl Into<IpAddr>, peer: &PathPeer) -> Result<(), MapError> {
        self.set_peer_over(0, peer.index, address, peer)
    }

    /// Writes a peer and its paths over the uplink with this number. The peer's window, which detects
    /// duplicate probes, has the index `window`, which must be the same over all uplinks.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn set_peer_over(
        &mut self,
        uplink: u32,
        window: u32,
        address: impl Into<IpAddr>,
        peer: &PathPeer,
    ) -> Result<(), MapError> {
        let paths = &peer.paths[..peer.paths.len().min(PATHS_MAX)];
        let usable = || paths.iter().filter(|path| path.weight > 0);
        let mut value = Peer {
            index: peer.index.min(self.peers - 1),
            window: window.min(self.peers - 1),
            congested: paths.iter().zip(0..).map(|(path, bit)| u32::from(path.congested) << bit).sum(),
            answer_ports: usable().count() as u32,
            ..Peer::default()
        };
        for (port, path) in value.answer_port.iter_mut().zip(usable()) {
            *port = path.port.into();
        }
        for (at, path) in paths.iter().enumerate() {
            value.port[at] = path.port.into();
            value.cost[at] = path.cost_ns;
            value.weight[at] = path.weight.min(1 << 16);
        }
        match address.into() {
            IpAddr::V4(address) => {
                let key = key(address, uplink);
                self.by_address::<[u8; PeerKey::SIZE], [u8; Peer::SIZE]>("peers").insert(
                    key,
                    value.bytes(),
                    0,
                )
            }
            IpAddr::V6(address) => {
                self.has_six = true;
                self.by_address::<[u8; PeerKey6::SIZE], [u8; Peer::SIZE]>("peers6").insert(
                    key6(address, uplink),
                    value.bytes(),
                    0,
                )
            }
        }
    }

    /// Removes a peer over the first uplink: frames to it then pass untouched, and its probes are not
    /// answered.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn remove_peer(&mut self, address: impl Into<IpAddr>, index: u32) -> Result<(), MapError> {
        match address.into() {
            IpAddr::V4(address) => {
                let mut peers = self.by_address::<[u8; PeerKey::SIZE], [u8; Peer::SIZE]>("peers");
                peers.remove(&key(address, 0))?;
            }
            IpAddr::V6(address) => {
                let mut peers = self.by_address::<[u8; PeerKey6::SIZE], [u8; Peer::SIZE]>("peers6");
                peers.remove(&key6(address, 0))?;
            }
        }
        let mut windows = array::<{ Window::SIZE }>(&mut self.ebpf, "windows");
        windows.set(index.min(self.peers - 1), Window::default().bytes(), 0)
    }

    /// Pins the port of a flow that was reported by [`TcPath::missed`]: the kernel's, if `port` is `None`.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn pin(
        &mut self,
        key: PathFlowKey,
        kernel_port: u16,
        port: Option<u16>,
        now_ns: u64,
    ) -> Result<(), MapError> {
        let (decision, port) = (u16::from(port.is_none()), port.unwrap_or(kernel_port));
        let flow = Flow { last_ns: now_ns, kernel_port, decision, port: port.into(), ..Flow::default() };
        let mut flows = self.by_address::<[u8; FlowKey::SIZE], [u8; Flow::SIZE]>("flows");
        flows.insert(key.0.bytes(), flow.bytes(), 0)
    }

    /// Returns a reader of the flows, which also works from another thread.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn flows(&self) -> Result<PathFlows, MapError> {
        let map = self.ebpf.map("flows").expect("path.bpf.c defines it");
        let Map::LruHashMap(data) = map else { unreachable!("path.bpf.c defines it so") };
        let own = data.fd().as_fd().try_clone_to_owned()?;
        Ok(PathFlows(HashMap::try_from(Map::LruHashMap(MapData::from_fd(own)?))?))
    }

    /// Returns the number of frames by outcome.
    #[must_use]
    pub fn counters(&self) -> PathCounters {
        let map = self.ebpf.map("counters").expect("path.bpf.c defines it");
        let map = PerCpuArray::<&MapData, u64>::try_from(map).expect("numbers");
        let of = |at| map.get(&(at as u32), 0).map(|cpus| cpus.iter().sum()).unwrap_or_default();
        PathCounters {
            steered: of(layout::STEERED),
            unknown_peer: of(layout::UNKNOWN_PEER),
            unsteered: of(layout::UNSTEERED),
            held: of(layout::HELD),
            unheld: of(layout::UNHELD),
            probes_sent: of(layout::PROBES_SENT),
            answered: of(layout::ANSWERED),
            stranger: of(layout::STRANGER),
            malformed: of(layout::MALFORMED),
            bad_cookie: of(layout::BAD_COOKIE),
            repeated: of(layout::REPEATED),
            limited: of(layout::LIMITED),
            collected: of(layout::COLLECTED),
            uncollected: of(layout::UNCOLLECTED),
            header_malformed: of(layout::HEADER_MALFORMED),
            header_unknown: of(layout::HEADER_UNKNOWN),
            scattered: of(layout::SCATTERED),
        }
    }

    /// Returns the traffic on the first `paths` paths of a peer, given its index.
    #[must_use]
    pub fn traffic(&self, index: u32, paths: usize) -> Vec<PathTraffic> {
        let map = self.ebpf.map("traffic").expect("path.bpf.c defines it");
        let map =
            PerCpuArray::<&MapData, [u8; Traffic::SIZE]>::try_from(map).expect("its values have this size");
        let values = map.get(&index, 0);
        let mut sums = vec![PathTraffic::default(); paths.min(PATHS_MAX)];
        for cpu in values.iter().flat_map(|values| values.iter()) {
            for (sum, one) in sums.iter_mut().zip(Traffic::of(cpu).paths) {
                sum.packets += one.packets;
                sum.bytes += one.bytes;
                sum.new_flows += one.new_flows;
                sum.after_gap += one.after_gap;
                sum.after_failure += one.after_failure;
                sum.after_rehash += one.after_rehash;
                sum.without_gap += one.without_gap;
            }
        }
        sums
    }

    /// Returns the current traffic to a peer, given its index, with a single system call.
    #[must_use]
    pub fn activity(&self, index: u32) -> PathActivity {
        let map = self.ebpf.map("activity_map").expect("path.bpf.c defines it");
        let map = Array::<&MapData, [u8; Activity::SIZE]>::try_from(map).expect("its values have this size");
        let activity = map.get(&index, 0).map_or_else(|_| Activity::default(), |bytes| Activity::of(&bytes));
        PathActivity {
            last_ns: activity.last_ns,
            loads: activity.loads.map(|load| (load.since_ns, load.bytes)),
            rehashed: activity.rehashed,
        }
    }

    /// Takes an answer that has arrived.
    pub fn answer(&mut self) -> Option<PathAnswer> {
        let item = self.answers.next()?;
        let record = Collected::of(item.first_chunk()?);
        Some(PathAnswer {
            peer: record.peer,
            session: record.session,
            number: record.number,
            port: record.port as u16,
            marked: record.ce != 0,
            ttl: record.hops as u8,
            arrived: record.arrived,
            sent_ns: record.sent_ns,
            reflected_ns: record.reflected_ns,
            received_ns: record.received_ns,
        })
    }

    /// Takes a frame that waits for its port.
    pub fn missed(&mut self) -> Option<PathMissed> {
        let item = self.missed.next()?;
        let record = Missed::of(item.first_chunk()?);
        Some(PathMissed {
            key: PathFlowKey(record.key),
            kernel_port: record.kernel_port as u16,
            frame: record.bytes.get(..record.length as usize)?.to_vec(),
        })
    }

    /// Descriptors that become readable when an answer has arrived, and when a frame waits.
    #[must_use]
    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.answers.as_fd(), self.missed.as_fd()]
    }

    /// Runs the egress program on a frame (`BPF_PROG_TEST_RUN`). Returns its verdict and the frame.
    ///
    /// # Errors
    /// Returns the kernel's error. The kernel requires at least the 14 bytes of an Ethernet header.
    pub fn test_egress(&mut self, frame: &[u8]) -> Result<(i32, Vec<u8>), ProgramError> {
        self.test_run(Self::of_version(["path_egress", "path_egress6"], frame), frame)
    }

    /// Like [`TcPath::test_egress`], for the ingress program.
    ///
    /// # Errors
    /// As for [`TcPath::test_egress`].
    pub fn test_reflect(&mut self, frame: &[u8]) -> Result<(i32, Vec<u8>), ProgramError> {
        self.test_run(Self::of_version(["path_reflect", "path_reflect6"], frame), frame)
    }

    /// Runs the programs that observe TCP connections: the one at the egress, or the one at the ingress.
    ///
    /// # Errors
    /// As for [`TcPath::test_egress`].
    pub fn test_watch(&mut self, frame: &[u8], leaves: bool) -> Result<(i32, Vec<u8>), ProgramError> {
        self.test_run(WATCHERS[usize::from(!leaves)].0, frame)
    }

    /// The program that handles a frame.
    fn of_version<'a>([four, six]: [&'a str; 2], frame: &[u8]) -> &'a str {
        if frame.get(12..14) == Some(&[0x86, 0xdd]) { six } else { four }
    }

    fn test_run(&mut self, name: &str, frame: &[u8]) -> Result<(i32, Vec<u8>), ProgramError> {
        let mut out = vec![0; frame.len() + 64];
        let options =
            TestRunOptions { data_in: Some(frame), data_out: Some(&mut out), ..TestRunOptions::new() };
        let result = program(&mut self.ebpf, name)?.test_run(options)?;
        out.truncate(result.data_size_out as usize);
        Ok((result.return_value as i32, out))
    }

    fn by_address<K: aya::Pod, V: aya::Pod>(&mut self, name: &str) -> HashMap<&mut MapData, K, V> {
        let map = self.ebpf.map_mut(name).expect("path.bpf.c defines it");
        HashMap::try_from(map).expect("its keys and values have this size")
    }
}

fn key(address: Ipv4Addr, uplink: u32) -> [u8; PeerKey::SIZE] {
    PeerKey { address: u32::from_ne_bytes(address.octets()), uplink }.bytes()
}

fn key6(address: Ipv6Addr, uplink: u32) -> [u8; PeerKey6::SIZE] {
    PeerKey6 { address: Plain::read(&address.octets()), uplink }.bytes()
}

/// Removes all keys of a map except these, and adds those that are missing.
fn only<K: aya::Pod + PartialEq>(
    map: &mut HashMap<&mut MapData, K, u32>,
    wanted: &[K],
) -> Result<(), MapError> {
    let there: Vec<K> = map.keys().filter_map(Result::ok).collect();
    for gone in there.iter().filter(|one| !wanted.contains(one)) {
        map.remove(gone)?;
    }
    for new in wanted.iter().filter(|one| !there.contains(one)) {
        map.insert(new, 1, 0)?;
    }
    Ok(())
}

/// Returns how many programs are at the tc hooks of an interface, regardless of who attached them.
///
/// # Errors
/// Returns the kernel's error, for example if there is no such interface.
pub fn programs_at(interface: &str) -> Result<usize, ProgramError> {
    let mut count = 0;
    for at in [TcAttachType::Egress, TcAttachType::Ingress] {
        count += hook::programs_at(interface, at)?.len();
    }
    Ok(count)
}

fn array<'a, const N: usize>(ebpf: &'a mut Ebpf, name: &str) -> Array<&'a mut MapData, [u8; N]> {
    let map = ebpf.map_mut(name).expect("path.bpf.c defines it");
    Array::try_from(map).expect("its values have this size")
}

fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut SchedClassifier, ProgramError> {
    ebpf.program_mut(name).expect("path.bpf.c defines it").try_into()
}
