//! The main loop with an app for tests: it is woken on time, receives events, and its actions are carried
//! out.

use super::links::Links;
use super::*;
use crate::config;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use weir_app::edits::{self, Edits};
use weir_app::kind::Kind;
use weir_app::{Action, App, Event, RunningApps};
use weir_control::answer::Progress;
use weir_control::ask;
use weir_engine::worker::{Inject, Rewiring};
use weir_program::change::Change;
use weir_program::{Entry, GroupId, PipeId, PortId, Program};

/// The app's events in words, and how late it was woken.
#[derive(Default)]
struct Notes {
    events: Vec<String>,
    late_ns: Vec<u64>,
    echoed: Vec<Vec<u8>>,
}

/// Wakes every 5 ms, records everything, and does what it is asked to.
struct ProbeApp {
    notes: Arc<Mutex<Notes>>,
    wake_ns: Option<u64>,
    group: GroupId,
    pipe: PipeId,
}

const PERIOD_NS: u64 = 5_000_000;

fn noted(notes: &Arc<Mutex<Notes>>) -> MutexGuard<'_, Notes> {
    notes.lock().unwrap_or_else(PoisonError::into_inner)
}

impl App for ProbeApp {
    fn name(&self) -> &str {
        "probe"
    }

    fn kind(&self) -> &'static str {
        "probe"
    }

    fn punts(&self) -> Vec<String> {
        vec!["probe".into(), "probe/second".into()]
    }

    fn watches(&self) -> Vec<PortId> {
        vec![PortId(1)]
    }

    fn bind(&mut self, program: &Program) {
        self.group = program.group_named("web").unwrap();
        self.pipe = program.pipe_named("fast").unwrap();
    }

    fn wake_ns(&self) -> Option<u64> {
        self.wake_ns
    }

    fn step(&mut self, now_ns: u64, event: Event<'_>, actions: &mut Vec<Action>) {
        let mut notes = noted(&self.notes);
        match event {
            Event::Start => {
                notes.events.push("start".into());
                self.wake_ns = Some(now_ns + PERIOD_NS);
            }
            Event::Tick => {
                notes.late_ns.push(now_ns - self.wake_ns.unwrap());
                self.wake_ns = Some(now_ns + PERIOD_NS);
            }
            Event::Link { port, up, speed_bps } => {
                notes.events.push(format!("link {} {up} {speed_bps:?}", port.0))
            }
            Event::Frame { app, input, bytes } => {
                notes.events.push(format!("frame {app} {}", input.0));
                notes.echoed.push(bytes.to_vec());
                actions.push(Action::Inject { bytes: bytes.to_vec(), output: PortId(1) });
            }
            Event::Request { id, request } => match request.as_str() {
                Some("add") => {
                    let add = Change::Add { pipe: self.pipe, entry: Entry::on(99).run_time() };
                    let weight = Change::SetWeight { group: self.group, target: 1, weight: 0 };
                    actions.extend([add.clone(), weight, add].map(Action::Change));
                    actions.push(Action::ReadBuckets(self.group));
                    actions.push(Action::Answer { id, answer: Ok(json!({ "added": true })) });
                }
                Some("later") => {}
                _ => actions.push(Action::Answer { id, answer: Err("what?".into()) }),
            },
            Event::Buckets { report, .. } => notes.events.push(format!("buckets {:?}", report.slots)),
            Event::Refused { why, .. } => notes.events.push(format!("refused {why}")),
            Event::Client { .. } | Event::Checked { .. } => {}
            Event::Entries { .. }
            | Event::Flows { .. }
            | Event::TooLong { .. }
            | Event::Neighbour { .. }
            | Event::CheckSends { .. }
            | Event::Configured { .. }
            | Event::Amended => {}
        }
    }
}

const CONFIG: &str = "\
ports: { p0: { pcap: {}, root: fast }, p1: { pcap: {} } }
groups: { web: { fill: wants, size: 4, targets: { b1: p1, b2: p1 } } }
pipes:
  fast: { type: basic, match: { udp.dport: per_entry }, forward: web, miss: probe, entries: [{ match: {
      udp.dport: 53 } }] }
