//! Separate handles to the programs at an interface, which several threads can run at once.

use aya::TestRun;
use aya::programs::{SchedClassifier, TcAttachType, TestRunOptions, loaded_programs};
use weir_bpf::hook::programs_at;

/// Size of `struct __sk_buff`, and offsets of its fields.
const CONTEXT: usize = 192;
const MARK: usize = 8;
const INTERFACE: usize = 40;

/// A program that is attached.
pub struct Handle(SchedClassifier);

impl Handle {
    /// Finds one by the beginning of its name, which the kernel truncates.
    pub fn find(interface: &str, hook: TcAttachType, name: &str) -> Handle {
        let there = programs_at(interface, hook).unwrap();
        let found = loaded_programs().flatten().find(|info| {
            let own = info.name_as_str().unwrap_or_default();
            !own.is_empty() && name.starts_with(own) && there.contains(&info.id())
        });
        let found = found.unwrap_or_else(|| panic!("{name} at {interface}"));
        Handle(SchedClassifier::from_program_info(found, name.to_string().into()).unwrap())
    }

    /// Runs it on a frame that arrived on this interface with this mark. Returns its verdict, the frame and
    /// its mark.
    pub fn run(&self, frame: &[u8], (interface, mark): (u32, u32)) -> (i32, Vec<u8>, u32) {
        let (mut context, mut after) = ([0; CONTEXT], [0; CONTEXT]);
        context[MARK..MARK + 4].copy_from_slice(&mark.to_ne_bytes());
        context[INTERFACE..INTERFACE + 4].copy_from_slice(&interface.to_ne_bytes());
        let mut out = vec![0; frame.len() + 128];
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            ctx_in: Some(&context),
            ctx_out: Some(&mut after),
            ..TestRunOptions::new()
        };
        let result = self.0.test_run(options).unwrap();
        out.truncate(result.data_size_out as usize);
        let mark = after[MARK..].first_chunk().copied().map_or(0, u32::from_ne_bytes);
        (result.return_value as i32, out, mark)
    }
}
