//! The interface of a running app: it receives events, one at a time, and returns actions.
//!
//! An app has no thread, does not sleep, reads no clock and opens nothing. The daemon's main thread drives
//! it, or replay with its virtual clock; given the same events at the same times it behaves the same, so
//! replays are reproducible to the byte. While it runs, an app may change what it wrote into the program
//! ([`Action::Change`]). An app knows pipes, groups and ports by name and looks up their numbers in
//! [`App::bind`].
//!
//! The life cycle of an app: it is created from its configuration, followed by [`App::inherit`] after a
//! reload that kept its name and kind, [`App::bind`], in the daemon [`App::set_date`], [`Event::Start`], an
//! [`Event::Link`] for every port it watches, and then further events. After the next reload, its successor
//! goes through the same life cycle, with this app as its predecessor. A change that affects only targets of
//! groups is not a reload: the app stays, and receives the change through [`App::amend`] and
//! [`Event::Amended`].

use crate::check::{Check, CheckId, Outcome, Via};
use crate::kind::Apps;
use crate::neighbour::{Found, Hop};
use crate::route::{Prefix, RouteWish};
use serde_json::Value;
use std::any::Any;
use std::path::Path;
use std::sync::Arc;
use weir_engine::ring::FrameBytes;
use weir_engine::worker::BucketReport;
use weir_program::census::Flows;
use weir_program::change::{Change, ChangeError};
use weir_program::snapshot::Seen;
use weir_program::{Entry, GroupId, PipeId, PortId, Program};

/// Identifies a request whose sender waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId(pub u64);

/// Identifies a client of an app's socket; never reused for the same socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u32);

/// Why a change requested by an app was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The change is not possible.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// The change cannot be carried out at the moment.
    #[error("{0}")]
    Now(String),
}

/// An event for an app.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// The app starts: the first event of every instance, even of one that inherited.
    Start,
    /// A frame was forwarded to the app.
    Frame {
        /// The name under which the frame was forwarded, one of [`App::punts`].
        app: &'a str,
        /// The port on which the frame arrived.
        input: PortId,
        /// The frame, without FCS.
        bytes: &'a [u8],
    },
    /// A frame was refused by `limit_length` in a pipe whose `too_long` names this app.
    TooLong {
        /// The name under which the frame was forwarded, one of [`App::punts`].
        app: &'a str,
        /// The port on which the frame arrived.
        input: PortId,
        /// The frame as it was when it reached the operation, without FCS.
        bytes: &'a [u8],
        /// The maximum length of the frame's IP packet, in bytes.
        limit: u16,
    },
    /// The time requested with [`App::wake_ns`] has come. The event may be up to 2 ms late, or more under
    /// heavy load.
    Tick,
    /// The state of a port that the app watches ([`App::watches`]): once at the start, and then whenever the
    /// state changes. Polled every 2 ms; a port without a carrier state (pcap, mem, some of DPDK's virtual
    /// devices) is always up.
    Link {
        /// The port whose state is reported.
        port: PortId,
        /// Whether the port has carrier.
        up: bool,
        /// Bits per second in each direction; `None` if unknown or down.
        speed_bps: Option<u64>,
    },
    /// A request from an operator, to be answered exactly once with [`Action::Answer`], now or later.
    Request {
        /// Identifies the request.
        id: RequestId,
        /// The REQUEST of `weir app NAME REQUEST`: JSON if it is valid JSON, otherwise the words as one
        /// string.
        request: &'a Value,
    },
    /// A group's buckets, requested by [`Action::ReadBuckets`].
    Buckets {
        /// The group whose buckets were read.
        group: GroupId,
        /// The group's buckets. Counts, moves and pending moves are sums over the workers; targets are those
        /// of the first worker, from which other workers differ only while moves are pending.
        report: &'a BucketReport,
    },
    /// Entries of a pipe, requested by [`Action::ReadEntries`].
    Entries {
        /// The pipe whose entries were read.
        pipe: PipeId,
        /// Where the entries begin, as requested.
        from: u32,
        /// The entries of the pipe, and what all workers have seen of them.
        entries: &'a [(Entry, Seen)],
        /// Where the next entries begin; `None` after the last.
        next: Option<u32>,
    },
    /// The flows of a group's targets, requested by [`Action::ReadFlows`].
    Flows {
        /// The group whose flows were counted.
        group: GroupId,
        /// The flows of each target, in the group's order; empty if nothing counts them.
        flows: &'a [Flows],
    },
    /// A change that the app requested was refused, and nothing has changed.
    Refused {
        /// The change, as the app requested it.
        change: &'a Change,
        /// The reason.
        why: &'a Refusal,
    },
    /// A check that the app requested has ended ([`Action::Check`]).
    Checked {
        /// Identifies the check, as in [`Action::Check`].
        id: CheckId,
        /// The outcome of the check.
        outcome: &'a Outcome,
    },
    /// The socket of a check along a service's own path ([`Via`]) sends a packet. The packet is lost unless
    /// the app sends it on.
    CheckSends {
        /// The service and the back end whose path the packet takes.
        via: &'a Via,
        /// The packet, starting with its IP header.
        packet: &'a [u8],
    },
    /// The state of a neighbour that the app requested ([`Action::Resolve`]): at once, and then whenever the
    /// state changes.
    Neighbour {
        /// The neighbour, as the app named it.
        hop: &'a Hop,
        /// Its MAC address, or why there is none.
        found: &'a Found,
    },
    /// The reconfiguration that the app requested with [`Action::Configure`] has ended. If it succeeded, this
    /// app already is that of the new configuration.
    Configured {
        /// Identifies the request, as in [`Action::Configure`].
        id: RequestId,
        /// What has changed, an object or null; or why it was refused, in which case nothing has changed.
        outcome: &'a Result<Value, String>,
    },
    /// The app's configuration has been changed in place ([`App::amend`]).
    Amended,
    /// An event on the app's socket ([`App::socket`]).
    Client {
        /// The client that the event is about.
        client: ClientId,
        /// What the client did, or what happened to it.
        what: ClientEvent<'a>,
    },
}

