//! Reloads and takeovers while the kernel decides frames: none of them goes to a worker, is lost, or is
//! missing from a ledger. `make test-long` has many more of them, at half of the highest rate.

use crate::{B2, BACK_OUT, HOST, Network, PATIENCE, build, query};
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const RELOADS: usize = 10;
const TAKEOVERS: usize = 3;

/// The time between two queries. It is long, because this is about which program a frame meets, not about
/// rates.
const PACE: Duration = Duration::from_micros(500);

/// Sends numbered queries at a steady pace, whether or not they are answered, until the work is done. Returns
/// how many, all of which were answered.
fn steadily(network: &mut Network, client: &UdpSocket, work: impl FnOnce(&mut Network)) -> u64 {
    let (ends, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let answers = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Acquire) {
                let number = sent.fetch_add(1, Ordering::AcqRel);
                client.send_to(&number.to_be_bytes(), (crate::VIP, 53)).unwrap();
                std::thread::sleep(PACE);
            }
        });
        let receiver = scope.spawn(|| {
            let mut answers = Vec::new();
            let mut answer = [0; 9];
            while !ends.load(Ordering::Acquire) || answers.len() < sent.load(Ordering::Acquire) as usize {
                let Ok(9) = client.recv(&mut answer) else { break };
                answers.push(u64::from_be_bytes(answer[1..].try_into().unwrap()));
            }
            answers
        });
        let end = EndOfWork(&ends);
        work(network);
        drop(end);
        receiver.join().unwrap()
    });
    let sent = sent.load(Ordering::Acquire);
    let lost: Vec<u64> = (0..sent).filter(|number| !answers.contains(number)).collect();
    assert!(lost.is_empty(), "queries {lost:?} of {sent} are lost: {}", network.spaces.log());
    sent
}

/// Ends the traffic when the work is done, or has failed.
struct EndOfWork<'a>(&'a AtomicBool);

impl Drop for EndOfWork<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Network {
    /// Checks that the kernel has decided every frame that was taken.
    fn assert_no_worker_had_frames(&self) {
        let ports = self.show("ports");
        let given =
            ["xdp_taken", "xdp_redirect_failed", "xdp_held_back"].map(|name| &ports[0]["extra"][name]);
        assert_eq!(given, [0; 3], "{ports} {}", self.show("kernel"));
    }
}

#[test]
fn during_reloads_and_takeovers_the_kernel_decides_every_frame_and_one_ledger_has_it() {
    let Some(mut network) = build("kx") else { return };
    network.spaces.weir("weir", BACK_OUT);
    network.until_it_runs();
    let client = network.client(1);
    let sent = steadily(&mut network, &client, |network| {
        (0..RELOADS).for_each(|_| network.change(&["reload"]));
        for _ in 0..TAKEOVERS {
            network.assert_no_worker_had_frames();
            network.spaces.take_over("weir");
        }
    });
    network.assert_no_worker_had_frames();
    network.spaces.end();
    let log = network.spaces.log();
    let lossless = log.matches("taken over; 0 frames were dropped in the meantime").count();
    let balanced = log.matches("every frame is accounted for").count();
    assert_eq!((lossless, balanced), (TAKEOVERS, TAKEOVERS + 1), "{log}");
    let came =
        log.split("weir stops: ").skip(1).map(|rest| rest.split(' ').next().unwrap().parse::<u64>().unwrap());
    assert_eq!(came.sum::<u64>(), sent, "{log}");
}

