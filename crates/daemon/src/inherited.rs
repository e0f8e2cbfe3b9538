//! Sockets that another process has opened for this process: systemd (`sd_listen_fds(3)`), or the daemon that
//! this one replaces. Clients that connect while weir starts or restarts then wait instead of being refused.
//!
//! The environment says how many descriptors there are from 3 on, for which process they are, and what each
//! is called (`FileDescriptorName=` of its `.socket` unit). A descriptor named like a key of the
//! configuration is for that key; any other is for the key that has its address.

use anyhow::{Context, Result, bail};
use rustix::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::sockopt::{socket_acceptconn, socket_domain, socket_type};
use rustix::net::{AddressFamily, SocketType};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::IntoRawFd;
use std::os::unix::net::UnixListener;
use std::path::Path;

/// The first descriptor that systemd passes (`SD_LISTEN_FDS_START`).
const FIRST: RawFd = 3;
/// The maximum number passed: more than there are uses.
const MOST: usize = 16;

/// The uses of sockets, and their names: the keys of the configuration.
pub const SOCKET: &str = "socket";
pub const METRICS: &str = "metrics";
pub const CONTROL: &str = "control";
const KEYS: [&str; 3] = [SOCKET, METRICS, CONTROL];

/// Sockets that were opened by others, with their names.
#[derive(Debug, Default)]
pub struct Inherited(Vec<(String, OwnedFd)>);

impl Inherited {
    /// Takes the sockets that systemd has passed to this process. Called once, before anything else is
    /// opened.
    ///
    /// # Errors
    /// Fails if the descriptors that were passed do not match the environment.
    pub fn take() -> Result<Inherited> {
        let said = |name: &str| std::env::var(name).ok();
        let is_ours = said("LISTEN_PID").is_some_and(|pid| pid == std::process::id().to_string());
        let Some(count) = said("LISTEN_FDS").filter(|_| is_ours) else { return Ok(Inherited::default()) };
        let names = names(&count, said("LISTEN_FDNAMES").as_deref())?;
        let sockets: Result<Vec<_>> = (FIRST..).zip(names).map(own).collect();
        Ok(Inherited(sockets?))
    }

    /// Wraps the sockets that another daemon passes on, with their names.
    pub fn from(sockets: impl Iterator<Item = (String, OwnedFd)>) -> Inherited {
        Inherited(sockets.collect())
    }

    /// Returns all sockets, to pass them on.
    pub fn all(&self) -> impl Iterator<Item = (&str, BorrowedFd<'_>)> {
        self.0.iter().map(|(name, socket)| (name.as_str(), socket.as_fd()))
    }

    /// Returns the control socket, which must be at this path.
    ///
    /// # Errors
    /// Fails if the socket meant for this path is another one.
    pub fn unix(&self, path: &Path) -> Result<Option<UnixListener>> {
        let at = |socket: &OwnedFd| {
            let listener = UnixListener::from(socket.try_clone().ok()?);
            let address = listener.local_addr().ok()?;
            address.as_pathname().map(Path::to_path_buf)
        };
        // Its path may be spelled differently.
        let same = |found: &Path| std::fs::canonicalize(found).ok() == std::fs::canonicalize(path).ok();
        let mine = |socket: &OwnedFd| at(socket).is_some_and(|found| same(&found));
        let Some(socket) = self.find(SOCKET, AddressFamily::UNIX, mine)? else { return Ok(None) };
        if !mine(socket) {
            let there = at(socket).unwrap_or_default();
            bail!("the inherited socket is {}, but `socket` says {}", there.display(), path.display());
        }
        Ok(Some(UnixListener::from(socket.try_clone()?)))
    }

    /// Returns the listener of a key. It must have this address, unless it has the key's name.
    ///
    /// # Errors
    /// Fails if a socket has that name, but is not a TCP listener.
    pub fn tcp(&self, key: &str, address: SocketAddr) -> Result<Option<TcpListener>> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let mine = |socket: &OwnedFd| {
            let at = |socket| TcpListener::from(socket).local_addr().ok();
            socket.try_clone().ok().and_then(at) == Some(address)
        };
        let found = self.find(key, family, mine)?;
        found.map(|socket| Ok(TcpListener::from(socket.try_clone()?))).transpose()
    }

    /// Finds the socket with the name of a key, or else an unnamed socket of this family with the key's
    /// address.
    fn find(
        &self,
        key: &str,
        family: AddressFamily,
        has_address: impl Fn(&OwnedFd) -> bool,
    ) -> Result<Option<&OwnedFd>> {
        if let Some((_, socket)) = self.0.iter().find(|(name, _)| name == key) {
            let is_unix = |one| one == AddressFamily::UNIX;
            if !listens(socket) || socket_domain(socket).map(is_unix) != Ok(is_unix(family)) {
                let kind = if is_unix(family) { "a Unix stream socket" } else { "a TCP socket" };
                bail!("the socket inherited as `{key}` is not {kind} in the listening state");
            }
            return Ok(Some(socket));
        }
        let free = self.0.iter().filter(|(name, _)| !KEYS.contains(&name.as_str()));
        let mut free = free.map(|(_, socket)| socket).filter(|socket| listens(socket));
        Ok(free.find(|socket| socket_domain(socket) == Ok(family) && has_address(socket)))
    }
}

