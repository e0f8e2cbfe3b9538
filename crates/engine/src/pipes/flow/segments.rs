//! The newest segment of each TCP connection that an app resets when its flow has been idle too long
//! (pipes.md C16).
//!
//! Costs: 128 bytes for each flow of the table, resident as used, and two cache lines for each packet. Pipes
//! whose groups have no such app pay nothing.

use super::Flows;
use crate::pipes::lookup::Lookup;
use std::collections::VecDeque;
use weir_packet::{Base, Headers, Layer};
use weir_program::{AppId, Group, PortId, Program};
use weir_table::{Decision, Flow, FlowState, NO_DELTA_TARGET};

/// Maximum number of segments that wait for the app; while this number wait, other idle flows stay.
const WAITING_MAX: usize = 512;

/// A row: the hash of the flow's key, the sequence number after the segment, the port that it came from, how
/// many bytes of it are kept, and those bytes. Stored as bytes, because zeroed memory is not touched before
/// it is used.
pub(super) type SegmentRow = [u8; 128];

const END: usize = 8;
const INPUT: usize = 12;
const LENGTH: usize = 14;
const HEADERS: usize = 16;
/// Room for Ethernet with tags, IP with options, and TCP without.
const LENGTH_MAX: usize = 128 - HEADERS;

/// A TCP header without options.
const TCP: usize = 20;
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
/// An IPv6 header, which its length field does not include.
const IPV6: usize = 40;

/// The newest segments of flows, by row.
#[derive(Debug)]
pub struct Segments {
    rows: Vec<SegmentRow>,
    /// By group: the app that resets its connections.
    apps: Vec<Option<AppId>>,
    waiting: VecDeque<IdleSegment>,
}

/// The newest segment of a connection that has been idle too long.
#[derive(Clone, Debug)]
pub struct IdleSegment {
    /// The app that gets the segment.
    pub app: AppId,
    row: SegmentRow,
}

impl IdleSegment {
    /// Returns the port that the segment came from.
    #[must_use]
    pub fn input(&self) -> PortId {
        PortId(number16(&self.row, INPUT))
    }

    /// Returns the headers of the segment, up to the end of the TCP header without options.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.row[HEADERS..HEADERS + usize::from(number16(&self.row, LENGTH)).min(LENGTH_MAX)]
    }
}

impl Segments {
    /// Creates room for the segments of `rows` flows, if a group of the program has such an app.
    #[must_use]
    pub fn new(program: &Program, rows: u32) -> Option<Box<Segments>> {
        let apps: Vec<Option<AppId>> = program.groups.iter().map(|group: &Group| group.idle).collect();
        let waiting = VecDeque::with_capacity(WAITING_MAX);
        let any = apps.iter().any(Option::is_some);
        any.then(|| Box::new(Segments { rows: vec![[0; 128]; rows as usize], apps, waiting }))
    }

    /// Keeps the segment of a flow, unless it is older than the one already kept. `hash` is that of the key.
    fn keep(&mut self, at: u32, hash: u64, (bytes, headers, input): (&[u8], &Headers, PortId)) {
        let (Some(row), Some((end, length))) = (self.rows.get_mut(at as usize), segment(bytes, headers))
        else {
            return;
        };
        let kept = u32::from_ne_bytes([row[END], row[END + 1], row[END + 2], row[END + 3]]);
        if holds(row, hash) && end.wrapping_sub(kept).cast_signed() < 0 {
            return;
        }
        row[..END].copy_from_slice(&hash.to_ne_bytes());
        row[END..INPUT].copy_from_slice(&end.to_ne_bytes());
        row[INPUT..LENGTH].copy_from_slice(&input.0.to_ne_bytes());
        row[LENGTH..HEADERS].copy_from_slice(&(length as u16).to_ne_bytes());
        row[HEADERS..HEADERS + length].copy_from_slice(&bytes[..length]);
    }

    /// Whether a segment is kept for the flow in this row, whose key has this hash.
    pub(super) fn has(&self, at: u32, hash: u64) -> bool {
        self.rows.get(at as usize).is_some_and(|row| holds(row, hash))
    }

    /// Returns what is kept for the flow in this row.
    pub(super) fn row(&self, at: u32) -> Option<SegmentRow> {
        self.rows.get(at as usize).copied()
    }

