//! The counts that flows report: during their lifetime, when they expire, and while several processors use
//! the table.

use crate::handle::Handle;
use crate::key;
use crate::rig::*;
use aya::programs::TcAttachType;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use weir_overlay::bpf::{OverlayEnd, OverlayGone, OverlaySweep, STAMP_GLOBAL, STAMP_POLICY};

/// A sweep in which all flows report their counts.
pub const GIVE: OverlaySweep = OverlaySweep { idle_ns: 0, given_ns: u64::MAX, ends: false };
/// A sweep in which all flows expire.
pub const END: OverlaySweep = OverlaySweep { idle_ns: u64::MAX, given_ns: u64::MAX, ends: true };

impl OverlayRig {
    /// Sweeps the whole table, and returns what flows report.
    pub fn sweep(&mut self, what: &OverlaySweep) -> Vec<OverlayGone> {
        let mut at = 0;
        let mut all = Vec::new();
        while at < self.programs.sets() {
            at = self.programs.sweep(at, 7, what).unwrap();
            all.extend(self.programs.left());
        }
        all
    }

    fn send(&mut self, port: u16, times: u64) {
        for _ in 0..times {
            assert_eq!(self.run("overlay_send", &sent(UDP, port), 0).0, REDIRECT);
        }
    }
}

#[test]
fn a_flow_gives_each_count_once_and_goes_when_it_is_idle() {
    let Some(mut rig) = OverlayRig::new(64) else { return };
    rig.learn(UDP, 7000);
    rig.learn(UDP, 7001);
    rig.send(7000, 5);
    rig.run("overlay_receive", &arriving(UDP, 7000), 0);
    // A flow that has counted nothing has nothing to report.
    let given = rig.sweep(&GIVE);
    assert_eq!(given.len(), 1, "{given:?}");
    assert_eq!((given[0].key, given[0].packets, given[0].why), (key(UDP, 7000), [5, 1], OverlayEnd::Alive));
    assert_eq!(given[0].bytes, [5 * 52, 52], "with Ethernet's header, as on the pod's wire");
    assert_eq!(given[0].received, key(UDP, 7000).sent().reversed());
    assert_eq!(rig.sweep(&GIVE), [], "given before");
    assert_eq!(rig.programs.flows().unwrap().read().len(), 2, "they live on");
    rig.send(7000, 2);
    // One flow has been used since then.
    wait_for_ticks(Duration::from_millis(30));
    let now = rig.programs.flows().unwrap().read().iter().map(|flow| flow.used_ns).max().unwrap();
    wait_for_ticks(Duration::from_millis(30));
    rig.send(7001, 1);
    let idle = OverlaySweep { idle_ns: now + 1, given_ns: 0, ends: false };
    let gone = rig.sweep(&idle);
    assert_eq!(
        gone.iter().map(|gone| (gone.packets, gone.why)).collect::<Vec<_>>(),
        [([2, 0], OverlayEnd::Idle)]
    );
    assert!(gone[0].born_ns >= given[0].used_ns, "since it gave its counts");
    assert_eq!(rig.slow("overlay_send", &sent(UDP, 7000)), "unknown");
    assert_eq!(rig.programs.entries().idled, 1);
    rig.learn(UDP, 7000);
    rig.send(7000, 1);
    let ended = rig.sweep(&END);
    assert_eq!(ended.iter().map(|gone| gone.packets[0]).collect::<Vec<_>>(), [1, 1]);
    assert!(ended.iter().all(|gone| gone.why == OverlayEnd::Stopped));
    assert_eq!(rig.programs.entries().gone_packets, [5 + 2 + 1 + 1, 1]);
}

#[test]
fn records_without_room_are_counted() {
    const FLOWS: u32 = 1 << 16;
    let Some(mut rig) = OverlayRig::new(FLOWS) else { return };
    let flows = 50_000;
    for port in 0..flows {
        rig.learn(UDP, port);
        rig.send(port, 1);
    }
    // A sweep stops before the ring is full.
    let mut at = 0;
    loop {
        let next = rig.programs.sweep(at, 4096, &GIVE).unwrap();
        if next == at {
            break;
        }
        at = next;
    }
    assert!(at < rig.programs.sets(), "nothing was evicted: {:?}", rig.programs.entries());
    assert_eq!(rig.programs.entries().lost, [0, 0]);
    // Flows whose connections end do not wait.
    for port in 0..flows {
        rig.programs.forget(&key(UDP, port)).unwrap();
    }
    let [records, packets] = rig.programs.entries().lost;
    let mut given = Vec::new();
    loop {
        let some = rig.programs.left();
        if some.is_empty() {
            break;
        }
        given.extend(some);
    }
    let kept: u64 = given.iter().map(|gone| gone.packets[0]).sum();
    assert_eq!((records, kept + packets), (packets, rig.programs.entries().gone_packets[0]));
    assert!(packets > 0, "nothing was evicted: create more flows");
}

/// What the threads that send frames share with the one that sweeps.
#[derive(Default)]
struct SharedByThreads {
    ends: AtomicBool,
    /// Sweeps so far.
    sweeps: AtomicU64,
    /// Frames that took the fast path, by direction.
    fast: [AtomicU64; 2],
    /// Frames of mixed flows.
    wrong: AtomicU64,
}

/// How often a thread may send between two sweeps: records of the flows that it evicts must fit into the
/// ring, however rarely the sweeping thread gets a processor.
const ROUNDS: u32 = 1000;

