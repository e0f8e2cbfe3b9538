//! The receiver of `weir bench rate`, on this host or on another one.
//!
//! A sender on another host asks over TCP: each request is a line of JSON, `{"do":"counters"}`, and so is
//! each answer. A receiver serves one sender at a time. There is nothing that a sender could change.

use super::{RateCounters, Receiver, Say};
use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};
use weir_app::kind::BadInput;
use weir_lab::Interrupt;
use weir_lab::weir::Weir;

/// How long the other end may be silent.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(10);

/// Interval between two checks for signals.
const POLL: Duration = Duration::from_millis(100);

/// The most bytes of a request, and of an answer: a few hundred buckets of times.
const REQUEST_MAX: u64 = 256;
const ANSWER_MAX: u64 = 1 << 20;

/// A daemon on this host.
pub struct Near<'a> {
    pub weir: &'a Weir,
    /// The interface on which frames return; without it, those that the daemon received are counted.
    pub to: Option<&'a str>,
}

impl Receiver for Near<'_> {
    fn counters(&mut self) -> Result<RateCounters> {
        let mut counters = RateCounters::take(self.weir)?;
        if let Some(to) = self.to {
            counters.arrived = arrived(to)?;
        }
        Ok(counters)
    }
}

/// Returns the frames that the kernel has received on an interface.
fn arrived(interface: &str) -> Result<u64> {
    let table = std::fs::read_to_string("/proc/net/dev").context("/proc/net/dev")?;
    let line = table.lines().find_map(|line| line.trim().strip_prefix(interface)?.strip_prefix(':'));
    let line = line.with_context(|| format!("there is no interface `{interface}`"))?;
    Ok(line.split_whitespace().nth(1).context("its counters")?.parse()?)
}

/// A daemon on another host.
pub struct Remote {
    stream: BufReader<TcpStream>,
    name: String,
}

impl Remote {
    /// Connects to `weir bench rate --listen`.
    pub fn connect(name: &str) -> Result<Remote> {
        let addresses = name.to_socket_addrs();
        let addresses = addresses.map_err(|error| BadInput(format!("--receiver {name}: {error}")))?;
        let mut last = anyhow!("it has no address");
        for address in addresses {
            match TcpStream::connect_timeout(&address, CONNECT) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(PATIENCE))?;
                    stream.set_nodelay(true)?;
                    return Ok(Remote { stream: BufReader::new(stream), name: name.to_owned() });
                }
                Err(error) => last = error.into(),
            }
        }
        let advice = "start `weir bench rate FILE --listen ADDRESS:PORT` there first";
        Err(last.context(format!("the receiver {name} cannot be reached: {advice}")))
    }

    fn ask(&mut self, request: &Value) -> Result<Value> {
        let mut line = format!("{request}\n");
        self.stream.get_mut().write_all(line.as_bytes())?;
        line.clear();
        self.stream.by_ref().take(ANSWER_MAX).read_line(&mut line)?;
        ensure!(line.ends_with('\n'), "it has ended");
        let answer: Value = serde_json::from_str(&line).context("it is not a weir that listens")?;
        if let Some(error) = answer["error"].as_str() {
            bail!("{error}");
        }
        Ok(answer)
    }
}

impl Receiver for Remote {
    fn counters(&mut self) -> Result<RateCounters> {
        let answer = self.ask(&json!({ "do": "counters" }));
        answer.and_then(|answer| read(&answer)).with_context(|| format!("the receiver {}", self.name))
    }
}

/// Writes counters as an answer.
fn written(counters: &RateCounters) -> Value {
    let RateCounters { arrived, received, busy_us, breaths, .. } = counters;
    let breaths = Vec::from_iter(breaths);
    json!({ "arrived": arrived, "received": received, "busy_us": busy_us, "breaths": breaths })
}

