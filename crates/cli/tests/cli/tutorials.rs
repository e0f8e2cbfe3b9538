//! Runs every command of the tutorials, in order and in one shell, and compares the output with the page. It
//! ignores what differs from run to run (times, MAC addresses that the kernel chose, the server that has
//! answered) and what the page abbreviates with `...`.

use super::folder::Folder;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use weir_bed::Run;

/// How long a command may take, and how long to wait for a line of the daemon's log.
const PATIENCE: Duration = Duration::from_secs(60);

/// A fenced block of a page.
struct Block {
    text: String,
    /// The page's line on which it starts, from 1.
    line: usize,
}

/// A command of a page, with the output that the page shows.
struct ShownCommand {
    command: String,
    expected: Vec<String>,
}

impl Block {
    /// The commands in it; none if it is a file or a drawing.
    fn steps(&self) -> Vec<ShownCommand> {
        let mut steps: Vec<ShownCommand> = Vec::new();
        for line in self.text.lines() {
            match (line.strip_prefix("$ "), steps.last_mut()) {
                (Some(command), _) => {
                    steps.push(ShownCommand { command: command.to_string(), expected: Vec::new() });
                }
                (None, Some(step)) => step.expected.push(line.to_string()),
                (None, None) => return Vec::new(),
            }
        }
        steps
    }
}

fn folder_of_tutorials() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tutorials")
}

/// The fenced blocks of a page, in order. Its path is relative to the tutorials.
fn blocks(page: &str) -> Vec<Block> {
    let text = std::fs::read_to_string(folder_of_tutorials().join(page)).unwrap();
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (at, line) in text.lines().enumerate() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(_), None) => open = Some(Block { text: String::new(), line: at + 1 }),
            (None, Some(block)) => writeln!(block.text, "{line}").unwrap(),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{page}: a block has no end");
    blocks
}

/// A line of the daemon's log, without its time.
fn logged(line: &str) -> Option<&str> {
    let (time, rest) = line.split_once("Z ")?;
    let is_time =
        time.len() > 20 && time.bytes().all(|byte| byte.is_ascii_digit() || b"-:.T".contains(&byte));
    is_time.then(|| rest.trim_start())
}

