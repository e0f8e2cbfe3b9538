//! The contents of `weir top`, and what keys do to it. There is no terminal here and no daemon, so all of it
//! can be tested.

use super::asker::{Answer, Question};
use super::keys::Key;
use super::pages::{Listed, all, shown};
use super::parts::Sort;
use crate::kinds::KINDS;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};
use weir_app::page::{Holds, Part};
use weir_control::answer::{Ledger, Shown};

/// How many received rates are kept for the history.
pub const HISTORY: usize = 120;

/// How long after the first answer about a page to ask again, so that rates appear soon.
const SOON: Duration = Duration::from_millis(500);

/// Polling intervals: what `+` and `-` choose from, in addition to the one from the command line.
const INTERVALS: [Duration; 7] = [
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(60),
];

/// A request of a key to the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Show what is new.
    Show,
    /// Redraw everything.
    Redraw,
    /// Suspend, like other programs on Ctrl-Z.
    Suspend,
    /// Quit.
    Quit,
}

/// The part of an answer that a page shows.
pub struct AnswerSample {
    /// When the daemon answered.
    pub taken: Instant,
    /// What the page shows.
    pub parts: Vec<Part>,
}

/// The rates of the first line, frames per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Frames that all ports received.
    pub received: f64,
    /// Frames that all ports transmitted.
    pub transmitted: f64,
    /// Frames that were dropped, for any reason.
    pub dropped: f64,
}

/// What is shown.
pub struct View {
    pages: Vec<Listed>,
    /// For each kind of app, whether any apps exist.
    kinds: Vec<bool>,
    /// The program that these kinds belong to.
    known: Option<u64>,
    /// The page shown.
    at: usize,
    /// The part of the latest answer that the page shows.
    pub now: Option<AnswerSample>,
    /// The part of the previous answer that the page showed.
    pub before: Option<AnswerSample>,
    /// The latest answer, of any page.
    latest: Option<(Instant, Shown)>,
    /// The rates of the first line.
    pub rates: Option<Rates>,
    /// Received frames per second, one number for each answer.
    pub history: VecDeque<f64>,
    /// Since when the daemon has not answered, and why.
    pub trouble: Option<(Instant, String)>,
    /// When the outstanding question was asked.
    pub asked: Option<Instant>,
    /// When to ask again; never while paused.
    due: Option<Instant>,
    /// How often to ask.
    pub interval: Duration,
    /// Whether the screen is frozen.
    pub paused: bool,
    /// Whether help is shown.
    pub help: bool,
    /// The first line shown of the page. Drawing limits it.
    pub scroll: usize,
    sorts: HashMap<&'static str, Sort>,
}

impl View {
    /// Creates a view that asks every `interval`, from `now` on.
    pub fn new(interval: Duration, now: Instant) -> View {
        View {
            pages: all(),
            kinds: vec![false; KINDS.len()],
            known: None,
            at: 0,
            now: None,
            before: None,
            latest: None,
            rates: None,
            history: VecDeque::new(),
            trouble: None,
            asked: None,
            due: Some(now),
            interval,
            paused: false,
            help: false,
            scroll: 0,
            sorts: HashMap::new(),
        }
    }

    /// Returns the page shown.
    pub fn page(&self) -> Listed {
        self.pages[self.at]
    }

    /// Returns true if the page shown is the first, which has the history.
    pub fn is_first(&self) -> bool {
        self.at == 0
    }

    /// Returns how rows are sorted.
    pub fn sort(&self) -> Option<Sort> {
        self.sorts.get(self.page().page.title).copied()
    }

    /// Returns the titles of the existing pages, and which of them is shown.
    pub fn titles(&self) -> (Vec<&'static str>, usize) {
        let there = self.there();
        let at = there.iter().position(|at| *at == self.at).unwrap_or(0);
        (there.into_iter().map(|at| self.pages[at].page.title).collect(), at)
    }

    /// Returns the numbers of the pages that have something to show, and of the page shown.
    fn there(&self) -> Vec<usize> {
        let is_there = |at: &usize| match self.pages[*at].kind {
            _ if *at == self.at => true,
            None => true,
            Some(kind) => KINDS.iter().zip(&self.kinds).any(|(one, there)| one.key == kind.key && *there),
        };
        (0..self.pages.len()).filter(is_there).collect()
    }

    /// Returns the question that is due.
    pub fn question(&mut self, now: Instant) -> Option<Question> {
        if self.asked.is_some() || self.due.is_none_or(|due| due > now) {
            return None;
        }
        (self.asked, self.due) = (Some(now), None);
        Some(Question { number: self.at, listed: self.page(), known: self.known })
    }

    /// Returns when a question is due.
    pub fn due(&self) -> Option<Instant> {
        self.due.filter(|_| self.asked.is_none())
    }

