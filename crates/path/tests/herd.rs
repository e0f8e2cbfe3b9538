//! Many senders that see the same queues, late, must not all run to the same path and back: a herd. Here 64
//! hosts, each with its own probes every 10 ms and its own phase, send over four links of 1 Gbit/s. Three links
//! carry 90 % of their rate already; the fourth is idle, and could carry all that the hosts send.

use path::flow::{Flow, Route};
use path::paths::{Answer, Paths, Ports};
use path::random::Random;
use path::scheme::Scheme;
use path::settings::Settings;

const LINKS: usize = 4;
const GOOD: usize = 3;
const RATE: u64 = 1_000_000_000;
const SENDERS: u64 = 64;
const MS: u64 = 1_000_000;
/// A turn of the model, ns.
const STEP: u64 = MS / 10;
/// Bytes that a link carries in a step, and that its buffer holds.
const CARRIED: u64 = RATE / 8 * STEP / 1_000_000_000;
const BUFFER: u64 = 1_000_000;
/// Of a link's rate, in percent: what others send on the three, and what all senders send.
const BACKGROUND: u64 = 90;
const OFFERED: u64 = 60;

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

    /// Probes all links, whose queues hold so many bytes.
    fn probe(&mut self, now: u64, queues: &[u64; LINKS]) {
        for (link, queue) in queues.iter().enumerate() {
            let sequence = self.paths.probe_sent(now, link);
            self.arrived[link] += 1;
            let delay_ns = (queue * 8 * 1_000_000_000 / RATE) as i64 + 7_000_000;
            let answer = Answer { delay_ns, marked: false, arrived: self.arrived[link] };
            assert!(self.paths.probe_answered(now, link, sequence, answer));
        }
    }
}

/// What happens in so many milliseconds after the first second: the share of bytes on the good link in each
/// 10 ms, and the longest queue there in bytes. `gap`: steps between two bursts of a sender.
fn run(gap: u64, time_ms: u64) -> (Vec<f64>, u64) {
    let mut senders: Vec<Sender> = (0..SENDERS).map(Sender::new).collect();
    let (mut queues, mut sent) = ([0_u64; LINKS], [0_u64; LINKS]);
    let (mut shares, mut longest) = (Vec::new(), 0);
    for step in 0..(1000 + time_ms) * MS / STEP {
        let now = 1000 * MS + step * STEP;
        for sender in &mut senders {
            if (step + sender.phase).is_multiple_of(10 * MS / STEP) {
                sender.probe(now, &queues);
            }
            sender.paths.tick(now);
            if (step + sender.phase).is_multiple_of(gap) {
                let bytes = gap * CARRIED * OFFERED / 100 / SENDERS;
                let route = sender.flow.place(now, bytes, &mut sender.paths, &mut sender.random);
                let Route::Path(link) = route else { panic!("{route:?}") };
                queues[link] += bytes;
                sent[link] += bytes;
            }
        }
        for (link, queue) in queues.iter_mut().enumerate() {
            let background = if link == GOOD { 0 } else { CARRIED * BACKGROUND / 100 };
            *queue = (*queue + background).saturating_sub(CARRIED).min(BUFFER);
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
fn look() {
    for gap in [1, 5, 10, 50] {
        let (shares, longest) = run(gap, 2000);
        let mean = shares[1..].iter().sum::<f64>() / (shares.len() - 1) as f64;
        let least = shares[1..].iter().copied().fold(1.0, f64::min);
        let most = shares[1..].iter().copied().fold(0.0, f64::max);
        let var = shares[1..].iter().map(|s| (s - mean).powi(2)).sum::<f64>() / shares.len() as f64;
        let jump = shares[1..].windows(2).map(|w| (w[0] - w[1]).abs()).fold(0.0, f64::max);
        println!(
            "gap {gap}: mean {mean:.2} least {least:.2} most {most:.2} sd {:.3} jump {jump:.2} longest {longest}",
            var.sqrt()
        );
    }
}
