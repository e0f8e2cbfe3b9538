//! The results that the path apps of a daemon share with each other. If a tunnel of the kernel and one of
//! weir connect the same addresses, equal source ports lead their frames along equal paths: one app discovers
//! them, and both use the result, with the same numbers.

use crate::known::Known;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// Everything besides the source port that determines a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Between {
    /// Our own address.
    pub local: IpAddr,
    /// The remote node's address.
    pub peer: IpAddr,
    /// The UDP port of the tunnels.
    pub tunnel_port: u16,
}

/// The result of a survey.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shared {
    /// The paths.
    pub known: Known,
    /// The shortest time from a probe to its answer, in nanoseconds.
    pub round_trip_ns: u64,
}

/// Which app discovers the paths to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The calling app.
    Own,
    /// Another app, with the result that it has published so far, if any.
    Other(Option<Shared>),
}

/// The form of an app. Apps of the same form share nothing: each has its own uplink or port, behind which the
/// paths may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The app is attached to an uplink of the kernel.
    Uplink,
    /// The app is attached to a port of weir.
    Port,
}

/// The place where apps share their results.
#[derive(Clone, Debug, Default)]
pub struct Exchange(Arc<Mutex<BTreeMap<Between, Attendance>>>);

#[derive(Debug)]
struct Attendance {
    finder: u64,
    form: Form,
    shared: Option<Shared>,
}

/// An app's membership. When it is dropped, other apps take over discovery.
#[derive(Debug)]
pub struct SurveyMember {
    id: u64,
    form: Form,
    exchange: Exchange,
}

impl Exchange {
    /// The exchange of the process.
    #[must_use]
    pub fn of_process() -> Exchange {
        static ALL: LazyLock<Exchange> = LazyLock::new(Exchange::default);
        ALL.clone()
    }

    /// Registers an app.
    #[must_use]
    pub fn join(&self, form: Form) -> SurveyMember {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        SurveyMember { id: NEXT.fetch_add(1, Ordering::Relaxed), form, exchange: self.clone() }
    }

    /// The lock is never held longer than a copy takes.
    fn look(&self) -> MutexGuard<'_, BTreeMap<Between, Attendance>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SurveyMember {
    /// Claims discovery of the paths, which succeeds if no other app has claimed it. Returns who discovers
    /// them.
    #[must_use]
    pub fn claim(&self, between: Between) -> Claim {
        let mut all = self.exchange.look();
        let new = || Attendance { finder: self.id, form: self.form, shared: None };
        let place = all.entry(between).or_insert_with(new);
        let is_own = place.finder == self.id || place.form == self.form;
        if is_own { Claim::Own } else { Claim::Other(place.shared.clone()) }
    }

    /// Publishes the result of a survey.
    pub fn publish(&self, between: Between, shared: Shared) {
        if let Some(place) = self.exchange.look().get_mut(&between).filter(|place| place.finder == self.id) {
            place.shared = Some(shared);
        }
    }

    /// Gives up discovery without a result, so that another app may try: its answers arrive in another way.
    pub fn give_up(&self, between: Between) {
        let mut all = self.exchange.look();
        if all.get(&between).is_some_and(|place| place.finder == self.id) {
            all.remove(&between);
        }
    }
}

impl Drop for SurveyMember {
    fn drop(&mut self) {
        self.exchange.look().retain(|_, place| place.finder != self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_discovers_and_another_when_it_is_gone() {
        let exchange = Exchange::default();
        let (one, other) = (exchange.join(Form::Uplink), exchange.join(Form::Port));
        let between = Between { local: [10, 0, 0, 1].into(), peer: [10, 0, 0, 2].into(), tunnel_port: 4789 };
        assert_eq!((one.claim(between), other.claim(between)), (Claim::Own, Claim::Other(None)));
        assert_eq!(exchange.join(Form::Uplink).claim(between), Claim::Own, "behind another interface");
        let shared = Shared { known: Known::default(), round_trip_ns: 7 };
        other.publish(between, shared.clone());
        assert_eq!(other.claim(between), Claim::Other(None), "a node that does not discover reports nothing");
        one.publish(between, shared.clone());
        assert_eq!(other.claim(between), Claim::Other(Some(shared)));
        assert_eq!(other.claim(Between { tunnel_port: 8472, ..between }), Claim::Own);
        one.give_up(between);
        assert_eq!((other.claim(between), one.claim(between)), (Claim::Own, Claim::Other(None)));
        drop(other);
        assert_eq!(one.claim(between), Claim::Own);
    }
}