/// Whether a socket accepts connections.
fn listens(socket: &OwnedFd) -> bool {
    socket_type(socket) == Ok(SocketType::STREAM) && socket_acceptconn(socket) == Ok(true)
}

/// Returns the names of `count` descriptors, which may have no names at all.
fn names(count: &str, names: Option<&str>) -> Result<Vec<String>> {
    let Some(count) = count.parse().ok().filter(|count| *count <= MOST) else {
        bail!("LISTEN_FDS is `{count}`: expected a number up to {MOST}");
    };
    let names = names.map(|names| names.split(':').map(str::to_string).collect::<Vec<_>>());
    let names = names.filter(|names| count > 0 || *names != [""]);
    match names {
        Some(names) if names.len() != count => {
            bail!("LISTEN_FDNAMES has {} names, but LISTEN_FDS is {count}", names.len())
        }
        Some(names) => Ok(names),
        None => Ok(vec![String::new(); count]),
    }
}

/// Takes a descriptor that was passed.
fn own((descriptor, name): (RawFd, String)) -> Result<(String, OwnedFd)> {
    // SAFETY: according to the environment, it was opened for this process, which has opened nothing before
    // and takes it once.
    let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
    // Programs that weir starts do not inherit it.
    if let Err(error) = fcntl_setfd(&socket, FdFlags::CLOEXEC) {
        // The descriptor is not open, so it must not be closed either.
        let _ = socket.into_raw_fd();
        return Err(error).with_context(|| format!("LISTEN_FDS: descriptor {descriptor}"));
    }
    Ok((name, socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(sockets: Vec<(&str, OwnedFd)>) -> Inherited {
        Inherited::from(sockets.into_iter().map(|(name, socket)| (name.to_string(), socket)))
    }

    #[test]
    fn names_belong_to_descriptors_or_are_missing_altogether() {
        let good = |count, given| names(count, given).unwrap();
        assert_eq!(good("2", Some("socket:metrics")), ["socket", "metrics"]);
        assert_eq!(good("2", Some(":metrics")), ["", "metrics"]);
        assert_eq!(good("2", None), ["", ""]);
        assert_eq!(good("0", Some("")), [""; 0]);
        for (count, given) in
            [("2", Some("socket")), ("1", Some("a:b")), ("-1", None), ("x", None), ("17", None)]
        {
            assert!(names(count, given).is_err(), "{count} {given:?}");
        }
    }

    #[test]
    fn a_socket_is_for_the_key_that_it_is_called_or_whose_address_it_has() {
        let listener = || TcpListener::bind("127.0.0.1:0").unwrap();
        let (named, other) = (listener(), listener());
        let (of_named, of_other) = (named.local_addr().unwrap(), other.local_addr().unwrap());
        let all = passed(vec![("weir.socket", other.into()), (METRICS, named.into())]);
        let at = |key, address| all.tcp(key, address).unwrap().map(|found| found.local_addr().unwrap());
        assert_eq!(at(METRICS, of_other), Some(of_named), "the name decides");
        assert_eq!(at(CONTROL, of_other), Some(of_other));
        assert_eq!(at(CONTROL, of_named), None, "that is for metrics");
        assert_eq!(all.all().map(|(name, _)| name).collect::<Vec<_>>(), ["weir.socket", METRICS]);
        assert!(all.unix(Path::new("/run/weir.sock")).unwrap().is_none());
    }

    #[test]
    fn what_is_no_such_socket_is_refused() {
        let address = "127.0.0.1:9105".parse().unwrap();
        let file = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let said = passed(vec![(METRICS, file())]).tcp(METRICS, address).unwrap_err().to_string();
        assert!(said.contains("`metrics` is not a TCP socket in the listening state"), "{said}");
        let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(passed(vec![(METRICS, datagrams.into())]).tcp(METRICS, address).is_err());
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let said = passed(vec![(SOCKET, tcp.into())]).unix(Path::new("/run/weir.sock")).unwrap_err();
        assert!(said.to_string().contains("not a Unix stream socket"), "{said}");
        assert!(passed(vec![("", file())]).tcp(METRICS, address).unwrap().is_none());
    }
}
