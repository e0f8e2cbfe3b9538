//! Asks DNS for the back ends of services: one thread, with a task for each source. Each task asks again when
//! the records expire, within its limits. What a server answers is bounded by the size of a message, by the
//! limits below, and by the timeout of the source.

use crate::sources::{
    BACK_ENDS_MAX, DnsAnswer, DnsQuery, DnsServer, RecordKind, ServiceSource, SourceBoard, SourceKind,
    SourceTask, back_ends_of,
};
use anyhow::{Context, Result, anyhow};
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{NameServerConfig, ResolveHosts, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{AbortHandle, JoinSet};
use weir_packet::random::Random;

/// The maximum number of questions that wait for the same servers at once.
const ASKED_MAX: usize = 32;
/// The maximum number of targets in the SRV records of one name.
const TARGETS_MAX: usize = 256;
/// The longest chain of CNAME records.
const CHAIN_MAX: usize = 16;
/// The longest time until a failed question is repeated, unless `min_ttl` is longer.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// The thread that asks DNS servers.
pub(super) struct DnsThread {
    sources: Option<UnboundedSender<Vec<SourceTask>>>,
    thread: Option<JoinHandle<()>>,
}

impl DnsThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start() -> Result<DnsThread> {
        let (sources, given) = unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let run = move || runtime.block_on(follow(given));
        let thread = std::thread::Builder::new().name("weir-dns".into()).spawn(run);
        let thread = thread.context("no thread for questions to DNS")?;
        Ok(DnsThread { sources: Some(sources), thread: Some(thread) })
    }

    /// Follows these sources from now on.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn follow(&self, all: Vec<SourceTask>) -> Result<()> {
        let sent = self.sources.as_ref().map(|sources| sources.send(all));
        sent.and_then(Result::ok).ok_or_else(|| anyhow!("the thread that asks DNS has ended"))
    }
}

