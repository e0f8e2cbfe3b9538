//! Resolves the MAC addresses of neighbours for apps: a thread asks the kernel, whose neighbour table is the
//! only one. The kernel sends ARP requests and neighbour solicitations, refreshes entries by asking the
//! neighbour itself, and decides which unsolicited information to trust; its routes determine which router
//! leads to an address. The thread only asks the kernel to use a neighbour (`NTF_USE`) or to probe one
//! (`NUD_PROBE`), so nothing is left behind when the process ends.

mod world;

use super::doorbell::Doorbell;
use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};
use tracing::warn;
use weir_app::neighbour::{Found, Hop, Mac};
use weir_netlink::{Destination, Groups, Link, Monitor, Neighbour, NetlinkEvent, Object, Read};
use world::{NeighbourState, World};
pub use world::{Places, PortInterface};

/// How long an iteration waits while requests for neighbours are pending, or after changes of routes, so that
/// many are handled together; below, how long it waits otherwise.
const SHORT: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(1);

/// A state of a neighbour.
pub struct Met {
    /// The app that has requested the neighbour.
    pub app: Arc<str>,
    pub hop: Hop,
    pub found: Found,
}

/// An order for the thread.
enum Order {
    /// Set the places of ports.
    Place(Places),
    /// Follow these neighbours, for an app.
    Follow(Arc<str>, Vec<Hop>),
    /// Also follow the first list of neighbours for an app, and stop following the second.
    FollowOthers(Arc<str>, Arc<[Hop]>, Arc<[Hop]>),
    /// Check whether this neighbour is still reachable.
    Confirm(Hop),
}

/// The thread, once an app has asked for neighbours.
pub struct Neighbours {
    doorbell: Doorbell,
    places: Places,
    thread: Option<Thread>,
}

struct Thread {
    orders: Sender<Order>,
    bell: Doorbell,
    met: Receiver<Met>,
}

impl Neighbours {
    /// Creates an instance that follows no neighbours yet; `doorbell` wakes the main thread when there is
    /// news.
    pub fn new(doorbell: Doorbell) -> Neighbours {
        Neighbours { doorbell, places: Places::new(), thread: None }
    }

    /// Sets the places of ports from now on.
    pub fn place(&mut self, places: Places) {
        if places == self.places {
            return;
        }
        self.places.clone_from(&places);
        if let Some(thread) = &self.thread {
            thread.order(Order::Place(places));
        }
    }

    /// Sets the neighbours to follow for this app from now on.
    ///
    /// # Errors
    /// Fails if there is no thread.
    pub fn follow(&mut self, app: &str, hops: Vec<Hop>) -> Result<()> {
        self.order(Order::Follow(app.into(), hops))
    }

    /// Starts following `more` neighbours for this app, and stops following `less`.
    ///
    /// # Errors
    /// Fails if there is no thread.
    pub fn follow_others(&mut self, app: &str, more: Arc<[Hop]>, less: Arc<[Hop]>) -> Result<()> {
        self.order(Order::FollowOthers(app.into(), more, less))
    }

    /// Sends an order to the thread, starting the thread if there is none.
    fn order(&mut self, order: Order) -> Result<()> {
        if self.thread.is_none() {
            let thread =
                Thread::start(self.doorbell.clone()).context("cannot start a thread for neighbours")?;
            thread.order(Order::Place(self.places.clone()));
            self.thread = Some(thread);
        }
        if let Some(thread) = &self.thread {
            thread.order(order);
        }
        Ok(())
    }

    /// Checks whether a followed neighbour is still reachable.
    pub fn confirm(&self, hop: Hop) {
        if let Some(thread) = &self.thread {
            thread.order(Order::Confirm(hop));
        }
    }

    /// Returns news, if there is any.
    pub fn take(&self) -> Option<Met> {
        self.thread.as_ref()?.met.try_recv().ok()
    }
}

impl Drop for Neighbours {
    /// The thread ends when it finds that no more orders can arrive.
    fn drop(&mut self) {
        if let Some(Thread { orders, bell, .. }) = self.thread.take() {
            drop(orders);
            bell.ring();
        }
    }
}

impl Thread {
    fn order(&self, order: Order) {
        let _ = self.orders.send(order);
        self.bell.ring();
    }

    fn start(doorbell: Doorbell) -> Result<Thread> {
        let (orders, taken) = channel();
        let (report, met) = channel();
        let bell = Doorbell::new()?;
        let keeper = Keeper { orders: taken, bell: bell.clone(), report, doorbell, world: World::default() };
        std::thread::Builder::new().name("weir-neighbours".into()).spawn(move || keeper.run())?;
        Ok(Thread { orders, bell, met })
    }
}

/// The state of the thread.
struct Keeper {
    orders: Receiver<Order>,
    bell: Doorbell,
    report: Sender<Met>,
    doorbell: Doorbell,
    world: World,
}

