//! Kinds of apps. A kind is identified by its key under `apps:`. It defines how its section is read and
//! written as pipes, which frames it takes from the kernel, which [`App`] runs, and the output of `weir show`
//! and `weir KEY`. The command line, the daemon and replay iterate over a list of kinds and know none of them
//! by name.

use crate::App;
use crate::agent::Agent;
use crate::bits::BitAssignment;
use crate::edits::ReadEdits;
use crate::foreign::Foreign;
use crate::http::HttpControl;
use crate::neighbour::{Hop, Mac};
use crate::page::Page;
use crate::rings::{BackEndStanding, Balanced};
use serde_json::{Map, Value, json};
use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use weir_config::attachment::{Attachment, Attachments};
use weir_config::ports::PortConfig;
use weir_config::raw::{Kind as Shape, Node};
use weir_config::schema::Schema;
use weir_config::section::{Section, list, name, named, pairs, position, text};
use weir_config::{Frames, Key, Report, TakeRule};
use weir_program::builder::ProgramBuilder;
use weir_program::census::Flows;
use weir_program::snapshot::Count;
use weir_program::{PortId, Program};

/// A kind of app.
pub struct Kind {
    /// Its key under `apps`.
    pub key: &'static str,
    /// Its description, in one line that editors show.
    pub help: &'static str,
    /// The keys of its section.
    pub keys: &'static [Key],
    /// Pipes with fixed names that the apps write, and a description of each; no app may have these names.
    pub pipes: &'static [(&'static str, &'static str)],
    /// Reads all sections of the kind and writes them into the program. Errors are added to the report.
    pub read: fn(&[&Node], &mut Scope<'_>) -> Arc<dyn Configured>,
    /// Set if one app runs for all sections: its name, and what NAME means in `weir KEY VERB NAME`, where it
    /// becomes the first argument of the request. Otherwise NAME is the name of the app.
    pub one: Option<(&'static str, &'static str)>,
    /// Names of its tables in the daemon's answer to `weir show`: see [`Configured::table`].
    pub tables: &'static [&'static str],
    /// The views of `weir show KEY` for each app; the first has no word.
    pub views: &'static [View],
    /// The pages of the kind in `weir top`, shown if such an app is configured.
    pub pages: &'static [Page],
    /// Creates the agent of this kind, if it has one. It does not work before [`Agent::follow`].
    pub agent: Option<fn() -> Box<dyn Agent>>,
    /// The subcommands of `weir KEY` that need no daemon.
    pub tools: &'static [Tool],
    /// What `weir KEY` does, for a kind whose command has arguments of its own; such a kind has no verbs and
    /// no tools.
    pub command: Option<&'static OwnCommand>,
    /// Description of `weir KEY`, in one line of the help.
    pub about: &'static str,
    /// The subcommands of `weir KEY`.
    pub verbs: &'static [Verb],
    /// How the apps of the kind are controlled or read over HTTP, if they are. No two kinds have the same
    /// paths, and only one has requests other than GET.
    pub http: Option<&'static HttpControl>,
    /// Systems whose configurations the kind converts.
    pub foreign: &'static [Foreign],
    /// Reads edits of the kind's sections, if its apps request any ([`crate::edits`]). Only one kind has
    /// edits.
    pub edits: Option<ReadEdits>,
}

/// The apps of one kind in a configuration.
pub trait Configured: Any + Debug + Send + Sync {
    /// Returns the rules with which the apps' ports take frames from the kernel.
    fn take(&self) -> Vec<TakeRule> {
        Vec::new()
    }

    /// Returns the apps that act while the program runs.
    fn running(&self) -> Vec<Box<dyn App>> {
        Vec::new()
    }

    /// Returns whether changes made at run time survive a restart.
    fn persists(&self) -> bool {
        false
    }

    /// Checks whether a list of requests ([`crate::Action::Configure`]) can be carried out with this as the
    /// configuration of `program`.
    ///
    /// # Errors
    /// The error names the request that cannot be carried out, and the reason.
    fn refuses(&self, orders: &Value, program: &Program) -> Result<(), String> {
        let _ = (orders, program);
        Ok(())
    }

