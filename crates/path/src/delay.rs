//! Queueing delay derived from one-way delays: the delay minus its minimum.
//!
//! Sender and receiver have separate clocks, so a one-way delay has an arbitrary offset, which is the same
//! for all paths to the node; subtracting the minimum cancels it. The minimum is kept for a window, because
//! clocks drift and routes change. A standing queue that lasts longer than the window would become the
//! minimum. Therefore, while a path is congested, its minimum is held for a limited time.

/// A minimum is forgotten after one to two windows, ns.
pub const WINDOW_NS: u64 = 30_000_000_000;

/// The maximum time for which the minimum of a congested path is held, ns: the route itself may have become
/// longer. Clocks disciplined by NTP drift by less than 1 us/s, that is 0.6 ms in this time.
pub const HELD_NS_MAX: u64 = 600_000_000_000;

/// An increase in delay between two probes that indicates a clock jump, ns: switch buffers hold no more than
/// some 10 ms (200 KB at 200 Mbit/s: 8 ms).
pub const JUMP_NS: i64 = 100_000_000;

/// The weight of a sample in the average when the delay falls: 1/4 (Hermes). When it rises, the average
/// becomes the sample.
pub const FALL: u64 = 4;

/// The time without a sample, ns, after which half of the delay is forgotten, because it is out of date, if
/// nothing else was given.
pub const STALE_NS: u64 = 100_000_000;

/// The queueing delay of one path.
#[derive(Clone, Debug)]
pub struct Delay {
    stale_ns: u64,
    fall: u64,
    queue_ns: u64,
    /// The minimum of the previous window, and of the current one.
    floor: Option<[i64; 2]>,
    last: i64,
    window_ends: u64,
    held_since: u64,
    fades_at: u64,
}

impl Default for Delay {
    fn default() -> Delay {
        Delay::lasting(STALE_NS, FALL)
    }
}

impl Delay {
    /// Returns a delay of which half is forgotten after `stale_ns` without a sample. A lower sample lowers it
    /// by the `fall`th part of the difference: with 1, to that sample.
    #[must_use]
    pub fn lasting(stale_ns: u64, fall: u64) -> Delay {
        let fall = fall.max(1);
        Delay {
            stale_ns,
            fall,
            queue_ns: 0,
            floor: None,
            last: 0,
            window_ends: 0,
            held_since: 0,
            fades_at: 0,
        }
    }

    /// The average queueing delay, ns; 0 before the first sample.
    #[inline]
    #[must_use]
    pub fn queue_ns(&self) -> u64 {
        self.queue_ns
    }

    /// Returns true if a sample shows that a clock has jumped. The caller then forgets the samples of all
    /// paths to the node, because they share its clocks.
    #[must_use]
    pub fn shows_jump(&self, delay_ns: i64) -> bool {
        self.floor.is_some() && delay_ns.saturating_sub(self.last).unsigned_abs() > JUMP_NS as u64
    }

    /// Forgets all samples.
    pub fn forget(&mut self) {
        *self = Delay::lasting(self.stale_ns, self.fall);
    }

    /// Records a sample: the receiver's clock minus the sender's. `held` says that the path is congested.
    pub fn sample(&mut self, now: u64, delay_ns: i64, held: bool) {
        self.last = delay_ns;
        let Some(floor) = &mut self.floor else {
            self.floor = Some([delay_ns; 2]);
            self.window_ends = now.saturating_add(WINDOW_NS);
            self.held_since = now;
            self.fades_at = now.saturating_add(self.stale_ns);
            return;
        };
        floor[1] = floor[1].min(delay_ns);
        if !held {
            self.held_since = now;
        }
        if now >= self.window_ends {
            let holds = held && now - self.held_since < HELD_NS_MAX;
            *floor = if holds { [floor[0].min(floor[1]), delay_ns] } else { [floor[1], delay_ns] };
            self.window_ends = now.saturating_add(WINDOW_NS);
        }
        let queue = delay_ns.saturating_sub(floor[0].min(floor[1])).max(0) as u64;
        self.queue_ns = if queue > self.queue_ns {
            queue
        } else {
            self.queue_ns - (self.queue_ns - queue).div_ceil(self.fall)
        };
        self.fades_at = now.saturating_add(self.stale_ns);
    }

    /// Forgets half of the delay after each long interval without a sample.
    pub fn tick(&mut self, now: u64) {
        if now >= self.fades_at {
            self.queue_ns /= 2;
            self.fades_at = now.saturating_add(self.stale_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fed(offset: i64, queues: &[i64]) -> Delay {
        let mut delay = Delay::default();
        for (at, queue) in (0..).zip(queues) {
            delay.sample(at * 10_000_000, offset + queue, false);
        }
        delay
    }

    #[test]
    fn the_clocks_offset_cancels() {
        let queues = [50, 0, 700, 300, 20];
        for offset in [0, -1_000_000_000_000, i64::MAX - 1000] {
            assert_eq!(fed(offset, &queues).queue_ns(), fed(0, &queues).queue_ns());
        }
    }

    #[test]
    fn it_rises_at_once_and_falls_by_quarters() {
        assert_eq!(fed(9, &[0, 1000]).queue_ns(), 1000);
        assert_eq!(fed(9, &[0, 1000, 0]).queue_ns(), 750);
        assert_eq!(fed(9, &[0; 20]).queue_ns(), 0);
        let mut drained = vec![0, 1000];
        drained.extend([0; 40]);
        assert_eq!(fed(9, &drained).queue_ns(), 0, "nothing remains");
    }

    #[test]
    fn a_standing_queue_is_no_minimum_until_it_has_stood_for_long() {
        let mut delay = fed(0, &[0, 5000]);
        let step = 1_000_000_000;
        for at in 1..HELD_NS_MAX / step {
            delay.sample(at * step, 5000, true);
            assert_eq!(delay.queue_ns(), 5000, "after {at} s");
        }
        for at in 600..700 {
            delay.sample(at * step, 5000, true);
        }
        assert_eq!(delay.queue_ns(), 0, "the route is longer now");
    }

    #[test]
    fn without_samples_it_fades() {
        let mut delay = fed(0, &[0, 1024]);
        for at in 1..=11 {
            delay.tick(at * 200_000_000);
        }
        assert_eq!(delay.queue_ns(), 0);
    }
}
