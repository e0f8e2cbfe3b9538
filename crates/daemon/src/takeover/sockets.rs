//! The part of the takeover protocol about sockets that pass from one daemon to the other.
//!
//! After `hello`, if the successor has asked for it, the old daemon sends `sockets`: which sockets exist, on
//! which memory, and their descriptors. `go` names the sockets that the successor can use, and `end` contains
//! the state in which each was left. An older daemon sends none of this, and an older successor does not ask
//! for it: the sockets are then closed and reopened.

use super::super::interfaces::Interfaces;
use super::wire::{DESCRIPTORS_MAX, Message, Wire};
use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};
use std::os::fd::AsFd;
use weir_packet::{PoolId, RegionPool};
use weir_port::xdp::{Home, Left, LostFrames, Memory, Offer, Rings, XdpInterface};

/// The version of this part of the protocol.
pub const SOCKETS: u64 = 1;

/// The maximum number of chunks of a pool, so that no message can request too much memory.
const CHUNKS_MAX: u32 = 1 << 24;

/// Queues of the interfaces with these indices.
pub type QueuesOf = Vec<(u32, Vec<u32>)>;

/// The sockets of a daemon and their memory, for its successor.
#[derive(Default)]
pub struct Offering {
    memories: Vec<Memory>,
    sockets: Vec<(u32, Offer)>,
}

impl Offering {
    /// Collects all sockets and their memory.
    pub fn of(interfaces: &Interfaces) -> Offering {
        let mut all = Offering::default();
        for interface in interfaces.all() {
            for (offer, memory) in interface.offers() {
                if all.memories.iter().all(|known| known.pool != memory.pool) {
                    all.memories.push(memory);
                }
                all.sockets.push((interface.index(), offer));
            }
        }
        all
    }

    /// Sends the sockets in as many messages as the number of descriptors requires.
    pub fn send(self, wire: &mut Wire) -> Result<()> {
        let (mut memories, mut sockets) = (self.memories.as_slice(), self.sockets.as_slice());
        loop {
            let (some, others) = memories.split_at(memories.len().min(DESCRIPTORS_MAX));
            memories = others;
            let room = DESCRIPTORS_MAX - some.len();
            let (those, others) = sockets.split_at(sockets.len().min(room));
            sockets = others;
            let is_last = memories.is_empty() && sockets.is_empty();
            let files = some.iter().map(|one| one.file.as_fd());
            let files: Vec<_> = files.chain(those.iter().map(|(_, one)| one.socket.as_fd())).collect();
            let head = json!({
                "say": "sockets", "last": is_last,
                "memories": some.iter().map(memory_json).collect::<Vec<_>>(),
                "sockets": those.iter().map(socket_json).collect::<Vec<_>>(),
            });
            wire.send(&head, &[], &files)?;
            if is_last {
                return Ok(());
            }
        }
    }

    /// Receives the memory and sockets that the other weir offers.
    pub fn receive(wire: &mut Wire) -> Result<Offering> {
        let mut all = Offering::default();
        loop {
            let message = wire.receive()?;
            let is_last = message.head["last"] != false;
            all.add(message).context("cannot parse the old weir's sockets")?;
            if is_last {
                return Ok(all);
            }
        }
    }

    fn add(&mut self, message: Message) -> Result<()> {
        if !message.is("sockets") {
            bail!("it says `{}`", message.head["say"]);
        }
        let mut files = message.descriptors.into_iter();
        let mut file = || files.next().context("a descriptor is missing");
        for one in list(&message.head["memories"]) {
            let (pool, chunks, chunk) = (number(&one[0])?, number(&one[1])?, number(&one[2])?);
            if chunks > CHUNKS_MAX {
                bail!("a pool has {chunks} chunks");
            }
            self.memories.push(Memory { pool, chunks, chunk, file: file()? });
        }
        for one in list(&message.head["sockets"]) {
            let sizes = (number(&one[4][0])?, number(&one[4][1])?, number(&one[4][2])?);
            let rings = Rings { fill: sizes.0, receive: sizes.1, transmit: sizes.2 };
            let (queue, native, zero_copy) = (number(&one[1])?, one[2] == true, one[3] == true);
            let (pool, socket) = (number(&one[5])?, file()?);
            self.sockets.push((number(&one[0])?, Offer { queue, native, zero_copy, rings, pool, socket }));
        }
        Ok(())
    }
}

fn memory_json(one: &Memory) -> Value {
    json!([one.pool, one.chunks, one.chunk])
}

