//! Recordings that cannot be written, or read to their end: the disk is full, or a file was truncated. The
//! ports count such failures; the log reports them when they begin, and then once a minute while the count
//! grows.

use super::fleet::Fleet;
use crate::config::{Plan, PortKind};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::{Duration, Instant};
use tracing::error;
use weir_engine::worker::{Command, Report};

/// How often ports are polled.
const EVERY: Duration = Duration::from_secs(1);

/// How long to wait until a recording is reported again.
const QUIET: Duration = Duration::from_secs(60);

/// The last report about a recording, and its time.
struct ReportedRecording {
    text: String,
    when: Instant,
}

/// The state of all recordings.
#[derive(Default)]
pub struct Recordings {
    next: Option<Instant>,
    asked: Vec<Receiver<Report>>,
    /// What was reported, by worker, port and the text before the counts.
    said: BTreeMap<(usize, String, String), ReportedRecording>,
}

impl Recordings {
    /// Returns when [`Recordings::check`] has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        self.next
    }

    /// Polls the ports now and then, if any has a recording, and logs what is new.
    pub fn check(&mut self, plan: &Plan, fleet: &Fleet) {
        if !records(plan) {
            *self = Recordings::default();
            return;
        }
        let now = Instant::now();
        if self.next.is_some_and(|next| now < next) {
            return;
        }
        self.next = Some(now + EVERY);
        let ask = |worker| {
            let (answer, report) = sync_channel(1);
            fleet.offer(worker, Command::Report(answer));
            report
        };
        let news = self.turn(now, fleet.len(), ask);
        news.iter().for_each(|text| error!("{text}"));
    }

    /// Takes the answers that have arrived, and asks those workers again. Returns what to log.
    fn turn(&mut self, now: Instant, workers: usize, ask: impl Fn(usize) -> Receiver<Report>) -> Vec<String> {
        let mut news = Vec::new();
        self.asked.truncate(workers);
        for (worker, mut answer) in std::mem::take(&mut self.asked).into_iter().enumerate() {
            match answer.try_recv() {
                Ok(report) => news.extend(self.news(now, worker, &report)),
                Err(TryRecvError::Empty) => {
                    self.asked.push(answer);
                    continue;
                }
                Err(TryRecvError::Disconnected) => {}
            }
            answer = ask(worker);
            self.asked.push(answer);
        }
        self.asked.extend((self.asked.len()..workers).map(ask));
        news
    }

    /// Returns what is new in a report.
    fn news(&mut self, now: Instant, worker: usize, report: &Report) -> Vec<String> {
        let mut news = Vec::new();
        for port in &report.ports {
            for remark in port.remarks.iter().filter(|remark| remark.is_error) {
                let (text, name) = (&remark.text, &port.name);
                let what = text.split_once(';').map_or(text.as_str(), |(what, _)| what);
                let key = (worker, name.clone(), what.to_string());
                let is_told = |said: &ReportedRecording| said.text == *text || now < said.when + QUIET;
                if self.said.get(&key).is_some_and(is_told) {
                    continue;
                }
                self.said.insert(key, ReportedRecording { text: text.clone(), when: now });
                news.push(format!("port {name}: {text}"));
            }
        }
        news
    }

    /// Logs the final counts when the workers have stopped.
    pub fn end(&mut self, reports: &[Report]) {
        // Counts reported before may have grown.
        let later = Instant::now() + QUIET;
        let news = reports.iter().enumerate().flat_map(|(worker, report)| self.news(later, worker, report));
        news.for_each(|text| error!("{text}"));
    }
}

/// Returns whether a port writes or reads a file.
fn records(plan: &Plan) -> bool {
    plan.ports.iter().any(|port| port.trace.is_some() || matches!(port.kind, PortKind::Pcap { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_engine::worker::PortReport;
    use weir_packet::Remark;

    #[test]
    fn what_gets_worse_is_said_once_a_minute() {
        let report = |lost: u32| {
            let text = format!("a.pcap cannot be written: full; {lost} frames are missing in it");
            let remarks =
                vec![Remark { text, is_error: true }, Remark { text: "odd".into(), is_error: false }];
            let port = PortReport { name: "p0".into(), remarks, ..PortReport::default() };
            Report { ports: vec![port], ..Report::default() }
        };
        let (mut recordings, start) = (Recordings::default(), Instant::now());
        let mut said =
            |second: u64, lost| recordings.news(start + Duration::from_secs(second), 0, &report(lost));
        assert_eq!(said(0, 1), ["port p0: a.pcap cannot be written: full; 1 frames are missing in it"]);
        assert_eq!(said(1, 2).len(), 0, "it was reported a second ago");
        assert_eq!(said(61, 3).len(), 1, "it has got worse");
        assert_eq!(said(200, 3).len(), 0, "there is nothing new");
        recordings.end(&[report(3)]);
    }
}