    /// Returns what differs from the same kind of apps in another configuration, as the answer to a request
    /// that has changed it; null if there is no such answer.
    fn differences(&self, old: &Apps) -> Value {
        let _ = old;
        Value::Null
    }

    /// Returns the names of flow tables that the apps keep outside of pipes and that can be measured
    /// ([`flow_table`]).
    fn flow_tables(&self) -> Vec<String> {
        Vec::new()
    }

    /// Checks references to apps of other kinds, once all apps are read.
    fn refer(&self, apps: &Apps, report: &mut Report) {
        let _ = (apps, report);
    }

    /// Returns, by group name, the factors other than 1 with which the weights of groups are multiplied so
    /// that weights can rise in steps. For display, weights are divided by these factors.
    fn scales(&self) -> HashMap<String, u32> {
        HashMap::new()
    }

    /// Returns the apps' assignments by bits of the source address.
    fn bit_assignments(&self) -> Vec<BitAssignment> {
        Vec::new()
    }

    /// Returns the services that the apps balance.
    fn balanced(&self) -> Vec<Balanced> {
        Vec::new()
    }

    /// Returns the current state of the back ends of a service that the apps balance.
    fn standings(&self, service: &str) -> Vec<BackEndStanding> {
        let _ = service;
        Vec::new()
    }

    /// Returns a number that changes whenever a weight in [`Configured::standings`] does.
    fn weights_version(&self) -> u64 {
        0
    }

    /// Returns all addresses for which the apps answer ARP and neighbour discovery.
    fn answers_for(&self) -> Vec<IpAddr> {
        Vec::new()
    }

    /// Returns whether the apps may ever request checks along a service's own path ([`crate::check::Via`]).
    fn checks_ways(&self) -> bool {
        false
    }

    /// Returns whether any checks currently take a service's own path.
    fn has_ways(&self) -> bool {
        false
    }

    /// Returns the neighbours that the apps need.
    fn hops(&self) -> Vec<Hop> {
        Vec::new()
    }

    /// Returns the neighbours known to the running apps.
    fn known(&self) -> HashMap<Hop, Mac> {
        HashMap::new()
    }

    /// Writes known neighbours into the program before it starts. Every driver must call this.
    fn settle(&self, known: &HashMap<Hop, Mac>, program: &mut Program) {
        let _ = (known, program);
    }

    /// Writes the parts of the program that depend on the roots of ports, once all roots are known.
    fn enclose(&self, program: &mut ProgramBuilder, report: &mut Report) {
        let _ = (program, report);
    }

    /// Returns the rows of the table with this name, one of [`Kind::tables`].
    fn table(&self, name: &str, counts: &Counts<'_>) -> Value {
        let _ = (name, counts);
        Value::Array(Vec::new())
    }
}

/// The counts that tables look up by name.
pub struct Counts<'a> {
    /// Returns the count of a shared counter; zeros if there is none of this name.
    pub counter: &'a dyn Fn(&str) -> Count,
    /// The flows of a group's target in pipes that pin flows, if they are counted.
    pub flows: &'a dyn Fn(&str, &str) -> Option<Flows>,
    /// The number of packets of new flows that a group has refused, if they are counted.
    pub refused: &'a dyn Fn(&str) -> Option<u64>,
    /// Converts a time of the apps' clock to seconds since 1970.
    pub date_s: &'a dyn Fn(u64) -> u64,
}

impl Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.key)
    }
}

/// A view of a running app: `weir show KEY [WORD] [NAME]`.
pub struct View {
    /// The word that selects the view; empty for the default view.
    pub word: &'static str,
    /// The `do` of the request to the app.
    pub request: &'static str,
    /// Converts the answer to text.
    pub text: fn(&Value) -> String,
}

/// A subcommand: `weir KEY VERB NAME ARGUMENTS`. The request to the app has the verb as `do`, and a field for
/// each argument and each given flag ([`crate::request`]). If the answer is a string, it is a sentence for
/// the operator.
pub struct Verb {
    /// The word of the verb on the command line, and the `do` of the request.
    pub name: &'static str,
    /// Its description in the help.
    pub about: &'static str,
    /// The arguments after the app's name.
    pub arguments: &'static [Argument],
    /// Whether the verb applies to all apps of the kind and takes no NAME.
    pub whole: bool,
    /// Flags and their descriptions in the help.
    pub flags: &'static [(&'static str, &'static str)],
    /// Converts an answer other than a string to text, depending on the given flags.
    pub text: fn(&Value, &[&str]) -> String,
}

