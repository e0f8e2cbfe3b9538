//! PDUs byte by byte.

use crate::lacp::*;
use proptest::prelude::*;

const SOURCE: [u8; 6] = [0x02, 0x11, 0x22, 0x33, 0x44, 0x55];

/// Written by hand from figure 6-7 of 802.1AX, so that offsets, lengths and order are independent of our
/// code.
#[rustfmt::skip]
const FRAME: [u8; 74] = [
    0x01, 0x80, 0xc2, 0x00, 0x00, 0x02, 0x02, 0x11, 0x22, 0x33, 0x44, 0x55, 0x88, 0x09,
    0x01, 0x01,
    // Actor: system 54321, key 3333, port 111/11, activity timeout aggregation synchronized.
    0x01, 0x14, 0xd4, 0x31, 0x50, 0x54, 0x00, 0x00, 0x00, 0x01, 0x0d, 0x05, 0x00, 0x6f, 0x00, 0x0b, 0x0f, 0,
        0, 0,
    // Partner: system 65534, key 15, port 128/513, activity aggregation synchronized collecting distributing.
    0x02, 0x14, 0xff, 0xfe, 0x50, 0x54, 0x00, 0x00, 0x00, 0x02, 0x00, 0x0f, 0x00, 0x80, 0x02, 0x01, 0x3d, 0,
        0, 0,
    // Collector: 50 000 us; terminator. Reserved bytes follow.
    0x03, 0x10, 0x13, 0x88, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0x00, 0x00,
];

fn frame() -> Vec<u8> {
    let mut frame = FRAME.to_vec();
    frame.resize(124, 0);
    frame
}

fn pdu() -> LacpPdu {
    let state = |bits: &[State]| bits.iter().fold(State::default(), |all, bit| all | *bit);
    LacpPdu {
        actor: Info {
            system: System { priority: 54321, mac: [0x50, 0x54, 0, 0, 0, 1] },
            key: 3333,
            port: Port { priority: 111, number: 11 },
            state: state(&[State::ACTIVITY, State::TIMEOUT, State::AGGREGATION, State::SYNC]),
        },
        partner: Info {
            system: System { priority: 65534, mac: [0x50, 0x54, 0, 0, 0, 2] },
            key: 15,
            port: Port { priority: 128, number: 513 },
            state: state(&[
                State::ACTIVITY,
                State::AGGREGATION,
                State::SYNC,
                State::COLLECTING,
                State::DISTRIBUTING,
            ]),
        },
        collector_delay: 5000,
    }
}

#[test]
fn lacpdu_is_laid_out_as_the_standard_draws_it() {
    assert_eq!(pdu().frame(SOURCE), frame());
    assert_eq!(parse(&frame()), Ok(Pdu::Lacp(pdu())));
}

#[test]
fn marker_and_its_answer_differ_in_one_byte_behind_the_addresses() {
    let marker = Marker { port: 0x0102, system: [2, 3, 4, 5, 6, 7], transaction: 0x0809_0a0b };
    #[rustfmt::skip]
    let mut expected = vec![
        0x01, 0x80, 0xc2, 0x00, 0x00, 0x02, 0x02, 0x11, 0x22, 0x33, 0x44, 0x55, 0x88, 0x09,
        0x02, 0x01,
        0x01, 0x10, 0x01, 0x02, 2, 3, 4, 5, 6, 7, 0x08, 0x09, 0x0a, 0x0b, 0, 0,
        0x00, 0x00,
    ];
    expected.resize(124, 0);
    assert_eq!(marker.question(SOURCE), expected);
    expected[16] = 2;
    assert_eq!(marker.answer(SOURCE), expected);
    assert_eq!(parse(&expected), Ok(Pdu::MarkerResponse(marker)));
}

