//! What the tasks share: the objects, who leads, and how it goes.

use crate::config::Config;
use crate::desired::VirtualService;
use crate::objects::{Changed, Cluster};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// For how long the API server may be silent.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// The state of a watch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watched {
    /// Whether the objects are known.
    pub is_listed: bool,
    /// Why it has failed last, and until when that counts.
    pub error: Option<(Instant, String)>,
}

/// How a node is.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeState {
    /// Why it does not have what it should.
    pub error: Option<String>,
    /// The services that it has refused, and why.
    pub refused: BTreeMap<Arc<str>, String>,
    /// The names of services that have changed since they were last sent to it.
    pub changed: BTreeSet<Arc<str>>,
    /// When the first of these changes arrived.
    pub since: Option<Instant>,
    /// Whether this controller has just become the leader, so that another one may have changed the node's
    /// services.
    pub is_unknown: bool,
}

/// A service of nodes, with its text.
#[derive(Debug)]
pub(crate) struct WantedService {
    pub service: Arc<VirtualService>,
    /// The service as nodes read it, if all read the same. It is made when the first node needs it.
    pub text: OnceLock<Arc<str>>,
}

#[derive(Default)]
pub(crate) struct HubState {
    pub cluster: Cluster,
    /// The changes in it that have not been processed yet.
    pub changed: Changed,
    pub watched: BTreeMap<&'static str, Watched>,
    /// When the first change in `changed` arrived.
    pub since: Option<Instant>,
    /// What nodes should have, by name; nothing if another controller leads.
    pub wanted: Option<BTreeMap<Arc<str>, Arc<WantedService>>>,
    /// When the API server has answered last.
    pub answered: Option<Instant>,
    /// Until when this controller leads.
    pub leads_until: Option<Instant>,
    pub nodes: BTreeMap<String, NodeState>,
}

/// The bounds of the histogram of times until a node has confirmed a change, in seconds.
const DELAYS: [f64; 18] = [
    0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
];

