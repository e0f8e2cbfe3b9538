//! The work of the phases, done while frames pass.

use super::{PATIENCE, PHASE, Session};
use crate::million::{self, TARGETS};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Entry changes per second, and the clients that make them.
const CHANGES_PER_S: u32 = 10_000;
const CLIENTS: usize = 4;

/// Interval between two metric scrapes or weight changes.
const SCRAPE_EVERY: Duration = Duration::from_millis(100);
const WEIGHT_EVERY: Duration = Duration::from_millis(50);

/// Does nothing.
pub fn nothing(session: &Session) -> Result<f64> {
    session.interrupt.sleep(PHASE)?;
    Ok(0.0)
}

/// Lets all flows expire. Returns their number.
pub fn age(session: &Session) -> Result<f64> {
    let flows = || -> Result<u64> {
        let pipes = session.weir.show("pipes")?;
        let seen = pipes["pipes"].as_array().into_iter().flatten().find(|pipe| pipe["name"] == "seen");
        seen.and_then(|pipe| pipe["flows"].as_u64()).context("pipe `seen`")
    };
    let before = flows()?;
    if before == 0 {
        bail!("the flows expired before their phase: the daemon took too long to start");
    }
    let gone = session.interrupt.wait(PATIENCE, || {
        session.interrupt.sleep(PHASE / 10)?;
        Ok(flows()? == 0)
    })?;
    if !gone {
        bail!("flows do not age");
    }
    Ok(before as f64)
}

/// Scrapes metrics. Returns how often.
pub fn scrape(session: &Session) -> Result<f64> {
    repeat(session, SCRAPE_EVERY, |_| {
        let mut stream = UnixStream::connect(session.weir.socket())?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        if !answer.starts_with(b"HTTP/1.1 200") {
            bail!("there are no metrics: {}", String::from_utf8_lossy(&answer[..answer.len().min(200)]));
        }
        Ok(())
    })
}

/// Changes a weight of the group. Returns how often.
pub fn weights(session: &Session) -> Result<f64> {
    repeat(session, WEIGHT_EVERY, |number| {
        let (target, weight) = (format!("t{}", number % TARGETS), 2 + number / TARGETS % 3);
        let request = json!({ "command": "weight", "group": "web", "target": target, "weight": weight });
        session.weir.ask(&request).map(drop)
    })
}

/// Adds and removes entries. Returns the number of changes.
pub fn changes(session: &Session) -> Result<f64> {
    let (next, start) = (AtomicU32::new(0), Instant::now());
    let client = || -> Result<()> {
        while start.elapsed() < PHASE {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let due = start + Duration::from_secs(2) * number / CHANGES_PER_S;
            session.interrupt.sleep(due.saturating_duration_since(Instant::now()))?;
            // The client that added an entry removes it.
            for what in ["add", "remove"] {
                let entry = million::entry(number);
                let request = json!({ "command": "entry", "do": what, "pipe": "exact", "entry": entry });
                session.weir.ask(&request)?;
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| -> Result<()> {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        clients.into_iter().try_for_each(|client| client.join().expect("a client does not panic"))
    })?;
    Ok(2.0 * f64::from(next.into_inner()))
}

/// Reloads the configuration without its last entry. Returns how many entries it has.
pub fn reload(session: &Session) -> Result<f64> {
    let text = million::configuration(session.entries, &session.traffic);
    let last = text.trim_end().rfind('\n').context("lines")?;
    std::fs::write(session.weir.configuration(), &text[..=last])?;
    let generation = |answer: Result<Value>| answer.ok().and_then(|answer| answer["generation"].as_u64());
    let before = generation(session.weir.show("generation")).context("generation")?;
    // A reload that takes longer than its client waits continues without it.
    let reply = session.weir.ask(&json!({ "command": "reload" }));
    let swapped =
        || Ok(generation(session.weir.show("generation")).is_some_and(|generation| generation > before));
    if reply.is_err() && !session.interrupt.wait(PATIENCE, swapped)? {
        return reply.map(|_| 0.0);
    }
    Ok(f64::from(session.entries))
}

/// Does something periodically, for the duration of a phase. Returns how often it was done.
fn repeat(session: &Session, every: Duration, mut work: impl FnMut(u32) -> Result<()>) -> Result<f64> {
    let (start, mut done) = (Instant::now(), 0);
    while start.elapsed() < PHASE {
        work(done)?;
        done += 1;
        let next = start + every * done;
        session.interrupt.sleep(next.saturating_duration_since(Instant::now()))?;
    }
    Ok(f64::from(done))
}