impl Keeper {
    fn run(mut self) {
        // Before anything is read, so that no later change is missed.
        let mut news = match Monitor::open(Groups::ROUTING) {
            Ok(news) => news,
            Err(error) => return warn!("netlink does not report neighbours: {error}"),
        };
        let begun = Instant::now();
        let (mut pause, mut dirty) = (Duration::ZERO, true);
        loop {
            let mut fds =
                [news.as_fd(), self.bell.fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            let _ = poll(
                &mut fds,
                Some(&Timespec { tv_sec: pause.as_secs() as i64, tv_nsec: pause.subsec_nanos().into() }),
            );
            self.bell.answer();
            let was_dirty = dirty;
            match self.take_orders() {
                Some(ordered) => dirty |= ordered,
                None => return,
            }
            let ordered = dirty && !was_dirty;
            dirty |= self.read_news(&mut news);
            // Changes of routes come in bursts.
            if (was_dirty || ordered) && dirty {
                dirty = false;
                self.look(World::find_ways);
            } else if self.world.has_new() {
                self.look(World::find_new_ways);
            }
            self.report();
            let more = self.ask(begun.elapsed().as_nanos() as u64);
            self.report();
            pause = LONG;
            if more || dirty {
                std::thread::sleep(SHORT);
                pause = Duration::ZERO;
            }
        }
    }

    /// Looks up ways, and reads all neighbours.
    fn look(&mut self, find: FindWays) {
        if let Err(error) = look(&mut self.world, find) {
            warn!("the kernel's neighbours cannot be read: {error}");
        }
    }

    /// Takes orders. Returns whether all ways must be looked up again; `None` if no more orders can arrive.
    fn take_orders(&mut self) -> Option<bool> {
        let mut any = false;
        loop {
            match self.orders.try_recv() {
                Ok(Order::Confirm(hop)) => {
                    if let Some((index, address)) = self.world.way_of(&hop) {
                        // If the kernel refuses, it still detects a moved address by its own timers.
                        let _ = weir_netlink::probe_neighbour(index, address);
                    }
                }
                Ok(Order::Place(places)) => {
                    self.world.place(places);
                    any = true;
                }
                Ok(Order::Follow(app, hops)) => {
                    self.world.want(&app, hops);
                    any = true;
                }
                Ok(Order::FollowOthers(app, more, less)) => self.world.want_others(&app, &more, &less),
                Err(TryRecvError::Empty) => return Some(any),
                Err(TryRecvError::Disconnected) => return None,
            }
        }
    }

    /// Reads news. Returns true if routes must be looked up again.
    fn read_news(&mut self, news: &mut Monitor) -> bool {
        let mut dirty = false;
        let world = &mut self.world;
        let read = news.read(|kind, body| {
            let NetlinkEvent { exists, object } = NetlinkEvent::parse(kind, body);
            match object {
                Object::Neighbour(neighbour) => {
                    let (index, address, state) = known_state(&neighbour);
                    world.set(index, address, Some(state).filter(|_| exists));
                }
                // Frames for a neighbour do not depend on where a bridge forwards them.
                Object::Forwarding(_) => {}
                _ => dirty = true,
            }
        });
        dirty || read == Read::Lost
    }

    fn report(&mut self) {
        let news = self.world.news();
        let any = !news.is_empty();
        for (app, hop, found) in news {
            let _ = self.report.send(Met { app, hop, found });
        }
        if any {
            self.doorbell.ring();
        }
    }

    /// Asks for some neighbours. Returns true if there are more.
    fn ask(&mut self, now_ns: u64) -> bool {
        let (some, more) = self.world.ask(now_ns);
        for way in some {
            let why = weir_netlink::use_neighbour(way.0, way.1).err().map(|error| said(&error));
            self.world.answered(way, why.as_deref());
        }
        more
    }
}

/// Returns a neighbour's interface, address and state.
fn known_state(neighbour: &Neighbour) -> (u32, IpAddr, NeighbourState) {
    (neighbour.index, neighbour.address, NeighbourState::of(neighbour.state, neighbour.mac))
}

/// A function that looks up ways, given links and how to look up a route.
type FindWays = fn(&mut World, Vec<Link>, &dyn Fn(IpAddr, Option<u32>) -> Destination);

/// Looks up ways and reads all neighbours.
fn look(world: &mut World, find: FindWays) -> io::Result<()> {
    find(world, weir_netlink::links()?, &weir_netlink::route_to);
    world.replace(weir_netlink::neighbours()?.iter().map(known_state).collect());
    Ok(())
}

/// Returns why the kernel does not resolve a neighbour.
fn said(error: &io::Error) -> String {
    const ENOBUFS: i32 = 105;
    const EPERM: i32 = 1;
    match error.raw_os_error() {
        Some(ENOBUFS) => "its table of neighbours is full (net.ipv4.neigh.default.gc_thresh3)".to_string(),
        Some(EPERM) => "that needs CAP_NET_ADMIN".to_string(),
        _ => error.to_string(),
    }
}

/// Returns what the kernel already knows, without sending any request.
pub fn known(places: Places, hops: Vec<Hop>) -> HashMap<Hop, Mac> {
    if hops.is_empty() {
        return HashMap::new();
    }
    let mut world = World::default();
    world.place(places);
    world.want(&"".into(), hops);
    if look(&mut world, World::find_ways).is_err() {
        return HashMap::new();
    }
    world.news().into_iter().filter_map(|(_, hop, found)| Some((hop, found.ok()?))).collect()
}
