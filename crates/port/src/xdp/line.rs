//! The state that the daemon and a worker share about one queue: the daemon follows the interface, the worker
//! owns the port.
//!
//! When an interface disappears, the daemon orders the port to detach; when it is back, the daemon opens a
//! new socket itself, because that takes milliseconds, and orders the port to use it. The worker looks for an
//! order once per breath, at the cost of one load.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::io;
use weir_packet::RegionPool;

use super::interface::Attached;
use super::socket::{Binding, Socket};
use super::succession::{Home, Left, Offer, SocketHandOver};
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

    /// Like [`Bound::open`], but binds an unbound socket that is already open, if there is one.
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
        let binding = Binding { interface: &name, index, queue, rings, zero_copy, in_pieces };
        let socket = match unbound {
            Some(mut socket) => socket.bind(&binding).map(|()| socket)?,
            None => Socket::open(&binding, area)?,
        };
        let mode = interface.mode(socket.is_zero_copy());
        Ok(Bound { socket, mode, interface })
    }

    /// Enters the socket in the program's map: from now on frames arrive.
    pub(super) fn announce(&self, queue: u32) -> Result<(), XdpError> {
        self.interface.set_socket(queue, self.socket.as_fd())
    }
}

/// What a port should do next.
pub(super) enum Order {
    Nothing,
    /// The interface is gone: give up the socket.
    Detach,
    /// Use this socket.
    Attach(Box<Bound>),
    /// Add these chunks to the pool.
    Home(Home),
    /// Use this socket, which another process has left.
    Resume(Box<Bound>, Left),
}

/// The daemon's orders, which are carried out in the order of these fields.
struct Orders {
    home: Option<Home>,
    resume: Option<(Box<Bound>, Left)>,
    last: Order,
}

impl Orders {
    fn next(&mut self) -> Order {
        if let Some(home) = self.home.take() {
            return Order::Home(home);
        }
        if let Some((bound, left)) = self.resume.take() {
            return Order::Resume(bound, left);
        }
        std::mem::replace(&mut self.last, Order::Nothing)
    }

    fn is_empty(&self) -> bool {
        self.home.is_none() && self.resume.is_none() && matches!(self.last, Order::Nothing)
    }
}

/// What happens to a socket when its port is closed.
#[derive(Default)]
enum SocketFate {
    #[default]
    Close,
    /// The socket stays open, because another process will continue with it.
    Leave,
    /// The port is closed and its socket open: this is what the other process needs to know about it.
    Left(Left),
}

/// A port's queue, as both sides see it.
pub(super) struct Line {
    queue: u32,
    area: Area,
    frame_max: AtomicUsize,
    ordered: AtomicBool,
    /// The orders; `None` once the port is closed: its memory may be gone, and must no longer be registered.
    order: Mutex<Option<Orders>>,
    /// A socket for an interface that will be handed over.
    unbound: Mutex<Option<Socket>>,
    /// A bound socket that will be handed over.
    adopted: Mutex<Option<Socket>>,
    source: SocketHandOver,
    /// The socket that the port currently uses.
    current: Mutex<Weak<OwnedFd>>,
    fate: Mutex<SocketFate>,
}

impl Line {
    pub(super) fn new(queue: u32, pool: &RegionPool, frame_max: usize) -> Line {
        let order = Mutex::new(Some(Orders { home: None, resume: None, last: Order::Nothing }));
        Line {
            queue,
            area: Area::of(pool),
            frame_max: frame_max.into(),
            ordered: false.into(),
            order,
            unbound: Mutex::default(),
            adopted: Mutex::default(),
            source: SocketHandOver::of(pool),
            current: Mutex::default(),
            fate: Mutex::default(),
        }
    }

    /// Opens the socket, as far as that is possible before the interface is handed over.
    pub(super) fn prepare(&self, interface: &str, rings: Rings) -> Result<(), XdpError> {
        rings.check()?;
        let (index, queue, in_pieces) = (0, self.queue, self.area.is_big());
        let binding = Binding { interface, index, queue, rings, zero_copy: None, in_pieces };
        let socket = Socket::unbound(&binding, self.area)?;
        *locked(&self.unbound) = Some(socket);
        Ok(())
    }

    /// Maps the rings of a socket that another process will hand over.
    pub(super) fn adopt(&self, offer: Offer) -> io::Result<()> {
        *locked(&self.adopted) = Some(Socket::of_another(offer.socket, &offer.rings)?);
        Ok(())
    }

    /// Whether another process will hand the socket over.
    pub(super) fn has_adopted(&self) -> bool {
        locked(&self.adopted).is_some()
    }

