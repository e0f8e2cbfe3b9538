//! The kernel's side: the table, and the device that its routes lead to. Routes of other programs are never
//! touched.

use super::handed::Handed;
use crate::config::RoutesConfig;
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use weir_app::route::Prefix;
use weir_netlink::DeviceRoute;
use weir_port::tun::{RouteDevice, RouteDeviceError};

/// Where routes are written. Tests have an implementation other than the kernel's table.
pub trait RouteTable: Send {
    /// Adds a route, unless it exists.
    ///
    /// # Errors
    /// The error says why the route cannot be added and, where possible, what to do.
    fn add(&mut self, prefix: Prefix, metric: u32, is_new: bool) -> Result<(), String>;

    /// Removes a route, if it exists.
    ///
    /// # Errors
    /// Returns the kernel's error.
    fn remove(&mut self, prefix: Prefix, metric: u32) -> Result<(), String>;

    /// Returns the descriptor that the routes depend on, if there is one.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Returns the protocol number and the device of its routes, once there is a device.
    fn own(&self) -> Option<(u8, u32)>;
}

/// A routing table of the kernel.
pub struct KernelTable {
    table: u32,
    protocol: u8,
    name: String,
    /// The device, which is created when it is first needed.
    device: Option<RouteDevice>,
    /// A predecessor's device with another name, and its routes in another table, which end once this
    /// process has routes of its own.
    former: (Option<RouteDevice>, Vec<DeviceRoute>),
}

impl KernelTable {
    /// The table of a configuration.
    pub fn new(config: &RoutesConfig) -> KernelTable {
        let RoutesConfig { table, protocol, device, .. } = config;
        let (table, protocol, name) = (*table, *protocol, device.clone());
        KernelTable { table, protocol, name, device: None, former: (None, Vec::new()) }
    }

    /// Continues with a predecessor's device. Returns whether its routes are this table's.
    pub fn adopt(&mut self, device: RouteDevice, handed: &Handed) -> bool {
        let (is_same, Handed { table, protocol, routes, .. }) = (device.name() == self.name, handed);
        if is_same && (*table, *protocol) == (self.table, self.protocol) {
            self.device = Some(device);
            return true;
        }
        let index = device.index();
        let before = |(prefix, metric, _): &(Prefix, u32, u64)| {
            let (address, prefix, metric) = (prefix.address, prefix.length, *metric);
            DeviceRoute { address, prefix, metric, table: *table, protocol: *protocol, device: index }
        };
        if is_same {
            self.device = Some(device);
            self.former.1 = routes.iter().map(before).collect();
        } else {
            self.former.0 = Some(device);
        }
        false
    }

    fn create(&self) -> Result<RouteDevice, String> {
        RouteDevice::create(&self.name).map_err(|error| device_error(&self.name, &error))
    }

    fn route(&self, device: &RouteDevice, prefix: Prefix, metric: u32) -> DeviceRoute {
        let (table, protocol, device) = (self.table, self.protocol, device.index());
        DeviceRoute { address: prefix.address, prefix: prefix.length, metric, table, protocol, device }
    }
}

impl RouteTable for KernelTable {
    fn add(&mut self, prefix: Prefix, metric: u32, is_new: bool) -> Result<(), String> {
        let mut device = match self.device.take() {
            Some(device) => device,
            None => self.create()?,
        };
        let mut added = self.route(&device, prefix, metric).add();
        // The host may have set the device down or removed it, and the kernel has removed all routes to it.
        if added.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NetworkDown) {
            added = device.set_up().and_then(|()| self.route(&device, prefix, metric).add());
        } else if added.as_ref().is_err_and(|error| is(error, Errno::NODEV)) {
            device = self.create()?;
            added = self.route(&device, prefix, metric).add();
        }
        self.device = Some(device);
        match added {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && is_new => {
                let table = self.table;
                Err(format!("table {table} already has a route of another program to {prefix}"))
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let what = if prefix.address.is_ipv6() {
                    "IPv6 may be disabled at the device"
                } else {
                    "CAP_NET_ADMIN is missing"
                };
                Err(format!("the kernel refuses the route: {error}; {what}"))
            }
            Err(error) => Err(format!("the kernel refuses the route: {error}")),
            Ok(()) => {
                self.former.0 = None;
                // They may already be gone.
                self.former.1.drain(..).for_each(|route| drop(route.remove()));
                Ok(())
            }
        }
    }

    fn remove(&mut self, prefix: Prefix, metric: u32) -> Result<(), String> {
        let Some(device) = &self.device else { return Ok(()) };
        match self.route(device, prefix, metric).remove() {
            // Another program may have removed the route or its device.
            Err(error) if is(&error, Errno::SRCH) || is(&error, Errno::NODEV) => Ok(()),
            removed => removed.map_err(|error| format!("the kernel does not remove the route: {error}")),
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.device.as_ref().map(AsFd::as_fd)
    }

    fn own(&self) -> Option<(u8, u32)> {
        self.device.as_ref().map(|device| (self.protocol, device.index()))
    }
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

/// Says what a device needs.
fn device_error(name: &str, error: &RouteDeviceError) -> String {
    use io::ErrorKind::{NotFound, PermissionDenied, ResourceBusy};
    let (kind, advice) = match error {
        RouteDeviceError::File(why) => (why.kind(), "with systemd, write `DeviceAllow=/dev/net/tun rw`"),
        RouteDeviceError::Create(why) => (why.kind(), "CAP_NET_ADMIN is needed"),
        RouteDeviceError::SetUp(why) => (why.kind(), "CAP_NET_ADMIN is needed"),
    };
    match (error, kind) {
        (RouteDeviceError::File(_), NotFound) => {
            format!("{error}: `modprobe tun`; in a container, pass the device on")
        }
        (_, PermissionDenied) => format!("{error}: {advice}"),
        (RouteDeviceError::Create(_), ResourceBusy) => {
            format!("{error}: another process, perhaps another weir, has the device `{name}`")
        }
        (RouteDeviceError::Create(_), io::ErrorKind::InvalidInput) => {
            format!("{error}: an interface of another kind may have the name `{name}`")
        }
        _ => error.to_string(),
    }
}
