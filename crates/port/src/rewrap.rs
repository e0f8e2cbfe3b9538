//! Changes the wrappers of a port while it runs. The recording wraps the faults: it shows what the program
//! sees.

use crate::trace::Recording;
use crate::{FaultPort, Faults, TracePort};
use std::any::Any;
use weir_packet::Port;

/// What happens to a port's recording.
pub enum Retrace {
    /// The recording, if any, continues.
    Keep,
    /// The recording, if any, ends, and another one may begin.
    Change(Option<Box<Recording>>),
}

/// Replaces the faults and the recording of a port. If `faults` is `None`, a fault wrapper stays in place
/// with all rates 0, because it holds the counts of past faults.
#[must_use]
pub fn rewrap(port: Box<dyn Port>, faults: Option<Faults>, trace: Retrace) -> Box<dyn Port> {
    match (downcast::<TracePort>(port), trace) {
        (Ok(traced), Retrace::Keep) => Box::new(traced.map(|port| refault(port, faults))),
        (Ok(traced), Retrace::Change(new)) => retrace(refault(traced.into_inner(), faults), new),
        (Err(port), Retrace::Keep) => refault(port, faults),
        (Err(port), Retrace::Change(new)) => retrace(refault(port, faults), new),
    }
}

fn refault(port: Box<dyn Port>, faults: Option<Faults>) -> Box<dyn Port> {
    match (downcast::<FaultPort>(port), faults) {
        (Ok(mut faulty), faults) => {
            faulty.change(faults.unwrap_or_default());
            faulty
        }
        (Err(port), Some(faults)) => Box::new(FaultPort::new(port, faults)),
        (Err(port), None) => port,
    }
}

fn retrace(port: Box<dyn Port>, recording: Option<Box<Recording>>) -> Box<dyn Port> {
    match recording {
        Some(recording) => Box::new(TracePort::with(port, *recording)),
        None => port,
    }
}

/// Returns the port as a wrapper of this kind, or else the port itself.
fn downcast<P: Port>(port: Box<dyn Port>) -> Result<Box<P>, Box<dyn Port>> {
    if !(&*port as &dyn Any).is::<P>() {
        return Err(port);
    }
    let port: Box<dyn Any> = port;
    Ok(port.downcast().expect("just asked"))
}
