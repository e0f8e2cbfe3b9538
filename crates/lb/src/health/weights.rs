//! The weights of a service's back ends, as a pure function of their standings.

/// The number of steps in which the weight of a server rises after it comes up.
pub const RAMP: u32 = 10;

/// What a service does when no back end is up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fail {
    /// Its packets are dropped.
    Drop,
    /// All back ends get their share, as if they were up: the checks may be wrong.
    #[default]
    All,
    /// The back ends that went down last keep their share.
    Last,
    /// Its packets are answered: TCP with a reset, others with ICMP "port unreachable". The same applies
    /// whenever it has no back end with a weight.
    Reject,
}

/// The status of a back end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The back end is not checked, and counts as up.
    Unchecked,
    /// No check of it has ended yet; it counts as up.
    Unknown,
    /// The back end works.
    Up,
    /// The back end does not work.
    Down,
    /// The back end does not work, and its check is configured with `fail: drain`, so it keeps its flows.
    Withdrawn,
    /// The back end left new flows unanswered, so it gets no new flows for a while, provided that another
    /// back end can take them.
    Suspect,
    /// Its MAC address is not known, so nothing can be sent to it.
    NoNeighbour,
    /// An operator drains it: it gets no new flows.
    Draining,
    /// An operator has put it into maintenance: it gets nothing, and is not checked.
    Maintenance,
}

impl Standing {
    /// Returns true if a back end with this standing gets packets.
    #[must_use]
    pub fn is_up(self) -> bool {
        matches!(self, Standing::Unchecked | Standing::Unknown | Standing::Up)
    }

    /// Returns true if a back end with this standing seems to be lost.
    #[must_use]
    pub fn is_lost(self) -> bool {
        matches!(self, Standing::Down | Standing::NoNeighbour)
    }

    /// Returns its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Standing::Unchecked => "unchecked",
            Standing::Unknown => "unknown",
            Standing::Up => "up",
            Standing::Down | Standing::NoNeighbour => "down",
            Standing::Suspect => "suspect",
            Standing::Draining | Standing::Withdrawn => "draining",
            Standing::Maintenance => "maintenance",
        }
    }
}

/// A back end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its standing.
    pub standing: Standing,
    /// When it got this standing, in nanoseconds.
    pub since_ns: u64,
    /// The weight that it has when nothing is wrong.
    pub weight: u32,
    /// How many tenths ([`RAMP`]) of that weight it currently has.
    pub share: u32,
}

impl Member {
    fn ramped(&self) -> u32 {
        let part = u64::from(self.weight) * u64::from(self.share.min(RAMP)) / u64::from(RAMP);
        (part as u32).max(u32::from(self.weight > 0))
    }
}

/// Returns the current weight of each back end, and whether `fail` determined them because no back end is up.
/// A suspect back end gets its share if no other is up: an unanswered SYN proves less than a failed check.
/// Back ends that an operator has taken out stay out.
#[must_use]
pub fn weights(members: &[Member], fail: Fail) -> (Vec<u32>, bool) {
    let up = |member: &Member| if member.standing.is_up() { member.ramped() } else { 0 };
    let weights: Vec<u32> = members.iter().map(up).collect();
    if weights.iter().any(|weight| *weight > 0) {
        return (weights, false);
    }
    let suspect = |member: &Member| if member.standing == Standing::Suspect { member.ramped() } else { 0 };
    let weights: Vec<u32> = members.iter().map(suspect).collect();
    if weights.iter().any(|weight| *weight > 0) {
        return (weights, false);
    }
    let is_down = |member: &&Member| {
        matches!(member.standing, Standing::Down | Standing::Withdrawn) && member.weight > 0
    };
    let Some(last_ns) = members.iter().filter(is_down).map(|member| member.since_ns).max() else {
        return (weights, false);
    };
    let keeps = |member: &Member| match fail {
        Fail::Drop | Fail::Reject => false,
        Fail::All => is_down(&member),
        Fail::Last => is_down(&member) && member.since_ns == last_ns,
    };
    (members.iter().map(|member| if keeps(member) { member.weight } else { 0 }).collect(), true)
}
