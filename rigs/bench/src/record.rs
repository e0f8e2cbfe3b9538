//! `weir bench record`: `weir measure` on a recording, compared with other tools that analyse one, and with
//! `cat`, which only reads it.
//!
//! All read the same file from the page cache, take turns, and discard their output. Elapsed time is from the
//! start of the process to its end; processor time and peak memory are the kernel's counts for it (`wait4`).

use crate::selection::Selection;
use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::{Value, json};
use std::fmt::Display;
use std::fs::File;
use std::io::BufReader;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use weir_bed::namespace;
use weir_lab::spread::ResultSpread;
use weir_lab::{Interrupt, weir};
use weir_port::pcap::{Links, Reader};

/// The speed that `weir measure` must reach, in packets per second and as a share of the speed of `cat`: the
/// lower of the two counts.
const FLOOR_PACKETS: f64 = 2e6;
const FLOOR_SHARE: f64 = 0.6;

/// Interval between checks for an interrupt while a process runs.
const LOOK: Duration = Duration::from_millis(100);

/// Bytes read at once while counting packets.
const BUFFER: usize = 1 << 20;

/// What to measure.
#[derive(clap::Args)]
pub struct RecordOptions {
    /// The recording, pcap or pcapng, uncompressed. By default, one is generated with flows drawn from Zipf
    /// 1.1, as by `weir bench generate`.
    file: Option<PathBuf>,
    /// Packets of the generated recording.
    #[arg(long, default_value = "1350000", conflicts_with = "file")]
    count: u64,
    /// Bytes of their frames.
    #[arg(long, default_value = "720", conflicts_with = "file")]
    length: u32,
    /// Rounds whose median is reported.
    #[arg(long, default_value = "5", value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Only these programs: cat, weir, `tshark conv,ip`, `tshark conv,tcp`, nfpcapd. With hundreds of
    /// thousands of flows, tshark takes many minutes.
    #[arg(long)]
    only: Vec<String>,
    /// End with one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// A program that reads the recording.
struct RecordingReader {
    name: &'static str,
    program: String,
    /// The Debian package that contains the program.
    package: &'static str,
    /// The program's arguments, where FILE is the recording and FOLDER an empty folder.
    arguments: &'static [&'static str],
}

fn arms() -> Result<Vec<RecordingReader>> {
    let arm = |name, program: &str, package, arguments| RecordingReader {
        name,
        program: program.to_string(),
        package,
        arguments,
    };
    Ok(vec![
        arm("cat", "cat", "coreutils", &["FILE"]),
        arm("weir", &weir::program()?, "weir", &["measure", "--json", "FILE"]),
        arm("tshark conv,ip", "tshark", "tshark", &["-n", "-q", "-z", "conv,ip", "-r", "FILE"]),
        arm("tshark conv,tcp", "tshark", "tshark", &["-n", "-q", "-z", "conv,tcp", "-r", "FILE"]),
        arm("nfpcapd", "nfpcapd", "nfdump", &["-r", "FILE", "-w", "FOLDER"]),
    ])
}

/// A folder that is removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Folder> {
        let path = std::env::temp_dir().join(format!("weir-bench-record-{}", std::process::id()));
        std::fs::create_dir_all(&path).with_context(|| format!("{} cannot be made", path.display()))?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Measures, prints a table, and returns the JSON.
pub fn run(options: &RecordOptions, say: impl Fn(&dyn Display) -> Result<()>) -> Result<Value> {
    let interrupt = Interrupt::on_signals()?;
    let folder = Folder::new()?;
    let file = match &options.file {
        Some(file) => file.clone(),
        None => made(options, &folder.0, &interrupt)?,
    };
    let (packets, bytes) = (count(&file)?, std::fs::metadata(&file)?.len());
    ensure!(packets > 0, "{}: no packet in this recording", file.display());
    let (arms, missing) = present(options, &say)?;
    say(&format_args!(
        "{:.0} MB, {packets} packets, median of {} rounds (least - most)\n{:<16} {:>26} {:>11} {:>9} {:>11} \
         {:>13}",
        bytes as f64 / 1e6,
        options.rounds,
        "program",
        "seconds",
        "processor s",
        "peak MB",
        "M packets/s",
        "speed of cat"
    ))?;
    let mut turns: Vec<Vec<Turn>> = arms.iter().map(|_| Vec::new()).collect();
    for _ in 0..options.rounds {
        for (arm, turns) in arms.iter().zip(&mut turns) {
            turns.push(turn(arm, &file, &folder.0, &interrupt)?);
        }
    }
    let rows: Vec<ProgramCost> =
        arms.iter().zip(&turns).map(|(arm, turns)| ProgramCost::of(arm.name, turns)).collect();
    let cat_s = rows.iter().find(|row| row.name == "cat").map(|row| row.elapsed_s.median);
    for row in &rows {
        say(&row.line(packets, cat_s))?;
    }
    let rows: Vec<Value> = rows.iter().map(|row| row.json(packets, cat_s)).collect();
    let floor = cat_s.map(|cat_s| FLOOR_PACKETS.min(FLOOR_SHARE * packets as f64 / cat_s));
    Ok(json!({
        "record": rows,
        "missing": missing,
        "packets": packets,
        "bytes": bytes,
        "rounds": options.rounds,
        "floor_packets_per_s": floor,
    }))
}

