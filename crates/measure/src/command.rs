//! `weir measure FILE...`: describes the contents of recordings, without root and without a configuration.

use crate::export::{FlowFile, Given, NO_PARQUET};
use crate::files::{self, MeasureOutcome};
use crate::nodes::{AskedNodes, MergedInterval, NODES_MAX};
use crate::settings::hex_seed;
use crate::solution::{NO_SOLUTIONS, SolutionSettings};
use crate::{Encapsulation, Encapsulations, KeyKind, Measured, Seed, Settings, Summary};
use anyhow::{Context, Result};
use clap::{ArgMatches, Args, FromArgMatches};
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weir_app::file_watch;
use weir_app::kind::{BadInput, FindNodes, OwnCommand, Print};
use weir_app::names::{self, AddressNames};
use weir_config::distinct::{Use, distinct};
use weir_config::{infile, outfile};

/// `weir measure`, in a build without the solutions of papers.
pub const COMMAND: OwnCommand = OwnCommand {
    arguments: MeasureArguments::augment_args,
    run: |matches, find, print| run_command(NO_SOLVE, matches, find, print),
};

/// Counts recordings in a solution of a paper, and prints what it answers. Returns errors in the rests of
/// files.
pub type Solve = fn(&SolutionRequest, &mut Print<'_>) -> Result<Vec<String>>;

/// The [`Solve`] of a build that has none.
const NO_SOLVE: Solve = |_, _| Err(BadInput(NO_SOLUTIONS.to_string()).into());

/// Runs `weir measure`, with what counts in solutions of papers.
///
/// # Errors
/// Fails if nothing could be read, or a result could not be written.
pub fn run_command(
    solve: Solve,
    matches: &ArgMatches,
    find: FindNodes,
    print: &mut Print<'_>,
) -> Result<Vec<String>> {
    let mut arguments = MeasureArguments::from_arg_matches(matches)?;
    match &mut arguments.merge {
        Some(Merge::Merge(merge)) => merge.results.read_names()?,
        None => arguments.results.read_names()?,
    }
    run(&arguments, solve, find, print)
}

/// A request to count recordings in a solution of a paper.
#[derive(Debug)]
pub struct SolutionRequest {
    /// The recordings.
    pub files: Vec<PathBuf>,
    /// The solution, and what is in front of it.
    pub settings: SolutionSettings,
    /// The encapsulations to look inside.
    pub inside: Encapsulations,
    /// The length of intervals, in ns.
    pub interval_ns: Option<u64>,
    /// The seed.
    pub seed: Seed,
    /// Whether to print JSON.
    pub json: bool,
    /// Ends the measurement early when it becomes true.
    pub stop: Arc<AtomicBool>,
}

/// Options of `--solution`.
#[derive(clap::Args)]
struct SolutionArguments {
    /// Count in this one of the nine solutions of Agg-Evict's paper instead of in weir's own sketches, and
    /// print what it answers beside the exact truth: count_min, flow_radar, flajolet_martin,
    /// linear_counting, mrac, reversible, space_saving, two_level, univmon.
    #[arg(
        long, value_name = "NAME",
        conflicts_with_all = ["exact", "memory", "parquet", "html", "save", "apache", "names"]
    )]
    solution: Option<String>,
    /// The replacement policy of the aggregator in front of the solution: grr, lru, second_chance,
    /// min_count; or none, without an aggregator.
    #[arg(long, value_name = "POLICY", requires = "solution")]
    aggregator: Option<String>,
    /// KV arrays of the aggregator, of sixteen keys each.
    #[arg(long, value_name = "ARRAYS", requires = "solution")]
    kvs: Option<usize>,
    /// Let the aggregator compare tags one by one, without vector instructions.
    #[arg(long, requires = "solution")]
    no_simd: bool,
    /// Aggregate even where it does not pay, as the paper does.
    #[arg(long, requires = "solution")]
    always_on: bool,
}

/// The seed of all measurements without an explicit one: measuring a recording again gives the same result,
/// and sketches of several nodes can be merged.
const SEED: [u64; 2] = [0x7765_6972, 0x006d_6561_7375_7265];

