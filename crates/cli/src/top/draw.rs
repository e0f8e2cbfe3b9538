//! Draws the view: a line about the daemon, the tabs, the page itself, and the keys.

use super::parts::{Way, lines, short};
use super::view::View;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Modifier, Style};
use ratatui_core::text::{Line, Span};
use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

/// The keys, as shown in the last line.
const KEYS: &str = "? help  q quit  Tab/arrows page  s sort  r reverse  p pause  +/- interval";

/// What `?` shows.
const HELP: &[&str] = &[
    "Tab, right, left, 1-9   another page",
    "up, down, page up/down  scroll; Home, End",
    "s                       sort by the next column (*), then as the daemon does",
    "r                       reverse the order (*r)",
    "p, space                pause: freeze the picture",
    "+, -                    poll less often, more often",
    "Ctrl-L                  redraw           Ctrl-Z  suspend; `fg` resumes",
    "q, Ctrl-C               quit",
    "",
    "Rates are per second, between the last two answers; bit/s are without FCS.",
    "k M G T: thousands, millions, ... A `-` is a number that is not known.",
    "What the numbers mean: docs/reference/metrics.md. The same as text: weir show.",
];

/// The height of the history.
const HISTORY_ROWS: usize = 5;

/// The time without an answer after which the delay is shown.
const SLOW: Duration = Duration::from_secs(3);

/// Draws the view. Anything that does not fit is left out, the page itself last.
pub fn draw(view: &mut View, now: Instant, area: Rect, buffer: &mut Buffer) {
    let reversed = Style::new().add_modifier(Modifier::REVERSED);
    let mut rows = area.rows().collect::<VecDeque<Rect>>();
    let mut put = |row: Option<Rect>, line: &Line<'_>, style: Style| {
        if let Some(row) = row {
            buffer.set_line(row.x, row.y, line, row.width);
            buffer.set_style(row, style);
        }
    };
    if rows.len() > 2 {
        put(rows.pop_front(), &Line::raw(head(view)), reversed);
    }
    if rows.len() > 1 {
        put(rows.pop_front(), &tabs(view, usize::from(area.width)), Style::new());
    }
    let keys = if rows.len() > 1 { rows.pop_back() } else { None };
    if let Some(trouble) = trouble(view, now) {
        put(rows.pop_front(), &Line::raw(trouble), reversed);
    }
    let body = body(view, usize::from(area.width));
    let most = body.len().saturating_sub(rows.len());
    let first = view.scroll.min(most);
    // Help must not scroll the page behind it.
    if !view.help && view.now.is_some() {
        view.scroll = first;
    }
    let end = (first + rows.len()).min(body.len());
    put(keys, &Line::raw(foot(usize::from(area.width), (first, end, body.len()))), reversed);
    for (row, line) in rows.into_iter().zip(&body[first..end]) {
        put(Some(row), line, Style::new());
    }
}

/// The first line: the daemon, its program, and its current rates.
fn head(view: &View) -> String {
    let Some(head) = view.head() else { return "weir top".into() };
    let paused = if view.paused { "PAUSED " } else { "" };
    let rate = |count: f64| format!("{}/s", short(count));
    let rates = view.rates.map_or_else(String::new, |rates| {
        let [received, transmitted, dropped] = [rates.received, rates.transmitted, rates.dropped].map(rate);
        format!("in {received}  out {transmitted}  dropped {dropped}  ")
    });
    let wrong = if head.balances == Some(false) { "LEDGER DOES NOT BALANCE  " } else { "" };
    format!(
        "{paused}weir  {wrong}{rates}up {}  gen {}  every {} s  {}",
        span(Duration::from_secs(head.uptime_s)),
        head.generation.unwrap_or_default(),
        view.interval.as_secs_f64(),
        head.file,
    )
}

/// Formats a duration with its two largest units.
fn span(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// The tabs, the current one in reverse; if they do not fit, it and its neighbours, with marks where there
/// are more.
fn tabs(view: &View, width: usize) -> Line<'static> {
    let (titles, at) = view.titles();
    let name = |(at, title): (usize, &&str)| format!(" {} {title}", at + 1);
    let names: Vec<String> = titles.iter().enumerate().map(name).collect();
    let lengths: Vec<usize> = names.iter().map(String::len).collect();
    let shown = fitting(&lengths, at, width);
    let before = if shown.start > 0 { "<" } else { "" };
    let after = if shown.end < names.len() { " >" } else { "" };
    let reversed = Style::new().add_modifier(Modifier::REVERSED);
    let style = |number: usize| if number == at { reversed } else { Style::new() };
    let names = names[shown.clone()].iter().zip(shown);
    let names = names.map(|(name, number)| Span::styled(name.clone(), style(number)));
    [Span::raw(before)].into_iter().chain(names).chain([Span::raw(after)]).collect()
}

