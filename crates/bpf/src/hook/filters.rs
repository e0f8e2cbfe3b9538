//! The filters of clsact at an interface, as netlink lists them (RTM_GETTFILTER), and which of them are ours.

use super::{NAME, index_of};
use aya::maps::{Array, Map, MapData};
use aya::programs::tc::{SchedClassifierLink, TcHandle};
use aya::programs::{ProgramError, ProgramInfo, TcAttachType, loaded_programs};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{recv, send, socket_with};
use std::collections::BTreeMap;
use std::io;

/// Messages of rtnetlink.
const NEW_FILTER: u16 = 44;
const GET_FILTER: u16 = 46;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// REQUEST and DUMP.
const FLAGS: u16 = 0x301;
/// Attributes: of a filter, and of a filter that runs an eBPF program.
const OPTIONS: u16 = 2;
const PROGRAM_ID: u16 = 11;
/// Sizes of `struct nlmsghdr`, of `struct tcmsg` and of an attribute's header.
const HEADER: usize = 16;
const TCMSG: usize = 20;
const ATTRIBUTE: usize = 4;
/// More than the kernel puts in a message.
const BUFFER: usize = 64 << 10;

/// A filter that runs a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    /// The ID of the program.
    pub program: u32,
    /// Its position among the filters.
    pub priority: u16,
    handle: u32,
}

/// Lists the filters at a hook that run programs; none if the interface has no clsact.
pub fn at(interface: u32, hook: TcAttachType) -> io::Result<Vec<Filter>> {
    let parent: u32 = match hook {
        TcAttachType::Ingress => 0xffff_fff2,
        TcAttachType::Egress => 0xffff_fff3,
        TcAttachType::Custom(parent) => parent,
    };
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    let mut request = Vec::with_capacity(HEADER + TCMSG);
    request.extend(((HEADER + TCMSG) as u32).to_ne_bytes());
    request.extend([GET_FILTER, FLAGS].map(u16::to_ne_bytes).as_flattened());
    // Sequence and sender, then the family, which does not matter.
    request.extend([0; 8 + 4]);
    request.extend([interface, 0, parent, 0].map(u32::to_ne_bytes).as_flattened());
    send(&socket, &request, SendFlags::empty())?;
    let (mut found, mut buffer) = (Vec::new(), vec![0; BUFFER]);
    loop {
        let (_, length) = recv(&socket, &mut buffer[..], RecvFlags::empty())?;
        if read(&buffer[..length.min(BUFFER)], &mut found)? {
            return Ok(found);
        }
    }
}

/// Reads the messages of one datagram; returns true at the end of the list.
fn read(mut messages: &[u8], found: &mut Vec<Filter>) -> io::Result<bool> {
    while let (Some(length), Some(kind)) = (word(messages, 0), half(messages, 4)) {
        let Some(message) = messages.get(..length as usize).filter(|message| message.len() >= HEADER) else {
            break;
        };
        match kind {
            NEW_FILTER => found.extend(filter(&message[HEADER..])),
            DONE => return Ok(true),
            ERROR => {
                let number = word(message, HEADER).unwrap_or_default().cast_signed();
                return Err(io::Error::from_raw_os_error(-number));
            }
            // Other messages of the kernel, such as NLMSG_NOOP.
            _ => {}
        }
        messages = messages.get((length as usize).next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// Reads a filter. For each priority, the list also has an entry without a program.
fn filter(message: &[u8]) -> Option<Filter> {
    let options = attribute(message.get(TCMSG..)?, OPTIONS)?;
    let program = word(attribute(options, PROGRAM_ID)?, 0)?;
    Some(Filter { program, handle: word(message, 8)?, priority: (word(message, 16)? >> 16) as u16 })
}

fn attribute(mut all: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(half(all, 0)?);
        let value = all.get(ATTRIBUTE..length)?;
        // The upper two bits say how the value is laid out.
        if half(all, 2)? & 0x3fff == wanted {
            return Some(value);
        }
        all = all.get(length.next_multiple_of(4)..)?;
    }
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_ne_bytes)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes)
}

/// Returns the programs of our filters in the kernel, by ID, with the program to which each jumps: none if
/// the process that attached it has ended.
pub fn hooks() -> Result<BTreeMap<u32, Option<u32>>, ProgramError> {
    let mut all = BTreeMap::new();
    for program in loaded_programs() {
        // A program that has disappeared in the meantime does not count.
        let Ok(program) = program else { continue };
        if program.name_as_str() == Some(NAME) {
            all.insert(program.id(), target(&program)?);
        }
    }
    Ok(all)
}

/// Reads the array of a program: the kernel returns the ID of the program in it.
fn target(program: &ProgramInfo) -> Result<Option<u32>, ProgramError> {
    for map in program.map_ids()?.unwrap_or_default() {
        let array = Array::<_, u32>::try_from(Map::Array(MapData::from_id(map)?))?;
        if let Ok(id) = array.get(&0, 0) {
            return Ok(Some(id));
        }
    }
    Ok(None)
}

/// Removes our filters at an interface whose processes have ended. Returns how many there were.
///
/// # Errors
/// Returns the kernel's error: there is no such interface, or a privilege is missing.
pub fn remove_dead(interface: &str) -> Result<usize, ProgramError> {
    let hooks = hooks()?;
    let index = index_of(interface).map_err(super::io_error)?;
    let mut removed = 0;
    for hook in [TcAttachType::Egress, TcAttachType::Ingress] {
        for filter in at(index, hook).map_err(super::io_error)? {
            if hooks.get(&filter.program) != Some(&None) {
                continue;
            }
            let handle = TcHandle::from(filter.handle);
            let link = SchedClassifierLink::attached(interface, hook, filter.priority, handle, None);
            // Dropping an attachment by netlink undoes it.
            drop(link.map_err(super::io_error)?);
            removed += 1;
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_is_cut_short_or_odd_ends_without_a_panic() {
        let mut message = Vec::new();
        let attribute = |kind: u16, value: &[u8]| {
            let head = [value.len() as u16 + 4, kind].map(u16::to_ne_bytes);
            [head.as_flattened(), value].concat()
        };
        let program = attribute(PROGRAM_ID, &77_u32.to_ne_bytes());
        let options = attribute(OPTIONS | 0x8000, &program);
        message.extend(((HEADER + TCMSG + options.len()) as u32).to_ne_bytes());
        message.extend([NEW_FILTER, 0].map(u16::to_ne_bytes).as_flattened());
        message.extend([0; 8 + 4]);
        message.extend([3, 0x10002, 0, 50_000 << 16].map(u32::to_ne_bytes).as_flattened());
        message.extend(options);
        let read_of = |bytes: &[u8]| {
            let mut found = Vec::new();
            read(bytes, &mut found).map(|end| (found, end)).unwrap()
        };
        let filter = Filter { program: 77, priority: 50_000, handle: 0x10002 };
        assert_eq!(read_of(&message), (vec![filter], false));
        for length in 0..message.len() {
            assert_eq!(read_of(&message[..length]), (Vec::new(), false), "{length}");
        }
        let endless = [0; 64];
        assert_eq!(read_of(&endless), (Vec::new(), false));
    }
}