/// A line in which everything that differs from run to run is replaced, including numbers unless `numbers` is
/// true.
fn usual(line: &str, numbers: bool) -> String {
    let words = line.split_whitespace().map(|word| {
        let (key, value) = word.rsplit_once('=').map_or(("", word), |(key, value)| (key, value));
        let bytes: Vec<&str> = value.trim_end_matches(',').split(':').collect();
        let is_mac = bytes.len() == 6 && bytes.iter().all(|byte| u8::from_str_radix(byte, 16).is_ok());
        let chosen = is_mac && !value.starts_with("02:00:00:");
        let numbered = !numbers && word.bytes().any(|byte| byte.is_ascii_digit());
        match (chosen, numbered) {
            (true, _) => format!("{key}MAC"),
            (false, true) => {
                let digits: Vec<&str> = word.split(|part: char| part.is_ascii_digit()).collect();
                digits.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("#")
            }
            (false, false) => word.to_string(),
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Whether a line is what the page shows, where `...` is any text.
fn fits(shown: &str, line: &str, numbers: bool) -> bool {
    let (shown, line) = (usual(shown, numbers), usual(line, numbers));
    let mut parts = shown.split("...");
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or_default().trim_end()) else { return false };
    let mut last = None;
    for part in parts {
        let Some(at) = rest.find(part.trim()) else { return false };
        rest = &rest[at + part.trim().len()..];
        last = Some(part);
    }
    rest.is_empty() || last.is_some_and(|part| part.trim().is_empty())
}

/// Whether lines are what the page shows, where the line `...` is any lines.
fn all_fit(shown: &[&String], lines: &[String], numbers: bool) -> bool {
    match (shown.split_first(), lines.split_first()) {
        (None, None) => true,
        (Some((first, rest)), _) if first.trim() == "..." => {
            (0..=lines.len()).any(|skipped| all_fit(rest, &lines[skipped..], numbers))
        }
        (Some((first, others)), Some((line, rest))) => {
            fits(first, line, numbers) && all_fit(others, rest, numbers)
        }
        (None, Some(_)) | (Some(_), None) => false,
    }
}

/// The shell in which a tutorial is followed. All its processes end with it.
struct Shell {
    shell: Child,
    input: ChildStdin,
    output: Receiver<String>,
    /// The lines of the log that no step has expected yet.
    log: Vec<String>,
    marks: usize,
}

impl Shell {
    /// Starts it in a folder. `weir` and the commands beside it are on its path. With `root`, network
    /// namespaces have names of its own.
    fn new(folder: &Path, root: bool) -> Shell {
        let mut command = Command::new(if root { "unshare" } else { "bash" });
        if root {
            command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash"]);
        }
        let weir = Path::new(env!("CARGO_BIN_EXE_weir")).parent().unwrap().display().to_string();
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .arg("--norc")
            .current_dir(folder)
            .env("PATH", format!("{weir}:{path}"))
            .env_remove("WEIR_SOCKET");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = command.spawn().unwrap();
        let (lines, output) = channel();
        let printed = BufReader::new(shell.stdout.take().unwrap());
        std::thread::spawn(move || {
            printed.lines().map_while(Result::ok).try_for_each(|line| lines.send(line))
        });
        let input = shell.stdin.take().unwrap();
        let mut shell = Shell { shell, input, output, log: Vec::new(), marks: 0 };
        shell.run("exec 2>&1");
        if root {
            shell.run("mkdir -p /run/netns; mount -t tmpfs none /run/netns");
        }
        shell
    }

    /// Runs a command and returns what it printed, without the daemon's log.
    fn run(&mut self, command: &str) -> Vec<String> {
        self.marks += 1;
        let mark = format!("the end of command {}", self.marks);
        writeln!(self.input, "{command}\necho '{mark}'").unwrap();
        let (mut lines, until) = (Vec::new(), Instant::now() + PATIENCE);
        loop {
            match self.next(until) {
                Some(line) if line == mark => return lines,
                // The shell's message about a killed job.
                Some(line) if line.contains("line ") && line.contains("Killed") => {}
                Some(line) => lines.push(line),
                None => panic!("`{command}` does not end: {lines:#?}"),
            }
        }
    }

    /// The next line that is not the daemon's log.
    fn next(&mut self, until: Instant) -> Option<String> {
        loop {
            let line = self.output.recv_timeout(until.saturating_duration_since(Instant::now())).ok()?;
            match logged(&line) {
                Some(entry) => self.log.push(entry.to_string()),
                None => return Some(line),
            }
        }
    }

    /// Waits for a line of the log.
    fn wait_for(&mut self, shown: &str, step: &str) {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.log.iter().position(|line| fits(shown, line, false)) {
                self.log.remove(at);
                return;
            }
            assert!(Instant::now() < until, "`{step}`: no `{shown}` in the log: {:#?}", self.log);
            std::thread::sleep(Duration::from_millis(20));
            self.run(":");
        }
    }

    /// Performs a step of a page, and asserts that its output is what the page shows.
    fn follow(&mut self, page: &str, line: usize, step: &ShownCommand, numbers: bool) {
        let (entries, shown): (Vec<&String>, Vec<&String>) =
            step.expected.iter().partition(|line| logged(line).is_some());
        let printed = self.run(&step.command);
        assert!(
            all_fit(&shown, &printed, numbers),
            "docs/tutorials/{page}, block at line {line}: `{}` printed\n{}\ninstead of\n{}",
            step.command,
            printed.join("\n"),
            step.expected.join("\n"),
        );
        for entry in entries {
            self.wait_for(logged(entry).unwrap_or_default(), &step.command);
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = writeln!(self.input, "kill $(jobs -p)");
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

/// Follows a page. `edit` gets each block before its commands are run, and edits the files in the folder as
/// the page requests.
fn follow(page: &str, files: &[&str], root: bool, mut edit: impl FnMut(&Block, &Path)) {
    let folder = Folder::new();
    for file in files {
        std::fs::copy(folder_of_tutorials().join(file), folder.file(file)).unwrap();
    }
    let mut shell = Shell::new(folder.path(), root);
    let mut steps = 0;
    for mut block in blocks(page) {
        block.text = block.text.replace("/tmp/tutorial", &folder.path().display().to_string());
        edit(&block, folder.path());
        for step in block.steps() {
            // Counts of packets and flows, and which server answers, depend on the moment.
            let curls = ["ip netns exec client curl -s http", "ip netns exec client curl -s --retry"];
            let varies = ["weir show", "weir reload", "for i in", curls[0], curls[1]];
            let varies = varies.iter().any(|one| step.command.starts_with(one));
            shell.follow(page, block.line, &step, !(root && varies));
            steps += 1;
        }
    }
    assert!(steps > 10, "{page}: only {steps} commands were found");
}

/// Replaces a text in a file, which must contain it.
fn replace(file: &Path, what: &str, by: &str) {
    let text = std::fs::read_to_string(file).unwrap();
    assert!(text.contains(what), "no `{what}` in\n{text}");
    std::fs::write(file, text.replace(what, by)).unwrap();
}

#[test]
fn the_tutorial_of_pipes_does_what_it_says() {
    // The reader's file has no comment at its beginning.
    let whole = std::fs::read_to_string(folder_of_tutorials().join("dns.yaml")).unwrap();
    let whole = &whole[whole.find("ports:").unwrap()..];
    let is_wrong = |file: &Path| std::fs::read_to_string(file).unwrap().contains("203.0.113.66/28");
    follow("pipes.md", &["queries.pcap"], false, |block, folder| {
        let file = folder.join("dns.yaml");
        match block.text.lines().next().unwrap_or_default().trim_start() {
            "ports:" => std::fs::write(&file, &block.text).unwrap(),
            "groups:" => assert!(whole.contains(&block.text), "dns.yaml differs: {}", block.text),
            "$ weir replay dns.yaml queries.pcap -o out.pcap" if is_wrong(&file) => {
                // The page has shown the effect of the mistakes, and asks the reader to correct them.
                replace(&file, "203.0.113.66/28", "203.0.113.64/28");
                replace(&file, "forward: server }", "forward: servers }");
                replace(&file, "    forward: per_entry\n", "    forward: per_entry\n    miss: drop\n");
            }
            command if command.starts_with("$ ") => {}
            entry if entry.starts_with("- { priority: 20") => {
                for line in block.text.lines() {
                    assert!(whole.contains(line), "line {}: dns.yaml has no `{line}`", block.line);
                }
                std::fs::write(&file, whole).unwrap();
            }
            other => panic!("line {}: what is to be done with `{other}`?", block.line),
        }
    });
}

/// Only the walk: the other commands of the page install and build weir.
#[test]
fn the_readme_shows_what_explain_prints() {
    let mut shell = Shell::new(&folder_of_tutorials().join("../.."), false);
    let steps: Vec<(usize, ShownCommand)> = blocks("../../README.md")
        .iter()
        .flat_map(|block| block.steps().into_iter().map(|step| (block.line, step)))
        .collect();
    assert!(!steps.is_empty(), "README.md has no command with output");
    for (line, step) in steps {
        shell.follow("../../README.md", line, &step, true);
    }
}

#[test]
fn the_tutorial_of_the_load_balancer_does_what_it_says() {
    let Some(_run) = Run::of_test("tutorial") else { return };
    follow("load-balancer.md", &["network.sh"], true, |block, folder| {
        let file = folder.join("lb.yaml");
        match block.text.lines().next().unwrap_or_default().trim_start() {
            "ports:" => std::fs::write(&file, &block.text).unwrap(),
            last if last.starts_with("- { name: b2, ip: 10.0.0.12, weight: 2 }") => {
                replace(&file, "        - { name: b2, ip: 10.0.0.12 }\n", &block.text);
            }
            first if ["cargo build", "client 10.0.0.2", "$ "].iter().any(|one| first.starts_with(one)) => {}
            other => panic!("line {}: what is to be done with `{other}`?", block.line),
        }
    });
}