    /// Closes the socket that another process was going to hand over.
    pub(super) fn forget_adopted(&self) {
        *locked(&self.adopted) = None;
    }

    /// Orders the port to add these chunks to its pool.
    pub(super) fn bring_home(&self, home: Home) {
        self.change_orders(|orders| orders.home = Some(home));
    }

    /// Orders the port to use the socket that the other process has left. Returns false if there is none.
    pub(super) fn resume(&self, interface: &Arc<Attached>, left: Option<Left>) -> Result<bool, XdpError> {
        let Some((mut socket, left)) = locked(&self.adopted).take().zip(left) else { return Ok(false) };
        if !socket.resume(left.lost) {
            return Err(XdpError::System {
                doing: "continuing with another process's rings",
                interface: interface.name(),
                reason: io::Errno::INVAL.into(),
            });
        }
        self.uses(&socket);
        let (mode, interface) = (interface.mode(socket.is_zero_copy()), Arc::clone(interface));
        let bound = Bound { socket, mode, interface };
        bound.announce(self.queue)?;
        self.change_orders(|orders| orders.resume = Some((Box::new(bound), left)));
        Ok(true)
    }

    /// Records the socket that the port uses from now on.
    pub(super) fn uses(&self, socket: &Socket) {
        *locked(&self.current) = socket.weak();
    }

    /// Returns the open socket, for another process.
    pub(super) fn socket(&self) -> Option<OwnedFd> {
        let current = locked(&self.current).upgrade()?;
        current.try_clone().ok()
    }

    pub(super) fn source(&self) -> &SocketHandOver {
        &self.source
    }

    /// Makes the port leave its socket open when it is closed.
    pub(super) fn leave_open(&self) {
        *locked(&self.fate) = SocketFate::Leave;
    }

    /// Whether the port will leave its socket open.
    pub(super) fn is_left_open(&self) -> bool {
        matches!(*locked(&self.fate), SocketFate::Leave)
    }

    /// Records the state in which the port has left its socket.
    pub(super) fn leave(&self, left: Left) {
        *locked(&self.fate) = SocketFate::Left(left);
    }

    /// Returns the state in which the port has left its socket: once, and `None` after that.
    pub(super) fn left(&self) -> Option<Left> {
        match std::mem::take(&mut *locked(&self.fate)) {
            SocketFate::Left(left) => Some(left),
            _ => None,
        }
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

    /// Opens a socket on the interface for the port. Holds the lock meanwhile, so that the port's memory
    /// stays valid.
    pub(super) fn attach(&self, interface: &Arc<Attached>) -> Result<(), XdpError> {
        let mut order = self.order();
        if let Some(orders) = &mut *order {
            let unbound = locked(&self.unbound).take();
            let bound = Bound::of(unbound, Arc::clone(interface), self.queue, self.area)?;
            bound.announce(self.queue)?;
            self.uses(&bound.socket);
            orders.last = Order::Attach(Box::new(bound));
            self.ordered.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Orders the port to give up its socket.
    pub(super) fn detach(&self) {
        self.change_orders(|orders| orders.last = Order::Detach);
    }

    fn change_orders(&self, how: impl FnOnce(&mut Orders)) {
        if let Some(orders) = &mut *self.order() {
            how(orders);
            self.ordered.store(true, Ordering::Release);
        }
    }

    /// Returns true if the port has taken all orders. It carries out the last one before its worker answers
    /// any later command.
    pub(super) fn has_obeyed(&self) -> bool {
        !self.ordered.load(Ordering::Acquire)
    }

    /// Returns true if the port is closed.
    pub(super) fn is_closed(&self) -> bool {
        self.order().is_none()
    }

    /// Takes the daemon's orders without waiting: an order that is being written is seen in a later breath.
    #[inline]
    pub(super) fn take_order(&self) -> Order {
        if !self.ordered.load(Ordering::Acquire) { Order::Nothing } else { self.take_slowly() }
    }

    #[cold]
    fn take_slowly(&self) -> Order {
        let Ok(mut order) = self.order.try_lock() else { return Order::Nothing };
        let next = order.as_mut().map_or(Order::Nothing, Orders::next);
        self.ordered.store(order.as_ref().is_some_and(|orders| !orders.is_empty()), Ordering::Relaxed);
        next
    }

    /// Ends the exchange of orders. If a socket is being opened, waits until it is open.
    pub(super) fn close(&self) {
        *locked(&self.unbound) = None;
        self.forget_adopted();
        *self.order() = None;
    }

    fn order(&self) -> MutexGuard<'_, Option<Orders>> {
        locked(&self.order)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
