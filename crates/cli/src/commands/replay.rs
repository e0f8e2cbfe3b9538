//! `weir replay FILE IN.pcap -o OUT.pcap`: runs a program on recordings, without root and without a clock.

use super::bad_input;
use crate::config::Plan;
use crate::replay::{AppReport, Recordings, Replayed, STEPS_MAX, assign, assign_apps, replay};
use crate::{import, output};
use anyhow::Result;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use weir_engine::worker::PipeReport;
use weir_packet::Remark;
use weir_program::Pipe;

const NS_PER_S: u64 = 1_000_000_000;

/// Arguments of `weir replay`.
#[derive(clap::Args)]
pub struct ReplayArguments {
    /// The configuration file.
    file: PathBuf,
    /// What ports receive: `IN.pcap` for the first port, `PORT=IN.pcap` for any.
    input: Vec<PathBuf>,
    /// Where to record what ports transmit: `OUT.pcap` for the last port, `PORT=OUT.pcap` for any.
    #[arg(short, long)]
    output: Vec<PathBuf>,
    /// Where to record frames for the host's stack: `OUT.pcap` for the first port, `PORT=OUT.pcap` for any.
    #[arg(short, long)]
    kernel: Vec<PathBuf>,
    /// Where to record frames forwarded to apps: `APP=OUT.pcap`.
    #[arg(short, long)]
    app: Vec<PathBuf>,
    /// Print a JSON object: `frames`, `balances`, `counters`, `pipes`, `apps`, `error`, `remarks`, `slept_s`.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    node: import::NodeOption,
}

/// Runs the command.
///
/// # Errors
/// Fails if a file cannot be read or written, or if the ledger does not balance.
pub fn run(arguments: &ReplayArguments) -> Result<ExitCode> {
    let loaded = import::load(&arguments.file, &arguments.node, &import::ImportOptions::default())?;
    let Some(plan) = &loaded.plan else {
        output::complain(&loaded.report);
        return Ok(bad_input());
    };
    let recordings = match recordings(plan, arguments) {
        Ok(recordings) => recordings,
        Err(wrong) => {
            output::complain(format_args!("weir: {wrong:#}\n"));
            return Ok(bad_input());
        }
    };
    let replayed = replay(plan, &recordings)?;
    let (ledger, errors) = (&replayed.report.ledger, replayed.errors());
    let counters: Vec<_> = plan
        .program
        .counters
        .iter()
        .zip(&replayed.report.counters)
        .map(|(name, count)| json!({ "name": name, "packets": count.packets, "bytes": count.bytes }))
        .collect();
    if arguments.json {
        let pipe = |(pipe, counts): (&Pipe, &PipeReport)| {
            json!({
                "name": pipe.name, "hits": counts.hits, "misses": counts.misses.packets,
                    "flows": counts.flows,
                "unflowed_full": counts.account.unflowed.full,
            })
        };
        let pipes: Vec<_> = plan.program.pipes.iter().zip(&replayed.report.pipes).map(pipe).collect();
        let remarks: Vec<_> = replayed.remarks.iter().map(remark).collect();
        output::line(json!({
            "frames": weir_daemon::ledger(ledger), "balances": ledger.balances(), "counters": counters,
            "pipes": pipes, "apps": replayed.apps.iter().map(app).collect::<Vec<_>>(),
            "error": errors.first(), "remarks": remarks, "slept_s": replayed.slept_ns / NS_PER_S,
        }))?;
    } else {
        output::print(summary(plan, &replayed))?;
    }
    errors.iter().for_each(|error| output::complain(format_args!("weir: {error}\n")));
    let good = errors.is_empty() && ledger.balances();
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns which files are for which ports and apps.
fn recordings(plan: &Plan, arguments: &ReplayArguments) -> Result<Recordings> {
    let last = plan.ports.len().saturating_sub(1);
    Ok(Recordings {
        input: assign(plan, &arguments.input, "", 0)?,
        output: assign(plan, &arguments.output, "-o ", last)?,
        kernel: assign(plan, &arguments.kernel, "-k ", 0)?,
        apps: assign_apps(plan, &arguments.app)?,
        configuration: arguments.file.clone(),
    })
}

fn remark((port, remark): &(String, Remark)) -> serde_json::Value {
    json!({ "port": port, "text": remark.text, "error": remark.is_error })
}

fn app(app: &AppReport) -> serde_json::Value {
    let AppReport { name, account, counts } = app;
    let mut json = json!({
        "name": name, "punted": account.punted, "injected": account.injected, "refused": account.refused,
    });
    counts.iter().for_each(|(name, count)| json[*name] = json!(count));
    json
}

fn summary(plan: &Plan, replayed: &Replayed) -> String {
    let (report, ledger) = (&replayed.report, &replayed.report.ledger);
    let mut text = format!(
        "{} received, {} transmitted, {} to the kernel, {} to apps, {} dropped\n",
        ledger.received,
        ledger.transmitted,
        ledger.to_kernel,
        ledger.to_app,
        ledger.dropped_sum()
    );
    for (reason, count) in ledger.drops() {
        text += &format!("  dropped {count:>10}  {reason}: {}\n", reason.explanation());
    }
    for (pipe, counts) in plan.program.pipes.iter().zip(&report.pipes) {
        text += &format!(
            "  pipe {:<16} {:>10} hits {:>10} misses\n",
            pipe.name, counts.hits, counts.misses.packets
        );
    }
    for (name, count) in plan.program.counters.iter().zip(&report.counters) {
        text += &format!("  counter {name:<24} {:>10} packets {:>12} bytes\n", count.packets, count.bytes);
    }
    for AppReport { name, account, counts } in &replayed.apps {
        let own =
            counts.iter().filter(|(_, count)| *count > 0).map(|(name, count)| format!(", {count} {name}"));
        let own: String = own.collect();
        text +=
            &format!("  app {name:<17} {:>10} frames, {} injected{own}\n", account.punted, account.injected);
    }
    for (time_ns, said) in &replayed.said {
        text += &format!("  {}.{:09} s  {said}\n", time_ns / 1_000_000_000, time_ns % 1_000_000_000);
    }
    for (port, remark) in replayed.remarks.iter().filter(|(_, remark)| !remark.is_error) {
        text += &format!("  port {port}: {}\n", remark.text);
    }
    let slept_s = replayed.slept_ns / NS_PER_S;
    if slept_s > 0 {
        text += &format!("  apps waited for {slept_s} s without frames: they were woken {STEPS_MAX} times\n");
    }
    if !ledger.balances() {
        text += "THE LEDGER DOES NOT BALANCE: please report this\n";
    }
    text
}
