//! The daemon's answers, and the rows of the sections that it shows.
//!
//! Fields that are missing in the answer of another version have their default.

use crate::addresses::AddressName;
use serde_json::{Map, Value};

/// Numbers by name, in the daemon's order.
pub type Counts = Map<String, Value>;

/// Defines structs that are written to JSON and read from it, and their schemas ([`crate::Described`]).
#[macro_export]
macro_rules! answers {
    ($($(#[doc = $about:literal])* $name:ident { $(
        $(#[doc = $doc:literal])* $(#[serde($($how:tt)*)])? $field:ident: $type:ty,
    )* })*) => { $(
        $(#[doc = $about])*
        #[derive(Clone, Debug, Default, PartialEq, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(default)]
        pub struct $name {
            $($(#[doc = $doc])* $(#[serde($($how)*)])? pub $field: $type,)*
        }

        impl $crate::Described for $name {
            fn schema() -> ::serde_json::Value {
                $crate::describe::object(concat!($($about),*), vec![$((
                    stringify!($field),
                    concat!($($doc),*),
                    concat!($(stringify!($($how)*))?),
                    <$type as $crate::Described>::schema(),
                )),*])
            }
        }
    )* };
}

answers! {
    /// Why a request was refused.
    ErrorAnswer {
        /// A sentence that names the field.
        error: String,
    }

    /// The progress of a reload.
    Progress {
        /// The number of the reload.
        reload: u64,
        /// What it does.
        stage: String,
        /// How long it has taken, in seconds.
        seconds: u64,
    }

    /// A reload that has ended.
    Reloaded {
        /// One sentence about the state that was kept and removed.
        summary: String,
        /// The generation of the new program.
        generation: u64,
    }

    /// The daemon's process.
    Process {
        /// Its number.
        pid: u32,
        /// Its arguments, without the name of the program.
        arguments: Vec<String>,
        /// Its working directory.
        directory: Option<String>,
        /// The device and the inode of its executable.
        executable: [u64; 2],
        /// Its control group, if a unit of systemd runs it.
        unit: Option<String>,
        /// Whether the unit belongs to a user manager.
        user_manager: bool,
        /// How long the process may be silent, in microseconds.
        watchdog_usec: Option<u64>,
    }

    /// The node begins or ends to drain.
    Drained {
        /// Whether the node is draining now.
        draining: bool,
        /// Whether the request has changed that.
        changed: bool,
        /// How many VIPs were announced by routes before.
        withdrawn: u64,
    }

    /// Whether a node should get traffic.
    Ready {
        /// Whether the node should get traffic.
        ready: bool,
        /// Whether an operator drains the node.
        draining: bool,
        /// Why the node should not get traffic.
        reasons: Vec<String>,
    }

    /// A VIP that is announced by a route, or should be.
    Route {
        /// The prefix.
        vip: String,
        /// Whether the route is there.
        announced: bool,
        /// Its metric.
        metric: Option<u32>,
        /// How long it has been announced, or not been announced, in seconds.
        since_s: u64,
        /// The services that have the VIP.
        services: String,
        /// Why the VIP is not announced, or has the higher metric.
        why: Option<String>,
    }

    /// A page of entries, as changes that add them.
    Lines {
        /// The changes.
        entries: Vec<String>,
        /// Where the next page begins.
        next: Option<u32>,
    }

    /// Where all frames went.
    Ledger {
        /// Frames that ports received.
        received: u64,
        /// Frames that apps and `weir inject` sent.
        originated: u64,
        /// Copies of frames that are sent more than once.
        copied: u64,
        /// Frames that ports transmitted.
        transmitted: u64,
        /// Frames passed to the kernel.
        to_kernel: u64,
        /// Frames passed to apps.
        to_app: u64,
        /// Frames that wait in rings.
        held: u64,
        /// Dropped frames by reason.
        dropped: Counts,
    }

    /// A reason for which frames were dropped.
    Drops {
        /// The reason.
        reason: String,
        /// How many frames were dropped.
        frames: u64,
        /// The meaning of the reason, in one sentence.
        meaning: String,
        /// The flows that lost most of these frames, worst first.
        flows: Vec<DroppedFlow>,
    }

    /// A flow that lost frames.
    DroppedFlow {
        /// The flow: protocol, addresses and ports of the outer headers, as they were when its frames were
        /// dropped.
        flow: String,
        /// The number of frames, estimated from samples.
        frames: u64,
    }

    /// The kernel's handling of the frames of a port.
    KernelPort {
        /// The port's name.
        port: String,
        /// Whether the program runs in the kernel.
        runs: bool,
        /// Why not.
        obstacle: Option<String>,
        /// Frames that the program has handled in the kernel.
        decided: u64,
        /// Frames that the program has left to the engine, by reason.
        left: Counts,
    }

    /// A port.
    Port {
        /// Its name.
        name: String,
        /// Its modes, one unless workers have different ones.
        mode: String,
        /// The state of its link.
        link: Option<String>,
        /// Frames received.
        received: u64,
        /// Their bytes.
        received_bytes: u64,
        /// Frames transmitted.
        transmitted: u64,
        /// Their bytes, and those of frames that the kernel's program sent and the device dropped: of these,
        /// only the number is known.
        transmitted_bytes: u64,
        /// Frames passed to the kernel.
        to_kernel: u64,
        /// Frames in the transmit ring.
        held: u64,
        /// Frames lost before a worker saw them.
        lost_before: u64,
        /// How often no frame of the pool was free to receive into.
        starved: u64,
        /// Frames that were too long.
        oversize: u64,
        /// Frames in the ring when the interface disappeared.
        gone: u64,
        /// Counts that only some kinds of ports have.
        extra: Counts,
    }

    /// A pipe.
    Pipe {
        /// Its name.
        name: String,
        /// Its type.
        r#type: String,
        /// The number of its entries.
        entries: u64,
        /// The number of entries, or of flows of all workers, for which the pipe has room.
        capacity: u64,
        /// Packets that hit an entry.
        hits: u64,
        /// Packets that missed.
        misses: u64,
        /// Where packets that hit go.
        forward: String,
        /// Where packets that missed go.
        miss: String,
        /// For flow pipes: the number of flows.
        #[serde(skip_serializing_if = "Option::is_none")]
        flows: Option<u64>,
        /// For flow pipes: the room for flows of each worker.
        #[serde(skip_serializing_if = "Option::is_none")]
        capacity_per_worker: Option<u64>,
        /// For flow pipes: packets without a flow because the table was full.
        #[serde(skip_serializing_if = "Option::is_none")]
        unflowed_full: Option<u64>,
    }

    /// A shared counter.
    Counter {
        /// Its name.
        name: String,
        /// The packets.
        packets: u64,
        /// Their bytes.
        bytes: u64,
    }

    /// A NAT pool.
    NatPool {
        /// Its name.
        name: String,
        /// Its prefixes.
        addresses: String,
        /// The range of its ports.
        ports: String,
        /// Pairs of an address and a port that flows have.
        used: u64,
        /// Pairs that no flow has.
        free: u64,
    }

    /// A group.
    Group {
        /// Its name.
        name: String,
        /// Its number.
        number: Option<u16>,
        /// The number of its buckets.
        buckets: u64,
        /// Its targets.
        targets: Vec<Target>,
        /// Further facts, if an app fills its buckets.
        #[serde(flatten)]
        given: Option<Given>,
    }

    /// A target of a group.
    Target {
        /// Its name.
        name: String,
        /// Its weight, which is fractional during a slow start.
        weight: Value,
        /// The number of its buckets.
        buckets: u64,
    }

    /// The traffic and the moves of buckets that an app fills.
    Given {
        /// Packets of all buckets.
        packets: u64,
        /// Their bytes.
        bytes: u64,
        /// Buckets that were moved.
        moved: u64,
        /// Buckets that were in use when they were moved.
        moved_busy: u64,
        /// Buckets that wait to be moved.
        pending: u64,
    }

    /// The parts of a node that other nodes of its fleet compare.
    FleetNode {
        /// The version of weir.
        version: String,
        /// A checksum of its configuration's text, without the values of the node.
        configuration: String,
        /// Its rings.
        rings: Rings,
        /// Its NAT pools.
        nat_pools: Vec<NatPool>,
        /// How many flows the node keeps of each service.
        flows: Vec<ServiceFlows>,
    }

    /// The flows of a service.
    ServiceFlows {
        /// The service.
        service: String,
        /// Its live flows.
        flows: u64,
    }

    /// The rings: which back end each flow gets.
    Rings {
        /// The version of the checksums.
        version: String,
        /// A checksum of `hash_seed`.
        seed: String,
        /// The checksum of all rings as they are configured, which is equal on all nodes of a fleet.
        configured: String,
        /// The checksum of all rings as they are now, equal while nodes agree about the health of back ends.
        #[serde(skip_serializing_if = "Option::is_none")]
        effective: Option<String>,
        /// The services and groups, sorted by name.
        services: Vec<Ring>,
    }

    /// The ring of a service or a group.
    Ring {
        /// The name of the service; that of a group begins with `group/`.
        name: String,
        /// The checksum of the ring as it is configured.
        configured: String,
        /// The checksum of the ring as it is now.
        #[serde(skip_serializing_if = "Option::is_none")]
        effective: Option<String>,
        /// How back ends are chosen.
        scheduler: String,
        /// The number of slots.
        size: u64,
        /// How packets are assigned.
        by: String,
        /// Whether flows keep their back ends.
        keeps: bool,
        /// The lengths of the prefixes that are hashed, and whether clients are remembered.
        affinity: Option<String>,
        /// A checksum of the ring's other seeds and keys.
        secrets: String,
        /// The destinations: number of the protocol, prefix, ports.
        destinations: Vec<String>,
        /// The NAT pool from which its flows take their source.
        nat_pool: Option<String>,
        /// The back ends.
        back_ends: Vec<RingBackEnd>,
    }

    /// A back end of a ring.
    RingBackEnd {
        /// Its name.
        name: String,
        /// Its address, and its port if that is rewritten.
        address: Option<String>,
        /// How packets are sent to it.
        mode: String,
        /// Its weight when nothing is wrong.
        weight: u64,
        /// How many slots it has now.
        slots: u64,
        /// Its health in one word.
        health: String,
        /// The reason; empty if there is nothing to explain.
        reason: String,
    }

    /// A worker.
    Worker {
        /// Its number.
        worker: usize,
        /// Frames received.
        received: u64,
        /// Frames handed over to other workers.
        handed_over: u64,
        /// Frames in rings.
        held: u64,
        /// Breaths: turns of the worker's loop.
        breaths: u64,
        /// Quantiles of the processor time of breaths, in microseconds.
        p50_us: f64,
        /// See `p50_us`.
        p99_us: f64,
        /// See `p50_us`.
        p9999_us: f64,
        /// The longest processor time of a breath, in microseconds.
        longest_us: f64,
        /// A quantile of the duration of breaths, in microseconds.
        wall_p9999_us: f64,
        /// The duration of the longest breath, in microseconds.
        wall_longest_us: f64,
    }

    /// How long breaths have taken.
    Breaths {
        /// By the clock.
        wall: Times,
        /// The processor time of the breaths.
        processor: Times,
    }

    /// A histogram of durations.
    Times {
        /// The number of durations.
        count: u64,
        /// The sum of all durations, in microseconds.
        total_us: f64,
        /// Quantiles, in microseconds.
        p50_us: f64,
        /// See `p50_us`.
        p99_us: f64,
        /// See `p50_us`.
        p9999_us: f64,
        /// The longest duration, in microseconds.
        longest_us: f64,
        /// The data from which a reader can subtract an earlier answer: the upper limit of each bucket in
        /// nanoseconds, if it has one, and its count.
        buckets: Vec<(Option<u64>, u64)>,
    }

    /// Flow deltas of a reason.
    Deltas {
        /// The reason.
        reason: String,
        /// The number of deltas.
        deltas: u64,
        /// The packets in these deltas.
        packets: u64,
        /// The bytes in these deltas.
        bytes: u64,
    }

    /// Where the packets that met flow pipes are: `met` = `live` + `deltas` + `unflowed`.
    FlowAccount {
        /// Packets that met a flow pipe.
        met: u64,
        /// Packets in live flows.
        live: u64,
        /// Packets in deltas.
        deltas: u64,
        /// Packets that no flow counts, by reason.
        unflowed: Counts,
        /// Packets in deltas that are on their way to the collector.
        waiting: u64,
        /// Packets in deltas that flows have sent but that were neither delivered nor wait to be sent, or
        /// that were read but never sent.
        lost: u64,
        /// Whether the account balances.
        balances: bool,
    }

    /// An entry.
    EntryRow {
        /// Its pipe.
        pipe: String,
        /// The entry, as in the configuration.
        entry: String,
        /// Whether it was added at run time.
        run_time: bool,
        /// Packets that hit the entry.
        packets: u64,
        /// Their bytes.
        bytes: u64,
        /// When the last packet hit it, in milliseconds of the daemon's own clock, modulo 2^32: only
        /// differences mean something.
        last_ms: u64,
    }

    /// A flow.
    FlowRow {
        /// Its pipe.
        pipe: String,
        /// Its key.
        flow: String,
        /// The decision for the flow.
        decision: String,
        /// Its packets.
        packets: u64,
        /// Their bytes.
        bytes: u64,
        /// When the flow began, in milliseconds of the daemon's own clock, modulo 2^32: only differences
        /// mean something.
        first_ms: u64,
        /// When the flow's last packet arrived, by the same clock.
        last_ms: u64,
        /// The state of a TCP connection.
        state: Option<String>,
        /// The flow's address and port after NAT.
        nat: Option<String>,
        /// Whether the kernel handles the flow's packets.
        in_kernel: bool,
        /// The name of its source address, if it has one.
        #[serde(skip_serializing_if = "Option::is_none")]
        source_name: Option<AddressName>,
        /// The name of its destination address, if it has one.
        #[serde(skip_serializing_if = "Option::is_none")]
        destination_name: Option<AddressName>,
    }

    /// A source of names of addresses.
    NameSource {
        /// A file, or `api`.
        source: String,
        /// Whether it works: `ok`, `starting`, or `failing` if it cannot be read.
        state: String,
        /// How many names it has.
        names: usize,
        /// How long ago a file was last read, in seconds.
        age_s: Option<u64>,
        /// Identifies the names that clients have set.
        etag: Option<String>,
        /// Why it is failing.
        reason: String,
    }

    /// The sections that clients interpret; sections that were not requested are empty.
    Shown {
        /// The generation of the program.
        generation: Option<u64>,
        /// The configuration file.
        file: String,
        /// How long the daemon has run, in seconds.
        uptime_s: u64,
        /// Whether the daemon works, in a few words.
        health: Option<String>,
        /// Lines of the log that were lost.
        log_lost: u64,
        /// Where all frames went.
        ledger: Ledger,
        /// Whether the ledger balances.
        balances: Option<bool>,
        /// What was dropped, by reason.
        drops: Vec<Drops>,
        /// What the kernel does with the frames of each port.
        kernel: Vec<KernelPort>,
        /// The ports.
        ports: Vec<Port>,
        /// The running apps.
        apps: Vec<App>,
        /// The breaths of each worker.
        breath_times: Vec<Breaths>,
        /// How late apps were served.
        events_late: Times,
        /// Where packets that met flow pipes are.
        flow_account: FlowAccount,
    }

    /// Where control over HTTP and the web page are served.
    ControlListener {
        /// The address.
        url: String,
        /// The file with the token.
        token: String,
        /// The file with the read-only token.
        view_token: Option<String>,
    }

    /// A running app.
    App {
        /// Its name.
        name: String,
        /// Its kind.
        kind: String,
        /// Frames that were forwarded to the app.
        punted: u64,
        /// Frames that the app injected.
        injected: u64,
        /// Changes requested by the app that were refused.
        refused: u64,
        /// The counters that only this kind of app has.
        #[serde(flatten)]
        counts: Counts,
    }
}

impl Ledger {
    /// Returns how many frames were dropped.
    #[must_use]
    pub fn drops(&self) -> u64 {
        self.dropped.values().filter_map(Value::as_u64).sum()
    }
}