/// The number of different reasons for missing nodes that are repeated at the end.
const MISSING_MAX: usize = 100;

/// How often a process that waits for the end of an interval checks whether it is to stop.
const WAKE: Duration = Duration::from_millis(100);

/// Rows of lists on an HTML page, which are filtered there.
const PAGE_ROWS: usize = 500;

/// Arguments of `weir measure`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct MeasureArguments {
    #[command(subcommand)]
    merge: Option<Merge>,
    /// Recordings (pcap or pcapng, optionally compressed with gzip or zstd), measured in sequence; `-` is
    /// standard input.
    #[arg(required_unless_present = "from")]
    files: Vec<PathBuf>,
    /// Also report on intervals of this length, such as `5s`, and on changes between them.
    #[arg(long, value_parser = interval)]
    interval: Option<u64>,
    /// Also count flows exactly, and print the true value beside each estimate.
    #[arg(long)]
    exact: bool,
    /// The memory limit for exact counting, in MiB; when it is reached, exact counting ends.
    #[arg(long, default_value = "1024", value_name = "MIB", value_parser = mebibytes)]
    exact_memory: usize,
    /// What a flow is.
    #[arg(long, visible_alias = "key", default_value = "5-tuple", value_parser = flow)]
    flow: KeyKind,
    /// Truncate addresses to prefixes of this many bits: `24` for IPv4, `24,64` also for IPv6.
    #[arg(long, value_parser = prefixes, value_name = "V4[,V6]")]
    prefix: Option<(u8, u8)>,
    /// Count flows that differ only in the tunnel around them as one.
    #[arg(long)]
    across_tunnels: bool,
    /// Read through these headers to the packets behind them, separated by commas: pppoe, mpls, tags (more
    /// than two), 802.1ah, gtp-u, erspan; or all. Without it, they are the reason why a packet is in no flow;
    /// GTP-U and ERSPAN are flows of their tunnel.
    #[arg(long, value_name = "HEADERS", value_delimiter = ',', value_parser = carriers)]
    inside: Vec<Encapsulations>,
    /// Report sources with at least this many destinations; without it, 64.
    #[arg(long, value_name = "DESTINATIONS")]
    spread: Option<u64>,
    /// The memory limit for sketches, in MiB; if it does not suffice, some sketches are left out, and the
    /// result says which.
    #[arg(long, default_value = "64", value_name = "MIB", value_parser = mebibytes)]
    memory: usize,
    /// The seed of sketches, up to 32 hexadecimal digits, or `random`: only sketches with equal seeds can be
    /// merged.
    #[arg(long, value_parser = seed)]
    seed: Option<SeedWords>,
    /// Write the flows (5-tuples) into this file, as Parquet.
    #[arg(long, value_name = "FILE")]
    parquet: Option<PathBuf>,
    #[command(flatten)]
    solution: SolutionArguments,
    #[command(flatten)]
    nodes: NodeArguments,
    #[command(flatten)]
    results: Results,
}

/// Options of `--from`.
#[derive(clap::Args)]
struct NodeArguments {
    /// Merge the last complete interval of these running nodes instead of measuring recordings: URLs such as
    /// https://10.0.0.5:9106 or unix:/run/weir/weir.sock, or @FILE with a URL on each line. Their
    /// measurements must have the same `seed` and `interval`.
    #[arg(
        long, value_name = "URL", value_delimiter = ',', num_args = 1..,
        conflicts_with_all = [
            "files", "interval", "exact", "exact_memory", "flow", "prefix", "across_tunnels", "inside",
            "spread", "memory", "seed", "parquet", "solution",
        ]
    )]
    from: Vec<String>,
    /// The name of the measurement on the nodes; needed if a node has several with a `seed`.
    #[arg(long, value_name = "NAME", conflicts_with = "files", requires = "from")]
    name: Option<String>,
    /// The file with the token of the nodes.
    #[arg(long, value_name = "FILE", conflicts_with = "files", requires = "from")]
    token: Option<PathBuf>,
    /// The file with the certificates (PEM) that sign those of nodes with https.
    #[arg(long, value_name = "FILE", conflicts_with = "files", requires = "from")]
    authorities: Option<PathBuf>,
    /// Print every interval once it has ended, until Ctrl-C; with `--json`, one object per line.
    #[arg(long, conflicts_with = "files", requires = "from")]
    watch: bool,
    /// How long to wait for nodes after the end of an interval.
    #[arg(
        long, value_name = "TIME", conflicts_with = "files", requires = "from", default_value = "750ms",
        value_parser = interval
    )]
    patience: u64,
}