/// An argument of a [`Verb`].
pub struct Argument {
    /// Its name, in capitals.
    pub name: &'static str,
    /// Its description in the help.
    pub help: &'static str,
    /// Whether it is a number.
    pub number: bool,
}

/// A subcommand that needs no daemon: `weir KEY NAME [--json]`.
pub struct Tool {
    /// The word of the tool on the command line, after the key of its kind.
    pub name: &'static str,
    /// Its description in the help.
    pub about: &'static str,
    /// The fields of the object that it prints with `--json`, for the help.
    pub json: &'static str,
    /// Carries out the tool's work.
    pub run: fn() -> anyhow::Result<Outcome>,
}

/// What a [`Tool`] has done.
pub struct Outcome {
    /// Whether the tool has succeeded; otherwise the exit code is 1.
    pub ok: bool,
    /// A sentence for standard error.
    pub complaint: Option<String>,
    /// The lines that the tool prints.
    pub lines: Vec<String>,
    /// The object that the tool prints with `--json`.
    pub json: Value,
}

/// A command that needs no daemon: `weir KEY ARGUMENTS`.
pub struct OwnCommand {
    /// Adds the command's arguments.
    pub arguments: fn(clap::Command) -> clap::Command,
    /// Carries out the command, and prints text. Returns complaints for standard error; if there are any, the
    /// exit code is 1.
    pub run: fn(&clap::ArgMatches, find: FindNodes, print: &mut Print<'_>) -> anyhow::Result<Vec<String>>,
}

/// Finds out how to ask nodes, given as `http://`, `https://` and `unix:` URLs, or `@FILE` with a URL on each
/// line; the file with the token; and the file with the certificates that sign those of nodes. Errors are
/// about the arguments, because nothing is sent yet.
pub type FindNodes = fn(
    &[String],
    token: Option<&Path>,
    authorities: Option<&Path>,
) -> anyhow::Result<Vec<Box<dyn RemoteNode>>>;

/// Another node, which answers over HTTP.
pub trait RemoteNode: Send + Sync {
    /// Returns its URL.
    fn url(&self) -> String;

    /// Returns what it answers to GET for a path, within a time. The answer is not trusted.
    ///
    /// # Errors
    /// The error is the rest of a sentence that begins with the node.
    fn get(&self, path: &str, patience: Duration) -> Result<Value, String>;
}

/// Prints text as it is, at once.
pub type Print<'a> = dyn FnMut(&str) -> anyhow::Result<()> + 'a;

/// Invalid input, for which the exit code is 2.
#[derive(Debug)]
pub struct BadInput(pub String);

impl std::fmt::Display for BadInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadInput {}

/// The context for reading sections.
pub struct Scope<'a> {
    /// All kinds of apps.
    pub kinds: &'static [Kind],
    /// The program so far: ports, names of pipes and groups, and what earlier kinds have written.
    pub program: &'a mut ProgramBuilder,
    /// The objects to which apps can be attached: the ports, and what earlier kinds offer.
    pub attachments: &'a mut Attachments,
    /// The configured ports, indexed by [`PortId`](weir_program::PortId).
    pub ports: &'a [PortConfig],
    /// Path of the daemon's control socket.
    pub control: &'a Path,
    /// Collects errors and warnings with their places in the configuration.
    pub report: &'a mut Report,
}

/// Returns the name under which a flow table that an app keeps outside of pipes is measured and shown, just
/// as the flows of a pipe use the pipe's name.
#[must_use]
pub fn flow_table(kind: &str, app: &str) -> String {
    format!("{kind}/{app}")
}

/// The schema of an item of `apps`.
pub fn schema(kinds: &[Kind], schema: &mut Schema) -> Value {
    let mut app = |kind: &Kind| {
        let mut keys = schema.map(kind.keys);
        keys["description"] = json!(kind.help);
        (kind.key.to_string(), keys)
    };
    let apps: Map<_, _> = kinds.iter().map(&mut app).collect();
    json!({ "type": "object", "properties": apps, "additionalProperties": false })
}

