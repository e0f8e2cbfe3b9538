//! Changes the number of workers in a reload, after the existing workers have swapped the program.
//!
//! Steps that can be refused are done while the reload is prepared: threads are started on their cores,
//! queues of ports are opened, and engines compiled. After the swap, the first worker turns these engines
//! into replicas of its own, all workers pause while flows are moved to their new owners, and removed workers
//! close their ports and leave their counts to the first (`engine/worker/resize.rs`). The main thread never
//! blocks on any of this.

#![allow(clippy::vec_box, reason = "engines are moved between threads in their boxes")]

use super::fleet::Recruit;
use super::{Daemon, app_host, open, rings_for};
use crate::config::{Plan, Workers};
use anyhow::{Context, Result, anyhow};
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use weir_engine::batch::Engine;
use weir_engine::ring::CarrierSender;
use weir_engine::worker::{Assembly, Command, Part, RetiredState, Worker};
use weir_packet::{Pools, Port, TableHash};
use weir_port::xdp::Queues;
use weir_program::buckets::GroupTables;
use weir_program::owner::Steering;

/// A prepared change of the number of workers.
pub struct WorkerResize {
    before: usize,
    after: usize,
    steering: Steering,
    /// A thread for each new worker.
    recruits: Vec<Recruit>,
    ports: Vec<Opened>,
    engines: Vec<Box<Engine>>,
    punts: Vec<Vec<CarrierSender>>,
}

/// A new worker's ports and their pools, which are closed if it is never started.
struct Opened(Option<(Pools, Vec<Box<dyn Port>>)>);

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some((pools, ports)) = &mut self.0 {
            ports.iter_mut().for_each(|port| _ = port.close(pools));
        }
    }
}

/// The progress of a change of the number.
pub enum Resizing {
    /// The first worker makes replicas of its engine.
    Replicating(Box<WorkerResize>, Receiver<Vec<Box<Engine>>>),
    /// The workers gather, and flows are moved.
    Gathering(Gathering),
    /// Removed workers close their ports.
    Leaving(Vec<Receiver<Box<RetiredState>>>),
}

/// Workers that gather.
pub struct Gathering {
    assembly: Arc<Assembly>,
    resumed: Vec<Receiver<()>>,
    estates: Vec<Receiver<Box<RetiredState>>>,
    after: usize,
    steering: Steering,
}

impl Resizing {
    /// Describes the progress.
    pub fn progress(&self) -> &'static str {
        match self {
            Resizing::Replicating(..) => "entries are copied for new workers",
            Resizing::Gathering(_) => "the workers exchange flows",
            Resizing::Leaving(_) => "removed workers close their ports",
        }
    }
}

/// The ingredients of new workers.
pub struct Making<'a> {
    /// The new program.
    pub plan: &'a Plan,
    pub tables: &'a GroupTables,
    pub hash: TableHash,
    /// The queues of the interfaces, by the ports' positions in the new plan.
    pub queues: &'a [Option<Queues>],
    /// The generation that the program will have.
    pub generation: u64,
}

impl Making<'_> {
    /// Prepares the change from `before` workers; `None` if their number stays.
    pub fn prepare(&self, before: usize) -> Result<Option<Box<WorkerResize>>> {
        let after = self.plan.workers.count();
        if after == before {
            return Ok(None);
        }
        let new = before..after.max(before);
        let rss_table = open::spread(self.plan, None);
        Ok(Some(Box::new(WorkerResize {
            before,
            after,
            steering: Steering { hash: self.hash, rss_table },
            recruits: self.recruit(new.clone())?,
            engines: new.clone().map(|_| self.engine()).collect::<Result<_>>()?,
            ports: new.map(|worker| self.open(worker)).collect::<Result<_>>()?,
            punts: Vec::new(),
        })))
    }

    fn recruit(&self, new: Range<usize>) -> Result<Vec<Recruit>> {
        let core = |worker: usize| match &self.plan.workers {
            Workers::Cores(cores) => cores.get(worker).copied(),
            Workers::Count(_) => None,
        };
        let node = open::node(self.plan);
        new.map(|worker| Recruit::start(worker, core(worker), node)).collect()
    }

    fn engine(&self) -> Result<Box<Engine>> {
        let mut engine = Box::new(Engine::with_tables(&self.plan.program, self.hash, self.tables)?);
        engine.set_generation(self.generation);
        Ok(engine)
    }

    fn open(&self, worker: usize) -> Result<Opened> {
        let opened = open::ports(self.plan, self.queues, &mut None, worker, &mut Default::default());
        Ok(Opened(Some(opened.with_context(|| format!("worker {worker}, which is new"))?)))
    }
}

impl WorkerResize {
    /// The larger of the numbers of workers before and after, which is the number of rings that apps need.
    fn most(&self) -> usize {
        self.before.max(self.after)
    }
}

