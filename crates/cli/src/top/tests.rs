//! Screens of `weir top` as text, compared with those in `screens/`, and arbitrary screens that merely must
//! not panic. `BLESS=1` rewrites the files, to be reviewed before they are committed.

use super::asker::Answer;
use super::draw::draw;
use super::keys::Key;
use super::terminal::{Drawn, Modes};
use super::view::{View, Wish};
use proptest::prelude::*;
use ratatui_core::backend::TestBackend;
use ratatui_core::terminal::Terminal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::{Value, json};
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);

const LONG: &str = "No entry of a pipe matched and the pipe's `miss` is `drop`, which is a sentence that \
    goes over the end of the line.";

/// What the kernel has decided after that time.
fn kernel(seconds: u64) -> Value {
    json!([
        { "port": "p0", "runs": true, "decided": 12_000_000 * seconds,
            "left": { "a fragment": 200_000 * seconds } },
        { "port": "p1", "runs": false, "decided": 0, "obstacle": "it has `kernel: off`", "left": {} },
    ])
}

/// Dropped frames, half of them of one flow.
fn dropped(reason: &str, frames: u64, meaning: &str) -> Value {
    let flow = json!({ "flow": "udp 10.0.0.1:4000 > 10.0.0.53:53", "frames": frames / 2 });
    json!({ "reason": reason, "frames": frames, "meaning": meaning, "flows": [flow] })
}

/// A daemon's answer to every question, after it has received frames for `seconds`.
fn said(seconds: u64) -> Value {
    let port = |name: &str, frames: u64, link: &str| {
        json!({ "name": name, "mode": "native, zero copy", "link": link, "received": frames * seconds,
            "received_bytes": 64 * frames * seconds, "transmitted": 9 * seconds,
            "transmitted_bytes": 576 * seconds, "to_kernel": 0, "held": 1, "lost_before": 0, "starved": 0,
            "oversize": 0, "gone": 0, "extra": {} })
    };
    let worker = |worker: u64| {
        json!({ "worker": worker, "received": 6_100_000 * seconds, "handed_over": 0, "held": 1,
            "breaths": 250_000 * seconds, "p50_us": 1.28, "p99_us": 4.096, "p9999_us": 16.384,
            "longest_us": 213.0 })
    };
    let member = |name: &str, enabled: bool| {
        let buckets = 8;
        json!({ "name": name, "enabled": enabled, "against": null, "buckets": buckets })
    };
    let bucket = |at: u64| {
        let used = if at.is_multiple_of(3) { seconds } else { 0 };
        json!({ "bucket": at, "member": (["p0", "p1"][at as usize % 2]), "packets": used })
    };
    json!({
        "generation": 3, "file": "/etc/weir/weir.yaml", "uptime_s": 7200 + seconds, "balances": true,
        "log_lost": 0, "health": "ok", "events_late": { "longest_us": 412.0 },
        "ledger": { "received": 12_200_000 * seconds, "originated": 2, "copied": 0,
            "transmitted": 12_199_980 * seconds, "to_kernel": 0, "to_app": seconds, "held": 2,
            "dropped": { "miss": 15 * seconds, "policy": 4 * seconds } },
        "ports": [port("p0", 12_200_000, "up"), port("p1", 1_234, "no carrier")],
        "drops": [
            dropped("policy", 4 * seconds, "The program says `drop`."),
            dropped("miss", 15 * seconds, LONG),
        ],
        "kernel": kernel(seconds),
        "pipes": [{ "name": "a_pipe_with_a_name_that_is_longer_than_others", "type": "basic",
            "hits": 100 * seconds, "misses": 15 * seconds, "entries": 7, "capacity": 1024 }],
        "workers": [worker(0), worker(1)],
        "breath_times": [{ "processor": { "buckets": [[1152, 30 * seconds], [2048, 10 * seconds],
            [8192, seconds], [16384, 1]] } }],
        "deltas": [{ "reason": "aged", "deltas": 3 * seconds, "packets": 30 * seconds, "bytes": 1 }],
        "flow_account": { "met": 40 * seconds, "live": 10, "deltas": 30 * seconds, "waiting": 0, "lost": 0,
            "unflowed": { "full": 2 * seconds } },
        "backends": [
            { "service": "dns", "name": "b1", "mac": "02:00:00:00:00:11", "mode": "l2", "state": "up",
                "address": "", "weight": 1, "health": "up", "reason": "",
                "packets": 75 * seconds, "bytes": 7_500 * seconds },
            { "service": "dns", "name": "b2", "mac": "02:00:00:00:00:12", "mode": "ipip", "state": "draining",
                "address": "198.51.100.2", "weight": 1, "health": "down", "reason": "connection refused",
                "packets": 25 * seconds, "bytes": 2_500 * seconds },
        ],
        "apps": [{ "name": "slow_path", "clients": 1, "punted": seconds, "socket": "/run/weir/slow.sock" }],
        "answers": [[
            { "name": "bond0", "mode": "static", "moved": 12, "moved_busy": 1, "waiting": 0,
                "next_rebalance_ms": 4200, "members": [member("p0", true), member("p1", false)],
                "moves": [{ "ago_ms": 1500, "buckets": 8, "first": 0, "to": "p0", "why": "no carrier" }] },
            { "name": "bond0", "buckets": (0..256).map(bucket).collect::<Vec<_>>() },
        ]],
    })
}

