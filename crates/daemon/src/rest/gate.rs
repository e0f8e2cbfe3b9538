//! Access to control over HTTP, which only clients that know the token have.

use crate::config::ControlOver;
use crate::private;
use anyhow::{Context, Result, bail};
use hyper::header::HeaderValue;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracing::warn;
use weir_app::http::HttpControls;
use weir_config::infile;

/// The minimum and maximum length of a token: a random token of the minimum length cannot be guessed.
const LENGTH: [usize; 2] = [32, 4096];

/// Requests without the token that are answered per second; further ones are asked to wait.
const WRONG_MAX: u32 = 10;

/// How often the log reports such requests.
const SAID: Duration = Duration::from_secs(60);

/// Requests without the token, to this process.
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// Returns how many requests did not have the token.
pub fn refused() -> u64 {
    REFUSED.load(Ordering::Relaxed)
}

/// What a token permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Reading everything.
    View,
    /// Also changing services.
    Control,
}

/// The verdict on a request's authorization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The request has a token.
    Good(Rights),
    /// The request does not have the token.
    Wrong,
    /// The request has no valid token, and too many such requests have arrived in the last second. A request
    /// with the token is never refused for this.
    TooMany,
}

/// Holds the tokens, and decides what each permits.
pub struct Gate {
    pub apps: HttpControls,
    token: Vec<u8>,
    /// The read-only token, if there is one.
    view_token: Option<Vec<u8>>,
    /// The origins of the fleet's nodes, whose pages may query this node.
    pub nodes: Vec<String>,
    wrong: Mutex<Wrong>,
}

struct Wrong {
    since: Instant,
    count: u32,
    said: Option<Instant>,
}

impl Gate {
    /// Reads the token, which no other user may read.
    pub fn open(control: &ControlOver, apps: HttpControls) -> Result<Gate> {
        let read = |path: &Path| read(path).with_context(|| format!("control: {}", path.display()));
        let view_token = control.view_token.as_deref().map(read).transpose()?;
        let mut gate = Gate::with(read(&control.token)?, view_token, apps);
        if gate.view_token.as_ref() == Some(&gate.token) {
            bail!("control: `view_token` has the same token as `token`, so it would permit changes");
        }
        gate.nodes.clone_from(&control.nodes);
        Ok(gate)
    }

    /// Returns a gate with these tokens.
    pub fn with(token: Vec<u8>, view_token: Option<Vec<u8>>, apps: HttpControls) -> Gate {
        let wrong = Mutex::new(Wrong { since: Instant::now(), count: 0, said: None });
        Gate { apps, token, view_token, nodes: Vec::new(), wrong }
    }

    /// Returns whether a page from this origin may query this node.
    pub fn admits_page(&self, origin: Option<&HeaderValue>) -> bool {
        origin.is_some_and(|origin| self.nodes.iter().any(|node| node.as_bytes() == origin.as_bytes()))
    }

    /// Checks the value of a request's `Authorization` header.
    pub fn look(&self, header: Option<&[u8]>, now: Instant) -> Verdict {
        let given = header.and_then(|header| {
            let (scheme, token) = header.split_at_checked("Bearer ".len())?;
            scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token.trim_ascii())
        });
        // Compared in any case, so that clients without the token cannot lock out those with it.
        let given = given.unwrap_or_default();
        let may_view = self.view_token.as_ref().is_some_and(|token| is_same(given, token));
        if is_same(given, &self.token) {
            return Verdict::Good(Rights::Control);
        }
        if may_view {
            return Verdict::Good(Rights::View);
        }
        REFUSED.fetch_add(1, Ordering::Relaxed);
        let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        if wrong.said.is_none_or(|said| now.saturating_duration_since(said) >= SAID) {
            wrong.said = Some(now);
            warn!("control: a request has no token, or a wrong one; the metrics count them");
        }
        if now.saturating_duration_since(wrong.since) >= Duration::from_secs(1) {
            (wrong.since, wrong.count) = (now, 0);
        }
        wrong.count = wrong.count.saturating_add(1);
        if wrong.count > WRONG_MAX { Verdict::TooMany } else { Verdict::Wrong }
    }
}

/// Compares in a time that depends only on the lengths.
fn is_same(given: &[u8], token: &[u8]) -> bool {
    let differ = |at: usize| given.get(at).copied().unwrap_or_default() ^ token[at];
    let differing = (0..token.len()).fold(0, |all, at| std::hint::black_box(all | differ(at)));
    std::hint::black_box(differing) == 0 && given.len() == token.len()
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let file = private::open(path).context("the token cannot be used")?;
    // A line break may follow.
    let token = infile::read_from(file, LENGTH[1] as u64 + 2).context("the token cannot be used")?;
    let token = token.trim_ascii().to_vec();
    let [least, most] = LENGTH;
    if !(least..=most).contains(&token.len()) || !token.iter().all(u8::is_ascii_graphic) {
        bail!(
            "a token must have {least} to {most} letters and digits: generate one with `openssl rand -hex \
            32`"
        );
    }
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_opens_and_those_who_guess_keep_nobody_out() {
        let token = "0123456789abcdef0123456789abcdef";
        let view = "fedcba9876543210fedcba9876543210";
        let gate = Gate::with(token.into(), Some(view.into()), HttpControls(&[]));
        let now = Instant::now();
        let look = |header: &str| gate.look(Some(header.as_bytes()), now);
        assert_eq!(look(&format!("Bearer {token}")), Verdict::Good(Rights::Control));
        assert_eq!(look(&format!("bearer  {token} ")), Verdict::Good(Rights::Control));
        assert_eq!(look(&format!("Bearer {view}")), Verdict::Good(Rights::View));
        assert_eq!(gate.look(None, now), Verdict::Wrong);
        for wrong in ["", "Bearer", "Bearer ", "Basic x", token, &format!("Bearer {token}0"), "Bearer 0"] {
            assert_eq!(look(wrong), Verdict::Wrong, "{wrong}");
        }
        let verdicts: Vec<Verdict> = (0..4).map(|_| look("Bearer guess")).collect();
        assert_eq!(verdicts[2..], [Verdict::TooMany, Verdict::TooMany]);
        assert_eq!(look(&format!("Bearer {token}")), Verdict::Good(Rights::Control));
        assert_eq!(gate.look(None, now + Duration::from_secs(1)), Verdict::Wrong);
        assert!(refused() >= 13);
    }
}