/// Reads such an answer.
fn read(answer: &Value) -> Result<RateCounters> {
    let count = |key: &str| answer[key].as_u64().with_context(|| format!("its answer has no `{key}`"));
    let pairs = answer["breaths"].as_array().context("its answer has no `breaths`")?;
    let pair = |pair: &Value| Some((pair[0].as_u64()?, pair[1].as_u64()?));
    Ok(RateCounters {
        at: Instant::now(),
        arrived: count("arrived")?,
        received: count("received")?,
        busy_us: answer["busy_us"].as_f64().context("its answer has no `busy_us`")?,
        breaths: pairs.iter().map(|one| pair(one).context("a bucket")).collect::<Result<_>>()?,
    })
}

/// Serves senders one after the other until a signal arrives or, with `is_once`, serves only the first one.
pub fn serve(
    address: SocketAddr,
    is_once: bool,
    near: &mut Near<'_>,
    interrupt: &Interrupt,
    say: Say<'_>,
) -> Result<Value> {
    // Wrong interfaces are an error now, and not for the sender.
    near.counters()?;
    let listener = TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
    listener.set_nonblocking(true)?;
    say(&format_args!("listening on {}", listener.local_addr()?))?;
    let mut senders = 0_u64;
    loop {
        match listener.accept() {
            Ok((stream, sender)) => {
                say(&format_args!("a sender from {sender}"))?;
                let served = session(stream, near, interrupt)?;
                senders += 1;
                say(&format_args!("{sender} has ended: {served}"))?;
                if is_once {
                    return Ok(json!({ "senders": senders }));
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => interrupt.sleep(POLL)?,
            Err(error) => return Err(error).context("cannot accept senders"),
        }
    }
}

/// Answers a sender until it ends, and says why it did. Only a failure of this end is an error.
fn session(stream: TcpStream, near: &mut Near<'_>, interrupt: &Interrupt) -> Result<String> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(POLL))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    let (mut line, mut heard, mut answers) = (Vec::new(), Instant::now(), 0_u64);
    loop {
        let room = REQUEST_MAX - line.len() as u64;
        match stream.by_ref().take(room).read_until(b'\n', &mut line) {
            Ok(_) if line.ends_with(b"\n") => {
                let request: Value = serde_json::from_slice(&line).unwrap_or_default();
                let answer = match request["do"].as_str() {
                    Some("counters") => written(&near.counters()?),
                    _ => json!({ "error": "it knows only the request `counters`" }),
                };
                if let Err(error) = stream.get_mut().write_all(format!("{answer}\n").as_bytes()) {
                    return Ok(error.to_string());
                }
                line.clear();
                (heard, answers) = (Instant::now(), answers + 1);
            }
            Ok(_) if line.len() as u64 == REQUEST_MAX => return Ok("its request was too long".to_string()),
            Ok(_) => return Ok(format!("{answers} answers")),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if heard.elapsed() > PATIENCE {
                    return Ok("it was silent for too long".to_string());
                }
                interrupt.sleep(Duration::ZERO)?;
            }
            Err(error) => return Ok(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_as_they_were_written() {
        let breaths = [(1000, 5), (2000, 7)].into_iter().collect();
        let (arrived, received, busy_us) = (9, 11, 1.5);
        let counters = RateCounters { at: Instant::now(), arrived, received, busy_us, breaths };
        let again = read(&written(&counters)).expect("all keys");
        assert_eq!((again.arrived, again.received, again.busy_us), (9, 11, 1.5));
        assert_eq!(again.breaths, counters.breaths);
        for key in ["arrived", "received", "busy_us", "breaths"] {
            let mut wrong = written(&counters);
            wrong[key] = Value::Null;
            assert!(read(&wrong).is_err_and(|error| error.to_string().contains(key)), "{key}");
        }
    }

    #[test]
    fn a_mac_address_has_six_bytes() {
        assert_eq!(super::super::mac("02:00:00:00:0a:ff"), Ok([2, 0, 0, 0, 10, 255]));
        for text in ["", "02:00:00:00:0a", "02:00:00:00:0a:ff:00", "2:0:0:0:0:1", "02:00:00:00:0a:fg"] {
            assert!(super::super::mac(text).is_err(), "{text}");
        }
    }
}