impl<'a> Event<'a> {
    /// Returns the event for a frame that an app receives from a ring.
    #[must_use]
    pub fn of_frame(app: &'a str, input: PortId, carrier: &'a FrameBytes) -> Event<'a> {
        match carrier.limit {
            None => Event::Frame { app, input, bytes: carrier.bytes() },
            Some(limit) => Event::TooLong { app, input, bytes: carrier.bytes(), limit },
        }
    }
}

/// An event on an app's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientEvent<'a> {
    /// A client has connected.
    Connected,
    /// The client has sent a datagram.
    Datagram(&'a [u8]),
    /// A datagram to the client was lost, because the client was too slow to receive it.
    Lost,
    /// The client has disconnected, or was disconnected.
    Disconnected,
}

/// The severity of a line for the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// An expected change.
    Info,
    /// Something was lost that others make up for, such as a back end or a member.
    Warning,
    /// Users are affected, for example by a service without back ends.
    Error,
}

/// An action requested by an app. Actions are carried out in order, before the next event.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Send a frame through a port. If its transmit ring is full, the frame waits there, ahead of data.
    Inject {
        /// The frame, without FCS.
        bytes: Vec<u8>,
        /// The port through which the frame is sent.
        output: PortId,
    },
    /// Inject a frame into the program, as if it had arrived on a port.
    InjectThrough {
        /// The frame, without FCS.
        bytes: Vec<u8>,
        /// The port on which the frame seems to have arrived.
        input: PortId,
    },
    /// Change entries, weights or buckets. All workers have applied it before the next event. If it is
    /// refused, [`Event::Refused`] follows.
    Change(Change),
    /// Request [`Event::Buckets`].
    ReadBuckets(GroupId),
    /// Request [`Event::Entries`] of a pipe.
    ReadEntries {
        /// The pipe whose entries are to be read.
        pipe: PipeId,
        /// Where the entries begin: 0, or `next` of an earlier [`Event::Entries`].
        from: u32,
        /// The approximate number of entries: a few hundred more may be returned.
        limit: usize,
    },
    /// Request [`Event::Flows`] of a group. Replay ignores this.
    ReadFlows(GroupId),
    /// A line for the operator, in the daemon's log after the app's name.
    Say(Level, String),
    /// Answer a request.
    Answer {
        /// Identifies the request.
        id: RequestId,
        /// The answer; an error is one sentence.
        answer: Result<Value, String>,
    },
    /// Change the app's own configuration by a list of requests ([`crate::edits`]), as a reload would,
    /// and atomically. [`Event::Configured`] follows, except in replay, which has no operators.
    Configure {
        /// The operator's request, which remains to be answered.
        id: RequestId,
        /// The list of requests, as JSON.
        orders: Arc<Value>,
    },
    /// Check a server. [`Event::Checked`] always follows; replay performs no checks and reports that all of
    /// them succeed.
    Check {
        /// Identifies the check.
        id: CheckId,
        /// What is checked.
        check: Arc<Check>,
    },
    /// Pass an IP packet to the sockets of checks along a service's own path ([`Via`]).
    CheckHears {
        /// The packet, starting with its IP header.
        packet: Vec<u8>,
    },
    /// Find the MAC addresses of exactly these neighbours from now on, and follow their changes.
    /// [`Event::Neighbour`] reports the results. Replay has no host, and derives a MAC address from each IP
    /// address.
    Resolve(Arc<[Hop]>),
    /// Resolve and track `more` addresses, and stop tracking `less`. The others are tracked as before.
    ResolveOthers {
        /// The addresses to add.
        more: Arc<[Hop]>,
        /// The addresses to drop.
        less: Arc<[Hop]>,
    },
    /// Verify that a known neighbour is still reachable, because packets to it seem to be lost.
    /// [`Event::Neighbour`] follows if its MAC address has changed or is gone.
    Confirm(Hop),
    /// Announce the addresses of one of the app's services to routers, or stop that. This replaces the app's
    /// earlier wish for the service. After a reload, an app repeats all its wishes in [`Event::Start`].
    /// Replay ignores this.
    Announce {
        /// The name of the service.
        service: String,
        /// The addresses of the service.
        prefixes: Arc<[Prefix]>,
        /// Whether the addresses should be announced.
        wish: RouteWish,
    },
    /// Send a datagram to a client of the app's socket.
    SendToClient {
        /// The client that gets the datagram.
        client: ClientId,
        /// The content of the datagram.
        bytes: Vec<u8>,
    },
    /// Disconnect a client.
    Leave(ClientId),
    /// Send an event to watching clients. In replay, there are none.
    Publish {
        /// The kind of event.
        event: &'static str,
        /// What has happened, an object.
        data: Value,
        /// Whether the event describes the whole state, so that it is the first event for a client that
        /// begins to watch.
        whole: bool,
    },
}

