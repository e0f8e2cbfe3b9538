//! Elects one of several controllers, by a lease.

use crate::config::{DOMAIN, LeaseName};
use crate::follow::chain;
use crate::shared::Hub;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, PostParams};
use kube::{Client, Error};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

/// How often the API server is checked, and how long it may take to answer.
const PROBE: Duration = Duration::from_secs(3);

/// Leads as long as this controller holds the lease, or always if none is configured.
pub(crate) async fn lead(shared: Arc<Hub>, client: Client, me: String) {
    let Some(lease) = shared.config.lease.clone() else {
        // Everything until the end of time.
        shared.state().leads_until = Some(Instant::now() + Duration::from_secs(1 << 32));
        loop {
            // If it fails, the time since the last answer says it.
            if let Ok(Ok(_)) = timeout(PROBE, client.apiserver_version()).await {
                shared.heard();
            }
            sleep(PROBE).await;
        }
    };
    let api: Api<Lease> = Api::namespaced(client, &lease.namespace);
    let duration = Duration::from_secs(u64::from(lease.duration_s));
    let mut seen: Option<(String, Instant)> = None;
    loop {
        let begin = Instant::now();
        let had = shared.leads();
        match timeout(duration / 3, acquire(&api, &lease, &me, &mut seen)).await {
            Ok(Ok(has)) => {
                shared.heard();
                // The others wait for the whole duration, so that there are never two.
                let until = has.then(|| begin + duration * 2 / 3);
                shared.state().leads_until = until;
                if has != had {
                    tracing::info!("{}", if has { "leads" } else { "does not lead any more" });
                    shared.touch();
                }
            }
            Ok(Err(why)) => tracing::warn!("lease: {}", chain(&why)),
            Err(_) => tracing::warn!("lease: the API server does not answer"),
        }
        sleep(duration / 5).await;
    }
}

/// Takes or renews the lease, and returns whether this controller has it.
async fn acquire(
    api: &Api<Lease>,
    name: &LeaseName,
    me: &str,
    seen: &mut Option<(String, Instant)>,
) -> Result<bool, Error> {
    let now = MicroTime(Timestamp::now());
    let spec = |transitions: i32| LeaseSpec {
        holder_identity: Some(me.into()),
        lease_duration_seconds: Some(i32::from(name.duration_s)),
        acquire_time: Some(now.clone()),
        renew_time: Some(now.clone()),
        lease_transitions: Some(transitions),
        ..LeaseSpec::default()
    };
    let Some(mut lease) = api.get_opt(&name.name).await? else {
        let metadata = ObjectMeta { name: Some(name.name.clone()), ..ObjectMeta::default() };
        let lease = Lease { metadata, spec: Some(spec(0)) };
        return won(api.create(&PostParams::default(), &lease).await.map(drop));
    };
    let before = lease.spec.take().unwrap_or_default();
    let holder = before.holder_identity.as_deref().unwrap_or_default();
    let transitions = before.lease_transitions.unwrap_or_default();
    if holder == me {
        let acquire_time = before.acquire_time.clone();
        lease.spec = Some(LeaseSpec { acquire_time, ..spec(transitions) });
    } else {
        // Clocks differ: what counts is for how long this controller has seen no renewal.
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        let since = match seen {
            Some((known, since)) if *known == version => *since,
            Some(_) | None => seen.insert((version, Instant::now())).1,
        };
        let lasts = before.lease_duration_seconds.unwrap_or_default();
        let lasts = Duration::from_secs(u64::try_from(lasts).unwrap_or_default());
        if !holder.is_empty() && since.elapsed() < lasts {
            return Ok(false);
        }
        lease.spec = Some(spec(transitions.saturating_add(1)));
    }
    // The version of the object is part of it: of two that try this, one fails.
    won(api.replace(&name.name, &PostParams::default(), &lease).await.map(drop))
}

fn won(result: Result<(), Error>) -> Result<bool, Error> {
    match result {
        Ok(()) => Ok(true),
        Err(Error::Api(status)) if status.code == 409 => Ok(false),
        Err(other) => Err(other),
    }
}

/// Gives the lease back, so that another controller can lead at once.
pub(crate) async fn release(shared: &Hub, client: Client, me: &str) {
    let had = shared.leads();
    shared.state().leads_until = None;
    let Some(name) = shared.config.lease.as_ref().filter(|_| had) else { return };
    let api: Api<Lease> = Api::namespaced(client, &name.namespace);
    let give = async {
        let mut lease = api.get(&name.name).await?;
        if let Some(spec) = lease.spec.as_mut().filter(|spec| spec.holder_identity.as_deref() == Some(me)) {
            spec.holder_identity = Some(String::new());
            api.replace(&name.name, &PostParams::default(), &lease).await?;
        }
        Ok::<(), Error>(())
    };
    // Another controller takes it after its duration otherwise.
    if !matches!(timeout(PROBE, give).await, Ok(Ok(()))) {
        tracing::warn!("the lease could not be given back");
    }
}

/// Returns a name that no other controller has.
pub(crate) fn identity() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let nanoseconds = Timestamp::now().as_nanosecond();
    format!("{}.{}.{}.{nanoseconds:x}", host.trim(), std::process::id(), DOMAIN)
}
