//! The events for clients that watch: a bounded list of the last events, which the main thread appends to and
//! each watcher reads at its own pace. Nothing waits for a watcher: a watcher that is too slow finds its next
//! event gone, and has to read everything again.

use serde_json::Value;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::UNIX_EPOCH;
use tokio::sync::watch;

/// The number of events that are kept.
const EVENTS_MAX: usize = 4096;

/// Numbers of events within a millisecond of the daemon's start, so that those of its successor are higher.
const NUMBERS: u32 = 20;

/// An event for clients that watch, in the form of a server-sent event.
#[derive(Clone)]
pub struct FeedEvent {
    /// The number of the event, which is higher than those of all earlier events.
    pub id: u64,
    event: &'static str,
    data: Arc<str>,
}

impl FeedEvent {
    /// Returns the event as it is sent.
    pub fn text(&self) -> String {
        format!("id: {}\nevent: {}\ndata: {}\n\n", self.id, self.event, self.data)
    }
}

/// The list of events. Clones share it.
#[derive(Clone)]
pub struct Feed(Arc<FeedShared>);

struct FeedShared {
    state: Mutex<FeedState>,
    news: watch::Sender<bool>,
}

struct FeedState {
    /// The number of the last event.
    last: u64,
    events: VecDeque<FeedEvent>,
    /// The last event that describes the whole state.
    whole: Option<FeedEvent>,
}

impl Default for Feed {
    fn default() -> Feed {
        let begun_ms = UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_millis() as u64);
        let state = FeedState { last: begun_ms << NUMBERS, events: VecDeque::new(), whole: None };
        Feed(Arc::new(FeedShared { state: Mutex::new(state), news: watch::Sender::new(true) }))
    }
}

impl Feed {
    fn state(&self) -> MutexGuard<'_, FeedState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends an event; `whole` if it describes the whole state.
    pub fn publish(&self, event: &'static str, data: &Value, whole: bool) {
        let mut state = self.state();
        state.last += 1;
        let one = FeedEvent { id: state.last, event, data: data.to_string().into() };
        if whole {
            state.whole = Some(one.clone());
        }
        if state.events.len() == EVENTS_MAX {
            state.events.pop_front();
        }
        state.events.push_back(one);
        drop(state);
        self.0.news.send_replace(true);
    }

    /// Ends all watching, because the daemon stops.
    pub fn close(&self) {
        self.0.news.send_replace(false);
    }

    /// Returns a receiver that wakes when there are new events, and holds false when there will be no more.
    pub fn news(&self) -> watch::Receiver<bool> {
        self.0.news.subscribe()
    }

    /// Returns the first event for a watcher, with the number of the last event: the whole state.
    pub fn first(&self) -> FeedEvent {
        let state = self.state();
        let none = || FeedEvent { id: 0, event: "set", data: "{}".into() };
        FeedEvent { id: state.last, ..state.whole.clone().unwrap_or_else(none) }
    }

    /// Returns the events after one; `None` if some of them are gone, or if there was no such event.
    pub fn after(&self, id: u64) -> Option<Vec<FeedEvent>> {
        let state = self.state();
        let oldest = state.events.front().map_or(state.last, |one| one.id - 1);
        let first = id.checked_sub(oldest).filter(|_| id <= state.last)?;
        Some(state.events.iter().skip(first as usize).cloned().collect())
    }

    /// Returns the event that asks a watcher to read everything again.
    pub fn reread(&self) -> FeedEvent {
        FeedEvent { id: self.state().last, event: "reread", data: "{}".into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn events_follow_each_other_until_they_are_gone() {
        let feed = Feed::default();
        let start = feed.first().id;
        assert_eq!(feed.after(start).map(|events| events.len()), Some(0));
        assert!(feed.after(start + 1).is_none() && feed.after(0).is_none());
        feed.publish("set", &json!({ "services": 1 }), true);
        feed.publish("service", &json!({ "service": "a" }), false);
        let events = feed.after(start).unwrap();
        assert_eq!(events.iter().map(|one| one.id - start).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(
            events[1].text(),
            format!("id: {}\nevent: service\ndata: {{\"service\":\"a\"}}\n\n", start + 2)
        );
        assert_eq!((feed.first().id, feed.first().event), (start + 2, "set"));
        assert_eq!(feed.after(start + 1).unwrap().len(), 1);
        (0..EVENTS_MAX).for_each(|_| feed.publish("service", &json!({}), false));
        assert!(feed.after(start + 1).is_none());
        assert_eq!(feed.after(start + 2).unwrap().len(), EVENTS_MAX);
    }
}