    /// Sets what is kept for the flow in this row; `None` clears it.
    pub(super) fn set(&mut self, at: u32, row: Option<SegmentRow>) {
        if let Some(place) = self.rows.get_mut(at as usize) {
            *place = row.unwrap_or([0; 128]);
        }
    }

    /// Takes over the segments of flows that keep their rows.
    pub(super) fn take_rows(&mut self, old: &mut Segments) {
        if self.rows.len() == old.rows.len() {
            std::mem::swap(&mut self.rows, &mut old.rows);
        }
    }
}

/// Whether a row holds a segment of the flow whose key has this hash.
fn holds(row: &SegmentRow, hash: u64) -> bool {
    row[..END] == hash.to_ne_bytes() && number16(row, LENGTH) != 0
}

fn number16(row: &SegmentRow, at: usize) -> u16 {
    u16::from_ne_bytes([row[at], row[at + 1]])
}

/// Returns the sequence number after a segment, and the length of its headers without TCP options. Only a
/// segment with an acknowledgement shows where both ends are; a SYN or a reset may be stray.
fn segment(bytes: &[u8], headers: &Headers) -> Option<(u32, usize)> {
    let level = headers.outer();
    let (ip, at) = (level.at(Base::L3), level.at(Base::L4));
    let tcp = bytes.get(at..at + TCP).filter(|_| level.layers.has(Layer::Tcp))?;
    let length = at + TCP;
    if tcp[13] & (SYN | RST | ACK) != ACK || length > LENGTH_MAX {
        return None;
    }
    let (length_at, before) = if level.layers.has(Layer::Ipv4) { (ip + 2, 0) } else { (ip + 4, IPV6) };
    let counted = bytes.get(length_at..length_at + 2)?;
    let end = ip + before + usize::from(u16::from_be_bytes([counted[0], counted[1]]));
    let data = end.saturating_sub(at + usize::from(tcp[12] >> 4) * 4) as u32;
    let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
    Some((sequence.wrapping_add(data).wrapping_add(u32::from(tcp[13] & FIN)), length))
}

impl Flows {
    /// Keeps the segment of a flow that has just counted it, if an app resets the flows of its group.
    #[inline(never)]
    pub(super) fn keep_segment(&mut self, at: u32, slot: usize, look: &Lookup<'_>) {
        let Some(flow) = self.table.flow(at) else { return };
        let (is_first, has_app) = (flow.heard() == 1, self.resets(flow).is_some());
        let Some(segments) = &mut self.segments else { return };
        if is_first {
            segments.set(at, None);
        }
        if has_app {
            let hash = look.packets.keys(self.source).table[slot];
            let (headers, input) = (look.packets.headers(slot), look.packets.input);
            segments.keep(at, hash, (look.batch.frame(slot).bytes(), headers, input));
        }
    }

    /// Returns the app that resets a flow that has been idle too long.
    fn resets(&self, flow: &Flow) -> Option<AppId> {
        let Decision::Pinned(number) = flow.decision() else { return None };
        let of = self.decided.belonging(number).filter(|of| of.target != NO_DELTA_TARGET)?;
        let (group, _) = self.target_numbered(of.target);
        self.segments.as_ref()?.apps.get(group.index()).copied().flatten()
    }

    /// The connection in a row has been idle too long: its app gets the newest segment, and the flow stays
    /// for as long as a reset flow does. If no app is interested, the flow leaves at the next visit.
    pub(super) fn announce(&mut self, at: u32, now_ms: u32) {
        let Some(flow) = self.table.flow(at) else { return };
        let state = flow.state().together(self.other_direction(at).map(Flow::state));
        if state != FlowState::TcpEstablished {
            return;
        }
        let app = self.resets(flow);
        let most = if self.room == usize::MAX { usize::MAX } else { WAITING_MAX };
        let Some(segments) = &mut self.segments else { return };
        match app {
            None => segments.set(at, None),
            Some(app) if segments.waiting.len() < most => {
                let row = segments.row(at);
                segments.waiting.extend(row.map(|row| IdleSegment { app, row }));
                segments.set(at, None);
                self.report_former_counts(at, now_ms);
                self.table.end(at, now_ms);
            }
            Some(_) => {}
        }
    }

    /// Passes the segments of idle connections to `sink`, as long as it accepts them.
    pub fn take_idle(&mut self, mut sink: impl FnMut(&IdleSegment) -> bool) {
        let Some(segments) = &mut self.segments else { return };
        while segments.waiting.front().is_some_and(&mut sink) {
            segments.waiting.pop_front();
        }
    }
}