#[test]
fn every_refusal_has_its_reason() {
    let changed = |at: usize, byte: u8| {
        let mut frame = frame();
        frame[at] = byte;
        parse(&frame)
    };
    assert_eq!(changed(0, 0x02), Err(Refusal::NotSlowProtocol));
    assert_eq!(changed(5, 0x03), Err(Refusal::NotSlowProtocol));
    assert_eq!(changed(13, 0x08), Err(Refusal::NotSlowProtocol));
    assert_eq!(changed(14, 0), Err(Refusal::Subtype));
    assert_eq!(changed(14, 3), Err(Refusal::Subtype));
    assert_eq!(changed(15, 0), Err(Refusal::Version));
    assert_eq!(changed(17, 19), Err(Refusal::TlvLength));
    assert_eq!(changed(37, 0), Err(Refusal::TlvLength));
    assert_eq!(changed(57, 20), Err(Refusal::TlvLength));
    // The same bytes as a Marker PDU, whose only TLV is then too long.
    assert_eq!(changed(14, 2), Err(Refusal::TlvLength));
    let mut nobody = frame();
    nobody[20..26].fill(0);
    assert_eq!(parse(&nobody), Err(Refusal::Nobody));
    let mut marker = Marker { port: 1, system: SOURCE, transaction: 1 }.question(SOURCE);
    marker[16] = 3;
    assert_eq!(parse(&marker), Err(Refusal::TlvType));
    for len in 0..124 {
        assert_eq!(parse(&frame()[..len]), Err(Refusal::Truncated), "{len} bytes");
    }
}

#[test]
fn later_versions_types_and_reserved_bytes_are_not_looked_at() {
    let mut frame = frame();
    frame[15] = 2;
    for at in [16, 33, 34, 35, 36, 53, 54, 55, 56, 60, 71, 72, 73, 123] {
        frame[at] = 0xa5;
    }
    frame.extend([0; 200]);
    assert_eq!(parse(&frame), Ok(Pdu::Lacp(pdu())));
}

#[test]
fn state_names_its_bits() {
    assert_eq!(State(0x3f).to_string(), "activity timeout aggregation synchronized collecting distributing");
    assert_eq!(State(0xc0).to_string(), "defaulted expired");
    assert_eq!(State(0).to_string(), "");
}

#[test]
fn refusals_have_their_own_counter_and_name() {
    for (at, refusal) in Refusal::ALL.into_iter().enumerate() {
        assert_eq!(refusal as usize, at);
        assert!(Refusal::ALL[..at].iter().all(|other| other.name() != refusal.name()));
    }
}

prop_compose! {
    pub fn info()(
        system in (any::<u16>(), any::<[u8; 6]>()), key: u16, port in (any::<u16>(), any::<u16>()), state: u8,
    ) -> Info {
        let system = System { priority: system.0, mac: system.1 };
        Info { system, key, port: Port { priority: port.0, number: port.1 }, state: State(state) }
    }
}

proptest! {
    #[test]
    fn lacpdus_come_back_as_they_were(mut actor in info(), partner in info(), collector_delay: u16) {
        actor.system.mac[5] |= 1;
        let pdu = LacpPdu { actor, partner, collector_delay };
        prop_assert_eq!(parse(&pdu.frame(SOURCE)), Ok(Pdu::Lacp(pdu)));
    }

    #[test]
    fn markers_come_back_as_they_were(port: u16, system: [u8; 6], transaction: u32) {
        let marker = Marker { port, system, transaction };
        prop_assert_eq!(parse(&marker.question(SOURCE)), Ok(Pdu::Marker(marker)));
        prop_assert_eq!(parse(&marker.answer(SOURCE)), Ok(Pdu::MarkerResponse(marker)));
    }

    #[test]
    fn any_bytes_are_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200),
        at in 0usize..130, byte: u8) {
        let _ = parse(&bytes);
        let mut near = frame();
        near.splice(at.min(124).., bytes.iter().copied());
        if let Some(here) = near.get_mut(at) {
            *here = byte;
        }
        let _ = parse(&near);
    }
}