impl Drop for DnsThread {
    fn drop(&mut self) {
        self.sources = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Servers, and how many questions to them may wait.
type AskedServers = (Arc<TokioResolver>, Arc<Semaphore>);

async fn follow(mut given: UnboundedReceiver<Vec<SourceTask>>) {
    let mut tasks: Vec<(Arc<ServiceSource>, AbortHandle)> = Vec::new();
    let mut resolvers: HashMap<Vec<SocketAddr>, AskedServers> = HashMap::new();
    while let Some(all) = given.recv().await {
        tasks.retain(|(source, task)| {
            let is_kept = all.iter().any(|(other, _)| other == source);
            if !is_kept {
                task.abort();
            }
            is_kept
        });
        let asks = |source: &ServiceSource, of: &[SocketAddr]| match &source.kind {
            SourceKind::Dns(query) => query.servers == of,
            SourceKind::File(_) => false,
        };
        resolvers.retain(|servers, _| all.iter().any(|(source, _)| asks(source, servers)));
        for (source, board) in all {
            let SourceKind::Dns(query) = &source.kind else { continue };
            if tasks.iter().any(|(other, _)| *other == source) {
                continue;
            }
            let asked = match resolvers.get(&query.servers) {
                Some(asked) => asked.clone(),
                None => match resolver(query) {
                    Ok(resolver) => {
                        let asked = (Arc::new(resolver), Arc::new(Semaphore::new(ASKED_MAX)));
                        resolvers.insert(query.servers.clone(), asked.clone());
                        asked
                    }
                    Err(why) => {
                        board.fail(format!("{why:#}"));
                        continue;
                    }
                },
            };
            let task = tokio::spawn(repeat(source.clone(), query.clone(), board, asked));
            tasks.push((source, task.abort_handle()));
        }
    }
}

/// Returns the resolver for the servers of a source. It caches no answers, because questions are repeated
/// only when the answers have expired.
fn resolver(query: &DnsQuery) -> Result<TokioResolver> {
    let provider = TokioRuntimeProvider::default();
    let mut builder = if query.servers.is_empty() {
        TokioResolver::builder(provider).context("/etc/resolv.conf cannot be used")?
    } else {
        let server = |server: &SocketAddr| {
            let mut one = NameServerConfig::udp_and_tcp(server.ip());
            one.connections.iter_mut().for_each(|connection| connection.port = server.port());
            one
        };
        let servers = query.servers.iter().map(server).collect();
        TokioResolver::builder_with_config(ResolverConfig::from_parts(None, Vec::new(), servers), provider)
    };
    let options = builder.options_mut();
    options.cache_size = 0;
    options.use_hosts_file = ResolveHosts::Never;
    options.preserve_intermediates = true;
    options.attempts = 2;
    options.timeout = (query.timeout / 3).max(Duration::from_millis(10));
    Ok(builder.build()?)
}

/// Asks whenever the records have expired.
async fn repeat(source: Arc<ServiceSource>, query: DnsQuery, board: Arc<SourceBoard>, asked: AskedServers) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    let mut random = Random::new(
        since ^ query.name.bytes().fold(0, |sum: u64, byte| sum.rotate_left(7) ^ u64::from(byte)),
    );
    let families = families(&source);
    let (mut failed, mut empty) = (0_u32, 0_u32);
    loop {
        let answer = {
            let _turn = asked.1.acquire().await;
            let resolving = resolve(asked.0.clone(), &query, families);
            tokio::time::timeout(query.timeout, resolving).await
        };
        let waits = match answer {
            Ok(Ok(answer)) if !answer.servers.is_empty() || answer.is_unavailable => {
                let (back_ends, notes) = back_ends_of(&source, &query, &answer);
                let counts = [1, back_ends.len()];
                board.publish(back_ends, counts, notes);
                (failed, empty) = (0, 0);
                query.clamped(answer.ttl)
            }
            Ok(Ok(answer)) => {
                empty = empty.saturating_add(1);
                if query.empty_after > 0 && empty >= query.empty_after {
                    board.publish(Vec::new(), [1, 0], vec![format!("{} has no records", query.name)]);
                    query.clamped(Duration::ZERO)
                } else {
                    let left_out: String = answer.notes.iter().map(|note| format!("; {note}")).collect();
                    board.fail(format!("{} has no records{left_out}", query.name));
                    failed = failed.saturating_add(1);
                    retry(&query, failed)
                }
            }
            Ok(Err(why)) => {
                board.fail(why);
                (failed, empty) = (failed.saturating_add(1), 0);
                retry(&query, failed)
            }
            Err(_) => {
                board.fail(format!("no answer about {} within {:?}", query.name, query.timeout));
                (failed, empty) = (failed.saturating_add(1), 0);
                retry(&query, failed)
            }
        };
        // Up to a tenth earlier, so that sources with equal TTLs do not ask at the same time.
        let early = waits.mul_f64(f64::from(random.bits() as u16) / f64::from(u16::MAX) / 10.0);
        tokio::time::sleep(waits - early).await;
    }
}

/// Returns when a question is repeated that has failed `failed` times.
fn retry(query: &DnsQuery, failed: u32) -> Duration {
    let [min, _] = query.ttl;
    min.saturating_mul(1 << failed.saturating_sub(1).min(16)).min(RETRY_MAX.max(min))
}

/// Returns whether the service has IPv4 and IPv6 VIPs.
fn families(source: &ServiceSource) -> [bool; 2] {
    fn vips(value: &serde_json::Value, all: &mut Vec<bool>) {
        match value {
            serde_json::Value::Array(list) => list.iter().for_each(|one| vips(one, all)),
            serde_json::Value::Object(map) => map.get("vip").into_iter().for_each(|one| vips(one, all)),
            serde_json::Value::String(text) => all.push(text.contains(':')),
            _ => {}
        }
    }
    let mut all = Vec::new();
    source.template.get("service").into_iter().for_each(|service| vips(service, &mut all));
    [all.contains(&false), all.contains(&true)]
}

/// Returns the servers of a name; none if there are no records.
async fn resolve(
    resolver: Arc<TokioResolver>,
    query: &DnsQuery,
    families: [bool; 2],
) -> Result<DnsAnswer, String> {
    let name = Name::from_ascii(&query.name).map_err(|error| format!("{}: {error}", query.name))?;
    let mut answer = match query.records {
        RecordKind::Addresses => {
            let (addresses, ttl, notes) = addresses(&resolver, &name, families).await?;
            let server = |address| DnsServer { address, srv: None };
            let servers = addresses.into_iter().map(server).collect();
            DnsAnswer { servers, ttl, notes, is_unavailable: false }
        }
        RecordKind::Srv => targets(resolver, &name, families).await?,
    };
    let found = answer.servers.len();
    answer.servers.truncate(BACK_ENDS_MAX);
    if found > BACK_ENDS_MAX {
        answer.notes.push(format!("{} servers are left out", found - BACK_ENDS_MAX));
    }
    Ok(answer)
}

/// Returns the addresses of a name, their TTL, and what is left out.
async fn addresses(
    resolver: &TokioResolver,
    name: &Name,
    families: [bool; 2],
) -> Result<(BTreeSet<IpAddr>, Duration, Vec<String>), String> {
    let (mut all, mut ttl, mut strange) = (BTreeSet::new(), u32::MAX, BTreeSet::new());
    for (wanted, kind) in families.into_iter().zip([RecordType::A, RecordType::AAAA]) {
        if !wanted {
            continue;
        }
        for record in records(resolver, name, kind, &mut ttl).await? {
            let address = match &record.data {
                RData::A(address) => IpAddr::from(address.0),
                RData::AAAA(address) => IpAddr::from(address.0),
                _ => continue,
            };
            if is_server(address) {
                all.insert(address)
            } else {
                strange.insert(address)
            };
        }
    }
    let notes = strange.iter().take(3).map(|address| format!("{address} is not the address of a server"));
    Ok((all, Duration::from_secs(ttl.into()), notes.collect()))
}

/// Returns whether packets can be sent to an address.
fn is_server(address: IpAddr) -> bool {
    let is_special = match address {
        IpAddr::V4(four) => four.is_broadcast() || four.octets()[0] == 0,
        IpAddr::V6(six) => six.to_ipv4_mapped().is_some(),
    };
    !(is_special || address.is_unspecified() || address.is_loopback() || address.is_multicast())
}

/// Returns the servers of SRV records.
async fn targets(
    resolver: Arc<TokioResolver>,
    name: &Name,
    families: [bool; 2],
) -> Result<DnsAnswer, String> {
    let mut ttl = u32::MAX;
    let mut by_target: BTreeMap<Name, Vec<(u16, u16, u16)>> = BTreeMap::new();
    let mut answer = DnsAnswer::default();
    let (mut over, mut has_root) = (0, false);
    for record in records(&resolver, name, RecordType::SRV, &mut ttl).await? {
        let RData::SRV(srv) = &record.data else { continue };
        // RFC 2782: a target of `.` says that there is no such service.
        if srv.target.is_root() {
            has_root = true;
            continue;
        }
        if by_target.len() >= TARGETS_MAX && !by_target.contains_key(&srv.target) {
            over += 1;
            continue;
        }
        by_target.entry(srv.target.clone()).or_default().push((srv.port, srv.priority, srv.weight));
    }
    if over > 0 {
        answer.notes.push(format!("{over} targets are left out: weir looks up {TARGETS_MAX}"));
    }
    answer.ttl = Duration::from_secs(ttl.into());
    answer.is_unavailable = has_root && by_target.is_empty();
    if answer.is_unavailable {
        answer.notes.push("DNS says that there is no such service: the target is `.`".to_string());
    }
    let mut lookups = JoinSet::new();
    let mut waiting = by_target.into_iter();
    loop {
        while lookups.len() < 8
            && let Some((target, records)) = waiting.next()
        {
            let resolver = resolver.clone();
            lookups.spawn(async move {
                let found = addresses(&resolver, &target, families).await;
                (target, records, found)
            });
        }
        let Some(done) = lookups.join_next().await else { break };
        let (target, records, found) = done.map_err(|error| error.to_string())?;
        let (addresses, ttl, notes) = found.map_err(|why| format!("target {target}: {why}"))?;
        if addresses.is_empty() {
            answer.notes.push(format!("target {target} has no address"));
        }
        answer.ttl = answer.ttl.min(ttl);
        answer.notes.extend(notes);
        for address in addresses {
            let server = |srv: &(u16, u16, u16)| DnsServer { address, srv: Some(*srv) };
            answer.servers.extend(records.iter().map(server));
        }
    }
    answer.servers.sort_by_key(|one| (one.address, one.srv));
    answer.notes.sort();
    Ok(answer)
}

/// Returns the records of a name, following CNAME records; the list is empty if there are no records. Lowers
/// `ttl` to the smallest TTL of the records used.
async fn records(
    resolver: &TokioResolver,
    name: &Name,
    kind: RecordType,
    ttl: &mut u32,
) -> Result<Vec<Record>, String> {
    let lookup = match resolver.lookup(name.clone(), kind).await {
        Ok(lookup) => lookup,
        Err(NetError::Dns(DnsError::NoRecordsFound(_))) => return Ok(Vec::new()),
        Err(error) => return Err(format!("{name} {kind}: {error}")),
    };
    let mut owner = name.clone();
    for _ in 0..CHAIN_MAX {
        let alias = lookup
            .answers()
            .iter()
            .find(|record| record.name == owner && matches!(record.data, RData::CNAME(_)));
        let Some(Record { data: RData::CNAME(next), ttl: of_alias, .. }) = alias else { break };
        *ttl = (*ttl).min(*of_alias);
        owner = next.0.clone();
    }
    let is_of = |record: &&Record| record.name == owner && record.record_type() == kind;
    let found: Vec<Record> = lookup.answers().iter().filter(is_of).cloned().collect();
    if found.is_empty() {
        return Err(format!("the answer about {name} {kind} has only records of other names"));
    }
    *ttl = found.iter().map(|record| record.ttl).fold(*ttl, u32::min);
    Ok(found)
}
