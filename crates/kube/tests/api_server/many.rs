//! Many services.

use crate::bed::{Bed, Controller, SERVICES, SLICES, wait};
use crate::objects::{service, slice};
use crate::packets::ServiceTraffic;
use std::time::{Duration, Instant};

/// How long a restart may take, and the memory that the controller may use.
const RESTART_MAX: Duration = Duration::from_secs(10);
const MEMORY_MAX_KB: u64 = 200 << 10;
/// How many services there are, unless KUBE_SERVICES is set to another number.
const COUNT: usize = 1000;
/// How many endpoints they have together.
const ENDPOINTS: usize = 10_000;
/// How many changes of endpoints are timed.
const CHANGES: usize = 200;
/// How long it may take until nodes have all services, once these are written.
const CREATED: Duration = Duration::from_secs(600);
/// The services on a node beside these: two with two ports each, whose clients send packets, and those of the
/// gateway's listener and its service.
const OTHERS: usize = 6;

/// Returns the addresses of the endpoints of a service; the last one ends in `last`.
fn addresses(at: usize, each: usize, last: usize) -> Vec<String> {
    (1..each).chain([last]).map(|one| format!("10.{}.{}.{one}", 8 + at / 250, at % 250)).collect()
}

/// Creates many services, times changes of their endpoints, and checks that a restart of the controller
/// changes nothing. Clients of other services must not notice any of this.
pub fn services(bed: &Bed, controller: Controller, traffic: &ServiceTraffic<'_>) {
    let count = std::env::var("KUBE_SERVICES").map_or(COUNT, |text| text.parse().unwrap());
    let each = (ENDPOINTS / count).max(1);
    let begun = Instant::now();
    bed.create_all((0..count).flat_map(|at| {
        let name = format!("s{at}");
        [(SLICES, slice(&name, &addresses(at, each, each))), (SERVICES, service(&name))]
    }));
    println!("{count} services with {each} endpoints each were written in {:.1?}", begun.elapsed());
    let (last, written) = (bed.nodes.len() - 1, Instant::now());
    let mut has = 0;
    while has < count + OTHERS {
        assert!(written.elapsed() < CREATED, "{has} services are on the node");
        std::thread::sleep(Duration::from_millis(500));
        has = bed.services(last).services.len();
    }
    println!("they are on the node with packets after {:.1?}", begun.elapsed());
    wait("all nodes in sync", || controller.get("/readyz").0.then_some(()));
    traffic.phase("many services were created", None);
    if count <= COUNT {
        time_changes(bed, &controller, count, each);
    }
    let [now, most] = controller.program.memory_kb();
    println!("memory of the controller: {now} kB, at most {most} kB");
    assert!(most < MEMORY_MAX_KB);
    restart(bed, controller, traffic);
}

/// Prints how long changes of endpoints take, from the API write and from their arrival at the controller.
fn time_changes(bed: &Bed, controller: &Controller, count: usize, each: usize) {
    let before = delays(controller);
    let mut times = Vec::new();
    for at in (0..count).step_by((count / CHANGES).max(1)) {
        let (service, changed) = (format!("shop.s{at}.80-tcp"), addresses(at, each, each + 1));
        let begun = Instant::now();
        bed.put_slice(&format!("s{at}"), &changed);
        wait(&service, || bed.has(0, &service, &changed[each - 1]).then_some(()));
        times.push(begun.elapsed());
    }
    times.sort();
    println!(
        "{} changes, from the API write until a client sees it at a node: median {:.1?}, p99 {:.1?}, \
         max {:.1?}",
        times.len(),
        times[times.len() / 2],
        times[times.len() * 99 / 100],
        times[times.len() - 1]
    );
    print_delays(&before, &delays(controller));
}

/// Returns how many changes a node has confirmed within each bound, from the smallest to infinity.
fn delays(controller: &Controller) -> Vec<(String, u64)> {
    let (_, metrics) = controller.get("/metrics");
    let bucket = |line: &str| {
        let rest = line.strip_prefix("weir_kube_node_delay_seconds_bucket{le=\"")?;
        let (bound, count) = rest.split_once("\"} ")?;
        Some((bound.to_string(), count.trim().parse().ok()?))
    };
    metrics.lines().filter_map(bucket).collect()
}

/// Prints how long it took until a node had confirmed a change, as far as the bounds of the histogram show
/// it.
fn print_delays(before: &[(String, u64)], after: &[(String, u64)]) {
    let counts: Vec<u64> = after.iter().zip(before).map(|((_, after), (_, before))| after - before).collect();
    let all = counts.last().copied().unwrap_or_default();
    let within = |share: u64| {
        let at = counts.iter().position(|count| count * 100 >= share * all);
        at.map_or("", |at| after[at].0.as_str())
    };
    println!(
        "from the arrival of a change until a node has confirmed it, {all} times: half within {} s, 99 % \
         within {} s",
        within(50),
        within(99)
    );
}

fn restart(bed: &Bed, controller: Controller, traffic: &ServiceTraffic<'_>) {
    let etags = || -> Vec<_> { (0..bed.nodes.len()).map(|node| bed.services(node).status.etag).collect() };
    let before = etags();
    controller.program.end();
    let begun = Instant::now();
    let again = bed.controller("again.yaml");
    again.until_ready();
    println!("a restart took {:.1?}", begun.elapsed());
    assert!(begun.elapsed() < RESTART_MAX);
    assert_eq!(before, etags(), "a restart changes nothing on nodes");
    let [now, most] = again.program.memory_kb();
    println!("memory of the controller after it: {now} kB, at most {most} kB");
    assert!(most < MEMORY_MAX_KB);
    traffic.phase("weir-kube was started again", None);
}
