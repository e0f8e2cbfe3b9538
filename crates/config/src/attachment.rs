//! Attachments of apps: a port, or a combination of several ports offered by another app, such as a bond.
//!
//! An app with `port: NAME` or `out: NAME` looks up an [`Attachment`] and need not know whether the
//! attachment is a port. It forwards to [`Attachment::to`], matches [`Attachment::ports`], accepts
//! [`Attachment::macs`], and directs received frames to its own pipe with [`Attachment::lead`]. Apps offer
//! attachments with [`Attachments::add`] when they are read, so kinds of apps that offer attachments are read
//! before kinds that use them.

use crate::ports::PortConfig;
use weir_packet::Field;
use weir_program::builder::ProgramBuilder;
use weir_program::{Forward, Origin, PipeId, PortId};

/// A MAC address.
pub type Mac = [u8; 6];

/// The kind of an attachment that is a port.
const PORT: &str = "port";

/// A port, or what an app offers in its place, to send through and to receive from.
#[derive(Clone, Debug, PartialEq)]
pub struct Attachment {
    /// The attachment's name in the configuration.
    pub name: String,
    /// `port`, or the key of the app that offers it.
    pub kind: &'static str,
    /// The forward that sends a frame through the attachment.
    pub to: Forward,
    /// The ports on which the attachment's frames arrive. Empty if the attachment has an error, which is in
    /// the report.
    pub ports: Vec<PortId>,
    /// The port that represents the attachment where only one is possible.
    pub lead: PortId,
    /// The source address of frames sent through the attachment, if known.
    pub mac: Option<Mac>,
    /// The destination addresses of frames for the host, on whichever port they arrive.
    pub macs: Vec<Mac>,
    /// The places in the program that determine where the attachment's frames go.
    pub inlets: Vec<Inlet>,
    /// Why other apps cannot receive from the attachment, if they cannot.
    pub closed: Option<Closed>,
    /// Place in the configuration.
    pub origin: Origin,
}

/// A place in the program that determines where frames from an attachment go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inlet {
    /// The root of a port.
    Root(PortId),
    /// The forward of a pipe.
    Forward(PipeId),
    /// The miss of a pipe.
    Miss(PipeId),
}

/// Why other apps cannot receive from an attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closed {
    /// Where the attachment's frames go instead, as the first half of a sentence.
    pub why: String,
    /// What to do.
    pub help: &'static str,
}

impl Attachment {
    /// Creates the attachment of a port.
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

    /// Creates an attachment that has an error, so that references to it cause no further errors; the program
    /// is never run.
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

    /// Returns true if the attachment has no error.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        !self.ports.is_empty()
    }

    /// Directs frames from the attachment into `pipe`.
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

/// All attachments of a configuration: the ports in the program's order, then those offered by apps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attachments(Vec<Attachment>);

impl Attachments {
    /// Adds an attachment.
    pub fn add(&mut self, attachment: Attachment) {
        self.0.push(attachment);
    }

    /// Returns the attachment with this name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Attachment> {
        self.0.iter().find(|one| one.name == name)
    }

    /// Returns all names; [`Attachments::at`] returns the attachment of each.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        self.0.iter().map(|one| one.name.as_str()).collect()
    }

    /// Returns the attachment at this index among the names.
    #[must_use]
    pub fn at(&self, at: usize) -> Option<&Attachment> {
        self.0.get(at)
    }

    /// Returns the attachment that owns the frames of a port: one offered by an app, or the port itself.
    #[must_use]
    pub fn with(&self, port: PortId) -> Option<&Attachment> {
        self.0.iter().rev().find(|one| one.ports.contains(&port))
    }

    /// Returns the destination addresses that frames on a port may have: the port's own, if known, and those
    /// of the attachment that the port belongs to.
    #[must_use]
    pub fn macs(&self, port: PortId) -> Option<Vec<Mac>> {
        let own = self.0.get(port.index())?.mac?;
        let others = self.with(port)?.macs.iter().copied().filter(|mac| *mac != own);
        Some(std::iter::once(own).chain(others).collect())
    }

    /// Returns the attachment named by a value of a match field, if it consists of several ports.
    #[must_use]
    pub fn several(&self, field: Field, text: &str) -> Option<&Attachment> {
        self.named(text).filter(|one| field == Field::InputPort && one.kind != PORT)
    }

    /// Returns the names of an attachment's ports.
    #[must_use]
    pub fn port_names(&self, of: &Attachment) -> Vec<&str> {
        of.ports.iter().filter_map(|port| self.0.get(port.index())).map(|port| port.name.as_str()).collect()
    }

    /// Checks that a value of a match field does not name several ports where only one is possible.
    ///
    /// # Errors
    /// The error is the message.
    pub fn is_one(&self, field: Field, text: &str) -> Result<(), String> {
        let Some(several) = self.several(field, text) else { return Ok(()) };
        let (kind, ports) = (several.kind, self.port_names(several).join(", "));
        Err(format!(
            "`{text}` is a {kind} of several ports ({ports}), but only one fits here: match `port` per \
             entry, where a {kind} expands to its members"
        ))
    }
}