impl Daemon {
    /// Begins to change the number of workers, all of which have already switched to the new program.
    pub(super) fn begin_resizing(&mut self, mut crew: Box<WorkerResize>) -> Result<Resizing> {
        let (answer, replicas) = sync_channel(1);
        let engines = std::mem::take(&mut crew.engines);
        self.fleet.send(0, Command::Replicate(engines, answer))?;
        Ok(Resizing::Replicating(crew, replicas))
    }

    /// Advances as far as possible without waiting. Returns what is left to do; `None` at the end.
    pub(super) fn go_on_resizing(&mut self, resizing: Resizing) -> Result<Option<Resizing>> {
        Ok(match resizing {
            Resizing::Replicating(crew, replicas) => match replicas.try_recv() {
                Ok(replicas) => Some(Resizing::Gathering(self.gather(*crew, replicas)?)),
                Err(TryRecvError::Empty) => Some(Resizing::Replicating(crew, replicas)),
                Err(TryRecvError::Disconnected) => return Err(anyhow!("worker 0 has ended")),
            },
            Resizing::Gathering(mut gathering) => {
                gathering.resumed.retain(|one| one.try_recv().is_err());
                if gathering.resumed.is_empty() {
                    Some(self.disperse(gathering))
                } else {
                    Some(Resizing::Gathering(gathering))
                }
            }
            Resizing::Leaving(mut estates) => {
                let fleet = &self.fleet;
                estates.retain(|one| match one.try_recv() {
                    // Reports requested from now on contain the sum.
                    Ok(estate) => fleet.send(0, Command::Inherit(estate)).is_err(),
                    Err(_) => true,
                });
                if estates.is_empty() {
                    self.fleet.dismiss(self.plan.workers.count());
                    None
                } else {
                    Some(Resizing::Leaving(estates))
                }
            }
        })
    }

    /// Starts new workers, and gives each worker its part.
    fn gather(&mut self, crew: WorkerResize, replicas: Vec<Box<Engine>>) -> Result<Gathering> {
        let WorkerResize { before, after, steering, recruits, ports, punts, .. } = crew;
        for ((recruit, mut ports), punts) in recruits.into_iter().zip(ports).zip(punts) {
            let deltas = self.collector.open(self.fleet.len() as u8)?;
            let (pools, ports) = ports.0.take().unwrap_or_default();
            let (disposal, stand_in) = (self.disposal.clone(), Engine::stand_in(self.hash));
            self.fleet.enlist(
                recruit,
                (self.plan.busy, self.clock),
                self.doorbell.clone(),
                move |commands| {
                    let worker =
                        Worker::new(stand_in, ports, pools).with_commands(commands).with_deltas(deltas);
                    Ok(((), worker.with_disposal(disposal).with_punts(punts).dormant()))
                },
            )?;
        }
        let assembly = Arc::new(Assembly::new((before, after), replicas, steering));
        let mut rings = rings_for(&self.plan.program, after).into_iter();
        let (mut resumed, mut estates) = (Vec::new(), Vec::new());
        for own in 0..self.fleet.len() {
            let ((resumed_sender, resumed_receiver), (leave, estate)) = (sync_channel(1), sync_channel(1));
            let part = Part {
                assembly: assembly.clone(),
                own,
                hand_over: rings.next().unwrap_or_default(),
                stand_in: (own < before).then(|| Box::new(Engine::stand_in(self.hash))),
                generation: self.generation,
                resumed: resumed_sender,
                estate: leave,
            };
            self.fleet.send(own, Command::Resize(Box::new(part)))?;
            resumed.push(resumed_receiver);
            estates.extend((own >= after).then_some(estate));
        }
        Ok(Gathering { assembly, resumed, estates, after, steering })
    }

    /// All workers resume.
    fn disperse(&mut self, gathering: Gathering) -> Resizing {
        let Gathering { assembly, estates, after, steering, .. } = gathering;
        self.owners = self.owners.among(steering, after);
        let moved = assembly.moved();
        self.reloads.note_moved(after, moved);
        Resizing::Leaving(estates)
    }

    /// Creates the rings of the program's apps; those of new workers go to the crew. Returns the workers'
    /// ends and ours.
    pub(super) fn rings_of_apps(
        &self,
        plan: &Plan,
        crew: &mut Option<Box<WorkerResize>>,
    ) -> (Vec<Vec<CarrierSender>>, Vec<app_host::Ring>) {
        let present = self.fleet.len();
        let most = crew.as_ref().map_or(present, |crew| crew.most());
        let (mut punts, rings) = app_host::rings(&plan.program, most);
        let others = punts.split_off(present);
        if let Some(crew) = crew {
            crew.punts = others;
        }
        (punts, rings)
    }
}