/// Returns as many neighbours of the tab at `at` as fit, with 3 columns reserved for marks unless all tabs
/// fit.
fn fitting(lengths: &[usize], at: usize, width: usize) -> Range<usize> {
    let (mut shown, mut used) = (at..at + 1, lengths[at]);
    if lengths.iter().sum::<usize>() <= width {
        return 0..lengths.len();
    }
    let width = width.saturating_sub(3);
    loop {
        let before = shown.clone();
        if let Some(next) = lengths.get(shown.end).filter(|next| used + **next <= width) {
            (shown.end, used) = (shown.end + 1, used + next);
        }
        if shown.start > 0 && used + lengths[shown.start - 1] <= width {
            (shown.start, used) = (shown.start - 1, used + lengths[shown.start - 1]);
        }
        if shown == before {
            return shown;
        }
    }
}

/// Returns the daemon's problem, if any.
fn trouble(view: &View, now: Instant) -> Option<String> {
    let since = |then: Instant| now.saturating_duration_since(then);
    if let Some((then, why)) = &view.trouble {
        return Some(format!("NO ANSWER for {}, retrying: {why}", span(since(*then))));
    }
    let waits = view.asked.map(since).filter(|waits| *waits >= SLOW)?;
    Some(format!("NO ANSWER for {}: the daemon is listening but does not answer", span(waits)))
}

/// The last line: the keys, and which lines of the page are visible.
fn foot(width: usize, (first, end, all): (usize, usize, usize)) -> String {
    let place = if end - first < all { format!(" {}-{end}/{all}", first + 1) } else { String::new() };
    let room = width.saturating_sub(place.len());
    let mut keys = String::new();
    for key in KEYS.split("  ") {
        if keys.len() + 2 + key.len() <= room {
            keys += if keys.is_empty() { "" } else { "  " };
            keys += key;
        }
    }
    format!("{keys:<room$}{place}")
}

/// The lines of the page.
fn body(view: &View, width: usize) -> Vec<Line<'static>> {
    if view.help {
        return HELP.iter().map(|line| Line::raw(*line)).collect();
    }
    let Some(now) = &view.now else { return vec![Line::raw("asking ...")] };
    let before = view.before.as_ref();
    let seconds = before.map_or(0.0, |before| now.taken.duration_since(before.taken).as_secs_f64());
    let way = Way { width, seconds, sort: view.sort() };
    let mut body = lines(&now.parts, before.map(|before| before.parts.as_slice()), way);
    if view.is_first() {
        body.extend(history(&view.history, width));
    }
    body
}

/// Draws the rates of the last answers as columns.
fn history(rates: &VecDeque<f64>, width: usize) -> Vec<Line<'static>> {
    let most = rates.iter().copied().fold(0.0, f64::max);
    let shown = rates.iter().skip(rates.len().saturating_sub(width));
    let heights: Vec<usize> =
        shown.map(|rate| (rate / most.max(1e-9) * HISTORY_ROWS as f64).ceil() as usize).collect();
    let title = format!("received, by answer; at most {}/s", short(most));
    let row = |level: usize| heights.iter().map(move |height| if *height >= level { '#' } else { ' ' });
    let rows = (1..=HISTORY_ROWS).rev().map(|level| Line::raw(row(level).collect::<String>()));
    [Line::default(), Line::styled(title, Style::new().add_modifier(Modifier::BOLD))]
        .into_iter()
        .chain(rows)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_do_not_all_fit_are_the_nearest() {
        let lengths = [5; 10];
        assert_eq!(fitting(&lengths, 3, 50), 0..10);
        assert_eq!(fitting(&lengths, 0, 49), 0..9);
        assert_eq!(fitting(&lengths, 9, 49), 1..10);
        assert_eq!(fitting(&lengths, 4, 28), 2..7);
        assert_eq!(fitting(&lengths, 4, 3), 4..5);
    }
}