/// A value published by an app, with labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The name of the metric, without the prefix `weir_app_` and the suffix `_total`.
    pub name: &'static str,
    /// Its description, in one line.
    pub help: &'static str,
    /// Its labels besides the app's name.
    pub labels: Vec<(&'static str, String)>,
    /// The value, and whether it is a counter or a gauge.
    pub value: SampleValue,
}

/// The value of a [`Sample`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SampleValue {
    /// Never decreases; `_total` is appended to the name.
    Count(u64),
    /// Rises and falls.
    Gauge(f64),
}

/// The name of a metric of [`App::counts`] or [`App::gauges`], and its description, in one line.
pub type MetricHelp = (&'static str, &'static str);

/// A running app.
pub trait App: Any + Send {
    /// Returns its name in the configuration, which is unique.
    fn name(&self) -> &str;

    /// Returns its kind: its key under `apps`.
    fn kind(&self) -> &'static str;

    /// Returns the names under which frames are forwarded to the app: the names that it owns in
    /// [`Program::apps`]. Each name has its own ring in every worker, so that a flood of frames for one does
    /// not affect the others.
    fn punts(&self) -> Vec<String> {
        vec![self.name().to_string()]
    }

    /// Returns the ports whose links the app wants to watch, by their numbers in the program to which the app
    /// was last bound.
    fn watches(&self) -> Vec<PortId> {
        Vec::new()
    }

