//! Many services.

use crate::bed::{Bed, Controller, SERVICES, SLICES, wait};
use crate::objects::{service, slice};
use crate::packets::ServiceTraffic;
use std::time::{Duration, Instant};

/// How long a restart may take, and the memory that the controller may use.
const RESTART_MAX: Duration = Duration::from_secs(10);
const MEMORY_MAX_KB: u64 = 200 << 10;
/// How many services there are, unless KUBE_SERVICES says another number.
const COUNT: usize = 1000;
/// How many endpoints they have together.
const ENDPOINTS: usize = 10_000;
/// How long it may take until nodes have them all.
const CREATED: Duration = Duration::from_secs(600);
/// The services with packets, of which each has two ports, and the listener of the gateway and its service.
const OTHERS: usize = 6;

/// Returns the addresses of the endpoints of a service, of which the last one has this number.
fn addresses(at: usize, each: usize, last: usize) -> Vec<String> {
    (1..each).chain([last]).map(|one| format!("10.{}.{}.{one}", 8 + at / 250, at % 250)).collect()
}

/// Creates services; a change of one of them is timed, and a restart changes nothing. Clients of other
/// services do not notice any of it.
pub fn services(bed: &Bed, controller: Controller, traffic: &ServiceTraffic<'_>) {
    let count = std::env::var("KUBE_SERVICES").map_or(COUNT, |text| text.parse().unwrap());
    let each = (ENDPOINTS / count).max(1);
    let begun = Instant::now();
    bed.create_all((0..count).flat_map(|at| {
        let name = format!("s{at}");
        [(SLICES, slice(&name, &addresses(at, each, each))), (SERVICES, service(&name))]
    }));
    println!("{count} services with {each} endpoints each were written in {:.1?}", begun.elapsed());
    let last = bed.nodes.len() - 1;
    let mut has = 0;
    while has < count + OTHERS {
        assert!(begun.elapsed() < CREATED, "{has} services are on the node");
        std::thread::sleep(Duration::from_millis(500));
        has = bed.services(last).services.len();
    }
    println!("they are on the node with packets after {:.1?}", begun.elapsed());
    wait("all nodes in sync", || controller.get("/readyz").0.then_some(()));
    traffic.phase("many services were created", None);
    if count <= COUNT {
        time_changes(bed, count, each);
    }
    let (_, metrics) = controller.get("/metrics");
    metrics.lines().filter(|line| line.contains("node_delay")).for_each(|line| println!("{line}"));
    println!("memory of the controller: {} kB", controller.program.memory_kb());
    assert!(controller.program.memory_kb() < MEMORY_MAX_KB);
    restart(bed, controller, traffic);
}

fn time_changes(bed: &Bed, count: usize, each: usize) {
    let mut times = Vec::new();
    for at in (0..count).step_by((count / 20).max(1)) {
        let (service, changed) = (format!("shop.s{at}.80-tcp"), addresses(at, each, each + 1));
        let begun = Instant::now();
        bed.put_slice(&format!("s{at}"), &changed);
        wait(&service, || bed.back_ends(0, &service)?.contains(&changed[each - 1]).then_some(()));
        times.push(begun.elapsed());
    }
    times.sort();
    println!(
        "from the API write until a client sees the change at a node: median {:.1?}, p99 {:.1?}, max {:.1?}",
        times[times.len() / 2],
        times[times.len() * 99 / 100],
        times[times.len() - 1]
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
    println!("memory of the controller after it: {} kB", again.program.memory_kb());
    traffic.phase("weir-kube was started again", None);
}
