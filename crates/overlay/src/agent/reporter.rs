//! Reports to operators: log lines, and what the app shows.

use super::change::Cause;
use crate::bpf::{
    OVERLAY_COUNTS, OverlayEntries, OverlayFlow, OverlayFlows, OverlayFrames, STAMP_GLOBAL, STAMP_POLICY,
    TcOverlay,
};
use crate::{FlowRow, FlowsPage, FlowsWanted, Overlay, OverlayReport};
use std::collections::BTreeMap;
use std::net::IpAddr;
use tracing::{info, warn};
use weir_app::RequestId;
use weir_app::clock::since_1970_ns;
use weir_app::task::Publisher;

/// How often the board is written, in nanoseconds.
const EVERY_NS: u64 = 50_000_000;

/// Rows of an answer after which reading stops. As JSON values in memory they take some ten megabytes.
const ROWS: usize = 4096;

/// Sets of flows read in one step.
const SETS: u32 = 256;

/// How often lost flow records are reported, in nanoseconds.
const EVERY_LOSS_NS: u64 = 1_000_000_000;

/// The reports of an app.
pub struct Reporter {
    name: String,
    board: Publisher<Overlay>,
    obstacle: Option<String>,
    has_told: bool,
    causes: BTreeMap<&'static str, u64>,
    /// Counts of previous programs.
    before: Sums,
    next_ns: u64,
    /// Flow records and their packets that were reported as lost, and when more may be reported.
    lost: [u64; 2],
    is_mark_in_use: bool,
    say_lost_ns: u64,
    /// How often the kernel sees a frame of each flow and direction, in nanoseconds, and why not less often.
    refresh: (u64, Option<&'static str>),
}

/// Counts of programs.
#[derive(Clone, Default)]
struct Sums {
    frames: [Vec<(&'static str, u64)>; 2],
    entries: Vec<(&'static str, u64)>,
}

impl Reporter {
    pub fn new(name: String, board: Publisher<Overlay>) -> Reporter {
        Reporter {
            name,
            board,
            obstacle: None,
            has_told: false,
            causes: BTreeMap::new(),
            before: Sums::default(),
            next_ns: 0,
            lost: [0; 2],
            is_mark_in_use: false,
            say_lost_ns: 0,
            refresh: (0, None),
        }
    }

    /// Records how often the kernel sees a frame of each flow and direction, in nanoseconds, and why not less
    /// often. Reports a change.
    pub fn refresh(&mut self, refresh: (u64, Option<&'static str>)) {
        let before = std::mem::replace(&mut self.refresh, refresh);
        let ms = refresh.0 / 1_000_000;
        match (before.1, refresh.1) {
            (_, Some(why)) if before != refresh => self.say(&format!("`refresh` is {ms} ms, because {why}")),
            (Some(_), None) => self.say(&format!("`refresh` is {ms} ms again")),
            (_, _) => {}
        }
    }

    /// Records whether the programs are attached; logs a change.
    pub fn obstacle(&mut self, obstacle: Option<String>) {
        if self.has_told && obstacle == self.obstacle {
            return;
        }
        self.has_told = true;
        match &obstacle {
            Some(why) => warn!("{}: {why}; weir will retry, and traffic takes the slow path", self.name),
            None => info!("{}: the programs are active", self.name),
        }
        let mut snapshot = self.board.look();
        let what = obstacle.clone().unwrap_or_else(|| "the programs are active".to_string());
        snapshot.note(since_1970_ns(), what);
        snapshot.obstacle = obstacle.clone();
        self.obstacle = obstacle;
    }

    /// Reports a message, in the log and on the board.
    pub fn say(&self, what: &str) {
        info!("{}: {what}", self.name);
        self.board.look().note(since_1970_ns(), what.to_string());
    }

    /// Counts an invalidation by cause.
    pub fn count(&mut self, cause: Cause) {
        *self.causes.entry(cause.name()).or_default() += 1;
    }

    /// Writes the board now and then, and has flows listed if a client is waiting for them.
    pub fn report(
        &mut self,
        now_ns: u64,
        programs: &TcOverlay,
        pods: &BTreeMap<u32, (String, u32)>,
        nodes: &BTreeMap<IpAddr, u32>,
    ) {
        let wanted = std::mem::take(&mut self.board.look().queries);
        if !wanted.is_empty()
            && let Ok(flows) = programs.flows()
        {
            let names = pods.iter().map(|(index, (name, _))| (*index, name.clone())).collect();
            let refresh_ns = self.refresh.0;
            let reading = FlowReading { flows, now_ns, names, stamps: programs.stamps(), refresh_ns };
            read(reading, self.board.clone(), wanted);
        }
        if now_ns < self.next_ns {
            return;
        }
        self.next_ns = now_ns + EVERY_NS;
        let Sums { frames, entries } = self.before.with(programs);
        self.say_lost(now_ns, &entries);
        let mut board = self.board.look();
        board.now_ns = since_1970_ns();
        board.report = OverlayReport {
            refresh_ns: Some(self.refresh.0),
            pods: pods.values().map(|(name, _)| name.clone()).collect(),
            nodes: nodes.keys().copied().collect(),
            frames,
            entries,
            causes: self.causes.clone(),
        };
    }

    /// Reports lost flow records, once in a while.
    fn say_lost(&mut self, now_ns: u64, entries: &[(&'static str, u64)]) {
        let of = |name| entries.iter().find(|(one, _)| *one == name).map_or(0, |(_, count)| *count);
        let lost = [of("overlay_lost_records"), of("overlay_lost_packets")];
        if lost == self.lost || now_ns < self.say_lost_ns {
            return;
        }
        let [records, packets] = [lost[0] - self.lost[0], lost[1] - self.lost[1]];
        warn!(
            "{}: lost {records} flow records of {packets} packets: flows come and go faster than they are \
             read",
            self.name
        );
        (self.lost, self.say_lost_ns) = (lost, now_ns + EVERY_LOSS_NS);
    }

    /// Reports that another program uses bits of the mark, when that is new.
    pub fn mark_in_use(&mut self, mark: Option<u32>) {
        if let Some(mark) = mark.filter(|_| !self.is_mark_in_use) {
            self.say(&format!(
                "another program changes bits {mark:#x} of skb->mark, so nothing is learnt: choose other \
                 bits for `mark`"
            ));
        }
        self.is_mark_in_use = mark.is_some();
    }

    /// Reports how many packets of flow records the collector did not take at the end.
    pub fn missed(&self, packets: u64) {
        if packets > 0 {
            warn!("{}: lost flow records of {packets} packets: the collector did not accept them", self.name);
        }
    }

    /// Keeps the counts of programs that are about to be removed.
    pub fn end(&mut self, programs: &TcOverlay) {
        self.before = self.before.with(programs);
    }
}

impl Sums {
    /// Returns the sums including what the programs have counted.
    fn with(&self, programs: &TcOverlay) -> Sums {
        let add = |before: &[(&'static str, u64)], now: Vec<(&'static str, u64)>| {
            let old = |name| before.iter().find(|(one, _)| *one == name).map_or(0, |(_, count)| *count);
            now.into_iter().map(|(name, count)| (name, count + old(name))).collect::<Vec<_>>()
        };
        let [sent, received] = programs.frames().map(|one| frames(&one));
        let [sent_before, received_before] = &self.frames;
        Sums {
            frames: [add(sent_before, sent), add(received_before, received)],
            entries: add(&self.entries, entries(&programs.entries())),
        }
    }
}

/// The context for reading flows, and for interpreting their numbers.
struct FlowReading {
    flows: OverlayFlows,
    now_ns: u64,
    /// Names of pods' interfaces, by index.
    names: BTreeMap<u32, String>,
    stamps: Vec<u64>,
    refresh_ns: u64,
}

impl FlowReading {
    /// Returns flows: as many as an answer may have, or the requested one. They are never all in memory.
    fn page(&self, wanted: FlowsWanted) -> FlowsPage {
        let mut page = FlowsPage { refresh_ns: self.refresh_ns, ..FlowsPage::default() };
        let mut from = Some(if let FlowsWanted::From(from) = wanted { from } else { 0 });
        while let Some(at) = from.filter(|_| page.rows.len() < ROWS) {
            let (flows, next) = self.flows.page(at, SETS);
            let rows = flows.iter().map(|flow| self.row(flow));
            page.rows.extend(rows.filter(|row| match wanted {
                FlowsWanted::From(_) => true,
                FlowsWanted::One(pair) => pair.has(row),
            }));
            from = next;
        }
        FlowsPage { next: from, ..page }
    }

    fn row(&self, flow: &OverlayFlow) -> FlowRow {
        let stamp = |at: u32| self.stamps.get(at as usize).copied().unwrap_or_default();
        let name = |index| self.names.get(&index).cloned().unwrap_or_default();
        FlowRow {
            addresses: flow.key.addresses,
            ports: flow.key.ports,
            protocol: flow.key.protocol,
            node: flow.node,
            pod: name(flow.pod),
            peer: flow.peer.map(name),
            known: flow.learnt_ns.map(|learnt| learnt > 0),
            usable: flow.is_usable,
            stamps: flow.stamps,
            stamps_now: flow.stamp_of.map(|own| [stamp(STAMP_GLOBAL), stamp(STAMP_POLICY), stamp(own)]),
            age_ns: flow.learnt_ns.map(|learnt| self.now_ns.saturating_sub(learnt)),
            translated: flow.translated.map(|nat| nat.map(|nat| (nat.addresses, nat.ports))),
            packets: flow.packets,
            bytes: flow.bytes,
            idle_ns: self.now_ns.saturating_sub(flow.used_ns),
        }
    }
}

/// Reads flows on a separate thread: there may be a million, and the lease cannot wait.
fn read(reading: FlowReading, board: Publisher<Overlay>, wanted: Vec<(RequestId, FlowsWanted)>) {
    let read = move || {
        for (id, wanted) in wanted {
            let page = reading.page(wanted);
            board.look().read.push((id, page));
        }
    };
    // Waiting clients time out with a message that there is no answer.
    let _ = std::thread::Builder::new().name("weir-flows".into()).spawn(read);
}

fn frames(frames: &OverlayFrames) -> Vec<(&'static str, u64)> {
    OVERLAY_COUNTS.iter().map(|&name| (name, frames.of(name))).collect()
}

fn entries(entries: &OverlayEntries) -> Vec<(&'static str, u64)> {
    let [sent, received] = entries.learnt;
    let [global, policy, node, pod] = entries.void;
    vec![
        ("overlay_learnt_sent", sent),
        ("overlay_learnt_received", received),
        ("overlay_not_established", entries.not_established),
        ("overlay_outdated", entries.outdated),
        ("overlay_unlearnable", entries.unlearnable),
        ("overlay_evicted", entries.evicted),
        ("overlay_forgotten", entries.forgotten),
        ("overlay_void_by_all", global),
        ("overlay_void_by_policy", policy),
        ("overlay_void_by_node", node),
        ("overlay_void_by_pod", pod),
        ("overlay_nat_asked", entries.asked),
        ("overlay_flooded", entries.flooded),
        ("overlay_idle", entries.idled),
        ("overlay_given_sent", entries.gone_packets[0]),
        ("overlay_given_received", entries.gone_packets[1]),
        ("overlay_lost_records", entries.lost[0]),
        ("overlay_lost_packets", entries.lost[1]),
    ]
}