/// All apps of a configuration.
#[derive(Clone, Debug, Default)]
pub struct Apps {
    /// All kinds, in the order in which they are read: first those that offer attachments, last those that
    /// enclose what other kinds have written.
    kinds: &'static [Kind],
    /// The apps of each kind.
    all: Vec<Arc<dyn Configured>>,
}

impl Apps {
    /// Reads the list under `apps`, kind by kind.
    #[must_use]
    pub fn read(node: Option<&Node>, scope: &mut Scope<'_>) -> Apps {
        let kinds = scope.kinds;
        let mut items = Vec::new();
        for item in node.map(|node| list(node, "apps", scope.report)).unwrap_or_default() {
            for (key, span, node) in pairs(item, scope.report) {
                let keys = kinds.iter().map(|kind| kind.key);
                position("there is no app", (key, span), keys, scope.report);
                items.push((key, node));
            }
        }
        let read = |kind: &Kind| {
            let own: Vec<&Node> =
                items.iter().filter(|(key, _)| *key == kind.key).map(|(_, node)| *node).collect();
            (kind.read)(&own, scope)
        };
        let apps = Apps { kinds, all: kinds.iter().map(read).collect() };
        apps.all.iter().for_each(|one| one.refer(&apps, scope.report));
        apps
    }

    /// Returns the kinds of apps that the configuration was read with.
    #[must_use]
    pub fn kinds(&self) -> &'static [Kind] {
        self.kinds
    }

    /// Returns the apps of one kind.
    #[must_use]
    pub fn of<T: Configured>(&self) -> Option<&T> {
        let any = self.all.iter().map(|one| -> &dyn Any { &**one });
        any.filter_map(|one| one.downcast_ref()).next()
    }

    /// Returns the same apps, but with this configuration for its kind.
    #[must_use]
    pub fn with<T: Configured>(&self, new: T) -> Apps {
        let is_it = |one: &Arc<dyn Configured>| (&**one as &dyn Any).is::<T>();
        let new: Arc<dyn Configured> = Arc::new(new);
        let one = |one: &Arc<dyn Configured>| if is_it(one) { new.clone() } else { one.clone() };
        Apps { kinds: self.kinds, all: self.all.iter().map(one).collect() }
    }

    /// Returns the frames that the apps take from the kernel at a port.
    #[must_use]
    pub fn take(&self, port: PortId) -> Vec<Frames> {
        let all = self.all.iter().flat_map(|one| one.take());
        all.filter(|rule| rule.port == port).map(|rule| rule.frames).collect()
    }

    /// Returns the apps that act while the program runs.
    #[must_use]
    pub fn running(&self) -> Vec<Box<dyn App>> {
        self.all.iter().flat_map(|one| one.running()).collect()
    }

    /// Returns whether changes made at run time survive a restart.
    #[must_use]
    pub fn persist(&self) -> bool {
        self.all.iter().any(|one| one.persists())
    }

    /// Checks whether a list of requests can be carried out with these apps.
    ///
    /// # Errors
    /// The error names the request that cannot be carried out, and the reason.
    pub fn refuse(&self, orders: &Value, program: &Program) -> Result<(), String> {
        self.all.iter().try_for_each(|one| one.refuses(orders, program))
    }

    /// Returns what differs from the apps of another configuration.
    #[must_use]
    pub fn differences(&self, old: &Apps) -> Value {
        let all = self.all.iter().map(|one| one.differences(old));
        all.into_iter().find(|one| !one.is_null()).unwrap_or_default()
    }

    /// Returns the names of flow tables outside of pipes that can be measured.
    #[must_use]
    pub fn flow_tables(&self) -> Vec<String> {
        self.all.iter().flat_map(|one| one.flow_tables()).collect()
    }

    /// Returns the factors that weights of groups are multiplied by, where they are not 1.
    #[must_use]
    pub fn scales(&self) -> HashMap<String, u32> {
        self.all.iter().flat_map(|one| one.scales()).collect()
    }

    /// Returns the assignments of apps by bits of the source address.
    #[must_use]
    pub fn bit_assignments(&self) -> Vec<BitAssignment> {
        self.all.iter().flat_map(|one| one.bit_assignments()).collect()
    }

    /// Returns the services that apps balance.
    #[must_use]
    pub fn balanced(&self) -> Vec<Balanced> {
        self.all.iter().flat_map(|one| one.balanced()).collect()
    }

    /// Returns the current state of the back ends of a service.
    #[must_use]
    pub fn standings(&self, service: &str) -> Vec<BackEndStanding> {
        self.all.iter().flat_map(|one| one.standings(service)).collect()
    }

    /// Returns a number that changes whenever a weight in [`Apps::standings`] does.
    #[must_use]
    pub fn weights_version(&self) -> u64 {
        self.all.iter().fold(0, |sum, one| sum.wrapping_add(one.weights_version()))
    }

    /// Returns all addresses for which apps answer ARP and neighbour discovery.
    #[must_use]
    pub fn answers_for(&self) -> HashSet<IpAddr> {
        self.all.iter().flat_map(|one| one.answers_for()).collect()
    }

    /// Returns whether any app may ever request checks along a service's own path.
    #[must_use]
    pub fn checks_ways(&self) -> bool {
        self.all.iter().any(|one| one.checks_ways())
    }

    /// Returns whether any checks currently take a service's own path.
    #[must_use]
    pub fn has_ways(&self) -> bool {
        self.all.iter().any(|one| one.has_ways())
    }

    /// Returns the neighbours that apps need.
    #[must_use]
    pub fn hops(&self) -> Vec<Hop> {
        self.all.iter().flat_map(|one| one.hops()).collect()
    }

    /// Returns the neighbours known to running apps.
    #[must_use]
    pub fn known(&self) -> HashMap<Hop, Mac> {
        self.all.iter().flat_map(|one| one.known()).collect()
    }

    /// Writes known neighbours into the program before it starts.
    pub fn settle(&self, known: &HashMap<Hop, Mac>, program: &mut Program) {
        self.all.iter().for_each(|one| one.settle(known, program));
    }

    /// Writes the parts of the program that depend on the roots of ports.
    pub fn enclose(&self, program: &mut ProgramBuilder, report: &mut Report) {
        self.all.iter().for_each(|one| one.enclose(program, report));
    }

    /// Returns the tables of `weir show`, by name.
    pub fn tables<'a>(&'a self, counts: &'a Counts<'a>) -> impl Iterator<Item = (&'static str, Value)> + 'a {
        let of = move |(kind, one): (&'a Kind, &'a Arc<dyn Configured>)| {
            kind.tables.iter().map(move |name| (*name, one.table(name, counts)))
        };
        self.kinds.iter().zip(&self.all).flat_map(of)
    }
}

