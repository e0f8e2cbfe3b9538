//! What apps stand on: a port, or what an app makes of several ports, such as a bond.
//!
//! An app that is told `port: NAME` or `out: NAME` looks up an [`Attachment`], and needs not know whether that is a port:
//! it forwards to [`Attachment::to`], matches [`Attachment::ports`], accepts [`Attachment::macs`], and has what comes in
//! sent to its own pipe with [`Attachment::lead`]. An app offers one by [`Attachments::add`] when it is read, so kinds of
//! apps that offer attachments are read before kinds that use them.

use crate::ports::PortConfig;
use engine::builder::ProgramBuilder;
use engine::program::{Forward, Origin, PipeId, PortId};
use packet::Field;

/// A MAC address.
pub type Mac = [u8; 6];

/// The kind of an attachment that is a port.
const PORT: &str = "port";

/// Something to send by and to receive from.
#[derive(Clone, Debug, PartialEq)]
pub struct Attachment {
    /// What the configuration calls it.
    pub name: String,
    /// What it is: `port`, or the key of the app that offers it.
    pub kind: &'static str,
    /// Where a frame is forwarded to leave by it.
    pub to: Forward,
    /// The ports where its frames come in. None if it had an error, which is reported.
    pub ports: Vec<PortId>,
    /// The port that stands for all where only one is possible.
    pub lead: PortId,
    /// The source address of frames that leave by it, where that is known.
    pub mac: Option<Mac>,
    /// The destination addresses that frames for the host may have, whichever port they come in by.
    pub macs: Vec<Mac>,
    /// The places in the program that say where its frames go.
    pub inlets: Vec<Inlet>,
    /// Why another app cannot receive from it, if that is so.
    pub closed: Option<Closed>,
    /// Where it was written.
    pub origin: Origin,
}

/// A place in the program that says where frames go which come in by an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inlet {
    /// The root of a port.
    Root(PortId),
    /// The forward of a pipe.
    Forward(PipeId),
    /// The miss of a pipe.
    Miss(PipeId),
}

/// Why another app cannot receive from an attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closed {
    /// Where its frames go instead, as the first half of a sentence.
    pub why: String,
    /// What to do.
    pub help: &'static str,
}

impl Attachment {
    /// A port by itself.
    #[must_use]
    pub fn port(id: PortId, port: &PortConfig, origin: Origin) -> Attachment {
        Attachment {
            name: port.name.clone(),
            kind: PORT,
            to: Forward::Port(id),
            ports: vec![id],
            lead: id,
            mac: port.mac,
            macs: port.mac.into_iter().collect(),
            inlets: vec![Inlet::Root(id)],
            closed: None,
            origin,
        }
    }

    /// An attachment that has an error. Whoever names it makes no further mistake; the program is not run.
    #[must_use]
    pub fn unusable(name: &str, kind: &'static str, pipe: PipeId, origin: Origin) -> Attachment {
        Attachment {
            name: name.to_string(),
            kind,
            to: Forward::Pipe(pipe),
            ports: Vec::new(),
            lead: PortId::default(),
            mac: None,
            macs: Vec::new(),
            inlets: Vec::new(),
            closed: None,
            origin,
        }
    }

    /// Whether it can be used: it has no error.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        !self.ports.is_empty()
    }

    /// Sends what comes in by it into `pipe`.
    pub fn lead(&self, program: &mut ProgramBuilder, pipe: PipeId) {
        for inlet in &self.inlets {
            match *inlet {
                Inlet::Root(port) => program.root(port, pipe),
                Inlet::Forward(from) => program.pipe_mut(from).forward = Forward::Pipe(pipe),
                Inlet::Miss(from) => program.pipe_mut(from).miss = Forward::Pipe(pipe),
            }
        }
    }
}

/// All attachments of a configuration: first the ports, in the order of the program, then what apps offer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attachments(Vec<Attachment>);

impl Attachments {
    /// Adds one.
    pub fn add(&mut self, attachment: Attachment) {
        self.0.push(attachment);
    }

    /// The attachment of a name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Attachment> {
        self.0.iter().find(|one| one.name == name)
    }

    /// All names.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        self.0.iter().map(|one| one.name.as_str()).collect()
    }

    /// The attachment that has the frames of a port: what an app made of it, or the port itself.
    #[must_use]
    pub fn with(&self, port: PortId) -> Option<&Attachment> {
        self.0.iter().rev().find(|one| one.ports.contains(&port))
    }

    /// The addresses that frames which come in by a port may have: its own, if that is known, and those of what it is a
    /// member of.
    #[must_use]
    pub fn macs(&self, port: PortId) -> Option<Vec<Mac>> {
        let own = self.0.get(port.index())?.mac?;
        let others = self.with(port)?.macs.iter().copied().filter(|mac| *mac != own);
        Some(std::iter::once(own).chain(others).collect())
    }

    /// The attachment that a value of a match field names, if it stands for several ports.
    #[must_use]
    pub fn several(&self, field: Field, text: &str) -> Option<&Attachment> {
        self.named(text).filter(|one| field == Field::InputPort && one.kind != PORT)
    }

    /// The names of an attachment's ports.
    #[must_use]
    pub fn port_names(&self, of: &Attachment) -> Vec<&str> {
        of.ports.iter().filter_map(|port| self.0.get(port.index())).map(|port| port.name.as_str()).collect()
    }

    /// Checks that a value of a match field does not stand for several ports where there is room for one.
    ///
    /// # Errors
    /// A sentence.
    pub fn is_one(&self, field: Field, text: &str) -> Result<(), String> {
        let Some(several) = self.several(field, text) else { return Ok(()) };
        let (kind, ports) = (several.kind, self.port_names(several).join(", "));
        Err(format!(
            "`{text}` is a {kind} of several ports ({ports}), and here is room for one: match `port` per entry, where a \
             {kind} stands for its members"
        ))
    }
}
