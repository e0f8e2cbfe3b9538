//! The running app: answers from what the thread has published.

use super::board::{FlowRow, FlowsPage, FlowsWanted, OverlayReport};
use super::explain::{Pair, explain};
use super::{Overlay, OverlayPublisher};
use serde_json::{Map, Value, json};
use std::any::Any;
use weir_app::shown::{ago_ms, page_from, without_nulls};
use weir_app::{Action, App, Event, RequestId, Sample, SampleValue};
use weir_program::Program;

/// How often the board is polled while a request waits for flows, in nanoseconds.
const LOOK_NS: u64 = 5_000_000;

/// How long a request waits for them: the thread reads a million in less than a second.
const PATIENCE_NS: u64 = 5_000_000_000;

/// The two directions, as pods see them.
const DIRECTIONS: [&str; 2] = ["sent", "received"];

/// An overlay with a cache in front of it.
#[derive(Clone, Debug)]
pub(super) struct OverlayApp {
    pub overlay: Overlay,
    pub board: OverlayPublisher,
    /// Requests that wait for flows, with their deadlines.
    pub waiting: Vec<(RequestId, u64, FlowsWanted)>,
    pub wake_ns: Option<u64>,
}

impl OverlayApp {
    fn show(&self) -> Value {
        let snapshot = self.board.look().clone();
        let Overlay { name, tunnel, uplink, flows, .. } = &self.overlay;
        let places = self.overlay.pods.as_ref().map(|start| format!("{start}*"));
        let places = self.overlay.bridge.clone().or(places);
        let of = |at: usize| counts(&snapshot.frames[at]);
        let now_ns = snapshot.now_ns;
        let event = |event: &super::OverlayEvent| {
            let ago_ms = ago_ms(now_ns, event.at_ns);
            json!({ "ago_ms": ago_ms, "what": event.what })
        };
        without_nulls(json!({
            "name": name, "tunnel": tunnel, "uplink": uplink, "pods_at": places, "room": flows,
            "obstacle": snapshot.obstacle, "pods": snapshot.pods,
            "nodes": snapshot.nodes.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "frames": { "sent": of(0), "received": of(1) },
            "hit_ratio": { "sent": snapshot.hit_ratio(0), "received": snapshot.hit_ratio(1) },
            "entries": counts(&snapshot.entries),
            "causes": snapshot.causes,
            "events": snapshot.events.iter().map(event).collect::<Vec<_>>(),
        }))
    }

    /// Makes a request wait for flows.
    fn wait(&mut self, id: RequestId, now_ns: u64, wanted: FlowsWanted) {
        self.board.look().wanted.push((id, wanted));
        self.waiting.push((id, now_ns + PATIENCE_NS, wanted));
        self.wake_ns = Some(now_ns + LOOK_NS);
    }

    fn answer(&self, wanted: FlowsWanted, page: &FlowsPage) -> Value {
        match wanted {
            FlowsWanted::From(_) => {
                let rows: Vec<Value> = page.rows.iter().map(flow).map(without_nulls).collect();
                let count = rows.len();
                without_nulls(json!({
                    "name": self.overlay.name, "count": count, "flows": rows, "next": page.next,
                }))
            }
            FlowsWanted::One(pair) => {
                let obstacle = self.board.look().obstacle.clone();
                explain(&pair, &page.rows, self.overlay.refresh_ns, obstacle.as_deref())
            }
        }
    }

    /// Answers waiting requests whose flows have arrived or whose deadline has passed.
    fn answer_waiting(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        let read = std::mem::take(&mut self.board.look().read);
        for (id, page) in read {
            // The request may already have been answered with a timeout.
            let Some(at) = self.waiting.iter().position(|(waits, _, _)| *waits == id) else { continue };
            let (_, _, wanted) = self.waiting.remove(at);
            actions.push(Action::Answer { id, answer: Ok(self.answer(wanted, &page)) });
        }
        let name = &self.overlay.name;
        self.waiting.retain(|&(id, until, _)| {
            if until <= now_ns {
                let why = format!(
                    "the flows of `{name}` cannot be read right now: see `weir show overlay \
                    {name}`"
                );
                actions.push(Action::Answer { id, answer: Err(why) });
            }
            until > now_ns
        });
        self.wake_ns = (!self.waiting.is_empty()).then_some(now_ns + LOOK_NS);
    }
}

