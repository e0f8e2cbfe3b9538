//! The program: follows the objects, computes what follows from them, and tells nodes and the cluster.

use crate::config::Config;
use crate::desired::{Desired, Notice, desired};
use crate::nodes::{NodeOrder, feed};
use crate::objects::Cluster;
use crate::shared::Hub;
use crate::{follow, lease, report, serve};
use anyhow::Context;
use clap::Parser;
use futures::future::{select, select_all};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// How soon a failure is tried again, and how often to check even if nothing has changed.
const TICK: Duration = Duration::from_secs(1);

/// How long the API server may be silent in a connection, which is longer than a watch lasts.
const SILENCE: Duration = Duration::from_secs(75);

/// Brings the services of a Kubernetes cluster to weir's nodes.
///
/// Follows Services of type LoadBalancer, EndpointSlices, Gateways, TCPRoutes and UDPRoutes; gives them
/// addresses; sends services to nodes over their API; and writes statuses and events.
#[derive(Debug, Parser)]
#[command(name = "weir-kube", version)]
pub struct Arguments {
    /// The configuration, in YAML.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// How to reach the API server. Default: KUBECONFIG, ~/.kube/config, or the account of the pod.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Read the configuration, say what is wrong, and exit.
    #[arg(long)]
    pub check: bool,
}

/// Runs the program until a signal ends it.
///
/// # Errors
/// The configuration is wrong, or the API server cannot be addressed. One that does not answer is no error.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let config = Config::read(&arguments.config)?;
    if arguments.check {
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(control(config, arguments))
}

async fn control(config: Config, arguments: &Arguments) -> anyhow::Result<()> {
    let listener = TcpListener::bind(config.listen).await;
    let listener = listener.with_context(|| format!("listen: {}", config.listen))?;
    tracing::info!("serves /metrics and /readyz on {}", listener.local_addr()?);
    let client = client(arguments).await?;
    let me = lease::identity();
    let mut ends = [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
    let shared = Arc::new(Hub::new(config));
    let (sender, receiver) = watch::channel(None);
    let mut tasks: Vec<JoinHandle<()>> = follow::all(&shared, &client);
    for node in &shared.config.nodes {
        tasks.push(tokio::spawn(feed(shared.clone(), node.clone(), receiver.clone())));
    }
    tasks.push(tokio::spawn(lease::lead(shared.clone(), client.clone(), me.clone())));
    tasks.push(tokio::spawn(serve::serve(shared.clone(), listener)));
    tasks.push(tokio::spawn(reconcile(shared.clone(), client.clone(), me.clone(), sender)));
    tracing::info!("weir-kube {} has started", env!("CARGO_PKG_VERSION"));
    let [terminate, interrupt] = &mut ends;
    let (terminate, interrupt) = (pin!(terminate.recv()), pin!(interrupt.recv()));
    let ended = select(terminate, interrupt);
    match select(ended, select_all(tasks)).await {
        futures::future::Either::Left(_) => {
            lease::release(&shared, client, &me).await;
            Ok(())
        }
        // A task ends only by a defect, and the program must not seem to work without it.
        futures::future::Either::Right(((result, ..), _)) => {
            result.context("a task has failed")?;
            anyhow::bail!("a task has ended")
        }
    }
}

async fn client(arguments: &Arguments) -> anyhow::Result<Client> {
    let mut config = match &arguments.kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path)?;
            kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?
        }
        None => kube::Config::infer().await.context("without --kubeconfig")?,
    };
    config.connect_timeout = Some(Duration::from_secs(5));
    config.read_timeout = Some(SILENCE);
    Ok(Client::try_from(config)?)
}

/// Computes what follows from the objects whenever they have changed.
async fn reconcile(
    shared: Arc<Hub>,
    client: Client,
    me: String,
    sender: watch::Sender<Option<Arc<NodeOrder>>>,
) {
    let recorder = report::recorder(client.clone(), &me);
    let mut known: Vec<Notice> = Vec::new();
    let mut led = false;
    loop {
        // After a while without changes, leadership may have ended.
        let _ = timeout(TICK, shared.wake.notified()).await;
        sleep(Duration::from_millis(shared.config.debounce_ms)).await;
        let leads = shared.leads();
        if !leads {
            if led {
                sender.send_replace(None);
                known.clear();
            }
            led = false;
            continue;
        }
        let Some((snapshot, since)) = due(&shared, !led) else { continue };
        led = true;
        let begin = Instant::now();
        let mut next = desired(&shared.config, &snapshot);
        shared.metrics.computed.observe(begin.elapsed().as_secs_f64());
        shared.metrics.services.set(i64::try_from(next.services.len()).unwrap_or(i64::MAX));
        add_refusals(&shared, &mut next);
        let changes = std::mem::take(&mut next.statuses);
        let notices = std::mem::take(&mut next.events);
        let same = sender.borrow().as_ref().is_some_and(|sent| sent.desired.services == next.services);
        if !same {
            sender.send_replace(Some(Arc::new(NodeOrder { desired: next, since })));
        }
        let new: Vec<Notice> = notices.iter().filter(|one| !known.contains(one)).cloned().collect();
        known = notices;
        if !new.is_empty() {
            // Events wait for nothing, and nothing for them.
            drop(tokio::spawn(report::events(shared.clone(), recorder.clone(), new)));
        }
        if report::statuses(&shared, &client, &changes).await {
            sleep(TICK).await;
            shared.touch();
        }
    }
}

/// Returns the objects, and when the first change arrived, if all kinds have been listed and something may
/// follow.
fn due(shared: &Hub, is_first: bool) -> Option<(Cluster, Option<Instant>)> {
    let mut state = shared.state();
    if state.watched.values().any(|watched| !watched.is_listed) {
        return None;
    }
    let since = state.changed.take();
    if since.is_none() && !is_first {
        return None;
    }
    let mut snapshot = state.snapshot.clone();
    snapshot.now = Timestamp::now();
    Some((snapshot, since))
}

/// Adds a notice for each service that a node has refused.
fn add_refusals(shared: &Hub, next: &mut Desired) {
    for (node, state) in &shared.state().nodes {
        for (name, why) in &state.refused {
            if let Some(service) = next.services.get(name) {
                let note = format!("node {node} refuses `{name}`: {why}");
                let object = service.origin.clone();
                next.events.push(Notice { object, is_warning: true, reason: "Refused", note });
            }
        }
    }
}