pub(crate) type Labels = Vec<(&'static str, String)>;

/// The metrics.
pub(crate) struct Metrics {
    registry: Registry,
    pub objects: Family<Labels, Gauge>,
    pub services: Gauge,
    pub leads: Gauge,
    pub computed: Histogram,
    pub delay: Histogram,
    pub errors: Family<Labels, Counter>,
    pub puts: Family<Labels, Counter>,
    pub in_sync: Family<Labels, Gauge>,
    pub refused: Family<Labels, Gauge>,
    pub statuses: Family<Labels, Counter>,
    pub events: Counter,
}

impl Metrics {
    fn new() -> Metrics {
        let times = || Histogram::new(exponential_buckets(0.001, 2.0, 15));
        let mut metrics = Metrics {
            registry: Registry::with_prefix("weir_kube"),
            objects: Family::default(),
            services: Gauge::default(),
            leads: Gauge::default(),
            computed: times(),
            delay: Histogram::new(DELAYS),
            errors: Family::default(),
            puts: Family::default(),
            in_sync: Family::default(),
            refused: Family::default(),
            statuses: Family::default(),
            events: Counter::default(),
        };
        let all = &mut metrics.registry;
        all.register("objects", "Objects that are known", metrics.objects.clone());
        all.register("services", "Services that nodes should have", metrics.services.clone());
        all.register("leader", "Whether this controller leads", metrics.leads.clone());
        let text = "Time to compute what follows from the objects";
        all.register("compute_seconds", text, metrics.computed.clone());
        let text = "Time from the arrival of a change until a node has confirmed it";
        all.register("node_delay_seconds", text, metrics.delay.clone());
        all.register("api_errors", "Errors of the API server", metrics.errors.clone());
        all.register("node_requests", "Changes sent to a node", metrics.puts.clone());
        let text = "Whether a node has confirmed what it should have";
        all.register("node_in_sync", text, metrics.in_sync.clone());
        all.register("node_refused", "Services that a node refuses", metrics.refused.clone());
        all.register("status_changes", "Statuses sent to the API server", metrics.statuses.clone());
        all.register("events", "Events sent to the API server", metrics.events.clone());
        metrics
    }
}

pub(crate) struct Hub {
    pub config: Config,
    pub metrics: Metrics,
    /// Notified when something has changed that may affect the result.
    pub wake: Notify,
    /// Notified when something is to be sent to a node, by the node's name.
    pub nodes: BTreeMap<String, Notify>,
    state: Mutex<HubState>,
}

impl Hub {
    pub(crate) fn new(config: Config) -> Hub {
        let nodes = config.nodes.iter();
        let nodes = nodes.map(|node| {
            let error = Some("it has not been sent anything yet".to_string());
            (node.name.clone(), NodeState { error, ..NodeState::default() })
        });
        let state = HubState { nodes: nodes.collect(), ..HubState::default() };
        let nodes = config.nodes.iter().map(|node| (node.name.clone(), Notify::new())).collect();
        Hub { config, metrics: Metrics::new(), wake: Notify::new(), nodes, state: Mutex::new(state) }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, HubState> {
        // No code that holds it leaves it half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that something has changed.
    pub(crate) fn touch(&self) {
        self.state().since.get_or_insert_with(Instant::now);
        self.wake.notify_one();
    }

    pub(crate) fn leads(&self) -> bool {
        self.state().leads_until.is_some_and(|until| until > Instant::now())
    }

    /// Notes what the API server has answered to a request that is not a watch.
    pub(crate) fn heard(&self) {
        self.state().answered = Some(Instant::now());
    }

    /// Returns why this controller is not ready, a reason per line.
    pub(crate) fn unready(&self) -> String {
        let now = Instant::now();
        let leads = self.leads();
        let state = self.state();
        let mut text = String::new();
        // Writing to a string does not fail.
        for (kind, watched) in &state.watched {
            let error = watched.error.as_ref().filter(|(until, _)| now < *until);
            if let Some((_, why)) = error {
                let _ = writeln!(text, "{kind}: {why}");
            } else if !watched.is_listed {
                let _ = writeln!(text, "{kind}: not listed yet");
            }
        }
        match state.answered {
            Some(at) if now.duration_since(at) < SILENCE_MAX => {}
            Some(at) => {
                let seconds = now.duration_since(at).as_secs();
                let _ = writeln!(text, "the API server has not answered for {seconds} s");
            }
            None => text.push_str("the API server has not answered yet\n"),
        }
        // Those who do not lead send nothing.
        for (name, node) in state.nodes.iter().filter(|_| leads) {
            if let Some(why) = &node.error {
                let _ = writeln!(text, "node {name}: {why}");
            }
        }
        text
    }

    /// Returns the metrics as text.
    pub(crate) fn metrics_text(&self) -> String {
        let leads = self.leads();
        self.metrics.leads.set(i64::from(leads));
        {
            let state = self.state();
            for (name, node) in &state.nodes {
                // A controller that does not lead does not know.
                let count = if leads { node.refused.len() } else { 0 };
                let labels = vec![("node", name.clone())];
                self.metrics.refused.get_or_create(&labels).set(i64::try_from(count).unwrap_or(i64::MAX));
            }
            let cluster = &state.cluster;
            let counts = [
                ("Service", cluster.services.len()),
                ("EndpointSlice", cluster.slices.len()),
                ("Namespace", cluster.namespaces.len()),
                ("GatewayClass", cluster.classes.len()),
                ("Gateway", cluster.gateways.len()),
                ("TCPRoute", cluster.tcp_routes.len()),
                ("UDPRoute", cluster.udp_routes.len()),
                ("ReferenceGrant", cluster.grants.len()),
            ];
            for (kind, count) in counts {
                let labels = vec![("kind", kind.to_string())];
                self.metrics.objects.get_or_create(&labels).set(i64::try_from(count).unwrap_or(i64::MAX));
            }
        }
        let mut text = String::new();
        match encode(&mut text, &self.metrics.registry) {
            Ok(()) => text,
            // Writing to a string does not fail.
            Err(std::fmt::Error) => String::new(),
        }
    }
}