/// A subcommand of `weir measure`.
#[derive(clap::Subcommand)]
enum Merge {
    /// Merge sketch files that `weir measure --save` wrote: the result is that of all their packets together.
    Merge(MergeArguments),
}

/// Arguments of `weir measure merge`.
#[derive(clap::Args)]
struct MergeArguments {
    /// Sketch files.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    results: Results,
}

/// What to do with a result.
#[derive(clap::Args)]
struct Results {
    /// Rows of each list.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(0..=10_000))]
    top: u16,
    /// Print a JSON object: `packets`, `bytes`, `flows`, `top`, `intervals` and more.
    #[arg(long)]
    json: bool,
    /// Write a page with plots and lists, in one file that needs no network.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the sketches, to be merged with others.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Write the sketches that Apache DataSketches supports into this folder, in its formats.
    #[arg(long, value_name = "FOLDER")]
    apache: Option<PathBuf>,
    /// Show the names of addresses from this file (YAML or JSON).
    #[arg(long, value_name = "FILE")]
    names: Option<PathBuf>,
    /// The contents of that file.
    #[arg(skip)]
    table: AddressNames,
}

impl Results {
    /// Returns the number of list rows needed.
    fn rows(&self) -> usize {
        usize::from(self.top).max(if self.html.is_some() { PAGE_ROWS } else { 0 })
    }

    /// Reads the file of names, if there is one.
    fn read_names(&mut self) -> Result<()> {
        if let Some(path) = &self.names {
            let wrong = |why: String| BadInput(format!("{}: {why}", path.display()));
            let text = file_watch::read(path).map_err(wrong)?;
            let table = names::read_file(&path.display().to_string(), text).map_err(BadInput)?;
            self.table = AddressNames::of_file(table);
        }
        Ok(())
    }

    /// Prints and writes a result. It is printed first, so that a full disk does not lose it.
    fn print(
        &self,
        (mut measured, mut summary): (Measured, Summary),
        (title, beside): (&str, Value),
        print: &mut Print<'_>,
    ) -> Result<()> {
        if !self.table.is_empty() {
            for report in measured.intervals.iter_mut().chain([&mut measured.all]) {
                report.find_names(|address| Some(self.table.find(address)?.answer()));
            }
        }
        let page = self.html.as_ref().map(|path| (path, measured.page(title)));
        measured.truncate(usize::from(self.top));
        if self.json {
            let mut object = serde_json::to_value(&measured)?;
            for (key, value) in beside.as_object().into_iter().flatten() {
                object[key] = value.clone();
            }
            print(&format!("{object}\n"))?;
        } else {
            print(&measured.text(usize::from(self.top)))?;
        }
        if let Some((path, page)) = page {
            outfile::write(path, page?.as_bytes())?;
        }
        if let Some(path) = &self.save {
            let mut bytes = Vec::new();
            summary.write(&mut bytes)?;
            outfile::write(path, &bytes)?;
        }
        if let Some(folder) = &self.apache {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("{} cannot be made", folder.display()))?;
            for (name, bytes) in summary.apache() {
                outfile::write(&folder.join(name), &bytes)?;
            }
        }
        Ok(())
    }
}

/// A seed as an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SeedWords([u64; 2]);

fn interval(text: &str) -> Result<u64, String> {
    let ns = weir_config::value::duration(text).filter(|ns| *ns > 0);
    ns.ok_or_else(|| "expected a whole number followed by ns, us, ms, s, m or h, such as 5s".to_string())
}

/// Parses mebibytes; returns bytes.
fn mebibytes(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count: &usize| (1..=1 << 20).contains(count));
    count.map(|count| count << 20).ok_or_else(|| "expected 1 to 1048576 MiB".to_string())
}