/// A view of a page, after two answers a second apart.
fn view_of(title: &str) -> (View, Instant) {
    let start = Instant::now();
    let mut view = View::new(SECOND, start);
    for turn in 0..2 {
        answer(&mut view, start + turn * SECOND, Ok(said(10 + u64::from(turn))));
    }
    while view.page().page.title != title {
        view.press(Key::Tab, start);
        assert!(!view.is_first(), "there is no page `{title}`");
    }
    for turn in 2..4 {
        answer(&mut view, start + turn * SECOND, Ok(said(10 + u64::from(turn))));
    }
    (view, start + 3 * SECOND)
}

/// Makes the view ask, and answers.
fn answer(view: &mut View, now: Instant, said: anyhow::Result<Value>) {
    let question = view.question(now).expect("a question is due");
    let kinds = Some(vec![true; crate::kinds::KINDS.len()]);
    view.show(Answer { number: question.number, taken: now, said, kinds });
}

/// The picture on a terminal of some size, without trailing spaces.
fn screen(view: &mut View, now: Instant, (width, height): (u16, u16)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(view, now, frame.area(), frame.buffer_mut())).unwrap();
    let buffer = terminal.backend().buffer();
    let row = |y: u16| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..height).map(|y| row(y).trim_end().to_string() + "\n").collect()
}

/// Compares a screen with its file.
#[track_caller]
fn compare(name: &str, screen: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("src/top/screens/{name}.txt"));
    if std::env::var_os("BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, screen).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(screen == expected, "{name}: expected\n{expected}\nbut it is\n{screen}");
}

#[test]
fn every_page_is_drawn_as_expected() {
    let daemon = ["overview", "ports", "drops", "pipes", "workers", "flows", "kernel"];
    for title in daemon.into_iter().chain(["bond", "external", "lb"]) {
        let (mut view, now) = view_of(title);
        compare(title, &screen(&mut view, now, (80, 24)));
    }
}