#[test]
fn while_changes_that_belong_together_are_made_workers_have_the_frames() {
    let Some(mut network) = build("kz") else { return };
    network.spaces.weir("weir", &BACK_OUT.replace("    monitor:", "    capacity: 8\n    monitor:"));
    network.until_it_runs();
    let two = |verb: &str, rest: &str| {
        ["10.7.0.110", "10.7.0.111"]
            .map(|from| format!("{verb} choose {{ match: {{ ipv4.src: {from} }}{rest} }}\n"))
    };
    for (name, lines) in [
        ("more", two("add", &format!(", set: {{ eth.dst: {B2} }}, counter: odd"))),
        ("less", two("remove", "")),
    ] {
        std::fs::write(network.spaces.folder().join(name), lines.concat()).unwrap();
    }
    let client = network.client(1);
    // Until a query has arrived during a change.
    let by_worker = |network: &Network| network.show("ports")[0]["extra"]["xdp_taken"].as_u64().unwrap();
    let sent = steadily(&mut network, &client, |network| {
        let (mut turns, until) = (0, Instant::now() + PATIENCE);
        while turns < RELOADS || by_worker(network) == 0 {
            assert!(Instant::now() < until, "no query has arrived during {turns} changes");
            ["more", "less"].into_iter().for_each(|name| network.change(&["entry", "load", name]));
            turns += 1;
        }
    });
    network.assert_all_counted(sent, 0);
    let ports = network.show("ports");
    let kernel = network.show("kernel");
    let (by_worker, decided) = (&ports[0]["extra"]["xdp_taken"], &kernel[0]["decided"]);
    let [by_worker, decided] = [by_worker, decided].map(|count| count.as_u64().unwrap());
    eprintln!("{by_worker} of {sent} queries were sent to the worker");
    assert!(by_worker > 0 && by_worker + decided == sent, "{ports} {kernel}");
    assert_eq!(kernel[0]["runs"], true, "{kernel}");
}

/// How often to look at logs and processes: more often than a takeover makes a step.
const LOOK: Duration = Duration::from_micros(200);

/// When to kill a successor: this long after a line is in its log or, before it has one, in that of the old
/// weir.
const STEPS: [(&str, Duration); 8] = [
    ("another weir is taking over", Duration::ZERO),
    ("another weir is taking over", Duration::from_millis(20)),
    ("the kernel handles frames of p0", Duration::ZERO),
    ("the kernel handles frames of p0", Duration::from_millis(2)),
    ("took over 1 interfaces", Duration::ZERO),
    ("took over 1 interfaces", Duration::from_millis(1)),
    ("took over 1 interfaces", Duration::from_millis(10)),
    ("weir runs", Duration::ZERO),
];

#[test]
fn a_successor_that_is_killed_at_any_step_leaves_the_interface_to_the_old_weir_or_to_the_host() {
    let Some(mut network) = build("ky") else { return };
    let client = network.client(1);
    let mut still_runs = Vec::new();
    for (line, pause) in STEPS {
        if still_runs.last() != Some(&true) {
            network.spaces.weir("weir", BACK_OUT);
            network.until_it_runs();
        }
        let (before, had) = (network.spaces.log_of("weir"), "did not take over");
        let name = network.spaces.begin_takeover("weir");
        let until = Instant::now() + PATIENCE;
        let has_line = |network: &Network| {
            let old = network.spaces.log_of("weir");
            old[before.len()..].contains(line) || network.spaces.log_of(&name).contains(line)
        };
        while !has_line(&network) {
            assert!(Instant::now() < until, "{line}: {before} {}", network.spaces.log_of(&name));
            std::thread::sleep(LOOK);
        }
        std::thread::sleep(pause);
        network.spaces.kill_last();
        let is_over = |network: &mut Network| {
            !network.spaces.last_runs() || network.spaces.log_of("weir")[before.len()..].contains(had)
        };
        while !is_over(&mut network) {
            assert!(Instant::now() < until, "{line}: {}", network.spaces.log_of("weir"));
            std::thread::sleep(LOOK);
        }
        let runs = network.spaces.last_runs();
        still_runs.push(runs);
        if runs {
            let decided = network.show("kernel")[0]["decided"].as_u64().unwrap();
            assert_eq!(query(&client, 1), Some(2), "{line}");
            assert_eq!(network.show("kernel")[0]["decided"], decided + 1, "{line}");
            continue;
        }
        network.spaces.until("the interface is the host's", || network.program().is_none().then_some(()));
        assert_eq!(query(&client, 1), Some(HOST), "{line}");
        network.spaces.forget_last();
    }
    assert!(still_runs.contains(&true) && still_runs.contains(&false), "{still_runs:?}");
}
