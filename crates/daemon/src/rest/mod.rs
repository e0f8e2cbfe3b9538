//! Control of apps over HTTP ([`HttpControl`](weir_app::http::HttpControl)): paths and methods are translated
//! to requests to the app, like those over the control socket. The server is that of `http.rs`.

mod gate;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
mod tls;

pub use gate::{Gate, Rights, Verdict, refused};
pub use tls::Acceptor;

use super::inherited::{CONTROL, Inherited};
use crate::config::{ControlOver, Plan};
use anyhow::{Context, Result};
use std::net::TcpListener;
use std::sync::Arc;
use weir_app::http::HttpControls;

/// Everything that is needed to listen, read while the process still has the privilege to read it.
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
    /// Reads what a plan needs, if it has control over HTTP.
    pub fn of(plan: &Plan) -> Result<Option<Ready>> {
        plan.control
            .as_ref()
            .map(|control| Ready::prepare(control, HttpControls(plan.apps.kinds())))
            .transpose()
    }

    /// Reads the token, the certificate and its key.
    fn prepare(control: &ControlOver, apps: HttpControls) -> Result<Ready> {
        let gate = Arc::new(Gate::open(control, apps)?);
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