#[test]
fn a_small_terminal_a_pause_help_and_a_silent_daemon_are_drawn_as_expected() {
    let (mut view, now) = view_of("drops");
    view.press(Key::Char('s'), now);
    view.press(Key::Char('s'), now);
    view.press(Key::Char('r'), now);
    compare("drops-small", &screen(&mut view, now, (20, 5)));
    view.press(Key::Char('p'), now);
    compare("drops-sorted-paused", &screen(&mut view, now, (80, 12)));
    view.press(Key::Char('?'), now);
    compare("help", &screen(&mut view, now, (80, 24)));
    let (mut view, now) = view_of("ports");
    answer(
        &mut view,
        now + SECOND,
        Err(anyhow::anyhow!(
            "no weir daemon is listening on \
        /run/weir/weir.sock"
        )),
    );
    compare("ports-no-answer", &screen(&mut view, now + 12 * SECOND, (80, 8)));
    answer(&mut view, now + 13 * SECOND, Ok(said(14)));
    assert!(!screen(&mut view, now + 13 * SECOND, (80, 8)).contains("NO ANSWER"));
}

#[test]
fn a_daemon_that_was_started_again_has_no_negative_rates() {
    let (mut view, now) = view_of("ports");
    let mut again = said(1);
    again["uptime_s"] = json!(1);
    answer(&mut view, now + SECOND, Ok(again));
    assert!(view.rates.is_none() && view.before.is_none());
    assert!(view.question(now + 2 * SECOND).is_some(), "it is polled again soon");
}

#[test]
fn a_pause_asks_nothing_and_another_page_asks_twice() {
    let (mut view, now) = view_of("ports");
    view.press(Key::Char('p'), now);
    assert!(view.question(now + 100 * SECOND).is_none());
    view.press(Key::Right, now);
    let asked = now + 100 * SECOND;
    answer(&mut view, asked, Ok(said(20)));
    answer(&mut view, asked + SECOND, Ok(said(21)));
    assert!(view.paused && view.question(asked + 100 * SECOND).is_none());
    view.press(Key::Char('p'), asked);
    assert!(view.question(asked).is_some());
}

#[test]
fn keys_choose_pages_and_intervals() {
    let (mut view, now) = view_of("overview");
    let title = |view: &View| view.page().page.title;
    for (key, expected) in [
        (Key::Char('3'), "drops"),
        (Key::Left, "ports"),
        (Key::Char('9'), "external"),
        (Key::Tab, "lb"),
        (Key::Tab, "measure"),
        (Key::Tab, "overlay"),
        (Key::Tab, "path"),
        (Key::Tab, "overview"),
        (Key::BackTab, "path"),
    ] {
        assert_eq!((view.press(key, now), title(&view)), (Wish::Show, expected));
    }
    view.press(Key::Char('+'), now);
    assert_eq!(view.interval, 2 * SECOND);
    (0..9).for_each(|_| _ = view.press(Key::Char('-'), now));
    assert_eq!(view.interval, SECOND / 5);
    assert_eq!(view.press(Key::Char('q'), now), Wish::Quit);
    assert_eq!(view.press(Key::Interrupt, now), Wish::Quit);
}

fn any_key() -> impl Strategy<Value = Key> {
    prop_oneof![
        prop::char::range(' ', '~').prop_map(Key::Char),
        Just(Key::Up),
        Just(Key::Down),
        Just(Key::Tab),
        Just(Key::BackTab),
        Just(Key::PageUp),
        Just(Key::PageDown),
        Just(Key::Home),
        Just(Key::End),
        Just(Key::Escape),
    ]
}

