//! The filters of clsact at an interface, and which of them are ours.

use super::{NAME, index_of};
use aya::maps::{Array, Map, MapData};
use aya::programs::tc::{SchedClassifierLink, TcHandle};
use aya::programs::{ProgramError, ProgramInfo, TcAttachType, loaded_programs};
use std::collections::BTreeMap;
use std::io;
use weir_netlink::{Filter, filters};

/// Lists the filters at a hook that run programs; none if the interface has no clsact.
pub fn at(interface: u32, hook: TcAttachType) -> io::Result<Vec<Filter>> {
    // TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS or TC_H_MIN_EGRESS) of linux/pkt_sched.h.
    let parent = match hook {
        TcAttachType::Ingress => 0xffff_fff2,
        TcAttachType::Egress => 0xffff_fff3,
        TcAttachType::Custom(parent) => parent,
    };
    filters(interface, parent)
}

/// Returns the programs of our filters in the kernel, by ID, with the program to which each jumps: none if
/// the process that attached the filter has ended.
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

/// Reads the array of a program. For its element, the kernel returns the ID of the program in it.
fn target(program: &ProgramInfo) -> Result<Option<u32>, ProgramError> {
    for map in program.map_ids()?.unwrap_or_default() {
        let array = Array::<_, u32>::try_from(Map::Array(MapData::from_id(map)?))?;
        if let Ok(id) = array.get(&0, 0) {
            return Ok(Some(id));
        }
    }
    Ok(None)
}

/// Removes those of our filters at an interface whose processes have ended. Returns how many there were.
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