fn flow(text: &str) -> Result<KeyKind, String> {
    let words = || KeyKind::ALL.map(KeyKind::word).join(", ");
    let found = KeyKind::ALL.into_iter().find(|kind| kind.word() == text);
    found.ok_or_else(|| format!("expected one of {}", words()))
}

fn carriers(text: &str) -> Result<Encapsulations, String> {
    let all = || {
        Encapsulation::ALL
            .into_iter()
            .map(|carrier| (carrier.word(), Encapsulations::default().with(carrier)))
    };
    if text == "all" {
        return Ok(all().fold(Encapsulations::default(), |carriers, (_, one)| carriers.and(one)));
    }
    let found = all().find(|(word, _)| *word == text).map(|(_, carrier)| carrier);
    found.ok_or_else(|| {
        let words: Vec<&str> = all().map(|(word, _)| word).collect();
        format!("expected all, or some of {}", words.join(", "))
    })
}

fn prefixes(text: &str) -> Result<(u8, u8), String> {
    let (v4, v6) = text.split_once(',').unwrap_or((text, "128"));
    let bits = |text: &str, most: u8| text.parse().ok().filter(|bits| *bits <= most);
    let both = bits(v4, 32).zip(bits(v6, 128));
    both.ok_or_else(|| {
        "expected prefix lengths for IPv4 (0 to 32) and optionally IPv6 (0 to 128), such as 24,64".to_string()
    })
}

fn seed(text: &str) -> Result<SeedWords, String> {
    if text == "random" {
        return Ok(SeedWords(Seed::random().words()));
    }
    let seed = hex_seed(text).ok_or("expected `random` or up to 32 hexadecimal digits")?;
    Ok(SeedWords(seed.words()))
}

impl MeasureArguments {
    fn settings(&self) -> Settings {
        Settings {
            flow: self.flow,
            prefixes: self.prefix.unwrap_or((32, 128)),
            tunnels_apart: !self.across_tunnels,
            inside: self.inside.iter().fold(Encapsulations::default(), |all, one| all.and(*one)),
            top: self.results.rows(),
            interval_top: usize::from(self.results.top),
            memory: self.memory,
            spread_least: self.spread.unwrap_or(Settings::default().spread_least),
            exact_memory: if self.exact { self.exact_memory } else { 0 },
            ..Settings::default()
        }
    }

    /// Returns what is asked of a solution of a paper, if that is asked.
    fn request(&self, seed: Seed, stop: &Arc<AtomicBool>) -> Option<SolutionRequest> {
        let SolutionArguments { solution, aggregator, kvs, no_simd, always_on } = &self.solution;
        let settings = SolutionSettings {
            solution: solution.clone()?,
            aggregator: aggregator.clone(),
            kvs: *kvs,
            simd: !no_simd,
            always_on: *always_on,
            key: self.settings().projection(self.flow),
            spread: self.spread,
            top: usize::from(self.results.top),
            exact_memory: self.exact_memory,
        };
        Some(SolutionRequest {
            files: self.files.clone(),
            settings,
            inside: self.settings().inside,
            interval_ns: self.interval,
            seed,
            json: self.results.json,
            stop: stop.clone(),
        })
    }
}