/// An answer in which anything may be missing or have another type, and names are arbitrary.
fn any_answer() -> impl Strategy<Value = Value> {
    (any::<u32>(), prop::collection::vec(any::<usize>(), 0..4), ".{0,40}").prop_map(|(seconds, at, name)| {
        let mut answer = said(seconds.into());
        for at in at {
            let sections = answer.as_object().unwrap();
            let key = sections.keys().nth(at % sections.len()).unwrap().clone();
            answer[&key] =
                [json!(null), json!([{ "name": name }]), json!({ "a": [1] }), json!(-1)][at % 4].clone();
        }
        answer
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_key_no_answer_and_no_size_makes_it_panic(
        turns in prop::collection::vec((any_key(), any_answer(), (0u16..130, 0u16..50)), 1..12),
    ) {
        let mut now = Instant::now();
        let mut view = View::new(SECOND, now);
        for (key, said, size) in turns {
            now += 100 * SECOND;
            view.press(key, now);
            if view.question(now).is_some() {
                view.show(Answer { number: 0, taken: now, said: Ok(said), kinds: Some(vec![true; 3]) });
            }
            screen(&mut view, now, size);
        }
    }
}

/// A terminal: the emulator's end, and the program's.
fn pair() -> (OwnedFd, OwnedFd) {
    let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&screen).unwrap();
    unlockpt(&screen).unwrap();
    let name = ptsname(&screen, Vec::new()).unwrap();
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY;
    (screen, rustix::fs::open(name, flags, rustix::fs::Mode::empty()).unwrap())
}

#[test]
fn a_panic_restores_the_terminal() {
    let (screen, terminal) = pair();
    let is_raw = || !tcgetattr(&terminal).unwrap().local_modes.contains(LocalModes::ICANON);
    let modes = Modes::enter(terminal.try_clone().unwrap()).unwrap();
    assert!(is_raw());
    std::thread::scope(|scope| {
        assert!(scope.spawn(|| panic!("as it should")).join().is_err());
    });
    assert!(!is_raw(), "before the one that entered it has even noticed");
    drop(modes);
    // The kernel passes on what was written in pieces, a moment later; this is the last.
    const LAST: &str = "the end";
    rustix::io::write(&terminal, LAST.as_bytes()).unwrap();
    let (mut screen, mut drawn) = (std::fs::File::from(screen), String::new());
    while !drawn.ends_with(LAST) {
        let mut some = [0; 256];
        let count = screen.read(&mut some).unwrap();
        drawn += &String::from_utf8_lossy(&some[..count]);
    }
    let drawn = drawn.trim_end_matches(LAST);
    assert!(drawn.ends_with("\x1b[?25h\x1b[?1049l"), "{drawn:?}");
    assert_eq!(drawn.matches("\x1b[?1049l").count(), 1, "once: {drawn:?}");
}

/// A terminal shows what was drawn regardless of its previous contents, and small changes send few bytes.
#[test]
fn what_is_drawn_is_seen_and_only_changes_are_sent() {
    let (screen, terminal) = pair();
    tcsetwinsize(&terminal, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    let _modes = Modes::enter(terminal.try_clone().unwrap()).unwrap();
    let mut drawn = Terminal::new(Drawn::on(terminal)).unwrap();
    let mut seen = vt100::Parser::new(24.try_into().unwrap(), 80.try_into().unwrap(), 0);
    let mut from = std::fs::File::from(screen);
    let (mut view, mut now) = view_of("overview");
    let mut sent = Vec::new();
    for turn in 0..5u64 {
        if turn == 2 {
            view.press(Key::Tab, now);
        }
        now += SECOND;
        answer(&mut view, now, Ok(said(14 + turn)));
        drawn.draw(|frame| draw(&mut view, now, frame.area(), frame.buffer_mut())).unwrap();
        let expected = self::screen(&mut view, now, (80, 24));
        let mut bytes = [0; 65_536];
        // What was written is available at once, in pieces of the terminal's size.
        let mut all = 0;
        while seen.screen().contents_formatted().is_empty() || rows(&seen) != expected {
            let mut wait = [PollFd::new(&from, PollFlags::IN)];
            let patience = Timespec { tv_sec: 10, tv_nsec: 0 };
            assert_eq!(
                poll(&mut wait, Some(&patience)),
                Ok(1),
                "expected\n{expected}\nseen\n{}",
                rows(&seen)
            );
            let count = from.read(&mut bytes).unwrap();
            seen.process(&bytes[..count]);
            all += count;
        }
        sent.push(all);
    }
    assert!(sent[1] < 400 && sent[4] < 400, "a few numbers: {sent:?} bytes");
}

fn rows(seen: &vt100::Parser) -> String {
    seen.screen().rows(0, 80).map(|row| row.trim_end().to_string() + "\n").collect()
}