/// Returns the requested arms that can run, and the names of those that cannot.
fn present(
    options: &RecordOptions,
    say: &impl Fn(&dyn Display) -> Result<()>,
) -> Result<(Vec<RecordingReader>, Vec<&'static str>)> {
    let mut all = arms()?;
    let only = Selection::new(&options.only, all.iter().map(|arm| arm.name))?;
    all.retain(|arm| only.has(arm.name));
    let (present, absent): (Vec<RecordingReader>, Vec<RecordingReader>) =
        all.into_iter().partition(|arm| Path::new(&arm.program).is_file() || is_installed(&arm.program));
    for RecordingReader { name, program, package, .. } in &absent {
        say(&format_args!("{name}: skipped, {program} is not installed: apt-get install {package}"))?;
    }
    Ok((present, absent.iter().map(|arm| arm.name).collect()))
}

fn is_installed(program: &str) -> bool {
    namespace::missing(&[program]).is_empty()
}

/// Generates a recording.
fn made(options: &RecordOptions, folder: &Path, interrupt: &Interrupt) -> Result<PathBuf> {
    let file = folder.join("made.pcap");
    let (count, length) = (options.count.to_string(), options.length.to_string());
    let mut command = Command::new(weir::program()?);
    command.args(["bench", "generate", "--count", &count, "--length", &length, "--output"]).arg(&file);
    ended(command.stdout(Stdio::null()).spawn().context("weir bench generate")?, interrupt)?;
    Ok(file)
}

/// Counts the packets, which also brings the file into the page cache.
fn count(file: &Path) -> Result<u64> {
    let named = || file.display().to_string();
    let any = Links { has: |_| true, said: "all" };
    let input = BufReader::with_capacity(BUFFER, File::open(file).with_context(named)?);
    let mut reader = Reader::open_of(input, any).with_context(named)?;
    while reader.lend().with_context(named)?.is_some() {}
    Ok(reader.number())
}

/// The cost of a process.
#[derive(Clone, Copy, Debug)]
struct Turn {
    elapsed_s: f64,
    processor_s: f64,
    peak_bytes: u64,
}

/// Runs a program to its end.
fn turn(arm: &RecordingReader, file: &Path, folder: &Path, interrupt: &Interrupt) -> Result<Turn> {
    let (out, errors) = (folder.join("out"), folder.join("errors"));
    std::fs::create_dir_all(&out)?;
    let mut command = Command::new(&arm.program);
    for argument in arm.arguments {
        match *argument {
            "FILE" => command.arg(file),
            "FOLDER" => command.arg(&out),
            other => command.arg(other),
        };
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&errors)?);
    let start = Instant::now();
    let child = command.spawn().with_context(|| format!("{} cannot be started", arm.name))?;
    let (status, turn) = ended(child, interrupt)?;
    let turn = Turn { elapsed_s: start.elapsed().as_secs_f64(), ..turn };
    if !status.success() {
        let said = std::fs::read_to_string(&errors).unwrap_or_default();
        anyhow::bail!("{} failed: {status}: {}", arm.name, said.trim());
    }
    std::fs::remove_dir_all(&out)?;
    Ok(turn)
}

