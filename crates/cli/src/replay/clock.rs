//! The virtual clock of a replay. It jumps to the next event: a frame arrives, an app asked to be woken, a
//! flow or a run-time entry expires. A second in which nothing happens costs nothing.
//!
//! Apps may want to be woken every second for the length of the recording, and a single odd timestamp makes
//! it decades long. The number of such steps, between which no frame arrives, is bounded: after the last
//! step, apps sleep until the next frame.

use weir_engine::worker::Worker;

/// How long the clock runs after the last frame, for delayed frames, in nanoseconds.
const AFTER_NS: u64 = 1_000_000_000;

/// The shortest time between two scans of the ages of all flows and entries, as long as a worker's sweep
/// takes, in nanoseconds.
const SWEEP_NS: u64 = 1_000_000_000;

/// How many steps the clock may take for anything but a frame, plus one for every frame: 18 hours of apps
/// that wake every second, in less than a second of processor time.
pub const STEPS_MAX: u64 = 1 << 16;

pub struct Clock {
    now_ns: u64,
    /// When the replay is over, unless a frame arrives.
    end_ns: u64,
    /// Nothing expires before this time.
    ages_ns: u64,
    least_timeout_ns: Option<u64>,
    steps_left: u64,
    slept_ns: u64,
}

impl Clock {
    /// Creates a clock at time 0.
    pub fn new(worker: &Worker) -> Clock {
        Clock {
            now_ns: 0,
            end_ns: AFTER_NS,
            ages_ns: 0,
            least_timeout_ns: worker.engine().least_timeout_ns(),
            steps_left: STEPS_MAX,
            slept_ns: 0,
        }
    }

    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Returns the time without frames in which apps were not woken.
    pub fn slept_ns(&self) -> u64 {
        self.slept_ns
    }

    /// Advances to the next event. Apps asked to be woken at `wake_ns`. Returns false if there are no more
    /// events.
    pub fn advance(&mut self, worker: &mut Worker, wake_ns: Option<u64>) -> bool {
        let arrival_ns = worker.ports().iter().filter_map(|port| port.next_arrival_ns()).min();
        match arrival_ns {
            Some(arrival_ns) => self.end_ns = arrival_ns.max(self.now_ns).saturating_add(AFTER_NS),
            None if self.now_ns >= self.end_ns => return false,
            None => {}
        }
        let frame_ns = arrival_ns.unwrap_or(self.end_ns).max(self.now_ns);
        let wake_ns = wake_ns.map_or(frame_ns, |wake_ns| wake_ns.clamp(self.now_ns, frame_ns));
        let age_ns = self.next_age_ns(worker, wake_ns);
        let step_ns = age_ns.unwrap_or(wake_ns);
        if step_ns < frame_ns && self.steps_left > 0 {
            self.steps_left -= 1;
            self.now_ns = step_ns;
        } else {
            self.steps_left = STEPS_MAX.min(self.steps_left + 1);
            self.slept_ns += if step_ns < frame_ns { frame_ns - self.now_ns } else { 0 };
            self.now_ns = frame_ns;
        }
        if age_ns.is_some() {
            worker.engine_mut().age(self.now_ns);
            self.ages_ns = self.now_ns.saturating_add(SWEEP_NS);
        }
        true
    }

    /// Returns when something expires, if it expires by `limit_ns`.
    fn next_age_ns(&mut self, worker: &Worker, limit_ns: u64) -> Option<u64> {
        let timeout_ns = self.least_timeout_ns?;
        if limit_ns < self.ages_ns {
            return None;
        }
        let next_ns = worker.engine().next_age_ns(self.now_ns);
        if let Some(next_ns) = next_ns.filter(|next_ns| *next_ns <= limit_ns) {
            return Some(next_ns.max(self.ages_ns).max(self.now_ns));
        }
        // Flows that are learnt from now on, which is at the limit or later, stay for at least their timeout.
        let rest_ns = next_ns.map_or(timeout_ns, |next_ns| timeout_ns.min(next_ns - limit_ns));
        self.ages_ns = limit_ns.saturating_add(rest_ns.max(SWEEP_NS));
        None
    }
}