fn socket_json((index, one): &(u32, Offer)) -> Value {
    let Rings { fill, receive, transmit } = one.rings;
    json!([index, one.queue, one.native, one.zero_copy, [fill, receive, transmit], one.pool])
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn number(value: &Value) -> Result<u32> {
    value.as_u64().and_then(|number| u32::try_from(number).ok()).context("a number is missing")
}

/// The sockets and the memory that the successor can use.
#[derive(Default)]
pub struct Offered {
    memories: Vec<Memory>,
    /// For each socket: the interface's index, the queue, and the old daemon's number for the pool.
    places: Vec<(u32, u32, u32)>,
    /// The adopted pools: the old daemon's number, our id, and the number of chunks.
    adopted: Vec<(u32, PoolId, u32)>,
}

impl Offered {
    /// Assigns the sockets to the prepared interfaces.
    pub fn give(offering: Offering, interfaces: &Interfaces) -> Offered {
        let places = offering.sockets.iter().map(|(index, one)| (*index, one.queue, one.pool)).collect();
        interfaces.offer(offering.sockets);
        Offered { memories: offering.memories, places, adopted: Vec::new() }
    }

    /// Whether nothing is offered.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Adopts the pool with this number, whose chunks must have size `chunk`.
    ///
    /// # Errors
    /// The error says why that is not possible.
    pub fn take(&mut self, number: u32, chunk: usize) -> Result<RegionPool, String> {
        let at = self.memories.iter().position(|memory| memory.pool == number);
        let memory = &self.memories[at.ok_or("another worker has its memory")?];
        if memory.chunk as usize != chunk {
            return Err(format!("its frames have {} bytes instead of {chunk}", memory.chunk));
        }
        let Memory { chunks, file, .. } = self.memories.swap_remove(at.unwrap_or_default());
        let pool = RegionPool::adopt(file, chunks, chunk);
        let pool = pool.map_err(|errno| format!("its memory cannot be mapped: {errno}"))?;
        self.adopted.push((number, pool.id(), chunks));
        Ok(pool)
    }

    /// Returns the chunks that no socket holds to the adopted pools, given the state in which each interface
    /// was left.
    pub fn return_chunks(&self, left: &[(u32, Left)], interfaces: &Interfaces) -> Result<()> {
        for interface in interfaces.prepared() {
            interface.keep_adopted(&of_interface(left, interface.index()));
        }
        for (number, pool, chunks) in &self.adopted {
            let is_on = |index, queue| self.places.contains(&(index, queue, *number));
            let those = left.iter().filter(|(index, one)| is_on(*index, one.queue)).map(|(_, one)| one);
            let home = Home::new(*chunks, those).context("the old weir's sockets are inconsistent")?;
            let mut rest = Some(home);
            for interface in interfaces.prepared() {
                rest = rest.and_then(|home| interface.bring_home(*pool, home));
            }
            if rest.is_some() {
                bail!("no port uses the adopted memory");
            }
        }
        Ok(())
    }
}

/// Returns the state in which one interface was left.
pub fn of_interface(left: &[(u32, Left)], index: u32) -> Vec<Left> {
    left.iter().filter(|(one, _)| *one == index).map(|(_, left)| left.clone()).collect()
}

/// Returns the queues whose sockets will be handed over, as JSON for `go`.
pub fn adopted_json(interfaces: &Interfaces) -> Value {
    let queues = |one: &XdpInterface| json!([one.index(), one.adopted()]);
    interfaces.prepared().map(queues).collect()
}

/// Reads what [`adopted_json`] has written; queues that are not numbers are skipped.
pub fn read_adopted(value: &Value) -> QueuesOf {
    let queues = |one: &Value| list(&one[1]).filter_map(|queue| number(queue).ok()).collect();
    list(value).filter_map(|one| Some((number(&one[0]).ok()?, queues(one)))).collect()
}

/// Returns the states in which ports were left, as JSON and bytes for `end`.
pub fn left_json(left: &[(u32, Left)]) -> (Value, Vec<u8>) {
    let mut bytes = Vec::new();
    let mut one_json = |(index, one): &(u32, Left)| {
        one.away.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes.extend(&one.further);
        let lost = one.lost.map(|lost| [lost.dropped, lost.ring_full]);
        json!([index, one.queue, one.held, one.in_pieces, one.away.len(), one.further.len(), lost])
    };
    let all = left.iter().map(&mut one_json).collect();
    (all, bytes)
}

/// Reads what [`left_json`] has written.
///
/// # Errors
/// Fails if a number or bytes are missing.
pub fn read_left(value: &Value, bytes: &[u8]) -> Result<Vec<(u32, Left)>> {
    let mut rest = bytes;
    let mut next = |count: u64| {
        let count = usize::try_from(count).ok().filter(|count| *count <= rest.len());
        let (some, others) = rest.split_at(count.ok_or_else(|| anyhow!("bytes are missing"))?);
        rest = others;
        Ok::<_, anyhow::Error>(some)
    };
    let mut all = Vec::new();
    for one in list(value) {
        let length = |at: usize| one[at].as_u64().context("a number is missing");
        let away = next(length(4)?.saturating_mul(8))?.as_chunks().0;
        let away = away.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let further = next(length(5)?)?.to_vec();
        let (queue, held, in_pieces) = (number(&one[1])?, length(2)?, one[3] == true);
        let lost = one[6][0].as_u64().zip(one[6][1].as_u64());
        let lost = lost.map(|(dropped, ring_full)| LostFrames { dropped, ring_full });
        all.push((number(&one[0])?, Left { queue, away, further, held, in_pieces, lost }));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn offering(memories: u32, sockets: u32) -> Offering {
        let file = || std::fs::File::open("/dev/null").unwrap().into();
        let rings = Rings { fill: 64, receive: 128, transmit: 256 };
        let memory = |pool| Memory { pool, chunks: 9, chunk: 2048, file: file() };
        let socket = |queue| {
            let (native, zero_copy, pool) = (true, queue % 2 == 0, queue % memories);
            (7, Offer { queue, native, zero_copy, rings, pool, socket: file() })
        };
        Offering {
            memories: (0..memories).map(memory).collect(),
            sockets: (0..sockets).map(socket).collect(),
        }
    }

    fn pair() -> (Wire, Wire) {
        let (one, other) = UnixStream::pair().unwrap();
        (Wire::new(one).unwrap(), Wire::new(other).unwrap())
    }

    #[test]
    fn more_sockets_than_a_message_has_descriptors_arrive_with_their_memory() {
        let (mut one, mut other) = pair();
        for (memories, sockets) in [(1, 0), (2, 5), (64, 253), (254, 600)] {
            offering(memories, sockets).send(&mut one).unwrap();
            let got = Offering::receive(&mut other).unwrap();
            let sent = offering(memories, sockets);
            let all = |of: &Offering| {
                let memories: Vec<Value> = of.memories.iter().map(memory_json).collect();
                (memories, of.sockets.iter().map(socket_json).collect::<Vec<_>>())
            };
            assert_eq!(all(&got), all(&sent));
        }
    }

    #[test]
    fn what_is_not_complete_is_refused() {
        let file: std::os::fd::OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        let memory = |chunks: u64| json!({ "say": "sockets", "memories": [[1, chunks, 2048]] });
        let socket = json!([7, 0, true, false, [64, 64], 1]);
        for (head, files) in [
            (json!({ "say": "flows" }), 0),
            (memory(9), 0),
            (memory(u64::from(CHUNKS_MAX) + 1), 1),
            (memory(1 << 33), 1),
            (json!({ "say": "sockets", "sockets": [socket] }), 1),
        ] {
            let (mut one, mut other) = pair();
            one.send(&head, &[], &vec![file.as_fd(); files]).unwrap();
            assert!(Offering::receive(&mut other).is_err(), "{head}");
        }
    }

    #[test]
    fn what_is_left_is_read_as_it_was_written() {
        let lost = Some(LostFrames { dropped: 2, ring_full: 1 << 40 });
        let one = Left { queue: 3, away: vec![u64::MAX, 5], further: vec![], held: 9, in_pieces: true, lost };
        let two =
            Left { queue: 0, away: vec![1], further: vec![0, 7], held: 0, in_pieces: false, lost: None };
        let all = vec![(4, one), (1 << 31, two)];
        let (head, bytes) = left_json(&all);
        assert_eq!(read_left(&head, &bytes).unwrap(), all);
        assert_eq!(of_interface(&all, 4), [all[0].1.clone()]);
        assert!(read_left(&head, &bytes[1..]).is_err());
        assert!(read_left(&json!([[1, 2, 3, true, u64::MAX, 0]]), &bytes).is_err());
        assert_eq!(read_left(&Value::Null, &[]).unwrap(), []);
        assert_eq!(read_adopted(&json!([[4, [0, 1]], ["x"], [5, []]])), [(4, vec![0, 1]), (5, vec![])]);
    }
}