/// Waits until a process has ended; ends it if interrupted.
fn ended(mut child: Child, interrupt: &Interrupt) -> Result<(ExitStatus, Turn)> {
    let pid = Pid::from_child(&child);
    let handle = pidfd_open(pid, PidfdFlags::empty()).context("a handle to a process")?;
    loop {
        if let Err(interrupted) = interrupt.sleep(Duration::ZERO) {
            // Both fail if the process has already exited.
            let _ = child.kill();
            let _ = child.wait();
            return Err(interrupted.into());
        }
        let look = LOOK.try_into().expect("a tenth of a second");
        match poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&look)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => (),
            Ok(_) => return Ok(reap(pid)?),
            Err(error) => return Err(error).context("waiting for a process"),
        }
    }
}

/// Reaps a process that has ended. Returns its status and its cost, except for the elapsed time.
#[allow(unsafe_code, reason = "rustix has no wait4")]
fn reap(pid: Pid) -> std::io::Result<(ExitStatus, Turn)> {
    let mut status = 0;
    // SAFETY: a `rusage` consists of integers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to our own memory of the type that is written.
    let found = unsafe { libc::wait4(pid.as_raw_nonzero().get(), &raw mut status, 0, &raw mut usage) };
    if found < 0 {
        return Err(std::io::Error::last_os_error());
    }
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    let processor_s = seconds(usage.ru_utime) + seconds(usage.ru_stime);
    // Linux counts KiB.
    let turn = Turn { elapsed_s: 0.0, processor_s, peak_bytes: usage.ru_maxrss as u64 * 1024 };
    Ok((ExitStatus::from_raw(status), turn))
}

/// The cost of a program in all rounds.
struct ProgramCost {
    name: &'static str,
    elapsed_s: ResultSpread,
    processor_s: ResultSpread,
    peak_bytes: u64,
}

impl ProgramCost {
    fn of(name: &'static str, turns: &[Turn]) -> ProgramCost {
        ProgramCost {
            name,
            elapsed_s: ResultSpread::of(turns.iter().map(|turn| turn.elapsed_s).collect()),
            processor_s: ResultSpread::of(turns.iter().map(|turn| turn.processor_s).collect()),
            peak_bytes: turns.iter().map(|turn| turn.peak_bytes).max().unwrap_or(0),
        }
    }

    fn line(&self, packets: u64, cat_s: Option<f64>) -> String {
        let ResultSpread { median, min, max } = self.elapsed_s;
        let share = cat_s.map_or(String::new(), |cat_s| format!("{:.1} %", 100.0 * cat_s / median));
        format!(
            "{:<16} {median:>8.3} ({min:>6.3} - {max:>6.3}) {:>11.3} {:>9.0} {:>11.2} {share:>13}",
            self.name,
            self.processor_s.median,
            self.peak_bytes as f64 / 1e6,
            packets as f64 / median / 1e6
        )
    }

    fn json(&self, packets: u64, cat_s: Option<f64>) -> Value {
        let ResultSpread { median, min, max } = self.elapsed_s;
        json!({
            "name": self.name,
            "elapsed_s": median,
            "elapsed_s_min": min,
            "elapsed_s_max": max,
            "processor_s": self.processor_s.median,
            "processor_s_min": self.processor_s.min,
            "processor_s_max": self.processor_s.max,
            "peak_bytes": self.peak_bytes,
            "packets_per_s": packets as f64 / median,
            "speed_of_cat": cat_s.map(|cat_s| cat_s / median),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_took_is_what_the_kernel_counted() {
        let interrupt = Interrupt::on_signals().expect("signals");
        let busy = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; exit 3";
        let child = Command::new("sh").args(["-c", busy]).spawn().expect("there is a shell");
        let (status, turn) = ended(child, &interrupt).expect("it ends");
        assert_eq!(status.code(), Some(3));
        assert!(turn.processor_s > 0.0 && turn.peak_bytes > 100_000, "{turn:?}");
    }

    #[test]
    fn rows_have_medians_and_the_speed_of_cat() {
        let turn = |elapsed_s| Turn { elapsed_s, processor_s: 2.0 * elapsed_s, peak_bytes: 1_000_000 };
        let row = ProgramCost::of("weir", &[turn(0.5), turn(0.25), turn(9.0)]);
        let json = row.json(1_000_000, Some(0.125));
        assert_eq!((&json["elapsed_s"], &json["elapsed_s_max"]), (&json!(0.5), &json!(9.0)));
        assert_eq!((&json["packets_per_s"], &json["speed_of_cat"]), (&json!(2e6), &json!(0.25)));
        let line = row.line(1_000_000, Some(0.125));
        assert!(line.contains("0.500 ( 0.250 -  9.000)") && line.ends_with("25.0 %"), "{line}");
    }
}
