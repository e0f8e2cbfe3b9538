//! Which probes of a peer are answered: each once, and not more than so many in a second.

/// Probes that may overtake each other without being taken for repetitions.
const SLOTS: usize = 256;

/// After so long, a peer may begin a session of any number, in nanoseconds.
const SILENCE_NS: u64 = 30_000_000_000;

/// So many answers may come at once.
const BURST: u64 = 200;

/// What a peer has asked.
#[derive(Clone, Debug)]
pub struct Window {
    due_ns: u64,
    last_ns: u64,
    session: u32,
    /// The last session and number that came for each slot.
    slots: Vec<(u32, u32)>,
}

/// Why a probe is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// It has come before.
    Repeated,
    /// There were too many.
    Limited,
}

impl Window {
    /// Nothing was asked yet.
    pub fn new() -> Window {
        Window { due_ns: 0, last_ns: 0, session: 0, slots: Vec::new() }
    }

    /// Takes a probe, whose cookie is right: forged ones must not use up what a peer may ask.
    ///
    /// # Errors
    /// Says why it is not answered.
    pub fn ask(&mut self, now_ns: u64, (session, number): (u32, u32), rate: u32) -> Result<(), Unanswered> {
        if session < self.session && now_ns.saturating_sub(self.last_ns) < SILENCE_NS {
            return Err(Unanswered::Repeated);
        }
        self.session = session;
        self.slots.resize(SLOTS, (0, 0));
        let slot = &mut self.slots[number as usize % SLOTS];
        if slot.0 == session && slot.1 >= number {
            return Err(Unanswered::Repeated);
        }
        *slot = (session, number);
        let every_ns = 1_000_000_000 / u64::from(rate.max(1));
        let due_ns = self.due_ns.max(now_ns);
        if due_ns - now_ns > BURST * every_ns {
            return Err(Unanswered::Limited);
        }
        (self.due_ns, self.last_ns) = (due_ns + every_ns, now_ns);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_answered_once_and_few_in_a_second() {
        let mut window = Window::new();
        assert_eq!(window.ask(0, (5, 2), 1000), Ok(()));
        assert_eq!(window.ask(0, (5, 2), 1000), Err(Unanswered::Repeated));
        assert_eq!(window.ask(0, (5, 1), 1000), Ok(()), "it was overtaken");
        assert_eq!(window.ask(0, (4, 9), 1000), Err(Unanswered::Repeated), "of a session before");
        assert_eq!(window.ask(0, (6, 2), 1000), Ok(()), "the peer has started anew");
        let answered = (10..10_000).filter(|number| window.ask(1, (6, *number), 1000).is_ok()).count() as u64;
        assert!((BURST - 4..=BURST + 1).contains(&answered), "{answered}");
        assert_eq!(window.ask(SILENCE_NS + 1, (1, 1), 1000), Ok(()), "after silence any session may begin");
    }
}