    /// Takes an answer.
    pub fn show(&mut self, answer: Answer) {
        let asked = self.asked.take().unwrap_or(answer.taken);
        if let Some(kinds) = answer.kinds {
            self.kinds = kinds;
        }
        match answer.said {
            Ok(said) => {
                self.trouble = None;
                let head = shown(&said);
                self.known = head.generation;
                self.take_ledger(answer.taken, head);
                if answer.number == self.at {
                    let parts = (self.page().page.parts)(&said);
                    self.before = self.now.take();
                    self.now = Some(AnswerSample { taken: answer.taken, parts });
                }
            }
            Err(error) => {
                self.trouble.get_or_insert((asked, String::new())).1 = format!("{error:#}");
                self.known = None;
            }
        }
        let is_incomplete = answer.number != self.at || self.before.is_none();
        self.due = if answer.number != self.at {
            Some(asked)
        } else if is_incomplete && self.trouble.is_none() {
            Some(asked + self.interval.min(SOON))
        } else {
            Some(asked + self.interval).filter(|_| !self.paused)
        };
    }

    /// Computes the rates of the first line, unless the daemon was restarted since.
    fn take_ledger(&mut self, taken: Instant, head: Shown) {
        let (uptime_s, ledger) = (head.uptime_s, head.ledger.clone());
        let before = self.latest.replace((taken, head));
        let before = before.filter(|(_, before)| uptime_s >= before.uptime_s);
        if before.is_none() {
            (self.now, self.before) = (None, None);
        }
        self.rates = before.map(|(then, before)| {
            let seconds = taken.saturating_duration_since(then).as_secs_f64().max(1e-3);
            let per_second = |count: fn(&Ledger) -> u64| {
                count(&ledger).saturating_sub(count(&before.ledger)) as f64 / seconds
            };
            Rates {
                received: per_second(|ledger| ledger.received),
                transmitted: per_second(|ledger| ledger.transmitted),
                dropped: per_second(Ledger::drops),
            }
        });
        if let Some(rates) = self.rates {
            self.history.push_back(rates.received);
            self.history.drain(..self.history.len().saturating_sub(HISTORY));
        }
    }

    /// Returns the latest answer, of any page.
    pub fn head(&self) -> Option<&Shown> {
        self.latest.as_ref().map(|(_, head)| head)
    }

    /// Handles a key.
    pub fn press(&mut self, key: Key, now: Instant) -> Wish {
        match key {
            Key::Char('q') | Key::Interrupt => return Wish::Quit,
            Key::Suspend => return Wish::Suspend,
            Key::Redraw => return Wish::Redraw,
            Key::Char('?' | 'h') => self.help = !self.help,
            _ if self.help => self.help = false,
            Key::Char('p' | ' ') => self.pause(now),
            Key::Char('s') => self.sort_next(),
            Key::Char('r') => {
                if let Some(sort) = self.sorts.get_mut(self.pages[self.at].page.title) {
                    sort.reverse = !sort.reverse;
                }
            }
            Key::Char('+' | '-') => self.set_interval(key == Key::Char('+'), now),
            Key::Char(digit @ '1'..='9') => {
                let at = self.there().get(digit as usize - '1' as usize).copied();
                self.go(at.unwrap_or(self.at), now);
            }
            Key::Tab | Key::Right => self.go_by(1, now),
            Key::BackTab | Key::Left => self.go_by(-1, now),
            Key::Up => self.scroll = self.scroll.saturating_sub(1),
            Key::Down => self.scroll = self.scroll.saturating_add(1),
            Key::PageUp => self.scroll = self.scroll.saturating_sub(10),
            Key::PageDown => self.scroll = self.scroll.saturating_add(10),
            Key::Home => self.scroll = 0,
            Key::End => self.scroll = usize::MAX,
            Key::Char(_) | Key::Escape => {}
        }
        Wish::Show
    }

    fn pause(&mut self, now: Instant) {
        self.paused = !self.paused;
        self.due = Some(now).filter(|_| !self.paused);
    }

    /// Moves by `step` pages.
    fn go_by(&mut self, step: isize, now: Instant) {
        let there = self.there();
        let at = there.iter().position(|at| *at == self.at).unwrap_or(0) as isize + step;
        self.go(there[at.rem_euclid(there.len() as isize) as usize], now);
    }

    fn go(&mut self, at: usize, now: Instant) {
        if at != self.at {
            self.at = at;
            (self.now, self.before, self.scroll) = (None, None, 0);
            self.due = Some(now);
        }
    }

    /// Sorts by the next column of the page's tables, and after the last one in the daemon's order.
    fn sort_next(&mut self) {
        let title = self.page().page.title;
        let parts = self.now.iter().flat_map(|sample| &sample.parts);
        let tables = parts.filter_map(|part| match part {
            Part::Table(table) => Some(table.columns),
            _ => None,
        });
        let mut columns: Vec<&'static str> = Vec::new();
        for column in tables.flatten().filter(|column| column.holds != Holds::Sentence) {
            if !columns.contains(&column.name) {
                columns.push(column.name);
            }
        }
        let last = self.sorts.get(title).and_then(|sort| columns.iter().position(|one| *one == sort.column));
        match columns.get(last.map_or(0, |last| last + 1)) {
            Some(column) => self.sorts.insert(title, Sort { column, reverse: false }),
            None => self.sorts.remove(title),
        };
    }

    /// Selects the next longer or shorter interval.
    fn set_interval(&mut self, longer: bool, now: Instant) {
        let next = match longer {
            true => INTERVALS.iter().find(|one| **one > self.interval),
            false => INTERVALS.iter().rev().find(|one| **one < self.interval),
        };
        self.interval = next.copied().unwrap_or(self.interval);
        self.due = self.due.map(|due| due.min(now + self.interval));
    }
}