/// Runs the command. Returns errors in the rests of files.
fn run(
    arguments: &MeasureArguments,
    solve: Solve,
    find: FindNodes,
    print: &mut Print<'_>,
) -> Result<Vec<String>> {
    if let Some(Merge::Merge(merge)) = &arguments.merge {
        return run_merge(merge, print);
    }
    let written =
        [&arguments.results.html, &arguments.results.save, &arguments.parquet].into_iter().flatten();
    let written: Vec<Use> = written.map(|path| Use::new("the result".to_string(), path)).collect();
    let names = arguments.results.names.iter().map(|path| Use::new("the file of names".to_string(), path));
    let read = arguments.files.iter().map(|path| Use::new("a recording".to_string(), path)).chain(names);
    distinct(&read.collect::<Vec<_>>(), &written).map_err(|error| BadInput(format!("{error:#}")))?;
    let stop = stopped_by_signals()?;
    if !arguments.nodes.from.is_empty() {
        return run_from(&arguments.nodes, (&arguments.results, &stop), find, print);
    }
    let seed = Seed::new(arguments.seed.map_or(SEED, |seed| seed.0));
    if let Some(request) = arguments.request(seed, &stop) {
        return solve(&request, print);
    }
    let mut flows = arguments.parquet.as_deref().map(WrittenFlows::create).transpose()?;
    let names = &arguments.results.table;
    let named = |given: Given| Given { names: names.of_flow(&given.record.key), ..given };
    let mut give = flows.as_mut().map(|flows| |given| flows.give(named(given)));
    let give = give.as_mut().map(|give| -> &mut dyn FnMut(Given) { give });
    let settings = arguments.settings();
    let outcome = files::measure(&arguments.files, &settings, seed, arguments.interval, &stop, give)
        .map_err(|error| BadInput(format!("{error:#}")))?;
    let MeasureOutcome { measured, summary, files, is_interrupted } = outcome;
    let names: Vec<String> = files.iter().map(|file| file.file.clone()).collect();
    let beside = json!({ "files": files, "interrupted": is_interrupted });
    let results = &arguments.results;
    results.print((measured, summary), (&names.join(", "), beside), print)?;
    flows.map(WrittenFlows::finish).transpose()?;
    Ok(files.iter().filter(|file| file.error.is_some()).map(files::said).collect())
}

/// Returns a flag that SIGINT and SIGTERM set.
fn stopped_by_signals() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The first ends the measurement, the second kills the program.
        flag::register_conditional_default(signal, stop.clone()).context("signals")?;
        flag::register(signal, stop.clone()).context("signals")?;
    }
    Ok(stop)
}

/// Runs `weir measure --from`. Returns which nodes are missing.
fn run_from(
    arguments: &NodeArguments,
    (results, stop): (&Results, &AtomicBool),
    find: FindNodes,
    print: &mut Print<'_>,
) -> Result<Vec<String>> {
    let nodes = find(&arguments.from, arguments.token.as_deref(), arguments.authorities.as_deref())?;
    if nodes.is_empty() || nodes.len() > NODES_MAX {
        return Err(BadInput(format!("--from takes 1 to {NODES_MAX} nodes")).into());
    }
    let patience = Duration::from_nanos(arguments.patience);
    let nodes = AskedNodes::new(nodes, arguments.name.clone(), patience);
    let sentences = |missing: Vec<(String, String)>| -> Vec<String> {
        missing.into_iter().map(|(url, why)| format!("{url}: it {why}")).collect()
    };
    let mut agreed = match nodes.agree(stop) {
        Ok(agreed) => agreed,
        Err(missing) => {
            if results.json {
                let row = |(url, why): &(String, String)| {
                    let why = format!("it {why}");
                    json!({ "node": url, "merged": false, "why": why })
                };
                print(&format!("{}\n", json!({ "nodes": missing.iter().map(row).collect::<Vec<_>>() })))?;
            }
            return Ok(sentences(missing));
        }
    };
    let mut before: Option<MergedInterval> = None;
    let mut missing = Vec::new();
    loop {
        let mut merged = nodes.merge(agreed, stop);
        if before.is_none() {
            before = nodes.before(&merged, stop);
        }
        let before_it = before.as_ref().filter(|one| one.is_before(&merged) && one.is_of_same(&merged));
        print_merged(&mut merged, before_it, &nodes, results, print)?;
        for why in sentences(merged.missing()) {
            if !missing.contains(&why) && missing.len() < MISSING_MAX {
                missing.push(why);
            }
        }
        if !arguments.watch {
            return Ok(missing);
        }
        before = Some(merged);
        agreed = agreed.next();
        while !stop.load(Ordering::Relaxed) && agreed.since_end_ns() < 0 {
            std::thread::sleep(Duration::from_nanos(agreed.since_end_ns().unsigned_abs()).min(WAKE));
        }
        if stop.load(Ordering::Relaxed) {
            return Ok(missing);
        }
        if agreed.since_end_ns() > 2 * patience.as_nanos() as i64 {
            // Catches up: this process was suspended, or printing takes longer than an interval.
            agreed = nodes.agree(stop).unwrap_or(agreed);
        }
    }
}