    /// Returns the path of the unix socket (SOCK_SEQPACKET) on which other programs can reach it.
    fn socket(&self) -> Option<&Path> {
        None
    }

    /// Takes over from the app of the same name and kind that ran before the reload. Whatever the predecessor
    /// identifies by number must be carried over by name.
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

    /// Returns the state that the same app must have in the process that takes over from this one, keyed by
    /// names; `None` if there is none.
    fn state(&self) -> Option<Value> {
        None
    }

    /// Continues from the state of the same app in another process, possibly of another version. Fields that
    /// the app does not understand are ignored. Called once, after [`App::bind`] and before the first event.
    fn resume(&mut self, state: &Value) {
        let _ = state;
    }

    /// Looks up the numbers of the objects that the app knows by name. Called once, before the first event.
    fn bind(&mut self, program: &Program);

    /// Takes over a configuration in which only targets of groups differ
    /// ([`Amended`](crate::edits::Amended)). The program has already been changed accordingly.
    /// [`Event::Amended`] follows.
    fn amend(&mut self, apps: &Apps, program: &Program) {
        let _ = (apps, program);
    }

    /// Returns targets of groups, by name, whose initial weights in the next program differ from the
    /// configured ones: 0 for targets that are down.
    fn first_weights(&self) -> Vec<(String, String, u32)> {
        Vec::new()
    }

    /// Returns the request that changes the weight of a target in one of the app's own groups. `None` for
    /// other groups, which the caller may change directly.
    fn weighing(&self, group: &str, target: &str, weight: u32) -> Option<Value> {
        let _ = (group, target, weight);
        None
    }

    /// Sets the time of day, in seconds since 1970, before the first event. The time seeds values that must
    /// differ from one run to the next. Not called by replay.
    fn set_date(&mut self, unix_s: u64) {
        let _ = unix_s;
    }

    /// Processes an event at `now_ns` (since the daemon's start, or on replay's clock; never decreasing), and
    /// appends the resulting actions to `actions`.
    fn step(&mut self, now_ns: u64, event: Event<'_>, actions: &mut Vec<Action>);

    /// Returns when the app wants to be woken by [`Event::Tick`], on the clock of `step`; `None` if it waits
    /// for other events. Called after every step. A time in the past means at once, but an app ticks at most
    /// once per millisecond.
    fn wake_ns(&self) -> Option<u64> {
        None
    }

    /// Returns the app's own counters, which never decrease; each is a family of the metrics:
    /// `weir_app_NAME_total`.
    fn counts(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Returns the app's own values that rise and fall; each is a family of the metrics: `weir_app_NAME`.
    /// Their number must not depend on the traffic.
    fn gauges(&self) -> Vec<(&'static str, f64)> {
        Vec::new()
    }

    /// Returns what its counters and its values that rise and fall mean.
    fn helps(&self) -> &'static [MetricHelp] {
        &[]
    }

    /// Returns values with labels of their own; each name is a family of the metrics: `weir_app_NAME`. Their
    /// number must not depend on the traffic.
    fn samples(&self) -> Vec<Sample> {
        Vec::new()
    }

    /// Returns the reasons why other nodes should get this node's traffic, such as a service without a back
    /// end that serves: sentences for `/readyz`.
    fn unready(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns what `weir show apps` prints about the app besides its counters, as an object.
    fn report(&self, now_ns: u64) -> Value {
        let _ = now_ns;
        Value::Object(serde_json::Map::new())
    }
}
