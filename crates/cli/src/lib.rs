//! `weir`, a packet data plane for a host, configured by one YAML file. Each subcommand is a file under
//! `commands/`.
//!
//! The crate is a library so that tests and fuzzers can call what the binary calls: the configuration,
//! replay, explain.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod commands;
pub mod config;
mod doctor;
pub mod import;
pub mod kinds;
mod output;
pub mod replay;
mod top;
mod ways;

pub use weir_daemon::{explain, fuzzed};

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use std::process::ExitCode;

/// What `--version` prints besides the name; `-V` prints only the number.
const VERSION: &str =
    concat!(env!("CARGO_PKG_VERSION"), " (", env!("WEIR_COMMIT"), ")\nfeatures: ", env!("WEIR_FEATURES"));

/// The packet data plane of a host, from one YAML file.
#[derive(Parser)]
#[command(name = "weir", version, long_version = VERSION, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Report everything that is wrong with a configuration.
    Check(commands::check::CheckArguments),
    /// Compile a configuration for another switch: flows and groups of Open vSwitch.
    Compile(commands::compile::CompileArguments),
    /// Test a configuration: generate packets for every path, and run them in every executor.
    Test(commands::test::TestArguments),
    /// Report which share of flows another configuration would move.
    Plan(commands::plan::PlanArguments),
    /// Print the JSON Schema of configurations, for editors.
    Schema,
    /// Convert another system's configuration to weir's.
    #[command(subcommand)]
    Import(commands::import::ImportSource),
    /// Print the ring for a file of back ends: slot and back end.
    Ring(commands::ring::RingArguments),
    /// Run a configuration: the daemon, in the foreground.
    Run(commands::run::RunArguments),
    /// Show counters and state of the running daemon.
    Show(commands::show::Show),
    /// Watch the running daemon in a terminal.
    Top(commands::top::TopArguments),
    /// Print the address of the running daemon's web page.
    Ui(commands::ui::UiArguments),
    /// Make the running daemon reload its configuration.
    Reload(commands::show::Plain),
    /// Replace the running daemon with this executable without losing a packet. If it already runs this one,
    /// reload its configuration.
    Upgrade(commands::show::Plain),
    /// Withdraw the routes to this node's services, and wait until their packets go to other nodes.
    Drain(commands::drain::DrainArguments),
    /// Announce the services of a drained node again.
    Undrain(commands::show::Plain),
    /// Add, update, remove, load or list entries of the running program.
    #[command(subcommand)]
    Entry(commands::entry::EntryCommand),
    /// Change the weight of a target of a group.
    Weight(commands::show::Weight),
    /// Send a request to a running app.
    App(commands::show::App),
    /// Transmit frames through a port of the running daemon, or through its program.
    Inject(commands::inject::InjectArguments),
    /// Stop the running daemon.
    Stop(commands::show::Plain),
    /// Explain what happens to a packet, and why.
    Explain(commands::explain::ExplainArguments),
    /// Run a program over recordings, on a virtual clock.
    Replay(commands::replay::ReplayArguments),
    /// List interfaces, what they support, and obstacles to using them.
    Ports(commands::ports::PortsArguments),
    /// Check whether this host and the fabric meet weir's needs.
    Doctor(commands::doctor::DoctorArguments),
    /// Decapsulate tunnels on a back end, for as long as it runs.
    Decap(commands::decap::DecapArguments),
    /// Print a script that completes weir's arguments in a shell.
    Completions(commands::generate::Completions),
    /// Write manual pages: one for weir, and one for each subcommand.
    Man(commands::generate::Man),
    /// Write the reference of all commands, keys of the configuration and paths of the HTTP API, as Markdown.
    Reference(commands::reference::Reference),
    /// Measure this machine.
    #[cfg(feature = "bench")]
    #[command(subcommand)]
    Bench(weir_bench::Bench),
    /// Simulate fabrics.
    #[cfg(feature = "sim")]
    #[command(subcommand)]
    Sim(weir_sim::Sim),
    /// Run weir in network namespaces, with real programs around it.
    #[cfg(feature = "lab")]
    #[command(subcommand)]
    Lab(weir_lab::Lab),
}

/// Parses the arguments, runs the subcommand and returns its exit code.
#[must_use]
pub fn main() -> ExitCode {
    output::end(perform(&command().get_matches()))
}

/// Returns the description of the command line.
fn command() -> clap::Command {
    Arguments::command().subcommands(commands::apps::commands())
}

/// Runs the subcommand: one of ours, or one that a kind of app provides.
fn perform(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    if let Some(done) = matches.subcommand().and_then(|(key, matches)| commands::apps::run(key, matches)) {
        return done;
    }
    match Arguments::from_arg_matches(matches)?.command {
        Command::Check(arguments) => commands::check::run(&arguments),
        Command::Compile(arguments) => commands::compile::run(&arguments),
        Command::Test(arguments) => commands::test::run(&arguments),
        Command::Plan(arguments) => commands::plan::run(&arguments),
        Command::Schema => commands::schema::run(),
        Command::Ring(arguments) => commands::ring::run(&arguments),
        Command::Import(source) => commands::import::run(&source),
        Command::Run(arguments) => commands::run::run(&arguments),
        Command::Show(arguments) => commands::show::show(&arguments),
        Command::Top(arguments) => commands::top::run(&arguments),
        Command::Ui(arguments) => commands::ui::run(&arguments),
        Command::Reload(arguments) => commands::show::reload(&arguments),
        Command::Upgrade(arguments) => commands::upgrade::run(&arguments),
        Command::Drain(arguments) => commands::drain::drain(&arguments),
        Command::Undrain(arguments) => commands::drain::undrain(&arguments),
        Command::Entry(arguments) => commands::entry::run(&arguments),
        Command::Weight(arguments) => commands::show::weight(&arguments),
        Command::App(arguments) => commands::show::app(&arguments),
        Command::Inject(arguments) => commands::inject::run(&arguments),
        Command::Stop(arguments) => commands::show::stop(&arguments),
        Command::Explain(arguments) => commands::explain::run(&arguments),
        Command::Replay(arguments) => commands::replay::run(&arguments),
        Command::Ports(arguments) => commands::ports::run(&arguments),
        Command::Doctor(arguments) => commands::doctor::run(&arguments),
        Command::Decap(arguments) => commands::decap::run(&arguments),
        Command::Completions(arguments) => commands::generate::completions(&arguments, command()),
        Command::Man(arguments) => commands::generate::man(&arguments, command()),
        Command::Reference(arguments) => commands::reference::run(&arguments, command()),
        #[cfg(feature = "bench")]
        Command::Bench(bench) => weir_bench::run(&bench),
        #[cfg(feature = "sim")]
        Command::Sim(sim) => weir_sim::run(&sim, &mut |text| output::line(text)).map(|()| ExitCode::SUCCESS),
        #[cfg(feature = "lab")]
        Command::Lab(lab) => weir_lab::perform(&lab),
    }
}
