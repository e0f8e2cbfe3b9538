//! `weir check --kernel`: which parts of a program are compiled for the kernel, why the others are not, and
//! whether the kernel loads the result.

use crate::config::{Plan, PortConfig, port_obstacle, write_forward};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use weir_engine::batch::Engine;
use weir_kernel::{Coverage, Executor, LoadError, Why};
use weir_packet::TableHash;
use weir_program::{Forward, Pipe, PipeId, Program};

/// The part of a program that the kernel can run.
#[derive(Clone, Debug)]
pub struct KernelCheck {
    ports: Vec<PortCheck>,
    pipes: Vec<PipeCheck>,
    loaded: Loading,
}

#[derive(Clone, Debug)]
struct PortCheck {
    name: String,
    /// Why the kernel cannot handle the port's frames.
    obstacle: Option<&'static str>,
}

#[derive(Clone, Debug)]
struct PipeCheck {
    name: String,
    kind: &'static str,
    why: Option<Why>,
    /// Entries by action and forward.
    entries: Vec<EntriesCheck>,
    miss: (String, Option<Why>),
}

/// The entries with the same action and forward.
#[derive(Clone, Debug)]
struct EntriesCheck {
    action: String,
    forward: String,
    count: usize,
    why: Option<Why>,
}

#[derive(Clone, Debug)]
enum Loading {
    /// How many instructions the program of each port has.
    Loaded(Vec<(String, usize)>),
    /// Why loading was not tried.
    NotTried(&'static str),
    /// The kernel's error.
    Refused(String),
}

impl KernelCheck {
    /// Examines a program, and has the kernel load it if a port can use it.
    ///
    /// # Errors
    /// The program is too large for this host.
    pub fn of(plan: &Plan) -> anyhow::Result<KernelCheck> {
        let (program, coverage) = (&plan.program, plan.coverage());
        let port = |port: &PortConfig| PortCheck { name: port.name.clone(), obstacle: port_obstacle(port) };
        let ports: Vec<PortCheck> = plan.ports.iter().map(port).collect();
        let pipes = program.pipes.iter().enumerate();
        let pipes = pipes.map(|(at, pipe)| examine(program, &coverage, PipeId(at as u16), pipe)).collect();
        let loaded = if ports.iter().all(|port| port.obstacle.is_some()) {
            Loading::NotTried("no port can use it")
        } else {
            load(program, &ports)?
        };
        Ok(KernelCheck { ports, pipes, loaded })
    }

    /// Returns the result as text.
    #[must_use]
    pub fn text(&self) -> String {
        let compiled = |why: Option<Why>| match why {
            None => "compiled".to_string(),
            Some(why) => format!("left to the engine: {}", why.explanation()),
        };
        let mut text = String::new();
        for PortCheck { name, obstacle } in &self.ports {
            let said = obstacle.map_or("usable".into(), |why| format!("not usable: {why}"));
            text += &format!("kernel: port {name}: {said}\n");
        }
        for pipe in &self.pipes {
            text += &format!("kernel: pipe {} ({}): {}\n", pipe.name, pipe.kind, compiled(pipe.why));
            if pipe.why.is_some() {
                continue;
            }
            for EntriesCheck { action, forward, count, why } in &pipe.entries {
                let entries = if *count == 1 { "1 entry".into() } else { format!("{count} entries") };
                let action = if action.is_empty() { String::new() } else { format!(", action {action}") };
                text += &format!("kernel:   {entries}{action}, forward {forward}: {}\n", compiled(*why));
            }
            text += &format!("kernel:   miss {}: {}\n", pipe.miss.0, compiled(pipe.miss.1));
        }
        text + "kernel: " + &self.loaded.text() + "\n"
    }

