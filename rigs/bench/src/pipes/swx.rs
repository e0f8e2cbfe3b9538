//! DPDK's example `pipeline` with a program: a process whose thread never sleeps, so it is suspended between
//! its turns.

use super::programs::{Program, SwxSource};
use crate::peers::{Setting, Turn};
use anyhow::{Context, Result, bail};
use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use weir_bed::{Run, Started};
use weir_lab::Interrupt;
use weir_lab::premise::carried;

/// MiB of huge pages.
pub const MEBIBYTES: u32 = 1280;

/// How long SWX may take to compile its program and to start.
const START: Duration = Duration::from_secs(90);

/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(5);

/// A running example.
pub struct Swx {
    process: Started,
    port: u16,
    /// The kernel's accounting file of the forwarding thread.
    account: PathBuf,
}

impl Swx {
    pub fn start(
        run: &mut Run,
        binary: &Path,
        program: &Program,
        flows: u32,
        setting: &Setting,
        devices: &[String; 2],
        interrupt: &Interrupt,
    ) -> Result<Swx> {
        // .../examples/pipeline/build/pipeline
        let example = binary.ancestors().nth(2).context("the example's folder")?;
        let root = example.ancestors().nth(2).context("DPDK's folder")?;
        let source = (program.swx)(flows, example).context("the example's programs")?;
        let script = write(run.folder(), &source, flows)?;
        let port = 9000 + (std::process::id() % 900) as u16;
        let path =
            format!("{}:{}", compiler(run.folder())?.display(), std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new(binary);
        command.args(["--in-memory", "--no-pci", "--no-telemetry", "-m", &MEBIBYTES.to_string()]);
        command.arg(format!("--lcores=0@{},1@{}", setting.other, setting.core));
        devices.iter().for_each(|device| _ = command.arg(format!("--vdev={device}")));
        command.arg("--").arg("-s").arg(script).args(["-p", &port.to_string(), "-h", "127.0.0.1"]);
        command.env("RTE_INSTALL_DIR", root).env("PATH", path).current_dir(root);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let process = run.start("swx", &mut command)?;
        let mut swx = Swx { process, port, account: PathBuf::new() };
        let forwards = || Ok(swx.sent().is_ok_and(|sent| sent > 0));
        if !interrupt.wait(START, forwards)? {
            bail!("SWX does not forward {}: {}", program.name, run.last_words("swx"));
        }
        swx.account = lcore(run.child(process).id()).context("SWX has no forwarding thread")?;
        run.hold(process);
        Ok(swx)
    }

    /// Lets SWX forward for `time`.
    pub fn turn(&mut self, run: &mut Run, time: Duration, interrupt: &Interrupt) -> Result<Turn> {
        run.go_on(self.process);
        let before = (self.sent()?, self.busy()?);
        interrupt.sleep(time)?;
        let after = (self.sent()?, self.busy()?);
        run.hold(self.process);
        carried("SWX", (after.0 - before.0) as f64)?;
        Ok(Turn { frames: after.0 - before.0, busy: after.1 - before.1 })
    }

    /// Returns the number of frames that SWX has sent.
    fn sent(&self) -> Result<u64> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(ANSWER))?;
        read_until(&mut stream, "> ")?;
        stream.write_all(b"ethdev show net_null0\n")?;
        // A prompt follows the answer only after the next command.
        let answer = read_until(&mut stream, "TX errors")?;
        let (_, rest) = answer.split_once("TX packets").context("no count of frames sent")?;
        let digits = rest.trim_start_matches([':', ' ']).split_whitespace().next();
        digits.and_then(|digits| digits.parse().ok()).context("a number of frames")
    }

    fn busy(&self) -> Result<Duration> {
        let text = std::fs::read_to_string(&self.account).context("SWX has ended")?;
        let first = text.split_whitespace().next().and_then(|number| number.parse().ok());
        Ok(Duration::from_nanos(first.context("schedstat")?))
    }
}

/// Writes the example's input files. Returns its script.
fn write(folder: &Path, source: &SwxSource, flows: u32) -> Result<PathBuf> {
    let file = |name: &str, text: &str| -> Result<String> {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
        Ok(path.display().to_string())
    };
    let lines = |lines: &[String]| lines.join("\n") + "\n";
    let program = file("program.spec", &source.text)?;
    let devices = "port in 0 ethdev net_pcap0 rxq 0 bsz 32\nport out 0 ethdev net_null0 txq 0 bsz 32\n";
    let devices = file("devices", devices)?;
    let (code, library) = (folder.join("program.c"), folder.join("program.so"));
    let (code, library) = (code.display(), library.display());
    let mut script = format!(
        "pipeline codegen {program} {code}\npipeline libbuild {code} {library}\n\
         mempool MEMPOOL0 buffer 2304 pool {} cache 256 cpu 0\n\
         ethdev net_pcap0 rxq 1 128 MEMPOOL0 txq 1 512 promiscuous on\n\
         ethdev net_null0 rxq 1 128 MEMPOOL0 txq 1 512 promiscuous on\n\
         pipeline PIPELINE0 build lib {library} io {devices} numa 0\n",
        (2 * flows).max(32_768)
    );
    if !source.members.is_empty() {
        let (name, members) = (source.selector, file("members", &lines(&source.members))?);
        let _ = write!(
            script,
            "pipeline PIPELINE0 selector {name} group add\n\
             pipeline PIPELINE0 selector {name} group member add {members}\n"
        );
    }
    if !source.entries.is_empty() {
        let entries = file("entries", &lines(&source.entries))?;
        let _ = writeln!(script, "pipeline PIPELINE0 table {} add {entries}", source.table);
    }
    script += "pipeline PIPELINE0 commit\nthread 1 pipeline PIPELINE0 enable\n";
    file("script", &script).map(PathBuf::from)
}

/// Creates a folder with a `gcc` that compiles for this processor, as weir's own code does where it matters:
/// the example calls gcc without such an option.
fn compiler(folder: &Path) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let gcc = std::env::split_paths(&path).map(|folder| folder.join("gcc")).find(|gcc| gcc.is_file());
    let gcc = gcc.context("SWX needs gcc, which is not installed")?;
    let own = folder.join("compiler");
    std::fs::create_dir_all(&own)?;
    let script = own.join("gcc");
    std::fs::write(&script, format!("#!/bin/sh\nexec {} -march=native \"$@\"\n", gcc.display()))?;
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))?;
    Ok(own)
}

fn read_until(stream: &mut TcpStream, end: &str) -> Result<String> {
    let (mut answer, mut part, deadline) = (Vec::new(), [0; 4096], Instant::now() + ANSWER);
    while !answer.windows(end.len()).any(|part| part == end.as_bytes()) {
        let count = stream.read(&mut part)?;
        if count == 0 || Instant::now() > deadline {
            bail!("SWX does not answer");
        }
        answer.extend_from_slice(&part[..count]);
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Returns the accounting file of the thread on lcore 1.
fn lcore(process: u32) -> Option<PathBuf> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let carries = |path: &PathBuf| {
        std::fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim().ends_with("worker-1"))
    };
    threads.flatten().map(|thread| thread.path()).find(carries).map(|path| path.join("schedstat"))
}
