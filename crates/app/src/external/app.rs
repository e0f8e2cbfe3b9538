//! The app: frames for it go to every client; frames from clients go through a port or the program. Errors of
//! a client are reported to it and counted, and affect no other client.

use super::datagram::{Datagram, DatagramKind, Problem};
use crate::app::{Action, App, ClientEvent, ClientId, Event, MetricHelp};
use serde_json::{Value, json};
use std::any::Any;
use std::path::{Path, PathBuf};
use weir_program::{Origin, PortId, Program};

/// The largest number of clients; each gets a copy of every frame.
pub const CLIENTS_MAX: usize = 8;

/// An app whose logic is outside weir.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct External {
    /// The name used in `forward`.
    pub name: String,
    /// The path on which clients connect.
    pub socket: PathBuf,
    /// Its position in the configuration.
    pub origin: Origin,
    state: SavedState,
    ports: Vec<String>,
}

/// State that survives a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct SavedState {
    clients: Vec<ClientId>,
    delivered: u64,
    missed: u64,
    unheard: u64,
    bad: u64,
}

impl External {
    /// Creates an app whose clients connect to `socket`.
    #[must_use]
    pub fn new(name: String, socket: PathBuf, origin: Origin) -> External {
        External { name, socket, origin, state: SavedState::default(), ports: Vec::new() }
    }

    fn deliver(&mut self, input: PortId, frame: &[u8], actions: &mut Vec<Action>) {
        if self.state.clients.is_empty() {
            self.state.unheard += 1;
            return;
        }
        let port = self.ports.get(input.index()).map_or("", String::as_str);
        let bytes = Datagram { kind: DatagramKind::Punted, port, frame }.bytes();
        self.state.delivered += self.state.clients.len() as u64;
        let tell = |client: &ClientId| Action::SendToClient { client: *client, bytes: bytes.clone() };
        actions.extend(self.state.clients.iter().map(tell));
    }

    fn handle_client(&mut self, client: ClientId, what: ClientEvent<'_>, actions: &mut Vec<Action>) {
        match what {
            ClientEvent::Connected if self.state.clients.len() >= CLIENTS_MAX => {
                let why = format!("{CLIENTS_MAX} clients are already connected");
                actions.extend([refuse(client, &why), Action::Leave(client)]);
            }
            ClientEvent::Connected => self.state.clients.push(client),
            ClientEvent::Disconnected => self.state.clients.retain(|one| *one != client),
            // Nothing is counted for clients that are being disconnected.
            ClientEvent::Lost if self.state.clients.contains(&client) => {
                self.state.delivered = self.state.delivered.saturating_sub(1);
                self.state.missed += 1;
            }
            ClientEvent::Lost => {}
            ClientEvent::Datagram(bytes) => match self.said(bytes) {
                Ok(action) => actions.push(action),
                Err(problem) => {
                    self.state.bad += 1;
                    actions.push(refuse(client, &problem.to_string()));
                }
            },
        }
    }

    fn said(&self, bytes: &[u8]) -> Result<Action, Problem> {
        let Datagram { kind, port, frame } = Datagram::of_client(bytes)?;
        let at =
            self.ports.iter().position(|name| name == port).ok_or_else(|| Problem::Port(port.to_string()))?;
        let (port, bytes) = (PortId(at as u16), frame.to_vec());
        Ok(match kind {
            DatagramKind::Through => Action::InjectThrough { bytes, input: port },
            DatagramKind::Out | DatagramKind::Punted | DatagramKind::Refused => {
                Action::Inject { bytes, output: port }
            }
        })
    }
}

fn refuse(client: ClientId, why: &str) -> Action {
    Action::SendToClient {
        client,
        bytes: Datagram { kind: DatagramKind::Refused, port: "", frame: why.as_bytes() }.bytes(),
    }
}

/// What its metrics mean.
const HELPS: &[MetricHelp] = &[
    ("delivered", "Frames that were sent to clients"),
    ("missed", "Frames that a client was too slow to receive"),
    ("unheard", "Frames for which no client was connected"),
    ("bad", "Datagrams of clients that could not be read"),
];

impl App for External {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> &'static str {
        "external"
    }

    fn socket(&self) -> Option<&Path> {
        Some(&self.socket)
    }

    fn inherit(&mut self, predecessor: Box<dyn App>) {
        let predecessor: Box<dyn Any> = predecessor;
        if let Ok(old) = predecessor.downcast::<External>() {
            self.state = old.state;
        }
    }

    fn bind(&mut self, program: &Program) {
        self.ports = program.ports.iter().map(|port| port.name.clone()).collect();
    }

    fn step(&mut self, _now_ns: u64, event: Event<'_>, actions: &mut Vec<Action>) {
        match event {
            Event::Frame { input, bytes, .. } | Event::TooLong { input, bytes, .. } => {
                self.deliver(input, bytes, actions)
            }
            Event::Client { client, what } => self.handle_client(client, what, actions),
            Event::Request { id, .. } => {
                let answer = Err("an external app takes no requests: send them to its clients".to_string());
                actions.push(Action::Answer { id, answer });
            }
            Event::Start
            | Event::Tick
            | Event::Link { .. }
            | Event::Buckets { .. }
            | Event::Entries { .. }
            | Event::Flows { .. }
            | Event::Refused { .. }
            | Event::Checked { .. }
            | Event::Neighbour { .. }
            | Event::CheckSends { .. }
            | Event::Configured { .. }
            | Event::Amended => {}
        }
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let SavedState { delivered, missed, unheard, bad, .. } = self.state;
        vec![("delivered", delivered), ("missed", missed), ("unheard", unheard), ("bad", bad)]
    }

    fn helps(&self) -> &'static [MetricHelp] {
        HELPS
    }

    fn report(&self, _now_ns: u64) -> Value {
        json!({ "clients": self.state.clients.len(), "socket": self.socket.display().to_string() })
    }
}