/// Prints an interval of several nodes, after a line for each.
fn print_merged(
    merged: &mut MergedInterval,
    before: Option<&MergedInterval>,
    nodes: &AskedNodes,
    results: &Results,
    print: &mut Print<'_>,
) -> Result<()> {
    let report = merged.report(before, results.rows());
    if !results.json {
        print(&merged.head())?;
    }
    let beside = merged.beside();
    let Some(summary) = merged.summary.clone() else {
        return if results.json { print(&format!("{beside}\n")) } else { Ok(()) };
    };
    let measured = Measured { all: report, ..Measured::default() };
    results.print((measured, summary), (&nodes.urls().join(", "), beside), print)
}

/// The file of flows, until writing to it fails.
struct WrittenFlows {
    path: PathBuf,
    file: Result<FlowFile>,
}

impl WrittenFlows {
    fn create(path: &Path) -> Result<WrittenFlows> {
        if let Some(why) = NO_PARQUET {
            return Err(BadInput(why.to_string()).into());
        }
        let file = FlowFile::create(path, usize::MAX);
        let named = || format!("{} cannot be written", path.display());
        Ok(WrittenFlows { path: path.to_path_buf(), file: Ok(file.with_context(named)?) })
    }

    fn give(&mut self, given: Given) {
        if let Ok(file) = &mut self.file
            && let Err(error) = file.add(given)
        {
            self.file = Err(error);
        }
    }

    fn finish(self) -> Result<()> {
        let finished = self.file.and_then(FlowFile::finish);
        finished.with_context(|| format!("{} cannot be written", self.path.display()))
    }
}

/// Runs `weir measure merge`.
fn run_merge(arguments: &MergeArguments, print: &mut Print<'_>) -> Result<Vec<String>> {
    let read = |path: &PathBuf| -> Result<Summary> {
        let named = || path.display().to_string();
        Summary::read(&infile::read(path).with_context(named)?[..]).with_context(named)
    };
    let merged = || -> Result<Summary> {
        let (first, others) = arguments.files.split_first().context("no sketch file was given")?;
        let mut whole = read(first)?;
        for path in others {
            let other = read(path)?;
            let both = || format!("{} and {} cannot be merged", first.display(), path.display());
            whole.merge(other).with_context(both)?;
        }
        Ok(whole)
    };
    let mut summary = merged().map_err(|error| BadInput(format!("{error:#}")))?;
    summary.set_top(arguments.results.rows());
    let measured = Measured { all: summary.report(), ..Measured::default() };
    let names: Vec<String> = arguments.files.iter().map(|path| path.display().to_string()).collect();
    let beside = json!({ "files": names });
    arguments.results.print((measured, summary), (&names.join(", "), beside), print)?;
    Ok(Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_or_said_to_be_wrong() {
        assert_eq!((interval("5s"), interval("250ms")), (Ok(5_000_000_000), Ok(250_000_000)));
        assert!(interval("0s").is_err() && interval("5").is_err() && interval("never").is_err());
        assert_eq!((prefixes("24"), prefixes("8,64")), (Ok((24, 128)), Ok((8, 64))));
        assert!(["33", "24,129", "", "24,64,1", "-1"].iter().all(|text| prefixes(text).is_err()));
        assert_eq!(mebibytes("64"), Ok(64 << 20));
        assert!(mebibytes("0").is_err() && mebibytes("-1").is_err());
        assert_eq!(flow("pair"), Ok(KeyKind::Pair));
        assert!(flow("6-tuple").unwrap_err().contains("5-tuple"));
        assert!(carriers("all").is_ok_and(|all| Encapsulation::ALL.into_iter().all(|one| all.has(one))));
        assert!(carriers("gtp-u").is_ok() && carriers("gtp").unwrap_err().contains("pppoe, mpls, tags"));
        assert_eq!(seed("1f"), Ok(SeedWords([0, 0x1f])));
        assert!(seed("xyz").is_err() && seed("random").is_ok());
    }
}
