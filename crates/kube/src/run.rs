//! The program: follows the objects, computes what follows from them, and tells nodes and the cluster.

use crate::config::Config;
use crate::desired::{Notice, StatusChange, note_sent};
use crate::incremental::{Incremental, Update};
use crate::nodes::feed;
use crate::objects::Changed;
use crate::shared::{Hub, HubState, WantedService};
use crate::{follow, lease, names, report, serve};
use anyhow::Context;
use clap::Parser;
use futures::future::{select, select_all};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// How soon a failure is tried again, and how often to check even if nothing has changed.
const TICK: Duration = Duration::from_secs(1);

/// How often warnings are sent again as long as they apply: an API server forgets events after an hour,
/// unless it is configured otherwise.
const REPEAT: Duration = Duration::from_secs(30 * 60);

/// How many events may wait to be sent.
const EVENTS_MAX: usize = 1 << 14;

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
    let (statuses, new_statuses) = mpsc::unbounded_channel();
    let (events, new_events) = mpsc::channel(EVENTS_MAX);
    let (name_sender, named) = watch::channel(None);
    let mut tasks: Vec<JoinHandle<()>> = follow::all(&shared, &client);
    for node in &shared.config.nodes {
        tasks.push(tokio::spawn(feed(shared.clone(), node.clone())));
        tasks.push(tokio::spawn(names::feed(shared.clone(), node.clone(), named.clone())));
    }
    tasks.push(tokio::spawn(names::follow(shared.clone(), name_sender)));
    tasks.push(tokio::spawn(report::statuses(shared.clone(), client.clone(), new_statuses)));
    tasks.push(tokio::spawn(report::events(shared.clone(), client.clone(), me.clone(), new_events)));
    tasks.push(tokio::spawn(lease::lead(shared.clone(), client.clone(), me.clone())));
    tasks.push(tokio::spawn(serve::serve(shared.clone(), listener)));
    tasks.push(tokio::spawn(reconcile(shared.clone(), statuses, events)));
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
    statuses: mpsc::UnboundedSender<StatusChange>,
    events: mpsc::Sender<Notice>,
) {
    // The results so far, while this controller leads.
    let mut known: Option<Incremental> = None;
    let mut refusals: Vec<Notice> = Vec::new();
    let (mut last, mut took, mut repeated) = (Instant::now(), Duration::ZERO, Instant::now());
    loop {
        // After a while without changes, leadership may have ended.
        let _ = timeout(TICK, shared.wake.notified()).await;
        // The first change is not delayed. Later changes are collected, for longer if they keep this thread
        // busy.
        let gap = Duration::from_millis(shared.config.debounce_ms).max(took * 2);
        sleep(gap.saturating_sub(last.elapsed())).await;
        if !shared.leads() {
            let mut state = shared.state();
            (state.changed, state.since) = (Changed::default(), None);
            if known.take().is_some() {
                state.wanted = None;
                shared.nodes.values().for_each(Notify::notify_one);
                refusals.clear();
            }
            continue;
        }
        let (begin, is_first) = (Instant::now(), known.is_none());
        let repeats = repeats(&mut repeated, is_first, begin);
        if let Some(known) = known.as_ref().filter(|_| repeats) {
            send_all(&events, lasting(known, &refusals));
        }
        let Some((mut update, since)) = compute(&shared, &mut known) else { continue };
        (last, took) = (Instant::now(), begin.elapsed());
        shared.metrics.computed.observe(took.as_secs_f64());
        {
            let mut state = shared.state();
            let state = &mut *state;
            let now = refusals_of(state);
            update.events.extend(now.iter().filter(|one| !refusals.contains(one)).cloned());
            refusals = now;
            if is_first || !update.services.is_empty() {
                for node in state.nodes.values_mut() {
                    node.changed.extend(update.services.iter().cloned());
                    node.since = node.since.or(since);
                    node.is_unknown |= is_first;
                }
                shared.nodes.values().for_each(Notify::notify_one);
            }
        }
        send_all(&events, update.events);
        for change in update.statuses {
            // The receiver ends with the program.
            let _ = statuses.send(change);
        }
    }
}

/// Whether it is time to send warnings again, which have been sent at `repeated`. Those that apply when
/// leadership begins are new then.
fn repeats(repeated: &mut Instant, is_first: bool, now: Instant) -> bool {
    let is_due = now.duration_since(*repeated) > REPEAT;
    if is_due || is_first {
        *repeated = now;
    }
    is_due && !is_first
}

/// Returns the warnings that apply at present.
pub(crate) fn lasting(known: &Incremental, refusals: &[Notice]) -> Vec<Notice> {
    let all = known.events().chain(refusals);
    all.filter(|one| one.is_warning).cloned().collect()
}

fn send_all(events: &mpsc::Sender<Notice>, notices: Vec<Notice>) {
    for notice in notices {
        if events.try_send(notice).is_err() {
            tracing::warn!("an event is lost: too many are waiting");
        }
    }
}

/// Returns the results of all changes, and when the first of them arrived, if all kinds have been listed and
/// there are any changes. Notes what nodes should have, and which addresses are about to be written to
/// statuses.
fn compute(shared: &Hub, known: &mut Option<Incremental>) -> Option<(Update, Option<Instant>)> {
    let mut state = shared.state();
    let state = &mut *state;
    if state.watched.values().any(|watched| !watched.is_listed) {
        return None;
    }
    let since = state.since.take();
    let mut changed = std::mem::take(&mut state.changed);
    let known = match known {
        Some(known) if since.is_none() => return None,
        Some(known) => known,
        None => {
            // What another controller has done meanwhile is in the objects.
            state.cluster.sent.clear();
            state.cluster.confirmed.clear();
            changed = Changed::all(&state.cluster);
            known.insert(Incremental::default())
        }
    };
    state.cluster.now = Timestamp::now();
    state.cluster.forget_sent(&changed);
    let update = known.update(&shared.config, &state.cluster, &changed);
    let wanted = state.wanted.get_or_insert_default();
    for name in &update.services {
        match known.services().get(name) {
            Some(service) => {
                let one = WantedService { service: service.clone(), text: OnceLock::new() };
                wanted.insert(name.clone(), Arc::new(one));
            }
            None => drop(wanted.remove(name)),
        }
    }
    shared.metrics.services.set(i64::try_from(wanted.len()).unwrap_or(i64::MAX));
    for change in &update.statuses {
        note_sent(&mut state.cluster, &mut state.changed, change);
    }
    Some((update, since))
}

/// Returns a notice for each service that a node has refused.
fn refusals_of(state: &HubState) -> Vec<Notice> {
    let mut notices = Vec::new();
    for (node, has) in &state.nodes {
        for (name, why) in &has.refused {
            if let Some(wanted) = state.wanted.as_ref().and_then(|all| all.get(name)) {
                let note = format!("node {node} refuses `{name}`: {why}");
                let object = (*wanted.service.origin).clone();
                notices.push(Notice { object, is_warning: true, reason: "Refused", note });
            }
        }
    }
    notices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_not_repeated_when_leadership_begins() {
        let begin = Instant::now();
        let mut repeated = begin;
        // For a long time, this controller was not the leader.
        let later = begin + REPEAT * 2;
        assert!(!repeats(&mut repeated, true, later));
        assert!(!repeats(&mut repeated, false, later + REPEAT));
        let due = later + REPEAT + TICK;
        assert!(repeats(&mut repeated, false, due) && !repeats(&mut repeated, false, due + TICK));
    }
}
