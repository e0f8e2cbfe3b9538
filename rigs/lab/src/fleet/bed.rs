//! The network with everything that runs in it.

use anyhow::{Result, bail};
use serde_json::json;

use super::configuration::{FleetMode, Services, configuration};
use super::network::{Family, FleetHost, FleetNetwork};
use super::node::FleetNode;
use super::prediction::{RingChange, ring_change};
use super::router::{Ecmp, Router};
use super::routing::RouteDaemon;
use crate::Interrupt;
use crate::lb::servers::{decap_with, nginx};
use weir_bed::{Run, Started};

/// Nodes, back ends and the router, all at work.
pub struct FleetBed {
    // Dropped first: it follows the router's routes.
    pub router: Router,
    pub network: FleetNetwork,
    pub nodes: Vec<FleetNode>,
    servers: Vec<Started>,
    services: Services,
    mode: FleetMode,
    slowdown: u32,
}

/// What the fleet is made of.
#[derive(Clone, Copy)]
pub struct FleetShape {
    pub nodes: usize,
    pub back_ends: usize,
    pub router: RouteDaemon,
    pub ecmp: Ecmp,
    pub mode: FleetMode,
    pub family: Family,
}

impl FleetBed {
    /// Sets up the network, with all back ends but the last in the configuration; `run` removes it.
    pub fn start(run: &mut Run, shape: FleetShape, interrupt: &Interrupt) -> Result<FleetBed> {
        let FleetShape { nodes: count, back_ends, router, ecmp, mode, family } = shape;
        let network = FleetNetwork::build(run, (count, back_ends), (mode, family))?;
        let mut servers = Vec::new();
        for host in &network.back_ends {
            servers.push(nginx(run, (host.name, &host.namespace))?);
            if mode == FleetMode::Ipip {
                let tunnels = [(network.addresses().sources, host.address.as_str())];
                decap_with(run, (host.name, &host.namespace), &[], &tunnels, interrupt)?;
            }
        }
        let slowdown = interrupt.slowdown();
        let services = Services { back_ends: back_ends - 1, without: None, first_weight: 1, second: false };
        let router = Router::start(run, &network, (router, ecmp))?;
        let mut nodes = Vec::new();
        for (at, host) in network.nodes.iter().enumerate() {
            let text = configuration((mode, family), at, &services, &network.back_ends, slowdown);
            nodes.push(FleetNode::start(run, host, &text, interrupt)?);
        }
        let bed = FleetBed { router, network, nodes, servers, services, mode, slowdown };
        for at in 0..count {
            bed.wait_until_ready(at, interrupt)?;
        }
        bed.router.wait_for(&bed.all(), run, interrupt)?;
        Ok(bed)
    }

    /// Returns the numbers of all nodes.
    pub fn all(&self) -> Vec<usize> {
        (0..self.nodes.len()).collect()
    }

    /// Returns the numbers of all nodes but one.
    pub fn all_but(&self, node: usize) -> Vec<usize> {
        self.all().into_iter().filter(|at| *at != node).collect()
    }

    /// Waits until all back ends of a node are up.
    pub fn wait_until_ready(&self, node: usize, interrupt: &Interrupt) -> Result<()> {
        let names = self.network.back_ends[..self.services.back_ends].iter().map(|host| host.name);
        names.into_iter().try_for_each(|name| self.nodes[node].wait_for_health(name, "up", interrupt))
    }

    /// Waits until a back end is in this state at all nodes.
    pub fn wait_for_health(&self, back_end: usize, state: &str, interrupt: &Interrupt) -> Result<()> {
        let name = self.network.back_ends[back_end].name;
        self.nodes.iter().try_for_each(|node| node.wait_for_health(name, state, interrupt))
    }

    fn configuration(&self, node: usize, services: &Services) -> String {
        let its = (self.mode, self.network.family);
        configuration(its, node, services, &self.network.back_ends, self.slowdown)
    }

    /// Returns which connections have another back end, for nodes that do not know them, once back ends have
    /// changed in this way.
    pub fn ring_change(&self, run: &Run, change: impl FnOnce(&mut Services)) -> Result<RingChange> {
        let mut services = self.services.clone();
        change(&mut services);
        let [before, after] = [&self.services, &services].map(|services| self.configuration(0, services));
        ring_change(run.folder(), &before, &after)
    }

