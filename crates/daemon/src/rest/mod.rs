//! Control of services and back ends over HTTP: paths and methods are translated to requests to the app, like
//! those over the control socket. The server is that of `http.rs`.

mod gate;
mod routes;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
mod tls;

pub use gate::{Gate, Verdict, refused};
pub use routes::{Names, Route, Takes, description, find, pick, request};
pub use tls::Acceptor;

use super::inherited::{CONTROL, Inherited};
use crate::config::ControlOver;
use anyhow::{Context, Result};
use std::net::TcpListener;
use std::sync::Arc;

/// What is needed to listen, read while the process may still read everything.
pub struct Ready {
    control: ControlOver,
    gate: Arc<Gate>,
    tls: Option<Acceptor>,
}

/// A listener, and who is admitted, and how.
pub struct Entrance {
    pub listener: TcpListener,
    pub gate: Arc<Gate>,
    pub tls: Option<Acceptor>,
}

impl Ready {
    /// Reads the token, the certificate and its key.
    pub fn prepare(control: &ControlOver) -> Result<Ready> {
        let gate = Arc::new(Gate::open(control)?);
        let tls = control.tls.as_ref().map(|(certificate, key)| Acceptor::new(certificate, key));
        let tls = tls.transpose().context("control: tls")?;
        Ok(Ready { control: control.clone(), gate, tls })
    }

    /// Begins to listen on the configured address, or continues with an inherited socket.
    pub fn bind(self, inherited: &Inherited) -> Result<Entrance> {
        let address = self.control.listen;
        let listener = match inherited.tcp(CONTROL, address)? {
            Some(listener) => listener,
            None => {
                TcpListener::bind(address).with_context(|| format!("control: cannot listen on {address}"))?
            }
        };
        Ok(Entrance { listener, gate: self.gate, tls: self.tls })
    }
}
