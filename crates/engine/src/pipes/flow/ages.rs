//! The ages at which flows currently expire (pipes.md C13). When little of the table is free, flows expire
//! earlier, starting with those that anyone can forge.

use weir_table::{Flow, FlowState, HEARD_MAX};

/// The number of states.
const STATES: usize = FlowState::ALL.len();

/// The fraction of a table, as a divisor, below which free room is scarce: then flows that are not
/// established or not proven expire earlier, so that a flood of them makes room for others.
const SCARCE: u64 = 4;

/// Like `SCARCE`, for established flows that pass in only one direction.
const VERY_SCARCE: u64 = 64;

/// The largest divisor of timeouts, when nothing is free.
const HURRY_MAX: u32 = 32;

/// Like `HURRY_MAX`, for established flows without proof, which may have packets every second.
const UNPROVEN_MAX: u32 = 16;

/// How certain it is that two hosts have a connection, and that no third host forges their addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Proof {
    /// Only a few packets were seen, or only those of one side.
    None,
    /// Several packets of the only direction that passes.
    Alone,
    /// Packets of both directions, in turn.
    Answered,
}

/// The ages in milliseconds at which flows expire, by proof and state; 0 if they stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ages([[u32; STATES]; 3]);

impl Ages {
    /// Returns ages that do not depend on the proof.
    pub fn all(timeouts_ms: [u32; STATES]) -> Ages {
        Ages([timeouts_ms; 3])
    }

    /// Returns the ages for these timeouts while `room` of the `capacity` rows are free.
    pub fn present(timeouts_ms: [u32; STATES], (room, capacity): (u64, u64)) -> Ages {
        let mut ages = Ages::all(timeouts_ms);
        if room >= capacity / SCARCE {
            return ages;
        }
        for state in FlowState::ALL {
            let usual_ms = timeouts_ms[state as usize];
            let times = (usual_ms, least_ms(&timeouts_ms, state));
            let [unproven, alone, answered] = if waits(state) {
                let late = (room, capacity / VERY_SCARCE);
                let unproven = hurried_ms(times, (room, capacity / SCARCE), UNPROVEN_MAX);
                [unproven, hurried_ms((usual_ms, usual_ms), late, HURRY_MAX), usual_ms]
            } else {
                [hurried_ms(times, (room, capacity / SCARCE), HURRY_MAX); 3]
            };
            ages.0[Proof::None as usize][state as usize] = unproven;
            ages.0[Proof::Alone as usize][state as usize] = alone;
            ages.0[Proof::Answered as usize][state as usize] = answered;
        }
        ages
    }

    /// Returns the age of a flow and its other direction, which age as a unit.
    #[inline]
    pub fn of(&self, flow: &Flow, other: Option<&Flow>) -> u32 {
        let (one, other_one) = (flow.heard(), other.map_or(0, Flow::heard));
        let proof = match one.min(other_one) {
            2.. => Proof::Answered,
            0 if one.max(other_one) >= HEARD_MAX => Proof::Alone,
            _ => Proof::None,
        };
        let state = flow.state().together(other.map(Flow::state));
        self.0[proof as usize][state as usize]
    }
}

/// Whether flows in a state may receive packets at any time.
fn waits(state: FlowState) -> bool {
    match state {
        FlowState::Stream | FlowState::TcpEstablished => true,
        FlowState::Single
        | FlowState::TcpSyn
        | FlowState::TcpFin
        | FlowState::TcpRst
        | FlowState::TcpHalfClosed => false,
    }
}

/// Returns the age, before division, of flows in a state while the table is full: that of the state that has
/// as little to lose.
fn least_ms(timeouts_ms: &[u32; STATES], state: FlowState) -> u32 {
    let like = match state {
        FlowState::Stream => FlowState::Single,
        FlowState::TcpEstablished => FlowState::TcpSyn,
        FlowState::TcpHalfClosed => FlowState::TcpFin,
        FlowState::Single | FlowState::TcpSyn | FlowState::TcpFin | FlowState::TcpRst => state,
    };
    let usual_ms = timeouts_ms[state as usize];
    match timeouts_ms[like as usize] {
        0 => usual_ms,
        like_ms => usual_ms.min(like_ms),
    }
}

fn hurried_ms((usual_ms, least_ms): (u32, u32), (room, scarce): (u64, u64), most: u32) -> u32 {
    if usual_ms == 0 || room >= scarce {
        return usual_ms;
    }
    // The part above the minimum shrinks first: it is gone when half of the scarce room is used.
    let (above, left) = (u64::from(usual_ms - least_ms), (2 * room).saturating_sub(scarce));
    let hurried = (u64::from(least_ms) * room + above * left) / scarce;
    hurried.max(u64::from(least_ms / most)).max(1) as u32
}

/// Returns the shortest ages that flows may have with these timeouts.
pub fn shortest_ms(timeouts_ms: [u32; STATES], by_state: bool) -> impl Iterator<Item = u32> {
    let shortest = move |state: FlowState| match timeouts_ms[state as usize] {
        usual_ms if usual_ms == 0 || !by_state => usual_ms,
        _ => (least_ms(&timeouts_ms, state) / HURRY_MAX).max(1),
    };
    FlowState::ALL.into_iter().map(shortest).filter(|&timeout| timeout != 0)
}