    /// Changes the configuration of all nodes, one after another.
    pub fn reload(&mut self, change: impl FnOnce(&mut Services)) -> Result<()> {
        change(&mut self.services);
        for (at, node) in self.nodes.iter().enumerate() {
            node.reload(&self.configuration(at, &self.services))?;
        }
        Ok(())
    }

    /// Kills weir on a node; its routes go with it.
    pub fn kill(&mut self, run: &mut Run, node: usize, interrupt: &Interrupt) -> Result<()> {
        self.nodes[node].kill(run)?;
        self.router.wait_for(&self.all_but(node), run, interrupt)
    }

    /// Starts weir on a node where it was killed.
    pub fn revive(&mut self, run: &mut Run, node: usize, interrupt: &Interrupt) -> Result<()> {
        let text = self.configuration(node, &self.services);
        self.nodes[node].restart(run, &self.network.nodes[node], &text, interrupt)?;
        self.wait_until_ready(node, interrupt)?;
        self.router.wait_for(&self.all(), run, interrupt)
    }

    /// Drains a node.
    pub fn drain(&mut self, run: &Run, node: usize, interrupt: &Interrupt) -> Result<()> {
        self.nodes[node].drain(true)?;
        self.router.wait_for(&self.all_but(node), run, interrupt)
    }

    /// Ends the drain of a node.
    pub fn undrain(&mut self, run: &Run, node: usize, interrupt: &Interrupt) -> Result<()> {
        self.nodes[node].drain(false)?;
        self.router.wait_for(&self.all(), run, interrupt)
    }

    /// Upgrades weir on a node.
    pub fn upgrade(&mut self, run: &mut Run, node: usize) -> Result<()> {
        self.nodes[node].upgrade(run, &self.network.nodes[node])
    }

    /// Ends BIRD on a node.
    pub fn stop_bird(&mut self, run: &mut Run, node: usize, interrupt: &Interrupt) -> Result<()> {
        self.nodes[node].stop_bird(run)?;
        self.router.wait_for(&self.all_but(node), run, interrupt)
    }

    /// Starts BIRD on a node again.
    pub fn start_bird(&mut self, run: &mut Run, node: usize, interrupt: &Interrupt) -> Result<()> {
        self.nodes[node].start_bird(run, &self.network.nodes[node])?;
        self.router.wait_for(&self.all(), run, interrupt)
    }

    /// Cuts the link of a node for as long as the router needs to notice, and connects it again.
    pub fn flap_link(&mut self, run: &Run, node: usize, interrupt: &Interrupt) -> Result<()> {
        self.network.set_link(node, false)?;
        let gone = self.router.wait_for(&self.all_but(node), run, interrupt);
        self.network.set_link(node, true)?;
        gone
    }

    /// Pauses BIRD on the last node, so that its BFD session ends, and waits until its route is back.
    pub fn pause_bird(&self, run: &mut Run, interrupt: &Interrupt) -> Result<()> {
        let node = self.nodes.len() - 1;
        self.nodes[node].pause_bird(run, || !self.router.nodes().contains(&node), interrupt)?;
        self.router.settle(run, interrupt)
    }

    /// Kills the server of a back end, and waits until all nodes know.
    pub fn kill_server(&mut self, run: &mut Run, back_end: usize, interrupt: &Interrupt) -> Result<()> {
        run.kill(self.servers[back_end])?;
        self.wait_for_health(back_end, "down", interrupt)
    }

    /// Starts the server of a back end again, and waits until all nodes know.
    pub fn revive_server(&mut self, run: &mut Run, back_end: usize, interrupt: &Interrupt) -> Result<()> {
        let FleetHost { name, namespace, .. } = &self.network.back_ends[back_end];
        self.servers[back_end] = nginx(run, (name, namespace))?;
        self.wait_for_health(back_end, "up", interrupt)
    }

    /// Does what `weir lb VERB web BACK_END` does, on all nodes.
    pub fn order(&self, verb: &str, back_end: usize) -> Result<()> {
        let name = self.network.back_ends[back_end].name;
        let order = json!([{ "do": verb, "service": "web", "back_end": name }]);
        for node in &self.nodes {
            let answer = node.request(&order)?;
            if !answer["error"].is_null() {
                bail!("{verb} {name}: {answer}");
            }
        }
        Ok(())
    }
}