/// The work of one thread: it sends frames of more flows than fit, in both directions, and has flows learnt
/// again whenever they are not known.
fn frames(shared: &SharedByThreads, at: usize, (pod, up): (u32, u32)) {
    let mut cpu = CpuSet::new();
    cpu.set(at);
    // Programs at tc hooks do not preempt each other; threads on one processor would.
    sched_setaffinity(None, &cpu).unwrap();
    let ingress = |name, interface| Handle::find(interface, TcAttachType::Ingress, name);
    let egress = |name, interface| Handle::find(interface, TcAttachType::Egress, name);
    let send = [ingress("overlay_send", "pod0"), egress("overlay_learn_send", "up0")];
    let receive = [ingress("overlay_receive", "up0"), egress("overlay_learn_receive", "pod0")];
    let fast = |at: usize| shared.fast[at].fetch_add(1, Ordering::Relaxed);
    let is_wrong = |so: bool| shared.wrong.fetch_add(u64::from(so), Ordering::Relaxed);
    let mut random = at as u32 + 1;
    let (mut sweeps, mut rounds) = (0, 0);
    while !shared.ends.load(Ordering::Relaxed) {
        let now = shared.sweeps.load(Ordering::Relaxed);
        if now == sweeps && rounds == ROUNDS {
            std::thread::sleep(Duration::from_micros(100));
            continue;
        }
        rounds = if now == sweeps { rounds + 1 } else { 0 };
        sweeps = now;
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let port = (random >> 16) as u16 % 48;
        // Flows with even ports lead to one node, the others to another.
        let node = [NODE, SECOND_NODE][usize::from(port % 2)];
        let out = sent(UDP, port);
        let (verdict, frame, mark) = send[0].run(&out, (pod, 0));
        if verdict == REDIRECT {
            fast(0);
            is_wrong(frame[30..34] != node.octets() || frame[76..88] != out[26..38]);
        } else if mark != 0 {
            send[1].run(&tunnelled(&routed(UDP, port), [HERE, node]), (up, mark | ESTABLISHED));
        }
        let (verdict, frame, mark) = receive[0].run(&tunnelled(&answer(UDP, port), [node, HERE]), (up, 0));
        if verdict == REDIRECT {
            fast(1);
            is_wrong(frame != delivered(UDP, port));
        } else if mark != 0 {
            receive[1].run(&delivered(UDP, port), (pod, mark | ESTABLISHED));
        }
    }
}

#[test]
fn processors_that_share_the_table_lose_no_count_and_mix_no_flows() {
    let Some(mut rig) = OverlayRig::new(32) else { return };
    rig.programs.attach_uplink("up0").unwrap();
    rig.programs.set_node(SECOND_NODE.into(), SECOND_NODE_STAMP).unwrap();
    ip("neighbour add 10.0.1.3 lladdr 02:00:00:00:00:03 dev up0 nud permanent");
    let shared = SharedByThreads::default();
    let (interfaces, threads) =
        ((rig.pod, rig.up), std::thread::available_parallelism().unwrap().get().min(4));
    let mut given = Vec::new();
    let is_enough = |rig: &OverlayRig| {
        let fast = shared.fast.iter().all(|count| count.load(Ordering::Relaxed) > 1000);
        fast && rig.programs.entries().evicted > 100
    };
    std::thread::scope(|scope| {
        for at in 0..threads {
            let shared = &shared;
            scope.spawn(move || frames(shared, at, interfaces));
        }
        // On a busy machine, it takes longer until enough has happened.
        let began = Instant::now();
        let goes_on = |time: u64| began.elapsed() < Duration::from_secs(time);
        let mut turn = 0_u16;
        while goes_on(2) || goes_on(60) && !is_enough(&rig) {
            turn = turn.wrapping_add(1);
            match turn % 8 {
                0 => rig.programs.bump(&[STAMP_GLOBAL]).unwrap(),
                1 => rig.programs.bump(&[STAMP_POLICY]).unwrap(),
                2 => rig.programs.bump(&[NODE_STAMP, POD_STAMP]).unwrap(),
                3 => rig.programs.forget(&key(UDP, turn % 48)).unwrap(),
                4 => given.extend(rig.sweep(&END)),
                _ => given.extend(rig.sweep(&GIVE)),
            }
            shared.sweeps.fetch_add(u64::from(turn % 8 > 3), Ordering::Relaxed);
            std::thread::sleep(Duration::from_micros(300));
        }
        shared.ends.store(true, Ordering::Relaxed);
    });
    let is_enough = is_enough(&rig);
    let SharedByThreads { fast, wrong, .. } = shared;
    let fast = fast.map(AtomicU64::into_inner);
    assert_eq!(wrong.into_inner(), 0, "frames of mixed flows");
    given.extend(rig.sweep(&END));
    given.extend(rig.sweep(&END));
    let [sent, received] = rig.programs.frames();
    assert!(sent.is_balanced() && received.is_balanced(), "{sent:?} {received:?}");
    let entries = rig.programs.entries();
    let sum = |at: usize| given.iter().map(|gone| gone.packets[at]).sum::<u64>();
    assert_eq!([sum(0), sum(1)], fast, "each frame of the fast path is in one record: {entries:?}");
    assert_eq!([sent.of("fast"), received.of("fast")], fast);
    assert_eq!((entries.gone_packets, entries.lost), (fast, [0, 0]));
    assert!(is_enough, "too little happened: {fast:?} {entries:?}");
}
