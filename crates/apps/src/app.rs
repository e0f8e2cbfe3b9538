//! What an app is while it runs: it is told what happens, one event at a time, and answers with what is to be done.
//!
//! An app has no thread, does not sleep, reads no clock and opens nothing. The daemon's main thread drives it, or replay
//! with its virtual clock; given the same events at the same times it does the same, and so replays to the byte. What an
//! app wrote into the program it may change while it runs ([`Action::Change`]); it knows pipes, groups and ports by name
//! and looks their numbers up in [`App::bind`].
//!
//! The life of one: made from its configuration, [`App::inherit`] after a reload that kept its name and kind,
//! [`App::bind`], [`Event::Start`], a [`Event::Link`] for every port it watches, then whatever happens. At the next reload
//! its successor gets the same, and the app itself as predecessor.

use engine::change::Change;
use engine::program::{GroupId, PortId, Program};
use engine::worker::BucketReport;
use serde_json::Value;
use std::any::Any;
use std::path::Path;

/// One who waits for the answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId(pub u64);

/// A client of an app's socket; never used twice for one app's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u32);

/// What happens to an app.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// It begins: the first event of every instance, also of one that inherited.
    Start,
    /// A frame was forwarded to it.
    Frame {
        /// Under which of the names it listens to ([`App::punts`]).
        app: &'a str,
        /// Where it came in.
        input: PortId,
        /// From the Ethernet header on, without FCS.
        bytes: &'a [u8],
    },
    /// The time it asked for has come ([`App::wake_ns`]), by 2 ms late if nothing heavier is going on.
    Tick,
    /// The state of a port that it watches ([`App::watches`]): at its start, and then when it changes. Looked at every
    /// 2 ms; a port that has no carrier (pcap, mem, some of DPDK's virtual devices) is always up.
    Link {
        /// Which.
        port: PortId,
        /// It has carrier.
        up: bool,
        /// Bits per second, each way; `None`: not known, or down.
        speed_bps: Option<u64>,
    },
    /// The operator asks; to be answered once by [`Action::Answer`], now or later.
    Request {
        /// Who waits.
        id: RequestId,
        /// What `weir app NAME REQUEST` was given: JSON if it is JSON, otherwise the words as one string.
        request: &'a Value,
    },
    /// A group's buckets, asked for by [`Action::ReadBuckets`].
    Buckets {
        /// The group.
        group: GroupId,
        /// Its buckets: counts, moves and what waits are sums over the workers, targets those of the first, from which
        /// another differs only while a move waits.
        report: &'a BucketReport,
    },
    /// A change it asked for was refused, and nothing has changed.
    Refused {
        /// The change.
        change: &'a Change,
        /// Why.
        why: &'a str,
    },
    /// Something happened on its socket ([`App::socket`]).
    Client {
        /// Whose end.
        client: ClientId,
        /// What.
        what: ClientEvent<'a>,
    },
}

/// What happens on an app's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientEvent<'a> {
    /// A client has connected.
    Connected,
    /// It has sent this datagram.
    Datagram(&'a [u8]),
    /// A datagram to it is lost: it was too slow to receive.
    Lost,
    /// It has disconnected, or was disconnected.
    Disconnected,
}

/// What an app wants done. Actions are carried out in their order, before the next event.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Send a frame out of a port. If its transmit ring is full it waits there, in front of data.
    Inject {
        /// The frame, without FCS.
        bytes: Vec<u8>,
        /// The port.
        output: PortId,
    },
    /// Send a frame through the program, as if it had come in by a port.
    InjectThrough {
        /// The frame, without FCS.
        bytes: Vec<u8>,
        /// The port.
        input: PortId,
    },
    /// Change entries, weights, buckets. It counts when all workers have it, and that is before the next event; refused,
    /// [`Event::Refused`] comes.
    Change(Change),
    /// Have [`Event::Buckets`] come.
    ReadBuckets(GroupId),
    /// A line for the operator, in the daemon's output with the app's name in front.
    Say(String),
    /// The answer to a request.
    Answer {
        /// Who waits.
        id: RequestId,
        /// What to tell; an error is one sentence.
        answer: Result<Value, String>,
    },
    /// Send a datagram to a client of the app's socket.
    Tell {
        /// To whom.
        client: ClientId,
        /// The datagram.
        bytes: Vec<u8>,
    },
    /// Send a client away.
    Leave(ClientId),
}

/// A function of weir that runs.
pub trait App: Any + Send {
    /// What the configuration calls it; no two apps of one configuration have the same name.
    fn name(&self) -> &str;

    /// What it is: its key under `apps`.
    fn kind(&self) -> &'static str;

    /// The names under which frames are forwarded to it: those of [`Program::apps`] that are its own. Each has a ring
    /// to itself in every worker, so that a flood on one leaves the others' frames alone.
    fn punts(&self) -> Vec<String> {
        vec![self.name().to_string()]
    }

    /// The ports whose links it wants to hear of, by the numbers of the program it was bound to last.
    fn watches(&self) -> Vec<PortId> {
        Vec::new()
    }

    /// The unix socket (SOCK_SEQPACKET) on which it wants to be reached by other programs.
    fn socket(&self) -> Option<&Path> {
        None
    }

    /// Takes over from the app of the same name and kind that ran before the reload; what it knows by number must be
    /// kept by name.
    ///
    /// ```
    /// # use std::any::Any;
    /// # struct Bond { learnt: Vec<u8> }
    /// # trait App: Any {}
    /// # impl App for Bond {}
    /// # impl Bond {
    /// fn inherit(&mut self, predecessor: Box<dyn App>) {
    ///     let predecessor: Box<dyn Any> = predecessor;
    ///     if let Ok(old) = predecessor.downcast::<Bond>() {
    ///         self.learnt = old.learnt;
    ///     }
    /// }
    /// # }
    /// ```
    fn inherit(&mut self, predecessor: Box<dyn App>) {
        let _ = predecessor;
    }

    /// Looks up the numbers of what it knows by name. Called once, before the first event.
    fn bind(&mut self, program: &Program);

    /// Something happened at `now_ns` (since the daemon's start, or on replay's clock; never going back). What is to be
    /// done is appended to `actions`.
    fn step(&mut self, now_ns: u64, event: Event<'_>, actions: &mut Vec<Action>);

    /// When it wants to be woken by [`Event::Tick`], on the clock of `step`; `None`: it waits for other events. Asked
    /// after every step. A time that has passed means at once, but an app ticks once a millisecond at most.
    fn wake_ns(&self) -> Option<u64> {
        None
    }

    /// Counters of its own, monotone, each a family of the metrics: `weir_app_NAME_total`.
    fn counts(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// What `weir show apps` tells of it besides its counters: an object.
    fn report(&self, now_ns: u64) -> Value {
        let _ = now_ns;
        Value::Object(serde_json::Map::new())
    }
}