apps: [{ external: { name: probe, socket: PATH/probe.sock } }]
";

/// Reads a configuration whose apps are external.
fn read(text: &str) -> config::Loaded {
    static KINDS: &[Kind] = &[weir_app::external::KIND];
    config::read(&config::ConfigSource::new("t", text), KINDS, &config::Nics::default(), &*edits::none(KINDS))
}

/// A daemon on recordings, with the probe in place of the external app of the same name.
struct RecordedDaemon {
    daemon: Daemon,
    control: Control,
    folder: PathBuf,
    notes: Arc<Mutex<Notes>>,
}

/// Loads the configurations that a test supplies, when it supplies them.
fn given(folder: PathBuf) -> (Sender<&'static str>, Load) {
    let (give, given) = channel::<&str>();
    let given = Mutex::new(given);
    let load = move |_: &dyn Edits, _: &config::Nics| {
        let text = given.lock().unwrap().recv_timeout(Duration::from_secs(60))?;
        let loaded = read(&text.replace("PATH", &folder.display().to_string()));
        loaded.plan.with_context(|| loaded.report.to_string())
    };
    (give, Arc::new(load))
}

impl RecordedDaemon {
    fn new(name: &str) -> RecordedDaemon {
        RecordedDaemon::loading(name, |_| {
            Arc::new(|_: &dyn Edits, _: &config::Nics| anyhow::bail!("not here"))
        })
    }

    /// A daemon that reloads its configuration with what `load` returns for its folder.
    fn loading(name: &str, load: impl FnOnce(PathBuf) -> Load) -> RecordedDaemon {
        let folder = std::env::temp_dir().join(format!("weir-daemon-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let text = CONFIG.replace("PATH", &folder.display().to_string());
        let loaded = read(&text);
        let plan = loaded.plan.unwrap_or_else(|| panic!("{}", loaded.report));
        let mut control = Control::bind(&folder.join("weir.sock"), None, None, Inherited::default()).unwrap();
        let (mut daemon, rings) = Daemon::start("t".into(), plan, load(folder.clone()), None).unwrap();
        daemon.begin(rings, Vec::new(), &serde_json::Value::Null).unwrap();
        let Daemon { doorbell, board, vocabulary, feed, names, .. } = &daemon;
        let apps = weir_app::http::HttpControls(daemon.plan.apps.kinds());
        let (vocabulary, feed, names) = (vocabulary.clone(), feed.clone(), names.board().clone());
        let known = super::http::ServerParts { vocabulary, feed, names, apps };
        control.start(doorbell.clone(), board.clone(), known).unwrap();
        let mut bench = RecordedDaemon { daemon, control, folder, notes: Arc::default() };
        bench.run_probe();
        bench
    }

    /// Puts a new probe in place of all apps.
    fn run_probe(&mut self) {
        self.notes = Arc::default();
        let probe = ProbeApp { notes: self.notes.clone(), wake_ns: None, group: GroupId(9), pipe: PipeId(9) };
        let program = &self.daemon.plan.program;
        self.daemon.host.running = RunningApps::new(vec![Box::new(probe)], RunningApps::default(), program);
        self.daemon.start_apps().unwrap();
    }

    /// Runs the main loop until the app has ticked `more` more times.
    fn ticks(&mut self, more: usize) {
        let before = noted(&self.notes).late_ns.len();
        self.until(|bench| noted(&bench.notes).late_ns.len() >= before + more);
    }

    /// Requests a reload as `weir reload` does. Returns the daemon's progress reports, and the outcome.
    fn reload(&self) -> JoinHandle<(Vec<Progress>, Result<Value>)> {
        let path = self.folder.join("weir.sock");
        std::thread::spawn(move || {
            let mut seen = Vec::new();
            let outcome = weir_control::reload(&path, |progress| seen.push(progress.clone()));
            (seen, outcome)
        })
    }

    /// Keeps worker 0 in a swap to the current program until something is sent.
    fn hold_worker(&self) -> Sender<()> {
        let (let_go, held) = channel();
        let hold = move |port: Box<dyn weir_packet::Port>| {
            let _ = held.recv();
            port
        };
        let program = read(CONFIG).plan.unwrap().program;
        let engine = Box::new(Engine::new(&program, self.daemon.hash).unwrap());
        let (punts, rings) = app_host::rings(&program, 1);
        let ports = vec![Rewire::Change(0, Box::new(hold)), Rewire::Keep(1)];
        let rewiring = Rewiring {
            generation: 1,
            ports,
            punts: punts.into_iter().flatten().collect(),
            ..Rewiring::default()
        };
        let (answer, _) = sync_channel(1);
        self.daemon.fleet.send(0, Command::Swap(engine, rewiring, answer)).unwrap();
        drop(rings);
        let_go
    }

    /// Runs the main loop until a condition holds, which may become true while the loop has nothing to do.
    fn until(&mut self, is_so: impl FnMut(&mut RecordedDaemon) -> bool) {
        self.until_with_timer(5_000_000, is_so);
    }

    /// Runs the main loop until a condition holds. A timer ends its pauses after this many nanoseconds.
    fn until_with_timer(&mut self, pause_ns: i64, mut is_so: impl FnMut(&mut RecordedDaemon) -> bool) {
        let start = Instant::now();
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags).unwrap();
        let often = Timespec { tv_sec: 0, tv_nsec: pause_ns };
        let often = Itimerspec { it_interval: often, it_value: often };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &often).unwrap();
        while !is_so(self) {
            assert!(start.elapsed() < Duration::from_secs(60), "{:?}", noted(&self.notes).events);
            self.daemon.wait(&self.control, std::os::fd::AsFd::as_fd(&timer));
            let _ = rustix::io::read(&timer, &mut [0; 8]);
            self.daemon.doorbell.answer();
            self.daemon.advance_reload();
            self.daemon.drive_apps();
            self.daemon.publish();
            self.daemon.advance_changes();
            self.control.serve(&mut self.daemon);
        }
    }