impl Scope<'_> {
    /// Reads the name in a section.
    pub fn name(&mut self, section: &Section<'_>) -> Option<String> {
        let node = section.needed("name", self.report)?;
        name(text(node, "a name", self.report)?, node.span, self.report).map(str::to_string)
    }

    /// Checks that the name is unique among the destinations that frames can be forwarded to.
    pub fn name_is_free(&mut self, section: &Section<'_>) -> bool {
        let Some(node) = section.get("name") else { return false };
        let Shape::Scalar(name) = &node.kind else { return false };
        let written = self.kinds.iter().flat_map(|kind| kind.pipes).map(|(pipe, what)| (*what, name == pipe));
        let takers = [
            ("a port", self.program.port_named(name).is_some()),
            ("a pipe", self.program.pipe_named(name).is_some()),
            ("a group", self.program.group_named(name).is_some()),
            ("another app", self.program.apps.contains(name)),
        ];
        let Some((what, _)) = takers.into_iter().chain(written).find(|(_, taken)| *taken) else {
            return true;
        };
        let message = format!("`{name}` is already the name of {what}: `forward: {name}` would be ambiguous");
        self.report.error(node.span, message);
        false
    }

    /// Returns the attachment that a node names: a port, or one offered by another app.
    pub fn attachment(&mut self, node: &Node) -> Option<Attachment> {
        let at = named("port", node, self.attachments.names().into_iter(), self.report)?;
        self.attachments.at(at).cloned()
    }

    /// Returns the port that a node names.
    pub fn port(&mut self, node: &Node) -> Option<PortId> {
        let names = self.program.ports.iter().map(|port| port.name.as_str());
        named("port", node, names, self.report).map(|at| PortId(at as u16))
    }
}
