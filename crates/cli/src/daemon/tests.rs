//! The main loop with an app for tests: it is woken in time, receives events, and its actions are carried
//! out.

use super::links::Links;
use super::*;
use crate::config;
use ::apps::{Action, App, Event, RunningApps};
use control::ask;
use engine::change::Change;
use engine::program::{Entry, GroupId, PipeId, PortId, Program};
use serde_json::{Value, json};
use std::process::Command as Process;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The events of the app in words, and how late it was woken.
#[derive(Default)]
struct Notes {
    events: Vec<String>,
    late_ns: Vec<u64>,
    echoed: Vec<Vec<u8>>,
}

/// Wakes every 5 ms, records everything, and does what it is asked.
struct Probe {
    notes: Arc<Mutex<Notes>>,
    wake_ns: Option<u64>,
    group: GroupId,
    pipe: PipeId,
}

const PERIOD_NS: u64 = 5_000_000;

fn noted(notes: &Arc<Mutex<Notes>>) -> MutexGuard<'_, Notes> {
    notes.lock().unwrap_or_else(PoisonError::into_inner)
}

impl App for Probe {
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
            Event::Client { .. } => {}
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

/// A daemon on recordings, with the probe in place of the external app with its name.
struct Bench {
    daemon: Daemon,
    control: Control,
    folder: PathBuf,
    notes: Arc<Mutex<Notes>>,
}

impl Bench {
    fn new(name: &str) -> Bench {
        let folder = std::env::temp_dir().join(format!("weir-daemon-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let text = CONFIG.replace("PATH", &folder.display().to_string());
        let loaded = config::read("t", &text);
        let plan = loaded.plan.unwrap_or_else(|| panic!("{}", loaded.report));
        let mut control = Control::bind(&folder.join("weir.sock"), None).unwrap();
        let mut daemon = Daemon::start("t".into(), plan).unwrap();
        control.start(daemon.doorbell.clone()).unwrap();
        let notes = Arc::new(Mutex::new(Notes::default()));
        let probe = Probe { notes: notes.clone(), wake_ns: None, group: GroupId(9), pipe: PipeId(9) };
        daemon.host.running =
            RunningApps::new(vec![Box::new(probe)], RunningApps::default(), &daemon.plan.program);
        daemon.start_apps().unwrap();
        Bench { daemon, control, folder, notes }
    }

    /// Runs the main loop until a condition holds.
    fn until(&mut self, mut is_so: impl FnMut(&mut Bench) -> bool) {
        let start = Instant::now();
        let (quiet, _end) = std::os::unix::net::UnixStream::pair().unwrap();
        while !is_so(self) {
            assert!(start.elapsed() < Duration::from_secs(30), "{:?}", noted(&self.notes).events);
            self.daemon.wait(&self.control, std::os::fd::AsFd::as_fd(&quiet));
            self.daemon.doorbell.answer();
            self.daemon.drive_apps();
            self.control.serve(&mut self.daemon, &|| anyhow::bail!("not here"));
        }
    }

    fn ask(&mut self, request: Value) -> Result<Value> {
        let path = self.folder.join("weir.sock");
        let asking = std::thread::spawn(move || ask(&path, &request));
        self.until(|_| asking.is_finished());
        asking.join().unwrap()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = std::mem::take(&mut self.daemon.fleet).stop();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn an_app_is_woken_in_time() {
    let mut bench = Bench::new("ticks");
    bench.until(|bench| noted(&bench.notes).late_ns.len() >= 100);
    let mut late = std::mem::take(&mut noted(&bench.notes).late_ns);
    late.sort_unstable();
    println!("late: median {} us, 90 % {} us", late[50] / 1000, late[90] / 1000);
    // The machine may be busy for a while, but not half of the time.
    assert!(late[50] < 2_000_000, "{late:?}");
}

#[test]
fn an_app_is_told_of_frames_links_and_what_became_of_its_wishes() {
    let mut bench = Bench::new("events");
    assert_eq!(noted(&bench.notes).events, ["start", "link 1 true None"], "a recording is always up");
    let inject = |packet: &str| json!({ "command": "inject", "packet": packet, "input": "p0" });
    assert_eq!(bench.ask(inject("dport=80")).unwrap(), json!({ "done": true }));
    bench.until(|bench| bench.daemon.apps_json()[0]["injected"] == 1);
    let probe = bench.daemon.apps_json()[0].clone();
    assert_eq!((&probe["punted"], &probe["refused"]), (&json!(1), &json!(0)));
    assert_eq!(noted(&bench.notes).events[2..], ["frame probe 0"]);
    assert_eq!(noted(&bench.notes).echoed, [packet::craft::frame("dport=80")]);
    let request = |words: &str| json!({ "command": "app", "app": "probe", "request": words });
    assert_eq!(bench.ask(request("add")).unwrap(), json!({ "added": true }));
    let refused = "refused pipe `fast` already has an entry with this key: update or remove it";
    assert_eq!(noted(&bench.notes).events[3..], [refused, "buckets [0, 0, 0, 0]"]);
    assert_eq!(bench.daemon.plan.program.groups[0].targets[1].weight, 0, "a reload will know");
    assert_eq!(bench.ask(inject("dport=99")).unwrap(), json!({ "done": true }));
    assert_eq!(bench.ask(request("dance")).unwrap_err().to_string(), "what?");
    assert!(bench.ask(json!({ "command": "app", "app": "nobody", "request": 1 })).is_err());
    let reports = bench.daemon.reports().unwrap();
    assert_eq!((reports[0].ledger.to_app, reports[0].ledger.transmitted), (1, 2));
}

#[test]
fn who_goes_before_the_answer_is_forgotten_and_costs_nothing() {
    let mut bench = Bench::new("gone");
    let mut stream = std::os::unix::net::UnixStream::connect(bench.folder.join("weir.sock")).unwrap();
    let body = r#"{"command": "app", "app": "probe", "request": "later"}"#;
    let head = format!("POST /command HTTP/1.1\r\nHost: weir\r\nContent-Length: {}\r\n\r\n", body.len());
    std::io::Write::write_all(&mut stream, format!("{head}{body}").as_bytes()).unwrap();
    bench.until(|bench| bench.daemon.waiting_requests() == 1);
    drop(stream);
    bench.until(|bench| bench.daemon.waiting_requests() == 0);
    assert_eq!(bench.control.deadline(), None);
}

/// Uses a veth, whose carrier depends on its other end.
#[test]
fn links_that_are_watched_go_down_and_up() {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("CI").is_none(), "CI runs as root");
        eprintln!("skipped: needs root");
        return;
    }
    let netns = format!("weirtest-{}-links", std::process::id());
    let run = |line: &str| {
        let line = line.replace("NETNS", &netns);
        assert!(Process::new("sh").args(["-c", &line]).status().unwrap().success(), "{line}");
    };
    run("ip netns add NETNS && ip -n NETNS link add w0 type veth peer name f0");
    run("ip -n NETNS link set w0 up && ip -n NETNS link set f0 up");
    let text = "ports: { p0: { mem: }, p1: { xdp: w0, take: [{ dst: 10.0.0.1 }] } }\nroot: a\n\
                pipes: { a: { type: basic, forward: p1, miss: p0 } }\n";
    let plan = config::read("t", text).plan.unwrap();
    let watched = std::thread::scope(|scope| {
        let enter = || {
            let netns = std::fs::File::open(format!("/run/netns/{netns}")).unwrap();
            let kind = Some(rustix::thread::LinkNameSpaceType::Network);
            rustix::thread::move_into_link_name_space(std::os::fd::AsFd::as_fd(&netns), kind).unwrap();
            Links::watch(&plan, &[], &[vec![PortId(1)], vec![PortId(0), PortId(1)]]).unwrap()
        };
        scope.spawn(enter).join().unwrap()
    });
    let mut links = watched;
    let told = |news: Vec<super::links::News>| -> Vec<(usize, u16, bool, Option<u64>)> {
        news.iter().map(|one| (one.app, one.port.0, one.state.up, one.state.speed_bps)).collect()
    };
    let speed = Some(10_000_000_000);
    assert_eq!(told(links.all()), [(0, 1, true, speed), (1, 1, true, speed), (1, 0, true, None)]);
    assert_eq!((told(links.look(0)), links.wake_ns()), (vec![], Some(2_000_000)));
    run("ip -n NETNS link set f0 down");
    assert_eq!(told(links.look(1)), [], "not before its time");
    assert_eq!(told(links.look(2_000_000)), [(0, 1, false, None), (1, 1, false, None)]);
    run("ip -n NETNS link set f0 up");
    assert_eq!(told(links.look(4_000_000)), [(0, 1, true, speed), (1, 1, true, speed)]);
    run("ip -n NETNS link del w0");
    assert_eq!(told(links.look(6_000_000)).len(), 2, "what is gone is down");
    assert_eq!(told(links.look(8_000_000)), []);
    run("ip netns del NETNS");
}
