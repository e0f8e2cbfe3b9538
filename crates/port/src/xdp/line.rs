//! What the daemon and a worker share about one queue: the daemon follows the interface, the worker owns the
//! port.
//!
//! When an interface disappears, the daemon orders the port to detach; when it is back, the daemon opens a
//! new socket, which takes milliseconds and is therefore done here, and orders the port to use it. The worker
//! looks for an order once per breath, at the cost of one load.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::interface::Attached;
use super::socket::{Binding, Socket};
use super::umem::Area;
use super::{Mode, Rings, XdpError};

/// A socket on a queue of an interface with weir's program.
pub(super) struct Bound {
    pub(super) socket: Socket,
    pub(super) mode: Mode,
    /// Keeps the program attached as long as the socket is in use.
    pub(super) interface: Arc<Attached>,
}

impl Bound {
    /// Opens a socket; no frame arrives before it is announced.
    pub(super) fn open(interface: Arc<Attached>, queue: u32, area: Area) -> Result<Bound, XdpError> {
        Bound::of(None, interface, queue, area)
    }

    /// The same with a socket that is not bound yet, if there is one.
    fn of(
        unbound: Option<Socket>,
        interface: Arc<Attached>,
        queue: u32,
        area: Area,
    ) -> Result<Bound, XdpError> {
        interface.check_queue(queue)?;
        let rings = interface.rings();
        rings.check()?;
        let zero_copy = interface.zero_copy();
        let (name, index, in_pieces) = (interface.name(), interface.index(), area.is_big());
        let binding = Binding { interface: name, index, queue, rings, zero_copy, in_pieces };
        let socket = match unbound {
            Some(mut socket) => socket.bind(&binding).map(|()| socket)?,
            None => Socket::open(&binding, area)?,
        };
        let mode = interface.mode(socket.is_zero_copy());
        Ok(Bound { socket, mode, interface })
    }

    /// Enters the socket in the program's map: from here on frames arrive.
    pub(super) fn announce(&self, queue: u32) -> Result<(), XdpError> {
        self.interface.set_socket(queue, self.socket.as_fd())
    }
}

/// What a port is to do next.
pub(super) enum Order {
    Nothing,
    /// The interface is gone: give the socket up.
    Detach,
    /// Use this socket.
    Attach(Box<Bound>),
}

/// A queue of a port, as both sides know it.
pub(super) struct Line {
    queue: u32,
    area: Area,
    frame_max: AtomicUsize,
    ordered: AtomicBool,
    /// `None` once the port is closed: its memory may be gone, and must not be registered any more.
    order: Mutex<Option<Order>>,
    /// A socket for an interface that will be handed over.
    unbound: Mutex<Option<Socket>>,
}

impl Line {
    pub(super) fn new(queue: u32, area: Area, frame_max: usize) -> Line {
        let order = Mutex::new(Some(Order::Nothing));
        Line {
            queue,
            area,
            frame_max: frame_max.into(),
            ordered: false.into(),
            order,
            unbound: Mutex::default(),
        }
    }

    /// Opens the socket, as far as that is possible before the interface is handed over.
    pub(super) fn prepare(&self, interface: &str, rings: Rings) -> Result<(), XdpError> {
        rings.check()?;
        let (index, queue, in_pieces) = (0, self.queue, self.area.is_big());
        let binding = Binding { interface, index, queue, rings, zero_copy: None, in_pieces };
        let socket = Socket::unbound(&binding, self.area)?;
        *self.unbound.lock().unwrap_or_else(PoisonError::into_inner) = Some(socket);
        Ok(())
    }

    pub(super) fn queue(&self) -> u32 {
        self.queue
    }

    /// Returns the length of the longest frame that can be sent.
    #[inline]
    pub(super) fn frame_max(&self) -> usize {
        self.frame_max.load(Ordering::Relaxed)
    }

    pub(super) fn set_frame_max(&self, frame_max: usize) {
        self.frame_max.store(frame_max, Ordering::Relaxed);
    }

    /// Opens a socket on the interface for the port. The lock is held meanwhile, so that the port's memory
    /// stays.
    pub(super) fn attach(&self, interface: &Arc<Attached>) -> Result<(), XdpError> {
        let mut order = self.order();
        if let Some(order) = &mut *order {
            let unbound = self.unbound.lock().unwrap_or_else(PoisonError::into_inner).take();
            let bound = Bound::of(unbound, Arc::clone(interface), self.queue, self.area)?;
            bound.announce(self.queue)?;
            *order = Order::Attach(Box::new(bound));
            self.ordered.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Orders the port to give its socket up.
    pub(super) fn detach(&self) {
        if let Some(order) = &mut *self.order() {
            *order = Order::Detach;
            self.ordered.store(true, Ordering::Release);
        }
    }

    /// Returns true if the port is closed.
    pub(super) fn is_closed(&self) -> bool {
        self.order().is_none()
    }

    /// Takes what the daemon has ordered. Does not wait: an order that is being given is seen in a later
    /// breath.
    #[inline]
    pub(super) fn take_order(&self) -> Order {
        if !self.ordered.load(Ordering::Acquire) { Order::Nothing } else { self.take_slowly() }
    }

    #[cold]
    fn take_slowly(&self) -> Order {
        let Ok(mut order) = self.order.try_lock() else { return Order::Nothing };
        self.ordered.store(false, Ordering::Relaxed);
        order.as_mut().map_or(Order::Nothing, |order| std::mem::replace(order, Order::Nothing))
    }

    /// Ends the exchange of orders. Waits for a socket that is just being opened.
    pub(super) fn close(&self) {
        *self.unbound.lock().unwrap_or_else(PoisonError::into_inner) = None;
        *self.order() = None;
    }

    fn order(&self) -> MutexGuard<'_, Option<Order>> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