    /// Returns the result as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        let why = |why: Option<Why>| why.map(Why::explanation);
        let ports = self.ports.iter().map(
            |port| json!({ "port": port.name, "usable": port.obstacle.is_none(), "why": port.obstacle }),
        );
        let pipes = self.pipes.iter().map(|pipe| {
            let entries = pipe.entries.iter().map(|one| {
                json!({ "entries": one.count, "action": one.action, "forward": one.forward,
                    "compiled": one.why.is_none(), "why": why(one.why) })
            });
            let (forward, miss) = &pipe.miss;
            json!({ "pipe": pipe.name, "type": pipe.kind,
                "compiled": pipe.why.is_none(), "why": why(pipe.why),
                "entries": entries.collect::<Vec<_>>(),
                "miss": { "forward": forward, "compiled": miss.is_none(), "why": why(*miss) } })
        });
        json!({ "ports": ports.collect::<Vec<_>>(), "pipes": pipes.collect::<Vec<_>>(),
            "loaded": self.loaded.json() })
    }
}

impl Loading {
    fn text(&self) -> String {
        match self {
            Loading::Loaded(ports) => {
                let ports = ports.iter().map(|(port, count)| format!("{count} instructions for port {port}"));
                format!("loaded: the verifier accepts {}", ports.collect::<Vec<_>>().join(", "))
            }
            Loading::NotTried(why) => format!("not loaded: {why}"),
            Loading::Refused(why) => format!("not loaded, so every packet is left to the engine: {why}"),
        }
    }

    fn json(&self) -> Value {
        match self {
            Loading::Loaded(ports) => {
                let count = |(port, instructions): &(String, usize)| (port.clone(), json!(instructions));
                let instructions: Map<_, _> = ports.iter().map(count).collect();
                json!({ "ok": true, "instructions": instructions })
            }
            Loading::NotTried(why) => json!({ "ok": null, "why": why }),
            Loading::Refused(why) => json!({ "ok": false, "why": why }),
        }
    }
}

fn examine(program: &Program, coverage: &Coverage, id: PipeId, pipe: &Pipe) -> PipeCheck {
    let why = coverage.pipes[id.index()];
    let mut counts: BTreeMap<(u16, Forward), usize> = BTreeMap::new();
    for entry in pipe.entries.iter() {
        let own = entry.forward.unwrap_or_default();
        let forward = if pipe.forward == Forward::PerEntry { own } else { pipe.forward };
        *counts.entry((entry.template, forward)).or_default() += 1;
    }
    let entries = counts.into_iter().map(|((template, forward), count)| EntriesCheck {
        action: pipe.templates[usize::from(template)].name.clone(),
        forward: write_forward(forward, program),
        count,
        why: coverage.lead(program, id, (forward, template)),
    });
    PipeCheck {
        name: pipe.name.clone(),
        kind: pipe.kind.word(),
        why,
        entries: entries.collect(),
        miss: (write_forward(pipe.miss, program), why.or(coverage.why_not_forward(program, pipe.miss))),
    }
}

fn load(program: &Program, ports: &[PortCheck]) -> anyhow::Result<Loading> {
    let buckets = Engine::new(program, TableHash::random())?.buckets();
    Ok(match Executor::load(program, &buckets) {
        Ok(executor) => {
            let usable =
                ports.iter().zip(executor.instructions()).filter(|(port, _)| port.obstacle.is_none());
            Loading::Loaded(usable.map(|(port, count)| (port.name.clone(), count)).collect())
        }
        Err(error) if is_denied(&error) => Loading::NotTried("this needs the privileges of root"),
        Err(error) => Loading::Refused(error.to_string()),
    })
}

fn is_denied(error: &LoadError) -> bool {
    let error = match error {
        LoadError::Map { error, .. } | LoadError::Port { error, .. } => error,
        LoadError::Refused(refused) => &refused.error,
        LoadError::Table(_) => return false,
    };
    // If the verifier itself refuses, there is a log, and the error is EACCES.
    error.raw_os_error() == Some(rustix::io::Errno::PERM.raw_os_error())
}
