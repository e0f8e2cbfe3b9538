//! Many senders that see the same queues with a delay must not all move to the same path and back: a herd.
//! Here 64 hosts, each with its own probes every 10 ms and its own phase, send over four links of 1 Gbit/s.
//! Three links carry others' traffic already, and the fourth is idle.

use weir_packet::random::Random;
use weir_path::flow::{Flow, Route};
use weir_path::paths::{Paths, Ports, ProbeReply};
use weir_path::scheme::Scheme;
use weir_path::settings::Settings;

const LINKS: usize = 4;
const GOOD: usize = 3;
const RATE: u64 = 1_000_000_000;
const SENDERS: u64 = 64;
const MS: u64 = 1_000_000;
/// A step of the model, ns.
const STEP: u64 = MS / 10;
/// Bytes that a link carries per step, and that its buffer holds.
const CARRIED: u64 = RATE / 8 * STEP / 1_000_000_000;
const BUFFER: u64 = 1_000_000;
/// The length of a queue, in bytes, that is congestion (`Settings::of_rate`).
const LONG: u64 = 97_500;
struct Sender {
    paths: Paths,
    flow: Flow,
    random: Random,
    phase: u64,
    arrived: [u32; LINKS],
}

impl Sender {
    fn new(number: u64) -> Sender {
        let ports: Vec<Ports> = (0..LINKS as u16).map(|main| Ports { main, spare: None }).collect();
        let mut random = Random::new(number);
        Sender {
            paths: Paths::new(0, Settings::of_rate(RATE), &ports),
            flow: Flow::new(Scheme::Adaptive, number),
            phase: random.below(10 * MS / STEP),
            random,
            arrived: [0; LINKS],
        }
    }

    /// Probes all links. `queues` are the bytes in their queues.
    fn probe(&mut self, now: u64, queues: &[u64; LINKS]) {
        for (link, queue) in queues.iter().enumerate() {
            let sequence = self.paths.probe_sent(now, link);
            self.arrived[link] += 1;
            let delay_ns = (queue * 8 * 1_000_000_000 / RATE) as i64 + 7_000_000;
            let answer = ProbeReply { delay_ns, marked: false, arrived: self.arrived[link] };
            assert!(self.paths.probe_answered(now, link, sequence, answer));
        }
    }
}

/// Simulates two seconds after the first one. Returns the share of the senders' bytes on the good link in
/// each 10 ms (the first is cut short), and the longest queue there in bytes. `gap` is the number of steps
/// between two bursts of a sender. In percent of a link's rate, others send `background` on each of the other
/// links, and all senders together `offered`.
fn run(gap: u64, background: u64, offered: u64) -> (Vec<f64>, u64) {
    let mut senders: Vec<Sender> = (0..SENDERS).map(Sender::new).collect();
    let (mut queues, mut sent) = ([0_u64; LINKS], [0_u64; LINKS]);
    let (mut shares, mut longest) = (Vec::new(), 0);
    for step in 0..3000 * MS / STEP {
        let now = 1000 * MS + step * STEP;
        for sender in &mut senders {
            if (step + sender.phase).is_multiple_of(10 * MS / STEP) {
                sender.probe(now, &queues);
            }
            sender.paths.tick(now);
            if (step + sender.phase).is_multiple_of(gap) {
                let bytes = gap * CARRIED * offered / 100 / SENDERS;
                let route = sender.flow.place(now, bytes, &mut sender.paths, &mut sender.random);
                let Route::Path(link) = route else { panic!("{route:?}") };
                queues[link] += bytes;
                sent[link] += bytes;
            }
        }
        for (link, queue) in queues.iter_mut().enumerate() {
            let others = if link == GOOD { 0 } else { CARRIED * background / 100 };
            *queue = (*queue + others).saturating_sub(CARRIED).min(BUFFER);
        }
        if now >= 2000 * MS {
            longest = longest.max(queues[GOOD]);
            if step % (10 * MS / STEP) == 0 {
                shares.push(sent[GOOD] as f64 / sent.iter().sum::<u64>().max(1) as f64);
                sent = [0; LINKS];
            }
        } else {
            sent = [0; LINKS];
        }
    }
    (shares, longest)
}

#[test]
fn senders_do_not_run_to_the_good_link_and_back() {
    for gap in [1, 5, 10, 50] {
        for (background, offered) in [(98, 60), (95, 95), (90, 60), (80, 120), (50, 150)] {
            let (shares, longest) = run(gap, background, offered);
            let shares = &shares[1..];
            let mean = shares.iter().sum::<f64>() / shares.len() as f64;
            let deviation = shares.iter().map(|share| (share - mean).powi(2)).sum::<f64>();
            let deviation = (deviation / shares.len() as f64).sqrt();
            let swing = shares.windows(2).map(|two| (two[0] - two[1]).abs()).fold(0.0, f64::max);
            let case = format!("{gap} {background} {offered}: {mean:.2} {deviation:.3} {swing:.2} {longest}");
            // From one 10 ms to the next, less than a third of the bytes move; overall, the share on the good
            // link stays near its mean, and its queue never counts as long.
            assert!(swing < 0.33 && deviation < 0.06, "{case}");
            assert!(longest < LONG, "{case}");
            assert!(mean > 0.24, "the good link gets no less than the others: {case}");
            assert!(background < 98 || mean > 0.75, "a link that others fill is avoided: {case}");
        }
    }
}