/// Reads a request about flows.
fn wanted(request: &str) -> Result<FlowsWanted, String> {
    match (page_from(request, "flows"), request.strip_prefix("explain ")) {
        (Some(from), _) => from.map(FlowsWanted::From),
        (_, Some(pair)) => Pair::read(pair).map(FlowsWanted::One),
        _ => Err("an overlay app answers `show`, `flows` and `explain`".to_string()),
    }
}

fn counts(all: &[(&'static str, u64)]) -> Value {
    Value::Object(all.iter().map(|&(name, count)| (name.to_string(), json!(count))).collect::<Map<_, _>>())
}

fn flow(row: &FlowRow) -> Value {
    let [local, remote] = row.addresses.map(|address| address.to_string());
    json!({
        "local": local, "remote": remote, "local_port": row.ports[0], "remote_port": row.ports[1],
        "protocol": row.protocol, "node": row.node.to_string(), "pod": row.pod, "peer": row.peer,
        "knows_sent": row.known[0], "knows_received": row.known[1],
        "packets": { "sent": row.packets[0], "received": row.packets[1] },
        "bytes": { "sent": row.bytes[0], "received": row.bytes[1] },
        "idle_ms": row.idle_ns / 1_000_000,
    })
}

/// The series of both directions and of causes.
fn samples(snapshot: &OverlayReport) -> Vec<Sample> {
    let one = |name, help, labels, count| Sample { name, help, labels, value: SampleValue::Count(count) };
    let mut all = Vec::new();
    for (direction, frames) in DIRECTIONS.iter().zip(&snapshot.frames) {
        // The sum of the others.
        for (fate, count) in frames.iter().filter(|(fate, _)| *fate != "seen") {
            let labels = vec![("direction", direction.to_string()), ("fate", fate.to_string())];
            all.push(one("overlay_frames", "Frames of pods, by outcome", labels, *count));
        }
    }
    for (cause, count) in &snapshot.causes {
        let labels = vec![("cause", cause.to_string())];
        all.push(one("overlay_changes", "Changes that invalidated entries", labels, *count));
    }
    all
}

impl App for OverlayApp {
    fn name(&self) -> &str {
        &self.overlay.name
    }

    fn kind(&self) -> &'static str {
        "overlay"
    }

    /// If nothing has changed, the thread keeps running, and its board is kept.
    fn inherit(&mut self, predecessor: Box<dyn App>) {
        let predecessor: Box<dyn Any> = predecessor;
        if let Ok(old) = predecessor.downcast::<OverlayApp>() {
            if old.overlay == self.overlay {
                self.board = old.board;
            }
            (self.waiting, self.wake_ns) = (old.waiting, old.wake_ns);
        }
    }

    fn bind(&mut self, _: &Program) {}

    fn step(&mut self, now_ns: u64, event: Event<'_>, actions: &mut Vec<Action>) {
        match event {
            Event::Request { id, request } => match request.as_str().map(str::trim) {
                Some("show") => actions.push(Action::Answer { id, answer: Ok(self.show()) }),
                words => match wanted(words.unwrap_or_default()) {
                    Ok(wanted) => self.wait(id, now_ns, wanted),
                    Err(why) => actions.push(Action::Answer { id, answer: Err(why) }),
                },
            },
            Event::Tick => self.answer_waiting(now_ns, actions),
            _ => {}
        }
    }

    fn wake_ns(&self) -> Option<u64> {
        self.wake_ns
    }

    fn punts(&self) -> Vec<String> {
        Vec::new()
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        self.board.look().entries.clone()
    }

    fn samples(&self) -> Vec<Sample> {
        samples(&self.board.look())
    }

    fn report(&self, _now_ns: u64) -> Value {
        let snapshot = self.board.look();
        json!({ "pods": snapshot.pods.len(), "nodes": snapshot.nodes.len(), "obstacle": snapshot.obstacle })
    }
}