    fn ask(&mut self, request: Value) -> Result<Value> {
        let path = self.folder.join("weir.sock");
        let asking = std::thread::spawn(move || ask(&path, &request));
        self.until(|_| asking.is_finished());
        asking.join().unwrap()
    }
}

impl Drop for RecordedDaemon {
    fn drop(&mut self) {
        let _ = std::mem::take(&mut self.daemon.fleet).stop();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn an_app_is_woken_in_time() {
    let mut bench = RecordedDaemon::new("ticks");
    // The timer is slower than the app, because a timer with the app's period would wake it almost in time.
    bench.until_with_timer(200_000_000, |bench| noted(&bench.notes).late_ns.len() >= 100);
    let mut late = std::mem::take(&mut noted(&bench.notes).late_ns);
    late.sort_unstable();
    println!("late: median {} us, 90 % {} us", late[50] / 1000, late[90] / 1000);
    // On a busy machine, most wait for a processor; if the daemon woke apps late, all of them would be late.
    assert!(late[10] < 2_000_000, "{late:?}");
}

#[test]
fn an_app_is_told_of_frames_links_and_what_became_of_its_wishes() {
    let mut bench = RecordedDaemon::new("events");
    assert_eq!(noted(&bench.notes).events, ["start", "link 1 true None"], "a recording is always up");
    let inject = |packet: &str| json!({ "command": "inject", "packet": packet, "input": "p0" });
    assert_eq!(bench.ask(inject("dport=80")).unwrap(), json!({ "done": true }));
    bench.until(|bench| bench.daemon.apps_json()[0]["injected"] == 1);
    let probe = bench.daemon.apps_json()[0].clone();
    assert_eq!((&probe["punted"], &probe["refused"]), (&json!(1), &json!(0)));
    assert_eq!(noted(&bench.notes).events[2..], ["frame probe 0"]);
    assert_eq!(noted(&bench.notes).echoed, [weir_packet::craft::frame("dport=80")]);
    let request = |words: &str| json!({ "command": "app", "app": "probe", "request": words });
    assert_eq!(bench.ask(request("add")).unwrap(), json!({ "added": true }));
    let refused = "refused pipe `fast` already has an entry with this key: update or remove it";
    assert_eq!(noted(&bench.notes).events[3..], [refused, "buckets [0, 0, 0, 0]"]);
    assert_eq!(bench.daemon.weights[&(GroupId(0), 1)], 0, "a reload will know");
    assert_eq!(bench.ask(inject("dport=99")).unwrap(), json!({ "done": true }));
    assert_eq!(bench.ask(request("dance")).unwrap_err().to_string(), "what?");
    assert!(bench.ask(json!({ "command": "app", "app": "nobody", "request": 1 })).is_err());
    let reports = bench.daemon.fleet.ask_all(|_, answer| Command::Report(answer)).unwrap();
    assert_eq!((reports[0].ledger.to_app, reports[0].ledger.transmitted), (1, 2));
}

#[test]
fn who_goes_before_the_answer_is_forgotten_and_costs_nothing() {
    let mut bench = RecordedDaemon::new("gone");
    let mut stream = std::os::unix::net::UnixStream::connect(bench.folder.join("weir.sock")).unwrap();
    let body = r#"{"command": "app", "app": "probe", "request": "later"}"#;
    let head = format!("POST /command HTTP/1.1\r\nHost: weir\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    bench.until(|bench| bench.daemon.waiting_requests() == 1);
    drop(stream);
    bench.until(|bench| bench.daemon.waiting_requests() == 0);
    assert_eq!(bench.control.deadline(), None);
}

/// Issue 9, 1.1: a slow reload starved LACP and the links, which share the main thread.
#[test]
fn apps_and_clients_are_served_while_a_program_is_read_and_compiled() {
    let mut give = None;
    let mut bench = RecordedDaemon::loading("slow", |folder| {
        let (sender, load) = given(folder);
        give = Some(sender);
        load
    });
    let give = give.unwrap();
    let first = bench.reload();
    bench.until(|bench| bench.daemon.reloads.are_preparing());
    bench.ticks(20);
    // Changes made meanwhile are in the new program: an entry as state, a weight because it was set later.
    let entry =
        json!({ "command": "entry", "do": "add", "pipe": "fast", "entry": "{ match: { udp.dport: 9 } }" });
    assert_eq!(bench.ask(entry).unwrap(), json!({ "done": true }));
    let weight = json!({ "command": "weight", "group": "web", "target": "b1", "weight": 0 });
    assert_eq!(bench.ask(weight).unwrap(), json!({ "done": true }));
    // Both of these become one reload, which begins when the first has ended.
    let others = [bench.reload(), bench.reload()];
    bench.until(|bench| bench.control.waiting() == 3);
    bench.ticks(20);
    assert!(bench.daemon.reloads.are_preparing() && !first.is_finished());
    give.send(CONFIG).unwrap();
    bench.until(|bench| bench.daemon.generation == 2 && first.is_finished());
    let (seen, outcome) = first.join().unwrap();
    assert_eq!(outcome.unwrap()["generation"], 2);
    assert!(seen.iter().all(|seen| seen.stage == "the file is being read, checked and compiled"), "{seen:?}");
    let entries = bench.ask(json!({ "command": "show", "what": "entries" })).unwrap();
    assert_eq!(entries["entries"].as_array().unwrap().len(), 2, "{entries}");
    let groups = bench.ask(json!({ "command": "show", "what": "groups" })).unwrap();
    let targets = &groups["groups"][0]["targets"];
    assert_eq!((&targets[0]["weight"], &targets[0]["buckets"]), (&json!(0), &json!(0)), "{targets}");
    give.send("ports: {}").unwrap();
    bench.until(|_| others.iter().all(JoinHandle::is_finished));
    for other in others {
        assert!(other.join().unwrap().1.unwrap_err().to_string().contains("there is no port"));
    }
    assert_eq!((bench.daemon.generation, bench.daemon.reloads.tickets()), (2, 2));
}

/// Issue 9, 1.2: a late answer to a swap left plan and engines inconsistent.
#[test]
fn plan_and_engines_agree_while_a_worker_is_late_to_take_over() {
    let mut give = None;
    let mut bench = RecordedDaemon::loading("late", |folder| {
        let (sender, load) = given(folder);
        give = Some(sender);
        load
    });
    let let_go = bench.hold_worker();
    let reload = bench.reload();
    // A pipe before `fast`, so that the number of `fast` changes.
    let pipes = "pipes:\n  before: { type: basic, forward: drop, miss: drop }\n";
    let other: &str = Box::leak(CONFIG.replace("pipes:\n", pipes).into_boxed_str());
    give.unwrap().send(other).unwrap();
    bench.until(|bench| bench.daemon.reloads.are_taking_over());
    assert_eq!(bench.daemon.generation, 2);
    bench.run_probe();
    bench.ticks(20);
    // Changes to the program wait for the worker; the app continues meanwhile.
    let request = json!({ "command": "app", "app": "probe", "request": "add" });
    assert_eq!(bench.ask(request).unwrap(), json!({ "added": true }));
    let path = bench.folder.join("weir.sock");
    let add =
        json!({ "command": "entry", "do": "add", "pipe": "fast", "entry": "{ match: { udp.dport: 9 } }" });
    let adding = std::thread::spawn(move || ask::<Value>(&path, &add));
    bench.ticks(20);
    assert_eq!(noted(&bench.notes).events, ["start", "link 1 true None"]);
    assert!(!adding.is_finished() && !reload.is_finished());
    let_go.send(()).unwrap();
    bench.until(|_| adding.is_finished() && reload.is_finished());
    assert_eq!(adding.join().unwrap().unwrap(), json!({ "done": true }));
    assert_eq!(reload.join().unwrap().1.unwrap()["generation"], 2);
    let refused = "refused pipe `fast` already has an entry with this key: update or remove it";
    assert_eq!(noted(&bench.notes).events[2..], [refused, "buckets [0, 0, 0, 0]"]);
    let entries = bench.ask(json!({ "command": "show", "what": "entries", "pipe": "fast" })).unwrap();
    assert_eq!(entries["entries"].as_array().unwrap().len(), 3, "{entries}");
}

/// The main thread used to wait for the workers on every change of a client.
#[test]
fn a_change_of_a_client_waits_for_a_late_worker_and_a_reload_for_the_change() {
    let mut give = None;
    let mut bench = RecordedDaemon::loading("change", |folder| {
        let (sender, load) = given(folder);
        give = Some(sender);
        load
    });
    let let_go = bench.hold_worker();
    let path = bench.folder.join("weir.sock");
    let add =
        json!({ "command": "entry", "do": "add", "pipe": "fast", "entry": "{ match: { udp.dport: 9 } }" });
    let adding = std::thread::spawn(move || ask::<Value>(&path, &add));
    bench.until(|bench| bench.daemon.fleet.is_changing());
    bench.ticks(20);
    let reload = bench.reload();
    give.unwrap().send(CONFIG).unwrap();
    bench.until(|bench| bench.daemon.reloads.are_due());
    bench.ticks(20);
    // Otherwise the new program would precede the change on a worker that had no room for the command.
    assert!(bench.daemon.generation == 1 && !adding.is_finished() && !reload.is_finished());
    let_go.send(()).unwrap();
    bench.until(|_| adding.is_finished() && reload.is_finished());
    assert_eq!(adding.join().unwrap().unwrap(), json!({ "done": true }));
    assert_eq!(reload.join().unwrap().1.unwrap()["generation"], 2);
    let entries = bench.ask(json!({ "command": "show", "what": "entries", "pipe": "fast" })).unwrap();
    assert_eq!(entries["entries"].as_array().unwrap().len(), 2, "{entries}");
}

/// Issue 9, 1.4: scrapes went through the main thread, and waited for it while it waited for workers.
#[test]
fn a_scrape_waits_neither_for_the_main_thread_nor_for_a_worker() {
    let mut bench = RecordedDaemon::new("scrape");
    let path = bench.folder.join("weir.sock");
    let scrape = move || {
        let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: weir\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    let of = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{text}"));
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let first = std::thread::spawn(scrape.clone());
    bench.until(|_| first.is_finished());
    let first = first.join().unwrap();
    assert_eq!(of(&first, "weir_frames_total{fate=\"originated\"}"), 0.0);
    // From here on, the main thread is stopped. The workers answer.
    let (answer, injected) = sync_channel(1);
    let inject =
        Inject { bytes: weir_packet::craft::frame("dport=53"), output: Some(PortId(1)), input: PortId(0) };
    bench.daemon.fleet.send(0, Command::Inject(inject, answer)).unwrap();
    injected.recv().unwrap().unwrap();
    // A scrape waits for a second; if this machine is too slow for that, it shows what was known before.
    let is_new = |text: &String| of(text, "weir_frames_total{fate=\"originated\"}") == 1.0;
    let second = (0..30).map(|_| scrape()).find(is_new).expect("the workers answer");
    // Now the worker is stopped, too.
    let let_go = bench.hold_worker();
    let third = scrape();
    assert_eq!(of(&third, "weir_frames_total{fate=\"originated\"}"), 1.0, "{third}");
    assert!(of(&third, "weir_snapshot_age_seconds") > of(&second, "weir_snapshot_age_seconds"), "{third}");
    let_go.send(()).unwrap();
}

/// Uses a veth, whose carrier depends on its peer.
#[test]
fn links_that_are_watched_go_down_and_up() {
    let Some(run) = weir_bed::Run::of_test("links") else { return };
    let namespace = run.namespace("links").unwrap();
    weir_bed::cable(None, &namespace.end("w0"), &namespace.end("f0")).unwrap();
    let text = "ports: { p0: { mem: }, p1: { xdp: w0, take: [{ dst: 10.0.0.1 }] } }\nroot: a\n\
                pipes: { a: { type: basic, forward: p1, miss: p0 } }\n";
    let plan = read(text).plan.unwrap();
    let watches = [vec![PortId(1)], vec![PortId(0), PortId(1)]];
    let mut links = namespace.within(|| Links::watch(&plan, &[], &watches).unwrap());
    let seen = |news: Vec<super::links::LinkChange>| -> Vec<(usize, u16, bool, Option<u64>)> {
        news.iter().map(|one| (one.app, one.port.0, one.state.up, one.state.speed_bps)).collect()
    };
    let speed = Some(10_000_000_000);
    assert_eq!(seen(links.all()), [(0, 1, true, speed), (1, 1, true, speed), (1, 0, true, None)]);
    const MS: u64 = 1_000_000;
    assert_eq!((seen(links.look(0, 0)), links.wake_ns()), (vec![], Some(20 * MS)));
    assert_eq!((seen(links.look(20 * MS, 7)), links.wake_ns()), (vec![], Some(40 * MS)), "few frames pass");
    assert_eq!((seen(links.look(40 * MS, 15)), links.wake_ns()), (vec![], Some(42 * MS)), "frames pass");
    namespace.ip("link set f0 down\n").unwrap();
    assert_eq!(seen(links.look(41 * MS, 15)), [], "not before its time");
    assert_eq!(seen(links.look(42 * MS, 15)), [(0, 1, false, None), (1, 1, false, None)]);
    namespace.ip("link set f0 up\n").unwrap();
    assert_eq!(seen(links.look(44 * MS, 15)), [(0, 1, true, speed), (1, 1, true, speed)]);
    namespace.ip("link del w0\n").unwrap();
    assert_eq!(seen(links.look(46 * MS, 15)).len(), 2, "a port that is gone is down");
    assert_eq!((seen(links.look(48 * MS, 15)), links.wake_ns()), (vec![], Some(50 * MS)));
    assert_eq!((seen(links.look(60 * MS, 15)), links.wake_ns()), (vec![], Some(80 * MS)), "no more frames");
}
